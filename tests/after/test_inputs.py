"""Forecasts and imputed values of fits with inputs, where values are missing."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.statespace.transitions import transitions

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")

A, C, B = np.array([[-1.0, 0.6], [-0.6, -0.8]]), np.array([1.0, 0.5]), np.array([[1.5], [-1.0]])
DT = 0.1


def driven_panel(n, T, seed):
    """Paths (n, T, 2) that an input (n, T, 1) drives, constant within subjects."""
    rng = np.random.default_rng(seed)
    U = np.broadcast_to(rng.integers(0, 2, (n, 1, 1)), (n, T, 1)).astype(float)
    F, S, Q = (each[0] for each in transitions(np.c_[A, C, B], 0.02 * np.eye(2), np.array([DT])))
    x = 2 + 0.3 * rng.standard_normal((n, 2))
    path = [x]
    for t in range(T - 1):
        noise = rng.standard_normal((n, 2)) @ np.linalg.cholesky(Q).T
        path.append(path[-1] @ F.T + np.c_[np.ones(n), U[:, t]] @ S.T + noise)
    return np.stack(path, axis=1), U


@pytest.fixture(scope="module")
def fitted():
    X, U = driven_panel(60, 14, 1)
    holes = np.random.default_rng(2).random((60, 12, 2)) < 0.1
    past = np.where(holes, np.nan, X[:, :12])
    panel = rt.Panel.from_array(past, covariates=U[:, :12], dt=DT)
    known = rt.Knowledge(first=0, last=11)
    return X, U, holes, panel, rt.ReTrace(n_jobs=1, random_state=0).fit(panel, knowledge=known)


def test_a_fit_with_inputs_and_missing_values_forecasts(fitted):
    X, _, _, panel, model = fitted
    ahead = model.forecast(panel, 2)
    held = (ahead.low <= X[:, 12:]) & (X[:, 12:] <= ahead.high)
    assert 0.88 <= held.mean() <= 1
    assert np.median(ahead.high - ahead.low) < 0.6 * X.std()


def test_a_fit_with_inputs_imputes_missing_values(fitted):
    X, _, holes, panel, model = fitted
    found = model.impute(panel)
    truth = X[:, :12][holes]
    assert np.isfinite(found.values).all()
    assert ((found.low[holes] <= truth) & (truth <= found.high[holes])).mean() >= 0.88
    assert np.abs(found.values[holes] - truth).mean() < 0.2 * X.std()


def test_other_subjects_with_inputs_and_missing_values_are_forecast(fitted):
    model = fitted[-1]
    X, U = driven_panel(20, 14, 5)
    past = np.where(np.random.default_rng(6).random((20, 12, 2)) < 0.1, np.nan, X[:, :12])
    ahead = model.forecast(rt.Panel.from_array(past, covariates=U[:, :12]), 2)
    held = (ahead.low <= X[:, 12:]) & (X[:, 12:] <= ahead.high)
    assert 0.8 <= held.mean() <= 1
    with pytest.raises(ValueError, match="the fit had inputs"):
        model.forecast(past, 2)
