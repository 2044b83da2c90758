"""`retrace effect` as a stranger meets it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.effects.treatment import TreatmentEffect
from retrace_sde.process.tumour import Cohort, simulate_cohort


def _frame(cohort: Cohort, tag: str) -> pd.DataFrame:
    n, T = cohort.observed.shape[:2]
    moved = np.random.default_rng(0).permuted(np.tile(np.arange(T), (n, 1)), axis=1)
    panel = cohort.shuffled(moved)
    return pd.DataFrame({
        "id": np.repeat([f"{tag}{j}" for j in range(n)], T), "volume": panel.values.ravel(),
        "chemo": panel.covariates[:, :, 0].ravel(), "radio": panel.covariates[:, :, 1].ravel(),
        "day": (moved * cohort.dt).ravel(), "arm": tag,
    })  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("effect")
    cohort = simulate_cohort(36, random_state=5)
    _frame(cohort, "a").to_csv(folder / "visits.csv", index=False)
    arms = [_frame(simulate_cohort(40, arm=a, random_state=6), a) for a in ("untreated", "treated")]  # type: ignore[arg-type]
    pd.concat(arms).to_csv(folder / "arms.csv", index=False)
    return folder, (cohort.expected("treated") - cohort.expected("untreated"))[:, -1].mean()


BASE = ["--subject", "id", "--variables", "volume", "--dt", "0.25"]
TREATED = ["--treatment", "chemo,radio", "--t0", "0,0", "--t1", "5,1", "--draws", "20"]


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["effect", *arguments])


def test_effects_from_lost_order_and_from_known_times(tables: Any) -> None:
    folder, truth = tables
    file, out = str(folder / "visits.csv"), folder / "effects.csv"
    run = _run(file, *BASE, *TREATED, "--json", "--out", str(out))
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    low, high = answer["ate_interval"]
    assert low < truth < high
    table = pd.read_csv(out)
    assert list(table.columns) == ["subject", "effect", "lower", "upper"]
    assert len(table) == 36
    np.testing.assert_allclose(table["effect"].mean(), answer["ate"])
    timed = _run(file, *BASE, *TREATED, "--time", "day")
    assert timed.exit_code == 0, timed.output
    assert "given by the times" in timed.stdout
    assert "95 % interval" in timed.stdout


def test_rates_of_chosen_features_go_by_their_names(tables: Any) -> None:
    """The first feature is the growth rate, which is what levels are here: the same answer by either name."""
    given = [str(tables[0] / "visits.csv"), *BASE, *TREATED, "--time", "day", "--json"]
    refused = _run(*given, "--subjects", "nonsense")
    assert refused.exit_code == 2
    assert (
        "nonsense is neither auto, alike, levels, fixed nor a feature of the drift; these are "
        in refused.output
    )
    first = refused.output.split("these are ")[1].split(",")[0]
    answers = [json.loads(_run(*given, "--subjects", name).stdout) for name in ("levels", first)]
    assert answers[0]["ate"] == answers[1]["ate"]


def test_effects_of_arms(tables: Any) -> None:
    run = _run(str(tables[0] / "arms.csv"), *BASE, "--arm", "arm", "--control", "untreated",
               "--draws", "20", "--json")  # fmt: skip
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    assert -9 < answer["ate"] < -7
    assert [answer[key] for key in ("T0", "T1", "horizon")] == ["untreated", "treated", 15.0]
    assert answer["comparison"] == ["effect of 'treated' against 'untreated' on 'volume' at t = 15"]
    assert answer["effects"][-1]["subject"].startswith("untreated")
    turned = _run(str(tables[0] / "arms.csv"), *BASE, "--arm", "arm", "--control", "treated", "--time", "day",
                  "--draws", "20")  # fmt: skip
    assert "'untreated' against 'treated' on 'volume' at t = 15: on average +" in turned.stdout


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ([], "which arm is the control? Name it with --control: 'treated', 'untreated'"),
        (["--control", "placebo"], "'placebo' is not an arm"),
        (["--control", "treated", "--t1", "treated"], "compared with itself"),
        (["--control", "treated", "--t0", "untreated"], "give one, not both"),
        (["--treatment", "chemo"], "give one, not both"),
    ],
)
def test_arms_are_never_compared_by_the_order_of_their_names(
    tables: Any, options: Any, match: str
) -> None:
    run = _run(str(tables[0] / "arms.csv"), *BASE, "--arm", "arm", *options)
    assert run.exit_code == 2
    assert match in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_an_undetermined_direction_names_the_options_of_the_command(tmp_path: Any) -> None:
    """Stationary: forward and backward are alike."""
    rng = np.random.default_rng(0)
    n, T = 60, 12
    u = np.repeat(rng.integers(0, 2, size=(n, 1)), T, axis=1)
    x = [u[:, 0] + rng.normal(size=n)]
    for t in range(T - 1):
        x.append(x[-1] + 0.1 * (u[:, t] - x[-1]) + (0.1 * 1.9) ** 0.5 * rng.normal(size=n))
    frame = pd.DataFrame({"id": np.repeat([f"s{j}" for j in range(n)], T), "x": np.stack(x, axis=1).ravel(),
                          "dose": u.ravel(), "slice": np.tile(list("abcdefghijkl"), n)})  # fmt: skip
    frame.to_csv(tmp_path / "still.csv", index=False)
    asked = [str(tmp_path / "still.csv"), "--subject", "id", "--slice", "slice", "--variables", "x", "--treatment",
             "dose", "--dt", "0.1", "--drift", "affine", "--subjects", "alike"]  # fmt: skip
    run = _run(*asked)
    assert run.exit_code == 2
    assert "--both-directions" in run.stderr
    assert "direction='both'" not in run.stderr
    run = _run(*asked, "--both-directions", "--out", str(tmp_path / "effects.csv"))
    assert "One answer" in run.stdout
    assert "in the reversed order" in run.stdout
    assert "Effect " not in run.stdout  # neither is *the* effect
    table = pd.read_csv(tmp_path / "effects.csv")
    assert {"effect", "lower_reversed", "effect_reversed"} <= set(table.columns)
    assert (table["direction"] == "open").all()


def test_several_outcomes_are_named_and_kept_apart(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    n, T = 30, 8
    u = (rng.random((n, T)) < 0.5).astype(float)
    x = [rng.normal(size=(n, 2))]
    for t in range(T - 1):
        x.append(0.8 * x[-1] + u[:, t, None] * [1.0, -10.0] + 0.1 * rng.normal(size=(n, 2)))
    X = np.stack(x, axis=1).reshape(-1, 2)
    frame = pd.DataFrame({"id": np.repeat([f"s{j}" for j in range(n)], T), "up": X[:, 0], "down": X[:, 1],
                          "dose": u.ravel(), "day": np.tile(np.arange(T), n)})  # fmt: skip
    frame.to_csv(tmp_path / "two.csv", index=False)
    options = [str(tmp_path / "two.csv"), "--subject", "id", "--variables", "up,down", "--time", "day", "--treatment",
               "dose", "--drift", "affine", "--subjects", "alike", "--draws", "20"]  # fmt: skip
    run = _run(*options, "--json", "--out", str(tmp_path / "effects.csv"))
    assert run.exit_code == 0, run.output
    answer = json.loads(run.stdout)
    assert answer["ate"]["up"] > 0 > answer["ate"]["down"]
    low, high = answer["ate_interval"]["down"]
    assert low < answer["ate"]["down"] < high < 0
    assert [each["subject"] for each in answer["effects"][:2]] == ["s0", "s1"]
    assert set(answer["effects"][0]["effect"]) == {"up", "down"}
    assert '"":' not in run.stdout
    assert "effect_down" in pd.read_csv(tmp_path / "effects.csv").columns
    text = _run(*options).stdout
    for name, sign in (("up", "+"), ("down", "-")):
        assert f"dose = 1 against dose = 0 on {name!r} at t = 7: on average {sign}" in text


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ([], "name the treatment"),
        (["--treatment", "chemo,radio", "--t1", "5"], "a treatment must be finite numbers"),
        (["--treatment", "chemo,radio", "--t1", "five,one"], "--t0 and --t1 are numbers"),
        (["--arm", "ward"], "not a column"),
        (["--arm", "chemo"], "several arms"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    tables: Any, options: Any, match: str
) -> None:
    timed = ["--time", "day"] if "--t1" in options else []
    run = _run(str(tables[0] / "visits.csv"), *BASE, *options, *timed)
    assert run.exit_code == 2
    assert match in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_horizon_that_is_no_multiple_of_the_step_is_refused_before_the_fit(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TreatmentEffect, "fit", lambda *_, **__: pytest.fail("it was fitted"))
    file = str(tables[0] / "visits.csv")
    run = _run(file, *BASE, *TREATED, "--horizon", "0.6")
    assert run.exit_code == 2, run.output
    assert "--horizon must be a positive multiple of" in run.output
    other = _run(file, *BASE[:-1], "0.5", *TREATED, "--time", "day", "--horizon", "0.75")
    assert "add --dt 0.25" in other.output  # what is wrong with --dt comes first


def test_times_that_do_not_fit_the_step_say_what_to_do(tables: Any, tmp_path: Any) -> None:
    table = pd.read_csv(tables[0] / "visits.csv")
    options = ["--subject", "id", "--variables", "volume", *TREATED, "--time", "day"]
    run = _run(str(tables[0] / "visits.csv"), *options)
    assert run.exit_code == 2
    assert "add --dt 0.25" in run.stderr
    table.assign(day=table["day"] ** 2).to_csv(tmp_path / "uneven.csv", index=False)
    run = _run(str(tmp_path / "uneven.csv"), *options)
    assert run.exit_code == 2
    assert "retrace fit --covariates" in run.stderr


def test_assumptions_are_told_and_treatments_never_given_refused(tmp_path: Any) -> None:
    """Two drugs never given together; the outcome of litters is alike."""
    rng = np.random.default_rng(0)
    n, T = 40, 8
    drug = rng.integers(0, 3, size=(n, T))
    x = [rng.normal(size=n)]
    for t in range(T - 1):
        x.append(0.8 * x[-1] + (drug[:, t] > 0) + 0.2 * rng.normal(size=n))
    frame = pd.DataFrame({"id": np.repeat([f"s{j}" for j in range(n)], T), "x": np.stack(x, axis=1).ravel(),
                          "a": (drug == 1).ravel() * 1.0, "b": (drug == 2).ravel() * 1.0, "day": np.tile(np.arange(T), n),
                          "litter": np.repeat([f"l{j // 4}" for j in range(n)], T)})  # fmt: skip
    frame.to_csv(tmp_path / "drugs.csv", index=False)
    options = [str(tmp_path / "drugs.csv"), "--subject", "id", "--variables", "x", "--time", "day", "--treatment", "a,b",
               "--draws", "20", "--subjects", "alike"]  # fmt: skip
    run = _run(*options)
    assert run.exit_code == 2
    assert "a and b were never given together" in run.stderr
    assert "--outside-support allow" in run.stderr
    assert "outside_support=" not in run.stderr
    run = _run(*options, "--outside-support", "allow")
    assert run.exit_code == 0, run.output
    asked = [*options, "--t1", "1,0"]
    alone, grouped = (json.loads(_run(*asked, "--json", *more).stdout) for more in ([], ["--group", "litter"]))  # fmt: skip
    assert alone["ate"] == grouped["ate"]
    assert alone["ate_interval"] != grouped["ate_interval"]
    assert grouped["warnings"] == []
    assert any("Positivity" in each for each in alone["assumptions"])
    assert "g-formula" in alone["estimand"]
    assert alone["confounding"] is None
    assert alone["sensitivity"]["to_zero"][0] > 0
    text = _run(*options, "--t1", "1,0", "--subjects", "fixed").stdout
    for label in ("Sensitivity", "Estimand", "Assumes"):
        assert f"\n{label} " in text
    assert "score test, p = " in text


def test_columns_that_a_fit_leaves_out_are_left_out_and_named(tmp_path: Any) -> None:
    """A constant column ended the command, and a clock had an effect."""
    cohort = simulate_cohort(30, random_state=5)
    X, u, (n, T) = cohort.observed, cohort.covariates, cohort.observed.shape[:2]
    frame = pd.DataFrame({
        "id": np.repeat(np.arange(n), T), "visit": np.tile(np.arange(T), n), "volume": X.ravel(), "chemo": u[:, :T, 0].ravel(),
        "radio": u[:, :T, 1].ravel(), "height": 7.0, "count": 1000 + np.tile(np.arange(T), n),
        "arm": np.repeat(np.arange(n) % 2, T),
    })  # fmt: skip
    file = tmp_path / "t.csv"
    frame.to_csv(file, index=False)
    columns = ["--subject", "id", "--slice", "visit", "--dt", "0.25", "--draws", "20", "--json"]
    for given in (["--treatment", "chemo,radio"], ["--arm", "arm", "--control", "0"]):
        if given[0] == "--arm":
            frame.drop(columns=["chemo", "radio"]).to_csv(file, index=False)
        run = _run(str(file), *columns, *given, "--both-directions")
        assert run.exit_code == 0, run.output
        answer = json.loads(run.stdout)
        assert answer["outcomes"] == ["volume"]
        assert any(
            "constant within every subject: " in n and "'height'" in n for n in answer["notes"]
        )
        assert any("'count' looks like a clock" in each for each in answer["notes"])
    frame[["id", "visit", "count", "arm"]].to_csv(file, index=False)
    run = _run(str(file), *columns, "--arm", "arm", "--control", "0")
    assert run.exit_code == 2
    assert "no variable has dynamics of its own" in run.output


def test_a_boolean_treatment_is_taken_and_text_is_refused_with_its_remedy(tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    n, T = 20, 6
    u, x = rng.random((n, T)) < 0.5, [rng.normal(size=n)]
    for t in range(T - 1):
        x.append(0.5 * x[-1] + u[:, t] + 0.2 * rng.normal(size=n))
    frame = pd.DataFrame({"id": np.repeat(np.arange(n), T), "day": np.tile(np.arange(T), n), "y": np.stack(x, axis=1).ravel(),
                          "drug": u.ravel(), "male": np.repeat(np.arange(n) % 2 == 0, T)})  # fmt: skip
    asked = ["--subject", "id", "--time", "day", "--treatment", "drug", "--draws", "20", "--json"]
    answers = []
    for column in (u.ravel(), u.ravel().astype(int)):
        frame.assign(drug=column).to_csv(tmp_path / "t.csv", index=False)
        run = _run(str(tmp_path / "t.csv"), *asked)
        assert run.exit_code == 0, run.output
        answers.append(json.loads(run.stdout))
    assert answers[0]["ate"] == answers[1]["ate"]
    note = "Left out, since boolean: 'male'; a treatment among them can be an input (--treatment)."
    assert note in answers[0]["notes"]
    frame.assign(drug=np.where(u.ravel(), "yes", "no")).to_csv(tmp_path / "t.csv", index=False)
    assert "Write it as 0 and 1" in _run(str(tmp_path / "t.csv"), *asked).output
