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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from retrace_sde.evidence.direction.verdict import DirectionTest, Reason, Source
from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.process.tails import t_sf

HALF = 0.5
"""Share of the evidence that the others must hold."""

MAX_CHANGING_SHARE = 0.1
"""Share of the trajectories (one at least) beyond which an order that any of them would change is uncertain, and rests on none."""

MAX_PAIR_COSTS = 4_000_000
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
    if found.sum() > max(1, MAX_CHANGING_SHARE * len(left)):
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
    if n * T * T > MAX_PAIR_COSTS or numbers.max() < 2 or T < 4:
        return []
    costs = _costs(data, step, order)
    best: dict[int, tuple[float, tuple[int, int]]] = {}
    for each, first, last in chain(_reversals(costs), _insertions(costs)):
        delta = _summed(each, numbers)
        total = delta.sum(axis=0)
        if not ((total >= 0) & (total - delta.max(axis=0) < -TINY)).any():
            continue
        left = np.where(total >= 0, total - delta, 0.0)
        for g in np.flatnonzero((left < -TINY).any(axis=1)).tolist():
            m = int(left[g].argmin())
            if g not in best or left[g, m] < best[g][0]:
                best[g] = float(left[g, m]), (int(first[m]), int(last[m]))
    if len(best) > max(1, MAX_CHANGING_SHARE * (numbers.max() + 1)):
        return []
    return [(g, best[g][1]) for g in sorted(best, key=lambda g: best[g][0])]


TINY = 1e-9


def _numbers(n: int, groups: Indices | None) -> Indices:
    return np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]


def _summed(values: Array, numbers: Indices) -> Array:
    """What trajectories (n, m) cost, summed within groups (G, m)."""
    if len(values) == numbers.max() + 1:  # each is a group of its own
        return values
    found = np.zeros((numbers.max() + 1, values.shape[1]))
    np.add.at(found, numbers, values)
    return found


def _costs(data: Data, step: Euler, order: Indices) -> Array:
    """`½ ‖W (x_b − f(x_a))‖²` (n, T, T) of pairs of positions along the order."""
    x, u = data.block(slice(None), order)
    W = step.whitening
    target, source = to_numpy(x) @ W.T, to_numpy(step.whitened_prediction(x, u, W))
    before, after = (source**2).sum(axis=2), (target**2).sum(axis=2)
    crossed = source @ target.transpose(0, 2, 1)
    return np.asarray(0.5 * (before[:, :, None] + after[:, None, :]) - crossed)


Moves = Iterator[tuple[Array, Indices, Indices]]
"""What some moves cost each trajectory, (n, m), and the first and last position (m,) that each of them changes."""


def _reversals(P: Array) -> Moves:
    """Positions a to b reversed, the first slice in its place; all b for one a at a time."""
    n, T, _ = P.shape
    k = np.arange(T - 1)
    turned = np.zeros((n, T))
    np.cumsum(P[:, k + 1, k] - P[:, k, k + 1], axis=1, out=turned[:, 1:])
    after = np.zeros((n, T))
    after[:, :-1] = P[:, k, k + 1]
    for a in range(1, T - 1):
        b = np.arange(a + 1, T)
        delta = P[:, a - 1, b] - P[:, a - 1, a, None] + turned[:, b] - turned[:, a, None]
        delta[:, :-1] += P[:, a, b[1:]]
        yield delta - after[:, b], np.full(len(b), a), b


def _insertions(P: Array) -> Moves:
    """Position a placed after position c, the first slice in its place; all c for one a at a time."""
    n, T, _ = P.shape
    k = np.arange(T - 1)
    after = np.zeros((n, T))
    after[:, :-1] = P[:, k, k + 1]
    for a in range(1, T):
        c = np.delete(np.arange(T), [a - 1, a])
        delta = P[:, c, a] - after[:, a - 1, None] - after[:, c]
        if a < T - 1:
            delta += (P[:, a - 1, a + 1] - after[:, a])[:, None]
        inside = c < T - 1
        delta[:, inside] += P[:, a, c[inside] + 1]
        yield delta, np.minimum(a, c + 1), np.maximum(a, c)
