"""Compiled search over paths, for one cost matrix or for a block of trajectories.

A path over T observations is stored with one more node, T, before the first and after the last: its row
holds the start costs and its column zeros, so that `cost(path) = Σ C[path_k, path_{k+1}]` has no special case
at the ends. The padded matrix exists for one trajectory at a time.

Where something is known of the order (`rules`) the cost has `Σ_i U[path_i, i]` added, and moves that would break a
precedence are not made: a path that obeys every rule goes in, and one comes out. Where the rules are None,
all that concerns them is left out by the compiler.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.fit.statespace.irregular.kernels import put, put_rows
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.rules import (
    Rules,
    cold_starts,
    crossed,
    exchange_change,
    known_of,
    order_cost,
    ordered,
    shifted,
    swap_change,
)

EXACT = 9
"""Up to this many observations the best path is found exactly."""

SHORT, LONG = 3, 50
"""Segments that are moved in every sweep, and those tried only when nothing shorter helps."""

TRIES = 10
"""Random moves drawn for each kick until one breaks no rule."""


class Steps(NamedTuple):
    """What the steps of a block are judged by: states and predictions of the next, (n, T, d) and whitened, and
    start costs (n, T); or the costs of its pairs themselves, (n, T, T), where they are of another form."""

    target: Array
    source: Array
    start: Array
    pairs: Array = np.empty((0, 0, 0))


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
def trajectory_costs(
    steps: Steps, j: int, t: int, room: Array
) -> Array:  # pragma: no cover - compiled
    """Padded costs of trajectory j, which has t observations, in a corner of `room`."""
    costs = room[: t + 1, : t + 1]
    fill_costs(steps.target[j, :t], steps.source[j, :t], steps.start[j, :t], costs)
    if len(steps.pairs) > 0:
        put_rows(steps.pairs[j, :t, :t], costs)
    return costs


def padded_costs(costs: Array, start: Array) -> Array:
    """Costs (T, T) and start costs as one matrix, laid out as those of a block, for which searches are compiled."""
    T = len(start)
    padded = np.zeros((T + 2, T + 2))[: T + 1, : T + 1]
    padded[:T, :T], padded[T, :T] = costs, start
    return padded


@njit(cache=True, nogil=True)
def padded_path(order: Indices) -> Indices:  # pragma: no cover - compiled
    """The order with the node T at both ends."""
    T = len(order)
    path = np.empty(T + 2, np.intp)
    path[0] = path[T + 1] = T
    put(order, path[1:])
    return path


@njit(cache=True, nogil=True)
def padded_cost(
    costs: Array, rules: Rules | None, path: Indices
) -> float:  # pragma: no cover - compiled
    """`Σ C[path_k, path_{k+1}]`, start included, and what is known; ∞ where a rule is broken."""
    total = 0.0
    for k in range(len(path) - 1):
        total += costs[path[k], path[k + 1]]
    if rules is None:
        return total
    return total + order_cost(rules, path[1:-1])


@njit(cache=True, nogil=True)
def reverse(path: Indices, i: int, j: int) -> None:  # pragma: no cover - compiled
    """Reverse path[i … j] in place."""
    while i < j:
        path[i], path[j] = path[j], path[i]
        i += 1
        j -= 1


@njit(cache=True, nogil=True)
def exchange(path: Indices, i: int, j: int, k: int) -> None:  # pragma: no cover - compiled
    """Exchange the neighbouring segments [i, j) and [j, k) in place."""
    reverse(path, i, j - 1)
    reverse(path, j, k - 1)
    reverse(path, i, k - 1)


@njit(cache=True, nogil=True)
def place_of(order: Indices, a: int) -> int:  # pragma: no cover - compiled
    """The position at which an observation stands."""
    p = 0
    while order[p] != a:
        p += 1
    return p


@njit(cache=True, nogil=True)
def _reversals(
    costs: Array, rules: Rules | None, path: Indices, tolerance: float
) -> bool:  # pragma: no cover - compiled
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
            if rules is not None and len(rules.costs) > 0:
                change += shifted(rules.costs, path, i, j + 1, i, True)
            if change < best:
                if rules is not None and ordered(rules.before, path, i, j + 1):
                    break  # and so would be every longer one
                best, best_j = change, j
        if best_j >= 0:
            reverse(path, i, best_j)
            found = True
    return found


@njit(cache=True, nogil=True)
def _insertion_change(
    rules: Rules, path: Indices, i: int, length: int, k: int, flip: bool
) -> float:  # pragma: no cover - compiled
    """Change of what is known when path[i … i + length) goes between k and k + 1."""
    if k < i:
        return exchange_change(rules, path, k + 1, i, i + length, False, flip)
    return exchange_change(rules, path, i, i + length, k + 1, flip, False)


@njit(cache=True, nogil=True)
def _insertions(
    costs: Array, rules: Rules | None, path: Indices, tolerance: float, shortest: int, longest: int
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
                if rules is not None and (len(rules.costs) > 0 or plain < best):
                    plain += _insertion_change(rules, path, i, length, k, False)
                if plain < best:
                    best, best_k, best_flip = plain, k, False
                if rules is not None and length == 1:
                    continue  # alike both ways round, and rules are dear
                flipped = costs[left, tail] + costs[head, right] + turned - gap
                if rules is not None and (len(rules.costs) > 0 or flipped < best):
                    flipped += _insertion_change(rules, path, i, length, k, True)
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
def _swap_steps(
    costs: Array, path: Indices, p: int, q: int
) -> float:  # pragma: no cover - compiled
    """Change of the steps' cost when path[p] and path[q], not neighbours, change places."""
    C, a, b = costs, path[p], path[q]
    change = C[path[p - 1], b] + C[b, path[p + 1]] + C[path[q - 1], a] + C[a, path[q + 1]]
    return change - (C[path[p - 1], a] + C[a, path[p + 1]] + C[path[q - 1], b] + C[b, path[q + 1]])


@njit(cache=True, nogil=True)
def _swaps(
    costs: Array, rules: Rules, path: Indices, tolerance: float
) -> bool:  # pragma: no cover - compiled
    """Two nodes change places: what no insertion can do across a known position."""
    U, last = rules.costs, len(path) - 1
    found = False
    for p in range(1, last - 2):
        best, best_q = -tolerance, -1
        for q in range(p + 2, last):
            change = _swap_steps(costs, path, p, q)
            if len(U) > 0:
                a, b = path[p], path[q]
                change += U[a, q - 1] + U[b, p - 1] - U[a, p - 1] - U[b, q - 1]
            if change < best and not crossed(rules.before, path, p, p + 1, q, q + 1):
                best, best_q = change, q
        if best_q >= 0:
            path[p], path[best_q] = path[best_q], path[p]
            found = True
    return found


@njit(cache=True, nogil=True)
def improve_path(
    costs: Array, rules: Rules | None, path: Indices, tolerance: float, deep: bool
) -> None:  # pragma: no cover - compiled
    """Sweep over all moves in place, taking those that help, until a whole sweep finds none."""
    improved = True
    while improved:
        improved = _reversals(costs, rules, path, tolerance)
        improved = _insertions(costs, rules, path, tolerance, 1, SHORT) or improved
        if rules is not None:
            improved = _swaps(costs, rules, path, tolerance) or improved
        if deep and not improved:
            longest = min((len(path) - 2) // 2, LONG)
            improved = _insertions(costs, rules, path, tolerance, SHORT + 1, longest)


@njit(cache=True, nogil=True)
def greedy(costs: Array, path: Indices) -> None:  # pragma: no cover - compiled
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
def _exact(costs: Array, rules: Rules | None, path: Indices) -> None:  # pragma: no cover - compiled
    """The best path by dynamic programming over subsets (Held–Karp), O(2ᵀ T²)."""
    T = len(path) - 2
    past = _pasts(rules, T)
    best = np.full((1 << T, T), np.inf)
    back = np.full((1 << T, T), -1, np.int64)
    for a in range(T):
        if past[a] == 0:
            best[1 << a, a] = costs[T, a] + _place_cost(rules, a, 0)
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
                total = so_far + costs[a, b] + _place_cost(rules, b, size)
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
def _pasts(rules: Rules | None, T: int) -> NDArray[np.int64]:  # pragma: no cover - compiled
    """All that must come before each of T observations, as sets of bits."""
    past = np.zeros(T, np.int64)
    if rules is not None and len(rules.before) > 0:
        for a in range(T):
            for b in range(T):
                if rules.before[b, a]:
                    past[a] |= 1 << b
    return past


@njit(cache=True, nogil=True)
def _place_cost(rules: Rules | None, a: int, i: int) -> float:  # pragma: no cover - compiled
    """`U[a, i]`."""
    if rules is None or len(rules.costs) == 0:
        return 0.0
    return rules.costs[a, i]


@njit(cache=True, nogil=True)
def _kick(rules: Rules | None, path: Indices, state: State) -> bool:  # pragma: no cover - compiled
    """A random exchange of neighbouring segments; one, or a swap of two nodes, that breaks no rule."""
    T = len(path) - 2
    for _ in range(TRIES):
        i = 1 + int(random_unit(state) * (T - 1))
        j = i + 1 + int(random_unit(state) * (T - i))
        k = j + 1 + int(random_unit(state) * (T - j + 1))
        if rules is None or random_unit(state) < 0.5:
            if exchange_change(rules, path, i, j, k, False, False) < np.inf:
                exchange(path, i, j, k)
                return True
        elif j >= i + 2 and swap_change(rules, path, i, i + 1, j, j + 1) < np.inf:
            path[i], path[j] = path[j], path[i]
            return True
    return False


@njit(cache=True, nogil=True)
def _kicked(
    costs: Array, rules: Rules | None, path: Indices, tolerance: float, kicks: int, state: State
) -> None:  # pragma: no cover - compiled
    """Iterated local search: a random move, repair, keep what helps."""
    best = padded_cost(costs, rules, path)
    trial = np.empty_like(path)
    for _ in range(kicks):
        put(path, trial)
        if not _kick(rules, trial, state):
            continue
        improve_path(costs, rules, trial, tolerance, False)
        cost = padded_cost(costs, rules, trial)
        if cost < best - tolerance:
            best = cost
            put(trial, path)


@njit(cache=True, nogil=True)
def _tolerance(
    costs: Array, rules: Rules | None, path: Indices
) -> float:  # pragma: no cover - compiled
    """Gains below this are rounding."""
    return 1e-9 * (1.0 + abs(padded_cost(costs, rules, path)))


@njit(cache=True, nogil=True)
def _cold(
    costs: Array, rules: Rules | None, path: Indices, deep: bool
) -> None:  # pragma: no cover - compiled
    """From scratch: the greedy path; where something is known, the best of all starts, each improved."""
    greedy(costs, path)
    if rules is not None:
        trial, low = path.copy(), np.inf
        for each in cold_starts(rules, path[1:-1].copy()):
            put(each, trial[1:])
            improve_path(costs, rules, trial, _tolerance(costs, rules, trial), deep)
            cost = padded_cost(costs, rules, trial)
            if cost < low:
                low = cost
                put(trial, path)


@njit(cache=True, nogil=True)
def improve_block(
    steps: Steps,
    rules: Rules | None,
    lengths: Indices,
    orders: Indices,
    states: State,
    cold: bool,
    deep: bool,
    kicks: int,
) -> int:  # pragma: no cover - compiled
    """Improve the order of each trajectory in place; the number that changed. `cold`: start from scratch."""
    n, T, _ = steps.target.shape
    room = np.empty((T + 1, T + 1))
    changed = 0
    for j in range(n):
        t = lengths[j]
        costs, known = trajectory_costs(steps, j, t, room), known_of(rules, j, t)
        path = padded_path(orders[j, :t])
        if t <= EXACT:
            _exact(costs, known, path)
        else:
            if cold:
                _cold(costs, known, path, deep)
            tolerance = _tolerance(costs, known, path)
            improve_path(costs, known, path, tolerance, deep)
            if kicks > 0:
                _kicked(costs, known, path, tolerance, kicks, states[j : j + 1])
                improve_path(costs, known, path, tolerance, deep)
        for k in range(t):
            if orders[j, k] != path[k + 1]:
                changed += 1
                break
        put(path[1 : t + 1], orders[j])
    return changed
