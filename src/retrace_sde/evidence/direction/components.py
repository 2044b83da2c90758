"""The direction where variables are as many as trajectories, or more: asked once more of their first principal components.

First states then have no covariance of their own, models with memory or random intercepts cannot be fitted, and what single trajectories add to a
ratio is mostly chance. Principal components of all observations do not depend on the order, and what is reversible, or at rest, is so in them,
too. Only deviations from the slices' means count there: beside measurement noise no candidate tells their path from an outside trend. Variables in
which equal values pile up at one end (a detection limit, ranks) are left out: such cells alone can make a direction, and of many variables a few
are not needed. It is a second test of one hypothesis, at half the level.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.closed_form.panels import Form, Ground
from retrace_sde.evidence.direction.comparison import DirectionCall, compare_directions
from retrace_sde.evidence.direction.verdict import DirectionTest, Reason, direction_test
from retrace_sde.evidence.tied_cells import piles
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.search.many_variables import MIN_VARIABLES, outnumbered
from retrace_sde.search.protocols import Model

COMPONENTS = MIN_VARIABLES - 1
"""Principal components: as many variables as all candidate models can be fitted to."""


def by_components(
    model: Model,
    order: Indices,
    first: DirectionTest,
    rng: np.random.Generator,
    *,
    grounds: frozenset[Ground],
) -> DirectionCall:
    """The direction that the components identify where `first`, of all variables, left it open; else that test."""
    asked = first.reason in (Reason.TESTED, Reason.UNEXPLAINED) and Ground.SPREADS in grounds
    if first.identified or not asked or not _order_known(model):
        return DirectionCall(first, False)
    x = to_numpy(model.data.values)
    x = x[:, :, judged_variables(x)]
    few = model.about(None, x @ principal_axes(x))
    one = few.fit(order, final=True)
    both = one, few.reversed_fit(one, final=True)
    k, alpha = few.data.shape[2], first.alpha / 2
    test = direction_test(
        *(each.log_likelihoods for each in both), dimension=k, alpha=alpha, groups=few.data.groups
    )
    along = CandidatesAlong(few, both, test.contributions, rng)
    grounds = grounds - {Ground.MEANS}
    found = compare_directions(along, test, rng, alpha=alpha, grounds=grounds)
    if not found.test.identified:
        return DirectionCall(first, False)
    return found._replace(test=replace(found.test, components=k))


def _order_known(model: Model) -> bool:
    """Variables are many, but Markov steps of all of them can be fitted: else their order is hardly known.

    Of 18 halves of a panel of 58 variables (17 subjects, 10 visits), to which they cannot be, none had every slice in its place (τ of −.6 to .9),
    and one was called along an order with τ = −.2.
    """
    return outnumbered(model) and Form(means=True).fits(*model.data.shape)


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
