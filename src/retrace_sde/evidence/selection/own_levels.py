"""Are subjects drawn to levels of their own? One number tests it with far more power than the likelihood ratio of all parameters.

A subject that fluctuates about its level l_j has the intercept `c_j = −A l_j`, and starts near that level: `c_j | x₀` has the slope
`Γ = −A K`, K the regression of levels on first states. Whatever A is, as long as it reverts, levels make `tr Γ` positive, in any
coordinates. So `tr Γ̂` over its standard error, in the regression of steps on (x, 1, x₀), is tested against positive values: one number
instead of the d² + d(d + 1)/2 of Γ and Ω, summed over the order and its reverse, since levels show in both. Over few steps it has a bias
(that of regressions on lagged values, large where mean reversion is slow), so its mean and spread are those of panels simulated from
the fit of subjects who are alike, from the same first states.

Limits: levels that say nothing of first states (subjects that start alike and part) do not show here, only in the likelihood ratio.
Measurement noise shows, as it does in the likelihood ratio.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import in_order, to_numpy
from retrace_sde.process.tails import t_sf
from retrace_sde.search.model import Fit

OWN_LEVELS_P = 0.04
"""p-value at or below which subjects have levels of their own. With what Akaike's penalty chooses, .02 to .05 of panels whose
subjects are alike are given levels (n = 30, T = 16, d = 1 to 3)."""

DRAWS, MIN_DRAWS, SIMULATED_NUMBERS = 99, 19, 2_000_000
"""Panels simulated, the fewest that give a mean and a spread, and the numbers they may hold: fewer trajectories stand for larger panels."""


def own_levels_p(model: Any, fit: Fit) -> float:
    """One-sided p-value of "no subject is drawn to its first state" along an order; 1 where it is not tested.

    Complete trajectories of one length, independent of one another, along one order with equal gaps.
    """
    data = model.data
    n, T, d = data.shape
    plain = data.groups is None and not data.lazy and not data.lengths.ragged
    if not plain or not fit.ordering.shared or not fit.gaps.equal or n <= 2 * d + 2 or T < 4:
        return 1.0
    most = SIMULATED_NUMBERS // (MIN_DRAWS * T * d)
    x = to_numpy(in_order(data.some(min(n, most)).values, fit.order))
    z = float(_both_ways(x[None])[0])
    if not z > 0:
        return 1.0
    draws = min(DRAWS, SIMULATED_NUMBERS // x.size)
    null = _both_ways(_simulated(x, fit, draws))
    width = float(null.std(ddof=1)) * np.sqrt(1 + 1 / draws)
    return float(t_sf((z - float(null.mean())) / width, draws - 1))


def _both_ways(x: Array) -> Array:
    return _trace(x) + _trace(x[:, :, ::-1])


def _simulated(x: Array, fit: Fit, draws: int) -> Array:
    """Panels (draws, n, T, d) of subjects who are alike, from the first states of the data."""
    n, T, d = x.shape
    step, rng = fit.step, np.random.default_rng(0)
    L = np.linalg.cholesky(step.diffusion * step.dt)
    A, c = step.coefficients[:, :d] * step.dt, step.coefficients[:, d] * step.dt
    found = np.empty((draws, n, T, d))
    found[:, :, 0] = x[:, 0]
    for t in range(T - 1):
        last = found[:, :, t]
        found[:, :, t + 1] = last + last @ A.T + c + rng.standard_normal((draws, n, d)) @ L.T
    return found


def _trace(x: Array) -> Array:
    """tr Γ̂ over its standard error, of panels (B, n, T, d)."""
    B, n, T, d = x.shape
    x = x - x.mean(axis=(1, 2), keepdims=True)
    first = np.broadcast_to(x[:, :, :1], x[:, :, 1:].shape)
    psi = np.concatenate([x[:, :, :-1], first, np.ones((B, n, T - 1, 1))], axis=3)
    psi, y = psi.reshape(B, -1, 2 * d + 1), np.diff(x, axis=2).reshape(B, -1, d)
    inverse = np.linalg.pinv(psi.transpose(0, 2, 1) @ psi, hermitian=True)
    theta = inverse @ (psi.transpose(0, 2, 1) @ y)
    e = y - psi @ theta
    H = e.transpose(0, 2, 1) @ e / (n * (T - 1) - 2 * d - 1)
    variance = np.einsum("bij,bij->b", H, inverse[:, d : 2 * d, d : 2 * d])
    found: Array = np.trace(theta[:, d : 2 * d], axis1=1, axis2=2) / np.sqrt(variance)
    return found
