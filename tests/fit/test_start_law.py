"""The law of the first observation: left-out densities, and the shrinkage that predicts best."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from retrace_sde.fit import start_law as laws
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.start_law import (
    SHRINKAGES,
    START_FLOOR,
    is_point,
    start_law,
    start_log_densities,
)
from retrace_sde.orders.costs import spread
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.simulate import random_irreversible_sde, shuffle
from retrace_sde.search.alternate import recover
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.space import Shared

Floats = NDArray[np.float64]
DT = 0.05


def setup(n: int = 9, T: int = 4, d: int = 3, seed: int = 0) -> tuple[Floats, Euler, Floats]:
    """Slices (T, n, d), a model that is not the one they came from, and the variables' variances."""
    rng = np.random.default_rng(seed)
    X = random_irreversible_sde(d, random_state=rng).simulate(n, T, DT, x0=1.0, random_state=rng)
    G = rng.normal(size=(d, d))
    model = Euler(Affine(), rng.normal(size=(d, d + 1)), G @ G.T + 0.1 * np.eye(d), DT)
    return X.transpose(1, 0, 2), model, X.var(axis=(0, 1))


def thin_noise(d: int, seed: int) -> Euler:
    """A model whose H is ill conditioned."""
    sde = random_irreversible_sde(d, random_state=seed)
    return Euler(Linear(), sde.drift, sde.diffusion, DT)


def refits(x: Floats, model: Euler, variances: Floats) -> tuple[Floats, Floats, tuple[int, float]]:
    """One slice (n, d): every target and ρ, refitted without each trajectory; the best in total.

    Returns the left-out log densities (n,), the covariance of all n, and the target and ρ.
    """
    n, d = x.shape
    noise = model.diffusion * model.dt
    targets = (noise, np.diag(variances))
    S = np.cov(x.T, bias=True).reshape(d, d)
    best, choice = np.full(n, -np.inf), (0, 0.0)
    for which, rho in product(range(2), SHRINKAGES):
        P = targets[which]
        rest = rho * np.trace(np.linalg.inv(P) @ S) / d * P + START_FLOOR * noise
        found = np.empty(n)
        for j in range(n):
            others = np.delete(x, j, axis=0)
            S_j = np.cov(others.T, bias=True).reshape(d, d)
            M = (1 - rho) * S_j + rest
            found[j] = multivariate_normal(others.mean(axis=0), M).logpdf(x[j])
        if found.sum() > best.sum():
            best, choice, covariance = found, (which, rho), (1 - rho) * S + rest
    return best, covariance, choice


# Against explicit refits


@pytest.mark.parametrize(
    ("n", "d"), [(2, 2), (2, 6), (3, 5), (5, 5), (6, 5), (9, 3), (40, 2), (12, 1)]
)
def test_densities_and_law_are_the_best_of_all_refits(n: int, d: int) -> None:
    x, model, variances = setup(n=n, d=d)
    found = start_log_densities(x, model, variances)
    assert found.shape == (4, n)
    for t in range(4):
        densities, covariance, _ = refits(x[t], model, variances)
        assert_allclose(found[t], densities, rtol=1e-8, atol=1e-9)
        law = start_law(x[t], model, variances)
        assert_allclose(law.mean, x[t].mean(axis=0))
        assert_allclose(law.covariance, covariance, rtol=1e-8, atol=1e-12)


def test_every_slice_chooses_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # Slices of the noise's shape, of the variances' shape, and of a third, in one batch.
    n, d = 12, 6
    rng = np.random.default_rng(0)
    model, variances = thin_noise(d, 1), 10.0 ** np.arange(-3, 3)
    third = rng.normal(size=(d, d))
    roots = (np.linalg.cholesky(model.diffusion), np.diag(np.sqrt(variances)), third)
    x = np.stack([rng.normal(size=(n, d)) @ L.T for L in roots])
    expected = [refits(slice_, model, variances) for slice_ in x]
    choices = [choice for _, _, choice in expected]
    assert choices[:2] == [(0, 1.0), (1, 1.0)]
    assert choices[2][1] < 0.4
    found = start_log_densities(x, model, variances)
    assert_allclose(found, [densities for densities, _, _ in expected], rtol=1e-8, atol=1e-9)
    # Nor does it matter what other slices are asked about.
    assert_allclose(start_log_densities(x[[2, 0]], model, variances), found[[2, 0]], rtol=1e-12)
    monkeypatch.setattr(laws, "STATE_ELEMENTS", 0)  # nor whether they are judged one by one
    assert_allclose(start_log_densities(x, model, variances), found, rtol=1e-12)


def test_every_target_and_shrinkage_is_chosen_where_it_predicts_best() -> None:
    # Laws between a shape of their own and each of the two targets: all branches are compared.
    d, seen = 4, set()
    rng = np.random.default_rng(0)
    model, variances = thin_noise(d, 1), 10.0 ** np.arange(-2, 2)
    targets = (model.diffusion, np.diag(variances))
    for n, share, P in product((8, 15, 40), (0, 0.03, 0.2, 0.5, 1), targets):
        v = rng.normal(size=(d, d)) * [1, 1, 0.3, 0.1]
        L = np.linalg.cholesky(P) @ np.linalg.cholesky((1 - share) * v @ v.T + share * np.eye(d))
        x = rng.normal(size=(n, d)) @ L.T
        densities, covariance, choice = refits(x, model, variances)
        assert_allclose(
            start_log_densities(x[None], model, variances)[0], densities, rtol=1e-8, atol=1e-9
        )
        law = start_law(x, model, variances)
        assert_allclose(law.covariance, covariance, rtol=1e-8, atol=1e-12)
        seen.add(choice)
    # Without shrinkage the targets are alike, and the first is kept.
    wanted = set(product((0, 1), SHRINKAGES)) - {(1, 0.0)}
    assert seen == wanted, wanted - seen


# Against the truth


def test_densities_are_those_of_the_true_law_in_a_large_panel() -> None:
    n, d = 20_000, 3
    rng = np.random.default_rng(0)
    S = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 0.5]])
    x = rng.multivariate_normal([1.0, 2.0, 3.0], S, n)
    model = Euler(Linear(), -np.eye(d), np.eye(d), 1e-3)  # the floor is then 1e-5
    truth = multivariate_normal([1.0, 2.0, 3.0], S).logpdf(x)
    found = start_log_densities(x[None], model, x.var(axis=0))[0]
    # Nine parameters are fitted: a loss of about 9/2 nats in sample, and as much out of it.
    assert abs((found - truth).sum()) < 30
    # A point's log density moves by about √(parameters / n) = 0.02.
    assert np.abs(found - truth).mean() < 0.02
    law = start_law(x, model, x.var(axis=0))
    assert_allclose(law.covariance, S, atol=0.06)


@pytest.mark.parametrize(
    ("n", "d", "seed"), [(n, d, s) for n, d in [(200, 10), (60, 30), (20, 30)] for s in range(3)]
)
def test_a_start_unlike_the_noise_is_not_forced_into_its_shape(n: int, d: int, seed: int) -> None:
    # Nats lost per trajectory where the law is N(0, I) and H ill conditioned. The error of an
    # estimated mean and multiple of I costs d/2n; a shape taken from H would cost several nats.
    model, rng = thin_noise(d, seed), np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    variances = np.ones(d)
    truth = multivariate_normal(np.zeros(d), np.eye(d))
    lost = truth.logpdf(x) - start_log_densities(x[None], model, variances)[0]
    assert abs(lost.mean()) < 0.1 + d / n
    law, fresh = start_law(x, model, variances), rng.normal(size=(1000, d))
    assert (truth.logpdf(fresh) - law.log_density(fresh)).mean() < 0.1 + d / n


def test_a_start_like_the_noise_is_learnt_from_a_few_trajectories() -> None:
    for seed in range(5):
        model, rng = thin_noise(20, seed), np.random.default_rng(seed)
        law = multivariate_normal(np.zeros(20), model.diffusion)
        x, fresh = law.rvs(12, random_state=rng), law.rvs(500, random_state=rng)
        found = start_law(x, model, np.diag(model.diffusion))
        assert (law.logpdf(fresh) - found.log_density(fresh)).mean() < 20 / 12


# From a point to any spread


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 1.0, 1e4, 1e9])
@pytest.mark.parametrize(("n", "d"), [(2, 2), (2, 30), (3, 30), (20, 30), (5, 3), (40, 30)])
def test_densities_are_finite_from_a_point_to_any_spread(
    n: int, d: int, scale: float, thin: bool
) -> None:
    x, model, _ = setup(n=n, d=d, T=3)
    if thin:
        model = thin_noise(d, 1)
    x = 7 + scale * x
    variances = spread(Data(x)) ** 2
    found = start_log_densities(x, model, variances)
    assert np.all(np.isfinite(found))
    law = start_law(x[0], model, variances)
    assert np.all(np.isfinite(law.log_density(x[0])))
    if scale == 0:
        L = np.linalg.cholesky(model.diffusion * model.dt * START_FLOOR)
        peak = -d / 2 * np.log(2 * np.pi) - np.log(np.diag(L)).sum()
        assert_allclose(found, peak, rtol=1e-9)


def test_a_common_start_beside_wide_slices_is_finite_and_the_likeliest() -> None:
    # The paper's panels: one slice a point, the others wider without bound.
    for n in (4, 30):
        x, model, _ = setup(n=n, d=6, T=5)
        x = x * np.array([0.0, 1.0, 10.0, 1e2, 1e3])[:, None, None]
        total = start_log_densities(x, model, spread(Data(x)) ** 2).sum(axis=1)
        assert np.all(np.isfinite(total))
        assert np.array_equal(np.argsort(-total), np.arange(5))


def test_two_trajectories_do_not_let_the_start_break_the_order() -> None:
    # Of two points one is left, without a spread of its own. Were the floor taken for it, the
    # slice in which the two happen to be nearest would always be the first.
    for seed in range(5):
        sde = random_irreversible_sde(20, random_state=seed)
        X = sde.simulate(2, 100, 0.01, x0="stationary", random_state=seed)
        shuffled, order = shuffle(X, random_state=seed)
        problem, rng = EulerModel(Data(shuffled), 0.01, Linear()), np.random.default_rng(0)
        found = recover(problem, Shared.of(problem, rng), rng, max_iter=10).better.order
        assert found.tolist() in (order.tolist(), order[::-1].tolist())


def test_one_trajectory_has_no_density_and_a_law_of_the_floor() -> None:
    x, model, variances = setup(n=1)
    assert np.array_equal(start_log_densities(x, model, variances), np.zeros((4, 1)))
    law = start_law(x[0], model, variances)
    assert_allclose(law.mean, x[0, 0])
    assert_allclose(law.covariance, START_FLOOR * model.diffusion * DT)


def test_a_small_panel_does_not_call_its_own_start_likely() -> None:
    # In sample, with n ≤ d, a free covariance would give every point the same Mahalanobis
    # distance; left out, a point far from the others must look unlikely.
    x, model, variances = setup(n=6, d=10)
    x = x.copy()
    x[0, 0] += 100
    found = start_log_densities(x, model, variances)[0]
    assert found[0] < found[1:].min() - 20


def test_a_point_start_is_recognised_by_the_noise_of_one_step() -> None:
    x, model, _ = setup()
    x = x.copy()
    step = np.sqrt(START_FLOOR * np.trace(model.diffusion * DT) / 3)
    x[0] = 5 + 1e-3 * step * x[0]
    assert is_point(x[0], model)
    assert not is_point(x[1], model)
    assert not is_point(x[0, :1], model)


# Units


@pytest.mark.parametrize(("n", "d"), [(2, 3), (5, 8), (30, 3)])
def test_units_of_the_variables_shift_all_densities_alike(n: int, d: int) -> None:
    x, model, variances = setup(n=n, d=d)
    unit = 10.0 ** np.random.default_rng(1).uniform(-4, 4, d)
    H = model.diffusion * np.outer(unit, unit)
    other = Euler(model.drift, model.coefficients, H, model.dt)
    one = start_log_densities(x, model, variances)
    two = start_log_densities(x * unit + 5, other, variances * unit**2)
    assert_allclose(two, one - np.log(unit).sum(), rtol=1e-7)
    assert_allclose(two[1] - two[0], one[1] - one[0], rtol=1e-6, atol=1e-8)
    law, scaled = (
        start_law(x[0], model, variances),
        start_law(x[0] * unit, other, variances * unit**2),
    )
    assert_allclose(scaled.covariance / np.outer(unit, unit), law.covariance, rtol=1e-7, atol=1e-12)


def test_units_of_time_change_nothing() -> None:
    x, model, variances = setup()
    other = Euler(model.drift, model.coefficients, model.diffusion / 60, model.dt * 60)
    expected = start_log_densities(x, model, variances)
    assert_allclose(start_log_densities(x, other, variances), expected, rtol=1e-12)


def test_likelihood_ratios_of_a_fit_do_not_depend_on_units() -> None:
    x, _, _ = setup(n=30, T=8)
    X, unit = x.transpose(1, 0, 2), np.array([1e-3, 1.0, 1e4])
    values = []
    for panel in (X, X * unit):
        problem, order = EulerModel(Data(panel), DT, Linear()), np.arange(8)
        pair = problem.fit(order), problem.fit(order[::-1].copy())
        values.append([fit.log_likelihoods for fit in pair])
    assert_allclose(np.add(values[1], 8 * np.log(unit).sum()), values[0], rtol=1e-7)
    assert_allclose(values[1][0] - values[1][1], values[0][0] - values[0][1], rtol=1e-6, atol=1e-6)
