"""Scores of single trajectories in the state-space model, and the information in them: the source of all its standard errors.

By the chain rule from the smoother's derivatives by F, S and Q of each class of steps; the derivatives of these by (A, B), H and the
gaps themselves are central differences of the transitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.fit.information import observed_information
from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.regression import StandardErrors, Through
from retrace_sde.fit.statespace.model import StepModel
from retrace_sde.fit.statespace.observations import Observations, Stack
from retrace_sde.fit.statespace.parameters import Parameters, Setup
from retrace_sde.fit.statespace.smoother import step_counts, step_sums
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.sde import symmetric_root

SIMULATED_PER_PARAMETER, MIN_SIMULATED = 20, 4000
"""Simulated trajectories per parameter, and in all: errors good to a few per cent."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Derivatives of each trajectory's log-likelihood by the free entries of (A, B), the lower half of H, the logarithms of free gaps,
    and free variances of R. p₀ counts as known.

    `gaps` (K,): of the classes of steps; `spans`: they are free, in these stretches.
    """

    setup: Setup
    law: Parameters
    gaps: Array
    spans: Spans | None = None

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return self._inner + self.setup.n_noises

    @property
    def _inner(self) -> int:
        """All but the noises."""
        return int(self._keep.sum()) + (0 if self.spans is None else len(self.gaps))

    @cached_property
    def _keep(self) -> Mask:
        """Which entries of (A, B), and of the lower half of H, are free."""
        setup, d = self.setup, len(self.setup.free)
        return np.r_[setup.free.ravel(), np.full(d * (d + 1) // 2, setup.H is None)]

    @cached_property
    def derivatives(self) -> tuple[Array, Array]:
        """Of (F, S), (K, s, d, p), and of Q, (K, s, d, d), by each parameter but the noise."""
        by, (d, p) = replace(self.law, gaps=None), self.setup.free.shape
        found = []
        h = 1e-5 / self.gaps.max()
        for unit in np.eye(d * p).reshape(-1, d, p):
            moved = [replace(by, theta=by.theta + s * h * unit) for s in (1, -1)]
            found.append(_slopes([law.steps(self.gaps) for law in moved], h))
        for i, j in zip(*np.tril_indices(d), strict=True):
            H = np.zeros((d, d))
            H[i, j] = H[j, i] = 1.0
            Q = replace(by, H=H).steps(self.gaps).covariance  # Q is linear in H
            found.append((np.zeros((len(Q), d, p)), Q))
        found = [each for each, keep in zip(found, self._keep, strict=True) if keep]
        if self.spans is not None:
            h, only = 1e-5, np.eye(len(self.gaps))[:, :, None, None]
            of_F, of_Q = _slopes([by.steps(self.gaps * np.exp(s * h)) for s in (1, -1)], h)
            found += list(zip(only * of_F, only * of_Q, strict=True))
        of_F, of_Q = (np.stack(each, axis=1) for each in zip(*found, strict=True))
        return of_F, of_Q

    def of(self, seen: Observations) -> Array:
        """The scores of the trajectories, (n, size)."""
        scores = np.zeros((len(seen.values), self.size))
        model = self.law.steps(seen.classes.gaps)
        for stack in seen.apart if model.diagonal else seen.stacks:
            for rows, score in self._of_stack(stack, model, seen.n_jobs):
                scores[rows.ravel()] = score
        return scores

    def _of_stack(
        self, stack: Stack, model: StepModel, n_jobs: int | None
    ) -> list[tuple[Indices, Array]]:
        """Which trajectories, and their scores, portion by portion."""
        of_F, of_Q = self.derivatives
        p, K, weight = self.setup.free.shape[1], len(model.matrix), np.linalg.inv(model.covariance)
        found = []
        for part in step_sums(stack, model, total=False, n_jobs=n_jobs):
            k = part.stack.rows.shape[1]
            counts = np.repeat(step_counts(part.stack, K), k, axis=0)[:, :, None, None]
            to_F = weight @ part.grams[..., p:, :p]
            to_Q = 0.5 * (weight @ part.grams[..., p:, p:] @ weight - counts * weight)
            score = np.tensordot(to_F, of_F, axes=([1, 2, 3], [0, 2, 3]))
            score += np.tensordot(to_Q, of_Q, axes=([1, 2, 3], [0, 2, 3]))
            entries = np.repeat(part.stack.seen.sum(axis=0), k, axis=0)
            of_R = self.setup.noise_slopes(self.law.R, part.squares, entries)
            found.append((part.stack.rows, np.c_[score, of_R]))
        return found

    def information(self, seen: Observations, rng: np.random.Generator) -> Array:
        """`Σ_j E[score scoreᵀ]`, by simulating trajectories with the same gaps, inputs and missing entries.

        The scores of n trajectories of the data have rank n, which is often below the number of parameters; of simulated ones there can
        be as many as it takes. Of more patterns than that some stand for all: information is a sum over trajectories, so that a sample
        drawn without regard to the values estimates it without bias, and one pattern differs from another far less than one score's
        square from its mean.
        """
        model = self.law.steps(seen.classes.gaps)
        share = max(SIMULATED_PER_PARAMETER * self.size, MIN_SIMULATED) / len(seen.values)
        information, total = np.zeros((self.size, self.size)), 0
        for stack in seen.stacks:
            G, real = stack.rows.shape
            k = max(1, math.ceil(real * share))
            chosen = evenly(G, math.ceil(G * min(real * share, 1.0)))
            drawn = simulate(stack.some_patterns(chosen), k, model, rng)
            stands_for = G * real / (len(chosen) * k)
            for _, score in self._of_stack(drawn, model, seen.n_jobs):
                information += score.T @ score * stands_for
                total += len(score)
        # the inverse of a mean over `total` draws is too large by this factor, on average
        return information / (1 - (self.size + 1) / total)

    def observed(self, seen: Observations) -> Array:
        """The observed information: central differences of the total score."""
        x = self.vector()
        steps = 1e-4 * np.maximum(1.0, np.abs(x))
        return observed_information(lambda y: self.at(y).of(seen).sum(axis=0), x, steps)

    def vector(self) -> Array:
        """The parameters that scores are derivatives by."""
        d = len(self.law.H)
        every = np.r_[self.law.theta.ravel(), self.law.H[np.tril_indices(d)]]
        parts = [every[self._keep]]
        if self.spans is not None:
            parts.append(np.log(self.gaps))
        return np.concatenate([*parts, self.setup.noises(np.diag(self.law.R))])

    def at(self, x: Array) -> Scores:
        """The same at other parameters."""
        (d, p), law, keep = self.setup.free.shape, self.law, self._keep
        lower = np.tril_indices(d)
        every = np.r_[law.theta.ravel(), law.H[lower]]
        every[keep] = x[: int(keep.sum())]
        H, R = np.zeros((d, d)), self.setup.with_noises(law.R, x[self._inner :])
        H[lower] = every[d * p :]
        H = H + np.tril(H, -1).T
        gaps = self.gaps
        if self.spans is not None:
            gaps = np.exp(x[self._inner - len(self.gaps) : self._inner])
        new = replace(law, theta=every[: d * p].reshape(d, p), H=H, R=R)
        new = new if law.gaps is None else replace(new, gaps=gaps)
        return replace(self, law=new, gaps=gaps)

    def covariance(self, information: Array) -> Array:
        """The inverse; gaps that sum to known lengths have as many directions less."""
        J = np.eye(self.size)
        if self.spans is not None:
            at = slice(self._inner - len(self.gaps), self._inner)
            J[at, at] = self.spans.jacobian(self.gaps / self.setup.dt)
        inside = J.T @ information @ J
        unit = 1 / np.sqrt(np.maximum(np.diag(inside), 1e-300))
        scaled = inside * np.outer(unit, unit)
        return J @ (np.linalg.pinv(scaled, rcond=1e-9, hermitian=True) * np.outer(unit, unit)) @ J.T

    def errors(self, covariance: Array, through: Through | None = None) -> StandardErrors:
        """Standard errors of (A, B) and H, or of what moves with them, from the covariance of the parameters; zero for what is known."""
        (d, p), keep = self.setup.free.shape, self._keep
        every, free = np.zeros((len(keep), len(keep))), int(keep.sum())
        every[np.ix_(keep, keep)] = covariance[:free, :free]
        np.fill_diagonal(every, np.maximum(np.diag(every), 0.0))
        return StandardErrors.of_parameters(every, d, p, through)

    def log_gap_errors(self, covariance: Array) -> Array:
        """Standard errors of the logarithms of free gaps."""
        at = slice(self._inner - len(self.gaps), self._inner)
        return np.sqrt(np.maximum(np.diag(covariance)[at], 0.0))


def _slopes(ends: list[StepModel], h: float) -> tuple[Array, Array]:
    """Central differences of (F, S) and of Q."""
    high, low = ends
    of_F, of_Q = high.coefficients - low.coefficients, high.covariance - low.covariance
    return of_F / (2 * h), of_Q / (2 * h)


def simulate(stack: Stack, k: int, model: StepModel, rng: np.random.Generator) -> Stack:
    """k new trajectories for each pattern, drawn from the model, under the inputs of those they stand for."""
    T, G, real, d = stack.values.shape
    one = len(model.matrix) == 1
    roots = symmetric_root(model.covariance)
    y = rng.standard_normal((T, G, k, d)) @ symmetric_root(model.noise)
    x = model.initial.sample(G * k, rng).reshape(G, k, d)
    v = stack.inputs
    v = np.ones((T, 1, 1, model.inputs.shape[2])) if v is None else v[:, :, np.arange(k) % real]
    for t in range(T):
        y[t] += x
        c = 0 if one else stack.classes[min(t, T - 2)]
        F, S, root = (each[c] for each in (model.matrix, model.inputs, roots))
        noise = rng.standard_normal((G, k, d)) @ root
        x = x @ F.swapaxes(-1, -2) + v[t] @ S.swapaxes(-1, -2) + noise
    rows = np.zeros((G, k), np.intp)
    inputs = None if stack.inputs is None else v
    return replace(stack, values=y * stack.seen[:, :, None], inputs=inputs, rows=rows)
