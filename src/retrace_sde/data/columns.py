"""Columns of a table as numbers, and what to say of those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd

from retrace_sde.data.blocks import Array

Column = nw.Series[Any]

LARGEST = 1e140
"""Largest number whose squares can still be summed."""

SHOWN = 5
"""Names that a message lists."""


def shown(names: Sequence[str]) -> str:
    """A few names, quoted, and how many more there are."""
    text = ", ".join(repr(name) for name in names[:SHOWN])
    return text + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def is_numeric(column: Column) -> bool:
    """Numbers, also where pandas keeps them as objects of Python's Decimal."""
    if column.dtype.is_numeric():
        return True
    if column.dtype != nw.Object:
        return False
    cells = [cell for cell in column.to_list() if not pd.isna(cell)]
    return bool(cells) and all(isinstance(cell, Decimal) for cell in cells)


def numbers(frame: nw.DataFrame[Any], name: str) -> Array:
    """A numeric column as float64, missing values as NaN; anything else is refused by name."""
    column = frame[name]
    if not is_numeric(column):
        raise ValueError(_not_numeric(column, name))
    if column.dtype == nw.Object:
        cells = [np.nan if pd.isna(cell) else float(cell) for cell in column.to_list()]
        values: Array = np.array(cells, dtype=np.float64)
    else:
        values = np.array(column.cast(nw.Float64).fill_null(np.nan).to_numpy(), dtype=np.float64)
    if np.isinf(values).any():
        row = int(np.argmax(np.isinf(values)))
        raise ValueError(
            f"column {name!r} is infinite in row {row + 1}: leave the cell empty if it is missing."
        )
    if np.nanmax(np.abs(values), initial=0.0) > LARGEST:
        row = int(np.nanargmax(np.abs(values)))
        raise ValueError(
            f"column {name!r} holds {values[row]:g} in row {row + 1}, too large to square and sum: rescale it, or "
            "leave the cell empty if the number stands for a missing value."
        )
    return values


def refuse_typing_errors(column: Column, name: str) -> None:
    """A column of numbers with a few words in it was meant to be analysed; it must not vanish in silence."""
    if column.dtype not in (nw.String, nw.Object):
        return
    cells = pd.Series(column.to_list(), dtype=object).dropna()
    share = pd.to_numeric(cells, errors="coerce").notna().mean()
    if 0.5 <= share < 1:  # all of them: labels that are written in digits
        raise ValueError(_not_numeric(column, name))


def _not_numeric(column: Column, name: str) -> str:
    kind = str(column.dtype).split("(")[0].lower()
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
    return (
        f"column {name!r} holds text, not numbers: {cells[row]!r:.40} in row {row + 1}"
        + (f" and {count - 1} more cells" if count > 1 else "")
        + ". Correct them, encode the column as numbers, or leave it out."
    )
