"""The base fit on a GPU: closed form, gather, second moments and the whole fit, in milliseconds, compared with numpy.

    python -m benchmarks.gpu [--n 2000 --T 250 --d 50] [--profile] [--quick]

Best of five, synchronised, with the data on the device; each figure is printed as it is measured. `--quick`: the whole fit alone, and where
its milliseconds go. Without a GPU torch runs on the CPU.
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

PROFILED = 70
"""Functions listed by a profile."""


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


def profiled(function) -> None:
    """Where the milliseconds of a call go: the package's functions by the time spent within them."""
    profile = cProfile.Profile()
    profile.runcall(function)
    stats = pstats.Stats(profile)
    calls = sum(each[1] for each in stats.stats.values())  # type: ignore[attr-defined]
    say(f"{calls} calls, {1e3 * stats.total_tt:.0f} ms under the profiler")  # type: ignore[attr-defined]
    rows = [
        (1e3 * within, 1e3 * own, count, f"{path.split('retrace_sde/')[-1]}:{name}")
        for (path, _, name), (_, count, own, within, _) in stats.stats.items()  # type: ignore[attr-defined]
        if "retrace_sde/" in path
    ]
    for within, own, count, name in sorted(rows, reverse=True)[:PROFILED]:
        say(f"{within:8.1f} ms within, {own:7.1f} own, {count:6d} calls  {name}")


def say(*words) -> None:
    """Printed at once: whoever waits for a slow machine sees how far it is."""
    print(*words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("n", 2000), ("T", 250), ("d", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    sde = rt.simulate.random_irreversible_sde(asked.d, setting="stable", random_state=0)
    X = sde.simulate(asked.n, asked.T, DT, random_state=1)
    X, truth = rt.simulate.shuffle(X, random_state=2)
    settings = {"dt": DT, "random_state": 0}
    begin = time.perf_counter()
    rt.ReTrace(**settings).fit(X[:300])
    say(f"numpy, 300 trajectories, with compiling: {time.perf_counter() - begin:.1f} s")
    begin = time.perf_counter()
    expected = rt.ReTrace(**settings).fit(X)
    say(f"numpy, whole fit: {1e3 * (time.perf_counter() - begin):.0f} ms")
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
        begin = time.perf_counter()
        found = parts["whole fit"]()
        say(f"{name}: first fit {time.perf_counter() - begin:.2f} s")
        same = np.array_equal(found.order_, expected.order_)
        apart = max(
            np.abs(a - b).max() / np.abs(b).max()
            for a, b in ((found.drift_, expected.drift_), (found.diffusion_, expected.diffusion_))
        )
        say(f"{name}: order {'as' if same else 'NOT as'} numpy's, parameters apart {apart:.1e}")
        for part, function in parts.items():
            if part == "whole fit" or not asked.quick:
                table.setdefault(part, [part]).append(best(function, wait))
                say(f"{name}: {part} {table[part][-1]:.4g} ms")
        if asked.profile or asked.quick:
            profiled(parts["whole fit"])
    columns = ["milliseconds", *(name for name, *_ in backends())]
    say("\n".join(lines({"columns": columns, "rows": list(table.values())})))


if __name__ == "__main__":
    main()
