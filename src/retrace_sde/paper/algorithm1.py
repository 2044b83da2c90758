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

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data
from retrace_sde.paper.score import GaussianScore, Score, ScoreDrift, score_preference
from retrace_sde.paper.score_density import KernelScore, MixtureScore
from retrace_sde.paper.score_network import NetworkScore
from retrace_sde.search.model import Fit

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
    data: Data,
    dt: float,
    fit: Callable[[Indices], Fit],
    *,
    max_iter: int = 10,
    score_drift: ScoreDrift = "absolute",
    keep: Keep = "best",
    score: Score | None = None,
    diffusion: Callable[[Fit], Array] = lambda found: found.diffusion,
) -> tuple[Fit, list[Fit], bool]:
    """The kept order with its fit, every round, and whether a round made no swap.

    `fit` is maximum likelihood along an order. Each round sorts with the H estimated from the order before it (lines
    3–19); `diffusion` is that estimator, the fit's own as printed or another. `score`: Gaussian slices where
    None. A round is the fit along the order that it produced: the next round's estimate.
    """
    scores = (GaussianScore() if score is None else score).fit(data)
    current = fit(np.arange(data.shape[1]))
    found: list[Fit] = []
    settled = False
    while len(found) < max_iter and not settled:
        H = diffusion(current)
        preference = score_preference(data, scores, H, dt, score_drift=score_drift)
        order = current.order.copy()
        settled = not bubble_sort(preference, order)
        current = fit(order)
        found.append(current)
    kept = found[-1] if keep == "last" else max(found, key=lambda each: each.log_likelihood)
    return kept, found, settled


@njit(cache=True)
def bubble_sort(preference: Array, order: Indices) -> bool:  # pragma: no cover - compiled
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
