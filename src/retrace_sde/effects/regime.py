"""One fitted regime of treatment: its drift, its subjects, draws from what is uncertain about them, and paths under a treatment.

Paths are Euler's steps `x' = x + Θ_j φ(x, u) Δt (+ noise)`. Without noise a path is each subject's expected one up to the drift's curvature
times the noise's variance (exact for linear drifts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.effects.jackknife import Jackknife, jackknife
from retrace_sde.effects.subject_model import Rows, SubjectModel, fit_model
from retrace_sde.effects.subject_orders import average_orders, measurement_error
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.fit.subjects import SubjectFit
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.drift import Drift, Independent
from retrace_sde.process.sde import covariance_root
from retrace_sde.search.models.euler import EulerModel


@dataclass(frozen=True, eq=False)
class Counterfactual:
    """Expected paths (n, steps + 1, d) under a treatment, and pointwise prediction bands of a `level`.

    The bands hold the process itself: its noise, the parameters', the subjects' and the order's uncertainty.
    """

    times: Array
    mean: Array
    lower: Array
    upper: Array
    level: float


def walk(
    drift: Drift,
    coefficients: Array,
    start: Array,
    treatment: Array | None,
    dt: float,
    steps: int,
    noise: Array | None = None,
    rng: np.random.Generator | None = None,
) -> Iterator[Array]:
    """States (n, d) at 0, Δt, …; coefficients (n, d, p), treatment (n or 1, steps, k).

    `noise` is a factor G of H = G Gᵀ; None: the path without noise.
    """
    x = drift.admit(np.array(start, dtype=float))
    yield x
    for t in range(steps):
        u = None
        if treatment is not None:
            u = np.broadcast_to(treatment[:, t], (len(x), treatment.shape[2]))
        phi = drift.features(x, u)
        x = x + dt * (coefficients @ phi[:, :, None])[:, :, 0]
        if noise is not None and rng is not None:
            x = x + np.sqrt(dt) * rng.standard_normal(x.shape) @ noise.T
        x = drift.admit(x)
        yield x


def sigma_points(mean: Array, covariance: Array) -> Iterator[tuple[float, Array]]:
    """Weights and points (n, d, s) whose averages are means over N(mean, covariance) up to third order."""
    n, d, s = mean.shape
    k = d * s
    if k == 0 or not covariance.any():
        yield 1.0, mean
        return
    factor = covariance_root(covariance) * np.sqrt(k)
    for j in range(k):
        for sign in (1.0, -1.0):
            yield 1 / (2 * k), mean + sign * factor[:, :, j].reshape(n, d, s)


@dataclass(frozen=True, eq=False)
class Regime:
    """Data along an order with its mixed model; `orders` (K, n, T) and `rows`, what the model is fitted to, are draws, missing values
    drawn, too.

    `order` is the most likely one; K = 1 where it was given or is certain. `direction` is None for an order
    that was given. `error` is the variance of measurement error (one variable only); `missing` (n, T, d) where values are;
    `treatments` are the inputs that change within subjects.
    """

    problem: EulerModel
    order: Indices
    model: SubjectModel
    orders: Indices
    rows: Rows
    error: float = 0.0
    direction: DirectionTest | None = None
    missing: Mask | None = None
    treatments: tuple[int, ...] = ()

    @property
    def fit(self) -> SubjectFit:
        """The mixed model in the features of the drift."""
        return self.model.base

    @property
    def starts(self) -> Array:
        """First states (K, n, d)."""
        return self.rows.starts

    @property
    def units(self) -> int:
        """Subjects or, where there are any, groups: what is independent."""
        return self.problem.data.n_groups

    @property
    def diffusion(self) -> Array:
        """H of the process itself; the residuals of neighbours also hold two measurement errors."""
        d = len(self.fit.diffusion)
        return self.fit.diffusion - 2 * self.error / self.problem.dt * np.eye(d)

    @property
    def size(self) -> int:
        return self.problem.data.shape[0]

    @cached_property
    def jackknife(self) -> Jackknife:
        """(Θ, Γ) without each subject, or group of subjects."""
        return jackknife(self.model, self.rows, self.problem.data.groups)

    @property
    def covariance(self) -> Array:
        """Of vec Θ̂ (equations first), by the jackknife over subjects or groups."""
        d, p = self.fit.coefficients.shape
        whole = self.jackknife.covariance.reshape(d, -1, d, self._whole.shape[1])
        return np.asarray(whole[:, :p, :, :p].reshape(d * p, d * p))

    @property
    def _whole(self) -> Array:
        return self.model.whole.coefficients

    def check_treatment(self, treatment: Array | None, names: list[str]) -> None:
        """Refuse a treatment whose effect the data cannot tell from that of others."""
        drift = self.problem.drift
        if not isinstance(drift, Independent):
            return
        x = self.starts[0]
        each = [None] if treatment is None else [treatment[:, t] for t in range(treatment.shape[1])]
        dropped = [j for j in range(len(names)) if j not in drift.kept]
        for u in each:
            u = None if u is None else np.broadcast_to(u, (len(x), u.shape[1]))
            phi = drift.whole.features(x, u)
            gap = np.abs(phi[:, dropped] - phi[:, list(drift.kept)] @ drift.weights).max(axis=0)
            for j, size in zip(dropped, gap, strict=True):
                if size > 1e-6 * np.abs(phi).max():
                    what = drift.absorbed(names)[names[j]]
                    raise ValueError(
                        f"this treatment's effect is not identified: in the data {names[j]} is {what} throughout, "
                        "and under this treatment it would not be. Compare treatments that were given."
                    )

    @property
    def level(self) -> int:
        """The feature whose coefficient is a subject's level."""
        return self.fit.columns[0] if self.fit.columns else 0

    def mean_path(
        self,
        treatment: Array | None,
        steps: int,
        start: Array | None = None,
        push: Array | None = None,
    ) -> Array:
        """Expected states (n, steps + 1, d): mean over subjects' deviations, as known from their data.

        `start` (m, d): other subjects, who deviate from the population as its distribution says. `push` (d,) is added to all levels.
        """
        begin, mean, spread = self._subjects(start)
        total = np.zeros((len(begin), steps + 1, begin.shape[1]))
        for weight, deviations in sigma_points(mean, spread):
            own = self.own(deviations)
            if push is not None:
                own[:, :, self.level] += push
            total += weight * np.stack(list(self.path(begin, own, treatment, steps)), axis=1)
        return total

    def _subjects(self, start: Array | None) -> tuple[Array, Array, Array]:
        """Starts, and means and covariances of deviations: of the fit's subjects, or of others."""
        fit = self.fit
        if start is None:
            return self.starts.mean(axis=0), fit.deviations, fit.uncertainty
        mean = np.zeros((len(start), len(fit.coefficients), len(fit.columns)))
        if self.model.offsets is not None:
            seen = self.model.offsets.first_states(self.starts.mean(axis=0))
            # Levels go with first states as far as these were seen; beyond, a slope tells nothing.
            w = np.clip(self.model.offsets.first_states(start), seen.min(axis=0), seen.max(axis=0))
            mean = mean + self.model.shifts(w)
        return start, mean, np.repeat(fit.between[None], len(start), axis=0)

    def own(self, deviations: Array, coefficients: Array | None = None) -> Array:
        """Subjects' coefficients (n, d, p)."""
        base = self.fit.coefficients if coefficients is None else coefficients
        own = np.repeat(base[None], len(deviations), axis=0)
        own[:, :, list(self.fit.columns)] += deviations
        return own

    def path(
        self,
        start: Array,
        own: Array,
        treatment: Array | None,
        steps: int,
        rng: np.random.Generator | None = None,
    ) -> Iterator[Array]:
        """States step by step; with `rng`, noise of the process included."""
        noise = None if rng is None else covariance_root(self.diffusion)
        return walk(self.problem.drift, own, start, treatment, self.problem.dt, steps, noise, rng)

    def draw_coefficients(self, rng: np.random.Generator) -> Array:
        """(Θ, Γ) (d, P) from its uncertainty."""
        root = self._root_of_covariance
        return self._whole + (root @ rng.standard_normal(len(root))).reshape(self._whole.shape)

    @cached_property
    def _root_of_covariance(self) -> Array:
        return covariance_root(self.jackknife.covariance)

    def draw_subjects(
        self, k: int, theta: Array, rng: np.random.Generator, start: Array | None = None
    ) -> tuple[Array, Array]:
        """Starts (n, d) and subjects' coefficients (n, d, p): the k-th draw of the order, deviations given (Θ, Γ)."""
        at = k % len(self.starts)
        begin, mean, spread = self._subjects(start)
        if start is None:
            begin = self.starts[at]
            mean, spread = self.model.posterior(self.rows.draw(at), theta)
        if self.fit.columns:
            z = rng.standard_normal((len(mean), mean[0].size, 1))
            mean = mean + (covariance_root(spread) @ z).reshape(mean.shape)
        return begin, self.own(mean, theta[:, : self.fit.coefficients.shape[1]])

    def moved(self, coefficients: Array) -> Regime:
        """The same with other (Θ, Γ) (d, P)."""
        return replace(self, model=self.model.moved(coefficients, self.rows))

    def some(self, rows: Indices) -> Regime:
        """The same regime, asked about some of its subjects only."""
        base = replace(
            self.fit,
            deviations=self.fit.deviations[rows],
            uncertainty=self.fit.uncertainty[rows],
        )
        found = replace(self, model=replace(self.model, base=base), rows=self.rows.some(rows))
        # What was estimated from all subjects stays as it is.
        found.__dict__["jackknife"] = self.jackknife
        return found


def fit_regime(
    problem: EulerModel,
    order: Indices,
    rng: np.random.Generator,
    *,
    columns: tuple[int, ...],
    average: bool,
    treatments: tuple[int, ...] = (),
    fixed: bool = False,
    draws: Indices | None = None,
    missing: Mask | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Regime:
    """The mixed model along an order: given, averaged over each subject's orders, or over `draws` (K, T).

    It is averaged over the values that are `missing` (n, T, d), too. `treatments` are the inputs that change within subjects;
    with `fixed` effects, a subject's level may go with their means over its visits.
    """
    orders = order[None] if draws is None else draws
    if average or missing is not None:
        n, T, _ = problem.data.shape
        drawn = average_orders(
            problem, np.broadcast_to(order, (n, T)), rng, columns=columns, treatments=treatments, fixed=fixed, missing=missing,
            given=None if average else np.array([np.broadcast_to(each, (n, T)) for each in orders]), report=report,
        )  # fmt: skip
        return Regime(problem, order, *drawn, missing=missing, treatments=treatments)
    if len(np.unique(orders, axis=0)) == 1:
        orders = orders[:1]
    rows = Rows.joined([Rows.along(problem, each, treatments, columns) for each in orders])
    model = fit_model(rows, problem.n_features, columns, fixed=fixed)
    error = measurement_error(problem, model.base, order)
    return Regime(problem, order, model, orders, rows, error, treatments=treatments)
