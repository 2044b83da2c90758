"""Moments and the estimates made from them, and the walk through blocks that both rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from retrace_sde.fit import moments as moments_module
from retrace_sde.fit.moments import Moments, moments
from retrace_sde.fit.regression import mle, ols
from retrace_sde.panel import blocks
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Drift, Linear
from retrace_sde.process.sde import LinearSDE
from retrace_sde.process.simulate import random_irreversible_sde, shuffle

Floats = NDArray[np.float64]
DT = 0.05


class Dosed(Drift):
    """b(x, u) = A x + B u + C (u₀ x): covariates enter alone and with the state."""

    def features(self, x: Any, u: Any | None) -> Any:
        assert u is not None
        return np.concatenate([x, u, u[..., :1] * x], axis=-1)

    def feature_names(self, variables: Sequence[str], covariates: Sequence[str]) -> list[str]:
        return [*variables, *covariates, *(f"{covariates[0]} {v}" for v in variables)]


def panel(n: int = 30, T: int = 12, d: int = 3, seed: int = 0) -> Floats:
    sde = random_irreversible_sde(d, random_state=seed)
    return sde.simulate(n, T, DT, x0=1.0, random_state=seed)


def explosive() -> Floats:
    """The paper's regime, 40 trajectories, in which the Gram matrix is beyond float64."""
    sde = random_irreversible_sde(20, setting="paper", random_state=0)
    return sde.simulate(40, 500, 0.01, random_state=0)


def least_squares(
    X: Floats, dt: float, drift: Drift, U: Floats | None = None
) -> tuple[Floats, Floats]:
    """Θ and H by numpy's least squares on rows gathered one by one, H from the residuals."""
    phi, slope = [], []
    for j, x in enumerate(X):
        for t in range(len(x) - 1):
            phi.append(drift.features(x[t], None if U is None else U[j, t]))
            slope.append((x[t + 1] - x[t]) / dt)
    length = np.linalg.norm(phi, axis=0)
    theta = (
        np.linalg.lstsq(np.array(phi) / length, np.array(slope), rcond=None)[0] / length[:, None]
    )
    residual = (np.array(slope) - np.array(phi) @ theta) * np.sqrt(dt)
    return theta.T, residual.T @ residual / len(residual)


def in_time(X: Any) -> NDArray[np.intp]:
    return np.arange(X.shape[1])


# Against plain least squares


@pytest.mark.parametrize("drift", [Linear(), Affine()])
def test_estimates_equal_plain_least_squares(drift: Drift) -> None:
    X = panel()
    found = moments(Data(X), in_time(X), DT, drift)
    theta, H = least_squares(X, DT, drift)
    assert found.count == 30 * 11
    assert found.n_features == theta.shape[1]
    assert_allclose(mle(found).coefficients, theta, rtol=1e-9)
    assert_allclose(mle(found).diffusion, H, rtol=1e-9)


def test_covariates_travel_with_their_observation() -> None:
    X, U = panel(), np.random.default_rng(1).normal(size=(30, 12, 2))
    theta, H = least_squares(X, DT, Dosed(), U)
    mixed, order = shuffle(np.concatenate([X, U], axis=-1), random_state=2)
    data = Data(mixed[..., :3], mixed[..., 3:])
    found = mle(moments(data, order, DT, Dosed()))
    assert_allclose(found.coefficients, theta, rtol=1e-8)
    assert_allclose(found.diffusion, H, rtol=1e-8)


def test_the_order_is_applied_and_not_its_inverse() -> None:
    X = panel()
    shuffled, order = shuffle(X, random_state=0)
    assert not np.array_equal(order, np.argsort(order))
    found = moments(Data(shuffled), order, DT, Linear())
    assert_allclose(found.factor, moments(Data(X), in_time(X), DT, Linear()).factor, rtol=1e-9)


def test_ols_differs_from_mle_in_the_degrees_of_freedom_only() -> None:
    X = panel(n=2, T=12)
    found = moments(Data(X), in_time(X), DT, Affine())
    assert np.array_equal(ols(found).coefficients, mle(found).coefficients)
    assert_allclose(ols(found).diffusion, mle(found).diffusion * 22 / (22 - 4))


def test_ols_makes_the_diffusion_unbiased_in_small_samples() -> None:
    sde = LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], [[1.0, 0.3], [0.3, 0.5]])
    X = sde.simulate(1000 * 4, 4, DT, scheme="euler", random_state=0).reshape(1000, 4, 4, 2)
    H = np.array([ols(moments(Data(x), in_time(x), DT, Linear())).diffusion for x in X])
    # 4.5 standard errors of the mean over replicates; mle is low by 2/12, some 20 of them.
    error = H.std(axis=0) / np.sqrt(len(H))
    assert np.all(np.abs(H.mean(axis=0) - sde.diffusion) < 4.5 * error)
    assert np.all(0.5 * 2 / 12 * np.diag(sde.diffusion) > 4.5 * np.diag(error))


# Numerics


def test_cholesky_and_qr_give_the_same_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    X = panel()
    by_cholesky = moments(Data(X), in_time(X), DT, Affine())
    monkeypatch.setattr(moments_module, "CONDITION_LIMIT", 0.0)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * 12 * 3)
    assert Moments.from_gram(np.eye(2), 1, 1) is None
    by_qr = moments(Data(X), in_time(X), DT, Affine())
    assert_allclose(by_qr.factor, by_cholesky.factor, rtol=1e-9, atol=1e-10)
    assert np.all(np.diag(by_qr.factor) > 0)


def test_growing_data_keep_the_digits_that_gram_matrices_lose() -> None:
    X = explosive()
    found = moments(Data(X), in_time(X), 0.01, Linear())
    theta, H = least_squares(X, 0.01, Linear())
    before, after = X[:, :-1].reshape(-1, 20), (X[:, 1:] - X[:, :-1]).reshape(-1, 20)
    gram = before.T @ before
    naive = after.T @ after - after.T @ before @ np.linalg.solve(gram, before.T @ after)
    naive = naive / len(before) / 0.01
    assert found.condition > 1e8
    assert np.abs(naive - H).max() > 0.1 * np.abs(H).max()  # the case is a hard one
    assert_allclose(mle(found).diffusion, H, rtol=0, atol=1e-6 * np.abs(H).max())
    assert_allclose(mle(found).coefficients, theta, rtol=0, atol=1e-6 * np.abs(theta).max())


def test_a_large_constant_level_does_not_disturb_the_affine_fit() -> None:
    X = panel()
    plain, raised = (mle(moments(Data(x), in_time(x), DT, Affine())) for x in (X, X + 1e6))
    # The data themselves have lost 1e6 · 2⁻⁵³ ≈ 1e-10, and slopes divide that by Δt.
    assert_allclose(raised.coefficients[:, :3], plain.coefficients[:, :3], atol=1e-6)
    assert_allclose(raised.diffusion, plain.diffusion, atol=1e-6)


@pytest.mark.parametrize("make", [panel, explosive], ids=["cholesky", "qr"])
def test_blocks_and_jobs_do_not_change_the_result(
    make: Callable[[], Floats], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make()
    _, T, d = data.shape
    whole = moments(Data(data), in_time(data), 0.01, Linear())
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * T * d)
    with blocks.one_blas_thread():
        one, two, five = (
            moments(Data(data, n_jobs=jobs), in_time(data), 0.01, Linear()).factor
            for jobs in (1, 2, 5)
        )
    assert np.array_equal(one, two)
    assert np.array_equal(one, five)
    scale = np.linalg.norm(whole.factor, axis=0)
    assert_allclose(one / scale, whole.factor / scale, rtol=0, atol=1e-12)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 1)  # never less than one trajectory
    single = moments(Data(data), in_time(data), 0.01, Linear()).factor
    assert_allclose(single / scale, whole.factor / scale, rtol=0, atol=1e-12)


def test_one_job_equals_two_where_linear_algebra_has_many_threads() -> None:
    X = panel(n=500, T=100, d=50)
    with threadpool_limits(2, user_api="blas"), blocks.one_blas_thread():
        one, two = (
            moments(Data(X, n_jobs=jobs), in_time(X), DT, Linear()).factor for jobs in (1, 2)
        )
    assert np.array_equal(one, two)


# Invariances


def test_estimates_follow_a_change_of_coordinates_and_of_the_clock() -> None:
    X, rng = panel(), np.random.default_rng(3)
    B, level = rng.normal(size=(3, 3)), rng.normal(size=3)
    plain = mle(moments(Data(X), in_time(X), DT, Affine()))
    other = mle(moments(Data(X @ B.T + level), in_time(X), 7 * DT, Affine()))
    A, c = plain.coefficients[:, :3], plain.coefficients[:, 3]
    moved = B @ A @ np.linalg.inv(B) / 7
    assert_allclose(other.coefficients[:, :3], moved, rtol=1e-7)
    assert_allclose(other.coefficients[:, 3], B @ c / 7 - moved @ level, rtol=1e-7)
    assert_allclose(other.diffusion, B @ plain.diffusion @ B.T / 7, rtol=1e-7)


def test_condition_does_not_depend_on_units() -> None:
    X = panel()
    plain, scaled = (moments(Data(x), in_time(x), DT, Linear()) for x in (X, X * [1e-6, 1.0, 1e9]))
    assert scaled.condition == pytest.approx(plain.condition, rel=1e-6)
    twice = np.concatenate([X, X[..., :1] + 1e-9 * X[..., 1:2]], axis=-1)
    assert moments(Data(twice), in_time(X), DT, Linear()).condition > 1e8


# What data may be


def test_any_layout_and_precision_and_the_data_stay_untouched() -> None:
    X = panel().astype(np.float32).astype(float)
    expected = moments(Data(X), in_time(X), DT, Affine()).factor
    wide = np.repeat(X, 2, axis=2)
    before = X.copy()
    X.flags.writeable = False
    for same in (X, X.astype(np.float32), np.asfortranarray(X), wide[..., ::2], X[::-1][::-1]):
        assert np.array_equal(moments(Data(same), in_time(X), DT, Affine()).factor, expected)
    assert np.array_equal(X, before)
    whole = np.round(10 * X)
    assert_allclose(
        moments(Data(whole.astype(np.int16)), in_time(X), DT, Linear()).factor,
        moments(Data(whole), in_time(X), DT, Linear()).factor,
    )


@pytest.mark.parametrize("drift", [Linear(), Affine()])
@pytest.mark.parametrize("limit", [1e8, 0.0])
def test_another_array_namespace_gives_the_same_moments(
    drift: Drift, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments_module, "CONDITION_LIMIT", limit)
    X = panel()
    strict = Data(array_api_strict.asarray(X))
    order = np.random.default_rng(0).permutation(12)
    expected = moments(Data(X), order, DT, drift).factor
    assert_allclose(moments(strict, order, DT, drift).factor, expected, rtol=1e-10, atol=1e-12)
    assert np.array_equal(strict.slices(order[:3]), Data(X).slices(order[:3]))
    assert np.array_equal(np.asarray(strict.some(4).values), Data(X).some(4).values)


def test_a_sample_of_trajectories_spans_the_cohort() -> None:
    X = np.arange(100.0)[:, None, None] * np.ones((1, 2, 3))
    some = Data(X, covariates=-X, n_jobs=2).some(5)
    assert some.values[:, 0, 0].tolist() == [0, 25, 50, 74, 99]
    assert some.covariates is not None
    assert np.array_equal(some.covariates, -some.values)
    assert some.n_jobs == 2


# Standard errors


def test_standard_errors_match_the_spread_over_replicates() -> None:
    sde = LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], [[1.0, 0.3], [0.3, 0.5]], offset=[1.0, 0.0])
    replicates, n, T = 600, 20, 50
    X = sde.simulate(replicates * n, T, DT, scheme="euler", random_state=0).reshape(
        replicates, n, T, 2
    )
    fits = [mle(moments(Data(x), in_time(x), DT, Affine())) for x in X]
    theta, H = (
        np.array(v) for v in zip(*((f.coefficients, f.diffusion) for f in fits), strict=True)
    )
    drift_error = np.mean([f.errors.drift for f in fits], axis=0)
    diffusion_error = np.mean([f.errors.diffusion for f in fits], axis=0)
    # A standard deviation over R replicates has relative error 1/√(2R) = 2.9 %; 4 of them.
    assert_allclose(theta.std(axis=0), drift_error, rtol=4 / np.sqrt(2 * replicates))
    assert_allclose(H.std(axis=0), diffusion_error, rtol=4 / np.sqrt(2 * replicates))
    # And they cover: 95 % of 1.96-error intervals hold the truth, within 4.5 binomial errors.
    truth = np.column_stack([sde.drift, sde.offset])
    inside = np.array([np.abs(f.coefficients - truth) < 1.96 * f.errors.drift for f in fits])
    assert np.all(np.abs(inside.mean(axis=0) - 0.95) < 4.5 * np.sqrt(0.95 * 0.05 / replicates))


@pytest.mark.parametrize("drift", [Linear(), Affine()], ids=["linear", "affine"])
def test_moments_of_the_reversed_order_follow_without_a_pass(drift: Drift) -> None:
    sde = random_irreversible_sde(3, random_state=0)
    X = 5 + sde.simulate(30, 12, 0.1, random_state=1)
    order = np.random.default_rng(2).permutation(12)
    there, back = (moments(Data(X), each, 0.1, drift) for each in (order, order[::-1].copy()))
    turned = there.transformed(drift.reversal(3, 0.1))
    np.testing.assert_allclose(turned.factor, back.factor, rtol=1e-8, atol=1e-8)
