"""What subjects with random intercepts are asked for, whether their states are observed or hidden.

An `Account` is a fit of random intercepts along an order, with what a result needs of it: parameters with errors, a
refit to resampled subjects, and subjects moved to where they are alike. Its class says where such fits apply and makes
them. There are two: `intercepts` for observed states, `hidden_intercepts` for hidden ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky

from retrace_sde.fit.exact import Embedding
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate, StandardErrors, Through
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.sde import Gaussian, Scheme
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
    """Random intercepts `levels` along an order of a model, and what a result needs of them.

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

    @property
    def one_step(self) -> bool:
        """All steps have the length dt, so that Euler's is a way to write the SDE's."""
        raise NotImplementedError

    @property
    def scheme(self) -> Scheme:
        """What the parameters are those of, as they were fitted."""
        return "euler"

    @property
    def population(self) -> tuple[Array, Array]:
        """Coefficients and diffusion of the average subject, as they were fitted."""
        return self.levels.coefficients, self.levels.diffusion

    @cached_property
    def embedding(self) -> Embedding | None:
        """The SDE of the average subject; None: `population` is what is shown."""
        found: Embedding | None = self.model.embedding(*self.population) if self.one_step else None
        return found

    def shown(self, errors: Callable[[Through | None], StandardErrors]) -> Estimate:
        """The parameters of the average subject as they are shown."""
        if not self.one_step:
            return Estimate(*self.population, errors(None), scheme=self.scheme)
        found: Estimate = self.model.shown(self.population, errors)
        return found


def with_moments(
    estimate: Estimate, errors: StandardErrors, law: tuple[Array, Array], count: float
) -> tuple[Estimate, Moments]:
    """An estimate, and the moments of `count` steps whose regression would give Euler's law with its errors."""
    assert errors.covariances is not None
    return estimate, moments_behind(count, *law, errors.covariances)


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
