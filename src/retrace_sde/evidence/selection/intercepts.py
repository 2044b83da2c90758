"""Random intercepts along the order found: fitted, compared with subjects who are alike, and shown.

An `Account` is a fit of random intercepts, with what a result needs of it: parameters with errors, a refit to resampled subjects, and
subjects moved to where they are alike. Its class says where such fits apply and makes them. `ObservedAccount` is for observed states
(`fit.random_intercepts`). `HiddenAccount` is for hidden states and gaps that differ (`fit.statespace.random_intercepts`): both models are
judged by the likelihood of the observations, each with its own law of the first states; gaps that were estimated are held fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky

from retrace_sde.evidence.candidates.penalty import akaike
from retrace_sde.fit.exact import Embedding
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.random_intercepts import LevelFit, fit_levels, level_influences
from retrace_sde.fit.regression import Estimate, StandardErrors, Through
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.fit.statespace.random_intercepts import (
    HiddenLevels,
    fit_hidden_levels,
    hidden_level_errors,
    refit_levels,
    seen_with_levels,
)
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.process.drift import Affine, has_offset
from retrace_sde.process.sde import Gaussian, Scheme
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel


class Subjects(StrEnum):
    """How subjects differ; AUTO: as the data say."""

    AUTO = "auto"
    ALIKE = "alike"
    LEVELS = "levels"
    RATES = "rates"


class Tried(NamedTuple):
    """Random intercepts beside subjects who are alike: penalised nats gained, parameters more, and the fits on demand.

    `fits`: of the order and of its reverse, each with the likelihoods of the intercepts.
    """

    nats: float
    parameters: int
    fits: Callable[[], list[tuple[Fit, Any]]]


@dataclass(frozen=True, eq=False)
class Account:
    """Random intercepts `levels` along an order of a model, and what a result needs of them.

    Every kind says where the question can be asked (`applies`, up to `max_variables`), on how many trajectories it is first
    compared (`sample`, `on_sample`: all are fitted only where these prefer intercepts), and compares (`tried`; `by_name`:
    intercepts will be used whatever it says). A fit of it has parameters with errors and the moments that tests use (`estimate`), a refit to
    subjects drawn with replacement (`resampled`), and model and fit of subjects moved to where they are alike (`aligned`, by
    intercepts that are drawn, not expected: residuals about expected ones would be correlated).
    """

    model: Any
    levels: Any

    @property
    def initial(self) -> Gaussian | None:
        """The law of the first states; None where it is that of subjects who are alike."""
        return None

    @property
    def law(self) -> Any:
        """The law of the average subject where states are hidden, None where they are observed."""
        return None

    @property
    def one_step(self) -> bool:
        """All steps have the length dt, so that Euler's is a way to write the SDE's."""
        raise NotImplementedError

    @property
    def scheme(self) -> Scheme:
        """What the parameters are those of, as they were fitted."""
        return "euler"

    @property
    def population(self) -> tuple[Array, Array]:
        """Coefficients and diffusion of the average subject, as they were fitted."""
        return self.levels.coefficients, self.levels.diffusion

    @cached_property
    def embedding(self) -> Embedding | None:
        """The SDE of the average subject; None: `population` is what is shown."""
        found: Embedding | None = self.model.embedding(*self.population) if self.one_step else None
        return found

    def shown(self, errors: Callable[[Through | None], StandardErrors]) -> Estimate:
        """The parameters of the average subject as they are shown."""
        if not self.one_step:
            return Estimate(*self.population, errors(None), scheme=self.scheme)
        found: Estimate = self.model.shown(self.population, errors)
        return found

    def with_moments(
        self, errors: Callable[[Through | None], StandardErrors], count: float
    ) -> tuple[Estimate, Moments]:
        """The parameters shown, and moments of `count` steps whose regression would give Euler's law with its errors."""
        covariances = errors(None).covariances
        assert covariances is not None
        return self.shown(errors), moments_behind(count, *self.population, covariances)


def sampled_order(model: Any, few: Any, found: Fit) -> Indices:
    """The orders of the trajectories of a sample."""
    return found.ordering.take(evenly(model.data.shape[0], few.data.shape[0])).index


def moments_behind(
    count: float, coefficients: Array, diffusion: Array, covariances: Array
) -> Moments:
    """Moments of `count` steps whose regression would give these coefficients with these covariances."""
    inverse = (covariances / np.diag(diffusion)[:, None, None]).mean(axis=0)
    # Fewer different subjects than coefficients leave some directions without a spread.
    inverse = inverse + 1e-10 * np.trace(inverse) / len(inverse) * np.eye(len(inverse))
    R = cholesky(np.linalg.inv(inverse))
    d, p = coefficients.shape
    factor = np.zeros((p + d, p + d))
    factor[:p, :p], factor[:p, p:] = R, R @ coefficients.T
    factor[p:, p:] = cholesky(diffusion * count)
    return Moments(factor, count, p)


INTERCEPT_SAMPLE = 1000
"""Trajectories on which subjects are first compared."""

EULER_INTERCEPTS = (
    "The parameters are those of Euler's steps across gaps that differ, biased by their length: random intercepts of a panel this large, or along gaps that "
    "are estimated, are fitted to no others."
)


@dataclass(frozen=True, eq=False)
class ObservedAccount(Account):
    """Random intercepts where states are observed: complete data, and an intercept to differ in. `gaps`: steps differ in length."""

    levels: LevelFit
    gaps: bool

    max_variables = 20  # their information is a square matrix in 3 d² parameters

    @classmethod
    def applies(cls, model: Any, asked: Subjects) -> bool:
        """Gaps that are estimated have intercepts only where they are asked for by name."""
        if asked is Subjects.RATES:
            return True
        if not isinstance(model.drift, Affine) or model.data.shape[2] > cls.max_variables:
            return False
        return asked is Subjects.LEVELS or not model.gaps_estimated

    @classmethod
    def sample(cls, model: Any) -> int:
        return INTERCEPT_SAMPLE

    @classmethod
    def on_sample(cls, model: Any, found: Found) -> Tried | None:
        few = model.some(INTERCEPT_SAMPLE)
        one, two = (
            few.fit(sampled_order(model, few, each)) for each in (found.better, found.worse)
        )
        return cls.tried(few, replace(found, better=one, worse=two), by_name=False)

    @classmethod
    def tried(cls, model: Any, found: Found, *, by_name: bool) -> Tried | None:
        fits = []
        for alike in (found.better, found.worse):
            levels = fit_levels(model.data, alike.order, alike.gaps)
            if levels is None:
                return None
            step = replace(alike.step, diffusion=levels.diffusion)
            first = model.data.states(alike.order)[None]
            start = start_log_densities(first, step, model.variances)[0]
            fit = replace(alike, log_likelihoods=start + levels.log_likelihoods)
            uneven = alike.gaps.uneven(model.dt)
            fits.append((fit, cls(model, levels, uneven)))
        extra = fits[0][1].levels.n_extra
        gain = max(fit.objective for fit, _ in fits) - found.better.objective
        return Tried(float(gain - akaike(extra)), extra, lambda: fits)

    @property
    def one_step(self) -> bool:
        return not self.gaps

    def shown(self, errors: Callable[[Through | None], StandardErrors]) -> Estimate:
        """The parameters of the average subject; across gaps that differ they are Euler's, and said to be."""
        found = super().shown(errors)
        biased = self.gaps and self.model.scheme == "exact"
        return replace(found, notes=(*found.notes, EULER_INTERCEPTS)) if biased else found

    def estimate(self) -> tuple[Estimate, Moments]:
        errors = partial(errors_of_influences, *self._influences())
        count = float(self.levels.rows.strata.counts.sum())
        return self.with_moments(errors, count)

    def _influences(self) -> tuple[Array, Array]:
        """By how much leaving out each subject, or group, moves (A, c̄) and H.

        Influences are corrected for the leverages of subjects, p/n on average; those of groups are p/G.
        """
        data, p = self.model.data, self.levels.rows.n_features
        of_B, of_H = (data.by_group(each) for each in level_influences(self.levels))
        if data.groups is not None:
            of_B *= (1 - p / data.shape[0]) / max(1 - p / data.n_groups, 0.5)
        return of_B, of_H

    def aligned(self, found: Fit, rng: np.random.Generator) -> tuple[EulerModel, Fit]:
        apart = self.levels.apart(self.levels.drawn(rng))
        values = to_numpy(self.model.data.values) + apart[:, None]
        moved = replace(self.model, data=replace(self.model.data, values=values))
        return moved, moved.fit_gaps(found.order, found.gaps)

    def resampled(self, found: Fit, rows: Indices) -> tuple[Array, Array]:
        model, drawn = resampled_fit(self.model, found, rows)
        levels = fit_levels(model.data, drawn.order, drawn.gaps)
        if levels is None:
            return drawn.step.coefficients, drawn.step.diffusion
        return ObservedAccount(model, levels, self.gaps).population


def resampled_fit(model: EulerModel, found: Fit, rows: Indices) -> tuple[EulerModel, Fit]:
    """The model of drawn subjects, with their own orders and gaps where they have such."""
    drawn = replace(model, data=replace(model.data.take(rows), n_jobs=1), prior=None)
    return drawn, drawn.fit_gaps(found.ordering.take(rows).index, found.gaps.take(rows))


MAX_INTERCEPT_WORK = 3e7
"""n T (2 d)³ up to which subjects are compared on all trajectories; of larger panels some decide first."""


@dataclass(frozen=True, eq=False)
class HiddenAccount(Account):
    """Random intercepts where states are hidden: gaps known or estimated, R diagonal, an intercept, and subjects enough."""

    levels: HiddenLevels

    max_variables = 8  # the smoother has twice as many states, the information 3.5 d² parameters

    @classmethod
    def applies(cls, model: Any, asked: Subjects) -> bool:
        n, _, d = model.data.shape
        R = model.noise
        full = not isinstance(R, str) and np.ndim(R) == 2 and bool(np.any(R - np.diag(np.diag(R))))
        few = n <= 2 * d + 2 or bool(model.data.lengths.steps.steps.total <= 2 * d)
        possible = has_offset(model.drift) and d <= cls.max_variables
        return possible and not (full or few or model.gaps_random)

    @classmethod
    def sample(cls, model: Any) -> int:
        _, T, d = model.data.shape
        return max(int(MAX_INTERCEPT_WORK / (T * 8 * d**3)), 4 * d + 20)

    @classmethod
    def on_sample(cls, model: Any, found: Found) -> Tried | None:
        few = model.some(cls.sample(model))
        alike = few.fit(sampled_order(model, few, found.better), final=True)
        return cls.tried(few, replace(found, better=alike), by_name=False)

    @classmethod
    def tried(cls, model: Any, found: Found, *, by_name: bool) -> Tried | None:
        """No more exactly than the choice needs, unless intercepts are asked for; the reverse on demand."""
        fit, d = found.better, model.data.shape[2]
        alike = float(model.log_joint(fit.order, fit.law).sum())
        least = -np.inf if by_name else alike + akaike(d * d + d * (d + 1) // 2)
        levels = hidden_levels_along(model, fit, least)

        def fits() -> list[tuple[Fit, HiddenAccount]]:
            reverse = hidden_levels_along(model, found.worse)
            return [_with(model, fit, levels), _with(model, found.worse, reverse)]

        gain = levels.log_likelihood - alike
        return Tried(gain - akaike(levels.n_extra), levels.n_extra, fits)

    @property
    def initial(self) -> Gaussian:
        return self.levels.initial

    @property
    def law(self) -> Any:
        return self.levels.alike

    @property
    def one_step(self) -> bool:
        return self.scheme == "euler"

    @property
    def scheme(self) -> Scheme:
        found: Scheme = self.levels.law.scheme
        return found

    def estimate(self) -> tuple[Estimate, Moments]:
        errors = hidden_level_errors(self.levels, self.model.data)
        return self.with_moments(errors, self.levels.expected.count)

    def aligned(self, found: Fit, rng: np.random.Generator) -> tuple[HiddenModel, Fit]:
        levels, model = self.levels, self.model
        apart = levels.apart(levels.drawn(rng))[:, None]
        moved = replace(model, data=replace(model.data, values=model.values + apart))
        step = replace(found.step, coefficients=levels.coefficients, diffusion=levels.diffusion)
        return moved, replace(found, law=levels.alike, step=step, states=levels.states + apart)

    def resampled(self, found: Fit, rows: Indices) -> tuple[Array, Array]:
        drawn = refit_levels(self.levels, rows)
        return drawn.coefficients, drawn.diffusion


def hidden_levels_along(model: HiddenModel, fit: Fit, needed: float = -np.inf) -> HiddenLevels:
    """Random intercepts by maximum likelihood along the order, and across the gaps, of a fit of subjects who are alike.

    The search ends early where it will not reach the log-likelihood `needed`.
    """
    gaps = fit.gaps.along(model.data.shape[1])
    timed = HiddenModel.across(model, gaps, noise=model.noise, scheme=model.scheme)
    seen = seen_with_levels(timed._prepared([fit.order]), offset=True)
    step, law = fit.step, fit.law
    start = Parameters(step.coefficients, step.diffusion, law.R, law.initial, scheme=timed.form)
    states = fit.states if fit.states is not None else model._states(fit.order, law)[1]
    shown, order = model.smoothed_view(replace(fit, states=states))
    rough = fit_levels(shown.data, order, fit.gaps)
    return fit_hidden_levels(seen, timed._ascent, start, rough, needed)


def _with(model: HiddenModel, fit: Fit, levels: HiddenLevels) -> tuple[Fit, HiddenAccount]:
    """A fit with the likelihoods and states of the intercepts; notes on subjects who are alike do not apply to it."""
    gain = levels.log_likelihoods - model.log_joint(fit.order, fit.law)
    found = replace(fit, log_likelihoods=fit.log_likelihoods + gain, states=levels.states, notes=())
    return found, HiddenAccount(model, levels)
