"""Second moments of each trajectory along an order: all that a fit needs of the data, both ways round, in one pass.

With `S_j = Σ_i x_i x_iᵀ`, `C_j = Σ_i x_i x_{i+1}ᵀ`, the sum and both ends of trajectory j, a step `x' ~ N(F x + c, Q)`, P = Q⁻¹, leaves

    Σ_i |x_{i+1} − F x_i − c|²_P = ⟨P, S_j − x₀x₀ᵀ⟩ + ⟨Fᵀ P F, S_j − x_T x_Tᵀ⟩ − 2 ⟨Fᵀ P, C_j⟩ + terms in the sums,

and the step backwards the same with C_jᵀ and the ends exchanged. So do the moments of the regression, their sum, and what leaving
a trajectory out changes.

Limits: steps along `A x + c` that are all dt long. Increments are differences of these sums, which costs as many digits as the states are
larger than their steps: where that, times the condition number, is too many there is no answer, and the rows are gone through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import array_api_compat
import numpy as np

from retrace_sde.data.blocks import BLOCK_ELEMENTS, Array, Data, Order, like, pick, to_numpy
from retrace_sde.estimate.euler import Euler, density_constant
from retrace_sde.estimate.moments import Moments
from retrace_sde.process.drift import Affine, Drift, is_linear

KEPT = 0.4
"""Numbers that may be kept of a trajectory, relative to those it has."""

LOST = 1e6
"""Squared states relative to squared steps, times the condition number, up to which ten digits are left."""


class Piece(NamedTuple):
    """S (b, d, d), C (b, d, d), sums (b, d), first and last states (b, d) of some trajectories, where their data are."""

    every: Any
    across: Any
    sums: Any
    first: Any
    last: Any


class Totals(NamedTuple):
    """The same summed over trajectories, in numpy; `first` and `last` are second moments, `ends` the sums of both."""

    every: Array
    across: Array
    sums: Array
    first: Array
    last: Array
    ends: Array

    def __add__(self, other: tuple[Any, ...]) -> Totals:
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))


def of_piece(piece: Data, order: Order) -> Piece:
    """The second moments of some trajectories."""
    x = piece.block(slice(None), order)[0]
    xp = array_api_compat.array_namespace(x)
    turned = xp.permute_dims(x, (0, 2, 1))
    across = turned[:, :, :-1] @ x[:, 1:, :]
    # Copies: a view would keep the whole block.
    first, last = (xp.asarray(x[:, k, :], copy=True) for k in (0, -1))
    return Piece(turned @ x, across, xp.sum(x, axis=1), first, last)


def _totals(piece: Piece) -> Totals:
    xp = array_api_compat.array_namespace(piece.every)
    first, last = piece.first, piece.last
    ends = xp.stack([xp.sum(first, axis=0), xp.sum(last, axis=0)])
    summed = [xp.sum(each, axis=0) for each in piece[:3]]
    return Totals(*(to_numpy(each) for each in (*summed, first.T @ first, last.T @ last, ends)))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Second moments of every trajectory along an order, block by block, and of all together.

    Blocks stand as the data are stored: `rows` says where the trajectory at each place is among them; None: they stand in their places.
    """

    pieces: list[Piece]
    totals: Totals
    dt: float
    drift: Drift
    n: int
    T: int
    rows: Order | None = None

    @classmethod
    def of(cls, data: Data, order: Order, dt: float, drift: Drift) -> Self | None:
        """Of a shared order; None where there is more to know than these, or they would be too many to keep."""
        n, T, d = data.shape
        whole = data.covariates is None and data.lengths is None and order.ndim == 1
        if data.lazy or not (whole and is_linear(drift) and 2 * d <= KEPT * T):
            return None
        pieces, totals = [], None
        for piece in data.map_pieces(of_piece, order):
            pieces.append(piece)
            summed = _totals(piece)
            totals = summed if totals is None else totals + summed
        assert totals is not None  # there is a trajectory
        rows = data.values.rows if data.stored else None
        return cls(pieces, totals, dt, drift, n, T, rows)

    @property
    def affine(self) -> bool:
        return isinstance(self.drift, Affine)

    def moments(self) -> Moments | None:
        """Moments of the regression; None where too many digits are lost."""
        t, d = self.totals, len(self.totals.sums)
        before, after = t.every - t.last, t.every - t.first
        moved = before + after - t.across - t.across.T
        squares = np.diag(before), np.diag(moved)
        if not all(np.all(np.isfinite(each) & (each > 0)) for each in squares):
            return None
        sums = t.sums - t.ends[1], t.sums - t.ends[0]
        count = float(self.n * (self.T - 1))
        gram = _regression_gram(before, t.across, moved, sums, count, self.dt, affine=self.affine)
        limit = LOST / float((squares[0] / squares[1]).max())
        return Moments.from_gram(gram, count, d + self.affine, limit=limit)

    def log_likelihoods(self, step: Euler, *, back: bool = False) -> Array:
        """`Σ_i log p(x_{i+1} | x_i)` of each trajectory, (n,); `back`: along the reverse of the order."""
        d = len(step.diffusion)
        W = step.whitening
        P, F = W.T @ W, np.eye(d) + step.coefficients[:, :d] * step.dt
        c = step.coefficients[:, d] * step.dt if self.affine else np.zeros(d)
        of_before, mixed = F.T @ P @ F, F.T @ P
        mixed = mixed.T if back else mixed
        pull, steps = P @ c, self.T - 1
        constant = 0.5 * steps * float(c @ pull) + steps * density_constant(W)

        def of(piece: Piece) -> Array:
            xp = array_api_compat.array_namespace(piece.every)
            entry, leave = (piece.last, piece.first) if back else (piece.first, piece.last)

            def within(matrices: Any, weights: Array) -> Any:
                flat = xp.reshape(matrices, (matrices.shape[0], -1))
                return flat @ like(weights.ravel(), flat)

            def squares(x: Any, weights: Array) -> Any:
                return xp.sum((x @ like(weights, x)) * x, axis=1)

            ahead = (piece.sums - entry) - (piece.sums - leave) @ like(F.T, entry)
            found = (
                within(piece.every, P + of_before)
                - 2 * within(piece.across, mixed)
                - squares(entry, P)
                - squares(leave, of_before)
                - 2 * ahead @ like(pull, ahead)
            )
            return to_numpy(found)

        found = -0.5 * np.concatenate([of(piece) for piece in self.pieces]) - constant
        return found if self.rows is None else found[self.rows]

    def grams(self, rows: Order) -> Iterator[Array]:
        """Gram matrices (m, p + d, p + d) of the regression rows of some trajectories, some at a time, which stay in cache."""
        rows = rows if self.rows is None else self.rows[rows]
        ends = np.cumsum([piece.first.shape[0] for piece in self.pieces])
        where = np.searchsorted(ends, rows, side="right")
        d = len(self.totals.sums)
        size = max(1, BLOCK_ELEMENTS // (8 * d * d))
        for begin in range(0, len(rows), size):
            some, at = rows[begin : begin + size], where[begin : begin + size]
            parts = []
            for k in np.unique(at):
                piece = self.pieces[k]
                here = some[at == k] - (ends[k] - piece.first.shape[0])
                parts.append([to_numpy(pick(each, here, 0)) for each in piece])
            yield self._grams(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def _grams(self, S: Array, C: Array, sums: Array, first: Array, last: Array) -> Array:
        before = S - last[:, :, None] * last[:, None, :]
        after = S - first[:, :, None] * first[:, None, :]
        moved = before + after - C - C.transpose(0, 2, 1)
        count, both = float(self.T - 1), (sums - last, sums - first)
        return _regression_gram(before, C, moved, both, count, self.dt, affine=self.affine)


def _regression_gram(
    before: Array,
    across: Array,
    moved: Array,
    sums: tuple[Array, Array],
    count: float,
    dt: float,
    *,
    affine: bool,
) -> Array:
    """`Σ z zᵀ` (…, p + d, p + d) of rows z = (φ √Δt, Δx / √Δt) from sums over steps: x xᵀ, x x'ᵀ, Δx Δxᵀ, and of x and x'."""
    d = before.shape[-1]
    p = d + affine
    gram = np.empty((*before.shape[:-2], p + d, p + d))
    gram[..., :d, :d] = before * dt
    gram[..., :d, p:] = across - before
    gram[..., p:, p:] = moved / dt
    if affine:
        gram[..., :d, d] = sums[0] * dt
        gram[..., d, :d] = sums[0] * dt
        gram[..., d, d] = count * dt
        gram[..., d, p:] = sums[1] - sums[0]
    gram[..., p:, :p] = np.swapaxes(gram[..., :p, p:], -1, -2)
    return gram
