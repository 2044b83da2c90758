"""Panels along an order, in units of their own: what step models are fitted to, many panels at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from math import comb
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.lengths import Lengths

STEPS_FOR_PRODUCTS, STEPS_BEYOND_MARKOV, STEPS_OF_MARKOV = 10, 5, 2
"""Steps needed for each coefficient of a variable: where regressors are products; with memory or random intercepts; and of Markov
steps, offsets included. Five trajectories of ten visits of four variables were called wrongly by richer models. Where offsets could not be free, and no
trend be fitted, .43 of 40 outside trends of that size were called wrongly (.08 now); panels at rest on plates or with common noise: 0 of 240."""


class Ground(StrEnum):
    """What a direction may rest on."""

    MEANS = "means"
    """The slices' means follow the dynamics in one direction only."""

    SPREADS = "spreads"
    """Deviations from the slices' means do."""

    RESIDUALS = "residuals"
    """Noise that is not Gaussian is independent of the past in one direction only."""


class Form(NamedTuple):
    """Which step model. Dynamics: `lags`, random intercepts (`levels`), the `degree` of the drift, a constant (`affine`).

    Nuisances that are free: the offset of every step (`means`) and its variance (`spreads`).
    """

    lags: int = 1
    levels: bool = False
    affine: bool = True
    degree: int = 1
    means: bool = False
    spreads: bool = False

    @property
    def free(self) -> tuple[str, ...]:
        """The nuisances that are free, in words."""
        words = (("offsets", self.means), ("variances", self.spreads))
        return tuple(word for word, freed in words if freed)

    def regressors(self, d: int) -> int:
        """Regressors of a step, without a constant."""
        curved = sum(comb(d + k - 1, k) for k in range(2, self.degree + 1))
        return self.lags * d + curved

    def fits(self, n: int, T: int, d: int) -> bool:
        """There are enough observations for it."""
        p, S = self.regressors(d), T - self.lags
        rich = self.lags > 1 or self.levels
        needed = STEPS_BEYOND_MARKOV if rich else STEPS_OF_MARKOV
        if self.degree > 1:
            needed = STEPS_FOR_PRODUCTS
        enough = S > 1 and n * S > needed * (p + 1 + self.means * (S - 1)) + d
        return enough and (not self.levels or (n > p + 3 and S > 2))


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

    `units`: centre and scale of the variables before standardisation. `filled`: how missing values were drawn. `groups` (n,):
    trajectories that may be alike. `aligned`: slices hold the same time of all trajectories, so that what moves all of them at
    once can be seen. `fits`: what was fitted to these panels so far, by form (`steps.fit_directions`).
    """

    x: Array
    lengths: Indices | None = None
    units: Scale | None = None
    filled: Filling | None = None
    groups: Indices | None = None
    aligned: bool = True
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

    @cached_property
    def visits(self) -> Lengths:
        """How many observations each trajectory has."""
        return Lengths.of(self.x[0], self.lengths)

    @cached_property
    def reverse(self) -> Panels:
        """The same panels time-reversed; their reverse is these."""
        found = replace(self, x=self.turned(self.x))
        found.__dict__["reverse"] = self
        return found

    def forget(self) -> None:
        """Drop the reverse and all fits. These refer to each other in a ring, which would keep the memory of panels that are no longer needed."""
        for each in (self.__dict__.get("reverse", self), self):
            each.fits.clear()
            each.__dict__.pop("reverse", None)

    def turned(self, x: Array) -> Array:
        """Panels (B, n, T, d) of these lengths, time-reversed."""
        if not self.visits.ragged:
            return x[:, :, ::-1]
        return np.take_along_axis(x, self.visits.reversal[None, :, :, None], axis=2)

    def live(self, lags: int) -> Array:
        """Which steps (n, T − lags) exist."""
        return self.visits.mask[:, lags:].astype(float)

    def first(self, lags: int) -> Array:
        """First states (B, n, lags·d): with two lags the first slice and the step to the second."""
        x = self.x
        if lags == 1:
            return np.ascontiguousarray(x[:, :, 0])
        return np.concatenate([x[:, :, 0], x[:, :, 1] - x[:, :, 0]], axis=2)

    def widths(self, lags: int) -> Array:
        """Variances of what `first` holds, over all slices, (B, lags·d)."""
        found = [self._variances(self.x, 0)]
        if lags == 2:
            found.append(self._variances(np.diff(self.x, axis=2), 1))
        return np.concatenate(found, axis=1)

    def _variances(self, x: Array, lags: int) -> Array:
        if self.visits.ragged:
            x = x[:, self.live(lags) > 0][:, None]
        squares = np.einsum("bntd,bntd->bd", x, x) / (x.shape[1] * x.shape[2])
        return variances(squares, x.mean(axis=(1, 2)))


def variances(squares: Array, mean: Array) -> Array:
    """From mean squares and means; not less than rounding leaves."""
    return np.asarray(np.maximum(squares - mean**2, 1e-9 * squares + 1e-300))
