"""`retrace forecast`: the next observations of each subject, from a fit of the file or from a saved one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd

from retrace_sde.cli.common import (
    Finite,
    force_option,
    format_option,
    give,
    json_option,
    load,
    notes_of,
    safe_option,
    seed_option,
    table_options,
    table_target,
    working,
    write_one,
)
from retrace_sde.io.answers import forecast_columns
from retrace_sde.recovery import recover
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace

FITTED = click.option("--fitted", type=click.Path(path_type=Path), metavar="RESULT",
                      help="result.npz of an earlier `retrace fit` of other subjects, or its folder.")  # fmt: skip


def saved_model(path: Path, roles: dict[str, Any]) -> tuple[ReTrace, dict[str, Any]]:
    """The model of a saved result, and the columns of a table that its methods take."""
    model: ReTrace = ReTraceResult.load(path / "result.npz" if path.is_dir() else path).model()
    kept = {name: roles[name] for name in ("subject", "slice", "time") if roles[name] is not None}
    if model.result_.shared_order != (roles["slice"] is not None):
        raise ValueError(
            "the saved fit has one order for all subjects: name the column with their shared label, --slice COL."
            if model.result_.shared_order
            else "in the saved fit each subject has an order of its own: leave --slice out."
        )
    if "time" in kept:
        raise ValueError("--fitted does not use known times: leave --time out, or fit this file.")
    return model, kept


@click.command()
@table_options
@click.option(
    "--steps",
    type=click.IntRange(1),
    required=True,
    metavar="K",
    help="Observations ahead, dt apart.",
)
@click.option("--level", type=Finite(0, 1, min_open=True, max_open=True), default=0.95, show_default=True,
              metavar="P", help="Probability that the intervals hold.")  # fmt: skip
@click.option("--dt", type=Finite(0, min_open=True), metavar="X",
              help="Time between neighbours [default: from the times known, else 1].")  # fmt: skip
@FITTED
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Where to, as csv, tsv, xlsx or parquet [default: FILE's name + '-forecast.csv'].")  # fmt: skip
@format_option
@force_option
@safe_option
@seed_option
@json_option
def forecast(file: Path, steps: int, level: float, dt: float | None, fitted: Path | None, out: Path | None,
             out_format: str | None, force: bool, safe_csv: bool, seed: int, as_json: bool, **columns: Any) -> None:  # fmt: skip
    """Put FILE in time order and forecast the next K observations of each subject, with intervals.

    Writes a table: subject, step, time, variable, mean, low, high. With --fitted the parameters are those of a saved fit;
    for other options of a fit, run `retrace fit` first.
    """
    with working() as (begin, cautions):
        begin("reading")
        out, replaced = table_target(out, "forecast", out_format, source=file, force=force)
        frame, roles = load(file, **columns)
        if fitted is not None:
            if dt is not None:
                raise ValueError("--dt is that of the saved fit: leave it out.")
            model, kept = saved_model(fitted, roles)
            begin("forecasting")
            panel = model._given(frame, kept)
            ahead = model.forecast(panel, steps, level=level)
            subject = roles["subject"]
            table = pd.DataFrame(forecast_columns(ahead, panel.ids, model.result_.names, subject))
        else:
            begin("recovering the order")
            options: dict[str, Any] = {} if dt is None else {"dt": dt}
            found = recover(frame, **roles, random_state=seed, **options)
            model = found.model
            begin("forecasting")
            table = found.forecast(steps, level=level)
        begin("writing")
        write_one(table, out, frame, out_format, safe=safe_csv)
    test, subjects = model.direction_, table.iloc[:, 0].nunique()
    answer = {"file": str(out), "subjects": subjects, "steps": steps, "level": level,
              "direction": test.verdict, "notes": notes_of(frame), "warnings": cautions}  # fmt: skip
    size = f"{steps} step{'s' * (steps > 1)} ahead of {subjects} subjects, {level:.0%} intervals"
    lines = [
        ("Forecast", f"{size}; {len(table)} rows."),
        ("Direction", test.verdict),
        *(("Note", text) for text in answer["notes"]),
        *(("Caution", text) for text in cautions),
        ("Replaced" if replaced else "Written", str(out)),
    ]
    give(answer, lines, as_json=as_json)
