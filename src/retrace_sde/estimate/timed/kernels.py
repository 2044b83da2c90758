"""Compiled Kalman smoother whose steps differ: each trajectory across gaps, and under inputs, of its own; R diagonal.

    X' = F_k X + S_k v + N(0, Q_k),      k the class of the gap, v what is constant over it (1, inputs).

The recursions are those of `kernels`: entries one by one forwards, (r, N) backwards. (r, N) are the gradient and the
information that what comes later has of a state, so that with `E = r xᵀ − N F P` and `W = r rᵀ − N` the derivatives of the
log-likelihood by F, S and Q of a step are E, r vᵀ and W / 2 (Fisher's identity): no matrix is inverted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from retrace_sde.data.blocks import Array, Mask, Order


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
    classes: Order
    inputs: Array
    last: Order


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
def update(
    y: Array, w: Array, R: Array, a: Array, P: Array
) -> float:  # pragma: no cover - compiled
    """What one observation, seen where w, tells of the state; its log-density."""
    d = len(a)
    value = 0.0
    for i in range(d):
        if not w[i]:
            continue
        f = P[i, i] + R[i]
        if not f > 0.0:
            return -np.inf
        gap = y[i] - a[i]
        value -= 0.5 * (np.log(2 * np.pi * f) + gap * gap / f)
        share = R[i] / f
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
    return value


@njit(cache=True, nogil=True, fastmath={"contract"})
def smooth_one(
    table: Table, y: Array, w: Array, index: Order, v: Array, last: int, work: Work
) -> float:  # pragma: no cover - compiled
    """Smoothed states of one trajectory up to observation `last`, and r, E, W of its steps; the log-likelihood."""
    a, P, z, g, u, r_all, rx, rr = work
    R = table.noise
    d = y.shape[1]
    value = 0.0
    for t in range(last + 1):
        if t == 0:
            a[0] = table.mean
            P[0] = table.spread
        else:
            predict(table, index[t - 1], v[t - 1], a[t - 1], P[t - 1], a[t], P[t])
        At, Pt = a[t], P[t]
        for i in range(d):
            g[t, i] = -1.0
            if not w[t, i]:
                continue
            f = Pt[i, i] + R[i]
            if not f > 0.0:
                return -np.inf
            gap = y[t, i] - At[i]
            value -= 0.5 * (np.log(2 * np.pi * f) + gap * gap / f)
            g[t, i], u[t, i] = 1.0 / f, gap / f
            share = R[i] / f
            for j in range(d):
                z[t, i, j] = -Pt[j, i] / f
                At[j] += Pt[j, i] * gap / f
            z[t, i, i] = share
            for j in range(d):
                if j != i:
                    b = Pt[j, i] / f
                    for e in range(j + 1):
                        if e != i:
                            Pt[j, e] -= b * Pt[i, e]
                            Pt[e, j] = Pt[j, e]
            for j in range(d):
                Pt[i, j] *= share
                Pt[j, i] = Pt[i, j]
    r, N = np.zeros(d), np.zeros((d, d))
    h, back = np.empty(d), np.empty(d)
    NF, C, M = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    for t in range(last - 1, -1, -1):
        for i in range(d - 1, -1, -1):  # undo the entries of observation t + 1
            if g[t + 1, i] < 0:
                continue
            zi = z[t + 1, i]
            total, square = u[t + 1, i], g[t + 1, i]
            for j in range(d):
                s = 0.0
                for e in range(d):
                    s += N[e, j] * zi[e]
                h[j] = s
                total += zi[j] * r[j]
            for j in range(d):
                square += zi[j] * h[j]
            r[i] = total
            for j in range(d):
                N[i, j] = h[j]
                N[j, i] = h[j]
            N[i, i] = square
        F = table.matrix[index[t]]
        for i in range(d):
            for j in range(d):
                s = 0.0
                for e in range(d):
                    s += N[i, e] * F[e, j]
                NF[i, j] = s
        for i in range(d):
            for j in range(d):
                s = 0.0
                for e in range(d):
                    s += NF[i, e] * P[t, e, j]
                C[i, j] = s  # N F P
            s = 0.0
            for e in range(d):
                s += F[e, i] * r[e]
            back[i] = s
        for i in range(d):
            for j in range(d):
                a[t, i] += P[t, i, j] * back[j]
        for i in range(d):
            r_all[t, i] = r[i]
            for j in range(d):
                rx[t, i, j] = r[i] * a[t, j] - C[i, j]
                rr[t, i, j] = r[i] * r[j] - N[i, j]
        for i in range(d):  # Cov X = P − P Fᵀ N F P;  N ← Fᵀ N F
            for j in range(d):
                s = 0.0
                q = 0.0
                for e in range(d):
                    s += F[e, i] * C[e, j]
                    q += F[e, i] * NF[e, j]
                M[i, j] = s
                N[i, j] = q
            r[i] = back[i]
        for i in range(d):
            for j in range(i + 1):
                N[i, j] = 0.5 * (N[i, j] + N[j, i])
                N[j, i] = N[i, j]
        for i in range(d):
            for j in range(d):
                s = P[t, i, j]
                for e in range(d):
                    s -= P[t, i, e] * M[e, j]
                NF[i, j] = s
        for i in range(d):
            for j in range(d):
                P[t, i, j] = 0.5 * (NF[i, j] + NF[j, i])
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
        first[j] = a[0]
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
        means[j] = work.a
        for t in range(spreads.shape[1]):
            spreads[j, t] = work.P[t]
