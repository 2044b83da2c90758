"""The two steps of EM in the state-space model, what they pass between them, and where they start.

E: the smoother gives the expected Gram matrix of the rows (φ √dt, η / √dt), η the noise of a step. M: the
regression of `estimation` on it. Both know one step in Euler's form, `F = 1 + A dt`, `s = c dt`, `Q = H dt`, whatever
the scheme: (A, c, H) = (Θ, H) here are a way to write (F, s, Q).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular

from retrace_sde.fit.moments import Moments
from retrace_sde.fit.statespace.model import (
    Stack,
    StateSpace,
    is_covariance,
    parts,
    portions,
)
from retrace_sde.fit.statespace.per_trajectory import Rows, alone
from retrace_sde.fit.statespace.riccati import Gains, Means, riccati, smooth
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.sde import Gaussian, Transition, symmetric_root

Noise = Literal["estimate", "diagonal"] | float | ArrayLike

NOISE_FLOOR = 1e-6
"""Smallest estimated noise variance, as a share of the variance that the SDE adds in one step."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """Θ (d, p) and H of the Euler form of one step, R, and the law of X_0."""

    theta: Array
    H: Array
    R: Array
    initial: Gaussian

    def model(self, dt: float) -> StateSpace:
        d = len(self.H)
        shift = self.theta[:, d] * dt if self.theta.shape[1] > d else np.zeros(d)
        step = Transition(np.eye(d) + self.theta[:, :d] * dt, shift, self.H * dt)
        return StateSpace(step, self.R, self.initial)


@dataclass(frozen=True, eq=False)
class Setup:
    """What is known: free entries of Θ and the values of the others, H or None, free noise variances."""

    dt: float
    free: Mask
    known: Array
    H: Array | None
    noise_free: Mask
    noise_tied: bool
    initial: Gaussian | None
    scale: Array
    n_jobs: int | None = None

    @property
    def rate(self) -> Array:
        """Units of √H: a logarithm of H in others would round otherwise when the unit of time changes."""
        return self.scale / np.sqrt(self.dt)


@dataclass(frozen=True, eq=False)
class Expected:
    """Sums over trajectories: Gram matrix of (φ √dt, η / √dt), the Θ that η belongs to, the number of steps,
    squared noise and its counts, and the law of the first states of so many trajectories.

    Sums add up: those of two halves of a panel, or of two draws of its orders, are those of both; `parts` are
    those that `together` added up.
    """

    likelihood: float
    gram: Array
    theta: Array
    count: float
    squares: Array
    seen: Array
    first: Gaussian
    trajectories: float
    parts: tuple[Expected, ...] = ()

    @property
    def moments(self) -> Moments:
        """Those of z = (φ √dt, ΔX / √dt), where ΔX = Θ φ dt + η: `R_φΔ = R_φη + R_φφ Θᵀ`, the rest is the same.

        By way of η, since increments of a growing process are far larger than the noise that drives it.
        """
        p = self.theta.shape[1]
        found = Moments.from_weights(self.gram, self.count, p)
        factor = found.factor.copy()
        factor[:p, p:] += factor[:p, :p] @ self.theta.T
        return Moments(factor, self.count, p)

    def _gram_about(self, theta: Array) -> Array:
        """The Gram matrix with η about another Θ: `η' = η + (Θ − Θ') φ dt`."""
        turn = np.eye(len(self.gram))
        turn[theta.shape[1] :, : theta.shape[1]] = self.theta - theta
        return turn @ self.gram @ turn.T

    def __add__(self, other: Expected) -> Expected:
        n, m = self.trajectories, other.trajectories
        return Expected(
            self.likelihood + other.likelihood,
            self.gram + other._gram_about(self.theta),
            self.theta,
            self.count + other.count,
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
            gram=self.gram * factor,
            count=self.count * factor,
            squares=self.squares * factor,
            seen=self.seen * factor,
            trajectories=self.trajectories * factor,
        )


class Totals(Protocol):
    """What the sums of any kind of step have in common."""

    @property
    def gram(self) -> Array: ...
    @property
    def count(self) -> float: ...
    @property
    def squares(self) -> Array: ...
    @property
    def seen(self) -> Array: ...
    @property
    def first(self) -> Gaussian: ...


def together(parts: list[Expected]) -> Expected:
    """The sums of all parts, which are kept."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return replace(total, parts=tuple(parts))


def as_noise(noise: Noise, d: int) -> tuple[Array, Mask, bool]:
    """R with NaN for unknown variances, which variances are unknown, and whether they are all the same."""
    if isinstance(noise, str):
        if noise not in ("estimate", "diagonal"):
            raise ValueError(
                f"noise must be 'estimate', 'diagonal', a standard deviation, one for each of the {d} "
                f"variables (NaN: unknown) or a covariance ({d}, {d}); got {noise!r}."
            )
        return np.diag(np.full(d, np.nan)), np.ones(d, dtype=bool), noise == "estimate"
    R = np.asarray(noise, dtype=float)
    if R.ndim < 2:
        deviations = np.broadcast_to(R, (d,)) if R.size in (1, d) else np.full(d, -1.0)
        unknown = np.isnan(deviations)
        if np.any(deviations[~unknown] < 0) or np.isinf(deviations).any():
            raise ValueError(f"noise must be one standard deviation ≥ 0, or {d} of them; got {R}.")
        return np.diag(deviations**2), unknown, False
    if R.shape != (d, d) or not np.isfinite(R).all() or not is_covariance(R):
        raise ValueError(
            f"a noise covariance must be finite, symmetric, of shape ({d}, {d}) and without "
            "negative eigenvalues."
        )
    return R, np.zeros(d, dtype=bool), False


def spread(values: Array) -> Array:
    """The standard deviation of each variable over all that was seen of it, 1 for a constant: its unit."""
    deviations = values.std(axis=(0, 1))
    if np.isnan(deviations).any():
        seen = np.maximum((~np.isnan(values)).sum(axis=(0, 1)), 1)
        centred = np.nan_to_num(values - np.nan_to_num(values).sum(axis=(0, 1)) / seen)
        deviations = np.sqrt((centred**2).sum(axis=(0, 1)) / seen)
    return np.where(deviations > 0, deviations, 1.0)


def first_guess(values: Array, setup: Setup, R: Array) -> Parameters:
    """From increments over k steps, whose second moment is about `k H dt + 2 R`; unknown drift starts at 0.

    Products are averaged over the pairs that were seen. The longer lag is one over which the variance has
    doubled, so that the difference is not lost in the noise.
    """
    T, d, unknown = *values.shape[1:], setup.noise_free
    seen, y = (~np.isnan(values)).astype(float), np.nan_to_num(values)
    complete, found = bool(seen.all()), dict[int, Array]()
    for k in (k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k == 1 or k <= T // 2):
        gaps = (y[:, k:] - y[:, :-k]).reshape(-1, d)
        counts = np.full((d, d), len(gaps))
        if not complete:
            both = (seen[:, k:] * seen[:, :-k]).reshape(-1, d)
            gaps *= both
            counts = both.T @ both
        if np.diag(counts).min() >= 2:  # two variables may never be seen together
            found[k] = np.where(counts >= 2, gaps.T @ gaps / np.maximum(counts, 1), 0)
            if np.median(np.diag(found[k]) / _positive(found[min(found)])) >= 2:
                break
    if not found:
        raise ValueError(
            "a variable is never, or only once, seen at both ends of a step (or of any of 2, 4, 8 … steps): "
            "nothing tells its changes from noise."
        )
    first, last = min(found), max(found)
    short = _positive(found[first])
    if not unknown.any():
        Q = (found[last] - 2 * R) / last
    elif last > first:
        Q = (found[last] - found[first]) / (last - first)
    else:
        Q = found[first] / (2 * first)
    scale = np.sqrt(short)
    eigenvalues, vectors = np.linalg.eigh(Q / np.outer(scale, scale))
    floored = np.maximum(eigenvalues, max(0.1 * float(eigenvalues.mean()), 1e-3))
    Q = (vectors * floored) @ vectors.T * np.outer(scale, scale)
    variances = np.maximum((short - first * np.diag(Q)) / 2, 0.01 * short)
    R = R.copy()
    R[unknown, unknown] = variances[unknown].mean() if setup.noise_tied else variances[unknown]
    # the first slice may have few values: all others count as one more
    counts = seen[:, 0].sum(axis=0) + 1
    means = y.sum(axis=(0, 1)) / np.maximum(seen.sum(axis=(0, 1)), 1)
    centre = (y[:, 0].sum(axis=0) + means) / counts
    spread = ((y[:, 0] - centre) ** 2 * seen[:, 0]).sum(axis=0) / counts
    law = Gaussian(centre, np.diag(np.maximum(spread - np.diag(R), 0.1 * spread) + np.diag(Q)))
    H = Q / setup.dt if setup.H is None else setup.H
    return Parameters(setup.known.copy(), H, R, setup.initial or law)


def _positive(S: Array) -> Array:
    return np.maximum(np.diag(S), np.finfo(float).tiny)


def noise_grams(
    stack: Stack, gains: Gains, found: Means, now: Parameters, dt: float, *, total: bool = False
) -> Array:
    """Gram matrices of (φ √dt, η / √dt) of each trajectory (G k, q, q), or their sum (q, q): of the means, and of what is not known."""
    (d, p), w, k = now.theta.shape, stack.steps, stack.rows.shape[1]
    F, Q, x, r = np.eye(d) + now.theta[:, :d] * dt, now.H * dt, found.means[:-1], found.pulls
    if not w.all():  # the pulls of steps without data are 0
        x = x * w[:, :, None, None]
    before, after, lag = (
        np.einsum("tg,tgij->gij", w, C)
        for C in (gains.covariance[:-1], gains.covariance[1:], gains.lag)
    )
    if total:
        x, r, steps = x.reshape(-1, d), r.reshape(-1, d), k * w.sum()
        before, after, lag = (k * C.sum(axis=0) for C in (before, after, lag))
    else:
        x, r = (v.transpose(1, 2, 0, 3).reshape(-1, len(w), d) for v in (x, r))
        before, after, lag = (np.repeat(C, k, axis=0) for C in (before, after, lag))
        steps = np.repeat(w.sum(axis=0), k)
    cross = lag - F @ before
    gram = np.empty((*x.shape[:-2], p + d, p + d))
    gram[..., :d, :d] = (_t(x) @ x + before) * dt
    gram[..., p:, :d] = Q @ (_t(r) @ x) + cross
    gram[..., p:, p:] = (Q @ (_t(r) @ r) @ Q + after - lag @ F.T - F @ _t(cross)) / dt
    if p > d:
        gram[..., d, :d] = gram[..., :d, d] = x.sum(axis=-2) * dt
        gram[..., d, d] = steps * dt
        gram[..., p:, d] = r.sum(axis=-2) @ Q
    gram[..., :p, p:] = _t(gram[..., p:, :p])
    return gram


def squared_noise(stack: Stack, gains: Gains, found: Means) -> Array:
    """Expected squared noise of each trajectory and variable, (G, k, d)."""
    spread = np.diagonal(gains.covariance, axis1=2, axis2=3) * stack.seen
    total: Array = np.einsum("tgki,tgki->gki", found.gaps, found.gaps)
    return total + spread.sum(axis=0)[:, None]


def noise_gram(rows: Rows, steps: Array, now: Parameters, dt: float) -> Array:
    """The Gram matrices (m, q, q) of (φ √dt, η / √dt) of trajectories smoothed by themselves.

    From `Cov(η) = Q − Q N Q`, between roots of Q: a difference in Q's own units keeps its small directions.
    """
    (d, p), Q = now.theta.shape, now.H * dt
    root, gram = symmetric_root(Q), np.empty((len(steps), p + d, p + d))
    gram[:, :d, :d] = rows.xx * dt
    gram[:, p:, :d] = Q @ rows.rx
    if p > d:
        gram[:, d, :d] = rows.x * dt
        gram[:, d, d] = steps * dt
        gram[:, p:, d] = rows.r @ Q
        gram[:, :d, d] = gram[:, d, :d]
    noise = root @ (np.eye(d) * steps[:, None, None] + root @ rows.rr @ root) @ root
    gram[:, p:, p:] = noise / dt
    gram[:, :p, p:] = _t(gram[:, p:, :p])
    return gram


def _t(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2)


def expect(stacks: list[Stack], setup: Setup, parameters: Parameters) -> Expected:
    """The E-step: a pass of the smoother over all stacks, reduced to sums."""
    d, q = len(setup.free), sum(setup.free.shape)
    model = parameters.model(setup.dt)
    likelihood, gram, count, squares, seen = 0.0, np.zeros((q, q)), 0.0, np.zeros(d), np.zeros(d)
    firsts, first_covariance = [], np.zeros((d, d))
    for stack in (some for whole in stacks for some in portions(whole, 8 * d * d)):
        k, some = stack.rows.shape[1], stack.seen.any(axis=(0, 2))
        count += k * float(stack.steps.sum())
        seen += k * stack.seen.sum(axis=(0, 1))
        rows = alone(stack, model, n_jobs=setup.n_jobs)
        if rows is not None:
            steps = np.repeat(stack.steps.sum(axis=0), k)
            gram += noise_gram(rows, steps, parameters, setup.dt).sum(axis=0)
            likelihood += float(rows.likelihood.sum())
            squares += rows.squares.sum(axis=0)
            some = np.repeat(some, k)
            firsts.append(rows.means[some, 0])
            first_covariance += rows.covariances[some, 0].sum(axis=0)
            continue
        for portion in portions(stack, stack.values.shape[0] * d * d):
            some = portion.seen.any(axis=(0, 2))
            gains = riccati(portion.seen, model)
            for part in parts(portion):
                found = smooth(part, gains, model)
                k = part.rows.shape[1]
                likelihood += float(found.log_likelihood.sum())
                gram += noise_grams(part, gains, found, parameters, setup.dt, total=True)
                squares += squared_noise(part, gains, found).sum(axis=(0, 1))
                firsts.append(found.means[0, some].reshape(-1, d))
                first_covariance += k * gains.covariance[0, some].sum(axis=0)
    m = np.concatenate(firsts)
    centred = m - m.mean(axis=0)
    first = Gaussian(m.mean(axis=0), (centred.T @ centred + first_covariance) / len(m))
    return Expected(likelihood, gram, parameters.theta, count, squares, seen, first, float(len(m)))


def maximise(setup: Setup, expected: Expected, now: Parameters) -> Parameters:
    """The M-step. With known entries of Θ: Θ given H (generalised least squares), then H given Θ."""
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
    noise = noise_covariance(setup, expected, now.R, H)
    return Parameters(theta, H, noise, first_law(setup, expected, H))


def noise_covariance(setup: Setup, expected: Totals, now: Array, H: Array) -> Array:
    """R of the M-step: expected squared noise over its count, not below a share of what the SDE adds in one step."""
    R, unknown = now.copy(), setup.noise_free
    if unknown.any():
        squares, seen = expected.squares[unknown], np.maximum(expected.seen[unknown], 1)
        variances = squares.sum() / seen.sum() if setup.noise_tied else squares / seen
        R[unknown, unknown] = np.maximum(variances, least_noise(setup, H))
    return R


def least_noise(setup: Setup, H: Array) -> Array:
    """The least that free variances of R may be: one for all where they are tied."""
    least: Array = NOISE_FLOOR * setup.dt * np.diag(H)[setup.noise_free]
    return least.min(keepdims=True) if setup.noise_tied and len(least) else least


def first_law(setup: Setup, expected: Totals, H: Array) -> Gaussian:
    """p₀ of the M-step."""
    P = expected.first.covariance
    P = P + 1e-10 * np.diag(np.diag(P) + np.diag(H) * setup.dt)  # a common start has no logarithm
    return setup.initial or Gaussian(expected.first.mean, P)


class Slopes(NamedTuple):
    """Derivatives of the expected log-likelihood by Θ, H and, where they are free, the gaps."""

    theta: Array
    H: Array
    gaps: Array | None = None


@dataclass(frozen=True, eq=False)
class Ascent:
    """How parameters are laid out as vectors and maximised: what `climb` and `finish` need."""

    setup: Setup

    @property
    def spans(self) -> None:
        """No gap is free."""

    def pack(self, x: Parameters) -> Array:
        return pack(x, self.setup)

    def unpack(self, vector: Array, like: Parameters) -> Parameters:
        return unpack(vector, like, self.setup)

    def maximise(self, expected: Expected, now: Parameters) -> Parameters:
        return maximise(self.setup, expected, now)

    def weights(self, now: Parameters, expected: Expected) -> Array:
        return information_weights(now, expected, self.setup)

    def slopes(self, expected: Expected, now: Parameters) -> Slopes:
        """Derivatives by Θ and H at the parameters of the E-step: `H⁻¹ Σ η φᵀ` and `½ (H⁻¹ Σ η ηᵀ H⁻¹ − n H⁻¹)`."""
        p, gram = self.setup.free.shape[1], expected._gram_about(now.theta)
        weight = np.linalg.inv(now.H)
        of_H = 0.5 * (weight @ gram[p:, p:] @ weight - expected.count * weight)
        return Slopes(weight @ gram[p:, :p], of_H)


@cache
def lower_half(d: int) -> tuple[Indices, Indices]:
    """Rows and columns of a matrix's lower half."""
    rows, columns = np.tril_indices(d)
    return rows, columns


Flat = Callable[[Array, Array], Array]
"""A matrix and its unit as a vector, or the way back."""


def _log(S: Array, scale: Array) -> Array:
    """The lower half of the matrix logarithm of S in the units `scale`.

    In these coordinates the extrapolation needs half the steps it needs with Cholesky factors, where one
    small eigenvalue of H is spread over all rows.
    """
    return flattened(S, scale, lambda values: np.log(np.maximum(values, 1e-15 * values[-1])))


def _exp(vector: Array, scale: Array) -> Array:
    return raised(vector, scale, np.exp)


def flattened(S: Array, scale: Array, function: Callable[[Array], Array]) -> Array:
    """The lower half of a function of the matrix S in the units `scale`, by its eigenvalues."""
    values, vectors = np.linalg.eigh(S / np.outer(scale, scale))
    packed: Array = ((vectors * function(values)) @ vectors.T)[lower_half(len(S))]
    return packed


def raised(vector: Array, scale: Array, function: Callable[[Array], Array]) -> Array:
    """A function of the matrix whose lower half is given, by its eigenvalues, out of the units `scale`."""
    L = np.zeros((len(scale), len(scale)))
    L[lower_half(len(scale))] = vector
    if not np.isfinite(vector).all():
        raise np.linalg.LinAlgError("a step of the extrapolation went too far.")
    values, vectors = np.linalg.eigh(L)  # which reads the lower half only
    S: Array = (vectors * function(values)) @ vectors.T * np.outer(scale, scale)
    return (S + S.T) / 2


def pack(x: Parameters, setup: Setup, flat: Flat = _log) -> Array:
    """The free parameters as a vector without constraints: logarithms of variances, and of matrices unless another way is given."""
    variances = np.log(np.diag(x.R)[setup.noise_free])
    values = [x.theta[setup.free], variances[:1] if setup.noise_tied else variances]
    if setup.H is None:
        values.append(flat(x.H, setup.rate))
    if setup.initial is None:
        values += [x.initial.mean, flat(x.initial.covariance, setup.scale)]
    return np.concatenate(values)


def unpack(vector: Array, like: Parameters, setup: Setup, matrix: Flat = _exp) -> Parameters:
    """The parameters behind a vector; what is known is taken from `like`."""
    (d, _), unknown = setup.free.shape, setup.noise_free
    r = min(int(unknown.sum()), 1) if setup.noise_tied else int(unknown.sum())
    sizes = [int(setup.free.sum()), r, d * (d + 1) // 2 if setup.H is None else 0]
    theta_free, logs, of_H, first = np.split(vector, np.cumsum(sizes))
    theta, R = like.theta.copy(), like.R.copy()
    theta[setup.free] = theta_free
    R[unknown, unknown] = np.exp(logs)
    H = like.H if setup.H is not None else matrix(of_H, setup.rate)
    initial = setup.initial or Gaussian(first[:d], matrix(first[d:], setup.scale))
    return Parameters(theta, H, R, initial)


def _even(S: Array, scale: Array) -> Array:
    """The information of a trajectory on each entry of a matrix logarithm, roughly."""
    return np.ones(len(S) * (len(S) + 1) // 2)


def information_weights(
    now: Parameters, expected: Totals, setup: Setup, each: Flat = _even
) -> Array:
    """Square roots of the complete data's information on each entry of the packed vector, roughly."""
    p, n = setup.free.shape[1], float(expected.seen.max())
    regressors = np.diag(expected.gram)[:p]
    theta = np.sqrt(np.outer(1 / np.diag(now.H), regressors))[setup.free]
    logs = np.sqrt(expected.seen[setup.noise_free] / 2)
    weights = [theta, np.sqrt((logs**2).sum(keepdims=True)) if setup.noise_tied else logs]
    if setup.H is None:
        weights.append(np.sqrt(expected.count * each(now.H, setup.rate)))
    if setup.initial is None:
        firsts = max(n / max(len(expected.gram), 1), 1.0)
        P = np.diag(now.initial.covariance)
        weights += [
            np.sqrt(firsts / P),
            np.sqrt(firsts * each(now.initial.covariance, setup.scale)),
        ]
    return np.concatenate(weights)
