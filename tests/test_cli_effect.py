"""`retrace effect` as a stranger meets it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from retrace_sde.cli import main
from retrace_sde.tumour import Cohort, simulate_cohort


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
    cohort = simulate_cohort(60, random_state=5)
    _frame(cohort, "a").to_csv(folder / "visits.csv", index=False)
    arms = [_frame(simulate_cohort(40, arm=a, random_state=6), a) for a in ("untreated", "treated")]  # type: ignore[arg-type]
    pd.concat(arms).to_csv(folder / "arms.csv", index=False)
    return folder, (cohort.expected("treated") - cohort.expected("untreated"))[:, -1].mean()


BASE = ["--subject", "id", "--variables", "volume", "--dt", "0.25"]
TREATED = ["--treatment", "chemo,radio", "--t0", "0,0", "--t1", "5,1", "--draws", "50"]


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
    assert len(table) == 60
    np.testing.assert_allclose(table["effect"].mean(), answer["ate"])
    timed = _run(file, *BASE, *TREATED, "--time", "day")
    assert timed.exit_code == 0, timed.output
    assert "given by the times" in timed.stdout
    assert "95 % interval" in timed.stdout


def test_effects_of_arms(tables: Any) -> None:
    run = _run(str(tables[0] / "arms.csv"), *BASE, "--arm", "arm", "--t0", "untreated", "--t1", "treated",
               "--draws", "50", "--json")  # fmt: skip
    assert run.exit_code == 0, run.output
    assert -9 < json.loads(run.stdout)["ate"] < -7


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
