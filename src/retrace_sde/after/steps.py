"""The residuals of the steps along the order found, in units in which they should be white noise.

Between observed states the residual of a step is `e_i = W (x_{i+1} − x_i − Θ φ_i Δt_i) / √(Δt_i/Δt)`, `W H Δt Wᵀ = I`. Behind noise
or with values missing it is the innovation of the Kalman filter, whitened on what was observed: given the right
model both are independent standard Gaussians, at every position, in every variable and trajectory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.evidence.candidates.prediction import least_squares
from retrace_sde.fit.statespace.model import StateSpace
from retrace_sde.fit.statespace.observations import StepClasses
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


def steps_of(model: Model, found: Fit, levels: Array | None = None) -> Steps:
    """The steps of a fit; of some trajectories, evenly spaced, where the panel is large. `levels` (n, d): random intercepts removed."""
    steps = _steps(model, found)
    return steps if levels is None else replace(steps, levels=levels[steps.rows])


def looked(shape: tuple[int, int, int]) -> Indices:
    """The trajectories of a panel that the residual tests use."""
    n, T, d = shape
    telling = -(-STEPS_PER_COEFFICIENT * 2 * d // (T - 1))
    return evenly(n, min(n, max(MIN_RESIDUAL_TRAJECTORIES, RESIDUAL_SAMPLE // (T * d), telling)))


def _steps(model: Model, found: Fit) -> Steps:
    T, rows = model.data.shape[1], looked(model.data.shape)
    size = len(rows)
    order = found.ordering.take(rows).index
    data = model.data.some(size)
    x = to_numpy(in_order(data.values, order))
    inside = data.lengths.mask
    linear = is_linear(model.drift)
    if model.states_hidden:
        y = np.where(inside[:, :, None], x, np.nan)
        across = steps_across(model.some(size), found.law, order, found.gaps.take(rows))
        innovations = filtered(y, found.law.model(model.dt), across).innovations[:, 1:]
        return Steps(rows, y, innovations, None, None, model.dt, True, linear)
    gaps = found.gaps.take(rows).rows(len(x), T)
    root = np.sqrt(gaps)[:, :, None]
    u = None if data.covariates is None else to_numpy(in_order(data.covariates, order))[:, :-1]
    live = np.where(inside[:, 1:, None], 1.0, np.nan)
    response = np.diff(x, axis=1) / root * live
    regressors = to_numpy(model.drift.features(x[:, :-1], u)) * root * live
    x = np.where(inside[:, :, None], x, np.nan)
    residuals = _whitened(response, regressors)
    regular = bool(np.ptp(gaps) <= 1e-9 * gaps.max()) and not data.lengths.ragged
    return Steps(rows, x, residuals, response, regressors, model.dt, regular, linear)


def _whitened(y: Array, z: Array) -> Array:
    """Least squares residuals with unit covariance, NaN where there is no step."""
    there = ~np.isnan(y[:, :, 0])
    found = np.full(y.shape, np.nan)
    e = y[there] - z[there] @ least_squares(z[there], y[there])
    S = e.T @ e / max(len(e) - z.shape[2], 1)
    lower = np.linalg.cholesky(S + 1e-12 * np.diag(np.diag(S)))
    found[there] = np.linalg.solve(lower, e.T).T
    return found


@dataclass(frozen=True, eq=False)
class Filtered:
    """What was known of each state from what had been observed by then: means (n, T, d), covariances (n, T, d, d).

    `innovations` (n, T, d) are whitened, NaN where nothing was observed. Trajectories that share their missing entries
    share covariances.
    """

    means: Array
    covariances: Array
    innovations: Array


class Across(NamedTuple):
    """Steps that differ: F and Q (K, d, d) of each class of gap, shifts (n, T − 1, d), and the classes (n, T − 1)."""

    matrix: Array
    shift: Array
    covariance: Array
    classes: Indices


def steps_across(model: Any, law: Any, order: Indices, gaps: Gaps) -> Across | None:
    """The steps of a law across gaps and under inputs, along an order; None where all are the same, or gaps are drawn."""
    if not model.states_hidden or model.regular or model.gaps_random:
        return None
    n, T, _ = model.data.shape
    classes = StepClasses.of(gaps.along(T))
    steps = replace(law, gaps=None).steps(classes.gaps)
    index, v = np.broadcast_to(classes.index, (n, T - 1)), model.inputs(order)
    v = np.ones((n, T, steps.inputs.shape[2])) if v is None else v
    shift = np.einsum("ntij,ntj->nti", steps.inputs[index], v[:, :-1])
    return Across(steps.matrix, shift, steps.covariance, index)


def filtered(y: Array, model: StateSpace, across: Across | None = None) -> Filtered:
    """The Kalman filter on y (n, T, d), NaN where missing; one recursion for each pattern of missing entries and gaps."""
    n, T, d = y.shape
    if across is None:
        step = model.transition
        shift = np.broadcast_to(step.shift, (n, T - 1, d))
        index = np.zeros((n, T - 1), dtype=np.intp)
        across = Across(step.matrix[None], shift, step.covariance[None], index)
    seen = ~np.isnan(y)
    means, covariances = np.empty((n, T, d)), np.empty((n, T, d, d))
    innovations = np.full((n, T, d), np.nan)
    kinds = np.concatenate([np.packbits(seen.reshape(n, -1), axis=1), across.classes], axis=1)
    _, first, pattern = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
    pattern = pattern.reshape(n)
    for g, example in enumerate(first):
        rows = np.flatnonzero(pattern == g)
        m = np.tile(model.initial.mean, (len(rows), 1))
        P = model.initial.covariance
        for t in range(T):
            if t:
                k = across.classes[example, t - 1]
                F, Q = across.matrix[k], across.covariance[k]
                m, P = m @ F.T + across.shift[rows, t - 1], F @ P @ F.T + Q
            o = np.flatnonzero(seen[example, t])
            if len(o):
                lower = np.linalg.cholesky(P[np.ix_(o, o)] + model.noise[np.ix_(o, o)])
                white = np.linalg.solve(lower, (y[rows, t][:, o] - m[:, o]).T)
                gain = np.linalg.solve(lower, P[o])
                m, P = m + (gain.T @ white).T, P - gain.T @ gain
                innovations[rows[:, None], t, o] = white.T
            means[rows, t], covariances[rows, t] = m, (P + P.T) / 2
    return Filtered(means, covariances, innovations)
