"""In which direction each trajectory runs: EM over the 2ⁿ flips of paths that have no direction.

The log-likelihood of a path and of its reverse are linear in two Gram matrices of the path, so that any
weighting of the flips has a closed-form fit. EM over the flip probabilities has local maxima; it is run
from several guesses, and then single trajectories are flipped while the profile likelihood rises.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.moments import Moments, trajectory_grams
from retrace_sde.fit.regression import mle
from retrace_sde.fit.start_law import START_FLOOR
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, evenly
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Drift

GRAM_NUMBERS = 25_000_000
"""Numbers that the Gram matrices of all trajectories may hold; beyond it a subset represents the rest."""

FLIP_STEPS = 60
"""Steps of EM over the flip probabilities, at most."""

SINGLE_FLIPS, FLIP_PASSES = 64, 3
"""Trajectories, the least certain, that are flipped one by one afterwards, and passes over them."""

RANDOM_GUESSES = 4
"""Random starts of EM beside those from the data."""


def align(
    data: Data,
    orders: Indices,
    dt: float,
    drift: Drift,
    prior_costs: tuple[Array, Array],
    rng: np.random.Generator,
) -> Indices:
    """Turn some of the orders around so that all run the same way (which of the two is tested later).

    `prior_costs`: what is known of time against the orders as they stand and against their reverses (∞:
    impossible), one number for each trajectory or one for all.
    """
    n, _, d = data.shape
    x, u = data.block(slice(0, 1))
    size = int(drift.features(x, u).shape[-1]) + d
    most = max(2, min(n, GRAM_NUMBERS // size**2))
    rows = evenly(n, most)
    for_there, for_back = (np.broadcast_to(-each, n)[rows] for each in prior_costs)
    flips = _Flips(data.some(most), orders[rows], dt, drift, for_there, for_back)
    runs = [flips.expectation_maximisation(w) for w in flips.guesses(rng)]
    forward = flips.settle(max(runs, key=lambda run: run[1])[0])
    turned = np.zeros(n, dtype=bool)
    # Trajectories outside the subset are turned by the search that follows, under the subset's fit.
    turned[rows] = forward < 0.5
    return np.where(turned[:, None], data.reversed(orders), orders)


class _Flips:
    """Gram matrices of each path and of its reverse, (n, p + d, p + d), and both of its ends."""

    def __init__(
        self,
        data: Data,
        orders: Indices,
        dt: float,
        drift: Drift,
        for_there: Array,
        for_back: Array,
    ) -> None:
        self.dt, self.drift = dt, drift
        grams, back = partial(trajectory_grams, drift=drift), data.reversed(orders)
        self.there = data.each_piece(grams, orders, Gaps.of(dt))
        self.back = data.each_piece(grams, back, Gaps.of(dt))
        self.first, self.last = data.states(orders), data.states(back)
        # What is known of time, as log-priors of both directions (−∞: impossible); the same for all if nothing is.
        self.for_there, self.for_back = for_there, for_back
        self.free = np.isfinite(self.for_there) & np.isfinite(self.for_back)
        self.count = float(data.lengths.steps.total)
        self.d = data.shape[2]

    def fit(self, w: Array) -> tuple[Euler, Array, Array]:
        """The model, and p₀'s mean and covariance, when w is the probability of each path as it stands."""
        gram = np.tensordot(w, self.there, 1) + np.tensordot(1 - w, self.back, 1)
        found = mle(Moments.from_weights(gram, self.count, len(gram) - self.d))
        model = Euler(self.drift, found.coefficients, found.diffusion, self.dt)
        weight = np.concatenate([w, 1 - w]) / len(w)
        ends = np.concatenate([self.first, self.last])
        mean = weight @ ends
        spread = (ends - mean).T @ ((ends - mean) * weight[:, None])
        return model, mean, spread + START_FLOOR * model.dt * model.diffusion

    def log_likelihoods(self, fitted: tuple[Euler, Array, Array]) -> tuple[Array, Array]:
        """Joint log-likelihoods of the paths as they stand and reversed, without common constants."""
        model, mean, spread = fitted
        residual = np.concatenate([-model.coefficients, np.eye(self.d)], axis=1)
        K = residual.T @ np.linalg.solve(model.diffusion, residual)
        lower = np.linalg.cholesky(spread)

        def of(gram: Array, ends: Array) -> Array:
            white = np.linalg.solve(lower, (ends - mean).T)
            return -0.5 * (np.tensordot(gram, K, 2) + (white**2).sum(axis=0))

        there, back = of(self.there, self.first), of(self.back, self.last)
        return there + self.for_there, back + self.for_back

    def constant(self, fitted: tuple[Euler, Array, Array]) -> float:
        """The normalisers, which differ from fit to fit."""
        model, _, spread = fitted
        steps = self.count * np.linalg.slogdet(model.diffusion)[1]
        return float(-0.5 * (steps + len(self.first) * np.linalg.slogdet(spread)[1]))

    def expectation_maximisation(self, w: Array) -> tuple[Array, float]:
        """Flip probabilities and their mixture log-likelihood, at a local maximum."""
        value = -np.inf
        for _ in range(FLIP_STEPS):
            fitted = self.fit(w)
            there, back = self.log_likelihoods(fitted)
            before, value = (
                value,
                float(np.logaddexp(there, back).sum()) + self.constant(fitted),
            )
            w = 1 / (1 + np.exp(np.clip(back - there, -500, 500)))
            if value - before < 1e-4:
                break
        return w, value

    def worth(self, w: Array) -> float:
        """Profile log-likelihood, log-prior included, of flips that are all decided."""
        prior = np.where(w > 0.5, self.for_there, self.for_back)
        return self.constant(self.fit(w)) + float(prior.sum())

    def settle(self, w: Array) -> Array:
        """Flip single trajectories, the least certain first, while the profile likelihood rises.

        EM cannot leave a wrong direction whose trajectory bends the fit (leverage, when n is not much
        larger than d); the profile, refitted for every trial, can.
        """
        w = (w > 0.5).astype(float)
        best = self.worth(w)
        for _ in range(FLIP_PASSES):
            there, back = self.log_likelihoods(self.fit(w))
            moved = False
            gap = np.where(self.free, np.abs(there - back), np.inf)
            for j in np.argsort(gap)[: min(SINGLE_FLIPS, int(self.free.sum()))]:
                w[j] = 1 - w[j]
                value = self.worth(w)
                if value > best + 1e-9:
                    best, moved = value, True
                else:
                    w[j] = 1 - w[j]
            if not moved:
                break
        return w

    def guesses(self, rng: np.random.Generator) -> list[Array]:
        """Spectral, by the growth of the state, and random; each in both directions.

        What changes sign with the flip is the difference of the two Gram matrices: to first order the
        likelihood is `s_j ⟨g, D_j⟩`, largest along the leading singular vectors of D.
        """
        odd = (self.there - self.back).reshape(len(self.there), -1)
        odd = odd / np.sqrt((odd**2).mean(axis=0) + 1e-300)
        left = np.linalg.svd(odd, full_matrices=False)[0] if odd.shape[1] < 400 else None
        metric = np.linalg.inv(self.fit(np.full(len(odd), 0.5))[0].diffusion)
        growth = np.einsum("ni,ij,nj->n", self.last, metric, self.last)
        growth -= np.einsum("ni,ij,nj->n", self.first, metric, self.first)
        signs = [growth] if left is None else [growth, *left[:, :3].T]
        signs += [rng.standard_normal(len(odd)) for _ in range(RANDOM_GUESSES)]
        guesses = [np.where(sign > 0, 0.9, 0.1) for sign in signs]
        both = [each for w in guesses for each in (w, 1 - w)]
        told = self.for_there - np.where(self.free, self.for_back, 0.0)
        if not np.any(told) and self.free.all():
            return both
        only = np.where(np.isfinite(self.for_there), 1.0, 0.0)
        known = 1 / (1 + np.exp(-np.clip(told, -500, 500)))
        return [np.where(self.free, w, only) for w in (*both, known)]
