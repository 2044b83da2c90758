"""Orders of single trajectories under a state-space model: the best of each, and draws from their posterior."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from retrace_sde.data.blocks import Array, Mask, Order, State
from retrace_sde.engine.independent import BLOCK
from retrace_sde.engine.noisy import NoisyProblem
from retrace_sde.estimate.kalman.smoother import StateSpace
from retrace_sde.orders.gaussian import Process, process
from retrace_sde.orders.rules import Rules, order_cost, ordered, rules_of
from retrace_sde.orders.single import descend, pulls, sample

STARTS = 4
"""Descents per trajectory and way round where entries are missing."""


def search(problem: NoisyProblem, model: StateSpace, orders: Order) -> tuple[Order, int]:
    """Improve each trajectory's order, tried both ways round; the new orders and how many changed."""
    found = orders.copy()
    laws = _laws(problem, model)

    def work(rows: slice) -> int:
        changed = 0
        for j in range(*rows.indices(len(found))):
            y, seen, rules = _trajectory(problem, j)
            law = laws[len(y)]
            best, cost = found[j, : len(y)].copy(), np.inf
            for begin in (best.copy(), best[::-1].copy()):
                if rules is not None and ordered(rules.before, begin[::-1], 0, len(y)):
                    continue
                state = np.array([j + 1], dtype=np.uint64)
                value = _descend(law, y.copy(), seen, rules, begin, state)
                if value < cost - 1e-9:
                    best, cost = begin, value
            changed += int(not np.array_equal(best, found[j, : len(y)]))
            found[j, : len(y)] = best
        return changed

    return found, sum(problem.data.map_rows(work, size=BLOCK))


def _descend(
    law: Process, y: Array, seen: Mask, rules: Rules | None, o: Order, state: State
) -> float:
    """Local search; the cost, missing entries summed out: `cost(o, mode) + ½ log |M_mm|`.

    Entries filled in for an order make it hard to leave: the search starts again, a few times, from orders and
    entries drawn together.
    """
    if seen.all():
        return float(descend(law, y, rules, o))
    T, d = y.shape
    flat, h = law.precision.transpose(0, 2, 1, 3).reshape(T * d, T * d), law.shift
    w, nothing = np.empty_like(y), np.empty((0, T), dtype=np.int16)
    best, least = o.copy(), np.inf
    for k in range(STARTS):
        if k:
            sample(law, y, seen, rules, o, state, 20 * T, 1, nothing)
        for _ in range(5):
            before = o.copy()
            _fill(flat, h, y, seen, o)
            descend(law, y, rules, o)
            if np.array_equal(o, before):
                break
        half = _fill(flat, h, y, seen, o)
        value = pulls(law.precision, h, y, o, w) + order_cost(rules, o) + half
        if value < least - 1e-9:
            best, least = o.copy(), value
    o[:] = best
    return float(least)


def _fill(flat: Array, h: Array, y: Array, seen: Mask, o: Order) -> float:
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
            y, seen, rules = _trajectory(problem, j)
            law = laws[len(y)]
            for c in range(C):
                path = np.ascontiguousarray(orders[c, j, : len(y)])
                state = states[c, j : j + 1]
                sample(law, y.copy(), seen, rules, path, state, burn, thin, kept[c, j])
                orders[c, j, : len(y)] = path

    list(problem.data.map_rows(work, size=BLOCK))
    return kept


def _laws(problem: NoisyProblem, model: StateSpace) -> dict[int, Process]:
    return {t: process(model, t) for t in np.unique(problem.data.observed).tolist()}


def _trajectory(problem: NoisyProblem, j: int) -> tuple[Array, Mask, Rules | None]:
    """Observations with missing entries at the variable's mean, what was seen, and what is known."""
    T = int(problem.data.observed[j])
    y = problem.values[j, :T]
    seen = ~np.isnan(y)
    prior = problem.prior
    rules = None if prior is None else rules_of(prior.arrays(slice(j, j + 1)), 0, T)
    return np.where(seen, y, problem.means), seen, rules


def agreement(problem: NoisyProblem, kept: NDArray[np.int16], orders: Order) -> float:
    """How often neighbours in the given orders are neighbours in orders drawn (C, n, R, T)."""
    lengths = problem.data.observed
    place = np.argsort(kept, axis=-1)
    where = np.take_along_axis(place, np.broadcast_to(orders[None, :, None], kept.shape), axis=-1)
    near = np.diff(where, axis=-1) == 1
    live = np.arange(1, kept.shape[-1])[None] < lengths[:, None]
    return float((near.mean(axis=(0, 2)) * live).sum() / (lengths - 1).sum())
