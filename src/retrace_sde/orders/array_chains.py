"""Metropolis over permutations for all trajectories at once: the sampler for arrays on a device.

The stationary distribution is that of `metropolis`, `p(order | data, θ) ∝ exp(−cost(order))`, but every chain makes a move at the same time, of a
kind and at a place drawn for all of them: neither depends on the chains, so each keeps its distribution, and they differ in which
neighbour they propose and in what they accept. A proposal is a permutation of positions and costs what its whole path
costs, one gather of T + 1 numbers; the costs of all pairs, (n, T + 1, T + 1), are held at once. Nothing here knows of rules:
where there are some the compiled sampler works.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Indices, State
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.moves import Move, exchange, make, reversal
from retrace_sde.orders.moves.proposals import KINDS, NEIGHBOUR_FLOOR, Proposals, Tally
from retrace_sde.orders.path_chains import Records
from retrace_sde.panel.blocks import to_integers

GOLDEN, FIRST_FACTOR, SECOND_FACTOR = (
    -7046029254386353131,
    -4658895280553007687,
    -7723592293110705685,
)
"""The constants of splitmix64 as signed numbers: not every array library shifts unsigned ones."""

MOVES_AHEAD = 32
"""Moves whose random numbers are drawn together."""

EACH = 2
"""Random numbers of a move of one chain: which neighbour, and whether it is accepted."""


class Proposal(NamedTuple):
    """Where each position takes its node from, (T + 2,) or (chains, T + 2); which chains may; Hastings' ratio; None: all, 1."""

    source: Any
    valid: Any | None = None
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
        z = (z ^ _shifted(z, 30)) * FIRST_FACTOR
        z = (z ^ _shifted(z, 27)) * SECOND_FACTOR
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
        self.ragged = bool(xp.any(lengths < T))
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
        self,
        schedule: Schedule,
        proposals: Proposals,
        chance: np.random.Generator,
        *,
        keep: int = 0,
    ) -> Records:
        """Burn in, then record every `thin` moves; of all chains, in their array library, `kept` (R, chains, T)."""
        xp, (many, T) = self.xp, self.orders.shape
        # Counts of a few thousand records are whole numbers also in single precision.
        one = xp.eye(T, dtype=xp.float32, device=array_api_compat.device(self.path))
        log: list[tuple[int, int, Any]] = []
        self.moves(schedule.burn, proposals, chance, log)
        live = xp.astype(self.places[:, :-2] < self.lengths[:, None], one.dtype)[:, :, None]
        pairs = where = xp.zeros_like(live)
        kept: Any = []
        for r in range(schedule.samples):
            self.moves(schedule.thin, proposals, chance, log)
            stood = xp.reshape(xp.take(one, xp.reshape(self.orders, (-1,)), axis=0), (many, T, T))
            stood = stood * live
            pairs = pairs + xp.matrix_transpose(stood[:, :-1, :]) @ stood[:, 1:, :]
            where = where + stood
            if len(kept) < keep and r * keep >= len(kept) * schedule.samples:
                kept.append(self.orders)
        pairs, where = (xp.astype(each, self.pairs.dtype) for each in (pairs, where))
        ends = xp.broadcast_to(self.lengths[:, None, None] - 1, (many, 1, T))
        last = xp.take_along_axis(where, ends, axis=1)[:, 0, :]
        positions = xp.matrix_transpose(where)
        return Records(pairs, where[:, 0, :], last, positions, kept, *self._tallies(log))

    def _tallies(self, log: list[tuple[int, int, Any]]) -> tuple[Tally, Tally]:
        tally, scales = np.zeros((KINDS, 2), np.int64), np.zeros((64, 2), np.int64)
        made = [each for _, _, each in log if each is not None]
        accepted = iter(to_integers(self.xp.stack(made)).tolist() if made else [])
        for kind, octave, each in log:
            many = self.path.shape[0], 0 if each is None else next(accepted)
            tally[kind] += many
            if kind < 2:
                scales[octave] += many
        return tally, scales

    def moves(
        self, count: int, proposals: Proposals, chance: np.random.Generator, log: list[Any]
    ) -> None:
        """`count` proposals of every chain."""
        T, device = self.path.shape[1] - 2, array_api_compat.device(self.path)
        shares = np.diff(np.concatenate([[0], proposals.shares])) / proposals.shares[-1]
        for begin in range(0, count, MOVES_AHEAD):
            some = min(MOVES_AHEAD, count - begin)
            units = self.streams.units(EACH * some)
            kinds, places = (
                chance.choice(KINDS, size=some, p=shares),
                chance.integers(1, T + 1, some),
            )
            sizes = proposals.table[chance.integers(len(proposals.table), size=(some, 3))]
            sides = chance.integers(2, size=some).tolist()
            common = [common_proposal(*each, T) for each in zip(kinds, places, sizes, strict=True)]
            sources = self.xp.asarray(np.stack([each[0] for each in common]), device=device)
            for m, (kind, i) in enumerate(zip(kinds.tolist(), places.tolist(), strict=True)):
                neighbour, unit = units[EACH * m, :], units[EACH * m + 1, :]
                octave, end = int(np.log2(sizes[m, 0])), common[m][1]
                if kind > 3:
                    proposal = self._joined(i, neighbour, i - sides[m] if kind == 5 else None)
                elif end > T:
                    log.append((kind, octave, None))
                    continue
                elif kind == 3 and self.ragged:
                    proposal = self._reversal(self.xp.ones_like(self.lengths), self.lengths)
                else:
                    within = self.lengths >= end if self.ragged else None
                    proposal = Proposal(sources[m, :], within)
                log.append((kind, octave, self._step(proposal, unit)))

    def _step(self, proposal: Proposal, unit: Any) -> Any:
        """Take `path[source]` where Metropolis and Hastings accept it; how many chains did."""
        xp, (source, valid, ratio) = self.xp, proposal
        if source.ndim == 1:
            path = xp.take(self.path, source, axis=1)
        else:
            path = xp.take_along_axis(self.path, source, axis=1)
        cost = self.cost_of(path)
        odds = xp.exp(xp.clip(self.cost - cost, -700.0, 60.0))
        taken = unit < (odds if ratio is None else odds * ratio)
        taken = taken if valid is None else taken & valid
        self.path = xp.where(taken[:, None], path, self.path)
        self.cost = xp.where(taken, cost, self.cost)
        return xp.sum(xp.astype(taken, xp.int64))

    def _joined(self, i: int, unit: Any, gap: int | None) -> Proposal:
        """Bring a likely neighbour b of a = path[i] beside it, by reversing what lies between or into a `gap` beside a."""
        xp, a = self.xp, self.path[:, i]
        row = xp.take(self.cumulative, self.block[:, 0] + a, axis=0)
        b = xp.sum(xp.astype(row <= unit[:, None], a.dtype), axis=1)
        b = xp.minimum(
            b, self.lengths - 1
        )  # rounding, and a single observation, which has no neighbour
        p = xp.astype(xp.argmax(xp.astype(self.path == b[:, None], a.dtype), axis=1), a.dtype)
        found = self._reversed_between(i, p, b) if gap is None else self._inserted(gap, p, b)
        return found._replace(valid=found.valid & (self.lengths >= i)) if self.ragged else found

    def _reversed_between(self, i: int, p: Any, b: Any) -> Proposal:
        """The reversal that brings b, at p, beside place i; `after` and `far` stand at its other ends.

        It is proposed from both of its sides, and back likewise: hence a ratio of sums.
        """
        xp, a, up = self.xp, self.path[:, i], p > i
        after = xp.where(up, self.path[:, i + 1], self.path[:, i - 1])
        far = xp.take_along_axis(self.path, xp.where(up, p + 1, p - 1)[:, None], axis=1)[:, 0]
        there = self._likely(a, b) + self._likely(far, after)
        back = self._likely(a, after) + self._likely(far, b)
        begin, end = xp.where(up, i + 1, p), xp.where(up, p, i - 1)
        return self._reversal(begin, end)._replace(ratio=back / there)

    def _inserted(self, gap: int, p: Any, b: Any) -> Proposal:
        """b, at p, put right after place `gap`, which is proposed from both of its sides."""
        xp, ahead = self.xp, gap < p
        there = self._likely(self.path[:, gap], b) + self._likely(self.path[:, gap + 1], b)
        beside = xp.take_along_axis(self.path, xp.stack([p - 1, p + 1], axis=1), axis=1)
        back = self._likely(beside[:, 0], b) + self._likely(beside[:, 1], b)
        # The nodes between p and the gap move by one, and b to the other end of them.
        at, p, ahead = self.places, p[:, None], ahead[:, None]
        low, high = xp.where(ahead, gap + 1, p), xp.where(ahead, p, gap)
        moved = xp.where(ahead, xp.where(at == low, p, at - 1), xp.where(at == high, p, at + 1))
        source = xp.where((at >= low) & (at <= high), moved, at)
        return Proposal(source, (low < high)[:, 0], back / there)

    def _reversal(self, i: Any, j: Any) -> Proposal:
        """Reverse path[i … j] of each chain."""
        at, low, high = self.places, i[:, None], j[:, None]
        return Proposal(self.xp.where((at >= low) & (at <= high), low + high - at, at), i < j)

    def _likely(self, a: Any, b: Any) -> Any:
        """The probability with which b is proposed as neighbour of a."""
        return self.xp.take(self.likely, (self.block[:, 0] + a) * (self.path.shape[1] - 1) + b)


def common_proposal(kind: int, i: int, sizes: Tally, T: int) -> tuple[Indices, int]:
    """Where every chain's positions take their nodes from, and the last place that moves; of kinds that all chains share.

    Nothing moves where that is beyond T, and of kinds that each chain proposes for itself.
    """
    i, (one, two, three) = int(i) - 1, sizes.tolist()
    if kind == 0:
        move = reversal(i, i + one + 1)
    elif kind in (1, 2):
        end = i + one + two
        move = Move(i, i + one, end, end + three, 0) if kind == 2 else exchange(i, i + one, end)
    else:
        move = reversal(0, T)
    source = np.arange(T + 2)
    if kind <= 3 and move.q <= T:
        make(source[1:-1], move)
    return source, int(move.q)


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
    weight = xp.where(
        valid, xp.exp(-0.5 * sharpness * (both - low)) + NEIGHBOUR_FLOOR, xp.zeros_like(pairs)
    )
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
