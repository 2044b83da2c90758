"""Cells that hold equal values for a reason other than the process: carried forward, cut off at a limit, or few values in all.

Rounding alone makes some cells equal, too, the more the coarser it is. What is looked for here is what rounding does not
explain: rows of a subject that repeat another of its rows in every variable (the order is not needed for that), a pile of
equal values at one end of a column, and columns that hold few distinct values.

Limits: a column rounded as coarsely as its steps repeats by itself, and copies are then not distinguished from chance; values carried
forward in one variable at a time are not looked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly, in_order
from retrace_sde.process.tails import binom_sf

COPY_LEVEL, MIN_COPIES, MIN_COPY_SHARE = 1e-4, 4, 0.05
"""Level at which repeated rows are more than chance, how many there are at least, and their share: fewer (exchange rates that are
pegged for some months) hardly change an answer."""

ROUNDING_MARGIN = 1.5
"""Rows that agree in a variable by rounding, relative to those one unit away from another on either side: half as many if
differences are spread evenly, up to three times that if small ones are more frequent."""

PEAKED, PAIRS_COMPARED, ROUNDING_ERROR = 1.5, 5_000_000, 1e-12
"""Ratio of differences of one unit to those of two beyond which rounding is coarse; pairs of values compared; and the share of a
column's range that floating-point rounding makes of equal values."""

MIN_PILE, MIN_PILE_SHARE, PILE_RATIO = 5, 0.02, 5.0
"""Cells of a pile beside the first of each subject at least, their share of the column, and how many times as many as at any other value."""

MIN_PILE_LEVELS = 10
"""Distinct values beside a pile, below which the column holds few values and no limit shows."""

TREND_LEVEL = 0.2
"""Level at which the share of a pile changes along the order: a small change suffices to bend means and spreads."""

SPARSE_SHARE = 0.5
"""Share of pairs of cells that are equal, from which a variable says little of time."""

TIED_SHARE = 0.15
"""Probability that two cells of different subjects are equal, above which a column counts as tied. Rounding to a step of u standard
deviations gives u/(2√π): it is reached at half a standard deviation."""


@dataclass(frozen=True, eq=False)
class Pile:
    """Equal values at one end of a variable: which, its side ("lowest" or "highest") and the cells (n, T) that hold it.

    `value`: NaN where each slice has a limit of its own.
    """

    variable: int
    side: str
    cells: Mask
    value: float = float("nan")

    def sentence(self, name: str) -> str:
        """What was found, and what to do about it."""
        count = int(self.cells.sum())
        where = f"value, {self.value:.4g}" if self.value == self.value else "value of their slice"
        return (
            f"{name!r} has {count} cells ({count / self.cells.size:.0%}) at the {self.side} {where}, many times as many as at any "
            "other: a detection limit? Values beyond a limit are unknown, not equal. If there are measurements without the limit, "
            "use them; if it is a dose, make it an input (covariates); the direction is left open where the share of such cells changes along the order."
        )


def carried_forward(x: Array) -> Mask | None:
    """The rows (n, T) of x (n, T, d) that another row of their subject repeats in every variable; None where that may be chance."""
    d = x.shape[2]
    known = ~np.isnan(x).any(axis=2)
    order = np.lexsort((*x.transpose(2, 0, 1), ~known), axis=1)  # equal rows become neighbours
    along = np.take_along_axis(x, order[:, :, None], axis=1)
    same = (along[:, 1:] == along[:, :-1]).all(axis=2)
    copies = np.zeros(known.shape, dtype=bool)
    for side in (order[:, 1:], order[:, :-1]):
        j, t = np.nonzero(same)
        copies[j, side[j, t]] = True
    count, total = int(copies.sum()), int(known.sum())
    if count < max(MIN_COPIES, MIN_COPY_SHARE * total):
        return None
    expected = math.prod(min(_equal_by_chance(x[:, :, k]), 1.0) for k in range(d))
    return copies if binom_sf(count - 1, total, expected) <= COPY_LEVEL else None


def _equal_by_chance(column: Array) -> float:
    """The probability that rounding makes a value (n, T) equal to another of its subject.

    By how many are one unit away from another, since small differences are spread evenly if rounding is fine; 1 if they are not, and by
    how often values of different subjects are equal.
    """
    n, T = column.shape
    across = 1 - (1 - _agreement(column)) ** (T - 1)
    gaps = np.diff(np.unique(column[~np.isnan(column)]))
    gaps = gaps[gaps > ROUNDING_ERROR * gaps.sum()]
    if not len(gaps):
        return 1.0
    some = column[evenly(n, max(1, PAIRS_COMPARED // T**2))]
    units = np.abs(some[:, :, None] - some[:, None, :]) / gaps.min()
    one, two = (np.abs(units - k) < 0.01 for k in (1, 2))
    near, far = float(one.sum()) / 2, float(two.sum()) / 2
    if near > PEAKED * far + 3 * np.sqrt(near + PEAKED**2 * far + 1):
        return 1.0  # steps are not longer than the unit
    return max(across, ROUNDING_MARGIN * float(one.any(axis=2).mean()))


def _agreement(column: Array) -> float:
    """The probability that two cells of different subjects (n, T) hold the same value."""
    known = ~np.isnan(column)
    j = np.nonzero(known)[0]
    level = np.unique(column[known], return_inverse=True)[1]
    every = np.bincount(level).astype(float)
    own = np.unique(j * len(every) + level, return_counts=True)[1].astype(float)
    each = known.sum(axis=1).astype(float)
    pairs = each.sum() ** 2 - (each**2).sum()
    return float(((every**2).sum() - (own**2).sum()) / pairs) if pairs > 0 else 0.0


def piles(x: Array) -> tuple[Pile, ...]:
    """Piles of equal values at either end of the variables of x (n, T, d), or of their slices."""
    found = []
    for k in range(x.shape[2]):
        column = x[:, :, k]
        for side, sign in (("lowest", 1.0), ("highest", -1.0)):
            value = sign * np.fmin.reduce(sign * column, axis=None)
            cells, others = column == value, 1.0
            if _piled(cells, others):
                values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
                others = float(counts[values != value].max(initial=0))
            if not _piled(cells, others):
                cells, others = _within_slices(sign * column)
                value = np.nan
            if _piled(cells, others) and _many_levels(column):
                found.append(Pile(k, side, cells, float(value)))
    return tuple(found)


def _many_levels(column: Array) -> bool:
    return len(np.unique(column[~np.isnan(column)])) > MIN_PILE_LEVELS


def _piled(cells: Mask, others: float) -> bool:
    """So many cells hold one value, and so few any other, that it is a pile; one of each subject may be its common start."""
    again = int(np.maximum(cells.sum(axis=1) - 1, 0).sum())
    least = max(MIN_PILE_SHARE * cells.size, PILE_RATIO * others)
    return bool(again >= MIN_PILE and cells.sum() >= least)


def _within_slices(column: Array) -> tuple[Mask, float]:
    """The cells (n, T) at the least value of their slice where it is a pile there, and how many hold another value at most, in all."""
    cells, others = np.zeros(column.shape, dtype=bool), 0.0
    at_least = (column == np.fmin.reduce(column, axis=0)).sum(axis=0)
    for t in np.flatnonzero(at_least >= PILE_RATIO):
        values, counts = np.unique(column[~np.isnan(column[:, t]), t], return_counts=True)
        if len(values) > 1 and counts[0] >= PILE_RATIO * (next_most := counts[1:].max()):
            cells[:, t] = column[:, t] == values[0]
            others += float(next_most)
    return cells, others


def changing(along: Mask) -> bool:
    """The share of a pile's cells (n, T), in time order, has a trend.

    The variance is that of the subjects' own trends: they differ in how often they are at the limit, and stay there.
    """
    place = np.arange(along.shape[1]) - (along.shape[1] - 1) / 2
    trends = (along - along.mean(axis=1, keepdims=True)) @ place
    size = float(np.sqrt((trends**2).sum()))
    return size > 0 and 2 * float(ndtr(-abs(trends.sum()) / size)) < TREND_LEVEL


def doubtful_cells(x: Array, order: Indices) -> bool:
    """Equal cells may have made the direction.

    Rows of x (n, T, d) are carried forward, a pile changes along the order, (T,) or (n, T), or most cells of every variable are
    equal: the search then orders the few that are not, and of 32 sparse tables without any time five were called.
    """
    sparse = [share for _, share in tied(x) if share >= SPARSE_SHARE]
    if carried_forward(x) is not None or len(sparse) == x.shape[2]:
        return True
    return any(changing(in_order(each.cells[:, :, None], order)[:, :, 0]) for each in piles(x))


def tied(x: Array) -> tuple[tuple[int, float], ...]:
    """The variables of x (n, T, d) that hold few distinct values, and the share of pairs of cells that are equal."""
    shares = ((k, _agreement(x[:, :, k])) for k in range(x.shape[2]))
    return tuple((k, share) for k, share in shares if share > TIED_SHARE)
