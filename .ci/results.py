"""Tables of the docs that are made from files: a page never holds a number that no command wrote.

A page says `<!-- table: NAME -->`, and what stands there up to `<!-- end of table -->` is made from docs/results/NAME.json, which a
command wrote: {"command": ..., "columns": [...], "rows": [[...]]}. `python .ci/results.py` fills all pages in; with --check it says which differ.

A number in a sentence is read from such a file too: `<!-- figure: NAME | ROW | COLUMN -->.23<!-- -->`. ROW is the first cell of a row, or `max`, `min`, `count`
of all rows, or `max of CELL` of the rows that hold that cell. It is written with as many decimals as stand there.

    python .ci/results.py [--folder DATA] --record NAME python studies/NAME.py FOLDER …

runs a study that prints Markdown tables and writes the first to docs/results/NAME.json, the next to NAME_2.json and so on, with the command and the version
of the package. FOLDER stands for the folder of real panels, whose place on a machine is nobody's business.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from retrace_sde import __version__
from retrace_sde.lost_time.table import lines

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure: ([\w-]+) \| ([^|>]+) \| ([^|>]+) -->)([^<]*)(?=<!-- -->)")
OF_ROWS = {"max": max, "min": min, "count": len}


def kept(name: str) -> dict[str, Any]:
    """What a command wrote."""
    return json.loads((ROOT / "docs/results" / f"{name}.json").read_text("utf-8"))


def filled(text: str) -> str:
    """A page with its tables, and the numbers of its sentences, as their files say."""

    def table(found: re.Match[str]) -> str:
        made = kept(found.group(2))
        of = f" (version {made['version']})" if "version" in made else ""
        return "\n".join([found.group(1), f"`{made['command']}`{of}", "", *lines(made), "", ""])

    def number(found: re.Match[str]) -> str:
        return found.group(1) + shown(figure(*found.group(2, 3, 4)), found.group(5))

    return FIGURE.sub(number, BLOCK.sub(table, text))


def figure(name: str, row: str, column: str) -> float:
    """One cell of a file, or the largest, the smallest or the number of its cells in a column."""
    made = kept(name)
    at = made["columns"].index(column)
    taken, _, held = row.partition(" of ")
    if taken not in OF_ROWS:
        (cell,) = [each[at] for each in made["rows"] if each[0] == row]
        return float(cell)
    cells = [each[at] for each in made["rows"] if not held or held in each]
    return OF_ROWS[taken]([float(each) for each in cells if each is not None])


def shown(number: float, stands: str) -> str:
    """A number in the form of what stands there: as many decimals, and no zero before the point where there is none."""
    text = f"{number:,.{len(stands.partition('.')[2])}f}"
    return text.removeprefix("0") if stands.startswith(".") else text


def tables(printed: str) -> list[list[list[str]]]:
    """The Markdown tables among printed lines: each a list of rows of cells, the names of its columns first."""
    found: list[list[list[str]]] = [[]]
    for line in printed.splitlines():
        cells = [
            each.strip() for each in line.strip().removeprefix("|").removesuffix("|").split("|")
        ]
        if not line.startswith("|"):
            found.append([])
        elif set(line) - set("|-: "):
            found[-1].append(cells)
    return [each for each in found if each]


def record(name: str, command: list[str], folder: Path | None) -> None:
    """Run a study and keep what it prints."""
    run = [str(folder) if each == "FOLDER" else each for each in command]
    run[0] = sys.executable if run[0] == "python" else run[0]
    out = subprocess.run(run, cwd=ROOT, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    for k, (columns, *rows) in enumerate(tables(out)):
        typed = re.sub(r" --jobs \d+", "", shlex.join(command))  # answers do not depend on it
        made = {"command": typed, "version": __version__}
        made |= {"columns": columns, "rows": [[each or None for each in row] for row in rows]}
        text = json.dumps(made, ensure_ascii=False).replace("], [", "],\n[")
        file = ROOT / "docs/results" / f"{name}{f'_{k + 1}' if k else ''}.json"
        file.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    """Record a study, fill in all pages, or only say which differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--record", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.record:
        record(asked.record[0], asked.record[1:], asked.folder)
        return 0
    wrong = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text("utf-8")
        if filled(text) != text:
            wrong += 1
            print(f"{page.relative_to(ROOT)} differs from its files.")
            if not asked.check:
                page.write_text(filled(text), "utf-8")
    return int(wrong > 0 and asked.check)


if __name__ == "__main__":
    sys.exit(main())
