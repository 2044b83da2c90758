"""Power and false alarms of the residual checks under misspecification.

    python studies/residuals.py [--seeds 0:30] [--n 60 --T 20 --d 3] [--jobs 1] [--subjects alike]

Each panel is a random stable SDE (Δt = .1, started from N(0, I)) with one thing added, its order lost: measurement noise of half a
step's standard deviation, memory (steps correlated .5 with the last), random intercepts (sd 1), Student's t noise with
three degrees of freedom, one trajectory with steps three times as large, one trajectory five units off. The fit is one SDE for all, or, with --subjects auto, includes random intercepts where they are
preferred (and are then no longer missing). Printed: in how many panels it was found (any verdict failed), named (it comes first), and how often each verdict failed.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter

import numpy as np
from joblib import Parallel, delayed

import retrace_sde as rt

DT = 0.1
KINDS = {
    "nothing": None,
    "noise": "measurement noise",
    "memory": "memory",
    "levels": "random intercepts",
    "heavy tails": "tails",
    "one loud subject": "subjects",
    "one shifted subject": "subjects",
}
"""What is added, and the verdict that should come first."""


def panel(kind: str, seed: int, n: int, T: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(d, setting="stable", random_state=rng)
    root = np.linalg.cholesky(sde.diffusion * DT)
    x = rng.standard_normal((n, d))
    levels = rng.standard_normal((n, d)) if kind == "levels" else np.zeros((n, d))
    path, last = [x], np.zeros((n, d))
    for _ in range(T - 1):
        noise = rng.standard_normal((n, d))
        if kind == "heavy tails":
            noise = rng.standard_t(3, size=(n, d)) / np.sqrt(3)
        if kind == "memory":
            last = 0.5 * last + np.sqrt(0.75) * noise
            noise = last
        step = noise @ root.T
        if kind == "one loud subject":
            step[n // 8] *= 3
        x = x + (x - levels) @ sde.drift.T * DT + step
        path.append(x)
    X = np.stack(path, axis=1)
    if kind == "noise":
        X += 0.5 * rng.standard_normal(X.shape) * np.sqrt(np.diag(sde.diffusion) * DT)
    if kind == "one shifted subject":
        X[n // 8] += 5
    return X


def names(kind: str, seed: int, size: tuple[int, int, int], subjects: str) -> list[str]:
    """What was said of one panel, the first first."""
    shuffled, _ = rt.simulate.shuffle(panel(kind, seed, *size), random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model = rt.ReTrace(dt=DT, subjects=subjects, n_jobs=1, random_state=0).fit(shuffled)
    return [str(each.cause or each.aspect) for each in model.residuals_.failed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:30")
    for name, value in (("n", 60), ("T", 20), ("d", 3), ("jobs", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--subjects", choices=["alike", "auto"], default="alike")
    options = parser.parse_args()
    seeds, size = range(*map(int, options.seeds.split(":"))), (options.n, options.T, options.d)
    print("| added | found | named first | verdicts that failed |\n|---|---|---|---|")
    for kind, wanted in KINDS.items():
        runs = Parallel(options.jobs)(
            delayed(names)(kind, seed, size, options.subjects) for seed in seeds
        )
        found, first = sum(map(bool, runs)), sum(said[:1] == [wanted] for said in runs)
        every = Counter(name for said in runs for name in said)
        shown = ", ".join(f"{name} {count}" for name, count in every.most_common())
        named = "–" if wanted is None else f"{first / len(seeds):.0%}"
        print(f"| {kind} | {found / len(seeds):.0%} | {named} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
