"""One permutation per trajectory: directions that agree, orders as good as the true parameters give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.euler import Euler
from retrace_sde.metrics import kendall_tau, order_accuracy
from retrace_sde.orders import flips
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.own import BLOCK, KICKS, EulerLaw, OwnOrders
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.alternate import recover
from retrace_sde.search.models.euler import EulerModel, increment_covariance, within_covariance
from retrace_sde.search.space import Own

DT = 0.01


def flips_of(problem, orders):
    free = np.zeros(len(orders))
    return flips._Flips(problem.data, orders, problem.dt, problem.drift, free, free)


def shuffled(d, T, n, x0=0.1, seed=0):
    """The SDE, a panel with each trajectory shuffled on its own, and the orders that restore it."""
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    X = sde.simulate(n, T, DT, x0=x0, random_state=rng)
    return sde, *rt.simulate.shuffle(X, permutation="independent", random_state=rng)


def ragged(d, n, lengths, x0=0.1, seed=0):
    """The SDE, a padded panel of shuffled trajectories of the given lengths, and the true orders."""
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    T = max(lengths)
    X = sde.simulate(n, T, DT, x0=x0, random_state=rng)
    trajectories, truth = [], np.tile(np.arange(T), (n, 1))
    for j, t in enumerate(lengths):
        moved = rng.permutation(t)
        trajectories.append(X[j, :t][moved])
        truth[j, :t] = np.argsort(moved)
    return sde, trajectories, truth


def problem_of(X, drift=None, lengths=None):
    return EulerModel(Data(X, n_jobs=1, counts=lengths), DT, drift or Linear())


def true_law(sde, sd):
    d = sde.dimension
    model = Euler(Linear(), sde.drift, sde.diffusion, DT)
    return EulerLaw(model, rt.Gaussian(np.zeros(d), sd**2 * np.eye(d)))


def limit(sde, data, sd):
    """The orders that a search finds when it is given the true parameters and p₀."""
    n, T, _ = data.shape
    begin = np.tile(np.arange(T), (n, 1))
    states = random_states(np.random.default_rng(0), n)
    judge = OwnOrders(data, true_law(sde, sd))
    return judge.improve(begin, states, cold=True, kicks=KICKS)[0]


def recovered(problem, seed=0):
    rng = np.random.default_rng(seed)
    return recover(problem, Own.of(problem, rng), rng, max_iter=10)


def along(X, order):
    return np.take_along_axis(X, order[:, :, None], axis=1)


def fit(X, **settings):
    settings = {"dt": DT, "estimator": "mle", "random_state": 0, "n_jobs": 1, **settings}
    return rt.ReTrace(permutation="independent", **{"drift": "linear", **settings}).fit(X)


# Directions


@pytest.mark.parametrize("x0", [0.1, 1.0])
@pytest.mark.parametrize("drift", [Linear(), Affine()], ids=["linear", "affine"])
def test_paths_without_direction_are_turned_to_agree(x0, drift):
    for seed in range(3):
        _, X, truth = shuffled(10, 30, 80, x0, seed)
        rng = np.random.default_rng(seed)
        turned = rng.random(80) < 0.5
        found = problem_of(X, drift).aligned(np.where(turned[:, None], truth[:, ::-1], truth), rng)
        same = np.all(found == truth, axis=1)
        back = np.all(found == truth[:, ::-1], axis=1)
        assert np.all(same) or np.all(back)


def test_directions_agree_for_trajectories_of_different_length():
    rng = np.random.default_rng(1)
    lengths = rng.integers(15, 31, 80)
    _, trajectories, truth = ragged(10, 80, lengths, seed=1)
    panel = rt.Panel.from_trajectories(trajectories)
    problem = problem_of(panel.values, lengths=panel.lengths)
    turned = rng.random(80) < 0.5
    back = problem.data.reversed(truth)
    found = problem.aligned(np.where(turned[:, None], back, truth), rng)
    assert np.all(found == truth) or np.all(found == back)
    # What a trajectory does not have stays at the end, turned or not.
    inside = np.arange(30)[None] < lengths[:, None]
    assert np.all((found == np.arange(30)[None]) | inside)


def test_aligning_does_not_depend_on_how_the_paths_were_given():
    _, X, truth = shuffled(5, 30, 60, 1.0, seed=4)
    answers = set()
    for seed in range(4):
        turned = np.random.default_rng(seed).random(60) < 0.5
        given = np.where(turned[:, None], truth[:, ::-1], truth)
        found = problem_of(X).aligned(given, np.random.default_rng(9))
        answers.add(bytes(found if found[0, 0] == truth[0, 0] else found[:, ::-1].copy()))
    assert len(answers) == 1


def test_flip_likelihoods_are_those_of_the_paths():
    """The Gram matrices' log-likelihoods against Gaussian densities written out."""
    _, X, truth = shuffled(3, 12, 40, 1.0, seed=2)
    problem = problem_of(X)
    both = flips_of(problem, truth)
    fitted = both.fit(np.full(40, 0.8))
    there, back = both.log_likelihoods(fitted)
    model, mean, spread = fitted
    sde = rt.LinearSDE(model.coefficients, model.diffusion, initial=rt.Gaussian(mean, spread))
    for value, order in ((there, truth), (back, truth[:, ::-1])):
        expected = sde.log_likelihood(along(X, order), DT, scheme="euler")
        gap = expected - value
        np.testing.assert_allclose(gap, gap[0], rtol=1e-9)
    # `constant` is what differs between fits, so a mixture's value is a log-likelihood up to one number.
    other = both.fit(np.full(40, 0.3))
    sde_2 = rt.LinearSDE(
        other[0].coefficients, other[0].diffusion, initial=rt.Gaussian(other[1], other[2])
    )
    exact = sde.log_likelihood(along(X, truth), DT, scheme="euler").sum()
    exact -= sde_2.log_likelihood(along(X, truth), DT, scheme="euler").sum()
    found = there.sum() + both.constant(fitted)
    found -= both.log_likelihoods(other)[0].sum() + both.constant(other)
    assert found == pytest.approx(exact, rel=1e-9)


def test_the_flips_likelihood_never_falls_from_round_to_round(monkeypatch):
    _, X, truth = shuffled(4, 20, 50, 1.0, seed=6)
    problem = problem_of(X)
    rng = np.random.default_rng(0)
    turned = rng.random(50) < 0.5
    both = flips_of(problem, np.where(turned[:, None], truth[:, ::-1], truth))
    for begin in both.guesses(rng):
        values = []
        for k in range(1, 12):
            monkeypatch.setattr(flips, "FLIP_STEPS", k)
            values.append(both.expectation_maximisation(begin)[1])
        # p₀'s floor is not part of the maximisation: a hair of slack.
        assert np.all(np.diff(values) > -1e-2)


def test_a_subset_speaks_for_the_rest_when_memory_is_short(monkeypatch):
    """Trajectories outside the subset are turned by the search that follows."""
    _, X, truth = shuffled(10, 30, 120, 1.0, seed=3)
    monkeypatch.setattr(flips, "GRAM_NUMBERS", 40 * 20**2)
    better = recovered(problem_of(X)).better
    tau = [kendall_tau(truth[[j]], better.order[[j]]) for j in range(120)]
    assert np.mean(np.array(tau) > 0) >= 0.99


# The whole recovery


@pytest.mark.parametrize("x0", [0.1, 1.0])
def test_orders_are_as_good_as_those_found_with_the_true_parameters(x0):
    gaps = []
    for seed in range(3):
        sde, X, truth = shuffled(10, 30, 80, x0, seed)
        problem = problem_of(X)
        found = recovered(problem)
        better, worse, rounds = found.better, found.worse, found.rounds
        reached = order_accuracy(truth, better.order)
        gaps.append(order_accuracy(truth, limit(sde, problem.data, x0)) - reached)
        assert found.settled
        assert better.log_likelihood >= worse.log_likelihood
        assert rounds[-1].log_likelihood == better.log_likelihood
        # The twin runs the other way.
        assert kendall_tau(truth, better.order) > 0.9
        assert kendall_tau(truth, worse.order) < -0.9
    # Accuracy of 80 trajectories has a standard error near 0.015, largely common to both searches.
    assert max(gaps) < 0.03
    assert np.mean(gaps) < 0.015


def test_the_answer_does_not_depend_on_the_number_of_jobs():
    _, X, _ = shuffled(6, 15, 2 * BLOCK + 40, seed=5)
    one, two = fit(X, n_jobs=1), fit(X, n_jobs=2)
    np.testing.assert_array_equal(one.order_, two.order_)
    np.testing.assert_array_equal(one.drift_, two.drift_)
    np.testing.assert_array_equal(one.diffusion_, two.diffusion_)
    np.testing.assert_array_equal(one.direction_.contributions, two.direction_.contributions)


def test_the_same_seed_gives_the_same_answer_and_the_input_is_left_alone():
    _, X, _ = shuffled(4, 15, 60, seed=6)
    before = X.copy()
    one, two = fit(X, random_state=3), fit(X, random_state=3)
    np.testing.assert_array_equal(one.order_, two.order_)
    np.testing.assert_array_equal(X, before)


def test_certain_orders_do_not_depend_on_how_the_rows_were_given():
    _, X, truth = shuffled(30, 40, 60, 1.0, seed=7)
    rng = np.random.default_rng(1)
    again = np.argsort(rng.random(X.shape[:2]), axis=1)
    Y = along(X, again)
    one, two = fit(X), fit(Y, random_state=8)
    np.testing.assert_array_equal(one.order_, truth)
    np.testing.assert_array_equal(along(X, one.order_), along(Y, two.order_))
    np.testing.assert_allclose(one.drift_, two.drift_, rtol=1e-8)
    np.testing.assert_allclose(one.diffusion_, two.diffusion_, rtol=1e-10)
    # Nor on the order of the trajectories.
    rows = rng.permutation(60)
    three = fit(X[rows])
    np.testing.assert_array_equal(three.order_, one.order_[rows])


def test_certain_orders_give_the_oracle_parameters():
    _, X, truth = shuffled(30, 40, 60, 1.0, seed=7)
    model = fit(X)
    x = along(X, truth)
    regressors, steps = x[:, :-1].reshape(-1, 30), np.diff(x, axis=1).reshape(-1, 30)
    A = np.linalg.lstsq(regressors, steps, rcond=None)[0].T / DT
    residual = steps - regressors @ A.T * DT
    np.testing.assert_allclose(model.drift_, A, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(
        model.diffusion_, residual.T @ residual / len(steps) / DT, rtol=1e-8, atol=1e-10
    )
    assert model.order_.shape == (60, 40)
    assert model.converged_
    assert model.direction_.identified


def test_reorder_orders_new_trajectories_and_score_prefers_the_right_sde():
    sde, X, _ = shuffled(10, 30, 100, 1.0, seed=8)
    model = fit(X)
    new = sde.simulate(50, 30, DT, x0=1.0, random_state=99)
    Y, _ = rt.simulate.shuffle(new, permutation="independent", random_state=1)
    restored = model.reorder(Y)
    np.testing.assert_array_equal(np.sort(restored, axis=1), np.sort(Y, axis=1))
    reached = np.mean(np.all(restored == new, axis=2))
    best = np.mean(np.all(along(Y, limit(sde, Data(Y), 1.0)) == new, axis=2))
    assert reached > best - 0.05
    other = rt.simulate.random_irreversible_sde(10, random_state=77)
    wrong, _ = rt.simulate.shuffle(
        other.simulate(50, 30, DT, x0=1.0, random_state=5), permutation="independent"
    )
    assert model.score(Y) > model.score(wrong)


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.statistics)])
def test_stationary_directions_agree_but_which_is_forward_is_undetermined(seeds):
    shares = []
    for seed in range(seeds):
        _, X, truth = shuffled(10, 50, 100, "stationary", seed)
        model = fit(X)
        forward = np.mean(
            [kendall_tau(truth[[j]], model.order_[[j]]) > 0 for j in range(len(truth))]
        )
        shares.append(max(forward, 1 - forward))
        assert not model.direction_.identified
        twin = model.alternative_
        assert twin is not None
        assert kendall_tau(model.order_, twin.order) < -0.8
    # Single trajectories may be undecidable: their share of 100 has an error near 0.02.
    assert min(shares) >= 0.9
    assert np.mean(shares) >= 0.95


# Trajectories of different length


def test_ragged_orders_are_permutations_as_good_as_the_limit():
    rng = np.random.default_rng(2)
    n = 150
    lengths = np.concatenate([[4, 30], rng.integers(4, 31, n - 2)])
    sde, trajectories, truth = ragged(10, n, lengths, 1.0, seed=2)
    panel = rt.Panel.from_trajectories(trajectories, dt=DT)
    model = fit(panel)
    inside = np.arange(30)[None] < lengths[:, None]
    np.testing.assert_array_equal(np.sort(model.order_, axis=1), np.tile(np.arange(30), (n, 1)))
    assert np.all((model.order_ == np.arange(30)[None]) | inside)
    data = Data(panel.values, counts=panel.lengths)
    best = limit(sde, data, 1.0)
    # Short ones bring little evidence and less weight: shares of all observations.
    reached = np.mean((model.order_ == truth)[inside])
    possible = np.mean((best == truth)[inside])
    assert possible > 0.8
    assert reached > possible - 0.03
    assert kendall_tau(truth, model.order_) > 0.9
    assert model.direction_.identified


def test_equal_lengths_as_trajectories_are_the_plain_array():
    _, X, _ = shuffled(5, 14, 50, seed=9)
    plain, listed = fit(X), fit(rt.Panel.from_trajectories(list(X)))
    np.testing.assert_array_equal(plain.order_, listed.order_)
    np.testing.assert_array_equal(plain.drift_, listed.drift_)
    np.testing.assert_array_equal(plain.diffusion_, listed.diffusion_)
    assert plain.log_likelihood_ == listed.log_likelihood_


def test_ragged_costs_moments_and_start_equal_those_of_the_trajectories_themselves():
    """Ragged statistics against sums over trajectories, each as long as it is."""
    lengths = np.array([3, 5, 8, 11, 12] * 6)
    _, trajectories, truth = ragged(2, 30, lengths, 1.0, seed=3)
    panel = rt.Panel.from_trajectories(trajectories)
    problem = problem_of(panel.values, lengths=panel.lengths)
    found = problem.fit(truth)
    ordered = [x[truth[j, : len(x)]] for j, x in enumerate(trajectories)]
    regressors = np.concatenate([x[:-1] for x in ordered])
    steps = np.concatenate([np.diff(x, axis=0) for x in ordered])
    A = np.linalg.lstsq(regressors, steps, rcond=None)[0].T / DT
    residual = steps - regressors @ A.T * DT
    np.testing.assert_allclose(found.step.coefficients, A, rtol=1e-9)
    np.testing.assert_allclose(
        found.step.diffusion, residual.T @ residual / len(steps) / DT, rtol=1e-9
    )
    np.testing.assert_allclose(
        increment_covariance(problem.data, truth), steps.T @ steps / len(steps), rtol=1e-12
    )
    within = np.concatenate([x - x.mean(axis=0) for x in ordered])
    expected = within.T @ within / (len(within) - 30)
    np.testing.assert_allclose(within_covariance(problem.data), expected, rtol=1e-6)
    back = problem.data.reversed(truth)
    for j, t in enumerate(lengths):
        np.testing.assert_array_equal(back[j, :t], truth[j, :t][::-1])
        np.testing.assert_array_equal(back[j, t:], np.arange(t, 12))
    np.testing.assert_array_equal(problem.data.states(back), [x[-1] for x in ordered])


def test_what_pads_a_short_trajectory_does_not_matter():
    rng = np.random.default_rng(4)
    lengths = np.concatenate([[15], rng.integers(4, 16, 59)])
    _, trajectories, _ = ragged(3, 60, lengths, 1.0, seed=4)
    panel = rt.Panel.from_trajectories([x + 20.0 for x in trajectories])
    inside = (np.arange(15)[None] < lengths[:, None])[:, :, None]
    other = replace(panel, values=np.where(inside, panel.values, 50.0))
    one, two = (fit(each, drift="affine") for each in (panel, other))
    np.testing.assert_array_equal(one.order_, two.order_)
    np.testing.assert_allclose(one.diffusion_, two.diffusion_, rtol=1e-9)
    np.testing.assert_allclose(one.result_.initial.covariance, two.result_.initial.covariance)
    assert one.log_likelihood_ == pytest.approx(two.log_likelihood_, rel=1e-9)


def test_trajectories_of_one_and_two_observations_are_allowed():
    lengths = np.array([1, 2, 2, *[12] * 40])
    _, trajectories, truth = ragged(10, 43, lengths, 1.0, seed=5)
    model = fit(rt.Panel.from_trajectories(trajectories))
    assert kendall_tau(truth[3:], model.order_[3:]) > 0.8
    np.testing.assert_array_equal(model.order_[0], np.arange(12))


def test_different_lengths_need_independent_orders():
    _, trajectories, _ = ragged(3, 10, [5, 6] * 5)
    with pytest.raises(ValueError, match="independent"):
        rt.ReTrace(dt=DT, drift="linear").fit(rt.Panel.from_trajectories(trajectories))


@pytest.mark.parametrize(
    ("trajectories", "message"),
    [
        ([], "list of arrays"),
        ([np.zeros(4)], "list of arrays"),
        ([np.zeros((4, 2)), np.zeros((4, 3))], "same variables"),
    ],
)
def test_lists_that_are_no_trajectories_are_refused(trajectories, message):
    with pytest.raises(ValueError, match=message):
        rt.Panel.from_trajectories(trajectories)


def test_a_constant_variable_is_refused_whatever_pads_it():
    _, trajectories, _ = ragged(3, 30, [8, 12] * 15)
    constant = [np.column_stack([x, np.full(len(x), 5.0)]) for x in trajectories]
    with pytest.raises(ValueError, match="constant"):
        fit(rt.Panel.from_trajectories(constant))


# What the steps are made of


def test_the_costs_of_a_law_are_its_log_densities_up_to_a_constant():
    sde, X, _ = shuffled(3, 8, 5, seed=1)
    law = true_law(sde, 0.1)
    target, source, start, _ = law.costs(Data(X), slice(1, 4))
    step = sde.transition(DT, scheme="euler")
    noise = rt.Gaussian(np.zeros(3), step.covariance)
    for j in range(3):
        x = X[1 + j]
        residual = x[None] - (x @ step.matrix.T)[:, None]
        expected = -noise.log_density(residual)
        found = 0.5 * ((target[j][None] - source[j][:, None]) ** 2).sum(axis=2)
        np.testing.assert_allclose(expected - found, (expected - found)[0, 0], rtol=1e-9)
        np.testing.assert_allclose(
            start[j], -rt.Gaussian(np.zeros(3), 0.01 * np.eye(3)).log_density(x), rtol=1e-12
        )


def test_first_orders_use_the_metric_of_the_noise():
    """Units must not matter: variables in thirtieths and in thirties give the same paths."""
    _, X, truth = shuffled(10, 30, 60, seed=2)
    plain = problem_of(X).own_starts(np.random.default_rng(0))[0]
    scaled = X * np.logspace(-1.5, 1.5, 10)
    again = problem_of(scaled).own_starts(np.random.default_rng(0))[0]
    up_to = order_accuracy(plain, again, up_to_reversal=True)
    assert up_to > 0.97
    assert order_accuracy(truth, plain, up_to_reversal=True) > 0.7


def test_settings_that_contradict_independent_orders_are_refused():
    X = np.random.default_rng(0).standard_normal((5, 6, 2))
    with pytest.raises(ValueError, match="score"):
        fit(X, order="score")
    with pytest.raises(ValueError, match="mcem"):
        rt.ReTrace(estimator="mcem", drift="linear").fit(X)
