"""Growth of a whole fit: CPU seconds, those of summary and report, and memory along n, d, T, with noise, missing values, individual orders.

`python benchmarks/growth.py` prints a table; `--series d T` makes a part of it, `--figure growth.svg` draws CPU seconds on log–log axes, `--jobs 4` measures
four sizes at a time. Every size runs in a separate process, after a warm-up fit that compiles. Seconds are CPU seconds of all threads together, which a busy
machine changes little. The slope of a series is that of log CPU seconds on the log of the size that grows. Memory is the peak beyond the size before the fit.
One BLAS thread (`--threads`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

DT = 0.01
SERIES = {
    "sizes": [(30, 16, 3), (300, 80, 10), (2000, 250, 50)],
    "n": [(1000, 100, 10), (4000, 100, 10), (16000, 100, 10)],
    "d": [(400, 100, 40), (400, 100, 80), (400, 100, 160)],
    "T": [(100, 1000, 10), (100, 2000, 10), (100, 4000, 10)],
    "T, long": [(100, 10_000, 10), (100, 100_000, 10)],
    "noise": [(100, 50, 4), (100, 100, 4), (100, 200, 4)],
    "missing": [(100, 25, 4), (100, 50, 4), (100, 100, 4)],
    "own": [(50, 50, 10), (50, 100, 10), (50, 200, 10)],
    "own, long": [(5, 250, 10), (5, 500, 10), (5, 1000, 10)],
    "wide, few": [(120, 20, 200), (120, 20, 400), (120, 20, 600), (120, 20, 1000)],
    "wide": [(2000, 20, 250), (2000, 20, 500), (2000, 20, 1000)],
}
"""Sizes (n, T, d) of each series; all but the first grow in one of them."""

WARM = {"sizes": (300, 80, 10), "T, long": (100, 1000, 10), "wide, few": (120, 20, 60)}
"""What is fitted first, where it is not the first size of the series: it has to take the path of all."""

SIGMA, LOST = 0.1, 0.05


def problem(series, size, seed=0):
    """A stable SDE from a start of sd .1 about zero, shuffled; and the settings that it is fitted with."""
    import numpy as np

    import retrace_sde as rt

    n, T, d = size
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0=0.1, random_state=seed + 1)
    settings = {"dt": DT, "random_state": 0}
    kind = series.split(",")[0]
    if kind == "noise":
        X = rt.simulate.add_noise(X, SIGMA, random_state=seed + 2)
        settings["observation_noise"] = "estimate"
    if kind == "missing":
        X = np.where(np.random.default_rng(seed + 3).random(X.shape) < LOST, np.nan, X)
    if kind == "own":
        settings["permutation"] = "independent"
    way = settings.get("permutation", "shared")
    X, truth = rt.simulate.shuffle(X, permutation=way, random_state=seed + 4)
    return X, truth, settings


def peak():
    """Megabytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(series, size):
    """CPU seconds, those of summary and report, megabytes beyond the data, and how much of the order and of who neighbours whom is right, up to reversal."""
    import retrace_sde as rt

    X, truth, settings = problem(series, size)
    rt.ReTrace(**settings).fit(problem(series, WARM.get(series, SERIES[series][0]))[0])  # compiles
    before, begin = peak(), time.process_time()
    model = rt.ReTrace(**settings).fit(X)
    cpu, held, begin = time.process_time() - begin, peak(), time.process_time()
    model.summary()
    with tempfile.TemporaryDirectory() as folder:
        rt.write_report(model, X, f"{folder}/report.html")
    return {
        "cpu": cpu,
        "told": time.process_time() - begin,
        "megabytes": held - before,
        "data": X.nbytes / 2**20,
        "right": float(rt.metrics.order_accuracy(truth, model.order_, up_to_reversal=True)),
        "neighbours": float(rt.metrics.neighbour_share(truth, model.order_)),
    }


def apart(series, size, threads):
    """The same in a process of its own; None where it fails, which is said."""
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    command = [sys.executable, __file__, "--one", json.dumps([series, size])]
    said = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True)
    if said.returncode:
        print(f"{series} {size}: {said.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(said.stdout.strip().splitlines()[-1])


def grows(series):
    """Which of n, T and d grows in a series; None for sizes that differ in all."""
    differ = [len(set(each)) > 1 for each in zip(*SERIES[series], strict=True)]
    return "nTd"[differ.index(True)] if sum(differ) == 1 else None


def slope(series, rows):
    """Of log CPU seconds on the log of the size that grows; None with fewer than two sizes."""
    import numpy as np

    if len(rows) < 2 or grows(series) is None:
        return None
    x = [size["nTd".index(grows(series))] for size, _ in rows]
    return float(np.polyfit(np.log(x), np.log([found["cpu"] for _, found in rows]), 1)[0])


def short(number):
    """Three digits."""
    return f"{float(f'{number:.3g}'):,.10g}"


def table(found):
    """All series as lines of Markdown; the slope of a series stands with its largest size."""
    from retrace_sde.lost_time.table import lines

    columns = [
        "series: n, T, d",
        "CPU seconds",
        "slope",
        "of summary and report",
        "MB of data",
        "MB beyond the data",
    ]
    made = []
    for series, rows in found.items():
        for size, row in rows:
            steep = slope(series, rows) if size == rows[-1][0] else None
            numbers = [short(row["cpu"]), None if steep is None else f"{steep:.2f}"]
            numbers += [short(row["told"]), short(row["data"]), short(row["megabytes"])]
            shares = [f"{row[each]:.3f}" for each in ("right", "neighbours")]
            made.append([f"{series}: {', '.join(map(str, size))}", *numbers, *shares])
    return lines({"columns": [*columns, "order right", "neighbours"], "rows": made})


def figure(found, path):
    """All series on log–log axes, with their slopes."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    for ax, grown in zip(axes, "ndT", strict=True):
        for series, rows in found.items():
            if grows(series) == grown and len(rows) > 1:
                x = [size["nTd".index(grown)] for size, _ in rows]
                name = f"{series}: slope {slope(series, rows):.2f}"
                ax.loglog(x, [row["cpu"] for _, row in rows], "o-", label=name)
        ax.set_xlabel({"n": "trajectories n", "d": "variables d", "T": "slices T"}[grown])
        ax.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("CPU seconds of a whole fit")
    fig.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", nargs="+", default=list(SERIES), choices=list(SERIES))
    parser.add_argument("--threads", default="1", help="of BLAS and OpenMP")
    parser.add_argument("--jobs", type=int, default=1, help="sizes measured at a time")
    parser.add_argument("--figure")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(*json.loads(asked.one))))
        return
    cases = [(series, size) for series in asked.series for size in SERIES[series]]
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda case: apart(case[0], case[1], asked.threads), cases))
    found = {series: [] for series in asked.series}
    for (series, size), row in zip(cases, rows, strict=True):
        if row is not None:
            found[series].append((size, row))
    print(*table(found), sep="\n")
    if asked.figure:
        figure(found, asked.figure)


if __name__ == "__main__":
    main()
