"""Trajectories that share their missing entries and gaps with few others, each smoothed by itself, compiled, in threads.

Entries missing at random make as many patterns as trajectories: a Riccati recursion for each, in batches of
numpy products, costs several times what `kernels` needs. Only sums leave it unless more is asked for,
so that memory does not grow with patterns × T × d².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.fit.statespace.kernels import LANES, Block, Found, Sums, smooth_block
from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import MAX_SHARED, MAX_UNCOMPILED, MIN_PATTERNS, Stack
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import Data
from retrace_sde.process.sde import symmetric_root

THREAD_ELEMENTS = 1 << 15
"""Numbers of covariances per trajectory for which a thread takes LANES of them at a time; fewer: more."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What the smoother found for n trajectories, and the sums of each class of steps: of each one, or of each of some blocks."""

    found: Found
    sums: Sums

    def grams(self, counts: Array, model: StepModel) -> Array:
        """Gram matrices (…, K, q, q) of (x, v, η), where so many (…, K) steps were of each class: those of all where counts are (K,).

        From `Cov(η) = Q − Q N Q`, between roots of Q: a difference in Q's own units keeps its small directions.
        """
        sums = self.sums
        if counts.ndim == 1:
            sums = Sums(*(each.sum(axis=0) for each in sums))
        Q, d, p = model.covariance, len(model.noise), sums.cross.shape[-1]
        root = symmetric_root(Q)
        gram = np.empty((*counts.shape, p + d, p + d))
        gram[..., :p, :p] = sums.regressors
        gram[..., d:p, :d] = sums.regressors[..., :d, d:].swapaxes(-1, -2)
        gram[..., p:, :p] = Q @ sums.cross
        gram[..., :p, p:] = gram[..., p:, :p].swapaxes(-1, -2)
        inner = np.eye(d) * counts[..., None, None] + root @ sums.squares @ root
        gram[..., p:, p:] = root @ inner @ root
        return gram


def per_trajectory(
    stack: Stack,
    model: StepModel,
    *,
    times: int = 1,
    total: bool = False,
    n_jobs: int | None = None,
) -> Rows | None:
    """The trajectories of a stack, each smoothed by itself; None where that does not pay or loses digits.

    `times`: means and covariances are kept of the first so many. `total`: only sums over many trajectories are.
    """
    T, G, k, d = stack.values.shape
    few = G < MIN_PATTERNS or k > max(1, MAX_SHARED // d) or G * k * T * d * d <= MAX_UNCOMPILED
    if model.regular and (few or not model.diagonal):
        return None
    (K, _, m), n = model.inputs.shape, G * k
    steps, transposed = model.table, np.ascontiguousarray(model.matrix.swapaxes(1, 2))
    v = np.ones((T, n, m)) if stack.inputs is None else stack.inputs.reshape(T, n, m)
    classes = np.ascontiguousarray(np.repeat(stack.classes, k, axis=1), dtype=np.intp)
    whole = Block(stack.values.reshape(T, n, d), np.repeat(stack.seen, k, axis=1), classes, v)

    def of_block(rows: slice) -> Rows:
        y, seen, classes, v = (np.ascontiguousarray(part[:, rows]) for part in whole)
        block = Block(y, seen, classes, v)  # type: ignore[arg-type]
        b = block.values.shape[1]
        found = Found(
            np.empty(b), np.empty(b, dtype=bool), np.empty((b, d)), np.empty((b, times, d)),
            np.empty((b, times, d, d)), np.empty((b, times, d, d)),
        )  # fmt: skip
        rows_out, p = 1 if total else b, d + m
        sums = Sums(*(np.zeros((rows_out, K, *shape)) for shape in ((p, p), (d, p), (d, d))))
        smooth_block(steps, transposed, block, times, total, found, sums)
        return Rows(found, sums)

    size = LANES * max(1, THREAD_ELEMENTS // (T * d * d))
    blocks = list(
        Data(whole.values.transpose(1, 0, 2), n_jobs=n_jobs).map_rows(of_block, size=size)
    )
    found = Found(*_joined([block.found for block in blocks]))
    if model.regular and not found.fine.all():
        return None
    return Rows(found, Sums(*_joined([block.sums for block in blocks])))


def _joined(parts: Sequence[Any]) -> list[Any]:
    """Each array of some records, one after another."""
    return [np.concatenate(each) for each in zip(*parts, strict=True)]
