"""What may have happened to suspects: a unit or a decimal point, two rows exchanged, a row of another slice."""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.suspects.rows import Find, agrees, could_be_exchanged
from retrace_sde.io.arrays import Array

MIN_FACTOR, KNOWN_EXPECTATION = 4.0, 2.0
"""Least factor that is said, and standard deviations from zero from which a ratio to what is expected means something."""


def factor(value: float, expected: float, sd: float) -> float | None:
    """By how many times a value differs from what is expected; None where that says nothing, as where signs differ."""
    if value == 0 or abs(expected) < KNOWN_EXPECTATION * sd:
        return None
    ratio = value / expected
    return ratio if ratio > 0 and abs(np.log(ratio)) >= np.log(MIN_FACTOR) else None


def partners(x: Array, finds: list[Find]) -> dict[int, int]:
    """Pairs of rows, by their numbers in `finds`, each of which agrees with what is expected of the other.

    At the same position they are rows of two trajectories; of the same trajectory, rows of two slices.
    """
    rows = [i for i, each in enumerate(finds) if each.variable is None]
    found: dict[int, int] = {}
    for at, a in enumerate(rows):
        for b in rows[at + 1 :]:
            one, two = finds[a], finds[b]
            free = a not in found and b not in found
            if (
                could_be_exchanged(one, two)
                and free
                and agrees(x, one, two)
                and agrees(x, two, one)
            ):
                found[a], found[b] = b, a
    return found
