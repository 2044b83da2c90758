"""The fit of a panel: plan a model, search, compare with and without noise, fill in missing inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.estimator.checks import (
    check_diffusion,
    check_features,
    check_levels,
    check_noise,
    noise_of_kept,
)
from retrace_sde.estimator.common import (
    CommonPart,
    about_slices,
    kept,
    mean_path_of,
    removable,
    split,
    tested,
    without_common_inputs,
)
from retrace_sde.estimator.entry import Entry, in_units
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.dependence import Dependence, DependenceKind
from retrace_sde.evidence.direction.verdict import Caution, Reason, left_open
from retrace_sde.evidence.outcome import Outcome, fit, searched
from retrace_sde.evidence.selection.noise import NoiseChoice, noise_by_evidence
from retrace_sde.io.arrays import Indices
from retrace_sde.io.lazy.array import LazyArray
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.inputs import filled_inputs
from retrace_sde.panel.uninformative import coarse
from retrace_sde.panel.validation import has_missing
from retrace_sde.process.drift import is_linear
from retrace_sde.progress import cut_short, report
from retrace_sde.search.alternate import alternate
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.plan import Plan, planned_drift
from retrace_sde.search.protocols import Model
from retrace_sde.search.space import Shared

INPUT_ROUNDS = 4
"""Fits, at most, between which missing inputs are filled in along the order found."""

NOISE_NOT_FITTED = (
    "Some trajectories are explained better with measurement noise, which is fitted in memory only: these parameters are "
    "without it. Fit a part of the trajectories, read into memory, with observation_noise='estimate'."
)


@dataclass(frozen=True, eq=False)
class PanelFit:
    """The model, what was found with it, the units of both, and the names of the drift's features.

    Where trajectories share shocks, model and outcome are of deviations from the slice means, and `common` is what
    the mean path adds.
    """

    model: Model
    outcome: Outcome
    units: Units | None
    features: tuple[str, ...]
    dependence: Dependence | None = None
    common: CommonPart | None = None

    @property
    def shown(self) -> Outcome:
        """The outcome of trajectories as they were given."""
        return self.outcome if self.common is None else self.common.added(self.outcome)

    def cautioned(self, *cautions: str) -> PanelFit:
        """The same with further cautions, each once."""
        every = tuple(dict.fromkeys([*self.outcome.cautions, *cautions]))
        return replace(self, outcome=replace(self.outcome, cautions=every))

    def noted(self, *notes: str) -> PanelFit:
        """The same with further notes."""
        return replace(self, outcome=replace(self.outcome, notes=(*self.outcome.notes, *notes)))


def fit_entry(entry: Entry, request: Request, rng: np.random.Generator) -> PanelFit:
    """The fit of the data at the entry, with what was noticed on the way."""
    panel, request = entry.panel, replace(request, growth=entry.growth)
    fitted = _fit_with_inputs(entry, request, rng)
    fitted = fitted.noted(*entry.notes)
    model, outcome = fitted.model, fitted.outcome
    check_diffusion(panel, outcome.estimate.diffusion * model.dt, model.variances)
    if not model.states_hidden:
        raw = Data(panel.values, counts=panel.lengths)
        fitted = fitted.noted(*coarse(raw, outcome.found.order, panel.names))
    stopped = cut_short()
    cautions = (
        *([] if stopped is None else [stopped]),
        *(each.sentence for each in panel.left_out),
        *entry.cautions,
        *outcome.cautions,
        *_jumping(outcome),
    )
    converged = outcome.converged and stopped is None
    return replace(fitted, outcome=replace(fitted.outcome, cautions=cautions, converged=converged))


JUMPING_EIGENVALUE = 0.5
"""Size of an eigenvalue of F, with a negative real part, from which neighbours are said to lie on opposite sides."""


def _jumping(outcome: Outcome) -> tuple[str, ...]:
    """A caution where the process along a shared order turns by more than a quarter, or changes its sign, in one step."""
    step = outcome.found.step
    if not outcome.found.ordering.shared or not is_linear(step.drift):
        return ()
    d = len(step.diffusion)
    rates, gaps = np.linalg.eigvals(step.coefficients[:, :d]), outcome.found.gaps
    # Across unequal gaps the rates are the SDE's, whose transition never changes a sign without turning; the longest gap turns furthest.
    values = 1 + rates * step.dt if gaps.equal else np.exp(rates * np.nanmax(gaps.values))
    far = values[(values.real < 0) & (np.abs(values) > JUMPING_EIGENVALUE)]
    if not len(far):
        return ()
    turn = np.degrees(np.abs(np.angle(far)).max())
    return (
        f"The steps are too coarse: along the order found the process turns by {turn:.0f} degrees in one step, so that slices two or three steps apart are "
        "nearer to each other than neighbours. Orders that visit those first, and continuous-time parameters with further turns between observations, may "
        "explain the data as well (aliasing). Give the positions of some slices (Knowledge), or observe more often.",
    )


def _fit_with_inputs(entry: Entry, request: Request, rng: np.random.Generator) -> PanelFit:
    """Where inputs are missing, they are filled in along the order found, and the panel is fitted again until they stay."""
    u = entry.panel.covariates
    if u is None or isinstance(u, LazyArray) or not np.isnan(to_numpy(u)).any():
        return _fit_panel(entry, request, rng)
    given = to_numpy(u)
    filled = filled_inputs(given, request.missing_covariates)
    for _ in range(INPUT_ROUNDS):
        panel = replace(entry.panel, covariates=filled)
        fitted = _fit_panel(replace(entry, panel=panel), request, rng)
        best, before = fitted.outcome.found, filled
        times = fitted.model.timing.times(best.order, best.gaps)
        filled = filled_inputs(given, request.missing_covariates, best.order, times)
        if np.allclose(filled, before):
            break
    how = "carried forward" if request.missing_covariates == "carry" else "interpolated"
    return fitted.noted(
        f"{np.isnan(given).mean():.2g} of the inputs are missing; they are {how} along the order found."
    )


def _fit_panel(entry: Entry, request: Request, rng: np.random.Generator) -> PanelFit:
    """Plan a model and fit it; where the evidence asks for common shocks or noise, fit the model that has them."""
    deviations, auto = request.common_shocks is True, request.common_shocks == "auto"
    first: Outcome | None = None
    try:
        fitted, plan = _planned_fit(entry, request, rng, deviations=deviations)
    except np.linalg.LinAlgError:  # plates can leave nothing but noise of measurement
        if not auto or removable(entry, request) is not None:
            raise
        deviations = True
        fitted, plan = _planned_fit(entry, request, rng, deviations=True)
    dependence = _tested(entry, fitted)
    if dependence.kind is DependenceKind.COMMON and not deviations:
        dependence = _behind_noise(fitted, plan, request, dependence)
    if dependence.kind is DependenceKind.COMMON and auto and not deviations:
        why = removable(entry, request)
        dependence = replace(dependence, why=why or "")
        if why is None:
            first, deviations = fitted.outcome, True
            fitted, plan = _planned_fit(entry, request, rng, deviations=True)
    fitted = _with_noise(fitted, plan, request, rng)
    if first is not None:
        fitted = _as_known(_as_folded(fitted, first), first)
    model, outcome = fitted.model, fitted.outcome
    if deviations:
        dependence, common = split(model, outcome, dependence)
        return replace(fitted, dependence=dependence, common=common)
    if dependence.kind is DependenceKind.COMMON:
        outcome, dependence = kept(model, outcome, dependence)
    return replace(fitted, outcome=outcome, dependence=dependence)


def _as_folded(fitted: PanelFit, first: Outcome) -> PanelFit:
    """A fit of deviations with the doubt that the slices as given may be folded: a rise and fall common to all is gone from deviations."""
    fitted = fitted.cautioned(*(each for each in first.cautions if each == Caution.FOLD))
    if first.direction.reason is not Reason.FOLD or not fitted.outcome.direction.identified:
        return fitted
    direction = left_open(fitted.outcome.direction, Reason.FOLD)
    return replace(fitted, outcome=replace(fitted.outcome, direction=direction))


def _as_known(fitted: PanelFit, first: Outcome) -> PanelFit:
    """A fit of deviations whose direction is known, with the doubt that what seemed shared may be a course that runs the other way."""
    test = first.direction
    if not test.contradicted or fitted.outcome.direction.contradicted:
        return fitted
    return fitted.cautioned(
        f"If trajectories shared nothing, they would fit the reverse of what is known of time ({test.evidence}). "
        "Either they share shocks, or that knowledge is wrong: check it."
    )


def _tested(entry: Entry, fitted: PanelFit) -> Dependence:
    """The tests of independence on trajectories as they were given, also where their deviations were fitted.

    Subjects with random intercepts are first moved to where they are alike: what one drift for all leaves of a common way to many levels
    looks like shocks (n = 60, T = 20, d = 2, from 2 to levels of sd 1: found in 6 of 12 panels at steps of .15 and in 12 of 12 at .5).
    """
    report("testing independence")
    model, units, outcome = fitted.model, fitted.units, fitted.outcome
    found, account = outcome.found, outcome.account
    if units is not None and model.mean_path is not None:
        model = model.about(None, units.standardised(entry.panel.values))
    elif account is not None and not model.data.lazy:
        # The same draws for every panel: an answer does not depend on a seed.
        model, found = account.aligned(found, np.random.default_rng(0))
    return tested(model, found)


def _behind_noise(fitted: PanelFit, plan: Plan, request: Request, found: Dependence) -> Dependence:
    """Common shocks found along a fit without measurement noise: what is left of them with noise, where the data prefer it.

    Noisy states explain less of a curved course than the states behind them, and what all trajectories have left of it looks like
    shocks (logistic growth of one variable, n = 40, noise of .1 of the final size: found in 15 of 15 panels, along states behind noise in 2).
    Shocks and offsets of slices stay: noise of single values cannot stand for them. Of one variable slices are sorted by offsets of 1 sd, and noise explains
    what is left but for correlations of either sign: where only those were found, 3 of 10 orders were scrambled.
    """
    outcome = fitted.outcome
    along, order = outcome.along, outcome.found.ordering
    if (
        along is None
        or along.own_kind is CandidateKind.NOISE
        or not order.shared
        or along.model.data.lazy
    ):
        return found
    try:
        choice = noise_by_evidence(along, outcome.found, outcome.levels)
        if choice.noise is None:
            return found
        hidden = plan.with_noise(choice.noise)
        # The same draws for every panel: an answer does not depend on a seed.
        space = Shared.of(hidden, np.random.default_rng(0))
        trail = alternate(hidden, space, order.index, max_iter=request.max_iter)
        behind = tested(hidden, hidden.fit(trail.order, final=True))
    except np.linalg.LinAlgError:  # noise that cannot be fitted explains nothing
        return found
    if behind.kind is not DependenceKind.INDEPENDENT:
        return found
    why = f"measurement noise allowed for, which the data prefer by {choice.nats:.1f} nats"
    if not request.noise_by_evidence:
        why += " (observation_noise='auto' fits it)"
    return replace(behind, why=why)


def _planned_fit(
    entry: Entry, request: Request, rng: np.random.Generator, *, deviations: bool
) -> tuple[PanelFit, Plan]:
    """A model of the data, or of deviations from the slice means, and its fit."""
    panel = without_common_inputs(entry.panel) if deviations else entry.panel
    noise = noise_of_kept(request.given_noise, panel.left_out)
    whole = Data(panel.values, panel.covariates, request.n_jobs, panel.lengths)
    drift = planned_drift(request.drift, whole, entry.timing, request.settings(noise))
    drift, absorbed = check_features(panel, drift)
    check_noise(noise, panel.values.shape[2])
    alike = request.common_scale and panel.rows is None
    tied = entry.places.tied
    units = Units.of(panel, drift, common=alike, tied=tied, deviations=deviations)
    if noise is not None and units is not None:
        noise = units.noise(noise)
    data = in_units(panel, units, request.n_jobs)
    settings = request.settings(noise)
    plain = EulerModel(data, entry.dt, drift, entry.prior, entry.timing, scheme=settings.scheme)
    if deviations and units is not None:
        plain = replace(plain, mean_path=mean_path_of(entry.panel, units, drift))
    plan = Plan(plain, settings)
    model = plan.model()
    check_levels(request.subjects, model)
    features = tuple(model.drift.feature_names(panel.names, panel.covariate_names))
    volume = 0.0 if units is None else units.volume
    if deviations and has_missing(data):
        plan = _about_slices(plan, request.max_iter, request.known_order)
        model = plan.model()
    outcome = fit(model, request.options(model, volume, entry.aligned), rng)
    return PanelFit(model, outcome, units, features).noted(*absorbed), plan


def _about_slices(plan: Plan, max_iter: int, known: Indices | None) -> Plan:
    """Deviations from slice effects of maximum likelihood, where values are missing, along the order that is known, or found first.

    Which direction is fitted hardly matters: in 14 panels at rest slice effects of one changed the ratio by .04 nats at most. Null panels know theirs:
    where these were estimated again in every one, simulated p-values of 29 panels at rest changed by .02 at most (n = 12 and 30, .35 and .15 missing).
    """
    model = plan.model()
    # The same draws for every panel: an answer does not depend on a seed.
    rng = np.random.default_rng(0)
    if known is not None:
        found = model.fit(known)
    elif model.timing.gaps_known:
        found = model.fit(model.repaired(np.arange(model.data.shape[1], dtype=np.intp)))
    else:
        found = searched(model, Shared.of(model, rng), rng, max_iter=max_iter).better
    model = about_slices(model, found, lambda model, found: model.fit(found.order, found))
    return replace(plan, plain=plan.plain.about(model.mean_path, model.data.values))


def _with_noise(
    fitted: PanelFit, plan: Plan, request: Request, rng: np.random.Generator
) -> PanelFit:
    """The fit with measurement noise, where the evidence asks for it."""
    model, outcome, units = fitted.model, fitted.outcome, fitted.units
    preferred = _preferred_noise(outcome, request)
    chosen = None if preferred is None else preferred.noise
    if chosen is not None and model.data.lazy:
        outcome = replace(outcome, cautions=(*outcome.cautions, NOISE_NOT_FITTED))
        preferred = None
    elif chosen is not None:
        model = plan.with_noise(chosen)
        volume = 0.0 if units is None else units.volume
        aligned = outcome.direction.aligned
        outcome = fit(model, request.options(model, volume, aligned), rng)
    if preferred is not None:
        direction = replace(outcome.direction, noise_nats=preferred.nats)
        outcome = replace(outcome, direction=direction)
    outcome = replace(outcome, noise=preferred, along=None)
    return replace(fitted, model=model, outcome=outcome)


def _preferred_noise(outcome: Outcome, request: Request) -> NoiseChoice | None:
    """What the data say of noise, where they are asked; along averaged orders they are not."""
    without = request.estimator in ("mle", "ols") or outcome.estimator == "mcem"
    if not request.noise_by_evidence or without or outcome.along is None:
        return None
    report("comparing with and without noise")
    return noise_by_evidence(outcome.along, outcome.found, outcome.levels)
