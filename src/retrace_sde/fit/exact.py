"""Exact discretisation: the SDE `dX = (A X + c) dt + G dW` behind the regression of one step on the last.

On a regular grid the SDE is exactly `X' = F X + s + N(0, Q)` with `F = e^{A dt}` and
`Q = ∫₀^dt e^{Au} H e^{Aᵀu} du`. Regression is maximum likelihood for (F, s, Q), so the SDE that has this
transition is maximum likelihood for (A, c, H = G Gᵀ), free of Euler's bias in the step. Not every transition
belongs to an SDE; where none does, the likelihood is maximised over those that do.

All work is done in the coordinates `y = L⁻¹ (x − m)`, `Q̂ = L Lᵀ`, m the mean of x (affine drift only), with
dt = 1: there Q̂ = I, F̂ and ŝ are independent, and the answer does not depend on units. B and K are A and H
in these coordinates.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, expm, expm_frechet, logm, qr, solve_sylvester, solve_triangular
from scipy.optimize import minimize

from retrace_sde.fit.information import by_log_cholesky, from_log_cholesky, log_cholesky
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate, StandardErrors, mle
from retrace_sde.io.arrays import Array

Complex = NDArray[np.complex128]

ALIASING_ANGLE = 0.9 * np.pi
"""Rotation per step (radians) from which an estimate is called aliased. Angles θ and 2π − θ give the same F;
near the fold at π the sampling error of θ leaves open on which side of it the truth is."""

EIGENBASIS_LIMIT = 1e6
"""Largest condition number of the eigenbasis for the delta method, whose error is its square times 1e-16."""

RIDGE = 0.1
"""Weight of ‖B‖²/2, in nats, in the constrained fit. Where F̂ has an eigenvalue ≤ 0 the likelihood has no
maximum: it still rises as a rate goes to infinity and H to a singular matrix. Among drifts that the data
cannot tell apart this takes a slow one: it gives up a third of a nat, and the mean error of A fell from .87 to
.21 (16 of 75 random fits, d = 3 to 5, n = 50, T = 20, dt = 2)."""


@dataclass(frozen=True)
class _Regression:
    """F̂, mean increment ŝ and R with `Σ y yᵀ = Rᵀ R` in the coordinates y; N; L and m that lead to them."""

    F: Array
    shift: Array
    R: Array
    count: float
    L: Array
    centre: Array


def logarithm(F: Array) -> Array:
    """The real principal logarithm of a matrix without eigenvalues on the closed negative axis: `V log(λ) V⁻¹`.

    Where the eigenvectors nearly coincide, by scipy, which warns of less than it knows.
    """
    values, V = np.linalg.eig(F)
    if np.linalg.cond(V) < EIGENBASIS_LIMIT:
        found: Array = np.real(V @ np.diag(np.log(values.astype(complex))) @ np.linalg.inv(V))
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.real(logm(F)), dtype=np.float64)


def exact(moments: Moments, dt: float, *, affine: bool = False) -> Estimate:
    """Maximum likelihood of the exact discretisation: `A = log(F̂)/dt`, H from `A Q̂ + Q̂ Aᵀ = F̂ H F̂ᵀ − H`.

    `moments` are those of a `Linear` drift, or of an `Affine` one with `affine=True`; coefficients are A or
    (A, c). Limits: the grid must be regular; a rotation by more than half a turn per step looks like a
    slower one, in the opposite direction, and cannot be told from it (only angles near the fold are noted); the
    constrained fit is a local maximum and its errors, like all here, assume that N is large.
    """
    fit, notes = _standardise(moments, dt, affine), []
    f = np.linalg.eigvals(fit.F)
    if np.any((f.imag == 0) & (f.real <= 0)):
        notes.append(
            "The estimated transition has a real eigenvalue that is not positive, so it has no real logarithm "
            "and belongs to no linear SDE: the step is too long, or the data are too few, to see the fastest "
            "relaxation. Constrained maximum likelihood is used; that relaxation is only known to be fast."
        )
        B, K = _constrained(fit)
    else:
        B = logarithm(fit.F)
        K = _diffusion(B, np.eye(len(B)))
        if not np.linalg.eigvalsh(K)[0] > 1e-10 * np.abs(K).max():
            notes.append(
                "The diffusion that solves the equations is not positive definite, so the estimated transition "
                "belongs to no linear SDE. Constrained maximum likelihood is used."
            )
            B, K = _constrained(fit)
    angle = float(np.abs(np.linalg.eigvals(B).imag).max())
    if angle > ALIASING_ANGLE:
        notes.append(
            f"The drift turns by {angle / np.pi:.2f} half-turns per step: rotation may be faster than the "
            "sampling can see (aliasing), and its speed and sense are then wrong."
        )
    d, L = len(B), fit.L
    # s = (∫₀¹ e^{Bu} du) c, and the integral is a block of one exponential
    integral = expm(np.block([[B, np.eye(d)], [np.zeros((d, 2 * d))]]))[:d, d:]
    c = np.linalg.solve(integral, fit.shift)
    try:
        errors = _errors(fit, B, c if affine else None, K, dt)
    except np.linalg.LinAlgError:
        notes.append(
            "The drift is too close to one without an eigenbasis for the delta method: standard errors are "
            "those of the Euler estimate."
        )
        errors = mle(moments).errors
    A = solve_triangular(L, (L @ B).T, lower=True, trans="T").T / dt
    coefficients = np.c_[A, L @ c / dt - A @ fit.centre] if affine else A
    H = L @ K @ L.T / dt
    return Estimate(coefficients, (H + H.T) / 2, errors, tuple(notes))


def _standardise(moments: Moments, dt: float, affine: bool) -> _Regression:
    """The regression in the coordinates y, from the triangular factor of the moments alone."""
    R, N, p = moments.factor, moments.count, moments.n_features
    d = R.shape[1] - p
    if p != d + affine:
        raise ValueError(
            f"exact needs the moments of a linear drift, or of an affine one with affine=True; got {p} "
            f"regressors for {d} variables and affine={affine}."
        )
    centre, increment = np.zeros(d), np.zeros(d)
    if affine:  # with the constant as first regressor its row holds the means, the rest is centred
        (R,) = qr(R[:, [d, *range(d), *range(p, p + d)]], mode="r")
        centre, increment, R = R[0, 1:p] / R[0, 0], R[0, p:] / R[0, 0] * dt, R[1:, 1:]
    if len(R) < 2 * d or np.any(np.abs(np.diag(R)) <= 1e-13 * np.linalg.norm(R, axis=0)):
        raise ValueError(
            f"{N:g} transitions do not determine the drift and the diffusion of {d} variables: there are too "
            "few of them, or a variable is constant or a combination of others."
        )
    L = R[d:, d:].T * np.sqrt(dt / N)
    A = solve_triangular(R[:d, :d], R[:d, d:]).T
    to_y = solve_triangular(L, np.eye(d), lower=True)
    F = np.eye(d) + to_y @ A @ L * dt
    return _Regression(F, to_y @ increment, R[:d, :d] @ to_y.T / np.sqrt(dt), N, L, centre)


def _diffusion(B: Array, Q: Array) -> Array:
    """K with `∫₀¹ e^{Bu} K e^{Bᵀu} du = Q`, by halving the step: `Q(2h) = Q(h) + F(h) Q(h) F(h)ᵀ`.

    `B Q + Q Bᵀ = F K Fᵀ − K` has no unique solution where two eigenvalues sum to zero (random walk, undamped
    rotation). Each halving has one for every principal logarithm: with `C = (1 + iF)⁻¹ (1 − iF)` it is the
    Sylvester equation `C Q(h) + Q(h) Cᵀ = 2 (1 + iF)⁻¹ Q(2h) (1 + iF)⁻ᵀ`. No eigenbasis is needed.
    """
    halvings = int(np.ceil(np.log2(max(float(np.linalg.norm(B)) / 0.05, 1))))
    for k in range(1, halvings + 1):
        iF = 1j * expm(B * 0.5**k)
        inverse = np.linalg.inv(np.eye(len(B)) + iF)
        C = inverse @ (np.eye(len(B)) - iF)
        Q = solve_sylvester(C, C.T, 2 * inverse @ Q @ inverse.T).real
    h = 0.5**halvings
    K, term = np.zeros_like(Q), (Q + Q.T) / (2 * h)
    # K = z/(e^z − 1) Q(h)/h for the operator z: Q → h (B Q + Q Bᵀ), of norm ≤ .1
    for bernoulli in (1, -1 / 2, 1 / 12, 0, -1 / 720, 0, 1 / 30240, 0, -1 / 1209600):
        K += bernoulli * term
        term = h * (B @ term + term @ B.T)
    return K


def _unpack(parameters: Array, d: int) -> tuple[Array, Array]:
    """B and the Cholesky factor C of `K = C Cᵀ`."""
    return parameters[: d * d].reshape(d, d), from_log_cholesky(parameters[d * d :], d)


def _shortfall(parameters: Array, fit: _Regression) -> tuple[float, Array]:
    """By how much the log-likelihood of (B, C) is below that of the free regression, and its gradient.

    It is `N/2 (log det Q + tr Q⁻¹M − d)`, where `M = I + D Dᵀ/N`, `D = (F̂ − F) Rᵀ` is the second moment of the
    residuals (a sum of squares, no difference of moments). F and Q come from one exponential (Van Loan), so
    that the gradient is one Fréchet derivative, at the transposed matrix.
    """
    d, N = len(fit.F), fit.count
    B, C = _unpack(parameters, d)
    blocks = np.block([[-B, C @ C.T], [np.zeros((d, d)), B.T]])
    if np.linalg.norm(blocks) > 300:  # a trial step of the line search that would overflow
        return 1e10, np.zeros_like(parameters)
    E = expm(blocks)
    F, E12 = E[d:, d:].T, E[:d, d:]
    values, vectors = np.linalg.eigh((F @ E12 + (F @ E12).T) / 2)
    if not values[0] > 0:  # likewise: lost to rounding
        return 1e10, np.zeros_like(parameters)
    inverse = (vectors / values) @ vectors.T
    D = (fit.F - F) @ fit.R.T
    M = np.eye(d) + D @ D.T / N
    value = N / 2 * (np.log(values).sum() + np.sum(inverse * M) - d)
    to_Q = N / 2 * (inverse - inverse @ M @ inverse)
    adjoint = np.zeros_like(E)
    adjoint[:d, d:] = F.T @ to_Q
    adjoint[d:, d:] = (to_Q @ E12.T - inverse @ D @ fit.R).T
    G = expm_frechet(blocks.T, adjoint, compute_expm=False)
    to_C = by_log_cholesky(G[:d, d:], C)
    return float(value), np.r_[(G[d:, d:].T - G[:d, :d]).ravel(), to_C]


def _constrained(fit: _Regression) -> tuple[Array, Array]:
    """The largest likelihood (less the `RIDGE`) among SDEs, by L-BFGS from F̂ with its eigenvalues clipped."""
    d = len(fit.F)
    f, V = np.linalg.eig(fit.F)
    f = np.where((f.imag == 0) & (f.real < 0.05), 0.05, f)
    B = np.real((V * np.log(f)) @ np.linalg.inv(V))
    values, vectors = np.linalg.eigh(_diffusion(B, np.eye(d)))
    K = (vectors * np.maximum(values, 0.05 * values[-1])) @ vectors.T

    def objective(parameters: Array) -> tuple[float, Array]:
        value, gradient = _shortfall(parameters, fit)
        gradient[: d * d] += RIDGE * parameters[: d * d]
        return value + RIDGE / 2 * float(np.sum(parameters[: d * d] ** 2)), gradient

    start = np.r_[B.ravel(), log_cholesky(K)]
    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 1e-6, "gtol": 1e-6}
    B, C = _unpack(minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x, d)
    return B, C @ C.T


def _errors(fit: _Regression, B: Array, c: Array | None, K: Array, dt: float) -> StandardErrors:
    """Delta method at (B, c, K): `δF = Z R⁻ᵀ`, `δQ = (Z' + Z'ᵀ)/√(2N)`, Z and Z' independent standard normal.

    In the eigenbasis the logarithm is differentiated by divided differences, `δB_ib = δF_ib / exp[λi, λb]`,
    and K through the integral: `g_ij δK_ij = δQ_ij − Σ_b (δB_ib K_bj D_ibj + δB_jb K_bi D_jbi)` with
    `g_ij = ∫₀¹ e^{(λi+λj)u} du`, `D_ibj = ∫₀¹ exp_u[λi, λb] e^{λj u} du`, both by Gauss–Legendre.
    """
    d, N, W = len(B), fit.count, np.linalg.inv(fit.R).T
    V, inverse, rates = _eigenbasis(B)
    u, weights = np.polynomial.legendre.leggauss(64)
    u, weights = (u + 1) / 2, weights / 2
    e = np.exp(np.multiply.outer(rates, u))
    g, D = (e * weights) @ e.T, (_divided(rates, u) * weights) @ e.T
    kernel = D / _divided(rates, np.ones(1)) * (inverse @ K @ inverse.T) / g[:, None, :]
    LV = fit.L @ V
    from_F = np.einsum("ibj,nb,lj->iln", kernel, W @ V, LV, optimize=True)
    from_Q = np.einsum("ij,jn,lj->iln", 1 / g, inverse, LV, optimize=True)
    of_H = _variances(LV, inverse, from_F) + _variances(LV, inverse, from_Q) / (2 * N)

    to_x = fit.L
    if c is not None:  # the constant is one more state, which never changes
        B = np.block([[B, c[:, None]], [np.zeros((1, d + 1))]])
        to_x = np.block([[to_x, fit.centre[:, None]], [np.eye(1, d + 1, d)]])
        V, inverse, rates = _eigenbasis(B)
        W = block_diag(W, N**-0.5)
    slope = 1 / _divided(rates, np.ones(1))[..., 0]
    from_F = np.einsum("ib,nb,bl->iln", slope, W @ V, inverse @ np.linalg.inv(to_x), optimize=True)
    of_A = _covariances((to_x @ V)[:d], inverse[:, :d], from_F) / dt**2
    return StandardErrors.of(of_A, np.sqrt(of_H) / dt)


def _eigenbasis(B: Array) -> tuple[Complex, Complex, Complex]:
    rates, V = np.linalg.eig(B.astype(complex))
    if not np.linalg.cond(V) < EIGENBASIS_LIMIT:
        raise np.linalg.LinAlgError("the matrix is close to one without an eigenbasis.")
    return V, np.linalg.inv(V), rates


def _divided(rates: Complex, u: Array) -> Complex:
    """Divided differences of `λ → e^{λu}`, `e^{(a+b)u/2} sinh((a−b)u/2) / ((a−b)/2)`, stable at a = b."""
    mean = np.add.outer(rates, rates)[..., None] / 2
    half = np.subtract.outer(rates, rates)[..., None] / 2
    same = np.abs(half) < 1e-8
    result: Complex = np.exp(mean * u) * np.where(
        same, u, np.sinh(half * u) / np.where(same, 1, half)
    )
    return result


def _row(V: Complex, P: Complex, U: Complex, k: int) -> Complex:
    """The derivatives (l, m, n) of `J_kl = Σ_imn V_ki P_im U_iln Z_mn` by Z, for one k."""
    row: Complex = np.tensordot(V[k][:, None] * P, U, (0, 0)).transpose(1, 0, 2)
    return row


def _variances(V: Complex, P: Complex, U: Complex) -> Array:
    """Variances of `J_kl + J_lk`, Z standard normal."""
    result = np.empty((len(V), U.shape[1]))
    for k in range(len(V)):  # by rows, so that no array has more than three indices
        row = _row(V, P, U, k) + np.tensordot(V, P[:, :, None] * U[:, k, None, :], (1, 0))
        result[k] = (row.real**2).sum(axis=(1, 2))
    return result


def _covariances(V: Complex, P: Complex, U: Complex) -> Array:
    """Covariances (k, l, l') of `J_kl` and `J_kl'`, Z standard normal."""
    rows = (_row(V, P, U, k).real.reshape(U.shape[1], -1) for k in range(len(V)))
    return np.stack([row @ row.T for row in rows])
