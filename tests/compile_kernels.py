"""Compile the kernels once, in two processes, before two test workers would each compile the same ones.

`make test` runs this first. Where kernels are compiled already it does nothing; those of a changed file are compiled by the tests.
"""

from __future__ import annotations

import sys
import warnings
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]

HALVES = (
    ("shared auto", "shared em", "missing", "missing, noise and inputs", "gaps estimated, noise",
     "subjects levels, noise", "own missing, auto", "own noise, mcem", "own schedule"),
    ("own auto", "own mcem", "own first", "known first", "shared many slices", "own gaps estimated"),
)  # fmt: skip
"""Fits of `studies/snapshots.py` that reach most kernels, in two parts that take about as long to compile."""


def compile_by(names: tuple[str, ...]) -> None:
    """Make some of the fits; their answers are not looked at."""
    sys.path.insert(0, str(ROOT / "studies"))
    import snapshots

    warnings.simplefilter("ignore")
    cases = dict(
        case for group in (snapshots.shared, snapshots.known, snapshots.subjects, snapshots.independent)
        for case in group()
    )  # fmt: skip
    for name in names:
        cases[name]()


if __name__ == "__main__":
    if not any((ROOT / "src").rglob("*.nbi")):
        print("Compiling, once: about a minute.")
        with get_context("spawn").Pool(2) as pool:
            pool.map(compile_by, HALVES, chunksize=1)
