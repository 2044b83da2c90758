"""How many of T positions each of n trajectories has: the mask, the padding and the reversal of ragged rows, written once.

A ragged panel is stored as (n, T, …) with padding beyond each trajectory's end. Padding is never read as data; in an order it stands
where it is, position k holding k, and a reversal leaves it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, Mask

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Lengths:
    """The lengths of n rows of T places; `counts` (n,), or None where every row is full."""

    n: int
    T: int
    counts: Indices | None = None

    @classmethod
    def of(cls, rows: Any, counts: Indices | None) -> Lengths:
        """Of an array whose first axes are (n, T)."""
        n, T = rows.shape[:2]
        return cls(n, T, counts)

    @property
    def ragged(self) -> bool:
        """Lengths were given: some row may have padding."""
        return self.counts is not None

    @cached_property
    def each(self) -> Indices:
        """The length of every row, (n,)."""
        return np.full(self.n, self.T, dtype=np.intp) if self.counts is None else self.counts

    @property
    def total(self) -> int:
        """Places that are no padding, in all rows together."""
        return int(self.each.sum())

    @property
    def mask(self) -> Mask:
        """Where there is no padding, (n, T)."""
        return np.arange(self.T)[None] < self.each[:, None]

    @property
    def steps(self) -> Lengths:
        """The lengths of what stands between neighbours: one less."""
        return Lengths(self.n, self.T - 1, None if self.counts is None else self.counts - 1)

    @property
    def reversal(self) -> Indices:
        """The places (n, T) that each row is read from when it is run backwards; padding stays where it is."""
        at, last = np.arange(self.T)[None], self.each[:, None] - 1
        return np.where(at <= last, last - at, at)

    def reversed(self, rows: NDArray[Number]) -> NDArray[Number]:
        """Rows (n, T) run backwards, padding left where it is."""
        if self.counts is None:
            return rows[:, ::-1].copy()
        return np.take_along_axis(rows, self.reversal, axis=1)

    def weights(self) -> Array | None:
        """The mask as numbers (n, T, 1) to multiply rows with; None where every row is full."""
        return None if self.counts is None else self.mask[:, :, None].astype(float)

    def take(self, rows: Indices | slice) -> Lengths:
        """Of some rows, which may be repeated."""
        if self.counts is not None:
            some = self.counts[rows]
            return Lengths(len(some), self.T, some)
        return Lengths(len(np.arange(self.n)[rows]), self.T)
