"""`ReTrace`: from a shuffled panel to its order, its direction of time and its SDE."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from retrace_sde.algorithm1 import Keep, score_order
from retrace_sde.blocks import Array, Data, Order, in_order, one_blas_thread
from retrace_sde.costs import distances, step_log_likelihoods, transition_costs
from retrace_sde.direction import DirectionTest, direction_test
from retrace_sde.discretisation import exact
from retrace_sde.drift import Affine, Drift, Linear, as_drift
from retrace_sde.estimation import Estimate, StandardErrors, mle, ols
from retrace_sde.identifiability import IdentifiabilityReport, identify
from retrace_sde.moments import Moments
from retrace_sde.ordering import improve, path_cost, shortest_path
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.score import ScoreDrift
from retrace_sde.sde import LinearSDE
from retrace_sde.shared import Directed, Problem, Round, recover_order
from retrace_sde.start import is_point, start_law
from retrace_sde.validation import check_choice, check_enough, check_panel, check_positive


class ReTrace(BaseEstimator):  # type: ignore[misc]
    """Recover the order of shuffled time slices, the direction of time, and the SDE behind them.

    Maximises `log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)` over the order o and θ = (A, H), and tests
    the order against its reverse. Where the data cannot tell the two apart (a stationary linear SDE
    fits both ways equally well) `direction_.identified` is False and `alternative_` holds the other.

    Parameters
    ----------
    dt : time between neighbouring observations; A and H are in its units. A `Panel` may bring its own.
    permutation : "shared", one unknown permutation of the slices for all trajectories.
    order : "likelihood", or "score" for the paper's Algorithm 1 as printed.
    estimator : "mle" (the paper's equations), "ols" (degrees of freedom in H), "exact" (matrix
        logarithm: no bias from the step), "auto" (mle).
    drift : "linear" (A x), "affine" (A x + c), or an object of `retrace_sde.drift`.
    score_drift : for order="score", the reading of the empirical drift: "absolute" as printed, or "mean".
    keep : for order="score", the round that is returned: the most likely ("best"), or the "last".
    max_iter : rounds at most. alpha : level of the direction test.
    n_jobs : threads (None: all cores); the answer does not depend on it. verbose : print each round.

    The fit is deterministic; `random_state` is accepted for later estimators that draw samples.
    """

    def __init__(
        self,
        *,
        dt: float = 1.0,
        permutation: Literal["shared"] = "shared",
        order: Literal["likelihood", "score"] = "likelihood",
        estimator: Literal["auto", "mle", "ols", "exact"] = "auto",
        drift: Literal["linear", "affine"] | Drift = "linear",
        observation_noise: None = None,
        spacing: Literal["regular"] = "regular",
        score_drift: ScoreDrift = "absolute",
        keep: Keep = "best",
        max_iter: int = 10,
        alpha: float = 0.05,
        random_state: int | np.random.Generator | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.dt = dt
        self.permutation = permutation
        self.order = order
        self.estimator = estimator
        self.drift = drift
        self.observation_noise = observation_noise
        self.spacing = spacing
        self.score_drift = score_drift
        self.keep = keep
        self.max_iter = max_iter
        self.alpha = alpha
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, covariates: Any | None = None) -> Self:
        """Recover order, direction and SDE from X: an array (n, T, d) or a `Panel`. X is not modified."""
        with one_blas_thread():
            return self._fit(X, covariates)

    def _fit(self, X: Any, covariates: Any | None) -> Self:
        self._check_parameters()
        drift = as_drift(self.drift)
        panel = check_panel(X, covariates, n_jobs=self.n_jobs)
        features = drift.feature_names(panel.names, panel.covariate_names)
        check_enough(panel, len(features))
        dt = float(self.dt if panel.dt is None else panel.dt)
        data = Data(panel.values, panel.covariates, self.n_jobs)
        problem = Problem(data, dt, drift)
        found, reverse, history, settled = self._search(problem)
        if self.verbose:
            for k, each in enumerate(history, start=1):
                print(f"round {k}: log-likelihood {each.log_likelihood:,.1f}")

        direction = direction_test(
            found.log_likelihoods,
            reverse.log_likelihoods,
            alpha=self.alpha,
            point_start=is_point(data, int(found.order[0]), found.model),
        )
        estimate = self._estimate(found.moments, dt, drift)
        A, c = _split(estimate.coefficients, drift)
        error_A, error_c = _split(estimate.errors.drift, drift)
        sde = LinearSDE(A, estimate.diffusion, offset=c) if _is_linear(drift) else None
        self.result_ = ReTraceResult(
            order=found.order,
            times=dt * np.arange(len(found.order), dtype=float),
            drift=A,
            offset=c,
            diffusion=estimate.diffusion,
            standard_errors=StandardErrors(error_A, estimate.errors.diffusion, error_c),
            initial=start_law(data, int(found.order[0]), found.model),
            direction=direction,
            alternative=None if direction.identified else self._twin(reverse, dt, drift),
            identifiability=identify(
                data, found.order, found.moments, direction, sde, alpha=self.alpha
            ),
            log_likelihood=found.log_likelihood,
            history=tuple(history),
            converged=settled,
            n_trajectories=data.shape[0],
            dt=dt,
            names=panel.names,
            feature_names=tuple(features),
            settings=self._settings(),
            notes=estimate.notes,
        )
        self._model = found.model
        self.n_features_in_ = data.shape[2]
        return self

    def _search(self, problem: Problem) -> tuple[Directed, Directed, list[Round], bool]:
        if self.order == "likelihood":
            return recover_order(problem, max_iter=self.max_iter)
        found, history, settled = score_order(
            problem, max_iter=self.max_iter, score_drift=self.score_drift, keep=self.keep
        )
        return found, problem.fit(found.order[::-1].copy()), history, settled

    def _estimate(self, statistics: Moments, dt: float, drift: Drift) -> Estimate:
        if self.estimator == "ols":
            return ols(statistics)
        if self.estimator == "exact":
            return exact(statistics, dt, affine=isinstance(drift, Affine))
        return mle(statistics)

    def _twin(self, reverse: Directed, dt: float, drift: Drift) -> Twin:
        estimate = self._estimate(reverse.moments, dt, drift)
        A, c = _split(estimate.coefficients, drift)
        return Twin(reverse.order, A, c, estimate.diffusion, reverse.log_likelihood)

    def _check_parameters(self) -> None:
        check_positive("dt", self.dt)
        check_choice("permutation", self.permutation, ["shared"])
        check_choice("order", self.order, ["likelihood", "score"])
        check_choice("estimator", self.estimator, ["auto", "mle", "ols", "exact"])
        check_choice("spacing", self.spacing, ["regular"])
        check_choice("score_drift", self.score_drift, ["absolute", "mean"])
        check_choice("keep", self.keep, ["best", "last"])
        check_positive("max_iter", self.max_iter)
        if self.observation_noise is not None:
            raise ValueError(
                "observation_noise must be None: noise is not modelled by this version."
            )
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1; got {self.alpha!r}.")
        if self.estimator == "exact" and not _is_linear(as_drift(self.drift)):
            raise ValueError("estimator='exact' needs a linear or affine drift; use 'mle'.")

    def _settings(self) -> dict[str, Any]:
        settings = {k: v for k, v in self.get_params(deep=False).items() if k != "n_jobs"}
        settings["drift"] = str(settings["drift"])
        settings["random_state"] = None
        settings["estimator"] = "mle" if self.estimator == "auto" else self.estimator
        return settings

    def _order_of(self, X: Any) -> tuple[Data, Order]:
        """The most likely order of other trajectories under the fitted parameters and p₀."""
        panel = check_panel(X, n_jobs=self.n_jobs)
        if panel.values.shape[2] != self.n_features_in_:
            raise ValueError(
                f"X has {panel.values.shape[2]} variables; the fit had {self.n_features_in_}."
            )
        data = Data(panel.values, panel.covariates, self.n_jobs)
        costs = transition_costs(data, self._model)
        every = np.arange(data.shape[1])
        start = -self.result_.initial.log_density(data.slices(every)).sum(axis=1)
        chain = shortest_path(distances(data))
        orders = [improve(costs, start, each) for each in (chain, chain[::-1].copy())]
        return data, min(orders, key=lambda order: path_cost(costs, start, order))

    def reorder(self, X: Any) -> Any:
        """X (n, T, d), shuffled by one permutation, in the order most likely under the fit.

        The permutation belongs to the data it is found for: it need not be `order_`.
        """
        check_is_fitted(self, "result_")
        data, order = self._order_of(X)
        return in_order(data.values, order)

    def score(self, X: Any) -> float:
        """Mean log-likelihood per trajectory of X, ordered first, under the fitted parameters and p₀."""
        check_is_fitted(self, "result_")
        data, order = self._order_of(X)
        start = self.result_.initial.log_density(data.slices(order[:1])[0])
        return float((start + step_log_likelihoods(data, order, self._model)).mean())

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


def _is_linear(drift: Drift) -> bool:
    return isinstance(drift, (Linear, Affine))


def _split(coefficients: Array, drift: Drift) -> tuple[Array, Array]:
    """A and c of an affine drift; other drifts have no offset of their own."""
    if isinstance(drift, Affine):
        return coefficients[:, :-1], coefficients[:, -1]
    return coefficients, np.zeros(len(coefficients))
