"""Monte-Carlo EM: parameters averaged over the posterior of the orders instead of read off one best order.

E-step: chains over permutations count how often b follows a and what comes first. Those frequencies are
all that the M-step needs, which stays closed form. Chains persist from round to round, rounds grow
longer, and the answer is the fit to the statistics averaged over the last half of the rounds (Polyak).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retrace_sde.data.blocks import Array, Order, State, evenly, to_numpy
from retrace_sde.engine.independent import BLOCK, Law, one_way, random_states
from retrace_sde.engine.problem import Directed, Problem
from retrace_sde.estimate.euler import Model, step_log_likelihoods
from retrace_sde.estimate.moments import Moments
from retrace_sde.estimate.regression import mle, regression_errors
from retrace_sde.estimate.start import START_FLOOR
from retrace_sde.orders.metropolis import (
    KINDS,
    SHARES,
    SHARPNESS,
    Proposals,
    Records,
    Schedule,
    adapted,
    length_table,
    sample_block,
)
from retrace_sde.orders.search import Steps
from retrace_sde.process.sde import Gaussian

TOLERANCE = 0.1
"""Monte-Carlo error at which to stop, in standard errors that a known order would leave."""

BRIDGED = 2000
"""Trajectories whose likelihood, with the orders summed out, decides on the direction."""

WARM_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 12, 24, 150
FIRST_SAMPLES, GROWTH, MOST_SAMPLES = 40, 1.04, 600


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected sufficient statistics: Gram of (φ √Δt, Δx/√Δt), and moments of first and last states."""

    gram: Array
    first: Array
    first_square: Array
    last: Array
    last_square: Array

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    def scaled(self, factor: float) -> Statistics:
        return Statistics(*(getattr(self, name) * factor for name in self.__dataclass_fields__))


@dataclass(eq=False)
class Chains:
    """C chains over the orders of n trajectories, (C, n, T), with their random states and proposals."""

    orders: Order
    states: State
    shares: NDArray[np.int64] = field(default_factory=lambda: SHARES.astype(np.int64))
    scales: Array | None = None

    @classmethod
    def start(cls, orders: Order, rng: np.random.Generator, *, chains: int = 2) -> Chains:
        states = random_states(rng, chains * len(orders)).reshape(chains, -1)
        return cls(np.tile(orders, (chains, 1, 1)), states)

    def some(self, size: int) -> Chains:
        """Copies of the chains of `size` trajectories, evenly spaced."""
        rows = evenly(self.orders.shape[1], size)
        return Chains(self.orders[:, rows], self.states[:, rows], self.shares, self.scales)

    def reversed(self, problem: Problem) -> Chains:
        """The same chains run backwards, as a start for the twin."""
        back = [problem.repaired(problem.data.reversed(orders)) for orders in self.orders]
        return Chains(np.stack(back), self.states.copy(), self.shares, self.scales)


@dataclass(frozen=True, eq=False)
class Draws:
    """What one stretch of the chains saw: statistics per chain, and, if asked for, places and orders."""

    statistics: list[Statistics]
    tally: NDArray[np.int64]
    scales: NDArray[np.int64]
    positions: NDArray[np.int32]
    kept: NDArray[np.int16]
    pairs_in: Array

    @property
    def pooled(self) -> Statistics:
        total = self.statistics[0]
        for each in self.statistics[1:]:
            total = total + each
        return total.scaled(1 / len(self.statistics))


def draw(
    problem: Problem,
    law: Law,
    chains: Chains,
    samples: int,
    *,
    burn: int = 0,
    positions: bool = False,
    keep: int = 0,
    reference: Order | None = None,
) -> Draws:
    """Advance every chain under a law, in place, recording `samples` orders T/2 moves apart.

    `reference` orders (n, T): count also how often their neighbours were neighbours (`pairs_in`).
    """
    data = problem.data
    n, T, _ = data.shape
    C = len(chains.orders)
    table = length_table(max(T - 1, 1), chains.scales)
    proposals = Proposals(table, chains.shares, SHARPNESS)
    schedule = Schedule(burn, samples, max(T // 2, 5))
    where = np.zeros((n if positions else 0, T, T), dtype=np.int32)
    kept = np.zeros((C, n, keep, T), dtype=np.int16)
    agree = np.zeros(n)

    def work(rows: slice) -> tuple[list[Statistics], NDArray[np.int64], NDArray[np.int64]]:
        steps = Steps(*law.costs(data, rows))
        rules = None if problem.prior is None else problem.prior.arrays(rows)
        x, u = data.block(rows)
        size = len(steps.target)
        tally, scales = np.zeros((KINDS, 2), np.int64), np.zeros((64, 2), np.int64)
        found = []
        for c in range(C):
            seen = Records.none(size, T=T)._replace(
                positions=where[rows] if positions else where,
                kept=kept[c, rows],
                tally=tally,
                scales=scales,
            )
            order, state = chains.orders[c, rows], chains.states[c, rows]
            sample_block(steps, rules, data.observed[rows], order, state, schedule, proposals, seen)
            pairs = seen.pairs
            weights = (pairs / samples, seen.first / samples, seen.last / samples)
            found.append(_statistics(problem, to_numpy(x), u, *weights))
            if reference is not None:
                o = reference[rows]
                each = np.take_along_axis(pairs.reshape(size, -1), o[:, :-1] * T + o[:, 1:], axis=1)
                live = np.arange(1, T)[None] < data.observed[rows, None]
                agree[rows] += (each * live).sum(axis=1) / (samples * C)
        return found, tally, scales

    parts = list(data.map_rows(work, size=BLOCK))
    totals = []
    for c in range(C):
        total = parts[0][0][c]
        for part in parts[1:]:
            total = total + part[0][c]
        totals.append(total)
    tally = np.sum([part[1] for part in parts], axis=0)
    scales = np.sum([part[2] for part in parts], axis=0)
    return Draws(totals, tally, scales, where, kept, agree)


def _statistics(
    problem: Problem, x: Array, u: Array | None, N: Array, first: Array, last: Array
) -> Statistics:
    """Statistics of a block from pair frequencies N[a, b] and the frequencies of coming first and last.

    Increments are formed about each trajectory's mean, so that nothing cancels.
    """
    dt, d = problem.dt, x.shape[2]
    phi = to_numpy(problem.drift.features(x, u))
    p = phi.shape[2]
    leaves, enters = N.sum(axis=2), N.sum(axis=1)
    y = x - x.mean(axis=1, keepdims=True)
    Ny = N @ y
    flat_y, flat_phi = y.reshape(-1, d), phi.reshape(-1, p)
    after = Ny.reshape(-1, d)
    step = after - leaves.reshape(-1, 1) * flat_y
    both = flat_y.T @ after
    gram = np.empty((p + d, p + d))
    gram[:p, :p] = (flat_phi * leaves.reshape(-1, 1)).T @ flat_phi * dt
    gram[:p, p:] = flat_phi.T @ step
    gram[p:, :p] = gram[:p, p:].T
    gram[p:, p:] = (flat_y * (leaves + enters).reshape(-1, 1)).T @ flat_y - both - both.T
    gram[p:, p:] /= dt
    flat_x = x.reshape(-1, d)
    ends = []
    for weight in (first, last):
        weighted = flat_x * weight.reshape(-1, 1)
        ends += [weighted.sum(axis=0), weighted.T @ flat_x]
    return Statistics(gram, *ends)


def maximise(problem: Problem, statistics: Statistics) -> Law:
    """M-step: the law that the expected statistics make most likely."""
    found = mle(as_moments(problem, statistics))
    model = Model(problem.drift, found.coefficients, found.diffusion, problem.dt)
    n = problem.data.shape[0]
    mean = statistics.first / n
    spread = statistics.first_square / n - np.outer(mean, mean)
    covariance = spread + START_FLOOR * model.dt * model.diffusion
    return Law(model, Gaussian(mean, (covariance + covariance.T) / 2))


def as_moments(problem: Problem, statistics: Statistics) -> Moments:
    """The same statistics as the estimators know them."""
    count = float((problem.data.observed - 1).sum())
    p = len(statistics.gram) - problem.data.shape[2]
    return Moments.from_weights(statistics.gram, count, p)


@dataclass(frozen=True, eq=False)
class Run:
    """A Monte-Carlo EM: the law, the averaged statistics, the chains, and whether it converged."""

    law: Law
    statistics: Statistics
    chains: Chains
    rounds: tuple[Law, ...]
    gap: float
    converged: bool


def run_mcem(
    problem: Problem,
    law: Law,
    chains: Chains,
    *,
    rounds: int = MOST_ROUNDS,
    least: int = LEAST_ROUNDS,
    progress: Callable[[int, float], None] = lambda k, gap: None,
) -> Run:
    """Rounds of `FIRST_SAMPLES · GROWTHᵏ` records per chain until the averaged parameters stand.

    Converged: half the difference between the averages of the two halves of the window, and half
    that between chains, are both below `TOLERANCE` known-order standard errors, three times running.
    """
    T = problem.data.shape[1]
    seen: list[Statistics] = []
    laws: list[Law] = []
    traces: list[Array] = []
    weights: list[int] = []
    gap, good = np.inf, 0
    for k in range(rounds):
        samples = int(min(FIRST_SAMPLES * GROWTH**k, MOST_SAMPLES))
        draws = draw(problem, law, chains, samples, burn=2 * T)
        if k < WARM_ROUNDS // 2:  # burn-in: the proposals learn, and then stay as they are
            chains.shares, chains.scales = adapted(draws.tally, draws.scales)
        seen.append(draws.pooled)
        law = maximise(problem, seen[-1])
        laws.append(law)
        traces.append(
            np.stack([_vector(maximise(problem, each).model) for each in draws.statistics])
        )
        weights.append(samples)
        if k + 1 >= least:
            errors = regression_errors(as_moments(problem, seen[-1]), law.model.diffusion)
            unit = np.concatenate([errors.drift.ravel(), errors.diffusion.ravel()])
            gap = _gap(np.array(traces), np.array(weights, dtype=float), unit)
            good = good + 1 if gap <= TOLERANCE else 0
            progress(k, gap)
            if good >= 3:
                break
    half = len(seen) // 2
    share = np.array(weights[half:]) / sum(weights[half:])
    average = seen[half].scaled(float(share[0]))
    for each, weight in zip(seen[half + 1 :], share[1:], strict=True):
        average = average + each.scaled(float(weight))
    return Run(maximise(problem, average), average, chains, tuple(laws), gap, good >= 3)


def _vector(model: Model) -> Array:
    return np.concatenate([model.coefficients.ravel(), model.diffusion.ravel()])


def _gap(traces: Array, weights: Array, unit: Array) -> float:
    """The larger of two Monte-Carlo errors of the window's average, in the given units.

    Between the window's halves it stays large while EM drifts; between chains it shows slow modes that
    one chain's window cannot see.
    """
    half = len(traces) // 2
    window, w = traces[half:], weights[half:]
    middle = len(window) // 2
    pooled = window.mean(axis=1)
    early = np.average(pooled[:middle], axis=0, weights=w[:middle])
    late = np.average(pooled[middle:], axis=0, weights=w[middle:])
    of_halves = np.sqrt(np.mean(((early - late) / unit) ** 2))
    of_chains = np.average(window, axis=0, weights=w).var(axis=0, ddof=1) * 2
    return float(max(of_halves, np.sqrt(np.mean(of_chains / unit**2)))) / 2


@dataclass(frozen=True, eq=False)
class Averaged:
    """The kept direction run to convergence, its twin, and each trajectory's log-ratio between them.

    No twin where what is known rules it out.
    """

    run: Run
    twin: Run | None
    log_ratios: Array


def average_over_orders(
    problem: Problem,
    law: Law,
    orders: Order,
    rng: np.random.Generator,
    *,
    searched: tuple[Directed, Directed] | None = None,
    progress: Callable[[int, float], None] = lambda k, gap: None,
) -> Averaged:
    """Monte-Carlo EM with the direction decided by likelihoods in which the orders are summed out.

    Both directions get the same short run; the bridge between them decides; the winner goes on. Where the
    drift's reversal leaves its class no bridge holds: `searched`, the better and the worse direction, then decide.
    """
    never = WARM_ROUNDS + 1
    chains = Chains.start(orders, rng)
    if problem.prior is not None and one_way(problem, orders):
        run = run_mcem(problem, law, chains, progress=progress)
        return Averaged(run, None, np.zeros(problem.data.shape[0]))
    if searched is not None:
        ratios = searched[0].log_likelihoods - searched[1].log_likelihoods
        rival, other = Law.of(problem, searched[1]), Chains.start(searched[1].order, rng)
        two = run_mcem(problem, rival, other, rounds=WARM_ROUNDS, least=never)
        return Averaged(run_mcem(problem, law, chains, progress=progress), two, ratios)
    one = run_mcem(problem, law, chains, rounds=WARM_ROUNDS, least=never)
    reversed_law = maximise(problem, _reversed(problem, one.statistics))
    chains = one.chains.reversed(problem)
    two = run_mcem(problem, reversed_law, chains, rounds=WARM_ROUNDS, least=never)
    ratios = _bridge(problem, one, two)
    if ratios.sum() < 0:
        one, two, ratios = two, one, -ratios
    return Averaged(run_mcem(problem, one.law, one.chains, progress=progress), two, ratios)


def _reversed(problem: Problem, statistics: Statistics) -> Statistics:
    """A start for the twin, for a drift whose features of x + Δx are linear in those of x and Δx."""
    turn = problem.drift.reversal(problem.data.shape[2], problem.dt)
    assert turn is not None  # other drifts are searched in both directions
    gram = turn @ statistics.gram @ turn.T
    return Statistics(
        gram,
        statistics.last,
        statistics.last_square,
        statistics.first,
        statistics.first_square,
    )


def _bridge(problem: Problem, one: Run, two: Run, *, keep: int = 50) -> Array:
    """`log p(X_j; one) − log p(X_j; two)` with orders summed out.

    Reversal is a bijection of orders, so `p(X; two)/p(X; one) = E[p(X_rev o; two)/p(X_o; one)]` over o drawn
    under one; the ratio is nearly constant for twins. Orders that may not be run backwards stay as they
    are. Returned: the mean of both one-sided estimates.
    """

    problem = problem.some(BRIDGED)
    lengths = problem.data.observed
    prior = problem.prior
    turn = np.ones(len(lengths), dtype=bool) if prior is None else prior.symmetric(lengths)

    def one_sided(here: Run, there: Run) -> Array:
        chains = here.chains.some(BRIDGED)
        burn = problem.data.shape[1]
        draws = draw(problem, here.law, chains, 4 * keep, burn=burn, keep=keep)
        ratios = []
        for chain in draws.kept:
            for r in range(keep):
                order = chain[:, r].astype(np.intp)
                back = np.where(turn[:, None], problem.data.reversed(order), order)
                ratios.append(
                    log_joint(problem, back, there.law)
                    - log_joint(problem, order, here.law)
                    + problem.prior_costs(order)
                    - problem.prior_costs(back)
                )
        g = np.array(ratios)
        top = g.max(axis=0)
        return top + np.log(np.exp(g - top).mean(axis=0))

    return 0.5 * (one_sided(two, one) - one_sided(one, two))


def log_joint(problem: Problem, orders: Order, law: Law) -> Array:
    """`log p₀ + Σ log p` of each trajectory along its order, under a fixed law, shape (n,)."""
    steps = step_log_likelihoods(problem.data, orders, law.model)
    return (
        steps if law.start is None else steps + law.start.log_density(problem.data.states(orders))
    )


def certainty(problem: Problem, law: Law, orders: Order, rng: np.random.Generator) -> float:
    """How often, in the posterior over orders, the neighbours in the given orders are neighbours."""
    T = problem.data.shape[1]
    chains = Chains.start(orders, rng, chains=1)
    draws = draw(problem, law, chains, 40, burn=10 * T, reference=orders)
    return float(draws.pairs_in.sum() / (problem.data.observed - 1).sum())
