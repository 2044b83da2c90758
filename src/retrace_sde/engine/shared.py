"""One permutation for all trajectories: alternate between the order and the parameters.

Maximum likelihood over orders: `log p(X_o) = log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)`. The
distances between slices give an undirected chain; given the order, θ is closed form; given θ, a local search
on the asymmetric path cost improves the order; each order is tried in both directions. Where steps differ in
variance by more than chance the costs are those of `dispersion`.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.data.blocks import Array, Order
from retrace_sde.engine.problem import Directed, Problem, Round
from retrace_sde.estimate.start import start_log_densities
from retrace_sde.estimate.unequal_steps import dispersion
from retrace_sde.orders.costs import distances, near_costs, transition_costs
from retrace_sde.orders.paths import guided_paths, improve, shortest_path

SEARCH_ELEMENTS = 5000
"""Length n·d of a slice that the search looks at: more trajectories do not make the chain clearer."""

VERIFIED_WIDTH = 2
"""An order found on a few trajectories is verified on all of them against moves within this distance."""


def recover_order(
    problem: Problem, *, max_iter: int
) -> tuple[Directed, Directed, list[Round], bool]:
    """The order found and its reverse (the better first), the rounds, and whether the order settled."""
    n, _, d = problem.data.shape
    enough = -(-SEARCH_ELEMENTS // d)
    few = problem.some(enough) if n > 2 * enough else problem
    near = distances(few.data)
    if problem.prior is None:
        starts = [shortest_path(near)]
    else:
        starts = guided_paths(near, few.data.shape[0] * d, problem.prior)
    runs = [_run(few, start, max_iter) for start in starts]
    worth = [_worth(few, run[0]) for run in runs] if len(runs) > 1 else [0.0]
    found, rounds, settled = runs[int(np.argmax(worth))]
    better, worse = problem.both_directions(found)
    if few is not problem and not _verified(problem, better):
        found, rounds, settled = _alternate(problem, better.order, max_iter)
        better, worse = problem.both_directions(found)
    return better, worse, [*rounds, better.as_round()], settled


Run = tuple[Order, list[Round], bool]


def _run(problem: Problem, start: Order, max_iter: int) -> Run:
    """From one start: steps taken for equal, or for unequal where they are.

    Misplaced slices make steps unequal too, and would be excused by it. So both are tried; the order that took
    steps for equal must be better by more than the nat per step that unequal variances can feign.
    """
    equal = _alternate(problem, start, max_iter, equal=True)
    if not _evidence(problem, problem.both_directions(start)[0]):
        return equal
    unequal = _alternate(problem, start, max_iter, equal=False)
    if _worth(problem, equal[0]) <= _worth(problem, unequal[0]) + len(start) - 1:
        return unequal
    return _alternate(problem, equal[0], max_iter, equal=False)


def _alternate(problem: Problem, order: Order, max_iter: int, *, equal: bool = True) -> Run:
    """Fit in the better direction, search under the fit, until the order stops changing."""
    rounds: list[Round] = []
    every = np.arange(len(order))
    for _ in range(max_iter):
        current, _ = problem.both_directions(order)
        rounds.append(current.as_round())
        if equal:
            costs = transition_costs(problem.data, current.model)
        else:
            costs = step_costs(problem, current)
        start = -start_log_densities(
            problem.data.slices(every), current.model, problem.variances
        ).sum(axis=1)
        order = improve(costs, start, current.order, problem.prior)
        if np.array_equal(order, current.order):
            return order, rounds, True
    return order, rounds, False


def _evidence(problem: Problem, found: Directed) -> float:
    """Nats by which unequal steps explain an order better than equal ones; 0 where that may be chance."""
    n, T, d = problem.data.shape
    steps = np.diagonal(near_costs(problem.data, found.order, found.model, 1), 1)
    unequal = dispersion(steps, float(n * d)) if T > 3 else None
    return 0.0 if unequal is None else unequal.evidence


def _worth(problem: Problem, order: Order) -> float:
    """Log-likelihood and log-prior of an order in its better direction, with steps equal or unequal."""
    better = problem.both_directions(order)[0]
    return better.objective + _evidence(problem, better)


def step_costs(problem: Problem, found: Directed) -> Array:
    """Costs (T, T) of one slice after another under a fit, robust where its steps differ in variance."""
    costs = transition_costs(problem.data, found.model)
    n, T, d = problem.data.shape
    steps = costs[found.order[:-1], found.order[1:]]
    unequal = dispersion(steps, float(n * d)) if T > 3 else None
    return costs if unequal is None else unequal.costs(costs)


def _verified(problem: Problem, found: Directed) -> bool:
    """No reversal or move among near neighbours would be more likely on all the trajectories."""
    costs = near_costs(problem.data, found.order, found.model, VERIFIED_WIDTH)
    positions = np.arange(len(found.order))
    ends = positions[: VERIFIED_WIDTH + 1]
    start = np.full(len(positions), np.inf)
    states = problem.data.slices(found.order[ends])
    start[ends] = -start_log_densities(states, found.model, problem.variances).sum(axis=1)
    prior = None if problem.prior is None else problem.prior.relabelled(found.order)
    return np.array_equal(improve(costs, start, positions, prior), positions)
