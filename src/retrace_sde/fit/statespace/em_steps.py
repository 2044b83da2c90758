"""The two steps of EM in the state-space model, and what they pass between them.

E: the smoother gives the expected Gram matrices of (x, v, η), η the noise of a step, by class of steps. M: with Euler's step the
regression of `fit.regression` on their sum, a closed form; with exact steps the expected log-likelihood
`−½ Σ_k (n_k log |Q_k| + tr Q_k⁻¹ E_k)` has none: quasi-Newton, with its exact gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from retrace_sde.fit.information import lbfgs
from retrace_sde.fit.irregular_times import Spans, StepLikelihood
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.parameters import Parameters, Setup, least_noise
from retrace_sde.fit.statespace.smoother import cell_sums, step_counts, step_sums
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian

INNER_STEPS = 40
"""Steps of the quasi-Newton search of one M-step, at most."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Sums over trajectories: Gram matrices (K, q, q) of (x, v, η) by class of steps, the coefficients (F − 1, S) (K, d, p) that η is
    about, gaps and numbers of steps (K,), squared noise and its counts, and the law of the first states of so many trajectories.

    Sums add up: those of two halves of a panel, or of two draws of its orders, are those of both; `parts` are
    those that `together` added up.
    """

    likelihood: float
    grams: Array
    about: Array
    gaps: Array
    counts: Array
    squares: Array
    seen: Array
    first: Gaussian
    trajectories: float
    parts: tuple[Expected, ...] = ()

    @property
    def count(self) -> float:
        """How many steps there were."""
        return float(self.counts.sum())

    @property
    def gram(self) -> Array:
        """Of (φ √g, η / √g), summed over classes."""
        return self._pooled(self.grams)

    def _pooled(self, grams: Array) -> Array:
        """Gram matrices of (φ, x) by class as one of (φ √g, x / √g)."""
        p, root = self.about.shape[2], np.sqrt(self.gaps)[:, None]
        unit = np.broadcast_to(1 / root, grams.shape[:2]).copy()
        unit[:, :p] = root
        return (grams * unit[:, :, None] * unit[:, None, :]).sum(axis=0)

    @property
    def moments(self) -> Moments:
        """Those of (φ √g, ΔX / √g).

        With one class of steps by way of η, since increments of a growing process are far larger than the noise that drives it:
        `ΔX = Θ φ g + η`, so that `R_φΔ = R_φη + R_φφ Θᵀ` and the rest is the same.
        """
        p = self.about.shape[2]
        if len(self.gaps) > 1:
            increments = self._turned(np.zeros_like(self.about))
            return Moments.from_weights(self._pooled(increments), self.count, p)
        found = Moments.from_weights(self.gram, self.count, p)
        factor = found.factor.copy()
        factor[:p, p:] += factor[:p, :p] @ (self.about[0] / self.gaps[0]).T
        return Moments(factor, self.count, p)

    def _turned(self, about: Array) -> Array:
        """The Gram matrices with η about other coefficients."""
        K, q, p = len(self.grams), self.grams.shape[1], about.shape[2]
        turn = np.tile(np.eye(q), (K, 1, 1))
        turn[:, p:, :p] = self.about - about
        return turn @ self.grams @ turn.transpose(0, 2, 1)

    def euler_gram(self, theta: Array) -> Array:
        """Of (φ √g, η / √g) with η about Euler's step."""
        return self._pooled(self._turned(theta * self.gaps[:, None, None]))

    def __add__(self, other: Expected) -> Expected:
        n, m = self.trajectories, other.trajectories
        return Expected(
            self.likelihood + other.likelihood,
            self.grams + other._turned(self.about),
            self.about,
            self.gaps,
            self.counts + other.counts,
            self.squares + other.squares,
            self.seen + other.seen,
            self.first.pooled(other.first, n / (n + m)),
            n + m,
        )

    def scaled(self, factor: float) -> Expected:
        """The same sums, counted `factor` times."""
        return replace(
            self,
            likelihood=self.likelihood * factor,
            grams=self.grams * factor,
            counts=self.counts * factor,
            squares=self.squares * factor,
            seen=self.seen * factor,
            trajectories=self.trajectories * factor,
        )


def together(parts: list[Expected]) -> Expected:
    """The sums of all parts, which are kept."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return replace(total, parts=tuple(parts))


def expect(seen: Observations, law: Parameters) -> Expected:
    """The E-step: a pass of the smoother over all trajectories, reduced to sums."""
    gaps = law.crossed(seen.classes.gaps)
    model = law.steps(gaps)
    K, d, m = model.inputs.shape
    squares, entries = np.zeros(d), (~np.isnan(seen.values)).sum(axis=(0, 1)).astype(float)
    few = cell_sums(seen, model)
    if few is not None:
        likelihood, grams, counts, x, first_covariance = few
    else:
        grams, counts = np.zeros((K, 2 * d + m, 2 * d + m)), np.zeros(K)
        likelihood, firsts, first_covariance = 0.0, [], np.zeros((d, d))
        for stack in seen.apart if model.diagonal else seen.stacks:
            counts += stack.rows.shape[1] * step_counts(stack, K).sum(axis=0)
            for part in step_sums(stack, model, total=True, n_jobs=seen.n_jobs):
                likelihood += float(part.likelihood)
                grams += part.grams
                squares += part.squares
                firsts.append(part.firsts)
                first_covariance += part.first_covariance
        x = np.concatenate(firsts)
    if not np.isfinite(likelihood):
        raise np.linalg.LinAlgError("the likelihood is not defined here.")
    centred = x - x.mean(axis=0)
    first = Gaussian(x.mean(axis=0), (centred.T @ centred + first_covariance) / len(x))
    return Expected(
        likelihood,
        grams,
        model.coefficients,
        gaps,
        counts,
        squares,
        entries,
        first,
        float(len(x)),
    )


def maximise(
    setup: Setup, expected: Expected, now: Parameters, spans: Spans | None = None
) -> Parameters:
    """The M-step: R and p₀ in closed form, Θ and H too where the steps are Euler's or nothing of Θ is free."""
    gaps = None
    if now.gaps is None and (now.scheme == "euler" or not setup.free.any()):
        theta, H = _regression(setup, expected, now)
    else:
        objective = exact_steps(setup, expected, spans if now.gaps is not None else None)
        start = objective.pack(now.theta, now.H, now.gaps)
        ends = {"maxiter": INNER_STEPS, "ftol": 1e-11, "gtol": 1e-6 * expected.count}
        best = lbfgs(objective, start, maxcor=20, **ends)
        theta, H, found = objective.split(best.x)
        gaps = found if objective.spans is not None else None
    R = noise_covariance(setup, expected, now.R, H)
    initial = first_law(setup, expected, H)
    return replace(now, theta=theta, H=H, R=R, initial=initial, gaps=gaps)


def _regression(setup: Setup, expected: Expected, now: Parameters) -> tuple[Array, Array]:
    """Θ and H of Euler's steps. With known entries of Θ: Θ given H (generalised least squares), then H given Θ."""
    d, free = len(setup.free), setup.free
    moments = expected.moments
    R, cross, _ = moments.blocks
    if free.all():
        theta = solve_triangular(R, cross).T
    else:
        theta = setup.known.copy()
        if free.any():
            weight, normal = np.linalg.inv(now.H), R.T @ R
            wanted = weight @ (cross.T @ R - theta @ normal)
            i, j = np.nonzero(free)
            # the normal equations of Θ given H have the matrix H⁻¹ ⊗ Σ φφᵀ, here on the free entries only
            theta[free] += np.linalg.solve(
                weight[np.ix_(i, i)] * normal[np.ix_(j, j)], wanted[free]
            )
    residual = moments.factor @ np.c_[-theta, np.eye(d)].T
    H = residual.T @ residual / expected.count if setup.H is None else setup.H
    return theta, H


def noise_covariance(setup: Setup, expected: Expected, now: Array, H: Array) -> Array:
    """R of the M-step: expected squared noise over its count, not below a share of what the SDE adds in one step."""
    unknown = setup.noise_free
    if not unknown.any():
        return now
    squares, seen = expected.squares[unknown], np.maximum(expected.seen[unknown], 1)
    variances = squares.sum() / seen.sum() if setup.noise_tied else squares / seen
    return setup.with_noises(now, np.maximum(variances, least_noise(setup, H)))


def first_law(setup: Setup, expected: Expected, H: Array) -> Gaussian:
    """p₀ of the M-step."""
    P = expected.first.covariance
    P = P + 1e-10 * np.diag(np.diag(P) + np.diag(H) * setup.dt)  # a common start has no logarithm
    return setup.initial or Gaussian(expected.first.mean, P)


def exact_steps(setup: Setup, expected: Expected, spans: Spans | None) -> StepLikelihood:
    """The expected −log-likelihood of exact steps, in coordinates of about unit curvature: variables' units, and √n."""
    regressors = np.maximum(np.diag(expected.gram)[: setup.free.shape[1]], 1e-300)
    unit = np.outer(setup.rate, 1 / np.sqrt(regressors))  # about a standard error
    sums = expected.grams, expected.counts, expected.gaps, expected.about
    known = setup.free, setup.known
    return StepLikelihood(*sums, *known, unit, setup.rate, expected.count**0.5, setup.dt, spans)
