"""What the README and the first page of the docs show is what happens: Python and commands are run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrace_sde.cli.main import main
from retrace_sde.reproduce import NAMES
from retrace_sde.reproduce.files import FILE_KINDS

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


def _commands() -> list[str]:
    """Every `retrace …` and `make …` of the pages, in blocks and in running text, once each; those after a dollar sign ran above.

    Those that are the same in small run once.
    """
    found: dict[tuple[str, ...], str] = {}
    for page in (README, START, RESULTS):
        if not page.exists():
            continue
        lines = [line for block in blocks("", page) for line in block.splitlines()]
        inline = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for each in [*lines, *inline]:
            command = each.partition(" #")[0].strip()
            if re.match(r"(retrace|make) [a-z]", command):
                program, *arguments = shlex.split(command)
                small = _in_small(arguments) if program == "retrace" else arguments
                found.setdefault((program, *small), command)
    return list(found.values())


def _in_small(arguments: list[str]) -> list[str]:
    """The same on a size that runs in seconds; what serves, or runs for a minute, is asked what it can do."""
    name, *rest = arguments
    if name == "simulate" and not rest:
        return [*arguments, "--subjects", "8", "--slices", "5", "--out", "simulated.csv"]
    if name in ("demo", "app") or not rest:
        return [*arguments, "--help"]
    if name == "reproduce":  # one folder for all: what one command has run the next one finds there
        kept = [each for each in rest if not each.startswith("--") and each != "results"]
        return [name, *kept, "--tiny", "--jobs", "1", "--out", "results"]
    return [*arguments, "--force"] if name == "fit" else arguments


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with a small table under the names that the pages use."""
    folder = tmp_path_factory.mktemp("desk")
    path = folder / "visits.csv"
    small = ["--subjects", "20", "--slices", "8", "--variables", "2", "--seed", "1"]
    run = CliRunner().invoke(main, ["simulate", *small, "--out", str(path)])
    assert run.exit_code == 0, run.output
    header, rows = path.read_text().split("\n", 1)
    assert header.startswith("subject,slice,")
    path.write_text(f"{header.replace('subject,slice', 'patient,visit')}\n{rows}")
    return folder


@pytest.mark.parametrize("command", _commands() if README.exists() else [])
def test_every_command_runs(command, desk, monkeypatch):
    monkeypatch.chdir(desk)
    program, *arguments = shlex.split(command)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{each}:", makefile, re.MULTILINE) for each in arguments)
        return
    run = CliRunner().invoke(main, _in_small(arguments))
    assert run.exit_code == 0, (command, run.output)
    if arguments[:2] == ["reproduce", "all"]:
        written = {path.name for path in (desk / "results").iterdir()}
        assert {f"{name}.{kind}" for name in NAMES for kind in FILE_KINDS} <= written
        assert "README.md" in written
        assert all((desk / "results" / name).stat().st_size for name in written)
