"""The brute force itself, against cases that can be written down."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from oracle import (
    Free,
    Law,
    dense,
    enumerated,
    every_order,
    expected_information,
    informations,
    log_likelihoods,
    log_marginals,
    log_ratios,
    order_scores,
    scores,
)
from scipy.stats import multivariate_normal, norm

ONE = Law(
    theta=np.array([[-1.0, 0.5]]),
    H=np.array([[0.4]]),
    R=np.array([[0.09]]),
    mean=np.array([1.0]),
    covariance=np.array([[0.25]]),
    dt=0.5,
)
TWO = Law(
    theta=np.array([[-1.0, 0.8], [-0.6, -1.5]]),
    H=np.array([[0.5, 0.1], [0.1, 0.4]]),
    R=0.02 * np.eye(2),
    mean=np.array([1.0, -0.5]),
    covariance=np.array([[0.3, 0.1], [0.1, 0.4]]),
    dt=0.3,
)


def test_one_observation_is_its_start_and_noise():
    y = np.array([[0.3]])
    expected = norm(1.0, np.sqrt(0.25 + 0.09)).logpdf(0.3)
    assert log_marginals(y[None], ONE)[0] == pytest.approx(expected, abs=1e-12)
    found = enumerated(y[None], ONE)[0]
    assert found.positions == pytest.approx(1.0)
    assert found.neighbours == pytest.approx(0.0)


def test_two_observations_by_hand():
    """F = ½, s = ¼, Q = .2: mean (1, .75), variances .34 and .0625 + .2 + .09, covariance .125."""
    K = np.array([[0.34, 0.125], [0.125, 0.3525]])
    mean, found = dense(ONE, 2)
    np.testing.assert_allclose(mean, [1.0, 0.75])
    np.testing.assert_allclose(found, K)
    law = multivariate_normal([1.0, 0.75], K)
    y = np.array([0.2, 0.9])
    ways = np.array([law.pdf(y), law.pdf(y[::-1])])
    (orders,) = enumerated(y[None, :, None], ONE)
    assert orders.log_marginal == pytest.approx(np.log(ways.mean()))
    share = ways[0] / ways.sum()
    np.testing.assert_allclose(orders.positions, [[share, 1 - share], [1 - share, share]])
    np.testing.assert_allclose(orders.neighbours, [[0, share], [1 - share, 0]])
    # a prior that makes the first order e times as likely
    costs = np.array([[[0.0, 0.0], [1.0, 0.0]]])
    (orders,) = enumerated(y[None, :, None], ONE, costs=costs)
    share = ways[0] / (ways[0] + ways[1] / np.e)
    assert orders.probabilities == pytest.approx([share, 1 - share])
    weighted = (ways[0] + ways[1] / np.e) / (1 + 1 / np.e)
    assert orders.log_marginal == pytest.approx(np.log(weighted))


def test_missing_entries_are_summed_out():
    """By quadrature over the missing value."""
    y = np.array([[0.2], [np.nan], [0.9]])
    grid = np.linspace(-4, 6, 4001)
    mean, K = dense(ONE, 3)
    for order in every_order(3):
        filled = np.tile(y[order, 0], (len(grid), 1))
        filled[:, np.flatnonzero(order == 1)[0]] = grid
        area = multivariate_normal(mean, K).pdf(filled).sum() * (grid[1] - grid[0])
        found = log_likelihoods(y, ONE, order[None])[0]
        assert found == pytest.approx(np.log(area), abs=1e-9)


def test_the_dense_covariance_is_that_of_simulated_observations():
    Y = TWO.simulate(200_000, 4, np.random.default_rng(0))
    mean, K = dense(TWO, 4)
    flat = Y.reshape(len(Y), -1)
    # entries of size about one half, 200 000 of them: errors near .002
    np.testing.assert_allclose(flat.mean(axis=0), mean, atol=0.01)
    np.testing.assert_allclose(np.cov(flat.T), K, atol=0.01)


def test_where_all_is_known_one_order_is_left():
    Y = TWO.simulate(2, 4, np.random.default_rng(1))
    order = np.array([2, 0, 3, 1])
    before = np.zeros((2, 4, 4), dtype=bool)
    for a, b in pairwise(order):
        before[:, a, b] = True
    placed = np.full((2, 4, 4), np.inf)
    placed[:, order, np.arange(4)] = 0.0
    for known in ({"before": before}, {"costs": placed}):
        for each, y in zip(enumerated(Y, TWO, **known), Y, strict=True):
            assert each.log_marginal == pytest.approx(log_likelihoods(y, TWO, order[None])[0])
            np.testing.assert_array_equal(each.orders[each.probabilities.argmax()], order)
            assert each.probabilities.max() == 1.0
            np.testing.assert_array_equal(each.possible(np.random.default_rng(0), 3)[1], order)


def test_shorter_trajectories_are_their_first_rows():
    Y = TWO.simulate(3, 5, np.random.default_rng(2))
    lengths = np.array([2, 5, 3])
    found = log_marginals(Y, TWO, lengths=lengths)
    for j, t in enumerate(lengths):
        assert found[j] == log_marginals(Y[j : j + 1, :t], TWO)[0]


def test_ratios_vanish_between_a_law_and_itself_and_do_not_need_the_priors_normaliser():
    Y = TWO.simulate(4, 4, np.random.default_rng(3))
    other = Law(0.5 * TWO.theta, TWO.H, TWO.R, TWO.mean, TWO.covariance, TWO.dt)
    costs = np.random.default_rng(0).gamma(1.0, 1.0, (4, 4, 4))
    np.testing.assert_array_equal(log_ratios(Y, TWO, TWO, costs=costs), 0)
    shifted = log_ratios(Y, TWO, other, costs=costs + 3.0)
    np.testing.assert_allclose(log_ratios(Y, TWO, other, costs=costs), shifted, atol=1e-9)


def test_derivatives_of_one_observation_pair_by_hand():
    """With one order left and R = 0 the score is that of a regression, and so is the information."""
    law = Law(ONE.theta[:, :1], ONE.H, np.zeros((1, 1)), ONE.mean, ONE.covariance, ONE.dt)
    Y = law.simulate(5, 2, np.random.default_rng(4))
    before = np.zeros((5, 2, 2), dtype=bool)
    before[:, 0, 1] = True
    x, dx = Y[:, 0, 0], np.diff(Y[:, :, 0], axis=1)[:, 0]
    e, h, dt = dx + x * law.dt, 0.4, law.dt
    slope = np.c_[x * e / h, 0.5 * (e**2 / (h**2 * dt) - 1 / h)]
    found = scores(Y, law, Free(), before=before)
    np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-6)
    curve = np.empty((5, 2, 2))
    curve[:, 0, 0] = x**2 * dt / h
    curve[:, 0, 1] = curve[:, 1, 0] = x * e / h**2
    curve[:, 1, 1] = e**2 / (h**3 * dt) - 0.5 / h**2
    information = informations(Y, law, Free(), before=before)
    np.testing.assert_allclose(information, curve, rtol=1e-3, atol=1e-4)


def test_the_marginal_score_is_the_posterior_mean_of_the_orders_scores():
    """Fisher's identity, with missing values and noise of its own for each variable."""
    Y = TWO.simulate(3, 4, np.random.default_rng(5))
    Y[0, 1, 0] = Y[2, 3, 1] = np.nan
    free = Free("diagonal")
    found = scores(Y, TWO, free)
    for j, each in enumerate(enumerated(Y, TWO)):
        mean = each.probabilities @ order_scores(Y[j], TWO, free, each.orders)
        np.testing.assert_allclose(found[j], mean, rtol=1e-5, atol=1e-5)


def test_expected_information_is_the_mean_of_squared_scores():
    Y = TWO.simulate(2000, 3, np.random.default_rng(6))
    Y[:, 1, 0] = np.nan
    order = np.array([[0, 1, 2]])
    free = Free("tied")
    found = expected_information(Y[0], TWO, free, order)[0]
    before = np.tile(np.triu(np.ones((3, 3), dtype=bool), 1), (2000, 1, 1))
    slopes = scores(Y, TWO, free, before=before)
    unit = 1 / np.sqrt(np.diag(found))
    gap = (slopes.T @ slopes / len(slopes) - found) * np.outer(unit, unit)
    # 2000 squares of standardised scores, of kurtosis up to about ten
    assert np.abs(gap).max() < 4 * np.sqrt(10 / 2000)
