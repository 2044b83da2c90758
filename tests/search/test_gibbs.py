"""Draws of orders and parameters together: states by the simulation smoother, and sweeps whose stationary law is the posterior."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import Observations, StepClasses
from retrace_sde.fit.statespace.smoother import (
    StateSpace,
    cell_sums,
    drawn_states,
    states,
    step_sums,
)
from retrace_sde.orders.collapsed.marginal import Conjugate, StartPrior, StepPrior
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.panel.blocks import Data, in_order
from retrace_sde.process.drift import Affine
from retrace_sde.process.sde import Gaussian, Transition
from retrace_sde.search.gibbs import Gibbs, Priors
from retrace_sde.search.model import Problem
from retrace_sde.search.models import hidden
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel


@pytest.mark.parametrize("noise", [(0.1, 0.3), (0.0, 0.0)])
def test_drawn_states_have_the_smoother_s_moments(noise):
    """Behind noise by the simulation smoother; without it only missing entries are drawn."""
    rng = np.random.default_rng(0)
    F = np.array([[0.8, 0.2], [-0.1, 0.7]])
    step = Transition(F, np.array([0.3, -0.2]), np.array([[0.2, 0.05], [0.05, 0.1]]))
    model = StateSpace(step, np.diag(noise), Gaussian(np.zeros(2), np.eye(2)))
    y = rng.standard_normal((1, 5, 2))
    y[0, 1, 0] = y[0, 3] = np.nan
    seen = Observations.regular(np.repeat(y, 20_000, axis=0), 1.0)
    value, drawn = drawn_states(seen, model.steps, rng)
    known = states(Observations.regular(y, 1.0), model.steps, times=5)
    np.testing.assert_allclose(value, known.log_likelihood[0], rtol=1e-10)
    np.testing.assert_allclose(drawn.mean(axis=0), known.means[0], atol=0.02)
    spread = np.einsum("nti,ntj->tij", z := drawn - known.means[0], z) / len(drawn)
    np.testing.assert_allclose(spread, known.covariances[0], atol=0.02)
    lag = np.einsum("nti,ntj->tij", z[:, 1:], z[:, :-1]) / len(drawn)
    np.testing.assert_allclose(lag, known.lag_covariances[0], atol=0.02)


def test_states_are_drawn_whatever_the_memory_layout():
    """Slices of a shared order come with time first: what is missing was left at 0."""
    rng = np.random.default_rng(4)
    step = Transition(0.9 * np.eye(2), np.ones(2), 0.01 * np.eye(2))
    model = StateSpace(step, np.zeros((2, 2)), Gaussian(5 * np.ones(2), np.eye(2)))
    y = 5 + rng.standard_normal((4, 6, 2))
    y[:, 2:4] = np.nan
    turned = np.asfortranarray(y)
    one, two = (drawn_states(Observations.regular(each, 1.0), model.steps, np.random.default_rng(5)) for each in (y, turned))  # fmt: skip
    np.testing.assert_allclose(one[0], two[0])
    np.testing.assert_allclose(one[1], two[1])
    assert (two[1][:, 2:4] > 1).all()


@pytest.mark.parametrize("inputs", [False, True])
def test_sums_over_steps_from_missing_entries_are_the_smoother_s(inputs):
    """Of a step with one class or two, with an input, and of trajectories that end early."""
    rng = np.random.default_rng(6)
    y = rng.standard_normal((7, 5, 2))
    y[rng.random(y.shape) < 0.2] = np.nan
    y[1, 3:] = np.nan
    F = np.stack([[[0.8, 0.2], [-0.1, 0.7]], [[0.5, 0.0], [0.3, 0.4]]])
    S, Q = rng.standard_normal((2, 2, 1)), np.stack([0.3 * np.eye(2), 0.5 * np.eye(2)])
    model = StepModel(F, S, Q, np.zeros((2, 2)), Gaussian(np.ones(2), np.eye(2)))
    classes = StepClasses(np.array([1.0, 2.0]), np.array([[0, 1, 1, 0]]))
    v = rng.standard_normal((7, 5, 1)) if inputs else None
    seen = Observations(y, classes, v)
    got = cell_sums(seen, model)
    want = [part for stack in seen.stacks for part in step_sums(stack, model, total=True)]
    np.testing.assert_allclose(got.likelihood, sum(part.likelihood for part in want))
    np.testing.assert_allclose(got.grams, sum(part.grams for part in want), atol=1e-12)
    spread = sum(part.first_covariance for part in want)
    np.testing.assert_allclose(got.first_covariance, spread, atol=1e-12)
    firsts = np.concatenate([part.firsts for part in want]).sum(axis=0)
    np.testing.assert_allclose(got.firsts.sum(axis=0), firsts)


def test_random_intercepts_are_entries_that_do_not_move():
    """Of (x, c) with c' = c never seen: the sums of the compiled smoother, which inverts nothing."""
    rng = np.random.default_rng(7)
    y = np.full((9, 5, 4), np.nan)
    y[:, :, :2] = rng.standard_normal((9, 5, 2))
    y[:, :, :2][rng.random((9, 5, 2)) < 0.2] = np.nan
    F = np.eye(4)
    F[:2] = [[0.8, 0.2, 0.1, 0.0], [-0.1, 0.7, 0.0, 0.1]]
    Q, R, P = (
        np.diag([0.3, 0.5, 0.0, 0.0]),
        np.diag([0.0, 0.0, 1.0, 1.0]),
        rng.standard_normal((4, 4)),
    )
    law = Gaussian(np.arange(4.0), P @ P.T + np.eye(4))
    model = StepModel(F[None], np.zeros((1, 4, 0)), Q[None], R, law, regular=False)
    seen = Observations.regular(y, 1.0)
    got = cell_sums(seen, model)
    want = [part for stack in seen.stacks for part in step_sums(stack, model, total=True)]
    np.testing.assert_allclose(got.likelihood, sum(part.likelihood for part in want))
    np.testing.assert_allclose(got.grams, sum(part.grams for part in want), atol=1e-10)
    spread = sum(part.first_covariance for part in want)
    np.testing.assert_allclose(got.first_covariance, spread, atol=1e-10)


def test_values_seen_without_noise_stay():
    rng = np.random.default_rng(1)
    step = Transition(0.5 * np.eye(2), np.zeros(2), np.eye(2))
    model = StateSpace(step, np.zeros((2, 2)), Gaussian(np.zeros(2), np.eye(2)))
    y = rng.standard_normal((4, 6, 2))
    y[rng.random(y.shape) < 0.3] = np.nan
    _, drawn = drawn_states(Observations.regular(y, 1.0), model.steps, rng)
    seen = ~np.isnan(y)
    np.testing.assert_array_equal(drawn[seen], y[seen])
    assert np.isfinite(drawn).all()


def test_parameters_of_many_known_steps_are_drawn_near_the_truth():
    rng = np.random.default_rng(2)
    x = np.cumsum(0.1 * rng.standard_normal((400, 10, 2)), axis=1)
    x[:, :, 0] += 0.3 * np.arange(10)
    model = EulerModel(Data(x), 0.5, Affine())
    order = np.arange(10)
    sampler = Gibbs(model, Priors.of(model), rng)
    law = model.law(model.fit(order))
    laws = [sampler.redraw(order, law)[0] for _ in range(50)]
    theta = np.mean([each.step.coefficients for each in laws], axis=0)
    H = np.mean([each.step.diffusion for each in laws], axis=0)
    np.testing.assert_allclose(theta, law.step.coefficients, atol=0.01)
    np.testing.assert_allclose(H, 0.02 * np.eye(2), atol=0.002)


def test_noise_is_drawn_with_a_shared_order():
    rng = np.random.default_rng(3)
    x = 3 - 0.4 * np.arange(8)[None, :, None] + 0.1 * rng.standard_normal((30, 8, 2))
    y = x + 0.2 * rng.standard_normal(x.shape)
    shuffle = rng.permutation(8)
    model = HiddenModel.of(Problem(Data(y[:, shuffle]), 1.0, Affine()), noise="estimate")
    truth = np.argsort(shuffle)
    law = model.fit(truth).law
    sampler, order, noise = Gibbs(model, Priors.of(model), rng), truth.copy(), []
    for _ in range(60):
        order, law, _ = sampler.shared_sweep(order, law)
        assert sorted(order.tolist()) == list(range(8))
        noise.append(law.R[0, 0])
    assert 0.02 < np.mean(noise) < 0.08


@pytest.mark.parametrize("kind", ["shared", "noise", "missing", "own"])
@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
def test_where_the_direction_is_open_neither_end_comes_first(kind):
    sde = rt.LinearSDE([[-1.0, 0.4], [-0.4, -1.0]], 0.5 * np.eye(2))
    X = sde.simulate(10, 6, 0.2, random_state=3)
    rng = np.random.default_rng(4)
    options = {}
    if kind == "noise":
        X, options = X + 0.1 * rng.standard_normal(X.shape), {"observation_noise": 0.1}
    if kind == "missing":
        X = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    if kind == "own":
        options = {"permutation": "independent"}
    lost, _ = rt.simulate.shuffle(
        X, random_state=5, **({"permutation": "independent"} if kind == "own" else {})
    )
    model = rt.ReTrace(dt=0.2, random_state=0, n_jobs=1, **options).fit(lost)
    assert not model.direction_.identified
    for order in np.atleast_2d(model.order_)[:1]:
        said = model.precedence_probability(int(order[0]), int(order[-1]))
        assert 0.2 <= np.atleast_1d(said)[0] <= 0.8


@pytest.mark.parametrize("at_once", [10_000, 1])
def test_moves_given_parameters_draw_orders_by_what_was_seen(at_once, monkeypatch):
    """Against the likelihood of all orders; values that are missing are summed out, whether all places of a segment are tried or two."""
    monkeypatch.setattr(hidden, "TRIED_ELEMENTS", at_once)
    rng = np.random.default_rng(9)
    y = 0.5 * rng.standard_normal((2, 4, 1)).cumsum(axis=1)
    y[0, 2] = y[1, 0] = np.nan
    model = HiddenModel.of(Problem(Data(y, n_jobs=1), 1.0, Affine()), noise=0.0)
    law = replace(model.fit(np.arange(4)).law, H=np.eye(1), initial=Gaussian(np.zeros(1), np.eye(1)))  # fmt: skip
    every = np.array(list(permutations(range(4))))
    weights = np.exp(model.log_joints(list(every), law).sum(axis=1))
    order, draws, code = every[0], [], 4 ** np.arange(4)
    for _ in range(4000):
        order = model.shared_move(order, law, rng)
        draws.append(order @ code)
    counts = np.array([np.mean(np.array(draws) == each) for each in every @ code])
    assert weights.max() < 0.5 * weights.sum()
    assert 0.5 * np.abs(counts - weights / weights.sum()).sum() < 0.06


STEP = StepPrior(10 * np.eye(3), 8.0, 0.4 * np.eye(2))
START = StartPrior(np.zeros(2), 1.0, 8.0, 4.0 * np.eye(2))
SQUARES, FREEDOM = np.full(2, 0.15), np.full(2, 4.0)


def sampler_at_the_truth(kind, rng, n=3, T=6):
    """A panel whose parameters, order and noise come from the prior of its sampler, and these."""
    theta, Q = Conjugate(np.zeros((2, 3)), STEP.precision, STEP.freedom, STEP.scale).draw(rng)
    mean, S = Conjugate(np.zeros((2, 1)), np.eye(1), START.freedom, START.scale).draw(rng)
    sigma = np.sqrt(SQUARES.sum() / rng.chisquare(FREEDOM.sum())) * kind.endswith("noise")
    x = [mean[:, 0] + rng.standard_normal((n, 2)) @ np.linalg.cholesky(S).T]
    for _ in range(T - 1):
        step = x[-1] @ theta[:, :2].T + theta[:, 2]
        x.append(x[-1] + step + rng.standard_normal((n, 2)) @ np.linalg.cholesky(Q).T)
    y = np.stack(x, axis=1) + sigma * rng.standard_normal((n, T, 2))
    if kind.endswith("missing"):
        y[rng.random(y.shape) < 0.2] = np.nan
    order = np.array([rng.permutation(T) for _ in range(n)]) if "own" in kind else rng.permutation(T)  # fmt: skip
    model = HiddenModel.of(
        Problem(Data(in_order(y, np.argsort(order, axis=-1)), n_jobs=1), 1.0, Affine()),
        noise="estimate" if sigma else 0.0,
    )
    sampler = Gibbs(model, Priors(STEP, START, (SQUARES, FREEDOM)), rng)
    euler = Euler(model.drift, theta, Q, 1.0)
    law = model.law_of(euler, Gaussian(mean[:, 0], S), (SQUARES, FREEDOM), rng)
    return sampler, order, replace(law, R=sigma**2 * np.eye(2))


def swept(sampler, order, law, sweeps):
    """Order and parameters after some sweeps."""
    if order.ndim == 1:
        for _ in range(sweeps):
            order, law, _ = sampler.shared_sweep(order, law)
        return order, law
    chains = Chains.start(order.copy(), sampler.rng, chains=1)
    for _ in range(sweeps):
        law, _ = sampler.redraw(chains.orders[0], law)
        sampler.model.draw(law, chains, Stretch(2, order.shape[1], 1))
    return chains.orders[0], law


def described(sampler, order, law):
    """Functions of order, parameters and data whose means would move if sweeps did not leave the posterior as it is."""
    z = in_order(sampler.model.values, order)
    ends = [np.log1p(np.nansum(z[:, k] ** 2)) for k in (0, -1)]
    steps = np.log1p(np.nansum(np.diff(z, axis=1) ** 2))
    theta, Q = sampler.model.parameters(law)
    t, q = np.arctan(3 * theta.ravel()), np.linalg.slogdet(Q)[1]
    return np.array([*t, *t**2, *(t[:4] * ends[0]), q, q**2, q * steps, *ends, steps, np.log(law.R[0, 0] + 1e-9)])  # fmt: skip


@pytest.mark.statistics
@pytest.mark.parametrize("kind", ["shared noise", "shared missing", "own noise", "own missing"])
def test_sweeps_leave_the_posterior_as_it_is(kind):
    """Parameters and order from the prior are a draw of the posterior of their panel, and stay one however long the chain (Geweke 2004)."""
    moved = []
    for seed in range(400):
        sampler, *truth = sampler_at_the_truth(kind, np.random.default_rng([seed, 3]))
        after = swept(sampler, *truth, 6)
        moved.append(described(sampler, *after) - described(sampler, *truth))
    z = np.mean(moved, axis=0) / (np.std(moved, axis=0) + 1e-12) * np.sqrt(len(moved))
    assert np.abs(z).max() < 4
