"""Columns without dynamics of their own: clocks, running totals, constants in time, near copies.

Such a column has no diffusion: the rounding of an age, not the process, would decide on the direction of time. A
clock moves alike in all subjects, `x_jt = α_j + τ_t`; a running total at each subject's own rate, `x_jt = α_j + β_j τ_t`;
both up to rounding. Shared slices are in unknown order, which these forms do not need; with own orders, each
subject's values are sorted first, since a clock is its own order. A variable that grows fast is neither: subjects
differ in it by more than rounding, and the differences persist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import Data, evenly, in_order, pick, to_numpy
from retrace_sde.panel.order import Order

CLOCK_SAMPLE, FIRST_CLOCK_SAMPLE = 200, 24
"""Trajectories, evenly spaced, by which a clock is recognised, and those that rule one out first."""

ROUNDING_SAMPLE = 50
"""Values that mostly suffice to see that a variable is not rounded."""

MIN_CLOCK_SUBJECTS, MIN_DEGREES, FEW_DEGREES = 3, 10, 100
"""Subjects, and residual degrees of freedom (n − 1)(T − 1), below which nothing is called; with few degrees a rounded clock
must tick (nearly) at every step, and reading errors are not looked for."""

FULL_TICKS_PER_STEP = 0.8
"""Units of rounding per step of a clock that ticks (nearly) at every step."""

MAX_ROUNDING_ERROR = 0.55
"""Largest distance from a clock, in units of rounding: half a unit, and what the iteration has yet to gain."""

MAX_RELATIVE_ERROR = 1e-4
"""The same relative to the typical step of a clock that is not rounded: float32 keeps seven digits of hundreds of steps."""

MAX_STEP_RANGE = 0.01
"""Range of the steps of a running total that is not rounded, relative to their mean."""

MIN_TICKS = 2.0
"""Units of rounding that a clock moves by at least, in the mean over subjects: a score with two levels is not a clock."""

MAX_READING_ERROR, MAX_LAG_CORRELATION, MAX_VARIANCE_RATIO, MIN_TIMES = 0.05, -0.4, 3.0, 12
"""A clock that is read with errors: their size relative to a step, the lag-one correlation of their differences, how
much larger their squares may be at one time than at the median time, and the times needed to see it. Reading errors are
white (correlation −1/2) and have the same variance at all times; in a process that diffuses, differences between subjects
persist (0 or more), or come and go."""

MIN_TICKS_PER_STEP = 0.25
"""Least mean step of sorted values in units of rounding: many draws from few levels, sorted, look alike too."""

MIN_CORRELATION = 0.6
"""Correlation over time of two subjects' values, lower than rounding can make it for a clock."""

ONE_COURSE_SHARE = 1e-3
"""Share of the squares beyond one course of a column that surely is no running total: errors of 1e-4 of a step (`MAX_RELATIVE_ERROR`) leave 3e-6 / T²."""

MAX_MEAN_STEP = 1.3
"""Largest mean step of distinct whole numbers of a counter, which may skip some."""

ROUNDED_COPY_SHARE, NEAR_COPY_SHARE, EXACT_COPY_SHARE = 1e-3, 1e-8, 1e-20
"""Share of a column's squares that a regression on others leaves: of a rounded copy, of any near copy, and of an exact one
(which is refused)."""

MAX_COPY_ERROR, MAX_COPIED_COLUMNS = 0.75, 3
"""Largest residual of a rounded copy, in units of rounding, and how many columns it may combine: states that grow a
millionfold are nearly combinations of many."""

MAX_DISTANCE_RATIO = 100.0
"""Largest distance from the median, relative to the typical one, of a process that does not explode."""

COPY_SAMPLE, NEAR_MEAN_SHARE = 1000, 0.2
"""Rows on which copies are looked for, and the share of them too near the mean to be weighted by their size."""


COARSE_STEP = 1.0
"""Steps shorter than so many units of rounding are coarse: rounding then makes up a sixth of their variance."""


class Why(StrEnum):
    """Why a column is left out."""

    CLOCK = "clock"
    LOOSE_CLOCK = "nearly a clock"
    TOTAL = "running total"
    STILL = "constant in time"
    COPY = "near copy"


@dataclass(frozen=True)
class LeftOut:
    """A column that the fit leaves out, its place among the variables, and why; `of`: the column that it repeats."""

    name: str
    index: int
    why: Why
    of: str = ""

    @property
    def sentence(self) -> str:
        """What was found, and what to do about it."""
        return f"{self.found} It is left out{_ADVICE[self.why]}."

    @property
    def found(self) -> str:
        """What was found."""
        name = repr(self.name)
        if self.name == f"x{self.index}":
            name += f" (variable {self.index})"
        return f"{name} {_FOUND[self.why].format(of=self.of)}."


_FOUND = {
    Why.CLOCK: "looks like a clock: it moves by the same steps in all subjects",
    Why.LOOSE_CLOCK: "looks like a clock: it moves by nearly the same steps in all subjects",
    Why.TOTAL: "looks like a running total: it moves one way, in each subject at one rate",
    Why.STILL: "never changes within a subject, so it has no dynamics",
    Why.COPY: "repeats {of} but for rounding",
}

_NAME_IT = "; if it counts time, name it as the times (time=)"
_ADVICE = {
    Why.CLOCK: _NAME_IT,
    Why.LOOSE_CLOCK: _NAME_IT,
    Why.TOTAL: _NAME_IT,
    Why.STILL: "; it can be a covariate",
    Why.COPY: "",
}


def without_dynamics(
    data: Data, names: tuple[str, ...], *, shared: bool, by: Indices | None = None
) -> tuple[LeftOut, ...]:
    """The columns that a fit should leave out (`shared`: the slices are, in unknown order).

    `by` (n,): the trajectories sorted by content; the sample is taken along it, whatever order they are stored in.
    """
    n, T, d = data.shape
    if n < MIN_CLOCK_SUBJECTS or (n - 1) * (T - 1) < MIN_DEGREES:
        return ()
    first = _sampled(data, FIRST_CLOCK_SAMPLE, by)
    possible = np.flatnonzero(_similar(first) & ~_diffuse(first)).tolist() if shared else list(range(d))  # fmt: skip
    suspects = [k for k in possible if _why(first[:, :, k], shared=shared) is not None]
    repeated = _repeated(first, suspects)
    if not suspects and not repeated:
        return ()
    x = _sampled(data, CLOCK_SAMPLE, by)
    found = {k: why for k in suspects if (why := _why(x[:, :, k], shared=shared)) is not None}
    if (
        len(found) == d
    ):  # a process whose every variable runs nearly like a clock is one that hardly diffuses
        found = {k: why for k, why in found.items() if why is not Why.LOOSE_CLOCK}
    left = [LeftOut(names[k], k, why) for k, why in found.items()]
    again = _repeated(x, list(found)) if repeated else {}
    for k, others in again.items():
        left.append(LeftOut(names[k], k, Why.COPY, ", ".join(repr(names[m]) for m in others)))
    return tuple(left)


def by_least(lows: Array) -> Indices:
    """Trajectories in the order of their least values, (n, k)."""
    return np.lexsort(lows.T[::-1])


def rounding(values: Array) -> float:
    """The largest power of ten, from 100 to 10⁻⁶, of which all values are multiples; 0: none."""
    few = np.abs(values.flat[:ROUNDING_SAMPLE])  # what these are not multiples of, all are not
    possible = [digits for digits in range(-2, 7) if _are_multiples(few[~np.isnan(few)], digits)]
    known = np.abs(values[~np.isnan(values)]) if possible else few
    return next((10.0**-digits for digits in possible if _are_multiples(known, digits)), 0.0)


def _are_multiples(known: Array, digits: int) -> Mask:
    """Whether the columns of sizes (m, …) hold multiples of ten to the power of −digits."""
    scaled = known * 10.0**digits
    # beside values of one or more what is near 0 is 0; where all are far smaller, none is a multiple
    size = np.maximum(scaled, np.minimum(scaled.max(axis=0, initial=0.0), 1.0))
    near = np.abs(scaled - np.round(scaled)) <= 1e-9 * size
    return np.asarray(near.all(axis=0))


def _maybe_rounded(rows: Array) -> Mask:
    """Which columns of rows (m, d) may be multiples of a power of ten, by the first ones; what is missing may be."""
    few = np.abs(np.nan_to_num(rows[:ROUNDING_SAMPLE]))
    return np.asarray(np.any([_are_multiples(few, digits) for digits in range(-2, 7)], axis=0))


def _sampled(data: Data, size: int, by: Indices | None = None) -> Array:
    """Some trajectories (m, T, d) in numpy, evenly spaced in an order, NaN beyond their lengths."""
    rows = evenly(data.shape[0], size)
    return _of(data, rows if by is None else by[rows])


def _of(data: Data, rows: Indices) -> Array:
    """The given trajectories, likewise."""
    x = to_numpy(pick(data.values, rows, 0))
    if not data.lengths.ragged:
        return x
    return np.where(data.lengths.take(rows).mask[:, :, None], x, np.nan)


def _similar(x: Array) -> Mask:
    """Which columns of (m, T, d) run alike in most pairs of trajectories, or do not run at all: a quick first look."""
    z = np.nan_to_num(x - _mean(x, 1)[:, None])
    sizes = np.sqrt((z**2).sum(axis=1, keepdims=True))
    z = z / np.where(sizes > 0, sizes, 1.0)
    pairs = np.abs(z.transpose(2, 0, 1) @ z.transpose(2, 1, 0))[:, *np.triu_indices(len(x), 1)]
    moving: Mask = sizes[:, 0].T[:, :, None] * sizes[:, 0].T[:, None] > 0
    moving = moving[:, *np.triu_indices(len(x), 1)]
    typical = np.array(
        [np.median(r[m]) if m.any() else 1.0 for r, m in zip(pairs, moving, strict=True)]
    )
    return typical > MIN_CORRELATION


def _diffuse(x: Array) -> Mask:
    """Which columns of (m, T, d), without missing values and not rounded, surely are neither a clock nor a running total: a quick look at all of them."""
    d = x.shape[2]
    if np.isnan(x).any():
        return np.zeros(d, dtype=bool)
    rounded = _maybe_rounded(x.reshape(-1, d))
    centred = x - x.mean(axis=1, keepdims=True)
    course = centred.mean(axis=0)
    rest = centred - course
    along = np.argsort(course, axis=0)
    step = np.median(np.diff(np.take_along_axis(course, along, axis=0), axis=0), axis=0)
    jumps = np.diff(np.take_along_axis(rest, along[None], axis=1), axis=1)
    loose = np.sqrt((jumps**2).mean(axis=(0, 1))) <= MAX_READING_ERROR * step
    clock = np.sqrt((rest**2).mean(axis=(0, 1))) <= MAX_RELATIVE_ERROR * step
    products = centred.transpose(2, 0, 1) @ centred.transpose(2, 1, 0)
    squares = products.trace(axis1=1, axis2=2)
    # of rows that are multiples of one course, Σ σ⁴ = (Σ σ²)²
    total = (products**2).sum(axis=(1, 2)) >= (1 - ONE_COURSE_SHARE) * squares**2
    moving = (np.ptp(x, axis=1) > 0).any(axis=0)
    return np.asarray(moving & ~rounded & ~(loose | clock | total))


def _why(column: Array, *, shared: bool) -> Why | None:
    """What a column (n, T) is, if it has no dynamics."""
    column = column[(~np.isnan(column)).sum(axis=1) >= 2]
    if len(column) < 2:
        return None
    low, high = np.nanmin(column, axis=1), np.nanmax(column, axis=1)
    if np.all(low == high):
        return Why.STILL if low.max() > low.min() else None  # the same everywhere: refused by name
    if not shared:
        column = np.sort(column, axis=1)  # NaN goes last
    column = column[:, (~np.isnan(column)).sum(axis=0) >= 2]
    column = column[~np.isnan(column).all(axis=1)]
    if len(column) < 2 or column.shape[1] < 3:
        return None
    unit = rounding(column)
    if _is_clock(column, unit, shared=shared) or (not shared and _is_counter(column, unit)):
        return Why.CLOCK
    if not _few(column) and column.shape[1] >= MIN_TIMES and _is_loose(*_additive(column, _mean)):
        return Why.LOOSE_CLOCK
    return Why.TOTAL if _is_total(column, unit, shared=shared) else None


def _is_clock(column: Array, unit: float, *, shared: bool) -> bool:
    """`x_jt = α_j + τ_t`, exactly or to rounding."""
    rest, course = _additive(column, _mean)
    exact = MAX_RELATIVE_ERROR * float(np.median(np.diff(np.sort(course))))
    if np.sqrt(np.nanmean(rest**2)) > max(exact, MAX_ROUNDING_ERROR * unit):
        return False  # nor is the largest as small, whatever the fit
    rest, course = _additive(column, _midrange)
    worst = float(np.nanmax(np.abs(rest)))
    if worst <= exact:
        return True
    reach = float(np.mean(np.nanmax(column, axis=1) - np.nanmin(column, axis=1)))
    return worst <= MAX_ROUNDING_ERROR * unit and _ticks(reach, unit, column, shared=shared)


def _few(column: Array) -> bool:
    n, T = column.shape
    return (n - 1) * (T - 1) < FEW_DEGREES


def _ticks(reach: float, unit: float, column: Array, *, shared: bool) -> bool:
    """A rounded clock moves so far, in units of its rounding, that it is not one by chance."""
    per_step = FULL_TICKS_PER_STEP if _few(column) else 0.0 if shared else MIN_TICKS_PER_STEP
    return reach >= unit * max(MIN_TICKS, per_step * (column.shape[1] - 1))


def _additive(column: Array, centre: Callable[[Array, int], Array]) -> tuple[Array, Array]:
    """What is left of `x_jt − α_j − τ_t`, and τ: centres of rows and columns by turns, until they stand.

    Means leave the least squares; midranges make the largest as small as can be (Diliberto & Straus 1951).
    """
    rest, course = column.copy(), np.zeros(column.shape[1])
    for _ in range(60):
        rest -= centre(rest, 1)[:, None]
        move = centre(rest, 0)
        rest -= move
        course += move
        if np.abs(move).max() <= 1e-3 * np.nanmax(np.abs(rest)):
            break
    return rest, course


def _mean(values: Array, axis: int) -> Array:
    """The mean of what is known; NaN, without numpy's warning, where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    mean: Array = np.where(known, values, 0.0).sum(axis=axis) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)


def _midrange(values: Array, axis: int) -> Array:
    middle: Array = (np.nanmax(values, axis=axis) + np.nanmin(values, axis=axis)) / 2
    return middle


def _is_loose(rest: Array, course: Array) -> bool:
    """Errors far smaller than the steps, and white: their differences, along the clock, are anticorrelated."""
    along = np.argsort(course)
    jumps = np.diff(rest[:, along], axis=1)
    jumps = jumps - _mean(jumps, 0)
    squares, products = _mean(jumps**2, 0), jumps[:, 1:] * jumps[:, :-1]
    if np.isnan(products).all() or np.sqrt(np.nanmean(jumps**2)) > MAX_READING_ERROR * np.median(
        np.diff(course[along])
    ):
        return False
    white = np.nanmean(products) < MAX_LAG_CORRELATION * np.nanmean(squares)
    return bool(white and np.nanmax(squares) <= MAX_VARIANCE_RATIO * np.nanmedian(squares))


def _is_counter(column: Array, unit: float) -> bool:
    """Sorted values of each subject are distinct multiples of a unit, with few of them skipped."""
    steps = np.diff(column, axis=1)
    steps = steps[~np.isnan(steps)]
    least = steps.min()
    return bool(unit and least >= unit and steps.mean() <= MAX_MEAN_STEP * least)


def _is_total(column: Array, unit: float, *, shared: bool) -> bool:
    """`x_jt = α_j + β_j τ_t` to rounding, going one way in all subjects, and far enough in a quarter of them."""
    whole = column[~np.isnan(column).any(axis=1)]
    if len(whole) < MIN_CLOCK_SUBJECTS:
        return False
    centred = whole - whole.mean(axis=1, keepdims=True)
    left, size, right = np.linalg.svd(centred, full_matrices=False)
    rest = centred - size[0] * np.outer(left[:, 0], right[0])
    reach = np.ptp(whole, axis=1)
    far = np.array([_ticks(each, unit, whole, shared=shared) for each in reach])
    one_way = np.all(left[far, 0] > 0) or np.all(left[far, 0] < 0)
    steps = np.diff(np.sort(right[0])) * size[0] * np.abs(left[:, 0]).max()
    # Not rounded, it must count by equal steps: what grows from anywhere at one rate has this form, too.
    equal = np.ptp(steps) <= MAX_STEP_RANGE * steps.mean()
    near = np.abs(rest).max() <= max(
        MAX_ROUNDING_ERROR * unit, MAX_RELATIVE_ERROR * np.median(steps) if equal else 0.0
    )
    return bool(near and one_way and far.sum() >= max(MIN_CLOCK_SUBJECTS, len(whole) / 4))


def _repeated(x: Array, without: list[int]) -> dict[int, list[int]]:
    """Columns that are, but for rounding, linear functions of others before them, and of which; some are not asked.

    Rows count by their size, large or small, and columns that grow a hundredfold not at all: large states lie near a line.
    """
    rows = x.reshape(-1, x.shape[2])
    rows = rows[np.lexsort(rows.T[1::-1])]  # wherever they are stored
    rows = rows[evenly(len(rows), COPY_SAMPLE)]
    rows = rows[~np.isnan(rows).any(axis=1)]
    if len(rows) < MIN_DEGREES:
        return {}
    far = np.abs(rows - np.median(rows, axis=0))
    calm = far.max(axis=0) <= MAX_DISTANCE_RATIO * np.median(far, axis=0)
    asked = [k for k in range(x.shape[2]) if k not in without and calm[k] and far[:, k].any()]
    found: dict[int, list[int]] = {}
    while 2 <= len(asked) < len(rows) / 2:
        z = rows[:, asked] - rows[:, asked].mean(axis=0)
        z = np.column_stack([z / np.maximum(np.abs(z).max(axis=0), 1e-300), np.ones(len(z))])
        sizes = np.linalg.norm(z[:, :-1], axis=1, keepdims=True)
        z /= np.maximum(sizes, np.quantile(sizes, NEAR_MEAN_SHARE) or sizes.max())
        values, directions = np.linalg.eigh(z.T @ z)
        if values[0] > ROUNDED_COPY_SHARE * values[-1]:
            break
        involved = np.flatnonzero(
            np.abs(directions[:-1, 0]) > 0.1 * np.abs(directions[:-1, 0]).max()
        )
        last, others = asked[involved[-1]], [asked[k] for k in involved[:-1]]
        if not 1 <= len(others) <= MAX_COPIED_COLUMNS or not _repeats(
            rows[:, last], rows[:, others], z[:, -1]
        ):
            break
        found[last] = others
        asked.remove(last)
    return found


def _repeats(one: Array, others: Array, weights: Array) -> bool:
    """The column is a linear function of the others up to their rounding, but not exactly (that is refused)."""
    X = np.column_stack([others - others.mean(axis=0), np.ones(len(one))])
    slopes, *_ = np.linalg.lstsq(X * weights[:, None], one * weights, rcond=None)
    rest = one - X @ slopes
    share = float(((rest * weights) ** 2).sum() / (((one - one.mean()) * weights) ** 2).sum())
    units = [rounding(each) for each in others.T]
    allowed = MAX_COPY_ERROR * (rounding(one) + float(np.abs(slopes[:-1]) @ units))
    return (
        EXACT_COPY_SHARE
        < share
        < (ROUNDED_COPY_SHARE if np.abs(rest).max() <= allowed else NEAR_COPY_SHARE)
    )


def coarse(data: Data, order: Indices, names: tuple[str, ...]) -> tuple[str, ...]:
    """A sentence for each variable whose rounding is as coarse as its steps along an order."""
    (n, T, d), said = data.shape, list[str]()
    rows = evenly(n, CLOCK_SAMPLE)
    few = _of(data, rows[: -(-ROUNDING_SAMPLE // T)]).reshape(-1, d)
    possible = np.flatnonzero(_maybe_rounded(few))
    if not len(possible):
        return ()
    x, along = _of(data, rows), Order.of(order).take(rows).index
    for k in possible:
        unit, name = rounding(x[:, :, k]), names[k]
        if unit == 0:
            continue
        steps = np.diff(in_order(x[:, :, k : k + 1], along), axis=1) ** 2
        known = steps[~np.isnan(steps)]
        size = float(np.sqrt(known.mean())) if known.size else np.inf
        if size < COARSE_STEP * unit:
            said.append(
                f"{name!r} is rounded to {unit:g}, coarse beside its steps (typically {size:.2g}): rounding then acts "
                "like measurement noise, which observation_noise='estimate' takes into account."
            )
    return tuple(said)
