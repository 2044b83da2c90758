"""The Gaussian process behind noisy observations, as an order is judged by it.

    Y_i = X_i + N(0, R),  X_{i+1} = F_i X_i + s_i + S_i u_i + N(0, Q_i),  X_0 ~ N(m₀, P₀):   Y ~ N(μ + L u, K),  K = Ω⁻¹ + R.

Ω, the precision of the states, is block tridiagonal. Inputs u travel with their observation, so that both are one
vector z = (y, u). For an order o, `log p(Y_o) = −½ Σ_ik z_{o_i}ᵀ M_ik z_{o_k} + Σ_i z_{o_i}ᵀ h_i + constant`, with K⁻¹ in the block of y:
which observation stands where is a quadratic assignment problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve

from retrace_sde.fit.statespace.smoother import StateSpace
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian


class Chain(NamedTuple):
    """F (T − 1, d, d), s (T − 1, d), Q and S (T − 1, d, k) of each step, R, and the distribution of X_0."""

    matrices: Array
    shifts: Array
    covariances: Array
    inputs: Array
    noise: Array
    initial: Gaussian

    @classmethod
    def regular(cls, model: StateSpace, length: int) -> Chain:
        """The same step again and again, without inputs."""
        step, d, S = model.transition, len(model.noise), length - 1
        F, Q = (np.tile(each, (S, 1, 1)) for each in (step.matrix, step.covariance))
        s = np.tile(step.shift, (S, 1))
        return cls(F, s, Q, np.zeros((S, d, 0)), model.noise, model.initial)

    def first(self, length: int) -> Chain:
        """The first `length` positions."""
        F, s, Q, S = (each[: length - 1] for each in self[:4])
        return Chain(F, s, Q, S, self.noise, self.initial)


class Process(NamedTuple):
    """Precision M (T, T, q, q) in blocks, h (T, q), and the constant of log p; q = d + k."""

    precision: Array
    shift: Array
    constant: float

    def log_density(self, values: Array) -> Array:
        """`log p(Y)` of complete trajectories z (n, T, q) in time order."""
        T, q = self.shift.shape
        z = values.reshape(len(values), T * q)
        M = self.precision.transpose(0, 2, 1, 3).reshape(T * q, T * q)
        return self.constant + z @ self.shift.ravel() - 0.5 * ((z @ M) * z).sum(axis=1)


def process(chain: Chain) -> Process:
    """The process along a chain. `K⁻¹ = (1 + Ω R)⁻¹ Ω` holds for any R ≥ 0, zero included."""
    F, s, Q, S, R, initial = chain
    T, d, k = len(F) + 1, len(R), S.shape[2]
    Q_inv = np.linalg.inv(Q)
    omega = np.zeros((T, d, T, d))
    omega[0, :, 0] = np.linalg.inv(initial.covariance)
    mean, reach = np.empty((T, d)), np.zeros((T, d, T, k))
    mean[0] = initial.mean
    for t in range(T - 1):
        omega[t, :, t] += F[t].T @ Q_inv[t] @ F[t]
        omega[t + 1, :, t + 1] += Q_inv[t]
        omega[t + 1, :, t] = -Q_inv[t] @ F[t]
        omega[t, :, t + 1] = omega[t + 1, :, t].T
        mean[t + 1] = F[t] @ mean[t] + s[t]
        if k:
            reach[t + 1] = np.tensordot(F[t], reach[t], axes=1)
            reach[t + 1, :, t] += S[t]
    flat = omega.reshape(T * d, T * d)
    # Ω R acts on R's block of each time
    mixed = (omega @ R).reshape(T * d, T * d)
    mixed[np.diag_indices(T * d)] += 1.0
    factors = lu_factor(mixed, overwrite_a=True, check_finite=False)
    M = lu_solve(factors, flat, check_finite=False)
    M = (M + M.T) / 2
    h = M @ mean.ravel()
    log_det = float(np.log(np.abs(np.diag(factors[0]))).sum())  # of 1 + Ω R; K = Ω⁻¹ (1 + Ω R)
    log_det += np.linalg.slogdet(initial.covariance)[1] + np.linalg.slogdet(Q)[1].sum()
    constant = -0.5 * (log_det + T * d * np.log(2 * np.pi) + float(mean.ravel() @ h))
    blocks = M.reshape(T, d, T, d).transpose(0, 2, 1, 3)
    if not k:
        return Process(np.ascontiguousarray(blocks), h.reshape(T, d), constant)
    L = reach.reshape(T * d, T * k)
    whole, shift = np.empty((T, T, d + k, d + k)), np.empty((T, d + k))
    whole[:, :, :d, :d] = blocks
    cross = -(M @ L).reshape(T, d, T, k).transpose(0, 2, 1, 3)
    whole[:, :, :d, d:] = cross
    whole[:, :, d:, :d] = cross.transpose(1, 0, 3, 2)
    whole[:, :, d:, d:] = (L.T @ M @ L).reshape(T, k, T, k).transpose(0, 2, 1, 3)
    shift[:, :d], shift[:, d:] = h.reshape(T, d), -(L.T @ h).reshape(T, k)
    return Process(whole, shift, constant)
