"""`retrace fit`: from a file to its order, its direction of time and its SDE."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from retrace_sde.cli.common import (
    Finite,
    force_option,
    give,
    json_option,
    listed,
    load,
    safe_option,
    seed_option,
    table_options,
    working,
)
from retrace_sde.fit.intervals import clearest, clearness, critical
from retrace_sde.fit.regression import ErrorKind
from retrace_sde.io.files import check_target, whole_or_nothing, write_table
from retrace_sde.io.outputs import check_outputs
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.recovery import Recovery, recover
from retrace_sde.result import ReTraceResult

RESULTS = ("ordered.csv", "parameters.json", "report.html", "result.npz")
"""What a fit writes."""

ENDS = 6
"""Slices shown at either end of a long order."""

EFFECTS = 5
"""Significant coefficients that are shown."""


def _noise(text: str) -> Any:
    if text in ("auto", "estimate", "diagonal"):
        return text
    if text == "none":
        return None
    try:
        number = float(text)
        if not 0 <= number < float("inf"):
            raise ValueError
        return number
    except ValueError:
        raise ValueError(
            f"--observation-noise is a standard deviation, 'auto', 'none', 'estimate' or 'diagonal'; got {text!r}."
        ) from None


def _times(text: str) -> list[float]:
    """The times of a schedule."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--schedule is the protocol's times with commas between them, e.g. 0,7,14,30,90; got {text!r}."
        ) from None


def _knowledge(
    frame: pd.DataFrame, slice_: str | None, first: str | None, last: str | None, positions: tuple[str, ...],
    before: tuple[str, ...], schedule: str | None,
) -> Knowledge | None:  # fmt: skip
    """What the options say is known of time; labels are the table's own."""
    if slice_ is None and (positions or before):
        raise ValueError(
            "--position and --before name slices, so they need --slice; for rows with orders of their own use --first COL, "
            "--last COL or --time COL."
        )
    labels = (
        set()
        if slice_ is None or slice_ not in frame.columns
        else set(map(str, frame[slice_].dropna()))
    )
    known = {
        "first": first,
        "last": last,
        "positions": dict(_position(each) for each in positions) or None,
        "precedences": [_pair(each, labels) for each in before] or None,
        "schedule": None if schedule is None else _times(schedule),
    }
    return Knowledge(**known) if any(each is not None for each in known.values()) else None  # type: ignore[arg-type]


def _position(text: str) -> tuple[str, int]:
    label, _, place = text.rpartition("=")
    if not label or not place.strip().isdecimal():
        raise ValueError(
            f"--position is LABEL=K, a slice and its position counted from 0; got {text!r}."
        )
    return label, int(place)


def _pair(text: str, labels: set[str]) -> tuple[str, str]:
    """A:B, where labels may hold colons themselves."""
    cuts = [k for k, sign in enumerate(text) if sign == ":"]
    pairs = [(text[:k].strip(), text[k + 1 :].strip()) for k in cuts]
    fitting = [pair for pair in pairs if set(pair) <= labels] or pairs[:1]
    if len(fitting) != 1:
        raise ValueError(f"--before is A:B, two labels of --slice, A the earlier; got {text!r}.")
    return fitting[0]


@click.command()
@table_options
@click.option("--dt", type=Finite(), metavar="X",
              help="Time between neighbours [default: from the times known, else 1].")  # fmt: skip
@click.option("--drift", type=click.Choice(["auto", "affine", "linear"]), default="auto", show_default=True,
              help="A x + c, or A x; auto: affine, and the answer says whether the data prefer another.")  # fmt: skip
@click.option("--estimator", type=click.Choice(["auto", "mle", "ols", "exact", "em", "mcem"]), default="auto",
              show_default=True, help="How the SDE is estimated along an order.")  # fmt: skip
@click.option(
    "--observation-noise",
    metavar="X|auto|none|estimate|diagonal",
    default="auto",
    show_default=True,
    help="Measurement noise: its standard deviation, 'estimate' (the same share of each variable's), 'diagonal' (one for each "
    "variable), 'none', or 'auto': estimated where the data prefer it.",
)
@click.option("--spacing", type=click.Choice(["regular", "estimate"]), default="regular", show_default=True,
              help="Equal gaps between neighbours, or gaps estimated from the data.")  # fmt: skip
@click.option("--schedule", metavar="T,T,…", help="The protocol's times, e.g. 0,7,14,30,90, where it is unknown which row "
              "belongs to which. Without --slice a subject may have missed some.")  # fmt: skip
@click.option("--first", metavar="LABEL|COL", help="The slice that came first; without --slice, a column that marks each "
              "subject's first row by 1 or yes.")  # fmt: skip
@click.option(
    "--last",
    metavar="LABEL|COL",
    help="The slice that came last, or a column that marks the last rows.",
)
@click.option("--position", "positions", multiple=True, metavar="LABEL=K",
              help="A slice whose position is known, counted from 0, the earliest; may be repeated.")  # fmt: skip
@click.option(
    "--before", multiple=True, metavar="A:B", help="Slice A came before slice B; may be repeated."
)
@click.option("--missing-covariates", type=click.Choice(["refuse", "carry", "interpolate"]), default="refuse",
              show_default=True, help="What to do where values of --covariates are missing.")  # fmt: skip
@click.option("--subjects", type=click.Choice(["auto", "alike", "levels", "rates"]), default="auto",
              show_default=True, help="One SDE for all, random intercepts, or random rates; auto: by evidence.")  # fmt: skip
@click.option("--bootstrap", type=click.IntRange(min=2), metavar="N",
              help="Standard errors by N bootstrap draws of subjects, instead of the sandwich estimate.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS|local", help="Dask's workers for a zarr array (trajectory, time, variable), which is "
              "never read whole: their scheduler's address, or 'local' to start some here.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder for the results [default: FILE's name + '-retrace'].")  # fmt: skip
@force_option
@safe_option
@click.option("--share", is_flag=True,
              help="report.html to be sent to others: summaries only, no subject's values or id.")  # fmt: skip
@seed_option
@json_option
def fit(file: Path, dt: float | None, drift: str, estimator: str, observation_noise: str,
        spacing: str, schedule: str | None, first: str | None, last: str | None, positions: tuple[str, ...],
        before: tuple[str, ...], missing_covariates: str, subjects: str, bootstrap: int | None, scheduler: str | None, out: Path | None, force: bool,
        safe_csv: bool, share: bool, seed: int, as_json: bool, **columns: Any) -> None:  # fmt: skip
    """Recover the order of FILE's rows, the direction of time, and the SDE behind them.

    FILE is csv, tsv, parquet, npz, h5ad or zarr, one row per observation. With --slice all subjects share
    one unknown order of the slices; without it each subject's rows have their own. Writes
    ordered.csv (every row and column, and position, time, position_probability, direction; position_reversed where
    the direction is open), parameters.json,
    report.html and result.npz.
    """
    out = out or Path(f"{file.stem}-retrace")
    if scheduler is not None:
        from retrace_sde.cli.lazy import fit_lazy

        known = (
            first,
            last,
            positions,
            before,
            schedule,
            *(columns[name] for name in ("subject", "slice_", "time", "group")),
        )
        if any(known):
            raise click.UsageError(
                "--scheduler fits an array, which has no columns or labels: leave out options that name them."
            )
        settings: dict[str, Any] = {"permutation": "independent" if columns["independent"] else "shared",
                    "dt": dt or 1.0, "drift": "linear" if drift == "linear" else "affine", "estimator": estimator,
                    "observation_noise": _noise(observation_noise), "spacing": spacing, "subjects": subjects, "random_state": seed}  # fmt: skip
        fit_lazy(
            file, scheduler, settings, out=out, force=force, bootstrap=bootstrap, as_json=as_json
        )
        return
    with working() as (begin, cautions):
        begin("reading")
        check_target(out, folder=True)
        replaced = check_outputs([out / name for name in RESULTS], source=file, force=force)
        frame, roles = load(file, **columns)
        options: dict[str, Any] = {} if dt is None else {"dt": dt}
        options["knowledge"] = _knowledge(
            frame, roles["slice"], first, last, positions, before, schedule
        )
        begin("recovering the order")
        found = recover(
            frame, **roles, drift=drift, estimator=estimator, spacing=spacing,
            observation_noise=_noise(observation_noise), missing_covariates=missing_covariates, subjects=subjects,
            random_state=seed, bootstrap=bootstrap, **options,
        )  # fmt: skip
        begin("sampling orders")
        table = found.ordered
        begin("writing")
        answer = {**found.parameters, "file": file.name}
        with whole_or_nothing(out) as folder:
            write_table(table, folder / "ordered.csv", safe=safe_csv)
            found.model.result_.save(folder / "result.npz")
            found.report(folder / "report.html", title=None if share else file.name, share=share)
            (folder / "parameters.json").write_text(_lines(answer), encoding="utf-8")
    files = [str(out / name) for name in RESULTS]
    lines = [
        *_answer(found, answer, cautions),
        ("Replaced" if replaced else "Written", ", ".join(files)),
    ]
    if share:
        lines += [("To share", "report.html holds no subject's values or id; the other files do.")]
    give({**answer, "warnings": cautions, "files": files}, lines, as_json=as_json)


def _lines(answer: dict[str, Any]) -> str:
    """JSON with one key per line, so that a matrix does not fill a screen."""
    pairs = (
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in answer.items()
    )
    return "{\n" + ",\n".join(pairs) + "\n}\n"


def _answer(
    found: Recovery, answer: dict[str, Any], cautions: list[str]
) -> Iterator[tuple[str, str]]:
    """Labels and sentences, the answer first."""
    panel, result = found.panel, found.model.result_
    shared = answer["permutation"] == "shared"
    kind = "one order shared by all" if shared else "each with an order of its own"
    size = (
        f"{len(panel.slices or ())} slices" if shared else f"{answer['observations']} observations"
    )
    several = "" if answer["groups"] is None else f" in {answer['groups']} groups"
    yield (
        "Data",
        f"{len(panel.ids)} subjects{several}, {size}, variables {listed(panel.names)}; {kind}.",
    )
    yield "Order", _order(found, answer)
    yield "Direction", result.direction.verdict
    choices = (
        ("Drift", result.drift_choice),
        ("Noise", result.noise_choice),
        ("Subjects", result.subjects),
    )
    yield from ((label, f"{each.verdict}.") for label, each in choices if each is not None)
    yield "Effects", _effects(answer)
    if result.inputs is not None:
        yield "Inputs", _of_inputs(result)
    yield from (("Note", text) for text in answer["notes"])
    yield from (("Caution", text) for text in cautions if text not in result.notes)


def _order(found: Recovery, answer: dict[str, Any]) -> str:
    sure = found.columns()["position_probability"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # all of them empty: a mean of nothing
        mean = float(np.nanmean(sure))
    shown = (
        f"mean posterior probability of a position {mean:.0%}"
        if np.isfinite(mean)
        else "too many observations to sample orders"
    )
    if answer["order"] is None:
        return f"in column position of ordered.csv; {shown}."
    labels = [str(label) for label in answer["order"]]
    if len(labels) > 2 * ENDS:
        labels = [*labels[:ENDS], "…", *labels[-ENDS:]]
    loop = (
        " → back to the first: a cycle, whose first slice is arbitrary" if answer["cycle"] else ""
    )
    return f"{' → '.join(labels)}{loop}; {shown}."


def _effects(answer: dict[str, Any]) -> str:
    """The off-diagonal effects with the largest |z|, in words; all coefficients are in parameters.json."""
    A = np.array(answer["drift"], dtype=float)
    error = np.array(answer["standard_errors"]["drift"], dtype=float)
    names = answer["variables"]
    if np.isnan(error).all():
        return "in parameters.json; this estimator gives no standard errors."
    n = answer["groups"] or answer["subjects"]
    significant = clearness(A, error) > critical(n)
    if len(names) > 1:
        np.fill_diagonal(significant, False)
    asked = len(names) * (len(names) - 1) or 1
    corrected = significant & (clearness(A, error) > critical(n, 1 - 0.05 / asked))
    many = (
        f" {significant.sum()} of {asked} are significant at 5 % ({asked / 20:.2g} expected by chance), "
        f"{corrected.sum()} after Bonferroni's correction."
    )
    pairs = [pair for pair in clearest(A, error) if significant[pair]][:EFFECTS]
    if not pairs:
        return f"none of {asked} is significant at 5 %; all coefficients are in parameters.json."
    resampled = answer["standard_errors"]["kind"] == ErrorKind.BOOTSTRAP
    unit = f"(coefficients of A ± {'bootstrap' if resampled else 'standard'} error).{many}"
    twin = answer["alternative"]
    if twin is None:
        texts = [f"{names[j]} → {names[i]} {A[i, j]:+.3g} ± {error[i, j]:.2g}" for i, j in pairs]
        return f"{'; '.join(texts)} {unit}"
    back = np.array(twin["drift"], dtype=float)
    wide = np.array(twin["standard_errors"]["drift"], dtype=float)
    texts = [
        f"{names[j]} → {names[i]} {A[i, j]:+.3g} ± {error[i, j]:.2g} in this order, "
        f"{back[i, j]:+.3g} ± {wide[i, j]:.2g} in its reverse"
        for i, j in pairs
    ]
    return f"they depend on the direction, which is open: {'; '.join(texts)} {unit}"


def _of_inputs(result: ReTraceResult) -> str:
    """What inputs do to the variables, the largest |z| first; where the direction is open, in both orders."""
    d, (causes, ways) = result.drift.shape[1], result._effects
    of_inputs = [(values[:, d:], errors[:, d:]) for values, errors in ways]
    texts = []
    for i, j in clearest(*of_inputs[0], EFFECTS):
        each = [f"{values[i, j]:+.3g} ± {errors[i, j]:.2g}" for values, errors in of_inputs]
        both = each[0] if len(each) == 1 else f"{each[0]} in this order, {each[1]} in its reverse"
        texts.append(f"{causes[d + j]} → {result.names[i]} {both}")
    return f"{'; '.join(texts)} (coefficients ± standard error)."
