"""Whether an order, or a direction, rests on one trajectory: what is left of it without that trajectory, from contributions.

The evidence for a direction is a sum over trajectories, `Σ_j Δ_j`. It rests on j where the others hold less than half of it, or are no longer
significant by Vuong's statistic where that was the test.

The cost of a shared order is a sum over trajectories too. With parameters held fixed, `δ_j(m)` is what a move m of the order (a part
reversed, a slice placed elsewhere) costs trajectory j. The order rests on j where the move pays without it: `Σ_i δ_i(m) − δ_j(m) < 0`.
Groups, where there are any, are left out as a whole.

Limits: parameters are not estimated again, and only orders one move away are looked at. Where many trajectories would each change the
order, it is uncertain rather than resting on one, and the position probabilities say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrace_sde.evidence.direction.verdict import DirectionTest, Reason, Source
from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.process.tails import t_sf

HALF = 0.5
"""Share of the evidence that the others must hold."""

MAX_SHARE = 0.1
"""Share of the trajectories (one at least) beyond which an order that any of them would change is uncertain, and rests on none."""

MAX_NUMBERS = 4_000_000
"""Costs of pairs of slices, of all trajectories, up to which the order is looked at."""


@dataclass(frozen=True)
class RestsOn:
    """A direction, or an order, that changes where a trajectory, or a group of them, is left out.

    Attributes
    ----------
    what : {"direction", "order"}
        What changes.
    trajectories : tuple of int
        Left out together.
    sentence : str
        What rests on them, and what would be without them.
    """

    what: Literal["direction", "order"]
    trajectories: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def direction_rests_on(test: DirectionTest, groups: Indices | None) -> list[tuple[int, float]]:
    """Groups, by number, without which the direction would not be told, and the nats that the others hold; the clearest first."""
    each, groups = test.contributions, _numbers(len(test.contributions), groups)
    total = float(each.sum())
    tested = test.identified and test.reason is Reason.TESTED and np.isfinite(each).all()
    if not tested or total <= 0 or groups.max() < 2:
        return []
    sums: Array = np.asarray(np.bincount(groups, weights=each), dtype=np.float64)
    left = total - sums
    found = left < HALF * total
    if test.p_source is Source.VUONG:
        found |= _vuong_without(sums, test.dimension) > test.alpha
    if found.sum() > max(1, MAX_SHARE * len(left)):
        return []
    return [(int(g), float(left[g])) for g in np.argsort(left) if found[g]]


def _vuong_without(sums: Array, d: int) -> Array:
    """The p-values of Vuong's statistic without each of the sums of groups (m,)."""
    m = len(sums) - 1
    left = sums.sum() - sums
    squares = np.sum((sums - sums.mean()) ** 2) - (sums - sums.mean()) ** 2 * (m + 1) / m
    error = np.sqrt(np.maximum(squares, 0.0) / (m - 1) * (m + d))
    z = np.divide(left, error, out=np.full(m + 1, np.inf), where=error > 0)
    return np.asarray(2 * t_sf(np.abs(z), m - 1))


def order_rests_on(
    data: Data, step: Euler, order: Indices, groups: Indices | None
) -> list[tuple[int, tuple[int, int]]]:
    """Groups, by number, without which the shared order would be another, and the first and last position that would change."""
    n, T, _ = data.shape
    numbers = _numbers(n, groups)
    if n * T * T > MAX_NUMBERS or numbers.max() < 2 or T < 4:
        return []
    moves = [_reversals, _insertions]
    costs = _costs(data, step, order)
    every = [np.stack([_summed(delta, numbers) for delta in move(costs)]) for move in moves]
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for delta, spans in zip(every, (_spans_reversed(T), _spans_inserted(T)), strict=True):
        total = delta.sum(axis=1, keepdims=True)
        left = np.where(total >= 0, total - delta, 0.0)
        for g in np.flatnonzero((left < -TINY).any(axis=0)).tolist():
            m = int(left[:, g].argmin())
            if g not in best or left[m, g] < best[g][0]:
                best[g] = float(left[m, g]), spans[m]
    if len(best) > max(1, MAX_SHARE * (numbers.max() + 1)):
        return []
    return [(g, best[g][1]) for g in sorted(best, key=lambda g: best[g][0])]


TINY = 1e-9


def _numbers(n: int, groups: Indices | None) -> Indices:
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


def _summed(values: Array, numbers: Indices) -> Array:
    return np.asarray(np.bincount(numbers, weights=values))


def _costs(data: Data, step: Euler, order: Indices) -> Array:
    """`½ ‖W (x_b − f(x_a))‖²` (n, T, T) of pairs of positions along the order."""
    x, u = data.block(slice(None), order)
    W = step.whitening
    target, source = to_numpy(x) @ W.T, to_numpy(step.whitened_prediction(x, u, W))
    before, after = (source**2).sum(axis=2), (target**2).sum(axis=2)
    crossed = source @ target.transpose(0, 2, 1)
    return np.asarray(0.5 * (before[:, :, None] + after[:, None, :]) - crossed)


def _spans_reversed(T: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(1, T) for b in range(a + 1, T)]


def _reversals(P: Array) -> list[Array]:
    """What it costs each trajectory to reverse positions a to b, the first slice in its place."""
    T = P.shape[1]
    k = np.arange(T - 1)
    turned = np.concatenate(
        [np.zeros((len(P), 1)), np.cumsum(P[:, k + 1, k] - P[:, k, k + 1], axis=1)], axis=1
    )
    found = []
    for a, b in _spans_reversed(T):
        delta = P[:, a - 1, b] - P[:, a - 1, a] + turned[:, b] - turned[:, a]
        if b < T - 1:
            delta = delta + P[:, a, b + 1] - P[:, b, b + 1]
        found.append(delta)
    return found


def _inserted(T: int) -> list[tuple[int, int]]:
    return [(a, c) for a in range(1, T) for c in range(T) if c not in (a - 1, a)]


def _spans_inserted(T: int) -> list[tuple[int, int]]:
    return [(min(a, c + 1), max(a, c)) for a, c in _inserted(T)]


def _insertions(P: Array) -> list[Array]:
    """What it costs each trajectory to place position a after position c, the first slice in its place."""
    T = P.shape[1]
    found = []
    for a, c in _inserted(T):
        delta = P[:, c, a] - P[:, a - 1, a]
        if a < T - 1:
            delta = delta + P[:, a - 1, a + 1] - P[:, a, a + 1]
        if c < T - 1:
            delta = delta + P[:, a, c + 1] - P[:, c, c + 1]
        found.append(delta)
    return found
