"""A course folded onto itself: one variable that rises and falls, whose slices of one level lie side by side.

Several variables whose means move along one line, as two that swing together, are one variable here: their position on it.

Ordered by level, `x_jt = a_j + b_j m_t + e_jt`, the course m of one steady rise is smooth; that of a fold is two courses
shuffled into each other, and its gaps are irregular. So the course is judged by third differences, as smooth (up to a
tenth of a gap) or shuffled (up to four tenths), beside the error of its means; and folds simulated with the same
errors tell how often one would look as smooth. Where that is not rare a fold cannot be excluded. What subjects
differ by can exclude it, too: if it lasts from one slice to the next, these are neighbours in time. (A folded order jumps
between the way there and the way back: residuals of successive steps are negatively correlated, or the steps unequal.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, evenly, in_order, pick, to_numpy

MAX_TRAJECTORIES_USED, MIN_TRAJECTORIES_USED, MAX_NUMBERS_USED = 500, 50, 200_000
"""Trajectories, evenly spaced, that tell a fold; of several variables fewer, as many as have so many numbers."""

MIN_SLICES_JUDGED = 5
"""Slices without which there is no course to judge."""

SIGNIFICANT_Z = 1.96
"""Standard errors of a correlation that chance exceeds once in twenty."""

STEADY_CORRELATION = 0.35
"""Correlation of successive residuals along sorted values, above which single courses are steady: it is .5 to .65 of growing
children, chicks and logistic curves, at most .25 of curves that rise in a fifth of the time and fall in the rest."""

SMOOTH_ERROR, SHUFFLED_ERROR = 0.1, 0.4
"""How far levels lie from a smooth course, in gaps, if it is one, and if two are shuffled: levels that fall anywhere
between their neighbours have a standard deviation of 0.29 to 0.5 gaps."""

BEND_DEVIATIONS = (0.0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Standard deviations, in gaps, of the third differences that the bends of a course bring; the likeliest counts."""

SIMULATED_FOLDS, POSSIBLE_FOLD_SHARE, MIN_SMOOTH_NATS = 499, 0.02, 2.0
"""Folds that are simulated, the share of them that may look smoother before a fold counts as possible, and the nats for a
smooth course below which it does, too."""

NATS_A_DIFFERENCE, MAX_SUSPECT_NATS = 1 / 8, 1.5
"""Nats for a smooth course, for each third difference and in all, below which a fold is suspected without another sign: of folds
with an early peak and absent rows one in a hundred reached 1; 1.5 costs two in a hundred of growing courses."""

MIN_LINE_RATIO, MAX_CONDITION = 8.0, 1e10
"""How many times farther than by noise the means of several variables must move along one line, and along no other by more, to
be one variable; and the condition number of what is left beyond which nothing is decided."""

GAPS_AVERAGED = 5
"""Gaps that are averaged to tell the typical one, or a quarter of them."""

MIN_TURN_SHARE, MIN_TURN_ERRORS = 0.25, 6.0
"""A course that goes back by so much of its range, and by so many standard errors, has changed direction."""


@dataclass(frozen=True)
class Fold:
    """The order may be folded with this probability; 0: it shows the turn, and is not folded, but it has turned."""

    probability: float


class SortedLevels(NamedTuple):
    """Levels (T,) in ascending order, and the variance of their errors: white, and of a random walk, per step."""

    levels: Array
    white: float
    walk: float

    @property
    def covariance(self) -> Array:
        """Of the levels' errors, (T, T)."""
        k = np.arange(len(self.levels), dtype=float)
        return self.white * np.eye(len(k)) + self.walk * np.minimum.outer(k, k)


def may_fold(x: Array, rng: np.random.Generator, *, unequal: bool = True) -> Fold | None:
    """Whether what stands on one line, (n, T) along a shared order, may lie folded; values may be missing (NaN).

    `unequal`: the steps along it differ by more than chance.
    """
    T, (levels, course) = x.shape[1], _judged(x)
    if _turns(levels, course):
        return Fold(0.0)
    z, _ = lasting(x)
    evidence, chance = smoothness(course, rng)
    doubt = 0.0 if z >= SIGNIFICANT_Z else min(MAX_SUSPECT_NATS, NATS_A_DIFFERENCE * (T - 3))
    suspected = evidence < doubt or (z < SIGNIFICANT_Z and (unequal or z < -SIGNIFICANT_Z))
    if not suspected or (chance <= POSSIBLE_FOLD_SHARE and evidence >= MIN_SMOOTH_NATS):
        return None
    return Fold(max(0.5, 1 / (1 + float(np.exp(min(evidence, 50.0))))))


def turned(x: Array) -> Fold | None:
    """Along the order the course goes back by more than its errors: the turn is there to be seen, and not folded."""
    return Fold(0.0) if _turns(*_judged(x)) else None


def _judged(x: Array) -> tuple[Array, SortedLevels]:
    """Levels along the order, and their course in ascending order."""
    levels, rest = _levels(x)
    upward = np.argsort(levels)
    return levels, _course(levels[upward], rest[:, upward], len(x))


def on_line(data: Data, order: Indices) -> Array | None:
    """Where some trajectories' observations stand on the line along which the slices' means move, (n, T) in a shared
    order: one variable itself, or several whose means move along no other; None: there is no such line.

    In units of the means' standard errors, in which noise alone moves them by √T + √d in any direction.
    """
    n, T, d = data.shape
    if T < MIN_SLICES_JUDGED:
        return None
    size = (
        MAX_TRAJECTORIES_USED
        if d == 1
        else min(MAX_TRAJECTORIES_USED, max(MIN_TRAJECTORIES_USED, MAX_NUMBERS_USED // (T * d)))
    )
    x = to_numpy(pick(data.values, evenly(n, size), 0))
    x = np.asarray(in_order(x, order))
    if d == 1:
        return x[:, :, 0]
    if np.isnan(x).all(axis=0).any():
        return None  # a slice in which nobody's value of a variable is known has no mean
    means = np.nanmean(x, axis=0)
    rest = (x - means).reshape(-1, d)
    rest = rest[~np.isnan(rest).any(axis=1)]
    spread = rest.T @ rest / max(len(rest), 1)
    if len(rest) <= d or np.linalg.cond(spread) > MAX_CONDITION:
        return None
    white = np.linalg.inv(np.linalg.cholesky(spread)).T
    moved = (means - means.mean(axis=0)) @ white * np.sqrt(len(x))
    _, sizes, axes = np.linalg.svd(moved, full_matrices=False)
    noise = np.sqrt(T) + np.sqrt(d)
    if sizes[1] > noise or sizes[0] < MIN_LINE_RATIO * noise:
        return None
    return np.asarray(x @ white @ axes[0])


def may_fold_each(data: Data) -> Fold | None:
    """Whether one variable may lie folded in orders of their own: sorted, the subjects' values do not go on as they went.

    Any course of one variable can be sorted; only one that is smooth in each subject is not likely two.
    """
    rows = evenly(data.shape[0], MAX_TRAJECTORIES_USED)
    x = to_numpy(pick(data.values, rows, 0))[:, :, 0]
    x = np.where(data.lengths.take(rows).mask, x, np.nan)
    z, correlation = lasting(np.sort(x, axis=1))
    return None if z >= SIGNIFICANT_Z and correlation >= STEADY_CORRELATION else Fold(0.0)


def lasting(x: Array) -> tuple[float, float]:
    """The correlation between successive residuals of an affine step along an order, (n, T): its z, and itself; 0 where none are known."""
    before, after = x[:, :-1], x[:, 1:]
    known = ~np.isnan(before) & ~np.isnan(after)
    if known.sum() <= 2:  # a line goes through two
        return 0.0, 0.0
    slope, level = np.polyfit(before[known], after[known], 1)
    e = after - slope * before - level
    products = e[:, 1:] * e[:, :-1]
    squares = np.nansum(e**2)
    count = int((~np.isnan(products)).sum())
    correlation = float(np.nansum(products) / squares) if squares > 0 else 0.0
    return correlation * float(np.sqrt(count)), correlation


def _levels(x: Array, *, rounds: int = 30) -> tuple[Array, Array]:
    """m of `x_jt = a_j + b_j m_t` by least squares, b 1 on average, and what is left; by turns."""
    known = ~np.isnan(x)
    filled = np.where(known, x, 0.0)
    counts = known.sum(axis=1)
    m = filled.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    for _ in range(rounds):
        centre = (known * m).sum(axis=1) / counts
        mean = filled.sum(axis=1) / counts
        shift = known * (m - centre[:, None])
        slopes = (shift * (filled - mean[:, None])).sum(axis=1)
        slopes /= np.maximum((shift**2).sum(axis=1), 1e-300)
        if not abs(slopes.mean()) > 1e-9:
            slopes = np.ones(len(x))
        b = slopes / slopes.mean()
        a = mean - b * centre
        before, m = m, (known * b[:, None] * (filled - a[:, None])).sum(axis=0)
        m /= np.maximum((known * b[:, None] ** 2).sum(axis=0), 1e-300)
        if np.abs(m - before).max() <= 1e-9 * np.ptp(m):
            break
    return m, np.where(known, x - a[:, None] - b[:, None] * m, np.nan)


def _course(levels: Array, rest: Array, n: int) -> SortedLevels:
    """The errors of levels, from the third differences of what subjects differ by beside level and scale.

    White errors w and steps r of a random walk give them variance 20 w + 6 r and covariance −15 w − 4 r at lag one.
    """
    e = np.diff(rest, 3, axis=1)
    products = e[:, 1:] * e[:, :-1]
    c0 = float(np.nanmean(e**2)) if not np.isnan(e).all() else float(np.nanvar(rest)) * 20
    c1 = float(np.nanmean(products)) if not np.isnan(products).all() else -0.75 * c0
    white, walk = (-4 * c0 - 6 * c1) / 10, (15 * c0 + 20 * c1) / 10
    if walk < 0:
        white, walk = c0 / 20, 0.0
    elif white < 0:
        white, walk = 0.0, c0 / 6
    fitted = n / max(n - 2, 1) / n  # two numbers of each subject were fitted
    return SortedLevels(levels, white * fitted, walk * fitted)


def _turns(levels: Array, course: SortedLevels) -> bool:
    """Along the order the course goes back by more than its errors, so that the turn is there to be seen."""
    back = (np.maximum.accumulate(levels) - levels).max()
    forth = (levels - np.minimum.accumulate(levels)).max()
    turn = min(back, forth)
    error = np.sqrt(course.white + course.walk * len(levels))
    return bool(turn > MIN_TURN_SHARE * np.ptp(levels) and turn > MIN_TURN_ERRORS * error)


def smoothness(course: SortedLevels, rng: np.random.Generator) -> tuple[float, float]:
    """Nats for a smooth course against a shuffled one, and the share of simulated folds that reach as many."""
    T = len(course.levels)
    side = max(GAPS_AVERAGED, T // 4) // 2
    gaps = np.pad(np.gradient(course.levels), side, mode="edge")
    gaps = np.convolve(gaps, np.full(2 * side + 1, 1 / (2 * side + 1)), "valid")
    gaps = np.maximum(gaps, 1e-9 * max(float(np.ptp(course.levels)), 1e-300))
    third = np.diff(np.eye(T), 3, axis=0)
    drawn = np.sort(_folds(gaps, rng) + _errors(course, rng), axis=1)
    y = np.concatenate([course.levels[None], drawn]) @ third.T
    smooth, shuffled = (
        _log_density(y, third @ (course.covariance + np.diag((far * gaps) ** 2)) @ third.T, gaps)
        for far in (SMOOTH_ERROR, SHUFFLED_ERROR)
    )
    evidence = smooth - shuffled
    share = (1 + float((evidence[1:] >= evidence[0]).sum())) / (1 + SIMULATED_FOLDS)
    return float(evidence[0]), share


def _errors(course: SortedLevels, rng: np.random.Generator) -> Array:
    T = len(course.levels)
    white = np.sqrt(course.white) * rng.standard_normal((SIMULATED_FOLDS, T))
    walk = np.sqrt(course.walk) * rng.standard_normal((SIMULATED_FOLDS, T))
    return white + np.cumsum(walk, axis=1)


def _folds(gaps: Array, rng: np.random.Generator) -> Array:
    """Levels (SIMULATED_FOLDS, T) of two ways along one course, each regular, which meet anywhere in the middle of time."""
    T = len(gaps)
    levels = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    found = np.empty((SIMULATED_FOLDS, T))
    for row in found:
        up = int(np.clip(round(T * rng.uniform(0.2, 0.8)), 2, T - 2))
        places = [(np.arange(size) + rng.random()) / size for size in (up, T - up)]
        row[:] = np.interp(np.concatenate(places) * (T - 1), np.arange(T), levels)
    return np.sort(found, axis=1)


def _log_density(y: Array, covariance: Array, gaps: Array) -> Array:
    """Log-densities of third differences (…, T − 3), at the likeliest bend of the course."""
    unit, best = float(np.median(gaps)) ** 2, np.full(len(y), -np.inf)
    for bend in BEND_DEVIATIONS:
        factor = np.linalg.cholesky(
            covariance + (bend**2 * unit + 1e-12 * unit) * np.eye(len(covariance))
        )
        z = np.linalg.solve(factor, y.T)
        best = np.maximum(best, -np.log(np.diag(factor)).sum() - 0.5 * (z**2).sum(axis=0))
    return best


def folded_orders(order: Indices, count: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Ways (count, T) in which an order by level may unfold: each slice on the way there or on the way back.

    Half of them turn at one end, half at the other; which slice is on which way these data do not tell.
    """
    found = np.empty((count, len(order)), dtype=np.int16)
    there = rng.random((count, len(order))) < 0.5
    for k, row in enumerate(found):
        path = order if k % 2 else order[::-1]
        row[:] = np.concatenate([path[there[k]], path[~there[k]][::-1]])
    return found
