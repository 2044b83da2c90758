"""Errors that do not trust the model: against fits without each trajectory, and by coverage with few trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from retrace_sde.fit import regression, scores
from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import ErrorKind, mle
from retrace_sde.fit.scores import (
    SANDWICH_TRAJECTORIES,
    regression_sandwich,
    sandwich_possible,
    with_bias,
)
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine

A = np.array([[-1.0, 0.5], [-0.3, -1.2]])


def paths(rng: np.random.Generator, n: int, T: int, *, rates: float = 0.0) -> Array:
    x = 2 + 0.3 * rng.normal(size=(n, 2))
    speed, path = np.exp(rates * rng.normal(size=(n, 1))), [x]
    for _ in range(T - 1):
        x = x + 0.15 * speed * (x @ A.T) + 0.5 * 0.15**0.5 * rng.normal(size=x.shape)
        path.append(x)
    return np.stack(path, axis=1)


@pytest.mark.parametrize("gaps", ["regular", "own", "lengths"])
def test_closed_form_equals_fits_without_each_trajectory(gaps: str) -> None:
    rng = np.random.default_rng(1)
    n, T = 7, 9
    x, order = paths(rng, n, T), np.tile(np.arange(T), (n, 1))
    dt: float | Array = rng.uniform(0.1, 0.2, (n, T - 1)) if gaps == "own" else 0.15
    lengths = rng.integers(4, T + 1, n) if gaps == "lengths" else None
    data = Data(x, counts=lengths)
    found = moments(data, order, dt, Affine())
    errors, whole, rest = regression_sandwich(data, order, dt, Affine(), found), mle(found), []
    for j in range(n):
        some = Data(np.delete(x, j, 0), counts=None if lengths is None else np.delete(lengths, j))
        step = dt if isinstance(dt, float) else np.delete(dt, j, 0)
        rest.append(mle(moments(some, order[1:], step, Affine())))
    for name, each in (("coefficients", errors.drift), ("diffusion", errors.diffusion)):
        moved = np.stack([getattr(one, name) for one in rest]) - getattr(whole, name)
        assert_allclose(each, np.sqrt((n - 1) / n * (moved**2).sum(axis=0)), rtol=2e-3)
    assert errors.kind == ErrorKind.SANDWICH


@pytest.mark.parametrize("n", [5, 8, 40])
def test_intervals_cover_with_few_trajectories_and_with_rates_that_differ(n: int) -> None:
    """500 panels: nominal .95, sampling error of a share over four dependent coefficients below .01."""
    rng = np.random.default_rng(n)
    for rates in (0.0, 0.3) if n == 40 else (0.0,):
        inside, H_inside = [], []
        for _ in range(500):
            data, order = Data(paths(rng, n, 20, rates=rates), n_jobs=1), np.arange(20)
            found = moments(data, order, 0.15, Affine())
            fit = mle(found)
            errors = regression_sandwich(data, order, 0.15, Affine(), found)
            inside.append(np.abs(fit.coefficients[:, :2] - A) < half_widths(errors.drift[:, :2], n))
            reach = half_widths(errors.diffusion, n)
            H_inside.append(np.abs(fit.diffusion - 0.25 * np.eye(2)) < reach)
        assert 0.92 < np.mean(inside) < 0.975
        if not rates:
            assert 0.92 < np.mean(H_inside) < 0.975


def test_of_a_large_panel_some_trajectories_tell() -> None:
    rng = np.random.default_rng(3)
    data, order = Data(paths(rng, 3 * SANDWICH_TRAJECTORIES, 6)), np.arange(6)
    found = moments(data, order, 0.15, Affine())
    errors = regression_sandwich(data, order, 0.15, Affine(), found)
    assert_allclose(errors.drift, mle(found).errors.drift, rtol=0.15)


def test_too_few_trajectories_have_no_spread() -> None:
    rng = np.random.default_rng(4)
    assert not sandwich_possible(Data(paths(rng, 2, 30)), 3)
    assert not sandwich_possible(Data(paths(rng, 3, 3)), 3)
    assert sandwich_possible(Data(paths(rng, 3, 10)), 3)


def test_errors_of_h_count_its_bias() -> None:
    """Known order, five and eight trajectories: 150 panels of 3 entries leave ±.02 about 95 %."""
    order = np.arange(20)
    for n in (5, 8):
        inside = []
        for seed in range(150):
            data = Data(paths(np.random.default_rng(seed), n, 20), n_jobs=1)
            found = moments(data, order, 0.15, Affine())
            errors, H = (
                regression_sandwich(data, order, 0.15, Affine(), found),
                mle(found).diffusion,
            )
            wider = with_bias(errors, H, found).diffusion
            assert (wider >= errors.diffusion).all()
            inside.append(np.abs(H - 0.25 * np.eye(2)) < half_widths(wider, n))
        assert np.mean(inside) == pytest.approx(0.95, abs=0.03)


def test_short_trajectories_and_very_many_variables_have_the_same_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer steps than regressors are left out by their own equations; by coefficient only, the errors stay."""
    rng = np.random.default_rng(3)
    X, order = np.cumsum(rng.standard_normal((40, 5, 8)), axis=1), np.arange(5)
    data = Data(X, n_jobs=1)
    found = moments(data, order, 0.1, Affine())
    errors = scores.regression_sandwich(data, order, 0.1, Affine(), found)
    rows = np.concatenate([X[:, :-1], np.ones((40, 4, 1))], axis=2)
    left = []
    for j in range(40):
        z, y = (np.delete(each, j, axis=0) for each in (rows, np.diff(X, axis=1)))
        theta = np.linalg.lstsq(z.reshape(-1, 9), y.reshape(-1, 8), rcond=None)[0] / 0.1
        left.append(theta.T)
    full = (
        np.linalg.lstsq(rows.reshape(-1, 9), np.diff(X, axis=1).reshape(-1, 8), rcond=None)[0].T
        / 0.1
    )
    expected = np.sqrt(39 / 40 * ((np.array(left) - full) ** 2).sum(axis=0))
    assert_allclose(errors.drift, expected, rtol=2e-3)
    monkeypatch.setattr(scores, "MAX_COVARIANCE_ELEMENTS", 0)
    few = scores.regression_sandwich(data, order, 0.1, Affine(), found)
    assert few.covariances is None
    assert_allclose(few.drift, errors.drift, rtol=1e-12)
    whole = mle(found)
    monkeypatch.setattr(regression, "MAX_COVARIANCE_ELEMENTS", 0)
    alone = mle(found)
    assert alone.errors.covariances is None
    assert_allclose(alone.errors.drift, whole.errors.drift, rtol=1e-12)
    assert_allclose(
        np.sqrt(np.diagonal(whole.errors.covariances, axis1=1, axis2=2)), whole.errors.drift
    )
