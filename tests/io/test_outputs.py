"""What commands write: never over the input or a file of somebody else's, whole or not at all, whoever interrupts."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io.files import replacing, whole_or_nothing
from retrace_sde.io.writing import (
    RECORD_FILE,
    check_outputs,
    defused,
    is_ours,
    write_table,
    written,
)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(folder, **contents):
    with whole_or_nothing(folder) as work:
        for name, content in contents.items():
            (work / name).write_text(content)


@pytest.fixture
def results(tmp_path):
    put(tmp_path / "out", a="one", b="two")
    return tmp_path / "out"


def test_what_was_written_is_known_as_ours_until_it_is_changed(results):
    assert sorted(written(results)) == ["a", "b"]
    assert is_ours(results / "a")
    (results / "a").write_text("edited")
    assert not is_ours(results / "a")
    with pytest.raises(ValueError, match="changed since"):
        check_outputs([results / "a"], force=True)
    with pytest.raises(ValueError, match="--force"):
        check_outputs([results / "b"])
    assert check_outputs([results / "b"], force=True)
    assert not check_outputs([results / "c"])


@pytest.mark.parametrize("content", ["", "[]", "{", '{"files": {"a": "x"}}', '{"made_by": "me"}'])
def test_a_record_that_is_not_ours_makes_nothing_ours(content, results):
    (results / RECORD_FILE).write_text(content)
    assert not is_ours(results / "a")
    with pytest.raises(ValueError, match="not written by retrace"):
        check_outputs([results / "new"], force=True)
    before = files(results)
    with pytest.raises(ValueError, match="not written by retrace"):
        put(results, a="three")
    assert files(results) == before


def test_the_input_is_never_an_output_by_whatever_name(results, tmp_path):
    source = results / "a"
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    for name in (source, tmp_path / "link", tmp_path / "hard"):
        with pytest.raises(ValueError, match="replace the input"):
            check_outputs([name], source=source, force=True)
    with pytest.raises(ValueError, match="replace the input"):
        check_outputs([results / "new"], source=results, force=True)


def test_a_link_is_never_ours_and_never_followed(results, tmp_path):
    target = tmp_path / "precious"
    target.write_bytes((results / "a").read_bytes())
    (results / "a").unlink()
    (results / "a").symlink_to(target)
    with pytest.raises(ValueError, match="not written by retrace"):
        put(results, a="three")
    (results / "a").unlink()
    (results / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not written by retrace"):
        put(results, a="three")
    assert target.read_text() == "one"
    assert not (tmp_path / "nowhere").exists()


def test_files_that_appear_meanwhile_stay(tmp_path):
    out = tmp_path / "out"
    put(out, z="first")
    work = whole_or_nothing(out)
    (work.__enter__() / "a").write_text("ours")
    (out / "a").write_text("theirs")
    with pytest.raises(ValueError, match="not written by retrace"):
        work.__exit__(None, None, None)
    assert (out / "a").read_text() == "theirs"
    assert sorted(files(out)) == [RECORD_FILE, "a", "z"]


def test_where_one_file_cannot_be_moved_none_is(results, monkeypatch):
    before, plain = files(results), Path.replace

    def fails(self, target):
        if self.name == "b" and target.parent == results and self.parent.name != "before":
            raise KeyboardInterrupt
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        put(results, a="three", b="four", c="five")
    assert files(results) == before


@pytest.fixture(scope="module")
def fitted():
    X = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 6, 0.1, x0=0.3, random_state=1)  # fmt: skip
    return rt.ReTrace(dt=0.1).fit(X), X


def test_threads_saving_to_one_path_leave_one_whole_file(fitted, tmp_path):
    """A review's figures for one temporary name: 34 of 180 saves failed, 128 loads were corrupt."""
    model, _ = fitted
    path, errors = tmp_path / "r.npz", []
    model.result_.save(path)

    def work():
        try:
            for _ in range(20):
                model.result_.save(path)
                rt.ReTraceResult.load(path)
        except Exception as error:  # to be shown by the test, not by the thread
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    assert sorted(files(tmp_path)) == ["r.npz"]


def test_no_link_at_a_temporary_name_is_followed(fitted, tmp_path, monkeypatch):
    model, X = fitted
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("r.npz.partial", "r.html.partial"):  # the names of former versions
        (tmp_path / name).symlink_to(precious)
    model.result_.save(tmp_path / "r.npz")
    rt.write_report(model, X, tmp_path / "r.html")
    assert precious.read_text() == "mine"
    monkeypatch.setattr("retrace_sde.io.files._unique", lambda: "r.npz.partial")
    with pytest.raises(FileExistsError):
        model.result_.save(tmp_path / "r.npz")
    assert precious.read_text() == "mine"


def test_permissions_are_those_of_any_file(tmp_path):
    (tmp_path / "plain").write_text("")
    with replacing(tmp_path / "ours") as file:
        file.write(b"x")
    (tmp_path / "folder").mkdir()
    put(tmp_path / "results", a="x")
    for one, two in (("plain", "ours"), ("folder", "results"), ("plain", "results/a")):
        assert (tmp_path / one).stat().st_mode == (tmp_path / two).stat().st_mode


def refused(*arguments):
    run = CliRunner().invoke(main, [str(each) for each in arguments])
    assert run.exit_code == 2, (run.output, run.exception)
    assert run.stderr.count("\n") == 1
    return run.stderr


def visits():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 6)).cumsum(axis=1)
    frame = {"id": np.repeat(np.arange(20), 6), "x": x.ravel(), "day": np.tile(np.arange(6), 20)}
    return pd.DataFrame({**frame, "dose": rng.integers(0, 2, 120)})


def test_no_command_replaces_its_input_or_a_foreign_file(tmp_path):
    visits().to_csv(tmp_path / "mine.csv", index=False)
    for name in ("ordered.csv", "report.html", "notes.csv"):
        (tmp_path / name).write_text("precious")
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "index.html").write_text("precious")
    before = files(tmp_path / "demo") | {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    }
    table, roles = tmp_path / "mine.csv", ("--subject", "id", "--variables", "x")
    effect = ("effect", table, *roles, "--treatment", "dose", "--time", "day", "--drift", "affine")
    for force in ((), ("--force",)):
        assert "replace the input" in refused(*effect, "--out", table, *force)
        assert "not written by" in refused(*effect, "--out", tmp_path / "notes.csv", *force)
        assert "not written by" in refused("fit", table, *roles, "--out", tmp_path, *force)
        assert "not written by" in refused("simulate", "--out", table, *force)
        assert "not written by" in refused("simulate", "--out", tmp_path / "notes.csv", *force)
    (tmp_path / "new.csv.truth.json").write_text("precious")
    assert "not written by" in refused("simulate", "--out", tmp_path / "new.csv")
    (tmp_path / "new.csv.truth.json").unlink()
    assert before == files(tmp_path / "demo") | {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    }


def test_force_replaces_what_simulate_and_effect_wrote(tmp_path):
    table = tmp_path / "t.csv"
    small = ("simulate", "--subjects", "4", "--slices", "3", "--out", str(table))
    assert CliRunner().invoke(main, small).exit_code == 0
    first = table.read_bytes()
    assert "--force" in refused(*small, "--seed", "1")
    assert table.read_bytes() == first
    assert CliRunner().invoke(main, [*small, "--seed", "1", "--force"]).exit_code == 0
    assert table.read_bytes() != first
    assert json.loads((tmp_path / "t.csv.truth.json").read_text())["seed"] == 1


def test_formulas_are_defused_and_numbers_are_not(tmp_path):
    cells = ["=1+1", "+cmd", "-2", "-2e-5", "@x", "\t=x", " =x", "plain", "-x", "'=x", None, 3]
    frame = pd.DataFrame({"=name": pd.Series(cells, dtype=object), "x": np.arange(12) - 5.0})
    found = defused(frame)
    assert list(found.columns) == ["'=name", "x"]
    wanted = ["'=1+1", "'+cmd", "-2", "-2e-5", "'@x", "'\t=x", "' =x", "plain", "'-x", "'=x", None, 3]  # fmt: skip
    assert found["'=name"].tolist() == wanted
    pd.testing.assert_series_equal(found["x"], frame["x"])
    assert frame["=name"].tolist() == cells  # the input is not changed
    frame["kind"] = pd.Categorical(["=c"] * 12)
    write_table(frame, tmp_path / "t.csv", safe=True)
    again = pd.read_csv(tmp_path / "t.csv")
    assert (again["kind"] == "'=c").all()


def test_fit_writes_formulas_defused_where_asked(tmp_path):
    frame = visits().assign(note="=HYPERLINK(1)")
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ["fit", str(tmp_path / "t.csv"), "--subject", "id", "--slice", "day", "--variables", "x",
             "--out", str(tmp_path / "o"), "--safe-csv"]  # fmt: skip
    run = CliRunner().invoke(main, given)
    assert run.exit_code == 0, run.output
    assert (pd.read_csv(tmp_path / "o" / "ordered.csv")["note"] == "'=HYPERLINK(1)").all()


@pytest.mark.parametrize("safe", [False, True])
def test_returns_inside_cells_make_no_rows(safe, tmp_path):
    """A spreadsheet begins a row at a carriage return that is not quoted, here with a formula."""
    frame = pd.DataFrame({"a\r=b": ["x\r=1+1", "y\n=2", "z"], "n": [1.0, 2.0, 3.0]})
    write_table(frame, tmp_path / "t.csv", safe=safe)
    raw = (tmp_path / "t.csv").read_bytes().decode()
    rows = list(csv.reader(io.StringIO(raw, newline="")))
    assert rows == [["a\r=b", "n"], ["x\r=1+1", "1.0"], ["y\n=2", "2.0"], ["z", "3.0"]]
    assert '"x\r=1+1"' in raw


def test_a_file_name_that_is_no_utf8_is_fitted(tmp_path):
    name = os.fsdecode(b"t\xff.csv")
    visits().to_csv(tmp_path / name, index=False)
    given = ["fit", str(tmp_path / name), "--subject", "id", "--slice", "day", "--variables", "x",
             "--out", str(tmp_path / "o"), "--json"]  # fmt: skip
    run = CliRunner().invoke(main, given)
    assert run.exit_code == 0, (run.stderr, run.exception)
    assert json.loads((tmp_path / "o" / "parameters.json").read_text())["file"] == "t\ufffd.csv"


def test_a_link_to_nowhere_is_no_place_for_results(tmp_path):
    visits().to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "o").symlink_to(tmp_path / "nowhere")
    said = refused("fit", tmp_path / "t.csv", "--subject", "id", "--out", tmp_path / "o")
    assert "which does not exist" in said
    assert not (tmp_path / "nowhere").exists()


def test_of_two_first_runs_to_one_place_one_is_written(tmp_path):
    out = tmp_path / "out"
    late = whole_or_nothing(out)
    (late.__enter__() / "a").write_text("late")
    put(out, a="first")
    with pytest.raises(ValueError, match="by another run meanwhile"):
        late.__exit__(None, None, None)
    assert (out / "a").read_text() == "first"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]


RUN = """
import sys, time
from pathlib import Path
import click
from retrace_sde.cli.common import OneLine, refusing
from retrace_sde.io.files import whole_or_nothing

@click.group(cls=OneLine)
def main():
    pass

@main.command()
@click.argument("out", type=click.Path(path_type=Path))
def work(out):
    with refusing(), whole_or_nothing(out) as folder:
        (folder / "half").write_text("x")
        print("begun", flush=True)
        time.sleep(60)

main(["work", sys.argv[1]])
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_leaves_nothing_behind(name, code, tmp_path, heeding):
    command = [sys.executable, "-c", RUN, str(tmp_path / "out")]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeding
    )
    assert run.stdout.readline() == "begun\n"
    time.sleep(0.05)
    run.send_signal(getattr(signal, name))
    _, errors = run.communicate(timeout=30)
    assert run.returncode == code, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_latex_escapes_every_sign_that_means_something(fitted):
    from dataclasses import replace

    result = replace(fitted[0].result_, names=("a\\b^c~d&e%f$g#h_i{j}", "x\ny"),
                     feature_names=("a\\b^c~d&e%f$g#h_i{j}", "x\ny", "1"))  # fmt: skip
    table = result.to_latex()
    assert r"a\textbackslash{}b\textasciicircum{}c\textasciitilde{}d\&e\%f\$g\#h\_i\{j\}" in table
    assert "x y" in table
