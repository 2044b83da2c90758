"""Compiled arithmetic of what is known of an order: what a move changes, and orders that break no rule.

`U[a, i]` is the cost of observation a at position i (∞: impossible), `B[a, b]` says that a comes before b,
transitively closed. Either may be empty: nothing known. Paths are padded as in `kernels`: path[k] stands at
position k − 1. A move that would break a rule changes the cost by ∞.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Bool = NDArray[np.bool_]
Path = NDArray[np.intp]


@njit(cache=True, nogil=True)
def close(B: Bool) -> None:  # pragma: no cover - compiled
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
def broken(B: Bool, path: Path, i: int, j: int, k: int) -> bool:  # pragma: no cover - compiled
    """Something in path[i … j) must come before something in path[j … k)."""
    for p in range(i, j):
        for q in range(j, k):
            if B[path[p], path[q]]:
                return True
    return False


@njit(cache=True, nogil=True)
def ordered(B: Bool, path: Path, i: int, j: int) -> bool:  # pragma: no cover - compiled
    """Something in path[i … j) must come before something after it there, which a reversal would break."""
    for p in range(i, j):
        for q in range(p + 1, j):
            if B[path[p], path[q]]:
                return True
    return False


@njit(cache=True, nogil=True)
def _shifted(
    U: Array, path: Path, i: int, j: int, to: int, flip: bool
) -> float:  # pragma: no cover - compiled
    """Change of cost when path[i … j) moves so as to begin at index `to`, turned round if `flip`."""
    change = 0.0
    for p in range(i, j):
        at = to + (j - 1 - p if flip else p - i)
        change += U[path[p], at - 1] - U[path[p], p - 1]
    return change


@njit(cache=True, nogil=True)
def reversal_change(
    U: Array, B: Bool, path: Path, i: int, j: int
) -> float:  # pragma: no cover - compiled
    """Of reversing path[i … j]."""
    change = _shifted(U, path, i, j + 1, i, True) if len(U) > 0 else 0.0
    if len(B) > 0 and change < np.inf and ordered(B, path, i, j + 1):
        return np.inf
    return change


@njit(cache=True, nogil=True)
def exchange_change(
    U: Array, B: Bool, path: Path, i: int, j: int, k: int, flip_one: bool, flip_two: bool
) -> float:  # pragma: no cover - compiled
    """Of exchanging the neighbouring segments [i, j) and [j, k), either turned round on the way."""
    change = 0.0
    if len(U) > 0:
        change += _shifted(U, path, i, j, i + k - j, flip_one)
        change += _shifted(U, path, j, k, i, flip_two)
    if len(B) > 0 and change < np.inf:
        if broken(B, path, i, j, k):
            return np.inf
        if (flip_one and ordered(B, path, i, j)) or (flip_two and ordered(B, path, j, k)):
            return np.inf
    return change


@njit(cache=True, nogil=True)
def swap_change(
    U: Array, B: Bool, path: Path, i: int, j: int, k: int, q: int
) -> float:  # pragma: no cover - compiled
    """Of swapping the segments [i, j) and [k, q) around [j, k)."""
    change = 0.0
    if len(U) > 0:
        change += _shifted(U, path, i, j, i + q - j, False)
        change += _shifted(U, path, j, k, i + q - k, False)
        change += _shifted(U, path, k, q, i, False)
    if len(B) > 0 and change < np.inf and (broken(B, path, i, j, q) or broken(B, path, j, k, q)):
        return np.inf
    return change


@njit(cache=True, nogil=True)
def windows(U: Array, B: Bool, T: int) -> Path:  # pragma: no cover - compiled
    """First and last position open to each of T observations, (T, 2), drawn in until every precedence fits."""
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
def _fits(found: Path, used: Bool, at: int) -> int:  # pragma: no cover - compiled
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
def dead_end(U: Array, B: Bool, T: int) -> int:  # pragma: no cover - compiled
    """The first position that no order can fill, or −1 where some order obeys every rule."""
    return _fits(windows(U, B, T), np.zeros(T, np.bool_), 0)


@njit(cache=True, nogil=True)
def obedient(U: Array, B: Bool, order: Path) -> Path:  # pragma: no cover - compiled
    """An order that obeys every rule and follows the given one as far as it can, position by position."""
    T = len(order)
    found = windows(U, B, T)
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
    U: Array, B: Bool, lengths: Path, orders: Path
) -> None:  # pragma: no cover - compiled
    """`obedient` for each trajectory of a block, in place, where its order breaks a rule."""
    for j in range(len(orders)):
        t = lengths[j]
        u = U[j, :t, :t] if len(U) > 0 else np.empty((0, 0))
        b = B[j, :t, :t] if len(B) > 0 else np.empty((0, 0), np.bool_)
        if not np.isfinite(order_cost(u, b, orders[j, :t])):
            orders[j, :t] = obedient(u, b, orders[j, :t].copy())


@njit(cache=True, nogil=True)
def order_cost(U: Array, B: Bool, order: Path) -> float:  # pragma: no cover - compiled
    """`Σ_i U[o_i, i]`, ∞ where an observation comes after one that it must precede."""
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
