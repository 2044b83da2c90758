"""A drift that bends: `x_{t+1} = x_t + c + B φ(x_t) + e_t` with φ(x) = (x, x xᵀ), run both ways round.

Growth that saturates, epidemics, predators and prey: to linear models their curvature looks like momentum, and which way it leans then
hangs on the stretch of the course that was seen. Deterministic courses run backwards are of the same kind; what tells the
direction is where noise gathers. The p-value is the larger of two: by simulation from the reverse's fit with its own start (a
quadratic step may run away, so that simulated states are held within the range of the data), and by trajectories turned round by
lot, which a process without a direction would not show. Fits at rest are no null here: beyond the course seen they run elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.evidence.direction.linear import RIDGE, Panels
from retrace_sde.evidence.direction.null_simulation import Simulated, staged
from retrace_sde.fit.start_law import Starts, starts
from retrace_sde.io.arrays import Array

MOST, ROWS = 6, 10
"""Variables up to which products of two are looked at, and steps needed for each coefficient of a variable."""

BEYOND = 0.5
"""How far simulated states may leave the range of the data, as a share of it."""


@dataclass(frozen=True, eq=False)
class Course:
    """A bending drift fitted to B panels one way round: log-likelihoods (B, n), start included.

    `theta` (B, p, d) multiplies rows (x, x xᵀ, 1); `residuals` (B, n, T − 1, d).
    """

    log_likelihoods: Array
    theta: Array
    residuals: Array
    start: Starts

    @property
    def pool(self) -> Array:
        """Residuals of the first panel to draw from, as wide as what was estimated left them too narrow."""
        e = self.residuals[0].reshape(-1, self.residuals.shape[3])
        return np.asarray((e - e.mean(axis=0)) * np.sqrt(len(e) / (len(e) - self.theta.shape[1])))


def bends(panels: Panels) -> bool:
    """There are numbers enough for a drift that bends, all of them seen."""
    n, T, d = panels.x.shape[1:]
    whole = panels.lengths is None and panels.filled is None
    return whole and d <= MOST and n * (T - 1) >= ROWS * (d * (d + 3) // 2 + 1)


def courses(panels: Panels) -> tuple[Course, Course]:
    """The fit to every panel as it stands, and to its reverse."""
    return _fitted(panels, panels.x), _fitted(panels, panels.x[:, :, ::-1])


def curved_price(panels: Panels) -> float:
    """Schwarz' price in nats."""
    n, T, d = panels.x.shape[1:]
    k = d * (d * (d + 3) / 2 + 1) + d * (d + 1) / 2
    return float(0.5 * k * np.log(n * (T - 1)))


def curved_test(panels: Panels, rng: np.random.Generator, *, alpha: float) -> Simulated:
    """The larger p-value of one panel's ratio: if the reverse were true, and if there were no direction."""
    both, x = courses(panels), panels.x[0]
    ratio = _ratios(both)[0]
    rival = both[1 if ratio >= 0 else 0]

    def of_rival(size: int) -> Array:
        drawn = _simulated(rival, x, size, rng)
        return -_ratios(courses(Panels(drawn)))

    def by_lot(size: int) -> Array:
        stays = rng.random((size, len(x), 1, 1)) < 0.5
        return np.abs(_ratios(courses(Panels(np.where(stays, x, x[:, ::-1])))))

    nothing = staged(by_lot, abs(ratio), alpha=alpha)
    if nothing.clear(alpha) and nothing.p_value > alpha:
        return nothing
    return max(nothing, staged(of_rival, abs(ratio), alpha=alpha))


def _ratios(both: tuple[Course, Course]) -> Array:
    one, two = (each.log_likelihoods.sum(axis=1) for each in both)
    return np.asarray(one - two)


def _rows(x: Array) -> Array:
    """(x, x xᵀ, 1) of states (..., d)."""
    i, j = np.triu_indices(x.shape[-1])
    return np.concatenate([x, x[..., i] * x[..., j], np.ones((*x.shape[:-1], 1))], axis=-1)


def _fitted(panels: Panels, x: Array) -> Course:
    B, n, T, d = x.shape
    phi = _rows(x[:, :, :-1]).reshape(B, n * (T - 1), -1)
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
    return Course(total, theta, e.reshape(B, n, T - 1, d), start)


def _simulated(course: Course, seen: Array, size: int, rng: np.random.Generator) -> Array:
    """New panels (size, n, T, d), the way that a course runs, within the range of those seen."""
    n, T = seen.shape[:2]
    low, high = seen.min(axis=(0, 1)), seen.max(axis=(0, 1))
    low, high = low - BEYOND * (high - low), high + BEYOND * (high - low)
    pool, x = course.pool, course.start.draw(size, n, rng)
    found = [x]
    for _ in range(T - 1):
        e = pool[rng.integers(len(pool), size=(size, n))]
        x = np.clip(x + _rows(x) @ course.theta[0] + e, low, high)
        found.append(x)
    return np.stack(found, axis=2)
