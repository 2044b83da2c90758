"""Segments of one shared order, or of each trajectory's own: the order within each is known, the order of the segments and the gaps between them are not.

The step is fitted to pairs of neighbours within segments alone. A joint of two segments is judged by the exact transition of that SDE
over the gap, on a grid, that makes it most likely; the first segment by the density of its first slice. A trajectory's own joints are judged by
their likelihood averaged over the grid, for one trajectory tells little of a gap. The best path through all
segments is exact for up to 12 of them (Held and Karp 1962), and found by local search beyond.

Limits: linear and affine drifts. Over a gap that is long beside the memory of the process nothing is left to join segments by; subjects
are taken for alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import logsumexp

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.exact import exact
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import parameters
from retrace_sde.fit.start_law import shrunk_start, start_log_densities
from retrace_sde.fit.statespace.transitions import reaches, transitions
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.draws import random_states
from retrace_sde.orders.paths import PathCosts, exact_path
from retrace_sde.orders.prior import Prior
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Drift, has_offset
from retrace_sde.process.sde import is_positive

GAPS = np.geomspace(0.2, 200.0, 61)
"""Gaps of a joint that are tried, in steps."""

MAX_EXACT = 12
"""Segments up to which the best path is exact: 4,096 sets of them."""

RESTARTS = 20
"""Random starts of the local search beyond."""

START_ROUNDS = 3
"""Rounds of orders and of the law of first observations."""


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
    z = _standardised(values, drift)
    law = StepLaw.of(_pairs(z, [segments] * len(z)), dt, drift)
    costs, gaps, start = _joints(z, segments, law)
    return _joined(_best_path(costs, start, before), gaps, segments, dt)


def stitched_each(
    values: Array, segments: list[list[list[int]]], before: list[Mask], dt: float, drift: Drift
) -> list[Stitched]:
    """The same of each trajectory (n, T, d), which has segments of its own, under one law of steps.

    The law of first observations is at first that of all, then that of those found first.
    """
    z = _standardised(values, drift)
    law = StepLaw.of(_pairs(z, segments), dt, drift)
    every = np.concatenate([z[j, [k for s in each for k in s]] for j, each in enumerate(segments)])
    joints = [_own_joints(z[j], each, law) for j, each in enumerate(segments)]
    start = shrunk_start(every, every)
    found: list[Stitched] = []
    for _ in range(START_ROUNDS):
        found = []
        for j, each in enumerate(segments):
            firsts = z[j, [s[0] for s in each]]
            cost = -np.nan_to_num(start.log_density(firsts))
            path = _best_path(joints[j][0], cost, before[j])
            found.append(_joined(path, joints[j][1], each, dt))
        firsts = np.stack([z[j, each.order[0]] for j, each in enumerate(found)])
        start = shrunk_start(firsts, every)
    return found


def _standardised(values: Array, drift: Drift) -> Array:
    scale = np.nanstd(values, axis=(0, 1))
    if not has_offset(drift):  # whose equilibrium is zero
        return np.asarray(values / np.where(scale > 0, scale, 1.0))
    return np.asarray((values - np.nanmean(values, axis=(0, 1))) / np.where(scale > 0, scale, 1.0))


def _joined(path: list[int], gaps: Array, segments: list[list[int]], dt: float) -> Stitched:
    """Segments along a path, with times from its first observation on."""
    order = np.concatenate([segments[s] for s in path]).astype(np.intp)
    times, now = np.empty(len(order)), 0.0
    between = np.array([gaps[s, t] for s, t in pairwise(path)])
    for k, s in enumerate(path):
        now += between[k - 1] if k else 0.0
        steps = dt * np.arange(len(segments[s]))
        times[segments[s]] = now + steps
        now += steps[-1]
    return Stitched(np.asarray(path, dtype=np.intp), order, between, times)


def _pairs(z: Array, segments: list[list[list[int]]]) -> Array:
    """Complete pairs (N, 2, d) of neighbours within the segments of each trajectory."""
    found = [z[j, [a, b]] for j, own in enumerate(segments) for each in own for a, b in pairwise(each)]  # fmt: skip
    pairs = np.array(found).reshape(-1, 2, z.shape[2])
    return pairs[~np.isnan(pairs).any(axis=(1, 2))]


@dataclass(frozen=True, eq=False)
class StepLaw:
    """The law of a step as Euler's scheme has it, and over gaps of a grid: F, s and the Cholesky factor of Q."""

    step: Euler
    grid: Array
    F: Array
    shift: Array
    roots: Array

    @classmethod
    def of(cls, pairs: Array, dt: float, drift: Drift) -> StepLaw:
        """Fitted to neighbours dt apart."""
        d = pairs.shape[2]
        if len(pairs) < 4 * d + 4:
            raise ValueError(
                f"segments have {len(pairs)} complete pairs of neighbours, too few to fit a step of {d} variables; joints cannot be judged."
            )
        sums = moments(Data(pairs), np.arange(2), dt, drift)
        step = Euler(drift, *parameters(sums), dt)
        found = exact(sums, dt, affine=has_offset(drift))
        grid = dt * GAPS
        grid = grid[[reaches(found.coefficients, grid[: k + 1]) for k in range(len(grid))]]
        F, s, Q = transitions(found.coefficients, found.diffusion, grid)
        shift = s[:, :, 0] if has_offset(drift) else np.zeros((len(grid), d))
        Q = Q + 1e-12 * np.trace(Q, axis1=1, axis2=2)[:, None, None] * np.eye(d)
        # Over long gaps an unstable process leaves no digits to Q: the gaps before those are used.
        sound = np.logical_and.accumulate([is_positive(each) for each in Q])
        return cls(step, grid[sound], F[sound], shift[sound], np.linalg.cholesky(Q[sound]))

    def log_likelihoods(self, ends: Array, firsts: Array) -> Array:
        """Of each joint of segments that end and begin there, (n, S, d) each, over each gap: (K, S, S), summed over n."""
        d, S = ends.shape[2], ends.shape[1]
        values = np.empty((len(self.grid), S, S))
        for k, (F, shift, L) in enumerate(zip(self.F, self.shift, self.roots, strict=True)):
            ahead = ends @ F.T + shift
            gap = np.linalg.solve(L, (firsts[:, None] - ahead[:, :, None])[..., None])[..., 0]
            constant = np.log(np.diag(L)).sum() + 0.5 * d * np.log(2 * np.pi)
            # A subject with a missing value at either end says nothing of a joint.
            values[k] = -np.nansum(0.5 * (gap**2).sum(axis=3) + constant, axis=0)
        return values


def _joints(z: Array, segments: list[list[int]], law: StepLaw) -> tuple[Array, Array, Array]:
    """−log-likelihood (S, S) of each joint at its best gap, these gaps, and the costs (S,) of being first."""
    ends, firsts = (z[:, [each[k] for each in segments]] for k in (-1, 0))
    values = law.log_likelihoods(ends, firsts)
    best = values.argmax(axis=0)
    costs = -np.take_along_axis(values, best[None], axis=0)[0]
    complete = ~np.isnan(firsts).any(axis=(1, 2))
    slices = firsts[complete].transpose(1, 0, 2)
    start = -start_log_densities(slices, law.step, np.ones(z.shape[2])).sum(axis=1) * (
        len(z) / max(int(complete.sum()), 1)
    )
    return costs, law.grid[best], start


def _own_joints(z: Array, segments: list[list[int]], law: StepLaw) -> tuple[Array, Array]:
    """−log-likelihood (S, S) of each joint of one trajectory (T, d), averaged over gaps, and the expected gaps."""
    ends, firsts = (z[None, [each[k] for each in segments]] for k in (-1, 0))
    values = law.log_likelihoods(ends, firsts)
    total = logsumexp(values, axis=0)
    weights = np.exp(values - total)
    gaps = np.exp(np.tensordot(np.log(law.grid), weights, (0, 0)))
    return np.log(len(law.grid)) - total, np.asarray(gaps)


def _best_path(costs: Array, start: Array, before: Mask) -> list[int]:
    """The cheapest order of all segments that breaks no precedence."""
    prior = Prior(None, before) if before.any() else None
    if len(start) > MAX_EXACT:
        return _searched_path(costs, start, prior)
    return [int(s) for s in exact_path(costs, start, prior)]


def _searched_path(costs: Array, start: Array, prior: Prior | None) -> list[int]:
    """The best of several local searches."""
    rng, judge = np.random.default_rng(0), PathCosts(costs, start, prior)
    found = []
    for _ in range(RESTARTS):
        begin = rng.permutation(len(start)).astype(np.intp)
        begin = begin if prior is None else prior.repair(begin)
        found.append(judge.improve(begin, random_states(rng, 1)))
    return [int(s) for s in min(found, key=judge.cost)]
