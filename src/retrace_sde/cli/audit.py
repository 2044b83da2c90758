"""`retrace audit`: which time stamps of a file are wrong, and what the file gives away once they are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrace_sde.audit.hidden import HiddenAudit, audit_hidden
from retrace_sde.audit.times import TimesAudit, audit_times
from retrace_sde.cli.common import (
    Finite,
    TableJob,
    clearing,
    give,
    json_option,
    one_table_options,
    seed_option,
    table_options,
    working,
)


@click.command()
@table_options
@click.option("--wrong", type=Finite(0, 0.5, min_open=True, max_open=True), default=0.05, show_default=True, metavar="P",
              help="Share of stamps that are expected to be wrong.")  # fmt: skip
@click.option("--hidden", is_flag=True, help="Before the times are removed: how much of the order could be recovered all the same, and which "
              "columns give it away.")  # fmt: skip
@one_table_options("audit")
@seed_option
@json_option
def audit(file: Path, wrong: float, hidden: bool, seed: int, as_json: bool, **given: Any) -> None:
    """Find wrong time stamps in FILE: single ones, swapped pairs, blocks of a reset clock, subjects run backwards.

    Writes a table, one row for each stamp: the probability that it is wrong, the expected time and its interval, and the kind of error.

    With --hidden all stamps are taken for right, and the answer says how much of the order somebody recovers who gets FILE without them. Writes
    a table, one row for each subject: the expected Kendall's tau and the share of pairs of rows that are sure.
    """
    with working() as (begin, cautions):
        begin("reading")
        job = TableJob.of(file, "audit", **given)
        roles = job.roles
        if roles["time"] is None:
            raise ValueError("--time is missing: which column has the stamps?")
        if roles["covariates"] or roles["group"]:
            raise ValueError("retrace audit uses neither --covariates nor --group: leave them out.")
        kept = {name: value for name, value in roles.items() if name not in ("covariates", "group")}
        begin("judging stamps")
        with clearing(job.in_the_way):
            found, figures = _hidden(job, kept, seed) if hidden else _stamps(job, kept, wrong, seed)
        begin("writing")
        job.write(found.table)
    first, *others = found.findings
    lines = [
        ("Order" if hidden else "Stamps", first),
        *(("Finding", text) for text in others),
        *job.lines(cautions),
    ]
    answer = {**job.answer(cautions), **figures, "findings": list(found.findings)}
    give(answer, lines, as_json=as_json)


def _stamps(
    job: TableJob, roles: dict[str, Any], wrong: float, seed: int
) -> tuple[TimesAudit, dict[str, Any]]:
    """Which stamps are wrong."""
    found = audit_times(job.frame, **roles, wrong=wrong, random_state=seed)
    count = int((found.table["probability_wrong"] > 0.5).sum())
    shared = {"kind": found.dependence.kind.value, "allowed_for": found.dependence.removed}
    return found, {"stamps": len(found.table), "wrong": count, "dependence": shared}


def _hidden(job: TableJob, roles: dict[str, Any], seed: int) -> tuple[HiddenAudit, dict[str, Any]]:
    """What the table gives away without its times."""
    if roles.pop("time_error") is not None:
        raise ValueError("--hidden compares with the true times: leave --time-error out.")
    found = audit_hidden(job.frame, **roles, random_state=seed)
    means = {name: float(found.table[name].mean()) for name in found.table.columns[2:]}
    columns = found.columns.to_dict("records")
    return found, {**means, "direction": found.direction, "columns": columns}
