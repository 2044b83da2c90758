"""Steps that differ behind noise and missing values, beside dense Gaussians and finite differences."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.statespace.ascent.climb import Ascent, climb
from retrace_sde.fit.statespace.em import em
from retrace_sde.fit.statespace.em_steps import exact_steps, expect
from retrace_sde.fit.statespace.errors import Scores
from retrace_sde.fit.statespace.observations import MAX_CLASSES, Observations, StepClasses
from retrace_sde.fit.statespace.parameters import Parameters, Setup, spread
from retrace_sde.fit.statespace.smoother import states
from retrace_sde.fit.statespace.transitions import pulled_back, step_cost, transitions
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.models.random_gaps import (
    RATIOS,
    best_shape,
    log_weights,
    step_log_densities,
)

D, M = 3, 2


def a_law(seed=0, *, noise=(0.1, 0.2, 0.0)):
    rng = np.random.default_rng(seed)
    A = 0.5 * rng.standard_normal((D, D)) - np.eye(D)
    G = rng.standard_normal((D, D))
    initial = Gaussian(rng.standard_normal(D), 0.7 * np.eye(D) + 0.1)
    theta = np.c_[A, rng.standard_normal((D, M))]
    return Parameters(theta, G @ G.T + 0.3 * np.eye(D), np.diag(noise), initial, scheme="exact")


def some_data(law, n=5, T=6, seed=1, *, missing=0.3):
    """Observations of a law across gaps of each trajectory's own, with inputs; the true gaps."""
    rng = np.random.default_rng(seed)
    gaps = np.array([0.1, 0.5, 1.3])[rng.integers(0, 3, (n, T - 1))]
    v = np.concatenate([np.ones((n, T, 1)), rng.standard_normal((n, T, M - 1))], axis=2)
    x = law.initial.sample(n, rng)
    path = [x]
    for t in range(T - 1):
        F, S, Q = transitions(law.theta, law.H, gaps[:, t])
        x = np.einsum("nij,nj->ni", F, x) + np.einsum("nij,nj->ni", S, v[:, t])
        x = x + np.einsum("nij,nj->ni", np.linalg.cholesky(Q), rng.standard_normal((n, D)))
        path.append(x)
    Y = np.stack(path, axis=1) + rng.standard_normal((n, T, D)) * np.sqrt(np.diag(law.R))
    return np.where(rng.random(Y.shape) < missing, np.nan, Y), v, gaps


def dense(law, v, gaps):
    """Mean (T d,) and covariance of the states of one trajectory, and R of all times."""
    T = len(v)
    mean, K = np.zeros((T, D)), np.zeros((T, D, T, D))
    mean[0], K[0, :, 0] = law.initial.mean, law.initial.covariance
    for t in range(1, T):
        F, S, Q = (each[0] for each in transitions(law.theta, law.H, gaps[t - 1 : t]))
        mean[t] = F @ mean[t - 1] + S @ v[t - 1]
        for s in range(t):
            K[t, :, s] = F @ K[t - 1, :, s]
            K[s, :, t] = K[t, :, s].T
        K[t, :, t] = F @ K[t - 1, :, t - 1] @ F.T + Q
    return mean.ravel(), K.reshape(T * D, T * D), np.diag(np.tile(np.diag(law.R), T))


def test_likelihood_and_smoothed_states_are_those_of_the_dense_gaussian():
    law = a_law()
    Y, v, gaps = some_data(law)
    classes = StepClasses.of(gaps)
    found = states(Observations(Y, classes, v), law.steps(classes.gaps), times=6)
    values, means, spreads = (
        found.log_likelihood,
        found.means,
        found.covariances[found.pattern],
    )
    for j in range(len(Y)):
        mean, K, R = dense(law, v[j], gaps[j])
        o = ~np.isnan(Y[j].ravel())
        seen, S = Y[j].ravel()[o], (K + R)[np.ix_(o, o)]
        assert values[j] == pytest.approx(multivariate_normal.logpdf(seen, mean[o], S), abs=1e-9)
        gain = np.linalg.solve(S, K[o]).T
        np.testing.assert_allclose(means[j].ravel(), mean + gain @ (seen - mean[o]), atol=1e-9)
        left = (K - gain @ K[o]).reshape(6, D, 6, D)
        for t in range(6):
            np.testing.assert_allclose(spreads[j, t], left[t, :, t], atol=1e-9)


def test_scores_are_derivatives_of_the_likelihood():
    law = a_law(2, noise=(0.1, 0.2, 0.05))
    Y, v, gaps = some_data(law, seed=3)
    classes = StepClasses.of(gaps)
    seen = Observations(Y, classes, v)
    free = np.ones((D, D + M), dtype=bool)
    every = np.ones(D, dtype=bool)
    setup = Setup(1.0, free, np.zeros((D, D + M)), None, every, False, None, np.ones(D))
    scores = Scores(setup, law, classes.gaps)
    found = scores.of(seen)
    x = scores.vector()
    assert found.shape == (len(Y), scores.size) == (len(Y), len(x))
    for k in range(scores.size):
        e = np.zeros_like(x)
        e[k] = 1e-5
        high, low = (
            states(seen, scores.at(x + s * e).law.steps(classes.gaps)).log_likelihood
            for s in (1, -1)
        )
        np.testing.assert_allclose(found[:, k], (high - low) / 2e-5, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_the_m_step_and_of_transitions_is_that_of_finite_differences():
    law = a_law(4, noise=(0.1, 0.1, 0.1))
    Y, v, gaps = some_data(law, n=20, seed=5, missing=0.1)
    common = gaps[0]
    free = np.ones((D, D + M), dtype=bool)
    tied = np.ones(D, dtype=bool)
    setup = Setup(0.6, free, np.zeros((D, D + M)), None, tied, True, None, np.ones(D))
    whole = Spans(np.array([0]), np.array([5]), np.array([common.sum() / 0.6]))
    for spans in (None, whole):
        classes = StepClasses.by_position(common)
        start = replace(law, gaps=None if spans is None else common)
        objective = exact_steps(setup, expect(Observations(Y, classes, v), start), spans)
        x = objective.pack(law.theta - 0.1, law.H, None if spans is None else common)
        _, gradient = objective(x)
        for k in range(len(x)):
            e = np.zeros_like(x)
            e[k] = 1e-5
            numeric = (objective(x + e)[0] - objective(x - e)[0]) / 2e-5
            assert gradient[k] == pytest.approx(numeric, abs=1e-5 * max(1, abs(numeric)))
    rng = np.random.default_rng(0)
    K = len(common)
    to_F, to_Q = rng.standard_normal((K, D, D + M)), rng.standard_normal((K, D, D))
    of_theta, _, of_g = pulled_back(law.theta, law.H, common, to_F, to_Q)

    def value(theta, g):
        F, S, Q = transitions(theta, law.H, g)
        return np.sum(to_F * np.concatenate([F, S], axis=2)) + np.sum(to_Q * Q)

    e = np.zeros_like(law.theta)
    e[1, 3] = 1e-6
    numeric = (value(law.theta + e, common) - value(law.theta - e, common)) / 2e-6
    assert of_theta[1, 3] == pytest.approx(numeric, rel=1e-5)
    e = np.zeros(K)
    e[2] = 1e-6
    numeric = (value(law.theta, common + e) - value(law.theta, common - e)) / 2e-6
    assert of_g[2] == pytest.approx(numeric, rel=1e-5)


def test_long_gaps_of_a_fast_relaxation_lose_no_digits():
    """Q by Lyapunov's equation, and the gradient by finite differences, where e^{−A g} would be 1e11 and more."""
    A = np.array([[-0.07, 0.9, 0.4], [0.01, -1.1, -0.3], [0.1, -0.5, -0.6]])
    theta, H = np.c_[A, [0.1, 0.2, -0.1]], np.diag([0.5, 1.0, 2.0]) + 0.1
    gaps = np.array([1.0, 30.0, 200.0])
    F, _, Q = transitions(theta, H, gaps)
    stationary = solve_continuous_lyapunov(A, -H)
    for k, g in enumerate(gaps):
        back = expm(A * g)
        np.testing.assert_allclose(F[k], back, atol=1e-12)
        np.testing.assert_allclose(Q[k], stationary - back @ stationary @ back.T, rtol=1e-10)
    z = np.random.default_rng(0).standard_normal((3, 50, 7))
    z[..., 3] = 1.0
    parts = gaps, np.full(3, 50.0), z.transpose(0, 2, 1) @ z
    found = step_cost(theta, H, *parts)
    for i, j in np.ndindex(3, 4):
        e = np.zeros_like(theta)
        e[i, j] = 1e-6
        numeric = (step_cost(theta + e, H, *parts).value - step_cost(theta - e, H, *parts).value) / 2e-6  # fmt: skip
        assert found.theta[i, j] == pytest.approx(numeric, rel=1e-5, abs=1e-3)


def test_em_climbs_to_where_the_score_is_zero():
    law = a_law(6, noise=(0.04, 0.04, 0.04))
    Y, v, gaps = some_data(law, n=40, T=8, seed=7, missing=0.15)
    classes = StepClasses.of(gaps)
    seen = Observations(Y, classes, v)
    free, tied = np.ones((D, D + M), dtype=bool), np.ones(D, dtype=bool)
    setup = Setup(0.6, free, np.zeros((D, D + M)), None, tied, True, None, spread(Y))
    start = replace(law, theta=np.zeros((D, D + M)), H=np.eye(D), R=0.1 * np.eye(D))
    found = climb(lambda each: expect(seen, each), Ascent(setup), start, 300, 1e-6)
    assert found.converged
    assert np.all(np.diff(found.trace) >= 0)
    scores = Scores(setup, found.parameters, classes.gaps)
    total = scores.of(seen).sum(axis=0)
    information = scores.observed(seen)
    # a step of Newton's would change nothing that matters
    assert np.all(np.abs(np.linalg.solve(information, total)) < 0.05 * np.sqrt(np.diag(np.linalg.inv(information))))  # fmt: skip


def test_on_a_regular_grid_it_is_the_em_of_equal_steps():
    rng = np.random.default_rng(8)
    sde = rt.LinearSDE([[-1.0, 0.5], [-0.3, -1.2]], 0.25 * np.eye(2), offset=[0.3, 0.1])
    Y = sde.simulate(30, 10, 0.2, x0=1.0, random_state=1) + 0.1 * rng.standard_normal((30, 10, 2))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    regular = em(Y, 0.2, affine=True, tolerance=1e-6)
    law = regular.parameters
    classes = StepClasses.of(np.full(9, 0.2))
    seen = Observations(Y, classes, np.ones((30, 10, 1)))
    assert states(seen, law.steps(classes.gaps)).log_likelihood.sum() == pytest.approx(
        regular.log_likelihood[-1], abs=1e-6
    )
    again = Ascent(regular.setup).maximise(expect(seen, law), law)
    np.testing.assert_allclose(again.theta, law.theta, atol=2e-3)


def test_many_distinct_gaps_are_joined_to_close_ones():
    rng = np.random.default_rng(0)
    gaps = rng.gamma(2.0, 0.5, (200, 9))
    classes = StepClasses.of(gaps)
    assert len(classes.gaps) <= MAX_CLASSES
    width = np.log(gaps.max() / gaps.min()) / MAX_CLASSES
    assert np.abs(np.log(classes.gaps[classes.index] / gaps)).max() <= width + 1e-9
    few = StepClasses.of(np.array([0.5, 1.0, 0.5]))
    np.testing.assert_array_equal(few.gaps[few.index[0]], [0.5, 1.0, 0.5])


def test_a_gap_that_is_summed_out_is_integrated_over_its_law():
    law = a_law(9)
    rng = np.random.default_rng(1)
    x, v = rng.standard_normal((1, 2, D)), np.ones((1, 2, M))
    shape, fine = 2.0, np.exp(np.linspace(np.log(1e-3), np.log(15), 4000))
    density = shape**shape * fine**shape * np.exp(-shape * fine)  # Γ(2) = 1, in log g
    each = np.exp(step_log_densities(transitions(law.theta, law.H, fine), x, v)[0, 0])
    exact = np.sum(each * density) * np.log(fine[1] / fine[0])
    table = step_log_densities(transitions(law.theta, law.H, RATIOS), x, v)[0, 0]
    assert np.exp(table) @ np.exp(log_weights(shape)) == pytest.approx(exact, rel=0.02)


def test_the_shape_of_the_law_of_gaps_is_found():
    rng = np.random.default_rng(2)
    for shape in (1.5, 2.0, 8.0):  # below one, gaps shorter than the table count too
        drawn = rng.gamma(shape, 1 / shape, 20_000)
        at = np.clip(np.searchsorted((RATIOS[1:] * RATIOS[:-1]) ** 0.5, drawn), 0, len(RATIOS) - 1)
        found = best_shape(np.bincount(at, minlength=len(RATIOS)).astype(float))
        assert found == pytest.approx(shape, rel=0.12)


def test_a_subject_who_was_seen_once_takes_no_step():
    """Levels of a table with such a subject were refused: its steps' largest gap was asked for."""
    found = step_cost(-np.eye(2), np.eye(2), np.empty(0), np.empty(0), np.empty((0, 4, 4)))
    assert found.value == 0
    assert not found.theta.any()
    assert not found.diffusion.any()


def test_a_trial_step_whose_covariance_overflows_is_refused():
    """Plates with large offsets led a search there, and an audit of their stamps ended in an error of eigenvalues."""
    A = np.array([[-1046.4, -467.5, 751.2], [-513.4, -230.0, 371.2], [191.6, 86.0, -147.6]])
    H = np.array([[1195.2, 569.6, -346.7], [569.6, 280.9, -181.4], [-346.7, -181.4, 1.5e26]])
    parts = np.array([0.1, 1.0, 2.0, 3.0]), np.ones(4), np.ones((4, 7, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step_cost(np.c_[A, [54.9, 27.0, -10.1]], H, *parts) is None
