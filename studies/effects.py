"""False edges of the effect graph, and coverage of its intervals, order lost.

    python studies/effects.py [--seeds 0:50] [--jobs 1]

Three variables, x0 → x1 → x2 and nothing else (A = [[−1, 0, 0], [.8, −1, 0], [0, −.7, −1.2]], H = .5 I, exact steps of Δt = .2, started
at 2 ± .5, 60 trajectories of 15 slices). For each kind: panels with any false edge (5 % is allowed), true edges drawn, and the
coverage of single 95 % intervals.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed
from scipy.linalg import expm

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths

A = np.array([[-1.0, 0.0, 0.0], [0.8, -1.0, 0.0], [0.0, -0.7, -1.2]])
N, T, DT, SPAN = 60, 15, 0.2, 1.0
TRUTH = {"rates": A, "over time": expm(A * SPAN), "for good": -np.linalg.inv(A)}


def one(seed: int) -> list[list[float]]:
    """For each kind: any false edge, the share of true ones drawn, of intervals that hold."""
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    rng = np.random.default_rng(seed)
    start = 2 + 0.5 * rng.standard_normal((N, 3))
    X = rt.LinearSDE(A, 0.5 * np.eye(3)).simulate(
        N, T, dt=DT, x0=start, scheme="exact", random_state=rng
    )
    shuffled, truth = rt.simulate.shuffle(X, random_state=rng)
    known = rt.Knowledge(first=int(truth[0]))  # the reverse has another graph
    model = rt.ReTrace(dt=DT, estimator="exact", n_jobs=1, random_state=0).fit(
        shuffled, knowledge=known
    )
    found = []
    for kind, true in TRUTH.items():
        graph = rt.effect_graph(model, kind=kind, span=SPAN)
        there = np.abs(true) > 1e-9
        inside = np.abs(graph.values - true) < half_widths(graph.errors, N)
        found.append([(graph.told & ~there).any(), graph.told[there].mean(), inside.mean()])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:50")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    runs = np.array(Parallel(options.jobs)(delayed(one)(seed) for seed in seeds))
    print(
        "| effects | panels with a false edge | true edges drawn | single intervals hold |\n|---|---|---|---|"
    )
    for kind, row in zip(TRUTH, runs.mean(axis=0), strict=True):
        print(f"| {kind} | " + " | ".join(f"{each:.1%}" for each in row) + " |")


if __name__ == "__main__":
    main()
