"""The tests behind the report hold their level, have power, and speak in sentences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, chi2

import retrace_sde as rt
from retrace_sde.evidence.identifiability import detailed_balance_p_value, stationarity_p_value
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear
from retrace_sde.process.sde import LinearSDE


def reversible_sde(d, rng):
    """`A = −½ H B` with B positive definite satisfies A H = H Aᵀ."""
    G, C = rng.standard_normal((d, 2 * d)), rng.standard_normal((d, 2 * d))
    H = G @ G.T / (2 * d)
    return LinearSDE(-H @ (C @ C.T / d + 0.3 * np.eye(d)) / 2, H)


def balance_p(sde, dt, rng, n=50, T=40):
    X = sde.simulate(n, T, dt, x0="stationary", random_state=rng)
    statistics = moments(Data(X, n_jobs=1), np.arange(T), dt, Linear())
    fit = mle(statistics)
    return detailed_balance_p_value(statistics, LinearSDE(fit.coefficients, fit.diffusion))


@pytest.mark.parametrize("dt", [0.01, 0.2])
def test_detailed_balance_holds_its_level_on_reversible_sdes(dt):
    """At dt = 0.2 the error of H matters as much as that of A; both must be in the test."""
    rng = np.random.default_rng(0)
    p = np.array([balance_p(reversible_sde(4, rng), dt, rng) for _ in range(200)])
    for level in (0.05, 0.5):
        low, high = binom.ppf([0.001, 0.999], 200, level)
        assert low <= (p < level).sum() <= high


def test_detailed_balance_is_rejected_for_a_rotation():
    rng = np.random.default_rng(1)
    for _ in range(10):
        sde = rt.simulate.random_irreversible_sde(4, setting="rotation", random_state=rng)
        assert balance_p(sde, 0.05, rng, n=200) < 1e-3


def test_detailed_balance_without_its_matrix_is_the_wald_test_with_it():
    """The covariance of the d(d − 1)/2 gaps Ã_ij − Ã_ji, written out by the delta method."""
    rng, d, n, T = np.random.default_rng(7), 5, 20, 30
    sde = reversible_sde(d, rng)
    X = sde.simulate(n, T, 0.1, x0="stationary", random_state=rng)
    statistics = moments(Data(X, n_jobs=1), np.arange(T), 0.1, Linear())
    fit = mle(statistics)
    L = np.linalg.cholesky(fit.diffusion)
    A = np.linalg.inv(L) @ fit.coefficients @ L
    gram = statistics.blocks[0].T @ statistics.blocks[0]
    P = L.T @ np.linalg.inv(gram) @ L
    pairs = np.column_stack(np.triu_indices(d, 1))
    of_A, of_E = np.zeros((len(pairs), d, d)), np.zeros((len(pairs), d, d))
    for k, (i, j) in enumerate(pairs):
        of_A[k, i, j], of_A[k, j, i] = 1.0, -1.0  # of the entries of Ã
        of_E[k, :, j] += A[i]  # of those of E in (Ã E − E Ãᵀ)_ij
        of_E[k, i, :] -= A[j]
    of_E = of_E + of_E.transpose(0, 2, 1)
    V = np.einsum("aij,jl,bil->ab", of_A, P, of_A)
    V += np.einsum("aij,bij->ab", of_E, of_E) / (2 * statistics.count)
    gap = np.array([A[i, j] - A[j, i] for i, j in pairs])
    expected = chi2.sf(gap @ np.linalg.solve(V, gap), len(pairs))
    found = detailed_balance_p_value(statistics, LinearSDE(fit.coefficients, fit.diffusion))
    assert 1e-6 < expected < 0.999
    assert found == pytest.approx(expected, rel=1e-8)


def test_stationarity_holds_its_level_and_sees_a_moving_spread_or_mean():
    rng = np.random.default_rng(2)
    order, calls = np.arange(30), 0
    for _ in range(200):
        sde = reversible_sde(3, rng)
        X = sde.simulate(40, 30, 0.05, x0="stationary", random_state=rng)
        calls += stationarity_p_value(Data(X, n_jobs=1), order) < 0.05
    assert calls <= binom.ppf(0.999, 200, 0.05)
    growing = sde.simulate(200, 30, 0.05, x0=np.zeros(3), random_state=rng)
    assert stationarity_p_value(Data(growing), order) < 1e-4
    moving = sde.simulate(200, 30, 0.05, x0="stationary", random_state=rng)
    moving += 3 * np.exp(-0.1 * order)[None, :, None]
    assert stationarity_p_value(Data(moving), order) < 1e-4
    shuffled = rng.permutation(30)
    back = np.argsort(shuffled)
    expected = stationarity_p_value(Data(moving), order)
    assert stationarity_p_value(Data(moving[:, shuffled]), back) == pytest.approx(
        expected, rel=1e-6
    )


def test_the_report_says_in_words_what_can_and_cannot_be_learned():
    sde = rt.simulate.random_irreversible_sde(4, setting="rotation", random_state=3)
    transient = sde.simulate(300, 60, 0.02, x0=0.1, random_state=4)
    steady = sde.simulate(300, 60, 0.02, x0="stationary", random_state=5)
    report = rt.ReTrace(dt=0.02, drift="linear", outliers="keep").fit(transient).identifiability_
    assert any("transient" in sentence for sentence in report.can)
    assert any("irreversible" in sentence for sentence in report.can)
    assert any("Theorem 3" in sentence for sentence in report.can)
    assert report.entropy_production == pytest.approx(sde.entropy_production(), rel=0.5)
    report = rt.ReTrace(dt=0.02, drift="linear", outliers="keep").fit(steady).identifiability_
    assert any("direction of time is not" in sentence for sentence in report.cannot)
    assert any("not G itself" in sentence for sentence in report.cannot)


def test_collinear_regressors_are_reported():
    """All trajectories on one growing mode: the other directions of A are hardly determined."""
    sde = LinearSDE(np.diag([8.0, 8.0]) + 0.5, np.eye(2) * 1e-8)
    X = sde.simulate(20, 30, 0.05, x0=np.array([1.0, 1.0]), random_state=6)
    report = rt.ReTrace(dt=0.05, drift="linear").fit(X).identifiability_
    assert report.gram_condition > 1e4
    assert np.isnan(report.entropy_production)
    assert any("unstable" in sentence for sentence in report.cannot)


@pytest.mark.parametrize("identified", [True, False])
def test_an_identified_direction_never_stands_beside_data_that_look_stationary(identified):
    from dataclasses import replace

    from retrace_sde.evidence.direction.verdict import direction_test
    from retrace_sde.evidence.identifiability import _stationarity

    test = replace(direction_test(np.arange(5.0), np.zeros(5), dimension=1), identified=identified)
    said = _stationarity(0.5, 0.05, test).sentence
    assert ("look stationary" in said) is not identified
