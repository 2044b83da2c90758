"""Observations of trajectories with orders of their own that are far from all others of their trajectory.

Without an order there are no neighbours in time. The distance to the nearest other observation of the same trajectory, in units of each
variable's usual distance, is compared with the tail of all such distances.

Limits: a row exchanged with one of another subject is seen only where subjects differ; a trajectory's last observation after a large jump is
isolated too, so that only errors beyond the tail of jumps are called.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median
from retrace_sde.evidence.suspects.rows import (
    CELL_LEVEL,
    DISCOVERY_RATE,
    MIN_LENGTHS,
    Find,
    discovery_rates,
)
from retrace_sde.evidence.suspects.tail import Tail
from retrace_sde.io.arrays import Array, Indices, Mask

MIN_OBSERVATIONS = 4
"""Observations of a trajectory from which one of them can be isolated."""

USUAL_SHARE, FAR_NEAREST = 0.9, 6.0
"""Quantile of the nearest distances, and how many times it an observation is away at least: first steps of a transient, and those
after a jump, are several times as long as others."""


def find_isolated(x: Array) -> list[Find]:
    """Observations, or single cells, of x (n, T, d) that are far from the rest of their trajectory."""
    _, T, d = x.shape
    seen = ~np.isnan(x).all(axis=2)
    if T < MIN_OBSERVATIONS or seen.sum() < MIN_LENGTHS:
        return []
    scale = _usual_steps(x)
    z = x / scale
    distance, nearest = _nearest(z)
    comparable = seen & np.isfinite(distance) & (seen.sum(axis=1) >= MIN_OBSERVATIONS)[:, None]
    if comparable.sum() < MIN_LENGTHS:
        return []
    bound = FAR_NEAREST * float(np.quantile(distance[comparable], USUAL_SHARE))
    ordinary = distance[comparable & (distance <= bound)]
    tail = Tail.of(ordinary, d) if len(ordinary) >= MIN_LENGTHS else None
    if tail is None:
        return []
    far = comparable & (distance > bound)
    p = np.where(far, tail.beyond(np.where(far, distance, 0.0)), 1.0)
    rate = discovery_rates(p, int(comparable.sum()))
    found = []
    for j, k in zip(
        *map(np.ndarray.tolist, np.nonzero((rate <= DISCOVERY_RATE) & comparable)), strict=True
    ):
        variable, other = _single(z, j, k, tail)
        near = x[j, int(nearest[j, k]) if other is None else other]
        found.append(Find(j, k, variable, float(p[j, k]), 1 - float(rate[j, k]), near, scale))
    return found


def _usual_steps(x: Array) -> Array:
    """The usual distance (d,) of a value to the nearest other of its trajectory by all variables, robustly."""
    spread = NORMAL_MAD * median(np.abs(x - median(x, 1)[:, None]), (0, 1))
    spread = np.where(spread > 0, spread, 1.0)
    nearest = _nearest(x / spread)[1]
    steps = np.abs(x - np.take_along_axis(x, nearest[..., None], axis=1))
    usual = NORMAL_MAD * median(steps, (0, 1))
    return np.where(usual > 0, usual, spread)


def _nearest(z: Array) -> tuple[Array, Indices]:
    """The distance (n, T) of each observation to the nearest other of its trajectory, and which that is."""
    n, T, d = z.shape
    distance, nearest = np.full((n, T), np.inf), np.zeros((n, T), np.intp)
    for k in range(T):
        gaps = z - z[:, k : k + 1]
        count = (~np.isnan(gaps)).sum(axis=2)
        squares = np.nansum(gaps**2, axis=2) * d / np.maximum(count, 1)
        squares = np.where(count > 0, squares, np.inf)
        squares[:, k] = np.inf
        nearest[:, k] = squares.argmin(axis=1)
        distance[:, k] = np.sqrt(squares.min(axis=1))
    return np.asarray(distance, dtype=np.float64), nearest


def _single(z: Array, j: int, k: int, tail: Tail) -> tuple[int | None, int | None]:
    """The variable without which an observation is near another one, and which; None: there is no such variable."""
    d = z.shape[2]
    known: Mask = ~np.isnan(z[j, k])
    if known.sum() == 1:
        return int(np.flatnonzero(known)[0]), None
    best: tuple[float, int, int] | None = None
    for v in np.flatnonzero(known).tolist():
        others = np.delete(np.arange(d), v)
        distance, nearest = _nearest(z[j : j + 1][:, :, others])
        if best is None or distance[0, k] < best[0]:
            best = float(distance[0, k]), v, int(nearest[0, k])
    assert best is not None  # at least two variables are known
    if tail.beyond_in(np.asarray(best[0]), d - 1) > CELL_LEVEL:
        return best[1], best[2]
    return None, None
