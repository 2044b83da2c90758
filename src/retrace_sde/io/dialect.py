"""Tables written as text: separators, decimal commas and encodings, recognised or given.

Nothing is guessed silently: what was recognised is a note on the table, what is ambiguous is refused with the option that
resolves it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrace_sde.io.columns import shown
from retrace_sde.io.deferred import pd

NOTES_KEY = "notes"
"""The key of `attrs` under which a table keeps the notes on how it was read."""

WRITTEN_KEY = "written"
"""The key of `attrs` under which a text table keeps how its like is written (`io/writing`)."""

SAMPLE_CHARACTERS = 1 << 16
"""Characters at the beginning of a file from which its separator is recognised; the last line of them is read to its end."""

MIN_SAMPLE_LINES = 3
"""Lines that are read in any case, however long: a header of a hundred thousand names, cut short, would repeat one."""

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

MISSING_SIGNS = frozenset(
    {".", "-", "–", "—", "?", "*", "missing", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?"}
)
"""What is written for a missing number, besides what pandas knows (empty, NA, NaN, null, …)."""

_EXPONENT = r"(?:[eE][+-]?\d+)?"
_SPACES = " '\u00a0\u202f"
"""What separates thousands besides commas and points; written out, since not every engine knows their escapes."""
DECIMAL_POINT_NUMBER = re.compile(
    rf"[+-]?(?:\d+|\d{{1,3}}(?:[,{_SPACES}]\d{{3}})+)?(?:\.\d*)?{_EXPONENT}"
)
"""A number with a decimal point, thousands perhaps apart."""
DECIMAL_COMMA_NUMBER = re.compile(
    rf"[+-]?(?:\d+|\d{{1,3}}(?:[.{_SPACES}]\d{{3}})+)?(?:,\d*)?{_EXPONENT}"
)
"""The same with a decimal comma."""


@dataclass(frozen=True)
class Dialect:
    """How a text table is written; None: to be recognised."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None and len(self.separator) != 1:
            raise ValueError(f"--sep is one character, or 'tab'; got {self.separator!r}.")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"--decimal is '.' or ','; got {self.decimal!r}.")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ValueError(
                    f"--encoding {self.encoding!r} is not known; try utf-8, cp1252, latin-1 or utf-16."
                ) from None
        if self.separator is not None and self.separator == self.decimal:
            raise ValueError("--sep and --decimal are the same sign.")


def read_text(path: Path, text: Sequence[str], dialect: Dialect | None = None) -> pd.DataFrame:
    """The table in a csv, tsv or txt file; columns named in `text` stay as they are written."""
    dialect = dialect or Dialect()
    encoding = dialect.encoding or _encoding(path)
    error = None if dialect.encoding is None else _decodes(path, encoding)
    if error is not None:
        raise ValueError(
            f"not {encoding} text (byte 0x{error.object[error.start]:02x}): say another --encoding, or save it as UTF-8."
        )
    _check_zeros(path, encoding)
    with path.open(encoding=encoding, errors="replace", newline="") as file:
        sample = file.read(SAMPLE_CHARACTERS) + file.readline()
        while sample.count("\n") < MIN_SAMPLE_LINES and (line := file.readline()):
            sample += line
    tabbed = path.suffix.lower() == ".tsv"
    separator, skipped = _structure(sample, dialect.separator or ("\t" if tabbed else None))
    _check_header(sample, separator, skipped)
    options: dict[str, Any] = {
        "sep": separator, "encoding": encoding, "skiprows": skipped, "low_memory": False, "float_precision": "round_trip",
    }  # fmt: skip
    frame = _parsed(path, options, dtype=dict.fromkeys(text, "string"))
    if frame.shape[1] == 1:
        raise ValueError(
            f"only one column, {frame.columns[0]!r}, was found: if cells are separated by another sign, say --sep."
        )
    frame, dropped = _without_row_names(frame, text)
    frame, found, decimal = _as_numbers(frame, path, options, text, dialect.decimal)
    said = (
        [] if separator == ("\t" if tabbed else ",") else [f"cells separated by {_sign(separator)}"]
    )
    said += [f"encoding {encoding}"] if encoding not in ("utf-8-sig", dialect.encoding) else []
    said += ["the lines above the header skipped"] if skipped else []
    said += [*found, *dropped]
    frame.attrs[NOTES_KEY] = [f"the file was read with {', '.join(said)}"] if said else []
    frame.attrs[WRITTEN_KEY] = _written(path, separator, decimal, encoding)
    return frame


def _written(path: Path, separator: str, decimal: str, encoding: str) -> dict[str, str]:
    """How a csv file is written that the same programs read: semicolons beside decimal commas, and the same encoding."""
    european = separator == ";" or decimal == ","
    with path.open("rb") as file:
        marked = file.read(3) == codecs.BOM_UTF8
    plain = encoding == "utf-8-sig" and not marked
    return {
        "sep": ";" if european else ",",
        "decimal": decimal,
        "encoding": "utf-8" if plain else encoding,
    }


def _sign(separator: str) -> str:
    return SEPARATORS.get(separator, repr(separator))


def _encoding(path: Path) -> str:
    """UTF-8 where the file is that, UTF-16 where it says so, else the Windows one of western Europe."""
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
    for name in ("utf-8-sig", "cp1252"):
        if _decodes(path, name) is None:
            return name
    raise ValueError("its encoding is not recognised: say --encoding, or save it as UTF-8.")


def _decodes(path: Path, encoding: str) -> UnicodeDecodeError | None:
    """Why the file is not of this encoding; None where it is."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with path.open("rb") as file:
        try:
            while chunk := file.read(1 << 20):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            return error
    return None


def _check_zeros(path: Path, encoding: str) -> None:
    """No zero byte, which would end a number in silence."""
    if encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32")):
        return
    line = 1
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            if b"\0" in chunk:
                line += chunk[: chunk.index(b"\0")].count(b"\n")
                raise ValueError(
                    f"zero bytes in line {line}: the file is damaged, not text, or UTF-16 (--encoding utf-16)."
                )
            line += chunk.count(b"\n")


def _structure(sample: str, given: str | None) -> tuple[str, int]:
    """The separator, and how many lines come before the header: a title, `sep=;`, blank ones."""
    first, _, _ = sample.lstrip("\r\n").partition("\n")
    excel = re.fullmatch(r'"?sep=(.)"?\s*', first, re.IGNORECASE)
    if excel and given is None:
        given = excel.group(1)
    best = given or ","
    if given is None:
        shapes = {sign: [len(row) for row, _ in _cells(sample, sign)] for sign in SEPARATORS}
        even = {
            sign: w for sign, w in shapes.items() if w and w[-1] > 1 and len(set(w[1:] or w)) == 1
        }
        # A title or a header one name short may differ; among separators that fit, the one with most cells.
        best = max(
            even, key=lambda sign: (even[sign][0] == even[sign][-1], even[sign][-1]), default=","
        )
    cells = _cells(sample, best)
    widths = [len(row) for row, _ in cells]
    usual = Counter(widths).most_common(1)[0][0] if widths else 1
    leading = next((k for k, width in enumerate(widths) if width > 1), 0) if usual > 1 else 0
    leading = max(leading, int(excel is not None))
    return best, cells[leading - 1][1] if leading else 0


def _cells(sample: str, separator: str) -> list[tuple[list[str], int]]:
    """The lines that hold anything, in cells, and the number of the line where each ends; the last may be cut off."""
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
    found = []
    try:
        found = [(row, reader.line_num) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error:
        return []
    return found[:-1] if len(sample) >= SAMPLE_CHARACTERS and len(found) > 2 else found


def _check_header(sample: str, separator: str, skipped: int) -> None:
    """No name of a column occurs twice. (Of quotes that do not end, which leave no rows, pandas says where.)"""
    rows = (row for row, line in _cells(sample, separator) if line > skipped)
    names = Counter(name.strip() for name in next(rows, []))
    twice = [name for name, count in names.items() if name and count > 1]
    if twice:
        raise ValueError(f"more than one column is named {twice[0]!r}: rename one.")


def _parsed(path: Path, options: dict[str, Any], dtype: Any) -> pd.DataFrame:
    """The table by pandas; lines longer than the header, which pandas accepts silently, are refused."""
    try:
        frame = pd.read_csv(path, dtype=dtype, **options)
        # A first column taken for the index; one that numbers the rows from 0 on would be left out anyway.
        if not frame.index.equals(pd.RangeIndex(len(frame))):
            if not frame.iloc[:, -1].isna().all():  # else only a separator at the end of each line
                raise ValueError(
                    f"the header names {len(frame.columns)} columns, {shown(list(frame.columns))}, but lines have "
                    f"{len(frame.columns) + frame.index.nlevels} cells: name every column (in R, write.csv(…, row.names = FALSE))."
                )
            frame = pd.read_csv(path, dtype=dtype, index_col=False, **options)
    except pd.errors.EmptyDataError:
        raise ValueError("it holds no table.") from None
    except pd.errors.ParserError as error:
        where = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
        quote = re.search(r"EOF inside string starting at row (\d+)", str(error))
        if quote is not None:
            raise ValueError(
                f'a quote (") that opens in row {int(quote[1]) + 1}, the header counted, is never closed: close it, or delete it.'
            ) from None
        if where is None:
            raise
        raise ValueError(
            f"line {where[2]} has {where[3]} cells where the header has {where[1]}: put a cell that holds "
            f"{_sign(options['sep'])} in quotes, or say --sep."
        ) from None
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def _without_row_names(frame: pd.DataFrame, text: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Without nameless columns that are empty or count the rows, as spreadsheets and R write them."""
    dropped, counted = [], False
    for k, name in enumerate(frame.columns):
        if not re.fullmatch(r"Unnamed: \d+", name) or name in text:
            continue
        column = frame[name]
        counts = k == 0 and pd.api.types.is_integer_dtype(column) and (np.diff(column) == 1).all()
        counted |= bool(counts)
        dropped += [name] if counts or column.isna().all() else []
    said = ["the nameless column of row numbers left out"] if counted else []
    return (frame.drop(columns=dropped) if dropped else frame), said


def is_text(column: pd.Series) -> bool:
    """A column of text, as pandas before version 3 holds it (objects), or since."""
    return column.dtype == object or isinstance(column.dtype, pd.StringDtype)


def _as_numbers(
    frame: pd.DataFrame,
    path: Path,
    options: dict[str, Any],
    text: Sequence[str],
    decimal: str | None,
) -> tuple[pd.DataFrame, list[str], str]:
    """Columns of numbers that pandas left as text (decimal commas, thousands apart, signs for missing values); the decimal sign."""
    words = [name for name in frame.columns if is_text(frame[name]) and name not in text]
    if not words and decimal != ",":
        return frame, [], "."
    found: list[str] = []
    if decimal is None:
        decimal = _decimal(frame, words, options["sep"])
        found += ["decimal commas"] if decimal == "," else []
    if decimal == ",":
        # Read again as it is written: beside decimal commas, 1.234 is a thousand, not one and a bit.
        whole = _parsed(path, options, dtype=str)
        words = [name for name in frame.columns if name not in text]
        frame = frame.assign(**{name: whole[name] for name in words})
    changed: dict[str, Any] = {}
    absent: Counter[str] = Counter()
    for name in words:
        numbers, signs = _numbers(frame[name], decimal)
        if numbers is not None:
            changed[name] = numbers
            absent += signs
    found += [f"{sign!r} as missing ({count} cells)" for sign, count in absent.items()]
    return frame.assign(**changed), found, decimal


def _known(column: pd.Series) -> tuple[pd.Series, pd.Series]:
    """The cells of a column that hold something, bare, and which of them only say that there is nothing."""
    cells = column.dropna().astype(str).str.strip().str.replace("−", "-", regex=False)
    return cells, cells.isin(MISSING_SIGNS)


def _fits(cells: pd.Series, pattern: re.Pattern[str]) -> pd.Series:
    return cells.str.fullmatch(pattern.pattern) & cells.str.contains(r"\d", regex=True)


def _decimal(frame: pd.DataFrame, words: Sequence[str], separator: str) -> str:
    """The decimal sign: a comma where a column is made of numbers in that writing only.

    Where it could separate thousands too, semicolons between cells are evidence for decimals, since commas are then not free;
    but not beside a column with decimal points.
    """
    doubtful = None
    for name in words:
        cells, absent = _known(frame[name])
        cells = cells[~absent]
        if not len(cells) or not cells.str.contains(",", regex=False).any():
            continue
        comma, point = (
            _fits(cells, DECIMAL_COMMA_NUMBER).all(),
            _fits(cells, DECIMAL_POINT_NUMBER).all(),
        )
        if comma and not point:
            return ","
        if comma and point and doubtful is None:
            doubtful = (name, cells[cells.str.contains(",", regex=False)].iloc[0])
    if doubtful is not None:
        name, cell = doubtful
        if separator == ";" and not any(_has_points(frame[each]) for each in frame.columns):
            return ","
        raise ValueError(
            f"column {name!r} holds {cell!r}, with a comma for decimals or for thousands: say --decimal , or --decimal ."
        )
    return "."


def _has_points(column: pd.Series) -> bool:
    """A column of numbers that pandas read, some of them not whole."""
    return pd.api.types.is_float_dtype(column) and bool((column.dropna() % 1 != 0).any())


def _numbers(column: pd.Series, decimal: str) -> tuple[pd.Series | None, Counter[str]]:
    """A column of numbers written as text, and the signs in it that stand for missing ones; None where it is not."""
    cells, absent = _known(column)
    rest = cells[~absent]
    if (
        not len(rest)
        or not _fits(rest, DECIMAL_COMMA_NUMBER if decimal == "," else DECIMAL_POINT_NUMBER).all()
    ):
        return None, Counter()
    bare = rest.str.replace(f"[{_SPACES}]", "", regex=True)
    bare = bare.str.replace("." if decimal == "," else ",", "", regex=False)
    bare = bare.str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(bare, errors="coerce")
    if numbers.isna().any():
        return None, Counter()
    whole = pd.api.types.is_integer_dtype(numbers) and len(numbers) == len(column)
    spread = numbers.reindex(column.index)
    return (spread.astype("int64") if whole else spread.astype(float)), Counter(cells[absent])
