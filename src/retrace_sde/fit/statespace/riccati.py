"""One Riccati recursion per pattern of missing entries and gaps; the means of its trajectories in one product per step.

Covariances do not depend on the values, only on which entries were seen across which classes of steps. They are in Joseph form,
a sum of squares, so they stay positive. A complete panel with common gaps is one pattern of all trajectories.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri

from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import Stack
from retrace_sde.io.arrays import Array, Indices, Mask

STEADY_CHANGE = 1e-12
"""Relative change of a covariance from one step to the next below which it counts as converged."""

MIN_JOINT_INVERSES = 16
"""From this many patterns on triangular matrices are inverted together."""


@dataclass(frozen=True, eq=False)
class Gains:
    """The Riccati recursion of a stack: all that the means and the likelihood need, time first.

    gain K, weight S⁻¹, lower factor of S and covariance of the filter; covariance and lag covariance of the smoother:
    (T, G, d, d) each.
    """

    gain: Array
    weight: Array
    lower: Array
    filtered: Array
    covariance: Array
    lag: Array


@dataclass(frozen=True, eq=False)
class Means:
    """Smoothed means (T, G, k, d) and log-likelihoods (G, k) of a stack.

    `pulls` r (T − 1, G, k, d): the steps' noises have the means `Q r`; `gaps` (T, G, k, d): observations less means, 0 where missing.
    """

    means: Array
    log_likelihood: Array
    pulls: Array
    gaps: Array


def riccati(seen: Mask, classes: Indices, model: StepModel) -> Gains:
    """Gains and covariances of patterns seen (T, G, d) across classes of steps (T − 1, G): one recursion forwards, one backwards.

    A missing entry's row and column of S are those of the identity: it has no gain and adds nothing to the
    likelihood. Once a fully observed stretch of equal steps has converged its gains are not computed again. Only what depends on
    the last step is done step by step, the rest for all steps at once.
    """
    T, G, d = seen.shape
    R, eye = model.noise, np.eye(d)
    full: list[bool] = np.asarray(seen.all(axis=(1, 2))).tolist()
    # step t − 1 was of the same class as the one before it
    alike = [False, False, *(classes[1:] == classes[:-1]).all(axis=1).tolist()]
    each: list[tuple[Array, ...]] = []  # predicted, gain, weight, Cholesky factor, filtered
    repeats = np.zeros(T, dtype=bool)
    # single matrices are multiplied sooner than stacks of one
    P = model.initial.covariance if G == 1 else np.tile(model.initial.covariance, (G, 1, 1))
    for t in range(T):
        steady = t > 1 and full[t] and full[t - 1] and alike[t]
        if steady and repeats[t - 1]:
            repeats[t] = True
            each.append(each[-1])
            continue
        if t:
            F, Q = (
                _of_step(model.matrix, classes, t - 1),
                _of_step(model.covariance, classes, t - 1),
            )
            P = _symmetric(F @ each[-1][4] @ np.ascontiguousarray(_t(F)) + Q)
        # looking costs more than a product: now and then is enough
        if steady and t % 8 == 0 and _settled(P, each[-1][0]):
            repeats[t] = True
            each.append(each[-1])
            continue
        S, mask = P + R, seen[t, 0] if G == 1 else seen[t]
        if not full[t]:
            S = np.where(mask[..., :, None] & mask[..., None, :], S, eye)
        lower = _cholesky(S)
        root = _inverse(lower)
        W = _t(root) @ root
        K = P @ W
        if full[t]:
            after = K @ R  # P (P + R)⁻¹ R: no difference
        else:
            K = K * mask[..., None, :]
            rest = eye - K
            after = rest @ P @ _t(rest) + K @ R @ _t(K)
        each.append((P, K, W, lower, after))
    predicted, gain, weight, lower, filtered = (
        np.array(series).reshape(T, G, d, d) for series in zip(*each, strict=True)
    )
    filtered = _symmetric(filtered)
    covariance, lag = _backwards(predicted, filtered, repeats, classes, model)
    return Gains(gain, weight, lower, filtered, covariance, lag)


def _of_step(table: Array, classes: Indices, t: int) -> Array:
    """The matrices (K, …) of one step: (…) where all patterns have the same, or (G, …)."""
    if len(table) == 1 or classes.shape[1] == 1:
        return table[classes[t, 0]]
    return table[classes[t]]


def of_steps(table: Array, classes: Indices) -> Array:
    """The matrices (K, …) of all steps, (T − 1, G, …); with one class (1, 1, …), which products broadcast."""
    return table[None, :1] if len(table) == 1 else table[classes]


def _backwards(
    predicted: Array, filtered: Array, repeats: Mask, classes: Indices, model: StepModel
) -> tuple[Array, Array]:
    """Smoothed covariances and those with the state before: `V_t = (1 − J F) P_t (1 − J F)ᵀ + J (Q + V_{t+1}) Jᵀ`."""
    T, _, d, _ = filtered.shape
    # J_t depends on what was filtered at t and predicted for t + 1
    new = ~(repeats[:-1] & repeats[1:])
    which = np.cumsum(new) - 1
    F, Q = of_steps(model.matrix, classes[new]), of_steps(model.covariance, classes[new])
    root = _inverses(predicted[1:][new])
    J = filtered[:-1][new] @ _t(F) @ _t(root) @ root
    back, rest = np.ascontiguousarray(_t(J)), np.eye(d) - J @ F
    own = rest @ filtered[:-1][new] @ _t(rest) + J @ Q @ back
    covariance = np.empty_like(filtered)
    V = covariance[-1] = filtered[-1]
    settled = False
    for t in range(T - 2, -1, -1):
        k = which[t]
        same = t < T - 2 and k == which[t + 1]
        settled = same and (settled or (t % 8 == 0 and _settled(V, covariance[t + 2])))
        if not settled:
            V = own[k] + J[k] @ V @ back[k]
        covariance[t] = V
    covariance = _symmetric(covariance)
    return covariance, covariance[1:] @ back[which]


def shifts(stack: Stack, model: StepModel) -> Array | None:
    """`S v` of each step, (T − 1, G, 1 or k, d); None where it is zero."""
    if not model.inputs.any():
        return None
    S = of_steps(model.inputs, stack.classes)
    if stack.inputs is None:
        return S.sum(axis=3)[:, :, None]
    return stack.inputs[:-1] @ np.ascontiguousarray(_t(S))


def forwards(stack: Stack, gains: Gains, model: StepModel) -> tuple[Array, Array]:
    """Filtered means `m_t = (1 − K_t)(F m_{t−1} + s) + K_t y_t`, and innovations v, 0 where missing: (T, G, k, d) each."""
    y, (T, _, _, d) = stack.values, stack.values.shape
    s = shifts(stack, model)
    Ft = np.ascontiguousarray(_t(of_steps(model.matrix, stack.classes)))
    # products of transposed views are not given to BLAS
    K = np.ascontiguousarray(_t(gains.gain))
    rest = np.eye(d) - K
    carry = Ft @ rest[1:]  # what the last mean passes on; the rest is one product for all steps
    m = y @ K
    if s is not None:
        m[1:] += s @ rest[1:]
    m[0] += (model.initial.mean @ rest[0])[:, None]
    for t in range(1, T):
        m[t] += m[t - 1] @ carry[t - 1]
    v = np.empty_like(m)
    v[0] = model.initial.mean
    v[1:] = _rows(m[:-1], Ft[0, 0]) if len(model.matrix) == 1 else m[:-1] @ Ft
    if s is not None:
        v[1:] += s
    np.subtract(y, v, out=v)
    if not stack.seen.all():
        v *= stack.seen[:, :, None, :]
    return m, v


def smooth(stack: Stack, gains: Gains, model: StepModel) -> Means:
    """Means and likelihoods: filtered forwards, then backwards by what later observations say of a state's noise
    (Durbin & Koopman, 4.5): `r_{t−1} = S_t⁻¹ v_t + (1 − K_t)ᵀ Fᵀ r_t`, `E X_t = m_t + P_t Fᵀ r_t`.
    """
    T, d = len(stack.values), stack.values.shape[3]
    F = of_steps(model.matrix, stack.classes)
    m, v = forwards(stack, gains, model)
    r = v @ gains.weight
    squares = np.einsum("tgki,tgki->gk", r, v)
    log_det = 2 * np.log(np.diagonal(gains.lower, axis1=2, axis2=3)).sum(axis=(0, 2))
    constant = log_det + np.log(2 * np.pi) * stack.seen.sum(axis=(0, 2))
    onward = F @ (np.eye(d) - gains.gain[:-1])
    for t in range(T - 2, 0, -1):
        r[t] += r[t + 1] @ onward[t]
    m[:-1] += np.matmul(r[1:], F @ gains.filtered[:-1], out=v[1:])
    gaps = np.subtract(stack.values, m, out=v)  # large arrays cost more to get than to fill
    if not stack.seen.all():
        gaps *= stack.seen[:, :, None, :]
    return Means(m, -0.5 * (squares + constant[:, None]), r[1:], gaps)


def noise_grams(
    stack: Stack, gains: Gains, found: Means, model: StepModel, *, total: bool
) -> Array:
    """Gram matrices of (x, v, η) by class of each trajectory (G k, K, q, q), or their sum (K, q, q): of the means, and of what is
    not known.
    """
    w, (K, d, m), k = stack.steps, model.inputs.shape, stack.rows.shape[1]
    F, Q, p, r = model.matrix, model.covariance, d + m, found.pulls
    phi = found.means[:-1]
    if m:
        v = np.ones((*phi.shape[:3], m)) if stack.inputs is None else stack.inputs[:-1]
        phi = np.concatenate([phi, v], axis=3)
    if not w.all():  # the pulls of steps without data are 0
        phi = phi * w[:, :, None, None]
    share = w * (stack.classes == np.arange(K)[:, None, None])
    before, after, lag = (
        np.einsum("atg,tgij->gaij", share, C)
        for C in (gains.covariance[:-1], gains.covariance[1:], gains.lag)
    )
    if total:
        before, after, lag = (k * C.sum(axis=0) for C in (before, after, lag))
    else:
        before, after, lag = (np.repeat(C, k, axis=0) for C in (before, after, lag))
    cross = lag - F @ before
    gram = by_class(phi, phi, stack.classes, K, total=total)
    grams = np.empty((*gram.shape[:-2], p + d, p + d))
    grams[..., :p, :p] = gram
    grams[..., :d, :d] += before
    grams[..., p:, :p] = Q @ by_class(r, phi, stack.classes, K, total=total)
    grams[..., p:, :d] += cross
    noise = Q @ by_class(r, r, stack.classes, K, total=total) @ Q
    grams[..., p:, p:] = noise + after - lag @ _t(F) - F @ _t(cross)
    grams[..., :p, p:] = _t(grams[..., p:, :p])
    return grams


def by_class(a: Array, b: Array, classes: Indices, K: int, *, total: bool) -> Array:
    """Σ a bᵀ over the steps of each class: of each trajectory, (G k, K, i, j), or of all, (K, i, j)."""
    S, G, k, i = a.shape
    j = b.shape[3]
    if K == 1 and total:
        return (a.reshape(-1, i).T @ b.reshape(-1, j))[None]
    if K == 1:
        one, two = (x.transpose(1, 2, 0, 3).reshape(G * k, S, -1) for x in (a, b))
        return (_t(one) @ two)[:, None]
    if total:
        found = np.zeros((K, i, j))
        np.add.at(found, classes, _t(a) @ b)
        return found
    each, rows = np.zeros((G, K, k, i, j)), np.arange(G)
    for t in range(S):
        each[rows, classes[t]] += a[t][..., :, None] * b[t][..., None, :]
    return each.transpose(0, 2, 1, 3, 4).reshape(G * k, K, i, j)


def squared_noise(stack: Stack, gains: Gains, found: Means) -> Array:
    """Expected squared noise of each trajectory and variable, (G, k, d)."""
    spread = np.diagonal(gains.covariance, axis1=2, axis2=3) * stack.seen
    total: Array = np.einsum("tgki,tgki->gki", found.gaps, found.gaps)
    return total + spread.sum(axis=0)[:, None]


def _cholesky(S: Array) -> Array:
    """Lower factors (…, d, d). For one matrix, which is overwritten, numpy's checks would cost several times LAPACK's work."""
    if S.ndim > 2:
        return np.asarray(np.linalg.cholesky(S), dtype=np.float64)
    lower, failed = dpotrf(S.T, lower=1, clean=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return np.asarray(lower)


def _inverse(lower: Array) -> Array:
    """Inverses of triangular matrices (d, d) or (G, d, d).

    LAPACK takes them one by one; of many, the halves are joined by products of all at once:
    `[[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]`.
    """
    d = lower.shape[-1]
    if d == 1:
        return 1 / lower
    if lower.ndim == 2:
        return np.asarray(dtrtri(lower, lower=1)[0])
    if len(lower) < MIN_JOINT_INVERSES:
        return np.asarray(np.linalg.inv(lower), dtype=np.float64)
    h, result = d // 2, np.zeros_like(lower)
    result[:, :h, :h] = A = _inverse(np.ascontiguousarray(lower[:, :h, :h]))
    result[:, h:, h:] = C = _inverse(np.ascontiguousarray(lower[:, h:, h:]))
    result[:, h:, :h] = -C @ lower[:, h:, :h] @ A
    return result


def _inverses(S: Array) -> Array:
    """Inverses of the Cholesky factors of covariances (m, G, d, d)."""
    m, G, d, _ = S.shape
    return _inverse(_cholesky(S.reshape(m * G, d, d))).reshape(S.shape)


def _settled(new: Array, old: Array) -> bool:
    return bool(np.abs(new - old).max() <= STEADY_CHANGE * np.abs(new).max())


def _rows(states: Array, matrix: Array) -> Array:
    """One product for all states, which `@` would split into one per step."""
    return (states.reshape(-1, len(matrix)) @ matrix).reshape(states.shape)


def _t(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2)


def _symmetric(matrices: Array) -> Array:
    return (matrices + _t(matrices)) / 2
