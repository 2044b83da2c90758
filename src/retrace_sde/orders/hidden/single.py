"""Compiled search and sampling of single trajectories' orders under the likelihood of noisy observations.

    cost(o) = ½ Σ_ik y_{o_i}ᵀ M_ik y_{o_k} − Σ_i y_{o_i}ᵀ h_i,      w_i = Σ_k M_ik y_{o_k} − h_i.

With w at hand an exchange of two positions costs O(d²); insertions and reversals are chains of exchanges
(`exchanges`), each corrected by the gaps δ that those before it left. Missing entries of y are drawn from their distribution given
the order and all the rest (Gibbs), one at a time, so that nothing filled in outlives the order it was filled in for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.hidden.exchanges import (
    best_insertion,
    best_reversal,
    best_swap,
    chain_change,
    forget,
    transpose,
)
from retrace_sde.orders.hidden.gaussian import Process
from retrace_sde.orders.moves import descent, judges, metropolis
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Kept, Schedule
from retrace_sde.orders.moves.moves import Move, position_of, random_normal
from retrace_sde.orders.moves.proposals import Nearby
from retrace_sde.orders.moves.rules import Rules, order_cost

FLIPS, REVERSALS, SWAPS, FAR, NEAR = 0.02, 0.28, 0.25, 0.15, 4
"""Shares of proposals, and the reach of those that stay near (`proposals.Nearby`)."""

MAX_ENUMERATED = 6
"""Up to this many observations the best order is found exactly: 720 orders cost less than a search from several starts."""

SMALLEST_GAIN = 1e-9
"""Decreases of the cost below this are rounding."""

SEARCH_STAGES = 3
"""Of a search: insertions, swaps and reversals."""


class PullJudge(NamedTuple):
    """M, h and y of one trajectory, what of it was seen and whether that is all, w, and `now` with its gaps δ."""

    precision: Array
    shift: Array
    values: Array
    seen: Mask
    whole: bool
    pulls: Array
    gaps: Array
    now: Indices


@njit(cache=True, nogil=True)
def pulls(M: Array, h: Array, y: Array, o: Indices, w: Array) -> float:
    """Fill w of an order, and return its cost."""
    T, d = h.shape
    cost = 0.0
    for i in range(T):
        for x in range(d):
            total = 0.0
            for k in range(T):
                for z in range(d):
                    total += M[i, k, x, z] * y[o[k], z]
            w[i, x] = total - h[i, x]
            cost += y[o[i], x] * (0.5 * total - h[i, x])
    return cost


@njit(cache=True, nogil=True)
def _judge(law: Process, y: Array, seen: Mask, o: Indices) -> PullJudge:
    """A judge that is ready for the order o."""
    w, gaps = np.empty(y.shape), np.zeros(y.shape)
    pulls(law.precision, law.shift, y, o, w)
    return PullJudge(law.precision, law.shift, y, seen, bool(seen.all()), w, gaps, o.copy())


@implements(transpose, PullJudge)
def _transpose(judge: PullJudge, order: Indices, low: int, high: int, p: int, q: int) -> float:
    M, y, w, gap, now = judge.precision, judge.values, judge.pulls, judge.gaps, judge.now
    d = y.shape[1]
    a, b = now[p], now[q]
    change = 0.0
    for x in range(d):
        e = y[b, x] - y[a, x]
        pull = w[p, x] - w[q, x]
        for z in range(d):
            f = y[b, z] - y[a, z]
            pull += 0.5 * (M[p, p, x, z] + M[q, q, x, z] - M[p, q, x, z] - M[q, p, x, z]) * f
            for k in range(low, high):
                pull += (M[p, k, x, z] - M[q, k, x, z]) * gap[k, z]
        change += e * pull
    for x in range(d):
        e = y[b, x] - y[a, x]
        gap[p, x] += e
        gap[q, x] -= e
    now[p], now[q] = b, a
    return change


@implements(forget, PullJudge)
def _forget(judge: PullJudge, order: Indices, low: int, high: int) -> None:
    for k in range(low, high):
        judge.now[k] = order[k]
        judge.gaps[k] = 0.0


implements(judges.change, PullJudge)(chain_change.py_func)


@implements(judges.leave, PullJudge)
def _leave(judge: PullJudge, order: Indices, move: Move) -> None:
    forget(judge, order, move.i, move.q)


@implements(judges.take, PullJudge)
def _take(judge: PullJudge, order: Indices, move: Move) -> None:
    """Bring w up to date and forget the gaps; now and then, where the whole order moved, from scratch."""
    M, w, gap, (T, d) = judge.precision, judge.pulls, judge.gaps, judge.shift.shape
    whole = move.j - move.i == T
    for i in range(0 if whole else T):
        for x in range(d):
            total = 0.0
            for k in range(move.i, move.q):
                for z in range(d):
                    total += M[i, k, x, z] * gap[k, z]
            w[i, x] += total
    for k in range(move.i, move.q):
        order[k] = judge.now[k]
        gap[k] = 0.0
    if whole:
        pulls(M, judge.shift, judge.values, order, w)


@implements(judges.between, PullJudge)
def _between(judge: PullJudge, order: Indices, count: int, state: State) -> bool:
    """Every T moves each missing entry is drawn given the rest."""
    if not judge.whole and count % len(order) == 0:
        fill(judge.precision, judge.values, judge.seen, order, judge.pulls, state)
    return False


@implements(descent.last_resort, PullJudge)
def _last_resort(judge: PullJudge) -> int:
    return SEARCH_STAGES


@implements(descent.centres, PullJudge)
def _centres(judge: PullJudge, rules: Any, order: Indices, stage: int) -> int:
    """Observations, positions, and the middles of segments."""
    T = len(order)
    return T if stage == 0 else T - 2 if stage == 1 else 2 * T - 3


@implements(descent.best, PullJudge)
def _best(judge: PullJudge, rules: Any, order: Indices, stage: int, at: int) -> tuple[float, Move]:
    if stage == 0:
        return best_insertion(judge, rules, order, position_of(order, at))
    if stage == 1:
        return best_swap(judge, rules, order, at)
    return best_reversal(judge, rules, order, at + 1)


@njit(cache=True, nogil=True)
def descend(law: Process, y: Array, rules: Rules | None, o: Indices) -> float:
    """Insertions, swaps and reversals while any of them helps; the final cost, prior included."""
    judge = _judge(law, y, np.ones(y.shape, np.bool_), o)
    descent.descend(
        judge, rules, o, SMALLEST_GAIN, np.int64(SEARCH_STAGES)
    )  # not a literal, for which the search would be compiled again
    return pulls(law.precision, law.shift, y, o, judge.pulls) + order_cost(rules, o)


@njit(cache=True, nogil=True)
def summed_cost(law: Process, y: Array, seen: Mask, o: Indices) -> float:
    """The cost of an order with missing entries summed out, those of y being 0: with w as for y alone,
    `cost − ½ w_mᵀ M_mm⁻¹ w_m + ½ log |M_mm|`.
    """
    T, d = y.shape
    w = np.empty((T, d))
    cost = pulls(law.precision, law.shift, y, o, w)
    place = np.empty((T * d, 2), np.intp)
    m = 0
    for i in range(T):
        for x in range(d):
            if not seen[o[i], x]:
                place[m, 0], place[m, 1] = i, x
                m += 1
    if m == 0:
        return cost
    M, pull = np.empty((m, m)), np.empty(m)
    for k in range(m):
        pull[k] = w[place[k, 0], place[k, 1]]
        for q in range(m):
            M[k, q] = law.precision[place[k, 0], place[q, 0], place[k, 1], place[q, 1]]
    lower = np.linalg.cholesky(M)
    white = np.linalg.solve(lower, pull)
    return cost - 0.5 * (white**2).sum() + np.log(np.diag(lower)).sum()


@njit(cache=True, nogil=True)
def exact(law: Process, y: Array, seen: Mask, rules: Rules | None, o: Indices) -> float:
    """Put the best of all T! orders into o, and return its cost; missing entries of y are 0 (Heap's algorithm)."""
    T = len(o)
    trial, turns = np.arange(T), np.zeros(T, np.intp)
    best, least, i = o.copy(), np.inf, 0
    fresh = True
    while i < T:
        if fresh:
            cost = order_cost(rules, trial)
            if cost < np.inf:
                cost += summed_cost(law, y, seen, trial)
            if cost < least:
                put(trial, best)
                least = cost
            fresh = False
        if turns[i] < i:
            k = 0 if i % 2 == 0 else turns[i]
            trial[k], trial[i] = trial[i], trial[k]
            turns[i] += 1
            i, fresh = 0, True
        else:
            turns[i] = 0
            i += 1
    put(best, o)
    return least


@njit(cache=True, nogil=True)
def fill(M: Array, y: Array, seen: Mask, o: Indices, w: Array, state: State) -> None:
    """Draw each missing entry given the rest."""
    T, d = y.shape
    for i in range(T):
        a = o[i]
        for x in range(d):
            if seen[a, x]:
                continue
            weight = M[i, i, x, x]
            step = -w[i, x] / weight + random_normal(state) / np.sqrt(weight)
            y[a, x] += step
            for k in range(T):
                for z in range(d):
                    w[k, z] += M[k, i, z, x] * step


@njit(cache=True, nogil=True)
def sample(
    law: Process, y: Array, seen: Mask, rules: Rules | None, o: Indices, state: State,
    burn: int, thin: int, kept: NDArray[np.int16],
) -> None:  # fmt: skip
    """Metropolis over the order o of one trajectory, in place; `kept` (samples, ≥ T) records orders."""
    judge = _judge(law, y, seen, o)
    nearby = Nearby(FLIPS, REVERSALS, SWAPS, FAR, NEAR, rules is not None)
    metropolis.sample(judge, rules, o, nearby, state, Schedule(burn, len(kept), thin), Kept(kept))
