"""Fits across known, scheduled, estimated and unknown gaps, with inputs, noise and missing values."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.orders.prior import compiled
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.schedule import off_schedule, on_schedule
from retrace_sde.process.drift import Affine, Driven
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.models.random_gaps import RandomGapModel, SummedGapModel

A, C, H = np.array([[-1.0, 0.5], [-0.3, -1.2]]), np.array([0.3, 0.1]), 0.25 * np.eye(2)
B = np.array([[0.8], [-0.4]])
TIMES = np.array([0.0, 0.1, 0.2, 0.5, 0.6, 1.0, 1.1, 1.8])

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")


def paths(n, gaps, seed, *, inputs=False, noise=0.0, missing=0.0):
    """Paths (n, T, 2) across gaps (T − 1,) or (n, T − 1), and inputs (n, T, 1)."""
    rng = np.random.default_rng(seed)
    gaps = np.broadcast_to(gaps, (n, np.shape(gaps)[-1]))
    T = gaps.shape[1] + 1
    U = rng.integers(0, 2, (n, T, 1)).astype(float)
    theta = np.c_[A, C, B if inputs else 0 * B]
    x = 2 + 0.3 * rng.standard_normal((n, 2))
    path = [x]
    for t in range(T - 1):
        F, S, Q = transitions(theta, H, gaps[:, t])
        v = np.c_[np.ones(n), U[:, t]]
        x = np.einsum("nij,nj->ni", F, x) + np.einsum("nij,nj->ni", S, v)
        x = x + np.einsum("nij,nj->ni", np.linalg.cholesky(Q), rng.standard_normal((n, 2)))
        path.append(x)
    X = np.stack(path, axis=1)
    X = X + noise * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < missing, np.nan, X), U


def assert_covered(model, *, inputs=False, share=0.75):
    """Nearly all true parameters lie within three standard errors."""
    errors = model.standard_errors_
    z = [(model.drift_ - A) / errors.drift, (model.diffusion_ - H) / errors.diffusion]
    if inputs:
        z.append((model.inputs_ - B) / errors.inputs)
    z = np.concatenate([each.ravel() for each in z])
    assert np.isfinite(z).all()
    assert np.abs(z).max() < 5
    assert np.mean(np.abs(z) < 2) >= share


def test_known_irregular_times_with_noise_missing_values_and_inputs():
    rng = np.random.default_rng(0)
    gaps = rng.gamma(2.0, 0.1, (80, 9))
    X, U = paths(80, gaps, 1, inputs=True, noise=0.05, missing=0.15)
    times = np.concatenate([np.zeros((80, 1)), np.cumsum(gaps, axis=1)], axis=1)
    place = np.argsort(rng.random((80, 10)), axis=1)
    X, U, times = (
        np.take_along_axis(X, place[:, :, None], axis=1),
        np.take_along_axis(U, place[:, :, None], axis=1),
        np.take_along_axis(times, place, axis=1),
    )
    model = rt.ReTrace(permutation="independent", observation_noise="estimate", n_jobs=1)
    model.fit(X, covariates=U, knowledge=rt.Knowledge(timestamps=times))
    assert rt.metrics.order_accuracy(np.argsort(place, axis=1), model.order_) == 1
    np.testing.assert_allclose(np.diff(model.times_, axis=1), gaps, rtol=0.03)
    assert_covered(model, inputs=True)
    assert np.sqrt(model.observation_noise_[0, 0]) == pytest.approx(0.05, abs=0.03)


@pytest.mark.statistics
def test_a_schedule_gives_positions_their_times_and_the_direction():
    X, _ = paths(60, np.diff(TIMES), 2, noise=0.05, missing=0.1)
    shuffled, truth = rt.simulate.shuffle(X, random_state=3)
    model = rt.ReTrace(observation_noise="estimate", n_jobs=1)
    model.fit(shuffled, knowledge=rt.Knowledge(schedule=TIMES))
    assert rt.metrics.order_accuracy(truth, model.order_) == 1
    assert model.direction_.identified
    np.testing.assert_allclose(model.times_, TIMES)
    assert_covered(model)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(
    "seed",
    [
        5,
        pytest.param(6, marks=pytest.mark.statistics),
        pytest.param(12, marks=pytest.mark.statistics),
    ],
)
@pytest.mark.parametrize("n", [16, pytest.param(40, marks=pytest.mark.statistics)])
def test_visits_that_were_missed_find_their_places_in_the_schedule(seed, n):
    rng = np.random.default_rng(4)
    X, _ = paths(n, np.diff(TIMES), seed)
    rows = np.argsort(rng.random((n, 8)), axis=1)[:, :6]
    there = np.take_along_axis(X, rows[:, :, None], axis=1)
    model = rt.ReTrace(permutation="independent", random_state=0, n_jobs=1)
    model.fit(there, knowledge=rt.Knowledge(schedule=TIMES))
    assert model.order_.shape == model.times_.shape == (n, 6)
    assert np.all(np.sort(model.order_, axis=1) == np.arange(6))
    assert np.isin(model.times_, TIMES).all()
    assert np.all(np.diff(model.times_, axis=1) > 0)
    true_times = np.take_along_axis(TIMES[rows], model.order_, axis=1)
    # each visit within a position or so of its own: gaps of .1 are hard to tell, one of .7 is not
    assert np.abs(model.times_ - true_times).mean() < 0.15
    assert_covered(model)


def test_laying_out_on_a_schedule_and_back_loses_nothing():
    panel = rt.Panel.from_array(np.arange(24.0).reshape(2, 4, 3))
    known = rt.Knowledge(schedule=[0, 1, 3, 6, 10], first=np.array([2, -1]))
    wide = on_schedule(panel, known.schedule)
    told = compiled(known, 2, 4, shared=False)
    assert wide.values.shape == (2, 5, 3)
    assert np.isnan(wide.values[:, 4]).all()
    assert told.unary is None
    assert set(zip(*np.nonzero(told.before), strict=True)) == {(0, 2, 0), (0, 2, 1), (0, 2, 3)}
    order = np.array([[2, 4, 0, 1, 3], [0, 1, 2, 3, 4]])
    found, times = off_schedule(order, np.array([0.0, 1, 3, 6, 10]), np.array([4, 4]), 4)
    np.testing.assert_array_equal(found, [[2, 0, 1, 3], [0, 1, 2, 3]])
    np.testing.assert_array_equal(times, [[0, 3, 6, 10], [0, 1, 3, 6]])


@pytest.mark.parametrize("bad", [[0, 1], [0, 2, 1, 3, 4, 5, 6, 7], ["a", "b"], [0.0, np.nan]])
def test_schedules_that_cannot_be_are_refused_in_words(bad):
    X, _ = paths(10, np.diff(TIMES), 0)
    with pytest.raises(ValueError, match="schedule"):
        rt.ReTrace().fit(X, knowledge=rt.Knowledge(schedule=bad))


def test_unknown_gaps_of_a_shared_order_behind_noise():
    X, _ = paths(80, np.diff(TIMES), 6, noise=0.05, missing=0.1)
    model = rt.ReTrace(
        dt=np.diff(TIMES).mean(), spacing="estimate", observation_noise="estimate", n_jobs=1
    )
    model.fit(X, knowledge=rt.Knowledge(positions={k: k for k in range(8)}))
    low, high = model.result_.gap_intervals.T
    inside = (low <= np.diff(TIMES)) & (np.diff(TIMES) <= high)
    assert inside.sum() >= 5  # of 7, at 95 %: fewer once in 250
    assert_covered(model)


def gamma_gaps(n):
    return paths(n, np.random.default_rng(7).gamma(2.0, 0.1, (n, 7)), 8)[0]


def test_the_law_of_gaps_that_nobody_knows_is_found_along_the_true_orders():
    n = 40
    problem = EulerModel(Data(gamma_gaps(n), n_jobs=1), 0.2, Affine())
    drawn = RandomGapModel.unknown(problem, noise=0.0)
    assert isinstance(drawn, SummedGapModel)
    fitted = drawn.fit(np.tile(np.arange(8), (n, 1)), final=True)
    assert 1.0 < fitted.law.shape < 4.0  # of 7 n gaps of which none is seen


@pytest.mark.usefixtures("brief")
@pytest.mark.statistics
@pytest.mark.parametrize("n", [40, 80])
def test_unknown_gaps_of_own_orders_are_summed_out(n):
    X = gamma_gaps(n)
    shuffled, truth = rt.simulate.shuffle(X, permutation="independent", random_state=9)
    model = rt.ReTrace(
        dt=0.2, permutation="independent", spacing="estimate", random_state=0, n_jobs=1
    )
    model.fit(shuffled)
    assert rt.metrics.kendall_tau(truth, model.order_) > 0.5
    assert_covered(model)


def test_an_input_that_is_missing_is_carried_or_interpolated_along_the_order():
    X, U = paths(60, np.full(7, 0.2), 10, inputs=True)
    U = np.cumsum(U, axis=1) / 4  # a dose that builds up
    U = np.where(np.random.default_rng(0).random(U.shape) < 0.1, np.nan, U)
    with pytest.raises(ValueError, match="carry"):
        rt.ReTrace(dt=0.2).fit(X, covariates=U)
    for how in ("carry", "interpolate"):
        model = rt.ReTrace(dt=0.2, missing_covariates=how, n_jobs=1).fit(X, covariates=U)
        assert model.inputs_.shape == (2, 1)
        assert any("inputs are missing" in note for note in model.result_.notes)


def test_inputs_behind_noise_are_those_of_the_regression_without_it():
    X, U = paths(200, np.full(9, 0.1), 11, inputs=True)
    order = rt.Knowledge(positions={k: k for k in range(10)})
    plain = rt.ReTrace(dt=0.1, n_jobs=1).fit(X, covariates=U, knowledge=order)
    hidden = rt.ReTrace(dt=0.1, observation_noise=1e-3, n_jobs=1).fit(
        X, covariates=U, knowledge=order
    )
    np.testing.assert_allclose(hidden.inputs_, plain.inputs_, atol=0.02)
    np.testing.assert_allclose(hidden.drift_, plain.drift_, atol=0.02)
    model = HiddenModel.across(EulerModel(Data(X, U, 1), 0.1, Driven()), np.full(9, 0.1), noise=1e-3, scheme="euler")  # fmt: skip
    ahead = model.fit(np.arange(10))
    assert ahead.step.coefficients.shape == (2, 4)


def test_times_known_of_some_slices_set_the_unit_of_the_gaps_between_them():
    X, _ = paths(80, np.diff(TIMES), 12, noise=0.05, missing=0.05)
    place = np.random.default_rng(1).permutation(8)
    stamps = np.where(
        np.isin(place, [0, 3, 7]), 10 * TIMES[place], np.nan
    )  # in other units of time
    model = rt.ReTrace(dt=2.5, spacing="estimate", observation_noise="estimate", n_jobs=1)
    model.fit(X[:, place], knowledge=rt.Knowledge(timestamps=stamps))
    np.testing.assert_array_equal(place[model.order_], np.arange(8))
    np.testing.assert_allclose(model.times_[[0, 3, 7]], 10 * TIMES[[0, 3, 7]], atol=1e-6)
    assert np.abs(np.log(model.gaps_ / (10 * np.diff(TIMES)))).max() < 0.6


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("inputs", [False, True], ids=["plain", "inputs"])
def test_known_gaps_that_differ_give_the_sde_by_default_and_not_eulers_steps(own, inputs):
    rng = np.random.default_rng(3)
    gaps = rng.uniform(0.2, 0.8, (60, 11) if own else 11)
    X, U = paths(60, gaps, 4, inputs=inputs)
    times = np.concatenate([np.zeros((*gaps.shape[:-1], 1)), np.cumsum(gaps, axis=-1)], axis=-1)
    known, z = rt.Knowledge(timestamps=times), {}
    for estimator in ("auto", "mle"):
        options = {"permutation": "independent" if own else "shared", "estimator": estimator}
        model = rt.ReTrace(n_jobs=1, random_state=0, **options)
        model.fit(X, knowledge=known, covariates=U if inputs else None)
        errors = model.standard_errors_
        of_A, of_H = (model.drift_ - A) / errors.drift, (model.diffusion_ - H) / errors.diffusion
        z[estimator] = max(np.abs(of_A).max(), np.abs(of_H).max())
        assert model.result_.scheme == ("exact" if estimator == "auto" else "euler")
    assert z["auto"] < 3.5 < 5 < z["mle"]


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_intercepts_across_known_gaps_that_differ_are_the_sdes(own):
    rng = np.random.default_rng(5)
    gaps = np.broadcast_to(rng.uniform(0.2, 0.8, (60, 11) if own else 11), (60, 11))
    levels = rng.standard_normal((60, 2))
    x = [2 + 0.3 * rng.standard_normal((60, 2))]
    for t in range(11):
        F, S, Q = transitions(np.c_[A, C], H, gaps[:, t])
        push = np.einsum("nij,nj->ni", np.linalg.solve(A, F - np.eye(2)), levels)
        noise = np.einsum("nij,nj->ni", np.linalg.cholesky(Q), rng.standard_normal((60, 2)))
        x.append(np.einsum("nij,nj->ni", F, x[-1]) + S[:, :, 0] + push + noise)
    times = np.concatenate([np.zeros((60, 1)), np.cumsum(gaps, axis=1)], axis=1)
    known = rt.Knowledge(timestamps=times if own else times[0])
    model = rt.ReTrace(permutation="independent" if own else "shared", n_jobs=1, random_state=0)
    model.fit(np.stack(x, axis=1), knowledge=known)
    assert model.subject_effects_.kind == "levels"
    assert model.result_.scheme == "exact"
    assert_covered(model)


def test_known_equal_gaps_are_fitted_like_a_step_and_keep_their_times():
    X, U = paths(60, np.full(9, 0.5), 6, inputs=True)
    times = 3.0 + 0.5 * np.arange(10)
    model = rt.ReTrace(n_jobs=1, random_state=0).fit(
        X, knowledge=rt.Knowledge(timestamps=times), covariates=U
    )
    assert model.result_.scheme == "exact"
    np.testing.assert_allclose(model.result_.times, times)
    assert_covered(model, inputs=True)


def test_a_panel_too_large_for_exact_transitions_says_that_its_parameters_are_eulers(monkeypatch):
    monkeypatch.setattr("retrace_sde.search.plan.CROSSED_WORK", 0)
    gaps = np.random.default_rng(7).uniform(0.2, 0.8, (40, 9))
    X, _ = paths(40, gaps, 8)
    times = np.concatenate([np.zeros((40, 1)), np.cumsum(gaps, axis=1)], axis=1)
    model = rt.ReTrace(permutation="independent", n_jobs=1, random_state=0)
    model.fit(X, knowledge=rt.Knowledge(timestamps=times))
    assert model.result_.scheme == "euler"
    assert sum("Euler's steps across gaps" in note for note in model.result_.notes) == 1
