"""The search of `assignment` for few observations, by table: the same moves, with numpy, so that nothing is compiled for it.

`W[i, k, a, b] = ⟨M_ik, S_ab⟩` has T⁴ numbers; all insertions of an observation, or all reversals, are judged at once.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from retrace_sde.io.arrays import Array, Indices, Mask, State
from retrace_sde.orders.moves.moves import random_unit


@cache
def _insertions(T: int) -> Indices:
    """[p, q]: the order 0 … T − 1 after what stands at p has moved to q."""
    every = np.arange(T)
    found = [[np.insert(np.delete(every, p), q, p) for q in range(T)] for p in range(T)]
    return np.array(found, dtype=np.intp)


@cache
def _reversals(T: int) -> Indices:
    """Every segment of the order 0 … T − 1 reversed."""
    every = np.arange(T)
    found = [np.r_[every[:i], every[i:j][::-1], every[j:]] for i in range(T) for j in range(i + 2, T + 1)]  # fmt: skip
    return np.array(found, dtype=np.intp).reshape(-1, T)


class SmallSearch:
    """Descents over orders of T observations. `near`: how far an accepted move reactivates its neighbours; `tolerance`: smaller gains are rounding."""

    def __init__(self, M: Array, S: Array, V: Array, near: int, tolerance: float) -> None:
        T, _, d, _ = M.shape
        self.table = M.reshape(T * T, d * d) @ S.reshape(T * T, d * d).T
        self.unary, self.T, self.near, self.tolerance = V, T, near, tolerance
        self.base = (np.arange(T * T) * T * T).reshape(T, T)

    def costs(self, orders: Indices) -> Array:
        """Of orders (B, T)."""
        at = self.base + orders[:, :, None] * self.T + orders[:, None, :]
        pairs = self.table.ravel().take(at).sum(axis=(1, 2))
        return 0.5 * pairs + self.unary[orders, np.arange(self.T)].sum(axis=1)

    def descend(self, order: Indices, active: Mask, *, reversals: bool) -> float:
        """Local search in place; where no insertion helps, the best reversal. The cost."""
        cost = float(self.costs(order[None])[0])
        improved = True
        while improved:
            improved = False
            for a in range(self.T):
                if active[a]:
                    active[a] = False
                    moves = _insertions(self.T)[int(np.flatnonzero(order == a)[0])]
                    improved |= (less := self._taken(order, active, moves, cost)) < cost
                    cost = less
            if not improved and reversals:
                improved = (less := self._taken(order, active, _reversals(self.T), cost)) < cost
                cost = less
        return cost

    def _taken(self, order: Indices, active: Mask, moves: Indices, cost: float) -> float:
        """The best of some moves made where it helps, what is near it active, and the cost then."""
        trials = order[moves]
        costs = self.costs(trials)
        best = int(np.argmin(costs))
        if not costs[best] < cost - self.tolerance:
            return cost
        changed = np.flatnonzero(trials[best] != order)
        order[:] = trials[best]
        active[order[max(0, changed[0] - self.near) : changed[-1] + 1 + self.near]] = True
        return float(costs[best])

    def kicked(self, order: Indices, state: State) -> None:
        """A segment of up to a fifth reversed, or two observations put anywhere."""
        T = self.T
        length = 2 + int(random_unit(state) * max(T // 5, 1))
        p = int(random_unit(state) * (T - length + 1))
        if random_unit(state) < 0.5:
            order[p : p + length] = order[p : p + length][::-1].copy()
        else:
            order[:] = order[_insertions(T)[p, int(random_unit(state) * T)]]
            order[:] = order[_insertions(T)[(p + length) % T, int(random_unit(state) * T)]]

    def search(self, order: Indices, state: State, kicks: int, hopeful: float) -> None:
        """In place, the best of 1 + `kicks` descents; a kicked order is searched to its end where it is less than `hopeful` worse."""
        least = self.descend(order, np.ones(self.T, dtype=bool), reversals=True)
        for _ in range(kicks):
            trial = order.copy()
            self.kicked(trial, state)
            active = np.zeros(self.T, dtype=bool)
            active[trial[trial != order]] = True
            found = self.descend(trial, active, reversals=False)
            if found < least + hopeful and np.any(trial != order):
                found = self.descend(trial, np.ones(self.T, dtype=bool), reversals=True)
            if found < least - self.tolerance:
                least = found
                order[:] = trial
