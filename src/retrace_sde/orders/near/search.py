"""Compiled local search by lists of neighbours: O(T K) for a sweep over T slices with K neighbours each.

Only moves that put neighbours side by side are tried. What a step costs between slices that are no neighbours is taken from
sketches of them, or, without sketches, is `far`. The path is padded as in `search`: the node T stands before the first and
after the last slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves import descent, judges
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.moves import Move, make, nothing, reversal
from retrace_sde.orders.paths import PathCosts
from retrace_sde.orders.search import LONG_SEGMENT, SHORT_SEGMENT, inserted, padded_path

Lists = NDArray[np.int32]


NEAREST = 6
"""Neighbours beside which longer segments are tried."""


class Near(NamedTuple):
    """Neighbours (T, K) of each slice, nearest first (−1: no more), what each costs right after it (T, K), and start costs (T,).

    All other steps cost `½ |target_b − source_a|²` of sketches (T, k), or `far` where k = 0.
    """

    lists: Lists
    costs: Array
    start: Array
    source: Array
    target: Array
    far: float = np.inf


# Sums in whatever order is fastest: most of a search is spent here.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _rough(source: Array, target: Array) -> float:
    """A step's cost by sketches."""
    total = 0.0
    for k in range(len(source)):
        total += (target[k] - source[k]) ** 2
    return 0.5 * total


@njit(cache=True, nogil=True)
def _step(near: Near, a: int, b: int) -> float:
    """What b costs right after a."""
    T = len(near.start)
    if b == T:
        return 0.0
    if a == T:
        return float(near.start[b])
    for k in range(near.lists.shape[1]):
        found = near.lists[a, k]
        if found == b:
            return float(near.costs[a, k])
        if found < 0:
            break
    if near.source.shape[1] == 0:
        return near.far
    return _rough(near.source[a], near.target[b])


@njit(cache=True, nogil=True)
def _turning(near: Near, path: Indices, turn: Array, begin: int, end: int) -> None:
    """turn[k] = Σ_{i ≤ k} of what the step into place i costs more against the path than along it, after a change of the
    steps into begin … end."""
    last = len(path) - 1
    begin, end = max(begin, 2), min(end, last - 1)
    before = turn[end]
    for k in range(begin, end + 1):
        a, b = path[k - 1], path[k]
        turn[k] = turn[k - 1] + _step(near, b, a) - _step(near, a, b)
    shift = turn[end] - before
    for k in range(end + 1, last):
        turn[k] += shift


class NearJudge(NamedTuple):
    """Costs of near pairs, the padded path whose inside is the order, where each slice stands in it, `turn` (`_turning`), and
    which slices are active: the others found no better place. `looking`: whether the slice now looked at was active."""

    near: Near
    path: Indices
    place: Indices
    turn: Array
    active: NDArray[np.bool_]
    looking: NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _best_reversal(judge: NearJudge, a: int) -> tuple[float, Move]:
    """The best reversal that puts a neighbour beside a: after it, or before it."""
    near, path, place, turn = judge.near, judge.path, judge.place, judge.turn
    last = len(path) - 1
    least, low, high = 0.0, 1, 0
    p = place[a]
    for k in range(near.lists.shape[1]):
        b = near.lists[a, k]
        if b < 0:
            break
        q = place[b]
        # a → b: what lies between a and b is reversed, b included; or b → a, a included
        for after in (True, False):
            i, j = (min(p, q) + 1, max(p, q)) if after else (min(p, q), max(p, q) - 1)
            if i < 1 or j >= last or i >= j:
                continue
            found = _step(near, path[i - 1], path[j]) + _step(near, path[i], path[j + 1])
            found -= _step(near, path[i - 1], path[i]) + _step(near, path[j], path[j + 1])
            found += turn[j] - turn[i]
            if found < least:
                least, low, high = found, i, j
    return least, reversal(low - 1, high)


@njit(cache=True, nogil=True)
def _best_insertion(judge: NearJudge, i: int, length: int) -> tuple[float, Move]:
    """The best gap, beside a neighbour of its ends, for path[i … i + length), in either direction."""
    near, path, place, turn = judge.near, judge.path, judge.place, judge.turn
    last = len(path) - 1
    head, tail = path[i], path[i + length - 1]
    before, after = path[i - 1], path[i + length]
    gain = _step(near, before, head) + _step(near, tail, after) - _step(near, before, after)
    turned = turn[i + length - 1] - turn[i]
    least, best_k, flip = 0.0, -1, False
    K = near.lists.shape[1] if length <= SHORT_SEGMENT else min(NEAREST, near.lists.shape[1])
    for c in range(4 * K + 2):
        if c >= 4 * K:  # the ends
            k = 0 if c == 4 * K else last - 1
        else:
            b = near.lists[head if c % 2 == 0 else tail, c // 4]
            if b < 0:
                continue
            k = place[b] - (c // 2) % 2
        if k < 0 or k >= last or i - 1 <= k < i + length:
            continue
        left, right = path[k], path[k + 1]
        gap = _step(near, left, right) + gain
        plain = _step(near, left, head) + _step(near, tail, right) - gap
        if plain < least:
            least, best_k, flip = plain, k, False
        flipped = _step(near, left, tail) + _step(near, head, right) + turned - gap
        if length > 1 and flipped < least:
            least, best_k, flip = flipped, k, True
    if best_k < 0:
        return 0.0, nothing()
    return least, inserted(i - 1, i - 1 + length, best_k - 1, flip)


@implements(descent.centres, NearJudge)
def _centres(judge: NearJudge, rules: Any, order: Indices, stage: int) -> int:
    """Slices, each with its reversals and with the segments of every length that begin with it."""
    return len(order) * (1 + _longest(len(order), stage))


@njit(cache=True, nogil=True)
def _longest(T: int, stage: int) -> int:
    """The longest segment that is moved."""
    return SHORT_SEGMENT if stage == 0 else min(LONG_SEGMENT, T // 2)


@implements(descent.best, NearJudge)
def _best(judge: NearJudge, rules: Any, order: Indices, stage: int, at: int) -> tuple[float, Move]:
    T = len(order)
    each = 1 + _longest(T, stage)
    a, length = at // each, at % each
    if length == 0:
        if stage > 0 and a == 0:
            judge.active[:] = True
        judge.looking[0], judge.active[a] = judge.active[a], False
    i = judge.place[a]
    if not judge.looking[0] or i + length > T + 1:
        return 0.0, nothing()
    return _best_reversal(judge, a) if length == 0 else _best_insertion(judge, i, length)


@implements(judges.take, NearJudge)
def _take(judge: NearJudge, order: Indices, move: Move) -> None:
    """Places and sums follow; what got new neighbours is active."""
    make(order, move)
    i, j, q = move.i, move.j, move.q
    for p in range(i, q):
        judge.place[order[p]] = p + 1
    for p in (i - 1, i, i + 1, j - 1, j, q - 2, q - 1, q):
        if 0 <= p < len(order):
            judge.active[order[p]] = True
    _turning(judge.near, judge.path, judge.turn, i + 1, q + 1)


@njit(cache=True, nogil=True)
def path_cost(near: Near, order: Indices) -> float:
    """`start[o_0] + Σ C[o_i, o_{i+1}]`."""
    total = float(near.start[order[0]])
    for k in range(len(order) - 1):
        total += _step(near, order[k], order[k + 1])
    return total


@njit(cache=True, nogil=True)
def _improve(near: Near, path: Indices, tolerance: float) -> None:
    T = len(path) - 2
    place, active, looking = np.empty(T + 1, np.intp), np.ones(T, np.bool_), np.ones(1, np.bool_)
    judge = NearJudge(near, path, place, np.zeros(T + 2), active, looking)
    for k in range(T + 1):
        place[path[k]] = k
    _turning(near, path, judge.turn, 1, T)
    descent.descend(
        judge, None, path[1:-1], tolerance, np.int64(2)
    )  # not a literal, for which the search would be compiled again


def improve(near: Near, order: Indices) -> Indices:
    """Reversals and moves of segments until none lowers the cost of the path."""
    path = padded_path(np.ascontiguousarray(order, dtype=np.intp))
    _improve(near, path, 1e-9 * abs(path_cost(near, order)) + 1e-300)
    return path[1:-1]


@dataclass(frozen=True, eq=False)
class NearPath:
    """`PathCosts` of so many slices that only near pairs are known."""

    near: Near

    def cost(self, order: Indices) -> float:
        """−log p of an order, up to a constant."""
        return path_cost(self.near, order)

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        return improve(self.near, order)

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """As `PathCosts.sample`, which needs a table of all pairs."""
        near = self.near
        costs = 0.5 * ((near.source**2).sum(axis=1)[:, None] + (near.target**2).sum(axis=1))
        costs -= near.source @ near.target.T
        if near.source.shape[1] == 0:
            costs[:] = near.far
        a, k = np.nonzero(near.lists >= 0)
        costs[a, near.lists[a, k]] = near.costs[a, k]
        return PathCosts(np.maximum(costs, 0.0), near.start).sample(order, state, samples, keep)
