"""First use after installation: import time, and what each path compiles on its first call.

`python benchmarks/first_use.py` runs each path in a fresh process with an empty kernel cache, then in another
with the cache that the first left; and so the command `retrace fit` of a table of 50 subjects, 8 slices and 4 variables, imports and report included. Printed: kernels compiled, seconds of compiling, and seconds of both calls; and the
import times of `retrace_sde` and of everything that a fit imports, relative to numpy and scipy.linalg. All seconds are those of the
processor, so that a busy machine can tell them, too.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

PATHS = {
    "shared": {},
    "shared, missing values": {"missing": True},
    "shared, noise": {"observation_noise": "estimate"},
    "own orders": {"permutation": "independent"},
    "own orders, noise": {"permutation": "independent", "observation_noise": "estimate"},
}
COMMANDS = {"`retrace fit`, 50 × 8 × 4": 0.0, "`retrace fit`, 5 % missing": 0.05}
"""The share of values that are missing."""

IMPORTS = ("import numpy, scipy.linalg", "import retrace_sde", "from retrace_sde import ReTrace")


def call(path):
    """A small fit: how many kernels it compiled, for how long, and how long it took in all."""
    import numpy as np
    from numba.core import event

    import retrace_sde as rt

    settings = dict(PATHS[path])
    missing = settings.pop("missing", False)
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(12, 10, 0.1, x0=0.3, random_state=1)
    X, _ = rt.simulate.shuffle(X, permutation=settings.get("permutation", "shared"), random_state=2)
    if missing:
        X = np.where(np.random.default_rng(3).random(X.shape) < 0.1, np.nan, X)
    open_, found = [], []  # kernels compile the kernels that they call

    class Listener(event.Listener):
        def on_start(self, event):
            open_.append(time.process_time())

        def on_end(self, event):
            since = open_.pop()
            found.append(0.0 if open_ else time.process_time() - since)

    with event.install_listener("numba:compile", Listener()):
        begin = time.process_time()
        rt.ReTrace(dt=0.1, random_state=0, n_jobs=1, **settings).fit(X)
        seconds = time.process_time() - begin
    return {"kernels": len(found), "compiling": sum(found), "seconds": seconds}


def command(lost, folder):
    """CPU seconds of `retrace fit` of a table with an empty cache of kernels, and with what the first left; and how many that are."""
    import numpy as np

    import retrace_sde as rt

    (n, T, d), table = (50, 8, 4), Path(folder, "table.csv")
    sde = rt.simulate.random_irreversible_sde(d, random_state=0)
    X, _ = rt.simulate.shuffle(sde.simulate(n, T, 0.1, x0=0.3, random_state=1), random_state=2)
    X = np.where(np.random.default_rng(3).random(X.shape) < lost, np.nan, X)
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["subject", "visit", *"abcd"])
        for j, t in np.ndindex(n, T):
            rows.writerow([j, t, *("" if np.isnan(x) else x for x in X[j, t])])
    asked = f"-m retrace_sde fit {table} --subject subject --slice visit --dt 0.1 --out {folder}/found --force"
    seconds = [fresh(asked.split(), NUMBA_CACHE_DIR=f"{folder}/cache")[0] for _ in range(4)]
    return len(list(Path(folder, "cache").rglob("*.nbi"))), seconds[0], median(seconds[1:])


def fresh(code, **environment):
    """CPU seconds of some code in a fresh interpreter, and what it printed."""
    begin = _of_children()
    said = subprocess.run(
        [sys.executable, "-c", code] if isinstance(code, str) else [sys.executable, *code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return _of_children() - begin, said.stdout


def _of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=list(PATHS))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(call(options.one)))
        return
    empty = min(fresh("pass")[0] for _ in range(5))
    took = {code: min(fresh(code)[0] for _ in range(5)) - empty for code in IMPORTS}
    for code, seconds in took.items():
        print(f"{code}: {seconds:.3f} s, {seconds / took[IMPORTS[0]]:.2f} of {IMPORTS[0]}")
    print(
        "\n| path | kernels compiled | seconds of compiling | first call, s | the same with the cache, s |"
    )
    print("|---|---|---|---|---|")
    for path in options.paths:
        with tempfile.TemporaryDirectory() as cache:
            one, two = (
                json.loads(
                    fresh([__file__, "--one", path], NUMBA_CACHE_DIR=cache)[1].splitlines()[-1]
                )
                for _ in range(2)
            )
        print(
            f"| {path} | {one['kernels']} | {one['compiling']:.1f} | {one['seconds']:.1f} | {two['seconds']:.1f} |",
            flush=True,
        )

    for name, lost in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            kernels, first, again = command(lost, folder)
        print(f"| {name} | {kernels} | – | {first:.1f} | {again:.1f} |", flush=True)


if __name__ == "__main__":
    main()
