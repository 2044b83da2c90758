"""Errors by resampling subjects: whatever was fitted is fitted again, along the order found, to subjects drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from joblib import Parallel, delayed

from retrace_sde.evidence.selection.subjects import Subjects, level_coefficients
from retrace_sde.fit.bootstrap import errors_of_draws
from retrace_sde.fit.levels import fit_levels
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.statespace.levels import HiddenLevels, refit_levels
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.progress import steps
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel
from retrace_sde.search.protocols import Model

CLOSED = ("mle", "ols", "mcem")
"""Estimators whose replicates are weighted sums, not fits."""


def bootstrap(
    model: Model,
    found: Fit,
    rng: np.random.Generator,
    *,
    name: str,
    subjects: Subjects,
    replicates: int,
    levels: HiddenLevels | None = None,
) -> StandardErrors:
    """The spread of an estimator's answers over panels of n subjects drawn with replacement; the order is held fixed.

    What is drawn does not depend on how many run at a time.
    """
    n = model.data.shape[0]
    if levels is not None:
        drawn = [rng.integers(n, size=n) for _ in range(replicates)]
        return _each(model, drawn, lambda rows: _hidden_levels(levels, rows))
    if not _refits(model, name, subjects) or not isinstance(model, EulerModel):
        return model.bootstrap(found, rng, replicates=replicates)
    drawn = [rng.integers(n, size=n) for _ in range(replicates)]

    def one(rows: Indices) -> tuple[Array, Array]:
        fitted = _levels if subjects is Subjects.LEVELS else _plain
        return fitted(*_taken(model, found, rows), name)

    return _each(model, drawn, one)


def _each(
    model: Model,
    drawn: list[Indices],
    one: Callable[[Indices], tuple[Array, Array]],
) -> StandardErrors:
    """The spread of the answers to panels drawn, several at a time."""
    parallel = Parallel(model.data.n_jobs or -1, prefer="threads", return_as="generator")
    fits = []
    replies = parallel(delayed(one)(rows) for rows in drawn)
    for each in steps(replies, "resampling subjects", total=len(drawn), least=2):
        fits.append(each)
    return errors_of_draws([each[0] for each in fits], [each[1] for each in fits])


def _refits(model: Model, name: str, subjects: Subjects) -> bool:
    """Each replicate is a fit of this module's; others are weighted sums, or fits of the model's own."""
    if not isinstance(model, EulerModel) or isinstance(model, GapModel):
        return False
    return subjects is Subjects.LEVELS or name not in CLOSED


def _taken(model: EulerModel, found: Fit, rows: Indices) -> tuple[EulerModel, Fit]:
    """The model of drawn subjects, with their own orders and gaps where they have such."""
    order = found.ordering.take(rows).index
    drawn = replace(model, data=replace(model.data.take(rows), n_jobs=1), prior=None)
    return drawn, drawn.fit_gaps(order, found.gaps.take(rows))


def _hidden_levels(levels: HiddenLevels, rows: Indices) -> tuple[Array, Array]:
    found = refit_levels(levels, rows)
    return found.coefficients, found.diffusion


def _plain(model: EulerModel, found: Fit, name: str) -> tuple[Array, Array]:
    estimate = model.estimate(found, name)
    return estimate.coefficients, estimate.diffusion


def _levels(model: EulerModel, found: Fit, name: str) -> tuple[Array, Array]:
    levels = fit_levels(model.data, found.order, found.gaps)
    if levels is None:
        return _plain(model, found, name)
    return level_coefficients(levels, model.dt, name=name, gaps=not found.gaps.equal)
