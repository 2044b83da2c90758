"""One posterior over a shared order, its direction and its parameters, where states are seen as they are.

Parameters are integrated out (`orders.collapsed`), so that an order is judged by its evidence, not by the parameters fitted along another;
chains over orders start apart. Where one order has all the evidence no chain is run. The direction is a question of its own, which
more than this model's likelihood decides (`evidence.direction`): while it is open both directions are equally likely, what is known
of time aside; once it is identified the reverse of an order has what its evidence gives it, at most the level of the test, which
bounds how often a direction is identified wrongly.

The errors of the parameters follow by the law of total variance,

    E (θ − θ̂)² = mean over orders of (Var(θ | order) + (θ̂(order) − θ̂)²),

all orders read in the direction of the answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from retrace_sde.fit.exact import embedding_at
from retrace_sde.fit.regression import Estimate, StandardErrors, regression_errors
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.collapsed.chains import (
    POWERS,
    REPLICAS,
    cheapest_move,
    draw_orders,
    rules_of,
)
from retrace_sde.orders.collapsed.marginal import OrderEvidence
from retrace_sde.orders.moves.rules import order_cost
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.progress import report
from retrace_sde.search.model import Fit
from retrace_sde.search.posterior import SAMPLING, OrderPosterior, convergence, mixed
from retrace_sde.search.protocols import Model

CONCENTRATED_NATS = 15.0
"""Nats that the cheapest move must cost for one order to have all the evidence: a few thousand moves have e⁻¹⁵ each, a thousandth together."""

PAIR_ELEMENTS = 100_000
"""Elements of the moments of all pairs of slices, at most: with 3 million (T = 60, d = 20, one trajectory) chains took seven minutes."""

STRETCHES = (1, 2, 6)
"""How much longer chains run between records each time that they have not converged; from the second on they are tempered."""

STUCK_NATS = 15.0
"""Nats by which a chain lies below the best one where it has found a poor optimum: it goes on from the best."""

OPEN_PAIRS = 0.05
"""Pairs whose precedence is less certain than that are used by the convergence diagnostics."""

FITTED_ORDERS = 40
"""Orders drawn along which parameters are fitted for their errors."""

MOVED_VARIABLES = 20
"""Variables up to which errors along each order are those of the SDE; beyond, their ratio is that of Euler's, which differs by terms of order Δt."""


class OrderDraws(NamedTuple):
    """Orders (draws, T), read in the direction of the order found, the log-odds of each against its reverse, R-hat and effective size."""

    orders: Indices
    log_odds: Array
    r_hat: float
    effective_size: float


def order_evidence(model: Model, found: Fit, *, few: bool = False) -> OrderEvidence | None:
    """The evidence of orders, by all trajectories or by those that the search sees; None where it has no closed form.

    That is with hidden states, unequal or unknown gaps, common shocks, steps of unequal variance, or too many pairs of slices.
    """
    T, d, data = len(found.order), model.data.shape[2], model.data
    plain = model.closed_form and model.mean_path is None
    if not plain or model.timing.gaps_known or not found.gaps.equal or data.lengths.ragged:
        return None
    if T < 3 or T * T * d * (d + found.moments.n_features) > PAIR_ELEMENTS:
        return None
    data = model.for_search().data if few else data
    if data.lazy or model.with_unequal_steps(found) is not None:
        return None
    states = data.slices(np.arange(T))
    u = data.covariates
    inputs = None if u is None else to_numpy(u).transpose(1, 0, 2)  # held from a slice to the next
    return OrderEvidence.of(states, np.asarray(model.drift.features(states, inputs)))


def order_draws(
    model: Model, found: Fit, rng: np.random.Generator, *, draws: int
) -> OrderDraws | None:
    """Orders drawn from their posterior; the one found again and again where it has all the evidence. None: no closed form."""
    evidence = order_evidence(model, found, few=True)
    if evidence is None:
        return None
    order, prior = found.order, model.prior
    if cheapest_move(evidence, prior, order) > CONCENTRATED_NATS:
        return OrderDraws(order[None], _log_odds(model, evidence, order[None]), 1.0, float(draws))
    if model.for_search() is not model:
        evidence = order_evidence(model, found)
        if evidence is None:
            return None
    report(SAMPLING)
    T, records = len(order), max(-(-draws // REPLICAS), 4)
    ends = np.array([[model.repaired(rng.permutation(T))] for _ in range(REPLICAS)], dtype=np.intp)
    ends[0, 0] = order
    for stretch in STRETCHES:
        warm = stretch > 1
        if warm and ends.shape[1] == 1:
            ends = np.repeat(ends, len(POWERS), axis=1)
        kept, ends = draw_orders(
            evidence, prior, ends, rng, records=records, stretch=stretch, warm=warm
        )
        values = evidence(kept)
        kept = along(kept, order)
        diagnosed = diagnosed_orders(kept, np.logaddexp(values, evidence(kept[..., ::-1])))
        if mixed(*diagnosed):
            break
        level = values.mean(axis=1)
        ends[level < level.max() - STUCK_NATS] = ends[int(np.argmax(level))]
    orders = kept.reshape(-1, T)[:draws]
    return OrderDraws(orders, _log_odds(model, evidence, orders), *diagnosed)


def _log_odds(model: Model, evidence: OrderEvidence, orders: Indices) -> Array:
    """Of orders against their reverses, what is known of time included."""
    back = np.ascontiguousarray(orders[:, ::-1])
    return evidence(orders) - evidence(back) + _known_odds(model, orders)


def _known_odds(model: Model, orders: Indices) -> Array:
    """Log-odds of orders against their reverses by what is known of time alone."""
    if model.prior is None:
        return np.zeros(len(orders))
    rules = rules_of(model.prior)
    ways = (np.ascontiguousarray(each) for each in (orders[:, ::-1], orders))
    back, ahead = (np.array([order_cost(rules, o) for o in way]) for way in ways)
    return back - ahead


def along(orders: Indices, found: Indices) -> Indices:
    """Orders (…, T), those that run against the one found reversed."""
    place = np.argsort(found)[orders]
    middle = np.arange(len(found)) - (len(found) - 1) / 2
    back = (place * middle).sum(axis=-1) < 0
    return np.where(back[..., None], orders[..., ::-1], orders)


def diagnosed_orders(orders: Indices, values: Array) -> tuple[float, float]:
    """Split R-hat and effective size of the log evidence and of the precedence of all pairs that are open."""
    place = np.argsort(orders, axis=-1)
    i, j = np.triu_indices(orders.shape[-1], 1)
    before = (place[..., i] < place[..., j]).astype(float)
    share = before.mean(axis=(0, 1))
    is_open = np.minimum(share, 1 - share) > OPEN_PAIRS
    return convergence(np.concatenate([values[..., None], before[..., is_open]], axis=-1))


def posterior_of(
    model: Model, drawn: OrderDraws, *, identified: bool, level: float, draws: int
) -> OrderPosterior:
    """Where each slice stands, orders and their reverses each with its share (see the head of this file)."""
    T = drawn.orders.shape[1]
    orders = drawn.orders[np.arange(draws) * len(drawn.orders) // draws]
    odds = drawn.log_odds if identified else _known_odds(model, drawn.orders)
    reversed_share = 1 / (1 + np.exp(np.clip(odds, -700.0, 700.0)))
    if identified:
        reversed_share = np.minimum(reversed_share, level)
    share = reversed_share[np.arange(draws) * len(drawn.orders) // draws]
    P = np.zeros((T, T))
    every = np.arange(T)[None]
    np.add.at(P, (orders, every), np.broadcast_to((1 - share)[:, None] / draws, orders.shape))
    np.add.at(P, (orders[:, ::-1], every), np.broadcast_to(share[:, None] / draws, orders.shape))
    total = np.cumsum(share) + 1e-9
    back = np.floor(total) > np.floor(total - share)
    samples = np.where(back[:, None], orders[:, ::-1], orders).astype(np.int16)
    where = P.astype(np.float32)
    return OrderPosterior(where, samples, drawn.r_hat, drawn.effective_size, over_parameters=True)


def over_orders(
    model: Model, found: Fit, estimate: Estimate, name: str, drawn: Indices
) -> Estimate:
    """The estimate with errors that include the uncertainty of the order, by the law of total variance.

    What is within an order is scaled from the errors of the order found, whatever these rest on, by the ratio of the model's.
    """
    every = drawn[evenly(len(drawn), FITTED_ORDERS)]
    orders, counts = np.unique(every, axis=0, return_counts=True)
    weights = counts / counts.sum()
    along = [model.fit(each) for each in orders]
    fits = [model.estimate(each, name) for each in along]
    # Euler's values, which stand in where a step belongs to no SDE, are other parameters.
    alike = np.array([each.scheme == estimate.scheme for each in fits])
    if not alike.any():
        return estimate
    weights = weights[alike] / weights[alike].sum()
    pairs = [(one, of) for one, of, kept in zip(along, fits, alike, strict=True) if kept]
    plain = _model_errors(model, found, estimate)
    others, fits = [_model_errors(model, *each) for each in pairs], [of for _, of in pairs]

    def within(own: Array, others: list[Array]) -> Array:
        mean: Array = np.tensordot(weights, np.square(others), 1)
        return np.sqrt(mean / np.where(own > 0, own, 1.0) ** 2)

    ratio = within(plain.drift, [each.drift for each in others])
    of_H = within(plain.diffusion, [each.diffusion for each in others])
    away = np.array([each.coefficients for each in fits]) - estimate.coefficients
    apart = np.array([each.diffusion for each in fits]) - estimate.diffusion
    between = np.einsum("k,kij,kil->ijl", weights, away, away)
    spread = np.tensordot(weights, apart**2, 1)
    return replace(estimate, errors=estimate.errors.scaled(ratio, of_H).plus(between, spread))


def _model_errors(model: Model, found: Fit, estimate: Estimate) -> StandardErrors:
    """The regression's errors along an order, moved to the parameters that are shown."""
    few = len(estimate.diffusion) <= MOVED_VARIABLES
    through = None
    if few and estimate.scheme == "exact":
        through = embedding_at(estimate.coefficients, estimate.diffusion, model.dt).moved
    return regression_errors(found.moments, found.step.diffusion, through)
