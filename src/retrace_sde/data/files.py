"""Tables from files (text, spreadsheets, statistics packages, parquet, npz, h5ad, zarr) and results to folders, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from retrace_sde.data.columns import shown
from retrace_sde.data.dialect import NOTES, Dialect, read_text
from retrace_sde.data.formats import frame_of_anndata, frame_of_array, frame_of_xarray, need

LARGEST = 8 << 30
"""Bytes to which an npz file may expand: more is refused before anything is read."""

LARGEST_SHEET = 1 << 30
"""Bytes to which a spreadsheet, whose reading takes many times its size, may expand."""


def read_table(
    path: str | Path, *, text: Sequence[str] = (), dialect: Dialect | None = None
) -> pd.DataFrame:
    """The table in a file, by its extension; columns named in `text` are kept as they are written.

    An npz file holds columns (1-D arrays of one length), or one array (trajectory, time, variable) with optional
    `names` and `ids`, which becomes the columns `subject`, `slice` and the variables. zarr: an AnnData or an
    xarray store. `dialect`: how a text table is written, where that is not to be recognised. Every failure is a ValueError of one line.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        kind = f"extension {suffix!r}" if suffix else "no extension"
        raise ValueError(f"{path} has {kind}; known are {', '.join(READERS)}.")
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.is_dir() != (suffix == ".zarr"):
        kind = "folder" if path.is_dir() else "file"
        raise ValueError(
            f"{path} is a {kind}; a {suffix} {'store' if suffix == '.zarr' else 'file'} is needed."
        )
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if READERS[suffix] is read_text:
                frame = read_text(path, text, dialect)
            else:
                frame = READERS[suffix](path, text)
    except ValueError as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None
    except (OSError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as {suffix}: {_one_line(error)}") from None
    if len(frame) == 0:
        raise ValueError(f"{path} has columns but no rows.")
    return frame if isinstance(frame.index, pd.RangeIndex) else _with_row_names(frame)


def _with_row_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Names of the rows as columns like any others."""
    given = ["obs_name" if name is None else str(name) for name in frame.index.names]
    names = [name if name not in frame.columns else f"index_{name}" for name in given]
    return frame.reset_index(names=names)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "…"


def _read_excel(path: Path, text: Sequence[str]) -> pd.DataFrame:
    need("openpyxl")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > LARGEST_SHEET:
        raise ValueError(
            f"it expands to {size >> 20} MiB, too large for a spreadsheet: save it as csv."
        )
    with pd.ExcelFile(path, engine="openpyxl") as book:
        frame = book.parse(0, dtype=dict.fromkeys(text, "string"))
        others = [str(name) for name in book.sheet_names[1:]]
        first = book.sheet_names[0]
    if not len(frame.columns):
        raise ValueError(f"its first sheet, {first!r}, is empty: put the table on the first sheet.")
    odd = [
        str(name)
        for name in frame.columns
        if not isinstance(name, str) or name.startswith("Unnamed: ")
    ]
    empty = [name for name in odd if name in frame.columns and frame[name].isna().all()]
    if len(odd) > len(empty):
        raise ValueError(
            f"row 1 of sheet {first!r} must name every column; {odd[0]!r} has no name that is text: delete what stands "
            "above the names, and name the rest."
        )
    frame = frame.drop(columns=empty).dropna(how="all").reset_index(drop=True)
    if others:
        frame.attrs[NOTES] = [f"sheet {first!r} was read, and not {shown(others)}"]
    return frame


def _read_stata(path: Path, text: Sequence[str]) -> pd.DataFrame:
    return pd.read_stata(path, convert_categoricals=False)


def _read_sas(path: Path, text: Sequence[str]) -> pd.DataFrame:
    return pd.read_sas(path, encoding="utf-8")


def _read_spss(path: Path, text: Sequence[str]) -> pd.DataFrame:
    need("pyreadstat")
    return pd.read_spss(path, convert_categoricals=False)


def _read_parquet(path: Path, text: Sequence[str]) -> pd.DataFrame:
    return pd.read_parquet(path)


def _read_npz(path: Path, text: Sequence[str]) -> pd.DataFrame:
    if not zipfile.is_zipfile(path):
        raise ValueError("not an npz file (a zip archive of arrays), or cut short.")
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > LARGEST:
        raise ValueError(f"it expands to {size / (1 << 30):.0f} GiB: too large to be read at once.")
    with np.load(path, allow_pickle=False) as file:
        arrays = {}
        for name in file.files:
            try:
                arrays[name] = file[name]
            except ValueError as error:
                if "pickle" in str(error):
                    raise ValueError(
                        f"array {name!r} holds Python objects, which are not loaded since they can run code: "
                        "save numbers or text."
                    ) from None
                raise
    strange = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ValueError(f"its entry {strange[0]!r} is not an array.")
    solid = [name for name, array in arrays.items() if array.ndim == 3]
    if solid:
        main = "values" if "values" in solid else "X" if "X" in solid else solid[0]
        if len(solid) > 1 and main not in ("values", "X"):
            raise ValueError(
                f"several arrays have three axes, {', '.join(solid)}: name one 'values'."
            )
        frame = frame_of_array(arrays[main], names=_text(arrays, "names"), ids=_text(arrays, "ids"))
        frame.attrs["array"] = True  # its columns were named here, so that nobody need name them
        return frame
    lengths = {name: len(array) if array.ndim == 1 else -1 for name, array in arrays.items()}
    if not arrays or min(lengths.values()) < 0 or len(set(lengths.values())) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in list(arrays.items())[:6])
        raise ValueError(
            "needed is one array (trajectory, time, variable), or columns of one length; found "
            f"{shapes or 'no arrays'}."
        )
    return pd.DataFrame(arrays)


def _text(arrays: dict[str, Any], name: str) -> list[str] | None:
    return [str(each) for each in arrays[name].ravel()] if name in arrays else None


def _read_h5ad(path: Path, text: Sequence[str]) -> pd.DataFrame:
    return frame_of_anndata(need("anndata").read_h5ad(path))


def _read_zarr(path: Path, text: Sequence[str]) -> pd.DataFrame:
    root = need("zarr").open(str(path), mode="r")
    if dict(root.attrs).get("encoding-type") == "anndata":
        return frame_of_anndata(need("anndata").io.read_zarr(path))
    if not hasattr(root, "arrays"):
        raise ValueError("a single array without names: save an xarray Dataset or an AnnData.")
    return frame_of_xarray(need("xarray").open_zarr(path, consolidated=None))


READERS: dict[str, Callable[[Path, Sequence[str]], pd.DataFrame]] = {
    ".csv": read_text,
    ".tsv": read_text,
    ".txt": read_text,
    ".xlsx": _read_excel,
    ".dta": _read_stata,
    ".sas7bdat": _read_sas,
    ".xpt": _read_sas,
    ".sav": _read_spss,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".h5ad": _read_h5ad,
    ".zarr": _read_zarr,
}


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """A table as csv, parquet or npz (columns), by the extension."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        columns = {
            name: column.to_numpy(dtype=str if column.dtype == object else None)
            for name, column in frame.items()
        }
        np.savez_compressed(path, **columns)  # type: ignore[arg-type]


def check_target(out: Path, *, folder: bool) -> None:
    """Results can be written there; said before the work, not after it."""
    if out.exists() and out.is_dir() != folder:
        raise ValueError(
            f"{out} is a {'file' if folder else 'folder'}; name a {'folder' if folder else 'file'} for the results."
        )
    parent = next(each for each in (out, *out.absolute().parents) if each.exists())
    if not parent.is_dir() and parent != out:
        raise ValueError(f"{parent} is not a folder, so nothing can be written to {out}.")
    if not os.access(parent, os.W_OK):
        where = "" if parent == out else f" ({parent} is read-only)"
        raise ValueError(
            f"{out} cannot be written to{where}: choose another place for the results."
        )


def check_replaced(out: Path, source: Path, names: Sequence[str]) -> bool:
    """Whether results of an earlier fit will be replaced; the input, or a file that is no result, never is."""
    there = [out / name for name in names if (out / name).exists()]
    if any(each.samefile(source) for each in there if source.exists()):
        raise ValueError(
            f"the results would replace the input {source}: name another folder with --out."
        )
    if there and not all((out / name).is_file() for name in names):
        raise ValueError(
            f"{there[0]} exists, and not as part of an earlier result: name another folder with --out."
        )
    return bool(there)


@contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """A folder to write in whose files move to the folder `out` at the end, or vanish if anything fails."""
    there = out.is_dir()
    try:
        if not there:
            out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".retrace-", dir=out if there else out.parent))
    except OSError as error:
        raise ValueError(f"{out} cannot be written to: {error.strerror}.") from None
    try:
        yield work
        if there:
            for file in work.iterdir():
                file.replace(out / file.name)
        else:
            work.chmod(0o777 & ~_umask())
            work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write a file to that becomes `target` at the end, or vanishes if anything fails."""
    partial = target.with_name(target.name + ".partial")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
