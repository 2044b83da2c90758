"""Clock columns: how often they are recognised, false positives, and their effect on the direction.

    python studies/columns.py rates --seeds 0:30
    python studies/columns.py fits --seeds 0:30
    python studies/columns.py panels FOLDER --seeds 0:3

`rates`: the share of columns that are left out, for clocks and other columns, shared and individual orders, three sizes. `fits`:
processes whose direction is known (n = 40, T = 20), alone, with an age in whole years, a visit number and a running total: called,
wrong, and how often the column was left out. `panels`: the real panels of FOLDER (see `real_panels.py`), alone, with an age
and with a visit number. Seeds are those of the data and of the shuffle.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from real_panels import PANELS, read_panel

import retrace_sde as rt
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import Data, one_blas_thread
from retrace_sde.panel.uninformative import without_dynamics

SIZES = ((8, 8), (20, 15), (60, 30))


def clocks(n, T, rng):
    """Columns (n, T) that count."""
    steps, age = np.arange(T), rng.uniform(20, 70, (n, 1))
    return {
        "visit number": np.tile(steps + 1.0, (n, 1)),
        "age, whole years": np.floor(age + steps),
        "age, two visits a year": np.floor(age + steps / 2),
        "age, one decimal": np.round(age + steps / 4, 1),
        "day of a date": np.floor(3000 * rng.random((n, 1))) + 30 * steps,
        "unequal schedule": age + np.cumsum(rng.choice([1, 1, 2, 3], T)),
        "read with 2 % error": age + steps + 0.02 * rng.standard_normal((n, T)),
        "read with 10 % error": age + steps + 0.1 * rng.standard_normal((n, T)),
        "dose so far": rng.integers(1, 4, (n, 1)) * 10.0 * steps,
        "dose": np.tile(rng.integers(1, 4, (n, 1)) * 1.0, (1, T)),
    }


def variables(n, T, rng):
    """Columns (n, T) that do not."""
    u = np.arange(T) / (T - 1)
    walk = np.cumsum(rng.standard_normal((n, T)), axis=1) / np.sqrt(T)
    size = np.exp(0.15 * rng.standard_normal((n, 1)))
    found = {
        "whole numbers that grow": np.round(50 + 30 * u * size + rng.standard_normal((n, T)) / 2),
        "score from 0 to 10": np.clip(np.round(5 + 2 * walk), 0, 10),
        "score, no order": rng.integers(0, 5, (n, T)) * 1.0,
        "stage 0 to 3": np.minimum(3, np.cumsum(rng.random((n, T)) < 3 / T, axis=1)) * 1.0,
        "events so far": np.cumsum(rng.poisson(0.8, (n, T)), axis=1) * 1.0,
        "random amounts so far": np.cumsum(rng.gamma(4, 1, (n, T)), axis=1),
        "heart rate": np.round(80 + 10 * rng.standard_normal((n, T))),
    }
    for noise in (0.1, 0.01, 0.003):
        found[f"trend, diffusion {noise}"] = u + noise * walk
        found[f"decay, diffusion {noise}"] = size * np.exp(-3 * u) + noise * walk
        found[f"growth, diffusion {noise}"] = size / (1 + np.exp(4 - 8 * u)) + noise * walk
    return found


def rates(seeds):
    columns = [f"{n}×{T}, {way}" for n, T in SIZES for way in ("shared", "own")]
    table = []
    for make in (clocks, variables):
        for name in make(3, 3, np.random.default_rng(0)):
            table.append([name])
            for n, T in SIZES:
                for shared in (True, False):
                    count = sum(_left_out(make, name, n, T, seed, shared) for seed in seeds)
                    table[-1].append(f"{100 * count / len(seeds):.0f}")
    print(*lines({"columns": ["left out, of 100", *columns], "rows": table}), sep="\n")


def _left_out(make, name, n, T, seed, shared):
    rng = np.random.default_rng(seed)
    column = make(n, T, rng)[name]
    moved = column[:, rng.permutation(T)] if shared else rng.permuted(column, axis=1)
    X = np.stack([moved, rng.standard_normal((n, T))], axis=2)
    return any(
        each.name == "column" for each in without_dynamics(Data(X), ("column", "x"), shared=shared)
    )


def steps_of(drift, start, noise, rng, *, n=40, T=20, dt=0.2, inner=20):
    """Euler paths (n, T, d) with noise proportional to `noise` (d,), `inner` steps between two observations."""
    x, h, found = start, dt / inner, []
    for _ in range(T):
        found.append(x)
        for _ in range(inner):
            x = x + drift(x) * h + noise * np.sqrt(h) * rng.standard_normal(x.shape)
    return np.stack(found, axis=1)


def logistic(rng):
    start = 0.1 * np.exp(0.2 * rng.standard_normal((40, 1)))
    return steps_of(lambda x: 1.5 * x * (1 - x), start, 0.03, rng)


def sir(rng):
    sick = 0.02 * np.exp(0.3 * rng.standard_normal((40, 1)))
    start = np.concatenate([1 - sick, sick], axis=1)

    def drift(x):
        # below zero, where noise may put them, nobody is infected
        susceptible, infected = np.maximum(x[:, :1], 0), np.maximum(x[:, 1:], 0)
        new = 2.0 * susceptible * infected
        return np.concatenate([-new, new - 0.5 * infected], axis=1)

    return steps_of(drift, start, 0.01, rng)


def fitzhugh(rng):
    def drift(x):
        v, w = x[:, :1], x[:, 1:]
        return np.concatenate([v - v**3 / 3 - w + 0.5, 0.08 * (v + 0.7 - 0.8 * w)], axis=1) * 2

    return steps_of(drift, np.array([-1.0, 1.0]) + 0.1 * rng.standard_normal((40, 2)), 0.1, rng)


def lotka(rng):
    def drift(x):
        a, b = x[:, :1], x[:, 1:]
        return np.concatenate([a * (1 - b), b * (a - 1)], axis=1)

    return steps_of(drift, np.array([1.8, 0.6]) + 0.1 * rng.standard_normal((40, 2)), 0.05, rng)


def transient(rng):
    A = np.array([[-1.0, 0.5], [-0.5, -1.0]])
    start = 2 + 0.3 * rng.standard_normal((40, 2))
    return rt.LinearSDE(A, 0.2 * np.eye(2)).simulate(40, 20, 0.2, x0=start, random_state=rng)


PROCESSES = {
    "logistic growth": logistic,
    "SIR": sir,
    "FitzHugh–Nagumo": fitzhugh,
    "Lotka–Volterra": lotka,
    "linear, to rest": transient,
}
ADDED = ("", "age, two visits a year", "visit number", "dose so far")


def with_column(X, name, rng):
    n, T, _ = X.shape
    return X if not name else np.concatenate([X, clocks(n, T, rng)[name][:, :, None]], axis=2)


def outcome(X, seed):
    """Called, wrong, left out: of one shuffled panel."""
    shuffled, truth = rt.simulate.shuffle(X, random_state=seed)
    with warnings.catch_warnings(), one_blas_thread():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=0.2, drift="affine", n_jobs=1, random_state=seed).fit(shuffled)
    called = model.direction_.identified
    wrong = called and rt.metrics.kendall_tau(truth, model.order_) < 0
    return called, wrong, len(model.result_.left_out)


def one(make, column, seed):
    rng = np.random.default_rng(seed)
    return outcome(with_column(make(rng), column, rng), seed)


def table(cases, seeds, jobs):
    rows = []
    for name, make in cases.items():
        found = np.array(
            [
                np.sum(
                    Parallel(n_jobs=jobs)(delayed(one)(make, column, seed) for seed in seeds),
                    axis=0,
                )
                for column in ADDED
            ],
            dtype=int,
        )  # (columns, 3): called, wrong, left out
        rows.append([name, len(seeds), *map(str, found[:, 0]), *map(str, found.sum(axis=0)[1:])])
    columns = ["process", "panels", "called", *(f"with {each}" for each in ADDED[1:])]
    columns += ["wrong in all", "columns left out"]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["rates", "fits", "panels"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seeds", default="0:30")
    parser.add_argument("--only", default="", help="processes or panels whose name contains this")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    seeds = range(*(int(each) for each in asked.seeds.split(":")))
    if asked.what == "rates":
        rates(seeds)
        return
    cases = PROCESSES
    if asked.what == "panels":
        panels = {
            name: read_panel(asked.folder / f"{name}.csv", variables)
            for name, variables in PANELS.items()
        }
        cases = {name: (lambda rng, X=X: X) for name, X in panels.items()}
    table({name: make for name, make in cases.items() if asked.only in name}, seeds, asked.jobs)


if __name__ == "__main__":
    main()
