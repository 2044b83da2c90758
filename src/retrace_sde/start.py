"""The law of the first observation, p₀: a free Gaussian, without which there is no direction of time.

The forward and the backward fit condition on different first slices; leaving p₀ out compares
likelihoods of different data and is confidently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.blocks import Array, Data, Order
from retrace_sde.costs import Model
from retrace_sde.sde import Gaussian

START_FLOOR = 1e-2
"""Variance, in units of H Δt, added to every slice's spread: a common start has none of its own."""


@dataclass(frozen=True, eq=False)
class _Shrunk:
    """Slices in the metric of H Δt: centred states z (k, n, d), covariance S, shrinkage ρ, mean variance."""

    z: Array
    covariance: Array
    rho: Array
    level: Array


def _shrunk(states: Array, W: Array) -> _Shrunk:
    """Ledoit–Wolf shrinkage of each slice's covariance towards a multiple of H."""
    z = (states - states.mean(axis=1, keepdims=True)) @ W.T
    _, n, d = z.shape
    S = z.transpose(0, 2, 1) @ z / n
    level = np.trace(S, axis1=1, axis2=2) / d
    away = ((S - level[:, None, None] * np.eye(d)) ** 2).sum(axis=(1, 2))
    noise = (((z**2).sum(axis=2) ** 2).mean(axis=1) - (S**2).sum(axis=(1, 2))) / n
    rho = np.divide(np.minimum(noise, away), away, out=np.ones_like(away), where=away > 0)
    if n < 3:  # two points leave one, which has no spread of its own: only the level can be judged
        rho[:] = 1.0
    return _Shrunk(z, S, rho, level)


def start_log_densities(data: Data, slices: Order, model: Model) -> Array:
    """`log p₀` of each trajectory at each of the given slices, shape (len(slices), n).

    Each trajectory is judged by the Gaussian fitted to the *others* (leave-one-out). Judged by a fit to
    itself a small panel would find any slice a perfect start: with n ≤ d all its points lie at one
    Mahalanobis distance. A common start would have infinite density; `START_FLOOR` bounds it.
    """
    n, _, d = data.shape
    if n < 2:
        return np.zeros((len(slices), n))
    W = model.whitening
    fit = _shrunk(data.slices(slices), W)
    # Leaving trajectory j out of mean and covariance is a rank-one change of M: M − c z zᵀ.
    keep = (1 - fit.rho) * n / (n - 1)
    variance = fit.rho * fit.level + START_FLOOR
    M = keep[:, None, None] * fit.covariance + variance[:, None, None] * np.eye(d)
    lower = np.linalg.cholesky(M)
    white = np.linalg.solve(lower, fit.z.transpose(0, 2, 1))
    q = (white**2).sum(axis=1)
    left = 1 - keep[:, None] / (n - 1) * q
    log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)[:, None] + np.log(left)
    square = (n / (n - 1)) ** 2 * q / left
    density: Array = -0.5 * (square + log_det + d * np.log(2 * np.pi)) + np.log(np.diag(W)).sum()
    return density


def start_law(data: Data, first: int, model: Model) -> Gaussian:
    """p₀ fitted to one slice of all trajectories, for simulating from the fit and for held-out data."""
    W = model.whitening
    states = data.slices(np.array([first]))
    fit = _shrunk(states, W)
    d = len(W)
    M = (1 - fit.rho[0]) * fit.covariance[0] + (fit.rho[0] * fit.level[0] + START_FLOOR) * np.eye(d)
    back = np.linalg.inv(W)
    return Gaussian(states[0].mean(axis=0), back @ M @ back.T)


def is_point(data: Data, slice_index: int, model: Model) -> bool:
    """The slice has less spread than the floor: one state, common to all trajectories."""
    if data.shape[0] < 2:
        return False
    fit = _shrunk(data.slices(np.array([slice_index])), model.whitening)
    return bool(fit.level[0] < START_FLOOR)
