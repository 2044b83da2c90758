"""Data at the entry: checked once, and brought to places and units that depend on their content alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

from retrace_sde.estimator.cells import with_cells_checked
from retrace_sde.estimator.checks import (
    check_centred,
    check_enough,
    check_knowledge,
    check_lazy,
    check_volumes,
    consistent_prior,
    with_times,
)
from retrace_sde.estimator.copies import with_copies
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.segments import with_segments
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.growth import Growth
from retrace_sde.orders.prior import Prior, known_clock
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.canonical import RowPermutation, content_permutation
from retrace_sde.panel.clock import Clock
from retrace_sde.panel.knowledge import Knowledge, with_bounded_errors
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.schedule import on_schedule
from retrace_sde.panel.validation import ReTraceWarning, check_panel
from retrace_sde.search.plan import nonlinear
from retrace_sde.search.stamps.known import StampCheck, with_right_stamps


@dataclass(frozen=True, eq=False)
class Entry:
    """A panel as it is fitted, and what is known of its orders and of its times.

    Everything stands where its content puts it, whatever order rows came in; `places` puts answers back. `whole` is the
    panel in its places, `panel` the same with visits laid out on a schedule where there is one. `notes` and `cautions`: on what was noticed.
    `stamps`: time stamps as given, of which some may be wrong.
    """

    whole: Panel
    panel: Panel
    prior: Prior | None
    timing: Clock
    dt: float
    places: RowPermutation
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    aligned: str | None = None
    growth: Growth | None = None
    stamps: StampCheck | None = None


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
    if panel.values.shape[0] == 1:
        warnings.warn(
            "X holds one trajectory: the distribution of the first observation cannot be learned from it, so the "
            "direction of time cannot be tested, and the order rests on distances between single states.",
            ReTraceWarning,
            stacklevel=3,
        )
    check_lazy(panel, request.given, knowledge)
    panel = check_volumes(panel, request.drift)
    names = request.drift.feature_names(panel.names, panel.covariate_names)
    check_enough(panel, len(names))
    check_centred(panel, request.drift)
    panel, cautions = with_cells_checked(panel, request)
    dt, prior = request.dt if panel.dt is None else float(panel.dt), None
    joined: tuple[str, ...] = ()
    stamps = None
    if knowledge is not None:
        knowledge, joined = with_segments(knowledge, panel, request, dt)
        knowledge, stamps = with_right_stamps(knowledge, panel, dt, shared=shared)
        prior = consistent_prior(knowledge, panel, shared=shared, dt=dt)
    placed = content_permutation(panel, shared=shared, known=knowledge)
    if not (shared and likely):
        placed = placed.shuffled(None if shared else panel.lengths)
    panel, notes = with_copies(placed.panel(panel), placed.rows, shared=shared)
    whole = panel
    if knowledge is not None:
        knowledge = replace(knowledge, timestamps=placed.table(knowledge.timestamps))
        if knowledge.schedule is not None and not shared:
            panel = on_schedule(panel, knowledge.schedule)
    if prior is not None:
        prior = prior.relabelled(placed.wide(panel.values.shape[1]), placed.rows)
    lengths = Lengths.of(panel.values, panel.lengths)
    timing, dt = known_clock(knowledge, lengths, dt, shared=shared)
    aligned = None if knowledge is None else knowledge.aligned
    growth = Growth.of(knowledge, panel)
    notes = (*notes, *joined)
    told = notes, cautions, aligned, growth, stamps
    return Entry(whole, panel, prior, timing, dt, placed, *told)


def in_units(panel: Panel, units: Units | None, n_jobs: int | None) -> Data:
    """A panel's values in the units of the fit."""
    values = panel.values if units is None else units.apply(panel.values)
    return Data(values, panel.covariates, n_jobs, panel.lengths, panel.groups)
