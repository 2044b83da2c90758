"""From a problem to an outcome: which search and which estimator, for one permutation or for many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.data.blocks import Array, Order
from retrace_sde.engine.direction import (
    DirectionTest,
    cyclic_direction,
    direction_test,
    folded_direction,
    known_direction,
)
from retrace_sde.engine.independent import (
    KICKS,
    Law,
    first_orders,
    random_states,
    recover_orders,
    search,
)
from retrace_sde.engine.mcem import Chains, as_moments, average_over_orders, certainty, log_joint
from retrace_sde.engine.noisy import Hidden
from retrace_sde.engine.posterior import (
    OrderPosterior,
    louis_errors,
    order_posterior,
    shared_posterior,
)
from retrace_sde.engine.problem import Directed, Problem, Round
from retrace_sde.engine.shared import recover_order, step_costs
from retrace_sde.engine.spacing import (
    Spaced,
    both_spacings,
    exact_fits,
    exact_spacing,
    recover_spacing,
    spacing_checked,
)
from retrace_sde.estimate.euler import Model
from retrace_sde.estimate.exact import exact
from retrace_sde.estimate.moments import Moments
from retrace_sde.estimate.regression import Estimate, mle, ols
from retrace_sde.estimate.start import is_point, start_law, start_log_densities
from retrace_sde.orders.costs import distances, gap_costs
from retrace_sde.orders.loops import closes, cyclic_order, may_fold
from retrace_sde.paper.algorithm1 import Keep, score_order
from retrace_sde.paper.score import Score, ScoreDrift
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian

CERTAIN = 0.99
"""Share of neighbours that the posterior must agree on for one best order to be good enough."""

POSTERIOR_SAMPLES = 1500
POSTERIOR_NUMBERS = 20_000_000
"""Numbers (n T²) up to which a fit computes position probabilities; beyond, a subset is diagnosed."""

R_HAT, EFFECTIVE_SIZE = 1.2, 20.0
"""Beyond these the chains have not explored the orders well enough, and the fit says so."""


@dataclass(frozen=True)
class Options:
    """What the user chose."""

    permutation: str
    order: str
    estimator: str
    score_drift: ScoreDrift
    keep: Keep
    max_iter: int
    alpha: float
    report: Callable[[str], None]
    spacing: str = "regular"
    score: Score | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The order found with its fit, and the same for the reverse."""

    order: Order
    statistics: Moments
    estimate: Estimate
    model: Model
    initial: Gaussian
    direction: DirectionTest
    reverse_order: Order
    reverse_estimate: Estimate
    reverse_log_likelihood: float
    log_likelihood: float
    history: tuple[Round, ...]
    converged: bool
    estimator: str
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    posterior: OrderPosterior | None = None
    hidden: Hidden | None = None
    gaps: Array | None = None
    log_gap_errors: Array | None = None
    reverse_gaps: Array | None = None
    cycle: bool = False


def fit_shared(problem: Problem, options: Options) -> Outcome:
    """One permutation for all trajectories."""
    if problem.gaps is not None:
        found, reverse, history, settled = _in_known_order(problem)
    elif options.spacing == "estimate":
        return _of_spacing(problem, options)
    elif options.order == "likelihood":
        found, reverse, history, settled = recover_order(problem, max_iter=options.max_iter)
        if problem.prior is None and closes(problem.data, found.order):
            order = cyclic_order(distances(problem.data), found.order)
            return _cyclic(
                _of_one_order(problem, options, *problem.both_directions(order), history, settled)
            )
        outcome = _of_one_order(problem, options, found, reverse, history, settled)
        return _unfolded(problem, _spacing_checked(problem, options, outcome))
    else:
        found, rounds, settled = score_order(
            problem.data,
            problem.dt,
            problem.fit,
            max_iter=options.max_iter,
            score_drift=options.score_drift,
            keep=options.keep,
            score=options.score,
        )
        history = [each.as_round() for each in rounds]
        reverse = problem.fit(problem.data.reversed(found.order))
    return _of_one_order(problem, options, found, reverse, history, settled)


def fit_independent(problem: Problem, options: Options, rng: np.random.Generator) -> Outcome:
    """One permutation for each trajectory: one best order each, or an average over orders."""
    if problem.gaps is not None:
        return _of_one_order(problem, options, *_in_known_order(problem))
    turns = problem.drift.reversal(problem.data.shape[2], problem.dt) is not None
    if options.estimator == "mcem" and turns:
        orders = first_orders(problem, rng, random_states(rng, problem.data.shape[0]))
        averaged = _averaged(problem, options, problem.fit(orders), rng, ())
        return _spacing_checked(problem, options, averaged)
    found, reverse, history, settled = recover_orders(problem, rng, max_iter=options.max_iter)
    searched = None if turns else (found, reverse)
    if options.estimator == "mcem":
        averaged = _averaged(problem, options, found, rng, (), searched)
        return _spacing_checked(problem, options, averaged)
    hard = _of_one_order(problem, options, found, reverse, history, settled)
    if options.estimator != "auto":
        return _spacing_checked(problem, options, hard)
    sure = certainty(problem, Law.of(problem, found), found.order, rng)
    if sure >= CERTAIN:
        hard = replace(hard, notes=(*hard.notes, f"The orders are certain: {_agreement(sure)}."))
        return _spacing_checked(problem, options, hard)
    note = f"The orders are uncertain, so the parameters average over them: {_agreement(sure)}."
    averaged = _averaged(problem, options, found, rng, (note,), searched)
    return _spacing_checked(problem, options, averaged)


def _spacing_checked(problem: Problem, options: Options, outcome: Outcome) -> Outcome:
    if not isinstance(problem.drift, Linear | Affine):
        # A stated mechanism stands for how steps go. Unequal ones come from subjects that differ, too: on
        # growing tumours the check doubted a direction that was right.
        return outcome
    test = spacing_checked(problem, outcome.order, outcome.direction, alpha=options.alpha)
    return replace(outcome, direction=test)


def _of_spacing(problem: Problem, options: Options) -> Outcome:
    """One permutation and its gaps, each direction with its own."""
    found, reverse, history, settled = recover_spacing(problem, max_iter=options.max_iter)
    cycle = problem.prior is None and closes(problem.data, found.directed.order)
    if cycle:
        order = cyclic_order(distances(problem.data), found.directed.order)
        found, reverse = both_spacings(problem, order)
    outcome = _of_one_order(
        problem, options, found.directed, reverse.directed, history, settled, (found, reverse)
    )
    outcome = replace(
        outcome,
        gaps=found.gaps,
        log_gap_errors=found.log_errors,
        reverse_gaps=reverse.gaps,
    )
    return _cyclic(outcome) if cycle else _unfolded(problem, outcome)


def _unfolded(problem: Problem, outcome: Outcome) -> Outcome:
    """The outcome, with a caution and without a direction where one variable may have folded onto itself."""
    if problem.data.shape[2] > 1 or not isinstance(problem.drift, Linear | Affine):
        return outcome  # under another drift residuals are correlated by measurement error, if by anything
    if not may_fold(problem.data, outcome.order, problem.fit(outcome.order).model):
        return outcome
    caution = (
        "With one variable a path that rises and falls folds onto itself: slices of the same level are "
        "neighbours whether on the way up or down, and no order of these data can tell. If it may be so, add a "
        "variable or some knowledge of time (the last slice, which half a slice is in, a few positions)."
    )
    test = outcome.direction
    return replace(
        outcome,
        cautions=(*outcome.cautions, caution),
        direction=folded_direction(test) if test.identified and not test.known else test,
    )


def _cyclic(outcome: Outcome) -> Outcome:
    return replace(outcome, cycle=True, direction=cyclic_direction(outcome.direction))


def _in_known_order(problem: Problem) -> tuple[Directed, Directed, list[Round], bool]:
    """All times are known: the one order that obeys them, fitted with its true gaps."""
    n, T, _ = problem.data.shape
    every = np.arange(T, dtype=np.intp)
    shared = problem.gaps is not None and problem.gaps.ndim == 1
    found = problem.fit(problem.repaired(every if shared else np.tile(every, (n, 1))))
    return found, problem.reversed_fit(found), [found.as_round()], True


def from_knowledge(
    problem: Problem, order: Order, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The test, or, where what is known (nearly) rules out the reverse of most orders, that instead of it."""
    if problem.prior is None:
        return test
    back = problem.prior_costs(problem.data.reversed(order))
    odds = np.minimum(back - problem.prior_costs(order), 700.0)
    reverse = np.where(np.isfinite(back), 1 / (1 + np.exp(odds)), 0.0)
    middle = float(np.median(reverse))
    return known_direction(test, middle) if middle < alpha else test


def _agreement(sure: float) -> str:
    return f"the posterior agrees with {sure:.1%} of the neighbours in the best orders"


def _of_one_order(
    problem: Problem,
    options: Options,
    found: Directed,
    reverse: Directed,
    history: list[Round],
    settled: bool,
    spaced: tuple[Spaced, Spaced] | None = None,
) -> Outcome:
    for k, each in enumerate(history, start=1):
        options.report(f"round {k}: log-likelihood {each.log_likelihood:,.1f}")
    first = problem.data.states(found.order)
    direction = direction_test(
        found.log_likelihoods,
        reverse.log_likelihoods,
        dimension=problem.data.shape[2],
        alpha=options.alpha,
        point_start=is_point(first, found.model),
    )
    direction = from_knowledge(problem, found.order, direction, alpha=options.alpha)
    name = _estimator(problem, options, spaced)
    if spaced is None and name == "exact" and found.gaps is not None:
        known = [exact_spacing(problem, each, each.gaps, free=False) for each in (found, reverse)]
        spaced = known[0], known[1]
    if spaced is None or name != "exact":
        estimate, other = (_estimate(problem, name, each.moments) for each in (found, reverse))
    else:
        estimate, other = (each.estimate or mle(each.directed.moments) for each in spaced)
    return Outcome(
        found.order,
        found.moments,
        estimate,
        found.model,
        start_law(first, found.model, problem.variances),
        direction,
        reverse.order,
        other,
        reverse.log_likelihood,
        found.log_likelihood,
        tuple(history),
        settled,
        name,
        estimate.notes,
        gaps=found.gaps,
        reverse_gaps=reverse.gaps,
    )


def _estimator(problem: Problem, options: Options, spaced: tuple[Spaced, Spaced] | None) -> str:
    """The estimator of one order: with gaps that differ, exact transitions where they can be had."""
    if options.estimator != "auto":
        return options.estimator
    common = problem.gaps is not None and problem.gaps.ndim == 1 and exact_fits(problem)
    return "exact" if common or (spaced is not None and spaced[0].estimate) else "mle"


def _estimate(problem: Problem, name: str, statistics: Moments) -> Estimate:
    if name == "ols":
        return ols(statistics)
    if name == "exact":
        return exact(statistics, problem.dt, affine=isinstance(problem.drift, Affine))
    return mle(statistics)


def _averaged(
    problem: Problem,
    options: Options,
    begin: Directed,
    rng: np.random.Generator,
    notes: tuple[str, ...],
    searched: tuple[Directed, Directed] | None = None,
) -> Outcome:
    """Monte-Carlo EM, the posterior over orders under its parameters, and the most probable orders."""
    n, T, d = problem.data.shape
    averaged = average_over_orders(
        problem,
        Law.of(problem, begin),
        begin.order,
        rng,
        searched=searched,
        progress=lambda k, gap: options.report(
            f"round {k + 1}: Monte-Carlo error {gap:.2f} standard errors"
        ),
    )
    run, law = averaged.run, averaged.run.law
    orders, _ = search(
        problem.data, law, begin.order, random_states(rng, n), cold=True, deep=True, kicks=KICKS,
        prior=problem.prior,
    )  # fmt: skip
    statistics = as_moments(problem, run.statistics)
    estimate = mle(statistics)
    cautions: list[str] = []
    few = problem.some(max(1, POSTERIOR_NUMBERS // (T * T)))
    chains = run.chains.some(few.data.shape[0])
    posterior, kept = order_posterior(few, law, chains, samples=POSTERIOR_SAMPLES)
    errors, note = louis_errors(problem, run, few, kept)
    estimate = replace(estimate, errors=errors)
    notes = notes if note is None else (*notes, note)
    if posterior.r_hat > R_HAT or posterior.effective_size < EFFECTIVE_SIZE:
        cautions.append(
            f"The chains over orders mix slowly (R-hat {posterior.r_hat:.2f}, effective size "
            f"{posterior.effective_size:.0f}): read position probabilities with care."
        )
    if few is not problem:
        notes = (*notes, "Call sample_orders() for the position probabilities of so many orders.")
    if not run.converged:
        cautions.append(
            f"Monte-Carlo EM stopped before it converged (error {run.gap:.2f} standard errors)."
        )
    twin = averaged.twin or run
    back = problem.repaired(problem.data.reversed(orders))
    model = law.model
    direction = direction_test(
        averaged.log_ratios,
        np.zeros_like(averaged.log_ratios),
        dimension=d,
        alpha=options.alpha,
        point_start=is_point(problem.data.states(orders), model),
    )
    none = np.empty((0, 0), dtype=np.intp)
    return Outcome(
        orders,
        statistics,
        estimate,
        model,
        law.start or start_law(problem.data.states(orders), model, problem.variances),
        from_knowledge(problem, orders, direction, alpha=options.alpha),
        back,
        mle(as_moments(problem, twin.statistics)),
        float(log_joint(problem, back, twin.law).sum()),
        float(log_joint(problem, orders, law).sum()),
        tuple(
            Round(none, each.model.coefficients, each.model.diffusion, float("nan"))
            for each in run.rounds
        ),
        run.converged,
        "mcem",
        notes,
        tuple(cautions),
        posterior if few is problem else None,
    )


def sample_posterior(
    problem: Problem, outcome_order: Order, law: Law, rng: np.random.Generator, *, samples: int
) -> OrderPosterior:
    """The posterior over orders under fixed parameters, for either kind of permutation."""
    if outcome_order.ndim == 1:
        every = problem.data.slices(np.arange(len(outcome_order)))
        start = -start_log_densities(every, law.model, problem.variances).sum(axis=1)
        if problem.gaps is not None:
            costs = gap_costs(problem.data, law.model)
        else:
            found = replace(problem.fit(outcome_order), model=law.model)
            costs = step_costs(problem, found)
        return shared_posterior(
            costs, start, outcome_order, rng, samples=samples, prior=problem.prior
        )
    chains = Chains.start(outcome_order, rng)
    return order_posterior(problem, law, chains, samples=samples)[0]
