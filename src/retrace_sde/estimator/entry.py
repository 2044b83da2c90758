"""Data at the entry: checked once, and brought to places and units that depend on their content alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrace_sde.estimator.checks import (
    check_centred,
    check_consistent,
    check_enough,
    check_knowledge,
    check_lazy,
    check_volumes,
    with_times,
)
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.units import Units
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.canonical import RowPermutation, content_permutation
from retrace_sde.panel.knowledge import Knowledge, with_bounded_errors
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.schedule import on_schedule
from retrace_sde.panel.validation import check_panel
from retrace_sde.search.plan import nonlinear


@dataclass(frozen=True, eq=False)
class Entry:
    """A panel as it is fitted, and what is known of its time.

    Everything stands where its content puts it, whatever order rows came in; `places` puts answers back. `whole` is the
    panel in its places, `panel` the same with visits laid out on a schedule where there is one.
    """

    whole: Panel
    panel: Panel
    knowledge: Knowledge | None
    places: RowPermutation


def entered(
    X: Any,
    covariates: Any | None,
    knowledge: Knowledge | None,
    groups: Any | None,
    request: Request,
) -> Entry:
    """Data and knowledge, refused where they cannot be used."""
    shared, likely, linear = request.shared, request.by_likelihood, request.has_state_space
    knowledge = with_times(X, knowledge) if likely else knowledge
    check_knowledge(knowledge, request.given["order"])
    knowledge = with_bounded_errors(knowledge)
    panel = check_panel(
        X,
        covariates,
        groups,
        n_jobs=request.n_jobs,
        ragged=not shared,
        missing=likely and linear,
        missing_covariates=request.missing_covariates != "refuse",
        idle=not (likely and linear),
        refusal=nonlinear("Missing values", request.drift) if likely and not linear else None,
        look=likely and linear,
    )
    check_lazy(panel, request.given, knowledge)
    panel = check_volumes(panel, request.drift)
    names = request.drift.feature_names(panel.names, panel.covariate_names)
    check_enough(panel, len(names))
    check_centred(panel, request.drift)
    if knowledge is not None:
        check_consistent(knowledge, panel, shared=shared, dt=request.dt)
    placed = content_permutation(panel, shared=shared, known=knowledge)
    if not (shared and likely):
        placed = placed.shuffled(None if shared else panel.lengths)
    whole = panel = placed.panel(panel)
    knowledge = None if knowledge is None else placed.knowledge(knowledge)
    if knowledge is not None and knowledge.schedule is not None and not shared:
        panel, knowledge = on_schedule(panel, knowledge)
    return Entry(whole, panel, knowledge, placed)


def in_units(panel: Panel, units: Units | None, n_jobs: int | None) -> Data:
    """A panel's values in the units of the fit."""
    values = panel.values if units is None else units.apply(panel.values)
    return Data(values, panel.covariates, n_jobs, panel.lengths, panel.groups)
