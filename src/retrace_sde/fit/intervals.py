"""Intervals from standard errors: one rule for the summary, the report, the tables and the pictures.

To first order an estimate is a mean over the n trajectories, which are what is independent:
`θ̂ − θ ≈ (1/n) Σ_j ψ_j`, with an error that estimates `sd(ψ)/√n`. Were the ψ_j Gaussian and their spread
estimated from themselves, `(θ̂ − θ) / error` would have Student's law with n − 1 degrees of freedom, exactly
(Gosset); as n grows it becomes the normal law. Errors that pool all steps know the spread better than that, so
with few trajectories the intervals are too long rather than too short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats

from retrace_sde.io.arrays import Array


def critical(n: float = math.inf, level: float = 0.95) -> float:
    """Half the width of an interval in standard errors: Student's quantile with n − 1 degrees of freedom.

    n is the number of trajectories behind the errors (∞: many). One has no spread between trajectories
    to judge by; it gets the normal law's.
    """
    tail = (1 + level) / 2
    return float(stats.norm.ppf(tail) if n < 2 or math.isinf(n) else stats.t.ppf(tail, n - 1))


def half_widths(errors: Any, n: float = math.inf, level: float = 0.95) -> Array:
    """What to add to estimates and to take from them: intervals that hold the truth with probability `level`."""
    return critical(n, level) * np.asarray(errors, dtype=float)


def clearness(values: Array, errors: Array) -> Array:
    """|estimate| / standard error, how far each is told from zero; 0 where there is no error to compare with."""
    return np.abs(values) / np.where(errors > 0, errors, np.inf)


def clearest(values: Array, errors: Array, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Row and column of the `most` entries best told from zero, the clearest first."""
    rank = np.argsort(-clearness(values, errors), axis=None)[:most]
    return ((int(i), int(j)) for i, j in zip(*np.unravel_index(rank, values.shape), strict=True))
