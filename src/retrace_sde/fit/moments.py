"""Sufficient statistics of an order: all that the estimators need to know of the data.

With regressors φ_i = φ(x_i) and increments Δx_i over a gap Δt_i, Euler's step `Δx_i = Θ φ_i Δt_i + ε_i`,
`ε_i ~ N(0, H Δt_i)` (Eq. euler_maruyama) is ordinary regression of Δx_i/√Δt_i on φ_i √Δt_i. Stack the two
in one row z_i. The statistic is the triangular factor R of `Σ z_i z_iᵀ = Rᵀ R`:

    R = [[R_φφ, R_φΔ],      Θ̂ = (R_φφ⁻¹ R_φΔ)ᵀ,      Ĥ = R_ΔΔᵀ R_ΔΔ / N.
         [  0 , R_ΔΔ]]

R comes from a Cholesky of the Gram matrix where that is well conditioned. With growing data (spread 10⁷)
it is not, and a difference of Gram blocks would leave no correct digit of H: then the rows are multiplied by
the inverse of a rough R first, whose product with the factor of what remains is R (shifted Cholesky QR). Where
even that fails the rows are factored themselves, by blocks (TSQR).

Averaged over a posterior of orders, `E Σ_i z_i z_iᵀ = Σ_ab N[a, b] z_ab z_abᵀ` with `z_ab = (φ_a √Δt, (x_b − x_a)/√Δt)`: the frequencies
N, how often b followed a, and what came first and last are all that is needed (`statistics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, like, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift

CONDITION_LIMIT = 1e8
"""Above this condition number of the (scaled) Gram matrix the rows are factored instead."""


@dataclass(frozen=True, eq=False)
class Moments:
    """The factor R (p + d, p + d), the number of transitions N and the number of regressors p.

    `from_rows`: R needed further passes, because the Gram matrix is ill conditioned.
    """

    factor: Array
    count: float
    n_features: int
    from_rows: bool = False

    @classmethod
    def from_weights(cls, gram: Array, count: float, n_features: int) -> Moments:
        """R of a weighted Gram matrix, where no rows are left to factor: eigenvalues are floored instead."""
        found = cls.from_gram(gram, count, n_features)
        if found is not None:
            return found
        return cls(_rough_factor(gram), count, n_features)

    @classmethod
    def from_gram(
        cls, gram: Array, count: float, n_features: int, *, limit: float | None = None
    ) -> Moments | None:
        """R by Cholesky, or None where the Gram matrix is too ill conditioned for it."""
        scale = np.sqrt(np.diag(gram))
        if not np.all(scale > 0) or not np.all(np.isfinite(scale)):
            return None
        unit = gram / np.outer(scale, scale)
        eigenvalues = np.linalg.eigvalsh(unit)
        if eigenvalues[0] * (CONDITION_LIMIT if limit is None else limit) < eigenvalues[-1]:
            return None
        return cls(np.linalg.cholesky(unit).T * scale, count, n_features)

    def transformed(self, change: Array) -> Moments:
        """The moments of the rows `change @ z`, without a pass through the data; for well-conditioned ones."""
        return Moments(positive_factor(self.factor @ change.T), self.count, self.n_features)

    @property
    def blocks(self) -> tuple[Array, Array, Array]:
        """R_φφ, R_φΔ and R_ΔΔ."""
        R, p = self.factor, self.n_features
        return R[:p, :p], R[:p, p:], R[p:, p:]

    @property
    def condition(self) -> float:
        """Condition number of the regressors, each scaled to unit length (Theorem 3 asks that it be finite)."""
        R = self.blocks[0]
        lengths = np.linalg.norm(R, axis=0)
        return float(np.linalg.cond(R / np.where(lengths > 0, lengths, 1)))


def moments(data: Data, order: Indices, dt: float | Array | Gaps, drift: Drift) -> Moments:
    """Moments of the panel in the given order; one pass, or two where the first is ill conditioned.

    `dt` is a number, or the gaps along the order: (T − 1,), or (n, T − 1).
    """
    d, gaps = data.shape[2], Gaps.of(dt, data.lengths)
    count = float(data.lengths.steps.total)

    def gram_after(inverse: Array | None) -> Array:
        return data.sum_pieces(partial(_gram, drift=drift, inverse=inverse), order, gaps)

    gram = gram_after(None)
    p = len(gram) - d
    found = Moments.from_gram(gram, count, p)
    if found is not None:
        return found
    rough = _rough_factor(gram)
    for _ in range(2):
        rest = gram_after(solve_triangular(rough, np.eye(p + d)))
        found = Moments.from_gram(rest, count, p)
        if found is not None:
            return Moments(found.factor @ rough, count, p, from_rows=True)
        rough = _rough_factor(rest) @ rough
    factors = data.map_pieces(partial(_factor, drift=drift), order, gaps)
    return Moments(positive_factor(reduce(_stack_factors, factors)), count, p, from_rows=True)


def _rows(piece: Data, order: Indices, gaps: Gaps, drift: Drift) -> Any:
    z = regression_rows(piece, order, gaps, drift)
    return array_api_compat.array_namespace(z).reshape(z, (-1, z.shape[-1]))


def _gram(piece: Data, order: Indices, gaps: Gaps, *, drift: Drift, inverse: Array | None) -> Array:
    z = _rows(piece, order, gaps, drift)
    if inverse is not None:
        z = z @ like(inverse, z)
    return to_numpy(z.T @ z)


def _factor(piece: Data, order: Indices, gaps: Gaps, *, drift: Drift) -> Array:
    return triangular_factor(to_numpy(_rows(piece, order, gaps, drift)))


def _rough_factor(gram: Array) -> Array:
    """R of a Gram matrix whose small eigenvalues, lost to rounding, are floored."""
    scale = np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    floored = np.sqrt(np.maximum(values, values[-1] * 1e-14))
    return positive_factor((floored[:, None] * vectors.T) * scale)


def _stack_factors(above: Array, below: Array) -> Array:
    return triangular_factor(np.concatenate([above, below]))


def positive_factor(rows: Array) -> Array:
    """R of `rows = Q R` with a positive diagonal, which makes it the Cholesky factor of rowsᵀ rows."""
    R = triangular_factor(rows)
    signs = np.where(np.diag(R) < 0, -1.0, 1.0)
    return signs[:, None] * R


def triangular_factor(rows: Array) -> Array:
    """R of `rows = Q R`, without Q."""
    return np.linalg.qr(rows, mode="r")  # type: ignore[return-value]


def regression_rows(piece: Data, order: Indices, gaps: Gaps, drift: Drift) -> Any:
    """Rows z = (φ √Δt, Δx / √Δt) of a piece's trajectories along an order, zero where a step does not exist."""
    (x, u), live = piece.block(slice(None), order), piece.live
    xp = array_api_compat.array_namespace(x)
    dt = gaps.factor
    root = like(dt, x) ** 0.5 if isinstance(dt, np.ndarray) else dt**0.5
    phi = drift.features(x[:, :-1, :], None if u is None else u[:, :-1, :])
    z = xp.concat([phi * root, (x[:, 1:, :] - x[:, :-1, :]) / root], axis=-1)
    return z if live is None else z * live


def trajectory_grams(piece: Data, order: Indices, gaps: Gaps, *, drift: Drift) -> Array:
    """`Σ z zᵀ` of the rows of each trajectory, (n, p + d, p + d)."""
    z = regression_rows(piece, order, gaps, drift)
    return to_numpy(array_api_compat.array_namespace(z).matrix_transpose(z) @ z)


class Frequencies(NamedTuple):
    """Of a block of m trajectories: N[j, a, b], b right after a, (m, T, T); first and last, (m, T)."""

    pairs: Any
    first: Any
    last: Any


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected sufficient statistics: Gram of (φ √Δt, Δx/√Δt), and moments of first and last states."""

    gram: Array
    first: Array
    first_square: Array
    last: Array
    last_square: Array

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    def moments(self, count: float) -> Moments:
        """The same, of `count` steps, as the estimators know them."""
        return Moments.from_weights(self.gram, count, len(self.gram) - len(self.first))

    def reversed(self, turn: Array) -> Statistics:
        """Those of the reversed orders, for a drift whose features of x + Δx are `turn` applied to (φ, Δx)."""
        return Statistics(
            turn @ self.gram @ turn.T, self.last, self.last_square, self.first, self.first_square
        )

    def scaled(self, factor: float) -> Statistics:
        return Statistics(*(getattr(self, name) * factor for name in self.__dataclass_fields__))


def statistics(
    x: Any, u: Any | None, frequencies: Frequencies, dt: float, drift: Drift
) -> Statistics:
    """Statistics of a block of trajectories x (m, T, d), u from the frequencies of its pairs and ends.

    Increments are formed about each trajectory's mean, so that nothing cancels.
    """
    xp = array_api_compat.array_namespace(x)
    (N, first, last), d = frequencies, x.shape[2]
    phi = drift.features(x, u)
    p = phi.shape[2]
    leaves, enters = xp.reshape(xp.sum(N, axis=2), (-1, 1)), xp.reshape(xp.sum(N, axis=1), (-1, 1))
    y = x - xp.mean(x, axis=1, keepdims=True)
    after = xp.reshape(N @ y, (-1, d))
    y, phi, x = xp.reshape(y, (-1, d)), xp.reshape(phi, (-1, p)), xp.reshape(x, (-1, d))
    both = to_numpy(y.T @ after)
    gram = np.empty((p + d, p + d))
    gram[:p, :p] = to_numpy((phi * leaves).T @ phi) * dt
    gram[:p, p:] = to_numpy(phi.T @ (after - leaves * y))
    gram[p:, :p] = gram[:p, p:].T
    gram[p:, p:] = (to_numpy((y * (leaves + enters)).T @ y) - both - both.T) / dt
    ends = []
    for weight in (first, last):
        weighted = x * xp.reshape(weight, (-1, 1))
        ends += [to_numpy(xp.sum(weighted, axis=0)), to_numpy(weighted.T @ x)]
    return Statistics(gram, *ends)
