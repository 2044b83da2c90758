"""`retrace demo`: the main job on built-in data, beside the peers and the oracle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from retrace_sde.cli.common import force_option, progress, refusing, seed_option
from retrace_sde.datasets import SOURCE
from retrace_sde.io.files import check_target, whole_or_nothing
from retrace_sde.io.writing import check_outputs, written
from retrace_sde.reproduce import demo as demonstration
from retrace_sde.reproduce.experiment import Record


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default="retrace-demo", show_default=True,
              help="Folder for the page, the figures and the results.")  # fmt: skip
@force_option
@seed_option
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def demo(out: Path, force: bool, seed: int, as_json: bool) -> None:
    """Simulate trajectories, lose their order, recover it, and compare with the oracle."""
    with refusing(), progress() as begin:
        check_target(out, folder=True)
        check_outputs([out / name for name in written(out)], force=force)
        result = demonstration.run(demonstration.Settings(seed=seed), progress=begin)
        begin("drawing")
        with whole_or_nothing(out) as folder:
            made = demonstration.save_pages(result, folder)
            made += demonstration.save_plots(result, folder)
            made.append(result.model.result_.save(folder / "result.npz"))
        paths = [out / path.name for path in made]
    if as_json:
        keys = "slice", "true_hour", "time"
        answer = {
            "rows": result.rows,
            "own_orders": result.own_orders.rows,
            "real_panel": [dict(zip(keys, row, strict=True)) for row in result.real.restored],
            "files": [str(path) for path in paths],
        }
        click.echo(json.dumps(answer, indent=2))
        return
    _print(result, paths)


def _print(result: demonstration.Demonstration, paths: list[Path]) -> None:
    # A pipe has no width of its own; the table needs about 110 columns.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    s = result.settings
    console.print(
        f"[bold]{s.n} trajectories of {s.d} variables at {s.T} times, "
        "the times lost by one permutation.[/bold]\n"
    )
    console.print(_table(result.rows))
    console.print(f"\n[bold]These data:[/bold] {result.model.direction_.verdict}")
    console.print(
        f"[bold]The same SDE from its stationary distribution:[/bold] {result.stationary.direction_.verdict}"
    )
    console.print(
        "\n[bold]Three variables, each trajectory shuffled on its own: the order cannot be known, "
        "the SDE can.[/bold]\n"
    )
    console.print(_table(result.own_orders.rows))
    _print_real(console, result.real)
    console.print("\n[bold]Written:[/bold] " + ", ".join(str(path) for path in paths))


def _print_real(console: Console, real: demonstration.RealPanel) -> None:
    """The slices of the real panel as restored, beside their true hours."""
    console.print(
        f"\n[bold]A real panel: {len(real.panel)} patients in intensive care, {len(real.truth)} bins of four hours, "
        "shuffled and restored.[/bold]\n"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("slice as restored", no_wrap=True)
    for label, _, _ in real.restored:
        table.add_column(label, justify="right")
    table.add_row("time found", *(f"{time:g}" for _, _, time in real.restored))
    table.add_row("true hour", *(f"{hour:g}" for _, hour, _ in real.restored))
    console.print(table)
    console.print(
        f"\n{real.right} of {len(real.truth)} at their place. {real.model.direction_.verdict}"
    )
    console.print(f"[dim]{SOURCE}.[/dim]")


METHOD_COLUMNS = {
    "order right": ("accuracy", ".1%"),
    "up to reversal": ("accuracy_up_to_reversal", ".1%"),
    "τ": ("kendall_tau", "+.3f"),
    "neighbours": ("neighbour_share", ".1%"),
    "MAE A": ("mae_drift", ".3f"),
    "MAE H": ("mae_diffusion", ".4f"),
}
"""Headers of the table of methods: a key of a record, and its format."""


def _table(rows: tuple[Record, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for name in (*METHOD_COLUMNS, "seconds"):
        table.add_column(name, justify="right")
    table.add_column("direction")
    for row in rows:
        cells = [format(row[key], form) for key, form in METHOD_COLUMNS.values()]
        seconds = f"{row['seconds']:.2f}" if row["seconds"] else "–"
        style = "bold" if row["method"].startswith("ReTrace") else None
        table.add_row(row["method"], *cells, seconds, row["direction"], style=style)
    return table
