"""Exact likelihood of a linear SDE observed at irregular times, common to all trajectories.

Over a gap g the SDE `dX = (A X + c) dt + G dW` is exactly `X' = F X + s + N(0, Q)` with `F = e^{A g}` and
`Q = ∫₀^g e^{Au} H e^{Aᵀu} du`: one exponential per gap (Van Loan). The likelihood needs only the second moments
of (x, 1, x' − x) at each step, so the number of trajectories does not enter. Parameters and, if asked for, gaps
are found together by L-BFGS with the exact gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.fit.information import (
    by_log_cholesky,
    from_log_cholesky,
    lbfgs,
    log_cholesky,
)
from retrace_sde.fit.statespace.transitions import LARGEST_GROWTH, Cost, step_cost, van_loan_matrix
from retrace_sde.io.arrays import Array, Indices, Mask
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
class StepLikelihood:
    """−log-likelihood of exact steps, without its constant, and its gradient by (free entries of Θ, log-Cholesky H, log gaps).

    `grams` (K, p + d, p + d) are of (x, v, η) with η about the coefficients `about`, of `counts` (K,) steps across `gaps` (K,);
    `spans`: the gaps are free, in these stretches, in units of `dt`. Entries of Θ that are not `free` are `known`. Coordinates
    are those of Θ in units `unit` (d, p), and `root` times those of H in units `rate` (d,) and of the gaps.
    """

    grams: Array
    counts: Array
    gaps: Array
    about: Array
    free: Mask
    known: Array
    unit: Array
    rate: Array
    root: float = 1.0
    dt: float = 1.0
    spans: Spans | None = None

    def pack(self, theta: Array, H: Array, gaps: Array | None = None) -> Array:
        parts = [(theta / self.unit)[self.free], log_cholesky(H / self._scale) * self.root]
        if self.spans is not None and gaps is not None:
            parts.append(np.log(gaps / self.dt) * self.root)
        return np.concatenate(parts)

    @property
    def _scale(self) -> Array:
        """The unit of H."""
        return np.outer(self.rate, self.rate)

    def split(self, x: Array) -> tuple[Array, Array, Array]:
        """Θ, H and the gaps of a vector."""
        theta, C, gaps = self._split(x)
        return theta, C @ C.T * self._scale, gaps

    def _split(self, x: Array) -> tuple[Array, Array, Array]:
        d = len(self.known)
        k, q = int(self.free.sum()), d * (d + 1) // 2
        theta = self.known.copy()
        theta[self.free] = x[:k] * self.unit[self.free]
        C = from_log_cholesky(x[k : k + q] / self.root, d)
        if self.spans is None:
            return theta, C, self.gaps
        return theta, C, self.dt * self.spans.gaps(x[k + q :] / self.root)

    def cost(self, theta: Array, H: Array, gaps: Array) -> Cost | None:
        """The value, and its derivatives by Θ, H and the gaps (0 where no step crosses one); None beyond reach."""
        live = self.counts > 0
        parts = gaps, self.counts, self.grams, self.about
        found = step_cost(theta, H, *(part[live] for part in parts))
        if found is None:
            return None
        full = np.zeros(len(live))
        full[live] = found.gaps
        return found._replace(gaps=full)

    def __call__(self, x: Array) -> tuple[float, Array]:
        """Value and gradient."""
        theta, C, gaps = self._split(x)
        found = self.cost(theta, C @ C.T * self._scale, gaps)
        if found is None:
            return 1e15, np.zeros_like(x)
        of_C = by_log_cholesky(found.diffusion * self._scale, C)
        parts = [(found.theta * self.unit)[self.free], of_C / self.root]
        if self.spans is not None:
            of_u = self.spans.pull_back(gaps / self.dt, found.gaps * self.dt)
            parts.append(of_u / self.root)
        return found.value, np.concatenate(parts)


def step_likelihood(
    steps: StepMoments, gaps: Array, spans: Spans | None, *, affine: bool
) -> StepLikelihood:
    """That of (A, c) in the coordinates of step moments, time in units of the mean gap; `spans`: of free gaps."""
    d, S = len(steps.scale), len(steps.grams)
    free = np.ones((d, d + 1), dtype=bool)
    free[:, d] = affine
    sums = steps.count * steps.grams, np.full(S, float(steps.count)), gaps
    known, unit = np.zeros((S, d, d + 1)), np.ones((d, d + 1))
    return StepLikelihood(*sums, known, free, known[0], unit, unit[:, 0], spans=spans)


def maximum(likelihood: StepLikelihood, theta: Array, H: Array, gaps: Array) -> Array:
    """The vector of a local maximum near a start, e.g. Euler's estimate; drifts too fast to follow are slowed."""
    speed = np.abs(van_loan_matrix(theta, H)).sum(axis=0).max() * gaps.max()
    start = likelihood.pack(theta * min(1.0, LARGEST_GROWTH / 10 / max(speed, 1e-300)), H, gaps)
    options = {"maxiter": 2000, "maxfun": 4000, "maxcor": 30, "ftol": 1e-10, "gtol": 1e-5}
    return np.asarray(lbfgs(likelihood, start, **options).x)
