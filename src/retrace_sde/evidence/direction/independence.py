"""Non-Gaussian noise has a direction: residuals are independent of the past one way round only (Peters et al. 2009).

A stationary linear process with Gaussian noise runs backwards as well as forwards. With any other noise the regression
backwards leaves residuals that are uncorrelated with what they were regressed on, but not independent of it. A likelihood
of such residuals is treacherous on real panels, where subjects that differ and changing variances look like
dependence, in both directions. So independence is tested both ways round, and a direction is heard only where it is accepted
in one and clearly rejected in the other; rejected in both, as is usual on real panels, says nothing.

The statistic is `‖Σ f(e) g(x)ᵀ‖²` with f, g random cosines of residuals and past (a kernel's independence criterion),
g with its regression on the past taken out: what estimating the regression changes is then of second order, and
permuted residuals give the p-value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.direction.linear import (
    Form,
    Panels,
    each_trajectory,
    regressors,
    unequal,
    ways,
)
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import evenly

COSINES = 16
"""Random cosines for each width, on either side."""

WIDTHS = (0.5, 1.0), (1.0, 2.0)
"""Of the kernels, in units of √d standard deviations: narrow ones and wide ones, each a test of its own."""

SHUFFLES = (19, 2), (99, 1), (999, 999)
"""Permutations, and how many of them may reach the statistic for more to be asked: a p-value far above both levels needs few."""

ROWS, FEWEST_ROWS = 3000, 1000
"""Steps that are looked at, at most, and without which nothing is asked: fewer accept what more would reject."""

ACCEPTED, REJECTED = 0.05, 0.003
"""A p-value above the one accepts independence; up to the other it is rejected."""


class Independence(NamedTuple):
    """The p-values of independence as the order stands, and for its reverse."""

    ahead: float
    back: float

    @property
    def favours(self) -> int:
        """1: the order as it stands; −1: its reverse; 0: neither."""
        if self.ahead > ACCEPTED and self.back <= REJECTED:
            return 1
        return -1 if self.back > ACCEPTED and self.ahead <= REJECTED else 0


def independence(panels: Panels, form: Form, rng: np.random.Generator) -> Independence | None:
    """Of residuals and past in both directions, after what a form takes out; None where there are too few steps.

    Steps that differ in variance are brought to one: they look like dependence on a past that differs as much.
    """
    live = panels.live(form.lags) > 0
    if live.sum() < FEWEST_ROWS:
        return None
    panels = unequal(panels, form) or panels
    found = []
    for way in ways(panels, form):
        e = each_trajectory(panels, way)[1][0][live]
        past = regressors(panels, way)[0][live]
        rows = evenly(len(e), ROWS)
        p = min(_p_value(e[rows], past[rows], widths, rng) for widths in WIDTHS)
        found.append(min(1.0, len(WIDTHS) * p))
    return Independence(*found)


def _p_value(e: Array, past: Array, widths: tuple[float, ...], rng: np.random.Generator) -> float:
    one = _cosines(_white(e), widths, rng)
    z = _white(past)
    basis = np.linalg.qr(np.c_[np.ones(len(z)), z])[0]
    two = _cosines(z, widths, rng)
    two = two - basis @ (basis.T @ two)
    one = one - one.mean(axis=0)
    observed = float(((one.T @ two) ** 2).sum())
    reached = done = 0
    for total, few in SHUFFLES:
        for _ in range(total - done):
            reached += float(((one[rng.permutation(len(one))].T @ two) ** 2).sum()) >= observed
        done = total
        if reached > few:
            break
    return (1 + reached) / (1 + done)


def _white(x: Array) -> Array:
    """Centred, with unit covariance."""
    z = x - x.mean(axis=0)
    S = z.T @ z / len(z)
    lower = np.linalg.cholesky(S + 1e-9 * np.diag(np.diag(S)))
    return np.asarray(np.linalg.solve(lower, z.T).T)


def _cosines(z: Array, widths: tuple[float, ...], rng: np.random.Generator) -> Array:
    d = z.shape[1]
    parts = []
    for width in widths:
        turn = rng.standard_normal((d, COSINES)) / (width * np.sqrt(d))
        parts.append(np.cos(z @ turn + rng.uniform(0, 2 * np.pi, COSINES)))
    return np.concatenate(parts, axis=1)
