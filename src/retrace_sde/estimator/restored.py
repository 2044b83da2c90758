"""A saved result as what a fitted model keeps, without the data: enough to order, score and forecast other trajectories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.estimator.common import CommonPart
from retrace_sde.estimator.fitted import Memory
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.outcome import Outcome
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.regression import Estimate, StandardErrors
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.io.arrays import Array
from retrace_sde.orders.own import EulerLaw
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.canonical import RowPermutation
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift, as_drift, driven, has_offset, has_state_space
from retrace_sde.process.sde import Gaussian
from retrace_sde.result import ReTraceResult
from retrace_sde.search.mean_path import MeanPath
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.protocols import Model


def settings_of(result: ReTraceResult) -> dict[str, Any]:
    """The settings that a result records, as `ReTrace` takes them; a drift that is not linear is known by its name only."""
    kept = {**result.settings, "dt": result.dt}
    try:
        found = driven(as_drift(kept["drift"]))
    except ValueError:
        found = None
    if found is None or not has_state_space(found):
        raise ValueError(
            f"a saved result keeps only the name of its drift, {kept['drift']}: .model() needs a linear or affine one. Fit again."
        )
    return kept


def restored(result: ReTraceResult) -> Memory:
    """What orders, scores and forecasts need, in units in which the variables have like spreads."""
    units = _units(result)
    inner = Units(-units.centre / units.scale, 1 / units.scale, units.counts).result(result)
    drift = as_drift(result.settings["drift"])
    drift = drift if result.inputs is None else driven(drift)
    theta, errors = _coefficients(inner, drift), _errors(inner, drift)
    estimate = Estimate(theta, inner.diffusion, errors, scheme=inner.scheme)
    initial, common = inner.initial, None
    step = Euler(drift, *_step(inner, estimate), inner.dt)
    covariance = None if inner.dependence is None else inner.dependence.common_covariance
    if covariance is not None:
        whole, estimate = estimate, _of_deviations(estimate, drift)
        path = MeanPath(np.zeros((result.order.shape[-1], len(theta))), result.n_trajectories)
        common = CommonPart(path, drift, covariance, 0.0, whole, whole, initial, inner.subjects)
        initial = Gaussian(np.zeros(len(theta)), initial.covariance)
        step = replace(step, coefficients=_of_deviations(estimate, drift).coefficients)
    model = _model(inner, drift)
    law: Any = EulerLaw(step, initial)
    if inner.observation_noise is not None:
        R = inner.observation_noise
        law = Parameters(step.coefficients, step.diffusion, R, initial, scheme="euler")
    n, nothing = result.n_trajectories, np.zeros(1)
    missing: Any = None  # sums over the data, which a result does not keep
    found = Fit(result.order, step, missing, np.zeros(n), nothing, law, gaps=Gaps.of(result.dt))
    outcome = Outcome(
        found, found, estimate, estimate, missing, initial, result.direction, result.history,
        result.converged, result.settings["estimator"], law=law,
    )  # fmt: skip
    every = np.arange(result.order.shape[-1])
    places = RowPermutation(np.arange(n), every if result.shared_order else np.tile(every, (n, 1)))
    return Memory(model, outcome, units, places, common)


def _units(result: ReTraceResult) -> Units:
    """The mean of first states, and how far states spread from it in as many steps as there are."""
    T, d = result.order.shape[-1], len(result.names)
    variance = np.diag(result.initial.covariance) + np.diag(result.diffusion) * result.dt * T
    offset = "1" in result.feature_names
    centre = result.initial.mean if offset else np.zeros(d)
    shared = result.dependence is not None and result.dependence.removed
    return Units(centre, np.sqrt(variance), np.zeros(d), deviations=shared)


def _coefficients(result: ReTraceResult, drift: Drift) -> Array:
    parts = [result.drift, *([result.offset[:, None]] if has_offset(drift) else [])]
    return np.column_stack([*parts, *([] if result.inputs is None else [result.inputs])])


def _errors(result: ReTraceResult, drift: Drift) -> StandardErrors:
    """The standard errors with those of A, c and B side by side, as a fit has them."""
    errors = result.standard_errors
    parts = [errors.drift]
    if has_offset(drift):
        parts.append(np.full((len(errors.drift), 1), np.nan) if errors.offset is None else errors.offset[:, None])  # fmt: skip
    if errors.inputs is not None:
        parts.append(errors.inputs)
    return replace(errors, drift=np.column_stack(parts), offset=None, inputs=None)


def _of_deviations(estimate: Estimate, drift: Drift) -> Estimate:
    """The same for deviations from the slice means, which have no offset."""
    d, theta, errors = len(estimate.diffusion), estimate.coefficients.copy(), estimate.errors
    if not has_offset(drift):
        return estimate
    theta[:, d] = 0.0
    C = errors.covariances
    if C is not None:
        C = C.copy()
        C[:, d, :] = C[:, :, d] = 0.0
    return replace(estimate, coefficients=theta, errors=replace(errors, covariances=C))


def _step(result: ReTraceResult, estimate: Estimate) -> tuple[Array, Array]:
    """Θ and H of Euler's step, by which orders are judged: of the round that found the order, else from the estimate."""
    rounds = [each for each in result.history if np.array_equal(each.order, result.order)]
    theta, estimator = estimate.coefficients, result.settings["estimator"]
    if rounds and estimator != "mcem" and rounds[-1].drift.shape == theta.shape:
        return rounds[-1].drift, rounds[-1].diffusion
    if estimate.scheme != "exact":
        return theta, estimate.diffusion
    F, S, Q = (each[0] for each in transitions(theta, estimate.diffusion, np.array([result.dt])))
    return np.column_stack([F - np.eye(len(F)), S]) / result.dt, Q / result.dt


def _model(result: ReTraceResult, drift: Drift) -> Model:
    """A model of nothing yet; `for_others` gives it trajectories."""
    d, k = len(result.names), 0 if result.inputs is None else result.inputs.shape[1]
    none = Data(np.zeros((0, 2, d)), np.zeros((0, 2, k)) if k else None)
    plain = EulerModel(none, result.dt, drift)
    if result.observation_noise is None:
        return plain
    noise = result.observation_noise
    if k:
        return HiddenModel.across(plain, np.array([result.dt]), noise=noise, scheme="euler")
    return HiddenModel.of(plain, noise=noise)
