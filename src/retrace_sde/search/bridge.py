"""The likelihood ratio between the two directions of Monte-Carlo EM, marginal over the orders (bridge sampling)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy.special import expit

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.search.protocols import Averages


class Side(Protocol):
    """A law, and chains that have converged under it."""

    @property
    def law(self) -> Any: ...
    @property
    def chains(self) -> Chains: ...


def bridge(
    model: Averages, one: Side, two: Side, *, bridges: int = 0, opposite: bool = True
) -> Array:
    """`log p(X_j; one) − log p(X_j; two)`, marginal over the orders, with their prior.

    Reversal is a bijection of orders, so `p(X; two)/p(X; one) = E[p(X_rev o; two)/p(X_o; one)]` over o drawn
    under one, and vice versa; both sides together give Bennett's ratio. Orders that the prior does not allow to be
    reversed are not reversed. `bridges`: orders drawn per chain, where they are not the model's own number. `opposite`: False where
    both laws run the same way, and orders are compared as they are.
    """
    model, effort = model.some(model.effort.bridged), model.effort
    n, T, _ = model.data.shape
    prior = model.prior
    turn = np.ones(n, dtype=bool) if prior is None else prior.symmetric(model.data.observed)
    turn = turn & opposite

    def log_ratio(order: Indices, crossed: Indices | None, here: Any, there: Any) -> Array:
        """Of one draw; `crossed`: the classes of gaps drawn with the order, where gaps are drawn."""
        back, crossed_back = np.where(turn[:, None], model.data.reversed(order), order), None
        if crossed is not None:
            turned = model.data.lengths.steps.reversed(crossed)
            crossed_back = np.where(turn[:, None], turned, crossed)
        known = model.prior_costs(order) - model.prior_costs(back)
        ahead = model.log_joint(order, here, crossed)
        return model.log_joint(back, there, crossed_back) - ahead + known

    def log_ratios(here: Side, there: Side) -> Array:
        chains = here.chains.some(effort.bridged)
        keep = bridges or effort.bridges
        stretch = Stretch(4 * keep, 2 * T, keep)
        draws = model.draw(here.law, chains, stretch)
        each = zip(draws.orders(), draws.crossed(), strict=True)
        return np.array([log_ratio(*drawn, here.law, there.law) for drawn in each])

    return -bennett(log_ratios(one, two), log_ratios(two, one))


def bennett(ahead: Array, back: Array) -> Array:
    """`r = log Z₂/Z₁` (n,) from log-ratios (draws, n): `log p₂ − log p₁` of draws from 1, and the reverse of those from 2.

    `Σ₁ σ(ahead − r) = Σ₂ σ(back + r)` (Bennett 1976), with equally many draws: it has the smallest variance, and
    not the bias of the mean of two one-sided estimates. By bisection: the left side decreases in r, the right one increases.
    """
    low = np.minimum(ahead.min(axis=0), (-back).min(axis=0)) - 50.0
    high = np.maximum(ahead.max(axis=0), (-back).max(axis=0)) + 50.0
    for _ in range(80):
        r = (low + high) / 2
        above = expit(ahead - r).sum(axis=0) > expit(back + r).sum(axis=0)
        low, high = np.where(above, r, low), np.where(above, high, r)
    return (low + high) / 2
