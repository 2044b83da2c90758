"""`retrace place`: new subjects put in order by a saved fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    force_option,
    give,
    json_option,
    load,
    safe_option,
    table_options,
    working,
)
from retrace_sde.cli.forecast import saved_model
from retrace_sde.io.answers import positions, to_rows
from retrace_sde.io.files import check_target, whole_or_nothing, write_table
from retrace_sde.io.outputs import check_outputs


@click.command()
@table_options
@click.option("--fitted", type=click.Path(path_type=Path), metavar="RESULT", required=True,
              help="result.npz of an earlier `retrace fit` of other subjects, or its folder.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Where to [default: FILE's name + '-placed.csv'].")  # fmt: skip
@force_option
@safe_option
@json_option
def place(file: Path, fitted: Path, out: Path | None, force: bool, safe_csv: bool, as_json: bool,
          **columns: Any) -> None:  # fmt: skip
    """Put the rows of FILE, new subjects of the same process, in the order most likely under a saved fit.

    Writes every row and column, subject by subject in time order, with position (0 is the earliest) and time.
    """
    out = out or Path(f"{file.stem}-placed.csv")
    with working() as (begin, cautions):
        begin("reading")
        check_target(out, folder=False)
        replaced = check_outputs([out], source=file, force=force)
        frame, roles = load(file, **columns)
        model, kept = saved_model(fitted, roles)
        begin("ordering")
        panel = model._given(frame, kept)
        order = model.place(panel)
        score = model.score(panel)
        found = to_rows(positions(order, len(panel.ids)).astype(float), panel, len(frame), np.nan)
        new = "position" if "position" not in frame.columns else "retrace_position"
        when = "time" if "time" not in frame.columns else "retrace_time"
        table = frame.assign(**{new: found, when: found * model.result_.dt})
        table = table.sort_values([roles["subject"], new], kind="stable", na_position="last")
        begin("writing")
        with whole_or_nothing(out.absolute().parent) as folder:
            write_table(table, folder / out.name, safe=safe_csv)
    subjects = len(panel.ids)
    shown = None if panel.slices is None else [str(panel.slices[k]) for k in order]
    verdict = model.direction_.verdict
    answer = {"file": str(out), "subjects": subjects, "order": shown, "score": score,
              "direction": verdict, "warnings": cautions}  # fmt: skip
    lines = [
        (
            "Placed",
            f"{subjects} subjects; log-likelihood {score:.4g} for each under the saved fit.",
        ),
        ("Order", f"in column {new}." if shown is None else f"{' → '.join(shown)}."),
        ("Direction", f"of the saved fit: {verdict}"),
        *(("Caution", text) for text in cautions),
        ("Replaced" if replaced else "Written", str(out)),
    ]
    give(answer, lines, as_json=as_json)
