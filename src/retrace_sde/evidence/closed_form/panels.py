"""Panels along an order, in units of their own: what the closed forms are fitted to, many panels at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import BLOCK_ELEMENTS
from retrace_sde.panel.lengths import Lengths


class Form(NamedTuple):
    """Which linear model: lags of a step, whether there are random intercepts, whether there is a constant."""

    lags: int = 1
    levels: bool = False
    affine: bool = True

    def fits(self, n: int, T: int, d: int) -> bool:
        """There are enough observations for it."""
        enough = self.lags + 1 < T and n * (T - self.lags) > 2 * (self.lags * d + 1) + d
        return enough and (not self.levels or (n > self.lags * d + 3 and self.lags + 2 < T))


class Filling(Protocol):
    """What draws missing values (`missing_draws`)."""

    @property
    def counts(self) -> Array:
        """Number of observed values of each variable, (d,)."""
        ...

    @property
    def log_density(self) -> float:
        """Of the values drawn, given the observed ones."""
        ...

    def fill(self, x: Array, rng: np.random.Generator, *, at_rest: bool = False) -> Array:
        """Panels (B, n, T, d), stationary (`at_rest`) or not, with values drawn where the data have none."""
        ...


class Scale(NamedTuple):
    """The centre (d,) and the standard deviation (d,) by which variables were standardised."""

    centre: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class Panels:
    """B panels (B, n, T, d) in time order; `lengths` (n,) of the trajectories where they differ.

    `units`: centre and scale of the variables before standardisation. `spread` (T − 1,): the variances v of the steps, where
    they are not all 1. `filled`: how missing values were drawn. `fits`: what was fitted to these panels so far, by form
    (`linear.fit_directions`), so that every question reads the same fit.
    """

    x: Array
    lengths: Indices | None = None
    units: Scale | None = None
    spread: Array | None = None
    filled: Filling | None = None
    fits: dict[Any, Any] = field(init=False, repr=False, default_factory=dict)

    @property
    def log_volume(self) -> float:
        """Nats that a log-density loses in the variables' original units, and to values that were drawn.

        `log p(observed) ≈ log p(observed, drawn) − log q(drawn | observed)`, for any model: evidence is on observed values.
        """
        scale = np.ones(1) if self.units is None else self.units.scale
        if self.filled is not None:
            return float(self.filled.counts @ np.log(scale)) + self.filled.log_density
        return float(self.live(0).sum() * np.log(scale).sum())

    @property
    def visits(self) -> Lengths:
        """How many observations each trajectory has."""
        return Lengths.of(self.x[0], self.lengths)

    def turned(self, x: Array) -> Array:
        """Panels (B, n, T, d) of these lengths, time-reversed."""
        if not self.visits.ragged:
            return np.ascontiguousarray(x[:, :, ::-1])
        return np.take_along_axis(x, self.visits.reversal[None, :, :, None], axis=2)

    def weights(self, lags: int, *, backwards: bool) -> Array:
        """1/v of the steps that are explained, by position; backwards, those of the intervals counted from the end."""
        S = self.x.shape[2] - lags
        if self.spread is None:
            return np.ones(S)
        found: Array = 1 / (self.spread[:S] if backwards else self.spread[lags - 1 :])
        return found

    def live(self, lags: int) -> Array:
        """Which steps (n, T − lags) exist."""
        return self.visits.mask[:, lags:].astype(float)

    def ends(self, lags: int) -> tuple[Array, Array]:
        """First states in both directions, (B, n, lags·d): with two lags the first slice and the step to the second."""
        x, n = self.x, self.x.shape[1]
        last = self.visits.each
        sides = []
        for at, step in ((np.zeros(n, dtype=np.intp), 1), (last - 1, -1)):
            first = x[:, np.arange(n), at]
            parts = [first]
            if lags == 2:
                parts.append(x[:, np.arange(n), at + step] - first)
            sides.append(np.concatenate(parts, axis=2))
        return sides[0], sides[1]

    @cached_property
    def moments(self) -> Array:
        """`Σ z zᵀ` of the steps' rows z = (x_t, Δ_t, 1), (B, 2d + 1, 2d + 1)."""
        d = self.x.shape[3]
        total = np.zeros((len(self.x), 2 * d + 1, 2 * d + 1))
        for some in self.parts(1):
            rows = step_rows(some, Form())[0]
            rows = rows.reshape(len(rows), -1, rows.shape[3])
            total += rows.transpose(0, 2, 1) @ rows
        return total

    @cached_property
    def successive(self) -> Array:
        """`Σ Δ_t Δ_{t+1}ᵀ`, (B, d, d)."""
        d = self.x.shape[3]
        total = np.zeros((len(self.x), d, d))
        for some in self.parts(1):
            step = np.diff(some.x, axis=2) * some.live(1)[None, :, :, None]
            shape = len(step), -1, d
            one, two = step[:, :, :-1].reshape(shape), step[:, :, 1:].reshape(shape)
            total += one.transpose(0, 2, 1) @ two
        return total

    def parts(self, lags: int) -> Iterator[Panels]:
        """Some trajectories at a time, whose rows fit the processor's cache."""
        B, n, T, d = self.x.shape
        size = max(1, BLOCK_ELEMENTS // (B * T * ((lags + 1) * d + 1)))
        if size >= n:
            yield self
            return
        for begin in range(0, n, size):
            some = slice(begin, begin + size)
            lengths = None if self.lengths is None else self.lengths[some]
            yield replace(self, x=self.x[:, some], lengths=lengths)

    @cached_property
    def variances(self) -> Array:
        """Each variable's, (B, d)."""
        B, n, T, d = self.x.shape
        x = self.x.reshape(B, n * T, d) if self.lengths is None else self.x[:, self.live(0) > 0]
        squares = np.einsum("bid,bid->bd", x, x) / x.shape[1]
        return np.asarray(np.maximum(squares - x.mean(axis=1) ** 2, 1e-9 * squares))


def step_rows(panels: Panels, form: Form) -> tuple[Array, Array]:
    """Rows (x_t, Δ_1, …, Δ_L, 1) of the steps, (B, n, S, p), zero where there is none, and which exist (n, S)."""
    x, lags = panels.x, form.lags
    T = x.shape[2]
    live = panels.live(lags)
    step = np.diff(x, axis=2)
    parts = [x[:, :, : T - lags], *(step[:, :, k : T - lags + k] for k in range(lags))]
    if form.affine and not form.levels:
        parts.append(np.ones((*parts[0].shape[:3], 1)))
    rows = np.concatenate(parts, axis=3)
    return (rows if panels.lengths is None else rows * live[None, :, :, None]), live
