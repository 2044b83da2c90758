"""Orders under measurement error: the innovations against a dense Gaussian, the chain against enumeration."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from retrace_sde.effects.jackknife import jackknife
from retrace_sde.effects.subject_model import Rows, SubjectModel
from retrace_sde.effects.subject_orders import (
    average_orders,
    innovation_gains,
    measurement_error,
    sample_noisy_block,
)
from retrace_sde.fit.subjects import fit_subjects, subject_grams
from retrace_sde.io.arrays import Array
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.search import BlockCosts
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import TumourGrowth
from retrace_sde.process.tumour import simulate_cohort
from retrace_sde.search.models.euler import EulerModel

NOISE, ERROR = 0.3, 0.5


def _cost(y: Array, order: tuple[int, ...]) -> float:
    """Of a random walk with error: f(x) = x."""
    c, S = innovation_gains(len(y), NOISE, ERROR)
    e, total = 0.0, 0.0
    for t in range(1, len(order)):
        e = y[order[t]] - y[order[t - 1]] + c[t - 1] * e
        total += 0.5 * e * e / S[t - 1]
    return total


@pytest.mark.parametrize("T", [2, 3, 6])
def test_innovations_are_the_dense_gaussian_of_all_later_observations(T: int) -> None:
    """Given the first, with nothing else known of the first state: a walk's covariance, plus the errors'."""
    y = np.random.default_rng(T).normal(size=T)
    steps = np.arange(1, T)
    covariance = NOISE * np.minimum.outer(steps, steps) + ERROR * (np.eye(T - 1) + 1)
    law = multivariate_normal(np.zeros(T - 1), covariance)
    _, S = innovation_gains(T, NOISE, ERROR)
    for order in list(permutations(range(T)))[:50]:
        z = y[list(order)]
        want = law.logpdf(z[1:] - z[0])
        assert_allclose(-_cost(y, order) - 0.5 * np.log(2 * np.pi * S).sum(), want)


def test_the_chain_has_the_enumerated_posterior() -> None:
    """All 120 orders of five visits; 3 × 40 000 draws, so frequencies are within 0.01 of the truth."""
    T, chains, draws = 5, 3, 40_000
    y = np.cumsum(np.random.default_rng(1).normal(size=T)) * 0.8
    start = np.array([0.0, 0.7, 0.2, 1.5, 0.4])
    orders = list(permutations(range(T)))
    weight = np.array([np.exp(-_cost(y, order) - start[order[0]]) for order in orders])
    kept = np.zeros((chains, draws, T), dtype=np.intp)
    path = np.tile(np.arange(T), (chains, 1))
    tile = np.tile(y, (chains, 1))
    states = random_states(np.random.default_rng(0), chains)
    steps = BlockCosts(tile, tile, np.tile(start, (chains, 1)))
    gains, lengths = innovation_gains(T, NOISE, ERROR), np.full(chains, T)
    sample_noisy_block(steps, gains, lengths, path, states, 500, 5, T, kept)
    code = T ** np.arange(T)
    seen, counts = np.unique(kept.reshape(-1, T) @ code, return_counts=True)
    found = dict(zip(seen.tolist(), (counts / counts.sum()).tolist(), strict=True))
    for order, p in zip(orders, weight / weight.sum(), strict=True):
        assert abs(found.get(int(np.array(order) @ code), 0.0) - p) < 0.01


def test_shorter_trajectories_leave_their_padding_alone() -> None:
    y = np.random.default_rng(0).normal(size=(2, 6))
    path = np.tile(np.arange(6), (2, 1))
    kept = np.tile(np.arange(6), (2, 3, 1))
    states = random_states(np.random.default_rng(0), 2)
    steps, gains = BlockCosts(y, y, np.zeros((2, 6))), innovation_gains(6, NOISE, ERROR)
    sample_noisy_block(steps, gains, np.array([4, 6]), path, states, 50, 10, 6, kept)
    assert np.all(path[0, 4:] == [4, 5])
    assert sorted(path[0, :4]) == [0, 1, 2, 3]
    assert np.all(kept[0, :, 4:] == [4, 5])


def test_averaging_over_orders_finds_the_error_and_the_parameters_of_the_true_order() -> None:
    """From 81 % of the positions right: σ_obs within a tenth, coefficients within 3 of the true order's errors."""
    n = 250
    cohort = simulate_cohort(n, random_state=8)
    moved = np.random.default_rng(2).permuted(np.tile(np.arange(61), (n, 1)), axis=1)
    truth = np.argsort(moved, axis=1)
    panel = cohort.shuffled(moved)
    problem = EulerModel(Data(panel.values, panel.covariates, 1), 0.25, TumourGrowth())
    known = fit_subjects(subject_grams(problem.data, truth, problem.dt, problem.drift), n * 60, 4)
    assert abs(measurement_error(problem, known, truth) ** 0.5 - 0.01) < 0.0005
    # Neighbours exchanged at random stand for a search that is nearly right.
    rough = truth.copy()
    rng = np.random.default_rng(3)
    for k in range(0, 60, 2):
        swap = rng.random(n) < 0.3
        rough[swap, k], rough[swap, k + 1] = truth[swap, k + 1], truth[swap, k]
    found = average_orders(problem, rough, rng, rounds=24)
    assert abs(found.error**0.5 - 0.01) < 0.001
    assert found.orders.shape == (12, n, 61)
    assert np.all(np.sort(found.orders, axis=2) == np.arange(61))
    model = SubjectModel(known, None, None, known)
    unit = np.sqrt(np.diag(jackknife(model, Rows.along(problem, truth, (), ())).covariance))
    assert np.all(np.abs(found.model.base.coefficients - known.coefficients) < 3 * unit)
