"""Passes over a panel in pieces, in parallel, without ever copying it whole, whatever holds it.

A pass is a function of a *piece*, a `Data` of some trajectories alone, so that it can be sent to where they are: in memory, on a
device, in a file or on a cluster (`io/lazy`). Pieces are independent and their results are combined in a fixed order, so that the
answer does not depend on the number of jobs. Meanwhile the linear algebra runs on one thread: small matrices and tall, narrow
blocks gain nothing from more, and on a busy machine threads that wait for each other cost more than they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial, reduce
from threading import Lock
from typing import Any, TypeVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from retrace_sde.io.arrays import Array, Indices, ordered, taken
from retrace_sde.io.deferred import joblib
from retrace_sde.io.lazy.array import LazyArray, walk
from retrace_sde.io.lazy.view import ArrayView, InMemoryView
from retrace_sde.panel.clock import Gaps
from retrace_sde.panel.groups import renumbered
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order

Result = TypeVar("Result")

BLOCK_ELEMENTS = 1 << 18
"""Numbers per block: 2 MiB of float64, small enough to stay in a core's cache."""

DEVICE_ELEMENTS = 1 << 27
"""Numbers per block on another device, which has no cache to stay in and is kept busy by large blocks."""


@dataclass(frozen=True, eq=False)
class Data:
    """Values (n, T, d) of any array-API namespace, or an `ArrayView`, covariates (n, T, k) or None, and how many jobs to run.

    `counts` (n,) tells how many of the T observations each trajectory has; None: all of them. `groups` (n,) numbers the groups
    whose trajectories may be alike in any way; None: every trajectory is independent of the others. Pieces have none.
    """

    values: Any
    covariates: Any | None = None
    n_jobs: int | None = None
    counts: Indices | None = None
    groups: Indices | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        n, T, d = self.values.shape
        return n, T, d

    @cached_property
    def lengths(self) -> Lengths:
        """How many observations each trajectory has, with the mask, the padding and the reversal that follow from it."""
        return Lengths.of(self.values, self.counts)

    @property
    def observed(self) -> Indices:
        """The number of observations of each trajectory, (n,)."""
        return self.lengths.each

    @property
    def n_groups(self) -> int:
        """How many groups of trajectories are independent of one another; without groups, every trajectory is one."""
        return self.shape[0] if self.groups is None else int(self.groups.max()) + 1

    def by_group(self, each: Any) -> Any:
        """Something of each trajectory, (n, …), summed within groups, (G, …)."""
        if self.groups is None:
            return each
        found = np.zeros((self.n_groups, *each.shape[1:]))
        np.add.at(found, self.groups, each)
        return found

    def members(self, groups: Indices) -> Indices:
        """The trajectories of some groups, which may be repeated, one group after the other."""
        if self.groups is None:
            return groups
        by_group = np.argsort(self.groups, kind="stable")
        ends = np.cumsum(np.bincount(self.groups))
        return np.concatenate(
            [
                by_group[begin:end]
                for begin, end in zip(np.r_[0, ends][groups], ends[groups], strict=True)
            ]
        )

    def whole_groups(self, size: int) -> Indices:
        """About `size` trajectories, evenly spaced, in whole groups: what their variances are estimated from."""
        n, G = self.shape[0], self.n_groups
        return self.members(evenly(G, -(-size * G // n)))

    def resampled(self, rng: np.random.Generator) -> Indices:
        """The trajectories of a bootstrap panel: as many groups as there are, drawn with replacement."""
        return self.members(rng.integers(self.n_groups, size=self.n_groups))

    @property
    def lazy(self) -> bool:
        """The values are stored outside memory: only passes over pieces, and a few trajectories, can be had."""
        return isinstance(self.values, LazyArray)

    @property
    def viewed(self) -> bool:
        """The values are read where they are, in standard order and units, in memory or outside it."""
        return isinstance(self.values, ArrayView)

    @property
    def on_device(self) -> bool:
        """The values are an array of another library than numpy, and may be on a device of its own."""
        return not self.lazy and not array_api_compat.is_numpy_array(self._array)

    def some(self, size: int) -> Data:
        """`size` trajectories, evenly spaced among all since a cohort may be sorted."""
        return self.take(self.chosen(size))

    def chosen(self, size: int) -> Indices:
        """Which trajectories `some` takes."""
        return evenly(self.shape[0], size)

    def take(self, rows: Indices) -> Data:
        """The given trajectories, which may be repeated."""
        covariates = None if self.covariates is None else pick(self.covariates, rows, 0)
        counts = self.lengths.take(rows).counts
        groups = None if self.groups is None else renumbered(self.groups[rows])
        values = pick(self.values, rows, 0)
        return replace(self, values=values, covariates=covariates, counts=counts, groups=groups)

    def block(self, rows: slice, order: Indices | None = None) -> tuple[Any, Any | None]:
        """Values and covariates of some trajectories along an order, as float64."""
        order = None if order is None else Order.of(order).take(rows).index
        u = self.covariates
        return _block(self.values, rows, order), None if u is None else _block(u, rows, order)

    def reversed(self, order: Indices) -> Indices:
        """An order, or one for each trajectory, run backwards."""
        return Order.of(order, self.lengths).reversed().index

    def states(self, order: Indices, position: int = 0) -> Array:
        """The state of every trajectory at one position of an order, (n, d), in numpy."""
        if not Order.of(order).shared:
            if array_api_compat.is_numpy_array(self.values):
                rows = np.arange(self.shape[0])
                return np.asarray(self.values[rows, order[:, position]], dtype=np.float64)
            found = self.each_piece(
                lambda piece, o: to_numpy(piece.block(slice(None), o)[0]), order[:, [position]]
            )
            return np.asarray(found[:, 0])
        if self.lazy:  # the other end will be asked for next
            return self.slices(order[[position, -1 - position]])[0]
        return self.slices(order[[position]])[0]

    def slices(self, positions: Indices) -> Array:
        """The given slices of all trajectories, (len(positions), n, d), in numpy."""
        if isinstance(self.values, LazyArray):
            return np.stack(self.values.slices(positions, self._read_slices))
        if isinstance(self.values, InMemoryView):
            return to_numpy(self.values.slices(positions)).transpose(1, 0, 2)
        return to_numpy(taken(self.values, positions, 1)).transpose(1, 0, 2)

    def _read_slices(self, positions: Indices) -> Array:
        found = self.each_piece(lambda piece: piece.slices(positions).transpose(1, 0, 2))
        return np.ascontiguousarray(found.transpose(1, 0, 2))

    def map(
        self, function: Callable[[Any, Any | None], Result], order: Indices | None = None
    ) -> Iterator[Result]:
        """`function(x, u)` for each block of trajectories in time order, as float64, results in order."""
        return self.map_pieces(lambda piece, o: function(*piece.block(slice(None), o)), order)

    def map_pieces(
        self, function: Callable[..., Result], *along: Any, size: int | None = None
    ) -> Iterator[Result]:
        """`function(piece, *parts)` for each piece, of a view in the order in which its rows are stored.

        `along` is what belongs to the pass: arrays of two axes or more have a row for each trajectory and are cut, and `Gaps` know what
        to hand on; anything else (an order common to all, a number, None) is handed on whole.
        """
        for part in self._walk(function, along, size, list):
            yield from part

    def sum_pieces(
        self, function: Callable[..., Result], *along: Any, size: int | None = None
    ) -> Result:
        """The results of `map_pieces`, arrays or tuples of them, added in a fixed order: where the data are, chunk by chunk."""
        return _added(self._walk(function, along, size, _added, _added))

    def each_piece(self, function: Callable[..., Any], *along: Any, size: int | None = None) -> Any:
        """Results with a row for each trajectory of a piece, or tuples of such, put together as the trajectories stand."""
        found = _joined(list(self._walk(function, along, size, _joined)))
        rows = self.values.rows if self.viewed else None
        if rows is None:
            return found
        return tuple(each[rows] for each in found) if isinstance(found, tuple) else found[rows]

    def _walk(
        self,
        function: Callable[..., Any],
        along: tuple[Any, ...],
        size: int | None,
        together: Callable[[list[Any]], Any],
        add: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """The results of each chunk, put together where they are made; in memory a chunk is a piece."""
        if self.lazy:
            yield from self._walk_chunks(function, along, size or self._size, together, add)
            return

        def of_rows(rows: slice) -> Any:
            at = self.values.positions(rows) if self.viewed else rows
            return together([function(self._piece(rows), *_parts(along, at))])

        yield from self.map_rows(of_rows, size=size)

    def _piece(self, rows: slice) -> Data:
        view = isinstance(self.values, InMemoryView)
        values = self.values.piece(rows) if view else self.values[rows, ...]
        u = None if self.covariates is None else self.covariates[rows, ...]
        return Data(values, u, 1, self.lengths.take(rows).counts)

    def _walk_chunks(
        self,
        function: Callable[..., Any],
        along: tuple[Any, ...],
        size: int,
        together: Callable[[list[Any]], Any],
        add: Callable[[list[Any]], Any] | None,
    ) -> Iterator[Any]:
        """The results of each chunk of lazy data."""
        values, u, lengths = self.values, self.covariates, self.lengths
        arrays = [each for each in (values, u) if isinstance(each, LazyArray)]

        def parts_of(rows: slice) -> tuple[Any, ...]:
            at = values.positions(rows)
            inputs = u[at] if isinstance(u, np.ndarray) else None
            own = lengths.take(at).counts
            return values.columns_of(at), inputs, own, *_parts(along, at)

        units = tuple(each.units for each in arrays)
        work = partial(_on_chunk, function=function, units=units, size=size, together=together)
        return walk(arrays, work, parts_of, _jobs(self.n_jobs), add)

    @property
    def _array(self) -> Any:
        """What the values are read from."""
        return self.values.source if isinstance(self.values, InMemoryView) else self.values

    @property
    def _size(self) -> int:
        """Trajectories of a piece."""
        _, T, d = self.shape
        return max(1, (DEVICE_ELEMENTS if self.on_device else BLOCK_ELEMENTS) // (T * d))

    def map_rows(
        self, function: Callable[[slice], Result], *, size: int | None = None
    ) -> Iterator[Result]:
        """`function(rows)` for each block of `size` trajectories, results in order."""
        n = self.shape[0]
        if self.lazy:
            raise ValueError(
                "this step needs all trajectories in memory, and they are stored outside it: pass a part of them as an array "
                "in memory, e.g. X[:5000] read by numpy."
            )
        size = size or self._size
        blocks = [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
        jobs = 1 if len(blocks) == 1 else min(_jobs(self.n_jobs), len(blocks))
        if jobs == 1 or not array_api_compat.is_numpy_array(self._array):
            yield from map(function, blocks)
            return

        def quietly(rows: slice) -> Result:
            with np.errstate(all="ignore"):  # each thread has its own
                return function(rows)

        with one_blas_thread(), ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(quietly, blocks)

    @property
    def live(self) -> Any | None:
        """Which of the T − 1 steps exist, (n, T − 1, 1); None: all."""
        return self.lengths.steps.weights()


def _jobs(n_jobs: int | None) -> int:
    return _cores() if n_jobs is None else joblib.effective_n_jobs(n_jobs)


@cache
def _cores() -> int:
    """Looked up once: joblib reads files for it, and passes over small blocks ask thousands of times."""
    return int(joblib.cpu_count())


def _parts(along: tuple[Any, ...], rows: Any) -> tuple[Any, ...]:
    """What belongs to some trajectories of what belongs to a pass."""
    return tuple(
        each.take(rows) if isinstance(each, Gaps) else each[rows] if np.ndim(each) > 1 else each
        for each in along
    )


def _on_chunk(
    blocks: list[Any],
    columns: Indices | None,
    inputs: Any,
    counts: Indices | None,
    *along: Any,
    function: Callable[..., Any],
    units: tuple[Any, ...],
    size: int,
    together: Callable[[list[Any]], Any],
) -> Any:
    """The results of the pieces of one chunk, as it is stored, put together."""
    along_rows = None if columns is None else Order.of(columns)
    found = []
    with one_blas_thread():
        for begin in range(0, len(blocks[0]), size):
            rows = slice(begin, begin + size)
            part = None if along_rows is None else along_rows.take(rows).index
            x, *rest = (read(each[rows], part) for read, each in zip(units, blocks, strict=True))
            u = rest[0] if rest else None if inputs is None else inputs[rows]
            piece = Data(x, u, 1, None if counts is None else counts[rows])
            found.append(function(piece, *_parts(along, rows)))
        return together(found)


def _block(array: Any, rows: slice, order: Indices | None) -> Any:
    if isinstance(array, ArrayView):
        return array.block(rows, order)
    return ordered(array[rows, ...], order)


def _added(parts: Any) -> Any:
    """Arrays, or tuples of them, added one after the other."""
    return reduce(_sum, parts)


def _sum(one: Any, two: Any) -> Any:
    if type(one) is tuple:
        return tuple(a + b for a, b in zip(one, two, strict=True))
    return one + two


def _joined(parts: list[Any]) -> Any:
    """Arrays, or tuples of them, one below the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


_LOCK, _LIMITS = Lock(), list[Any]()
"""One limit of BLAS for each who asks for it: the first sets it, the last to leave, in whichever thread, restores what there was."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS uses one thread, and numbers that overflow or are none show in results, not in warnings."""
    with _LOCK:
        _LIMITS.append(_LIMITS[0] if _LIMITS else _blas().limit(limits=1, user_api="blas"))
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        with _LOCK:
            before = _LIMITS.pop()
            if not _LIMITS:
                before.restore_original_limits()


def evenly(n: int, size: int) -> Indices:
    """`size` of n indices, evenly spaced from the first to the last."""
    return np.linspace(0, n - 1, min(size, n)).round().astype(np.intp)


def pick(array: Any, index: Indices, axis: int) -> Any:
    """Some rows, or some slices, of a whole array; of a view some rows, read."""
    if isinstance(array, ArrayView):
        assert axis == 0  # whole slices are had by a pass
        return array.read(index)
    return taken(array, index, axis)


def in_order(block: Any, order: Indices | None) -> Any:
    """A block along one order of its slices, or one per trajectory, as float64 (None: as stored)."""
    return _block(block, slice(None), order)


def like(matrix: Array, array: Any) -> Any:
    """A small numpy matrix, brought to the namespace and the device of `array`."""
    xp = array_api_compat.array_namespace(array)
    return xp.asarray(matrix, dtype=array.dtype, device=array_api_compat.device(array))


def unmasked(values: Any) -> Any:
    """A masked array, or a list with some, as numbers that are NaN where they are masked; anything else as it is."""
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.kind not in "biuf":
            raise ValueError(f"masked arrays must hold real numbers; got dtype {values.dtype}.")
        wide = values.dtype if values.dtype.kind == "f" else np.dtype(float)
        return np.ma.filled(values.astype(wide), np.nan)  # type: ignore[no-untyped-call]
    if isinstance(values, (list, tuple)) and any(
        isinstance(each, (np.ma.MaskedArray, list, tuple)) or each is np.ma.masked
        for each in values
    ):
        return [np.nan if each is np.ma.masked else unmasked(each) for each in values]
    return values


def to_numpy(array: Any) -> Array:
    """A small result, brought to numpy from whatever device it was computed on."""
    if isinstance(array, ArrayView):
        array = array.read(np.arange(array.shape[0]))  # refused, unless it is small or in memory
    return np.asarray(_fetched(array), dtype=float)


def to_integers(array: Any) -> NDArray[np.int64]:
    """Whole numbers, likewise, without passing through floats."""
    return np.ascontiguousarray(_fetched(array), dtype=np.int64)


def _fetched(array: Any) -> Any:
    if array_api_compat.is_torch_array(array):
        return array.detach().cpu()
    if array_api_compat.is_cupy_array(array):
        return array.get()
    return array
