"""All permutations of short trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retrace_sde as rt
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import TumourGrowth
from retrace_sde.process.tumour import simulate_cohort
from retrace_sde.search.enumerated import enumerate_orders


def enumerated(model, panel):
    data = Data(panel.values, panel.covariates)
    return enumerate_orders(model.order_law_.costs(data, slice(None)))


@pytest.fixture(scope="module")
def short():
    cohort = simulate_cohort(40, steps=5, sigma_tumour=0.1, random_state=0)
    moved = np.random.default_rng(0).permuted(np.tile(np.arange(6), (40, 1)), axis=1)
    panel = cohort.shuffled(moved)
    model = rt.ReTrace(
        permutation="independent", drift=TumourGrowth(), estimator="mle", random_state=0
    ).fit(panel)
    return panel, model, np.argsort(moved, axis=1)


def test_every_permutation_has_its_joint_likelihood(short) -> None:
    panel, model, truth = short
    exact = enumerated(model, panel)
    assert exact.orders.shape == (720, 6)
    assert_allclose(np.exp(exact.log_probabilities).sum(axis=1), 1)
    problem, outcome, _, places, _ = model._memory
    one, two = (np.tile(exact.orders[k], (40, 1)) for k in (17, 502))
    one, two = (problem.log_joint(places.sorted_orders(each), outcome.law) for each in (one, two))
    gap = places.given_rows(one - two)
    assert_allclose(exact.log_probabilities[:, 17] - exact.log_probabilities[:, 502], gap)
    assert_allclose(exact.probability(exact.orders[17]), np.exp(exact.log_probabilities[:, 17]))
    assert exact.probability(truth).mean() > 20 / 720


def test_the_engines_order_of_short_trajectories_is_the_best_of_all(short) -> None:
    """Up to nine visits the engine is exact; its last fit moves an order only at a near tie."""
    panel, model, _ = short
    exact = enumerated(model, panel)
    assert np.mean((exact.best == model.order_).all(axis=1)) > 0.9


def test_long_trajectories_are_refused(short) -> None:
    _, model, _ = short
    with pytest.raises(ValueError, match="sample_orders"):
        enumerated(model, simulate_cohort(5, steps=9, random_state=0).panel)
