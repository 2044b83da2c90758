"""`retrace diagnose`: what can be identified from a file, before any fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from retrace_sde import diagnosis
from retrace_sde.cli.common import (
    give,
    json_option,
    listed,
    load,
    progress,
    refusing,
    table_options,
)
from retrace_sde.io.columns import date_columns, shown
from retrace_sde.io.deferred import pd
from retrace_sde.io.tables import as_frame
from retrace_sde.panel.panel import Panel


@click.command()
@table_options
@json_option
def diagnose(file: Path, as_json: bool, **columns: Any) -> None:
    """Say what can be learned from FILE before any fit, and what to do next."""
    with refusing(), progress() as begin:
        begin("reading")
        frame, roles = load(file, **columns)
        panel = Panel.from_frame(frame, **roles)
        begin("looking")
        found = diagnosis.diagnose(panel)
        if roles["time"] is None:
            found = replace(found, findings=(*_dated(frame, roles), *found.findings))
    switched = diagnosis.with_values(panel, 2)
    if switched and len(switched) < len(
        panel.names
    ):  # the command that is proposed takes them for inputs
        left = [name for name in roles["variables"] or () if name not in switched] or None
        roles |= {"variables": left, "covariates": [*(roles["covariates"] or ()), *switched]}
    give(found.to_dict(), _lines(found, file, roles), as_json=as_json)


def _dated(frame: pd.DataFrame, roles: dict[str, Any]) -> list[diagnosis.Finding]:
    """Columns of dates that were given no role: the times may be known after all."""
    taken = {roles["subject"], roles["slice"]}
    names = [name for name in date_columns(as_frame(frame)) if name not in taken]
    if not names:
        return []
    return [
        diagnosis.Finding("time", "caution", f"There are dates in {shown(names)}.",
                          f"If they say when a row was observed, use them: --time {shlex.quote(names[0])}.")
    ]  # fmt: skip


def _lines(
    found: diagnosis.Diagnosis, file: Path, roles: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    low, middle, high = found.observations_per_subject
    per = f"{low}" if low == high else f"{low} to {high} (median {middle:g})"
    shared = found.slices is not None
    kind = "each subject has its own order"
    if shared:
        kind = f"{found.slices} slices in one order shared by all"
    size = f"{found.subjects} subjects, {found.observations} observations, {per} each"
    yield "Data", f"{size}; {kind}; variables {listed(found.variables)}."
    for finding in found.findings:
        mark = f"{diagnosis.MARKS[finding.kind]} {finding.topic}"
        yield mark, f"{finding.sentence} {finding.advice}".rstrip()
    if not found.usable:
        yield "Next", "correct what is marked ×, then run retrace diagnose again."
        return
    words = ["retrace", "fit", str(file)]
    for option in ("subject", "slice", "group", "time", "time_error", "variables", "covariates"):
        value = roles[option]
        if value:
            text = ",".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value  # fmt: skip
            words += [f"--{option.replace('_', '-')}", text]
    yield "Next", shlex.join(words)
