"""How likely a residual of a given length is by chance: the tail of a multivariate t distribution fitted to the bulk.

For residuals r in d dimensions `|r|²/(d c) ~ F(d, ν)`; the scale c comes from their median, ν from the likelihood of those beyond the
third quartile. A spike needs two large residuals in the same direction. Where those are independent the probability of both is
the product; where they are correlated (ρ, measurement noise) it is `S(u)^{2/(1+ρ)}` (Ledford and Tawn 1996).

Limits: the tail is extrapolated. The empirical tail of the residuals that are no candidates is a lower bound of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.tails import f_median, f_sf

DEGREES_OF_FREEDOM = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0, 100.0)
"""Degrees of freedom that are compared; of those within `NEAR_NATS` of the best the largest is used."""

NEAR_NATS, EXCEEDED = 1.0, 0.75

FITTED_LENGTHS = 10_000
"""Lengths, evenly among all by size, that are enough to fit the tail."""


ROUNDING = 1e-8
"""Share of the largest length below which one is zero up to rounding: medians of 1e-32 were seen in sparse 0/1 tables."""


@dataclass(frozen=True, eq=False)
class Tail:
    """The survival function of lengths of residuals in d dimensions."""

    d: int
    scale: float
    degrees: float
    sorted: Array

    @classmethod
    def of(cls, lengths: Array, d: int) -> Tail | None:
        """Fitted to lengths of residuals that are thought to be clean; None where most are zero, and there is nothing to compare with."""
        every = np.sort(lengths)
        lengths = every[evenly(len(every), FITTED_LENGTHS)]
        middle, third = np.median(lengths), np.quantile(lengths, EXCEEDED)
        if middle <= ROUNDING * every[-1]:
            return None
        top = lengths[lengths > third]
        values = []
        for degrees in DEGREES_OF_FREEDOM:
            scale = middle**2 / d / f_median(d, degrees)
            density = _log_density(top**2 / d / scale, d, degrees) + np.log(top / scale)
            beyond = float(f_sf(third**2 / d / scale, d, degrees))
            # zero up to rounding where the third quartile is far beyond the median: such degrees are ruled out
            values.append(float((density - np.log(beyond)).sum()) if beyond > 0 else -np.inf)
        best = int(np.flatnonzero(np.array(values) > max(values) - NEAR_NATS)[-1])
        scale = middle**2 / d / f_median(d, DEGREES_OF_FREEDOM[best])
        return cls(d, float(scale), DEGREES_OF_FREEDOM[best], every)

    def beyond(self, lengths: Array) -> Array:
        """P(|r| > u)."""
        fitted = f_sf(lengths**2 / self.d / self.scale, self.d, self.degrees)
        empirical = 1 - np.searchsorted(self.sorted, lengths) / len(self.sorted)
        return np.maximum(fitted, empirical)

    def beyond_in(self, lengths: Array, d: int) -> Array:
        """The same of a part of the residual, of d dimensions."""
        return np.asarray(f_sf(lengths**2 / d / self.scale, d, self.degrees))


def _log_density(x: Array, one: int, two: float) -> Array:
    """`log f(x)` of F with `one` and `two` degrees of freedom."""
    constant = one / 2 * np.log(one / two) - special.betaln(one / 2, two / 2)
    return np.asarray(
        constant + (one / 2 - 1) * np.log(x) - (one + two) / 2 * np.log1p(one * x / two)
    )


def joint_exponent(before: Array, after: Array, spikes: Array, third: float) -> float:
    """κ in P(M > u) = S(u)^κ: 2 for independent residuals (N, d) from either side, 1 for equal ones.

    The smaller of what their correlation says and of how often spikes M exceed the third quartile of lengths.
    """
    agreement = float(np.sign(before * after).mean())
    correlation = float(np.clip(np.sin(np.pi / 2 * agreement), 0.0, 0.9))
    share = max(float((spikes > third).mean()), 1e-9)
    seen = np.log(share) / np.log(1 - EXCEEDED)
    return float(np.clip(min(2 / (1 + correlation), seen), 1.0, 2.0))
