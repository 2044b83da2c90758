"""The direction where variables are as many as trajectories, or more: judged by their first principal components.

First states then have no covariance of their own, and models with memory or random intercepts cannot be fitted. Principal components of all
observations do not depend on the order, and what is reversible, or at rest, is so in them, too. Variables in which equal values pile up at
one end (a detection limit, ranks) are left out: the share of such cells can make a direction, and among many variables a few are not needed.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.direction.verdict import DirectionTest, direction_test
from retrace_sde.evidence.tied_cells import piles
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.search.many_variables import MIN_VARIABLES
from retrace_sde.search.protocols import Model

COMPONENTS = MIN_VARIABLES - 1
"""Principal components: as many variables as all candidate models can be fitted to."""


def along_components(
    model: Model, order: Indices, rng: np.random.Generator, *, alpha: float
) -> tuple[CandidatesAlong, DirectionTest]:
    """The candidates of the components along an order, and Vuong's test of these."""
    x = to_numpy(model.data.values)
    x = x[:, :, judged_variables(x)]
    few = model.about(None, x @ principal_axes(x))
    one = few.fit(order, final=True)
    both = one, few.reversed_fit(one, final=True)
    test = direction_test(
        *(each.log_likelihoods for each in both),
        dimension=few.data.shape[2],
        alpha=alpha,
        groups=few.data.groups,
    )
    return CandidatesAlong(few, both, test.contributions, rng), test


def judged_variables(x: Array) -> Indices:
    """The variables of x (n, T, d) without piles of equal values; all of them where fewer than the components are left."""
    every = np.arange(x.shape[2])
    left = np.setdiff1d(every, [each.variable for each in piles(x)])
    return left if len(left) >= COMPONENTS else every


def principal_axes(x: Array) -> Array:
    """Directions (d, components) in which observations (n, T, d) vary most, each variable in units of its own deviation."""
    rows = x.reshape(-1, x.shape[2])
    scale = rows.std(axis=0)
    axes = np.linalg.svd((rows - rows.mean(axis=0)) / scale, full_matrices=False)[2]
    found: Array = axes[:COMPONENTS].T / scale[:, None]
    return found
