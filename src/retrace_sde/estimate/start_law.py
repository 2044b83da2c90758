"""The law of the first observation, p₀: a free Gaussian, without which there is no direction of time.

The forward and the backward fit condition on different first slices; leaving p₀ out compares
likelihoods of different data and is confidently wrong.

A free covariance needs n ≫ d. It is shrunk, `(1 − ρ) S + ρ m P`, towards a multiple of H or of the variables'
own variances, and (ρ, P) are those under which the trajectories best predict one another (leave-one-out). A fixed
rule will not do: a little shrinkage towards the wrong shape outweighs the evidence on the direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.data.blocks import Array
from retrace_sde.estimate.euler import Euler
from retrace_sde.process.sde import Gaussian

START_FLOOR = 1e-2
"""Variance, in units of H Δt, added to every slice's spread: a common start has none of its own."""

ROUNDING = 1e-12
"""Relative accuracy of a covariance matrix, below which its eigenvalues mean nothing."""

SHRINKAGES = (0.0, 0.01, 0.1, 0.4, 1.0)
"""The values of ρ that are tried."""


@dataclass(frozen=True, eq=False)
class _Shrunk:
    """For each of k slices the best shrinkage: leave-one-out densities (k, n) and the law's covariance."""

    log_densities: Array
    covariance: Array


def _shrink(states: Array, model: Euler, variances: Array) -> _Shrunk:
    """Try every target and every ρ, and keep for each slice what predicts left-out trajectories best."""
    k, n, d = states.shape
    noise = model.diffusion * model.dt
    z = states - states.mean(axis=1, keepdims=True)
    S = z.transpose(0, 2, 1) @ z / n
    # Grown data have a spread of 10⁷ in one direction, beside which others are lost to rounding.
    lost = ROUNDING * np.diagonal(S, axis1=1, axis2=2)[:, :, None] * np.eye(d)
    best = np.full((k, n), -np.inf)
    covariance = np.zeros((k, d, d))
    for P in (noise, np.diag(variances)):
        level = np.trace(np.linalg.solve(P, S), axis1=1, axis2=2) / d
        for rho in SHRINKAGES:
            if rho == 0 and n <= d:  # singular, but for the floor
                continue
            # Leaving trajectory j out of mean and covariance is a rank-one change of M: M − c z zᵀ.
            keep = (1 - rho) * n / (n - 1)
            rest = rho * level[:, None, None] * P + START_FLOOR * noise + lost
            lower = np.linalg.cholesky(keep * S + rest)
            white = np.linalg.solve(lower, z.transpose(0, 2, 1))
            q = (white**2).sum(axis=1)
            left = 1 - keep / (n - 1) * q
            possible = left.min(axis=1) > 1e-9  # not so where n ≤ d and nothing is shrunk
            left = np.where(possible[:, None], left, 1.0)
            log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)[:, None]
            density = -0.5 * ((n / (n - 1)) ** 2 * q / left + log_det + np.log(left))
            wins = possible & (density.sum(axis=1) > best.sum(axis=1))
            best[wins] = density[wins]
            covariance[wins] = ((1 - rho) * S + rest)[wins]
    return _Shrunk(best - d * np.log(2 * np.pi) / 2, covariance)


def start_log_densities(states: Array, model: Euler, variances: Array) -> Array:
    """`log p₀` of each trajectory at each of k slices: states (k, n, d) to densities (k, n).

    Each trajectory is judged by the Gaussian fitted to the *others*. Judged by a fit to itself a small
    panel would find any slice a perfect start: with n ≤ d all its points lie at one Mahalanobis distance.
    A common start would have infinite density; `START_FLOOR` bounds it. `variances` (d,) are the
    variables' over the whole panel.
    """
    k, n, _ = states.shape
    return np.zeros((k, n)) if n < 2 else _shrink(states, model, variances).log_densities


def start_law(states: Array, model: Euler, variances: Array) -> Gaussian:
    """p₀ fitted to the first states (n, d), for simulating from the fit and for held-out data."""
    if len(states) < 2:
        return Gaussian(states.mean(axis=0), START_FLOOR * model.diffusion * model.dt)
    return Gaussian(states.mean(axis=0), _shrink(states[None], model, variances).covariance[0])


def is_point(states: Array, model: Euler) -> bool:
    """The states (n, d) have less spread than the floor: one state, common to all trajectories."""
    z = (states - states.mean(axis=0)) @ model.whitening.T
    return len(states) > 1 and bool((z**2).mean() < START_FLOOR)
