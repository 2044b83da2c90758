"""Scores of slices that are not Gaussian: mixtures and kernel densities, fitted slice by slice, and one small network for all slices.

They work in coordinates in which the slice has mean 0 and unit covariance, `z = Wᵀ (x − μ)`, and carry the
gradient back by `∇_x log p = W ∇_z log p`. The paper asks only for a consistent `Score(X_t)`; all are consistent,
the kernel one slowly so in many dimensions.

The network learns by denoising score matching (it needs torch, the extra `score`). With `z̃ = z + σ ε` the minimiser of `E ‖σ s(z̃) + ε‖²` is the score of
the density smoothed by N(0, σ² I) (Vincent 2011), which tends to the score itself as σ → 0. It learns only what a Gaussian slice leaves:
`s_t(z) = −z/(1 + σ²) + f(z, e_t)`, where e_t is learned for each slice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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


@dataclass(frozen=True)
class NetworkScore:
    """Denoising score matching by a network of two hidden layers, the same for all slices.

    sigma: the smoothing in standard deviations of a slice, which shrinks the score of a Gaussian by 1/(1 + σ²). steps of
    Adam on `batch` states, the rate falling to zero; the second half is averaged. seed: of starts and noise. It needs
    thousands of states in all, and takes seconds to minutes on a processor.
    """

    hidden: int = 64
    embedding: int = 4
    sigma: float = 0.15
    steps: int = 3000
    batch: int = 512
    rate: float = 3e-3
    seed: int = 0

    def fit(self, data: Data, /) -> StandardisedScores:
        """Trains on the standardised states of all slices together."""
        torch = _torch()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # so small a network gains nothing from more
        try:
            return self._fit(torch, data)
        finally:
            torch.set_num_threads(threads)

    def _fit(self, torch: Any, data: Data) -> StandardisedScores:
        base, z = standardised(data)
        T, n, d = z.shape
        states = torch.as_tensor(z.reshape(T * n, d), dtype=torch.float32)
        which = torch.arange(T).repeat_interleave(n)
        draw = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):  # a seed of our own, and none left behind
            torch.manual_seed(self.seed)
            network = _network(torch, T, d, self.embedding, self.hidden)
        steady = torch.optim.swa_utils.AveragedModel(network)
        adam = torch.optim.Adam(network.parameters(), lr=self.rate)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.steps)
        for step in range(self.steps):
            rows = torch.randint(T * n, (self.batch,), generator=draw)
            noise = torch.randn((self.batch, d), generator=draw)
            at = states[rows] + self.sigma * noise
            # σ s(z̃) + ε, the Gaussian part of s apart: it is known, and the network starts at zero.
            rest = noise - self.sigma / (1 + self.sigma**2) * at
            loss = ((self.sigma * network(at, which[rows]) + rest) ** 2).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            fall.step()
            if step >= self.steps // 2:
                steady.update_parameters(network)
        return StandardisedScores(base, partial(_gradient, steady, self.sigma))


def _gradient(network: Any, sigma: float, z: Array) -> Array:
    """The network's part and that of a Gaussian slice, at z (T, m, d)."""
    torch = _torch()
    T, m, d = z.shape
    with torch.no_grad():
        which = torch.arange(T).repeat_interleave(m)
        at = torch.as_tensor(z.reshape(T * m, d), dtype=torch.float32)
        learned: Array = network(at, which).numpy().astype(np.float64).reshape(T, m, d)
    return learned - z / (1 + sigma**2)


def _network(torch: Any, T: int, d: int, embedding: int, hidden: int) -> Any:
    """f(z, e_t): two hidden layers; the last starts at zero, so that training starts at Gaussian slices."""

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(T, embedding)
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(d + embedding, hidden),
                torch.nn.SiLU(),
                torch.nn.Linear(hidden, hidden),
                torch.nn.SiLU(),
                torch.nn.Linear(hidden, d),
            )
            torch.nn.init.zeros_(self.layers[-1].weight)
            torch.nn.init.zeros_(self.layers[-1].bias)

        def forward(self, z: Any, which: Any) -> Any:
            return self.layers(torch.cat([z, self.embed(which)], dim=1))

    return Network()


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "score='network' needs torch: pip install 'retrace-sde[score]'."
        ) from error
    return torch
