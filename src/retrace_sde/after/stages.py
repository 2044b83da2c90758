"""Subjects at different stages of one course: each variable's course is one curve, on which subjects are shifted in time.

    x_j(t) = f(t + τ_j) + noise

f is a local linear smoother of all values over shifted times, τ_j the shift that brings subject j nearest to it, in turn. Stages are said to be seen
where the shifts leave at most a tenth of the variance between subjects unexplained, and explain the data better than intercepts of the
subjects' own do, by penalised log-likelihood.

Limits: one shared order with equal gaps, complete values. Exponential growth from different first values is the same as different stages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly, pick, to_numpy

MIN_STAGE_SUBJECTS, MIN_STAGE_SLICES, MAX_STAGE_SUBJECTS = 10, 6, 2000
"""Sizes between which stages are looked for: a course is estimated from many subjects, and takes time."""

MIN_TOGETHER = 0.8
"""Share of subjects whose last value lies to the same side of their first, below which there is no common course."""

MAX_UNEXPLAINED = 0.1
"""Share of the variance between subjects that shifts may leave. Measured on 5 panels each: growth that subjects enter at stages .02 to .03,
transients, trends, onsets, levels and rest .23 to .93."""

MIN_STAGE_NATS = 10.0
"""By which shifts must be better than intercepts."""

COURSE_ROUNDS, COURSE_POINTS, TRIED_PER_STEP = 8, 80, 4
"""Rounds of course and shifts, points of the course, and shifts that are tried for each step."""

KERNEL_REACH = 8
"""Steps beyond which the smoother's weights, e^{-32}, are rounding."""

PROBED_SUBJECTS, PROBED_SLICES, PROBED_ROUNDS, HOPELESS, MAYBE_TOGETHER = 60, 30, 2, 0.2, 0.6
"""Subjects, slices and rounds by which a large panel is looked at first, and the share left unexplained from which no others are: it
differs by at most .03 from that of all rounds on the whole panel where that is below .2 (6 courses, n from 30 to 500, T from 40 to 250, 3 panels each).
Nor are others where fewer than .6 of those subjects move together: .8 of all would be four standard errors away."""


class Course(NamedTuple):
    """Shifts (n,) of the subjects in steps, their standard errors, the share of the variance between subjects that they leave, and the
    penalised nats by which they are better than intercepts."""

    shifts: Array
    errors: Array
    unexplained: float
    gain: float


def time_shifts(values: Any, order: Indices) -> list[Course | None]:
    """Of each variable of values (n, T, d) along a time order; None where subjects do not seem to be at different stages of one course."""
    n, T, d = values.shape
    nothing: list[Course | None] = [None] * d
    if not MIN_STAGE_SUBJECTS <= n <= MAX_STAGE_SUBJECTS or T < MIN_STAGE_SLICES:
        return nothing
    some = to_numpy(pick(values, evenly(n, PROBED_SUBJECTS), 0))
    few = some[:, order[evenly(T, PROBED_SLICES)]]
    if few.size < n * T * d and not any(_promising(few[:, :, k]) for k in range(d)):
        return nothing  # large panels are not read as a whole
    x = to_numpy(values)
    if np.isnan(x).any():
        return nothing
    return [_course(x[:, order, k]) for k in range(d)]


def _promising(few: Array) -> bool:
    """A part of one variable does not rule out stages."""
    moving = few.std() > 0 and _together(few) >= MAYBE_TOGETHER
    return moving and _shifted(few, PROBED_ROUNDS).unexplained <= HOPELESS


def _together(x: Array) -> float:
    """The share of subjects that move the way of their mean."""
    moved = x[:, -1] - x[:, 0]
    way = np.sign(moved.mean())
    return float((np.sign(moved) == way).mean()) if way else 0.0


def _course(x: Array) -> Course | None:
    """Of one variable (n, T)."""
    if _together(x) < MIN_TOGETHER:
        return None
    found = _shifted(x, COURSE_ROUNDS)
    return found if found.unexplained <= MAX_UNEXPLAINED and found.gain >= MIN_STAGE_NATS else None


def _shifted(x: Array, rounds: int) -> Course:
    """The shifts of one variable (n, T) after some rounds."""
    z = (x - x.mean()) / x.std()
    n, T = z.shape
    slope = (z[:, -1] - z[:, 0]).mean() / (T - 1)
    shifts = (z.mean(axis=1) - z.mean()) / slope
    shifts = np.clip(shifts, -0.75 * (T - 1), 0.75 * (T - 1))
    tried = np.arange(-0.75 * (T - 1), 0.75 * (T - 1), 1 / TRIED_PER_STEP)
    for _ in range(rounds):
        grid, course = _smoothed(z, shifts)
        at = np.arange(T) + tried[:, None]
        fitted = np.interp(at, grid, course)
        squares = (z**2).sum(axis=1)[:, None] - 2 * z @ fitted.T + (fitted**2).sum(axis=1)
        best = tried[squares.argmin(axis=1)]
        best = best - best.mean()
        same = np.abs(best - shifts).max() < 0.5 / TRIED_PER_STEP
        shifts = best
        if same:
            break
    grid, course = _smoothed(z, shifts)
    at = np.arange(T) + shifts[:, None]
    left = float(((z - np.interp(at, grid, course)) ** 2).sum())
    between = float(((z - z.mean(axis=0)) ** 2).sum())
    own = z - z.mean(axis=1, keepdims=True)
    levels = float(((own - own.mean(axis=0)) ** 2).sum())
    N = n * T
    # A course has twice as many free values as a mean path.
    gain = N / 2 * np.log(levels / left) - 0.5 * T * np.log(N)
    slopes = np.interp(at, grid, np.gradient(course, grid))
    errors = np.sqrt(left / N / np.maximum((slopes**2).sum(axis=1), 1e-12))
    return Course(shifts, errors, left / between, gain)


def _smoothed(z: Array, shifts: Array) -> tuple[Array, Array]:
    """Points of time and the course at them: a local linear smoother, one step wide.

    Values are summed by time first. Shifts that were tried lie on a grid, so that only those of the first round are rounded.
    """
    s = (np.arange(z.shape[1]) + shifts[:, None]).ravel()
    low, fine = s.min(), 2 * TRIED_PER_STEP
    place = np.rint((s - low) * fine).astype(np.intp)
    count, total = np.bincount(place), np.bincount(place, weights=z.ravel())
    grid = np.linspace(low, s.max(), COURSE_POINTS)
    reach = KERNEL_REACH * fine
    at = np.rint((grid - low) * fine).astype(np.intp)[:, None] + np.arange(-reach, reach + 1)
    there = (at >= 0) & (at < len(count))
    off = low + at / fine - grid[:, None]
    kernel, at = np.exp(-0.5 * off**2) * there, np.where(there, at, 0)
    weight, value = kernel * count[at], kernel * total[at]
    far = weight * off
    zero, one, two = weight.sum(axis=1), far.sum(axis=1), (far * off).sum(axis=1)
    level, slope = value.sum(axis=1), (value * off).sum(axis=1)
    course = (two * level - one * slope) / np.maximum(zero * two - one**2, 1e-9)
    return grid, course


def stage_note(found: list[Course | None], names: tuple[str, ...], dt: float) -> str | None:
    """That subjects are at different stages, in a sentence; None where they are not."""
    seen = [(name, each) for name, each in zip(names, found, strict=True) if each is not None]
    if not seen:
        return None
    parts = [
        f"{name!r} (standard deviation {each.shifts.std() * dt:.3g}, {1 - each.unexplained:.0%} of what differs between subjects)"
        for name, each in seen
    ]
    return (
        f"Subjects seem to be at different stages of one course: shifts in time explain {', '.join(parts)}. `time_shifts` has them, along the order found; "
        "means over subjects are flatter than any subject's course. Growth at one rate from different first values looks the same."
    )
