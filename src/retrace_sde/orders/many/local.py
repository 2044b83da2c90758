"""Compiled local search by lists of neighbours: O(T K) for a sweep over T slices with K neighbours each.

Only moves that put neighbours side by side are tried. What a step costs between slices that are no neighbours is taken from
sketches of them, or, without sketches, is `far`. The path is padded as in `search`: the node T stands before the first and
after the last slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.search import LONG, SHORT, exchange, padded_path, reverse
from retrace_sde.orders.shared import PathCosts

Lists = NDArray[np.int32]


NEAREST = 6
"""Neighbours beside which longer segments are tried."""


class Near(NamedTuple):
    """Neighbours (T, K) of each slice, nearest first (−1: no more), what each costs right after it (T, K), and start costs (T,).

    All other steps cost `½ |target_b − source_a|²` of sketches (T, k), or `far` where k = 0.
    """

    lists: Lists
    costs: Array
    start: Array
    source: Array
    target: Array
    far: float = np.inf


# Sums in whatever order is fastest: most of a search is spent here.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _rough(source: Array, target: Array) -> float:  # pragma: no cover - compiled
    """A step's cost by sketches."""
    total = 0.0
    for k in range(len(source)):
        total += (target[k] - source[k]) ** 2
    return 0.5 * total


@njit(cache=True, nogil=True)
def _step(near: Near, a: int, b: int) -> float:  # pragma: no cover - compiled
    """What b costs right after a."""
    T = len(near.start)
    if b == T:
        return 0.0
    if a == T:
        return float(near.start[b])
    for k in range(near.lists.shape[1]):
        found = near.lists[a, k]
        if found == b:
            return float(near.costs[a, k])
        if found < 0:
            break
    if near.source.shape[1] == 0:
        return near.far
    return _rough(near.source[a], near.target[b])


@njit(cache=True, nogil=True)
def _turning(
    near: Near, path: Indices, turn: Array, begin: int, end: int
) -> None:  # pragma: no cover - compiled
    """turn[k] = Σ_{i ≤ k} of what the step into place i costs more against the path than along it, after a change of the
    steps into begin … end."""
    last = len(path) - 1
    begin, end = max(begin, 2), min(end, last - 1)
    before = turn[end]
    for k in range(begin, end + 1):
        a, b = path[k - 1], path[k]
        turn[k] = turn[k - 1] + _step(near, b, a) - _step(near, a, b)
    shift = turn[end] - before
    for k in range(end + 1, last):
        turn[k] += shift


@njit(cache=True, nogil=True)
def _best_reversal(
    near: Near, path: Indices, place: Indices, turn: Array, a: int
) -> tuple[float, int, int]:  # pragma: no cover - compiled
    """The best reversal that puts a neighbour beside a: after it, or before it."""
    last = len(path) - 1
    best, low, high = 0.0, 0, 0
    p = place[a]
    for k in range(near.lists.shape[1]):
        b = near.lists[a, k]
        if b < 0:
            break
        q = place[b]
        for after in (
            True,
            False,
        ):  # a → b: turn what lies between a and b, b included; or b → a, a included
            i, j = (min(p, q) + 1, max(p, q)) if after else (min(p, q), max(p, q) - 1)
            if i < 1 or j >= last or i >= j:
                continue
            change = _step(near, path[i - 1], path[j]) + _step(near, path[i], path[j + 1])
            change -= _step(near, path[i - 1], path[i]) + _step(near, path[j], path[j + 1])
            change += turn[j] - turn[i]
            if change < best:
                best, low, high = change, i, j
    return best, low, high


@njit(cache=True, nogil=True)
def _best_insertion(
    near: Near, path: Indices, place: Indices, turn: Array, i: int, length: int
) -> tuple[float, int, bool]:  # pragma: no cover - compiled
    """The best gap, beside a neighbour of its ends, for path[i … i + length), and whether it goes there turned round."""
    last = len(path) - 1
    head, tail = path[i], path[i + length - 1]
    before, after = path[i - 1], path[i + length]
    gain = _step(near, before, head) + _step(near, tail, after) - _step(near, before, after)
    turned = turn[i + length - 1] - turn[i]
    best, best_k, flip = 0.0, -1, False
    K = near.lists.shape[1] if length <= SHORT else min(NEAREST, near.lists.shape[1])
    for c in range(4 * K + 2):
        if c >= 4 * K:  # the ends
            k = 0 if c == 4 * K else last - 1
        else:
            b = near.lists[head if c % 2 == 0 else tail, c // 4]
            if b < 0:
                continue
            k = place[b] - (c // 2) % 2
        if k < 0 or k >= last or i - 1 <= k < i + length:
            continue
        left, right = path[k], path[k + 1]
        gap = _step(near, left, right) + gain
        plain = _step(near, left, head) + _step(near, tail, right) - gap
        if plain < best:
            best, best_k, flip = plain, k, False
        flipped = _step(near, left, tail) + _step(near, head, right) + turned - gap
        if length > 1 and flipped < best:
            best, best_k, flip = flipped, k, True
    return best, best_k, flip


@njit(cache=True, nogil=True)
def _changed(
    near: Near, path: Indices, place: Indices, turn: Array, awake: NDArray[np.bool_], low: int, high: int
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Places, sums and sleepers after path[low … high] has changed."""
    last = len(path) - 1
    for k in range(low, high + 1):
        place[path[k]] = k
    for k in (low - 1, low, low + 1, high - 1, high, high + 1):
        if 0 < k < last:
            awake[path[k]] = True
    _turning(near, path, turn, low, high + 1)


@njit(cache=True, nogil=True)
def _sweep(
    near: Near, path: Indices, place: Indices, turn: Array, awake: NDArray[np.bool_],
    tolerance: float, longest: int,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Try every slice that is awake: reversals beside it, and moves of the segments that begin with it."""
    last = len(path) - 1
    found = False
    for a in range(last - 1):
        if not awake[a]:
            continue
        awake[a] = False
        change, low, high = _best_reversal(near, path, place, turn, a)
        if change < -tolerance:
            reverse(path, low, high)
            _changed(near, path, place, turn, awake, low, high)
            found = True
        for length in range(1, longest + 1):
            i = place[a]
            if i + length > last:
                break
            change, k, flip = _best_insertion(near, path, place, turn, i, length)
            if not change < -tolerance:
                continue
            if flip:
                reverse(path, i, i + length - 1)
            if k < i:
                exchange(path, k + 1, i, i + length)
            else:
                exchange(path, i, i + length, k + 1)
            low, high = min(k + 1, i), max(i + length - 1, k)
            for q in (i - 1, i, i + length - 1, i + length):
                if 0 < q < last:
                    awake[path[q]] = True
            _changed(near, path, place, turn, awake, low, high)
            found = True
    return found


@njit(cache=True, nogil=True)
def _improve(near: Near, path: Indices, tolerance: float) -> None:  # pragma: no cover - compiled
    T = len(path) - 2
    place, turn = np.empty(T + 1, np.intp), np.zeros(T + 2)
    for k in range(T + 1):
        place[path[k]] = k
    _turning(near, path, turn, 1, T)
    awake = np.ones(T, np.bool_)
    while True:
        while _sweep(near, path, place, turn, awake, tolerance, SHORT):
            pass
        awake[:] = True
        if not _sweep(near, path, place, turn, awake, tolerance, min(LONG, T // 2)):
            break


@njit(cache=True, nogil=True)
def path_cost(near: Near, order: Indices) -> float:  # pragma: no cover - compiled
    """`start[o_0] + Σ C[o_i, o_{i+1}]`."""
    total = float(near.start[order[0]])
    for k in range(len(order) - 1):
        total += _step(near, order[k], order[k + 1])
    return total


def improve(near: Near, order: Indices) -> Indices:
    """Reversals and moves of segments until none lowers the cost of the path."""
    path = padded_path(np.ascontiguousarray(order, dtype=np.intp))
    _improve(near, path, 1e-9 * abs(path_cost(near, order)) + 1e-300)
    return path[1:-1]


@dataclass(frozen=True, eq=False)
class NearPath:
    """`PathCosts` of so many slices that only near pairs are known."""

    near: Near

    def cost(self, order: Indices) -> float:
        """−log p of an order, up to a constant."""
        return path_cost(self.near, order)

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        return improve(self.near, order)

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """As `PathCosts.sample`, which needs a table of all pairs."""
        near = self.near
        costs = 0.5 * ((near.source**2).sum(axis=1)[:, None] + (near.target**2).sum(axis=1))
        costs -= near.source @ near.target.T
        if near.source.shape[1] == 0:
            costs[:] = near.far
        a, k = np.nonzero(near.lists >= 0)
        costs[a, near.lists[a, k]] = near.costs[a, k]
        return PathCosts(np.maximum(costs, 0.0), near.start).sample(order, state, samples, keep)
