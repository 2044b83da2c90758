"""A zarr array (trajectory, time, variable) on workers: those of a scheduler that runs, or some of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from retrace_sde.io.formats import main_array, need
from retrace_sde.io.untrusted import zarr_store
from retrace_sde.panel.panel import Panel

LOCAL_ADDRESS = "local"
"""The address of workers that are started here, one for each core."""

MAX_CHUNK_BYTES = 1 << 30
"""Bytes of a chunk at most: each is read whole by a worker."""


@contextmanager
def connected(address: str) -> Iterator[str]:
    """Workers for every pass meanwhile, and the link to their dashboard."""
    distributed = need("distributed", "cluster")
    cluster = None
    if address == LOCAL_ADDRESS:
        cluster = distributed.LocalCluster(threads_per_worker=1, dashboard_address="127.0.0.1:0")
    try:
        with distributed.Client(cluster or address, timeout=30, set_as_default=True) as client:
            yield str(client.dashboard_link)
    except (OSError, TimeoutError) as error:
        raise ValueError(
            f"no scheduler answers at {address!r} ({error}): start one with `dask scheduler`, or use --scheduler local."
        ) from None
    finally:
        if cluster is not None:
            cluster.close()


def lazy_panel(path: Path) -> Panel:
    """A panel whose values stay in a zarr store: its one array of three axes, or the one called `values` or `X`."""
    if path.suffix.lower() != ".zarr" or not path.is_dir():
        raise ValueError(
            f"--scheduler takes a zarr store with an array (trajectory, time, variable); {path} is none. Other files are read "
            "into memory, without --scheduler."
        )
    dask, zarr = need("dask.array", "cluster"), need("zarr")
    zarr_store.check(path, lambda amount: None, _check_chunk, contents=False)
    store = zarr.open(str(path), mode="r")
    arrays = {"values": store} if hasattr(store, "shape") else dict(store.arrays())
    main = main_array({name: len(each.shape) for name, each in arrays.items()})
    if main is None:
        found = ", ".join(f"{name} {each.shape}" for name, each in list(arrays.items())[:6])
        raise ValueError(
            f"{path} must hold an array (trajectory, time, variable); it has {found or 'no arrays'}."
        )
    names = [str(each) for each in arrays["names"][:]] if "names" in arrays else None
    return Panel.from_array(dask.from_zarr(arrays[main]), names=names)


def _check_chunk(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if float(np.prod(shape, dtype=float)) * dtype.itemsize > MAX_CHUNK_BYTES:
        raise ValueError(
            f"its chunks {shape} are larger than {MAX_CHUNK_BYTES >> 30} GiB, more than a worker should read at once: save it again with "
            "smaller ones."
        )
