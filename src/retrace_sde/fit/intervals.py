"""Intervals from standard errors: one rule for the summary, the report, the tables and the pictures.

To first order an estimate is a mean over the n trajectories, which are what is independent:
`θ̂ − θ ≈ (1/n) Σ_j ψ_j`, with an error that estimates `sd(ψ)/√n`. Were the ψ_j Gaussian and their spread
estimated from themselves, `(θ̂ − θ) / error` would have Student's law with n − 1 degrees of freedom, exactly
(Gosset); as n grows it becomes the normal law. Errors that pool all steps know the spread better than that, so
with few trajectories the intervals are too long rather than too short.

The table of parameters has one row for each, with a Wald test by the same law:

    z = estimate / standard error,   p = P(|t_{n−1}| > |z|),   estimate ± t_{n−1, (1 + level)/2} · standard error
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import pd
from retrace_sde.process.tails import norm_ppf, t_ppf, t_sf


def critical(n: float = math.inf, level: float = 0.95) -> float:
    """Half the width of an interval in standard errors: Student's quantile with n − 1 degrees of freedom.

    n is the number of trajectories behind the errors (∞: many). One has no spread between trajectories
    to judge by; it gets the normal law's.
    """
    tail = (1 + level) / 2
    return float(norm_ppf(tail) if n < 2 or math.isinf(n) else t_ppf(tail, n - 1))


def half_widths(errors: Any, n: float = math.inf, level: float = 0.95) -> Array:
    """What to add to estimates and to take from them: intervals that hold the truth with probability `level`."""
    return critical(n, level) * np.asarray(errors, dtype=float)


def clearness(values: Array, errors: Array) -> Array:
    """|estimate| / standard error, the z statistic of each; 0 where there is no error to compare with."""
    return np.abs(values) / np.where(errors > 0, errors, np.inf)


def clearest(values: Array, errors: Array, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Row and column of the `most` entries with the largest |z|, in descending order."""
    rank = np.argsort(-clearness(values, errors), axis=None)[:most]
    return ((int(i), int(j)) for i, j in zip(*np.unravel_index(rank, values.shape), strict=True))


class Parameter(NamedTuple):
    """One parameter: the effect of `variable` on the rate of `on`, or the covariance of the two.

    `tested`: zero is a hypothesis. A variance is positive, so it has an interval, but no test.
    """

    name: str
    kind: str
    variable: str
    on: str
    estimate: float
    std_error: float
    tested: bool = True


def coefficients(
    kind: str, letter: str, values: Array, errors: Array | None, causes: Sequence[str], names: Sequence[str]
) -> Iterator[Parameter]:  # fmt: skip
    """Entries of a matrix (d, p), the effects of `causes` on `names`, equation by equation."""
    known = np.full_like(values, np.nan) if errors is None else errors
    for i, on in enumerate(names):
        for j, cause in enumerate(causes):
            name = f"{letter}[{on}, {cause}]"
            yield Parameter(name, kind, cause, on, float(values[i, j]), float(known[i, j]))


def covariances(
    kind: str, letter: str, values: Array, errors: Array | None, names: Sequence[str]
) -> Iterator[Parameter]:
    """Entries of a covariance matrix (d, d) on and above its diagonal; those that are held at zero are left out."""
    known = np.full_like(values, np.nan) if errors is None else errors
    for i, one in enumerate(names):
        for j, other in enumerate(names[i:], start=i):
            if i != j and values[i, j] == 0 and not known[i, j] > 0:
                continue
            name = f"{letter}[{one}, {other}]"
            entry, error = float(values[i, j]), float(known[i, j])
            yield Parameter(name, kind, one, other, entry, error, i != j)


def table(rows: Iterable[Parameter], n: int, *, level: float = 0.95) -> pd.DataFrame:
    """The parameters as a DataFrame with an index of names; NaN where there is no standard error."""
    found = list(rows)
    estimates = np.array([each.estimate for each in found])
    errors = np.array([each.std_error for each in found])
    tested = np.array([each.tested for each in found]) & (errors > 0)
    z = np.where(tested, estimates / np.where(tested, errors, 1.0), np.nan)
    reach = half_widths(errors, n, level)
    return pd.DataFrame(
        {
            "kind": [each.kind for each in found],
            "variable": [each.variable for each in found],
            "on": [each.on for each in found],
            "estimate": estimates,
            "std_error": errors,
            "z": z,
            "p_value": 2 * t_sf(np.abs(z), n - 1 if n >= 2 else math.inf),
            "lower": estimates - reach,
            "upper": estimates + reach,
        },
        index=pd.Index([each.name for each in found], name="parameter"),
    )
