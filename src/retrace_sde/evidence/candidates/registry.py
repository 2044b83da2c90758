"""The list of candidate models. To add one: its file, and a line here."""

from __future__ import annotations

from retrace_sde.evidence.candidates.candidate import Candidate
from retrace_sde.evidence.candidates.curved import (
    CUBIC_DRIFT,
    MEMORY_AND_QUADRATIC,
    QUADRATIC_DRIFT,
    QUADRATIC_SDE,
)
from retrace_sde.evidence.candidates.gaps import UNEQUAL_GAPS
from retrace_sde.evidence.candidates.intercepts import (
    MEMORY_AND_INTERCEPTS,
    RANDOM_INTERCEPTS,
)
from retrace_sde.evidence.candidates.linear_step import MARKOV, MEMORY
from retrace_sde.evidence.candidates.noise import MEASUREMENT_NOISE
from retrace_sde.evidence.candidates.trend import OUTSIDE_TREND

CANDIDATES: list[Candidate] = [
    MARKOV,
    MEMORY,
    RANDOM_INTERCEPTS,
    MEMORY_AND_INTERCEPTS,
    QUADRATIC_DRIFT,
    CUBIC_DRIFT,
    MEMORY_AND_QUADRATIC,
    QUADRATIC_SDE,
    OUTSIDE_TREND,
    UNEQUAL_GAPS,
    MEASUREMENT_NOISE,
]
"""Every candidate, in the order in which they are fitted: later ones may read the fits of earlier ones."""


def candidate(kind: str) -> Candidate | None:
    """The candidate of a name; None where there is none in the list."""
    return next((each for each in CANDIDATES if each.kind == kind), None)
