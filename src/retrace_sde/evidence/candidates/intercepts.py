"""Random intercepts: every subject has a level of its own, `c_j | x₀ ~ N(μ + Γ x₀, Ω)`, with or without memory."""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.linear_step import StepCandidate
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows, profile, rows
from retrace_sde.io.arrays import Array

VARIANCE_RATIOS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ratios λ of a step's variance to that of the intercepts' contribution to it, that are tried."""

SUBJECTS_PER_START = 6
"""Subjects for each variable without which Γ is left out: n intercepts are soon explained by d first states."""


class RandomIntercepts(StepCandidate):
    """`Δx_i = Θ φ_i + c_j + ε_i`, with `c_j | x₀ ~ N(μ + Γ x₀, H/λ)`.

    Given the past, c_j is predicted by the mean residual so far with weight w_i = i/(i + λ), which leaves `Δx_i − w_i ΔX̄_{<i}`
    linear in `φ_i − w_i φ̄_{<i}` and `(1 − w_i)(1, x₀)`.
    """

    def predict(self, steps: StepRows) -> Prediction | None:
        y, z, constant = rows(steps)
        n, _, d = y.shape
        first = steps.states[:, :1, : d if n >= SUBJECTS_PER_START * d else 0]
        parameters = 1 + d * first.shape[2] + d * (not constant)
        value = _predicted(y, z, first, constant=constant)
        return Prediction(
            value, parameters, first.shape[2] / n
        )  # Γ rests on n subjects, not on their steps


def _predicted(y: Array, z: Array, first: Array, *, constant: bool) -> float:
    n, S, _ = y.shape
    i = np.arange(1, S)
    so_far = [np.cumsum(each, axis=1)[:, :-1] / i[:, None] for each in (y, z)]
    start = first if constant else np.concatenate([np.ones((n, 1, 1)), first], axis=2)  # μ is in φ
    best = -np.inf
    for ratio in VARIANCE_RATIOS:
        w = (i / (i + ratio))[None, :, None]
        regressors = np.concatenate([z[:, 1:] - w * so_far[1], (1 - w) * start], axis=2)
        value = profile(y[:, 1:] - w * so_far[0], regressors, 1 + 1 / (i + ratio))[0]
        best = max(best, value)
    return best


RANDOM_INTERCEPTS = RandomIntercepts(
    CandidateKind.INTERCEPTS,
    "every subject has an intercept of its own",
    allows="random intercepts",
    remedy="trajectories have intercepts of their own. Try subjects='levels', or subtract each trajectory's mean",
    intercepts=True,
)

MEMORY_AND_INTERCEPTS = StepCandidate(
    CandidateKind.MEMORY_INTERCEPTS,
    "memory of one step more, and an intercept of every subject's own",
    allows="memory and random intercepts",
    remedy="",
    lags=2,
    intercepts=True,
)
