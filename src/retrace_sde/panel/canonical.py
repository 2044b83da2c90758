"""The same data, the same answer: a panel sorted by its own contents, whatever order its rows came in.

Each trajectory's observations are compared variable by variable, trajectories by their observations so sorted, and slices
by what the trajectories, so sorted, hold in them. Comparisons, unlike sums, do not depend on units or rounding. Searches, random
streams and ties then meet the same numbers in the same order; what they find is brought back to the order that was given.
Tables with many ties (counts, 0/1) are sorted by colour refinement (`ranks`), which does not depend on the order of the variables either.

Limits: equal observations stay as they came; nothing but what is known of their times can tell them apart. The
order of the variables decides on the places in panels without ties, where it changes simulated p-values by their Monte-Carlo error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.panel.blocks import in_order, pick, to_numpy, unmasked
from retrace_sde.panel.groups import as_labels, renumbered
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.ranks import Cells, many_ties, ranked, tied_places


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
