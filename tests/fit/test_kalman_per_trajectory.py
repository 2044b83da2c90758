"""The compiled smoother against the dense joint Gaussian, the recursion per pattern, and itself in threads."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.fit.statespace import errors as statespace_errors
from retrace_sde.fit.statespace import per_trajectory as by_trajectory
from retrace_sde.fit.statespace.em import em
from retrace_sde.fit.statespace.em_steps import expect
from retrace_sde.fit.statespace.observations import Observations, Stack
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.fit.statespace.per_trajectory import per_trajectory
from retrace_sde.fit.statespace.smoother import StateSpace, kalman
from retrace_sde.process.sde import Gaussian, Transition

Array = NDArray[np.float64]


def covariance(d: int, rng: np.random.Generator) -> Array:
    B = rng.normal(size=(d, d))
    return B @ B.T / d + 0.1 * np.eye(d)


def random_model(d: int, seed: int, *, growth: float = 0.7, noise: float = 0.5) -> StateSpace:
    rng = np.random.default_rng(seed)
    F = growth * np.eye(d) + 0.2 * rng.normal(size=(d, d)) / np.sqrt(d)
    step = Transition(F, rng.normal(size=d), covariance(d, rng))
    R = np.diag(noise * rng.uniform(0.5, 1.5, size=d))
    return StateSpace(step, R, Gaussian(rng.normal(size=d), covariance(d, rng)))


def draw(model: StateSpace, n: int, T: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    step, x, d = model.transition, model.initial.sample(n, rng), len(model.noise)
    path = [x]
    for _ in range(T - 1):
        noise = rng.multivariate_normal(np.zeros(d), step.covariance, size=n)
        path.append(path[-1] @ step.matrix.T + step.shift + noise)
    return np.stack(path, axis=1) + rng.normal(size=(n, T, d)) * np.sqrt(np.diag(model.noise))


def with_holes(Y: Array, seed: int = 0, share: float = 0.3) -> Array:
    """Entries missing at random, whole rows missing, trajectories that end early, one without a value."""
    rng = np.random.default_rng(seed)
    n, T, _ = Y.shape
    Y = np.where(rng.random(Y.shape) < share, np.nan, Y)
    Y[rng.random((n, T)) < 0.1] = np.nan
    for j in range(0, n, 3):
        Y[j, rng.integers(1, T) :] = np.nan
    Y[1] = np.nan
    return Y


@pytest.fixture(params=["alone", "recursion"])
def path(request, monkeypatch):
    """Either path for any number of patterns."""
    monkeypatch.setattr(by_trajectory, "MIN_PATTERNS", 1 if request.param == "alone" else 10**9)
    return request.param


def stack_of(Y: Array) -> Stack:
    return Observations.regular(Y, 1.0).stacks[0]


def use(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(by_trajectory, "MIN_PATTERNS", 1 if path == "alone" else 10**9)
    monkeypatch.setattr(by_trajectory, "MAX_UNCOMPILED", 0)


@pytest.mark.parametrize("noise", [0.5, 1e-8, 0.0])
def test_it_is_the_dense_gaussian(path, noise):
    n, T, d = 9, 6, 3
    model = random_model(d, 0, noise=noise)
    Y = with_holes(draw(model, n, T, 1))
    found = kalman(Y, model)
    M = np.block(
        [
            [
                np.linalg.matrix_power(model.transition.matrix, i - j)
                if i >= j
                else np.zeros((d, d))
                for j in range(T)
            ]
            for i in range(T)
        ]
    )
    source = np.kron(np.diag(np.arange(T) > 0), model.transition.covariance)
    source[:d, :d] = model.initial.covariance
    mean = M @ np.concatenate([model.initial.mean, *[model.transition.shift] * (T - 1)])
    states = M @ source @ M.T
    observations = states + np.kron(np.eye(T), model.noise)
    for j, y in enumerate(Y.reshape(n, -1)):
        o, expected, rest = ~np.isnan(y), mean, states
        if o.any():
            S = observations[np.ix_(o, o)]
            known = multivariate_normal(mean[o], S).logpdf(y[o])
            np.testing.assert_allclose(found.log_likelihood[j], known, rtol=0, atol=1e-8)
            K = np.linalg.solve(S, states[o]).T
            expected, rest = mean + K @ (y[o] - mean[o]), states - K @ states[o]
        np.testing.assert_allclose(found.means[j].ravel(), expected, rtol=0, atol=1e-9)
        blocks, g = rest.reshape(T, d, T, d), found.pattern[j]
        for t in range(T):
            np.testing.assert_allclose(found.covariances[g, t], blocks[t, :, t], atol=1e-10)
            if t + 1 < T:
                lag = found.lag_covariances[g, t]
                np.testing.assert_allclose(lag, blocks[t + 1, :, t], atol=1e-10)


CASES = {
    "one variable": {"d": 1},
    "two": {"d": 2, "noise": 1e-10},
    "five, growing": {"d": 5, "growth": 1.4},
    "nine, exact": {"d": 9, "noise": 0.0},
    "seventeen": {"d": 17, "growth": 1.1, "noise": 1e-3},
    "fifty": {"d": 50, "n": 11, "T": 9},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_it_is_the_recursion(case, monkeypatch):
    """Smoothed states, and the sums of the E-step, to 1e-9 of their size."""
    case = {"n": 30, "T": 25, **case}
    n, T, d = case.pop("n"), case.pop("T"), case.pop("d")
    model = random_model(d, 3, **case)
    Y = with_holes(draw(model, n, T, 4))
    seen = Observations.regular(Y, 0.1)
    step, dt = model.transition, 0.1
    theta = np.c_[(step.matrix - np.eye(d)) / dt, step.shift / dt]
    now = Parameters(theta, step.covariance / dt, model.noise, model.initial)
    found = {}
    for name in ("alone", "recursion"):
        use(monkeypatch, name)
        assert all(
            (per_trajectory(stack, model.steps) is not None) == (name == "alone")
            for stack in seen.stacks
        )
        found[name] = (kalman(Y, model), expect(seen, now))
    for first, second in zip(found["alone"], found["recursion"], strict=True):
        for key, value in vars(second).items():
            if key == "parts":  # of one pass there are none
                assert value == vars(first)[key] == ()
                continue
            if key == "first":
                value, other = (
                    np.c_[law.mean, law.covariance] for law in (value, vars(first)[key])
                )
            else:
                other = vars(first)[key]
            close = (
                1e-9 * np.abs(value).max() + 1e-18
            )  # noise of exact observations is 0 but for rounding
            np.testing.assert_allclose(other, value, rtol=0, atol=close, err_msg=key)
            if key == "grams":  # the noise of the steps is a small part of it
                old, new = value[:, d + 1 :, d + 1 :], other[:, d + 1 :, d + 1 :]
                np.testing.assert_allclose(new, old, rtol=0, atol=1e-9 * np.abs(old).max())


def test_the_number_of_threads_does_not_matter():
    model = random_model(3, 0)
    Y = with_holes(draw(model, 200, 30, 1))
    one, two = (kalman(Y, model, n_jobs=jobs) for jobs in (1, 2))
    for name, value in vars(one).items():
        np.testing.assert_array_equal(getattr(two, name), value)
    fits = [em(Y, 0.1, n_jobs=jobs, max_iter=5) for jobs in (1, 2)]
    np.testing.assert_array_equal(fits[0].drift, fits[1].drift)
    one, two = (fit.standard_errors(random_state=0) for fit in fits)
    np.testing.assert_array_equal(one.drift, two.drift)


def test_what_rounding_would_spoil_goes_through_the_recursion():
    """A vague start, not seen, before precise values: its variance falls by 1e-13, beyond a difference's digits."""
    step = Transition(0.9 * np.eye(2), np.zeros(2), 1e-6 * np.eye(2))
    model = StateSpace(step, 1e-6 * np.eye(2), Gaussian(np.zeros(2), 1e7 * np.eye(2)))
    Y = with_holes(np.random.default_rng(0).normal(size=(40, 30, 2)))
    assert per_trajectory(stack_of(Y), model.steps) is None
    found = kalman(Y, model)
    first, seen = found.covariances[found.pattern, 0], ~np.isnan(Y[:, :2])
    unseen = ~seen[:, 0, 0] & seen[:, 1, 0]
    assert unseen.sum() > 3
    # from the next value alone, and from it with all later ones
    assert np.all(first[unseen, 0, 0] < 2e-6 / 0.81 * (1 + 1e-6))
    assert np.all(first[unseen, 0, 0] > 1e-6 / 0.81)


def test_correlated_noise_and_shared_patterns_take_the_recursion():
    model = random_model(4, 0)
    Y = draw(model, 120, 6, 1)
    assert per_trajectory(stack_of(Y), model.steps) is None
    holes = with_holes(Y)
    assert per_trajectory(stack_of(holes), model.steps) is not None
    assert per_trajectory(stack_of(holes[:40]), model.steps) is None  # nothing is compiled for few
    full = StateSpace(model.transition, model.noise + 0.1, model.initial)
    assert per_trajectory(stack_of(holes), full.steps) is None


def test_an_e_step_keeps_no_covariances():
    """Memory far below patterns × T × d²: 77 MB here."""
    d, n, T = 10, 400, 240
    model = random_model(d, 0)
    Y = np.where(np.random.default_rng(0).random((n, T, d)) < 0.2, np.nan, 1.0)
    stack = stack_of(Y)
    per_trajectory(stack, model.steps, n_jobs=1)
    tracemalloc.start()
    per_trajectory(stack, model.steps, n_jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12e6


def test_some_patterns_stand_for_all_in_the_standard_errors(monkeypatch):
    """Scores on two patterns of three against seven on each. Squares of scores are wild: a factor of 1.1 apart."""
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(3000, 8, 0.1, x0=1.0, scheme="exact", random_state=1)
    Y = np.where(np.random.default_rng(3).random(X.shape) < 0.3, np.nan, X)
    Y = rt.simulate.add_noise(Y, 0.2, random_state=2)
    found = []
    for scores in (2000, 20000):
        monkeypatch.setattr(statespace_errors, "MIN_SIMULATED", scores)
        fit = em(Y, 0.1, scheme="exact", max_iter=3)
        found.append(fit.standard_errors(random_state=0))
    few, many = found
    np.testing.assert_allclose(few.drift, many.drift, rtol=0.15)
    np.testing.assert_allclose(few.diffusion, many.diffusion, rtol=0.15)
