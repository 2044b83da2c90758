"""Random intercepts where states are hidden, or gaps differ: along the order found (`fit.statespace.random_intercepts`).

Both models are judged by the likelihood of the observations, each with its own law of the first states; gaps that were
estimated are held fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.penalty import akaike
from retrace_sde.evidence.selection.accounts import (
    Account,
    Subjects,
    Tried,
    sampled_order,
    with_moments,
)
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.random_intercepts import fit_levels
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.fit.statespace.random_intercepts import (
    HiddenLevels,
    fit_hidden_levels,
    hidden_level_errors,
    refit_levels,
    seen_with_levels,
)
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.process.drift import has_offset
from retrace_sde.process.sde import Gaussian, Scheme
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.hidden import HiddenModel

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
        shown = self.shown(errors)
        return with_moments(shown, errors(None), self.population, self.levels.expected.count)

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
