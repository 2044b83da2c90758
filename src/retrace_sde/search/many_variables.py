"""A shared order where variables are as many as trajectories, or more: judged by its evidence.

Along every order d (d + 1) coefficients and a covariance are then fitted to few steps, and the most likely order is the one that they
happen to fit best. With parameters integrated out (`orders.collapsed.marginal`) an order is judged by what it predicts. How much the prior of
the coefficients counts is chosen by the evidence, too (empirical Bayes; George and Foster 2000): where values are mostly noise a step can
hardly be predicted. Of 30 panels of 58 variables and 34 subjects (`studies/direction.py`, `expression` with noise 1.5, levels 1 and plates .3; ten of
each start) every slice is in its place in 23, by likelihood in 16.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.orders.collapsed.marginal import OrderEvidence, default_priors
from retrace_sde.process.drift import is_linear
from retrace_sde.progress import steps
from retrace_sde.search.alternate import SEARCHING, Found
from retrace_sde.search.protocols import Model

MIN_VARIABLES = 7
"""Variables from which these are said to be many: of fewer, all candidate models of the direction can be fitted to all."""

PRIOR_WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Observations that the prior of the coefficients may count for."""

MAX_PAIR_ELEMENTS = 3_000_000
"""Elements of the moments of all pairs of slices, at most: 24 MB for each weight."""

JUDGED_ELEMENTS = 2_000_000
"""Elements of the moments of orders that are judged at once."""

MIN_MOVE_NATS = 1e-6
"""Nats that a move must gain: less is rounding."""


def outnumbered(model: Model) -> bool:
    """Variables are many, and as many as trajectories or more; states are seen as they are, at equal steps."""
    n, _, d = model.data.shape
    data = model.data
    if not d >= n > 1 or d < MIN_VARIABLES or data.lazy or data.viewed or data.lengths.ragged:
        return False
    outside = data.covariates is not None or model.timing.gaps_known or model.gaps_estimated
    return (
        model.closed_form
        and model.mean_path is None
        and is_linear(model.drift)
        and not (outside or model.states_hidden)
    )


def search_by_evidence(model: Model, found: Found) -> Found:
    """The order found, or a better one that moves lead to from it, by evidence."""
    _, T, d = model.data.shape
    p = found.better.moments.n_features
    if not outnumbered(model) or model.prior is not None or T * T * d * (d + p) > MAX_PAIR_ELEMENTS:
        return found
    states = model.data.slices(np.arange(T))
    features = np.asarray(model.drift.features(states, None))
    judges = [
        OrderEvidence.of(states, features, default_priors(states, features, weight))
        for weight in PRIOR_WEIGHTS
    ]
    order, chosen = found.better.order, -1
    for _ in steps(range(len(judges)), SEARCHING):
        likeliest = int(np.argmax([float(judge(order)) for judge in judges]))
        if likeliest == chosen:
            break
        chosen = likeliest
        order = climbed(judges[chosen], order)
    if np.array_equal(order, found.better.order):
        return found
    one = model.fit(order, final=True)
    two = model.reversed_fit(one, final=True)
    better, worse = (one, two) if one.objective >= two.objective else (two, one)
    return Found(better, worse, (*found.rounds, better.as_round()), found.settled)


def climbed(judge: OrderEvidence, order: Indices) -> Indices:
    """The order of most evidence that reversed stretches and moved slices lead to, one after the other."""
    value = float(judge(order))
    while True:
        near = moved(order)
        parts = -(-len(near) * len(order) * judge.pairs.shape[2] // JUDGED_ELEMENTS)
        values = np.concatenate([judge(each) for each in np.array_split(near, parts)])
        best = int(values.argmax())
        if values[best] <= value + MIN_MOVE_NATS:
            return order
        order, value = near[best], float(values[best])


def moved(order: Indices) -> Indices:
    """Orders (moves, T) that differ by one reversed stretch or by one slice elsewhere."""
    T = len(order)
    found = []
    for i in range(T):
        for j in range(i + 2, T + 1):
            found.append(np.concatenate([order[:i], order[i:j][::-1], order[j:]]))
        rest = np.delete(order, i)
        found.extend(np.insert(rest, k, order[i]) for k in range(T) if abs(k - i) > 1)
    return np.array(found, dtype=np.intp)
