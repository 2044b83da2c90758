"""EM in the state-space model whose steps differ: gaps of any length, and inputs, behind noise and missing values.

    dX = (A X + B v) dt + G dW,    Y_i = X_i + N(0, R),    v = (1, u): an offset and inputs, held over each gap.

Transitions are exact (`transitions`), one for each distinct gap. E: the smoother's sums by gap. M: the expected
log-likelihood `−½ Σ_k (n_k log |Q_k| + tr Q_k⁻¹ E_k)` has no closed form in (A, B, H): quasi-Newton, with its exact gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import minimize

from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.statespace import steps
from retrace_sde.fit.statespace.irregular.kernels import Block, Sums, Table, add_sums, fill_states
from retrace_sde.fit.statespace.irregular.transitions import Transitions, step_cost, transitions
from retrace_sde.fit.statespace.steps import Parameters, Setup, Slopes
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import Data
from retrace_sde.process.sde import Gaussian

DISTINCT = 128
"""Gaps that differ by less than a few per cent count as one where there would be more: a transition each."""

BLOCK = 64
"""Trajectories per block: fixed, so that no sum depends on the number of jobs."""

INNER = 40
"""Steps of the quasi-Newton search of one M-step, at most."""


@dataclass(frozen=True, eq=False)
class Clock:
    """The distinct gaps (K,), and which of them each step crosses: (1, T − 1) for all trajectories, or (n, T − 1)."""

    gaps: Array
    index: Indices

    @classmethod
    def of(cls, gaps: Array) -> Clock:
        """From gaps (T − 1,) or (n, T − 1); of too many, those in one of `DISTINCT` geometric bins are their mean."""
        found = np.atleast_2d(np.asarray(gaps, dtype=float))
        distinct, index = np.unique(found, return_inverse=True)
        if len(distinct) > DISTINCT:
            logs = np.log(found.ravel())
            edges = np.linspace(logs.min(), logs.max(), DISTINCT + 1)
            place = np.clip(np.searchsorted(edges, logs, side="right") - 1, 0, DISTINCT - 1)
            used, index = np.unique(place, return_inverse=True)
            sums = np.bincount(index, weights=found.ravel())
            distinct = sums / np.bincount(index, minlength=len(used))
        return cls(distinct, index.reshape(found.shape).astype(np.intp))

    @classmethod
    def by_position(cls, gaps: Array) -> Clock:
        """A class for each position, whether or not gaps are equal: they may change one by one."""
        return cls(np.asarray(gaps, dtype=float), np.arange(len(gaps), dtype=np.intp)[None])

    def some(self, rows: Indices) -> Clock:
        return self if len(self.index) == 1 else replace(self, index=self.index[rows])


@dataclass(frozen=True, eq=False)
class Seen:
    """Trajectories in time order: values (n, T, d) with 0 where nothing was seen, what was, v (n, T, m), the clock."""

    values: Array
    seen: Mask
    inputs: Array
    clock: Clock
    n_jobs: int | None = None

    @classmethod
    def of(cls, y: Array, inputs: Array, clock: Clock, n_jobs: int | None = None) -> Seen:
        seen = ~np.isnan(y)
        return cls(np.where(seen, y, 0.0), seen, np.ascontiguousarray(inputs), clock, n_jobs)

    @cached_property
    def last(self) -> Indices:
        """The last time at which something was seen, −1: never."""
        some: Mask = np.asarray(self.seen.any(axis=2))
        T = some.shape[1]
        return np.where(some.any(axis=1), T - 1 - np.argmax(some[:, ::-1], axis=1), -1)

    @cached_property
    def index(self) -> Indices:
        n, T, _ = self.values.shape
        return np.ascontiguousarray(np.broadcast_to(self.clock.index, (n, T - 1)))

    def rows(self, rows: slice) -> Block:
        """What the kernels take of some trajectories."""
        ends, v = self.last[rows], self.inputs[rows]
        return Block(self.values[rows], self.seen[rows], self.index[rows], v, ends)

    def blocks(self) -> Data:
        return Data(self.values, n_jobs=self.n_jobs)


@dataclass(frozen=True, eq=False)
class Law(Parameters):
    """(A, B), H, R and p₀ in continuous time; `gaps` where they are estimated, the `shape` of their law where drawn.

    `euler`: with Euler's step, as the other estimators have it on a regular grid.
    """

    gaps: Array | None = None
    shape: float | None = None
    euler: bool = False

    def steps(self, clock: Clock) -> Transitions:
        """The transition over each gap."""
        gaps = clock.gaps if self.gaps is None else self.gaps
        return transitions(self.theta, self.H, gaps, euler=self.euler)

    def table(self, clock: Clock) -> Table:
        """As the kernels want it."""
        parts = (*self.steps(clock), np.diag(self.R), self.initial.mean, self.initial.covariance)
        return Table(*(np.ascontiguousarray(part, dtype=float) for part in parts))


@dataclass(frozen=True, eq=False)
class Timed:
    """Sums over trajectories: Gram matrices (K, p + d, p + d) of (x, v, x' − x) and counts by gap, squared noise and
    its counts, and the law of the first states of so many trajectories. They add up.
    """

    likelihood: float
    grams: Array
    counts: Array
    gaps: Array
    squares: Array
    seen: Array
    first: Gaussian
    trajectories: float
    parts: tuple[Timed, ...] = ()

    @property
    def count(self) -> float:
        return float(self.counts.sum())

    @property
    def gram(self) -> Array:
        """Of (φ √g, Δx / √g), as Euler's regression has it."""
        p = self.grams.shape[1] - len(self.squares)
        root = np.ones((len(self.gaps), self.grams.shape[1])) / np.sqrt(self.gaps)[:, None]
        root[:, :p] = np.sqrt(self.gaps)[:, None]
        total: Array = (self.grams * root[:, :, None] * root[:, None, :]).sum(axis=0)
        return total

    @property
    def moments(self) -> Moments:
        return Moments.from_weights(self.gram, self.count, len(self.gram) - len(self.squares))

    def __add__(self, other: Timed) -> Timed:
        n, m = self.trajectories, other.trajectories
        return Timed(
            self.likelihood + other.likelihood,
            self.grams + other.grams,
            self.counts + other.counts,
            self.gaps,
            self.squares + other.squares,
            self.seen + other.seen,
            self.first.pooled(other.first, n / (n + m)),
            n + m,
        )

    def scaled(self, factor: float) -> Timed:
        return replace(
            self,
            likelihood=self.likelihood * factor,
            grams=self.grams * factor,
            counts=self.counts * factor,
            squares=self.squares * factor,
            seen=self.seen * factor,
            trajectories=self.trajectories * factor,
        )


def together(parts: list[Timed]) -> Timed:
    """The sums of all parts, which are kept."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return replace(total, parts=tuple(parts))


def expect(seen: Seen, law: Law) -> Timed:
    """The E-step: the smoother along known times, reduced to sums by gap."""
    table = law.table(seen.clock)
    gaps = seen.clock.gaps if law.gaps is None else law.gaps
    (K, d, m), n = table.inputs.shape, len(seen.values)
    first = np.empty((n, d))

    def of_block(rows: slice) -> tuple[float, Sums, Array, Array]:
        sums = Sums(
            *(np.zeros((K, d, d)), np.zeros((K, d, m)), np.zeros((K, m, m))),
            *(np.zeros((K, d, d)), np.zeros((K, d, m)), np.zeros((K, d, d)), np.zeros(K)),
        )
        squares, spread = np.zeros(d), np.zeros((d, d))
        value = add_sums(table, seen.rows(rows), sums, squares, first[rows], spread)
        return value, sums, squares, spread

    found = list(seen.blocks().map_rows(of_block, size=BLOCK))
    value = float(sum(each[0] for each in found))
    if not np.isfinite(value):
        raise np.linalg.LinAlgError("the likelihood is not defined here.")
    sums = Sums(
        *(np.sum(parts, axis=0) for parts in zip(*(each[1] for each in found), strict=True))
    )
    squares = np.sum([each[2] for each in found], axis=0)
    spread = np.sum([each[3] for each in found], axis=0)
    some = seen.last >= 0
    m0 = first[some]
    centred = m0 - m0.mean(axis=0)
    law0 = Gaussian(m0.mean(axis=0), (centred.T @ centred + spread) / len(m0))
    counts = np.asarray(seen.seen.sum(axis=(0, 1)), dtype=float)
    grams = step_grams(sums, table)
    return Timed(value, grams, sums.steps, gaps, squares, counts, law0, float(len(m0)))


def step_grams(sums: Sums, table: Table) -> Array:
    """E Σ of (x, v, x' − x) squared, by gap: `x' − x = (F − 1) x + S v + η`, `E η = Q r`, `E η ηᵀ = Q + Q W Q`."""
    (K, d, m), Q = table.inputs.shape, table.covariance
    p = d + m
    gram = np.empty((K, p + d, p + d))
    gram[:, :d, :d], gram[:, :d, d:p] = sums.xx, sums.xv
    gram[:, d:p, :d], gram[:, d:p, d:p] = sums.xv.transpose(0, 2, 1), sums.vv
    B = np.concatenate([table.matrix - np.eye(d), table.inputs], axis=2)
    eta = np.concatenate([Q @ sums.rx, Q @ sums.rv], axis=2)
    cross = eta + B @ gram[:, :p, :p]
    gram[:, p:, :p], gram[:, :p, p:] = cross, cross.transpose(0, 2, 1)
    noise = Q * sums.steps[:, None, None] + Q @ sums.rr @ Q
    both = eta @ B.transpose(0, 2, 1)
    gram[:, p:, p:] = (
        noise + both + both.transpose(0, 2, 1) + B @ gram[:, :p, :p] @ B.transpose(0, 2, 1)
    )
    return gram


@dataclass(frozen=True, eq=False)
class Ascent:
    """How laws are laid out as vectors and maximised: what `climb` needs. `spans`: gaps are free, in these stretches."""

    setup: Setup
    spans: Spans | None = None

    def pack(self, law: Law) -> Array:
        found = steps.pack(law, self.setup)
        return found if law.gaps is None else np.r_[found, np.log(law.gaps / self.setup.dt)]

    def unpack(self, vector: Array, like: Law) -> Law:
        free = 0 if like.gaps is None else len(like.gaps)
        found = steps.unpack(vector[: len(vector) - free], like, self.setup)
        gaps = like.gaps
        if gaps is not None and self.spans is not None:
            gaps = self.setup.dt * self.spans.gaps(vector[len(vector) - free :])
        return Law(found.theta, found.H, found.R, found.initial, gaps, like.shape, like.euler)

    def weights(self, now: Law, expected: Timed) -> Array:
        found = steps.information_weights(now, expected, self.setup)
        return found if now.gaps is None else np.r_[found, np.sqrt(expected.counts / 2 + 1e-9)]

    def maximise(self, expected: Timed, now: Law) -> Law:
        """The M-step: R and p₀ in closed form, (A, B, H), and free gaps, by quasi-Newton."""
        theta, H, gaps = self._drift(expected, now)
        R = steps.noise_covariance(self.setup, expected, now.R, H)
        initial = steps.first_law(self.setup, expected, H)
        return Law(theta, H, R, initial, gaps, now.shape, now.euler)

    def _drift(self, expected: Timed, now: Law) -> tuple[Array, Array, Array | None]:
        setup, d = self.setup, len(now.H)
        if not setup.free.any() and now.gaps is None:  # a random walk is a closed form
            step = expected.grams[:, -d:, -d:] / expected.gaps[:, None, None]
            return setup.known.copy(), step.sum(axis=0) / expected.count, None
        if now.euler:
            found = mle(expected.moments)
            return found.coefficients, found.diffusion, None
        objective = Objective(expected, setup, self.spans if now.gaps is not None else None)
        start = objective.pack(now.theta, now.H, now.gaps)
        options = {"maxiter": INNER, "maxcor": 20, "ftol": 1e-11, "gtol": 1e-6 * expected.count}
        best = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
        return objective.split(best.x)

    def slopes(self, expected: Timed, now: Law) -> Slopes:
        """Derivatives by Θ, H and free gaps at the parameters of the E-step."""
        if now.euler:
            return _euler_slopes(expected, now)
        objective = Objective(expected, self.setup, self.spans if now.gaps is not None else None)
        found = objective.pulled(now.theta, now.H, now.gaps)
        if found is None:
            raise np.linalg.LinAlgError("the likelihood is not defined here.")
        _, of_theta, of_H, of_gaps = found
        return Slopes(-of_theta, -of_H, None if now.gaps is None else -of_gaps)


def _euler_slopes(expected: Timed, now: Law) -> Slopes:
    """`H⁻¹ Σ η φᵀ` and `½ (H⁻¹ Σ η ηᵀ H⁻¹ − n H⁻¹)` of Euler's steps."""
    p, gram = now.theta.shape[1], expected.gram
    turn = np.eye(len(gram))
    turn[p:, :p] = -now.theta
    gram, weight = turn @ gram @ turn.T, np.linalg.inv(now.H)
    of_H = 0.5 * (weight @ gram[p:, p:] @ weight - expected.count * weight)
    return Slopes(weight @ gram[p:, :p], of_H)


@dataclass(frozen=True, eq=False)
class Objective:
    """`½ Σ_k (n_k log |Q_k| + tr Q_k⁻¹ E_k)` and its gradient by (free (A, B), log-Cholesky H, log gaps).

    Coordinates are scaled to have about unit curvature: variables' units, and √n.
    """

    expected: Timed
    setup: Setup
    spans: Spans | None

    @cached_property
    def _unit(self) -> Array:
        """About a standard error of each free entry of (A, B)."""
        p = self.setup.free.shape[1]
        regressors = np.maximum(np.diag(self.expected.gram)[:p], 1e-300)
        found: Array = np.outer(self.setup.rate, 1 / np.sqrt(regressors))
        return found

    def pack(self, theta: Array, H: Array, gaps: Array | None) -> Array:
        s = self.setup.rate
        C = np.linalg.cholesky(H / np.outer(s, s))
        np.fill_diagonal(C, np.log(np.diag(C)))
        parts = [(theta / self._unit)[self.setup.free], C[np.tril_indices(len(C))] * self._root]
        if gaps is not None:
            parts.append(np.log(gaps / self.setup.dt) * self._root)
        return np.concatenate(parts)

    @cached_property
    def _root(self) -> float:
        return float(np.sqrt(self.expected.count))

    def split(self, x: Array) -> tuple[Array, Array, Array | None]:
        theta, C, gaps = self._split(x)
        s = self.setup.rate
        return theta, C @ C.T * np.outer(s, s), gaps

    def _split(self, x: Array) -> tuple[Array, Array, Array | None]:
        free, d = self.setup.free, len(self.setup.free)
        theta = self.setup.known.copy()
        k, q = int(free.sum()), d * (d + 1) // 2
        theta[free] = x[:k] * self._unit[free]
        C = np.zeros((d, d))
        C[np.tril_indices(d)] = x[k : k + q] / self._root
        np.fill_diagonal(C, np.exp(np.clip(np.diag(C), -50, 50)))
        if self.spans is None:
            return theta, C, None
        return theta, C, self.setup.dt * self.spans.gaps(x[k + q :] / self._root)

    def pulled(
        self, theta: Array, H: Array, gaps: Array | None
    ) -> tuple[float, Array, Array, Array] | None:
        """The value, and its derivatives by Θ, H and the gaps (0 where no step crosses one); None beyond reach."""
        gaps = self.expected.gaps if gaps is None else gaps
        live = self.expected.counts > 0
        n, G, g = self.expected.counts[live], self.expected.grams[live], gaps[live]
        cost = step_cost(theta, H, g, n, G)
        if cost is None:
            return None
        full = np.zeros(len(live))
        full[live] = cost.gaps
        return cost.value, cost.theta, cost.diffusion, full

    def __call__(self, x: Array) -> tuple[float, Array]:
        theta, C, gaps = self._split(x)
        s = self.setup.rate
        found = self.pulled(theta, C @ C.T * np.outer(s, s), gaps)
        if found is None:
            return 1e15, np.zeros_like(x)
        value, of_theta, of_H, of_gaps = found
        to_C = ((of_H + of_H.T) * np.outer(s, s)) @ C
        np.fill_diagonal(to_C, np.diag(to_C) * np.diag(C))
        parts = [
            (of_theta * self._unit)[self.setup.free],
            to_C[np.tril_indices(len(C))] / self._root,
        ]
        if self.spans is not None and gaps is not None:
            of_u = self.spans.pull_back(gaps / self.setup.dt, of_gaps * self.setup.dt)
            parts.append(of_u / self._root)
        return value, np.concatenate(parts)


def states(seen: Seen, law: Law, *, covariances: int = 0) -> tuple[Array, Array, Array]:
    """Log-likelihoods (n,), smoothed means (n, T, d), and covariances (n, t, d, d) of the first t times."""
    table = law.table(seen.clock)
    n, T, d = seen.values.shape
    values, means, spreads = np.empty(n), np.empty((n, T, d)), np.empty((n, covariances, d, d))

    def of_block(rows: slice) -> None:
        fill_states(table, seen.rows(rows), values[rows], means[rows], spreads[rows])

    for _ in seen.blocks().map_rows(of_block, size=BLOCK):
        pass
    return values, means, spreads
