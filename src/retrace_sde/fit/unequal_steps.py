"""Steps of unequal variance: gaps that are not all dt, or a volatility that changes with time.

Under one SDE and a regular grid the squares of every step have the same law. Real panels often do not:
a Gaussian cost then lets the few largest steps decide on the order. So each step i has a variance v_i of its own,
inverse-gamma about the common one, `v ~ IG(α, β)`; with half squares s of N numbers a step then costs
`(N/2 + α) log(1 + s/β)`, and (α, β) are those that the steps of the current order make most likely (empirical Bayes).
Where the steps are alike α is infinite and the Gaussian cost s comes back.

Time and volatility are told apart by clocks: over a gap g the mean of a step grows with g, and so does its variance. In each
whitened variable k the mean says `δ_ik/g_i`, `δ = Σ b r / Σ b²` (r residual, b drift), and the spread `Σ r²/n − 1`, both 0 but for chance
where g_i is a gap and nothing else. What they may differ by beyond chance, τ² (after Paule and Mandel), is what changing volatility,
common shocks or a wrong drift put into gaps, and it widens their intervals. Unequal gaps cannot be wrong by more than they are unequal,
so τ is at most the spread of log g.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import digamma, gammaln

from retrace_sde.fit.information import lbfgs
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import optimize
from retrace_sde.process.tails import chi2_ppf

UNEQUAL_NATS = 5.0
"""Nats by which unequal variances must fit better than equal ones; equal ones do that in at most 0.5 % of panels (15 to
100 slices, 12 to 1000 numbers each, 400 panels)."""


@dataclass(frozen=True)
class Dispersion:
    """(α, β) of the steps' variances, in units of the common one; `evidence` in nats against equal ones."""

    alpha: float
    beta: float
    numbers: float
    evidence: float

    def costs(self, halves: Array) -> Array:
        """The costs of steps whose half squares are given; ∞ stays ∞."""
        return (self.numbers / 2 + self.alpha) * np.log1p(halves / self.beta)

    def log_densities(self, halves: Array) -> Array:
        """Log-densities of whitened steps, their variances integrated out (constants of 2π left out)."""
        m, a, b = self.numbers / 2, self.alpha, self.beta
        return gammaln(m + a) - gammaln(a) + a * np.log(b) - (m + a) * np.log(b + halves)


def dispersion(halves: Array, numbers: float) -> Dispersion | None:
    """From the half squares of an order's steps, N numbers each; None where the steps are alike."""
    m, S = numbers / 2, len(halves)
    # Each step with the variance that suits it best: no law of variances explains them better.
    with np.errstate(divide="ignore"):
        most = float((halves - m - m * np.log(halves / m)).sum())
    if most <= UNEQUAL_NATS:
        return None

    def shortfall(q: Array) -> tuple[float, Array]:
        """And its derivatives by log α and by log β/α, the common variance: of alike steps only that one is told."""
        alpha = np.exp(q[0])
        beta = alpha * np.exp(q[1])
        logs, shares = np.log(beta + halves), beta / (beta + halves)
        constant = gammaln(m + alpha) - gammaln(alpha) + alpha * np.log(beta)
        value = (m + alpha) * logs.sum() - S * constant
        of_beta = (m + alpha) * shares.sum() - S * alpha
        of_alpha = alpha * (logs.sum() - S * (digamma(m + alpha) - digamma(alpha) + np.log(beta)))
        return float(value), np.array([of_alpha + of_beta, of_beta])

    start = np.log([3.0, max(halves.mean() / m, 1e-12)])
    near = start[1] - 20, start[1] + 20
    found = lbfgs(shortfall, start, bounds=[(-20, 20), near], ftol=1e-12)
    evidence = float(halves.sum() - found.fun)
    if not evidence > UNEQUAL_NATS:
        return None
    alpha = float(np.exp(found.x[0]))
    return Dispersion(alpha, alpha * float(np.exp(found.x[1])), numbers, evidence)


TAU_QUANTILE = 0.25
"""Lower quantile of χ² that defines τ, an upper confidence limit: clocks with little information, as a mean that hardly moves,
must not count as agreement."""

AGREEMENT_TAU = 0.15
"""Largest τ at which clocks are reported to agree."""


class Clocks(StrEnum):
    """Whether mean and variance of the steps imply the same gaps."""

    AGREE = "agree"
    DISAGREE = "disagree"
    INSEPARABLE = "inseparable"


@dataclass(frozen=True)
class GapClocks:
    """What the clocks say, and τ, the standard deviation of log g that it adds."""

    clocks: Clocks
    deviation: float

    def __str__(self) -> str:
        factor = f"a factor of {np.exp(self.deviation):.2g}"
        return {
            Clocks.AGREE: "mean and variance of the steps imply the same gaps",
            Clocks.DISAGREE: f"gaps implied by the mean and by the variance of the steps differ by {factor}; the intervals are widened by it",
            Clocks.INSEPARABLE: "unequal gaps cannot be distinguished from unequal volatility, so the intervals are as wide as "
            "the gaps are unequal",
        }[self.clocks]


def gap_clocks(residuals: Array, pushes: Array, gaps: Array) -> GapClocks:
    """From whitened residuals and drifts per unit of time (n, S, d) along S gaps."""
    n = len(residuals)
    power = np.maximum((pushes**2).sum(axis=0), 1e-300)
    moved = (pushes * residuals).sum(axis=0) / power / gaps[:, None]
    spread = (residuals**2).mean(axis=0) - 1
    deviations = np.concatenate([moved, spread], axis=1)
    chance = np.concatenate([1 / power / gaps[:, None] ** 2, np.full_like(spread, 2 / n)], axis=1)
    most = float(np.log(gaps).std())
    excess = _excess(deviations**2, chance, most)
    if excess == most:
        return GapClocks(Clocks.INSEPARABLE, most)
    return GapClocks(Clocks.DISAGREE if excess > AGREEMENT_TAU else Clocks.AGREE, excess)


def _excess(squares: Array, chance: Array, most: float) -> float:
    """τ, at most `most`, with `Σ D²/(σ² + τ²)` at the lower `TAU_QUANTILE` quantile of χ²; the gaps themselves took one degree each."""
    wanted = chi2_ppf(TAU_QUANTILE, squares.size - len(squares))

    def surplus(variance: float) -> float:
        return float((squares / (chance + variance)).sum() - wanted)

    if surplus(0.0) <= 0:
        return 0.0
    return most if surplus(most**2) >= 0 else float(np.sqrt(optimize.brentq(surplus, 0.0, most**2)))
