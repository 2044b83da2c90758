"""Own orders across gaps that are not known: a law of gaps whose single gaps are summed out, or drawn with the orders.

    g ~ Gamma(κ), mean dt:      p(x' | x) = Σ_k w_k(κ) N(x'; F_k x + S_k v, Q_k)

on a fixed table of gaps g_k, evenly spaced in log g. A single gap has only the d numbers of its step behind it: its relative error is √(2/d) even
with all else known, so that gaps are never read off, only averaged over. The mean gap sets the unit of time. Where states are seen as they are, the gap
of a step is summed out of its likelihood: steps stay independent given the order, so that orders are judged by pairs as with equal gaps. Behind noise and
missing values gaps are drawn with the orders (`filtered`) in Monte-Carlo EM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

from retrace_sde.fit.moments import Frequencies, statistics
from retrace_sde.fit.statespace.ascent.climb import Ascent
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.errors import MIN_SIMULATED, SIMULATED_PER_PARAMETER, Scores
from retrace_sde.fit.statespace.observations import Observations, StepClasses
from retrace_sde.fit.statespace.parameters import Noise, Parameters
from retrace_sde.fit.statespace.smoother import Smoothed
from retrace_sde.fit.statespace.transitions import Transitions, transitions
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.deferred import optimize
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.orders.hidden.own import HiddenSteps
from retrace_sde.orders.own import OwnOrders
from retrace_sde.orders.search import BlockCosts
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import has_offset
from retrace_sde.process.sde import Gaussian
from retrace_sde.search.model import Fit, Problem
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel, HiddenScores

FIRST_SHAPE = 2.0
"""Where the search for the shape of the law of gaps starts."""

TRAJECTORIES_AT_ONCE = 16
"""Trajectories whose pairs are judged at a time across all gaps of the table."""


RATIOS = np.exp(np.linspace(np.log(0.03), np.log(6.0), 24))
"""The table of gaps in units of their mean: 23 per cent apart, where one gap is known to 35 per cent with 16 variables."""

SHAPES = (0.5, 30.0)
"""The shape of the law of gaps lies between these: more even ones the table cannot tell from equal ones."""


def log_weights(shape: float) -> Array:
    """log w_k(κ): the gamma density of mean 1 in log g, on the table."""
    log_density = shape * np.log(shape) - gammaln(shape) + shape * np.log(RATIOS) - shape * RATIOS
    return log_density - logsumexp(log_density)


def best_shape(counts: Array) -> float:
    """The shape under which gaps of the table, found `counts` (K,) times, are most likely."""
    found = optimize.minimize_scalar(
        lambda s: -float(counts @ log_weights(np.exp(s))),
        bounds=tuple(np.log(SHAPES)),
        method="bounded",
    )
    return float(np.exp(found.x))


def pair_log_densities(steps: Transitions, x: Array, v: Array, after: Array) -> Array:
    """`log N(x'_b; F_k x_a + S_k v_a, Q_k)`, (…, A, B, K), of states x (…, A, d) and later ones `after` (…, B, d)."""
    F, S, Q = steps
    d = F.shape[1]
    lower = np.linalg.cholesky(Q)
    W = np.linalg.inv(lower)
    log_det = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    found = np.empty((*x.shape[:-1], after.shape[-2], len(F)))
    for k in range(len(F)):
        source = (x @ F[k].T + v @ S[k].T) @ W[k].T
        target = after @ W[k].T
        gap = target[..., None, :, :] - source[..., :, None, :]
        found[..., k] = -0.5 * (gap**2).sum(axis=-1) - log_det[k]
    return found - d * np.log(2 * np.pi) / 2


def step_log_densities(steps: Transitions, x: Array, v: Array) -> Array:
    """The same of neighbours along paths x (n, T, d): (n, T − 1, K)."""
    one = pair_log_densities(steps, x[:, :-1, None], v[:, :-1, None], x[:, 1:, None])
    return one[:, :, 0, 0]


@dataclass(frozen=True, eq=False)
class RandomGapModel(HiddenModel):
    """A linear SDE, an order and gaps of its own for each trajectory; gaps are drawn with the orders."""

    @classmethod
    def unknown(cls, problem: Problem, *, noise: Noise) -> RandomGapModel:
        """From a problem whose gaps are not known; dt is their mean. States that are seen as they are have gaps summed out."""
        seen = not isinstance(noise, str) and not np.any(noise)
        summed = seen and HiddenModel.of(problem, noise=noise).complete
        found = (SummedGapModel if summed else RandomGapModel).of(problem, noise=noise)
        T = problem.data.shape[1]
        equal = np.full((1, T - 1), int(np.argmin(np.abs(np.log(RATIOS)))), dtype=np.intp)
        return replace(found, scheme="exact", classes=StepClasses(RATIOS * problem.dt, equal))

    @property
    def gaps_random(self) -> bool:
        return True

    @property
    def averages(self) -> bool:
        """Drawn gaps have no best value: parameters are averaged over them even where orders are certain."""
        return True

    def fit(self, order: Indices, start: Fit | None = None, *, final: bool = False) -> Fit:
        """Across gaps that are summed out; behind noise, for a start, across equal ones."""
        found = super().fit(order, start, final=final)
        law: Parameters = found.law
        return replace(found, law=replace(law, shape=law.shape or FIRST_SHAPE))

    def _gaps(self, law: Parameters) -> Gaps:
        """Single gaps are never read off."""
        return Gaps.of(self.dt)

    def reversed_fit(self, found: Fit, start: Fit | None = None, *, final: bool = False) -> Fit:
        return self.fit(self.data.reversed(found.order), start, final=final)

    @property
    def _ascent(self) -> Ascent:
        return DrawnAscent(self.setup)

    def _weights(self, law: Parameters) -> Array:
        return log_weights(law.shape or FIRST_SHAPE)

    def _guess(self, order: Indices, R: Array) -> Parameters:
        return replace(super()._guess(order, R), shape=FIRST_SHAPE)

    def log_joint(self, orders: Indices, law: Parameters, gaps: Indices | None = None) -> Array:
        """`log p` of each trajectory along an order, (n,), across equal gaps, or as drawn, their own prior included."""
        if gaps is None:
            return super().log_joint(orders, law)
        live = self.data.lengths.steps.mask
        prior = np.where(live, self._weights(law)[gaps], 0.0).sum(axis=1)
        return self._crossing(gaps)._states(orders, law)[0] + prior

    def _crossing(self, gaps: Indices) -> RandomGapModel:
        """The same with given gaps."""
        return replace(self, classes=replace(self.steps, index=gaps))

    def _course(self, law: Parameters) -> HiddenSteps:
        return replace(super()._course(law), weights=self._weights(law))

    def begin(self, found: Fit) -> Parameters:
        return replace(super().begin(found), shape=FIRST_SHAPE)

    def draw(self, law: Parameters, chains: Chains, stretch: Stretch) -> Draws:
        """Advance chains of orders and gaps under a law."""
        if chains.gaps.size == 0:
            chains.gaps = np.broadcast_to(
                self.steps.index, (*chains.orders.shape[:2], chains.orders.shape[2] - 1)
            ).copy()
        return super().draw(law, chains, stretch)

    def _drawn(self, draws: Draws, c: int) -> Observations:
        index = draws.gaps[c].transpose(1, 0, 2).astype(np.intp).reshape(-1, draws.gaps.shape[3])
        return replace(super()._drawn(draws, c), classes=replace(self.steps, index=index))

    def _scoring(self, law: Parameters) -> HiddenScores:
        return DrawnScoring(self, Scores(self.setup, law, self.steps.gaps))

    def for_others(self, data: Data) -> RandomGapModel:
        return RandomGapModel.unknown(Problem(data, self.dt, self.drift), noise=self.noise)


@dataclass(frozen=True, eq=False)
class SummedGapModel(RandomGapModel):
    """The same where states are seen as they are: gaps are summed out."""

    effort = EulerModel.effort

    @property
    def averages(self) -> bool:
        return False

    def _expect(self, prepared: Observations, law: Parameters) -> Expected:
        """The E-step along known orders: each step counts for every gap as much as the gap is likely."""
        x, v, live = self._complete(prepared)
        logs, total = _shares(step_log_densities(self._table(law), x, v), self._weights(law))
        r = np.exp(logs) * live[:, :, None]
        z = np.concatenate([x[:, :-1], v[:, :-1], np.diff(x, axis=1)], axis=2).reshape(
            -1, x.shape[2] * 2 + v.shape[2]
        )
        flat = r.reshape(-1, r.shape[2])
        grams = np.stack([(z * flat[:, k, None]).T @ z for k in range(flat.shape[1])])
        value = float(np.where(live, total, 0.0).sum() + law.initial.log_density(x[:, 0]).sum())
        return self._sums(value, grams, flat.sum(axis=0), x[:, 0])

    def _complete(self, prepared: Observations) -> tuple[Array, Array, Mask]:
        """States, which are seen as they are, with 0 beyond a trajectory's end, v, and which steps there are, (n, T − 1)."""
        x = np.nan_to_num(prepared.values)
        v = prepared.inputs
        if v is None:
            v = np.ones((*x.shape[:2], int(has_offset(self.drift))))
        return x, v, ~np.isnan(prepared.values[:, 1:, 0])

    def _sums(self, value: float, grams: Array, counts: Array, first: Array) -> Expected:
        """From Gram matrices of (x, v, x' − x)."""
        d = self.data.shape[2]
        law0 = Gaussian(first.mean(axis=0), np.cov(first.T, bias=True).reshape(d, d))
        nothing, about = np.zeros(d), np.zeros((len(grams), d, grams.shape[1] - d))
        return Expected(
            value, grams, about, self.steps.gaps, counts, nothing, nothing, law0, float(len(first))
        )

    @property
    def _ascent(self) -> Ascent:
        return MixedAscent(self.setup)

    def _table(self, law: Parameters) -> Transitions:
        return transitions(law.theta, law.H, self.steps.gaps)

    def _smoothed(self, order: Indices, law: Parameters, times: int) -> Smoothed:
        x, (n, _, d) = self.along(order), self.data.shape
        known, none = np.zeros((1, times, d, d)), np.empty((0, 0, d, d))
        return Smoothed(self.log_joint(order, law), x, known, none, np.zeros(n, dtype=np.intp))

    def log_joint(self, orders: Indices, law: Parameters, gaps: Indices | None = None) -> Array:
        """`log p` of each trajectory along an order, (n,), gaps summed out."""
        x, v, live = self._complete(self._prepared([orders]))
        each = step_log_densities(self._table(law), x, v)
        total = logsumexp(each + self._weights(law), axis=2)
        return law.initial.log_density(x[:, 0]) + np.where(live, total, 0.0).sum(axis=1)

    def own_orders(self, law: Parameters) -> Any:
        """What each trajectory's order costs under a law."""
        return OwnOrders(self.data, _Judge(self, law), self.prior)

    def begin(self, found: Fit) -> Parameters:
        return self.law(found)

    def draw(self, law: Parameters, chains: Chains, stretch: Stretch) -> Draws:
        """Advance chains of orders under a law, counting what the M-step needs where that is asked for."""
        count = partial(self._counted, law) if stretch.expected else None
        return self.own_orders(law).draw(chains, stretch, count)

    def _counted(self, law: Parameters, x: Array, u: Any, frequencies: Frequencies) -> Expected:
        """Expected sums of a block from the frequencies of its pairs: shared out among the gaps of the table."""
        grams: Any = 0.0
        counts: Any = 0.0
        for some, each in self._pair_densities(law, x, u):
            logs, _ = _shares(each, self._weights(law))
            shares = np.exp(logs) * frequencies.pairs[some][..., None]
            ends = frequencies.first[some], frequencies.last[some]
            parts = [
                statistics(x[some], u if u is None else u[some], Frequencies(shares[..., k], *ends), 1.0, self.drift).gram
                for k in range(shares.shape[-1])
            ]  # fmt: skip
            grams = grams + np.stack(parts)
            counts = counts + shares.sum(axis=(0, 1, 2))
        weight = frequencies.first
        mean = np.einsum("jt,jtd->jd", weight, x)
        square = np.einsum("jt,jtd,jte->de", weight, x, x)
        m = mean.mean(axis=0)
        sums = self._sums(0.0, np.asarray(grams), np.asarray(counts), mean)
        return replace(sums, first=Gaussian(m, square / len(x) - np.outer(m, m)))

    def _pair_densities(self, law: Parameters, x: Array, u: Any) -> Iterator[tuple[slice, Array]]:
        """Log-densities (m, T, T, K) of pairs of observations across every gap of the table, some trajectories at a time."""
        for begin in range(0, len(x), TRAJECTORIES_AT_ONCE):
            some = slice(begin, begin + TRAJECTORIES_AT_ONCE)
            y, inputs = x[some], None if u is None else to_numpy(u)[some]
            parts = [np.ones((*y.shape[:2], int(has_offset(self.drift))))]
            v = np.concatenate(parts if inputs is None else [*parts, inputs], axis=2)
            yield some, pair_log_densities(self._table(law), y, v, y)

    def expect(self, draws: Draws, law: Parameters) -> list[Expected]:
        return draws.counted

    def extrapolate(self, old: Parameters, new: Parameters) -> Parameters:
        return new

    def _scoring(self, law: Parameters) -> HiddenScores:
        return MixedScoring(self, Scores(self.setup, law, self.steps.gaps))


@dataclass(frozen=True, eq=False)
class DrawnAscent(Ascent):
    """The shape follows the gaps drawn; the likelihood of observations across them does not depend on it."""

    def maximise(self, expected: Expected, now: Parameters) -> Parameters:
        return replace(super().maximise(expected, now), shape=best_shape(expected.counts))


@dataclass(frozen=True, eq=False)
class MixedAscent(DrawnAscent):
    """With the shape of the law of gaps among the parameters."""

    def pack(self, law: Parameters) -> Array:
        return np.r_[super().pack(law), np.log(law.shape or FIRST_SHAPE)]

    def unpack(self, vector: Array, like: Parameters) -> Parameters:
        shape = float(np.exp(np.clip(vector[-1], -5, 5)))
        return replace(super().unpack(vector[:-1], like), shape=shape)

    def weights(self, now: Parameters, expected: Expected) -> Array:
        return np.r_[super().weights(now, expected), np.sqrt(expected.count / 2)]


@dataclass(frozen=True, eq=False)
class _Judge:
    """Pairs judged across every gap of the table, summed."""

    model: SummedGapModel
    law: Parameters

    def costs(self, data: Data, rows: slice) -> BlockCosts:
        x, u = data.block(rows)
        x = to_numpy(x)
        weights, pairs = self.model._weights(self.law), np.empty((len(x), x.shape[1], x.shape[1]))
        for some, each in self.model._pair_densities(self.law, x, u):
            pairs[some] = -logsumexp(each + weights, axis=-1)
        return BlockCosts(x, x, -self.law.initial.log_density(x), pairs)


def _shares(log_densities: Array, weights: Array) -> tuple[Array, Array]:
    """The logarithm of each gap's share in a step, and the step's log-density with the gap summed out."""
    joint = log_densities + weights
    total = logsumexp(joint, axis=-1)
    return joint - total[..., None], total


@dataclass(frozen=True, eq=False)
class DrawnScoring(HiddenScores):
    """Scores along orders and gaps drawn together."""

    model: RandomGapModel

    def of(self, orders: Indices, gaps: Indices | None = None) -> Array:
        model = self.model if gaps is None else self.model._crossing(gaps)
        return self.scores.of(model._prepared([orders]))

    def information(self, rng: np.random.Generator) -> Array:
        """If orders and gaps were known: across gaps of their law."""
        n, T, _ = self.model.data.shape
        weights = np.exp(self.model._weights(self.scores.law))
        gaps = rng.choice(len(weights), size=(n, T - 1), p=weights / weights.sum())
        every = np.tile(np.arange(T, dtype=np.intp), (n, 1))
        return self.scores.information(self.model._crossing(gaps)._prepared([every]), rng)


@dataclass(frozen=True, eq=False)
class MixedScoring(HiddenScores):
    """Scores with gaps summed out: those of each gap, in the shares that the step gives them."""

    model: SummedGapModel

    def of(self, orders: Indices, gaps: Indices | None = None) -> Array:
        return self._of(*self.model._complete(self.model._prepared([orders])))

    def _of(self, x: Array, v: Array, live: Mask) -> Array:
        model, law = self.model, self.scores.law
        F, S, Q = table = model._table(law)
        of_F, of_Q = self.scores.derivatives
        logs, _ = _shares(step_log_densities(table, x, v), model._weights(law))
        r = np.exp(logs) * live[:, :, None]
        phi = np.concatenate([x, v], axis=2)[:, :-1]
        found = np.zeros((len(x), self.size))
        for k in range(len(F)):
            P = np.linalg.inv(Q[k])
            e = (x[:, 1:] - x[:, :-1] @ F[k].T - v[:, :-1] @ S[k].T) @ P
            weighted = e * r[:, :, k, None]
            to_F = np.einsum("nti,ntj->nij", weighted, phi)
            to_Q = 0.5 * (
                np.einsum("nti,ntj->nij", weighted, e) - r[:, :, k].sum(axis=1)[:, None, None] * P
            )
            found += np.einsum("nij,sij->ns", to_F, of_F[k]) + np.einsum(
                "nij,sij->ns", to_Q, of_Q[k]
            )
        return found

    def along(self, order: Indices, rng: np.random.Generator) -> Array:
        return self.information(rng)

    def information(self, rng: np.random.Generator) -> Array:
        """If the orders were known: of trajectories simulated across gaps of their law."""
        model, law = self.model, self.scores.law
        n, T, d = model.data.shape
        m = max(SIMULATED_PER_PARAMETER * self.size, MIN_SIMULATED)
        rows = np.resize(np.arange(n), m)
        every = np.tile(np.arange(T, dtype=np.intp), (n, 1))
        _, v, live = model._complete(model._prepared([every]).some(rows))
        F, S, Q = model._table(law)
        roots, weights = np.linalg.cholesky(Q), np.exp(model._weights(law))
        x = np.empty((m, T, d))
        x[:, 0] = law.initial.sample(m, rng)
        for t in range(T - 1):
            k = rng.choice(len(weights), size=m, p=weights / weights.sum())
            x[:, t + 1] = np.einsum("nij,nj->ni", F[k], x[:, t]) + np.einsum(
                "nij,nj->ni", S[k], v[:, t]
            )
            x[:, t + 1] += np.einsum("nij,nj->ni", roots[k], rng.standard_normal((m, d)))
        score = self._of(x, v, live)
        return score.T @ score * n / m / (1 - (self.size + 1) / m)
