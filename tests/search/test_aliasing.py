"""Steps that jump across: the order is found, its probabilities include other optima, and an open direction counts."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.evidence.outcome import sample_posterior
from retrace_sde.orders.paths import interleaved, strided
from retrace_sde.search.posterior import OrderPosterior


def turning(seed, *, period, n=40, T=14):
    """A rotation observed `period` times a turn."""
    rng = np.random.default_rng(seed)
    a = 2 * np.pi / period
    F = 0.97 * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
    x = np.empty((n, T, 2))
    x[:, 0] = [2.0, 0.0] + 0.5 * rng.standard_normal((n, 2))
    for t in range(1, T):
        x[:, t] = x[:, t - 1] @ F.T + 0.2 * rng.standard_normal((n, 2))
    return rt.simulate.shuffle(x, random_state=seed)


def fitted(X, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rt.ReTrace(random_state=0, **options).fit(X)


@pytest.mark.parametrize("T", [9, 12, 13, 14])
def test_interleaving_undoes_every_stride(T):
    """Whatever piece comes first and whichever way round it lies."""
    truth = np.arange(T)
    for order in strided(truth):
        assert any(np.array_equal(way, truth) for each in interleaved(order)
                   for way in (each, each[::-1]))  # fmt: skip
    for order in interleaved(truth):
        np.testing.assert_array_equal(np.sort(order), truth)
    halves = truth[0::2], truth[1::2]
    for one, two in (halves, halves[::-1]):
        order = np.concatenate([one[::-1], two])
        found = interleaved(order)
        assert any(np.array_equal(way, truth) for each in found for way in (each, each[::-1]))


@pytest.mark.parametrize("period", [2.1, 1.9, 3.1])
def test_steps_that_jump_across_are_put_in_order_and_said_to_be_coarse(period):
    X, truth = turning(1, period=period)
    with pytest.warns(rt.ReTraceWarning, match="steps are too coarse"):
        model = rt.ReTrace(random_state=0).fit(X)
    assert abs(rt.metrics.kendall_tau(truth, model.order_)) == 1


def test_slow_turns_are_not_said_to_be_coarse():
    X, _ = turning(1, period=30)
    notes = fitted(X).result_.notes
    assert not any("too coarse" in each for each in notes)


def test_a_fast_decay_across_unequal_gaps_is_not_said_to_turn():
    """Rates times the mean gap are below −1: Euler's step would change its sign, the SDE's transition does not."""
    rng, gaps = np.random.default_rng(5), 0.05 * 1.4 ** np.arange(13)
    X = np.empty((40, 14, 2))
    X[:, 0] = 2 + 0.3 * rng.standard_normal((40, 2))
    for k, left in enumerate(np.exp(-gaps)):
        noise = np.sqrt(0.1 * (1 - left**2)) * rng.standard_normal((40, 2))
        X[:, k + 1] = left * X[:, k] + noise
    model = fitted(X, dt=0.2, spacing="estimate")
    assert np.linalg.eigvals(model.drift_).real.max() * 0.2 < -1
    assert not any("too coarse" in each for each in model.result_.notes)


def test_optima_that_are_as_likely_share_the_probability():
    """Four trajectories of white noise: hardly any order is better than another, and the chains see one region."""
    X = np.random.default_rng(3).standard_normal((4, 8, 1))
    model = fitted(X, drift="linear")
    P = model.position_probabilities_
    np.testing.assert_allclose(P.sum(axis=0), 1, atol=1e-5)
    assert P[model.order_, np.arange(8)].max() < 1


def test_a_mixture_has_its_shares():
    one = OrderPosterior(
        np.eye(4, dtype=np.float32), np.tile(np.arange(4, dtype=np.int16), (10, 1)), 1, 99
    )
    other = OrderPosterior(
        np.eye(4, dtype=np.float32)[[1, 0, 2, 3]],
        np.tile(np.array([1, 0, 2, 3], np.int16), (10, 1)), 1, 99,
    )  # fmt: skip
    mixed = one.mixed_with([(other, 0.3)])
    np.testing.assert_allclose(mixed.position_probabilities[0], [0.7, 0.3, 0, 0], atol=1e-6)
    assert mixed.precedence(0, 1) == pytest.approx(0.7)
    turned = one.either_direction(0.5)
    np.testing.assert_allclose(turned.position_probabilities[0], [0.5, 0, 0, 0.5])
    assert turned.precedence(0, 3) == pytest.approx(0.5)
    np.testing.assert_array_equal(turned.along(np.arange(4)), one.samples)


@pytest.fixture(scope="module")
def at_rest():
    """A panel of a reversible SDE at rest, and its fit."""
    still = rt.LinearSDE(-np.eye(2), np.eye(2)).simulate(
        30, 10, 0.1, x0="stationary", random_state=3
    )
    return still, fitted(still, dt=0.1)


def test_an_open_direction_counts_for_half(at_rest):
    _, model = at_rest
    assert not model.direction_.identified
    first, last = model.order_[0], model.order_[-1]
    assert model.precedence_probability(int(first), int(last)) == pytest.approx(0.5, abs=0.02)
    P = model.position_probabilities_
    np.testing.assert_allclose(P, P[:, ::-1], atol=1e-6)


def test_a_direction_that_is_known_does_not(at_rest):
    still, model = at_rest
    first, last = int(model.order_[0]), int(model.order_[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = rt.ReTrace(dt=0.1, random_state=0).fit(
            still, knowledge=rt.Knowledge(precedences=[(first, last)])
        )
    assert known.precedence_probability(first, last) == 1


def test_of_a_shared_order_nothing_is_certain_by_default():
    """The probabilities come from chains, for every kind of model."""
    X, _ = turning(2, period=20, n=6, T=12)
    holes = X.copy()
    holes[0, 0, 0] = np.nan
    for x, options in ((X, {}), (holes, {}), (X, {"observation_noise": 0.3})):
        model = fitted(x, **options)
        memory = model._memory
        found = sample_posterior(
            memory.model, memory.outcome, np.random.default_rng(0), samples=200
        )
        assert found.samples.shape == (200, 12)
        np.testing.assert_allclose(found.position_probabilities.sum(axis=1), 1, atol=1e-5)
