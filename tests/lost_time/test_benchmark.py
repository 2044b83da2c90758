"""The benchmark of lost time: what is hidden stays hidden, the oracle is perfect, chance is not, and the command tells both."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.lost_time import Answer
from retrace_sde.lost_time.methods import record
from retrace_sde.lost_time.panels import SIMULATED, hidden, names
from retrace_sde.lost_time.table import run, summary


@pytest.mark.parametrize("name", SIMULATED)
def test_panels_are_finite_and_the_same_for_the_same_seed(name):
    one, again, other = (hidden(name, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.values, again.values)
    assert not np.array_equal(one.values, other.values)
    assert np.isfinite(one.values).mean() >= 0.85
    assert sorted(one.truth) == list(range(one.values.shape[1]))
    assert one.known.shape[1:] == one.values.shape[1:]


def test_hidden_subjects_are_not_among_the_known_ones():
    for name in ("transient", "icu"):
        panel = hidden(name, 0)
        rows = {each.tobytes() for each in panel.known.reshape(-1, panel.known.shape[2])}
        seen = panel.values.reshape(-1, panel.values.shape[2])
        assert np.mean([each.tobytes() in rows for each in seen]) < 0.01


@pytest.mark.parametrize("name", ["transient", "reversible rest"])
def test_the_truth_is_perfect_and_its_reverse_is_a_wrong_direction(name):
    panel = hidden(name, 3)

    def of(answer):
        return record("m", lambda X: answer, panel, with_known=False)

    right = of(Answer(panel.truth, directed=True, drift=panel.drift))
    assert right["accuracy"] == right["tau"] == 1.0
    assert right["wrong"] == (not panel.directed)
    assert right["drift_error"] == 0
    assert of(Answer(panel.truth[::-1], directed=True))["wrong"]
    assert not of(panel.truth[::-1])["wrong"]  # an order alone claims no direction


def chance(X):
    return np.random.default_rng(0).permutation(X.shape[1])


def broken(X):
    raise RuntimeError("no\nidea")


def test_a_method_that_fails_is_told_and_counts_for_nothing():
    found = run([f"{__name__}:broken", f"{__name__}:chance"], ["transient"], [0, 1])
    table = summary(found)
    assert table[f"{__name__}:broken"][0] == 0
    assert table[f"{__name__}:chance"][0] == 2
    assert table[f"{__name__}:chance"][1] < 0.5
    assert found[0]["error"] == "no idea"


def test_the_command(tmp_path):
    out = tmp_path / "found.json"
    asked = ["--method", "MST", "--method", "random forest (learns from others)", "--panel", "wear"]
    said = CliRunner().invoke(main, ["benchmark", *asked, "--out", str(out)])
    assert said.exit_code == 0, said.output
    kept = json.loads(out.read_text())
    assert [row[0] for row in kept["rows"]] == ["MST", "random forest (learns from others)"]
    assert min(row[2] for row in kept["rows"]) > 0.9  # wear only grows
    assert "| MST" in said.output
    for wrong, word in (
        (["--method", "nothing"], "module:function"),
        (["--method", "nothing", "--out", str(out)], "module:function"),
        (["--method", "nowhere:order"], "cannot be imported"),
        (["--panel", "nowhere"], "is none of"),
        (["--out", str(out), "--panel", "wear", "--method", "MST"], "--force"),
    ):
        said = CliRunner().invoke(main, ["benchmark", *wrong])
        assert said.exit_code == 2
        assert word in said.output


PAGE = Path(__file__).parents[2] / "docs" / "benchmark.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the pages are in the repository, not in a wheel")
def test_a_method_beside_the_command(tmp_path, monkeypatch):
    """As docs/benchmark.md has it: saved as a file in the folder where the command is typed."""
    code = r"^```python\n(.*?)^```"
    (written,) = re.findall(code, PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "written_by_a_user.py").write_text(written)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    asked = ["--method", "written_by_a_user:order", "--panel", "wear"]
    said = CliRunner().invoke(main, ["benchmark", *asked])
    assert said.exit_code == 0, said.output
    assert "| written_by_a_user:order" in said.output


def test_a_folder_of_real_panels(tmp_path):
    rows = ["subject,time,x,weight"]
    rows += [f"{who},{t},{t + 0.1 * who},{who}" for who in range(4) for t in range(5)]
    (tmp_path / "gait.csv").write_text("\n".join(rows))
    assert list(names(tmp_path))[-2:] == ["icu", "gait"]
    panel = hidden("gait", 0, tmp_path)
    assert panel.values.shape == (4, 5, 1)  # what does not vary within subjects is left out
    assert not panel.directed
