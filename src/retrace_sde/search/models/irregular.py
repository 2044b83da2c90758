"""States behind noise and missing values whose steps differ: gaps of any length, and inputs.

    dX = (A X + B u + c) dt + G dW,     Y_i = X_i + N(0, R),     exact transitions over each gap.

Gaps are those between known times, those of a schedule (they belong to positions, whichever observation stands there),
those of a shared order that are estimated, or all dt. Everything else is `HiddenModel`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.regression import Estimate, StandardErrors
from retrace_sde.fit.statespace import steps
from retrace_sde.fit.statespace.em import resumed
from retrace_sde.fit.statespace.irregular import em as timed
from retrace_sde.fit.statespace.irregular.em import Ascent, Clock, Law, Seen, Timed
from retrace_sde.fit.statespace.irregular.errors import TimedScores
from retrace_sde.fit.statespace.steps import Noise, Parameters, Setup, as_noise
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.hidden.gaussian import Chain
from retrace_sde.orders.hidden.own import HiddenSteps
from retrace_sde.orders.hidden.pair_moments import PairMoments, arranged
from retrace_sde.panel.blocks import Data, evenly, in_order, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import has_offset
from retrace_sde.process.sde import Scheme
from retrace_sde.search.model import Fit, Problem
from retrace_sde.search.models.exact_gaps import spans
from retrace_sde.search.models.hidden import SEARCH_TRAJECTORIES, Arranged, HiddenModel


@dataclass(frozen=True, eq=False)
class IrregularModel(HiddenModel):
    """A linear SDE with inputs across the gaps of a clock. `free`: gaps of a shared order, to be estimated.

    `placed`: gaps belong to positions and stay there when an order is reversed; else they are reversed with it. `path`: the
    order along which free gaps are fitted, where times known of some slices set the lengths of stretches.
    """

    clock: Clock = Clock(np.ones(1), np.zeros((1, 1), dtype=np.intp))  # noqa: RUF009 - never used
    free: bool = False
    placed: bool = False
    path: Indices | None = None

    @classmethod
    def across(
        cls,
        problem: Problem,
        gaps: Array,
        *,
        noise: Noise,
        scheme: Scheme = "exact",
        free: bool = False,
        placed: bool = False,
    ) -> Self:
        """From a problem and the gaps between its positions, (T − 1,) or (n, T − 1)."""
        plain = HiddenModel.of(problem, noise=noise)
        clock = Clock.by_position(gaps) if free else Clock.of(gaps)
        found = cls(plain.data, plain.dt, plain.drift).knowing(problem)
        return replace(found, noise=noise, scheme=scheme, clock=clock, free=free, placed=placed)

    @property
    def gaps_estimated(self) -> bool:
        return self.free

    @property
    def steps_equal(self) -> bool:
        return False

    def some(self, size: int) -> Self:
        n = self.data.shape[0]
        found = super().some(size)
        return found if found is self else replace(found, clock=self.clock.some(evenly(n, size)))

    @cached_property
    def setup(self) -> Setup:
        """What EM estimates and what it knows."""
        d, p = self.data.shape[2], self.n_features
        _, unknown, tied = as_noise(self.noise, d)
        free, zero = np.full((d, p), not self.still), np.zeros((d, p))
        scale = steps.spread(self.values)
        return Setup(self.dt, free, zero, None, unknown, tied, None, scale, self.data.n_jobs)

    def _inputs(self, order: Indices) -> Array:
        """v along an order, (n, T, m): 1 where there is an offset, and the inputs."""
        n, T, _ = self.data.shape
        parts = [np.ones((n, T, 1))] if has_offset(self.drift) else []
        if self.data.covariates is not None:
            parts.append(to_numpy(in_order(self.data.covariates, order)))
        return np.concatenate(parts, axis=2) if parts else np.empty((n, T, 0))

    # -- an order known ----------------------------------------------------------------------------------

    def fit(self, order: Indices, start: Fit | None = None, *, final: bool = False) -> Fit:
        """EM along an order; with free gaps these too, from equal ones or those of an earlier fit."""
        if not self.free:
            return super().fit(order, start, final=final)
        here = replace(self, path=order)
        found = HiddenModel.fit(here, order, start, final=final)
        return here._with_errors(found) if final else found

    def _shown(self, order: Indices, law: Parameters, sums: Any) -> tuple[Fit, tuple[str, ...]]:
        shown, notes = super()._shown(order, law, sums)
        return replace(shown, gaps=self._gaps(as_law(law))), notes

    def _with_errors(self, found: Fit) -> Fit:
        """Errors of parameters and gaps together, from the observed information: gaps trade off with H."""
        scoring = self._scoring(found.law, found.step)
        covariance = scoring.scores.covariance(
            scoring.scores.observed(self._prepared([found.order]))
        )
        errors, step = scoring.errors(covariance), found.step
        return replace(
            found,
            estimate=Estimate(step.coefficients, step.diffusion, errors),
            log_gap_errors=scoring.scores.log_gap_errors(covariance),
        )

    def _gaps(self, law: Law) -> Gaps:
        """The gaps between positions, as estimated or given, not those that stand for them."""
        if self.free:
            return Gaps.of(self.dt if law.gaps is None else law.gaps)
        if self.timing.gaps_known or len(self.clock.gaps) == 1:
            return self.gaps
        known = self.clock.gaps[self.clock.index]
        return Gaps.of(known[0] if len(known) == 1 else known, self.data.lengths)

    def reversed_fit(self, found: Fit, start: Fit | None = None, *, final: bool = False) -> Fit:
        """EM along the reverse of an order: with its gaps reversed, or with those of the positions."""
        back = self.data.reversed(found.order)
        if self.placed or self.free or len(self.clock.gaps) == 1:
            return self.fit(back, start, final=final)
        index = self.clock.index
        index = index[:, ::-1] if len(index) == 1 else self.data.lengths.steps.reversed(index)
        clock = replace(self.clock, index=np.ascontiguousarray(index))
        turned = replace(self, clock=clock, timing=self.timing.reversed())
        return turned.fit(back, start, final=final)

    def _prepared(self, orders: Sequence[Indices], rows: Indices | None = None) -> Seen:
        y = np.concatenate([self.along(order) for order in orders])
        v = np.concatenate([self._inputs(order) for order in orders])
        clock = self.clock
        if len(clock.index) > 1:
            clock = replace(clock, index=np.tile(clock.index, (len(orders), 1)))
        if rows is not None:
            y, v, clock = y[rows], v[rows], clock.some(rows)
        return Seen.of(y, v, clock, self.data.n_jobs)

    def _expect(self, prepared: Any, law: Parameters) -> Timed:
        return timed.expect(prepared, as_law(law))

    def _together(self, parts: list[Any]) -> Timed:
        return timed.together(parts)

    @property
    def _ascent(self) -> Ascent:
        every = np.arange(self.data.shape[1], dtype=np.intp) if self.path is None else self.path
        return Ascent(self.setup, spans(self, every) if self.free else None)

    def _scoring_along(self, prepared: Any) -> Ascent:
        """By steps of EM: what noise leaves of the information across unequal gaps has no closed form."""
        return self._ascent

    def _guess(self, order: Indices, R: Array) -> Law:
        """As for equal steps; the drift starts at 0."""
        d, p = self.setup.free.shape
        plain = replace(self.setup, free=np.ones((d, d), dtype=bool), known=np.zeros((d, d)))
        found = steps.first_guess(self.along(order), plain, R)
        gaps = np.full(self.data.shape[1] - 1, self.dt) if self.free else None
        return Law(np.zeros((d, p)), found.H, found.R, found.initial, gaps, euler=self._euler)

    @property
    def _euler(self) -> bool:
        return self.scheme == "euler"

    def _resumed(self, law: Parameters, R: Array) -> Law:
        found = resumed(law, self.setup, R)
        old = as_law(law)
        return Law(found.theta, found.H, found.R, found.initial, old.gaps, old.shape, self._euler)

    def _smoothed(
        self, order: Indices, law: Parameters, covariances: int
    ) -> tuple[Array, Array, Array]:
        return timed.states(self._prepared([order]), as_law(law), covariances=covariances)

    def _states(self, order: Indices, law: Parameters) -> tuple[Array, Array]:
        values, means, _ = self._smoothed(order, law, 0)
        return values, means

    def _first_states(self, order: Indices, law: Parameters) -> tuple[Array, Array]:
        _, means, spreads = self._smoothed(order, law, 1)
        return means[:, 0], spreads[:, 0]

    def _as_sde(self, law: Parameters, sums: Any) -> tuple[Array, Array, tuple[str, ...]]:
        return law.theta, law.H, ()

    def _scoring(self, law: Parameters, step: Euler) -> TimedScoring:  # type: ignore[override]
        own = as_law(law)
        gaps = self.clock.gaps if own.gaps is None else own.gaps
        free = self._ascent.spans
        return TimedScoring(self, TimedScores(self.setup, own, gaps, free))

    # -- orders ------------------------------------------------------------------------------------------

    def _pairs(self) -> PairMoments:
        whole = self.values
        if self.data.covariates is not None:
            whole = np.concatenate([whole, to_numpy(self.data.covariates)], axis=2)
        return PairMoments.of(whole)

    def for_search(self) -> Self:
        """EM on a few trajectories, the search on the pairs of all."""
        few = self.some(SEARCH_TRAJECTORIES)
        if self.free:  # gaps of their own would excuse wrong orders: first with equal ones
            few = replace(few, free=False, clock=Clock.of(np.full(self.data.shape[1] - 1, self.dt)))
        return replace(few, pairs=self._pairs())

    def verified(self, found: Fit) -> bool:
        """An order found with equal gaps is searched once more with its own."""
        return not self.free

    def orders_under(self, law: Parameters) -> Arranged:
        """What one order for all costs under given parameters."""
        pairs = self._pairs() if self.pairs is None else self.pairs
        return Arranged(self, law, arranged(pairs, self._chain(as_law(law)), self.prior))

    def _chain(self, law: Law) -> Chain:
        """The steps between positions."""
        F, S, Q = (each[self.clock.index[0]] for each in law.steps(self.clock))
        offset = int(has_offset(self.drift))
        s = S[:, :, 0] if offset else np.zeros(S.shape[:2])
        return Chain(F, s, Q, S[:, :, offset:], law.R, law.initial)

    def _course(self, law: Parameters) -> HiddenSteps:
        own = as_law(law)
        return HiddenSteps(
            self._chain(own), own.table(self.clock), self.clock.index[0], has_offset(self.drift)
        )

    def parameters(self, law: Parameters) -> tuple[Array, Array]:
        """Θ and H."""
        return law.theta, law.H

    def for_others(self, data: Data) -> IrregularModel:
        """The same for other trajectories, of whose time nothing but a schedule is known."""
        T = data.shape[1]
        gaps = np.full(T - 1, self.dt)
        if self.placed and self.clock.index.shape[1] == T - 1:
            gaps = self.clock.gaps[self.clock.index[0]]
        problem = Problem(data, self.dt, self.drift)
        return IrregularModel.across(problem, gaps, noise=self.noise, placed=self.placed)


def as_law(law: Parameters) -> Law:
    """The same parameters, as a law across gaps."""
    return law if isinstance(law, Law) else Law(law.theta, law.H, law.R, law.initial)


@dataclass(frozen=True, eq=False)
class TimedScoring:
    """Scores of trajectories along given orders, and what they tell of the parameters."""

    model: IrregularModel
    scores: TimedScores

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self.scores.size

    def of(self, orders: Indices, gaps: Indices | None = None) -> Array:
        """Derivatives (n, size) of each trajectory's log-likelihood along given orders."""
        return self.scores.of(self.model._prepared([orders]))

    def along(self, order: Indices, rng: np.random.Generator) -> Array:
        """The information along a known order."""
        return self.scores.information(self.model._prepared([order]), rng)

    def information(self, rng: np.random.Generator) -> Array:
        """The information if the orders were known, as the observations stand: orders hardly change it."""
        n, T, _ = self.model.data.shape
        return self.along(np.tile(np.arange(T, dtype=np.intp), (n, 1)), rng)

    def errors(self, covariance: Array) -> StandardErrors:
        """Standard errors of Θ and H from the covariance of the parameters."""
        return self.scores.errors(covariance)
