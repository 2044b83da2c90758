"""Compiled steps of the Kalman filter for one trajectory, entry by entry: what a search over orders runs at every move; R diagonal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array
from retrace_sde.io.kernels import njit


class Table(NamedTuple):
    """F (K, d, d), S (K, d, m), Q (K, d, d) of each class of gap, the diagonal of R, and the law of X_0."""

    matrix: Array
    inputs: Array
    covariance: Array
    noise: Array
    mean: Array
    spread: Array

    @classmethod
    def of(cls, *parts: Array) -> Table:
        """Of arrays of any kind, as kernels know them: for one that is read-only, as broadcast ones are, all would be compiled again."""
        return cls(*(np.array(part, dtype=float, order="C") for part in parts))


@njit(cache=True, nogil=True)
def put(source: NDArray[Any], target: NDArray[Any]) -> None:
    """`target[:] = source`, element by element: for that numba compiles the words of an error too, a third of all compiling."""
    for i in range(len(source)):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def put_rows(source: NDArray[Any], target: NDArray[Any]) -> None:
    """The same for matrices."""
    for i in range(len(source)):
        put(source[i], target[i])


@njit(cache=True, nogil=True, fastmath={"contract"})
def predict(table: Table, k: int, v: Array, a: Array, P: Array, to_a: Array, to_P: Array) -> None:
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
def _absorb(a: Array, P: Array, i: int, f: float, R: float, gap: float) -> None:
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
def update(y: Array, w: Array, R: Array, a: Array, P: Array) -> float:
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
