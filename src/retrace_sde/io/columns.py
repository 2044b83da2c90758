"""Columns of a table as numbers and as times, and what to say of those that are neither."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import nw, pd

Column: TypeAlias = "nw.Series[Any]"

TIME_UNITS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 604800.0,
    "years": 365.25 * 86400,
}
"""Units in which dates are measured, in seconds."""

DATE = re.compile(
    r"(?P<a>\d{1,2})(?P<sign>[./-])(?P<b>\d{1,2})(?P=sign)(?P<year>\d{4}|\d{2})(?:[ T,]+(?P<clock>\d{1,2}:\d{2}.*))?"
)
"""A date whose year comes last: day or month first."""

MAX_MAGNITUDE = 1e140
"""Largest value whose squares can still be summed; its inverse is the least range whose square is not zero."""

NAMES_LISTED = 5
"""Names that a message lists."""


def shown(names: Sequence[Any]) -> str:
    """A few names, quoted, and how many more there are."""
    text = ", ".join(repr(name) for name in names[:NAMES_LISTED])
    return text + (f" and {len(names) - NAMES_LISTED} more" if len(names) > NAMES_LISTED else "")


def holds_groups(column: Column) -> bool:
    """Its cells are lists or records, as parquet may store them, and no single values."""
    if column.dtype != nw.Object:
        return column.dtype in (nw.List, nw.Struct, nw.Array)
    groups = (list, tuple, set, dict, np.ndarray)
    return any(isinstance(cell, groups) for cell in column.to_list())


def refuse_groups(column: Column, name: str) -> None:
    """A column that is to be used holds one value in each cell."""
    if holds_groups(column):
        raise ValueError(
            f"column {name!r} holds lists or records, several values in a cell: spread them over columns or rows, or "
            "leave it out."
        )


def is_numeric(column: Column) -> bool:
    """Numbers, also where pandas keeps them as objects of Python's Decimal."""
    if column.dtype.is_numeric():
        return True
    if column.dtype != nw.Object or holds_groups(column):
        return False
    cells = [cell for cell in column.to_list() if not pd.isna(cell)]
    return bool(cells) and all(isinstance(cell, Decimal) for cell in cells)


def is_boolean(column: Column) -> bool:
    """True and false, also beside empty cells, where pandas keeps them as objects."""
    if column.dtype != nw.Object:
        return column.dtype == nw.Boolean
    if holds_groups(column):
        return False
    cells = [cell for cell in column.to_list() if not pd.isna(cell)]
    return bool(cells) and all(isinstance(cell, bool | np.bool_) for cell in cells)


def numbers(
    frame: nw.DataFrame[Any], names: Sequence[str], *, switches: bool = False
) -> dict[str, Array]:
    """Numeric columns as float64, missing values as NaN; anything else is refused by name. `switches`: true and false count as 1 and 0."""
    found = {name: _values(frame[name], name, switches=switches) for name in names}
    infinite = {name: np.flatnonzero(np.isinf(values)) for name, values in found.items()}
    where = [f"{name!r} (row {rows[0] + 1})" for name, rows in infinite.items() if len(rows)]
    if where:
        raise ValueError(
            f"infinite values in column {', '.join(where)}: leave cells empty if they are missing."
        )
    for name, values in found.items():
        if np.nanmax(np.abs(values), initial=0.0) > MAX_MAGNITUDE:
            row = int(np.nanargmax(np.abs(values)))
            raise ValueError(
                f"column {name!r} holds {values[row]:g} in row {row + 1}, too large to square and sum: rescale it, or "
                "leave the cell empty if the number stands for a missing value."
            )
    return found


def _values(column: Column, name: str, *, switches: bool) -> Array:
    if not (is_numeric(column) or (switches and is_boolean(column))):
        raise ValueError(_not_numeric(column, name))
    if column.dtype == nw.Object:
        cells = [np.nan if pd.isna(cell) else float(cell) for cell in column.to_list()]
        values: Array = np.array(cells, dtype=np.float64)
    else:
        raw = column.to_numpy()
        if raw.dtype.kind not in "fiu":  # nullable ones
            raw = column.cast(nw.Float64).fill_null(np.nan).to_numpy()
        values = np.array(raw, dtype=np.float64)
    return values


def refuse_typing_errors(column: Column, name: str) -> None:
    """A column of numbers with a few words in it was meant to be analysed; it must not vanish in silence."""
    if column.dtype not in (nw.String, nw.Object) or holds_groups(column):
        return
    cells = pd.Series(column.to_list(), dtype=object).dropna()
    share = pd.to_numeric(cells, errors="coerce").notna().mean()
    if 0.5 <= share < 1:  # all of them: labels that are written in digits
        raise ValueError(_not_numeric(column, name))


def _not_numeric(column: Column, name: str) -> str:
    kind = str(column.dtype).split("(")[0].lower()
    if is_boolean(column):
        return (
            f"column {name!r} is boolean, no variable with dynamics: name it as an input (covariates=), write it as 0 and 1, or "
            "leave it out (use variables= to choose)."
        )
    if kind not in ("string", "object"):
        return (
            f"column {name!r} is {kind}, not numeric: encode it as numbers or leave it out "
            "(use variables= to choose)."
        )
    cells = pd.Series(column.to_list(), dtype=object)
    wrong = cells.notna() & pd.to_numeric(cells, errors="coerce").isna()
    if not wrong.any():
        return f"column {name!r} holds numbers stored as text, or too large for a number: convert it, or leave it out."
    row, count = int(np.argmax(wrong)), int(wrong.sum())
    two = wrong.sum() == cells.notna().sum() and cells.nunique() == 2
    remedy = "Write it as 0 and 1" if two else "Correct them, encode the column as numbers"
    return (
        f"column {name!r} holds text, not numbers: {cells[row]!r:.40} in row {row + 1}"
        + (f" and {count - 1} more cells" if count > 1 else "")
        + f". {remedy}, or leave it out."
    )


def read_times(
    frame: nw.DataFrame[Any], name: str, unit: str | None = None
) -> tuple[Array, list[str]]:
    """Times as numbers, NaN where unknown, and what is to be said of them.

    Numbers are taken as they are; dates count in `unit` (days) since the earliest.
    """
    if unit is not None and unit not in TIME_UNITS:
        raise ValueError(f"time_unit must be one of {shown(list(TIME_UNITS))}; got {unit!r}.")
    column = frame[name]
    if is_numeric(column):
        values = numbers(frame, [name])[name]
        written = _written_dates(values)
        if written is None:
            return values, []
        column = nw.new_series(name, written, backend=frame.implementation)
    if isinstance(column.dtype, nw.Duration):
        cells = column.to_list()
        seconds = np.array([np.nan if cell is None else cell.total_seconds() for cell in cells])
        return seconds / TIME_UNITS[unit or "days"], [_said(name, unit, "durations in", "")]
    cells = pd.Series(column.to_list(), dtype=object)
    stamps, way = dates(cells, name)
    known = stamps.dropna()
    if not len(known):
        return np.full(len(cells), np.nan), []
    first = known.min()
    seconds = (stamps - first).dt.total_seconds().to_numpy()
    return seconds / TIME_UNITS[unit or "days"], [
        _said(name, unit, f"dates{way} in", f" since {first:%Y-%m-%d}")
    ]


def _said(name: str, unit: str | None, what: str, since: str) -> str:
    """The unit of A and H is never chosen in silence."""
    chosen = "as asked for" if unit else "for another unit give time_unit="
    return f"{what} column {name!r} count in {unit or 'days'}{since} ({chosen})"


def _written_dates(values: Array) -> list[str | None] | None:
    """Whole numbers that all read as days, 20240325, as dates; None where they are numbers."""
    known = ~np.isnan(values)
    whole = values[known]
    if not len(whole) or whole.min() < 19000101 or whole.max() > 21001231 or (whole % 1).any():
        return None
    cells = pd.Series(whole.astype(np.int64).astype(str))
    parsed = pd.to_datetime(cells, format="%Y%m%d", errors="coerce")
    if parsed.isna().any():
        return None
    found: list[str | None] = [None] * len(values)
    for k, day in zip(np.flatnonzero(known), parsed, strict=True):
        found[k] = f"{day:%Y-%m-%d}"
    return found


def dates(cells: pd.Series, name: str, *, dayfirst: bool | None = None) -> tuple[pd.Series, str]:
    """Dates on one scale for all time zones, and how they were read where the year comes last.

    Which of two numbers is the day is recognised (one of them is beyond 12 somewhere; points are written after days), or
    given, or refused.
    """
    known = cells[cells.notna()]
    text = known.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    text = text[text.map(lambda cell: not isinstance(cell, str) or cell != "")]
    parts = text.astype(str).str.extract(rf"^{DATE.pattern}$")
    way = ""
    if len(parts) and parts["a"].notna().all():
        text, way = _year_first(parts, text, name, dayfirst)
    parsed = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    if parsed.isna().any() and text.astype(str).str.contains("[A-Za-z]{2}", regex=True).all():
        parsed = pd.to_datetime(text, format="mixed", utc=True, errors="coerce")  # 25 March 2024
    if parsed.isna().any():
        row = int(parsed.index[int(np.argmax(parsed.isna()))])
        raise ValueError(
            f"time column {name!r} is neither a number nor a date in row {row + 1}: {cells[row]!r:.40}. Write "
            "dates as YYYY-MM-DD, with HH:MM:SS and +hh:mm if needed."
        )
    return parsed.astype("datetime64[ns, UTC]").reindex(cells.index), way


def date_columns(frame: nw.DataFrame[Any]) -> list[str]:
    """The columns that hold dates, also as text and in either order of day and month."""
    found = []
    for name in frame.columns:
        column = frame[name]
        if column.dtype.is_temporal() or (
            column.dtype in (nw.String, nw.Object) and _look_like_dates(column.to_list(), name)
        ):
            found.append(name)
    return found


def _look_like_dates(cells: list[Any], name: str) -> bool:
    text = pd.Series(
        [cell for cell in cells if isinstance(cell, str) and cell.strip()], dtype=object
    )
    if not len(text) or not text.str.contains(r"\d[-./ ]", regex=True).all():
        return False
    try:
        dates(text, name, dayfirst=None)
    except ValueError:
        return bool(text.str.strip().str.fullmatch(DATE.pattern).all())
    return True


def _year_first(
    parts: pd.DataFrame, text: pd.Series, name: str, dayfirst: bool | None
) -> tuple[pd.Series, str]:
    """Dates with the year last, rewritten with the year first."""
    a, b = parts["a"].astype(int), parts["b"].astype(int)
    if dayfirst is None:
        if (a > 12).any() and (b > 12).any():
            row = int(
                (b > 12).idxmax() if (a > 12).idxmax() < (b > 12).idxmax() else (a > 12).idxmax()
            )
            raise ValueError(
                f"time column {name!r} has dates with the day first and dates with the month first, as {text[row]!r} in row "
                f"{row + 1}: write them the same way, YYYY-MM-DD."
            )
        dayfirst = True if (a > 12).any() or (parts["sign"] == ".").all() else None
        dayfirst = False if dayfirst is None and (b > 12).any() else dayfirst
    if dayfirst is None:
        raise ValueError(
            f"time column {name!r} can be read two ways, {text.iloc[0]!r} with the day or the month first: say --dayfirst or "
            f"--monthfirst (in Python, convert it with pandas.to_datetime(…, dayfirst=…))."
        )
    year = parts["year"].astype(int)
    year = year.where(parts["year"].str.len() == 4, year + np.where(year < 69, 2000, 1900))
    day, month = (a, b) if dayfirst else (b, a)
    clock = parts["clock"].fillna("").str.replace(r"^(\d:)", r"0\1", regex=True)
    rewritten = [
        f"{y:04d}-{m:02d}-{d:02d} {t}".rstrip()
        for y, m, d, t in zip(year, month, day, clock, strict=True)
    ]
    first = "day" if dayfirst else "month"
    return pd.Series(rewritten, index=text.index, dtype=object), f" ({first} first)"
