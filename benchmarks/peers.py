"""What users would pick instead, side by side: who finds the order, who estimates the SDE, in how many seconds.

`python benchmarks/peers.py` prints three tables: the order of shuffled slices (scipy's spanning tree, scanpy's DPT, one
literal round of the paper's Algorithm 1, the closed form that is given the order); (A, H) in known order (statsmodels);
and behind noise (dynamax, pykalman). `--tables order noise` prints some of them, `--figure peers.svg` draws the first over T with
slopes. Every method runs in a process of its own on the same data, best of `--repeat`; peers that are not installed (`pip install
retrace-sde[peers]`) are named and left out. Read seconds as ratios within one run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

DT = 0.01
BASE = (2000, 250, 50)
"""n, T, d of the paper's Table 1."""

LENGTHS = (125, 250, 500, 1000)
"""T of the figure; n and d of the base setting over ten."""


# -- the order -----------------------------------------------------------------------------------------------


def shuffled(size, seed=0):
    import retrace_sde as rt

    n, T, d = size
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0=0.1, random_state=seed + 1)
    X, truth = rt.simulate.shuffle(X, random_state=seed + 2)
    return sde, np.ascontiguousarray(X), truth


def fit(X, truth):
    import retrace_sde as rt

    model = rt.ReTrace(dt=DT, drift="linear", random_state=0).fit(X)
    return model.order_, model.drift_, model.diffusion_


def closed_form(X, truth):
    """The paper's equations with the order known, as a user of numpy would write them."""
    d = X.shape[2]
    ordered = X[:, truth]
    x, dx = ordered[:, :-1].reshape(-1, d), np.diff(ordered, axis=1).reshape(-1, d)
    A = np.linalg.solve(x.T @ x, x.T @ dx).T / DT
    residual = dx - x @ A.T * DT
    return truth, A, residual.T @ residual / (len(x) * DT)


def spanning_tree(X, truth):
    """scipy: distances of slices, their minimum spanning tree, walked from an end of its longest path."""
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree, shortest_path
    from scipy.spatial.distance import pdist, squareform

    n, T, d = X.shape
    tree = minimum_spanning_tree(squareform(pdist(X.transpose(1, 0, 2).reshape(T, n * d))))
    far = shortest_path(tree, directed=False)
    end = int(np.unravel_index(np.argmax(far), far.shape)[0])
    return breadth_first_order(tree, end, directed=False)[0], None, None


def scanpy(X, truth):
    """scanpy's diffusion pseudotime, rooted at an extreme of its first component."""
    from retrace_sde.reproduce.methods import scanpy_order

    return scanpy_order(X), None, None


def algorithm1(X, truth):
    import retrace_sde as rt

    model = rt.ReTrace(dt=DT, order="score", max_iter=1, drift="linear").fit(X)
    return model.order_, model.drift_, model.diffusion_


# -- the SDE in known order, and behind noise -------------------------------------------------------------------


def known_order(seed=0):
    import retrace_sde as rt

    sde = rt.simulate.random_irreversible_sde(10, random_state=seed)
    return sde, sde.simulate(200, 100, DT, x0=1.0, scheme="exact", random_state=seed + 1), None


def known_fit(X, truth):
    import retrace_sde as rt

    times = rt.Knowledge(positions={k: k for k in range(X.shape[1])})
    model = rt.ReTrace(dt=DT, drift="linear", estimator="exact").fit(X, knowledge=times)
    return None, model.drift_, model.diffusion_


def statsmodels(X, truth):
    """Its vector autoregression takes one series: the trajectories one after the other, so that every join counts as a step."""
    from statespace import continuous
    from statsmodels.tsa.api import VAR

    found = VAR(X.reshape(-1, X.shape[2])).fit(1, trend="n")
    return None, *continuous(found.coefs[0], found.sigma_u)


def noisy(sigma, seed=0):
    from statespace import panel

    return *panel(sigma, seed=seed), None


def behind_noise(name, Y, truth):
    import statespace

    return None, *getattr(statespace, name)(Y)


ORDER = {
    "ReTrace: order, direction, A, H, errors": fit,
    "closed form, order known": closed_form,
    "scipy: spanning tree": spanning_tree,
    "scanpy: DPT": scanpy,
    "Algorithm 1, one literal round": algorithm1,
}
KNOWN = {"ReTrace, order known": known_fit, "statsmodels: VAR": statsmodels}
NOISE = {
    "ReTrace em": partial(behind_noise, "ours"),
    "dynamax: EM, 50 rounds": partial(behind_noise, "dynamax"),
    "pykalman: EM, 10 rounds": partial(behind_noise, "pykalman"),
}
TABLES = {
    "order": (ORDER, shuffled, [BASE]),
    "known": (KNOWN, lambda _: known_order(), [None]),
    "noise": (NOISE, noisy, [0.1, 0.5]),
}
NEEDS = {name: name.split(":")[0] for name in (*ORDER, *KNOWN, *NOISE) if ":" in name}


def measured(table, name, setting, repeat):
    """Seconds (least of some), errors of A and H, and the share of positions that are right: as they stand, up to reversal."""
    import retrace_sde as rt

    methods, make, _ = TABLES[table]
    sde, X, truth = make(setting)
    small = {"order": (20, 12, 3), "known": None, "noise": setting}[table]
    if table == "order":  # compile, import
        methods[name](*shuffled(small)[1:])
    elif name.startswith("ReTrace"):
        methods[name](X[:20], truth)
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        order, A, H = methods[name](X, truth)
        seconds.append(time.perf_counter() - begin)
    found = {"seconds": min(seconds)}
    if A is not None:
        found["A"] = float(np.abs(A - sde.drift).mean())
        found["H"] = float(np.abs(H - sde.diffusion).mean())
    if order is not None:
        right = [rt.metrics.order_accuracy(truth, o) for o in (order, order[::-1])]
        found |= {"right": float(right[0]), "chain": float(max(right))}
    return found


def apart(table, name, setting, repeat):
    """The same in a process of its own, on one thread; None where the peer is not installed or fails, which is said."""
    module = NEEDS.get(name)
    if module not in (None, "ReTrace") and importlib.util.find_spec(module) is None:
        print(f"{name}: {module} is not installed", file=sys.stderr)
        return None
    here = Path(__file__).parent
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([table, name, setting, repeat])],
        env={**os.environ, **quiet, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    if said.returncode:
        print(f"{name}: {said.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(said.stdout.strip().splitlines()[-1])


def number(value):
    return "–" if value is None or not np.isfinite(value) else f"{value:.3g}"


def printed(table, setting, found):
    """One table as Markdown, seconds also as ratios to the first method's."""
    print(
        f"\n**{table}**, {'σ = ' if table == 'noise' else ''}{setting or 'n = 200, T = 100, d = 10'}"
    )
    print(
        "| method | seconds | / ReTrace | MAE of A | MAE of H | positions right | up to reversal |"
    )
    print("|---|---|---|---|---|---|---|")
    ours = next(iter(found.values()))["seconds"]
    for name, row in found.items():
        cells = [number(row.get(k)) for k in ("A", "H", "right", "chain")]
        print(
            f"| {name} | {row['seconds']:.3g} | {row['seconds'] / ours:.2g} | {' | '.join(cells)} |"
        )
    sys.stdout.flush()


def figure(path, repeat):
    """Seconds over T of everything that finds an order, with slopes."""
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in ORDER:
        rows = [
            (T, apart("order", name, (BASE[0] // 10, T, BASE[2] // 5), repeat)) for T in LENGTHS
        ]
        rows = [(T, row["seconds"]) for T, row in rows if row is not None]
        if len(rows) < 2:
            continue
        x, y = np.array(rows).T
        slope = np.polyfit(np.log(x), np.log(y), 1)[0]
        ax.loglog(x, y, "o-", label=f"{name}: slope {slope:.2f}")
        print(
            f"{name}: " + ", ".join(f"T={int(T)} {s:.3g} s" for T, s in rows), f"slope {slope:.2f}"
        )
    ax.set_xlabel("slices T")
    ax.set_ylabel("seconds")
    ax.legend(frameon=False, fontsize=8)
    fig.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--without", nargs="+", default=[], help="peers, by a part of their name")
    parser.add_argument("--figure")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        table, name, setting, repeat = json.loads(options.one)
        print(json.dumps(measured(table, name, setting, repeat)))
        return
    for table in options.tables:
        methods, _, settings = TABLES[table]
        names = [name for name in methods if not any(part in name for part in options.without)]
        for setting in settings:
            once = dict.fromkeys(names, 1 if table == "noise" else options.repeat)
            found = {name: apart(table, name, setting, once[name]) for name in names}
            printed(table, setting, {name: row for name, row in found.items() if row is not None})
    if options.figure:
        figure(options.figure, options.repeat)


if __name__ == "__main__":
    main()
