"""Each trajectory's own order under Euler's law: the best of each, and draws from their posterior.

The cost of an order is `−log p₀(x_{o_0}) + Σ_i ½ ‖x_{o_{i+1}} − x_{o_i} − Θ φ Δt‖²` in the metric of (H Δt)⁻¹. Blocks of
trajectories are whitened together; the compiled search (`search`) and sampler (`metropolis`) take them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import array_api_compat
import numpy as np
from array_api_compat import is_numpy_array
from scipy.linalg import cholesky

from retrace_sde.data.blocks import Data, Order, State, like, to_integers, to_numpy
from retrace_sde.estimate.euler import Euler
from retrace_sde.estimate.frequencies import Frequencies
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.many.chains import ManyChains, padded_pairs
from retrace_sde.orders.metropolis import KINDS, Records, Schedule, sample_block
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import Steps, improve_block
from retrace_sde.process.sde import Gaussian

BLOCK = 128
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

MANY_NUMBERS = 1 << 28
"""Costs of pairs that are held at a time on a device, 2 GiB of them."""

KICKS = 10
"""Random exchanges after which the search of each trajectory is repaired; more change little."""

Count = Callable[[Any, Any, Frequencies], Any]


@dataclass(frozen=True, eq=False)
class Law:
    """Euler's step and the law of the first observation; without one every start is as good."""

    step: Euler
    start: Gaussian | None

    def costs(self, data: Data, rows: slice) -> Steps:
        """Whitened states, whitened predictions and start costs of a block, as the kernels want them."""
        x, u = data.block(rows)
        each = self.whitened(to_numpy(x), None if u is None else to_numpy(u))
        return Steps(*(np.ascontiguousarray(array) for array in each))

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
    """A law that pairs of observations and first ones are judged by."""

    def costs(self, data: Data, rows: slice) -> Steps: ...


@dataclass(frozen=True, eq=False)
class OwnOrders:
    """What each trajectory's own order costs under a law, with what is known of it."""

    data: Data
    law: Judge
    prior: Prior | None = None

    def improve(
        self, orders: Order, states: State, *, cold: bool = False, kicks: int = 0
    ) -> tuple[Order, int]:
        """Each order, improved, and how many changed. `cold`: from scratch; `kicks`: harder.

        With a prior, orders that break none of its rules come out, and (unless `cold`) must go in.
        """
        orders, deep = orders.copy(), cold or kicks > 0

        def work(rows: slice) -> int:
            steps, rules = self.law.costs(self.data, rows), self._rules(rows)
            lengths = self.data.observed[rows]
            found = improve_block(
                steps, rules, lengths, orders[rows], states[rows], cold, deep, kicks
            )
            return int(found)

        return orders, sum(self.data.map_rows(work, size=BLOCK))

    def draw(self, chains: Chains, stretch: Stretch, count: Count | None = None) -> Draws:
        """Advance every chain, in place.

        `count` makes statistics of a block's frequencies of pairs and ends; they are summed, chain by chain.
        """
        if (
            isinstance(self.law, Law)
            and self.prior is None
            and not is_numpy_array(self.data.values)
        ):
            return self._draw_many(self.law, chains, stretch, count)
        data, (samples, burn, keep, positions) = self.data, stretch
        n, T, _ = data.shape
        C, proposals = len(chains.orders), chains.proposals
        schedule = Schedule(burn, samples, max(T // 2, 5))
        where = np.zeros((n if positions else 0, T, T), dtype=np.int32)
        kept = np.zeros((C, n, keep, T), dtype=np.int16)

        def work(rows: slice) -> tuple[list[Any], Records]:
            steps, rules = self.law.costs(data, rows), self._rules(rows)
            x, u = data.block(rows)
            counted = []
            seen = Records.none(len(x), T=T)
            for c in range(C):
                fresh = Records.none(len(x), T=T)._replace(
                    positions=where[rows] if positions else where,
                    kept=kept[c, rows],
                    tally=seen.tally,
                    scales=seen.scales,
                )
                order, state = chains.orders[c, rows], chains.states[c, rows]
                sample_block(
                    steps, rules, data.observed[rows], order, state, schedule, proposals, fresh
                )
                if count is not None:
                    shares = (fresh.pairs, fresh.first, fresh.last)
                    frequencies = Frequencies(*(each / samples for each in shares))
                    counted.append(count(to_numpy(x), u, frequencies))
            return counted, seen

        parts = list(data.map_rows(work, size=BLOCK))
        counted = [_total([part[0][c] for part in parts]) for c in range(C)] if count else []
        tally = np.sum([part[1].tally for part in parts], axis=0)
        scales = np.sum([part[1].scales for part in parts], axis=0)
        return Draws(kept, where, counted, tally, scales)

    def _draw_many(self, law: Law, chains: Chains, stretch: Stretch, count: Count | None) -> Draws:
        """The same where the data are, all trajectories at a time."""
        data, proposals = self.data, chains.proposals
        (samples, burn, keep, positions), (n, T, _) = stretch, data.shape
        C = len(chains.orders)
        schedule = Schedule(burn, samples, max(T // 2, 5))
        where = np.zeros((n if positions else 0, T, T), dtype=np.int32)
        kept = np.zeros((C, n, keep, T), dtype=np.int16)

        def work(rows: slice) -> tuple[list[Any], Any]:
            x, u = data.block(rows)
            xp, device = array_api_compat.array_namespace(x), array_api_compat.device(x)
            lengths = xp.asarray(data.observed[rows], device=device)
            orders, states = chains.orders[:, rows], chains.states[:, rows]
            pairs = padded_pairs(*law.whitened(x, u), lengths)
            begin = xp.asarray(orders, device=device)
            many = ManyChains(pairs, lengths, begin, states.ravel(), proposals.sharpness)
            chance = np.random.default_rng(states[0, 0])
            seen = many.run(schedule, proposals, chance, keep=keep, positions=positions)
            orders[:] = to_integers(many.orders).reshape(orders.shape)
            states[:] = many.streams.states().reshape(states.shape)
            for r, each in enumerate(seen.kept):
                kept[:, rows, r] = to_integers(each).reshape(orders.shape)
            if seen.positions is not None:
                stood = to_numpy(seen.positions).reshape(C, -1, T, T).sum(axis=0)
                where[rows] = stood.round().astype(np.int32)
            counted = []
            for c in range(C):
                if count is None:
                    break
                mine = slice(c * len(states[0]), (c + 1) * len(states[0]))
                shares = (seen.pairs[mine, ...], seen.first[mine, ...], seen.last[mine, ...])
                frequencies = Frequencies(*(each / samples for each in shares))
                counted.append(count(x, u, frequencies))
            return counted, np.concatenate([seen.tally, seen.scales])

        parts = list(data.map_rows(work, size=max(1, MANY_NUMBERS // (T + 1) ** 2)))
        counted = [_total(list(of)) for of in zip(*(part[0] for part in parts), strict=True)]
        moves = np.sum([part[1] for part in parts], axis=0)
        return Draws(kept, where, counted, moves[:KINDS], moves[KINDS:])

    def _rules(self, rows: slice) -> Any:
        return None if self.prior is None else self.prior.arrays(rows)


def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
