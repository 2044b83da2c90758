"""`ReTrace`: from a shuffled panel to its order, its direction of time and its SDE."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import numpy as np

from retrace_sde.after.forecast import Forecast, Imputed
from retrace_sde.after.predict import Predictor
from retrace_sde.estimator.assemble import (
    PendingCheck,
    assembled,
    errors_by_name,
    influence,
    pending_check,
    residuals_as_given,
)
from retrace_sde.estimator.checks import check_gaps, in_words
from retrace_sde.estimator.common import about_slices, lifted
from retrace_sde.estimator.conventions import Estimator, check_is_fitted
from retrace_sde.estimator.entry import Entry, entered, in_units
from retrace_sde.estimator.fitted import Fitted, Memory
from retrace_sde.estimator.fitting import PanelFit, fit_entry
from retrace_sde.estimator.request import Request
from retrace_sde.estimator.restored import restored, settings_of
from retrace_sde.estimator.screening import screened, without_suspects
from retrace_sde.estimator.units import as_given, posterior_as_given
from retrace_sde.evidence.outcome import (
    Outcome,
    few_values,
    order_others,
    others_posterior,
    sample_posterior,
)
from retrace_sde.evidence.selection.bootstrap import bootstrap
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.statespace.parameters import Noise
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import one_blas_thread, to_numpy
from retrace_sde.panel.canonical import RowPermutation, content_permutation
from retrace_sde.panel.clock import Gaps
from retrace_sde.panel.inputs import MissingInputs
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import checked
from retrace_sde.panel.validation import ReTraceWarning, check_panel, has_missing
from retrace_sde.paper.algorithm1 import ScoreOrder
from retrace_sde.process.drift import Drift, has_state_space
from retrace_sde.progress import PREPARING, Callback, cut_short, report, reporting
from retrace_sde.result import ReTraceResult
from retrace_sde.search.enumerated import OthersPosterior, tempered
from retrace_sde.search.model import Fit
from retrace_sde.search.plan import nonlinear, planned_with_missing
from retrace_sde.search.posterior import OrderPosterior
from retrace_sde.search.protocols import Model

Evidence = Literal["means", "spreads", "residuals"]


@dataclass(kw_only=True, eq=False, repr=False)
class ReTrace(Fitted, Estimator):
    """Recover the order of shuffled time slices, the direction of time, and the SDE behind them.

    Maximises `log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)` over the order o and θ = (A, H), and tests
    the order against its reverse. Where the data cannot tell the two apart (a stationary linear SDE
    fits both ways equally well) `direction_.identified` is False and `alternative_` holds the other.

    Limits: one SDE for all, up to random intercepts or rates of subjects; the order is found by local search, exact only
    for few slices. Standard errors include the uncertainty of the order where steps are equal and there are no random intercepts
    or common shocks; elsewhere they take a shared order as known. `identifiability_` and `residuals_` say what a given data set
    cannot tell and what the model gets wrong.

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
        "mle" (the paper's equations, Euler's step) and "ols" (the same with degrees of freedom in H); "exact" (matrix
        logarithm: no bias from the step), "em" (state space: noise, missing values), "mcem" (independent
        orders: averages over them), or "auto": exact, or em where there is noise or values are missing (NaN);
        mcem where independent orders are not certain, as the summary says. All but mle and ols show the SDE's parameters,
        by exact transitions, for drifts linear in the state; where the step belongs to no SDE, Euler's, with a note.
    drift : {"affine", "linear"} or object of `retrace_sde.drift`
        "affine" is A x + c; "linear", A x, the paper's, is for data centred at their equilibrium: elsewhere it is confidently
        wrong.
    observation_noise : None, float, array, "estimate", "diagonal" or "auto"
        A standard deviation, one for each variable (NaN: unknown), a covariance R
        (d, d), "estimate" (R = σ² I), "diagonal", or "auto": noise where the data prefer it; linear and affine drifts only.
        The order is then judged by the likelihood of what was observed. Values may be missing, with noise or without.
    spacing : {"regular", "estimate"}
        "regular": neighbours are dt apart. "estimate": the times between neighbours are not known. One shared order has its own
        gaps, estimated (`gaps_`, `times_`) with their mean held at dt, which sets the unit; gaps of independent orders have a
        distribution, over which all is averaged. Volatility that changes looks like time that passes unevenly; intervals allow for it.
    missing_covariates : {"refuse", "carry", "interpolate"}
        Covariates that are missing here and there: refused, the last value carried on, or interpolated, both
        along the order found.
    subjects : {"auto", "alike", "levels", "rates"}
        "alike", one SDE for all; "levels", random intercepts, related to the first state; "rates", a random factor
        on the drift; "auto": whichever the data prefer, as the summary says. Random intercepts that are left out make the
        estimated drift several times too small.
    common_shocks : {"auto", True, False}
        Movement common to all trajectories at a slice: shocks, plates, batches. True: order and parameters come from deviations
        from the slice means, and the mean path counts as one trajectory. "auto": where a test finds it
        (`result_.dependence`). One shared order, linear and affine drifts only.
    outliers : {"auto", "flag", "keep"}
        Values that are probably wrong (a decimal point, other units, exchanged rows): "auto" treats clear ones as missing (few in a complete
        panel are replaced by one draw given the rest), "flag" lists them (`result_.suspects`) and uses them as they are, "keep" does not
        look for them. In memory, linear and affine drifts only.
    evidence : sequence of {"means", "spreads", "residuals"}
        What may count for the direction: the slices' means, deviations from them, noise that is not Gaussian. Leave out what
        your design, not time, may have made. Without spreads means do not count either: they are one path, and selection at the
        end moves both.
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

    dt: float = 1.0
    permutation: Literal["shared", "independent"] = "shared"
    order: Literal["likelihood", "score"] | ScoreOrder = "likelihood"
    estimator: Literal["auto", "mle", "ols", "exact", "em", "mcem"] = "auto"
    drift: Literal["linear", "affine"] | Drift = "affine"
    observation_noise: Noise | Literal["auto"] | None = None
    spacing: Literal["regular", "estimate"] = "regular"
    missing_covariates: MissingInputs = "refuse"
    subjects: Literal["auto", "alike", "levels", "rates"] = "auto"
    common_shocks: Literal["auto"] | bool = "auto"
    outliers: Literal["auto", "flag", "keep"] = "auto"
    evidence: Sequence[Evidence] = ("means", "spreads", "residuals")
    max_iter: int = 10
    alpha: float = 0.05
    random_state: int | np.random.Generator | None = None
    n_jobs: int | None = None
    verbose: bool = False

    @classmethod
    def _of_result(cls, result: ReTraceResult) -> Self:
        """A fitted model from a result, which may have been saved: `result.model()`.

        Parameters
        ----------
        result : ReTraceResult
            Of a linear or affine drift.
        """
        found = cls(**settings_of(result))
        found.result_, found._kept = result, restored(result)
        found.n_features_in_ = len(result.names) + len(result.left_out)
        return found

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
        groups: Any | None = None,
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
        groups : sequence (n,), optional
            Labels of groups (litters, centres, plates, replicates) whose trajectories may be alike in any way: standard errors, the
            test of the direction and the bootstrap take groups for independent, not trajectories.
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
            report(PREPARING)
            request = Request.of(self.get_params(deep=False))
            entry = entered(X, covariates, knowledge, groups, request)
            entry, suspects = screened(entry, request)
            rng = np.random.default_rng(self.random_state)
            with in_words(entry.panel):
                fitted = fit_entry(entry, request, rng)
                result = assembled(entry.whole, fitted, request)
                rests_on = influence(entry, fitted)
                result = replace(result, suspects=suspects, influence=rests_on)
                pending = pending_check(fitted, request, rng)
            for caution in fitted.outcome.cautions:
                warnings.warn(caution, ReTraceWarning, stacklevel=2)
            self._adopt(entry, fitted, result, pending)
        return self

    def _adopt(
        self, entry: Entry, fitted: PanelFit, result: ReTraceResult, pending: PendingCheck
    ) -> None:
        """The answer in the user's units and places, all at once: a fit that fails leaves the former result as it was."""
        units, placed, outcome = fitted.units, entry.places, fitted.outcome
        result = result if units is None else units.result(result)
        later: Any = partial(residuals_as_given, pending, units, placed, _shift(fitted))
        stopped = cut_short() is not None
        result = _with_stamps(as_given(result, placed), entry)
        self.result_ = replace(result, residuals=later, stopped=stopped)
        self._kept = Memory(fitted.model, outcome, units, placed, fitted.common)
        self.n_features_in_ = entry.panel.values.shape[2] + len(entry.panel.left_out)
        if outcome.posterior is not None:
            self.posterior_ = posterior_as_given(outcome.posterior, placed)
        elif hasattr(self, "posterior_"):
            del self.posterior_

    def _others(self, X: Any) -> tuple[Panel, RowPermutation, Model, Outcome]:
        """Other trajectories, their places, and the model and outcome that judge them."""
        memory, ragged = self._memory, self.permutation == "independent"
        linear = has_state_space(memory.model.drift)
        refusal = None if linear else nonlinear("Missing values", memory.model.drift)
        whole = check_panel(X, n_jobs=self.n_jobs, ragged=ragged, missing=linear, refusal=refusal)
        if len(whole.without(self.result_.left_out).names) != len(self.result_.names):
            raise ValueError(
                f"X has {whole.values.shape[2]} variables; the fit had {self.n_features_in_}."
            )
        if self.result_.inputs is not None and whole.covariates is None:
            raise ValueError(
                "the fit had inputs, so these trajectories need them, too: pass a Panel with covariates, or a table and "
                "covariates=[…]."
            )
        panel = whole.without(self.result_.left_out)
        placed = content_permutation(panel, shared=not ragged)
        data = in_units(placed.panel(panel), memory.units, self.n_jobs)
        model, outcome = memory.model.for_others(data), memory.outcome
        if memory.common is not None and memory.units is not None:
            model = model.about(memory.common.of_others(placed.panel(panel), memory.units, model))
        if linear and has_missing(data) and not model.states_hidden:
            model, found = planned_with_missing(model, outcome.found, outcome.initial)
            outcome = replace(outcome, found=found, law=found.law)
        if memory.common is not None and has_missing(data):

            def placed_anew(model: Model, found: Fit) -> Fit:
                rng = np.random.default_rng(self.random_state)
                return replace(found, order=order_others(model, outcome, rng))

            model = about_slices(model, placed_anew(model, outcome.found), placed_anew)
        return whole, placed, model, outcome

    def _ordered(self, X: Any) -> tuple[Panel, RowPermutation, Model, Outcome, Indices]:
        """The same, and their most likely order."""
        whole, placed, model, outcome = self._others(X)
        rng = np.random.default_rng(self.random_state)
        return whole, placed, model, outcome, order_others(model, outcome, rng)

    def _posterior_of_others(self, X: Any, draws: int) -> OthersPosterior:
        """The posterior over orders of other trajectories, as these were given; an open direction counts for half either way."""
        _, placed, model, outcome = self._others(X)
        rng = np.random.default_rng(self.random_state)
        found = others_posterior(model, outcome, rng, draws=draws)
        return OthersPosterior(
            placed.given_observations(found.positions),
            placed.given_pairs(found.before),
            placed.given_orders(found.samples),
        )

    def _given(self, X: Any, columns: dict[str, Any]) -> Any:
        """Trajectories as given; of a table the Panel of its columns, with the variables and the inputs of the fit."""
        check_is_fitted(self, "result_")
        if isinstance(X, Panel) or not (columns or hasattr(X, "columns")):
            return X
        result = self.result_
        if "subject" not in columns:
            raise ValueError("a table needs subject=, the column that says whose row it is.")
        if result.shared_order and columns.get("slice") is None:
            raise ValueError(
                "the fit has one order for all: slice= must name the column with the label that the subjects share."
            )
        if columns.get("time") is not None:
            raise ValueError(
                "known times of other trajectories are not used: leave time= out, or fit these data with recover."
            )
        inputs = [] if result.inputs is None else result.feature_names[-result.inputs.shape[1] :]
        roles = {"variables": list(result.names), "covariates": list(inputs) or None, **columns}
        return Panel.from_frame(X, **roles)

    def place(self, X: Any, **columns: Any) -> Indices:
        """The order (T,), or (n, T), of X that is most likely under the fit: what `reorder` applies.

        Parameters
        ----------
        X : array (n, T, d), Panel or DataFrame
            Trajectories of the same process, of the same variables.
        **columns
            Of a table: `subject=` and `slice=`, as in `recover`.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 12, 0.05, random_state=1)
        >>> lost, truth = rt.simulate.shuffle(Y[30:], random_state=2)
        >>> np.array_equal(rt.ReTrace(dt=0.05, random_state=0).fit(Y[:30]).place(lost), truth)
        True
        """
        with one_blas_thread():
            _, placed, _, _, order = self._ordered(self._given(X, columns))
            return placed.given_orders(order)

    def reorder(self, X: Any, **columns: Any) -> Any:
        """X (n, T, d), shuffled, in the order most likely under the fit.

        The permutation belongs to the data it is found for: it need not be `order_`.

        Parameters
        ----------
        X : array (n, T, d), Panel or DataFrame
            Trajectories of the same process, of the same variables.
        **columns
            Of a table: `subject=` and `slice=`, as in `recover`.

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
        with one_blas_thread():
            panel, placed, _, _, order = self._ordered(self._given(X, columns))
        return self._shown(panel, placed.given_orders(order))

    def precedence(self, X: Any, **columns: Any) -> Array:
        """P[j, a, b], (n, T, T): the probability that observation a of trajectory j of X came before b, under the fit.

        For new trajectories of the same process, best with a fit to others whose order is known. With orders of their own of up to six
        observations it is exact: a sum over all orders; elsewhere orders are sampled. .5 on the diagonal, NaN where a trajectory has no
        such observation. Where the direction is open both count for half, so that every pair of an own order has .5: a warning says so.
        Parameters are taken for known. After `recover(order_known=…)` with at least 20 subjects of known order, probabilities are tempered by what
        these teach (`result_.pair_exponent`).

        Parameters
        ----------
        X : array (n, T, d), Panel or DataFrame
            Trajectories of the same process, of the same variables.
        **columns
            Of a table: `subject=` and `slice=`, as in `recover`.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
        >>> Y = sde.simulate(300, 3, 0.3, random_state=1)
        >>> known = rt.Knowledge(positions=np.tile(np.arange(3), (200, 1)))
        >>> model = rt.ReTrace(dt=0.3, permutation="independent", random_state=0).fit(Y[:200], knowledge=known)
        >>> P = model.precedence(Y[200:])
        >>> P.shape, bool(P[:, 0, 2].mean() > 0.8)  # they are stored in order
        ((100, 3, 3), True)
        """
        self._warn_open("each pair of observations is as likely either way")
        with one_blas_thread():
            before = self._posterior_of_others(self._given(X, columns), 1).before
        return tempered(before, self.result_.pair_exponent)

    @checked
    def reorder_samples(self, X: Any, draws: int = 100, **columns: Any) -> Indices:
        """Orders of X drawn from their posterior under the fit, (n, draws, T): draw r of trajectory j is `X[j, found[j, r]]`.

        See `precedence`, of which these are the whole orders. With one order for all, (draws, T). Where the direction is open half of the
        draws run backwards, all trajectories of a draw together.

        Parameters
        ----------
        X : array (n, T, d), Panel or DataFrame
            Trajectories of the same process, of the same variables.
        draws : int
            Orders of each. Of more than six observations there are about a hundred different ones.
        **columns
            Of a table: `subject=` and `slice=`, as in `recover`.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(300, 3, 0.3, random_state=1)
        >>> known = rt.Knowledge(positions=np.tile(np.arange(3), (200, 1)))
        >>> model = rt.ReTrace(dt=0.3, permutation="independent", random_state=0).fit(Y[:200], knowledge=known)
        >>> model.reorder_samples(Y[200:], 20).shape
        (100, 20, 3)
        """
        self._warn_open("half of the orders drawn run backwards")
        with one_blas_thread():
            found = self._posterior_of_others(self._given(X, columns), draws).samples
        return found[0] if self.result_.shared_order else found

    def _warn_open(self, consequence: str) -> None:
        if not self.direction_.identified:
            warnings.warn(
                f"The direction of time is not determined, so that {consequence}: fit with the order of some trajectories known.",
                ReTraceWarning,
                stacklevel=3,
            )

    def transform(self, X: Any) -> Any:
        """X in time order: what was fitted in the order found, other trajectories in their most likely one (`reorder`).

        Parameters
        ----------
        X : array (n, T, d) or Panel
            Trajectories of the same process, of the same variables.

        Examples
        --------
        >>> import numpy as np, retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(3, random_state=0).simulate(40, 12, 0.05, random_state=1)
        >>> lost, truth = rt.simulate.shuffle(Y, random_state=2)
        >>> np.array_equal(rt.ReTrace(dt=0.05, random_state=0).fit(lost).transform(lost), Y)
        True
        """
        with one_blas_thread():
            panel, placed, _, _, order, _ = self._placed(X)
        return self._shown(panel, placed.given_orders(order))

    def fit_transform(self, X: Any, y: Any = None, **options: Any) -> Any:
        """Fit X and return it in time order.

        Parameters
        ----------
        X : array (n, T, d) or Panel
            Trajectories in an order along T that is not known.
        y : None
            Ignored, for scikit-learn.
        **options
            Of `fit`.

        Examples
        --------
        >>> import retrace_sde as rt
        >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
        >>> rt.ReTrace(dt=0.05, random_state=0).fit_transform(Y).shape
        (20, 8, 2)
        """
        return self.fit(X, **options).transform(X)

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
        >>> bool(linear.score(Y[30:]) > affine.score(Y[30:]))  # the offset costs more than it explains here
        True
        """
        with one_blas_thread():
            _, _, model, outcome, order = self._ordered(X)
            each = model.log_joint(order, outcome.law)
            total, n, step = float(each.sum()), len(each), outcome.found.step
            if model.mean_path is not None:  # deviations of n trajectories are n − 1
                total = total * (n - 1) / n + model.mean_path_value(order, step)
            units = self._memory.units
            volume = 0.0 if units is None else units.log_volume(model.data)
            return (total - volume) / n

    @checked
    def forecast(
        self,
        X: Any,
        steps: int,
        *,
        gaps: Any | None = None,
        level: float = 0.95,
        **columns: Any,
    ) -> Forecast:
        """Means and intervals of the next `steps` observations of each trajectory of X, put in order first.

        Intervals are widened where the fit's own past predictions were too sure. The order is taken for known; where the
        direction is open a warning says that the reverse would forecast something else.

        Parameters
        ----------
        X : array (n, T, d), Panel, DataFrame or None
            What was fitted, which None stands for, or other trajectories.
        steps : int
            Observations ahead, dt apart, under covariates as they were last. A drift that is not linear is simulated.
        gaps : array, optional
            As many times between them, where they are not dt apart.
        level : float
            Probability that the intervals hold.
        **columns
            Of a table: `subject=` and `slice=`, as in `recover`.

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
        if not self.direction_.identified:
            warnings.warn(
                "The direction of time is not determined: this is a forecast from the order shown; from its reverse, "
                "as likely, another would follow.",
                ReTraceWarning,
                stacklevel=2,
            )
        ahead = check_gaps(gaps, steps, self.result_.dt)
        with one_blas_thread():
            _, placed, model, outcome, order, times = self._placed(self._given(X, columns))
            every = np.broadcast_to(times, model.data.shape[:2])
            last = np.take_along_axis(every, model.data.observed[:, None] - 1, axis=1)
            rng = np.random.default_rng(self.random_state)
            predictor = Predictor(model, outcome, order)
            found = predictor.forecast(ahead, level, rng)
            common, path = self._memory.common, model.mean_path
            if common is not None and path is not None:
                past = predictor.past.rows(1, len(order))[0]
                found = common.forecast(found, path.along_time(order), past, ahead)
            found = replace(found, times=(last[0] if np.ptp(last) == 0 else last) + found.times)
        units = self._memory.units
        found = found if units is None else found.restored(units.restore)
        return found.moved(placed.given_rows)

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
        if not has_state_space(self._memory.model.drift):
            raise ValueError(
                "impute needs a linear or affine drift: missing values have no smoother otherwise."
            )
        with one_blas_thread():
            panel, placed, model, outcome, order, _ = self._placed(X)
            if not model.states_hidden:  # nothing is missing
                values = to_numpy(panel.values).copy()
                return Imputed(values, values, values, level, np.ones(values.shape[2]))
            rng = np.random.default_rng(self.random_state)
            found = Predictor(model, outcome, order).imputed(level, rng)
            if model.mean_path is not None:
                found = found.moved(partial(lifted, path=model.mean_path))
        units = self._memory.units
        found = found if units is None else found.moved(units.restore)
        given = to_numpy(panel.without(self.result_.left_out).values)
        return found.moved(placed.given_observations).moved(
            lambda each: np.where(np.isnan(given), each, given)
        )

    def _placed(self, X: Any) -> tuple[Any, RowPermutation, Model, Outcome, Indices, Array]:
        """The fitted data in the order found, or others in their most likely one; their places, and the times along it."""
        model, outcome, units, places, _ = self._memory
        found = outcome.found
        if X is None:
            _ = self._with_data
            times = model.timing.times(found.order, found.gaps)
            return None, places, model, outcome, found.order, times
        panel = check_panel(
            X, n_jobs=self.n_jobs, ragged=self.permutation == "independent",
            missing=has_state_space(model.drift), missing_covariates=self.missing_covariates != "refuse",
        )  # fmt: skip
        if panel.values.shape == model.data.shape:
            placed = content_permutation(panel, shared=self.permutation == "shared")
            fitted = without_suspects(panel, self.result_.suspects)
            values = to_numpy(in_units(placed.panel(fitted), units, self.n_jobs).values)
            stored = to_numpy(model.data.values)
            if fitted is not panel:  # suspects were missing, or drawn given the rest
                stored = np.where(np.isnan(values), np.nan, stored)
            same = np.array_equal(values, stored, equal_nan=True)
            if units is not None and model.mean_path is not None:  # slice effects of the fit's own
                whole = to_numpy(units.standardised(placed.panel(fitted).values))
                lift = lifted(stored, model.mean_path)
                same = np.allclose(whole, lift, rtol=0.0, atol=1e-9, equal_nan=True)
            if same:
                times = model.timing.times(found.order, found.gaps)
                return panel, placed, model, outcome, found.order, times
        panel, placed, other, judged, order = self._ordered(X)
        return panel, placed, other, judged, order, other.timing.times(order, Gaps.of(other.dt))

    @checked
    def sample_orders(self, *, draws: int = 1500) -> OrderPosterior:
        """Draw orders from their posterior; kept as `posterior_`.

        For one shared order, or for each trajectory's own. Parameters of a shared order of complete observations are integrated out; behind
        noise, with missing values and for own orders they are drawn with the orders. With inputs, unequal gaps, random intercepts or common
        shocks, and in large panels, they are taken for known (`over_parameters` is False). An open direction of a shared order counts for
        half either way.

        Parameters
        ----------
        draws : int
            Orders that are kept; probabilities are as precise as those of so many independent ones.

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
        model, outcome, _, placed, _ = self._with_data
        rng = np.random.default_rng(self.random_state)
        with one_blas_thread():
            found = sample_posterior(model, outcome, rng, samples=draws)
            self.posterior_ = posterior_as_given(found, placed)
        caution = few_values(model, outcome.found, found)
        if caution is not None:
            warnings.warn(caution, ReTraceWarning, stacklevel=2)
        return self.posterior_

    @checked
    def bootstrap_errors(
        self,
        *,
        draws: int = 200,
        adopt: bool = False,
    ) -> StandardErrors:
        """Standard errors of the fit along `order_`, by resampling trajectories, or groups.

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
        model, outcome, units, _, common = self._with_data
        report("resampling subjects")
        with one_blas_thread():
            errors = bootstrap(
                model,
                outcome.found,
                np.random.default_rng(self.random_state),
                name=outcome.estimator,
                account=outcome.account,
                replicates=draws,
            )
        if common is not None:
            errors = common.counted(errors, model, outcome.found)
        found = errors_by_name(errors, model)
        found = found if units is None else units.errors(found)
        if adopt:
            self.result_ = replace(self.result_, standard_errors=found)
        return found


def _shift(fitted: PanelFit) -> Callable[[Array], Array] | None:
    """Deviations along the order as values of trajectories, where trajectories share shocks."""
    if fitted.common is None:
        return None
    return partial(lifted, path=fitted.common.path, order=fitted.outcome.found.order)


def _with_stamps(result: ReTraceResult, entry: Entry) -> ReTraceResult:
    """The result with the probability that each time stamp is wrong, and a note, where stamps may be."""
    if entry.stamps is None:
        return result
    found = entry.stamps.probabilities(result.order, result.times)
    note = entry.stamps.note(found, entry.whole)
    return replace(result, wrong_stamps=found, notes=(*result.notes, note))
