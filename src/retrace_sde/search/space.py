"""What is permuted: one order shared by all trajectories, or one for each.

A space knows where a search starts, what is fitted along an order (a shared one in both directions, since that is
cheap; own ones as given), how an order is improved under a fit, and when the search has converged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from retrace_sde.io.arrays import Indices, State
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.own import KICKS
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

SETTLED_FRACTION = 1000
"""Orders of single trajectories have converged when at most one in so many still changes: the rest are near ties."""


class Pair(NamedTuple):
    """A fit, and that along the reverse where it was made too (the better first)."""

    better: Fit
    worse: Fit | None = None


class Space(Protocol):
    """A set of orders to search."""

    def starts(self, model: Model, rng: np.random.Generator) -> list[Indices]: ...
    def fit(self, model: Model, order: Indices, before: Pair | None = None) -> Pair: ...
    def improve(self, model: Model, found: Fit, *, harder: bool = False) -> tuple[Indices, int]: ...
    def settled(self, changed: int) -> bool: ...


@dataclass(eq=False)
class Shared:
    """One order of the slices, the same for every trajectory."""

    state: State

    @classmethod
    def of(cls, model: Model, rng: np.random.Generator) -> Shared:
        return cls(random_states(rng, 1))

    def starts(self, model: Model, rng: np.random.Generator) -> list[Indices]:
        return model.shared_starts(rng)

    def fit(self, model: Model, order: Indices, before: Pair | None = None) -> Pair:
        """The fit along an order and along its reverse, the more likely (prior included) first."""
        one = model.fit(order, before.better if before else None)
        other = model.reversed_fit(one, before.worse if before else None)
        return Pair(one, other) if one.objective >= other.objective else Pair(other, one)

    def improve(self, model: Model, found: Fit, *, harder: bool = False) -> tuple[Indices, int]:
        """The order after a local search under a fit, and whether it changed."""
        order = model.shared_orders(found).improve(found.order, self.state)
        return order, int(not np.array_equal(order, found.order))

    def settled(self, changed: int) -> bool:
        return changed == 0


@dataclass(eq=False)
class Own:
    """An order of its own for each trajectory."""

    states: State

    @classmethod
    def of(cls, model: Model, rng: np.random.Generator) -> Own:
        return cls(random_states(rng, model.data.shape[0]))

    def starts(self, model: Model, rng: np.random.Generator) -> list[Indices]:
        return model.own_starts(rng)

    def fit(self, model: Model, order: Indices, before: Pair | None = None) -> Pair:
        """The fit along the orders as given; their reverses are searched separately."""
        return Pair(model.fit(order, before.better if before else None))

    def improve(self, model: Model, found: Fit, *, harder: bool = False) -> tuple[Indices, int]:
        """Each order after a local search under a fit, and how many changed; `harder`: with random perturbations."""
        orders = model.own_orders(model.law(found))
        return orders.improve(found.order, self.states, kicks=KICKS if harder else 0)

    def settled(self, changed: int) -> bool:
        return changed <= len(self.states) // SETTLED_FRACTION
