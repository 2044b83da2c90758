"""How far an order, or a matrix, is from the truth.

An order is an int array (T,), or (n, T) with one row per trajectory, such that `X[:, order]` is
chronological. Figures over (n, T) are means over trajectories.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 2**20  # entries handled at once: tens of MB of temporaries, whatever n is


def order_accuracy(true: ArrayLike, estimated: ArrayLike, *, up_to_reversal: bool = False) -> float:
    """Share of positions that hold the right slice, 0 to 1 (the paper's Acc.).

    One slice inserted too early shifts all that follow: read it beside `kendall_tau`.

    Parameters
    ----------
    true, estimated : array (T,) or (n, T)
        Orders.
    up_to_reversal : bool
        The better of the order and its reverse, per trajectory.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.order_accuracy([0, 1, 2, 3], [3, 2, 1, 0])
    0.0
    >>> rt.metrics.order_accuracy([0, 1, 2, 3], [3, 2, 1, 0], up_to_reversal=True)
    1.0
    """
    a, b = _orders(true, estimated)
    share = np.mean(a == b, axis=-1)
    if up_to_reversal:
        share = np.maximum(share, np.mean(a == b[..., ::-1], axis=-1))
    return float(np.mean(share))


def kendall_tau(true: ArrayLike, estimated: ArrayLike, *, up_to_reversal: bool = False) -> float:
    """Kendall's tau = 1 - 4 D / (T (T - 1)), D the pairs of slices in the wrong order.

    Parameters
    ----------
    true, estimated : array (T,) or (n, T)
        Orders.
    up_to_reversal : bool
        `|tau|` per trajectory, for reversing an order changes tau's sign.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.kendall_tau([0, 1, 2, 3], [3, 2, 1, 0])
    -1.0
    """
    tau = _taus(*_orders(true, estimated))
    return float(np.mean(np.abs(tau) if up_to_reversal else tau))


def kendall_taus(order: ArrayLike, draws: ArrayLike) -> NDArray[np.float64]:
    """`kendall_tau` of an order with each of many, such as draws from a posterior, at once.

    Parameters
    ----------
    order : array (T,) or (n, T)
        What all are compared with.
    draws : array (R, T) or (R, n, T)
        As many orders as there are, of the shape of `order`.

    Returns
    -------
    array (R,)
        Of orders of single trajectories the mean over these.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.kendall_taus([0, 1, 2], [[0, 1, 2], [2, 1, 0]]).tolist()
    [1.0, -1.0]
    """
    many = np.asarray(draws).astype(np.intp)
    against = np.broadcast_to(np.asarray(order, dtype=np.intp), many.shape)
    rows = (each.reshape(-1, many.shape[-1]) for each in (against, many))
    return np.asarray(_taus(*rows).reshape(len(many), -1).mean(axis=1))


def neighbour_share(true: ArrayLike, estimated: ArrayLike, *, directed: bool = False) -> float:
    """Share of the T - 1 truly adjacent pairs of slices that are adjacent in the estimate.

    Parameters
    ----------
    true, estimated : array (T,) or (n, T)
        Orders.
    directed : bool
        False: an order and its reverse score the same.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.neighbour_share([0, 1, 2, 3, 4], [3, 4, 0, 1, 2])  # one cut
    0.75
    """
    steps = np.diff(_estimated_positions(*_orders(true, estimated)), axis=-1)
    return float(np.mean((steps if directed else np.abs(steps)) == 1))


def position_calibration(
    true: ArrayLike, probabilities: ArrayLike, *, edges: ArrayLike = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
) -> list[tuple[float, float, int]]:
    """How often placements that were given a probability came true, bin by bin.

    Calibrated probabilities equal the share that was right, up to sampling error.

    Parameters
    ----------
    true : array (T,) or (n, T)
        Orders.
    probabilities : array (…, T, T)
        `[…, a, k]` is the probability that observation a stands at position k.
    edges : array
        Of the bins.

    Returns
    -------
    list of tuple
        For each bin with any placements: the mean probability, the share that was right, and their number.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> rt.metrics.position_calibration([[0, 1]], np.full((1, 2, 2), 0.5))
    [(0.5, 0.5, 4)]
    """
    order = _order(true, "true")
    P = np.asarray(probabilities)
    if P.shape != (*order.shape, order.shape[-1]):
        raise ValueError(
            f"probabilities must have shape {(*order.shape, order.shape[-1])}, got {P.shape}"
        )
    right = np.zeros(P.shape, dtype=np.bool_)
    np.put_along_axis(right, order[..., None, :], True, axis=-2)
    bounds = np.asarray(edges, dtype=np.float64)
    rows = []
    for low, high in pairwise(bounds):
        below = high >= P if high == bounds[-1] else high > P
        inside = (low <= P) & below
        if inside.any():
            rows.append((float(P[inside].mean()), float(right[inside].mean()), int(inside.sum())))
    return rows


def mean_absolute_error(true: ArrayLike, estimated: ArrayLike) -> float:
    """Mean of `|estimated - true|` over the entries of a matrix (the paper's MAE).

    Parameters
    ----------
    true, estimated : array
        Matrices of one shape.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.mean_absolute_error([[1.0, 2.0]], [[1.0, 4.0]])
    1.0
    """
    return float(np.mean(np.abs(_difference(true, estimated))))


def _orders(true: ArrayLike, estimated: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    a, b = _order(true, "true"), _order(estimated, "estimated")
    if a.shape != b.shape:
        raise ValueError(f"orders differ in shape: true {a.shape}, estimated {b.shape}")
    return a, b


def _order(order: ArrayLike, name: str) -> NDArray[np.intp]:
    a = np.asarray(order)
    if a.ndim not in (1, 2) or a.size == 0 or not np.issubdtype(a.dtype, np.integer):
        raise ValueError(
            f"the {name} order must be integers of shape (T,) or (n, T), "
            f"got {a.dtype} of shape {a.shape}"
        )
    T = a.shape[-1]
    seen = np.zeros(a.shape, dtype=np.bool_)
    if a.min() >= 0 and a.max() < T:
        np.put_along_axis(seen, a.astype(np.intp, copy=False), True, axis=-1)
    if not seen.all():
        raise ValueError(f"the {name} order is not a permutation of 0 to {T - 1}")
    return a.astype(np.intp, copy=False)


def counterfactual_rmse(true: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error of predicted outcomes over subjects (the paper's Eq. rmse), in their units.

    Parameters
    ----------
    true, predicted : array (n,)
        Outcomes.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.counterfactual_rmse([1.0, 2.0], [1.0, 4.0])
    1.4142135623730951
    """
    return float(np.sqrt(np.mean(_difference(true, predicted) ** 2)))


def treatment_effect_bias(true: ArrayLike, estimated: ArrayLike) -> float:
    """Mean over subjects of the estimated less the true effect (the paper's Eq. teb), in their units.

    Parameters
    ----------
    true, estimated : array (n,)
        Effects.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.metrics.treatment_effect_bias([1.0, 2.0], [1.5, 2.5])
    0.5
    """
    return float(np.mean(_difference(true, estimated)))


def _difference(true: ArrayLike, estimated: ArrayLike) -> NDArray[np.float64]:
    a, b = np.asarray(true, dtype=np.float64), np.asarray(estimated, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"two arrays of the same shape are needed, got {a.shape} and {b.shape}")
    return b - a


def _taus(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.float64]:
    """Of each pair of rows."""
    positions = np.atleast_2d(_estimated_positions(a, b))
    n, T = positions.shape
    step = max(1, _BLOCK // T)
    wrong = np.concatenate([_inversions(positions[i : i + step]) for i in range(0, n, step)])
    return 1.0 - 4.0 * wrong / (T * (T - 1))


def _estimated_positions(a: NDArray[np.intp], b: NDArray[np.intp]) -> NDArray[np.intp]:
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
