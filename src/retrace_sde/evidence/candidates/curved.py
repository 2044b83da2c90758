"""A polynomial drift: `x_{t+1} = x_t + c + B φ(x_t) + e_t`, φ the products of up to two, or three, variables.

Saturating growth, epidemics, predators and prey, excitable systems: to linear models their curvature looks like momentum, and the direction
that it favours depends on the stretch of the path that was observed. Deterministic paths reversed are of the same kind; what
reveals the direction is where noise accumulates.
"""

from __future__ import annotations

from retrace_sde.evidence.candidates.along import CandidatesAlong
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


class MemoryAndQuadratic(StepCandidate):
    """Fitted only where the residuals of the quadratic drift revert, as measurement noise makes them.

    The last two values then say more of the state than the last one does.
    """

    def applies(self, along: CandidatesAlong) -> bool:
        plain = along.fit(QUADRATIC_DRIFT)
        noisy = plain is not None and plain.checks is not None and plain.checks.noisy
        return noisy and super().applies(along)


MEMORY_AND_QUADRATIC = MemoryAndQuadratic(
    CandidateKind.MEMORY_QUADRATIC,
    "memory, or measurement noise, and a step that is a quadratic function of the last value",
    allows="memory and a quadratic drift",
    remedy="",
    lags=2,
    degree=2,
)
