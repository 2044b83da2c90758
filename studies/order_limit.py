"""How often the true order is the most likely one: what no search, and no estimate, can exceed.

    python studies/order_limit.py --seeds 300:340 --jobs 2

Panels of `dependence.py` whose order is not always found. `order right`: by a fit of the shuffled panel, up to reversal. `by the truth`: the true order
is more likely, under the parameters that made the panel, than all orders that insertions, reversals and rotations lead to from it and from the one
that the fit found. The likelihood is the joint Gaussian one of the deviations from the slice means and of the mean path: of n trajectories with common
shocks and plates it is exact, and a quadratic assignment problem in the order. `both`: right by both. Rows of copies also fit the trajectories before they
were copied.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from dependence import DT, SIZES, Cases, linear
from direction import record, shown
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov

import retrace_sde as rt
from retrace_sde.process.simulate import random_irreversible_sde

Floats = NDArray[np.float64]
Orders = NDArray[np.intp]

ROWS: Cases = {
    **{name: SIZES[name] for name in SIZES if name.endswith(("n=8", "d=1", "noise .2"))},
    "rest, each three times": (linear, {"copies": 3}, {}),
    "rest, n=10, before they are copied": (linear, {"n": 10}, {}),
}


class Truth:
    """The likelihood of every order under the parameters that made a panel."""

    def __init__(self, X: Floats, seed: int, *, transient: bool = False, **made: Any) -> None:
        n, self.T, d = X.shape
        copies = made.get("copies", 1)
        if copies > 1:  # their means: 2 % noise hardly counts
            X = X.reshape(n // copies, copies, self.T, d).mean(axis=1)
        deviations, mean, path = _covariances(len(X), self.T, d, seed, transient, made)
        m = X.mean(axis=0)
        z = X - m
        P, R = (
            np.linalg.inv(each.reshape(self.T * d, -1)).reshape(each.shape)
            for each in (deviations, mean)
        )
        S = np.einsum("nsi,ntj->sitj", z, z)
        self.pairs = np.einsum("aibj,sitj->abst", P, S, optimize=True)
        self.pairs += np.einsum("aibj,si,tj->abst", R, m, m, optimize=True)
        self.single = np.einsum("aibj,bj,si->as", R, path, m, optimize=True)

    def log_likelihoods(self, orders: Orders) -> Floats:
        """Of orders (k, T), up to a constant."""
        a = np.arange(self.T)
        o, p = orders[:, :, None], orders[:, None, :]
        found = self.pairs[a[None, :, None], a[None, None, :], o, p].sum(axis=(1, 2))
        return np.asarray(self.single[a, orders].sum(axis=1) - 0.5 * found)

    def climb(self, order: Orders) -> tuple[float, Orders]:
        """The most likely order that single moves lead to."""
        value = float(self.log_likelihoods(order[None])[0])
        while True:
            moved = _moved(order)
            values = self.log_likelihoods(moved)
            k = int(values.argmax())
            if values[k] <= value + 1e-9:
                return value, order
            value, order = float(values[k]), moved[k]


def _covariances(
    n: int, T: int, d: int, seed: int, transient: bool, made: dict[str, Any]
) -> tuple[Floats, Floats, Floats]:
    """Of a deviation's and of the mean path's values (T, d, T, d), and the expected mean path: `dependence.linear`."""
    sde = random_irreversible_sde(d, random_state=seed)
    A = -0.5 * sde.diffusion @ np.linalg.inv(sde.stationary().covariance)
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -sde.diffusion)
    V, deviation = (0.09 * S if transient else S), np.sqrt(np.diag(S))
    K, path = np.zeros((T, d, T, d)), np.zeros((T, d))
    mean = 1.5 * deviation * transient
    for a in range(T):
        path[a], W = mean, V
        for b in range(a, T):
            K[a, :, b], K[b, :, a] = W, W.T
            W = W @ F.T
        V, mean = F @ V @ F.T + S - F @ S @ F.T, F @ mean
    white = np.einsum("ab,ij->aibj", np.eye(T), np.diag(deviation**2))
    common, noise = made.get("common", 0.0), made.get("noise", 0.0) ** 2
    whole = (1 - common) / n + common
    plates = made.get("plates", 0.0) ** 2
    return (1 - common) * K + noise * white, whole * K + (plates + noise / n) * white, path


def _moved(order: Orders) -> Orders:
    """Every insertion, reversal and rotation of an order."""
    T = len(order)
    found = [np.roll(order, k) for k in range(1, T)]
    for i in range(T):
        rest = np.delete(order, i)
        found += [np.insert(rest, j, order[i]) for j in range(T) if j != i]
        for j in range(i + 2, T + 1):
            found.append(np.concatenate([order[:i], order[i:j][::-1], order[j:]]))
    return np.array(found)


def judge(name: str, seed: int) -> tuple[bool, bool]:
    """The order is right by a fit, and by the truth."""
    make, made, options = ROWS[name]
    X, truth = rt.simulate.shuffle(make(seed, **made).X, random_state=500_000 + seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = rt.ReTrace(dt=DT, random_state=seed, n_jobs=1, **options).fit(X).order_
    judged = Truth(X, seed, **made)
    best = max((judged.climb(each) for each in (truth, found, found[::-1])), key=lambda way: way[0])
    return _same(found, truth), _same(best[1], truth)


def _same(one: Orders, two: Orders) -> bool:
    """Equal up to reversal."""
    return np.array_equal(one, two) or np.array_equal(one[::-1], two)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="300:340")
    parser.add_argument("--only", default="", help="rows that contain this")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the table there, too")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    names = [name for name in ROWS if asked.only in name]
    work = (delayed(judge)(name, seed) for seed in seeds for name in names)
    found = np.array(Parallel(asked.jobs)(work)).reshape(len(seeds), len(names), 2)
    table = []
    for k, name in enumerate(names):
        fit, truth = found[:, k].T
        table.append([name, len(seeds), *map(float, (fit.mean(), truth.mean(), (fit & truth).mean()))])  # fmt: skip
    columns = ["panel", "panels", "order right", "by the truth", "both"]
    record(asked.json, {"order_limit": shown(columns, table, [])})


if __name__ == "__main__":
    main()
