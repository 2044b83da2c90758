"""Comparison with alternatives: order found, SDE estimated, seconds.

`python benchmarks/peers.py` prints three tables: the order of shuffled slices (scipy's spanning tree, scanpy's DPT, one
literal round of the paper's Algorithm 1, the closed form that is given the order); (A, H) in known order (statsmodels);
and with noise (dynamax, pykalman). `--tables order noise` prints some of them, `--figure peers.svg` draws the first over T with
slopes. Every method runs in a separate process on the same data, best of `--repeat`; peers that are not installed (`pip install
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
from typing import Any

import numpy as np

DT = 0.01
BASE = (2000, 250, 50)
"""n, T, d of the paper's Table 1."""

NOISY = ((200, 100, 10), (2000, 50, 10), (200, 100, 4))
"""n, T, d of the table with noise."""

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
    """The paper's equations with the order known, at their best."""
    from fit_shared import closed_form as known  # beside this file

    return truth, *known(X, truth, DT)


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
    """scanpy's diffusion pseudotime of slices as they are, rooted at an extreme of its first component."""
    from retrace_sde.reproduce.methods import scanpy_order

    return scanpy_order(X), None, None


def scanpy_pca(X, truth):
    """The same by way of 50 principal components, as scanpy's neighbours do unless told otherwise."""
    from sklearn.decomposition import PCA

    from retrace_sde.reproduce.methods import scanpy_order

    n, T, d = X.shape
    slices = X.transpose(1, 0, 2).reshape(T, n * d)
    components = PCA(min(50, T - 1, n * d - 1), random_state=0).fit_transform(slices)
    return scanpy_order(components[None]), None, None


CELLS = 25
"""Trajectories of which every state is a cell: all of them would be half a million cells."""


def scanpy_states(X, truth):
    """Every state of some trajectories a cell; slices by their mean pseudotime."""
    import anndata
    import scanpy as sc

    some = X[:CELLS]
    table = anndata.AnnData(np.ascontiguousarray(some).reshape(-1, X.shape[2]))
    sc.pp.neighbors(table, n_neighbors=15, use_rep="X", random_state=0)
    sc.tl.diffmap(table, random_state=0)
    table.uns["iroot"] = int(np.argmax(np.abs(table.obsm["X_diffmap"][:, 1])))
    sc.tl.dpt(table)
    times = table.obs["dpt_pseudotime"].to_numpy().reshape(some.shape[:2])
    return np.argsort(np.where(np.isfinite(times), times, 1).mean(axis=0)), None, None


def algorithm1(X, truth):
    """Our form of the paper's Algorithm 1: all pairs at once, compiled."""
    import retrace_sde as rt

    model = rt.ReTrace(dt=DT, order="score", max_iter=1, drift="linear").fit(X)
    return model.order_, model.drift_, model.diffusion_


COMPARED = 300
"""Comparisons of a literal round that are timed; it makes T (T − 1) / 2, which cost the same each."""


def printed_round(X, truth, keep=False):
    """One round of Algorithm 1 as printed: estimate, then bubble-sort neighbours by their errors, in numpy.

    `keep`: H · Score of every slice is computed once, where lines 10 and 11 compute it at each comparison.
    """
    T = X.shape[1]
    slices = [np.ascontiguousarray(X[:, t]) for t in range(T)]
    clock = time.perf_counter()
    means = [x.mean(axis=0) for x in slices]
    inverses = [np.linalg.inv(np.cov(x.T)) for x in slices]
    _, _, H = closed_form(X, np.arange(T))

    def push(t):
        return -(slices[t] - means[t]) @ inverses[t] @ H

    kept = [push(t) for t in range(T)] if keep else None
    order, before, made, all_of = list(range(T)), time.perf_counter() - clock, 0, T * (T - 1) // 2
    clock = time.perf_counter()
    for end in range(T - 1, 0, -1):
        for k in range(end):
            t, s = order[k], order[k + 1]
            drift = np.abs((slices[s] - slices[t]) / DT)
            of_t, of_s = (((drift - (kept[u] if keep else push(u))) ** 2).sum() for u in (t, s))
            if of_t < of_s:
                order[k], order[k + 1] = s, t
            made += 1
            if made == COMPARED:
                each = (time.perf_counter() - clock) / made
                return None, None, None, {"seconds": before + each * all_of}
    return np.array(order), None, None


# -- the SDE in known order, and with noise ---------------------------------------------------------------------


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


def noisy(setting, seed=0):
    from statespace import panel

    sigma, n, T, d = setting
    return *panel(sigma, seed=seed, n=n, T=T, d=d), None


def behind_noise(name, Y, truth):
    import statespace

    return None, *getattr(statespace, name)(Y)


LONGEST = 1000
"""Rounds of dynamax in which it is waited for our likelihood."""


def as_likely(Y, truth):
    """dynamax for as many rounds as it takes to come within a tenth of a nat of our likelihood, at most so many."""
    import statespace

    target = float(statespace.em(Y, DT, scheme="exact").log_likelihood[-1])
    return None, *statespace.dynamax(Y, LONGEST, target - 0.1)


ORDER = {
    "ReTrace: order, direction, A, H, errors": fit,
    "closed form, order known": closed_form,
    "scipy: spanning tree": spanning_tree,
    "scanpy: DPT of slices": scanpy,
    "scanpy: DPT of slices, 50 principal components": scanpy_pca,
    "scanpy: DPT of 25 trajectories' states": scanpy_states,
    "Algorithm 1, one round as printed": printed_round,
    "Algorithm 1, one round, scores kept": partial(printed_round, keep=True),
    "Algorithm 1, one round, compiled (order='score')": algorithm1,
}
KNOWN = {"ReTrace, order known": known_fit, "statsmodels: VAR": statsmodels}
NOISE = {
    "ReTrace em": partial(behind_noise, "ours"),
    "dynamax: EM, 50 rounds": partial(behind_noise, "dynamax"),
    "dynamax: EM until as likely as ours": as_likely,
    "pykalman: EM, 10 rounds": partial(behind_noise, "pykalman"),
}
TABLES: dict[str, Any] = {
    "order": (ORDER, shuffled, [BASE]),
    "known": (KNOWN, lambda _: known_order(), [None]),
    "noise": (NOISE, noisy, [(s, *size) for size in NOISY for s in (0.1, 0.5)]),
}
NEEDS = {name: name.split(":")[0] for name in (*ORDER, *KNOWN, *NOISE) if ":" in name}


ALONE = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
"""jax on one thread, as the others."""


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
        order, A, H, *more = methods[name](X, truth)
        said = more[0] if more else {}
        seconds.append(said.get("seconds", time.perf_counter() - begin))
    found = {**said, "seconds": min(seconds)}
    if A is not None:
        found["A"] = float(np.abs(A - sde.drift).mean())
        found["H"] = float(np.abs(H - sde.diffusion).mean())
    if order is not None:
        right = [rt.metrics.order_accuracy(truth, o) for o in (order, order[::-1])]
        found |= {"right": float(right[0]), "chain": float(max(right))}
    return found


def apart(table, name, setting, repeat):
    """The same in a separate process, on one thread; None where the peer is not installed or fails, which is said."""
    module = NEEDS.get(name)
    if module not in (None, "ReTrace") and importlib.util.find_spec(module) is None:
        print(f"{name}: {module} is not installed", file=sys.stderr)
        return None
    here = Path(__file__).parent
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([table, name, setting, repeat])],
        env={**os.environ, **quiet, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ALONE},
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
    what = "σ, n, T, d = " if table == "noise" else "n, T, d = "
    size = ", ".join(map(str, setting or (200, 100, 10)))
    print(
        f"\n| {what}{size} | seconds | / ReTrace | MAE of A | MAE of H | positions right | up to reversal |"
    )
    print("|---|---|---|---|---|---|---|")
    ours = next(iter(found.values()))["seconds"]
    for name, row in found.items():
        cells = [number(row.get(k)) for k in ("A", "H", "right", "chain")]
        if "until" in name:
            name += f" ({row['rounds']} rounds)" if row["rounds"] else f" (not in {LONGEST} rounds)"
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
            once = {
                name: 1 if "until" in name or "pykalman" in name else options.repeat
                for name in names
            }
            found = {name: apart(table, name, setting, once[name]) for name in names}
            printed(table, setting, {name: row for name, row in found.items() if row is not None})
    if options.figure:
        figure(options.figure, options.repeat)


if __name__ == "__main__":
    main()
