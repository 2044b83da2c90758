"""Kendall's τ between orders, of many pairs at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 2**20
"""Entries handled at once: tens of MB of temporaries, however many orders there are."""


def taus(order: NDArray[np.intp], draws: NDArray[np.integer]) -> NDArray[np.float64]:
    """Of an order (T,) or (n, T) with each of many, (R, T) or (R, n, T), of these the mean over n: shape (R,)."""
    R, T = len(draws), draws.shape[-1]
    against = np.broadcast_to(order, draws.shape).reshape(-1, T)
    return row_taus(against, draws.reshape(-1, T).astype(np.intp)).reshape(R, -1).mean(axis=1)


def row_taus(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.float64]:
    """Of each pair of rows."""
    positions = np.atleast_2d(positions_along(a, b))
    n, T = positions.shape
    step = max(1, BLOCK // T)
    wrong = np.concatenate([_inversions(positions[i : i + step]) for i in range(0, n, step)])
    return 1.0 - 4.0 * wrong / (T * (T - 1))


def positions_along(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.intp]:
    """Where the estimate b puts the slices, listed in their true order a."""
    T = a.shape[-1]
    if T < 2:
        raise ValueError("at least two slices are needed to compare pairs of slices")
    position = np.empty_like(b)
    np.put_along_axis(position, b, np.broadcast_to(np.arange(T), b.shape), axis=-1)
    return np.take_along_axis(position, a, axis=-1)


def _inversions(p: NDArray[np.intp]) -> NDArray[np.int64]:
    """Inverted pairs in each row of permutations (n, T), O(T log T) a row.

    Halve the range of values again and again, keeping the order inside each half: a pair is
    inverted at the one level where its larger value, in the upper half, stands first.
    """
    n, T = p.shape
    size = 1 << (T - 1).bit_length()
    # Padding with the next larger values adds no inversion and makes all halves equal.
    padding = np.broadcast_to(np.arange(T, size), (n, size - T))
    v = np.concatenate([p, padding], axis=1, dtype=np.int32).reshape(n, 1, size)
    total = np.zeros(n, dtype=np.int64)
    while half := v.shape[-1] // 2:
        upper = (v & half) != 0
        ahead = np.cumsum(upper, axis=-1, dtype=np.int32) * ~upper
        total += np.sum(ahead, axis=(1, 2), dtype=np.int64)
        halves = [v[keep].reshape(n, -1, 1, half) for keep in (~upper, upper)]
        v = np.concatenate(halves, axis=2).reshape(n, -1, half)
    return total
