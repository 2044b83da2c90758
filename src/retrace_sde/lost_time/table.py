"""All panels by all methods, and their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from retrace_sde import __version__
from retrace_sde.lost_time.methods import load, record
from retrace_sde.lost_time.panels import hidden

Record = dict[str, Any]
MEASURES = (
    "panels",
    "accuracy",
    "called right",
    "called wrongly",
    "claimed − true",
    "error of A",
    "seconds",
)


def run(
    methods: Sequence[str], panels: Sequence[str], seeds: Sequence[int], *, folder: Path | None = None,
    jobs: int = 1, begin: Callable[[str], None] = lambda _: None,
) -> list[Record]:  # fmt: skip
    """A record of every method on every panel: the same whatever the number of jobs."""
    for each in methods:
        load(each)  # a wrong name is told before any work
    tasks = [(name, seed) for name in panels for seed in seeds]
    found: list[Record] = []
    work = Parallel(jobs, return_as="generator")(
        delayed(_of_panel)(methods, *task, folder) for task in tasks
    )
    for (name, seed), rows in zip(tasks, work, strict=True):
        begin(f"{name}, seed {seed}")
        found += rows
    return found


def _of_panel(methods: Sequence[str], name: str, seed: int, folder: Path | None) -> list[Record]:
    panel = hidden(name, seed, folder)
    rows = []
    for each in methods:
        label, method, with_known = load(each)
        rows.append({"seed": seed} | record(label, method, panel, with_known=with_known))
    return rows


def summary(records: Sequence[Record], by: str = "method") -> dict[str, list[float]]:
    """The `MEASURES` of each method (or kind, or panel): means over its panels, the median of seconds.

    Directions that are right are a share of the panels that have one, wrong ones of all.
    """
    found = {}
    for name in dict.fromkeys(each[by] for each in records):
        done = [each for each in records if each[by] == name and "error" not in each]
        called = [each["called"] and not each["wrong"] for each in done if each["directed"]]
        claimed = [each["probability"] - each["accuracy"] for each in done if "probability" in each]
        found[name] = [
            len(done),
            _mean([each["accuracy"] for each in done]),
            _mean(called),
            _mean([each["wrong"] for each in done]),
            _mean(claimed),
            _mean([each["drift_error"] for each in done if "drift_error" in each]),
            float(np.median([each["seconds"] for each in done])) if done else np.nan,
        ]
    return found


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if len(numbers) else np.nan


def as_json(records: Sequence[Record], by: str, command: str) -> dict[str, Any]:
    """The table with the command that made it, and every record; what is not known is None."""
    rows = [
        [name, *(None if np.isnan(cell) else round(cell, 4) for cell in cells)]
        for name, cells in summary(records, by).items()
    ]
    made = {"command": command, "version": __version__, "columns": [by, *MEASURES], "rows": rows}
    return made | {"records": list(records)}


def lines(table: dict[str, Any]) -> list[str]:
    """A table in Markdown, which reads well in a terminal too."""
    rows = [table["columns"], *([_shown(cell) for cell in row] for row in table["rows"])]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]]


def _shown(cell: str | float | None) -> str:
    if cell is None or isinstance(cell, str):
        return cell or "–"
    return str(cell) if isinstance(cell, int) else f"{round(cell, 2) + 0.0:.2f}"  # no "-0.00"
