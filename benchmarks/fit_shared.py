"""Time and memory of a whole fit relative to the closed form with the order known.

Read them as ratios within one run: machines differ and are shared. `track_ratio` is the target figure of the
package, at most 4 at the paper's size. By hand, interleaved, median of five, on one thread:

    python -m benchmarks.fit_shared [--process stable|relaxing|displaced] [--drift affine] [--profile 60]
    python -m benchmarks.fit_shared --table --clock cpu

Processes: "stable", a random irreversible SDE from its stationary law; "relaxing", drift `M − (max Re λ + .5) I` with M Gaussian / √d,
from N(0, .01); "displaced", the same from three units away. A benchmark on one process flatters. With `--clock cpu` seconds are those of
the processor: for busy machines, one thread only.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
import tracemalloc

import numpy as np
from threadpoolctl import threadpool_limits

import retrace_sde as rt

DT = 0.01
PROCESSES = "stable", "relaxing", "displaced"


def closed_form(X, order, dt=DT, size=8):
    """The paper's equations with the order known, at their best: second moments of a few trajectories at a time, in cache.

    As a user of numpy would write them, with whole copies in time order, they take six times as long where memory is slow.
    """
    n, T, d = X.shape
    every, across = np.zeros((d, d)), np.zeros((d, d))
    for begin in range(0, n, size):
        x = X[begin : begin + size][:, order]
        rows = x.reshape(-1, d)
        every += rows.T @ rows
        across += rows[1:].T @ rows[:-1] - x[1:, 0].T @ x[:-1, -1]
    first, last = X[:, order[0]], X[:, order[-1]]
    before, after = every - last.T @ last, every - first.T @ first
    A = np.linalg.solve(before, across.T - before).T / dt
    moved = before + after - across - across.T
    return A, (moved - A @ before @ A.T * dt**2) / (n * (T - 1) * dt)


class SharedOrder:
    """d, n, T: small, and the size of the paper's Table 1."""

    params = ([(10, 200, 60), (50, 2000, 250)], ["stable", "paper"])
    param_names = ("d, n, T", "setting")
    timeout = 600

    def setup(self, size, setting):
        d, n, T = size
        sde = rt.simulate.random_irreversible_sde(d, setting=setting, random_state=0)
        X = sde.simulate(n, T, DT, random_state=1)
        self.X, self.truth = rt.simulate.shuffle(X, random_state=2)
        rt.ReTrace(dt=DT, drift="linear").fit(self.X[: min(n, 20)])  # compile

    def time_closed_form_known_order(self, size, setting):
        closed_form(self.X, self.truth)

    def time_fit_likelihood(self, size, setting):
        rt.ReTrace(dt=DT, drift="linear").fit(self.X)

    def time_algorithm1_one_round(self, size, setting):
        rt.ReTrace(dt=DT, order="score", max_iter=1, drift="linear").fit(self.X)

    def peakmem_closed_form_known_order(self, size, setting):
        closed_form(self.X, self.truth)

    def peakmem_fit_likelihood(self, size, setting):
        rt.ReTrace(dt=DT, drift="linear").fit(self.X)

    def track_ratio(self, size, setting):
        """Seconds of the fit over seconds of the closed form: medians of five, taken in turn."""
        times = np.array([self._pair() for _ in range(5)])
        fit, closed = np.median(times, axis=0)
        return fit / closed

    def _pair(self):
        begin = time.perf_counter()
        rt.ReTrace(dt=DT, drift="linear").fit(self.X)
        middle = time.perf_counter()
        closed_form(self.X, self.truth)
        return middle - begin, time.perf_counter() - middle

    track_ratio.unit = "fit / closed form"  # type: ignore[attr-defined]


def _extra(function):
    """The most memory that a call holds at once beyond what there was, in bytes; the process's own peak would hide it."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def panel(asked):
    """A panel of the process asked for, in time order."""
    if asked.process == "stable":
        sde = rt.simulate.random_irreversible_sde(asked.d, setting="stable", random_state=0)
        return sde.simulate(asked.n, asked.T, DT, random_state=1)
    rng = np.random.default_rng(0)
    M = rng.standard_normal((asked.d, asked.d)) / np.sqrt(asked.d)
    A = M - (np.linalg.eigvals(M).real.max() + 0.5) * np.eye(asked.d)
    x0 = 0.1 * rng.standard_normal((asked.n, asked.d)) + 3.0 * (asked.process == "displaced")
    return rt.LinearSDE(A, np.eye(asked.d)).simulate(asked.n, asked.T, DT, x0=x0, random_state=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ("--n", 2000), ("--T", 250), ("--d", 50), ("--repeats", 5), ("--profile", 0)
    for name, value in sizes:
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--drift", default="affine")
    parser.add_argument("--process", default="stable", choices=PROCESSES)
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument(
        "--table", action="store_true", help="all processes, with n = 2000 and 1000"
    )
    asked = parser.parse_args()
    if not asked.table:
        one_size(asked)
        return
    print("| n | process | fit, s | closed form, s | ratio | memory / data | order right |")
    print("|---|---|---|---|---|---|---|")
    for n in (2000, 1000):
        for process in PROCESSES:
            asked.n, asked.process = n, process
            times, extra, right = measured(asked)
            fit, closed = times["fit, one thread"], times["closed form, one thread"]
            print(
                f"| {n} | {process} | {fit:.3f} | {closed:.3f} | {fit / closed:.1f} | {extra:.2f} | {right:.3f} |"
            )


def one_size(asked):
    """Print what is measured of one process."""
    times, extra, right = measured(asked)
    closed = times["closed form, one thread"]
    for name, seconds in times.items():
        print(f"{name}: {seconds:.3f} s, ratio {seconds / closed:.2f}")
    print(f"extra memory at most {extra:.2f} X, order right {right:.3f}")


def measured(asked):
    """Median seconds of the ways to fit, in turn; memory beyond the data, in units of it; the share of slices in their places."""
    X, truth = rt.simulate.shuffle(panel(asked), random_state=2)
    clock = time.perf_counter if asked.clock == "wall" else time.process_time

    def fit(x, jobs=1):
        return rt.ReTrace(dt=DT, drift=asked.drift, n_jobs=jobs, random_state=0).fit(x)

    ways = [
        ("fit, one thread", lambda: fit(X)),
        ("fit, all cores", lambda: fit(X, None)),
        ("closed form, one thread", lambda: closed_form(X, truth)),
    ]
    if asked.clock == "cpu":
        del ways[1]
    times = np.empty((asked.repeats, len(ways)))
    with threadpool_limits(1):
        fit(X[: min(asked.n, 220)])  # compile
        model = fit(X)
        extra = _extra(lambda: fit(X)) / X.nbytes
        for k in range(asked.repeats):
            for j, (_, way) in enumerate(ways):
                begin = clock()
                way()
                times[k, j] = clock() - begin
        if asked.profile:
            profile = cProfile.Profile()
            profile.runcall(fit, X)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(asked.profile)
    names = [name for name, _ in ways]
    middle = dict(zip(names, np.median(times, axis=0), strict=True))
    return middle, extra, (model.order_ == truth).mean()


if __name__ == "__main__":
    main()
