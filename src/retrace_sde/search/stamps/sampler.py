"""The true times of one sequence of observations whose stamps may be wrong: a compiled Metropolis sampler.

    p(t | s, x) ∝ Π_a [(1 − w) N(s_a; t_a, σ_a²) + w / W] · p₀(x_{o_0}) Π_i f(g_i) p(x_{o_{i+1}} | x_{o_i}; g_i),

with o the order of the times t, g the gaps along it, f their law, and W the range of the stamps: a wrong stamp says nothing. Steps
are proposed for one observation at a time, from its stamp, from anywhere, or nearby; and exchanges of two. On a regular grid,
`t = t₀ + k`, orders are proposed instead: insertions and exchanges; and other origins t₀.

Where trajectories share something at each of P times (plates, common shocks), the values of an observation are deviations from what all have at the slice
nearest to its time: a step is then between nodes, an observation at a slice, and its cost is computed from whitened values when it is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves.moves import random_normal, random_unit
from retrace_sde.process.stamps import Stamps, right_density, stamp_cost


class Costs(NamedTuple):
    """−log p of b after a over tabulated gaps (K, T, T), of first observations (T,), and the gaps' scale.

    With slices, whose times part at `edges` (P − 1,), `start` is of nodes (T P,), and the table is empty: a step over the k-th gap costs
    `logs_k + (ν + d)/2 log(1 + |here_kb − ahead_ka|² / (ν − 2))`, with `here` and `ahead` (K, T P, d).
    """

    table: Array
    start: Array
    log_least: float
    per_log: float
    edges: Array
    here: Array
    ahead: Array
    logs: Array
    tails: float


class Records(NamedTuple):
    """Sums of the probability that each stamp is wrong (T,), times drawn (R, T), and their −log posterior (R,)."""

    wrong: Array
    times: Array
    costs: Array


@njit(cache=True, nogil=True, error_model="numpy")
def node(costs: Costs, a: int, time: float) -> int:
    """Observation a at the slice nearest to a time; a itself where there are no slices."""
    if len(costs.edges) == 0:
        return a
    return int(a * (len(costs.edges) + 1) + np.searchsorted(costs.edges, time))


@njit(cache=True, nogil=True, error_model="numpy")
def step_over(costs: Costs, k: int, a: int, b: int) -> float:
    """What node b costs after node a over the k-th gap."""
    if len(costs.edges) == 0:
        return float(costs.table[k, a, b])
    square, d = 0.0, costs.here.shape[2]
    for i in range(d):
        square += (costs.here[k, b, i] - costs.ahead[k, a, i]) ** 2
    density = 0.5 * (costs.tails + d) * np.log1p(square / (costs.tails - 2))
    return float(costs.logs[k] + density)


@njit(cache=True, nogil=True, error_model="numpy")
def step(costs: Costs, a: int, b: int, t: Array) -> float:
    """What b costs after a at their times, interpolated in the logarithm of the gap."""
    K = len(costs.logs)
    x = (np.log(max(t[b] - t[a], 1e-12)) - costs.log_least) * costs.per_log
    a, b = node(costs, a, t[a]), node(costs, b, t[b])
    if x <= 0:
        return step_over(costs, 0, a, b)
    if x >= K - 1:
        return step_over(costs, K - 1, a, b)
    k = int(x)
    return (k + 1 - x) * step_over(costs, k, a, b) + (x - k) * step_over(costs, k + 1, a, b)


@njit(cache=True, nogil=True, error_model="numpy")
def proposed_density(stamps: Stamps, a: int, t: float) -> float:
    """Of the proposal: half from the stamp, half from anywhere."""
    flat = 0.0
    if stamps.low <= t <= stamps.high:
        flat = 1 / (stamps.high - stamps.low)
    if np.isnan(stamps.given[a]):
        return flat
    return 0.5 * right_density(stamps, a, t) / (1 - stamps.wrong) + 0.5 * flat


@njit(cache=True, nogil=True, error_model="numpy")
def refused(log_odds: float, state: State) -> bool:
    """A proposal with these log-odds is not accepted (Metropolis and Hastings)."""
    return bool(np.log(max(random_unit(state), 1e-300)) >= log_odds)


@njit(cache=True, nogil=True, error_model="numpy")
def count_wrong(stamps: Stamps, a: int, t: float, wrong: Array) -> None:
    """Add the probability that the stamp of a is wrong, were its time t."""
    if not np.isnan(stamps.given[a]):
        flat = stamps.wrong / stamps.width
        wrong[a] += flat / (flat + right_density(stamps, a, t))


@njit(cache=True, nogil=True, error_model="numpy")
def path_cost(costs: Costs, order: Indices, t: Array) -> float:
    """Of observations along an order at times."""
    total = costs.start[node(costs, order[0], t[order[0]])]
    for i in range(len(order) - 1):
        total += step(costs, order[i], order[i + 1], t)
    return float(total)


@njit(cache=True, nogil=True, error_model="numpy")
def best_block(
    costs: Costs, stamps: Stamps, least: int, shifts: Array
) -> tuple[int, int, float, float]:
    """The block of neighbouring rows [i, j), at most half of all, and the shift of its stamps that leave the least cost."""
    T = len(stamps.given)
    begin, end, best, shift = 0, 0, np.inf, 0.0
    t = stamps.given.copy()
    for i in range(T - least + 1):
        for j in range(i + least, min(T, i + T // 2) + 1):
            for each in shifts:
                t[:] = stamps.given
                t[i:j] += each
                total = 0.0
                for a in range(i, j):
                    if t[a] < stamps.low or t[a] > stamps.high:
                        total = np.inf
                if total == 0.0:
                    total = path_cost(costs, np.argsort(t), t)
                if total < best:
                    begin, end, best, shift = i, j, total, each
    return begin, end, float(shift), float(best)


@njit(cache=True, nogil=True, error_model="numpy")
def removed(costs: Costs, order: Indices, t: Array, i: int) -> float:
    """What taking out the observation at position i adds to the cost."""
    T, a = len(order), order[i]
    change = 0.0
    if i > 0:
        change -= step(costs, order[i - 1], a, t)
    else:
        change -= costs.start[node(costs, a, t[a])]
    if i < T - 1:
        after = order[i + 1]
        change -= step(costs, a, after, t)
        if i > 0:
            change += step(costs, order[i - 1], after, t)
        else:
            change += costs.start[node(costs, after, t[after])]
    return float(change)


@njit(cache=True, nogil=True, error_model="numpy")
def move_to(order: Indices, t: Array, i: int, time: float) -> int:
    """Give the observation at position i another time, and the order it has then; returns its new position."""
    a, T = order[i], len(order)
    t[a] = time
    while i > 0 and t[order[i - 1]] > time:
        order[i] = order[i - 1]
        i -= 1
    while i < T - 1 and t[order[i + 1]] < time:
        order[i] = order[i + 1]
        i += 1
    order[i] = a
    return i


@njit(cache=True, nogil=True, error_model="numpy")
def try_time(
    costs: Costs, stamps: Stamps, order: Indices, t: Array, i: int, heat: float, state: State
) -> None:
    """Another time for the observation at position i."""
    a, old = order[i], t[order[i]]
    known, u = not np.isnan(stamps.given[a]), random_unit(state)
    ratio = 1.0
    if u < 0.6:
        if known and random_unit(state) < 0.5:
            new = stamps.given[a] + stamps.error[a] * random_normal(state)
        else:
            new = stamps.low + (stamps.high - stamps.low) * random_unit(state)
        ahead = proposed_density(stamps, a, new)
        ratio = proposed_density(stamps, a, old) / ahead if ahead > 0 else 0.0
    else:
        new = old + 0.5 * random_normal(state)
    outside = new < stamps.low or new > stamps.high
    if outside or ratio <= 0:
        return
    before = removed(costs, order, t, i) - stamp_cost(stamps, a, old)
    at = move_to(order, t, i, new)
    change = before - removed(costs, order, t, at) + stamp_cost(stamps, a, new)
    if refused(np.log(ratio) - heat * change, state):
        move_to(order, t, at, old)


@njit(cache=True, nogil=True, error_model="numpy")
def try_exchange(
    costs: Costs,
    stamps: Stamps,
    order: Indices,
    t: Array,
    i: int,
    j: int,
    heat: float,
    state: State,
) -> None:
    """The observations at positions i and j exchange their times."""
    a, b = order[i], order[j]
    if a == b:
        return
    before = path_cost(costs, order, t) + stamp_cost(stamps, a, t[a]) + stamp_cost(stamps, b, t[b])
    order[i], order[j] = b, a
    t[a], t[b] = t[b], t[a]
    after = path_cost(costs, order, t) + stamp_cost(stamps, a, t[a]) + stamp_cost(stamps, b, t[b])
    if refused(heat * (before - after), state):
        order[i], order[j] = a, b
        t[a], t[b] = t[b], t[a]


@njit(cache=True, nogil=True, error_model="numpy")
def sample_times(
    costs: Costs, stamps: Stamps, t: Array, burn: int, thin: int, state: State, seen: Records
) -> None:
    """Draw times from their posterior, beginning at t, heated at first; t ends at the last draw."""
    T, R = len(t), len(seen.times)
    order = np.argsort(t)
    for sweep in range(burn + thin * R):
        heat = min(1.0, 0.2 + sweep / max(0.8 * burn, 1.0))
        for _ in range(T):
            if random_unit(state) < 0.9:
                i = int(random_unit(state) * T)
                try_time(costs, stamps, order, t, i, heat, state)
            else:
                i = int(random_unit(state) * T)
                j = int(random_unit(state) * T)
                if random_unit(state) < 0.5:
                    j = min(i + 1, T - 1)
                try_exchange(costs, stamps, order, t, i, j, heat, state)
        if sweep >= burn and (sweep - burn) % thin == 0:
            r = (sweep - burn) // thin
            seen.times[r] = t
            total = path_cost(costs, order, t)
            for a in range(T):
                total += stamp_cost(stamps, a, t[a])
                count_wrong(stamps, a, t[a], seen.wrong)
            seen.costs[r] = total


@njit(cache=True, nogil=True, error_model="numpy")
def grid_cost(
    costs: Costs, stamps: Stamps, order: Indices, origin: float, low: int, high: int
) -> float:
    """Of the observations at positions low to high of a regular grid, and of the steps into, between and out of them."""
    T, total = len(order), 0.0
    for i in range(low, min(high + 2, T)):
        if i <= high:
            total += stamp_cost(stamps, order[i], origin + i)
        total += costs.start[order[0]] if i == 0 else costs.table[0, order[i - 1], order[i]]
    return float(total)


@njit(cache=True, nogil=True, error_model="numpy")
def insert(order: Indices, i: int, j: int) -> None:
    """What stands at position i moves to j, and what is between makes room."""
    a, way = order[i], 1 if j > i else -1
    for k in range(i, j, way):
        order[k] = order[k + way]
    order[j] = a


@njit(cache=True, nogil=True, error_model="numpy")
def try_order(
    costs: Costs, stamps: Stamps, order: Indices, origin: float, heat: float, state: State
) -> None:
    """An insertion or an exchange, near or far."""
    T = len(order)
    i, u = int(random_unit(state) * T), random_unit(state)
    j = int(random_unit(state) * T)
    if u < 0.4:
        j = i + 1 + int(random_unit(state) * 3)
    if j >= T or i == j:
        return
    low, high = min(i, j), max(i, j)
    before = grid_cost(costs, stamps, order, origin, low, high)
    exchanged = u < 0.2 or u > 0.8
    if exchanged:
        order[i], order[j] = order[j], order[i]
    elif random_unit(state) < 0.5:
        i, j = j, i
        insert(order, i, j)
    else:
        insert(order, i, j)
    change = grid_cost(costs, stamps, order, origin, low, high) - before
    if refused(-heat * change, state):
        if exchanged:
            order[i], order[j] = order[j], order[i]
        else:
            insert(order, j, i)


@njit(cache=True, nogil=True, error_model="numpy")
def origin_density(stamps: Stamps, order: Indices, origin: float) -> float:
    """The logarithm of the density, up to a constant, of an origin that is proposed from the stamp of a random observation."""
    total = 1e-300
    for i in range(len(order)):
        z = (stamps.given[order[i]] - i - origin) / 0.3
        total += np.exp(-0.5 * z * z)
    return float(np.log(total))


@njit(cache=True, nogil=True, error_model="numpy")
def try_origin(
    costs: Costs, stamps: Stamps, order: Indices, origin: float, heat: float, state: State
) -> float:
    """Another origin of the grid: nearby; or one grid point on, with what stood at one end, or anywhere, moved to the other."""
    T = len(order)
    before = grid_cost(costs, stamps, order, origin, 0, T - 1)
    u, new = random_unit(state), origin
    i, j, ratio = 0, 0, 0.0
    if u < 0.2:
        new += 0.3 * random_normal(state)
    elif u < 0.4:
        i = int(random_unit(state) * T)
        new = stamps.given[order[i]] - i + 0.3 * random_normal(state)
        ratio = origin_density(stamps, order, origin) - origin_density(stamps, order, new)
        i = 0
    else:
        i = int(random_unit(state) * T)
        j = 0 if u < 0.7 else T - 1
        if random_unit(state) < 0.5:
            i, j = j, i
        # What lies between i and j keeps its time.
        new += -1.0 if j < i else 1.0
        insert(order, i, j)
    change = grid_cost(costs, stamps, order, new, 0, T - 1) - before
    if not refused(ratio - heat * change, state):
        return float(new)
    if i != j:
        insert(order, j, i)
    return origin


@njit(cache=True, nogil=True, error_model="numpy")
def sample_grid(
    costs: Costs,
    stamps: Stamps,
    order: Indices,
    origin: float,
    burn: int,
    thin: int,
    state: State,
    seen: Records,
) -> None:
    """Draw orders on a regular grid, and its origin; costs are those of a gap of 1."""
    T, R = len(order), len(seen.times)
    for sweep in range(burn + thin * R):
        heat = min(1.0, 0.2 + sweep / max(0.8 * burn, 1.0))
        for _ in range(4 * T):
            try_order(costs, stamps, order, origin, heat, state)
        for _ in range(8):
            origin = try_origin(costs, stamps, order, origin, heat, state)
        if sweep >= burn and (sweep - burn) % thin == 0:
            r = (sweep - burn) // thin
            seen.costs[r] = grid_cost(costs, stamps, order, origin, 0, T - 1)
            for i in range(T):
                a, t = order[i], origin + i
                seen.times[r, a] = t
                count_wrong(stamps, a, t, seen.wrong)
