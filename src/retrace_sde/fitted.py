"""What a fitted model shows: its result under the names that scikit-learn's users expect."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from retrace_sde.data.blocks import Array, Order, in_order, to_numpy
from retrace_sde.engine.direction import DirectionTest
from retrace_sde.engine.identifiability import IdentifiabilityReport
from retrace_sde.engine.noisy import Hidden
from retrace_sde.engine.posterior import OrderPosterior
from retrace_sde.engine.problem import Problem, Round
from retrace_sde.estimate.regression import StandardErrors
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.units import Units


class Fitted:
    """Names that end in `_`, each read off the result or the posterior over orders."""

    result_: ReTraceResult
    posterior_: OrderPosterior
    _problem: Problem
    _hidden: Hidden | None
    _units: Units | None

    @property
    def position_probabilities_(self) -> NDArray[np.float32]:
        """P[…, a, k]: the probability that observation a stands at position k."""
        return self._sampled().position_probabilities

    def precedence_probability(self, i: int, j: int) -> float | Array:
        """The probability that observation i came before observation j (one for each trajectory)."""
        return self._sampled().precedence(i, j)

    def _sampled(self) -> OrderPosterior:
        if not hasattr(self, "posterior_"):
            raise AttributeError(
                "the orders have not been sampled: call sample_orders(), or fit with estimator='mcem'."
            )
        return self.posterior_

    def summary(self) -> str:
        """The result as text."""
        check_is_fitted(self, "result_")
        return self.result_.summary()

    @property
    def order_(self) -> Order:
        return self.result_.order

    @property
    def drift_(self) -> Array:
        return self.result_.drift

    @property
    def offset_(self) -> Array:
        return self.result_.offset

    @property
    def diffusion_(self) -> Array:
        return self.result_.diffusion

    @property
    def observation_noise_(self) -> Array | None:
        """The covariance R of the observation noise, given or estimated; None without noise."""
        return self.result_.observation_noise

    @property
    def states_(self) -> Array:
        """Smoothed states (n, T, d) in time order: what the fit says was behind the noise and the gaps."""
        if self._hidden is None:
            means = to_numpy(in_order(self._problem.data.values, self.order_))
        else:
            means = self._hidden.fit.states.means
        return means if self._units is None else self._units.restore(means)

    @property
    def standard_errors_(self) -> StandardErrors:
        return self.result_.standard_errors

    @property
    def direction_(self) -> DirectionTest:
        return self.result_.direction

    @property
    def alternative_(self) -> Twin | None:
        return self.result_.alternative

    @property
    def identifiability_(self) -> IdentifiabilityReport:
        return self.result_.identifiability

    @property
    def log_likelihood_(self) -> float:
        return self.result_.log_likelihood

    @property
    def n_iter_(self) -> int:
        return len(self.result_.history)

    @property
    def converged_(self) -> bool:
        return self.result_.converged

    @property
    def history_(self) -> tuple[Round, ...]:
        return self.result_.history

    @property
    def times_(self) -> Array:
        return self.result_.times

    @property
    def gaps_(self) -> Array:
        return np.diff(self.result_.times)
