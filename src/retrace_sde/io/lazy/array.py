"""An array (n, T, d) that is never read whole: a memory map, a zarr array, or a dask array on a cluster.

What a panel in memory is by copying, in its places and in standard units, this is by looking: rows stand where `rows` says,
slices where `columns` says, values are `(x − m)/s`, all in the block that is read. A pass is a map over chunks of
trajectories, in threads, or as tasks where the chunks are; a task that is lost with its worker is done again, with the same answer.

Limits: some trajectories, `MOST` of them all or `SMALL` bytes, may be held by whoever asks; a step that needs more is refused in words.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices

Result = TypeVar("Result")

MOST, SMALL = 0.1, 64 << 20
"""Share of the trajectories, and bytes, whichever is more, that one step may read into memory."""

CHUNK = 64 << 20
"""Bytes of a chunk at most, where that can be chosen: a few of them fit beside each other in any memory."""

ENDS = 2
"""Slices that are kept: the first and the last of an order."""

WAVE = 32
"""Chunks that are asked for at a time: what belongs to their trajectories travels with them."""


@dataclass(frozen=True, eq=False)
class Look:
    """How a stored block is seen: some variables, in standard units, as float64."""

    kept: Indices | None = None
    centre: Array | None = None
    scale: Array | None = None

    def __call__(self, block: Any, columns: Indices | None) -> Array:
        """A block (m, T, D) with its slices, or each row's observations, in their places."""
        if columns is not None:
            block = (
                block[:, columns]
                if columns.ndim == 1
                else np.take_along_axis(block, columns[:, :, None], axis=1)
            )
        if self.kept is not None:
            block = block[:, :, self.kept]
        found = np.asarray(block, dtype=np.float64)
        if self.centre is None or self.scale is None:
            return found
        return (found - self.centre) / self.scale


class _Held:
    """Rows that were read before, so that no later look reads them again."""

    def __init__(self) -> None:
        self.index: Indices = np.empty(0, dtype=np.intp)
        self.values: Any = None

    def add(self, index: Indices, values: Any) -> None:
        if self.values is not None:
            index, values = np.append(self.index, index), np.concatenate([self.values, values])
        order = np.argsort(index)
        self.index, self.values = index[order], values[order]


@dataclass(frozen=True, eq=False)
class LazyArray:
    """A lazy array as the engine sees it: `rows[j]` is the stored trajectory at place j, `columns` the slices."""

    source: Any
    look: Look = Look()
    rows: Indices | None = None
    columns: Indices | None = None
    facts: Any = None
    held: _Held = field(default_factory=_Held, repr=False)
    ends: dict[int, Array] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        n, T, d = self.source.shape
        return n, T, d if self.look.kept is None else len(self.look.kept)

    @property
    def ndim(self) -> int:
        return 3

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    @property
    def in_memory(self) -> bool:
        """The source is a numpy array that is there already: looked at in its places rather than copied."""
        return isinstance(self.source, np.ndarray) and _map(self.source) is None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.read(np.arange(self.shape[0])), dtype=dtype)

    def placed(self, rows: Indices, columns: Indices | None) -> LazyArray:
        """The same with trajectories, and slices or each one's observations, in places of their own."""
        facts = None if self.facts is None else self.facts.spent
        return replace(self, rows=rows, columns=columns, facts=facts, ends={})

    def standard(self, centre: Array, scale: Array) -> LazyArray:
        """The same in standard units."""
        return replace(self, look=replace(self.look, centre=centre, scale=scale), ends={})

    def without(self, kept: list[int]) -> LazyArray:
        """The same with some variables only."""
        now = np.arange(self.source.shape[2]) if self.look.kept is None else self.look.kept
        return replace(self, look=replace(self.look, kept=now[kept]), facts=None, ends={})

    def remembered(self, positions: Indices, read: Callable[[Indices], Array]) -> list[Array]:
        """Some slices (n, d), those not read before by one pass; the last `ENDS` of them are kept: ends are asked for again."""
        asked = positions.tolist()
        fresh = [k for k in asked if k not in self.ends]
        if fresh:
            self.ends.update(zip(fresh, read(np.array(fresh, dtype=np.intp)), strict=True))
        found = [self.ends[k] for k in asked]
        while len(self.ends) > ENDS:
            self.ends.pop(next(iter(self.ends)))
        return found

    def read(self, places: Indices) -> Array:
        """The trajectories at some places, in memory."""
        rows = places if self.rows is None else self.rows[places]
        if self.in_memory:
            block = self.source[rows]
        else:
            self.prefetch(rows)
            block = self.held.values[np.searchsorted(self.held.index, rows)]
        own = self.columns is not None and self.columns.ndim == 2
        return self.look(block, self.columns[places] if own else self.columns)  # type: ignore[index]

    def prefetch(self, rows: Indices) -> None:
        """Read stored rows that were not read before, all in one pass."""
        fresh = np.setdiff1d(rows, self.held.index)
        if len(fresh) == 0:
            return
        n, T, d = self.source.shape
        if len(fresh) > max(MOST * n, SMALL / (8 * T * d)):
            raise ValueError(
                f"this needs {len(fresh)} of the {n} trajectories in memory at once, and they are stored outside it: pass a "
                "part of them as an array in memory, e.g. X[:5000] read by numpy."
            )
        self.held.add(fresh, _rows(self.source, fresh))

    @cached_property
    def chunks(self) -> list[slice]:
        """The stored rows of each chunk."""
        n, T, d = self.source.shape
        if array_api_compat.is_dask_array(self.source):
            ends = np.cumsum(self.source.chunks[0]).tolist()
            return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        size = max(1, CHUNK // (8 * T * d))
        step = getattr(self.source, "chunks", (1,))[0]
        size = max(step, size // step * step)
        return [slice(a, min(a + size, n)) for a in range(0, n, size)]

    def places(self, rows: slice) -> Indices | slice:
        """The places of the stored rows of a chunk."""
        return rows if self.rows is None else self._backwards[rows]

    @cached_property
    def _backwards(self) -> Indices:
        return np.argsort(self.rows)  # type: ignore[arg-type]

    def belonging(self, rows: slice) -> Indices | None:
        """The columns of a chunk's rows."""
        columns = self.columns
        return columns if columns is None or columns.ndim == 1 else columns[self.places(rows)]


def stored(array: Any) -> LazyArray | None:
    """A lazy array as the engine walks it; None: it is in memory, or no array of three axes."""
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


def _let_go(block: Any) -> None:
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
    """A dask array whose chunks hold whole trajectories, as many as make a task worth its while."""
    n, T, d = array.shape
    size = max(1, CHUNK // (8 * T * d))
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
    belonging: Callable[[slice], tuple[Any, ...]],
    jobs: int,
    add: Callable[[list[Result]], Result] | None,
) -> Iterator[Result]:
    """`work(blocks, *belonging(rows))` for each chunk of arrays that lie side by side, results in stored order.

    `add`: results are added up, eight by eight, before they are handed on.
    """
    chunks = arrays[0].chunks
    if not array_api_compat.is_dask_array(arrays[0].source):

        def read(rows: slice) -> Result:
            blocks = [each.source[rows] for each in arrays]
            found = work([np.asarray(each) for each in blocks], *belonging(rows))
            for each in blocks:
                _let_go(each)
            return found

        with ThreadPoolExecutor(min(jobs, len(chunks))) as pool:
            for begin in range(0, len(chunks), WAVE):
                yield from pool.map(read, chunks[begin : begin + WAVE])
        return
    dask: Any = import_module("dask")
    parts = [_parts(each, arrays[0]) for each in arrays]
    task = dask.delayed(work, pure=False)
    for begin in range(0, len(chunks), WAVE):
        wave = range(begin, min(begin + WAVE, len(chunks)))
        found = [task([part[k] for part in parts], *belonging(chunks[k])) for k in wave]
        while add is not None and len(found) > 1:
            sums = dask.delayed(add, pure=False)
            found = [sums(found[k : k + 8]) for k in range(0, len(found), 8)]
        yield from dask.compute(*found)


def _parts(array: LazyArray, beside: LazyArray) -> list[Any]:
    """The chunks of a dask array as tasks, cut where another's are."""
    source = array.source
    if source.chunks[0] != beside.source.chunks[0]:
        source = source.rechunk({0: beside.source.chunks[0]})
    return list(source.to_delayed().ravel())
