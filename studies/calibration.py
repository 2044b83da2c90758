"""Calibration: level and power of the direction test, coverage of intervals on every path, ranks of positions.

    python studies/calibration.py [--minutes 28] [--jobs 2] [--seeds 1000:1200] [--only PART] [--journal FILE] [--figure FILE]

Seeds are processed in rounds over all cases, four panels of the fast cases for one of the slow, so that an interrupted run has
results for all of them. Finished panels are in the journal and are not repeated. Tables and figure
are made from the journal. Panels are those of the other studies.

positions: under the posterior the rank of an observation's true position among those drawn is uniform (simulation-based
calibration; Talts et al. 2018), up to the error of the parameters, which are estimated. Ties are broken at random.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import combined
import direction
import interval_coverage
import numpy as np
from matplotlib.figure import Figure

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

Row = dict[str, float | list[float]]
Table = dict[str, Any]
BINS = 10


def of_direction(case: str, study: str, seed: int) -> Row:
    make, given, options = direction.STUDIES[study][case]
    row = direction.judge(make(seed, **given), seed, options)
    return {"called": float(row["called"]), "wrong": float(row["wrong"])}


def of_subjects(settings: dict[str, float], seed: int) -> Row:
    X = interval_coverage.panel(seed, **settings)
    model, _ = interval_coverage.fitted(X, seed, dt=0.15, n_jobs=1)
    a, h, _ = interval_coverage.covered(model)
    return {"A": float(a), "H": float(h)}


def of_combined(setting: combined.Setting, seed: int) -> Row:
    found = combined.run(replace(setting, seed=seed))
    return {"A": found["cover A"], "H": found["cover H"], "wrong": found["called wrong"]}


def of_positions(permutation: str, n: int, T: int, seed: int) -> Row:
    """Shares of the ranks of true positions in ten bins."""
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(2, random_state=rng)
    start = 1.5 + 0.3 * rng.standard_normal((n, 2))
    X = sde.simulate(n, T, 0.1, x0=start, random_state=rng)
    Y, truth = rt.simulate.shuffle(X, permutation=permutation, random_state=rng)
    own = {"estimator": "mcem"} if permutation == "independent" else {}
    model = rt.ReTrace(dt=0.1, permutation=permutation, random_state=seed, n_jobs=1, **own).fit(Y)
    drawn = np.atleast_3d(model.sample_orders(draws=400).samples.astype(int))
    drawn = drawn if permutation == "independent" else drawn[:, :, 0][None]
    if rt.metrics.kendall_tau(truth, model.order_) < 0:  # the direction is assessed separately
        truth = truth[..., ::-1]
    place = np.argsort(drawn, axis=2)
    there = np.argsort(np.atleast_2d(truth), axis=1)[:, None]
    below, equal = (place < there).mean(axis=1), (place == there).mean(axis=1)
    ranks = below + rng.random(below.shape) * equal
    counts = np.histogram(ranks, bins=BINS, range=(0, 1))[0]
    return {"ranks": (counts / counts.sum()).tolist()}


def _named(name: str) -> combined.Setting:
    return next(each for each in combined.SETTINGS if each.name == name)


CASES: dict[tuple[str, str], Callable[[int], Row]] = {
    **{
        (study, case): (lambda seed, case=case, study=study: of_direction(case, study, seed))
        for study in ("level", "power")
        for case in direction.STUDIES[study]
    },
    ("coverage", "shared"): lambda seed: of_subjects({"n": 40}, seed),
    ("coverage", "shared, levels"): lambda seed: of_subjects({"levels": 1.0}, seed),
    ("coverage", "shared, noise and missing, scheduled"): lambda seed: of_combined(
        _named("schedule"), seed
    ),
    ("coverage", "own"): lambda seed: of_combined(combined.Setting("own", missing=0.0), seed),
    ("coverage", "own, missing"): lambda seed: of_combined(_named("missing"), seed),
    ("coverage", "own, missing, noise"): lambda seed: of_combined(_named("missing, noise"), seed),
    ("coverage", "own, irregular times known"): lambda seed: of_combined(
        _named("missing, known times"), seed
    ),
    ("positions", "own, n = 40, T = 8"): lambda seed: of_positions("independent", 40, 8, seed),
    ("positions", "shared, n = 3, T = 10"): lambda seed: of_positions("shared", 3, 10, seed),
}


LONG = ("own", "noise", "missing", "d=6 n=100", "d=10")
"""What is in the name of a case whose fits take long."""


def plan(cases: list[tuple[str, str]], first: int, end: int) -> Iterator[tuple[str, str, int]]:
    """Panels round by round."""
    for k in range(end - first):
        for part, case in cases:
            many = 1 if any(each in case for each in LONG) else 4
            for seed in range(first + many * k, min(first + many * (k + 1), end)):
                yield part, case, seed


def work(part: str, case: str, seed: int) -> Row:
    """One panel of one case; a fit that fails is a finding, not an end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return CASES[part, case](seed)
        except ValueError as error:
            return {"failed": 1.0, "why": str(error)[:200]}  # type: ignore[dict-item]


def read(journal: Path) -> dict[tuple[str, str, int], Row]:
    """What has been done; a line that was cut off by a kill is left out."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            part, case, seed, row = json.loads(line)
        except ValueError:
            continue
        found[part, case, seed] = row
    return found


def fill(journal: Path, tasks: Iterator[tuple[str, str, int]], jobs: int, seconds: float) -> None:
    """Work off tasks, a few at a time, until time is up; every row is on disk before the next begins."""
    end = time.monotonic() + seconds
    with ProcessPoolExecutor(jobs) as pool, journal.open("a") as file:
        running = {pool.submit(work, *task): task for task in islice(tasks, 2 * jobs)}
        while running:
            for each in wait(running, return_when=FIRST_COMPLETED).done:
                task = running.pop(each)
                file.write(json.dumps([*task, each.result()]) + "\n")
                file.flush()
                if time.monotonic() < end:
                    running |= {pool.submit(work, *new): new for new in islice(tasks, 1)}


def _share(values: list[float]) -> str:
    """A mean and its error; one panel of each kind is added for the error, since none of few is no certainty."""
    error = np.std([*values, 0.0, 1.0], ddof=1) if set(values) <= {0.0, 1.0} else np.std(values, ddof=1)  # fmt: skip
    return f"{np.mean(values):.3f} ± {error / np.sqrt(len(values)):.3f}"


def picture(rows: dict[tuple[str, str, int], Row], path: Path) -> None:
    """Rank histograms, and the band of two errors over panels about what a true posterior gives."""
    cases = [case for part, case in CASES if part == "positions"]
    figure = Figure(figsize=(7, 2.6), layout="constrained")
    every = figure.subplots(1, len(cases), sharey=True)
    for axes, case in zip(np.atleast_1d(every), cases, strict=True):
        found = [
            row["ranks"] for (_, name, _), row in rows.items() if name == case and "ranks" in row
        ]
        if len(found) < 2:
            continue
        mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
        middle = (np.arange(BINS) + 0.5) / BINS
        axes.bar(middle, mean, 0.9 / BINS, yerr=2 * error, color="#4c78a8", ecolor="#222222")
        axes.axhline(1 / BINS, color="#222222", linewidth=1, linestyle=":")
        axes.set(title=f"{case}: {len(found)} panels", xlabel="rank of the true position")
    figure.axes[0].set_ylabel("share")
    figure.savefig(path, metadata={"Date": None})


def tables(rows: dict[tuple[str, str, int], Row]) -> Iterator[Table]:
    """One for each part, with the target of each figure."""
    by_case: dict[tuple[str, str], list[Row]] = {}
    for (part, case, _), row in rows.items():
        if (part, case) in CASES:
            by_case.setdefault((part, case), []).append(row)
    heads = {
        "level": {"called": "called; target ≤ .05"},
        "power": {"called": "called", "wrong": "wrongly; target ≤ .05"},
        "coverage": {"A": "of A; target .90 to .99", "H": "of H; target .90 to .99"},
    }
    for part, columns in heads.items():
        table = []
        for (each, case), found in by_case.items():
            good = [row for row in found if next(iter(columns)) in row]
            if each == part and good:
                cells = [_share([float(row[key]) for row in good]) for key in columns]  # type: ignore[arg-type]
                table.append([case, len(good), *cells])
        yield {"columns": ["panels", "number", *columns.values()], "rows": table}
    found = {
        case: [row["ranks"] for row in every if "ranks" in row]
        for (part, case), every in by_case.items()
        if part == "positions"
    }
    table = [
        [case, len(each), *(f"{x:.3f}" for x in np.mean(each, axis=0))]
        for case, each in found.items()
        if each
    ]
    yield {"columns": ["panels", "number", *(f"{k / BINS:g}–" for k in range(BINS))], "rows": table}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=28.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seeds", default="1000:1200")
    parser.add_argument("--only", default="", help="parts or cases whose name contains this")
    parser.add_argument("--journal", type=Path, default=Path("calibration.jsonl"))
    parser.add_argument("--figure", type=Path)
    asked = parser.parse_args()
    done = read(asked.journal)
    chosen = [key for key in CASES if asked.only in " ".join(key)]
    tasks = plan(chosen, *map(int, asked.seeds.split(":")))
    todo = (task for task in tasks if task not in done)
    fill(asked.journal, todo, asked.jobs, 60 * asked.minutes)
    rows = read(asked.journal)
    for each in tables(rows):
        print(*lines(each), sep="\n", end="\n\n")
    if asked.figure:
        picture(rows, asked.figure)


if __name__ == "__main__":
    main()
