"""What each order costs under a model: distances and transition costs between slices.

With Euler's step, `C[a, b] = ½ Σ_j ‖x_b − x_a − Θ φ(x_a) Δt‖²` in the metric of (H Δt)⁻¹ is the part of
`−log p(slice b | slice a)` that depends on the pair. Whitened and flattened to n·d numbers a slice is a
vector, and all T² costs are one matrix product.

Where the time between slices is unknown each pair is judged across its own best gap: with increments S_ΔΔ and drifts S_bb in the
metric of H it is the positive root of `S_bb g² + n d g − S_ΔΔ = 0`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, like, to_numpy


def distances(data: Data, *, scale: Array | None = None) -> Array:
    """Squared Euclidean distances (T, T) between slices, each variable divided by its scale.

    The scale is the variable's standard deviation over the panel unless given, so that units do not matter.
    """
    if scale is None:
        scale = spread(data)
    return pair_costs(data, np.diag(1 / scale), None) * 2


def spread(data: Data) -> Array:
    """Each variable's standard deviation over the observations of a panel (1 where it does not vary)."""

    # About the first trajectory's mean, near enough to the panel's for the digits of a deviation from it.
    seen = to_numpy(data.block(slice(0, 1))[0])[0, : data.observed[0]]
    sums, squares = data.sum_pieces(partial(_sums, centre=seen.mean(axis=0)))
    count = data.lengths.total
    deviation = np.sqrt(np.maximum(squares / count - (sums / count) ** 2, 0.0))
    # A variable that does not vary here has no say in the distances, whatever it is divided by.
    return np.where(deviation > 0, deviation, 1.0)


def _sums(piece: Data, *, centre: Array) -> Array:
    """Sums of deviations from a centre, and of their squares, (2, d)."""
    x = piece.block(slice(None))[0]
    xp = array_api_compat.array_namespace(x)
    z = x - like(centre, x)
    if piece.lengths.ragged:
        z = z * piece.lengths.mask[:, :, None]
    rows = xp.reshape(z, (-1, z.shape[2]))
    one = like(np.ones(rows.shape[0]), rows)
    return to_numpy(xp.stack([one @ rows, one @ (rows * rows)]))


def transition_costs(data: Data, model: Euler) -> Array:
    """C (T, T): the cost of slice b right after slice a, summed over trajectories."""
    return pair_costs(data, model.whitening, model)


def pair_costs(data: Data, W: Array, model: Euler | None) -> Array:
    """`½ Σ_j ‖W (x_b − f(x_a))‖²` of all pairs of slices, f the prediction of a model or, without one, x_a itself."""
    C = np.maximum(data.sum_pieces(partial(_pair_costs, W=W, model=model)), 0.0)
    np.fill_diagonal(C, 0.0)
    return C


def _pair_costs(piece: Data, *, W: Array, model: Euler | None) -> Array:
    x, u = piece.block(slice(None))
    xp = array_api_compat.array_namespace(x)
    target = flat_slices(x @ like(W.T, x))
    # ‖a‖² + ‖b‖² − 2 a·b loses the digits of a distance much smaller than the norms. A slice of
    # least norm as common centre keeps them, for a constant level as well as for growing spread.
    centre = target[int(xp.argmin(xp.sum(target**2, axis=1))), :]
    target = target - centre
    source = target if model is None else flat_slices(model.whitened_prediction(x, u, W)) - centre
    before, after = xp.sum(source**2, axis=1), xp.sum(target**2, axis=1)
    return to_numpy(0.5 * (before[:, None] + after[None, :]) - source @ target.T)


def near_costs(data: Data, order: Indices, model: Euler, width: int) -> Array:
    """Costs (width, 2, T) of positions up to `width` apart along `order`: [k − 1, 0, i] of i + k after i, [k − 1, 1, i] of i after i + k.

    All trajectories, but T · width pairs instead of T²: enough to verify an order found on a few.
    """
    width = min(width, data.shape[1] - 1)
    of_piece = partial(_near_costs, model=model, W=model.whitening, width=width)
    return data.sum_pieces(of_piece, order)


def _near_costs(piece: Data, order: Indices, *, model: Euler, W: Array, width: int) -> Array:
    x, u = piece.block(slice(None), order)
    xp = array_api_compat.array_namespace(x)
    T = x.shape[1]
    target, source = x @ like(W.T, x), model.whitened_prediction(x, u, W)
    sums = np.zeros((width, 2, T))
    for k in range(1, width + 1):
        ahead = target[:, k:, :] - source[:, :-k, :]
        back = target[:, :-k, :] - source[:, k:, :]
        for way, each in enumerate((ahead, back)):
            sums[k - 1, way, : T - k] = to_numpy(xp.sum(each * each, axis=(0, 2)))
    return 0.5 * sums


def step_costs(data: Data, order: Indices, model: Euler) -> Array:
    """The cost (T − 1,) of each step along an order."""
    return near_costs(data, order, model, 1)[0, 0, :-1]


def as_matrix(near: Array) -> Array:
    """Costs of near positions as (T, T), ∞ elsewhere."""
    T = near.shape[2]
    C = np.full((T, T), np.inf)
    for k, (ahead, back) in enumerate(near, start=1):
        i = np.arange(T - k)
        C[i, i + k], C[i + k, i] = ahead[i], back[i]
    return C


def flat_slices(block: Any) -> Any:
    """(trajectories, T, d) to (T, trajectories · d)."""
    xp = array_api_compat.array_namespace(block)
    return xp.reshape(xp.permute_dims(block, (1, 0, 2)), (block.shape[1], -1))


def best_gaps(increments: Array, pushes: Array, numbers: float | Array) -> Array:
    """The gap g that makes `½ (S_ΔΔ/g + g S_bb) + ½ n d log g` least: the positive root of its derivative."""
    return 2 * increments / (numbers + np.sqrt(numbers**2 + 4 * pushes * increments))


def gap_costs(data: Data, model: Euler) -> Array:
    """C (T, T): the cost of slice b after slice a across the gap that suits the pair best.

    `½ (S_ΔΔ/g − 2 S_Δb + g S_bb) + ½ n d log g` at the best g, time in units of dt.
    """
    W = model.whitening
    crossed, squares = data.sum_pieces(partial(_pushes, W=W, model=model))
    numbers = float(data.shape[0] * data.shape[2])
    increments = 2 * pair_costs(data, W, None)
    pushes = np.broadcast_to(np.diag(squares)[:, None], increments.shape)
    smallest = np.min(increments[increments > 0], initial=np.inf)
    increments = np.where(increments > 0, increments, min(smallest, 1.0))
    g = best_gaps(increments, pushes, numbers)
    C = 0.5 * (increments / g + g * pushes) - crossed + 0.5 * numbers * np.log(g)
    np.fill_diagonal(C, 0.0)
    return C


def _pushes(piece: Data, *, W: Array, model: Euler) -> Array:
    """`S_Δb` and the products of drifts, (2, T, T)."""
    x, u = piece.block(slice(None))
    xp = array_api_compat.array_namespace(x)
    state, push = (flat_slices(each @ like(W.T, x)) for each in (x, model.predict(x, u) - x))
    own = xp.sum(push * state, axis=1)
    return to_numpy(xp.stack([push @ state.T - own[:, None], push @ push.T]))
