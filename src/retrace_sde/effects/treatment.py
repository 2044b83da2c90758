"""Treatment effects from data whose order is missing: fit an SDE, then ask what it would have done.

`ITE_j = E[x_j(t*) if given T1] − E[x_j(t*) if given T0]`, each subject with its own start and its own drift (the g-formula): the paper's
individual effect, which is the average effect conditional on a subject's start and level. A reversed order
flips the sign of an effect, so no effect is given while the direction of time is not identified; nor is one of a treatment that no
visit had.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypedDict, Unpack

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from retrace_sde.after.compare import as_order
from retrace_sde.effects.assumptions import (
    ConfoundingTest,
    Question,
    Sensitivity,
    assumptions,
    confounding_test,
    estimand,
    sensitivity,
    without_each,
)
from retrace_sde.effects.interventions import Given, Interventions, Treatment
from retrace_sde.effects.missing_values import affine_in_state, interpolated
from retrace_sde.effects.regime import Counterfactual, Regime, fit_regime
from retrace_sde.effects.support import OutsideSupportError, Support
from retrace_sde.estimator.checks import check_enough, check_features, check_volumes
from retrace_sde.estimator.conventions import Estimator, check_is_fitted
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.fit.intervals import coefficients, covariances, half_widths, table
from retrace_sde.fit.subjects import fit_subjects, log_likelihood, subject_grams
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.columns import shown
from retrace_sde.panel.blocks import Data, evenly, one_blas_thread, to_numpy
from retrace_sde.panel.groups import as_labels
from retrace_sde.panel.inputs import AdvisedError, MissingInputs, filled_inputs
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import check, checked
from retrace_sde.panel.validation import ReTraceWarning, check_panel
from retrace_sde.process.drift import Drift, Polynomial, as_drift
from retrace_sde.retrace import ReTrace
from retrace_sde.search.models.euler import EulerModel

SHARED_ORDER_DRAWS = 20
"""Orders drawn from the posterior of one shared order."""

SUBJECTS_AT_ONCE = 500
"""Subjects whose sampled paths are held in memory at once."""


VOLUME = re.compile(r"(?i)volume|tumou?r")
"""Names of a variable that drift="auto" takes for the volume of a tumour."""

TUMOUR_IS_COMPLETE = "Missing values cannot be integrated out of the tumour model: use drift='affine', or leave out those slices."
"""Why a tumour's missing values are refused, and what to do."""

NAMED_AT_MOST = 3
"""Subjects that an answer rests on and that a sentence names."""

FIXED_NEEDS_CHANGE = (
    "subjects='fixed' compares each subject with itself, so a treatment must change within subjects; here {}. "
    "Use subjects='levels'."
)

__all__ = ["OutsideSupportError", "TreatmentEffect", "UndeterminedDirectionError"]


class UndeterminedDirectionError(AdvisedError):
    """The direction of time is not identified, and the answer depends on it.

    Parameters
    ----------
    finding : str
        What was found.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> issubclass(rt.treatment.UndeterminedDirectionError, ValueError)
    True
    """

    advice = "Pass the order if it is known, or ask for both answers with direction='both'."


class Comparison(TypedDict, total=False):
    """What is compared, and when: see `TreatmentEffect.effect`."""

    T0: Treatment
    T1: Treatment
    horizon: float | None
    outside_support: Literal["refuse", "allow"] | None


@dataclass(kw_only=True, eq=False, repr=False)
class TreatmentEffect(Estimator):
    """Effects of treatment on a process observed without its time order.

    The estimand is the mean difference of potential outcomes under T1 and T0, by the g-formula under the fitted SDE. The estimate is an
    effect under consistency, no unmeasured confounding given the state, positivity and no interference; `summary()` says what each means
    here. Treatments that no visit had are refused (positivity; states are not checked). Errors are those of the
    jackknife over subjects, or groups. Measurement error of one variable is estimated (`error_` is its standard deviation); that of
    several is not. Where the direction of time is not identified an effect may change its sign with it, so `fit` then raises
    `UndeterminedDirectionError`.

    Parameters
    ----------
    dt : float
        Time between neighbouring observations; a `Panel` may bring its own.
    permutation : {"independent", "shared"}
        Each subject's visits in an order of their own, or one for all.
    drift : {"auto", "affine", "tumour"} or object of `retrace_sde.drift`
        "affine", A x + c, both changed by treatment (`Polynomial(1, interactions=True)`); "tumour", Gompertz growth under
        treatment; "auto", "tumour" where the only variable is named as a volume, else "affine". Values may be missing where the
        drift is affine in the state: they are integrated out.
    subjects : {"levels", "alike", "fixed", "auto"} or tuple of int
        What varies between subjects, shrunk to the population's: "levels", the coefficient of the first feature (the growth
        rate; the constant of a polynomial), given the first state; "alike", none; "fixed", levels that may also be correlated with
        the subject's treatment (Mundlak's correction), against frailty that drives treatment; "auto", levels where the data
        prefer them (AIC); a tuple, the coefficients of these features. With one panel per arm a subject's own deviation is used
        in its own arm; nothing tells what it would be in the other.
    missing_covariates : {"refuse", "carry", "interpolate"}
        What to do where the treatment is missing, as in `ReTrace`. One that is constant within every subject is filled in anyway.
    average : bool
        Average over uncertain independent orders rather than trust the best one.
    outside_support : {"refuse", "allow"}
        What to do where a comparison asks for a treatment that no visit had: a larger dose, or a combination that was never given.
        "allow" extrapolates by the model alone. `effect`, `ate` and their intervals take it, too.
    direction : {"test", "both"}
        "test" refuses when the direction of time is undetermined; "both" never does, and
        `alternative_` answers for the reverse.
    alpha : float
        Level of the direction test, as in `ReTrace`.
    max_iter : int
        Rounds at most.
    random_state : int, Generator or None
        Seed.
    n_jobs : int or None
        Threads (None: all cores).
    verbose : bool
        Print each round.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> cohort = rt.tumour.simulate_cohort(60, steps=15, random_state=0)
    >>> panel, truth = rt.simulate.shuffle(cohort.states, random_state=1)
    >>> inputs, _ = rt.simulate.shuffle(cohort.covariates, random_state=1)
    >>> asked = rt.treatment.TreatmentEffect(dt=cohort.dt, permutation="shared", drift="tumour", random_state=0)
    >>> effects = asked.fit(panel, inputs)
    >>> low, high = effects.ate_interval(T0=[0, 0], T1=[5, 1], draws=50)
    >>> bool(low < effects.ate(T0=[0, 0], T1=[5, 1]) < high < 0)  # treatment shrinks tumours
    True
    >>> effects.effect(T0=[0, 0], T1=[5, 1]).shape, effects.effect_interval(draws=20)[0].shape
    ((60,), (60,))
    >>> effects.counterfactual([5, 1], subjects=[0, 1]).mean.shape[0]
    2
    >>> effects.sample_paths([0, 0], subjects=[0], draws=10).shape[:2]
    (10, 1)
    >>> "direction" in effects.summary().lower()
    True
    >>> effects.ate(T1=[9, 1])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    retrace_sde.effects.support.OutsideSupportError: this treatment is outside what was given: ...
    >>> bool(effects.sensitivity(T0=[0, 0], T1=[5, 1]).to_zero[0] > 0)
    True
    >>> effects.confounding_test(T0=[0, 0], T1=[5, 1]).degrees  # are levels correlated with treatment? Two treatments, 60 subjects
    (2, 53)
    >>> effects.influence(T0=[0, 0], T1=[5, 1]).shape, effects.cautions(T0=[0, 0], T1=[5, 1])
    ((60, 5), [])
    >>> list(effects.parameters_.index[:2]) == list(effects.conf_int(level=0.9).index[:2])
    True
    """

    dt: float = 1.0
    permutation: Literal["shared", "independent"] = "independent"
    drift: str | Drift = "auto"
    subjects: Literal["auto", "alike", "levels", "fixed"] | tuple[int, ...] = "levels"
    missing_covariates: MissingInputs = "refuse"
    average: bool = True
    outside_support: Literal["refuse", "allow"] = "refuse"
    direction: Literal["test", "both"] = "test"
    alpha: float = 0.05
    max_iter: int = 10
    random_state: int | np.random.Generator | None = None
    n_jobs: int | None = None
    verbose: bool = False

    def fit(
        self,
        X: Any,
        covariates: Any | None = None,
        *,
        order: Any | None = None,
        groups: Any | None = None,
    ) -> Self:
        """Recover order and SDE.

        Parameters
        ----------
        X : array (n, T, d), Panel, or mapping of arms to these
            With arms each has its own drift, and `T0` and `T1` are their names, or positions.
        covariates : array (n, T, k) or mapping, optional
            Treatment; a Panel brings its own.
        order : array (T,) or (n, T), or mapping, optional
            An order that is known; then nothing is recovered.
        groups : sequence (n,) or mapping, optional
            Labels of groups of subjects (litters, centres) that may be alike in any way: they are left out together. A Panel may
            bring its own.
        """
        check("TreatmentEffect", self.get_params(deep=False))
        by_arm = isinstance(X, Mapping)
        arms = dict(X) if isinstance(X, Mapping) else {"": X}
        if by_arm and len(arms) < 2:
            raise ValueError(f"at least two arms are needed to compare; got {list(arms)}.")
        if by_arm and self.subjects == "fixed":
            raise ValueError(FIXED_NEEDS_CHANGE.format("each subject stays in its arm"))
        known = dict(order) if by_arm and order is not None else dict.fromkeys(arms, order)
        if groups is not None:
            labels = groups if by_arm else {"": groups}
            arms = {name: _grouped(arms[name], covariates, labels[name]) for name in arms}
        drift = effect_drift(self.drift, getattr(next(iter(arms.values())), "names", ()))
        rng = np.random.default_rng(self.random_state)
        self.models_: dict[str, ReTrace] = {}
        regimes = {}
        with one_blas_thread():
            ragged = self.permutation == "independent"
            panels = {}
            for name, data in arms.items():
                panel, known[name] = _with_steps(data, covariates, known[name])
                panel = check_panel(
                    panel, covariates, n_jobs=self.n_jobs, ragged=ragged, missing=affine_in_state(drift), refusal=TUMOUR_IS_COMPLETE,
                    missing_covariates=self.missing_covariates != "refuse",
                )  # fmt: skip
                panels[name] = check_volumes(panel, drift)
            if not by_arm and panels[""].covariates is None:
                raise ValueError(
                    "there are no covariates and no arms, so there is no treatment to compare: pass the treatment "
                    "as covariates (n, T, k), or a mapping of at least two arms to their data."
                )
            for name, panel in panels.items():
                if by_arm:  # the arm is the treatment
                    panel = replace(panel, covariates=None, covariate_names=())
                regimes[name] = self._fit_one(name, panel, drift, known[name], rng)
            self.ids_ = tuple(each for panel in panels.values() for each in panel.ids)
            u = panel.covariates
            self.interventions_ = Interventions(
                regimes,
                tuple(arms) if by_arm else (),
                panel.covariate_names,
                drift.feature_names(panel.names, panel.covariate_names),
                None if u is None else np.nanmax(to_numpy(u), axis=(0, 1)),
                panel.names,
                None
                if u is None
                else Support.of(to_numpy(u), _inside(panel), panel.covariate_names),
            )
            self.alternative_ = self._reverse(rng) if self.direction == "both" else None
        return self

    def _fit_one(
        self, name: str, panel: Panel, whole: Drift, order: Any, rng: np.random.Generator
    ) -> Regime:
        dt, missing = float(self.dt if panel.dt is None else panel.dt), _missing(panel)
        test = draws = None
        if order is None:
            model = self.models_[name] = self._recovered(name, panel, whole, dt, rng)
            order, test = model.order_, model.direction_
            if self.permutation == "shared":
                samples = model.sample_orders(draws=500).along(order)
                draws = samples[evenly(len(samples), SHARED_ORDER_DRAWS)].astype(np.intp)
        else:
            order = as_order("order", order, Data(panel.values))
        problem = self._problem(panel, whole, dt, order)
        found = fit_regime(
            problem, order, rng, columns=self._columns(problem, order), draws=draws,
            missing=missing, report=print if self.verbose else (lambda line: None),
            average=test is not None and self.average and self.permutation == "independent",
            treatments=self._treatments(panel), fixed=self.subjects == "fixed",
        )  # fmt: skip
        return replace(found, direction=test)

    def _recovered(
        self, name: str, panel: Panel, whole: Drift, dt: float, rng: np.random.Generator
    ) -> ReTrace:
        """The fit that finds the order; refused where its direction is open, unless both are asked for."""
        # Interactions are not in the order's model where values are missing: there, they have no state space.
        complete = _missing(panel) is None
        model = ReTrace(
            dt=dt, permutation=self.permutation, estimator="mle" if complete else "auto", drift=whole if complete else "affine",
            missing_covariates=self.missing_covariates, alpha=self.alpha, max_iter=self.max_iter, random_state=rng,
            n_jobs=self.n_jobs, verbose=self.verbose,
        ).fit(panel)  # fmt: skip
        if not model.direction_.identified and self.direction == "test":
            where = f" of arm {name!r}" if name else ""
            raise UndeterminedDirectionError(
                f"the direction of time{where} is not determined, and a reversed order can flip the sign of an "
                f"effect. {model.direction_.verdict}"
            )
        return model

    def _treatments(self, panel: Panel) -> tuple[int, ...]:
        """The inputs that change within subjects."""
        if panel.covariates is None:
            return ()
        u = to_numpy(panel.covariates)
        known = _inside(panel)[:, :, None] & ~np.isnan(u)
        high = np.where(known, u, -np.inf).max(axis=1)
        change = (high > np.where(known, u, np.inf).min(axis=1)).any(axis=0)
        if self.subjects == "fixed" and not change.any():
            names = " and ".join(panel.covariate_names)
            raise ValueError(FIXED_NEEDS_CHANGE.format(f"{names} never changes within a subject"))
        return tuple(map(int, np.flatnonzero(change)))

    def _problem(self, panel: Panel, whole: Drift, dt: float, order: Indices) -> EulerModel:
        """Euler's steps of a panel, what is missing filled in along an order: treatment as asked for, values as a start."""
        u = panel.covariates
        if u is not None and np.isnan(to_numpy(u)).any():
            u = filled_inputs(to_numpy(u), self.missing_covariates, order)
        values = (
            panel.values if _missing(panel) is None else interpolated(to_numpy(panel.values), order)
        )
        filled = replace(panel, values=values, covariates=u)
        drift, _ = check_features(filled, whole)
        check_enough(filled, len(drift.feature_names(panel.names, panel.covariate_names)))
        data = Data(values, u, self.n_jobs, panel.lengths, panel.groups)
        return EulerModel(data, dt, drift)

    def _columns(self, problem: EulerModel, order: Indices) -> tuple[int, ...]:
        """The features that vary between subjects; "auto": the first, where Akaike's criterion prefers it."""
        if self.subjects == "alike":
            return ()
        if not isinstance(self.subjects, str):
            return tuple(self.subjects)
        if self.subjects != "auto":
            return (0,)
        grams = subject_grams(problem.data, order, problem.dt, problem.drift)
        count, d = float(problem.data.lengths.steps.total), problem.data.shape[2]
        fits = [fit_subjects(grams, count, problem.n_features, columns=s) for s in ((), (0,))]
        alike, apart = (log_likelihood(grams, count, each) for each in fits)
        return (0,) if apart - alike > d * (d + 1) / 2 else ()

    def _reverse(self, rng: np.random.Generator) -> TreatmentEffect:
        """The same questions, asked of the reversed orders."""
        regimes = {}
        for name, each in self.interventions_.regimes.items():
            back = each.problem.data.reversed(each.order)
            averaged = each.direction is not None and self.average and not Order.of(back).shared
            regimes[name] = fit_regime(
                each.problem, back, rng, columns=each.fit.columns, average=averaged, missing=each.missing,
                treatments=each.treatments, fixed=self.subjects == "fixed",
            )  # fmt: skip
        other = type(self)(**{**self.get_params(deep=False), "direction": "test"})
        other.models_, other.alternative_, other.ids_ = {}, None, self.ids_
        other.interventions_ = replace(self.interventions_, regimes=regimes)
        return other

    @property
    def _fitted(self) -> Interventions:
        check_is_fitted(self, "interventions_")
        return self.interventions_

    @property
    def _regimes(self) -> dict[str, Regime]:
        """Of each arm; without arms, one under the name ""."""
        return self._fitted.regimes

    @property
    def order_(self) -> Indices | dict[str, Indices]:
        """The order used: of the panel, or of each arm."""
        orders = {name: each.order for name, each in self._regimes.items()}
        return orders if self.interventions_.arms else orders[""]

    @property
    def direction_(self) -> DirectionTest | dict[str, DirectionTest | None] | None:
        """The test of the direction of time, of the panel or of each arm; None where the order was given."""
        tests = {name: each.direction for name, each in self._regimes.items()}
        return tests if self.interventions_.arms else tests[""]

    def summary(self) -> str:
        """What was compared (T0 and T1 left out), the average effect with its interval, the direction, and what is assumed."""
        asked = self._fitted
        try:
            test = self.confounding_test()
            lines = [*self._compared(), *([] if test is None else [test.verdict]), *self.cautions()]
        except OutsideSupportError as error:
            lines = [f"no effect by default: {error}"]
        for name, each in asked.regimes.items():
            found = each.direction
            verdict = "Not tested: this order was given." if found is None else found.verdict
            lines.append(f"direction of time{f' of arm {name!r}' if name else ''}: {verdict}")
        lines.append(f"estimand: {self.estimand_}")
        lines += [f"assumes: {each}" for each in self.assumptions_]
        return "\n".join(lines)

    def _compared(self) -> Iterator[str]:
        """The default comparison, for each variable."""
        asked, other = self.interventions_, self.alternative_
        ways = [self._averages()] if other is None else [self._averages(), other._averages()]
        for name, *found in zip(asked.variables, *ways, strict=True):
            if other is None:
                answer = f"on average {found[0]}"
            else:  # which of the two holds depends on the direction
                answer = f"on average {found[0]} in the order found, and {found[1]} in the reversed order"
            yield f"{asked.comparison(name)}: {answer}, {asked.size} subjects"

    @property
    def estimand_(self) -> str:
        """What is estimated, as a sentence."""
        return estimand(self._fitted)

    @property
    def assumptions_(self) -> tuple[str, ...]:
        """What makes the estimate an effect, in plain sentences."""
        return assumptions(self._fitted, self.subjects)

    def cautions(self, **asked: Unpack[Comparison]) -> list[str]:
        """Sentences where an answer rests on single subjects, its interval says nothing, or a treatment was given to few.

        Parameters
        ----------
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        model, (before, after, _), _ = self._question(**asked)
        reach = self._average_reach(None, 0.95, 200, **asked)
        ate = np.atleast_1d(self.ate(**asked))
        lines = [*says_nothing(model, ate, reach), *rests_on(self._influence(reach, **asked))]
        for _, given in (before, after):
            thin = None if model.support is None or given is None else model.support.thin(given)
            lines += [] if thin is None else [thin]
        return lines

    def confounding_test(self, **asked: Unpack[Comparison]) -> ConfoundingTest | None:
        """Are subjects' levels correlated with their treatment? A score test of random intercepts; the effect with fixed effects beside.

        None with arms, with subjects that are alike, or where no treatment changes within subjects and differs between them.

        Parameters
        ----------
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        model, question, _ = self._question(**asked)
        return confounding_test(model, question)

    @checked
    def sensitivity(
        self,
        *,
        strength: float | None = None,
        imbalance: float = 1.0,
        level: float = 0.95,
        draws: int = 200,
        **asked: Unpack[Comparison],
    ) -> Sensitivity:
        """How strong a hidden variable of subjects must be to change the average effect; and the effect in the reversed order.

        Parameters
        ----------
        strength : float, optional
            By how much one standard deviation of the hidden variable changes a subject's level (the coefficient of the first
            feature: a rate of change). None: by the standard deviation of subjects' levels.
        imbalance : float
            By how many of its standard deviations it differs between T1 and T0.
        level : float
            Of confidence.
        draws : int
            Of parameters, subjects and orders.
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        model, question, _ = self._question(**asked)
        reach = self._average_reach(None, level, draws, **asked)
        found = sensitivity(model, question, reach, strength, imbalance)
        other = self.alternative_
        return (
            found if other is None else replace(found, reversed=np.atleast_1d(other.ate(**asked)))
        )

    @checked
    def influence(
        self, *, level: float = 0.95, draws: int = 200, **asked: Unpack[Comparison]
    ) -> pd.DataFrame:
        """The average effect without each subject, or group, by the jackknife: a row for each and each variable.

        `changes` says that without it the effect has another sign, or its interval no longer excludes zero, or now does.

        Parameters
        ----------
        level : float
            Of confidence.
        draws : int
            Of parameters, subjects and orders.
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        return self._influence(self._average_reach(None, level, draws, **asked), **asked)

    def _influence(self, reach: Array, **asked: Unpack[Comparison]) -> pd.DataFrame:
        """The same, by the half widths (d,) of the average effect's interval."""
        model, question, _ = self._question(**asked)
        ate = np.atleast_1d(self.ate(**asked))
        without = ate + np.concatenate(list(without_each(model, question).values()))
        other_sign = np.sign(without) != np.sign(ate)
        changes = other_sign | ((np.abs(without) > reach) != (np.abs(ate) > reach))
        d, G = len(ate), len(without)
        return pd.DataFrame({
            "left_out": np.repeat(self._units(), d), "variable": list(model.variables) * G,
            "effect": without.ravel(), "change": (without - ate).ravel(), "changes": changes.ravel(),
        })  # fmt: skip

    def _units(self) -> list[str]:
        """Names of subjects or, where there are groups, of the first subject of each with how many there are."""
        names, begin = [], 0
        for each in self._regimes.values():
            ids = [str(name) for name in self.ids_[begin : begin + each.size]]
            begin += each.size
            codes = each.problem.data.groups
            if codes is None:
                names += ids
                continue
            for g in range(each.units):
                some = np.flatnonzero(codes == g)
                more = f" and {len(some) - 1} more of its group" if len(some) > 1 else ""
                names.append(f"{ids[some[0]]}{more}")
        return names

    def _averages(self) -> list[str]:
        """The average effect on each variable, with its interval."""
        low, high = (np.atleast_1d(end) for end in self.ate_interval())
        return [
            f"{a:+.4g} (95 % interval {lo:+.4g} to {hi:+.4g})"
            for a, lo, hi in zip(np.atleast_1d(self.ate()), low, high, strict=True)
        ]

    @property
    def undetermined_(self) -> bool:
        """The direction of time was not determined, so that the answer is one of two."""
        tests = [each.direction for each in self._regimes.values()]
        return any(test is not None and not test.identified for test in tests)

    @property
    def parameters_(self) -> pd.DataFrame:
        """One row for each parameter of each arm: estimate, jackknife standard error, Wald test and 95 % interval.

        `kind` is drift (the effect of feature `variable` on the rate of change of `on`, in the population), diffusion or
        noise (measurement error); the last two have no standard errors. `arm` is "" without arms.
        """
        return self._table()

    @checked
    def conf_int(self, *, level: float = 0.95) -> pd.DataFrame:
        """Confidence intervals of the parameters, columns `arm`, `lower` and `upper`; rows as in `parameters_`.

        Parameters
        ----------
        level : float
            Of confidence.
        """
        return self._table(level)[["arm", "lower", "upper"]]

    def _table(self, level: float = 0.95) -> pd.DataFrame:
        asked, parts = self._fitted, []
        for arm, each in asked.regimes.items():
            theta, names = each.fit.coefficients, asked.variables
            features = each.problem.drift.feature_names(names, asked.covariates)
            errors = np.sqrt(np.diag(each.covariance)).reshape(theta.shape)
            rows = [*coefficients("drift", "A", theta, errors, features, names)]
            rows += covariances("diffusion", "H", each.diffusion, None, names)
            if each.error > 0:
                rows += covariances("noise", "R", np.array([[each.error]]), None, names)
            found = table(rows, each.units, level=level)
            found.insert(0, "arm", arm)
            parts.append(found)
        return pd.concat(parts)

    @property
    def error_(self) -> dict[str, float]:
        """Standard deviation of the measurement error in each arm, as estimated."""
        return {name: each.error**0.5 for name, each in self._regimes.items()}

    @checked
    def effect(self, X: ArrayLike | None = None, **asked: Unpack[Comparison]) -> Array:
        """Expected state at the horizon if given T1, less that if given T0, of each subject, (n,), or (n, d) for several variables.

        Parameters
        ----------
        X : array (m, d), optional
            Starting states of other subjects; None: the subjects of the fit (arm after arm).
        **asked
            T0, T1 : a treatment (k,) held throughout, one for each step (steps, k), or for each subject and step
            (n, steps, k); the name of an arm. Left out: none of any treatment, and the most of each that
            was given; the first and the last arm.
            horizon : time ahead; None: the length of the observed trajectories.
            outside_support : "allow", to ask for a treatment that no visit had.
        """
        model, (before, after, steps), start = self._question(X, **asked)
        return _flat(model.ends(after, steps, start) - model.ends(before, steps, start))

    @checked
    def effect_interval(
        self,
        X: ArrayLike | None = None,
        *,
        level: float = 0.95,
        draws: int = 200,
        **asked: Unpack[Comparison],
    ) -> tuple[Array, Array]:
        """Lower and upper ends of each subject's effect; parameters', subjects' and orders' uncertainty included.

        Parameters
        ----------
        X : array (m, d), optional
            Starting states of other subjects.
        level : float
            Of confidence.
        draws : int
            Of parameters, subjects and orders.
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        centre, reach = self.effect(X, **asked), self._reach(self._draws(X, draws, **asked), level)
        return centre - reach, centre + reach

    def ate(self, X: ArrayLike | None = None, **asked: Unpack[Comparison]) -> float | Array:
        """The average of the subjects' effects.

        Parameters
        ----------
        X : array (m, d), optional
            Starting states of other subjects.
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        return _scalar(self.effect(X, **asked).mean(axis=0))

    @checked
    def ate_interval(
        self,
        X: ArrayLike | None = None,
        *,
        level: float = 0.95,
        draws: int = 200,
        **asked: Unpack[Comparison],
    ) -> tuple[float | Array, float | Array]:
        """Lower and upper end of the average effect on these subjects.

        Parameters
        ----------
        X : array (m, d), optional
            Starting states of other subjects.
        level : float
            Of confidence.
        draws : int
            Of parameters, subjects and orders.
        **asked
            `T0`, `T1` and `horizon`, as in `effect`.
        """
        centre, reach = self.ate(X, **asked), self._average_reach(X, level, draws, **asked)
        return _scalar(centre - reach), _scalar(centre + reach)

    @checked
    def counterfactual(
        self,
        T: Treatment = None,
        *,
        subjects: ArrayLike | None = None,
        horizon: float | None = None,
        level: float = 0.95,
        draws: int = 200,
    ) -> Counterfactual:
        """Mean paths under a treatment, with pointwise prediction bands.

        Parameters
        ----------
        T : array or str, optional
            The treatment, as in `effect`.
        subjects : array of int, optional
            Indices of those asked about; None: all, arm after arm.
        horizon : float, optional
            Time ahead; None: the length of the observed trajectories.
        level : float
            Of the bands.
        draws : int
            Paths behind them.
        """
        asked, given, steps, rng = self._under(T, horizon)
        chosen = np.arange(asked.size) if subjects is None else np.atleast_1d(subjects)
        edge = (1 - level) / 2
        parts = []
        for begin in range(0, len(chosen), SUBJECTS_AT_ONCE):
            some = chosen[begin : begin + SUBJECTS_AT_ONCE]
            paths = asked.paths(given, some, steps, draws, rng)
            low, high = np.quantile(paths, [edge, 1 - edge], axis=0)
            parts.append((asked.mean_paths(given, some, steps), low, high))
        mean, low, high = (np.concatenate(each) for each in zip(*parts, strict=True))
        return Counterfactual(asked.dt * np.arange(steps + 1.0), mean, low, high, level)

    @checked
    def sample_paths(
        self,
        T: Treatment = None,
        *,
        subjects: ArrayLike,
        horizon: float | None = None,
        draws: int = 200,
    ) -> Array:
        """Sampled paths (draws, subjects, steps + 1, d) under a treatment, all uncertainty and noise included.

        Parameters
        ----------
        T : array or str, optional
            The treatment, as in `effect`.
        subjects : array of int
            Indices of those asked about.
        horizon : float, optional
            Time ahead; None: the length of the observed trajectories.
        draws : int
            Paths of each.
        """
        asked, given, steps, rng = self._under(T, horizon)
        return asked.paths(given, np.atleast_1d(subjects), steps, draws, rng)

    def _under(
        self, T: Treatment, horizon: float | None
    ) -> tuple[Interventions, Given, int, np.random.Generator]:
        asked = self._asked(None)
        steps = asked.steps(horizon)
        return asked, asked.given(T, steps), steps, np.random.default_rng(self.random_state)

    def _asked(self, outside_support: str | None) -> Interventions:
        """Without its support where treatments outside it are allowed."""
        allowed = (outside_support or self.outside_support) == "allow"
        return replace(self._fitted, support=None) if allowed else self._fitted

    def _reach(self, draws: Iterator[Array], level: float) -> Array:
        """Half widths by the draws' spread; an effect between arms is no surer than the smallest arm."""
        fewest = min(each.units for each in self._regimes.values())
        return half_widths(np.std(list(draws), axis=0, ddof=1), fewest, level)

    def _average_reach(
        self, X: ArrayLike | None, level: float, draws: int, **asked: Unpack[Comparison]
    ) -> Array:
        """The same of the average effect, (d,)."""
        means = (each.mean(axis=0) for each in self._draws(X, draws, **asked))
        return np.atleast_1d(self._reach(means, level))

    def _question(
        self,
        X: ArrayLike | None = None,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
        outside_support: Literal["refuse", "allow"] | None = None,
    ) -> tuple[Interventions, Question, Array | None]:
        asked = self._asked(outside_support)
        steps = asked.steps(horizon)
        start = None if X is None else asked.check_starts(X)
        return asked, (asked.given(T0, steps, first=True), asked.given(T1, steps), steps), start

    def _draws(
        self, X: ArrayLike | None, draws: int, **asked: Unpack[Comparison]
    ) -> Iterator[Array]:
        model, question, start = self._question(X, **asked)
        rng = np.random.default_rng(self.random_state)
        return map(_flat, model.effect_draws(*question, draws, rng, start))


def effect_drift(drift: str | Drift, names: Sequence[str]) -> Drift:
    """The drift behind a name, for a panel of these variables."""
    if drift == "auto":
        drift = "tumour" if len(names) == 1 and VOLUME.search(names[0]) else "affine"
    return Polynomial(1, interactions=True) if drift == "affine" else as_drift(drift)


def says_nothing(asked: Interventions, effect: Array, reach: Array) -> list[str]:
    """Sentences on average effects (d,) whose intervals, of half widths (d,), hold zero and every difference between two values that were seen."""
    data = [each.problem.data for each in asked.regimes.values()]
    seen = np.concatenate([to_numpy(each.values)[each.lengths.mask] for each in data])
    useful = reach <= np.maximum(np.abs(effect), np.ptp(seen, axis=0))  # NaN is not
    return [
        f"The interval of the effect on {name!r} says nothing: it is wider than the values of {name!r} are apart, as where paths may "
        "grow without bound. Ask for a shorter horizon."
        for name in np.array(asked.variables)[~useful].tolist()
    ]


def rests_on(influence: pd.DataFrame) -> list[str]:
    """Sentences on effects that change when one unit is left out."""
    lines = []
    for name, rows in influence[influence["changes"]].groupby("variable", sort=False):
        rows = rows.loc[rows["change"].abs().sort_values(ascending=False).index]
        named = ", ".join(
            f"{who!r} ({value:+.4g} without it)"
            for who, value in zip(rows["left_out"], rows["effect"], strict=True)
        ) if len(rows) <= NAMED_AT_MOST else f"any of {len(rows)} subjects"  # fmt: skip
        lines.append(
            f"The effect on {name!r} rests on single subjects: its sign, or whether it is significant, changes without {named}."
        )
    return lines


def _grouped(data: Any, covariates: Any | None, labels: Any) -> Panel:
    """A panel with groups."""
    panel = data if isinstance(data, Panel) else Panel.from_array(data, covariates=covariates)
    if panel.groups is not None:
        raise ValueError("groups are given twice, by X and by groups=: leave one of them out.")
    return replace(panel, groups=as_labels(labels))


def _inside(panel: Panel) -> Mask:
    """Which visits took place, (n, T)."""
    return Lengths.of(panel.values, panel.lengths).mask


def _with_steps(data: Any, covariates: Any | None, order: Any) -> tuple[Any, Any]:
    """A panel, and its order, without subjects of a single visit, who are named: an effect shows in steps between visits."""
    if isinstance(data, np.ndarray) and data.ndim == 3 and data.dtype.kind == "f":
        data = Panel.from_array(data, covariates=covariates)
    if not isinstance(data, Panel):
        return data, order
    seen = (_inside(data) & ~np.isnan(to_numpy(data.values)).all(axis=2)).sum(axis=1)
    few = seen < 2
    if not few.any() or few.all():
        return data, order
    gone = shown([data.ids[j] for j in np.flatnonzero(few)])
    warnings.warn(
        f"Left out, for an effect needs two visits and these have {'one' if seen[few].all() else 'one or none'}: {gone}.",
        ReTraceWarning,
        stacklevel=4,
    )
    kept = order if order is None else Order.of(np.asarray(order)).take(~few).index
    return data[~few], kept


def _missing(panel: Panel) -> Mask | None:
    """Where values are missing, (n, T, d); None where none are."""
    found: Mask = np.isnan(to_numpy(panel.values))
    return found if found.any() else None


def _flat(effects: Array) -> Array:
    """(n, d) as (n,) for one variable."""
    return effects[:, 0] if effects.shape[1] == 1 else effects


def _scalar(value: Any) -> float | Array:
    """A number for one variable."""
    return np.asarray(value).item() if np.size(value) == 1 else np.asarray(value)
