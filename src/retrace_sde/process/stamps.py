"""How time stamps follow from true times: each is right within its error, or carries no information.

    p(s | t) = (1 − w) N(s; t, σ²) + w / W,

w the share of stamps that are wrong and W the range of all. The cost of a stamp, −log p, is bounded: however far a stamp is from a
time, it speaks against it by no more than log W (1 − w) / (w σ √2π). On a regular grid `t = t₀ + i Δt` the origin t₀ is not known; it is
summed over, each candidate weighted by the best matching of sorted stamps and grid points that it allows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.kernels import njit

ROOT_TWO_PI = float(np.sqrt(2 * np.pi))

LEAST_ERROR = 0.02
"""Error of stamps that are called exact, in gaps: clocks are read, and rounded."""

ORIGINS_PER_ERROR = 3.0
"""Candidates for the origin of a grid within one standard deviation of a stamp; a finer grid changed no cost by .02 nats."""

NEGLIGIBLE_WEIGHT = 1e-6
"""Weight of an origin, relative to the best, that is left out."""


class Stamps(NamedTuple):
    """Stamps (NaN: none) and their errors, the range of true times, and how often and how widely stamps are wrong."""

    given: Array
    error: Array
    low: float
    high: float
    wrong: float
    width: float


@njit(cache=True, nogil=True, error_model="numpy")
def right_density(stamps: Stamps, a: int, t: float) -> float:
    """`(1 − w) N(s_a; t, σ²)`."""
    z = (stamps.given[a] - t) / stamps.error[a]
    return (1 - stamps.wrong) * np.exp(-0.5 * z * z) / (stamps.error[a] * ROOT_TWO_PI)


@njit(cache=True, nogil=True, error_model="numpy")
def stamp_cost(stamps: Stamps, a: int, t: float) -> float:
    """−log of the density of a stamp, right or wrong, given the true time."""
    if np.isnan(stamps.given[a]):
        return 0.0
    return -np.log(right_density(stamps, a, t) + stamps.wrong / stamps.width)


@njit(cache=True, nogil=True, error_model="numpy")
def matching_cost(stamps: Stamps, ranked: Indices, grid: Array) -> float:
    """The least cost of stamps, ranked, at points of a grid that grow with them, or wrong and at any point that is left."""
    G = len(grid)
    flat = -np.log(stamps.wrong / stamps.width)
    best, now = np.zeros(G + 1), np.empty(G + 1)  # of the stamps so far at the first i points
    for a in ranked:
        now[0] = best[0] + flat
        log_scale = np.log((1 - stamps.wrong) / (stamps.error[a] * ROOT_TWO_PI))
        for i in range(1, G + 1):
            z = (stamps.given[a] - grid[i - 1]) / stamps.error[a]
            right = best[i - 1] + 0.5 * z * z - log_scale
            now[i] = min(best[i] + flat, now[i - 1], right)
        best, now = now, best
    return float(best[G])


@njit(cache=True, nogil=True, error_model="numpy")
def mixed_costs(stamps: Stamps, ranked: Indices, origins: Array, grid: Array) -> Array:
    """−log p of each stamp at each point of a grid, (T, G), summed over the grid's origins."""
    T, G, count = len(stamps.given), len(grid), len(origins)
    weights = np.empty(count)
    for k in range(count):
        weights[k] = matching_cost(stamps, ranked, grid + origins[k]) if count > 1 else 0.0
    weights = np.exp(weights.min() - weights)
    total = weights.sum()
    found = np.zeros((T, G))
    for k in range(count):
        if weights[k] > NEGLIGIBLE_WEIGHT:
            for a in ranked:
                for i in range(G):
                    found[a, i] += (
                        weights[k] / total * right_density(stamps, a, grid[i] + origins[k])
                    )
    for a in ranked:
        found[a] = -np.log(found[a] + stamps.wrong / stamps.width)
        found[a] -= found[a].min()
    return found


def grid_costs(given: Array, error: Array, grid: Array, wrong: float, *, fixed: bool) -> Array:
    """Costs (T, G) of one sequence of stamps (T,), NaN: none, at each point of its grid; `fixed`: the origin is known.

    Each row is relative to its least entry.
    """
    known = np.flatnonzero(~np.isnan(given))
    if not len(known):
        return np.zeros((len(given), len(grid)))
    width = max(float(np.ptp(given[known])), float(np.ptp(grid))) + float(error[known].max())
    stamps = Stamps(given, error, 0.0, 0.0, wrong, width)
    ranked = known[np.argsort(given[known])]
    origins = np.zeros(1) if fixed else _origins(given[ranked], error[ranked], grid, wrong)
    return np.asarray(mixed_costs(stamps, ranked, origins, grid))


def _origins(ranked: Array, error: Array, grid: Array, wrong: float) -> Array:
    """Where a grid may begin: such that some stamp lies on it, and not further from most than wrong and missing stamps explain."""
    m, G = len(ranked), len(grid)
    step = float(np.ptp(grid)) / max(G - 1, 1)
    middle = float(np.median(ranked - grid[:m]))
    beyond = step * (2 + np.ceil(3 * wrong * m)) + step * (G - m)
    differences = (ranked[:, None] - grid).ravel()
    near = differences[np.abs(differences - middle) <= beyond]
    resolution = float(error.min()) / ORIGINS_PER_ERROR
    return np.asarray(np.unique(np.round(near / resolution)) * resolution)


def wrong_probabilities(given: Array, error: Array, times: Array, wrong: float) -> Array:
    """The probability that each stamp (T,) is wrong where true times are `times` up to their origin; NaN: no stamp."""
    known = ~np.isnan(given)
    found = np.full(len(given), np.nan)
    if not known.any():
        return found
    s, sigma, t = given[known], error[known], times[known]
    flat = wrong / (max(float(np.ptp(s)), float(np.ptp(t))) + float(sigma.max()))
    z = (s - t - (s - t)[:, None]) / sigma  # by origin, stamp
    right = (1 - wrong) * np.exp(-0.5 * z * z) / (sigma * ROOT_TWO_PI)
    log_weights = np.log(right + flat).sum(axis=1)
    weights = np.exp(log_weights - log_weights.max())
    found[known] = (weights / weights.sum()) @ (flat / (right + flat))
    return found
