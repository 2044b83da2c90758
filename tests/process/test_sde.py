from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.integrate import quad_vec
from scipy.linalg import expm
from scipy.stats import multivariate_normal

from retrace_sde.process.sde import Gaussian, LinearSDE, Transition

Floats = NDArray[np.float64]


def stable_sde(d: int, seed: int = 0, *, initial: Gaussian | None = None) -> LinearSDE:
    """Irreversible, with an offset and a full H."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, d)) - 2.5 * np.sqrt(d) * np.eye(d) / 2
    G = rng.normal(size=(d, d))
    sde = LinearSDE(A, G @ G.T + 0.1 * np.eye(d), offset=rng.normal(size=d), initial=initial)
    assert sde.is_stable
    return sde


def compose(step: Transition, times: int) -> tuple[Floats, Floats, Floats]:
    """The law of `times` steps in a row."""
    F, shift, Q = np.eye(len(step.shift)), np.zeros_like(step.shift), np.zeros_like(step.matrix)
    for _ in range(times):
        F, shift = step.matrix @ F, step.matrix @ shift + step.shift
        Q = step.matrix @ Q @ step.matrix.T + step.covariance
    return F, shift, Q


def two_point_covariance(sde: LinearSDE, dt: float) -> Floats:
    """Covariance of (x_0, x_dt) under the stationary law."""
    S, F = sde.stationary().covariance, expm(sde.drift * dt)
    return np.block([[S, S @ F.T], [F @ S, S]])


# Transition


def test_exact_transition_is_the_integral_that_defines_it() -> None:
    sde, dt = stable_sde(4), 0.7

    def at(s: float) -> Floats:
        E = expm(sde.drift * s)
        return np.concatenate([E @ sde.diffusion @ E.T, (E @ sde.offset)[None]])

    integral, _ = quad_vec(at, 0, dt, epsabs=1e-12, epsrel=1e-12)
    step = sde.transition(dt)
    assert_allclose(step.matrix, expm(sde.drift * dt), atol=1e-12)
    assert_allclose(step.covariance, integral[:4], atol=1e-10)
    assert_allclose(step.shift, integral[4], atol=1e-10)


def test_euler_steps_converge_to_the_exact_transition_at_order_one() -> None:
    sde, dt = stable_sde(3), 0.5
    exact = sde.transition(dt)
    expected = (exact.matrix, exact.shift, exact.covariance)
    errors = []
    for steps in (256, 512):
        found = compose(sde.transition(dt / steps, scheme="euler"), steps)
        errors.append([np.linalg.norm(a - b) for a, b in zip(found, expected, strict=True)])
    assert max(errors[1]) < 0.02
    assert_allclose(np.array(errors[0]) / errors[1], 2, rtol=0.03)


def test_two_exact_steps_are_one_of_twice_the_length() -> None:
    sde = stable_sde(5, seed=3)
    twice = sde.transition(0.6)
    expected = (twice.matrix, twice.shift, twice.covariance)
    for found, known in zip(compose(sde.transition(0.3), 2), expected, strict=True):
        assert_allclose(found, known, atol=1e-11)


@pytest.mark.parametrize("fast", [5.0, 45.0, 400.0])
def test_exact_transition_of_fast_and_slow_modes_together(fast: float) -> None:
    V = np.array([[1.0, 1.0], [0.0, 1.0]])
    sde = LinearSDE(V @ np.diag([-0.1, -fast]) @ np.linalg.inv(V), np.eye(2))
    S, F = sde.stationary().covariance, expm(sde.drift)
    assert_allclose(sde.transition(1.0).covariance, S - F @ S @ F.T, rtol=1e-8, atol=1e-10)


# Stationary law, current and reversal


@pytest.mark.parametrize("dt", [0.01, 1.0])
def test_the_stationary_law_is_kept_by_the_transition(dt: float) -> None:
    sde = stable_sde(4)
    law, step = sde.stationary(), sde.transition(dt)
    assert_allclose(step.matrix @ law.mean + step.shift, law.mean, atol=1e-11)
    moved = step.matrix @ law.covariance @ step.matrix.T + step.covariance
    assert_allclose(moved, law.covariance, atol=1e-11)


def test_reversal_swaps_the_two_points_of_the_stationary_process() -> None:
    sde, dt = stable_sde(3), 0.4
    twin, law = sde.reverse(), sde.stationary()
    assert np.abs(twin.drift - sde.drift).max() > 0.1  # irreversible: the twin is another process
    lag = [expm(s.drift * dt) @ s.stationary().covariance for s in (sde, twin)]
    assert_allclose(lag[1], lag[0].T, atol=1e-11)

    def density(process: LinearSDE, x: Floats, y: Floats) -> float:
        step = process.transition(dt)
        start = multivariate_normal(process.stationary().mean, process.stationary().covariance)
        after = multivariate_normal(step.matrix @ x + step.shift, step.covariance)
        return float(start.logpdf(x) + after.logpdf(y))

    for x, y in np.random.default_rng(1).multivariate_normal(law.mean, law.covariance, (5, 2)):
        assert density(twin, y, x) == pytest.approx(density(sde, x, y), abs=1e-9)


def test_reversing_twice_gives_the_process_back() -> None:
    sde = stable_sde(5, seed=2)
    again = sde.reverse().reverse()
    assert_allclose(again.drift, sde.drift, atol=1e-9)
    assert_allclose(again.offset, sde.offset, atol=1e-9)
    assert_allclose(again.diffusion, sde.diffusion, rtol=0, atol=0)


def test_the_twin_explains_the_reversed_data_equally_well() -> None:
    sde = stable_sde(3)
    X = sde.simulate(4, 30, 0.2, scheme="exact", random_state=0)
    forward, backward = sde.log_likelihood(X, 0.2), sde.reverse().log_likelihood(X[:, ::-1], 0.2)
    assert_allclose(backward, forward, rtol=1e-10)
    assert np.all(np.abs(sde.log_likelihood(X[:, ::-1], 0.2) - forward) > 1e-3)


def test_entropy_production_is_the_rate_of_divergence_from_the_reversed_path() -> None:
    # The path is Markov and both ends share one law, so the divergence of a path is that of its
    # two-point laws, step by step; KL / dt is the rate up to O(dt), which Richardson removes.
    sde = stable_sde(3)

    def rate(dt: float) -> float:
        P, swap = two_point_covariance(sde, dt), [3, 4, 5, 0, 1, 2]
        R = P[np.ix_(swap, swap)]
        ratio = np.linalg.solve(R, P)
        return float(np.trace(ratio) - len(P) - np.linalg.slogdet(ratio)[1]) / 2 / dt

    expected = sde.entropy_production()
    assert expected > 0.1
    assert rate(1e-3) == pytest.approx(expected, rel=0.05)
    assert 2 * rate(1e-3) - rate(2e-3) == pytest.approx(expected, rel=1e-4)


def test_entropy_production_of_a_rotating_trap() -> None:
    a, turn = 0.7, 3.0  # textbook: 2 ω² / a, whatever the temperature
    for heat in (0.1, 5.0):
        sde = LinearSDE([[-a, turn], [-turn, -a]], 2 * heat * np.eye(2))
        assert_allclose(sde.current(), [[0, turn], [-turn, 0]], atol=1e-12)
        assert sde.entropy_production() == pytest.approx(2 * turn**2 / a)


def test_current_and_entropy_do_not_depend_on_the_coordinates() -> None:
    sde, B = stable_sde(4), np.random.default_rng(5).normal(size=(4, 4))
    inverse = np.linalg.inv(B)
    other = LinearSDE(B @ sde.drift @ inverse, B @ sde.diffusion @ B.T, offset=B @ sde.offset)
    assert_allclose(other.current(), B @ sde.current() @ inverse, atol=1e-9)
    assert other.entropy_production() == pytest.approx(sde.entropy_production(), rel=1e-9)
    assert_allclose(other.stationary().mean, B @ sde.stationary().mean, atol=1e-9)


@pytest.mark.parametrize("turn", [0.0, 1e-4, 1.0])
def test_reversible_exactly_when_the_drift_is_a_gradient(turn: float) -> None:
    # A = (−½ H + K) Σ⁻¹ with K antisymmetric has stationary covariance Σ, and current K Σ⁻¹.
    rng = np.random.default_rng(0)
    H, S = (M @ M.T + np.eye(4) for M in rng.normal(size=(2, 4, 4)))
    K = turn * (lambda M: M - M.T)(rng.normal(size=(4, 4)))
    sde = LinearSDE((-0.5 * H + K) @ np.linalg.inv(S), H)
    assert_allclose(sde.stationary().covariance, S, atol=1e-8)
    assert_allclose(sde.current(), K @ np.linalg.inv(S), atol=1e-10)
    assert sde.is_reversible() == (turn == 0)
    assert (sde.entropy_production() < 1e-18) == (turn == 0)
    assert np.allclose(sde.reverse().drift, sde.drift, rtol=0, atol=1e-10) == (turn == 0)


# Likelihood


@pytest.mark.parametrize("scheme", ["euler", "exact"])
def test_log_likelihood_is_the_dense_gaussian_of_the_whole_trajectory(scheme: Any) -> None:
    d, T, dt = 2, 5, 0.3
    start = Gaussian(np.array([3.0, -1.0]), np.array([[0.5, 0.2], [0.2, 0.4]]))
    sde = stable_sde(d, initial=start)
    step = sde.transition(dt, scheme=scheme)
    # x = mean + M e, with e the start's deviation and the T − 1 noises.
    M, mean = np.eye(T * d), [start.mean]
    noise = np.kron(np.eye(T), step.covariance)
    noise[:d, :d] = start.covariance
    for t in range(1, T):
        mean.append(step.matrix @ mean[-1] + step.shift)
        for s in range(t):
            power = np.linalg.matrix_power(step.matrix, t - s)
            M[t * d : (t + 1) * d, s * d : (s + 1) * d] = power
    dense = multivariate_normal(np.concatenate(mean), M @ noise @ M.T)
    X = sde.simulate(6, T, dt, scheme=scheme, random_state=0) + 0.1
    expected = dense.logpdf(X.reshape(6, -1))
    assert_allclose(sde.log_likelihood(X, dt, scheme=scheme), expected, rtol=1e-9)
    plain = LinearSDE(sde.drift, sde.diffusion, offset=sde.offset)
    assert_allclose(plain.log_likelihood(X, dt, initial=start, scheme=scheme), expected, rtol=1e-9)


def test_log_likelihood_starts_from_the_stationary_law_when_nothing_is_said() -> None:
    sde = stable_sde(2)
    law = sde.stationary()
    X = sde.simulate(3, 1, random_state=0)
    expected = multivariate_normal(law.mean, law.covariance).logpdf(X[:, 0])
    assert_allclose(sde.log_likelihood(X, 1.0), expected)


# Simulation


@pytest.mark.parametrize("scheme", ["euler", "exact"])
def test_simulated_moments_match_the_transition(scheme: Any) -> None:
    n, dt = 20_000, 0.2
    start = Gaussian(np.array([1.0, -2.0, 0.5]), np.diag([0.5, 1.0, 0.0]))
    sde = stable_sde(3)
    X = sde.simulate(n, 3, dt, x0=start, scheme=scheme, random_state=0)
    F, shift, Q = compose(sde.transition(dt, scheme=scheme), 2)
    mean, S = F @ start.mean + shift, F @ start.covariance @ F.T + Q
    # Standard errors of a mean and of a covariance of n Gaussian draws; 4.5 of them in 15 entries.
    scale = np.diag(S)
    assert np.all(np.abs(X[:, 2].mean(axis=0) - mean) < 4.5 * np.sqrt(scale / n))
    error = np.sqrt((np.outer(scale, scale) + S**2) / n)
    assert np.all(np.abs(np.cov(X[:, 2].T) - S) < 4.5 * error)
    lag = (X[:, 0] - start.mean).T @ (X[:, 2] - mean) / n
    error = np.sqrt((np.outer(np.diag(start.covariance), scale) + lag**2) / n)
    assert np.all(np.abs(lag - start.covariance @ F.T) <= 4.5 * error + 1e-12)


def test_every_form_of_start() -> None:
    start = Gaussian(np.array([5.0, 6.0]), np.zeros((2, 2)))
    sde = stable_sde(2, initial=start)

    def first(x0: Any, n: int = 3) -> Floats:
        return sde.simulate(n, 2, 0.1, x0=x0, random_state=0)[:, 0]

    assert_allclose(first([1, 2]), [[1, 2]] * 3)
    assert_allclose(first([[1, 2], [3, 4], [5, 6]]), [[1, 2], [3, 4], [5, 6]])
    assert_allclose(first(None), [start.mean] * 3)
    assert_allclose(first(0), np.zeros((3, 2)))
    # 20,000 numbers: the relative error of a standard deviation is 1/√40,000, and 4.5 of it 2.3 %.
    assert first(3.0, n=10_000).std() == pytest.approx(3, rel=0.023)
    law = sde.stationary()
    white = np.linalg.solve(
        np.linalg.cholesky(law.covariance), (first("stationary", 10_000) - law.mean).T
    )
    assert white.std() == pytest.approx(1, rel=0.023)
    assert np.all(np.abs(white.mean(axis=1)) < 4.5 / 100)
    for wrong in ([1, 2, 3], np.zeros((2, 3)), "origin"):
        with pytest.raises(ValueError, match="x0 must be"):
            first(wrong)


def test_a_seed_fixes_the_simulation() -> None:
    sde = stable_sde(2)
    one = sde.simulate(4, 6, random_state=7, x0=1.0)
    same = sde.simulate(4, 6, random_state=np.random.default_rng(7), x0=1.0)
    assert np.array_equal(one, same)
    assert one.shape == (4, 6, 2)
    assert not np.array_equal(one, sde.simulate(4, 6, random_state=8, x0=1.0))


# What is refused, and what is kept


def test_parameters_are_copied_and_read_only() -> None:
    A = -np.eye(2)
    sde = LinearSDE(A, np.eye(2))
    A[0, 0] = 5
    assert sde.drift[0, 0] == -1
    with pytest.raises(ValueError, match="read-only"):
        sde.drift[0, 0] = 5


def test_one_dimension_may_be_given_as_numbers() -> None:
    sde = LinearSDE(-2.0, 3.0, offset=4.0)
    assert sde.dimension == 1
    law = sde.stationary()
    assert (law.mean.item(), law.covariance.item()) == pytest.approx((2.0, 0.75))
    assert sde.is_reversible()


@pytest.mark.parametrize(
    ("A", "H", "offset"),
    [
        (np.ones((2, 3)), np.eye(2), None),
        (-np.eye(2), np.eye(3), None),
        (-np.eye(2), np.eye(2), np.ones(3)),
        (-np.ones((1, 2, 2)), np.ones((1, 2, 2)), None),
    ],
)
def test_shapes_that_do_not_fit_are_refused(A: Floats, H: Floats, offset: Floats | None) -> None:
    with pytest.raises(ValueError, match="square matrices of one size"):
        LinearSDE(A, H, offset=offset)


@pytest.mark.parametrize("unit", [1.0, 1e-12])
def test_a_diffusion_that_is_not_one_is_refused(unit: float) -> None:
    for H in ([[1.0, 0.5], [0.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]):
        with pytest.raises(ValueError, match="symmetric and positive definite"):
            LinearSDE(-np.eye(2), unit * np.array(H))
    assert LinearSDE(-np.eye(2), unit * np.eye(2)).diffusion[0, 0] == unit


@pytest.mark.parametrize("drift", [np.diag([-1.0, 0.1]), np.array([[0.0, 1.0], [-1.0, 0.0]])])
def test_no_stationary_law_without_a_stable_drift(drift: Floats) -> None:
    sde = LinearSDE(drift, np.eye(2))
    for use in (sde.stationary, sde.current, sde.entropy_production, sde.reverse):
        with pytest.raises(ValueError, match="not stable"):
            use()
    assert np.isfinite(sde.transition(1.0).covariance).all()


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme must be"):
        stable_sde(2).transition(0.1, scheme="milstein")  # type: ignore[arg-type]


@pytest.mark.parametrize(("A", "H"), [([[1e100]], [[1e100]]), ([[50.0]], [[1.0]])])
def test_a_process_that_leaves_all_numbers_says_so(A, H):
    with pytest.raises(ValueError, match="overflows after"):
        LinearSDE(A, H).simulate(2, 2000, 0.1, x0=1.0, scheme="euler", random_state=0)
