"""One SDE for all subjects, or an intercept or a rate of each one's own: chosen by evidence, along the order found.

Orders are searched for as if subjects were alike, which hardly misleads a search, and the direction is judged by a ladder
of models of its own; the parameters and their errors then rest on the better account. Akaike's price decides, one nat for each parameter more: who takes subjects for
different that are alike has intervals wider by a fifth, who takes them for alike that differ has a drift several times
too small. Where subjects are alike, levels are chosen in 2 % of panels (n = 120, T = 20, d = 2). Rates look like levels while subjects are on
their way, but have one parameter; with them the drift stays that of all together, with errors over trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky

from retrace_sde.fit.exact import exact
from retrace_sde.fit.levels import LevelFit, fit_levels, level_influences
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.fit.statespace.levels import HiddenLevels
from retrace_sde.fit.subjects import fit_rates, subject_grams
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.process.drift import Affine
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel
from retrace_sde.search.protocols import Model

MOST_VARIABLES = 20
"""Variables up to which levels are fitted: their information is a square matrix in 3 d² parameters."""

LEFT_OUT = 200
"""Subjects whose absence is followed through the matrix logarithm."""

DECIDED = 1000
"""Trajectories on which subjects are first compared: more are only fitted where these speak for levels."""


class Subjects(StrEnum):
    """How subjects differ; AUTO: as the data say."""

    AUTO = "auto"
    ALIKE = "alike"
    LEVELS = "levels"
    RATES = "rates"


@dataclass(frozen=True, eq=False)
class SubjectEffects:
    """How subjects differ, what speaks for it, and each one's intercept or rate.

    `nats`: by how much levels or rates (of subjects who are alike: the better of the two) are more likely than subjects who
    are alike, less the price of `parameters` more (None: not compared). `asked`: it was chosen by name. With levels,
    `intercepts` (n, d) are each subject's c_j, expected from all of its steps, with standard errors `errors`; the law they
    come from is `c | x₀ ~ N(mean + slope x₀, between)`. `span` is the mean total time of a subject, `reversion` the time of
    the slowest mean reversion (∞: none). With rates, `rates` (n,) are the factors by which subjects' drifts differ from that
    of all, with standard errors `rate_errors` and standard deviation `rate_spread`.
    """

    kind: Subjects
    asked: bool
    nats: float | None = None
    parameters: int = 0
    intercepts: Array | None = None
    errors: Array | None = None
    mean: Array | None = None
    slope: Array | None = None
    between: Array | None = None
    span: float = 0.0
    reversion: float = 0.0
    rates: Array | None = None
    rate_errors: Array | None = None
    rate_spread: float = 0.0

    @property
    def short(self) -> bool:
        """The total time is shorter than that of the slowest mean reversion."""
        return self.kind is Subjects.LEVELS and self.span < self.reversion

    def moved(self, each: Callable[[Array], Array]) -> SubjectEffects:
        """The same with what is each subject's own moved to other places."""
        own = ("intercepts", "errors", "rates", "rate_errors")
        there = {name: getattr(self, name) for name in own}
        moved: dict[str, Any] = {name: each(v) for name, v in there.items() if v is not None}
        return replace(self, **moved)

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        return _SENTENCES[self.kind](self)

    @property
    def by(self) -> str:
        """By how many nats, and whether that was the reason."""
        if self.nats is None:
            return ", as asked" if self.asked else ""
        plural = "" if self.parameters == 1 else "s"
        price = f"after a price of {self.parameters} parameter{plural}"
        if self.asked:
            return f", as asked ({self.nats:+.1f} nats {price})"
        return f", by {self.nats:.1f} nats {price}; subjects='alike' fits one SDE for all"


def _levels_say(found: SubjectEffects) -> str:
    text = f"an intercept of its own for each{found.by}"
    if not found.short:
        return text
    slow = "there is none" if np.isinf(found.reversion) else f"{found.reversion:.3g}"
    return (
        f"{text}. A subject is seen for {found.span:.3g}, less than the time of the slowest mean reversion ({slow}): "
        "a level and slow mean reversion look alike, so intervals of the drift are wide"
    )


def _rates_say(found: SubjectEffects) -> str:
    return (
        f"a rate of its own for each, of standard deviation {found.rate_spread:.2g} about 1{found.by}. The drift is that of "
        "all together, and its errors allow for the differences"
    )


def _alike_say(found: SubjectEffects) -> str:
    if found.nats is None or found.asked:
        return "one SDE for all" + (", as asked" if found.asked else "")
    return (
        f"alike: levels or rates of their own are worse by {-found.nats:.1f} nats, the price of their parameters counted; "
        "subjects='levels' fits levels"
    )


_SENTENCES = {
    Subjects.ALIKE: _alike_say,
    Subjects.LEVELS: _levels_say,
    Subjects.RATES: _rates_say,
}


class Compared(NamedTuple):
    """The order found with its fits under the better account of subjects, and what speaks for it.

    Levels both ways round; with rates the `diffusion` that they leave.
    """

    found: Found
    effects: SubjectEffects | None
    levels: LevelFit | HiddenLevels | None = None
    reverse: LevelFit | HiddenLevels | None = None
    diffusion: Array | None = None


def compared(model: Model, found: Found, asked: Subjects) -> Compared:
    """Subjects alike, with levels or with rates along the order found, whose direction is settled; None: no question."""
    if asked is Subjects.ALIKE:
        return Compared(found, SubjectEffects(Subjects.ALIKE, True))
    if not _applies(model, asked):
        return Compared(found, None)
    assert isinstance(model, EulerModel)
    if asked is Subjects.RATES:
        effects, H = _rates(model, found.better, asked=True)
        return Compared(found, effects, diffusion=H)
    by_name = asked is Subjects.LEVELS
    few = model if by_name else model.some(DECIDED)
    if few is not model:
        pair = [few.fit(_some(model, few, each)) for each in (found.better, found.worse)]
        tried = _tried(few, pair[0], pair[1])
        if tried is None or tried.nats <= 0:
            return _without_levels(model, found, tried)
    tried = _tried(model, found.better, found.worse)
    if tried is None:
        return Compared(found, None)
    if not by_name:
        other = _without_levels(model, found, tried)
        assert other.effects is not None
        if tried.nats <= 0 or (other.effects.nats or 0.0) > tried.nats:
            return other
    (better, levels), (worse, reverse) = tried.fits
    found = replace(found, better=better, worse=worse)
    effects = level_effects(levels, tried.nats, float(levels.rows.times.mean()), asked=by_name)
    return Compared(found, effects, levels, reverse)


def _rates(model: EulerModel, found: Fit, *, asked: bool) -> tuple[SubjectEffects, Array]:
    """Each subject's rate beside the drift of all, and the H that rates leave; some subjects tell them of a lazy panel."""
    if model.data.lazy:
        few = model.some(DECIDED)
        effects, H = _rates(few, few.fit(_some(model, few, found)), asked=asked)
        return replace(effects, rates=None, rate_errors=None), H
    grams = subject_grams(model.data, found.order, found.gaps, model.drift)
    count = float(model.data.lengths.steps.total)
    rates = fit_rates(grams, count, found.step.coefficients, found.step.diffusion)
    effects = SubjectEffects(
        Subjects.RATES,
        asked,
        rates.gain
        - 0.5 * float(np.log(len(rates.rates))),  # Schwarz' price: nothing is lost by waiting
        1,
        rates=rates.rates,
        rate_errors=rates.errors,
        rate_spread=rates.variance**0.5,
    )
    return effects, rates.diffusion


def _without_levels(model: EulerModel, found: Found, tried: _Tried | None) -> Compared:
    """Rates, where they are worth their price; else alike, with what is closest to being worth it."""
    rates, H = _rates(model, found.better, asked=False)
    assert rates.nats is not None
    if rates.nats > 0:
        return Compared(found, rates, diffusion=H)
    nats, parameters = rates.nats, 1
    if tried is not None and tried.nats > nats:
        nats, parameters = tried.nats, tried.parameters
    return Compared(found, SubjectEffects(Subjects.ALIKE, False, nats, parameters))


class _Tried(NamedTuple):
    """Levels both ways round, and what they are better by."""

    fits: list[tuple[Fit, LevelFit]]
    nats: float
    parameters: int


def _applies(model: Model, asked: Subjects) -> bool:
    """Complete data, an intercept to differ in, and subjects enough; gaps that are estimated only where asked."""
    if asked is Subjects.RATES:
        return isinstance(model, EulerModel)
    affine = isinstance(model, EulerModel) and isinstance(model.drift, Affine)
    if not affine or model.data.shape[2] > MOST_VARIABLES:
        return False
    return asked is Subjects.LEVELS or not isinstance(model, GapModel)


def _some(model: EulerModel, few: EulerModel, found: Fit) -> Indices:
    return found.ordering.take(evenly(model.data.shape[0], few.data.shape[0])).index


def _tried(model: EulerModel, better: Fit, worse: Fit) -> _Tried | None:
    fits = []
    for alike in (better, worse):
        levels = fit_levels(model.data, alike.order, alike.gaps)
        if levels is None:
            return None
        step = replace(alike.step, diffusion=levels.diffusion)
        first = model.data.states(alike.order)[None]
        start = start_log_densities(first, step, model.variances)[0]
        fits.append((replace(alike, log_likelihoods=start + levels.log_likelihoods), levels))
    extra = fits[0][1].n_extra
    gain = max(fit.objective for fit, _ in fits) - better.objective
    return _Tried(fits, float(gain - extra), extra)


def level_effects(
    levels: LevelFit | HiddenLevels, nats: float, span: float, *, asked: bool
) -> SubjectEffects:
    """Levels as a result shows them; `span`: the mean total time of a subject."""
    rate = -float(np.linalg.eigvals(levels.drift).real.max())
    return SubjectEffects(
        Subjects.LEVELS,
        asked,
        nats,
        levels.n_extra,
        levels.effects,
        levels.effect_errors,
        levels.mean,
        levels.slope,
        levels.between,
        span,
        1 / rate if rate > 0 else float("inf"),
    )


def levelled(
    model: EulerModel, found: Fit, levels: LevelFit, rng: np.random.Generator
) -> tuple[EulerModel, Fit]:
    """Subjects moved to where they are alike, `x + A⁻¹ (c_j − c̄)`, so that what looks at one SDE can look at levels.

    The intercepts are drawn, not expected: residuals from expected ones would be correlated.
    """
    apart = levels.drawn(rng) - levels.average
    shift = apart @ np.linalg.pinv(levels.drift, rcond=1e-6).T
    values = to_numpy(model.data.values) + shift[:, None]
    moved = replace(model, data=replace(model.data, values=values))
    return moved, moved.fit_gaps(found.order, found.gaps)


def level_coefficients(
    levels: LevelFit, dt: float, *, name: str, gaps: bool
) -> tuple[Array, Array]:
    """(A, c̄) and H of levels, without errors."""
    coefficients = np.column_stack([levels.drift, levels.average])
    if name != "exact" or gaps:
        return coefficients, levels.diffusion
    found = _exact(levels, coefficients, levels.diffusion, dt)
    return found.coefficients, found.diffusion


def _exact(levels: LevelFit, B: Array, H: Array, dt: float) -> Estimate:
    """The SDE whose exact step on a regular grid Euler's (B, H) is."""
    d, p = B.shape
    unit = np.broadcast_to(np.eye(p), (d, p, p))
    # To first order, one subject less may leave less than nothing.
    values, vectors = np.linalg.eigh(H)
    least = 1e-3 * np.linalg.eigvalsh(levels.diffusion)[0]
    H = (vectors * np.maximum(values, least)) @ vectors.T
    count = float(levels.rows.strata.counts.sum())
    return exact(_moments(count, B, H, unit), dt, affine=True)


def level_estimate(levels: LevelFit, dt: float, *, name: str, gaps: bool) -> Estimate:
    """Parameters and errors of levels; `exact`: of the exact discretisation of a regular grid.

    On a regular grid Euler's step with levels is a regression like any other, (A, c̄, H) its coefficients, of which the
    exact SDE is a smooth function: it is taken of the estimates without each subject.
    """
    B, H = np.column_stack([levels.drift, levels.average]), levels.diffusion
    of_B, of_H = level_influences(levels)
    if name != "exact" or gaps:
        return Estimate(B, H, errors_of_influences(of_B, of_H))
    found = _exact(levels, B, H, dt)
    some = evenly(len(of_B), LEFT_OUT)
    left = [_exact(levels, B + of_B[j], H + of_H[j], dt) for j in some]
    errors = errors_of_influences(
        np.stack([each.coefficients for each in left]) - found.coefficients,
        np.stack([each.diffusion for each in left]) - found.diffusion,
        total=len(of_B),
    )
    return replace(found, errors=errors)


def level_moments(levels: LevelFit, estimate: Estimate) -> Moments:
    """Moments of a regression that would give these coefficients with these errors: what tests may trust."""
    return moments_behind(estimate, float(levels.rows.strata.counts.sum()))


def moments_behind(estimate: Estimate, count: float) -> Moments:
    """Moments of `count` steps whose regression would give an estimate with its errors."""
    assert estimate.errors.covariances is not None
    covariances = estimate.errors.covariances
    return _moments(count, estimate.coefficients, estimate.diffusion, covariances)


def _moments(count: float, coefficients: Array, H: Array, covariances: Array) -> Moments:
    inverse = (covariances / np.diag(H)[:, None, None]).mean(axis=0)
    # Fewer different subjects than coefficients leave some directions without a spread.
    inverse = inverse + 1e-10 * np.trace(inverse) / len(inverse) * np.eye(len(inverse))
    R = cholesky(np.linalg.inv(inverse))
    d, p = coefficients.shape
    factor = np.zeros((p + d, p + d))
    factor[:p, :p], factor[:p, p:] = R, R @ coefficients.T
    factor[p:, p:] = cholesky(H * count)
    return Moments(factor, count, p)
