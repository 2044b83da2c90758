"""What subjects with random intercepts are asked for, whether their states are observed or hidden.

An `Account` is a fit of random intercepts along an order, with what a result needs of it: parameters with errors, a
refit to resampled subjects, and subjects moved to where they are alike. Its class says where such fits apply and makes
them. There are two: `intercepts` for observed states, `hidden_intercepts` for hidden ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky

from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.model import Fit


class Subjects(StrEnum):
    """How subjects differ; AUTO: as the data say."""

    AUTO = "auto"
    ALIKE = "alike"
    LEVELS = "levels"
    RATES = "rates"


class Tried(NamedTuple):
    """Random intercepts beside subjects who are alike: penalised nats gained, parameters more, and the fits on demand.

    `fits`: of the order and of its reverse, each with the likelihoods of the intercepts.
    """

    nats: float
    parameters: int
    fits: Callable[[], list[tuple[Fit, Any]]]


@dataclass(frozen=True, eq=False)
class Account:
    """Random intercepts `levels` along an order of a model, and what a result needs of them; `name`: of the estimator.

    Every kind says where the question can be asked (`applies`, up to `max_variables`), on how many trajectories it is first
    compared (`sample`, `on_sample`: all are fitted only where these prefer intercepts), and compares (`tried`; `by_name`:
    intercepts will be used whatever it says). A fit of it has parameters with errors and the moments that tests use (`estimate`), a refit to
    subjects drawn with replacement (`resampled`), and model and fit of subjects moved to where they are alike (`aligned`, by
    intercepts that are drawn, not expected: residuals about expected ones would be correlated).
    """

    model: Any
    levels: Any

    @property
    def initial(self) -> Gaussian | None:
        """The law of the first states; None where it is that of subjects who are alike."""
        return None

    @property
    def law(self) -> Any:
        """The law of the average subject where states are hidden, None where they are observed."""
        return None

    def population(self, name: str) -> tuple[Array, Array]:
        """Coefficients and diffusion of the average subject."""
        return self.levels.coefficients, self.levels.diffusion


def with_moments(estimate: Estimate, count: float) -> tuple[Estimate, Moments]:
    """An estimate, and the moments of `count` steps whose regression would give it with its errors."""
    assert estimate.errors.covariances is not None
    law = estimate.coefficients, estimate.diffusion, estimate.errors.covariances
    return estimate, moments_behind(count, *law)


def sampled_order(model: Any, few: Any, found: Fit) -> Indices:
    """The orders of the trajectories of a sample."""
    return found.ordering.take(evenly(model.data.shape[0], few.data.shape[0])).index


def moments_behind(
    count: float, coefficients: Array, diffusion: Array, covariances: Array
) -> Moments:
    """Moments of `count` steps whose regression would give these coefficients with these covariances."""
    inverse = (covariances / np.diag(diffusion)[:, None, None]).mean(axis=0)
    # Fewer different subjects than coefficients leave some directions without a spread.
    inverse = inverse + 1e-10 * np.trace(inverse) / len(inverse) * np.eye(len(inverse))
    R = cholesky(np.linalg.inv(inverse))
    d, p = coefficients.shape
    factor = np.zeros((p + d, p + d))
    factor[:p, :p], factor[:p, p:] = R, R @ coefficients.T
    factor[p:, p:] = cholesky(diffusion * count)
    return Moments(factor, count, p)
