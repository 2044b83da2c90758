"""Random intercepts of observed states, along the order found (`fit.random_intercepts`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.penalty import akaike
from retrace_sde.evidence.selection.accounts import (
    Account,
    Subjects,
    Tried,
    moments_behind,
    sampled_order,
    with_moments,
)
from retrace_sde.fit.exact import exact
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.random_intercepts import LevelFit, fit_levels, level_influences
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.process.drift import Affine
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel

LEFT_OUT_SUBJECTS = 200
"""Subjects whose absence is followed through the matrix logarithm."""

INTERCEPT_SAMPLE = 1000
"""Trajectories on which subjects are first compared."""


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
            fits.append((fit, cls(model, levels, not alike.gaps.equal)))
        extra = fits[0][1].levels.n_extra
        gain = max(fit.objective for fit, _ in fits) - found.better.objective
        return Tried(float(gain - akaike(extra)), extra, lambda: fits)

    def population(self, name: str) -> tuple[Array, Array]:
        law = super().population(name)
        if name != "exact" or self.gaps:
            return law
        found = self._exact(*law)
        return found.coefficients, found.diffusion

    def estimate(self, name: str) -> tuple[Estimate, Moments]:
        return with_moments(self._estimate(name), self._count)

    def _estimate(self, name: str) -> Estimate:
        """With `exact`, of the exact discretisation of a regular grid.

        On a regular grid Euler's step with intercepts is a regression like any other, (A, c̄, H) its coefficients, of which the
        exact SDE is a smooth function: it is taken of the estimates without each subject.
        """
        B, H = self.population("mle")
        of_B, of_H = self._influences()
        if name != "exact" or self.gaps:
            return Estimate(B, H, errors_of_influences(of_B, of_H))
        found = self._exact(B, H)
        some = evenly(len(of_B), LEFT_OUT_SUBJECTS)
        left = [self._exact(B + of_B[j], H + of_H[j]) for j in some]
        errors = errors_of_influences(
            np.stack([each.coefficients for each in left]) - found.coefficients,
            np.stack([each.diffusion for each in left]) - found.diffusion,
            total=len(of_B),
        )
        return replace(found, errors=errors)

    def _influences(self) -> tuple[Array, Array]:
        """By how much leaving out each subject, or group, moves (A, c̄) and H.

        Influences are corrected for the leverages of subjects, p/n on average; those of groups are p/G.
        """
        data, p = self.model.data, self.levels.rows.n_features
        of_B, of_H = (data.by_group(each) for each in level_influences(self.levels))
        if data.groups is not None:
            of_B *= (1 - p / data.shape[0]) / max(1 - p / data.n_groups, 0.5)
        return of_B, of_H

    @property
    def _count(self) -> float:
        return float(self.levels.rows.strata.counts.sum())

    def _exact(self, B: Array, H: Array) -> Estimate:
        """The SDE whose exact step on a regular grid is Euler's (B, H)."""
        d, p = B.shape
        unit = np.broadcast_to(np.eye(p), (d, p, p))
        # To first order, H without one subject may not be positive definite.
        values, vectors = np.linalg.eigh(H)
        least = 1e-3 * np.linalg.eigvalsh(self.levels.diffusion)[0]
        H = (vectors * np.maximum(values, least)) @ vectors.T
        return exact(moments_behind(self._count, B, H, unit), self.model.dt, affine=True)

    def aligned(self, found: Fit, rng: np.random.Generator) -> tuple[EulerModel, Fit]:
        apart = self.levels.apart(self.levels.drawn(rng))
        values = to_numpy(self.model.data.values) + apart[:, None]
        moved = replace(self.model, data=replace(self.model.data, values=values))
        return moved, moved.fit_gaps(found.order, found.gaps)

    def resampled(self, found: Fit, rows: Indices, name: str) -> tuple[Array, Array]:
        model, drawn = resampled_fit(self.model, found, rows)
        levels = fit_levels(model.data, drawn.order, drawn.gaps)
        if levels is None:
            estimate = model.estimate(drawn, name)
            return estimate.coefficients, estimate.diffusion
        return ObservedAccount(model, levels, not drawn.gaps.equal).population(name)


def resampled_fit(model: EulerModel, found: Fit, rows: Indices) -> tuple[EulerModel, Fit]:
    """The model of drawn subjects, with their own orders and gaps where they have such."""
    drawn = replace(model, data=replace(model.data.take(rows), n_jobs=1), prior=None)
    return drawn, drawn.fit_gaps(found.ordering.take(rows).index, found.gaps.take(rows))
