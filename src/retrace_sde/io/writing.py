"""What commands write: which files may be replaced, and tables as the user's own are written (semicolons, decimal commas, encoding), Excel, parquet, npz.

What a command writes is recorded beside it, and nothing else is ever replaced. A folder of results holds `.retrace.json`: the name and the SHA-256 of every file
that a command wrote there. A file is ours if it is listed and still the same. One rule for all commands: never the input, never a file that is not ours, and
ours only when asked to (`--force`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import numbers
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrace_sde.io.deferred import pd
from retrace_sde.io.dialect import is_text
from retrace_sde.io.formats import need

RECORD_FILE = ".retrace.json"
"""The file with the record."""

MAKER = "retrace-sde"


def check_outputs(
    paths: Iterable[Path], *, source: Path | None = None, force: bool = False
) -> bool:
    """Whether results of ours will be replaced; raises ValueError where that must not be."""
    paths = list(paths)
    there = [each for each in paths if os.path.lexists(each)]
    if source is not None and source.exists():
        for each in paths:
            if _same(each, source) or source.resolve() in each.resolve().parents:
                raise ValueError(
                    f"the results would replace the input {source}: name another place with --out."
                )
    for each in there:
        if not is_ours(each):
            raise ValueError(
                f"{each} was not written by retrace, or was changed since, so it is not replaced: move it, or name "
                "another place with --out."
            )
    for folder in {each.parent for each in paths}:
        record = folder / RECORD_FILE
        if os.path.lexists(record) and not _is_record(record):
            raise ValueError(f"{record} was not written by retrace: name another place with --out.")
    if there and not force:
        raise ValueError(
            f"{there[0]} holds an earlier result: replace it with --force, or name another place with --out."
        )
    return bool(there)


def is_ours(path: Path) -> bool:
    """A command wrote it, and nobody changed it since."""
    if path.is_symlink() or not path.is_file():
        return False
    return written(path.parent).get(path.name) == _digest(path)


def written(folder: Path) -> dict[str, str]:
    """Names and digests of the files that commands wrote in a folder."""
    try:
        found = json.loads((folder / RECORD_FILE).read_bytes())
        files = found["files"] if found["made_by"] == MAKER else {}
        return {str(name): str(digest) for name, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def record(folder: Path, files: Iterable[Path]) -> str:
    """What the record of a folder says when these files have come to it."""
    known = {**written(folder), **{each.name: _digest(each) for each in files}}
    return json.dumps({"made_by": MAKER, "files": known}, indent=1) + "\n"


def _is_record(path: Path) -> bool:
    return not path.is_symlink() and bool(written(path.parent))


def _same(one: Path, other: Path) -> bool:
    return one.exists() and one.samefile(other)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


OUT_FORMATS = ("csv", "tsv", "xlsx", "parquet")
"""Kinds of files for tables of results, which are also their extensions."""

EXCEL_ROWS, EXCEL_COLUMNS, EXCEL_SIGNS = 1_048_576, 16_384, 32_767
"""Rows and columns of a sheet and signs of a cell, at most."""

EXCEL_CELLS = (str, numbers.Number, np.bool_, datetime.date, datetime.time, datetime.timedelta)
"""What a cell of a sheet may hold; anything else is written as text."""

CONTROL_SIGNS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Signs that a workbook cannot hold."""

NUMBER_TEXT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Text that is a number, and no formula."""


def check_writable(path: Path, shape: tuple[int, int] = (0, 0)) -> None:
    """A table of this shape can be written there; said before the work."""
    suffix = path.suffix.lower()
    if suffix not in (".npz", *(f".{each}" for each in OUT_FORMATS)):
        kind = f"extension {suffix!r}" if suffix else "no extension"
        known = ", ".join(f".{each}" for each in OUT_FORMATS)
        raise ValueError(f"{path} has {kind}; tables are written as {known}.")
    if suffix == ".xlsx":
        need("openpyxl")
        if shape[0] >= EXCEL_ROWS or shape[1] > EXCEL_COLUMNS:
            raise ValueError(
                f"a sheet holds {EXCEL_ROWS:,} rows and {EXCEL_COLUMNS:,} columns, and the table is larger: choose csv or parquet."
            )
    if suffix == ".parquet":
        need("pyarrow.parquet")


def write_table(
    frame: pd.DataFrame, path: Path, *, safe: bool = False, written: Mapping[str, str] | None = None
) -> None:
    """A table as csv, tsv, xlsx, parquet or npz (columns), by the extension.

    `safe`: no cell of a text file is a spreadsheet's formula (a workbook never has one). `written`: the separator, decimal sign
    and encoding of the user's table (`attrs["written"]`), which a csv file then has too.
    """
    check_writable(path, frame.shape)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        shown = defused(frame) if safe else frame
        options = dict(written or {}) if suffix == ".csv" else {"sep": "\t"}
        # The csv module quotes the signs that end a line: both, wherever a cell holds the one that does not.
        end = "\r\n" if _has_returns(shown) else None
        shown.to_csv(path, index=False, lineterminator=end, **options)  # type: ignore[call-overload]
    elif suffix == ".xlsx":
        _write_excel(frame, path)
    elif suffix == ".parquet":
        plain = frame.assign(**{name: _of_one_kind(column) for name, column in frame.items()})  # type: ignore[arg-type]
        plain.attrs = {}  # how another file was read is not part of this one
        plain.to_parquet(path, index=False)
    else:
        columns = {
            name: column.to_numpy(dtype=str if is_text(column) else None)
            for name, column in frame.items()
        }
        np.savez_compressed(path, **columns)  # type: ignore[arg-type]


def _of_one_kind(column: pd.Series) -> pd.Series:
    """A column whose cells are of several kinds, numbers and text, as text."""
    if column.dtype != object or not pd.api.types.infer_dtype(column).startswith("mixed"):
        return column
    return column.map(str, na_action="ignore")


def _write_excel(frame: pd.DataFrame, path: Path) -> None:
    """One sheet, in which text is text, whatever it begins with."""
    cells = {name: _excel_column(column) for name, column in frame.items()}
    plain = frame.assign(**cells).rename(columns=_excel_cell)  # type: ignore[arg-type]
    with pd.ExcelWriter(path, engine="openpyxl") as book:
        plain.to_excel(book, index=False, sheet_name="ReTrace")
        for row in book.sheets["ReTrace"].iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    cell.data_type = "s"


def _excel_column(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return column.map(lambda when: when.isoformat(), na_action="ignore")
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return column
    return column.astype(object).map(_excel_cell, na_action="ignore")


def _excel_cell(cell: Any) -> Any:
    if isinstance(cell, datetime.datetime) and cell.tzinfo is not None:
        return cell.isoformat()
    if not isinstance(cell, EXCEL_CELLS):
        cell = str(cell)
    if not isinstance(cell, str):
        return cell
    if len(cell) > EXCEL_SIGNS:
        raise ValueError(
            f"a cell of a sheet holds {EXCEL_SIGNS:,} signs, and one of the table has {len(cell):,}: choose csv or parquet."
        )
    return CONTROL_SIGNS.sub("\N{REPLACEMENT CHARACTER}", cell)


def _has_returns(frame: pd.DataFrame) -> bool:
    """A name or a cell holds a carriage return, at which readers begin a new row unless it is quoted."""
    text = [column for _, column in frame.items() if not pd.api.types.is_numeric_dtype(column)]
    cells = (each for column in (frame.columns, *text) for each in column)
    return any(isinstance(each, str) and "\r" in each for each in cells)


def defused(frame: pd.DataFrame) -> pd.DataFrame:
    """A table whose text, names included, begins with `'` where a spreadsheet would take it for a formula."""
    text = {
        name: column.astype(object).map(_defused)
        for name, column in frame.items()
        if not pd.api.types.is_numeric_dtype(column)
    }
    return frame.assign(**text).rename(columns=_defused)  # type: ignore[arg-type]


def _defused(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.lstrip(" ").startswith(
        ("=", "+", "-", "@", "\t", "\r", "\n")
    ):
        return cell
    return cell if NUMBER_TEXT.fullmatch(cell) else f"'{cell}"
