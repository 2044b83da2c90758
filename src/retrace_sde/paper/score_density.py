"""Scores of slices that are not Gaussian: Gaussian mixtures and kernel densities, fitted slice by slice.

Both work in coordinates in which the slice has mean 0 and unit covariance, `z = Wᵀ (x − μ)`, and carry the
gradient back by `∇_x log p = W ∇_z log p`. The paper asks only for a consistent `Score(X_t)`; both are consistent,
the kernel one slowly so in many dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import softmax

from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import deferred
from retrace_sde.panel.blocks import Data, evenly
from retrace_sde.paper.score import StandardisedScores, standardised

mixture = deferred("sklearn.mixture")

exceptions = deferred("sklearn.exceptions")

SliceGradient = Callable[[Array], Array]

KERNEL_WIDTHS = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
"""Widths of kernels to choose from, in standard deviations of a slice."""

BLOCK_PAIRS = 1 << 21
"""Pairs of states whose kernels are held at once."""


def _by_slice(gradients: list[SliceGradient], z: Array) -> Array:
    return np.stack([gradient(each) for gradient, each in zip(gradients, z, strict=True)])


@dataclass(frozen=True)
class MixtureScore:
    """`p_t = Σ_k π_k N(m_k, S_k)`: `score = −Σ_k r_k(x) S_k⁻¹ (x − m_k)`, r_k the components' shares at x.

    components: at most; their number is chosen, slice by slice, by the Bayesian information criterion. Full
    covariances: a slice needs many more trajectories than variables times components. seed: of the starts.
    """

    components: int = 3
    restarts: int = 3
    seed: int = 0

    def fit(self, data: Data, /) -> StandardisedScores:
        """One mixture for each slice."""
        base, z = standardised(data)
        return StandardisedScores(base, partial(_by_slice, [self._of_slice(each) for each in z]))

    def _of_slice(self, z: Array) -> SliceGradient:
        n, d = z.shape
        parameters = d * (d + 3) / 2
        most = max(1, min(self.components, int(n / (2 * parameters))))
        found = []
        for k in range(1, most + 1):
            model = mixture.GaussianMixture(k, n_init=self.restarts, random_state=self.seed)
            # Of too many components, which the criterion then drops.
            with warnings.catch_warnings(action="ignore", category=exceptions.ConvergenceWarning):
                found.append(model.fit(z))
        best = min(found, key=lambda model: float(model.bic(z)))
        precisions, means = best.precisions_, best.means_

        def gradient(at: Array) -> Array:
            shares = best.predict_proba(at)
            pulls = np.einsum("kij,mkj->mki", precisions, at[:, None, :] - means)
            return -np.einsum("mk,mki->mi", shares, pulls)

        return gradient


@dataclass(frozen=True)
class KernelScore:
    """Gaussian kernels of width h on the states, shrunk so that the slice keeps its covariance.

    `p(z) = mean_j N(z; √(1−h²) z_j, h² I)`; h = 1 is one Gaussian. A state does not vote for its own place (leave one
    out). bandwidth: h in standard deviations; None: the one of a grid with the least score-matching loss
    `mean(½ ‖s‖² + div s)` (Hyvärinen), which is, up to a constant, the mean squared error of the score. Takes n² T d
    operations, and in more than a few dimensions h nears 1.
    """

    bandwidth: float | None = None

    def fit(self, data: Data, /) -> StandardisedScores:
        """Keeps the states of each slice."""
        if self.bandwidth is not None and not 0 < self.bandwidth < 1:
            raise ValueError(
                f"bandwidth must lie between 0 and 1 standard deviations, not {self.bandwidth}."
            )
        base, z = standardised(data)
        h = _bandwidth(z) if self.bandwidth is None else self.bandwidth
        kernels: list[SliceGradient] = [partial(_kernel_score, each, h) for each in z]
        return StandardisedScores(base, partial(_by_slice, kernels))


def _bandwidth(z: Array) -> float:
    """The best width for some states of some slices."""
    T, n, _ = z.shape
    some = z[evenly(T, 10)]
    at = evenly(n, 2000)
    losses = [sum(_loss(each, h, each[at]) for each in some) for h in KERNEL_WIDTHS]
    return float(KERNEL_WIDTHS[int(np.argmin(losses))])


def _loss(z: Array, h: float, at: Array) -> float:
    """`mean(½ ‖s‖² + div s)`, where `div s = tr Cov_w / h⁴ − d / h²` and w are the kernels' shares at a state."""
    weights, centres = _shares(z, h, at)
    means = weights @ centres
    variance = weights @ (centres**2).sum(axis=1) - (means**2).sum(axis=1)
    gradient = (means - at) / h**2
    divergence = variance / h**4 - z.shape[1] / h**2
    return float((0.5 * (gradient**2).sum(axis=1) + divergence).mean())


def _kernel_score(z: Array, h: float, at: Array) -> Array:
    rows = max(1, BLOCK_PAIRS // len(z))
    parts = []
    for k in range(0, len(at), rows):
        weights, centres = _shares(z, h, at[k : k + rows])
        parts.append((weights @ centres - at[k : k + rows]) / h**2)
    return np.concatenate(parts)


def _shares(z: Array, h: float, at: Array) -> tuple[Array, Array]:
    """Each kernel's share of the density at each state, its own left out; and the kernels' centres."""
    centres = np.sqrt(1 - h * h) * z
    exponents = (at @ centres.T - 0.5 * (centres**2).sum(axis=1)) / h**2
    i, j = np.nonzero(at[:, :1] == z[:, 0])
    same = (at[i] == z[j]).all(axis=1)
    exponents[i[same], j[same]] = -np.inf
    shares: Array = softmax(exponents, axis=1)
    return shares, centres
