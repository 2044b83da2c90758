"""Quadratic assignment: which observation stands at which position, when every pair of positions matters.

    cost(o) = ½ Σ_ik ⟨M_ik, S_{o_i o_k}⟩ + Σ_i V[o_i, i],

M (T, T, d, d) couples positions, S (T, T, d, d) observations: sums over all trajectories of `y_a y_bᵀ`, so that
their number does not appear here. Positions far apart are hardly coupled: beyond a window of w positions M is taken for 0.
`U[i, a] = Σ_k ⟨M_ik, S_{a o_k}⟩` makes an exchange of two positions O(d²), and insertions and reversals are chains of
exchanges (`exchanges`), each corrected for those before it within the window: all T² of either kind cost O(T² w d²).

For few observations the search runs by table (`SmallSearch`): the same moves, with numpy, so that nothing is compiled for it. `W[i, k, a, b] = ⟨M_ik, S_ab⟩` has T⁴
numbers; all insertions of an observation, or all reversals, are judged at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put, put_rows
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.hidden.exchanges import (
    best_insertion,
    best_reversal,
    chain_change,
    forget,
    transpose,
)
from retrace_sde.orders.moves import descent, judges, metropolis
from retrace_sde.orders.moves.descent import Kicks
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Kept, Schedule
from retrace_sde.orders.moves.moves import (
    Move,
    insertion,
    make,
    nothing,
    position_of,
    random_unit,
    reversal,
)
from retrace_sde.orders.moves.proposals import Nearby
from retrace_sde.orders.moves.rules import Rules, order_cost

SMALLEST_GAIN = 1e-7
"""Decreases of the cost below this are rounding."""

FLIPS, REVERSALS, FAR, NEAR = 0.005, 0.3, 0.1, 4
"""Shares of proposals (`proposals.Nearby`), and how far others go; an insertion reactivates neighbours as far away."""

NEGLIGIBLE_COUPLING = 1e-6
"""Couplings of positions below this share of the largest are taken for 0."""

HOPEFUL = 30.0
"""Nats by which a kicked order may be worse, once its pieces were put back, for reversals to be tried on it."""

SMALL = 20
"""Slices up to which a search without rules runs by table (`SmallSearch`): with 6 kicks 1.1 ms instead of .3 for 8
slices and 5.7 instead of 2.4 for 20, but 8 s of compiling less."""

INSERTIONS, ALL_STAGES = 1, 2
"""Stages of a search: insertions, and where none helps the best reversal."""


class _Tables(NamedTuple):
    """M, 0 beyond the window, S, V and the window."""

    precision: Array
    moments: Array
    unary: Array
    window: int


class CouplingJudge(NamedTuple):
    """The same with U of an order, `now`, and which observations are active: the others found no better place."""

    precision: Array
    moments: Array
    unary: Array
    window: int
    table: Array
    now: Indices
    active: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Arrangement:
    """The tables M, S and V of one quadratic assignment problem, and what is known of the order.

    Of the rules only what they forbid counts: costs that are finite are part of `unary`.
    """

    precision: Array
    moments: Array
    unary: Array
    rules: Rules | None = None

    @cached_property
    def _tables(self) -> _Tables:
        M = self.precision
        T = len(M)
        apart = np.abs(np.arange(T)[:, None] - np.arange(T))
        size = np.abs(M).max(axis=(2, 3))
        window = int(apart[size > NEGLIGIBLE_COUPLING * size.max()].max(initial=0))
        near = np.where((apart <= window)[:, :, None, None], M, 0.0) if window < T - 1 else M
        return _Tables(near, self.moments, self.unary, window)

    @cached_property
    def _small(self) -> SmallSearch:
        return SmallSearch(*self._tables[:3])

    @cached_property
    def _forbidden(self) -> Rules | None:
        """The rules without costs that are finite."""
        if self.rules is None:
            return None
        costs = self.rules.costs
        return Rules(np.where(np.isinf(costs), np.inf, 0.0), self.rules.before)

    def with_walk(self, source: Array, target: Array) -> Arrangement:
        """The same with `½ Σ_i |target[o_{i+1}] − source[o_i]|²` added, up to a constant, as one more variable; source (T, k) is target and a trend.

        The mean path of trajectories that share shocks has noise of its own size. As one more trajectory among them it had theirs, and the noise of
        their measurement: orders 4 and 13 nats more likely were not found.
        """
        T, d = len(self.precision), self.precision.shape[2]
        M, S = np.zeros((T, T, d + 1, d + 1)), np.zeros((T, T, d + 1, d + 1))
        M[:, :, :d, :d], S[:, :, :d, :d] = self.precision, self.moments
        step = np.diff(np.eye(T), axis=0)
        M[:, :, d, d], S[:, :, d, d] = step.T @ step, target @ target.T
        unary, along = self.unary.copy(), target @ (source[0] - target[0])
        unary[:, 0] += along
        unary[:, -1] -= along
        return replace(self, precision=M, moments=S, unary=unary)

    def cost(self, order: Indices) -> float:
        """The cost of an order, up to a constant; of all couplings."""
        S = self.moments[order][:, order]
        pairs = np.dot(self.precision.ravel(), S.ravel())
        return float(0.5 * pairs + self.unary[order, np.arange(len(order))].sum())

    def improve(self, order: Indices, state: State, *, kicks: int = 0) -> Indices:
        """A local minimum under insertions and reversals, the best of 1 + `kicks` descents."""
        order = np.ascontiguousarray(order, dtype=np.intp).copy()
        if len(order) <= SMALL and self.rules is None:
            self._small.search(order, state, kicks)
        else:
            _search(self._tables, self._forbidden, order, state, kicks)
        return order

    def sample(
        self, order: Indices, state: State, *, burn: int, samples: int, thin: int
    ) -> NDArray[np.int16]:
        """Orders (samples, T) from `p(o) ∝ exp(−cost(o))` by Metropolis, `thin` proposals apart."""
        order = np.ascontiguousarray(order, dtype=np.intp).copy()
        kept = np.empty((samples, len(order)), dtype=np.int16)
        _sample(self._tables, self._forbidden, order, state, burn, thin, kept)
        return kept


@njit(cache=True, nogil=True)
def _fill_table(M: Array, S: Array, o: Indices, window: int, U: Array) -> None:
    """U[i, a] = Σ_k ⟨M_ik, S_{a o_k}⟩, a product for each position."""
    T, d = len(o), M.shape[2]
    gathered = np.empty((T, T, d, d))
    for k in range(T):
        for a in range(T):
            put_rows(S[a, o[k]], gathered[k, a])
    for i in range(T):
        for a in range(T):
            U[i, a] = 0.0
        for k in range(max(0, i - window), min(T, i + window + 1)):
            found = np.dot(gathered[k].reshape(T, d * d), M[i, k].copy().reshape(d * d))
            for a in range(T):
                U[i, a] += found[a]


@njit(cache=True, nogil=True)
def _judge(tables: _Tables, o: Indices) -> CouplingJudge:
    """A judge that is ready for the order o, everything active."""
    M, S, V, window = tables
    U = np.empty((len(o), len(o)))
    _fill_table(M, S, o, window, U)
    return CouplingJudge(M, S, V, window, U, o.copy(), np.ones(len(o), np.bool_))


@implements(transpose, CouplingJudge)
def _transpose(judge: CouplingJudge, order: Indices, low: int, high: int, p: int, q: int) -> float:
    M, S, V, window = judge.precision, judge.moments, judge.unary, judge.window
    U, now, d = judge.table, judge.now, judge.precision.shape[2]
    a, b = now[p], now[q]
    change = U[p, b] - U[p, a] + U[q, a] - U[q, b] + V[b, p] - V[a, p] + V[a, q] - V[b, q]
    first, second = min(p, q), max(p, q)
    middle = max(low, min(high, first + window + 1))
    for near in (True, False):
        begin = max(low, first - window) if near else max(middle, second - window)
        end = middle if near else min(high, second + window + 1)
        for k in range(begin, end):
            c, c0 = now[k], order[k]
            if c != c0:
                for x in range(d):
                    for y in range(d):
                        change += (M[p, k, x, y] - M[q, k, x, y]) * (
                            S[b, c, x, y] - S[a, c, x, y] - S[b, c0, x, y] + S[a, c0, x, y]
                        )
    square = 0.0
    for x in range(d):
        for y in range(d):
            square += (M[p, p, x, y] + M[q, q, x, y] - M[p, q, x, y] - M[q, p, x, y]) * (
                S[b, b, x, y] - S[a, b, x, y] - S[b, a, x, y] + S[a, a, x, y]
            )
    now[p], now[q] = b, a
    return change + 0.5 * square


@implements(forget, CouplingJudge)
def _forget(judge: CouplingJudge, order: Indices, low: int, high: int) -> None:
    for k in range(low, high):
        judge.now[k] = order[k]


implements(judges.change, CouplingJudge)(chain_change.py_func)


@implements(judges.leave, CouplingJudge)
def _leave(judge: CouplingJudge, order: Indices, move: Move) -> None:
    forget(judge, order, move.i, move.q)


@implements(judges.take, CouplingJudge)
def _take(judge: CouplingJudge, order: Indices, move: Move) -> None:
    """Bring U up to date, from scratch where most of the order moved, and reactivate what is near."""
    T, low, high, now = len(order), move.i, move.q, judge.now
    some = 2 * (high - low) < T
    if some:
        _update(judge, order, low, high)
    for k in range(low, high):
        order[k] = now[k]
    if not some:
        _fill_table(judge.precision, judge.moments, order, judge.window, judge.table)
    for k in range(max(0, low - NEAR), min(T, high + NEAR)):
        judge.active[order[k]] = True


@njit(cache=True, nogil=True)
def _update(judge: CouplingJudge, order: Indices, low: int, high: int) -> None:
    """U of `now` from that of the order, which differ at low … high − 1."""
    M, S, window, U, now = judge.precision, judge.moments, judge.window, judge.table, judge.now
    T, d = len(order), M.shape[2]
    for i in range(max(0, low - window), min(T, high + window)):
        for k in range(max(low, i - window), min(high, i + window + 1)):
            if now[k] != order[k]:
                for a in range(T):
                    change = 0.0
                    for x in range(d):
                        for y in range(d):
                            change += M[i, k, x, y] * (S[a, now[k], x, y] - S[a, order[k], x, y])
                    U[i, a] += change


@implements(descent.centres, CouplingJudge)
def _centres(judge: CouplingJudge, rules: Any, order: Indices, stage: int) -> int:
    """Observations; then all reversals at once."""
    return len(order) if stage == 0 else 1


@implements(descent.best, CouplingJudge)
def _best(
    judge: CouplingJudge, rules: Any, order: Indices, stage: int, at: int
) -> tuple[float, Move]:
    if stage == 0:
        if not judge.active[at]:
            return 0.0, nothing()
        judge.active[at] = False
        return best_insertion(judge, rules, order, position_of(order, at))
    least, move = 0.0, nothing()
    for middle in range(1, 2 * len(order) - 2):
        found, other = best_reversal(judge, rules, order, middle)
        forget(judge, order, other.i, other.q)
        if found < least:
            least, move = found, other
    if move.q > move.i:
        chain_change(judge, rules, order, move)
    return least, move


@implements(judges.begin, CouplingJudge)
def _begin(judge: CouplingJudge, order: Indices, before: Indices) -> None:
    _fill_table(judge.precision, judge.moments, order, judge.window, judge.table)
    put(order, judge.now)
    for k in range(len(order)):
        judge.active[order[k]] = order[k] != before[k]


@implements(descent.reactivate, CouplingJudge)
def _reactivate(judge: CouplingJudge) -> None:
    for a in range(len(judge.active)):
        judge.active[a] = True


@implements(judges.cost, CouplingJudge)
def _cost(judge: CouplingJudge, rules: Any, order: Indices) -> float:
    total = 0.0
    for i in range(len(order)):
        total += 0.5 * judge.table[i, order[i]] + judge.unary[order[i], i]
    return total


@implements(descent.kick, CouplingJudge)
def _kick(judge: CouplingJudge, rules: Any, order: Indices, state: State) -> bool:
    """A segment of up to a fifth reversed, or two observations put anywhere."""
    T = len(order)
    length = 2 + int(random_unit(state) * max(T // 5, 1))
    p = int(random_unit(state) * (T - length + 1))
    if random_unit(state) < 0.5:
        make(order, reversal(p, p + length))
    else:
        make(order, insertion(p, int(random_unit(state) * T)))
        make(order, insertion((p + length) % T, int(random_unit(state) * T)))
    return order_cost(rules, order) < np.inf


@njit(cache=True, nogil=True)
def _search(tables: _Tables, rules: Rules | None, o: Indices, state: State, kicks: int) -> None:
    judge = _judge(tables, o)
    descent.descend(
        judge, rules, o, SMALLEST_GAIN, np.int64(ALL_STAGES)
    )  # not a literal, for which the search would be compiled again
    if kicks > 0:
        plan, trial = Kicks(kicks, INSERTIONS, ALL_STAGES, HOPEFUL), o.copy()
        spare = _judge(tables, trial)
        descent.descend_again(judge, spare, rules, o, trial, SMALLEST_GAIN, plan, state)


@njit(cache=True, nogil=True)
def _sample(
    tables: _Tables, rules: Rules | None, o: Indices, state: State, burn: int, thin: int,
    kept: NDArray[np.int16],
) -> None:  # fmt: skip
    judge, nearby = _judge(tables, o), Nearby(FLIPS, REVERSALS, 0.0, FAR, NEAR, False)
    metropolis.sample(judge, rules, o, nearby, state, Schedule(burn, len(kept), thin), Kept(kept))


@cache
def _insertions(T: int) -> Indices:
    """[p, q]: the order 0 … T − 1 after what stands at p has moved to q."""
    every = np.arange(T)
    found = [[np.insert(np.delete(every, p), q, p) for q in range(T)] for p in range(T)]
    return np.array(found, dtype=np.intp)


@cache
def _reversals(T: int) -> Indices:
    """Every segment of the order 0 … T − 1 reversed."""
    every = np.arange(T)
    found = [np.r_[every[:i], every[i:j][::-1], every[j:]] for i in range(T) for j in range(i + 2, T + 1)]  # fmt: skip
    return np.array(found, dtype=np.intp).reshape(-1, T)


class SmallSearch:
    """Descents over orders of T observations."""

    def __init__(self, M: Array, S: Array, V: Array) -> None:
        T, _, d, _ = M.shape
        self.table = M.reshape(T * T, d * d) @ S.reshape(T * T, d * d).T
        self.unary, self.T = V, T
        self.base = (np.arange(T * T) * T * T).reshape(T, T)

    def costs(self, orders: Indices) -> Array:
        """Of orders (B, T)."""
        at = self.base + orders[:, :, None] * self.T + orders[:, None, :]
        pairs = self.table.ravel().take(at).sum(axis=(1, 2))
        return 0.5 * pairs + self.unary[orders, np.arange(self.T)].sum(axis=1)

    def descend(self, order: Indices, active: Mask, *, reversals: bool) -> float:
        """Local search in place; where no insertion helps, the best reversal. The cost."""
        cost = float(self.costs(order[None])[0])
        improved = True
        while improved:
            improved = False
            for a in range(self.T):
                if active[a]:
                    active[a] = False
                    moves = _insertions(self.T)[int(np.flatnonzero(order == a)[0])]
                    improved |= (less := self._taken(order, active, moves, cost)) < cost
                    cost = less
            if not improved and reversals:
                improved = (less := self._taken(order, active, _reversals(self.T), cost)) < cost
                cost = less
        return cost

    def _taken(self, order: Indices, active: Mask, moves: Indices, cost: float) -> float:
        """The best of some moves made where it helps, what is near it active, and the cost then."""
        trials = order[moves]
        costs = self.costs(trials)
        best = int(np.argmin(costs))
        if not costs[best] < cost - SMALLEST_GAIN:
            return cost
        changed = np.flatnonzero(trials[best] != order)
        order[:] = trials[best]
        active[order[max(0, changed[0] - NEAR) : changed[-1] + 1 + NEAR]] = True
        return float(costs[best])

    def kicked(self, order: Indices, state: State) -> None:
        """A segment of up to a fifth reversed, or two observations put anywhere."""
        T = self.T
        length = 2 + int(random_unit(state) * max(T // 5, 1))
        p = int(random_unit(state) * (T - length + 1))
        if random_unit(state) < 0.5:
            order[p : p + length] = order[p : p + length][::-1].copy()
        else:
            order[:] = order[_insertions(T)[p, int(random_unit(state) * T)]]
            order[:] = order[_insertions(T)[(p + length) % T, int(random_unit(state) * T)]]

    def search(self, order: Indices, state: State, kicks: int) -> None:
        """In place, the best of 1 + `kicks` descents; a kicked order is searched to its end where it is less than `HOPEFUL` worse."""
        least = self.descend(order, np.ones(self.T, dtype=bool), reversals=True)
        for _ in range(kicks):
            trial = order.copy()
            self.kicked(trial, state)
            active = np.zeros(self.T, dtype=bool)
            active[trial[trial != order]] = True
            found = self.descend(trial, active, reversals=False)
            if found < least + HOPEFUL and np.any(trial != order):
                found = self.descend(trial, np.ones(self.T, dtype=bool), reversals=True)
            if found < least - SMALLEST_GAIN:
                least = found
                order[:] = trial
