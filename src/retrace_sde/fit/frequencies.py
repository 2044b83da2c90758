"""Expected sufficient statistics from frequencies: how often b followed a, and what came first and last.

Averaged over a posterior of orders, `E Σ_i z_i z_iᵀ = Σ_ab N[a, b] z_ab z_abᵀ` with `z_ab = (φ_a √Δt, (x_b − x_a)/√Δt)`:
these T × T frequencies are all that the closed-form fit needs (`regression`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from retrace_sde.fit.moments import Moments
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.process.drift import Drift


class Frequencies(NamedTuple):
    """Of a block of m trajectories: N[j, a, b], b right after a, (m, T, T); first and last, (m, T)."""

    pairs: Any
    first: Any
    last: Any


@dataclass(frozen=True, eq=False)
class Statistics:
    """Expected sufficient statistics: Gram of (φ √Δt, Δx/√Δt), and moments of first and last states."""

    gram: Array
    first: Array
    first_square: Array
    last: Array
    last_square: Array

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            *(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        )

    def moments(self, count: float) -> Moments:
        """The same, of `count` steps, as the estimators know them."""
        return Moments.from_weights(self.gram, count, len(self.gram) - len(self.first))

    def reversed(self, turn: Array) -> Statistics:
        """Those of the reversed orders, for a drift whose features of x + Δx are `turn` applied to (φ, Δx)."""
        return Statistics(
            turn @ self.gram @ turn.T, self.last, self.last_square, self.first, self.first_square
        )

    def scaled(self, factor: float) -> Statistics:
        return Statistics(*(getattr(self, name) * factor for name in self.__dataclass_fields__))


def statistics(
    x: Any, u: Any | None, frequencies: Frequencies, dt: float, drift: Drift
) -> Statistics:
    """Statistics of a block of trajectories x (m, T, d), u from the frequencies of its pairs and ends.

    Increments are formed about each trajectory's mean, so that nothing cancels.
    """
    xp = array_api_compat.array_namespace(x)
    (N, first, last), d = frequencies, x.shape[2]
    phi = drift.features(x, u)
    p = phi.shape[2]
    leaves, enters = xp.reshape(xp.sum(N, axis=2), (-1, 1)), xp.reshape(xp.sum(N, axis=1), (-1, 1))
    y = x - xp.mean(x, axis=1, keepdims=True)
    after = xp.reshape(N @ y, (-1, d))
    y, phi, x = xp.reshape(y, (-1, d)), xp.reshape(phi, (-1, p)), xp.reshape(x, (-1, d))
    both = to_numpy(y.T @ after)
    gram = np.empty((p + d, p + d))
    gram[:p, :p] = to_numpy((phi * leaves).T @ phi) * dt
    gram[:p, p:] = to_numpy(phi.T @ (after - leaves * y))
    gram[p:, :p] = gram[:p, p:].T
    gram[p:, p:] = (to_numpy((y * (leaves + enters)).T @ y) - both - both.T) / dt
    ends = []
    for weight in (first, last):
        weighted = x * xp.reshape(weight, (-1, 1))
        ends += [to_numpy(xp.sum(weighted, axis=0)), to_numpy(weighted.T @ x)]
    return Statistics(gram, *ends)
