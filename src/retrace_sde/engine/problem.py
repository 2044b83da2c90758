"""An order, or one for each trajectory, and what it is worth: its fit and its joint log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, evenly
from retrace_sde.data.knowledge import Knowledge
from retrace_sde.estimate.euler import Model, step_log_likelihoods
from retrace_sde.estimate.moments import Moments, moments
from retrace_sde.estimate.regression import mle
from retrace_sde.estimate.start import start_log_densities
from retrace_sde.orders.costs import spread
from retrace_sde.orders.flips import align
from retrace_sde.orders.prior import Prior, compiled, known_times
from retrace_sde.process.drift import Drift


@dataclass(frozen=True, eq=False)
class Round:
    """One round of an alternation: the order, the parameters fitted to it, and its joint log-likelihood."""

    order: Order
    drift: Array
    diffusion: Array
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Directed:
    """An order with its moments and its fit, and each trajectory's joint log-likelihood under it.

    `prior_costs` is what the knowledge of time says against the order (one number, or one per trajectory; ∞:
    impossible); `gaps` are the times between its observations where they are not all dt.
    """

    order: Order
    moments: Moments
    model: Model
    log_likelihoods: Array
    prior_costs: Array
    gaps: Array | None = None

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    @property
    def diffusion(self) -> Array:
        return self.model.diffusion

    @property
    def objective(self) -> float:
        """Log-likelihood and log-prior together: what orders are compared by."""
        return self.log_likelihood - float(self.prior_costs.sum())

    def as_round(self) -> Round:
        return Round(self.order, self.model.coefficients, self.model.diffusion, self.log_likelihood)


@dataclass(frozen=True, eq=False)
class Problem:
    """What an order is judged by: the data, the step between slices, the drift's features, and what is known.

    `gaps`, where the times are known, are those between observations in their known order: (T − 1,), or
    (n, T − 1) with dt beyond a trajectory's end. `stamps` are exact times of the slices of a shared order,
    NaN where unknown; `origins` the first of all times where all are known.
    """

    data: Data
    dt: float
    drift: Drift
    prior: Prior | None = None
    gaps: Array | None = None
    stamps: Array | None = None
    origins: Array | None = None

    def some(self, size: int) -> Problem:
        """The same problem on `size` trajectories, evenly spaced."""
        n = self.data.shape[0]
        if size >= n:
            return self
        prior = None if self.prior is None else self.prior.some(n, size)
        gaps = self.gaps
        if gaps is not None and gaps.ndim == 2:
            gaps = gaps[evenly(n, size)]
        return replace(self, data=self.data.some(size), prior=prior, gaps=gaps)

    def informed(self, knowledge: Knowledge, *, shared: bool) -> Problem:
        """The same problem with what is known of time; the true gaps too, and their mean as dt, where all is."""
        n, T, _ = self.data.shape
        lengths = self.data.lengths
        prior = compiled(knowledge, n, T, shared=shared, dt=self.dt, lengths=lengths)
        times = known_times(knowledge, n, T, shared=shared, lengths=lengths)
        gaps = origins = None
        dt = self.dt
        if times is not None:
            origins = np.nanmin(times, axis=-1, keepdims=True)
            gaps = np.diff(np.sort(times, axis=-1), axis=-1)
            dt = float(np.nanmean(gaps))
            gaps = np.nan_to_num(gaps, nan=dt)
        stamps = None
        if shared and knowledge.timestamps is not None and knowledge.timestamp_error is None:
            stamps = np.asarray(knowledge.timestamps, dtype=float)
        return replace(self, dt=dt, prior=prior, gaps=gaps, stamps=stamps, origins=origins)

    def times(self, order: Order, gaps: Array | None) -> Array:
        """The times along an order: a regular grid from 0, or those that gaps and known times give."""
        if gaps is None:
            return self.dt * np.arange(order.shape[-1], dtype=float)
        zero = np.zeros((*gaps.shape[:-1], 1))
        times = np.concatenate([zero, np.cumsum(gaps, axis=-1)], axis=-1)
        if self.origins is not None:
            return times + self.origins
        if self.stamps is not None:
            known = np.flatnonzero(~np.isnan(self.stamps[order]))
            if len(known):
                return times + self.stamps[order][known[0]] - times[known[0]]
        return times

    @cached_property
    def n_features(self) -> int:
        """The number p of regressors; covariates may bring some of them."""
        x, u = self.data.block(slice(0, 1))
        return int(self.drift.features(x, u).shape[-1])

    @cached_property
    def variances(self) -> Array:
        """Each variable's variance over the panel, which no order changes; a hundred trajectories tell it."""
        return spread(self.data.some(min(self.data.shape[0], 100))) ** 2

    def fit(self, order: Order, gaps: Array | None = None) -> Directed:
        """Maximum likelihood along an order, and the joint log-likelihood `log p₀ + Σ log p` there."""
        gaps = self.gaps if gaps is None else gaps
        dt = self.dt if gaps is None else gaps
        return self._judge(order, moments(self.data, order, dt, self.drift), gaps)

    def _judge(self, order: Order, statistics: Moments, gaps: Array | None = None) -> Directed:
        found = mle(statistics)
        model = Model(self.drift, found.coefficients, found.diffusion, self.dt)
        start = start_log_densities(self.data.states(order)[None], model, self.variances)[0]
        steps = step_log_likelihoods(self.data, order, model, gaps)
        return Directed(order, statistics, model, start + steps, self.prior_costs(order), gaps)

    def prior_costs(self, order: Order) -> Array:
        """−log prior of an order, (1,), or of each trajectory's, (n,)."""
        if self.prior is None:
            return np.zeros(1)
        return self.prior.cost(order, self.data.lengths)

    def aligned(self, orders: Order, rng: np.random.Generator) -> Order:
        """Orders of single trajectories, some of them turned around so that all run the same way."""
        costs = self.prior_costs(orders), self.prior_costs(self.data.reversed(orders))
        return align(self.data, orders, self.dt, self.drift, costs, rng)

    def repaired(self, order: Order) -> Order:
        """The order changed where it breaks a rule."""
        return order if self.prior is None else self.prior.repair(order, self.data.lengths)

    def reversed_fit(self, found: Directed) -> Directed:
        """The fit along the reverse of an order, whether or not that is possible."""
        back = self.data.reversed(found.order)
        if found.gaps is not None:
            return self.fit(back, self._reversed_gaps(found.gaps))
        turn = self.drift.reversal(self.data.shape[2], self.dt)
        if turn is None or found.moments.from_rows:
            return self.fit(back)
        return self._judge(back, found.moments.transformed(turn))

    def both_directions(self, order: Order) -> tuple[Directed, Directed]:
        """The fit along an order and along its reverse, the more likely (prior included) first."""
        one = self.fit(order)
        other = self.reversed_fit(one)
        return (one, other) if one.objective >= other.objective else (other, one)

    def _reversed_gaps(self, gaps: Array) -> Array:
        if gaps.ndim == 1:
            return gaps[::-1].copy()
        steps = self.data.observed[:, None] - 1
        at = np.arange(gaps.shape[1])[None] + np.zeros_like(steps)
        return np.take_along_axis(gaps, np.where(at < steps, steps - 1 - at, at), axis=1)
