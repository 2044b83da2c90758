"""Scaling of a whole fit: seconds and memory along n, d, T, with noise, individual orders, missing values.

`python benchmarks/growth.py` prints each series with the slope of its seconds on log–log axes; `--series d T` some of
them, `--figure growth.svg` draws them, `--json growth.json` keeps them. Every size runs in a separate process, after a warm-up fit of the first size that compiles.
Memory is the peak beyond the size before the fit. One BLAS thread (`--threads`). Seconds are comparable
on a quiet machine only; CPU seconds, of all threads together, and their slopes mostly anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

DT = 0.01
SERIES = {
    "n": [(1000, 100, 10), (4000, 100, 10), (16000, 100, 10)],
    "d": [(400, 100, 40), (400, 100, 80), (400, 100, 160)],
    "T": [(100, 1000, 10), (100, 2000, 10), (100, 4000, 10)],
    "T, long": [(100, 4000, 10), (100, 10_000, 10), (100, 100_000, 10)],
    "noise": [(100, 50, 4), (100, 100, 4), (100, 200, 4)],
    "missing": [(100, 25, 4), (100, 50, 4), (100, 100, 4)],
    "own": [(50, 50, 10), (50, 100, 10), (50, 200, 10)],
    "own, long": [(5, 250, 10), (5, 500, 10), (5, 1000, 10)],
    "wide, few": [(120, 20, 200), (120, 20, 400), (120, 20, 1000)],
    "wide": [(2000, 20, 250), (2000, 20, 500), (2000, 20, 1000)],
    "base": [(2000, 250, 50)],
}
"""Sizes (n, T, d) of each series; all but the first grow in one of them."""

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
    """Seconds, megabytes beyond the data, and how much of the order and of who neighbours whom is right, up to reversal."""
    import retrace_sde as rt

    X, truth, settings = problem(series, size)
    rt.ReTrace(**settings).fit(problem(series, SERIES[series][0])[0])  # compiles
    before, begin, worked = peak(), time.perf_counter(), time.process_time()
    model = rt.ReTrace(**settings).fit(X)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - worked
    return {
        "series": series,
        "n": size[0],
        "T": size[1],
        "d": size[2],
        "seconds": seconds,
        "cpu": cpu,
        "megabytes": peak() - before,
        "data": X.nbytes / 2**20,
        "right": rt.metrics.order_accuracy(truth, model.order_, up_to_reversal=True),
        "neighbours": rt.metrics.neighbour_share(truth, model.order_),
    }


def slope(rows):
    """Of log CPU seconds on the log of the size that grows."""
    import numpy as np

    grown = next(k for k in "nTd" if rows[0][k] != rows[-1][k])
    x, y = (np.log([each[k] for each in rows]) for k in (grown, "cpu"))
    return grown, float(np.polyfit(x, y, 1)[0])


def table(series, rows):
    """A series as lines of Markdown."""
    lines = [
        f"| {series}: n, T, d | seconds | CPU seconds | MB beyond the data ({rows[0]['data']:.0f} to {rows[-1]['data']:.0f} MB) | order right | neighbours |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['n']}, {r['T']}, {r['d']} | {r['seconds']:.2f} | {r['cpu']:.2f} | {r['megabytes']:.0f} | {r['right']:.3f} | {r['neighbours']:.3f} |"
        for r in rows
    ]
    if len(rows) > 1:
        lines.append("slope in {}: {:.2f}".format(*slope(rows)))
    return "\n".join(lines)


def figure(found, path):
    """All series on log–log axes, with their slopes."""
    import matplotlib.pyplot as plt

    drawn = [(name, rows) for name, rows in found.items() if len(rows) > 1]
    fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
    for ax, grown in zip(axes, "ndT", strict=True):
        for name, rows in drawn:
            if slope(rows)[0] != grown:
                continue
            x, y = ([each[k] for each in rows] for k in (grown, "cpu"))
            ax.loglog(x, y, "o-", label=f"{name}: slope {slope(rows)[1]:.2f}")
        ax.set_xlabel({"n": "trajectories n", "d": "variables d", "T": "slices T"}[grown])
        ax.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("CPU seconds of a whole fit")
    fig.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", nargs="+", default=list(SERIES), choices=list(SERIES))
    parser.add_argument("--threads", default="1", help="of BLAS and OpenMP")
    parser.add_argument("--figure")
    parser.add_argument("--json")
    parser.add_argument("--from-json", help="draw and print what was kept, measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    found = {}
    if options.from_json:
        with open(options.from_json) as file:
            found = json.load(file)
        for name, rows in found.items():
            print(table(name, rows), end="\n\n")
    else:
        quiet = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), options.threads
        )
        for name in options.series:
            found[name] = []
            for size in SERIES[name]:
                command = [sys.executable, __file__, "--one", json.dumps([name, size])]
                said = subprocess.run(
                    command, env={**os.environ, **quiet}, capture_output=True, text=True
                )
                if said.returncode:
                    print(f"{name} {size}: {said.stderr.strip().splitlines()[-1:]}", flush=True)
                    continue
                found[name].append(json.loads(said.stdout.strip().splitlines()[-1]))
            if found[name]:
                print(table(name, found[name]), end="\n\n", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)
    if options.figure:
        figure(found, options.figure)


if __name__ == "__main__":
    main()
