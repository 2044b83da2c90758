"""Each trajectory's own order under Euler's law: the best of each, and draws from their posterior.

The cost of an order is `−log p₀(x_{o_0}) + Σ_i ½ ‖x_{o_{i+1}} − x_{o_i} − Θ φ Δt‖²` in the metric of (H Δt)⁻¹. Blocks of
trajectories are whitened together; the compiled search (`search`) and sampler (`metropolis`) take them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, State, to_numpy
from retrace_sde.estimate.euler import Euler
from retrace_sde.estimate.frequencies import Frequencies
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.metropolis import Records, Schedule, sample_block
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import Steps, improve_block
from retrace_sde.process.sde import Gaussian

BLOCK = 128
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

KICKS = 10
"""Random exchanges after which the search of each trajectory is repaired; more change little."""

Count = Callable[[Array, Any, Frequencies], Any]


@dataclass(frozen=True, eq=False)
class Law:
    """Euler's step and the law of the first observation; without one every start is as good."""

    step: Euler
    start: Gaussian | None

    def costs(self, data: Data, rows: slice) -> Steps:
        """Whitened states, whitened predictions and start costs of a block, as the kernels want them."""
        x, u = data.block(rows)
        x, u = to_numpy(x), None if u is None else to_numpy(u)
        Wt = self.step.whitening.T
        start = np.zeros(x.shape[:2]) if self.start is None else -self.start.log_density(x)
        target, source = x @ Wt, self.step.predict(x, u) @ Wt
        return Steps(np.ascontiguousarray(target), np.ascontiguousarray(source), start)


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

    def _rules(self, rows: slice) -> Any:
        return None if self.prior is None else self.prior.arrays(rows)


def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
