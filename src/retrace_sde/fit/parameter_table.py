"""Estimates as a table, one row for each parameter, with Wald tests and intervals.

    z = estimate / standard error,   p = P(|t_{n−1}| > |z|),   estimate ± t_{n−1, (1 + level)/2} · standard error

n is the number of trajectories, which are the independent units: see `intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from retrace_sde.fit.intervals import half_widths
from retrace_sde.io.arrays import Array


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
            "p_value": 2 * stats.t.sf(np.abs(z), n - 1 if n >= 2 else math.inf),
            "lower": estimates - reach,
            "upper": estimates + reach,
        },
        index=pd.Index([each.name for each in found], name="parameter"),
    )
