"""Trajectories that are nearly copies of one another: replicates, a subject entered twice, technical repeats.

Copies are not independent, and whatever squares what trajectories contribute counts them as often as they were copied. They
are looked for in what trajectories do about their slices' means, so that a course common to all says nothing, and about their
own means, so that levels that lie close say nothing either. On its principal components, each in units of its standard
deviation, the squared distance of two independent trajectories is about μ χ²_r / r, with r and μ from the distances of
all pairs. Two are nearly copies where their distance δ, their levels included, is less than that of independent ones:

    n (n − 1)/2 · P(χ²_r < r δ²/μ) < FALSE_ALARM.

Limits: few numbers for each trajectory are not enough, since independent ones come as close; copies that differ by an offset, or by
noise as large as what they do, are not found; very large panels are not checked.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import deferred
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.groups import renumbered
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.process.tails import chi2_cdf, chi2_ppf

spatial = deferred("scipy.spatial")

MAX_SETS_NAMED = 3
"""Sets of copies that a warning names."""

FALSE_ALARM = 1e-3
"""Probability with which some pair of independent Gaussian trajectories is taken for copies."""

MAX_COMPARED_NUMBERS, MAX_COMPARED = 64, 5000
"""Numbers of each trajectory that are compared, at most, and trajectories."""

MAX_NEIGHBOURS, MAX_PAIRS = 8, 5000
"""Nearest trajectories that may be copies of one, and pairs whose distances tell the distribution of all."""

FEW = 500
"""Trajectories up to which all distances are computed, and scipy's tree is asked (and imported, 30 ms) only where some are small."""

MIN_COMPARED, TRAJECTORIES_PER_COMPONENT, MAX_COMPONENTS = 6, 3, 12
"""Trajectories without which distances have no distribution, those for each component, and components that are enough."""

MIN_COMPONENT = 1e-2
"""Variance of a component, relative to the largest, below which it may be the noise of copies."""

MAX_APART = 0.05
"""Square of what two copies differ by, an offset included, relative to the squares of what both do: 1 or more where they are
independent, .0025 for copies with 5 % noise."""

MIN_SHARE = 0.5
"""Numbers seen of a trajectory, relative to the mean, without which it is not compared."""

MAX_TIED = 0.2
"""Share of one value beyond which a variable tells nothing of copies: zeros of counts, 0/1."""


def with_copies(panel: Panel, rows: Indices, *, shared: bool) -> tuple[Panel, tuple[str, ...]]:
    """The panel with copies counted as one group, with the groups that were given; and a note, where that says something new.

    A warning names them: `rows[j]` is where trajectory j stood as the panel was given.
    """
    copies = near_copies(Data(panel.values, counts=panel.lengths), shared=shared)
    if copies is None:
        return panel, ()
    groups = copies if panel.groups is None else _joined(panel.groups, copies)
    if panel.groups is not None and groups.max() == panel.groups.max():
        return panel, ()
    sets = [np.sort(rows[copies == k]) for k in np.flatnonzero(np.bincount(copies) > 1)]
    sets.sort(key=lambda each: int(each[0]))
    named = [_listed([_name(panel, j) for j in each]) for each in sets[:MAX_SETS_NAMED]]
    more = (
        "" if len(sets) <= MAX_SETS_NAMED else f", and {len(sets) - MAX_SETS_NAMED} more such sets"
    )
    kind = "Trajectories" if panel.rows is None else "Subjects"
    warnings.warn(
        f"{kind} {'; '.join(named)}{more} are nearly copies of one another: those of a set count as one group, not as "
        "independent. Average them, or drop all but one, if they are the same thing measured again.",
        ReTraceWarning,
        stacklevel=4,
    )
    count = sum(len(each) for each in sets)
    note = (
        f"{count} trajectories are nearly copies of others ({len(sets)} set{'s' * (len(sets) > 1)}): those of a set count as one "
        "group."
    )
    return replace(panel, groups=renumbered(groups)), (note,)


def _name(panel: Panel, j: int) -> str:
    return str(j) if panel.rows is None else repr(panel.ids[j])


def _joined(one: Indices, two: Indices) -> Indices:
    """Groups of trajectories that share a group of one kind or of the other, or are linked by others that do."""
    size, ends = int(one.max()) + 1, one.max() + two.max() + 2
    graph = coo_array((np.ones(len(one)), (one, size + two)), shape=(ends, ends))
    return renumbered(connected_components(graph, directed=False)[1][one])


def _listed(names: list[str], most: int = 6) -> str:
    """Names in a sentence, as many as one reads."""
    if len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def near_copies(data: Data, *, shared: bool) -> Indices | None:
    """Numbers (n,) of the trajectories' copies: equal for copies of one another. None: there are none, or the data do not show whether there are."""
    n = data.shape[0]
    if data.lazy or not MIN_COMPARED <= n <= MAX_COMPARED:
        return None
    x, units, told = _numbers(data, shared=shared)
    if not x.size:
        return None
    moves, levels, scale = _moves(x)
    scores, blur = _components(moves, units / scale)
    first, second = _some_pairs(n)
    law = ((scores[first] - scores[second]) ** 2).sum(axis=1) + blur
    r = min(2 * law.mean() ** 2 / law.var(), scores.shape[1])
    rare, unit = FALSE_ALARM / (n * (n - 1) / 2), law.mean() / r
    reach = unit * chi2_ppf(rare, r) - blur
    if not reach > 0:
        return None
    every = np.column_stack([scores, levels])
    if n <= FEW and not _any_nearer(every, reach):
        return None
    tree = spatial.cKDTree(every)
    near, at = tree.query(every, min(MAX_NEIGHBOURS, n - 1) + 1, distance_upper_bound=reach**0.5)
    one, k = np.nonzero(near < np.inf)
    two = at[one, k]
    # A trajectory of which less is seen has fewer numbers to differ in.
    share = np.minimum(np.minimum(told[one], told[two]) / told.mean(), 1.0)
    chance = chi2_cdf((near[one, k] ** 2 + blur) / unit * share, r * np.maximum(share, MIN_SHARE))
    shift = (levels[one] - levels[two])[:, None]
    apart = ((moves[one] - moves[two] + shift) ** 2).sum(axis=(1, 2))
    alone = (moves[one] ** 2 + moves[two] ** 2).sum(axis=(1, 2))
    alike = (one != two) & (share >= MIN_SHARE) & (chance < rare) & (apart < MAX_APART * alone)
    if not alike.any():
        return None
    graph = coo_array((np.ones(alike.sum()), (one[alike], two[alike])), shape=(n, n))
    return connected_components(graph, directed=False)[1].astype(np.intp)


def _any_nearer(points: Array, reach: float) -> bool:
    """Some of few points (n, q) may be nearer than √reach to one another, up to rounding."""
    squares = (points**2).sum(axis=1)
    between = squares[:, None] + squares - 2 * points @ points.T
    np.fill_diagonal(between, np.inf)
    return bool(between.min() <= reach + 1e-9 * squares.max())


def _numbers(data: Data, *, shared: bool) -> tuple[Array, Array, Indices]:
    """Some numbers of each trajectory, (n, m, d), NaN where missing, the units to which variables are rounded, (d,), and how many
    differences each trajectory shows, (n,).

    Of a shared order they are values at the same slices; of own orders, where a row has no counterpart, sorted values.
    """
    _, T, d = data.shape
    size = max(3, MAX_COMPARED_NUMBERS // d)
    if shared:
        x = data.slices(evenly(T, size)).transpose(1, 0, 2)
    else:
        x = np.where(data.lengths.mask[:, :, None], to_numpy(data.values), np.nan)
    known = (~np.isnan(x)).sum(axis=1, keepdims=True)
    if not shared:
        levels = np.linspace(0, 1, min(size, T))[None, :, None]
        at = np.round(levels * np.maximum(known - 1, 0)).astype(np.intp)
        x = np.take_along_axis(np.sort(x, axis=1), at, axis=1)
    units = np.array([_unit(x[:, :, k]) for k in range(d)])
    kept = np.isfinite(units)
    return x[:, :, kept], units[kept], np.maximum(known - 1, 0).sum(axis=(1, 2))


def _unit(values: Array) -> float:
    """The unit of which all differences between a variable's values are multiples, 0 where there is none; ∞ where one value is so
    frequent that trajectories are often equal by chance."""
    found, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    if len(found) < 2 or counts.max() > MAX_TIED * counts.sum():
        return np.inf
    gaps = np.diff(found)
    gaps = gaps[gaps > 1e-9 * gaps.sum()]
    multiples = gaps / gaps.min()
    whole = np.round(multiples)
    return float(gaps.min()) if (np.abs(multiples - whole) <= 1e-8 + 1e-6 * whole).all() else 0.0


def _moves(x: Array) -> tuple[Array, Array, Array]:
    """Deviations (n, m, d) from slices' means and own levels, 0 where missing, and levels (n, d), in units of
    the deviations' sizes (d,), which are returned, too."""
    known = ~np.isnan(x)
    # Of slices without any value.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        middle = np.median(x, axis=0) if known.all() else np.nanmedian(x, axis=0)
    x = np.where(known, x - middle, 0.0)
    levels = x.sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    x = np.where(known, x - levels[:, None], 0.0)
    scale = np.sqrt((x**2).sum(axis=(0, 1)) / known.sum(axis=(0, 1)))
    scale = np.where(scale > 0, scale, 1.0)
    return x / scale, levels / scale, scale


def _components(moves: Array, units: Array) -> tuple[Array, float]:
    """Scores (n, q) of variance 1 on principal components, and what rounding adds to the square of a distance."""
    n = len(moves)
    flat = moves.reshape(n, -1)
    variances, axes = np.linalg.eigh(flat.T @ flat / n)
    kept = variances > MIN_COMPONENT * variances[-1]
    kept[: -min(max(n // TRAJECTORIES_PER_COMPONENT, 1), MAX_COMPONENTS)] = False
    weights = axes[:, kept] / np.sqrt(variances[kept])
    blur = ((weights * np.tile(units, moves.shape[1])[:, None]) ** 2).sum() / 6
    return flat @ weights, float(blur)


def _some_pairs(n: int) -> tuple[Indices, Indices]:
    """All pairs, or as many as tell the distribution of their distances, the same for the same n."""
    if n * (n - 1) // 2 <= MAX_PAIRS:
        first, second = np.triu_indices(n, 1)
        return first, second
    rng = np.random.default_rng(n)
    first = rng.integers(n, size=MAX_PAIRS)
    return first, (first + rng.integers(1, n, size=MAX_PAIRS)) % n
