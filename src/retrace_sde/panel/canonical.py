"""The same data, the same answer: a panel in an order of its own contents, whatever order its rows came in.

Each trajectory's observations are compared variable by variable, trajectories by their observations so sorted, and slices
by what the trajectories, so sorted, hold in them. Comparisons, unlike sums, do not depend on units or rounding. Searches, random
streams and ties then meet the same numbers in the same places; what they find is put back where it came from.

Limits: equal observations stay as they came; nothing but what is known of their times can tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.array import LazyArray
from retrace_sde.panel.blocks import in_order, pick, to_numpy, unmasked
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.ranks import ranked


@dataclass(frozen=True, eq=False)
class RowPermutation:
    """Where everything came from: `rows[j]` is the trajectory that now stands at j, `columns[a]` the slice now at a.

    With own orders `columns[j, a]` is the observation of that trajectory that now stands at a.
    """

    rows: Indices
    columns: Indices

    @property
    def shared(self) -> bool:
        return self.columns.ndim == 1

    @property
    def _backwards(self) -> tuple[Indices, Indices]:
        return np.argsort(self.rows), np.argsort(self.columns, axis=-1)

    def sorted(self, values: Any) -> Any:
        """Values (n, T, …) of every observation, brought to their places."""
        moved = pick(values, self.rows, 0)
        if self.shared:
            return pick(moved, self.columns, 1)
        return in_order(moved, self.columns)

    def mixed(self, lengths: Indices | None = None) -> RowPermutation:
        """Slices, or observations, in an order that is as good as arbitrary, but the same for the same data.

        For searches and chains that start where these stand: sorted by a variable they would all lean one way. `lengths`:
        how many observations each trajectory has, as the panel was given; what pads the others stays behind.
        """
        T = self.columns.shape[-1]
        chance = np.random.default_rng(T).random(self.columns.shape)
        if lengths is not None:
            chance[np.arange(T)[None] >= lengths[self.rows, None]] = np.inf
        mix = np.argsort(chance, axis=-1, kind="stable")
        return replace(self, columns=np.take_along_axis(self.columns, mix, axis=-1))

    def panel(self, panel: Panel) -> Panel:
        """A panel with everything in its place; what pads a shorter trajectory is its last observation, as sorted."""
        lengths = None if panel.lengths is None else panel.lengths[self.rows]
        if isinstance(panel.values, LazyArray):
            return self._stored(panel, lengths)
        values, u = (
            None if each is None else _padded(self.sorted(each), lengths)
            for each in (panel.values, panel.covariates)
        )
        return replace(panel, values=values, covariates=u, lengths=lengths)

    def _stored(self, panel: Panel, lengths: Indices | None) -> Panel:
        """The same of a lazy panel, which is not moved but looked at in its places."""
        columns, u = self.columns, panel.covariates
        if lengths is not None:
            columns = _padded(columns[:, :, None], lengths)[:, :, 0]
        if isinstance(u, LazyArray):
            u = u.placed(self.rows, columns)
        elif u is not None:
            u = _padded(self.sorted(u), lengths)
        return replace(
            panel, values=panel.values.placed(self.rows, columns), covariates=u, lengths=lengths
        )

    def knowledge(self, known: Knowledge) -> Knowledge:
        """What is known of time, of the same slices or observations in their new places."""
        return replace(
            known,
            positions=self._positions(known.positions),
            precedences=None
            if known.precedences is None
            else [self._pair(each) for each in known.precedences],
            blocks=self._table(known.blocks),
            first=self._end(known.first),
            last=self._end(known.last),
            timestamps=self._table(known.timestamps),
            timestamp_error=self._table(known.timestamp_error),
        )

    def orders(self, found: NDArray[np.integer[Any]]) -> Indices:
        """Orders (T,), (n, T) or (n, draws, T) of what stands here, of the same things where they came from."""
        if self.shared:
            return self.columns[found]
        columns = self._wide(found.shape[-1])
        columns = columns if found.ndim == 2 else columns[:, None]
        return self.each(np.take_along_axis(columns, found.astype(np.intp), axis=-1))

    def here(self, orders: Indices) -> Indices:
        """The reverse of `orders`."""
        columns = self._backwards[1]
        if self.shared:
            return columns[orders] if orders.ndim == 1 else columns[orders[self.rows]]
        return np.take_along_axis(columns, orders[self.rows], axis=-1)

    def _wide(self, T: int) -> Indices:
        """The places of T observations of each: visits that were missed, and laid out as such, stay behind the others."""
        n, known = self.columns.shape
        rest = np.broadcast_to(np.arange(known, T, dtype=np.intp), (n, T - known))
        return np.concatenate([self.columns, rest], axis=1)

    def each(self, values: Any) -> Any:
        """Something of each trajectory, (n, …), where the trajectories came from."""
        found = np.empty_like(values)
        found[self.rows] = values
        return found

    def observations(self, values: Any) -> Any:
        """Something of each observation, (n, T, …), where the observations came from."""
        rows, columns = self._backwards
        if self.shared:
            return np.asarray(values)[rows][:, columns]
        columns = np.argsort(self._wide(values.shape[1]), axis=1)
        at = columns.reshape(*columns.shape, *[1] * (values.ndim - 2))
        return np.take_along_axis(values, at, axis=1)[rows]

    def _table(self, values: Any) -> Any:
        if values is None or np.ndim(values) == 0:
            return values
        given = np.asarray(unmasked(values), dtype=float)
        return given[self.columns] if self.shared else self.sorted(given[:, :, None])[:, :, 0]

    def _place(self, j: Any, a: Any) -> tuple[int, int]:
        rows, columns = self._backwards
        return int(rows[j]), int(columns[rows[j], a])

    def _positions(self, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return self._table(given)
        if self.shared:
            columns = self._backwards[1]
            return {int(columns[a]): k for a, k in given.items()}
        return {self._place(*key): k for key, k in given.items()}

    def _pair(self, given: Any) -> tuple[int, ...]:
        if self.shared:
            columns = self._backwards[1]
            return tuple(int(columns[a]) for a in given)
        (j, a), (_, b) = (self._place(given[0], each) for each in given[1:])
        return j, a, b

    def _end(self, given: Any) -> Any:
        if given is None:
            return None
        if self.shared:
            return int(self._backwards[1][given])
        if isinstance(given, Mapping):
            return dict(self._place(j, a) for j, a in given.items())
        every = np.broadcast_to(given, len(self.rows)).tolist()
        return dict(self._place(j, a) for j, a in enumerate(every) if a != -1)


def places(panel: Panel, *, shared: bool, known: Knowledge | None = None) -> RowPermutation:
    """The places of a panel's trajectories, and of their slices or observations, by their contents."""
    n, T, _ = panel.values.shape
    lengths = np.full(n, T) if panel.lengths is None else panel.lengths
    facts = panel.values.facts if isinstance(panel.values, LazyArray) else None
    if facts is not None and facts.rows is None:  # a glance did not tell the trajectories apart
        panel = replace(panel, values=panel.values.source)
    elif facts is not None:
        rows = facts.rows
        return (
            RowPermutation(rows, facts.own[rows])
            if not shared
            else RowPermutation(rows, _slices(panel, rows))
        )
    outside = (np.arange(T)[None] >= lengths[:, None]).astype(np.intp)
    own = ranked(_contents(panel, None if shared else known), outside)

    def of_trajectories() -> Iterator[Array]:
        yield lengths[None].astype(float)
        for t in range(T):
            for each in _contents(panel, None):
                yield np.take_along_axis(each, own[:, t : t + 1], axis=1).T

    rows = ranked(of_trajectories(), np.zeros((1, n), dtype=np.intp))[0]
    return (
        RowPermutation(rows, own[rows])
        if not shared
        else RowPermutation(rows, _slices(panel, rows))
    )


def _slices(panel: Panel, rows: Indices) -> Indices:
    """The places of slices, by what the trajectories, one after the other, hold in them."""

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


def _padded(values: Any, lengths: Indices | None) -> Any:
    if lengths is None:
        return values
    T = values.shape[1]
    last = np.minimum(np.arange(T)[None], lengths[:, None] - 1)
    return in_order(values, last)
