"""Compiled search and sampling of single trajectories' orders under the likelihood of noisy observations.

    cost(o) = ½ Σ_ik y_{o_i}ᵀ M_ik y_{o_k} − Σ_i y_{o_i}ᵀ h_i,      w_i = Σ_k M_ik y_{o_k} − h_i.

With w at hand an exchange of two positions costs O(d²); insertions and reversals are chains of exchanges, each
corrected by the gaps δ that those before it left. Missing entries of y are drawn from their law given
the order and all the rest (Gibbs), one at a time, so that nothing filled in outlives the order it was filled in for.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.fit.statespace.irregular.kernels import put, put_rows
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.orders.hidden.gaussian import Process
from retrace_sde.orders.rules import Rules, crossed, order_cost
from retrace_sde.orders.search import place_of, random_unit

FLIPS, TURNS, SWAPS, FAR = 0.02, 0.28, 0.25, 0.15
"""Shares of proposals: the whole order turned around, a segment of it, two observations that change places (what no
other move can do across known positions), and steps of any length."""

EXACT = 6
"""Up to this many observations the best order is found exactly: 720 orders cost less than a search from several starts."""

NEAR = 4
SMALLEST_GAIN = 1e-9


@njit(cache=True, nogil=True)
def pulls(
    M: Array, h: Array, y: Array, o: Indices, w: Array
) -> float:  # pragma: no cover - compiled
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
def _exchange(
    M: Array, y: Array, w: Array, rules: Rules | None, now: Indices, gap: Array,
    low: int, high: int, q: int, r: int,
) -> float:  # pragma: no cover - compiled  # fmt: skip
    """Exchange q < r in `now`, and return the change of the cost (∞ where the prior forbids the result).

    The gaps are zero outside low … high − 1.
    """
    d = y.shape[1]
    a, b = now[q], now[r]
    change = 0.0
    for x in range(d):
        e = y[b, x] - y[a, x]
        pull = w[q, x] - w[r, x]
        for z in range(d):
            f = y[b, z] - y[a, z]
            pull += 0.5 * (M[q, q, x, z] + M[r, r, x, z] - M[q, r, x, z] - M[r, q, x, z]) * f
            for k in range(low, high):
                pull += (M[q, k, x, z] - M[r, k, x, z]) * gap[k, z]
        change += e * pull
    for x in range(d):
        e = y[b, x] - y[a, x]
        gap[q, x] += e
        gap[r, x] -= e
    now[q], now[r] = b, a
    if rules is not None:
        U, B = rules.costs, rules.before
        if len(U) > 0:  # impossible places may be left
            change += U[b, q] + U[a, r] - _finite(U[a, q]) - _finite(U[b, r])
        if len(B) > 0 and B[a, b]:
            change = np.inf
    return change


@njit(cache=True, nogil=True)
def _finite(cost: float) -> float:  # pragma: no cover - compiled
    return cost if cost < np.inf else 0.0


@njit(cache=True, nogil=True)
def _settle(
    M: Array, w: Array, o: Indices, now: Indices, gap: Array, low: int, high: int
) -> None:  # pragma: no cover - compiled
    """Make `now` the order: bring w up to date and forget the gaps."""
    T, d = w.shape
    for i in range(T):
        for x in range(d):
            total = 0.0
            for k in range(low, high):
                for z in range(d):
                    total += M[i, k, x, z] * gap[k, z]
            w[i, x] += total
    for k in range(low, high):
        o[k] = now[k]
        gap[k] = 0.0


@njit(cache=True, nogil=True)
def _forget(
    o: Indices, now: Indices, gap: Array, low: int, high: int
) -> None:  # pragma: no cover - compiled
    """Make `now` the order again."""
    for k in range(low, high):
        now[k] = o[k]
        gap[k] = 0.0


@njit(cache=True, nogil=True)
def _passed(rules: Rules | None, o: Indices, left: int, right: int) -> float:  # pragma: no cover
    """∞ where the ends of a turned segment must not change sides with something inside it."""
    if rules is None or len(rules.before) == 0:
        return 0.0
    return np.inf if crossed(rules.before, o, left, left + 1, right, right + 1) else 0.0


@njit(cache=True, nogil=True)
def _swap(
    M: Array,
    y: Array,
    w: Array,
    rules: Rules | None,
    o: Indices,
    now: Indices,
    gap: Array,
    p: int,
    q: int,
) -> float:  # pragma: no cover - compiled
    """What stands at p and at q > p changes places, gaps being left between them only: the change of the cost."""
    change = _exchange(M, y, w, rules, now, gap, p + 1, q, p, q)
    return change + _passed(rules, o, p, q)


@njit(cache=True, nogil=True)
def _propose(
    M: Array, y: Array, w: Array, rules: Rules | None, o: Indices, now: Indices, gap: Array,
    p: int, q: int, turn: bool,
) -> float:  # pragma: no cover - compiled  # fmt: skip
    """Turn p … q around, or move what stands at p to q (either way): the change of the cost."""
    total = 0.0
    if turn:
        for left in range((p + q - 1) // 2, min(p, q) - 1, -1):  # from the innermost pair outwards
            total += _swap(M, y, w, rules, o, now, gap, left, p + q - left)
        return total
    step = 1 if q > p else -1
    for k in range(p, q, step):
        low, high, to = min(p, k), max(p, k) + 1, k + step
        total += _exchange(M, y, w, rules, now, gap, low, high, min(k, to), max(k, to))
    return total


@njit(cache=True, nogil=True)
def _best_move(
    M: Array, y: Array, w: Array, rules: Rules | None, o: Indices, now: Indices, gap: Array, p: int
) -> tuple[float, int]:  # pragma: no cover - compiled
    """The best place for what stands at p: one chain of exchanges to the end, one to the beginning."""
    best, where = 0.0, p
    for step in (1, -1):
        total, k = 0.0, p
        while 0 <= k + step < len(o) and total < np.inf:
            low, high, to = min(p, k), max(p, k) + 1, k + step
            total += _exchange(M, y, w, rules, now, gap, low, high, min(k, to), max(k, to))
            k = to
            if total < best:
                best, where = total, k
        _forget(o, now, gap, min(p, k), max(p, k) + 1)
    return best, where


@njit(cache=True, nogil=True)
def _best_turn(
    M: Array,
    y: Array,
    w: Array,
    rules: Rules | None,
    o: Indices,
    now: Indices,
    gap: Array,
    middle: int,
) -> tuple[float, int, int]:  # pragma: no cover - compiled
    """The best segment to turn around about `middle` / 2: a chain of exchanges outwards."""
    best, first, last = 0.0, 0, 0
    left = (middle - 1) // 2
    right, total = middle - left, 0.0
    while left >= 0 and right < len(o) and total < np.inf:
        total += _exchange(M, y, w, rules, now, gap, left + 1, right, left, right)
        total += _passed(rules, o, left, right)
        if total < best:
            best, first, last = total, left, right
        left, right = left - 1, right + 1
    _forget(o, now, gap, left + 1, right)
    return best, first, last


@njit(cache=True, nogil=True)
def _best_swap(
    M: Array, y: Array, w: Array, rules: Rules | None, o: Indices, now: Indices, gap: Array, p: int
) -> tuple[float, int]:  # pragma: no cover - compiled
    """The best observation beyond its neighbour to change places with what stands at p."""
    best, where = 0.0, p
    for q in range(p + 2, len(o)):
        change = _swap(M, y, w, rules, o, now, gap, p, q)
        _forget(o, now, gap, p, q + 1)
        if change < best:
            best, where = change, q
    return best, where


@njit(cache=True, nogil=True)
def descend(
    law: Process, y: Array, rules: Rules | None, o: Indices
) -> float:  # pragma: no cover - compiled
    """Insertions, swaps and turns while any of them helps; the final cost, prior included."""
    M, h, T = law.precision, law.shift, len(o)
    w, gap, now = np.empty(y.shape), np.zeros(y.shape), o.copy()
    cost = pulls(M, h, y, o, w) + order_cost(rules, o)
    for _ in range(100):
        moved = False
        for a in range(T):
            p = place_of(o, a)
            change, q = _best_move(M, y, w, rules, o, now, gap, p)
            if change < -SMALLEST_GAIN:
                cost += _propose(M, y, w, rules, o, now, gap, p, q, False)
                _settle(M, w, o, now, gap, min(p, q), max(p, q) + 1)
                moved = True
        for p in range(T - 2):
            change, q = _best_swap(M, y, w, rules, o, now, gap, p)
            if change < -SMALLEST_GAIN:
                cost += _swap(M, y, w, rules, o, now, gap, p, q)
                _settle(M, w, o, now, gap, p, q + 1)
                moved = True
        for middle in range(1, 2 * T - 2):
            change, first, last = _best_turn(M, y, w, rules, o, now, gap, middle)
            if change < -SMALLEST_GAIN:
                cost += _propose(M, y, w, rules, o, now, gap, first, last, True)
                _settle(M, w, o, now, gap, first, last + 1)
                moved = True
        if not moved:
            break
    return cost


@njit(cache=True, nogil=True)
def summed_cost(
    law: Process, y: Array, seen: Mask, o: Indices
) -> float:  # pragma: no cover - compiled
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
def exact(
    law: Process, y: Array, seen: Mask, rules: Rules | None, o: Indices
) -> float:  # pragma: no cover - compiled
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
def _normal(state: State) -> float:  # pragma: no cover - compiled
    radius = np.sqrt(-2.0 * np.log(1.0 - random_unit(state)))
    return radius * np.cos(2.0 * np.pi * random_unit(state))


@njit(cache=True, nogil=True)
def fill(
    M: Array, y: Array, seen: Mask, o: Indices, w: Array, state: State
) -> None:  # pragma: no cover - compiled
    """Draw each missing entry given the rest."""
    T, d = y.shape
    for i in range(T):
        a = o[i]
        for x in range(d):
            if seen[a, x]:
                continue
            weight = M[i, i, x, x]
            step = -w[i, x] / weight + _normal(state) / np.sqrt(weight)
            y[a, x] += step
            for k in range(T):
                for z in range(d):
                    w[k, z] += M[k, i, z, x] * step


@njit(cache=True, nogil=True)
def _accept(change: float, state: State) -> bool:  # pragma: no cover - compiled
    """With probability min(1, exp(−change))."""
    return np.log(1.0 - random_unit(state)) < -change


@njit(cache=True, nogil=True)
def _flip(
    M: Array,
    h: Array,
    y: Array,
    w: Array,
    rules: Rules | None,
    o: Indices,
    now: Indices,
    state: State,
) -> None:  # pragma: no cover - compiled
    """Propose to turn the whole order around."""
    back, v = o[::-1].copy(), np.empty_like(w)
    cost = pulls(M, h, y, o, w)
    change = pulls(M, h, y, back, v) - cost + order_cost(rules, back) - order_cost(rules, o)
    if _accept(change, state):
        put(back, o)
        put(back, now)
        put_rows(v, w)


@njit(cache=True, nogil=True)
def sample(
    law: Process, y: Array, seen: Mask, rules: Rules | None, o: Indices, state: State,
    burn: int, thin: int, kept: NDArray[np.int16],
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Metropolis over the order o of one trajectory, in place; `kept` (samples, ≥ T) records orders."""
    M, h, T = law.precision, law.shift, len(o)
    w, gap, now = np.empty(y.shape), np.zeros(y.shape), o.copy()
    pulls(M, h, y, o, w)
    gaps = not seen.all()
    for count in range(burn + thin * len(kept)):
        if gaps and count % T == 0:
            fill(M, y, seen, o, w, state)
        kind = random_unit(state)
        if kind < FLIPS:
            _flip(M, h, y, w, rules, o, now, state)
        else:
            turn, swap = kind < FLIPS + TURNS, FLIPS + TURNS <= kind < FLIPS + TURNS + SWAPS
            far = random_unit(state) < FAR or (swap and rules is not None)
            reach = T - 1 if far else min(NEAR, T - 1)
            p = int(random_unit(state) * T)
            step = 1 + int(random_unit(state) * reach)
            q = p + step if random_unit(state) < 0.5 else p - step
            if 0 <= q < T:
                low, high = min(p, q), max(p, q) + 1
                if swap:
                    change = _swap(M, y, w, rules, o, now, gap, low, high - 1)
                else:
                    change = _propose(M, y, w, rules, o, now, gap, p, q, turn)
                if _accept(change, state):
                    _settle(M, w, o, now, gap, low, high)
                else:
                    _forget(o, now, gap, low, high)
        if count >= burn and (count - burn + 1) % thin == 0:
            put(o, kept[(count - burn) // thin])
