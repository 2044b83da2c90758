"""An array (n, T, d) that is never read whole: a memory map, a zarr array, or a dask array on a cluster.

A pass is a map over chunks of trajectories, in threads, or as tasks where the chunks are; a task that is lost with its
worker is done again, with the same answer.

Limits: one step may read `MAX_READ_SHARE` of the trajectories, or `MAX_READ_BYTES`, into memory; a step that needs more is refused.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.view import ArrayView

Result = TypeVar("Result")

MAX_READ_SHARE, MAX_READ_BYTES = 0.1, 64 << 20
"""Share of the trajectories, and bytes, whichever is more, that one step may read into memory."""

CHUNK_BYTES = 64 << 20
"""Bytes of a chunk at most, where that can be chosen: a few of them fit beside each other in any memory."""

KEPT_SLICES = 2
"""Slices that are kept: the first and the last of an order."""

CHUNKS_IN_FLIGHT = 32
"""Chunks that are asked for at a time: what belongs to their trajectories travels with them."""


class _Cache:
    """Rows that were read before, so that they are not read again."""

    def __init__(self) -> None:
        self.index: Indices = np.empty(0, dtype=np.intp)
        self.values: Any = None

    def add(self, index: Indices, values: Any) -> None:
        if self.values is not None:
            index, values = np.append(self.index, index), np.concatenate([self.values, values])
        order = np.argsort(index)
        self.index, self.values = index[order], values[order]


@dataclass(frozen=True, eq=False)
class LazyArray(ArrayView):
    """An array that is stored outside memory. Rows that were read are kept, and the two slices last read."""

    cache: _Cache = field(default_factory=_Cache, repr=False)
    kept_slices: dict[int, Array] = field(default_factory=dict, repr=False, init=False)

    def slices(self, positions: Indices, read: Callable[[Indices], Array]) -> list[Array]:
        """Some slices (n, d), those not read before by one pass; the last are kept: ends are asked for again."""
        asked, kept = positions.tolist(), self.kept_slices
        fresh = [k for k in asked if k not in kept]
        if fresh:
            kept.update(zip(fresh, read(np.array(fresh, dtype=np.intp)), strict=True))
        found = [kept[k] for k in asked]
        while len(kept) > KEPT_SLICES:
            kept.pop(next(iter(kept)))
        return found

    def read(self, positions: Indices) -> Array:
        rows = positions if self.rows is None else self.rows[positions]
        self.prefetch(rows)
        block = self.cache.values[np.searchsorted(self.cache.index, rows)]
        found: Array = self.units(block, self.columns_of(positions))
        return found

    def prefetch(self, rows: Indices) -> None:
        """Read stored rows that were not read before, all in one pass."""
        fresh = np.setdiff1d(rows, self.cache.index)
        if len(fresh) == 0:
            return
        n, T, d = self.source.shape
        if len(fresh) > max(MAX_READ_SHARE * n, MAX_READ_BYTES / (8 * T * d)):
            raise ValueError(
                f"this step needs {len(fresh)} of the {n} trajectories in memory at once, and they are stored outside it: pass "
                "a part of them as an array in memory, e.g. X[:5000] read by numpy."
            )
        self.cache.add(fresh, _rows(self.source, fresh))

    @cached_property
    def chunks(self) -> list[slice]:
        """The stored rows of each chunk."""
        n, T, d = self.source.shape
        if array_api_compat.is_dask_array(self.source):
            ends = np.cumsum(self.source.chunks[0]).tolist()
            return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        size = max(1, CHUNK_BYTES // (8 * T * d))
        step = getattr(self.source, "chunks", (1,))[0]
        size = max(step, size // step * step)
        return [slice(a, min(a + size, n)) for a in range(0, n, size)]

    def columns_of(self, positions: Indices | slice) -> Indices | None:
        """The order of the slices, or of the observations of some trajectories."""
        columns = self.columns
        return columns if columns is None or columns.ndim == 1 else columns[positions]


def as_lazy(array: Any) -> LazyArray | None:
    """An array that is stored outside memory, to be read lazily; None: it is in memory, or has not three axes."""
    if isinstance(array, LazyArray):
        return array
    if len(getattr(array, "shape", ())) != 3:
        return None
    if array_api_compat.is_dask_array(array):
        if not all(np.isfinite(each) for axis in array.chunks for each in axis):
            raise ValueError(
                "X is a dask array whose chunks have unknown sizes: call X.compute_chunk_sizes() first."
            )
        return LazyArray(_along_trajectories(array))
    if isinstance(array, np.ndarray):
        return None if _map(array) is None else LazyArray(array)
    return LazyArray(array) if type(array).__module__.startswith("zarr.") else None


def _map(array: Any) -> Any:
    """The memory map that an array is a window of; what was computed from one is an array like any other."""
    return getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None


def _release_pages(block: Any) -> None:
    """Pages of a memory map that were read leave this process, which would else seem to hold the whole file in the end.

    They stay in the system's cache while it has room. Not those of a copy on write, which may have been written to.
    """
    pages = _map(block)
    if pages is None or block.mode == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    reach = [(k - 1) * step for k, step in zip(block.shape, block.strides, strict=True)]
    low = block.ctypes.data - np.frombuffer(pages, dtype=np.uint8).ctypes.data
    high = low + sum(max(each, 0) for each in reach) + block.itemsize
    low += sum(min(each, 0) for each in reach)
    low -= low % mmap.PAGESIZE
    pages.madvise(mmap.MADV_DONTNEED, low, high - low)


def _along_trajectories(array: Any) -> Any:
    """A dask array whose chunks hold whole trajectories, large enough for a task."""
    n, T, d = array.shape
    size = max(1, CHUNK_BYTES // (8 * T * d))
    rows = max(array.chunks[0])
    whole = array.numblocks[1] == array.numblocks[2] == 1
    if whole and (rows > size / 8 or len(array.chunks[0]) == 1):
        return array
    return array.rechunk({0: min(n, max(size // 2, 1)), 1: -1, 2: -1})


def _rows(source: Any, rows: Indices) -> Any:
    if array_api_compat.is_dask_array(source):
        return np.asarray(source[rows].compute())
    if isinstance(source, np.ndarray):
        return np.asarray(source[rows])
    return np.asarray(source.oindex[rows])


def walk(
    arrays: list[LazyArray],
    work: Callable[..., Result],
    parts_of: Callable[[slice], tuple[Any, ...]],
    jobs: int,
    add: Callable[[list[Result]], Result] | None,
) -> Iterator[Result]:
    """`work(blocks, *parts_of(rows))` for each chunk of arrays that lie side by side, results in stored order.

    `add`: results are added up, eight by eight, before they are handed on.
    """
    chunks = arrays[0].chunks
    if not array_api_compat.is_dask_array(arrays[0].source):

        def read(rows: slice) -> Result:
            blocks = [each.source[rows] for each in arrays]
            found = work([np.asarray(each) for each in blocks], *parts_of(rows))
            for each in blocks:
                _release_pages(each)
            return found

        with ThreadPoolExecutor(min(jobs, len(chunks))) as pool:
            for begin in range(0, len(chunks), CHUNKS_IN_FLIGHT):
                yield from pool.map(read, chunks[begin : begin + CHUNKS_IN_FLIGHT])
        return
    dask: Any = import_module("dask")
    parts = [_delayed_chunks(each, arrays[0]) for each in arrays]
    task = dask.delayed(work, pure=False)
    for begin in range(0, len(chunks), CHUNKS_IN_FLIGHT):
        wave = range(begin, min(begin + CHUNKS_IN_FLIGHT, len(chunks)))
        found = [task([part[k] for part in parts], *parts_of(chunks[k])) for k in wave]
        while add is not None and len(found) > 1:
            sums = dask.delayed(add, pure=False)
            found = [sums(found[k : k + 8]) for k in range(0, len(found), 8)]
        yield from dask.compute(*found)


def _delayed_chunks(array: LazyArray, beside: LazyArray) -> list[Any]:
    """The chunks of a dask array as tasks, cut where another's are."""
    source = array.source
    if source.chunks[0] != beside.source.chunks[0]:
        source = source.rechunk({0: beside.source.chunks[0]})
    return list(source.to_delayed().ravel())
