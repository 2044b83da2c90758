"""Time and peak memory of whole fits, for each path, as n, T and d grow; `benchmarks/growth.py` prints the same with slopes."""

from __future__ import annotations

import retrace_sde as rt

from .growth import problem


class Grown:
    """A small problem, and the same with twice the trajectories, slices or variables."""

    params: tuple[list[str], list[str]]
    param_names = ("path", "doubled")
    timeout = 600
    size = (100, 40, 5)

    def setup(self, path, doubled):
        n, T, d = self.size
        size = (n * (1 + (doubled == "n")), T * (1 + (doubled == "T")), d * (1 + (doubled == "d")))
        self.X, _, self.settings = problem(path, size)
        rt.ReTrace(**self.settings).fit(problem(path, (12, 10, d))[0])  # compiles

    def time_fit(self, path, doubled):
        rt.ReTrace(**self.settings).fit(self.X)

    def peakmem_fit(self, path, doubled):
        rt.ReTrace(**self.settings).fit(self.X)


class Shared(Grown):
    """One order for all trajectories."""

    params = (["shared"], ["nothing", "n", "T", "d"])
    size = (1000, 100, 20)


class Own(Grown):
    """Individual orders."""

    params = (["own"], ["nothing", "n", "T", "d"])
    size = (50, 30, 5)


class Hidden(Grown):
    """Noise, and values that are missing."""

    params = (["noise", "missing"], ["nothing", "n", "T", "d"])
    size = (60, 25, 3)
