"""`retrace fit`, `diagnose` and `simulate`, as a stranger meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.io.files import read_table, whole_or_nothing
from retrace_sde.io.writing import write_table

WRITTEN = [".retrace.json", "ordered.csv", "parameters.json", "report.html", "result.npz"]


def retrace(*arguments):
    run = CliRunner().invoke(main, [str(each) for each in arguments])
    assert run.exit_code == 0, (run.output, run.exception)
    assert run.stderr == ""
    return run.stdout


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A table without its time, and its truth."""
    file = tmp_path_factory.mktemp("sim") / "sim.csv"
    retrace("simulate", "--out", file, "--subjects", 40, "--slices", 12, "--variables", 3)
    return file, json.loads(file.with_name("sim.csv.truth.json").read_text())


@pytest.fixture(scope="module")
def fitted(simulated, tmp_path_factory):
    file, _ = simulated
    out = tmp_path_factory.mktemp("fit") / "deep" / "out"
    text = retrace(
        "fit", file, "--subject", "subject", "--slice", "slice", "--dt", 0.05, "--out", out
    )
    return out, text


def test_fit_writes_the_table_in_time_order(simulated, fitted):
    file, truth = simulated
    out, _ = fitted
    assert sorted(path.name for path in out.iterdir()) == WRITTEN
    before, after = pd.read_csv(file), pd.read_csv(out / "ordered.csv")
    added = ["position", "time", "position_probability", "direction"]
    assert list(after.columns) == [*before.columns, *added]
    assert (after["direction"] == "identified").all()
    before["position"] = truth["position"]
    keys = ["subject", "slice"]
    both = before.merge(after, on=keys, suffixes=("", "_found"), validate="one_to_one")
    assert (both["position"] == both["position_found"]).all()
    assert (both["x0"] == both["x0_found"]).all()


@pytest.mark.parametrize("way", ["known", "open"])
def test_what_inputs_do_is_said_and_in_the_report(way, tmp_path):
    """A drug that lowers x0 by 2 a unit of time; it stood in parameters.json only, without its name."""
    rng = np.random.default_rng(0)
    n, T, dt = 60, 12, 0.1
    gel = rng.integers(0, 2, (n, T))
    X = np.empty((n, T, 2))
    X[:, 0] = rng.standard_normal((n, 2))
    for k in range(T - 1):
        push = np.stack([-2.0 * gel[:, k], np.zeros(n)], axis=1)
        X[:, k + 1] = X[:, k] + (push - X[:, k]) * dt + 0.2 * rng.standard_normal((n, 2))
    columns = {"who": np.repeat(np.arange(n), T), "k": np.tile(np.arange(T), n)}
    table = pd.DataFrame(
        {**columns, "x0": X[..., 0].ravel(), "x1": X[..., 1].ravel(), "gel (ml)": gel.ravel()}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    given = ("--time", "k") if way == "known" else ("--slice", "k")
    options = ("--subject", "who", "--covariates", "gel (ml)", "--out", tmp_path / "o", *given)
    text = retrace("fit", tmp_path / "t.csv", *options)
    line = next(line for line in text.splitlines() if line.startswith("Inputs"))
    assert line.split(maxsplit=1)[1].startswith("gel (ml) → x0 ")
    found = json.loads((tmp_path / "o" / "parameters.json").read_text())
    effect, error = found["inputs"][0][0], found["standard_errors"]["inputs"][0][0]
    assert f"{effect:+.3g} ± {error:.2g}" in line
    twin = found["alternative"]
    assert ("in its reverse" in line) == (twin is not None)
    if twin is not None:
        assert (
            f"{twin['inputs'][0][0]:+.3g} ± {twin['standard_errors']['inputs'][0][0]:.2g}" in line
        )
    if way == "known":
        assert abs(effect * found["dt"] / dt + 2.0) < 4 * error / dt
    assert '<td class="name">gel (ml)' in (tmp_path / "o" / "report.html").read_text()


def test_fit_writes_parameters_that_cover_the_truth(simulated, fitted):
    """Of the 18 coefficients of A and H, Gaussian errors leave more than 5 beyond ±2.5 once in 10⁵."""
    truth = simulated[1]
    found = json.loads((fitted[0] / "parameters.json").read_text())
    assert found["variables"] == ["x0", "x1", "x2"]
    outside = 0
    for name in ("drift", "diffusion"):
        error = np.array(found["standard_errors"][name])
        outside += (np.abs(np.array(found[name]) - truth[name]) > 2.5 * error).sum()
    assert outside <= 5
    assert found["direction"]["identified"] is True
    assert found["direction"]["p_value"] < 0.05
    assert "identified" in found["direction"]["verdict"]
    assert found["order"] == [str(k) for k in truth["order"]]
    assert len(found["offset"]) == 3
    again = rt.ReTraceResult.load(fitted[0] / "result.npz")
    np.testing.assert_array_equal(again.drift, found["drift"])
    assert "<html" in (fitted[0] / "report.html").read_text()


def test_what_fit_prints_says_order_direction_and_files(fitted):
    out, text = fitted
    labels = [line.split()[0] for line in text.splitlines()]
    assert labels == [
        "Data",
        "Order",
        "Direction",
        "Assuming",
        "Dependence",
        "Drift",
        "Noise",
        "Subjects",
        "Effects",
        "Note",
        "Written",
    ]
    assert "Euler's step of this length (--estimator mle) would differ" in text
    assert "The direction of time is identified" in text
    assert str(out / "report.html") in text
    assert "\x1b" not in text


def test_json_goes_to_stdout_and_nothing_else_does(simulated, tmp_path):
    command = [sys.executable, "-m", "retrace_sde", "fit", str(simulated[0]), "--subject", "subject",
               "--slice", "slice", "--json", "--out", str(tmp_path / "o")]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    found = json.loads(run.stdout)
    assert {"drift", "offset", "diffusion", "variables", "standard_errors", "direction"} <= set(
        found
    )
    assert found["warnings"] == []
    assert all(name.startswith(str(tmp_path)) for name in found["files"])


def test_an_existing_folder_keeps_its_other_files(simulated, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    arguments = ("fit", simulated[0], "--subject", "subject", "--slice", "slice", "--out", tmp_path)
    assert "\nWritten " in retrace(*arguments)
    first = (tmp_path / "ordered.csv").read_bytes()
    assert "--force" in refused(*arguments)
    assert "\nReplaced " in retrace(*arguments, "--force", "--safe-csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*WRITTEN, "notes.txt"])
    assert (tmp_path / "ordered.csv").read_bytes() == first
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_options_are_refused_before_an_earlier_result_and_that_before_the_fit(
    simulated, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    with whole_or_nothing(out) as work:
        (work / "ordered.csv").write_text("a result")
    monkeypatch.setattr("retrace_sde.retrace.fit_entry", None)  # nothing is fitted here
    table, columns = ("fit", simulated[0]), ("--subject", "subject", "--slice", "slice")
    for wrong, said in {
        (*columns, "--dt", "0"): "--dt must be a positive number",
        (*columns, "--first", "B9"): "--first names slice 'B9'",
        (*columns, "--variables", "y"): "has no column 'y'",
        (): "--subject is missing",
        columns: "ordered.csv holds an earlier result: replace it with --force",
    }.items():
        assert said in refused(*table, "--out", out, *wrong)
    assert (out / "ordered.csv").read_text() == "a result"


@pytest.fixture(scope="module")
def reference(fitted):
    return json.loads((fitted[0] / "parameters.json").read_text())


@pytest.mark.parametrize("kind", ["parquet", "npz", "array", "h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore")  # of the writers, on versions of their formats
def test_every_format_gives_the_same_answer(kind, simulated, reference, tmp_path):
    table = read_table(simulated[0], text=["subject", "slice"])
    names = ["x0", "x1", "x2"]
    columns = ["--subject", "subject", "--slice", "slice"]
    file = tmp_path / f"t.{'npz' if kind == 'array' else kind}"
    if kind == "array":
        np.savez(file, X=table[names].to_numpy().reshape(40, 12, 3))
        columns = []
    elif kind in ("parquet", "npz"):
        write_table(table.astype({"subject": object, "slice": object}), file)
    else:
        anndata = pytest.importorskip("anndata")
        obs = table[["subject", "slice"]].astype(object)
        obs.index = obs.index.astype(str)
        adata = anndata.AnnData(table[names].to_numpy(), obs=obs, var=pd.DataFrame(index=names))
        (adata.write_h5ad if kind == "h5ad" else adata.write_zarr)(file)
    text = retrace("fit", file, *columns, "--dt", 0.05, "--json", "--out", tmp_path / "o")
    found = json.loads(text)
    assert found["order"] == reference["order"]
    np.testing.assert_allclose(found["drift"], reference["drift"], rtol=1e-9)


def test_own_orders(tmp_path):
    file = tmp_path / "own.parquet"
    retrace("simulate", "--out", file, "--permutation", "independent", "--subjects", 25, "--slices", 10,
            "--variables", 12, "--seed", 1)  # fmt: skip
    text = retrace("fit", file, "--subject", "subject", "--independent", "--dt", 0.05, "--out", tmp_path / "o",
                   "--estimator", "mle", "--seed", 3)  # fmt: skip
    assert "each with an order of its own" in text
    after = pd.read_csv(tmp_path / "o" / "ordered.csv", float_precision="round_trip")
    truth = json.loads((tmp_path / "own.parquet.truth.json").read_text())
    before = pd.read_parquet(file).assign(true=truth["position"]).astype({"subject": int})
    both = before.merge(after, on=["subject", "x0"], validate="one_to_one")
    assert len(both) == 250
    assert abs(both["true"].corr(both["position"], method="kendall")) > 0.8


def test_the_same_seed_simulates_the_same_table(tmp_path):
    for name in ("a.csv", "b.csv"):
        retrace("simulate", "--out", tmp_path / name, "--seed", 5, "--noise", 0.1, "--missing", 0.2)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    values = pd.read_csv(tmp_path / "a.csv")[["x0", "x1"]]
    assert np.isclose(values.isna().mean().mean(), 0.2, atol=0.02)


def test_diagnose_says_what_can_be_found_and_what_to_do_next(simulated):
    file = simulated[0]
    text = retrace("diagnose", file, "--subject", "subject", "--slice", "slice")
    assert "The slices have an order to be found" in text
    assert f"retrace fit {file} --subject subject --slice slice" in text
    found = json.loads(
        retrace("diagnose", file, "--subject", "subject", "--slice", "slice", "--json")
    )
    assert found["usable"] is True
    assert found["subjects"] == 40


def test_names_cannot_drive_the_terminal(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((40, 2)).cumsum(axis=0), columns=["a\x1b[31m", "b"])
    table["who"], table["when"] = np.repeat(range(8), 5), np.tile(range(5), 8)
    table.to_csv(tmp_path / "t.csv", index=False)
    text = retrace(
        "fit", tmp_path / "t.csv", "--subject", "who", "--slice", "when", "--out", tmp_path / "o"
    )
    assert "\x1b" not in text
    assert "a�[31m" in text


def refused(*arguments):
    run = CliRunner().invoke(main, [str(each) for each in arguments])
    assert run.exit_code == 2, (run.output, run.exception)
    assert run.stderr.count("\n") == 1
    return run.stderr


def test_neither_the_input_nor_a_file_that_is_no_result_is_overwritten(fitted, simulated, tmp_path):
    for path in fitted[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    roles = ("--subject", "subject", "--slice", "slice", "--out", tmp_path, "--force")
    assert "would replace the input" in refused("fit", tmp_path / "ordered.csv", *roles)
    (tmp_path / "ordered.csv").write_text("edited")
    assert "changed since" in refused("fit", simulated[0], *roles)
    assert (tmp_path / "ordered.csv").read_text() == "edited"


def test_a_folder_that_cannot_be_written_is_named(simulated, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("retrace_sde.io.files.Path.mkdir", full)
    out = tmp_path / "mine"
    roles = ("--subject", "subject", "--slice", "slice", "--out", out)
    assert f"{out} cannot be written to: No space" in refused("fit", simulated[0], *roles)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("sink", "code", "words"), [("| true", 0, ""), ("> /dev/full", 2, "No space left on device")]
)
def test_output_that_nobody_takes_is_no_bug(sink, code, words, tmp_path):
    file = tmp_path / "small.csv"
    retrace("simulate", "--out", file, "--subjects", 10, "--slices", 6, "--variables", 2)
    command = f"{sys.executable} -m retrace_sde diagnose {file} --subject subject --slice slice"
    run = subprocess.run(
        ["bash", "-c", f"{command} {sink}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert run.returncode == code
    assert words in run.stderr
    assert run.stderr.count("\n") == (1 if words else 0)


def test_of_two_arrays_of_three_axes_neither_is_guessed(tmp_path):
    X = np.zeros((3, 4, 2))
    np.savez(tmp_path / "two.npz", one=X, two=X)
    with pytest.raises(ValueError, match="one, two"):
        read_table(tmp_path / "two.npz")


def test_noise_of_its_own_for_each_variable_is_a_choice_of_the_command(tmp_path):
    table = tmp_path / "visits.csv"
    made = CliRunner().invoke(main, ["simulate", "--subjects", "20", "--slices", "6", "--variables", "2", "--out", str(table)])  # fmt: skip
    assert made.exit_code == 0, made.output
    options = ["fit", str(table), "--subject", "subject", "--slice", "slice", "--out", str(tmp_path / "out")]  # fmt: skip
    done = CliRunner().invoke(main, [*options, "--observation-noise", "diagonal", "--json"])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(main, [*options, "--observation-noise", "loud"])
    assert refused.exit_code == 2


def test_subjects_and_bootstrap_are_one_option_away(simulated, tmp_path):
    file, _ = simulated
    given = "fit", file, "--subject", "subject", "--slice", "slice", "--dt", 0.05, "--json"
    plain = json.loads(retrace(*given, "--out", tmp_path / "a"))
    assert plain["standard_errors"]["kind"] == "sandwich"
    assert plain["subject_effects"]["kind"] == "alike"
    asked = json.loads(
        retrace(*given, "--subjects", "levels", "--bootstrap", 5, "--out", tmp_path / "b")
    )
    assert asked["standard_errors"]["kind"] == "bootstrap"
    assert asked["subject_effects"]["kind"] == "levels"
    assert len(asked["subject_effects"]["intercepts"]) == 40
    report = (tmp_path / "b" / "report.html").read_text()
    assert "bootstrap" in report


def test_subjects_of_one_group_are_not_taken_for_independent(simulated, tmp_path):
    file, _ = simulated
    table = pd.read_csv(file)
    table["centre"] = [f"c{k % 10}" for k in pd.factorize(table["subject"])[0]]
    grouped = tmp_path / "grouped.csv"
    table.to_csv(grouped, index=False)
    given = ("--subject", "subject", "--slice", "slice", "--group", "centre")
    options = ("--dt", 0.05, "--subjects", "alike", "--out", tmp_path / "out", "--json")
    answer = json.loads(retrace("fit", grouped, *given, *options))
    assert (answer["subjects"], answer["groups"]) == (40, 10)
    assert answer["standard_errors"]["kind"] == "sandwich by group"
    assert "centre" not in answer["variables"]
    assert (
        "40 trajectories in 10 groups"
        in rt.ReTraceResult.load(tmp_path / "out/result.npz").summary()
    )
    assert "--group centre" in retrace("diagnose", grouped, *given)
