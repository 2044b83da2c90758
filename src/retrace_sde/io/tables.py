"""From a table, one row per observation, to arrays (trajectory, time, variable): pandas, polars, pyarrow, ….

Each row has a subject. With a `slice` (a label shared by all subjects whose order is unknown: a plate, a visit
code) the slices become the T axis and all subjects share one order. Without it the rows of a subject are its
observations and each subject has its own order. Nothing is filled in: what is missing is NaN. Rows are
counted from 1 in messages, without the header.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import (
    is_boolean,
    is_numeric,
    numbers,
    read_times,
    refuse_groups,
    refuse_typing_errors,
    shown,
)
from retrace_sde.io.deferred import nw, pd
from retrace_sde.io.dialect import NOTES_KEY
from retrace_sde.io.formats import door

Names = str | Sequence[str] | None

Label = str | int
"""A subject or a slice, as the table names it: whole numbers stay numbers, everything else is text."""

FIT_COLUMNS = ("position", "time", "position_probability", "direction", "position_reversed")
"""Columns that a fit adds, `retrace_…` where the table has one of that name."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A table laid out as a panel: `rows` (n, T) holds the row of each observation, −1 where there is none."""

    values: Array
    names: tuple[str, ...]
    ids: tuple[Label, ...]
    rows: Indices
    covariates: Array | None
    covariate_names: tuple[str, ...]
    slices: tuple[Label, ...] | None
    lengths: Indices | None
    times: Array | None
    notes: tuple[str, ...]
    groups: tuple[Label, ...] | None


def lay_out(
    df: Any,
    *,
    subject: str,
    variables: Names = None,
    slice: str | None = None,
    time: str | None = None,
    time_unit: str | None = None,
    exact_times: bool = True,
    covariates: Names = None,
    group: str | None = None,
) -> Layout:
    """The panel behind a table; see `Panel.from_frame`."""
    frame = as_frame(df)
    extra = as_names(covariates)
    if time_unit is not None and time is None:
        raise ValueError("time_unit is given, but no time: name the column with the times.")
    special = [name for name in (subject, slice, time, group, *extra) if name is not None]
    _check_names(frame, special, as_names(variables))
    if len(frame) == 0:
        raise ValueError("the table has no rows.")
    who, ids = _codes(frame, subject, "subject")
    _check_subjects(frame, subject, who, set(special))
    groups = None if group is None else _groups(frame, group, who, ids)
    columns, found = _variables(frame, as_names(variables), special, who)
    notes = [*getattr(df, "attrs", {}).get(NOTES_KEY, ()), *found]
    names = tuple(columns)
    values = np.column_stack([columns[name] for name in names])
    stamps, found = (None, []) if time is None else read_times(frame, time, time_unit)
    notes += found
    again, found = _again(who, stamps if slice is None else None, values)
    notes += found
    rows, slices, found = _rows(frame, who, ids, slice, values, again)
    notes += found
    _check_enough(rows.shape[1], shared=slices is not None)
    seen: Any = ~np.isnan(_spread(values, rows)).all(axis=2)
    if slices is not None and not seen.any(axis=0).all():
        notes.append(
            f"slices without any value are left out: {shown(_where(slices, ~seen.any(axis=0)))}"
        )
        rows, slices = rows[:, seen.any(axis=0)], tuple(_where(slices, seen.any(axis=0)))
    if not seen.any(axis=1).all():
        notes.append(
            f"subjects without any value are left out: {shown(_where(ids, ~seen.any(axis=1)))}"
        )
        rows, ids = rows[seen.any(axis=1)], tuple(_where(ids, seen.any(axis=1)))
        groups = None if groups is None else tuple(_where(groups, seen.any(axis=1)))
    lengths = (rows >= 0).sum(axis=1) if slices is None else None
    inputs = numbers(frame, extra, switches=True)
    u = np.column_stack([inputs[name] for name in extra]) if extra else None
    times = None
    if stamps is not None:
        times = _spread(stamps, rows)
        if slices is not None:
            times, found = _times_of_slices(times, slices, str(time), exact_times)
            notes += found
    return Layout(
        padded(_spread(values, rows), lengths),
        names,
        ids,
        rows,
        None if u is None else padded(_spread(u, rows), lengths),
        tuple(extra),
        slices,
        lengths,
        times,
        tuple(notes),
        groups,
    )


def _where(names: Sequence[Label], mask: Any) -> list[Label]:
    return [name for name, chosen in zip(names, mask, strict=True) if chosen]


def as_frame(df: Any) -> nw.DataFrame[Any]:
    """A table of any library that narwhals reads; lazy ones are collected."""
    try:
        frame: Any = nw.from_native(df)
        frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
        _ = frame.schema  # some libraries look for repeated names only here
    except TypeError:
        raise ValueError(
            f"a table is needed (pandas, polars, pyarrow, or anything that narwhals reads); got "
            f"{type(df).__name__}. {door(df)}"
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise ValueError(f"the table cannot be used. {' '.join(str(error).split())}.") from None
    odd = next((name for name in frame.columns if not isinstance(name, str)), None)
    if odd is not None:
        raise ValueError(
            f"columns must be named by text; {odd!r} is {type(odd).__name__}. Rename them first, for example "
            "df.columns = [str(name) for name in df.columns]."
        )
    return frame


def as_names(names: Names) -> list[str]:
    """One column, several, or none, as a list."""
    return [] if names is None else [names] if isinstance(names, str) else list(names)


def _check_names(frame: nw.DataFrame[Any], special: list[str], variables: list[str]) -> None:
    there, wanted = set(frame.columns), Counter([*special, *variables])
    for name in wanted:
        if name in there:
            continue
        near = get_close_matches(str(name), frame.columns, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"the table has no column {name!r}; its columns are {shown(frame.columns)}.{hint}"
        )
    twice = [name for name, count in wanted.items() if count > 1]
    if twice:
        raise ValueError(f"column {twice[0]!r} is asked for in two roles: name it once.")
    for name in wanted:
        refuse_groups(frame[name], name)


FEW_SUBJECTS = 3
"""Subjects up to which it is asked whether another column names them."""

ID_COLUMN = re.compile(
    r"(?i)(?:^|[^a-z])(?:id|subj|pat|person|part|case|name|code|nr|no|animal|mouse|firm)|id$"
)
"""Names of columns that tell who is who."""


def _check_subjects(
    frame: nw.DataFrame[Any], subject: str, who: Indices, special: set[str]
) -> None:
    """Seen again, and not a property of few values, such as sex, where another column names those who have it."""
    if len(who) > 1 and who.max() + 1 == len(who):
        raise ValueError(
            f"each of the {len(who)} subjects in {subject!r} has one observation: a snapshot. An order in time is read off subjects "
            "that are seen again (a patient, a donor, a well, a clone): is another column the subject? For cells of one time point "
            "use a pseudotime, such as scanpy's dpt."
        )
    if who.max() >= FEW_SUBJECTS:
        return
    for name in frame.columns:
        column = frame[name]
        whole = column.dtype.is_integer() and ID_COLUMN.search(name)
        if name in special or not (whole or column.dtype in (nw.String, nw.Categorical)):
            continue
        codes, _ = pd.factorize(column.to_numpy())
        counts = np.bincount(codes[codes >= 0])
        if (codes < 0).any() or len(counts) <= FEW_SUBJECTS or counts.mean() < 3:
            continue
        if len(np.unique(codes * (who.max() + 1) + who)) == len(counts):
            raise ValueError(
                f"subject column {subject!r} has {who.max() + 1} values, and each of the {len(counts)} in {name!r} belongs to "
                f"one of them: is {name!r} the subject (--subject {name})? If not, drop that column."
            )


def _check_enough(T: int, *, shared: bool) -> None:
    """There are slices, or rows of one subject, to order."""
    if T < 3:
        least = "slices" if shared else "rows of one subject"
        hint = "" if shared else " Does a label shared by subjects go by another column?"
        raise ValueError(f"an order needs at least 3 {least}; the table has {T}.{hint}")


def _codes(frame: nw.DataFrame[Any], column: str, role: str) -> tuple[Indices, tuple[Label, ...]]:
    """Numbers for the labels of a column, in order of appearance, and the labels."""
    codes, labels = pd.factorize(frame[column].to_numpy())
    if (codes < 0).any():
        first, count = int(np.argmax(codes < 0)), int((codes < 0).sum())
        raise ValueError(
            f"{role} column {column!r} is empty in {count} rows, the first of them row {first + 1}: "
            "fill it in or drop those rows."
        )
    text = tuple(str(label) for label in labels)
    if len(set(text)) < len(text):
        again = Counter(text).most_common(1)[0][0]
        raise ValueError(
            f"{role} column {column!r} holds both a number and a text that read {again!r}: write them the "
            "same way."
        )
    whole = frame[column].dtype.is_integer()
    return codes.astype(np.intp), tuple(int(label) for label in labels) if whole else text


def _groups(
    frame: nw.DataFrame[Any], column: str, who: Indices, ids: tuple[Label, ...]
) -> tuple[Label, ...]:
    """The label of each subject's group, the same in all of its rows."""
    codes, labels = _codes(frame, column, "group")
    each = np.empty(len(ids), dtype=np.intp)
    each[who] = codes
    differs = np.flatnonzero(each[who] != codes)
    if len(differs):
        j = int(who[differs[0]])
        several = [labels[k] for k in dict.fromkeys(codes[who == j].tolist())]
        raise ValueError(
            f"subject {ids[j]!r} belongs to more than one group of column {column!r}: {shown(several)}. A group holds "
            "whole subjects: correct the table, or name another column."
        )
    return tuple(labels[k] for k in each)


def _variables(
    frame: nw.DataFrame[Any], asked: list[str], special: list[str], who: Indices
) -> tuple[dict[str, Array], list[str]]:
    """The columns to analyse: those asked for, or every numeric one that varies within subjects."""
    taken = set(special)
    free = [name for name in frame.columns if name not in taken]
    ours = [] if asked else _our_columns(free)
    taken.update(ours)
    free = [name for name in free if name not in taken]
    names = asked or [name for name in free if is_numeric(frame[name])]
    columns = numbers(frame, names)
    if asked:
        text = []
    else:
        text = [name for name in free if name not in columns]
        for name in text:
            refuse_typing_errors(frame[name], name)
    still = [name for name, values in columns.items() if not _varies_within(values, who)]
    if asked and still:
        raise ValueError(
            f"variable {shown(still)} never changes within a subject (or is empty), so it has no dynamics: "
            "leave it out, or pass it as a covariate."
            if len(still) == 1
            else f"variables {shown(still)} never change within a subject (or are empty), so they have no dynamics: "
            "leave them out, or pass them as covariates."
        )
    for name in still:
        del columns[name]
    left_out = [f"left out, since a fit wrote them: {shown(ours)}"] if ours else []
    left_out += (
        [
            f"left out, since constant within every subject: {shown(still)}; a treatment among them can be an input (covariates=)"
        ]
        if still
        else []
    )
    switches = [name for name in text if is_boolean(frame[name])]
    text = [name for name in text if name not in switches]
    if switches:
        left_out.append(
            f"left out, since boolean: {shown(switches)}; a treatment among them can be an input (covariates=)"
        )
    left_out += [f"left out, since not numeric: {shown(text)}"] if text else []
    if not columns:
        reasons = f" ({'; '.join(left_out)})" if left_out else ""
        raise ValueError(f"the table has no numeric column that changes within subjects{reasons}.")
    return columns, left_out


def _our_columns(names: list[str]) -> list[str]:
    """Those that an earlier fit added: a table that comes back is not data about its own positions."""
    ours: set[str] = set()
    if {"position", "position_probability"} <= set(names):
        ours = set(FIT_COLUMNS)
    if ours or "retrace_position" in names:
        ours |= {f"retrace_{name}" for name in FIT_COLUMNS}
    return [name for name in names if name in ours]


def _varies_within(values: Array, who: Indices) -> bool:
    known = ~np.isnan(values)
    if not known.any():
        return False
    low, high = np.full(who.max() + 1, np.inf), np.full(who.max() + 1, -np.inf)
    np.minimum.at(low, who[known], values[known])
    np.maximum.at(high, who[known], values[known])
    return bool(np.any(high > low))


def _equal_rows(values: Array) -> bool:
    """All rows hold the same values; what is missing in both is the same in both."""
    return bool(((values == values[0]) | (np.isnan(values) & np.isnan(values[0]))).all())


def _rows(
    frame: nw.DataFrame[Any],
    who: Indices,
    ids: tuple[Label, ...],
    slice: str | None,
    values: Array,
    again: Any,
) -> tuple[Indices, tuple[Label, ...] | None, list[str]]:
    """Where each observation stands in the table, (n, T); the slices' labels, None for own orders."""
    n = len(ids)
    if slice is None:
        seen = ~np.isnan(values).all(axis=1)
        known, empty = np.flatnonzero(seen & ~again), int((~seen).sum())
        notes = [f"{empty} rows without any value have no position"] if empty else []
        counts = np.bincount(who[known], minlength=n)
        by_subject = np.argsort(who[known], kind="stable")
        rows = np.full((n, max(counts.max(), 1)), -1, dtype=np.intp)
        rows[np.arange(rows.shape[1]) < counts[:, None]] = known[by_subject]
        return rows, None, notes
    which, labels = _codes(frame, slice, "slice")
    cells = who * len(labels) + which
    distinct, counts = np.unique(cells, return_counts=True)
    twice = distinct[counts > 1]
    if len(twice):
        people = [ids[k] for k in dict.fromkeys(twice // len(labels))]
        first = labels[twice[0] % len(labels)]
        at = [np.flatnonzero(cells == each) for each in twice]
        differ = sum(not _equal_rows(values[each]) for each in at)
        where = " and ".join(str(k + 1) for k in at[0][:2])
        advice = (
            "They agree in every variable: keep one row of each."
            if not differ
            else f"{differ} of {len(twice)} such visits disagree in their values: find out which row is right. "
            "Keep one row for each subject and slice, or average them."
        )
        raise ValueError(
            f"more than one row for the same slice: subject {shown(people)} (first: {people[0]!r}, slice {first!r}, rows {where}). {advice}"
        )
    rows = np.full((n, len(labels)), -1, dtype=np.intp)
    rows[who, which] = np.arange(len(who))
    gaps = int((rows < 0).sum())
    notes = [f"{gaps} of {rows.size} combinations of subject and slice have no row"] if gaps else []
    return rows, labels, notes


def _again(who: Indices, stamps: Array | None, values: Array) -> tuple[Any, list[str]]:
    """Rows that equal an earlier one of the same subject in its (known) time and in every value, missing ones too."""
    found = np.zeros(len(who), dtype=bool)
    if stamps is None:
        return found, []
    known = np.flatnonzero(~np.isnan(stamps))
    keys = np.column_stack(
        [who[known], stamps[known], np.where(np.isnan(values[known]), np.inf, values[known])]
    )
    _, first = np.unique(keys, axis=0, return_index=True)
    found[np.delete(known, first)] = True
    count = int(found.sum())
    said = f"rows that repeat another in time and values are counted once: {count}"
    return found, [said] if count else []


def _spread(column: Array, rows: Indices) -> Array:
    """Row-wise data laid out (n, T, …), NaN where there is no row."""
    there = rows >= 0
    return np.where(there if column.ndim == 1 else there[:, :, None], column[rows], np.nan)


def padded(values: Array, lengths: Indices | None) -> Array:
    """Short trajectories padded with their last state: range and level stay what they are."""
    if lengths is None:
        return values
    last = np.minimum(np.arange(values.shape[1])[None], lengths[:, None] - 1)
    return np.take_along_axis(values, last[:, :, None], axis=1)


def _since_the_first(times: Array, known: Array) -> Array | None:
    """τ of clocks that run alike from a start of each subject's own, α_j + τ_k; None where they do not.

    Ages, dates of staggered enrolment. Nobody may be half the least gap away, so that all agree on the order; and somebody
    must have all times, or the starts of those who share none could not be compared.
    """
    if not known.all(axis=1).any():
        return None
    seen = np.where(known, times, 0.0)
    tau = times[known.all(axis=1)][0]
    for _ in range(100):
        start = (seen - known * tau).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        tau = (seen - known * start[:, None]).sum(axis=0) / known.sum(axis=0)
    off = np.abs(seen - known * (start[:, None] + tau)).max()
    return tau - tau.min() if off < 0.5 * np.diff(np.sort(tau)).min() else None


def _times_of_slices(
    times: Array, slices: tuple[Label, ...], name: str, exact: bool
) -> tuple[Array, list[str]]:
    """One time for each slice: the mean over subjects, who may differ by less than slices do."""
    known = ~np.isnan(times)
    count = known.sum(axis=0)
    total = np.where(known, times, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    widest = np.abs(np.where(known, times - mean, 0.0)).max(axis=0)
    loose = [slices[k] for k in np.flatnonzero(widest > 1e-9 * (1 + np.abs(mean)))]
    if not loose:
        return mean, []
    squares = np.where(known, (times - mean) ** 2, 0.0).sum()
    spread = np.sqrt(squares / np.maximum(count - 1, 0).sum())
    gap = float(np.median(np.diff(np.sort(mean[count > 0])))) if (count > 0).sum() > 1 else np.inf
    if exact and spread > 0.5 * gap:
        since = _since_the_first(times, known)
        if since is not None:
            return since, [
                f"times in column {name!r} begin elsewhere in each subject and go on alike: the time since the "
                "first slice is used"
            ]
        raise ValueError(
            f"times in column {name!r} differ between subjects within a slice (standard deviation {spread:.3g}) by "
            f"more than half the gap between slices ({gap:.3g}), so a slice has no time of its own: use the time "
            "since each subject's first visit, or give time_error."
        )
    return mean, [f"times differ between subjects in slices {shown(loose)}: their mean is used"]
