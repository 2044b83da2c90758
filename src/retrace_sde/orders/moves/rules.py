"""Compiled arithmetic of what is known of an order: what a move changes, and orders that break no rule.

A move that would break a rule changes the cost by ∞. Where nothing is known the rules are None, and no arithmetic of
theirs is compiled; but for filters, which take long to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.kernels import njit, overload
from retrace_sde.orders.moves.moves import FIRST, SECOND, Move


class Rules(NamedTuple):
    """What is known of one order, (T, T) each, or of a block of orders, (n, T, T); empty: nothing of that kind.

    `costs[a, i]` is the cost of observation a at position i (∞: impossible), `before[a, b]` says that a
    comes before b, transitively closed.
    """

    costs: Array
    before: Mask


NOTHING_KNOWN = Rules(np.empty((0, 0)), np.empty((0, 0), dtype=bool))
"""For filters, beside whose arithmetic these checks are nothing: they are compiled for `Rules` alone."""


@njit(cache=True, nogil=True)
def close(B: Mask) -> None:
    """Transitive closure of each (T, T) relation of a stack, in place (Warshall)."""
    n, T, _ = B.shape
    for j in range(n):
        for k in range(T):
            for a in range(T):
                if B[j, a, k]:
                    for b in range(T):
                        if B[j, k, b]:
                            B[j, a, b] = True


@njit(cache=True, nogil=True)
def rules_of(rules: Rules, j: int, t: int) -> Rules:
    """Those of trajectory j of a block, which has t observations."""
    U, B = rules.costs, rules.before
    return Rules(
        np.ascontiguousarray(U[j, :t, :t]) if len(U) > 0 else np.empty((0, 0)),
        np.ascontiguousarray(B[j, :t, :t]) if len(B) > 0 else np.empty((0, 0), np.bool_),
    )


def known_of(rules: Rules | None, j: int, t: int) -> Rules | None:
    """`rules_of` where something is known."""
    return None if rules is None else rules_of(rules, j, t)


@overload(known_of, strict=False)  # not strict: annotations count as differences
def _known_of(rules: Any, j: Any, t: Any) -> Callable[[Any, Any, Any], Any]:
    """By the type: either branch of an `if` would make the result optional, and every later use slower."""
    from numba import types

    if isinstance(rules, types.NoneType):
        return lambda rules, j, t: None
    return lambda rules, j, t: rules_of(rules, j, t)


@njit(cache=True, nogil=True)
def broken(B: Mask, order: Indices, i: int, j: int, k: int) -> bool:
    """Something in order[i … j) must come before something in order[j … k)."""
    if len(B) > 0:
        for p in range(i, j):
            for q in range(j, k):
                if B[order[p], order[q]]:
                    return True
    return False


@njit(cache=True, nogil=True)
def ordered(B: Mask, order: Indices, i: int, j: int) -> bool:
    """Something in order[i … j) must come before something after it there, which a reversal would break."""
    if len(B) > 0:
        for p in range(i, j):
            for q in range(p + 1, j):
                if B[order[p], order[q]]:
                    return True
    return False


@njit(cache=True, nogil=True)
def crossed(B: Mask, order: Indices, i: int, j: int, k: int, q: int) -> bool:
    """Swapping the segments [i, j) and [k, q) around [j, k) would break a rule."""
    return broken(B, order, i, j, q) or broken(B, order, j, k, q)


@njit(cache=True, nogil=True)
def shifted(U: Array, order: Indices, i: int, j: int, to: int, backwards: bool) -> float:
    """Change of cost when [i, j) moves so as to begin at position `to`, reversed if `backwards`."""
    change = 0.0
    for p in range(i, j):
        at = to + (j - 1 - p if backwards else p - i)
        change += U[order[p], at] - U[order[p], p]
    return change


@njit(cache=True, nogil=True)
def rule_change(rules: Rules | None, order: Indices, move: Move) -> float:
    """Change of what is known by a move; ∞ where it would break a rule."""
    if rules is None:
        return 0.0
    U, B, change = rules.costs, rules.before, 0.0
    i, j, k, q, backwards = move
    if len(U) > 0:
        change += shifted(U, order, i, j, i + q - j, backwards == FIRST)
        change += shifted(U, order, j, k, i + q - k, False)
        change += shifted(U, order, k, q, i, backwards == SECOND)
    if len(B) > 0 and change < np.inf:
        if crossed(B, order, i, j, k, q):
            return np.inf
        if backwards == FIRST and ordered(B, order, i, j):
            return np.inf
        if backwards == SECOND and ordered(B, order, k, q):
            return np.inf
    return change


@njit(cache=True, nogil=True)
def transposed(rules: Rules, order: Indices, p: int, q: int) -> tuple[float, int]:
    """Change of finite costs, and of the number of impossible places, when p and q change places."""
    U, a, b = rules.costs, order[p], order[q]
    if len(U) == 0:
        return 0.0, 0
    change, impossible = 0.0, 0
    for value, sign in ((U[b, p], 1), (U[a, q], 1), (U[a, p], -1), (U[b, q], -1)):
        if value == np.inf:
            impossible += sign
        else:
            change += sign * value
    return change, impossible


@njit(cache=True, nogil=True)
def windows(rules: Rules, T: int) -> Indices:
    """First and last position open to each of T observations, (T, 2), drawn in until every precedence fits."""
    U, B = rules.costs, rules.before
    found = np.empty((T, 2), np.intp)
    for a in range(T):
        low, high = 0, T - 1
        if len(U) > 0:
            while low < T and not np.isfinite(U[a, low]):
                low += 1
            while high >= 0 and not np.isfinite(U[a, high]):
                high -= 1
        found[a, 0], found[a, 1] = low, high
    if len(B) == 0:
        return found
    moved = True
    while moved:
        moved = False
        for a in range(T):
            for b in range(T):
                if B[a, b] and found[b, 0] <= found[a, 0] < T:
                    found[b, 0] = found[a, 0] + 1
                    moved = True
                if B[a, b] and found[a, 1] >= found[b, 1] >= 0:
                    found[a, 1] = found[b, 1] - 1
                    moved = True
    return found


@njit(cache=True, nogil=True)
def _fits(found: Indices, used: Mask, at: int) -> int:
    """Fill the positions from `at` on, earliest deadline first; the first position that stays empty, or −1.

    One machine, unit tasks, windows that agree with the precedences: earliest deadline first fails only
    where nothing can succeed.
    """
    T = len(used)
    left = used.copy()
    for i in range(at, T):
        best, deadline = -1, T
        for a in range(T):
            if not left[a] and found[a, 0] <= i and found[a, 1] < deadline:
                best, deadline = a, found[a, 1]
        if best < 0 or deadline < i:
            return i
        left[best] = True
    return -1


@njit(cache=True, nogil=True)
def dead_end(rules: Rules, T: int) -> int:
    """The first position that no order can fill, or −1 where some order satisfies every rule."""
    return _fits(windows(rules, T), np.zeros(T, np.bool_), 0)


@njit(cache=True, nogil=True)
def obedient(rules: Rules, order: Indices) -> Indices:
    """An order that satisfies every rule and follows the given one as far as it can, position by position."""
    T = len(order)
    U, B = rules.costs, rules.before
    found = windows(rules, T)
    used = np.zeros(T, np.bool_)
    result = np.empty(T, np.intp)
    for i in range(T):
        taken = -1
        for a in order:
            if used[a] or found[a, 0] > i or found[a, 1] < i:
                continue
            free = len(U) == 0 or np.isfinite(U[a, i])
            if len(B) > 0:
                for b in range(T):
                    if B[b, a] and not used[b]:
                        free = False
                        break
            if not free:
                continue
            used[a] = True
            if _fits(found, used, i + 1) < 0:
                taken = a
                break
            used[a] = False
        if taken < 0:  # cannot be, once `dead_end` has found none
            return order
        result[i] = taken
    return result


@njit(cache=True, nogil=True)
def obedient_block(rules: Rules, lengths: Indices, orders: Indices) -> None:
    """`obedient` for each trajectory of a block, in place, where its order breaks a rule."""
    for j in range(len(orders)):
        t = lengths[j]
        known = rules_of(rules, j, t)
        if not np.isfinite(order_cost(known, orders[j, :t])):
            put(obedient(known, orders[j, :t].copy()), orders[j])


@njit(cache=True, nogil=True)
def order_cost(rules: Rules | None, order: Indices) -> float:
    """`Σ_i U[o_i, i]`, ∞ where an observation comes after one that it must precede."""
    if rules is None:
        return 0.0
    U, B = rules.costs, rules.before
    total = 0.0
    if len(U) > 0:
        for i in range(len(order)):
            total += U[order[i], i]
    if len(B) > 0:
        for i in range(len(order)):
            for k in range(i):
                if B[order[i], order[k]]:
                    return np.inf
    return total


@njit(cache=True, nogil=True)
def block_costs(rules: Rules, lengths: Indices, orders: Indices) -> Array:
    """`order_cost` of each trajectory of a block."""
    costs = np.empty(len(orders))
    for j in range(len(orders)):
        costs[j] = order_cost(rules_of(rules, j, lengths[j]), orders[j, : lengths[j]])
    return costs


@njit(cache=True, nogil=True)
def _expected_order(U: Array) -> Indices:
    """Observations by the position that the prior alone expects of each."""
    T = len(U)
    key = np.empty(T)
    for a in range(T):
        low = np.min(U[a])
        weight, total = 0.0, 0.0
        for i in range(T):
            w = np.exp(low - U[a, i])
            weight += w
            total += w * i
        key[a] = total / weight
    order = np.arange(T)
    for a in range(1, T):  # by insertion: numba compiles its stable sort for 6 s
        i = a
        while i > 0 and key[order[i - 1]] > key[a]:
            order[i] = order[i - 1]
            i -= 1
        order[i] = a
    return order


@njit(cache=True, nogil=True)
def cold_starts(rules: Rules, order: Indices) -> Indices:
    """Obedient starts (k, T): a path, its reverse, and what the prior expects, each mended where it must be."""
    U = rules.costs
    starts = np.empty((3 if len(U) > 0 else 2, len(order)), np.intp)
    put(obedient(rules, order), starts[0])
    put(obedient(rules, order[::-1].copy()), starts[1])
    if len(U) > 0:
        put(obedient(rules, _expected_order(U)), starts[2])
    return starts
