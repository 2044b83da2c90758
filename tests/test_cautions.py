"""What a newcomer must be told: inputs taken for variables, times that say nothing, units, and progress in a pipe."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from rich.console import Console

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.evidence.identifiability import entropy_interval
from retrace_sde.fit.moments import moments
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.panel import PER_VISIT
from retrace_sde.progress import Progress, bar
from retrace_sde.show.verdicts import verdicts

T = 8


@pytest.fixture(scope="module")
def trial() -> pd.DataFrame:
    """A drug that is switched on and off, and pushes a; b follows a."""
    rng = np.random.default_rng(0)
    x, rows = rng.normal(size=(40, 2)) * 0.2 + [2, 0], []
    for t in range(T):
        drug = rng.integers(0, 2, 40)
        rows.append(pd.DataFrame({"patient": [f"p{j}" for j in range(40)], "visit": f"v{(5 * t) % T}", "day": t * 7.0,
                                  "a": x[:, 0], "b": x[:, 1], "drug": drug}))  # fmt: skip
        move = x @ np.array([[-0.3, 0.0], [0.4, -0.3]]).T + drug[:, None] * [0.5, 0.0]
        x = x + move + 0.05 * rng.normal(size=(40, 2))
    return pd.concat(rows, ignore_index=True)


def test_a_switched_column_is_cautioned_and_proposed_as_an_input(trial: Any, tmp_path: Any) -> None:
    trial.to_csv(tmp_path / "trial.csv", index=False)
    columns = ["--subject", "patient", "--slice", "visit", "--variables", "a,b,drug"]
    run = CliRunner().invoke(main, ["diagnose", str(tmp_path / "trial.csv"), *columns])
    assert re.search(r"Next .*--variables a,b --covariates drug", run.output), run.output
    given = {"subject": "patient", "slice": "visit", "random_state": 0}
    with pytest.warns(
        rt.ReTraceWarning, match=r"'drug' holds few distinct values.*\(covariates=\['drug'\]\)"
    ):
        rt.recover(trial, variables=["a", "b", "drug"], **given)


def test_the_report_begins_with_what_the_drug_does_and_says_the_unit(trial: Any) -> None:
    found = rt.recover(trial, subject="patient", slice="visit", variables=["a", "b"], covariates="drug", random_state=0)  # fmt: skip
    first = verdicts(found.model, found.panel)[0]
    assert first.question == "What does drug do?"
    assert "significant" in first.answer
    assert re.match(
        r"drug changes the rate of a by [+−-]?[\d.+]+ per visit \(95 %", first.sentences[0]
    )
    assert PER_VISIT in found.panel.notes
    timed = rt.recover(trial, subject="patient", slice="visit", time="day", variables=["a", "b"], random_state=0)  # fmt: skip
    assert PER_VISIT not in timed.panel.notes


def test_times_with_an_error_as_long_as_their_span_are_cautioned(trial: Any) -> None:
    given = {"subject": "patient", "slice": "visit", "time": "day", "variables": ["a", "b"]}
    said = str(rt.diagnose(trial, time_error=40.0, **given))
    assert "! time: The times span 49 and have a standard error of 40" in said
    with pytest.warns(rt.ReTraceWarning, match="almost no information about the order"):
        rt.recover(trial, time_error=40.0, random_state=0, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "almost no information" not in str(rt.diagnose(trial, time_error=2.0, **given))


def test_entropy_production_has_an_interval_that_covers() -> None:
    sde = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
    truth, dt, hits = sde.entropy_production(), 0.01, 0
    for seed in range(40):
        X = sde.simulate(20, 50, dt, x0=sde.stationary(), random_state=seed)
        found = moments(Data(X), np.arange(50), dt, rt.drift.Affine())
        A = np.linalg.lstsq(np.c_[X[:, :-1].reshape(-1, 2), np.ones(20 * 49)], np.diff(X, axis=1).reshape(-1, 2) / dt,
                            rcond=None)[0][:2].T  # fmt: skip
        limits = entropy_interval(found, rt.LinearSDE(A, np.eye(2)))
        assert limits is not None
        hits += limits[0] < truth < limits[1]
    assert 32 <= hits <= 40


def test_progress_in_a_pipe_is_plain_lines() -> None:
    for lines, want in ((True, ["0 s: preparing", "1 s: searching 40%, about 9 s left"]), (False, [])):  # fmt: skip
        pipe = io.StringIO()
        with bar(lines=lines, console=Console(file=pipe, force_terminal=False)) as tell:
            tell(Progress("preparing", None, 0.0, None))
            tell(Progress("searching", 0.4, 1.0, 9.0))
            tell(Progress("searching", 0.5, 2.0, 8.0))  # too soon
        assert pipe.getvalue().splitlines() == want


def test_the_readme_installs_from_a_clone() -> None:
    text = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    assert "pip install '.[app]'" in text
    assert "the first time" in text
