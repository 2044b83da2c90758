"""Values that are missing, drawn given the rest along an order: the E-step of the mixed model with missing values.

Given the inputs, a drift that is affine in the state makes every step Gaussian,

    x' = F_t x + c_t + w,      F_t = I + Δt Θ_j (φ(e, u_t) − φ(0, u_t)),      c_t = Δt Θ_j φ(0, u_t),      w ~ N(0, H Δt),

so that a subject's missing values are drawn as `fit/missing_cells` says. Subjects' deviations are taken at their posterior means, as they are where
orders are drawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.missing_cells import cells_drawn
from retrace_sde.fit.start_law import start_law
from retrace_sde.fit.subjects import SubjectFit
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.process.drift import Drift, Independent, Polynomial, driven, has_state_space
from retrace_sde.search.models.euler import EulerModel


def affine_in_state(drift: Drift) -> bool:
    """φ(x, u) is affine in x for every u: missing values can be integrated out."""
    whole = drift.whole if isinstance(drift, Independent) else drift
    return has_state_space(driven(whole)) or (isinstance(whole, Polynomial) and whole.degree == 1)


def interpolated(values: Array, order: Indices) -> Array:
    """Values (n, T, d) without NaN, as a start: on the line between neighbours along an order, else the mean of all."""
    n, T, d = values.shape
    found, means, orders = (
        values.copy(),
        np.nanmean(values, axis=(0, 1)),
        np.broadcast_to(order, (n, T)),
    )
    for j in np.flatnonzero(np.isnan(values).any(axis=(1, 2))):
        path = orders[j]
        for k in range(d):
            along = values[j, path, k]
            known = np.flatnonzero(~np.isnan(along))
            line = np.interp(np.arange(T), known, along[known]) if len(known) else means[k]
            found[j, path, k] = np.where(np.isnan(along), line, along)
    return found


def with_missing_drawn(
    problem: EulerModel, fit: SubjectFit, order: Indices, missing: Mask, rng: np.random.Generator
) -> EulerModel:
    """The problem with its missing values (n, T, d) drawn anew, given all others and an order, (T,) or (n, T)."""
    data, dt = problem.data, problem.dt
    n, T, _ = data.shape
    values = np.array(to_numpy(data.values), dtype=float)
    orders = np.broadcast_to(order, (n, T))
    F, c = _steps(data, fit, problem.drift, dt)
    model = Euler(problem.drift, fit.coefficients, fit.diffusion, dt)
    start = start_law(data.states(order), model, problem.variances)
    precisions = _inverse(start.covariance), _inverse(fit.diffusion * dt)
    for j in np.flatnonzero(missing.any(axis=(1, 2))):
        path = orders[j, : data.observed[j]]
        gone = missing[j, path]
        if gone.any():
            steps = F[j, path[:-1]], c[j, path[:-1]]
            values[j, path] = cells_drawn(
                values[j, path], gone, *steps, start.mean, precisions, rng
            )
    return replace(problem, data=replace(data, values=values))


def _inverse(covariance: Array) -> Array:
    return np.asarray(np.linalg.inv(covariance), dtype=np.float64)


def _steps(data: Data, fit: SubjectFit, drift: Drift, dt: float) -> tuple[Array, Array]:
    """F (n, T, d, d) and c (n, T, d) of the step that begins at each observation."""
    n, T, d = data.shape
    u = None if data.covariates is None else to_numpy(data.covariates)
    own = dt * fit.subject_coefficients.transpose(0, 2, 1)

    def moved(x: Array) -> Any:
        return drift.features(np.broadcast_to(x, (n, T, d)).copy(), u) @ own

    c = moved(np.zeros(d))
    F = np.stack([e + moved(e) - c for e in np.eye(d)], axis=-1)
    return F, c
