"""Segments whose inner order is known, put in order before a fit: what is known then has a time for every slice.

They are of one shared order, or of each trajectory's own. The step is fitted to pairs of neighbours within segments alone. A joint of two segments is
judged by the exact transition of that SDE over the gap, on a grid, that makes it most likely; the first segment by the density of its first slice. A
trajectory's own joints are judged by their likelihood averaged over the grid, for one trajectory tells little of a gap. The best path through all
segments is exact for up to 12 of them (Held and Karp 1962), and found by local search beyond.

Limits: linear and affine drifts. Over a gap that is long beside the memory of the process nothing is left to join segments by; subjects
are taken for alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import logsumexp

from retrace_sde.estimator.request import Request
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
from retrace_sde.panel.blocks import Data, to_numpy, unmasked
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.process.drift import Drift, has_offset
from retrace_sde.process.sde import Gaussian, is_positive

EXCLUDED = ("positions", "blocks", "timestamps", "schedule")
"""Knowledge that segments cannot be combined with."""

FORM = (
    "segments are labels (T,), one for each slice, the slices of a segment as they are stored; or lists of slices, "
    "each in its order"
)
OWN_FORM = "segments of own orders are labels (n, T), one for each observation, those of a segment in order as they are stored"


def with_segments(
    knowledge: Knowledge, panel: Panel, request: Request, dt: float
) -> tuple[Knowledge, tuple[str, ...]]:
    """The knowledge with times, where it has segments: their most likely order and gaps; and a note that says so."""
    if knowledge.segments is None:
        return knowledge, ()
    _check_usable(knowledge, panel, request)
    if not request.shared:
        return _own(knowledge, panel, request, dt)
    segments = _as_lists(knowledge.segments, panel.values.shape[1])
    before = _precedences(knowledge, segments)
    found = stitched(to_numpy(panel.values), segments, before, dt, request.drift)
    known = replace(knowledge, segments=None, timestamps=found.times)
    return known, (_note(found, segments, panel, dt),)


def _check_usable(knowledge: Knowledge, panel: Panel, request: Request) -> None:
    for name in EXCLUDED:
        if getattr(knowledge, name) is not None:
            raise ValueError(
                f"segments= and {name}= cannot be combined: use first=, last= or precedences=."
            )
    if not request.has_state_space or panel.covariates is not None:
        raise ValueError("segments need a linear or affine drift without covariates.")


def _as_lists(given: Any, T: int) -> list[list[int]]:
    """The slices of each segment, in order."""
    if isinstance(given, (Mapping, str)):
        raise ValueError(f"{FORM}.")
    items = list(given)
    if items and all(isinstance(each, (list, tuple, np.ndarray)) for each in items):
        found = [[int(k) for k in each] for each in items]
    else:
        if len(items) != T:
            raise ValueError(f"{FORM}; there are {T} slices and {len(items)} labels.")
        found = _by_label(items)
    if sorted(k for each in found for k in each) != list(range(T)) or [] in found:
        raise ValueError(f"{FORM}; each of the {T} slices belongs to exactly one segment.")
    if len(found) < 2:
        raise ValueError("there is one segment, whose order is known: give timestamps instead.")
    return found


def _own(
    knowledge: Knowledge, panel: Panel, request: Request, dt: float
) -> tuple[Knowledge, tuple[str, ...]]:
    """Each trajectory's own segments in order, with times."""
    n, T, _ = panel.values.shape
    lengths = Lengths(n, T, panel.lengths).each
    try:
        labels = np.asarray(unmasked(knowledge.segments))
    except ValueError:  # rows of different length
        labels = np.zeros(0)
    if labels.shape != (n, T):
        raise ValueError(f"{OWN_FORM}; there are {n} trajectories of up to {T} observations.")
    segments = [_by_label(row[:t].tolist()) for row, t in zip(labels, lengths.tolist(), strict=True)]  # fmt: skip
    before = [_precedences(_of_one(knowledge, j), each) for j, each in enumerate(segments)]
    values = np.asarray(to_numpy(panel.values), dtype=float)
    found = stitched_each(values, segments, before, dt, request.drift)
    times = np.full((n, T), np.nan)
    for j, each in enumerate(found):
        times[j, : lengths[j]] = each.times
    count = sum(map(len, segments))
    note = (
        f"The {count} segments of {n} trajectories were put in order, each trajectory's own; the gaps between them are estimated, from "
        f"{min(each.gaps.min(initial=np.inf) for each in found):.3g} to {max(each.gaps.max(initial=0) for each in found):.3g}, and used as known ones. "
        f"Within segments observations are {dt:.3g} apart."
    )
    ends: dict[str, Any] = {"first": None, "last": None, "precedences": None}  # which times imply
    return replace(knowledge, segments=None, timestamps=times, **ends), (note,)


def _by_label(items: list[Any]) -> list[list[int]]:
    """The places of each label, in the order in which they are stored."""
    found: dict[Any, list[int]] = {}
    for k, label in enumerate(items):
        if label is None or label != label:
            raise ValueError(f"{OWN_FORM}; one of them is missing.")
        found.setdefault(label, []).append(k)
    return list(found.values())


def _of_one(knowledge: Knowledge, j: int) -> Knowledge:
    """What is known of the ends and pairs of one trajectory with an order of its own."""

    def end(given: Any) -> int | None:
        if given is None or isinstance(given, Mapping):
            return None if given is None else given.get(j)
        value = int(given) if np.ndim(given) == 0 else int(np.asarray(given)[j])
        return None if value < 0 else value

    pairs = [(a, b) for k, a, b in knowledge.precedences or () if k == j]  # type: ignore[misc]
    return Knowledge(first=end(knowledge.first), last=end(knowledge.last), precedences=pairs)


def _precedences(knowledge: Knowledge, segments: list[list[int]]) -> Mask:
    """Which segment is known to precede which, closed transitively."""
    S = len(segments)
    where = {k: s for s, each in enumerate(segments) for k in each}
    before = np.zeros((S, S), dtype=bool)
    for a, b in knowledge.precedences or ():
        before[where[int(a)], where[int(b)]] |= where[int(a)] != where[int(b)]
    first: Any = knowledge.first
    last: Any = knowledge.last
    if first is not None:
        before[where[int(first)]] |= np.arange(S) != where[int(first)]
    if last is not None:
        before[:, where[int(last)]] |= np.arange(S) != where[int(last)]
    for s in range(S):
        before |= before[:, s : s + 1] & before[s]
    if before.diagonal().any():
        raise ValueError(
            "first=, last= or precedences= contradict the segments: one would precede itself."
        )
    return before


def _note(found: Stitched, segments: list[list[int]], panel: Panel, dt: float) -> str:
    """The order of the segments by their first slices, and the gaps between them."""
    names = range(panel.values.shape[1]) if panel.slices is None else panel.slices
    begin = " → ".join(str(names[segments[s][0]]) for s in found.segments)
    gaps = ", ".join(f"{gap:.3g}" for gap in found.gaps)
    return (
        f"The segments, by their first slices, were put in the order {begin}; the gaps between them are estimated, {gaps}, and used as "
        f"known ones. Within segments slices are {dt:.3g} apart."
    )


GAPS = np.geomspace(0.2, 200.0, 61)
"""Gaps of a joint that are tried, in steps."""

MAX_EXACT = 12
"""Segments up to which the best path is exact: 4,096 sets of them."""

PATH_RESTARTS = 20
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
    law = GapTransitions.of(z, [segments] * len(z), dt, drift)
    costs, gaps, start = _joints(z, segments, law)
    return _joined(_best_path(costs, start, before), gaps, segments, dt)


def stitched_each(
    values: Array, segments: list[list[list[int]]], before: list[Mask], dt: float, drift: Drift
) -> list[Stitched]:
    """The same of each trajectory (n, T, d), which has segments of its own, under one law of steps.

    The law of first observations is at first that of all, then that of those found first.
    """
    z = _standardised(values, drift)
    law = GapTransitions.of(z, segments, dt, drift)
    joints = [_own_joints(z[j], each, law) for j, each in enumerate(segments)]
    start = law.alone
    found: list[Stitched] = []
    for _ in range(START_ROUNDS):
        found = []
        for j, each in enumerate(segments):
            cost = -_log_densities(start, z[j, [s[0] for s in each]])
            path = _best_path(joints[j][0], cost, before[j])
            found.append(_joined(path, joints[j][1], each, dt))
        firsts = np.stack([z[j, each.order[0]] for j, each in enumerate(found)])
        if np.isnan(firsts).any(axis=1).all():
            break
        start = shrunk_start(firsts, law.every)
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
class GapTransitions:
    """The law of a step as Euler's scheme has it, and over gaps of a grid: F, s and the Cholesky factor of Q.

    `every` (N, d): all values, and `alone` their law: that of a first observation after one with a missing value.
    """

    step: Euler
    grid: Array
    F: Array
    shift: Array
    roots: Array
    every: Array
    alone: Gaussian

    @classmethod
    def of(
        cls, z: Array, segments: list[list[list[int]]], dt: float, drift: Drift
    ) -> GapTransitions:
        """Fitted to the neighbours, dt apart, within the segments of each trajectory."""
        pairs, d = _pairs(z, segments), z.shape[2]
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
        roots = np.linalg.cholesky(Q[sound])
        every = np.concatenate(
            [z[j, [k for s in own for k in s]] for j, own in enumerate(segments)]
        )
        alone = shrunk_start(every, every)
        return cls(step, grid[sound], F[sound], shift[sound], roots, every, alone)

    def log_likelihoods(self, ends: Array, firsts: Array) -> Array:
        """Of each joint of segments that end and begin there, (n, S, d) each, over each gap: (K, S, S), summed over n."""
        d, S = ends.shape[2], ends.shape[1]
        # Every segment's first observation counts once, after whatever it comes: otherwise ends with missing values would be the cheapest.
        alone = _log_densities(self.alone, firsts)[:, None]
        values = np.empty((len(self.grid), S, S))
        for k, (F, shift, L) in enumerate(zip(self.F, self.shift, self.roots, strict=True)):
            ahead = ends @ F.T + shift
            gap = np.linalg.solve(L, (firsts[:, None] - ahead[:, :, None])[..., None])[..., 0]
            constant = np.log(np.diag(L)).sum() + 0.5 * d * np.log(2 * np.pi)
            found = -0.5 * (gap**2).sum(axis=3) - constant
            values[k] = np.where(np.isnan(found), alone, found).sum(axis=0)
        return values


def _joints(z: Array, segments: list[list[int]], law: GapTransitions) -> tuple[Array, Array, Array]:
    """−log-likelihood (S, S) of each joint at its best gap, these gaps, and the costs (S,) of being first."""
    ends, firsts = (z[:, [each[k] for each in segments]] for k in (-1, 0))
    values = law.log_likelihoods(ends, firsts)
    best = values.argmax(axis=0)
    costs = -np.take_along_axis(values, best[None], axis=0)[0]
    start = -_log_densities(law.alone, firsts).sum(axis=0)
    for s in range(len(segments)):
        known = firsts[~np.isnan(firsts[:, s]).any(axis=1), s]
        if len(known) > 1:
            start[s] = -start_log_densities(known[None], law.step, np.ones(z.shape[2])).sum()
    return costs, law.grid[best], start


def _own_joints(z: Array, segments: list[list[int]], law: GapTransitions) -> tuple[Array, Array]:
    """−log-likelihood (S, S) of each joint of one trajectory (T, d), averaged over gaps, and the expected gaps."""
    ends, firsts = (z[None, [each[k] for each in segments]] for k in (-1, 0))
    values = law.log_likelihoods(ends, firsts)
    total = logsumexp(values, axis=0)
    weights = np.exp(values - total)
    gaps = np.exp(np.tensordot(np.log(law.grid), weights, (0, 0)))
    return np.log(len(law.grid)) - total, np.asarray(gaps)


def _log_densities(law: Gaussian, firsts: Array) -> Array:
    """Of observations (…, d); zero of one with a missing value, which says as little of whatever it may follow."""
    found = np.zeros(firsts.shape[:-1])
    known = ~np.isnan(firsts).any(axis=-1)
    found[known] = law.log_density(firsts[known])
    return found


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
    for _ in range(PATH_RESTARTS):
        begin = rng.permutation(len(start)).astype(np.intp)
        begin = begin if prior is None else prior.repair(begin)
        found.append(judge.improve(begin, random_states(rng, 1)))
    return [int(s) for s in min(found, key=judge.cost)]
