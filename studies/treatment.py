"""Coverage of the average treatment effect, and what happens where an assumption fails.

    python studies/treatment.py [--setting randomised held frailty combination] [--seeds 0:60] [--jobs 1] [--recovered] [--test]

60 subjects, 10 visits Δt = .2 apart, dx = (b_j − .7 x + .6 u) dt + .3 dW in Euler's steps, levels b_j of sd .5, started at b_j/.7 ± .6.
Treatment is drawn at each visit: at random (randomised), at random at every third visit and kept until the next draw (held), more often for subjects of high level, P(u = 1) = 1/(1 + exp(−4 b_j))
(frailty), or as none or one of two drugs, never both, and the default comparison asks for both (combination). The order is given;
with --recovered each subject's visits are shuffled, and the order is recovered first (a cohort whose direction is open is counted).
For each kind of subjects' levels: the share of 95 % intervals that hold the true effect of treatment throughout, with its Monte-Carlo error,
the mean estimate, its standard deviation over cohorts, the mean reported error, and how often the test of confounded levels rejects.
With --test that test alone.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.fit.intervals import half_widths
from retrace_sde.io.arrays import Array
from retrace_sde.lost_time.table import lines

N, T, DT, RATE, GAIN, SPREAD = 60, 10, 0.2, -0.7, 0.6, 0.5
TRUTH = GAIN * ((1 + RATE * DT) ** (T - 1) - 1) / RATE
KINDS = {"randomised": ("levels", "fixed"), "held": ("levels", "fixed"), "frailty": ("levels", "fixed"), "combination": ("levels",)}  # fmt: skip


def cohort(setting: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """States (N, T, 1) and treatments (N, T, 1 or 2)."""
    own = SPREAD * rng.normal(size=(N, 1))
    x, u = [-own / RATE + 0.6 * rng.normal(size=(N, 1))], []
    for t in range(T):
        if setting == "combination":
            u.append(np.eye(3)[rng.integers(0, 3, size=N)][:, 1:])
        elif setting == "held" and t % 3:
            u.append(u[-1])
        else:
            odds = 8 * SPREAD * own if setting == "frailty" else 0 * own
            u.append((rng.random((N, 1)) < 1 / (1 + np.exp(-odds))).astype(float))
        push = own + RATE * x[-1] + GAIN * u[-1].sum(axis=1, keepdims=True)
        x.append(x[-1] + DT * push + 0.3 * DT**0.5 * rng.normal(size=(N, 1)))
    return np.stack(x[:-1], axis=1), np.stack(u, axis=1)


def one(setting: str, seed: int, recovered: bool) -> list[list[float]]:
    """For each kind: estimate, half width of its interval, rejected, refused, direction open."""
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    rng = np.random.default_rng(seed)
    X, u = cohort(setting, rng)
    order = np.tile(np.arange(T), (N, 1))
    if recovered:
        moved = rng.permuted(order, axis=1)
        X, u = (np.take_along_axis(each, moved[:, :, None], axis=1) for each in (X, u))
    found = []
    for kind in KINDS[setting]:
        model = rt.TreatmentEffect(
            dt=DT, drift=rt.drift.Polynomial(1), subjects=kind, random_state=seed, n_jobs=1
        )
        try:
            model.fit(X, u, order=None if recovered else order)
            low, high = model.ate_interval()
        except rt.treatment.UndeterminedDirectionError:
            found.append([np.nan, np.nan, np.nan, 0, 1])
            continue
        except rt.treatment.OutsideSupportError:
            found.append([np.nan, np.nan, np.nan, 1, 0])
            continue
        test = model.confounding_test() if kind == "levels" else None
        rejected = np.nan if test is None else float(test.rejected)
        found.append([float(model.ate()), float(np.subtract(high, low)) / 2, rejected, 0, 0])
    return found


def rejects(setting: str, seed: int) -> bool:
    """Whether the test of confounded levels rejects, in the known order."""
    warnings.simplefilter("ignore", rt.ReTraceWarning)
    X, u = cohort(setting, np.random.default_rng(seed))
    model = rt.TreatmentEffect(dt=DT, drift=rt.drift.Polynomial(1), random_state=seed, n_jobs=1)
    test = model.fit(X, u, order=np.tile(np.arange(T), (N, 1))).confounding_test()
    return test is not None and test.rejected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=list(KINDS), nargs="+", default=list(KINDS))
    parser.add_argument("--seeds", default="0:60")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--recovered", action="store_true")
    parser.add_argument("--test", action="store_true")
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    run = Parallel(options.jobs)
    if options.test:
        columns = ["treatment", "cohorts", "rejected"]
        rows = [
            [each, len(seeds), sum(run(delayed(rejects)(each, seed) for seed in seeds))]
            for each in options.setting
        ]
    else:
        print(f"true effect {TRUTH:.3f}")
        columns = ["treatment, levels", "cohorts", "95 % intervals hold", "mean", "sd of estimates"]
        columns += ["mean reported error", "test of levels rejects", "refused", "direction open"]
        rows = []
        for setting in options.setting:
            work = (delayed(one)(setting, seed, options.recovered) for seed in seeds)
            runs = np.array(run(work))
            rows += [
                row(f"{setting}, {kind}", runs[:, k].T) for k, kind in enumerate(KINDS[setting])
            ]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


def row(name: str, found: np.ndarray) -> list[str | float | None]:
    """Coverage with its Monte-Carlo error, and the rest, of the cohorts that were answered."""
    ate, half, rejected, refused, undetermined = found
    kept = np.isfinite(ate)
    cells: list[str | float | None] = [None] * 5
    if kept.any():
        hold = np.abs(ate - TRUTH)[kept] < half[kept]
        doubt = np.sqrt(hold.mean() * (1 - hold.mean()) / kept.sum())
        error = half[kept].mean() / half_widths(np.ones(()), N, 0.95)
        test = None if np.isnan(rejected[kept]).all() else float(rejected[kept].mean())
        share = f"{hold.mean():.3f} ± {doubt:.3f}"
        cells = [
            share,
            f"{ate[kept].mean():.3f}",
            f"{ate[kept].std(ddof=1):.3f}",
            f"{error:.3f}",
            test,
        ]
    return [name, len(ate), *cells, int(refused.sum()), int(undetermined.sum())]


if __name__ == "__main__":
    main()
