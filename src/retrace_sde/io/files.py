"""Tables from files (text, spreadsheets, statistics packages, parquet, npz, h5ad, zarr) and results to folders, whole or not at all."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from retrace_sde.io.columns import shown
from retrace_sde.io.deferred import pd
from retrace_sde.io.dialect import NOTES_KEY, Dialect, read_text
from retrace_sde.io.formats import (
    frame_of_anndata,
    frame_of_array,
    frame_of_xarray,
    main_array,
    need,
)
from retrace_sde.io.untrusted.sizes import Budget, check_size, disk_size
from retrace_sde.io.untrusted.trial import read_apart
from retrace_sde.io.writing import RECORD_FILE, check_outputs, record


def read_table(
    path: str | Path,
    *,
    text: Sequence[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    large: bool = False,
) -> pd.DataFrame:
    """Read a table from a file, by its extension: text, Excel, parquet, npz, h5ad, zarr, Stata, SPSS, SAS.

    An npz file holds columns (1-D arrays of one length), or one array (trajectory, time, variable) with optional
    `names` and `ids`, which becomes the columns `subject`, `slice` and the variables. zarr: an AnnData or an
    xarray store. Every failure is a ValueError of one line.

    Parameters
    ----------
    path : str or Path
        The file.
    text : sequence of str
        Columns that are kept as they are written, such as subjects' ids: "007" stays "007".
    sep, decimal, encoding : str, optional
        How a text file is written; None: recognised. `sep` may be "tab".
    sheet : str, optional
        The sheet of an Excel workbook; None: the first that holds a table. Of several, `attrs["notes"]` names the one that was read.
    large : bool
        Read a file even if it expands to far more than its size makes likely; otherwise it is refused before it is read.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> rt.datasets.load_icu().to_csv("icu.csv", index=False)
    >>> rt.read_table("icu.csv", text=["patient"]).shape
    (1440, 7)
    """
    dialect = Dialect({"tab": "\t", "\\t": "\t"}.get(sep or "", sep), decimal, encoding)
    path = Path(path)
    suffix = path.suffix.lower()
    _check_readable(path, suffix, sheet)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size = disk_size(path)
            budget = Budget.of(size, large=large)
            if suffix in TEXT_EXTENSIONS:
                check_size(path, budget)
                frame = read_text(path, text, dialect)
            else:
                load_library(path)
                job = {"path": str(path.absolute()), "text": list(text), "budget": budget.left}
                job["sheet"] = sheet
                job["infer_string"] = bool(pd.get_option("future.infer_string"))
                frame = read_apart(read_untrusted, size, **job)
    except ValueError as error:
        raise ValueError(f"{path}: {_one_line(error)}") from None
    except Exception as error:  # whatever a library makes of a damaged file
        raise ValueError(f"{path} cannot be read as {suffix}: {_one_line(error)}") from None
    if len(frame) == 0:
        raise ValueError(f"{path} has columns but no rows.")
    return frame if isinstance(frame.index, pd.RangeIndex) else _with_row_names(frame)


def _check_readable(path: Path, suffix: str, sheet: str | None) -> None:
    """A file, or store, of a known kind that is there and holds something."""
    if suffix not in EXTENSIONS:
        kind = f"extension {suffix!r}" if suffix else "no extension"
        raise ValueError(f"{path} has {kind}; known are {', '.join(EXTENSIONS)}.")
    if not path.exists():
        raise ValueError(f"{path} does not exist.")
    if path.is_dir() != (suffix == ".zarr"):
        kind = "folder" if path.is_dir() else "file"
        raise ValueError(
            f"{path} is a {kind}; a {suffix} {'store' if suffix == '.zarr' else 'file'} is needed."
        )
    if not (path.is_dir() or path.is_file()):
        raise ValueError(
            f"{path} is a pipe or a device, which may never end: write it to a file first."
        )
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    if sheet is not None and suffix != ".xlsx":
        raise ValueError(f"{path} is no workbook with sheets: leave --sheet out.")


def load_library(path: str | Path) -> None:
    """Import what reading a file needs, or say what to install."""
    for library in LIBRARIES.get(Path(path).suffix.lower(), ()):
        need(library)


def read_untrusted(
    path: str, text: Sequence[str], budget: float, infer_string: bool, sheet: str | None = None
) -> pd.DataFrame:
    """A table that is not text; called in a process of its own, whose text is to be of the caller's kind."""
    where, left = Path(path), Budget(budget)
    check_size(where, left)
    with pd.option_context("future.infer_string", infer_string):
        return READERS[where.suffix.lower()](where, text, left, sheet)


def _with_row_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Names of the rows as columns like any others."""
    given = ["obs_name" if name is None else str(name) for name in frame.index.names]
    names = [name if name not in frame.columns else f"index_{name}" for name in given]
    return frame.reset_index(names=names)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "…"


def _read_excel(path: Path, text: Sequence[str], budget: Budget, sheet: str | None) -> pd.DataFrame:
    """A sheet by its name, or the first that holds a table: notes and title pages often come before it."""
    with pd.ExcelFile(path, engine="openpyxl") as book:
        names = [str(name) for name in book.sheet_names]
        if sheet is not None and sheet not in names:
            near = get_close_matches(sheet, names, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"it has no sheet {sheet!r}; its sheets are {shown(names)}.{hint}")
        refused: list[str] = []
        for read in names if sheet is None else [sheet]:
            frame = book.parse(read, dtype=dict.fromkeys(text, "string"))
            try:
                frame = _as_sheet(frame, read, alone=sheet is not None or len(names) == 1)
                break
            except ValueError as error:
                refused.append(str(error))
        else:
            several = f" Other sheets: {shown(names[1:])}." if len(names) > 1 else ""
            raise ValueError(f"{refused[0]}{several if sheet is None else ''}")
    if len(names) > 1:
        others = [name for name in names if name != read]
        hint = " (--sheet names another)" if sheet is None else ""
        frame.attrs[NOTES_KEY] = [f"sheet {read!r} was read, and not {shown(others)}{hint}"]
        frame.attrs[SHEETS_KEY] = {"names": names, "read": read}
    return frame


def _as_sheet(frame: pd.DataFrame, name: str, *, alone: bool) -> pd.DataFrame:
    """What a sheet holds, if that is a table; where there are others (not `alone`), one of a single column is not."""
    if not len(frame.columns):
        raise ValueError(f"its sheet {name!r} is empty: put the table there.")
    odd = [
        str(each)
        for each in frame.columns
        if not isinstance(each, str) or each.startswith("Unnamed: ")
    ]
    empty = [each for each in odd if each in frame.columns and frame[each].isna().all()]
    if len(odd) > len(empty):
        raise ValueError(
            f"row 1 of sheet {name!r} must name every column; {odd[0]!r} has no name that is text: delete what is "
            "above the names, and name the rest."
        )
    frame = frame.drop(columns=empty).dropna(how="all").reset_index(drop=True)
    if not alone and (len(frame.columns) < 2 or len(frame) == 0):
        raise ValueError(f"its sheet {name!r} holds no table.")
    return frame


def _read_sas(path: Path, *_: Any) -> pd.DataFrame:
    return pd.read_sas(path, encoding="utf-8")


def _read_spss(path: Path, *_: Any) -> pd.DataFrame:
    return pd.read_spss(path, convert_categoricals=False)


def _read_parquet(path: Path, *_: Any) -> pd.DataFrame:
    """Without threads, which wait for ever where a limit keeps memory from one of them."""
    with need("pyarrow.parquet").ParquetFile(path, pre_buffer=False) as file:
        return file.read(use_threads=False).to_pandas(use_threads=False)


def _read_npz(path: Path, *_: Any) -> pd.DataFrame:
    if not zipfile.is_zipfile(path):
        raise ValueError("not an npz file (a zip archive of arrays), or cut short.")
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
    main = main_array({name: array.ndim for name, array in arrays.items()})
    if main is not None:
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


def _anndata(adata: Any, budget: Budget) -> pd.DataFrame:
    budget.take_table(adata.n_obs, adata.n_vars + adata.obs.shape[1])  # also where X is sparse
    return frame_of_anndata(adata)[0]


def _read_zarr(path: Path, text: Sequence[str], budget: Budget, *_: Any) -> pd.DataFrame:
    root = need("zarr").open(str(path), mode="r")
    if dict(root.attrs).get("encoding-type") == "anndata":
        return _anndata(need("anndata").io.read_zarr(path), budget)
    if not hasattr(root, "arrays"):
        raise ValueError("a single array without names: save an xarray Dataset or an AnnData.")
    data = need("xarray").open_zarr(path, consolidated=None, chunks=None)  # without Dask
    budget.take_table(math.prod(data.sizes.values()), len(data.variables))  # all along all axes
    return frame_of_xarray(data)


TEXT_EXTENSIONS = (".csv", ".tsv", ".txt")
"""Text, whose dialect may be given."""

SHEETS_KEY = "sheets"
"""The key of `attrs` under which a table keeps the sheets of its workbook, where there are several, and which was read."""

READERS: dict[str, Callable[[Path, Sequence[str], Budget, str | None], pd.DataFrame]] = {
    ".xlsx": _read_excel,
    ".dta": lambda path, *_: pd.read_stata(path, convert_categoricals=False),
    ".sas7bdat": _read_sas,
    ".xpt": _read_sas,
    ".sav": _read_spss,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
    ".h5ad": lambda path, _, budget, *__: _anndata(need("anndata").read_h5ad(path), budget),
    ".zarr": _read_zarr,
}

LIBRARIES = {
    ".xlsx": ("openpyxl",),
    ".sav": ("pyreadstat",),
    ".parquet": ("pyarrow.parquet",),
    ".h5ad": ("anndata",),
    ".zarr": ("zarr", "scipy.linalg"),
}
"""What reading needs, imported before another process is started and before its memory is limited: OpenBLAS, which comes with
scipy, would ask for its buffers forever."""

EXTENSIONS = (*TEXT_EXTENSIONS, *READERS)
"""The extensions of tables that can be read."""


def check_target(out: Path, *, folder: bool) -> None:
    """Results can be written there; said before the work, not after it."""
    if not out.name:
        raise ValueError(f"--out {str(out)!r} is no place for results: name a folder or a file.")
    try:
        out.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the first of its folders that is there is asked below
    except OSError as error:
        raise ValueError(
            f"{out.name:.40}… cannot be the name of the results ({error.strerror}): choose another with --out."
        ) from None
    if out.is_symlink() and not out.exists():
        raise ValueError(
            f"{out} is a link to {out.readlink()}, which does not exist: name another place with --out."
        )
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


@contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """A folder to write in whose files move to the folder `out` at the end, or vanish if anything fails.

    What is there and was not written by a command stays (`io/writing`), and nothing moves then.
    """
    there = out.is_dir()
    try:
        if not there:
            out.absolute().parent.mkdir(parents=True, exist_ok=True)
        work = (out if there else out.absolute().parent) / _unique()
        work.mkdir()
    except OSError as error:
        raise ValueError(f"{out} cannot be written to: {error.strerror}.") from None
    try:
        yield work
        files = sorted(work.iterdir())
        if there:
            check_outputs([out / file.name for file in files], force=True)
        (work / RECORD_FILE).write_text(record(out, files), encoding="utf-8")
        if there:
            _move([*files, work / RECORD_FILE], out)
        else:
            _rename(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _rename(work: Path, out: Path) -> None:
    """What was written becomes the folder `out`, unless somebody else was faster."""
    try:
        work.rename(out)
    except OSError:
        if not os.path.lexists(out):
            raise
        raise ValueError(
            f"{out} was written by another run meanwhile, so nothing of this one is: name another place with --out."
        ) from None


def _move(files: Sequence[Path], out: Path) -> None:
    """All of them, or, where one cannot be moved, none."""
    before = files[0].parent / "before"
    before.mkdir()
    done: list[Path] = []
    try:
        for file in files:
            target = out / file.name
            if target.exists():
                target.replace(before / file.name)
            done.append(target)
            file.replace(target)
    except BaseException:
        for target in done:
            target.unlink(missing_ok=True)
            if (before / target.name).exists():
                (before / target.name).replace(target)
        raise


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `target` at the end, or vanishes if anything fails.

    Its name is new and nobody's: threads do not meet in it, and no link that waits there is followed.
    """
    partial = target.parent / _unique()
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _unique() -> str:
    return f".retrace-{secrets.token_hex(8)}"
