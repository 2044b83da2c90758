"""Orders, and gaps, sampled with missing entries summed out, beside all of them enumerated."""

from itertools import permutations, product

import numpy as np
import pytest

from retrace_sde.fit.statespace.observations import Observations, StepClasses
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.fit.statespace.smoother import states
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.orders.hidden import filtered
from retrace_sde.orders.hidden.gaussian import Chain, process
from retrace_sde.orders.hidden.own import HiddenOrders, HiddenSteps
from retrace_sde.orders.moves.rules import NOTHING_KNOWN, Rules
from retrace_sde.panel.blocks import Data
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.models.random_gaps import RATIOS, log_weights

D = 2


def a_law(noise):
    theta = np.array([[-1.0, 0.6, 0.4, 0.8], [-0.5, -0.8, -0.2, 0.0]])  # (A, c, B)
    H = np.array([[0.5, 0.1], [0.1, 0.4]])
    initial = Gaussian(np.ones(D), 0.5 * np.eye(D))
    return Parameters(theta, H, noise**2 * np.eye(D), initial, scheme="exact")


def a_trajectory(T, seed, missing):
    rng = np.random.default_rng(seed)
    y, u = 0.7 * rng.standard_normal((T, D)) + 0.5, rng.standard_normal((T, 1))
    return np.where(rng.random((T, D)) < missing, np.nan, y), u


def log_likelihoods(law, y, u, orders, gaps):
    """Of one trajectory along each of some orders, each across its own gaps."""
    v = np.concatenate([np.ones((len(orders), len(y), 1)), u[orders]], axis=2)
    classes = StepClasses(np.unique(gaps), np.searchsorted(np.unique(gaps), gaps))
    seen = Observations(y[orders], classes, v)
    return states(seen, law.steps(classes.gaps)).log_likelihood


def a_course(law, gaps, weights=None, table=None):
    one = np.zeros((1, len(gaps)), dtype=np.intp)
    classes = StepClasses.of(gaps) if table is None else StepClasses(table, one)
    model, index = law.steps(classes.gaps), classes.index[0]
    F, S, Q = (each[index] for each in (model.matrix, model.inputs, model.covariance))
    chain = Chain(F, S[:, :, 0], Q, S[:, :, 1:], law.R, law.initial)
    return HiddenSteps(chain, model.table, index, weights=weights)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_process_of_values_and_inputs_is_the_smoothers(noise):
    law, gaps = a_law(noise), np.array([0.1, 0.7, 0.2, 0.4])
    y, u = a_trajectory(5, 1, 0.0)
    every = np.array(list(permutations(range(5))))[::7]
    exact = log_likelihoods(law, y, u, every, np.tile(gaps, (len(every), 1)))
    z = np.concatenate([y, u], axis=1)[every]
    found = process(a_course(law, gaps).chain).log_density(z)
    np.testing.assert_allclose(found, exact, atol=1e-8)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("known", [False, True])
def test_positions_are_those_of_all_orders_enumerated(noise, known):
    T, gaps = 5, np.array([0.1, 0.7, 0.2, 0.4])
    law = a_law(noise)
    every = np.array(list(permutations(range(T))))
    for seed in range(3):
        y, u = a_trajectory(T, seed, 0.25)
        value = log_likelihoods(law, y, u, every, np.tile(gaps, (len(every), 1)))
        prior = NOTHING_KNOWN
        if known:  # what stands at position 2, and that 0 comes before 1
            place = np.argsort(every, axis=1)
            value = np.where((every[:, 2] == 3) & (place[:, 0] < place[:, 1]), value, -np.inf)
            costs, before = np.zeros((T, T)), np.zeros((T, T), dtype=bool)
            costs[3], costs[:, 2], before[0, 1] = np.inf, np.inf, True
            costs[3, 2] = 0.0
            prior = Rules(costs, before)
        p = np.exp(value - value.max())
        exact = np.zeros((T, T))
        for o, share in zip(every, p / p.sum(), strict=True):
            exact[o, np.arange(T)] += share
        course = a_course(law, gaps)
        o = every[int(np.argmax(value))].astype(np.intp)
        seen = filtered.Observed(np.nan_to_num(y), ~np.isnan(y), np.c_[np.ones(T), u])
        kept, R = np.empty((8000, T), dtype=np.int16), np.empty((0, 0), dtype=np.int16)
        state = np.array([seed + 1], dtype=np.uint64)
        filtered.sample(
            course.table,
            seen,
            np.empty(0),
            prior,
            o,
            state,
            500,
            6,
            filtered.Kept(kept, R, course.index),
        )
        found = np.stack([(kept == a).mean(axis=0) for a in range(T)])
        # 8000 draws six moves apart: an error of about √(p (1 − p) / 1000)
        assert np.abs(found - exact).max() < 5 * np.sqrt(0.25 / 1000)
        assert np.all(found[exact == 0] == 0)


def test_the_descent_finds_the_best_of_all_orders_from_most_starts():
    T, gaps = 5, np.array([0.1, 0.7, 0.2, 0.4])
    law, hits = a_law(0.1), []
    every = np.array(list(permutations(range(T))))
    for seed in range(20):
        y, u = a_trajectory(T, seed, 0.25)
        value = log_likelihoods(law, y, u, every, np.tile(gaps, (len(every), 1)))
        seen = filtered.Observed(np.nan_to_num(y), ~np.isnan(y), np.c_[np.ones(T), u])
        o = np.random.default_rng(seed).permutation(T)
        course = a_course(law, gaps)
        found = filtered.descend(course.table, seen, course.index, NOTHING_KNOWN, o)
        here = log_likelihoods(law, y, u, o[None], gaps[None])[0]
        assert found == pytest.approx(here, abs=1e-6)
        hits.append(found > value.max() - 1e-6)
    assert np.mean(hits) >= 0.7  # a local search: insertions, swaps and turns


def test_orders_and_gaps_drawn_together_are_those_of_both_enumerated():
    T, dt = 3, 0.4
    law, weights = a_law(0.2), log_weights(2.0)
    y, u = a_trajectory(T, 5, 0.2)
    table = RATIOS * dt
    pairs = list(product(permutations(range(T)), product(range(len(table)), repeat=T - 1)))
    orders = np.array([o for o, _ in pairs])
    index = np.array([g for _, g in pairs])
    value = log_likelihoods(law, y, u, orders, table[index]) + weights[index].sum(axis=1)
    p = np.exp(value - value.max())
    p /= p.sum()
    exact = np.zeros((T, T))
    for o, share in zip(orders, p, strict=True):
        exact[o, np.arange(T)] += share
    gap = (p[:, None] * np.log(table[index])).sum(axis=0)
    course = a_course(law, np.full(T - 1, dt), weights=weights, table=table)
    values = np.where(np.isnan(y), np.nan, y)[None]
    data = Data(values, u[None], n_jobs=1)
    draws = HiddenOrders(data, course, np.zeros(D))
    chains = Chains.start(np.arange(T)[None], np.random.default_rng(3), chains=4)
    chains.gaps = np.full((4, 1, T - 1), 12, dtype=np.intp)
    found = draws.draw(chains, Stretch(6000, 500, 6000, positions=True))
    at = found.positions[0] / found.positions[0].sum(axis=1, keepdims=True)
    assert np.abs(at - exact).max() < 5 * np.sqrt(0.25 / 1500)
    assert found.gaps is not None
    drawn = np.log(table[found.gaps[:, 0].reshape(-1, T - 1)]).mean(axis=0)
    np.testing.assert_allclose(drawn, gap, atol=0.12)
