"""A quadratic drift: `x_{t+1} = x_t + c + B φ(x_t) + e_t` with φ(x) = (x, x xᵀ), in both directions.

Saturating growth, epidemics, predators and prey: to linear models their curvature looks like momentum, and the direction that it
favours depends on the stretch of the path that was observed. Deterministic paths reversed are of the same kind; what reveals
the direction is where noise accumulates. The p-value is the larger of two: by simulation from the reverse's fit with its own
start (a quadratic step may diverge, so simulated states are held within the range of the data), and by a randomisation test in
which each trajectory is randomly time-reversed. Stationary fits are no null here: they leave the observed range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.candidates.regression import RegressionFit, fit_regression
from retrace_sde.evidence.closed_form.null_simulation import SimulatedP, staged
from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.io.arrays import Array

MAX_VARIABLES, STEPS_PER_COEFFICIENT = 6, 10
"""Variables up to which products of two are regressors, and steps needed for each coefficient of a variable."""

RANGE_MARGIN = 0.5
"""How far simulated states may leave the range of the data, as a share of it."""


@dataclass(frozen=True)
class QuadraticDrift:
    """Where it explains more than every linear model, in both directions, it decides the direction.

    Noise that is not Gaussian makes the reverse alone look curved: so both directions must prefer it.
    """

    kind: str = CandidateKind.CURVED
    meaning: str = "a step is a quadratic function of the last value"
    allows: str = "a quadratic drift"
    remedy: str = ""

    def applies(self, along: CandidatesAlong) -> bool:
        panels = along.whole_panels
        return panels is not None and along.affine and enough(panels)

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        panels = along.panels
        assert panels is not None  # it applies
        one, two = (each.log_likelihoods[0] for each in fit_quadratic(panels))
        found = CandidateFit.of_trajectories(
            self.kind, one, two, quadratic_penalty(panels), Role.OVERRULE
        )
        volume = panels.log_volume
        first, second = found.log_likelihoods
        return replace(
            found,
            log_likelihoods=(first - volume, second - volume),
            test=lambda rng, alpha: quadratic_test(panels, rng, alpha=alpha),
        )

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


QUADRATIC_DRIFT = QuadraticDrift()


def enough(panels: Panels) -> bool:
    """There are steps enough for a quadratic drift, and no value is missing."""
    n, T, d = panels.x.shape[1:]
    whole = panels.lengths is None and panels.filled is None
    return (
        whole
        and d <= MAX_VARIABLES
        and n * (T - 1) >= STEPS_PER_COEFFICIENT * (d * (d + 3) // 2 + 1)
    )


def fit_quadratic(panels: Panels) -> tuple[RegressionFit, RegressionFit]:
    """The fit to every panel as it stands, and to its reverse; fitted once, and kept with the panels."""
    if CandidateKind.CURVED not in panels.fits:
        both = (_fitted(panels, panels.x), _fitted(panels, panels.x[:, :, ::-1]))
        panels.fits[CandidateKind.CURVED] = both
    found: tuple[RegressionFit, RegressionFit] = panels.fits[CandidateKind.CURVED]
    return found


def quadratic_penalty(panels: Panels) -> float:
    """Of the coefficients and the noise of a quadratic step."""
    n, T, d = panels.x.shape[1:]
    return penalty(Block(d * (d * (d + 3) / 2 + 1) + d * (d + 1) / 2, n * (T - 1)))


def quadratic_test(panels: Panels, rng: np.random.Generator, *, alpha: float) -> SimulatedP:
    """The larger p-value of one panel's ratio: under the reverse's fit, and under random time reversals."""
    both, x = fit_quadratic(panels), panels.x[0]
    ratio = _ratios(both)[0]
    rival = both[1 if ratio >= 0 else 0]

    def of_rival(size: int) -> Array:
        drawn = _simulated(rival, x, size, rng)
        return -_ratios(fit_quadratic(Panels(drawn)))

    def reversed_at_random(size: int) -> Array:
        stays = rng.random((size, len(x), 1, 1)) < 0.5
        return np.abs(_ratios(fit_quadratic(Panels(np.where(stays, x, x[:, ::-1])))))

    nothing = staged(reversed_at_random, abs(ratio), alpha=alpha)
    if nothing.clear(alpha) and nothing.p_value > alpha:
        return nothing
    return max(nothing, staged(of_rival, abs(ratio), alpha=alpha))


def _ratios(both: tuple[RegressionFit, RegressionFit]) -> Array:
    one, two = (each.log_likelihoods.sum(axis=1) for each in both)
    return np.asarray(one - two)


def _rows(x: Array) -> Array:
    """(x, x xᵀ, 1) of states (..., d)."""
    i, j = np.triu_indices(x.shape[-1])
    return np.concatenate([x, x[..., i] * x[..., j], np.ones((*x.shape[:-1], 1))], axis=-1)


def _fitted(panels: Panels, x: Array) -> RegressionFit:
    return fit_regression(panels, x, _rows(x[:, :, :-1]))


def _simulated(fit: RegressionFit, seen: Array, size: int, rng: np.random.Generator) -> Array:
    """New panels (size, n, T, d) in the direction of a fit, within the range of the data."""
    n, T = seen.shape[:2]
    low, high = seen.min(axis=(0, 1)), seen.max(axis=(0, 1))
    low, high = low - RANGE_MARGIN * (high - low), high + RANGE_MARGIN * (high - low)
    pool, x = fit.pool, fit.start.draw(size, n, rng)
    found = [x]
    for _ in range(T - 1):
        e = pool[rng.integers(len(pool), size=(size, n))]
        x = np.clip(x + _rows(x) @ fit.theta[0] + e, low, high)
        found.append(x)
    return np.stack(found, axis=2)
