"""Groups of trajectories, and copies that nobody named: coverage, how often copies are noticed, and how often where there are none.

    python studies/groups.py coverage --seeds 20000:20100 --jobs 16
    python studies/groups.py alarms --seeds 20000:20200 --jobs 16
    python studies/groups.py hits --seeds 20000:20060 --jobs 16

`coverage`: 95 % intervals of A where each of 10 or 30 trajectories stands three times with 2 % noise, in the known order: taken for
independent, in groups that are given, and noticed by the fit. `alarms`: shares of panels of independent trajectories in which
some are taken for copies; `own`: with orders of their own. `hits`: share of pairs of copies that are noticed, 10
trajectories three times each, by their noise in standard deviations of the variables.
"""

import argparse
import warnings
from typing import Any
from unittest.mock import patch

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt
from retrace_sde.estimator.copies import near_copies
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import Data

TURN = np.array([[-0.5, 1.0], [-1.0, -0.5]])


def ou(rng, n, T, d, x0="stationary"):
    """An irreversible Ornstein–Uhlenbeck process, at rest."""
    sde = rt.simulate.random_irreversible_sde(d, random_state=int(rng.integers(1 << 30)))
    return sde.simulate(n, T, 0.1, x0=x0, random_state=int(rng.integers(1 << 30)))


def low_noise(rng, n=60, T=20):
    """All but deterministic: what trajectories do follows from where they start."""
    X = np.zeros((n, T, 2))
    X[:, 0] = rng.normal(size=(n, 2)) + np.array([3.0, 0.0])
    for t in range(T - 1):
        X[:, t + 1] = X[:, t] + 0.1 * X[:, t] @ TURN.T + 0.003 * rng.normal(size=(n, 2))
    return X


def growth(rng, n=50, T=20):
    """Logistic curves with rates of their own."""
    rate, X = rng.lognormal(0, 0.2, n), np.zeros((n, T, 1))
    X[:, 0, 0] = rng.lognormal(-2, 0.3, n)
    for t in range(T - 1):
        x = X[:, t, 0]
        X[:, t + 1, 0] = x * np.exp(0.2 * rate * (1 - x) + 0.03 * rng.normal(size=n))
    return X


def switches(rng, n=60, T=12):
    """0/1, rare and lasting."""
    z = (rng.random((n, T, 2)) < 0.15).astype(float)
    for t in range(1, T):
        z[:, t] = np.where(rng.random((n, 2)) < 0.2, z[:, t], z[:, t - 1])
    return z


def counts(rng, n=200, T=5):
    """Small counts, in which exact ties are common."""
    rate = np.exp(1 + np.cumsum(0.2 * rng.normal(size=(n, T, 1)), axis=1))
    return rng.poisson(rate).astype(float)


def scores(rng, n=100, T=8):
    """Whole numbers from 0 to 10 that change slowly."""
    steps = np.cumsum(0.4 * rng.normal(size=(n, T, 2)), axis=1)
    return np.clip(np.round(5 + 2 * rng.normal(size=(n, 1, 2)) + steps), 0, 10)


def bursts(rng, n=80, T=10):
    """Nearly nothing, and large values now and then."""
    large = (rng.random((n, T, 2)) < 0.1) * rng.lognormal(0, 1, (n, T, 2))
    return large + 0.01 * rng.normal(size=(n, T, 2))


def heavy(rng, n=60, T=12):
    """Steps with heavy tails."""
    X = np.zeros((n, T, 2))
    for t in range(1, T):
        X[:, t] = 0.8 * X[:, t - 1] + rng.standard_t(1.5, size=(n, 2))
    return X


def clusters(rng):
    """Five levels far apart, and little movement about them."""
    centres = np.array([[0, 0], [5, 0], [0, 5], [4, 4], [8, 1.0]])
    return 0.1 * ou(rng, 60, 10, 2) + centres[rng.integers(5, size=60)][:, None]


def holes(rng):
    """Two of three values missing."""
    X = ou(rng, 60, 12, 2)
    X[rng.random(X.shape) < 0.66] = np.nan
    return X


KINDS = {
    "at rest": lambda rng: ou(rng, 30, 16, 3),
    "one variable": lambda rng: ou(rng, 30, 16, 1),
    "few visits": lambda rng: ou(rng, 40, 4, 2),
    "three visits, one variable": lambda rng: ou(rng, 100, 3, 1),
    "one start, low noise": lambda rng: 1e-2 * ou(rng, 30, 20, 2, x0=[3.0, 0.0]),
    "low noise": low_noise,
    "growth": growth,
    "levels": lambda rng: 0.2 * ou(rng, 40, 12, 2) + 5 * rng.normal(size=(40, 1, 2)),
    "five clusters": clusters,
    "0/1": switches,
    "0/1 beside two": lambda rng: np.concatenate([ou(rng, 60, 12, 2), switches(rng)], axis=2),
    "counts": counts,
    "scores": scores,
    "rounded": lambda rng: np.round(2 * ou(rng, 60, 8, 2)) / 2,
    "bursts": bursts,
    "heavy tails": heavy,
    "values missing": holes,
    "common factor": lambda rng: 0.5 * ou(rng, 30, 16, 3) + ou(rng, 1, 16, 3),
    "many variables": lambda rng: ou(rng, 20, 8, 12),
    "n = 1000": lambda rng: ou(rng, 1000, 10, 2),
}
"""Panels of independent trajectories."""


def copied(X, noise, rng):
    """Each trajectory three times, with noise in standard deviations of the variables; and which are which."""
    Y = np.repeat(X, 3, axis=0)
    sd = np.nanstd(X, axis=(0, 1))
    return Y + noise * sd * rng.normal(size=Y.shape), np.repeat(np.arange(len(X)), 3)


def coverage(seed, n):
    """Shares of A inside their intervals: taken for independent, in given groups, and noticed; and sets that were noticed."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    X = sde.simulate(n, 16, 0.1, x0="stationary", random_state=int(rng.integers(1 << 30)))
    Y, groups = copied(X, 0.02, rng)
    known = rt.Knowledge(positions=np.arange(16))

    def covered(**given):
        model = rt.ReTrace(dt=0.1, estimator="exact", subjects="alike", random_state=0, n_jobs=1)
        found = model.fit(Y, knowledge=known, **given).result_
        ends = found.conf_int().iloc[:9].to_numpy()
        inside = (ends[:, 0] < sde.drift.ravel()) & (sde.drift.ravel() < ends[:, 1])
        return inside.mean(), found.n_groups

    with patch("retrace_sde.estimator.copies.near_copies", return_value=None):
        rows = [covered(), covered(groups=groups)]
    rows.append(covered())
    return [each[0] for each in rows] + [rows[-1][1]]


def alarms(seed, kind):
    """Whether copies are noticed where there are none, in a shared order and in own orders."""
    X = KINDS[kind](np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        return [near_copies(Data(X), shared=shared) is not None for shared in (True, False)]


def hits(seed, kind):
    """Share of pairs of copies that are noticed, shared order and own orders, by noise."""
    rng, found = np.random.default_rng(seed), []
    X = KINDS[kind](rng)[:10]
    for shared in (True, False):
        for noise in (0, 0.01, 0.02, 0.05):
            Y, true = copied(X, noise, rng)
            with np.errstate(all="ignore"):
                copies = near_copies(Data(Y), shared=shared)
            same = true[:, None] == true
            np.fill_diagonal(same, False)
            found.append(0.0 if copies is None else (copies[:, None] == copies)[same].mean())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["coverage", "alarms", "hits"])
    parser.add_argument("--seeds", default="0:20", help="a:b")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    tables: dict[str, Any] = {
        "coverage": (coverage, {"10 three times": 10, "30 three times": 30},
                     ("alone", "groups", "noticed", "groups found")),
        "alarms": (alarms, {name: name for name in KINDS}, ("shared", "own")),
        "hits": (hits, {name: name for name in KINDS},
                 tuple(f"{o} {v:g}" for o in ("shared", "own") for v in (0, 0.01, 0.02, 0.05))),
    }  # fmt: skip
    run, cases, columns = tables[given.what]
    seeds = range(*map(int, given.seeds.split(":")))
    table = []
    for name, case in cases.items():
        if given.only in name:
            rows = Parallel(given.jobs)(delayed(run)(seed, case) for seed in seeds)
            table.append([name, len(seeds), *(float(x) for x in np.mean(rows, axis=0))])
    print(*lines({"columns": ["panel", "panels", *columns], "rows": table}), sep="\n")


if __name__ == "__main__":
    main()
