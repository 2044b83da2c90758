"""The whole fit: order, direction and parameters against the oracle, and what a user may do with it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import retrace_sde as rt
from retrace_sde.metrics import mean_absolute_error, order_accuracy
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.models import euler
from retrace_sde.search.models.euler import EulerModel

DT = 0.01


def shuffled_panel(setting="stable", d=10, n=200, T=60, x0=0.1, seed=0, scheme="euler", dt=DT):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting=setting, random_state=rng)
    if x0 == "shifted":
        x0 = 2.0 + 0.5 * rng.standard_normal((n, d))
    elif x0 == "point":
        x0 = rng.standard_normal(d)
    X = sde.simulate(n, T, dt, x0=x0, scheme=scheme, random_state=rng)
    return sde, *rt.simulate.shuffle(X, random_state=rng)


@pytest.mark.parametrize("setting", ["stable", "growing", "rotation", "paper"])
@pytest.mark.parametrize(
    ("start", "drift"),
    [
        *((start, "affine") for start in (0.1, "shifted", "point")),
        (0.1, "linear"),
        *(
            pytest.param(start, "linear", marks=pytest.mark.statistics)
            for start in ("shifted", "point")
        ),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:drift='linear'"
)  # right here, though a shifted start is far from zero
def test_the_order_is_right_with_direction_and_the_parameters_equal_the_oracles(
    setting, start, drift
):
    _, X, truth = shuffled_panel(setting, n=100, T=30, x0=start, seed=hash_seed(setting, start))
    model = rt.ReTrace(dt=DT, drift=drift).fit(X)
    np.testing.assert_array_equal(model.order_, truth)
    assert model.direction_.identified
    assert model.alternative_ is None
    assert model.converged_
    # The oracle: plain normal equations with the true order, of which the SDE's exact step is the solution.
    x, y = X[:, truth[:-1]].reshape(-1, 10), np.diff(X[:, truth], axis=1).reshape(-1, 10)
    phi = x if drift == "linear" else np.c_[x, np.ones(len(x))]
    theta = np.linalg.lstsq(phi, y, rcond=None)[0].T / DT
    residual = y - phi @ theta.T * DT
    H = residual.T @ residual / len(y) / DT
    step = model.result_.sde.transition(DT)
    np.testing.assert_allclose((step.matrix - np.eye(10)) / DT, theta[:, :10], rtol=1e-6, atol=1e-8)
    c = np.zeros(10) if drift == "linear" else theta[:, 10]
    np.testing.assert_allclose(step.shift / DT, c, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(step.covariance / DT, H, rtol=1e-8, atol=1e-10)


def hash_seed(*parts: object) -> int:
    return sum(map(ord, repr(parts)))


@pytest.mark.parametrize("setting", ["stable", "growing", "rotation", "paper"])
@pytest.mark.parametrize("start", [0.1, "point"])
@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.statistics)])
def test_twenty_trajectories_are_enough_for_small_and_point_starts(setting, start, runs):
    for seed in range(runs):
        _, X, truth = shuffled_panel(setting, n=20, x0=start, seed=100 + seed)
        model = rt.ReTrace(dt=DT, random_state=0).fit(X)
        np.testing.assert_array_equal(model.order_, truth)
        assert model.direction_.identified


@pytest.mark.parametrize("runs", [1, pytest.param(12, marks=pytest.mark.statistics)])
def test_large_spread_is_never_confidently_wrong(runs):
    for seed in range(runs):
        for setting in ("stable", "growing", "rotation"):
            _, X, truth = shuffled_panel(setting, d=5, n=100, T=40, x0=1.0, seed=200 + seed)
            model = rt.ReTrace(dt=DT, random_state=0).fit(X)
            assert order_accuracy(truth, model.order_, up_to_reversal=True) == 1
            assert not model.direction_.identified or np.array_equal(model.order_, truth)


@pytest.mark.parametrize("runs", [2, pytest.param(40, marks=pytest.mark.statistics)])
def test_stationary_data_are_called_undetermined_and_the_twin_is_the_other_direction(runs):
    calls = 0
    for seed in range(runs):
        _, X, truth = shuffled_panel(d=5, n=100, T=40, x0="stationary", seed=300 + seed)
        model = rt.ReTrace(dt=DT, random_state=0).fit(X)
        assert order_accuracy(truth, model.order_, up_to_reversal=True) == 1
        calls += model.direction_.identified
        if not model.direction_.identified:
            twin = model.alternative_
            np.testing.assert_array_equal(twin.order, model.order_[::-1])
            other = EulerModel(Data(X), DT, Affine()).fit(model.order_[::-1]).step
            step = rt.LinearSDE(twin.drift, twin.diffusion, offset=twin.offset).transition(DT)
            theta = np.c_[step.matrix - np.eye(5), step.shift] / DT
            np.testing.assert_allclose(theta, other.coefficients)
            assert twin.log_likelihood <= model.log_likelihood_
    # At most 5 % false calls: more than this many has probability < 1 in 1000 at that rate.
    assert calls <= binom.ppf(0.999, runs, 0.05)


@pytest.mark.parametrize("runs", [1, pytest.param(25, marks=pytest.mark.statistics)])
def test_a_half_width_start_is_identified_and_right(runs):
    for seed in range(runs):
        rng = np.random.default_rng(400 + seed)
        sde = rt.simulate.random_irreversible_sde(10, setting="stable", random_state=rng)
        law = sde.stationary()
        X = sde.simulate(
            200, 50, DT, x0=rt.Gaussian(law.mean, law.covariance / 4), random_state=rng
        )
        X, truth = rt.simulate.shuffle(X, random_state=rng)
        model = rt.ReTrace(dt=DT, random_state=0).fit(X)
        np.testing.assert_array_equal(model.order_, truth)
        assert model.direction_.identified


def test_a_point_start_is_named_in_the_verdict():
    _, X, _ = shuffled_panel(x0="point")
    direction = rt.ReTrace(dt=DT, random_state=0).fit(X).direction_
    assert direction.point_start
    assert "start from (almost) one point" in direction.verdict


def test_an_order_found_on_a_few_trajectories_is_verified_on_all(monkeypatch):
    """With a search on far too few numbers, the verification must notice and search again."""
    _, X, truth = shuffled_panel(d=3, n=150, T=40, seed=5)
    monkeypatch.setattr(euler, "SEARCH_ELEMENTS", 9)
    few = EulerModel(Data(X).some(3), DT, Linear())
    guess = few.shared_starts(np.random.default_rng(0))[0]
    assert order_accuracy(truth, guess, up_to_reversal=True) < 1
    np.testing.assert_array_equal(rt.ReTrace(dt=DT, random_state=0).fit(X).order_, truth)


def test_affine_drift_recovers_the_offset():
    rng = np.random.default_rng(6)
    base = rt.simulate.random_irreversible_sde(4, random_state=rng)
    sde = rt.LinearSDE(base.drift, base.diffusion, offset=[30.0, -20.0, 10.0, 0.0])
    X = sde.simulate(400, 50, DT, x0=0.1, random_state=rng) + 0.0
    shuffled, truth = rt.simulate.shuffle(X, random_state=rng)
    model = rt.ReTrace(dt=DT, drift="affine").fit(shuffled)
    np.testing.assert_array_equal(model.order_, truth)
    # Each estimate within 5 of its own standard errors (4 + 16 entries, fixed seed).
    assert np.all(np.abs(model.offset_ - sde.offset) < 5 * model.standard_errors_.offset)
    assert np.all(np.abs(model.drift_ - sde.drift) < 5 * model.standard_errors_.drift)
    assert np.abs(model.offset_).max() > 5
    same = rt.ReTrace(dt=DT, drift=Affine()).fit(shuffled)
    np.testing.assert_array_equal(same.offset_, model.offset_)


def test_a_linear_drift_is_warned_of_once_far_from_zero_and_never_near_it():
    """And it has an offset all the same: zeros."""
    _, X, _ = shuffled_panel(d=3, n=40, T=20, x0=0.5, seed=9)
    near = rt.ReTrace(dt=DT, drift="linear").fit(X)  # warnings are errors here
    np.testing.assert_array_equal(near.offset_, np.zeros(3))
    with pytest.warns(rt.ReTraceWarning) as caught:
        rt.ReTrace(dt=DT, drift="linear").fit(X + np.array([0.0, 50.0, 10.0]))
    (said,) = [str(each.message) for each in caught if "drift='linear'" in str(each.message)]
    assert "x1" in said
    assert "use drift='affine'" in said
    rt.ReTrace(dt=DT, random_state=0).fit(X + np.array([0.0, 50.0, 10.0]))


def test_exact_beats_euler_on_exactly_simulated_data():
    sde, X, truth = shuffled_panel(d=5, n=500, T=30, scheme="exact", dt=0.3, seed=7)
    euler = rt.ReTrace(dt=0.3, estimator="mle").fit(X)
    exact = rt.ReTrace(dt=0.3, estimator="exact").fit(X)
    np.testing.assert_array_equal(exact.order_, truth)
    error = [mean_absolute_error(sde.diffusion, model.diffusion_) for model in (euler, exact)]
    assert error[0] > 5 * error[1]


def test_ols_equals_mle_in_the_drift():
    _, X, _ = shuffled_panel(d=4, n=30, T=20)
    mle, ols = (rt.ReTrace(dt=DT, estimator=name).fit(X) for name in ("mle", "ols"))
    np.testing.assert_array_equal(ols.drift_, mle.drift_)
    count = 30 * 19
    np.testing.assert_allclose(ols.diffusion_, mle.diffusion_ * count / (count - 5))


def test_one_trajectory_is_fitted_with_a_warning_and_no_direction():
    _, X, truth = shuffled_panel(d=20, n=1, T=60, seed=8)
    with pytest.warns(rt.ReTraceWarning, match="one trajectory"):
        model = rt.ReTrace(dt=DT, random_state=0).fit(X)
    assert not model.direction_.identified
    assert "1 trajectory" in model.direction_.verdict
    # A single path in 20 dimensions still orders most neighbours.
    assert rt.metrics.neighbour_share(truth, model.order_) > 0.8


def test_the_answer_does_not_depend_on_the_number_of_jobs():
    _, X, _ = shuffled_panel(d=20, n=300, T=60)
    one, three = (rt.ReTrace(dt=DT, n_jobs=jobs).fit(X) for jobs in (1, 3))
    np.testing.assert_array_equal(one.order_, three.order_)
    assert one.log_likelihood_ == pytest.approx(three.log_likelihood_, rel=1e-13)
    np.testing.assert_allclose(one.drift_, three.drift_, rtol=1e-10)


def test_reorder_and_score_work_on_held_out_trajectories_with_another_permutation():
    rng = np.random.default_rng(9)
    sde = rt.simulate.random_irreversible_sde(6, random_state=rng)
    X = sde.simulate(300, 40, DT, x0=0.1, random_state=rng)
    train, _ = rt.simulate.shuffle(X[:200], random_state=rng)
    test, _ = rt.simulate.shuffle(X[200:], random_state=rng)
    model = rt.ReTrace(dt=DT, random_state=0).fit(train)
    np.testing.assert_array_equal(model.reorder(test), X[200:])
    law, fitted = model.result_.initial, model.result_.sde
    expected = fitted.log_likelihood(X[200:], DT, initial=law).mean()
    assert model.score(test) == pytest.approx(expected, rel=1e-10)
    with pytest.raises(ValueError, match="6"):
        model.score(test[:, :, :3])


def test_scikit_learn_can_clone_it_and_search_over_its_parameters():
    _, X, _ = shuffled_panel(d=3, n=60, T=15)
    model = rt.ReTrace(dt=DT, estimator="ols", alpha=0.01)
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(rt.ReTrace(dt=DT), {"drift": ["linear", "affine"]}, cv=3).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_unfitted_models_say_so():
    with pytest.raises(Exception, match="not fitted"):
        rt.ReTrace().summary()
    assert not hasattr(rt.ReTrace(), "order_")


@pytest.mark.statistics
@pytest.mark.parametrize("setting", ["stable", "growing", "rotation", "paper"])
@pytest.mark.parametrize("start", [0.1, 1.0, "shifted", "point", "stationary"])
@pytest.mark.filterwarnings("ignore:drift='linear'")
def test_the_papers_size(setting, start):
    """d = 50, n = 2000, T = 250: right with direction, or right up to reversal with an abstention."""
    if start == "stationary" and setting != "stable":
        pytest.skip("only a stable drift has a stationary law")
    sde, X, truth = shuffled_panel(setting, 50, 2000, 250, start, seed=hash_seed(setting, start))
    model = rt.ReTrace(dt=DT, drift="linear").fit(X)
    assert order_accuracy(truth, model.order_, up_to_reversal=True) == 1
    if start in (0.1, "point", "shifted"):
        assert model.direction_.identified
    if model.direction_.identified:
        np.testing.assert_array_equal(model.order_, truth)
        oracle = EulerModel(Data(X), DT, Linear()).fit(truth).step
        for ours, theirs, true in (
            (model.drift_, oracle.coefficients, sde.drift),
            (model.diffusion_, oracle.diffusion, sde.diffusion),
        ):
            assert mean_absolute_error(true, ours) <= 1.001 * mean_absolute_error(true, theirs)
    else:
        assert model.alternative_ is not None


def test_verbose_prints_each_round_and_silence_is_the_default(capsys):
    _, X, _ = shuffled_panel(d=3, n=30, T=12)
    rt.ReTrace(dt=DT, random_state=0).fit(X)
    assert capsys.readouterr().out == ""
    model = rt.ReTrace(dt=DT, verbose=True).fit(X)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[-1] == f"round {model.n_iter_}: log-likelihood {model.log_likelihood_:,.1f}"


def test_probabilities_given_few_values_are_said_to_be_too_high():
    """One long series: its parameters are taken for known, and a handful of values stands behind each."""
    sde = rt.simulate.random_irreversible_sde(6, random_state=0)
    X = sde.simulate(3, 40, 0.05, x0="stationary", random_state=1)
    for values, few in ((X[:1], True), (X[:, :12], False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = rt.ReTrace(dt=0.05, random_state=0, n_jobs=1).fit(values)
            posterior = model.sample_orders(draws=50)
        said = any("probabilities are too high" in str(each.message) for each in caught)
        assert said is few
        assert posterior.over_parameters is not few
