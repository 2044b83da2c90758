"""One compiled driver for every search and every sampler of orders.

What differs between them are small functions, chosen by the type of their first argument (a NamedTuple) when
the driver is compiled for it:

- a judge knows what orders cost: `change`, `take`, `leave`, and for a search `best`, `centres`, `last_resort`;
- proposals choose the next move of a sampler: `propose`, `accept`, `moved`, `tried`;
- records keep what a chain has seen: `record`.

A new judge is a NamedTuple with its data and work space, and the functions registered for it by `implements`. What is
known of time (`rules`) is None or `Rules`; where it is None, all that concerns it is left out by the compiler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload
from numpy.typing import NDArray

from retrace_sde.fit.statespace.filter import put
from retrace_sde.io.arrays import Indices, State
from retrace_sde.orders.moves.moves import Move, insertion, nothing, random_unit, reversal, swap

MOST_SWEEPS = 100
"""Sweeps of a search for each observation: a cost that only falls ends it long before."""

HOPELESS_COST = 60.0
"""A change of the cost by which a move is refused without a random number: exp(−60) is 1e-26."""

_IMPLEMENTATIONS: dict[Any, dict[type, Callable[..., Any]]] = {}


def by_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled callers use the implementation for the type of the first argument; without one, this function."""
    known = _IMPLEMENTATIONS[function] = {}

    def chosen(*types: Any) -> Callable[..., Any]:
        return known.get(getattr(types[0], "instance_class", type(None)), function)

    chosen.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    # Inlined, and nothing is raised (a division by zero gives ∞): otherwise the arrays of judges and proposals, of which there are
    # many, are passed on and their references counted at every move. Not strict: annotations count as differences.
    overload(function, strict=False, jit_options={"error_model": "numpy", "forceinline": True})(
        chosen
    )
    return function


def implements(function: Callable[..., Any], *kinds: type) -> Callable[..., Any]:
    """Register an implementation of one of the functions below for a type of judge, proposals or records."""

    def register(implementation: Callable[..., Any]) -> Any:
        for kind in kinds:
            _IMPLEMENTATIONS[function][kind] = implementation
        return njit(cache=True, nogil=True)(implementation)

    return register


# -- judges --------------------------------------------------------------------------------------------


@by_type
def change(judge: Any, rules: Any, order: Indices, move: Move) -> float:
    """Change of the cost by a move, ∞ where a rule forbids it. Afterwards the move is taken or left."""
    raise NotImplementedError


@by_type
def take(judge: Any, order: Indices, move: Move) -> None:
    """Make the move whose change was asked for last."""
    raise NotImplementedError


@by_type
def leave(judge: Any, order: Indices, move: Move) -> None:
    """Forget it."""


@by_type
def between(judge: Any, order: Indices, count: int, state: State) -> bool:  # pragma: no cover
    """Draw what else is unknown before a sampler's move number `count`; True: it replaces that move."""
    return False


@by_type
def begin(judge: Any, order: Indices, before: Indices) -> None:
    """Make a judge ready for an order that is new to it; `before`: one whose local optimum is known."""


@by_type
def cost(judge: Any, rules: Any, order: Indices) -> float:
    """The cost of the order that the judge was made ready for."""
    raise NotImplementedError


@by_type
def wake(judge: Any) -> None:
    """Look again at everything, also at what found no better place."""


@by_type
def kick(judge: Any, rules: Any, order: Indices, state: State) -> bool:
    """A random move that breaks no rule, made; False: none was found."""
    raise NotImplementedError


@by_type
def last_resort(judge: Any) -> int:  # pragma: no cover - compiled
    """The first stage of a search that is entered only where those before it found nothing."""
    return 1


@by_type
def centres(judge: Any, rules: Any, order: Indices, stage: int) -> int:  # pragma: no cover
    """How many groups of moves a stage of a search looks at."""
    return 3 * len(order) ** 2


@by_type
def best(
    judge: Any, rules: Any, order: Indices, stage: int, at: int
) -> tuple[float, Move]:  # pragma: no cover - compiled
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


# -- proposals and records -----------------------------------------------------------------------------


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
def accept(
    proposals: Any, change: float, ratio: float, state: State
) -> bool:  # pragma: no cover - compiled
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
def record(records: Any, order: Indices, r: int, samples: int) -> None:  # pragma: no cover
    """Keep an order as number r of `samples`."""
    put(order, records.orders[r])


# -- the driver ----------------------------------------------------------------------------------------


class Schedule(NamedTuple):
    """`burn` moves, then `samples` records `thin` moves apart."""

    burn: int
    samples: int
    thin: int


@njit(cache=True, nogil=True, error_model="numpy")
def sample(
    judge: Any, rules: Any, order: Indices, proposals: Any, state: State, schedule: Schedule,
    records: Any,
) -> None:  # fmt: skip  # pragma: no cover - compiled
    """Metropolis over one order, in place: its stationary law is `p(order) ∝ exp(−cost(order))`.

    The order must obey the rules. A single observation has nowhere to go, but is recorded all the same.
    """
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


@njit(cache=True, nogil=True, error_model="numpy")
def descend(
    judge: Any, rules: Any, order: Indices, tolerance: float, stages: int
) -> None:  # pragma: no cover - compiled
    """Local search in place: the best move of every group, where it helps by more than `tolerance`.

    A sweep goes through all stages up to the last resorts; those are entered where nothing else helped. The search ends
    with a sweep that finds nothing.
    """
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
) -> None:  # fmt: skip  # pragma: no cover - compiled
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
            wake(spare)
            descend(spare, rules, trial, tolerance, kicks.stages)
            found = cost(spare, rules, trial)
        if found < least - tolerance:
            least = found
            put(trial, order)
            begin(judge, order, order)
