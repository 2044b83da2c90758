"""Standard errors by resampling trajectories, or groups of them: right also where the model is not, since it assumes only
that these are independent."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from retrace_sde.fit.moments import Moments, trajectory_grams
from retrace_sde.fit.regression import ErrorKind, StandardErrors, Through, parameters
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift


def bootstrap_errors(
    data: Data,
    order: Indices,
    dt: float | Array | Gaps,
    drift: Drift,
    rng: np.random.Generator,
    *,
    replicates: int = 200,
    through: Through | None = None,
) -> StandardErrors:
    """Spread of the maximum likelihood estimate, or of what moves with it, over panels of n trajectories, or as many groups, drawn with replacement.

    The order is held fixed. Each trajectory enters by its own Gram matrix, so a replicate is a weighted
    sum and not another pass through the data. `dt`: one step, or the gaps (T − 1,) or (n, T − 1).
    """
    d, G = data.shape[2], data.n_groups
    weights = rng.multinomial(G, np.full(G, 1 / G), size=replicates).astype(float)
    weights = weights if data.groups is None else weights[:, data.groups]
    steps = weights @ (data.observed - 1)

    def of_piece(piece: Data, order: Indices, gaps: Gaps, weights: Array) -> Array:
        grams = trajectory_grams(piece, order, gaps, drift=drift)
        return weights.T @ grams.reshape(len(grams), -1)

    total = data.sum_pieces(of_piece, order, Gaps.of(dt, data.lengths), weights.T)
    size = round(total.shape[1] ** 0.5)
    fits = (
        parameters(Moments.from_weights(gram.reshape(size, size), count, size - d))
        for gram, count in zip(total, steps, strict=True)
    )
    return errors_of_draws(fits, through)


def errors_of_draws(
    fits: Iterable[tuple[Array, Array]], through: Through | None = None
) -> StandardErrors:
    """The spread of estimates Θ (d, p) and H over replicates, or of what moves with them."""
    coefficients, diffusions = (np.stack(each) for each in zip(*fits, strict=True))
    z, g = coefficients - coefficients.mean(axis=0), diffusions - diffusions.mean(axis=0)
    z, g = (z, g) if through is None else through(z, g)
    free = len(z) - 1
    covariances = np.einsum("rip,riq->ipq", z, z) / free
    deviations = np.sqrt((g**2).sum(axis=0) / free)
    return StandardErrors.of(covariances, deviations, ErrorKind.BOOTSTRAP)
