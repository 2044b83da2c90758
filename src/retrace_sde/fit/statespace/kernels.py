"""Compiled Kalman smoother for trajectories that each have their own missing entries; R diagonal.

Every entry seen is one scalar update, so that no matrix is factored, and the smoother runs on (r, N), the
gradient and information that later observations have of a state, so that none is inverted (Durbin & Koopman,
sections 4.4 and 6.4):

    forwards    f = P_ii + R_i,  z = e_i − P_i / f,  a += P_i (y_i − a_i) / f,  P −= P_i P_iᵀ / f;  a = F a + s,  P = F P Fᵀ + Q
    backwards   N_i = z N off the diagonal,  N_ii = zᵀ N z + 1 / f,  r_i = zᵀ r + (y_i − a_i) / f;  r = Fᵀ r,  N = Fᵀ N F
    smoothed    E X = a + P r,  Cov X = P − P N P,  and of the step's noise η:  E η = Q r,  Cov(η, X) = −Q N F P.

LANES trajectories move together, the last axis of every array: one instruction serves them all, and where
one lacks an entry its update is nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from retrace_sde.io.arrays import Array

LANES = 8
"""Trajectories worked on together: one vector register of float64."""

LOST = 1e-10
"""A variance that a difference leaves below this share of what it was has too few correct digits."""


class Step(NamedTuple):
    """F, its transpose, s and Q of one step, and the diagonal of R; each contiguous."""

    matrix: Array
    transposed: Array
    shift: Array
    covariance: Array
    noise: Array


class Filtered(NamedTuple):
    """Means a (T, d, L) and covariances P (T, d, d, L); z (T, d, d, L), 1 / f and (y − a) / f (T, d, L) of each update."""

    means: Array
    covariances: Array
    z: Array
    weights: Array
    gaps: Array


@njit(cache=True, nogil=True, fastmath={"contract"})
def _product(A: Array, B: Array, out: Array, half: bool) -> None:  # pragma: no cover - compiled
    """out = A B for one A (d, d) and B (d, d L) of all lanes; with `half` only from the diagonal on."""
    d, width = B.shape
    lanes = width // d
    for i in range(d):
        begin = i * lanes if half else 0
        row = out[i, begin:]
        row[:] = 0.0
        k = 0
        while k + 4 <= d:
            a0, a1, a2, a3 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
            b0, b1, b2, b3 = B[k, begin:], B[k + 1, begin:], B[k + 2, begin:], B[k + 3, begin:]
            for m in range(row.size):
                row[m] += a0 * b0[m] + a1 * b1[m] + a2 * b2[m] + a3 * b3[m]
            k += 4
        while k < d:
            a0, b0 = A[i, k], B[k, begin:]
            for m in range(row.size):
                row[m] += a0 * b0[m]
            k += 1


@njit(cache=True, nogil=True, fastmath={"contract"})
def _lane_product(
    A: Array, B: Array, out: Array, sign: float, half: bool
) -> None:  # pragma: no cover - compiled
    """out += sign A B, lane by lane, of (d, d, L) each."""
    d = len(A)
    for i in range(d):
        begin = i if half else 0
        for k in range(0, d - 1, 2):
            for j in range(begin, d):
                for m in range(LANES):
                    out[i, j, m] += sign * (
                        A[i, k, m] * B[k, j, m] + A[i, k + 1, m] * B[k + 1, j, m]
                    )
        if d % 2:
            for j in range(begin, d):
                for m in range(LANES):
                    out[i, j, m] += sign * A[i, d - 1, m] * B[d - 1, j, m]


@njit(cache=True, nogil=True)
def _transpose(A: Array, out: Array) -> None:  # pragma: no cover - compiled
    d = len(A)
    for i in range(d):
        for j in range(d):
            for m in range(LANES):
                out[j, i, m] = A[i, j, m]


@njit(cache=True, nogil=True)
def _mirror(A: Array) -> None:  # pragma: no cover - compiled
    """The half below the diagonal from the one above."""
    d = len(A)
    for i in range(d):
        for j in range(i):
            for m in range(LANES):
                A[i, j, m] = A[j, i, m]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _update(
    y: Array,
    w: Array,
    R: Array,
    a: Array,
    P: Array,
    z: Array,
    g: Array,
    u: Array,
    likelihood: Array,
    fine: Array,
) -> None:  # pragma: no cover - compiled
    """The entries of one observation, w = 1 where seen: mean a and covariance P become filtered ones."""
    d = len(a)
    b = np.empty((d, LANES))
    before = np.empty((d, LANES))
    for i in range(d):
        for m in range(LANES):
            before[i, m] = P[i, i, m] + R[i]
    for i in range(d):
        seen = 0.0
        for m in range(LANES):
            seen += w[i, m]
        if seen == 0.0:
            g[i, 0] = -1.0  # nothing to undo on the way back
            continue
        for j in range(i):
            for m in range(LANES):
                b[j, m] = P[j, i, m]
        for j in range(i, d):
            for m in range(LANES):
                b[j, m] = P[i, j, m]
        for m in range(LANES):
            f = b[i, m] + R[i]
            if w[i, m] > 0:
                if not f > LOST * before[i, m]:
                    fine[m] = 0.0
                    f = 1.0
                likelihood[m] -= 0.5 * (np.log(2 * np.pi * f) + (y[i, m] - a[i, m]) ** 2 / f)
            g[i, m] = w[i, m] / f
            u[i, m] = g[i, m] * (y[i, m] - a[i, m])
        for j in range(d):
            for m in range(LANES):
                z[i, j, m] = -b[j, m] * g[i, m]
                a[j, m] += b[j, m] * u[i, m]
        for j in range(d):
            for k in range(j, d):
                for m in range(LANES):
                    P[j, k, m] += z[i, j, m] * b[k, m]
        # row i without a difference: P_i R / f
        for m in range(LANES):
            z[i, i, m] = R[i] * g[i, m] + (1.0 - w[i, m])
        for j in range(i):
            for m in range(LANES):
                P[j, i, m] = b[j, m] * z[i, i, m]
        for j in range(i, d):
            for m in range(LANES):
                P[i, j, m] = b[j, m] * z[i, i, m]
    _mirror(P)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _undo(z: Array, g: Array, u: Array, r: Array, N: Array) -> None:  # pragma: no cover - compiled
    """(r, N) before the entries of one observation from those after them."""
    d = len(r)
    h = np.empty((d, LANES))
    s = np.empty(LANES)
    for i in range(d - 1, -1, -1):
        if g[i, 0] < 0:
            continue
        h[:] = 0.0
        for k in range(0, d - 1, 2):
            for j in range(d):
                for m in range(LANES):
                    h[j, m] += N[k, j, m] * z[i, k, m] + N[k + 1, j, m] * z[i, k + 1, m]
        if d % 2:
            for j in range(d):
                for m in range(LANES):
                    h[j, m] += N[d - 1, j, m] * z[i, d - 1, m]
        for m in range(LANES):
            s[m] = u[i, m]
        for j in range(d):
            for m in range(LANES):
                s[m] += z[i, j, m] * r[j, m]
        for m in range(LANES):
            r[i, m] = s[m]
            s[m] = g[i, m]
        for j in range(d):
            for m in range(LANES):
                s[m] += z[i, j, m] * h[j, m]
        for j in range(d):
            for m in range(LANES):
                N[i, j, m] = h[j, m]
                N[j, i, m] = h[j, m]
        for m in range(LANES):
            N[i, i, m] = s[m]


@njit(cache=True, nogil=True, fastmath={"contract"})
def forwards(
    y: Array, w: Array, step: Step, filtered: Filtered, likelihood: Array, fine: Array, work: Array
) -> None:  # pragma: no cover - compiled
    """Filtered means and covariances, whose first are given as predictions; w = 1 where y (T, d, L) was seen."""
    F, s, Q, R = step.matrix, step.shift, step.covariance, step.noise
    a, P, z, g, u = filtered
    T, d, _ = y.shape
    flat = d * LANES
    for t in range(T):
        if t > 0:
            for i in range(d):
                for m in range(LANES):
                    a[t, i, m] = s[i]
                for k in range(d):
                    for m in range(LANES):
                        a[t, i, m] += F[i, k] * a[t - 1, k, m]
            _product(F, P[t - 1].reshape(d, flat), work[0].reshape(d, flat), False)
            _transpose(work[0], work[1])
            _product(F, work[1].reshape(d, flat), P[t].reshape(d, flat), True)
            for i in range(d):
                for j in range(i, d):
                    for m in range(LANES):
                        P[t, i, j, m] += Q[i, j]
        _update(y[t], w[t], R, a[t], P[t], z[t], g[t], u[t], likelihood, fine)


@njit(cache=True, nogil=True, fastmath={"contract"})
def backwards(
    step: Step,
    filtered: Filtered,
    live: Array,
    fine: Array,
    matrices: Array,
    vectors: Array,
    work: Array,
) -> None:  # pragma: no cover - compiled
    """Smoothed means and covariances in place of filtered ones, N F P in place of the next z, and their sums.

    live (T, L): 1 for the steps up to a trajectory's last observation. Over these, matrices: Σ E[X Xᵀ],
    Σ E[r Xᵀ] − N F P and Σ r rᵀ − N; vectors: Σ E X and Σ r.
    """
    F, Ft = step.matrix, step.transposed
    a, P, z, g, u = filtered
    T, d = len(live), a.shape[1]
    flat = d * LANES
    r, back, N = np.zeros((d, LANES)), np.zeros((d, LANES)), np.zeros((d, d, LANES))
    B, M, D = work[0], work[1], work[2]
    for t in range(T - 2, -1, -1):
        _undo(z[t + 1], g[t + 1], u[t + 1], r, N)
        _product(Ft, N.reshape(d, flat), M.reshape(d, flat), False)
        _transpose(M, B)  # N F
        C = z[t + 1]  # whose own content is no longer needed
        C[:] = 0.0
        _lane_product(B, P[t], C, 1.0, False)
        _product(Ft, C.reshape(d, flat), D.reshape(d, flat), False)  # Fᵀ N F P
        for i in range(d):
            for m in range(LANES):
                back[i, m] = 0.0
            for k in range(d):
                for m in range(LANES):
                    back[i, m] += F[k, i] * r[k, m]
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    a[t, i, m] += P[t, i, j, m] * back[j, m]
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    matrices[1, i, j, m] += r[i, m] * a[t, j, m] - C[i, j, m]
                    matrices[2, i, j, m] += r[i, m] * r[j, m] - N[i, j, m]
        for i in range(d):
            for m in range(LANES):
                vectors[0, i, m] += live[t, m] * a[t, i, m]
                vectors[1, i, m] += r[i, m]
        _product(Ft, B.reshape(d, flat), N.reshape(d, flat), True)
        _mirror(N)
        V = B
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    V[i, j, m] = P[t, i, j, m]
        _lane_product(P[t], D, V, -1.0, True)
        _mirror(V)
        for i in range(d):
            for m in range(LANES):
                if not V[i, i, m] >= LOST * P[t, i, i, m]:
                    fine[m] = 0.0
                r[i, m] = back[i, m]
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    P[t, i, j, m] = V[i, j, m]
                    matrices[0, i, j, m] += live[t, m] * (V[i, j, m] + a[t, i, m] * a[t, j, m])
