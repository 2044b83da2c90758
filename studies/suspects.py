"""Wrong values put into panels: what is found, and what it does to order, direction and intervals.

    python studies/suspects.py --seeds 20000:20100 --jobs 16
    python studies/suspects.py --seeds 20000:20100 --jobs 16 --only "cells x30, transient"
    python studies/suspects.py --seeds 20000:20100 --jobs 16 --outliers keep
    python studies/suspects.py --seeds 20000:20100 --jobs 16 --outliers both --json docs/results/suspects.json

n = 30, T = 16, d = 3. Columns: order right up to reversal, direction called, and called wrongly, coverage of 95 % intervals of A in the
order's true direction, precision and recall of suspects by rows, recall among rows that a process known would reveal (two-sided
Mahalanobis distance beyond χ²(1 − .05/480)), share of rows flagged, CPU seconds (median); with "both", of auto over keep, panel by panel.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import assumptions
import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import chi2, t

import retrace_sde as rt

DT, N, T, D = 0.1, 30, 16, 3


def irreversible(seed, noise, *, transient=True):
    """A transient with innovations of another law; `noise(rng, memory)` draws (N, D) of variance about one."""
    rng = np.random.default_rng([seed, 77])
    A, H = assumptions.irreversible(seed, D)
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    L, root = np.linalg.cholesky(S - F @ S @ F.T), np.linalg.cholesky(S)
    x = 2 * np.sqrt(np.diag(S)) + 0.33 * rng.standard_normal((N, D)) @ root.T
    found, memory = [x], {}
    for _ in range(T - 1):
        x = x @ F.T + noise(rng, memory) @ L.T
        found.append(x)
    return np.stack(found, axis=1)


def volatile(rng, memory):
    h = memory.get("h", 0.7 * rng.standard_normal((N, 1)))
    memory["h"] = 0.9 * h + 0.7 * np.sqrt(1 - 0.81) * rng.standard_normal((N, 1))
    return np.exp(h) * rng.standard_normal((N, D))


def logistic(seed):
    rng = np.random.default_rng([seed, 78])
    x = np.exp(np.log(0.1) + 0.3 * rng.standard_normal((N, 2)))
    found = [x]
    for _ in range(T - 1):
        grown = x + np.array([0.5, 0.4]) * x * (1 - x / np.array([1.0, 2.0]))
        x = np.maximum(grown + 0.05 * x * rng.standard_normal((N, 2)), 1e-3)
        found.append(x)
    return np.stack(found, axis=1)


def epidemic(seed):
    rng = np.random.default_rng([seed, 79])
    s = 0.99 + 0.003 * rng.standard_normal((N, 1))
    i = np.exp(np.log(0.01) + 0.3 * rng.standard_normal((N, 1)))
    found = [np.c_[s, i]]
    for _ in range(T - 1):
        new = np.clip(0.9 * s * i * (1 + 0.1 * rng.standard_normal((N, 1))), 0, s)
        s, i = (
            s - new,
            np.maximum(i + new - 0.35 * i * (1 + 0.1 * rng.standard_normal((N, 1))), 1e-5),
        )
        found.append(np.c_[s, i])
    return np.stack(found, axis=1)


def incomplete(seed):
    X = assumptions.transient(seed)
    X[np.random.default_rng([seed, 80]).random(X.shape) < 0.1] = np.nan
    return X


PANELS = {
    "transient": assumptions.transient,
    "rest": lambda seed: assumptions.rest(seed, turning=True),
    "levels": lambda seed: assumptions.rest(seed, turning=True, levels=1.0),
    "t3": lambda s: irreversible(s, lambda rng, m: rng.standard_t(3, (N, D)) / np.sqrt(3)),
    "exponential": lambda s: irreversible(s, lambda rng, m: rng.exponential(size=(N, D)) - 1),
    "volatility": lambda s: irreversible(s, volatile),
    "logistic": logistic,
    "SIR": epidemic,
    "missing": incomplete,
}


def cells(X, wrong, rng, count, factor):
    for at in rng.choice(X.size, count, replace=False):
        j, k, v = np.unravel_index(at, X.shape)
        X[j, k, v] *= factor
        wrong[j, k] = True


def exchanged(X, wrong, rng, count):
    for _ in range(count):
        while True:
            k, (i, j) = rng.integers(T), rng.choice(N, 2, replace=False)
            if not wrong[[i, j], k].any():
                break
        X[[i, j], k], wrong[[i, j], k] = X[[j, i], k], True


def other_slices(X, wrong, rng, count):
    for _ in range(count):
        while True:
            j, (a, b) = rng.integers(N), rng.choice(T, 2, replace=False)
            if abs(a - b) >= 3 and not wrong[j, [a, b]].any():
                break
        X[j, [a, b]], wrong[j, [a, b]] = X[j, [b, a]], True


def units(X, wrong, rng, count):
    for j in rng.choice(N, count, replace=False):
        X[j], wrong[j] = 100 * X[j], True


SETTINGS = {
    **{f"clean, {kind}": (kind, None, ()) for kind in PANELS},
    "cells x30, transient": ("transient", cells, (5, 30)),
    "cells x30, rest": ("rest", cells, (5, 30)),
    "cells x10, transient": ("transient", cells, (5, 10)),
    "cells x10, rest": ("rest", cells, (5, 10)),
    "5 exchanges, rest": ("rest", exchanged, (5,)),
    "15 exchanges, rest": ("rest", exchanged, (15,)),
    "5 exchanges, levels": ("levels", exchanged, (5,)),
    "15 exchanges, levels": ("levels", exchanged, (15,)),
    "8 wrong slices, transient": ("transient", other_slices, (8,)),
    "one subject x100": ("transient", units, (1,)),
    "three subjects x100": ("transient", units, (3,)),
    **{
        f"contamination {share:.1%}": ("transient", cells, (round(share * N * T * D), 30))
        for share in (0.005, 0.01, 0.02, 0.05, 0.1)
    },
}


def detectable(X, clean):
    """Rows (n, T) that two-sided regressions on the clean panel reveal; ends and missing values are not judged."""
    found = np.zeros(X.shape[:2], dtype=bool)
    if np.isnan(clean).any():
        return found
    both = np.concatenate([clean[:, :-2], clean[:, 2:], np.ones((len(X), T - 2, 1))], axis=2)
    d = X.shape[2]
    B = np.linalg.lstsq(both.reshape(-1, 2 * d + 1), clean[:, 1:-1].reshape(-1, d), rcond=None)[0]
    rest = clean[:, 1:-1] - both @ B
    S = np.cov(rest.reshape(-1, d).T).reshape(d, d)
    moved = X[:, 1:-1] - both @ B
    squares = (moved @ np.linalg.inv(S) * moved).sum(axis=2)
    found[:, 1:-1] = squares > chi2.ppf(1 - 0.05 / (N * T), d)
    return found


def one(setting, seed, outliers):
    kind, soil, options = SETTINGS[setting]
    clean = PANELS[kind](seed)
    X, wrong = clean.copy(), np.zeros(clean.shape[:2], dtype=bool)
    if soil is not None:
        soil(X, wrong, np.random.default_rng([seed, 99]), *options)
    shuffled = np.random.default_rng(seed).permutation(T)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, outliers=outliers).fit(X[:, shuffled])
    seconds = time.process_time() - begun
    along = shuffled[model.order_].tolist()
    ahead, back = along == list(range(T)), along[::-1] == list(range(T))
    called = model.direction_.identified
    covered = np.nan
    if kind in ("transient", "rest", "t3", "exponential", "missing") and (ahead or back):
        covered = _coverage(model.result_ if ahead else model.result_.alternative, seed, N)
    found = np.zeros(wrong.shape, dtype=bool)
    for each in model.result_.suspects:
        j = slice(None) if each.trajectory is None else each.trajectory
        k = slice(None) if each.slice is None else shuffled[each.slice]
        found[j, k] = True
    seen = wrong & detectable(X, clean) if soil is not units else wrong
    return (
        ahead or back, called, called and not ahead, covered, (found & wrong).sum(), found.sum(), wrong.sum(),
        (found & seen).sum(), seen.sum(), found.mean(), seconds,
    )  # fmt: skip


def _coverage(found, seed, n):
    """The share of A's entries that their 95 % intervals hold."""
    if found is None or found.standard_errors is None:
        return np.nan
    A, _ = assumptions.irreversible(seed, D)
    errors = found.standard_errors.drift
    return float((np.abs(found.drift - A) <= t.ppf(0.975, n - 1) * errors).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only")
    parser.add_argument("--outliers", default="auto", choices=["auto", "flag", "keep", "both"])
    parser.add_argument(
        "--json", type=Path, help="write the table there, too; rows of other settings stay"
    )
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    one("clean, transient", 0, "keep")  # compile before anything is timed
    rows = []
    print(" " * 28 + "".join(f"{name:>11}" for name in COLUMNS))
    for setting in asked.only.split(";") if asked.only else SETTINGS:
        former = None
        for how in ("keep", "auto") if asked.outliers == "both" else (asked.outliers,):
            work = (delayed(one)(setting, seed, how) for seed in seeds)
            R = np.array(Parallel(asked.jobs)(work), dtype=float)
            row = {"setting": setting, "outliers": how, "panels": len(R), **_summed(R)}
            if former is not None:
                row["times"] = round(float(np.median(R[:, -1] / former[:, -1])), 3)
            rows.append(row)
            former = R
            shown = "".join(f"{'' if row.get(c) is None else row[c]:>11}" for c in COLUMNS)
            print(f"{setting:28}{shown}", flush=True)
            if asked.json is not None:  # what is there already is kept where a long run ends early
                asked.json.write_text(_as_json(rows, asked.json), encoding="utf-8")


def _as_json(rows, file):
    """The table with these rows in place of those of the same settings in the file."""
    names, command = ["setting", "panels", *COLUMNS], " ".join(["python", *sys.argv])
    made = {(row["setting"], row["outliers"]): [row.get(name) for name in names] for row in rows}
    commands = [command]
    if file.exists():
        former = json.loads(file.read_text("utf-8"))
        kept = [dict(zip(former["columns"], row, strict=True)) for row in former["rows"]]
        for row in kept:
            made.setdefault((row["setting"], row["outliers"]), [row.get(name) for name in names])
        commands = [*(c for c in former["command"].split("; ") if c != command), command]
    place = [*SETTINGS]
    table = sorted(made.values(), key=lambda row: (place.index(row[0]), row[2] == "auto"))
    what = {"command": "; ".join(commands), "columns": names, "rows": table}
    return json.dumps(what, ensure_ascii=False).replace("], [", "],\n[") + "\n"


COLUMNS = ("outliers", "order", "called", "wrong", "coverage", "precision", "recall", "detectable", "flagged", "seconds", "times")  # fmt: skip


def _summed(R):
    """Means over panels; precision and recall over all rows."""
    hit, flagged, wrong, reached, seen = R[:, 4:9].sum(axis=0)
    covered = R[:, 3][~np.isnan(R[:, 3])]
    found = {
        "order": R[:, 0].mean(),
        "called": R[:, 1].mean(),
        "wrong": R[:, 2].mean(),
        "coverage": covered.mean() if len(covered) else None,
        "precision": hit / flagged if flagged else None,
        "recall": hit / wrong if wrong else None,
        "detectable": reached / seen if seen else None,
        "flagged": R[:, 9].mean(),
        "seconds": np.median(R[:, 10]),
    }
    digits = {"flagged": 5}
    return {
        name: None if value is None else round(float(value), digits.get(name, 3))
        for name, value in found.items()
    }


if __name__ == "__main__":
    main()
