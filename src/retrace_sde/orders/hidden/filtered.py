"""Compiled sampling of one trajectory's order by the filter: missing entries, and states, summed out at every move.

Entries that are filled in hold an order in place: with R = 0 an observation hardly leaves neighbours that its missing
entries were drawn for. The filter needs none. It starts again where an order was changed, and ends where it meets the old
one: without noise at the next observation that was seen whole. Gaps may be drawn along with the order: a segment that
moves takes its gaps along, and single gaps move to others in the table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import Table, predict, put, put_rows, update
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves import descent, judges, metropolis
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.moves import FIRST, Move, exchange, make, random_unit, reverse
from retrace_sde.orders.moves.proposals import Nearby
from retrace_sde.orders.moves.rules import Rules, order_cost

FLIPS, REVERSALS, SWAPS, FAR, NEAR = 0.03, 0.27, 0.25, 0.25, 3
"""Shares of proposals, and the reach of those that stay near (`proposals.Nearby`)."""

GAP_MOVES, GAP_REACH = 0.4, 4
"""Where gaps are drawn, the share of proposals that change one, and how far in the table."""

SAME_FILTER = 1e-7
"""Two filters have met where means differ by less than this in standard deviations, and variances in their own size."""

SMALLEST_GAIN = 1e-9
"""Increases of the log-likelihood below this are rounding."""


class Observed(NamedTuple):
    """One trajectory's observations: values (T, d), what was seen of them, and v (T, m)."""

    values: Array
    seen: Mask
    inputs: Array


class Kept(NamedTuple):
    """Orders (samples, ≥ T) that a chain recorded, and, where gaps are drawn, which each step crossed.

    `steps`: which it crosses now.
    """

    orders: NDArray[np.int16]
    gaps: NDArray[np.int16]
    steps: Indices


class Track(NamedTuple):
    """Filtered means (T, d) and covariances (T, d, d) along an order, and the log-likelihood up to each position."""

    means: Array
    spreads: Array
    values: Array


@njit(cache=True, nogil=True)
def track(T: int, d: int) -> Track:
    """Room for one track."""
    return Track(np.zeros((T, d)), np.zeros((T, d, d)), np.zeros(T))


@njit(cache=True, nogil=True)
def _met(one: Track, two: Track, t: int) -> bool:
    d = one.means.shape[1]
    for i in range(d):
        v = one.spreads[t, i, i]
        if abs(v - two.spreads[t, i, i]) > SAME_FILTER * v:
            return False
        if (one.means[t, i] - two.means[t, i]) ** 2 > SAME_FILTER**2 * v:
            return False
    for i in range(d):
        for j in range(i):
            scale = np.sqrt(one.spreads[t, i, i] * one.spreads[t, j, j])
            if abs(one.spreads[t, i, j] - two.spreads[t, i, j]) > SAME_FILTER * scale:
                return False
    return True


@njit(cache=True, nogil=True)
def follow(
    table: Table,
    seen: Observed,
    index: Indices,
    o: Indices,
    begin: int,
    end: int,
    old: Track,
    new: Track,
) -> tuple[float, int]:
    """Filter along o from position `begin`, before which it is as `old`, into `new`; changes end before `end`.

    The log-likelihood, and where the two met.
    """
    T = len(o)
    value = old.values[begin - 1] if begin > 0 else 0.0
    for t in range(begin, T):
        a = o[t]
        if t == 0:
            put(table.mean, new.means[0])
            put_rows(table.spread, new.spreads[0])
        else:
            before = old if t == begin else new
            predict(
                table, index[t - 1], seen.inputs[o[t - 1]], before.means[t - 1],
                before.spreads[t - 1], new.means[t], new.spreads[t],
            )  # fmt: skip
        value += update(seen.values[a], seen.seen[a], table.noise, new.means[t], new.spreads[t])
        new.values[t] = value
        if t >= end and t < T - 1 and _met(new, old, t):
            return value + old.values[T - 1] - old.values[t], t
    return value, T - 1


@njit(cache=True, nogil=True)
def _keep(old: Track, new: Track, begin: int, met: int) -> None:
    """`new` becomes the track: what it holds up to where they met, and the difference beyond."""
    T = len(old.values)
    change = new.values[met] - old.values[met]
    for t in range(begin, met + 1):
        put(new.means[t], old.means[t])
        put_rows(new.spreads[t], old.spreads[t])
        old.values[t] = new.values[t]
    for t in range(met + 1, T):
        old.values[t] += change


@njit(cache=True, nogil=True)
def _turn_around(x: Indices, fixed: Mask, p: int, q: int) -> None:
    """Reverse x[p … q], but for what has one position only."""
    while p < q:
        if fixed[x[p]]:
            p += 1
        elif fixed[x[q]]:
            q -= 1
        else:
            x[p], x[q] = x[q], x[p]
            p, q = p + 1, q - 1


@njit(cache=True, nogil=True)
def standing(rules: Rules, T: int) -> Mask:
    """What can stand at one position only."""
    fixed = np.zeros(T, np.bool_)
    if len(rules.costs) > 0:
        for a in range(T):
            places = 0
            for i in range(T):
                places += rules.costs[a, i] < np.inf
            fixed[a] = places == 1
    return fixed


class FilterJudge(NamedTuple):
    """A trajectory and its model: which gap of the table each step crosses, the log-prior of gaps where they are drawn (else empty),
    what has one position only, the tracks of the order and of a `trial` with its gaps `other`, the values of both (less
    what is known against them), and where the tracks met."""

    table: Table
    seen: Observed
    steps: Indices
    weights: Array
    fixed: Mask
    old: Track
    new: Track
    trial: Indices
    other: Indices
    values: Array
    met: Indices


@njit(cache=True, nogil=True)
def _judge(
    table: Table, seen: Observed, index: Indices, weights: Array, rules: Rules, fixed: Mask, o: Indices
) -> FilterJudge:  # fmt: skip
    """A judge that is ready for the order o."""
    T, d = seen.values.shape
    old, values = track(T, d), np.zeros(2)
    values[0] = follow(table, seen, index, o, 0, T, old, old)[0] - order_cost(rules, o)
    room = o.copy(), index.copy(), values, np.zeros(1, np.intp)
    return FilterJudge(table, seen, index, weights, fixed, old, track(T, d), *room)


@njit(cache=True, nogil=True)
def _carry(index: Indices, move: Move) -> None:
    """Gaps go with what moves: those within a reversed segment, and the one beside an observation that is inserted."""
    i, j, k, q, backwards = move
    if backwards == FIRST:
        reverse(index, i, j - 1)
    elif j == k:
        make(index, exchange(i, j if j - i == 1 else j - 1, q - 1))


@implements(judges.change, FilterJudge)
def _change(judge: FilterJudge, rules: Any, order: Indices, move: Move) -> float:
    """By the filter along the trial. Where some observations have one position only, reversals go around them."""
    trial, anchored = judge.trial, judge.fixed.any()
    if move.reversed == FIRST:
        _turn_around(trial, judge.fixed, move.i, move.q - 1)
    else:
        make(trial, move)
    if len(judge.weights) > 0 and not (anchored and move.reversed == FIRST):
        _carry(judge.other, move)
    known = order_cost(rules, trial)
    if not known < np.inf:
        return np.inf
    value, met = follow(
        judge.table, judge.seen, judge.other, trial, move.i, move.q, judge.old, judge.new
    )
    judge.values[1], judge.met[0] = value - known, met
    return judge.values[0] - judge.values[1]


@implements(judges.take, FilterJudge)
def _take(judge: FilterJudge, order: Indices, move: Move) -> None:
    judge.values[0] = judge.values[1]
    _keep(judge.old, judge.new, move.i, judge.met[0])
    for t in range(move.i, move.q):
        order[t] = judge.trial[t]
    for t in range(move.i, move.q - 1):
        judge.steps[t] = judge.other[t]


@implements(judges.leave, FilterJudge)
def _leave(judge: FilterJudge, order: Indices, move: Move) -> None:
    for t in range(move.i, move.q):
        judge.trial[t] = order[t]
    for t in range(move.i, move.q - 1):
        judge.other[t] = judge.steps[t]


@implements(judges.between, FilterJudge)
def _between(judge: FilterJudge, order: Indices, count: int, state: State) -> bool:
    """Where gaps are drawn, some moves change one of them instead of the order."""
    index, other, weights, T = judge.steps, judge.other, judge.weights, len(order)
    if len(weights) == 0 or random_unit(state) >= GAP_MOVES:
        return False
    i = int(random_unit(state) * (T - 1))
    k = index[i] + int(random_unit(state) * (2 * GAP_REACH + 1)) - GAP_REACH
    if 0 <= k < len(weights) and k != index[i]:
        other[i] = k
        value, met = follow(
            judge.table, judge.seen, other, order, i + 1, i + 1, judge.old, judge.new
        )
        gain = value - judge.old.values[T - 1]
        if np.log(1.0 - random_unit(state)) < gain + weights[k] - weights[index[i]]:
            judge.values[0] += gain
            _keep(judge.old, judge.new, i + 1, met)
            index[i] = k
        else:
            other[i] = index[i]
    return True


@implements(metropolis.record, Kept)
def _record(records: Kept, order: Indices, r: int, samples: int) -> None:
    put(order, records.orders[r])
    if len(records.gaps) > 0:
        put(records.steps, records.gaps[r])


@njit(cache=True, nogil=True)
def sample(
    table: Table, seen: Observed, weights: Array, rules: Rules, o: Indices, state: State,
    burn: int, thin: int, kept: Kept,
) -> None:  # fmt: skip
    """Metropolis over the order o of one trajectory, in place.

    `weights` (K,), where gaps are drawn, is the log-prior of each in the table; `kept.steps` then move
    too. Empty: gaps belong to positions.
    """
    fixed = standing(rules, len(o))
    judge = _judge(table, seen, kept.steps, weights, rules, fixed, o)
    nearby = Nearby(FLIPS, REVERSALS, SWAPS, FAR, NEAR, bool(fixed.any()))
    schedule = Schedule(burn, len(kept.orders), thin)
    metropolis.sample(judge, rules, o, nearby, state, schedule, kept)


@njit(cache=True, nogil=True)
def descend(table: Table, seen: Observed, index: Indices, rules: Rules, o: Indices) -> float:
    """Insertions, swaps and reversals while any of them helps, missing entries summed out; the final log-likelihood."""
    free = np.zeros(len(o), np.bool_)
    judge = _judge(table, seen, index, np.empty(0), rules, free, o)
    descent.descend(
        judge, rules, o, SMALLEST_GAIN, np.int64(1)
    )  # not a literal, for which the search would be compiled again
    return judge.values[0]
