"""What every model is and returns: the panel with what is known of its time, and a fit along an order.

A model is a likelihood of a panel along an order: Euler's steps between states (`models/euler`), the same across unknown
gaps (`models/estimated_gaps`), or states behind noise and missing values (`models/hidden`). What the search, the average over
orders and the evidence ask of it is in `protocols`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.exact import (
    Embedding,
    NotEmbeddableError,
    continuous,
    embedded,
)
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate, StandardErrors, Through
from retrace_sde.fit.unequal_steps import GapClocks
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.costs import spread
from retrace_sde.orders.flips import align
from retrace_sde.orders.prior import Prior
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.clock import UNKNOWN, Clock, Gaps
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import Drift, has_state_space
from retrace_sde.process.sde import Gaussian, Scheme
from retrace_sde.search.mean_path import MeanPath

VARIANCE_SAMPLE = 500_000
"""Values (n T d) from which the variances of the variables are estimated."""


@dataclass(frozen=True, eq=False)
class Round:
    """One round of an alternation: the order, the parameters fitted to it, and its joint log-likelihood."""

    order: Indices
    drift: Array
    diffusion: Array
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Fit:
    """An order with the law fitted along it, and each trajectory's joint log-likelihood under it.

    `step` is the fit as Euler's step, `moments` the sufficient statistics behind it (expected ones where states
    are hidden), `law` what the model judges orders by. `prior_costs` is what is known of time against the order
    (one number, or one per trajectory; ∞: impossible). `gaps` are the times between its observations, `log_gap_errors` the standard errors of their logarithms where they were estimated, and `clocks` what
    they owe to more than time. `states`
    (n, T, d), where states are hidden, are the smoothed ones in time order. `estimate`: parameters and errors where
    the model has a way to them that the moments do not give. Where one pass gave more than was asked for it is kept: `start`, the law
    of the first states, `robust_errors` over trajectories, and `reverse`, the fit along the reverse. `mean_path_value`: the log-likelihood
    of the mean path, where trajectories are deviations from it.
    """

    order: Indices
    step: Euler
    moments: Moments
    log_likelihoods: Array
    prior_costs: Array
    law: Any = None
    gaps: Gaps = field(kw_only=True)
    log_gap_errors: Array | None = None
    clocks: GapClocks | None = None
    states: Array | None = None
    estimate: Estimate | None = None
    notes: tuple[str, ...] = field(default=())
    start: Gaussian | None = None
    robust_errors: StandardErrors | None = None
    reverse: Fit | None = None
    mean_path_value: float = 0.0

    @cached_property
    def ordering(self) -> Order:
        """The order, of its kind: one for all trajectories or one for each."""
        return Order.of(self.order)

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    @property
    def objective(self) -> float:
        """Log-likelihood, of the mean path too, and log-prior together: what orders are compared by."""
        return self.log_likelihood + self.mean_path_value - float(self.prior_costs.sum())

    @property
    def diffusion(self) -> Array:
        return self.step.diffusion

    def as_round(self) -> Round:
        return Round(self.order, self.step.coefficients, self.step.diffusion, self.log_likelihood)


@dataclass(frozen=True, eq=False)
class Problem:
    """The data, the step between slices, the drift's features, and what is known of time.

    `prior` is what is known of the order, `timing` what is known of the times. `mean_path`: where trajectories share shocks, the
    data are deviations from it. `scheme`: parameters are shown as those of the SDE (exact), or of Euler's step.
    """

    data: Data
    dt: float
    drift: Drift
    prior: Prior | None = None
    timing: Clock = UNKNOWN
    mean_path: MeanPath | None = None
    scheme: Scheme = "euler"

    def knowing(self, other: Problem) -> Self:
        """The same data with what another problem knows of their time."""
        known = replace(self, prior=other.prior, timing=other.timing, scheme=other.scheme)
        return replace(known, mean_path=other.mean_path)

    def embedding(self, theta: Array, H: Array) -> Embedding | None:
        """The SDE whose exact step over dt is Euler's with Θ and H; None where Euler's parameters are shown."""
        if self.scheme != "exact" or not has_state_space(self.drift):
            return None
        try:
            return embedded(theta, H, self.dt)
        except NotEmbeddableError:
            return None

    def shown(
        self,
        euler: tuple[Array, Array],
        errors: Callable[[Through | None], StandardErrors],
        constrained: Callable[[], Embedding] | None = None,
    ) -> Estimate:
        """Euler's parameters (Θ, H) of a step over dt as they are shown (`exact.continuous`)."""
        if self.scheme != "exact" or not has_state_space(self.drift):
            return Estimate(*euler, errors(None))
        return continuous(euler, self.dt, errors, constrained)

    def about(self, mean_path: MeanPath | None, values: Any | None = None) -> Self:
        """The same data, or other values in their place, as deviations from a mean path; None: as they are."""
        data = self.data if values is None else replace(self.data, values=values)
        return replace(self, data=data, mean_path=mean_path)

    def about_slices(self, shifts: Array) -> Self:
        """The same deviations about slice effects that are larger by shifts (T, d)."""
        path, values = self.mean_path, to_numpy(self.data.values)
        assert path is not None  # or these are no deviations
        means = path.means + np.sqrt((path.n - 1) / path.n) * shifts
        return self.about(replace(path, means=means), values - shifts)

    def slice_shifts(self, found: Fit) -> Array | None:
        """What trajectories still share at each slice, (T, d), under a fit to their deviations; None: nothing, their means were taken out."""
        return None

    def mean_path_value(self, order: Indices, step: Euler) -> float:
        """The log-likelihood of the mean path along a shared order."""
        if self.mean_path is None or not Order.of(order).shared:
            return 0.0
        return self.mean_path.log_likelihood(order, step.diffusion * step.dt)

    @property
    def gaps(self) -> Gaps:
        """The gaps between observations in their known order; where it is not known all are dt."""
        return self.timing.gaps(self.dt)

    @property
    def states_hidden(self) -> bool:
        """States are observed with noise, in part, or at times that differ: they are smoothed, not read off."""
        return False

    @property
    def gaps_estimated(self) -> bool:
        """The gaps of the shared order are parameters."""
        return False

    @property
    def gaps_random(self) -> bool:
        """Each trajectory has gaps of its own, of which only the distribution is known."""
        return False

    @property
    def steps_equal(self) -> bool:
        """All steps have one transition: none has a gap or an input of its own."""
        return not self.gaps_estimated

    @property
    def closed_form(self) -> bool:
        """States are read off and gaps are given: along an order the fit is a regression."""
        return not (self.states_hidden or self.gaps_estimated)

    @property
    def averages(self) -> bool:
        """Parameters are averaged over orders even where these are certain."""
        return False

    def some(self, size: int) -> Self:
        """The same problem on `size` trajectories, evenly spaced, in memory."""
        n = self.data.shape[0]
        if size >= n and not self.data.lazy:
            return self
        prior = None if self.prior is None else self.prior.some(n, size)
        timing = self.timing.take(evenly(n, size))
        return replace(self, data=self.data.some(size), prior=prior, timing=timing)

    @cached_property
    def n_features(self) -> int:
        """The number p of regressors; covariates may bring some of them."""
        x, u = self.data.block(slice(0, 1))
        return int(self.drift.features(x, u).shape[-1])

    @cached_property
    def variances(self) -> Array:
        """Each variable's variance over the panel, which no order changes; a hundred trajectories, or some with many numbers, tell it."""
        n, T, d = self.data.shape
        most = int(np.clip(VARIANCE_SAMPLE // (T * d), 20, 100))
        return spread(self.data.some(min(n, most))) ** 2

    def prior_costs(self, order: Indices) -> Array:
        """−log prior of an order, (1,), or of each trajectory's, (n,)."""
        if self.prior is None:
            return np.zeros(1)
        return self.prior.cost(order, self.data.counts)

    def repaired(self, order: Indices) -> Indices:
        """The order changed where it breaks a rule."""
        return order if self.prior is None else self.prior.repair(order, self.data.counts)

    def aligned(self, orders: Indices, rng: np.random.Generator) -> Indices:
        """Orders of single trajectories, some of them reversed so that all run the same way."""
        costs = self.prior_costs(orders), self.prior_costs(self.data.reversed(orders))
        return align(self.data, orders, self.dt, self.drift, costs, rng)

    def one_way(self, orders: Indices) -> bool:
        """What is known rules out the reverse of most orders: the direction of time is no question then."""
        if self.prior is None:
            return False
        return self.prior.one_way(orders, self.data.reversed(orders), self.data.counts)


class Effort(NamedTuple):
    """How much sampling a model can afford: a record of Euler's costs microseconds, one behind noise far more.

    In round k of Monte-Carlo EM each chain gives `first · growthᵏ` records, at most `most`. Both directions get
    `warm` rounds before they are compared, on `bridged` trajectories and `bridges` orders per chain. Twice
    `louis` orders in all give the errors, `positions` records the position probabilities.
    """

    first: int
    growth: float
    most: int
    warm: int
    bridged: int
    bridges: int
    louis: int
    positions: int

    def records(self, k: int) -> int:
        """Of round k, for each chain."""
        return int(min(self.first * self.growth**k, self.most))
