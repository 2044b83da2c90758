"""One order for all trajectories from the costs of one slice after another: the best, and draws from its posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.proposals import SHARES, SHARPNESS, Proposals, length_table
from retrace_sde.orders.path_chains import Records, sample_path
from retrace_sde.orders.paths import improve, path_cost
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import padded_costs

NEAR_ENDS = 4
"""Positions at either end of an order whose slices are judged as first ones before a search: one that comes from farther inside costs a long step."""


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


@dataclass(frozen=True, eq=False)
class BoundedStarts:
    """`PathCosts` of which start costs are computed where they may decide; `least` (T,) are lower bounds on them.

    A search that ends with a first slice whose cost is known ends where no move pays under bounds, nor then under the costs themselves.
    """

    costs: Array
    least: Array
    start_costs: Callable[[Indices], Array]

    @cached_property
    def _known(self) -> PathCosts:
        return PathCosts(self.costs, self.start_costs(np.arange(len(self.least))))

    def cost(self, order: Indices) -> float:
        """−log p of an order, up to a constant."""
        return self._known.cost(order)

    def improve(self, order: Indices, state: State | None = None) -> Indices:
        """A local minimum near an order."""
        start, near = self.least.copy(), np.unique(np.r_[order[:NEAR_ENDS], order[-NEAR_ENDS:]])
        known = np.zeros(len(start), dtype=bool)
        while True:
            start[near], known[near] = self.start_costs(near), True
            found = improve(self.costs, start, order)
            if known[found[0]]:
                return found
            near = found[:1]

    def sample(
        self, order: Indices, state: State, samples: int, keep: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """As of `PathCosts`."""
        return self._known.sample(order, state, samples, keep)
