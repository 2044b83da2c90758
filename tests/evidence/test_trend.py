"""A trend from outside: its likelihood beside a dense Gaussian, and no direction from what it explains as well."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import expm, solve_continuous_lyapunov

import retrace_sde as rt
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.trend import _misfit
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
def test_misfit_is_generalised_least_squares_of_the_mean_path(degree):
    """Beside the dense covariance of the mean path."""
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
    inverse = np.linalg.inv(np.block(blocks) / n)
    design = np.kron(np.linspace(0, 1, T)[:, None] ** np.arange(degree + 1), np.eye(d))
    path = X.mean(axis=0).ravel()
    rest = path - design @ np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ path)
    assert_allclose(_misfit(panels, fit, degree), rest @ inverse @ rest, rtol=1e-8)


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
