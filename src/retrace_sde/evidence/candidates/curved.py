"""A polynomial drift: `x_{t+1} = x_t + c + B φ(x_t) + e_t`, φ the products of up to two, or three, variables.

Saturating growth, epidemics, predators and prey, excitable systems: to linear models their curvature looks like momentum, and the direction
that it favours depends on the stretch of the path that was observed. Deterministic paths reversed are of the same kind; what
reveals the direction is where noise accumulates.
"""

from __future__ import annotations

from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.linear_step import StepCandidate

QUADRATIC_DRIFT = StepCandidate(
    CandidateKind.QUADRATIC,
    "a step is a quadratic function of the last value",
    allows="a quadratic drift",
    remedy="",
    degree=2,
)

CUBIC_DRIFT = StepCandidate(
    CandidateKind.CUBIC,
    "a step is a cubic function of the last value",
    allows="a cubic drift",
    remedy="",
    degree=3,
)
