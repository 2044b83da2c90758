"""Walking through a panel in blocks of trajectories, in parallel, without ever copying it whole.

Blocks are independent and their results are combined in a fixed order, so that the answer does not depend
on the number of jobs. Meanwhile the linear algebra runs on one thread: small matrices and tall, narrow blocks
gain nothing from more, and on a busy machine threads that wait for each other cost far more than they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import array_api_compat
import numpy as np
from joblib import cpu_count, effective_n_jobs
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Array = NDArray[np.float64]
Order = NDArray[np.intp]
Mask = NDArray[np.bool_]
State = NDArray[np.uint64]
"""States of random streams, one for each trajectory."""

Result = TypeVar("Result")

BLOCK_ELEMENTS = 1 << 18
"""Numbers per block: 2 MiB of float64, small enough to stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Data:
    """Values (n, T, d) of any array-API namespace, covariates (n, T, k) or None, and how many jobs to run.

    `lengths` (n,) tells how many of the T observations each trajectory has; None: all of them.
    """

    values: Any
    covariates: Any | None = None
    n_jobs: int | None = None
    lengths: Order | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        n, T, d = self.values.shape
        return n, T, d

    @property
    def observed(self) -> Order:
        """The number of observations of each trajectory, (n,)."""
        n, T, _ = self.shape
        return np.full(n, T, dtype=np.intp) if self.lengths is None else self.lengths

    def some(self, size: int) -> Data:
        """`size` trajectories, evenly spaced among all since a cohort may be sorted."""
        return self.take(evenly(self.shape[0], size))

    def take(self, rows: Order) -> Data:
        """The given trajectories, which may be repeated."""
        covariates = None if self.covariates is None else pick(self.covariates, rows, 0)
        lengths = None if self.lengths is None else self.lengths[rows]
        values = pick(self.values, rows, 0)
        return replace(self, values=values, covariates=covariates, lengths=lengths)

    def block(self, rows: slice, order: Order | None = None) -> tuple[Any, Any | None]:
        """Values and covariates of some trajectories along an order, as float64."""
        if order is not None and order.ndim == 2:
            order = order[rows]
        u = None if self.covariates is None else in_order(self.covariates[rows, ...], order)
        return in_order(self.values[rows, ...], order), u

    def reversed(self, order: Order) -> Order:
        """An order, or one for each trajectory, run backwards."""
        if order.ndim == 1:
            return order[::-1].copy()
        back = np.arange(order.shape[1])[None] + np.zeros((len(order), 1), dtype=np.intp)
        inside = back < self.observed[:, None]
        back = np.where(inside, self.observed[:, None] - 1 - back, back)
        return np.take_along_axis(order, back, axis=1)

    def states(self, order: Order, position: int = 0) -> Array:
        """The state of every trajectory at one position of an order, (n, d), in numpy."""
        if order.ndim == 1:
            return self.slices(order[[position]])[0]
        xp = array_api_compat.array_namespace(self.values)
        index = xp.asarray(order[:, [position]], device=array_api_compat.device(self.values))
        return to_numpy(xp.take_along_axis(self.values, index[:, :, None], axis=1))[:, 0]

    def slices(self, positions: Order) -> Array:
        """The given slices of all trajectories, (len(positions), n, d), in numpy."""
        return to_numpy(pick(self.values, positions, 1)).transpose(1, 0, 2)

    def map(
        self, function: Callable[[Any, Any | None], Result], order: Order | None = None
    ) -> Iterator[Result]:
        """`function(x, u)` for each block of trajectories in time order, as float64, results in order."""
        return self.map_rows(lambda rows: function(*self.block(rows, order)))

    def map_rows(
        self, function: Callable[[slice], Result], *, size: int | None = None
    ) -> Iterator[Result]:
        """`function(rows)` for each block of `size` trajectories, results in order."""
        n, T, d = self.shape
        size = size or max(1, BLOCK_ELEMENTS // (T * d))
        blocks = [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]
        wanted = cpu_count() if self.n_jobs is None else effective_n_jobs(self.n_jobs)
        jobs = min(wanted, len(blocks))
        if jobs == 1 or not array_api_compat.is_numpy_array(self.values):
            yield from map(function, blocks)
            return

        def quietly(rows: slice) -> Result:
            with np.errstate(all="ignore"):  # each thread has its own
                return function(rows)

        with one_blas_thread(), ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(quietly, blocks)

    def live(self, rows: slice) -> Any | None:
        """Which of the T − 1 steps of some trajectories exist, (trajectories, T − 1, 1); None: all."""
        if self.lengths is None:
            return None
        steps = np.arange(1, self.shape[1])[None] < self.lengths[rows, None]
        return steps[:, :, None].astype(float)


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


class _Limit:
    """BLAS on one thread while anyone asks for it; the last to leave, in whichever thread, restores what there was."""

    def __init__(self) -> None:
        self.lock, self.users, self.before = Lock(), 0, None

    def enter(self) -> None:
        with self.lock:
            if self.users == 0:
                self.before = _blas().limit(limits=1, user_api="blas")
            self.users += 1

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0 and self.before is not None:
                self.before.restore_original_limits()


_LIMIT = _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS uses one thread, and numbers that overflow or are none show in results, not in warnings."""
    _LIMIT.enter()
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _LIMIT.leave()


def evenly(n: int, size: int) -> Order:
    """`size` of n indices, evenly spaced from the first to the last."""
    return np.linspace(0, n - 1, min(size, n)).round().astype(np.intp)


def pick(array: Any, index: Order, axis: int) -> Any:
    """Some rows, or some slices, of a whole array."""
    if array_api_compat.is_numpy_array(array):
        # numpy's take would first copy all of an array that is not contiguous, as a shuffled one is not.
        return array[index] if axis == 0 else array[:, index]
    xp = array_api_compat.array_namespace(array)
    return xp.take(array, xp.asarray(index, device=array_api_compat.device(array)), axis=axis)


def in_order(block: Any, order: Order | None) -> Any:
    """A block along one order of its slices, or one per trajectory, as float64 (None: as stored)."""
    xp = array_api_compat.array_namespace(block)
    if order is not None and order.ndim == 2:
        index = xp.asarray(order[:, :, None], device=array_api_compat.device(block))
        block = xp.take_along_axis(block, index, axis=1)
    elif order is not None:
        index = xp.asarray(order, device=array_api_compat.device(block))
        block = xp.take(block, index, axis=1)
    return xp.astype(block, xp.float64, copy=False)


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
