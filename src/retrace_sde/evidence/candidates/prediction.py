"""How well a candidate predicts the next step from the past: what the explanation of correlated residuals compares.

Fits of the next step given the past are on one scale for all candidates, and cheap. They are rough: meant to tell candidates
apart, not to estimate. All see the steps from the second on.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from retrace_sde.io.arrays import Array


class StepRows(Protocol):
    """The steps of some trajectories along an order (`after.steps.Steps`).

    `states` (n, T, d); `response` (n, T − 1, d), Δx/√Δt, and `regressors` (n, T − 1, p), φ √Δt; whitened `residuals`.
    """

    @property
    def states(self) -> Array: ...
    @property
    def residuals(self) -> Array: ...
    @property
    def response(self) -> Array | None: ...
    @property
    def regressors(self) -> Array | None: ...
    @property
    def dt(self) -> float: ...
    @property
    def linear(self) -> bool: ...


class Prediction(NamedTuple):
    """Log-likelihood of the steps from the second on, given the past, and the parameters beyond Markov steps.

    `chance`: the share of a gain that any regressors would bring (after Bartlett). `yields_to`: candidates that are the better
    explanation where they are significant, too.
    """

    log_likelihood: float
    parameters: int
    chance: float
    yields_to: tuple[str, ...] = ()


def rows(steps: StepRows) -> tuple[Array, Array, bool]:
    """Response and regressors, which must be there, and whether the regressors include a constant."""
    y, z = steps.response, steps.regressors
    assert y is not None  # asked of visible states only
    assert z is not None
    return y, z, bool(np.ptp(z, axis=(0, 1)).min() <= 1e-12 * np.abs(z).max())


def markov_prediction(steps: StepRows) -> float:
    """Log-likelihood of the steps from the second on under Markov steps: the baseline."""
    y, z, _ = rows(steps)
    return profile(y[:, 1:], z[:, 1:])[0]


def chance_share(steps: StepRows) -> float:
    """The share of a gain that regressors unrelated to the response would bring."""
    y, z, _ = rows(steps)
    n, S, d = y.shape
    return (z.shape[2] + d) / (n * (S - 1))


def profile(y: Array, z: Array, variances: Array | None = None) -> tuple[float, Array, Array]:
    """Profile log-likelihood of y = B z + ε (n, S, d), B and the residuals; `variances` (S,) scale those of ε."""
    n, S, d = y.shape
    v = np.ones(S) if variances is None else variances
    root = v[None, :, None] ** -0.5
    psi, out = (z * root).reshape(n * S, -1), (y * root).reshape(n * S, d)
    B = least_squares(psi, out).T
    e = out - psi @ B.T
    log_det = np.linalg.slogdet(e.T @ e / len(e))[1]
    return float(-0.5 * (len(e) * log_det + d * n * np.log(v).sum())), B, y - z @ B.T


def least_squares(z: Array, y: Array) -> Array:
    """B with y ≈ z B: by the Gram matrix, ten times as fast as by singular values, which serve where it is singular."""
    scale = np.maximum(np.sqrt((z**2).sum(axis=0)), 1e-300)
    unit = z / scale
    gram = unit.T @ unit
    if np.linalg.eigvalsh(gram)[0] > 1e-10:
        return np.asarray(np.linalg.solve(gram, unit.T @ y) / scale[:, None])
    return np.asarray(np.linalg.lstsq(unit, y, rcond=None)[0] / scale[:, None])
