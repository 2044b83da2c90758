"""Scores of slices, `∇ log p_t(x)`, and the drift–score errors of all pairs (Eq. score_error).

For two slices t and s the paper compares `Error_t = Σ_j ‖b − H score_t(x_t)‖²` with Error_s, where b is
built from `(x_s − x_t)/Δt` and is the same for both. The difference is all that the comparison needs:

    Error_t − Error_s = ‖g_t‖² − ‖g_s‖² − 2 b·(g_t − g_s),      g = H score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array
from retrace_sde.io.kernels import njit
from retrace_sde.panel.blocks import Data, to_numpy

ScoreDrift = Literal["absolute", "mean"]

POINT = 1e-10
"""A slice whose spread is below this share of its own size is a point: one state common to all."""

NOISE_LEAVES = 0.1
"""The least share of a slice's spread, in any direction, that observation noise leaves."""


class SliceScores(Protocol):
    """Fitted scores: states (m, T, d), each slice judged by its own density, to `∇ log p_t` of the same shape.

    A boolean array `point` (T,), where there is one, marks slices that are a single state.
    """

    def __call__(self, x: Array, /) -> Array: ...


class Score(Protocol):
    """How scores are estimated: `fit` sees the panel (`data.values`, (n, T, d)) and returns its scores."""

    def fit(self, data: Data, /) -> SliceScores: ...


@dataclass(frozen=True, eq=False)
class GaussianScores:
    """`score_t(x) = −Σ_t⁻¹ (x − μ_t)`, with the standardisation `z = W_tᵀ (x − μ_t)`, `W_t W_tᵀ = Σ_t⁻¹`.

    A point has no covariance to invert. In the limit of vanishing spread its score grows without bound,
    so its error exceeds every other and it comes first; `point` marks such slices. `floored` slices have
    less spread in some direction than the noise alone would leave room for.
    """

    mean: Array
    whitening: Array
    point: NDArray[np.bool_]
    floored: int = 0

    def standardise(self, x: Array) -> Array:
        """States (m, T, d) as (T, m, d) with mean 0 and unit covariance in each slice."""
        return (x - self.mean).transpose(1, 0, 2) @ self.whitening

    def back(self, gradient: Array) -> Array:
        """A gradient (T, m, d) in standardised coordinates as one in x, (m, T, d)."""
        return (gradient @ self.whitening.transpose(0, 2, 1)).transpose(1, 0, 2)

    def __call__(self, x: Array, /) -> Array:
        """Scores of a block (trajectories, T, d), each slice by its own Gaussian."""
        return self.back(-self.standardise(x))


@dataclass(frozen=True, eq=False)
class StandardisedScores:
    """Gradients in each slice's standardised coordinates: z (T, m, d) to `∇_z log p_t(z)` of the same shape."""

    base: GaussianScores
    gradient: Callable[[Array], Array]

    @property
    def point(self) -> NDArray[np.bool_]:
        return self.base.point

    def __call__(self, x: Array, /) -> Array:
        """Scores of a block (trajectories, T, d)."""
        return self.base.back(self.gradient(self.base.standardise(x)))


def standardised(data: Data) -> tuple[GaussianScores, Array]:
    """The slices' Gaussians, and all states in their coordinates, (T, n, d)."""
    base = GaussianScore().fit(data)
    return base, base.standardise(data.slices(np.arange(data.shape[1])).transpose(1, 0, 2))


@dataclass(frozen=True, eq=False)
class GaussianScore:
    """Each slice is Gaussian, with its sample mean and covariance S_t.

    noise: the covariance R (d, d) of observation noise, known; then `Σ_t = S_t − R`, as in the paper. What R leaves of
    a direction is at least a tenth of its spread: below, the difference is sampling error.
    """

    noise: Array | None = None

    def fit(self, data: Data, /) -> GaussianScores:
        """Two passes over the panel."""
        n = data.shape[0]

        def total(x: Any, u: Any | None) -> Array:
            return to_numpy(x).sum(axis=0)

        mean = reduce(np.add, data.map(total)) / n

        def scatter(x: Any, u: Any | None) -> Array:
            z = (to_numpy(x) - mean).transpose(1, 2, 0)
            return z @ z.transpose(0, 2, 1)

        S = reduce(np.add, data.map(scatter)) / max(n - 1, 1)
        values, vectors = np.linalg.eigh(S)
        point = values[:, -1] <= (POINT * np.abs(mean).max(axis=1)) ** 2
        # With n ≤ d some directions have no spread: no point of the slice leaves the others, so any
        # floor gives the same scores.
        floored = np.maximum(values, POINT * values[:, -1:])
        floored[point] = 1.0
        whitening = vectors / np.sqrt(floored)[:, None, :]
        if self.noise is not None:
            # In the metric of S the covariance is 1 − Wᵀ R W, whose eigenvalues are the shares R leaves.
            left, turn = np.linalg.eigh(
                np.eye(S.shape[1]) - whitening.transpose(0, 2, 1) @ self.noise @ whitening
            )
            whitening = whitening @ (turn / np.sqrt(np.maximum(left, NOISE_LEAVES))[:, None, :])
            return GaussianScores(mean, whitening, point, int((left[:, 0] < NOISE_LEAVES).sum()))
        return GaussianScores(mean, whitening, point)


def score_preference(
    data: Data, score: SliceScores, H: Array, dt: float, *, score_drift: ScoreDrift = "absolute"
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
    point = getattr(score, "point", np.zeros(T, dtype=np.bool_))
    norms = np.where(point, np.inf, reduce(np.add, (part[1] for part in parts)))
    with np.errstate(invalid="ignore"):
        difference: Array = norms[:, None] - norms[None, :] - 2 / dt * (cross - cross.T)
    return np.nan_to_num(difference, nan=0.0, posinf=np.inf, neginf=-np.inf)


def _by_slice(block: Array) -> Array:
    return np.ascontiguousarray(block.transpose(1, 0, 2)).reshape(block.shape[1], -1)


@njit(cache=True, nogil=True, fastmath=True)
def _add_cross(x: Array, g: Array, cross: Array) -> None:
    """`Σ |x_s − x_t| · (g_t − g_s)` for t < s: no matrix product, since the absolute value is inside."""
    T, size = x.shape
    for t in range(T):
        for s in range(t + 1, T):
            total = 0.0
            for k in range(size):
                total += abs(x[s, k] - x[t, k]) * (g[t, k] - g[s, k])
            cross[t, s] += total
