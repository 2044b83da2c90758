"""Memory (second order): the step before matters, too, as it does where a velocity was not measured."""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.linear_step import StepCandidate
from retrace_sde.evidence.candidates.prediction import (
    Prediction,
    StepRows,
    chance_share,
    profile,
    rows,
)


class Memory(StepCandidate):
    """`Δx_i = Θ φ_i + M Δx_{i−1} + ε_i`."""

    def predict(self, steps: StepRows) -> Prediction | None:
        y, z, _ = rows(steps)
        d = y.shape[2]
        value, B, _ = profile(y[:, 1:], np.concatenate([z[:, 1:], y[:, :-1]], axis=2))
        # Momentum persists, `M = e^{−γΔt}`. A step that is taken back is noise, also where more parameters fit it better.
        reverting = bool(np.trace(B[:, -d:]) < 0)
        better = (CandidateKind.NOISE,) if reverting else ()
        return Prediction(value, d * d, chance_share(steps), better)


MEMORY = Memory(
    CandidateKind.MEMORY,
    "memory: the last step matters, too",
    allows="memory",
    remedy="the past matters beyond the present state (momentum, or a variable that was not measured). Add the missing "
    "variable, or read the drift as that of the observed variables",
    lags=2,
)
