"""What a judge of orders is asked, and how the compiled search and sampler find its answers.

What differs between searches and samplers are small functions, chosen by the type of their first argument (a NamedTuple) when
the caller is compiled for it:

- a judge knows what orders cost: `change`, `take`, `leave` (here), and for a search `best`, `centres`, `last_resort` (`descent`);
- proposals choose the next move of a sampler: `propose`, `accept`, `moved`, `tried` (`metropolis`);
- records keep what a chain has seen: `record` (`metropolis`).

A new judge is a NamedTuple with its data and work space, and the functions registered for it by `implements`. What is
known of time (`rules`) is None or `Rules`; where it is None, all that concerns it is left out by the compiler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from retrace_sde.io.arrays import Indices, State
from retrace_sde.io.kernels import njit, overload
from retrace_sde.orders.moves.moves import Move

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
def between(judge: Any, order: Indices, count: int, state: State) -> bool:
    """Draw what else is unknown before a sampler's move number `count`; True: it replaces that move."""
    return False


@by_type
def begin(judge: Any, order: Indices, before: Indices) -> None:
    """Make a judge ready for an order that is new to it; `before`: one whose local optimum is known."""


@by_type
def cost(judge: Any, rules: Any, order: Indices) -> float:
    """The cost of the order that the judge was made ready for."""
    raise NotImplementedError
