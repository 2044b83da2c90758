"""Compiled search over paths, for one cost matrix or for a block of trajectories.

A path over T observations is stored with one more node, T, before the first and after the last: its row
holds the start costs and its column zeros, so that `cost(path) = Σ C[path_k, path_{k+1}]` has no special case
at the ends. The padded matrix exists for one trajectory at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[np.float64]
Path = NDArray[np.intp]
State = NDArray[np.uint64]

EXACT = 9
"""Up to this many observations the best path is found exactly."""

SHORT, LONG = 3, 50
"""Segments that are moved in every sweep, and those tried only when nothing shorter helps."""


@njit(cache=True, nogil=True)
def random_bits(state: State) -> np.uint64:  # pragma: no cover - compiled
    """splitmix64: one state per trajectory, so that no answer depends on threads or blocks."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def random_unit(state: State) -> float:  # pragma: no cover - compiled
    """A number in [0, 1)."""
    return np.float64(random_bits(state) >> np.uint64(11)) * 1.1102230246251565e-16


@njit(cache=True, nogil=True)
def fill_costs(
    target: Array, source: Array, start: Array, costs: Array
) -> None:  # pragma: no cover - compiled
    """`C[a, b] = ½ |target_b − source_a|²` of whitened states and predictions, padded with the start costs."""
    T, d = target.shape
    for a in range(T):
        for b in range(T):
            total = 0.0
            for k in range(d):
                gap = target[b, k] - source[a, k]
                total += gap * gap
            costs[a, b] = 0.5 * total
        costs[a, T] = 0.0
        costs[T, a] = start[a]
    costs[T, T] = 0.0


@njit(cache=True, nogil=True)
def padded_cost(costs: Array, path: Path) -> float:  # pragma: no cover - compiled
    """`Σ C[path_k, path_{k+1}]`, start included."""
    total = 0.0
    for k in range(len(path) - 1):
        total += costs[path[k], path[k + 1]]
    return total


@njit(cache=True, nogil=True)
def reverse(path: Path, i: int, j: int) -> None:  # pragma: no cover - compiled
    """Reverse path[i … j] in place."""
    while i < j:
        path[i], path[j] = path[j], path[i]
        i += 1
        j -= 1


@njit(cache=True, nogil=True)
def exchange(path: Path, i: int, j: int, k: int) -> None:  # pragma: no cover - compiled
    """Exchange the neighbouring segments [i, j) and [j, k) in place."""
    reverse(path, i, j - 1)
    reverse(path, j, k - 1)
    reverse(path, i, k - 1)


@njit(cache=True, nogil=True)
def _reversals(costs: Array, path: Path, tolerance: float) -> bool:  # pragma: no cover - compiled
    """For each i the best reversal path[i … j]: O(1) each by running sums along the path and against it."""
    last = len(path) - 1
    found = False
    for i in range(1, last - 1):
        before, head = path[i - 1], path[i]
        along = 0.0
        against = 0.0
        best, best_j = -tolerance, -1
        for j in range(i + 1, last):
            along += costs[path[j - 1], path[j]]
            against += costs[path[j], path[j - 1]]
            after = path[j + 1]
            change = (
                costs[before, path[j]]
                + against
                + costs[head, after]
                - costs[before, head]
                - along
                - costs[path[j], after]
            )
            if change < best:
                best, best_j = change, j
        if best_j >= 0:
            reverse(path, i, best_j)
            found = True
    return found


@njit(cache=True, nogil=True)
def _insertions(
    costs: Array, path: Path, tolerance: float, shortest: int, longest: int
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
                turned += costs[path[k + 1], path[k]] - costs[path[k], path[k + 1]]
            gain = costs[before, head] + costs[tail, after] - costs[before, after]
            best, best_k, best_flip = -tolerance, -1, False
            for k in range(last):
                if i - 1 <= k < i + length:
                    continue
                left, right = path[k], path[k + 1]
                gap = costs[left, right] + gain
                plain = costs[left, head] + costs[tail, right] - gap
                flipped = costs[left, tail] + costs[head, right] + turned - gap
                if plain < best:
                    best, best_k, best_flip = plain, k, False
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
def improve_path(
    costs: Array, path: Path, tolerance: float, deep: bool
) -> None:  # pragma: no cover - compiled
    """Sweep over all moves in place, taking those that help, until a whole sweep finds none."""
    improved = True
    while improved:
        improved = _reversals(costs, path, tolerance)
        improved = _insertions(costs, path, tolerance, 1, SHORT) or improved
        if deep and not improved:
            longest = min((len(path) - 2) // 2, LONG)
            improved = _insertions(costs, path, tolerance, SHORT + 1, longest)


@njit(cache=True, nogil=True)
def greedy(costs: Array, path: Path) -> None:  # pragma: no cover - compiled
    """Join ever longer edges of the symmetrised cost into one path."""
    T = len(path) - 2
    weight = np.empty(T * (T - 1) // 2)
    code = np.empty(len(weight), np.int64)
    e = 0
    for a in range(T):
        for b in range(a + 1, T):
            weight[e] = costs[a, b] + costs[b, a]
            code[e] = a * T + b
            e += 1
    link = np.full((T, 2), -1, np.int64)
    degree = np.zeros(T, np.int64)
    other_end = np.arange(T)
    joined = 0
    for e in np.argsort(weight):
        a, b = code[e] // T, code[e] % T
        if degree[a] == 2 or degree[b] == 2 or other_end[a] == b:
            continue
        link[a, degree[a]], link[b, degree[b]] = b, a
        degree[a] += 1
        degree[b] += 1
        end_a, end_b = other_end[a], other_end[b]
        other_end[end_a], other_end[end_b] = end_b, end_a
        joined += 1
        if joined == T - 1:
            break
    at = 0
    while degree[at] == 2:
        at += 1
    previous = -1
    for k in range(1, T + 1):
        path[k] = at
        following = -1
        for side in range(degree[at]):
            if link[at, side] != previous:
                following = link[at, side]
        previous, at = at, following


@njit(cache=True, nogil=True)
def _exact(costs: Array, path: Path) -> None:  # pragma: no cover - compiled
    """The best path by dynamic programming over subsets (Held–Karp), O(2ᵀ T²)."""
    T = len(path) - 2
    best = np.full((1 << T, T), np.inf)
    back = np.full((1 << T, T), -1, np.int64)
    for a in range(T):
        best[1 << a, a] = costs[T, a]
    for used in range(1 << T):
        for a in range(T):
            so_far = best[used, a]
            if so_far == np.inf:
                continue
            for b in range(T):
                if used >> b & 1:
                    continue
                total = so_far + costs[a, b]
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
def _kicked(
    costs: Array, path: Path, tolerance: float, kicks: int, state: State
) -> None:  # pragma: no cover - compiled
    """Iterated local search: exchange two random neighbouring segments, repair, keep what helps."""
    T = len(path) - 2
    best = padded_cost(costs, path)
    trial = np.empty_like(path)
    for _ in range(kicks):
        trial[:] = path
        i = 1 + int(random_unit(state) * (T - 1))
        j = i + 1 + int(random_unit(state) * (T - i))
        k = j + 1 + int(random_unit(state) * (T - j + 1))
        exchange(trial, i, j, k)
        improve_path(costs, trial, tolerance, False)
        cost = padded_cost(costs, trial)
        if cost < best - tolerance:
            best = cost
            path[:] = trial


@njit(cache=True, nogil=True)
def improve_block(
    target: Array,
    source: Array,
    start: Array,
    lengths: Path,
    orders: Path,
    states: State,
    cold: bool,
    deep: bool,
    kicks: int,
) -> int:  # pragma: no cover - compiled
    """Improve the order of each trajectory in place; the number that changed. `cold`: start from scratch."""
    n, T, _ = target.shape
    room = np.empty((T + 1, T + 1))
    changed = 0
    for j in range(n):
        t = lengths[j]
        costs = room[: t + 1, : t + 1]
        fill_costs(target[j, :t], source[j, :t], start[j, :t], costs)
        path = np.empty(t + 2, np.intp)
        path[0] = path[t + 1] = t
        path[1 : t + 1] = orders[j, :t]
        if t <= EXACT:
            _exact(costs, path)
        else:
            if cold:
                greedy(costs, path)
            tolerance = 1e-9 * (1.0 + abs(padded_cost(costs, path)))
            improve_path(costs, path, tolerance, deep)
            if kicks > 0:
                _kicked(costs, path, tolerance, kicks, states[j : j + 1])
                improve_path(costs, path, tolerance, deep)
        for k in range(t):
            if orders[j, k] != path[k + 1]:
                changed += 1
                break
        orders[j, :t] = path[1 : t + 1]
    return changed
