"""Time and memory of a whole fit beside the closed form with the order known.

Read them as ratios within one run: machines differ and are shared. `track_ratio` is the number that the
package promises, at most 4 at the paper's size.
"""

from __future__ import annotations

import time

import numpy as np

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
