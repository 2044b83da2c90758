"""What both neighbours in time expect of every row: residuals from before and from after, in units of the row's own scale.

`f_k = x_k − E[x_k | x_{k−1}]` and `g_k = x_k − E[x_k | x_{k+1}]`, by trimmed regressions. A wrong row is far from both, in the same
direction: a spike. A jump that stays (a heavy-tailed innovation, a shock) is far from one of them only: a step. So
`M = f·g / max(|f|, |g|)`, at most the shorter of the two, tells wrong rows from heavy tails. The first and the last row are compared
with the next one and the one after it.

Scales: each step has its own (gaps may differ), each trajectory has, and volatility may change along a trajectory (the median of six
steps nearby). Each is shrunk by how much more it varies than the same medians of shuffled residuals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import median, quantile, trimmed_regression, whitening
from retrace_sde.io.arrays import Array, Mask

NEARBY, MIN_NEARBY = 3, 3
"""Steps on either side that tell the volatility near a row, its own two left out, and how many are needed."""

SLICE_SHRINKAGE = 10
"""Trajectories that halve what a step's median residual is taken for."""

TINY = 1e-300


class Sides(NamedTuple):
    """Of every row (n, T): scaled and whitened residuals from either side (n, T, d), where there is one neighbour only
    (`end`), and what is expected of it, with its standard deviation (n, T, d). `directions` (d, d): unit vectors along which an error
    of each variable moves a whitened residual. `complete`: no value of the row and of those next to it is missing."""

    before: Array
    after: Array
    end: Mask
    complete: Mask
    expected: Array
    sd: Array
    directions: Array

    @property
    def spikes(self) -> Array:
        """M (n, T)."""
        a, b = lengths(self.before), lengths(self.after)
        return np.asarray(
            (self.before * self.after).sum(axis=2) / np.maximum(np.maximum(a, b), TINY)
        )

    @property
    def cell_spikes(self) -> Array:
        """The same (n, T, d) of what is left of each variable given the others of its row; 0 where those are not all known."""
        a, b = (each @ self.directions.T for each in (self.before, self.after))
        spikes = a * b / np.maximum(np.maximum(np.abs(a), np.abs(b)), TINY)
        return np.where(self.complete[..., None], spikes, 0.0)


def lengths(r: Array) -> Array:
    """Euclidean lengths along the last axis."""
    return np.sqrt((r**2).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class OneSided:
    """The regression of rows on an earlier one: coefficients, covariance, and medians (T, d) of what is left at each position."""

    coefficients: Array
    covariance: Array
    shifts: Array

    @classmethod
    def of(cls, x: Array, times: Array, lag: int) -> OneSided:
        """Of x (n, T, d) along an order, at times (n, T)."""
        n, T, d = x.shape
        past, when = carried(x, times)
        y, p, g = x[:, lag:], past[:, :-lag], _gaps(when, times, lag)
        known = ~(np.isnan(y).any(axis=2) | np.isnan(p).any(axis=2))
        direct = known & (np.abs(when[:, :-lag] - times[:, :-lag, None]) < 1e-12).all(axis=2)
        used = direct if direct.sum() >= 4 * (d + 1) else known
        B, S = trimmed_regression(y[used], p[used])
        rest = (y - (p @ B[:-1] + B[-1])) / np.sqrt(g)
        shifts = np.zeros((T, d))
        shifts[lag:] = np.nan_to_num(median(rest, 0)) * n / (n + SLICE_SHRINKAGE)
        return cls(B, S, shifts)

    def residuals(self, x: Array, times: Array, lag: int, near: Array) -> tuple[Array, Array]:
        """What is left (n, T, d), NaN where there is no row before, and the square roots of the gaps it was divided by.

        `near`: x as a neighbour, without values that must not count as one.
        """
        past, when = carried(near, times)
        g = np.sqrt(_gaps(when, times, lag))
        found, wide = np.full(x.shape, np.nan), np.ones(x.shape)
        B = self.coefficients
        found[:, lag:] = (x[:, lag:] - (past[:, :-lag] @ B[:-1] + B[-1])) / g - self.shifts[lag:]
        wide[:, lag:] = g
        return found, wide


def carried(x: Array, times: Array) -> tuple[Array, Array]:
    """The last value seen up to each row, (n, T, d), and when that was, (n, T, d), or (n, T, 1) where all values are seen."""
    if not np.isnan(x).any():
        return x, times[:, :, None]
    past, when = x.copy(), np.repeat(times[:, :, None], x.shape[2], axis=2)
    for k in range(1, x.shape[1]):
        hole = np.isnan(past[:, k])
        past[:, k][hole], when[:, k][hole] = past[:, k - 1][hole], when[:, k - 1][hole]
    return past, when


def _gaps(when: Array, times: Array, lag: int) -> Array:
    """Times since the values that rows are compared with, relative to the usual ones; 1 where times are equal."""
    gap = times[:, lag:, None] - when[:, :-lag]
    usual = float(np.nanmedian(times[:, lag:] - times[:, :-lag]))
    return np.maximum(gap / max(usual, TINY), 1e-6)


@dataclass(frozen=True, eq=False)
class TwoSided:
    """Regressions in both directions, over one step and over two, and the scales of steps, trajectories and of volatility nearby."""

    ahead: OneSided
    back: OneSided
    ahead2: OneSided
    back2: OneSided
    whitening: Array
    middle: float
    steps_ahead: Array
    steps_back: Array
    trajectory_weight: float
    nearby_weight: float
    share: float

    @classmethod
    def of(cls, x: Array, times: Array, *, many_wrong: bool = False) -> TwoSided:
        """Fitted to x (n, T, d) along an order; times (n, T) increase along it.

        `many_wrong`: a trajectory's scale is the lower quartile of its lengths, of which a wrong row makes four long. In panels without, volatile
        subjects would be taken for wrong: of physionet 7 rows rather than 1.
        """
        back_x, back_t = _reversed(x, times)
        ahead, back = OneSided.of(x, times, 1), OneSided.of(back_x, back_t, 1)
        ahead2, back2 = OneSided.of(x, times, 2), OneSided.of(back_x, back_t, 2)
        W = whitening((ahead.covariance + back.covariance) / 2)
        T = x.shape[1]
        share = 0.25 if many_wrong else 0.5
        found = cls(ahead, back, ahead2, back2, W, 1.0, np.ones(T), np.ones(T), 0.0, 0.0, share)
        f, g = (_sizes(each, W) for each in found._one_step(x, times, x)[:2])
        middle = float(np.nanmedian(np.r_[f.ravel(), g.ravel()])) or 1.0
        rng = np.random.default_rng(0)
        ahead_scale, back_scale = (
            _shrunk(_log(median(m, 0), middle), _log(median(_mixed(m, rng), 0), middle))
            for m in (f, g)
        )
        f, g = f / ahead_scale, g / back_scale
        own = _own(np.c_[f, g], share)
        of_trajectories = _weight(own, _own(_mixed(f, rng), share))
        steps = f / np.exp(of_trajectories * np.nan_to_num(own))[:, None]
        nearby = _weight(_nearby(steps, middle), _nearby(_mixed(steps, rng), middle))
        return cls(
            ahead, back, ahead2, back2, W, middle, ahead_scale, back_scale, of_trajectories, nearby, share
        )  # fmt: skip

    def _one_step(self, x: Array, times: Array, near: Array) -> tuple[Array, Array, Array, Array]:
        back_x, back_t = _reversed(x, times)
        f, wide = self.ahead.residuals(x, times, 1, near)
        back = self.back.residuals(back_x, back_t, 1, near[:, ::-1])
        g, wide_back = (each[:, ::-1] for each in back)
        return f, g, wide, wide_back

    def sides(self, x: Array, times: Array, near: Array) -> Sides:
        """Both residuals of every row of x (n, T, d), with neighbours and scales from `near`: x without values that must not count there."""
        f, g, wide, wide_back = self._one_step(x, times, near)
        first, last = (np.asarray(np.isnan(each).all(axis=2)) for each in (f, g))
        scale = self._scales(*(f, g) if near is x else self._one_step(near, times, near)[:2])
        expected = x - _mean(f * wide, g * wide_back)
        back_x, back_t = _reversed(x, times)
        twice = self.ahead2.residuals(x, times, 2, near)[0]
        twice_back = self.back2.residuals(back_x, back_t, 2, near[:, ::-1])[0][:, ::-1]
        before, after = (
            np.where(first[..., None], twice_back, f),
            np.where(last[..., None], twice, g),
        )
        one = np.where(first, self.steps_back, self.steps_ahead) * scale
        two = np.where(last, self.steps_ahead, self.steps_back) * scale
        both = np.where(first | last, 1.0, np.sqrt(0.5))
        width = np.maximum(np.nan_to_num(wide, nan=1.0), np.nan_to_num(wide_back, nan=1.0))
        # of one variable alone: the covariance is W⁻ᵀ W⁻¹
        sd = (
            lengths(np.asarray(np.linalg.inv(self.whitening).T, dtype=np.float64))
            * width
            * (np.sqrt(one * two) * both)[..., None]
        )
        W = self.whitening
        complete = np.asarray(~np.isnan(x).any(axis=2))
        holes: Mask = np.asarray(np.isnan(near).any(axis=2))
        complete[:, 1:] &= ~holes[:, :-1]
        complete[:, :-1] &= ~holes[:, 1:]
        return Sides(
            np.nan_to_num(before) @ W / one[..., None],
            np.nan_to_num(after) @ W / two[..., None],
            first | last,
            complete,
            expected,
            sd,
            W / lengths(W)[:, None],
        )

    def row_scales(self, times: Array, near: Array) -> Array:
        """The scale (n, T) of each row, from `near`; a trajectory that hardly moves has that of the others: where values are rounded its own may be zero."""
        return np.maximum(self._scales(*self._one_step(near, times, near)[:2]), 1.0)

    def scaled_ahead(self, x: Array, times: Array, sizes: Array) -> tuple[Array, Array]:
        """Residuals (n, T, d) of rows of x given the row before, in units of their scale, and those scales (n, T, d); `sizes` of the rows (n, T)."""
        f, wide = self.ahead.residuals(x, times, 1, x)
        scale = self.steps_ahead * sizes
        return f / scale[..., None], wide * scale[..., None]

    def _scales(self, f: Array, g: Array) -> Array:
        """The scale (n, T) of each row: its trajectory's, and that of the volatility nearby where it is larger."""
        W, middle = self.whitening, self.middle
        sizes, back = _sizes(f, W) / self.steps_ahead, _sizes(g, W) / self.steps_back
        own = np.exp(self.trajectory_weight * np.nan_to_num(_own(np.c_[sizes, back], self.share)))
        nearby = np.nan_to_num(_nearby(sizes / own[:, None], middle))
        return own[:, None] * np.maximum(np.exp(self.nearby_weight * nearby), 1.0)


def _reversed(x: Array, times: Array) -> tuple[Array, Array]:
    return x[:, ::-1], -times[:, ::-1]


def _mean(f: Array, g: Array) -> Array:
    """The mean of two residuals, or the one that there is."""
    count = (~np.isnan(f)).astype(float) + ~np.isnan(g)
    return (np.nan_to_num(f) + np.nan_to_num(g)) / np.where(count > 0, count, np.nan)


def _sizes(r: Array, W: Array) -> Array:
    """Whitened lengths (n, T), NaN where there is no residual."""
    return np.where(np.isnan(r).all(axis=2), np.nan, lengths(np.nan_to_num(r) @ W))


def _log(values: Array, middle: float) -> Array:
    return np.log(np.maximum(values / middle, 1e-12))


def _mixed(values: Array, rng: np.random.Generator) -> Array:
    """The same numbers in other places."""
    found, known = values.copy(), ~np.isnan(values)
    found[known] = rng.permutation(found[known])
    return found


def _weight(logs: Array, chance: Array) -> float:
    """The share of the variance of logarithms of scales that is not chance."""
    spread = float(np.nanvar(logs))
    return max(0.0, 1.0 - float(np.nanvar(chance)) / max(spread, 1e-12))


def _shrunk(logs: Array, chance: Array) -> Array:
    return np.asarray(np.exp(_weight(logs, chance) * np.nan_to_num(logs)))


def _own(sizes: Array, share: float) -> Array:
    """Logarithms (n,) of a quantile of each trajectory's lengths, relative to the median trajectory."""
    found = quantile(sizes, share)
    return _log(found, float(np.nanmedian(found)) or 1.0)


def _nearby(sizes: Array, middle: float) -> Array:
    """Logarithms (n, T) of the median length of steps near each row, without its own two; NaN where there are too few."""
    n, T = sizes.shape
    found = np.full((n, T), np.nan)
    inner = np.arange(NEARBY + 1, T - NEARBY - 1)
    away = np.r_[-NEARBY:0, 2 : NEARBY + 2]
    found[:, inner] = _log(median(sizes[:, inner[:, None] + away], 2), middle)
    for k in sorted({*range(T)} - {*inner.tolist()}):
        near = [*range(max(1, k - NEARBY), k), *range(k + 2, min(T, k + 2 + NEARBY))]
        if len(near) >= MIN_NEARBY:
            found[:, k] = _log(median(sizes[:, near], 1), middle)
    return found
