"""All permutations of short trajectories: the exact posterior over orders, as the paper describes it.

For T ≤ 8 every one of the T! orders has its joint log-likelihood `log p₀ + Σ log p` under a fit: nothing is searched
and nothing sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from scipy.special import logsumexp

from retrace_sde.io.arrays import Array, Indices

LONGEST = 8
"""40 320 orders each; nine visits would have 362 880."""


@dataclass(frozen=True, eq=False)
class ExactOrders:
    """All `orders` (T!, T), and the log-probability of each for each trajectory, (n, T!)."""

    orders: Indices
    log_probabilities: Array

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


def all_orders(T: int) -> Indices:
    """Every order of T observations, (T!, T)."""
    return np.array(list(permutations(range(T))), dtype=np.intp)


def order_log_likelihoods(pairs: Array, start: Array, orders: Indices) -> Array:
    """Log-likelihoods (n, m) of orders (m, T), up to a constant, from the costs of pairs (n, T, T) and of first observations (n, T)."""
    found = -start[:, orders[:, 0]]
    for a, b in pairwise(orders.T):
        found -= pairs[:, a, b]
    return np.asarray(found)


def enumerate_orders(target: Array, source: Array, start: Array) -> ExactOrders:
    """The exact posterior over orders (T ≤ 8) from whitened states and predictions (n, T, d) and start costs (n, T).

    The prior is uniform over the T! orders, and the parameters are taken as known.
    """
    T = start.shape[1]
    if T > LONGEST:
        raise ValueError(
            f"all permutations are enumerated for trajectories of up to {LONGEST} observations; these have {T}. "
            "Use sample_orders()."
        )
    orders = all_orders(T)
    costs = 0.5 * ((target[:, None] - source[:, :, None]) ** 2).sum(axis=3)
    values = order_log_likelihoods(costs, start, orders)
    return ExactOrders(orders, values - logsumexp(values, axis=1, keepdims=True))
