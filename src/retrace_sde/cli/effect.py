"""`retrace effect`: treatment effects from a file whose rows have lost their order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import (
    Finite,
    TableJob,
    clearing,
    columns_of,
    file_name,
    give,
    json_option,
    listed,
    missing_covariates_option,
    numbers,
    one_table_options,
    seed_option,
    table_options,
    working,
)
from retrace_sde.effects.interventions import steps_in
from retrace_sde.effects.missing_values import affine_in_state
from retrace_sde.effects.treatment import TreatmentEffect, effect_drift
from retrace_sde.io.answers import table_notes
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import pd
from retrace_sde.panel.inputs import filled_inputs
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import ReTraceWarning, check_panel

SUBJECT_KINDS = ("auto", "alike", "levels", "fixed")
"""Ways in which subjects may differ that go by a name."""

MOST_MISSED = 4
"""Visits after empty ones are laid out, as a multiple of those that took place, at most: beyond, --dt is not their step."""


@click.command()
@table_options
@click.option("--treatment", multiple=True, metavar="COL[,COL…]",
              help="Columns with the treatment from a row's visit to the next: numbers, or true and false.")  # fmt: skip
@click.option(
    "--arm", metavar="COL", help="Column with the arm of a subject, instead of --treatment."
)
@click.option("--control", metavar="ARM", help="With --arm: the arm to compare with (or --t0).")
@click.option("--t0", metavar="X[,X…]|ARM", help="Treatment to compare with [default: none].")
@click.option("--t1", metavar="X[,X…]|ARM",
              help="Treatment whose effect is asked for [default: the most given; the other of two arms].")  # fmt: skip
@click.option(
    "--horizon",
    type=Finite(0, min_open=True),
    metavar="X",
    help="Time ahead [default: as long as the trajectories].",
)
@click.option(
    "--dt",
    type=Finite(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Time between neighbouring visits.",
)
@click.option("--drift", type=click.Choice(["auto", "affine", "tumour"]), default="auto", show_default=True,
              help="affine: A x + c, both changed by treatment; tumour: growth of a volume; auto: tumour where the only variable is "
              "named as a volume, else affine.")  # fmt: skip
@missing_covariates_option("the treatment is missing, unless it never changes")
@click.option("--subjects", metavar="auto|alike|levels|fixed|FEATURE[,FEATURE…]", default="levels", show_default=True,
              help="Random intercepts (levels), none (alike), by AIC (auto), or intercepts that may be correlated with a subject's "
              "treatment (fixed); or the features of the drift whose coefficients vary between subjects.")  # fmt: skip
@click.option("--outside-support", type=click.Choice(["refuse", "allow"]), default="refuse", show_default=True,
              help="What to do where a treatment is asked for that no visit had: allow extrapolates by the model alone.")  # fmt: skip
@click.option("--both-directions", is_flag=True,
              help="Answer for both directions of time where the data leave it open.")  # fmt: skip
@click.option("--draws", type=click.IntRange(20), default=200, show_default=True,
              help="Draws of parameters, subjects and orders, for the intervals.")  # fmt: skip
@one_table_options(None)
@seed_option
@json_option
def effect(file: Path, treatment: tuple[str, ...], arm: str | None, control: str | None, t0: str | None,
           t1: str | None, horizon: float | None, dt: float, drift: str, missing_covariates: Any, subjects: Any, outside_support: Any, both_directions: bool,
           draws: int, seed: int, as_json: bool, **given: Any) -> None:  # fmt: skip
    """Estimate what treatment does to the subjects of FILE, whose rows have lost their time order.

    The order is recovered first. Where the direction of time is not identified no effect is given, since its sign
    depends on it; --both-directions gives both answers. Treatment is in columns that vary (--treatment), or subjects are in arms (--arm).
    """
    with working() as (begin, cautions):
        begin("reading")
        if arm is not None and treatment:
            raise ValueError("--treatment and --arm exclude each other: give one, not both.")
        if arm is None and control is not None:
            raise ValueError("--control names an arm and needs --arm; with --treatment use --t0.")
        if arm is None and not treatment:
            raise ValueError(
                "name the treatment: its columns with --treatment, or each subject's arm with --arm."
            )
        job = TableJob.of(file, "effects", optional=True, **given)
        frame, roles = job.frame, job.roles
        roles["covariates"] = columns_of(treatment, frame) or None
        panels, notes = _panels(job, arm)
        if affine_in_state(effect_drift(drift, next(iter(panels.values())).names)):
            panels = {name: _with_missed_visits(panel, dt) for name, panel in panels.items()}
        if arm is not None:
            t0, t1 = _compared(list(panels), control, t0, t1)
        model = TreatmentEffect(
            dt=dt,
            permutation="independent" if roles["slice"] is None else "shared",
            drift=drift,
            missing_covariates=missing_covariates,
            subjects=_subjects(subjects, drift, panels),
            outside_support=outside_support,
            direction="both" if both_directions else "test",
            random_state=seed,
        )
        begin("recovering the order")
        known = {name: _known_order(panel, dt) for name, panel in panels.items()}
        orders = None if any(each is None for each in known.values()) else known
        data = panels if arm is not None else panels[""]
        if horizon is not None:
            steps_in(horizon, dt)
        asked = {"T0": _value(t0, arm), "T1": _value(t1, arm), "horizon": horizon}
        with clearing(job.in_the_way):
            model.fit(data, order=orders if orders is None or arm is not None else orders[""])
        begin("effects")
        ways = [each for each in (model, model.alternative_) if each is not None]
        answers = [_answer(each, asked, draws) for each in ways]
        begin("assumptions")
        assumed = _assumed(model, asked, draws)
        begin("writing")
        ids = [str(name) for name in model.ids_]
        job.write(_table(ids, answers, model))
    idle = _not_used(given, known=orders is not None, both=both_directions)
    summary = _summary(file, model, answers, asked, ids) | assumed
    told = [*idle, *cautions]
    summary |= {"notes": notes, "warnings": told}
    summary["files"] = [] if job.out is None else [str(job.out)]
    lines = [*_lines(summary, answers, model), *job.lines([*summary["cautions"], *told], notes)]
    give(summary, lines, as_json=as_json)


def _not_used(columns: dict[str, Any], *, known: bool, both: bool) -> list[str]:
    """Options that were given and changed nothing, as a sentence."""
    idle = [
        ("--covariates (the inputs are those of --treatment)", columns["covariates"]),
        ("--time-error (times are taken as exact)", columns["time_error"] is not None),
        ("--both-directions (the times give the direction)", known and both),
    ]
    used = [text for text, given in idle if given]
    return [f"Not used: {', '.join(used)}."] if used else []


def _subjects(asked: str, drift: str, panels: dict[str, Panel]) -> Any:
    """A kind by name, or the places of features by theirs."""
    if asked in SUBJECT_KINDS:
        return asked
    panel = next(iter(panels.values()))
    names = effect_drift(drift, panel.names).feature_names(panel.names, panel.covariate_names)
    chosen = [each.strip() for each in asked.split(",")]
    unknown = [each for each in chosen if each not in names]
    if unknown:
        raise ValueError(
            f"--subjects: {listed(unknown)} is neither {', '.join(SUBJECT_KINDS)} nor a feature of the drift; these are {listed(names)}."
        )
    return tuple(names.index(each) for each in chosen)


def _panels(job: TableJob, arm: str | None) -> tuple[dict[str, Panel], list[str]]:
    """A panel, or that of each arm; and notes: where no variables were chosen, those that a fit leaves out are left out, too."""
    frame, roles = job.frame, job.roles
    if arm is not None and arm not in frame.columns:
        raise ValueError(f"--arm {arm!r} is not a column of the table.")
    whole = Panel.from_frame(frame if arm is None else frame.drop(columns=arm), **roles)
    notes = table_notes(whole)
    if roles["variables"] is None:
        ragged = whole.slices is None
        idle = check_panel(whole, ragged=ragged, missing=True, missing_covariates=True, idle=False)
        whole = whole.without(idle.left_out)
        notes += [each.sentence for each in idle.left_out]
    if arm is None:
        return {"": whole}, notes
    several = frame.groupby(roles["subject"])[arm].nunique(dropna=False) > 1
    if several.any():
        raise ValueError(
            f"subject {several.idxmax()!r} is in several arms; use --treatment for treatment that changes."
        )
    arms, roles = frame[arm].astype(str), {**roles, "variables": list(whole.names)}
    return {
        name: Panel.from_frame(frame[arms == name], **roles) for name in sorted(arms.unique())
    }, notes


def _compared(
    arms: list[str], control: str | None, t0: str | None, t1: str | None
) -> tuple[str, str]:
    """The control arm and the other; never by the order of their names, which would decide the sign."""
    names = ", ".join(map(repr, arms))
    if control is not None and t0 is not None and control != t0:
        raise ValueError(f"--control {control!r} and --t0 {t0!r} differ: give one, not both.")
    before, after = control if control is not None else t0, t1
    given = [each for each in (before, after) if each is not None]
    for each in given:
        if each not in arms:
            raise ValueError(f"{each!r} is not an arm; the arms are {names}.")
    if len(arms) == 2 and len(given) == 1:
        other = arms[1 - arms.index(given[0])]
        before, after = before or other, after or other
    if before is None:
        raise ValueError(f"which arm is the control? Name it with --control: {names}.")
    if after is None:
        raise ValueError(f"which arm is compared with {before!r}? Name it with --t1: {names}.")
    if before == after:
        raise ValueError(f"{before!r} is compared with itself; the arms are {names}.")
    return before, after


def _with_missed_visits(panel: Panel, dt: float) -> Panel:
    """A panel of known times with empty visits where a subject missed some, whole steps apart: they are integrated out."""
    if panel.slices is not None or panel.times is None:
        return panel
    inside = Lengths.of(panel.values, panel.lengths).mask
    first = np.where(inside, panel.times, np.inf).min(axis=1, keepdims=True)
    since = np.where(inside, (panel.times - first) / dt, 0.0)
    if np.isnan(since).any() or np.abs(since - np.rint(since)).max() > 1e-3:
        return panel
    at, (who, where) = np.rint(since).astype(np.intp), np.nonzero(inside)
    lengths, seen = at.max(axis=1) + 1, inside.sum(axis=1)
    twice = len(np.unique(np.c_[who, at[who, where]], axis=0)) < len(who)
    if twice or (lengths == seen).all() or lengths.sum() > MOST_MISSED * seen.sum():
        return panel

    def spread(array: Array) -> Array:
        found = np.full((len(lengths), lengths.max(), *array.shape[2:]), np.nan)
        found[who, at[who, where]] = array[who, where]
        return found

    u = panel.covariates
    if u is not None:
        wide, order = spread(u), np.arange(lengths.max())
        missed = np.isnan(spread(panel.times))[:, :, None]
        u = np.where(missed, filled_inputs(wide, "carry", order), wide)
    count = int((lengths - seen).sum())
    warnings.warn(
        f"{count} visits that subjects missed are integrated out; the treatment before them is taken to hold on.",
        ReTraceWarning,
        stacklevel=2,
    )
    times = first + dt * np.arange(lengths.max())
    return replace(
        panel, values=spread(panel.values), covariates=u, lengths=lengths, times=times, rows=None
    )


def _known_order(panel: Panel, dt: float) -> Indices | None:
    """The order by the times, where all are known and regular; None where none are."""
    if panel.times is None or np.isnan(panel.times).all():
        return None
    times = np.atleast_2d(panel.times)
    T = times.shape[1]
    lengths = Lengths(len(times), T, panel.lengths).each
    if (np.isfinite(times).sum(axis=1) < lengths).any():
        raise ValueError(
            "effects need all times or none: leave --time out, and the order is recovered."
        )
    # Padding, which has no time, stays last.
    order = np.argsort(panel.times, axis=-1, kind="stable")
    gaps = np.diff(np.take_along_axis(panel.times, order, axis=-1), axis=-1)
    if np.nanmax(np.abs(gaps - dt)) > 1e-3 * dt:
        least, most = np.nanmin(gaps), np.nanmax(gaps)
        if most - least <= 1e-3 * most:
            raise ValueError(
                f"the times are {most:g} apart, and --dt is {dt:g}: add --dt {most:g}."
            )
        raise ValueError(
            f"the times are {least:g} to {most:g} apart; effects need visits at a regular --dt. For any times, "
            "retrace fit --covariates COL says what a treatment in a numeric column does to rates of change."
        )
    return order.astype(np.intp)


def _value(text: str | None, arm: str | None) -> Any:
    if text is None or arm is not None:
        return text
    return numbers(text, "--t0 and --t1 are numbers, one for each treatment column")


def _answer(model: TreatmentEffect, asked: dict[str, Any], draws: int) -> dict[str, Array]:
    """Of each variable: the subjects' effects with their limits, (d, n), and the average with its own, (d, 3)."""
    low, high = model.effect_interval(**asked, draws=draws)
    each = {"effect": model.effect(**asked), "lower": low, "upper": high}
    average = [model.ate(**asked), *model.ate_interval(**asked, draws=draws)]
    found = {name: values.reshape(len(values), -1).T for name, values in each.items()}
    return {**found, "average": np.array(average).reshape(3, -1).T}


def _assumed(model: TreatmentEffect, asked: dict[str, Any], draws: int) -> dict[str, Any]:
    """What makes the answer an effect, and what happens to it where that is wrong."""
    test = model.confounding_test(**asked)
    found = model.sensitivity(**asked, draws=draws)
    return {
        "estimand": model.estimand_,
        "assumptions": list(model.assumptions_),
        "confounding": None if test is None else {
            "p_value": test.p_value, "rejected": test.rejected, "random": test.random, "fixed": test.fixed,
            "verdict": test.verdict,
        },
        "sensitivity": {
            "to_zero": found.to_zero, "to_doubt": found.to_doubt, "spread": found.spread, "text": str(found).splitlines(),
        },
        "cautions": model.cautions(**asked),
    }  # fmt: skip


def _table(ids: list[str], answers: list[dict[str, Array]], model: TreatmentEffect) -> pd.DataFrame:
    """Effects of each subject; while the direction is open, those of the reverse beside them."""
    variables = model.interventions_.variables
    columns: dict[str, Any] = {"subject": ids}
    for answer, way in zip(answers, ("", "_reversed"), strict=False):
        for label in ("effect", "lower", "upper"):
            for name, values in zip(variables, answer[label], strict=True):
                of = "" if len(variables) == 1 else f"_{name}"
                columns[f"{label}{of}{way}"] = values.tolist()
    if len(answers) > 1:
        columns["direction"] = "open" if model.undetermined_ else "identified"
    return pd.DataFrame(columns)


def _summary(
    file: Path,
    model: TreatmentEffect,
    answers: list[dict[str, Array]],
    asked: dict[str, Any],
    ids: list[str],
) -> dict[str, Any]:
    found = model.interventions_
    variables = found.variables
    verdicts = {
        name: "The order was given by the times." if each.direction is None else each.direction.verdict
        for name, each in found.regimes.items()
    }  # fmt: skip

    def by_variable(values: Array) -> Any:
        """A number for one variable; by their names for several."""
        return dict(zip(variables, values, strict=True)) if len(variables) > 1 else values[0]

    def shown(answer: dict[str, Array]) -> dict[str, Any]:
        each = zip(ids, answer["effect"].T, strict=True)
        return {
            "ate": by_variable(answer["average"][:, 0]),
            "ate_interval": by_variable(answer["average"][:, 1:]),
            "effects": [{"subject": name, "effect": by_variable(value)} for name, value in each],
        }

    return {
        "file": file_name(file),
        "T0": asked["T0"] if found.arms else found.named(asked["T0"], first=True),
        "T1": asked["T1"] if found.arms else found.named(asked["T1"]),
        "horizon": found.steps(asked["horizon"]) * found.dt,
        "outcomes": list(variables),
        "comparison": [found.comparison(name, **asked) for name in variables],
        **shown(answers[0]),
        "reversed": shown(answers[1]) if len(answers) > 1 else None,
        "open": model.undetermined_,
        "direction": verdicts if found.arms else verdicts[""],
        "measurement_error": model.error_ if found.arms else model.error_[""],
    }


def _lines(
    summary: dict[str, Any], answers: list[dict[str, Array]], model: TreatmentEffect
) -> Iterator[tuple[str, str]]:
    """Labels and sentences, the answer first."""
    found = model.interventions_
    kind = f"treatment in {listed(found.covariates)}"
    yield "Data", f"{found.size} subjects; {f'arms {listed(found.arms)}' if found.arms else kind}."
    ways = [("Effect", "")]
    if len(answers) > 1:
        first = "One answer" if model.undetermined_ else "Effect"
        ways = [(first, "in the order found: "), ("The other", "in the reversed order: ")]
    for answer, (label, when) in zip(answers, ways, strict=True):
        found_each = zip(summary["comparison"], answer["average"], answer["effect"], strict=True)
        for what, (mean, low, high), each in found_each:
            yield (
                label,
                f"{when}{what.removeprefix('effect of ')}: on average {mean:+.4g} (95 % interval {low:+.4g} to {high:+.4g}); "
                f"subjects from {each.min():+.4g} to {each.max():+.4g}.",
            )
    if len(answers) > 1 and model.undetermined_:
        yield "Open", "which of the two holds depends on the direction of time."
    verdicts = summary["direction"]
    for name, verdict in verdicts.items() if found.arms else [("", verdicts)]:
        yield "Direction", f"{name}: {verdict}" if name else verdict
    yield from _assumption_lines(summary)


def _assumption_lines(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    test = summary["confounding"]
    if test is not None:
        yield "Caution" if test["rejected"] else "Levels", test["verdict"]
    yield from (("Sensitivity", text) for text in summary["sensitivity"]["text"])
    yield "Estimand", summary["estimand"]
    yield from (("Assumes", text) for text in summary["assumptions"])
