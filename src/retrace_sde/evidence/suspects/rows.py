"""Rows and cells along an order that are far from what both of their neighbours expect.

In rounds: the spikes M of all rows are compared with the tail of the residuals that are no candidates, the false discovery rate among
those called is held at `LEVEL` (Benjamini and Hochberg), what is called becomes missing, and its neighbours are looked at again. A row
whose deviation one variable explains is a wrong cell.

Limits: a row that differs from what is expected by less than about four standard deviations is not seen; nor are two wrong rows
next to each other that agree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.tail import EXCEEDED, Tail, joint_exponent
from retrace_sde.evidence.suspects.two_sided import Sides, TwoSided, lengths
from retrace_sde.io.arrays import Array, Mask

LEVEL, ROUNDS = 0.01, 4
"""False discovery rate among rows that are called, and rounds."""

CANDIDATE_SPIKE, CANDIDATE_SHARE = 3.0, 0.15
"""Length from which a spike is a candidate, left out of the tail it is compared with; at most this share of the rows are."""

CELL_LEVEL = 0.02
"""Level above which what one variable leaves of a deviation is ordinary: the cell, not the row, is wrong."""

MIN_LENGTHS = 40
"""Residuals from which a tail is fitted."""


class Find(NamedTuple):
    """A row, or one cell of it (`variable`), at a position of a trajectory; `p`: by chance; expected values and sds (d,)."""

    trajectory: int
    position: int
    variable: int | None
    p: float
    probability: float
    expected: Array
    sd: Array


class Judged(NamedTuple):
    """P values (n, T) of all rows, and what they rest on."""

    p: Array
    tail: Tail
    exponent: float


def find_rows(x: Array, times: Array) -> list[Find]:
    """The rows and cells of x (n, T, d), standardised and along an order, that are probably wrong."""
    x, found = x.copy(), list[Find]()
    called = np.zeros(x.shape[:2], dtype=bool)
    for _ in range(ROUNDS):
        sides = TwoSided.of(x, times).sides(x, times)
        seen = np.asarray(~np.isnan(x).all(axis=2))
        judged = judge(sides, seen)
        if judged is None:
            break
        rate = discovery_rates(judged.p, int(seen.sum()))
        new = (rate <= LEVEL) & seen & ~called
        if not new.any():
            break
        for j, k in zip(*map(np.ndarray.tolist, np.nonzero(new)), strict=True):
            variable = single_variable(sides, x, j, k, judged)
            p, probability = float(judged.p[j, k]), 1 - float(rate[j, k])
            here = sides.expected[j, k], sides.sd[j, k]
            found.append(Find(j, k, variable, p, probability, *here))
            x[j, k, slice(None) if variable is None else variable] = np.nan
        called |= new
    return found


def judge(sides: Sides, seen: Mask) -> Judged | None:
    """P values of all rows; None where there are too few residuals to compare with."""
    d, spikes = sides.before.shape[2], np.where(seen, sides.spikes, -1.0)
    bound = max(CANDIDATE_SPIKE, float(np.quantile(spikes[seen], 1 - CANDIDATE_SHARE)))
    candidates = spikes > bound
    near = candidates.copy()
    near[:, 1:] |= candidates[:, :-1]
    near[:, :-1] |= candidates[:, 1:]
    clean = seen & ~near & ~sides.end
    if clean.sum() < MIN_LENGTHS:
        return None
    both = np.r_[lengths(sides.before[clean]), lengths(sides.after[clean])]
    if np.median(both) <= 0:
        return None
    tail = Tail.of(both, d)
    inner = clean | (candidates & ~sides.end)
    exponent = joint_exponent(
        sides.before[clean], sides.after[clean], spikes[inner], float(np.quantile(both, EXCEEDED))
    )
    beyond = tail.beyond(np.maximum(spikes, 0.0))
    p = np.where(sides.end, beyond, beyond**exponent)
    return Judged(np.where(spikes > 0, p, 1.0), tail, exponent)


def discovery_rates(p: Array, count: int) -> Array:
    """The estimated share of false discoveries if everything at least as unlikely is called, among `count` rows."""
    order = np.argsort(p, axis=None)
    rates = p.ravel()[order] * count / np.arange(1, p.size + 1)
    found = np.empty(p.size)
    found[order] = np.minimum(np.minimum.accumulate(rates[::-1])[::-1], 1.0)
    return found.reshape(p.shape)


def single_variable(sides: Sides, x: Array, j: int, k: int, judged: Judged) -> int | None:
    """The variable whose error alone explains a row's deviation; None: it takes more than one."""
    d = x.shape[2]
    known = np.flatnonzero(~np.isnan(x[j, k]))
    if len(known) == 1:
        return int(known[0])
    before, after = sides.before[j, k], sides.after[j, k]
    rests = []
    for v in known:
        way = sides.directions[v]
        mean = (before - before @ way * way + after - after @ way * way) / 2
        rests.append(float(lengths(mean)))
    best = int(np.argmin(rests))
    factor = 1.0 if sides.end[j, k] else np.sqrt(judged.exponent)
    ordinary = judged.tail.beyond_in(np.asarray(rests[best] * factor), d - 1) > CELL_LEVEL
    return int(known[best]) if ordinary else None
