"""Information matrices: of a covariance, over the lower half of a symmetric matrix, and their inverses."""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Array


def lower_half(S: Array) -> Array:
    """Gradients (…, d, d) by the lower triangle of a symmetric matrix: off-diagonal entries count twice."""
    i, j = np.tril_indices(S.shape[-1])
    return S[..., i, j] * np.where(i == j, 1.0, 2.0)


def covariance_information(P: Array, count: float) -> Array:
    """Expected information that `count` Gaussian draws have of a covariance with inverse P, over its lower half."""
    i, j = np.tril_indices(len(P))
    twice = np.where(i == j, 1.0, 2.0)
    G = 0.5 * (P[np.ix_(i, i)] * P[np.ix_(j, j)] + P[np.ix_(i, j)] * P[np.ix_(j, i)])
    return 0.5 * count * G * np.outer(twice, twice)


def inverse(information: Array) -> Array:
    """The inverse, formed where every diagonal entry is one: parameters may differ in scale by many orders."""
    scale = np.outer(*2 * [np.sqrt(np.diag(information))])
    found: Array = np.linalg.inv(information / scale) / scale
    return found
