"""Sorting by several keys, as many of them as are needed; and where cells tie, by colour refinement.

Places found by refinement depend neither on the order of anything in the table nor on units.

Trajectories, slices and variables start with one colour each. In every round each takes the multiset of its cells, a cell being its rank
in its variable and the colours of the others that meet in it, until no round tells more of them apart (Weisfeiler and Leman
1968). Slices, or variables, that still share a colour without being equal are symmetric: one of them is singled out,
the one after which the refined table is least, and the refinement goes on.

Multisets are compared by sums of 64-bit hashes, which are exact integers: two that differ agree once in 10¹⁹.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, Mask

MAX_DISTINCT_SHARE = 0.9
"""Distinct values of a variable, relative to its cells, below which the table counts as tied."""

MAX_LOOK_AHEAD = 10_000_000
"""Cells, times the symmetric slices or variables, up to which each of these is tried as the one to single out."""

Hash = NDArray[np.uint64]


def ranked(keys: Iterable[Array], rank: Indices) -> Indices:
    """The order of each row (m, k) by its `rank`, then by keys (m, k) as far as they are needed; NaN comes last."""
    order = np.argsort(rank, axis=1, kind="stable")
    for key in keys:
        known = np.where(np.isnan(key), np.inf, key)
        order = np.lexsort((known, rank), axis=1)
        one, two = (np.take_along_axis(each, order, axis=1) for each in (rank, known))
        differs = (np.diff(one, axis=1) != 0) | (two[:, 1:] != two[:, :-1])
        if differs.all():
            break
        np.put_along_axis(rank, order[:, 1:], np.cumsum(differs, axis=1), axis=1)
        np.put_along_axis(rank, order[:, :1], 0, axis=1)
    return order


def many_ties(column: Array, inside: Mask) -> bool:
    """Many cells (n, T) of a variable hold a value that another holds, too."""
    known = column[inside & ~np.isnan(column)]
    return bool(len(np.unique(known)) < MAX_DISTINCT_SHARE * len(known))


@dataclass(frozen=True, eq=False)
class Cells:
    """Hashed ranks of each variable (n, T), and the colours of trajectories (n, 1), of slices (1, T), and of variables (d,)."""

    ranks: list[Hash]
    inside: Mask
    rows: Hash
    slices: Hash
    variables: Hash

    @classmethod
    def of(cls, given: list[Array], kinds: NDArray[np.integer[Any]], inside: Mask) -> Self:
        """`kinds` (d,): variables of one kind may change places."""
        n, T = inside.shape
        ranks = [
            _mixed(np.unique(each, return_inverse=True)[1].reshape(n, T).astype(np.uint64))
            for each in given
        ]
        none = np.zeros((n, 1), np.uint64), np.zeros((1, T), np.uint64)
        return cls(ranks, inside, *none, _mixed(kinds.astype(np.uint64)))

    @property
    def observations(self) -> Hash:
        """A colour for each observation (n, T): what all variables hold there."""
        found = np.zeros(self.inside.shape, np.uint64)
        for rank, colour in zip(self.ranks, self.variables, strict=True):
            found += _mixed(rank + colour)
        return np.where(self.inside, _mixed(found), np.uint64(0))

    @property
    def classes(self) -> int:
        """How many colours there are."""
        return sum(len(np.unique(each)) for each in (self.rows, self.slices, self.variables))

    @property
    def digest(self) -> int:
        """One number for all colours, whatever order they are in."""
        every = (self.rows, self.slices, self.variables)
        return int(_mixed(np.array([_mixed(each).sum() for each in every], np.uint64)).sum())

    def refined(self, *, shared: bool) -> Cells:
        """The colours when no further round tells more apart."""
        found, classes = self, 0
        while found.classes > classes:
            classes = found.classes
            found = found._round(shared=shared)
        return found

    def _round(self, *, shared: bool) -> Cells:
        seen = self.observations
        rows = _mixed(_mixed(seen + self.slices).sum(axis=1, keepdims=True) + self.rows)
        slices = self.slices
        if shared:
            slices = _mixed(_mixed(seen + self.rows).sum(axis=0, keepdims=True) + slices)
        where = _mixed(seen + self.rows + _mixed(self.slices))
        sums = [np.where(self.inside, _mixed(each + where), 0).sum() for each in self.ranks]
        variables = _mixed(np.array(sums, np.uint64) + self.variables)
        return replace(self, rows=rows, slices=slices, variables=variables)


def tied_places(cells: Cells, *, shared: bool) -> tuple[Indices, Indices]:
    """The places of the trajectories (n,), and of the slices (T,) or of each trajectory's observations (n, T), sorted by colour."""
    cells = cells.refined(shared=shared)
    while (tied := _symmetric(cells, shared=shared)) is not None:
        cells = _singled_out(cells, *tied, shared=shared)
    rows = np.argsort(cells.rows[:, 0], kind="stable")
    if shared:
        return rows, np.argsort(cells.slices[0], kind="stable")
    own = np.lexsort((cells.observations, ~cells.inside), axis=1)
    return rows, own[rows]


def _symmetric(cells: Cells, *, shared: bool) -> tuple[str, Indices] | None:
    """The slices, or else the variables, of the least colour that several share which are not equal."""
    seen = cells.observations
    for axis, colours, contents in (
        ("slices", cells.slices[0], seen.T),
        ("variables", cells.variables, np.array([each.ravel() for each in cells.ranks])),
    ):
        if axis == "slices" and not shared:
            continue
        values, counts = np.unique(colours, return_counts=True)
        for value in values[counts > 1]:
            members = np.flatnonzero(colours == value)
            if (contents[members] != contents[members[0]]).any():
                return axis, members
    return None


def _singled_out(cells: Cells, axis: str, members: Indices, *, shared: bool) -> Cells:
    """The table refined after one of the symmetric members was given a colour of its own: the one that leads to the least digest."""
    if len(members) * cells.inside.size * len(cells.ranks) > MAX_LOOK_AHEAD:
        members = members[:1]

    def without(k: int) -> Cells:
        colours = getattr(cells, axis).copy()
        colours.flat[k] += np.uint64(1)
        return replace(cells, **{axis: colours}).refined(shared=shared)

    return min((without(int(k)) for k in members), key=lambda each: each.digest)


def _mixed(x: Hash) -> Hash:
    """Numbers scattered over 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
