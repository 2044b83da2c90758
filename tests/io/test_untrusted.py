"""Files from strangers: no code of theirs runs, and what they claim to hold is weighed before it is read."""

from __future__ import annotations

import errno
import gzip
import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io import files
from retrace_sde.io.files import read_table
from retrace_sde.io.untrusted import sizes, trial

anndata = pytest.importorskip("anndata")
h5py = pytest.importorskip("h5py")
numcodecs = pytest.importorskip("numcodecs")
pytest.importorskip("zarr")


class Payload:
    """Once unpickled, it has created a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def v2(**changes):
    metadata = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|O", "fill_value": None,
                "order": "C", "compressor": None, "filters": None}  # fmt: skip
    return {**metadata, **changes}


def v3(codecs, data_type="string"):
    return {
        "zarr_format": 3, "node_type": "array", "shape": [3], "data_type": data_type, "codecs": codecs,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}}, "fill_value": "",
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "attributes": {},
        "dimension_names": ["x"],
    }  # fmt: skip


ONE, TWO = {"id": "vlen-utf8"}, {"id": "pickle"}
STORES = {
    "after a harmless filter": {"a/.zarray": v2(filters=[ONE, TWO])},
    "as a filter": {"a/.zarray": v2(filters=[TWO])},
    "as the compressor": {"a/.zarray": v2(filters=[ONE], compressor=TWO)},
    "of numbers": {"a/.zarray": v2(filters=[TWO], dtype="<f8")},
    "in the consolidated metadata only": {
        "a/.zarray": v2(filters=[ONE]),
        ".zmetadata": {
            "zarr_consolidated_format": 1,
            "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": v2(filters=[ONE, TWO])},
        },
    },
    "in the third format": {
        "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {}},
        "a/zarr.json": v3([{"name": "vlen-utf8"}, {"name": "numcodecs.pickle"}]),
    },
    "consolidated in the third format": {
        "zarr.json": {
            "zarr_format": 3,
            "node_type": "group",
            "attributes": {},
            "consolidated_metadata": {
                "kind": "inline",
                "must_understand": False,
                "metadata": {"a": v3([{"name": "numcodecs.pickle"}])},
            },
        },
        "a/zarr.json": v3([{"name": "vlen-utf8"}]),
    },
}


def store(folder: Path, files, chunk: bytes) -> Path:
    files = {".zgroup": {"zarr_format": 2}, "a/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}, **files}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    (folder / "a" / "0").write_bytes(chunk)
    (folder / "a" / "c").mkdir(exist_ok=True)
    (folder / "a" / "c" / "0").write_bytes(chunk)
    return folder


@pytest.fixture
def trusting(monkeypatch):
    """numcodecs as it was before 0.16.6, when a store could have its data unpickled."""
    monkeypatch.setattr("numcodecs.pickles.ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)


def test_the_payload_is_real(tmp_path):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Payload(mark))).close()
    assert mark.exists()


@pytest.mark.parametrize("kind", STORES)
def test_no_store_runs_code(kind, tmp_path, trusting):
    mark = tmp_path / "mark"
    path = store(tmp_path / "x.zarr", STORES[kind], pickle.dumps(Payload(mark)))
    run = CliRunner().invoke(main, ["diagnose", str(path), "--subject", "x"])
    assert not mark.exists()
    assert run.exit_code == 2, (run.output, run.exception)
    assert "codec 'pickle'" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"filters": None}, "Python objects"),
        ({"filters": [{"id": "json2"}]}, "codec 'json2'"),
        ({"filters": [ONE], "compressor": {"id": "lzma"}}, "codec 'lzma'"),
        ({"filters": [{"id": "gzip"}], "compressor": {"id": "gzip"}}, "more than once"),
        ({"dtype": [["a", "|O"]]}, "save numbers or text"),
        ({"shape": "many"}, "damaged"),
        ({"dtype": "<f8", "shape": [-3]}, "damaged"),
        ({"dtype": "<f8", "shape": [10**9]}, "large=True"),
        ({"dtype": "<f8", "chunks": [10**9]}, "large=True"),
    ],
)
def test_stores_that_are_not_read(changes, words, tmp_path):
    path = store(tmp_path / "x.zarr", {"a/.zarray": v2(**changes)}, b"")
    with pytest.raises(ValueError, match=words):
        read_table(path)


def test_a_store_leads_nowhere_else(tmp_path):
    path = store(tmp_path / "x.zarr", {"a/.zarray": v2(dtype="<f8")}, b"")
    (path / "a" / "1").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="link"):
        read_table(path)


def table(rows=6, columns=("s", "p", "a", "b")):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((rows, len(columns))), columns=list(columns))
    return frame.assign(s=np.arange(rows) // 3, p=np.arange(rows) % 3)


def zero_chunk(codec, count):
    return bytes(numcodecs.get_codec({"id": codec}).encode(np.zeros(count)))


def bomb_npz(path):
    np.savez_compressed(path, values=np.zeros((100, 200, 200)))


def bomb_claim(path):
    header = io.BytesIO()
    fields = {"descr": "<f8", "fortran_order": False, "shape": (10**4, 10**4, 10**2)}
    np.lib.format.write_array_header_1_0(header, fields)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("values.npy", header.getvalue())


def bomb_parquet(path):
    pd.DataFrame({"s": np.zeros(10**6), "a": np.zeros(10**6)}).to_parquet(path)


def bomb_text(path):
    pd.DataFrame({"s": ["x" * 10_000] * 10_000, "a": 1.0}).to_parquet(path)


def bomb_sheet(path):
    """One cell in the last corner."""
    book = pytest.importorskip("openpyxl").Workbook()
    book.active["A1"], book.active["XFD1048576"] = "s", 1
    book.save(path)


def bomb_h5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", shape=(10**6, 10**3), dtype="f8", chunks=(100, 100))


def bomb_sparse(path):
    from scipy import sparse

    anndata.AnnData(sparse.csr_matrix((3000, 3000))).write_h5ad(path)


def bomb_csv(path):
    path.write_text(",".join(f"c{k}" for k in range(2000)) + "\n" + "1\n" * 20_000)


def bomb_xarray(path):
    import xarray

    axes = {f"d{k}": np.zeros(200) for k in range(4)}
    variables = {f"v{k}": ((name,), values) for k, (name, values) in enumerate(axes.items())}
    xarray.Dataset(variables).to_zarr(path)


def of_codec(codec):
    def bomb(path):
        array = v2(dtype="<f8", compressor={"id": codec})
        store(path, {"a/.zarray": array}, zero_chunk(codec, 10**6))

    return bomb


def bomb_members(path):
    """The second of two gzip members, which a look at the first alone would miss."""
    array = v2(dtype="<f8", compressor={"id": "gzip"})
    store(path, {"a/.zarray": array}, gzip.compress(b"") + gzip.compress(bytes(10**7)))


BOMBS = {
    "npz": (".npz", bomb_npz),
    "npz that claims": (".npz", bomb_claim),
    "parquet": (".parquet", bomb_parquet),
    "text of parquet": (".parquet", bomb_text),
    "xlsx": (".xlsx", bomb_sheet),
    "h5ad": (".h5ad", bomb_h5),
    "sparse h5ad": (".h5ad", bomb_sparse),
    "csv of short lines": (".csv", bomb_csv),
    "axes of xarray": (".zarr", bomb_xarray),
    **{f"zarr by {each}": (".zarr", of_codec(each)) for each in ("blosc", "zstd", "gzip", "zlib", "lz4")},
    "zarr by two gzip members": (".zarr", bomb_members),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of the writers
@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_would_fill_the_memory_is_not_read(kind, tmp_path, monkeypatch):
    """With a budget of 4 MiB, so that the bombs stay small."""
    suffix, bomb = BOMBS[kind]
    path = tmp_path / f"t{suffix}"
    bomb(path)
    monkeypatch.setattr(sizes, "ALWAYS_ALLOWED_BYTES", 1 << 22)
    monkeypatch.setattr(sizes, "MAX_EXPANSION", 1)
    with pytest.raises(ValueError, match="large=True"):
        read_table(path)


@pytest.mark.filterwarnings("ignore")  # of the writers
@pytest.mark.parametrize("kind", [".csv", ".npz", ".parquet"])
def test_what_a_user_knows_to_be_large_is_read(kind, tmp_path, monkeypatch):
    path = tmp_path / f"t{kind}"
    frame = table(3000)
    if kind == ".csv":
        frame.to_csv(path, index=False)
    elif kind == ".npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame})
    else:
        frame.to_parquet(path)
    monkeypatch.setattr(sizes, "ALWAYS_ALLOWED_BYTES", 1000)
    monkeypatch.setattr(sizes, "MAX_EXPANSION", 0)
    with pytest.raises(ValueError, match="large=True"):
        read_table(path)
    assert len(read_table(path, large=True)) == 3000


def test_ordinary_files_of_all_formats_are_far_from_their_budget():
    """Numbers written in full, as random ones are: a tenth of what is allowed."""
    n = 10**6
    for per_number in (4, 8, 18):  # float32, float64, text
        size = 5 * n * per_number
        budget = sizes.Budget.of(size)
        before = budget.left
        budget.take(size)
        budget.take_table(n, 5)
        assert budget.left > 0.3 * before


def test_one_megabyte_never_takes_two_gigabytes(tmp_path):
    """A npz of 1 MB that claims 1 GB of zeros, and used to peak at 5 GB."""
    path = tmp_path / "t.npz"
    np.savez_compressed(path, values=np.zeros((1000, 500, 250)))
    assert path.stat().st_size < 1_200_000
    command = [sys.executable, "-m", "retrace_sde", "diagnose", str(path)]
    # Asked of the process alone: what other tests started may have taken more.
    peak = "import os, sys; _, code, used = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0); print(used.ru_maxrss); sys.exit(os.waitstatus_to_exitcode(code))"
    run = subprocess.run([sys.executable, "-c", peak, *command], capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert int(run.stdout.splitlines()[-1]) < 2 * 10**6  # kB


@pytest.mark.filterwarnings("ignore")  # of the writer
@pytest.mark.parametrize(("kind", "index"), [("csr", 10**6), ("csc", -5)])
def test_sparse_indices_out_of_range_are_refused(kind, index, tmp_path):
    """They would be written to, or read from, any place in memory."""
    from scipy import sparse

    X = sparse.random(12, 5, density=0.5, format=kind, random_state=0)
    adata = anndata.AnnData(X, obs=pd.DataFrame({"s": np.arange(12) // 4}, index=[f"r{k}" for k in range(12)]))  # fmt: skip
    adata.write_h5ad(tmp_path / "t.h5ad")
    with h5py.File(tmp_path / "t.h5ad", "r+") as file:
        file["X/indices"][3] = index
    with pytest.raises(ValueError, match="damaged"):
        read_table(tmp_path / "t.h5ad")
    adata.X.indices[3] = index
    with pytest.raises(ValueError, match="damaged"):
        rt.anndata.panel(adata, subject="s")


def test_h5ad_does_not_reach_into_other_files(tmp_path):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.ones(3)
    for name, make in {
        "link": lambda file: file.__setitem__("X", h5py.ExternalLink(str(other), "/secret")),
        "soft": lambda file: file.__setitem__("X", h5py.SoftLink("/obs")),
        "raw": lambda file: file.create_dataset("X", (3,), "f8", external=[(str(other), 0, 24)]),
        "loop": lambda file: file.create_group("X").__setitem__("again", file["X"]),
    }.items():
        path = tmp_path / f"{name}.h5ad"
        with h5py.File(path, "w") as file:
            make(file)
        with pytest.raises(ValueError, match=r"not followed|not read"):
            read_table(path)


@pytest.fixture(params=["a fork", "a new interpreter"])
def reader(request, monkeypatch):
    """Both ways in which files are read apart: forks where this is the only thread, which the tests pretend."""
    fork = request.param == "a fork"
    monkeypatch.setattr(trial, "forkable", lambda: fork)
    if fork and sys.platform != "linux":
        pytest.skip("no forks here")
    return request.param


@pytest.mark.parametrize(
    ("reading", "said"),
    [("import os; os.abort()", "crash"), ("while True: pass", "did not end in 2 s")],
)
def test_what_a_damaged_file_does_to_its_library_is_not_done_to_us(
    tmp_path, monkeypatch, reading, said, reader
):
    path = tmp_path / "t.npz"
    np.savez(path, a=np.zeros(3))

    def read(**job):
        exec(reading)

    monkeypatch.setattr(files, "read_untrusted", read)
    monkeypatch.setattr(trial, "READ_SCRIPT", reading)
    monkeypatch.setattr(trial, "MAX_SECONDS", 2.0)
    with pytest.raises(ValueError, match=said):
        read_table(path)


@pytest.mark.parametrize("spent", [MemoryError(), OSError(errno.ENOMEM, "cannot allocate")])
def test_memory_that_ran_out_is_told_as_such_wherever_the_limit_was_met(spent):
    """A library that is imported while the table is read may be refused its folder before anything asks for memory."""

    def read(**job):
        raise spent

    class Kept(io.BytesIO):
        def close(self):
            self.said = self.getvalue()

    out = Kept()
    trial.answer(out, read, budget=1e9)
    assert pickle.loads(out.said) == ("memory", None)


@pytest.mark.filterwarnings("ignore")  # of the writers
def test_a_table_comes_through_either_process_as_it_is(tmp_path, reader):
    frame = table().assign(
        day=pd.Timestamp("2024-05-01").as_unit("ns"),
        kind=pd.Categorical(list("ababab")),
        word="é\r\n",
    )
    frame.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), frame)
    (tmp_path / "hurt.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"hurt\.parquet"):
        read_table(tmp_path / "hurt.parquet")


def sheet(rows, *, encoding="UTF-8", place="xl/worksheets/sheet1.xml"):
    """A writer of workbooks with one sheet of this XML, where other readers would not look for it."""

    def write(path):
        book = pytest.importorskip("openpyxl").Workbook()
        book.active["A1"] = "s"
        plain = io.BytesIO()
        book.save(plain)
        name = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
        text = f'<?xml version="1.0" encoding="{encoding}"?><worksheet xmlns="{name}"><sheetData>{rows}</sheetData></worksheet>'
        usual = "xl/worksheets/sheet1.xml"
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for each in old.namelist():
                content = old.read(each).replace(usual.encode(), place.encode())
                new.writestr(place if each == usual else each,
                             text.encode(encoding) if each == usual else content)  # fmt: skip

    return write


HEADER = '<row r="1">' + '<c t="str"><v>a</v></c>' * 400 + "</row>"
FAR = '<row r="{row}"><c{r} t="n"><v>1</v></c></row>'
XLSX_BOMBS = {
    "cells without r": HEADER + FAR.format(row=1_000_000, r=""),
    "rows that jump": HEADER + "".join(FAR.format(row=k * 40_000 + 1, r="") for k in range(1, 26)),
    "entities in r": HEADER + FAR.format(row="&#49;000000", r=' r="&#65;&#49;000000"'),
    "one long row": '<row r="1">' + "<c/>" * 30_000_000 + "</row>",
}


def nested(kind):
    """A value of a megabyte, stored once, that 4000 rows repeat."""

    def write(path):
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        value, n = b"x" * 2**20, 50
        small = {
            "fixed": lambda: pa.array([value], pa.binary(len(value))),
            "list": lambda: pa.array([[value.decode()]], pa.list_(pa.string())),
            "struct": lambda: pa.array([{"k": value.decode()}]),
        }[kind]()  # fmt: skip
        schema = pa.schema([("s", pa.int64()), ("v", small.type)])
        with pq.ParquetWriter(
            path, schema, compression="zstd", use_dictionary=True, data_page_size=1 << 30
        ) as out:
            rows = pa.table(
                {"s": pa.array(range(n)), "v": pa.chunked_array([small] * n)}, schema=schema
            )
            for _ in range(80):  # a group at a time, so that writing takes little
                out.write_table(rows)

    return write


MADE_BOMBS = {
    **{f"xlsx: {name}": (".xlsx", sheet(rows)) for name, rows in XLSX_BOMBS.items()},
    "xlsx: in UTF-16": (".xlsx", sheet(XLSX_BOMBS["cells without r"], encoding="UTF-16")),
    "xlsx: elsewhere": (".xlsx", sheet(XLSX_BOMBS["cells without r"], place="xl/other/s.xml")),
    **{f"parquet: {kind}": (".parquet", nested(kind)) for kind in ("fixed", "list", "struct")},
}

MEASURED = """
import resource, runpy, sys
sys.argv = ["retrace", *sys.argv[1:]]
try:
    runpy.run_module("retrace_sde", run_name="__main__")
finally:
    own = next(each for each in open("/proc/self/status") if each.startswith("VmHWM"))
    print(max(int(own.split()[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces a limit on memory")
@pytest.mark.parametrize("kind", MADE_BOMBS)
def test_what_a_file_makes_while_it_is_read_is_bounded(kind, tmp_path):
    """At most a gigabyte over its size, whatever it claims."""
    suffix, write = MADE_BOMBS[kind]
    path = tmp_path / f"t{suffix}"
    write(path)
    assert path.stat().st_size < 1_000_000
    command = [sys.executable, "-c", MEASURED, "diagnose", str(path), "--subject", "s"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2, (run.stdout, run.stderr)
    assert run.stderr.count("\n") == 1
    assert "--large" in run.stderr
    assert 1024 * int(run.stdout) < 10**9 + path.stat().st_size
