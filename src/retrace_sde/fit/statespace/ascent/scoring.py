"""Steps towards the maximum by the information of what was observed, where steps of EM use that of known states.

EM's step is the gradient over the information of states and noise. Behind much noise little of that is left, and of every direction
another share, so that EM creeps. What is left is known in closed form where X is nearly a random walk (Whittle): with `R w = λ Q w`,
`wᵀ Q w = 1`, the increments of Y have in direction w the spectrum `1 + λ |1 − e^{iω}|²`, of which the states' part is

    g(ω) = 1 / (1 + λ |1 − e^{iω}|²),    information of dQ + |1 − e^{iω}|² dR:   ½ n Σ_kl mean_ω g_k g_l (wₖᵀ d w_l)².

It is diagonal in dQ, so that a step costs a few matrices, and near enough to the truth for drifts of any size that extrapolated steps need
some 15 passes of the smoother where those of EM need 30 to 120 (n = 200, T = 100, d = 10, σ = .1 and .5). A step that lowers the likelihood is left to EM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from retrace_sde.fit.statespace.ascent.climb import Ascent
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.observations import Observations
from retrace_sde.fit.statespace.parameters import (
    Parameters,
    Setup,
    flattened,
    least_noise,
    lower_half,
    raised,
)
from retrace_sde.io.arrays import Array
from retrace_sde.process.sde import Gaussian

FREQUENCIES = 512
"""At most; as many as a trajectory has steps."""

LEAST = 0.5
"""Of a variance no step leaves less than this share: a direction that were lost at once could not turn any more."""

SMALLEST = 1e-7
"""Least standard deviation of a direction beside the largest."""

FAINT = 0.03
"""Least variance that the SDE adds in a direction, in standard errors that it would have at 0: behind noise an H of less could not be told
from it, and belongs to no exact step. Some hundredths of a nat are given up where the likelihood is largest on the edge."""


class Shares(NamedTuple):
    """Directions W with `Wᵀ Q W = 1` (columns), W⁻¹, λ, `m_a = mean |1 − e^{iω}|^{2a} g_k g_l` for a = 0, 1, 2, and the share of the drift's information."""

    W: Array
    inverse: Array
    noise: Array
    moments: tuple[Array, Array, Array]
    drift: Array


@dataclass(frozen=True, eq=False)
class Scoring(Ascent):
    """Ascent by scoring, for `count` steps in trajectories of about `length` of them.

    H and p₀ are packed as square roots, in which a variance of 0 is nothing special.
    """

    count: float = 0.0
    length: int = 0

    scores = True

    @classmethod
    def of(cls, setup: Setup, seen: Observations) -> Scoring:
        """For observations by patterns of missing entries."""
        count = sum(stack.rows.shape[1] * float(stack.steps.sum()) for stack in seen.stacks)
        return cls(setup, count=count, length=round(count / len(seen.values)))

    @cached_property
    def _rough(self) -> Array:
        """|1 − e^{iω}|²: the eigenvalues of the covariance of `length` increments of white noise."""
        size = min(max(self.length, 1), FREQUENCIES)
        return 4 * np.sin(np.pi * np.arange(1, size + 1) / (2 * size + 2)) ** 2

    def _flat(self, S: Array, scale: Array) -> Array:
        """The lower half of the square root of S in the units `scale`."""
        return flattened(
            S, scale, lambda values: np.sqrt(np.maximum(values, SMALLEST**2 * values[-1]))
        )

    def _matrix(self, vector: Array, scale: Array) -> Array:
        def squares(values: Array) -> Array:
            sizes = np.abs(values)
            return np.maximum(sizes, SMALLEST * sizes.max()) ** 2

        return raised(vector, scale, squares)

    def _information(self, S: Array, scale: Array) -> Array:
        """That on each entry of a square root: `d log S = 2 d√S / √S`."""
        sizes = np.sqrt(np.diag(S)) / scale
        return (2 / np.outer(sizes, sizes))[lower_half(len(S))]

    def unpack(self, vector: Array, like: Parameters) -> Parameters:
        found = super().unpack(vector, like)
        return found if self.setup.H is not None else replace(found, H=self._told(found.H, found.R))

    def _told(self, H: Array, R: Array) -> Array:
        """H with no direction so faint that noise hides it."""
        most = np.sqrt(self.count * np.mean(self._rough**-2.0) / 2) / FAINT
        Q = H * self.setup.dt
        if not (np.isfinite(R).all() and np.isfinite(Q).all()):  # a trial step far out
            raise np.linalg.LinAlgError("a covariance is not finite")
        noise, W = eigh(R, Q)
        if noise[-1] <= most:
            return H
        back = W.T @ Q
        return (back.T * np.maximum(noise / most, 1)) @ back / self.setup.dt

    def advance(self, expected: Expected, now: Parameters) -> tuple[Parameters, float]:
        """Where a step of scoring leads, and by how much it should raise the log-likelihood."""
        setup, plain = self.setup, self.maximise(expected, now)
        if not now.R.any():  # EM's own step is as good
            return plain, np.inf
        shares, slopes = self._shares(expected, now), self.slopes(expected, now)
        W, back = shares.W, shares.inverse
        H, R, gain = self._variances(expected, now, shares, plain.H)
        step = plain.theta - now.theta
        step = np.where(setup.free, back.T @ ((W.T @ step) / shares.drift[:, None]), 0.0)
        gain += 0.5 * float((slopes.theta * step).sum())
        initial = setup.initial
        if initial is None:
            initial, promise = _first(now.initial, expected.first, shares)
            gain += expected.trajectories * promise
        return replace(now, theta=now.theta + step, H=H, R=R, initial=initial), gain

    def _shares(self, expected: Expected, now: Parameters) -> Shares:
        Q = now.H * self.setup.dt
        share = np.sqrt(np.maximum(expected.seen, 1) / max(expected.seen.max(), 1))
        noise, W = eigh(now.R / np.outer(share, share), Q)
        noise = np.maximum(noise, 0)
        rough = self._rough
        g = 1 / (1 + rough[:, None] * noise)
        m0, m1, m2 = ((g * rough[:, None] ** a).T @ g / len(rough) for a in range(3))
        slow = 1 / rough  # where a random walk has its variance
        return Shares(W, W.T @ Q, noise, (m0, m1, m2), slow @ g / slow.sum())

    def _variances(
        self, expected: Expected, now: Parameters, shares: Shares, plain: Array
    ) -> tuple[Array, Array, float]:
        """H and R after a step on both, and its promise; `plain` is the H that EM's step leads to."""
        setup, unknown, n = self.setup, self.setup.noise_free, expected.count
        W, back, (m0, m1, m2) = shares.W, shares.inverse, shares.moments
        by_Q = W.T @ (plain - now.H) @ W * setup.dt
        before = np.diag(now.R)[unknown]
        by_R = (expected.squares[unknown] / before - expected.seen[unknown]) / (n * before)
        turned = W[unknown, :, None] * W[unknown, None, :]  # wₖᵀ dR w_l of each variance
        if setup.noise_tied and len(before):
            before, by_R, turned = before[:1], by_R.sum(keepdims=True), turned.sum(axis=0)[None]
        both = m1 / m0 if setup.H is None else np.zeros_like(m1)
        left = np.tensordot(turned * (m2 - m1 * both), turned, axes=([1, 2], [1, 2]))
        rise = np.linalg.solve(left, by_R - (turned * (by_Q * both)).sum(axis=(1, 2)))
        rise = np.maximum(
            rise, np.maximum((LEAST - 1) * before, least_noise(setup, now.H) - before)
        )
        R, H, gain = now.R.copy(), now.H, 0.25 * n * float(by_R @ rise)
        R[unknown, unknown] = before + rise
        if setup.H is None:
            change = _kept(by_Q / m0 - both * np.tensordot(rise, turned, 1))
            H = self._told(now.H + back.T @ change @ back / setup.dt, R)
            gain += 0.25 * n * float((by_Q * (W.T @ (H - now.H) @ W)).sum()) * setup.dt
        return H, R, gain


def _first(now: Gaussian, seen: Gaussian, shares: Shares) -> tuple[Gaussian, float]:
    """p₀ after a step, and its promise for a trajectory: the first state is known up to the variance v that the filter of a random walk settles at."""
    v = (np.sqrt(1 + 4 * shares.noise) - 1) / 2
    L = np.linalg.cholesky(now.covariance)
    known, turn = np.linalg.eigh(
        L.T @ np.linalg.inv(now.covariance + (shares.inverse.T * v) @ shares.inverse) @ L
    )
    known, root = np.maximum(known, FAINT), L @ turn
    white = np.linalg.inv(root)
    shift = white @ (seen.mean - now.mean)
    change = white @ (seen.covariance - now.covariance) @ white.T
    wide = _kept(change / np.outer(known, known))
    gain = 0.5 * float(shift @ (shift / known)) + 0.25 * float((change * wide).sum())
    return Gaussian(now.mean + root @ (shift / known), now.covariance + root @ wide @ root.T), gain


def _kept(change: Array) -> Array:
    """A change of a variance of 1, of which at least a share is left."""
    values, vectors = np.linalg.eigh((change + change.T) / 2)
    return (vectors * np.maximum(values, LEAST - 1)) @ vectors.T
