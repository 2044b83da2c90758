"""Trajectories that share shocks: what is called, whether the order is right, coverage, and how often dependence is found.

    python studies/dependence.py table --seeds 0:100 --jobs 2
    python studies/dependence.py sizes --seeds 0:100 --jobs 2
    python studies/dependence.py table --seeds 0:30 --only plates
    python studies/dependence.py level --seeds 0:400
    python studies/dependence.py sums --seeds 0:100
    python studies/dependence.py panels --folder FOLDER
    python studies/dependence.py table sizes level sums --seeds 0:100 --jobs 16 --json FILE

`table`: n = 30, T = 16, d = 3, Δt = .1, default settings. At rest (stationary, reversible unless it says otherwise) there is no
direction: every call is false. `sizes`: the same with other n and T, missing values, and measurement noise. `level`: how often
the test of independence rejects at 5 % where trajectories are independent, on residuals along the true order. `sums`: coverage of
95 % forecast intervals of the mean over trajectories. `panels`: the dependence of real panels (long csv files
`subject,time,<variables>`) along their true order. `--set name=value` passes options to ReTrace.

`true order likeliest`: the share of panels whose true order is the most likely one under the parameters that made them (order_limit.py):
of the others the order cannot be found but by luck. `right of these`: the share of them whose order the fit found.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from direction import record, shown
from joblib import Parallel, delayed
from numpy.typing import NDArray
from order_limit import DT, likeliest
from real_panels import PANELS, read_panel
from scipy.linalg import expm, solve_continuous_lyapunov

import retrace_sde as rt
from retrace_sde.evidence.dependence import cleared, dependence_of
from retrace_sde.fit.intervals import critical
from retrace_sde.process.simulate import random_irreversible_sde

Floats = NDArray[np.float64]


class Made(NamedTuple):
    """A panel in time order, and A and H of its individual part where it has them."""

    X: Floats
    A: Floats | None = None
    H: Floats | None = None
    directed: bool = False


def linear(
    seed: int,
    *,
    n: int = 30,
    T: int = 16,
    d: int = 3,
    common: float = 0.0,
    plates: float = 0.0,
    factor: str = "",
    copies: int = 1,
    levels: float = 0.0,
    reversible: bool = True,
    transient: bool = False,
    missing: float = 0.0,
    noise: float = 0.0,
) -> Made:
    """Exact steps of a random SDE; `common` of the noise, of the start too, is the same for all trajectories.

    Reversible: `A = −½ H Σ⁻¹` with the stationary covariance Σ of the random SDE. Transient: from 1.5 standard deviations off, with
    a spread of .3 of them. Plates, levels and measurement noise are in standard deviations of the variables.
    """
    sde, rng = random_irreversible_sde(d, random_state=seed), np.random.default_rng(100_000 + seed)
    A, H = sde.drift, sde.diffusion
    if reversible:
        A = -0.5 * H @ np.linalg.inv(sde.stationary().covariance)
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    deviation, root = np.sqrt(np.diag(S)), np.linalg.cholesky(S)
    step = np.linalg.cholesky(S - F @ S @ F.T)
    m = n // copies

    def drawn(lower: Floats) -> Floats:
        own, shared = rng.standard_normal((m, d)), rng.standard_normal((1, d))
        return (np.sqrt(1 - common) * own + np.sqrt(common) * shared) @ lower.T

    x = drawn(root)
    if transient:
        x = 0.3 * x + 1.5 * deviation
    found = [x]
    for _ in range(T - 1):
        x = x @ F.T + drawn(step)
        found.append(x)
    X = np.stack(found, axis=1)
    X = X + levels * deviation * rng.standard_normal((m, 1, d))
    X = X + plates * deviation * rng.standard_normal((1, T, d))
    X = X + deviation * _factor(factor, T, d, rng)
    if copies > 1:
        X = np.repeat(X, copies, axis=0)
        X = X + 0.02 * deviation * rng.standard_normal(X.shape)
    X = X + noise * deviation * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < missing] = np.nan
    return Made(X, A, (1 - common) * H, transient)


def _factor(kind: str, T: int, d: int, rng: np.random.Generator) -> Floats:
    """What is added to all trajectories: an Ornstein–Uhlenbeck factor of one standard deviation, or a random walk."""
    e = rng.standard_normal((T, d))
    if kind == "walk":
        return 0.3 * np.cumsum(e, axis=0)
    if kind != "ou":
        return np.zeros((T, d))
    path = [e[0]]
    for t in range(1, T):
        path.append(0.9 * path[-1] + np.sqrt(1 - 0.9**2) * e[t])
    return np.stack(path)


def growth(seed: int, *, n: int = 30, T: int = 16, plates: float = 0.0, start: float = 0.3) -> Made:
    """Logistic growth of three variables from small values; plates in units of .05, the noise of a step is .01."""
    rng = np.random.default_rng(300_000 + seed)
    rates = rng.uniform(0.5, 1.0, 3)
    x = 0.05 * np.exp(start * rng.standard_normal((n, 3)))
    found = [x]
    for _ in range(T - 1):
        for _ in range(10):
            x = x + 0.05 * rates * x * (1 - x) + 0.01 * np.sqrt(0.1) * rng.standard_normal(x.shape)
            x = np.maximum(x, 0.001)
        found.append(x)
    X = np.stack(found, axis=1)
    return Made(X + 0.05 * plates * rng.standard_normal((1, T, 3)), directed=True)


Cases = dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]

TABLE: Cases = {
    "rest, independent": (linear, {}, {}),
    "rest, .1 common": (linear, {"common": 0.1}, {}),
    "rest, .3 common": (linear, {"common": 0.3}, {}),
    "rest, .6 common": (linear, {"common": 0.6}, {}),
    "irreversible rest, .6 common": (linear, {"common": 0.6, "reversible": False}, {}),
    "rest, plates .3": (linear, {"plates": 0.3}, {}),
    "rest, plates 1": (linear, {"plates": 1.0}, {}),
    "rest, common OU factor": (linear, {"factor": "ou"}, {}),
    "rest, common random walk": (linear, {"factor": "walk"}, {}),
    "rest, each three times": (linear, {"copies": 3}, {}),
    "rest, levels 2 and .4 common": (linear, {"levels": 2.0, "common": 0.4}, {}),
    "transient, independent": (linear, {"transient": True}, {}),
    "transient, .5 common": (linear, {"transient": True, "common": 0.5}, {}),
    "transient, plates .3": (linear, {"transient": True, "plates": 0.3}, {}),
    "transient, plates 1": (linear, {"transient": True, "plates": 1.0}, {}),
    "growth": (growth, {}, {}),
    "growth, plates 1": (growth, {"plates": 1.0}, {}),
}

SIZES: Cases = {
    f"{name}, {size}": (linear, {**made, **changed}, options)
    for name, made in (
        ("rest, independent", {}),
        ("rest, .5 common", {"common": 0.5}),
        ("rest, plates 1", {"plates": 1.0}),
        ("transient, .5 common", {"transient": True, "common": 0.5}),
    )
    for size, changed, options in (
        ("n=8", {"n": 8}, {}),
        ("n=200", {"n": 200}, {}),
        ("T=8", {"T": 8}, {}),
        ("T=60", {"T": 60}, {}),
        ("d=1", {"d": 1}, {}),
        ("missing .15", {"missing": 0.15}, {}),
        ("noise .2", {"noise": 0.2}, {"observation_noise": "diagonal"}),
    )
}

LIMIT = ("likeliest", "ordered of these")
STUDIES = {"table": TABLE, "sizes": SIZES}


def judge(make: Any, made_of: dict[str, Any], seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """One fit of a shuffled panel."""
    made = make(seed, **made_of)
    X, truth = rt.simulate.shuffle(made.X, random_state=500_000 + seed)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(dt=DT, random_state=seed, **options).fit(X)
    seconds = time.perf_counter() - begin
    forwards = np.array_equal(model.order_, truth)
    backwards = np.array_equal(model.order_, truth[::-1])
    called = model.direction_.identified
    ahead = rt.metrics.kendall_tau(truth, model.order_) > 0
    dependence = model.result_.dependence
    likely = float("nan")
    if make is linear and not {"factor", "levels"} & set(made_of):
        orders = [np.arange(len(truth)), np.argsort(truth)[model.order_]]
        best = likeliest(made.X, seed, [*orders, orders[1][::-1]], made_of)
        likely = float(np.array_equal(best, orders[0]) or np.array_equal(best[::-1], orders[0]))
    return {
        "seed": seed,
        "right": called and ahead,
        "wrong": called and (not ahead or not made.directed),
        "ordered": forwards or backwards,
        "likeliest": likely,
        "ordered of these": float(forwards or backwards) if likely else float("nan"),
        "found": dependence.kind not in ("independent", "not tested"),
        "share": dependence.common_share,
        "seconds": seconds,
        **_coverage(model, made, forwards, backwards),
    }


def _coverage(model: rt.ReTrace, made: Made, forwards: bool, backwards: bool) -> dict[str, float]:
    """Shares of the entries of A and H inside their 95 % intervals, along the true direction; NaN where it was not returned."""
    parameters: Any = None
    if forwards:
        parameters = model.drift_, model.diffusion_, model.standard_errors_
    elif backwards and model.alternative_ is not None:
        twin = model.alternative_
        parameters = twin.drift, twin.diffusion, twin.standard_errors
    if parameters is None or made.A is None or made.H is None:
        return {"A": np.nan, "H": np.nan}
    A, H, errors = parameters
    half, lower = critical(len(made.X)), np.tril_indices(len(H))
    return {
        "A": float(np.mean(np.abs(A - made.A) <= half * errors.drift)),
        "H": float(np.mean((np.abs(H - made.H) <= half * errors.diffusion)[lower])),
    }


def summary(name: str, rows: list[dict[str, Any]], *, directed: bool) -> list[Any]:
    """A row of the table: shares of the panels, of the entries that are covered, and of the noise that is common."""

    def share(key: str) -> float | None:
        values = np.array([row[key] for row in rows], dtype=float)
        return None if np.isnan(values).all() else float(np.nanmean(values))

    called = [share("right"), share("wrong")] if directed else [None, share("wrong")]
    return [name, len(rows), *called, *map(share, ("ordered", *LIMIT, "A", "H", "found", "share"))]


def study(
    cases: Cases, seeds: range, only: str, jobs: int, given: dict[str, Any]
) -> dict[str, Any]:
    chosen = {name: case for name, case in cases.items() if only in name}
    work = (
        delayed(judge)(make, made, seed, {**options, **given})
        for make, made, options in chosen.values()
        for seed in seeds
    )
    found = Parallel(n_jobs=jobs)(work)
    table, details = [], []
    for k, (name, (make, made, _)) in enumerate(chosen.items()):
        rows = found[k * len(seeds) : (k + 1) * len(seeds)]
        table.append(summary(name, rows, directed=make is growth or "transient" in made))
        wrong = [row["seed"] for row in rows if row["wrong"]]
        seconds = np.median([row["seconds"] for row in rows])
        details.append(f"{name}: {seconds:.1f} s; called wrongly: {wrong}")
    columns = [
        "panel",
        "panels",
        "called rightly",
        "wrongly",
        "order right",
        "true order likeliest",
        "right of these",
        "A covered",
        "H covered",
    ]
    columns += ["dependence found", "common share"]
    return shown(columns, table, details)


def residuals(X: Floats) -> Floats:
    """Whitened residuals of the regression of steps on states, along the order given."""
    n, T, d = X.shape
    z = np.concatenate([X[:, :-1], np.ones((n, T - 1, 1))], axis=2).reshape(-1, d + 1)
    y = np.diff(X, axis=1).reshape(-1, d)
    e = y - z @ np.linalg.lstsq(z, y, rcond=None)[0]
    lower = np.linalg.cholesky(e.T @ e / (len(e) - d - 1))
    return np.linalg.solve(lower, e.T).T.reshape(n, T - 1, d)


def level(seeds: range, jobs: int) -> dict[str, Any]:
    table = []
    for n in (8, 30, 200):
        for T in (8, 16, 60):
            for d in (1, 3, 6):
                work = (delayed(_p_values)(seed, n, T, d) for seed in seeds)
                p = np.array(Parallel(n_jobs=jobs)(work))
                shares = np.mean([p[:, 0] <= 0.05, p[:, 0] <= 0.01, p[:, 1] <= 0.05], axis=1)
                table.append([f"{n}, {T}, {d}", len(seeds), *(f"{each:.3f}" for each in shares)])
    columns = ["n, T, d", "panels", "CD p ≤ .05", "CD p ≤ .01", "LM p ≤ .05"]
    return shown(columns, table, [])


def _p_values(seed: int, n: int, T: int, d: int) -> tuple[float, float]:
    X = linear(seed, n=n, T=T, d=d, reversible=False).X
    found = dependence_of(cleared(residuals(X), X), n)
    assert found.p_value is not None
    assert found.correlation_p_value is not None
    return found.p_value, found.correlation_p_value


def sums(seeds: range, jobs: int) -> dict[str, Any]:
    """Coverage one to five steps ahead, in the known order."""
    table = []
    for name, made in (
        ("rest, .5 common", {"common": 0.5}),
        ("rest, .2 common, n=200", {"common": 0.2, "n": 200}),
        ("transient, .5 common", {"common": 0.5, "transient": True}),
        ("rest, plates 1", {"plates": 1.0}),
    ):
        rows = np.array(Parallel(n_jobs=jobs)(delayed(_held)(seed, made) for seed in seeds))
        table.append([name, len(seeds), *(f"{each:.3f}" for each in rows.mean(axis=0))])
    columns = ["panel", "panels", "mean over trajectories", "single trajectories"]
    return shown(columns, table, [])


def _held(seed: int, made: dict[str, Any]) -> tuple[float, float]:
    X = linear(seed, T=25, **made).X
    known = rt.Knowledge(timestamps=DT * np.arange(20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(dt=DT, random_state=0).fit(X[:, :20], knowledge=known)
        ahead = model.forecast(X[:, :20], 5)
    truth = X[:, 20:]
    single = float(np.mean((ahead.low <= truth) & (truth <= ahead.high)))
    if ahead.average is None:
        return np.nan, single
    _, low, high = ahead.average
    mean = truth.mean(axis=0)
    return float(np.mean((low <= mean) & (mean <= high))), single


def real(folder: Path, only: str) -> dict[str, Any]:
    table = []
    for name, found, n in _of_real(folder, only):
        p = "" if found.p_value is None else f"{found.p_value:.3f}"
        table.append(
            [name, str(found.kind), p, found.common_share, f"{found.effective_n:.1f} of {n}"]
        )
    columns = ["real panel", "dependence", "p", "common share", "effective n"]
    return shown(columns, table, [])


def _of_real(folder: Path, only: str) -> Iterator[tuple[str, Any, int]]:
    for name, variables in PANELS.items():
        if only not in name or not (folder / f"{name}.csv").exists():
            continue
        X = read_panel(folder / f"{name}.csv", variables)
        known = rt.Knowledge(timestamps=np.arange(X.shape[1], dtype=float))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = rt.ReTrace(random_state=0, subjects="alike").fit(X, knowledge=known)
        yield name, model.result_.dependence, len(X)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=[*STUDIES, "level", "sums", "panels"], nargs="+")
    parser.add_argument("--seeds", default="0:30")
    parser.add_argument("--only", default="", help="cases that contain this")
    parser.add_argument("--folder", type=Path, help="the folder of real panels")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path, help="write the tables there, too, as they are made")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    words = {"True": True, "False": False}
    given = {k: words.get(v, v) for k, _, v in (each.partition("=") for each in asked.set)}
    found = {}
    for name in asked.study:
        if name == "panels":
            found[name] = real(asked.folder, asked.only)
        elif name == "level":
            found[name] = level(seeds, asked.jobs)
        elif name == "sums":
            found[name] = sums(seeds, asked.jobs)
        else:
            found[name] = study(STUDIES[name], seeds, asked.only, asked.jobs, given)
        record(asked.json, found)


if __name__ == "__main__":
    main()
