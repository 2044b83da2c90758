"""Metropolis over orders: one compiled sampler for every judge, proposal and record.

A proposed move is accepted with probability min(1, ratio · exp(−change of the cost)), so that the stationary distribution is
`p(order) ∝ exp(−cost(order))`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Indices, State
from retrace_sde.io.kernels import borrowed, njit
from retrace_sde.orders.moves.judges import between, by_type, change, leave, take
from retrace_sde.orders.moves.moves import Move, random_unit

HOPELESS_COST = 60.0
"""A change of the cost by which a move is refused without a random number: exp(−60) is 1e-26."""


class Proposal(NamedTuple):
    """A move (or `nothing`), Hastings' ratio, and for those who count: its kind and the length of a segment."""

    move: Move
    ratio: float
    kind: int
    length: int


@by_type
def propose(proposals: Any, rules: Any, order: Indices, state: State) -> Proposal:
    """The next move of a chain."""
    raise NotImplementedError


@by_type
def accept(proposals: Any, change: float, ratio: float, state: State) -> bool:
    """Metropolis and Hastings: with probability min(1, ratio · exp(−change))."""
    if change > HOPELESS_COST:
        return False
    p = ratio * np.exp(-change)
    return p >= 1.0 or random_unit(state) < p


@by_type
def moved(proposals: Any, order: Indices, move: Move) -> None:
    """A move was accepted and made."""


@by_type
def tried(proposals: Any, proposal: Proposal, accepted: bool) -> None:
    """A move was proposed, and accepted or not."""


class Kept(NamedTuple):
    """Every recorded order of a chain, (samples, T)."""

    orders: NDArray[Any]


@by_type
def record(records: Any, order: Indices, r: int, samples: int) -> None:
    """Keep an order as number r of `samples`."""
    put(order, records.orders[r])


class Schedule(NamedTuple):
    """`burn` moves, then `samples` records `thin` moves apart."""

    burn: int
    samples: int
    thin: int


@njit(cache=True, nogil=True, error_model="numpy")
def sample(
    judge: Any, rules: Any, order: Indices, proposals: Any, state: State, schedule: Schedule,
    records: Any,
) -> None:  # fmt: skip
    """Metropolis over one order, in place: its stationary distribution is `p(order) ∝ exp(−cost(order))`.

    The order must satisfy the rules. A single observation has nowhere to go, but is recorded all the same.
    """
    judge, rules, order = borrowed((judge, rules, order))
    proposals, state, records = borrowed((proposals, state, records))
    burn, samples, thin = schedule
    count = 0
    for r in range(-1, samples):
        for _ in range(0 if len(order) < 2 else burn if r < 0 else thin):
            count += 1
            if between(judge, order, count - 1, state):
                continue
            proposal = propose(proposals, rules, order, state)
            move, accepted = proposal.move, False
            if move.q > move.i:
                found = change(judge, rules, order, move)
                accepted = accept(proposals, found, proposal.ratio, state)
                if accepted:
                    take(judge, order, move)
                    moved(proposals, order, move)
                else:
                    leave(judge, order, move)
            tried(proposals, proposal, accepted)
        if r >= 0:
            record(records, order, r, samples)
