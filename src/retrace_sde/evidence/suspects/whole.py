"""Whole trajectories and whole slices in other units: level and movement both a multiple of everyone else's.

A trajectory, or a slice, of a variable is in other units where the size of its values (of a trajectory the third quartile, of a slice the median) and that of its
movement (of a slice: its spread) are outlying in the same direction. Volatile subjects move more, but are not ten times as large; subjects with another level are
not more volatile.

Limits: factors below about five are not seen, nor units that differ by an offset alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median, quantile
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.io.deferred import deferred
from retrace_sde.process.tails import norm_ppf, norm_sf

stats = deferred("scipy.stats")

MIN_OTHERS = 6
"""Trajectories, or slices, that one is compared with at least."""

OUTLYING, MIN_SPREAD, MIN_UNIT_FACTOR = 5.0, 0.3, 5.0
"""Robust z from which a logarithm is outlying, its least standard deviation, and the least factor that counts as a unit."""

NEAR_ZERO_LEVEL = 0.01
"""Probability with which some trajectory of a variable of both signs stays so near zero by chance that it is taken for other units."""

LARGE = 0.75
"""Quantile of the sizes of a trajectory's values that its size is. Medians of variables of both signs are near zero in some trajectories: of three subjects × 100 43 of 1,800
variables were missed, none now, and in those 14 of 200 panels the direction was lost or wrong (seeds 0:200); none of 2,700 clean panels of nine kinds has a false alarm by either."""

LITTLE = 0.4
"""Quantile of a trajectory's movements that its movement is: in other units most of the small ones are large, too. By their median trajectories with four wrong cells of
sixteen were taken for others' units, 53 variables in 100 panels with 10 % wrong cells, 8 by this quantile, 3 at .3; all 1,800 variables of subjects × 100 are found (1,776 at
.25), and 10 of 10 put into a real panel of eight visits (8 at .3)."""

RANKS_LEVEL = 0.01
"""Level of the test that subjects rank in a slice as they do in one of the others."""


class Whole(NamedTuple):
    """A trajectory or a slice, a variable of it, the factor by which it differs, and the probability that it is wrong."""

    at: int
    variable: int
    factor: float
    probability: float


def whole_trajectories(x: Array) -> list[Whole]:
    """Trajectories of x (n, T, d), in their own units and along an order, of which a variable is in other units."""
    n, T, _ = x.shape
    if n <= MIN_OTHERS or T < 4:
        return []
    size = quantile(np.abs(x), LARGE)
    if not _differ(size):
        return []
    return _outlying(x, size, quantile(np.abs(np.diff(x, axis=1)), LITTLE))


def whole_slices(x: Array) -> list[Whole]:
    """Slices of x (n, T, d) of which a variable is in other units; they must also stand apart from every other slice."""
    n, T, _ = x.shape
    if T <= MIN_OTHERS or n < MIN_OTHERS:
        return []
    size = median(np.abs(x), 0)
    if not _differ(size):
        return []
    centre = median(x, 0)
    found = _outlying(x, size, NORMAL_MAD * median(np.abs(x - centre), 0))
    return [
        each
        for each in found
        if _apart(size[:, each.variable], each.at)
        and _same_subjects(x[..., each.variable], each.at)
    ]


def _differ(sizes: Array) -> bool:
    """Some of the sizes (m, d) of a variable differ by the least factor: else none is so far from their median."""
    known = np.where(sizes > 0, sizes, np.nan)
    ratio = np.fmax.reduce(known, axis=0) / np.fmin.reduce(known, axis=0)
    return bool((ratio > 0.999 * MIN_UNIT_FACTOR).any())


def _apart(sizes: Array, k: int) -> bool:
    """A slice's values are smaller, or larger, by the least factor than those of any other slice."""
    others = np.delete(sizes, k)
    return bool(
        sizes[k] > MIN_UNIT_FACTOR * np.nanmax(others)
        or sizes[k] * MIN_UNIT_FACTOR < np.nanmin(others)
    )


def _same_subjects(values: Array, k: int) -> bool:
    """Subjects rank in slice k of values (n, T) as they do in another one.

    Other units keep the ranks. A tight start, from which the next step leads far away, does not.
    """
    n, T = values.shape
    enough = np.tanh(-norm_ppf(RANKS_LEVEL / (T - 1)) / np.sqrt(max(n - 3, 1)))
    others = (
        stats.spearmanr(values[:, k], values[:, t], nan_policy="omit")[0]
        for t in range(T)
        if t != k
    )
    return any(r > enough for r in others)


def _apart_from_others(logs: Array, wrong: Mask) -> Mask:
    """Entries (m, d) that differ by the least factor from each of the others that is not wrong: no tail leads to them."""
    low, high = (np.where(wrong | np.isnan(logs), far, logs) for far in (np.inf, -np.inf))
    least = np.log(MIN_UNIT_FACTOR)
    return np.asarray((logs <= low.min(axis=0) - least) | (logs >= high.max(axis=0) + least))


def _outlying(x: Array, size: Array, movement: Array) -> list[Whole]:
    """Entries (m, d) whose size and movement are both multiples of the others'.

    A variable of both signs may stay near zero by chance: `P(|z| < f) ≈ f` bounds how small a factor f that leaves open.
    """
    known = (size > 0) & (movement > 0)
    logs, factors = [], []
    for each in (size, movement):
        log = np.log(np.where(known, each, np.nan))
        centred = log - median(log, 0)
        spread = np.maximum(NORMAL_MAD * median(np.abs(centred), 0), MIN_SPREAD)
        logs.append(centred / spread)
        factors.append(np.exp(centred))
    least = np.where(np.sign(logs[0]) == np.sign(logs[1]), np.fmin(*np.abs(logs)), 0.0)
    large = np.abs(np.log(factors[0])) >= np.log(MIN_UNIT_FACTOR)
    one_sign = np.nanmin(x, axis=(0, 1)) * np.nanmax(x, axis=(0, 1)) > 0
    large &= (factors[0] > 1) | one_sign | (factors[0] * size.size < NEAR_ZERO_LEVEL)
    wrong: Mask = (np.nan_to_num(least) > OUTLYING) & np.nan_to_num(large).astype(bool)
    if wrong.any(axis=1).sum() > len(wrong) / 4:  # two kinds of subjects rather than errors
        return []
    wrong &= _apart_from_others(np.log(np.where(known, size, np.nan)), wrong)
    found = []
    for i, v in zip(*map(np.ndarray.tolist, np.nonzero(wrong)), strict=True):
        chance = min(1.0, 2 * wrong.size * float(norm_sf(least[i, v])))
        found.append(Whole(i, v, float(factors[0][i, v]), 1 - chance))
    return found
