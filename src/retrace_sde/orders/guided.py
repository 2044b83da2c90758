"""Compiled search over paths that obeys what is known of their order: `kernels` with a prior.

The cost of a path is that of its steps plus `Σ_i U[path_i, i]`; moves that would break a precedence are not
made (see `constraints` for U and B). A path that obeys every rule goes in, and one comes out.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from retrace_sde.orders.rules import (
    Array,
    Bool,
    Path,
    exchange_change,
    obedient,
    order_cost,
    ordered,
    reversal_change,
    swap_change,
)
from retrace_sde.orders.search import (
    EXACT,
    LONG,
    SHORT,
    State,
    exchange,
    fill_costs,
    greedy,
    padded_cost,
    random_unit,
    reverse,
)

TRIES = 10
"""Random moves drawn for each kick until one breaks no rule."""


@njit(cache=True, nogil=True)
def guided_cost(C: Array, U: Array, B: Bool, path: Path) -> float:  # pragma: no cover - compiled
    """Steps, start and prior together; ∞ where a rule is broken."""
    return padded_cost(C, path) + order_cost(U, B, path[1:-1])


@njit(cache=True, nogil=True)
def _reversals(
    C: Array, U: Array, B: Bool, path: Path, tolerance: float
) -> bool:  # pragma: no cover - compiled
    """For each i the best reversal path[i … j] that breaks no rule."""
    last = len(path) - 1
    found = False
    none = B[:0]
    for i in range(1, last - 1):
        before, head = path[i - 1], path[i]
        along, against = 0.0, 0.0
        best, best_j = -tolerance, -1
        for j in range(i + 1, last):
            along += C[path[j - 1], path[j]]
            against += C[path[j], path[j - 1]]
            after = path[j + 1]
            change = C[before, path[j]] + against + C[head, after]
            change -= C[before, head] + along + C[path[j], after]
            if len(U) > 0:
                change += reversal_change(U, none, path, i, j)
            if change < best:
                if len(B) > 0 and ordered(B, path, i, j + 1):
                    break  # and so would be every longer one
                best, best_j = change, j
        if best_j >= 0:
            reverse(path, i, best_j)
            found = True
    return found


@njit(cache=True, nogil=True)
def _moved_change(
    U: Array, B: Bool, path: Path, i: int, length: int, k: int, flip: bool
) -> float:  # pragma: no cover - compiled
    """Change of the prior when path[i … i + length) goes between k and k + 1."""
    if k < i:
        return exchange_change(U, B, path, k + 1, i, i + length, False, flip)
    return exchange_change(U, B, path, i, i + length, k + 1, flip, False)


@njit(cache=True, nogil=True)
def _insertions(
    C: Array, U: Array, B: Bool, path: Path, tolerance: float, shortest: int, longest: int
) -> bool:  # pragma: no cover - compiled
    """Move each segment of shortest … longest nodes, either way round, to where it costs least."""
    last = len(path) - 1
    found = False
    for length in range(shortest, min(longest, last - 2) + 1):
        for i in range(1, last - length + 1):
            head, tail = path[i], path[i + length - 1]
            before, after = path[i - 1], path[i + length]
            turned = 0.0
            for k in range(i, i + length - 1):
                turned += C[path[k + 1], path[k]] - C[path[k], path[k + 1]]
            gain = C[before, head] + C[tail, after] - C[before, after]
            best, best_k, best_flip = -tolerance, -1, False
            for k in range(last):
                if i - 1 <= k < i + length:
                    continue
                left, right = path[k], path[k + 1]
                gap = C[left, right] + gain
                plain = C[left, head] + C[tail, right] - gap
                if len(U) > 0 or plain < best:
                    plain += _moved_change(U, B, path, i, length, k, False)
                if plain < best:
                    best, best_k, best_flip = plain, k, False
                if length == 1:
                    continue
                flipped = C[left, tail] + C[head, right] + turned - gap
                if len(U) > 0 or flipped < best:
                    flipped += _moved_change(U, B, path, i, length, k, True)
                if flipped < best:
                    best, best_k, best_flip = flipped, k, True
            if best_k >= 0:
                if best_flip:
                    reverse(path, i, i + length - 1)
                if best_k < i:
                    exchange(path, best_k + 1, i, i + length)
                else:
                    exchange(path, i, i + length, best_k + 1)
                found = True
    return found


@njit(cache=True, nogil=True)
def _swap_steps(C: Array, path: Path, p: int, q: int) -> float:  # pragma: no cover - compiled
    """Change of the steps' cost when path[p] and path[q], not neighbours, change places."""
    a, b = path[p], path[q]
    change = C[path[p - 1], b] + C[b, path[p + 1]] + C[path[q - 1], a] + C[a, path[q + 1]]
    return change - (C[path[p - 1], a] + C[a, path[p + 1]] + C[path[q - 1], b] + C[b, path[q + 1]])


@njit(cache=True, nogil=True)
def _swaps(
    C: Array, U: Array, B: Bool, path: Path, tolerance: float
) -> bool:  # pragma: no cover - compiled
    """Two nodes change places: what no insertion can do across a known position."""
    last = len(path) - 1
    found = False
    for p in range(1, last - 2):
        best, best_q = -tolerance, -1
        for q in range(p + 2, last):
            change = _swap_steps(C, path, p, q)
            if len(U) > 0:
                a, b = path[p], path[q]
                change += U[a, q - 1] + U[b, p - 1] - U[a, p - 1] - U[b, q - 1]
            if change < best and (
                len(B) == 0 or swap_change(U[:0], B, path, p, p + 1, q, q + 1) < np.inf
            ):
                best, best_q = change, q
        if best_q >= 0:
            path[p], path[best_q] = path[best_q], path[p]
            found = True
    return found


@njit(cache=True, nogil=True)
def improve_guided(
    C: Array, U: Array, B: Bool, path: Path, tolerance: float, deep: bool
) -> None:  # pragma: no cover - compiled
    """Sweep over all moves in place, taking those that help and break no rule, until none does."""
    improved = True
    while improved:
        improved = _reversals(C, U, B, path, tolerance)
        improved = _insertions(C, U, B, path, tolerance, 1, SHORT) or improved
        improved = _swaps(C, U, B, path, tolerance) or improved
        if deep and not improved:
            longest = min((len(path) - 2) // 2, LONG)
            improved = _insertions(C, U, B, path, tolerance, SHORT + 1, longest)


@njit(cache=True, nogil=True)
def exact_guided(C: Array, U: Array, B: Bool, path: Path) -> None:  # pragma: no cover - compiled
    """The best path that obeys every rule, by dynamic programming over subsets (Held–Karp)."""
    T = len(path) - 2
    past = np.zeros(T, np.int64)
    for a in range(T):
        for b in range(T):
            if len(B) > 0 and B[b, a]:
                past[a] |= 1 << b
    best = np.full((1 << T, T), np.inf)
    back = np.full((1 << T, T), -1, np.int64)
    for a in range(T):
        if past[a] == 0:
            best[1 << a, a] = C[T, a] + (U[a, 0] if len(U) > 0 else 0.0)
    for used in range(1 << T):
        size = 0
        for a in range(T):
            size += used >> a & 1
        for a in range(T):
            so_far = best[used, a]
            if so_far == np.inf:
                continue
            for b in range(T):
                if used >> b & 1 or past[b] & ~used:
                    continue
                total = so_far + C[a, b] + (U[b, size] if len(U) > 0 else 0.0)
                if total < best[used | 1 << b, b]:
                    best[used | 1 << b, b] = total
                    back[used | 1 << b, b] = a
    used = (1 << T) - 1
    at = int(np.argmin(best[used]))
    for k in range(T, 0, -1):
        path[k] = at
        previous = back[used, at]
        used ^= 1 << at
        at = previous


@njit(cache=True, nogil=True)
def _kick(U: Array, B: Bool, path: Path, state: State) -> bool:  # pragma: no cover - compiled
    """A random exchange of neighbouring segments, or swap of two nodes, that breaks no rule."""
    T = len(path) - 2
    for _ in range(TRIES):
        i = 1 + int(random_unit(state) * (T - 1))
        j = i + 1 + int(random_unit(state) * (T - i))
        k = j + 1 + int(random_unit(state) * (T - j + 1))
        if random_unit(state) < 0.5:
            if exchange_change(U, B, path, i, j, k, False, False) < np.inf:
                exchange(path, i, j, k)
                return True
        elif j >= i + 2 and swap_change(U, B, path, i, i + 1, j, j + 1) < np.inf:
            path[i], path[j] = path[j], path[i]
            return True
    return False


@njit(cache=True, nogil=True)
def _kicked(
    C: Array, U: Array, B: Bool, path: Path, tolerance: float, kicks: int, state: State
) -> None:  # pragma: no cover - compiled
    """Iterated local search: a random move, repair, keep what helps."""
    best = guided_cost(C, U, B, path)
    trial = np.empty_like(path)
    for _ in range(kicks):
        trial[:] = path
        if not _kick(U, B, trial, state):
            continue
        improve_guided(C, U, B, trial, tolerance, False)
        cost = guided_cost(C, U, B, trial)
        if cost < best - tolerance:
            best = cost
            path[:] = trial


@njit(cache=True, nogil=True)
def _expected_order(U: Array) -> Path:  # pragma: no cover - compiled
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
def cold_starts(U: Array, B: Bool, order: Path) -> Path:  # pragma: no cover - compiled
    """Obedient starts (k, T): a path, its reverse, and what the prior expects, each mended where it must be."""
    starts = np.empty((3 if len(U) > 0 else 2, len(order)), np.intp)
    starts[0] = obedient(U, B, order)
    starts[1] = obedient(U, B, order[::-1].copy())
    if len(U) > 0:
        starts[2] = obedient(U, B, _expected_order(U))
    return starts


@njit(cache=True, nogil=True)
def _cold(
    C: Array, U: Array, B: Bool, path: Path, deep: bool
) -> None:  # pragma: no cover - compiled
    """From scratch: the best of all starts, each improved."""
    greedy(C, path)
    trial, low = path.copy(), np.inf
    for each in cold_starts(U, B, path[1:-1].copy()):
        trial[1:-1] = each
        tolerance = 1e-9 * (1.0 + abs(guided_cost(C, U, B, trial)))
        improve_guided(C, U, B, trial, tolerance, deep)
        cost = guided_cost(C, U, B, trial)
        if cost < low:
            low = cost
            path[:] = trial


@njit(cache=True, nogil=True)
def improve_guided_block(
    target: Array,
    source: Array,
    start: Array,
    U: Array,
    B: Bool,
    lengths: Path,
    orders: Path,
    states: State,
    cold: bool,
    deep: bool,
    kicks: int,
) -> int:  # pragma: no cover - compiled
    """Improve each trajectory's order, which must break no rule unless `cold`; the number that changed."""
    n, T, _ = target.shape
    room = np.empty((T + 1, T + 1))
    changed = 0
    for j in range(n):
        t = lengths[j]
        C = room[: t + 1, : t + 1]
        fill_costs(target[j, :t], source[j, :t], start[j, :t], C)
        u = np.ascontiguousarray(U[j, :t, :t]) if len(U) > 0 else np.empty((0, 0))
        b = np.ascontiguousarray(B[j, :t, :t]) if len(B) > 0 else np.empty((0, 0), np.bool_)
        path = np.empty(t + 2, np.intp)
        path[0] = path[t + 1] = t
        path[1 : t + 1] = orders[j, :t]
        if t <= EXACT:
            exact_guided(C, u, b, path)
        else:
            if cold:
                _cold(C, u, b, path, deep)
            tolerance = 1e-9 * (1.0 + abs(guided_cost(C, u, b, path)))
            improve_guided(C, u, b, path, tolerance, deep)
            if kicks > 0:
                _kicked(C, u, b, path, tolerance, kicks, states[j : j + 1])
                improve_guided(C, u, b, path, tolerance, deep)
        for k in range(t):
            if orders[j, k] != path[k + 1]:
                changed += 1
                break
        orders[j, :t] = path[1 : t + 1]
    return changed
