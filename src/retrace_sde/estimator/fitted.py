"""What a fitted model shows: its result under the names that scikit-learn's users expect."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.estimator.common import CommonPart, lifted
from retrace_sde.estimator.conventions import check_is_fitted
from retrace_sde.estimator.units import Units
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.evidence.identifiability import IdentifiabilityReport
from retrace_sde.evidence.outcome import Outcome
from retrace_sde.evidence.selection.subjects import SubjectEffects
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import pd
from retrace_sde.io.formats import frame_in_order
from retrace_sde.panel.blocks import in_order, to_numpy
from retrace_sde.panel.canonical import RowPermutation
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import check
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.search.model import Round
from retrace_sde.search.posterior import OrderPosterior
from retrace_sde.search.protocols import Model

Options = ParamSpec("Options")
Answer = TypeVar("Answer")


def _read(name: str) -> Any:
    """The field of the result that is shown under a name ending in `_`."""

    def read(model: Any) -> Any:
        check_is_fitted(model, "result_")
        return getattr(model.result_, name)

    return property(read, doc=f"`result_.{name}`.")


def _asked(
    method: Callable[Concatenate[ReTraceResult, Options], Answer],
) -> Callable[Concatenate[Any, Options], Answer]:
    """A method of the result, asked of the model."""

    @wraps(method)
    def answer(model: Any, /, *args: Options.args, **options: Options.kwargs) -> Answer:
        check_is_fitted(model, "result_")
        return method(model.result_, *args, **options)

    return answer


class Memory(NamedTuple):
    """What a fitted model keeps besides its result: for other data, for more draws, for the states.

    Model and outcome are in standard units and places; where trajectories share shocks (`common`) they are of deviations from the slice
    means.
    """

    model: Model
    outcome: Outcome
    units: Units | None
    places: RowPermutation
    common: CommonPart | None = None


class Fitted:
    """Names that end in `_`, each read off the result or the posterior over orders.

    `inputs_` (d, k) is B, what inputs add to the drift; None without inputs. `observation_noise_` is the covariance R of the noise, given or estimated; None without noise.
    """

    result_: ReTraceResult
    posterior_: OrderPosterior
    _kept: Memory

    order_: Indices = _read("order")
    times_: Array = _read("times")
    drift_: Array = _read("drift")
    offset_: Array = _read("offset")
    inputs_: Array | None = _read("inputs")
    diffusion_: Array = _read("diffusion")
    observation_noise_: Array | None = _read("observation_noise")
    standard_errors_: StandardErrors = _read("standard_errors")
    direction_: DirectionTest = _read("direction")
    alternative_: Twin | None = _read("alternative")
    identifiability_: IdentifiabilityReport = _read("identifiability")
    subject_effects_: SubjectEffects | None = _read("subjects")
    log_likelihood_: float = _read("log_likelihood")
    converged_: bool = _read("converged")
    history_: tuple[Round, ...] = _read("history")
    residuals_: ResidualCheck = _read("residuals")
    parameters_: pd.DataFrame = _read("parameters")
    conf_int = _asked(ReTraceResult.conf_int)
    summary = _asked(ReTraceResult.summary)

    @property
    def _memory(self) -> Memory:
        check_is_fitted(self, "result_")
        return self._kept

    @property
    def _with_data(self) -> Memory:
        """The same; refused where the model comes from a saved result, which keeps no data."""
        if not self._memory.model.data.shape[0]:
            raise ValueError(
                "this needs the data, which a saved result does not keep: fit again. A saved result can reorder, score and "
                "forecast other trajectories."
            )
        return self._kept

    @property
    def position_probabilities_(self) -> NDArray[np.float32]:
        """P[…, a, k]: the probability that observation a stands at position k; orders are sampled on first use."""
        return self._sampled().position_probabilities

    def precedence_probability(self, i: int, j: int) -> float | Array:
        """The probability that observation i came before observation j (one for each trajectory); samples orders on first use.

        Parameters
        ----------
        i, j : int
            Slices, or observations of every trajectory, as they stand in X.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(20, 8, 0.05, random_state=1)
        >>> rt.ReTrace(dt=0.05, random_state=0).fit(Y).precedence_probability(0, 7)
        1.0
        """
        return self._sampled().precedence(i, j)

    def _sampled(self) -> OrderPosterior:
        check_is_fitted(self, "result_")
        if not hasattr(self, "posterior_"):
            self.sample_orders()
        return self.posterior_

    def sample_orders(self, *, draws: int = 1500) -> OrderPosterior:
        """Draw orders from their posterior; the model does."""
        raise NotImplementedError

    def set_output(
        self, *, transform: Literal["default", "pandas", "polars"] | None = None
    ) -> Self:
        """What `reorder` and `transform` return: arrays, or tables with `subject`, `position` and the variables.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"} or None
            The kind; None changes nothing.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(10, 6, 0.05, random_state=1)
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y).set_output(transform="pandas")
        >>> list(model.reorder(Y).columns)
        ['subject', 'position', 'x0', 'x1']
        """
        if transform is not None:
            check("set_output", {"transform": transform})
            # The name that scikit-learn's clone carries over.
            self._sklearn_output_config = {"transform": transform}
        return self

    def _shown(self, panel: Panel, order: Indices) -> Any:
        """A panel's values in time order, as `set_output` asked for."""
        values = in_order(panel.values, order)
        kind = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        return values if kind == "default" else frame_in_order(panel, values, order, kind)

    def _repr_html_(self) -> str:
        """In notebooks: the answer of a fit; before one, the settings."""
        if hasattr(self, "result_"):
            return self.result_._repr_html_()
        from sklearn.utils import estimator_html_repr

        return estimator_html_repr(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What Jupyter asks for first."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    @property
    def states_(self) -> Array:
        """Smoothed states (n, T, d) in time order: what the fit says was behind the noise and the gaps."""
        model, outcome, units, places, common = self._with_data
        means = outcome.found.states
        if means is None:
            means = to_numpy(in_order(model.data.values, outcome.found.order))
        if common is not None:
            means = lifted(means, common.path, outcome.found.order)
        means = places.given_rows(means)
        return means if units is None else units.restore(means)

    @property
    def order_law_(self) -> Any:
        """The law by which orders were judged: its `costs(data, rows)` are those of steps and of first observations.

        In the units of the fit, which are those of the data where the drift is not linear.
        """
        return self._memory.outcome.law

    @property
    def n_iter_(self) -> int:
        """Rounds of the search."""
        return len(self.history_)

    @property
    def gaps_(self) -> Array:
        """Times between neighbours along the order."""
        return np.diff(self.times_)
