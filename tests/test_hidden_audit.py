"""What a table gives away once its times are removed: known answers at both ends, columns, rows, and the command."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.audit.hidden import Recovered, _figures, _findings
from retrace_sde.cli.main import main

N, T = 24, 5


def table(values):
    """Subjects at regular times, rows in random order."""
    found = pd.DataFrame(values.reshape(N * T, -1)).add_prefix("x")
    found = found.assign(who=np.repeat(np.arange(N), T), day=np.tile(np.arange(float(T)), N))
    return found.sample(frac=1, random_state=0, ignore_index=True)


def test_figures_are_those_of_all_pairs():
    rng = np.random.default_rng(0)
    P = rng.random((3, 4, 4))
    P = np.where(P + P.transpose(0, 2, 1) == 0, 0.5, P / (P + P.transpose(0, 2, 1)))
    times = rng.permuted(np.tile(np.arange(4.0), (3, 1)), axis=1)
    signs = np.sign(times[:, None, :] - times[:, :, None])
    tau, sure, right = _figures(P, np.where(signs == 0, np.nan, signs), (1, 2))
    for j in range(3):
        pairs = [(a, b) for a in range(4) for b in range(4) if times[j, a] < times[j, b]]
        assert tau[j] == pytest.approx(np.mean([2 * P[j, a, b] - 1 for a, b in pairs]))
        certain = [(a, b) for a, b in pairs if max(P[j, a, b], 1 - P[j, a, b]) >= 0.9]
        assert sure[j] == pytest.approx(len(certain) / len(pairs))
        if certain:
            assert right[j] == pytest.approx(np.mean([P[j, a, b] > 0.5 for a, b in certain]))


@pytest.mark.usefixtures("brief")
def test_a_course_is_given_away_and_noise_is_not():
    rng = np.random.default_rng(1)
    course = np.cumsum(1 + 0.2 * rng.standard_normal((N, T)), axis=1)
    noise = rng.standard_normal((N, T))
    data = table(np.stack([course, noise], axis=2))
    found = rt.audit_hidden(data, subject="who", time="day", random_state=0)
    assert found.table["tau"].mean() > 0.95
    assert found.table["sure_right"].mean() > 0.95
    columns = found.columns.set_index("column")
    assert columns.loc["x0", "lost"] > 0.5
    assert abs(columns.loc["x1", "lost"]) < 0.1
    assert columns.loc["x0", "alone"] > 0.95
    assert "'x0'" in found.summary()
    still = table(np.random.default_rng(2).standard_normal((N, T, 2)))
    hidden = rt.audit_hidden(still, subject="who", time="day", random_state=0)
    assert abs(hidden.table["tau"].mean()) < 0.15
    assert hidden.table["sure"].mean() < 0.1


@pytest.mark.usefixtures("brief")
def test_other_clocks_and_the_order_of_rows():
    data = table(np.random.default_rng(2).standard_normal((N, T, 2)))
    clock = pd.to_datetime("2020-01-01") + pd.to_timedelta(data["day"], unit="D")
    data = data.assign(taken=clock.dt.strftime("%Y-%m-%d")).sort_values(["who", "day"])
    found = rt.audit_hidden(data, subject="who", time="day", random_state=0)
    assert found.columns.set_index("column").loc["taken", "alone"] == pytest.approx(1)
    assert "'taken'" in found.summary()
    assert "stand in time order" in found.findings[-1]


def test_one_order_for_all():
    X = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(N, T, 0.1, random_state=1)
    data = table(X).assign(plate=lambda each: each["day"].map(dict(enumerate("dbeac"))))
    found = rt.audit_hidden(data, subject="who", time="day", slice="plate", random_state=0)
    assert sorted(found.table["slice"]) == sorted("dbeac")
    assert found.table["tau_uninformed"].mean() > 0.9
    assert "tau" not in found.table


@pytest.mark.usefixtures("brief")
def test_the_command(tmp_path):
    X = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(N, T, 0.2, random_state=1)
    table(X).to_csv(tmp_path / "t.csv", index=False)
    command = f"audit {tmp_path}/t.csv --subject who --time day --hidden --out {tmp_path}/o.csv"
    done = CliRunner().invoke(main, [*command.split(), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert 0 < answer["tau"] <= 1
    assert {each["column"] for each in answer["columns"]} == {"x0", "x1", "x2"}
    assert len(pd.read_csv(tmp_path / "o.csv")) == N
    refused = CliRunner().invoke(main, [*command.split(), "--time-error", "1", "--force"])
    assert refused.exit_code == 2
    assert "--time-error" in refused.output


def test_the_larger_risk_is_named_and_columns_do_not_exclude_each_other():
    table = pd.DataFrame({"subject": [0, 1], "observations": 5, "tau": 0.86, "sure": 0.8, "sure_right": 1.0,
                          "tau_uninformed": 0.9, "sure_uninformed": 0.86})  # fmt: skip
    columns = pd.DataFrame(
        {"column": ["a", "c"], "tau_without": 0.85, "lost": 0.01, "alone": [0.98, -0.97]}
    )
    nothing = np.zeros((2, 5, 5))
    said = " ".join(_findings(table, columns, Recovered(nothing, "right")))
    assert "86% of the pairs are sure. This is the larger risk: the dated records above are those of half" in said  # fmt: skip
    assert (
        "Removing a single column does not help: without any one of them τ falls by at most .02. Each of these alone sorts the rows of "
        "nearly every subject: 'a', 'c'. Remove or coarsen all of them."
    ) in said
    said = " ".join(_findings(table, columns[:1], Recovered(nothing, "open")))
    assert "larger risk" not in said  # up to the direction
    assert "'a' alone sorts the rows of nearly every subject: remove or coarsen it." in said
