"""What is flagged in real panels, and whether a wrong cell, another unit and an exchanged row put into them are found.

    python studies/suspects_real.py ../shared/data --seeds 20000:20020

The screening alone, without the fit. Put in: one cell × 10, one variable of one subject × 100, and the rows of two subjects exchanged at
an inner visit. Of exchanges each of the two rows counts; "far" are those whose rows differ by more than three standard deviations of a
step (Mahalanobis), which a process known could reveal.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import retrace_sde as rt
from retrace_sde.estimator.entry import entered
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.screening.suspects import screened
from retrace_sde.lost_time.panels import REAL, _read

SOILED = {"physionet2012_icu_4h": (0, 1, 2), "pbcseq_visits": (1, 4)}
"""Panels into which errors are put, and variables that are in units with a zero."""


def screen(X):
    request = Request.of(rt.ReTrace(outliers="flag").get_params(deep=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return screened(entered(X, None, None, None, request), request)[1]


def far(X, i, j, k):
    """The rows of i and j at k differ by more than three standard deviations of a step."""
    steps = np.diff(X, axis=1).reshape(-1, X.shape[2])
    gap = X[i, k] - X[j, k]
    return gap @ np.linalg.solve(np.cov(steps.T), gap) > 9 * X.shape[2]


def soiled(X, variables, seeds):
    n, T, _ = X.shape
    hits = {"cell x10": [], "subject x100": [], "exchanged rows": [], "exchanged rows, far": []}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        j, k, v = rng.integers(n), rng.integers(1, T - 1), rng.choice(variables)
        one = X.copy()
        one[j, k, v] *= 10
        hits["cell x10"].append(any((e.trajectory, e.slice) == (j, k) for e in screen(one)))
        one = X.copy()
        one[j, :, v] *= 100
        found = screen(one)
        hits["subject x100"].append(
            any(e.kind == "trajectory" and e.trajectory == j for e in found)
        )
        i, j = rng.choice(n, 2, replace=False)
        one = X.copy()
        one[[i, j], k] = one[[j, i], k]
        places = {(e.trajectory, e.slice) for e in screen(one)}
        both = [(i, k) in places, (j, k) in places]
        hits["exchanged rows"] += both
        hits["exchanged rows, far"] += both if far(X, i, j, k) else []
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0:4")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    for name in REAL:
        X = _read(asked.folder / f"{name}.csv")
        found = screen(X)
        print(f"{name} {X.shape}: {len(found)} flagged")
        for each in found:
            print("   ", each, flush=True)
        for what, hit in soiled(X, SOILED[name], seeds).items() if name in SOILED else ():
            print(f"    put in: {what}: {sum(hit)} of {len(hit)} found", flush=True)


if __name__ == "__main__":
    main()
