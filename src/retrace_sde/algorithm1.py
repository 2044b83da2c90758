"""The paper's Algorithm 1, word for word: estimate, bubble-sort by drift–score errors, repeat.

What it does: for centred slices the cross term of the errors is zero on average, and the comparison sorts
slices by growing spread. It is right where spread grows and exactly reversed where it shrinks; the rounds
after a good one can be worse, so `keep="best"` takes the most likely round, `keep="last"` the printed one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numba import njit

from retrace_sde.blocks import Array, Order
from retrace_sde.problem import Directed, Problem, Round
from retrace_sde.score import GaussianScore, Score, ScoreDrift, score_preference
from retrace_sde.score_density import KernelScore, MixtureScore
from retrace_sde.score_network import NetworkScore

Keep = Literal["best", "last"]
ScoreName = Literal["gaussian", "mixture", "kernel", "network"]
SCORES: dict[str, Callable[[], Score]] = {
    "gaussian": GaussianScore,
    "mixture": MixtureScore,
    "kernel": KernelScore,
    "network": NetworkScore,
}


def as_score(choice: ScoreName | Score) -> Score:
    """A way to estimate scores by its name, or as it is."""
    if isinstance(choice, str):
        if choice in SCORES:
            return SCORES[choice]()
    elif callable(getattr(choice, "fit", None)):
        return choice
    raise ValueError(
        f"score_model must be one of {', '.join(map(repr, SCORES))}, or an object whose fit(data) returns "
        f"the scores of states (m, T, d); got {choice!r}."
    )


def score_order(
    problem: Problem,
    *,
    max_iter: int = 10,
    score_drift: ScoreDrift = "absolute",
    keep: Keep = "best",
    score: Score | None = None,
    diffusion: Callable[[Directed], Array] = lambda fit: fit.model.diffusion,
) -> tuple[Directed, list[Round], bool]:
    """The kept order with its fit, every round, and whether a round made no swap.

    Each round sorts with the H estimated from the order before it (lines 3–19); `diffusion` is that
    estimator, maximum likelihood as printed or another. `score`: Gaussian slices where None. The parameters recorded for a round are
    maximum likelihood along the order that it produced: the next round's estimate.
    """
    data = problem.data
    scores = (GaussianScore() if score is None else score).fit(data)
    current = problem.fit(np.arange(data.shape[1]))
    found: list[Directed] = []
    settled = False
    while len(found) < max_iter and not settled:
        H = diffusion(current)
        preference = score_preference(data, scores, H, problem.dt, score_drift=score_drift)
        order = current.order.copy()
        settled = not bubble_sort(preference, order)
        current = problem.fit(order)
        found.append(current)
    kept = found[-1] if keep == "last" else max(found, key=lambda each: each.log_likelihood)
    return kept, [each.as_round() for each in found], settled


@njit(cache=True)
def bubble_sort(preference: Array, order: Order) -> bool:  # pragma: no cover - compiled
    """Lines 4–18, in place: swap neighbours t, s = t + 1 where Error_t < Error_s. True if any swap."""
    swapped = False
    end = len(order) - 1
    while end != 0:
        for t in range(end):
            if preference[order[t], order[t + 1]] < 0:
                order[t], order[t + 1] = order[t + 1], order[t]
                swapped = True
        end -= 1
    return swapped
