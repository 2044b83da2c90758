"""Chains over each trajectory's own order, and what a stretch of them saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.moves.proposals import (
    SHARES,
    SHARPNESS,
    Proposals,
    Tally,
    adapted,
    length_table,
)
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.lengths import Lengths


def random_states(rng: np.random.Generator, *shape: int) -> State:
    """One random state for each chain of each trajectory, so that no draw depends on blocks or threads."""
    return rng.integers(0, 2**64, size=shape, dtype=np.uint64)


@dataclass(eq=False)
class Chains:
    """C chains over the orders of n trajectories, (C, n, T), with their random states and proposals.

    `shares` of the kinds of moves and `scales`, weights of segment lengths, are learned while burning in. `gaps`
    (C, n, T − 1): where gaps are drawn with the orders, which of a table each step crosses.
    """

    orders: Indices
    states: State
    shares: NDArray[np.int64] = field(default_factory=lambda: SHARES.astype(np.int64))
    scales: Array | None = None
    gaps: Indices = field(default_factory=lambda: np.zeros((0, 0, 0), dtype=np.intp))

    @classmethod
    def start(cls, orders: Indices, rng: np.random.Generator, *, chains: int = 2) -> Chains:
        return cls(np.tile(orders, (chains, 1, 1)), random_states(rng, chains, len(orders)))

    @property
    def proposals(self) -> Proposals:
        reach = max(self.orders.shape[-1] - 1, 1)
        return Proposals(length_table(reach, self.scales), self.shares, SHARPNESS)

    def learn(self, draws: Draws) -> None:
        """Propose in proportion to what was accepted; a chain that keeps learning has no stationary distribution."""
        if draws.tally is not None and draws.scales is not None:
            self.shares, self.scales = adapted(draws.tally, draws.scales)

    def some(self, size: int) -> Chains:
        """Copies of the chains of `size` trajectories, evenly spaced."""
        rows = evenly(self.orders.shape[1], size)
        gaps = self.gaps[:, rows] if self.gaps.size else self.gaps
        return Chains(self.orders[:, rows], self.states[:, rows], self.shares, self.scales, gaps)

    def spread(self, count: int, rng: np.random.Generator) -> Chains:
        """So many chains, each from where one of these stands, with random states of their own."""
        _, n, T = self.orders.shape
        states = random_states(rng, count, n)
        gaps = np.resize(self.gaps, (count, *self.gaps.shape[1:])) if self.gaps.size else self.gaps
        orders = np.resize(self.orders, (count, n, T))
        return Chains(orders, states, self.shares, self.scales, gaps)

    def turned(self, turn: Callable[[Indices], Indices]) -> Chains:
        """The same chains with each order changed by `turn`, as a start for the twin."""
        orders = np.stack([turn(each) for each in self.orders])
        return Chains(orders, self.states.copy(), self.shares, self.scales, self.gaps.copy())


class Stretch(NamedTuple):
    """A stretch of every chain: `burn` moves, then `samples` records T/2 moves apart, of which `keep` are kept.

    `positions`: count also what stood where; `expected`: and what an M-step needs.
    """

    samples: int
    burn: int
    keep: int = 0
    positions: bool = False
    expected: bool = False


@dataclass(frozen=True, eq=False)
class Draws:
    """What a stretch of the chains saw.

    `kept` (C, n, R, T): orders, evenly spaced. `positions` (n, T, T), if asked for: how often observation a stood
    at position k. `counted`: expected statistics of each chain, for a model that counts them on the way.
    `tally`, `scales`: tries and acceptances by kind of move and by length. `gaps` (C, n, R, T − 1), where they were
    drawn: which of a table each step crossed.
    """

    kept: NDArray[np.int16]
    positions: NDArray[np.int32]
    counted: list[Any] = field(default_factory=list)
    tally: Tally | None = None
    scales: Tally | None = None
    gaps: NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), dtype=np.int16))

    def orders(self) -> list[Indices]:
        """The kept orders (n, T), one after another, chain by chain."""
        return _one_by_one(self.kept)

    def crossed(self) -> list[Indices] | list[None]:
        """The gaps that go with them; None where none were drawn."""
        return _one_by_one(self.gaps) or [None] * len(self.orders())

    def thinned(self, size: int) -> Draws:
        """About `size` of the kept orders of each chain."""
        step = max(self.kept.shape[2] // size, 1)
        return replace(self, kept=self.kept[:, :, ::step], gaps=self.gaps[:, :, ::step])


def _one_by_one(kept: NDArray[np.int16]) -> list[Indices]:
    return [chain[:, r].astype(np.intp) for chain in kept for r in range(chain.shape[1])]


def agreement(kept: NDArray[np.int16], orders: Indices, lengths: Lengths) -> float:
    """How often neighbours in the given orders (n, T) are neighbours in orders drawn (C, n, R, T)."""
    place = np.argsort(kept, axis=-1)
    where = np.take_along_axis(place, np.broadcast_to(orders[None, :, None], kept.shape), axis=-1)
    near = np.diff(where, axis=-1) == 1
    return float((near.mean(axis=(0, 2)) * lengths.steps.mask).sum() / lengths.steps.total)
