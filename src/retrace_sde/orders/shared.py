"""One order for all trajectories from the costs of one slice after another: the best, and draws from its posterior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.proposals import SHARES, SHARPNESS, Proposals, length_table
from retrace_sde.orders.path_chains import Records, sample_path
from retrace_sde.orders.paths import improve, path_cost
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import padded_costs


@dataclass(frozen=True, eq=False)
class PathCosts:
    """`start[o_0] + Σ_i C[o_i, o_{i+1}]`, and what is known of time."""

    costs: Array
    start: Array
    prior: Prior | None = None

    def cost(self, order: Indices) -> float:
        """−log p of an order, prior included, up to a constant."""
        known = 0.0 if self.prior is None else float(self.prior.cost(order)[0])
        return path_cost(self.costs, self.start, order) + known

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        return improve(self.costs, self.start, order, self.prior)

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """How often each slice stood where, (T, T), in `samples` records of one chain, and `keep` of them."""
        T = len(order)
        thin = max(T // 2, 5)
        rules = None if self.prior is None else self.prior.single()
        proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
        seen = Records.none(T=T, keep=keep, positions=True)
        padded, schedule = padded_costs(self.costs, self.start), Schedule(50 * thin, samples, thin)
        sample_path(padded, rules, order.copy(), state, schedule, proposals, seen)
        return seen.positions, seen.kept
