"""Does a panel differ from its time reverse at all? A randomisation test in which each trajectory is randomly time-reversed.

Under any time-reversible process a trajectory is as likely as its reverse, so the signs of features that change sign with the direction are random:
the change of the values from first to last, of their squares and products, the circulation `Σ_t x_t x_{t+1}ᵀ − x_{t+1} x_tᵀ`, and the skewness of
steps. The test is exact for independent trajectories, or groups of them, and assumes no model. Step models call nonlinear processes in
equilibrium; this does not.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.io.arrays import Array

FLIPS = 999
"""Random reversals."""

MIN_GROUPS = 8
"""Independent trajectories, or groups of them, that the test needs: of fewer, too many of the 2ⁿ reversals are nearly the panel
itself."""


def reversibility_p(panels: Panels, rng: np.random.Generator, *, means: bool) -> float:
    """The p-value of "every trajectory is as likely as its reverse"; 0 where there are too few trajectories to ask.

    `means`: offsets of the steps are free, so that only deviations from the slices' means may tell.
    """
    x = panels.x[0]
    blocks = _features(x - x.mean(axis=0), panels)[1:] if means else _features(x, panels)
    return _p(blocks, panels, rng)


def _features(x: Array, panels: Panels) -> list[Array]:
    """Blocks (n, k) of features that change sign when a trajectory is reversed."""
    n, d = len(x), x.shape[2]
    last = panels.visits.each - 1
    i, j = np.triu_indices(d)
    first, end = x[:, 0], x[np.arange(n), last]
    live = panels.live(1)[..., None]
    step = np.diff(x, axis=1) * live
    here, there = x[:, :-1] * live, x[:, 1:] * live
    turning = np.einsum("nti,ntj->nij", here, there) - np.einsum("nti,ntj->nij", there, here)
    a, b = np.triu_indices(d, 1)
    return [
        end - first,
        end[:, i] * end[:, j] - first[:, i] * first[:, j],
        turning[:, a, b],
        (step**3).sum(axis=1),
    ]


def _p(blocks: list[Array], panels: Panels, rng: np.random.Generator) -> float:
    """By random signs of the groups, the largest of the blocks' standardised sums of squares."""
    groups = np.arange(len(blocks[0])) if panels.groups is None else panels.groups
    _, code = np.unique(groups, return_inverse=True)
    G = int(code.max()) + 1
    if G < MIN_GROUPS:
        return 0.0
    signs = np.concatenate([np.ones((1, G)), rng.choice([-1.0, 1.0], size=(FLIPS, G))])
    largest = np.full(FLIPS + 1, -np.inf)
    for block in blocks:
        if not block.shape[1]:
            continue
        total = np.zeros((G, block.shape[1]))
        np.add.at(total, code, block)
        scale = np.sqrt((total**2).sum(axis=0))
        z = signs @ (total / np.where(scale > 0, scale, 1.0))
        k = int((scale > 0).sum())
        if k:
            largest = np.maximum(largest, ((z**2).sum(axis=1) - k) / np.sqrt(2 * k))
    return float((largest >= largest[0] * (1 - 1e-12)).sum() / (FLIPS + 1))
