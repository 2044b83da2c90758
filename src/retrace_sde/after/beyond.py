"""Forecasts over horizons longer than the data allow to test: tested by fits to the beginning of the data.

A drift that describes the past may mean nothing beyond it: a decline that slows down is read as one that ends. Predictions from within the data
the fit has seen do not show that. So the SDE is fitted to the first slices alone and what came later is predicted from the last of them,
as far ahead of their span as the forecast is of the whole; where such forecasts missed, or missed together, intervals are widened by as much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.after.forecast import Known, forecasts, together_wrong
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.model import StateSpace
from retrace_sde.io.arrays import Array
from retrace_sde.panel.clock import UNKNOWN, Gaps
from retrace_sde.search.protocols import Model

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
    past: Array,
    gaps: Array,
    space: Callable[[Estimate, float], StateSpace],
    *,
    name: str,
    level: float,
) -> Array:
    """Factors (steps, d) for intervals of forecasts beyond the past's reach, 1 for others; `model`: values in time order.

    `space` makes a step over a gap of an estimate. Limits: states that are seen as they are, one order and one set of gaps for all.
    """
    d = model.data.shape[2]
    found = np.ones((len(gaps), d))
    far = reaches_beyond(past, gaps)
    if not far or model.states_hidden or model.gaps_estimated:
        return found
    errors = _errors(model.plain(), past, space, name)
    for h in far:
        wanted = gaps[: h + 1].sum() / past.sum()
        chosen = _alike(errors, float(wanted))
        if chosen is not None:
            found[h] = together_wrong(chosen, 1, level)
    return np.maximum.accumulate(found, axis=0)


def _errors(
    model: Any,
    past: Array,
    space: Callable[[Estimate, float], StateSpace],
    name: str,
) -> list[list[tuple[float, Array]]]:
    """For each beginning: how far ahead of its span each later slice lies, and the errors (n, d) there in deviations."""
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
            each.append((float(lag / times[cut - 1]), (x[:, t] - mean[:, 0]) / deviation[:, 0]))
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
