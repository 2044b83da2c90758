"""`retrace arrow`: which way time runs in a file whose rows are in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from retrace_sde.arrow import arrow_of_time
from retrace_sde.cli.common import (
    Finite,
    aligned_option,
    give,
    json_option,
    load,
    seed_option,
    table_options,
    working,
)
from retrace_sde.evidence.direction.arrow import ArrowTest


@click.command()
@table_options
@click.option("--dt", type=Finite(0, min_open=True), default=1.0, show_default=True, metavar="X",
              help="Time between neighbours, where there is no --time.")  # fmt: skip
@aligned_option
@seed_option
@json_option
def arrow(
    file: Path, dt: float, aligned: str | None, seed: int, as_json: bool, **columns: Any
) -> None:
    """Say which way time runs in FILE: forwards, backwards, or open.

    Rows stand in time order, or --time names the column with their times. Without --subject the file is one long series. Nothing is
    written.
    """
    with working() as (begin, cautions):
        begin("reading")
        frame, roles = load(file, one_series=True, **columns)
        if frame.attrs.get("array"):  # whose slices are in order
            roles |= {"time": roles["time"] or "slice", "slice": None}
        _check(roles)
        begin("testing the direction of time")
        found = arrow_of_time(
            frame,
            subject=roles["subject"],
            time=roles["time"],
            variables=roles["variables"],
            groups=roles["group"],
            dt=dt,
            aligned=aligned,
            random_state=seed,
        )
    give({**found.answer, "warnings": cautions}, _lines(found, cautions), as_json=as_json)


def _check(roles: dict[str, Any]) -> None:
    """Only options that a table in order has."""
    if roles["slice"] is not None:
        raise ValueError(
            "--slice names slices whose order is not known: for rows in order name their times, --time COL; for an unknown order use "
            "retrace fit."
        )
    if roles["covariates"] or roles["time_error"] is not None:
        raise ValueError("retrace arrow uses neither --covariates nor --time-error: leave them out.")  # fmt: skip


def _lines(found: ArrowTest, cautions: list[str]) -> Iterator[tuple[str, str]]:
    """Labels and sentences, the answer first."""
    yield "Direction", f"{found.direction}. {found.verdict}"
    if found.blocks is not None:
        yield "Series", f"split into {found.blocks}."
    if found.reversibility_p is not None:
        significant = found.reversibility_p < found.alpha
        said = "differ significantly" if significant else "do not differ significantly"
        p = f"p = {found.reversibility_p:.2g}, without any model"
        yield "Reversed", f"The data {said} from their time reverse ({p})."
    if found.entropy_production is not None:
        yield "Entropy", f"production of the fitted linear process: {found.entropy_production}."
    if found.assumptions:
        yield "Assuming", " ".join(found.assumptions)
    if found.advice:
        yield "Next", " ".join(found.advice)
    yield from (("Caution", text) for text in cautions)
