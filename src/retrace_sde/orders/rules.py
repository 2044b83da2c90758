"""Compiled arithmetic of what is known of an order: what a move changes, and orders that break no rule.

Paths are padded as in `search`: path[k] stands at position k − 1. A move that would break a rule changes
the cost by ∞. Where nothing is known the rules are None, and no arithmetic of theirs is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from retrace_sde.fit.statespace.irregular.kernels import put
from retrace_sde.io.arrays import Array, Indices, Mask


class Rules(NamedTuple):
    """What is known of one order, (T, T) each, or of a block of orders, (n, T, T); empty: nothing of that kind.

    `costs[a, i]` is the cost of observation a at position i (∞: impossible), `before[a, b]` says that a
    comes before b, transitively closed.
    """

    costs: Array
    before: Mask


@njit(cache=True, nogil=True)
def close(B: Mask) -> None:  # pragma: no cover - compiled
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
def rules_of(rules: Rules, j: int, t: int) -> Rules:  # pragma: no cover - compiled
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
    if isinstance(rules, types.NoneType):
        return lambda rules, j, t: None
    return lambda rules, j, t: rules_of(rules, j, t)


@njit(cache=True, nogil=True)
def broken(B: Mask, path: Indices, i: int, j: int, k: int) -> bool:  # pragma: no cover - compiled
    """Something in path[i … j) must come before something in path[j … k)."""
    if len(B) > 0:
        for p in range(i, j):
            for q in range(j, k):
                if B[path[p], path[q]]:
                    return True
    return False


@njit(cache=True, nogil=True)
def ordered(B: Mask, path: Indices, i: int, j: int) -> bool:  # pragma: no cover - compiled
    """Something in path[i … j) must come before something after it there, which a reversal would break."""
    if len(B) > 0:
        for p in range(i, j):
            for q in range(p + 1, j):
                if B[path[p], path[q]]:
                    return True
    return False


@njit(cache=True, nogil=True)
def crossed(
    B: Mask, path: Indices, i: int, j: int, k: int, q: int
) -> bool:  # pragma: no cover - compiled
    """Swapping the segments [i, j) and [k, q) around [j, k) would break a rule."""
    return broken(B, path, i, j, q) or broken(B, path, j, k, q)


@njit(cache=True, nogil=True)
def shifted(
    U: Array, path: Indices, i: int, j: int, to: int, flip: bool
) -> float:  # pragma: no cover - compiled
    """Change of cost when path[i … j) moves so as to begin at index `to`, turned round if `flip`."""
    change = 0.0
    for p in range(i, j):
        at = to + (j - 1 - p if flip else p - i)
        change += U[path[p], at - 1] - U[path[p], p - 1]
    return change


@njit(cache=True, nogil=True)
def reversal_change(
    rules: Rules | None, path: Indices, i: int, j: int
) -> float:  # pragma: no cover - compiled
    """Of reversing path[i … j]."""
    if rules is None:
        return 0.0
    U, B = rules.costs, rules.before
    change = shifted(U, path, i, j + 1, i, True) if len(U) > 0 else 0.0
    if len(B) > 0 and change < np.inf and ordered(B, path, i, j + 1):
        return np.inf
    return change


@njit(cache=True, nogil=True)
def exchange_change(
    rules: Rules | None, path: Indices, i: int, j: int, k: int, flip_one: bool, flip_two: bool
) -> float:  # pragma: no cover - compiled
    """Of exchanging the neighbouring segments [i, j) and [j, k), either turned round on the way."""
    if rules is None:
        return 0.0
    U, B = rules.costs, rules.before
    change = 0.0
    if len(U) > 0:
        change += shifted(U, path, i, j, i + k - j, flip_one)
        change += shifted(U, path, j, k, i, flip_two)
    if len(B) > 0 and change < np.inf:
        if broken(B, path, i, j, k):
            return np.inf
        if (flip_one and ordered(B, path, i, j)) or (flip_two and ordered(B, path, j, k)):
            return np.inf
    return change


@njit(cache=True, nogil=True)
def swap_change(
    rules: Rules | None, path: Indices, i: int, j: int, k: int, q: int
) -> float:  # pragma: no cover - compiled
    """Of swapping the segments [i, j) and [k, q) around [j, k)."""
    if rules is None:
        return 0.0
    U, B, change = rules.costs, rules.before, 0.0
    if len(U) > 0:
        change += shifted(U, path, i, j, i + q - j, False)
        change += shifted(U, path, j, k, i + q - k, False)
        change += shifted(U, path, k, q, i, False)
    if len(B) > 0 and change < np.inf and crossed(B, path, i, j, k, q):
        return np.inf
    return change


@njit(cache=True, nogil=True)
def misplaced(
    rules: Rules | None, order: Indices, q: int, r: int
) -> int:  # pragma: no cover - compiled
    """Impossible places in an order after exchanging positions q and r, less those before."""
    if rules is None or len(rules.costs) == 0:
        return 0
    U, a, b = rules.costs, order[q], order[r]
    after = int(U[b, q] == np.inf) + int(U[a, r] == np.inf)
    return after - int(U[a, q] == np.inf) - int(U[b, r] == np.inf)


@njit(cache=True, nogil=True)
def windows(rules: Rules, T: int) -> Indices:  # pragma: no cover - compiled
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
        found[a] = low, high
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
def _fits(found: Indices, used: Mask, at: int) -> int:  # pragma: no cover - compiled
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
def dead_end(rules: Rules, T: int) -> int:  # pragma: no cover - compiled
    """The first position that no order can fill, or −1 where some order obeys every rule."""
    return _fits(windows(rules, T), np.zeros(T, np.bool_), 0)


@njit(cache=True, nogil=True)
def obedient(rules: Rules, order: Indices) -> Indices:  # pragma: no cover - compiled
    """An order that obeys every rule and follows the given one as far as it can, position by position."""
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
def obedient_block(
    rules: Rules, lengths: Indices, orders: Indices
) -> None:  # pragma: no cover - compiled
    """`obedient` for each trajectory of a block, in place, where its order breaks a rule."""
    for j in range(len(orders)):
        t = lengths[j]
        known = rules_of(rules, j, t)
        if not np.isfinite(order_cost(known, orders[j, :t])):
            put(obedient(known, orders[j, :t].copy()), orders[j])


@njit(cache=True, nogil=True)
def order_cost(rules: Rules | None, order: Indices) -> float:  # pragma: no cover - compiled
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
def block_costs(
    rules: Rules, lengths: Indices, orders: Indices
) -> Array:  # pragma: no cover - compiled
    """`order_cost` of each trajectory of a block."""
    costs = np.empty(len(orders))
    for j in range(len(orders)):
        costs[j] = order_cost(rules_of(rules, j, lengths[j]), orders[j, : lengths[j]])
    return costs


@njit(cache=True, nogil=True)
def _expected_order(U: Array) -> Indices:  # pragma: no cover - compiled
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
    return np.argsort(key, kind="mergesort")


@njit(cache=True, nogil=True)
def cold_starts(rules: Rules, order: Indices) -> Indices:  # pragma: no cover - compiled
    """Obedient starts (k, T): a path, its reverse, and what the prior expects, each mended where it must be."""
    U = rules.costs
    starts = np.empty((3 if len(U) > 0 else 2, len(order)), np.intp)
    put(obedient(rules, order), starts[0])
    put(obedient(rules, order[::-1].copy()), starts[1])
    if len(U) > 0:
        put(obedient(rules, _expected_order(U)), starts[2])
    return starts
