"""An order, or one for each trajectory, and what it is worth: its fit and its joint log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from retrace_sde.blocks import Array, Data, Order
from retrace_sde.costs import Model, spread, step_log_likelihoods
from retrace_sde.drift import Drift
from retrace_sde.estimation import mle
from retrace_sde.moments import Moments, moments
from retrace_sde.start import start_log_densities


@dataclass(frozen=True, eq=False)
class Round:
    """One round of an alternation: the order, the parameters fitted to it, and its joint log-likelihood."""

    order: Order
    drift: Array
    diffusion: Array
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Directed:
    """An order with its moments and its fit, and each trajectory's joint log-likelihood under it."""

    order: Order
    moments: Moments
    model: Model
    log_likelihoods: Array

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    def as_round(self) -> Round:
        return Round(self.order, self.model.coefficients, self.model.diffusion, self.log_likelihood)


@dataclass(frozen=True, eq=False)
class Problem:
    """What an order is judged by: the data, the step between slices, and the drift's features."""

    data: Data
    dt: float
    drift: Drift

    def some(self, size: int) -> Problem:
        """The same problem on `size` trajectories, evenly spaced."""
        return self if size >= self.data.shape[0] else replace(self, data=self.data.some(size))

    @cached_property
    def n_features(self) -> int:
        """The number p of regressors; covariates may bring some of them."""
        x, u = self.data.block(slice(0, 1))
        return int(self.drift.features(x, u).shape[-1])

    @cached_property
    def variances(self) -> Array:
        """Each variable's variance over the panel, which no order changes; a hundred trajectories tell it."""
        return spread(self.data.some(min(self.data.shape[0], 100))) ** 2

    def fit(self, order: Order) -> Directed:
        """Maximum likelihood along an order, and the joint log-likelihood `log p₀ + Σ log p` there."""
        return self._judge(order, moments(self.data, order, self.dt, self.drift))

    def _judge(self, order: Order, statistics: Moments) -> Directed:
        found = mle(statistics)
        model = Model(self.drift, found.coefficients, found.diffusion, self.dt)
        start = start_log_densities(self.data.states(order)[None], model, self.variances)[0]
        steps = step_log_likelihoods(self.data, order, model)
        return Directed(order, statistics, model, start + steps)

    def both_directions(self, order: Order) -> tuple[Directed, Directed]:
        """The fit along an order and along its reverse, the more likely first."""
        one, back = self.fit(order), self.data.reversed(order)
        turn = self.drift.reversal(self.data.shape[2], self.dt)
        if turn is None or one.moments.from_rows:
            other = self.fit(back)
        else:
            other = self._judge(back, one.moments.transformed(turn))
        return (one, other) if one.log_likelihood >= other.log_likelihood else (other, one)
