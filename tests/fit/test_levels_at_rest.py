"""Subjects at rest about levels of their own: how often they are found, whether units matter, and that they are chosen where ratios do not."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose
from scipy.linalg import solve_discrete_lyapunov

import retrace_sde as rt
from retrace_sde.fit.levels_at_rest import _levels, gain_of_levels_at_rest
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Gaps

A = np.array([[-1.5, 0.4, 0.0], [0.2, -1.0, 0.3], [0.0, 0.3, -2.0]])
DT = 0.1


def panel(seed, *, levels, n=30, T=16, wider=1.0):
    """Three variables at rest about levels of the subjects, in standard deviations of about one; or first states `wider` than at rest."""
    rng = np.random.default_rng(seed)
    x = 0.6 * rng.normal(size=(n, 3))
    found = []
    for k in range(T + 40):
        if k == 40:
            x = wider * x
        if k >= 40:
            found.append(x)
        x = x + DT * x @ A.T + DT**0.5 * rng.normal(size=x.shape)
    return np.stack(found, axis=1) + levels * 0.6 * rng.normal(size=(n, 1, 3))


def gain(X):
    X = X - X.mean(axis=(0, 1))
    data, order = Data(X, n_jobs=1), np.arange(X.shape[1])
    gaps = Gaps.of(DT, data.lengths)
    return np.mean([gain_of_levels_at_rest(data, each, gaps, DT) for each in (order, order[::-1])])


def test_levels_given_first_states_are_those_of_a_gaussian_law():
    H = np.array([[1.0, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 1.3]])
    S = solve_discrete_lyapunov(np.eye(3) + DT * A, DT * H)
    between = np.diag([2.0, 1.0, 0.5])
    K, omega = _levels(A, H, S + between, DT)
    regression = between @ np.linalg.inv(S + between)
    assert_allclose(K, regression, atol=1e-10)
    assert_allclose(omega, A @ (between - regression @ between) @ A.T, atol=1e-10)


def test_first_states_no_wider_than_at_rest_have_no_levels():
    S = solve_discrete_lyapunov(np.eye(3) + DT * A, DT * np.eye(3))
    K, omega = _levels(A, np.eye(3), 0.5 * S, DT)
    assert_allclose(K, 0.0, atol=1e-12)
    assert_allclose(omega, 0.0, atol=1e-12)


def test_units_do_not_matter():
    X = panel(1, levels=1.0)
    M = np.array([[2.0, 1.0, 0.0], [0.0, 0.1, 0.0], [0.5, 0.0, 30.0]])
    assert_allclose(gain(X @ M + 7.0), gain(X), rtol=1e-6)


def test_levels_are_found_and_alike_subjects_left_alone():
    differ = np.array([gain(panel(seed, levels=2.0)) for seed in range(20)])
    alike = np.array([gain(panel(seed, levels=0.0)) for seed in range(60)])
    wider = np.array([gain(panel(seed, levels=0.0, wider=2.0)) for seed in range(60)])
    lesser = np.array([gain(panel(seed, levels=1.0)) for seed in range(20)])
    assert (differ > 0).all()
    assert (lesser > 0).mean() >= 0.65  # .87 is expected
    assert (alike > 0).mean() <= 0.2  # .1 is expected
    assert (wider > 0).mean() <= 0.02


def test_they_are_chosen_where_likelihood_ratios_do_not():
    """Where the likelihood ratio of 15 parameters is below Akaike's penalty."""
    for seed in range(20):
        X = panel(seed, levels=2.0)
        known = rt.Knowledge(timestamps=DT * np.arange(16))
        model = rt.ReTrace(dt=DT, random_state=0, outliers="keep").fit(X, knowledge=known)
        found = model.subject_effects_
        if found.at_rest is not None:
            break
    assert found.kind == "levels"
    assert found.nats <= 0
    assert found.at_rest > 0
    assert f"by {found.at_rest:.1f} nats without a further parameter" in found.verdict
