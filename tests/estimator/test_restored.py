"""A saved result orders, scores and forecasts other trajectories as the model that was fitted does."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")

SDE = rt.simulate.random_irreversible_sde(2, random_state=0)
SCALES = np.array([1e3, 1e-2])


def panel(n, seed):
    return SDE.simulate(n, 10, 0.05, random_state=seed) * SCALES + 5 * SCALES


CASES = {
    "plain": {},
    "exact": {"estimator": "exact"},
    "noise": {"observation_noise": 0.05 * SCALES},
    "linear": {"drift": "linear"},
    "independent": {"permutation": "independent", "estimator": "mle"},
    "averaged": {"permutation": "independent", "estimator": "mcem"},
    "common shocks": {"common_shocks": True},
    "levels": {"subjects": "levels"},
}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("case", CASES)
def test_a_saved_result_is_a_model(case, tmp_path):
    X, Z = panel(30, 1), panel(12, 2)
    if case == "linear":
        X, Z = X - 5 * SCALES, Z - 5 * SCALES
    model = rt.ReTrace(**{"dt": 0.05, "subjects": "alike", "random_state": 0, **CASES[case]}).fit(X)
    saved = rt.ReTraceResult.load(model.result_.save(tmp_path / "fit.npz")).model()
    np.testing.assert_array_equal(saved.reorder(Z), model.reorder(Z))
    one, two = saved.forecast(Z, 3), model.forecast(Z, 3)
    np.testing.assert_allclose(one.times, two.times)
    tight = 1e-6 if case not in ("common shocks", "levels", "averaged") else 0.02
    for name in ("mean", "low", "high"):
        np.testing.assert_allclose(
            getattr(one, name) / SCALES, getattr(two, name) / SCALES, rtol=tight, atol=tight
        )
    assert saved.score(Z) == pytest.approx(model.score(Z), rel=max(tight, 1e-5), abs=0.05)
    assert saved.summary() == rt.ReTraceResult.load(tmp_path / "fit.npz").summary()


def test_inputs_and_missing_values(tmp_path):
    rng = np.random.default_rng(0)
    X = panel(30, 1)
    U = rng.integers(0, 2, (30, 1, 1)) * np.ones((30, 10, 1))
    X = np.where(rng.random(X.shape) < 0.05, np.nan, X + np.cumsum(0.1 * U, axis=1) * SCALES)
    given = rt.Panel.from_array(X, covariates=U)
    model = rt.ReTrace(dt=0.05, random_state=0, n_jobs=1).fit(given)
    saved = rt.ReTraceResult.load(model.result_.save(tmp_path / "fit.npz")).model()
    other = rt.Panel.from_array(X[:10], covariates=U[:10])
    one, two = saved.forecast(other, 2), model.forecast(other, 2)
    np.testing.assert_allclose(one.mean / SCALES, two.mean / SCALES, rtol=0.05, atol=0.05)


def test_what_needs_the_data_is_refused_in_words(tmp_path):
    X = panel(20, 1)
    saved = rt.ReTrace(dt=0.05, random_state=0).fit(X).result_.model()
    for ask in (saved.sample_orders, saved.bootstrap_errors, lambda: saved.states_):
        with pytest.raises(ValueError, match="a saved result does not keep"):
            ask()
    cubic = rt.ReTrace(dt=0.05, random_state=0, drift=rt.drift.Polynomial(2)).fit(X / SCALES)
    with pytest.raises(ValueError, match="linear or affine"):
        cubic.result_.model()
