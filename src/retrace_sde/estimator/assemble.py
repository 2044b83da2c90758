"""An outcome becomes a result: parameters and errors by their names, the twin, what the data cannot tell, and what rests on one trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from retrace_sde.after.residuals import ResidualCheck, residual_check, tested_part, untested
from retrace_sde.after.stages import stage_note, time_shifts
from retrace_sde.estimator.entry import Entry
from retrace_sde.estimator.fitting import PanelFit
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.identifiability import identify
from retrace_sde.evidence.influence import RestsOn, direction_rests_on, order_rests_on
from retrace_sde.evidence.outcome import Outcome
from retrace_sde.fit.regression import ErrorKind, Estimate, StandardErrors
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import one_blas_thread
from retrace_sde.panel.canonical import RowPermutation
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.schedule import off_schedule
from retrace_sde.process.drift import is_linear, parted
from retrace_sde.process.sde import LinearSDE
from retrace_sde.progress import report
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.search.model import Fit
from retrace_sde.search.models.estimated_gaps import gap_intervals
from retrace_sde.search.protocols import Model


def assembled(panel: Panel, fitted: PanelFit, request: Request) -> ReTraceResult:
    """The result in the units and places of the fit; the residual check is added by who has asked for it."""
    model, outcome = fitted.model, fitted.shown
    found, drift, estimate = outcome.found, model.drift, outcome.estimate
    A, c, B = parted(estimate.coefficients, drift)
    sde = LinearSDE(A, estimate.diffusion, offset=c) if is_linear(drift) else None
    exactly = estimate.scheme == "exact" and found.gaps.equal
    order, times = _observed(panel, model, found)
    shifts, stages = _stages(panel, model, found)
    return ReTraceResult(
        order=order,
        times=times,
        drift=A,
        offset=c,
        inputs=B,
        diffusion=estimate.diffusion,
        standard_errors=errors_by_name(estimate.errors, model),
        initial=outcome.initial,
        direction=outcome.direction,
        alternative=None if outcome.direction.identified else _twin(panel, model, outcome),
        identifiability=identify(
            model.data,
            found.order,
            outcome.statistics,
            outcome.direction,
            sde,
            step=model.dt if exactly else None,
            alpha=request.alpha,
            cycle=outcome.cycle,
        ),
        log_likelihood=_log_likelihood(fitted),
        history=outcome.history,
        converged=outcome.converged and _all_finite(estimate),
        n_trajectories=model.data.shape[0],
        dt=model.dt,
        scheme=estimate.scheme,
        names=panel.names,
        feature_names=fitted.features,
        settings=request.recorded(outcome.estimator),
        notes=(*outcome.notes, *stages, *outcome.cautions),
        time_shifts=shifts,
        observation_noise=outcome.noise_covariance,
        gap_intervals=gap_intervals(found.gaps, found.log_gap_errors, model.data.n_groups),
        subjects=outcome.subjects,
        noise_choice=outcome.noise,
        gap_clocks=found.clocks,
        left_out=panel.left_out,
        groups=model.data.groups,
        dependence=fitted.dependence,
    )


def _stages(panel: Panel, model: Model, found: Fit) -> tuple[Array | None, tuple[str, ...]]:
    """Each trajectory's shift along the course of each variable, where they are at different stages, and a note."""
    if not found.ordering.shared or not found.gaps.equal or model.data.lazy:
        return None, ()
    courses = time_shifts(panel.values, found.order)
    note = stage_note(courses, panel.names, model.dt)
    if note is None:
        return None, ()
    nothing = np.full(panel.values.shape[0], np.nan)
    shifts = [nothing if each is None else each.shifts * model.dt for each in courses]
    return np.stack(shifts, axis=1), (note,)


def _log_likelihood(fitted: PanelFit) -> float:
    """Of the order found; the deviations of n trajectories from their mean are n − 1, and the mean path is one more."""
    value, n = fitted.outcome.found.log_likelihood, fitted.model.data.shape[0]
    return value if fitted.common is None else value * (n - 1) / n + fitted.common.log_likelihood


def _observed(panel: Panel, model: Model, found: Fit) -> tuple[Indices, Array]:
    """The order of the panel's own observations, without visits that were missed, and its times."""
    times = model.timing.times(found.order, found.gaps)
    n, T, _ = panel.values.shape
    if found.order.shape[-1] == T and (panel.lengths is None or model.data.lengths.ragged):
        return found.order, times
    lengths = Lengths(n, T, panel.lengths).each
    return off_schedule(found.order, times, lengths, T)


def _twin(panel: Panel, model: Model, outcome: Outcome) -> Twin:
    """The time-reversed answer."""
    reverse, estimate = outcome.reverse, outcome.reverse_estimate
    A, c, B = parted(estimate.coefficients, model.drift)
    order, times = _observed(panel, model, reverse)
    errors = _twin_errors(outcome, model)
    return Twin(order, A, c, estimate.diffusion, reverse.log_likelihood, times, errors, B)


def _twin_errors(outcome: Outcome, model: Model) -> StandardErrors:
    """Errors of the twin's parameters: its own where it has any of the answer's kind, else the answer's.

    `Var Θ̂_ij = H_ii [(Σ φ φᵀ Δt)⁻¹]_jj`, and both directions have the same states but for the first and the last; what is
    not known of orders and states costs both the same. So only H differs.
    """
    own, other = outcome.estimate, outcome.reverse_estimate
    alike = other.errors.kind is own.errors.kind and outcome.estimator != "mcem"
    if alike and other.scheme == "euler" and np.isfinite(other.errors.drift).all():
        return errors_by_name(other.errors, model)
    scale = np.sqrt(np.diag(other.diffusion) / np.diag(own.diffusion))
    return errors_by_name(own.errors.scaled(scale[:, None], np.outer(scale, scale)), model)


def errors_by_name(errors: StandardErrors, model: Model) -> StandardErrors:
    """Errors of all coefficients as those of A, c and B, as the parameters are named; a sandwich says whether over groups."""
    of_A, of_c, of_B = parted(errors.drift, model.drift)
    grouped = errors.kind is ErrorKind.SANDWICH and model.data.groups is not None
    kind = ErrorKind.GROUPS if grouped else errors.kind
    return replace(errors, drift=of_A, offset=of_c, inputs=of_B, kind=kind)


def _all_finite(estimate: Estimate) -> bool:
    """All estimates and errors are finite; a fit in which one is not has not converged, whatever its search says."""
    errors = estimate.errors
    every = estimate.coefficients, estimate.diffusion, errors.drift, errors.diffusion
    return all(bool(np.isfinite(each).all()) for each in every)


PendingCheck = tuple[Callable[[], ResidualCheck], Indices | None]
"""The check of the residuals, made when it is called, and of which trajectories (None: of all)."""


def pending_check(fitted: PanelFit, request: Request, rng: np.random.Generator) -> PendingCheck:
    """The check of the residuals along the order; not of own orders that are, or may be, uncertain."""
    model, outcome = fitted.model, fitted.outcome
    found, levels = outcome.found, outcome.levels
    certain = request.estimator == "auto" and outcome.estimator != "mcem"
    ordered = request.shared or certain or model.timing.gaps_known
    # Subjects' intercepts would have to be subtracted from every value of a panel that is not in memory.
    if not ordered or (levels is not None and model.data.lazy):
        return partial(untested, model.data.shape[0]), None
    if levels is None and not model.states_hidden:
        few, part, rows = tested_part(model, found)
        return partial(residual_check, few, part, rng), rows
    report("looking at the residuals")
    effects = None if levels is None else levels.effects
    if outcome.account is not None:
        model, found = outcome.account.aligned(found, rng)
    check = residual_check(model, found, rng, effects)
    return partial(replace, check), None


def residuals_as_given(
    pending: PendingCheck,
    units: Units | None,
    placed: RowPermutation,
    lift: Callable[[Array], Array] | None = None,
) -> ResidualCheck:
    """The check of the residuals, made now, in the user's units and places; `lift` adds the mean path to deviations."""
    work, rows = pending
    with one_blas_thread():
        check = work()
    check = check if rows is None else check.moved(rows)
    check = check if lift is None else check.restored(lift)
    check = check if units is None else check.restored(units.restore)
    return check.moved(placed.rows)


MAX_MEMBERS_NAMED = 3
"""Trajectories of a group that are named."""


def influence(entry: Entry, fitted: PanelFit) -> tuple[RestsOn, ...]:
    """What changes without one trajectory or group; empty where nothing does, or where it is not tested."""
    model, outcome, test = fitted.model, fitted.outcome, fitted.outcome.direction
    n, groups = model.data.shape[0], model.data.groups
    numbers = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    found = []
    if len(test.contributions) == n:
        total = float(test.contributions.sum())
        for g, left in direction_rests_on(test, groups):
            who, places = _named(entry, np.flatnonzero(numbers == g))
            said = f"The direction rests on {who}: without it the evidence is {left:+.1f} instead of {total:+.1f} nats."
            found.append(RestsOn("direction", places, said))
    plain = model.closed_form and not model.data.lazy and model.prior is None
    if plain and outcome.found.ordering.shared and outcome.found.gaps.equal and not outcome.cycle:
        order = outcome.found.order
        for g, (first, last) in order_rests_on(model.data, outcome.found.step, order, groups):
            who, places = _named(entry, np.flatnonzero(numbers == g))
            a, b = (
                entry.panel.observation(0, int(entry.places.columns[order[k]]))
                for k in (first, last)
            )
            change = (
                f"{a} and {b} would change places"
                if last == first + 1
                else f"{a} to {b} would be ordered otherwise"
            )
            said = f"The order rests on {who}: without it {change}."
            found.append(RestsOn("order", places, said))
    return tuple(found)


def _named(entry: Entry, members: Indices) -> tuple[str, tuple[int, ...]]:
    """Trajectories in words, and where they were given."""
    places = tuple(sorted(int(entry.places.rows[j]) for j in members))
    names = [entry.panel.trajectory(j) for j in places]
    if len(names) == 1:
        return names[0], places
    more = f" and {len(names) - MAX_MEMBERS_NAMED} more" if len(names) > MAX_MEMBERS_NAMED else ""
    return f"the group of {', '.join(names[:MAX_MEMBERS_NAMED])}{more}", places
