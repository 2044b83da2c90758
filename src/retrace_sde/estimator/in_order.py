"""Trajectories that are in order: sorted by their times, on a grid or with gaps of their own; long ones split into blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.clock import Gaps
from retrace_sde.panel.lengths import Lengths

GRID_TOLERANCE = 0.01
"""How far times may be from a grid, as a share of its step."""

MIN_COMMON_START_SHARE = 0.5
"""Share of trajectories that begin at the earliest time of all, above which times are those of one schedule."""

MAX_GRID_SHARE = 3.0
"""Points of a grid for each observation, at most: beyond, gaps are used as they are."""

MIN_VALUES_OF_SLICE = 2
"""Values of each variable that a point of the grid must have."""

BLOCK_TIMES, APART_TIMES, MIN_BLOCK = 10.0, 2.0, 16
"""Length of a block and distance between two of them, in correlation times of the series, and the least length."""


@dataclass(frozen=True, eq=False)
class InOrder:
    """Trajectories (n, T, d) in time order, NaN where nothing was seen; `lengths` where they differ.

    `aligned`: slices hold the same time of all trajectories.
    """

    values: Array
    dt: float
    gaps: Gaps
    lengths: Indices | None = None
    aligned: bool = True


def in_order(values: Array, times: Array | None, lengths: Indices | None, dt: float) -> InOrder:
    """Trajectories as they stand, or sorted by times (n, T), NaN beyond their ends; regular where a grid holds all times."""
    n, T, _ = values.shape
    mask = Lengths(n, T, lengths).mask
    values = np.where(mask[..., None], values, np.nan)
    ragged = lengths is not None and bool((lengths < T).any())
    own = lengths if ragged else None
    if times is None:
        return InOrder(values, dt, Gaps.of(dt), own, aligned=not ragged)
    stamps = np.where(mask, times, np.nan)
    order = np.argsort(stamps, axis=1, kind="stable")
    stamps = np.take_along_axis(stamps, order, axis=1)
    values = np.take_along_axis(values, order[..., None], axis=1)
    gaps = np.diff(stamps, axis=1)
    known = ~np.isnan(gaps)
    dt = float(gaps[known].mean())
    first = stamps[:, :1] - np.nanmin(stamps)
    starts = np.abs(first) <= GRID_TOLERANCE * dt
    together = bool(starts.mean() > MIN_COMMON_START_SHARE)
    regular = np.allclose(gaps[known], dt, rtol=GRID_TOLERANCE, atol=0)
    if regular and (not together or (starts.all() and not ragged)):
        return InOrder(values, dt, Gaps.of(dt), own, aligned=together)
    since = stamps - (np.nanmin(stamps) if together else stamps[:, :1])
    found = _on_grid(values, since, dt if regular else float(gaps[known].min()), T)
    if found is not None:
        return replace(found, aligned=together)
    if not ragged and np.ptp(stamps, axis=0).max() <= GRID_TOLERANCE * dt:
        return InOrder(values, dt, Gaps.of(gaps.mean(axis=0)))
    return InOrder(values, dt, Gaps.of(np.where(known, gaps, dt)), own, aligned=False)


def _on_grid(values: Array, stamps: Array, step: float, T: int) -> InOrder | None:
    """Observations at the points of a grid from zero, NaN where there is none; None where times are not on a small one."""
    seen = ~np.isnan(stamps)
    place = stamps / step
    whole = np.round(place)
    if np.abs(place - whole)[seen].max() > GRID_TOLERANCE:
        return None
    size = int(np.nanmax(whole)) + 1
    if size > MAX_GRID_SHARE * T:
        return None
    found = np.full((len(values), size, values.shape[2]), np.nan)
    rows = np.broadcast_to(np.arange(len(values))[:, None], seen.shape)
    found[rows[seen], whole[seen].astype(int)] = values[seen]
    dense = bool(((~np.isnan(found)).sum(axis=0) >= MIN_VALUES_OF_SLICE).all())
    return InOrder(found, step, Gaps.of(step)) if dense else None


def correlation_time(x: Array) -> float:
    """Integrated autocorrelation time of a series (T, d) in steps: the largest over variables and their squares.

    `1/2 + Σ_k ρ_k` up to the first lag at which ρ falls below two standard errors (Sokal's window is longer; blocks are ten times as
    long as this).
    """
    T = len(x)
    z = np.concatenate([x, (x - np.nanmean(x, axis=0)) ** 2], axis=1)
    z = z - np.nanmean(z, axis=0)
    z = np.where(np.isnan(z), 0.0, z)
    size = 1 << (2 * T - 1).bit_length()
    power = np.abs(np.fft.rfft(z, size, axis=0)) ** 2
    rho = np.fft.irfft(power, size, axis=0)[:T]
    rho = rho / np.maximum(rho[0], 1e-300)
    low = np.abs(rho) < 2 / np.sqrt(T)
    ends = np.where(low.any(axis=0), low.argmax(axis=0), T)
    return max(0.5 + float(np.abs(rho[1:end, k]).sum()) for k, end in enumerate(ends))


def split(x: Array, times: Array | None) -> tuple[Array, Array | None, int, int]:
    """Long trajectories (n, T, d) split into blocks (m, L, d) that lie apart; their times, their length and distance.

    Blocks are ten correlation times long, and two of them apart, so that they are nearly independent.
    """
    T = x.shape[1]
    tau = max(correlation_time(each) for each in x)
    length = max(MIN_BLOCK, int(np.ceil(BLOCK_TIMES * tau)))
    apart = int(np.ceil(APART_TIMES * tau))
    begins = range(0, T - length + 1, length + apart)

    def cut(values: Array) -> Array:
        parts = [each[k : k + length] for each in values for k in begins]
        return np.stack(parts) if parts else np.empty((0, length, *values.shape[2:]))

    return cut(x), None if times is None else cut(times), length, apart
