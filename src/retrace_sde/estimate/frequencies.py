"""Expected sufficient statistics from frequencies: how often b followed a, and what came first and last.

Averaged over a posterior of orders, `E Σ_i z_i z_iᵀ = Σ_ab N[a, b] z_ab z_abᵀ` with `z_ab = (φ_a √Δt, (x_b − x_a)/√Δt)`:
these T × T frequencies are all that the closed-form fit needs (`regression`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retrace_sde.data.blocks import Array, to_numpy
from retrace_sde.estimate.moments import Moments
from retrace_sde.process.drift import Drift


class Frequencies(NamedTuple):
    """Of a block of m trajectories: N[j, a, b], b right after a, (m, T, T); first and last, (m, T)."""

    pairs: Array
    first: Array
    last: Array


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
    x: Array, u: Array | None, frequencies: Frequencies, dt: float, drift: Drift
) -> Statistics:
    """Statistics of a block of trajectories x (m, T, d), u from the frequencies of its pairs and ends.

    Increments are formed about each trajectory's mean, so that nothing cancels.
    """
    (N, first, last), d = frequencies, x.shape[2]
    phi = to_numpy(drift.features(x, u))
    p = phi.shape[2]
    leaves, enters = N.sum(axis=2), N.sum(axis=1)
    y = x - x.mean(axis=1, keepdims=True)
    Ny = N @ y
    flat_y, flat_phi = y.reshape(-1, d), phi.reshape(-1, p)
    after = Ny.reshape(-1, d)
    step = after - leaves.reshape(-1, 1) * flat_y
    both = flat_y.T @ after
    gram = np.empty((p + d, p + d))
    gram[:p, :p] = (flat_phi * leaves.reshape(-1, 1)).T @ flat_phi * dt
    gram[:p, p:] = flat_phi.T @ step
    gram[p:, :p] = gram[:p, p:].T
    gram[p:, p:] = (flat_y * (leaves + enters).reshape(-1, 1)).T @ flat_y - both - both.T
    gram[p:, p:] /= dt
    flat_x = x.reshape(-1, d)
    ends = []
    for weight in (first, last):
        weighted = flat_x * weight.reshape(-1, 1)
        ends += [weighted.sum(axis=0), weighted.T @ flat_x]
    return Statistics(gram, *ends)
