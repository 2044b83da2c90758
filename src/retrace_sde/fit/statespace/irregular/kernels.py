"""Compiled Kalman smoother whose steps differ: each trajectory across gaps, and under inputs, of its own; R diagonal.

    X' = F_k X + S_k v + N(0, Q_k),      k the class of the gap, v what is constant over it (1, inputs).

The recursions are those of `kernels`: entries one by one forwards, (r, N) backwards. (r, N) are the gradient and the
information that what comes later has of a state, so that with `E = r xᵀ − N F P` and `W = r rᵀ − N` the derivatives of the
log-likelihood by F, S and Q of a step are E, r vᵀ and W / 2 (Fisher's identity): no matrix is inverted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, Mask


class Table(NamedTuple):
    """F (K, d, d), S (K, d, m), Q (K, d, d) of each class of gap, the diagonal of R, and the law of X_0."""

    matrix: Array
    inputs: Array
    covariance: Array
    noise: Array
    mean: Array
    spread: Array


class Block(NamedTuple):
    """Trajectories in time order: values (b, T, d), what was seen, the class of each gap (b, T − 1), v (b, T, m), and the
    last time at which something was seen (−1: never).
    """

    values: Array
    seen: Mask
    classes: Indices
    inputs: Array
    last: Indices


class Work(NamedTuple):
    """One trajectory: states and covariances (T, …), z, 1/f and (y − a)/f of each entry, and r, E, W of each step."""

    a: Array
    P: Array
    z: Array
    g: Array
    u: Array
    r: Array
    rx: Array
    rr: Array


class Sums(NamedTuple):
    """By class of gap: Σ E[x xᵀ], Σ E[x] vᵀ, Σ v vᵀ, Σ E, Σ r vᵀ, Σ W and how many steps there were."""

    xx: Array
    xv: Array
    vv: Array
    rx: Array
    rv: Array
    rr: Array
    steps: Array


@njit(cache=True, nogil=True)
def put(source: NDArray[Any], target: NDArray[Any]) -> None:  # pragma: no cover - compiled
    """`target[:] = source`, element by element: for that numba compiles the words of an error too, a third of all compiling."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def put_rows(source: NDArray[Any], target: NDArray[Any]) -> None:  # pragma: no cover - compiled
    """The same for matrices."""
    for i in range(len(source)):
        put(source[i], target[i])


@njit(cache=True, nogil=True)
def workspace(T: int, d: int) -> Work:  # pragma: no cover - compiled
    """Room for one trajectory."""
    return Work(
        np.empty((T, d)), np.empty((T, d, d)), np.empty((T, d, d)), np.empty((T, d)), np.empty((T, d)),
        np.zeros((T, d)), np.zeros((T, d, d)), np.zeros((T, d, d)),
    )  # fmt: skip


@njit(cache=True, nogil=True, fastmath={"contract"})
def predict(
    table: Table, k: int, v: Array, a: Array, P: Array, to_a: Array, to_P: Array
) -> None:  # pragma: no cover - compiled
    """`F a + S v` and `F P Fᵀ + Q`."""
    F, S, Q = table.matrix[k], table.inputs[k], table.covariance[k]
    d, m = S.shape
    half = np.empty((d, d))
    for i in range(d):
        total = 0.0
        for j in range(m):
            total += S[i, j] * v[j]
        for j in range(d):
            total += F[i, j] * a[j]
        to_a[i] = total
        for j in range(d):
            total = 0.0
            for e in range(d):
                total += F[i, e] * P[e, j]
            half[i, j] = total
    for i in range(d):
        for j in range(i + 1):
            total = Q[i, j]
            for e in range(d):
                total += half[i, e] * F[j, e]
            to_P[i, j] = total
            to_P[j, i] = total


@njit(cache=True, nogil=True, fastmath={"contract"})
def _absorb(a: Array, P: Array, i: int, f: float, R: float, gap: float) -> None:  # pragma: no cover
    """Entry i, of variance f and `gap` from what was expected: `a += P_i gap / f`, `P −= P_i P_iᵀ / f`."""
    d = len(a)
    share = R / f
    for j in range(d):
        a[j] += P[j, i] * gap / f
    for j in range(d):
        if j != i:
            b = P[j, i] / f
            for e in range(j + 1):
                if e != i:
                    P[j, e] -= b * P[i, e]
                    P[e, j] = P[j, e]
    for j in range(d):  # row i without a difference: P_i R / f
        P[i, j] *= share
        P[j, i] = P[i, j]


@njit(cache=True, nogil=True, fastmath={"contract"})
def update(
    y: Array, w: Array, R: Array, a: Array, P: Array
) -> float:  # pragma: no cover - compiled
    """What one observation, seen where w, tells of the state; its log-density."""
    value = 0.0
    for i in range(len(a)):
        if not w[i]:
            continue
        f, gap = P[i, i] + R[i], y[i] - a[i]
        if not f > 0.0:
            return -np.inf
        value -= 0.5 * (np.log(2 * np.pi * f) + gap * gap / f)
        _absorb(a, P, i, f, R[i], gap)
    return value


@njit(cache=True, nogil=True, fastmath={"contract"})
def _forwards(
    table: Table, y: Array, w: Array, index: Indices, v: Array, last: int, work: Work
) -> float:  # pragma: no cover - compiled
    """Filtered states up to observation `last`, with z, 1 / f and (y − a) / f of each entry; the log-likelihood."""
    a, P, R, d = work.a, work.P, table.noise, y.shape[1]
    value = 0.0
    for t in range(last + 1):
        if t == 0:
            put(table.mean, a[0])
            put_rows(table.spread, P[0])
        else:
            predict(table, index[t - 1], v[t - 1], a[t - 1], P[t - 1], a[t], P[t])
        for i in range(d):
            work.g[t, i] = -1.0
            if not w[t, i]:
                continue
            f, gap = P[t, i, i] + R[i], y[t, i] - a[t, i]
            if not f > 0.0:
                return -np.inf
            value -= 0.5 * (np.log(2 * np.pi * f) + gap * gap / f)
            work.g[t, i], work.u[t, i] = 1.0 / f, gap / f
            for j in range(d):
                work.z[t, i, j] = -P[t, j, i] / f
            work.z[t, i, i] = R[i] / f
            _absorb(a[t], P[t], i, f, R[i], gap)
    return value


@njit(cache=True, nogil=True, fastmath={"contract"})
def _undo(z: Array, g: Array, u: Array, r: Array, N: Array) -> None:  # pragma: no cover - compiled
    """(r, N) before the entries of one observation from those after them."""
    d = len(r)
    h = np.empty(d)
    for i in range(d - 1, -1, -1):
        if g[i] < 0:
            continue
        total, square = u[i], g[i]
        for j in range(d):
            s = 0.0
            for e in range(d):
                s += N[e, j] * z[i, e]
            h[j] = s
            total += z[i, j] * r[j]
        for j in range(d):
            square += z[i, j] * h[j]
        r[i] = total
        for j in range(d):
            N[i, j] = h[j]
            N[j, i] = h[j]
        N[i, i] = square


@njit(cache=True, nogil=True, fastmath={"contract"})
def _product(A: Array, B: Array, out: Array, turned: bool) -> None:  # pragma: no cover - compiled
    """out = A B, or Aᵀ B."""
    d = len(A)
    for i in range(d):
        for j in range(d):
            s = 0.0
            for e in range(d):
                s += (A[e, i] if turned else A[i, e]) * B[e, j]
            out[i, j] = s


@njit(cache=True, nogil=True, fastmath={"contract"})
def smooth_one(
    table: Table, y: Array, w: Array, index: Indices, v: Array, last: int, work: Work
) -> float:  # pragma: no cover - compiled
    """Smoothed states of one trajectory up to observation `last`, and r, E, W of its steps; the log-likelihood."""
    value = _forwards(table, y, w, index, v, last, work)
    a, P, d = work.a, work.P, y.shape[1]
    r, back, N = np.zeros(d), np.empty(d), np.zeros((d, d))
    NF, C, M = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    for t in range(last - 1, -1, -1):
        _undo(work.z[t + 1], work.g[t + 1], work.u[t + 1], r, N)
        F = table.matrix[index[t]]
        _product(N, F, NF, False)
        _product(NF, P[t], C, False)  # N F P
        for i in range(d):
            back[i] = 0.0
            for e in range(d):
                back[i] += F[e, i] * r[e]
        for i in range(d):
            for j in range(d):
                a[t, i] += P[t, i, j] * back[j]
        for i in range(d):
            work.r[t, i] = r[i]
            for j in range(d):
                work.rx[t, i, j] = r[i] * a[t, j] - C[i, j]
                work.rr[t, i, j] = r[i] * r[j] - N[i, j]
        _product(F, C, M, True)
        _product(F, NF, N, True)
        _product(P[t], M, NF, False)  # Cov X = P − P Fᵀ N F P
        for i in range(d):
            r[i] = back[i]
            for j in range(i + 1):
                N[i, j] = 0.5 * (N[i, j] + N[j, i])
                N[j, i] = N[i, j]
        for i in range(d):
            for j in range(i + 1):
                P[t, i, j] -= 0.5 * (NF[i, j] + NF[j, i])
                P[t, j, i] = P[t, i, j]
    return value


@njit(cache=True, nogil=True)
def add_sums(
    table: Table, block: Block,
    sums: Sums, squares: Array, first: Array, first_spread: Array,
) -> float:  # fmt: skip  # pragma: no cover - compiled
    """A block of trajectories (b, T, d): class sums and squared noise are added to; the total log-likelihood."""
    y, w, index, v, last = block
    b, T, d = y.shape
    m = v.shape[2]
    work = workspace(T, d)
    total = 0.0
    for j in range(b):
        if last[j] < 0:
            first[j] = np.nan
            continue
        total += smooth_one(table, y[j], w[j], index[j], v[j], last[j], work)
        a, P = work.a, work.P
        put(a[0], first[j])
        first_spread += P[0]
        for t in range(last[j] + 1):
            for i in range(d):
                if w[j, t, i]:
                    squares[i] += (y[j, t, i] - a[t, i]) ** 2 + P[t, i, i]
        for t in range(last[j]):
            k = index[j, t]
            sums.steps[k] += 1.0
            for i in range(d):
                for e in range(d):
                    sums.xx[k, i, e] += P[t, i, e] + a[t, i] * a[t, e]
                    sums.rx[k, i, e] += work.rx[t, i, e]
                    sums.rr[k, i, e] += work.rr[t, i, e]
                for e in range(m):
                    sums.xv[k, i, e] += a[t, i] * v[j, t, e]
                    sums.rv[k, i, e] += work.r[t, i] * v[j, t, e]
            for i in range(m):
                for e in range(m):
                    sums.vv[k, i, e] += v[j, t, i] * v[j, t, e]
    return total


@njit(cache=True, nogil=True)
def fill_scores(
    table: Table, block: Block,
    of_F: Array, of_Q: Array, scores: Array, squares: Array,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Scores (b, s) from the derivatives of (F, S), (K, s, d, d + m), and of Q, (K, s, d, d); squared noise (b, d)."""
    y, w, index, v, last = block
    b, T, d = y.shape
    m = v.shape[2]
    work = workspace(T, d)
    for j in range(b):
        if last[j] < 0:
            continue
        smooth_one(table, y[j], w[j], index[j], v[j], last[j], work)
        for t in range(last[j] + 1):
            for i in range(d):
                if w[j, t, i]:
                    squares[j, i] += (y[j, t, i] - work.a[t, i]) ** 2 + work.P[t, i, i]
        for t in range(last[j]):
            k = index[j, t]
            for s in range(scores.shape[1]):
                total = 0.0
                for i in range(d):
                    for e in range(d):
                        total += of_F[k, s, i, e] * work.rx[t, i, e]
                        total += 0.5 * of_Q[k, s, i, e] * work.rr[t, i, e]
                    for e in range(m):
                        total += of_F[k, s, i, d + e] * work.r[t, i] * v[j, t, e]
                scores[j, s] += total


@njit(cache=True, nogil=True)
def fill_states(
    table: Table, block: Block,
    values: Array, means: Array, spreads: Array,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Log-likelihoods (b,), smoothed means (b, T, d) and covariances (b, t, d, d) of the first t times."""
    y, w, index, v, last = block
    b, T, _ = y.shape
    work = workspace(T, y.shape[2])
    for j in range(b):
        end = max(last[j], 0)
        values[j] = smooth_one(table, y[j], w[j], index[j], v[j], end, work)
        for t in range(end + 1, T):  # nothing more was seen: what the model expects
            predict(
                table, index[j, t - 1], v[j, t - 1], work.a[t - 1], work.P[t - 1], work.a[t],
                work.P[t],
            )  # fmt: skip
        put_rows(work.a, means[j])
        for t in range(spreads.shape[1]):
            put_rows(work.P[t], spreads[j, t])
