"""`retrace warmup`: compile what fits use, once, so that no later call waits for it."""

from __future__ import annotations

import time
import warnings
from typing import Any

import click
import numpy as np

from retrace_sde.cli.common import give, json_option, progress
from retrace_sde.process.simulate import random_irreversible_sde, shuffle

PATHS: dict[str, dict[str, Any]] = {
    "one order for all": {},
    "missing values": {"missing": True},
    "observation noise": {"observation_noise": "estimate"},
    "an order for each": {"permutation": "independent"},
    "an order for each, noise": {"permutation": "independent", "observation_noise": "estimate"},
}
"""Kinds of fits that compile kernels of their own, by their settings."""


@click.command()
@json_option
def warmup(as_json: bool) -> None:
    """Compile what fits use and keep it, so that later calls start at once.

    Each kind of fit is compiled when it is first used, which takes seconds. This runs a tiny one of each kind; the compiled code stays
    beside the installed package, and is used by every later call.
    """
    from retrace_sde.retrace import ReTrace

    spent = {}
    # Of panels that are as small as can be.
    with progress() as begin, warnings.catch_warnings(action="ignore"):
        for name, settings in PATHS.items():
            begin(f"compiling: {name}")
            start = time.perf_counter()
            given = {key: value for key, value in settings.items() if key != "missing"}
            X = random_irreversible_sde(2, random_state=0).simulate(12, 8, 0.1, random_state=1)
            kind = settings.get("permutation", "shared")
            X, _ = shuffle(X, permutation=kind, random_state=2)
            if settings.get("missing"):
                X = np.where(np.random.default_rng(3).random(X.shape) < 0.1, np.nan, X)
            ReTrace(dt=0.1, n_jobs=1, random_state=0, **given).fit(X)
            spent[name] = time.perf_counter() - start
    give(
        {"seconds": spent},
        [(f"{seconds:.1f} s", name) for name, seconds in spent.items()],
        as_json=as_json,
    )
