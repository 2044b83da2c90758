"""Forecasts and filled-in values of trajectories under a fit: `forecast` with the fitted model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from retrace_sde.process.sde import LinearSDE, Transition
from retrace_sde.search.protocols import Model

FORECAST_PATHS = 400
"""Paths simulated ahead of each trajectory where the drift is not linear."""


def space_of(
    model: Model, outcome: Outcome, gap: float | None = None, inputs: Array | None = None
) -> StateSpace:
    """One step, over dt or another gap, of a fitted linear SDE, as its estimator has it: Euler's, or exact.

    With `inputs` (n, k) that act over it, each trajectory has a shift of its own, (n, d).
    """
    gap = model.dt if gap is None else gap
    if inputs is not None:
        law = _law(outcome) if model.states_hidden else _without_noise(outcome)
        one = replace(law, gaps=None).steps(np.array([gap]))
        v = np.c_[np.ones(len(inputs)), inputs] if has_offset(model.drift) else inputs
        step = Transition(one.matrix[0], v @ one.inputs[0].T, one.covariance[0])
        return StateSpace(step, law.R, law.initial)
    if model.states_hidden:
        return _law(outcome).model(gap)
    return _step(outcome)(outcome.estimate, gap)


def _law(outcome: Outcome) -> Parameters:
    """The state-space parameters, those of the SDE where they are known; with random intercepts those after the subjects'
    intercepts are removed."""
    own: Parameters | None = None if outcome.account is None else outcome.account.law
    found: Parameters = outcome.law if own is None else own
    estimate = outcome.estimate
    if estimate.scheme == found.scheme:
        return found
    theta, H = estimate.coefficients, estimate.diffusion
    return replace(found, theta=theta, H=H, scheme=estimate.scheme)


def _without_noise(outcome: Outcome) -> Parameters:
    """An estimate of states that are observed as they are, as the parameters of a state-space model."""
    estimate = outcome.estimate
    law = estimate.coefficients, estimate.diffusion, np.zeros_like(estimate.diffusion)
    return Parameters(*law, outcome.initial, scheme=estimate.scheme)


def _step(outcome: Outcome) -> Callable[[Estimate, float], StateSpace]:
    """The function that makes a step over a gap from an estimate, for states that are observed without noise."""

    def step(estimate: Estimate, gap: float) -> StateSpace:
        theta, H = estimate.coefficients, estimate.diffusion
        d = len(H)
        sde = LinearSDE(theta[:, :d], H, offset=theta[:, d] if theta.shape[1] > d else None)
        over = sde.transition(gap, scheme=estimate.scheme)
        return StateSpace(over, np.zeros((d, d)), outcome.initial)

    return step


def along(model: Model, order: Indices) -> Array:
    """The values of a model's trajectories in an order, NaN beyond their ends."""
    y = to_numpy(in_order(model.data.values, order))
    return np.where(model.data.lengths.mask[:, :, None], y, np.nan)


def predicted(
    model: Model,
    outcome: Outcome,
    order: Indices,
    gaps: Array,
    level: float,
    rng: np.random.Generator,
) -> Forecast:
    """Ahead of each trajectory of `model` along an order, `gaps` (steps,) apart, in the units of the fit; times from 0."""
    if not has_state_space(model.drift):
        return _simulated(model, outcome, order, gaps, level, rng)
    apart = _apart(outcome, order)
    y, elapsed = along(model, order) + apart[:, None], np.cumsum(gaps)
    last = np.arange(len(y)), model.data.observed - 1
    past, u = _past(model, outcome, order), _inputs(model, order)
    if model.states_hidden:
        seen, steps = seen_along(model, _law(outcome), order, past, y)
    else:
        seen, steps = Observations.regular(y, model.dt), space_of(model, outcome).steps
    states = known_states(seen, steps)
    spread = states.covariance if states.covariance.ndim == 2 else states.covariance[last]
    now = None if u is None else u[last]
    ahead = [space_of(model, outcome, float(gap), now) for gap in gaps]
    errors = outcome.estimate.errors.covariances
    known = Known(states.mean[last], spread)
    phi = to_numpy(model.drift.features(known.mean, now))
    mean, deviation = forecasts(known, ahead, errors=errors, elapsed=elapsed, features=phi)
    widened = np.ones(mean.shape[1:])
    if past.shared:  # with gaps of its own no step is like those ahead
        every = past.along(y.shape[1])
        widened = missed(y, _spaces(model, outcome, every, u), len(gaps), level, states)
        if not model.states_hidden and not model.data.lengths.ragged and u is None:
            inside = model.for_others(replace(model.data, values=y, covariates=None))
            far = widened_beyond(
                inside, every, gaps, _step(outcome), name=outcome.estimator, level=level
            )
            widened = np.maximum(widened, far)
    mean = mean - apart[:, None]
    reach = critical(outcome.found.log_likelihoods.size, level) * widened * deviation
    return Forecast(mean, mean - reach, mean + reach, elapsed, level, widened)


def _spaces(model: Model, outcome: Outcome, gaps: Array, u: Array | None) -> list[StateSpace]:
    """The steps of the past, over its gaps (T − 1,), by inputs (n, T, k) where there are any."""
    if u is not None:
        return [space_of(model, outcome, gap, u[:, t]) for t, gap in enumerate(gaps.tolist())]
    made = {gap: space_of(model, outcome, gap) for gap in set(gaps.tolist())}
    return [made[gap] for gap in gaps.tolist()]


def _past(model: Model, outcome: Outcome, order: Indices) -> Gaps:
    """The gaps along the order found; along another, all are dt."""
    return outcome.found.gaps if order is outcome.found.order else Gaps.of(model.dt)


def _inputs(model: Model, order: Indices) -> Array | None:
    """Inputs (n, T, k) along an order; None where there are none."""
    u = model.data.covariates
    return None if u is None else to_numpy(in_order(u, order))


def _apart(outcome: Outcome, order: Indices) -> Array:
    """What removes subjects' random intercepts, `A⁻¹ (c_j − c̄)`; 0 for other trajectories, whose intercepts are not known."""
    levels, n = outcome.levels, outcome.found.log_likelihoods.size
    if levels is None or order is not outcome.found.order:
        return np.zeros((1, len(outcome.estimate.diffusion)))
    return levels.apart(levels.effects).reshape(n, -1)


def _simulated(
    model: Model,
    outcome: Outcome,
    order: Indices,
    gaps: Array,
    level: float,
    rng: np.random.Generator,
) -> Forecast:
    """The same for a drift that is not linear: by Euler paths, covariates as they were last."""
    last = np.arange(model.data.shape[0]), model.data.observed - 1
    x = np.repeat(along(model, order)[last], FORECAST_PATHS, axis=0)
    u = _inputs(model, order)
    if u is not None:
        u = np.repeat(u[last], FORECAST_PATHS, axis=0)
        u = np.repeat(u[:, None], len(gaps), axis=1)
    estimate = outcome.estimate
    step = Euler(model.drift, estimate.coefficients, estimate.diffusion, model.dt)
    paths = euler_paths(step, x, u, gaps[None], rng)
    paths = paths.reshape(-1, FORECAST_PATHS, *paths.shape[1:])
    tails = (1 - level) / 2, (1 + level) / 2
    low, high = np.quantile(paths, tails, axis=1)
    return Forecast(paths.mean(axis=1), low, high, np.cumsum(gaps), level, np.ones(low.shape[1:]))


def imputed(
    model: Any, outcome: Outcome, order: Indices, level: float, rng: np.random.Generator
) -> Imputed:
    """The trajectories of `model`, as they are stored, with their missing values filled in; in the units of the fit."""
    half = critical(outcome.found.log_likelihoods.size, level)
    apart = _apart(outcome, order)[:, None]
    y = along(model, order) + apart
    seen = seen_along(model, _law(outcome), order, _past(model, outcome, order), y)
    found = filled(*seen, level, half, rng)
    back, inside = np.argsort(order, axis=-1), model.data.lengths.mask[:, :, None]
    return found.moved(lambda each: in_order(np.where(inside, each - apart, np.nan), back))
