"""From noisy or incomplete observations to an outcome, for one permutation or for many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from retrace_sde.data.blocks import Data, Order
from retrace_sde.engine.direction import DirectionTest, direction_test
from retrace_sde.engine.fitting import (
    CERTAIN,
    EFFECTIVE_SIZE,
    POSTERIOR_NUMBERS,
    R_HAT,
    Options,
    Outcome,
    from_knowledge,
)
from retrace_sde.engine.independent import random_states
from retrace_sde.engine.noisy import Hidden, NoisyProblem
from retrace_sde.engine.noisy_independent import (
    FINAL,
    average_over_orders,
    fit_draws,
    recover_ruled_orders,
    starting_orders,
)
from retrace_sde.engine.noisy_orders import agreement, draw, search
from retrace_sde.engine.noisy_posterior import posterior_of
from retrace_sde.engine.noisy_shared import best_order, recover_noisy_order
from retrace_sde.engine.problem import Problem, Round
from retrace_sde.engine.spacing import spacing_checked
from retrace_sde.estimate.bootstrap import errors_of_draws
from retrace_sde.estimate.kalman.em import EMResult, em, errors_over_draws
from retrace_sde.estimate.kalman.smoother import StateSpace, kalman
from retrace_sde.estimate.kalman.steps import as_noise
from retrace_sde.estimate.moments import Moments
from retrace_sde.estimate.regression import Estimate, StandardErrors, regression_errors
from retrace_sde.paper.algorithm1 import score_order
from retrace_sde.paper.score import GaussianScore


def fit_noisy(
    noisy: NoisyProblem, problem: Problem, options: Options, rng: np.random.Generator
) -> Outcome:
    """The outcome for either kind of permutation, and for the paper's algorithm."""
    if problem.gaps is not None:
        outcome = _in_known_order(noisy, problem, options)
    elif options.order == "score":
        return fit_noisy_score(noisy, problem, options)
    elif options.permutation == "shared":
        outcome = fit_noisy_shared(noisy, options)
    else:
        outcome = fit_noisy_independent(noisy, options, rng)
    direction = from_knowledge(problem, outcome.order, outcome.direction, alpha=options.alpha)
    direction = _spacing_checked(noisy, problem, outcome, direction, alpha=options.alpha)
    return replace(outcome, direction=direction)


def _spacing_checked(
    noisy: NoisyProblem,
    problem: Problem,
    outcome: Outcome,
    direction: DirectionTest,
    *,
    alpha: float,
) -> DirectionTest:
    """The direction, or doubt where the smoothed steps are so unequal that equal gaps may mislead it."""
    if outcome.hidden is None:
        return direction
    states = outcome.hidden.fit.states.means  # in time order already
    n, T, _ = states.shape
    every = np.arange(T, dtype=np.intp)
    known = Problem(Data(states, None, noisy.n_jobs, noisy.lengths), problem.dt, problem.drift)
    order = every if outcome.order.ndim == 1 else np.tile(every, (n, 1))
    return spacing_checked(known, order, direction, alpha=alpha)


def _in_known_order(noisy: NoisyProblem, problem: Problem, options: Options) -> Outcome:
    """All times are known: em along the one order that obeys them."""
    n, T, _ = noisy.values.shape
    gaps = np.asarray(problem.gaps)
    if not np.allclose(gaps, noisy.dt, rtol=1e-3):
        raise ValueError(
            "with noise or missing values the known times must be dt apart. Add the times in between as "
            "observations whose values are missing (NaN), or drop the trajectories with missing values."
        )
    every = np.arange(T, dtype=np.intp)
    found = noisy.fit(noisy.repaired(every if gaps.ndim == 1 else np.tile(every, (n, 1))))
    reverse = noisy.fit(noisy.data.reversed(found.order), loose=False)
    return of_one_order(noisy, options, found, reverse, [found.as_round()], True)


def fit_noisy_score(noisy: NoisyProblem, problem: Problem, options: Options) -> Outcome:
    """Algorithm 1 with the paper's correction of the slices' covariances, `Σ̂ = S − R`; then em."""
    R = as_noise(noisy.noise, problem.data.shape[2])[0]
    known = not np.isnan(R).any()
    score = GaussianScore(R if known else None)
    found, rounds, settled = score_order(
        problem.data,
        problem.dt,
        problem.fit,
        max_iter=options.max_iter,
        score_drift=options.score_drift,
        keep=options.keep,
        score=score,
    )
    hidden, reverse = (noisy.fit(o, loose=False) for o in (found.order, found.order[::-1].copy()))
    outcome = of_one_order(
        noisy, options, hidden, reverse, [each.as_round() for each in rounds], settled
    )
    floored = score.fit(problem.data).floored
    if floored:
        caution = (
            f"In {floored} of {problem.data.shape[1]} slices the noise exceeds the spread in some direction: "
            "the corrected covariance S − R is floored there, and the score is a guess."
        )
        return replace(outcome, cautions=(*outcome.cautions, caution))
    if not known:
        note = "The slices' covariances are not corrected for noise, whose size was not given."
        return replace(outcome, notes=(*outcome.notes, note))
    return outcome


def fit_noisy_shared(problem: NoisyProblem, options: Options) -> Outcome:
    """One permutation for all trajectories."""
    found, reverse, history, settled = recover_noisy_order(problem, max_iter=options.max_iter)
    return of_one_order(problem, options, found, reverse, history, settled)


def fit_noisy_independent(
    problem: NoisyProblem, options: Options, rng: np.random.Generator
) -> Outcome:
    """One permutation for each trajectory: one best order each, or an average over orders."""
    found, reverse, history, settled = recover_ruled_orders(problem, rng, max_iter=options.max_iter)
    if options.estimator == "mcem":
        return _averaged(problem, options, found, rng, ())
    note = ""
    if options.estimator == "auto":
        kept = _chains(problem, found.model, found.order, rng, samples=20)
        sure = agreement(problem, kept, found.order)
        note = f"the posterior agrees with {sure:.1%} of the neighbours in the best orders"
        if sure < CERTAIN:
            note = f"The orders are uncertain, so the parameters average over them: {note}."
            return _averaged(problem, options, found, rng, (note,))
        note = f"The orders are certain: {note}."
    hard = of_one_order(problem, options, found, reverse, history, settled)
    return replace(hard, notes=(*hard.notes, *([note] if note else [])))


def of_one_order(
    problem: NoisyProblem,
    options: Options,
    found: Hidden,
    reverse: Hidden,
    history: list[Round],
    settled: bool,
) -> Outcome:
    """The outcome of one best order (each), with the standard errors of its parameters."""
    for k, each in enumerate(history, start=1):
        options.report(f"round {k}: log-likelihood {each.log_likelihood:,.1f}")
    fitted = problem.fit(found.order, start=found.fit, loose=False, standard_errors=True)
    direction = direction_test(
        fitted.log_likelihoods,
        reverse.log_likelihoods,
        dimension=problem.values.shape[2],
        alpha=options.alpha,
    )
    return _outcome(problem, fitted, reverse, tuple(history), settled, "em", direction=direction)


def _outcome(
    problem: NoisyProblem,
    found: Hidden,
    reverse: Hidden,
    history: tuple[Round, ...],
    settled: bool,
    estimator: str,
    **more: object,
) -> Outcome:
    fit = found.fit
    return Outcome(
        order=found.order,
        statistics=_effective(fit),
        estimate=_estimate(problem, fit),
        model=problem.as_model(fit),
        initial=fit.initial,
        reverse_order=reverse.order,
        reverse_estimate=_estimate(problem, reverse.fit),
        reverse_log_likelihood=reverse.log_likelihood,
        log_likelihood=found.log_likelihood,
        history=history,
        converged=settled,
        estimator=estimator,
        hidden=found,
        **{"notes": fit.notes, **more},  # type: ignore[arg-type]
    )


def _effective(fit: EMResult) -> Moments:
    """The expected moments, shrunk to the information that noise and gaps left of them.

    Known states would give smaller errors than those of the fit; tests on the moments must not.
    """
    if fit.errors is None:
        return fit.moments
    known = regression_errors(fit.moments, fit.parameters.H)
    d = len(fit.parameters.H)
    drift = float(np.median(known.drift[:, :d] / np.maximum(fit.errors.drift, 1e-300)))
    spread = float(np.median(known.diffusion / np.maximum(fit.errors.diffusion, 1e-300)))
    share, count = min(drift, 1.0), min(spread, 1.0) ** 2 * fit.moments.count
    return replace(fit.moments, factor=fit.moments.factor * share, count=count)


def _estimate(problem: NoisyProblem, fit: EMResult) -> Estimate:
    coefficients = problem.as_model(fit).coefficients
    nothing = StandardErrors(
        np.full_like(coefficients, np.nan), np.full_like(fit.diffusion, np.nan)
    )
    errors = fit.errors or nothing
    if errors.offset is not None:
        errors = replace(errors, drift=np.c_[errors.drift, errors.offset], offset=None)
    return Estimate(coefficients, fit.diffusion, errors)


def _averaged(
    problem: NoisyProblem,
    options: Options,
    begin: Hidden,
    rng: np.random.Generator,
    notes: tuple[str, ...],
) -> Outcome:
    """Monte-Carlo EM, the posterior over orders under its parameters, and the best orders."""
    n, T, d = problem.values.shape
    averaged = average_over_orders(
        problem,
        begin,
        rng,
        progress=lambda k, gap: options.report(
            f"round {k + 1}: Monte-Carlo error {gap:.2f} standard errors"
        ),
    )
    run, cautions = averaged.run, list[str]()
    if not run.converged:
        cautions.append(
            f"Monte-Carlo EM stopped before it converged (error {run.gap:.2f} standard errors)."
        )
    model = run.parameters.model(problem.dt)
    kept = draw(problem, model, run.orders, run.states, burn=4 * T, samples=FINAL, thin=2 * T)
    fit = fit_draws(problem, kept, replace(begin.fit, parameters=run.parameters), steps=1)
    orders, _ = search(problem, model, run.orders[0])
    fit = replace(
        fit,
        errors=_errors(problem, fit, kept),
        states=kalman(problem.along(orders), model),
    )
    if fit.errors is None:
        notes = (*notes, "Standard errors are not known: the orders leave too little information.")
    found = Hidden(orders, fit, model, fit.states.log_likelihood)
    back = problem.data.reversed(orders)
    twin_model = averaged.twin.parameters.model(problem.dt)
    states = kalman(problem.along(back), twin_model)
    twin_fit = fit_draws(
        problem,
        averaged.twin.orders[:, :, None].astype(np.int16),
        replace(fit, parameters=averaged.twin.parameters),
        steps=1,
    )
    twin = Hidden(back, replace(twin_fit, states=states), twin_model, states.log_likelihood)
    posterior = None
    if n * T * T <= POSTERIOR_NUMBERS:
        posterior = posterior_of(problem, model, run.orders, run.states)
        if posterior.r_hat > R_HAT or posterior.effective_size < EFFECTIVE_SIZE:
            cautions.append(
                f"The chains over orders mix slowly (R-hat {posterior.r_hat:.2f}, effective size "
                f"{posterior.effective_size:.0f}): read position probabilities with care."
            )
    direction = direction_test(
        averaged.log_ratios,
        np.zeros_like(averaged.log_ratios),
        dimension=d,
        alpha=options.alpha,
    )
    none = np.empty((0, 0), dtype=np.intp)
    history = tuple(Round(none, each.theta, each.H, float("nan")) for each in run.rounds)
    return _outcome(
        problem,
        found,
        twin,
        history,
        run.converged,
        "mcem",
        direction=direction,
        posterior=posterior,
        notes=notes,
        cautions=tuple(cautions),
    )


def _errors(problem: NoisyProblem, fit: EMResult, kept: NDArray[np.int16]) -> StandardErrors | None:
    draws = [
        [problem.along(chain[:, r].astype(np.intp)) for r in range(chain.shape[1])]
        for chain in kept
    ]
    return errors_over_draws(
        draws,
        problem.dt,
        fit,
        noise=problem.noise,
        scheme=problem.scheme,
        n_jobs=problem.n_jobs,
    )


def _chains(
    problem: NoisyProblem,
    model: StateSpace,
    orders: Order,
    rng: np.random.Generator,
    *,
    samples: int,
) -> NDArray[np.int16]:
    n, T = orders.shape
    states = random_states(rng, n).reshape(1, n)
    chain = orders[None].copy()
    return draw(problem, model, chain, states, burn=10 * T, samples=samples, thin=T)


def bootstrap_noisy(
    problem: NoisyProblem, order: Order, fit: EMResult, rng: np.random.Generator, replicates: int
) -> StandardErrors:
    """Standard errors of EM along an order, by resampling trajectories."""
    y = problem.along(order)
    coefficients, diffusions = [], []
    for _ in range(replicates):
        rows = rng.integers(len(y), size=len(y))
        found = em(
            y[rows],
            problem.dt,
            noise=problem.noise,
            affine=problem.affine,
            scheme=problem.scheme,
            start=fit,
            tolerance=0.1,
            standard_errors=False,
        )
        coefficients.append(problem.as_model(found).coefficients)
        diffusions.append(found.diffusion)
    return errors_of_draws(coefficients, diffusions)


def order_others(
    problem: NoisyProblem, model: StateSpace, rng: np.random.Generator, *, shared: bool
) -> Order:
    """The most likely order of other trajectories under fixed parameters."""
    if not shared:
        return search(problem, model, starting_orders(problem, rng))[0]
    return best_order(problem, model)
