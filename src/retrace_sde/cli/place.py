"""`retrace place`: new subjects put in order by a saved fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    TableJob,
    fitted_option,
    give,
    json_option,
    one_table_options,
    table_options,
    working,
)
from retrace_sde.cli.forecast import saved_model
from retrace_sde.io.answers import certainties, positions, to_rows
from retrace_sde.io.arrays import Array


@click.command()
@table_options
@fitted_option(required=True)
@one_table_options("placed")
@json_option
def place(file: Path, fitted: Path, as_json: bool, **given: Any) -> None:
    """Put the rows of FILE, new subjects of the same process, in the order most likely under a saved fit.

    Writes every row and column, subject by subject in time order, with position (0 is the earliest), time and position_probability,
    the probability of that position under the saved fit (where its direction is open, of it and of its mirror image, half each).
    """
    with working() as (begin, cautions):
        begin("reading")
        job = TableJob.of(file, "placed", **given)
        frame, roles = job.frame, job.roles
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
        whole = found if np.isnan(found).any() else found.astype(np.int64)
        table = frame.assign(**{new: whole, when: found * model.result_.dt, chance: sure})
        table = table.sort_values([roles["subject"], new], kind="stable", na_position="last")
        begin("writing")
        job.write(table)
    subjects = len(panel.ids)
    shown = None if panel.slices is None else [str(panel.slices[k]) for k in order]
    verdict = model.direction_.verdict
    answer = {"subjects": subjects, "order": shown, "score": score,
              "mean_position_probability": float(np.nanmean(sure)), "direction": verdict}  # fmt: skip
    lines = [
        (
            "Placed",
            f"{subjects} subjects; mean log-likelihood of a subject under the saved fit: {score:.4g}.",
        ),
        ("Order", f"in column {new}, {_sure(sure)}." if shown is None else f"{' → '.join(shown)}."),
        ("Direction", f"of the saved fit: {verdict}"),
        *job.lines(cautions),
    ]
    give({**job.answer(cautions), **answer}, lines, as_json=as_json)


def _sure(probabilities: Array) -> str:
    """How sure positions are, in words."""
    known = probabilities[~np.isnan(probabilities)]
    return (
        f"right with a probability of {known.mean():.2f} on average, "
        f"{(known >= 0.9).mean():.0%} of the rows with .9 or more (column position_probability)"
    )
