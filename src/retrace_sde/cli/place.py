"""`retrace place`: new subjects put in order by a saved fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    force_option,
    format_option,
    give,
    json_option,
    load,
    notes_of,
    safe_option,
    table_options,
    table_target,
    working,
    write_one,
)
from retrace_sde.cli.forecast import saved_model
from retrace_sde.io.answers import certainties, positions, to_rows
from retrace_sde.io.arrays import Array


@click.command()
@table_options
@click.option("--fitted", type=click.Path(path_type=Path), metavar="RESULT", required=True,
              help="result.npz of an earlier `retrace fit` of other subjects, or its folder.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help="Where to, as csv, tsv, xlsx or parquet [default: FILE's name + '-placed.csv'].")  # fmt: skip
@format_option
@force_option
@safe_option
@json_option
def place(file: Path, fitted: Path, out: Path | None, out_format: str | None, force: bool, safe_csv: bool,
          as_json: bool, **columns: Any) -> None:  # fmt: skip
    """Put the rows of FILE, new subjects of the same process, in the order most likely under a saved fit.

    Writes every row and column, subject by subject in time order, with position (0 is the earliest), time and position_probability,
    the probability of that position under the saved fit (where its direction is open, of it and of its mirror image, half each).
    """
    with working() as (begin, cautions):
        begin("reading")
        out, replaced = table_target(out, "placed", out_format, source=file, force=force)
        frame, roles = load(file, **columns)
        model, kept = saved_model(fitted, roles)
        begin("ordering")
        panel = model._given(frame, kept)
        order = model.place(panel)
        score = model.score(panel)
        P = model._posterior_of_others(panel, 1).positions
        position = positions(order, len(panel.ids))
        found = to_rows(position.astype(float), panel, len(frame), np.nan)
        sure = to_rows(certainties(P.astype(np.float32), position), panel, len(frame), np.nan)
        new, when, chance = (
            name if name not in frame.columns else f"retrace_{name}"
            for name in ("position", "time", "position_probability")
        )
        table = frame.assign(**{new: found, when: found * model.result_.dt, chance: sure})
        table = table.sort_values([roles["subject"], new], kind="stable", na_position="last")
        begin("writing")
        write_one(table, out, frame, out_format, safe=safe_csv)
    subjects = len(panel.ids)
    shown = None if panel.slices is None else [str(panel.slices[k]) for k in order]
    verdict = model.direction_.verdict
    answer = {"file": str(out), "subjects": subjects, "order": shown, "score": score,
              "mean_position_probability": float(np.nanmean(sure)), "direction": verdict, "notes": notes_of(frame), "warnings": cautions}  # fmt: skip
    lines = [
        (
            "Placed",
            f"{subjects} subjects; log-likelihood {score:.4g} for each under the saved fit.",
        ),
        ("Order", f"in column {new}, {_sure(sure)}." if shown is None else f"{' → '.join(shown)}."),
        ("Direction", f"of the saved fit: {verdict}"),
        *(("Note", text) for text in notes_of(frame)),
        *(("Caution", text) for text in cautions),
        ("Replaced" if replaced else "Written", str(out)),
    ]
    give(answer, lines, as_json=as_json)


def _sure(probabilities: Array) -> str:
    """How sure positions are, in words."""
    known = probabilities[~np.isnan(probabilities)]
    return (
        f"right with a probability of {known.mean():.2f} on average, "
        f"{(known >= 0.9).mean():.0%} of the rows with .9 or more (column position_probability)"
    )
