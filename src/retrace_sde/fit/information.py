"""Information matrices: of a covariance, over the lower half of a symmetric matrix, and their inverses; log-Cholesky coordinates, and quasi-Newton steps in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import optimize


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
    return np.linalg.inv(information / scale) / scale


def log_cholesky(H: Array) -> Array:
    """Coordinates of a covariance in which every vector is one: the lower half of its Cholesky factor, logarithms on the diagonal."""
    return log_factor(np.asarray(np.linalg.cholesky(H)))


def log_factor(C: Array) -> Array:
    """The coordinates of a Cholesky factor."""
    found = C.copy()
    np.fill_diagonal(found, np.log(np.diag(C)))
    return found[np.tril_indices(len(C))]


def from_log_cholesky(entries: Array, d: int) -> Array:
    """The Cholesky factor C of `H = C Cᵀ`; a trial step that goes astray is kept from overflowing."""
    C = np.zeros((d, d))
    C[np.tril_indices(d)] = entries
    np.fill_diagonal(C, np.exp(np.clip(np.diag(C), -50.0, 50.0)))
    return C


def by_log_cholesky(of_H: Array, C: Array) -> Array:
    """A gradient by H as one by its log-Cholesky coordinates."""
    return by_log_factor((of_H + of_H.T) @ C, C)


def by_log_factor(of_C: Array, C: Array) -> Array:
    """A gradient by the Cholesky factor as one by the coordinates."""
    found = of_C.copy()
    np.fill_diagonal(found, np.diag(of_C) * np.diag(C))
    return found[np.tril_indices(len(C))]


def observed_information(gradient: Callable[[Array], Array], x: Array, steps: Array) -> Array:
    """Minus the derivative of a log-likelihood's gradient at x, by central differences of given steps; symmetric."""
    J = -jacobian(gradient, x, steps)
    return (J + J.T) / 2


def jacobian(function: Callable[[Array], Array], x: Array, steps: Array) -> Array:
    """The derivatives (m, size) of a function at x, by central differences of given steps."""
    ends = ((function(x + e), function(x - e)) for e in np.diag(steps))
    return np.stack([(b - a) / (2 * h) for (b, a), h in zip(ends, steps, strict=True)], axis=1)


def lbfgs(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    bounds: Any = None,
    callback: Any = None,
    **options: float,
) -> Any:
    """The minimum of an objective that gives its gradient too, by L-BFGS with bounds; `options` are scipy's."""
    how: Any = {"method": "L-BFGS-B", "bounds": bounds, "callback": callback, "options": options}
    return optimize.minimize(objective, start, jac=True, **how)
