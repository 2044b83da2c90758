"""Draws of a shared order by its evidence: Gibbs moves of segments, tempered, from dispersed starts.

A move takes a random segment out of an order and puts it back in one of all possible places, either way round, with probabilities
proportional to the evidence: the full conditional, which is never rejected. The whole order is a segment, too, so that the
reverse, with its own parameters, is a move; it is the last one before each record. Chains at higher temperatures (evidence to a power below one) exchange orders with
those at temperature one (parallel tempering; Geyer 1991), so that optima far apart are reached.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.collapsed.marginal import OrderEvidence
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.moves.moves import random_unit
from retrace_sde.orders.moves.rules import Rules, order_cost
from retrace_sde.orders.prior import Prior

REPLICAS = 4
"""Independent sets of tempered chains, which are compared for convergence."""

POWERS = np.array([1.0, 0.6, 0.35, 0.2])
"""Powers of the evidence of the chains of one set."""

ANNEALING = 20
"""Moves for each slice during which chains that start at random cool down to their temperature, and again as many that are not recorded."""

MOVES_PER_RECORD = 0.5
"""Moves for each slice between two records."""

MOVED_SLICES = 3
"""Slices that are moved together, at most, where all moves are tried; reversals are of any length."""


MAX_TABLE = 600_000
"""Numbers of all moves of an order, fewer than 6 T² of T steps, up to which they are laid out and judged at once where nothing is known of the order: 57,000, .3 ms, for 8 slices of
4 variables, as long as the compiled search takes. Compiling that takes 2.3 s of CPU at the first call, of 4.1 s in all."""


class Drawn(NamedTuple):
    """Orders (replicas, records, T) at temperature one, and where all chains end."""

    orders: Indices
    ends: Indices


def rules_of(prior: Prior | None) -> Rules:
    """What is known of a shared order; empty where nothing is."""
    if prior is None:
        return Rules(np.empty((0, 0)), np.empty((0, 0), dtype=bool))
    return prior.single()


@njit(cache=True, nogil=True)
def _value(evidence: OrderEvidence, first: int, last: int, sums: Array, S: Array) -> float:
    """Log evidence of an order with given ends and sums over its steps; S (d, d + p) is room."""
    scale, root = evidence.scale, evidence.roots[last]
    d, p = len(scale), len(root)
    for i in range(d):
        for j in range(p):
            total = 0.0
            for q in range(j + 1):
                total += sums[i * p + q] * root[j, q]
            S[i, d + j] = total
        for k in range(i + 1):
            total = sums[d * p + i * d + k] + scale[i, k]
            for j in range(p):
                total -= S[i, d + j] * S[k, d + j]
            S[i, k] = total
    log_det = 0.0
    for i in range(d):  # Cholesky
        for k in range(i + 1):
            total = S[i, k]
            for j in range(k):
                total -= S[i, j] * S[k, j]
            if i == k:
                S[i, i] = np.sqrt(max(total, 1e-300))
                log_det += 2.0 * np.log(S[i, i])
            else:
                S[i, k] = total / S[k, k]
    return evidence.starts[first] + evidence.volumes[last] - 0.5 * evidence.freedom * log_det


# Arrays are added element by element: for `a += b` numba also compiles the words of errors that cannot occur.


@njit(cache=True, nogil=True)
def _add(total: Array, row: Array) -> None:
    for q in range(len(total)):
        total[q] += row[q]


@njit(cache=True, nogil=True)
def _largest(values: Array, count: int) -> float:
    best = -np.inf
    for k in range(count):
        best = max(best, values[k])
    return best


@njit(cache=True, nogil=True)
def _put_back(order: Indices, at: int, L: int, choice: int, new: Indices) -> None:
    """The order with the segment of L slices at `at` in place `choice` of the rest, from T − L + 1 on the other way round."""
    T = len(order)
    places = T - L + 1
    place, back = choice % places, choice >= places
    for k in range(T - L):
        new[k if k < place else k + L] = order[k if k < at else k + L]
    for k in range(L):
        new[place + k] = order[at + L - 1 - k] if back else order[at + k]


@njit(cache=True, nogil=True)
def _places(
    evidence: OrderEvidence, rules: Rules, order: Indices, at: int, L: int, values: Array
) -> int:
    """Log evidence, and prior, of every place of a segment, both ways round, into `values`; how many there are."""
    Z, T = evidence.pairs, len(order)
    d, p, size = len(evidence.scale), evidence.roots.shape[1], Z.shape[2]
    S, base, inner, sums = np.empty((d, d + p)), np.zeros(size), np.empty(size), np.empty(size)
    rest, new = np.empty(T - L, np.intp), np.empty(T, np.intp)
    for k in range(T - L):
        rest[k] = order[k if k < at else k + L]
    for k in range(T - L - 1):
        _add(base, Z[rest[k], rest[k + 1]])
    known = len(rules.costs) > 0 or len(rules.before) > 0
    places, count = T - L + 1, 0
    for way in range(1 if L == 1 else 2):
        head, tail = order[at], order[at + L - 1]
        for q in range(size):
            inner[q] = base[q]
        for k in range(at, at + L - 1):
            _add(inner, Z[order[k], order[k + 1]] if way == 0 else Z[order[k + 1], order[k]])
        if way == 1:
            head, tail = tail, head
        for place in range(places):
            left = rest[place - 1] if place > 0 else T
            right = rest[place] if place < T - L else T
            for q in range(size):
                sums[q] = inner[q] + Z[left, head, q] + Z[tail, right, q] - Z[left, right, q]
            first = rest[0] if place > 0 else head
            last = rest[T - L - 1] if place < T - L else tail
            value = _value(evidence, first, last, sums, S)
            if known:
                _put_back(order, at, L, way * places + place, new)
                value -= order_cost(rules, new)
            values[count] = value
            count += 1
    return count


@njit(cache=True, nogil=True)
def _drawn_place(values: Array, count: int, power: float, state: State) -> int:
    """One of so many places with probability proportional to its evidence to a power."""
    best, likeliest, total = _largest(values, count), 0, 0.0
    for k in range(count):
        total += np.exp(power * (values[k] - best))
        if values[k] == best:
            likeliest = k
    left = random_unit(state) * total
    for k in range(count):
        left -= np.exp(power * (values[k] - best))
        if left < 0.0:
            return k
    return likeliest


@njit(cache=True, nogil=True)
def _sample(
    evidence: OrderEvidence,
    rules: Rules,
    orders: Indices,
    powers: Array,
    anneal: int,
    thin: int,
    state: State,
    kept: Indices,
) -> None:
    """Advance tempered chains (powers, T) in place and record the first of them; annealed first, then burned in as long."""
    C, T = orders.shape
    values, new, now = np.empty(2 * T + 2), np.empty(T, np.intp), np.empty(C)
    for k in range(2 * anneal + len(kept) * thin):
        done = k - 2 * anneal
        record = done >= 0 and done % thin == thin - 1
        for c in range(C):
            L = T if record else 1
            if not record and random_unit(state) < 0.5:
                L = min(int(np.exp(random_unit(state) * np.log(T + 1.0))), T)
            at = int(random_unit(state) * (T - L + 1))
            count = _places(evidence, rules, orders[c], at, L, values)
            cold = min(1.0, (k + 1) / anneal) if anneal > 0 else 1.0
            choice = _drawn_place(values, count, powers[c] * cold, state)
            _put_back(orders[c], at, L, choice, new)
            put(new, orders[c])
            now[c] = values[choice]
        for c in range(k % 2, C - 1, 2):
            if np.log(1.0 - random_unit(state)) < (powers[c] - powers[c + 1]) * (
                now[c + 1] - now[c]
            ):
                for t in range(T):
                    orders[c, t], orders[c + 1, t] = orders[c + 1, t], orders[c, t]
        if record:
            put(orders[0], kept[done // thin])


@njit(cache=True, nogil=True)
def _best_move(evidence: OrderEvidence, rules: Rules, order: Indices) -> float:
    """The largest log evidence of an order that one move makes of this one."""
    T = len(order)
    values, best = np.empty(2 * T + 2), -np.inf
    for L in range(1, T):
        for at in range(T - L + 1):
            if L > MOVED_SLICES:
                continue
            count = _places(evidence, rules, order, at, L, values)
            values[at] = -np.inf  # where it was
            best = max(best, _largest(values, count))
    Z, d, p = evidence.pairs, len(evidence.scale), evidence.roots.shape[1]
    turned, S, sums = np.empty(T, np.intp), np.empty((d, d + p)), np.empty(Z.shape[2])
    for i in range(T):
        for j in range(i + MOVED_SLICES, T):
            if j - i == T - 1:
                continue
            for k in range(T):
                turned[k] = order[i + j - k if i <= k <= j else k]
            for q in range(len(sums)):
                sums[q] = 0.0
            for k in range(T - 1):
                _add(sums, Z[turned[k], turned[k + 1]])
            value = _value(evidence, turned[0], turned[-1], sums, S) - order_cost(rules, turned)
            best = max(best, value)
    return best


def cheapest_move(evidence: OrderEvidence, prior: Prior | None, order: Indices) -> float:
    """Log evidence that an order loses by the move that costs least: of up to three slices, or a reversal of more.

    An order read from its other end counts as the same.
    """
    ways = order.copy(), order[::-1].copy()
    T = len(order)
    if prior is None and 6 * T**3 * evidence.pairs.shape[-1] <= MAX_TABLE:
        best = max(float(evidence(way[_moves(T)]).max()) for way in ways)
        return float(np.logaddexp(*(evidence(way) for way in ways)) - best)
    rules = rules_of(prior)
    best = max(_best_move(evidence, rules, way) for way in ways)
    values = [evidence(way) - order_cost(rules, way) for way in ways]
    return float(np.logaddexp(*values) - best)


@cache
def _moves(T: int) -> Indices:
    """The orders (m, T) that one move of `_best_move` makes of 0, 1, …"""
    order, found = np.arange(T), []
    for L in range(1, min(MOVED_SLICES, T - 1) + 1):
        for at in range(T - L + 1):
            part, rest = order[at : at + L], np.delete(order, np.s_[at : at + L])
            for place in range(T - L + 1):
                ways = [part] if place != at else []
                ways += [part[::-1]] if L > 1 else []
                found += [np.r_[rest[:place], way, rest[place:]] for way in ways]
    for i in range(T):
        for j in range(i + MOVED_SLICES, T):
            if j - i < T - 1:
                found.append(np.r_[order[:i], order[i : j + 1][::-1], order[j + 1 :]])
    return np.array(found)


def draw_orders(
    evidence: OrderEvidence,
    prior: Prior | None,
    starts: Indices,
    rng: np.random.Generator,
    *,
    records: int,
    stretch: int = 1,
    warm: bool = False,
) -> Drawn:
    """`records` orders of each replica at temperature one, from starts (replicas, temperatures, T).

    The first replica stays at temperature one throughout, the others cool down; `warm`: these are ends of former draws, none cools.
    """
    T = starts.shape[-1]
    thin = max(int(MOVES_PER_RECORD * T * stretch), 2)
    rules, states = rules_of(prior), random_states(rng, len(starts), 1)
    ends = starts.astype(np.intp)
    kept = np.empty((len(starts), records, T), dtype=np.intp)
    for r in range(len(starts)):
        anneal = 0 if warm or r == 0 else ANNEALING * T
        powers = POWERS[: ends.shape[1]]
        _sample(evidence, rules, ends[r], powers, anneal, thin, states[r], kept[r])
    return Drawn(kept, ends)
