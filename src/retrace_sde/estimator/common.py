"""What trajectories share: whether they do, the fit to deviations from the slice means, and what the mean path adds to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.after.forecast import Forecast
from retrace_sde.after.steps import steps_of, tested_rows
from retrace_sde.estimator.entry import Entry
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.dependence import (
    Dependence,
    DependenceKind,
    cleared,
    dependence_of,
    effective_number,
    not_tested,
)
from retrace_sde.evidence.outcome import Outcome
from retrace_sde.evidence.selection.subjects import SubjectEffects
from retrace_sde.fit.intervals import critical
from retrace_sde.fit.regression import Estimate, StandardErrors
from retrace_sde.fit.scores import driscoll_kraay
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.panel import Panel
from retrace_sde.process.drift import Drift, has_offset, parted
from retrace_sde.process.sde import Gaussian
from retrace_sde.process.tails import norm_sf
from retrace_sde.search.mean_path import (
    MeanPath,
    PathFit,
    PathSteps,
    slice_effects,
    without_slice_effects,
)
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

TESTED_VALUES, TESTED_FRACTION = 20_000, 10
"""Values (n T d) the test of independence uses, and one trajectory in so many where that is more: it must not take longer than
a twentieth of the fit."""

PERSISTENCE_LEVEL = 0.01
"""Significance level of the test that shocks of successive steps are correlated."""

SHIFT_ROUNDS, SHIFT, MAX_SHIFT = 10, 1e-2, 1.0
"""Fits, at most, between which slice effects are estimated, their change, in standard deviations, at which that ends, and the largest change that is made."""

OWN_ORDERS = "each trajectory has an order of its own, so that slices cannot be aligned (a schedule or known times would align them)"


@dataclass(frozen=True, eq=False)
class CommonPart:
    """What the mean path adds to a fit of deviations, in its units: the offset, the level of first states, U, and its log-likelihood."""

    path: MeanPath
    drift: Drift
    covariance: Array
    log_likelihood: float
    estimate: Estimate
    reverse_estimate: Estimate
    initial: Gaussian
    subjects: SubjectEffects | None

    def added(self, outcome: Outcome) -> Outcome:
        """The outcome of trajectories as they were given, of which `outcome` are the deviations."""
        return replace(
            outcome,
            estimate=self.estimate,
            reverse_estimate=self.reverse_estimate,
            initial=self.initial,
            subjects=self.subjects,
            direction=replace(outcome.direction, deviations=True),
        )

    def counted(self, errors: StandardErrors, model: Model, found: Fit) -> StandardErrors:
        """Errors of the deviations by another way, with the mean path's of the offset."""
        own = _along(model, self.estimate, found)
        return _with_offset(replace(self.estimate, errors=errors), own, model, found).errors

    def of_others(self, panel: Panel, units: Units, model: Model) -> MeanPath:
        """The mean path of other trajectories, whose common shocks have the covariance of these."""
        found = mean_path_of(panel, units, model.drift)
        A = parted(self.estimate.coefficients, self.drift)[0]
        steps = PathSteps.of(A, self.covariance, np.array([model.dt]), self.estimate.scheme)
        return replace(found, common=steps.covariance[0])

    def forecast(self, deviations: Forecast, path: MeanPath, past: Array, gaps: Array) -> Forecast:
        """Forecasts of deviations with that of the mean path added; `path` in time order, over gaps `past` (T − 1,).

        The mean path's noise is `H/n + U`, and its steps few: its part of an interval has the quantile of as many degrees of freedom. Where its
        shocks are correlated from step to step (a course that the drift does not explain) they go on: `s' = ρ s + e`.
        """
        rho, shock = self._persistence(path, past)
        A, c, B = parted(self.estimate.coefficients, self.drift)
        noise = self.estimate.diffusion / path.n + self.covariance
        steps = PathSteps.of(A, noise, gaps, self.estimate.scheme)
        last = path.means[-1]
        m, P, u = last, np.zeros_like(A), 0.0
        S, along, before = np.zeros_like(A), np.zeros_like(A), np.ones(len(A))
        if B is not None and path.inputs is not None:
            u = path.inputs.mean(axis=0) @ B.T
        means, reaches = [], []
        half = critical(len(self.path.means) - 1, deviations.level)
        C = self.estimate.errors.covariances
        elapsed = np.cumsum(gaps)
        for k in range(len(gaps)):
            F, Gamma, Q = (each[k] for each in steps)
            size = np.sqrt(np.diag(Q))
            shock, carried = rho * shock, rho * along * (size / before if k else 1.0)
            S = (1 - rho ** (2 * k + 2)) * Q
            across = F @ carried
            m, P = F @ m + Gamma @ (c + u) + shock * size, F @ P @ F.T + S + across + across.T
            along, before = across + S, size
            extra = np.zeros(len(m))
            if C is not None:
                phi = np.append(last, 1.0)[: C.shape[1]]
                extra = elapsed[k] ** 2 * np.einsum(
                    "p,kpq,q->k", phi, C[:, : len(phi), : len(phi)], phi
                )
            means.append(m)
            reaches.append(half * np.sqrt(np.diag(P) + extra))
        mean, reach = np.stack(means), np.stack(reaches)
        own = deviations.high - deviations.mean
        share = (path.n - 1) / path.n
        middle = mean + deviations.mean * np.sqrt(share)
        whole = np.sqrt(share * own**2 + reach**2)
        return replace(
            deviations,
            mean=middle,
            low=middle - whole,
            high=middle + whole,
            widened=deviations.widened * (whole / np.maximum(own, 1e-300)).mean(axis=0),
            average=np.stack([mean, mean - reach, mean + reach]),
        )

    def _persistence(self, path: MeanPath, past: Array) -> tuple[float, Array]:
        """ρ, the correlation of successive shocks where it is significant (else 0), and the last shock (d,) in standard deviations."""
        A, c, B = parted(self.estimate.coefficients, self.drift)
        noise = self.estimate.diffusion / path.n + self.covariance
        F, Gamma, Q = PathSteps.of(A, noise, past, self.estimate.scheme)
        m, offset = path.means, np.broadcast_to(c, path.means[1:].shape)
        if B is not None and path.inputs is not None:
            offset = offset + path.inputs[:-1] @ B.T
        r = m[1:] - np.einsum("tij,tj->ti", F, m[:-1]) - np.einsum("tij,tj->ti", Gamma, offset)
        z = r / np.sqrt(np.einsum("tii->ti", Q))
        rho = float((z[1:] * z[:-1]).sum() / (z**2).sum())
        if norm_sf(rho * np.sqrt(len(z))) >= PERSISTENCE_LEVEL:
            rho = 0.0
        return rho, z[-1]


def lifted(deviations: Array, path: MeanPath, order: Indices | None = None) -> Array:
    """Deviations (…, T, d) along an order as values of trajectories, in the units of the fit."""
    means = path.means if order is None else path.means[order]
    return deviations * np.sqrt((path.n - 1) / path.n) + means


def mean_path_of(panel: Panel, units: Units, drift: Drift) -> MeanPath:
    """The slice means of a panel in the units of the fit."""
    u = panel.covariates
    means = (slice_effects(panel.values) - units.centre) / units.scale
    inputs = None if u is None else slice_effects(u)
    return MeanPath(means, panel.values.shape[0], has_offset(drift), inputs)


def about_slices(model: Model, found: Fit, again: Callable[[Model, Fit], Fit]) -> Model:
    """Deviations from slice effects of maximum likelihood, where values are missing; `again` fits anew about these.

    Where few values determine much, a law may be singular and the likelihood of law and effects has no maximum: each change must be smaller than the one before.
    (Of 40 panels with n = 8, T = 6, d = 3 and .4 missing effects exceeded 3.5 standard deviations in 27, and 1000 in 17.)
    """
    most = MAX_SHIFT
    for _ in range(SHIFT_ROUNDS):
        shifts = model.slice_shifts(found)
        if shifts is None or np.abs(shifts).max() >= most:
            break
        most = float(np.abs(shifts).max())
        model = model.about_slices(shifts)
        if most < SHIFT:
            break
        found = again(model, found)
    return model


def without_common_inputs(panel: Panel) -> Panel:
    """The panel with inputs as deviations from their slice means: what they add to all alike is in the mean path."""
    u = panel.covariates
    return panel if u is None else replace(panel, covariates=without_slice_effects(u))


MIN_DEVIATION_SHARE = 1e-12
"""Least eigenvalue of the correlations of deviations from slice means, below which they are linearly dependent but for rounding."""


def removable(entry: Entry, request: Request) -> str | None:
    """Why slice effects cannot be removed; None: they can."""
    panel = entry.panel
    if not request.shared:
        return (
            "Slice effects are removed from slices of one shared order (permutation='shared') only"
        )
    if not request.by_likelihood:
        return "Order by score is the paper's, and knows no common shocks"
    if not request.has_state_space:
        return "A drift that is not linear does not split into deviations and mean path"
    if Data(panel.values).lazy:
        return "Slice effects are removed in memory only: fit a part of the trajectories"
    if panel.covariates is not None:
        apart = to_numpy(without_slice_effects(panel.covariates))
        if np.nanmax(np.abs(apart), axis=(0, 1)).min() <= 1e-9 * np.nanmax(
            np.abs(to_numpy(panel.covariates))
        ):
            return (
                "An input is common to all trajectories, and would be removed with what they share"
            )
    if tied_within_slices(panel.values):
        return "Some combination of the variables is the same in all trajectories of a slice, as in values normalised within slices, so that deviations are linearly dependent"
    return None


def tied_within_slices(values: Any) -> bool:
    """Deviations from the slice effects are linearly dependent, but for rounding."""
    x = to_numpy(without_slice_effects(values)).reshape(-1, values.shape[2])
    x = x[~np.isnan(x).any(axis=1)]
    sizes = np.linalg.norm(x, axis=0)
    if values.shape[2] == 1 or len(x) <= values.shape[2] or not (sizes > 0).all():
        return False
    z = x / sizes
    return bool(np.linalg.eigvalsh(z.T @ z)[0] < MIN_DEVIATION_SHARE)


def tested(model: Model, found: Fit) -> Dependence:
    """The tests of independence on residuals along the order found, of data as they were given."""
    if not found.ordering.shared and not _aligned(model, found):
        return not_tested(OWN_ORDERS)
    n, T, d = model.data.shape
    most = min(n, max(TESTED_VALUES // (T * d), n // TESTED_FRACTION))
    rows = evenly(n, len(tested_rows((most, T, d))))  # no more are read than residuals are taken of
    along = found.ordering.take(rows).index
    states = None if found.states is None else found.states[rows]
    part = replace(found, order=along, gaps=found.gaps.take(rows), states=states, reverse=None)
    steps = steps_of(model.some(len(rows)), part)
    states = steps.states if states is None else states[steps.rows]
    groups = model.data.groups
    some = None if groups is None else groups[rows][steps.rows]
    return dependence_of(cleared(steps.residuals, states), n, some)


def _aligned(model: Model, found: Fit) -> bool:
    """Positions of orders of their own are the same times for all trajectories: those of a schedule, or known ones."""
    if model.timing.scheduled:
        return True
    times = np.atleast_2d(model.timing.times(found.order, found.gaps))
    whole = not model.data.lengths.ragged
    return model.timing.gaps_known and whole and bool(np.ptp(times, axis=0).max() == 0)


def split(model: Model, outcome: Outcome, found: Dependence) -> tuple[Dependence, CommonPart]:
    """What the mean path adds to a fit of deviations, and what it says of dependence.

    Errors count n − 1 trajectories, which is how many the deviations of n are worth.
    """
    path = model.mean_path
    assert path is not None  # or there are no deviations
    n = path.n
    own = _along(model, outcome.estimate, outcome.found)
    back = _along(model, outcome.reverse_estimate, outcome.reverse)
    H = outcome.estimate.diffusion
    U, fitted = own.common(H, n), parted(outcome.estimate.coefficients, model.drift)[1]
    if found.kind is not DependenceKind.NOT_TESTED:
        share = float(np.mean(np.diag(U) / (np.diag(U) + np.diag(H))))
        found = replace(found, common_share=share, effective_n=effective_number(n, share))
    found = replace(found, removed=True, common_covariance=U)
    common = CommonPart(
        path,
        model.drift,
        U,
        own.log_likelihood,
        estimate=_with_offset(outcome.estimate, own, model, outcome.found),
        reverse_estimate=_with_offset(outcome.reverse_estimate, back, model, outcome.reverse),
        initial=Gaussian(path.means[outcome.found.order[0]], outcome.initial.covariance),
        subjects=_subjects(outcome.subjects, own.offset - fitted),
    )
    return found, common


def _along(model: Model, estimate: Estimate, found: Fit) -> PathFit:
    path = model.mean_path
    assert path is not None
    A, _, B = parted(estimate.coefficients, model.drift)
    T = model.data.shape[1]
    gaps = found.gaps.rows(1, T)[0]
    steps = PathSteps.of(A, estimate.diffusion, gaps, estimate.scheme)
    return path.along(found.order, steps, B, final=True)


def _with_offset(estimate: Estimate, path: PathFit, model: Model, found: Fit) -> Estimate:
    """The estimate with the offset of the mean path, and errors of n − 1 trajectories.

    `ĉ = c̄ − Â m̄`, up to noise of the mean path: for each equation `Var ĉ = m̄ᵀ C m̄ + error`, `Cov(Â, ĉ) = −C m̄` with C the
    covariance of its coefficients. The mean path has T − 1 steps, so that its part gets their Student's quantile.
    """
    mean = model.mean_path
    assert mean is not None
    errors, n, d = _counted(estimate.errors, mean.n), mean.n, mean.means.shape[1]
    if not mean.offset:
        return replace(estimate, errors=errors)
    S = len(found.order) - 1
    coefficients = estimate.coefficients.copy()
    coefficients[:, d] = path.offset
    middle = mean.means[found.order[:-1]].mean(axis=0)
    own = np.diag(path.error) * (critical(S) / critical(n)) ** 2
    drift, covariances = errors.drift.copy(), errors.covariances
    if covariances is None:
        drift[:, d] = np.sqrt(own + (errors.drift[:, :d] ** 2) @ middle**2)
    else:
        covariances = covariances.copy()
        C = covariances[:, :d, :d]
        covariances[:, d, :d] = covariances[:, :d, d] = -C @ middle
        covariances[:, d, d] = own + np.einsum("i,kij,j->k", middle, C, middle)
        drift[:, d] = np.sqrt(covariances[:, d, d])
    errors = replace(errors, drift=drift, covariances=covariances)
    return replace(estimate, coefficients=coefficients, errors=errors)


def _counted(errors: StandardErrors, n: int) -> StandardErrors:
    """Errors that counted n trajectories, for n − 1."""
    root = np.full((1, 1), np.sqrt(n / max(n - 1, 1)))
    return errors.scaled(root, root)


def _subjects(found: SubjectEffects | None, shift: Array) -> SubjectEffects | None:
    """Random intercepts with the offset of the mean path."""
    if found is None or found.intercepts is None or found.mean is None:
        return found
    return replace(found, intercepts=found.intercepts + shift, mean=found.mean + shift)


def kept(model: Model, outcome: Outcome, found: Dependence) -> tuple[Outcome, Dependence]:
    """The outcome of a fit to trajectories that share shocks, which were not removed: with errors that allow for them."""
    why = "They were not removed, as asked" if not found.why else found.why
    exactly = outcome.estimate.scheme == "exact"
    step, gaps = outcome.found.step, outcome.found.gaps
    sde = model.embedding(step.coefficients, step.diffusion) if exactly and gaps.equal else None
    possible = model.closed_form and outcome.account is None and exactly == (sde is not None)
    if not possible:
        why += "; standard errors assume independence, and are too small"
        return outcome, replace(found, why=why)
    regression = outcome.found.order, gaps, model.drift, outcome.found.moments
    through = None if sde is None else sde.moved
    errors = driscoll_kraay(model.data, *regression, through)
    why += "; standard errors (Driscoll and Kraay) allow for them"
    estimate = replace(outcome.estimate, errors=errors)
    return replace(outcome, estimate=estimate), replace(found, why=why)
