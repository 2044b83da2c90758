"""All permutations of short trajectories, and the posterior over orders of others under a fit: exact where they are short, sampled elsewhere.

For T ≤ 6 observations each of the T! orders has its joint log-likelihood `log p₀ + Σ log p`; the prior over orders is uniform, and the
parameters are taken for known. Trajectories of one length are judged together, so that 10⁵ of three observations take a second.

Where the model is wrong (gaps that differ, noise that is not Gaussian, few subjects) the posterior is too narrow. One exponent says by how much, found on
subjects whose order is known: `logit p' = β logit p`, `β = argmin Σ log-loss` of pairs of left-out subjects. It does not change which of two observations
is the likelier first. Measured on real panels in docs/place.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import factorial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import optimize
from retrace_sde.orders.draws import Chains
from retrace_sde.orders.search import BlockCosts
from retrace_sde.panel.lengths import Lengths
from retrace_sde.search.posterior import order_posterior, turned_about
from retrace_sde.search.protocols import Model

MAX_LENGTH = 6
"""720 orders; seven observations would have 5,040."""

MAX_LIKELIHOODS = 20_000_000
"""Observations, times orders, up to which hidden states are filtered along every order: a minute of one core."""

BLOCK_NUMBERS = 1 << 23
"""Log-likelihoods of trajectories times orders that are held at a time, 64 MiB."""


@dataclass(frozen=True, eq=False)
class ExactOrders:
    """All `orders` (m, T) of the trajectories `rows`, which have `length` observations, padding in its place, and their log-probabilities (rows, m)."""

    rows: Indices
    length: int
    orders: Indices
    log_probabilities: Array

    @classmethod
    def of(cls, rows: Indices, length: int, orders: Indices, values: Array) -> ExactOrders:
        """From log-likelihoods (rows, m), up to a constant for each trajectory."""
        return cls(rows, length, orders, values - logsumexp(values, axis=1, keepdims=True))

    @property
    def best(self) -> Indices:
        """The most likely order of each trajectory, (n, T)."""
        return self.orders[self.log_probabilities.argmax(axis=1)]

    def probability(self, order: Any) -> Array:
        """The probability of a given order of each trajectory, (n, T) or one (T,) for all."""
        wanted = np.broadcast_to(np.asarray(order), self.best.shape)
        T = wanted.shape[1]
        code = T ** np.arange(T)
        at = np.argsort(self.orders @ code)
        place = np.searchsorted((self.orders @ code)[at], wanted @ code)
        return np.exp(self.log_probabilities[np.arange(len(wanted)), at[place]])


@dataclass(frozen=True, eq=False)
class OthersPosterior:
    """The posterior over each trajectory's own order.

    `positions[j, a, k]`: the probability that observation a stands at position k; `before[j, a, b]`: that a came before b, .5 on
    the diagonal, NaN beyond a trajectory's length. `samples` (n, draws, T): whole orders.
    """

    positions: Array
    before: Array
    samples: Indices

    def either_way(self, lengths: Lengths, rng: np.random.Generator) -> OthersPosterior:
        """Both directions of time equally likely: they are those of all trajectories at once, in every draw."""
        mirrored, turned = (turned_about(each, lengths.reversal) for each in (self.positions, self.samples))  # fmt: skip
        draws = self.samples.shape[1]
        turn = rng.permutation(draws) < draws // 2
        samples = np.where(turn[None, :, None], turned, self.samples)
        before = (self.before + self.before.transpose(0, 2, 1)) / 2
        return OthersPosterior((self.positions + mirrored) / 2, before, samples)


def enumerable(model: Model, law: Any) -> bool:
    """All orders of all trajectories can be judged: short ones, under a law that has no gaps to average over."""
    longest = int(model.data.lengths.each.max())
    if longest > MAX_LENGTH or model.prior is not None or model.gaps_random:
        return False
    if not model.steps_equal:
        return False
    return _by_pairs(model, law) or factorial(longest) * model.data.lengths.total <= MAX_LIKELIHOODS


def every_order(model: Model, law: Any) -> Iterator[ExactOrders]:
    """The exact posterior over orders, trajectories of one length at a time, in blocks."""
    lengths, T = model.data.lengths, model.data.shape[1]
    for length in np.unique(lengths.each).tolist():
        rows = np.flatnonzero(lengths.each == length)
        orders = np.tile(np.arange(T), (factorial(length), 1))
        orders[:, :length] = all_orders(length)
        size = max(1, BLOCK_NUMBERS // len(orders))
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            values = (
                _of_pairs(model, law, some, orders[:, :length])
                if _by_pairs(model, law)
                else _of_states(model, law, some, orders)
            )
            yield ExactOrders.of(some, length, orders, values)


def best_orders(model: Model, law: Any) -> Indices:
    """The most likely order of each trajectory, (n, T)."""
    found = np.empty(model.data.shape[:2], dtype=np.intp)
    for each in every_order(model, law):
        found[each.rows] = each.best
    return found


def posterior_of_others(
    model: Model, law: Any, rng: np.random.Generator, *, draws: int, start: Indices | None = None
) -> OthersPosterior:
    """The posterior over orders of trajectories; where it is sampled, from a start (n, T)."""
    n, T, _ = model.data.shape
    if start is not None:
        chains = Chains.start(start, rng)
        drawn, _ = order_posterior(model, law, chains, samples=model.effort.positions)
        kept = drawn.samples.astype(np.intp)
        samples = kept[:, rng.integers(kept.shape[1], size=draws)]
        before = drawn_before(kept, model.data.lengths)
        return OthersPosterior(drawn.position_probabilities.astype(float), before, samples)
    positions, before = np.zeros((n, T, T)), np.full((n, T, T), np.nan)
    samples = np.empty((n, draws, T), dtype=np.intp)
    for each in every_order(model, law):
        chances, place = np.exp(each.log_probabilities), np.argsort(each.orders, axis=1)
        where = (place[:, :, None] == np.arange(T)).astype(float)
        positions[each.rows] = (chances @ where.reshape(len(place), -1)).reshape(-1, T, T)
        earlier = (place[:, :, None] < place[:, None, :]) + 0.5 * np.eye(T)
        found = (chances @ earlier.reshape(len(place), -1)).reshape(-1, T, T)
        inside = slice(None), slice(each.length), slice(each.length)
        some = before[each.rows]
        some[inside] = found[inside]
        before[each.rows] = some
        reached = chances.cumsum(axis=1)
        for r in range(draws):
            level = rng.random((len(reached), 1)) * reached[:, -1:]
            samples[each.rows, r] = each.orders[(reached <= level).sum(axis=1)]
    return OthersPosterior(positions, before, samples)


def drawn_before(samples: Indices, lengths: Lengths) -> Array:
    """How often a stands before b in drawn orders (n, draws, T)."""
    n, draws, T = samples.shape
    found = np.zeros((n, T, T))
    for r in range(draws):
        place = np.argsort(samples[:, r], axis=1)
        found += place[:, :, None] < place[:, None, :]
    found = found / draws + 0.5 * np.eye(T)
    inside = lengths.mask
    return np.where(inside[:, :, None] & inside[:, None, :], found, np.nan)


def _by_pairs(model: Model, law: Any) -> bool:
    """The law judges pairs of observations, each by itself."""
    return hasattr(law, "costs") and not model.states_hidden


def _of_pairs(model: Model, law: Any, rows: Indices, orders: Indices) -> Array:
    """Log-likelihoods (rows, m), up to a constant, from the costs of pairs and of first observations."""
    costs = law.costs(model.data.take(rows), slice(None))
    return order_log_likelihoods(costs, orders)


def _of_states(model: Model, law: Any, rows: Indices, orders: Indices) -> Array:
    """The same where states are hidden: what was seen, filtered along each order."""
    few: Any = model.for_others(model.data.take(rows))
    size = len(rows)
    return np.column_stack([few.log_joint(np.tile(each, (size, 1)), law) for each in orders])


MIN_PROBABILITY = 0.005
"""Probabilities are kept this far from 0 and 1 before they are tempered: some hundred sampled orders say no more."""

EXPONENT_RANGE = 0.02, 1.5
"""Range of β: where nothing is known of pairs, and where probabilities are sharpened a little."""


def tempered(before: Array, exponent: float) -> Array:
    """Pair probabilities (…) with their log-odds multiplied; as they are where the exponent is 1."""
    if exponent == 1:
        return before
    p = np.clip(before, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(1 / (1 + ((1 - p) / p) ** exponent))


def exponent_of(right: Array) -> float:
    """β of the least log-loss, from the probabilities (N,) that were given to what is true of each pair."""
    p = np.clip(right, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    odds = np.log(p / (1 - p))

    def loss(exponent: float) -> float:
        return float(np.logaddexp(0, -exponent * odds).mean())

    return float(optimize.minimize_scalar(loss, bounds=EXPONENT_RANGE, method="bounded").x)


def all_orders(T: int) -> Indices:
    """Every order of T observations, (T!, T)."""
    return np.array(list(permutations(range(T))), dtype=np.intp)


def order_log_likelihoods(costs: BlockCosts, orders: Indices) -> Array:
    """Log-likelihoods (n, m) of orders (m, T), up to a constant, from the costs of pairs and of first observations."""
    pairs, T = costs.pairs, orders.shape[1]
    if not pairs.size:
        gaps = costs.target[:, None, :T] - costs.source[:, :T, None]
        pairs = 0.5 * np.einsum("nabk,nabk->nab", gaps, gaps)
    found = -costs.start[:, orders[:, 0]]
    for a, b in pairwise(orders.T):
        found -= pairs[:, a, b]
    return np.asarray(found)


LONGEST = 8
"""40 320 orders each; nine visits would have 362 880."""


def enumerate_orders(costs: BlockCosts) -> ExactOrders:
    """The exact posterior over orders (T ≤ 8) from the costs of steps and of first observations.

    The prior is uniform over the T! orders, and the parameters are taken as known.
    """
    n, T = costs.start.shape
    if T > LONGEST:
        raise ValueError(
            f"all permutations are enumerated for trajectories of up to {LONGEST} observations; these have {T}. "
            "Use sample_orders()."
        )
    orders = all_orders(T)
    return ExactOrders.of(np.arange(n), T, orders, order_log_likelihoods(costs, orders))
