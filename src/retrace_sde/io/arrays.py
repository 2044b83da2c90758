"""Names of the arrays that everything passes around, and how some of their rows or slices are taken.

Any array-API namespace: what is on another device stays there.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]
State = NDArray[np.uint64]
"""States of random streams, one for each trajectory."""


def taken(array: Any, index: Indices, axis: int) -> Any:
    """Some entries along an axis, a copy."""
    if array_api_compat.is_numpy_array(array):
        # numpy's take would first copy all of an array that is not contiguous, as a shuffled one is not: ten times slower.
        return array[(slice(None),) * axis + (index,)]
    xp = array_api_compat.array_namespace(array)
    return xp.take(array, _there(index, array), axis=axis)


def _there(index: Indices, array: Any) -> Any:
    """Indices where an array is. Reversed ones are copied: torch has no negative strides."""
    xp, device = array_api_compat.array_namespace(array), array_api_compat.device(array)
    return xp.asarray(np.ascontiguousarray(index), device=device)


def ordered(block: Any, order: Indices | None) -> Any:
    """A block (m, T, d) along one order of its slices, or one per row, as float64; the block itself if nothing changes."""
    xp = array_api_compat.array_namespace(block)
    if order is not None and order.ndim == 2:
        block = xp.take_along_axis(block, _there(order[:, :, None], block), axis=1)
    elif order is not None:
        block = taken(block, order, 1)
    return xp.astype(block, xp.float64, copy=False)
