"""Fuzzing of files: damaged, inconsistent or absurd ones must give a clean error, and leave no partial output.

Each round takes a good file of one of the formats, damages it (bytes, structure, declared sizes) and passes it to `diagnose` or
`fit` with odd options, 25 in a process. Required: exit code 0 or 2, at most one
line on stderr when refused, no traceback, no file left but those of a success, and a peak of memory below 2 GB.

    python studies/fuzz.py --seeds 0:500 [--minutes 10]
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyreadstat

from retrace_sde.io.writing import CONTROL_SIGNS

BATCH = 25
"""Files that one process tries: a crash loses no more than these, and memory is measured for each of them."""

SECONDS = 600
"""After so long a file of the batch has hung, also on a busy machine."""

LIMIT_KB = 2_000_000

KINDS = (
    "csv", "tsv", "npz", "array", "parquet", "h5ad", "zarr", "xlsx", "dta", "sav", "xpt",
)  # fmt: skip
ODD_CELLS_IN = ("csv", "tsv", "xlsx")
"""Formats whose cells may be anything."""


def table(rng: np.random.Generator) -> pd.DataFrame:
    n, T, d = (int(each) for each in rng.integers((3, 3, 1), (9, 8, 4)))
    values = rng.standard_normal((n, T, d)).cumsum(axis=1).reshape(-1, d)
    frame = pd.DataFrame(values, columns=[f"x{k}" for k in range(d)])
    frame.insert(0, "subject", np.repeat([f"s{j}" for j in range(n)], T))
    frame.insert(1, "slice", np.tile([f"p{t}" for t in range(T)], n))
    return frame


def odd_cells(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Strange values here and there."""
    odd = [
        np.nan,
        np.inf,
        1e308,
        -1e-320,
        "",
        "NaN",
        "=1+1",
        "\x00",
        "a\nb",
        "😀",
        None,
        "1,5",
        10**30,
        "ﬁ",
        "\ufeff",
    ]
    frame = frame.astype(object)
    for _ in range(int(rng.integers(1, 5))):
        k = int(rng.integers(frame.shape[1]))
        frame.iat[int(rng.integers(len(frame))), k] = odd[int(rng.integers(len(odd)))]
    return frame


def write(frame: pd.DataFrame, kind: str, folder: Path, rng: np.random.Generator) -> Path:
    path = folder / f"t.{'npz' if kind == 'array' else kind}"
    numbers = [name for name in frame.columns if name.startswith("x")]
    if kind in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    elif kind == "npz":
        np.savez_compressed(
            path,
            **{name: frame[name].to_numpy(str if name not in numbers else None) for name in frame},
        )
    elif kind == "array":
        n = frame["subject"].nunique()
        np.savez(path, values=frame[numbers].to_numpy(float).reshape(n, -1, len(numbers)))
    elif kind == "parquet":
        frame.to_parquet(path, compression=["snappy", "gzip", "zstd", None][int(rng.integers(4))])
    elif kind == "xlsx":
        write_workbook(frame, path, rng)
    elif kind == "dta":
        frame.to_stata(path, write_index=False, version=int(rng.choice([114, 117, 118, 119])))
    elif kind == "sav":
        pyreadstat.write_sav(frame, str(path), compress=bool(rng.random() < 0.5))
    elif kind == "xpt":
        pyreadstat.write_xport(frame, str(path), file_format_version=int(rng.choice([5, 8])))
    else:
        import anndata
        from scipy import sparse

        X = frame[numbers].to_numpy(float)
        X = sparse.csr_matrix(X) if rng.random() < 0.5 else X
        obs = frame[["subject", "slice"]].set_index(frame.index.astype(str))
        adata = anndata.AnnData(X, obs=obs, var=pd.DataFrame(index=numbers))
        (adata.write_h5ad if kind == "h5ad" else adata.write_zarr)(path)
    return path


def write_workbook(frame: pd.DataFrame, path: Path, rng: np.random.Generator) -> None:
    """The table, sometimes behind a sheet of notes; signs that a workbook cannot hold are left out."""
    text = frame.map(lambda cell: CONTROL_SIGNS.sub("", cell) if isinstance(cell, str) else cell)
    with pd.ExcelWriter(path, engine="openpyxl") as book:
        if rng.random() < 0.3:
            pd.DataFrame({"note": ["made up"]}).to_excel(book, sheet_name="notes", index=False)
        text.to_excel(book, sheet_name="data", index=False)


def damage(path: Path, rng: np.random.Generator) -> str:
    """One of the ways in which a file goes wrong, and its name."""
    if path.suffix == ".xlsx" and rng.random() < 0.7:  # what an archive's checksums do not see
        return damage_member(path, rng)
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        target = files[int(rng.integers(len(files)))]
        if rng.random() < 0.5:
            target = next(
                (
                    each
                    for each in files
                    if each.name in (".zarray", "zarr.json", ".zmetadata") and rng.random() < 0.3
                ),
                target,
            )
    else:
        target = path
    content, way = damaged(target.read_bytes(), rng)
    target.write_bytes(content)
    return way


def damage_member(path: Path, rng: np.random.Generator) -> str:
    """One file in an archive goes wrong, and the archive is whole."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    sheets = [name for name in members if "worksheets/" in name]
    name = str(rng.choice(sheets if rng.random() < 0.5 else list(members)))
    members[name], way = damaged(members[name], rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in members.items():
            archive.writestr(each, content)
    return f"{way} in {name}"


def damaged(given: bytes, rng: np.random.Generator) -> tuple[bytes, str]:
    """Content with an error, and the error's name."""
    content = bytearray(given)
    way = ["bits", "cut", "zeros", "insert", "repeat", "numbers", "empty", "swap", "none"][
        int(rng.integers(9))
    ]
    size = max(len(content), 1)
    at = int(rng.integers(size))
    if way == "bits":
        for _ in range(int(rng.integers(1, 30))):
            if content:
                content[int(rng.integers(len(content)))] = int(rng.integers(256))
    elif way == "cut":
        del content[at:]
    elif way == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif way == "insert":
        content[at:at] = rng.bytes(int(rng.integers(1, 200)))
    elif way == "repeat":
        content *= int(rng.integers(2, 5))
    elif way == "numbers":  # claims: digits of headers and metadata become large
        for k in [k for k, byte in enumerate(content[:4096]) if 48 <= byte <= 57]:
            if rng.random() < 0.2:
                content[k] = 48 + int(rng.integers(10))
        if rng.random() < 0.5 and b'"shape": [' in content:
            content = bytearray(bytes(content).replace(b'"shape": [', b'"shape": [9999999', 1))
    elif way == "empty":
        content = bytearray()
    elif way == "swap":
        half = len(content) // 2
        content = content[half:] + content[:half]
    return bytes(content), way


def lie(folder: Path, rng: np.random.Generator) -> tuple[Path, str]:
    """A small file that claims a lot."""
    ways = ("npz header", "npz zeros", "csv wide", "csv long", "parquet", "h5", "zarr", "xlsx rows",
            "xlsx text", "dta", "sav")  # fmt: skip
    way = ways[int(rng.integers(len(ways)))]
    big = int(10 ** rng.uniform(4, 9))
    path = folder / f"t.{ {'h5': 'h5ad'}.get(way, way.split()[0]) }"
    if way == "npz header":
        header = io.BytesIO()
        fields = {
            "descr": ["<f8", "|u1", "<U9", "|O"][int(rng.integers(4))],
            "fortran_order": False,
            "shape": (big, 10, 3),
        }
        np.lib.format.write_array_header_1_0(header, fields)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("values.npy", header.getvalue())
    elif way == "npz zeros":
        np.savez_compressed(path, values=np.zeros((min(big, 10**6) // 10, 10, 3), dtype=np.uint8))
    elif way == "csv wide":
        wide = min(big, 20_000)
        path.write_text(
            "subject,slice,"
            + ",".join(f"c{k}" for k in range(wide))
            + "\n"
            + "1,2\n" * int(rng.integers(1, 10**5))
        )
    elif way == "csv long":
        path.write_text("subject,slice,x\n" + "a,b,1\n" * min(big, 10**6))
    elif way == "parquet":
        pd.DataFrame(
            {
                "subject": np.zeros(min(big, 10**5)),
                "slice": "x" * int(rng.integers(1, 10**3)),
                "x": 1.0,
            }
        ).to_parquet(path)
    elif way.startswith("xlsx"):
        lying_workbook(path, way, big, rng)
    elif way in ("dta", "sav"):
        write(table(rng), way, folder, rng)
        content = bytearray(path.read_bytes())
        # The number of rows: of Stata's format 114 four bytes from the seventh, of SPSS' from the 81st.
        at = 6 if way == "dta" else 80
        content[at : at + 4] = min(big, 2**31 - 1).to_bytes(4, "little")
        path.write_bytes(bytes(content))
    elif way == "h5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("X", shape=(big, 100), dtype="f8", chunks=(100, 100))
    else:
        (path / "a").mkdir(parents=True)
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        array = {"zarr_format": 2, "shape": [big], "chunks": [big], "dtype": "<f8", "fill_value": 0, "order": "C",
                 "compressor": None, "filters": None}  # fmt: skip
        (path / "a" / ".zarray").write_text(json.dumps(array))
        (path / "a" / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["subject"]}')
    return path, way


def lying_workbook(path: Path, way: str, big: int, rng: np.random.Generator) -> None:
    """Rows far apart, or one long text that many cells share."""
    pd.DataFrame({"subject": ["a"], "slice": ["b"], "x0": [1.0]}).to_excel(path, index=False)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    sheet = next(name for name in members if "worksheets/" in name)
    if way == "xlsx rows":
        named = rng.random() < 0.5  # cells may have no place of their own
        cell = f'<c r="XFD{big}"><v>1</v></c>' if named else "<c><v>1</v></c>" * min(big, 10**5)
        rows = f'<row r="{big}">{cell}</row>'
    else:
        cell = f'<c t="inlineStr"><is><t>{"x" * min(big, 10**5)}</t></is></c>'
        rows = f"<row>{cell * 3}</row>" * int(rng.integers(1, 200))
    members[sheet] = members[sheet].replace(b"</sheetData>", f"{rows}</sheetData>".encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, content in members.items():
            archive.writestr(each, content)


OPTIONS = (
    [], ["--slice", "slice"], ["--slice", "slice"], ["--slice", "slice"], ["--slice", "nothing"], ["--independent"],
    ["--slice", "slice", "--time", "x0"], ["--slice", "slice", "--time", "x0", "--time-error", "1e-200"],
    ["--slice", "slice", "--time", "x0", "--time-error", "1e300"], ["--slice", "slice", "--dt", "1e-300"],
    ["--slice", "slice", "--dt", "nan"], ["--slice", "slice", "--variables", ""], ["--variables", "x0,x0"],
    ["--slice", "slice", "--covariates", "slice"], ["--slice", "slice", "--sep", ";"], ["--slice", "slice", "--encoding", "rot13"],
)  # fmt: skip


def one(seed: int, folder: Path) -> dict[str, object]:
    """Make a file, try it, and say what was wrong."""
    from click.testing import CliRunner

    from retrace_sde.cli.main import main

    rng = np.random.default_rng(seed)
    warnings.simplefilter("ignore")
    kind = KINDS[seed % len(KINDS)]
    if rng.random() < 0.25:
        path, way = lie(folder, rng)
    else:
        frame = table(rng)
        strange = kind in ODD_CELLS_IN and rng.random() < 0.5
        path = write(odd_cells(frame, rng) if strange else frame, kind, folder, rng)
        way = "cells" if strange and rng.random() < 0.6 else damage(path, rng)
    command = "fit" if rng.random() < 0.1 else "diagnose"
    options = OPTIONS[int(rng.integers(len(OPTIONS)))]
    subject = [] if kind == "array" and rng.random() < 0.8 else ["--subject", "subject"]
    out = ["--out", str(folder / "out")] if command == "fit" else []
    if command == "fit" and "--time" not in options:
        out += ["--estimator", "mle", "--observation-noise", "none"]
    before = {each.name for each in folder.iterdir()}
    begun, made = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = CliRunner().invoke(main, [command, str(path), *subject, *options, *out])
    wrong = []
    if run.exit_code not in (0, 2):
        wrong.append(f"exit code {run.exit_code}: {run.exception!r:.200}")
    if run.exit_code == 2 and (run.stderr.count("\n") != 1 or run.stdout):
        wrong.append(f"said more than one line: {run.stderr!r:.200}")
    if "Traceback" in run.stderr or "Warning:" in run.stderr:
        wrong.append(f"foreign words: {run.stderr!r:.200}")
    left = {each.name for each in folder.iterdir()} - before
    if left - ({"out"} if run.exit_code == 0 else set()):
        wrong.append(f"left behind: {sorted(left)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > max(made, LIMIT_KB):  # more than making the file took
        wrong.append(f"peak of memory {peak // 1000} MB")
    return {"seed": seed, "kind": kind, "way": way, "command": command, "code": run.exit_code, "wrong": wrong, "peak": peak,
            "seconds": time.perf_counter() - begun, "said": run.stderr.strip()[:200]}  # fmt: skip


def batch(begin: int, end: int) -> None:
    """One process: its findings as lines of JSON on stdout."""
    for seed in range(begin, end):
        print(json.dumps({"began": seed}), flush=True)
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        try:
            print(json.dumps(one(seed, folder)), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:500")
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so many")
    parser.add_argument("--batch", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    begin, end = map(int, asked.seeds.split(":"))
    if asked.batch:
        batch(begin, end)
        return 0
    until, found = time.monotonic() + 60 * asked.minutes, []
    seed = begin
    while seed < end and time.monotonic() < until:
        command = [
            sys.executable,
            __file__,
            "--batch",
            "--seeds",
            f"{seed}:{min(seed + BATCH, end)}",
        ]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired as late:
            said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            run = subprocess.CompletedProcess(command, -1, said, "it did not end")
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        done = [line for line in lines if "seed" in line]
        found += done
        if run.returncode:
            lost = max((line["began"] for line in lines if "began" in line), default=seed)
            found.append({"seed": lost, "wrong": [f"the process ended with {run.returncode}: {run.stderr[-300:]}"], "code": run.returncode,
                          "kind": "?", "way": "?", "peak": 0, "seconds": 0.0})  # fmt: skip
            seed = lost + 1
        else:
            if run.stderr:
                found.append({"seed": seed, "wrong": [f"stderr of the process: {run.stderr[-300:]}"], "code": 0, "kind": "?",
                              "way": "?", "peak": 0, "seconds": 0.0})  # fmt: skip
            seed += BATCH
    bad = [each for each in found if each["wrong"]]
    for each in bad:
        print(json.dumps(each))
    codes = Counter(each["code"] for each in found)
    print(f"{len(found)} files, seeds {begin} to {min(seed, end) - 1}; exit codes {dict(codes)}; {len(bad)} wrong; "
          f"peak {max(each['peak'] for each in found) // 1000} MB; slowest {max(each['seconds'] for each in found):.1f} s")  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
