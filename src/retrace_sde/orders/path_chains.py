"""Sampling of paths, one cost matrix or a block of trajectories: the posterior over orders, and what a chain has seen.

`p(order | data, θ) ∝ exp(−cost(order))`, the cost of what is known of the order included. What the chain has seen is counted: how
often b follows a, what comes first and last, and what stands where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Schedule, record, sample
from retrace_sde.orders.moves.proposals import KINDS, Proposals, Tally, mixture
from retrace_sde.orders.moves.rules import Rules, known_of
from retrace_sde.orders.search import BlockCosts, PathJudge, padded_path, trajectory_costs

Counts = NDArray[np.int32]


class Records(NamedTuple):
    """What a chain saw, or n of them along a first axis; every count goes on from what it was.

    pairs[a, b]: how often b followed a; first and last: what stood there; positions[a, i]: what stood where, or
    empty (not counted); kept (R, T): R orders, evenly spaced. tally and scales, the same for
    all chains: tries and acceptances by kind and by octave of length.
    """

    pairs: Counts
    first: Counts
    last: Counts
    positions: Counts
    kept: NDArray[np.int16]
    tally: Tally
    scales: Tally

    @classmethod
    def none(cls, *n: int, T: int, keep: int = 0, positions: bool = False) -> Records:
        """Nothing yet, of orders of T, of one chain or of n."""
        where = (*n, T, T) if positions else (0,) * (len(n) + 2)
        return cls(
            np.zeros((*n, T, T), np.int32),
            np.zeros((*n, T), np.int32),
            np.zeros((*n, T), np.int32),
            np.zeros(where, np.int32),
            np.zeros((*n, keep, T), np.int16),
            np.zeros((KINDS, 2), np.int64),
            np.zeros((64, 2), np.int64),
        )


@implements(record, Records)
def _record(records: Records, order: Indices, r: int, samples: int) -> None:
    """Count an order; some of them, evenly spaced, are kept."""
    T, keep = len(order), len(records.kept)
    records.first[order[0]] += 1
    records.last[order[T - 1]] += 1
    for k in range(T - 1):
        records.pairs[order[k], order[k + 1]] += 1
    if len(records.positions) > 0:
        for k in range(T):
            records.positions[order[k], k] += 1
    written = min(r, (r - 1) * keep // samples + 1)  # of the records before this one
    if written < keep and r * keep >= written * samples:
        put(order, records.kept[written])


@njit(cache=True, nogil=True)
def sample_path(
    C: Array,
    rules: Rules | None,
    order: Indices,
    state: State,
    schedule: Schedule,
    proposals: Proposals,
    records: Records,
) -> None:
    """Advance one chain under padded costs, in place, and record what it saw.

    Where something is known of the order the chain must start at one that breaks no rule.
    """
    judge = PathJudge(C, padded_path(order))
    path = judge.path[1:-1]
    chosen = mixture(proposals, C, path, records.tally, records.scales)
    sample(judge, rules, path, chosen, state, schedule, records)
    put(path, order)


@njit(cache=True, nogil=True)
def _records_of(records: Records, j: int) -> Records:
    """Those of trajectory j of a block."""
    where = records.positions
    return Records(
        records.pairs[j],
        records.first[j],
        records.last[j],
        where[j] if len(where) > 0 else where[:0].reshape(0, 0),
        records.kept[j],
        records.tally,
        records.scales,
    )


@njit(cache=True, nogil=True)
def sample_block(
    steps: BlockCosts, rules: Rules | None, lengths: Indices, orders: Indices, states: State,
    schedule: Schedule, proposals: Proposals, records: Records,
) -> None:  # fmt: skip
    """`sample_path` for each trajectory of a block; one padded cost matrix exists at a time."""
    n, T, _ = steps.target.shape
    room = np.empty((T + 1) ** 2)
    for j in range(n):
        t = lengths[j]
        costs, known = trajectory_costs(steps, j, t, room), known_of(rules, j, t)
        state, mine = states[j : j + 1], _records_of(records, j)
        sample_path(costs, known, orders[j, :t], state, schedule, proposals, mine)
