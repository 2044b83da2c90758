"""The last stretch of a climb: quasi-Newton steps on the likelihood of what was observed.

Steps of EM shrink with the noise that they begin from, in proportion to its square: from a start with little noise they look as if they
had arrived (n = 40, T = 15, σ = .1: stopped at .03, 4 to 7 nats below the maximum). The E-step gives the gradient too: by Fisher's
identity that of the expected log-likelihood of states and observations, at the parameters it was taken with. With it quasi-Newton steps find
the maximum in about 50 passes of the smoother. R is its own coordinate, in which the likelihood is nearly a parabola.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.statespace.ascent.coordinates import Ascent
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.parameters import NOISE_FLOOR, Parameters
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian

MAX_PASSES = 200
"""Passes of the smoother, at most."""

FLAT = 1e-2
"""Slope, in nats per standard error that known states would have, at which the search ends."""

RISE = 1e-4
"""Rise of the log-likelihood, in nats of one step, at which it ends."""

LATE, HOPE = 10, 5.0
"""A likelihood is out of reach if it is more than a nat beyond what the last ten passes brought, five times over. Levels of subjects who are
alike were given up after 21 to 40 passes of 53 to 129, their gains 2 to 4 nats short of the end and 10 to 20 short of their price."""

LOWEST = -9.0
"""Logarithm of the least spread of a direction of p₀, beside where the search began: as good as none."""


class Finished(NamedTuple):
    """Where the search ended, the E-step there, whether the slopes were flat, and how many passes it took."""

    parameters: Parameters
    expected: Expected
    flat: bool
    passes: int


def finish(
    expected_at: Callable[[Parameters], Expected],
    ascent: Ascent,
    start: Parameters,
    expected: Expected,
    passes: int = MAX_PASSES,
    needed: float = -np.inf,
) -> Finished:
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
        if len(trail) > 2 * LATE and now + HOPE * (now - trail[-LATE]) + 1 < needed:
            raise StopIteration

    rise = RISE / max(abs(expected.likelihood), 1.0)
    options = {"maxfun": passes, "maxiter": passes, "maxcor": 30, "ftol": rise, "gtol": FLAT}
    ended = minimize(
        objective,
        at.begin,
        jac=True,
        method="L-BFGS-B",
        bounds=at.bounds,
        options=options,
        callback=look,
    )
    return Finished(*best, bool(ended.success), count)


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
    def _noises(self) -> Array:
        """The free variances of R at the start: one where they are tied."""
        found = np.diag(self.start.R)[self.ascent.setup.noise_free]
        return found[:1] if self.ascent.setup.noise_tied else found

    @cached_property
    def _noise_unit(self) -> Array:
        setup = self.ascent.setup
        own = (
            np.diag(self.start.H)[setup.noise_free] * setup.dt
            + np.diag(self.start.R)[setup.noise_free]
        )
        own = own[:1] * 0 + own.mean() if setup.noise_tied and len(own) else own
        found: Array = own / np.sqrt(self.expected.count)
        return found

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

    def part(self, x: Array, k: int) -> Array:
        """Of vectors (…, size) the entries of Θ, R, H, p₀'s mean, its covariance, or the gaps."""
        at = np.cumsum([0, *self._sizes])
        return x[..., at[k] : at[k + 1]]

    def moved(self, x: Array) -> tuple[Array, Array, Array]:
        """By how much small steps x (m, size) from the start change Θ (m, d, p), H (m, d, d) and the mean of p₀ (m, k)."""
        setup, (L, P) = self.ascent.setup, self._roots
        theta = np.zeros((len(x), *setup.free.shape))
        theta[:, setup.free] = self.part(x, 0) * self._theta_unit
        D = np.zeros((len(x), *L.shape))
        if self._sizes[2]:
            D[:, *np.tril_indices(len(L))] = self.part(x, 2) / self._root
        H = L @ (D + D.transpose(0, 2, 1)) @ L.T
        return theta, H, self.part(x, 3) @ P.T / self._first_root

    @cached_property
    def _sizes(self) -> list[int]:
        setup, d = self.ascent.setup, len(self.start.H)
        k = len(self.start.initial.mean) if setup.initial is None else 0
        q = d * (d + 1) // 2 if setup.H is None else 0
        gaps = 0 if self.start.gaps is None or self._spans is None else len(self.start.gaps)
        return [len(self._theta_unit), len(self._noises), q, k, k * (k + 1) // 2, gaps]

    @property
    def begin(self) -> Array:
        """The start: 0, but for what of p₀ its unit does not say."""
        found, at = np.zeros(sum(self._sizes)), np.cumsum([0, *self._sizes])
        if self.first_root is not None:
            M = np.linalg.cholesky(self.start.initial.covariance)
            C = solve_triangular(self.first_root, M, lower=True)
            np.fill_diagonal(C, np.log(np.diag(C)))
            found[at[4] : at[5]] = C[np.tril_indices(len(C))] * self._first_root
        return found

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        setup = self.ascent.setup
        found: list[tuple[float | None, float | None]] = [(None, None)] * sum(self._sizes)
        at, begin = (
            np.cumsum([0, *self._sizes]),
            self._noises / np.maximum(self._noise_unit, 1e-300),
        )
        if len(begin):
            least = NOISE_FLOOR * setup.dt * np.diag(self.start.H)[setup.noise_free]
            least = least[:1] * 0 + least.min() if setup.noise_tied else least
            low = np.minimum(least / self._noise_unit - begin, 0.0)
            found[at[1] : at[2]] = [(float(each), None) for each in low]
        for j, (i, k) in enumerate(zip(*np.tril_indices(self._sizes[3]), strict=True)):
            if i == k:
                found[at[4] + j] = (LOWEST * self._first_root, None)
        return found

    @property
    def _root(self) -> float:
        return float(np.sqrt(self.expected.count))

    @property
    def _first_root(self) -> float:
        return float(np.sqrt(self.expected.trajectories))

    def unpack(self, x: Array) -> Parameters:
        """The parameters behind a vector."""
        setup, start = self.ascent.setup, self.start
        of_theta, of_R, of_H, of_mean, of_P, of_gaps = np.split(x, np.cumsum(self._sizes)[:-1])
        theta, R = start.theta.copy(), start.R.copy()
        theta[setup.free] += of_theta * self._theta_unit
        R[setup.noise_free, setup.noise_free] = self._noises + of_R * self._noise_unit
        found = replace(start, theta=theta, R=R)
        L, P = self._roots
        if len(of_H):
            M = L @ _lower(of_H / self._root)
            found = replace(found, H=M @ M.T)
        if len(of_mean):
            M = P @ _lower(of_P / self._first_root)
            mean = start.initial.mean + P @ of_mean / self._first_root
            found = replace(found, initial=Gaussian(mean, M @ M.T))
        if start.gaps is not None and self._spans is not None:
            u = np.log(start.gaps / setup.dt) + of_gaps / self._root
            found = replace(found, gaps=setup.dt * self._spans.gaps(u))
        return found

    def slopes(self, now: Parameters, expected: Expected, x: Array) -> Array:
        """The gradient of the log-likelihood at x, where the parameters are `now`, in these coordinates."""
        setup, slopes = self.ascent.setup, self.ascent.slopes(expected, now)
        _, _, of_H, _, of_P, _ = np.split(x, np.cumsum(self._sizes)[:-1])
        parts = [slopes.theta[setup.free] * self._theta_unit]
        unknown = setup.noise_free
        variances = np.diag(now.R)[unknown]
        of_R = 0.5 * (expected.squares[unknown] / variances - expected.seen[unknown]) / variances
        of_R = of_R.sum(keepdims=True) if setup.noise_tied and len(of_R) else of_R
        parts.append(of_R * self._noise_unit)
        L, P = self._roots
        if len(of_H):
            C = _lower(of_H / self._root)
            parts.append(_to_lower(L.T @ (slopes.H + slopes.H.T) @ L @ C, C) / self._root)
        if setup.initial is None:
            n, C = expected.trajectories, _lower(of_P / self._first_root)
            M, away = P @ C, expected.first.mean - now.initial.mean
            white = solve_triangular(M, away, lower=True)
            spread = solve_triangular(M, expected.first.covariance, lower=True)
            spread = solve_triangular(M, spread.T, lower=True) + np.outer(white, white)
            to_mean = solve_triangular(M.T, white)
            to_M = solve_triangular(M.T, spread - np.eye(len(M)))
            parts.append(n * P.T @ to_mean / self._first_root)
            parts.append(n * _to_lower(P.T @ to_M, C) / self._first_root)
        if self._spans is not None and slopes.gaps is not None and now.gaps is not None:
            of_u = self._spans.pull_back(now.gaps / setup.dt, slopes.gaps * setup.dt)
            parts.append(of_u / self._root)
        return np.concatenate(parts)


def _lower(x: Array) -> Array:
    """The lower triangle C behind a vector: its diagonal by logarithms."""
    d = int((np.sqrt(8 * len(x) + 1) - 1) / 2)
    C = np.zeros((d, d))
    C[np.tril_indices(d)] = x
    np.fill_diagonal(C, np.exp(np.clip(np.diag(C), -50, 50)))
    return C


def _to_lower(by_C: Array, C: Array) -> Array:
    """A gradient by C as one by the vector behind it."""
    found = by_C.copy()
    np.fill_diagonal(found, np.diag(by_C) * np.diag(C))
    return found[np.tril_indices(len(C))]
