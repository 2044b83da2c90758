"""A shared order searched again, parameters and all: every stretch of it reversed, each with its own best parameters.

The search moves slices under parameters fitted to the order it stands at, and those defend it. With few trajectories an
order whose stretch runs the wrong way can then be a dead end that lies nats below the truth, and whose direction means
nothing. Here the parameters move with the order: all T(T − 1)/2 reversals, and their reverses, in closed form at once.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.direction.linear import Form, Panels, ways
from retrace_sde.io.arrays import Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.process.drift import Affine, is_linear
from retrace_sde.progress import steps
from retrace_sde.search.alternate import SEARCHING, Found, alternate
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.protocols import Model
from retrace_sde.search.space import Space

WORK = 4_000_000
"""Numbers (n T d for each of T²/2 reversals) that may be looked at: beyond, the search has trajectories enough."""

ROUNDS = 5
"""Reversals that are adopted, at most."""

GAIN = 0.1
"""Nats that a reversal must gain."""


def searched_again(model: Model, space: Space, found: Found, *, max_iter: int) -> Found:
    """The order found, or a better one that a reversed stretch leads to."""
    if type(model) is not EulerModel or model.prior is not None or not is_linear(model.drift):
        return found
    n, T, d = model.data.shape
    if model.data.covariates is not None or T < 4 or n < 2 or n * T * d * T * T / 2 > WORK:
        return found
    for _ in steps(range(ROUNDS), SEARCHING):
        order = _best_reversal(model, found.better.order)
        one = model.fit(order)
        two = model.reversed_fit(one)
        if max(one.log_likelihood, two.log_likelihood) < found.better.log_likelihood + GAIN:
            return found
        trail = alternate(model, space, order, max_iter=max_iter)
        better = trail.pair.better if trail.pair.better.log_likelihood > one.log_likelihood else one
        worse = model.reversed_fit(better)
        if worse.log_likelihood > better.log_likelihood:
            better, worse = worse, better
        rounds = (*found.rounds, *trail.rounds, better.as_round())
        found = Found(better, worse, rounds, trail.settled)
    return found


def _best_reversal(model: EulerModel, order: Indices) -> Indices:
    """The order with the stretch reversed that makes it most likely, whichever way round."""
    T = len(order)
    orders = []
    for i in range(T - 1):
        for j in range(i + 2, T + 1):
            trial = order.copy()
            trial[i:j] = trial[i:j][::-1]
            orders.append(trial)
    x = to_numpy(model.data.block(slice(None))[0])
    affine = isinstance(model.drift, Affine)
    x = (x - (x.mean(axis=(0, 1)) if affine else 0.0)) / x.std(axis=(0, 1))
    stack = np.array(orders)
    panels = Panels(np.ascontiguousarray(x[:, stack].transpose(1, 0, 2, 3)))
    one, two = ways(panels, Form(affine=affine))
    return orders[int(np.argmax(np.maximum(one.total, two.total)))]
