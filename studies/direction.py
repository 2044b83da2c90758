"""The direction of time: how often it is called, and how often wrongly, where it is identifiable and where it is not.

    python studies/direction.py level --seeds 0:100
    python studies/direction.py reversible --seeds 0:100
    python studies/direction.py power --seeds 0:100
    python studies/direction.py wrong --seeds 0:30
    python studies/direction.py mechanisms --seeds 0:30
    python studies/direction.py skewed --seeds 0:30
    python studies/direction.py panels --folder FOLDER [--halves 12]
    python studies/direction.py level reversible power wrong mechanisms skewed panels --folder FOLDER --halves 12 --jobs 16 --json FILE
    python studies/direction.py level --seeds 0:200 --given --only "d=6"

`level`: stationary panels, which have no direction. `reversible`: nonlinear ones that have none. `power`: transients. `wrong`:
panels whose direction a Markov model gets wrong or invents. `mechanisms`: nonlinear ones, n = 40. `skewed`: stationary, with noise that is not Gaussian. `panels`: real
ones, whole and random halves of their subjects (long csv files `subject,time,<variables>`). Slices are shuffled first; with
`--given` nothing is: only the direction of the true order is tested, which takes a tenth of the time. Preferred models, seconds and seeds (or
halves) that are called wrongly follow the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from real_panels import PANELS, read_panel

import retrace_sde as rt
from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.direction.comparison import compare_directions
from retrace_sde.evidence.direction.verdict import direction_test
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.process.sde import Gaussian
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel

Floats = NDArray[np.float64]
DT = 0.1


def linear(
    seed: int,
    *,
    d: int,
    n: int,
    T: int,
    start: str = "stationary",
    noise: float = 0.0,
    missing: float = 0.0,
) -> Floats:
    """A stable irreversible SDE; its start is the stationary law, that 1.5 deviations off, or a small one."""
    sde = random_irreversible_sde(d, random_state=seed)
    law, rng = sde.stationary(), np.random.default_rng(100_000 + seed)
    deviations = np.sqrt(np.diag(law.covariance))
    x0: Any = {
        "stationary": law,
        "shifted": Gaussian(law.mean + 1.5 * deviations, law.covariance),
        "small": Gaussian(law.mean, 0.01 * law.covariance),
    }[start]
    X = sde.simulate(n, T, DT, x0=x0, scheme="exact", random_state=rng)
    X = X + noise * deviations * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < missing] = np.nan
    return X


def momentum(seed: int, *, n: int = 40, T: int = 20) -> Floats:
    """Positions of two damped oscillators from rest; their velocities are not seen."""
    rng = np.random.default_rng(seed)
    x, v = rng.standard_normal((n, 2)) + 2.0, np.zeros((n, 2))
    found = []
    for _ in range(T):
        found.append(x.copy())
        for _ in range(10):
            x, v = x + 0.012 * v, v + 0.012 * (-x - 0.4 * v) + 0.02 * rng.standard_normal((n, 2))
    return np.stack(found, axis=1)


def seasonal(seed: int, *, n: int = 40, T: int = 20) -> Floats:
    """A smooth seasonal curve, the same for all, with an offset of each subject and white noise: no direction."""
    rng = np.random.default_rng(seed)
    t = 0.6 * np.arange(T) / T
    curve = np.stack([np.sin(2 * np.pi * t), np.cos(2 * np.pi * t + 0.5)], axis=1)
    return curve[None] + rng.standard_normal((n, 1, 2)) + 0.3 * rng.standard_normal((n, T, 2))


def growing_gaps(seed: int, *, n: int = 40, T: int = 12, rate: float = 1.4) -> Floats:
    """A transient seen at gaps that grow by a factor each time."""
    sde = random_irreversible_sde(2, random_state=seed)
    rng = np.random.default_rng(200_000 + seed)
    gaps = 0.02 * rate ** np.arange(T - 1)
    x = 2.0 + 0.3 * rng.standard_normal((n, 2))
    found = [x]
    for gap in gaps:
        x = sde.simulate(n, 2, float(gap), x0=x, scheme="exact", random_state=rng)[:, 1]
        found.append(x)
    return np.stack(found, axis=1)


def two_groups(seed: int, *, n: int = 40, T: int = 15) -> Floats:
    """Two arms that start apart and relax to the same law."""
    sde = random_irreversible_sde(3, random_state=seed)
    law, rng = sde.stationary(), np.random.default_rng(300_000 + seed)
    side = np.where(np.arange(n) < n // 2, -2.0, 2.0)[:, None] * np.sqrt(np.diag(law.covariance))
    x0 = law.mean + side + 0.2 * rng.standard_normal((n, 3)) * np.sqrt(np.diag(law.covariance))
    return sde.simulate(n, T, DT, x0=x0, scheme="exact", random_state=rng)


def stepped(
    seed: int, field: Callable[[Floats], Floats], x0: Floats, *, T: int, dt: float, noise: Floats
) -> Floats:
    """Euler's scheme with ten substeps between observations."""
    rng = np.random.default_rng(400_000 + seed)
    x, found = x0, []
    for _ in range(T):
        found.append(x.copy())
        for _ in range(10):
            step = dt / 10
            x = x + field(x) * step + noise * np.sqrt(step) * rng.standard_normal(x.shape)
    return np.stack(found, axis=1)


def logistic(seed: int, *, n: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    x0 = np.abs(0.1 + 0.02 * rng.standard_normal((n, 2)))
    rate = np.array([1.0, 0.7])
    # below zero, where noise may put it, nothing grows

    def field(x: Floats) -> Floats:
        return rate * np.maximum(x, 0.0) * (1 - x)

    return stepped(seed, field, x0, T=20, dt=0.4, noise=np.full(2, 0.03))


def epidemic(seed: int, *, n: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    i = np.abs(0.02 + 0.005 * rng.standard_normal(n))
    x0 = np.stack([1 - i, i], axis=1)

    def field(x: Floats) -> Floats:
        s, i = np.clip(x, 0, None).T
        return np.stack([-1.5 * s * i, 1.5 * s * i - 0.4 * i], axis=1)

    return stepped(seed, field, x0, T=20, dt=0.8, noise=np.full(2, 0.01))


def fitzhugh_nagumo(seed: int, *, n: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    x0 = np.array([-1.0, 1.0]) + 0.2 * rng.standard_normal((n, 2))

    def field(x: Floats) -> Floats:
        v, w = x[:, 0], x[:, 1]
        return np.stack([v - v**3 / 3 - w + 0.5, 0.08 * (v + 0.7 - 0.8 * w)], axis=1)

    return stepped(seed, field, x0, T=20, dt=1.0, noise=np.array([0.1, 0.03]))


def predators(seed: int, *, n: int = 40) -> Floats:
    rng = np.random.default_rng(seed)
    x0 = np.abs(np.array([1.0, 0.5]) + 0.1 * rng.standard_normal((n, 2)))

    def field(x: Floats) -> Floats:
        a, b = np.abs(x[:, 0]), np.abs(x[:, 1])
        return np.stack([a * (1 - b), b * (a - 1)], axis=1)

    return stepped(seed, field, x0, T=20, dt=0.2, noise=np.full(2, 0.05))


def skewed(seed: int, *, kind: str, d: int = 4, n: int = 40, T: int = 40) -> Floats:
    """A stationary linear process whose noise is Gaussian, t with 3 degrees of freedom, or exponential."""
    rng = np.random.default_rng(500_000 + seed)
    sde = random_irreversible_sde(d, random_state=seed)
    F, G = np.eye(d) + DT * sde.drift, np.linalg.cholesky(DT * sde.diffusion)
    x, found = np.zeros((n, d)), []
    for t in range(T + 300):
        e = {
            "gaussian": rng.standard_normal((n, d)),
            "t3": rng.standard_t(3, (n, d)),
            "exponential": rng.exponential(size=(n, d)) - 1,
        }[kind]
        x = x @ F.T + e @ G.T
        if t >= 300:
            found.append(x)
    return np.stack(found, axis=1)


def wells(seed: int, *, d: int, n: int = 40) -> Floats:
    """Double wells in equilibrium: a drift that bends, and no direction."""
    rng = np.random.default_rng(700_000 + seed)

    def field(x: Floats) -> Floats:
        return 4 * x * (1 - x**2)

    rest = stepped(
        seed, field, rng.choice([-1.0, 1.0], (n, d)), T=20, dt=0.2, noise=np.full(d, 0.7)
    )
    return stepped(seed + 1, field, rest[:, -1], T=20, dt=0.2, noise=np.full(d, 0.7))


def waves(seed: int, *, n: int = 40, T: int = 20) -> Floats:
    """Exponentials of two stationary processes: skewed and time-reversible."""
    rng = np.random.default_rng(800_000 + seed)
    y, found = rng.standard_normal((n, 2)), []
    for _ in range(T):
        found.append(np.exp(0.7 * y))
        y = 0.8 * y + 0.6 * rng.standard_normal((n, 2))
    return np.stack(found, axis=1)


LEVEL = {
    "d=2 n=30 T=20": (linear, {"d": 2, "n": 30, "T": 20}, {}),
    "d=3 n=50 T=30": (linear, {"d": 3, "n": 50, "T": 30}, {}),
    "d=3 n=5 T=15": (linear, {"d": 3, "n": 5, "T": 15}, {}),
    "d=6 n=100 T=40": (linear, {"d": 6, "n": 100, "T": 40}, {}),
    "d=10 n=20 T=60": (linear, {"d": 10, "n": 20, "T": 60}, {}),
    "d=3 n=30 T=15, noise": (
        linear,
        {"d": 3, "n": 30, "T": 15, "noise": 0.3},
        {"observation_noise": "estimate"},
    ),
    "d=3 n=30 T=15, 15 % missing": (linear, {"d": 3, "n": 30, "T": 15, "missing": 0.15}, {}),
    "d=6 n=30 T=20, own orders": (
        linear,
        {"d": 6, "n": 30, "T": 20},
        {"permutation": "independent"},
    ),
    "d=3 n=40 T=10, own orders, uncertain": (
        linear,
        {"d": 3, "n": 40, "T": 10},
        {"permutation": "independent"},
    ),
}
REVERSIBLE = {
    "double wells, d=1": (wells, {"d": 1}, {}),
    "double wells, d=2": (wells, {"d": 2}, {}),
    "exponentials, d=2": (waves, {}, {}),
}
POWER = {
    "d=4 n=8 T=20 shifted, linear": (
        linear,
        {"d": 4, "n": 8, "T": 20, "start": "shifted"},
        {"drift": "linear"},
    ),
    "d=4 n=8 T=20 shifted": (linear, {"d": 4, "n": 8, "T": 20, "start": "shifted"}, {}),
    "d=4 n=30 T=20 shifted": (linear, {"d": 4, "n": 30, "T": 20, "start": "shifted"}, {}),
    "d=4 n=5 T=10 small": (linear, {"d": 4, "n": 5, "T": 10, "start": "small"}, {}),
    "d=4 n=8 T=20 shifted, 15 % missing": (
        linear,
        {"d": 4, "n": 8, "T": 20, "start": "shifted", "missing": 0.15},
        {},
    ),
    "d=3 n=40 T=10 shifted, own orders, uncertain": (
        linear,
        {"d": 3, "n": 40, "T": 10, "start": "shifted"},
        {"permutation": "independent"},
    ),
}
WRONG = {
    "hidden velocity, from rest": (momentum, {}, {}),
    "seasonal, offsets (no direction)": (seasonal, {}, {}),
    "gaps growing 1.4-fold": (growing_gaps, {}, {}),
    "two groups": (two_groups, {}, {}),
}
MECHANISMS = {
    "logistic growth": (logistic, {}, {}),
    "SIR": (epidemic, {}, {}),
    "FitzHugh-Nagumo": (fitzhugh_nagumo, {}, {}),
    "Lotka-Volterra": (predators, {}, {}),
}
SKEWED = {kind: (skewed, {"kind": kind}, {}) for kind in ("gaussian", "t3", "exponential")}
REAL = {**PANELS, "physionet2012_icu_1h_missing": None}
STUDIES: dict[str, Any] = {
    "level": LEVEL,
    "reversible": REVERSIBLE,
    "power": POWER,
    "wrong": WRONG,
    "mechanisms": MECHANISMS,
    "skewed": SKEWED,
}


def judge(X: Floats, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Shuffle, fit, and compare the direction with the truth."""
    options = {"drift": "affine", "dt": DT, "n_jobs": 1, **options}
    own = options.get("permutation", "shared")
    shuffled, truth = rt.simulate.shuffle(X, permutation=own, random_state=seed)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(random_state=seed, **options).fit(shuffled)
    test, tau = model.direction_, rt.metrics.kendall_tau(truth, model.order_)
    first = test.preferred
    return {
        "seed": seed,
        "called": bool(test.identified),
        "wrong": bool(test.identified and tau < 0),
        "tau": float(tau),
        "right": bool((tau > 0) == (test.log_likelihood_ratio > 0)),
        "model": first.name if first else str(test.reason),
        "p": test.p_value,
        "seconds": time.perf_counter() - begin,
    }


def judge_given(X: Floats, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """The direction along the true order, as the engine tests it."""
    begin = time.perf_counter()
    d, noise = X.shape[2], options.get("observation_noise")
    drift = Linear() if options.get("drift") == "linear" else Affine()
    model: Any = EulerModel(Data(X, n_jobs=1), DT, drift)
    if noise is not None or np.isnan(X).any():
        model = HiddenModel.of(model, noise=noise or 0.0)
    one = model.fit(np.arange(X.shape[1]), final=True)
    both = one, model.reversed_fit(one, final=True)
    plain = direction_test(*(each.log_likelihoods for each in both), dimension=d)
    rng = np.random.default_rng(seed)
    along = CandidatesAlong(model, both, plain.contributions, rng)
    test, reverse = compare_directions(along, plain, rng, alpha=0.05)
    first = test.preferred
    return {
        "seed": seed,
        "called": bool(test.identified),
        "wrong": bool(test.identified and reverse),
        "right": test.log_likelihood_ratio > 0,
        "model": first.name if first else str(test.reason),
        "seconds": time.perf_counter() - begin,
    }


def share(key: str, rows: list[dict[str, Any]]) -> float:
    return float(np.mean([row[key] for row in rows]))


def summary(name: str, rows: list[dict[str, Any]]) -> list[str | float]:
    """A row of the table: shares of the panels."""
    called, wrong = share("called", rows), share("wrong", rows)
    return [name, len(rows), called, called - wrong, wrong, share("right", rows)]


def told(name: str, rows: list[dict[str, Any]]) -> str:
    """What the table leaves out: preferred models, seconds, seeds that are called wrongly."""
    models, counts = np.unique([row["model"] for row in rows], return_counts=True)
    used = ", ".join(
        f"{a} {b}" for a, b in sorted(zip(models, counts, strict=True), key=lambda x: -x[1])
    )
    wrong = [row["seed"] for row in rows if row["wrong"]]
    seconds = np.median([row["seconds"] for row in rows])
    return f"{name}: {used}; {seconds:.2f} s" + (f"; wrong: {wrong}" if wrong else "")


def study(name: str, seeds: range, only: str, jobs: int, *, given: bool) -> dict[str, Any]:
    """One table, printed; as a record, with what it leaves out."""
    found = {}
    for case, (make, made, options) in STUDIES[name].items():
        if only == case or (only in case and only not in STUDIES[name]):
            ask = judge_given if given and options.get("permutation") is None else judge
            work = (delayed(ask)(make(seed, **made), seed, options) for seed in seeds)
            found[case] = Parallel(n_jobs=jobs)(work)
    columns = ["panel", "panels", "called", "right", "wrong", "sign right"]
    rows = [summary(*each) for each in found.items()]
    return shown(columns, rows, [told(*each) for each in found.items()])


def shown(columns: list[str], rows: list[list[Any]], details: list[str]) -> dict[str, Any]:
    """A table and what it leaves out, printed, and as a record."""
    found = {"columns": columns, "rows": rows, "details": details}
    print(*lines(found), *details, sep="\n", flush=True)
    return found


def real(folder: Path, halves: int, only: str, jobs: int) -> dict[str, Any]:
    table, details = [], []
    for name, variables in REAL.items():
        if only not in name:
            continue
        X = read_panel(folder / f"{name}.csv", variables)
        # random intercepts with so many missing values take longer than the direction test
        options = {"dt": 1.0, "subjects": "alike" if np.isnan(X).any() else "auto"}
        whole = judge(X, 0, options)
        work = (delayed(judge)(_half(X, k), k, options) for k in range(halves))
        half = Parallel(n_jobs=jobs)(work)
        wrong = sum(each["wrong"] for each in half)
        answer = "open" if not whole["called"] else "wrong" if whole["wrong"] else "right"
        table.append([name, answer, halves, sum(each["called"] for each in half) - wrong, wrong])
        details.append(told(name, [whole, *half]))
    columns = ["real panel", "whole", "random halves", "right", "wrong"]
    return shown(columns, table, details)


def _half(X: Floats, k: int) -> Floats:
    rng = np.random.default_rng(600_000 + k)
    return X[np.sort(rng.permutation(len(X))[: len(X) // 2])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=[*STUDIES, "panels"], nargs="+")
    parser.add_argument("--seeds", default="0:30")
    parser.add_argument(
        "--only", default="", help="the case of this name, or those that contain it"
    )
    parser.add_argument("--folder", type=Path, help="the folder of real panels")
    parser.add_argument("--halves", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--given", action="store_true", help="along the true order")
    parser.add_argument("--json", type=Path, help="write the tables there, too, as they are made")
    asked = parser.parse_args()
    seeds, found = range(*map(int, asked.seeds.split(":"))), {}
    for name in asked.study:
        if name == "panels":
            found[name] = real(asked.folder, asked.halves, asked.only, asked.jobs)
        else:
            found[name] = study(name, seeds, asked.only, asked.jobs, given=asked.given)
        record(asked.json, found)


def record(file: Path | None, tables: dict[str, Any]) -> None:
    """Tables with the command that made them."""
    if file is not None:
        what = {"command": " ".join(["python", *sys.argv]), "tables": tables}
        file.write_text(json.dumps(what, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
