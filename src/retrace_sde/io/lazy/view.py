"""Arrays (n, T, d) that are read in standard order and units where they are, rather than copied.

`rows[j]` is the stored trajectory that stands at j, `columns` the order of the slices (or of each trajectory's observations),
values are `(x − m)/s`: all applied to the block that is read. `InMemoryView` is of an array in memory or on a device,
`io/lazy/array.LazyArray` of one that is stored outside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices, ordered, taken

VIEW_FROM_ELEMENTS = 1 << 21
"""Numbers from which an array is not copied: 16 MiB of float64."""


@dataclass(frozen=True, eq=False)
class StandardUnits:
    """Some variables (`kept`), each as `(x − centre)/scale`; None: all of them, as they are."""

    kept: Indices | None = None
    centre: Array | None = None
    scale: Array | None = None

    def __call__(self, block: Any, columns: Indices | None, *, own: bool = False) -> Any:
        """A block (m, T, D) along an order of its slices, or one for each row, in these units as float64; `own`: it is a copy, to be written to."""
        found = ordered(block, columns)
        if self.kept is not None:
            found = taken(found, self.kept, 2)
        if self.centre is None or self.scale is None:
            return found
        xp = array_api_compat.array_namespace(found)
        device = array_api_compat.device(found)
        centre, scale = (
            xp.asarray(each, dtype=found.dtype, device=device) for each in (self.centre, self.scale)
        )
        if found is block and not own:
            return (found - centre) / scale
        if self.centre.any():
            found -= centre
        found /= scale
        return found


@dataclass(frozen=True, eq=False)
class ArrayView:
    """An array as the search reads it; `facts` is what a survey found (`panel/survey`)."""

    source: Any
    units: StandardUnits = StandardUnits()
    rows: Indices | None = None
    columns: Indices | None = None
    facts: Any = None

    @property
    def shape(self) -> tuple[int, int, int]:
        n, T, d = self.source.shape
        return n, T, d if self.units.kept is None else len(self.units.kept)

    @property
    def ndim(self) -> int:
        return 3

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.read(np.arange(self.shape[0])), dtype=dtype)

    def permuted(self, rows: Indices, columns: Indices | None) -> Self:
        """The same with trajectories, and slices or each one's observations, in another order."""
        facts = None if self.facts is None else self.facts.without_order
        return replace(self, rows=rows, columns=columns, facts=facts)

    def standardised(self, centre: Array, scale: Array) -> Self:
        """The same in standard units."""
        return replace(self, units=replace(self.units, centre=centre, scale=scale))

    def with_variables(self, kept: list[int]) -> Self:
        """The same with some variables only."""
        now = np.arange(self.source.shape[2]) if self.units.kept is None else self.units.kept
        return replace(self, units=replace(self.units, kept=now[kept]), facts=None)

    def read(self, positions: Indices) -> Any:
        """The trajectories at some positions, in memory."""
        raise NotImplementedError

    def block(self, rows: slice, order: Indices | None) -> Any:
        """Consecutive trajectories along an order of their slices, or one for each."""
        return ordered(self.read(np.arange(self.shape[0])[rows]), order)

    def positions(self, rows: slice) -> Indices | slice:
        """Where the trajectories stand that are stored in some rows."""
        return rows if self.rows is None else self._inverse[rows]

    @cached_property
    def _inverse(self) -> Indices:
        return np.argsort(self.rows)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class InMemoryView(ArrayView):
    """A large array of complete trajectories with one order for all: block by block, put in order and scaled in cache."""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def read(self, positions: Indices) -> Any:
        rows = positions if self.rows is None else self.rows[positions]
        return self.units(taken(self.source, rows, 0), self.columns, own=True)

    def block(self, rows: slice, order: Indices | None) -> Any:
        shared = order is None or order.ndim == 1
        block = (
            self.source[rows, ...] if self.rows is None else taken(self.source, self.rows[rows], 0)
        )
        columns, own = self._along(order) if shared else self.columns, self.rows is not None
        found = self.units(block, columns, own=own)
        return found if shared else ordered(found, order)

    def slices(self, positions: Indices) -> Any:
        """Some slices of all trajectories, (n, k, d)."""
        found = self.units(self.source, self._along(positions))
        return found if self.rows is None else taken(found, self.rows, 0)

    def piece(self, rows: slice) -> InMemoryView:
        """The trajectories that are stored in some rows, as they are stored."""
        return InMemoryView(self.source[rows, ...], self.units, None, self.columns)

    def _along(self, order: Indices | None) -> Indices | None:
        """Stored slices along an order of the slices as they stand."""
        columns = self.columns
        return columns if order is None else order if columns is None else columns[order]
