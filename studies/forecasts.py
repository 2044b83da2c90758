"""Coverage of forecast intervals and of imputation intervals on held-out values.

    python studies/forecasts.py [--folder FOLDER] [--seeds 0:20] [--jobs 1]

Simulated: random stable SDEs (60 trajectories, 20 slices, 3 variables, Δt = .1), their order lost, clean, with noise, with a tenth of
the values missing, with Student's t noise, and with random intercepts (sd 2; also fitted without them); the next five
observations are held out. `length`: of intervals five steps ahead, on average. Real: the last five slices (two where T < 15) of every panel are
held out, the others fitted at their known times. Imputed, in their known order: a tenth of the values, hidden from the fit. 95 % intervals throughout.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from real_panels import PANELS, read_panel

import retrace_sde as rt

STEPS, DT, SHARE = 5, 0.1, 0.1
KINDS = ("clean", "noise", "missing values", "heavy tails", "levels", "levels, fitted alike")


def inside(low: np.ndarray, high: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return (low <= truth) & (truth <= high)


def simulated(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether intervals cover held-out forecasts (n, steps, d) and imputed values; interval lengths at the end (n, d)."""
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, setting="stable", random_state=rng)
    root, x = np.linalg.cholesky(sde.diffusion * DT), 0.3 * rng.standard_normal((60, 3))
    level = 2 * rng.standard_normal((60, 3)) if kind.startswith("levels") else 0.0
    path = [x]
    for _ in range(19 + STEPS):
        tails = kind == "heavy tails"
        noise = rng.standard_t(3, x.shape) / np.sqrt(3) if tails else rng.standard_normal(x.shape)
        x = x + (x - level) @ sde.drift.T * DT + noise @ root.T
        path.append(x)
    X = np.stack(path, axis=1)
    options = {"subjects": "alike"} if kind.endswith("alike") else {}
    if kind == "noise":
        X = X + 0.5 * rng.standard_normal(X.shape) * np.sqrt(np.diag(sde.diffusion) * DT)
        options["observation_noise"] = "estimate"
    order = rng.permutation(20)
    past, ahead = X[:, :20], X[:, 20:]
    holes = (rng.random(past.shape) < SHARE) & (kind == "missing values")
    seen = np.where(holes, np.nan, past)[:, order]
    model = rt.ReTrace(dt=DT, random_state=0, n_jobs=1, **options).fit(seen)
    if np.array_equal(
        order[model.order_], np.arange(20)[::-1]
    ):  # reversed order: nothing to compare
        return np.empty((0, STEPS, 3)), np.empty(0), np.empty((0, 3))
    found = model.forecast(seen, STEPS)
    held, last = inside(found.low, found.high, ahead), (found.high - found.low)[:, -1]
    if not holes.any():
        return held, np.empty(0), last
    filled = model.impute(seen)
    return held, inside(filled.low, filled.high, past[:, order])[holes[:, order]], last


def real(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    path = folder / f"{name}.csv"
    X, times = read_panel(path, PANELS[name]), times_of(path)
    steps = STEPS if X.shape[1] >= 15 else 2
    past, ahead = X[:, :-steps], X[:, -steps:]
    timed = rt.Knowledge(timestamps=times[:-steps])
    model = rt.ReTrace(n_jobs=1).fit(past, knowledge=timed)
    found = model.forecast(past, steps, gaps=np.diff(times)[-steps:])
    known = rt.Knowledge(positions={k: k for k in range(past.shape[1])})
    rng = np.random.default_rng(0)
    holes = rng.random(past.shape) < SHARE
    seen = np.where(holes, np.nan, past)
    filled = rt.ReTrace(n_jobs=1).fit(seen, knowledge=known).impute(seen)
    return inside(found.low, found.high, ahead), inside(filled.low, filled.high, past)[holes]


def times_of(path: Path) -> np.ndarray:
    """Mean time of each slice, in units of the mean step."""
    if path.stem == "ecb_fx_monthly":  # dates, month after month
        return np.arange(read_panel(path).shape[1], dtype=float)
    hours = ["actual_hours"] if path.stem == "theoph" else ["time"]
    times = read_panel(path, hours)[:, :, 0].mean(axis=0)
    return (times - times[0]) / np.diff(times).mean()


def row(name: str, held: np.ndarray, filled: np.ndarray, last: np.ndarray | None = None) -> None:
    shares = " | ".join(f"{each:.1%}" for each in held.mean(axis=(0, 2))) + " | –" * (
        STEPS - held.shape[1]
    )
    shown = f"{filled.mean():.1%}" if filled.size else "–"
    length = "–" if last is None else f"{last.mean():.2f}"
    print(f"| {name} | {shares} | {held.mean():.1%} | {shown} | {length} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print(
        "| panel | "
        + " | ".join(f"{h} ahead" for h in range(1, STEPS + 1))
        + " | all | filled in | length |"
    )
    print("|---" * (STEPS + 4) + "|")
    seeds = range(*map(int, options.seeds.split(":")))
    for kind in KINDS if seeds else ():
        runs = Parallel(options.jobs)(delayed(simulated)(kind, seed) for seed in seeds)
        row(kind, *(np.concatenate(each) for each in zip(*runs, strict=True)))
    if options.folder:
        names = [each for each in PANELS if each != "tcell34"]  # not followed in time
        runs = Parallel(options.jobs)(delayed(real)(options.folder, name) for name in names)
        for name, each in zip(names, runs, strict=True):
            row(name, *each)


if __name__ == "__main__":
    main()
