"""What slices cost one after another when the time between them is unknown: each pair across its own best gap.

With increments S_ΔΔ and drifts S_bb in the metric of H the best gap is the positive root of `S_bb g² + n d g − S_ΔΔ = 0`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array
from retrace_sde.orders.costs import flat_slices, pair_costs
from retrace_sde.panel.blocks import Data, like, to_numpy


def best_gaps(increments: Array, pushes: Array, numbers: float | Array) -> Array:
    """The gap g that makes `½ (S_ΔΔ/g + g S_bb) + ½ n d log g` least: the positive root of its derivative."""
    return 2 * increments / (numbers + np.sqrt(numbers**2 + 4 * pushes * increments))


def gap_costs(data: Data, model: Euler) -> Array:
    """C (T, T): the cost of slice b after slice a across the gap that suits the pair best.

    `½ (S_ΔΔ/g − 2 S_Δb + g S_bb) + ½ n d log g` at the best g, time in units of dt.
    """
    W = model.whitening

    def of_block(x: Any, u: Any | None) -> Array:
        xp = array_api_compat.array_namespace(x)
        Wt = like(W.T, x)
        state = flat_slices(x @ Wt)
        push = flat_slices((model.predict(x, u) - x) @ Wt)
        along = push @ state.T
        own = xp.sum(push * state, axis=1)
        return to_numpy(xp.stack([along - own[:, None], push @ push.T]))

    crossed, squares = reduce(np.add, data.map(of_block))
    numbers = float(data.shape[0] * data.shape[2])
    increments = 2 * pair_costs(data, W, None)
    pushes = np.broadcast_to(np.diag(squares)[:, None], increments.shape)
    smallest = np.min(increments[increments > 0], initial=np.inf)
    increments = np.where(increments > 0, increments, min(smallest, 1.0))
    g = best_gaps(increments, pushes, numbers)
    C = 0.5 * (increments / g + g * pushes) - crossed + 0.5 * numbers * np.log(g)
    np.fill_diagonal(C, 0.0)
    return C
