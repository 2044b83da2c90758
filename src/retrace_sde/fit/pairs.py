"""Second moments of each trajectory along an order: all that a fit needs of the data, in both directions, in one pass.

With `S_j = Σ_i x_i x_iᵀ`, `C_j = Σ_i x_i x_{i+1}ᵀ`, the sum and both ends of trajectory j, a step `x' ~ N(F x + c, Q)`, P = Q⁻¹, leaves

    Σ_i |x_{i+1} − F x_i − c|²_P = ⟨P, S_j − x₀x₀ᵀ⟩ + ⟨Fᵀ P F, S_j − x_T x_Tᵀ⟩ − 2 ⟨Fᵀ P, C_j⟩ + terms in the sums,

and the step backwards the same with C_jᵀ and the ends exchanged. So do the moments of the regression, their sum, and what leaving
a trajectory out changes.

Of an array that is read where it is they are those of the values as stored, and what is computed of them is moved to standard units: a
pass that subtracts and divides first takes a seventh longer.

Limits: steps along `A x + c` that are all dt long. Increments are differences of these sums, which costs as many digits as the states are
larger than their steps: where that, times the condition number, is too many there is no answer, and the rows are gone through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import array_api_compat
import numpy as np

from retrace_sde.fit.euler import Euler, density_constant
from retrace_sde.fit.moments import Moments
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.view import InMemoryView, StandardUnits
from retrace_sde.panel.blocks import BLOCK_ELEMENTS, Data, like, pick, to_numpy
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import Affine, Drift, is_linear

MAX_KEPT_SHARE = 0.4
"""Second moments kept of a trajectory, at most, relative to the number of its values."""

MAX_CANCELLATION = 1e6
"""Ratio of squared states to squared steps, times the condition number, up to which ten digits are left."""


MAX_STORED_LEVEL = 10.0
"""Mean of a variable, in its standard deviations, up to which moments are of the values as stored: two of their sixteen digits are lost then."""


class Piece(NamedTuple):
    """S (b, d, d), C (b, d, d), sums (b, d), first and last states (b, d) of some trajectories, where their data are."""

    every: Any
    across: Any
    sums: Any
    first: Any
    last: Any


class Sums(NamedTuple):
    """The number of some steps, S, C (…, d, d) and sums (…, d) in numpy, first and last states (…, d) and the squares of these."""

    steps: float
    every: Array
    across: Array
    sums: Array
    first: Array
    last: Array
    first_square: Array
    last_square: Array


def of_piece(piece: Data, order: Indices) -> Piece:
    """The second moments of some trajectories."""
    x = piece.block(slice(None), order)[0]
    xp = array_api_compat.array_namespace(x)
    turned = xp.permute_dims(x, (0, 2, 1))
    across = turned[:, :, :-1] @ x[:, 1:, :]
    one = like(np.ones(x.shape[1]), x)
    # Copies: a view would keep the whole block.
    first, last = (xp.asarray(x[:, k, :], copy=True) for k in (0, -1))
    return Piece(turned @ x, across, turned @ one, first, last)


class _Units(NamedTuple):
    """Standard units (x − m)/s of d variables, for moments of x."""

    centre: Array
    scale: Array

    def ends(self, raw: Piece, T: int) -> Piece:
        """Sums over T states, first and last states of (x − m)/s."""
        m, s = (like(each, raw.sums) for each in self)
        return Piece(None, None, (raw.sums - T * m) / s, (raw.first - m) / s, (raw.last - m) / s)

    def squares(self, of: Piece, n: float, T: int) -> tuple[Array, Array]:
        """S and C of (x − m)/s from S and C of x and the ends of (x − m)/s; all of them sums over n trajectories, in numpy."""
        m, s = self
        # of x − m: what the sums of squares have of the mean
        sums, first, last = (each * s for each in of[2:])
        unit = np.outer(s, s)
        square = np.multiply.outer(m, m)
        left, right = sums[..., :, None] * m, m[:, None] * sums[..., None, :]
        every = of.every - left - right - n * T * square
        left = left - last[..., :, None] * m
        right = right - m[:, None] * first[..., None, :]
        return every / unit, (of.across - left - right - n * (T - 1) * square) / unit

    def weighed(self, W: Array, V: Array, ends: Piece, T: int) -> tuple[Array, Array, Any]:
        """Weights of S and of C of x that weigh as W and V do those of (x − m)/s, and what each trajectory's are too large by then."""
        m, s = self
        unit = np.outer(s, s)
        W, V = W / unit, V / unit
        sums, first, last = (each * like(s, each) for each in ends[2:])

        def along(x: Any, weights: Array) -> Any:
            return x @ like(weights, x)

        too_large = along(sums, (W + W.T) @ m - 2 * (V @ m + V.T @ m))
        too_large = too_large + 2 * (along(last, V @ m) + along(first, V.T @ m))
        constant = T * float(m @ W @ m) - 2 * (T - 1) * float(m @ V @ m)
        return W, V, too_large + constant


def _totals(pieces: list[Piece], ends: Piece, count: float, n: int, units: _Units | None) -> Sums:
    """Of all trajectories together."""
    xp = array_api_compat.array_namespace(ends.first)
    every, across = (sum(to_numpy(xp.sum(each[k], axis=0)) for each in pieces) for k in (0, 1))
    small = [xp.sum(each, axis=0) for each in ends[2:]]
    small += [each.T @ each for each in ends[3:]]
    if units is not None:
        summed = Piece(every, across, *map(to_numpy, small[:3]))
        every, across = units.squares(summed, n, int(count) // n + 1)
    return Sums(count, np.asarray(every), np.asarray(across), *map(to_numpy, small))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Second moments of every trajectory along an order, block by block, and of all together.

    Blocks stand as the data are stored: `rows` says where the trajectory at each place is among them; None: they stand in their places.
    `ends` has sums, first and last states of all trajectories in one, in standard units; of the blocks none is where there are `units`.
    """

    pieces: list[Piece]
    ends: Piece
    totals: Sums
    dt: float
    drift: Drift
    n: int
    T: int
    rows: Indices | None = None
    units: _Units | None = None

    @classmethod
    def of(cls, data: Data, order: Indices, dt: float, drift: Drift) -> Self | None:
        """Of a shared order; None where these moments are not sufficient, or too many to keep."""
        n, T, d = data.shape
        whole = data.covariates is None and not data.lengths.ragged and Order.of(order).shared
        if data.lazy or not (whole and is_linear(drift) and 2 * d <= MAX_KEPT_SHARE * T):
            return None
        stored, units = _as_stored(data)
        pieces = list(stored.map_pieces(of_piece, order))
        xp = array_api_compat.array_namespace(pieces[0].every)
        ends = Piece(None, None, *(xp.concat([each[k] for each in pieces]) for k in (2, 3, 4)))
        ends = ends if units is None else units.ends(ends, T)
        rows = data.values.rows if data.viewed else None
        totals = _totals(pieces, ends, float(n * (T - 1)), n, units)
        return cls(pieces, ends, totals, dt, drift, n, T, rows, units)

    @property
    def affine(self) -> bool:
        return isinstance(self.drift, Affine)

    def moments(self) -> Moments | None:
        """Moments of the regression; None where too many digits are lost."""
        d, gram = len(self.totals.sums), self._gram(self.totals)
        p = d + self.affine
        squares = np.diag(gram)[:d] / self.dt, np.diag(gram)[p:] * self.dt
        if not all(np.all(np.isfinite(each) & (each > 0)) for each in squares):
            return None
        limit = MAX_CANCELLATION / float((squares[0] / squares[1]).max())
        return Moments.from_gram(gram, self.totals.steps, p, limit=limit)

    def log_likelihoods(self, there: Euler, here: Euler) -> tuple[Array, Array]:
        """`Σ_i log p(x_{i+1} | x_i)` of each trajectory, (n,), and by another step the same along the reverse of the order."""
        steps = _Squares.of(there, self.affine), _Squares.of(here, self.affine)
        weights = [
            (each.P + each.FPF, turned)
            for each, turned in zip(steps, (steps[0].FP, steps[1].FP.T), strict=True)
        ]
        beyond: list[Any] = [0.0, 0.0]
        if self.units is not None:
            moved = [self.units.weighed(W, V, self.ends, self.T) for W, V in weights]
            weights, beyond = [each[:2] for each in moved], [to_numpy(each[2]) for each in moved]
        of_every, of_across = (
            np.stack([each[k].ravel() for each in weights], axis=1) for k in (0, 1)
        )

        def of(piece: Piece) -> Array:
            xp = array_api_compat.array_namespace(piece.every)

            def within(matrices: Any, weights: Array) -> Any:
                flat = xp.reshape(matrices, (matrices.shape[0], -1))
                return flat @ like(weights, flat)

            return to_numpy(within(piece.every, of_every) - 2 * within(piece.across, of_across))

        ends = self.ends.first, self.ends.last
        rest = [
            to_numpy(each.ends(self.ends.sums, entry, leave)) + more
            for each, entry, leave, more in zip(steps, ends, ends[::-1], beyond, strict=True)
        ]
        found = np.concatenate([of(piece) for piece in self.pieces]) - np.stack(rest, axis=1)
        found *= -0.5
        found -= (self.T - 1) * np.array([each.constant for each in steps])
        found = found if self.rows is None else found[self.rows]
        return found[:, 0], found[:, 1]

    def grams(self, rows: Indices) -> Iterator[Array]:
        """Gram matrices (m, p + d, p + d) of the regression rows of some trajectories, some at a time, which stay in cache."""
        rows = np.sort(rows if self.rows is None else self.rows[rows])  # neighbours as stored
        ends = np.cumsum([piece.first.shape[0] for piece in self.pieces])
        where = np.searchsorted(ends, rows, side="right")
        d = len(self.totals.sums)
        here = array_api_compat.is_numpy_array(self.pieces[0].every)
        size = max(1, BLOCK_ELEMENTS // (8 * d * d)) if here else len(rows)
        for begin in range(0, len(rows), size):
            some, at = rows[begin : begin + size], where[begin : begin + size]
            parts = []
            for k in np.unique(at):
                piece = self.pieces[k]
                here = some[at == k] - (ends[k] - piece.first.shape[0])
                parts.append([to_numpy(pick(each, here, 0)) for each in piece])
            found = [np.concatenate(each) for each in zip(*parts, strict=True)]
            if self.units is not None:
                ends_of = self.units.ends(Piece(*found), self.T)
                one = ends_of._replace(every=found[0], across=found[1])
                found = [*self.units.squares(one, 1.0, self.T), *ends_of[2:]]
            squares = (x[:, :, None] * x[:, None, :] for x in found[3:])
            yield self._gram(Sums(float(self.T - 1), *found, *squares))

    def _gram(self, of: Sums) -> Array:
        """`Σ z zᵀ` (…, p + d, p + d) of the rows z = (φ √Δt, Δx / √Δt)."""
        count, every, across, sums, first, last, first_square, last_square = of
        d, dt, before = across.shape[-1], self.dt, every - last_square
        p = d + self.affine
        gram = np.empty((*across.shape[:-2], p + d, p + d))
        gram[..., :d, :d] = before * dt
        gram[..., :d, p:] = across - before
        gram[..., p:, p:] = (
            before + (every - first_square) - across - np.swapaxes(across, -1, -2)
        ) / dt
        if self.affine:
            gram[..., :d, d] = gram[..., d, :d] = (sums - last) * dt
            gram[..., d, d] = count * dt
            gram[..., d, p:] = (sums - first) - (sums - last)
        gram[..., p:, :p] = np.swapaxes(gram[..., :p, p:], -1, -2)
        return gram


def _as_stored(data: Data) -> tuple[Data, _Units | None]:
    """The data as they are stored and their units, where values are read in other ones; else the data."""
    view = data.values
    if not isinstance(view, InMemoryView) or view.units.kept is not None:
        return data, None
    centre, scale = view.units.centre, view.units.scale
    if centre is None or scale is None or (np.abs(centre) > MAX_STORED_LEVEL * scale).any():
        return data, None
    return replace(data, values=replace(view, units=StandardUnits())), _Units(centre, scale)


class _Squares(NamedTuple):
    """A step `x' ~ N(F x + c, P⁻¹)` as what weighs the second moments of its squares; `constant` is each step's."""

    P: Array
    F: Array
    FP: Array
    FPF: Array
    pull: Array
    constant: float

    @classmethod
    def of(cls, step: Euler, affine: bool) -> _Squares:
        d, W = len(step.diffusion), step.whitening
        P, F = W.T @ W, np.eye(d) + step.coefficients[:, :d] * step.dt
        c = step.coefficients[:, d] * step.dt if affine else np.zeros(d)
        constant = 0.5 * float(c @ P @ c) + density_constant(W)
        return cls(P, F, F.T @ P, F.T @ P @ F, P @ c, constant)

    def ends(self, sums: Any, entry: Any, leave: Any) -> Any:
        """What trajectories' squares lose by having no step to their first state and none from their last, and to c, (b,)."""
        xp = array_api_compat.array_namespace(sums)

        def squares(x: Any, weights: Array) -> Any:
            return xp.sum((x @ like(weights, x)) * x, axis=1)

        ahead = (sums - entry) - (sums - leave) @ like(self.F.T, entry)
        return (
            squares(entry, self.P) + squares(leave, self.FPF) + 2 * ahead @ like(self.pull, ahead)
        )
