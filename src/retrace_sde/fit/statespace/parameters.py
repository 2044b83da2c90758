"""Parameters of the state-space model: what is known of them, where a search for the others starts, and how they make a vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.statespace.model import StateSpace, StepModel, is_covariance
from retrace_sde.fit.statespace.transitions import euler_transitions, transitions
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.sde import Gaussian, Scheme, Transition

Noise = Literal["estimate", "diagonal"] | float | ArrayLike

NOISE_FLOOR = 1e-6
"""Smallest estimated noise variance, as a share of the variance that the SDE adds in one step."""


@dataclass(frozen=True, eq=False)
class Parameters:
    """Θ = (A, B) (d, p), H, R, and the law of X_0.

    `scheme`: how they make a step. On a regular grid without inputs the step is always written in Euler's form, `F = 1 + A dt`, `s = c
    dt`, `Q = H dt`, whatever the scheme: (Θ, H) then are a way to write (F, s, Q), and the M-step is a closed form. `gaps` (T − 1,):
    where they are estimated; `shape`: of the law of gaps, where they are random.
    """

    theta: Array
    H: Array
    R: Array
    initial: Gaussian
    gaps: Array | None = None
    shape: float | None = None
    scheme: Scheme = "euler"

    def crossed(self, gaps: Array) -> Array:
        """The estimated gaps of classes of steps; these where none are estimated."""
        return gaps if self.gaps is None else self.gaps

    def steps(self, gaps: Array) -> StepModel:
        """The model whose classes of steps cross these gaps, or the estimated ones."""
        made = euler_transitions if self.scheme == "euler" else transitions
        return StepModel(*made(self.theta, self.H, self.crossed(gaps)), self.R, self.initial)

    def model(self, gap: float) -> StateSpace:
        """One step, over a gap, without inputs."""
        one = replace(self, gaps=None).steps(np.array([gap]))
        shift = one.inputs[0, :, 0] if one.inputs.shape[2] else np.zeros(len(self.H))
        return StateSpace(Transition(one.matrix[0], shift, one.covariance[0]), self.R, self.initial)


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

    @property
    def rate(self) -> Array:
        """Units of √H: a logarithm of H in others would round otherwise when the unit of time changes."""
        return self.scale / np.sqrt(self.dt)

    @property
    def n_noises(self) -> int:
        """How many variances of R are free parameters."""
        free = int(self.noise_free.sum())
        return min(free, 1) if self.noise_tied else free

    def noises(self, variances: Array) -> Array:
        """The free ones of the variables' variances (d,); their mean where they are tied."""
        found = variances[self.noise_free]
        return found.mean(keepdims=True) if self.noise_tied and len(found) else found

    def with_noises(self, R: Array, variances: Array | float) -> Array:
        """R with other free variances."""
        found = R.copy()
        found[self.noise_free, self.noise_free] = variances
        return found

    def noise_slopes(self, R: Array, squares: Array, seen: Array) -> Array:
        """Derivatives (…, k) of a log-likelihood by free variances, from squared noise (…, d) of so many observations."""
        unknown, variances = self.noise_free, np.diag(R)[self.noise_free]
        found: Array = 0.5 * (squares[..., unknown] / variances - seen[..., unknown]) / variances
        return found.sum(axis=-1, keepdims=True) if self.noise_tied and unknown.any() else found


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
            "its changes cannot be distinguished from noise."
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
    R = setup.with_noises(R, setup.noises(variances))
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


def least_noise(setup: Setup, H: Array) -> Array:
    """The least that free variances of R may be: one for all where they are tied."""
    least: Array = NOISE_FLOOR * setup.dt * np.diag(H)[setup.noise_free]
    return least.min(keepdims=True) if setup.noise_tied and len(least) else least


@cache
def lower_half(d: int) -> tuple[Indices, Indices]:
    """Rows and columns of a matrix's lower half."""
    rows, columns = np.tril_indices(d)
    return rows, columns


def flattened(S: Array, scale: Array, function: Callable[[Array], Array]) -> Array:
    """The lower half of a function of the matrix S in the units `scale`, by its eigenvalues."""
    values, vectors = np.linalg.eigh(S / np.outer(scale, scale))
    return ((vectors * function(values)) @ vectors.T)[lower_half(len(S))]


def raised(vector: Array, scale: Array, function: Callable[[Array], Array]) -> Array:
    """A function of the matrix whose lower half is given, by its eigenvalues, out of the units `scale`."""
    L = np.zeros((len(scale), len(scale)))
    L[lower_half(len(scale))] = vector
    if not np.isfinite(vector).all():
        raise np.linalg.LinAlgError("a step of the extrapolation went too far.")
    values, vectors = np.linalg.eigh(L)  # which reads the lower half only
    S: Array = (vectors * function(values)) @ vectors.T * np.outer(scale, scale)
    return (S + S.T) / 2
