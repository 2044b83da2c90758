"""Subjects at different stages of one course: their shifts are found, and other differences are not taken for stages."""

from __future__ import annotations

import numpy as np

import retrace_sde as rt
from retrace_sde.after.stages import time_shifts


def growth(seed, n=30, T=14):
    """Logistic growth that subjects enter at different stages, and the true shifts in steps."""
    rng = np.random.default_rng(seed)
    shift = rng.uniform(-6, 6, n)
    t = np.arange(T) + shift[:, None]
    x = 1 / (1 + np.exp(-0.4 * (t - 7)))
    return x[:, :, None] + 0.03 * rng.standard_normal((n, T, 1)), shift


def test_shifts_are_found():
    for seed in range(5):
        x, truth = growth(seed)
        (found,) = time_shifts(x, np.arange(14))
        assert found is not None
        error = found.shifts - (truth - truth.mean())
        assert np.sqrt(np.mean(error**2)) < 0.6
        assert np.mean(np.abs(error) < 2.5 * np.hypot(found.errors, 0.2)) > 0.85


def test_levels_rest_and_transients_are_no_stages():
    rng = np.random.default_rng(0)
    course = np.linspace(0, 2, 12)[None, :, None]
    levels = course + rng.standard_normal((40, 1, 1)) + 0.1 * rng.standard_normal((40, 12, 1))
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    rest = sde.simulate(40, 12, 0.1, x0="stationary", random_state=1)
    fall = sde.simulate(40, 12, 0.1, x0=2 + rng.standard_normal((40, 3)), random_state=2)
    for x in (levels, rest, fall):
        assert all(each is None for each in time_shifts(x, np.arange(12)))


def test_a_fit_says_so(tmp_path):
    x, truth = growth(1)
    other = 0.5 * rt.LinearSDE([[-1.0]], [[1.0]]).simulate(30, 14, 0.1, x0="stationary", random_state=3)  # fmt: skip
    X, _ = rt.simulate.shuffle(np.concatenate([x, other], axis=2), random_state=4)
    known = rt.Knowledge(increasing=0)
    model = rt.ReTrace(dt=0.5, subjects="alike", random_state=0).fit(X, knowledge=known)
    result = model.result_
    assert any("different stages" in note for note in result.notes)
    assert np.corrcoef(result.time_shifts[:, 0], truth)[0, 1] > 0.98
    assert abs(np.polyfit(truth, result.time_shifts[:, 0], 1)[0] - 0.5) < 0.1  # in units of dt
    assert np.isnan(result.time_shifts[:, 1]).all()
    assert rt.ReTraceResult.load(result.save(tmp_path / "fit.npz")) == result
