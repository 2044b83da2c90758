"""Steps as a regression on any rows of the past: `x_{t+1} = x_t + θᵀ φ_t + e_t`, with a start law, in one direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.evidence.closed_form.linear import RIDGE
from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.fit.start_law import Starts, starts
from retrace_sde.io.arrays import Array


@dataclass(frozen=True, eq=False)
class RegressionFit:
    """A regression of the steps of B panels in one direction: log-likelihoods (B, n), start included.

    `theta` (B, p, d) multiplies the rows; `residuals` (B, n, T − 1, d).
    """

    log_likelihoods: Array
    theta: Array
    residuals: Array
    start: Starts

    @property
    def pool(self) -> Array:
        """Residuals of the first panel to draw from, scaled up for the degrees of freedom used."""
        e = self.residuals[0].reshape(-1, self.residuals.shape[3])
        return np.asarray((e - e.mean(axis=0)) * np.sqrt(len(e) / (len(e) - self.theta.shape[1])))


def fit_regression(panels: Panels, x: Array, rows: Array) -> RegressionFit:
    """Least squares of the steps of x (B, n, T, d) on rows (B, n, T − 1, p); `panels`: x, or what it is the reverse of."""
    B, n, T, d = x.shape
    phi = rows.reshape(B, n * (T - 1), -1)
    step = np.diff(x, axis=2).reshape(B, -1, d)
    gram = phi.transpose(0, 2, 1) @ phi
    weight = np.trace(gram, axis1=1, axis2=2)[:, None, None] / gram.shape[1]
    theta = np.linalg.solve(
        gram + RIDGE * weight * np.eye(gram.shape[1]), phi.transpose(0, 2, 1) @ step
    )
    e = step - phi @ theta
    H = e.transpose(0, 2, 1) @ e / e.shape[1] + RIDGE * np.eye(d)
    lower = np.linalg.cholesky(H)
    white = np.linalg.solve(lower, e.transpose(0, 2, 1))
    squares = (white**2).sum(axis=1).reshape(B, n, T - 1).sum(axis=2)
    log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    constant = (T - 1) * (log_det + d * np.log(2 * np.pi))
    start = starts(np.ascontiguousarray(x[:, :, 0]), H, panels.variances)
    total = start.log_densities - 0.5 * (squares + constant[:, None])
    return RegressionFit(total, theta, e.reshape(B, n, T - 1, d), start)
