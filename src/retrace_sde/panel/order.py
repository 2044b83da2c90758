"""An order of time: one that all trajectories share, or one for each of them.

Position k of an order holds the number of the slice, or of the trajectory's observation, that comes k-th. Data, searches and compiled
code take the plain index arrays, (T,) or (n, T); whoever has to know which kind it is asks here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from retrace_sde.io.arrays import Indices, ordered
from retrace_sde.panel.lengths import Lengths


class Order(ABC):
    """An order of T positions; `shared`: the same for all trajectories. `index` is the array as users see it."""

    index: Indices
    shared: ClassVar[bool]

    @staticmethod
    def of(index: Indices | Order, lengths: Lengths | None = None) -> Order:
        """From an array (T,) or (n, T); `lengths` of the trajectories, where they differ, for orders of their own."""
        if isinstance(index, Order):
            return index
        if index.ndim == 1:
            return SharedOrder(index)
        return OwnOrder(index, Lengths.of(index, None) if lengths is None else lengths)

    @property
    def size(self) -> int:
        """The number of positions."""
        return int(self.index.shape[-1])

    @property
    def positions(self) -> Indices:
        """The position of each slice or observation: the inverse permutation, of the index's shape."""
        return np.argsort(self.index, axis=-1)

    def take(self, rows: Indices | slice) -> Order:
        """That of some trajectories."""
        return self

    @abstractmethod
    def of_trajectory(self, j: int) -> Indices:
        """The order (T,) of one trajectory."""

    @abstractmethod
    def rows(self, n: int) -> Indices:
        """A row for each of n trajectories, (n, T)."""

    @abstractmethod
    def reversed(self) -> Order:
        """Run backwards, within each trajectory's own length."""

    @abstractmethod
    def ends(self, count: int) -> Order:
        """The first and the last `count` positions of each trajectory, one after the other."""

    def apply(self, values: Any) -> Any:
        """Values (n, T, …) of any array-API namespace in this order, as float64."""
        return ordered(values, self.index)


@dataclass(frozen=True, eq=False)
class SharedOrder(Order):
    """One order (T,) of the slices."""

    index: Indices
    shared: ClassVar[bool] = True

    def of_trajectory(self, j: int) -> Indices:
        return self.index

    def rows(self, n: int) -> Indices:
        return np.broadcast_to(self.index, (n, self.size))

    def reversed(self) -> SharedOrder:
        return SharedOrder(self.index[::-1].copy())

    def ends(self, count: int) -> SharedOrder:
        return SharedOrder(np.concatenate([self.index[:count], self.index[-count:]]))


@dataclass(frozen=True, eq=False)
class OwnOrder(Order):
    """Orders (n, T) of each trajectory's own observations; padding beyond its length stays where it is."""

    index: Indices
    lengths: Lengths
    shared: ClassVar[bool] = False

    def take(self, rows: Indices | slice) -> OwnOrder:
        return OwnOrder(self.index[rows], self.lengths.take(rows))

    def of_trajectory(self, j: int) -> Indices:
        found: Indices = self.index[j]
        return found

    def rows(self, n: int) -> Indices:
        return self.index

    def reversed(self) -> OwnOrder:
        return OwnOrder(self.lengths.reversed(self.index), self.lengths)

    def ends(self, count: int) -> OwnOrder:
        late = self.lengths.each[:, None] - count + np.arange(count)[None]
        parts = self.index[:, :count], np.take_along_axis(self.index, late, axis=1)
        index = np.concatenate(parts, axis=1)
        return OwnOrder(index, Lengths.of(index, None))
