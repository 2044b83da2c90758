"""Subjects that differ: a mixed model of the drift, its parameters shrunk towards the population's.

    Δx = (Θ φ + B_j φ_S) Δt + ε,      ε ~ N(0, H Δt),      vec B_j ~ N(0, Ω),

with deviations B_j of each subject on a few features S (the growth rate: a random intercept of x'/x). Left
out, between-subject variability of 5 % biases a pooled Gompertz rate by a third. Given an order everything
follows from each subject's Gram matrix; given orders drawn from their posterior, from its average. All is
maximum likelihood by EM; its limit is Gaussian deviations, and starts that do not depend on them.

EM is that of expanded parameters (Liu, Rubin, Wu 1998): `vec B_j = L a_j`, a_j ~ N(0, Ψ), of which only Ω = L Ψ Lᵀ counts. The M-step is one
regression on φ and `a_j ⊗ φ_S` for Θ and L, so that where Ω goes to zero it does so geometrically; plain EM takes steps of the order of Ω² there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from retrace_sde.fit.moments import trajectory_grams
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import optimize
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift

__all__ = ["SubjectFit", "fit_subjects", "subject_grams"]

MAX_RATE_VARIANCE = 4.0
"""Largest variance of the subjects' rates, whose mean is 1."""

RATE_ALTERNATIONS = 5
"""Alternations between rates and H: rates explain a small share of H, and each alternation leaves a small share of that."""

MAX_EM_STEPS, EM_TOLERANCE = 500, 1e-8
"""Maximum EM steps, and the relative change of (Θ, Ω, H) at which they stop."""


@dataclass(frozen=True, eq=False)
class SubjectFit:
    """Population Θ (d, p) and H (d, d), subjects' variance Ω (k, k), k = d · len(columns), and the subjects.

    Attributes
    ----------
    coefficients, diffusion : array
        Θ and H.
    columns : tuple of int
        The features that vary.
    between : array (k, k)
        Ω.
    deviations : array (n, d, columns)
        Posterior means, shrunk to zero the more the less a subject tells.
    uncertainty : array (n, k, k)
        Their covariances, equations first.
    steps : int
        Of EM.
    converged : bool
        It converged.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> from retrace_sde.panel.blocks import Data
    >>> Y = rt.LinearSDE([[-1.0]], [[1.0]]).simulate(20, 15, 0.1, random_state=0)
    >>> grams = rt.subjects.subject_grams(Data(Y), np.arange(15), 0.1, rt.drift.Affine())
    >>> rt.subjects.fit_subjects(grams, 20 * 14, 2, columns=(1,)).deviations.shape
    (20, 1, 1)
    """

    coefficients: Array
    diffusion: Array
    columns: tuple[int, ...]
    between: Array
    deviations: Array
    uncertainty: Array
    steps: int
    converged: bool

    @property
    def subject_coefficients(self) -> Array:
        """Each subject's own Θ_j, (n, d, p)."""
        own = np.repeat(self.coefficients[None], len(self.deviations), axis=0)
        own[:, :, list(self.columns)] += self.deviations
        return own


def subject_grams(data: Data, order: Indices, dt: float | Array | Gaps, drift: Drift) -> Array:
    """Each subject's `Σ z zᵀ`, z = (φ √Δt, Δx/√Δt), along an order: (n, p + d, p + d).

    Parameters
    ----------
    data : Data
        The panel.
    order : array (T,) or (n, T)
        Of time.
    dt : float or array
        Steps.
    drift : Drift
        φ.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> from retrace_sde.panel.blocks import Data
    >>> rt.subjects.subject_grams(Data(np.ones((3, 5, 2))), np.arange(5), 0.1, rt.drift.Linear()).shape
    (3, 4, 4)
    """
    of_piece = partial(trajectory_grams, drift=drift)
    return np.asarray(data.each_piece(of_piece, order, Gaps.of(dt, data.lengths)))


def fit_subjects(
    grams: Array,
    count: float,
    n_features: int,
    *,
    columns: Sequence[int] = (0,),
    begin: SubjectFit | None = None,
) -> SubjectFit:
    """The mixed model from subjects' Gram matrices and the number of steps in all.

    Features, and what a pooled fit leaves of the steps, are brought to one size first: what an extrapolation is worth, and when it
    ends, would depend on the units of variables and of time.

    Parameters
    ----------
    grams : array (n, p + d, p + d)
        Of `subject_grams`.
    count : float
        Steps in all.
    n_features : int
        p.
    columns : sequence of int
        Features that vary between subjects. None: one Θ for all, ordinary maximum likelihood.
    begin : SubjectFit, optional
        An earlier fit to start from.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> from retrace_sde.panel.blocks import Data
    >>> rng, X = np.random.default_rng(0), np.zeros((40, 30, 1))
    >>> level = rng.normal(size=(40, 1))
    >>> for t in range(29):
    ...     X[:, t + 1] = X[:, t] + 0.1 * (level - X[:, t]) + 0.1 * rng.normal(size=(40, 1))
    >>> grams = rt.subjects.subject_grams(Data(X), np.arange(30), 0.1, rt.drift.Affine())
    >>> fit = rt.subjects.fit_subjects(grams, 40 * 29, 2, columns=(1,))
    >>> np.corrcoef(fit.deviations[:, 0, 0], level[:, 0])[0, 1] > 0.8
    np.True_
    """
    p, S = n_features, tuple(columns)
    if any(not 0 <= j < p for j in S) or len(set(S)) < len(S):
        raise ValueError(f"columns must be different features from 0 to {p - 1}; got {list(S)}.")
    total = grams.sum(axis=0)
    x = np.sqrt(total.diagonal()[:p] / count)
    x = np.where(x > 0, x, 1.0)
    inner, cross = total[:p, :p] / np.outer(x, x), total[:p, p:] / x[:, None]
    theta = np.linalg.solve(inner, cross).T
    H = (total[p:, p:] - theta @ cross) / count
    y = np.sqrt(np.maximum(H.diagonal(), 0.0))
    y = np.where(y > 0, y, 1.0)
    alike = _Point(theta / y[:, None], H / np.outer(y, y), np.zeros((0, 0)))
    if not S:
        none = np.zeros((len(grams), len(H), 0))
        found = SubjectFit(
            alike.theta, alike.H, (), alike.L, none, np.zeros((len(grams), 0, 0)), 0, True
        )
        return _scaled(found, x, y)
    start = None if begin is None else _scaled(begin, 1 / x, 1 / y)
    size = np.concatenate([x, y])
    return _scaled(_fitted(grams / np.outer(size, size), count, S, alike, start), x, y)


def _scaled(fit: SubjectFit, x: Array, y: Array) -> SubjectFit:
    """A fit whose features were divided by x (p,), and whose variables by y (d,), in their own units."""
    ratio = y[:, None] / x[None, :]
    own = ratio[:, list(fit.columns)]
    square = np.outer(own.ravel(), own.ravel())
    return replace(
        fit,
        coefficients=fit.coefficients * ratio,
        diffusion=fit.diffusion * np.outer(y, y),
        between=fit.between * square,
        deviations=fit.deviations * own,
        uncertainty=fit.uncertainty * square,
    )


def _fitted(
    grams: Array, count: float, columns: tuple[int, ...], alike: _Point, begin: SubjectFit | None
) -> SubjectFit:
    """EM, extrapolated, in units in which features and noise are of size one; from a fit of subjects alike, or an earlier one."""
    S, error = list(columns), len(grams) / count
    if begin is None:
        # A tenth of the coefficient or, should that be nothing, its standard error in one subject.
        start = (0.1 * alike.theta[:, S]).ravel() ** 2
        point = replace(alike, L=np.diag(np.sqrt(start + 0.01 * error)))
    else:
        # From a variance of zero EM does not move.
        omega = begin.between + 0.01 * error * np.eye(len(begin.between))
        point = _Point.of(replace(begin, between=omega))
    steps, change = 0, np.inf
    while steps < MAX_EM_STEPS and change > EM_TOLERANCE:
        # Two EM steps and one extrapolation along them (SQUAREM), kept if it is at least as likely.
        one, _ = _em_step(grams, count, S, point)
        two, value = _em_step(grams, count, S, one)
        r, v = one.vector - point.vector, two.vector - 2 * one.vector + point.vector
        change = float(np.abs(two.vector - one.vector).max())
        size = float(np.linalg.norm(v))
        length = min(-1.0, -float(np.linalg.norm(r)) / size if size > 0 else -1.0)
        far = point.moved(point.vector - 2 * length * r + length**2 * v)
        point = two
        if far.possible:
            after, likely = _em_step(grams, count, S, far)
            point = after if likely >= value else two
        steps += 3
    mean, covariance = _posterior(grams, S, point)
    return SubjectFit(
        point.theta,
        point.H,
        columns,
        point.L @ point.L.T,
        mean,
        covariance,
        steps,
        change <= EM_TOLERANCE,
    )


@dataclass(frozen=True, eq=False)
class Rates:
    """Subjects' rates r_j (n,) under `Δx = r_j Θ φ Δt + ε`, `r_j ~ N(1, variance)`, with their errors, Θ being given.

    `gain` is by how many nats this is more likely than rates that are all 1, at the H of those; `diffusion` is what H is
    once the differences between rates are taken out of it.
    """

    variance: float
    gain: float
    rates: Array
    errors: Array
    diffusion: Array


def fit_rates(grams: Array, count: float, coefficients: Array, diffusion: Array) -> Rates:
    """Rates of subjects beside an ordinary fit, and the H that they leave; a few steps of EM between the two."""
    first = found = _rates(grams, coefficients, diffusion)
    p = coefficients.shape[1]
    total = grams[:, p:, p:].sum(axis=0)
    cross = coefficients @ grams[:, :p, p:]
    pushes = coefficients @ grams[:, :p, :p] @ coefficients.T
    for _ in range(RATE_ALTERNATIONS):
        mixed = np.einsum("n,nef->ef", found.rates, cross)
        square = np.einsum("n,nef->ef", found.rates**2 + found.errors**2, pushes)
        found = _rates(grams, coefficients, (total - mixed - mixed.T + square) / count)
    return replace(found, gain=first.gain)


def _rates(grams: Array, coefficients: Array, diffusion: Array) -> Rates:
    """Rates from subjects' Gram matrices: with `i_j = tr H⁻¹ Σ b bᵀ Δt` of the drifts b = Θ φ and `s_j = tr H⁻¹ Σ b εᵀ` of the
    residuals from r = 1, the gain is `½ Σ (ω s_j²/(1 + ω i_j) − log(1 + ω i_j))`, largest at one ω ≥ 0."""
    p = coefficients.shape[1]
    P = np.linalg.inv(diffusion)
    pushes = coefficients @ grams[:, :p, :p] @ coefficients.T
    i = np.einsum("ef,nef->n", P, pushes)
    s = np.einsum("ef,nef->n", P, coefficients @ grams[:, :p, p:] - pushes)

    def loss(omega: float) -> float:
        return float(0.5 * (np.log1p(omega * i) - omega * s**2 / (1 + omega * i)).sum())

    found = optimize.minimize_scalar(loss, bounds=(0.0, MAX_RATE_VARIANCE), method="bounded")
    omega, value = (float(found.x), float(found.fun)) if found.fun < 0 else (0.0, 0.0)
    shrunk = omega / (1 + omega * i)
    return Rates(omega, -value, 1 + shrunk * s, np.sqrt(shrunk), diffusion)


@dataclass(frozen=True, eq=False)
class _Point:
    """The parameters of the mixed model: Θ, H, and a root L of Ω, which may be singular."""

    theta: Array
    H: Array
    L: Array

    @classmethod
    def of(cls, fit: SubjectFit) -> _Point:
        values, vectors = np.linalg.eigh(fit.between)
        return cls(fit.coefficients, fit.diffusion, vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def vector(self) -> Array:
        return np.concatenate([self.theta.ravel(), self.H.ravel(), self.L.ravel()])

    def moved(self, vector: Array) -> _Point:
        a, b = self.theta.size, self.theta.size + self.H.size
        parts = vector[:a], vector[a:b], vector[b:]
        shapes = self.theta.shape, self.H.shape, self.L.shape
        return _Point(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    @property
    def possible(self) -> bool:
        return bool(np.linalg.eigvalsh(self.H)[0] > 1e-9 * np.abs(self.H).max() > 0)


@dataclass(frozen=True, eq=False)
class _Standardised:
    """Means (n, k) and covariances (n, k, k) of a_j, where `vec B_j = L a_j` and a_j ~ N(0, I), and each subject's log-likelihood ratio (n,) to a_j = 0."""

    mean: Array
    covariance: Array
    gain: Array

    @classmethod
    def of(cls, grams: Array, S: list[int], at: _Point) -> _Standardised:
        p, n, k = at.theta.shape[1], len(grams), len(at.L)
        P = np.linalg.inv(at.H)
        own = np.einsum("ef,nab->neafb", P, grams[:, S][:, :, S]).reshape(n, k, k)
        left = grams[:, S, p:] - grams[:, S, :p] @ at.theta.T
        score = np.einsum("ef,naf->nea", P, left).reshape(n, k) @ at.L
        precision = np.eye(k) + at.L.T @ own @ at.L
        covariance = np.linalg.inv(precision)
        mean = (covariance @ score[:, :, None])[:, :, 0]
        gain = 0.5 * ((mean * score).sum(axis=1) - np.linalg.slogdet(precision)[1])
        return cls(mean, covariance, gain)


def _posterior(grams: Array, S: list[int], at: _Point) -> tuple[Array, Array]:
    """Means (n, d, s) and covariances (n, d s, d s) of the subjects' deviations."""
    found = _Standardised.of(grams, S, at)
    mean = (found.mean @ at.L.T).reshape(len(grams), len(at.theta), len(S))
    return mean, np.asarray(at.L @ found.covariance @ at.L.T)


def _em_step(grams: Array, count: float, S: list[int], at: _Point) -> tuple[_Point, float]:
    """The next point, and the log-likelihood of this one."""
    (d, p), k, s = at.theta.shape, len(at.L), len(S)
    found, total = _Standardised.of(grams, S, at), grams.sum(axis=0)
    second = found.covariance + found.mean[:, :, None] * found.mean[:, None, :]
    # Regressors: φ, and a_l φ_S for each l.
    across = np.einsum("nl,nax->lax", found.mean, grams[:, S]).reshape(k * s, -1)
    within = np.einsum("nlm,nab->lamb", second, grams[:, S][:, :, S]).reshape(k * s, k * s)
    inner = np.block([[total[:p, :p], across[:, :p].T], [across[:, :p], within]])
    outer = np.concatenate([total[:p, p:], across[:, p:]])
    both = np.linalg.solve(inner, outer)
    H = (total[p:, p:] - outer.T @ both) / count
    root = np.linalg.cholesky(second.mean(axis=0))
    L = both[p:].reshape(k, s, d).transpose(2, 1, 0).reshape(k, k) @ root
    value = _pooled(total, count, at.theta, at.H) + float(found.gain.sum())
    return _Point(both[:p].T, (H + H.T) / 2, L), value


def _pooled(total: Array, count: float, theta: Array, H: Array) -> float:
    """`−½ N log|2πH| − ½ tr H⁻¹E`, with E the sum of squares of what Θ leaves."""
    p = theta.shape[1]
    E = total[p:, p:] - theta @ total[:p, p:] - (theta @ total[:p, p:]).T
    E = E + theta @ total[:p, :p] @ theta.T
    fit = count * np.linalg.slogdet(2 * np.pi * H)[1] + np.sum(np.linalg.inv(H) * E)
    return -0.5 * float(fit)


def log_likelihood(grams: Array, count: float, fit: SubjectFit) -> float:
    """Of all steps in units of √Δt, deviations integrated out; two fits to the same Gram matrices can be compared.

    `−½ N log|2πH| − ½ Σ tr H⁻¹E_j + ½ Σ (m_jᵀ M_j m_j − log|M_j|)` with `M_j = I + Lᵀ(H⁻¹ ⊗ Σ φ_S φ_Sᵀ Δt)L` and `M_j m_j` the score of a_j.
    """
    pooled = _pooled(grams.sum(axis=0), count, fit.coefficients, fit.diffusion)
    return pooled + float(_Standardised.of(grams, list(fit.columns), _Point.of(fit)).gain.sum())


def posterior_deviations(grams: Array, fit: SubjectFit) -> tuple[Array, Array]:
    """Means and covariances of subjects' deviations under a fit's population, for other Gram matrices."""
    return _posterior(grams, list(fit.columns), _Point.of(fit))
