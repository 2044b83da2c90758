"""Level of the direction test in the six main settings: panels at rest, which have no direction, so that every call is false.

    python studies/level.py --seeds 20500:20700 --jobs 2

Slices are shuffled first, orders are searched, default settings. Printed: rates, their Monte-Carlo errors and Wilson's 95 % intervals.
`--only` runs some of the settings (separated by semicolons).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.linalg import expm, solve_continuous_lyapunov
from scipy.stats import binomtest

import retrace_sde as rt
from retrace_sde.lost_time.table import lines

Floats = NDArray[np.float64]
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


def row(name: str, seeds: range, jobs: int) -> list[str | int]:
    """Counts, their Monte-Carlo error and Wilson's interval."""
    found = Parallel(jobs)(delayed(called)(name, seed) for seed in seeds)
    false = [seed for seed, (each, _) in zip(seeds, found, strict=True) if each]
    seconds = np.median([seconds for _, seconds in found])
    print(f"{name}: {seconds:.2f} s a fit; called: {false}", flush=True)
    rate, n = len(false) / len(seeds), len(seeds)
    low, high = binomtest(len(false), n).proportion_ci(method="wilson")
    doubt = np.sqrt(rate * (1 - rate) / n)
    return [name, n, len(false), f"{rate:.3f} ± {doubt:.3f}", f"{low:.3f} to {high:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    seeds = range(*map(int, asked.seeds.split(":")))
    names = [each for each in SETTINGS if not asked.only or each in asked.only.split(";")]
    columns = ["at rest: no direction", "panels", "called", "rate", "95 % interval"]
    rows = [row(name, seeds, asked.jobs) for name in names]
    print(*lines({"columns": columns, "rows": rows}), sep="\n")


if __name__ == "__main__":
    main()
