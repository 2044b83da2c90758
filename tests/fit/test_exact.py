from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime

from retrace_sde.fit import exact as discretisation
from retrace_sde.fit.exact import exact
from retrace_sde.fit.moments import Moments, moments
from retrace_sde.fit.regression import Estimate, mle
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Drift, Linear
from retrace_sde.process.sde import Gaussian, LinearSDE, log_gaussian, van_loan

Array = NDArray[np.float64]


def rotation(speed: float, damping: float) -> Array:
    return np.array([[-damping, -speed], [speed, -damping]])


def random_sde(d: int, seed: int, *, damping: float = 1.2, affine: bool = False) -> LinearSDE:
    """Real parts of the eigenvalues of A around −damping, within ±.5 or so; H well conditioned."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, d)) * 0.5 / np.sqrt(d) - damping * np.eye(d)
    G = np.eye(d) + rng.normal(size=(d, d)) * 0.3 / np.sqrt(d)
    return LinearSDE(A, G @ G.T, offset=rng.normal(size=d) if affine else None)


def population(
    F: Array, Q: Array, dt: float, *, shift: Array | None = None, N: float = 1e4
) -> Moments:
    """The moments that N transitions `x' = F x + s + N(0, Q)` have on average; x of covariance > I."""
    d = len(F)
    rng = np.random.default_rng(0)
    spread = np.eye(d) + np.triu(rng.normal(size=(d, d)))
    theta = (F - np.eye(d)) / dt
    if shift is not None:
        spread = np.vstack([np.c_[spread, rng.normal(size=d)], np.eye(d + 1)[d:]])
        theta = np.c_[theta, shift / dt]
    R = np.linalg.qr(spread.T, mode="r") * np.sqrt(N * dt)
    corner = np.linalg.cholesky(Q).T * np.sqrt(N / dt)
    return Moments(np.block([[R, R @ theta.T], [np.zeros((d, len(R))), corner]]), N, theta.shape[1])


def population_of(sde: LinearSDE, dt: float, *, affine: bool = False, N: float = 1e4) -> Moments:
    step = sde.transition(dt)
    shift = step.shift if affine else None
    return population(step.matrix, step.covariance, dt, shift=shift, N=N)


def of_data(X: Array, dt: float, drift: Drift) -> Moments:
    return moments(Data(X), np.arange(X.shape[1]), dt, drift)


H2 = np.array([[1.0, 0.3], [0.3, 0.5]])
KNOWN = {
    "stable": LinearSDE([[-1.0, 0.5], [0.2, -0.4]], H2),
    "stiff": LinearSDE([[-30.0, 5.0], [1.0, -0.5]], H2),
    "rotating": LinearSDE(rotation(4.0, 0.3), H2),
    "rotating without damping": LinearSDE(rotation(2.0, 0.0), H2),
    "unstable": LinearSDE([[1.5, 0.4], [-0.3, 0.8]], H2),
    "saddle": LinearSDE([[1.0, 0.4], [0.0, -1.0]], H2),
    "random walk": LinearSDE(np.zeros((2, 2)), H2),
    "integrated random walk": LinearSDE([[0.0, 1.0], [0.0, 0.0]], H2),
    "many": random_sde(20, 3),
}


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_moments_of_a_known_sde_give_it_back(name: str, affine: bool) -> None:
    sde = KNOWN[name]
    c = np.linspace(-1, 2, sde.dimension) if affine else np.zeros(sde.dimension)
    sde = LinearSDE(sde.drift, sde.diffusion, offset=c)
    found = exact(population_of(sde, 0.4, affine=affine), 0.4, affine=affine)
    expected = np.c_[sde.drift, c] if affine else sde.drift
    np.testing.assert_allclose(found.coefficients, expected, atol=1e-8)
    np.testing.assert_allclose(found.diffusion, sde.diffusion, atol=1e-8)
    np.testing.assert_array_equal(found.diffusion, found.diffusion.T)
    assert found.notes == ()


def test_growing_and_badly_scaled_data_do_not_spoil_it() -> None:
    sde = LinearSDE([[0.9, 0.4, 0], [-0.3, 0.7, 0.2], [0.1, 0, 0.8]], np.eye(3) + 0.2)
    X = sde.simulate(400, 60, 0.3, x0=1.0, scheme="exact", random_state=1)  # grows to 10⁶
    scale = np.array([1.0, 1e5, 1e-4])
    plain = exact(of_data(X, 0.3, Linear()), 0.3)
    scaled = exact(of_data(X * scale, 0.3, Linear()), 0.3)
    unit = np.outer(scale, 1 / scale)
    np.testing.assert_allclose(scaled.coefficients / unit, plain.coefficients, atol=1e-8)
    np.testing.assert_allclose(
        scaled.diffusion / np.outer(scale, scale), plain.diffusion, atol=1e-7
    )
    np.testing.assert_allclose(scaled.errors.drift / unit, plain.errors.drift, rtol=1e-5)
    assert np.abs((plain.diffusion - sde.diffusion) / plain.errors.diffusion).max() < 4.5
    assert np.abs((plain.coefficients - sde.drift) / plain.errors.drift).max() < 4.5


@pytest.mark.parametrize("d", [5, 10])
def test_free_of_the_bias_of_the_step(d: int) -> None:
    sde = random_sde(d, 1, damping=2.0)
    m = of_data(sde.simulate(200, 50, 0.3, scheme="exact", random_state=2), 0.3, Linear())
    found, euler = exact(m, 0.3), mle(m)
    error, biased = (np.abs(e.diffusion - sde.diffusion) for e in (found, euler))
    assert error.mean() * 5 < biased.mean()
    # |z| of a normal has mean .8 and deviation .6; entries share their errors, so d of them count
    assert (error / found.errors.diffusion).mean() < 0.8 + 4 * 0.6 / np.sqrt(d)
    drift = np.abs(found.coefficients - sde.drift) / found.errors.drift
    assert drift.mean() < 0.8 + 4 * 0.6 / np.sqrt(d)
    assert found.notes == ()


def log_likelihood(estimate: tuple[Array, Array], X: Array, dt: float) -> float:
    """Of the transitions alone: the same law of the first observation for everyone."""
    first = Gaussian(np.zeros(X.shape[2]), np.eye(X.shape[2]))
    return float(LinearSDE(*estimate).log_likelihood(X, dt, initial=first).sum())


def clipped(m: Moments, dt: float, floor: float) -> tuple[Array, Array]:
    """What one might do by hand: small positive for negative eigenvalues, H made positive definite."""
    F = np.eye(m.n_features) + mle(m).coefficients * dt
    Q = mle(m).diffusion * dt
    f, V = np.linalg.eig(F)
    f = np.where((f.imag == 0) & (f.real < floor), floor, f)
    A = np.real((V * np.log(f)) @ np.linalg.inv(V)) / dt
    F = np.real((V * f) @ np.linalg.inv(V))
    d = len(A)
    equation = np.kron(F, F) - np.eye(d * d)
    H = np.linalg.solve(equation, (A @ Q + Q @ A.T).ravel()).reshape(d, d)
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return A, (vectors * np.maximum(values, 0.01 * values[-1])) @ vectors.T


NO_LOGARITHM = [(3, 21), (4, 0), (5, 1)]
"""Dimension and seed of samples whose transition has a negative eigenvalue (n = 50, T = 20, dt = 2)."""


@pytest.mark.parametrize(("d", "seed"), NO_LOGARITHM)
@pytest.mark.parametrize("ridge", [0.0, discretisation.DRIFT_RIDGE])
def test_without_a_real_logarithm_the_likelihood_is_maximised_among_sdes(
    d: int, seed: int, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discretisation, "DRIFT_RIDGE", ridge)
    X = random_sde(d, seed).simulate(50, 20, 2.0, scheme="exact", random_state=seed)
    m = of_data(X, 2.0, Linear())
    found, euler = exact(m, 2.0), mle(m)
    assert "no real logarithm" in found.notes[0]
    assert np.linalg.eigvalsh(found.diffusion)[0] > 0
    for array in (found.coefficients, found.errors.drift, found.errors.diffusion):
        assert array.dtype == np.float64
        assert np.isfinite(array).all()
    best = log_likelihood((found.coefficients, found.diffusion), X, 2.0)
    by_hand = [clipped(m, 2.0, floor) for floor in (0.001, 0.01, 0.05, 0.1)]
    # without the ridge nothing is better; the ridge may give up half a nat, what one standard error costs
    allowance = 0.5 if ridge else 0.0
    for other in [*by_hand, (euler.coefficients, euler.diffusion)]:
        assert best + allowance > log_likelihood(other, X, 2.0)


def test_the_ridge_keeps_the_unseen_rates_near_the_truth() -> None:
    ratios = []
    for d, seed in NO_LOGARITHM:
        sde = random_sde(d, seed)
        X = sde.simulate(50, 20, 2.0, scheme="exact", random_state=seed)
        found = exact(of_data(X, 2.0, Linear()), 2.0)
        ratios.append(np.abs(found.coefficients - sde.drift).max() / np.abs(sde.drift).max())
    assert max(ratios) < 1  # .7 at most; 1.7 and more without the ridge


def test_constrained_fit_with_a_constant_follows_a_shift_of_the_data() -> None:
    X = random_sde(4, 0).simulate(50, 20, 2.0, scheme="exact", random_state=0)
    plain, shifted = (
        exact(of_data(x, 2.0, Affine()), 2.0, affine=True) for x in (X, X + np.arange(4.0))
    )
    assert "no real logarithm" in plain.notes[0]
    A = plain.coefficients[:, :4]
    c = plain.coefficients[:, 4] - A @ np.arange(4.0)
    np.testing.assert_allclose(shifted.coefficients, np.c_[A, c], atol=1e-5)
    np.testing.assert_allclose(shifted.diffusion, plain.diffusion, atol=1e-5)
    # the profiled constant makes the mean of the residuals zero
    step = LinearSDE(A, plain.diffusion, offset=plain.coefficients[:, 4]).transition(2.0)
    residual = X[:, 1:] - X[:, :-1] @ step.matrix.T - step.shift
    np.testing.assert_allclose(residual.mean(axis=(0, 1)), 0, atol=1e-9)


def test_a_diffusion_that_is_not_positive_definite_is_said_and_mended() -> None:
    F = LinearSDE([[-1.0, 6.0], [0.0, -1.5]], np.eye(2)).transition(1.0).matrix
    m = population(F, np.eye(2), 1.0)  # no SDE with so strong a shear has this covariance
    found = exact(m, 1.0)
    assert [n for n in found.notes if "not positive definite" in n] == list(found.notes)
    assert np.linalg.eigvalsh(found.diffusion)[0] > 0
    assert np.isfinite(found.coefficients).all()


@pytest.mark.parametrize(
    ("turn", "fires"), [(0.97, True), (0.93, True), (0.85, False), (0.2, False)]
)
def test_aliasing_is_noted_near_half_a_turn_per_step(turn: float, fires: bool) -> None:
    sde = LinearSDE(rotation(turn * np.pi / 0.5, 0.2), H2)
    X = sde.simulate(100, 50, 0.5, scheme="exact", random_state=5)
    found = exact(of_data(X, 0.5, Linear()), 0.5)
    # the angle has a standard error of .2 % of π here, so that .85 and .93 are far from .9
    assert any("aliasing" in note for note in found.notes) is fires
    assert (found.coefficients[1, 0] > 0) is np.True_


def test_gradient_and_value_of_the_likelihood() -> None:
    d, dt = 3, 2.0
    X = random_sde(d, 4).simulate(50, 20, dt, scheme="exact", random_state=4)
    m = of_data(X, dt, Linear())
    fit = discretisation._standardise(m, dt, affine=False)
    free = mle(m)
    residual = X[:, 1:] - X[:, :-1] @ (np.eye(d) + free.coefficients * dt).T
    top = log_gaussian(residual, np.linalg.cholesky(free.diffusion * dt)).sum()
    rng = np.random.default_rng(0)
    for _ in range(3):
        B = rng.normal(size=(d, d)) - np.eye(d)
        C = np.tril(rng.normal(size=(d, d)) * 0.3)
        parameters = np.r_[B.ravel(), C[np.tril_indices(d)]]
        value, gradient = fit.likelihood(parameters)
        numeric = approx_fprime(parameters, lambda p: fit.likelihood(p)[0], 1e-7)
        np.testing.assert_allclose(gradient, numeric, atol=1e-5 * np.abs(numeric).max())
        np.fill_diagonal(C, np.exp(np.diag(C)))
        A = fit.L @ B @ np.linalg.inv(fit.L) / dt
        H = fit.L @ C @ C.T @ fit.L.T / dt
        first = Gaussian(np.zeros(d), np.eye(d))
        total = log_likelihood((A, H), X, dt) - first.log_density(X[:, 0]).sum()
        assert top - total == pytest.approx(value - fit.count * d / 2, rel=1e-8)


@pytest.mark.parametrize("size", [2, 5, 12])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_diffusion_solves_the_integral(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    B = rng.normal(size=(size, size)) * scale / np.sqrt(size)
    K = discretisation._diffusion(B, np.eye(size))
    np.testing.assert_allclose(van_loan(B, K, 1.0)[1], np.eye(size), atol=1e-10)


DEFECTIVE = ["random walk", "integrated random walk"]
"""Without an eigenbasis; the random walk with a constant only."""


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("name", ["stable", "rotating", "unstable", "saddle", *DEFECTIVE])
def test_errors_equal_the_delta_method_by_finite_differences(name: str, affine: bool) -> None:
    d, dt, N = 2, 0.4, 1e4
    sde = LinearSDE(KNOWN[name].drift, H2, offset=[1.0, -2.0] if affine else None)
    step = sde.transition(dt)
    upper = np.triu_indices(d)
    size = d * (d + affine)

    def estimate(z: Array) -> Array:
        theta, Q = z[:size].reshape(d, -1), np.zeros((d, d))
        Q[upper] = z[size:]
        Q = Q + np.triu(Q, 1).T
        m = population(theta[:, :d], Q, dt, shift=theta[:, d] if affine else None, N=N)
        found = exact(m, dt, affine=affine)
        return np.r_[found.coefficients.ravel(), found.diffusion.ravel()]

    F = np.c_[step.matrix, step.shift] if affine else step.matrix
    Q = step.covariance
    z = np.r_[F.ravel(), Q[upper]]
    jacobian = np.array([(estimate(z + e) - estimate(z - e)) / 2e-6 for e in np.eye(len(z)) * 1e-6])
    m = population_of(sde, dt, affine=affine, N=N)
    R = m.blocks[0] / np.sqrt(dt)
    wishart = np.einsum("ik,jl->ijkl", Q, Q) + np.einsum("il,jk->ijkl", Q, Q)
    covariance = block_diag(
        np.kron(Q, np.linalg.inv(R.T @ R)), wishart[upper][:, upper[0], upper[1]] / N
    )
    expected = np.sqrt(np.einsum("ij,ik,kj->j", jacobian, covariance, jacobian))
    errors = exact(m, dt, affine=affine).errors
    found = np.r_[errors.drift.ravel(), errors.diffusion.ravel()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_errors_match_the_spread_over_replicates() -> None:
    sde, dt, replicates = random_sde(2, 6, affine=True), 0.5, 300
    X = sde.simulate(40 * replicates, 30, dt, scheme="exact", random_state=7)
    fits: list[Estimate] = [
        exact(of_data(x, dt, Affine()), dt, affine=True) for x in np.split(X, replicates)
    ]
    for values, errors, truth in (
        (
            [f.coefficients for f in fits],
            [f.errors.drift for f in fits],
            np.c_[sde.drift, sde.offset],
        ),
        ([f.diffusion for f in fits], [f.errors.diffusion for f in fits], sde.diffusion),
    ):
        spread = np.sqrt(np.mean((np.array(values) - truth) ** 2, axis=0))
        # a deviation from 300 draws is known to 1/√600 = 4 %
        np.testing.assert_allclose(spread / np.mean(errors, axis=0), 1, atol=4 / np.sqrt(600))


def test_types_shapes_and_refusals() -> None:
    m = population_of(random_sde(3, 0, affine=True), 0.3, affine=True)
    found = exact(m, 0.3, affine=True)
    for array, shape in (
        (found.coefficients, (3, 4)),
        (found.diffusion, (3, 3)),
        (found.errors.drift, (3, 4)),
        (found.errors.diffusion, (3, 3)),
    ):
        assert array.dtype == np.float64
        assert array.shape == shape
        assert np.isfinite(array).all()
    with pytest.raises(ValueError, match="affine=True"):
        exact(m, 0.3)
    few = random_sde(3, 0).simulate(1, 5, 0.3, scheme="exact", random_state=0)
    with pytest.raises(ValueError, match="do not determine"):
        exact(of_data(few, 0.3, Linear()), 0.3)


def test_fifty_variables_fit_with_errors() -> None:
    sde = random_sde(50, 0)
    m = of_data(sde.simulate(200, 50, 0.3, scheme="exact", random_state=0), 0.3, Linear())
    found = exact(m, 0.3)
    z = (found.coefficients - sde.drift) / found.errors.drift
    # 2500 nearly independent squares of standard normals: their mean is 1 ± √(2/2500)
    assert np.mean(z**2) == pytest.approx(1, abs=0.15)
