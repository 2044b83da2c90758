"""Forecasts and orders for people who do not write Python: `retrace forecast` and `retrace place`."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")

SDE = rt.simulate.random_irreversible_sde(2, random_state=0)


def table(n, seed, *, first=0):
    """A panel in long form, its eight slices under letters in a shuffled order."""
    X = SDE.simulate(n, 8, 0.05, random_state=seed)
    where = np.random.default_rng(3).permutation(8)
    rows = [
        {"who": f"s{first + j}", "plate": "ABCDEFGH"[where[t]], "u": X[j, t, 0], "v": X[j, t, 1]}
        for j in range(n)
        for t in range(8)
    ]
    shuffled = pd.DataFrame(rows).sample(frac=1, random_state=1).reset_index(drop=True)
    return shuffled, ["ABCDEFGH"[k] for k in where], X


def run(*words, code=0):
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == code, found.output
    return found.output


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    table(30, 1)[0].to_csv(folder / "old.csv", index=False)
    run("fit", folder / "old.csv", "--subject", "who", "--slice", "plate", "--dt", 0.05, "--out", folder / "fit")  # fmt: skip
    return folder / "fit"


def test_a_file_is_forecast(tmp_path):
    data, _, _ = table(30, 1)
    data.to_csv(tmp_path / "t.csv", index=False)
    words = ("forecast", tmp_path / "t.csv", "--subject", "who", "--slice", "plate", "--dt", 0.05)
    said = run(*words, "--steps", 2, "--out", tmp_path / "ahead.csv")
    assert "2 steps ahead of 30 subjects, 95% intervals" in said
    ahead = pd.read_csv(tmp_path / "ahead.csv")
    assert list(ahead.columns) == ["who", "step", "time", "variable", "mean", "low", "high"]
    assert len(ahead) == 30 * 2 * 2
    assert (ahead.low < ahead["mean"]).all()
    assert (ahead["mean"] < ahead.high).all()
    assert sorted(set(ahead.time.round(6))) == [0.4, 0.45]
    assert "earlier result" in run(*words, "--steps", 2, "--out", tmp_path / "ahead.csv", code=2)


def test_a_forecast_of_dated_subjects_says_where_its_times_count_from(tmp_path):
    data, _, _ = table(30, 1)
    day = pd.Timestamp("2021-03-15") + pd.to_timedelta(data.groupby("who").cumcount(), unit="D")
    data.assign(day=day).drop(columns="plate").to_csv(tmp_path / "t.csv", sep=";", index=False)
    words = ("forecast", tmp_path / "t.csv", "--subject", "who", "--time", "day", "--steps", 1, "--force")  # fmt: skip
    said = run(*words, "--out", tmp_path / "ahead.csv")
    assert "Dates in column 'day' count in days since 2021-03-15 (" in said
    assert said.count("cells separated by") == 1
    notes = json.loads(run(*words, "--json", "--out", tmp_path / "ahead.csv"))["notes"]
    assert any("count in days since 2021-03-15" in each for each in notes)


def test_a_forecast_says_once_that_inputs_are_held(tmp_path):
    data, _, _ = table(30, 1)
    given = np.random.default_rng(0).integers(0, 2, len(data))
    data.assign(dose=given).to_csv(tmp_path / "t.csv", index=False)
    words = ("forecast", tmp_path / "t.csv", "--subject", "who", "--slice", "plate", "--dt", 0.05, "--steps", 1)  # fmt: skip
    note = "Inputs (--covariates) are held at their last values"
    ahead = ("--force", "--out", tmp_path / "a.csv")
    assert run(*words, *ahead, "--covariates", "dose").count(note) == 1
    asked = run(*words, *ahead, "--covariates", "dose", "--json")
    assert sum(note in each for each in json.loads(asked)["notes"]) == 1
    assert note not in run(*words, *ahead, "--variables", "u,v")


def test_new_subjects_are_placed_and_forecast_by_a_saved_fit(tmp_path, saved):
    data, letters, _X = table(9, 7, first=100)
    data.to_csv(tmp_path / "new.csv", index=False)
    words = tmp_path / "new.csv", "--subject", "who", "--slice", "plate", "--fitted", saved
    answer = json.loads(run("place", *words, "--out", tmp_path / "placed.csv", "--json"))
    assert answer["order"] in (letters, letters[::-1])
    placed = pd.read_csv(tmp_path / "placed.csv")
    assert len(placed) == 72
    assert placed.position.max() == 7
    said = run("forecast", *words, "--steps", 1, "--out", tmp_path / "ahead.csv")
    assert "9 subjects" in said
    data[data["who"] == "s100"].to_csv(tmp_path / "new.csv", index=False)
    alone = json.loads(run("place", *words, "--out", tmp_path / "alone.csv", "--json"))
    assert alone["subjects"] == 1
    assert not any("one trajectory" in each for each in alone["warnings"])  # learned from others
    ahead = pd.read_csv(tmp_path / "ahead.csv")
    assert set(ahead.who) == {f"s{100 + j}" for j in range(9)}
    said = run("place", tmp_path / "new.csv", "--subject", "who", "--fitted", saved, code=2)
    assert "--slice COL" in said


def test_a_table_is_forecast_by_a_model_as_by_its_recovery():
    data, _, _ = table(30, 1)
    found = rt.recover(data, subject="who", slice="plate", dt=0.05, random_state=0)
    ahead = found.forecast(2, level=0.9)
    same = found.model.forecast(data, 2, level=0.9, subject="who", slice="plate")
    np.testing.assert_allclose(ahead["mean"].to_numpy(), same.mean.ravel())
    np.testing.assert_allclose(ahead.high.to_numpy(), same.high.ravel())
    with pytest.raises(ValueError, match="subject="):
        found.model.forecast(data, 2)
    with pytest.raises(ValueError, match="slice="):
        found.model.forecast(data, 2, subject="who")


def test_forecast_times_go_on_from_known_ones():
    data = rt.datasets.load_icu()
    found = rt.recover(data, subject="patient", time="hour", subjects="alike", observation_noise=None)  # fmt: skip
    ahead, last = found.forecast(1), found.ordered.groupby("patient")["time"].max()
    first = ahead.groupby("patient")["time"].min()
    np.testing.assert_allclose((first - last).to_numpy(), found.model.result_.dt)


def test_a_saved_fit_that_is_not_there_is_named(tmp_path):
    """It was an errno line."""
    table = tmp_path / "t.csv"
    table.write_text("subject,visit,x\na,1,0.5\na,2,0.7\n")
    asked = ["place", str(table), "--subject", "subject", "--fitted", str(tmp_path / "no.npz")]
    result = CliRunner().invoke(main, asked)
    said = str(result.output) + str(result.exception)
    assert "does not exist; `retrace fit` writes result.npz" in said
    assert "Errno" not in said
