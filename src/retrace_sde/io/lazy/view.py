"""A large array in memory, looked at in its places and units rather than copied: block by block, gathered and scaled in cache.

Any array-API namespace: what is on another device stays there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numba import njit

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.array import LazyArray

READ = 1 << 18
"""Numbers that are read at a time, and stay in cache."""

LARGE = 1 << 21
"""Numbers from which an array is not copied: 16 MiB of float64."""


@dataclass(frozen=True, eq=False)
class InMemoryView(LazyArray):
    """An array of complete trajectories with one order for all, where it is; `rows` and `columns` are its places."""

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def read(self, places: Indices) -> Any:
        """The trajectories at some places."""
        rows = places if self.rows is None else self.rows[places]
        if not self._plain(self.source):
            return self._seen(_taken(self.source, rows, 0), self.columns)
        _, T, d = self.shape
        index = np.arange(T, dtype=np.intp) if self.columns is None else self.columns
        out, size = np.empty((len(rows), T, d)), max(1, READ // (T * d))
        for begin in range(0, len(rows), size):
            some = slice(begin, begin + size)
            self._gather(self.source[rows[some]], index, out[some])
        return out

    def block(self, rows: slice, order: Indices | None) -> Any:
        """Trajectories along an order of their slices: gathered once, then scaled."""
        columns = self.columns
        index = columns if order is None else order if columns is None else columns[order]
        if self.rows is None:
            return self._seen(self.source[rows, ...], index)
        return self._seen(_taken(self.source, self.rows[rows], 0), index)

    def slices(self, positions: Indices) -> Any:
        """Some slices of all trajectories, (n, k, d)."""
        index = positions if self.columns is None else self.columns[positions]
        found = self._seen(self.source, index)
        return found if self.rows is None else _taken(found, self.rows, 0)

    def cut(self, rows: slice) -> InMemoryView:
        """The trajectories that are stored in some rows, as they are stored."""
        return InMemoryView(self.source[rows, ...], self.look, None, self.columns)

    def _plain(self, block: Any) -> bool:
        """Only to be gathered and scaled, by numpy's own numbers: one compiled walk does both."""
        look = self.look
        plain = look.kept is None and look.centre is not None and look.scale is not None
        return plain and array_api_compat.is_numpy_array(block) and block.dtype == np.float64

    def _gather(self, block: Array, index: Indices, out: Array) -> Array:
        centre, scale = self.look.centre, self.look.scale
        assert centre is not None  # it is plain
        assert scale is not None
        found: Array = _gathered(block, index, centre, 1 / scale, out)
        return found

    def _seen(self, block: Any, index: Indices | None) -> Any:
        look = self.look
        if index is not None and self._plain(block):
            return self._gather(block, index, np.empty((len(block), len(index), block.shape[2])))
        fresh = index is not None or look.kept is not None
        if index is not None:
            block = _taken(block, index, 1)
        if look.kept is not None:
            block = _taken(block, look.kept, 2)
        xp = array_api_compat.array_namespace(block)
        if block.dtype != xp.float64:
            block, fresh = xp.astype(block, xp.float64), True
        if look.centre is None or look.scale is None:
            return block
        device = array_api_compat.device(block)
        centre, factor = (
            xp.asarray(each, dtype=block.dtype, device=device)
            for each in (look.centre, 1 / look.scale)
        )
        if not fresh:
            return (block - centre) * factor
        if look.centre.any():
            block -= centre
        block *= factor
        return block


@njit(cache=True, nogil=True)
def _gathered(x, index, centre, factor, out):  # type: ignore[no-untyped-def]
    """Slices along an index, standardised on the way: in numpy three walks through a block."""
    for t in range(len(index)):
        for i in range(x.shape[0]):
            row = x[i, index[t]]
            for k in range(x.shape[2]):
                out[i, t, k] = (row[k] - centre[k]) * factor[k]
    return out


def _taken(array: Any, index: Indices, axis: int) -> Any:
    if array_api_compat.is_numpy_array(array):
        # numpy's take first makes an array contiguous, which a shuffled one is not: ten times slower.
        return array[(slice(None),) * axis + (index,)]
    xp = array_api_compat.array_namespace(array)
    return xp.take(array, xp.asarray(index, device=array_api_compat.device(array)), axis=axis)


def in_memory_order(array: Any) -> tuple[Any, bool] | None:
    """A numpy array with its slower axis first, and whether that is time; None: it has gaps, or neither is."""
    for turned, by_time in ((array, False), (array.transpose(1, 0, 2), True)):
        if turned.flags.c_contiguous:
            return turned, by_time
    return None


def spread_of(total: Array, squares: Array, count: float) -> tuple[Array, Array]:
    """Means and standard deviations from sums and sums of squares."""
    mean = total / count
    return mean, np.sqrt(np.maximum(squares / count - mean**2, 0.0))
