"""Tables as people have them, through the command: the right answer, or one line that says what to type."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main

N, T, DT = 24, 6, 0.3


def run(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


def fitted(file, tmp_path, *arguments):
    """What a fit says as JSON."""
    found = run("fit", file, *arguments, "--json", "--out", tmp_path / "out")
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.stdout)


def refused(file, *arguments):
    found = run("fit", file, *arguments, "--out", file.with_suffix(".out"))
    assert found.exit_code == 2, (found.output, found.exception)
    line = found.stderr
    assert line.startswith("retrace: ")
    assert line.count("\n") == 1
    assert not file.with_suffix(".out").exists()
    return line


@pytest.fixture(scope="module")
def table():
    """Visits of 24 people at irregular days of their own, and a visit code that all share."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=4)
    X = sde.simulate(N, T, DT, x0=0.2, random_state=1)
    rng = np.random.default_rng(2)
    days = np.sort(rng.choice(200, (N, T)) + np.arange(T) * 30, axis=1)
    return pd.DataFrame(
        {
            "id": np.repeat(np.arange(N) + 101, T),
            "visit": np.tile([f"V{k}" for k in range(T)], N),
            "day": days.ravel(),
            "a": X[..., 0].ravel(),
            "b": X[..., 1].ravel(),
            "c": X[..., 2].ravel(),
        }
    )


def write(frame, tmp_path, **options):
    file = tmp_path / "t.csv"
    frame.to_csv(file, index=False, **options)
    return file


def test_all_times_known_and_a_subject_with_one_visit(table, tmp_path):
    """It counts for nothing but its start; the rest is as without it."""
    single = table[(table.id != 101) | (table.visit == "V0")]
    file = write(single.drop(columns="visit"), tmp_path)
    columns = (
        "--subject",
        "id",
        "--time",
        "day",
        "--estimator",
        "mle",
    )  # a closed form: equal to the digit
    found = fitted(file, tmp_path, *columns)
    without = write(single[single.id != 101].drop(columns="visit"), tmp_path)
    (tmp_path / "again").mkdir()
    other = fitted(without, tmp_path / "again", *columns, "--dt", found["dt"])
    np.testing.assert_allclose(found["drift"], other["drift"], rtol=1e-6, atol=1e-9)


def test_known_irregular_times_with_a_missing_cell_keep_their_gaps(table, tmp_path):
    gone = table[table.id < 109].drop(columns=["visit", "c"])
    gone.loc[7, "a"] = np.nan
    plain = fitted(write(gone, tmp_path), tmp_path, "--subject", "id", "--time", "day")
    assert np.ptp(np.diff(plain["times"][0])) > 0
    (tmp_path / "again").mkdir()
    twice = pd.concat([gone, gone.iloc[[3]]])
    again = fitted(write(twice, tmp_path), tmp_path / "again", "--subject", "id", "--time", "day")
    assert "Rows that repeat another in time and values are counted once: 1." in again["notes"]
    np.testing.assert_allclose(again["drift"], plain["drift"])
    other = pd.concat([gone, gone.iloc[[3]].assign(b=9.0)])
    assert "subject '101' has more than one row at the same time" in refused(
        write(other, tmp_path), "--subject", "id", "--time", "day"
    )


def test_a_property_is_not_a_subject(table, tmp_path):
    file = write(table.assign(sex=table.id % 2).drop(columns="day"), tmp_path)
    assert "is 'id' the subject (--subject id)?" in refused(file, "--subject", "sex")


@pytest.mark.filterwarnings("ignore::retrace_sde.ReTraceWarning")
@pytest.mark.parametrize("near", [1e-8, 1e-9, 1e-11, 1e-13])
def test_a_near_copy_is_left_out_or_named(near, table):
    copy = table.a * (1 + near * np.random.default_rng(0).normal(size=len(table)))
    frame = table.assign(copy=copy).drop(columns="day")
    if near < 1e-10:
        with pytest.raises(ValueError, match="linearly dependent"):
            rt.recover(frame, subject="id", slice="visit", random_state=0)
    else:
        found = rt.recover(frame, subject="id", slice="visit", random_state=0)
        assert found.model.result_.names == ("a", "b", "c")


@pytest.fixture(scope="module")
def stationary():
    """A panel whose direction the data do not tell, and its slices in time order."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=4)
    X = sde.simulate(N, T, DT, x0="stationary", random_state=3)
    labels = ["week:6", "b", "start", "d", "e=5", "f"]
    rows = [
        {"id": f"p{j}", "visit": labels[t], "a": X[j, t, 0], "b": X[j, t, 1], "c": X[j, t, 2]}
        for t in (3, 0, 5, 1, 4, 2)
        for j in range(N)
    ]
    return pd.DataFrame(rows), labels


@pytest.mark.parametrize(
    "known",
    [
        ["--first", "week:6"],
        ["--last", "f"],
        ["--first", "week:6", "--last", "f"],
        ["--before", "week:6:d", "--before", "b:e=5"],
        ["--position", "week:6=0", "--position", "e=5=4"],
    ],
    ids=lambda known: " ".join(known),
)
def test_what_is_known_of_slices_gives_the_direction(known, stationary, tmp_path):
    frame, labels = stationary
    file = write(frame, tmp_path)
    found = fitted(file, tmp_path, "--subject", "id", "--slice", "visit", "--dt", DT, *known)
    assert found["order"] == labels
    assert "known" in found["direction"]["verdict"]


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        (["--first", "nothing"], "first names slice 'nothing'"),
        (["--position", "b"], "--position is LABEL=K"),
        (["--position", "b=x"], "--position is LABEL=K"),
        (["--before", "b"], "--before is A:B"),
        (["--before", "b:nothing"], "names slice 'nothing'"),
    ],
)
def test_what_is_said_wrongly_of_slices_is_refused(known, hint, stationary, tmp_path):
    file = write(stationary[0], tmp_path)
    assert hint in refused(file, "--subject", "id", "--slice", "visit", *known)


def test_a_column_marks_the_first_visit_of_orders_of_their_own(stationary, tmp_path):
    frame, labels = stationary
    marks = frame.assign(
        baseline=np.where(frame.visit == labels[0], "yes", ""), end=(frame.visit == "f") * 1
    )
    file = write(marks.drop(columns="visit"), tmp_path)
    options = ("--subject", "id", "--dt", DT, "--estimator", "mle")
    found = fitted(file, tmp_path, *options, "--first", "baseline", "--last", "end")
    assert found["variables"] == ["a", "b", "c"]
    assert "known" in found["direction"]["verdict"]
    ordered = pd.read_csv(tmp_path / "out" / "ordered.csv")
    assert (ordered[ordered.baseline == "yes"]["position"] == 0).all()
    assert (ordered[ordered.end == 1]["position"] == T - 1).all()
    assert "mark one" in refused(
        write(marks.assign(baseline=1).drop(columns="visit"), tmp_path),
        *options,
        "--first",
        "baseline",
    )
    assert "row 1 holds" in refused(file, *options, "--first", "id")
    assert "need --slice" in refused(file, *options, "--before", "b:d")
    assert "--first names column 'base', which the table does not have" in refused(
        file, *options, "--first", "base"
    )


def test_times_known_of_some_slices_are_used_and_what_they_changed_is_said(stationary, tmp_path):
    frame, labels = stationary
    when = {"b": "2024-03-08", "d": "2024-03-22", "f": "2024-04-05"}
    file = write(frame.assign(when=frame.visit.map(when)), tmp_path)
    found = fitted(file, tmp_path, "--subject", "id", "--slice", "visit", "--time", "when")
    assert found["order"] == labels
    notes = " ".join(found["notes"])
    assert "The times of 3 of 6 slices are used; without them the order would be the same" in notes
    assert "direction would be open" in notes
    assert "count in days since 2024-03-08" in notes
    assert "The step dt is 7, the mean time between neighbours" in notes
    assert found["dt"] == pytest.approx(7)


def test_dt_never_becomes_a_day_in_silence(stationary, tmp_path):
    frame, _ = stationary
    file = write(frame.assign(when=frame.visit.map({"b": "2024-03-08"})), tmp_path)
    found = fitted(file, tmp_path, "--subject", "id", "--slice", "visit", "--time", "when")
    assert "The step dt is 1: too few times are known" in " ".join(found["notes"])


def test_diagnose_names_dates_as_candidates_for_time(table, tmp_path):
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(table.day, unit="D")
    file = write(table.assign(seen=when.dt.strftime("%d.%m.%Y")).drop(columns="day"), tmp_path)
    text = run("diagnose", file, "--subject", "id", "--slice", "visit").stdout
    assert "There are dates in 'seen'." in text
    assert "--time seen" in text
    assert (
        "There are dates" not in run("diagnose", file, "--subject", "id", "--time", "seen").stdout
    )


@pytest.mark.usefixtures("brief")
def test_warmup_compiles_every_kind_of_fit():
    said = CliRunner().invoke(main, ["warmup", "--jobs", "1", "--json"])
    assert said.exit_code == 0, said.output
    spent = json.loads(said.stdout)["seconds"]
    assert len(spent) == 5
    assert min(spent.values()) > 0
