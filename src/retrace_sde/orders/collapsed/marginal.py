"""The evidence of one shared order, parameters integrated out in closed form.

Along an order each step is a regression of the increment on the features of the state,

    Δ = Θ φ(x) + e,   e ~ N(0, Q),   Q ~ IW(ν, S₀),   Θ | Q ~ MN(0, Q, K₀⁻¹),

and the first states are `x₀ ~ N(m, Σ)` with a normal-inverse-Wishart prior. Both integrals are known (Rowe 2003, ch. 8;
Gelman et al., *Bayesian Data Analysis*, ch. 3):

    log p(X | o) = log t(x₀) − d/2 log |K| − (ν + N)/2 log |S₀ + Σ Δ Δᵀ − D K⁻¹ Dᵀ| + const,
    K = K₀ + Σ φ φᵀ,   D = Σ Δ φᵀ.

The sums are over steps, so that moments of every pair of slices give the evidence of every order without another pass over
the data; K and x₀ depend on the last and the first slice alone.

The prior is weak and has the units of the data (unit information; Kass and Wasserman 1995): K₀ is one observation of φ, on average over
all slices, and S₀ a hundredth of the pooled covariance with d + 1 degrees of freedom; m and Σ are known as from one
observation about the pooled mean. Any affine change of variables leaves the comparison of orders as it is for an affine drift.
Limits: Gaussian steps with one covariance, independent trajectories, equal gaps.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import multigammaln

from retrace_sde.io.arrays import Array, Indices

PRIOR_NOISE_SHARE = 0.01
"""Share of the pooled variance that the prior's scale of a step is: small beside the n (T − 1) steps that are summed."""

PRIOR_OBSERVATIONS = 1.0
"""Observations that the prior counts for."""


class StepPrior(NamedTuple):
    """Of the coefficients of a step, with mean 0, and its covariance: `precision` K₀ (p, p), `freedom` ν, `scale` S₀ (d, d)."""

    precision: Array
    freedom: float
    scale: Array


class StartPrior(NamedTuple):
    """Of the first states: their mean is known as from `weight` observations, their covariance is inverse-Wishart."""

    mean: Array
    weight: float
    freedom: float
    scale: Array


def default_priors(states: Array, features: Array) -> tuple[StepPrior, StartPrior]:
    """Priors of unit information from all slices together, which no order changes: states (T, n, d), features (T, n, p)."""
    d, p = states.shape[-1], features.shape[-1]
    x, phi = states.reshape(-1, d), features.reshape(-1, p)
    mean = x.mean(axis=0)
    z = x - mean
    pooled = z.T @ z / len(z)
    second = phi.T @ phi / len(phi)
    step = StepPrior(PRIOR_OBSERVATIONS * second, d + 1.0, PRIOR_NOISE_SHARE * pooled)
    return step, StartPrior(mean, PRIOR_OBSERVATIONS, d + 2.0, pooled)


class Conjugate(NamedTuple):
    """The posterior of the parameters along an order: Θ | Q ~ MN(`mean`, Q, `precision`⁻¹), Q ~ IW(`freedom`, `scale`)."""

    mean: Array
    precision: Array
    freedom: float
    scale: Array

    def draw(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Θ (d, p), of increments over one step, and Q."""
        d, p = self.mean.shape
        root = np.linalg.cholesky(np.linalg.inv(self.scale))
        low = np.diag(np.sqrt(rng.chisquare(self.freedom - np.arange(d))))
        low[np.tril_indices(d, -1)] = rng.standard_normal(d * (d - 1) // 2)
        half = np.linalg.inv(root @ low).T
        noise = rng.standard_normal((d, p))
        spread = np.linalg.inv(np.linalg.cholesky(self.precision))
        return self.mean + half @ noise @ spread, half @ half.T


def step_posterior(increments: Array, features: Array, prior: StepPrior) -> Conjugate:
    """Of the coefficients and the covariance of steps (N, d) on features (N, p)."""
    K, D = prior.precision + features.T @ features, increments.T @ features
    mean = np.asarray(np.linalg.solve(K, D.T).T, dtype=np.float64)
    scale = prior.scale + increments.T @ increments - mean @ D.T
    return Conjugate(mean, K, prior.freedom + len(increments), (scale + scale.T) / 2)


def start_posterior(first: Array, prior: StartPrior) -> Conjugate:
    """Of the mean, as the only coefficient (d, 1), and the covariance of first states (n, d)."""
    n, weight = len(first), prior.weight + len(first)
    mean = first.mean(axis=0)
    z, away = first - mean, mean - prior.mean
    scale = prior.scale + z.T @ z + prior.weight * n / weight * np.outer(away, away)
    centre = (prior.weight * prior.mean + n * mean) / weight
    return Conjugate(centre[:, None], np.array([[weight]]), prior.freedom + n, scale)


class OrderEvidence(NamedTuple):
    """Moments of every pair of slices, and what they say of orders.

    `pairs` (T + 1, T + 1, d (p + d)) holds `Σ Δ φᵀ` and `Σ Δ Δᵀ` of the step from a to b; node T, before the first and after the last
    slice, has none. `starts` (T,): log evidence of each slice as the first; `roots` (T, p, p): the inverse of K's Cholesky factor where it is the last, and
    `volumes` −d/2 log |K|.
    """

    pairs: Array
    starts: Array
    roots: Array
    volumes: Array
    scale: Array
    freedom: float

    @classmethod
    def of(
        cls,
        states: Array,
        features: Array,
        priors: tuple[StepPrior, StartPrior] | None = None,
    ) -> OrderEvidence:
        """From all slices: states (T, n, d) and features (T, n, p)."""
        T, n, d = states.shape
        p = features.shape[-1]
        step, start = default_priors(states, features) if priors is None else priors
        pairs = np.zeros((T + 1, T + 1, d * (p + d)))
        for a in range(T):
            gap = states - states[a]
            turned = gap.transpose(0, 2, 1)
            pairs[a, :T, : d * p] = (turned @ features[a]).reshape(T, -1)
            pairs[a, :T, d * p :] = (turned @ gap).reshape(T, -1)
        own = features.transpose(0, 2, 1) @ features
        grams = step.precision + own.sum(axis=0) - own
        roots = np.linalg.inv(np.linalg.cholesky(grams))
        volumes = d * np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        first = start_evidence(states, start)
        return cls(pairs, first, roots, volumes, step.scale, step.freedom + n * (T - 1))

    def __call__(self, orders: Indices) -> Array:
        """Log evidence of orders (…, T), up to a constant that is common to all."""
        first, last, d, p = orders[..., 0], orders[..., -1], len(self.scale), self.roots.shape[-1]
        sums = self.pairs[orders[..., :-1], orders[..., 1:]].sum(axis=-2)
        D = sums[..., : d * p].reshape(*sums.shape[:-1], d, p)
        W = D @ self.roots[last].swapaxes(-1, -2)
        S = sums[..., d * p :].reshape(*sums.shape[:-1], d, d) + self.scale
        S -= W @ W.swapaxes(-1, -2)
        return self.starts[first] + self.volumes[last] - self.freedom / 2 * _log_det(S)


def start_evidence(states: Array, prior: StartPrior) -> Array:
    """Log evidence of slices (T, n, d), each n draws of a Gaussian whose mean and covariance are integrated out."""
    _, n, d = states.shape
    mean = states.mean(axis=1)
    z = states - mean[:, None]
    weight, freedom = prior.weight + n, prior.freedom + n
    away = mean - prior.mean
    S = prior.scale + z.transpose(0, 2, 1) @ z
    S = S + prior.weight * n / weight * away[:, :, None] * away[:, None, :]
    constant = (
        _log_gamma(freedom / 2, d)
        - _log_gamma(prior.freedom / 2, d)
        - n * d / 2 * np.log(np.pi)
        + d / 2 * np.log(prior.weight / weight)
        + prior.freedom / 2 * _log_det(prior.scale)
    )
    return constant - freedom / 2 * _log_det(S)


@cache
def _log_gamma(a: float, d: int) -> float:
    """Of the multivariate gamma function; every sweep of a sampler asks for the same."""
    return float(multigammaln(a, d))


def _log_det(S: Array) -> Array:
    """Of positive definite matrices (…, d, d), by elimination of many at once; −∞ would be a likelihood without bound, so it is floored."""
    S = S.copy()
    d, total = S.shape[-1], np.zeros(S.shape[:-2])
    for j in range(d):
        pivot = np.maximum(S[..., j, j], np.finfo(float).tiny)
        total += np.log(pivot)
        if j < d - 1:
            column = S[..., j + 1 :, j]
            S[..., j + 1 :, j + 1 :] -= (
                column[..., :, None] * (column / pivot[..., None])[..., None, :]
            )
    return total
