"""An order of time: one that all trajectories share, or one for each of them.

Position k of an order holds the number of the slice, or of the trajectory's observation, that comes k-th. Data, searches and compiled
code take the plain index arrays, (T,) or (n, T); whoever has to know which kind it is asks here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.panel.lengths import Lengths


@dataclass(frozen=True, eq=False)
class Order:
    """An order of T positions, `index` (T,) of the slices, or (n, T) of each trajectory's own observations.

    `lengths` of orders of their own: padding beyond a trajectory's length stays where it is.
    """

    index: Indices
    lengths: Lengths | None = None

    @classmethod
    def of(cls, index: Indices | Order, lengths: Lengths | None = None) -> Order:
        """From an array (T,) or (n, T); `lengths` of the trajectories, where they differ, for orders of their own."""
        if isinstance(index, Order):
            return index
        if index.ndim == 1:
            return cls(index)
        return cls(index, Lengths.of(index, None) if lengths is None else lengths)

    @property
    def shared(self) -> bool:
        """The same for all trajectories."""
        return self.lengths is None

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
        return self if self.lengths is None else Order(self.index[rows], self.lengths.take(rows))

    def of_trajectory(self, j: int) -> Indices:
        """The order (T,) of one trajectory."""
        return self.index if self.shared else np.asarray(self.index[j])

    def reversed(self) -> Order:
        """Run backwards, within each trajectory's own length."""
        if self.lengths is None:
            return Order(self.index[::-1].copy())
        return Order(self.lengths.reversed(self.index), self.lengths)

    def ends(self, count: int) -> Order:
        """The first and the last `count` positions of each trajectory, one after the other."""
        if self.lengths is None:
            return Order(np.concatenate([self.index[:count], self.index[-count:]]))
        late = self.lengths.each[:, None] - count + np.arange(count)[None]
        last = np.take_along_axis(self.index, late, axis=1)
        return Order.of(np.concatenate([self.index[:, :count], last], axis=1))
