"""Comparison with alternatives: the order of shuffled slices, the SDE estimated, CPU seconds.

`python benchmarks/peers.py` prints a table: scipy's spanning tree, scanpy's DPT (where it is installed: `pip install retrace-sde[peers]`), and the closed
form that is given the order. Every method runs in a separate process on the same data, best of `--repeat`. With noise and a known order:
benchmarks/statespace.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from retrace_sde.lost_time.table import lines

DT = 0.01
BASE = (2000, 250, 50)
"""n, T, d of the paper's Table 1."""


def shuffled(size, seed=97000):
    import retrace_sde as rt

    n, T, d = size
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0=0.1, random_state=seed + 1)
    X, truth = rt.simulate.shuffle(X, random_state=seed + 2)
    return sde, np.ascontiguousarray(X), truth


def fit(X, truth):
    import retrace_sde as rt

    model = rt.ReTrace(dt=DT, random_state=0).fit(X)
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


ORDER = {
    "ReTrace: order, direction, A, H, standard errors": fit,
    "closed form, order known": closed_form,
    "scipy: spanning tree": spanning_tree,
    "scanpy: DPT of slices": scanpy,
    "scanpy: DPT of slices, 50 principal components": scanpy_pca,
}


def measured(name, size, repeat):
    """CPU seconds (least of some), errors of A and H, and the share of positions that are right: as they stand, up to reversal."""
    import retrace_sde as rt

    sde, X, truth = shuffled(size)
    ORDER[name](X, truth)  # imports and compiles
    seconds = []
    for _ in range(repeat):
        begin = time.process_time()
        order, A, H = ORDER[name](X, truth)
        seconds.append(time.process_time() - begin)
    found = {"seconds": min(seconds)}
    if A is not None:
        found["A"] = float(np.abs(A - sde.drift).mean())
        found["H"] = float(np.abs(H - sde.diffusion).mean())
    if order is not None:
        right = [rt.metrics.order_accuracy(truth, o) for o in (order, order[::-1])]
        found |= {"right": float(right[0]), "chain": float(max(right))}
    return found


def apart(name, size, repeat):
    """The same in a separate process, on one thread; None where the peer is not installed or fails, which is said."""
    if name.startswith("scanpy") and importlib.util.find_spec("scanpy") is None:
        print(f"{name}: scanpy is not installed", file=sys.stderr)
        return None
    here = Path(__file__).parent
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps([name, size, repeat])],
        env={**os.environ, **quiet, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if said.returncode:
        print(f"{name}: {said.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(said.stdout.strip().splitlines()[-1])


def number(value):
    return None if value is None or not np.isfinite(value) else f"{value:.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="methods whose name holds this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(*json.loads(asked.one))))
        return
    rows, first = [], None
    for name in ORDER:
        found = apart(name, BASE, asked.repeat) if asked.only in name else None
        if found is not None:
            first = first or found["seconds"]
            times = [f"{found['seconds']:.3g}", f"{found['seconds'] / first:.2g}"]
            rows.append(
                [name, *times, *(number(found.get(k)) for k in ("A", "H", "right", "chain"))]
            )
    size = "n, T, d = " + ", ".join(map(str, BASE))
    columns = [size, "CPU seconds", "/ ReTrace", "MAE of A", "MAE of H", "positions right", "up to reversal"]  # fmt: skip
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
