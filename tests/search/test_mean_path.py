"""Trajectories that share shocks: the split into deviations and mean path against one dense Gaussian."""

from __future__ import annotations

import numpy as np
from scipy import stats

from retrace_sde.search.mean_path import MeanPath, PathSteps, slice_effects, without_slice_effects

A = np.array([[-1.0, 0.6], [-0.4, -0.7]])
H = np.array([[1.0, 0.2], [0.2, 0.5]])
U = np.array([[0.6, -0.1], [-0.1, 0.9]])
C = np.array([0.4, -0.3])
DT = 0.1


def panel(n, T, seed=0, first=1.0):
    rng = np.random.default_rng(seed)
    F, x = np.eye(2) + A * DT, [first * rng.standard_normal((n, 2))]
    for _ in range(T - 1):
        own = rng.multivariate_normal(np.zeros(2), H * DT, n)
        shared = rng.multivariate_normal(np.zeros(2), U * DT)
        x.append(x[-1] @ F.T + C * DT + own + shared)
    return np.stack(x, axis=1)


def gaussian_steps(x, F, c, Q):
    """log p of x (n, T, d) given the first slice, independent trajectories."""
    e = x[:, 1:] - x[:, :-1] @ F.T - c
    return stats.multivariate_normal(np.zeros(len(Q)), Q).logpdf(e).sum()


def test_the_split_has_the_density_of_the_whole():
    """n trajectories with common shocks, as one Gaussian with covariance `I ⊗ H + 1 1ᵀ ⊗ U`, given the first slice."""
    n, T = 5, 6
    x, F = panel(n, T), np.eye(2) + A * DT
    joint = np.kron(np.eye(n), H * DT) + np.kron(np.ones((n, n)), U * DT)
    e = x[:, 1:] - x[:, :-1] @ F.T - C * DT
    whole = sum(
        stats.multivariate_normal(np.zeros(2 * n), joint).logpdf(e[:, t].ravel())
        for t in range(T - 1)
    )

    deviations = without_slice_effects(x)
    k = n / (n - 1)
    # n deviations, each with the law of a trajectory, count for n − 1 of them.
    apart = gaussian_steps(deviations, F, 0.0, H * DT) * (n - 1) / n
    m = slice_effects(x)
    of_mean = gaussian_steps(np.sqrt(n) * m[None], F, np.sqrt(n) * C * DT, (H + n * U) * DT)
    np.testing.assert_allclose(apart + of_mean, whole, rtol=1e-10)
    np.testing.assert_allclose((deviations**2).sum() / k, ((x - m) ** 2).sum(), rtol=1e-12)


def test_the_mean_path_knows_its_offset_and_the_common_shocks():
    x = panel(20, 4000, seed=1)
    order = np.arange(4000)
    path = MeanPath(slice_effects(x), 20)
    found = path.along(order, PathSteps.of(A, H, np.full(3999, DT), "euler"), final=True)
    np.testing.assert_allclose(found.common(H, 20), U, atol=0.08)
    np.testing.assert_allclose(found.offset, C, atol=4 * np.sqrt(np.diag(found.error)).max())
    # its log-likelihood is the density of the means under the fitted V
    V = (H / 20 + found.common(H, 20)) * DT
    direct = gaussian_steps(path.means[None], np.eye(2) + A * DT, found.offset * DT, V)
    np.testing.assert_allclose(found.log_likelihood, direct, rtol=1e-8)


def test_a_mean_path_costs_the_same_in_either_direction():
    x = panel(10, 12)
    path, order = MeanPath(slice_effects(x), 10), np.random.default_rng(0).permutation(12)
    Q = H * DT
    np.testing.assert_allclose(path.log_likelihood(order, Q), path.log_likelihood(order[::-1], Q))
    C, back = path.costs(order, Q), path.costs(order[::-1], Q)
    np.testing.assert_allclose(C, back.T, atol=1e-9)


def test_slice_effects_with_missing_values_are_those_of_the_additive_fit():
    """Against least squares with a dummy for each trajectory and each slice."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((7, 5, 1)) + 3 * rng.standard_normal((7, 1, 1))
    x[rng.random(x.shape) < 0.25] = np.nan
    i, t = np.nonzero(~np.isnan(x[:, :, 0]))
    design = np.c_[np.eye(7)[i], np.eye(5)[t]]
    dense = np.linalg.lstsq(design, x[i, t, 0], rcond=None)[0][7:]
    found = slice_effects(x)[:, 0]
    np.testing.assert_allclose(np.diff(found), np.diff(dense), atol=1e-10)
    np.testing.assert_allclose(np.average(found, weights=np.bincount(t)), np.nanmean(x))


def test_exact_steps_of_the_mean_path_agree_with_small_euler_steps():
    gaps = np.array([0.001, 0.002])
    exact, euler = (PathSteps.of(A, H, gaps, way) for way in ("exact", "euler"))
    for one, two in zip(exact, euler, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-5)
