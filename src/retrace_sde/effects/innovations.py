"""Metropolis over the orders of one variable measured with error, by the likelihood of the innovations.

With `y = x + ε`, `x' = f(x) + w` the residuals `r = y_b − f(y_a)` of neighbours are correlated (each ε is in two of
them), and a chain of first order misjudges orders as soon as the error rivals the noise. Kalman's innovations
`e_{t+1} = r_{t+1} + c_t e_t` are independent, N(0, S_t), up to the curvature of f over one error: the cost of an
order is `Σ ½ e_t²/S_t`, with c_t and S_t known beforehand. O(T) for each proposal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.io.kernels import njit
from retrace_sde.orders.moves import judges, metropolis
from retrace_sde.orders.moves.judges import implements
from retrace_sde.orders.moves.metropolis import Kept, Schedule
from retrace_sde.orders.moves.moves import Move, make
from retrace_sde.orders.moves.proposals import Windows
from retrace_sde.orders.search import BlockCosts

SAME_INNOVATION = 1e-9
"""Innovations that differ by less are those of the order before: all later ones are then the same, too."""


class Innovations(NamedTuple):
    """c_t and S_t of the step from position t to t + 1, (T − 1,)."""

    c: Array
    S: Array


def innovation_gains(T: int, noise: float, error: float) -> Innovations:
    """c_t and S_t of the step from position t to t + 1, for the variances of noise and of error.

    f' is taken as 1: its difference, the drift's slope times Δt, is of no account beside the gain. The first
    state is known by its own observation alone.
    """
    c, S = np.zeros(T - 1), np.empty(T - 1)
    P = error  # variance of the state given the observations so far
    for t in range(T - 1):
        S[t] = P + noise + error
        gain = (P + noise) / S[t]
        P = (1 - gain) * (P + noise)
        if t + 1 < T - 1:
            c[t + 1] = 1 - gain
    return Innovations(c, S)


class InnovationJudge(NamedTuple):
    """States, predictions and start costs of one trajectory, c_t and ½/S_t, innovations of the order and of a trial, the trial, and
    where its innovations end to differ."""

    target: Array
    source: Array
    start: Array
    c: Array
    weight: Array
    old: Array
    new: Array
    trial: Indices
    end: Indices


@implements(judges.change, InnovationJudge)
def _change(judge: InnovationJudge, rules: Any, order: Indices, move: Move) -> float:
    """By the innovations from the first position that moves to where they are the old ones again."""
    y, f, c, e, g, trial = judge.target, judge.source, judge.c, judge.old, judge.new, judge.trial
    make(trial, move)
    change = judge.start[trial[0]] - judge.start[order[0]]
    judge.end[0] = len(order)
    if move.i > 0:
        g[move.i - 1] = e[move.i - 1]
    for t in range(max(move.i, 1), len(order)):
        g[t] = y[trial[t]] - f[trial[t - 1]] + c[t - 1] * g[t - 1]
        change += judge.weight[t - 1] * (g[t] * g[t] - e[t] * e[t])
        if t > move.q and abs(g[t] - e[t]) < SAME_INNOVATION:
            judge.end[0] = t + 1
            break
    return change


@implements(judges.take, InnovationJudge)
def _take(judge: InnovationJudge, order: Indices, move: Move) -> None:
    for t in range(move.i, move.q):
        order[t] = judge.trial[t]
    for t in range(max(move.i, 1), judge.end[0]):
        judge.old[t] = judge.new[t]


@implements(judges.leave, InnovationJudge)
def _leave(judge: InnovationJudge, order: Indices, move: Move) -> None:
    for t in range(move.i, move.q):
        judge.trial[t] = order[t]


@njit(cache=True, nogil=True)
def sample_noisy_block(
    costs: BlockCosts,
    innovations: Innovations,
    lengths: Indices,
    orders: Indices,
    states: State,
    burn: int,
    thin: int,
    reach: int,
    kept: Indices,
) -> None:
    """Advance each trajectory's order in place and keep `kept.shape[1]` of them, `thin` proposals apart.

    States and predictions are of one variable, (n, T). Proposals: reverse a segment, or exchange two
    neighbouring ones, of up to `reach` positions; symmetric.
    """
    c, weight = innovations.c, 0.5 / innovations.S
    schedule = Schedule(burn, kept.shape[1], thin)
    for j in range(len(orders)):
        T = lengths[j]
        y, f, order = costs.target[j], costs.source[j], orders[j, :T]
        e = np.zeros(T)
        for t in range(1, T):
            e[t] = y[order[t]] - f[order[t - 1]] + c[t - 1] * e[t - 1]
        room = np.zeros(T), order.copy(), np.zeros(1, np.intp)
        judge = InnovationJudge(y, f, costs.start[j], c, weight, e, *room)
        state, records = states[j : j + 1], Kept(kept[j, :, :T])
        metropolis.sample(judge, None, order, Windows(reach), state, schedule, records)
