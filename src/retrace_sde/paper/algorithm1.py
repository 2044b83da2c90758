"""The paper's Algorithm 1, word for word: estimate, bubble-sort by drift–score errors, repeat; and as a search for a shared order.

What it does: for centred slices the cross term of the errors is zero on average, and the comparison sorts
slices by growing spread. It is right where spread grows and exactly reversed where it shrinks; the rounds
after a good one can be worse, so `keep="best"` takes the most likely round, `keep="last"` the printed one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.kernels import njit
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.parameters import check
from retrace_sde.paper.score import GaussianScore, Score, ScoreDrift, score_preference
from retrace_sde.paper.score_estimators import KernelScore, MixtureScore, NetworkScore
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

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
        f"score must be one of {', '.join(map(repr, SCORES))}, or an object whose fit(data) returns "
        f"the scores of states (m, T, d); got {choice!r}."
    )


@dataclass(frozen=True)
class ScoreOrder:
    """Options of the paper's Algorithm 1, for `ReTrace(order=ScoreOrder(…))`; `order="score"` takes the defaults.

    Limits: the comparison sorts slices by growing spread, so it is reversed where spread shrinks; one shared order only.

    Parameters
    ----------
    drift : {"absolute", "mean"}
        The reading of the empirical drift: the absolute increment / Δt of each trajectory, as printed, or the mean increment.
    score : {"gaussian", "mixture", "kernel", "network"} or object
        The densities of the slices; "network" needs torch. Your own: an object whose fit(data) returns the scores.
    keep : {"best", "last"}
        The round that is returned: the most likely, or the last, as printed.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 6, 0.05, random_state=1)
    >>> listing = rt.paper.ScoreOrder(keep="last")
    >>> rt.ReTrace(dt=0.05, order=listing, drift="linear").fit(Y).order_.shape
    (6,)
    """

    drift: ScoreDrift = "absolute"
    score: ScoreName | Score = "gaussian"
    keep: Keep = "best"

    def __post_init__(self) -> None:
        check("ScoreOrder", {"drift": self.drift, "keep": self.keep})
        as_score(self.score)


def as_score_order(order: object) -> ScoreOrder | None:
    """The options of Algorithm 1 that an `order` asks for; None for order="likelihood"."""
    if isinstance(order, ScoreOrder):
        return order
    if isinstance(order, str) and order in ("likelihood", "score"):
        return ScoreOrder() if order == "score" else None
    raise ValueError(
        f"order must be 'likelihood', 'score' or a retrace_sde.paper.ScoreOrder(…); got {order!r:.60}."
    )


def score_order(
    data: Data,
    dt: float,
    fit: Callable[[Indices], Fit],
    how: ScoreOrder,
    *,
    max_iter: int = 10,
    diffusion: Callable[[Fit], Array] = lambda found: found.diffusion,
) -> tuple[Fit, list[Fit], bool]:
    """The kept order with its fit, every round, and whether a round made no swap.

    `fit` is maximum likelihood along an order. Each round sorts with the H estimated from the order before it (lines
    3–19); `diffusion` is that estimator, the fit's own as printed or another. A round is the fit along the order that it produced: the next round's estimate.
    """
    scores = as_score(how.score).fit(data)
    current = fit(np.arange(data.shape[1]))
    found: list[Fit] = []
    settled = False
    while len(found) < max_iter and not settled:
        H = diffusion(current)
        preference = score_preference(data, scores, H, dt, score_drift=how.drift)
        order = current.order.copy()
        settled = not bubble_sort(preference, order)
        current = fit(order)
        found.append(current)
    kept = found[-1] if how.keep == "last" else max(found, key=lambda each: each.log_likelihood)
    return kept, found, settled


@njit(cache=True)
def bubble_sort(preference: Array, order: Indices) -> bool:
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


@dataclass(frozen=True)
class ScoreSearch:
    """The paper's search: rounds at most, and the options of Algorithm 1.

    `noise`: R where observations are noisy, NaN where unknown. Then the slices' covariances are corrected as in
    the paper, `Σ̂ = S − R`, where R is known.
    """

    max_iter: int
    how: ScoreOrder
    noise: Array | None = None

    def __call__(self, model: Model) -> tuple[Found, tuple[str, ...], tuple[str, ...]]:
        """The order found, fitted in both directions by the model; notes and cautions."""
        plain = model.plain()
        known = self.noise is not None and not np.isnan(self.noise).any()
        how = self.how
        if self.noise is not None:
            how = replace(how, score=GaussianScore(self.noise if known else None))
        problem = plain.data, plain.dt, plain.fit
        kept, rounds, settled = score_order(*problem, how, max_iter=self.max_iter)
        one = model.fit(kept.order, final=True)
        two = model.reversed_fit(one, final=True)
        found = Found(one, two, tuple(each.as_round() for each in rounds), settled)
        if self.noise is None:
            return found, (), ()
        if not known:
            note = "The slices' covariances are not corrected for noise, whose size was not given."
            return found, (note,), ()
        floored = GaussianScore(self.noise).fit(plain.data).floored
        caution = (
            f"In {floored} of {plain.data.shape[1]} slices the noise exceeds the spread in some direction: "
            "the corrected covariance S − R is floored there, and the score is a guess."
        )
        return found, (), (caution,) if floored else ()
