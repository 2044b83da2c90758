"""Subjects that differ: a mixed model of the drift, its parameters shrunk towards the population's.

    Δx = (Θ φ + B_j φ_S) Δt + ε,      ε ~ N(0, H Δt),      vec B_j ~ N(0, Ω),

with deviations B_j of each subject on a few features S (the growth rate: a random intercept of x'/x). Left
out, between-subject variability of 5 % biases a pooled Gompertz rate by a third. Given an order everything
follows from each subject's Gram matrix; given orders drawn from their posterior, from its average. All is
maximum likelihood by EM; its limit is Gaussian deviations, and starts that do not depend on them.
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

    Features and steps are
    brought to one size first: what an extrapolation is worth would depend on the units of variables and of time.

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
    size = np.sqrt(grams.sum(axis=0).diagonal() / count)
    size = np.where(size > 0, size, 1.0)
    x, y = size[:p], size[p:]
    start = None if begin is None else _scaled(begin, 1 / x, 1 / y)
    return _scaled(_fitted(grams / np.outer(size, size), count, p, S, start), x, y)


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
    grams: Array, count: float, n_features: int, columns: tuple[int, ...], begin: SubjectFit | None
) -> SubjectFit:
    """EM, extrapolated, in units in which features and steps are of one size."""
    p, S = n_features, list(columns)
    n, d = len(grams), grams.shape[1] - n_features
    total = grams.sum(axis=0)
    theta = np.linalg.solve(total[:p, :p], total[:p, p:]).T
    residual = total[p:, p:] - theta @ total[:p, p:]
    if not S:
        none = np.zeros((n, d, 0))
        return SubjectFit(
            theta, residual / count, (), np.zeros((0, 0)), none, np.zeros((n, 0, 0)), 0, True
        )
    if begin is None:
        # A tenth of the coefficient or, should that be nothing, its standard error in one subject.
        error = residual.diagonal()[:, None] / count / (total[:p, :p].diagonal()[S] / n)[None]
        point = _Point(
            theta, residual / count, np.diag(((0.1 * theta[:, S]) ** 2 + 0.01 * error).ravel())
        )
    else:
        point = _Point(begin.coefficients, begin.diffusion, begin.between)
    steps, change = 0, np.inf
    while steps < MAX_EM_STEPS and change > EM_TOLERANCE:
        # Two EM steps and one extrapolation along them (SQUAREM), kept if it is a possible point.
        one = _em_step(grams, count, S, point)
        two = _em_step(grams, count, S, one)
        r, v = one.vector - point.vector, two.vector - 2 * one.vector + point.vector
        change = two.distance(one)
        size = float(np.linalg.norm(v))
        length = min(-1.0, -float(np.linalg.norm(r)) / size if size > 0 else -1.0)
        far = point.moved(point.vector - 2 * length * r + length**2 * v)
        point = _em_step(grams, count, S, far) if far.possible else two
        steps += 3
    mean, covariance = _posterior(grams, S, point)
    return SubjectFit(
        point.theta, point.H, tuple(S), point.omega, mean, covariance, steps, change <= EM_TOLERANCE
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
    """The parameters of the mixed model; extrapolated in units of their own size."""

    theta: Array
    H: Array
    omega: Array

    @property
    def vector(self) -> Array:
        return np.concatenate([self.theta.ravel(), self.H.ravel(), self.omega.ravel()])

    def moved(self, vector: Array) -> _Point:
        a, b = self.theta.size, self.theta.size + self.H.size
        parts = vector[:a], vector[a:b], vector[b:]
        shapes = self.theta.shape, self.H.shape, self.omega.shape
        return _Point(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    @property
    def possible(self) -> bool:
        return all(
            np.linalg.eigvalsh(S)[0] > 1e-9 * np.abs(S).max() > 0 for S in (self.H, self.omega)
        )

    def distance(self, other: _Point) -> float:
        pairs = ((self.theta, other.theta), (self.H, other.H), (self.omega, other.omega))
        return max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)) for a, b in pairs)


def _posterior(grams: Array, S: list[int], at: _Point) -> tuple[Array, Array]:
    """Means (n, d, s) and covariances (n, d s, d s) of the subjects' deviations."""
    d, p = at.theta.shape
    n, s = len(grams), len(S)
    P = np.linalg.inv(at.H)
    own = grams[:, S][:, :, S]
    precision = np.einsum("ef,nab->neafb", P, own).reshape(n, d * s, d * s)
    covariance = np.linalg.inv(precision + np.linalg.inv(at.omega))
    left = grams[:, S, p:] - grams[:, S, :p] @ at.theta.T
    score = np.einsum("ef,naf->nea", P, left).reshape(n, d * s)
    mean = (covariance @ score[:, :, None])[:, :, 0]
    return mean.reshape(n, d, s), np.asarray(covariance)


def _em_step(grams: Array, count: float, S: list[int], at: _Point) -> _Point:
    d, p = at.theta.shape
    n, s = len(grams), len(S)
    mean, covariance = _posterior(grams, S, at)
    flat = mean.reshape(n, d * s)
    omega = flat.T @ flat / n + covariance.mean(axis=0)
    taken = np.einsum("nea,nap->ep", mean, grams[:, S, :p])
    total = grams.sum(axis=0)
    theta = np.linalg.solve(total[:p, :p], (total[p:, :p] - taken).T).T
    own = np.repeat(theta[None], n, axis=0)
    own[:, :, S] += mean
    cross = np.einsum("nep,npf->ef", own, grams[:, :p, p:])
    square = np.einsum("nep,npq,nfq->ef", own, grams[:, :p, :p], own, optimize=True)
    spread = np.einsum("neafb,nab->ef", covariance.reshape(n, d, s, d, s), grams[:, S][:, :, S])
    H = (total[p:, p:] - cross - cross.T + square + spread) / count
    return _Point(theta, (H + H.T) / 2, (omega + omega.T) / 2)


def log_likelihood(grams: Array, count: float, fit: SubjectFit) -> float:
    """Of all steps in units of √Δt, deviations integrated out; two fits to the same Gram matrices can be compared.

    `−½ N log|2πH| − ½ Σ tr H⁻¹E_j + ½ Σ (v_jᵀ K_j⁻¹ v_j − log|Ω K_j|)` with `K_j = Ω⁻¹ + H⁻¹ ⊗ Σ φ_S φ_Sᵀ Δt`.
    """
    p = fit.coefficients.shape[1]
    total, theta = grams.sum(axis=0), fit.coefficients
    P = np.linalg.inv(fit.diffusion)
    E = total[p:, p:] - theta @ total[:p, p:] - (theta @ total[:p, p:]).T
    E = E + theta @ total[:p, :p] @ theta.T
    value = -0.5 * (count * np.linalg.slogdet(2 * np.pi * fit.diffusion)[1] + np.sum(P * E))
    mean, covariance = posterior_deviations(grams, fit)
    flat = mean.reshape(len(grams), -1)
    gain = np.einsum("na,nab,nb->", flat, np.linalg.inv(covariance), flat)
    log_det = len(grams) * np.linalg.slogdet(fit.between)[1]
    log_det -= np.linalg.slogdet(covariance)[1].sum()
    return float(value + 0.5 * (gain - log_det))


def posterior_deviations(grams: Array, fit: SubjectFit) -> tuple[Array, Array]:
    """Means and covariances of subjects' deviations under a fit's population, for other Gram matrices."""
    at = _Point(fit.coefficients, fit.diffusion, fit.between)
    return _posterior(grams, list(fit.columns), at)
