"""What must be known of a lazy panel before it is fitted, in one pass over it.

Ranges, means and spreads (about each block's own mean, put together by Chan's formula, so that a large level costs no digits), the first
value that is not finite, and the sort keys of the trajectories: each one's first numbers, its observations sorted by content.

Limits: trajectories whose first `SORT_KEYS` sorted numbers are equal are sorted by a projection of all their numbers, not as in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy import view
from retrace_sde.io.lazy.array import LazyArray
from retrace_sde.io.lazy.view import InMemoryView
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.canonical import ranked

SORT_KEYS = 4
"""Numbers, of each trajectory's sorted observations, by which trajectories are sorted."""

SAMPLE_SIZES, SAMPLE_NUMBERS = (
    (24, 50, 100, 200, 500, 1000),
    ((3000, 0, 1), (20_000, 1, 0), (200_000, 1, 1)),
)
"""How many evenly spaced trajectories the steps of a fit ask for: so many, or as many as have so many numbers of a slice, of a
variable, or in all (with the exponents of T and d). They are read together; another sample costs a read of its own."""

MAX_PREFETCH_SHARE = 0.02
"""Share of the trajectories up to which a sample is read ahead."""


@dataclass(frozen=True, eq=False)
class Facts:
    """Least and largest values (d,), how many there are, their means and standard deviations, and what is not finite.

    `bad`: how many values are not finite; `first`: the first of them, (trajectory, observation, variable). `rows` (n,) is the
    order of the trajectories by content, `own` (n, T) that of each one's observations.
    """

    low: Array
    high: Array
    counts: Array
    mean: Array
    scale: Array
    bad: int
    first: tuple[int, int, int] | None
    rows: Indices | None
    own: Indices | None

    @property
    def without_order(self) -> Facts:
        """The same without the order by content, once it was applied."""
        return replace(self, rows=None, own=None)


def surveyed(data: Data, *, own: bool) -> Data:
    """The same lazy data, whose values know their facts."""
    n = data.shape[0]
    numbers = np.arange(n, dtype=np.intp)[:, None]
    table, bad, keys, order = data.each_piece(partial(_survey, own=own), numbers)
    low, high, counts, mean, squares = table.transpose(1, 0, 2)
    total = counts.sum(axis=0)
    centre = (counts * mean).sum(axis=0) / total
    spread = (squares + counts * (mean - centre) ** 2).sum(axis=0) / total
    wrong = bad[bad[:, 0] > 0]
    every = (data.observed[None].astype(float), *keys.T[:, None])
    rows = ranked(every, np.zeros((1, n), dtype=np.intp))[0]
    first = None if len(wrong) == 0 else (int(wrong[0, 1]), int(wrong[0, 2]), int(wrong[0, 3]))
    ranges = low.min(axis=0), high.max(axis=0), total, centre, np.sqrt(spread)
    found = Facts(*ranges, int(bad[:, 0].sum()), first, rows, order if own else None)
    if found.bad == 0:
        _read_ahead(data.values, rows)
    return replace(data, values=replace(data.values, facts=found))


def _survey(piece: Data, numbers: Indices, *, own: bool) -> tuple[Array, Indices, Array, Indices]:
    """Of one block: a row of its facts, a row of what is no number in it, and each trajectory's keys and own order."""
    x, d = piece.values, piece.shape[2]
    outside = ~piece.lengths.mask
    whole = not outside.any()
    z = x.reshape(-1, d) if whole else x.reshape(-1, d)[~outside.ravel()]
    mean = z.mean(axis=0)
    bad = np.zeros((1, 4), dtype=np.intp)
    if not np.isfinite(mean if whole else x).all():  # a mean that is one was made of numbers
        wrong = np.argwhere(~np.isfinite(x))
        if len(wrong):  # or their sum is too large
            bad[0] = len(wrong), numbers[wrong[0, 0], 0], wrong[0, 1], wrong[0, 2]
    away = z - mean
    squares = np.einsum("ij,ij->j", away, away)
    count = np.full(d, float(len(z)))
    table = np.stack([x.min(axis=(0, 1)), x.max(axis=(0, 1)), count, mean, squares])
    u = piece.covariates
    every = x if u is None else np.concatenate([x, u], axis=2)
    order = ranked((every[:, :, k] for k in range(every.shape[2])), outside.astype(np.intp))
    along = np.take_along_axis(every, order[:, :, None], axis=1).reshape(len(x), -1)
    if not whole:
        along[np.repeat(outside, every.shape[2], axis=1)] = 0.0
    shadow = along @ np.random.default_rng(0).standard_normal(along.shape[1])
    keys = np.column_stack([along[:, :SORT_KEYS], shadow])
    return table[None], bad, keys, order if own else order[:, :0]


def _read_ahead(values: LazyArray, rows: Indices) -> None:
    """Read in one pass the trajectories that later samples ask for: evenly spaced as stored, and as they will stand."""
    n, T, d = values.shape
    shares = [many / (T**a * d**b) for many, a, b in SAMPLE_NUMBERS] + [
        (1000 + 20 * d) / T,
        2 * d + 20,
    ]
    sizes = {*SAMPLE_SIZES, *map(math.floor, shares), *map(math.ceil, shares)}
    most = max(MAX_PREFETCH_SHARE * n, min(SAMPLE_SIZES))
    even = np.unique(np.concatenate([evenly(n, size) for size in sizes if 0 < size <= most]))
    values.prefetch(np.union1d(even, rows[even]))


MAX_LEVEL, EXTREME_SPREAD = 1e3, 1e60
"""Level of a variable in standard deviations, and its spread, beyond which sums of squares are not enough."""


def glanced(values: Any, n_jobs: int | None) -> InMemoryView | None:
    """A large complete array with one order for all, as a view; None where it is small, or must be checked more closely.

    One pass: sums and squares, which show whether every value is finite, and each trajectory's least value, which sorts the
    trajectories where no two are equal. |x − x̄|² is at most the sum of squares about the mean, so that ranges need not be known.
    """
    n, T, d = values.shape
    if n * T * d < view.VIEW_FROM_ELEMENTS or not array_api_compat.is_array_api_obj(values):
        return None
    found = _sums(values, n_jobs)
    if found is None:
        return None
    total, squares, least = found
    count = float(n * T)
    mean = total / count
    scale = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    rows = np.argsort(least, kind="stable")
    reach = np.sqrt(count) * scale
    if (
        not np.isfinite(squares).all()
        or not (scale > np.abs(mean) / MAX_LEVEL).all()
        or scale.min() < 1 / EXTREME_SPREAD
        or reach.max() > EXTREME_SPREAD
    ):
        return None
    tied = bool((np.diff(least[rows]) == 0).any())  # as a common start makes them
    counts, order = np.full(d, count), None if tied else rows
    facts = Facts(mean - reach, mean + reach, counts, mean, scale, 0, None, order, None)
    return InMemoryView(values, facts=facts)


def _sums(values: Any, n_jobs: int | None) -> tuple[Array, Array, Array] | None:
    """Sums and sums of squares of each variable, and the least value of the first in each trajectory."""
    if not array_api_compat.is_numpy_array(values):
        xp = array_api_compat.array_namespace(values)
        x = xp.astype(values, xp.float64, copy=False)
        sums = xp.sum(x, axis=(0, 1)), xp.sum(x * x, axis=(0, 1)), xp.min(x[:, :, 0], axis=1)
        total, squares, least = (to_numpy(each) for each in sums)
        return total, squares, least
    by_time = not values.flags.c_contiguous
    turned = values.transpose(1, 0, 2) if by_time else values  # the slower axis first
    if not turned.flags.c_contiguous:
        return None

    def of_block(rows: slice) -> tuple[Array, Array, Array]:
        x = np.asarray(turned[rows], dtype=np.float64)
        flat = x.reshape(-1, x.shape[2])
        first = x[:, :, 0].min(axis=0 if by_time else 1)
        return np.ones(len(flat)) @ flat, np.einsum("ij,ij->j", flat, flat), first

    parts = list(zip(*Data(turned, n_jobs=n_jobs).map_rows(of_block), strict=True))
    least = np.min(parts[2], axis=0) if by_time else np.concatenate(parts[2])
    return np.sum(parts[0], axis=0), np.sum(parts[1], axis=0), least
