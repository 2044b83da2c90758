"""A robust law of steps over gaps of any length, and what each step costs under it.

Over a gap g the SDE `dX = (A X + c) dt + G dW` is exactly `X' = F X + s + N(0, Q)` (`fit/statespace/transitions`). Steps that rest
on wrong stamps are outliers, so they are fitted with Student's t weights, `(ν + d) / (ν + r²)`, or left out once they are known.
Costs are those of Student's t with the degrees of freedom that fit the steps best: steps of real data have heavier tails than
a Gaussian, and would otherwise be taken for wrong stamps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from retrace_sde.fit.irregular_times import StepLikelihood, maximum
from retrace_sde.fit.statespace.transitions import transitions, van_loan_matrix
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.tails import chi2_ppf

GAP_BINS = 24
"""Bins of gaps, on a logarithmic scale, that the steps of a fit are sorted into: within a bin gaps differ by a few per cent."""

TABULATED_GAPS = 40
"""Gaps at which costs are tabulated, on a logarithmic scale; between them they are interpolated."""

TAILS = (3.0, 5.0, 10.0, 30.0, 200.0)
"""Degrees of freedom that are compared."""

MAX_RELAXATION = 25.0
"""‖A‖ g beyond which a longer gap changes nothing: there the process has forgotten, or exponentials lose their digits."""

ROBUST_ROUNDS = 4
"""Rounds of reweighting: weights change by less than a hundredth thereafter."""


@dataclass(frozen=True, eq=False)
class StepLaw:
    """`X' | X` over any gap, for values that are standardised; gaps are in units of the median gap. `tails`: degrees of freedom."""

    theta: Array
    diffusion: Array
    tails: float

    def squares(self, before: Array, after: Array, gaps: Array) -> tuple[Array, Array]:
        """`r²` of each step, (N,), and ½ log |Q|; steps share the law of the nearest of the tabulated gaps."""
        levels = gap_levels(gaps)
        at = np.abs(np.log(np.maximum(gaps, levels[0]))[:, None] - np.log(levels)).argmin(axis=1)
        F, s, roots, logs = self.steps(levels)
        residual = after - np.einsum("kij,kj->ki", F[at], before) - s[at]
        white = np.einsum("kij,kj->ki", roots[at], residual)
        return np.asarray((white**2).sum(axis=1)), logs[at]

    def steps(self, gaps: Array) -> tuple[Array, Array, Array, Array]:
        """F (K, d, d), s (K, d), inverse roots of Q and ½ log |Q| over each gap, which is capped at the law's reach."""
        speed = np.abs(van_loan_matrix(self.theta, self.diffusion)).sum(axis=0).max()
        reached = np.minimum(gaps, MAX_RELAXATION / max(float(speed), 1e-300))
        F, S, Q = transitions(self.theta, self.diffusion, reached)
        values, vectors = np.linalg.eigh(Q)
        values = np.maximum(values, 1e-9 * values[:, -1:])
        roots = vectors.transpose(0, 2, 1) / np.sqrt(values)[:, :, None]
        return F, S[:, :, 0], roots, 0.5 * np.log(values).sum(axis=1)

    def whitened(self, values: Array, levels: Array) -> tuple[Array, Array, Array]:
        """Values (N, d) and where a step over each gap is expected to end from them, whitened, (K, N, d); and costs (K,) of steps that end there."""
        F, s, roots, logs = self.steps(levels)
        white = roots.transpose(0, 2, 1)
        ahead = values @ F.transpose(0, 2, 1) + s[:, None]
        return values @ white, ahead @ white, self.cost(np.zeros(1), logs, values.shape[1])

    def cost(self, squares: Array, logs: Array, d: int) -> Array:
        """−log density of steps."""
        return logs + _minus_log_t(squares, self.tails, d)

    def table(self, values: Array, levels: Array) -> Array:
        """Costs (K, T, T) of b after a over each tabulated gap, summed over n subjects of values (n, T, d)."""
        _, T, d = values.shape
        F, s, roots, logs = self.steps(levels)
        found = np.empty((len(levels), T, T))
        for k in range(len(levels)):
            ahead = (values @ F[k].T + s[k]) @ roots[k].T
            here = values @ roots[k].T
            squares = (here**2).sum(axis=2)[:, None, :] + (ahead**2).sum(axis=2)[:, :, None]
            squares -= 2 * ahead @ here.transpose(0, 2, 1)
            found[k] = self.cost(np.maximum(squares, 0.0), logs[k], d).sum(axis=0)
        return found


def _minus_log_t(squares: Array, tails: float, d: int) -> Array:
    """−log density of Student's t of d dimensions, scaled to have unit variance."""
    scale = (tails - 2) / tails
    constant = gammaln(tails / 2) - gammaln((tails + d) / 2) + d / 2 * np.log(tails * np.pi * scale)
    return np.asarray(constant + (tails + d) / 2 * np.log1p(squares / (tails * scale)))


def gap_levels(gaps: Array) -> Array:
    """Gaps, in units of their median, for which costs are tabulated: from a tenth of it to the largest that there may be."""
    return np.geomspace(0.1, max(float(np.max(gaps)), 2.0), TABULATED_GAPS)


def fit_steps(before: Array, after: Array, gaps: Array, *, robust: bool) -> StepLaw:
    """The law of steps, `before` and `after` (N, d); `robust`: some of them are not steps at all."""
    N, d = before.shape
    weights = np.ones(N)
    law = _fitted(before, after, gaps, weights)
    for _ in range(ROBUST_ROUNDS if robust else 1):
        squares, _ = law.squares(before, after, gaps)
        values = [float(_minus_log_t(squares, each, d).sum()) for each in TAILS]
        law = StepLaw(law.theta, law.diffusion, TAILS[int(np.argmin(values))])
        if not robust:
            break
        middle = float(np.median(squares)) / max(d - 2 / 3, 0.4)  # of r², were all of them steps
        weights = (3 + d) / (3 + squares / middle)
        law = _fitted(before, after, gaps, weights / weights.max())
        squares, _ = law.squares(before, after, gaps)
        # Weights shrink the spread: it is brought back to where half of the steps are as large as they should be.
        factor = float(np.median(squares)) / chi2_ppf(0.5, d)
        law = StepLaw(law.theta, law.diffusion * factor, law.tails)
    return law


def _fitted(before: Array, after: Array, gaps: Array, weights: Array) -> StepLaw:
    """Weighted maximum likelihood with exact transitions, gaps in bins."""
    d = before.shape[1]
    low, high = max(float(gaps.min()), 0.1), max(float(gaps.max()), 0.11)
    edges = np.geomspace(low, high * 1.0001, GAP_BINS + 1)
    at = np.clip(np.searchsorted(edges, gaps, side="right") - 1, 0, GAP_BINS - 1)
    z = np.c_[before, np.ones(len(before)), after - before]
    grams = np.zeros((GAP_BINS, 2 * d + 1, 2 * d + 1))
    counts, sums = np.zeros(GAP_BINS), np.zeros(GAP_BINS)
    for k in np.unique(at):
        some = at == k
        w = weights[some]
        grams[k] = (z[some] * w[:, None]).T @ z[some]
        counts[k], sums[k] = w.sum(), (w * np.maximum(gaps[some], 0.1)).sum()
    live = counts > 0
    middle = np.where(live, sums / np.maximum(counts, 1e-300), 1.0)
    theta, H = _euler(z, gaps, weights, d)
    zeros, ones = np.zeros((GAP_BINS, d, d + 1)), np.ones((d, d + 1))
    free = np.ones((d, d + 1), dtype=bool)
    likelihood = StepLikelihood(grams, counts, middle, zeros, free, zeros[0], ones, ones[:, 0])
    theta, H, _ = likelihood.split(maximum(likelihood, theta, H, middle))
    return StepLaw(theta, H, TAILS[-1])


def _euler(z: Array, gaps: Array, weights: Array, d: int) -> tuple[Array, Array]:
    """Where the search begins: Euler's step, shrunk a little, which is also there for few steps."""
    g = np.maximum(gaps, 0.1)
    w = weights / g
    x, change = z[:, : d + 1] * g[:, None], z[:, d + 1 :]
    gram = (x * w[:, None]).T @ x + 1e-6 * len(z) * np.eye(d + 1)
    theta = np.linalg.solve(gram, (x * w[:, None]).T @ change).T
    rest = change - x @ theta.T
    H = (rest * w[:, None]).T @ rest / weights.sum()
    return np.asarray(theta), np.asarray(H + 1e-6 * np.eye(d) * max(np.trace(H) / d, 1e-9))


def pairs_in_order(times: Array, kept: Mask) -> tuple[Indices, Indices, Indices, Array]:
    """Neighbours in time among what is `kept` (n, T): rows, observations before and after, and gaps."""
    rows, first, second, gaps = [], [], [], []
    for j in range(len(times)):
        there = np.flatnonzero(kept[j])
        order = there[np.argsort(times[j, there], kind="stable")]
        rows.append(np.full(max(len(order) - 1, 0), j))
        first.append(order[:-1])
        second.append(order[1:])
        gaps.append(np.diff(times[j, order]))
    parts = (np.concatenate(each) for each in (rows, first, second))
    a, b, c = (each.astype(np.intp) for each in parts)
    return a, b, c, np.concatenate(gaps)
