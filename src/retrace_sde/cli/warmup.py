"""`retrace warmup`: compile what fits use, once, so that no later call waits for it."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import give, json_option, progress
from retrace_sde.process.simulate import random_irreversible_sde, shuffle

PATHS: dict[str, dict[str, Any]] = {
    "an order for each, noise": {"permutation": "independent", "observation_noise": "estimate"},
    "observation noise": {"observation_noise": "estimate"},
    "an order for each": {"permutation": "independent"},
    "one order for all": {},
    "missing values": {"missing": True},
}
"""Kinds of fits that compile kernels of their own, by their settings; what compiles longest first, so that all cores end together."""


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), help="Processes  [default: one per core]")
@json_option
def warmup(jobs: int | None, as_json: bool) -> None:
    """Compile what fits use and keep it, so that later calls start at once.

    Each kind of fit is compiled when it is first used, which takes seconds. This runs a tiny one of each kind; the compiled code stays
    beside the installed package, and is used by every later call.
    """
    from joblib import Parallel, delayed

    found: dict[str, float] = {}
    with progress() as begin:
        begin("compiling")
        work = (delayed(_seconds)(settings) for settings in PATHS.values())
        # Threads of one process would compile in turn.
        each = Parallel(n_jobs=jobs or os.cpu_count(), return_as="generator")(work)
        for name, seconds in zip(PATHS, each, strict=True):
            found[name] = seconds
            begin(f"compiled: {name}")
    give(
        {"seconds": found},
        [(f"{seconds:.1f} s", name) for name, seconds in found.items()],
        as_json=as_json,
    )


def _seconds(settings: dict[str, Any]) -> float:
    """Of a fit of a panel that is as small as can be."""
    from retrace_sde.retrace import ReTrace

    start = time.perf_counter()
    given = {key: value for key, value in settings.items() if key != "missing"}
    X = random_irreversible_sde(2, random_state=0).simulate(12, 8, 0.1, random_state=1)
    X, _ = shuffle(X, permutation=settings.get("permutation", "shared"), random_state=2)
    if settings.get("missing"):
        X = np.where(np.random.default_rng(3).random(X.shape) < 0.1, np.nan, X)
    with warnings.catch_warnings(action="ignore"):
        ReTrace(dt=0.1, n_jobs=1, random_state=0, **given).fit(X)
    return time.perf_counter() - start
