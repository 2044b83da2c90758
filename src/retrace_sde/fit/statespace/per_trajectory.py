"""Trajectories that share their missing entries with few others, each smoothed by itself, compiled, in threads.

Entries missing at random make as many patterns as trajectories: a Riccati recursion for each, in batches of
numpy products, costs several times what `kernels` needs. Only sums leave it unless more is asked for,
so that memory does not grow with patterns × T × d².
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from retrace_sde.fit.statespace.kernels import LANES, Filtered, Step, backwards, forwards
from retrace_sde.fit.statespace.model import Stack, StateSpace
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.panel.blocks import Data

ALONE = 64
"""Up to this many trajectories × variables per pattern, each trajectory is smoothed by itself."""

FEWEST = 2 * LANES
"""Fewer patterns than this are left to the recursion, which needs no compiler."""

BLOCK = 1 << 15
"""Numbers of covariances per trajectory for which a thread takes LANES of them at a time; fewer: more."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What the smoother found for n trajectories.

    likelihood and fine (n,): the latter False where differences lost too many digits. xx, rx, rr (n, d, d)
    are Σ E[X Xᵀ], Σ r E Xᵀ − N F P and Σ r rᵀ − N over the steps up to the last observation, x and r (n, d) the
    sums of the means and of r: all that a regression on the states needs. squares (n, d): expected squared
    noise. means (n, T, d), covariances and N F P, crosses (n, T, d, d), where crosses[:, t + 1] belongs to X_t:
    of all times if asked for, else of the first.
    """

    likelihood: Array
    fine: Mask
    xx: Array
    rx: Array
    rr: Array
    x: Array
    r: Array
    squares: Array
    means: Array
    covariances: Array
    crosses: Array


def alone(
    stack: Stack, model: StateSpace, *, full: bool = False, n_jobs: int | None = None
) -> Rows | None:
    """The trajectories of a stack, each smoothed by itself; None where that does not pay or loses digits."""
    T, G, k, d = stack.values.shape
    if G < FEWEST or k > max(1, ALONE // d) or np.any(model.noise[~np.eye(d, dtype=bool)]):
        return None
    y, seen = stack.values.reshape(T, G * k, d), np.repeat(stack.seen, k, axis=1)

    def of_block(rows: slice) -> Rows:
        return smooth_rows(y[:, rows], seen[:, rows], model, full=full)

    size = LANES * max(1, BLOCK // (T * d * d))
    found = joined(Data(y.transpose(1, 0, 2), n_jobs=n_jobs).map_rows(of_block, size=size))
    return found if found.fine.all() else None


def smooth_rows(y: Array, seen: Mask, model: StateSpace, *, full: bool) -> Rows:
    """The smoother for y and seen (T, n, d); with `full` also means and covariances at all times."""
    (T, n, d), lanes = y.shape, LANES
    step, initial = model.transition, model.initial
    parts = step.matrix, step.matrix.T, step.shift, step.covariance, np.diag(model.noise)
    laid_out = Step(*(np.ascontiguousarray(part, dtype=float) for part in parts))
    a, g, u = (np.empty((T, d, lanes)) for _ in range(3))
    P, z, work = (np.empty((size, d, d, lanes)) for size in (T, T, 3))
    filtered = Filtered(a, P, z, g, u)
    found = []
    for begin in range(0, n, lanes):
        some = slice(begin, min(begin + lanes, n))
        rows = some.stop - begin
        times = np.flatnonzero(seen[:, some].any(axis=(1, 2)))
        end = T if full else (int(times[-1]) + 1 if len(times) else 1)
        values, w = np.zeros((end, d, lanes)), np.zeros((end, d, lanes))
        values[..., :rows] = y[:end, some].transpose(0, 2, 1)
        w[..., :rows] = seen[:end, some].transpose(0, 2, 1)
        later: Mask = np.logical_or.accumulate(np.asarray(w.any(axis=1))[::-1], axis=0)[::-1]
        live = np.concatenate([later[1:], np.zeros((1, lanes))])
        likelihood, fine = np.zeros(lanes), np.ones(lanes)
        matrices, vectors = np.zeros((3, d, d, lanes)), np.zeros((2, d, lanes))
        a[0], P[0] = initial.mean[:, None], initial.covariance[:, :, None]
        forwards(values, w, laid_out, filtered, likelihood, fine, work)
        backwards(laid_out, filtered, live, fine, matrices, vectors, work)
        spread = np.einsum("tiim->tim", P[:end])
        squares = (w * ((values - a[:end]) ** 2 + spread)).sum(axis=0)
        keep = slice(None) if full else slice(1)
        states = (a[keep].copy(), P[keep].copy(), z[keep].copy())
        sums = (likelihood, fine > 0, *matrices, *vectors, squares, *states)
        found.append(Rows(*(np.moveaxis(part[..., :rows], -1, 0) for part in sums)))
    return joined(found)


def joined(rows: Iterable[Rows]) -> Rows:
    """One after another."""
    each = zip(*(vars(some).values() for some in rows), strict=True)
    return Rows(*(np.concatenate(parts) for parts in each))
