"""What subjects with random intercepts are asked for, whether their states are observed or hidden.

A `SubjectAccount` is a fit of random intercepts along an order, with what a result needs of it: parameters with errors, a
refit to resampled subjects, and subjects moved to where they are alike. An `AccountFamily` says where such fits apply and makes
them. There are two: `intercepts` for observed states, `hidden_intercepts` for hidden ones.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.linalg import cholesky

from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit


class Subjects(StrEnum):
    """How subjects differ; AUTO: as the data say."""

    AUTO = "auto"
    ALIKE = "alike"
    LEVELS = "levels"
    RATES = "rates"


class InterceptFit(Protocol):
    """Random intercepts by maximum likelihood, `c_j | x₀ ~ N(mean + slope x₀, between)`.

    `effects` (n, d) are the expected intercepts of the subjects, with standard errors `effect_errors`; `average` their mean.
    """

    @property
    def drift(self) -> Array: ...
    @property
    def diffusion(self) -> Array: ...
    @property
    def mean(self) -> Array: ...
    @property
    def slope(self) -> Array: ...
    @property
    def between(self) -> Array: ...
    @property
    def average(self) -> Array: ...
    @property
    def effects(self) -> Array: ...
    @property
    def effect_errors(self) -> Array: ...
    @property
    def n_extra(self) -> int: ...


class SubjectAccount(Protocol):
    """Random intercepts along an order, and what a result needs of them; `name`: of the estimator."""

    @property
    def levels(self) -> Any:
        """The fit, an `InterceptFit`."""
        ...

    @property
    def initial(self) -> Gaussian | None:
        """The law of the first states; None where it is that of subjects who are alike."""
        ...

    @property
    def law(self) -> Any:
        """The law of the average subject where states are hidden, None where they are observed."""
        ...

    def population(self, name: str) -> tuple[Array, Array]:
        """Coefficients and diffusion of the average subject."""
        ...

    def estimate(self, name: str) -> tuple[Estimate, Moments]:
        """The same with errors, and the moments that tests use."""
        ...

    def aligned(self, found: Fit, rng: np.random.Generator) -> tuple[Any, Fit]:
        """Model and fit of subjects moved to where they are alike, `x + A⁻¹ (c_j − c̄)`.

        Intercepts are drawn, not expected: residuals about expected ones would be correlated.
        """
        ...

    def resampled(self, found: Fit, rows: Indices, name: str) -> tuple[Array, Array]:
        """Coefficients and diffusion of the average of subjects drawn with replacement."""
        ...


class Tried(NamedTuple):
    """Random intercepts beside subjects who are alike: penalised nats gained, parameters more, and the fits on demand.

    `fits`: of the order and of its reverse, each with the likelihoods of the intercepts.
    """

    nats: float
    parameters: int
    fits: Callable[[], list[tuple[Fit, Any]]]


class AccountFamily(Protocol):
    """Where random intercepts apply, and how they are fitted."""

    @property
    def max_variables(self) -> int:
        """Variables up to which they are fitted."""
        ...

    def applies(self, model: Any, asked: Subjects) -> bool:
        """The question can be asked of these data."""
        ...

    def sample(self, model: Any) -> int:
        """Trajectories on which they are first compared; all are fitted only where these prefer intercepts."""
        ...

    def on_sample(self, model: Any, found: Found) -> Tried | None:
        """The comparison on that sample; None where it cannot be made."""
        ...

    def tried(self, model: Any, found: Found, *, by_name: bool) -> Tried | None:
        """The comparison on all trajectories; `by_name`: intercepts will be used whatever it says."""
        ...


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


def estimate_moments(estimate: Estimate, count: float) -> Moments:
    """Moments of `count` steps whose regression would give an estimate with its errors."""
    assert estimate.errors.covariances is not None
    errors = estimate.errors.covariances
    return moments_behind(count, estimate.coefficients, estimate.diffusion, errors)
