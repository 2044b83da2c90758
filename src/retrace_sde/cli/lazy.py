"""`retrace fit --scheduler`: a zarr array that stays where it is, on workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from retrace_sde.cli.common import listed, say, working

RESULTS = ("parameters.json", "result.npz")
"""What such a fit writes; a table of all rows in order would be the data again."""


def fit_lazy(
    file: Path,
    scheduler: str,
    settings: dict[str, Any],
    *,
    out: Path,
    force: bool,
    bootstrap: int | None,
    as_json: bool,
) -> None:
    """Recover the order of an array, print what was found and write it."""
    from retrace_sde.io.answers import parameters
    from retrace_sde.io.files import check_target, whole_or_nothing
    from retrace_sde.io.outputs import check_outputs
    from retrace_sde.panel.lazy.cluster import connected, lazy_panel
    from retrace_sde.retrace import ReTrace

    with working() as (begin, cautions):
        check_target(out, folder=True)
        replaced = check_outputs([out / name for name in RESULTS], source=file, force=force)
        panel = lazy_panel(file)
        begin("starting workers")
        with connected(scheduler) as dashboard:
            click.echo(f"Dashboard  {dashboard}", err=True)
            begin("recovering the order")
            model = ReTrace(**settings).fit(panel)
            if bootstrap:
                model.bootstrap_errors(draws=bootstrap, adopt=True)
        answer = {**parameters(model.result_, panel), "file": file.name}
        begin("writing")
        with whole_or_nothing(out) as folder:
            model.result_.save(folder / "result.npz")
            text = json.dumps(answer, ensure_ascii=False, allow_nan=False, indent=1)
            (folder / "parameters.json").write_text(text, encoding="utf-8")
    files = [str(out / name) for name in RESULTS]
    if as_json:
        click.echo(json.dumps({**answer, "warnings": cautions, "files": files}, allow_nan=False))
        return
    n, T, _ = panel.shape
    say(
        "Data",
        f"{n} trajectories, {T} slices, variables {listed(panel.names)}; not read into memory.",
    )
    order = answer["order"]
    shown = (
        "each trajectory's own, in result.npz"
        if order is None
        else listed([str(k) for k in order], 12)
    )
    say("Order", f"{shown}.")
    say("Direction", model.result_.direction.verdict)
    for text in dict.fromkeys([*answer["notes"], *cautions]):
        say("Note", text)
    say("Replaced" if replaced else "Written", ", ".join(files))
