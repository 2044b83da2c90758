"""From moments to parameters: `mle` and `ols`, and their standard errors.

The estimator and the model are two things: whoever can form `Moments` (one order, a posterior over orders,
chunks on a cluster) estimates with these functions. The exact discretisation is in `exact`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.fit.moments import Moments
from retrace_sde.io.arrays import Array

MAX_COVARIANCE_ELEMENTS = 5e7
"""Elements of all equations' covariances (d p²) beyond which only the errors of single coefficients are kept."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Drift coefficients Θ (d, p) and diffusion H (d, d), their errors, and notes in words."""

    coefficients: Array
    diffusion: Array
    errors: StandardErrors
    notes: tuple[str, ...] = field(default=())


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

    @classmethod
    def of_parameters(cls, covariance: Array, d: int, p: int) -> StandardErrors:
        """From the covariance of (Θ by rows, the lower half of H, others)."""
        equations = np.stack([covariance[k : k + p, k : k + p] for k in range(0, d * p, p)])
        H, (i, j) = np.zeros((d, d)), np.tril_indices(d)
        H[i, j] = H[j, i] = np.sqrt(np.diag(covariance)[d * p : d * p + len(i)])
        return cls.of(equations, H)


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


def regression_errors(moments: Moments, H: Array) -> StandardErrors:
    """`Cov(vec Θ̂) = (Σ φ φᵀ Δt)⁻¹ ⊗ H` and `Var Ĥ_ij = (H_ii H_jj + H_ij²) / N`."""
    R = moments.blocks[0]
    inverse = solve_triangular(R, np.eye(len(R)))
    scale = np.diag(H)
    theta = np.sqrt(np.outer(scale, (inverse**2).sum(axis=1)))
    diffusion = np.sqrt((np.outer(scale, scale) + H**2) / moments.count)
    many = len(scale) * len(R) ** 2 > MAX_COVARIANCE_ELEMENTS
    covariances = None if many else scale[:, None, None] * (inverse @ inverse.T)
    return StandardErrors(theta, diffusion, covariances=covariances)
