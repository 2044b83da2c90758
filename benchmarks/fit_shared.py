"""Time and memory of a whole fit beside the closed form with the order known.

Read them as ratios within one run: machines differ and are shared. `track_ratio` is the number that the
package promises, at most 4 at the paper's size. By hand, interleaved, best of five, on one thread:

    python -m benchmarks.fit_shared [--drift affine] [--profile 60]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time

import numpy as np
from threadpoolctl import threadpool_limits

import retrace_sde as rt

DT = 0.01


def closed_form(X, order, dt=DT):
    """The paper's equations with the order known, as a user of numpy would write them."""
    d = X.shape[2]
    ordered = X[:, order]
    x, dx = ordered[:, :-1].reshape(-1, d), np.diff(ordered, axis=1).reshape(-1, d)
    A = np.linalg.solve(x.T @ x, x.T @ dx).T / dt
    residual = dx - x @ A.T * dt
    return A, residual.T @ residual / (len(x) * dt)


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

    track_ratio.unit = "fit / closed form"


def _peak():
    """The most memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("n", 2000), ("T", 250), ("d", 50), ("repeats", 5), ("profile", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--drift", default="affine")
    asked = parser.parse_args()
    sde = rt.simulate.random_irreversible_sde(asked.d, setting="stable", random_state=0)
    X = sde.simulate(asked.n, asked.T, DT, random_state=1)
    X, truth = rt.simulate.shuffle(X, random_state=2)

    def fit(x):
        return rt.ReTrace(dt=DT, drift=asked.drift, n_jobs=1, random_state=0).fit(x)

    times = []
    with threadpool_limits(1):
        fit(X[: min(asked.n, 220)])  # compile
        before = _peak()
        model = fit(X)
        extra = (_peak() - before) / X.nbytes
        for _ in range(asked.repeats):
            begin = time.perf_counter()
            fit(X)
            middle = time.perf_counter()
            closed_form(X, truth)
            times.append((middle - begin, time.perf_counter() - middle))
        best = np.min(times, axis=0)
        right = (model.order_ == truth).mean()
        print(f"fit {best[0]:.3f} s, closed form {best[1]:.3f} s, ratio {best[0] / best[1]:.2f}")
        print(f"extra memory at most {extra:.2f} X, order right {right:.3f}")
        if asked.profile:
            profile = cProfile.Profile()
            profile.runcall(fit, X)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(asked.profile)


if __name__ == "__main__":
    main()
