"""Levels of subjects' own against a dense Gaussian of each subject, by perturbation, and on data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.moments import moments
from retrace_sde.fit.random_intercepts import LevelFit, LevelRows, fit_levels, level_influences
from retrace_sde.fit.regression import ErrorKind, mle
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Affine

A = np.array([[-1.0, 0.5], [-0.3, -1.2]])


def paths(
    seed: int, n: int = 60, T: int = 12, *, sd: float = 1.0, dt: Array | float = 0.2
) -> Array:
    """Euler's paths whose intercepts lean on their first states."""
    rng = np.random.default_rng(seed)
    x = 2 + rng.normal(size=(n, 2))
    c = 0.3 * x @ np.array([[1.0, 0.2], [0.0, 1.0]]) + sd * rng.normal(size=(n, 2))
    path, gaps = [x], np.broadcast_to(dt, (n, T - 1))
    for g in gaps.T[:, :, None]:
        x = x + g * (x @ A.T + c) + 0.5 * np.sqrt(g) * rng.normal(size=(n, 2))
        path.append(x)
    return np.stack(path, axis=1)


def along(data: Data) -> Indices:
    return np.arange(data.shape[1])


def levels(data: Data, dt: float | Array = 0.2) -> LevelFit:
    fit = fit_levels(data, along(data), dt)
    assert fit is not None
    return fit


def dense(x: Array, gaps: Array, fit: LevelFit) -> float:
    """One subject's log-likelihood given its first state: increments jointly Gaussian, step by step and level."""
    d = x.shape[1]
    c = fit.mean + fit.slope @ x[0]
    e = (np.diff(x, axis=0) - (x[:-1] @ fit.drift.T + c) * gaps[:, None]).ravel()
    covariance = np.kron(np.diag(gaps), fit.diffusion) + np.kron(np.outer(gaps, gaps), fit.between)
    return float(multivariate_normal(np.zeros(len(gaps) * d), covariance).logpdf(e))


@pytest.mark.parametrize("gaps", ["regular", "common", "own", "lengths"])
def test_log_likelihoods_are_those_of_a_dense_gaussian(gaps: str) -> None:
    rng = np.random.default_rng(0)
    n, T = 15, 9
    dt: Array | float = 0.2
    if gaps == "common":
        dt = rng.uniform(0.1, 0.4, T - 1)
    if gaps == "own":
        dt = rng.uniform(0.1, 0.4, (n, T - 1))
    lengths = rng.integers(5, T + 1, n) if gaps == "lengths" else None
    x = paths(1, n, T, dt=dt)
    data = Data(x, counts=lengths)
    fit = levels(data, dt)
    steps = np.broadcast_to(dt, (n, T - 1))
    for j, m in enumerate(data.observed):
        assert_allclose(fit.log_likelihoods[j], dense(x[j, :m], steps[j, : m - 1], fit), rtol=1e-8)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("sd", [0.0, 1.0])
def test_no_small_change_of_a_parameter_is_more_likely(sd: float, own: bool) -> None:
    rng = np.random.default_rng(2)
    dt: Array | float = rng.uniform(0.1, 0.4, (60, 11)) if own else 0.2
    data = Data(paths(3, sd=sd, dt=dt))
    fit = levels(data, dt)
    assert fit.converged
    rows = LevelRows.of(data, along(data), Gaps.of(dt))
    B = fit.B
    best = fit.log_likelihood
    for _ in range(40):
        K = np.linalg.cholesky(fit.between + 1e-12 * np.eye(2))
        C = np.linalg.cholesky(fit.diffusion)
        size = 10 ** rng.uniform(-3, -1)
        K, C = K + size * rng.normal(size=(2, 2)), C + 0.1 * size * rng.normal(size=(2, 2))
        other = B + size * rng.normal(size=B.shape)
        assert rows.judged(other, C @ C.T, K @ K.T, converged=True).log_likelihood < best + 1e-4


def test_levels_include_subjects_who_are_alike() -> None:
    data = Data(paths(5, sd=0.0))
    fit = levels(data)
    alike = mle(moments(data, along(data), 0.2, Affine()))
    e = np.diff(data.values, axis=1) - 0.2 * (
        data.values[:, :-1] @ alike.coefficients[:, :2].T + alike.coefficients[:, 2]
    )
    pooled = multivariate_normal(np.zeros(2), 0.2 * alike.diffusion).logpdf(e).sum()
    assert fit.log_likelihood > pooled


def test_drift_does_not_shrink_with_the_levels() -> None:
    """Alike, the trace of A is a fifth of the truth at sd 1; with levels within 5 standard errors over 20 panels."""
    traces = []
    for seed in range(20):
        data = Data(paths(seed, T=20, sd=1.0))
        fit = levels(data)
        traces.append(np.trace(fit.drift))
    error = np.std(traces) / len(traces) ** 0.5
    assert abs(np.mean(traces) - np.trace(A)) < 5 * error < 0.5


def test_rotating_and_scaling_the_variables_turns_the_answer() -> None:
    x = paths(7)
    turn = np.array([[2.0, 1.0], [-30.0, 40.0]])
    shift = np.array([100.0, -7.0])
    data, turned = Data(x), Data(x @ turn.T + shift)
    one, two = levels(data), levels(turned)
    back = np.linalg.inv(turn)
    assert_allclose(two.drift, turn @ one.drift @ back, rtol=1e-3, atol=1e-3)
    assert_allclose(two.between, turn @ one.between @ turn.T, rtol=1e-3)
    volume = x[:, 1:, 0].size * np.log(np.abs(np.linalg.det(turn)))
    assert_allclose(two.log_likelihood, one.log_likelihood - volume, atol=1e-3)


def test_a_subjects_intercept_is_its_posterior_mean() -> None:
    """By Gaussian conditioning on all of a subject's increments at once."""
    x = paths(9, n=12, T=6)
    data = Data(x)
    fit = levels(data)
    g = np.full(5, 0.2)
    one = np.kron(g[:, None], np.eye(2))
    noise = np.kron(np.diag(g), fit.diffusion)
    gain = fit.between @ one.T @ np.linalg.inv(noise + one @ fit.between @ one.T)
    for j in range(3):
        prior = fit.mean + fit.slope @ x[j, 0]
        e = (np.diff(x[j], axis=0) - (x[j, :-1] @ fit.drift.T + prior) * 0.2).ravel()
        assert_allclose(fit.effects[j], prior + gain @ e, rtol=1e-6)
        left = fit.between - gain @ one @ fit.between
        assert_allclose(fit.effect_errors[j], np.sqrt(np.diag(left)), rtol=1e-5)


def test_too_few_subjects_or_steps_have_no_levels() -> None:
    few, short = Data(paths(1, n=6)), Data(paths(1, T=2))
    assert fit_levels(few, along(few), 0.2) is None
    assert fit_levels(short, along(short), 0.2) is None


def test_a_common_start_has_no_slope() -> None:
    x = paths(1)
    x[:, 0] = 2.0
    data = Data(x)
    fit = levels(data)
    assert fit.rows.slopes == ()
    assert np.isfinite(fit.log_likelihood)


@pytest.mark.parametrize("own", [False, True])
def test_errors_are_those_of_leaving_each_subject_out(own: bool) -> None:
    """The fit without each of 40 subjects, by maximum likelihood again."""
    rng = np.random.default_rng(4)
    x = paths(11, n=40, T=10, dt=0.2)
    dt: Array | float = rng.uniform(0.15, 0.25, (40, 9)) if own else 0.2
    whole = levels(Data(x), dt)
    without = []
    for j in range(40):
        rest = dt if isinstance(dt, float) else np.delete(dt, j, axis=0)
        without.append(levels(Data(np.delete(x, j, axis=0)), rest))
    errors = errors_of_influences(*level_influences(whole))
    for given, each in (("drift", errors.drift[:, :2]), ("diffusion", errors.diffusion)):
        moved = np.stack([getattr(fit, given) for fit in without]) - getattr(whole, given)
        assert_allclose(each, np.sqrt(39 / 40 * (moved**2).sum(axis=0)), rtol=0.05)
    assert errors.kind == ErrorKind.SANDWICH


def test_intervals_cover_whatever_the_levels() -> None:
    """80 panels × 4 coefficients: nominal .95 with a sampling error of about .016, allowing for their dependence."""
    for sd in (0.0, 1.0):
        inside = []
        for seed in range(80):
            fit = levels(Data(paths(500 + seed, n=40, T=15, sd=sd)))
            errors = errors_of_influences(*level_influences(fit))
            inside.append(np.abs(fit.drift - A) < half_widths(errors.drift[:, :2], 40))
        assert abs(np.mean(inside) - 0.95) < 4 * 0.016


def test_levels_of_less_than_full_rank_keep_finite_errors() -> None:
    """Three variables of which one has levels: Ω ends at its boundary, where its rank bends the likelihood."""
    rng = np.random.default_rng(12)
    drift = np.diag([-1.0, -0.8, -1.2]) + 0.2
    c, x = np.zeros((50, 3)), rng.normal(size=(50, 3))
    c[:, 0] = rng.normal(size=50)
    path = [x]
    for _ in range(11):
        x = x + 0.2 * (x @ drift.T + c) + 0.5 * 0.2**0.5 * rng.normal(size=x.shape)
        path.append(x)
    data = Data(np.stack(path, axis=1))
    fit = levels(data)
    assert np.linalg.eigvalsh(fit.between)[0] < 1e-3
    errors = errors_of_influences(*level_influences(fit)).drift[:, :3]
    rest = (levels(Data(np.delete(data.values, j, axis=0))).drift for j in range(50))
    moved = np.stack(list(rest)) - fit.drift
    ratio = errors / np.sqrt(49 / 50 * (moved**2).sum(axis=0))
    assert 0.8 < ratio.min() < ratio.max() < 1.25


def test_a_subject_with_one_visit_changes_nothing() -> None:
    """It has no step, so neither parameters nor likelihood nor scores know of it."""
    x = paths(3)
    lengths = np.append(np.full(len(x), x.shape[1]), 1)
    more = Data(np.concatenate([x, x[:1]]), counts=lengths)
    plain, other = levels(Data(x)), levels(more)
    assert_allclose(other.drift, plain.drift, rtol=1e-4)
    assert_allclose(other.diffusion, plain.diffusion, atol=1e-5)
    assert_allclose(other.log_likelihood, plain.log_likelihood, rtol=1e-7)
    assert_allclose(other.log_likelihoods[-1], 0, atol=1e-12)


def test_a_common_start_that_rounding_spreads_tells_nothing_of_levels() -> None:
    rng = np.random.default_rng(3)
    X = np.concatenate([np.full((30, 1, 2), 2.0), 2 + rng.normal(size=(30, 6, 2)).cumsum(axis=1)], axis=1)  # fmt: skip
    rounded = X.copy()
    rounded[:, 0] *= 1 + 1e-15 * rng.standard_normal((30, 2))
    order = np.arange(7)
    one, two = (LevelRows.of(Data(each), order, Gaps.of(0.1)) for each in (X, rounded))
    assert one.slopes == two.slopes == ()
    assert_allclose(one.pooled, two.pooled, rtol=1e-9)
