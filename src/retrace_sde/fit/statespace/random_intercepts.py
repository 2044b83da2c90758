"""Random intercepts behind noise, missing values and uneven gaps: an intercept is a state that never changes.

    dX = (A X + c_j + B u) dt + G dW,   dc_j = 0,   Y = X + N(0, R),   (X_0, c_j) ~ N(m, P):

a joint Gaussian of first state and intercept is `c | x₀ ~ N(μ + Γ x₀, Ω)` with Γ = P_cx P_xx⁻¹. The smoother's sums, of (x, c, u, Δx), are those of
inputs c whose effect is known to be 1; so `finish` finds the maximum, and its slopes, trajectory by trajectory, give the errors.

The limit: over a total time that is short beside that of mean reversion a level and slow mean reversion look alike. R is diagonal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from retrace_sde.fit.information import observed_information
from retrace_sde.fit.random_intercepts import LevelFit, RandomIntercepts
from retrace_sde.fit.regression import StandardErrors, Through
from retrace_sde.fit.scores import SANDWICH_TRAJECTORIES, errors_of_influences
from retrace_sde.fit.statespace import em_steps as steps
from retrace_sde.fit.statespace.ascent.climb import Ascent
from retrace_sde.fit.statespace.ascent.quasi_newton import Coordinates, finish
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.parameters import Parameters, Setup
from retrace_sde.fit.statespace.smoother import states
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data
from retrace_sde.process.sde import Gaussian

MIN_LEVEL_VARIANCE = 0.05
"""τ Ω, in units of H, that a search begins with at least: a variance of zero has no slope."""

MIN_INFORMATION = 1e-4
"""Information on a coordinate, of about 1 where states are known, below which it is held where it is."""


@dataclass(frozen=True, eq=False)
class LevelLaw(Parameters):
    """Θ = (A, 1, B), H, R of the d states, and p₀ of the 2 d states (x, c)."""

    def steps(self, gaps: Array) -> StepModel:
        """The steps of (x, c): nothing is added to c, so that covariances cannot be inverted."""
        of_x, d = super().steps(gaps), len(self.H)
        F, S, Q = of_x.matrix, of_x.inputs, of_x.covariance
        both, inputs = np.zeros((len(F), 2 * d, 2 * d)), np.zeros((len(F), 2 * d, S.shape[2] - d))
        both[:, :d, :d], both[:, :d, d:], both[:, d:, d:] = F, S[:, :, :d], np.eye(d)
        inputs[:, :d] = S[:, :, d:]
        noise = np.zeros_like(both)
        noise[:, :d, :d] = Q
        variances = np.diag(np.r_[np.diag(self.R), np.ones(d)])  # c is never seen
        return StepModel(both, inputs, noise, variances, self.initial, regular=False)


@dataclass(frozen=True, eq=False)
class HiddenLevels(RandomIntercepts):
    """Random intercepts where states are not all seen as they are; likelihoods are those of what was observed.

    `states` (n, T, d) are the smoothed ones, `law` that of (x, c), `first_root` the unit of its p₀.
    """

    states: Array
    law: Parameters
    seen: Observations
    ascent: Ascent
    expected: Expected
    first_root: Array

    @property
    def initial(self) -> Gaussian:
        """The law of the first states."""
        d, p0 = len(self.law.H), self.law.initial
        return Gaussian(p0.mean[:d], p0.covariance[:d, :d])

    @property
    def alike(self) -> Parameters:
        """The law of subjects moved to where they are alike."""
        own, move = self.law, np.c_[np.eye(len(self.law.H)), self.shift]
        initial = Gaussian(self.initial.mean, move @ own.initial.covariance @ move.T)
        return Parameters(self.coefficients, own.H, own.R, initial, own.gaps, scheme=own.scheme)

    def drawn(self, rng: np.random.Generator) -> Array:
        found = states(self.seen, self.law.steps(self.seen.classes.gaps), times=1)
        d, means = len(self.law.H), found.means
        values, vectors = np.linalg.eigh(found.covariances[found.pattern, 0, d:, d:])
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        noise = rng.standard_normal((len(means), d))
        return np.asarray(means[:, 0, d:] + np.einsum("nij,nj->ni", roots, noise))


def seen_with_levels(seen: Observations, *, offset: bool) -> Observations:
    """Observations of (x, c): nothing is seen of c, which stands for the offset among the inputs."""
    none = np.full_like(seen.values, np.nan)
    inputs = seen.inputs
    if inputs is not None:
        inputs = np.ascontiguousarray(inputs[:, :, int(offset) :])
    return replace(seen, values=np.concatenate([seen.values, none], axis=2), inputs=inputs)


def fit_hidden_levels(
    seen: Observations,
    ascent: Ascent,
    start: Parameters,
    levels: LevelFit | None = None,
    needed: float = -np.inf,
) -> HiddenLevels:
    """Levels by maximum likelihood, from subjects who are alike, and from levels of their smoothed states where there are some.

    `seen` is of (x, c); `ascent` and `start` are those of subjects who are alike: Θ = (A, c, B). A search that will not reach the
    log-likelihood `needed` is given up.
    """
    wide = replace(ascent, setup=_setup(ascent.setup))
    found = []
    for each in (None, levels) if levels is not None else (None,):
        begin = _begin(seen, start, each)
        try:
            root = np.linalg.cholesky(begin.initial.covariance)
            expected = expect(seen, begin)
        except np.linalg.LinAlgError:
            # Levels of first states without spread in some direction are determined up to rounding: no place to begin.
            if each is None:
                raise
            continue
        end = finish(lambda law: expect(seen, law), wide, begin, expected, needed=needed)
        found.append((end, np.asarray(root, dtype=np.float64)))
    end, root = max(found, key=lambda each: each[0].expected.likelihood)
    return judged_levels(seen, wide, end.parameters, root, converged=end.converged)


def refit_levels(found: HiddenLevels, rows: Indices) -> HiddenLevels:
    """The same for drawn subjects, from where the search for all ended."""
    drawn = found.seen.some(rows)
    d, root = len(found.law.H), found.first_root
    P = found.law.initial.covariance + MIN_LEVEL_VARIANCE * np.diag(
        np.r_[np.zeros(d), np.diag(root @ root.T)[d:]]
    )
    begin = replace(found.law, initial=Gaussian(found.law.initial.mean, P))
    end = finish(lambda law: expect(drawn, law), found.ascent, begin, expect(drawn, begin))
    return judged_levels(drawn, found.ascent, end.parameters, root, converged=end.converged)


def judged_levels(
    seen: Observations, ascent: Ascent, law: Parameters, root: Array, *, converged: bool
) -> HiddenLevels:
    """A fit of given parameters: each trajectory's log-likelihood, intercept and states."""
    d, m, P = len(law.H), law.initial.mean, law.initial.covariance
    smoothed = states(seen, law.steps(seen.classes.gaps), times=1)
    spreads, means = smoothed.covariances[smoothed.pattern, 0, d:, d:], smoothed.means
    errors = np.sqrt(np.maximum(np.diagonal(spreads, axis1=1, axis2=2), 0.0))
    slope = np.asarray(np.linalg.solve(P[:d, :d], P[:d, d:]).T)
    between = P[d:, d:] - slope @ P[:d, d:]
    B = np.c_[law.theta[:, :d], m[d:], law.theta[:, 2 * d :]]
    shown = B, law.H, m[d:] - slope @ m[:d], slope, (between + between.T) / 2
    own = smoothed.log_likelihood, means[:, 0, d:], errors, converged, means[:, :, :d]
    extra, expected = d * d + d * (d + 1) // 2, expect(seen, law)
    return HiddenLevels(*shown, extra, *own, law, seen, ascent, expected, root)


def expect(seen: Observations, law: Parameters) -> Expected:
    """The E-step: sums of (x, c, u, Δx), of the noise of x, and the law of the first (x, c)."""
    found, d = steps.expect(seen, law), len(law.H)
    kept = found.grams.shape[1] - d  # Δc = 0
    return replace(
        found,
        grams=found.grams[:, :kept, :kept],
        about=found.about[:, :d],
        squares=found.squares[:d],
        seen=found.seen[:d],
    )


def _setup(alike: Setup) -> Setup:
    """Θ = (A, 1, B) in place of (A, c, B)."""
    d = len(alike.free)
    one, free = np.eye(d), np.zeros((d, d), dtype=bool)
    of_A, of_B = alike.free[:, :d], alike.free[:, d + 1 :]
    known = np.concatenate([alike.known[:, :d], one, alike.known[:, d + 1 :]], axis=1)
    return replace(alike, free=np.concatenate([of_A, free, of_B], axis=1), known=known)


def _begin(seen: Observations, start: Parameters, levels: LevelFit | None) -> LevelLaw:
    """A law of levels near one of subjects who are alike; A and levels those of their smoothed states, where given."""
    d, p0 = len(start.H), start.initial
    A, c, slope, omega = start.theta[:, :d], start.theta[:, d], np.zeros((d, d)), np.zeros((d, d))
    if levels is not None:
        A, slope, omega = levels.drift, levels.slope, levels.between
        c = levels.mean + slope @ p0.mean
    time = float(start.crossed(seen.classes.gaps)[seen.classes.index].sum(axis=1).mean())
    omega = omega + MIN_LEVEL_VARIANCE / time * start.H
    cross = p0.covariance @ slope.T
    P = np.block([[p0.covariance, cross], [cross.T, slope @ cross + omega]])
    theta = np.concatenate([A, np.eye(d), start.theta[:, d + 1 :]], axis=1)
    return LevelLaw(
        theta, start.H, start.R, Gaussian(np.r_[p0.mean, c], P), start.gaps, scheme=start.scheme
    )


# -- errors ----------------------------------------------------------------------------------------------------------


def hidden_level_errors(
    found: HiddenLevels, data: Data
) -> Callable[[Through | None], StandardErrors]:
    """Errors of (A, c̄, B) and of H, or of what moves with them: the sandwich over subjects, or groups, of full information, p₀'s included."""
    some = data.whole_groups(SANDWICH_TRAJECTORIES)
    few = data.take(some)
    influences = hidden_level_influences(found, some, data.n_groups)
    of_B, of_H = (few.by_group(each) for each in influences)
    return partial(errors_of_influences, of_B, of_H, total=data.n_groups)


def hidden_level_influences(found: HiddenLevels, some: Indices, n: int) -> tuple[Array, Array]:
    """By how much leaving out each of some subjects moves (A, c̄, B), (m, d, p), and H, (m, d, d); signs reversed. n subjects, or
    groups of them, are independent.

    The information is observed, by central differences of the slopes: A, Ω, H and R trade off. Coordinates, and combinations of them, that
    the data do not identify, such as those of an Ω that is zero, are held.
    """
    at = Coordinates(found.ascent, found.law, found.expected, found.first_root)
    here = at.begin
    J = observed_information(lambda x: _slopes(at, found.seen, x), here, np.full(len(here), 1e-3))
    inverse = informed(J)
    scores = np.stack([_slopes(at, found.seen.some(np.array([j])), here) for j in some])
    # c̄ and Γ are told by subjects, not steps: 2 d + 1 of the n degrees of freedom of each equation
    left = max(n - 2 * len(found.law.H) - 1, 1)
    theta, of_H, of_mean = at.moved(scores @ inverse * n / np.sqrt((n - 1) * left))
    d = len(found.law.H)
    of_B = np.concatenate([theta[:, :, :d], of_mean[:, d:, None], theta[:, :, 2 * d :]], axis=2)
    return of_B, of_H


def informed(J: Array) -> Array:
    """The inverse of an information on coordinates, and on combinations of them, that the data tell; 0 on others, which are held."""
    keep = np.diag(J) > MIN_INFORMATION
    values, vectors = np.linalg.eigh(J[np.ix_(keep, keep)])
    told = values > MIN_INFORMATION
    found = np.zeros_like(J)
    found[np.ix_(keep, keep)] = (vectors[:, told] / values[told]) @ vectors[:, told].T
    return found


def _slopes(at: Coordinates, seen: Observations, x: Array) -> Array:
    law = at.unpack(x)
    return at.slopes(law, expect(seen, law), x)
