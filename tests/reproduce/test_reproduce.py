"""The paper's experiments: what is recorded, what it shows, and that a kill changes nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from retrace_sde import reproduce as experiments
from retrace_sde.cli.main import main
from retrace_sde.io.writing import RECORD_FILE
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.reproduce import NAMES, figure2, figure5, files, load, methods, table1
from retrace_sde.reproduce.cases import Size
from retrace_sde.reproduce.experiment import Experiment, Log, Task, run
from retrace_sde.reproduce.summary import distinct, values, where

KEYS = [
    "setting",
    "method",
    "seed",
    "accuracy",
    "accuracy_up_to_reversal",
    "kendall_tau",
    "neighbour_share",
    "mae_drift",
    "mae_diffusion",
    "seconds",
    "direction_identified",
]
SMALL = replace(
    figure5.EXPERIMENT,
    quick=replace(
        figure5.EXPERIMENT.quick,
        base=Size(d=3, n=10, T=12),
        knobs=(figure5.Knob("n", (2, 5)), figure5.Knob("d", (1, 3))),
        seeds=1,
    ),
)
"""Figure 5 with two of its knobs, on small panels."""

RUN = """
import sys
from dataclasses import replace
from pathlib import Path
from retrace_sde.reproduce import figure5, files
from retrace_sde.reproduce.experiment import run

folder, knobs = Path(sys.argv[1]), (figure5.Knob("n", (2, 5)), figure5.Knob("d", (1, 3)))
base = replace(figure5.EXPERIMENT.quick.base, d=3, n=10, T=12)
settings = replace(figure5.EXPERIMENT.quick, base=base, knobs=knobs, seeds=1)
records = run(figure5.EXPERIMENT, settings, folder, jobs=int(sys.argv[2]))
files.write(files.Finished(figure5.EXPERIMENT, settings, records), folder, command="retrace")
"""


def command(folder, jobs):
    return [sys.executable, "-c", RUN, str(folder), jobs]


def without_seconds(path):
    return [
        {k: v for k, v in row.items() if k != "seconds"} for row in json.loads(path.read_text())
    ]


@pytest.fixture(scope="module")
def killed_and_whole(tmp_path_factory):
    """A run that was killed and started again in two processes, and one that ran in one piece."""
    folder = tmp_path_factory.mktemp("runs")
    killed, whole = folder / "killed", folder / "whole"
    log = killed / "figure5.records.jsonl"
    victim = subprocess.Popen(command(killed, "1"))
    while not log.exists() or log.read_bytes().count(b"\n") < 8:
        assert victim.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    half = log.read_bytes()
    subprocess.run(command(killed, "2"), check=True)
    records = run(SMALL, SMALL.quick, whole)
    files.write(files.Finished(SMALL, SMALL.quick, records), whole, command="retrace")
    return killed, whole, half


def test_a_killed_run_resumes_and_gives_the_files_of_a_whole_one(killed_and_whole):
    """All but the measured seconds are equal, to the byte for the pictures and the text."""
    killed, whole, half = killed_and_whole
    finished = half[: half.rfind(b"\n") + 1]
    total = len(list(figure5.tasks(SMALL.quick)))
    assert 8 <= finished.count(b"\n") < total
    log = (killed / "figure5.records.jsonl").read_bytes()
    assert log.startswith(
        finished
    )  # nothing that was finished ran again: its seconds are the first ones
    assert log.count(b"\n") == total
    assert without_seconds(killed / "figure5.json") == without_seconds(whole / "figure5.json")
    for name in ("figure5.md", "figure5.png", "figure5.svg"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    assert sorted(path.name for path in killed.iterdir()) == sorted(
        path.name for path in whole.iterdir()
    )


def test_the_command_resumes_too_and_is_silent_in_a_pipe(killed_and_whole, monkeypatch):
    """From a finished log: no progress, no escape codes, and the same bytes except for the command's name."""
    killed, *_ = killed_and_whole
    monkeypatch.setattr(experiments, "load", lambda name: SMALL)
    made_anew = ("figure5.md", RECORD_FILE)  # the command's name, and the digest of that page
    before = {
        path.name: path.read_bytes() for path in killed.iterdir() if path.name not in made_anew
    }
    arguments = ["reproduce", "figure5", "--quick", "--out", str(killed)]
    plain, as_json = (CliRunner().invoke(main, [*arguments, *more]) for more in ([], ["--json"]))
    for result in (plain, as_json):
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        assert "\x1b" not in result.stdout
    assert "figure5.svg" in plain.stdout.splitlines()[-1]
    records = json.loads(as_json.stdout)["records"]["figure5"]
    assert len(records) == len(json.loads((killed / "figure5.json").read_text()))
    after = {
        path.name: path.read_bytes() for path in killed.iterdir() if path.name not in made_anew
    }
    assert after == before
    assert "`retrace reproduce figure5 --quick`" in (killed / "figure5.md").read_text()


def toy(counter):
    """An experiment whose tasks leave a trace each time they run."""

    def tasks(settings):
        for seed in range(settings.seeds):
            yield Task({"seed": seed}, partial(_trace, counter, seed, settings.dt))

    return replace(figure5.EXPERIMENT, name="toy", columns=("seed",), tasks=tasks)


def _trace(counter, seed, dt):
    counter.append(seed)
    return [{"seed": seed, "dt": dt}]


def test_finished_tasks_are_skipped_more_seeds_are_added_and_other_settings_do_not_mix(tmp_path):
    ran: list[int] = []
    small = Size(1, 1, 1, 0.5)
    experiment: Experiment = toy(ran)
    settings = _Toy(2, small.dt)
    assert len(run(experiment, settings, tmp_path)) == 2
    assert [r["seed"] for r in run(experiment, _Toy(3, 0.5), tmp_path)] == [0, 1, 2]
    assert ran == [0, 1, 2]
    assert run(experiment, _Toy(1, 0.25), tmp_path) == [{"seed": 0, "dt": 0.25}]
    assert ran == [0, 1, 2, 0]


class _Toy:
    def __init__(self, seeds, dt):
        self.seeds, self.dt = seeds, dt


def test_a_line_cut_short_is_dropped_and_its_task_runs_again(tmp_path):
    ran: list[int] = []
    run(toy(ran), _Toy(3, 1.0), tmp_path)
    log = tmp_path / "toy.records.jsonl"
    whole = log.read_bytes()
    os.truncate(log, len(whole) - 5)
    with pytest.warns(ReTraceWarning, match="half a line"):
        assert len(run(toy(ran), _Toy(3, 1.0), tmp_path)) == 3
    assert ran == [0, 1, 2, 2]
    assert log.read_bytes() == whole


def test_blank_and_foreign_lines_are_passed_over_and_kept(tmp_path):
    ran: list[int] = []
    run(toy(ran), _Toy(2, 1.0), tmp_path)
    log = tmp_path / "toy.records.jsonl"
    first, second = log.read_bytes().splitlines(keepends=True)
    strange = (
        first + b'\n\n[1]\nhello\n\xff\xfe\n{"task": 1, "records": [{}]}\n{"task": "a"}\n' + second
    )
    log.write_bytes(strange)
    with pytest.warns(ReTraceWarning, match="5 lines that are no records"):
        assert len(run(toy(ran), _Toy(3, 1.0), tmp_path)) == 3
    assert ran == [0, 1, 2]
    assert log.read_bytes().startswith(strange)


def test_a_log_that_is_not_ours_is_left_alone(tmp_path):
    log = tmp_path / "toy.records.jsonl"
    log.write_text("my notes\nhalf a line")
    with pytest.raises(ValueError, match="not a log of retrace"):
        run(toy([]), _Toy(2, 1.0), tmp_path)
    assert log.read_text() == "my notes\nhalf a line"


class _Slow:
    """A file that takes three bytes at a time, and fails at a given one."""

    def __init__(self, file, most):
        self.file, self.left = file, most

    def write(self, content):
        if self.left <= 0:
            raise OSError(28, "No space left on device")
        count = self.file.write(content[: min(3, self.left)])
        self.left -= count
        return count

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


def test_short_writes_are_finished_and_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    log, most = Log(tmp_path / "log"), 10**6
    plain = type(log.path).open
    monkeypatch.setattr(type(log.path), "open", lambda *a, **o: _Slow(plain(*a, **o), most))
    log.append("one", [{"a": 1}])
    most = 7
    with pytest.raises(OSError, match="No space"):
        log.append("two", [{"a": 2}])
    monkeypatch.undo()
    assert log.read() == {"one": [{"a": 1}]}


def test_a_file_that_reproduce_did_not_write_stays(tmp_path):
    (tmp_path / "table1.csv").write_text("mine")
    result = CliRunner().invoke(main, ["reproduce", "table1", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "table1.csv was not written by retrace" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["table1.csv"]


def test_a_task_that_fails_leaves_what_was_finished(tmp_path):
    def tasks(settings):
        yield Task({"seed": 0}, partial(_trace, [], 0, 1.0))
        yield Task({"seed": 1}, partial(int, "not a number"))

    with pytest.raises(ValueError, match="not a number"):
        run(replace(toy([]), tasks=tasks), _Toy(2, 1.0), tmp_path)
    assert len(Log(tmp_path / "toy.records.jsonl").read()) == 1


@pytest.fixture(scope="module")
def small_table(tmp_path_factory):
    """Table 1 at a size that runs in seconds: its records and its files."""
    folder = tmp_path_factory.mktemp("table1")
    installed = methods.available
    with pytest.MonkeyPatch.context() as patch:
        without_scanpy = [name for name in table1.METHODS if name != "scanpy DPT"]
        patch.setattr(table1, "available", lambda *names: installed(*without_scanpy))
        patch.setattr(methods, "EM_STEPS", 1)
        patch.setattr(methods, "EM_TRAJECTORIES", 20)
        settings = table1.Settings(Size(d=20, n=200, T=60), seeds=2)
        records = run(table1.EXPERIMENT, settings, folder)
    done = files.Finished(table1.EXPERIMENT, settings, records)
    files.write(done, folder, command="retrace reproduce table1")
    return records, folder, done


def test_table1_records_have_the_published_keys(small_table):
    _, folder, _ = small_table
    rows = json.loads((folder / "table1.json").read_text())
    assert all(list(row) == KEYS for row in rows)
    with (folder / "table1.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == KEYS
    assert len(table) == len(rows) == 5 * 2 * 9
    assert float(table[3]["accuracy"]) == rows[3]["accuracy"]
    assert distinct(rows, "setting") == [
        "paper",
        "growing",
        "stable-small",
        "stable-large",
        "stationary",
    ]


def test_table1_says_what_the_paper_says_where_it_is_so(small_table):
    records, folder, _ = small_table
    printed = where(records, setting="paper", method="Algorithm 1-MLE")
    assert all(max(each["rounds"]) >= 0.99 for each in printed)
    assert any(min(each["rounds"]) < 0.5 for each in printed)  # and loses it again
    rounds = json.loads((folder / "table1_rounds.json").read_text())
    assert {each["round"] for each in rounds} == set(range(1, 11))


def test_the_likelihood_order_is_right_wherever_time_has_a_direction(small_table):
    records, *_ = small_table
    for ours, oracle in zip(
        where(records, method="ReTrace-likelihood"), where(records, method="oracle"), strict=True
    ):
        assert ours["accuracy_up_to_reversal"] == 1
        assert ours["direction_identified"] == (ours["setting"] != "stationary")
        if ours["direction_identified"]:
            assert ours["accuracy"] == 1
            for key in ("mae_drift", "mae_diffusion"):
                assert ours[key] == pytest.approx(oracle[key], rel=1e-9)


def test_table1_in_words_follows_the_numbers(small_table):
    records, folder, done = small_table
    text = (folder / "table1.md").read_text()
    assert text.startswith("# Table 1")
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 1 + 5
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    assert [len(table.splitlines()) for table in tables] == [2 + 9 + 3, *[2 + 9] * 5]
    assert "is met, in some round, in: paper" in text
    assert "calls the direction in 8 of 10 panels" in text
    # The sentences are made from the records: with other numbers they say otherwise.
    blind = [{**each, "direction_identified": None} for each in records]
    assert "calls the direction in 0 of 10" in table1.EXPERIMENT.text(blind, done.settings)
    assert "seeds 0, 1;" in text
    assert "`retrace reproduce table1`" in text


def test_all_experiments_have_three_sizes_and_unique_tasks():
    for name in NAMES:
        experiment = load(name)
        assert experiment.name == name
        for settings in (experiment.full, experiment.quick, experiment.tiny):
            keys = [json.dumps(dict(task.key)) for task in experiment.tasks(settings)]
            assert len(set(keys)) == len(keys) > 0


def test_figure3_weighs_all_permutations_of_short_sequences(tmp_path):
    arguments = ["reproduce", "figure3", "--tiny", "--jobs", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    records = json.loads(result.stdout)["records"]["figure3"]
    assert [each["arm"] for each in records] == ["treated", "untreated", "observational"]
    for each in records:
        assert each["permutations"] == 24
        assert 0 <= each["probability_of_truth"] + each["probability_of_reverse"] <= 1
    assert "`retrace reproduce figure3 --tiny`" in (tmp_path / "figure3.md").read_text()


def test_figure2_shows_what_ignored_noise_costs(tmp_path, monkeypatch):
    few = ("Algorithm 1-MLE", "MST-MLE", "oracle", "oracle, noise estimated")
    monkeypatch.setattr(figure2, "available", lambda *names: few)
    settings = figure2.Settings((60,), (0.1, 0.5), seeds=1)
    records = run(figure2.EXPERIMENT, settings, tmp_path)
    ignored, modelled = (
        values(where(records, method=name, sigma=0.5), "mae_drift")[0]
        for name in ("oracle", "oracle, noise estimated")
    )
    assert ignored > 5 * modelled
    files.write(files.Finished(figure2.EXPERIMENT, settings, records), tmp_path, command="c")
    assert (tmp_path / "figure2.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_holds_every_experiment(tmp_path, small_table):
    *_, done = small_table
    path = files.write_readme([done, done], tmp_path, command="retrace reproduce all --quick")
    text = path.read_text()
    assert text.count("## Table 1") == 2
    assert "`retrace reproduce all --quick`" in text
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce", "figure9"], "figure9"),
        (["reproduce", "table1", "--seeds", "0"], "--seeds"),
        (["reproduce", "table1", "--jobs", "0"], "--jobs"),
        (["reproduce", "table1", "--quick", "--tiny"], "--tiny"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    result = CliRunner().invoke(main, ["reproduce", "table1", "--out", str(tmp_path / "taken")])
    assert result.exit_code == 2
    assert "is a file" in result.stderr


@pytest.mark.statistics
def test_scanpys_pseudotime_agrees_up_to_reversal_with_our_own():
    pytest.importorskip("scanpy")
    from retrace_sde.reproduce.cases import case

    panel = case(table1.REGIMES[2], Size(d=20, n=300, T=100), 0)
    theirs, ours = (methods.score(name, panel) for name in ("scanpy DPT", "DPT, proper root"))
    assert theirs["accuracy_up_to_reversal"] > 0.9
    assert ours["accuracy_up_to_reversal"] > 0.9
