"""One order for all trajectories behind noise: what every pair of slices tells, and where a search starts.

Distances between neighbours drown in noise first, so every pair counts. The state-space likelihood of an order needs only
the second moments of pairs of slices, summed over trajectories (`assignment`); a start comes from the
Fiedler vector of a similarity of noise-corrected distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.fit.statespace.smoother import StateSpace
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.hidden.assignment import Arrangement
from retrace_sde.orders.hidden.gaussian import Chain, process
from retrace_sde.orders.paths import shortest_path
from retrace_sde.orders.prior import Prior
from retrace_sde.process.sde import Gaussian, Transition


@dataclass(frozen=True, eq=False)
class PairMoments:
    """S (T, T, d, d), the sum over trajectories of `y_a y_bᵀ`, and the sums (T, d), of n trajectories."""

    squares: Array
    sums: Array
    count: int

    @classmethod
    def of(cls, values: Array) -> PairMoments:
        """From (n, T, d). With values missing: from pairs of slices seen together, nothing filled in.

        What matters is `(y_a − y_b)(y_a − y_b)ᵀ`, small between neighbours: it is averaged over trajectories where
        all its entries were seen, never formed from products averaged over different trajectories.
        """
        n, T, d = values.shape
        seen = ~np.isnan(values)
        y = np.nan_to_num(values)
        if seen.all():
            flat = y.reshape(n, T * d)
            S = (flat.T @ flat).reshape(T, d, T, d).transpose(0, 2, 1, 3)
            return cls(np.ascontiguousarray(S), y.sum(axis=0), n)
        m = seen.astype(float)
        # About one centre for all slices: about each slice's own mean, two slices seen in different
        # trajectories would differ by what those trajectories do.
        centre = y.sum(axis=(0, 1)) / np.maximum(m.sum(axis=(0, 1)), 1)
        y = (y - centre) * m
        sums = n * y.sum(axis=0) / np.maximum(m.sum(axis=0), 1)
        squares = np.empty((T, T, d, d))
        own = np.einsum("jax,jay->axy", y, y) / np.maximum(np.einsum("jax,jay->axy", m, m), 1)
        for x in range(d):
            for z in range(d):
                both = m[:, :, x] * m[:, :, z]
                together = both.T @ both
                safe = np.maximum(together, 1)
                cross = (y[:, :, x] * m[:, :, z]).T @ (m[:, :, x] * y[:, :, z]) / safe
                here = (y[:, :, x] * y[:, :, z]).T @ both / safe
                level = 0.5 * (own[:, None, x, z] + own[None, :, x, z])
                seen_together = cross + level - 0.5 * (here + here.T)
                trust = together / (together + DOUBT) if x != z else together > 0
                squares[:, :, x, z] = np.where(trust > 0, trust * seen_together, 0.0)
        every = np.arange(T)
        squares[every, every] = own
        squares *= n
        squares += centre[:, None] * sums[None, :, None] + sums[:, None, :, None] * centre
        squares += n * np.outer(centre, centre)
        return cls(squares, sums + n * centre, n)

    def seen_by(self, directions: Array) -> PairMoments:
        """The same of `directions @ y`."""
        squares = directions @ self.squares @ directions.T
        return PairMoments(np.ascontiguousarray(squares), self.sums @ directions.T, self.count)


DOUBT = 10.0
"""An average over c pairs of values seen together counts c / (c + DOUBT) where variables are crossed."""


def mean_distances(values: Array, scale: Array) -> Array:
    """Mean squared difference of two slices' entries over all that was seen of both, in the units `scale` (d,); NaN where nothing was.

    Trajectories and variables are pooled: with few of them an average for each variable hangs on two or three values.
    """
    n, T, d = values.shape
    seen = ~np.isnan(values)
    centre = np.where(seen, values, 0.0).sum(axis=(0, 1)) / np.maximum(seen.sum(axis=(0, 1)), 1)
    y = np.where(seen, (values - centre) / scale, 0.0).transpose(1, 0, 2).reshape(T, n * d)
    m = seen.transpose(1, 0, 2).reshape(T, n * d).astype(float)
    both = m @ m.T
    squares = (y**2) @ m.T
    D = np.maximum(squares + squares.T - 2 * y @ y.T, 0.0)
    return np.where(both > 0, D / np.maximum(both, 1), np.nan)


def seen_distances(values: Array, scale: Array) -> Array:
    """Squared distances between slices over what was seen of both, a typical one where nothing was."""
    D = mean_distances(values, scale)
    known = ~np.isnan(D) & ~np.eye(len(D), dtype=bool)
    return values.shape[2] * np.where(np.isnan(D), D[known].mean() if known.any() else 1.0, D)


SEARCH_WIDTH = 2000
"""Numbers T·r that the search looks at: with more variables than r those that noise hides least."""


def arrangement(moments: PairMoments, model: StateSpace, prior: Prior | None) -> Arrangement:
    """The search problem under a model: on as many directions of y as its tables may hold."""
    T, d = moments.sums.shape
    r = max(1, SEARCH_WIDTH // T)
    if r < d:
        directions, model = clearest(model, r)
        moments = moments.seen_by(directions)
    return arranged(moments, Chain.regular(model, T), prior)


def arranged(moments: PairMoments, chain: Chain, prior: Prior | None) -> Arrangement:
    """The search problem along a chain, of moments of (y, u)."""
    found = process(chain)
    unary = -moments.sums @ found.shift.T
    rules = None if prior is None else prior.single()
    if rules is not None and rules.costs.size:
        unary += np.where(np.isinf(rules.costs), 0.0, rules.costs)
    return Arrangement(found.precision, moments.squares, unary, rules)


def clearest(model: StateSpace, r: int) -> tuple[Array, StateSpace]:
    """The r directions in which a step moves most beside the noise, and the model there.

    Directions are uncorrelated in noise and in steps; what the drift brings from the others is left out.
    """
    step = model.transition
    scale = np.trace(step.covariance) / len(step.covariance)
    total = model.noise + step.covariance + 1e-9 * scale * np.eye(len(step.covariance))
    lower = np.linalg.cholesky(total)
    white = np.linalg.inv(lower)
    _, vectors = np.linalg.eigh(white @ step.covariance @ white.T)
    to = vectors[:, ::-1].T @ white
    back = np.linalg.inv(to)
    F = (to @ step.matrix @ back)[:r, :r]
    rest = to[:r]
    law = Gaussian(rest @ model.initial.mean, rest @ model.initial.covariance @ rest.T)
    moved = Transition(F, rest @ step.shift, rest @ step.covariance @ rest.T)
    return rest, StateSpace(moved, rest @ model.noise @ rest.T, law)


def starting_orders(values: Array, scale: Array) -> list[Indices]:
    """Where the search starts: a shortest path, best with little noise, and spectral, best with much.

    The noise adds the same to every distance; what it adds is where the mean distance at lag k, along
    the last guess of the order, meets lag 0.
    """
    D = seen_distances(values, scale)
    T = len(D)
    path = shortest_path(D)
    order, floor = path, 0.0
    lags = np.arange(1, max(3, T // 4) + 1)
    for _ in range(3):
        along = D[np.ix_(order, order)]
        means = [np.diagonal(along, k).mean() for k in lags if k < T]
        level = np.polyfit(lags[: len(means)], means, 1)[1]
        floor = float(np.clip(level, 0.0, D[~np.eye(T, dtype=bool)].min()))
        order = spectral_order(np.maximum(D - floor, 0.0))
    return [path, order]


def spectral_order(D: Array) -> Indices:
    """By the Fiedler vector of `exp(−D_ab / (s_a s_b))`, s_a² the distance to a's T/10-th neighbour."""
    T = len(D)
    others = D + np.diag(np.full(T, np.inf))
    k = min(T - 1, max(2, T // 10))
    local = np.sort(others, axis=1)[:, k - 1]
    local = np.maximum(local, 1e-12 * D.max() + 1e-300)
    W = np.exp(-D / np.sqrt(np.outer(local, local)))
    np.fill_diagonal(W, 0.0)
    root = np.sqrt(np.maximum(W.sum(axis=1), 1e-300))
    normal = W / np.outer(root, root)
    vectors = np.linalg.eigh((normal + normal.T) / 2)[1]
    return np.argsort(vectors[:, -2] / root, kind="stable").astype(np.intp)
