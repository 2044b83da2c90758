"""The residuals of the steps along the order found, in units in which they should be white noise.

Between observed states the residual of a step is `e_i = W (x_{i+1} − x_i − Θ φ_i Δt_i) / √(Δt_i/Δt)`, `W H Δt Wᵀ = I`. Behind noise
or with values missing it is the innovation of the Kalman filter, whitened on what was observed: given the right
model both are independent standard Gaussians, at every position, in every variable and trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.prediction import least_squares
from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import Observations, StepClasses
from retrace_sde.fit.statespace.smoother import filtered
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly, in_order, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import is_linear
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

RESIDUAL_SAMPLE, MIN_RESIDUAL_TRAJECTORIES = 200_000, 30
"""Values (n T d) used by the residual tests, and minimum trajectories where there are so many: enough for every test, in
less time than the fit takes."""

STEPS_PER_COEFFICIENT = 10
"""Steps used for each of the 2 d coefficients of an equation with memory, where there are so many: with fewer the test's own fit
leaves correlations (d = 250 with 760 steps: −.35)."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Some trajectories (`rows`) along the order: states (n, T, d), whitened residuals (n, T − 1, d), NaN where there is none.

    `response` (n, T − 1, d) and `regressors` (n, T − 1, p) are Δx/√Δt and φ √Δt, None where states are hidden;
    `regular`: all gaps are dt and no trajectory is shorter; `linear`: the drift is. `levels` (n, d): intercepts that were taken out.
    """

    rows: Indices
    states: Array
    residuals: Array
    response: Array | None
    regressors: Array | None
    dt: float
    regular: bool
    linear: bool
    levels: Array | None = None

    def without(self, outlying: Mask) -> Steps:
        """The same without some trajectories, fitted anew where that is closed form."""
        keep = ~outlying
        y, z = self.response, self.regressors
        if y is None or z is None:
            residuals = self.residuals[keep]
        else:
            y, z = y[keep], z[keep]
            residuals = _whitened(y, z)
        levels = None if self.levels is None else self.levels[keep]
        some = replace(self, rows=self.rows[keep], states=self.states[keep], residuals=residuals)
        return replace(some, response=y, regressors=z, levels=levels)


def tested_rows(shape: tuple[int, int, int]) -> Indices:
    """The trajectories of a panel that the residual tests use."""
    n, T, d = shape
    telling = -(-STEPS_PER_COEFFICIENT * 2 * d // (T - 1))
    return evenly(n, min(n, max(MIN_RESIDUAL_TRAJECTORIES, RESIDUAL_SAMPLE // (T * d), telling)))


def steps_of(model: Model, found: Fit, levels: Array | None = None) -> Steps:
    """The steps of a fit; of some trajectories, evenly spaced, where the panel is large. `levels` (n, d): random intercepts removed."""
    T, rows = model.data.shape[1], tested_rows(model.data.shape)
    size, levels = len(rows), None if levels is None else levels[rows]
    order = found.ordering.take(rows).index
    data = model.data.some(size)
    x = to_numpy(in_order(data.values, order))
    inside = data.lengths.mask
    linear = is_linear(model.drift)
    if model.states_hidden:
        y = np.where(inside[:, :, None], x, np.nan)
        seen = seen_along(model.some(size), found.law, order, found.gaps.take(rows), y)
        innovations = filtered(*seen).innovations[:, 1:]
        return Steps(rows, y, innovations, None, None, model.dt, True, linear, levels)
    gaps = found.gaps.take(rows).rows(len(x), T)
    root = np.sqrt(gaps)[:, :, None]
    u = None if data.covariates is None else to_numpy(in_order(data.covariates, order))[:, :-1]
    live = np.where(inside[:, 1:, None], 1.0, np.nan)
    response = np.diff(x, axis=1) / root * live
    regressors = to_numpy(model.drift.features(x[:, :-1], u)) * root * live
    x = np.where(inside[:, :, None], x, np.nan)
    residuals = _whitened(response, regressors)
    regular = bool(np.ptp(gaps) <= 1e-9 * gaps.max()) and not data.lengths.ragged
    rest = response, regressors, model.dt, regular, linear, levels
    return Steps(rows, x, residuals, *rest)


def _whitened(y: Array, z: Array) -> Array:
    """Least squares residuals with unit covariance, NaN where there is no step."""
    there = ~np.isnan(y[:, :, 0])
    found = np.full(y.shape, np.nan)
    e = y[there] - z[there] @ least_squares(z[there], y[there])
    S = e.T @ e / max(len(e) - z.shape[2], 1)
    lower = np.linalg.cholesky(S + 1e-12 * np.diag(np.diag(S)))
    found[there] = np.linalg.solve(lower, e.T).T
    return found


def seen_along(
    model: Any, law: Any, order: Indices, gaps: Gaps, y: Array
) -> tuple[Observations, StepModel]:
    """y, the trajectories of a model with hidden states along an order, and the steps of fitted parameters between them.

    Steps across gaps that are drawn are those across dt.
    """
    if model.regular or model.gaps_random:
        return Observations.regular(y, model.dt), law.model(model.dt).steps
    classes = StepClasses.of(gaps.along(y.shape[1]))
    steps = replace(law, gaps=None).steps(classes.gaps)
    return Observations(y, classes, model.inputs(order)), steps
