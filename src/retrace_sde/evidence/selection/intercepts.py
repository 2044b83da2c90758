"""Random intercepts of observed states, along the order found (`fit.random_intercepts`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
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
from retrace_sde.fit.random_intercepts import LevelFit, fit_levels, level_influences
from retrace_sde.fit.regression import Estimate, StandardErrors, Through
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.process.drift import Affine
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel

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
        return with_moments(self.shown(errors), errors(), self.population, count)

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
