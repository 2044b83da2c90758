"""Scores of single trajectories under Euler's step: how each would move the parameters, and their information.

Parameters: B = Θ Δt by rows, Q = H Δt, and p₀'s mean and covariance, covariances as lower triangles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, to_numpy
from retrace_sde.estimate.euler import Euler
from retrace_sde.estimate.information import covariance_information, lower_half
from retrace_sde.estimate.regression import StandardErrors
from retrace_sde.process.sde import Gaussian


@dataclass(frozen=True, eq=False)
class StepScores:
    """Scores under a step and a law of the first state; `gram` is `Σ φ φᵀ Δt`, expected or of known orders."""

    data: Data
    step: Euler
    start: Gaussian
    gram: Array

    @property
    def size(self) -> int:
        """How many parameters there are."""
        d, p = self.step.coefficients.shape
        return d * p + d * (d + 1) + d

    @cached_property
    def _precisions(self) -> tuple[Array, Array]:
        of_step = np.linalg.inv(self.step.diffusion * self.step.dt)
        return np.asarray(of_step), np.asarray(np.linalg.inv(self.start.covariance))

    def information(self, rng: np.random.Generator) -> Array:
        """The information if the orders were known: of the regression, of two covariances, of a mean."""
        d, p = self.step.coefficients.shape
        n, (P, P0) = self.data.shape[0], self._precisions
        m = d * (d + 1) // 2
        complete = np.zeros((self.size, self.size))
        complete[: d * p, : d * p] = np.kron(P, self.gram / self.step.dt)
        at = slice(d * p, d * p + m)
        complete[at, at] = covariance_information(P, float((self.data.observed - 1).sum()))
        at = slice(d * p + m, d * p + m + d)
        complete[at, at] = n * P0
        at = slice(d * p + m + d, None)
        complete[at, at] = covariance_information(P0, n)
        return complete

    def of(self, orders: Order, gaps: Order | None = None) -> Array:
        """Derivatives (n, size) of each trajectory's log-likelihood along given orders."""
        return np.concatenate(list(self.data.map_rows(lambda rows: self._of_block(rows, orders))))

    def _of_block(self, rows: slice, orders: Order) -> Array:
        data, step, (P, P0) = self.data, self.step, self._precisions
        x, u = data.block(rows, orders)
        x, live = to_numpy(x), data.live(rows)
        phi = to_numpy(step.drift.features(x[:, :-1], None if u is None else u[:, :-1]))
        e = np.diff(x, axis=1) - phi @ step.coefficients.T * step.dt
        if live is not None:
            e, phi = e * live, phi * live
        steps = (data.observed[rows] - 1)[:, None, None]
        of_B = P @ (e.transpose(0, 2, 1) @ phi)
        of_Q = 0.5 * (P @ (e.transpose(0, 2, 1) @ e) @ P - steps * P)
        f = (x[:, 0] - self.start.mean) @ P0
        of_S = 0.5 * (f[:, :, None] * f[:, None, :] - P0)
        parts = [of_B.reshape(len(x), -1), lower_half(of_Q), f, lower_half(of_S)]
        return np.concatenate(parts, axis=1)

    def errors(self, covariance: Array) -> StandardErrors:
        """Standard errors of Θ and H from the covariance of the parameters."""
        d, p = self.step.coefficients.shape
        covariance = covariance / self.step.dt**2
        deviations = np.sqrt(np.diag(covariance))
        i, j = np.tril_indices(d)
        diffusion = np.empty((d, d))
        diffusion[i, j] = diffusion[j, i] = deviations[d * p : d * p + len(i)]
        equations = np.stack([covariance[k : k + p, k : k + p] for k in range(0, d * p, p)])
        return StandardErrors(deviations[: d * p].reshape(d, p), diffusion, covariances=equations)
