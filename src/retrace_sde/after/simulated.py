"""Paths from a fit, each from the start of an observed one and under its covariates: `x' = x + Θ φ(x, u) Δt + N(0, H Δt)`."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from retrace_sde.after.residuals import ResidualCheck, check_residuals
from retrace_sde.after.steps import RESIDUAL_SAMPLE, Steps, steps_of, tested_rows
from retrace_sde.fit.euler import euler_paths
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import in_order, to_numpy
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model


def residual_check(
    model: Model, found: Fit, rng: np.random.Generator, levels: Array | None = None
) -> ResidualCheck:
    """The residuals of a fit, and paths simulated from it beside those observed; `levels` (n, d): random intercepts removed."""
    steps = steps_of(model, found, levels)
    # Of variables that no trajectory has at some position.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return check_residuals(
            steps, simulated_paths(model, found, steps, rng), shared=found.ordering.shared
        )


def tested_part(model: Model, found: Fit) -> tuple[Model, Fit, Indices]:
    """The part of a fit to observed states that the residual tests use, and its trajectories: a copy, which can be tested later."""
    rows = tested_rows(model.data.shape)
    along = found.ordering.take(rows).index
    few = replace(found, order=along, gaps=found.gaps.take(rows), reverse=None)
    return model.some(len(rows)), few, rows


BAND_PATHS = 400
"""Simulated paths behind a band; fewer for large panels."""


def simulated_paths(model: Model, found: Fit, steps: Steps, rng: np.random.Generator) -> Array:
    """Some paths (m, T, d) from the fit, m a multiple of the trajectories used; observation noise included."""
    times = min(-(-BAND_PATHS // len(steps.rows)), max(1, 4 * RESIDUAL_SAMPLE // steps.states.size))
    rows = np.tile(steps.rows, times)
    _, T, d = model.data.shape
    order = found.ordering.take(rows).index
    u = model.data.covariates
    u = None if u is None else to_numpy(in_order(to_numpy(u)[rows], order))
    hidden = model.states_hidden
    states = found.states if hidden and found.states is not None else None
    x = np.tile(steps.states[:, 0], (times, 1)) if states is None else states[rows, 0]
    gaps = found.gaps.take(rows).rows(len(rows), T)
    paths = np.concatenate([x[:, None], euler_paths(found.step, x, u, gaps, rng)], axis=1)
    if hidden:
        lower = np.linalg.cholesky(
            found.law.R + 1e-12 * np.trace(found.law.R) * np.eye(d) + 1e-300 * np.eye(d)
        )
        paths = paths + rng.standard_normal(paths.shape) @ lower.T
    return paths
