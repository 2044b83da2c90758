"""Gaps that are not known, each trajectory's own: a law of gaps, and the gaps summed out of every step.

    g ~ Gamma(κ), mean dt:      p(x' | x) = Σ_k w_k(κ) N(x'; F_k x + S_k v, Q_k)

on a fixed table of gaps g_k, evenly spaced in log g. Steps stay independent given the order, so that orders are judged by
pairs as before. A single gap has only the d numbers of its step behind it: its relative error is √(2/d) even with all
else known, so that gaps are never read off, only averaged over. The mean gap sets the unit of time.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, logsumexp

from retrace_sde.fit.statespace.transitions import Transitions
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import deferred

optimize = deferred("scipy.optimize")

RATIOS = np.exp(np.linspace(np.log(0.03), np.log(6.0), 24))
"""The table of gaps in units of their mean: 23 per cent apart, where one gap is known to 35 per cent with 16 variables."""

SHAPES = (0.5, 30.0)
"""The shape of the law of gaps lies between these: more even ones the table cannot tell from equal ones."""


def log_weights(shape: float) -> Array:
    """log w_k(κ): the gamma density of mean 1 in log g, on the table."""
    log_density = shape * np.log(shape) - gammaln(shape) + shape * np.log(RATIOS) - shape * RATIOS
    return log_density - logsumexp(log_density)


def best_shape(counts: Array) -> float:
    """The shape under which gaps of the table, found `counts` (K,) times, are most likely."""
    found = optimize.minimize_scalar(
        lambda s: -float(counts @ log_weights(np.exp(s))),
        bounds=tuple(np.log(SHAPES)),
        method="bounded",
    )
    return float(np.exp(found.x))


def pair_log_densities(steps: Transitions, x: Array, v: Array, after: Array) -> Array:
    """`log N(x'_b; F_k x_a + S_k v_a, Q_k)`, (…, A, B, K), of states x (…, A, d) and later ones `after` (…, B, d)."""
    F, S, Q = steps
    d = F.shape[1]
    lower = np.linalg.cholesky(Q)
    W = np.linalg.inv(lower)
    log_det = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    found = np.empty((*x.shape[:-1], after.shape[-2], len(F)))
    for k in range(len(F)):
        source = (x @ F[k].T + v @ S[k].T) @ W[k].T
        target = after @ W[k].T
        gap = target[..., None, :, :] - source[..., :, None, :]
        found[..., k] = -0.5 * (gap**2).sum(axis=-1) - log_det[k]
    return found - d * np.log(2 * np.pi) / 2


def step_log_densities(steps: Transitions, x: Array, v: Array) -> Array:
    """The same of neighbours along paths x (n, T, d): (n, T − 1, K)."""
    one = pair_log_densities(steps, x[:, :-1, None], v[:, :-1, None], x[:, 1:, None])
    return one[:, :, 0, 0]
