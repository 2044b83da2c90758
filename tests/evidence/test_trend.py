"""A trend from outside: its likelihood beside a dense Gaussian, and no direction from what it explains as well."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import expm, solve_continuous_lyapunov

import retrace_sde as rt
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.trend import (
    DEGREES,
    PRIOR_DEVIATIONS,
    _Past,
    _paths,
    _relaxation,
)
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import fit_directions

DT = 0.1


def stationary(seed, n=30, T=12, d=2):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = -(Q * rng.uniform(0.5, 3, d)) @ Q.T
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -np.eye(d))
    step = np.linalg.cholesky(S - F @ S @ F.T)
    found = [rng.standard_normal((n, d)) @ np.linalg.cholesky(S).T]
    for _ in range(T - 1):
        found.append(found[-1] @ F.T + rng.standard_normal((n, d)) @ step.T)
    return np.stack(found, axis=1), np.sqrt(np.diag(S))


@pytest.mark.parametrize("degree", [1, 2])
def test_a_path_is_integrated_out(degree):
    """Its misfit is that of generalised least squares, and its cost what a prior adds to the log-determinant of the mean path's dense covariance."""
    X, _ = stationary(0)
    X = X + np.linspace(0, 2, 12)[None, :, None] ** 3
    panels = Panels(X[None])
    fit = fit_directions(panels, Form(means=True))[0]
    n, T, d = X.shape
    F, H, start = fit.step[0].T, fit.H[0], fit.start.moments[1]
    blocks = [[np.zeros((d, d)) for _ in range(T)] for _ in range(T)]
    variance = start
    for t in range(T):
        for s in range(t, T):
            blocks[s][t] = np.linalg.matrix_power(F, s - t) @ variance
            blocks[t][s] = blocks[s][t].T
        variance = F @ variance @ F.T + H
    covariance = np.block(blocks) / n
    inverse = np.linalg.inv(covariance)
    design = np.kron(np.linspace(-1, 1, T)[:, None] ** np.arange(degree + 1), np.eye(d))
    path = X.mean(axis=0).ravel()
    rest = path - design @ np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ path)
    spread = np.array([[0.8, 0.0], [0.3, 0.5]])
    misfit, volume = _paths(panels, fit, spread)[DEGREES.index(degree)]
    assert_allclose(misfit, rest @ inverse @ rest, rtol=1e-8)
    prior = PRIOR_DEVIATIONS**2 * np.kron(np.eye(degree + 1), spread @ spread.T)
    logs = (
        np.linalg.slogdet(each)[1] for each in (covariance + design @ prior @ design.T, covariance)
    )
    assert_allclose(volume, (next(logs) - next(logs)) / 2, rtol=1e-8)


def test_a_relaxation_is_integrated_out():
    """Its start and the mean to which it relaxes, beside the dense covariance of the mean path; dynamics by deviations."""
    X, _ = stationary(1)
    panels = Panels(X[None])
    fit, past = fit_directions(panels, Form())[0], _Past.of(panels)
    n, T, d = X.shape
    F, spread = fit.step[0].T, np.array([[0.8, 0.0], [0.3, 0.5]])
    # The first slice's mean, then those of the steps, `m_{t+1} − F m_t = (1 − F) μ`: independent of one another.
    design = np.zeros((T * d, 2 * d))
    design[:d, :d] = np.eye(d)
    design[d:, d:] = np.tile(np.eye(d) - F, (T - 1, 1))
    covariance = np.kron(np.eye(T), fit.H[0]) / n
    covariance[:d, :d] = fit.start.moments[1] / n
    prior = PRIOR_DEVIATIONS**2 * np.kron(np.eye(2), spread @ spread.T)
    logs = (
        np.linalg.slogdet(each)[1] for each in (covariance + design @ prior @ design.T, covariance)
    )
    before = X[:, :-1]
    of_all, of_slices = (
        np.cov((before - before.mean(axis=k)).reshape(-1, d).T) for k in ((0, 1), 0)
    )
    ratio = np.linalg.slogdet(of_all)[1] - np.linalg.slogdet(of_slices)[1]
    assert_allclose(
        _relaxation(past, fit, spread), (next(logs) - next(logs) + d * ratio) / 2, rtol=1e-8
    )


def test_a_trend_that_looks_like_a_relaxation_in_reverse_is_left_open():
    """And so is its mirror image. Linear steps alone call both, by forty nats."""
    X, deviations = stationary(7)
    X = X + 3 * (np.linspace(0, 1, 12) ** 2)[None, :, None] * deviations
    for values in (X, X[:, ::-1]):
        test = rt.ReTrace(dt=DT, random_state=0).fit(values).direction_
        assert not test.identified
        models = {each.name: each for each in test.models}
        assert models[CandidateKind.TREND].counted
        assert abs(models[CandidateKind.MARKOV].log_likelihood_ratio) > 20
        assert "trend from outside" in test.verdict


def test_a_relaxation_that_no_parabola_follows_is_called():
    """Its deviations are stationary: the means alone tell."""
    sde = rt.LinearSDE(-np.diag([6.0, 2.0]), np.eye(2))
    X = sde.simulate(60, 24, DT, x0=rt.Gaussian(np.array([1.5, 2.0]), sde.stationary().covariance),
                     random_state=3)  # fmt: skip
    test = rt.ReTrace(dt=DT, random_state=0).fit(X).direction_
    assert test.identified
    assert test.rests_on["means"] > 2 * abs(test.rests_on["spreads"])
