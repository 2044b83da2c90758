"""Euler's transition, `x' | x ~ N(x + Θ φ(x, u) Δt, H Δt)`, and the log-likelihood of a panel along an order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import array_api_compat
import numpy as np
from scipy.linalg import cholesky, solve_triangular

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, like, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift, is_linear


@dataclass(frozen=True, eq=False)
class Euler:
    """Euler's transition: `x' | x ~ N(x + Θ φ(x, u) Δt, H Δt)`."""

    drift: Drift
    coefficients: Array
    diffusion: Array
    dt: float

    @cached_property
    def whitening(self) -> Array:
        """W (d, d) with `W H Δt Wᵀ = I`."""
        L = cholesky(self.diffusion * self.dt, lower=True)
        return solve_triangular(L, np.eye(len(L)), lower=True)

    def predict(self, x: Any, u: Any | None) -> Any:
        """The mean of the next state, after dt."""
        phi = self.drift.features(x, u)
        return x + phi @ like(self.coefficients.T * self.dt, phi)

    def predict_across(self, x: Any, u: Any | None, gaps: Any) -> Any:
        """The same after gaps that multiply steps of the shape of x."""
        phi = self.drift.features(x, u)
        return x + (phi @ like(self.coefficients.T, phi)) * gaps

    def whitened_prediction(self, x: Any, u: Any | None, W: Array) -> Any:
        """`W E x'`, for a linear drift one product: `x (W F)ᵀ + W c Δt`."""
        if u is not None or not is_linear(self.drift):
            return self.predict(x, u) @ like(W.T, x)
        d = x.shape[-1]
        F = np.eye(d) + self.coefficients[:, :d] * self.dt
        found = x @ like((W @ F).T, x)
        if self.coefficients.shape[1] > d:
            found += like(W @ self.coefficients[:, d] * self.dt, x)
        return found


def euler_paths(
    step: Euler, x: Array, u: Array | None, gaps: Array, rng: np.random.Generator
) -> Array:
    """Later states (m, S, d) of paths from x (m, d) across gaps (m or 1, S), under covariates u (m, S, k)."""
    root, path = np.linalg.cholesky(step.diffusion), []
    for t, g in enumerate(gaps.T[:, :, None]):
        noise = rng.standard_normal(x.shape) @ root.T * np.sqrt(g)
        push = to_numpy(step.drift.features(x, None if u is None else u[:, t]))
        x = step.drift.admit(x + push @ step.coefficients.T * g + noise)
        path.append(x)
    return np.stack(path, axis=1)


def step_log_likelihoods(
    data: Data, order: Indices, model: Euler, gaps: Gaps | None = None
) -> Array:
    """`Σ_i log p(x_{i+1} | x_i)` for each trajectory along `order` (Eq. log_likelihood), shape (n,).

    `gaps`: times between neighbours; by default all are the model's dt.
    """
    W, gaps = model.whitening, gaps or Gaps.of(model.dt)
    constant = density_constant(W)
    squares = data.each_piece(partial(_squared_residuals, model=model, W=W), order, gaps)
    steps = data.observed - 1
    total = -0.5 * squares - steps * constant
    if gaps.equal:
        return total
    longer = np.log(gaps.rows(*data.shape[:2]) / model.dt)
    there = data.lengths.steps.mask
    return total - 0.5 * len(W) * np.where(there, longer, 0.0).sum(axis=1)


def density_constant(W: Array) -> float:
    """`½ log |2π H Δt|` of a step, for W with `W H Δt Wᵀ = I`."""
    return float(len(W) * np.log(2 * np.pi) / 2 - np.log(np.diag(W)).sum())


def _squared_residuals(piece: Data, order: Indices, gaps: Gaps, *, model: Euler, W: Array) -> Array:
    """`Σ_i |W (x_{i+1} − E x_{i+1})|² Δt/Δt_i` of each trajectory of a piece."""
    x, u = piece.block(slice(None), order)
    xp = array_api_compat.array_namespace(x)
    now = x[:, :-1, :], None if u is None else u[:, :-1, :]
    if gaps.equal:
        white = (x[:, 1:, :] - model.predict(*now)) @ like(W.T, x)
    else:
        step = like(np.asarray(gaps.factor), x)
        white = (x[:, 1:, :] - model.predict_across(*now, step)) @ like(W.T, x)
        white = white * (model.dt / step) ** 0.5
    live = piece.live
    return to_numpy(xp.sum(white * white if live is None else white * white * live, axis=(1, 2)))
