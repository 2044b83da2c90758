"""Algorithm 1 as a way to a shared order, with the likelihood's own fits along what it finds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.paper.algorithm1 import ScoreOrder, score_order
from retrace_sde.paper.score import GaussianScore
from retrace_sde.search.alternate import Found
from retrace_sde.search.protocols import Model


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
