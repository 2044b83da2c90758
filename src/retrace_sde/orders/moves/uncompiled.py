"""The search of `orders.search.improve_path` for few slices, in numpy: the same moves in the same order, without a compiler.

All moves of one kind are judged at once, from sums along the path and against it. The first position whose best move helps makes it, as in
`descent.descend`, and all are judged again. P[p, q] is what the step costs from position p to q of the padded path.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.moves.descent import MOST_SWEEPS

Moves = tuple[Array, Callable[[int], Indices]]
"""Changes of the cost by the best move of each position, and the positions in the order that such a move leads to."""


def improve_few(costs: Array, path: Indices, tolerance: float, short: int, long: int) -> None:
    """Local search over a padded path, in place; segments longer than `short`, up to `long`, are moved where nothing else helps."""
    T = len(path) - 2
    quick, deep = range(min(short, T - 1) + 1), range(short + 1, min(T // 2, long) + 1)
    for _ in range(MOST_SWEEPS * (1 + T)):
        improved = sum(_swept(costs, path, tolerance, length) for length in quick) > 0
        if not improved:
            improved = sum(_swept(costs, path, tolerance, length) for length in deep) > 0
        if not improved:
            return


def _swept(costs: Array, path: Indices, tolerance: float, length: int) -> bool:
    """The best move of each position in turn, where it helps: of the segment of so many slices that begins there; 0: a reversal of any."""
    at, improved = 0, False
    while True:
        P = costs[np.ix_(path, path)]
        changes, order = _insertions(P, length) if length else _reversals(P)
        helps = np.flatnonzero(changes[at:] < -tolerance)
        if not len(helps):
            return improved
        at += int(helps[0])
        path[1:-1] = path[1:-1][order(at)]
        at, improved = at + 1, True


def _along(P: Array) -> tuple[Array, Array]:
    """What the path costs up to each position, and by how much more it costs against its direction."""
    ahead, back = (np.append(0.0, np.cumsum(np.diagonal(P, k))) for k in (1, -1))
    return ahead, back - ahead


def _reversals(P: Array) -> Moves:
    """Of positions i to j, [i, j)."""
    T = len(P) - 2
    ahead, turned = _along(P)
    step = np.diff(ahead)
    i, j = np.arange(T - 1)[:, None], np.arange(1, T + 1)
    changes = P[i, j] + P[i + 1, j + 1] - step[i] - step[j] + turned[j] - turned[i + 1]
    changes = np.where(j > i + 1, changes, 0.0)
    best = changes.argmin(axis=1)

    def order(at: int) -> Indices:
        found, end = np.arange(T), int(best[at]) + 1
        found[at:end] = found[at:end][::-1]
        return found

    return changes.min(axis=1), order


def _insertions(P: Array, length: int) -> Moves:
    """Of the segment [i, i + length) after position k, either way round."""
    T = len(P) - 2
    ahead, turned = _along(P)
    step = np.diff(ahead)
    i, k = np.arange(T - length + 1)[:, None], np.arange(-1, T)
    j, left, right = i + length, k + 1, k + 2
    gap = step[left] + step[i] + step[j] - P[i, j + 1]
    plain = P[left, i + 1] + P[j, right] - gap
    flipped = P[left, j] + P[i + 1, right] + turned[j] - turned[i + 1] - gap
    both = np.stack([plain, flipped], axis=2)
    both[(k >= i - 1) & (k < j)] = 0.0
    flat = both.reshape(len(i), -1)
    best = flat.argmin(axis=1)

    def order(at: int) -> Indices:
        place, back = divmod(int(best[at]), 2)
        segment = np.arange(at, at + length)
        rest = np.delete(np.arange(T), segment)
        place -= length * (place > at)
        return np.concatenate([rest[:place], segment[:: -1 if back else 1], rest[place:]])

    return flat.min(axis=1), order
