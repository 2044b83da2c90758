"""Records as files: JSON, CSV, Markdown, PNG and SVG, and one README for all experiments.

Everything is a function of the records, the settings and the command: the same log gives the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrace_sde.io.files import whole_or_nothing
from retrace_sde.reproduce.experiment import Experiment, Record
from retrace_sde.show.report import VERSIONED_PACKAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Finished:
    """An experiment that has run: its settings and its records."""

    experiment: Experiment
    settings: Any
    records: Sequence[Record]


FILE_KINDS = ("json", "csv", "md", "png", "svg")
"""What is written of every experiment."""


def write(finished: Finished, folder: Path, *, command: str) -> list[Path]:
    """name.json, name.csv, name.md, name.png, name.svg and the experiment's extra tables."""
    experiment, records = finished.experiment, finished.records
    published = [{key: record[key] for key in experiment.columns} for record in records]
    files: dict[str, bytes] = {}
    for name, rows in {experiment.name: published, **experiment.extras(records)}.items():
        files[f"{name}.json"], files[f"{name}.csv"] = _json(rows).encode(), _csv(rows).encode()
    text = f"# {section(finished)}\n\n{provenance([finished], command)}\n"
    files[f"{experiment.name}.md"] = text.encode()
    files |= _drawn(experiment.figure(records, finished.settings), experiment.name)
    return _put(files, folder)


def write_readme(all_finished: Sequence[Finished], folder: Path, *, command: str) -> Path:
    """The experiment section: what each table and figure shows, with the numbers of this run."""
    sections = [f"## {section(finished)}" for finished in all_finished]
    text = "\n\n".join(["# Experiments", INTRODUCTION, *sections, "## How these were made",
                        provenance(all_finished, command)])  # fmt: skip
    return _put({"README.md": f"{text}\n".encode()}, folder)[0]


INTRODUCTION = """\
The tables and figures of *Robust SDE Parameter Estimation Under Missing Time Information Setting* (Tran, Tran,
Nguyen; AAAI 2026), run again. Beside the paper's Algorithm 1 and its baselines stand maximum likelihood over
orders (ReTrace-likelihood), the baselines with a proper root, and the *oracle*: the same estimator given the
true order. Every number below comes from the records in the files beside this page."""


def section(finished: Finished) -> str:
    """Title, text and picture of one experiment."""
    experiment = finished.experiment
    body = experiment.text(finished.records, finished.settings).strip()
    return f"{experiment.title}\n\n{body}\n\n![{experiment.title}]({experiment.name}.png)"


def provenance(all_finished: Sequence[Finished], command: str) -> str:
    """The command, the seeds, the settings and the versions behind the numbers."""
    lines = [
        f"Made by `{command}` with " + ", ".join(f"{p} {version(p)}" for p in VERSIONED_PACKAGES)
    ]
    lines[0] += f", Python {platform.python_version()}, {platform.system()} {platform.machine()}."
    lines.append("Seconds are wall-clock on one core of that machine, which may be shared.\n")
    for finished in all_finished:
        settings = asdict(finished.settings)
        seeds = ", ".join(str(seed) for seed in range(settings.pop("seeds")))
        listed = "; ".join(f"{k} = {_plain(v)}" for k, v in settings.items())
        lines.append(f"- {finished.experiment.name}: seeds {seeds}; {listed}.")
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(value: Any) -> str:
    """Numbers and words as they are; what has a name by its name; other groups by their fields."""
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value)
    if isinstance(value, dict):
        fields = "; ".join(f"{key} = {_plain(each)}" for key, each in value.items())
        return str(value.get("name", fields))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _json(rows: Sequence[Record]) -> str:
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    return f"[\n  {lines}\n]\n"


def _csv(rows: Sequence[Record]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _put(files: dict[str, bytes], folder: Path) -> list[Path]:
    """All of them, whole, or none."""
    with whole_or_nothing(folder) as work:
        for name, content in files.items():
            (work / name).write_bytes(content)
    return [folder / name for name in files]


def _drawn(figure: Figure, name: str) -> dict[str, bytes]:
    """PNG and SVG without dates and random names, so that equal pictures are equal files."""
    import matplotlib as mpl

    files = {}
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        out = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": name}):
            figure.savefig(out, format=kind, dpi=150, metadata=metadata)
        files[f"{name}.{kind}"] = out.getvalue()
    return files
