"""What may have happened to a cell: a unit or a decimal point."""

from __future__ import annotations

import numpy as np

MIN_FACTOR, KNOWN_EXPECTATION = 4.0, 2.0
"""Least factor that is said, and standard deviations from zero from which a ratio to what is expected means something."""


def factor(value: float, expected: float, sd: float) -> float | None:
    """By how many times a value differs from what is expected; None where that says nothing, as where signs differ."""
    if value == 0 or abs(expected) < KNOWN_EXPECTATION * sd:
        return None
    ratio = value / expected
    return ratio if ratio > 0 and abs(np.log(ratio)) >= np.log(MIN_FACTOR) else None
