"""The base fit on a GPU: closed form, gather, second moments and the whole fit, in milliseconds, compared with numpy.

    python -m benchmarks.gpu [--n 2000 --T 250 --d 50] [--profile]

Best of five, synchronised, with the data on the device. Without a GPU torch runs on the CPU.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import numpy as np

import retrace_sde as rt
from benchmarks.fit_shared import DT
from retrace_sde.fit.pairs import Pairs
from retrace_sde.lost_time.table import lines
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine


def backends():
    """Name, how an array gets there, and how to wait for it."""
    try:
        import torch
    except ImportError:
        pass
    else:
        cuda = torch.cuda.is_available()
        wait = torch.cuda.synchronize if cuda else (lambda: None)
        device = "cuda" if cuda else "cpu"
        yield (
            f"torch {device}",
            lambda x: torch.as_tensor(np.ascontiguousarray(x), device=device),
            wait,
        )
    try:
        import cupy
    except ImportError:
        return
    yield "cupy", cupy.asarray, cupy.cuda.Stream.null.synchronize


def closed_form(X, order):
    """The paper's equations, the order known, with the array's own matrix products."""
    x = X[:, order]
    rows, moved = x[:, :-1].reshape(-1, X.shape[2]), (x[:, 1:] - x[:, :-1]).reshape(-1, X.shape[2])
    gram, cross = rows.T @ rows, rows.T @ moved
    A = _solve(gram, cross)
    rest = moved - rows @ A
    return A, rest.T @ rest


def _solve(gram, cross):
    import array_api_compat

    return array_api_compat.array_namespace(gram).linalg.solve(gram, cross)


def best(function, wait, repeats=5):
    """Milliseconds of the fastest run."""
    times = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        function()
        wait()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("n", 2000), ("T", 250), ("d", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    sde = rt.simulate.random_irreversible_sde(asked.d, setting="stable", random_state=0)
    X = sde.simulate(asked.n, asked.T, DT, random_state=1)
    X, truth = rt.simulate.shuffle(X, random_state=2)
    settings = {"dt": DT, "random_state": 0}
    rt.ReTrace(**settings).fit(X[:300])
    expected = rt.ReTrace(**settings).fit(X)
    table: dict[str, list[str | float]] = {}
    for name, there, wait in backends():
        Y = there(X)
        order = there(truth)
        parts = {
            "closed form": lambda Y=Y, order=order: closed_form(Y, order),
            "gather": lambda Y=Y, order=order: Y[:, order],
            "second moments": lambda Y=Y: Pairs.of(Data(Y), truth, DT, Affine()).moments(),
            "whole fit": lambda Y=Y: rt.ReTrace(**settings).fit(Y),
        }
        found = parts["whole fit"]()
        same = np.array_equal(found.order_, expected.order_)
        apart = max(
            np.abs(a - b).max() / np.abs(b).max()
            for a, b in ((found.drift_, expected.drift_), (found.diffusion_, expected.diffusion_))
        )
        for part, function in parts.items():
            table.setdefault(part, [part]).append(best(function, wait))
        print(
            f"{name:12s} order {'as' if same else 'NOT as'} numpy's, parameters apart {apart:.1e}"
        )
        if asked.profile:
            profile = cProfile.Profile()
            profile.runcall(parts["whole fit"])
            pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
    columns = ["milliseconds", *(name for name, *_ in backends())]
    print(*lines({"columns": columns, "rows": list(table.values())}), sep="\n")


if __name__ == "__main__":
    main()
