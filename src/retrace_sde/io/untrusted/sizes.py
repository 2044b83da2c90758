"""How large a file says that its table is, read from headers alone, against what its size on the disk makes likely.

A table of r rows and c columns takes about `8 r (c + 6)` bytes here (numbers are float64, and each row is carried by a
few indices), and a few times that at its peak. Compressed files of real data expand tenfold; what expands a hundredfold
is a mistake, or an attack. Arrays of an .npz file are read where their sizes are what the file says, and nothing in it is run.
"""

from __future__ import annotations

import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.formats import need
from retrace_sde.io.untrusted import zarr_store
from retrace_sde.io.untrusted.trial import TooLargeError

ALWAYS_ALLOWED_BYTES, MAX_EXPANSION = 1 << 28, 32
"""Bytes to which any file may expand, and how many times its own size a larger one may."""

NUMBERS_PER_ROW, TEXT_CELL_BYTES = 6, 64
"""Numbers that each row costs beside its cells, and bytes of a cell of text."""

READ_BYTES, HEADER_LINES, COLUMN_BYTES = 1 << 20, 5, 1024
"""Bytes read at once, lines among which the header is, and bytes that a column costs whatever is in it."""


class Budget:
    """The bytes that a file may take in memory; what it claims is counted, and too much refused."""

    def __init__(self, left: float) -> None:
        self.left = left

    @classmethod
    def of(cls, size: int, *, large: bool = False) -> Budget:
        """That of a file, or of all files of a store, by its size on the disk."""
        return cls(math.inf if large else float(max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size)))

    def take(self, amount: float) -> None:
        """Count bytes that the file will take."""
        if not amount >= 0:
            raise ValueError("its sizes are damaged.")
        self.left -= amount
        if self.left < 0:
            raise TooLargeError("it claims to hold")

    def take_table(self, rows: int, columns: int) -> None:
        """Count a table."""
        self.take(8.0 * rows * (columns + NUMBERS_PER_ROW))

    def take_array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Count an array: numbers become float64, text becomes Python's."""
        least = TEXT_CELL_BYTES if dtype.kind in "OSU" else 8
        self.take(math.prod(map(float, shape)) * max(dtype.itemsize, least))


def disk_size(path: Path) -> int:
    """Bytes of a file, or of all files of a store."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def check_size(path: Path, budget: Budget) -> None:
    """Refuse a file whose headers claim too much; what is left of the budget is for what only reading shows."""
    check = SIZE_CHECKS.get(path.suffix.lower())
    if check is not None:
        check(path, budget)


def _csv(path: Path, budget: Budget) -> None:
    """Lines times the cells of the header, which short lines are filled up to."""
    lines, cells = 0, dict.fromkeys(range(HEADER_LINES), 1)
    for block in _blocks(path):
        budget.take(len(block))
        begun = lines
        for k, part in enumerate(block.split(b"\n", HEADER_LINES) if begun < HEADER_LINES else []):
            if begun + k < HEADER_LINES:
                cells[begun + k] += max(map(part.count, (b",", b";", b"\t", b"|")))
        lines += max(block.count(b"\n"), block.count(b"\r"))
    columns = max(cells.values())
    budget.take(float(COLUMN_BYTES * columns))
    budget.take_table(lines + 1, columns)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            yield block


def _npz(path: Path, budget: Budget) -> None:
    if not zipfile.is_zipfile(path):
        return  # the reader says so
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            budget.take(entry.file_size)
            try:
                with archive.open(entry) as file:
                    shape, dtype = array_header(file)
            except ValueError:
                continue  # no array, which the reader says
            budget.take_array(shape, dtype)
            rows = math.prod(shape[:2]) if len(shape) == 3 else math.prod(shape[:1])
            budget.take_table(rows, 0)


def _xlsx(path: Path, budget: Budget) -> None:
    """Each sheet as far as its last cell reaches: all that lies before it is filled up."""

    if not zipfile.is_zipfile(path):
        raise ValueError("not an xlsx file (a zip archive), or cut short.")
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            budget.take(2.0 * entry.file_size)
            if not entry.filename.startswith("xl/worksheets/"):
                continue
            rows, columns, tail = 0, 0, b""
            with archive.open(entry) as file:
                while block := file.read(READ_BYTES):
                    for letters, number in CELL_REFERENCE.findall(tail + block):
                        rows, columns = max(rows, int(number)), max(columns, _column(letters))
                    tail = block[-32:]
            budget.take_table(rows, columns)


CELL_REFERENCE = re.compile(rb"""r\s*=\s*["']([A-Za-z]{1,3})(\d{1,7})["']""")
"""Where a cell of a sheet stands."""


def _column(letters: bytes) -> int:
    """The number of a column of a spreadsheet: A, B, …, Z, AA, …"""
    return sum((sign - 64) * 26**k for k, sign in enumerate(reversed(letters.upper())))


def _parquet(path: Path, budget: Budget) -> None:
    pq = need("pyarrow.parquet")
    with pq.ParquetFile(path, pre_buffer=False) as file:
        found, schema = file.metadata, file.schema_arrow
        text = [field.name for field in schema if str(field.type) in TEXT_TYPES]
        budget.take_table(found.num_rows, found.num_columns)
        for group in map(found.row_group, range(found.num_row_groups)):
            for part in map(group.column, range(group.num_columns)):
                budget.take(max(part.total_uncompressed_size, 0) + 8.0 * max(part.num_values, 0))
    for name in text:
        _repeated_text(path, name, budget)


TEXT_TYPES = ("string", "large_string", "binary", "large_binary")


def _repeated_text(path: Path, name: str, budget: Budget) -> None:
    """A long text, stored once and repeated in many rows: its length counts in each of them.

    Without threads: Arrow's wait for ever where a limit keeps memory from one of them.
    """
    pa, pc, pq = need("pyarrow"), need("pyarrow.compute"), need("pyarrow.parquet")
    with pq.ParquetFile(path, read_dictionary=[name], pre_buffer=False) as file:
        table = file.read([name], use_threads=False)
    for chunk in table[name].chunks:
        if not isinstance(chunk, pa.DictionaryArray):
            continue
        lengths = np.asarray(pc.fill_null(pc.binary_length(chunk.dictionary), 0), dtype=float)
        known = np.asarray(chunk.indices.drop_null(), dtype=np.intp)
        if len(lengths):
            budget.take(float(lengths @ np.bincount(known, minlength=len(lengths))))


def _h5ad(path: Path, budget: Budget) -> None:
    """What an HDF5 file claims to hold, and that it holds it itself."""
    need("anndata")
    h5py = need("h5py")
    if not h5py.is_hdf5(path):
        raise ValueError("not an h5ad file (HDF5), or cut short.")
    with h5py.File(path, "r") as file:
        seen: set[Any] = set()
        todo = [file]
        while todo:
            group = todo.pop()
            for name in group:
                where = f"{group.name.rstrip('/')}/{name}"
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(
                        f"{where!r} is a link to another place, which is not followed."
                    )
                each = group[name]
                mark = h5py.h5o.get_info(each.id).addr
                if mark in seen:
                    raise ValueError(f"{where!r} is stored under two names, which is not read.")
                seen.add(mark)
                if isinstance(each, h5py.Group):
                    todo.append(each)
                elif isinstance(each, h5py.Dataset):
                    _h5_dataset(each, where, budget)


def _h5_dataset(each: Any, where: str, budget: Budget) -> None:
    if each.external or each.is_virtual:
        raise ValueError(f"{where!r} takes its numbers from another file, which is not read.")
    if each.shape is not None:
        budget.take_array(each.shape, each.dtype)
        budget.take(math.prod(map(float, each.chunks or ())) * each.dtype.itemsize)


SIZE_CHECKS: dict[str, Callable[[Path, Budget], None]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".txt": _csv,
    ".xlsx": _xlsx,
    ".npz": _npz,
    ".parquet": _parquet,
    ".h5ad": _h5ad,
    ".zarr": lambda path, budget: zarr_store.check(path, budget.take, budget.take_array),
}


MAX_ARRAY_BYTES = 2 << 30
"""Bytes that the arrays of one file may have together."""

READ_ERRORS = (
    ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, EOFError, RuntimeError, MemoryError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""What reading a file that is damaged, or another, may raise; the file is not to be trusted to choose."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file by its name; refused where they are too large or larger than the file says."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is no npz file, or is cut short")
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(each.file_size for each in members)
        if total > MAX_ARRAY_BYTES:
            raise ValueError(f"it holds {total / 2**30:.1f} GiB, more than a result can")
        for each in members:
            _check_size(archive, each)
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def array_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array in .npy form, from its head alone; ValueError where it is none."""
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    return shape, dtype


def _check_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    with archive.open(member) as file:
        shape, dtype = array_header(file)
    if dtype.hasobject:
        raise ValueError(f"{member.filename} holds Python objects, which are never read")
    if math.prod(shape) * dtype.itemsize > member.file_size:
        raise ValueError(f"{member.filename} is larger than the file")
