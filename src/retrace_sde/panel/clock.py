"""The times along an order: how long each step is, and what is known of the times themselves.

`Gaps` are the times between neighbours along an order: all dt (`EqualGaps`), the same for every trajectory (`SharedGaps`), or each
trajectory's own (`OwnGaps`). A `Clock` is what is known of a panel's time before any order is: nothing, exact times of some or all
observations, or a schedule whose times belong to positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order


class Gaps(ABC):
    """The times between neighbours along an order.

    `equal`: all are dt by construction, not by their values. `shared`: every trajectory has the same.
    """

    equal: ClassVar[bool] = False
    shared: ClassVar[bool] = True

    @staticmethod
    def of(given: float | Array | Gaps, lengths: Lengths | None = None) -> Gaps:
        """From one step dt, gaps (T − 1,) of all trajectories, or (n, T − 1); `lengths` of the trajectories, where they differ."""
        if isinstance(given, Gaps):
            return given
        found = np.asarray(given, dtype=float)
        if found.ndim == 0:
            return EqualGaps(float(found))
        if found.ndim == 1:
            return SharedGaps(found)
        n, S = found.shape
        return OwnGaps(found, Lengths(n, S) if lengths is None else lengths.steps)

    @property
    @abstractmethod
    def factor(self) -> float | Array:
        """What multiplies steps (n, T − 1, d): a number, (T − 1, 1) or (n, T − 1, 1)."""

    @abstractmethod
    def along(self, T: int) -> Array:
        """The gaps of an order of T observations, (T − 1,), or (n, T − 1) where trajectories have their own."""

    def take(self, rows: Indices | slice) -> Gaps:
        """Those of some trajectories."""
        return self

    @abstractmethod
    def reversed(self) -> Gaps:
        """Those of the reversed order."""

    def rows(self, n: int, T: int) -> Array:
        """A row for each of n trajectories, (n, T − 1)."""
        return np.broadcast_to(self.along(T), (n, T - 1))

    def times(self, T: int) -> Array:
        """Times from 0, (T,), or (n, T) where trajectories have their own gaps."""
        gaps = self.along(T)
        zero = np.zeros((*gaps.shape[:-1], 1))
        return np.concatenate([zero, np.cumsum(gaps, axis=-1)], axis=-1)

    def uneven(self, T: int, dt: float) -> bool:
        """Some differ from dt by more than rounding."""
        return not np.allclose(self.along(T), dt)


@dataclass(frozen=True, eq=False)
class EqualGaps(Gaps):
    """Every step is dt long."""

    dt: float
    equal: ClassVar[bool] = True

    @property
    def factor(self) -> float:
        return self.dt

    def along(self, T: int) -> Array:
        return np.full(T - 1, self.dt)

    def reversed(self) -> EqualGaps:
        return self

    def times(self, T: int) -> Array:
        return self.dt * np.arange(T, dtype=float)

    def uneven(self, T: int, dt: float) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class SharedGaps(Gaps):
    """Gaps (T − 1,) that all trajectories have in common."""

    values: Array

    @property
    def factor(self) -> Array:
        return self.values[:, None]

    def along(self, T: int) -> Array:
        return self.values

    def reversed(self) -> SharedGaps:
        return SharedGaps(self.values[::-1].copy())


@dataclass(frozen=True, eq=False)
class OwnGaps(Gaps):
    """Gaps (n, T − 1) of each trajectory; `steps` says how many of them it has, beyond which they mean nothing."""

    values: Array
    steps: Lengths
    shared: ClassVar[bool] = False

    @property
    def factor(self) -> Array:
        return self.values[:, :, None]

    def along(self, T: int) -> Array:
        return self.values

    def take(self, rows: Indices | slice) -> OwnGaps:
        return OwnGaps(self.values[rows], self.steps.take(rows))

    def reversed(self) -> OwnGaps:
        return OwnGaps(self.steps.reversed(self.values), self.steps)


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
        if not known.uneven(times.shape[-1], dt):
            known = EqualGaps(dt)
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
        return EqualGaps(dt) if self.known is None else self.known

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
