"""One permutation for all trajectories: alternate between the order and the parameters.

Maximum likelihood over orders: `log p(X_o) = log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)`. The
distances between slices give an undirected chain; given the order, θ is closed form; given θ, a local search
on the asymmetric path cost improves the order; each order is tried in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.blocks import Array, Data, Order
from retrace_sde.costs import Model, distances, near_costs, step_log_likelihoods, transition_costs
from retrace_sde.drift import Drift
from retrace_sde.estimation import mle
from retrace_sde.moments import Moments, moments
from retrace_sde.ordering import improve, shortest_path
from retrace_sde.start import start_log_densities

SEARCH_ELEMENTS = 5000
"""Length n·d of a slice that the search looks at: more trajectories do not make the chain clearer."""

VERIFIED_WIDTH = 3
"""An order found on a few trajectories is verified on all of them against moves within this distance."""


@dataclass(frozen=True, eq=False)
class Round:
    """One round of an alternation: the order, the parameters fitted to it, and its joint log-likelihood."""

    order: Order
    drift: Array
    diffusion: Array
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Directed:
    """An order with its moments and its fit, and each trajectory's joint log-likelihood under it."""

    order: Order
    moments: Moments
    model: Model
    log_likelihoods: Array

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    def as_round(self) -> Round:
        return Round(self.order, self.model.coefficients, self.model.diffusion, self.log_likelihood)


@dataclass(frozen=True, eq=False)
class Problem:
    """What an order is judged by: the data, the step between slices, and the drift's features."""

    data: Data
    dt: float
    drift: Drift

    def fit(self, order: Order) -> Directed:
        """Maximum likelihood along an order, and the joint log-likelihood `log p₀ + Σ log p` there."""
        statistics = moments(self.data, order, self.dt, self.drift)
        found = mle(statistics)
        model = Model(self.drift, found.coefficients, found.diffusion, self.dt)
        start = start_log_densities(self.data, order[:1], model)[0]
        steps = step_log_likelihoods(self.data, order, model)
        return Directed(order, statistics, model, start + steps)

    def both_directions(self, order: Order) -> tuple[Directed, Directed]:
        """The fit along an order and along its reverse, the more likely first."""
        one, other = self.fit(order), self.fit(order[::-1].copy())
        return (one, other) if one.log_likelihood >= other.log_likelihood else (other, one)


def recover_order(
    problem: Problem, *, max_iter: int
) -> tuple[Directed, Directed, list[Round], bool]:
    """The order found and its reverse (the better first), the rounds, and whether the order settled."""
    n, _, d = problem.data.shape
    enough = -(-SEARCH_ELEMENTS // d)
    few = replace(problem, data=problem.data.some(enough)) if n > 2 * enough else problem
    found, rounds, settled = _alternate(few, shortest_path(distances(few.data)), max_iter)
    better, worse = problem.both_directions(found)
    if few is not problem and not _verified(problem.data, better):
        found, rounds, settled = _alternate(problem, better.order, max_iter)
        better, worse = problem.both_directions(found)
    return better, worse, [*rounds, better.as_round()], settled


def _alternate(problem: Problem, order: Order, max_iter: int) -> tuple[Order, list[Round], bool]:
    """Fit in the better direction, search under the fit, until the order stops changing."""
    rounds: list[Round] = []
    every = np.arange(len(order))
    for _ in range(max_iter):
        current, _ = problem.both_directions(order)
        rounds.append(current.as_round())
        costs = transition_costs(problem.data, current.model)
        start = -start_log_densities(problem.data, every, current.model).sum(axis=1)
        order = improve(costs, start, current.order)
        if np.array_equal(order, current.order):
            return order, rounds, True
    return order, rounds, False


def _verified(data: Data, found: Directed) -> bool:
    """No reversal or move among near neighbours would be more likely on all the trajectories."""
    costs = near_costs(data, found.order, found.model, VERIFIED_WIDTH)
    positions = np.arange(len(found.order))
    ends = positions[: VERIFIED_WIDTH + 1]
    start = np.full(len(positions), np.inf)
    start[ends] = -start_log_densities(data, found.order[ends], found.model).sum(axis=1)
    return np.array_equal(improve(costs, start, positions), positions)
