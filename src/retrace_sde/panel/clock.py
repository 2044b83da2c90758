"""The times along an order: how long each step is, and what is known of the times themselves.

`Gaps` are the times between neighbours along an order: all dt, the same for every trajectory, or each trajectory's own. A `Clock` is what is known of a panel's time before any order is: nothing, exact times of some or all
observations, or a schedule whose times belong to positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order


@dataclass(frozen=True, eq=False)
class Gaps:
    """The times between neighbours along an order: one step dt (), (T − 1,) of all trajectories, or (n, T − 1) of each.

    `steps`: how many gaps each trajectory has where they are its own; beyond them `values` mean nothing.
    """

    values: Array
    steps: Lengths | None = None

    @classmethod
    def of(cls, given: float | Array | Gaps, lengths: Lengths | None = None) -> Gaps:
        """From one step dt, gaps (T − 1,) of all trajectories, or (n, T − 1); `lengths` of the trajectories, where they differ."""
        if isinstance(given, Gaps):
            return given
        found = np.asarray(given, dtype=float)
        if found.ndim < 2:
            return cls(found)
        return cls(found, Lengths.of(found, None) if lengths is None else lengths.steps)

    @property
    def equal(self) -> bool:
        """All are dt by construction, not by their values."""
        return self.values.ndim == 0

    @property
    def shared(self) -> bool:
        """Every trajectory has the same."""
        return self.steps is None

    @property
    def factor(self) -> float | Array:
        """What multiplies steps (n, T − 1, d): a number, (T − 1, 1) or (n, T − 1, 1)."""
        return float(self.values) if self.equal else self.values[..., None]

    def along(self, T: int) -> Array:
        """The gaps of an order of T observations, (T − 1,), or (n, T − 1) where trajectories have their own."""
        return np.full(T - 1, float(self.values)) if self.equal else self.values

    def take(self, rows: Indices | slice) -> Gaps:
        """Those of some trajectories."""
        return self if self.steps is None else Gaps(self.values[rows], self.steps.take(rows))

    def reversed(self) -> Gaps:
        """Those of the reversed order."""
        if self.steps is not None:
            return Gaps(self.steps.reversed(self.values), self.steps)
        return self if self.equal else Gaps(self.values[::-1].copy())

    def rows(self, n: int, T: int) -> Array:
        """A row for each of n trajectories, (n, T − 1)."""
        return np.broadcast_to(self.along(T), (n, T - 1))

    def times(self, T: int) -> Array:
        """Times from 0, (T,), or (n, T) where trajectories have their own gaps."""
        if self.equal:
            return self.values * np.arange(T, dtype=float)
        zero = np.zeros((*self.values.shape[:-1], 1))
        return np.concatenate([zero, np.cumsum(self.values, axis=-1)], axis=-1)

    def uneven(self, dt: float) -> bool:
        """Some differ from dt by more than rounding."""
        return not self.equal and not np.allclose(self.values, dt)


@dataclass(frozen=True, eq=False)
class Clock:
    """What is known of the times of a panel.

    `known` are the gaps between observations in their known order where all times are known, dt beyond a trajectory's end, and
    `origins` the first of these times; `stamps` (T,) are exact times of the slices of a shared order, NaN where unknown. `schedule`
    (T,) has the times of positions, whichever observation stands there. None: not known.
    """

    known: Gaps | None = None
    stamps: Array | None = None
    origins: Array | None = None
    schedule: Array | None = None

    @classmethod
    def at(cls, times: Array, lengths: Lengths) -> tuple[Clock, float]:
        """Of times that are all known, (T,) or (n, T) with NaN beyond a trajectory's end; and the mean gap."""
        gaps = np.diff(np.sort(times, axis=-1), axis=-1)
        dt = float(np.nanmean(gaps))
        known = Gaps.of(np.nan_to_num(gaps, nan=dt), lengths)
        if not known.uneven(dt):
            known = Gaps.of(dt)
        return cls(known, origins=np.nanmin(times, axis=-1, keepdims=True)), dt

    @classmethod
    def by_schedule(cls, schedule: Array) -> tuple[Clock, float]:
        """Of positions with times of their own; and the mean gap."""
        times = np.array(schedule, dtype=np.float64)
        return cls(origins=times[:1], schedule=times), float(np.diff(times).mean())

    @property
    def gaps_known(self) -> bool:
        """All times are known, and so is every gap."""
        return self.known is not None

    @property
    def scheduled(self) -> bool:
        """Positions have times of their own."""
        return self.schedule is not None

    @property
    def silent(self) -> bool:
        """Neither gaps nor a schedule are known."""
        return self.known is None and self.schedule is None

    @property
    def scheduled_gaps(self) -> Array:
        """The gaps (T − 1,) between the positions of a schedule."""
        assert self.schedule is not None  # asked only where there is one
        return np.diff(self.schedule)

    def gaps(self, dt: float) -> Gaps:
        """Those that are known; else all are dt."""
        return Gaps.of(dt) if self.known is None else self.known

    def take(self, rows: Indices) -> Clock:
        """Of some trajectories."""
        if self.known is None or self.known.shared:
            return self
        origins = None if self.origins is None else self.origins[rows]
        return replace(self, known=self.known.take(rows), origins=origins)

    def reversed(self) -> Clock:
        """With the known gaps run backwards."""
        return self if self.known is None else replace(self, known=self.known.reversed())

    def for_others(self) -> Clock:
        """What holds of other trajectories, too: a schedule."""
        return Clock(schedule=self.schedule)

    def stamped(self, order: Indices) -> Array:
        """The exact times along an order, NaN where unknown; they are of slices, and tell nothing of orders of their own."""
        along = Order.of(order)
        if self.stamps is None or not along.shared:
            return np.full(along.size, np.nan)
        return self.stamps[along.index]

    def times(self, order: Indices, gaps: Gaps) -> Array:
        """The times along an order: a regular grid from 0, or those that gaps and known times give."""
        times = gaps.times(order.shape[-1])
        if self.origins is not None:
            return times + self.origins
        if gaps.equal:
            return times
        stamps = self.stamped(order)
        known = np.flatnonzero(~np.isnan(stamps))
        return times + stamps[known[0]] - times[known[0]] if len(known) else times


def same_for_all(times: Array) -> bool:
    """Times are (T,), of all trajectories, and not (n, T), of each."""
    return times.ndim == 1


def times_of(times: Array, j: int) -> Array:
    """The times (T,) of one trajectory."""
    return times if same_for_all(times) else np.asarray(times[j])


UNKNOWN = Clock()
"""Nothing is known of time but the mean step."""
