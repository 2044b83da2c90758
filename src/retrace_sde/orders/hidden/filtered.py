"""Compiled sampling of one trajectory's order by the filter: missing entries, and states, summed out at every move.

Entries that are filled in hold an order in place: with R = 0 an observation hardly leaves neighbours that its missing
entries were drawn for. The filter needs none. It starts again where an order was changed, and ends where it meets the old
one: without noise at the next observation that was seen whole. Gaps may be drawn along with the order: a segment that
moves takes its gaps along, and single gaps move to others in the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.fit.statespace.irregular.kernels import Table, predict, put, put_rows, update
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.orders.rules import Rules, order_cost
from retrace_sde.orders.search import random_unit

FLIPS, TURNS, SWAPS, FAR, NEAR = 0.03, 0.27, 0.25, 0.25, 3
"""Shares of proposals: the whole order turned around, a segment of it, two that change places; steps of any length,
and how far others go."""

GAPS, REACH = 0.4, 4
"""Where gaps are drawn, the share of proposals that change one, and how far in the table."""

MEET = 1e-7
"""Two filters have met where means differ by less than this in standard deviations, and variances in their own size."""


class Observed(NamedTuple):
    """One trajectory's observations: values (T, d), what was seen of them, and v (T, m)."""

    values: Array
    seen: Mask
    inputs: Array


class Kept(NamedTuple):
    """Orders (samples, ≥ T) that a chain recorded, and, where gaps are drawn, which each step crossed."""

    orders: NDArray[np.int16]
    gaps: NDArray[np.int16]


class Track(NamedTuple):
    """Filtered means (T, d) and covariances (T, d, d) along an order, and the log-likelihood up to each position."""

    means: Array
    spreads: Array
    values: Array


@njit(cache=True, nogil=True)
def track(T: int, d: int) -> Track:  # pragma: no cover - compiled
    """Room for one track."""
    return Track(np.zeros((T, d)), np.zeros((T, d, d)), np.zeros(T))


@njit(cache=True, nogil=True)
def _met(one: Track, two: Track, t: int) -> bool:  # pragma: no cover - compiled
    d = one.means.shape[1]
    for i in range(d):
        v = one.spreads[t, i, i]
        if abs(v - two.spreads[t, i, i]) > MEET * v:
            return False
        if (one.means[t, i] - two.means[t, i]) ** 2 > MEET**2 * v:
            return False
    for i in range(d):
        for j in range(i):
            scale = np.sqrt(one.spreads[t, i, i] * one.spreads[t, j, j])
            if abs(one.spreads[t, i, j] - two.spreads[t, i, j]) > MEET * scale:
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
) -> tuple[float, int]:  # pragma: no cover - compiled
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
def _keep(old: Track, new: Track, begin: int, met: int) -> None:  # pragma: no cover - compiled
    """`new` becomes the track: what it holds up to where they met, and the difference beyond."""
    T = len(old.values)
    change = new.values[met] - old.values[met]
    for t in range(begin, met + 1):
        old.means[t] = new.means[t]
        old.spreads[t] = new.spreads[t]
        old.values[t] = new.values[t]
    for t in range(met + 1, T):
        old.values[t] += change


@njit(cache=True, nogil=True)
def _turn(x: Indices, p: int, q: int) -> None:  # pragma: no cover - compiled
    """Reverse x[p … q]."""
    while p < q:
        x[p], x[q] = x[q], x[p]
        p, q = p + 1, q - 1


@njit(cache=True, nogil=True)
def _rotate(x: Indices, p: int, q: int) -> None:  # pragma: no cover - compiled
    """What stands at p moves to q, and what is between makes room."""
    a, step = x[p], 1 if q > p else -1
    while p != q:
        x[p] = x[p + step]
        p += step
    x[q] = a


@njit(cache=True, nogil=True)
def _turn_around(x: Indices, fixed: Mask, p: int, q: int) -> None:  # pragma: no cover - compiled
    """Reverse x[p … q], but for what stands fast."""
    while p < q:
        if fixed[x[p]]:
            p += 1
        elif fixed[x[q]]:
            q -= 1
        else:
            x[p], x[q] = x[q], x[p]
            p, q = p + 1, q - 1


@njit(cache=True, nogil=True)
def standing(rules: Rules | None, T: int) -> Mask:  # pragma: no cover - compiled
    """What can stand at one position only."""
    fixed = np.zeros(T, np.bool_)
    if rules is not None and len(rules.costs) > 0:
        for a in range(T):
            places = 0
            for i in range(T):
                places += rules.costs[a, i] < np.inf
            fixed[a] = places == 1
    return fixed


@njit(cache=True, nogil=True)
def _propose(
    o: Indices, index: Indices, carry: bool, fixed: Mask, state: State
) -> tuple[int, int]:  # pragma: no cover - compiled
    """Change an order, and with `carry` its gaps, in place: the first and last position that differ, −1: none.

    Where some observations stand fast, swaps go far and turns go around them: little else crosses them.
    """
    anchored = fixed.any()
    T, kind = len(o), random_unit(state)
    if kind < FLIPS:
        _turn_around(o, fixed, 0, T - 1)
        if carry and not anchored:
            _turn(index, 0, T - 2)
        return 0, T - 1
    swap = FLIPS + TURNS <= kind < FLIPS + TURNS + SWAPS
    far = random_unit(state) < FAR or (swap and anchored)
    reach = T - 1 if far else min(NEAR, T - 1)
    p = int(random_unit(state) * T)
    length = 1 + int(random_unit(state) * reach)
    q = p + length if random_unit(state) < 0.5 else p - length
    if q < 0 or q >= T:
        return 0, -1
    low, high = min(p, q), max(p, q)
    if kind < FLIPS + TURNS:
        _turn_around(o, fixed, low, high)
        if carry and not anchored:
            _turn(index, low, high - 1)
    elif swap:
        o[low], o[high] = o[high], o[low]
    else:
        _rotate(o, p, q)
        if carry and high - low > 1:
            _rotate(index, p if q > p else p - 1, q - 1 if q > p else q)
    return low, high


@njit(cache=True, nogil=True)
def sample(
    table: Table, seen: Observed, index: Indices, weights: Array, rules: Rules | None, o: Indices,
    state: State, burn: int, thin: int, kept: Kept,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Metropolis over the order o of one trajectory, in place.

    `weights` (K,), where gaps are drawn, is the log-prior of each in the table; `index` then moves
    too. Empty: gaps belong to positions.
    """
    T, d = seen.values.shape
    drawn = len(weights) > 0
    now, new = track(T, d), track(T, d)
    trial, other, fixed = o.copy(), index.copy(), standing(rules, T)
    here = follow(table, seen, index, o, 0, T, now, now)[0] - order_cost(rules, o)
    for count in range(burn + thin * len(kept.orders)):
        if drawn and random_unit(state) < GAPS:
            i = int(random_unit(state) * (T - 1))
            k = index[i] + int(random_unit(state) * (2 * REACH + 1)) - REACH
            if 0 <= k < len(weights) and k != index[i]:
                other[i] = k
                value, met = follow(table, seen, other, o, i + 1, i + 1, now, new)
                change = value - now.values[T - 1] + weights[k] - weights[index[i]]
                if np.log(1.0 - random_unit(state)) < change:
                    here += value - now.values[T - 1]
                    _keep(now, new, i + 1, met)
                    index[i] = k
                else:
                    other[i] = index[i]
        else:
            low, high = _propose(trial, other, drawn, fixed, state)
            if high >= 0:
                known = order_cost(rules, trial)
                accepted = False
                if known < np.inf:
                    value, met = follow(table, seen, other, trial, low, high + 1, now, new)
                    if np.log(1.0 - random_unit(state)) < value - known - here:
                        accepted, here = True, value - known
                        _keep(now, new, low, met)
                for t in range(low, high + 1):
                    if accepted:
                        o[t] = trial[t]
                    else:
                        trial[t] = o[t]
                if drawn:
                    for t in range(low, high):
                        if accepted:
                            index[t] = other[t]
                        else:
                            other[t] = index[t]
        if count >= burn and (count - burn + 1) % thin == 0:
            r = (count - burn) // thin
            put(o, kept.orders[r])
            if drawn:
                put(index, kept.gaps[r])


@njit(cache=True, nogil=True)
def descend(
    table: Table, seen: Observed, index: Indices, rules: Rules | None, o: Indices
) -> float:  # pragma: no cover - compiled
    """Insertions, swaps and turns while any of them helps, missing entries summed out; the final log-likelihood."""
    T, d = seen.values.shape
    now, new, trial = track(T, d), track(T, d), o.copy()
    here = follow(table, seen, index, o, 0, T, now, now)[0] - order_cost(rules, o)
    for _ in range(50):
        moved = False
        for p in range(T):
            for q in range(T):
                for kind in range(3):
                    if q == p or (kind > 0 and q < p + 2 - (kind == 2)):
                        continue
                    put(o, trial)
                    if kind == 0:
                        _rotate(trial, p, q)
                    elif kind == 1:
                        trial[p], trial[q] = trial[q], trial[p]
                    else:
                        _turn(trial, p, q)
                    known = order_cost(rules, trial)
                    if not known < np.inf:
                        continue
                    low, high = min(p, q), max(p, q)
                    value, met = follow(table, seen, index, trial, low, high + 1, now, new)
                    if value - known > here + 1e-9:
                        _keep(now, new, low, met)
                        put(trial, o)
                        here, moved = value - known, True
        if not moved:
            break
    return here
