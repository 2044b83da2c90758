"""Forecasts and filled-in values of trajectories under a fit: `forecast` with the fitted model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.after.forecast import (
    Forecast,
    Imputed,
    Known,
    filled,
    forecasts,
    known_states,
    missed,
    widened_beyond,
)
from retrace_sde.after.steps import seen_along
from retrace_sde.evidence.outcome import Outcome
from retrace_sde.fit.euler import Euler, euler_paths
from retrace_sde.fit.intervals import critical
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.model import StateSpace
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import in_order, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import has_offset, has_state_space
from retrace_sde.process.sde import Transition

FORECAST_PATHS = 400
"""Paths simulated ahead of each trajectory where the drift is not linear."""


MAX_FILLED_SHARE = 0.05
"""Share of missing values (suspects, mostly) up to which fits to the beginning of the past take expected ones in their place."""


@dataclass(frozen=True, eq=False)
class Predictor:
    """Trajectories of a model along an order, and the outcome of a fit, to them or to others, under which they are predicted."""

    model: Any
    outcome: Outcome
    order: Indices

    def space(self, gap: float, inputs: Array | None = None) -> StateSpace:
        """One step over a gap of a fitted linear SDE, as its estimator has it: Euler's, or exact.

        With `inputs` (n, k) that act over it, each trajectory has a shift of its own, (n, d).
        """
        law = self._law
        if inputs is None:
            return law.model(gap)
        one = replace(law, gaps=None).steps(np.array([gap]))
        v = np.c_[np.ones(len(inputs)), inputs] if has_offset(self.model.drift) else inputs
        step = Transition(one.matrix[0], v @ one.inputs[0].T, one.covariance[0])
        return StateSpace(step, law.R, law.initial)

    @property
    def _law(self) -> Parameters:
        """The state-space parameters, those of the SDE where they are known; with random intercepts those after the subjects'
        intercepts are removed."""
        account, estimate = self.outcome.account, self.outcome.estimate
        if not self.model.states_hidden:
            return self._without_noise(estimate)
        own: Parameters | None = None if account is None else account.law
        found: Parameters = self.outcome.law if own is None else own
        if estimate.scheme == found.scheme:
            return found
        theta, H = estimate.coefficients, estimate.diffusion
        return replace(found, theta=theta, H=H, scheme=estimate.scheme)

    def _without_noise(self, estimate: Estimate) -> Parameters:
        """An estimate of states that are observed as they are, as the parameters of a state-space model."""
        law = estimate.coefficients, estimate.diffusion, np.zeros_like(estimate.diffusion)
        return Parameters(*law, self.outcome.initial, scheme=estimate.scheme)

    def _space_of(self, estimate: Estimate, gap: float) -> StateSpace:
        """One step over a gap of another estimate, without noise and inputs."""
        return self._without_noise(estimate).model(gap)

    @property
    def _values(self) -> Array:
        """The trajectories' values in the order, NaN beyond their ends."""
        y = to_numpy(in_order(self.model.data.values, self.order))
        return np.where(self.model.data.lengths.mask[:, :, None], y, np.nan)

    @property
    def _last(self) -> tuple[Indices, Indices]:
        """Where each trajectory's last observation stands."""
        return np.arange(self.model.data.shape[0]), self.model.data.observed - 1

    @property
    def past(self) -> Gaps:
        """The gaps along the order found; along another, all are dt."""
        found = self.outcome.found
        return found.gaps if self.order is found.order else Gaps.of(self.model.dt)

    @property
    def _inputs(self) -> Array | None:
        """Inputs (n, T, k) along the order; None where there are none."""
        u = self.model.data.covariates
        return None if u is None else to_numpy(in_order(u, self.order))

    @property
    def _apart(self) -> Array:
        """What removes subjects' random intercepts, `A⁻¹ (c_j − c̄)`; 0 for other trajectories, whose intercepts are not known."""
        levels, found = self.outcome.levels, self.outcome.found
        if levels is None or self.order is not found.order:
            return np.zeros((1, len(self.outcome.estimate.diffusion)))
        return levels.apart(levels.effects).reshape(found.log_likelihoods.size, -1)

    def forecast(self, gaps: Array, level: float, rng: np.random.Generator) -> Forecast:
        """Ahead of each trajectory, `gaps` (steps,) apart, in the units of the fit; times from 0."""
        model, outcome, past, u = self.model, self.outcome, self.past, self._inputs
        if not has_state_space(model.drift):
            return self._simulated(gaps, level, rng)
        apart, last = self._apart, self._last
        y, elapsed = self._values + apart[:, None], np.cumsum(gaps)
        if model.states_hidden:
            seen, steps = seen_along(model, self._law, self.order, past, y)
        else:
            seen, steps = Observations.regular(y, model.dt), self.space(model.dt).steps
        states = known_states(seen, steps)
        spread = states.covariance if states.covariance.ndim == 2 else states.covariance[last]
        now = None if u is None else u[last]
        ahead = [self.space(float(gap), now) for gap in gaps]
        errors = outcome.estimate.errors.covariances
        known = Known(states.mean[last], spread)
        phi = to_numpy(model.drift.features(known.mean, now))
        mean, deviation = forecasts(known, ahead, errors=errors, elapsed=elapsed, features=phi)
        widened = np.ones(mean.shape[1:])
        if past.shared:  # with gaps of its own no step is like those ahead
            every = past.along(y.shape[1])
            widened = missed(y, self._spaces(every, u), len(gaps), level, states)
            plainly = not self._law.R.any() and np.isnan(y).mean() <= MAX_FILLED_SHARE
            if plainly and not model.data.lengths.ragged and u is None:
                expected = np.where(np.isnan(y), states.mean, y)
                inside = model.for_others(replace(model.data, values=expected, covariates=None))
                name, step = outcome.estimator, self._space_of
                far = widened_beyond(inside, y, every, gaps, step, name=name, level=level)
                widened = np.maximum(widened, far)
        mean = mean - apart[:, None]
        reach = critical(outcome.found.log_likelihoods.size, level) * widened * deviation
        return Forecast(mean, mean - reach, mean + reach, elapsed, level, widened)

    def _spaces(self, gaps: Array, u: Array | None) -> list[StateSpace]:
        """The steps of the past, over its gaps (T − 1,), by inputs (n, T, k) where there are any."""
        if u is not None:
            return [self.space(gap, u[:, t]) for t, gap in enumerate(gaps.tolist())]
        made = {gap: self.space(gap) for gap in set(gaps.tolist())}
        return [made[gap] for gap in gaps.tolist()]

    def _simulated(self, gaps: Array, level: float, rng: np.random.Generator) -> Forecast:
        """The same for a drift that is not linear: by Euler paths, covariates as they were last."""
        x, u, last = self._values, self._inputs, self._last
        x = np.repeat(x[last], FORECAST_PATHS, axis=0)
        if u is not None:
            u = np.repeat(u[last], FORECAST_PATHS, axis=0)
            u = np.repeat(u[:, None], len(gaps), axis=1)
        estimate, drift = self.outcome.estimate, self.model.drift
        step = Euler(drift, estimate.coefficients, estimate.diffusion, self.model.dt)
        paths = euler_paths(step, x, u, gaps[None], rng)
        paths = paths.reshape(-1, FORECAST_PATHS, *paths.shape[1:])
        low, high = np.quantile(paths, ((1 - level) / 2, (1 + level) / 2), axis=1)
        widened, mean = np.ones(low.shape[1:]), paths.mean(axis=1)
        return Forecast(mean, low, high, np.cumsum(gaps), level, widened)

    def imputed(self, level: float, rng: np.random.Generator) -> Imputed:
        """The trajectories, as they are stored, with their missing values filled in; in the units of the fit."""
        half = critical(self.outcome.found.log_likelihoods.size, level)
        apart = self._apart[:, None]
        y = self._values + apart
        seen = seen_along(self.model, self._law, self.order, self.past, y)
        found = filled(*seen, level, half, rng)
        back = np.argsort(self.order, axis=-1)
        inside = self.model.data.lengths.mask[:, :, None]
        return found.moved(lambda each: in_order(np.where(inside, each - apart, np.nan), back))
