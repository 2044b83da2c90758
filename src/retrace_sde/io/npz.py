"""Arrays out of an .npz file whose sizes are checked before anything is read, and nothing in which is run."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ARRAY_BYTES = 2 << 30
"""Bytes that the arrays of one file may have together."""

READ_ERRORS = (
    ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, EOFError, RuntimeError, MemoryError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""What reading a file that is damaged, or another, may raise; the file is not to be trusted to choose."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file by its name; refused where they are too large or larger than the file says."""
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
