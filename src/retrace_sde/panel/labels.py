"""Knowledge in a table's language: slices are named by their labels, first and last rows by a column that marks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.io.columns import shown
from retrace_sde.io.deferred import nw
from retrace_sde.panel.knowledge import Knowledge


def by_labels(knowledge: Knowledge, slices: Sequence[Any]) -> Knowledge:
    """The same knowledge with each slice's label replaced by its place in the panel.

    Where an array has one value per slice a table gives {label: value}: its slices have no order to count in.
    """
    place = {str(label): k for k, label in enumerate(slices)}

    def index(label: Any, name: str) -> int:
        if isinstance(label, (Mapping, list, set, np.ndarray)):
            raise ValueError(f"{name} of a shared order is one label of the slice column.")
        if str(label) in place:
            return place[str(label)]
        same = [k for text, k in place.items() if _number(text) == _number(label)]
        if len(same) == 1:  # 1 and 1.0: the column's type need not be the one that was written
            return same[0]
        raise ValueError(f"{name} names slice {label!r}; the table has {shown(list(slices))}.")

    def mapped(values: Any, name: str) -> dict[int, Any]:
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{name} of a table's slices must be {{label: value}}: rows have no order to count slices in."
            )
        found: dict[int, Any] = {}
        for label, value in values.items():
            k = index(label, name)
            if k in found:
                raise ValueError(f"{name} names slice {slices[k]!r} twice.")
            found[k] = value
        return found

    def spread(values: Any, name: str) -> Any:
        full = np.full(len(slices), np.nan)
        for k, value in mapped(values, name).items():
            try:
                full[k] = np.nan if value is None else float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name} must be numbers; got {value!r} for slice {slices[k]!r}."
                ) from None
        return full

    def pairs(given: Any, name: str) -> list[tuple[int, ...]]:
        for each in given:
            if not isinstance(each, (tuple, list)) or len(each) != 2:
                raise ValueError(
                    f"{name} of a table's slices are (a, b), two labels; got {each!r}."
                )
        return [tuple(index(label, name) for label in each) for each in given]

    def lists(given: Any, name: str) -> list[list[int]]:
        if isinstance(given, Mapping) or not all(
            isinstance(each, (list, tuple, np.ndarray)) for each in given
        ):
            raise ValueError(
                f"{name} of a table's slices are lists of labels, each in its order: [['a', 'b'], ['c', 'd']]."
            )
        return [[index(label, name) for label in each] for each in given]

    read = {"segments": lists, "positions": mapped, "first": index, "last": index, "precedences": pairs, "blocks": spread, "timestamps": spread}  # fmt: skip
    given = {name: getattr(knowledge, name) for name in read}
    changed: dict[str, Any] = {
        name: read[name](values, name) for name, values in given.items() if values is not None
    }
    if np.ndim(knowledge.timestamp_error) or isinstance(knowledge.timestamp_error, Mapping):  # type: ignore[arg-type]
        changed["timestamp_error"] = spread(knowledge.timestamp_error, "timestamp_error")
    return replace(knowledge, **changed)


MARKED = frozenset({"1", "1.0", "true", "yes", "y", "x", "t", "first", "last", "baseline"})
UNMARKED = frozenset({"", "0", "0.0", "false", "no", "n", "f", "nan", "none", "<na>", "nat"})
"""What a cell says of its row, in small letters."""


def by_segment_column(knowledge: Knowledge, frame: nw.DataFrame[Any], slice_: str) -> Knowledge:
    """The same with the column that names each slice's segment replaced by lists of labels, in the order in which they are stored."""
    column: Any = knowledge.segments
    cells = _cells(frame, column, "segments")
    belongs: dict[Any, Any] = {}
    for label, segment in zip(frame[slice_].to_list(), cells, strict=True):
        if label is not None and belongs.setdefault(label, segment) != segment:
            raise ValueError(f"slice {label!r} is in more than one segment of column {column!r}.")
    found: dict[Any, list[Any]] = {}
    for label, segment in belongs.items():
        found.setdefault(segment, []).append(label)
    return replace(knowledge, segments=list(found.values()))


def by_own_segments(knowledge: Knowledge, frame: nw.DataFrame[Any], panel: Any) -> Knowledge:
    """The same, of orders of their own, with the column that names each row's segment replaced by numbers (n, T)."""
    column: Any = knowledge.segments
    cells = _cells(frame, column, "segments")
    empty = next((k for k, cell in enumerate(cells) if cell is None or cell != cell), None)
    if empty is not None:
        raise ValueError(f"column {column!r} names no segment in row {empty + 1}: name one for every row.")  # fmt: skip
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(cell, len(numbers)) for cell in cells])
    return replace(knowledge, segments=np.where(panel.rows >= 0, codes[panel.rows], -1))


def marks_of(knowledge: Knowledge | None) -> list[str]:
    """The columns that mark each subject's first and last row: text where subjects have orders of their own."""
    if knowledge is None:
        return []
    return [each for each in (knowledge.first, knowledge.last) if isinstance(each, str)]


def by_marks(knowledge: Knowledge, frame: nw.DataFrame[Any], panel: Any) -> Knowledge:
    """The same knowledge, of orders of their own, with a column of marks replaced by the observation marked, (n,)."""
    changed: dict[str, Any] = {}
    for name in ("first", "last"):
        column = getattr(knowledge, name)
        if not isinstance(column, str):
            continue
        if column not in frame.columns:
            raise ValueError(
                f"{name} names column {column!r}, which the table does not have: of rows with orders of their own it is a column that marks them."
            )
        marked = _marked(frame[column].to_list(), column)
        there = (panel.rows >= 0) & marked[panel.rows]
        counts = there.sum(axis=1)
        if counts.max() > 1:
            people = [panel.ids[j] for j in np.flatnonzero(counts > 1)]
            raise ValueError(
                f"column {column!r} marks more than one row of subject {shown(people)} as the {name}: mark one."
            )
        if not counts.any():
            raise ValueError(f"column {column!r} marks no row as the {name}: write 1 where it is.")
        changed[name] = np.where(counts > 0, there.argmax(axis=1), -1)
    return replace(knowledge, **changed)


def with_known_orders(
    knowledge: Knowledge | None, column: str, frame: nw.DataFrame[Any], panel: Any
) -> Knowledge:
    """Knowledge of the subjects whose own order a column tells: ranks of their rows, or marks of all rows of a subject.

    A subject that is marked stands in the table in order. Ranks need not be without gaps; rows of equal rank, and rows without one, stay
    open.
    """
    if knowledge is not None and knowledge.blocks is not None:
        raise ValueError(
            "orders are given twice, by order_known= and by blocks: leave one of them out."
        )
    cells = _words(_cells(frame, column, "order_known"))
    there, rows = panel.rows >= 0, np.maximum(panel.rows, 0)
    if set(cells) <= MARKED | UNMARKED:
        marked = np.array([each in MARKED for each in cells])[rows]
        known = (marked | ~there).all(axis=1)
        if not (there & marked & ~known[:, None]).any():  # else 0 and 1 are ranks of two rows
            ranks = np.where(known[:, None] & there, rows.astype(float), np.nan)
            return _with_blocks(knowledge, ranks, column)
    numbers = np.array([np.nan if each in UNRANKED else _number(each) for each in cells])
    odd = next(
        (k for k, each in enumerate(cells) if each not in UNRANKED and np.isnan(numbers[k])), None
    )
    if odd is not None:
        raise ValueError(
            f"column {column!r} must hold ranks of rows, or 1 and 0 that are the same for all rows of a subject; "
            f"row {odd + 1} holds {cells[odd]!r:.40}."
        )
    return _with_blocks(knowledge, np.where(there, numbers[rows], np.nan), column)


UNRANKED = frozenset({"", "nan", "none", "<na>", "nat"})
"""Cells of rows without a rank."""


def _with_blocks(knowledge: Knowledge | None, ranks: Any, column: str) -> Knowledge:
    if not (
        np.nanmax(ranks, axis=1, initial=-np.inf) > np.nanmin(ranks, axis=1, initial=np.inf)
    ).any():
        raise ValueError(
            f"column {column!r} gives the order of no subject's rows: write 1 in all rows of subjects that stand in order, or "
            "ranks of their rows."
        )
    return replace(knowledge or Knowledge(), blocks=ranks)


def _cells(frame: nw.DataFrame[Any], column: str, name: str) -> list[Any]:
    """What a column holds that an option names."""
    if column not in frame.columns:
        raise ValueError(f"{name} names column {column!r}, which the table does not have.")
    return frame[column].to_list()


def _words(cells: Sequence[Any]) -> list[str]:
    """Cells as text in small letters, empty where there is nothing."""
    return ["" if cell is None else str(cell).strip().lower() for cell in cells]


def _marked(cells: Sequence[Any], column: str) -> Any:
    text = _words(cells)
    odd = next((k for k, each in enumerate(text) if each not in MARKED | UNMARKED), None)
    if odd is not None:
        raise ValueError(
            f"column {column!r} must mark rows by 1 and 0, or yes and no; row {odd + 1} holds {cells[odd]!r:.40}."
        )
    return np.array([each in MARKED for each in text])


def _number(label: Any) -> float:
    """NaN, which equals nothing, for text."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return float("nan")
