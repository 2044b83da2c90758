"""What a method answers about a panel, and how good the answer is."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.lost_time.panels import Hidden
from retrace_sde.metrics import kendall_tau, mean_absolute_error, order_accuracy


@dataclass(frozen=True, eq=False)
class Answer:
    """An order of the slices, and what the method claims about it.

    Parameters
    ----------
    order : array (T,)
        `X[:, order]` is in time order, or in its reverse.
    directed : bool
        The order is claimed to run forwards in time; False: it may be the reverse.
    probability : float, optional
        How likely a slice is to be at its right position, up to reversal, by the method's own account.
    drift : array (d, d), optional
        Estimate of A in `dX = (A X + c) dt + G dW`, for an order that runs forwards.

    Examples
    --------
    >>> import numpy as np
    >>> from retrace_sde.lost_time import Answer
    >>> Answer(np.arange(5)).directed
    False
    """

    order: Indices
    directed: bool = False
    probability: float | None = None
    drift: Array | None = None


Method = Callable[..., Any]
"""`order(X)`, or `order(X, known)` for a method that learns from other subjects whose order is known."""


def record(name: str, method: Method, panel: Hidden, *, with_known: bool) -> dict[str, Any]:
    """How a method does on one panel: its accuracy, its direction, what it claims, and its seconds.

    A method that fails is told, and counts as one that found nothing.
    """
    found: dict[str, Any] = {
        "method": name,
        "panel": panel.name,
        "kind": panel.kind,
        "directed": panel.directed,
    }
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            given = method(panel.values, panel.known) if with_known else method(panel.values)
        answer = given if isinstance(given, Answer) else Answer(np.asarray(given))
        right = order_accuracy(panel.truth, answer.order, up_to_reversal=True)
    except Exception as error:  # whatever somebody else's method raises
        return found | {"error": " ".join(str(error).split())[:200] or type(error).__name__}
    found["seconds"] = time.perf_counter() - begin
    found["accuracy"] = right
    tau = kendall_tau(panel.truth, answer.order)
    found["tau"] = abs(tau)
    found["called"] = bool(answer.directed)
    found["wrong"] = bool(answer.directed and (tau < 0 or not panel.directed))
    if answer.probability is not None:
        found["probability"] = float(answer.probability)
    if panel.drift is not None and answer.drift is not None and tau > 0:
        found["drift_error"] = mean_absolute_error(panel.drift, answer.drift)
    return found
