"""Files that cannot be used: exit code 2, one line that helps, and nothing written."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.io.files import whole_or_nothing

HEADER = "subject,slice,a,b\n"


def good(subjects: int = 6, slices: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((subjects, slices, 2)).cumsum(axis=1).reshape(-1, 2)
    table = pd.DataFrame(walk, columns=["a", "b"])
    table.insert(0, "subject", np.repeat([f"s{j}" for j in range(subjects)], slices))
    table.insert(1, "slice", np.tile([f"p{t}" for t in range(slices)], subjects))
    return table


def text(**changes) -> bytes:
    return good().assign(**changes).to_csv(index=False).encode()


def with_cell(column: str, value, row: int = 7) -> bytes:
    table = good().astype({column: object})
    table.loc[row, column] = value
    return table.to_csv(index=False).encode()


def parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer)
    return buffer.getvalue()


def npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def claims(*shape: int) -> bytes:
    """An npz file of a few bytes whose header claims a large array."""
    header, buffer = io.BytesIO(), io.BytesIO()
    fields = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("values.npy", header.getvalue())
    return buffer.getvalue()


def strange() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("notes.txt", "hello")
    return buffer.getvalue()


CASES = {
    "empty": ("t.csv", b"", "is empty"),
    "only blank lines": ("t.csv", b"\n\n\n", "no table"),
    "header only": ("t.csv", HEADER.encode(), "no rows"),
    "no such column": ("t.csv", text().replace(b"subject", b"patient"), "has no column 'subject'"),
    "no such slice": ("t.csv", text().replace(b"slice", b"slices"), "Did you mean 'slices'"),
    "mixed types": ("t.csv", with_cell("a", "high"), "'high' in row 8"),
    "text column": ("t.csv", text(a="x", b="y"), "no numeric column"),
    "duplicate rows": ("t.csv", text() + text().splitlines(keepends=True)[1], "'s0'"),
    "duplicate columns": ("t.csv", text().replace(b"slice,a,b", b"slice,a,a"), "named 'a'"),
    "infinite": ("t.csv", with_cell("b", "inf"), "infinite values in column 'b' (row 8)"),
    "infinite columns": ("t.csv", text(a=np.inf, b=np.inf), "in column 'a' (row 1), 'b' (row 1)"),
    "huge numbers": ("t.csv", with_cell("b", "1e200"), "too large"),
    "integer beyond 64 bits": ("t.csv", with_cell("b", "9" * 400), "in row 8"),
    "empty subject": ("t.csv", with_cell("subject", None), "is empty in 1 rows"),
    "empty slice": ("t.csv", with_cell("slice", None), "row 8"),
    "all constant": ("t.csv", text(a=1.0, b=2.0), "no numeric column that changes"),
    "constant within subjects": ("t.csv", text(a=np.repeat(np.arange(6.0), 5), b=1), "no numeric column"),
    "dependent variables": ("t.csv", text(b=2 * good()["a"] + 1), "linearly dependent"),
    "two slices": ("t.csv", good(6, 2).to_csv(index=False).encode(), "at least 3 slices"),
    "one subject": ("t.csv", good(1, 20).to_csv(index=False).encode(), "one subject, 's0'"),
    "too few rows": ("t.csv", good(2, 3).to_csv(index=False).encode(), "transitions"),
    "one column": ("t.csv", b"subject\n1\n2\n", "only one column"),
    "binary": ("t.csv", bytes(range(256)) * 4, "UTF-8"),
    "zero bytes": ("t.csv", b"a\0b,c\n1,2\n", "zero bytes"),
    "ragged lines": ("t.csv", text() + b"s9,p9,1,2,3,4\n", "t.csv"),
    "truncated parquet": ("t.parquet", parquet(good())[:-200], "t.parquet"),
    "parquet that is csv": ("t.parquet", text(), "t.parquet"),
    "parquet without rows": ("t.parquet", parquet(good().iloc[:0]), "no rows"),
    "pickle inside npz": ("t.npz", npz(values=np.array([{"a": 1}, None])), "Python objects"),
    "truncated npz": ("t.npz", npz(values=np.zeros((5, 5, 2)))[:-80], "not an npz file"),
    "npz of matrices": ("t.npz", npz(a=np.zeros((4, 4)), b=np.zeros(3)), "a (4, 4)"),
    "npz that claims too much": ("t.npz", claims(10**6, 10**6, 10**3), "--large"),
    "npz without its data": ("t.npz", claims(10, 10, 10), "t.npz"),
    "npz of something else": ("t.npz", strange(), "not an array"),
    "npz whose names do not fit": ("t.npz", npz(X=np.zeros((4, 5, 2)), names=["a"]), "1 names"),
    "h5ad that is text": ("t.h5ad", b"not hdf5", "t.h5ad"),
    "zarr that is a file": ("t.zarr", b"x", "is a file"),
    "unknown extension": ("t.doc", b"x", "'.doc'"),
    "no extension": ("table", text(), "no extension"),
}  # fmt: skip


def refused(arguments: list[str]) -> str:
    run = CliRunner().invoke(main, arguments)
    assert run.exit_code == 2, (run.output, run.exception)
    assert run.stdout == ""
    lines = run.stderr.splitlines()
    assert len(lines) == 1, run.stderr
    assert len(lines[0]) < 420
    return lines[0]


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(case, tmp_path):
    name, content, hint = CASES[case]
    file, out = tmp_path / name, tmp_path / "out"
    file.write_bytes(content)
    line = refused(
        ["fit", str(file), "--subject", "subject", "--slice", "slice", "--out", str(out)]
    )
    assert hint in line
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("case", ["header only", "mixed types", "duplicate rows", "empty subject"])
def test_diagnose_refuses_them_too(case, tmp_path):
    name, content, hint = CASES[case]
    (tmp_path / name).write_bytes(content)
    columns = ["--subject", "subject", "--slice", "slice"]
    assert hint in refused(["diagnose", str(tmp_path / name), *columns])


def test_wrong_places_and_wrong_options(tmp_path):
    file = tmp_path / "t.csv"
    file.write_bytes(text())
    fit = ["fit", str(file), "--subject", "subject"]
    assert "does not exist" in refused(["fit", str(tmp_path / "no.csv"), "--subject", "s"])
    (tmp_path / "d.csv").mkdir()
    assert "is a folder" in refused(["fit", str(tmp_path / "d.csv"), "--subject", "s"])
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zeros.csv").symlink_to("/dev/zero")
    for endless in ("pipe.csv", "zeros.csv"):
        assert "pipe or a device" in refused(["fit", str(tmp_path / endless), "--subject", "s"])
    assert "--subject is missing" in refused(["fit", str(file)])
    assert "exclude each other" in refused([*fit, "--slice", "slice", "--independent"])
    assert "two roles" in refused([*fit, "--slice", "subject"])
    assert "dt must be a positive number" in refused([*fit, "--slice", "slice", "--dt", "-1"])
    assert "name a folder" in refused([*fit, "--slice", "slice", "--out", str(file)])
    assert "needs a time column" in refused([*fit, "--slice", "slice", "--time-error", "1"])
    assert "'estimate'" in refused([*fit, "--slice", "slice", "--observation-noise", "much"])
    assert "not a valid" in refused([*fit, "--seed", "x"])
    assert "must end in" in refused(["simulate", "--out", str(tmp_path / "x.xls")])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d.csv",
        "pipe.csv",
        "t.csv",
        "zeros.csv",
    ]


def test_a_failure_leaves_an_existing_folder_as_it_was(tmp_path, monkeypatch):
    """The disk fills up while results are written: what was there before is still whole."""
    file, out = tmp_path / "t.csv", tmp_path / "out"
    file.write_bytes(text())
    names = ["ordered.csv", "parameters.json", "report.html", "result.npz"]
    with whole_or_nothing(out) as folder:
        for name in names:
            (folder / name).write_text("mine")
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def fail(*arguments, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr("retrace_sde.recovery.Recovery.report", fail)
    roles = ["--subject", "subject", "--slice", "slice"]
    line = refused(["fit", str(file), *roles, "--out", str(out), "--force"])
    assert "No space left" in line
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
