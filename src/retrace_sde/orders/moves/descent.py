"""Local search over orders: one compiled descent for every judge, and its repetition from random kicks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Indices, State
from retrace_sde.io.kernels import borrowed, njit
from retrace_sde.orders.moves.judges import begin, by_type, change, cost, leave, take
from retrace_sde.orders.moves.moves import Move, insertion, nothing, reversal, swap

MOST_SWEEPS = 100
"""Sweeps of a search for each observation: a cost that only falls ends it long before."""


@by_type
def reactivate(judge: Any) -> None:
    """Look again at everything, also at what found no better place."""


@by_type
def kick(judge: Any, rules: Any, order: Indices, state: State) -> bool:
    """A random move that breaks no rule, made; False: none was found."""
    raise NotImplementedError


@by_type
def last_resort(judge: Any) -> int:
    """The first stage of a search that is entered only where those before it found nothing."""
    return 1


@by_type
def centres(judge: Any, rules: Any, order: Indices, stage: int) -> int:
    """How many groups of moves a stage of a search looks at."""
    return 3 * len(order) ** 2


@by_type
def best(judge: Any, rules: Any, order: Indices, stage: int, at: int) -> tuple[float, Move]:
    """The best move of one group, its change asked for last; here one insertion, swap or reversal."""
    T = len(order)
    p, q, kind = at // (3 * T), at // 3 % T, at % 3
    if q == p or (kind == 1 and q < p + 2) or (kind == 2 and q < p):
        return 0.0, nothing()
    if kind == 0:
        move = insertion(p, q)
    elif kind == 1:
        move = swap(p, q)
    else:
        move = reversal(p, q + 1)
    return change(judge, rules, order, move), move


@njit(cache=True, nogil=True, error_model="numpy")
def descend(judge: Any, rules: Any, order: Indices, tolerance: float, stages: int) -> None:
    """Local search in place: the best move of every group, where it helps by more than `tolerance`.

    A sweep goes through all stages up to the last resorts; those are entered where nothing else helped. The search ends
    with a sweep that finds nothing.
    """
    judge, rules, order = borrowed((judge, rules, order))
    for _ in range(MOST_SWEEPS * (1 + len(order))):
        improved = False
        for stage in range(stages):
            if improved and stage >= last_resort(judge):
                break
            for at in range(centres(judge, rules, order, stage)):
                found, move = best(judge, rules, order, stage, at)
                if found < -tolerance:
                    take(judge, order, move)
                    improved = True
                elif move.q > move.i:
                    leave(judge, order, move)
        if not improved:
            return


class Kicks(NamedTuple):
    """Iterated local search: `number` kicks, each repaired by a search of `quick` stages, and by one of `stages` where
    its cost then is less than `hopeful` above the best."""

    number: int
    quick: int
    stages: int
    hopeful: float


@njit(cache=True, nogil=True, error_model="numpy")
def descend_again(
    judge: Any, spare: Any, rules: Any, order: Indices, trial: Indices, tolerance: float, kicks: Kicks,
    state: State,
) -> None:  # fmt: skip
    """Kick an order at its local optimum, search again, and keep what helps. `spare`, of the same kind, judges `trial`."""
    least = cost(judge, rules, order)
    for _ in range(kicks.number):
        put(order, trial)
        if not kick(judge, rules, trial, state):
            continue
        begin(spare, trial, order)
        descend(spare, rules, trial, tolerance, kicks.quick)
        found = cost(spare, rules, trial)
        if found < least + kicks.hopeful and np.any(trial != order):
            reactivate(spare)
            descend(spare, rules, trial, tolerance, kicks.stages)
            found = cost(spare, rules, trial)
        if found < least - tolerance:
            least = found
            put(trial, order)
            begin(judge, order, order)
