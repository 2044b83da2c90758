"""The same data, the same answer: a panel sorted by its own contents, whatever order its rows came in.

Each trajectory's observations are compared variable by variable, trajectories by their observations so sorted, and slices
by what the trajectories, so sorted, hold in them. Comparisons, unlike sums, do not depend on units or rounding. Searches, random
streams and ties then meet the same numbers in the same order; what they find is brought back to the order that was given.
Tables with many ties (counts, 0/1) are sorted by colour refinement, which does not depend on the order of the variables either.

Colour refinement: trajectories, slices and variables start with one colour each. In every round each takes the multiset of its cells, a cell
being its rank in its variable and the colours of the others that meet in it, until no round tells more of them apart (Weisfeiler and Leman
1968). Slices, or variables, that still share a colour without being equal are symmetric: one of them is singled out, the one after which the
refined table is least, and the refinement goes on. Multisets are compared by sums of 64-bit hashes, which are exact integers: two that differ
agree once in 10¹⁹.

Limits: equal observations stay as they came; nothing but what is known of their times can tell them apart. The
order of the variables decides on the places in panels without ties, where it changes simulated p-values by their Monte-Carlo error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.panel.blocks import in_order, pick, to_numpy, unmasked
from retrace_sde.panel.groups import as_labels, renumbered
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel

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


@dataclass(frozen=True, eq=False)
class RowPermutation:
    """From the order that was given to the sorted one: `rows[j]` is the trajectory that now stands at j, `columns[a]` the slice at a.

    With own orders `columns[j, a]` is the observation of that trajectory that now stands at a. `tied`: many cells hold equal values.
    """

    rows: Indices
    columns: Indices
    tied: bool = False

    @property
    def shared(self) -> bool:
        return Order.of(self.columns).shared

    @cached_property
    def _new_rows(self) -> Indices:
        """Where each given trajectory now stands."""
        return np.argsort(self.rows)

    @cached_property
    def _new_columns(self) -> Indices:
        """Where each given slice, or each observation of the trajectory that now stands at j, now stands."""
        return np.argsort(self.columns, axis=-1)

    def take(self, positions: Indices) -> RowPermutation:
        """The places of some of the trajectories."""
        columns = self.columns if self.shared else self.columns[positions]
        return replace(self, rows=self.rows[positions], columns=columns)

    def sorted(self, values: Any) -> Any:
        """Values (n, T, …) of every observation, in the new order."""
        moved = pick(values, self.rows, 0)
        if self.shared:
            return pick(moved, self.columns, 1)
        return in_order(moved, self.columns)

    def shuffled(self, lengths: Indices | None = None) -> RowPermutation:
        """Slices, or observations, in an order that is as good as random, but the same for the same data.

        For searches and chains that start from the order they are in: sorted by a variable they would all lean one way.
        `lengths`: how many observations each trajectory has, as the panel was given; padding stays behind.
        """
        T = self.columns.shape[-1]
        keys = np.random.default_rng(T).random(self.columns.shape)
        if lengths is not None:
            keys[~Lengths(len(self.rows), T, lengths[self.rows]).mask] = np.inf
        shuffled = np.argsort(keys, axis=-1, kind="stable")
        return replace(self, columns=np.take_along_axis(self.columns, shuffled, axis=-1))

    def panel(self, panel: Panel) -> Panel:
        """A panel in the new order; a shorter trajectory is padded by its last observation, as sorted."""
        lengths = None if panel.lengths is None else panel.lengths[self.rows]
        columns = self.columns
        if lengths is not None:
            # 0, 1, …, and the last observation in place of padding
            last = np.minimum(np.arange(columns.shape[1])[None], lengths[:, None] - 1)
            columns = np.take_along_axis(columns, last, axis=1)

        def moved(values: Any) -> Any:
            if isinstance(values, ArrayView):  # which is not moved but read in the new order
                return values.permuted(self.rows, columns)
            return None if values is None else replace(self, columns=columns).sorted(values)

        values, u = moved(panel.values), moved(panel.covariates)
        groups = None if panel.groups is None else renumbered(as_labels(panel.groups)[self.rows])
        return replace(panel, values=values, covariates=u, lengths=lengths, groups=groups)

    def given_orders(self, found: NDArray[np.integer[Any]]) -> Indices:
        """Orders (T,), (n, T) or (n, draws, T) of what is sorted, as orders of what was given."""
        if self.shared:
            return self.columns[found]
        columns = self.wide(found.shape[-1])
        columns = columns if found.ndim == 2 else columns[:, None]
        return self.given_rows(np.take_along_axis(columns, found.astype(np.intp), axis=-1))

    def sorted_orders(self, orders: Indices) -> Indices:
        """The reverse of `given_orders`."""
        columns = self._new_columns
        if self.shared:
            return columns[Order.of(orders).take(self.rows).index]
        return np.take_along_axis(columns, orders[self.rows], axis=-1)

    def wide(self, T: int) -> Indices:
        """The columns of T observations of each: visits that were missed, and laid out as such, stay behind the others."""
        if self.shared:
            return self.columns
        n, known = self.columns.shape
        rest = np.broadcast_to(np.arange(known, T, dtype=np.intp), (n, T - known))
        return np.concatenate([self.columns, rest], axis=1)

    def given_rows(self, values: Any) -> Any:
        """Something of each trajectory, (n, …), in the order that was given."""
        found = np.empty_like(values)
        found[self.rows] = values
        return found

    def given_observations(self, values: Any) -> Any:
        """Something of each observation, (n, T, …), in the order that was given."""
        if self.shared:
            return np.asarray(values)[self._new_rows][:, self._new_columns]
        columns = np.argsort(self.wide(values.shape[1]), axis=1)
        at = columns.reshape(*columns.shape, *[1] * (values.ndim - 2))
        return np.take_along_axis(values, at, axis=1)[self._new_rows]

    def given_pairs(self, values: Any) -> Any:
        """Something of each pair of observations, (n, T, T), in the order that was given."""
        columns = self._new_columns
        if self.shared:
            return np.asarray(values)[self._new_rows][:, columns[:, None], columns]
        moved = np.take_along_axis(values, columns[:, :, None], axis=1)
        return np.take_along_axis(moved, columns[:, None, :], axis=2)[self._new_rows]

    def table(self, values: Any) -> Any:
        """A number for each slice or observation, in the new order; one for all stays."""
        if values is None or np.ndim(values) == 0:
            return values
        given = np.asarray(unmasked(values), dtype=float)
        return given[self.columns] if self.shared else self.sorted(given[:, :, None])[:, :, 0]


def content_permutation(
    panel: Panel, *, shared: bool, known: Knowledge | None = None
) -> RowPermutation:
    """The permutation that sorts a panel's trajectories, and their slices or observations, by their contents."""
    n, T, _ = panel.values.shape
    facts = panel.values.facts if isinstance(panel.values, ArrayView) else None
    if facts is not None and facts.rows is not None:
        rows, own = facts.rows, facts.own
    else:
        if facts is not None:  # its least values did not tell the trajectories apart
            panel = replace(panel, values=panel.values.source)
        lengths = Lengths(n, T, panel.lengths)
        cells = _tied_cells(panel, lengths, None if shared else known)
        if cells is not None:
            return RowPermutation(*tied_places(cells, shared=shared), tied=True)
        outside = (~lengths.mask).astype(np.intp)
        own = ranked(_contents(panel, None if shared else known), outside)
        each = _of_trajectories(panel, lengths.each, own)
        rows = ranked(each, np.zeros((1, n), dtype=np.intp))[0]
    return RowPermutation(rows, _sorted_slices(panel, rows) if shared else own[rows])


def _tied_cells(panel: Panel, lengths: Lengths, known: Knowledge | None) -> Cells | None:
    """The panel's cells as ranks, where many of some variable tie; None elsewhere."""
    if not any(many_ties(each, lengths.mask) for each in _variables(panel.values)):
        return None
    d = panel.values.shape[2]
    given = list(_contents(panel, known))
    kinds = [0 if k < d else k for k in range(len(given))]  # variables alone may change places
    return Cells.of(given, np.array(kinds), lengths.mask)


def _of_trajectories(panel: Panel, lengths: Indices, own: Indices) -> Iterator[Array]:
    """What tells trajectories apart, (1, n) each, the first first: lengths, then their observations as sorted."""
    yield lengths[None].astype(float)
    for t in range(own.shape[1]):
        for each in _contents(panel, None):
            yield np.take_along_axis(each, own[:, t : t + 1], axis=1).T


def _sorted_slices(panel: Panel, rows: Indices) -> Indices:
    """The slices by what the trajectories, one after the other, hold in them."""

    def of_slices() -> Iterator[Array]:
        for j in rows:
            row = np.array([j], dtype=np.intp)
            yield from _variables(pick(panel.values, row, 0))
            if panel.covariates is not None:
                yield from _variables(pick(panel.covariates, row, 0))

    return ranked(of_slices(), np.zeros((1, panel.values.shape[1]), dtype=np.intp))[0]


def _variables(values: Any) -> Iterator[Array]:
    for k in range(values.shape[2]):
        yield to_numpy(values[:, :, k])


def _contents(panel: Panel, known: Knowledge | None) -> Iterator[Array]:
    """What tells observations apart, (n, T) each, the first first: variables, covariates, times and blocks."""
    yield from _variables(panel.values)
    if panel.covariates is not None:
        yield from _variables(panel.covariates)
    if known is not None:
        tables = (each for each in (known.timestamps, known.blocks) if each is not None)
        yield from (np.asarray(each, dtype=float) for each in tables)
