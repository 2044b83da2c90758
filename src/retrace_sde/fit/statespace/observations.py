"""Observations in time order, grouped by what the filter's covariances depend on: which entries were seen across which steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.statespace.kernels import LANES
from retrace_sde.io.arrays import Array, Indices, Mask

STACK_ELEMENTS = 1 << 21
"""Numbers per array of covariances (patterns) or of means (trajectories) worked on at a time: 16 MiB."""

MAX_SHARED = 64
"""Up to this many trajectories × variables per pattern, each trajectory is smoothed by itself."""

MIN_PATTERNS = 2 * LANES
"""Fewer patterns than this are left to the recursion, which needs no compiler."""

MAX_UNCOMPILED = 10_000
"""Numbers n T d² of covariances up to which the recursion takes all patterns: a pass takes some milliseconds, compiling 9 s."""

MAX_CLASSES = 128
"""Classes of steps, a transition each: where there would be more, gaps in one of so many geometric bins count as one. Over gaps
from 0.01 to 3, say, these differ by less than 5 per cent."""


@dataclass(frozen=True, eq=False)
class StepClasses:
    """The distinct gaps (K,), and which of them each step crosses: (1, T − 1) for all trajectories, or (n, T − 1)."""

    gaps: Array
    index: Indices

    @classmethod
    def equal(cls, gap: float, T: int) -> StepClasses:
        """One class: all gaps are the same."""
        return cls(np.array([gap]), np.zeros((1, T - 1), dtype=np.intp))

    @classmethod
    def of(cls, gaps: Array) -> StepClasses:
        """From gaps (T − 1,) or (n, T − 1); of too many, those in one bin are their mean."""
        found = np.atleast_2d(np.asarray(gaps, dtype=float))
        distinct, index = np.unique(found, return_inverse=True)
        if len(distinct) > MAX_CLASSES:
            logs = np.log(found.ravel())
            edges = np.linspace(logs.min(), logs.max(), MAX_CLASSES + 1)
            place = np.clip(np.searchsorted(edges, logs, side="right") - 1, 0, MAX_CLASSES - 1)
            used, index = np.unique(place, return_inverse=True)
            sums = np.bincount(index, weights=found.ravel())
            distinct = sums / np.bincount(index, minlength=len(used))
        return cls(distinct, index.reshape(found.shape).astype(np.intp))

    @classmethod
    def by_position(cls, gaps: Array) -> StepClasses:
        """A class for each position, whether or not gaps are equal: they may change one by one."""
        return cls(np.asarray(gaps, dtype=float), np.arange(len(gaps), dtype=np.intp)[None])

    def some(self, rows: Indices) -> StepClasses:
        """Those of some trajectories."""
        return self if len(self.index) == 1 else replace(self, index=self.index[rows])

    def repeated(self, times: int) -> StepClasses:
        """The trajectories so many times over."""
        if len(self.index) == 1:
            return self
        return replace(self, index=np.tile(self.index, (times, 1)))


@dataclass(frozen=True, eq=False)
class Stack:
    """G patterns of k trajectories: values (T, G, k, d) with 0 for missing entries, seen (T, G, d), the class of each step
    (T − 1, G), and v (T, G, k, m), None where it is 1 for all.
    """

    values: Array
    seen: Mask
    classes: Indices
    inputs: Array | None
    patterns: Indices
    rows: Indices

    @property
    def steps(self) -> Array:
        """1 for each transition up to a pattern's last observation, (T − 1, G); later ones hold no data."""
        some: Mask = np.asarray(self.seen.any(axis=2))
        after: Mask = np.logical_or.accumulate(some[::-1], axis=0)[::-1]
        return after[1:].astype(float)

    def some_patterns(self, which: slice | Indices) -> Stack:
        """Some of the patterns."""
        inputs = None if self.inputs is None else self.inputs[:, which]
        cut = self.values[:, which], self.seen[:, which], self.classes[:, which], inputs
        return Stack(*cut, self.patterns[which], self.rows[which])

    @classmethod
    def joined(cls, stacks: list[Stack]) -> Stack:
        """The patterns of all, which have equally many trajectories each."""
        parts = zip((1, 1, 1, 1, 0, 0), *(vars(stack).values() for stack in stacks), strict=True)
        every: list[Any] = [None if e[0] is None else np.concatenate(e, k) for k, *e in parts]
        return cls(*every)

    def apart(self) -> Stack:
        """Each trajectory as a pattern of its own."""
        T, G, k, d = self.values.shape
        inputs = self.inputs
        if inputs is not None:
            inputs = inputs.reshape(T, G * k, 1, inputs.shape[3])
        return Stack(
            self.values.reshape(T, G * k, 1, d),
            np.repeat(self.seen, k, axis=1),
            np.repeat(self.classes, k, axis=1),
            inputs,
            np.repeat(self.patterns, k),
            self.rows.reshape(-1, 1),
        )

    def portions(self, each: int) -> Iterator[Stack]:
        """Some of the patterns at a time, where each takes so many numbers, so that memory stays bounded."""
        size = max(2 * LANES, STACK_ELEMENTS // each)
        for begin in range(0, len(self.patterns), size):
            yield self.some_patterns(slice(begin, begin + size))

    def parts(self) -> Iterator[Stack]:
        """The same patterns with some of their trajectories at a time, so that memory stays bounded."""
        T, G, k, d = self.values.shape
        size = max(1, STACK_ELEMENTS // (T * G * d))
        for begin in range(0, k, size):
            some = slice(begin, begin + size)
            inputs = None if self.inputs is None else self.inputs[:, :, some]
            yield replace(
                self, values=self.values[:, :, some], inputs=inputs, rows=self.rows[:, some]
            )


@dataclass(frozen=True, eq=False)
class Observations:
    """Trajectories in time order: values (n, T, d), NaN where missing, across classes of steps.

    `inputs` (n, T, m) is v, held over each step; None where v is 1 or nothing.
    """

    values: Array
    classes: StepClasses
    inputs: Array | None = None
    n_jobs: int | None = None

    @classmethod
    def regular(cls, values: Array, dt: float, n_jobs: int | None = None) -> Observations:
        """On a regular grid."""
        return cls(values, StepClasses.equal(dt, values.shape[1]), n_jobs=n_jobs)

    def some(self, rows: Indices) -> Observations:
        """Some of the trajectories."""
        inputs = None if self.inputs is None else self.inputs[rows]
        return replace(
            self, values=self.values[rows], classes=self.classes.some(rows), inputs=inputs
        )

    @property
    def pattern(self) -> Indices:
        """The pattern of each trajectory, (n,)."""
        return self._grouped[0]

    @property
    def stacks(self) -> list[Stack]:
        """Patterns with equally many trajectories each."""
        return self._grouped[1]

    @cached_property
    def apart(self) -> list[Stack]:
        """The same, but with patterns that few trajectories share in one stack, each trajectory by itself.

        With some values missing there are several stacks of a few patterns, and a recursion for each takes twice to three times as long as the
        compiled smoother for all (240 to 1000 trajectories of 10 times and 4 variables, .03 missing).
        """
        d = self.values.shape[2]
        few = [stack for stack in self.stacks if stack.rows.shape[1] <= max(1, MAX_SHARED // d)]
        if sum(stack.rows.size for stack in few) < MIN_PATTERNS:
            return self.stacks
        joined = Stack.joined([stack.apart() for stack in few])
        return [joined, *(stack for stack in self.stacks if stack not in few)]

    @cached_property
    def _grouped(self) -> tuple[Indices, list[Stack]]:
        values, index, v = self.values, self.classes.index, self.inputs
        n = len(values)
        seen = ~np.isnan(values)
        if len(index) == 1 and seen.all():
            whole = Stack(
                np.ascontiguousarray(values.transpose(1, 0, 2))[:, None],
                seen[0][:, None],
                index.T,
                None if v is None else np.ascontiguousarray(v.transpose(1, 0, 2))[:, None],
                np.zeros(1, np.intp),
                np.arange(n)[None],
            )
            return np.zeros(n, np.intp), [whole]
        kinds = np.packbits(seen.reshape(n, -1), axis=1)
        if len(index) > 1:
            kinds = np.concatenate([kinds, index.astype(np.int16).view(np.uint8)], axis=1)
        _, first, pattern, counts = np.unique(
            kinds, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        pattern = pattern.reshape(n)
        by_pattern = np.split(np.argsort(pattern, kind="stable"), np.cumsum(counts)[:-1])
        stacks = []
        for k in np.unique(counts):
            same = np.flatnonzero(counts == k)
            rows = np.array([by_pattern[g] for g in same])
            found = np.ascontiguousarray(np.nan_to_num(values[rows]).transpose(2, 0, 1, 3))
            mask = np.ascontiguousarray(seen[first[same]].transpose(1, 0, 2))
            at = np.broadcast_to(index, (n, index.shape[1]))[first[same]]
            inputs = None if v is None else np.ascontiguousarray(v[rows].transpose(2, 0, 1, 3))
            stacks.append(Stack(found, mask, np.ascontiguousarray(at.T), inputs, same, rows))
        return pattern, stacks


def as_observations(Y: ArrayLike) -> Array:
    """Y as float64 (n, T, d); refused where the shape is another, a value infinite or nothing was seen."""
    values = np.asarray(Y, dtype=float)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            f"observations must have shape (trajectory, time, variable); got {values.shape}."
        )
    if np.isinf(values).any():
        raise ValueError("observations contain infinite values; missing ones are written as NaN.")
    if np.isnan(values).all():
        raise ValueError("every observation is missing (NaN).")
    return values
