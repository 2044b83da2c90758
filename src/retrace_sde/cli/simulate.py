"""`retrace simulate`: a table whose time is lost, and its truth in a file beside it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np

from retrace_sde.cli.common import Finite, force_option, give, json_option, refusing, seed_option
from retrace_sde.io.answers import plain
from retrace_sde.io.files import check_target, whole_or_nothing
from retrace_sde.io.formats import frame_of_array
from retrace_sde.io.writing import check_outputs, write_table
from retrace_sde.process.simulate import (
    Permutation,
    Setting,
    add_noise,
    random_irreversible_sde,
    shuffle,
)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE",
              help="csv, parquet or npz; the truth goes to FILE's name + '.truth.json'.")  # fmt: skip
@click.option("--subjects", type=click.IntRange(1), default=200, show_default=True)
@click.option("--slices", type=click.IntRange(3), default=40, show_default=True)
@click.option("--variables", type=click.IntRange(1), default=5, show_default=True)
@click.option("--setting", type=click.Choice(["stable", "growing", "rotation", "paper"]), default="stable",
              show_default=True, help="The kind of drift, as in simulate.random_irreversible_sde.")  # fmt: skip
@click.option("--permutation", type=click.Choice(["shared", "independent"]), default="shared",
              show_default=True, help="One unknown order for all subjects, or one for each.")  # fmt: skip
@click.option("--dt", type=Finite(0, min_open=True), default=0.05, show_default=True)
@click.option("--noise", type=Finite(0), default=0.0, show_default=True,
              help="Standard deviation of the measurement error.")  # fmt: skip
@click.option("--missing", type=Finite(0, 1, max_open=True), default=0.0, show_default=True,
              help="Share of the values that are missing.")  # fmt: skip
@force_option
@seed_option
@json_option
def simulate(out: Path, subjects: int, slices: int, variables: int, setting: Setting, permutation: Permutation,
             dt: float, noise: float, missing: float, force: bool, seed: int, as_json: bool) -> None:  # fmt: skip
    """Simulate subjects from a random SDE, shuffle their time order, and write the table and the truth."""
    rng = np.random.default_rng(seed)
    truth_file = Path(f"{out}.truth.json")
    with refusing():
        if out.suffix not in (".csv", ".parquet", ".npz"):
            raise ValueError(f"--out {out} must end in .csv, .parquet or .npz.")
        check_target(out, folder=False)
        check_outputs([out, truth_file], force=force)
        sde = random_irreversible_sde(variables, setting=setting, random_state=rng)
        X = sde.simulate(subjects, slices, dt, x0=sde.initial, random_state=rng)
        if noise > 0:
            X = add_noise(X, noise, random_state=rng)
        X[rng.random(X.shape) < missing] = np.nan
        shuffled, order = shuffle(X, permutation=permutation, random_state=rng)
        frame = frame_of_array(shuffled)
        if permutation == "independent":
            frame = frame.drop(columns="slice")
        position = np.broadcast_to(np.argsort(order, axis=-1), shuffled.shape[:2])
        truth = {
            "order": order,
            "position": position.ravel(),
            "permutation": permutation,
            "dt": dt,
            "drift": sde.drift,
            "offset": sde.offset,
            "diffusion": sde.diffusion,
            "noise": noise,
            "missing": missing,
            "setting": setting,
            "seed": seed,
        }
        with whole_or_nothing(out.absolute().parent) as folder:
            write_table(frame, folder / out.name)
            (folder / truth_file.name).write_text(json.dumps(plain(truth)), encoding="utf-8")
    choice = "--slice slice" if permutation == "shared" else "--independent"
    lines = [
        ("Written", f"{out}: {len(frame)} rows, {subjects} subjects, {variables} variables; the truth in {truth_file}"),
        ("Next", f"retrace fit {out} --subject subject {choice} --dt {dt:g}"),
    ]  # fmt: skip
    give({"files": [str(out), str(truth_file)], "rows": len(frame)}, lines, as_json=as_json)
