"""The p-value by null simulation where each trajectory has its own, uncertain order: panels are simulated, and orders drawn again.

The ratio between both directions has the orders summed out (`bridge`). It is compared with those of panels from models in which
calling the direction would be wrong: the stationary law of each direction, and the reverse's law from its own start. A simulated
panel's order is known, itself a draw from the posterior, and its chains start there. Both directions are fitted again by
Monte-Carlo EM, shorter than for the data, so that a simulated ratio has more error than the observed one and the test is
conservative. The two stationary laws, each the reverse of the other, take turns. Simulation of a null stops once it reproduces the
ratio (Besag & Clifford 1991), or clearly does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from retrace_sde.evidence.closed_form.null_simulation import SimulatedP
from retrace_sde.evidence.direction.comparison import (
    FEW_TRAJECTORIES_P,
    MIN_NATS,
)
from retrace_sde.evidence.direction.verdict import DirectionTest, Reason
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.metrics import kendall_tau
from retrace_sde.orders.draws import Chains
from retrace_sde.orders.own import EulerLaw
from retrace_sde.process.drift import is_linear
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.mcem import Averaged, Run, backwards, both_ways, bridge, run
from retrace_sde.search.protocols import Model

STAGES, STOP_AFTER, P_ERRORS = (59, 99, 199), 4, 2.0
"""Simulations of each null, more where the p-value is near the level; how many of them must reach the observed ratio for the
simulation to stop; and how many of its own errors a p-value must lie below the level: null panels are refitted from their own
laws, not searched, and their ratios are a little small (9 of 110 stationary panels were called at one error)."""

EM_ROUNDS, ORDERS_PER_CHAIN = 4, 6
"""Rounds of Monte-Carlo EM in both directions, and orders per chain between them, of a simulated panel."""

RESTARTS, SAME_WAY = 3, 0.8
"""Starts from which other orders are sought before a direction is called, and the Kendall's τ, relative to that between the chains of one
run, from which they run the same way (measured: the same optimum .95 to 1.1, others .4 to .75)."""

MAX_SIMULATED_NUMBERS = 20_000
"""Numbers (n T d) up to which panels are simulated: two hundred of them take ten times as long as the fit."""


@dataclass(frozen=True, eq=False)
class OwnOrderSimulator:
    """A law that trajectories of their own orders are simulated from, from its own start or stationary."""

    law: EulerLaw
    at_rest: bool

    def panel(self, like: Model, orders: Indices, rng: np.random.Generator) -> Model:
        """New data whose true orders are the given ones."""
        n, T, d = like.data.shape
        step, start = self.law.step, self.law.start
        assert start is not None  # Monte-Carlo EM has one
        law = stationary_law(self.law) if self.at_rest else start
        assert law is not None  # only laws that have one are asked for
        root = np.linalg.cholesky(step.diffusion * step.dt).T
        x = np.empty((n, T, d))
        x[:, 0] = law.sample(n, rng)
        for t in range(1, T):
            x[:, t] = step.predict(x[:, t - 1], None) + rng.standard_normal((n, d)) @ root
        stored = np.empty_like(x)
        np.put_along_axis(stored, orders[:, :, None], x, axis=1)
        return like.for_others(replace(like.data, values=stored))


def stationary_law(law: EulerLaw) -> Gaussian | None:
    """The stationary law of Euler's steps, where there is one."""
    d = len(law.step.diffusion)
    theta, dt = law.step.coefficients, law.step.dt
    F = np.eye(d) + theta[:, :d] * dt
    if np.abs(np.linalg.eigvals(F)).max() >= 1 - 1e-6:
        return None
    c = theta[:, d] * dt if theta.shape[1] > d else np.zeros(d)
    S = solve_discrete_lyapunov(F, law.step.diffusion * dt)
    return Gaussian(np.asarray(np.linalg.inv(np.eye(d) - F) @ c), (S + S.T) / 2)


def marginal_test(
    model: Model,
    averaged: Averaged,
    orders: Indices,
    test: DirectionTest,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> DirectionTest:
    """The test of an average over orders; nothing is called where other orders, found from another start, are as likely and disagree."""
    found = _tested(model, averaged, orders, test, rng, alpha=alpha)
    if not found.identified or found.known or averaged.twin is None:
        return found
    if prod(model.data.shape) > MAX_SIMULATED_NUMBERS:
        return found
    if model.drift.reversal(model.data.shape[2], model.dt) is None:  # no bridge between directions
        return found
    if not _runs_otherwise(model, averaged, orders, rng):
        return found
    return replace(found, identified=False, p_value=None, p_error=None, reason=Reason.ALIGNMENT)


def _runs_otherwise(
    model: Model, averaged: Averaged, orders: Indices, rng: np.random.Generator
) -> bool:
    """Monte-Carlo EM from the same orders, about half of them reversed at random, finds orders that are as likely and run otherwise.

    The law is fitted to how the trajectories run with respect to one another, and then keeps them so: a local optimum. At one that is not
    the best the ratio between the directions means nothing. Of 15 stationary panels of 20 short trajectories (d = 4, T = 8) 4 were called;
    from other starts three of these had optima 5 to 21 nats better, or as good, in other orders.
    """
    mine, warm = averaged.run.chains.orders, model.effort.warm
    agreement = kendall_tau(mine[0], mine[1])

    def alike(other: Run) -> float:
        return float(np.mean([kendall_tau(a, b) for a in mine for b in other.chains.orders]))

    for _ in range(RESTARTS):
        turn = rng.random(len(orders)) < 0.5
        mixed = np.where(turn[:, None], model.data.reversed(orders), orders)
        begin = model.fit(model.repaired(mixed))
        chains = Chains.start(begin.order, rng)
        one = run(model, model.begin(begin), chains, rounds=warm)
        if abs(alike(one)) >= SAME_WAY * agreement:
            continue  # these orders, or their reverse: how likely either is was compared
        two = backwards(model, one, rounds=warm)
        other = one if bridge(model, one, two).sum() >= 0 else two
        way = alike(other)
        if way >= SAME_WAY * agreement:
            continue
        ahead = bridge(model, averaged.run, other, opposite=way < 0).sum()
        if ahead < MIN_NATS:
            return True
    return False


def _tested(
    model: Model,
    averaged: Averaged,
    orders: Indices,
    test: DirectionTest,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> DirectionTest:
    """The test with its p-value by simulation where Vuong's is not clear."""
    p = test.p_value
    if not model.closed_form or averaged.twin is None or p is None:
        return test
    known = model.prior is not None or not model.timing.silent
    plain = is_linear(model.drift) and model.data.covariates is None and not known
    doubt = alpha <= p < FEW_TRAJECTORIES_P and abs(test.log_likelihood_ratio) > MIN_NATS
    if (
        not plain
        or not doubt
        or test.reason is not Reason.TESTED
        or prod(model.data.shape) > MAX_SIMULATED_NUMBERS
    ):
        return test
    laws = averaged.run.law, averaged.twin.law
    resting = [OwnOrderSimulator(law, True) for law in laws if stationary_law(law) is not None]
    worst = SimulatedP(0.0, 0.0)
    for simulators in filter(None, (resting, [OwnOrderSimulator(laws[1], False)])):
        found = _p_value_under(
            simulators, model, orders, test.log_likelihood_ratio, rng, alpha=alpha
        )
        worst = max(worst, found)
        if worst.p_value > alpha:
            break
    called = worst.p_value + P_ERRORS * worst.p_error < alpha
    return replace(test, identified=called, p_value=worst.p_value, p_error=worst.p_error)


def _p_value_under(
    simulators: list[OwnOrderSimulator],
    model: Model,
    orders: Indices,
    ratio: float,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> SimulatedP:
    """The share of panels, from one simulator after another, whose ratio reaches the one observed."""
    reached = done = 0
    found = SimulatedP(1.0, 1.0)
    for stage in STAGES:
        while done < stage and reached < STOP_AFTER:
            simulator = simulators[done % len(simulators)]
            again = simulator.panel(model, orders, rng)
            drawn = float(_ratios(again, simulator.law, orders, rng).sum())
            # A panel runs its simulator's own way: what speaks against it is negative.
            reached += (abs(drawn) if simulator.at_rest else -drawn) >= ratio
            done += 1
        p = reached / done if reached == STOP_AFTER else (1 + reached) / (1 + done)
        found = SimulatedP(p, float(np.sqrt(p * (1 - p) / done)))
        if reached == STOP_AFTER or found.p_value + P_ERRORS * found.p_error < alpha:
            break
    return found


def _ratios(model: Model, law: EulerLaw, orders: Indices, rng: np.random.Generator) -> Array:
    chains = Chains.start(orders, rng)
    return both_ways(model, law, chains, rounds=EM_ROUNDS, bridges=ORDERS_PER_CHAIN)[2]
