"""Wrong time stamps: single ones, swapped, shifted and reversed; shared and own; and the command."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.stamps.judge import Judge, Sequence
from retrace_sde.search.stamps.law import fit_steps, gap_levels
from retrace_sde.search.stamps.sampler import path_cost

N, T = 14, 12


def table(seed=1):
    """A process with a direction, seen by 14 subjects at 12 regular times."""
    turn = np.kron(np.eye(2), [[0.0, 4.0], [-4.0, 0.0]]) - 0.5 * np.eye(4)
    X = rt.LinearSDE(turn, np.eye(4)).simulate(N, T, 0.1, x0="stationary", random_state=seed)
    found = pd.DataFrame(X.reshape(N * T, 4), columns=list("abcd"))
    return found.assign(who=np.repeat(np.arange(N), T), day=np.tile(np.arange(float(T)), N))


@pytest.fixture(scope="module")
def audited():
    """Three kinds of errors, in three subjects."""
    data = table()
    data.loc[[2, 9], "day"] = [9.0, 2.0]
    data.loc[T + 4, "day"] = 10.6
    back = slice(5 * T, 6 * T - 1)
    data.loc[back, "day"] = data.loc[back, "day"].to_numpy()[::-1]
    return rt.audit_times(data, subject="who", time="day", random_state=0)


def test_wrong_stamps_are_found_and_corrected(audited):
    found = audited.table.set_index("row")
    assert found.loc[[2, 9], "kind"].tolist() == ["swapped", "swapped"]
    assert found.loc[2, "partner"] == 9
    assert found.loc[T + 4, "kind"] == "wrong"
    assert found.loc[T + 4, "probability_wrong"] > 0.9
    assert abs(found.loc[T + 4, "expected_time"] - 4) < 1.5
    assert found.loc[T + 4, "low"] <= 4.2
    assert found.loc[T + 4, "high"] >= 3.8
    rest = found.drop(index=[2, 9, T + 4, *range(5 * T, 6 * T)])
    assert (rest["probability_wrong"] < 0.5).mean() > 0.98


def test_a_clock_that_was_reset():
    data = table()
    data.loc[3 * T + 6 : 3 * T + 10, "day"] -= 4.3
    found = rt.audit_times(data, subject="who", time="day", random_state=0)
    shifted = found.table[found.table["kind"] == "shifted"]
    assert set(shifted["row"]) >= set(range(3 * T + 7, 3 * T + 10))
    assert abs((shifted["expected_time"] - shifted["time"]).median() - 4.3) < 1
    assert (found.table["probability_wrong"] > 0.5).sum() <= 7


def test_a_subject_that_runs_backwards(audited):
    assert (audited.table.set_index("row").loc[5 * T : 6 * T - 1, "kind"] == "reversed").all()
    assert any("backwards" in each for each in audited.findings)


def test_stamps_of_slices_with_errors():
    data = table()
    data["plate"] = np.tile([f"p{k}" for k in range(T)], N)
    stamps = np.arange(float(T)) + 0.4 * np.random.default_rng(3).normal(size=T)
    stamps[3] = 9.5
    data["day"] = np.tile(stamps, N)
    found = rt.audit_times(
        data, subject="who", slice="plate", time="day", time_error=0.4, random_state=0
    )
    assert found.suspects["slice"].tolist() == ["p3"]
    assert abs(found.suspects["expected_time"].item() - 3) < 1
    assert found.plot().get_ylabel() == "expected time"


def test_the_law_of_steps_survives_wrong_ones():
    """Against the law fitted to the right steps alone: drift and diffusion."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2))
    gaps = rng.choice([0.5, 1.0, 2.0], 600)
    after = x * np.exp(-0.3 * gaps)[:, None]
    after = after + rng.normal(size=x.shape) * np.sqrt(1 - np.exp(-0.6 * gaps))[:, None]
    clean = fit_steps(x, after, gaps, robust=False)
    after[::10] = 6 * rng.normal(size=(60, 2))
    found = fit_steps(x, after, gaps, robust=True)
    np.testing.assert_allclose(np.diag(clean.theta), -0.3, atol=0.07)
    np.testing.assert_allclose(np.diag(found.diffusion), np.diag(clean.diffusion), rtol=0.3)


def test_the_command_writes_a_table_and_refuses_what_it_cannot_use(tmp_path):
    data = table().head(6 * T)
    data.loc[4, "day"] = 10.6
    data["day"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(data["day"], unit="D")
    file, out = tmp_path / "visits.csv", tmp_path / "audit.csv"
    data.to_csv(file, index=False)
    call = ["audit", str(file), "--subject", "who", "--time", "day", "--out", str(out), "--json"]
    done = CliRunner().invoke(main, call)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["wrong"] >= 1
    assert answer["dependence"]["kind"] == "independent"
    written = pd.read_csv(out)
    assert written.loc[4, "kind"] == "wrong"
    assert written.loc[4, "expected_time"] < "2024-01-08"
    bare = CliRunner().invoke(
        main, ["audit", str(file), "--subject", "who", "--out", str(tmp_path / "b.csv")]
    )
    assert bare.exit_code == 2
    with pytest.raises(ValueError, match="share"):
        rt.audit_times(data, subject="who", time="day", wrong=2)


def test_dates_are_said_as_dates(tmp_path):
    data = table()
    data.loc[T + 4, "day"] = 10.6
    data["day"] = pd.Timestamp("2021-03-01") + pd.to_timedelta(data["day"], unit="D").dt.round("D")
    data.to_csv(tmp_path / "t.csv", index=False)
    given = ["audit", str(tmp_path / "t.csv"), "--subject", "who", "--time", "day", "--json"]
    ran = CliRunner().invoke(main, [*given, "--out", str(tmp_path / "o.csv")])
    assert ran.exit_code == 0, ran.output
    answer = json.loads(ran.stdout)
    said = next(each for each in answer["findings"] if "should be about" in each)
    assert said.startswith("subject '1': 2021-03-12 should be about 2021-03-0")
    row = pd.read_csv(tmp_path / "o.csv").iloc[T + 4]
    assert f"about {row['expected_time'][:10]} ({row['low'][:10]} to {row['high'][:10]});" in said


def with_plates(data, size=1.0):
    """The same with an offset of each day, the same for all subjects."""
    offsets = size * np.random.default_rng(0).normal(size=(T, 4)) * data[list("abcd")].std().values
    plated = data[list("abcd")] + offsets[np.tile(np.arange(T), N)]
    return data.assign(**plated, plate=np.tile([f"p{k}" for k in range(T)], N))


def test_rows_are_judged_without_what_subjects_share_at_a_time():
    data = with_plates(table())
    data.loc[[2, 9], "day"] = [9.0, 2.0]
    data.loc[T + 4, "day"] = 10.6
    found = rt.audit_times(data, subject="who", time="day", random_state=0)
    assert found.dependence.removed
    assert found.suspects["row"].tolist() == [2, 9, T + 4]
    assert found.suspects["kind"].tolist() == ["swapped", "swapped", "wrong"]
    assert abs(found.suspects["expected_time"].iloc[2] - 4) < 1
    assert "Rows are judged by deviations from the mean of each time" in found.findings[-1]


def test_slices_are_judged_without_what_subjects_share_at_a_time():
    data = with_plates(table())
    data["day"] = data["day"].where(data["plate"] != "p3", 9.5)
    found = rt.audit_times(data, subject="who", slice="plate", time="day", random_state=0)
    assert found.dependence.removed
    assert found.suspects["slice"].tolist() == ["p3"]
    assert found.findings[-1].endswith("Slices are judged by deviations from their means, which are free of it.")  # fmt: skip


def test_independence_is_said_to_hold_or_to_be_assumed():
    data = table()
    found = rt.audit_times(data, subject="who", time="day", random_state=0)
    assert found.findings[-1].startswith("No sign that trajectories share shocks")
    data["day"] += np.random.default_rng(0).uniform(0, 0.3, N * T)
    found = rt.audit_times(data, subject="who", time="day", random_state=0)
    assert found.findings[-1].endswith("the subjects have fewer than 4 times in common that are known exactly. It is assumed.")  # fmt: skip


def test_values_tied_within_each_time_are_judged_as_they_are():
    data = with_plates(table())
    data["d"] = data["day"] - data["a"] - data["b"] - data["c"]
    found = rt.audit_times(data, subject="who", time="day", random_state=0)
    assert not found.dependence.removed
    assert "too many may be called wrong: some combination" in found.findings[-1]


def test_costs_with_slices_are_those_of_deviations_at_the_times_given():
    """Against tables of costs made for deviations from the slice effects at these times."""
    rng = np.random.default_rng(0)
    x, effects, slices = rng.normal(size=(6, 2)), rng.normal(size=(5, 2)), np.arange(5.0)
    nodes = (x[:, None] - effects).reshape(1, 30, 2)
    known = np.arange(6.0), np.full(6, 0.05)
    law = fit_steps(x[:-1], x[1:], np.ones(5), robust=False)
    start, levels = Gaussian(np.zeros(2), np.eye(2)), gap_levels(np.array([5.0]))
    judge = Judge(law, start, levels, 0.1 * levels, 0.05, regular=False, alone=False)
    apart = judge.costs(Sequence(nodes, *known, edges=slices[:-1] + 0.5))
    for _ in range(5):
        t = rng.uniform(-0.5, 4.5, 6)
        there = x - effects[np.round(t).astype(int)]
        order = np.argsort(t)
        plain = path_cost(judge.costs(Sequence(there[None], *known)), order, t)
        np.testing.assert_allclose(path_cost(apart, order, t), plain, rtol=1e-10)
