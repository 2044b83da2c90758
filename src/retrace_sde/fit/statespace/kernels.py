"""Compiled Kalman smoother for trajectories that each have their own missing entries or gaps; R diagonal.

    X' = F_k X + S_k v + N(0, Q_k),     k the class of the step, v what is constant over it (1, inputs).

Every entry seen is one scalar update, so that no matrix is factored, and the smoother runs on (r, N), the
gradient and information that later observations have of a state, so that none is inverted (Durbin & Koopman,
sections 4.4 and 6.4):

    forwards    f = P_ii + R_i,  z = e_i − P_i / f,  a += P_i (y_i − a_i) / f,  P −= P_i P_iᵀ / f;  a = F a + S v,  P = F P Fᵀ + Q
    backwards   N_i = z N off the diagonal,  N_ii = zᵀ N z + 1 / f,  r_i = zᵀ r + (y_i − a_i) / f;  r = Fᵀ r,  N = Fᵀ N F
    smoothed    E X = a + P r,  Cov X = P − P N P,  and of the step's noise η:  E η = Q r,  Cov(η, X) = −Q N F P.

By Fisher's identity `r xᵀ − N F P`, `r vᵀ` and `(r rᵀ − N) / 2` are the derivatives of the log-likelihood by F, S and Q of a
step. LANES trajectories move together, the last axis of every array: one instruction serves them all, and where one lacks an
entry its update is nothing. Steps of all lanes that are of one class share their matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.fit.statespace.filter import Table
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.kernels import njit

LANES = 8
"""Trajectories worked on together: one vector register of float64."""

LOST = 1e-10
"""A variance that a difference leaves below this share of what it was has too few correct digits."""


class Block(NamedTuple):
    """Trajectories: values (T, n, d), what was seen of them, the class of each step (T − 1, n), and v (T, n, m)."""

    values: Array
    seen: Mask
    classes: Indices
    inputs: Array


class Lanes(NamedTuple):
    """Trajectories side by side: values and w (T, d, L), w = 1 where seen; the class of each step and whether it leads to an
    observation yet to come (T, L); v (T, m, L)."""

    values: Array
    seen: Array
    classes: Indices
    live: Array
    inputs: Array


class Filtered(NamedTuple):
    """Means a (T, d, L) and covariances P (T, d, d, L); z (T, d, d, L), 1 / f and (y − a) / f (T, d, L) of each update."""

    means: Array
    covariances: Array
    z: Array
    weights: Array
    gaps: Array


class Found(NamedTuple):
    """What was found of n trajectories: log-likelihoods, where no digits were lost (n,), expected squared noise (n, d), and of the
    first t times means (n, t, d), covariances and N F P (n, t, d, d), where crosses[:, i + 1] belongs to X_i."""

    likelihood: Array
    fine: Mask
    noise: Array
    means: Array
    covariances: Array
    crosses: Array


class Sums(NamedTuple):
    """Over the steps of each class: Σ E[φ φᵀ] (K, p, p, L) of φ = (x, v), Σ E[r φᵀ] − N F P (K, d, p, L), Σ r rᵀ − N (K, d, d, L).

    Of one step, or one class, without K; of trajectories one by one (n, K, …) without L.
    """

    regressors: Array
    cross: Array
    squares: Array


@njit(cache=True, nogil=True, fastmath={"contract"})
def _product(A: Array, B: Array, out: Array, half: bool) -> None:
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
def _lane_product(A: Array, B: Array, out: Array, sign: float, half: bool) -> None:
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
def _gather(table: Array, classes: Indices, own: Array) -> bool:
    """The steps of all lanes are of one class; else each lane's matrix of the table (K, d, d)."""
    alike = True
    for m in range(1, LANES):
        alike &= classes[m] == classes[0]
    if not alike:
        d = len(own)
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    own[i, j, m] = table[classes[m], i, j]
    return alike


@njit(cache=True, nogil=True)
def _step_product(A: Array, own: Array, alike: bool, B: Array, out: Array, half: bool) -> None:
    """out = A B (d, d, L), with each lane's own A where they are not alike."""
    d = len(A)
    if alike:
        flat = d * LANES
        _product(A, B.reshape(d, flat), out.reshape(d, flat), half)
        return
    for i in range(d):
        for j in range(d):
            for m in range(LANES):
                out[i, j, m] = 0.0
    _lane_product(own, B, out, 1.0, half)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _step_vector(A: Array, own: Array, alike: bool, x: Array, out: Array) -> None:
    """out += A x (d, L)."""
    d = len(A)
    for i in range(d):
        for k in range(d):
            for m in range(LANES):
                out[i, m] += (A[i, k] if alike else own[i, k, m]) * x[k, m]


@njit(cache=True, nogil=True)
def _transpose(A: Array, out: Array) -> None:
    d = len(A)
    for i in range(d):
        for j in range(d):
            for m in range(LANES):
                out[j, i, m] = A[i, j, m]


@njit(cache=True, nogil=True)
def _mirror(A: Array) -> None:
    """The half below the diagonal from the one above."""
    d = len(A)
    for i in range(d):
        for j in range(i):
            for m in range(LANES):
                A[i, j, m] = A[j, i, m]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _predict(
    steps: Table,
    classes: Indices,
    v: Array,
    a: Array,
    P: Array,
    to_a: Array,
    to_P: Array,
    work: Array,
) -> None:
    """`F a + S v` and, from the diagonal on, `F P Fᵀ + Q`."""
    S, Q, own = steps.inputs, steps.covariance, work[3]
    d, F = len(a), steps.matrix[classes[0]]
    alike = _gather(steps.matrix, classes, own)
    for i in range(d):
        for m in range(LANES):
            to_a[i, m] = 0.0
        for k in range(len(v)):
            for m in range(LANES):
                to_a[i, m] += S[classes[m], i, k] * v[k, m]
    _step_vector(F, own, alike, a, to_a)
    _step_product(F, own, alike, P, work[0], False)
    _transpose(work[0], work[1])
    _step_product(F, own, alike, work[1], to_P, True)
    for i in range(d):
        for j in range(i, d):
            for m in range(LANES):
                to_P[i, j, m] += Q[classes[m], i, j]


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
) -> None:
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
def _undo(z: Array, g: Array, u: Array, r: Array, N: Array) -> None:
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


@njit(cache=True, nogil=True)
def _forwards(
    steps: Table,
    lanes: Lanes,
    end: int,
    filtered: Filtered,
    likelihood: Array,
    fine: Array,
    work: Array,
) -> None:
    """Filtered means and covariances before time `end`, whose first are given as predictions."""
    a, P, z, g, u = filtered
    y, w = lanes.values, lanes.seen
    for t in range(end):
        if t > 0:
            _predict(
                steps, lanes.classes[t - 1], lanes.inputs[t - 1], a[t - 1], P[t - 1], a[t], P[t],
                work,
            )  # fmt: skip
        _update(y[t], w[t], steps.noise, a[t], P[t], z[t], g[t], u[t], likelihood, fine)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add(
    to: Sums,
    live: Array,
    r: Array,
    N: Array,
    C: Array,
    a: Array,
    V: Array,
    v: Array,
) -> None:
    """One step added to the sums of a class: V is the covariance of its first state, C = N F P."""
    d, q = len(a), len(v)
    for i in range(d):
        for j in range(d):
            for m in range(LANES):
                to.cross[i, j, m] += r[i, m] * a[j, m] - C[i, j, m]
                to.squares[i, j, m] += r[i, m] * r[j, m] - N[i, j, m]
                to.regressors[i, j, m] += live[m] * (V[i, j, m] + a[i, m] * a[j, m])
        for j in range(q):
            for m in range(LANES):
                to.cross[i, d + j, m] += r[i, m] * v[j, m]
                to.regressors[i, d + j, m] += live[m] * a[i, m] * v[j, m]
    for i in range(q):
        for j in range(q):
            for m in range(LANES):
                to.regressors[d + i, d + j, m] += live[m] * v[i, m] * v[j, m]


@njit(cache=True, nogil=True)
def _share_out(step: Array, classes: Indices, to: Array) -> None:
    """Each lane of a step's sums to those of its class; none is left."""
    for i in range(step.shape[0]):
        for j in range(step.shape[1]):
            for m in range(LANES):
                to[classes[m], i, j, m] += step[i, j, m]
                step[i, j, m] = 0.0


@njit(cache=True, nogil=True, fastmath={"contract"})
def _backwards(
    transposed: Array,
    lanes: Lanes,
    end: int,
    filtered: Filtered,
    fine: Array,
    sums: Sums,
    one: Sums,
    work: Array,
) -> None:
    """Smoothed means and covariances in place of filtered ones, N F P in place of the next z, and the sums of each class.

    `one`: room for the sums of one step, zero.
    """
    a, P, z, g, u = filtered
    d = a.shape[1]
    r, back, N = np.zeros((d, LANES)), np.zeros((d, LANES)), np.zeros((d, d, LANES))
    B, M, D, own = work[0], work[1], work[2], work[3]
    for t in range(end - 2, -1, -1):
        classes, v = lanes.classes[t], lanes.inputs[t]
        k = classes[0]
        alike, Ft = _gather(transposed, classes, own), transposed[k]
        _undo(z[t + 1], g[t + 1], u[t + 1], r, N)
        _step_product(Ft, own, alike, N, M, False)
        _transpose(M, B)  # N F
        C = z[t + 1]  # whose own content is no longer needed
        C[:] = 0.0
        _lane_product(B, P[t], C, 1.0, False)
        _step_product(Ft, own, alike, C, D, False)  # Fᵀ N F P
        back[:] = 0.0
        _step_vector(Ft, own, alike, r, back)
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    a[t, i, m] += P[t, i, j, m] * back[j, m]
        V = M
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    V[i, j, m] = P[t, i, j, m]
        _lane_product(P[t], D, V, -1.0, True)
        _mirror(V)
        if alike:
            of_class = Sums(sums.regressors[k], sums.cross[k], sums.squares[k])
            _add(of_class, lanes.live[t], r, N, C, a[t], V, v)
        else:
            _add(one, lanes.live[t], r, N, C, a[t], V, v)
            for i in range(3):
                _share_out(one[i], classes, sums[i])
        _step_product(Ft, own, alike, B, N, True)
        _mirror(N)
        for i in range(d):
            for m in range(LANES):
                if not V[i, i, m] >= LOST * P[t, i, i, m]:
                    fine[m] = 0.0
                r[i, m] = back[i, m]
        for i in range(d):
            for j in range(d):
                for m in range(LANES):
                    P[t, i, j, m] = V[i, j, m]


@njit(cache=True, nogil=True)
def _lay_out(block: Block, begin: int, rows: int, times: int, lanes: Lanes) -> int:
    """Some trajectories side by side, and the time after the last that matters; lanes beyond them are empty."""
    y, seen, classes, v = block
    T, _, d = y.shape
    end = times
    for t in range(T - 1, -1, -1):
        for m in range(LANES):
            j = begin + (m if m < rows else 0)
            some = False
            for i in range(d):
                there = m < rows and seen[t, j, i]
                lanes.seen[t, i, m] = 1.0 if there else 0.0
                lanes.values[t, i, m] = y[t, j, i] if there else 0.0
                some |= there
            if some and t >= end:
                end = t + 1
            if t > 0:  # the step to this time
                known = lanes.live[t, m] if t < T - 1 else 0.0
                lanes.live[t - 1, m] = 1.0 if some or known > 0 else 0.0
                lanes.classes[t - 1, m] = classes[t - 1, j]
            for i in range(v.shape[2]):
                lanes.inputs[t, i, m] = v[t, j, i]
    return end


@njit(cache=True, nogil=True)
def smooth_block(
    steps: Table,
    transposed: Array,
    block: Block,
    times: int,
    total: bool,
    out: Found,
    sums: Sums,
) -> None:
    """All trajectories of a block: what was found, of the first so many times, and the sums of each, (n, K, …), or in `total`."""
    T, n, d = block.values.shape
    m, (K, p) = block.inputs.shape[2], sums.cross.shape[1:4:2]
    lanes = Lanes(
        np.empty((T, d, LANES)), np.empty((T, d, LANES)), np.zeros((T, LANES), np.intp),
        np.zeros((T, LANES)), np.empty((T, m, LANES)),
    )  # fmt: skip
    filtered = Filtered(
        np.empty((T, d, LANES)), np.empty((T, d, d, LANES)), np.empty((T, d, d, LANES)),
        np.empty((T, d, LANES)), np.empty((T, d, LANES)),
    )  # fmt: skip
    of_lanes = Sums(
        np.zeros((K, p, p, LANES)), np.zeros((K, d, p, LANES)), np.zeros((K, d, d, LANES))
    )
    one = Sums(np.zeros((p, p, LANES)), np.zeros((d, p, LANES)), np.zeros((d, d, LANES)))
    work, a, P = np.empty((4, d, d, LANES)), filtered.means, filtered.covariances
    for begin in range(0, n, LANES):
        rows = min(LANES, n - begin)
        end = _lay_out(block, begin, rows, times, lanes)
        likelihood, fine = np.zeros(LANES), np.ones(LANES)
        for i in range(d):
            a[0, i] = steps.mean[i]
            for j in range(d):
                P[0, i, j] = steps.spread[i, j]
        _forwards(steps, lanes, end, filtered, likelihood, fine, work)
        _backwards(transposed, lanes, end, filtered, fine, of_lanes, one, work)
        for m in range(rows):
            j = begin + m
            out.likelihood[j], out.fine[j] = likelihood[m], fine[m] > 0
            for i in range(d):
                out.noise[j, i] = 0.0
                for t in range(end):
                    gap = lanes.values[t, i, m] - a[t, i, m]
                    out.noise[j, i] += lanes.seen[t, i, m] * (gap * gap + P[t, i, i, m])
            for t in range(times):
                for i in range(d):
                    out.means[j, t, i] = a[t, i, m]
                    for e in range(d):
                        out.covariances[j, t, i, e] = P[t, i, e, m]
                        out.crosses[j, t, i, e] = filtered.z[t, i, e, m]
        if not total:
            for i in range(3):
                for m in range(rows):
                    _take(of_lanes[i], m, sums[i][begin + m])
                of_lanes[i][:] = 0.0
    if total:
        for i in range(3):
            for m in range(LANES):
                _take(of_lanes[i], m, sums[i][0])


@njit(cache=True, nogil=True)
def _take(of_lanes: Array, m: int, to: Array) -> None:
    """The sums of one lane are added."""
    for k in range(to.shape[0]):
        for i in range(to.shape[1]):
            for j in range(to.shape[2]):
                to[k, i, j] += of_lanes[k, i, j, m]
