"""How a sampler chooses its next move.

`Mixture` is for costs of single steps: reversals, exchanges and swaps of segments of every length, whole flips, and a node joined
to a likely neighbour, in shares that are adapted while burning in. `Nearby` is for costs in which every pair matters:
reversals, insertions and swaps, mostly short. `Windows` stays within a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Proposal, accept, moved, propose, tried
from retrace_sde.orders.moves.moves import (
    Move,
    exchange,
    insertion,
    nothing,
    random_bits,
    random_unit,
    reversal,
    swap,
)

Tally = NDArray[np.int64]

LENGTHS = 1024
"""Entries of the table from which segment lengths are drawn: octaves of equal or adapted weight."""

KINDS = 6
"""Reversal, exchange, swap, whole flip, neighbour by reversal, neighbour by insertion."""

SHARES = np.array([30, 50, 60, 64, 200, 256])
"""Cumulative shares, of 256, of the kinds of moves before adaptation."""

NODE_SWAPS = 0.25
"""Share of proposals, where something is known of the order, that swap two nodes: little else crosses anchors."""

SHARPNESS = 0.5
"""How strongly a neighbour proposal prefers likely neighbours: `q(b | a) ∝ exp(−½ (C_ab + C_ba))` to this power."""

NEIGHBOUR_FLOOR = 1e-4
"""Weight that keeps every pair possible as neighbours."""


class Proposals(NamedTuple):
    """Lengths of segments (`length_table`), cumulative shares of the kinds, sharpness of neighbour proposals."""

    table: Tally
    shares: Tally
    sharpness: float


class Mixture(NamedTuple):
    """The same at work on one order: likely neighbours q[a, b] with alias tables, where each node stands, and
    tries and acceptances by kind and by octave of length."""

    table: Tally
    shares: Tally
    q: Array
    keep: Array
    alias: Indices
    place: Indices
    tally: Tally
    scales: Tally


class Nearby(NamedTuple):
    """Shares of proposals: the whole order reversed, a segment of it, two that change places (what no other move can do across
    known positions); the rest insert one elsewhere. A share `far` goes any distance, as do swaps if `across`; others up to `near`.
    """

    flips: float
    reversals: float
    swaps: float
    far: float
    near: int
    across: bool


class Windows(NamedTuple):
    """Within a window of at most `reach` positions a reversal, or an exchange of its two parts."""

    reach: int


def length_table(reach: int, weights: Array | None = None) -> NDArray[np.int64]:
    """Quantiles of a length on 1 … reach, log-uniform within octaves; `weights` per octave (equal if None)."""
    octaves = max(1, int(np.ceil(np.log2(reach + 1))))
    share = np.ones(octaves) if weights is None else np.asarray(weights[:octaves], dtype=float)
    edges = np.concatenate([[0.0], np.cumsum(share / share.sum())])
    u = (np.arange(LENGTHS) + 0.5) / LENGTHS
    position = np.interp(u, edges, np.arange(octaves + 1))
    return np.clip(np.floor(2.0**position), 1, max(reach, 1)).astype(np.int64)


def adapted(tally: Tally, lengths: Tally) -> tuple[NDArray[np.int64], Array]:
    """Shares of moves and weights of octaves in proportion to what was accepted, each with a floor.

    To be used while burning in only: a chain that keeps adapting has no stationary distribution.
    """
    rate = tally[:, 1] / np.maximum(tally[:, 0], 1)
    share = 0.5 * np.diff(np.concatenate([[0], SHARES])) / 256 + 0.5 * rate / max(rate.sum(), 1e-9)
    octave = lengths[:, 1] / np.maximum(lengths[:, 0], 1)
    weights = 0.25 + 0.75 * octave / max(octave.max(), 1e-9)
    cumulative = np.round(256 * np.cumsum(share / share.sum())).astype(np.int64)
    cumulative[-1] = 256
    return cumulative, weights


@njit(cache=True, nogil=True)
def mixture(proposals: Proposals, C: Array, order: Indices, tally: Tally, scales: Tally) -> Mixture:
    """Proposals for an order under padded costs C; the padding node is never proposed (alias tables by Vose)."""
    T = len(order)
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
            likely = np.exp(-0.5 * proposals.sharpness * both) + NEIGHBOUR_FLOOR
            q[a, b] = 0.0 if b == a else likely
            total += q[a, b]
        n_small, n_large = 0, 0
        for b in range(T):
            q[a, b] /= max(total, NEIGHBOUR_FLOOR)  # a single observation has no neighbours
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
    place = np.empty(T, np.intp)
    _locate(place, order, 0, T)
    return Mixture(proposals.table, proposals.shares, q, keep, alias, place, tally, scales)


@njit(cache=True, nogil=True)
def _node(order: Indices, p: int) -> int:
    """What stands at p; the padding node T beyond the ends."""
    return order[p] if 0 <= p < len(order) else len(order)


@njit(cache=True, nogil=True, error_model="numpy")
def _join_by_reversal(
    q: Array, place: Indices, order: Indices, a: int, b: int
) -> tuple[Move, float]:
    """Make b a neighbour of a by reversing what lies between.

    The same reversal is proposed from its left and from its right neighbour, and back likewise: hence
    the Hastings ratio of sums.
    """
    p, to = place[a], place[b]
    i, j = (p + 1, to) if to > p else (to, p - 1)
    if i >= j:
        return nothing(), 1.0
    left, right = _node(order, i - 1), _node(order, j + 1)
    there = q[left, order[j]] + q[right, order[i]]
    back = q[left, order[i]] + q[right, order[j]]
    return reversal(i, j + 1), back / there


@njit(cache=True, nogil=True, error_model="numpy")
def _join_by_insertion(
    q: Array, place: Indices, order: Indices, a: int, b: int, after: bool
) -> tuple[Move, float]:
    """Take b out and put it right after (or before) a; each gap is proposed from both of its sides."""
    p = place[b]
    g = place[a] if after else place[a] - 1
    if g in (p, p - 1):
        return nothing(), 1.0
    there = q[_node(order, g), b] + q[_node(order, g + 1), b]
    back = q[_node(order, p - 1), b] + q[_node(order, p + 1), b]
    return insertion(p, g + 1 if g < p else g), back / there


@njit(cache=True, nogil=True)
def _within(i: int, j: int, k: int, q: int, T: int) -> Move:
    """The swap of two segments, where it stays within T positions."""
    return Move(i, j, k, q, 0) if q <= T else nothing()


# Hooks take a mixture apart without a branch: where paths part, numba counts references to each of its arrays.
@implements(propose, Mixture)
def _propose_mixture(proposals: Mixture, rules: Any, order: Indices, state: State) -> Proposal:
    return _mixed(
        proposals.table, proposals.shares, proposals.q, proposals.keep, proposals.alias,
        proposals.place, rules, order, state,
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def _mixed(
    table: Tally, shares: Tally, q: Array, keep: Array, alias: Indices, place: Indices, rules: Any,
    order: Indices, state: State,
) -> Proposal:  # fmt: skip
    """A move of a random kind, at a random place, of random lengths."""
    T, mask = len(order), np.uint64(LENGTHS - 1)
    bits = random_bits(state)
    pick = int(bits & np.uint64(255))
    spot = ((bits >> np.uint64(8)) & np.uint64(0xFFFFFF)) * np.uint64(T) >> np.uint64(24)
    i = int(np.int64(spot))
    one = int(table[int((bits >> np.uint64(32)) & mask)])
    two = int(table[int((bits >> np.uint64(42)) & mask)])
    move, ratio, kind = nothing(), 1.0, 0
    while pick >= shares[kind]:
        kind += 1
    if rules is not None and random_unit(state) < NODE_SWAPS:
        kind = 2
        k = int(random_unit(state) * T)
        if abs(k - i) > 1:
            move = swap(min(i, k), max(i, k))
    elif kind == 0:
        if i + one < T:
            move = reversal(i, i + one + 1)
    elif kind == 1:
        move = _within(i, i + one, i + one, i + one + two, T)
    elif kind == 2:
        k = i + one + two
        move = _within(i, i + one, k, k + int(table[int((bits >> np.uint64(52)) & mask)]), T)
    elif kind == 3:
        move = reversal(0, T)
    else:
        u = random_unit(state) * T
        a, b = i, int(u)
        if u - b >= keep[a, b]:
            b = int(alias[a, b])
        if kind == 4:
            move, ratio = _join_by_reversal(q, place, order, a, b)
        else:
            after = (bits >> np.uint64(63)) == np.uint64(1)
            move, ratio = _join_by_insertion(q, place, order, a, b, after)
    return Proposal(move, ratio, kind, one)


@implements(moved, Mixture)
def _moved_mixture(proposals: Mixture, order: Indices, move: Move) -> None:
    _locate(proposals.place, order, move.i, move.q)


@njit(cache=True, nogil=True)
def _locate(place: Indices, order: Indices, i: int, j: int) -> None:
    """Where what stands within [i, j) stands."""
    for p in range(i, j):
        place[order[p]] = p


@implements(tried, Mixture)
def _tried_mixture(proposals: Mixture, proposal: Proposal, accepted: bool) -> None:
    _count(proposals.tally, proposals.scales, proposal.kind, proposal.length, accepted)


@njit(cache=True, nogil=True)
def _count(tally: Tally, scales: Tally, kind: int, length: int, accepted: bool) -> None:
    """By kind, and of reversals and exchanges by octave of length."""
    tally[kind, 0] += 1
    tally[kind, 1] += accepted
    if kind < 2:
        octave = 0
        while length > 1:
            length >>= 1
            octave += 1
        scales[octave, 0] += 1
        scales[octave, 1] += accepted


@implements(propose, Nearby)
def _propose_nearby(proposals: Nearby, rules: Any, order: Indices, state: State) -> Proposal:
    T, kind = len(order), random_unit(state)
    flips, reversals, swaps, share, near, across = proposals
    if kind < flips:
        return Proposal(reversal(0, T), 1.0, 0, 1)
    swapped = flips + reversals <= kind < flips + reversals + swaps
    far = random_unit(state) < share or (swapped and across)
    reach = T - 1 if far else min(near, T - 1)
    p = int(random_unit(state) * T)
    length = 1 + int(random_unit(state) * reach)
    q = p + length if random_unit(state) < 0.5 else p - length
    if q < 0 or q >= T:
        move = nothing()
    elif kind < flips + reversals:
        move = reversal(min(p, q), max(p, q) + 1)
    elif swapped:
        move = swap(min(p, q), max(p, q))
    else:
        move = insertion(p, q)
    return Proposal(move, 1.0, 0, 1)


@implements(accept, Nearby)
def _accept_nearby(proposals: Nearby, change: float, ratio: float, state: State) -> bool:
    """As by default, but with one random number for every proposal, whatever it is worth."""
    return np.log(1.0 - random_unit(state)) < -change


@implements(propose, Windows)
def _propose_windows(proposals: Windows, rules: Any, order: Indices, state: State) -> Proposal:
    T = len(order)
    length = 2 + int(random_unit(state) * (min(proposals.reach, T) - 1))
    i = int(random_unit(state) * (T - length + 1))
    if random_unit(state) < 0.5:
        move = reversal(i, i + length)
    else:
        move = exchange(i, i + 1 + int(random_unit(state) * (length - 1)), i + length)
    return Proposal(move, 1.0, 0, 1)
