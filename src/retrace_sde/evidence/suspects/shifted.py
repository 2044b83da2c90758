"""A column that is shifted by one row for some subjects: a cell inserted or deleted in a spreadsheet.

What is expected of a variable at a row is the median of its slice plus a regression, pooled over subjects, on the row's other variables. With
the rows of a subject in the order of the table, `Δ = ½ Σ_i [ρ(y_i − m_i) − ρ(y_i − m_{i±1})]`, in units of the residual variance and with
squares bounded (ρ), is the log-likelihood gained where each value belongs to the row before, or after. It is compared with `log(2 n d / level)`,
and, since deviations from what is expected last for more than a row, with the gains of all other subjects by median and MAD. A subject's level counts for nothing.

Where slices are shared and the rows are not in time order, a shift also makes a column rough along the (robust) order of the slices: the same with
steps in place of residuals. The larger gain counts.

Limits: a variable that neither differs between slices nor follows the others tells nothing; a shift that all subjects have cannot be seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, centre_and_scale, median, robust_order
from retrace_sde.io.arrays import Array, Indices

SHIFT_LEVEL = 0.01
"""Probability with which some column of a panel without shifts is called."""

FAR_GAIN = 8.0
"""Robust standard deviations from the gains of other subjects."""

ORDINARY = 1.5
"""Mean cost of a step, relative to the median of all subjects, up to which a column that is moved back is ordinary."""

MAX_COST = 9.0
"""Squared standardised residuals count up to this."""

MIN_SHIFT_ROWS, MIN_SHIFT_TRAJECTORIES, MAX_SHIFTED_SHARE = 5, 6, 0.5
"""Rows of a subject, subjects, and the share of subjects up to which a shift can be told from the rule."""


class Shifted(NamedTuple):
    """A variable of a trajectory whose values belong `by` rows further up (−1) or down (1); nats gained."""

    trajectory: int
    variable: int
    by: int
    nats: float


def find_shifted(x: Array, sequence: Indices, *, slices: bool) -> list[Shifted]:
    """Shifted columns of x (n, T, d); `sequence` (n, T): observations in the order of the table, those that are not there last.

    `slices`: positions along T are the same slices for all trajectories.
    """
    n, T, d = x.shape
    if n < MIN_SHIFT_TRAJECTORIES or T < MIN_SHIFT_ROWS:
        return []
    centre = median(x, 0)[None] if slices else median(x, (0, 1))[None, None]
    z = np.take_along_axis(x - centre, sequence[:, :, None], axis=1)
    middle = np.take_along_axis(np.broadcast_to(centre, x.shape), sequence[:, :, None], axis=1)
    order, found = None, list[Shifted]()
    if slices:
        level, scale = centre_and_scale(x)
        order = robust_order((x - level) / scale)
    for v in range(d):
        expected = middle[:, :, v] + _from_others(z, v)
        gains = _gains(z[:, :, v] + middle[:, :, v], expected)
        usual = np.median(gains.max(axis=0))
        spread = NORMAL_MAD * np.median(np.abs(gains.max(axis=0) - usual))
        gains = np.where(gains > usual + FAR_GAIN * spread, gains, 0.0)
        if order is not None:
            gains = np.maximum(gains, _smoother(x[:, :, v], sequence, order))
        best, most = gains.argmax(axis=0), gains.max(axis=0)
        called = np.flatnonzero(most > np.log(2 * n * d / SHIFT_LEVEL))
        if len(called) <= MAX_SHIFTED_SHARE * n:
            found += [Shifted(int(j), v, (-1, 1)[best[j]], float(most[j])) for j in called]
    return found


def _from_others(z: Array, v: int) -> Array:
    """What the other variables of z (n, T, d) expect of deviations of variable v, by two rounds of a trimmed regression."""
    n, T, d = z.shape
    if d == 1:
        return np.zeros((n, T))
    others = np.nan_to_num(np.delete(z, v, axis=2).reshape(n * T, d - 1))
    y = z[:, :, v].ravel()
    kept, found = ~np.isnan(y), np.zeros(n * T)
    for _ in range(2):
        B = np.linalg.lstsq(others[kept], y[kept], rcond=None)[0]
        found = others @ B
        rest = np.abs(y - found)
        kept = ~np.isnan(y) & (rest <= 3 * NORMAL_MAD * np.nanmedian(rest))
    return found.reshape(n, T)


def _gains(y: Array, expected: Array) -> Array:
    """Nats (2, n) gained where each value of y (n, T) belongs to the row before it, or to the one after."""
    expected = expected + median(y - expected, 1)[:, None]
    rest = y - expected
    scale = NORMAL_MAD * np.nanmedian(np.abs(rest - np.nanmedian(rest)))
    if not scale > 0:
        return np.zeros((2, len(y)))

    def cost(values: Array) -> Array:
        return np.minimum((values / scale) ** 2, MAX_COST)

    before = cost(rest[:, 1:]) - cost(y[:, 1:] - expected[:, :-1])
    after = cost(rest[:, :-1]) - cost(y[:, :-1] - expected[:, 1:])
    return np.stack([0.5 * np.nansum(each, axis=1) for each in (before, after)])


def _smoother(y: Array, sequence: Indices, order: Indices) -> Array:
    """Nats (2, n) by which steps of y (n, T) along the order are shorter where each value belongs to the row before it, or after."""
    given = y[:, order]
    steps = np.diff(given, axis=1)
    common = median(steps, 0)
    steps = steps - common
    scale = NORMAL_MAD * np.nanmedian(np.abs(steps))
    if not scale > 0:
        return np.zeros((2, len(y)))
    rows = np.take_along_axis(y, sequence, axis=1)
    usual = _mean_cost(steps, scale)
    gains = []
    for by in (-1, 1):
        moved = np.roll(rows, by, axis=1)
        moved[:, -1 if by < 0 else 0] = np.nan
        back = np.empty_like(y)
        np.put_along_axis(back, sequence, moved, axis=1)
        shorter = np.diff(back[:, order], axis=1) - common
        count = (~np.isnan(shorter)).sum(axis=1)
        cost = _mean_cost(shorter, scale)
        gain = 0.5 * count * (usual - cost)
        gains.append(np.where(cost <= ORDINARY * np.median(usual), gain, 0.0))
    return np.stack(gains)


def _mean_cost(steps: Array, scale: float) -> Array:
    """Means over steps (n, T − 1) of their bounded squares."""
    cost = np.minimum((steps / scale) ** 2, MAX_COST)
    known = ~np.isnan(cost)
    return np.asarray(np.where(known, cost, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))
