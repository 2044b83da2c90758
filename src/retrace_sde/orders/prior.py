"""What is known of time as a prior over orders, which every search and every sampler satisfies.

Each piece of `Knowledge` is information about the permutation. Hard knowledge forbids orders, soft knowledge
(timestamps with an error) makes some more likely than others; all of it compiles to one `Prior`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.moves.rules import (
    Rules,
    block_costs,
    close,
    dead_end,
    obedient_block,
    rules_of,
)
from retrace_sde.panel.blocks import evenly, unmasked
from retrace_sde.panel.clock import UNKNOWN, Clock
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order
from retrace_sde.panel.schedule import as_numbers, as_times, check_spans
from retrace_sde.process.stamps import grid_costs

NO_RULES = Rules(np.empty((0, 0, 0)), np.empty((0, 0, 0), dtype=bool))


@dataclass(frozen=True, eq=False)
class Prior:
    """−log prior of an order: `Σ_i unary[o_i, i]`, and ∞ where an observation precedes one of its own past.

    `unary[…, a, i]` is the cost of observation a at position i (∞: impossible); `before[…, a, b]` says that a
    must precede b, transitively closed. Each is (T, T) for a shared order, (n, T, T) for one per
    trajectory, or None.
    """

    unary: Array | None
    before: Mask | None

    def some(self, n: int, size: int) -> Prior:
        """That of `size` of n trajectories, evenly spaced; a shared order's is the same for any."""
        if size >= n:
            return self
        rows = evenly(n, size)
        U, B = self.unary, self.before
        return Prior(
            U if U is None or U.ndim == 2 else U[rows], B if B is None or B.ndim == 2 else B[rows]
        )

    def relabelled(self, order: Indices, rows: Indices | slice = slice(None)) -> Prior:
        """That of observations that are renamed, order[k] becomes k: (T,) of a shared order, (n, T) of some trajectories."""

        def moved(values: Any) -> Any:
            if values is None:
                return None
            values = values if Order.of(order).shared else values[rows]
            return np.take_along_axis(values, order[..., None], axis=-2)

        before = moved(self.before)
        if before is not None:
            before = np.take_along_axis(before, order[..., None, :], axis=-1)
        return Prior(moved(self.unary), before)

    def symmetric(self, lengths: Indices) -> Mask:
        """For each trajectory: any order that breaks no rule may also be run backwards."""
        U, B = self.arrays(slice(None))
        same = np.ones(len(lengths), dtype=bool)
        for j, t in enumerate(lengths.tolist()):
            if len(B) and B[j, :t, :t].any():
                same[j] = False
            elif len(U):
                open_to = np.isfinite(U[j, :t, :t])
                same[j] = np.array_equal(open_to, open_to[:, ::-1])
        return same

    def arrays(self, rows: slice) -> Rules:
        """Costs and rules of some trajectories (of the one shared order), stacked; empty for none."""

        def stack(values: Any, nothing: Any) -> Any:
            if values is None:
                return nothing
            return values[None] if values.ndim == 2 else values[rows]

        return Rules(stack(self.unary, NO_RULES.costs), stack(self.before, NO_RULES.before))

    def single(self) -> Rules:
        """Costs and rules of the one shared order; empty for none."""
        U, B = self.arrays(slice(None))
        return Rules(U[0] if len(U) else U.reshape(0, 0), B[0] if len(B) else B.reshape(0, 0))

    def cost(self, order: Indices, lengths: Indices | None = None) -> Array:
        """−log prior of an order, shape (1,), or of each trajectory's, shape (n,)."""
        orders, lengths = self._rows(order, lengths)
        return block_costs(self.arrays(slice(None)), lengths, orders)

    def one_way(self, orders: Indices, back: Indices, lengths: Indices | None = None) -> bool:
        """Of most orders the reverse is ruled out, or all but."""
        against = self.cost(back, lengths) - self.cost(orders, lengths)
        return bool(np.mean(against > DECISIVE) >= 0.5)

    def repair(self, order: Indices, lengths: Indices | None = None) -> Indices:
        """The order, or each trajectory's, changed where it breaks a rule, and there as little as it must."""
        orders, lengths = self._rows(order, lengths)
        obedient_block(self.arrays(slice(None)), lengths, orders)
        return orders.reshape(order.shape)

    def _rows(self, order: Indices, lengths: Indices | None) -> tuple[Indices, Indices]:
        """A copy of an order as a block of one, or of several as they are, and their lengths."""
        orders = np.atleast_2d(order).astype(np.intp)
        n, T = orders.shape
        return orders, Lengths(n, T, lengths).each


DECISIVE = 10.0
"""Nats by which knowledge must favour an order over its reverse to leave no question of direction: odds of 2e4."""


def compiled(
    knowledge: Knowledge,
    n: int,
    T: int,
    *,
    shared: bool,
    dt: float = 1.0,
    lengths: Indices | None = None,
    labels: Sequence[str | int] | None = None,
) -> Prior | None:
    """The prior over orders of n trajectories of T observations; None where nothing is known.

    With own orders on a schedule, each trajectory has an observation for every scheduled time, unseen beyond its own.
    `labels` name the slices in messages, where numbers would mean nothing to the user.

    Raises ValueError, in words, where the knowledge does not fit the data or contradicts itself.
    """
    return _Compiler(knowledge, 1 if shared else n, T, shared, lengths, labels).prior(dt)


def known_times(
    knowledge: Knowledge, n: int, T: int, *, shared: bool, lengths: Indices | None = None
) -> Array | None:
    """Exact times (T,) or (n, T) of all observations, or None where some are unknown, noisy or equal."""
    if not _exact(knowledge) or knowledge.schedule is not None:
        return None
    panel = Lengths(n, T, lengths)
    times = given_times(knowledge, panel, shared=shared)
    gaps = np.diff(np.sort(times, axis=1), axis=1)
    known = not np.isnan(times if shared else times[panel.mask]).any() and not np.any(gaps == 0)
    return (times[0] if shared else times) if known else None


def given_times(knowledge: Knowledge, lengths: Lengths, *, shared: bool) -> Array:
    """The timestamps as numbers (1, T) of slices or (n, T), NaN where unknown and beyond a trajectory's end."""
    m, T = 1 if shared else lengths.n, lengths.T
    compiler = _Compiler(replace(knowledge, schedule=None), m, T, shared, lengths.counts)
    return compiler.array(knowledge.timestamps, "timestamps")


def known_clock(
    knowledge: Knowledge | None, lengths: Lengths, dt: float, *, shared: bool
) -> tuple[Clock, float]:
    """What is known of a panel's times, and the mean step: dt where not all of them are known."""
    if knowledge is None:
        return UNKNOWN, dt
    if knowledge.schedule is not None:
        clock, dt = Clock.by_schedule(np.asarray(knowledge.schedule))
    else:
        times = known_times(knowledge, lengths.n, lengths.T, shared=shared, lengths=lengths.counts)
        clock, dt = (UNKNOWN, dt) if times is None else Clock.at(times, lengths)
    if shared and _exact(knowledge):
        clock = replace(clock, stamps=np.asarray(knowledge.timestamps, dtype=float))
    return clock, dt


def _exact(knowledge: Knowledge) -> bool:
    """There are timestamps, and all of them are right."""
    soft = knowledge.timestamp_error is not None or knowledge.wrong is not None
    return knowledge.timestamps is not None and not soft


class _Compiler:
    """Knowledge about m orders of T observations, checked and put together.

    `seen` (m,): how many observations there are; of own orders on a schedule, the others up to T were not made.
    """

    def __init__(
        self,
        known: Knowledge,
        m: int,
        T: int,
        shared: bool,
        lengths: Indices | None,
        labels: Sequence[str | int] | None = None,
    ) -> None:
        self.labels = range(T) if labels is None else list(labels)
        self.seen = Lengths(m, T, None if shared else lengths).each
        self.scheduled = known.schedule is not None and not shared
        self.width = T  # of what is given
        T = len(as_times(known.schedule)) if self.scheduled else T
        self.known, self.m, self.T, self.shared = known, m, T, shared
        self.lengths = np.full(m, T) if self.scheduled else self.seen
        self.real = Lengths(m, T, self.seen).mask
        self.thing = "slice" if shared else "observation"

    def prior(self, dt: float) -> Prior | None:
        if self.known.timestamp_error is not None and self.known.timestamps is None:
            raise ValueError("timestamp_error is given, but no timestamps.")
        before = self._before()
        unary = self._windows()
        soft = self._soft(dt)
        if before is None and unary is None and soft is None:
            return None
        if before is not None:
            direct = before.copy()
            close(before)
            self._check_cycles(direct, before)
        if unary is not None or before is not None:
            self._check_possible(unary, before)
        if soft is not None:
            unary = soft if unary is None else unary + soft
        if self.shared:
            unary, before = (None if each is None else each[0] for each in (unary, before))
        return Prior(unary, before)

    # -- reading ---------------------------------------------------------------------------------------

    def array(self, values: Any, name: str) -> Array:
        """Numbers (m, T), NaN where unknown."""
        try:
            found = as_numbers(unmasked(values))
        except (TypeError, ValueError):
            hint = (
                "convert dates to numbers in the units of dt"
                if name == "timestamps"
                else "number them in the order of time"
            )
            raise ValueError(f"{name} must be numbers, NaN where unknown: {hint}.") from None
        wanted = (self.width,) if self.shared else (self.m, self.width)
        if found.shape != wanted:
            each = "one for each slice" if self.shared else "one for each trajectory's observation"
            raise ValueError(
                f"{name} must have shape {wanted}, {each} as it stands in X; got {found.shape}."
            )
        unseen = (0, 0), (0, self.T - self.width)
        found = np.pad(found.reshape(self.m, self.width), unseen, constant_values=np.nan)
        found = np.where(self.real, found, np.nan)
        if np.isinf(found).any():
            raise ValueError(f"{name} must be finite, or NaN where unknown.")
        if name == "timestamps":
            check_spans(found, name)
        return found

    def _index(self, value: Any, name: str, *, j: int = 0, what: str | None = None) -> int:
        """A slice, an observation or a position of trajectory j."""
        what = what or self.thing
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not 0 <= value < self.lengths[j]:
            of = "" if self.shared else f" of trajectory {j}"
            raise ValueError(
                f"{name} names {what} {value!r}{of}; {what}s run from 0 to {self.lengths[j] - 1}."
            )
        return int(value)

    def _trajectory(self, value: Any, name: str) -> int:
        if not isinstance(value, (int, np.integer)) or not 0 <= value < self.m:
            raise ValueError(
                f"{name} names trajectory {value!r}; trajectories run from 0 to {self.m - 1}."
            )
        return int(value)

    def _positions(self) -> list[tuple[int, int, int]]:
        """(trajectory, observation, position) of all that is known."""
        given = self.known.positions
        if given is None:
            return []
        if not isinstance(given, Mapping):
            table = self.array(given, "positions")
            known = np.argwhere(~np.isnan(table) & (table != -1))
            if np.any(table[tuple(known.T)] % 1):
                raise ValueError("positions must be whole numbers, −1 where unknown.")
            pairs = [((j, a), int(table[j, a])) for j, a in known.tolist()]
        elif self.shared:
            pairs = [((0, a), i) for a, i in given.items()]
        else:
            pairs = list(given.items())
        found = []
        for key, i in pairs:
            if not isinstance(key, tuple) or len(key) != 2:
                raise ValueError(
                    "positions of independent orders are {(trajectory, observation): position}; "
                    f"got the key {key!r}."
                )
            j = self._trajectory(key[0], "positions")
            a = self._index(key[1], "positions", j=j)
            found.append((j, a, self._index(i, "positions", j=j, what="position")))
        return found

    def _ends(self, name: str) -> list[tuple[int, int]]:
        """(trajectory, observation) that comes first, or last."""
        given = getattr(self.known, name)
        if given is None:
            return []
        if isinstance(given, Mapping):
            if self.shared:
                raise ValueError(f"{name} of a shared order is one slice, not a mapping.")
            pairs = [(self._trajectory(j, name), a) for j, a in given.items()]
        elif np.ndim(given) == 0:
            pairs = [(j, given) for j in range(self.m)]
        else:
            every = np.asarray(given)
            if (
                self.shared
                or every.shape != (self.m,)
                or not np.issubdtype(every.dtype, np.integer)
            ):
                wanted = "one slice" if self.shared else f"{self.m} whole numbers, −1 where unknown"
                raise ValueError(f"{name} must be {wanted}; got shape {every.shape}.")
            pairs = [(j, int(a)) for j, a in enumerate(every) if a != -1]
        return [(j, self._index(a, name, j=j)) for j, a in pairs]

    # -- putting together ------------------------------------------------------------------------------

    def _windows(self) -> Array | None:
        """0 where an observation may stand, ∞ elsewhere."""
        placed = [(j, a, i, "positions") for j, a, i in self._positions()]
        if not self.scheduled:  # where a visit that was missed may come first
            placed += [(j, a, 0, "first") for j, a in self._ends("first")]
            placed += [(j, a, int(self.lengths[j]) - 1, "last") for j, a in self._ends("last")]
        placed += [(j, a, i, "timestamps") for j, a, i in self._scheduled()]
        if not placed:
            return None
        unary = np.zeros((self.m, self.T, self.T))
        at: dict[tuple[int, int], tuple[int, str]] = {}
        for j, a, i, source in placed:
            other, named = at.setdefault((j, i), (a, source))
            if other != a:
                raise ValueError(
                    f"{self._where(j)}{self.thing}s {self.labels[other]!r} ({named}=) and {self.labels[a]!r} ({source}=) cannot both "
                    f"stand at position {i}."
                )
            if not np.isfinite(unary[j, a, i]):
                raise ValueError(
                    f"{self._where(j)}{self.thing} {self.labels[a]!r} cannot stand at position {i} ({source}=): it "
                    "already has another."
                )
            unary[j, a, :], unary[j, :, i] = np.inf, np.inf
            unary[j, a, i] = 0.0
        return unary

    def _scheduled(self) -> list[tuple[int, int, int]]:
        """(trajectory, observation, position) of exact times on a schedule: where the nearest scheduled time stands."""
        known = self.known
        if known.schedule is None or not _exact(known):
            return []
        stamps, times = self.array(known.timestamps, "timestamps"), np.asarray(known.schedule)
        near = np.abs(stamps[:, :, None] - times).argmin(axis=2)
        return [(j, a, int(near[j, a])) for j, a in np.argwhere(~np.isnan(stamps)).tolist()]

    def _before(self) -> Mask | None:
        known = self.known
        exact = _exact(known)
        names = ("first", "last") if self.scheduled else ()
        ends = [(name, *each) for name in names for each in self._ends(name)]
        if known.precedences is None and known.blocks is None and not exact and not ends:
            return None
        before = np.zeros((self.m, self.T, self.T), dtype=bool)
        pairs = () if known.precedences is None else known.precedences
        if not isinstance(pairs, Sequence):
            raise ValueError(f"precedences must be a list of pairs (a, b); got {pairs!r:.40}.")
        for pair in pairs:
            size = len(pair) if isinstance(pair, (tuple, list)) else 0
            if size != (2 if self.shared else 3):
                form = "(a, b)" if self.shared else "(trajectory, a, b)"
                raise ValueError(f"precedences of this permutation are {form}; got {pair!r}.")
            j = 0 if self.shared else self._trajectory(pair[0], "precedences")
            a, b = (self._index(each, "precedences", j=j) for each in pair[-2:])
            before[j, a, b] = True
        for name, j, a in ends:
            others = np.setdiff1d(np.arange(self.seen[j]), a)
            before[(j, a, others) if name == "first" else (j, others, a)] = True
        for name in ("blocks", "timestamps") if exact else ("blocks",):
            if getattr(known, name) is not None:
                label = self.array(getattr(known, name), name)
                before |= label[:, :, None] < label[:, None, :]
        return before

    def _soft(self, dt: float) -> Array | None:
        """`½ ((τ_a − t₀ − i Δt)/σ)²`: t₀ from the mean of the timestamps, its own error added to σ. Bounded where some may be wrong."""
        known = self.known
        if known.timestamps is None or known.timestamp_error is None:
            return None
        stamps = self.array(known.timestamps, "timestamps")
        sigma = np.asarray(known.timestamp_error, dtype=float)
        if sigma.ndim == 0:
            sigma = np.full(stamps.shape, float(sigma))
        elif sigma.shape != ((self.T,) if self.shared else (self.m, self.width)):
            raise ValueError(
                f"timestamp_error must be one number, or one for each timestamp; got shape {sigma.shape}."
            )
        elif self.scheduled:
            sigma = np.pad(sigma, ((0, 0), (0, self.T - self.width)), constant_values=1.0)
        sigma = sigma.reshape(stamps.shape)
        there = ~np.isnan(stamps)
        if not np.all((sigma > 0) & np.isfinite(sigma) | ~there):
            raise ValueError(
                "timestamp_error must be positive; leave it out where timestamps are exact."
            )
        if known.wrong is not None:
            return self._bounded(stamps, sigma, known.wrong, dt)
        count = there.sum(axis=1)
        m, t = np.maximum(count, 1), self.lengths
        origin = np.where(there, stamps, 0).sum(axis=1) / m - dt * (t - 1) / 2
        # The mean of some of the times on a grid tells its middle only so well.
        unsure = dt**2 * (t + 1) * (t - m) / (12 * m)
        unsure = unsure + np.where(there, sigma**2, 0).sum(axis=1) / m**2
        grid = origin[:, None] + dt * np.arange(self.T)[None]
        if known.schedule is not None:
            grid = np.broadcast_to(np.asarray(known.schedule, dtype=float), grid.shape)
            unsure = np.zeros_like(unsure)
        gap = np.where(there, stamps, 0)[:, :, None] - grid[:, None, :]
        variance = np.where(there, sigma, 1)[:, :, None] ** 2 + unsure[:, None, None]
        return np.where(there[:, :, None], 0.5 * gap**2 / variance, 0.0)

    def _bounded(self, stamps: Array, sigma: Array, wrong: float, dt: float) -> Array:
        """Costs of stamps that are right within their error or say nothing; of a grid the origin is summed over."""
        fixed = self.known.schedule is not None
        found = np.zeros((self.m, self.T, self.T))
        for j, t in enumerate(self.lengths.tolist()):
            grid = np.asarray(self.known.schedule, dtype=float) if fixed else dt * np.arange(t)
            cells = np.ascontiguousarray(stamps[j, :t]), np.ascontiguousarray(sigma[j, :t])
            found[j, :t, :t] = grid_costs(*cells, grid, wrong, fixed=fixed)
        return found

    # -- contradictions --------------------------------------------------------------------------------

    def _where(self, j: int) -> str:
        return "" if self.shared else f"trajectory {j}: "

    def _check_cycles(self, direct: Mask, closed: Mask) -> None:
        for j in np.flatnonzero(np.diagonal(closed, axis1=1, axis2=2).any(axis=1)).tolist():
            cycle = _shortest_cycle(direct[j], int(np.flatnonzero(np.diagonal(closed[j]))[0]))
            every = ("precedences", "blocks", "timestamps", *self.scheduled * ("first", "last"))
            named = [name for name in every if getattr(self.known, name) is not None]
            raise ValueError(
                f"{self._where(j)}no order satisfies {' and '.join(f'{name}=' for name in named)}: {self.thing} "
                f"{' before '.join(repr(self.labels[a]) for a in cycle)}. Drop one of these."
            )

    def _check_possible(self, unary: Array | None, before: Mask | None) -> None:
        rules = Prior(unary, before).arrays(slice(None))
        for j, t in enumerate(self.lengths.tolist()):
            stuck = dead_end(rules_of(rules, j, t), t)
            if stuck >= 0:
                raise ValueError(
                    f"{self._where(j)}no order satisfies all of this knowledge: position {stuck} has no "
                    f"{self.thing} left that may stand there. Known positions (first and last "
                    "included) contradict what must come before what."
                )


def _shortest_cycle(before: Mask, start: int) -> list[int]:
    """A shortest way along the given pairs from an observation back to itself."""
    parents: dict[int, int] = {}
    reached = [start]
    for a in reached:
        for b in np.flatnonzero(before[a]).tolist():
            if b == start:
                cycle = [start]
                while a != start:
                    cycle.append(a)
                    a = parents[a]
                return [start, *cycle[:0:-1], start]
            if b not in parents:
                parents[b] = a
                reached.append(b)
    return [start]
