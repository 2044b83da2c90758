"""One Riccati recursion per pattern of missing entries; the means of its trajectories in one product per step.

Covariances do not depend on the values, only on which entries were seen. They are in Joseph form, a sum
of squares, so they stay positive. A complete panel is one pattern of all trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from retrace_sde.data.blocks import Array, Mask
from retrace_sde.estimate.kalman.model import Stack, StateSpace

STEADY = 1e-12
"""Relative change of a covariance from one step to the next below which it counts as converged."""

MANY = 16
"""From this many patterns on triangular matrices are inverted together."""


@dataclass(frozen=True, eq=False)
class Gains:
    """The Riccati recursion of a stack: all that the means and the likelihood need, time first.

    gain K, weight S⁻¹ and log det S of the filter; backward gain J, covariance and lag covariance of
    the smoother: (T, G, d, d) each, log_det (T, G).
    """

    gain: Array
    weight: Array
    log_det: Array
    back: Array
    covariance: Array
    lag: Array


@dataclass(frozen=True, eq=False)
class Means:
    """Smoothed means (T, G, k, d) and log-likelihoods (G, k) of a stack."""

    means: Array
    log_likelihood: Array


def riccati(seen: Mask, model: StateSpace) -> Gains:
    """Gains and covariances of patterns seen (T, G, d): one recursion forwards, one backwards.

    A missing entry's row and column of S are those of the identity: it has no gain and adds nothing to the
    likelihood. Once a fully observed stretch has converged its gains are not computed again.
    """
    T, G, d = seen.shape
    F, Q, R = model.transition.matrix, model.transition.covariance, model.noise
    eye, full = np.eye(d), np.asarray(seen.all(axis=(1, 2)))
    predicted: list[Array] = []
    gain: list[Array] = []
    weight: list[Array] = []
    log_det: list[Array] = []
    filtered: list[Array] = []
    repeats = np.zeros(T, dtype=bool)
    P = np.broadcast_to(model.initial.covariance, (G, d, d))
    for t in range(T):
        if t > 1 and full[t] and full[t - 1]:
            # looking costs as much as a product: now and then is enough
            repeats[t] = repeats[t - 1] or (t % 4 == 0 and _settled(P, predicted[-1]))
        if repeats[t]:
            for series in (predicted, gain, weight, log_det, filtered):
                series.append(series[-1])
            continue
        S = P + R
        if not full[t]:
            both = seen[t, :, :, None] & seen[t, :, None, :]
            S = np.where(both, S, eye)
        lower = _cholesky(S)
        root = _inverse(lower)
        W = _t(root) @ root
        K = P @ W if full[t] else (P @ W) * seen[t, :, None, :]
        rest = eye - K
        predicted.append(P)
        gain.append(K)
        weight.append(W)
        log_det.append(np.diagonal(lower, axis1=1, axis2=2))
        filtered.append(_symmetric(rest @ P @ _t(rest) + K @ R @ _t(K)))
        P = _symmetric(F @ filtered[-1] @ F.T + Q)

    back: list[Array] = []
    lag: list[Array] = []
    smoothed = [filtered[-1]]
    for t in range(T - 2, -1, -1):
        # J_t depends on what was filtered at t and predicted for t + 1
        same = t < T - 2 and repeats[t + 1] and repeats[t + 2]
        if same and len(smoothed) > 1 and _settled(smoothed[-1], smoothed[-2]):
            for series in (back, lag, smoothed):
                series.append(series[-1])
            continue
        if same:
            J = back[-1]
        else:
            lower = _cholesky(predicted[t + 1])
            root = _inverse(lower)
            J = filtered[t] @ F.T @ _t(root) @ root
        rest = eye - J @ F
        back.append(J)
        lag.append(smoothed[-1] @ _t(J))
        smoothed.append(_symmetric(rest @ filtered[t] @ _t(rest) + J @ (smoothed[-1] + Q) @ _t(J)))
    none = np.empty((0, G, d, d))
    return Gains(
        np.array(gain),
        np.array(weight),
        2 * np.log(np.array(log_det)).sum(axis=2),
        np.array(back[::-1]) if back else none,
        np.array(smoothed[::-1]),
        np.array(lag[::-1]) if lag else none,
    )


def smooth(stack: Stack, gains: Gains, model: StateSpace) -> Means:
    """Means and likelihoods: `m_t = (1 − K_t)(F m_{t−1} + s) + K_t y_t` forwards, then backwards with J."""
    y, (T, _, _, d) = stack.values, stack.values.shape
    F, s = model.transition.matrix, model.transition.shift
    # products of transposed views are not given to BLAS
    K, J = (np.ascontiguousarray(_t(gain)) for gain in (gains.gain, gains.back))
    rest = np.eye(d) - K
    carry = (
        F.T @ rest
    )  # what the last mean passes on; the rest of each step is one product for all steps
    m = y @ K + (s @ rest)[:, :, None]
    m[0] = y[0] @ K[0] + (model.initial.mean @ rest[0])[:, None]
    for t in range(1, T):
        m[t] += m[t - 1] @ carry[t]
    prediction = np.empty_like(m)
    prediction[0] = model.initial.mean
    prediction[1:] = _rows(m[:-1], F.T) + s
    innovation = (y - prediction) * stack.seen[:, :, None, :]
    squares = ((innovation @ gains.weight) * innovation).sum(axis=(0, 3))
    constant = gains.log_det.sum(axis=0) + np.log(2 * np.pi) * stack.seen.sum(axis=(0, 2))
    m[:-1] -= prediction[1:] @ J
    for t in range(T - 2, -1, -1):
        m[t] += m[t + 1] @ J[t]
    return Means(m, -0.5 * (squares + constant[:, None]))


def _cholesky(S: Array) -> Array:
    """Lower factors (G, d, d). For one matrix numpy's checks would cost several times LAPACK's work."""
    if len(S) > 1:
        return np.asarray(np.linalg.cholesky(S), dtype=np.float64)
    lower, failed = dpotrf(S[0], lower=1, clean=1)
    if failed:
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return np.asarray(lower[None])


def _inverse(lower: Array) -> Array:
    """Inverses of triangular matrices (G, d, d).

    LAPACK takes them one by one; of many, the halves are joined by products of all at once:
    `[[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]`.
    """
    G, d, _ = lower.shape
    if d == 1:
        return 1 / lower
    if G == 1:
        return np.asarray(dtrtri(lower[0], lower=1)[0][None])
    if G < MANY:
        return np.asarray(np.linalg.inv(lower), dtype=np.float64)
    h, result = d // 2, np.zeros_like(lower)
    result[:, :h, :h] = A = _inverse(np.ascontiguousarray(lower[:, :h, :h]))
    result[:, h:, h:] = C = _inverse(np.ascontiguousarray(lower[:, h:, h:]))
    result[:, h:, :h] = -C @ lower[:, h:, :h] @ A
    return result


def _settled(new: Array, old: Array) -> bool:
    return bool(np.abs(new - old).max() <= STEADY * np.abs(new).max())


def _rows(states: Array, matrix: Array) -> Array:
    """One product for all states, which `@` would split into one per step."""
    return (states.reshape(-1, len(matrix)) @ matrix).reshape(states.shape)


def _t(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2)


def _symmetric(matrices: Array) -> Array:
    return (matrices + _t(matrices)) / 2
