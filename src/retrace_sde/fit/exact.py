"""Exact discretisation: the SDE `dX = (A X + C v) dt + G dW` behind the regression of one step on the last.

On a regular grid, with inputs v (a constant among them) held from one observation to the next, the SDE is exactly
`X' = F X + S v + N(0, Q)` with

    F = e^{A dt},   S = ∫₀^dt e^{Au} du C,   Q = ∫₀^dt e^{Au} H e^{Aᵀu} du.

Every path of the package fits (F, S, Q), written as Euler's step, `F = 1 + Θ_x dt`, `S = Θ_v dt`, `Q = H dt`. It is maximum
likelihood, so the SDE that has this transition is maximum likelihood for (A, C, H), free of Euler's bias in the step.
`embedded` finds it, and says by how much it moves with the step (the delta method), whatever the errors of the step rest on.

Not every transition belongs to an SDE (the embedding problem). Where none does, Euler's values are shown; asked for by name
(`exact`), the likelihood is maximised over those transitions that do.

Work is done in the coordinates `y = L⁻¹ x`, `Q̂ = L Lᵀ`, with dt = 1: there Q̂ = I, and the answer does not depend on units. B
and K are A and H in these coordinates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, expm, logm, qr, solve_sylvester, solve_triangular

from retrace_sde.fit.information import lbfgs
from retrace_sde.fit.irregular_times import StepLikelihood
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import (
    Estimate,
    StandardErrors,
    Through,
    mle,
    regression_errors,
)
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import van_loan

Complex = NDArray[np.complex128]

ALIASING_ANGLE = 0.9 * np.pi
"""Rotation per step (radians) from which an estimate is called aliased. Angles θ and 2π − θ give the same F;
near the fold at π the sampling error of θ leaves open on which side of it the truth is."""

EIGENBASIS_LIMIT = 1e6
"""Largest condition number of the eigenbasis for the delta method, whose error is its square times 1e-16."""

SPLIT = 1e-8
"""Size, relative to the matrix, of the change that gives a matrix without an eigenbasis one: k equal eigenvalues part by
`SPLIT^(1/k)`, and derivatives, which are continuous, change by about as much as the matrix."""

NODES, FEW_NODES, SLOW_RATE = 64, 16, 1.0
"""Points of the quadrature over a step (Gauss–Legendre), and where no eigenvalue of B is larger: a polynomial of degree 31 differs there from
e^{3u}, the steepest integrand, by less than rounding."""

MOVED_ELEMENTS = 1 << 20
"""Elements (d² for each row) of the influences that are moved at a time."""

EXACTLY_MOVED_VARIABLES = 250
"""Variables up to which changes are moved exactly: it takes arrays of d³ complex numbers, and as many products for each trajectory as half a dozen
products of d × d. Beyond, to first order in A Δt: standard errors (d = 200) then differ by .01 % where ‖A Δt‖ is .03, by 1 % at .3 and by 8 % at .9."""

EIGENBASIS_FOR_DIFFUSION = 1e4
"""The same for H itself, by Frobenius norms and for each variable. Up to it (d = 1 to 200, steps from .01 to 2) both ways to H agree to 1e-12; beyond, H is
found by halving the step, which takes thirty to a hundred times as long."""

SMALLEST_INTEGRAL = 1e-3
"""Size of `∫₀¹ e^{(λi+λj)u} du` below which dividing by it loses digits: two rotations of nearly half a turn each."""

REMEMBERED_ELEMENTS = 1_100_000
"""Coefficients up to which the SDEs of the last two steps are remembered: a fit asks for each several times."""

TOLD_DIFFERENCE = 0.5
"""Standard errors between Euler's values and the SDE's from which the difference is reported."""

DRIFT_RIDGE = 0.1
"""Weight of ‖B‖²/2, in nats, in the constrained fit. Where F̂ has an eigenvalue ≤ 0 the likelihood has no
maximum: it still rises as a rate goes to infinity and H to a singular matrix. Among drifts that the data
cannot tell apart this takes a slow one: it gives up a third of a nat, and the mean error of A fell from .87 to
.21 (16 of 75 random fits, d = 3 to 5, n = 50, T = 20, dt = 2)."""

NO_LOGARITHM = (
    "The estimated transition has a real eigenvalue that is not positive, so it has no real logarithm and belongs to no linear SDE: "
    "the step is too long, or the data are too few, to see the fastest relaxation."
)
NOT_POSITIVE = "The diffusion that solves the equations is not positive definite, so the estimated transition belongs to no linear SDE."
EULER_SHOWN = "The parameters are those of Euler's step instead, biased by the length of the step."
CONSTRAINED = "Constrained maximum likelihood is used"


class NotEmbeddableError(ValueError):
    """A transition belongs to no linear SDE; the message says why."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """The SDE `coefficients` Θ = (A, C), `diffusion` H, whose exact step over dt is a fitted one, and how it moves with that.

    `root` L: of the step's covariance, `Q = L Lᵀ`.
    """

    coefficients: Array
    diffusion: Array
    dt: float
    root: Array

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sampling cannot tell."""
        d = len(self.diffusion)
        angle = float(np.abs(np.linalg.eigvals(self.coefficients[:, :d]).imag).max()) * self.dt
        if angle <= ALIASING_ANGLE:
            return ()
        return (
            f"The drift turns by {angle / np.pi:.2f} half-turns per step: rotation may be faster than the "
            "sampling can see (aliasing), and its speed and sense are then wrong.",
        )

    @cached_property
    def push(self) -> Array:
        """Of Euler's intercepts s the SDE's are `push @ s`."""
        d, dt = len(self.diffusion), self.dt
        return np.asarray(np.linalg.inv(_integral(self.coefficients[:, :d] * dt)))

    def moved(self, of_theta: Array, of_H: Array) -> tuple[Array, Array]:
        """What changes of Euler's parameters of the step, Θ (m, d, p) and H (m, d, d), change of the SDE's, to first order."""
        d, dt = of_H.shape[1], self.dt
        if d > EXACTLY_MOVED_VARIABLES:
            return self._moved_nearly(of_theta, of_H)
        (to, back), basis = self._turns, self._eigen[2]
        half, slopes, g = basis.kept, self._slopes, self._sums
        found, spread = np.empty_like(of_theta), np.empty_like(of_H)
        size = max(1, MOVED_ELEMENTS // (d * d))
        for at in range(0, len(of_H), size):
            some = slice(at, at + size)
            X = basis.rows(to @ of_theta[some] * dt)
            of_B = basis.columns(X[:, :, :d] @ back) / slopes
            found[some, :, :d] = back @ (basis.real(basis.columns_back(of_B)) @ to) / dt
            if of_theta.shape[2] > d:
                bent = (of_B * self._bends[:, :, d]) @ self._pushed
                rest = (X[:, :, d:] - bent) / g[:half, d, None]
                found[some, :, d:] = back @ basis.real(rest) / dt
            drag = (of_B.transpose(1, 0, 2) @ self._drags).transpose(1, 0, 2)
            of_Q = basis.columns(basis.rows(to @ of_H[some] @ to.T * dt), transposed=True)
            of_K = (of_Q - 2 * drag) / g[
                :half, :d
            ]  # symmetric but for its antisymmetric part, which the sum below loses
            of_K = basis.columns_back(of_K, transposed=True)
            both = back @ basis.real(of_K) @ back.T / (2 * dt)
            spread[some] = both + both.transpose(0, 2, 1)
        return found, spread

    def _moved_nearly(self, of_theta: Array, of_H: Array) -> tuple[Array, Array]:
        """The same to first order in A Δt: `δA = δΘ − (A δΘ + δΘ A) Δt/2`, and H and C likewise."""
        d, half = of_H.shape[1], self.dt / 2
        A, C, H = self.coefficients[:, :d], self.coefficients[:, d:], self.diffusion
        found, spread = np.empty_like(of_theta), np.empty_like(of_H)
        for k, (theta, of_Q) in enumerate(zip(of_theta, of_H, strict=True)):
            of_A = theta[:, :d] - (A @ theta[:, :d] + theta[:, :d] @ A) * half
            drag = of_A @ H + A @ of_Q
            found[k, :, :d], spread[k] = of_A, of_Q - (drag + drag.T) * half
            found[k, :, d:] = theta[:, d:] - (of_A @ C + A @ theta[:, d:]) * half
        return found, spread

    # In the eigenbasis V of B the logarithm is differentiated by divided differences, `δB_ib = δF_ib / exp[λi, λb]`, and K
    # through the integral: `g_ij δK_ij = δQ_ij − Σ_b (δB_ib K_bj D_ibj + δB_jb K_bi D_jbi)` with `g_ij = ∫₀¹ e^{(λi+λj)u} du`,
    # `D_ibj = ∫₀¹ exp_u[λi, λb] e^{λj u} du`; C likewise, with λj = 0.

    # All of this is of real matrices: rows of conjugate eigenvalues are conjugate, and one of each pair is enough (`_Basis`).

    @cached_property
    def _eigen(self) -> tuple[Complex, Complex, _Basis]:
        """Eigenvectors of B, its eigenvalues, and how they are ordered; of a matrix close to it where they nearly coincide."""
        d, L = len(self.diffusion), self.root
        B = solve_triangular(L, self.coefficients[:, :d] @ L, lower=True) * self.dt
        change = np.random.default_rng(0).standard_normal((d, d)) / np.sqrt(d)
        for size in (0.0, SPLIT, 100 * SPLIT):
            near = B + size * max(float(np.linalg.norm(B, 2)), 1.0) * change
            rates, V = np.linalg.eig(near)
            if np.linalg.cond(V) < EIGENBASIS_LIMIT:
                break
        alone, first = (np.flatnonzero(each) for each in (rates.imag == 0, rates.imag > 0))
        V, rates = V[:, [*alone, *first]].astype(complex), rates[[*alone, *first]].astype(complex)
        k = len(alone)
        both = np.c_[V, V[:, k:].conj()], np.append(rates, rates[k:].conj())
        return *both, _Basis(k, len(first))

    @cached_property
    def _inverse(self) -> Complex:
        """From states to the eigenbasis, `V⁻¹ L⁻¹`."""
        return np.linalg.inv(self._eigen[0]) @ solve_triangular(
            self.root, np.eye(len(self.root)), lower=True
        )

    @cached_property
    def _turns(self) -> tuple[Array, Array]:
        """From states to the real basis, and back."""
        V, _, basis = self._eigen
        k = basis.kept
        return basis.real(self._inverse[:k]), self.root @ np.c_[
            V[:, :k].real, V[:, basis.alone : k].imag
        ]

    @cached_property
    def _slopes(self) -> Complex:
        """`exp[λi, λb]`."""
        rates, kept = self._eigen[1], self._eigen[2].kept
        return _divided(rates[:kept], rates, np.ones(1))[:, :, 0]

    @cached_property
    def _quadrature(self) -> tuple[Array, Complex]:
        """The weights of the nodes, and e^{λu} there, of all λ and of 0."""
        u, weights = self._nodes
        return weights, np.exp(np.multiply.outer(np.append(self._eigen[1], 0), u))

    @property
    def _nodes(self) -> tuple[Array, Array]:
        rates = self._eigen[1]
        nodes = FEW_NODES if np.abs(rates).max() < SLOW_RATE else NODES
        u, weights = np.polynomial.legendre.leggauss(nodes)
        return (u + 1) / 2, weights / 2

    @cached_property
    def _sums(self) -> Complex:
        """g (d + 1, d + 1), the last for λ = 0."""
        weights, e = self._quadrature
        return (e * weights) @ e.T

    @cached_property
    def _bends(self) -> Complex:
        """D (kept, d, d + 1), the last for λ = 0."""
        (weights, e), (_, rates, basis) = self._quadrature, self._eigen
        return (_divided(rates[: basis.kept], rates, self._nodes[0]) * weights) @ e.T

    @cached_property
    def _drags(self) -> Complex:
        """`K_bj D_ibj`."""
        to = self._inverse
        return self._bends[:, :, :-1] * (to @ self.diffusion @ to.T * self.dt)

    @cached_property
    def _pushed(self) -> Complex:
        """C in the eigenbasis."""
        return self._inverse @ self.coefficients[:, len(self.diffusion) :] * self.dt


class _Basis(NamedTuple):
    """An eigenbasis of `alone` real eigenvalues, as many first ones of conjugate `pairs`, and the second ones: `V = U T`, with U real.

    U has the real parts of the first ones and their imaginary parts in their place, so that products are of real matrices. Of eigenvalues
    in the rows the first of each pair alone is kept.
    """

    alone: int
    pairs: int

    @property
    def kept(self) -> int:
        """Rows that are kept."""
        return self.alone + self.pairs

    def rows(self, X: Array) -> Complex:
        """`T⁻¹ X` of real X (…, d, p), the rows that are kept."""
        k, end = self.alone, self.kept
        found = X[..., :end, :].astype(complex)
        found[..., k:, :] = (X[..., k:end, :] - 1j * X[..., end:, :]) / 2
        return found

    def columns(self, X: Complex, *, transposed: bool = False) -> Complex:
        """`X T`, or `X T⁻ᵀ`."""
        k, end, found = self.alone, self.kept, X.copy()
        real, imaginary = X[..., k:end], 1j * X[..., end:]
        if transposed:
            real, imaginary = real / 2, -imaginary / 2
        np.add(real, imaginary, out=found[..., k:end])
        np.subtract(real, imaginary, out=found[..., end:])
        return found

    def columns_back(self, X: Complex, *, transposed: bool = False) -> Complex:
        """`X T⁻¹`, or `X Tᵀ`."""
        k, end, found = self.alone, self.kept, X.copy()
        first, second = X[..., k:end], X[..., end:]
        of_sum, of_difference = (1, 1j) if transposed else (0.5, -0.5j)
        found[..., k:end] = of_sum * (first + second)
        found[..., end:] = of_difference * (first - second)
        return found

    def real(self, X: Complex) -> Array:
        """`T X` of a matrix whose rows of conjugate eigenvalues are conjugate, from those that are kept."""
        kept = X.real.copy()
        kept[..., self.alone :, :] *= 2
        return np.concatenate([kept, -2 * X.imag[..., self.alone :, :]], axis=-2)


def _divided(one: Complex, two: Complex, u: Array) -> Complex:
    """Divided differences of `λ → e^{λu}`, `e^{(a+b)u/2} sinh((a−b)u/2) / ((a−b)/2)`, stable at a = b."""
    mean = np.add.outer(one, two)[..., None] / 2
    half = np.subtract.outer(one, two)[..., None] / 2
    same = np.abs(half) < 1e-8
    return np.exp(mean * u) * np.where(same, u, np.sinh(half * u) / np.where(same, 1, half))


def embedded(theta: Array, H: Array, dt: float) -> Embedding:
    """The SDE whose exact step over dt is Euler's step with Θ (d, p) and H; `NotEmbeddableError` where there is none.

    `A = log(F)/dt`, H from `A Q + Q Aᵀ = F H Fᵀ − H`, C by the integral of `e^{Au}`. Limits: a rotation by more than half a turn per
    step looks like a slower one, in the opposite direction, and cannot be distinguished from it (only angles near the fold are noted).
    """
    (d, p), remembered = theta.shape, theta.size <= REMEMBERED_ELEMENTS
    found = _embedded if remembered else _embedded.__wrapped__
    coefficients, diffusion, root = found(theta.tobytes(), H.tobytes(), d, p, dt)
    return Embedding(coefficients.copy(), diffusion.copy(), dt, root.copy())


@lru_cache(maxsize=2)
def _embedded(
    of_theta: bytes, of_H: bytes, d: int, p: int, dt: float
) -> tuple[Array, Array, Array]:
    """What an `Embedding` holds; one fit asks several times for that of the same step, and of its reverse."""
    theta, H = np.frombuffer(of_theta).reshape(d, p), np.frombuffer(of_H).reshape(d, d)
    L = np.asarray(np.linalg.cholesky(H * dt))
    F = np.eye(d) + solve_triangular(L, theta[:, :d] @ L, lower=True) * dt
    f, V = np.linalg.eig(F)
    if np.any((f.imag == 0) & (f.real <= 0)):
        raise NotEmbeddableError(NO_LOGARITHM)
    B, K = _in_eigenbasis(np.log(f.astype(complex)), V) or _without_eigenbasis(F)
    if not np.linalg.eigvalsh(K)[0] > 1e-10 * np.abs(K).max():
        raise NotEmbeddableError(NOT_POSITIVE)
    S = solve_triangular(L, theta[:, d:], lower=True) * dt
    sde = _in_units(B, np.linalg.solve(_integral(B), S), K, L, dt)
    return sde.coefficients, sde.diffusion, sde.root


def _in_eigenbasis(rates: Complex, V: Complex) -> tuple[Array, Array] | None:
    """B = log F and K with `∫₀¹ e^{Bu} K e^{Bᵀu} du = 1`, `K̃_ij = Q̃_ij / ∫ e^{(λi+λj)u} du`; None where the eigenbasis loses too many digits."""
    try:
        to = np.linalg.inv(V)
    except np.linalg.LinAlgError:
        return None
    size = float(np.linalg.norm(V)) * float(np.linalg.norm(to))
    sums = rates[:, None] + rates
    zero = np.abs(sums) < 1e-12
    integral = np.where(zero, 1.0, np.expm1(sums) / np.where(zero, 1.0, sums))
    if not size < EIGENBASIS_FOR_DIFFUSION * len(V) or np.abs(integral).min() < SMALLEST_INTEGRAL:
        return None
    K = np.real(V @ (to @ to.T / integral) @ V.T)
    return np.real((V * rates) @ to), (K + K.T) / 2


def _without_eigenbasis(F: Array) -> tuple[Array, Array]:
    """The same where eigenvectors nearly coincide."""
    B = logarithm(F)
    return B, _diffusion(B, np.eye(len(F)))


def embedding_at(coefficients: Array, diffusion: Array, dt: float) -> Embedding:
    """The same from the SDE's side, Θ = (A, C) and H."""
    Q = van_loan(coefficients[:, : len(diffusion)], diffusion, dt)[1]
    return Embedding(coefficients, diffusion, dt, np.asarray(np.linalg.cholesky(Q)))


def _in_units(B: Array, c: Array, K: Array, L: Array, dt: float) -> Embedding:
    """The SDE with B, c (d, k) and K in the coordinates y."""
    A = solve_triangular(L, (L @ B).T, lower=True, trans="T").T / dt
    H = L @ K @ L.T / dt
    return Embedding(np.c_[A, L @ c / dt], (H + H.T) / 2, dt, L)


def _integral(B: Array) -> Array:
    """`∫₀¹ e^{Bu} du`, a block of one exponential."""
    d = len(B)
    return expm(np.block([[B, np.eye(d)], [np.zeros((d, 2 * d))]]))[:d, d:]


def logarithm(F: Array) -> Array:
    """The real principal logarithm of a matrix without eigenvalues on the closed negative axis: `V log(λ) V⁻¹`.

    Where the eigenvectors nearly coincide, by scipy, which warns of less than it knows.
    """
    values, V = np.linalg.eig(F)
    if np.linalg.cond(V) < EIGENBASIS_LIMIT:
        return np.real(V @ np.diag(np.log(values.astype(complex))) @ np.linalg.inv(V))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.real(logm(F)), dtype=np.float64)


def continuous(
    euler: tuple[Array, Array],
    dt: float,
    errors: Callable[[Through | None], StandardErrors],
    constrained: Callable[[], Embedding] | None = None,
) -> Estimate:
    """The SDE behind Euler's step (Θ, H), with notes on it; Euler's values, and why, where there is none.

    `errors` gives those of Θ and H, or of what moves with them. `constrained`: the SDE to take where the step belongs to none.
    """
    try:
        sde, notes = embedded(*euler, dt), tuple[str, ...]()
    except NotEmbeddableError as why:
        if constrained is None:
            return Estimate(*euler, errors(None), (f"{why} {EULER_SHOWN}",))
        fast = "; that relaxation is only known to be fast" if str(why) == NO_LOGARITHM else ""
        sde, notes = constrained(), (f"{why} {CONSTRAINED}{fast}.",)
    notes = (*notes, *sde.notes)
    return Estimate(sde.coefficients, sde.diffusion, errors(sde.moved), notes, "exact")


def difference(found: Estimate, euler: tuple[Array, Array]) -> tuple[str, ...]:
    """By how much Euler's values differ from an estimate of the SDE, in standard errors, where that is not little."""
    if found.scheme != "exact":
        return ()
    d, tiny = len(found.diffusion), np.finfo(float).tiny
    of_A = np.abs(found.coefficients - euler[0])[:, :d] / np.maximum(
        found.errors.drift[:, :d], tiny
    )
    of_H = np.abs(found.diffusion - euler[1]) / np.maximum(found.errors.diffusion, tiny)
    largest = float(of_A.max()), float(of_H.max())
    if not max(largest) > TOLD_DIFFERENCE:
        return ()
    return (
        "Parameters are those of the SDE, by exact transitions; Euler's step of this length (estimator='mle') would differ by up "
        f"to {largest[0]:.1f} standard errors in A and {largest[1]:.1f} in H.",
    )


def exact(moments: Moments, dt: float, *, affine: bool = False) -> Estimate:
    """Maximum likelihood of the exact discretisation: the SDE behind the regression, or the likeliest SDE where there is none.

    `moments` are those of a `Linear` drift, or of an `Affine` one with `affine=True`; coefficients are A or (A, c). Limits: those of
    `embedded`; the constrained fit is a local maximum and its errors, like all here, assume that N is large.
    """
    fit, euler = _standardise(moments, dt, affine), mle(moments)
    law = euler.coefficients, euler.diffusion
    errors = partial(regression_errors, moments, euler.diffusion)
    return continuous(law, dt, errors, partial(_constrained, fit, dt, affine=affine))


def constrained(moments: Moments, dt: float, *, affine: bool) -> Embedding:
    """The likeliest SDE for moments whose regression belongs to none."""
    return _constrained(_standardise(moments, dt, affine), dt, affine=affine)


def moments_of_step(theta: Array, H: Array, found: Moments) -> Moments:
    """The moments of a step's own regression: as many steps with the regressors of `found`, its coefficients and its H."""
    root, (d, p) = found.blocks[0], theta.shape
    corner = np.linalg.cholesky(H).T * np.sqrt(found.count)
    factor = np.block([[root, root @ theta.T], [np.zeros((d, p)), corner]])
    return Moments(factor, found.count, p)


@dataclass(frozen=True)
class _Regression:
    """F̂, mean increment ŝ and R with `Σ y yᵀ = Rᵀ R` in the coordinates y; N; L and m that lead to them."""

    F: Array
    shift: Array
    R: Array
    count: float
    L: Array
    centre: Array

    @property
    def y_centre(self) -> Array:
        """m in the coordinates y."""
        return solve_triangular(self.L, self.centre, lower=True)

    @property
    def likelihood(self) -> StepLikelihood:
        """Of (B, K): squares about F̂, whose residuals do not depend on the regressors, lose no digits."""
        one = np.eye(len(self.F))
        gram, every = block_diag(self.R.T @ self.R, self.count * one), np.ones_like(one)
        steps = gram[None], np.array([self.count]), np.ones(1), (self.F - one)[None]
        return StepLikelihood(*steps, every > 0, 0 * one, every, every[0])


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


def _constrained(fit: _Regression, dt: float, *, affine: bool) -> Embedding:
    """The largest likelihood (less the `DRIFT_RIDGE`) among SDEs, by L-BFGS from F̂ with its eigenvalues clipped."""
    d = len(fit.F)
    f, V = np.linalg.eig(fit.F)
    f = np.where((f.imag == 0) & (f.real < 0.05), 0.05, f)
    B = np.real((V * np.log(f)) @ np.linalg.inv(V))
    values, vectors = np.linalg.eigh(_diffusion(B, np.eye(d)))
    K = (vectors * np.maximum(values, 0.05 * values[-1])) @ vectors.T

    likelihood = fit.likelihood

    def shortfall(x: Array) -> tuple[float, Array]:
        """By how much the log-likelihood is below that of the free regression, the ridge included, and its gradient."""
        value, gradient = likelihood(x)
        ridge = np.zeros_like(x)
        ridge[: d * d] = DRIFT_RIDGE * x[: d * d]
        return value - fit.count * d / 2 + float(ridge @ x) / 2, gradient + ridge

    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 1e-6, "gtol": 1e-6}
    start = likelihood.pack(B, K)
    B, K, _ = likelihood.split(lbfgs(shortfall, start, **options).x)
    c = np.linalg.solve(_integral(B), fit.shift) - B @ fit.y_centre
    return _in_units(B, c[:, None] if affine else np.empty((d, 0)), K, fit.L, dt)
