"""The mixed model against a dense Gaussian, and on the generator whose parameters it is to recover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from retrace_sde.effects.jackknife import _Block, jackknife
from retrace_sde.effects.subject_model import Rows, SubjectModel
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.subjects import (
    fit_rates,
    fit_subjects,
    log_likelihood,
    subject_grams,
)
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, TumourGrowth
from retrace_sde.process.tumour import POPULATION, simulate_cohort
from retrace_sde.search.models.euler import EulerModel


def _panel(n: int, T: int, d: int, seed: int, *, spread: float = 0.6) -> EulerModel:
    """Affine growth whose offsets differ between subjects."""
    rng = np.random.default_rng(seed)
    A = -0.5 * np.eye(d) + 0.2 * rng.normal(size=(d, d))
    own = 1.0 + spread * rng.normal(size=(n, d))
    x = rng.normal(size=(n, d))
    path = [x]
    for _ in range(T - 1):
        x = x + 0.2 * (x @ A.T + own) + 0.2**0.5 * 0.5 * rng.normal(size=(n, d))
        path.append(x)
    return EulerModel(Data(np.stack(path, axis=1)), 0.2, Affine())


def _dense(problem: EulerModel, theta: Array, H: Array, omega: Array, S: list[int]) -> float:
    """The log-likelihood of all steps with each subject's deviations integrated out, as one Gaussian each."""
    x, dt = problem.data.values, problem.dt
    phi = problem.drift.features(x[:, :-1], None)
    d = x.shape[2]
    total = 0.0
    for j in range(len(x)):
        steps = phi.shape[1]
        mean = (phi[j] @ theta.T * dt).ravel()
        load = np.concatenate([np.kron(np.eye(d), phi[j, t, S]) for t in range(steps)]) * dt
        covariance = np.kron(np.eye(steps), H * dt) + load @ omega @ load.T
        total += multivariate_normal(mean, covariance).logpdf(np.diff(x[j], axis=0).ravel())
    return float(total)


@pytest.mark.parametrize(("d", "columns"), [(1, (1,)), (1, (0, 1)), (2, (2,))])
def test_the_fit_is_where_the_dense_likelihood_is_stationary(
    d: int, columns: tuple[int, ...]
) -> None:
    problem = _panel(40, 12, d, seed=d)
    grams = subject_grams(problem.data, np.arange(12), problem.dt, problem.drift)
    fit = fit_subjects(grams, 40 * 11, d + 1, columns=columns)
    assert fit.converged
    S = list(columns)
    here = _dense(problem, fit.coefficients, fit.diffusion, fit.between, S)
    volume = 40 * 11 * d * np.log(problem.dt) / 2
    assert_allclose(log_likelihood(grams, 40 * 11, fit) - volume, here, rtol=1e-8)
    for name in ("coefficients", "diffusion", "between"):
        value = getattr(fit, name)
        for at in np.ndindex(value.shape):
            step = np.zeros_like(value)
            step[at] = 1e-3 * max(abs(value[at]), 0.05)
            step = step if name == "coefficients" else (step + step.T) / 2
            around = []
            for sign in (1, -1):
                moved = {
                    "coefficients": fit.coefficients,
                    "diffusion": fit.diffusion,
                    "between": fit.between,
                }
                moved[name] = value + sign * step
                around.append(
                    _dense(problem, moved["coefficients"], moved["diffusion"], moved["between"], S)
                )
            # Both neighbours are lower, or level up to the tolerance of EM.
            assert max(around) - here < 2e-3 * max(here - min(around), 1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("d", "spread"), [(1, 0.0), (2, 0.0), (2, 0.3), (4, 0.1)])
def test_a_variance_that_goes_to_zero_converges_the_same_in_all_units(
    seed: int, d: int, spread: float
) -> None:
    """Plain EM, extrapolated, stopped unconverged after 501 steps in 17 of these 20 panels, and up to 3e-4 apart in other units."""
    problem, units = _panel(20, 10, d, seed, spread=spread), 3.0 * 10.0 ** np.arange(-2, d - 2)
    x = problem.data.values
    fits = [
        fit_subjects(
            subject_grams(Data(values), np.arange(10), problem.dt, Affine()),
            180,
            d + 1,
            columns=(d,),
        )
        for values in (x, x * units)
    ]
    assert all(each.converged for each in fits)
    one, other = fits
    back = np.append(1 / units, 1.0)[None] * units[:, None]
    assert_allclose(other.coefficients / back, one.coefficients, atol=1e-6)
    square = np.outer(units, units)
    assert_allclose(other.between / square, one.between, atol=1e-6)
    assert_allclose(other.diffusion / square, one.diffusion, atol=1e-6)


def test_scores_are_derivatives_of_the_dense_likelihood() -> None:
    """By the coefficients and by the scales of both covariances, away from the maximum."""
    problem = _panel(25, 8, 2, seed=3)
    grams = subject_grams(problem.data, np.arange(8), problem.dt, problem.drift)
    fit = fit_subjects(grams, 25 * 7, 3, columns=(2,))
    from dataclasses import replace

    moved = replace(
        fit, coefficients=fit.coefficients + 0.05, diffusion=1.3 * fit.diffusion, between=0.8 * fit.between
    )  # fmt: skip
    block = _Block.of(moved, grams, 25 * 7, 0)
    found = block.scores(grams, np.full(25, 7.0), np.zeros(block.end)).sum(axis=0)
    theta, H, between = moved.coefficients, moved.diffusion, moved.between

    def slope(*change: Any) -> float:
        up, down = (
            _dense(problem, *(value + sign * 1e-5 * each for value, each in zip((theta, H, between), change, strict=True)), [2])
            for sign in (1, -1)
        )  # fmt: skip
        return (up - down) / 2e-5

    unit = block.coefficients(np.eye(block.end)[: theta.size]) - block.coefficients(np.zeros(block.end))  # fmt: skip
    for k in range(theta.size):
        assert_allclose(found[k], slope(unit[k], 0, 0), rtol=1e-4, atol=1e-3)
    # A covariance as a whole: its diagonal entries, in units of its root.
    at = theta.size
    assert_allclose(found[at] + found[at + 2], slope(0, H, 0), rtol=1e-4, atol=1e-3)
    assert_allclose(found[at + 3] + found[at + 5], slope(0, 0, between), rtol=1e-4, atol=1e-3)


def test_subjects_taken_to_be_alike_are_ordinary_maximum_likelihood() -> None:
    problem = _panel(10, 9, 2, seed=4)
    order = np.arange(9)
    fit = fit_subjects(
        subject_grams(problem.data, order, problem.dt, problem.drift), 80, 3, columns=()
    )
    want = mle(moments(problem.data, order, problem.dt, problem.drift))
    assert_allclose(fit.coefficients, want.coefficients)
    assert_allclose(fit.diffusion, want.diffusion)
    assert fit.subject_coefficients.shape == (10, 2, 3)


def test_deviations_are_shrunk_and_their_uncertainty_is_honest() -> None:
    """Standardised errors of the deviations have variance one (n = 400: within 4 standard errors)."""
    rng = np.random.default_rng(5)
    n, T = 400, 20
    own = 1 + 0.3 * rng.normal(size=n)
    x = [rng.normal(size=n)]
    for _ in range(T - 1):
        x.append(x[-1] + 0.1 * (own - x[-1]) + 0.1**0.5 * rng.normal(size=n) * 0.4)
    problem = EulerModel(Data(np.stack(x, axis=1)[:, :, None]), 0.1, Affine())
    fit = fit_subjects(
        subject_grams(problem.data, np.arange(T), problem.dt, problem.drift),
        n * (T - 1),
        2,
        columns=(1,),
    )
    found = fit.coefficients[0, 1] + fit.deviations[:, 0, 0]
    z = (found - own) / np.sqrt(fit.uncertainty[:, 0, 0])
    assert abs(z.var() - 1) < 4 * (2 / n) ** 0.5
    assert fit.deviations.std() < 0.3


def test_errors_of_the_coefficients_hold_over_replicates() -> None:
    """Spread over 60 replicates against the mean standard error: a ratio within 4 standard errors of one."""
    fits, errors = [], []
    for seed in range(60):
        problem = _panel(60, 10, 1, seed=100)
        rng = np.random.default_rng(seed)
        own, x = 1 + 0.6 * rng.normal(size=60), rng.normal(size=60)
        path = [x]
        for _ in range(9):
            x = x + 0.2 * (-0.5 * x + own) + 0.2**0.5 * 0.5 * rng.normal(size=60)
            path.append(x)
        problem = EulerModel(Data(np.stack(path, axis=1)[:, :, None]), 0.2, Affine())
        grams = subject_grams(problem.data, np.arange(10), problem.dt, problem.drift)
        fit = fit_subjects(grams, 540, 2, columns=(1,))
        fits.append(fit.coefficients[0])
        rows = Rows.along(problem, np.arange(10), (), ())
        found = jackknife(SubjectModel(fit, None, None, fit), rows, np.arange(60) % 20)
        errors.append(np.sqrt(np.diag(found.covariance)))
    ratio = np.std(fits, axis=0, ddof=1) / np.mean(errors, axis=0)
    assert np.all(np.abs(ratio - 1) < 4 / (2 * 59) ** 0.5)


@pytest.mark.parametrize("sigma", [0.015, 0.05])
def test_between_subject_variability_no_longer_biases_growth(sigma: float) -> None:
    """Pooled least squares loses a quarter of ρ or more; the mixed model is within the specification."""
    cohort = simulate_cohort(5000, sigma_tumour=sigma, random_state=77)
    panel = cohort.panel
    problem = EulerModel(Data(panel.values, panel.covariates), 0.25, TumourGrowth())
    grams = subject_grams(problem.data, np.arange(61), problem.dt, problem.drift)
    rho = POPULATION["rho"]
    truth = np.array([
        rho * np.log(POPULATION["capacity"]), -rho, -POPULATION["beta_c"],
        -POPULATION["alpha_r"] - POPULATION["beta_r"],
    ])  # fmt: skip
    pooled = fit_subjects(grams, 300_000, 4, columns=()).coefficients[0] / truth - 1
    mixed = fit_subjects(grams, 300_000, 4, columns=(0,)).coefficients[0] / truth - 1
    assert -0.40 < pooled[1] < -0.20
    assert np.all(np.abs(mixed) < [0.03, 0.12, 0.02, 0.02])


def test_columns_that_do_not_exist_are_refused() -> None:
    grams: Any = np.ones((3, 3, 3))
    with pytest.raises(ValueError, match="columns"):
        fit_subjects(grams + np.eye(3), 9, 2, columns=(2,))


def test_the_gain_of_rates_is_that_of_a_dense_gaussian() -> None:
    problem = _panel(12, 8, 2, seed=3)
    x, dt = problem.data.values, problem.dt
    alike = mle(moments(problem.data, np.arange(8), dt, Affine()))
    theta, H = alike.coefficients, alike.diffusion
    grams = subject_grams(problem.data, np.arange(8), dt, problem.drift)
    found = fit_rates(grams, 12 * 7, theta, H)
    assert found.variance > 0
    assert np.linalg.eigvalsh(H - found.diffusion)[0] > -1e-12
    push = problem.drift.features(x[:, :-1], None) @ theta.T * dt
    noise = np.kron(np.eye(7), H * dt)

    def value(omega: float) -> float:
        laws = (
            multivariate_normal(b, noise + omega * np.outer(b, b)) for b in push.reshape(12, -1)
        )
        steps = np.diff(x, axis=1).reshape(12, -1)
        return float(sum(law.logpdf(y) for law, y in zip(laws, steps, strict=True)))

    best = max(value(omega) for omega in np.linspace(0.5, 1.5, 21) * found.variance)
    assert_allclose(found.gain, best - value(0.0), rtol=2e-2)
