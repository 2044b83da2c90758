"""The direction of panels made to break the model: how often it is called, and how often wrongly.

    python studies/assumptions.py --seeds 20000:20100 --jobs 2
    python studies/assumptions.py --seeds 20000:20100 --only "trend;treatment" --given
    python studies/assumptions.py --seeds 20000:20100 --only "last value;event;per cent;bridges" --aligned end
    python studies/assumptions.py --seeds 20000:20040 --mirrored

Four kinds of panels, a table of each. *No direction*: stationary and reversible ones, with and without shocks that trajectories share; every
call is false. *Something outside* the model changes with time (a treatment, a trend, volatility, a detection limit), and
*transients*: a call may be right or wrong. *In reverse*: mirror images of ordinary panels (selected, aligned or normalised at the end), which
no data can tell from them: the verdict names that assumption, and `--aligned end` or `--evidence` makes it known.

Slices are shuffled first; with `--given` only the direction of the true order is tested. `--mirrored` also tests the reversed panel:
both must get the mirrored answer. Reasons, mean seconds, the share of orders that are scrambled (|τ| < .9) and seeds that are called against time follow each table.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import direction as processes
import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov

import retrace_sde as rt
from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.closed_form.panels import Ground
from retrace_sde.evidence.direction.comparison import compare_directions
from retrace_sde.evidence.direction.verdict import direction_test
from retrace_sde.evidence.guards import guarded, loops
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.models.euler import EulerModel

Floats = NDArray[np.float64]
Start = Callable[[np.random.Generator, Floats], Floats]
DT = 0.1

SCRAMBLED_TAU = 0.9
"""Kendall's |τ| below which an order is scrambled, as in studies/cells.py; two exchanged neighbours of 14 slices have .98."""


def walk(
    rng: np.random.Generator, n: int, T: int, d: int, *, sde: tuple[Floats, Floats] | None = None,
    start: Start | None = None, common: float = 0.0, sizes: Floats | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """An OU process, reversible unless `sde` (A, H) is given, and its stationary deviations.

    `start` draws first states from a root of the stationary covariance; `common` is the share of the noise that all
    trajectories have in common; `sizes` (T − 1,) scale the noise of the steps.
    """
    if sde is None:
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        sde = -(Q * rng.uniform(0.5, 3, d)) @ Q.T, np.eye(d)
    A, H = sde
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    root, step = np.linalg.cholesky(S), np.linalg.cholesky(S - F @ S @ F.T)

    def noise(L: Floats) -> Floats:
        own, shared = rng.standard_normal((n, d)), rng.standard_normal((1, d))
        return (np.sqrt(1 - common) * own + np.sqrt(common) * shared) @ L.T

    x = noise(root) if start is None else start(rng, root)
    found = [x]
    for t in range(T - 1):
        x = x @ F.T + noise(step) * (1.0 if sizes is None else sizes[t])
        found.append(x)
    return np.stack(found, axis=1), np.sqrt(np.diag(S))


def irreversible(seed: int, d: int) -> tuple[Floats, Floats]:
    sde = random_irreversible_sde(d, random_state=seed)
    return sde.drift, sde.diffusion


def rest(
    seed: int, *, n: int = 30, T: int = 16, d: int = 3, common: float = 0.0, plates: float = 0.0,
    levels: float = 0.0, factor: str = "", turning: bool = False,
) -> Floats:  # fmt: skip
    """At rest, with what trajectories share: noise, an offset of every slice, a factor."""
    rng = np.random.default_rng([seed, 1])
    X, sd = walk(rng, n, T, d, sde=irreversible(seed, d) if turning else None, common=common)
    X = X + levels * sd * rng.standard_normal((n, 1, d))
    X = X + plates * sd * rng.standard_normal((1, T, d))
    if factor == "OU":
        X = X + walk(rng, 1, T, d)[0]
    if factor == "walk":
        X = X + np.cumsum(0.3 * sd * rng.standard_normal((1, T, d)), axis=1)
    return X


def copies(seed: int) -> Floats:
    rng = np.random.default_rng([seed, 2])
    X, sd = walk(rng, 10, 16, 3)
    return np.repeat(X, 3, axis=0) + 0.02 * sd * rng.standard_normal((30, 16, 3))


def transient(seed: int, *, common: float = 0.0, plates: float = 0.0) -> Floats:
    """From two deviations off, with a third of the spread."""
    rng = np.random.default_rng([seed, 3])

    def start(rng: np.random.Generator, root: Floats) -> Floats:
        return 2 * np.sqrt((root**2).sum(axis=1)) + 0.33 * rng.standard_normal((30, 3)) @ root.T

    X, sd = walk(rng, 30, 16, 3, sde=irreversible(seed, 3), start=start, common=common)
    return X + plates * sd * rng.standard_normal((1, 16, 3))


def growth(seed: int, *, plates: float = 0.0) -> Floats:
    rng = np.random.default_rng([seed, 4])
    A, x, found = np.array([[0.12, 0.03], [0.02, 0.10]]), 1 + 0.2 * rng.standard_normal((30, 2)), []
    for _ in range(16):
        found.append(x)
        x = x + x @ A.T + 0.08 * rng.standard_normal((30, 2))
    X = np.stack(found, axis=1)
    return X + plates * X.std(axis=(0, 1)) * rng.standard_normal((1, 16, 2))


def outside(
    seed: int, mean: Callable[[Floats], Floats], *, T: int, kind: str = "reversible"
) -> Floats:
    """Stationary deviations about a mean that something outside moves, in deviations; t runs from 0 to 1."""
    rng = np.random.default_rng([seed, 5])
    X, sd = walk(rng, 30, T, 2, sde=irreversible(seed, 2) if kind == "irreversible" else None)
    if kind == "fast":  # F = .6
        x, found = np.zeros((30, 2)), []
        for _ in range(T + 30):
            x = 0.6 * x + 0.8 * rng.standard_normal((30, 2))
            found.append(x)
        X, sd = np.stack(found[30:], axis=1), np.ones(2)
    return X + mean(np.arange(T) / (T - 1))[None] * sd


def treatment(t: Floats) -> Floats:
    return np.tile(2.0 * (t >= 0.5)[:, None], (1, 2))


def trend(t: Floats) -> Floats:
    return np.tile(3 * t[:, None] ** 2, (1, 2))


def rise_and_fall(t: Floats) -> Floats:
    late = np.clip(1.4 * t - 0.4, 0, 1)
    return 2 * np.stack([np.sin(np.pi * t), np.sin(np.pi * late)], axis=1)


def volatility(seed: int, first: float, last: float) -> Floats:
    rng = np.random.default_rng([seed, 6])

    def start(rng: np.random.Generator, root: Floats) -> Floats:
        return first * rng.standard_normal((30, 3)) @ root.T

    return walk(rng, 30, 16, 3, start=start, sizes=np.linspace(first, last, 15))[0]


def calming(seed: int) -> Floats:
    sizes = np.exp(-np.linspace(0, 1.5, 15))
    return walk(np.random.default_rng([seed, 7]), 30, 16, 2, sizes=sizes)[0]


def detection_limit(seed: int) -> Floats:
    X, sd = walk(np.random.default_rng([seed, 8]), 30, 14, 2)
    falling = 1.8 * np.linspace(0, 1, 14)[None, :, None] * sd
    return np.maximum(X - falling, -sd)


def carried_forward(seed: int) -> Floats:
    rng = np.random.default_rng([seed, 9])
    X, _ = walk(rng, 30, 14, 2)
    for each in X:
        if rng.random() < 0.4:
            last = rng.integers(3, 13)
            each[last + 1 :] = each[last]
    return X


def onsets(seed: int) -> Floats:
    rng = np.random.default_rng([seed, 10])
    X, sd = walk(rng, 30, 16, 2)
    begun = np.clip((np.arange(16)[None] - rng.uniform(2, 13, (30, 1))) / 4, 0, 1)
    return 0.5 * X + 2 * begun[:, :, None] * sd


def asynchronous(seed: int) -> Floats:
    """Logistic growth that subjects enter at stages of their own, seen at the same slices with measurement noise."""
    rng = np.random.default_rng([seed, 17])
    x, found = 1 / (1 + np.exp(-rng.uniform(-3, 1, (30, 2)))), []
    for _ in range(14):
        found.append(x)
        x = x + 0.25 * x * (1 - x) + 0.01 * rng.standard_normal((30, 2))
    X = np.stack(found, axis=1)
    return X + 0.03 * rng.standard_normal(X.shape)


def last_value(seed: int) -> Floats:
    X, _ = walk(np.random.default_rng([seed, 11]), 360, 14, 2)
    return X[np.argsort(-X[:, -1, 0])[:30]]


def event(seed: int) -> Floats:
    X, sd = walk(np.random.default_rng([seed, 12]), 600, 70, 2)
    found = []
    for each in X:
        hits = np.nonzero(each[13:, 0] > 1.5 * sd[0])[0]
        if len(hits):
            found.append(each[hits[0] : hits[0] + 14])
    return np.stack(found[:30])


def per_cent(seed: int) -> Floats:
    X, sd = walk(np.random.default_rng([seed, 13]), 30, 14, 2)
    X = np.exp(0.5 * X / sd)
    return 100 * X / X[:, -1:]


def bridges(seed: int) -> Floats:
    rng = np.random.default_rng([seed, 14])
    W, t = np.cumsum(rng.standard_normal((30, 14, 2)), axis=1), np.linspace(0, 1, 14)[None, :, None]
    W = W - W[:, :1]
    return 4 * rng.standard_normal((30, 1, 2)) * (1 - t) + W - t * W[:, -1:]


NO_DIRECTION: dict[str, Callable[[int], Floats]] = {
    "independent": rest,
    "30 % common": lambda seed: rest(seed, common=0.3),
    "60 % common": lambda seed: rest(seed, common=0.6),
    "irreversible, 60 % common": lambda seed: rest(seed, common=0.6, turning=True),
    "plates .3": lambda seed: rest(seed, plates=0.3),
    "plates 1": lambda seed: rest(seed, plates=1.0),
    "common OU factor": lambda seed: rest(seed, factor="OU"),
    "common random walk": lambda seed: rest(seed, factor="walk"),
    "copies": copies,
    "levels, 40 % common": lambda seed: rest(seed, levels=2.0, common=0.4),
    "n = 8, 50 % common": lambda seed: rest(seed, n=8, common=0.5),
    "T = 8, 50 % common": lambda seed: rest(seed, T=8, common=0.5),
    "sparse 0/1": lambda seed: (np.random.default_rng([seed, 15]).random((30, 9, 2)) < 0.05) * 1.0,
    "sparse counts": lambda seed: np.random.default_rng([seed, 16]).poisson(0.05, (40, 8, 2)) * 1.0,
    "double wells": lambda seed: processes.wells(seed, d=2),
    "seasonal input": processes.seasonal,
}
OUTSIDE: dict[str, Callable[[int], Floats]] = {
    "treatment": lambda seed: outside(seed, treatment, T=14),
    "trend": lambda seed: outside(seed, trend, T=12),
    "trend, irreversible": lambda seed: outside(seed, trend, T=12, kind="irreversible"),
    "trend, fast": lambda seed: outside(seed, trend, T=12, kind="fast"),
    "rise and fall": lambda seed: outside(seed, rise_and_fall, T=14),
    "volatility falls": lambda seed: volatility(seed, 2.0, 0.5),
    "volatility rises": lambda seed: volatility(seed, 0.5, 2.0),
    "calming": calming,
    "detection limit": detection_limit,
    "carried forward": carried_forward,
    "onsets": onsets,
    "asynchronous growth": asynchronous,
}
TRANSIENTS: dict[str, Callable[[int], Floats]] = {
    "transient": transient,
    "transient, plates .3": lambda seed: transient(seed, plates=0.3),
    "transient, plates 1": lambda seed: transient(seed, plates=1.0),
    "transient, 50 % common": lambda seed: transient(seed, common=0.5),
    "growth": growth,
    "growth, plates .3": lambda seed: growth(seed, plates=0.3),
}
IN_REVERSE: dict[str, Callable[[int], Floats]] = {
    "last value": last_value,
    "event": event,
    "per cent": per_cent,
    "bridges": bridges,
}
KINDS = {
    "no direction": NO_DIRECTION,
    "something outside changes with time": OUTSIDE,
    "transients": TRANSIENTS,
    "mirror images of ordinary panels": IN_REVERSE,
}
PANELS = {name: make for kind in KINDS.values() for name, make in kind.items()}


def shuffled(
    X: Floats, seed: int, options: dict[str, object], aligned: str | None
) -> tuple[int, bool, bool, str]:
    """1, −1 or 0: the true direction, its reverse, or none called; whether the order is right, and whether scrambled; and the reason."""
    values, truth = rt.simulate.shuffle(X, random_state=seed)
    known = None if aligned is None else rt.Knowledge(aligned=aligned)
    model = rt.ReTrace(dt=DT, n_jobs=1, random_state=0, **options).fit(values, knowledge=known)
    tau = rt.metrics.kendall_tau(truth, model.order_)
    right = max(
        rt.metrics.order_accuracy(truth, each) for each in (model.order_, model.order_[::-1])
    )
    called = int(np.sign(tau)) if model.direction_.identified else 0
    return called, right == 1, abs(tau) < SCRAMBLED_TAU, str(model.direction_.reason)


def given(X: Floats, seed: int, grounds: frozenset[Ground]) -> tuple[int, bool, bool, str]:
    """The same of the true order."""
    scale = X.std(axis=(0, 1))
    model = EulerModel(Data((X - X.mean(axis=(0, 1))) / scale, n_jobs=1), DT, Affine())
    one = model.fit(np.arange(X.shape[1]), final=True)
    both = one, model.reversed_fit(one, final=True)
    plain = direction_test(*(each.log_likelihoods for each in both), dimension=X.shape[2])
    rng = np.random.default_rng(seed)
    along = CandidatesAlong(model, both, plain.contributions, rng)
    test, reverse = compare_directions(along, plain, rng, alpha=0.05, grounds=grounds)
    test = test.turned() if reverse else test
    found = guarded(model, both[int(reverse)], test, alpha=0.05, cycle=loops(model, one), rng=rng)
    called = 0 if not found.direction.identified else -1 if reverse else 1
    return called, True, False, str(found.direction.reason)


def answer(name: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X, begin = PANELS[name](seed), time.perf_counter()
        sources = asked.evidence.split(",")

        def of(values: Floats) -> tuple[int, bool, bool, str]:
            if asked.given:
                return given(values, seed, frozenset(map(Ground, sources)))
            return shuffled(values, seed, {"evidence": tuple(sources)}, asked.aligned)

        try:
            called, right, scrambled, reason = of(X)
        except ValueError:  # of sparse tables two slices may be identical: refused, with a reason
            return {
                "seed": seed,
                "called": 0,
                "right": True,
                "scrambled": False,
                "reason": "refused",
                "mirrored": True,
                "seconds": 0.0,
            }
        mirrored = not asked.mirrored or of(X[:, ::-1])[0] == -called
    return {"seed": seed, "called": called, "right": right, "scrambled": scrambled, "reason": reason, "mirrored": mirrored,
            "seconds": time.perf_counter() - begin}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:20")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--aligned", choices=["start", "end", "neither"])
    parser.add_argument("--evidence", default="means,spreads,residuals")
    parser.add_argument("--json", type=Path, help="write the tables there, too")
    asked = parser.parse_args()
    begin, end = map(int, asked.seeds.split(":"))
    names = [each for each in PANELS if not asked.only or each in asked.only.split(";")]
    tasks = [(name, seed) for seed in range(begin, end) for name in names]
    found = Parallel(asked.jobs, batch_size=1)(delayed(answer)(*task, asked) for task in tasks)
    tables = {}
    for kind, panels in KINDS.items():
        here = {
            name: [row for (each, _), row in zip(tasks, found, strict=True) if each == name]
            for name in panels
            if name in names
        }
        if here:
            columns = [kind, "panels", "called", "right", "wrong", "order right"]
            rows = [summary(*each, directed=panels is not NO_DIRECTION) for each in here.items()]
            details = [told(*each) for each in here.items()]
            tables[kind] = processes.shown(columns, rows, details)
    processes.record(asked.json, tables)


def summary(name: str, rows: list[dict[str, Any]], *, directed: bool) -> list[str | float | None]:
    """A row of the table: shares of the panels."""
    called = np.array([row["called"] for row in rows])
    right, wrong = float(np.mean(called > 0)), float(np.mean(called < 0))
    order = float(np.mean([row["right"] for row in rows]))
    both = (right, wrong) if directed else (None, None)
    return [name, len(rows), right + wrong, *both, order]


def told(name: str, rows: list[dict[str, Any]]) -> str:
    """What the table leaves out: reasons, seconds, orders that are scrambled, seeds that are called against time."""
    reasons = ", ".join(sorted({str(row["reason"]) for row in rows}))
    mirrored, seconds, scrambled = (
        np.mean([row[key] for row in rows]) for key in ("mirrored", "seconds", "scrambled")
    )
    wrong = [row["seed"] for row in rows if row["called"] == -1]
    how = f"{seconds:.2f} s; mirrored {mirrored:.2f}; scrambled {scrambled:.2f}"
    return f"{name}: {reasons}; {how}; in reverse: {wrong}"


if __name__ == "__main__":
    main()
