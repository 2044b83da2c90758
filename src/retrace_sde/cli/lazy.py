"""`retrace fit --scheduler`: a zarr array that stays where it is, on workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from retrace_sde.cli.common import file_name, give, listed, working

LAZY_RESULTS = ("parameters.json", "result.npz")
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
        replaced = check_outputs([out / name for name in LAZY_RESULTS], source=file, force=force)
        panel = lazy_panel(file)
        begin("starting workers")
        with connected(scheduler) as dashboard:
            click.echo(f"Dashboard  {dashboard}", err=True)
            begin("recovering the order")
            model = ReTrace(**settings).fit(panel)
            if bootstrap:
                model.bootstrap_errors(draws=bootstrap, adopt=True)
        answer = {**parameters(model.result_, panel), "file": file_name(file)}
        begin("writing")
        with whole_or_nothing(out) as folder:
            model.result_.save(folder / "result.npz")
            text = json.dumps(answer, ensure_ascii=False, allow_nan=False, indent=1)
            (folder / "parameters.json").write_text(text, encoding="utf-8")
    files = [str(out / name) for name in LAZY_RESULTS]
    n, T, _ = panel.shape
    order = answer["order"]
    found = "each trajectory's own, in result.npz"
    if order is not None:
        found = listed([str(k) for k in order], 12)
    lines = [
        ("Data", f"{n} trajectories, {T} slices, variables {listed(panel.names)}; not read into memory."),
        ("Order", f"{found}."),
        ("Direction", model.result_.direction.verdict),
        *([] if model.result_.dependence is None else [("Dependence", model.result_.dependence.verdict)]),
        *(("Note", text) for text in dict.fromkeys([*answer["notes"], *cautions])),
        ("Replaced" if replaced else "Written", ", ".join(files)),
    ]  # fmt: skip
    give({**answer, "warnings": cautions, "files": files}, lines, as_json=as_json)
