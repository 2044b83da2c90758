"""What each column of a table may be, and why: a first guess that the user can change.

By names first, then by what the cells do: a subject has several rows, a slice's label is met once in each of many subjects, a
time is a date or called so, an input is a dose or a switch. Which numbers are worth analysing `Panel.from_frame` says itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd

from retrace_sde.io.columns import is_numeric, read_times
from retrace_sde.io.tables import as_frame
from retrace_sde.panel.panel import Panel

Role = Literal["subject", "slice", "time", "variable", "input", "none"]

SUBJECT = "subject|subjectid|id|patient|person|participant|individual|animal|donor|case|unit|child|mouse|rat|chick|cow|country|firm|bank|cell ?line|pid|sid|usubjid|recordid"
SLICE = "slice|visit|plate|wave|batch|session|sample|sampling|stage|panel|scan|run|label"
TIME = "time|date|datetime|timestamp|day|days|age|hour|hours|year|week|month|minute|minutes|t"
INPUT = "dose|treatment|treated|treat|trt|tx|drug|therapy|input|stimulus|arm|exposure|medication|intervention|chemo|chemotherapy|radiotherapy|radio"

ROWS_READ = 200_000
"""Rows that a guess looks at."""


@dataclass(frozen=True)
class Guess:
    """A column: what its cells are, what it may be, and why."""

    name: str
    kind: str
    distinct: int
    missing: float
    examples: tuple[str, ...]
    role: Role
    reason: str


def guess(table: pd.DataFrame) -> list[Guess]:
    """A role for every column."""
    frame = table.head(ROWS_READ)
    columns = {str(name): frame[name] for name in frame.columns}
    roles: dict[str, tuple[Role, str]] = {}
    subject = _subject(columns)
    if subject is not None:
        roles[subject[0]] = ("subject", subject[1])
        if slice_ := _slice(columns, subject[0]):
            roles[slice_[0]] = ("slice", slice_[1])
        if time := _time(frame, columns, roles):
            roles[time[0]] = ("time", time[1])
        numeric = [
            name
            for name, column in columns.items()
            if name not in roles and pd.api.types.is_numeric_dtype(column)
        ]
        special = {name: _special(name, columns[name], columns[subject[0]]) for name in numeric}
        alone = all(special.values())  # something must be left to be analysed: not all are inputs
        roles |= {
            name: found
            for name, found in special.items()
            if found is not None and not (alone and found[0] == "input")
        }
        roles = {**_variables(frame, roles), **roles}
    return [_described(name, column, roles.get(name)) for name, column in columns.items()]


def chosen(found: list[Guess]) -> dict[str, Any]:
    """The guessed roles as `Panel.from_frame` names them."""
    names = {role: [each.name for each in found if each.role == role] for role in get_args(Role)}
    single = {role: next(iter(names[role]), None) for role in ("subject", "slice", "time")}
    return {**single, "variables": names["variable"], "covariates": names["input"]}


def _called(name: str, words: str) -> bool:
    """The name, or a word of it, is one of some words."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    parts = re.sub(r"[^A-Za-z]+", " ", parts).strip().lower()
    return bool(re.search(rf"(^| )({words})( |$)", parts))


def _labels(column: pd.Series[Any]) -> bool:
    """Text, categories, or whole numbers: cells that may name something."""
    if not pd.api.types.is_numeric_dtype(column):
        return True
    known = column.dropna()
    return bool(len(known)) and bool((known == known.round()).all())


def _subject(columns: dict[str, pd.Series[Any]]) -> tuple[str, str] | None:
    best: tuple[float, str, str] | None = None
    for name, column in columns.items():
        distinct, rows = column.nunique(), len(column)
        if column.isna().any() or not _labels(column) or distinct < 2 or rows < 3 * distinct:
            continue
        named = _called(name, SUBJECT)
        text = not pd.api.types.is_numeric_dtype(column)
        if not (named or text) or (_called(name, INPUT) and not named):
            continue
        # Subjects are many; labels that all subjects share are few.
        score = 10.0 * named + text + distinct / rows - 5.0 * _called(name, SLICE)
        why = f"{'called so, and ' if named else ''}{distinct:,} labels with {rows / distinct:.3g} rows each on average"
        if best is None or score > best[0]:
            best = score, name, why
    return None if best is None else best[1:]


def _slice(columns: dict[str, pd.Series[Any]], subject: str) -> tuple[str, str] | None:
    who = columns[subject]
    people = who.nunique()
    for wanted in (True, False):
        for name, column in columns.items():
            named = _called(name, SLICE)
            number = pd.api.types.is_numeric_dtype(column)
            if name == subject or named != wanted or (number and not named) or column.isna().any():
                continue
            distinct = column.nunique()
            if not _labels(column) or distinct < 3 or _called(name, TIME):
                continue
            if pd.DataFrame({"a": who, "b": column}).duplicated().any():
                continue
            share = len(column) / (people * distinct)
            if share >= 0.5:
                return (
                    name,
                    f"{'called so, and ' if named else ''}{distinct:,} labels, each once in {share:.0%} of the subjects",
                )
    return None


def _time(
    frame: pd.DataFrame, columns: dict[str, pd.Series[Any]], taken: dict[str, Any]
) -> tuple[str, str] | None:
    for name, column in columns.items():
        if name in taken or column.isna().all():
            continue
        number = pd.api.types.is_numeric_dtype(column)
        if number and not _called(name, TIME):
            continue
        try:
            read_times(as_frame(frame[[name]]), name)
        except ValueError:
            continue
        share = column.notna().mean()
        what = "numbers in a column called so" if number else "dates"
        known = "all rows" if share == 1 else f"{share:.0%} of the rows"
        return name, f"{what}, of {known}"
    return None


def _special(name: str, column: pd.Series[Any], who: pd.Series[Any]) -> tuple[Role, str] | None:
    """A number that is an input, another time, or a switch, which only its owner can tell from an outcome."""
    if not (column.groupby(who.to_numpy()).nunique() > 1).any():
        return None
    if _called(name, INPUT):
        return "input", "called like a treatment"
    if _called(name, TIME):
        return "none", "called like a time, which is known already"
    if set(column.dropna().unique()) == {0, 1}:
        return "none", "only 0 and 1 occur: if it is a treatment, make it an input"
    return None


def _variables(frame: pd.DataFrame, roles: dict[str, tuple[Role, str]]) -> dict[str, Any]:
    """The numbers that a panel would analyse, and why others are left out."""
    special = {role: name for name, (role, _) in roles.items()}
    inputs = [name for name, (role, _) in roles.items() if role == "input"]
    try:
        left_out = [name for name, (role, _) in roles.items() if role == "none"]
        panel = Panel.from_frame(
            frame.drop(columns=left_out),
            subject=special["subject"],
            slice=special.get("slice"),
            time=special.get("time"),
            covariates=inputs or None,
        )
    except ValueError:
        numeric = as_frame(frame)
        names = [
            name for name in numeric.columns if name not in roles and is_numeric(numeric[name])
        ]
        return dict.fromkeys(names, ("variable", "a number"))
    return dict.fromkeys(panel.names, ("variable", "a number that changes within subjects"))


def _described(name: str, column: pd.Series[Any], found: tuple[Role, str] | None) -> Guess:
    number = pd.api.types.is_numeric_dtype(column)
    dates = pd.api.types.is_datetime64_any_dtype(column)
    kind = "numbers" if number else "dates" if dates else "text"
    known = column.dropna()
    shown = tuple(short(each, 40) for each in known.unique()[:3])
    distinct = int(column.nunique())
    still = "constant within subjects; a treatment can be an input" if number else "text"
    role, reason = found or ("none", "the same in every row" if distinct < 2 else still)
    return Guess(name, kind, distinct, float(column.isna().mean()), shown, role, reason)


def short(cell: Any, most: int) -> str:
    """A cell as text of so many signs, at most."""
    text = f"{cell:.6g}" if isinstance(cell, float) else str(cell)
    return text if len(text) <= most else text[: most - 1] + "…"
