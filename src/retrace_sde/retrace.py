"""`ReTrace`: from a shuffled panel to its order, its direction of time and its SDE."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from retrace_sde.after.forecast import Forecast, Imputed
from retrace_sde.after.predict import imputed, predicted
from retrace_sde.after.residuals import ResidualCheck, not_looked
from retrace_sde.after.simulated import look_at, looked_at
from retrace_sde.checks import (
    check_centred,
    check_consistent,
    check_diffusion,
    check_enough,
    check_features,
    check_gaps,
    check_knowledge,
    check_lazy,
    check_levels,
    check_noise,
    check_settings,
    check_state_space,
    check_volumes,
    in_words,
    is_auto,
    noise_of_kept,
    nonlinear,
    with_times,
)
from retrace_sde.evidence.identifiability import identify
from retrace_sde.evidence.outcome import Options, Outcome, fit, order_others, sample_posterior
from retrace_sde.evidence.selection.bootstrap import bootstrap
from retrace_sde.evidence.selection.hidden_levels import levelled_hidden
from retrace_sde.evidence.selection.noise import NoiseChoice, noise_by_evidence
from retrace_sde.evidence.selection.subjects import Subjects, levelled
from retrace_sde.fit.levels import LevelFit
from retrace_sde.fit.regression import Estimate, StandardErrors
from retrace_sde.fit.statespace.irregular.levels import HiddenLevels
from retrace_sde.fit.statespace.steps import Noise, as_noise
from retrace_sde.fitted import Fitted, Memory
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.array import LazyArray
from retrace_sde.panel.blocks import Data, in_order, one_blas_thread, to_numpy
from retrace_sde.panel.canonical import RowPermutation, content_permutation
from retrace_sde.panel.inputs import MissingInputs, filled_inputs
from retrace_sde.panel.knowledge import Knowledge, settled
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import checked
from retrace_sde.panel.schedule import off_schedule, on_schedule
from retrace_sde.panel.uninformative import coarse
from retrace_sde.panel.validation import (
    ReTraceWarning,
    check_panel,
    has_missing,
)
from retrace_sde.paper.algorithm1 import ScoreOrder, as_score_order
from retrace_sde.paper.search import ScoreSearch
from retrace_sde.process.drift import (
    Drift,
    as_drift,
    driven,
    has_state_space,
    in_state_space,
    is_linear,
    parted,
)
from retrace_sde.process.sde import LinearSDE
from retrace_sde.progress import Callback, cut_short, report, reporting
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel, gap_intervals
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.models.irregular import IrregularModel
from retrace_sde.search.models.random_gaps import RandomGapModel
from retrace_sde.search.posterior import OrderPosterior
from retrace_sde.search.protocols import Model
from retrace_sde.units import Units, as_given, posterior_as_given

INPUT_ROUNDS = 4
"""Fits, at most, between which missing inputs are filled in along the order found."""

NOISE_UNFITTED = (
    "Some trajectories prefer an account with measurement noise, which is fitted in memory only: these parameters are without it. "
    "Fit a part of the trajectories, read into memory, with observation_noise='estimate'."
)


class ReTrace(Fitted, BaseEstimator):  # type: ignore[misc]
    """Recover the order of shuffled time slices, the direction of time, and the SDE behind them.

    Maximises `log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)` over the order o and θ = (A, H), and tests
    the order against its reverse. Where the data cannot tell the two apart (a stationary linear SDE
    fits both ways equally well) `direction_.identified` is False and `alternative_` holds the other.

    Limits: one SDE, up to levels or rates of the subjects' own; the order is found by local search, exact only
    for few slices; standard errors take a shared order for known. `identifiability_` and `residuals_` say what a
    given data set cannot tell and what the model gets wrong.

    Parameters
    ----------
    dt : float
        Time between neighbouring observations; A and H are in its units. A `Panel` may bring its own.
    permutation : {"shared", "independent"}
        One unknown permutation of the slices for all trajectories, or one for each trajectory (which may then
        differ in length).
    order : {"likelihood", "score"} or `retrace_sde.paper.ScoreOrder`
        "score" is the paper's Algorithm 1 (as printed with drift="linear"): it sorts by growing spread. Its options are
        those of `ScoreOrder`.
    estimator : {"auto", "mle", "ols", "exact", "em", "mcem"}
        "mle" (the paper's equations), "ols" (degrees of freedom in H), "exact" (matrix
        logarithm: no bias from the step), "em" (state space: noise, missing values), "mcem" (independent
        orders: averages over them), or "auto": mle, or em where there is noise or values are missing (NaN);
        mcem where independent orders are not certain, as the summary says.
    drift : {"affine", "linear"} or object of `retrace_sde.drift`
        "affine" is A x + c; "linear", A x, the paper's, is for data centred at their equilibrium: elsewhere it is confidently
        wrong.
    observation_noise : None, float, array, "estimate", "diagonal" or "auto"
        A standard deviation, one for each variable (NaN: unknown), a covariance R
        (d, d), "estimate" (R = σ² I), "diagonal", or "auto": noise where the data prefer it; linear and affine drifts only.
        The order is then judged by the likelihood of what was observed. Values may be missing, with noise or without.
    spacing : {"regular", "estimate"}
        "regular": neighbours are dt apart. "estimate": the times between neighbours are not known. One shared order has its own
        gaps, estimated (`gaps_`, `times_`) with their mean held at dt, which sets the unit; orders of their own have a law of
        gaps, over which all is averaged. Volatility that changes reads as time that passes unevenly; intervals allow for it.
    missing_covariates : {"refuse", "carry", "interpolate"}
        Covariates that are missing here and there: refused, the last value carried on, or interpolated, both
        along the order found.
    subjects : {"auto", "alike", "levels", "rates"}
        "alike", one SDE for all; "levels", an intercept of its own for each, related to its first state; "rates", a
        factor of its own on the drift; "auto": whichever the data prefer, as the summary says. Left out, levels make the
        drift several times too small.
    max_iter : int
        Rounds at most.
    alpha : float
        Level of the direction test (see `docs/direction.md`).
    random_state : int, Generator or None
        Seeds the simulations of the direction test, and the search and sampling of independent orders.
    n_jobs : int or None
        Threads (None: all cores); the answer does not depend on it.
    verbose : bool
        Print each round.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    >>> X, truth = rt.simulate.shuffle(sde.simulate(40, 12, 0.05, random_state=1), random_state=2)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(X)
    >>> rt.metrics.order_accuracy(truth, model.order_)
    1.0
    >>> model.direction_.identified
    True
    >>> model.drift_.shape, model.standard_errors_.drift.shape
    ((3, 3), (3, 3))

    The direction may be open; the twin then stands beside the answer:

    >>> A = [[-1.0, 2.0], [-2.0, -1.0]]
    >>> still = rt.LinearSDE(A, [[1, 0], [0, 1]]).simulate(30, 12, 0.1, x0="stationary", random_state=3)
    >>> model = rt.ReTrace(dt=0.1, random_state=0).fit(still)
    >>> model.direction_.identified, model.alternative_.drift.shape
    (False, (2, 2))
    """

    def __init__(
        self,
        *,
        dt: float = 1.0,
        permutation: Literal["shared", "independent"] = "shared",
        order: Literal["likelihood", "score"] | ScoreOrder = "likelihood",
        estimator: Literal["auto", "mle", "ols", "exact", "em", "mcem"] = "auto",
        drift: Literal["linear", "affine"] | Drift = "affine",
        observation_noise: Noise | Literal["auto"] | None = None,
        spacing: Literal["regular", "estimate"] = "regular",
        missing_covariates: MissingInputs = "refuse",
        subjects: Literal["auto", "alike", "levels", "rates"] = "auto",
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
        self.missing_covariates = missing_covariates
        self.subjects = subjects
        self.max_iter = max_iter
        self.alpha = alpha
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """For scikit-learn: three axes, values may be missing, no target."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = False
        return tags

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        covariates: Any | None = None,
        knowledge: Knowledge | None = None,
        progress: Callback | bool | None = None,
    ) -> Self:
        """Recover order, direction and SDE from X. X is not modified.

        A fit that fails leaves the former result as it was.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            Trajectories in an order along T that is not known; NaN where a value is missing.
        y : None
            Ignored, for scikit-learn.
        covariates : array (n, T, k), optional
            Inputs: with a linear or affine drift `dX = (A X + B u + c) dt + G dW`, each held from its observation to the next.
        knowledge : Knowledge, optional
            What is known of time. With all times known the order is given, and the SDE is fitted with the true gaps.
        progress : callable, bool or None
            Called with what is being done (see `retrace_sde.progress`); True shows a bar.

        Returns
        -------
        ReTrace
            Itself, with `result_` and the names that end in `_`.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
        >>> X, truth = rt.simulate.shuffle(sde.simulate(40, 12, 0.05, random_state=1), random_state=2)
        >>> known = rt.Knowledge(first=int(truth[0]))
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(X, knowledge=known)
        >>> print(model.direction_.verdict)
        The direction of time is known from the knowledge given; it was not tested.
        """
        with one_blas_thread(), reporting(progress):
            return self._fit(X, covariates, knowledge)

    def _fit(self, X: Any, covariates: Any | None, knowledge: Knowledge | None) -> Self:
        report("preparing")
        check_settings(self.get_params(deep=False))
        knowledge = with_times(X, knowledge) if self.order == "likelihood" else knowledge
        check_knowledge(knowledge, self.order)
        knowledge = settled(knowledge)
        drift, shared = as_drift(self.drift), self.permutation == "shared"
        likely, linear = self.order == "likelihood", has_state_space(driven(drift))
        panel = check_panel(
            X,
            covariates,
            n_jobs=self.n_jobs,
            ragged=not shared,
            missing=likely and linear,
            missing_covariates=self.missing_covariates != "refuse",
            idle=not (likely and linear),
            refusal=nonlinear("Missing values", drift) if likely and not linear else None,
            look=likely and linear,
        )
        check_lazy(panel, self.get_params(deep=False), knowledge)
        panel = check_volumes(panel, drift)
        check_enough(panel, len(drift.feature_names(panel.names, panel.covariate_names)))
        check_centred(panel, drift)
        if knowledge is not None:
            check_consistent(knowledge, panel, shared=shared, dt=float(self.dt))
        # From here on everything stands where its content puts it; `as_given` puts it back.
        placed = content_permutation(panel, shared=shared, known=knowledge)
        if not (shared and likely):
            placed = placed.shuffled(None if shared else panel.lengths)
        whole = panel = placed.panel(panel)
        knowledge = None if knowledge is None else placed.knowledge(knowledge)
        if knowledge is not None and knowledge.schedule is not None and not shared:
            panel, knowledge = on_schedule(panel, knowledge)
        rng = np.random.default_rng(self.random_state)
        with in_words(panel):
            fitted = self._fitted_inputs(panel, drift, knowledge, rng)
        chosen, outcome, units, features, notes = fitted
        check_diffusion(panel, outcome.estimate.diffusion * chosen.dt, chosen.variances)
        if not isinstance(chosen, HiddenModel):
            raw = Data(panel.values, lengths=panel.lengths)
            notes = (*notes, *coarse(raw, outcome.found.order, panel.names))
        cut = cut_short()
        outcome = replace(
            outcome,
            notes=(*outcome.notes, *notes),
            cautions=(
                *([] if cut is None else [cut]),
                *(each.sentence for each in panel.left_out),
                *outcome.cautions,
            ),
            converged=outcome.converged and cut is None,
        )
        with in_words(panel):
            result = self._result(whole, chosen, outcome, features)
            look = self._residuals(chosen, outcome, rng)
        for caution in outcome.cautions:
            warnings.warn(caution, ReTraceWarning, stacklevel=3)
        # All at once, and last: a fit that fails leaves the former result as it was.
        result = result if units is None else units.result(result)
        later: Any = partial(_residuals_as_given, look, units, placed)
        stopped = cut is not None
        self.result_ = replace(as_given(result, placed), residuals=later, stopped=stopped)
        self._memory = Memory(chosen, outcome, units, placed)
        self.n_features_in_ = panel.values.shape[2] + len(panel.left_out)
        if outcome.posterior is not None:
            self.posterior_ = posterior_as_given(outcome.posterior, placed)
        elif hasattr(self, "posterior_"):
            del self.posterior_
        return self

    def _fitted_inputs(
        self, panel: Panel, drift: Drift, knowledge: Knowledge | None, rng: np.random.Generator
    ) -> tuple[Model, Outcome, Units | None, tuple[str, ...], tuple[str, ...]]:
        """The fit of a panel; where inputs are missing again, with what the order found says of them, until it stands."""
        u = panel.covariates
        if u is None or isinstance(u, LazyArray) or not np.isnan(to_numpy(u)).any():
            return self._fit_panel(panel, drift, knowledge, rng)
        given = to_numpy(u)
        filled = filled_inputs(given, self.missing_covariates)
        for _ in range(INPUT_ROUNDS):
            found = self._fit_panel(replace(panel, covariates=filled), drift, knowledge, rng)
            best = found[1].found
            before, times = filled, found[0].times(best.order, best.gaps)
            filled = filled_inputs(given, self.missing_covariates, best.order, times)
            if np.allclose(filled, before):
                break
        note = (
            f"{np.isnan(given).mean():.2g} of the inputs are missing; they are "
            f"{'carried on' if self.missing_covariates == 'carry' else 'interpolated'} along the order found."
        )
        return (*found[:4], (*found[4], note))

    def _fit_panel(
        self, panel: Panel, drift: Drift, knowledge: Knowledge | None, rng: np.random.Generator
    ) -> tuple[Model, Outcome, Units | None, tuple[str, ...], tuple[str, ...]]:
        """The model, its outcome, the units, the names of the drift's features, and notes."""
        if self._unseen(panel, knowledge) or (panel.covariates is not None and is_linear(drift)):
            drift = in_state_space(drift, inputs=panel.covariates is not None)
        drift, absorbed = check_features(panel, drift)
        dt = float(self.dt if panel.dt is None else panel.dt)
        units = self._units(panel, drift)
        model = EulerModel(self._data(panel, units), dt, drift)
        if knowledge is not None:
            model = model.informed(knowledge, shared=self.permutation == "shared")
        noise = noise_of_kept(self._given_noise, panel.left_out)
        chosen = self._chosen(model, units, noise)
        check_levels(self.subjects, chosen)
        features = chosen.drift.feature_names(panel.names, panel.covariate_names)
        outcome = fit(chosen, self._options(chosen, units), rng)
        preferred = self._preferred_noise(chosen, outcome)
        if preferred is not None and preferred.noise is not None and model.data.lazy:
            outcome = replace(outcome, cautions=(*outcome.cautions, NOISE_UNFITTED))
            preferred = None
        if preferred is not None and preferred.noise is not None:
            chosen = self._hidden(model, preferred.noise, free=False)
            outcome = fit(chosen, self._options(chosen, units), rng)
        outcome = replace(outcome, noise=preferred)
        return chosen, outcome, units, tuple(features), tuple(absorbed)

    @property
    def _given_noise(self) -> Any:
        """Observation noise as it was given; None where the data are to say."""
        return None if is_auto(self.observation_noise) else self.observation_noise

    def _preferred_noise(self, model: Model, outcome: Outcome) -> NoiseChoice | None:
        """What the data say of noise, where they are asked; one best order must be worth looking along."""
        without = self.estimator in ("mle", "ols") or outcome.estimator == "mcem"
        if not is_auto(self.observation_noise) or without:
            return None
        report("comparing with and without noise")
        return noise_by_evidence(model, outcome.found, outcome.levels)

    def _unseen(self, panel: Panel, knowledge: Knowledge | None) -> bool:
        """States are not all seen as they are, or their times are not: only drifts linear in the state will do."""
        scheduled = knowledge is not None and knowledge.schedule is not None
        drawn = self.spacing == "estimate" and self.permutation == "independent"
        noisy = self._given_noise is not None or self.estimator == "em"
        return scheduled or drawn or noisy or has_missing(Data(panel.values))

    def _units(self, panel: Panel, drift: Drift) -> Units | None:
        """Standard units; of an array one for all variables where these are compared with each other.

        That is so in the paper's scores, and of noise that is one number for all.
        """
        noise, em = self.observation_noise, self.estimator == "em"
        alike = noise == "estimate" if isinstance(noise, str) else noise is None and em
        common = self.order != "likelihood" or alike
        return Units.of(panel, drift, common=common and panel.rows is None)

    def _data(self, panel: Panel, units: Units | None) -> Data:
        """A panel's values in the units of the fit."""
        values = panel.values if units is None else units.apply(panel.values)
        return Data(values, panel.covariates, self.n_jobs, panel.lengths)

    def _chosen(self, model: EulerModel, units: Units | None, noise: Noise | None) -> Model:
        """The model that the settings and the data call for."""
        noise = self._noise(model, noise)
        own = self.permutation == "independent"
        free = self.spacing == "estimate" and model.gaps is None
        timed = model.schedule is not None or (own and free)
        own_times = model.gaps is not None and model.gaps.ndim == 2
        if own_times and self.estimator == "exact" and has_state_space(model.drift):
            timed = True  # exact transitions across each trajectory's own gaps
        if noise is None and not timed:
            if not free:
                return model
            found = GapModel(model.data, model.dt, model.drift)
            return found.knowing(model)
        check_state_space(model.drift, noise=noise, timed=timed)
        noise = 0.0 if noise is None else noise
        noise = noise if units is None else units.noise(noise)
        return self._hidden(model, noise, free=free)

    def _hidden(self, model: EulerModel, noise: Noise, *, free: bool) -> HiddenModel:
        """The state-space model for the steps that there are: equal, known, scheduled or unknown ones."""
        T = model.data.shape[1]
        if free and self.permutation == "independent":
            return RandomGapModel.unknown(model, noise=noise)
        if model.schedule is not None:
            return IrregularModel.across(model, np.diff(model.schedule), noise=noise, placed=True)
        uneven = model.gaps is not None and not np.allclose(model.gaps, model.dt)
        if free or uneven:
            gaps = np.full(T - 1, model.dt) if model.gaps is None else model.gaps
            return IrregularModel.across(model, gaps, noise=noise, free=free)
        scheme: Any = "exact" if self.estimator == "exact" else "euler"
        if model.data.covariates is not None:
            return IrregularModel.across(
                model, np.full(T - 1, model.dt), noise=noise, scheme=scheme
            )
        return HiddenModel.of(model, noise=noise, scheme=scheme)

    def _noise(self, model: EulerModel, noise: Noise | None) -> Noise | None:
        """Observation noise; 0 where there is none but values are missing, None where there are neither."""
        if noise is None and self.estimator == "em":
            noise = "estimate"
        check_noise(noise, model.data.shape[2])
        missing = has_state_space(driven(model.drift)) and has_missing(model.data)
        if noise is None and not missing:
            return None
        if self.estimator in ("mle", "ols") and self.order == "likelihood":
            raise ValueError(
                f"estimator={self.estimator!r} knows neither noise nor missing values: use 'em', 'exact' (em "
                "without the step's bias) or 'auto'."
            )
        return 0.0 if noise is None else noise

    def _options(self, model: Model, units: Units | None) -> Options:
        hidden = isinstance(model, HiddenModel)
        search = None
        how = as_score_order(self.order)
        if how is not None:
            d = model.data.shape[2]
            R = as_noise(model.noise, d)[0] if isinstance(model, HiddenModel) else None
            search = ScoreSearch(self.max_iter, how, R)
        subjects = Subjects(self.subjects)
        if search is not None and subjects is Subjects.AUTO:
            subjects = Subjects.ALIKE  # the paper's
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
            subjects,
            0.0 if units is None else units.volume,
        )

    def _result(
        self, panel: Panel, model: Model, outcome: Outcome, features: tuple[str, ...]
    ) -> ReTraceResult:
        found, drift = outcome.found, model.drift
        A, c, B = parted(outcome.estimate.coefficients, drift)
        sde = LinearSDE(A, outcome.estimate.diffusion, offset=c) if is_linear(drift) else None
        order, times = self._as_given(panel, model, found)
        return ReTraceResult(
            order=order,
            times=times,
            drift=A,
            offset=c,
            inputs=B,
            diffusion=outcome.estimate.diffusion,
            standard_errors=_told_apart(outcome.estimate.errors, drift),
            initial=outcome.initial,
            direction=outcome.direction,
            alternative=None if outcome.direction.identified else self._twin(panel, model, outcome),
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
            converged=outcome.converged and _all_finite(outcome.estimate),
            n_trajectories=model.data.shape[0],
            dt=model.dt,
            names=panel.names,
            feature_names=features,
            settings=self._settings(outcome.estimator),
            notes=(*outcome.notes, *outcome.cautions),
            observation_noise=_noise_found(model, outcome),
            gap_intervals=gap_intervals(found.gaps, found.log_gap_errors, model.data.shape[0]),
            subjects=outcome.subjects,
            noise_choice=outcome.noise,
            gap_clocks=found.clocks,
            left_out=panel.left_out,
        )

    def _as_given(self, panel: Panel, model: Model, found: Fit) -> tuple[Indices, Array]:
        """The order of the panel's own observations, without visits that were missed, and its times."""
        times = model.times(found.order, found.gaps)
        n, T, _ = panel.values.shape
        if found.order.shape[-1] == T and (panel.lengths is None or model.data.lengths is not None):
            return found.order, times
        lengths = np.full(n, T) if panel.lengths is None else panel.lengths
        return off_schedule(found.order, times, lengths, T)

    def _twin(self, panel: Panel, model: Model, outcome: Outcome) -> Twin:
        reverse, estimate = outcome.reverse, outcome.reverse_estimate
        A, c, B = parted(estimate.coefficients, model.drift)
        order, times = self._as_given(panel, model, reverse)
        errors = _twin_errors(outcome, model.drift)
        return Twin(order, A, c, estimate.diffusion, reverse.log_likelihood, times, errors, B)

    def _residuals(
        self, model: Model, outcome: Outcome, rng: np.random.Generator
    ) -> tuple[Callable[[], ResidualCheck], Indices | None]:
        """The look at the residuals along the order, and of which trajectories; not of own orders that are, or may be, uncertain."""
        shared = outcome.found.order.ndim == 1
        certain = self.estimator == "auto" and outcome.estimator != "mcem"
        found, levels = outcome.found, outcome.levels
        blind = partial(not_looked, model.data.shape[0])
        if not (shared or certain or model.gaps is not None):
            return blind, None
        if levels is not None and model.data.lazy:  # subjects would have to be moved, all of them
            return blind, None
        if isinstance(model, EulerModel) and levels is None:
            few, part, rows = looked_at(model, found)
            return partial(look_at, few, part, rng), rows
        report("looking at the residuals")
        if isinstance(levels, HiddenLevels) and isinstance(model, HiddenModel):
            model, found = levelled_hidden(model, found, levels, rng)
        elif isinstance(levels, LevelFit) and isinstance(model, EulerModel):
            model, found = levelled(model, found, levels, rng)
        check = look_at(model, found, rng, None if levels is None else levels.effects)
        return partial(replace, check), None

    def _settings(self, estimator: str) -> dict[str, Any]:
        settings = {k: v for k, v in self.get_params(deep=False).items() if k != "n_jobs"}
        settings["drift"] = str(settings["drift"])
        settings["order"] = str(settings["order"])
        settings["estimator"] = estimator
        if not isinstance(self.random_state, int):
            settings["random_state"] = None
        return settings

    def _ordered(self, X: Any) -> tuple[Panel, RowPermutation, Model, Outcome, Indices]:
        """Other trajectories, their places, the model and outcome that judge them, and their most likely order there."""
        memory, ragged = self._memory, self.permutation == "independent"
        linear = has_state_space(memory.model.drift)
        refusal = None if linear else nonlinear("Missing values", memory.model.drift)
        whole = check_panel(X, n_jobs=self.n_jobs, ragged=ragged, missing=linear, refusal=refusal)
        if whole.values.shape[2] != self.n_features_in_:
            raise ValueError(
                f"X has {whole.values.shape[2]} variables; the fit had {self.n_features_in_}."
            )
        panel = whole.without(self.result_.left_out)
        placed = content_permutation(panel, shared=not ragged)
        data = self._data(placed.panel(panel), memory.units)
        model, outcome = memory.model.for_others(data), memory.outcome
        if linear and has_missing(data) and not isinstance(model, HiddenModel):
            model = HiddenModel.of(model.plain(), noise=0.0)
            found = model.adopted(outcome.found, outcome.initial)
            outcome = replace(outcome, found=found, law=found.law)
        rng = np.random.default_rng(self.random_state)
        return whole, placed, model, outcome, order_others(model, outcome, rng)

    def reorder(self, X: Any) -> Any:
        """X (n, T, d), shuffled, in the order most likely under the fit.

        The permutation belongs to the data it is found for: it need not be `order_`.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            Trajectories of the same process, of the same variables.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
        >>> Y = sde.simulate(40, 12, 0.05, random_state=1)
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y[:30])
        >>> lost, truth = rt.simulate.shuffle(Y[30:], random_state=2)
        >>> np.array_equal(model.reorder(lost), Y[30:])
        True
        """
        check_is_fitted(self, "result_")
        with one_blas_thread():
            panel, placed, _, _, order = self._ordered(X)
            order = placed.given_orders(order)
        return self._shown(panel, in_order(panel.values, order), order)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood per trajectory of X, ordered first, under the fitted parameters and p₀.

        For comparing models on trajectories that were left out; an order is chosen for X first, so it flatters
        models under which orders are easily confused.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            Trajectories of the same variables.
        y : None
            Ignored, for scikit-learn.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 12, 0.05, random_state=1)
        >>> linear, affine = (rt.ReTrace(dt=0.05, drift=b, random_state=0).fit(Y[:30]) for b in ("linear", "affine"))
        >>> bool(linear.score(Y[30:]) > affine.score(Y[30:]))  # the offset is not worth its price here
        True
        """
        check_is_fitted(self, "result_")
        with one_blas_thread():
            _, _, model, outcome, order = self._ordered(X)
            each = model.log_joint(order, outcome.law)
            units = self._memory.units
            volume = 0.0 if units is None else units.log_volume(model.data)
            return float(each.mean()) - volume / len(each)

    @checked
    def forecast(
        self, X: Any, steps: int, *, gaps: Any | None = None, level: float = 0.95
    ) -> Forecast:
        """Means and intervals of the next `steps` observations of each trajectory of X, put in order first.

        Intervals are widened where the fit's own past predictions were too sure. The order is taken for known; where the
        direction is open a warning says that the reverse would forecast something else.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            What was fitted, or other trajectories.
        steps : int
            Observations ahead, dt apart. A drift that is not linear is simulated, covariates as they were last.
        gaps : array (steps,), optional
            Times between them, where they are not dt apart.
        level : float
            Probability that the intervals hold.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 14, 0.05, random_state=1)
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y[:, :12])
        >>> ahead = model.forecast(Y[:, :12], 2)
        >>> held = (ahead.low <= Y[:, 12:]) & (Y[:, 12:] <= ahead.high)
        >>> ahead.mean.shape, bool(0.9 <= held.mean() <= 1)
        ((40, 2, 3), True)
        """
        check_is_fitted(self, "result_")
        ahead = check_gaps(gaps, steps, self.result_.dt)
        if not self.direction_.identified:
            warnings.warn(
                "The direction of time is not determined: this is a forecast from the order shown; from its reverse, "
                "as likely, another would follow.",
                ReTraceWarning,
                stacklevel=2,
            )
        with one_blas_thread():
            _, placed, model, outcome, order, times = self._placed(X)
            every = np.broadcast_to(times, model.data.shape[:2])
            last = np.take_along_axis(every, model.data.observed[:, None] - 1, axis=1)
            rng = np.random.default_rng(self.random_state)
            found = predicted(model, outcome, order, ahead, level, rng)
            found = replace(found, times=(last[0] if np.ptp(last) == 0 else last) + found.times)
        units = self._memory.units
        return (found if units is None else units.forecast(found)).moved(placed.given_rows)

    @checked
    def impute(self, X: Any, *, level: float = 0.95) -> Imputed:
        """X, as it is stored, with missing values filled in from the whole trajectory in its order, and intervals.

        Intervals are widened where values hidden on purpose were missed too often. Linear and affine drifts only.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            What was fitted, or other trajectories; NaN where missing.
        level : float
            Probability that the intervals hold.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 12, 0.05, random_state=1)
        >>> holes = np.where(np.random.default_rng(2).random(Y.shape) < 0.1, np.nan, Y)
        >>> filled = rt.ReTrace(dt=0.05, random_state=0).fit(holes).impute(holes)
        >>> bool(np.isfinite(filled.values).all()), filled.level
        (True, 0.95)
        """
        check_is_fitted(self, "result_")
        if not is_linear(self._memory.model.drift):
            raise ValueError(
                "impute needs a linear or affine drift: missing values have no smoother otherwise."
            )
        with one_blas_thread():
            panel, placed, model, outcome, order, _ = self._placed(X)
            if not isinstance(model, HiddenModel):  # nothing is missing
                values = to_numpy(panel.values).copy()
                return Imputed(values, values, values, level, np.ones(values.shape[2]))
            rng = np.random.default_rng(self.random_state)
            found = imputed(model, outcome, order, level, rng)
        units = self._memory.units
        found = (found if units is None else units.imputed(found)).moved(placed.given_observations)
        return found.keeping(to_numpy(panel.without(self.result_.left_out).values))

    def _placed(self, X: Any) -> tuple[Panel, RowPermutation, Model, Outcome, Indices, Array]:
        """The fitted data in the order found, or others in their most likely one; their places, and the times along it."""
        model, outcome, units, _ = self._memory
        panel = check_panel(
            X, n_jobs=self.n_jobs, ragged=self.permutation == "independent",
            missing=is_linear(model.drift),
        )  # fmt: skip
        if panel.values.shape == model.data.shape:
            placed = content_permutation(panel, shared=self.permutation == "shared")
            values = self._data(placed.panel(panel), units).values
            if np.array_equal(to_numpy(values), to_numpy(model.data.values), equal_nan=True):
                found = outcome.found
                times = model.times(found.order, found.gaps)
                return panel, placed, model, outcome, found.order, times
        panel, placed, other, judged, order = self._ordered(X)
        return panel, placed, other, judged, order, other.times(order, None)

    @checked
    def sample_orders(self, *, draws: int = 1500) -> OrderPosterior:
        """Draw orders from their posterior under the fitted parameters; kept as `posterior_`.

        For one shared order, or for each trajectory's own. Parameters are taken for known, and so is the direction; chains that
        start alike cannot show other modes (`r_hat`, `effective_size`).

        Parameters
        ----------
        draws : int
            Orders that are kept.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(5, 8, 0.05, random_state=1)
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
        >>> model.sample_orders(draws=200).samples.shape
        (200, 8)
        >>> model.position_probabilities_.shape  # (observation, position)
        (8, 8)
        >>> 0 <= model.precedence_probability(0, 1) <= 1
        True
        """
        check_is_fitted(self, "result_")
        rng = np.random.default_rng(self.random_state)
        with one_blas_thread():
            model, outcome, _, placed = self._memory
            found = sample_posterior(model, outcome, rng, samples=draws)
            self.posterior_ = posterior_as_given(found, placed)
        return self.posterior_

    @checked
    def bootstrap_errors(
        self,
        *,
        draws: int = 200,
        adopt: bool = False,
    ) -> StandardErrors:
        """Standard errors of the fit along `order_`, by resampling trajectories.

        Like `standard_errors_` by default they rest on the spread between trajectories; unlike them they need no large
        panel, and take as many fits as there are draws. The order is held fixed.

        Parameters
        ----------
        draws : int
            Panels that are drawn, trajectories with replacement.
        adopt : bool
            They become the result's `standard_errors_`.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(30, 10, 0.05, random_state=1)
        >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
        >>> model.bootstrap_errors(draws=50, adopt=True).kind is model.standard_errors_.kind
        True
        """
        check_is_fitted(self, "result_")
        model, outcome, units, _ = self._memory
        effects, levels = outcome.subjects, outcome.levels
        report("resampling subjects")
        with one_blas_thread():
            errors = bootstrap(
                model,
                outcome.found,
                np.random.default_rng(self.random_state),
                name=outcome.estimator,
                subjects=Subjects.ALIKE if effects is None else effects.kind,
                levels=levels if isinstance(levels, HiddenLevels) else None,
                replicates=draws,
            )
        found = _told_apart(errors, model.drift)
        found = found if units is None else units.errors(found)
        if adopt:
            self.result_ = replace(self.result_, standard_errors=found)
        return found


def _residuals_as_given(
    look: tuple[Callable[[], ResidualCheck], Indices | None],
    units: Units | None,
    placed: RowPermutation,
) -> ResidualCheck:
    """The look at the residuals, now, in the user's units and places."""
    work, rows = look
    with one_blas_thread():
        check = work()
    check = check if rows is None else check.moved(rows)
    check = check if units is None else check.restored(units.restore)
    return check.moved(placed.rows)


def _noise_found(model: Model, outcome: Outcome) -> Array | None:
    """R of the account that was chosen; None where states are seen as they are."""
    if not isinstance(model, HiddenModel):
        return None
    levels = outcome.levels
    found: Array = levels.law.R if isinstance(levels, HiddenLevels) else outcome.found.law.R
    return found


def _all_finite(estimate: Estimate) -> bool:
    """Parameters and errors are numbers: a result with NaN in it has not converged, whatever its search says."""
    errors = estimate.errors
    every = estimate.coefficients, estimate.diffusion, errors.drift, errors.diffusion
    return all(bool(np.isfinite(each).all()) for each in every)


def _told_apart(errors: StandardErrors, drift: Drift) -> StandardErrors:
    """Errors of A, c and B told apart, as the parameters are."""
    of_A, of_c, of_B = parted(errors.drift, drift)
    return replace(errors, drift=of_A, offset=of_c, inputs=of_B)


def _twin_errors(outcome: Outcome, drift: Drift) -> StandardErrors:
    """Errors of the twin's parameters: its own where it has any of the answer's kind, else the answer's.

    `Var Θ̂_ij = H_ii [(Σ φ φᵀ Δt)⁻¹]_jj`, and both ways round have the same states but for the first and the last; what is
    not known of orders and states costs both the same. So only H differs.
    """
    own, other = outcome.estimate, outcome.reverse_estimate
    alike = other.errors.kind is own.errors.kind and outcome.estimator != "mcem"
    if alike and np.isfinite(other.errors.drift).all():
        return _told_apart(other.errors, drift)
    scale = np.sqrt(np.diag(other.diffusion) / np.diag(own.diffusion))
    errors, covariances = own.errors, own.errors.covariances
    scaled = replace(
        errors,
        drift=errors.drift * scale[:, None],
        diffusion=errors.diffusion * np.outer(scale, scale),
        covariances=None if covariances is None else covariances * scale[:, None, None] ** 2,
    )
    return _told_apart(scaled, drift)
