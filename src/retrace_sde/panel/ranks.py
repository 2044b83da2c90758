"""Sorting by several keys, as many of them as are needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from retrace_sde.io.arrays import Array, Indices


def ranked(keys: Iterable[Array], rank: Indices) -> Indices:
    """The order of each row (m, k) by its `rank`, then by keys (m, k) as far as they are needed; NaN comes last."""
    order = np.argsort(rank, axis=1, kind="stable")
    for key in keys:
        known = np.where(np.isnan(key), np.inf, key)
        order = np.lexsort((known, rank), axis=1)
        one, two = (np.take_along_axis(each, order, axis=1) for each in (rank, known))
        differs = (np.diff(one, axis=1) != 0) | (two[:, 1:] != two[:, :-1])
        if differs.all():
            break
        np.put_along_axis(rank, order[:, 1:], np.cumsum(differs, axis=1), axis=1)
        np.put_along_axis(rank, order[:, :1], 0, axis=1)
    return order
