"""Forecasts and filled-in values: exact against the dense Gaussian, and intervals that hold what was held out."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.after.forecast import Known, forecasts, missed
from retrace_sde.fit.statespace.model import StateSpace

DT = 0.1


def panel(seed, n=80, T=25, d=2, x0=0.3):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=rng)
    return sde, sde.simulate(n, T, DT, x0=x0, random_state=rng)


def test_a_forecast_is_the_transition_over_the_whole_time():
    """h exact steps of length Δt are one of length h Δt."""
    sde, X = panel(0)
    space = StateSpace(sde.transition(DT), np.zeros((2, 2)), rt.Gaussian(np.zeros(2), np.eye(2)))
    mean, deviation = forecasts(Known(X[:, -1], np.zeros((2, 2))), [space] * 4)
    far = sde.transition(4 * DT)
    np.testing.assert_allclose(mean[:, 3], X[:, -1] @ far.matrix.T + far.shift, rtol=1e-9)
    np.testing.assert_allclose(
        deviation[:, 3], np.tile(np.sqrt(np.diag(far.covariance)), (80, 1)), rtol=1e-9
    )


@pytest.mark.filterwarnings("ignore:The direction of time")
@pytest.mark.parametrize("noisy", [False, pytest.param(True, marks=pytest.mark.statistics)])
def test_intervals_hold_the_next_five_observations(noisy):
    """4000 numbers, those of a trajectory correlated: .93 to .975 is five standard errors."""
    inside = []
    for seed in range(5):
        _, X = panel(10 + seed)
        if noisy:
            X = rt.simulate.add_noise(X, 0.1, random_state=seed)
        past = X[:, :20]
        known = rt.Knowledge(first=0)
        noise = 0.1 if noisy else None
        model = rt.ReTrace(dt=DT, observation_noise=noise, n_jobs=1).fit(past, knowledge=known)
        assert np.array_equal(model.order_, np.arange(20))
        before = past.copy()
        found = model.forecast(past, 5)
        np.testing.assert_array_equal(past, before)
        assert found.mean.shape == (80, 5, 2)
        np.testing.assert_allclose(found.times, DT * np.arange(20, 25))
        inside.append((found.low <= X[:, 20:]) & (X[:, 20:] <= found.high))
    assert 0.93 < np.mean(inside) < 0.975


def test_overconfident_pasts_widen_the_intervals():
    sde, X = panel(1)
    first = rt.Gaussian(np.zeros(2), np.eye(2))
    space = StateSpace(sde.transition(DT, scheme="euler"), np.zeros((2, 2)), first)
    np.testing.assert_allclose(
        missed(X, [space] * 24, 3, 0.95, Known(X, np.zeros((2, 2)))), 1.0, atol=0.15
    )
    step = sde.transition(DT, scheme="euler")
    timid = rt.LinearSDE(sde.drift, sde.diffusion / 4).transition(DT, scheme="euler")
    spaces = [StateSpace(timid, np.zeros((2, 2)), first)] * 24
    found = missed(X, spaces, 1, 0.95, Known(X, np.zeros((2, 2))))
    np.testing.assert_allclose(found, 2.0, rtol=0.15)
    assert step.covariance[0, 0] == pytest.approx(4 * timid.covariance[0, 0])


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_a_table_is_forecast_in_its_own_units():
    _, X = panel(2)
    X = X * np.array([10.0, 0.1]) + np.array([100.0, -3.0])
    known = rt.Knowledge(first=0)
    plain = rt.ReTrace(dt=DT, n_jobs=1).fit(X, knowledge=known).forecast(X, 2)
    table = rt.Panel.from_array(X, names=["heart", "lung"])
    scaled = rt.ReTrace(dt=DT, n_jobs=1).fit(table, knowledge=known).forecast(table, 2)
    np.testing.assert_allclose(scaled.mean, plain.mean, rtol=1e-6)
    np.testing.assert_allclose(scaled.high, plain.high, rtol=1e-4)


def test_a_drift_that_is_not_linear_is_simulated():
    """Of a polynomial that happens to be affine the simulated forecast is the exact one, but for chance."""
    _, X = panel(3, n=40)
    known = rt.Knowledge(first=0)
    exact, drawn = (
        rt.ReTrace(dt=DT, drift=drift, random_state=0, n_jobs=1)
        .fit(X, knowledge=known)
        .forecast(X, 3)
        for drift in ("affine", rt.drift.Polynomial(1))
    )
    reach = (exact.high - exact.low).mean()
    assert np.abs(drawn.mean - exact.mean).max() < 0.1 * reach
    assert np.abs((drawn.high - drawn.low) / (exact.high - exact.low) - 1).mean() < 0.1


def test_gaps_ahead_are_those_given():
    """Two steps of Δt are one of 2 Δt, under exact transitions, and so is the time."""
    _, X = panel(7)
    model = rt.ReTrace(dt=DT, estimator="exact", n_jobs=1).fit(X, knowledge=rt.Knowledge(first=0))
    two, one = model.forecast(X, 2), model.forecast(X, 1, gaps=[2 * DT])
    np.testing.assert_allclose(one.mean[:, 0], two.mean[:, 1], rtol=1e-9)
    np.testing.assert_allclose(one.times[0], two.times[1])
    with pytest.raises(ValueError, match="gaps must be 2"):
        model.forecast(X, 2, gaps=[0.1, -0.1])


def test_an_open_direction_is_said_before_a_forecast():
    _, X = panel(4, x0="stationary", n=20)
    model = rt.ReTrace(dt=DT, n_jobs=1).fit(X)
    if not model.direction_.identified:
        with pytest.warns(rt.ReTraceWarning, match="not determined"):
            model.forecast(X, 1)


@pytest.mark.parametrize(("steps", "level"), [(0, 0.95), (1.5, 0.95), (1, 1.0), (1, 0)])
def test_what_cannot_be_forecast_is_refused(steps, level):
    _, X = panel(5, n=20, T=10)
    model = rt.ReTrace(dt=DT, n_jobs=1).fit(X, knowledge=rt.Knowledge(first=0))
    with pytest.raises(ValueError, match=r"steps|level"):
        model.forecast(X, steps, level=level)


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.statistics)])
def test_missing_values_are_filled_in_where_they_are_stored(seeds):
    """In stored order; observed values are kept; 95 % intervals hold 92 to 98 % of about 500 hidden values."""
    inside = []
    for seed in range(seeds):
        _, X = panel(20 + seed, n=60, T=15)
        rng = np.random.default_rng(seed)
        order = rng.permutation(15)
        holes = rng.random(X.shape) < 0.1
        seen = np.where(holes, np.nan, X)[:, order]
        before = seen.copy()
        model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1).fit(seen)
        found = model.impute(seen)
        np.testing.assert_array_equal(seen, before)
        there = ~np.isnan(seen)
        np.testing.assert_array_equal(found.values[there], seen[there])
        np.testing.assert_array_equal(found.low[there], seen[there])
        truth = X[:, order]
        inside.append(((found.low <= truth) & (truth <= found.high))[~there])
        near = np.abs(found.values - truth)[~there].mean()
        assert near < 0.5 * np.abs(truth - X.mean(axis=(0, 1)))[~there].mean()
    assert 0.92 < np.concatenate(inside).mean() < 0.98


def test_nothing_missing_is_nothing_changed():
    _, X = panel(6, n=20, T=10)
    model = rt.ReTrace(dt=DT, n_jobs=1).fit(X)
    np.testing.assert_array_equal(model.impute(X).values, X)


def test_subjects_levels_make_forecasts_sharper_and_no_less_honest():
    """400 numbers of 40 trajectories: .90 is some five standard errors below .95."""
    rng = np.random.default_rng(3)
    A = np.array([[-1.0, 0.5], [-0.3, -1.2]])
    levels = 2.0 * rng.standard_normal((40, 2))
    x = 2.0 + 0.3 * rng.standard_normal((40, 2))
    path = [x]
    for _ in range(24):
        x = x + (x - levels) @ A.T * 0.15 + 0.2 * rng.standard_normal((40, 2))
        path.append(x)
    X = np.stack(path, axis=1)
    past = X[:, :20]
    known = rt.Knowledge(positions={k: k for k in range(20)})
    own, alike = (
        rt.ReTrace(dt=0.15, subjects=kind, n_jobs=1).fit(past, knowledge=known).forecast(past, 5)
        for kind in ("levels", "alike")
    )
    inside = (own.low <= X[:, 20:]) & (X[:, 20:] <= own.high)
    assert inside.mean() > 0.90
    assert (own.high - own.low).mean() < 0.75 * (alike.high - alike.low).mean()
