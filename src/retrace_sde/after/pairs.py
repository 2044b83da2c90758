"""Pair probabilities that are too sure, or not sure enough: one exponent, found on subjects whose order is known.

    logit p' = β logit p,    β = argmin Σ log-loss of pairs of left-out subjects

Where the model is wrong (gaps that differ, noise that is not Gaussian, few subjects) the posterior over orders is too narrow; β < 1 says so. It does not
change which of two observations is the likelier first. Measured on real panels in docs/place.md.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import optimize

MIN_PROBABILITY = 0.005
"""Probabilities are kept this far from 0 and 1 before they are tempered: some hundred sampled orders say no more."""

EXPONENT_RANGE = 0.02, 1.5
"""Range of β: where nothing is known of pairs, and where probabilities are sharpened a little."""


def tempered(before: Array, exponent: float) -> Array:
    """Pair probabilities (…) with their log-odds multiplied; as they are where the exponent is 1."""
    if exponent == 1:
        return before
    p = np.clip(before, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(1 / (1 + ((1 - p) / p) ** exponent))


def exponent_of(right: Array) -> float:
    """β of the least log-loss, from the probabilities (N,) that were given to what is true of each pair."""
    p = np.clip(right, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    odds = np.log(p / (1 - p))

    def loss(exponent: float) -> float:
        return float(np.logaddexp(0, -exponent * odds).mean())

    return float(optimize.minimize_scalar(loss, bounds=EXPONENT_RANGE, method="bounded").x)
