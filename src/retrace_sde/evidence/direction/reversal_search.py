"""A shared order searched again, parameters included: every stretch of it reversed, each with its own best parameters.

The search moves slices under parameters fitted to the current order, and those favour it. With few trajectories an order with
a reversed stretch can then be a local optimum, nats below the truth, whose direction means nothing. Here the parameters move
with the order: all T(T − 1)/2 reversals, and their reverses, in closed form at once. Where steps differ in variance, a reversal must not make
that less gradual: where volatility rises, the first two slices were exchanged in 4 of 60 panels (0 now). Variances that may differ in any way are no
such judge, they excuse misplaced slices: of eight panels that swing with hidden velocities two orders were right by them, four by gradual ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retrace_sde.evidence.closed_form.null_simulation import SIMULATED_NUMBERS
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import fit_directions
from retrace_sde.fit.unequal_steps import gradual_gain
from retrace_sde.io.arrays import Indices
from retrace_sde.orders.costs import step_costs
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.process.drift import Affine, is_linear
from retrace_sde.progress import steps
from retrace_sde.search.alternate import SEARCHING, Found, alternate
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model
from retrace_sde.search.space import Pair, Space

MAX_REVERSAL_NUMBERS = 4_000_000
"""Numbers (n T d for each of T²/2 reversals) up to which reversals are tried: larger panels have trajectories enough."""

MAX_REVERSALS = 5
"""Reversals that are adopted, at most."""

FITTED_REVERSALS = 5
"""Reversals that are fitted where states are hidden: each takes EM."""

MIN_REVERSAL_GAIN = 0.1
"""Nats that a reversal must gain."""


def search_reversals(model: Model, space: Space, found: Found, *, max_iter: int) -> Found:
    """The order found, or a better one that a reversed stretch leads to."""
    if model.states_hidden and model.mean_path is not None:
        return _search_hidden(model, space, found, max_iter=max_iter)
    if not model.closed_form or model.prior is not None or not is_linear(model.drift):
        return found
    n, T, d = model.data.shape
    if (
        model.data.covariates is not None
        or T < 4
        or n < 2
        or n * T * d * T * T / 2 > MAX_REVERSAL_NUMBERS
    ):
        return found
    for _ in steps(range(MAX_REVERSALS), SEARCHING):
        order = _best_reversal(model, found.better.order)
        one = model.fit(order)
        two = model.reversed_fit(one)
        if not any(_better(model, found.better, each) for each in (one, two)):
            return found
        trail = alternate(model, space, order, max_iter=max_iter)
        better = trail.pair.better if trail.pair.better.log_likelihood > one.log_likelihood else one
        worse = model.reversed_fit(better)
        if worse.log_likelihood > better.log_likelihood:
            better, worse = worse, better
        rounds = (*found.rounds, *trail.rounds, better.as_round())
        found = Found(better, worse, rounds, trail.settled)
    return found


def _search_hidden(model: Model, space: Space, found: Found, *, max_iter: int) -> Found:
    """The same behind noise or missing values where trajectories share shocks: by deviations and mean path, each order with its own fit.

    Fitted are those that are most likely under the parameters of the order found, or of its reverse.
    """
    hidden: Any = model  # which judges many orders at once
    n, T, d = model.data.shape
    equal = model.steps_equal and model.data.covariates is None and model.prior is None
    if not equal or T < 4 or n * T * d * T * T / 2 > MAX_REVERSAL_NUMBERS:
        return found
    for _ in steps(range(MAX_REVERSALS), SEARCHING):
        orders = _reversals(found.better.order)
        path = [model.mean_path_value(each, found.better.step) for each in orders]
        ahead = hidden.log_joints(orders, found.better.law)
        back = hidden.log_joints([each[::-1] for each in orders], found.worse.law)
        values = np.maximum(ahead.sum(axis=1), back.sum(axis=1)) + path
        likely = np.argsort(-values, kind="stable")[:FITTED_REVERSALS]
        before = Pair(found.better, found.worse)
        pairs = [space.fit(model, orders[k], before) for k in likely]
        best = max(pairs, key=lambda pair: pair.better.objective)
        if best.better.objective < found.better.objective + MIN_REVERSAL_GAIN:
            break
        trail = alternate(model, space, best.better.order, max_iter=max_iter)
        if trail.pair.better.objective > best.better.objective:
            best = trail.pair
        one = model.fit(best.better.order, best.better, final=True)
        two = model.reversed_fit(one, best.worse, final=True)
        better, worse = (one, two) if one.objective >= two.objective else (two, one)
        rounds = (*found.rounds, *trail.rounds, better.as_round())
        found = Found(better, worse, rounds, trail.settled)
    return found


def _better(model: Model, found: Fit, other: Fit) -> bool:
    """Another order is more likely, and where steps differ in variance, that changes as gradually along it."""
    if other.log_likelihood < found.log_likelihood + MIN_REVERSAL_GAIN:
        return False
    if model.with_unequal_steps(found) is None:
        return True
    return _gradual(model, other) >= _gradual(model, found)


def _gradual(model: Model, fit: Fit) -> float:
    """The log-likelihood of an order whose steps have variances that change gradually."""
    n, _, d = model.data.shape
    steps_squared = step_costs(model.data, fit.order, fit.step)
    return fit.log_likelihood + gradual_gain(steps_squared, float(n * d))


def _reversals(order: Indices) -> list[Indices]:
    """An order with each of its stretches reversed."""
    orders, T = [], len(order)
    for i in range(T - 1):
        for j in range(i + 2, T + 1):
            trial = order.copy()
            trial[i:j] = trial[i:j][::-1]
            orders.append(trial)
    return orders


def _best_reversal(model: Model, order: Indices) -> Indices:
    """The order with the stretch reversed that makes it most likely, in either direction."""
    orders = _reversals(order)
    x = to_numpy(model.data.block(slice(None))[0])
    affine = isinstance(model.drift, Affine)
    x = (x - (x.mean(axis=(0, 1)) if affine else 0.0)) / x.std(axis=(0, 1))
    stack, size = np.array(orders), max(1, SIMULATED_NUMBERS // x.size)
    totals = []
    for begin in range(0, len(stack), size):
        some = Panels(np.ascontiguousarray(x[:, stack[begin : begin + size]].transpose(1, 0, 2, 3)))
        one, two = fit_directions(some, Form(affine=affine))
        totals.append(np.maximum(one.total, two.total))
    return orders[int(np.argmax(np.concatenate(totals)))]
