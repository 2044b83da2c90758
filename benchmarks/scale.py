"""Panels larger than memory: CPU seconds and peak memory of a fit to a lazy array, on local workers.

    python benchmarks/scale.py --n 250000 --T 60 --d 10 --workers 2
    python benchmarks/scale.py --n 250000 --T 60 --d 10 --workers 2 --kill       one worker is killed during the fit
    python benchmarks/scale.py --n 1000,10000,100000 --T 10 --d 2 --workers 0    growth in n, in threads
    python benchmarks/scale.py --n 1e6 --T 100 --d 25 --kind memmap --workers 0  a file of 20 GB, in threads
    python benchmarks/scale.py --n 1e6 --T 100 --d 25 --kind zarr --command      the same by `retrace fit --scheduler local`

Every chunk is simulated from its own seed on the worker, each time it is needed: nothing is stored. With `--kind file`, `memmap` or `zarr`
it is written first, and read from there; in `--folder` it is kept for the next time. Memory is the peak resident size, sampled every
fifth of a second: the sum over all processes, with their libraries and file pages; for the client minus its size before the fit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import dask.array as da
import numpy as np
import psutil

import retrace_sde as rt
from retrace_sde.lost_time.table import lines
from retrace_sde.panel import blocks

DT = 0.05


class Held:
    """Resident bytes of this process, and of it and all those it started, at most meanwhile."""

    def __init__(self) -> None:
        self.here = self.all = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def _watch(self):
        while not self.over.wait(0.2):
            mine, *others = map(resident, [ME, *ME.children(recursive=True)])
            self.here, self.all = max(self.here, mine), max(self.all, mine + sum(others))


ME = psutil.Process()


def resident(process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has ended
        return 0


def worked() -> float:
    """CPU seconds of this process and of all those that it started."""
    done = [each.cpu_times() for each in (ME, *ME.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in done)


class Passes:
    """Counts passes over the data, by standing between them and the engine."""

    def __enter__(self):
        self.count, self.walk = 0, blocks.walk
        blocks.walk = self._counted
        return self

    def __exit__(self, *_):
        blocks.walk = self.walk

    def _counted(self, *given):
        self.count += 1
        return self.walk(*given)


def chunk(T, d, order, block_info=None):
    """One chunk of trajectories, its slices shuffled as all are."""
    (begin, end), *_ = block_info[None]["array-location"]
    rng = np.random.default_rng([7, begin])
    x0 = 1.0 + 0.3 * rng.standard_normal((end - begin, d))
    return sde(d).simulate(end - begin, T, DT, x0=x0, random_state=rng)[:, order]


def sde(d):
    return rt.simulate.random_irreversible_sde(d, setting="stable", random_state=1)


def panel(n, T, d, rows):
    """A lazy array (n, T, d), and the order that puts it right."""
    order = np.random.default_rng(T).permutation(T)
    sizes = (rows,) * (n // rows) + ((n % rows,) if n % rows else ())
    X = da.map_blocks(
        chunk, T, d, order, chunks=(sizes, (T,), (d,)), dtype=float, meta=np.empty((0, 0, 0))
    )
    return X, np.argsort(order)


def stored(X, kind, folder):
    """The same written to a file, chunk by chunk, unless it is there; and the path."""
    if kind == "dask":
        return X, None
    name = "-".join(map(str, X.shape))
    path = folder / (f"{name}.zarr" if kind == "zarr" else f"{name}.bin")
    begin, fresh = time.perf_counter(), not path.exists()
    part = path.with_suffix(".part")  # so that what is there is whole
    if fresh and kind == "zarr":
        da.to_zarr(X, str(part), overwrite=True)
    elif fresh:
        with open(part, "wb") as target:
            target.truncate(8 * X.size)
        one = ((1,) * X.npartitions, (1,), (1,))
        X.map_blocks(write, str(part), chunks=one, dtype=float).compute()
    if fresh:
        part.rename(path)
        print(f"  written in {time.perf_counter() - begin:.0f} s", flush=True)
    if kind == "zarr":
        return da.from_zarr(str(path)), path
    if kind == "memmap":
        return np.memmap(path, dtype=float, mode="r", shape=X.shape), path
    return da.map_blocks(
        read, str(path), chunks=X.chunks, dtype=float, meta=np.empty((0, 0, 0))
    ), path


def write(block, file, block_info=None):
    """A chunk, written to its place in a file."""
    (begin, _), *_ = block_info[0]["array-location"]
    with open(file, "r+b") as target:
        target.seek(begin * block[0].nbytes)
        block.tofile(target)
    return block[:1, :1, :1].copy()  # a view would keep the block


def read(file, block_info=None):
    """A chunk of a file."""
    (a, b), (_, T), (_, d) = block_info[None]["array-location"]
    return np.fromfile(file, count=(b - a) * T * d, offset=8 * a * T * d).reshape(b - a, T, d)


def killer(client, after):
    """Kill a worker, by its own number, some seconds from now."""
    pids = list(client.run(os.getpid).values())

    def kill():
        time.sleep(after)
        os.kill(pids[0], signal.SIGKILL)
        print(f"  worker {pids[0]} killed after {after} s", flush=True)

    threading.Thread(target=kill, daemon=True).start()


def one(n, args, client, folder):
    """One panel, fitted: a row of the table, CPU seconds third."""
    T, d = args.T, args.d
    X, truth = panel(n, T, d, args.rows or max(1, (32 << 20) // (8 * T * d)))
    size = 8 * n * T * d
    print(f"n={n} T={T} d={d}: {size / 1e9:.3f} GB in {X.npartitions} chunks", flush=True)
    X, path = stored(X, args.kind, folder)
    if args.kill:
        killer(client, args.kill)
    before, begin = resident(ME), worked()
    with Held() as held, Passes() as passes:
        found = commanded(path) if args.command else fitted(X, args.permutation)
    seconds, order, called, drift = worked() - begin, *found
    right = rt.metrics.order_accuracy(truth, order) if np.ndim(order) == 1 else np.nan
    error = np.abs(np.asarray(drift) - sde(d).drift).mean()
    print(f"  direction called {called}, MAE of A {error:.2g}", flush=True)
    rate = f"{passes.count * size / seconds / 1e6:.0f}" if passes.count else None
    above = None if args.command else f"{(held.here - before) / 1e6:.0f} MB"
    together = f"{held.all / 1e9:.1f} GB"
    where = f"{args.kind}, {args.workers} workers" if args.workers else f"{args.kind}, threads"
    sizes = [f"{n:,}, {T}, {d}", f"{size / 1e9:.3g} GB"]
    return [*sizes, seconds, rate, where, above, together, right]


def fitted(X, permutation):
    """Order, whether the direction is called, and A."""
    model = rt.ReTrace(dt=DT, random_state=0, permutation=permutation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model.fit(X)
    return model.order_, model.direction_.identified, model.drift_


def commanded(path):
    """The same by the command, on workers that it starts."""
    with tempfile.TemporaryDirectory() as out:
        line = [sys.executable, "-m", "retrace_sde", "fit", str(path), "--scheduler", "local", "--dt", str(DT), "--json", "--out", out, "--force"]  # fmt: skip
        said = json.loads(subprocess.run(line, stdout=subprocess.PIPE, check=True).stdout)
    return said["order"], said["direction"]["identified"], said["drift"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", default="20000", help="trajectories; several with commas: growth")
    parser.add_argument("--T", type=int, default=60)
    parser.add_argument("--d", type=int, default=10)
    parser.add_argument("--rows", type=int, help="trajectories in a chunk [32 MB of them]")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0: threads of this one")
    parser.add_argument("--memory", default="auto", help="limit of each worker, e.g. 1GB")
    parser.add_argument("--kind", choices=("dask", "zarr", "file", "memmap"), default="dask")
    parser.add_argument("--permutation", choices=("shared", "independent"), default="shared")
    parser.add_argument("--kill", type=float, metavar="SECONDS", nargs="?", const=5.0)
    parser.add_argument("--command", action="store_true", help="fit a zarr store by the command")
    parser.add_argument(
        "--folder", type=Path, help="where files are written, and kept [a temporary folder]"
    )
    args = parser.parse_args()
    client = None
    with ExitStack() as open_:
        folder = args.folder or Path(open_.enter_context(tempfile.TemporaryDirectory()))
        if args.workers and not args.command:
            from distributed import Client, LocalCluster

            options = {"threads_per_worker": 1, "dashboard_address": None}
            cluster = LocalCluster(args.workers, memory_limit=args.memory, **options)
            client = open_.enter_context(Client(open_.enter_context(cluster)))
        sizes = [int(float(each)) for each in args.n.split(",")]
        first, _ = panel(min(sizes[0], 10_000), args.T, args.d, 2500)  # compiles
        rt.ReTrace(dt=DT, random_state=0, permutation=args.permutation).fit(first)
        rows = [one(n, args, client, folder) for n in sizes]
        columns = ["n, T, d", "data", "CPU seconds", "MB in each", "read from"]
        columns += ["client above its start", "memory of all", "order right"]
        print(*lines({"columns": columns, "rows": rows}), sep="\n")
        seconds = [row[2] for row in rows]
        if len(sizes) > 1:
            slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
            last = np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2])
            print(f"time grows as n^{slope:.2f}; between the last two as n^{last:.2f}")


if __name__ == "__main__":
    main()
