"""From moments to parameters: `mle` and `ols`, and their standard errors.

The estimator and the model are two things: whoever can form `Moments` (one order, a posterior over orders,
chunks on a cluster) estimates with these functions. The exact discretisation is in `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.fit.moments import Moments
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Scheme

MAX_COVARIANCE_ELEMENTS = 5e7
"""Elements of all equations' covariances (d p²) beyond which only the errors of single coefficients are kept."""

Through = Callable[[Array, Array], tuple[Array, Array]]
"""What changes of Euler's Θ (m, d, p) and H (m, d, d) change of other parameters, to first order (`exact.Embedding.moved`)."""

ROW_ELEMENTS = 1 << 22
"""Elements of the changes of Θ and H that are formed at a time."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Drift coefficients Θ (d, p) and diffusion H (d, d), their errors, and notes in words.

    `scheme`: they are those of the SDE (exact), or of Euler's step.
    """

    coefficients: Array
    diffusion: Array
    errors: StandardErrors
    notes: tuple[str, ...] = field(default=())
    scheme: Scheme = "euler"


class ErrorKind(StrEnum):
    """What standard errors rest on.

    MODEL: the information of the fitted model, right if it is. SANDWICH: how far the estimates move when one trajectory
    is left out, which holds also where the model does not. GROUPS: the same with whole groups of trajectories left out.
    BOOTSTRAP: estimates of resampled trajectories, or groups. DRISCOLL_KRAAY: the spread of the slices' scores, all trajectories
    together, which may share shocks.
    """

    MODEL = "model"
    SANDWICH = "sandwich"
    GROUPS = "sandwich by group"
    BOOTSTRAP = "bootstrap"
    DRISCOLL_KRAAY = "Driscoll-Kraay"


@dataclass(frozen=True, eq=False)
class StandardErrors:
    """Standard errors, entry by entry; `offset` and `inputs` where a drift's c and B are told apart.

    `covariances` (d, p, p), where known, are those of the p coefficients of each equation.
    """

    drift: Array
    diffusion: Array
    offset: Array | None = None
    covariances: Array | None = None
    kind: ErrorKind = ErrorKind.MODEL
    inputs: Array | None = None

    @classmethod
    def of(
        cls, covariances: Array, diffusion: Array, kind: ErrorKind = ErrorKind.MODEL
    ) -> StandardErrors:
        """From the covariances (d, p, p) of each equation's coefficients, and the errors of H."""
        drift = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        return cls(drift, diffusion, covariances=covariances, kind=kind)

    def scaled(self, by: Array, of_H: Array) -> StandardErrors:
        """Those of coefficients (d, p) and of H times these factors; `by` (d or 1, p or 1)."""
        C = self.covariances
        C = None if C is None else C * by[:, :, None] * by[:, None, :]
        return replace(self, drift=self.drift * by, diffusion=self.diffusion * of_H, covariances=C)

    def plus(self, of_theta: Array, of_H: Array) -> StandardErrors:
        """With further covariances (d, p, p) of each equation's coefficients and variances (d, d) of H."""
        C = None if self.covariances is None else self.covariances + of_theta
        drift = np.sqrt(self.drift**2 + np.diagonal(of_theta, axis1=1, axis2=2))
        diffusion = np.sqrt(self.diffusion**2 + of_H)
        return replace(self, drift=drift, diffusion=diffusion, covariances=C)

    @classmethod
    def of_rows(cls, rows: Iterator[tuple[Array, Array]]) -> StandardErrors:
        """From changes of Θ (m, d, p) and H (m, d, d), some at a time, whose squares sum up to the variances."""
        theta, H = next(rows)
        covariances, diffusion = _squared(theta), (H**2).sum(axis=0)
        for theta, H in rows:
            covariances += _squared(theta)
            diffusion += (H**2).sum(axis=0)
        return cls.of(covariances, np.sqrt(diffusion))

    @classmethod
    def of_parameters(
        cls, covariance: Array, d: int, p: int, through: Through | None = None
    ) -> StandardErrors:
        """From the covariance of (Θ by rows, the lower half of H, others); `through`: errors of what moves with these."""
        size, (i, j) = d * p, np.tril_indices(d)
        H = np.zeros((d, d))
        if through is None:
            equations = np.stack([covariance[k : k + p, k : k + p] for k in range(0, size, p)])
            H[i, j] = H[j, i] = np.sqrt(np.diag(covariance)[size : size + len(i)])
            return cls.of(equations, H)
        inner = covariance[: size + len(i), : size + len(i)]
        unit = np.sqrt(np.maximum(np.diag(inner), 1e-300))
        values, vectors = np.linalg.eigh(inner / np.outer(unit, unit))
        rows = (vectors * np.sqrt(np.maximum(values, 0.0))).T * unit
        of_H = np.zeros((len(rows), d, d))
        of_H[:, i, j] = of_H[:, j, i] = rows[:, size:]
        return cls.of_rows(iter([through(rows[:, :size].reshape(-1, d, p), of_H)]))


def _squared(of_theta: Array) -> Array:
    """Covariances (d, p, p) of each equation from changes (m, d, p)."""
    by_equation = of_theta.transpose(1, 2, 0)
    return by_equation @ by_equation.transpose(0, 2, 1)


def mle(moments: Moments) -> Estimate:
    """Maximum likelihood (Eq. MLE_A, MLE_H): `Θ̂ = (R_φφ⁻¹ R_φΔ)ᵀ`, `Ĥ = R_ΔΔᵀ R_ΔΔ / N`."""
    return _regression(moments, moments.count)


def ols(moments: Moments) -> Estimate:
    """Least squares, equation by equation, with N − p degrees of freedom in H.

    Every equation has the same regressors, so Θ̂ equals the maximum likelihood estimate by algebra: the
    two estimators can differ in H only, by the factor N / (N − p).
    """
    return _regression(moments, moments.count - moments.n_features)


def parameters(moments: Moments, degrees_of_freedom: float | None = None) -> tuple[Array, Array]:
    """Θ̂ and Ĥ of maximum likelihood, or with other degrees of freedom than N, alone."""
    R, cross, rest = moments.blocks
    freedom = moments.count if degrees_of_freedom is None else degrees_of_freedom
    return solve_triangular(R, cross).T, rest.T @ rest / freedom


def _regression(moments: Moments, degrees_of_freedom: float) -> Estimate:
    theta, H = parameters(moments, degrees_of_freedom)
    return Estimate(theta, H, regression_errors(moments, H))


def regression_errors(moments: Moments, H: Array, through: Through | None = None) -> StandardErrors:
    """`Cov(vec Θ̂) = (Σ φ φᵀ Δt)⁻¹ ⊗ H` and `Var Ĥ_ij = (H_ii H_jj + H_ij²) / N`; `through`: of what moves with Θ and H."""
    R = moments.blocks[0]
    inverse = solve_triangular(R, np.eye(len(R)))
    if through is not None:
        return StandardErrors.of_rows(
            through(*each) for each in _independent_changes(inverse, H, moments.count)
        )
    scale = np.diag(H)
    theta = np.sqrt(np.outer(scale, (inverse**2).sum(axis=1)))
    diffusion = np.sqrt((np.outer(scale, scale) + H**2) / moments.count)
    many = len(scale) * len(R) ** 2 > MAX_COVARIANCE_ELEMENTS
    covariances = None if many else scale[:, None, None] * (inverse @ inverse.T)
    return StandardErrors(theta, diffusion, covariances=covariances)


def _independent_changes(inverse: Array, H: Array, count: float) -> Iterator[tuple[Array, Array]]:
    """Changes of Θ, `L Z R⁻ᵀ`, and of H, `L (Z + Zᵀ) Lᵀ/√(2N)`, for one unit entry of Z at a time, `H = L Lᵀ`."""
    L, (p, d) = np.linalg.cholesky(H), (len(inverse), len(H))
    size = max(1, ROW_ELEMENTS // (d * p))
    every = np.indices((d, p)).reshape(2, -1)
    for at in range(0, d * p, size):
        k, j = every[:, at : at + size]
        of_theta = L.T[k][:, :, None] * inverse.T[j][:, None, :]
        yield of_theta, np.zeros((len(k), d, d))
    every = np.stack(np.tril_indices(d))
    for at in range(0, every.shape[1], size):
        k, j = every[:, at : at + size]
        both = L.T[k][:, :, None] * L.T[j][:, None, :]
        scale = np.where(k == j, 0.5**0.5, 1.0)[:, None, None] / np.sqrt(count)
        yield np.zeros((len(k), d, p)), (both + both.transpose(0, 2, 1)) * scale
