"""From a model to an outcome: which search, which estimator, what may be believed; for any model and either space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.closed_form.panels import Ground
from retrace_sde.evidence.direction.comparison import compare_directions, restricted
from retrace_sde.evidence.direction.components import by_components
from retrace_sde.evidence.direction.marginal_test import marginal_test
from retrace_sde.evidence.direction.reversal_search import search_reversals
from retrace_sde.evidence.direction.verdict import (
    DirectionTest,
    Reason,
    direction_test,
    known_direction,
    left_open,
)
from retrace_sde.evidence.growth import Growth, GrowthSeen, look
from retrace_sde.evidence.guards import GuardFinding, cut, from_knowledge, guarded, loops
from retrace_sde.evidence.selection.intercepts import Subjects
from retrace_sde.evidence.selection.noise import NoiseChoice
from retrace_sde.evidence.selection.subjects import (
    ComparedSubjects,
    SubjectAccount,
    SubjectEffects,
    compare_subjects,
)
from retrace_sde.fit.exact import difference
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.random_intercepts import RandomIntercepts
from retrace_sde.fit.regression import Estimate
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.draws import Chains, Stretch, agreement, random_states
from retrace_sde.orders.own import KICKS
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.lengths import Lengths
from retrace_sde.process.sde import Gaussian
from retrace_sde.progress import cut_short
from retrace_sde.search.alternate import FIRST_ROUNDS, Found, alternate, recover, rivals
from retrace_sde.search.collapsed import OrderDraws, order_draws, over_orders, posterior_of
from retrace_sde.search.enumerated import (
    OthersPosterior,
    best_orders,
    drawn_before,
    enumerable,
    posterior_of_others,
)
from retrace_sde.search.gibbs import (
    drawn_with_parameters,
    own_posterior,
    plugged_in,
    shared_draws,
)
from retrace_sde.search.many_variables import search_by_evidence
from retrace_sde.search.mcem import Averaged, Run, average, louis_errors, run
from retrace_sde.search.model import Fit, Round
from retrace_sde.search.posterior import OrderPosterior, shared_posterior
from retrace_sde.search.protocols import Model, SharedOrders
from retrace_sde.search.space import Own, Shared, Space

MIN_AGREEMENT = 0.99
"""Share of neighbours that the posterior must agree on for one best order to be good enough: a wrong step is shorter than
the true one by its whole length at most, so that H shrinks by less than a hundredth."""

MIN_AGREEMENT_OF_SUBJECTS = 0.95
"""The same for random intercepts and rates, which are not averaged over orders: below, H is biased low by more than 5 %."""

POSTERIOR_NUMBERS = 20_000_000
"""Numbers (n T²) up to which a fit computes position probabilities; beyond, a subset is diagnosed."""

FITTED_DRAWS = 800
"""Orders that a fit draws where more than one shared order is likely."""

ORDER_UNCERTAIN = (
    "Other orders explain the data nearly as well: errors and position probabilities include them, the parameters are those "
    "of the order shown."
)

RIVAL_ROUNDS = 5
"""Rounds of the search for other optima of a shared order."""

LOOP_LOSS = 0.7
"""Nats for each number of a slice by which an order that is cut from a closed loop may be less likely than the one found: one step and the first slice
change. Loops (30 panels of `studies/guards.py`): .46 at most. Two transients whose common shocks led back to the start: .9 and 1.4. A process that
jumps across in every step closes, too, but not along its shortest tour."""

Search = Callable[[Model], tuple[Found, tuple[str, ...], tuple[str, ...]]]
"""Another way to an order than the engine's: what was found, notes and cautions."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The order found with its fit, the same for the reverse, and what may be believed of them.

    `folded`: the probability that one variable lies folded onto itself along the order. `along`: the candidate models fitted along the
    order, which the choice of a model reads; None where parameters are averaged over orders, and in a result.
    """

    found: Fit
    reverse: Fit
    estimate: Estimate
    reverse_estimate: Estimate
    statistics: Moments
    initial: Gaussian
    direction: DirectionTest
    history: tuple[Round, ...]
    converged: bool
    estimator: str
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    cycle: bool = False
    law: Any = None
    posterior: OrderPosterior | None = None
    subjects: SubjectEffects | None = None
    account: SubjectAccount | None = None
    noise: NoiseChoice | None = None
    folded: float = 0.0
    along: CandidatesAlong | None = None

    @property
    def levels(self) -> RandomIntercepts | None:
        """Random intercepts, where the fit has them."""
        return None if self.account is None else self.account.levels

    @property
    def noise_covariance(self) -> Array | None:
        """R of the model that was chosen; None where states are observed."""
        own = None if self.account is None else self.account.law
        return getattr(self.found.law if own is None else own, "R", None)


@dataclass(frozen=True)
class Options:
    """What the user chose. `search`: another way to a shared order than maximum likelihood.

    `volume`: the nats that a log-likelihood loses when it is said in the user's units. `grounds`: what may count for the
    direction; `aligned`: at what subjects are aligned, as far as that was told. `known_order`: the order, where only its direction
    is asked for. `growth`: variables that are known to grow or fall.
    """

    shared: bool
    estimator: str
    max_iter: int
    alpha: float
    report: Callable[[str], None]
    search: Search | None = None
    subjects: Subjects = Subjects.ALIKE
    volume: float = 0.0
    grounds: frozenset[Ground] = frozenset(Ground)
    aligned: str | None = None
    known_order: Indices | None = None
    growth: Growth | None = None

    @property
    def counting(self) -> frozenset[Ground]:
        """What counts for the direction: where subjects are aligned at the end, neither means nor spreads do."""
        return self.grounds & {Ground.RESIDUALS} if self.aligned == "end" else self.grounds


def fit(model: Model, options: Options, rng: np.random.Generator) -> Outcome:
    """Order, direction and parameters."""
    space: Space = (Shared if options.shared else Own).of(model, rng)
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    if options.known_order is not None:
        found = _along(model, options.known_order)
        return _of_found(model, found, options, rng, cycle=loops(model, found.better))
    if model.timing.gaps_known:
        found = _in_known_order(model, options)
    elif options.search is not None:
        found, notes, cautions = options.search(model)
    elif options.shared:
        found = searched(model, space, rng, max_iter=options.max_iter)
        if loops(model, found.better):
            tour = cut(model, found)
            lost = found.better.objective - tour.better.objective
            if lost <= LOOP_LOSS * model.data.shape[0] * model.data.shape[2]:
                return _of_found(model, tour, options, rng, cycle=True)
    else:
        return _fit_own(model, space, options, rng)
    outcome = _of_found(model, found, options, rng)
    return replace(outcome, notes=(*outcome.notes, *notes), cautions=(*outcome.cautions, *cautions))


def searched(model: Model, space: Space, rng: np.random.Generator, *, max_iter: int) -> Found:
    """The most likely shared order that is found."""
    found = recover(model, space, rng, max_iter=max_iter)
    found = search_reversals(model, space, found, max_iter=max_iter)
    return search_by_evidence(model, found)


def _fit_own(model: Model, space: Space, options: Options, rng: np.random.Generator) -> Outcome:
    """One best order for each trajectory, or an average over orders where they are not certain."""
    turns = model.drift.reversal(model.data.shape[2], model.dt) is not None
    if options.estimator == "mcem" and turns:
        start = space.starts(model, rng)[0]
        begin = alternate(model, space, start, max_iter=FIRST_ROUNDS).pair.better
        return _averaged(model, begin, None, options, rng)
    found = recover(model, space, rng, max_iter=options.max_iter)
    searched = None if turns else found
    if options.estimator == "mcem":
        return _averaged(model, found.better, searched, options, rng)
    if options.estimator != "auto":
        return _of_found(model, found, options, rng, cycle=loops(model, found.better))
    sure = certainty(model, found.better, rng)
    if options.subjects in (Subjects.LEVELS, Subjects.RATES):
        outcome = _of_found(model, found, options, rng, cycle=loops(model, found.better))
        return (
            outcome
            if sure >= MIN_AGREEMENT_OF_SUBJECTS
            else replace(outcome, cautions=(*outcome.cautions, _uncertain(options.subjects, sure)))
        )
    said = f"the posterior agrees with {sure:.1%} of the neighbours in the best orders"
    if sure >= MIN_AGREEMENT and not model.averages:
        cycle, note = loops(model, found.better), "The orders are certain"
        outcome = _of_found(model, found, options, rng, cycle=cycle)
    else:
        outcome = _averaged(model, found.better, searched, options, rng)
        unsure = "gaps are not known" if sure >= MIN_AGREEMENT else "orders are uncertain"
        note = f"The {unsure}, so the parameters average over them"
    return replace(outcome, notes=(*outcome.notes, f"{note}: {said}."))


def _uncertain(subjects: Subjects, sure: float) -> str:
    """What levels or rates along best orders that are not certain are worth."""
    return (
        f"{subjects.capitalize()} are fitted along the best order of each subject, with {sure:.0%} of whose neighbours the posterior agrees: "
        "best orders are shorter than true ones, so that H is too small; subjects='alike' averages over orders."
    )


def certainty(model: Model, found: Fit, rng: np.random.Generator) -> float:
    """How often, in the posterior over orders, the neighbours in the best orders are neighbours."""
    n, T, _ = model.data.shape
    few, rows = model.some(model.effort.bridged), evenly(n, model.effort.bridged)
    orders = found.order[rows]
    chains = Chains.start(orders, rng, chains=1)
    draws = few.draw(model.law(found), chains, Stretch(40, 10 * T, 40))
    return agreement(draws.kept, orders, few.data.lengths)


def _in_known_order(model: Model, options: Options) -> Found:
    """All times are known: the one order that agrees with them, fitted with its true gaps."""
    n, T, _ = model.data.shape
    every = np.arange(T, dtype=np.intp)
    return _along(model, model.repaired(every if options.shared else np.tile(every, (n, 1))))


def _along(model: Model, order: Indices) -> Found:
    """An order, and its reverse, fitted."""
    found = model.fit(order, final=True)
    return Found(found, model.reversed_fit(found, final=True), (found.as_round(),), True)


def _of_found(
    model: Model, found: Found, options: Options, rng: np.random.Generator, *, cycle: bool = False
) -> Outcome:
    """The outcome of one best order, or of one for each trajectory; `cycle`: it closes to a loop."""
    for k, each in enumerate(found.rounds, start=1):
        options.report(f"round {k}: log-likelihood {each.log_likelihood - options.volume:,.1f}")
    grown = None if cycle else _grown(model, found.better.order, options)
    found = _as_told(found, grown)
    better, worse, test, along = _directed(model, found, options, rng, cycle=cycle, grown=grown)
    found = replace(found, better=better, worse=worse)
    choice = compare_subjects(model, found, options.subjects, along)
    better, worse = choice.found.better, choice.found.worse
    name = model.estimator(better) if options.estimator == "auto" else options.estimator
    estimate, statistics = _estimated(model, choice, options.estimator, rng)
    outcome = Outcome(
        better,
        worse,
        estimate,
        _twin(model, choice, options.estimator),
        statistics,
        _initial(model, choice),
        test,
        found.rounds,
        found.settled,
        name,
        (*better.notes, *estimate.notes, *difference(estimate, _euler(choice))),
        law=model.law(better),
        subjects=choice.effects,
        account=choice.account,
        along=along,
    )
    seen = guarded(
        model,
        better,
        test,
        alpha=options.alpha,
        cycle=cycle,
        rng=rng.spawn(1)[0],
        order_known=options.known_order is not None,
    )
    outcome = _told(_believed(outcome, seen), grown)
    if not options.shared or options.known_order is not None:
        return outcome
    return _over_orders(model, outcome, rng)


def _grown(model: Model, order: Indices, options: Options) -> GrowthSeen | None:
    """How variables that are known to grow do so along an order; None where none are."""
    return (
        None if options.growth is None else look(model, order, options.growth, alpha=options.alpha)
    )


def _as_told(found: Found, grown: GrowthSeen | None) -> Found:
    """The fits of both directions, the one first in which variables grow as they were told to."""
    if grown is None or grown.settled >= 0:
        return found
    return replace(found, better=found.worse, worse=found.better)


def _told(outcome: Outcome, grown: GrowthSeen | None) -> Outcome:
    """What is said of variables that are known to grow."""
    if grown is None:
        return outcome
    if not grown.settled:
        return replace(outcome, cautions=(*outcome.cautions, grown.caution))
    test, told = outcome.direction, outcome.cautions
    if test.contradicted:
        told = (*told, f"{grown.note} The data alone fit the reverse better ({test.evidence}).")
    return replace(outcome, notes=(*outcome.notes, grown.note), cautions=told)


def _collapses(outcome: Outcome) -> bool:
    """Parameters of a shared order may be integrated out: subjects are alike, and the order neither closes to a loop nor folds."""
    return outcome.account is None and not outcome.cycle and not outcome.folded


def _over_orders(model: Model, outcome: Outcome, rng: np.random.Generator) -> Outcome:
    """Errors and position probabilities over shared orders, where more than one has a share of the evidence."""
    if not _collapses(outcome) or cut_short() is not None:
        return outcome
    drawn = order_draws(model, outcome.found, rng, draws=FITTED_DRAWS)
    if drawn is None or len(drawn.orders) == 1:
        return outcome
    name, test = outcome.estimator, outcome.direction
    estimate = over_orders(model, outcome.found, outcome.estimate, name, drawn.orders)
    back = over_orders(
        model, outcome.reverse, outcome.reverse_estimate, name, drawn.orders[:, ::-1]
    )
    posterior = _over_parameters(model, drawn, test, draws=FITTED_DRAWS)
    cautions = () if posterior.mixed else (slow_chains(posterior),)
    return replace(
        outcome,
        estimate=estimate,
        reverse_estimate=back,
        posterior=posterior,
        notes=(*outcome.notes, ORDER_UNCERTAIN),
        cautions=(*outcome.cautions, *cautions),
    )


def _over_parameters(
    model: Model, drawn: OrderDraws, test: DirectionTest, *, draws: int
) -> OrderPosterior:
    """The posterior over orders drawn with their parameters, read in a direction as surely as it is identified."""
    level = 0.0 if test.known else test.alpha
    return posterior_of(model, drawn, identified=test.identified, level=level, draws=draws)


def slow_chains(posterior: OrderPosterior) -> str:
    """What is said where chains over orders have not converged."""
    return (
        f"The chains over orders mix slowly (R-hat {posterior.r_hat:.2f}, effective size "
        f"{posterior.effective_size:.0f}): read position probabilities with care."
    )


MIN_VALUES_PER_PARAMETER = 10
"""Values for each parameter below which probabilities given fitted parameters are too high. One series of 80 observations of 6 variables has 7.5:
.61 of positions are right, .84 are claimed; two such have 15: .98 and .99 (6 panels each)."""


def few_values(model: Model, found: Fit, posterior: OrderPosterior) -> str | None:
    """What is said where probabilities are given parameters that rest on few values; None: nothing."""
    d = model.data.shape[2]
    parameters = found.step.coefficients.size + d * (d + 1) // 2
    values = int(model.data.lengths.steps.total) * d
    if posterior.over_parameters or values >= MIN_VALUES_PER_PARAMETER * parameters:
        return None
    return (
        f"Position probabilities are too high: they take the {parameters} fitted parameters for known, which rest on {values} values. "
        "Use fewer variables, or more trajectories."
    )


def _initial(model: Model, choice: ComparedSubjects) -> Gaussian:
    """The law of the first states."""
    own = None if choice.account is None else choice.account.initial
    return model.initial(choice.found.better) if own is None else own


def _estimated(
    model: Model, choice: ComparedSubjects, name: str, rng: np.random.Generator
) -> tuple[Estimate, Moments]:
    """The parameters of the order found, and the moments that tests may trust."""
    if choice.account is not None:
        return choice.account.estimate()
    better = choice.found.better
    estimate = model.estimate(better, name, rng)
    exact = estimate.scheme == "exact"
    if choice.diffusion is not None and (better.gaps.equal or not exact):
        sde = model.embedding(*_euler(choice)) if exact else None
        H = choice.diffusion if sde is None else sde.diffusion
        estimate = replace(estimate, diffusion=H)
    return estimate, model.effective(better.moments, estimate)


def _euler(choice: ComparedSubjects) -> tuple[Array, Array]:
    """Θ and H of the order found as a step of Euler's."""
    if choice.account is not None:
        return choice.account.population
    step = choice.found.better.step
    return step.coefficients, step.diffusion if choice.diffusion is None else choice.diffusion


def _twin(model: Model, choice: ComparedSubjects, name: str) -> Estimate:
    """The parameters of the reverse."""
    alike = model.estimate(choice.found.worse, name)
    if choice.reverse is None:
        return alike
    return choice.reverse.shown(lambda through: alike.errors)


def _directed(
    model: Model,
    found: Found,
    options: Options,
    rng: np.random.Generator,
    *,
    cycle: bool,
    grown: GrowthSeen | None,
) -> tuple[Fit, Fit, DirectionTest, CandidatesAlong]:
    """The fits of both directions, the one that is returned first, the test between them, and the candidates it compared.

    The order was found with one model; where the candidates that the data prefer call its reverse, that is the order.
    """
    better, worse = found.better, found.worse
    test = direction_test(
        better.log_likelihoods,
        worse.log_likelihoods,
        dimension=model.data.shape[2],
        alpha=options.alpha,
        groups=model.data.groups,
    )
    test = from_knowledge(model, better.order, test, alpha=options.alpha)
    if grown is not None and grown.settled and not cycle:
        test = known_direction(test)
    chance = (
        np.random.default_rng(0) if cycle else rng.spawn(1)[0]
    )  # of a loop nothing is simulated
    along = CandidatesAlong(model, (better, worse), test.contributions, chance)
    if cycle:
        return better, worse, test, along
    grounds = options.counting
    test, reverse = compare_directions(along, test, chance, alpha=options.alpha, grounds=grounds)
    if not test.identified:
        test, reverse = by_components(model, better.order, test, chance, grounds=grounds)
    test = replace(test, aligned=options.aligned)
    return (worse, better, test.turned(), along) if reverse else (better, worse, test, along)


def _believed(outcome: Outcome, seen: GuardFinding) -> Outcome:
    direction = seen.direction
    if cut_short() is not None and not direction.known:
        direction = left_open(direction, Reason.STOPPED)
    return replace(
        outcome,
        direction=direction,
        cautions=(*outcome.cautions, *seen.cautions),
        cycle=seen.cycle,
        folded=0.0 if seen.fold is None else seen.fold.probability,
    )


def _averaged(
    model: Model,
    begin: Fit,
    searched: Found | None,
    options: Options,
    rng: np.random.Generator,
) -> Outcome:
    """Monte-Carlo EM, the posterior over orders under its parameters, and the most likely orders."""
    averaged = average(
        model,
        begin,
        rng,
        searched=searched,
        progress=lambda k, gap: options.report(
            f"round {k + 1}: Monte-Carlo error {gap:.2f} standard errors"
        ),
    )
    orders = _best_orders(model, averaged, begin.order, rng)
    grown = _grown(model, orders, options)
    if grown is not None and grown.settled < 0 and averaged.twin is not None:
        other = run(model, averaged.twin.law, averaged.twin.chains)
        averaged = Averaged(other, averaged.run, -averaged.log_ratios)
        orders = _best_orders(model, averaged, begin.order, rng)
    one, twin = averaged.run, averaged.twin or averaged.run
    found = model.averaged_fit(orders, one.law, one.sums)
    back = model.repaired(model.data.reversed(orders))
    reverse = model.averaged_fit(back, twin.law, twin.sums)
    posterior, errors, notes, cautions = _uncertainty(model, averaged, rng)
    estimate = replace(model.estimate(found, "mcem"), errors=errors)
    euler = found.step.coefficients, found.step.diffusion
    notes = (*estimate.notes, *notes, *difference(estimate, euler))
    test = direction_test(
        averaged.log_ratios,
        np.zeros_like(averaged.log_ratios),
        dimension=model.data.shape[2],
        alpha=options.alpha,
        groups=model.data.some(len(averaged.log_ratios)).groups,
    )
    outcome = Outcome(
        found,
        reverse,
        estimate,
        model.estimate(reverse, "mcem"),
        model.effective(found.moments, estimate),
        model.initial(found),
        test,
        one.rounds,
        one.converged,
        "mcem",
        (*found.notes, *notes),
        cautions,
        law=one.law,
        posterior=posterior,
    )
    test = from_knowledge(model, found.order, test, alpha=options.alpha)
    cycle = loops(model, found)
    if grown is not None and grown.settled and not cycle:
        test = known_direction(test)
    if not cycle:
        chance = rng.spawn(1)[0]
        test = marginal_test(model, averaged, found.order, test, chance, alpha=options.alpha)
        test = restricted(test, options.counting)
    test = replace(test, aligned=options.aligned)
    outcome = replace(outcome, direction=test)
    seen = guarded(model, found, test, alpha=options.alpha, cycle=cycle)
    outcome = _told(_believed(outcome, seen), grown)
    if outcome.direction.identified or averaged.twin is None:
        return outcome
    return _over_twins(model, outcome, averaged.twin, rng)


def _over_twins(model: Model, outcome: Outcome, twin: Run, rng: np.random.Generator) -> Outcome:
    """Where the direction is open, errors and position probabilities over both directions, each as likely as the other.

    `E (θ − θ̂)² = ½ s² + ½ (s² + (θ̂ − θ̂_twin)²)`. Either direction alone would be sure of positions, and of signs, that hold
    only if it is the right one.
    """
    own, other = outcome.estimate, outcome.reverse_estimate
    gap, spread = own.coefficients - other.coefficients, own.diffusion - other.diffusion
    wider = own.errors.plus(0.5 * gap[:, :, None] * gap[:, None, :], 0.5 * spread**2)
    posterior = outcome.posterior
    if posterior is not None:
        chains = twin.chains.some(model.data.shape[0])
        back = own_posterior(model, twin.law, chains, rng, samples=model.effort.positions)
        # A run is sure of how single trajectories lie, by parameters that it fitted to them.
        posterior = posterior.halved(back).either_way(_may_turn(model), model.data.lengths)
    note = "The direction is open: errors and position probabilities are over both directions, each as likely."
    return replace(
        outcome,
        estimate=replace(own, errors=wider),
        posterior=posterior,
        notes=(*outcome.notes, note),
    )


def _best_orders(
    model: Model, averaged: Averaged, begin: Indices, rng: np.random.Generator
) -> Indices:
    """The most likely orders under the averaged parameters, from where the chains stand."""
    chain = averaged.run.chains.orders[0]
    states = random_states(rng, len(begin))
    return model.own_orders(averaged.run.law).improve(chain, states, cold=True, kicks=KICKS)[0]


def _uncertainty(
    model: Model, averaged: Averaged, rng: np.random.Generator
) -> tuple[OrderPosterior | None, Any, tuple[str, ...], tuple[str, ...]]:
    """The posterior over orders, the errors of the parameters, notes and cautions."""
    run, T = averaged.run, model.data.shape[1]
    notes: list[str] = []
    cautions: list[str] = []
    few = model.some(max(1, POSTERIOR_NUMBERS // (T * T)))
    chains = run.chains.some(few.data.shape[0])
    samples = model.effort.positions
    posterior = drawn_with_parameters(few, run.law, chains, rng, samples=samples)
    if posterior is None:
        posterior, draws = plugged_in(few, run.law, chains, rng, samples=samples)
        # As many orders in all as of two chains, as far apart.
        some = draws.thinned(-(-2 * model.effort.louis // len(draws.kept)))
    else:
        some = few.draw(run.law, chains, Stretch(samples, 25 * T, model.effort.louis))
    errors, note = louis_errors(model, few, run.law, run.sums, some, rng)
    if note is not None:
        notes.append(note)
    if not posterior.mixed:
        cautions.append(slow_chains(posterior))
    if few is not model:
        notes.append("Call sample_orders() for the position probabilities of so many orders.")
    if not run.converged:
        cautions.append(
            "Monte-Carlo EM stopped before it converged"
            + (f" (error {run.gap:.2f} standard errors)." if np.isfinite(run.gap) else ".")
        )
    return posterior if few is model else None, errors, tuple(notes), tuple(cautions)


def sample_posterior(
    model: Model, outcome: Outcome, rng: np.random.Generator, *, samples: int
) -> OrderPosterior:
    """The posterior over orders under the parameters of an outcome, for either space."""
    order = outcome.found.order
    if outcome.found.ordering.shared:
        return _shared_posterior(model, outcome, rng, samples=samples)
    found = own_posterior(model, outcome.law, Chains.start(order, rng), rng, samples=samples)
    if outcome.direction.identified:
        return found
    return found.either_way(_may_turn(model), model.data.lengths)


def _shared_posterior(
    model: Model, outcome: Outcome, rng: np.random.Generator, *, samples: int
) -> OrderPosterior:
    """The posterior over one order: over the optima that are nearly as likely, over folds, and over an open direction.

    Parameters are integrated out where that has a closed form, drawn with the order where states are hidden; else they are those
    fitted along each optimum.
    """

    def of_mode(fit: Fit) -> OrderPosterior:
        orders = (model.with_unequal_steps(fit) or model).shared_orders(fit)
        return shared_posterior(orders, fit.order, rng, samples=samples)

    best = outcome.found
    drawn = None
    if _collapses(outcome):
        drawn = order_draws(model, best, rng, draws=samples)
        drawn = drawn or shared_draws(model, best, rng, draws=samples)
    if drawn is not None:
        return _over_parameters(model, drawn, outcome.direction, draws=samples)
    found = of_mode(best)
    others = [] if outcome.cycle or model.timing.gaps_known else _rivals(model, best, found, rng)
    if others:
        weights = np.exp([min(each.objective - best.objective, 0.0) for each in others])
        shares = weights / (1 + weights.sum())
        found = found.mixed_with(list(zip(map(of_mode, others), shares.tolist(), strict=True)))
    if outcome.folded and model.prior is None:
        found = found.unfolded(best.order, outcome.folded, rng)
    if outcome.direction.identified:
        return found
    back = best.order[::-1].copy()
    odds = model.prior_costs(back).sum() - model.prior_costs(best.order).sum()
    return found.either_direction(float(1 / (1 + np.exp(np.minimum(odds, 700.0)))))


def _rivals(model: Model, best: Fit, found: OrderPosterior, rng: np.random.Generator) -> list[Fit]:
    """Other optima that the chains, which start at the best, did not visit in either direction."""
    visited = {tuple(way) for each in found.samples.tolist() for way in (each, each[::-1])}
    every = rivals(model, Shared.of(model, rng), best, max_iter=RIVAL_ROUNDS)
    return [each for each in every if tuple(each.order.tolist()) not in visited]


def _may_turn(model: Model) -> Mask:
    """Which trajectories may be run backwards, by what is known of them."""
    n, prior = model.data.shape[0], model.prior
    return np.ones(n, dtype=bool) if prior is None else prior.symmetric(model.data.observed)


def order_others(model: Model, outcome: Outcome, rng: np.random.Generator) -> Indices:
    """The most likely order of other trajectories (those of `model`) under the parameters of an outcome."""
    if outcome.found.ordering.shared:
        return best_order(model, model.shared_orders(outcome.found, outcome.initial), rng)
    if enumerable(model, outcome.law):
        return best_orders(model, outcome.law)
    orders, states = model.own_starts(rng)[0], random_states(rng, model.data.shape[0])
    return model.own_orders(outcome.law).improve(orders, states, cold=True, kicks=KICKS)[0]


def others_posterior(
    model: Model, outcome: Outcome, rng: np.random.Generator, *, draws: int
) -> OthersPosterior:
    """The posterior over orders of other trajectories under an outcome; an open direction counts for half either way.

    One order for all trajectories is repeated for each of them.
    """
    n, T, _ = model.data.shape
    if outcome.found.ordering.shared:
        order = order_others(model, outcome, rng)
        judge = model.shared_orders(outcome.found, outcome.initial)
        drawn = shared_posterior(judge, order, rng, samples=model.effort.positions)
        kept = drawn.samples.astype(np.intp)
        samples = kept[rng.integers(len(kept), size=draws)]
        one = drawn_before(kept[None], Lengths(1, T))
        every = (drawn.position_probabilities.astype(float)[None], one, samples[None])
        found = OthersPosterior(*(np.repeat(each, n, axis=0) for each in every))
    else:
        exact = enumerable(model, outcome.law)
        start = None if exact else order_others(model, outcome, rng)
        found = posterior_of_others(model, outcome.law, rng, draws=draws, start=start)
    if outcome.direction.identified:
        return found
    return found.either_way(model.data.lengths, rng)


def best_order(model: Model, judge: SharedOrders, rng: np.random.Generator) -> Indices:
    """The best shared order found under given parameters, from every start in both directions.

    No start is fitted first: trajectories to be judged may be too few. (Of 32 panels of 6 to 12, with noise, missing values or plates, orders were more likely than
    from fitted starts in 4, less likely in none, and found in half the time.)
    """
    starts = [way for o in model.rough_starts() for way in (o, o[::-1].copy())]
    return min((judge.improve(o, random_states(rng, 1)) for o in starts), key=judge.cost)
