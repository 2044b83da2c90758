"""Each trajectory's own order under Euler's law: the best of each, and draws from their posterior.

The cost of an order is `−log p₀(x_{o_0}) + Σ_i ½ ‖x_{o_{i+1}} − x_{o_i} − Θ φ Δt‖²` in the metric of (H Δt)⁻¹. Blocks of
trajectories are whitened together; the compiled search (`search`) and sampler (`metropolis`) take them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, State, to_numpy
from retrace_sde.estimate.euler import Euler
from retrace_sde.estimate.frequencies import Frequencies
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.metropolis import Records, Schedule, sample_block
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import Steps, improve_block
from retrace_sde.process.sde import Gaussian

BLOCK = 128
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

KICKS = 10
"""Random exchanges after which the search of each trajectory is repaired; more change little."""

Count = Callable[[Array, Any, Frequencies], Any]


@dataclass(frozen=True, eq=False)
class Law:
    """Euler's step and the law of the first observation; without one every start is as good."""

    step: Euler
    start: Gaussian | None

    def costs(self, data: Data, rows: slice) -> Steps:
        """Whitened states, whitened predictions and start costs of a block, as the kernels want them."""
        x, u = data.block(rows)
        x, u = to_numpy(x), None if u is None else to_numpy(u)
        Wt = self.step.whitening.T
        start = np.zeros(x.shape[:2]) if self.start is None else -self.start.log_density(x)
        target, source = x @ Wt, self.step.predict(x, u) @ Wt
        return Steps(np.ascontiguousarray(target), np.ascontiguousarray(source), start)


class Judge(Protocol):
    """A law that pairs of observations and first ones are judged by."""

    def costs(self, data: Data, rows: slice) -> Steps: ...


@dataclass(frozen=True, eq=False)
class OwnOrders:
    """What each trajectory's own order costs under a law, with what is known of it."""

    data: Data
    law: Judge
    prior: Prior | None = None

    def improve(
        self, orders: Order, states: State, *, cold: bool = False, kicks: int = 0
    ) -> tuple[Order, int]:
        """Each order, improved, and how many changed. `cold`: from scratch; `kicks`: harder.

        With a prior, orders that break none of its rules come out, and (unless `cold`) must go in.
        """
        work = partial(
            _improved,
            law=self.law,
            prior=self.prior,
            how=(cold, cold or kicks > 0, kicks),
        )
        along = self._numbers, orders, states[:, None]
        orders, streams, changed = self.data.each_piece(work, *along, size=BLOCK)
        states[:] = streams[:, 0]
        return orders, int(changed.sum())

    def draw(self, chains: Chains, stretch: Stretch, count: Count | None = None) -> Draws:
        """Advance every chain, in place.

        `count` makes statistics of a block's frequencies of pairs and ends; they are summed, chain by chain.
        """
        n, T, _ = self.data.shape
        C, keep = len(chains.orders), stretch.keep
        where = np.zeros((n if stretch.positions else 0, T, T), dtype=np.int32)
        kept = np.zeros((C, n, keep, T), dtype=np.int16)
        work = partial(
            _drawn,
            law=self.law,
            prior=self.prior,
            stretch=stretch,
            proposals=chains.proposals,
            count=count,
        )
        along = self._numbers, chains.orders.transpose(1, 0, 2), chains.states.T
        parts = list(self.data.map_pieces(work, *along, size=BLOCK))
        for each in parts:
            chains.orders[:, each.rows], chains.states[:, each.rows] = each.orders, each.states
            kept[:, each.rows] = each.kept
            if stretch.positions:
                where[each.rows] = each.where
        counted = [_total([each.counted[c] for each in parts]) for c in range(C)] if count else []
        tally = np.sum([each.seen.tally for each in parts], axis=0)
        scales = np.sum([each.seen.scales for each in parts], axis=0)
        return Draws(kept, where, counted, tally, scales)

    @property
    def _numbers(self) -> Order:
        return np.arange(self.data.shape[0], dtype=np.intp)[:, None]


def _rules(prior: Prior | None, rows: Order) -> Any:
    """What is known of some trajectories that stand side by side."""
    return None if prior is None else prior.arrays(slice(int(rows[0]), int(rows[-1]) + 1))


def _improved(
    piece: Data,
    numbers: Order,
    orders: Order,
    states: State,
    *,
    law: Judge,
    prior: Prior | None,
    how: tuple[bool, bool, int],
) -> tuple[Order, State, Order]:
    """Orders of a piece, improved, the random states afterwards, and whether each changed."""
    found, states = orders.copy(), states[:, 0].copy()
    steps, rules = law.costs(piece, slice(None)), _rules(prior, numbers[:, 0])
    changed = improve_block(steps, rules, piece.observed, found, states, *how)
    each = np.zeros((len(found), 1), dtype=np.intp)
    each[0] = changed
    return found, states[:, None], each


class _Drawn(NamedTuple):
    """Where the chains of some trajectories stand, what they saw, and their statistics."""

    rows: Order
    orders: Order
    states: State
    kept: Any
    where: Any
    counted: list[Any]
    seen: Records


def _drawn(
    piece: Data,
    numbers: Order,
    orders: Order,
    states: State,
    *,
    law: Judge,
    prior: Prior | None,
    stretch: Stretch,
    proposals: Any,
    count: Count | None,
) -> _Drawn:
    """The chains of a piece, (trajectories, C, T), advanced."""
    samples, burn, keep, positions = stretch
    steps, rules = law.costs(piece, slice(None)), _rules(prior, numbers[:, 0])
    (x, u), (m, C, T) = piece.block(slice(None)), orders.shape
    schedule = Schedule(burn, samples, max(T // 2, 5))
    orders, states = orders.transpose(1, 0, 2).copy(), states.T.copy()
    kept = np.zeros((C, m, keep, T), dtype=np.int16)
    where = np.zeros((m if positions else 0, T, T), dtype=np.int32)
    counted, seen = [], Records.none(m, T=T)
    for c in range(C):
        fresh = Records.none(m, T=T)._replace(
            positions=where, kept=kept[c], tally=seen.tally, scales=seen.scales
        )
        sample_block(steps, rules, piece.observed, orders[c], states[c], schedule, proposals, fresh)
        if count is not None:
            shares = (fresh.pairs, fresh.first, fresh.last)
            frequencies = Frequencies(*(each / samples for each in shares))
            counted.append(count(to_numpy(x), u, frequencies))
    return _Drawn(numbers[:, 0], orders, states, kept, where, counted, seen)


def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
