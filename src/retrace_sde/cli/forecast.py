"""`retrace forecast`: the next observations of each subject, from a fit of the file or from a saved one. `retrace place`: new subjects put in order by a saved fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    Finite,
    TableJob,
    clearing,
    fitted_option,
    give,
    json_option,
    one_table_options,
    seed_option,
    table_options,
    working,
)
from retrace_sde.io.answers import certainties, forecast_columns, positions, table_notes, to_rows
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import pd
from retrace_sde.recovery import recover
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace

HELD = "Inputs (covariates=) are held at their last values over all steps."
"""Said of forecasts under inputs, which nobody knows ahead."""


def saved_model(path: Path, roles: dict[str, Any]) -> tuple[ReTrace, dict[str, Any]]:
    """The model of a saved result, and the columns of a table that its methods take."""
    source = path / "result.npz" if path.is_dir() else path
    if not source.exists():
        raise ValueError(f"--fitted: {source} does not exist; `retrace fit` writes result.npz.")
    try:
        model: ReTrace = ReTraceResult.load(source).model()
    except ValueError as error:
        raise ValueError(f"--fitted: {error}") from None
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
@fitted_option()
@one_table_options("forecast")
@seed_option
@json_option
def forecast(file: Path, steps: int, level: float, dt: float | None, fitted: Path | None, seed: int, as_json: bool,
             **given: Any) -> None:  # fmt: skip
    """Put FILE in time order and forecast the next K observations of each subject, with intervals.

    Writes a table: subject, step, time, variable, mean, low, high. With --fitted the parameters are those of a saved fit;
    for other options of a fit, run `retrace fit` first.
    """
    with working() as (begin, cautions):
        begin("reading")
        job = TableJob.of(file, "forecast", **given)
        frame, roles = job.frame, job.roles
        if fitted is not None:
            if dt is not None:
                raise ValueError("--dt is that of the saved fit: leave it out.")
            model, kept = saved_model(fitted, roles)
            begin("forecasting")
            with clearing(job.in_the_way):
                panel = model._given(frame, kept)
                ahead = model.forecast(panel, steps, level=level)
            subject = roles["subject"]
            table = pd.DataFrame(forecast_columns(ahead, panel.ids, model.result_.names, subject))
        else:
            begin("recovering the order")
            options: dict[str, Any] = {} if dt is None else {"dt": dt}
            with clearing(job.in_the_way):
                found = recover(frame, **roles, random_state=seed, **options)
            model, panel = found.model, found.panel
            begin("forecasting")
            table = found.forecast(steps, level=level)
        begin("writing")
        job.write(table)
    test, subjects = model.direction_, table.iloc[:, 0].nunique()
    answer = {"subjects": subjects, "steps": steps, "level": level, "direction": test.verdict}
    notes = [*table_notes(panel), *([HELD] if model.result_.inputs is not None else [])]
    size = f"{steps} step{'s' * (steps > 1)} ahead of {subjects} subjects, {level:.0%} intervals"
    lines = [
        ("Forecast", f"{size}; {len(table)} rows."),
        ("Direction", test.verdict),
        *job.lines(cautions, notes),
    ]
    give({**job.answer(cautions, notes), **answer}, lines, as_json=as_json)


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
        with clearing(job.in_the_way):
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
