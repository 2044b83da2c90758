"""Levels of subjects by one number: its formula against plain least squares, its level, and what it finds that likelihood ratios miss."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.evidence.selection.own_levels import OWN_LEVELS_P, _trace, own_levels_p
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import EulerModel

A = np.array([[-1.5, 0.4, 0.0], [0.2, -1.0, 0.3], [0.0, 0.3, -2.0]])
DT = 0.1


def panel(seed, *, levels, n=30, T=16):
    """Three variables at rest about levels of the subjects, in standard deviations of about one."""
    rng = np.random.default_rng(seed)
    x = 0.6 * rng.normal(size=(n, 3))
    found = []
    for k in range(T + 40):
        if k >= 40:
            found.append(x)
        x = x + DT * x @ A.T + DT**0.5 * rng.normal(size=x.shape)
    return np.stack(found, axis=1) + levels * 0.6 * rng.normal(size=(n, 1, 3))


def p_of(X):
    model = EulerModel(Data(X, n_jobs=1), DT, Affine())
    return own_levels_p(model, model.fit(np.arange(X.shape[1]), final=True))


def test_the_statistic_is_a_trace_of_least_squares_over_its_error():
    X = panel(0, levels=1.0)
    y = np.diff(X, axis=1).reshape(-1, 3)
    first = np.repeat(X[:, :1], 15, axis=1)
    psi = np.concatenate([X[:, :-1], first, np.ones((30, 15, 1))], axis=2).reshape(-1, 7)
    theta = np.linalg.lstsq(psi, y, rcond=None)[0]
    e = y - psi @ theta
    # the covariance of vec θ̂ is H ⊗ (ψᵀψ)⁻¹, and tr Γ̂ one linear combination of it
    cov = np.kron(e.T @ e / (450 - 7), np.linalg.inv(psi.T @ psi))
    pick = np.zeros((3, 7))
    pick[range(3), range(3, 6)] = 1.0
    expected = np.trace(theta[3:6]) / np.sqrt(pick.ravel() @ cov @ pick.ravel())
    assert_allclose(_trace(X[None])[0], expected, rtol=1e-6)


def test_units_do_not_matter():
    X = panel(1, levels=1.0)
    M = np.array([[2.0, 1.0, 0.0], [0.0, 0.1, 0.0], [0.5, 0.0, 30.0]])
    assert_allclose(_trace((X @ M + 7.0)[None]), _trace(X[None]), rtol=1e-6)


def test_levels_are_found_and_alike_subjects_left_alone():
    differ = np.array([p_of(panel(seed, levels=2.0)) for seed in range(20)])
    alike = np.array([p_of(panel(seed, levels=0.0)) for seed in range(60)])
    assert (differ <= OWN_LEVELS_P).mean() >= 0.7
    assert (alike <= OWN_LEVELS_P).mean() <= 0.1  # .04 is expected


def test_they_are_chosen_where_likelihood_ratios_do_not():
    """Where the likelihood ratio of 15 parameters is below Akaike's penalty."""
    for seed in range(20):
        X = panel(seed, levels=2.0)
        known = rt.Knowledge(timestamps=DT * np.arange(16))
        found = (
            rt.ReTrace(dt=DT, random_state=0, outliers="keep")
            .fit(X, knowledge=known)
            .subject_effects_
        )
        if found.p_value is not None:
            break
    assert found.kind == "levels"
    assert found.nats <= 0
    assert found.p_value <= OWN_LEVELS_P
    assert f"p = {found.p_value:.2g}" in found.verdict


def test_a_large_panel_is_tested_on_some_of_its_trajectories():
    assert p_of(panel(3, levels=2.0, n=4000)) < 1e-4
