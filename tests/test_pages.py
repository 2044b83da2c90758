"""What the pages name is there: functions, files, commands with their options, links."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from functools import reduce
from inspect import signature
from pathlib import Path

import pytest

import retrace_sde as rt
from retrace_sde.cli.main import main

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "src" / "retrace_sde"
FACES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")]
PAGES = [*FACES, *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = pytest.mark.skipif(
    not FACES[0].exists(), reason="the pages are in the repository, not in a wheel"
)
every_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
RECORDS = sorted((ROOT / "docs" / "results").glob("*.json"))
OLD = r"## 0\.2\.0.*"  # what was released is history: its names may be gone
DEFINED = {
    "theory.md": "values of the formula above them"
}  # tables of numbers that nobody measured
MEASURED = r"\b(?:called|wrong|wrongly|right|rightly|cover(?:s|ed|age)?|reject(?:s|ed)?|found|noticed|recovered|missed|appeared|took|takes?|lay|prefers?|processes)\b"
SHARE = (
    r"(?<![\w.])\.\d\d+\b|\b\d+ of (?:the )?\d+\b"
    r"|\b\d[\d.,]* (?:nats|times|standard errors|seconds|s|ms|MB|GB)\b"
    r"|(?<![\d.])(?!(?:1|2|5|95|99) %)\d+(?:\.\d+)? %"  # those are levels of tests and intervals
)
BESIDE_ITS_COMMAND = r"`[^`]*\b(?:python|pytest|retrace|make) [^`]*`"
NOT_MEASURED = (
    "with 40 of .08, with 12 of .14",  # binomial errors
    "the upper 95 % limit of the rate is .22",
    "does not prove a level of .05",
    "accepted in one direction (p > .05) and rejected",  # thresholds
    "either is rejected at .003",
    "rate of false alarms must be at most .001",
    "At 5 % it rejects with a probability of at most .0112",  # proved
    "differs from H by .51",
    "where .05 is meant",
    "6 nats at most",
    "at least 90 % sure",
    "its test counts at .001",
    "are likelier by 2 nats",
    "15 % of the values missing",  # what was put in
    "its direction (+92 nats)",  # `python studies/walks.py` makes that page
)
"""Sentences whose numbers are thresholds, formulas or proofs."""
RENAMED = r"^\| [^|\n]+ \|"  # and so are those of the first column of the changelog's table


def code(page: Path) -> list[str]:
    """Spans between backticks, and lines of fenced blocks."""
    text = re.sub(OLD, "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if page.name == "CHANGELOG.md":
        text = re.sub(RENAMED, "|", text, flags=re.MULTILINE)
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", prose) + [
        line for block in fenced for line in block.splitlines()
    ]


def scripts(page: Path) -> list[tuple[Path, set[str]]]:
    """Scripts of the repository that a page runs, with their options."""
    found = []
    for line in code(page):
        for named in re.finditer(
            r"python (?:-m )?((?:studies|benchmarks)[/.]\w+)(?:\.py)?([^#`|]*)", line
        ):
            file = ROOT / (named[1].replace(".", "/") + ".py")
            found.append((file, set(re.findall(r"--[\w-]+", named[2]))))
    return found


@every_page
def test_python_names_are_there(page):
    """`rt.metrics.order_accuracy`, whatever it is called with."""
    for span in code(page):
        for path in re.findall(r"\brt\.([\w.]*\w)", span):
            reduce(getattr, path.split("."), rt)


@every_page
def test_settings_are_those_of_the_estimator(page):
    for span in code(page):
        for given in re.findall(r"\bReTrace\(([^()]*)", span):
            assert set(re.findall(r"(\w+)=", given)) <= set(signature(rt.ReTrace).parameters), span


@every_page
def test_files_and_what_they_hold_are_there(page):
    """`paper/score.score_preference` is a function of src/retrace_sde/paper/score.py; `tests/paper` is a folder."""
    rooms = "|".join(each.name for each in ROOMS.iterdir() if each.is_dir())
    for span in code(page):
        named = re.fullmatch(rf"((?:{rooms})(?:/\w+)*)/?(?:\.(\w+))?", span)
        if named and "/" in span:
            file = ROOMS / f"{named[1]}.py"
            assert file.exists() or (ROOMS / named[1]).is_dir(), span
            if named[2]:
                held = rf"^(?:def|class) {named[2]}\b|^{named[2]}\b.*="
                assert re.search(held, file.read_text(encoding="utf-8"), re.MULTILINE), span
        elif re.fullmatch(r"(?:tests|properties|studies|benchmarks|docs|src)/[\w/.]*", span):
            assert (ROOT / span).exists(), span


def test_files_of_the_table_of_formulas_are_there():
    """A name without a folder stands in that of the name before it: `fit/statespace/`: `smoother`, `em`."""
    rows = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split(" | ")[2] for row in rows if row.count(" | ") == 3]
    files = [re.findall(r"`([\w/]+)`", cell) for cell in cells if re.match(r"`[a-z_]+(/|`)", cell)]
    assert len(files) > 50
    for names in files:
        folder = ROOMS
        for name in names:
            place = next(each / name for each in (ROOMS, folder) if found(each / name))
            folder = place if place.is_dir() else place.parent


def found(place):
    """A module, or a folder of them."""
    return place.is_dir() or place.with_suffix(".py").exists()


@every_page
def test_scripts_and_their_options_are_there(page):
    for file, options in scripts(page):
        text = file.read_text(encoding="utf-8")
        assert not [each for each in options if f'"{each}"' not in text], file.name


@every_page
def test_commands_and_their_options_are_there(page):
    """`retrace fit FILE --share`; `make docs`."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for span in code(page):
        for target in re.findall(r"^(?:PYTHON=\S+ )?make ([\w-]+)", span):
            assert target in targets, span
        named = re.match(r"(?:\$ )?retrace (\w+)(.*)", span)
        if named:
            command = main.get_command(None, named[1])
            assert command is not None, span
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            asked = set(re.findall(r"(?<![\w-])--[\w-]+", named[2].partition("#")[0]))
            assert asked <= {*known, "--help"}, span


@pytest.mark.parametrize("page", FACES, ids=[page.name for page in FACES])
def test_links_lead_somewhere(page):
    """Those of the site are followed by `make docs`."""
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (ROOT / link).exists(), link


def test_the_recipe_asks_for_what_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")
    asked = re.findall(r"^    - ([\w-]+) >=([\w.]+)$", recipe, re.MULTILINE)
    there = {name.removesuffix("-base"): floor for name, floor in asked}
    assert there == dict(each.split(">=") for each in project["dependencies"])
    assert f'version = "{project["version"]}"' in recipe


def test_tables_are_those_of_the_files_that_commands_wrote():
    """`python .ci/results.py` fills them in."""
    results = runpy.run_path(str(ROOT / ".ci" / "results.py"))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert results["filled"](text) == text, page.name


@every_page
def test_no_table_of_figures_is_typed(page):
    """Cells beyond the first column that hold digits and no word are figures; most cells of a table of figures are."""
    text = re.sub(r"<!-- table: .*?<!-- end of table -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)  # fmt: skip
    for head, body in re.findall(r"^(\|.*)\n\|[-:| ]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE):
        cells = [cell for row in body.splitlines() for cell in row.strip("| ").split("|")[1:]]
        words = [re.sub(r"`[^`]*`", "word", cell) for cell in cells]
        figures = [each for each in words if re.search(r"\d", each) and not re.search(r"[^\W\d_]{3,}", each)]  # fmt: skip
        assert 2 * len(figures) <= len(cells) or page.name in DEFINED, head


def sentences(text: str) -> list[str]:
    """Of running text: without tables, code, and numbers that are read from files; paragraphs that name the command behind their numbers are left out."""
    for block in (r"<!-- table: .*?<!-- end of table -->", r"^```.*?^```", r"<!-- figure: [^>]*-->[^<]*<!-- -->"):  # fmt: skip
        text = re.sub(block, "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = re.split(r"\n\s*\n|\n *(?=[-*|] )", text)
    lone = [each for each in paragraphs if not re.search(BESIDE_ITS_COMMAND, each)]
    plain = [re.sub(r"`[^`]*`", "", each).replace("\n", " ") for each in lone]
    return [part for each in plain for part in re.split(r"(?<=[.:;]) +(?=[A-Z*(\[])", each)]


def typed(text: str) -> list[str]:
    """Sentences that tell how often something happened, by numbers that no file and no command accounts for."""
    found = [each for each in sentences(text) if re.search(SHARE, each) and re.search(MEASURED, each)]  # fmt: skip
    return [each for each in found if not any(known in each for known in NOT_MEASURED)]


@every_page
def test_no_result_is_typed_into_a_sentence(page):
    """`<!-- figure: NAME | ROW | COLUMN -->.23<!-- -->` reads it from its file."""
    if page.name != "CHANGELOG.md":
        assert not typed(page.read_text(encoding="utf-8"))


def test_a_number_in_a_sentence_that_its_file_contradicts_is_noticed():
    filled = runpy.run_path(str(ROOT / ".ci" / "results.py"))["filled"]
    cell = "<!-- figure: level | reversible | called -->{}<!-- --> panels"
    most = "<!-- figure: level | max | panels -->{}<!-- -->"
    made = json.loads((ROOT / "docs" / "results" / "level.json").read_text(encoding="utf-8"))
    called = next(row[2] for row in made["rows"] if row[0] == "reversible")
    assert filled(cell.format("-1")) == cell.format(called)
    assert filled(most.format("1")) == most.format(f"{max(float(row[1]) for row in made['rows']):,.0f}")  # fmt: skip
    assert typed("A direction is called in .12 of them.")
    assert typed("It was wrong in 3 of 20 panels.")
    assert typed("A fit of that size took 12.3 s.")
    assert typed("Intervals covered 53 % of the entries.")
    assert not typed("An effect is called where its 95 % interval excludes zero.")
    assert not typed("It was wrong in 3 of 20 panels (`python studies/level.py --seeds 0:20`).")


@pytest.mark.skipif(not RECORDS, reason="the records are in the repository, not in a wheel")
def test_records_of_the_real_panels_do_not_contradict_each_other():
    """Where one says that a direction was right no other says that it never is, and orders are as good in all."""
    directions: dict[str, list[set[str]]] = {}
    accuracies: dict[str, set[float]] = {}
    for name, column in (("direction_panels", "whole"), ("real_panels", "direction"), ("real_tables", "direction")):  # fmt: skip
        made = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        rows = [dict(zip(made["columns"], each, strict=True)) for each in made["rows"]]
        for panel, row in [(each[0], row) for each, row in zip(made["rows"], rows, strict=True)]:
            said = set(re.findall(r"right|wrong|open|known", row[column])) or {"open"}
            directions.setdefault(panel, []).append(said)
            if "accuracy up to reversal" in row:
                accuracies.setdefault(panel, set()).add(float(row["accuracy up to reversal"]))
    assert all(set.intersection(*each) for each in directions.values()), directions
    assert all(len(each) == 1 for each in accuracies.values()), accuracies


@pytest.mark.skipif(not RECORDS, reason="the records are in the repository, not in a wheel")
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_names_its_command_and_has_a_cell_for_each_column(path):
    made = json.loads(path.read_text(encoding="utf-8"))
    assert made["command"]
    assert made["version"]
    if "columns" in made:  # the others are sums over many runs, which no page shows as a table
        assert {len(row) for row in made["rows"]} == {len(made["columns"])}


@pytest.mark.skipif(not RECORDS, reason="the records are in the repository, not in a wheel")
def test_every_table_on_record_is_shown():
    """A figure that no page shows is one that nobody looks at."""
    shown = {name for page in PAGES for name in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text(encoding="utf-8"))}  # fmt: skip
    made = {path.stem for path in RECORDS if "columns" in json.loads(path.read_text(encoding="utf-8"))}  # fmt: skip
    assert made <= shown


def test_printed_tables_are_read_cell_by_cell():
    """Cells may be empty, also the last; what is no table ends one."""
    tables = runpy.run_path(str(ROOT / ".ci" / "results.py"))["tables"]
    printed = "| a | b |\n|---|---|\n| 1 |  |\nso much\n\n| c |\n|---|\n| 2 |\n"
    assert tables(printed) == [[["a", "b"], ["1", ""]], [["c"], ["2"]]]
