"""Segments of one shared order: the order within each is known, the order of the segments and the gaps between them are not.

The step is fitted to pairs of neighbours within segments alone. A joint of two segments is judged by the exact transition of that SDE
over the gap, on a grid, that makes it most likely; the first segment by the density of its first slice. The best path through all
segments is exact for up to 12 of them (Held and Karp 1962), and found by local search beyond.

Limits: linear and affine drifts. Over a gap that is long beside the memory of the process nothing is left to join segments by; subjects
are taken for alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.exact import exact
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import parameters
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.fit.statespace.transitions import reaches, transitions
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.shared import PathCosts
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Drift, has_offset

GAPS = np.geomspace(0.2, 200.0, 61)
"""Gaps of a joint that are tried, in steps."""

MAX_EXACT = 12
"""Segments up to which the best path is exact: 4,096 sets of them."""

RESTARTS = 20
"""Random starts of the local search beyond."""


@dataclass(frozen=True, eq=False)
class Stitched:
    """The segments in time order, the slices (T,) in that order, the gaps at the joints, and the time of each slice as stored."""

    segments: Indices
    order: Indices
    gaps: Array
    times: Array


def stitched(
    values: Array, segments: list[list[int]], before: Mask, dt: float, drift: Drift
) -> Stitched:
    """The most likely order of segments of slices (n, T, d); `before[s, t]`: segment s is known to precede t."""
    scale = np.nanstd(values, axis=(0, 1))
    z = (values - np.nanmean(values, axis=(0, 1))) / np.where(scale > 0, scale, 1.0)
    if not has_offset(drift):  # whose equilibrium is zero
        z = values / np.where(scale > 0, scale, 1.0)
    costs, gaps, start = _joints(z, segments, dt, drift)
    path = _best_path(costs, start, before)
    order = np.concatenate([segments[s] for s in path]).astype(np.intp)
    times, now = np.empty(values.shape[1]), 0.0
    between = np.array([gaps[s, t] for s, t in pairwise(path)])
    for k, s in enumerate(path):
        now += between[k - 1] if k else 0.0
        steps = dt * np.arange(len(segments[s]))
        times[segments[s]] = now + steps
        now += steps[-1]
    return Stitched(np.asarray(path, dtype=np.intp), order, between, times)


def _joints(
    z: Array, segments: list[list[int]], dt: float, drift: Drift
) -> tuple[Array, Array, Array]:
    """−log-likelihood (S, S) of each joint at its best gap, these gaps, and the costs (S,) of being first."""
    d = z.shape[2]
    pairs = np.concatenate([z[:, [a, b]] for each in segments for a, b in pairwise(each)])
    pairs = pairs[~np.isnan(pairs).any(axis=(1, 2))]
    if len(pairs) < 4 * d + 4:
        raise ValueError(
            f"segments have {len(pairs)} complete pairs of neighbours, too few to fit a step of {d} variables; joints cannot be judged."
        )
    sums = moments(Data(pairs), np.arange(2), dt, drift)
    step = Euler(drift, *parameters(sums), dt)
    found = exact(sums, dt, affine=has_offset(drift))
    grid = dt * GAPS
    grid = grid[
        [reaches(found.coefficients, found.diffusion, grid[: k + 1]) for k in range(len(grid))]
    ]
    F, s, Q = transitions(found.coefficients, found.diffusion, grid)
    ends, firsts = (z[:, [each[k] for each in segments]] for k in (-1, 0))
    shift = s[:, :, 0] if has_offset(drift) else np.zeros((len(grid), d))
    values = np.full((len(grid), len(segments), len(segments)), -np.inf)
    for k, (matrix, offset, covariance) in enumerate(zip(F, shift, Q, strict=True)):
        L = np.linalg.cholesky(covariance + 1e-12 * np.trace(covariance) * np.eye(d))
        ahead = ends @ matrix.T + offset
        gap = np.linalg.solve(L, (firsts[:, None] - ahead[:, :, None])[..., None])[..., 0]
        constant = np.log(np.diag(L)).sum() + 0.5 * d * np.log(2 * np.pi)
        # A subject with a missing value at either end says nothing of a joint.
        values[k] = -np.nansum(0.5 * (gap**2).sum(axis=3) + constant, axis=0)
    best = values.argmax(axis=0)
    costs = -np.take_along_axis(values, best[None], axis=0)[0]
    complete = ~np.isnan(firsts).any(axis=(1, 2))
    slices = firsts[complete].transpose(1, 0, 2)
    start = -start_log_densities(slices, step, np.ones(d)).sum(axis=1) * (
        len(z) / max(int(complete.sum()), 1)
    )
    return costs, grid[best], start


def _best_path(costs: Array, start: Array, before: Mask) -> list[int]:
    """The cheapest order of all segments that breaks no precedence."""
    S = len(start)
    if S > MAX_EXACT:
        return _searched_path(costs, start, before)
    need = [int(sum(1 << s for s in range(S) if before[s, t])) for t in range(S)]
    best = np.full((1 << S, S), np.inf)
    came = np.full((1 << S, S), -1)
    for s in range(S):
        if not need[s]:
            best[1 << s, s] = start[s]
    for seen in range(1, 1 << S):
        for t in range(S):
            if seen >> t & 1 or need[t] & ~seen:
                continue
            ways = best[seen] + costs[:, t]
            s = int(ways.argmin())
            if ways[s] < best[seen | 1 << t, t]:
                best[seen | 1 << t, t], came[seen | 1 << t, t] = ways[s], s
    seen = (1 << S) - 1
    path = [int(best[seen].argmin())]
    while len(path) < S:
        previous = int(came[seen, path[-1]])
        seen ^= 1 << path[-1]
        path.append(previous)
    return path[::-1]


def _searched_path(costs: Array, start: Array, before: Mask) -> list[int]:
    """The best of several local searches."""
    rng, S = np.random.default_rng(0), len(start)
    prior = Prior(None, before) if before.any() else None
    judge = PathCosts(costs, start, prior)
    found = []
    for _ in range(RESTARTS):
        begin = rng.permutation(S).astype(np.intp)
        begin = begin if prior is None else prior.repair(begin)
        found.append(judge.improve(begin, random_states(rng, 1)))
    return [int(s) for s in min(found, key=judge.cost)]
