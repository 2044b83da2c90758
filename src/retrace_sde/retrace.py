"""`ReTrace`: from a shuffled panel to its order, its direction of time and its SDE."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from retrace_sde.after.residuals import ResidualCheck, not_looked
from retrace_sde.after.simulated import look_at
from retrace_sde.checks import (
    check_centred,
    check_enough,
    check_features,
    check_knowledge,
    check_levels,
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
from retrace_sde.engine.account.bootstrap import bootstrap
from retrace_sde.engine.account.noise import NoiseChoice, noise_by_evidence
from retrace_sde.engine.account.subjects import Subjects, levelled
from retrace_sde.engine.euler import EulerModel
from retrace_sde.engine.fit import Options, Outcome, fit, order_others, sample_posterior
from retrace_sde.engine.gaps import GapModel, gap_intervals
from retrace_sde.engine.hidden import HiddenModel
from retrace_sde.engine.identifiability import identify
from retrace_sde.engine.model import Model
from retrace_sde.engine.posterior import OrderPosterior
from retrace_sde.estimate.kalman.steps import Noise, as_noise
from retrace_sde.estimate.regression import StandardErrors
from retrace_sde.fitted import Fitted, Memory
from retrace_sde.paper.algorithm1 import Keep, ScoreName, as_score
from retrace_sde.paper.score import Score, ScoreDrift
from retrace_sde.paper.search import ScoreSearch
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
    order : "likelihood", or "score" for the paper's Algorithm 1 (as printed with drift="linear").
    estimator : "mle" (the paper's equations), "ols" (degrees of freedom in H), "exact" (matrix
        logarithm: no bias from the step), "em" (state space: noise, missing values), "mcem" (independent
        orders: averages over them), or "auto": mle, or em where there is noise or values are missing (NaN);
        mcem where independent orders are not certain, as the summary says.
    drift : "affine" (A x + c), "linear" (A x, the paper's: for data centred at their equilibrium, or it is confidently
        wrong), or an object of `retrace_sde.drift`.
    observation_noise : None, a standard deviation, one for each variable (NaN: unknown), a covariance R
        (d, d), "estimate" (R = σ² I), "diagonal", or "auto": noise where the data prefer it; linear and affine drifts only. The order is then judged by the
        likelihood of what was observed. Values may be missing, with noise or without.
    subjects : "alike", one SDE for all; "levels", an intercept of its own for each, related to its first state; "auto":
        whichever the data prefer, as the summary says. Left out, levels make the drift several times too small.
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
        drift: Literal["linear", "affine"] | Drift = "affine",
        observation_noise: Noise | Literal["auto"] | None = None,
        spacing: Literal["regular", "estimate"] = "regular",
        subjects: Literal["auto", "alike", "levels"] = "auto",
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
        self.subjects = subjects
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
        check_centred(panel, drift)
        dt = float(self.dt if panel.dt is None else panel.dt)
        units = Units.of(panel, drift)
        model = EulerModel(self._data(panel, units), dt, drift)
        if knowledge is not None:
            model = model.informed(knowledge, shared=self.permutation == "shared")
        chosen = self._chosen(model, units)
        check_levels(self.subjects, chosen)
        rng = np.random.default_rng(self.random_state)
        outcome = fit(chosen, self._options(chosen), rng)
        noise = self._preferred_noise(chosen, outcome)
        if noise is not None and noise.noise is not None:
            chosen = self._with_noise(model, noise.noise)
            outcome = fit(chosen, self._options(chosen), rng)
        outcome = replace(outcome, notes=(*outcome.notes, *absorbed))
        result = self._result(panel, chosen, outcome, tuple(features))
        residuals = self._residuals(chosen, outcome, rng)
        result = replace(result, residuals=residuals, noise_choice=noise)
        for caution in outcome.cautions:
            warnings.warn(caution, ReTraceWarning, stacklevel=3)
        # All at once, and last: a fit that fails leaves the former result as it was.
        self.result_ = result if units is None else units.result(result)
        self._memory = Memory(chosen, outcome, units)
        self.n_features_in_ = panel.values.shape[2]
        if outcome.posterior is not None:
            self.posterior_ = outcome.posterior
        elif hasattr(self, "posterior_"):
            del self.posterior_
        return self

    def _data(self, panel: Panel, units: Units | None) -> Data:
        """A panel's values in the units of the fit: a table's are standardised."""
        values = panel.values if units is None else units.apply(panel.values)
        return Data(values, panel.covariates, self.n_jobs, panel.lengths)

    def _chosen(self, model: EulerModel, units: Units | None) -> Model:
        """The model that the settings and the data call for."""
        noise = self._noise(model)
        check_spacing(self.spacing, model, noisy=noise is not None)
        if noise is not None:
            return self._with_noise(model, noise if units is None else units.noise(noise))
        if self.spacing == "estimate" and model.gaps is None:
            known = (model.prior, model.gaps, model.stamps, model.origins)
            return GapModel(model.data, model.dt, model.drift, *known)
        return model

    def _with_noise(self, model: EulerModel, noise: Noise) -> HiddenModel:
        scheme: Any = "exact" if self.estimator == "exact" else "euler"
        return HiddenModel.of(model, noise=noise, scheme=scheme)

    def _preferred_noise(self, model: Model, outcome: Outcome) -> NoiseChoice | None:
        """What the data say of noise, where they are asked; one best order must be worth looking along."""
        if not _is_auto(self.observation_noise) or outcome.estimator == "mcem":
            return None
        return noise_by_evidence(model, outcome.found, outcome.levels)

    def _noise(self, model: EulerModel) -> Noise | None:
        """Observation noise; 0 where there is none but values are missing, None where there are neither."""
        noise = None if _is_auto(self.observation_noise) else self.observation_noise
        if noise is None and self.estimator == "em":
            noise = "estimate"
        check_noise(noise, model.data.shape[2])
        if noise is None and not (is_linear(model.drift) and has_missing(model.data)):
            return None
        if self.estimator in ("mle", "ols") and self.order == "likelihood":
            raise ValueError(
                f"estimator={self.estimator!r} knows neither noise nor missing values: use 'em', 'exact' (em "
                "without the step's bias) or 'auto'."
            )
        return 0.0 if noise is None else noise

    def _options(self, model: Model) -> Options:
        hidden = isinstance(model, HiddenModel)
        search = None
        if self.order == "score":
            d = model.data.shape[2]
            R = as_noise(model.noise, d)[0] if isinstance(model, HiddenModel) else None
            score = as_score(self.score_model)
            search = ScoreSearch(self.max_iter, self.score_drift, self.keep, score, R)
        estimator = self.estimator
        if hidden and estimator != "mcem":  # the scheme knows whether transitions are exact
            estimator = "auto" if estimator == "auto" else "em"
        return Options(
            self.permutation == "shared",
            estimator,
            self.max_iter,
            self.alpha,
            print if self.verbose else lambda line: None,
            search,
            Subjects(self.subjects) if search is None else Subjects.ALIKE,
        )

    def _result(
        self, panel: Panel, model: Model, outcome: Outcome, features: tuple[str, ...]
    ) -> ReTraceResult:
        found, drift = outcome.found, model.drift
        A, c = _split(outcome.estimate.coefficients, drift)
        sde = LinearSDE(A, outcome.estimate.diffusion, offset=c) if is_linear(drift) else None
        return ReTraceResult(
            order=found.order,
            times=model.times(found.order, found.gaps),
            drift=A,
            offset=c,
            diffusion=outcome.estimate.diffusion,
            standard_errors=_told_apart(outcome.estimate.errors, drift),
            initial=outcome.initial,
            direction=outcome.direction,
            alternative=None if outcome.direction.identified else _twin(model, outcome),
            identifiability=identify(
                model.data,
                found.order,
                outcome.statistics,
                outcome.direction,
                sde,
                alpha=self.alpha,
                cycle=outcome.cycle,
            ),
            log_likelihood=found.log_likelihood,
            history=outcome.history,
            converged=outcome.converged,
            n_trajectories=model.data.shape[0],
            dt=model.dt,
            names=panel.names,
            feature_names=features,
            settings=self._settings(outcome.estimator),
            notes=(*outcome.notes, *outcome.cautions),
            observation_noise=found.law.R if isinstance(model, HiddenModel) else None,
            gap_intervals=gap_intervals(found.gaps, found.log_gap_errors, model.data.shape[0]),
            subjects=outcome.subjects,
            gap_clocks=found.clocks,
        )

    def _residuals(self, model: Model, outcome: Outcome, rng: np.random.Generator) -> ResidualCheck:
        """What the residuals along the order say; not of own orders that are, or may be, uncertain."""
        shared = outcome.found.order.ndim == 1
        certain = self.estimator == "auto" and outcome.estimator != "mcem"
        if not (shared or certain or model.gaps is not None):
            return not_looked(model.data.shape[0])
        found = outcome.found
        if outcome.levels is not None and isinstance(model, EulerModel):
            model, found = levelled(model, found, outcome.levels, rng)
        return look_at(model, found, rng)

    def _settings(self, estimator: str) -> dict[str, Any]:
        settings = {k: v for k, v in self.get_params(deep=False).items() if k != "n_jobs"}
        settings["drift"] = str(settings["drift"])
        settings["score_model"] = str(settings["score_model"])
        settings["estimator"] = estimator
        if not isinstance(self.random_state, int):
            settings["random_state"] = None
        return settings

    def _ordered(self, X: Any) -> tuple[Panel, Model, Outcome, Order]:
        """Other trajectories, the model and outcome that judge them, and their most likely order."""
        memory, ragged = self._memory, self.permutation == "independent"
        linear = is_linear(memory.model.drift)
        panel = check_panel(X, n_jobs=self.n_jobs, ragged=ragged, missing=linear)
        if panel.values.shape[2] != self.n_features_in_:
            raise ValueError(
                f"X has {panel.values.shape[2]} variables; the fit had {self.n_features_in_}."
            )
        data = self._data(panel, memory.units)
        model, outcome = memory.model.for_others(data), memory.outcome
        if linear and has_missing(data) and not isinstance(model, HiddenModel):
            model = HiddenModel.of(model.plain(), noise=0.0)
            found = model.adopted(outcome.found, outcome.initial)
            outcome = replace(outcome, found=found, law=found.law)
        rng = np.random.default_rng(self.random_state)
        return panel, model, outcome, order_others(model, outcome, rng)

    def reorder(self, X: Any) -> Any:
        """X (n, T, d), shuffled, in the order most likely under the fit.

        The permutation belongs to the data it is found for: it need not be `order_`.
        """
        check_is_fitted(self, "result_")
        with one_blas_thread():
            panel, _, _, order = self._ordered(X)
        return in_order(panel.values, order)

    def score(self, X: Any) -> float:
        """Mean log-likelihood per trajectory of X, ordered first, under the fitted parameters and p₀."""
        check_is_fitted(self, "result_")
        with one_blas_thread():
            _, model, outcome, order = self._ordered(X)
            each = model.log_joint(order, outcome.law)
            units = self._memory.units
            volume = 0.0 if units is None else units.log_volume(model.data)
            return float(each.mean()) - volume / len(each)

    def sample_orders(self, *, samples: int = 1500) -> OrderPosterior:
        """Draw orders from their posterior under the fitted parameters; kept as `posterior_`.

        For one shared order, or for each trajectory's own.
        """
        check_is_fitted(self, "result_")
        rng = np.random.default_rng(self.random_state)
        with one_blas_thread():
            model, outcome = self._memory.model, self._memory.outcome
            self.posterior_ = sample_posterior(model, outcome, rng, samples=samples)
        return self.posterior_

    def bootstrap_errors(
        self,
        *,
        replicates: int = 200,
        adopt: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> StandardErrors:
        """Standard errors of the fit along `order_`, by resampling trajectories; `adopt`: they become the result's.

        Like `standard_errors_` by default they rest on the spread between trajectories; unlike them they need no large
        panel, and take as many fits as there are replicates. `done` is called after each of them.
        """
        check_is_fitted(self, "result_")
        if replicates < 2:
            raise ValueError(f"replicates must be at least 2 to have a spread; got {replicates!r}.")
        model, outcome, units = self._memory
        effects = outcome.subjects
        with one_blas_thread():
            errors = bootstrap(
                model,
                outcome.found,
                np.random.default_rng(self.random_state),
                name=outcome.estimator,
                subjects=Subjects.ALIKE if effects is None else effects.kind,
                replicates=replicates,
                done=done,
            )
        found = _told_apart(errors, model.drift)
        found = found if units is None else units.errors(found)
        if adopt:
            self.result_ = replace(self.result_, standard_errors=found)
        return found


def _is_auto(noise: Any) -> bool:
    return isinstance(noise, str) and noise == "auto"


def _split(coefficients: Array, drift: Drift) -> tuple[Array, Array]:
    """A and c of an affine drift; other drifts have no offset of their own."""
    if isinstance(drift, Affine):
        return coefficients[:, :-1], coefficients[:, -1]
    return coefficients, np.zeros(len(coefficients))


def _told_apart(errors: StandardErrors, drift: Drift) -> StandardErrors:
    """Errors of A and c told apart, as the parameters are."""
    of_A, of_c = _split(errors.drift, drift)
    return replace(errors, drift=of_A, offset=of_c)


def _twin(model: Model, outcome: Outcome) -> Twin:
    reverse, estimate = outcome.reverse, outcome.reverse_estimate
    return Twin(
        reverse.order,
        *_split(estimate.coefficients, model.drift),
        estimate.diffusion,
        reverse.log_likelihood,
        model.times(reverse.order, reverse.gaps),
    )
