"""Forecasts and imputed values: means and intervals under the fitted SDE, widened where errors on the data at hand are larger.

From what is known of the last state, N(m, P), one step ahead is `m' = F m + s`, `P' = F P Fᵀ + Q`, and an observation there has
variance `P' + R`. The model's own intervals hold if the model does. So they are tried on the data at hand: predictions
from every earlier observation, and values hidden on purpose, are compared with what was seen; where the share of misses
is larger than stated, intervals are widened until it is not (by horizon and variable; never narrowed). Parameters' own
uncertainty enters by that, and by their errors in the first step, which grow with the horizon.

A drift that describes the past may mean nothing beyond it: a decline that slows down is read as one that ends. Predictions from within the data
the fit has seen do not show that. So for horizons longer than the data allow to test the SDE is fitted to the first slices alone and what came later is
predicted from the last of them, as far ahead of their span as the forecast is of the whole; where such forecasts missed, or missed together, intervals
are widened by as much.

Limits: the order is taken for known, and so are gaps that were estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.after.steps import RESIDUAL_SAMPLE
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.model import StateSpace, StepModel
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.smoother import filtered, states
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.clock import UNKNOWN, Gaps, same_for_all
from retrace_sde.process.tails import chi2_sf, norm_ppf, t_ppf
from retrace_sde.search.protocols import Model

MIN_ERRORS_TO_WIDEN = 60
"""Minimum number of errors behind a quantile by which intervals are widened."""

SHARED_ERROR_LEVEL = 0.005
"""Significance level of the test that trajectories share forecast errors."""

HIDDEN_SHARE = 0.05
"""Share of the observed values hidden to test the imputation."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """Means and intervals (n, steps, d) at `times` (steps,), or (n, steps), that hold with probability `level`. Inputs are held at their last values.

    `widened` (steps, d): how many times longer the intervals are than the model of independent trajectories alone would make them. `average` (3, steps, d): the mean
    over trajectories with its interval (mean, low, high), where they share shocks; their sum is n times that. Elsewhere None: the
    forecasts' errors are independent given the parameters.
    """

    mean: Array
    low: Array
    high: Array
    times: Array
    level: float
    widened: Array
    average: Array | None = None

    def moved(self, rows: Callable[[Array], Array]) -> Forecast:
        """The same with trajectories in another order."""
        times = self.times if same_for_all(self.times) else rows(self.times)
        return replace(self, mean=rows(self.mean), low=rows(self.low), high=rows(self.high), times=times)  # fmt: skip

    def restored(self, units: Callable[[Array], Array]) -> Forecast:
        """The same in other units."""
        average = None if self.average is None else units(self.average)
        found = replace(self, mean=units(self.mean), low=units(self.low), high=units(self.high))
        return replace(found, average=average)


@dataclass(frozen=True, eq=False)
class Imputed:
    """X with what was missing filled in, and intervals (n, T, d); observed values are their own.

    `widened` (d,): how many times longer the intervals are than the model alone would make them.
    """

    values: Array
    low: Array
    high: Array
    level: float
    widened: Array

    def moved(self, change: Callable[[Array], Array]) -> Imputed:
        """The same with observations in another order, shifted, or in other units."""
        return replace(
            self, values=change(self.values), low=change(self.low), high=change(self.high)
        )


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of some states: means (…, d) and covariances (…, d, d), or (d, d) for all of them."""

    mean: Array
    covariance: Array

    def ahead(self, space: StateSpace) -> Known:
        """One step later."""
        step = space.transition
        P = step.matrix @ self.covariance @ step.matrix.T + step.covariance
        return Known(self.mean @ step.matrix.T + step.shift, P)

    def some(self, rows: Indices) -> Known:
        own = self.covariance
        return Known(self.mean[rows], own if own.ndim == 2 else own[rows])

    def deviations(self, space: StateSpace, extra: Array | float = 0.0) -> Array:
        """Standard deviations of an observation there."""
        own = np.diagonal(self.covariance + space.noise, axis1=-2, axis2=-1)
        return np.sqrt(own + extra)


def known_states(seen: Observations, steps: StepModel) -> Known:
    """Of all times, from what was observed by then."""
    if not steps.noise.any() and not np.isnan(seen.values).any():
        return Known(seen.values, np.zeros_like(steps.noise))
    found = filtered(seen, steps)
    return Known(found.means, found.covariances)


def forecasts(
    last: Known,
    spaces: Sequence[StateSpace],
    *,
    errors: Array | None = None,
    elapsed: Array | None = None,
    features: Array | None = None,
) -> tuple[Array, Array]:
    """Means and standard deviations (n, steps, d) ahead of what is known of last states, one space for each step.

    `errors` (d, p, p) are the covariances of the drift's coefficients; they add `t² φᵀ C φ` after the time t = `elapsed` (steps,).
    `features` (n, p): φ there, where inputs are among them.
    """
    n, d = last.mean.shape
    extra = np.zeros((n, d))
    if errors is not None:
        phi = np.c_[last.mean, np.ones(n)][:, : errors.shape[1]] if features is None else features
        extra = np.einsum("knq,nq->nk", phi @ errors, phi)
    means, deviations = [], []
    for k, space in enumerate(spaces):
        last = last.ahead(space)
        means.append(last.mean)
        more = extra * (0.0 if elapsed is None else elapsed[k] ** 2)
        deviations.append(last.deviations(space, more))
    return np.stack(means, axis=1), np.stack(deviations, axis=1)


def missed(
    y: Array, spaces: Sequence[StateSpace], steps: int, level: float, states: Known
) -> Array:
    """How many times too short intervals (steps, d) would have been along y (n, T, d), NaN where missing; at least 1.

    `states`: what was known of each by then.
    One space for each of the T − 1 steps of the past. Horizons longer than the past are as wrong as the longest in it.
    """
    n, T, d = y.shape
    rows = evenly(n, max(20, RESIDUAL_SAMPLE // (T * d * d)))
    y, states = y[rows], states.some(rows)
    spaces = [_of_rows(space, rows) for space in spaces]
    ratios: list[list[Array]] = [[] for _ in range(steps)]
    for t in range(T - 1):
        spread = states.covariance if states.covariance.ndim == 2 else states.covariance[:, t]
        known = Known(states.mean[:, t], spread)
        for h, space in enumerate(spaces[t : t + steps]):
            known = known.ahead(space)
            ratios[h].append((y[:, t + h + 1] - known.mean) / known.deviations(space))
    found = [
        together_wrong(np.stack(each), h + 1, level) if each else np.ones(d)
        for h, each in enumerate(ratios)
    ]
    return np.maximum.accumulate(np.array(found), axis=0)


def _of_rows(space: StateSpace, rows: Indices) -> StateSpace:
    """A step of some trajectories: inputs give each a shift of its own."""
    step = space.transition
    if step.shift.ndim == 1:
        return space
    return replace(space, transition=replace(step, shift=step.shift[rows]))


def together_wrong(ratios: Array, horizon: int, level: float) -> Array:
    """How many times too short intervals (d,) were, by errors (origins, n, d) in deviations: single ones, and those all share."""
    single = _factors(np.abs(np.concatenate(list(ratios))), level)
    return np.hypot(single, _shared(ratios, horizon, level))


def _shared(ratios: Array, horizon: int, level: float) -> Array:
    """What errors (origins, n, d) that all trajectories share add to the intervals' length, by variable, in its own units.

    All of them will be wrong together again, by as much as at one more of the past origins: `s √(1 + 1/m)` times Student's quantile,
    m of them being `horizon` apart. Nothing where the mean errors are those of n independent trajectories.
    """
    counts = np.maximum((~np.isnan(ratios)).sum(axis=1), 1)
    together = np.nansum(ratios, axis=1) / counts
    within = np.nanvar(ratios, axis=1).mean(axis=0)
    chance = within[None] / counts
    origins = len(ratios)
    apart = max(origins // horizon, 2)
    p = chi2_sf((together**2 / np.maximum(chance, 1e-300)).sum(axis=0), origins)
    variance = np.maximum((together**2 - chance).mean(axis=0), 0.0)
    student = float(t_ppf((1 + level) / 2, apart - 1) / norm_ppf((1 + level) / 2))
    reach: Array = np.sqrt(variance * (1 + 1 / apart)) * student
    return np.where((p < SHARED_ERROR_LEVEL) & (ratios.shape[1] > 1), reach, 0.0)


def _factors(ratios: Array, level: float) -> Array:
    """Quantiles of |error| / deviation over the Gaussian's, by variable, at least 1; 1 where there are few."""
    wanted = float(norm_ppf((1 + level) / 2))
    columns = [each[~np.isnan(each)] for each in ratios.T]
    found = [
        np.quantile(each, level) / wanted if len(each) >= MIN_ERRORS_TO_WIDEN else 1.0
        for each in columns
    ]
    return np.maximum(np.array(found), 1.0)


def filled(
    observed: Observations, steps: StepModel, level: float, half: float, rng: np.random.Generator
) -> Imputed:
    """Values (n, T, d) in time order, missing ones filled in by the smoother; `half`: the quantile that level means."""
    mean, deviation = _smoothed(observed, steps)
    y = observed.values
    seen = ~np.isnan(y)
    trial = seen & (rng.random(y.shape) < HIDDEN_SHARE)
    trial &= (seen & ~trial).any(
        axis=(1, 2), keepdims=True
    )  # something must be left of every trajectory
    widened = np.ones(y.shape[2])
    if trial.sum() >= MIN_ERRORS_TO_WIDEN:
        guess, error = _smoothed(replace(observed, values=np.where(trial, np.nan, y)), steps)
        ratios = np.where(trial, np.abs(y - guess) / np.where(trial, error, 1.0), np.nan)
        widened = _factors(ratios.reshape(-1, y.shape[2]), level)
    reach = half * widened * deviation
    values = np.where(seen, y, mean)
    low, high = np.where(seen, y, mean - reach), np.where(seen, y, mean + reach)
    return Imputed(values, low, high, level, widened)


def _smoothed(seen: Observations, steps: StepModel) -> tuple[Array, Array]:
    """Means and standard deviations (n, T, d) of what would have been observed, given all that was."""
    found = states(seen, steps, times=seen.values.shape[1])
    own = np.diagonal(found.covariances, axis1=2, axis2=3)[found.pattern]
    return found.means, np.sqrt(np.maximum(own, 0.0) + np.diag(steps.noise))


MIN_BEGINNING = 3
"""Minimum number of slices of a fit to the beginning."""

MAX_SPAN_RATIO = 2.0
"""Largest ratio between forecast horizons, relative to the past's length, that are compared."""


def reaches_beyond(past: Array, gaps: Array) -> list[int]:
    """The steps ahead that lie further than any as many steps of the past: `past` (T − 1,) and `gaps` (steps,) are times between slices."""
    ahead = np.cumsum(gaps)
    longest = [
        np.convolve(past, np.ones(min(h + 1, len(past))), "valid").max() for h in range(len(gaps))
    ]
    return [h for h in range(len(gaps)) if ahead[h] > 1.001 * longest[h]]


def widened_beyond(
    model: Model,
    seen: Array,
    past: Array,
    gaps: Array,
    space: Callable[[Estimate, float], StateSpace],
    *,
    name: str,
    level: float,
) -> Array:
    """Factors (steps, d) for intervals of forecasts beyond the past's reach, 1 for others; `model`: values in time order.

    `seen` (n, T, d): the same, NaN where the model has expected ones in their place. `space` makes a step over a gap of an estimate.
    Limits: no measurement noise, one order and one set of gaps for all.
    """
    d = model.data.shape[2]
    found = np.ones((len(gaps), d))
    far = reaches_beyond(past, gaps)
    if not far or model.gaps_estimated:
        return found
    errors = _errors(model.plain(), seen, past, space, name)
    for h in far:
        wanted = gaps[: h + 1].sum() / past.sum()
        chosen = _alike(errors, float(wanted))
        if chosen is not None:
            found[h] = together_wrong(chosen, 1, level)
    return np.maximum.accumulate(found, axis=0)


def _errors(
    model: Any,
    seen: Array,
    past: Array,
    space: Callable[[Estimate, float], StateSpace],
    name: str,
) -> list[list[tuple[float, Array]]]:
    """For each beginning: how far ahead of its span each later slice lies, and the errors (n, d) there in deviations, NaN where nothing was `seen`."""
    x, times = np.asarray(model.data.values), np.r_[0.0, np.cumsum(past)]
    n, T, d = x.shape
    found = []
    for cut in range(MIN_BEGINNING, T):
        if n * (cut - 1) < 2 * d + 2:
            continue
        few = replace(
            model, timing=UNKNOWN, data=replace(model.data, values=x[:, :cut]), prior=None
        )
        fit = few.fit_gaps(np.arange(cut, dtype=np.intp), Gaps.of(past[: cut - 1]))
        estimate = few.estimate(fit, name)
        last, each = Known(x[:, cut - 1], np.zeros((d, d))), []
        for t in range(cut, T):
            lag = times[t] - times[cut - 1]
            ahead = space(estimate, float(lag))
            covariances = estimate.errors.covariances
            mean, deviation = forecasts(last, [ahead], errors=covariances, elapsed=np.array([lag]))
            each.append((float(lag / times[cut - 1]), (seen[:, t] - mean[:, 0]) / deviation[:, 0]))
        found.append(each)
    return found


def _alike(errors: list[list[tuple[float, Array]]], wanted: float) -> Array | None:
    """Of each beginning the errors nearest to as far ahead, (beginnings, n, d); of none so far the furthest of all."""
    nearest = [min(each, key=lambda one: abs(np.log(one[0] / wanted))) for each in errors if each]
    if not nearest:
        return None
    alike = [z for ratio, z in nearest if abs(np.log(ratio / wanted)) <= np.log(MAX_SPAN_RATIO)]
    if len(alike) < 2:
        furthest = sorted(nearest, key=lambda one: one[0])[-2:]
        alike = [z for _, z in furthest]
    return np.stack(alike)
