"""Seconds of the same fits by this checkout and by another, in turn on one core.

    python benchmarks/against.py OTHER_SRC [--here SRC] [--rounds 7] [--only PART]

OTHER_SRC is the `src` folder of another checkout. Two processes stay alive, one for each; both make every fit once (compiled and
warmed), then they take turns, so that a busy machine slows both. Ratios are medians over the rounds of seconds here by seconds there,
pair by pair: below 1 is faster here. Only the public interface is used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).parents[1] / "src"
CASES = ("shared", "own orders", "noise", "missing", "mcem")
"""One order for all, each its own, measurement noise, values missing, and averages over orders."""


def fits() -> dict[str, Callable[[], object]]:
    """Each case as a function of nothing, its panel made beforehand."""
    import retrace_sde as rt

    def panel(n: int, T: int, d: int, *, own: bool = False) -> np.ndarray:
        """Stable, from a start far out; by numpy alone, so that both have the same data."""
        rng = np.random.default_rng([n, T, d])
        A, dt = 0.4 * rng.standard_normal((d, d)) / np.sqrt(d) - np.eye(d), 0.1
        x = 3 + 0.3 * rng.standard_normal((n, d))
        path = [x]
        for _ in range(T - 1):
            x = x + x @ A.T * dt + 0.5 * np.sqrt(dt) * rng.standard_normal((n, d))
            path.append(x)
        place = np.argsort(rng.random((n if own else 1, T)), axis=1)
        place = np.broadcast_to(place, (n, T))[:, :, None]
        return np.take_along_axis(np.stack(path, axis=1), place, axis=1)

    def fit(X: np.ndarray, **settings: object) -> Callable[[], object]:
        return lambda: rt.ReTrace(dt=0.1, random_state=0, n_jobs=1, **settings).fit(X)

    noisy = panel(50, 30, 3)
    rng = np.random.default_rng(0)
    noisy = noisy + 0.1 * rng.standard_normal(noisy.shape)
    holes = np.where(rng.random(noisy.shape) < 0.1, np.nan, noisy)
    own = {"permutation": "independent"}
    made = (
        fit(panel(500, 100, 20)),
        fit(panel(100, 30, 5, own=True), estimator="mle", **own),
        fit(noisy, observation_noise="estimate"),
        fit(holes, observation_noise="estimate"),
        fit(panel(60, 15, 2, own=True), estimator="mcem", **own),
    )
    return dict(zip(CASES, made, strict=True))


def work() -> None:
    """A worker: reads the name of a case, makes its fit, answers with the seconds."""
    warnings.simplefilter("ignore")
    every = fits()
    for line in sys.stdin:
        begin = time.perf_counter()
        every[line.strip()]()
        print(time.perf_counter() - begin, flush=True)


class Worker:
    """A process that fits with the code of one `src` folder."""

    def __init__(self, source: Path) -> None:
        if not (source / "retrace_sde").is_dir():
            raise SystemExit(f"{source} holds no package retrace_sde: name the src of a checkout.")
        one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, **one, "PYTHONPATH": str(source.resolve())},
        )  # fmt: skip

    def seconds(self, case: str) -> float:
        """Of one fit."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker ended in {case!r}; its error stands above.")
        return float(answer)

    def end(self) -> None:
        """Let it go."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the src folder of the other checkout")
    parser.add_argument("--here", type=Path, default=HERE, help="this one's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    workers = Worker(options.other), Worker(options.here)
    print(f"{'case':<12} {'there, s':>9} {'here, s':>9} {'here/there':>11} {'range':>13}")
    for case in (name for name in CASES if options.only in name):
        for each in workers:
            each.seconds(case)
        pairs = []
        for turn in range(options.rounds):
            order = workers if turn % 2 == 0 else workers[::-1]
            taken = {each: each.seconds(case) for each in order}
            pairs.append((taken[workers[0]], taken[workers[1]]))
        there, here = (median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(b / a for a, b in pairs)
        spread = f"{ratios[0]:.2f} … {ratios[-1]:.2f}"
        print(
            f"{case:<12} {there:9.3f} {here:9.3f} {median(ratios):11.3f} {spread:>13}", flush=True
        )
    for each in workers:
        each.end()


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--worker"] else main()
