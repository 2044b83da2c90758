"""The command line as a stranger meets it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.reproduce import demo as demonstration


@pytest.fixture(scope="module")
def demo(tmp_path_factory, shortened):
    """All of it, with a smaller panel of single orders, averaged over briefly; `test_json_is_machine_readable` runs it whole."""
    folder = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        small = partial(demonstration.Settings, own=(30, 8))
        patch.setattr(demonstration, "Settings", small)
        shortened(patch)
        run = CliRunner().invoke(main, ["demo", "--out", str(folder)])
    assert run.exit_code == 0, (run.output, run.exception)
    return folder, run


def test_the_demo_recovers_the_order_and_writes_three_figures(demo):
    folder, run = demo
    lines = run.stdout.splitlines()
    ours = next(line for line in lines if line.startswith("ReTrace (likelihood)"))
    oracle = next(line for line in lines if line.startswith("oracle"))
    assert ours.count("100.0%") == 3
    assert ours.split()[6:8] == oracle.split()[7:9]
    said = " ".join(run.stdout.split())
    said = said.split("The same SDE from its stationary distribution:")[1].split("Three variables")[
        0
    ]
    assert "Both are returned." in said
    assert "is identified" not in said
    for name in ("order.png", "drift.png", "direction.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert rt.ReTraceResult.load(folder / "result.npz").direction.identified


def test_the_demo_writes_a_page_whose_links_lead_somewhere(demo):
    folder, _ = demo
    page = (folder / "index.html").read_text(encoding="utf-8")
    for method in ("ReTrace (likelihood)", "Algorithm 1, as printed", "MST, from an end", "oracle"):
        assert method in page
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert {"report.html", "stationary.html", "own-orders.html", "order.png"} <= set(links)
    assert all((folder / link).is_file() for link in links)
    assert "No direction is claimed" in page
    assert "The order is certain" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_demo_ends_with_a_real_panel_beside_its_true_times(demo):
    folder, run = demo
    assert "12 of 12 at their place" in run.stdout
    found = re.search(r"^time found +(.*)$", run.stdout, re.MULTILINE).group(1).split()
    true = re.search(r"^true hour +(.*)$", run.stdout, re.MULTILINE).group(1).split()
    assert found == true == [str(4 * k) for k in range(12)]
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "ODC-BY" in page
    assert 'href="intensive-care.html"' in page


def test_a_pipe_gets_no_progress_bar_and_no_escape_codes(demo):
    _, run = demo
    assert run.stderr == ""
    assert "\x1b" not in run.stdout


@pytest.mark.statistics  # the whole demo
def test_json_is_machine_readable(tmp_path):
    run = CliRunner().invoke(main, ["demo", "--json", "--seed", "3", "--out", str(tmp_path / "o")])
    assert run.exit_code == 0
    rows = {row["method"]: row for row in json.loads(run.stdout)["rows"]}
    assert rows["ReTrace (likelihood)"]["accuracy"] == 1.0
    assert rows["ReTrace (likelihood)"]["mae_drift"] == rows["oracle (true order)"]["mae_drift"]


def test_wrong_use_exits_with_2_and_one_clear_line(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    run = CliRunner().invoke(main, ["demo", "--out", str(file)])
    assert run.exit_code == 2
    assert "is a file; name a folder" in run.stderr
    assert "Traceback" not in run.output
    assert CliRunner().invoke(main, ["dmo"]).exit_code == 2


def test_version_and_help():
    run = CliRunner().invoke(main, ["--version"])
    assert rt.__version__ in run.output
    assert "demo" in CliRunner().invoke(main, ["--help"]).output
    assert Path(rt.__file__).with_name("py.typed").exists()
