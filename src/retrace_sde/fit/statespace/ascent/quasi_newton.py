"""The last stretch of a climb: quasi-Newton steps on the likelihood of what was observed.

Steps of EM shrink with the noise that they begin from, in proportion to its square: from a start with little noise they look as if they
had arrived (n = 40, T = 15, σ = .1: stopped at .03, 4 to 7 nats below the maximum). The E-step gives the gradient too: by Fisher's
identity that of the expected log-likelihood of states and observations, at the parameters it was taken with. With it quasi-Newton steps find
the maximum in about 50 passes of the smoother. R is its own coordinate, in which the likelihood is nearly a parabola.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.fit.information import (
    by_log_cholesky,
    by_log_factor,
    from_log_cholesky,
    lbfgs,
    log_factor,
)
from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.statespace.ascent.climb import Ascent, Climb, Expectation
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.parameters import Parameters, least_noise
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import optimize
from retrace_sde.process.sde import Gaussian

MAX_PASSES = 200
"""Passes of the smoother, at most."""

FLAT = 1e-2
"""Slope, in nats per standard error that known states would have, at which the search ends."""

RISE = 1e-4
"""Rise of the log-likelihood, in nats of one step, at which it ends."""

LATE_PASSES, HOPE = 10, 5.0
"""A likelihood is out of reach if it is more than a nat beyond what the last ten passes brought, five times over. Levels of subjects who are
alike were given up after 21 to 40 passes of 53 to 129, their gains 2 to 4 nats short of the end and 10 to 20 short of their price."""

LOWEST = -9.0
"""Logarithm of the least spread of a direction of p₀, beside where the search began: as good as none."""


def finish(
    expected_at: Expectation,
    ascent: Ascent,
    start: Parameters,
    expected: Expected,
    needed: float = -np.inf,
) -> Climb:
    """The maximum near a start; never below it. Given up where a log-likelihood `needed` is clearly out of reach."""
    at = Coordinates(ascent, start, expected)
    best, count, trail = (start, expected), 0, [expected.likelihood]

    def objective(x: Array) -> tuple[float, Array]:
        nonlocal best, count
        count += 1
        with np.errstate(all="ignore"):
            try:
                trial = at.unpack(x)
                found = expected_at(trial)
                slope = at.slopes(trial, found, x)
            except np.linalg.LinAlgError:  # a step too far
                return 1e15, np.zeros_like(x)
        if not np.isfinite(slope).all():
            return 1e15, np.zeros_like(x)
        if found.likelihood > best[1].likelihood:
            best = trial, found
        trail.append(best[1].likelihood)
        return -found.likelihood, -slope

    def look(_: Array) -> None:
        now = trail[-1]
        if len(trail) > 2 * LATE_PASSES and now + HOPE * (now - trail[-LATE_PASSES]) + 1 < needed:
            raise StopIteration

    rise = RISE / max(abs(expected.likelihood), 1.0)
    ends = {"maxfun": MAX_PASSES, "maxiter": MAX_PASSES, "ftol": rise, "gtol": FLAT}
    ended = lbfgs(objective, at.begin, bounds=at.bounds, callback=look, maxcor=30, **ends)
    return Climb(*best, [best[1].likelihood], bool(ended.success), count)


def finished(expected_at: Expectation, ascent: Ascent, found: Climb) -> Climb:
    """A climb with quasi-Newton steps at its end, unless it saw the top."""
    if found.top:
        return found
    end = finish(expected_at, ascent, found.parameters, found.expected)
    passes = found.evaluations + end.evaluations
    return replace(end, trace=[*found.trace, *end.trace], evaluations=passes)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Parameters about a start, each in units of about the standard error that known states would leave.

    Θ entry by entry; R itself, not below a share of what the SDE adds in one step; H and p₀ by `L C` with C lower triangular, its diagonal
    by logarithms, and L the Cholesky factor at the start (of p₀: `first_root`, where it is given).
    """

    ascent: Ascent
    start: Parameters
    expected: Expected
    first_root: Array | None = None

    @cached_property
    def _theta_unit(self) -> Array:
        setup = self.ascent.setup
        regressors = np.maximum(np.diag(self.expected.gram)[: setup.free.shape[1]], 1e-300)
        found: Array = np.sqrt(np.outer(np.diag(self.start.H), 1 / regressors))
        return found[setup.free]

    @cached_property
    def _noise_unit(self) -> Array:
        setup, start = self.ascent.setup, self.start
        return setup.noises(np.diag(start.H) * setup.dt + np.diag(start.R)) / self._root

    @cached_property
    def _roots(self) -> tuple[Array, Array]:
        first = self.first_root
        if first is None:
            first = np.asarray(np.linalg.cholesky(self.start.initial.covariance), dtype=np.float64)
        return np.asarray(np.linalg.cholesky(self.start.H), dtype=np.float64), first

    @property
    def _spans(self) -> Spans | None:
        """Of free gaps; None where gaps are known."""
        return None if self.start.gaps is None else self.ascent.spans

    @property
    def _root(self) -> float:
        return float(np.sqrt(self.expected.count))

    @property
    def _first_root(self) -> float:
        return float(np.sqrt(self.expected.trajectories))

    @cached_property
    def _sizes(self) -> list[int]:
        """How many entries are of Θ, R, H, p₀'s mean, its covariance, and the gaps."""
        setup, d = self.ascent.setup, len(self.start.H)
        k = len(self.start.initial.mean) if setup.initial is None else 0
        q = d * (d + 1) // 2 if setup.H is None else 0
        gaps = 0 if self.start.gaps is None or self._spans is None else len(self.start.gaps)
        return [len(self._theta_unit), setup.n_noises, q, k, k * (k + 1) // 2, gaps]

    def _split(self, x: Array) -> list[Array]:
        """The parts of vectors (…, size)."""
        return np.split(x, np.cumsum(self._sizes)[:-1], axis=-1)

    def moved(self, x: Array) -> tuple[Array, Array, Array]:
        """By how much small steps x (m, size) from the start change Θ (m, d, p), H (m, d, d) and the mean of p₀ (m, k)."""
        setup, (L, P) = self.ascent.setup, self._roots
        of_theta, _, of_H, of_mean, _, _ = self._split(x)
        theta = np.zeros((len(x), *setup.free.shape))
        theta[:, setup.free] = of_theta * self._theta_unit
        D = np.zeros((len(x), *L.shape))
        if self._sizes[2]:
            D[:, *np.tril_indices(len(L))] = of_H / self._root
        H = L @ (D + D.transpose(0, 2, 1)) @ L.T
        return theta, H, of_mean @ P.T / self._first_root

    @property
    def begin(self) -> Array:
        """The start: 0, but for what of p₀ its unit does not say."""
        parts = [np.zeros(size) for size in self._sizes]
        if self.first_root is not None:
            M = np.linalg.cholesky(self.start.initial.covariance)
            C = solve_triangular(self.first_root, M, lower=True)
            parts[4] = log_factor(C) * self._first_root
        return np.concatenate(parts)

    @property
    def bounds(self) -> Any:
        """Of R the least that it may be, and of a direction of p₀ the least spread."""
        setup, lows = self.ascent.setup, [np.full(size, -np.inf) for size in self._sizes]
        if self._sizes[1]:
            below = least_noise(setup, self.start.H) - setup.noises(np.diag(self.start.R))
            lows[1] = np.minimum(below / self._noise_unit, 0.0)
        rows, columns = np.tril_indices(self._sizes[3])
        lows[4][rows == columns] = LOWEST * self._first_root
        return optimize.Bounds(np.concatenate(lows))

    def unpack(self, x: Array) -> Parameters:
        """The parameters behind a vector."""
        setup, start = self.ascent.setup, self.start
        of_theta, of_R, of_H, of_mean, of_P, of_gaps = self._split(x)
        theta = start.theta.copy()
        theta[setup.free] += of_theta * self._theta_unit
        noises = setup.noises(np.diag(start.R)) + of_R * self._noise_unit
        found = replace(start, theta=theta, R=setup.with_noises(start.R, noises))
        L, P = self._roots
        if len(of_H):
            M = L @ from_log_cholesky(of_H / self._root, len(L))
            found = replace(found, H=M @ M.T)
        if len(of_mean):
            M = P @ from_log_cholesky(of_P / self._first_root, len(P))
            mean = start.initial.mean + P @ of_mean / self._first_root
            found = replace(found, initial=Gaussian(mean, M @ M.T))
        if start.gaps is not None and self._spans is not None:
            u = np.log(start.gaps / setup.dt) + of_gaps / self._root
            found = replace(found, gaps=setup.dt * self._spans.gaps(u))
        return found

    def slopes(self, now: Parameters, expected: Expected, x: Array) -> Array:
        """The gradient of the log-likelihood at x, where the parameters are `now`, in these coordinates."""
        setup, slopes = self.ascent.setup, self.ascent.slopes(expected, now)
        _, _, of_H, _, of_P, _ = self._split(x)
        of_R = setup.noise_slopes(now.R, expected.squares, expected.seen)
        parts = [slopes.theta[setup.free] * self._theta_unit, of_R * self._noise_unit]
        L, P = self._roots
        if len(of_H):
            C = from_log_cholesky(of_H / self._root, len(L))
            parts.append(by_log_cholesky(L.T @ slopes.H @ L, C) / self._root)
        if setup.initial is None:
            n, C = expected.trajectories, from_log_cholesky(of_P / self._first_root, len(P))
            M, away = P @ C, expected.first.mean - now.initial.mean
            # a smoother that broke down gives moments that are not finite: so are the slopes then, and the step is refused
            solve = partial(solve_triangular, check_finite=False)
            white = solve(M, away, lower=True)
            spread = solve(M, expected.first.covariance, lower=True)
            spread = solve(M, spread.T, lower=True) + np.outer(white, white)
            to_mean, to_M = solve(M.T, white), solve(M.T, spread - np.eye(len(M)))
            parts.append(n * P.T @ to_mean / self._first_root)
            parts.append(n * by_log_factor(P.T @ to_M, C) / self._first_root)
        if self._spans is not None and slopes.gaps is not None and now.gaps is not None:
            of_u = self._spans.pull_back(now.gaps / setup.dt, slopes.gaps * setup.dt)
            parts.append(of_u / self._root)
        return np.concatenate(parts)
