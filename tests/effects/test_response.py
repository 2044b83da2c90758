"""What a lasting change of an input does, against the fit's own Euler steps and against the truth."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.effects.response import responses

A = np.array([[-0.5, 0.2], [0.6, -0.7]])
B, C, DT = np.array([[-0.9], [0.4]]), np.array([0.6, 0.2]), 0.3


def panel(seed, n=80, T=10):
    """Means follow x' = A x + B u + c from a common start, the input switched at random; the order is lost."""
    rng = np.random.default_rng(seed)
    u = (rng.random((n, T, 1)) < 0.5).astype(float)
    X = np.empty((n, T, 2))
    X[:, 0] = [3.0, 0.2] + 0.2 * rng.standard_normal((n, 2))
    for t in range(T - 1):
        push = X[:, t] @ A.T + u[:, t] @ B.T + C
        X[:, t + 1] = X[:, t] + push * DT + 0.08 * rng.standard_normal((n, 2))
    both, _ = rt.simulate.shuffle(np.concatenate([X, u], axis=2), random_state=seed)
    return both[..., :2], both[..., 2:]


def truth(steps=9):
    r, path = np.zeros((2, 1)), []
    for _ in range(steps + 1):
        path.append(r[:, 0])
        r = r + (A @ r + B) * DT
    return np.array(path)


@pytest.fixture(scope="module")
def fits():
    return [rt.ReTrace(dt=DT, random_state=0).fit(X, covariates=u) for X, u in map(panel, range(8))]


def test_it_is_the_difference_of_two_paths_under_the_fit(fits):
    found, result = responses(fits[0].result_)[0], fits[0].result_

    def path(u):
        x, seen = np.array([1.0, -2.0]), []
        for _ in range(10):
            seen.append(x)
            x = x + (result.drift @ x + result.inputs[:, 0] * u + result.offset) * DT
        return np.array(seen)

    np.testing.assert_allclose(found.means[0], path(2.5) - path(1.5), atol=1e-12)
    np.testing.assert_allclose(found.times, DT * np.arange(10))


def test_intervals_hold_the_truth(fits):
    """16 pairs of panel and variable at the last step; each missed with probability .05: 5 or more with under .001."""
    missed = 0
    for model in fits:
        assert model.direction_.identified
        found = responses(model.result_)[0]
        end = truth()[-1]
        missed += int(((end < found.low[0, -1]) | (end > found.high[0, -1])).sum())
        np.testing.assert_allclose(found.means[0, -1], end, atol=0.5)
    assert missed < 5


def test_an_open_direction_has_two_answers_and_no_inputs_have_none():
    sde = rt.LinearSDE(-np.eye(2), 0.2 * np.eye(2))
    X = sde.simulate(60, 8, 0.2, x0="stationary", random_state=0)
    X = rt.simulate.shuffle(X, random_state=1)[0]
    u = np.random.default_rng(2).random((60, 8, 1))
    model = rt.ReTrace(dt=0.2, random_state=0).fit(X, covariates=u)
    assert len(responses(model.result_)) == (1 if model.direction_.identified else 2)
    assert responses(rt.ReTrace(dt=0.2, random_state=0).fit(X).result_) == ()


def test_limits_scale_with_the_units_of_variables():
    X, u = panel(0)
    known = rt.Knowledge(positions={k: k for k in range(10)})

    def found(units):
        model = rt.ReTrace(dt=DT, random_state=0).fit(X * units, covariates=u, knowledge=known)
        each = responses(model.result_)[0]
        return np.stack([each.means, each.low, each.high]) / units

    np.testing.assert_allclose(found([1e9, 1e-9]), found([1.0, 1.0]), rtol=1e-6)
