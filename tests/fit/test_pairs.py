"""One pass of second moments says what passes over the rows say."""

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.fit.euler import Euler, step_log_likelihoods
from retrace_sde.fit.moments import moments
from retrace_sde.fit.pairs import MAX_KEPT_SHARE, Pairs
from retrace_sde.fit.regression import mle
from retrace_sde.fit.scores import regression_sandwich, sandwich_of_grams, told_by
from retrace_sde.io.lazy.view import InMemoryView, StandardUnits
from retrace_sde.panel import blocks
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear, Polynomial
from retrace_sde.search.models.euler import EulerModel

DT = 0.05
DRIFTS = [Linear(), Affine()]


def panel(n=30, T=25, d=3, level=0.7, seed=0):
    """Shuffled paths of a stable SDE, and the order that undoes it."""
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, random_state=seed + 1) + level
    return rt.simulate.shuffle(X, random_state=seed + 2)


def fitted(X, order, drift):
    found = moments(Data(X), order, DT, drift)
    estimate = mle(found)
    return found, Euler(drift, estimate.coefficients, estimate.diffusion, DT)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
def test_moments_equal_those_of_the_rows(drift):
    X, order = panel()
    found = Pairs.of(Data(X), order, DT, drift).moments()
    expected = moments(Data(X), order, DT, drift)
    assert_allclose(found.factor, expected.factor, rtol=1e-10, atol=1e-12)
    assert (found.count, found.n_features) == (expected.count, expected.n_features)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
def test_log_likelihoods_equal_those_of_the_rows_both_ways_round(drift, monkeypatch):
    X, order = panel()
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * 25 * 3)  # several blocks, the last one short
    pairs = Pairs.of(Data(X), order, DT, drift)
    ways = order, order[::-1].copy()
    steps = [fitted(X, along, drift)[1] for along in ways]
    for found, along, step in zip(pairs.log_likelihoods(*steps), ways, steps, strict=True):
        assert_allclose(found, step_log_likelihoods(Data(X), along, step), rtol=1e-10)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
def test_errors_over_trajectories_equal_those_of_the_rows(drift, monkeypatch):
    X, order = panel(n=40)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * 25 * 3)
    monkeypatch.setattr("retrace_sde.fit.scores.SANDWICH_TRAJECTORIES", 13)
    found = fitted(X, order, drift)[0]
    rows = told_by(Data(X), found.n_features)
    assert len(rows) == 13
    grams = Pairs.of(Data(X), order, DT, drift).grams(rows)
    got = sandwich_of_grams(grams, 24.0, 40, found)
    expected = regression_sandwich(Data(X), order, DT, drift, found)
    assert_allclose(got.covariances, expected.covariances, rtol=1e-8, atol=1e-12)
    assert_allclose(got.diffusion, expected.diffusion, rtol=1e-9)


def test_other_arrays_give_the_same():
    X, order = panel()
    strict = Data(array_api_strict.asarray(X))
    one, two = (Pairs.of(each, order, DT, Affine()) for each in (Data(X), strict))
    assert_allclose(two.moments().factor, one.moments().factor, rtol=1e-10, atol=1e-12)
    steps = [fitted(X, along, Affine())[1] for along in (order, order[::-1].copy())]
    assert_allclose(two.log_likelihoods(*steps), one.log_likelihoods(*steps), rtol=1e-10)


def test_where_second_moments_say_too_little_the_rows_are_asked():
    X, order = panel()
    assert Pairs.of(Data(X), order, DT, Polynomial(2)) is None
    assert Pairs.of(Data(X, X[:, :, :1]), order, DT, Affine()) is None
    assert Pairs.of(Data(X), np.tile(order, (30, 1)), DT, Affine()) is None
    few = int(2 * 3 / MAX_KEPT_SHARE) - 1
    assert Pairs.of(Data(X[:, :few]), np.arange(few), DT, Affine()) is None
    # far from zero the steps are lost in the squares of the level
    assert Pairs.of(Data(X + 1e4), order, DT, Affine()).moments() is None


def test_a_fit_far_from_zero_is_as_exact_as_one_at_zero():
    X, order = panel()
    plain, raised = (EulerModel(Data(x), DT, Affine()).fit(order) for x in (X, X + 1e4))
    assert plain.reverse is not None
    assert_allclose(raised.diffusion, plain.diffusion, rtol=1e-8)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_last_fit_brings_its_reverse_and_the_better_of_both_its_errors(ahead):
    X, order = panel()
    model = EulerModel(Data(X), DT, Affine())
    order = order if ahead else order[::-1].copy()
    one = model.fit(order, final=True)
    two = model.reversed_fit(one)
    better = max(one, two, key=lambda each: each.objective)
    worse = two if better is one else one
    assert better.robust_errors is not None
    assert worse.robust_errors is None
    alone = model.fit_gaps(two.order, model.gaps)
    assert_allclose(two.log_likelihoods, alone.log_likelihoods, rtol=1e-9)
    expected = regression_sandwich(model.data, better.order, DT, Affine(), better.moments)
    assert_allclose(better.robust_errors.drift, expected.drift, rtol=1e-8)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
def test_where_too_much_would_be_kept_the_reverse_follows_from_the_same_moments(drift):
    X, order = panel(T=9)
    assert Pairs.of(Data(X), order, DT, drift) is None
    model = EulerModel(Data(X), DT, drift)
    one = model.fit(order)
    for each in (one, model.reversed_fit(one)):
        alone = model.fit_gaps(each.order, model.gaps)
        assert_allclose(each.log_likelihoods, alone.log_likelihoods, rtol=1e-9)
        assert_allclose(each.diffusion, alone.diffusion, rtol=1e-9)


@pytest.mark.parametrize("drift", DRIFTS, ids=str)
@pytest.mark.parametrize("level", [0.7, 50.0])
@pytest.mark.parametrize("asarray", [np.asarray, array_api_strict.asarray])
def test_values_that_are_read_in_standard_units_give_those_of_the_units(
    drift, level, asarray, monkeypatch
):
    """Up to a level of ten deviations from the values as stored."""
    X, order = panel(level=level)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 7 * 25 * 3)
    rows = np.random.default_rng(0).permutation(len(X))
    centre, scale = X.mean(axis=(0, 1)), X.std(axis=(0, 1))
    view = InMemoryView(asarray(X), StandardUnits(None, centre, scale), rows=rows)
    standard = ((X - centre) / scale)[rows]
    one, two = (Pairs.of(Data(each), order, DT, drift) for each in (view, standard))
    assert (one.units is None) == (level == 50.0)
    assert_allclose(one.moments().factor, two.moments().factor, rtol=1e-10, atol=1e-11)
    step = fitted(standard, order, drift)[1]
    for got, expected in zip(
        one.log_likelihoods(step, step), two.log_likelihoods(step, step), strict=True
    ):
        assert_allclose(got, expected, rtol=1e-9)
    some = np.array([3, 11, 20])
    got, expected = (sum(each.sum(axis=0) for each in pairs.grams(some)) for pairs in (one, two))
    assert_allclose(got, expected, rtol=1e-9, atol=1e-9)
