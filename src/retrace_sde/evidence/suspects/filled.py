"""Wrong values of a complete panel replaced by one draw given the rest, so that a fit keeps all that it offers for complete data.

With `x_{k+1} = F x_k + c + e`, `e ~ N(0, S)`, by a trimmed regression along the order, the wrong cells z of a trajectory are Gaussian given
its other values: each step next to one of them adds `GᵀS⁻¹G` to their precision, G the derivative of its residual. Every other trajectory is filled
forwards, the rest backwards: neither direction gains by it. Draws, not means, which would look like momentum and make H too small.

Of a trajectory that is wrong in every cell nothing is given. It becomes the slices' means plus `(±u ± v)/√2`, u and v the deviations of two others from
these means: its means and covariances at all times are theirs, whatever the process.

Limits: one draw. Standard errors take the filled values for seen, and are too small by about half the share of rows filled; so only few are.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median, trimmed_regression
from retrace_sde.io.arrays import Array, Indices, Mask

MIN_TRAJECTORIES = 4
"""Trajectories without a wrong value from which one that is wrong throughout is replaced."""

MIN_STEPS_PER_REGRESSOR = 4
"""Steps between rows without wrong values, for each regressor, from which they are replaced."""


def filled(x: Array, wrong: Mask, rng: np.random.Generator) -> Array | None:
    """x (n, T, d), complete and along an order, with its `wrong` cells drawn given the others; None where too few are left."""
    found, whole = x.copy(), np.asarray(wrong.all(axis=(1, 2)))
    if whole.any():
        right = x[~np.asarray(wrong.any(axis=(1, 2)))]
        if len(right) < MIN_TRAJECTORIES:
            return None
        for k in np.flatnonzero(whole):
            found[k] = _like(right, rng)
    for start, step in ((0, 1), (1, -1)):
        law = _Law.of(x[:, ::step], wrong[:, ::step])
        if law is None:
            return None
        for j in range(start, len(x), 2):
            if wrong[j].any() and not whole[j]:
                found[j, ::step] = law.drawn(x[j, ::step], wrong[j, ::step], rng)
    return found


def _like(right: Array, rng: np.random.Generator) -> Array:
    """A trajectory (T, d) with the means and covariances of others (n, T, d)."""
    mean = right.mean(axis=0)
    two = right[rng.choice(len(right), 2, replace=False)] - mean
    return mean + np.tensordot(rng.choice([-1.0, 1.0], 2), two, 1) / np.sqrt(2)


class _Law:
    """The step from one row to the next, and the first row, from rows that are not wrong."""

    def __init__(self, B: Array, S: Array, first: tuple[Array, Array]) -> None:
        self.F, self.c = B[:-1].T, B[-1]
        self.precision: Array = np.asarray(np.linalg.inv(S), dtype=np.float64)
        self.first = first

    @classmethod
    def of(cls, x: Array, wrong: Mask) -> _Law | None:
        right: Mask = np.asarray(~wrong.any(axis=2))
        both = right[:, 1:] & right[:, :-1]
        if both.sum() < MIN_STEPS_PER_REGRESSOR * (x.shape[2] + 1):
            return None
        start = x[:, 0][right[:, 0]] if right[:, 0].any() else x[right]
        centre = median(start, 0)
        spread = NORMAL_MAD * median(np.abs(start - centre), 0)
        law = trimmed_regression(x[:, 1:][both], x[:, :-1][both])
        return cls(*law, (centre, np.diag(1 / np.maximum(spread, 1e-6) ** 2)))

    def drawn(self, x: Array, wrong: Mask, rng: np.random.Generator) -> Array:
        """A trajectory (T, d) with its wrong cells drawn."""
        rows, variables = np.nonzero(wrong)
        known, m = np.where(wrong, 0.0, x), len(rows)
        precision, pull = np.zeros((m, m)), np.zeros(m)

        def add(residual: Array, G: Array, P: Array, cells: Indices) -> None:
            precision[np.ix_(cells, cells)] += G.T @ P @ G
            pull[cells] -= G.T @ P @ residual

        touched = {k for row in rows.tolist() for k in (row - 1, row) if 0 <= k < len(x) - 1}
        for k in sorted(touched):  # the step from k to k + 1
            cells = np.flatnonzero((rows == k) | (rows == k + 1))
            moves = np.where(
                rows[cells] == k,
                -self.F[:, variables[cells]],
                np.eye(x.shape[1])[:, variables[cells]],
            )
            add(known[k + 1] - self.F @ known[k] - self.c, moves, self.precision, cells)
        if wrong[0].any():
            cells = np.flatnonzero(rows == 0)
            centre, P = self.first
            add(known[0] - centre, np.eye(x.shape[1])[:, variables[cells]], P, cells)
        L = np.linalg.cholesky(precision)
        z = np.linalg.solve(L.T, np.linalg.solve(L, pull) + rng.standard_normal(m))
        found = x.copy()
        found[rows, variables] = z
        return found
