"""Closed loops: a path with no end, whose last slice is as near to its first as neighbours are to each other.

A cyclic order has no first slice. Nor has it a direction that a linear drift could tell: with the closing
step the slices that are left and those that are entered are the same, and so are their moments.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.costs import distances, spread
from retrace_sde.orders.search import improve_path
from retrace_sde.panel.blocks import Data, evenly, in_order, pick, to_numpy
from retrace_sde.panel.order import Order
from retrace_sde.process.tails import t_sf

MIN_LOOP_SLICES = 6
"""Slices of the shortest loop that is called one: with fewer everything is near everything."""

LOOP_TRAJECTORIES = 500
"""Trajectories, evenly spaced, that tell a loop."""

FAR_VALUES, FAR_FACTOR = 2000, 2.0
"""Values of a slice (trajectories times variables) that are enough to see that a path does not close, and the factor by which its closing step must
then exceed the largest of a loop: sums of so many squares are within a tenth."""

REMOTE_SLICES = 250
"""Slices, evenly spaced, that tell how far remote ones are apart."""

MAX_CLOSING_TO_LONGEST, MAX_CLOSING_TO_REMOTE = 1.5, 0.5
"""Largest squared closing step, relative to the longest other and to the typical one between remote slices: with these
every loop of `studies/guards.py` closes (seeds 100:106 and 300:306, 180 fits), and of its open panels none does (180)."""

CLOSED_LEVEL = 0.001
"""Significance level at which the closing step is shorter than those between remote slices."""


def closes(data: Data, order: Indices) -> bool:
    """The closing step is not much longer than the longest other, and like steps on average far shorter than between remote slices.

    (Not much longer: a short path leaves out the longest step of a loop.) The second by a factor `MAX_CLOSING_TO_REMOTE`, and by a
    t-test over trajectories: where slices hardly depend on one another (steps longer than the memory of the
    process) all are equally near, and that is no loop. Of slices with offsets of one standard deviation the first and the last are near by chance, in
    all trajectories at once: of 300 such panels at rest (`studies/dependence.py`; T = 8, 16) 29 and 15 seemed to close before steps had to be short,
    too, and none since. `order` is shared (T,), or each trajectory's own (n, T),
    those of full length.
    """
    T = data.shape[1]
    if T < MIN_LOOP_SLICES or _far_from_closing(data, order):
        return False
    x = _in_time(data, order, LOOP_TRAJECTORIES)
    if len(x) < 3:
        return False
    scale = spread(Data(x))
    ends, moved = _steps(x, scale)
    if ends.sum() > MAX_CLOSING_TO_LONGEST * moved.max():
        return False
    some = evenly(T, REMOTE_SLICES)
    D = distances(Data(x[:, some]), scale=scale)
    lag = np.abs(some[:, None] - some[None])
    remote = np.minimum(lag, T - lag) >= max(2, T // 4)
    if max(ends.sum(), moved.mean()) > MAX_CLOSING_TO_REMOTE * np.median(D[remote]):
        return False
    x = x / scale
    across = ((x - np.roll(x, T // 2, axis=1)) ** 2).sum(axis=2).mean(axis=1)
    larger = across - ends
    error = max(float(larger.std(ddof=1)) / len(larger) ** 0.5, 1e-300)
    return bool(t_sf(larger.mean() / error, len(larger) - 1) < CLOSED_LEVEL)


def _far_from_closing(data: Data, order: Indices) -> bool:
    """A few of many trajectories tell that the path does not close."""
    few = max(3, FAR_VALUES // data.shape[2])
    if 2 * few > min(LOOP_TRAJECTORIES, data.shape[0]):
        return False
    x = _in_time(data, order, few)
    if len(x) < few:  # few are of full length
        return False
    ends, moved = _steps(x, spread(Data(x)))
    return bool(ends.sum() > FAR_FACTOR * MAX_CLOSING_TO_LONGEST * moved.max())


def _steps(x: Array, scale: Array) -> tuple[Array, Array]:
    """The squared closing step of each trajectory, and the others (T − 1,), summed over them."""
    ends = (((x[:, -1] - x[:, 0]) / scale) ** 2).sum(axis=1)
    moved = np.diff(x, axis=1)
    squares = np.einsum("jtk,jtk->tk", moved, moved)
    return ends, np.asarray((squares / scale**2).sum(axis=1))


def _in_time(data: Data, order: Indices, size: int) -> Array:
    """Some trajectories of full length (m, T, d), along an order."""
    whole = np.flatnonzero(data.observed == data.shape[1])
    rows = whole[evenly(len(whole), size)] if len(whole) else whole
    x = to_numpy(pick(data.values, rows, 0)) if len(rows) else np.empty((0, *data.shape[1:]))
    return to_numpy(in_order(x, Order.of(order).take(rows).index))


def cyclic_order(squared_distances: Array, order: Indices) -> Indices:
    """The shortest closed tour near an order, cut at its longest step."""
    T = len(order)
    # The node that pads a path at both ends is here a slice itself, which closes the tour.
    nodes = np.concatenate([order[1:], order[:1]])
    costs = squared_distances[np.ix_(nodes, nodes)]
    path = np.concatenate([[T - 1], np.arange(T - 1), [T - 1]]).astype(np.intp)
    improve_path(costs, None, path, 1e-9 * float(costs.max()), True)
    tour = nodes[path[:-1]]
    steps = squared_distances[tour, np.roll(tour, -1)]
    return np.roll(tour, -1 - int(np.argmax(steps)))
