"""Two orders of the same data side by side: where they differ, and the likelihood of each difference.

Cut both orders wherever the same slices have come before: between two cuts they hold the same slices, and differ or not
by themselves. Each difference is compared alone: nats gained by putting b's arrangement into a, refitted. Orders that
run against each other are compared after b is time-reversed, and the reversal is compared as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.metrics import kendall_tau, order_accuracy
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.order import Order
from retrace_sde.search.protocols import Model

CLEAR_PREFERENCE_NATS = 2.0
"""Nats below which the data do not clearly prefer one arrangement: odds of less than eight to one."""


@dataclass(frozen=True)
class Difference:
    """Positions [first, last] that hold the same slices differently arranged, and the nats by which b's is better."""

    first: int
    last: int
    in_a: tuple[int, ...]
    in_b: tuple[int, ...]
    nats: float

    def __str__(self) -> str:
        where = f"positions {self.first} to {self.last}: {_listed(self.in_a)} in a, {_listed(self.in_b)} in b"
        return f"{where}; {_preferred(self.nats)}"


@dataclass(frozen=True, eq=False)
class OrderComparison:
    """`nats`: log-likelihood and log-prior of b less a's, each with its own parameters (ℓ of each trajectory's own order: (n,)).

    `turned`: b runs against a, and was time-reversed before it was compared place by place; `kendall_tau` and `accuracy` are of b as
    given (means over trajectories with own orders). `differences` are of shared orders.
    """

    nats: float
    turned: bool
    kendall_tau: float
    accuracy: float
    differences: tuple[Difference, ...]
    each: Array | None = None

    def __str__(self) -> str:
        lines = [
            f"Kendall's τ {self.kendall_tau:+.3f}, {self.accuracy:.0%} of the positions alike; {_preferred(self.nats)}."
        ]
        if self.turned:
            lines.append("b runs in the other direction; reversed,")
        lines += [f"- {each}." for each in self.differences]
        if self.each is None and not self.differences:
            lines.append("- nothing else differs." if self.turned else "- nothing differs.")
        return "\n".join(lines)


def _listed(slices: tuple[int, ...], most: int = 8) -> str:
    shown = " ".join(str(each) for each in slices[:most])
    return f"{shown} …" if len(slices) > most else shown


def _preferred(nats: float) -> str:
    if abs(nats) < CLEAR_PREFERENCE_NATS:
        return f"the log-likelihoods are nearly equal ({nats:+.1f} nats for b)"
    return f"the data prefer {'b' if nats > 0 else 'a'} by {abs(nats):,.1f} nats"


def compare_orders(a: Any, b: Any, *, model: Any | None = None) -> OrderComparison:
    """Where two orders of the same data differ, and which the likelihood prefers.

    Each difference is compared alone, the parameters refitted; print it for sentences.

    Parameters
    ----------
    a, b : array (T,) or (n, T), or fitted ReTrace
        The orders.
    model : ReTrace, optional
        Who judges; without it the first of a and b that is fitted.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> print(rt.compare_orders(model, [0, 1, 2, 4, 3, 5, 6, 7]))  # doctest: +ELLIPSIS
    Kendall's τ +0.929, 75% of the positions alike; the data prefer a by ... nats.
    - positions 3 to 4: 3 4 in a, 4 3 in b; the data prefer a by ... nats.
    """
    judge = next((each for each in (model, a, b) if hasattr(each, "_memory")), None)
    if judge is None:
        raise ValueError(
            "compare_orders needs a fitted ReTrace, as a, as b or as model=, whose data and likelihood judge the orders."
        )
    problem: Model = judge._memory.model
    one, two = (as_order(name, each, problem.data) for name, each in (("a", a), ("b", b)))
    shared = Order.of(one).shared
    if shared != Order.of(two).shared:
        raise ValueError("a and b must both be orders (T,) shared by all, or both (n, T).")
    places = judge._memory.places
    fits = [problem.fit(places.sorted_orders(each), final=True) for each in (one, two)]
    nats = fits[1].objective - fits[0].objective
    tau, right = float(kendall_tau(one, two)), float(order_accuracy(one, two))
    if not shared:
        own = places.given_rows(fits[1].log_likelihoods - fits[0].log_likelihoods)
        return OrderComparison(nats, False, tau, right, (), own)
    turned = tau < 0
    towards = two[::-1].copy() if turned else two
    found = []
    for first, last in _blocks(one, towards):
        trial = one.copy()
        trial[first : last + 1] = towards[first : last + 1]
        gain = problem.fit(places.sorted_orders(trial), final=True).objective - fits[0].objective
        here, there = (tuple(int(k) for k in o[first : last + 1]) for o in (one, towards))
        found.append(Difference(first, last, here, there, gain))
    return OrderComparison(nats, turned, tau, right, tuple(found))


def _blocks(a: Indices, b: Indices) -> list[tuple[int, int]]:
    """Shortest stretches of positions that hold the same slices in both and are not arranged alike."""
    place = np.empty_like(a)
    place[b] = np.arange(len(b))
    ends = np.flatnonzero(np.maximum.accumulate(place[a]) == np.arange(len(a)))
    starts = np.concatenate([[0], ends[:-1] + 1])
    return [(int(s), int(e)) for s, e in zip(starts, ends, strict=True) if e > s]


def as_order(name: str, given: Any, data: Data) -> Indices:
    """An order of the data; refused where it is not a permutation of their slices."""
    order = np.asarray(getattr(given, "order_", given))
    n, T, _ = data.shape
    if order.shape not in ((T,), (n, T)) or not np.issubdtype(order.dtype, np.integer):
        raise ValueError(
            f"{name} must be an order of whole numbers, of shape ({T},) or ({n}, {T}); got {order.shape} of {order.dtype}."
        )
    if not np.array_equal(np.sort(order, axis=-1), np.broadcast_to(np.arange(T), order.shape)):
        raise ValueError(f"{name} is not a permutation of 0 to {T - 1}.")
    return order.astype(np.intp)
