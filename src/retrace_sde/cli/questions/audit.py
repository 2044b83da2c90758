"""`retrace audit`: which time stamps of a file are wrong, and what they should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrace_sde.audit.times import audit_times
from retrace_sde.cli.common import (
    Finite,
    force_option,
    format_option,
    give,
    json_option,
    load,
    safe_option,
    seed_option,
    table_options,
    table_target,
    working,
    write_one,
)


@click.command()
@table_options
@click.option("--wrong", type=Finite(0, 0.5, min_open=True, max_open=True), default=0.05, show_default=True, metavar="P",
              help="Share of stamps that are expected to be wrong.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Where to, as csv, tsv, xlsx or parquet [default: FILE's name + '-audit.csv'].")  # fmt: skip
@format_option
@force_option
@safe_option
@seed_option
@json_option
def audit(file: Path, wrong: float, out: Path | None, out_format: str | None, force: bool, safe_csv: bool, seed: int,
          as_json: bool, **columns: Any) -> None:  # fmt: skip
    """Find wrong time stamps in FILE: single ones, swapped pairs, blocks of a reset clock, subjects run backwards.

    Writes a table, one row for each stamp: the probability that it is wrong, the expected time and its interval, and the kind of error.
    """
    with working() as (begin, cautions):
        begin("reading")
        out, replaced = table_target(out, "audit", out_format, source=file, force=force)
        frame, roles = load(file, **columns)
        if roles["time"] is None:
            raise ValueError("--time is missing: which column has the stamps?")
        if roles["covariates"] or roles["group"]:
            raise ValueError("retrace audit uses neither --covariates nor --group: leave them out.")
        kept = {name: value for name, value in roles.items() if name not in ("covariates", "group")}
        begin("judging stamps")
        found = audit_times(frame, **kept, wrong=wrong, random_state=seed)
        begin("writing")
        write_one(found.table, out, frame, out_format, safe=safe_csv)
    count = int((found.table["probability_wrong"] > 0.5).sum())
    answer = {"file": str(out), "stamps": len(found.table), "wrong": count, "findings": list(found.findings), "warnings": cautions}  # fmt: skip
    lines = [
        ("Stamps", found.findings[0]),
        *(("Finding", text) for text in found.findings[1:]),
        *(("Caution", text) for text in cautions),
        ("Replaced" if replaced else "Written", str(out)),
    ]
    give(answer, lines, as_json=as_json)
