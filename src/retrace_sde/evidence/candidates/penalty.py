"""The one penalty of parameters: Schwarz' (BIC), by blocks of parameters that rest on different numbers of observations.

The log of a marginal likelihood is, by Laplace's approximation,

    log ∫ p(data | θ) p(θ) dθ = ℓ(θ̂) − ½ log|I(θ̂)| + O(1),

and the information on k parameters that N independent observations tell grows like N in every direction, `log|I| ≈ k log N`.
Blocks of parameters rest on different observations: coefficients and noise of a step on all steps, the law of random
intercepts on the trajectories, the variance of one interval on the n d numbers that cross it. So the penalty is `½ Σ k log N`
over blocks. A start law has no block: its density is that of left-out trajectories, which has paid for it already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """Parameters that rest on the same observations, and the number of these."""

    parameters: float
    observations: float


def penalty(*blocks: Block) -> float:
    """`½ Σ k log N` in nats."""
    return float(sum(0.5 * k * np.log(N) for k, N in blocks))


def step_parameters(d: int, *, lags: int = 1, affine: bool) -> float:
    """Coefficients and noise of a linear step: d (lags d + 1) and d (d + 1)/2."""
    return d * (lags * d + affine) + d * (d + 1) / 2


def akaike(parameters: float) -> float:
    """One nat for each parameter: the penalty of random intercepts where *estimates* are chosen, not the direction.

    The two errors differ in cost. Taking subjects for different that are alike widens intervals by a fifth; taking them for
    alike that differ makes the drift several times too small. Of panels whose subjects are alike 2 % are given intercepts
    (n = 120, T = 20, d = 2).
    """
    return float(parameters)
