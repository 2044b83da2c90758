"""Quadratic assignment: which observation stands at which position, when every pair of positions matters.

    cost(o) = ½ Σ_ik ⟨M_ik, S_{o_i o_k}⟩ + Σ_i V[o_i, i],

M (T, T, d, d) couples positions, S (T, T, d, d) observations: sums over all trajectories of `y_a y_bᵀ`, so that
their number does not appear here. Positions far apart are hardly coupled: beyond a window of w positions M is taken for 0.
`U[i, a] = Σ_k ⟨M_ik, S_{a o_k}⟩` makes an exchange of two positions O(d²), and insertions and reversals are chains of
exchanges, each corrected for those before it within the window: all T² of either kind cost O(T² w d²).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.irregular.kernels import put, put_rows
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.rules import Rules, broken, crossed, misplaced, order_cost
from retrace_sde.orders.search import place_of, random_unit

SMALLEST_GAIN = 1e-7
"""Decreases of the cost below this are rounding."""

FLIPS, TURNS, FAR, NEAR = 0.005, 0.3, 0.1, 4
"""Shares of proposals: the whole order turned, a segment turned, any length; and what else counts as short."""


NEGLIGIBLE = 1e-6
"""Couplings of positions below this share of the largest are taken for 0."""


HOPELESS = 30.0
"""Nats by which a kicked order may be worse, once its pieces were put back, for reversals to be tried on it."""


class _Tables(NamedTuple):
    """M, 0 beyond the window, S, V and the window."""

    precision: Array
    moments: Array
    unary: Array
    window: int


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
        window = int(apart[size > NEGLIGIBLE * size.max()].max(initial=0))
        near = np.where((apart <= window)[:, :, None, None], M, 0.0) if window < T - 1 else M
        return _Tables(near, self.moments, self.unary, window)

    def cost(self, order: Indices) -> float:
        """The cost of an order, up to a constant; of all couplings."""
        at = np.arange(len(order))
        table = _table(self.precision, self.moments, order, len(order))
        return float(0.5 * table[at, order].sum() + self.unary[order, at].sum())

    def improve(self, order: Indices, state: State, *, kicks: int = 0) -> Indices:
        """A local minimum under exchanges, insertions and reversals, the best of 1 + `kicks` descents."""
        order = np.ascontiguousarray(order, dtype=np.intp).copy()
        _search(self._tables, self.rules, order, state, kicks)
        return order

    def sample(
        self, order: Indices, state: State, *, burn: int, samples: int, thin: int
    ) -> NDArray[np.int16]:
        """Orders (samples, T) from `p(o) ∝ exp(−cost(o))` by Metropolis, `thin` proposals apart."""
        order = np.ascontiguousarray(order, dtype=np.intp).copy()
        kept = np.empty((samples, len(order)), dtype=np.int16)
        _metropolis(self._tables, self.rules, order, state, burn, thin, kept)
        return kept


@numba.njit(nogil=True, cache=True)
def _table(M: Array, S: Array, o: Indices, window: int) -> Array:
    """U[i, a] = Σ_k ⟨M_ik, S_{a o_k}⟩, a product for each position."""
    T, d = len(o), M.shape[2]
    gathered = np.empty((T, T, d, d))
    for k in range(T):
        for a in range(T):
            put_rows(S[a, o[k]], gathered[k, a])
    U = np.zeros((T, T))
    for i in range(T):
        for k in range(max(0, i - window), min(T, i + window + 1)):
            found = np.dot(gathered[k].reshape(T, d * d), M[i, k].copy().reshape(d * d))
            for a in range(T):
                U[i, a] += found[a]
    return U


@numba.njit(nogil=True, cache=True)
def _exchange(
    tables: _Tables, U: Array, o: Indices, now: Indices, low: int, high: int, q: int, r: int
) -> float:
    """Change of the cost when positions q and r of `now` are exchanged.

    `now` differs from o, the order that U belongs to, at positions low … high − 1 at most.
    """
    M, S, V, window = tables
    d = M.shape[2]
    a, b = now[q], now[r]
    change = U[q, b] - U[q, a] + U[r, a] - U[r, b] + V[b, q] - V[a, q] + V[a, r] - V[b, r]
    first, second = min(q, r), max(q, r)
    middle = max(low, min(high, first + window + 1))
    for near in (True, False):
        begin = max(low, first - window) if near else max(middle, second - window)
        end = middle if near else min(high, second + window + 1)
        for k in range(begin, end):
            c, c0 = now[k], o[k]
            if c != c0:
                for x in range(d):
                    for y in range(d):
                        change += (M[q, k, x, y] - M[r, k, x, y]) * (
                            S[b, c, x, y] - S[a, c, x, y] - S[b, c0, x, y] + S[a, c0, x, y]
                        )
    square = 0.0
    for x in range(d):
        for y in range(d):
            square += (M[q, q, x, y] + M[r, r, x, y] - M[q, r, x, y] - M[r, q, x, y]) * (
                S[b, b, x, y] - S[a, b, x, y] - S[b, a, x, y] + S[a, a, x, y]
            )
    return change + 0.5 * square


@numba.njit(nogil=True, cache=True)
def _best_insertion(
    tables: _Tables, U: Array, rules: Rules | None, o: Indices, p: int
) -> tuple[float, int]:
    """The best place for what stands at p: a chain of exchanges of neighbours, both ways."""
    T = len(o)
    best, where = 0.0, p
    for step in (1, -1):
        now = o.copy()
        total, bad, q = 0.0, 0, p
        while 0 <= q + step < T:
            r = q + step
            low, high = min(q, r), max(q, r)
            if rules is not None and broken(rules.before, now, low, high, high + 1):
                break
            total += _exchange(tables, U, o, now, min(p, q), max(p, q) + 1, q, r)
            bad += misplaced(rules, now, q, r)
            now[q], now[r] = now[r], now[q]
            q = r
            if bad == 0 and total < best:
                best, where = total, q
    return best, where


@numba.njit(nogil=True, cache=True)
def _best_reversal(
    tables: _Tables, U: Array, rules: Rules | None, o: Indices
) -> tuple[float, int, int]:
    """The best segment to turn around: around each centre a chain of exchanges of its ends."""
    T = len(o)
    best, low, high = 0.0, 0, 0
    for twice in range(1, 2 * T - 2):
        now = o.copy()
        total, bad = 0.0, 0
        q, r = (twice - 1) // 2, twice // 2 + 1
        while q >= 0 and r < T:
            if rules is not None and crossed(rules.before, o, q, q + 1, r, r + 1):
                break
            total += _exchange(tables, U, o, now, q + 1, r, q, r)
            bad += misplaced(rules, now, q, r)
            now[q], now[r] = now[r], now[q]
            if bad == 0 and total < best:
                best, low, high = total, q, r
            q, r = q - 1, r + 1
    return best, low, high


@numba.njit(nogil=True, cache=True)
def _move(o: Indices, p: int, q: int) -> None:
    """What stands at p moves to q, and what is between makes room."""
    a, step = o[p], 1 if q > p else -1
    while p != q:
        o[p] = o[p + step]
        p += step
    o[q] = a


@numba.njit(nogil=True, cache=True)
def _inserted(
    tables: _Tables, U: Array, rules: Rules | None, o: Indices, awake: NDArray[np.bool_]
) -> float:
    """Insert what is awake where it costs least, until nothing helps; the change of the cost. U follows.

    What found no better place sleeps until a neighbour moves.
    """
    T, total = len(o), 0.0
    now, moved = o.copy(), True
    while moved:
        moved = False
        for a in range(T):
            if not awake[a]:
                continue
            awake[a] = False
            p = place_of(o, a)
            change, q = _best_insertion(tables, U, rules, o, p)
            if change < -SMALLEST_GAIN:
                _move(now, p, q)
                low, high = min(p, q), max(p, q) + 1
                _update(tables, U, o, now, low, high)
                put(now, o)
                for k in range(max(0, low - NEAR), min(T, high + NEAR)):
                    awake[o[k]] = True
                total, moved = total + change, True
    return total


@numba.njit(nogil=True, cache=True)
def _descend(tables: _Tables, U: Array, rules: Rules | None, o: Indices) -> float:
    """Insertions while they help, then reversals, until neither does; the change of the cost. U follows."""
    T, total = len(o), 0.0
    awake = np.ones(T, np.bool_)
    for _ in range(100 * T):
        total += _inserted(tables, U, rules, o, awake)
        change, low, high = _best_reversal(tables, U, rules, o)
        if change > -SMALLEST_GAIN:
            break
        put(o[low : high + 1][::-1].copy(), o[low:])
        put_rows(_table(tables.precision, tables.moments, o, tables.window), U)
        awake[o[max(0, low - NEAR) : high + NEAR + 1]] = True
        total += change
    return total


@numba.njit(nogil=True, cache=True)
def _difference(V: Array, U: Array, o: Indices, W: Array, other: Indices) -> float:
    """Cost of another order, whose table is W, less that of o."""
    change = 0.0
    for i in range(len(o)):
        change += 0.5 * (W[i, other[i]] - U[i, o[i]]) + V[other[i], i] - V[o[i], i]
    return change


@numba.njit(nogil=True, cache=True)
def _search(tables: _Tables, rules: Rules | None, o: Indices, state: State, kicks: int) -> None:
    M, S, V, window = tables
    T = len(o)
    U = _table(M, S, o, window)
    _descend(tables, U, rules, o)
    for _ in range(kicks):
        trial, awake = o.copy(), np.zeros(T, np.bool_)
        length = 2 + int(random_unit(state) * max(T // 5, 1))
        p = int(random_unit(state) * (T - length + 1))
        if random_unit(state) < 0.5:
            put(trial[p : p + length][::-1].copy(), trial[p:])
        else:
            q = int(random_unit(state) * T)
            _move(trial, p, q)
            _move(trial, (p + length) % T, int(random_unit(state) * T))
        if order_cost(rules, trial) == np.inf:
            continue
        for k in range(T):
            awake[trial[k]] = trial[k] != o[k]
        W = _table(M, S, trial, window)
        change = _difference(V, U, o, W, trial)
        change += _inserted(tables, W, rules, trial, awake)
        if change < HOPELESS and np.any(trial != o):
            change += _descend(tables, W, rules, trial)
            if change < -SMALLEST_GAIN:
                put(trial, o)
                U = W


@numba.njit(nogil=True, cache=True)
def _metropolis(
    tables: _Tables, rules: Rules | None, o: Indices, state: State, burn: int, thin: int,
    kept: NDArray[np.int16],
) -> None:  # fmt: skip
    """Insertions and turns of segments, mostly short, and turns of the whole: symmetric proposals."""
    M, S, V, window = tables
    T = len(o)
    U = _table(M, S, o, window)
    now = o.copy()
    for count in range(burn + thin * len(kept)):
        kind = random_unit(state)
        put(o, now)
        if kind < FLIPS:
            put(o[::-1], now)
            if order_cost(rules, now) < np.inf:
                W = _table(M, S, now, window)
                if np.log(1.0 - random_unit(state)) < -_difference(V, U, o, W, now):
                    put(now, o)
                    U = W
        else:
            reach = T - 1 if random_unit(state) < FAR else min(NEAR, T - 1)
            p = int(random_unit(state) * T)
            step = 1 if random_unit(state) < 0.5 else -1
            end = p + step * (1 + int(random_unit(state) * reach))
            if 0 <= end < T:
                low, high = min(p, end), max(p, end) + 1
                if kind < FLIPS + TURNS:
                    change = _turned(tables, U, o, now, low, high)
                else:
                    change = _moved(tables, U, o, now, p, end, step)
                if np.log(1.0 - random_unit(state)) < -change and order_cost(rules, now) < np.inf:
                    _update(tables, U, o, now, low, high)
                    put(now, o)
        if count >= burn and (count - burn + 1) % thin == 0:
            put(o, kept[(count - burn) // thin])


@numba.njit(nogil=True, cache=True)
def _moved(
    tables: _Tables, U: Array, o: Indices, now: Indices, p: int, end: int, step: int
) -> float:
    """Move what stands at p of `now` to `end`; the change of the cost."""
    total = 0.0
    for q in range(p, end, step):
        total += _exchange(tables, U, o, now, min(p, q), max(p, q) + 1, q, q + step)
        now[q], now[q + step] = now[q + step], now[q]
    return total


@numba.njit(nogil=True, cache=True)
def _turned(tables: _Tables, U: Array, o: Indices, now: Indices, low: int, high: int) -> float:
    """Turn low … high − 1 of `now` around, from the inside out; the change of the cost."""
    total = 0.0
    for left in range((low + high - 2) // 2, low - 1, -1):
        right = low + high - 1 - left
        total += _exchange(tables, U, o, now, left + 1, right, left, right)
        now[left], now[right] = now[right], now[left]
    return total


@numba.njit(nogil=True, cache=True)
def _update(tables: _Tables, U: Array, o: Indices, now: Indices, low: int, high: int) -> None:
    """U of `now` from that of o, which differ at low … high − 1."""
    M, S, _, window = tables
    T, d = len(o), M.shape[2]
    for i in range(max(0, low - window), min(T, high + window)):
        for k in range(max(low, i - window), min(high, i + window + 1)):
            if now[k] != o[k]:
                for a in range(T):
                    change = 0.0
                    for x in range(d):
                        for y in range(d):
                            change += M[i, k, x, y] * (S[a, now[k], x, y] - S[a, o[k], x, y])
                    U[i, a] += change
