"""Noisy or incomplete observations: what an order is worth is the likelihood of what was observed.

    Y_i = X_i + N(0, R),     dX = (A X + c) dt + G dW.

`NoisyProblem.fit` runs EM along an order, or along one for each trajectory; the states are summed out, not
filled in. p₀ is judged leave-one-out, as without noise (`start`): all that a trajectory tells about its first state is
one Gaussian, whose density under the fitted p₀ is exchanged for that under p₀ fitted to the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.data.blocks import Array, Data, Order, evenly, to_numpy
from retrace_sde.engine.problem import Problem, Round
from retrace_sde.estimate.euler import Model
from retrace_sde.estimate.kalman.em import EMResult, em
from retrace_sde.estimate.kalman.smoother import StateSpace, kalman
from retrace_sde.estimate.kalman.steps import Noise
from retrace_sde.estimate.start import start_log_densities
from retrace_sde.orders.prior import Prior
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian, Scheme

LOOSE = 0.5
"""Rise of the log-likelihood, in nats, at which EM stops while the order still changes."""

VAGUE = 100.0
"""Variance, in units of the variables' own, that stands for not knowing the first state."""


@dataclass(frozen=True, eq=False)
class Hidden:
    """An order, the state-space model fitted along it, and each trajectory's log-likelihood."""

    order: Order
    fit: EMResult
    model: StateSpace
    log_likelihoods: Array
    prior_cost: float = 0.0

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    @property
    def objective(self) -> float:
        """Log-likelihood and log-prior together: what orders are compared by."""
        return self.log_likelihood - self.prior_cost

    def as_round(self) -> Round:
        sde = self.fit.sde
        coefficients = np.c_[sde.drift, sde.offset][:, : self.fit.parameters.theta.shape[1]]
        return Round(self.order, coefficients, sde.diffusion, self.log_likelihood)


@dataclass(frozen=True, eq=False)
class NoisyProblem:
    """The observations (n, T, d), NaN where missing, the step, and what is known of the noise.

    Trajectories of different `lengths` (n,) end in NaN; an observation all of whose entries are missing
    still stands for a time at which nothing was seen.
    """

    values: Array
    dt: float
    noise: Noise
    affine: bool = False
    scheme: Scheme = "euler"
    lengths: Order | None = None
    prior: Prior | None = None
    n_jobs: int | None = None

    @classmethod
    def of(cls, problem: Problem, *, noise: Noise, scheme: Scheme = "euler") -> NoisyProblem:
        """From the problem of an engine that knows no noise; linear and affine drifts only."""
        data = problem.data
        values = np.array(to_numpy(data.values), dtype=float)
        if data.lengths is not None:
            values[np.arange(values.shape[1])[None] >= data.lengths[:, None]] = np.nan
        affine = isinstance(problem.drift, Affine)
        return cls(
            values, problem.dt, noise, affine, scheme, data.lengths, problem.prior, data.n_jobs
        )

    @cached_property
    def data(self) -> Data:
        """The same values as `Data`, for its walk over blocks of trajectories on several threads."""
        return Data(self.values, None, self.n_jobs, self.lengths)

    def some(self, size: int) -> NoisyProblem:
        """The same problem on `size` trajectories, evenly spaced."""
        rows = evenly(len(self.values), size)
        if size >= len(self.values):
            return self
        lengths = None if self.lengths is None else self.lengths[rows]
        prior = None if self.prior is None else self.prior.some(len(self.values), size)
        return replace(self, values=self.values[rows], lengths=lengths, prior=prior)

    @cached_property
    def complete(self) -> bool:
        return not np.isnan(self.values).any()

    @cached_property
    def variances(self) -> Array:
        """Each variable's variance over all that was seen of it."""
        spread = np.nanvar(self.values, axis=(0, 1))
        return np.where(spread > 0, spread, 1.0)

    @cached_property
    def means(self) -> Array:
        """Each variable's mean over all that was seen of it."""
        return np.nanmean(self.values, axis=(0, 1))

    def along(self, order: Order) -> Array:
        """The observations in an order (T,), or each in its own (n, T)."""
        if order.ndim == 1:
            return self.values[:, order]
        return np.take_along_axis(self.values, order[:, :, None], axis=1)

    def fit(
        self,
        order: Order,
        *,
        start: EMResult | None = None,
        still: bool = False,
        loose: bool = True,
        standard_errors: bool = False,
    ) -> Hidden:
        """EM along an order. `still`: without drift, which a rough order would only mislead."""
        d = self.values.shape[2]
        y = self.along(order)
        found = em(
            y,
            self.dt,
            noise=self.noise,
            affine=self.affine and not still,
            scheme="euler" if still else self.scheme,
            drift=np.zeros((d, d)) if still else None,
            start=start,
            tolerance=LOOSE if loose else 1e-2,
            standard_errors=standard_errors,
            n_jobs=self.n_jobs,
        )
        model = found.parameters.model(self.dt)
        cost = 0.0 if self.prior is None else float(self.prior.cost(order, self.lengths).sum())
        return Hidden(order, found, model, self.judge(y, found, model), cost)

    def repaired(self, order: Order) -> Order:
        """The order changed where it breaks a rule."""
        return order if self.prior is None else self.prior.repair(order, self.lengths)

    def judge(self, y: Array, found: EMResult, model: StateSpace) -> Array:
        """Log-likelihoods of the trajectories y in time order, p₀ leave-one-out."""
        own = found.states.log_likelihood
        if len(y) < 2:
            return own
        vague = Gaussian(self.means, np.diag(VAGUE * self.variances))
        told = kalman(y, replace(model, initial=vague))
        first, error = told.means[:, 0], told.covariances[told.pattern, 0]
        spread = model.initial.covariance + error
        gap = first - model.initial.mean
        squares = (gap * np.linalg.solve(spread, gap[:, :, None])[:, :, 0]).sum(axis=1)
        log_det = np.linalg.slogdet(2 * np.pi * spread)[1]
        left_out = start_log_densities(first[None], self.as_model(found), self.variances)[0]
        return own + 0.5 * (squares + log_det) + left_out

    def as_model(self, found: EMResult) -> Model:
        """The fitted SDE as the parts of the engine without noise know it."""
        sde = found.sde
        drift = Affine() if self.affine else Linear()
        coefficients = np.c_[sde.drift, sde.offset] if self.affine else sde.drift
        return Model(drift, coefficients, sde.diffusion, self.dt)
