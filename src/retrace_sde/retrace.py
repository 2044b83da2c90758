"""`ReTrace`: from a shuffled panel to its order, its direction of time and its SDE."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from retrace_sde.checks import (
    check_enough,
    check_features,
    check_knowledge,
    check_noise,
    check_settings,
    check_spacing,
    check_volumes,
    with_times,
)
from retrace_sde.data.blocks import Array, Data, Order, in_order, one_blas_thread
from retrace_sde.data.knowledge import Knowledge
from retrace_sde.data.panel import Panel
from retrace_sde.data.validation import ReTraceWarning, check_panel, has_missing
from retrace_sde.engine.fitting import (
    Options,
    Outcome,
    fit_independent,
    fit_shared,
    sample_posterior,
)
from retrace_sde.engine.identifiability import identify
from retrace_sde.engine.independent import KICKS, Law, random_states, search
from retrace_sde.engine.noisy import NoisyProblem
from retrace_sde.engine.noisy_fitting import (
    bootstrap_noisy,
    fit_noisy,
    order_others,
)
from retrace_sde.engine.noisy_posterior import sample_noisy
from retrace_sde.engine.posterior import OrderPosterior
from retrace_sde.engine.problem import Problem
from retrace_sde.engine.spacing import gap_intervals
from retrace_sde.estimate.bootstrap import bootstrap_errors
from retrace_sde.estimate.euler import step_log_likelihoods
from retrace_sde.estimate.kalman.smoother import StateSpace, kalman
from retrace_sde.estimate.kalman.steps import Noise
from retrace_sde.estimate.regression import StandardErrors
from retrace_sde.fitted import Fitted
from retrace_sde.orders.costs import distances, gap_costs, transition_costs
from retrace_sde.orders.paths import improve, path_cost, shortest_path
from retrace_sde.paper.algorithm1 import Keep, ScoreName, as_score
from retrace_sde.paper.score import Score, ScoreDrift
from retrace_sde.process.drift import Affine, Drift, as_drift, is_linear
from retrace_sde.process.sde import LinearSDE
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.units import Units


class ReTrace(Fitted, BaseEstimator):  # type: ignore[misc]
    """Recover the order of shuffled time slices, the direction of time, and the SDE behind them.

    Maximises `log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)` over the order o and θ = (A, H), and tests
    the order against its reverse. Where the data cannot tell the two apart (a stationary linear SDE
    fits both ways equally well) `direction_.identified` is False and `alternative_` holds the other.

    Parameters
    ----------
    dt : time between neighbouring observations; A and H are in its units. A `Panel` may bring its own.
    permutation : "shared", one unknown permutation of the slices for all trajectories, or "independent",
        one for each trajectory (which may then differ in length).
    order : "likelihood", or "score" for the paper's Algorithm 1 as printed.
    estimator : "mle" (the paper's equations), "ols" (degrees of freedom in H), "exact" (matrix
        logarithm: no bias from the step), "em" (state space: noise, missing values), "mcem" (independent
        orders: averages over them), or "auto": mle, or em where there is noise or values are missing (NaN);
        mcem where independent orders are not certain, as the summary says.
    drift : "linear" (A x), "affine" (A x + c), or an object of `retrace_sde.drift`.
    observation_noise : None, a standard deviation, one for each variable (NaN: unknown), a covariance R
        (d, d), "estimate" (R = σ² I) or "diagonal"; linear and affine drifts only. The order is then judged by the
        likelihood of what was observed. Values may be missing, with noise or without.
    score_drift : for order="score", the reading of the empirical drift: "absolute" as printed, or "mean".
    score_model : for order="score", the densities of the slices: "gaussian", "mixture", "kernel", "network" (needs
        torch), or an object of `retrace_sde.score` (or your own) whose fit returns the scores.
    keep : for order="score", the round that is returned: the most likely ("best"), or the "last".
    max_iter : rounds at most. alpha : level of the direction test.
    n_jobs : threads (None: all cores); the answer does not depend on it. verbose : print each round.

    random_state : seeds the search and the sampling of independent orders; a shared order needs none.
    """

    def __init__(
        self,
        *,
        dt: float = 1.0,
        permutation: Literal["shared", "independent"] = "shared",
        order: Literal["likelihood", "score"] = "likelihood",
        estimator: Literal["auto", "mle", "ols", "exact", "em", "mcem"] = "auto",
        drift: Literal["linear", "affine"] | Drift = "linear",
        observation_noise: Noise | None = None,
        spacing: Literal["regular", "estimate"] = "regular",
        score_drift: ScoreDrift = "absolute",
        score_model: ScoreName | Score = "gaussian",
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
        self.score_model = score_model
        self.keep = keep
        self.max_iter = max_iter
        self.alpha = alpha
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self, X: Any, covariates: Any | None = None, knowledge: Knowledge | None = None
    ) -> Self:
        """Recover order, direction and SDE from X: an array (n, T, d) or a `Panel`. X is not modified.

        `knowledge` is what is known of time: see `Knowledge`. With all times known the order is given, and
        the SDE is fitted with the true gaps.
        """
        with one_blas_thread():
            return self._fit(X, covariates, knowledge)

    def _fit(self, X: Any, covariates: Any | None, knowledge: Knowledge | None) -> Self:
        check_settings(self.get_params(deep=False))
        knowledge = with_times(X, knowledge) if self.order == "likelihood" else knowledge
        check_knowledge(knowledge, self.order)
        drift = as_drift(self.drift)
        panel = check_panel(
            X,
            covariates,
            n_jobs=self.n_jobs,
            ragged=self.permutation == "independent",
            missing=is_linear(drift) and self.order == "likelihood",
        )
        panel = check_volumes(panel, drift)
        drift, absorbed = check_features(panel, drift)
        features = drift.feature_names(panel.names, panel.covariate_names)
        check_enough(panel, len(features))
        dt = float(self.dt if panel.dt is None else panel.dt)
        data = Data(panel.values, panel.covariates, self.n_jobs, panel.lengths)
        self._units = Units.of(panel, drift)
        problem = Problem(self._standard(data), dt, drift)
        if knowledge is not None:
            problem = problem.informed(knowledge, shared=self.permutation == "shared")
        options = Options(
            self.permutation,
            self.order,
            self.estimator,
            self.score_drift,
            self.keep,
            self.max_iter,
            self.alpha,
            print if self.verbose else lambda line: None,
            self.spacing,
            as_score(self.score_model),
        )
        rng = np.random.default_rng(self.random_state)
        self._noisy = self._as_noisy(problem)
        check_spacing(self.spacing, problem, noisy=self._noisy is not None)
        if self._noisy is not None:
            outcome = fit_noisy(self._noisy, problem, options, rng)
        elif self.permutation == "shared":
            outcome = fit_shared(problem, options)
        else:
            outcome = fit_independent(problem, options, rng)
        outcome = replace(outcome, notes=(*outcome.notes, *absorbed))
        for caution in outcome.cautions:
            warnings.warn(caution, ReTraceWarning, stacklevel=3)
        result = self._result(panel, problem, outcome, tuple(features))
        self.result_ = result if self._units is None else self._units.result(result)
        if outcome.posterior is not None:
            self.posterior_ = outcome.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_
        self._problem = problem if outcome.gaps is None else replace(problem, gaps=outcome.gaps)
        self._law, self._initial = Law(outcome.model, outcome.initial), outcome.initial
        self._hidden = outcome.hidden
        self.n_features_in_ = data.shape[2]
        return self

    def _standard(self, data: Data) -> Data:
        """Data in the units of the fit: a table's are standardised."""
        if self._units is None:
            return data
        return replace(data, values=self._units.apply(data.values))

    def _as_noisy(self, problem: Problem) -> NoisyProblem | None:
        """The problem with noise or missing values; None where there are neither."""
        noise = self.observation_noise
        if noise is None and self.estimator == "em":
            noise = "estimate"
        check_noise(noise, problem.data.shape[2])
        if noise is None:
            if not (is_linear(problem.drift) and has_missing(problem.data)):
                return None
            noise = 0.0
        if self.estimator in ("mle", "ols") and self.order == "likelihood":
            raise ValueError(
                f"estimator={self.estimator!r} knows neither noise nor missing values: use 'em', 'exact' (em "
                "without the step's bias) or 'auto'."
            )
        return NoisyProblem.of(
            problem,
            noise=noise if self._units is None else self._units.noise(noise),
            scheme="exact" if self.estimator == "exact" else "euler",
        )

    def _result(
        self, panel: Panel, problem: Problem, outcome: Outcome, features: tuple[str, ...]
    ) -> ReTraceResult:
        drift, direction, estimate = problem.drift, outcome.direction, outcome.estimate
        A, c = _split(estimate.coefficients, drift)
        error_A, error_c = _split(estimate.errors.drift, drift)
        sde = LinearSDE(A, estimate.diffusion, offset=c) if is_linear(drift) else None
        twin = None
        if not direction.identified:
            other = outcome.reverse_estimate
            twin = Twin(
                outcome.reverse_order,
                *_split(other.coefficients, drift),
                other.diffusion,
                outcome.reverse_log_likelihood,
                problem.times(outcome.reverse_order, outcome.reverse_gaps),
            )
        return ReTraceResult(
            order=outcome.order,
            times=problem.times(outcome.order, outcome.gaps),
            drift=A,
            offset=c,
            diffusion=estimate.diffusion,
            standard_errors=StandardErrors(
                error_A, estimate.errors.diffusion, error_c, estimate.errors.covariances
            ),
            initial=outcome.initial,
            direction=direction,
            alternative=twin,
            identifiability=identify(
                problem.data,
                outcome.order,
                outcome.statistics,
                direction,
                sde,
                alpha=self.alpha,
                cycle=outcome.cycle,
            ),
            log_likelihood=outcome.log_likelihood,
            history=outcome.history,
            converged=outcome.converged,
            n_trajectories=problem.data.shape[0],
            dt=problem.dt,
            names=panel.names,
            feature_names=features,
            settings=self._settings(outcome.estimator),
            notes=(*outcome.notes, *outcome.cautions),
            observation_noise=None if outcome.hidden is None else outcome.hidden.fit.noise,
            gap_intervals=gap_intervals(outcome.gaps, outcome.log_gap_errors),
        )

    def _settings(self, estimator: str) -> dict[str, Any]:
        settings = {k: v for k, v in self.get_params(deep=False).items() if k != "n_jobs"}
        settings["drift"] = str(settings["drift"])
        settings["score_model"] = str(settings["score_model"])
        settings["estimator"] = estimator
        if not isinstance(self.random_state, int):
            settings["random_state"] = None
        return settings

    def _order_of(self, X: Any) -> tuple[Data, Order]:
        """The most likely order of other trajectories under the fitted parameters and p₀."""
        ragged = self.permutation == "independent"
        linear = is_linear(self._problem.drift)
        panel = check_panel(X, n_jobs=self.n_jobs, ragged=ragged, missing=linear)
        if panel.values.shape[2] != self.n_features_in_:
            raise ValueError(
                f"X has {panel.values.shape[2]} variables; the fit had {self.n_features_in_}."
            )
        raw = Data(panel.values, panel.covariates, self.n_jobs, panel.lengths)
        data = self._standard(raw)
        n, T, _ = data.shape
        others = self._others(data)
        if others is not None:
            rng = np.random.default_rng(self.random_state)
            return raw, order_others(others, self._state_space(), rng, shared=not ragged)
        if ragged:
            orders = np.tile(np.arange(T), (n, 1))
            states = random_states(np.random.default_rng(self.random_state), n)
            found, _ = search(data, self._law, orders, states, cold=True, deep=True, kicks=KICKS)
            return raw, found
        free = self.spacing == "estimate"
        costs = (gap_costs if free else transition_costs)(data, self._law.model)
        start = -self._initial.log_density(data.slices(np.arange(T))).sum(axis=1)
        chain = shortest_path(distances(data))
        both = [improve(costs, start, each) for each in (chain, chain[::-1].copy())]
        return raw, min(both, key=lambda order: path_cost(costs, start, order))

    def _others(self, data: Data) -> NoisyProblem | None:
        """Other trajectories as the noisy engine sees them; None where neither they nor the fit need it."""
        if self._hidden is None and not (is_linear(self._problem.drift) and has_missing(data)):
            return None
        unknown = replace(self._problem, data=data, prior=None, gaps=None)
        return NoisyProblem.of(unknown, noise=0.0)

    def _state_space(self) -> StateSpace:
        """The fitted model of noisy or incomplete observations; without noise where there was none."""
        if self._hidden is not None:
            return self._hidden.model
        A, c = _split(self._law.model.coefficients, self._problem.drift)
        H, d = self._law.model.diffusion, len(A)
        sde = LinearSDE(A, H, offset=c)
        step = sde.transition(self._law.model.dt, scheme="euler")
        return StateSpace(step, np.zeros((d, d)), self._initial)

    def reorder(self, X: Any) -> Any:
        """X (n, T, d), shuffled, in the order most likely under the fit.

        The permutation belongs to the data it is found for: it need not be `order_`.
        """
        check_is_fitted(self, "result_")
        with one_blas_thread():
            data, order = self._order_of(X)
        return in_order(data.values, order)

    def score(self, X: Any) -> float:
        """Mean log-likelihood per trajectory of X, ordered first, under the fitted parameters and p₀."""
        check_is_fitted(self, "result_")
        with one_blas_thread():
            raw, order = self._order_of(X)
            data = self._standard(raw)
            others = self._others(data)
            if others is not None:
                each = kalman(others.along(order), self._state_space()).log_likelihood
            else:
                start = self._initial.log_density(data.states(order))
                each = start + step_log_likelihoods(data, order, self._law.model)
            volume = 0.0 if self._units is None else self._units.log_volume(data)
            return float(each.mean()) - volume / len(each)

    def sample_orders(self, *, samples: int = 1500) -> OrderPosterior:
        """Draw orders from their posterior under the fitted parameters; kept as `posterior_`.

        For one shared order, or for each trajectory's own.
        """
        check_is_fitted(self, "result_")
        rng = np.random.default_rng(self.random_state)
        with one_blas_thread():
            if self._noisy is not None and self._hidden is not None:
                self.posterior_ = sample_noisy(
                    self._noisy, self._hidden.model, self.order_, rng, samples=samples
                )
            else:
                self.posterior_ = sample_posterior(
                    self._problem, self.order_, self._law, rng, samples=samples
                )
        return self.posterior_

    def bootstrap_errors(self, *, replicates: int = 200) -> StandardErrors:
        """Standard errors of the maximum likelihood fit along `order_`, by resampling trajectories.

        They hold where trajectories differ from one another more than one SDE allows; `standard_errors_`
        assume that they do not.
        """
        check_is_fitted(self, "result_")
        rng = np.random.default_rng(self.random_state)
        with one_blas_thread():
            if self._noisy is not None and self._hidden is not None:
                errors = bootstrap_noisy(
                    self._noisy, self.order_, self._hidden.fit, rng, replicates=replicates
                )
            else:
                problem = self._problem
                dt = problem.dt if problem.gaps is None else problem.gaps
                errors = bootstrap_errors(
                    problem.data, self.order_, dt, problem.drift, rng, replicates=replicates
                )
        of_A, of_c = _split(errors.drift, self._problem.drift)
        found = StandardErrors(of_A, errors.diffusion, of_c, errors.covariances)
        return found if self._units is None else self._units.errors(found)


def _split(coefficients: Array, drift: Drift) -> tuple[Array, Array]:
    """A and c of an affine drift; other drifts have no offset of their own."""
    if isinstance(drift, Affine):
        return coefficients[:, :-1], coefficients[:, -1]
    return coefficients, np.zeros(len(coefficients))
