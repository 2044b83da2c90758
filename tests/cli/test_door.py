"""One door for foreign errors: damaged files, absurd options, outputs that are closed or lack signs, and Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    columns = {"s": np.repeat(np.arange(8), 5), "p": np.tile(list("vwxyz"), 8)}
    walks = rng.standard_normal((8, 5, 2)).cumsum(axis=1).reshape(-1, 2)
    return pd.DataFrame({**columns, "a": walks[:, 0], "b": walks[:, 1]})


@pytest.fixture(scope="module")
def file(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("door") / "t.csv"
    frame.to_csv(path, index=False)
    return path


def refused(*arguments):
    run = CliRunner().invoke(main, [str(each) for each in arguments])
    assert run.exit_code == 2, (run.output, run.exception)
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    return run.stderr


def stores(folder: Path, kind: str, frame: pd.DataFrame) -> Path:
    path = folder / f"t.{kind}"
    if kind == "parquet":
        frame.to_parquet(path)
    elif kind == "npz":
        np.savez_compressed(path, **{name: frame[name].to_numpy(str if name == "p" else None) for name in frame})  # fmt: skip
    else:
        anndata = pytest.importorskip("anndata")
        obs = frame[["s", "p"]].astype(str).set_index(frame.index.astype(str))
        adata = anndata.AnnData(frame[["a", "b"]].to_numpy(), obs=obs)
        (adata.write_h5ad if kind == "h5ad" else adata.write_zarr)(path)
    return path


@pytest.mark.filterwarnings("ignore")  # of the writers
@pytest.mark.parametrize(
    ("kind", "files"),
    [
        *((kind, 6) for kind in ("parquet", "npz", "zarr")),
        ("h5ad", 4),
        # each is read by a new process
        *(
            pytest.param(kind, 25, marks=pytest.mark.statistics)
            for kind in ("parquet", "npz", "zarr", "h5ad")
        ),
    ],
)
def test_damaged_files_are_refused_in_a_line_or_read(kind, files, frame, tmp_path):
    """A change in what nobody looks at may leave them readable."""
    path = stores(tmp_path, kind, frame)
    parts = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    rng = np.random.default_rng(1)
    for _ in range(files):
        part = parts[int(rng.integers(len(parts)))]
        whole = part.read_bytes()
        hurt = bytearray(whole[: int(rng.integers(1, len(whole) + 1))] if rng.random() < 0.3 else whole)  # fmt: skip
        for k in rng.integers(0, len(hurt), size=8):
            hurt[k] = int(rng.integers(256))
        part.write_bytes(hurt)
        run = CliRunner().invoke(main, ["diagnose", str(path), "--subject", "s", "--slice", "p"])
        part.write_bytes(whole)
        assert run.exit_code in (0, 2), (run.exception, run.exc_info)
        assert run.stderr.count("\n") == (run.exit_code == 2)


@pytest.mark.parametrize("cell", [[1, 2], {"k": 1}, [[1], [2]]], ids=["list", "struct", "nested"])
def test_cells_that_hold_several_values(cell, frame, tmp_path):
    path = tmp_path / "t.parquet"
    odd = frame.assign(odd=[cell] * len(frame))
    odd.to_parquet(path)
    columns = ("--subject", "s", "--slice", "p")
    assert CliRunner().invoke(main, ["diagnose", str(path), *columns]).exit_code == 0
    for wrong in (("--subject", "odd"), ("--subject", "s", "--slice", "odd"),
                  (*columns, "--variables", "a,odd"), (*columns, "--time", "odd")):  # fmt: skip
        assert "'odd' holds lists or records" in refused("diagnose", path, *wrong)


ABSURD = [
    (["fit", "--out", ""], "no place"),
    (["fit", "--out", "."], "no place"),
    (["fit", "--out", "/"], "no place"),
    (["fit", "--seed", "-1"], "--seed"),
    (["fit", "--dt", "nan"], "finite"),
    (["fit", "--dt", "inf"], "finite"),
    (["fit", "--dt", "0"], "dt"),
    (["fit", "--time", "a", "--time-error", "nan"], "finite"),
    (["fit", "--time", "a", "--time-error", "-1"], "--time-error"),
    (["fit", "--observation-noise", "nan"], "--observation-noise is a standard deviation"),
    (["fit", "--observation-noise", "inf"], "--observation-noise is a standard deviation"),
    (["fit", "--schedule", "nan,1,2,3,4"], "schedule"),
    (["fit", "--variables", "nothing"], "nothing"),
    (["fit", "--bootstrap", "1"], "bootstrap"),
    (["effect", "--treatment", "b", "--out", ""], "no place"),
    (["effect", "--treatment", "b", "--out", "."], "no place"),
    (["effect", "--treatment", "b", "--horizon", "nan"], "finite"),
    (["effect", "--treatment", "b", "--dt", "-1"], "--dt"),
]


@pytest.mark.parametrize(("options", "words"), ABSURD, ids=[" ".join(each[0]) for each in ABSURD])
def test_absurd_options_are_refused(options, words, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *rest = options
    line = refused(command, file, "--subject", "s", "--slice", "p", *rest)
    assert any(word in line for word in words.split("|")), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--out", ""], ["--out", "."], ["--out", "/"], ["--out", "t.csv", "--seed", "-1"],
                                     ["--out", "t.csv", "--noise", "nan"], ["--out", "t.csv", "--dt", "inf"],
                                     ["--out", "t.csv", "--missing", "nan"]])  # fmt: skip
def test_absurd_options_of_simulate(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("simulate", *options)
    assert list(tmp_path.iterdir()) == []
    for command in (["demo"], ["reproduce", "table1"]):
        assert "no place" in refused(*command, "--out", "/")


def command(*arguments):
    return [sys.executable, "-m", "retrace_sde", *map(str, arguments)]


@pytest.mark.parametrize("encoding", ["cp1252"])
def test_an_output_without_arrows_gets_the_nearest_signs(encoding, file, tmp_path):
    """Windows' own alphabets: the run used to end in a traceback after all work was done."""
    given = command("fit", file, "--subject", "s", "--slice", "p", "--estimator", "mle", "--out", tmp_path / "o")  # fmt: skip
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    run = subprocess.run(given, capture_output=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stderr == b""
    assert b" -> " in run.stdout
    run.stdout.decode(encoding)


@pytest.mark.skipif(os.name == "nt", reason="closes a descriptor by a shell")
def test_outputs_that_are_closed(file):
    given = " ".join(command("diagnose", file, "--subject", "s", "--slice", "p"))
    for closed, code, said in ((">&-", 2, True), ("2>&-", 0, False), (">&- 2>&-", 2, False)):
        run = subprocess.run(["bash", "-c", f"{given} {closed}"], capture_output=True, text=True)
        assert run.returncode == code, (closed, run.stderr)
        assert ("the output is closed" in run.stderr) == said
        assert "Traceback" not in run.stderr


INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["retrace", "diagnose", {file!r}, "--subject", "s"]
from retrace_sde.cli.entry import run
run()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    "name", ["retrace_sde.cli.main", "click", "pandas", "retrace_sde.diagnosis"]
)
def test_ctrl_c_while_modules_are_imported(name, file, heeding):
    script = INTERRUPTED.format(name=name, file=str(file))
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, preexec_fn=heeding
    )
    assert run.returncode == 130, run.stderr
    assert run.stderr.strip() == "retrace: stopped."  # click ends the line with ^C first


def test_the_shortest_panel_has_a_report(tmp_path):
    """Three slices leave two steps and no lag between them; found by studies/fuzz.py."""
    x = np.random.default_rng(0).standard_normal((8, 3)).cumsum(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(estimator="mle").fit(x[:, :, None])
    assert model.residuals_.autocorrelations.shape == (0, 1)
    assert rt.write_report(model, x[:, :, None], tmp_path / "r.html").exists()


def test_messages_name_slices_by_their_labels(frame):
    same = frame.copy()
    same.loc[same["p"] == "y", ["a", "b"]] = same.loc[same["p"] == "v", ["a", "b"]].to_numpy()
    with pytest.raises(ValueError, match="slices 'v', 'y' are identical"):
        rt.recover(same, subject="s", slice="p")
    empty = frame.copy()
    empty.loc[(empty["p"] == "y") & (empty["s"] > 0), ["a", "b"]] = np.nan
    empty.loc[(empty["p"] == "y") & (empty["s"] == 0), "b"] = np.nan
    with pytest.raises(ValueError, match="slice 'y' has 1 observed value;"):
        rt.recover(empty, subject="s", slice="p")
    contradictory = {
        "'v' before 'w' before 'v'": rt.Knowledge(precedences=[("v", "w"), ("w", "v")]),
        "'v'.* and 'z'": rt.Knowledge(positions={"v": 0, "z": 0}),
        "'z' cannot stand|'z'": rt.Knowledge(first="z", last="z"),
    }
    for words, knowledge in contradictory.items():
        with pytest.raises(ValueError, match=words):
            rt.recover(frame, subject="s", slice="p", knowledge=knowledge)


def test_effect_says_which_options_it_does_not_use(tmp_path):
    rng = np.random.default_rng(0)
    n, T = 20, 6
    u = rng.integers(0, 2, (n, T)).astype(float)
    x = [rng.normal(size=n)]
    for t in range(T - 1):
        x.append(0.8 * x[-1] + u[:, t] + 0.1 * rng.normal(size=n))
    pd.DataFrame({"id": np.repeat(np.arange(n), T), "x": np.stack(x, 1).ravel(), "dose": u.ravel(),
                  "age": np.repeat(rng.normal(size=n), T), "day": np.tile(np.arange(T), n)}).to_csv(
        tmp_path / "t.csv", index=False)  # fmt: skip
    asked = ["effect", str(tmp_path / "t.csv"), "--subject", "id", "--variables", "x", "--treatment", "dose",
             "--time", "day", "--drift", "affine", "--subjects", "alike", "--draws", "20"]  # fmt: skip
    assert "Not used" not in CliRunner().invoke(main, asked).output
    more = ["--covariates", "age", "--time-error", "1", "--both-directions"]
    text = CliRunner().invoke(main, [*asked, *more]).output
    line = next(line for line in text.splitlines() if "Not used" in line)
    for name in ("--covariates", "--time-error", "--both-directions"):
        assert name in line
