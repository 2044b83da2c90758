"""What the README and the first page of the docs show is what happens: Python and commands are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main

ROOT = Path(__file__).parents[1]
README, START, RESULTS = (
    ROOT / "README.md",
    ROOT / "docs" / "start.md",
    ROOT / "docs" / "results.md",
)
pytestmark = pytest.mark.skipif(
    not README.exists(), reason="the README is in the repository, not in a wheel"
)


def blocks(kind: str, page: Path = README) -> list[str]:
    """The blocks between fences, of one language; "" for none."""
    parts = re.split(r"^```(.*)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    opened = zip(
        parts[1::4], parts[2::4], strict=True
    )  # language and text; then the closing fence and what follows
    return [text for language, text in opened if language == kind]


def test_the_ten_lines_run_and_recover_the_order(capsys):
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "1.0"


@pytest.mark.parametrize("code", blocks("python")[1:] if README.exists() else [])
def test_every_other_snippet_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def _sessions() -> list[tuple[str, list[str]]]:
    """Commands after a dollar sign, and the lines that the page shows after each."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks("", START):
        if "\n$ " not in f"\n{block}":
            continue
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].partition(" #")[0].strip(), []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def _labels(lines: list[str]) -> list[str]:
    """What each line is about; the figures behind may differ in the last digit from machine to machine."""
    return [line[:2] + line[2:].split()[0] for line in lines]


def test_the_commands_run_and_print_what_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sessions = _sessions()
    assert len(sessions) >= 3
    for command, shown in sessions:
        name, *arguments = shlex.split(command)
        assert name == "retrace"
        run = CliRunner().invoke(main, arguments)
        assert run.exit_code == 0, (command, run.output)
        if shown:
            assert _labels(run.stdout.splitlines()) == _labels(shown)


@pytest.mark.parametrize("command", ["retrace reproduce all --quick --out results"])
def test_long_commands_are_at_least_understood(command):
    _, name, *_ = shlex.split(command)
    assert command in RESULTS.read_text(encoding="utf-8")
    text = CliRunner().invoke(main, [name, "--help"]).stdout
    for option in re.findall(r"--\w+", command):
        assert option in text
