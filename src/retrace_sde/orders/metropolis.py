"""Metropolis over permutations: a chain whose stationary law is the posterior over orders.

`p(order | data, θ) ∝ exp(−cost(order))`, the cost of what is known of the order included. Moves: reverse a segment,
exchange neighbouring segments (an insertion when one has a single node), swap two segments around a
third, flip the whole path, and join a node to a likely neighbour by reversal or insertion. What the chain
has seen is counted: how often b follows a, what comes first, and what stands where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.fit.statespace.irregular.kernels import put
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.rules import (
    Rules,
    exchange_change,
    known_of,
    reversal_change,
    swap_change,
)
from retrace_sde.orders.search import (
    Steps,
    exchange,
    padded_path,
    random_bits,
    random_unit,
    reverse,
    trajectory_costs,
)

Counts = NDArray[np.int32]
Tally = NDArray[np.int64]

TABLE = 1024
"""Entries of the table from which segment lengths are drawn: octaves of equal or adapted weight."""

KINDS = 6
"""Reversal, exchange, swap, whole flip, neighbour by reversal, neighbour by insertion."""

SHARES = np.array([30, 50, 60, 64, 200, 256])
"""Cumulative shares, of 256, of the kinds of moves before adaptation."""

NODE_SWAPS = 0.25
"""Share of proposals, where something is known of the order, that swap two nodes: little else crosses anchors."""

SHARPNESS = 0.5
"""How strongly a neighbour proposal prefers likely neighbours: `q(b | a) ∝ exp(−½ (C_ab + C_ba))` to this power."""


class Schedule(NamedTuple):
    """`burn` moves, then `samples` records `thin` moves apart."""

    burn: int
    samples: int
    thin: int


class Proposals(NamedTuple):
    """Lengths of segments (`length_table`), cumulative shares of the kinds, sharpness of neighbour proposals."""

    table: Tally
    shares: Tally
    sharpness: float


class Records(NamedTuple):
    """What a chain saw, or n of them along a first axis; every count goes on from what it was.

    pairs[a, b]: how often b followed a; first and last: what stood there; positions[a, i]: what stood where, or
    empty (not counted); kept (R, T): R orders, evenly spaced. tally and scales, the same for
    all chains: tries and acceptances by kind and by octave of length.
    """

    pairs: Counts
    first: Counts
    last: Counts
    positions: Counts
    kept: NDArray[np.int16]
    tally: Tally
    scales: Tally

    @classmethod
    def none(cls, *n: int, T: int, keep: int = 0, positions: bool = False) -> Records:
        """Nothing yet, of orders of T, of one chain or of n."""
        where = (*n, T, T) if positions else (0,) * (len(n) + 2)
        return cls(
            np.zeros((*n, T, T), np.int32),
            np.zeros((*n, T), np.int32),
            np.zeros((*n, T), np.int32),
            np.zeros(where, np.int32),
            np.zeros((*n, keep, T), np.int16),
            np.zeros((KINDS, 2), np.int64),
            np.zeros((64, 2), np.int64),
        )


class _Chain(NamedTuple):
    """A padded path, the place of each node in it, and the state of its random stream."""

    path: Indices
    place: Indices
    state: State


class _Neighbours(NamedTuple):
    """Probabilities q[a, b] with which b is proposed as neighbour of a, and their alias tables."""

    q: Array
    keep: Array
    alias: Indices


def length_table(reach: int, weights: Array | None = None) -> NDArray[np.int64]:
    """Quantiles of a length on 1 … reach, log-uniform within octaves; `weights` per octave (equal if None)."""
    octaves = max(1, int(np.ceil(np.log2(reach + 1))))
    share = np.ones(octaves) if weights is None else np.asarray(weights[:octaves], dtype=float)
    edges = np.concatenate([[0.0], np.cumsum(share / share.sum())])
    u = (np.arange(TABLE) + 0.5) / TABLE
    position = np.interp(u, edges, np.arange(octaves + 1))
    return np.clip(np.floor(2.0**position), 1, max(reach, 1)).astype(np.int64)


def adapted(tally: Tally, lengths: Tally) -> tuple[NDArray[np.int64], Array]:
    """Shares of moves and weights of octaves in proportion to what was accepted, each with a floor.

    To be used while burning in only: a chain that keeps adapting has no stationary law.
    """
    rate = tally[:, 1] / np.maximum(tally[:, 0], 1)
    share = 0.5 * np.diff(np.concatenate([[0], SHARES])) / 256 + 0.5 * rate / max(rate.sum(), 1e-9)
    octave = lengths[:, 1] / np.maximum(lengths[:, 0], 1)
    weights = 0.25 + 0.75 * octave / max(octave.max(), 1e-9)
    cumulative = np.round(256 * np.cumsum(share / share.sum())).astype(np.int64)
    cumulative[-1] = 256
    return cumulative, weights


@njit(cache=True, nogil=True)
def _accept(change: float, ratio: float, state: State) -> bool:  # pragma: no cover - compiled
    """Metropolis–Hastings: accept with probability min(1, ratio · exp(−change))."""
    if change > 60.0:
        return False
    p = ratio * np.exp(-change)
    return p >= 1.0 or random_unit(state) < p


@njit(cache=True, nogil=True)
def _locate(path: Indices, place: Indices, i: int, j: int) -> None:  # pragma: no cover - compiled
    """place[path[k]] = k for i ≤ k < j."""
    for k in range(i, j):
        place[path[k]] = k


@njit(cache=True, nogil=True)
def _try_reversal(
    C: Array, rules: Rules | None, path: Indices, place: Indices, i: int, j: int, ratio: float,
    state: State,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Propose to reverse path[i … j]."""
    left, right, head, tail = path[i - 1], path[j + 1], path[i], path[j]
    change = C[left, tail] + C[head, right] - C[left, head] - C[tail, right]
    for k in range(i, j):
        change += C[path[k + 1], path[k]] - C[path[k], path[k + 1]]
    change += reversal_change(rules, path, i, j)
    if not _accept(change, ratio, state):
        return False
    reverse(path, i, j)
    _locate(path, place, i, j + 1)
    return True


@njit(cache=True, nogil=True)
def _try_exchange(
    C: Array, rules: Rules | None, path: Indices, place: Indices, i: int, j: int, k: int,
    ratio: float, state: State,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Propose to exchange the segments [i, j) and [j, k)."""
    left, right = path[i - 1], path[k]
    a, b, c, e = path[i], path[j - 1], path[j], path[k - 1]
    change = C[left, c] + C[e, a] + C[b, right] - C[left, a] - C[b, c] - C[e, right]
    change += exchange_change(rules, path, i, j, k, False, False)
    if not _accept(change, ratio, state):
        return False
    exchange(path, i, j, k)
    _locate(path, place, i, k)
    return True


@njit(cache=True, nogil=True)
def _try_swap(
    C: Array, rules: Rules | None, path: Indices, place: Indices, i: int, j: int, k: int, q: int,
    state: State,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Propose to swap the segments [i, j) and [k, q) around [j, k), which stays as it is."""
    left, right = path[i - 1], path[q]
    change = C[left, path[k]] + C[path[q - 1], path[j]] + C[path[k - 1], path[i]]
    change += C[path[j - 1], right] - C[left, path[i]] - C[path[j - 1], path[j]]
    change -= C[path[k - 1], path[k]] + C[path[q - 1], right]
    change += swap_change(rules, path, i, j, k, q)
    if not _accept(change, 1.0, state):
        return False
    middle = k - j
    reverse(path, i, q - 1)
    reverse(path, i, i + q - k - 1)
    reverse(path, i + q - k, i + q - k + middle - 1)
    reverse(path, i + q - k + middle, q - 1)
    _locate(path, place, i, q)
    return True


@njit(cache=True, nogil=True)
def _likely_neighbours(C: Array, sharpness: float) -> _Neighbours:  # pragma: no cover - compiled
    """Neighbour proposals q[a, b] with alias tables (Vose); the padding node is never proposed."""
    T = C.shape[0] - 1
    q, keep, alias = np.empty((T + 1, T + 1)), np.empty((T, T)), np.empty((T, T), np.intp)
    small, large = np.empty(T, np.intp), np.empty(T, np.intp)
    q[T, :] = 0.0
    q[:, T] = 0.0
    for a in range(T):
        low = np.inf
        for b in range(T):
            if b != a:
                low = min(low, C[a, b] + C[b, a])
        total = 0.0
        for b in range(T):
            both = C[a, b] + C[b, a] - low
            # A small floor keeps every pair possible.
            q[a, b] = 0.0 if b == a else np.exp(-0.5 * sharpness * both) + 1e-4
            total += q[a, b]
        n_small, n_large = 0, 0
        for b in range(T):
            q[a, b] /= total
            keep[a, b] = q[a, b] * T
            alias[a, b] = b
            if keep[a, b] < 1.0:
                small[n_small] = b
                n_small += 1
            else:
                large[n_large] = b
                n_large += 1
        while n_small > 0 and n_large > 0:
            n_small -= 1
            lower, upper = small[n_small], large[n_large - 1]
            alias[a, lower] = upper
            keep[a, upper] -= 1.0 - keep[a, lower]
            if keep[a, upper] < 1.0:
                n_large -= 1
                small[n_small] = upper
                n_small += 1
        for k in range(n_small):
            keep[a, small[k]] = 1.0
        for k in range(n_large):
            keep[a, large[k]] = 1.0
    return _Neighbours(q, keep, alias)


@njit(cache=True, nogil=True)
def _join_by_reversal(
    C: Array, rules: Rules | None, path: Indices, place: Indices, q: Array, a: int, b: int,
    state: State,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Make b a neighbour of a by reversing what lies between.

    The same reversal is proposed from its left and from its right neighbour, and back likewise: hence
    the Hastings ratio of sums.
    """
    i, j = (place[a] + 1, place[b]) if place[b] > place[a] else (place[b], place[a] - 1)
    if i >= j:
        return False
    left, right = path[i - 1], path[j + 1]
    there = q[left, path[j]] + q[right, path[i]]
    back = q[left, path[i]] + q[right, path[j]]
    return _try_reversal(C, rules, path, place, i, j, back / there, state)


@njit(cache=True, nogil=True)
def _join_by_insertion(
    C: Array, rules: Rules | None, path: Indices, place: Indices, q: Array, a: int, b: int,
    after: bool, state: State,
) -> bool:  # fmt: skip  # pragma: no cover - compiled
    """Take b out and put it right after (or before) a; each gap is proposed from both of its sides."""
    p = place[b]
    g = place[a] if after else place[a] - 1
    if g in (p, p - 1):
        return False
    there = q[path[g], b] + q[path[g + 1], b]
    back = q[path[p - 1], b] + q[path[p + 1], b]
    if g < p:
        return _try_exchange(C, rules, path, place, g + 1, p, p + 1, back / there, state)
    return _try_exchange(C, rules, path, place, p, p + 1, g + 1, back / there, state)


@njit(cache=True, nogil=True)
def _moves(
    C: Array, rules: Rules | None, chain: _Chain, neighbours: _Neighbours, proposals: Proposals,
    records: Records, count: int,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """`count` proposals; tally and scales count tries and acceptances by kind and by octave of length."""
    path, place, state = chain
    q, keep, alias = neighbours
    table, shares = proposals.table, proposals.shares
    tally, scales = records.tally, records.scales
    T, mask = len(path) - 2, np.uint64(TABLE - 1)
    for _ in range(count):
        bits = random_bits(state)
        pick = int(bits & np.uint64(255))
        i = 1 + int(((bits >> np.uint64(8)) & np.uint64(0xFFFFFF)) * np.uint64(T) >> np.uint64(24))
        one = int(table[int((bits >> np.uint64(32)) & mask)])
        two = int(table[int((bits >> np.uint64(42)) & mask)])
        done = False
        kind = 0
        while pick >= shares[kind]:
            kind += 1
        if rules is not None and random_unit(state) < NODE_SWAPS:
            kind = 2
            k = 1 + int(random_unit(state) * T)
            i, k = min(i, k), max(i, k)
            if k > i + 1:
                done = _try_swap(C, rules, path, place, i, i + 1, k, k + 1, state)
        elif kind == 0:
            if i + one <= T:
                done = _try_reversal(C, rules, path, place, i, i + one, 1.0, state)
        elif kind == 1:
            j, k = i + one, i + one + two
            if k <= T + 1:
                done = _try_exchange(C, rules, path, place, i, j, k, 1.0, state)
        elif kind == 2:
            j, k = i + one, i + one + two
            end = k + int(table[int((bits >> np.uint64(52)) & mask)])
            if end <= T + 1:
                done = _try_swap(C, rules, path, place, i, j, k, end, state)
        elif kind == 3:
            done = _try_reversal(C, rules, path, place, 1, T, 1.0, state)
        else:
            u = random_unit(state) * T
            a, b = i - 1, int(u)
            if u - b >= keep[a, b]:
                b = int(alias[a, b])
            if kind == 4:
                done = _join_by_reversal(C, rules, path, place, q, a, b, state)
            else:
                after = (bits >> np.uint64(63)) == np.uint64(1)
                done = _join_by_insertion(C, rules, path, place, q, a, b, after, state)
        tally[kind, 0] += 1
        tally[kind, 1] += done
        if kind < 2:
            octave = int(np.log2(one))
            scales[octave, 0] += 1
            scales[octave, 1] += done


@njit(cache=True, nogil=True)
def _count(path: Indices, records: Records, times: int) -> None:  # pragma: no cover - compiled
    """Count one path, so many times."""
    T = len(path) - 2
    records.first[path[1]] += times
    records.last[path[T]] += times
    for k in range(1, T):
        records.pairs[path[k], path[k + 1]] += times
    if len(records.positions) > 0:
        for k in range(T):
            records.positions[path[k + 1], k] += times


@njit(cache=True, nogil=True)
def sample_path(
    C: Array,
    rules: Rules | None,
    order: Indices,
    state: State,
    schedule: Schedule,
    proposals: Proposals,
    records: Records,
) -> None:  # pragma: no cover - compiled
    """Advance one chain, in place, and record what it saw.

    Where something is known of the order the chain must start at one that breaks no rule.
    """
    T, kept = len(order), records.kept
    path = padded_path(order)
    if T < 2:  # nothing to move, but counted all the same
        _count(path, records, schedule.samples)
        kept[:, :T] = 0
        return
    chain = _Chain(path, np.empty(T + 1, np.intp), state)
    _locate(path, chain.place, 1, T + 1)
    neighbours = _likely_neighbours(C, proposals.sharpness)
    _moves(C, rules, chain, neighbours, proposals, records, schedule.burn)
    written = 0
    for r in range(schedule.samples):
        _moves(C, rules, chain, neighbours, proposals, records, schedule.thin)
        _count(path, records, 1)
        if written < len(kept) and r * len(kept) >= written * schedule.samples:
            for k in range(T):
                kept[written, k] = path[k + 1]
            written += 1
    put(path[1 : T + 1], order)


@njit(cache=True, nogil=True)
def _records_of(records: Records, j: int) -> Records:  # pragma: no cover - compiled
    """Those of trajectory j of a block."""
    where = records.positions
    return Records(
        records.pairs[j],
        records.first[j],
        records.last[j],
        where[j] if len(where) > 0 else where[:0].reshape(0, 0),
        records.kept[j],
        records.tally,
        records.scales,
    )


@njit(cache=True, nogil=True)
def sample_block(
    steps: Steps, rules: Rules | None, lengths: Indices, orders: Indices, states: State,
    schedule: Schedule, proposals: Proposals, records: Records,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """`sample_path` for each trajectory of a block; one padded cost matrix exists at a time."""
    n, T, _ = steps.target.shape
    room = np.empty((T + 1, T + 1))
    for j in range(n):
        t = lengths[j]
        costs, known = trajectory_costs(steps, j, t, room), known_of(rules, j, t)
        state, mine = states[j : j + 1], _records_of(records, j)
        sample_path(costs, known, orders[j, :t], state, schedule, proposals, mine)
