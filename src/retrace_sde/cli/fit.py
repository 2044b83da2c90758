"""`retrace fit`: from a file to its order, its direction of time and its SDE; with --scheduler, of a zarr array that stays where it is, on workers."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    Finite,
    aligned_option,
    checked_outputs,
    clearing,
    columns_of,
    file_name,
    force_option,
    format_option,
    give,
    json_option,
    listed,
    load,
    missing_covariates_option,
    numbers,
    safe_option,
    seed_option,
    table_options,
    text_form,
    working,
)
from retrace_sde.fit.intervals import clearest, clearness, critical
from retrace_sde.fit.regression import ErrorKind
from retrace_sde.io.answers import parameters
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import pd
from retrace_sde.io.files import check_target, whole_or_nothing
from retrace_sde.io.formats import main_array, need
from retrace_sde.io.untrusted import zarr_store
from retrace_sde.io.writing import check_writable, write_table
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.panel import Panel
from retrace_sde.recovery import Recovery, recover
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace
from retrace_sde.show.verdicts import placement
from retrace_sde.show.wording import reworded

RESULTS = ("parameters.json", "report.html", "result.npz")
"""What a fit writes besides the table in order."""

SUSPECTS = "suspects.csv"
"""Values that are probably wrong; written where there are any."""

SUSPECTS_SHOWN = 5

KNOWN = ("first", "last", "positions", "before", "schedule", "aligned", "increasing", "decreasing", "segments", "wrong")  # fmt: skip
"""Options that say what is known of time."""

SETTINGS = ("drift", "estimator", "observation_noise", "spacing", "subjects", "missing_covariates", "common_shocks", "outliers")  # fmt: skip
"""Options that are settings of a fit as they are."""

SLICES_SHOWN_AT_ENDS = 6
"""Slices shown at either end of a long order."""

EFFECTS_SHOWN = 5
"""Significant coefficients that are shown."""


def _noise(context: click.Context, option: click.Parameter, text: str) -> Any:
    if text in ("auto", "estimate", "diagonal", "none"):
        return None if text == "none" else text
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise click.ClickException(
        f"--observation-noise is a standard deviation, 'auto', 'none', 'estimate' or 'diagonal'; got {text!r}."
    )


def _knowledge(
    frame: pd.DataFrame, slice_: str | None, *, positions: tuple[str, ...], before: tuple[str, ...], schedule: str | None,
    increasing: tuple[str, ...], decreasing: tuple[str, ...], **given: Any,
) -> Knowledge | None:  # fmt: skip
    """What the options say is known of time; labels and columns are the table's own."""
    if slice_ is None and (positions or before):
        raise ValueError(
            "--position and --before name slices, so they need --slice; for rows with orders of their own use --first COL, "
            "--last COL or --time COL."
        )
    labels = set(map(str, frame[slice_].dropna())) if slice_ in frame.columns else set()
    protocol = "--schedule is the protocol's times with commas between them, e.g. 0,7,14,30,90"
    known = {
        **given,
        "positions": dict(_position(each) for each in positions) or None,
        "precedences": [_pair(each, labels) for each in before] or None,
        "schedule": None if schedule is None else numbers(schedule, protocol),
        "increasing": columns_of(increasing, frame) or None,
        "decreasing": columns_of(decreasing, frame) or None,
    }
    return Knowledge(**known) if any(each is not None for each in known.values()) else None


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
    callback=_noise,
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
@click.option("--order-known", metavar="COL", help="Without --slice: a column that is 1 in all rows of subjects that stand in "
              "order, or holds ranks of rows; the others learn from these.")  # fmt: skip
@click.option("--segments", metavar="COL", help="A column with the segment of each slice (without --slice, of each row); those of one segment are in order "
              "as stored, the order of the segments and their gaps are sought.")  # fmt: skip
@click.option("--wrong", type=Finite(0, 0.5, min_open=True, max_open=True), metavar="P", help="Share of the times in --time that may be "
              "grossly wrong, e.g. 0.05: each is right within --time-error, or carries no information.")  # fmt: skip
@missing_covariates_option("values of --covariates are missing")
@click.option("--subjects", type=click.Choice(["auto", "alike", "levels", "rates"]), default="auto",
              show_default=True, help="One SDE for all, random intercepts, or random rates; auto: by evidence.")  # fmt: skip
@click.option("--common-shocks", type=click.Choice(["auto", "yes", "no"]), default="auto", show_default=True,
              callback=lambda context, option, text: {"auto": "auto", "yes": True, "no": False}[text],
              help="Remove what all subjects share at a slice (shocks, plates); auto: where a test finds it.")  # fmt: skip
@click.option("--outliers", type=click.Choice(["auto", "flag", "keep"]), default="auto", show_default=True,
              help="Values that are probably wrong: treat clear ones as missing, list them only, or do not look for them.")  # fmt: skip
@aligned_option
@click.option("--increasing", multiple=True, metavar="COL[,COL…]",
              help="Variables that grow most of the time: they determine the direction.")  # fmt: skip
@click.option("--decreasing", multiple=True, metavar="COL[,COL…]",
              help="Variables that fall most of the time.")  # fmt: skip
@click.option("--bootstrap", type=click.IntRange(min=2), metavar="N",
              help="Standard errors by N bootstrap draws of subjects, instead of the sandwich estimate.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS|local", help="Dask's workers for a zarr array (trajectory, time, variable), which is "
              "never read whole: their scheduler's address, or 'local' to start some here.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder for the results [default: FILE's name + '-retrace'].")  # fmt: skip
@format_option
@force_option
@safe_option
@click.option("--share", is_flag=True,
              help="report.html to be sent to others: summaries only, no subject's values or id.")  # fmt: skip
@seed_option
@json_option
def fit(file: Path, dt: float | None, order_known: str | None, bootstrap: int | None, scheduler: str | None, out: Path | None,
        out_format: str | None, force: bool, safe_csv: bool, share: bool, seed: int, as_json: bool, **given: Any) -> None:  # fmt: skip
    """Recover the order of FILE's rows, the direction of time, and the SDE behind them.

    FILE is csv, tsv, txt, xlsx (Excel), dta (Stata), sav (SPSS), sas7bdat or xpt (SAS), parquet, npz, h5ad or zarr, one row per
    observation. With --slice all subjects share
    one unknown order of the slices; without it each subject's rows have their own. Writes
    ordered.csv (every row and column, and position, time, position_probability, direction; position_reversed where
    the direction is open), parameters.json,
    report.html and result.npz; and suspects.csv where values are probably wrong.
    """
    out = out or Path(f"{file.stem}-retrace")
    known = {name: given.pop(name) for name in KNOWN}
    settings = {name: given.pop(name) for name in SETTINGS}
    settings |= {"random_state": seed, **({} if dt is None else {"dt": dt})}
    if scheduler is not None:
        named = (given[name] for name in ("subject", "slice_", "time", "group"))
        if any((order_known, *known.values(), *named)):
            raise click.UsageError(
                "--scheduler fits an array, which has no columns or labels: leave out options that name them."
            )
        settings["permutation"] = "independent" if given["independent"] else "shared"
        settings["drift"] = "linear" if settings["drift"] == "linear" else "affine"
        fit_lazy(
            file, scheduler, settings, out=out, force=force, bootstrap=bootstrap, as_json=as_json
        )
        return
    with working() as (begin, cautions):
        begin("reading")
        check_target(out, folder=True)
        ordered = f"ordered.{out_format or 'csv'}"
        results = [out / name for name in (ordered, *RESULTS)]
        whole = [*results, out / SUSPECTS]
        replaced, in_the_way = checked_outputs(whole, source=file, force=force)
        frame, roles = load(file, **given)
        check_writable(out / ordered, frame.shape)
        knowledge = _knowledge(frame, roles["slice"], **known)
        begin("recovering the order")
        with clearing(in_the_way):
            found = recover(
                frame, **roles, **settings, knowledge=knowledge, bootstrap=bootstrap, order_known=order_known
            )  # fmt: skip
        begin("sampling orders")
        table = found.ordered
        begin("writing")
        answer = {**reworded(found.parameters), "file": file_name(file)}
        form = text_form(frame, out_format)
        title = None if share else file_name(file)
        with whole_or_nothing(out) as folder:
            write_table(table, folder / ordered, safe=safe_csv, written=form)
            if len(found.suspects) or (out / SUSPECTS).exists():  # a former list is replaced
                write_table(found.suspects, folder / SUSPECTS, safe=safe_csv)
                results.append(out / SUSPECTS)
            found.model.result_.save(folder / "result.npz")
            found.report(folder / "report.html", title=title, share=share)
            (folder / "parameters.json").write_text(_lines(answer), encoding="utf-8")
    files = [str(path) for path in results]
    lines = [
        *_answer(found, answer, cautions, ordered),
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
    found: Recovery, answer: dict[str, Any], cautions: list[str], ordered: str
) -> Iterator[tuple[str, str]]:
    """Labels and sentences, the answer first."""
    panel, result = found.panel, found.model.result_
    shared = answer["permutation"] == "shared"
    several = "" if answer["groups"] is None else f" in {answer['groups']} groups"
    size = f"{answer['observations']} observations", "each with an order of its own"
    if shared:
        size = f"{len(panel.slices or ())} slices", "one order shared by all"
    yield (
        "Data",
        f"{len(panel.ids)} subjects{several}, {size[0]}, variables {listed(panel.names)}; {size[1]}.",
    )
    yield "Order", _order(found, answer, ordered)
    yield "Direction", result.direction.verdict
    if result.direction.assumptions:
        yield "Assuming", " ".join(result.direction.assumptions)
    if result.dependence is not None:
        yield "Dependence", result.dependence.verdict
    choices = {
        "Drift": result.drift_choice,
        "Noise": result.noise_choice,
        "Subjects": result.subjects,
    }
    yield from ((label, f"{each.verdict}.") for label, each in choices.items() if each is not None)
    suspects = result.suspects
    yield from (("Suspect", f"{each}.") for each in suspects[:SUSPECTS_SHOWN])
    if len(suspects) > SUSPECTS_SHOWN:
        yield "Suspects", f"{len(suspects) - SUSPECTS_SHOWN} more are in {SUSPECTS}."
    yield "Effects", _effects(result)
    if result.inputs is not None:
        d, (causes, ways) = result.drift.shape[1], result._effects
        of_inputs = [(values[:, d:], errors[:, d:]) for values, errors in ways]
        told = _told(causes[d:], result.names, of_inputs, clearest(*of_inputs[0], EFFECTS_SHOWN))
        yield "Inputs", f"{told} (coefficients ± standard error)."
    yield from (("Note", text) for text in answer["notes"])
    yield from (("Caution", text) for text in cautions if text not in result.notes)


def _order(found: Recovery, answer: dict[str, Any], ordered: str) -> str:
    either = found.model.result_.shared_order and found.direction == "open"
    sure: Array | None = found.columns()["position_probability"]
    if either:  # now sampled, unless there are too many
        sure = placement(found.model)
    # Where all are empty, a mean of nothing.
    with warnings.catch_warnings(action="ignore"):
        mean = float("nan") if sure is None else float(np.nanmean(sure))
    shown = "too many observations to sample orders"
    if np.isfinite(mean):
        which = "a position or its mirror image" if either else "a position"
        shown = f"mean posterior probability of {which} {mean:.0%}"
    if answer["order"] is None:
        return f"in column position of {ordered}; {shown}."
    labels = [str(label) for label in answer["order"]]
    if len(labels) > 2 * SLICES_SHOWN_AT_ENDS:
        labels = [*labels[:SLICES_SHOWN_AT_ENDS], "…", *labels[-SLICES_SHOWN_AT_ENDS:]]
    if answer["cycle"]:
        labels += ["back to the first: a cycle, whose first slice is arbitrary"]
    return f"{' → '.join(labels)}; {shown}."


def _effects(result: ReTraceResult) -> str:
    """The off-diagonal effects with the largest |z|, in words; all coefficients are in parameters.json."""
    names, n, (causes, ways) = result.names, result.n_groups, result._effects
    ways = [(values[:, : len(names)], errors[:, : len(names)]) for values, errors in ways]
    clear = clearness(*ways[0])
    if np.isnan(ways[0][1]).all():
        return "in parameters.json; this estimator gives no standard errors."
    significant = clear > critical(n)
    if len(names) > 1:
        np.fill_diagonal(significant, False)
    asked = len(names) * (len(names) - 1) or 1
    pairs = [pair for pair in clearest(*ways[0]) if significant[pair]][:EFFECTS_SHOWN]
    if not pairs:
        return f"none of {asked} is significant at 5 %; all coefficients are in parameters.json."
    corrected = significant & (clear > critical(n, 1 - 0.05 / asked))
    kind = "bootstrap" if result.standard_errors.kind == ErrorKind.BOOTSTRAP else "standard"
    open_ = "they depend on the direction, which is open: " if len(ways) > 1 else ""
    return (
        f"{open_}{_told(causes, names, ways, pairs)} (coefficients of A ± {kind} error). {significant.sum()} of {asked} are "
        f"significant at 5 % ({asked / 20:.2g} expected by chance), {corrected.sum()} after Bonferroni's correction."
    )


def _told(
    causes: Sequence[str],
    names: Sequence[str],
    ways: list[tuple[Array, Array]],
    pairs: Iterable[tuple[int, int]],
) -> str:
    """Coefficients with their errors; where the direction is open, in both orders."""
    texts = []
    for i, j in pairs:
        each = [f"{values[i, j]:+.3g} ± {errors[i, j]:.2g}" for values, errors in ways]
        both = each[0] if len(each) == 1 else f"{each[0]} in this order, {each[1]} in its reverse"
        texts.append(f"{causes[j]} → {names[i]} {both}")
    return "; ".join(texts)


LOCAL_ADDRESS = "local"
"""The address of workers that are started here, one for each core."""

MAX_CHUNK_BYTES = 1 << 30
"""Bytes of a chunk at most: each is read whole by a worker."""


@contextmanager
def connected(address: str) -> Iterator[str]:
    """Workers for every pass meanwhile, and the link to their dashboard."""
    distributed = need("distributed", "cluster")
    cluster = None
    if address == LOCAL_ADDRESS:
        cluster = distributed.LocalCluster(threads_per_worker=1, dashboard_address="127.0.0.1:0")
    try:
        with distributed.Client(cluster or address, timeout=30, set_as_default=True) as client:
            yield str(client.dashboard_link)
    except (OSError, TimeoutError) as error:
        raise ValueError(
            f"no scheduler answers at {address!r} ({error}): start one with `dask scheduler`, or use --scheduler local."
        ) from None
    finally:
        if cluster is not None:
            cluster.close()


def lazy_panel(path: Path) -> Panel:
    """A panel whose values stay in a zarr store: its one array of three axes, or the one called `values` or `X`."""
    if path.suffix.lower() != ".zarr" or not path.is_dir():
        raise ValueError(
            f"--scheduler takes a zarr store with an array (trajectory, time, variable); {path} is none. Other files are read "
            "into memory, without --scheduler."
        )
    dask, zarr = need("dask.array", "cluster"), need("zarr")
    zarr_store.check(path, lambda amount: None, _check_chunk, contents=False)
    store = zarr.open(str(path), mode="r")
    arrays = {"values": store} if hasattr(store, "shape") else dict(store.arrays())
    main = main_array({name: len(each.shape) for name, each in arrays.items()})
    if main is None:
        found = ", ".join(f"{name} {each.shape}" for name, each in list(arrays.items())[:6])
        raise ValueError(
            f"{path} must hold an array (trajectory, time, variable); it has {found or 'no arrays'}."
        )
    names = [str(each) for each in arrays["names"][:]] if "names" in arrays else None
    return Panel.from_array(dask.from_zarr(arrays[main]), names=names)


def _check_chunk(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if float(np.prod(shape, dtype=float)) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(
            f"its chunks {shape} are larger than {MAX_CHUNK_BYTES >> 30} GiB, more than a worker should read at once: save it again with "
            "smaller ones."
        )


LAZY_RESULTS = ("parameters.json", "result.npz")
"""What such a fit writes; a table of all rows in order would be the data again."""


def fit_lazy(
    file: Path,
    scheduler: str,
    settings: dict[str, Any],
    *,
    out: Path,
    force: bool,
    bootstrap: int | None,
    as_json: bool,
) -> None:
    """Recover the order of an array, print what was found and write it."""
    with working() as (begin, cautions):
        check_target(out, folder=True)
        results = [out / name for name in LAZY_RESULTS]
        replaced, in_the_way = checked_outputs(results, source=file, force=force)
        panel = lazy_panel(file)
        begin("starting workers")
        with connected(scheduler) as dashboard:
            click.echo(f"Dashboard  {dashboard}", err=True)
            begin("recovering the order")
            with clearing(in_the_way):
                model = ReTrace(**settings).fit(panel)
            if bootstrap:
                model.bootstrap_errors(draws=bootstrap, adopt=True)
        answer = {**parameters(model.result_, panel), "file": file_name(file)}
        begin("writing")
        with whole_or_nothing(out) as folder:
            model.result_.save(folder / "result.npz")
            text = json.dumps(answer, ensure_ascii=False, allow_nan=False, indent=1)
            (folder / "parameters.json").write_text(text, encoding="utf-8")
    files = [str(each) for each in results]
    n, T, _ = panel.shape
    order = answer["order"]
    found = "each trajectory's own, in result.npz"
    if order is not None:
        found = listed([str(k) for k in order], 12)
    lines = [
        ("Data", f"{n} trajectories, {T} slices, variables {listed(panel.names)}; not read into memory."),
        ("Order", f"{found}."),
        ("Direction", model.result_.direction.verdict),
        *([] if model.result_.dependence is None else [("Dependence", model.result_.dependence.verdict)]),
        *(("Note", text) for text in dict.fromkeys([*answer["notes"], *cautions])),
        ("Replaced" if replaced else "Written", ", ".join(files)),
    ]  # fmt: skip
    give({**answer, "warnings": cautions, "files": files}, lines, as_json=as_json)
