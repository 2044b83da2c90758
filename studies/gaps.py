"""Coverage of intervals of estimated gaps: simulated irregular panels, and real panels measured at regular times.

    python studies/gaps.py [--folder FOLDER] [--seeds 0:20] [--jobs 1]

Simulated: a random stable SDE in two variables, 40 trajectories, 13 slices, gaps gamma with shape 1.5; and the same with equal gaps and
a volatility that changes from step to step (sd .5 of its logarithm), where every gap is 1. Real (FOLDER holds long csv files
`subject,time,<variables>` in true time order): the order known, every gap treated as unknown, its true value 1.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from real_panels import PANELS, read_panel

import retrace_sde as rt

REGULAR = ("physionet2012_icu_4h", "ecb_fx_monthly", "grunfeld", "chickweight", "gait")
"""Panels on a regular grid; the last step of chickweight is shorter, and left out."""


def intervals(X: np.ndarray, dt: float = 1.0) -> tuple[np.ndarray, str]:
    known = rt.Knowledge(positions={k: k for k in range(X.shape[1])})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=dt, spacing="estimate", n_jobs=1).fit(X, knowledge=known)
    return model.result_.gap_intervals, model.result_.gap_clocks.clocks


def simulated(seed: int, *, volatile: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(2, setting="stable", random_state=rng)
    gaps = np.ones(12) if volatile else rng.gamma(1.5, size=12)
    gaps = gaps / gaps.mean()
    loud = np.exp(0.5 * rng.standard_normal(12)) if volatile else np.ones(12)
    x = 2.0 * (seed % 2) + 0.3 * rng.standard_normal((40, 2))
    path = [x]
    for g, v in zip(gaps, loud, strict=True):
        step = sde.transition(0.1 * g)
        noise = rng.multivariate_normal(np.zeros(2), v**2 * step.covariance, len(x))
        x = x @ step.matrix.T + step.shift + noise
        path.append(x)
    return np.stack(path, axis=1), gaps


def one(seed: int, volatile: bool) -> tuple[np.ndarray, np.ndarray, str]:
    """Intervals of one simulated panel's gaps, the truth, and which clocks were told apart."""
    X, gaps = simulated(seed, volatile=volatile)
    found, clocks = intervals(X, 0.1)
    return found / 0.1, gaps, clocks


def real(folder: Path, name: str) -> tuple[np.ndarray, str]:
    X = read_panel(folder / f"{name}.csv", PANELS[name])
    return intervals(X[:, :-1] if name == "chickweight" else X)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print(
        "| panel | gaps | inside 95 % intervals | median ratio of their ends | clocks |\n|---|---|---|---|---|"
    )
    for kind in ("unequal gaps", "unequal volatility"):
        seeds, volatile = range(*map(int, options.seeds.split(":"))), kind == "unequal volatility"
        runs = Parallel(options.jobs)(delayed(one)(seed, volatile) for seed in seeds)
        inside = np.concatenate([(f[:, 0] <= g) & (g <= f[:, 1]) for f, g, _ in runs])
        ratio = np.median(np.concatenate([f[:, 1] / f[:, 0] for f, _, _ in runs]))
        clocks = [clock for _, _, clock in runs]
        said = ", ".join(f"{each} {clocks.count(each)}" for each in sorted(set(clocks)))
        print(
            f"| simulated, {kind} | {len(inside)} | {inside.mean():.0%} | {ratio:.2g} | {said} |",
            flush=True,
        )
    if options.folder is None:
        return
    total = []
    runs = Parallel(options.jobs)(delayed(real)(options.folder, name) for name in REGULAR)
    for name, (found, clocks) in zip(REGULAR, runs, strict=True):
        inside = (found[:, 0] <= 1) & (found[:, 1] >= 1)
        total.append(inside)
        ratio = np.median(found[:, 1] / found[:, 0])
        print(
            f"| {name} | {len(inside)} | {inside.mean():.0%} | {ratio:.2g} | {clocks} |", flush=True
        )
    every = np.concatenate(total)
    print(f"| all real | {len(every)} | {every.mean():.0%} | | |")


if __name__ == "__main__":
    main()
