"""Scores of slices, `∇ log p_t(x)`, and the drift–score errors of all pairs (Eq. score_error).

For two slices t and s the paper compares `Error_t = Σ_j ‖b − H score_t(x_t)‖²` with Error_s, where b is
built from `(x_s − x_t)/Δt` and is the same for both. The difference is all that the comparison needs:

    Error_t − Error_s = ‖g_t‖² − ‖g_s‖² − 2 b·(g_t − g_s),      g = H score.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from numba import njit

from retrace_sde.blocks import Array, Data, to_numpy

ScoreDrift = Literal["absolute", "mean"]

POINT = 1e-10
"""A slice whose spread is below this share of its own size is a point: one state common to all."""


@dataclass(frozen=True, eq=False)
class GaussianScore:
    """`score_t(x) = −Σ_t⁻¹ (x − μ_t)` for each slice t, from its sample mean and covariance.

    A point has no covariance to invert. In the limit of vanishing spread its score grows without bound,
    so its error exceeds every other and it comes first; `point` marks such slices.
    """

    mean: Array
    precision: Array
    point: Array

    @classmethod
    def fit(cls, data: Data) -> GaussianScore:
        n = data.shape[0]

        def total(x: Any, u: Any | None) -> Array:
            return to_numpy(x).sum(axis=0)

        mean = reduce(np.add, data.map(total)) / n

        def scatter(x: Any, u: Any | None) -> Array:
            z = (to_numpy(x) - mean).transpose(1, 2, 0)
            return z @ z.transpose(0, 2, 1)

        values, vectors = np.linalg.eigh(reduce(np.add, data.map(scatter)) / max(n - 1, 1))
        point = values[:, -1] <= (POINT * np.abs(mean).max(axis=1)) ** 2
        # With n ≤ d some directions have no spread: no point of the slice leaves the others, so any
        # floor gives the same scores.
        floored = np.maximum(values, POINT * values[:, -1:])
        floored[point] = 1.0
        precision = (vectors / floored[:, None, :]) @ vectors.transpose(0, 2, 1)
        return cls(mean, precision, point)

    def __call__(self, x: Array) -> Array:
        """Scores of a block (trajectories, T, d), each slice by its own Gaussian."""
        z = (x - self.mean).transpose(1, 0, 2)
        return -(z @ self.precision).transpose(1, 0, 2)


def score_preference(
    data: Data, score: GaussianScore, H: Array, dt: float, *, score_drift: ScoreDrift = "absolute"
) -> Array:
    """`Error_t − Error_s` for every pair of slices, (T, T); negative where the paper swaps.

    absolute: `b = |x_s − x_t| / Δt`, elementwise and per trajectory, as printed.
    mean: b is the mean increment over trajectories; the score sums to zero, so the cross term vanishes and
    the comparison reduces to `tr(H Σ⁻¹ H)`: slices are sorted by growing spread.
    """
    T = data.shape[1]

    def of_block(x: Any, u: Any | None) -> tuple[Array, Array]:
        values = to_numpy(x)
        g = score(values) @ H
        cross = np.zeros((T, T))
        if score_drift == "absolute":
            _add_cross(_by_slice(values), _by_slice(g), cross)
        return cross, (g**2).sum(axis=(0, 2))

    parts = list(data.map(of_block))
    cross = reduce(np.add, (part[0] for part in parts))
    norms = np.where(score.point, np.inf, reduce(np.add, (part[1] for part in parts)))
    with np.errstate(invalid="ignore"):
        difference: Array = norms[:, None] - norms[None, :] - 2 / dt * (cross - cross.T)
    return np.nan_to_num(difference, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _by_slice(block: Array) -> Array:
    return np.ascontiguousarray(block.transpose(1, 0, 2)).reshape(block.shape[1], -1)


@njit(cache=True, nogil=True, fastmath=True)
def _add_cross(x: Array, g: Array, cross: Array) -> None:  # pragma: no cover - compiled
    """`Σ |x_s − x_t| · (g_t − g_s)` for t < s: no matrix product, since the absolute value is inside."""
    T, size = x.shape
    for t in range(T):
        for s in range(t + 1, T):
            total = 0.0
            for k in range(size):
                total += abs(x[s, k] - x[t, k]) * (g[t, k] - g[s, k])
            cross[t, s] += total
