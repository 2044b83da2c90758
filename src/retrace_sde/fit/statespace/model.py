"""The state-space model, its checks, and observations grouped by their pattern of missing entries.

X_{i+1} = F X_i + s + N(0, Q),     Y_i = X_i + N(0, R),     X_0 ~ N(m₀, P₀).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.statespace.kernels import LANES
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.sde import Gaussian, Transition

STACK_ELEMENTS = 1 << 21
"""Numbers per array of covariances (patterns) or of means (trajectories) worked on at a time: 16 MiB."""


@dataclass(frozen=True, eq=False)
class StateSpace:
    """A state-space model of one step: `X' = F X + s + N(0, Q)`, `Y = X + N(0, R)`.

    `StateSpace(sde.transition(dt), R, initial)` is the model of an SDE.

    Parameters
    ----------
    transition : Transition
        F, s and Q of one step; Q must be positive definite.
    noise : array (d, d)
        R; may be zero where P₀ is positive definite (values then are missing or exact).
    initial : Gaussian
        The law of X_0.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE(-np.eye(2), np.eye(2))
    >>> model = rt.statespace.StateSpace(sde.transition(0.1), 0.01 * np.eye(2), sde.stationary())
    >>> rt.statespace.kalman(sde.simulate(3, 20, 0.1, random_state=0), model).means.shape
    (3, 20, 2)
    """

    transition: Transition
    noise: Array
    initial: Gaussian


@dataclass(frozen=True, eq=False)
class Stack:
    """G patterns of k trajectories: values (T, G, k, d) with 0 for missing entries, seen (T, G, d)."""

    values: Array
    seen: Mask
    patterns: Indices
    rows: Indices

    @property
    def steps(self) -> Array:
        """1 for each transition up to a pattern's last observation, (T − 1, G); later ones hold no data."""
        some: Mask = np.asarray(self.seen.any(axis=2))
        after: Mask = np.logical_or.accumulate(some[::-1], axis=0)[::-1]
        return after[1:].astype(float)


def as_observations(Y: ArrayLike) -> Array:
    """Y as float64 (n, T, d); refused where the shape is another, a value infinite or nothing was seen."""
    values = np.asarray(Y, dtype=float)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            f"observations must have shape (trajectory, time, variable); got {values.shape}."
        )
    if np.isinf(values).any():
        raise ValueError("observations contain infinite values; missing ones are written as NaN.")
    if np.isnan(values).all():
        raise ValueError("every observation is missing (NaN).")
    return values


def check_model(model: StateSpace, d: int) -> None:
    """Shapes that fit together, and covariances that can be ones."""
    step, initial = model.transition, model.initial
    named = {"transition": step.matrix, "step covariance": step.covariance, "noise": model.noise}
    for name, matrix in {**named, "initial covariance": initial.covariance}.items():
        if np.shape(matrix) != (d, d) or not np.isfinite(matrix).all():
            raise ValueError(
                f"the {name} must be a finite matrix ({d}, {d}), not {np.shape(matrix)}."
            )
        if name != "transition" and not is_covariance(matrix):
            raise ValueError(f"the {name} must be symmetric, without negative eigenvalues.")
    if np.shape(step.shift) != (d,) or np.shape(initial.mean) != (d,):
        raise ValueError(f"the shift and the initial mean must be vectors of {d} numbers.")
    for matrix in (step.covariance, initial.covariance + model.noise):
        if np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError(
                "the step covariance, and the sum of noise and initial covariance, must be positive definite."
            )


def is_covariance(matrix: Array) -> bool:
    """Symmetric and positive semi-definite, up to rounding."""
    scale = float(np.abs(matrix).max())
    if not np.allclose(matrix, matrix.T, rtol=0, atol=1e-8 * scale):
        return False
    return bool(np.linalg.eigvalsh(matrix)[0] >= -1e-10 * scale)


def group(values: Array) -> tuple[Indices, list[Stack]]:
    """The pattern of each trajectory, and stacks of patterns with equally many trajectories."""
    n = len(values)
    seen = ~np.isnan(values)
    if seen.all():
        whole = Stack(
            np.ascontiguousarray(values.transpose(1, 0, 2))[:, None],
            seen[0][:, None],
            np.zeros(1, np.intp),
            np.arange(n)[None],
        )
        return np.zeros(n, np.intp), [whole]
    packed = np.packbits(seen.reshape(n, -1), axis=1)
    _, first, pattern, counts = np.unique(
        packed, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    pattern = pattern.reshape(n)
    by_pattern = np.split(np.argsort(pattern, kind="stable"), np.cumsum(counts)[:-1])
    stacks = []
    for k in np.unique(counts):
        same = np.flatnonzero(counts == k)
        rows = np.array([by_pattern[g] for g in same])
        found = np.ascontiguousarray(np.nan_to_num(values[rows]).transpose(2, 0, 1, 3))
        mask = np.ascontiguousarray(seen[first[same]].transpose(1, 0, 2))
        stacks.append(Stack(found, mask, same, rows))
    return pattern, stacks


def portions(stack: Stack, each: int) -> Iterator[Stack]:
    """Some of the patterns at a time, where each takes so many numbers, so that memory stays bounded."""
    G = len(stack.patterns)
    size = max(2 * LANES, STACK_ELEMENTS // each)
    for begin in range(0, G, size):
        some = slice(begin, begin + size)
        yield Stack(
            stack.values[:, some], stack.seen[:, some], stack.patterns[some], stack.rows[some]
        )


def parts(stack: Stack) -> Iterator[Stack]:
    """The same patterns with some of their trajectories at a time, so that memory stays bounded."""
    T, G, k, d = stack.values.shape
    size = max(1, STACK_ELEMENTS // (T * G * d))
    for begin in range(0, k, size):
        some = slice(begin, begin + size)
        yield Stack(stack.values[:, :, some], stack.seen, stack.patterns, stack.rows[:, some])
