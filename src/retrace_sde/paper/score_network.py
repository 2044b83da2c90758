"""Scores by denoising score matching: one small network for all slices (needs torch, the extra `score`).

With `z̃ = z + σ ε` the minimiser of `E ‖σ s(z̃) + ε‖²` is the score of the density smoothed by N(0, σ² I) (Vincent 2011),
which tends to the score itself as σ → 0. The network learns only what a Gaussian slice leaves:
`s_t(z) = −z/(1 + σ²) + f(z, e_t)`, where e_t is learned for each slice, in coordinates of unit covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import Data
from retrace_sde.paper.score import StandardisedScores, standardised


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
