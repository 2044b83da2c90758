"""Each trajectory's own order under a state-space model: the best of each, and draws from their posterior.

The likelihood of an order is that of `gaussian`, states summed out; entries that are missing are summed out too.
The compiled work is in `single`, for observations that were seen whole, and in `filtered`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import Table
from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.hidden import filtered, single
from retrace_sde.orders.hidden.gaussian import Chain, Process, process
from retrace_sde.orders.moves.rules import NOTHING_KNOWN, Rules, order_cost, rules_of
from retrace_sde.orders.own import BLOCK
from retrace_sde.orders.prior import Prior
from retrace_sde.panel.blocks import Data, to_numpy

STARTS = 3
"""Descents per trajectory and direction where entries are missing and the search is to be thorough."""

NO_GAPS = np.empty((0, 0), dtype=np.int16)


@dataclass(frozen=True, eq=False)
class HiddenSteps:
    """The steps between positions: as a chain of Gaussians, and as a table of transitions with each step's entry.

    `weights` (K,): gaps are drawn with the orders, with this log-prior; else they belong to positions. `offset`: v = (1, u),
    else u.
    """

    chain: Chain
    table: Table
    index: Indices
    offset: bool = True
    weights: Array | None = None

    @property
    def drawn(self) -> bool:
        return self.weights is not None

    @cached_property
    def filters(self) -> bool:
        """The filter takes entries one by one, so their noises must be independent."""
        R = self.chain.noise
        return not np.any(R[~np.eye(len(R), dtype=bool)])


@dataclass(frozen=True, eq=False)
class HiddenOrders:
    """What each trajectory's own order costs under a state-space model.

    Values are NaN where missing; `centre` (d,) is where a search puts them first.
    """

    data: Data
    course: HiddenSteps
    centre: Array
    prior: Prior | None = None

    @cached_property
    def _laws(self) -> dict[int, Process]:
        """Of the observations, for each length there is."""
        lengths = np.unique(self.data.observed).tolist()
        return {t: process(self.course.chain.first(t)) for t in lengths}

    def _observed(self, j: int) -> filtered.Observed:
        """What was observed of a trajectory, 0 where nothing was, and what is constant over the gap that follows."""
        T = int(self.data.observed[j])
        y = self.data.values[j, :T]
        seen = ~np.isnan(y)
        parts = [np.ones((T, 1))] if self.course.offset else []
        if self.data.covariates is not None:
            parts.append(to_numpy(self.data.covariates[j, :T]))
        v = np.concatenate(parts, axis=1) if parts else np.empty((T, 0))
        return filtered.Observed(np.where(seen, y, 0.0), seen, v)

    def _whole(self, seen: filtered.Observed) -> tuple[Array, Mask]:
        """z = (y, u) with missing entries at the variable's mean, and what was seen of it."""
        u = seen.inputs[:, int(self.course.offset) :]
        z = np.concatenate([np.where(seen.seen, seen.values, self.centre), u], axis=1)
        return z, np.concatenate([seen.seen, np.ones(u.shape, dtype=bool)], axis=1)

    def _rules(self, j: int, T: int) -> Rules | None:
        return None if self.prior is None else rules_of(self.prior.arrays(slice(j, j + 1)), 0, T)

    def improve(
        self, orders: Indices, states: State, *, cold: bool = False, kicks: int = 0
    ) -> tuple[Indices, int]:
        """Each order, improved from both directions, and how many changed; `kicks`: more thoroughly."""
        found = orders.copy()
        starts = STARTS if cold or kicks else 1

        def work(rows: slice) -> int:
            changed = 0
            for j in range(*rows.indices(len(found))):
                T = int(self.data.observed[j])
                here = found[j, :T].copy()
                best = self._improved(j, here, states[j : j + 1], starts)
                changed += int(not np.array_equal(best, here))
                found[j, :T] = best
            return changed

        return found, sum(self.data.map_rows(work, size=BLOCK))

    def _improved(self, j: int, here: Indices, state: State, starts: int) -> Indices:
        seen, rules = self._observed(j), self._rules(j, len(here))
        z, there = self._whole(seen)
        best, least = here, np.inf
        if len(here) <= single.MAX_ENUMERATED:
            best = here.copy()
            blank = np.where(there, z, 0.0)
            single.exact(self._laws[len(here)], blank, there, rules, best)
            return best
        for begin in (here.copy(), here[::-1].copy()):
            if not np.isfinite(order_cost(rules, begin)):
                continue
            if there.all() or not self.course.filters:
                value = single.descend(self._laws[len(here)], z, rules, begin)
            else:
                known = rules or NOTHING_KNOWN
                value = self._filtered(seen, known, begin, state, starts)
            if value < least - 1e-9:
                best, least = begin, value
        return best

    def _filtered(
        self, seen: filtered.Observed, rules: Rules, o: Indices, state: State, starts: int
    ) -> float:
        """The best of some descents with missing entries summed out, in place, and its cost."""
        table, index = self.course.table, self.course.index[: len(o) - 1].copy()
        best, least, nothing = o.copy(), np.inf, np.empty((0, len(o)), dtype=np.int16)
        for k in range(starts):
            if k:
                kept = filtered.Kept(nothing, NO_GAPS, index.copy())
                filtered.sample(table, seen, np.empty(0), rules, o, state, 10 * len(o), 1, kept)
            value = -filtered.descend(table, seen, index, rules, o)
            if value < least - 1e-9:
                best, least = o.copy(), value
        o[:] = best
        return float(least)

    def draw(self, chains: Chains, stretch: Stretch) -> Draws:
        """Advance every chain, in place."""
        (C, n, T), (samples, burn, keep, positions, _) = chains.orders.shape, stretch
        thin, stride = max(T // 2, 5), max(samples // max(keep, 1), 1)
        keep = min(keep, samples)
        every = np.arange(T)
        kept = np.tile(every.astype(np.int16), (C, n, keep, 1))
        drawn = int(self.course.drawn)
        gaps = np.zeros((C, n, drawn * keep, T - 1), dtype=np.int16)
        where = np.zeros((n if positions else 0, T, T), dtype=np.int32)

        def work(rows: slice) -> None:
            for j in range(*rows.indices(n)):
                t = int(self.data.observed[j])
                records = np.empty((samples, t), dtype=np.int16)
                crossed = np.empty((drawn * samples, t - 1), dtype=np.int16)
                for c in range(C):
                    self._sample(chains, c, j, (burn, thin), records, crossed)
                    kept[c, j, :, :t] = records[stride - 1 :: stride][:keep]
                    gaps[c, j, :, : t - 1] = crossed[stride - 1 :: stride][:keep]
                    if positions:
                        np.add.at(where[j], (records, every[:t]), 1)

        list(self.data.map_rows(work, size=BLOCK))
        return Draws(kept, where, gaps=gaps)

    def _sample(
        self,
        chains: Chains,
        c: int,
        j: int,
        schedule: tuple[int, int],
        records: NDArray[np.int16],
        crossed: NDArray[np.int16],
    ) -> None:
        """Advance one chain of one trajectory, in place."""
        t = records.shape[1]
        seen, rules = self._observed(j), self._rules(j, t)
        path = np.ascontiguousarray(chains.orders[c, j, :t])
        state = chains.states[c, j : j + 1]
        if not self.course.drawn and (seen.seen.all() or not self.course.filters):
            z, there = self._whole(seen)
            law = self._laws[t]
            single.sample(law, z.copy(), there, rules, path, state, *schedule, records)
        else:
            weights = np.empty(0) if self.course.weights is None else self.course.weights
            steps = chains.gaps[c, j] if self.course.drawn else self.course.index
            kept = filtered.Kept(records, crossed, steps[: t - 1].copy())
            known = rules or NOTHING_KNOWN
            filtered.sample(self.course.table, seen, weights, known, path, state, *schedule, kept)
            if self.course.drawn:
                chains.gaps[c, j, : t - 1] = kept.steps
        chains.orders[c, j, :t] = path
