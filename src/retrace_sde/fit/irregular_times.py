"""Exact likelihood of a linear SDE observed at irregular times, common to all trajectories.

Over a gap g the SDE `dX = (A X + c) dt + G dW` is exactly `X' = F X + s + N(0, Q)` with `F = e^{A g}` and
`Q = ∫₀^g e^{Au} H e^{Aᵀu} du`: one exponential per gap (Van Loan). The likelihood needs only the second moments
of (x, 1, x' − x) at each step, so the number of trajectories does not enter. Parameters and, if asked for, gaps
are found together by L-BFGS with the exact gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from retrace_sde.fit.information import by_log_cholesky, from_log_cholesky, log_cholesky
from retrace_sde.fit.statespace.transitions import REACH, step_cost, van_loan_matrix
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy


@dataclass(frozen=True, eq=False)
class StepMoments:
    """Second moments (S, 2d + 1, 2d + 1) of (y, 1, y' − y) at each of S steps, `y = (x − centre) / scale`."""

    grams: Array
    count: int
    centre: Array
    scale: Array

    @classmethod
    def of(cls, data: Data, order: Indices, scale: Array, *, affine: bool) -> StepMoments:
        """Of a panel along one order; a linear drift has its fixed point at 0, so only the scale changes."""
        n, T, d = data.shape
        few = to_numpy(data.some(min(n, 100)).values)
        centre = few.mean(axis=(0, 1)) if affine else np.zeros(d)

        def of_piece(piece: Data, order: Indices) -> Array:
            y = (to_numpy(piece.block(slice(None), order)[0]) - centre) / scale
            one = np.ones((len(y), T - 1, 1))
            z = np.concatenate([y[:, :-1], one, np.diff(y, axis=1)], axis=2)
            z = z.transpose(1, 2, 0)
            return z @ z.transpose(0, 2, 1)

        return cls(data.sum_pieces(of_piece, order) / n, n, centre, scale)


@dataclass(frozen=True, eq=False)
class Spans:
    """Stretches of steps [begin, end) whose gaps sum to a known time; steps outside them are free."""

    begin: Indices
    end: Indices
    length: Array

    def gaps(self, u: Array) -> Array:
        """`g = e^u`, scaled within each stretch to its known length."""
        g = np.exp(np.clip(u, -50, 50))  # a trial step may go astray
        for a, b, length in zip(self.begin, self.end, self.length, strict=True):
            g[a:b] *= length / g[a:b].sum()
        return g

    def pull_back(self, g: Array, gradient: Array) -> Array:
        """A gradient by g as one by u."""
        total = gradient * g
        for a, b, length in zip(self.begin, self.end, self.length, strict=True):
            total[a:b] = total[a:b] - g[a:b] * total[a:b].sum() / length
        return total

    def jacobian(self, g: Array) -> Array:
        """∂ log g / ∂ u."""
        J = np.eye(len(g))
        for a, b, length in zip(self.begin, self.end, self.length, strict=True):
            J[a:b, a:b] -= g[None, a:b] / length
        return J


@dataclass(frozen=True, eq=False)
class Irregular:
    """A maximum likelihood fit in the coordinates of its step moments, time in units of the mean gap."""

    A: Array
    c: Array
    lower: Array
    gaps: Array
    parameters: Array
    value: float


@dataclass(frozen=True, eq=False)
class Likelihood:
    """−log-likelihood of (A, c, C, u): `H = C Cᵀ` with the logarithm of C's diagonal, gaps by `spans`.

    `affine`: c is free, else 0. `fixed`: the gaps, where they are known.
    """

    steps: StepMoments
    affine: bool
    spans: Spans
    fixed: Array | None = None

    @property
    def dimension(self) -> int:
        return (self.steps.grams.shape[1] - 1) // 2

    def split(self, p: Array) -> tuple[Array, Array, Array, Array]:
        """A, c, C and the gaps of a parameter vector."""
        d = self.dimension
        A, at = p[: d * d].reshape(d, d), d * d
        c = p[at : at + d] if self.affine else np.zeros(d)
        at += d * self.affine
        C = from_log_cholesky(p[at : at + d * (d + 1) // 2], d)
        at += d * (d + 1) // 2
        return A, c, C, self.spans.gaps(p[at:]) if self.fixed is None else self.fixed

    def __call__(self, p: Array) -> tuple[float, Array]:
        """Value and gradient."""
        d, n, G = self.dimension, self.steps.count, self.steps.grams
        A, c, C, g = self.split(p)
        theta, H = np.c_[A, c], C @ C.T
        cost = step_cost(theta, H, g, np.full(len(g), n), n * G)
        if cost is None:
            return 1e15, np.zeros_like(p)
        value, drift, of_H, of_gaps = cost
        parts = [drift[:, :d].ravel(), drift[:, d] if self.affine else np.empty(0)]
        parts.append(by_log_cholesky(of_H, C))
        if self.fixed is None:
            parts.append(self.spans.pull_back(g, of_gaps))
        return value, np.concatenate(parts)

    def maximise(self, A: Array, c: Array, H: Array, gaps: Array) -> Irregular:
        """A local maximum near a start, e.g. Euler's estimate; drifts too fast to follow are slowed."""
        speed = np.abs(van_loan_matrix(np.c_[A, c], H)).sum(axis=0).max() * gaps.max()
        A, c = (each * min(1.0, REACH / 10 / max(speed, 1e-300)) for each in (A, c))
        start = [A.ravel(), c if self.affine else np.empty(0), log_cholesky(H)]
        if self.fixed is None:
            start.append(np.log(gaps))
        options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 1e-10, "gtol": 1e-5}
        found = minimize(self, np.concatenate(start), jac=True, method="L-BFGS-B", options=options)
        A, c, C, g = self.split(found.x)
        return Irregular(A, c, C, g, found.x, float(found.fun))

    def information(self, p: Array) -> Array:
        """Observed information: central differences of the gradient."""
        step = 1e-5 * np.maximum(1.0, np.abs(p))
        rows = []
        for j, h in enumerate(step):
            e = np.zeros_like(p)
            e[j] = h
            rows.append((self(p + e)[1] - self(p - e)[1]) / (2 * h))
        J = np.array(rows)
        return (J + J.T) / 2
