"""Orders of single trajectories under a state-space model: the best of each, and draws from their posterior."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from retrace_sde.data.blocks import Array, Order
from retrace_sde.engine.independent import BLOCK
from retrace_sde.engine.noisy import NoisyProblem
from retrace_sde.estimate.kalman.smoother import StateSpace
from retrace_sde.orders.gaussian import process
from retrace_sde.orders.prior import NO_COSTS, NO_RULES
from retrace_sde.orders.search import State
from retrace_sde.orders.single import descend, prior_cost, pulls, sample

Bool = NDArray[np.bool_]

STARTS = 4
"""Descents per trajectory and way round where entries are missing."""


def search(problem: NoisyProblem, model: StateSpace, orders: Order) -> tuple[Order, int]:
    """Improve each trajectory's order, tried both ways round; the new orders and how many changed."""
    found = orders.copy()
    laws = _laws(problem, model)

    def work(rows: slice) -> int:
        changed = 0
        for j in range(*rows.indices(len(found))):
            y, seen, U, B = _trajectory(problem, j)
            M, h = laws[len(y)]
            best, cost = found[j, : len(y)].copy(), np.inf
            for begin in (best.copy(), best[::-1].copy()):
                if B.size and _broken(B, begin):
                    continue
                state = np.array([j + 1], dtype=np.uint64)
                value = _descend(M, h, y.copy(), seen, U, B, begin, state)
                if value < cost - 1e-9:
                    best, cost = begin, value
            changed += int(not np.array_equal(best, found[j, : len(y)]))
            found[j, : len(y)] = best
        return changed

    return found, sum(problem.data.map_rows(work, size=BLOCK))


def _descend(
    M: Array,
    h: Array,
    y: Array,
    seen: Bool,
    U: Array,
    B: Bool,
    o: Order,
    state: State,
) -> float:
    """Local search; the cost, missing entries summed out: `cost(o, mode) + ½ log |M_mm|`.

    Entries filled in for an order make it hard to leave: the search starts again, a few times, from orders and
    entries drawn together.
    """
    if seen.all():
        return float(descend(M, h, y, U, B, o))
    T, d = y.shape
    flat = M.transpose(0, 2, 1, 3).reshape(T * d, T * d)
    w, nothing = np.empty_like(y), np.empty((0, T), dtype=np.int16)
    best, least = o.copy(), np.inf
    for k in range(STARTS):
        if k:
            sample(M, h, y, seen, U, B, o, state, 20 * T, 1, nothing)
        for _ in range(5):
            before = o.copy()
            _fill(flat, h, y, seen, o)
            descend(M, h, y, U, B, o)
            if np.array_equal(o, before):
                break
        half = _fill(flat, h, y, seen, o)
        value = pulls(M, h, y, o, w) + prior_cost(U, o) + half
        if value < least - 1e-9:
            best, least = o.copy(), value
    o[:] = best
    return float(least)


def _fill(flat: Array, h: Array, y: Array, seen: Bool, o: Order) -> float:
    """Put missing entries at their joint mean given the order and what was seen; `½ log |M_mm|`."""
    gone = ~seen[o].ravel()
    along = y[o].ravel()
    factor = cho_factor(flat[np.ix_(gone, gone)], lower=True)
    pull = h.ravel()[gone] - flat[np.ix_(gone, ~gone)] @ along[~gone]
    along[gone] = cho_solve(factor, pull)
    y[o] = along.reshape(y.shape)
    return float(np.log(np.diag(factor[0])).sum())


def draw(
    problem: NoisyProblem,
    model: StateSpace,
    orders: Order,
    states: State,
    *,
    burn: int,
    samples: int,
    thin: int,
) -> NDArray[np.int16]:
    """Advance chains (C, n, T) in place under a model; the orders they went through, (C, n, samples, T)."""
    C, n, T = orders.shape
    kept = np.tile(np.arange(T, dtype=np.int16), (C, n, samples, 1))
    laws = _laws(problem, model)

    def work(rows: slice) -> None:
        for j in range(*rows.indices(n)):
            y, seen, U, B = _trajectory(problem, j)
            M, h = laws[len(y)]
            for c in range(C):
                path = np.ascontiguousarray(orders[c, j, : len(y)])
                state = states[c, j : j + 1]
                sample(M, h, y.copy(), seen, U, B, path, state, burn, thin, kept[c, j])
                orders[c, j, : len(y)] = path

    list(problem.data.map_rows(work, size=BLOCK))
    return kept


def _laws(problem: NoisyProblem, model: StateSpace) -> dict[int, tuple[Array, Array]]:
    laws = {}
    for length in np.unique(problem.data.observed):
        found = process(model, int(length))
        laws[int(length)] = (found.precision, found.shift)
    return laws


def _trajectory(problem: NoisyProblem, j: int) -> tuple[Array, Bool, Array, Bool]:
    """Observations with missing entries at the variable's mean, what was seen, and the prior."""
    T = int(problem.data.observed[j])
    y = problem.values[j, :T]
    seen = ~np.isnan(y)
    prior = problem.prior
    U, B = (NO_COSTS, NO_RULES) if prior is None else prior.arrays(slice(j, j + 1))
    U = np.ascontiguousarray(U[0, :T, :T]) if len(U) else U.reshape(0, 0)
    B = np.ascontiguousarray(B[0, :T, :T]) if len(B) else B.reshape(0, 0)
    return np.where(seen, y, problem.means), seen, U, B


def _broken(B: Bool, order: Order) -> bool:
    along = B[np.ix_(order, order)]
    return bool(np.tril(along).any())


def agreement(problem: NoisyProblem, kept: NDArray[np.int16], orders: Order) -> float:
    """How often neighbours in the given orders are neighbours in orders drawn (C, n, R, T)."""
    lengths = problem.data.observed
    place = np.argsort(kept, axis=-1)
    where = np.take_along_axis(place, np.broadcast_to(orders[None, :, None], kept.shape), axis=-1)
    near = np.diff(where, axis=-1) == 1
    live = np.arange(1, kept.shape[-1])[None] < lengths[:, None]
    return float((near.mean(axis=(0, 2)) * live).sum() / (lengths - 1).sum())
