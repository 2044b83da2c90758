"""Level of the direction test in the six main settings: panels at rest, which have no direction, so that every call is false.

    python studies/level.py --seeds 20500:20700 --jobs 2
    python studies/level.py --show

Slices are shuffled first, orders are searched, default settings. Counts, their Monte-Carlo errors and Wilson's 95 % intervals are kept in
docs/results/level.json; a run whose first seed is the last one's end adds to them, any other starts again. `--show` prints the
table of docs/direction.md from the file. `--only` runs some of the settings (separated by semicolons).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import binomtest

import retrace_sde as rt

Floats = NDArray[np.float64]
RECORD = Path(__file__).parents[1] / "docs" / "results" / "level.json"
DT = 0.1


def rest(
    rng: np.random.Generator, n: int, T: int, d: int, *, turning: bool = False, common: float = 0.0
) -> Floats:
    """Stationary paths by exact steps, reversible unless `turning`; `common` is the share of the noise that all have."""
    if turning:
        sde = rt.simulate.random_irreversible_sde(d, random_state=rng)
        A, H = sde.drift, sde.diffusion
    else:
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        A, H = -(Q * rng.uniform(0.5, 3, d)) @ Q.T, np.eye(d)
    F, S = expm(A * DT), solve_continuous_lyapunov(A, -H)
    first, step = np.linalg.cholesky(S), np.linalg.cholesky(S - F @ S @ F.T)

    def noise(L: Floats) -> Floats:
        own, shared = rng.standard_normal((n, d)), rng.standard_normal((1, d))
        return (np.sqrt(1 - common) * own + np.sqrt(common) * shared) @ L.T

    found = [noise(first)]
    for _ in range(T - 1):
        found.append(found[-1] @ F.T + noise(step))
    return np.stack(found, axis=1)


def missing(rng: np.random.Generator) -> Floats:
    X = rest(rng, 20, 10, 2, turning=True)
    X[rng.random(X.shape) < 0.15] = np.nan
    return X


def noisy(rng: np.random.Generator) -> Floats:
    X = rest(rng, 20, 10, 2, turning=True)
    return X + 0.3 * X.std(axis=(0, 1)) * rng.standard_normal(X.shape)


SETTINGS: dict[str, tuple[Callable[[np.random.Generator], Floats], dict[str, Any]]] = {
    "reversible": (lambda rng: rest(rng, 20, 12, 2), {}),
    "irreversible": (lambda rng: rest(rng, 20, 12, 2, turning=True), {}),
    "15 % of values missing": (missing, {}),
    "measurement noise of .3 deviations": (noisy, {"observation_noise": "estimate"}),
    "an order for each trajectory": (
        lambda rng: rest(rng, 20, 8, 4, turning=True),
        {"permutation": "independent"},
    ),
    "half of the noise common to all": (lambda rng: rest(rng, 20, 12, 2, common=0.5), {}),
}


def called(name: str, seed: int) -> tuple[bool, float]:
    """Whether a direction was called, and the seconds."""
    make, options = SETTINGS[name]
    X = make(np.random.default_rng([seed, list(SETTINGS).index(name)]))
    permutation = options.get("permutation", "shared")
    lost, _ = rt.simulate.shuffle(X, permutation=permutation, random_state=seed)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = rt.ReTrace(dt=DT, n_jobs=1, random_state=seed, **options).fit(lost)
    return bool(model.direction_.identified), time.perf_counter() - begin


def row(before: dict[str, Any] | None, seeds: range, found: list[bool]) -> dict[str, Any]:
    """Counts and Wilson's interval, added to those of the seeds just before."""
    false = [seed for seed, each in zip(seeds, found, strict=True) if each]
    begin = seeds.start
    if before is not None and before["seeds"][1] == seeds.start:
        begin, false = before["seeds"][0], before["called"] + false
    panels = seeds.stop - begin
    interval = binomtest(len(false), panels).proportion_ci(method="wilson")
    return {
        "seeds": [begin, seeds.stop],
        "panels": panels,
        "called": false,
        "rate": round(len(false) / panels, 4),
        "interval": [round(float(each), 4) for each in interval],
    }


def show(record: dict[str, dict[str, Any]]) -> None:
    for name in (each for each in SETTINGS if each in record):
        each = record[name]
        low, high = each["interval"]
        rate, n = each["rate"], each["panels"]
        doubt = np.sqrt(rate * (1 - rate) / n)
        print(
            f"| {name} | {n} | {len(each['called'])} | {rate:.3f} ± {doubt:.3f} | {low:.3f} to {high:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    record = json.loads(asked.record.read_text("utf-8")) if asked.record.exists() else {}
    if asked.show:
        show(record)
        return
    seeds = range(*map(int, asked.seeds.split(":")))
    for name in SETTINGS:
        if asked.only and name not in asked.only.split(";"):
            continue
        found = Parallel(asked.jobs)(delayed(called)(name, seed) for seed in seeds)
        record[name] = row(record.get(name), seeds, [each for each, _ in found])
        print(f"{name}: {np.median([seconds for _, seconds in found]):.2f} s a fit", flush=True)
        asked.record.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    show(record)


if __name__ == "__main__":
    main()
