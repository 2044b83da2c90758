"""Compiled search over paths, for one cost matrix or for a block of trajectories.

A path over T observations is stored with one more node, T, before the first and after the last: its row
holds the start costs and its column zeros, so that `cost(path) = Σ C[path_k, path_{k+1}]` has no special case
at the ends. The padded matrix exists for one trajectory at a time.

Where something is known of the order (`rules`) the cost has `Σ_i U[path_i, i]` added, and moves that would break a
precedence are not made: a path that satisfies every rule goes in, and one comes out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put, put_rows
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves import descent, judges
from retrace_sde.orders.moves.descent import Kicks
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.moves import (
    FIRST,
    SECOND,
    Move,
    exchange,
    make,
    nothing,
    random_unit,
    reversal,
    swap,
)
from retrace_sde.orders.moves.rules import (
    Rules,
    cold_starts,
    crossed,
    known_of,
    order_cost,
    ordered,
    rule_change,
    shifted,
)

MAX_HELD_KARP = 9
"""Up to this many observations the best path is found exactly."""

SHORT_SEGMENT, LONG_SEGMENT = 3, 50
"""Segments that are moved in every sweep, and those tried only when nothing shorter helps."""

KICK_TRIES = 10
"""Random moves drawn for each kick until one breaks no rule."""

QUICK_STAGES, DEEP_STAGES = 3, 4
"""Stages of a search: reversals, short segments and (with rules) swaps; and longer segments too."""


class BlockCosts(NamedTuple):
    """What the steps of a block are judged by: states and predictions of the next, (n, T, d) and whitened, and
    start costs (n, T); or the costs of its pairs themselves, (n, T, T), where they are of another form."""

    target: Array
    source: Array
    start: Array
    pairs: Array = np.empty((0, 0, 0))


class PathJudge(NamedTuple):
    """Padded costs, and the padded path whose inside, `path[1:-1]`, is the order that is judged."""

    costs: Array
    path: Indices


@njit(cache=True, nogil=True)
def fill_costs(target: Array, source: Array, start: Array, costs: Array) -> None:
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
def trajectory_costs(steps: BlockCosts, j: int, t: int, room: Array) -> Array:
    """Padded costs of trajectory j, which has t observations, in the first part of `room`."""
    costs = room[: (t + 1) ** 2].reshape(t + 1, t + 1)
    fill_costs(steps.target[j, :t], steps.source[j, :t], steps.start[j, :t], costs)
    if len(steps.pairs) > 0:
        put_rows(steps.pairs[j, :t, :t], costs)
    return costs


SIGNIFICANT_BITS = 30
"""Of shared costs: one in a billion, as the tolerance of a search."""


def rounded(costs: Array) -> Array:
    """Costs to so many bits: those that tie are equal, whatever units and order of variables did to their last digits."""
    fraction, exponent = np.frexp(costs)
    return np.ldexp(np.round(np.ldexp(fraction, SIGNIFICANT_BITS)), exponent - SIGNIFICANT_BITS)


def padded_costs(costs: Array, start: Array) -> Array:
    """Costs (T, T) and start costs, rounded, as one matrix."""
    T = len(start)
    padded = np.zeros((T + 1, T + 1))
    padded[:T, :T], padded[T, :T] = rounded(costs), rounded(start)
    return padded


@njit(cache=True, nogil=True)
def padded_path(order: Indices) -> Indices:
    """The order with the node T at both ends."""
    T = len(order)
    path = np.empty(T + 2, np.intp)
    path[0] = path[T + 1] = T
    put(order, path[1:])
    return path


@njit(cache=True, nogil=True)
def padded_cost(costs: Array, rules: Rules | None, path: Indices) -> float:
    """`Σ C[path_k, path_{k+1}]`, start included, and what is known; ∞ where a rule is broken."""
    total = 0.0
    for k in range(len(path) - 1):
        total += costs[path[k], path[k + 1]]
    if rules is None:
        return total
    return total + order_cost(rules, path[1:-1])


@implements(judges.cost, PathJudge)
def _cost(judge: PathJudge, rules: Any, order: Indices) -> float:
    return padded_cost(judge.costs, rules, judge.path)


@implements(judges.change, PathJudge)
def _change(judge: PathJudge, rules: Any, order: Indices, move: Move) -> float:
    """By the steps that are new and those that are gone: position p is path[p + 1]."""
    C, path = judge.costs, judge.path
    i, j, k, q, backwards = move
    left, right = path[i], path[q + 1]
    head, tail = path[i + 1], path[j]
    if q == j:
        total = C[left, tail] + C[head, right] - C[left, head] - C[tail, right]
        for p in range(i + 1, j):
            total += C[path[p + 1], path[p]] - C[path[p], path[p + 1]]
        return total + rule_change(rules, order, move)
    after, end = path[k + 1], path[q]
    total = -C[left, head] - C[end, right]
    if j == k:
        total -= C[tail, after]
    else:
        total -= C[tail, path[j + 1]] + C[path[k], after]
    if backwards == FIRST:
        head, tail = tail, head
        for p in range(i + 1, j):
            total += C[path[p + 1], path[p]] - C[path[p], path[p + 1]]
    elif backwards == SECOND:
        after, end = end, after
        for p in range(k + 1, q):
            total += C[path[p + 1], path[p]] - C[path[p], path[p + 1]]
    total += C[left, after] + C[tail, right]
    if j == k:
        total += C[end, head]
    else:
        total += C[end, path[j + 1]] + C[path[k], head]
    return total + rule_change(rules, order, move)


@implements(judges.take, PathJudge)
def _take(judge: PathJudge, order: Indices, move: Move) -> None:
    make(order, move)


@implements(descent.last_resort, PathJudge)
def _last_resort(judge: PathJudge) -> int:
    return DEEP_STAGES - 1


@implements(descent.centres, PathJudge)
def _centres(judge: PathJudge, rules: Any, order: Indices, stage: int) -> int:
    """Positions; for insertions with each length."""
    T = len(order)
    if stage == 0:
        return T - 1
    if stage == 1:
        return T * min(SHORT_SEGMENT, T - 1)
    if stage == 2:
        return 0 if rules is None else T - 2
    return T * max(min(T // 2, LONG_SEGMENT) - SHORT_SEGMENT, 0)


@implements(descent.best, PathJudge)
def _best(judge: PathJudge, rules: Any, order: Indices, stage: int, at: int) -> tuple[float, Move]:
    if stage == 0:
        return _best_reversal(judge.costs, judge.path, rules, order, at)
    if rules is not None and stage == 2:
        return _best_swap(judge.costs, judge.path, rules, order, at)
    T = len(order)
    length = (1 if stage == 1 else SHORT_SEGMENT + 1) + at // T
    if at % T + length > T:
        return 0.0, nothing()
    return _best_insertion(judge.costs, judge.path, rules, order, at % T, length)


@njit(cache=True, nogil=True)
def _best_reversal(
    costs: Array, path: Indices, rules: Rules | None, order: Indices, i: int
) -> tuple[float, Move]:
    """The best reversal of [i, j): O(1) for each j by running sums along the path and against it."""
    before, head = path[i], path[i + 1]
    along = 0.0
    against = 0.0
    least, best_j = 0.0, i
    for j in range(i + 2, len(order) + 1):
        tail, after = path[j], path[j + 1]
        along += costs[path[j - 1], tail]
        against += costs[tail, path[j - 1]]
        found = (
            costs[before, tail] + against + costs[head, after]
            - costs[before, head] - along - costs[tail, after]
        )  # fmt: skip
        if rules is not None and len(rules.costs) > 0:
            found += shifted(rules.costs, order, i, j, i, True)
        if found < least:
            if rules is not None and ordered(rules.before, order, i, j):
                break  # and so would be every longer one
            least, best_j = found, j
    return least, reversal(i, best_j)


@njit(cache=True, nogil=True)
def inserted(i: int, j: int, k: int, backwards: bool) -> Move:
    """[i, j) goes right after position k, in either direction."""
    if k < i:
        return Move(k + 1, i, i, j, SECOND if backwards else 0)
    return Move(i, j, j, k + 1, FIRST if backwards else 0)


@njit(cache=True, nogil=True)
def _best_insertion(
    costs: Array, path: Indices, rules: Rules | None, order: Indices, i: int, length: int
) -> tuple[float, Move]:
    """The best place for the segment [i, i + length), in either direction."""
    j = i + length
    before, head, tail, after = path[i], path[i + 1], path[j], path[j + 1]
    turned = 0.0
    for p in range(i + 1, j):
        turned += costs[path[p + 1], path[p]] - costs[path[p], path[p + 1]]
    gain = costs[before, head] + costs[tail, after] - costs[before, after]
    least, best_k, best_flip = 0.0, -2, False
    for k in range(-1, len(order)):
        if i - 1 <= k < j:
            continue
        left, right = path[k + 1], path[k + 2]
        gap = costs[left, right] + gain
        plain = costs[left, head] + costs[tail, right] - gap
        if rules is not None and (len(rules.costs) > 0 or plain < least):
            plain += rule_change(rules, order, inserted(i, j, k, False))
        if plain < least:
            least, best_k, best_flip = plain, k, False
        if rules is not None and length == 1:
            continue  # the same in both directions, and rules cost time
        flipped = costs[left, tail] + costs[head, right] + turned - gap
        if rules is not None and (len(rules.costs) > 0 or flipped < least):
            flipped += rule_change(rules, order, inserted(i, j, k, True))
        if flipped < least:
            least, best_k, best_flip = flipped, k, True
    if best_k < -1:
        return 0.0, nothing()
    return least, inserted(i, j, best_k, best_flip)


@njit(cache=True, nogil=True)
def _best_swap(
    costs: Array, path: Indices, rules: Rules, order: Indices, p: int
) -> tuple[float, Move]:
    """The best node to change places with that at p: what no insertion can do across a known position."""
    C, U, a, T = costs, rules.costs, order[p], len(order)
    gone = C[path[p], a] + C[a, path[p + 2]]
    least, best_q = 0.0, p
    for q in range(p + 2, T):
        b = order[q]
        found = C[path[p], b] + C[b, path[p + 2]] + C[path[q], a] + C[a, path[q + 2]]
        found -= gone + C[path[q], b] + C[b, path[q + 2]]
        if len(U) > 0:
            found += U[a, q] + U[b, p] - U[a, p] - U[b, q]
        if found < least and not crossed(rules.before, order, p, p + 1, q, q + 1):
            least, best_q = found, q
    return least, swap(p, best_q) if best_q > p else nothing()


@implements(descent.kick, PathJudge)
def _kick(judge: PathJudge, rules: Any, order: Indices, state: State) -> bool:
    """A random exchange of neighbouring segments; one, or a swap of two nodes, that breaks no rule."""
    T = len(order)
    for _ in range(KICK_TRIES):
        i = int(random_unit(state) * (T - 1))
        j = i + 1 + int(random_unit(state) * (T - 1 - i))
        k = j + 1 + int(random_unit(state) * (T - j))
        if rules is None or random_unit(state) < 0.5:
            move = exchange(i, j, k)
        elif j >= i + 2:
            move = swap(i, j)
        else:
            continue
        if rule_change(rules, order, move) < np.inf:
            make(order, move)
            return True
    return False


@njit(cache=True, nogil=True)
def improve_path(
    costs: Array, rules: Rules | None, path: Indices, tolerance: float, deep: bool
) -> None:
    """Local search over a padded path, in place."""
    descent.descend(
        PathJudge(costs, path), rules, path[1:-1], tolerance, DEEP_STAGES if deep else QUICK_STAGES
    )


@njit(cache=True, nogil=True)
def greedy(costs: Array, path: Indices) -> None:
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
def best_path(costs: Array, rules: Rules | None, path: Indices) -> None:
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
def _pasts(rules: Rules | None, T: int) -> NDArray[np.int64]:
    """All that must come before each of T observations, as sets of bits."""
    past = np.zeros(T, np.int64)
    if rules is not None and len(rules.before) > 0:
        for a in range(T):
            for b in range(T):
                if rules.before[b, a]:
                    past[a] |= 1 << b
    return past


@njit(cache=True, nogil=True)
def _place_cost(rules: Rules | None, a: int, i: int) -> float:
    """`U[a, i]`."""
    if rules is None or len(rules.costs) == 0:
        return 0.0
    return rules.costs[a, i]


@njit(cache=True, nogil=True)
def _tolerance(costs: Array, rules: Rules | None, path: Indices) -> float:
    """Gains below this are rounding."""
    return 1e-9 * (1.0 + abs(padded_cost(costs, rules, path)))


@njit(cache=True, nogil=True)
def _cold(costs: Array, rules: Rules | None, path: Indices, deep: bool) -> None:
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
    steps: BlockCosts,
    rules: Rules | None,
    lengths: Indices,
    orders: Indices,
    states: State,
    cold: bool,
    deep: bool,
    kicks: int,
) -> int:
    """Improve the order of each trajectory in place; the number that changed. `cold`: start from scratch."""
    n, T, _ = steps.target.shape
    room = np.empty((T + 1) ** 2)
    changed = 0
    for j in range(n):
        t = lengths[j]
        costs, known = trajectory_costs(steps, j, t, room), known_of(rules, j, t)
        path = padded_path(orders[j, :t])
        if t <= MAX_HELD_KARP:
            best_path(costs, known, path)
        else:
            if cold:
                _cold(costs, known, path, deep)
            tolerance = _tolerance(costs, known, path)
            improve_path(costs, known, path, tolerance, deep)
            if kicks > 0:
                # Kicks are repaired by a quick search alone: a deep one follows.
                judge, spare = PathJudge(costs, path), PathJudge(costs, path.copy())
                plan, state = Kicks(kicks, QUICK_STAGES, QUICK_STAGES, -np.inf), states[j : j + 1]
                order, trial = path[1:-1], spare.path[1:-1]
                descent.descend_again(judge, spare, known, order, trial, tolerance, plan, state)
                improve_path(costs, known, path, tolerance, deep)
        for k in range(t):
            if orders[j, k] != path[k + 1]:
                changed += 1
                break
        put(path[1 : t + 1], orders[j])
    return changed
