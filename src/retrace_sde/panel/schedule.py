"""A protocol's times, where it is not known which observation was made at which time.

Positions of an order are then the scheduled times. A trajectory with fewer observations missed some visits: it is extended to
the whole schedule by observations without values, which are ordered with the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel


def check_schedule(schedule: Any, panel: Panel, *, shared: bool) -> None:
    """Growing times, as many as slices, or at least as many as a trajectory has observations."""
    times = as_times(schedule)
    _, T, _ = panel.values.shape
    if shared and len(times) != T:
        raise ValueError(
            f"schedule has {len(times)} times, but there are {T} slices: with one shared order give the time of each "
            "slice that is there (a slice that nobody has is left out of the schedule)."
        )
    if len(times) < T:
        raise ValueError(
            f"schedule has {len(times)} times, but some trajectory has {T} observations: every observation needs a "
            "time of its own."
        )


def as_numbers(values: Any) -> Array:
    """Numbers; dates, which would be counted in units of their own, are none."""
    if getattr(values, "dtype", None) is not None and np.asarray(values).dtype.kind in "mM":
        raise TypeError("dates")
    return np.asarray(values, dtype=float)


def check_spans(times: Array, name: str) -> None:
    """Times (NaN where unknown) apart by what can be squared."""
    known = np.unique(times[~np.isnan(times)])
    with np.errstate(over="ignore"):
        gaps = np.diff(known)
    if len(gaps) and not (gaps.min() >= 1e-100 and gaps.max() <= 1e100):
        raise ValueError(
            f"{name} are {gaps.min():.0e} to {gaps.max():.0e} apart: choose a unit of time in which gaps lie between 1e-100 "
            "and 1e100."
        )


def as_times(schedule: Any) -> Array:
    """The scheduled times as numbers, refused where they do not grow."""
    try:
        times = as_numbers(schedule)
    except (TypeError, ValueError):
        raise ValueError("schedule must be numbers, in the units of dt.") from None
    if (
        times.ndim != 1
        or len(times) < 2
        or not np.isfinite(times).all()
        or np.any(np.diff(times) <= 0)
    ):
        raise ValueError(
            "schedule must be the protocol's times in order, at least two, each later than the one before, e.g. "
            f"[0, 7, 14, 30, 90]; got {schedule!r:.80}."
        )
    check_spans(times, "times of the schedule")
    return times


def on_schedule(panel: Panel, schedule: Any) -> Panel:
    """Trajectories of their own orders with an observation for every scheduled time, unseen where they have too few."""
    S = len(as_times(schedule))
    n, T, d = panel.values.shape
    lengths = Lengths(n, T, panel.lengths)
    if S == T and np.all(lengths.each == T):
        return panel
    values = np.full((n, S, d), np.nan)
    inside = lengths.mask
    values[:, :T] = np.where(inside[:, :, None], to_numpy(panel.values), np.nan)
    covariates = panel.covariates
    if covariates is not None:
        u = np.where(inside[:, :, None], to_numpy(covariates), np.nan)
        # the input of a visit that did not take place: the subject's mean is used
        mean = np.nanmean(u, axis=1, keepdims=True)
        covariates = np.concatenate([u, np.full((n, S - T, u.shape[2]), np.nan)], axis=1)
        covariates = np.where(np.isnan(covariates), mean, covariates)
    return replace(panel, values=values, covariates=covariates, lengths=None, rows=None)


def off_schedule(
    order: Indices, schedule: Array, lengths: Indices, T: int
) -> tuple[Indices, Array]:
    """Orders (n, T) of the observations that there are, and their times (n, T), from orders over the whole schedule.

    What lies beyond a trajectory's end stays there, without a time.
    """
    n = len(order)
    found, times = np.tile(np.arange(T, dtype=np.intp), (n, 1)), np.full((n, T), np.nan)
    for j, t in enumerate(lengths.tolist()):
        there = np.flatnonzero(order[j] < t)
        found[j, :t], times[j, :t] = order[j, there], schedule[there]
    return found, times
