"""Panels larger than memory: time and peak memory of a fit to a lazy array, on workers of its own.

    python benchmarks/scale.py --n 250000 --T 60 --d 10 --workers 2
    python benchmarks/scale.py --n 250000 --T 60 --d 10 --workers 2 --kill       one worker is killed during the fit
    python benchmarks/scale.py --n 1000,10000,100000 --T 10 --d 2 --workers 0    growth in n, in threads

Every chunk is simulated where it is needed, each time it is needed, from a seed of its own: nothing is ever stored. `--kind zarr` and
`--kind memmap` write it to a file first (`--folder`). Memory is the most that a process held, less what it held before the fit.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import retrace_sde as rt

DT = 0.05


def peak() -> int:
    """Bytes that this process held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def held() -> int:
    """Bytes that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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
    """The same written to a file, chunk by chunk."""
    if kind == "dask":
        return X
    if kind == "zarr":
        da.to_zarr(X, str(folder / "x.zarr"))
        return da.from_zarr(str(folder / "x.zarr"))
    file = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=float, shape=X.shape)
    for k, part in enumerate(X.to_delayed().ravel()):
        begin = sum(X.chunks[0][:k])
        file[begin : begin + X.chunks[0][k]] = dask.compute(part)[0]
    file.flush()
    return np.load(folder / "x.npy", mmap_mode="r")


def killer(client, after):
    """Kill a worker, by its own number, some seconds from now."""
    pids = list(client.run(os.getpid).values())

    def kill():
        time.sleep(after)
        os.kill(pids[0], signal.SIGKILL)
        print(f"  worker {pids[0]} killed after {after} s", flush=True)

    threading.Thread(target=kill, daemon=True).start()


def one(n, args, client, folder):
    T, d = args.T, args.d
    X, truth = panel(n, T, d, args.rows or max(1, (32 << 20) // (8 * T * d)))
    size = 8 * n * T * d
    if args.kill:
        killer(client, args.kill)
    print(f"n={n} T={T} d={d}: {size / 1e9:.3f} GB in {X.npartitions} chunks", flush=True)
    X = stored(X, args.kind, folder)
    before, begin, cpu = held(), time.perf_counter(), time.process_time()
    said = [before]
    model = rt.ReTrace(dt=DT, random_state=0, permutation=args.permutation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rt.ReTraceWarning)
        model.fit(X)
    seconds = time.perf_counter() - begin
    right = (
        rt.metrics.order_accuracy(truth, model.order_) if args.permutation == "shared" else np.nan
    )
    error = np.abs(model.drift_ - sde(d).drift).mean()
    above = peak() - before
    print(
        f"  {seconds:.1f} s (client {time.process_time() - cpu:.1f} s of CPU), order right {right:.3f}, direction called "
        f"{model.direction_.identified}, MAE of A {error:.2g}\n"
        f"  client: {above / 1e6:.0f} MB above the {said[0] / 1e6:.0f} MB before the fit = {above / size:.3f} X",
        flush=True,
    )
    if client is not None:
        peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        each = ", ".join(f"{value / 1e6:.0f} MB" for value in peaks.values())
        print(
            f"  workers held at most {each}; all processes together {(peak() + sum(peaks.values())) / 1e9:.2f} GB",
            flush=True,
        )
    return seconds


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
    parser.add_argument("--kind", choices=("dask", "zarr", "memmap"), default="dask")
    parser.add_argument("--permutation", choices=("shared", "independent"), default="shared")
    parser.add_argument("--kill", type=float, metavar="SECONDS", nargs="?", const=5.0)
    parser.add_argument("--folder", type=Path, help="where files are written [a temporary folder]")
    args = parser.parse_args()
    client = None
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.workers:
            from distributed import Client, LocalCluster

            cluster = LocalCluster(
                n_workers=args.workers,
                threads_per_worker=1,
                memory_limit=args.memory,
                dashboard_address=None,
            )
            client = Client(cluster)
        small, _ = panel(2000, min(args.T, 12), args.d, 500)  # compiled before anything is measured
        rt.ReTrace(dt=DT, random_state=0, permutation=args.permutation).fit(small)
        sizes = [int(float(each)) for each in args.n.split(",")]
        seconds = [one(n, args, client, Path(folder)) for n in sizes]
        if len(sizes) > 1:
            slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
            last = np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2])
            print(f"time grows as n^{slope:.2f}; between the last two as n^{last:.2f}")


if __name__ == "__main__":
    main()
