"""Averaging over orders: exact statistics, EM and Louis against enumeration, and what a fit reports."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.special import logsumexp

import retrace_sde as rt
from retrace_sde.evidence import outcome as engine_fit
from retrace_sde.evidence.outcome import certainty
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.moments import Frequencies, Statistics, moments, statistics
from retrace_sde.fit.regression import regression_errors
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.metrics import kendall_tau, mean_absolute_error
from retrace_sde.orders.costs import transition_costs
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.own import EulerLaw
from retrace_sde.panel.blocks import Data, evenly, in_order
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.mcem import (
    MONTE_CARLO_TOLERANCE,
    Run,
    _crossed,
    _mean,
    _squares,
    average,
    bridge,
    floored_inverse,
    louis_covariance,
    run,
)
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.posterior import convergence, order_posterior

DT = 0.01


def shuffled(d, T, n, x0=0.1, seed=0, dt=DT):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
    X = sde.simulate(n, T, dt, x0=x0, random_state=rng)
    return sde, *rt.simulate.shuffle(X, permutation="independent", random_state=rng)


def problem_of(X, drift=None, lengths=None, dt=DT):
    return EulerModel(Data(X, n_jobs=1, counts=lengths), dt, drift or Linear())


def ragged_panel(d, n, shortest, longest, x0=0.1, seed=0):
    rng = np.random.default_rng(seed)
    _, X, _ = shuffled(d, longest, n, x0, seed)
    lengths = np.concatenate([[longest], rng.integers(shortest, longest + 1, n - 1)])
    return rt.Panel.from_trajectories([x[:t] for x, t in zip(X, lengths, strict=True)])


def fit(X, **settings):
    settings = {"dt": DT, "estimator": "mcem", "random_state": 0, "n_jobs": 1, **settings}
    return rt.ReTrace(permutation="independent", **{"drift": "linear", **settings}).fit(X)


def every_order(T):
    return np.array(list(permutations(range(T))))


def enumerate_joint(problem, law):
    """`log p(x_o; law)` of every order o of every trajectory, (n, T!), by the SDE's own densities."""
    X = problem.data.values
    A, c = law.step.coefficients, np.zeros(X.shape[2])
    if isinstance(problem.drift, Affine):
        A, c = A[:, :-1], A[:, -1]
    sde = rt.LinearSDE(A, law.step.diffusion, offset=c, initial=law.start)
    return np.stack(
        [sde.log_likelihood(X[:, o], problem.dt, scheme="euler") for o in every_order(X.shape[1])],
        axis=1,
    )


def log_marginal(problem, law):
    """Each trajectory's likelihood with its order summed out (the T! of the prior left out)."""
    return logsumexp(enumerate_joint(problem, law), axis=1)


def probabilities(problem, law):
    joint = enumerate_joint(problem, law)
    return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))


def frequencies(weight, T):
    """Pairs, first, last and positions from order probabilities (n, T!)."""
    orders = every_order(T)
    positions = np.zeros((len(orders), T, T))
    for k in range(T):
        positions[np.arange(len(orders)), orders[:, k], k] = 1
    pairs = positions[:, :, :-1] @ positions[:, :, 1:].transpose(0, 2, 1)
    P = np.tensordot(weight, positions, 1)
    return np.tensordot(weight, pairs, 1), P[:, :, 0], P[:, :, -1], P


def exact_step(problem, law):
    """One EM step with the E-step by enumeration."""
    N, first, last, _ = frequencies(probabilities(problem, law), problem.data.shape[1])
    sums = sums_of(problem, N, first, last)
    return problem.maximise(sums), sums


def sums_of(problem, *frequencies):
    values = problem.data.values
    return statistics(values, None, Frequencies(*frequencies), problem.dt, problem.drift)


def turned(problem, sums):
    """Statistics of the reversed orders."""
    return sums.reversed(problem.drift.reversal(problem.data.shape[2], problem.dt))


def first_law(problem, *, scale=2.0):
    """Deliberately wrong: no drift, and too much noise."""
    X = problem.data.values
    d = X.shape[2]
    p = len(problem.drift.feature_names([""] * d, []))
    H = scale * np.diff(X, axis=1).reshape(-1, d).var(axis=0) / problem.dt
    model = Euler(problem.drift, np.zeros((d, p)), np.diag(H), problem.dt)
    return EulerLaw(model, rt.Gaussian(X.mean(axis=(0, 1)), np.diag(X.var(axis=(0, 1)))))


# Statistics


@pytest.mark.parametrize("drift", [Linear(), Affine()], ids=["linear", "affine"])
@pytest.mark.parametrize("lengths", [False, True], ids=["equal", "ragged"])
@pytest.mark.parametrize("level", [0.0, 50.0])
def test_pair_frequencies_of_one_order_give_that_orders_moments(drift, lengths, level):
    n, T, d = 30, 9, 3
    rng = np.random.default_rng(0)
    if lengths:
        panel = ragged_panel(d, n, 3, T, 1.0)
        observed, X = panel.lengths, panel.values
        X = np.where((np.arange(T)[None] < observed[:, None])[:, :, None], X + level, 0.0)
        problem = problem_of(X, drift, observed)
    else:
        X = shuffled(d, T, n, 1.0)[1] + level
        observed, problem = np.full(n, T), problem_of(X, drift)
    orders = np.tile(np.arange(T), (n, 1))
    N, first, last = np.zeros((n, T, T)), np.zeros((n, T)), np.zeros((n, T))
    for j, t in enumerate(observed):
        orders[j, :t] = rng.permutation(t)
        N[j, orders[j, : t - 1], orders[j, 1:t]] = 1
        first[j, orders[j, 0]] = last[j, orders[j, t - 1]] = 1

    def check(found, orders):
        plain = moments(problem.data, orders, DT, drift)
        gram = plain.factor.T @ plain.factor
        unit = np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
        np.testing.assert_allclose(found.gram / unit, gram / unit, atol=1e-9)
        a = problem.data.states(orders)
        b = problem.data.states(problem.data.reversed(orders))
        np.testing.assert_allclose(found.first, a.sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(found.first_square, a.T @ a, rtol=1e-9)
        np.testing.assert_allclose(found.last, b.sum(axis=0), rtol=1e-9)
        np.testing.assert_allclose(found.last_square, b.T @ b, rtol=1e-9)

    sums = sums_of(problem, N, first, last)
    check(sums, orders)
    check(turned(problem, sums), problem.data.reversed(orders))
    assert problem.moments(sums).count == (observed - 1).sum()


def test_maximising_one_orders_statistics_is_its_fit():
    _, X, truth = shuffled(3, 10, 40, 1.0)
    problem = problem_of(X)
    T = 10
    N, first, last = np.zeros((40, T, T)), np.zeros((40, T)), np.zeros((40, T))
    j = np.arange(40)
    N[j[:, None], truth[:, :-1], truth[:, 1:]] = 1
    first[j, truth[:, 0]] = last[j, truth[:, -1]] = 1
    sums = sums_of(problem, N, first, last)
    law, oracle = problem.maximise(sums), problem.fit(truth)
    np.testing.assert_allclose(law.step.coefficients, oracle.step.coefficients, rtol=1e-8)
    np.testing.assert_allclose(law.step.diffusion, oracle.step.diffusion, rtol=1e-9)
    starts = X[j, truth[:, 0]]
    np.testing.assert_allclose(law.start.mean, starts.mean(axis=0), rtol=1e-10)
    floor = 0.01 * DT * law.step.diffusion
    expected = np.cov(starts.T, bias=True) + floor
    np.testing.assert_allclose(law.start.covariance, expected, rtol=1e-9, atol=1e-12)
    ends = X[j, truth[:, -1]]
    backward = problem.maximise(turned(problem, sums))
    np.testing.assert_allclose(backward.start.mean, ends.mean(axis=0), rtol=1e-10)


def test_statistics_add_and_scale_entry_by_entry():
    one = Statistics(*(np.full(2, float(k)) for k in range(5)))
    two = (one + one.scaled(3.0)).scaled(0.5)
    for name in one.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(two, name), 2 * getattr(one, name))


def test_drawn_statistics_match_enumeration_within_monte_carlo_error():
    _, X, truth = shuffled(2, 5, 30, 0.3, seed=1)
    problem = problem_of(X)
    law = problem.law(problem.fit(truth))
    exact = exact_step(problem, law)[1]
    chains = Chains.start(truth, np.random.default_rng(0), chains=12)
    problem.draw(law, chains, Stretch(1, 3000))
    draws = problem.draw(law, chains, Stretch(3000, 0, positions=True, expected=True))
    parts = problem.expect(draws, law)
    z = []
    for name in exact.__dataclass_fields__:
        each = np.stack([getattr(s, name) for s in parts])
        error = each.std(axis=0, ddof=1) / np.sqrt(len(each))
        score = (each.mean(axis=0) - getattr(exact, name)) / error
        z.append((score[np.triu_indices(len(score))] if score.ndim == 2 else score).ravel())
    z = np.concatenate(z)
    # Student's t with 11 degrees of freedom: |t| > 6.5 once in 20 000.
    assert np.abs(z).max() < 6.5
    assert np.sqrt(np.mean(z**2)) < 2
    P = frequencies(probabilities(problem, law), 5)[3]
    assert np.abs(draws.positions / (12 * 3000) - P).max() < 0.04
    assert len(parts) == 12
    pooled = np.mean([s.gram for s in parts], axis=0)
    np.testing.assert_allclose(_mean(parts, np.ones(12)).gram, pooled, rtol=1e-12)


# EM


@pytest.mark.parametrize("drift", [Linear(), Affine()], ids=["linear", "affine"])
def test_exact_em_never_lowers_the_marginal_likelihood(drift):
    _, X, _ = shuffled(2, 4, 60, 1.0, seed=2, dt=0.1)
    problem = problem_of(X, drift, dt=0.1)
    law = first_law(problem)
    values = [log_marginal(problem, law).sum()]
    for _ in range(15):
        law = exact_step(problem, law)[0]
        values.append(log_marginal(problem, law).sum())
    steps = np.diff(values)
    # The floor of p₀ (a ten-thousandth of its variance here) is not part of the maximisation.
    assert np.all(steps > -1e-3)
    assert steps[0] > 1
    assert values[-1] > values[0] + 5


def test_monte_carlo_em_arrives_where_exact_em_does():
    """Both to convergence on orders of four: the same law, up to Monte-Carlo error."""
    dt = 0.1
    _, X, truth = shuffled(2, 4, 150, 0.3, seed=3, dt=dt)
    problem = problem_of(X, dt=dt)
    law = begin = problem.law(problem.fit(truth))
    for _ in range(400):
        law = exact_step(problem, law)[0]
    chains = Chains.start(truth, np.random.default_rng(0))
    found = run(problem, begin, chains)
    errors = regression_errors(problem.moments(found.sums), law.step.diffusion)
    assert found.converged
    assert found.gap <= MONTE_CARLO_TOLERANCE
    gap_A = (found.law.step.coefficients - law.step.coefficients) / errors.drift
    gap_H = (found.law.step.diffusion - law.step.diffusion) / errors.diffusion
    # The rounds stop at an error of 0.15 known-order standard errors (root mean square).
    assert np.abs(gap_A).max() < 0.5
    assert np.abs(gap_H).max() < 0.5


def test_a_run_that_is_cut_short_says_so():
    _, X, truth = shuffled(2, 10, 40)
    problem = problem_of(X)
    law = problem.law(problem.fit(truth))
    found = run(problem, law, Chains.start(truth, np.random.default_rng(0)), rounds=5)
    assert not found.converged
    assert len(found.rounds) == 5


def test_the_bridge_is_the_ratio_of_marginal_likelihoods():
    _, X, truth = shuffled(2, 5, 25, 0.3, seed=4)
    problem = problem_of(X)
    rng = np.random.default_rng(0)
    one_law = exact_step(problem, problem.law(problem.fit(truth)))[0]
    two_law = exact_step(problem, problem.law(problem.fit(truth[:, ::-1].copy())))[0]
    exact = log_marginal(problem, one_law) - log_marginal(problem, two_law)
    found = []
    for _ in range(8):
        runs = []
        for law, order in ((one_law, truth), (two_law, truth[:, ::-1].copy())):
            chains = Chains.start(order, rng)
            problem.draw(law, chains, Stretch(1, 2000))
            runs.append(Run(law, None, chains, (), 0.0, True))
        found.append(bridge(problem, *runs))
    found = np.array(found)
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    # Student's t with 7 degrees of freedom, 25 of them; the mean of both sides is unbiased to first order.
    assert np.all(np.abs(found.mean(axis=0) - exact) < 6 * error + 0.02)
    total = found.sum(axis=1)
    spread = total.std(ddof=1) / np.sqrt(len(total))
    assert abs(total.mean() - exact.sum()) < 5 * spread + 0.1
    assert np.abs(exact).max() > 0.1


def test_the_joint_log_likelihood_is_the_sdes():
    _, X, truth = shuffled(2, 5, 10, 0.3)
    problem = problem_of(X)
    law = problem.law(problem.fit(truth))
    every = enumerate_joint(problem, law)
    for k, order in enumerate(every_order(5)[::17]):
        found = problem.log_joint(np.tile(order, (10, 1)), law)
        np.testing.assert_allclose(found, every[:, 17 * k], rtol=1e-10)


@pytest.mark.parametrize("x0", [0.3, 2.0])
def test_certainty_is_the_expected_share_of_right_neighbours(x0):
    _, X, truth = shuffled(2, 4, 80, x0, seed=5)
    problem = problem_of(X)
    best = problem.fit(truth)
    N = frequencies(probabilities(problem, problem.law(best)), 4)[0]
    j = np.arange(80)[:, None]
    exact = N[j, truth[:, :-1], truth[:, 1:]].mean()
    found = certainty(problem, best, np.random.default_rng(0))
    # 80 trajectories of 40 correlated records.
    assert abs(found - exact) < 0.03
    assert 0.05 < exact < 0.95


# Posterior


def test_position_probabilities_match_enumeration():
    _, X, truth = shuffled(2, 5, 40, 0.3, seed=6)
    problem = problem_of(X)
    law = problem.law(problem.fit(truth))
    exact = frequencies(probabilities(problem, law), 5)[3]
    chains = Chains.start(truth, np.random.default_rng(0))
    found, draws = order_posterior(problem, law, chains, samples=4000)
    gap = found.position_probabilities - exact
    assert np.sqrt(np.mean(gap**2)) < 0.015
    assert np.abs(gap).max() < 0.08
    assert draws.kept.shape == (2, 40, 50, 5)
    # Precedence, from 100 kept orders: an error of at most 0.05 each, 40 of them.
    weight, orders = probabilities(problem, law), every_order(5)
    place = np.argsort(orders, axis=1)
    before = weight @ (place[:, 0] < place[:, 3])
    gap = found.precedence(0, 3) - before
    assert np.sqrt(np.mean(gap**2)) < 0.08
    # The expected order is the best of all by the sampled table.
    best = found.expected_order()
    table = found.position_probabilities
    for j in range(40):
        score = table[j, orders, np.arange(5)].sum(axis=1)
        assert table[j, best[j], np.arange(5)].sum() == pytest.approx(score.max(), abs=1e-5)


def single_convergence(x):
    """R-hat and effective size of each quantity by itself."""
    return np.array([convergence(x[:, :, [k]]) for k in range(x.shape[2])]).T


def test_convergence_figures_know_independent_stuck_and_slow_chains():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 500, 10))
    r_hats, sizes = single_convergence(x)
    assert abs(r_hats.mean() - 1) < 0.02
    assert 1400 < sizes.mean() <= 2000
    assert single_convergence(x + 3 * np.arange(4)[:, None, None])[0].min() > 2
    slow = np.zeros((4, 4000, 10))
    for t in range(1, 4000):
        slow[:, t] = 0.9 * slow[:, t - 1] + rng.standard_normal((4, 10))
    # An autoregression with ρ = 0.9 has (1 − ρ)/(1 + ρ) as many: 842.
    assert single_convergence(slow)[1].mean() == pytest.approx(16000 * 0.1 / 1.9, rel=0.2)
    assert convergence(np.ones((2, 50, 3))) == (1.0, 100.0)


def test_convergence_figures_are_those_of_the_worst_quantity():
    """One that is stuck and one that is slow show, however many others have mixed."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((4, 2000, 20))
    r_hats, sizes = single_convergence(x)
    assert convergence(x) == pytest.approx((r_hats.max(), sizes.min()), rel=1e-12)
    good_r_hat, good_size = convergence(x)
    assert good_r_hat < 1.02
    assert good_size > 4000
    stuck = x.copy()
    stuck[:, :, 7] += 3 * np.arange(4)[:, None]
    assert convergence(stuck)[0] > 2
    slow = x.copy()
    for t in range(1, 2000):
        slow[:, t, 3] = 0.9 * slow[:, t - 1, 3] + x[:, t, 3]
    assert convergence(slow)[1] == pytest.approx(8000 * 0.1 / 1.9, rel=0.4)
    # A quantity that never moves says nothing, and hides nothing.
    still = np.concatenate([np.ones((4, 2000, 1)), stuck], axis=2)
    assert convergence(still) == convergence(stuck)


def test_louis_information_is_the_hessian_of_the_enumerated_likelihood():
    """d = 1, T = 4: −∂² of the exact marginal log-likelihood, at its maximum, by finite differences."""
    dt, n, T = 0.3, 40, 4
    sde = rt.LinearSDE([[-1.0]], [[0.5]])
    X = sde.simulate(n, T, dt, x0=rt.Gaussian(np.array([3.0]), np.array([[0.3]])), random_state=1)
    X, truth = rt.simulate.shuffle(X, permutation="independent", random_state=2)
    problem = problem_of(X, dt=dt)
    law = problem.law(problem.fit(truth))
    for _ in range(1000):
        before = law.step.diffusion
        law, sums = exact_step(problem, law)
        if abs(law.step.diffusion / before - 1) < 1e-10:
            break

    def value(theta):
        B, Q, mean, S = theta
        model = Euler(Linear(), np.array([[B]]) / dt, np.array([[Q]]) / dt, dt)
        start = rt.Gaussian(np.array([mean]), np.array([[S]]))
        return log_marginal(problem, EulerLaw(model, start)).sum()

    at = np.array(
        [
            law.step.coefficients[0, 0] * dt,
            law.step.diffusion[0, 0] * dt,
            law.start.mean[0],
            law.start.covariance[0, 0],
        ]
    )
    h = 1e-3 * np.array([0.1, at[1], 0.1, at[3]])
    hessian = np.empty((4, 4))
    for a in range(4):
        for b in range(4):
            ea, eb = h * (np.arange(4) == a), h * (np.arange(4) == b)
            corners = value(at + ea + eb) - value(at + ea - eb)
            corners += value(at - ea - eb) - value(at - ea + eb)
            hessian[a, b] = corners / (4 * h[a] * h[b])
    # Exact, independent draws stand in for the two chains.
    rng = np.random.default_rng(0)
    weight, orders, R = probabilities(problem, law), every_order(T), 3000
    kept = np.stack(
        [
            np.stack([orders[rng.choice(len(orders), R, p=weight[j])] for j in range(n)])
            for _ in range(2)
        ]
    ).astype(np.int16)
    scoring = problem.scoring(law, sums)
    complete = scoring.information(rng)
    draws = Draws(kept, np.empty((0, 0, 0), dtype=np.int32))
    square, means = _squares(scoring, draws)
    product = _crossed(*means)
    information = complete - (square - product)
    unit = 1 / np.sqrt(np.diag(complete))
    scale = np.outer(unit, unit)
    np.testing.assert_allclose(information * scale, -hessian * scale, atol=0.03)
    # Summed squares of mean scores estimate the same thing, by n trajectories only.
    assert np.linalg.eigvalsh(product * scale)[0] > -0.05
    # Not knowing the order costs something here, or the test would show nothing.
    assert np.abs((complete + hessian) * scale).max() > 0.1
    covariance, _, floored = louis_covariance(problem, problem, law, sums, draws, rng)
    assert not floored
    errors = problem.scoring(law, sums).errors(covariance)
    expected = np.sqrt(np.diag(np.linalg.inv(-hessian))) / dt
    assert errors.drift[0, 0] == pytest.approx(expected[0], rel=0.05)
    assert errors.diffusion[0, 0] == pytest.approx(expected[1], rel=0.05)


@pytest.mark.parametrize("floor", [0.1, 0.005])
def test_information_that_draws_cannot_tell_from_none_is_floored(floor):
    """Shares of the complete information, by direction: those above the floor are left as they are."""
    rng = np.random.default_rng(0)
    B = rng.standard_normal((5, 5)) * 10.0 ** np.arange(-4, 6, 2)
    complete = B.T @ B
    L = np.linalg.cholesky(complete)
    V = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    shares = np.array([0.9, 0.5, 0.2, 0.15, -0.3 if floor == 0.1 else 0.01])
    information = L @ V @ np.diag(shares) @ V.T @ L.T
    found, floored = floored_inverse(information, complete, floor)
    assert floored == (floor == 0.1)
    exact = np.linalg.inv(L @ V @ np.diag(np.maximum(shares, floor)) @ V.T @ L.T)
    unit = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    np.testing.assert_allclose(found / unit, exact / unit, atol=1e-6)


# The fit


@pytest.fixture(scope="module", params=[0])
def averaged(request):
    sde, X, truth = shuffled(3, 12, 150, seed=request.param)
    return sde, X, truth, fit(X)


@pytest.mark.parametrize(
    "averaged", [0, pytest.param(1, marks=pytest.mark.statistics)], indirect=True
)
def test_averaging_cures_the_shrinkage_of_the_best_order(averaged):
    sde, X, truth, model = averaged
    oracle = problem_of(X).fit(truth).step.diffusion
    best = fit(X, estimator="mle").diffusion_
    # The best order is too short a path; the average is not.
    assert np.trace(best) < 0.92 * np.trace(oracle)
    assert np.trace(model.diffusion_) == pytest.approx(np.trace(oracle), rel=0.1)
    found = (oracle, best, model.diffusion_)
    known, hard, soft = (mean_absolute_error(sde.diffusion, each) for each in found)
    # Measured 0.018 (oracle), 0.15 (one best order) and 0.018 (averaged).
    assert soft < 0.35 * hard
    assert soft < 2.5 * known


def test_position_probabilities_are_doubly_stochastic_and_say_where(averaged):
    _, _, truth, model = averaged
    P = model.position_probabilities_
    assert P.shape == (150, 12, 12)
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(P.sum(axis=2), 1, atol=1e-5)
    # The truth gets far more than chance.
    assert np.take_along_axis(P, truth[:, None, :], axis=1).mean() > 2 / 12


def test_precedence_of_i_and_j_is_one_less_that_of_j_and_i(averaged):
    _, _, truth, model = averaged
    both = model.precedence_probability(2, 7) + model.precedence_probability(7, 2)
    np.testing.assert_allclose(both, 1)
    place = np.argsort(truth, axis=1)
    said = model.precedence_probability(2, 7)
    right = np.where(place[:, 2] < place[:, 7], said, 1 - said)
    assert right.mean() > 0.6


def test_the_orders_of_a_fit_are_permutations_and_the_most_probable_is_the_most_likely(averaged):
    _, _, truth, model = averaged
    for orders in (model.order_, model.posterior_.expected_order(), model.posterior_.samples[:, 0]):
        np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(12), (150, 1)))
    problem, outcome, _, places, _ = model._memory
    law = outcome.law
    best = problem.log_joint(places.sorted_orders(model.order_), law)
    for r in range(0, 100, 20):
        sample = model.posterior_.samples[:, r].astype(np.intp)
        assert np.mean(best >= problem.log_joint(places.sorted_orders(sample), law) - 1e-6) > 0.97
    # The expected order puts more observations in their place than single draws do.
    mean = np.mean(model.posterior_.expected_order() == truth)
    assert mean > np.mean(model.posterior_.samples[:, 0] == truth)


def test_intervals_are_wider_than_those_of_known_orders(averaged):
    model = averaged[3]
    errors = model.standard_errors_
    known = regression_errors(
        moments(Data(averaged[1]), model.order_, DT, Linear()), model.diffusion_
    )
    assert np.all(np.isfinite(errors.drift))
    # Errors over n trajectories are themselves uncertain by about 1/√(2n), and more with uneven influences.
    least = 1 - 4 / np.sqrt(2 * len(averaged[1]))
    assert np.all(errors.drift > least * known.drift)
    assert np.all(errors.diffusion > least * known.diffusion)
    assert np.mean(errors.drift / known.drift) > 1
    np.testing.assert_array_equal(errors.diffusion, errors.diffusion.T)


def test_a_fit_reports_its_rounds_its_chains_and_its_direction(averaged):
    model = averaged[3]
    assert model.converged_
    assert model.n_iter_ >= 24
    assert model.posterior_.r_hat < 1.2
    assert model.posterior_.effective_size > 20
    assert model.result_.settings["estimator"] == "mcem"
    assert model.direction_.identified
    assert kendall_tau(averaged[2], model.order_) > 0.3


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("n", [30, pytest.param(300, marks=pytest.mark.statistics)])
def test_the_same_seed_gives_the_same_answer_whatever_the_number_of_jobs(n):
    _, X, _ = shuffled(2, 6, n, seed=7)
    one, two, three = fit(X, n_jobs=1), fit(X, n_jobs=2), fit(X, random_state=1)
    np.testing.assert_array_equal(one.drift_, two.drift_)
    np.testing.assert_array_equal(one.diffusion_, two.diffusion_)
    np.testing.assert_array_equal(one.position_probabilities_, two.position_probabilities_)
    np.testing.assert_array_equal(one.standard_errors_.drift, two.standard_errors_.drift)
    assert not np.array_equal(one.drift_, three.drift_)
    # Another seed moves the answer by Monte-Carlo error only.
    gap = (one.diffusion_ - three.diffusion_) / one.standard_errors_.diffusion
    assert np.abs(gap).max() < 0.7


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("T", "n"), [(6, 25), pytest.param(8, 100, marks=pytest.mark.statistics)])
def test_a_level_does_not_matter_to_an_affine_drift(T, n):
    _, X, _ = shuffled(2, T, n, seed=8)
    one, two = fit(X, drift="affine"), fit(X + 50.0, drift="affine")
    gap = (one.diffusion_ - two.diffusion_) / one.standard_errors_.diffusion
    assert np.abs(gap).max() < 0.7
    assert np.all(np.isfinite(two.standard_errors_.drift))


@pytest.mark.usefixtures("brief")
def test_auto_averages_where_orders_are_uncertain_and_says_so():
    _, X, _ = shuffled(3, 8, 60, seed=0)
    model = fit(X, estimator="auto")
    assert model.result_.settings["estimator"] == "mcem"
    assert any("uncertain" in note for note in model.result_.notes)
    assert "uncertain" in model.summary()
    assert model.position_probabilities_.shape == (60, 8, 8)
    assert mean_absolute_error(fit(X).diffusion_, model.diffusion_) < 0.02


def test_auto_takes_the_best_order_where_orders_are_certain_and_says_so():
    _, X, truth = shuffled(20, 10, 40, 1.0, seed=9)
    model = fit(X, estimator="auto")
    assert model.result_.settings["estimator"] == "exact"
    assert any("orders are certain" in note for note in model.result_.notes)
    assert np.mean(model.order_ == truth) > 0.99
    np.testing.assert_array_equal(model.drift_, fit(X, estimator="exact").drift_)
    assert fit(X, estimator="mle").result_.notes == ()
    assert not hasattr(model, "posterior_")  # nothing is sampled before it is asked for
    posterior = model.sample_orders(draws=200)
    assert posterior is model.posterior_
    # The orders are certain, their direction is open: each direction has half of the probability.
    assert not model.direction_.identified
    P = model.position_probabilities_
    ways = [np.take_along_axis(P, way[:, None, :], axis=1) for way in (truth, truth[:, ::-1])]
    assert np.sum(ways, axis=0).mean() > 0.97
    np.testing.assert_allclose(P, P[:, :, ::-1], atol=1e-6)
    # A new fit forgets what was sampled for the last one.
    model.fit(X)
    assert not hasattr(model, "posterior_")


@pytest.mark.usefixtures("brief")
def test_trajectories_of_different_length_are_averaged_over_too():
    panel = ragged_panel(3, 25, 4, 12, seed=10)
    model = fit(panel)
    P, lengths = model.position_probabilities_, panel.lengths
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(P.sum(axis=2), 1, atol=1e-5)
    expected, samples = model.posterior_.expected_order(), model.posterior_.samples
    for j, t in enumerate(lengths):
        np.testing.assert_array_equal(P[j, t:, t:], np.eye(12 - t))
        for order in (model.order_[j], expected[j], samples[j, 3]):
            assert sorted(order[:t]) == list(range(t))
            np.testing.assert_array_equal(order[t:], np.arange(t, 12))
    assert np.all(np.isfinite(model.standard_errors_.drift))


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("estimator", ["mcem", "auto"])
@pytest.mark.parametrize("n", [25, pytest.param(50, marks=pytest.mark.statistics)])
def test_trajectories_of_one_and_two_observations_are_averaged_over(estimator, n):
    panel = ragged_panel(2, n, 6, 8, seed=11)
    lengths = panel.lengths.copy()
    lengths[[1, 2, 3]] = 1, 2, 3
    inside = (np.arange(8)[None] < lengths[:, None])[:, :, None]
    panel = replace(panel, lengths=lengths, values=np.where(inside, panel.values, 0.0))
    model = fit(panel, estimator=estimator)
    np.testing.assert_array_equal(model.position_probabilities_[1], np.eye(8))
    np.testing.assert_allclose(model.position_probabilities_[2].sum(axis=0), 1, atol=1e-5)
    assert np.all(np.isfinite(model.diffusion_))


@pytest.mark.statistics
@pytest.mark.parametrize(
    ("d", "T", "n", "x0"),
    [(5, 20, 200, 0.1), (3, 15, 200, 0.1)],
)
def test_position_probabilities_are_calibrated(d, T, n, x0):
    right, said, owner = [], [], []
    for seed in (20, 21):
        _, X, truth = shuffled(d, T, n, x0, seed)
        P = fit(X).position_probabilities_
        place = np.argsort(truth, axis=1)
        hit = place[:, :, None] == np.arange(T)[None, None]
        j, a, k = np.nonzero((P >= 0.7) & (P <= 0.9))
        right.append(hit[j, a, k])
        said.append(P[j, a, k])
        owner.append(j + 1000 * seed)
    gap = np.concatenate(right) - np.concatenate(said)
    # Placements of one trajectory stand or fall together: the error is that of sums over trajectories.
    sums = np.bincount(np.unique(np.concatenate(owner), return_inverse=True)[1], weights=gap)
    error = np.sqrt((sums**2).sum()) / len(gap)
    assert len(gap) > 100
    # 0.03: parameters are fitted to the same data, which makes the probabilities a little too sure.
    assert abs(gap.mean()) < 3 * error + 0.03
    assert error < 0.06


# One shared order


@pytest.mark.parametrize(("n", "seed"), [(1, 0), (1, 3), (3, 1)])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_sampled_shared_orders_match_enumeration(n, seed, monkeypatch):
    """Of the posterior given the parameters; with parameters integrated out: tests/orders/test_collapsed.py."""
    monkeypatch.setattr("retrace_sde.search.collapsed.order_evidence", lambda *_, **__: None)
    T = 6
    sde = rt.simulate.random_irreversible_sde(2, random_state=seed)
    X, _ = rt.simulate.shuffle(sde.simulate(n, T, DT, random_state=seed), random_state=seed)
    model = rt.ReTrace(dt=DT, estimator="mle", random_state=0, drift="linear").fit(X)
    found = model.sample_orders(draws=20_000)
    problem, step, orders = model._memory.model, model._memory.outcome.found.step, every_order(T)
    C = transition_costs(problem.data, step)
    every = in_order(problem.data.values, np.arange(T)).transpose(1, 0, 2)
    start = -start_log_densities(every, step, problem.variances).sum(axis=1)
    cost = start[orders[:, 0]] + C[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    weight = np.exp(cost.min() - cost)
    weight /= weight.sum()
    exact = frequencies(weight[None], T)[3][0]
    if not model.direction_.identified:
        exact = (exact + exact[:, ::-1]) / 2  # an open direction counts for half
    assert found.position_probabilities.shape == (T, T)
    # 80 000 correlated records: an error near 0.01 where the posterior has several modes.
    columns = model._memory.places.columns
    assert np.abs(found.position_probabilities[columns] - exact).max() < 0.04
    place, here = np.argsort(orders, axis=1), np.argsort(columns)
    before = weight @ (place[:, here[1]] < place[:, here[4]])
    before = before if model.direction_.identified else 0.5
    assert abs(model.precedence_probability(1, 4) - before) < 0.15
    assert model.precedence_probability(1, 4) + model.precedence_probability(4, 1) == 1
    assert sorted(found.expected_order()) == list(range(T))
    assert np.all(np.sort(found.samples, axis=1) == np.arange(T))
    assert isinstance(model.precedence_probability(0, 1), float)


def test_a_certain_shared_order_is_certain():
    sde = rt.simulate.random_irreversible_sde(5, random_state=0)
    X, truth = rt.simulate.shuffle(sde.simulate(100, 20, DT, random_state=0), random_state=0)
    model = rt.ReTrace(dt=DT, random_state=0, drift="linear").fit(X)
    posterior = model.sample_orders(draws=200)
    np.testing.assert_array_equal(posterior.expected_order(), truth)
    assert posterior.position_probabilities[truth, np.arange(20)].min() > 0.99


# Minutes


@pytest.mark.statistics
@pytest.mark.filterwarnings("ignore:The chains over orders mix slowly")
def test_95_percent_intervals_of_A_cover_92_to_98_percent():
    """60 replicates at d = 3, T = 20, n = 80, where a third of the positions is right: about five minutes."""
    covered = []
    for seed in range(60):
        sde, X, _ = shuffled(3, 20, 80, seed=1000 + seed)
        model = fit(X)
        inside = np.abs(model.drift_ - sde.drift) < 1.96 * model.standard_errors_.drift
        covered.append(inside.mean())
    # The band is 92 to 98 %; entries of one replicate are correlated: the error is over replicates.
    error = np.std(covered, ddof=1) / np.sqrt(len(covered))
    assert 0.92 - 2 * error < np.mean(covered) < 0.98 + 2 * error
    assert error < 0.02


def _of_one_direction(model):
    errors, twin = model.standard_errors_.drift, model.alternative_
    if twin is None:
        return errors
    return np.sqrt(errors**2 - 0.5 * (model.drift_ - twin.drift) ** 2)


@pytest.mark.usefixtures("brief")
def test_many_trajectories_are_represented_by_some_where_all_would_cost_too_much(monkeypatch):
    """Direction, diagnostics and errors look at subsets beyond a size; the answer must not need all."""
    rng = np.random.default_rng(0)
    sde = rt.simulate.random_irreversible_sde(3, random_state=rng)
    X = sde.simulate(100, 8, 0.01, x0=0.1, random_state=rng)
    X, _ = rt.simulate.shuffle(X, permutation="independent", random_state=rng)
    options = {"dt": 0.01, "permutation": "independent", "estimator": "mcem", "random_state": 0}
    options["drift"] = "linear"
    # Louis' own errors: a spread over trajectories would be that of those that are looked at.
    monkeypatch.setattr("retrace_sde.fit.scores.MANY_TRAJECTORIES", 10**6)
    whole = rt.ReTrace(**options).fit(X)
    monkeypatch.setattr(EulerModel, "effort", EulerModel.effort._replace(bridged=40))
    monkeypatch.setattr(engine_fit, "POSTERIOR_NUMBERS", 60 * 8 * 8)
    some = rt.ReTrace(**options).fit(X)
    assert len(some.direction_.contributions) == 40
    assert not hasattr(some, "posterior_")
    assert any("sample_orders()" in note for note in some.result_.notes)
    # The same chains up to the bridge, which only decides on the direction: the same parameters.
    np.testing.assert_allclose(some.drift_, whole.drift_, rtol=0.2, atol=0.3)
    # Louis' errors from 60 of 100 trajectories, scaled up: the same to about 1/√60, twice over, once what an open
    # direction adds is taken off.
    ours, theirs = (_of_one_direction(each) for each in (some, whole))
    np.testing.assert_allclose(ours, theirs, rtol=0.5)
    assert some.sample_orders(draws=100).position_probabilities.shape == (100, 8, 8)


@pytest.mark.parametrize("turned", [False, True])
def test_parameters_found_on_some_trajectories_are_gone_on_from_on_all(turned, monkeypatch):
    """The answer is that of all from the beginning, within Monte-Carlo error, in whichever direction orders were given, and its rounds saw all of them."""
    _, X, order = shuffled(2, 8, 480, seed=3, dt=0.05)
    problem, rng = problem_of(X, dt=0.05), np.random.default_rng
    begin = problem.fit(order[:, ::-1] if turned else order)
    whole = average(problem, begin, rng(1))
    monkeypatch.setattr(EulerModel, "effort", EulerModel.effort._replace(bridged=60))
    staged = average(problem, begin, rng(1))
    assert len(staged.log_ratios) == 60
    assert len(whole.log_ratios) == 480
    for one, two in ((whole.run, staged.run), (whole.twin, staged.twin)):
        assert two.sums.first_square.trace() == pytest.approx(
            one.sums.first_square.trace(), rel=0.2
        )
    error = problem.known_order_errors(whole.run.sums, whole.run.law).drift
    A, B = (each.run.law.step.coefficients for each in (whole, staged))
    assert np.sqrt(np.mean(((A - B) / error) ** 2)) < 3 * np.sqrt(2) * MONTE_CARLO_TOLERANCE
    few = average(problem.some(60), problem.some(60).fit(begin.order[evenly(480, 60)]), rng(1))
    assert np.sqrt(np.mean(((A - few.run.law.step.coefficients) / error) ** 2)) > 1
