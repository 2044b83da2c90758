"""Each trajectory has its own permutation, and is observed with noise or with gaps.

The likelihood of an order is that of `process`, states summed out: `search` looks for the best order of each
trajectory, `draw` samples orders, and Monte-Carlo EM averages over them. Orders are the only missing data of that
EM: each of its M-steps is itself a (short) run of `em` on the observations in the orders drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retrace_sde.data.blocks import Array, Order, State, evenly
from retrace_sde.engine.independent import first_orders, one_way, random_states
from retrace_sde.engine.noisy import Hidden, NoisyProblem
from retrace_sde.engine.noisy_orders import draw, search
from retrace_sde.engine.problem import Problem, Round
from retrace_sde.estimate.kalman.em import EMResult, em
from retrace_sde.estimate.kalman.smoother import kalman
from retrace_sde.estimate.kalman.steps import Parameters, as_noise, pack, unpack
from retrace_sde.estimate.kalman.steps import Problem as SmoothingProblem
from retrace_sde.estimate.regression import regression_errors
from retrace_sde.orders.paths import shortest_path
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian

CHAINS = 2
FIRST_SAMPLES, GROWTH, MOST_SAMPLES = 4, 1.02, 12
"""Orders that each chain of each trajectory gives to a round, and how that grows."""

LEAST_ROUNDS, TWIN_ROUNDS, MOST_ROUNDS = 24, 40, 150
CLIMB = 4
"""Steps of EM in a round: the orders are drawn anew before the parameters could settle on them."""

OVERSTEP = 1.8
"""EM steps are taken this many times over: with orders that uncertain plain ones are short, and 2 is stable."""

TOLERANCE = 0.15
"""Monte-Carlo error at which to stop, in standard errors that known orders would leave."""

BRIDGED, BRIDGES = 500, 20
"""Trajectories and drawn orders (per chain) that decide on the direction."""

FINAL = 10
"""Orders per chain that the parameters returned are fitted to."""


def recover_noisy_orders(
    problem: NoisyProblem, rng: np.random.Generator, *, max_iter: int
) -> tuple[Hidden, Hidden, list[Round], bool]:
    """The orders found and their twin (the better first), the rounds, and whether the orders settled."""
    rounds: list[Round] = []
    start = starting_orders(problem, rng)
    current = problem.fit(start, still=True)
    for _ in range(3):
        orders, changed = search(problem, current.model, current.order)
        current = problem.fit(orders, still=True, start=current.fit)
        if changed == 0:
            break
    turned = plain_problem(problem).aligned(orders, rng)
    one, settled = alternate(problem, turned, rounds, max_iter)
    back = problem.data.reversed(one.order)
    if problem.prior is not None and one_way(plain_problem(problem), one.order):
        two = problem.fit(back)
    else:
        two, _ = alternate(problem, problem.repaired(back), [], max_iter)
    better, worse = (one, two) if one.objective >= two.objective else (two, one)
    better, worse = (problem.fit(f.order, start=f.fit, loose=False) for f in (better, worse))
    return better, worse, [*rounds, better.as_round()], settled


def recover_ruled_orders(
    problem: NoisyProblem, rng: np.random.Generator, *, max_iter: int
) -> tuple[Hidden, Hidden, list[Round], bool]:
    """`recover_noisy_orders`, and with rules a second start, from the orders found without them and repaired.

    Rules forbid to turn a path round, so a start that lays it the wrong way is hard to leave.
    """
    found = recover_noisy_orders(problem, rng, max_iter=max_iter)
    if problem.prior is None or problem.prior.before is None:
        return found
    free = recover_noisy_orders(replace(problem, prior=None), rng, max_iter=max_iter)
    pair = [alternate(problem, problem.repaired(each.order), [], max_iter) for each in free[:2]]
    (one, settled), (two, _) = sorted(pair, key=lambda each: -each[0].objective)
    if one.objective <= found[0].objective:
        return found
    if one_way(plain_problem(problem), one.order):
        two = problem.fit(problem.data.reversed(one.order))
    one, two = (problem.fit(each.order, start=each.fit, loose=False) for each in (one, two))
    return one, two, [*free[2], one.as_round()], settled


def starting_orders(problem: NoisyProblem, rng: np.random.Generator) -> Order:
    """Short paths through the observations as they are; where entries are missing, through those seen."""
    n, T, _ = problem.values.shape
    plain = plain_problem(problem)
    lengths = problem.data.observed
    inside = np.arange(T)[None] < lengths[:, None]
    if not np.isnan(problem.values[inside]).any():
        return first_orders(plain, rng, random_states(rng, n))
    orders = np.tile(np.arange(T, dtype=np.intp), (n, 1))
    for j, length in enumerate(lengths):
        if length > 2:
            orders[j, :length] = shortest_path(_seen_distances(problem, j, int(length)))
    return plain.aligned(problem.repaired(orders), rng)


def _seen_distances(problem: NoisyProblem, j: int, length: int) -> Array:
    """Mean squared distances over the variables seen in both; the mean of all where there are none."""
    y = problem.values[j, :length] / np.sqrt(problem.variances)
    gaps = (y[:, None] - y[None]) ** 2
    both = ~np.isnan(gaps)
    counts = both.sum(axis=2)
    D = np.where(both, gaps, 0.0).sum(axis=2) / np.maximum(counts, 1)
    known = (counts > 0) & ~np.eye(length, dtype=bool)
    return np.where(counts > 0, D, D[known].mean() if known.any() else 1.0)


def plain_problem(problem: NoisyProblem) -> Problem:
    """The problem as the engine without noise sees it, for a start."""
    y = problem.values
    filled = np.where(np.isnan(y), problem.means, y)
    drift = Affine() if problem.affine else Linear()
    return Problem(replace(problem.data, values=filled), problem.dt, drift, problem.prior)


def alternate(
    problem: NoisyProblem, orders: Order, rounds: list[Round], max_iter: int
) -> tuple[Hidden, bool]:
    """Search under the fit and fit again until all but one in a hundred orders stand."""
    current = problem.fit(orders)
    for _ in range(max_iter):
        rounds.append(current.as_round())
        orders, changed = search(problem, current.model, current.order)
        current = problem.fit(orders, start=current.fit)
        if changed <= len(orders) // 100:
            return current, True
    return current, False


@dataclass(frozen=True, eq=False)
class Run:
    """A Monte-Carlo EM: the averaged parameters, the chains, the rounds, and whether it converged."""

    parameters: Parameters
    orders: Order
    states: State
    rounds: tuple[Parameters, ...]
    gap: float
    converged: bool


def run_mcem(
    problem: NoisyProblem,
    start: EMResult,
    orders: Order,
    states: State,
    *,
    rounds: int = MOST_ROUNDS,
    least: int = LEAST_ROUNDS,
    progress: Callable[[int, float], None] = lambda k, gap: None,
) -> Run:
    """Draw orders, climb under them, and average the parameters over the last half of the rounds."""
    T, now = problem.values.shape[1], start
    seen: list[Parameters] = []
    gap, good = np.inf, 0
    for k in range(rounds):
        model = now.parameters.model(problem.dt)
        samples = int(min(FIRST_SAMPLES * GROWTH**k, MOST_SAMPLES))
        kept = draw(problem, model, orders, states, burn=2 * T, samples=samples, thin=max(T, 8))
        found = fit_draws(problem, kept, now, steps=CLIMB)
        seen.append(found.parameters)
        now = replace(found, parameters=overstep(now.parameters, found.parameters))
        if k + 1 >= least:
            copies = kept.shape[0] * kept.shape[2]
            errors = regression_errors(now.moments, now.parameters.H)
            unit = np.r_[errors.drift.ravel(), errors.diffusion.ravel()] * np.sqrt(copies)
            gap = _gap(seen, unit)
            good = good + 1 if gap <= TOLERANCE else 0
            progress(k, gap)
            if good >= 3:
                break
    return Run(_average(seen[len(seen) // 2 :]), orders, states, tuple(seen), gap, good >= 3)


def fit_draws(
    problem: NoisyProblem, kept: NDArray[np.int16], start: EMResult, *, steps: int
) -> EMResult:
    """EM on the observations in every order drawn, each draw one more trajectory."""
    C, n, R, T = kept.shape
    orders = kept.transpose(0, 2, 1, 3).reshape(C * R, n, T).astype(np.intp)
    y = np.concatenate([problem.along(order) for order in orders])
    return em(
        y,
        problem.dt,
        noise=problem.noise,
        affine=problem.affine,
        scheme=problem.scheme,
        start=start,
        max_iter=steps,
        tolerance=0.0,
        standard_errors=False,
    )


def warmed(problem: NoisyProblem, fit: EMResult) -> EMResult:
    """A fit to best orders with what of H they owe to noise given back to it.

    Best orders explain noise away as if it were part of the path, and EM hardly leaves R = 0. From the other
    side, where half of a step's variance `H dt + 2 R` is noise, it finds its way down.
    """
    _, unknown, _ = as_noise(problem.noise, problem.values.shape[2])
    old = fit.parameters
    R = old.R.copy()
    R[unknown, unknown] = np.maximum(np.diag(R), np.diag(old.H) * problem.dt / 4)[unknown]
    share = np.where(unknown, np.sqrt(0.5), 1.0)
    return replace(fit, parameters=replace(old, R=R, H=old.H * np.outer(share, share)))


def overstep(old: Parameters, new: Parameters) -> Parameters:
    """`old + OVERSTEP (new − old)`, in coordinates that keep covariances positive."""
    scale = np.sqrt(np.diag(new.H))
    d, p = new.theta.shape
    free = np.ones((d, p), dtype=bool)
    variances = np.diag(new.R) > 0
    problem = SmoothingProblem(1.0, free, np.zeros((d, p)), None, variances, False, None, scale)
    x, y = pack(old, problem), pack(new, problem)
    return unpack(x + OVERSTEP * (y - x), new, problem)


def _average(many: list[Parameters]) -> Parameters:
    def mean(values: list[Array]) -> Array:
        return np.asarray(np.mean(values, axis=0))

    initial = Gaussian(
        mean([each.initial.mean for each in many]),
        mean([each.initial.covariance for each in many]),
    )
    theta, H, R = (mean([getattr(each, name) for each in many]) for name in ("theta", "H", "R"))
    return Parameters(theta, H, R, initial)


def _gap(seen: list[Parameters], unit: Array) -> float:
    """Half the difference between the averages of the two halves of the window, in the given units."""
    window = np.array([np.r_[p.theta.ravel(), p.H.ravel()] for p in seen[len(seen) // 2 :]])
    half = len(window) // 2
    change = (window[:half].mean(axis=0) - window[half:].mean(axis=0)) / unit
    return float(np.sqrt(np.mean(change**2))) / 2


@dataclass(frozen=True, eq=False)
class Averaged:
    """The kept direction run to convergence, its twin, and each trajectory's log-ratio between them."""

    run: Run
    twin: Run
    log_ratios: Array


def average_over_orders(
    problem: NoisyProblem,
    begin: Hidden,
    rng: np.random.Generator,
    *,
    progress: Callable[[int, float], None] = lambda k, gap: None,
) -> Averaged:
    """Monte-Carlo EM with the direction decided by likelihoods in which the orders are summed out."""
    n = len(begin.order)
    states = random_states(rng, CHAINS * n).reshape(CHAINS, n)
    orders = np.tile(begin.order, (CHAINS, 1, 1))
    one = run_mcem(problem, warmed(problem, begin.fit), orders, states, progress=progress)
    # The twin starts from the mirror image of what has converged, so that neither is judged half-way.
    back = np.stack([problem.repaired(problem.data.reversed(each)) for each in one.orders])
    turned = problem.fit(back[0]).fit
    two = run_mcem(problem, turned, back, states.copy(), rounds=TWIN_ROUNDS)
    ratios = _bridge(problem, one, two)
    if ratios.sum() >= 0:
        return Averaged(one, two, ratios)
    resumed = replace(turned, parameters=two.parameters)
    run = run_mcem(problem, resumed, two.orders, two.states, progress=progress)
    return Averaged(run, one, -ratios)


def _bridge(problem: NoisyProblem, one: Run, two: Run) -> Array:
    """`log p(Y_j; one) − log p(Y_j; two)` with orders summed out; see `mcem`."""
    n, T = problem.values.shape[:2]
    rows = evenly(n, BRIDGED)
    few = problem.some(BRIDGED)

    def one_sided(here: Run, there: Run) -> Array:
        law, other = here.parameters.model(problem.dt), there.parameters.model(problem.dt)
        orders, states = here.orders[:, rows].copy(), here.states[:, rows].copy()
        kept = draw(few, law, orders, states, burn=2 * T, samples=BRIDGES, thin=2 * T)
        ratios = []
        for chain in kept:
            for r in range(BRIDGES):
                order = chain[:, r].astype(np.intp)
                back = few.data.reversed(order)
                ratios.append(
                    kalman(few.along(back), other).log_likelihood
                    - kalman(few.along(order), law).log_likelihood
                )
        g = np.array(ratios)
        top = g.max(axis=0)
        return np.asarray(top + np.log(np.exp(g - top).mean(axis=0)))

    return 0.5 * (one_sided(two, one) - one_sided(one, two))
