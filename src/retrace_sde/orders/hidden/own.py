"""Each trajectory's own order under a state-space law: the best of each, and draws from their posterior.

The likelihood of an order is that of `gaussian`, states summed out; entries that are missing are summed out too.
The compiled work is in `single`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from retrace_sde.data.blocks import Array, Data, Mask, Order, State
from retrace_sde.estimate.kalman.smoother import StateSpace
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.hidden.gaussian import Process, process
from retrace_sde.orders.hidden.single import EXACT, descend, exact, sample, summed_cost
from retrace_sde.orders.own import BLOCK
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.rules import Rules, order_cost, rules_of


@dataclass(frozen=True, eq=False)
class HiddenOrders:
    """What each trajectory's own order costs under a state-space law.

    Values are NaN where missing; `centre` (d,) is where a search puts them first.
    """

    data: Data
    model: StateSpace
    centre: Array
    prior: Prior | None = None

    @cached_property
    def _laws(self) -> dict[int, Process]:
        """Of the observations, for each length there is."""
        return {t: process(self.model, t) for t in np.unique(self.data.observed).tolist()}

    def _trajectory(self, j: int) -> tuple[Process, Array, Mask, Rules | None]:
        """Its law, its observations with missing entries at the variable's mean, what was seen, and the rules."""
        T = int(self.data.observed[j])
        y = self.data.values[j, :T]
        seen = ~np.isnan(y)
        rules = None if self.prior is None else rules_of(self.prior.arrays(slice(j, j + 1)), 0, T)
        return self._laws[T], np.where(seen, y, self.centre), seen, rules

    def improve(
        self, orders: Order, states: State, *, cold: bool = False, kicks: int = 0
    ) -> tuple[Order, int]:
        """Each order, improved from both ways round, and how many changed; `kicks` changes nothing here."""
        found = orders.copy()

        def work(rows: slice) -> int:
            changed = 0
            for j in range(*rows.indices(len(found))):
                law, y, seen, rules = self._trajectory(j)
                here = found[j, : len(y)].copy()
                best, least = here, np.inf
                for begin in (here.copy(), here[::-1].copy()):
                    if len(y) > EXACT and not np.isfinite(order_cost(rules, begin)):
                        continue
                    value = _descended(law, y, seen, rules, begin, states[j : j + 1])
                    if value < least - 1e-9:
                        best, least = begin, value
                    if len(y) <= EXACT:  # the other way round is among all of them
                        break
                changed += int(not np.array_equal(best, here))
                found[j, : len(y)] = best
            return changed

        return found, sum(self.data.map_rows(work, size=BLOCK))

    def draw(self, chains: Chains, stretch: Stretch) -> Draws:
        """Advance every chain, in place."""
        (C, n, T), (samples, burn, keep, positions) = chains.orders.shape, stretch
        thin, stride = max(T // 2, 5), max(samples // max(keep, 1), 1)
        keep = min(keep, samples)
        every = np.arange(T)
        kept = np.tile(every.astype(np.int16), (C, n, keep, 1))
        where = np.zeros((n if positions else 0, T, T), dtype=np.int32)

        def work(rows: slice) -> None:
            for j in range(*rows.indices(n)):
                law, y, seen, rules = self._trajectory(j)
                t = len(y)
                records = np.empty((samples, t), dtype=np.int16)
                for c in range(C):
                    path = np.ascontiguousarray(chains.orders[c, j, :t])
                    state = chains.states[c, j : j + 1]
                    sample(law, y.copy(), seen, rules, path, state, burn, thin, records)
                    chains.orders[c, j, :t] = path
                    kept[c, j, :, :t] = records[stride - 1 :: stride][:keep]
                    if positions:
                        np.add.at(where[j], (records, every[:t]), 1)

        list(self.data.map_rows(work, size=BLOCK))
        return Draws(kept, where)


STARTS = 4
"""Descents per trajectory and way round where entries are missing."""


def _descended(
    law: Process, y: Array, seen: Mask, rules: Rules | None, o: Order, state: State
) -> float:
    """The best order found, in place, and its cost, missing entries summed out.

    Entries filled in for an order make it hard to leave: the search starts again, a few times, from orders and
    entries drawn together.
    """
    blank = np.where(seen, y, 0.0)
    if len(y) <= EXACT:
        return float(exact(law, blank, seen, rules, o))
    if seen.all():
        return float(descend(law, y, rules, o))
    T, d = y.shape
    y = y.copy()
    flat = law.precision.transpose(0, 2, 1, 3).reshape(T * d, T * d)
    nothing = np.empty((0, T), dtype=np.int16)
    best, least = o.copy(), np.inf
    for k in range(STARTS):
        if k:
            sample(law, y, seen, rules, o, state, 20 * T, 1, nothing)
        for _ in range(5):
            before = o.copy()
            _fill(flat, law.shift, y, seen, o)
            descend(law, y, rules, o)
            if np.array_equal(o, before):
                break
        value = summed_cost(law, blank, seen, o) + order_cost(rules, o)
        if value < least - 1e-9:
            best, least = o.copy(), value
    o[:] = best
    return float(least)


def _fill(flat: Array, h: Array, y: Array, seen: Mask, o: Order) -> None:
    """Put missing entries at their joint mean given the order and what was seen."""
    gone = ~seen[o].ravel()
    along = y[o].ravel()
    factor = cho_factor(flat[np.ix_(gone, gone)], lower=True)
    pull = h.ravel()[gone] - flat[np.ix_(gone, ~gone)] @ along[~gone]
    along[gone] = cho_solve(factor, pull)
    y[o] = along.reshape(y.shape)
