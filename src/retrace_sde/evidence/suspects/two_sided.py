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
from retrace_sde.io.arrays import Array, Indices, Mask

NEARBY, MIN_NEARBY = 3, 3
"""Steps on either side that tell the volatility near a row, its own two left out, and how many are needed."""

SLICE_SHRINKAGE = 10
"""Trajectories that halve what a step's median residual is taken for."""

MAX_MEDIAN_VARIANCE = 1.0
"""Variance of medians of single variables, relative to residuals of the combination that varies least, beyond which medians are taken along axes in which
residuals are uncorrelated. Of a clean panel of 50 variables (n = 20, T = 250, noise of condition 10⁴) 1507 of 5000 rows were candidates without this, and 0 are;
wrong cells in such combinations were hidden. Always so: 10 of 500 panels (studies/suspects.py, seeds 0:20) have other suspects, neither better nor worse."""

TINY = 1e-300


class Steps(NamedTuple):
    """What is left (n, T, d) of rows given the one before, and given the one after, NaN where there is none, and the square roots of the gaps that
    they were divided by, (n, T, d) or (n, T, 1)."""

    ahead: Array
    back: Array
    wide: Array
    wide_back: Array


class Sides(NamedTuple):
    """Of every row (n, T): scaled and whitened residuals from either side (n, T, d), where there is one neighbour only
    (`end`). `directions` (d, d): unit vectors along which an error of each variable moves a whitened residual. `complete`: no value of the row and of
    those next to it is missing. `x`, `steps`, `deviations` (d,) and `scale` (n, T): what tells the values expected of a row, and their standard deviations."""

    before: Array
    after: Array
    end: Mask
    complete: Mask
    directions: Array
    x: Array
    steps: Steps
    deviations: Array
    scale: Array

    def expected(self, rows: Indices) -> tuple[Array, Array]:
        """What both neighbours expect of the variables of rows (m, 2), and their standard deviations, (m, d)."""
        at = tuple(rows.T)
        f, g, wide, wide_back = (each[at] for each in self.steps)
        width = np.maximum(*(np.where(np.isnan(each), 1.0, each) for each in (wide, wide_back)))
        sd = self.deviations * width * self.scale[at][:, None]
        return self.x[at] - _mean(f * wide, g * wide_back), sd

    @property
    def spikes(self) -> Array:
        """M (n, T)."""
        a, b = lengths(self.before), lengths(self.after)
        return np.asarray(
            np.einsum("...d,...d", self.before, self.after) / np.maximum(np.maximum(a, b), TINY)
        )

    @property
    def cell_spikes(self) -> Array:
        """The same (n, T, d) of what is left of each variable given the others of its row; 0 where those are not all known."""
        a, b = (each @ self.directions.T for each in (self.before, self.after))
        spikes = a * b / np.maximum(np.maximum(np.abs(a), np.abs(b)), TINY)
        return np.where(self.complete[..., None], spikes, 0.0)


def lengths(r: Array) -> Array:
    """Euclidean lengths along the last axis."""
    return np.sqrt(np.einsum("...d,...d", r, r))


@dataclass(frozen=True, eq=False)
class OneSided:
    """The regression of rows on an earlier one: coefficients, covariance, and medians (T, d) of what is left at each position."""

    coefficients: Array
    covariance: Array
    shifts: Array

    @classmethod
    def of(cls, x: Array, times: Array, lag: int, last: int | None = None) -> OneSided:
        """Of x (n, T, d) along an order, at times (n, T). `last`: at how many positions, the last ones, residuals will be asked for; None: at all."""
        n, T, d = x.shape
        past, when = carried(x, times)
        y, p = x[:, lag:], past[:, :-lag]
        known = ~(np.isnan(y).any(axis=2) | np.isnan(p).any(axis=2))
        direct = known & (np.abs(when[:, :-lag] - times[:, :-lag, None]) < 1e-12).all(axis=2)
        used = direct if direct.sum() >= 4 * (d + 1) else known
        B, S = trimmed_regression(y[used], p[used])
        found = cls(B, S, np.zeros((T, d)))
        rest = found._left(x, times, past, when, lag, last)[0]
        found.shifts[T - rest.shape[1] :] = _medians(rest, S) * n / (n + SLICE_SHRINKAGE)
        return found

    def residuals(
        self, x: Array, times: Array, lag: int, near: Array, last: int | None = None
    ) -> tuple[Array, Array]:
        """What is left (n, T, d), NaN where there is no row before, and the square roots of the gaps it was divided by.

        `near`: x as a neighbour, without values that must not count as one. `last`: at so many positions, the last ones, only.
        """
        T = x.shape[1]
        rest, g = self._left(x, times, *carried(near, times), lag, last)
        found, wide = np.full(x.shape, np.nan), np.ones((*x.shape[:2], g.shape[2]))
        begin = T - rest.shape[1]
        np.subtract(rest, self.shifts[begin:], out=found[:, begin:])
        wide[:, begin:] = g
        return found, wide

    def _left(
        self, x: Array, times: Array, past: Array, when: Array, lag: int, last: int | None
    ) -> tuple[Array, Array]:
        """What is left of x given `past` at the last positions, before their medians are subtracted, and square roots of gaps."""
        T = x.shape[1]
        begin = lag if last is None else max(lag, T - last)
        g = np.sqrt(_gaps(when, times, lag)[:, begin - lag :])
        B = self.coefficients
        rest = past[:, begin - lag : T - lag] @ B[:-1]
        rest += B[-1]
        np.subtract(x[:, begin:], rest, out=rest)
        rest /= g
        return rest, g


def _medians(rest: Array, S: Array) -> Array:
    """Medians (T, d) over trajectories of residuals (n, T, d) with covariance S; of variables one by one where that adds little to any combination of them."""
    root = np.sqrt(np.diag(S))
    least = float(np.linalg.eigvalsh(S / np.outer(root, root))[0])
    # a median of n Gaussian values has the variance π/2n of one
    if np.pi / 2 / len(rest) <= MAX_MEDIAN_VARIANCE * least or np.isnan(rest).any():
        return zeroed(median(rest, 0))
    W = whitening(S)
    return np.asarray(np.linalg.solve(W.T, median(rest @ W, 0).T).T)


def zeroed(values: Array) -> Array:
    """Zero where a value is missing."""
    return np.where(np.isnan(values), 0.0, values)


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
    fitted: Steps

    @classmethod
    def of(cls, x: Array, times: Array, *, many_wrong: bool = False) -> TwoSided:
        """Fitted to x (n, T, d) along an order; times (n, T) increase along it.

        `many_wrong`: a trajectory's scale is the lower quartile of its lengths, of which a wrong row makes four long. In panels without, volatile
        subjects would be taken for wrong: of physionet 7 rows rather than 1.
        """
        back_x, back_t = _reversed(x, times)
        ahead, back = OneSided.of(x, times, 1), OneSided.of(back_x, back_t, 1)
        # rows are compared with the one after the next where there is none on the other side
        ahead2 = OneSided.of(x, times, 2, _unseen_before(back_x))
        back2 = OneSided.of(back_x, back_t, 2, _unseen_before(x))
        W = whitening((ahead.covariance + back.covariance) / 2)
        share = 0.25 if many_wrong else 0.5
        steps = _one_step(ahead, back, x, times, x)
        f, g = (_sizes(each, _white(each, W)) for each in steps[:2])
        middle = float(median(np.r_[f.ravel(), g.ravel()])) or 1.0
        rng = np.random.default_rng(0)
        ahead_scale, back_scale = (
            _shrunk(_log(median(m, 0), middle), _log(median(_mixed(m, rng), 0), middle))
            for m in (f, g)
        )
        f, g = f / ahead_scale, g / back_scale
        own = _own(np.c_[f, g], share)
        of_trajectories = _weight(own, _own(_mixed(f, rng), share))
        rest = f / np.exp(of_trajectories * zeroed(own))[:, None]
        nearby = _weight(_nearby(rest, middle), _nearby(_mixed(rest, rng), middle))
        return cls(
            ahead, back, ahead2, back2, W, middle, ahead_scale, back_scale, of_trajectories, nearby, share, steps
        )  # fmt: skip

    def sides(self, x: Array, times: Array, near: Array) -> Sides:
        """Both residuals of every row of x (n, T, d), with neighbours and scales from `near`, which the law was fitted to: x without values that must not
        count there."""
        W, T = self.whitening, x.shape[1]
        steps = self.fitted if near is x else _one_step(self.ahead, self.back, x, times, near)
        f, g = steps[:2]
        first, last = (np.asarray(np.isnan(each).all(axis=2)) for each in (f, g))
        before, after = _white(f, W), _white(g, W)
        own = (before, after) if near is x else tuple(_white(e, W) for e in self.fitted[:2])
        scale = self._scales(*(_sizes(*both) for both in zip(self.fitted[:2], own, strict=True)))
        back_x, back_t = _reversed(x, times)
        begin, end = _unseen_before(near), _unseen_before(near[:, ::-1])
        twice = self.ahead2.residuals(x, times, 2, near, end)[0][:, T - end :]
        twice_back = self.back2.residuals(back_x, back_t, 2, near[:, ::-1], begin)[0][:, ::-1]
        before[:, :begin] = np.where(
            first[:, :begin, None], _white(twice_back[:, :begin], W), before[:, :begin]
        )
        after[:, T - end :] = np.where(
            last[:, T - end :, None], _white(twice, W), after[:, T - end :]
        )
        one = np.where(first, self.steps_back, self.steps_ahead) * scale
        two = np.where(last, self.steps_ahead, self.steps_back) * scale
        before /= one[..., None]
        after /= two[..., None]
        both = np.where(first | last, 1.0, np.sqrt(0.5))
        complete = np.asarray(~np.isnan(x).any(axis=2))
        holes: Mask = np.asarray(np.isnan(near).any(axis=2))
        complete[:, 1:] &= ~holes[:, :-1]
        complete[:, :-1] &= ~holes[:, 1:]
        # of one variable alone: the covariance is W⁻ᵀ W⁻¹
        deviations = lengths(np.asarray(np.linalg.inv(W).T, dtype=np.float64))
        return Sides(
            before, after, first | last, complete, W / lengths(W)[:, None], x.copy(), steps, deviations,
            np.sqrt(one * two) * both,
        )  # fmt: skip

    def row_scales(self, times: Array, near: Array) -> Array:
        """The scale (n, T) of each row, from `near`; a trajectory that hardly moves has that of the others: where values are rounded its own may be zero."""
        steps = _one_step(self.ahead, self.back, near, times, near)
        sizes = (_sizes(each, _white(each, self.whitening)) for each in steps[:2])
        return np.maximum(self._scales(*sizes), 1.0)

    def scaled_ahead(self, x: Array, times: Array, sizes: Array) -> tuple[Array, Array]:
        """Residuals (n, T, d) of rows of x given the row before, in units of their scale, and those scales (n, T, d); `sizes` of the rows (n, T)."""
        f, wide = self.ahead.residuals(x, times, 1, x)
        scale = self.steps_ahead * sizes
        return f / scale[..., None], wide * scale[..., None]

    def _scales(self, ahead: Array, back: Array) -> Array:
        """The scale (n, T) of each row, from the lengths of residuals (n, T): its trajectory's, and that of the volatility nearby where it is larger."""
        sizes, back = ahead / self.steps_ahead, back / self.steps_back
        own = np.exp(self.trajectory_weight * zeroed(_own(np.c_[sizes, back], self.share)))
        nearby = zeroed(_nearby(sizes / own[:, None], self.middle))
        return own[:, None] * np.maximum(np.exp(self.nearby_weight * nearby), 1.0)


def _one_step(ahead: OneSided, back: OneSided, x: Array, times: Array, near: Array) -> Steps:
    """Residuals of the rows of x from either side, with neighbours from `near`."""
    back_x, back_t = _reversed(x, times)
    f, wide = ahead.residuals(x, times, 1, near)
    g, wide_back = back.residuals(back_x, back_t, 1, near[:, ::-1])
    return Steps(f, g[:, ::-1], wide, wide_back[:, ::-1])


def _unseen_before(x: Array) -> int:
    """At how many positions, the first ones, some variable of some trajectory of x (n, T, d) was not seen at an earlier one."""
    seen = np.logical_or.accumulate(~np.isnan(x), axis=1).all(axis=(0, 2))
    return min(1 + int((~seen).sum()), x.shape[1])


def comparable(x: Array) -> bool:
    """Whether residuals of x (n, T, d) have a spread: in either direction two complete rows, whose variables were all seen two rows before or earlier."""
    whole: Mask = np.asarray(~np.isnan(x).any(axis=2))
    for way in (slice(None), slice(None, None, -1)):
        seen: Mask = np.asarray(np.logical_or.accumulate(~np.isnan(x[:, way]), axis=1).all(axis=2))
        if (whole[:, way][:, 2:] & seen[:, :-2]).sum() < 2:
            return False
    return True


def _reversed(x: Array, times: Array) -> tuple[Array, Array]:
    return x[:, ::-1], -times[:, ::-1]


def _mean(f: Array, g: Array) -> Array:
    """The mean of two residuals, or the one that there is."""
    count = (~np.isnan(f)).astype(float) + ~np.isnan(g)
    return (zeroed(f) + zeroed(g)) / np.where(count > 0, count, np.nan)


def _white(r: Array, W: Array) -> Array:
    """Whitened residuals, those that are not known 0."""
    return zeroed(r) @ W


def _sizes(r: Array, white: Array) -> Array:
    """Whitened lengths (n, T), NaN where there is no residual."""
    return np.where(np.isnan(r).all(axis=2), np.nan, lengths(white))


def _log(values: Array, middle: float) -> Array:
    return np.log(np.maximum(values / middle, 1e-12))


def _mixed(values: Array, rng: np.random.Generator) -> Array:
    """The same numbers in other places."""
    found, known = values.copy(), ~np.isnan(values)
    found[known] = rng.permutation(found[known])
    return found


def _weight(logs: Array, chance: Array) -> float:
    """The share of the variance of logarithms of scales that is not chance."""
    spread, by_chance = (float(each[~np.isnan(each)].var()) for each in (logs, chance))
    return max(0.0, 1.0 - by_chance / max(spread, 1e-12))


def _shrunk(logs: Array, chance: Array) -> Array:
    return np.asarray(np.exp(_weight(logs, chance) * zeroed(logs)))


def _own(sizes: Array, share: float) -> Array:
    """Logarithms (n,) of a quantile of each trajectory's lengths, relative to the median trajectory."""
    found = quantile(sizes, share)
    return _log(found, float(median(found)) or 1.0)


def _nearby(sizes: Array, middle: float) -> Array:
    """Logarithms (n, T) of the median length of steps near each row, without its own two; NaN where there are too few."""
    T = sizes.shape[1]
    at = np.arange(T)[:, None] + np.r_[-NEARBY:0, 2 : NEARBY + 2]
    there = (at >= 1) & (at < T)
    near = np.where(there, sizes[:, np.clip(at, 0, T - 1)], np.nan)
    near[:, there.sum(axis=1) < MIN_NEARBY] = np.nan
    return _log(median(near, 2), middle)
