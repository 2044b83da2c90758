"""Guards of the direction: folds and loops on every path, which must not be called, and clean panels, which should be.

    python studies/guards.py --seeds 0:6
    python studies/guards.py --seeds 0:6 --clean
    python studies/guards.py --seeds 0:3 --only "loop, own"

A fold (one variable that rises and falls) and a closed loop have no direction that a linear drift could identify; growth and a
transient towards equilibrium have one. Each is fitted as it is, with one value missing, with 11 % of the rows absent, and with
the observation noise estimated. `sure` and `right`: the mean probability given to positions, and the share of them that are
right, up to reversal. `wrong`: a direction was called, and Kendall's τ with the truth is negative (of a loop, whose cut is arbitrary: it
runs in the other direction).
"""

import argparse
import time
import warnings
from collections import Counter
from itertools import product

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import one_blas_thread


def fold(seed, *, n=12, T=15, level=0.1, scale=0.3, noise=0.05, peak=0.4):
    """One variable that rises until `peak` and falls back, (n, T, 1), with random level and scale per subject."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, T)
    up, down = np.sin(0.5 * np.pi * t / peak), np.cos(0.5 * np.pi * (t - peak) / (1 - peak))
    levels = level * rng.standard_normal((n, 1))
    scales = np.exp(scale * rng.standard_normal((n, 1)))
    X = levels + scales * np.where(t < peak, up, down) + noise * rng.standard_normal((n, T))
    return X[..., None]


def swing(seed, *, n=40, T=20, dt=0.15):
    """Two variables that swing together for a whole period, from rest, their velocities hidden, (n, T, 2)."""
    spring = rt.LinearSDE([[0.0, 1.0], [-4.0, -0.4]], np.diag([1e-4, 0.05]))
    start = rt.Gaussian(np.array([1.0, 0.0]), np.diag([0.2, 1e-3]))
    each = [
        spring.simulate(n, T, dt, x0=start, scheme="exact", random_state=2 * seed + k)[..., :1]
        for k in (0, 1)
    ]
    return np.concatenate(each, axis=2)


def valley(seed, **options):
    """One variable that falls and rises again."""
    return -fold(seed, **options)


def measured(seed, *, make, error, **options):
    """A panel of another kind, measured with errors."""
    X = make(seed, **options)
    return X + error * np.random.default_rng(5000 + seed).standard_normal(X.shape)


def loop(seed, *, n=20, T=15, d=2, level=0.15, noise=0.05, scale=0.0, second=0.0, phase=0.0):
    """One period of a closed loop in d variables, (n, T, d), with random intercepts per subject.

    `scale` and `phase`: how much subjects differ in amplitude and in phase; `second`: a second wave in one variable.
    """
    rng = np.random.default_rng(seed)
    angle = 2 * np.pi * np.arange(T) / T + phase * rng.standard_normal((n, 1))
    waves = [
        np.cos(angle),
        0.7 * np.sin(angle) + second * np.cos(2 * angle),
        0.5 * np.cos(angle + 1),
        0.4 * np.sin(angle + 2),
    ]
    scales = np.exp(scale * rng.standard_normal((n, 1, d)))
    levels = level * rng.standard_normal((n, 1, d))
    return levels + scales * np.stack(waves[:d], axis=2) + noise * rng.standard_normal((n, T, d))


def growth(seed, *, n=12, T=15, noise=0.02):
    """Logistic growth of one variable, (n, T, 1), with random final size and onset per subject."""
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 1, T)
    size = np.exp(0.15 * rng.standard_normal((n, 1)))
    onset = 0.5 + 0.05 * rng.standard_normal((n, 1))
    X = size / (1 + np.exp(-8 * (t - onset))) + noise * rng.standard_normal((n, T))
    return X[..., None]


def transient(seed, *, d=1, n=20, T=15, dt=0.2):
    """A linear SDE decaying towards its equilibrium, (n, T, d), from a narrow start away from it."""
    rng = np.random.default_rng(seed)
    A = -np.eye(d) + 0.3 * rng.standard_normal((d, d)) * (d > 1)
    x0 = 2.0 + 0.3 * rng.standard_normal((n, d))
    sde = rt.LinearSDE(A, 0.2 * np.eye(d))
    return sde.simulate(n, T, dt, x0=x0, scheme="exact", random_state=rng)


GAIT = {"n": 40, "T": 20, "level": 0.1, "scale": 0.2, "second": 0.4, "phase": 0.1}

GUARDED = {
    "fold, shared": (fold, {}, "shared"),
    "fold with an early peak": (fold, {"peak": 0.2}, "shared"),
    "fold of 40": (fold, {"n": 40, "T": 20, "noise": 0.1}, "shared"),
    "swing of two, shared": (swing, {}, "shared"),
    "valley, shared": (valley, {}, "shared"),
    "loop, shared": (loop, {}, "shared"),
    "loop in 3, shared": (loop, {"d": 3}, "shared"),
    "loop like a gait, shared": (loop, GAIT, "shared"),
    "loop, own": (loop, {"n": 60, "T": 20, "noise": 0.02}, "independent"),
    "loop like a gait, own": (loop, GAIT, "independent"),
}
"""Panels without a direction: generator, its options, permutation."""

CLEAN = {
    "growth, shared": (growth, {}, "shared"),
    "growth, measured": (growth, {"noise": 0.05}, "shared"),
    "growth of 40, measured": (growth, {"n": 40, "noise": 0.1}, "shared"),
    "transient in 1, measured": (measured, {"make": transient, "error": 0.1}, "shared"),
    "transient of 100, measured": (measured, {"make": transient, "error": 0.1, "n": 100}, "shared"),
    "transient in 1, shared": (transient, {}, "shared"),
    "transient in 3, shared": (transient, {"d": 3}, "shared"),
    "transient in 1, own": (transient, {"T": 10}, "independent"),
    "transient in 3, own": (transient, {"d": 3, "T": 10}, "independent"),
}
"""Panels with one."""

WAYS = ("complete", "one missing", "rows absent", "noise")


def shuffled(case, seed):
    """The panel of a case, shuffled, and its true order (or orders)."""
    make, options, permutation = {**GUARDED, **CLEAN}[case]
    X, truth = rt.simulate.shuffle(
        make(seed, **options), permutation=permutation, random_state=1000 + seed
    )
    return np.array(X), truth


def fitted(case, way, seed):
    """The fit of one panel in one of the WAYS, its true order, and what it warned of."""
    X, truth = shuffled(case, seed)
    if way == "one missing":
        rng = np.random.default_rng(2000 + seed)
        X[tuple(rng.integers(size) for size in X.shape)] = np.nan
    if way == "rows absent":
        X[np.random.default_rng(2000 + seed).random(X.shape[:2]) < 0.11] = np.nan
    model = rt.ReTrace(
        dt=0.2,
        drift="affine",
        permutation={**GUARDED, **CLEAN}[case][2],
        observation_noise="estimate" if way == "noise" else None,
        random_state=seed,
        n_jobs=1,
    )
    with warnings.catch_warnings(record=True) as caught, one_blas_thread():
        warnings.simplefilter("always", rt.ReTraceWarning)
        model.fit(X)
    said = [str(each.message) for each in caught if issubclass(each.category, rt.ReTraceWarning)]
    return model, truth, said


def agreement(case, truth, order):
    """Kendall's τ with the true order; of a loop, forward less backward steps round it, as a share of all."""
    if not case.startswith("loop"):
        return rt.metrics.kendall_tau(truth, order)
    T = order.shape[-1]
    place = np.take_along_axis(np.argsort(truth, axis=-1), order, axis=-1)
    steps = (np.diff(place, axis=-1) + T // 2) % T - T // 2
    return np.sign(steps).mean()


def positions(case, model, truth):
    """How sure one shared order is of its positions, and how many are right, up to reversal; NaN for single orders."""
    order = model.order_
    if order.ndim == 2:
        return np.nan, np.nan
    sure = model.sample_orders(draws=300).position_probabilities[order, np.arange(len(order))]
    right = max(rt.metrics.order_accuracy(truth, each) for each in (order, order[::-1]))
    return float(sure.mean()), float(right)


def row(case, way, seed):
    """What one fit came to."""
    begin = time.perf_counter()
    try:
        model, truth, said = fitted(case, way, seed)
    except (ValueError, np.linalg.LinAlgError) as error:
        return {"failed": f"{type(error).__name__}: {error}", "seconds": 0.0}
    test, tau = model.direction_, agreement(case, truth, model.order_)
    sure, right = positions(case, model, truth)
    return {
        "sure": sure,
        "right": right,
        "fold": any("folds onto itself" in each for each in said),
        "called": bool(test.identified),
        "wrong": bool(test.identified and tau < 0),
        "cycle": bool(model.result_.cycle),
        "said": said,
        "p": 1.0 if test.p_value is None else float(test.p_value),
        "tau": float(tau),
        "seconds": time.perf_counter() - begin,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", default="0:6")
    parser.add_argument("--clean", action="store_true", help="panels whose direction is to be told")
    parser.add_argument("--only", default="", help="cases whose name contains one of these, with ;")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    seeds = range(*(int(each) for each in asked.seeds.split(":")))
    cases = [
        case
        for case in (CLEAN if asked.clean else GUARDED)
        if any(each in case for each in asked.only.split(";"))
    ]
    sayings, table = Counter(), []
    for case, way in product(cases, asked.ways.split(",")):
        rows = Parallel(n_jobs=asked.jobs)(delayed(row)(case, way, seed) for seed in seeds)
        good = [each for each in rows if "failed" not in each]
        for each in rows:
            sayings.update(
                said.split("(")[0][:90] for said in each.get("said", [each.get("failed")])
            )
        counts = [sum(each[key] for each in good) for key in ("called", "wrong", "cycle", "fold")]
        means = [float(np.mean([each[key] for each in good])) for key in ("sure", "right")]
        table.append([f"{case}, {way}", len(good), *counts, *means])
        seconds = np.mean([each["seconds"] for each in rows])
        print(f"{case}, {way}: {len(rows) - len(good)} failed, {seconds:.1f} s", flush=True)
    columns = ["panel, data", "panels", "called", "wrong", "cycle", "fold", "sure", "right"]
    print(*lines({"columns": columns, "rows": table}), sep="\n")
    for said, count in sayings.most_common():
        print(f"{count:4} × {said} …")


if __name__ == "__main__":
    main()
