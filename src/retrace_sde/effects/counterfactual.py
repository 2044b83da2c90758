"""Paths under a treatment: what a fitted drift says would have happened.

Euler's steps `x' = x + Θ_j φ(x, u) Δt (+ noise)`. Without noise the path is each subject's expected one up to the
drift's curvature times the noise's variance (exact for linear drifts).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.process.drift import Drift


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """Expected paths (n, steps + 1, d) under a treatment, and pointwise prediction bands of a `level`.

    The bands hold the process itself: its noise, the parameters', the subjects' and the order's uncertainty.
    """

    times: Array
    mean: Array
    lower: Array
    upper: Array
    level: float


def walk(
    drift: Drift,
    coefficients: Array,
    start: Array,
    treatment: Array | None,
    dt: float,
    steps: int,
    noise: Array | None = None,
    rng: np.random.Generator | None = None,
) -> Iterator[Array]:
    """States (n, d) at 0, Δt, …; coefficients (n, d, p), treatment (n or 1, steps, k).

    `noise` is a factor G of H = G Gᵀ; None: the path without noise.
    """
    x = drift.admit(np.array(start, dtype=float))
    yield x
    for t in range(steps):
        u = None
        if treatment is not None:
            u = np.broadcast_to(treatment[:, t], (len(x), treatment.shape[2]))
        phi = drift.features(x, u)
        x = x + dt * (coefficients @ phi[:, :, None])[:, :, 0]
        if noise is not None and rng is not None:
            x = x + np.sqrt(dt) * rng.standard_normal(x.shape) @ noise.T
        x = drift.admit(x)
        yield x


def sigma_points(mean: Array, covariance: Array) -> Iterator[tuple[float, Array]]:
    """Weights and points (n, d, s) whose averages are means over N(mean, covariance) up to third order."""
    n, d, s = mean.shape
    k = d * s
    if k == 0 or not covariance.any():
        yield 1.0, mean
        return
    factor = np.linalg.cholesky(covariance) * np.sqrt(k)
    for j in range(k):
        for sign in (1.0, -1.0):
            yield 1 / (2 * k), mean + sign * factor[:, :, j].reshape(n, d, s)
