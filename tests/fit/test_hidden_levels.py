"""Levels behind noise, missing values and uneven gaps: against one dense Gaussian, the closed form without noise, and the truth."""

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.evidence.selection.intercepts import hidden_levels_along
from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.random_intercepts import fit_levels, level_influences
from retrace_sde.fit.scores import errors_of_influences
from retrace_sde.fit.statespace.random_intercepts import hidden_level_errors, informed
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.process.sde import van_loan
from retrace_sde.search.model import Problem
from retrace_sde.search.models.hidden import HiddenModel

DT = 0.15
A = np.array([[-1.0, 0.5], [-0.3, -1.2]])
H = 0.25 * np.eye(2)


def panel(seed, *, n=60, T=15, levels=1.0, gaps=None, noise=0.0):
    """Exact paths from 2 ± .3, an intercept for each subject; observed with noise."""
    rng = np.random.default_rng(seed)
    c, x = levels * rng.standard_normal((n, 2)), 2 + 0.3 * rng.standard_normal((n, 2))
    path = [x]
    for g in np.full(T - 1, DT) if gaps is None else gaps:
        F, Q = van_loan(A, H, g)
        push = c @ np.linalg.solve(A, F - np.eye(2)).T
        x = x @ F.T + push + rng.standard_normal((n, 2)) @ np.linalg.cholesky(Q).T
        path.append(x)
    return np.stack(path, axis=1) + noise * rng.standard_normal((n, T, 2))


def along(y, gaps, *, noise="estimate", scheme="exact"):
    problem, order = Problem(Data(y), DT, Affine()), np.arange(y.shape[1])
    model = HiddenModel.across(problem, gaps, noise=noise, scheme=scheme)
    return hidden_levels_along(model, model.fit(order, final=True))


def dense(law, y, gaps):
    """log p of one subject's observations, by the covariance of all states (x, c) at all times."""
    d, T = len(law.H), len(y)
    generator = np.zeros((2 * d, 2 * d))
    generator[:d, :d], generator[:d, d:] = law.theta[:, :d], np.eye(d)
    m, P, start = law.initial.mean, law.initial.covariance, np.zeros((2 * d * T, 2 * d * T))
    mean, covariance = [m], start
    covariance[: 2 * d, : 2 * d] = P
    for t, g in enumerate(gaps, start=1):
        F, Q = expm(generator * g), np.zeros((2 * d, 2 * d))
        Q[:d, :d] = van_loan(law.theta[:, :d], law.H, g)[1]
        here, last = slice(2 * d * t, 2 * d * (t + 1)), slice(2 * d * (t - 1), 2 * d * t)
        covariance[here, : 2 * d * t] = F @ covariance[last, : 2 * d * t]
        covariance[: 2 * d * t, here] = covariance[here, : 2 * d * t].T
        covariance[here, here] = F @ covariance[last, last] @ F.T + Q
        mean.append(F @ mean[-1])
    states = np.concatenate([2 * d * t + np.arange(d) for t in range(T)])
    K = covariance[np.ix_(states, states)] + np.kron(np.eye(T), law.R)
    mu, seen = np.concatenate([each[:d] for each in mean]), ~np.isnan(y.ravel())
    return multivariate_normal.logpdf(y.ravel()[seen], mu[seen], K[np.ix_(seen, seen)])


def test_the_likelihood_is_that_of_one_dense_gaussian():
    rng, gaps = np.random.default_rng(0), np.array([0.1, 0.3, 0.1, 0.5])
    y = panel(1, n=9, T=5, gaps=gaps, noise=0.1)
    y[rng.random(y.shape) < 0.2] = np.nan
    found = along(y, gaps)
    expected = [dense(found.law, each, gaps) for each in y]
    np.testing.assert_allclose(found.log_likelihoods, expected, rtol=1e-8)


def test_without_noise_it_is_the_closed_form():
    """Strata of second moments know no noise and no missing values; Euler's steps on both sides."""
    X = panel(2)
    model = HiddenModel.of(Problem(Data(X), DT, Affine()), noise=0.0)
    found = hidden_levels_along(model, model.fit(np.arange(15), final=True))
    closed = fit_levels(Data(X), np.arange(15), DT)
    errors, known = (
        hidden_level_errors(found, Data(X))(None),
        errors_of_influences(*level_influences(closed)),
    )
    assert np.abs(found.drift - closed.drift).max() < 0.1 * known.drift.min()
    np.testing.assert_allclose(found.diffusion, closed.diffusion, rtol=0.01, atol=1e-3)
    np.testing.assert_allclose(found.between, closed.between, rtol=0.05, atol=0.02)
    np.testing.assert_allclose(found.effects, closed.effects, atol=0.03)
    np.testing.assert_allclose(errors.drift, known.drift[:, :3], rtol=0.1)
    np.testing.assert_allclose(errors.diffusion, known.diffusion, rtol=0.1)


@pytest.mark.parametrize("case", ["noise", "missing", "uneven"])
def test_levels_are_chosen_and_the_drift_is_not_shrunk(case):
    """One SDE for all makes the trace of A several times too small; errors of the trace are about .16, three of them allowed."""
    rng, know = np.random.default_rng(5), rt.Knowledge(timestamps=DT * np.arange(15.0))
    X, options = panel(3, noise=0.1), {"observation_noise": "estimate", "estimator": "exact"}
    if case == "missing":
        X = np.where(rng.random(X.shape) < 0.15, np.nan, panel(3))
        options = {"estimator": "exact"}
    if case == "uneven":
        gaps = rng.choice([0.5, 1.0, 2.0], 14) * DT
        X, know = panel(3, gaps=gaps, noise=0.1), rt.Knowledge(timestamps=np.r_[0, np.cumsum(gaps)])
    model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, **options).fit(X, knowledge=know)
    assert model.subject_effects_.kind == "levels"
    assert "nats" in model.subject_effects_.verdict
    assert abs(np.trace(model.drift_) / -2.2 - 1) < 3 * 0.16 / 2.2
    reach = half_widths(model.standard_errors_.drift, 60)
    assert np.mean(np.abs(model.drift_ - A) < 1.5 * reach) == 1
    assert model.subject_effects_.intercepts.shape == (60, 2)


def test_subjects_that_are_alike_stay_so_behind_noise():
    """Akaike's price of seven parameters is paid by chance in few panels; none of these three."""
    for seed in range(3):
        X = panel(10 + seed, levels=0.0, noise=0.1)
        known = rt.Knowledge(timestamps=DT * np.arange(15.0))
        model = rt.ReTrace(
            dt=DT, observation_noise="estimate", outliers="keep", random_state=0
        ).fit(X, knowledge=known)
        assert model.subject_effects_.kind == "alike"


def test_forecast_and_imputation_know_the_levels():
    X = panel(4, T=18, levels=2.0, noise=0.05)
    holes = np.random.default_rng(0).random(X[:, :15].shape) < 0.1
    seen = np.where(holes, np.nan, X[:, :15])
    known = rt.Knowledge(timestamps=DT * np.arange(15.0))
    options = {"dt": DT, "observation_noise": "estimate", "random_state": 0}
    model = rt.ReTrace(**options).fit(seen, knowledge=known)
    alike = rt.ReTrace(**options, subjects="alike").fit(seen, knowledge=known)
    found, wide = model.forecast(seen, 3), alike.forecast(seen, 3)
    inside = (found.low <= X[:, 15:]) & (X[:, 15:] <= found.high)
    assert 0.88 < inside.mean() <= 1
    assert np.mean(found.high - found.low) < 0.8 * np.mean(wide.high - wide.low)
    filled = model.impute(seen)
    held = (filled.low <= X[:, :15]) & (X[:, :15] <= filled.high)
    assert held[holes].mean() > 0.88


def test_what_levels_cannot_be_combined_with_is_said():
    X = panel(5, n=12, T=6)
    with pytest.raises(ValueError, match="averages over"):
        rt.ReTrace(subjects="levels", estimator="mcem", permutation="independent").fit(X)
    with pytest.raises(ValueError, match="gaps that are known or shared"):
        rt.ReTrace(subjects="levels", spacing="estimate", permutation="independent").fit(X)
    full = np.array([[0.02, 0.01], [0.01, 0.02]])
    with pytest.raises(ValueError, match="one standard deviation for each"):
        rt.ReTrace(subjects="levels", observation_noise=full).fit(X)


def test_combinations_that_the_data_say_nothing_of_are_held():
    """An eigenvalue of −9e-5, of an Ω of less than full rank, made errors of A a thousand times too large."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    values = np.array([-9e-5, 0.5, 1.0, 2.0])
    found = informed((Q * values) @ Q.T)
    np.testing.assert_allclose(found, (Q[:, 1:] / values[1:]) @ Q[:, 1:].T, atol=1e-12)
    np.testing.assert_array_equal(informed(np.diag([0.0, 4.0])), np.diag([0.0, 0.25]))
