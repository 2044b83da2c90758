"""Kalman filter and smoother for many trajectories that share one model, with missing entries.

    X_{i+1} = F X_i + s + N(0, Q),     Y_i = X_i + N(0, R),     X_0 ~ N(m₀, P₀).

Covariances do not depend on the values, only on which entries were seen: trajectories are grouped by their
pattern of missing entries, each pattern has one Riccati recursion, and the means of all its trajectories move in
one matrix product per step. Patterns with the same number of trajectories are stacked in arrays (G, k, …):
a complete panel is one pattern of n trajectories, entries missing at random are n patterns of one, and
both are the same code. Covariances are in Joseph form, a sum of squares, so they stay positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrace_sde.sde import Array, Gaussian, Transition

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]

STEADY = 1e-12
"""Relative change of a covariance from one step to the next below which it counts as converged."""

STACK_ELEMENTS = 1 << 21
"""Numbers per array of covariances (patterns) or of means (trajectories) worked on at a time: 16 MiB."""


MANY = 16
"""From this many patterns on triangular matrices are inverted together."""


@dataclass(frozen=True, eq=False)
class StateSpace:
    """The transition (F, s, Q) of one step, the covariance R of the observation noise, and the law of X_0.

    `StateSpace(sde.transition(dt), R, initial)` is the model of an SDE. Q must be positive definite; R may be
    zero where P₀ is positive definite (values then are missing or exact).
    """

    transition: Transition
    noise: Array
    initial: Gaussian


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What the data tell about the states: log-likelihoods (n,) and means (n, T, d) of each trajectory.

    `covariances[g]` (T, d, d) holds Cov(X_i | Y), `lag_covariances[g]` (T − 1, d, d) Cov(X_{i+1}, X_i | Y), shared
    by all trajectories with the same missing entries: g = `pattern[j]` for trajectory j.
    """

    log_likelihood: Array
    means: Array
    covariances: Array
    lag_covariances: Array
    pattern: Index


@dataclass(frozen=True, eq=False)
class Stack:
    """G patterns of k trajectories: values (T, G, k, d) with 0 for missing entries, seen (T, G, d)."""

    values: Array
    seen: Mask
    patterns: Index
    rows: Index

    @property
    def steps(self) -> Array:
        """1 for each transition up to a pattern's last observation, (T − 1, G); later ones hold no data."""
        some: Mask = np.asarray(self.seen.any(axis=2))
        after: Mask = np.logical_or.accumulate(some[::-1], axis=0)[::-1]
        return after[1:].astype(float)


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


def kalman(Y: ArrayLike, model: StateSpace) -> Smoothed:
    """Log-likelihood, smoothed means and covariances of Y (n, T, d) in time order, NaN where missing.

    Trajectories that are shorter end in rows of NaN; a regular grid is assumed. Patterns with equally
    many trajectories are worked on together, in blocks. The covariances of P patterns are P T d² numbers.
    """
    values = as_observations(Y)
    n, T, d = values.shape
    check_model(model, d)
    pattern, stacks = group(values)
    P = int(pattern.max()) + 1
    means, likelihood = np.empty((n, T, d)), np.empty(n)
    covariances, lags = np.empty((P, T, d, d)), np.empty((P, T - 1, d, d))
    for stack in stacks:
        gains = riccati(stack.seen, model)
        covariances[stack.patterns] = gains.covariance.transpose(1, 0, 2, 3)
        lags[stack.patterns] = gains.lag.transpose(1, 0, 2, 3)
        for part in parts(stack):
            found = smooth(part, gains, model)
            means[part.rows] = found.means.transpose(1, 2, 0, 3)
            likelihood[part.rows] = found.log_likelihood
    return Smoothed(likelihood, means, covariances, lags, pattern)


def as_observations(Y: ArrayLike) -> Array:
    """Y as float64 (n, T, d); refused where the shape is another, a value infinite or nothing was seen."""
    values = np.asarray(Y, dtype=float)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            f"observations must have shape (trajectory, time, variable); got {values.shape}."
        )
    if np.isinf(values).any():
        raise ValueError("observations contain infinite values; missing ones are written as NaN.")
    if np.isnan(values).all():
        raise ValueError("every observation is missing (NaN).")
    return values


def check_model(model: StateSpace, d: int) -> None:
    """Shapes that fit together, and covariances that can be ones."""
    step, initial = model.transition, model.initial
    named = {"transition": step.matrix, "step covariance": step.covariance, "noise": model.noise}
    for name, matrix in {**named, "initial covariance": initial.covariance}.items():
        if np.shape(matrix) != (d, d) or not np.isfinite(matrix).all():
            raise ValueError(
                f"the {name} must be a finite matrix ({d}, {d}), not {np.shape(matrix)}."
            )
        if name != "transition" and not is_covariance(matrix):
            raise ValueError(f"the {name} must be symmetric, without negative eigenvalues.")
    if np.shape(step.shift) != (d,) or np.shape(initial.mean) != (d,):
        raise ValueError(f"the shift and the initial mean must be vectors of {d} numbers.")
    for matrix in (step.covariance, initial.covariance + model.noise):
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError(
                "the step covariance, and the sum of noise and initial covariance, must be positive definite."
            )


def is_covariance(matrix: Array) -> bool:
    """Symmetric and positive semi-definite, up to rounding."""
    scale = float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-8 * scale):
        return False
    return bool(np.linalg.eigvalsh(matrix)[0] >= -1e-10 * scale)


def group(values: Array) -> tuple[Index, list[Stack]]:
    """The pattern of each trajectory, and stacks of patterns with equally many trajectories."""
    n, T, d = values.shape
    seen = ~np.isnan(values)
    packed = np.packbits(seen.reshape(n, -1), axis=1)
    _, first, pattern, counts = np.unique(
        packed, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    pattern = pattern.reshape(n)
    by_pattern = np.split(np.argsort(pattern, kind="stable"), np.cumsum(counts)[:-1])
    size = max(1, STACK_ELEMENTS // (T * d * d))
    stacks = []
    for k in np.unique(counts):
        same = np.flatnonzero(counts == k)
        for begin in range(0, len(same), size):
            chosen = same[begin : begin + size]
            rows = np.array([by_pattern[g] for g in chosen])
            found = np.ascontiguousarray(np.nan_to_num(values[rows]).transpose(2, 0, 1, 3))
            mask = np.ascontiguousarray(seen[first[chosen]].transpose(1, 0, 2))
            stacks.append(Stack(found, mask, chosen, rows))
    return pattern, stacks


def parts(stack: Stack) -> Iterator[Stack]:
    """The same patterns with some of their trajectories at a time, so that memory stays bounded."""
    T, G, k, d = stack.values.shape
    size = max(1, STACK_ELEMENTS // (T * G * d))
    for begin in range(0, k, size):
        some = slice(begin, begin + size)
        yield Stack(stack.values[:, :, some], stack.seen, stack.patterns, stack.rows[:, some])


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
            repeats[t] = repeats[t - 1] or _settled(P, predicted[-1])
        if repeats[t]:
            for series in (predicted, gain, weight, log_det, filtered):
                series.append(series[-1])
            continue
        S = P + R
        if not full[t]:
            both = seen[t, :, :, None] & seen[t, :, None, :]
            S = np.where(both, S, eye)
        lower = np.asarray(np.linalg.cholesky(S), dtype=np.float64)
        root = _inverse(lower)
        W = _t(root) @ root
        K = P @ W if full[t] else (P @ W) * seen[t, :, None, :]
        rest = eye - K
        predicted.append(P)
        gain.append(K)
        weight.append(W)
        log_det.append(2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1))
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
            lower = np.asarray(np.linalg.cholesky(predicted[t + 1]), dtype=np.float64)
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
        np.array(log_det),
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


def _inverse(lower: Array) -> Array:
    """Inverses of triangular matrices (G, d, d).

    LAPACK takes them one by one; of many, the halves are joined by products of all at once:
    `[[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]`.
    """
    G, d, _ = lower.shape
    if d == 1:
        return 1 / lower
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
