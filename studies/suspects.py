"""Wrong values put into panels: what is found, and what it does to order, direction and intervals.

    python studies/suspects.py --seeds 20000:20100 --jobs 16
    python studies/suspects.py --seeds 20000:20100 --jobs 16 --only "cells x30, transient"
    python studies/suspects.py --seeds 20000:20100 --jobs 16 --outliers keep --only contamination
    python studies/suspects.py --limit --seeds 20000:20020                 what can be found of exchanges with the process known
    python studies/suspects.py --figure docs/suspects.svg                  contamination in docs/results/suspects*.json, as a picture

n = 30, T = 16, d = 3. Columns: order right up to reversal, direction called, and called wrongly, coverage of 95 % intervals of A in the
order's true direction, precision and recall of suspects by rows, recall among rows that a process known would reveal (two-sided
Mahalanobis distance beyond χ²(1 − .05/480)), share of rows flagged, CPU seconds (median); with "both", of auto over keep, panel by panel.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from itertools import combinations
from pathlib import Path

import assumptions
import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import beta, chi2, t

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

DT, N, T, D = 0.1, 30, 16, 3

RECORDS = Path(__file__).resolve().parents[1] / "docs/results"


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


COMPILED = []


def one_by_one(setting, seed, hows):
    """The same panel with each, one after the other, so that CPU seconds can be compared; the first fit of a process compiles, untimed."""
    if not COMPILED:
        one("clean, transient", 0, "keep")
        COMPILED.append(True)
    return [one(setting, seed, how) for how in hows]


def _coverage(found, seed, n):
    """The share of A's entries that their 95 % intervals hold."""
    if found is None or found.standard_errors is None:
        return np.nan
    A, _ = assumptions.irreversible(seed, D)
    errors = found.standard_errors.drift
    return float((np.abs(found.drift - A) <= t.ppf(0.975, n - 1) * errors).mean())


def figure(records, path):
    """Against the share of wrong cells: order right (both settings), recall and coverage, with 95 % intervals of the order's share."""
    import matplotlib.pyplot as plt

    rows = [
        dict(zip(record["columns"], row, strict=True))
        for record in (json.loads(file.read_text("utf-8")) for file in records)
        for row in record["rows"]
        if row[0].startswith("contamination")
    ]
    _, axis = plt.subplots(figsize=(6.4, 3.4))
    for how, colour, name in (
        ("auto", "#2f6b9a", 'order right, "auto"'),
        ("keep", "#b5533c", 'order right, "keep"'),
    ):
        some = [row for row in rows if row["outliers"] == how]
        at = [float(row["setting"].split()[1].rstrip("%")) for row in some]
        share, n = (
            np.array([float(row["order"]) for row in some]),
            np.array([int(row["panels"]) for row in some]),
        )
        right = share * n
        low = np.where(right > 0, beta.ppf(0.025, np.maximum(right, 1e-9), n - right + 1), 0.0)
        high = np.where(right < n, beta.ppf(0.975, right + 1, np.maximum(n - right, 1e-9)), 1.0)
        bars = np.clip([share - low, high - share], 0, 1)
        axis.errorbar(at, share, bars, color=colour, marker="o", capsize=3, label=name)
        if how == "auto":
            for what, style, label in (
                ("recall", "--", "wrong rows found"),
                ("coverage", ":", "coverage of 95 % intervals of A"),
            ):
                axis.plot(at, [float(row[what]) for row in some], style, color=colour, label=label)
    axis.set(
        xscale="log",
        ylim=(-0.03, 1.05),
        xlabel="wrong cells (× 30), %",
        ylabel="share of panels, rows or intervals",
    )
    axis.set_xticks(at, [f"{each:g}" for each in at])
    axis.minorticks_off()
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    plt.tight_layout()
    plt.savefig(path)


def limits(seeds):
    """Exchanges that likelihood ratios find where A, H, the law of the first row and the order are known: the best pair first, then exchanged back."""
    for setting in ("8 wrong slices, transient", "5 exchanges, rest", "15 exchanges, rest"):
        gains, hits, total = [], [], 0
        for seed in seeds:
            kind, soil, options = SETTINGS[setting]
            X = PANELS[kind](seed)
            wrong = np.zeros(X.shape[:2], dtype=bool)
            soil(X, wrong, np.random.default_rng([seed, 99]), *options)
            total += wrong.sum()
            for gain, one, two in _exchanges_of(X, seed, kind):
                gains.append(gain)
                hits.append(float(wrong[one]) + float(wrong[two]))
        best = np.argsort(gains)[::-1]
        right = np.cumsum(np.array(hits)[best])
        recall = right[right >= 0.95 * 2 * np.arange(1, len(best) + 1)].max() / total
        print(
            f"{setting:28} recall at precision .95: {recall:.3f}, {len(seeds)} panels", flush=True
        )


def posterior_limit(seeds):
    """Rows of a wrong slice by their posterior probability where A, H, the law of the first row, the order and the number of exchanges are known.

    No rule finds more at the same precision; up to two exchanges of a trajectory are summed over.
    """
    pairs = list(combinations(range(T), 2))
    twice = [(a, b) for a, b in combinations(pairs, 2) if not {*a} & {*b}]
    moves = [(), *((each,) for each in pairs), *twice]
    orders = np.tile(np.arange(T), (len(moves), 1))
    for order, move in zip(orders, moves, strict=True):
        for a, b in move:
            order[[a, b]] = order[[b, a]]
    setting = "8 wrong slices, transient"
    prior = np.array([len(move) for move in moves]) * np.log(
        SETTINGS[setting][2][0] / N / len(pairs)
    )
    likely, truth = [], []
    for seed in seeds:
        X, wrong = PANELS["transient"](seed), np.zeros((N, T), dtype=bool)
        other_slices(X, wrong, np.random.default_rng([seed, 99]), *SETTINGS[setting][2])
        costs = _costs(seed, "transient")
        for x in X:
            logs = prior - costs(x[orders])
            weights = np.exp(logs - logs.max())
            likely.append(weights / weights.sum() @ (orders != np.arange(T)))
        truth.append(wrong)
    best = np.argsort(np.ravel(likely))[::-1]
    right = np.cumsum(np.ravel(truth)[best])
    for precision in (0.95, 0.98, 0.99):
        recall = right[right >= precision * np.arange(1, len(best) + 1)].max() / right[-1]
        print(f"{setting:28} posterior, recall at precision {precision}: {recall:.3f}, {len(seeds)} panels")  # fmt: skip


def _costs(seed, kind):
    """Minus the log-likelihood of trajectories (..., T, D), up to a constant, under the process that they came from."""
    A, H = assumptions.irreversible(seed, D)
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    first = (2 * np.sqrt(np.diag(S)), 0.33**2 * S) if kind == "transient" else (np.zeros(D), S)
    W, V = (np.linalg.inv(np.linalg.cholesky(C)).T for C in (S - F @ S @ F.T, first[1]))

    def costs(x):
        steps = (x[..., 1:, :] - x[..., :-1, :] @ F.T) @ W
        return 0.5 * (
            (steps**2).sum(axis=(-1, -2)) + (((x[..., 0, :] - first[0]) @ V) ** 2).sum(-1)
        )

    return costs


def _exchanges_of(X, seed, kind):
    """Pairs of rows that gain more than three nats by an exchange, each with its gain, greedily."""
    costs = _costs(seed, kind)
    X, free, found = X.copy(), np.ones(X.shape[:2], dtype=bool), []
    while True:
        own, best = costs(X), (3.0, None, None)
        for a, b in zip(*np.triu_indices(T, 1), strict=True):
            Y = X.copy()
            Y[:, [a, b]] = Y[:, [b, a]]
            gain = np.where(free[:, a] & free[:, b], own - costs(Y), -np.inf)
            j = int(gain.argmax())
            best = max(best, (gain[j], (j, a), (j, b)), key=lambda each: each[0])
        for k in range(T):
            Y = np.repeat(X[:, None], N, axis=1)
            Y[:, :, k] = X[None, :, k]
            gain = own[:, None] - costs(Y)
            gain = np.where(free[:, k, None] & free[None, :, k], gain + gain.T, -np.inf)
            i, j = np.unravel_index(gain.argmax(), gain.shape)
            best = max(best, (gain[i, j], (int(i), k), (int(j), k)), key=lambda each: each[0])
        gain, one, two = best
        if one is None:
            return found
        X[one], X[two] = X[two].copy(), X[one].copy()
        free[one] = free[two] = False
        found.append((float(gain), one, two))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="settings that contain one of these, with ;")
    parser.add_argument("--outliers", default="auto", choices=["auto", "flag", "keep", "both"])
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    if asked.figure:
        figure(sorted(RECORDS.glob("suspects*.json")), asked.figure)
        return
    if asked.limit:
        limits(seeds)
        posterior_limit(seeds)
        return
    table = []
    columns = [*COLUMNS, *(["times"] if asked.outliers == "both" else [])]
    for setting in SETTINGS:
        if not any(each in setting for each in asked.only.split(";")):
            continue
        hows = ("keep", "auto") if asked.outliers == "both" else (asked.outliers,)
        work = (delayed(one_by_one)(setting, seed, hows) for seed in seeds)
        every = np.array(Parallel(asked.jobs)(work), dtype=float)
        for k, how in enumerate(hows):
            R = every[:, k]
            row = {"outliers": how, "panels": len(R), **_summed(R)}
            if k:
                row["times"] = round(float(np.median(R[:, -1] / every[:, 0, -1])), 3)
            table.append([setting, *(row.get(column) for column in columns)])
            print(setting, row, flush=True)
    print(*lines({"columns": ["setting", *columns], "rows": table}), sep="\n")


COLUMNS = ("panels", "outliers", "order", "called", "wrong", "coverage", "precision", "recall", "detectable", "flagged", "seconds")  # fmt: skip


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
