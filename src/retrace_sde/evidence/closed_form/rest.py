"""How far a panel is from rest, by Markov steps: what its start has beyond that of a stationary process.

A direction needs two things: the panel is not at rest, and it is not the reverse that relaxes. The ratio of both directions answers the
second. It is a poor answer to the first: a transient of eight trajectories is worth 5 to 10 nats against its reverse, as many as panels at rest have by
chance, while its start lies many standard errors from where its own steps lead. So against nulls at rest this departure is compared, not the ratio.

    log p₀(x₀) − log N(x₀; m₀, S) + ½ uᵀ V⁻¹ u,      u = c + (F − 1) m₀,      V = [(F − 1) S (F − 1)ᵀ + H / (T − 1)] / n,

p₀ the start law of the fit, m₀ the mean of the first slice, S the covariance about slices' means. At rest the mean does not move at m₀: u is zero up to the
errors of m₀ and c. Where offsets are free, or means do not count, the spread of the start is all that tells.
"""

from __future__ import annotations

import numpy as np

from retrace_sde.evidence.closed_form.panels import Form, Ground, Panels
from retrace_sde.evidence.closed_form.steps import StepFit, fit_directions, ratios, squared
from retrace_sde.evidence.closed_form.sums import ROWS_AT_ONCE
from retrace_sde.io.arrays import Array


def departs(panels: Panels, form: Form) -> bool:
    """Departures are defined: slices are aligned, and steps are linear and Markov.

    Memory and random intercepts explain a change of spreads otherwise: by their departures .05 of 60 panels with onsets of their own were called wrongly,
    by small ratios, .02 by the ratio.
    """
    return panels.aligned and form.lags == form.degree == 1 and not form.levels


def departures(panels: Panels, form: Form, grounds: frozenset[Ground]) -> Array:
    """Nats (B,) in the direction that each panel's ratio favours: under a null both are chosen as they are in the data."""
    means = Ground.MEANS in grounds and not form.means
    ways = fit_directions(panels, form if means else form._replace(means=True))
    one, two = (
        _departure(*each, means=means) for each in zip((panels, panels.reverse), ways, strict=True)
    )
    return np.asarray(np.where(ratios(panels, form, grounds) >= 0, one, two))


def _departure(panels: Panels, fit: StepFit, *, means: bool) -> Array:
    """In the direction of a fit."""
    x = panels.x
    n, T, d = x.shape[1:]
    S, first = _spread(x), x[:, :, 0].mean(axis=1)
    squares, log_det = squared(x[:, :, 0] - first[:, None], S)
    steady = squares.sum(axis=1) * n / (n - 1) + n * (log_det + d * np.log(2 * np.pi))
    found: Array = fit.start.log_densities.sum(axis=1) + 0.5 * steady
    if means:
        u = (first[:, None] @ fit.theta)[:, 0] + fit.offsets[:, 0]
        V = (fit.theta.transpose(0, 2, 1) @ S @ fit.theta + fit.H / (T - 1)) / n
        found = found + 0.5 * squared(u, V)[0]
    return found


def _spread(x: Array) -> Array:
    """The covariance (B, d, d) of panels about their slices' means, some slices at a time."""
    B, n, T, d = x.shape
    size, total = max(1, ROWS_AT_ONCE // (B * n * d)), np.zeros((B, d, d))
    for begin in range(0, T, size):
        z = x[:, :, begin : begin + size]
        flat = (z - z.mean(axis=1, keepdims=True)).reshape(B, -1, d)
        total += flat.transpose(0, 2, 1) @ flat
    return total / ((n - 1) * T)
