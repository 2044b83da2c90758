"""The direction's p-value by null simulation: panels from models in which calling the direction would be wrong.

Vuong's statistic ignores how the estimated start law and parameters bias the ratio, and must then be conservative. Here the
ratio is compared with those of panels simulated from (i) the reverse's fit with its own start law and (ii) the fit of each
direction started from its stationary law, where it has one; then in absolute value, since a stationary process has no
direction. Residuals are resampled, so that heavy tails count; both directions are refitted every time. The largest p-value
counts: (i) alone would call a direction from the start law's own noise. Nulls are simulated in turn, each while its p-value is
near the level; simulation stops once a null reproduces the ratio.

The ratio may come from another model than the null panels do. With measurement noise a fit has no closed form: null panels are
then simulated from the noisy model, and the ratio is that of the nearest closed form. Where values are missing, the same cells
are hidden in every simulated panel, and drawn again as those of the data were (`missing_draws`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov

from retrace_sde.evidence.closed_form.linear import DirectedFit, each_trajectory, fit_directions
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.io.arrays import Array
from retrace_sde.progress import steps

STAGES = (19, 99, 399)
"""Simulations of each null: more where the p-value is too near the level to tell."""

SIMULATED_NUMBERS = 2_000_000
"""Numbers (B n T d) simulated at a time."""

GAUSSIAN_POOL = 5000
"""Residuals drawn to represent a Gaussian law."""


class SimulatedP(NamedTuple):
    """A p-value and its own Monte-Carlo error (one standard deviation)."""

    p_value: float
    p_error: float

    def clear(self, alpha: float) -> bool:
        """Too far from the level for more simulations to matter."""
        return abs(self.p_value - alpha) > 3 * self.p_error


class NullSimulator(NamedTuple):
    """A fit to simulate panels from, its pool of residuals, and whether it starts in its stationary law.

    `noise` (d, d), where there is measurement noise, is a root of its covariance, as it multiplies rows.
    """

    way: DirectedFit
    pool: Array
    stationary: bool = False
    noise: Array | None = None

    @property
    def stable(self) -> bool:
        """It has a stationary law."""
        return float(np.abs(np.linalg.eigvals(companion(self.way))).max()) < 1 - 1e-6

    def panels(self, like: Panels, size: int, rng: np.random.Generator) -> Panels:
        """New panels in the data's direction, missing cells of the data drawn again.

        A stationary one is simulated for T steps before the panel starts, so that resampled residuals reach the start.
        """
        n, T, d = like.x.shape[1:]
        first, level = (_at_rest if self.stationary else _from_start)(self.way, size, n, rng)
        F, lags = self.way.step[0], self.way.form.lags
        T = 2 * T if self.stationary else T
        x = np.empty((T, size * n, d))
        x[lags:] = self.pool[rng.integers(len(self.pool), size=(T - lags, size * n))]
        x[lags:] += np.broadcast_to(level, (size, n, d)).reshape(-1, d)
        first = first.reshape(size * n, -1)
        x[0] = first[:, :d]
        if lags == 2:
            x[1] = x[0] + first[:, d:]
        for t in range(lags, T):
            x[t] += x[t - 1] @ F[:d]
            if lags == 2:
                x[t] += x[t - 2] @ F[d:]
        x = (x[T // 2 :] if self.stationary else x).reshape(-1, size, n, d)
        if self.noise is not None:
            x = x + rng.standard_normal(x.shape) @ self.noise
        x = x.transpose(1, 2, 0, 3)
        x = like.turned(x) if self.way.backwards else np.ascontiguousarray(x)
        if like.filled is not None:
            x = like.filled.fill(x, rng, at_rest=self.stationary)
        return Panels(x, like.lengths)


def simulated_test(
    panels: Panels,
    form: Form,
    rng: np.random.Generator,
    *,
    alpha: float,
    simulators: tuple[NullSimulator, NullSimulator] | None = None,
) -> SimulatedP:
    """Of one panel, by a form's ratio; `simulators`: of the order and of its reverse, where they are not the form's own."""
    both = fit_directions(panels, form)
    ratio = float(both[0].total[0] - both[1].total[0])
    if simulators is None:
        simulators = (
            NullSimulator(both[0], pool(panels, both[0])),
            NullSimulator(both[1], pool(panels, both[1])),
        )
    worst = SimulatedP(0.0, 0.0)
    for simulator in nulls(simulators, favoured=0 if ratio >= 0 else 1):
        found = _p_value_under(simulator, form, panels, ratio, rng, alpha=alpha)
        worst = max(worst, found)
        if worst.clear(alpha) and worst.p_value > alpha:
            break
    return worst


def _p_value_under(
    simulator: NullSimulator,
    form: Form,
    like: Panels,
    ratio: float,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> SimulatedP:
    """The share of a simulator's panels whose ratio reaches the one observed; at rest, in either direction."""

    def drawn(size: int) -> Array:
        found = _ratios(simulator, form, like, size, rng)
        return np.abs(found) if simulator.stationary else found * np.sign(ratio)

    return staged(drawn, abs(ratio), alpha=alpha)


def staged(drawn: Callable[[int], Array], least: float, *, alpha: float) -> SimulatedP:
    """The share of drawn numbers that reach `least`: drawn in stages, until the p-value is clear of the level."""
    reached, done, found = 0, 0, SimulatedP(1.0, 1.0)
    for stage in steps(STAGES, "testing the direction of time"):
        reached, done = reached + int((drawn(stage - done) >= least).sum()), stage
        p = (1 + reached) / (1 + done)
        found = SimulatedP(p, float(np.sqrt(p * (1 - p) / done)))
        if found.clear(alpha):
            break
    return found


def random_reversal_test(
    panels: Panels, form: Form, rng: np.random.Generator, *, alpha: float
) -> SimulatedP:
    """Randomisation test: each trajectory is randomly time-reversed; how often the ratio is as large, in either direction.

    Exact for independent trajectories of any time-reversible process: no model is assumed.
    """
    x, back = panels.x, panels.turned(panels.x)
    most = max(1, SIMULATED_NUMBERS // x.size)

    def drawn(size: int) -> Array:
        found = []
        for begin in range(0, size, most):
            stays = rng.random((min(most, size - begin), x.shape[1], 1, 1)) < 0.5
            found.append(_total_ratios(replace(panels, x=np.where(stays, x, back)), form))
        return np.abs(np.concatenate(found))

    return staged(drawn, abs(float(_total_ratios(panels, form)[0])), alpha=alpha)


def _total_ratios(panels: Panels, form: Form) -> Array:
    """Log-likelihood ratios of panels against their reverses."""
    one, two = fit_directions(panels, form)
    return np.asarray(one.total - two.total)


def nulls(simulators: tuple[NullSimulator, NullSimulator], *, favoured: int) -> list[NullSimulator]:
    """Each direction from its stationary law, and the reverse of the favoured direction from its own start."""
    at_rest = [each._replace(stationary=True) for each in simulators if each.stable]
    return [*at_rest, simulators[1 - favoured]]


def _ratios(
    simulator: NullSimulator, form: Form, like: Panels, size: int, rng: np.random.Generator
) -> Array:
    """The ratios of simulated panels, in the data's direction against the reverse."""
    most = max(1, SIMULATED_NUMBERS // like.x[0].size)
    found = []
    for begin in range(0, size, most):
        some = simulator.panels(like, min(most, size - begin), rng)
        found.append(_total_ratios(some, form))
    return np.concatenate(found)


def pool(panels: Panels, way: DirectedFit) -> Array:
    """Residuals to draw from, (N, d): centred, and scaled up for the degrees of freedom used."""
    e = each_trajectory(panels, way)[1][0]
    lags, d = way.form.lags, e.shape[2]
    found = e[panels.live(lags) > 0]
    used = lags * d + way.form.affine + (e.shape[0] if way.form.levels else 0)
    N = len(found)
    return np.asarray((found - found.mean(axis=0)) * np.sqrt(N / max(N - used, N / 4)))


def companion(way: DirectedFit) -> Array:
    """The step of the state (x_t, x_{t−1}), as it multiplies columns."""
    lags, d = way.form.lags, way.H.shape[1]
    step = np.zeros((lags * d, lags * d))
    step[:d] = way.step[0].T
    step[d:, : (lags - 1) * d] = np.eye((lags - 1) * d)
    return step


def _from_start(
    way: DirectedFit, size: int, n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """First states from the start law, and each subject's constant given its own."""
    first = way.start.draw(size, n, rng)
    if way.of_start is None or way.omega is None:
        return first, way.c[0]
    known = np.concatenate([np.ones((size, n, 1)), first], axis=2)
    noise = rng.standard_normal((size, n, way.H.shape[1])) @ _root(way.omega[0])
    return first, known @ way.of_start[0] + noise


def _at_rest(way: DirectedFit, size: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """First states and constants from the stationary law."""
    lags, d = way.form.lags, way.H.shape[1]
    step = companion(way)
    noise = np.zeros_like(step)
    noise[:d, :d] = way.H[0]
    spread = _root(solve_discrete_lyapunov(step, noise))
    level = np.broadcast_to(way.c[0], (size, n, d))
    if way.of_start is not None and way.omega is not None:
        slope = way.of_start[0][1:]
        mean, width = way.start.moments
        root = _root(slope.T @ width @ slope + way.omega[0])
        level = way.of_start[0][0] + mean @ slope + rng.standard_normal((size, n, d)) @ root
    F = way.step[0].reshape(lags, d, d).sum(axis=0)
    centre = level @ np.linalg.inv(np.eye(d) - F)
    # The newest slice comes first in the state, the oldest in the start.
    state = rng.standard_normal((size, n, lags * d)) @ spread + np.tile(centre, lags)
    if lags == 1:
        return state, level
    old, new = state[..., d:], state[..., :d]
    return np.concatenate([old, new - old], axis=2), level


def noisy_simulator(law: DirectedFit, R: Array, rng: np.random.Generator) -> NullSimulator:
    """A simulator with measurement noise R (d, d) and Gaussian residuals: those of hidden states cannot be resampled."""
    residuals = rng.standard_normal((GAUSSIAN_POOL, len(R))) @ _root(law.H[0])
    return NullSimulator(law, residuals, noise=_root(R) if R.any() else None)


def _root(S: Array) -> Array:
    """A root of a matrix that may be singular, as it multiplies rows."""
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * vectors.T)
