"""Wrong values of a complete panel replaced by one draw given the rest, so that a fit keeps all that it offers for complete data.

With a step `x_{k+1} = F x_k + c + e`, `e ~ N(0, S)`, by a trimmed regression along the order, the wrong cells of a trajectory are drawn given its
other values (`fit/missing_cells`). Every other trajectory is filled forwards, the rest backwards: neither direction gains by it. Draws, not means,
which would look like momentum and make H too small.

Of a trajectory that is wrong in every cell nothing is given. It becomes the slices' means plus `(±u ± v)/√2`, u and v the deviations of two others from
these means: its means and covariances at all times are theirs, whatever the process.

Limits: one draw. Standard errors take the filled values for seen, and are too small by about half the share of rows filled; so only few are.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median, trimmed_regression
from retrace_sde.fit.missing_cells import cells_drawn
from retrace_sde.io.arrays import Array, Mask

MIN_RIGHT_TRAJECTORIES = 4
"""Trajectories without a wrong value from which one that is wrong throughout is replaced."""

MIN_STEPS_PER_REGRESSOR = 4
"""Steps between rows without wrong values, for each regressor, from which they are replaced."""


def filled(x: Array, wrong: Mask, rng: np.random.Generator) -> Array | None:
    """x (n, T, d), complete and along an order, with its `wrong` cells drawn given the others; None where too few are left."""
    found, whole = x.copy(), np.asarray(wrong.all(axis=(1, 2)))
    if whole.any():
        right = x[~np.asarray(wrong.any(axis=(1, 2)))]
        if len(right) < MIN_RIGHT_TRAJECTORIES:
            return None
        for k in np.flatnonzero(whole):
            found[k] = _like(right, rng)
    for start, step in ((0, 1), (1, -1)):
        law = _law(x[:, ::step], wrong[:, ::step])
        if law is None:
            return None
        for j in range(start, len(x), 2):
            if wrong[j].any() and not whole[j]:
                found[j, ::step] = cells_drawn(x[j, ::step], wrong[j, ::step], *law, rng)
    return found


def _like(right: Array, rng: np.random.Generator) -> Array:
    """A trajectory (T, d) with the means and covariances of others (n, T, d)."""
    mean = right.mean(axis=0)
    two = right[rng.choice(len(right), 2, replace=False)] - mean
    return mean + np.tensordot(rng.choice([-1.0, 1.0], 2), two, 1) / np.sqrt(2)


def _law(x: Array, wrong: Mask) -> tuple[Array, Array, Array, tuple[Array, Array]] | None:
    """F, c and the mean of the first row, from rows that are not wrong; and the precisions of the first row and of a step."""
    right: Mask = np.asarray(~wrong.any(axis=2))
    both = right[:, 1:] & right[:, :-1]
    if both.sum() < MIN_STEPS_PER_REGRESSOR * (x.shape[2] + 1):
        return None
    start = x[:, 0][right[:, 0]] if right[:, 0].any() else x[right]
    centre = median(start, 0)
    spread = NORMAL_MAD * median(np.abs(start - centre), 0)
    B, S = trimmed_regression(x[:, 1:][both], x[:, :-1][both])
    steps = x.shape[1] - 1
    precisions = np.diag(1 / np.maximum(spread, 1e-6) ** 2), np.asarray(np.linalg.inv(S))
    return np.tile(B[:-1].T, (steps, 1, 1)), np.tile(B[-1], (steps, 1)), centre, precisions
