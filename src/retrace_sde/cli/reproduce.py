"""`retrace reproduce`: the paper's tables and figures, resumed where an earlier run was stopped."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from retrace_sde import reproduce as experiments
from retrace_sde.cli.common import printable, refusing
from retrace_sde.io.files import check_target
from retrace_sde.io.writing import check_outputs
from retrace_sde.panel.validation import collected_warnings
from retrace_sde.reproduce import files
from retrace_sde.reproduce.experiment import run


@click.command()
@click.argument("what", type=click.Choice([*experiments.NAMES, "all"]))
@click.option("--quick", is_flag=True, help="Smaller settings: all of it in minutes.")
@click.option(
    "--tiny", is_flag=True, help="Seconds, to see that it runs; the numbers mean nothing."
)
@click.option("--seeds", type=click.IntRange(min=1), help="How many seeds, from 0 on.")
@click.option("--out", type=click.Path(path_type=Path), default="retrace-results",
              show_default=True, help="Folder for the results; finished work found there is kept.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), help="Processes  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
def reproduce(
    what: str,
    quick: bool,
    tiny: bool,
    seeds: int | None,
    out: Path,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Run the paper's experiments again, beside the stronger method and the oracle."""
    if quick and tiny:
        raise click.UsageError("--quick and --tiny are two sizes: choose one of them.")
    size = "tiny" if tiny else "quick" if quick else "full"
    chosen = experiments.NAMES if what == "all" else (what,)
    with refusing():
        check_target(out, folder=True)
        names = [f"{name}.{kind}" for name in chosen for kind in files.FILE_KINDS]
        names += ["README.md"] if what == "all" else []
        check_outputs(
            [out / name for name in names], force=True
        )  # its own are made anew from its log
    command = f"retrace reproduce {what}" + f" --{size}" * (size != "full")
    command += f" --seeds {seeds}" * bool(seeds)
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.fields[name]:<8} {task.description:<44.44}"), BarColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    finished, paths = [], []
    with refusing(), collected_warnings() as notes, bar:
        for name in chosen:
            experiment = experiments.load(name)
            settings = getattr(experiment, size)
            if seeds is not None:
                settings = replace(settings, seeds=seeds)
            shown = bar.add_task("starting", name=name, total=None)

            def progress(step: str, done: float, total: float, shown: TaskID = shown) -> None:
                bar.update(shown, description=step, completed=done, total=total)

            records = run(
                experiment, settings, out, jobs=jobs or os.cpu_count() or 1, progress=progress
            )
            finished.append(files.Finished(experiment, settings, records))
            paths += files.write(finished[-1], out, command=command)
        if what == "all":
            paths.append(files.write_readme(finished, out, command=command))
    for note in notes:
        click.echo(printable(f"retrace: {note}"), err=True)
    if as_json:
        found = {each.experiment.name: list(each.records) for each in finished}
        click.echo(json.dumps({"records": found, "files": [str(path) for path in paths]}, indent=2))
        return
    for each in finished:
        click.echo(
            f"{each.experiment.title}\n\n{each.experiment.text(each.records, each.settings)}\n"
        )
    click.echo("Written: " + ", ".join(str(path) for path in paths))
