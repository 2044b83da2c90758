"""One fitted regime of treatment: its drift, its subjects, and draws from what is uncertain about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.effects.counterfactual import last, sigma_points, walk
from retrace_sde.effects.subject_orders import average_orders, measurement_error
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.fit.subjects import (
    SubjectFit,
    coefficient_covariance,
    fit_subjects,
    posterior_deviations,
    subject_grams,
    subject_scores,
)
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.drift import Independent
from retrace_sde.search.models.euler import EulerModel


@dataclass(frozen=True, eq=False)
class Regime:
    """Data along an order with its mixed model; `orders` (K, n, T), `grams` (K, n, …) and first states `starts` (K, n, d) are draws
    of them, missing values drawn, too.

    `order` is the most likely one; K = 1 where it was given or is certain. `direction` is None for an order
    that was given. `error` is the variance of measurement error (one variable only); `missing` (n, T, d) where values are.
    """

    problem: EulerModel
    order: Indices
    fit: SubjectFit
    orders: Indices
    grams: Array
    starts: Array
    direction: DirectionTest | None = None
    error: float = 0.0
    missing: Mask | None = None

    @property
    def diffusion(self) -> Array:
        """H of the process itself; the residuals of neighbours also hold two measurement errors."""
        d = len(self.fit.diffusion)
        return self.fit.diffusion - 2 * self.error / self.problem.dt * np.eye(d)

    @property
    def size(self) -> int:
        return self.problem.data.shape[0]

    @cached_property
    def covariance(self) -> Array:
        """Of vec Θ̂, with subjects as the independent units and the orders' share included (Louis)."""
        mean = self.grams.mean(axis=0)
        missing = None
        if len(self.grams) > 1:
            scores = np.stack([self._scores(gram) for gram in self.grams])
            missing = np.einsum("kni,knj->ij", s := scores - scores.mean(axis=0), s)
            missing = missing / (len(scores) - 1)
        return coefficient_covariance(mean, self.fit, missing=missing)

    def _scores(self, grams: Array) -> Array:
        mean, spread = posterior_deviations(grams, self.fit)
        return subject_scores(grams, replace(self.fit, deviations=mean, uncertainty=spread))

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

    def ends(self, treatment: Array | None, steps: int, start: Array | None = None) -> Array:
        """Expected states (n, d) after some steps: mean over subjects' deviations, as known from their data.

        `start` (m, d): other subjects, who deviate from the population as its law says.
        """
        begin, mean, spread = self._subjects(start)
        total = np.zeros_like(begin)
        for weight, deviations in sigma_points(mean, spread):
            total += weight * last(self.path(begin, self.own(deviations), treatment, steps))
        return total

    def mean_path(self, treatment: Array | None, steps: int, start: Array | None = None) -> Array:
        """The same at every step, (n, steps + 1, d)."""
        begin, mean, spread = self._subjects(start)
        total = np.zeros((len(begin), steps + 1, begin.shape[1]))
        for weight, deviations in sigma_points(mean, spread):
            path = self.path(begin, self.own(deviations), treatment, steps)
            total += weight * np.stack(list(path), axis=1)
        return total

    def _subjects(self, start: Array | None) -> tuple[Array, Array, Array]:
        """Starts, and means and covariances of deviations: of the fit's subjects, or of others."""
        fit = self.fit
        if start is None:
            return self.starts.mean(axis=0), fit.deviations, fit.uncertainty
        mean = np.zeros((len(start), len(fit.coefficients), len(fit.columns)))
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
        noise = None if rng is None else _root(self.diffusion)
        return walk(self.problem.drift, own, start, treatment, self.problem.dt, steps, noise, rng)

    def draw_coefficients(self, rng: np.random.Generator) -> Array:
        """Θ (d, p) from its uncertainty."""
        d, p = self.fit.coefficients.shape
        return self.fit.coefficients + (
            _root(self.covariance) @ rng.standard_normal(d * p)
        ).reshape(d, p)

    def draw_subjects(
        self, k: int, theta: Array, rng: np.random.Generator, start: Array | None = None
    ) -> tuple[Array, Array]:
        """Starts (n, d) and subjects' coefficients (n, d, p): the k-th draw of the order, deviations given Θ."""
        at = k % len(self.grams)
        begin, mean, spread = self._subjects(start)
        if start is None:
            begin = self.starts[at]
            fit = replace(self.fit, coefficients=theta)
            mean, spread = posterior_deviations(self.grams[at], fit)
        if self.fit.columns:
            z = rng.standard_normal((len(mean), mean[0].size, 1))
            mean = mean + (np.linalg.cholesky(spread) @ z).reshape(mean.shape)
        return begin, self.own(mean, theta)

    def some(self, rows: Indices) -> Regime:
        """The same regime, asked about some of its subjects only."""
        fit = replace(
            self.fit,
            deviations=self.fit.deviations[rows],
            uncertainty=self.fit.uncertainty[rows],
        )
        found = replace(self, fit=fit, grams=self.grams[:, rows], starts=self.starts[:, rows])
        # What was estimated from all subjects stays as it is.
        found.__dict__["covariance"] = self.covariance
        return found


def _root(covariance: Array) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def fit_regime(
    problem: EulerModel,
    order: Indices,
    rng: np.random.Generator,
    *,
    columns: tuple[int, ...],
    average: bool,
    draws: Indices | None = None,
    direction: DirectionTest | None = None,
    missing: Mask | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Regime:
    """The mixed model along an order: given, averaged over each subject's orders, or over `draws` (K, T).

    It is averaged over the values that are `missing` (n, T, d), too.
    """
    orders = order[None] if draws is None else draws
    if average or missing is not None:
        n, T, _ = problem.data.shape
        found = average_orders(
            problem, np.broadcast_to(order, (n, T)), rng, columns=columns, missing=missing, report=report,
            given=None if average else np.array([np.broadcast_to(each, (n, T)) for each in orders]),
        )  # fmt: skip
        return Regime(
            problem, order, found.fit, found.orders, found.grams, found.starts, direction, found.error, missing
        )  # fmt: skip
    grams = np.stack(
        [subject_grams(problem.data, each, problem.dt, problem.drift) for each in orders]
    )
    count = float(problem.data.lengths.steps.total)
    fit = fit_subjects(grams.mean(axis=0), count, problem.n_features, columns=columns)
    error = 0.0
    if problem.data.shape[2] == 1:
        each = np.broadcast_to(order, problem.data.shape[:2])
        error = measurement_error(problem, fit, each)
    starts = np.stack([problem.data.states(each) for each in orders])
    return Regime(problem, order, fit, orders, grams, starts, direction, error)
