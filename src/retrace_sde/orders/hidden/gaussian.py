"""The Gaussian process behind noisy observations, as an order is judged by it.

    Y_i = X_i + N(0, R),  X_{i+1} = F X_i + s + N(0, Q),  X_0 ~ N(m₀, P₀):   Y ~ N(μ, K),  K = Ω⁻¹ + R.

Ω, the precision of the states, is block tridiagonal. For an order o,
`log p(Y_o) = −½ Σ_ik y_{o_i}ᵀ M_ik y_{o_k} + Σ_i y_{o_i}ᵀ h_i + constant` with `M = K⁻¹`, `h = M μ`: which observation
stands where is a quadratic assignment problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from retrace_sde.data.blocks import Array
from retrace_sde.estimate.kalman.smoother import StateSpace


class Process(NamedTuple):
    """Precision M (T, T, d, d) in blocks, its product with the mean h (T, d), and the constant of log p."""

    precision: Array
    shift: Array
    constant: float

    def log_density(self, values: Array) -> Array:
        """`log p(Y)` of complete trajectories (n, T, d) in time order."""
        T, d = self.shift.shape
        y = values.reshape(len(values), T * d)
        M = self.precision.transpose(0, 2, 1, 3).reshape(T * d, T * d)
        return self.constant + y @ self.shift.ravel() - 0.5 * ((y @ M) * y).sum(axis=1)


def process(model: StateSpace, length: int) -> Process:
    """The process at `length` regular times. `K⁻¹ = (1 + Ω R)⁻¹ Ω` holds for any R ≥ 0, zero included."""
    F, s, Q = model.transition.matrix, model.transition.shift, model.transition.covariance
    T, d = length, len(F)
    Q_inv, P_inv = np.linalg.inv(Q), np.linalg.inv(model.initial.covariance)
    omega = np.zeros((T, d, T, d))
    omega[0, :, 0] = P_inv
    mean = np.empty((T, d))
    mean[0] = model.initial.mean
    for t in range(T - 1):
        omega[t, :, t] += F.T @ Q_inv @ F
        omega[t + 1, :, t + 1] += Q_inv
        omega[t + 1, :, t] = -Q_inv @ F
        omega[t, :, t + 1] = omega[t + 1, :, t].T
        mean[t + 1] = F @ mean[t] + s
    flat = omega.reshape(T * d, T * d)
    # Ω R acts on R's block of each time
    mixed = (omega @ model.noise).reshape(T * d, T * d)
    mixed[np.diag_indices(T * d)] += 1.0
    factors = lu_factor(mixed, overwrite_a=True, check_finite=False)
    M = lu_solve(factors, flat, check_finite=False)
    M = (M + M.T) / 2
    shift = (M @ mean.ravel()).reshape(T, d)
    log_det = float(np.log(np.abs(np.diag(factors[0]))).sum())  # of 1 + Ω R; K = Ω⁻¹ (1 + Ω R)
    log_det += np.linalg.slogdet(model.initial.covariance)[1] + (T - 1) * np.linalg.slogdet(Q)[1]
    constant = -0.5 * (log_det + T * d * np.log(2 * np.pi) + float(mean.ravel() @ shift.ravel()))
    blocks = np.ascontiguousarray(M.reshape(T, d, T, d).transpose(0, 2, 1, 3))
    return Process(blocks, shift, constant)
