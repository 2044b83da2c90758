"""Metropolis over permutations for all trajectories at once: the sampler for arrays on a device.

The law is that of `metropolis`, `p(order | data, θ) ∝ exp(−cost(order))`, but every chain makes a move at the same time, of a
kind and of lengths drawn for all of them: neither depends on the chains, so each keeps its law. A proposal is a
permutation of positions and costs what its whole path costs, one gather of T + 1 numbers; the costs of all pairs,
(n, T + 1, T + 1), are held at once. Nothing here knows of rules: where there are some the compiled sampler works.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from retrace_sde.data.blocks import State, to_integers
from retrace_sde.orders.metropolis import KINDS, Proposals, Schedule, Tally

GOLDEN, FIRST, SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""The constants of splitmix64 as signed numbers: not every array library shifts unsigned ones."""

AHEAD = 32
"""Moves whose random numbers are drawn together."""

EACH = 4
"""Random numbers of a move: a place, a neighbour, a side, and whether it is accepted."""

FLOOR = 1e-4
"""Weight that keeps every pair possible as neighbours."""


class Records(NamedTuple):
    """What the chains saw, summed over records.

    pairs (n, T, T): how often b followed a; first and last (n, T); positions (n, T, T): what stood where, or None; kept: R
    orders (n, T) of each, evenly spaced. tally and scales: tries and acceptances by kind and by octave of length.
    """

    pairs: Any
    first: Any
    last: Any
    positions: Any | None
    kept: list[Any]
    tally: Tally
    scales: Tally


class Proposal(NamedTuple):
    """Where each position takes its node from, (n, T + 2); which chains have one; Hastings' ratio where it is not 1."""

    source: Any
    valid: Any
    ratio: Any | None = None


class Streams:
    """splitmix64 with a state for each chain, drawn in blocks."""

    def __init__(self, states: State, like: Any) -> None:
        self.xp, self.device = array_api_compat.array_namespace(like), array_api_compat.device(like)
        self.state = self.xp.asarray(states.view(np.int64).copy(), device=self.device)

    def units(self, count: int) -> Any:
        """Numbers in [0, 1), (count, chains)."""
        xp = self.xp
        k = xp.arange(1, count + 1, dtype=xp.int64, device=self.device)
        z = self.state[None, :] + k[:, None] * GOLDEN
        self.state = z[-1, :]
        z = (z ^ _shifted(z, 30)) * FIRST
        z = (z ^ _shifted(z, 27)) * SECOND
        return xp.astype(_shifted(z ^ _shifted(z, 31), 11), xp.float64) * 2.0**-53

    def states(self) -> State:
        return to_integers(self.state).view(np.uint64)


def _shifted(z: Any, bits: int) -> Any:
    """z >> bits with zeros entering from the left."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class ManyChains:
    """C chains for each of n trajectories, of lengths (n,): padded paths (C n, T + 2), their costs and random streams.

    `pairs` (n, T + 1, T + 1): what b costs right after a, with the start costs in the row of the node T.
    """

    def __init__(
        self, pairs: Any, lengths: Any, orders: Any, states: State, sharpness: float
    ) -> None:
        xp = self.xp = array_api_compat.array_namespace(pairs)
        device = array_api_compat.device(pairs)
        C, n, T = orders.shape
        end = xp.full((C * n, 1), T, dtype=xp.int64, device=device)
        self.path = xp.concat([end, xp.reshape(orders, (C * n, T)), end], axis=1)
        self.places = xp.arange(T + 2, dtype=xp.int64, device=device)[None, :]
        self.lengths, self.streams = xp.tile(lengths, (C,)), Streams(states, pairs)
        # Chains of the same trajectory look its costs up in the same place.
        self.block = xp.tile(xp.arange(n, dtype=xp.int64, device=device), (C,))[:, None] * (T + 1)
        likely = likely_neighbours(pairs, lengths, sharpness)
        self.cumulative = xp.reshape(xp.cumulative_sum(likely, axis=2), (-1, T + 1))
        self.pairs, self.likely = xp.reshape(pairs, (-1,)), xp.reshape(likely, (-1,))
        self.cost = self.cost_of(self.path)

    @property
    def orders(self) -> Any:
        return self.path[:, 1:-1]

    def cost_of(self, path: Any) -> Any:
        """`Σ_k C[path_k, path_{k+1}]` of each path."""
        return self.xp.sum(self._of(self.pairs, path[:, :-1], path[:, 1:]), axis=1)

    def _of(self, table: Any, a: Any, b: Any) -> Any:
        """Entries [a, b] of each trajectory's own table, a and b (C n, k)."""
        at = (self.block + a) * (self.path.shape[1] - 1) + b
        return self.xp.reshape(self.xp.take(table, self.xp.reshape(at, (-1,))), at.shape)

    def run(
        self, schedule: Schedule, proposals: Proposals, chance: np.random.Generator, *,
        keep: int = 0, positions: bool = False,
    ) -> Records:  # fmt: skip
        """Burn in, then record every `thin` moves."""
        xp, (many, T) = self.xp, self.orders.shape
        one = xp.eye(T, dtype=self.pairs.dtype, device=array_api_compat.device(self.path))
        log: list[tuple[int, int, Any]] = []
        self.moves(schedule.burn, proposals, chance, log)
        pairs, where, first, last = 0.0, 0.0, 0.0, 0.0
        kept: list[Any] = []
        back = self.lengths[:, None]
        live = xp.astype(self.places[:, :-2] < back, one.dtype)[:, :, None]
        for r in range(schedule.samples):
            self.moves(schedule.thin, proposals, chance, log)
            stood = xp.reshape(xp.take(one, xp.reshape(self.orders, (-1,)), axis=0), (many, T, T))
            stood = stood * live
            pairs = pairs + xp.matrix_transpose(stood[:, :-1, :]) @ stood[:, 1:, :]
            first = first + stood[:, 0, :]
            last = last + xp.take_along_axis(stood, back[:, :, None] - 1, axis=1)[:, 0, :]
            if positions:
                where = where + stood
            if len(kept) < keep and r * keep >= len(kept) * schedule.samples:
                kept.append(self.orders)
        found = None if not positions else xp.matrix_transpose(where)
        return Records(pairs, first, last, found, kept, *self._tallies(log))

    def _tallies(self, log: list[tuple[int, int, Any]]) -> tuple[Tally, Tally]:
        tally, scales = np.zeros((KINDS, 2), np.int64), np.zeros((64, 2), np.int64)
        if log:
            accepted = to_integers(self.xp.stack([each[2] for each in log]))
            for (kind, octave, _), many in zip(log, accepted, strict=True):
                tally[kind] += self.path.shape[0], many
                if kind < 2:
                    scales[octave] += self.path.shape[0], many
        return tally, scales

    def moves(
        self, count: int, proposals: Proposals, chance: np.random.Generator, log: list[Any]
    ) -> None:
        """`count` proposals of every chain."""
        shares = np.diff(np.concatenate([[0], proposals.shares])) / proposals.shares[-1]
        for begin in range(0, count, AHEAD):
            some = min(AHEAD, count - begin)
            units = self.streams.units(EACH * some)
            kinds = chance.choice(KINDS, size=some, p=shares)
            lengths = proposals.table[chance.integers(len(proposals.table), size=(some, 3))]
            for m in range(some):
                kind, u = int(kinds[m]), units[EACH * m : EACH * (m + 1), :]
                proposal = self._proposal(kind, u, [int(each) for each in lengths[m]])
                log.append((kind, int(np.log2(lengths[m, 0])), self._step(proposal, u[3, :])))

    def _step(self, proposal: Proposal, unit: Any) -> Any:
        """Take `path[source]` where Metropolis and Hastings accept it; how many chains did."""
        xp = self.xp
        path = xp.take_along_axis(self.path, proposal.source, axis=1)
        cost = self.cost_of(path)
        odds = xp.exp(xp.clip(self.cost - cost, -700.0, 60.0))
        odds = odds if proposal.ratio is None else odds * proposal.ratio
        taken = (unit < odds) & proposal.valid
        self.path = xp.where(taken[:, None], path, self.path)
        self.cost = xp.where(taken, cost, self.cost)
        return xp.sum(xp.astype(taken, xp.int64))

    def _proposal(self, kind: int, u: Any, sizes: list[int]) -> Proposal:
        """Of a kind of `metropolis`, with segments of the given sizes."""
        xp, t, (one, two, three) = self.xp, self.lengths, sizes
        i = 1 + xp.astype(u[0, :] * xp.astype(t, u.dtype), t.dtype)
        if kind == 0:
            return self._reversal(i, i + one, i + one <= t)
        if kind == 1:
            return self._exchange(i, i + one, i + one + two, i + one + two <= t + 1)
        if kind == 2:
            return self._swap(i, i + one, i + one + two, i + one + two + three)
        if kind == 3:
            return self._reversal(xp.ones_like(t), t, t > 1)
        return self._joined(i, u, by_insertion=kind == 5)

    def _reversal(self, i: Any, j: Any, valid: Any, ratio: Any | None = None) -> Proposal:
        """Reverse path[i … j]."""
        at, i, j = self.places, i[:, None], j[:, None]
        inside = (at >= i) & (at <= j) & valid[:, None]
        return Proposal(self.xp.where(inside, i + j - at, at), valid, ratio)

    def _exchange(self, i: Any, j: Any, k: Any, valid: Any, ratio: Any | None = None) -> Proposal:
        """Exchange the segments [i, j) and [j, k)."""
        xp, at, i, j, k = self.xp, self.places, i[:, None], j[:, None], k[:, None]
        source = at + xp.where(at < i + k - j, j - i, j - k)
        inside = (at >= i) & (at < k) & valid[:, None]
        return Proposal(xp.where(inside, source, at), valid, ratio)

    def _swap(self, i: Any, j: Any, k: Any, q: Any) -> Proposal:
        """Swap the segments [i, j) and [k, q) around [j, k)."""
        xp, at, valid = self.xp, self.places, q <= self.lengths + 1
        i, j, k, q = (each[:, None] for each in (i, j, k, q))
        late = xp.where(at < i + q - j, j - i - q + k, j - q)
        source = at + xp.where(at < i + q - k, k - i, late)
        return Proposal(xp.where((at >= i) & (at < q) & valid[:, None], source, at), valid)

    def _joined(self, i: Any, u: Any, *, by_insertion: bool) -> Proposal:
        """Bring a likely neighbour b of path[i] beside it, by reversing what lies between or by inserting b."""
        xp = self.xp
        row = xp.take(self.cumulative, (self.block + self._nodes(i))[:, 0], axis=0)
        b = xp.sum(xp.astype(row <= (u[1, :] * row[:, -1])[:, None], i.dtype), axis=1)
        b = xp.minimum(b, self.lengths - 1)  # a single observation has no neighbour: stay inside
        p = xp.astype(xp.argmax(xp.astype(self.path == b[:, None], i.dtype), axis=1), i.dtype)
        if not by_insertion:
            return self._reversed_between(i, p)
        # Each gap is proposed from both of its sides.
        g = xp.where(u[2, :] < 0.5, i, i - 1)
        q = self._of(self.likely, self._nodes(g, g + 1, p - 1, p + 1), b[:, None])
        ahead, valid = g < p, (g != p) & (g != p - 1)
        begin, middle = xp.where(ahead, g + 1, p), xp.where(ahead, p, p + 1)
        return self._exchange(begin, middle, xp.where(ahead, p, g) + 1, valid, _hastings(q))

    def _reversed_between(self, at: Any, p: Any) -> Proposal:
        """The reversal that brings position p beside position `at`, which is proposed from both of its ends."""
        xp = self.xp
        i, j = xp.where(p > at, at + 1, p), xp.where(p > at, p, at - 1)
        outer = self._nodes(i - 1, j + 1, i - 1, j + 1)
        q = self._of(self.likely, outer, self._nodes(j, i, i, j))
        return self._reversal(i, j, i < j, _hastings(q))

    def _nodes(self, *places: Any) -> Any:
        """What stands at some places of each path, (C n, places)."""
        at = self.xp.stack(places, axis=1)
        return self.xp.take_along_axis(self.path, at, axis=1)


def _hastings(q: Any) -> Any:
    """Probability of the way back over that of the way there, each proposed in two ways: q (chains, there and back, 4)."""
    return (q[:, 2] + q[:, 3]) / (q[:, 0] + q[:, 1])


def likely_neighbours(pairs: Any, lengths: Any, sharpness: float) -> Any:
    """`q(b | a) ∝ exp(−½ s (C_ab + C_ba))` with a floor, (n, T + 1, T + 1); 0 for the node T and what is not there."""
    xp = array_api_compat.array_namespace(pairs)
    device = array_api_compat.device(pairs)
    size = pairs.shape[1]
    node = xp.arange(size, dtype=lengths.dtype, device=device)
    there = node[None, :] < lengths[:, None]
    same = node[:, None] == node[None, :]
    valid = there[:, :, None] & there[:, None, :] & ~same[None, :, :]
    both = xp.where(
        valid,
        pairs + xp.matrix_transpose(pairs),
        xp.asarray(xp.inf, dtype=pairs.dtype, device=device),
    )
    low = xp.min(both, axis=2, keepdims=True)
    low = xp.where(xp.isfinite(low), low, xp.zeros_like(low))
    weight = xp.where(valid, xp.exp(-0.5 * sharpness * (both - low)) + FLOOR, xp.zeros_like(pairs))
    total = xp.sum(weight, axis=2, keepdims=True)
    return weight / xp.where(total > 0, total, xp.ones_like(total))


def padded_pairs(target: Any, source: Any, start: Any, lengths: Any) -> Any:
    """`C[a, b] = ½ |target_b − source_a|²`, (n, T + 1, T + 1), padded with the start costs; 0 for what is not there."""
    xp = array_api_compat.array_namespace(target)
    n, T, _ = target.shape
    device = array_api_compat.device(target)
    gap = xp.sum(source**2, axis=2)[:, :, None] + xp.sum(target**2, axis=2)[:, None, :]
    inner = xp.maximum(0.5 * gap - source @ xp.matrix_transpose(target), xp.zeros_like(gap))
    there = xp.arange(T, dtype=lengths.dtype, device=device)[None, :] < lengths[:, None]
    inner = xp.where(there[:, :, None] & there[:, None, :], inner, xp.zeros_like(inner))
    zero = xp.zeros((n, T + 1, 1), dtype=target.dtype, device=device)
    below = xp.concat([inner, xp.where(there, start, xp.zeros_like(start))[:, None, :]], axis=1)
    return xp.concat([below, zero], axis=2)
