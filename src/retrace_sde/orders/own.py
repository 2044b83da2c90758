"""Each trajectory's own order under Euler's model: the best of each, and draws from their posterior.

The cost of an order is `−log p₀(x_{o_0}) + Σ_i ½ ‖x_{o_{i+1}} − x_{o_i} − Θ φ Δt‖²` in the metric of (H Δt)⁻¹. Blocks of
trajectories are whitened together; the compiled search (`search`) and sampler (`metropolis`) take them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, Protocol

import array_api_compat
import numpy as np
from scipy.linalg import cholesky

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.moments import Frequencies
from retrace_sde.io.arrays import Indices, State
from retrace_sde.orders.array_chains import ManyChains, padded_pairs
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.proposals import Proposals
from retrace_sde.orders.path_chains import Records, sample_block
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import BlockCosts, improve_block
from retrace_sde.panel.blocks import Data, like, to_integers, to_numpy
from retrace_sde.process.sde import Gaussian

BLOCK = 128
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

PAIRS = 1 << 19
"""Pairs of observations of a block at most, as 128 trajectories of 64 have: a few long ones keep every core busy."""

MANY_NUMBERS = 1 << 28
"""Costs of pairs that are held at a time on a device, 2 GiB of them."""

MANY_CHAINS = 10_000
"""Chains from which a device, which moves all of them in the time of one, is quicker than the compiled sampler on two cores
(`benchmarks/gpu_orders`). Not a matter of how many cores there are: answers would depend on it."""

KICKS = 10
"""Random exchanges after which the search of each trajectory is repaired; more change little."""

Count = Callable[[Any, Any, Frequencies], Any]


@dataclass(frozen=True, eq=False)
class EulerLaw:
    """Euler's step and the distribution of the first observation; without one every start is as good."""

    step: Euler
    start: Gaussian | None

    def costs(self, data: Data, rows: slice) -> BlockCosts:
        """Whitened states, whitened predictions and start costs of a block, as the kernels want them."""
        x, u = data.block(rows)
        each = self.whitened(to_numpy(x), None if u is None else to_numpy(u))
        return BlockCosts(*(np.ascontiguousarray(array) for array in each))

    def whitened(self, x: Any, u: Any | None) -> tuple[Any, Any, Any]:
        """States and predictions (n, T, d), whitened, and start costs (n, T), of any array library."""
        xp = array_api_compat.array_namespace(x)
        Wt = like(self.step.whitening.T, x)
        start = xp.zeros_like(x[:, :, 0])
        if self.start is not None:
            inverse = np.linalg.inv(cholesky(self.start.covariance, lower=True))
            z = (x - like(self.start.mean, x)) @ like(inverse.T, x)
            constant = 0.5 * len(inverse) * np.log(2 * np.pi) - np.log(np.diag(inverse)).sum()
            start = 0.5 * xp.sum(z * z, axis=2) + float(constant)
        return x @ Wt, self.step.predict(x, u) @ Wt, start


class Judge(Protocol):
    """A model that pairs of observations and first ones are judged by."""

    def costs(self, data: Data, rows: slice) -> BlockCosts: ...


@dataclass(frozen=True, eq=False)
class OwnOrders:
    """What each trajectory's own order costs under a model, with what is known of it."""

    data: Data
    law: Judge
    prior: Prior | None = None

    def improve(
        self, orders: Indices, states: State, *, cold: bool = False, kicks: int = 0
    ) -> tuple[Indices, int]:
        """Each order, improved, and how many changed. `cold`: from scratch; `kicks`: harder.

        With a prior, orders that break none of its rules come out, and (unless `cold`) must go in.
        """
        how = cold, cold or kicks > 0, kicks
        work = partial(_improved, law=self.law, prior=self.prior, how=how)
        along = self._numbers, orders, states[:, None]
        size = _block(self.data)
        orders, streams, changed = _compiled(self.data).each_piece(work, *along, size=size)
        states[:] = streams[:, 0]
        return orders, int(changed.sum())

    def draw(self, chains: Chains, stretch: Stretch, count: Count | None = None) -> Draws:
        """Advance every chain, in place.

        `count` makes statistics of a block's frequencies of pairs and ends; they are summed, chain by chain.
        """
        n, T, _ = self.data.shape
        C, keep = len(chains.orders), stretch.keep
        where = np.zeros((n if stretch.positions else 0, T, T), dtype=np.int32)
        kept = np.zeros((C, n, keep, T), dtype=np.int16)
        # Rules are compiled, and models that know their own pairs give them to the compiled sampler.
        together = (
            self.data.on_device
            and self.prior is None
            and isinstance(self.law, EulerLaw)
            and C * n >= MANY_CHAINS
        )
        work = _Advance(self.law, self.prior, stretch, chains.proposals, count)
        along = self._numbers, chains.orders.transpose(1, 0, 2), chains.states.T
        size = max(1, MANY_NUMBERS // (T + 1) ** 2) if together else _block(self.data)
        data = self.data if together else _compiled(self.data)
        advance = work.together if together else work.one_by_one
        parts = list(data.map_pieces(advance, *along, size=size))
        for each in parts:
            chains.orders[:, each.rows], chains.states[:, each.rows] = each.orders, each.states
            kept[:, each.rows] = each.kept
            if stretch.positions:
                where[each.rows] = each.where
        counted = (
            [reduce(add, (each.counted[c] for each in parts)) for c in range(C)] if count else []
        )
        tally = np.sum([each.seen.tally for each in parts], axis=0)
        scales = np.sum([each.seen.scales for each in parts], axis=0)
        return Draws(kept, where, counted, tally, scales)

    @property
    def _numbers(self) -> Indices:
        return np.arange(self.data.shape[0], dtype=np.intp)[:, None]


def _block(data: Data) -> int:
    """Trajectories that are searched or sampled one after the other."""
    return max(1, min(BLOCK, PAIRS // data.shape[1] ** 2))


def _compiled(data: Data) -> Data:
    """The same where compiled code, on every core, can have it."""
    if not data.on_device:
        return data
    u = data.covariates
    return replace(
        data, values=to_numpy(data.values), covariates=None if u is None else to_numpy(u)
    )


def _rules(prior: Prior | None, rows: Indices) -> Any:
    """What is known of some trajectories that stand side by side."""
    return None if prior is None else prior.arrays(slice(int(rows[0]), int(rows[-1]) + 1))


def _improved(
    piece: Data,
    numbers: Indices,
    orders: Indices,
    states: State,
    *,
    law: Judge,
    prior: Prior | None,
    how: tuple[bool, bool, int],
) -> tuple[Indices, State, Indices]:
    """Orders of a piece, improved, the random states afterwards, and in the first row how many changed."""
    found, states = orders.copy(), states[:, 0].copy()
    steps, rules = law.costs(piece, slice(None)), _rules(prior, numbers[:, 0])
    changed = improve_block(steps, rules, piece.observed, found, states, *how)
    each = np.zeros((len(found), 1), dtype=np.intp)
    each[0] = changed
    return found, states[:, None], each


class _Drawn(NamedTuple):
    """Where the chains of some trajectories stand, what they saw, and their statistics."""

    rows: Indices
    orders: Indices
    states: State
    kept: Any
    where: Any
    counted: list[Any]
    seen: Records


@dataclass(frozen=True, eq=False)
class _Advance:
    """How the chains of a piece, (trajectories, C, T), are advanced by a stretch."""

    law: Any
    prior: Prior | None
    stretch: Stretch
    proposals: Proposals
    count: Count | None

    def one_by_one(self, piece: Data, numbers: Indices, orders: Indices, states: State) -> _Drawn:
        """By compiled code, one trajectory after the other."""
        samples, burn, keep, positions, _ = self.stretch
        steps, rules = self.law.costs(piece, slice(None)), _rules(self.prior, numbers[:, 0])
        (x, u), (m, C, T) = piece.block(slice(None)), orders.shape
        schedule = Schedule(burn, samples, max(T // 2, 5))
        orders, states = orders.transpose(1, 0, 2).copy(), states.T.copy()
        kept = np.zeros((C, m, keep, T), dtype=np.int16)
        where = np.zeros((m if positions else 0, T, T), dtype=np.int32)
        counted, seen = [], Records.none(m, T=T)
        for c in range(C):
            fresh = Records.none(m, T=T)._replace(
                positions=where, kept=kept[c], tally=seen.tally, scales=seen.scales
            )
            chain = orders[c], states[c], schedule, self.proposals, fresh
            sample_block(steps, rules, piece.observed, *chain)
            if self.count is not None:
                shares = (fresh.pairs, fresh.first, fresh.last)
                frequencies = Frequencies(*(each / samples for each in shares))
                counted.append(self.count(to_numpy(x), u, frequencies))
        return _Drawn(numbers[:, 0], orders, states, kept, where, counted, seen)

    def together(self, piece: Data, numbers: Indices, orders: Indices, states: State) -> _Drawn:
        """Where the piece is, all of its chains at a time."""
        (x, u), (m, C, T), stretch = piece.block(slice(None)), orders.shape, self.stretch
        xp, device = array_api_compat.array_namespace(x), array_api_compat.device(x)
        lengths = xp.asarray(piece.observed, device=device)
        target, source, start = self.law.whitened(x, u)
        pairs = padded_pairs(target, source, start, lengths)
        begin = xp.asarray(np.ascontiguousarray(orders.transpose(1, 0, 2)), device=device)
        many = ManyChains(pairs, lengths, begin, states.T.ravel(), self.proposals.sharpness)
        schedule = Schedule(stretch.burn, stretch.samples, max(T // 2, 5))
        chance = np.random.default_rng(states[0, 0])
        seen = many.run(schedule, self.proposals, chance, keep=stretch.keep)
        kept = np.zeros((C, m, stretch.keep, T), dtype=np.int16)
        for r, each in enumerate(seen.kept):
            kept[:, :, r] = to_integers(each).reshape(C, m, T)
        where = np.zeros((0, T, T), dtype=np.int32)
        if stretch.positions:
            stood = to_numpy(seen.positions).reshape(C, m, T, T).sum(axis=0)
            where = stood.round().astype(np.int32)
        counted = []
        for c in range(0 if self.count is None else C):
            shares = (seen.pairs, seen.first, seen.last)
            mine = (each[c * m : (c + 1) * m, ...] / stretch.samples for each in shares)
            counted.append(self.count(x, u, Frequencies(*mine)))  # type: ignore[misc]
        tried = Records.none(0, T=T)._replace(tally=seen.tally, scales=seen.scales)
        now = to_integers(many.orders).reshape(C, m, T)
        states = many.streams.states().reshape(C, m)
        return _Drawn(numbers[:, 0], now, states, kept, where, counted, tried)
