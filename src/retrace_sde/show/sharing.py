"""What a report holds of single subjects, and a report that holds none of it.

Shared are summaries only: parameters and tests, costs summed over subjects, means and standard deviations of the values by
slice (of five subjects at least), counts. Not shared: any subject's values, its id, its own order, notes on the table, which
quote it, and the fingerprint of the data. Labels of slices and names of variables are part of every report.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.io.answers import plain
from retrace_sde.io.arrays import Indices
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.panel.panel import Panel
from retrace_sde.result import ReTraceResult

MIN_SUBJECTS_OF_MEAN, MIN_SUBJECTS_OF_QUANTILE = 5, 20
"""Subjects behind a mean, and behind a quantile, below which it would disclose too much of one of them."""


def nameless(panel: Panel) -> Panel:
    """The panel with its subjects numbered, and without notes that may quote them."""
    ids = tuple(f"subject {k + 1}" for k in range(len(panel.ids)))
    return replace(panel, ids=ids, notes=())


def unquoted(result: ReTraceResult, panel: Panel) -> ReTraceResult:
    """The result without what names a subject of the panel: suspects, influence, and notes that quote one."""
    names = {panel.trajectory(j) for j in range(len(panel.ids))}
    notes = [note for note in result.notes if not any(name in note for name in names)]
    if result.suspects:
        count = len(result.suspects)
        several = f"{count} entries look" if count > 1 else "1 entry looks"
        notes.append(f"{several} wrong: the result says which, not this page.")
    return replace(result, notes=tuple(notes), suspects=(), influence=())


def summarised(
    data: dict[str, Any], panel: Panel, variables: Indices, digits: int
) -> dict[str, Any]:
    """The numbers behind the figures, without those of single subjects; `variables` are drawn, to some `digits`."""
    direction = {**data["direction"], "names": [[] for _ in data["direction"]["names"]]}
    found = {**data, "direction": direction}
    residuals = data["residuals"]
    if residuals is not None and len(panel.ids) < MIN_SUBJECTS_OF_QUANTILE:
        hidden = [[[None] * len(line) for line in each] for each in residuals["observed"]]
        found["residuals"] = {**residuals, "observed": hidden}
    if not data["shared"]:
        nothing: dict[str, Any] = {"ids": [], "variables": [], "values": [], "times": []}
        return {**found, "units": [], "paths": nothing}
    values = to_numpy(panel.values)[:, data["units"][0]["slices"]][:, :, variables]
    known = (~np.isnan(values)).sum(axis=0)
    # Of slices without any value.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        mean, spread = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    lines = np.stack([mean, mean - spread, mean + spread])
    lines = np.where(known >= MIN_SUBJECTS_OF_MEAN, lines, np.nan)
    names = ["mean of all subjects", "mean − 1 standard deviation", "mean + 1 standard deviation"]
    paths = {
        **data["paths"],
        "ids": names,
        "values": plain(lines.transpose(0, 2, 1), digits=digits),
    }
    return {**found, "paths": paths}


def contents(data: dict[str, Any], panel: Panel, *, share: bool) -> str:
    """What the page holds of single subjects, to be said on top of it."""
    n = len(panel.ids)
    if share:
        return (
            f"Made to be shared: summaries of {n:,} subjects, without any subject's values or id."
        )
    ids = {name for bar in data["direction"]["names"] for name in bar} | set(data["paths"]["ids"])
    return f"This page holds values of {len(data['paths']['ids']):,} and ids of {len(ids):,} of {n:,} subjects."
