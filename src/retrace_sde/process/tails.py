"""Tail probabilities and quantiles of standard distributions, by scipy.special: importing scipy.stats takes longer than a small fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from retrace_sde.io.arrays import Array


def norm_sf(x: Any) -> Any:
    """P(Z > x), Z standard normal."""
    return special.ndtr(-x)


def norm_cdf(x: Any) -> Any:
    """P(Z ≤ x)."""
    return special.ndtr(x)


def norm_ppf(q: Any) -> Any:
    """The q-quantile of the standard normal."""
    return special.ndtri(q)


def chi2_sf(x: Any, df: Any) -> Any:
    """P(χ² > x)."""
    return special.chdtrc(df, np.maximum(x, 0.0))


def chi2_cdf(x: Any, df: Any) -> Any:
    """P(χ² ≤ x)."""
    return special.chdtr(df, np.maximum(x, 0.0))


def chi2_ppf(q: Any, df: Any) -> Any:
    """The q-quantile of χ²."""
    return 2 * special.gammaincinv(df / 2, q)


def t_sf(x: Any, df: Any) -> Any:
    """P(t > x) of Student's t."""
    return special.stdtr(df, -x)


def t_ppf(q: Any, df: Any) -> Any:
    """The q-quantile of Student's t."""
    return special.stdtrit(df, q)


def f_sf(x: Any, one: Any, two: Any) -> Any:
    """P(F > x) with `one` and `two` degrees of freedom."""
    return special.fdtrc(one, two, x)


def f_median(one: Any, two: Any) -> Any:
    """The median of F with `one` and `two` degrees of freedom."""
    return special.fdtri(one, two, 0.5)


def binom_sf(k: int, n: int, p: float) -> float:
    """P(X > k) of n trials."""
    return float(special.bdtrc(k, n, p)) if k >= 0 else 1.0


def kurtosis_test(z: Array) -> tuple[float, float]:
    """Excess kurtosis of a sample, and P(≥ it) of a normal one: Anscombe and Glynn's (1983) cube root of a χ² that fits its moments."""
    n, squares = len(z), (z - z.mean()) ** 2
    b2 = float((squares**2).mean() / squares.mean() ** 2)
    variance = 24.0 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (b2 - 3.0 * (n - 1) / (n + 1)) / variance**0.5
    skew = 6.0 * (n * n - 5 * n + 2) / ((n + 7) * (n + 9))
    skew *= (6.0 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3))) ** 0.5
    A = 6.0 + 8.0 / skew * (2.0 / skew + (1 + 4.0 / skew**2) ** 0.5)
    root = np.cbrt((1 - 2 / A) / (1 + x * (2 / (A - 4)) ** 0.5))
    return b2 - 3.0, float(norm_sf((1 - 2 / (9 * A) - root) / (2 / (9 * A)) ** 0.5))
