"""Second moments of the steps, slice by slice: all that the regressions of step models need of panels, in one pass over them.

A row (φ, Δ) holds a step's regressors and its change. Every weighting of the steps by 1/v, with or without free offsets, is a sum of the
slices' moments, and for linear regressors the reverse is a linear map of the same moments: the panels themselves are read once.
Moments are those of differences Δ, not of the states on both sides: the steps of smooth courses would be lost to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np

from retrace_sde.evidence.closed_form.panels import Form, Panels, variances
from retrace_sde.fit.start_law import SMALLEST_GROUP, second_group
from retrace_sde.io.arrays import Array, Mask

ROWS_AT_ONCE = 1 << 16
"""Numbers of rows that are summed at a time: they stay in the processor's cache."""

BlockMap = tuple[tuple[int, ...], ...]

AHEAD: dict[int, BlockMap] = {
    1: ((1, 0), (0, 1)),
    2: ((1, 0, 0), (1, -1, 0), (0, 0, 1)),
}
BACK: dict[int, BlockMap] = {
    1: ((1, 1), (0, -1)),
    2: ((1, 0, 0), (1, 0, 1), (0, -1, 0)),
}
"""Rows (φ, Δ) as combinations of (x_t, Δ_t), with two lags of (x_t, Δ_{t−1}, Δ_t): as they stand, and in reverse."""


@dataclass(frozen=True, eq=False)
class _Slices:
    """Rows of B panels, summed over trajectories. What needs the slices one by one costs q² numbers for each: it is summed on demand."""

    panels: Panels
    form: Form
    rows: Callable[[Array, Form], Array]

    @cached_property
    def pooled(self) -> tuple[Array, Array]:
        """The slices' means (B, S, q), and the sum of squares about them, (B, q, q)."""
        parts = []
        total: Array | float = 0.0
        for _, mean, z in self._centred():
            flat = z.reshape(len(z), -1, z.shape[3])
            parts.append(mean)
            total = total + flat.transpose(0, 2, 1) @ flat
        return np.concatenate(parts, axis=1), np.asarray(total)

    @cached_property
    def inner(self) -> Array:
        """Each slice's own sum of squares, (B, S, q·q)."""
        B, _, T, d = self.panels.x.shape
        q = self.form.regressors(d) + d
        found = np.empty((B, T - self.form.lags, q, q))
        for some, _, z in self._centred():
            z = z.transpose(0, 2, 1, 3)
            np.matmul(z.transpose(0, 1, 3, 2), z, out=found[:, some])
        return found.reshape(B, T - self.form.lags, q * q)

    def _centred(self) -> Iterator[tuple[slice, Array, Array]]:
        """Some slices at a time: their means, and the rows (B, n, s, q) about them, zero where there is no step."""
        panels, lags = self.panels, self.form.lags
        B, n, T, d = panels.x.shape
        ragged, live = panels.visits.ragged, panels.live(lags)
        count = np.maximum(live.sum(axis=0), 1)[:, None]
        size = max(1, ROWS_AT_ONCE // (B * n * (self.form.regressors(d) + d)))
        for begin in range(0, T - lags, size):
            some = slice(begin, min(begin + size, T - lags))
            z = self.rows(panels.x[:, :, some.start : some.stop + lags], self.form)
            inside = live[None, :, some, None]
            if ragged:
                z *= inside
            mean = z.sum(axis=1) / count[some]
            z -= mean[:, None]
            if ragged:
                z *= inside
            yield some, mean, z


@dataclass(frozen=True, eq=False)
class _MemorySlices(_Slices):
    """Rows (x_t, Δ_{t−1}, Δ_t), from those of Markov steps: all but `Σ Δ_{t−1} Δ_tᵀ` is theirs, less a step at one end."""

    markov: _Slices

    @cached_property
    def pooled(self) -> tuple[Array, Array]:
        """As of all rows."""
        x, (rows, G) = self.panels.x, self.markov.pooled
        B, _, T, d = x.shape
        mean, step = rows[..., :d], rows[..., d:]
        means = np.concatenate([mean[:, 1:], step[:, :-1], step[:, 1:]], axis=2)
        first, last = (self._row(k, rows) for k in (0, T - 2))
        without_first, without_last = (G - z.transpose(0, 2, 1) @ z for z in (first, last))
        found = np.empty((B, 3 * d, 3 * d))
        now, before, after = (slice(k * d, (k + 1) * d) for k in range(3))
        found[:, now, now] = without_first[:, :d, :d]
        found[:, now, after] = without_first[:, :d, d:]
        found[:, after, after] = without_first[:, d:, d:]
        found[:, before, before] = without_last[:, d:, d:]
        found[:, now, before] = without_last[:, :d, d:] + without_last[:, d:, d:]
        found[:, before, after] = self._across(step)
        for one, two in ((now, before), (now, after), (before, after)):
            found[:, two, one] = found[:, one, two].transpose(0, 2, 1)
        return means, found

    def _row(self, k: int, means: Array) -> Array:
        """(x, Δ) of one slice about its mean, (B, n, 2d)."""
        x = self.panels.x
        z = np.concatenate([x[:, :, k], x[:, :, k + 1] - x[:, :, k]], axis=2)
        found: Array = z - means[:, None, k]
        return found

    def _across(self, means: Array) -> Array:
        """`Σ Δ_{t−1} Δ_tᵀ` about the slices' means, some slices at a time."""
        x = self.panels.x
        B, n, T, d = x.shape
        size = max(1, ROWS_AT_ONCE // (B * n * d))
        total = np.zeros((B, d, d))
        for begin in range(0, T - 2, size):
            end = min(begin + size, T - 2)
            step = np.diff(x[:, :, begin : end + 2], axis=2) - means[:, None, begin : end + 1]
            one, two = (each.reshape(B, -1, d) for each in (step[:, :, :-1], step[:, :, 1:]))
            total += one.transpose(0, 2, 1) @ two
        return total


@dataclass(frozen=True, eq=False)
class _Direction:
    """One direction of panels: slices of rows, of which its own are combinations, and whether it takes them from the last."""

    slices: _Slices
    blocks: BlockMap | None = None
    reverse: bool = False

    @property
    def mean(self) -> Array:
        """Of its rows, (B, S, q)."""
        return self._along(_combined(self.slices.pooled[0], self.blocks, 1))

    def inner(self, weights: Array | None) -> Array:
        """The sum of squares about the slices' means, steps weighted, (B, q, q)."""
        if weights is None:
            found = self.slices.pooled[1]
        else:
            found = (self._along(weights)[:, None] @ self.slices.inner).reshape(
                self.slices.pooled[1].shape
            )
        return _combined(found, self.blocks, 2)

    def quadratic(self, form: Array) -> Array:
        """`Σ_j zᵀ M z` of each slice, (B, S), for symmetric M (B, q, q); z its rows about the slices' means."""
        pulled = _combined(form, None if self.blocks is None else _transposed(self.blocks), 2)
        found = self.slices.inner @ pulled.reshape(len(form), -1, 1)
        return self._along(found[..., 0])

    def _along(self, values: Array) -> Array:
        return values[:, ::-1] if self.reverse else values


@dataclass(frozen=True, eq=False)
class StepSums:
    """B panels followed by their B reverses, as a regression of the steps sees them.

    `count` (S,) of the rows (φ, Δ) of each slice; their `mean` (2B, S, q).
    """

    panels: Panels
    form: Form
    ways: tuple[_Direction, _Direction]

    @classmethod
    def of(cls, panels: Panels, form: Form) -> StepSums:
        """Of the regressors of a form; computed once for panels and their reverse."""
        form = Form(form.lags, degree=form.degree)
        key = "sums", form
        if key not in panels.fits:
            other: StepSums | None = panels.reverse.fits.get(key)
            ways = _directions(panels, form) if other is None else (other.ways[1], other.ways[0])
            panels.fits[key] = cls(panels, form, ways)
        found: StepSums = panels.fits[key]
        return found

    @cached_property
    def count(self) -> Array:
        return np.asarray(self.panels.live(self.form.lags).sum(axis=0))

    @cached_property
    def mean(self) -> Array:
        return np.concatenate([each.mean for each in self.ways])

    def of_trajectories(self, weights: Array) -> Array:
        """Each trajectory's weighted mean of its rows, (2B, n, q); all are equally long."""
        found = []
        for each, w in zip(self._both, np.split(weights, 2), strict=True):
            parts = regressors(each.x, self.form), changes(each.x, self.form)
            sums = [(w[:, None, None] @ part)[:, :, 0] for part in parts]
            found.append(np.concatenate(sums, axis=2) / w.sum(axis=1)[:, None, None])
        return np.concatenate(found)

    @cached_property
    def trajectory_means(self) -> Array:
        """The same, steps weighted equally: of linear rows from the states' sums and both ends, for changes telescope."""
        lags, S = self.form.lags, self.mean.shape[1]
        if self.form.degree > 1:
            return self.of_trajectories(np.ones(self.mean.shape[:2]))
        x = self.panels.x
        total, found = x.sum(axis=2), []
        for way in (x, x[:, :, ::-1]):
            ends = [way[:, :, k] for k in range(lags)], [way[:, :, -1 - k] for k in range(lags)]
            past = [total - sum(ends[0][:k]) - sum(ends[1][: lags - k]) for k in range(lags)][::-1]
            found.append(np.concatenate([*past, ends[1][0] - ends[0][-1]], axis=2))
        means: Array = np.concatenate(found) / S
        return means

    def residuals(self, theta: Array, offsets: Array, own: Array) -> Array:
        """Δ − Θᵀφ less offsets (2B, S, d) and what is each trajectory's own (2B, n, d)."""
        found = []
        for each, some in zip(self._both, np.split(np.arange(len(theta)), 2), strict=True):
            e = changes(each.x, self.form) - regressors(each.x, self.form) @ theta[some, None]
            found.append(e - offsets[some, None] - own[some, :, None])
        return np.concatenate(found)

    @cached_property
    def first(self) -> Array:
        """First states (2B, n, lags·d)."""
        return np.concatenate([each.first(self.form.lags) for each in self._both])

    @cached_property
    def widths(self) -> Array:
        """Variances of what `first` holds; a panel and its reverse have the same."""
        panels = self.panels
        if self.form.lags > 1 or panels.visits.ragged:
            return np.tile(panels.widths(self.form.lags), (2, 1))
        # Of all slices: those that are regressors, and the last one.
        (B, n, T, d), last = panels.x.shape, panels.x[:, :, -1]
        squares = np.diagonal(self.about_zero(None)[:B, :d, :d], axis1=1, axis2=2)
        squares = (squares + np.einsum("bnd,bnd->bd", last, last)) / (n * T)
        mean = (self.total(None)[0][:B, :d] + last.sum(axis=1)) / (n * T)
        return np.tile(variances(squares, mean), (2, 1))

    @cached_property
    def groups(self) -> tuple[Mask, Mask] | None:
        """Who starts apart, whatever the noise of a form's steps; None of too few."""
        few = self.first.shape[1] < 2 * SMALLEST_GROUP
        return None if few else second_group(self.first, self.widths)

    @property
    def _both(self) -> tuple[Panels, Panels]:
        return self.panels, self.panels.reverse

    def about_slices(self, weights: Array | None) -> Array:
        """Second moments (2B, q, q) about the slices' means, steps weighted (2B, S); None: equally."""
        halves = (None, None) if weights is None else np.split(weights, 2)
        return np.concatenate([way.inner(w) for way, w in zip(self.ways, halves, strict=True)])

    def about_zero(self, weights: Array | None) -> Array:
        """Second moments (2B, q, q) of the rows as they are."""
        scaled = self.mean * self._weights(weights)[..., None]
        return self.about_slices(weights) + scaled.transpose(0, 2, 1) @ self.mean

    def quadratic(self, form: Array) -> Array:
        """`Σ_j zᵀ M z` of each slice, (2B, S), for symmetric M (2B, q, q); z the rows about the slices' means."""
        halves = np.split(form, 2)
        return np.concatenate([way.quadratic(M) for way, M in zip(self.ways, halves, strict=True)])

    def total(self, weights: Array | None) -> tuple[Array, Array]:
        """The weighted sum of the rows (2B, q), and that of their number (2B,)."""
        w = np.broadcast_to(self._weights(weights), self.mean.shape[:2])
        return np.einsum("bs,bsq->bq", w, self.mean), w.sum(axis=1)

    def _weights(self, weights: Array | None) -> Array:
        return self.count[None] if weights is None else weights * self.count


def regressors(x: Array, form: Form) -> Array:
    """φ (..., S, p) of panels x (..., T, d): the last state, the one before it, and products of the last state's variables."""
    T = x.shape[-2]
    last = x[..., form.lags - 1 : T - 1, :]
    parts = [last] if form.lags == 1 else [last, x[..., : T - 2, :]]
    parts += products(last, form.degree)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def products(last: Array, degree: int) -> list[Array]:
    """Products of two up to `degree` variables of a state (..., d)."""
    d = last.shape[-1]
    return [
        np.prod(last[..., each], axis=-1, keepdims=True)
        for k in range(2, degree + 1)
        for each in map(list, combinations_with_replacement(range(d), k))
    ]


def changes(x: Array, form: Form) -> Array:
    """Δ (..., S, d)."""
    return np.diff(x[..., form.lags - 1 :, :], axis=-2)


def _rows(x: Array, form: Form) -> Array:
    return np.concatenate([regressors(x, form), changes(x, form)], axis=-1)


def _changes(x: Array, form: Form) -> Array:
    """(x_t, Δ_t), or (x_t, Δ_{t−1}, Δ_t)."""
    step, S = np.diff(x, axis=-2), x.shape[-2] - form.lags
    moved = [step[..., k : k + S, :] for k in range(form.lags)]
    return np.concatenate([x[..., form.lags - 1 : -1, :], *moved], axis=-1)


def _directions(panels: Panels, form: Form) -> tuple[_Direction, _Direction]:
    """Of panels and of their reverse, from the same sums where rows are linear in the states."""
    if panels.visits.ragged or form.degree > 1:
        one, two = (_Direction(_Slices(each, form, _rows)) for each in (panels, panels.reverse))
        return one, two
    ahead, back = AHEAD[form.lags], BACK[form.lags]
    if form.lags == 1:
        slices = _Slices(panels, form, _changes)
        return _Direction(slices, ahead), _Direction(slices, back, True)
    markov = StepSums.of(panels, Form()).ways[0]
    stored = panels.reverse if markov.reverse else panels
    slices = _MemorySlices(stored, form, _changes, markov.slices)
    ways = _Direction(slices, ahead), _Direction(slices, back, True)
    return ways[::-1] if markov.reverse else ways


def _combined(values: Array, blocks: BlockMap | None, axes: int) -> Array:
    """Combinations of blocks of variables along the last axis, or both of the last two; coefficients −1, 0 and 1."""
    if blocks is None or blocks == AHEAD[1]:
        return values
    d = values.shape[-1] // len(blocks)
    of = [slice(k * d, (k + 1) * d) for k in range(len(blocks))]
    found = np.zeros(values.shape)
    for i, row in enumerate(blocks):
        for k, sign in enumerate(row):
            if sign:
                found[..., of[i]] += sign * values[..., of[k]]
    return found if axes == 1 else _combined(found.swapaxes(-1, -2), blocks, 1).swapaxes(-1, -2)


def _transposed(blocks: BlockMap) -> BlockMap:
    return tuple(zip(*blocks, strict=True))
