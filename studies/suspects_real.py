"""What is flagged in real panels, and whether a wrong cell, another unit and an exchanged row put into them are found.

    python studies/suspects_real.py FOLDER --seeds 20000:20020

The screening alone, without the fit. Put in: one cell × 10, one variable of one subject × 100, and the rows of two subjects exchanged at
an inner visit; of exchanges each of the two rows counts. "clear": rows of pairs that gain so much where they are exchanged back, under steps
fitted to the clean panel along the true order, that no more than .05 pairs of the clean panel are expected to gain as much by chance. Other
pairs cannot be told from chance by those steps; some are found by the regressions that confirm suspects.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import retrace_sde as rt
from retrace_sde.estimator.entry import entered
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.screening import MAX_TIED_SHARE, _tied_share, screened
from retrace_sde.evidence.suspects.exchanged import Exchange, _Chance, _Places
from retrace_sde.evidence.suspects.robust import centre_and_scale
from retrace_sde.evidence.suspects.rows import judge
from retrace_sde.evidence.suspects.two_sided import TwoSided
from retrace_sde.io.files import read_table
from retrace_sde.lost_time.panels import REAL, _panel
from retrace_sde.lost_time.table import lines

SOILED = {"physionet2012_icu_4h": (0, 1, 2), "pbcseq_visits": (1, 4)}
"""Panels into which errors are put, and variables that are in units with a zero."""

CLEAR = 0.05
"""Pairs of the clean panel, in expectation, that gain as much by chance as one that is clear."""


def screen(X):
    request = Request.of(rt.ReTrace(outliers="flag").get_params(deep=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return screened(entered(X, None, None, None, request), request)[1]


def clear(X, soiled, one, two):
    """Exchanging two rows back gains more than the bound for one pair, under the law of the clean panel."""
    free = _tied_share(X) <= MAX_TIED_SHARE
    X, soiled = X[..., free], soiled[..., free]
    centre, scale = centre_and_scale(X)
    z, y = (X - centre) / scale, (soiled - centre) / scale
    times = np.broadcast_to(np.arange(float(X.shape[1])), X.shape[:2])
    law = TwoSided.of(z, times)
    judged = judge(law.sides(z, times, z), ~np.isnan(z).all(axis=2))
    places = _Places.of(y, times, z, law, judged.tail)
    gain = float(places.gains_of([Exchange(one, two, 0.0)])[0])
    by_chance = _Chance.of(_Places.of(z, times, z, law, judged.tail))
    return bool(sum(float(each.beyond(gain)) for each in by_chance) <= CLEAR)


def soiled(X, variables, seeds):
    n, T, _ = X.shape
    hits = {"cell x10": [], "subject x100": [], "exchanged rows": []}
    told = []
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
        told += 2 * [clear(X, one, (i, k), (j, k))]
    return hits, np.array(told, dtype=bool)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0:4")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    table = []
    for name in REAL:
        X = _panel(read_table(asked.folder / f"{name}.csv", text=["subject"]), "subject", "time")
        found = screen(X)
        print(f"{name} {X.shape}: {len(found)} flagged")
        for each in found:
            print("   ", each, flush=True)
        if name not in SOILED:
            continue
        hits, told = soiled(X, SOILED[name], seeds)
        for what, hit in hits.items():
            of_clear = (
                (int(told.sum()), int(np.array(hit)[told].sum()))
                if what == "exchanged rows"
                else (None, None)
            )
            table.append([name, what, len(hit), sum(map(int, hit)), *of_clear])
    columns = ["panel", "put in", "number", "found", "clear", "found of clear"]
    print(*lines({"columns": columns, "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
