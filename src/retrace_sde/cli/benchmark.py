"""`retrace benchmark`: how well methods find orders that were hidden."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click

from retrace_sde.cli.common import progress, refusing
from retrace_sde.io.files import check_target, whole_or_nothing
from retrace_sde.io.writing import check_outputs
from retrace_sde.lost_time import methods as shipped
from retrace_sde.lost_time import panels as hidden
from retrace_sde.lost_time import table


@click.command()
@click.option("--method", "methods", multiple=True, metavar="NAME",
              help="A method that ships, or module:function of your own; may be given several times.  [default: all that ship]")  # fmt: skip
@click.option("--panel", "panels", multiple=True, metavar="NAME", help="Panels.  [default: all]")
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Folder of real panels (subject, time, variables) that do not ship with the package.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True,
              help="How many times each panel is made anew, or shuffled anew.")  # fmt: skip
@click.option(
    "--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--by", type=click.Choice(["method", "panel", "kind"]), default="method",
              show_default=True, help="Rows of the table.")  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write every record to this JSON file."
)
@click.option("--force", is_flag=True, help="Replace that file.")
def benchmark(
    methods: tuple[str, ...], panels: tuple[str, ...], data: Path | None, seeds: int, first_seed: int,
    jobs: int, by: str, out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Hide the order of panels with a known one, and see how well methods find it.

    A method of your own is a function order(X) of an array (trajectory, slice, variable). It returns an order, or a
    retrace_sde.lost_time.Answer, which can also say that the order runs forwards, and how sure it is.
    """
    there = list(hidden.names(data))
    with refusing(), progress() as begin:
        unknown = [name for name in panels if name not in there]
        if unknown:
            raise ValueError(f"--panel {unknown[0]!r} is none of {', '.join(there)}.")
        if any(":" in name for name in methods) and str(Path.cwd()) not in sys.path:
            sys.path.append(
                str(Path.cwd())
            )  # where a user's own file is; last, so that it hides no package
        for name in methods:
            shipped.load(name)  # a wrong name is told before results that are in the way
        if out is not None:
            check_target(out, folder=False)
            check_outputs([out], force=force)
        found = table.run(
            methods or list(shipped.METHODS), panels or there, range(first_seed, first_seed + seeds),
            folder=data, jobs=jobs, begin=begin,
        )  # fmt: skip
        shown = table.as_json(found, by, _command())
        if out is not None:
            with whole_or_nothing(out.absolute().parent) as folder:
                (folder / out.name).write_text(json.dumps(shown, indent=0) + "\n", encoding="utf-8")
    for line in table.lines(shown):
        click.echo(line)
    for name in dict.fromkeys(each["method"] for each in found):
        failed = [each for each in found if each["method"] == name and "error" in each]
        if failed:
            click.echo(
                f"{name} failed on {len(failed)} panels: {failed[0]['panel']}: {failed[0]['error']}",
                err=True,
            )


def _command() -> str:
    """As it was typed, but for the place of the results."""
    given = sys.argv[1:]
    kept = [
        each for k, each in enumerate(given) if "--out" not in (each, given[k - 1] if k else "")
    ]
    return shlex.join(["retrace", *(each for each in kept if each != "--force")])
