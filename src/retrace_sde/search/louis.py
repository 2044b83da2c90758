"""Standard errors that include the uncertainty of the orders (Louis 1982).

Observed information: that of known orders less the posterior variance of its score,
`I = I_known − Σ_j Var(s_j | data)`. Products of posterior means are taken across two independent chains, so that the
chains' autocorrelation does not bias them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.scores import errors_of_scores
from retrace_sde.io.arrays import Array
from retrace_sde.orders.draws import Draws
from retrace_sde.search.protocols import Averages, Scoring

MAX_LOUIS_PARAMETERS = 500
"""Number of parameters beyond which Louis' information matrix is not computed."""

FLOOR_IN_ERRORS = 3.0
"""Monte-Carlo errors by which the remaining information must exceed zero."""


def louis_errors(
    model: Averages,
    few: Averages,
    law: Any,
    sums: Any,
    draws: Draws,
    rng: np.random.Generator,
) -> tuple[StandardErrors, str | None]:
    """Standard errors that include the uncertainty of the orders, and a note if they do not.

    `draws` are orders of the trajectories of `few`, a sample of those of `model`.
    """
    scoring = model.scoring(law, sums)
    d = model.data.shape[2]
    if scoring.size > MAX_LOUIS_PARAMETERS:
        return model.known_order_errors(sums, law, shown=True), (
            f"Standard errors assume known orders: with {d} variables the uncertainty of the orders is "
            "not computed."
        )
    covariance, meat, floored = louis_covariance(model, few, law, sums, draws, rng)
    if floored:
        note = (
            "Some combination of parameters is hardly identified when orders are unknown (its information is not "
            "significantly above zero): standard errors there are lower bounds."
        )
        return scoring.errors(covariance), note
    return errors_of_scores(scoring.errors, covariance, meat, model.data), None


def louis_covariance(
    model: Averages, few: Averages, law: Any, sums: Any, draws: Draws, rng: np.random.Generator
) -> tuple[Array, Array, bool]:
    """The inverse of Louis' information, `Σ_j E[s_j] E[s_j]ᵀ` of all trajectories (or groups), and whether a floor mattered."""
    complete = model.scoring(law, sums).information(rng)
    square, means = _squares(few.scoring(law, sums), draws)
    share = model.data.shape[0] / few.data.shape[0]
    lost = (square - _crossed(*means)) * share
    covariance, floored = floored_inverse(complete - lost, complete, _floor(draws.kept))
    meat = _crossed(*(few.data.by_group(each) for each in means)) * share
    return covariance, meat, floored


def _squares(scoring: Scoring, draws: Draws) -> tuple[Array, list[Array]]:
    """`Σ_j E[s_j s_jᵀ]`, and `E[s_j]` (n, size) of each of two chains."""
    _, m, R, _ = draws.kept.shape
    means, square = [np.zeros((m, scoring.size)) for _ in range(2)], 0.0
    for k, (order, gaps) in enumerate(zip(draws.orders(), draws.crossed(), strict=True)):
        if k // R < 2:
            each = scoring.of(order, gaps)
            square = square + each.T @ each / (2 * R)
            means[k // R] += each / R
    return np.asarray(square), means


def _crossed(one: Array, two: Array) -> Array:
    """`Σ_j E[s_j] E[s_j]ᵀ` across two chains."""
    product = one.T @ two
    return 0.5 * (product + product.T)


def floored_inverse(information: Array, complete: Array, floor: float) -> tuple[Array, bool]:
    """The inverse, with the share of the complete information at least `floor` in every direction; and whether
    that mattered.

    `I = L V diag(λ) Vᵀ Lᵀ` with `complete = L Lᵀ`: λ are the shares that are left where the orders are not known.
    """
    unit = np.sqrt(np.diag(complete))
    L = np.linalg.cholesky(complete / np.outer(unit, unit))
    half = np.linalg.inv(L) / unit
    shares, V = np.linalg.eigh(half @ information @ half.T)
    root = half.T @ V / np.sqrt(np.maximum(shares, floor))
    return root @ root.T, bool(shares[0] < floor)


def _floor(kept: NDArray[np.int16]) -> float:
    """Shares below this are not significantly above zero.

    The posterior variance of a score from K draws, summed over m trajectories, has a relative error of about
    √(2/(K m)); what is left of the information is one less its share.
    """
    _, m, R, _ = kept.shape
    return min(FLOOR_IN_ERRORS * float(np.sqrt(2 / (2 * R * m))), 0.5)
