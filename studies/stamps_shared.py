"""Stamps of subjects who share something at each time: how many right ones are called wrong, and how many wrong ones are found.

    python studies/stamps_shared.py --seeds 99000:99040 --jobs 2

Three variables, irreversible and at rest, 7 % of the values missing (`dependence.linear`). Plates are offsets of whole times, in standard deviations; common
shocks are .5 of the noise of a step. Stamps of rows (36 subjects at 9 times) are all right, or 5 % of them are those of another time, at least three gaps
off; stamps of slices (30 subjects at 16 times) are all right, or one is wrong. Two ways: `audit_times`, and the same with subjects assumed to be independent.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from dependence import linear
from joblib import Parallel, delayed

from retrace_sde.audit.shared import Table
from retrace_sde.lost_time.table import lines
from retrace_sde.search.stamps.judge import audit_sequences

SIZES = {"rows": {"n": 36, "T": 9}, "slices": {"n": 30, "T": 16}}
SHARED = {
    "nothing": {},
    "plates .5": {"plates": 0.5},
    "plates 1": {"plates": 1.0},
    "shocks .5": {"common": 0.5},
}
WRONG, LEAST_GAPS, MISSING = 0.05, 3, 0.07


def panel(seed, kind, shared, some):
    """Values, stamps, and which of these are wrong."""
    X = linear(seed, **SIZES[kind], **SHARED[shared], missing=MISSING, reversible=False).X
    (n, T, _), rng = X.shape, np.random.default_rng(seed)
    true = np.tile(np.arange(float(T)), (n, 1)) if kind == "rows" else np.arange(float(T))
    lost = rng.random(true.shape) < WRONG * some
    if kind == "slices":
        lost = np.arange(T) == (rng.integers(T) if some else -1)
    far = rng.integers(0, T, true.shape)
    while (near := np.abs(far - true) < LEAST_GAPS).any():
        far = np.where(near, rng.integers(0, T, true.shape), far)
    return X, np.where(lost, far, true), lost


def one(seed, kind, shared, some):
    """Of each way: right stamps called wrong, right ones, wrong ones found, wrong ones, and whether what is shared was allowed for."""
    X, stamps, lost = panel(seed, kind, shared, some)
    table = Table(X, stamps, np.full(len(X), X.shape[1]), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone, _ = audit_sequences(table.sequences()[0], np.random.default_rng(0), wrong=WRONG)
        judged = table.judged(np.random.default_rng(0), wrong=WRONG)
    rows = []
    for found, allowed in ((alone, False), (judged.found, judged.dependence.removed)):
        called = np.array([np.ones_like(e.wrong) if e.reversed else e.wrong for e in found]) > 0.5
        called = called.reshape(lost.shape)
        rows.append([(called & ~lost).sum(), (~lost).sum(), (called & lost).sum(), lost.sum(), allowed])  # fmt: skip
    return rows


def main():
    """Two lines for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="99000:99040")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--stamps", default=",".join(SIZES))
    given = parser.parse_args()
    seeds, rows = range(*map(int, given.seeds.split(":"))), []
    for kind in given.stamps.split(","):
        for shared in SHARED:
            sums = [
                np.sum(Parallel(given.jobs)(delayed(one)(seed, kind, shared, some) for seed in seeds), axis=0)
                for some in (False, True)
            ]  # fmt: skip
            for k, way in enumerate(("independence assumed", "`audit_times`")):
                none, some = sums[0][k], sums[1][k]
                hits = some[2] / some[3], some[2] / max(some[0] + some[2], 1)
                figures = [f"{none[0] / none[1]:.4f}", f"{some[0] / some[1]:.4f}", *(f"{each:.2f}" for each in hits)]  # fmt: skip
                found = f"{(none[4] + some[4]) / (2 * len(seeds)):.2f}" if k else ""
                rows.append([f"{kind}, {shared}, {way}", len(seeds), *figures, found])
    columns = ["stamps of, shared at each time, way", "panels", "false calls, all right", "false calls, some wrong",
               "recall", "precision", "allowed for"]  # fmt: skip
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
