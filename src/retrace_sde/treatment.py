"""Treatment effects from data whose order is missing: fit an SDE, then ask what it would have done.

`ITE_j = E[x_j(t*) | T1] − E[x_j(t*) | T0]`, each subject with its own start and its own drift. A reversed order
flips the sign of an effect, so nothing is said while the direction of time is undetermined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from retrace_sde.blocks import Array, Data, Order, evenly, one_blas_thread, to_numpy
from retrace_sde.counterfactual import Counterfactual
from retrace_sde.drift import Drift, as_drift
from retrace_sde.panel import Panel
from retrace_sde.problem import Problem
from retrace_sde.regime import Regime, fit_regime
from retrace_sde.retrace import ReTrace
from retrace_sde.validation import check_choice, check_enough, check_features, check_panel

Treatment = str | ArrayLike | None

SHARED_DRAWS = 20
"""Orders drawn from the posterior of one shared order."""

BLOCK = 500
"""Subjects whose sampled paths are held at once."""


class UndeterminedDirectionError(ValueError):
    """The data do not tell the direction of time, and the answer depends on it."""


class TreatmentEffect(BaseEstimator):  # type: ignore[misc]
    """Effects of treatment on a process observed without its time order.

    Parameters
    ----------
    dt : time between neighbouring observations; a `Panel` may bring its own.
    permutation : "independent", each subject's visits in an order of their own, or "shared".
    drift : "tumour", Gompertz growth under treatment (one positive variable), or any drift of
        `retrace_sde.drift`; `polynomial(1, interactions=True)` is an affine drift that treatment changes.
    subjects : features whose coefficients vary between subjects, shrunk to the population's: "intercept",
        the first (the growth rate), a tuple of indices, or None. With one panel per arm a subject's own
        deviation is used in its own arm; nothing tells what it would be in the other.
    average : average over uncertain independent orders rather than trust the best one.
    direction : "test" refuses when the direction of time is undetermined; "both" never does, and
        `alternative_` answers for the reverse.
    alpha, random_state, n_jobs, max_iter : as in `ReTrace`.

    Assumes that the drift is right, that nothing unseen decides both treatment and growth, and Euler's step.
    Noise in the observations is not modelled: it is part of H here, so sampled paths are too wide by it.
    """

    def __init__(
        self,
        *,
        dt: float = 1.0,
        permutation: Literal["shared", "independent"] = "independent",
        drift: str | Drift = "tumour",
        subjects: Literal["intercept"] | tuple[int, ...] | None = "intercept",
        average: bool = True,
        direction: Literal["test", "both"] = "test",
        alpha: float = 0.05,
        max_iter: int = 10,
        random_state: int | np.random.Generator | None = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.dt = dt
        self.permutation = permutation
        self.drift = drift
        self.subjects = subjects
        self.average = average
        self.direction = direction
        self.alpha = alpha
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, covariates: Any | None = None, *, order: Any | None = None) -> Self:
        """Recover order and SDE. X: an array (n, T, d) or a `Panel` with covariates, or a mapping of arms to these.

        With arms each has its own drift, and `T0` and `T1` are their names, or positions. `order`: an order
        that is known, (T,) or (n, T) (a mapping for arms); then nothing is recovered.
        """
        check_choice("permutation", self.permutation, ["shared", "independent"])
        check_choice("direction", self.direction, ["test", "both"])
        arms = dict(X) if isinstance(X, Mapping) else {"": X}
        if isinstance(X, Mapping) and len(arms) < 2:
            raise ValueError(f"at least two arms are needed to compare; got {list(arms)}.")
        rng = np.random.default_rng(self.random_state)
        self.arms_: tuple[str, ...] = tuple(arms) if isinstance(X, Mapping) else ()
        self.regimes_: dict[str, Regime] = {}
        self.models_: dict[str, ReTrace] = {}
        for name, data in arms.items():
            known = order[name] if self.arms_ and order is not None else order
            with one_blas_thread():
                self.regimes_[name] = self._fit_one(name, data, covariates, known, rng)
        self.alternative_ = self._reverse(rng) if self.direction == "both" else None
        return self

    def _fit_one(
        self, name: str, X: Any, covariates: Any, order: Any, rng: np.random.Generator
    ) -> Regime:
        ragged = self.permutation == "independent"
        panel = check_panel(X, covariates, n_jobs=self.n_jobs, ragged=ragged)
        if self.arms_:  # the arm is the treatment
            panel = Panel(panel.values, panel.names, panel.ids, dt=panel.dt, lengths=panel.lengths)
        drift, _ = check_features(panel, as_drift(self.drift))
        self._names = as_drift(self.drift).feature_names(panel.names, panel.covariate_names)
        self.covariate_names_ = panel.covariate_names
        u = panel.covariates
        self._largest = None if u is None else to_numpy(u).max(axis=(0, 1))
        check_enough(panel, len(drift.feature_names(panel.names, panel.covariate_names)))
        dt = float(self.dt if panel.dt is None else panel.dt)
        problem = Problem(Data(panel.values, u, self.n_jobs, panel.lengths), dt, drift)
        columns = (0,) if self.subjects == "intercept" else tuple(self.subjects or ())
        report = print if self.verbose else (lambda line: None)
        if order is not None:
            known = _check_order(order, problem.data)
            return fit_regime(problem, known, rng, columns=columns, average=False)
        model = ReTrace(
            dt=dt, permutation=self.permutation, estimator="mle", drift=self.drift, alpha=self.alpha,
            max_iter=self.max_iter, random_state=rng, n_jobs=self.n_jobs, verbose=self.verbose,
        ).fit(panel)  # fmt: skip
        self.models_[name] = model
        test = model.direction_
        if not test.identified and self.direction == "test":
            where = f" of arm {name!r}" if name else ""
            raise UndeterminedDirectionError(
                f"the direction of time{where} is not determined, and a reversed order can flip the sign of an "
                f"effect. {test.verdict} Pass the order if it is known, or ask for both answers with "
                "direction='both'."
            )
        draws = None
        if self.permutation == "shared":
            samples = model.sample_orders(samples=500).samples
            draws = samples[evenly(len(samples), SHARED_DRAWS)].astype(np.intp)
        return fit_regime(
            problem, model.order_, rng, columns=columns, direction=test, draws=draws, report=report,
            average=self.average and self.permutation == "independent",
        )  # fmt: skip

    def _reverse(self, rng: np.random.Generator) -> TreatmentEffect:
        """The same question asked of the reversed orders."""
        other = type(self)(**{**self.get_params(deep=False), "direction": "test"})
        other.arms_, other.models_ = self.arms_, {}
        other.covariate_names_, other.alternative_ = self.covariate_names_, None
        other._names, other._largest = self._names, self._largest
        other.regimes_ = {}
        for name, regime in self.regimes_.items():
            data, columns = regime.problem.data, regime.fit.columns
            averaged = len(regime.orders) > 1 and regime.order.ndim == 2
            with one_blas_thread():
                other.regimes_[name] = fit_regime(
                    regime.problem,
                    data.reversed(regime.order),
                    rng,
                    columns=columns,
                    average=averaged,
                )
        return other

    @property
    def order_(self) -> Order | dict[str, Order]:
        """The order used: of the panel, or of each arm."""
        check_is_fitted(self, "regimes_")
        orders = {name: regime.order for name, regime in self.regimes_.items()}
        return orders if self.arms_ else orders[""]

    def effect(
        self,
        X: ArrayLike | None = None,
        *,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
    ) -> Array:
        """E[x(horizon) | T1] − E[x(horizon) | T0] of each subject, (n,), or (n, d) for several variables.

        X : starting states (m, d) of other subjects; None: the subjects of the fit (arm after arm).
        T0, T1 : a treatment (k,) held throughout, one for each step (steps, k), or for each subject and step
            (n, steps, k); the name of an arm. Left out: none of any treatment, and the most of each that
            was given; the first and the last arm.
        horizon : time ahead; None: the length of the observed trajectories.
        """
        steps, before, after = self._question(T0, T1, horizon)
        start = None if X is None else self._starts(X)
        total = self._ends(after, steps, start) - self._ends(before, steps, start)
        return _flat(total)

    def effect_interval(
        self,
        X: ArrayLike | None = None,
        *,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
        alpha: float = 0.05,
        draws: int = 200,
    ) -> tuple[Array, Array]:
        """Lower and upper ends of each subject's effect; parameters', subjects' and orders' uncertainty included."""
        each = np.stack([_flat(e) for e in self._draws(X, T0, T1, horizon, draws)])
        centre = self.effect(X, T0=T0, T1=T1, horizon=horizon)
        reach = stats.norm.ppf(1 - alpha / 2) * each.std(axis=0, ddof=1)
        return centre - reach, centre + reach

    def ate(
        self,
        X: ArrayLike | None = None,
        *,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
    ) -> float | Array:
        """The average of the subjects' effects."""
        return _scalar(self.effect(X, T0=T0, T1=T1, horizon=horizon).mean(axis=0))

    def ate_interval(
        self,
        X: ArrayLike | None = None,
        *,
        T0: Treatment = None,
        T1: Treatment = None,
        horizon: float | None = None,
        alpha: float = 0.05,
        draws: int = 200,
    ) -> tuple[float | Array, float | Array]:
        """Lower and upper end of the average effect on these subjects."""
        means = [_flat(e).mean(axis=0) for e in self._draws(X, T0, T1, horizon, draws)]
        centre = np.asarray(self.ate(X, T0=T0, T1=T1, horizon=horizon))
        reach = stats.norm.ppf(1 - alpha / 2) * np.std(means, axis=0, ddof=1)
        return _scalar(centre - reach), _scalar(centre + reach)

    def counterfactual(
        self,
        T: Treatment = None,
        *,
        subjects: ArrayLike | None = None,
        horizon: float | None = None,
        probability: float = 0.95,
        samples: int = 200,
    ) -> Counterfactual:
        """Mean paths under a treatment, and bands that hold each path with a probability (pointwise).

        `subjects`: indices of those asked about; None: all, arm after arm.
        """
        steps, _, given = self._question(None, T, horizon)
        chosen = np.arange(self._size()) if subjects is None else np.atleast_1d(subjects)
        edge = (1 - probability) / 2
        parts = []
        for begin in range(0, len(chosen), BLOCK):
            some = chosen[begin : begin + BLOCK]
            paths = self._paths(given, some, steps, samples)
            low, high = np.quantile(paths, [edge, 1 - edge], axis=0)
            parts.append((self._mean_paths(given, some, steps), low, high))
        mean, low, high = (np.concatenate(each) for each in zip(*parts, strict=True))
        dt = next(iter(self.regimes_.values())).problem.dt
        return Counterfactual(dt * np.arange(steps + 1), mean, low, high, probability)

    def sample_paths(
        self,
        T: Treatment = None,
        *,
        subjects: ArrayLike,
        horizon: float | None = None,
        samples: int = 200,
    ) -> Array:
        """Sampled paths (samples, subjects, steps + 1, d) under a treatment, all uncertainty and noise included."""
        steps, _, given = self._question(None, T, horizon)
        return self._paths(given, np.atleast_1d(subjects), steps, samples)

    def _size(self) -> int:
        return sum(regime.size for regime in self.regimes_.values())

    def _question(
        self, T0: Treatment, T1: Treatment, horizon: float | None
    ) -> tuple[int, _Given, _Given]:
        """Steps ahead and the two treatments, checked."""
        check_is_fitted(self, "regimes_")
        problem = next(iter(self.regimes_.values())).problem
        length = problem.data.shape[1] - 1
        steps = length if horizon is None else round(float(horizon) / problem.dt)
        if steps < 1 or (horizon is not None and abs(steps * problem.dt / horizon - 1) > 1e-6):
            raise ValueError(
                f"horizon must be a positive multiple of dt = {problem.dt:g}; got {horizon!r}."
            )
        return steps, self._given(T0, steps, first=True), self._given(T1, steps, first=False)

    def _given(self, T: Treatment, steps: int, *, first: bool) -> _Given:
        if self.arms_:
            name = self.arms_[0 if first else -1] if T is None else T
            if isinstance(name, int | np.integer) and 0 <= name < len(self.arms_):
                name = self.arms_[name]
            if name not in self.arms_:
                raise ValueError(f"T0 and T1 must be arms, {self.arms_}; got {T!r}.")
            return str(name), None
        k = len(self.covariate_names_)
        if k == 0:
            raise ValueError(
                "the fit has no covariates and no arms, so there is no treatment to compare."
            )
        if T is None:
            T = np.zeros(k) if first else self._largest
        try:
            value = np.asarray(T, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(
                f"a treatment must be numbers of {self.covariate_names_}; got {T!r}."
            ) from None
        shapes = {(k,): (1, 1, k), (steps, k): (1, steps, k), (self._size(), steps, k): value.shape}
        if value.shape not in shapes or not np.isfinite(value).all():
            raise ValueError(
                f"a treatment must be finite numbers of shape ({k},), ({steps}, {k}) or ({self._size()}, {steps}, {k}) for "
                f"{', '.join(self.covariate_names_)}; got shape {value.shape}."
            )
        value = value.reshape(shapes[value.shape])
        value = np.broadcast_to(value, (len(value), steps, k))
        self.regimes_[""].check_treatment(
            value[:, :1] if len(np.shape(T)) == 1 else value, self._names
        )
        return "", value

    def _starts(self, X: ArrayLike) -> Array:
        start = np.asarray(X, dtype=float)
        d = next(iter(self.regimes_.values())).problem.data.shape[2]
        if start.ndim != 2 or start.shape[1] != d or not np.isfinite(start).all():
            raise ValueError(
                f"X must be finite starting states of shape (m, {d}); got {start.shape}."
            )
        return start

    def _ends(self, given: _Given, steps: int, start: Array | None) -> Array:
        regime = self.regimes_[given[0]]
        if start is not None:
            return regime.ends(given[1], steps, start)
        return np.concatenate(
            [
                regime.ends(given[1], steps, None if name == given[0] else each.starts.mean(axis=0))
                for name, each in self.regimes_.items()
            ]
        )

    def _mean_paths(self, given: _Given, chosen: Order, steps: int) -> Array:
        found = [
            regime.mean_path(treatment, steps, start)
            for regime, treatment, start in self._asked(given, chosen)
        ]
        return np.concatenate(found)

    def _asked(
        self, given: _Given, chosen: Order
    ) -> Iterator[tuple[Regime, Array | None, Array | None]]:
        """For the chosen subjects of each arm: the regime asked, the treatment, and their starts if not its own."""
        if len(chosen) == 0 or chosen.min() < 0 or chosen.max() >= self._size():
            raise ValueError(f"subjects must be indices from 0 to {self._size() - 1}.")
        regime, begin = self.regimes_[given[0]], 0
        for name, each in self.regimes_.items():
            rows = chosen[(chosen >= begin) & (chosen < begin + each.size)] - begin
            begin += each.size
            treatment = given[1]
            if treatment is not None and len(treatment) > 1:
                treatment = treatment[rows]
            if len(rows) and name == given[0]:
                yield regime.some(rows), treatment, None
            elif len(rows):
                yield regime, treatment, each.starts.mean(axis=0)[rows]

    def _paths(self, given: _Given, chosen: Order, steps: int, samples: int) -> Array:
        rng = np.random.default_rng(self.random_state)
        found = []
        for regime, treatment, start in self._asked(given, chosen):
            each = []
            for k in range(samples):
                begin, own = regime.draw(k, rng, start)
                each.append(np.stack(list(regime.path(begin, own, treatment, steps, rng)), axis=1))
            found.append(np.stack(each))
        return np.concatenate(found, axis=1)

    def _draws(
        self, X: ArrayLike | None, T0: Treatment, T1: Treatment, horizon: float | None, draws: int
    ) -> Iterator[Array]:
        """Effects (n, d) under parameters, deviations and orders drawn from their uncertainty."""
        steps, before, after = self._question(T0, T1, horizon)
        rng = np.random.default_rng(self.random_state)
        start = None if X is None else self._starts(X)
        for k in range(draws):
            ends = []
            drawn = {name: r.draw(k, rng, start) for name, r in self.regimes_.items()}
            for name, treatment in (before, after):
                regime = self.regimes_[name]
                own_start, own = drawn[name]
                parts = [(own_start, own)]
                if self.arms_ and start is None:
                    # In another arm than its own a subject deviates as its law says, not as seen there.
                    parts = [
                        (own_start, own) if other == name else regime.draw(k, rng, drawn[other][0])
                        for other in self.regimes_
                    ]
                each = []
                for begin, coefficients in parts:
                    *_, last = regime.path(begin, coefficients, treatment, steps)
                    each.append(last)
                ends.append(np.concatenate(each))
            yield ends[1] - ends[0]


_Given = tuple[str, Array | None]
"""The regime that a treatment belongs to, and its covariates (n or 1, steps, k)."""


def _check_order(order: Any, data: Data) -> Order:
    n, T, _ = data.shape
    found = np.asarray(order)
    if found.shape not in ((T,), (n, T)) or not np.array_equal(
        np.sort(found, axis=-1), np.broadcast_to(np.arange(T), found.shape)
    ):
        raise ValueError(f"order must be a permutation of 0 to {T - 1}, ({T},) or ({n}, {T}).")
    return found.astype(np.intp)


def _flat(effects: Array) -> Array:
    """(n, d) as (n,) for one variable."""
    return effects[:, 0] if effects.shape[1] == 1 else effects


def _scalar(value: Any) -> float | Array:
    return float(value) if np.ndim(value) == 0 else np.asarray(value)
