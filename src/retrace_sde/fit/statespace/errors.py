"""Standard errors of the state-space EM, from scores of trajectories simulated from the fit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from retrace_sde.fit.information import inverse
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.statespace.model import Stack, StateSpace, parts, portions
from retrace_sde.fit.statespace.per_trajectory import alone
from retrace_sde.fit.statespace.riccati import riccati, smooth
from retrace_sde.fit.statespace.steps import (
    Parameters,
    Setup,
    noise_gram,
    noise_grams,
    squared_noise,
)
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.sde import LinearSDE, Scheme, symmetric_root, van_loan

SCORES, FEWEST = 20, 4000
"""Simulated trajectories per parameter, and in all: errors good to a few per cent."""


def simulated_errors(
    stacks: list[Stack],
    setup: Setup,
    found: Parameters,
    sde: LinearSDE,
    scheme: Scheme,
    rng: np.random.Generator,
) -> StandardErrors:
    """From the information of the fitted model, `Σ_j E[score scoreᵀ]`, by simulating from it.

    The scores of n trajectories of the data have rank n, which is often below the number of parameters; of
    simulated ones, with the same missing entries, there can be as many as it takes. Of more patterns than
    that some stand for all: information is a sum over trajectories, so that a sample drawn without regard to
    the values estimates it without bias, and one pattern differs from another far less than one score's square
    from its mean. p₀ counts as known.
    """
    scores = Scores(setup, found, sde, scheme)
    return scores.errors(inverse(scores.information(stacks, rng)))


class Scores:
    """Derivatives of each trajectory's log-likelihood by the free entries of Θ, H and R."""

    def __init__(self, setup: Setup, found: Parameters, sde: LinearSDE, scheme: Scheme) -> None:
        self.setup, self.found = setup, found
        d = len(setup.free)
        self.lower = np.tril_indices(d)
        self.keep = np.r_[setup.free.ravel(), np.full(len(self.lower[0]), setup.H is None)]
        unknown = setup.noise_free
        noises = unknown.sum() if not setup.noise_tied else unknown.any()
        self.size = int(self.keep.sum() + noises)
        every = np.eye(len(self.keep)) if scheme == "euler" else _jacobian(setup, sde)
        self.jacobian = every[:, self.keep]
        self.weight, self.model = np.linalg.inv(found.H), found.model(setup.dt)

    def information(self, stacks: list[Stack], rng: np.random.Generator) -> Array:
        """`Σ_j E[score scoreᵀ]` by simulation."""
        share = max(SCORES * self.size, FEWEST) / sum(stack.rows.size for stack in stacks)
        information, total = np.zeros((self.size, self.size)), 0
        for stack in stacks:
            G, real = stack.rows.shape
            k = max(1, math.ceil(real * share))
            chosen = evenly(G, math.ceil(G * min(real * share, 1.0)))
            drawn = _simulate(stack.seen[:, chosen], k, self.model, rng)
            stands_for = G * real / (len(chosen) * k)
            for _, score in self._parts(drawn):
                information += score.T @ score * stands_for
                total += len(score)
        # the inverse of a mean over `total` draws is too large by this factor, on average
        return information / (1 - (self.size + 1) / total)

    def of(self, stacks: list[Stack]) -> Array:
        """The scores of the trajectories, (n, size)."""
        scores = np.empty((sum(stack.rows.size for stack in stacks), self.size))
        for stack in stacks:
            for part, score in self._parts(stack):
                scores[part.rows.ravel()] = score
        return scores

    def _parts(self, stack: Stack) -> Iterator[tuple[Stack, Array]]:
        (d, p), unknown = self.setup.free.shape, self.setup.noise_free
        rows, columns = self.lower
        double = np.where(rows == columns, 1.0, 2.0)
        variances = np.diag(self.found.R)[unknown]
        for part, gram, squares in _sums(stack, self.found, self.setup, self.model):
            each = part.rows.shape[1]
            steps = np.repeat(part.steps.sum(axis=0), each)[:, None, None]
            seen = np.repeat(part.seen.sum(axis=0), each, axis=0)[:, unknown]
            of_H = 0.5 * (self.weight @ gram[:, p:, p:] @ self.weight - steps * self.weight)
            of_theta = (self.weight @ gram[:, p:, :p]).reshape(-1, d * p)
            score = np.c_[of_theta, of_H[:, rows, columns] * double] @ self.jacobian
            of_R = 0.5 * (squares[:, unknown] / variances - seen) / variances
            if self.setup.noise_tied:
                of_R = of_R.sum(axis=1, keepdims=True)
            yield part, np.c_[score, of_R]

    def errors(self, inverse: Array) -> StandardErrors:
        """Square roots of the diagonal of the parameters' covariance, put where they belong; zero for what is known."""
        (d, p), keep, (rows, columns) = self.setup.free.shape, self.keep, self.lower
        known = int(keep.sum())
        covariance = np.zeros((len(keep), len(keep)))
        covariance[np.ix_(keep, keep)] = inverse[:known, :known]
        deviations = np.sqrt(np.diag(covariance))
        theta, H = deviations[: d * p].reshape(d, p), np.zeros((d, d))
        H[rows, columns] = H[columns, rows] = deviations[d * p :]
        equations = np.stack([covariance[k : k + p, k : k + p] for k in range(0, d * p, p)])
        return StandardErrors(theta[:, :d], H, theta[:, d] if p > d else None, equations)


def _sums(
    stack: Stack, found: Parameters, setup: Setup, model: StateSpace
) -> Iterator[tuple[Stack, Array, Array]]:
    """Portions of a stack; Gram matrices of (φ √dt, η / √dt) and squared noise of their trajectories, (m, …)."""
    T, _, k, d = stack.values.shape
    for portion in portions(stack, T * d * max(d, k)):
        lonely = alone(portion, model, n_jobs=setup.n_jobs)
        if lonely is not None:
            steps = np.repeat(portion.steps.sum(axis=0), k)
            yield portion, noise_gram(lonely, steps, found, setup.dt), lonely.squares
            continue
        gains = riccati(portion.seen, model)
        for part in parts(portion):
            means = smooth(part, gains, model)
            squares = squared_noise(part, gains, means).reshape(-1, d)
            yield part, noise_grams(part, gains, means, found, setup.dt), squares


def _simulate(seen: Mask, k: int, model: StateSpace, rng: np.random.Generator) -> Stack:
    """k new trajectories for each pattern (T, G, d), drawn from the model."""
    T, G, d = seen.shape
    step, y = model.transition, rng.standard_normal((T, G, k, d)) @ symmetric_root(model.noise)
    root = symmetric_root(step.covariance)
    x = model.initial.sample(G * k, rng).reshape(G, k, d)
    for t in range(T):
        y[t] += x
        x = x @ step.matrix.T + step.shift + rng.standard_normal((G, k, d)) @ root
    return Stack(y * seen[:, :, None], seen, np.arange(G), np.zeros((G, k), np.intp))


def _jacobian(setup: Setup, sde: LinearSDE) -> Array:
    """Derivatives of the exact step (Θ, lower H) in Euler's form by the SDE's (A, c) and lower H."""
    (d, p), dt = setup.free.shape, setup.dt
    lower = np.tril_indices(d)

    def step(theta: Array, H: Array) -> Array:
        # the offset is one more state, which never changes
        A, S = np.zeros((p, p)), np.zeros((p, p))
        A[:d], S[:d, :d] = theta, H
        F, Q = van_loan(A, S, dt)
        return np.r_[(F - np.eye(p))[:d].ravel(), Q[lower]] / dt

    theta, columns = np.c_[sde.drift, sde.offset][:, :p], []
    for unit in np.eye(d * p).reshape(-1, d, p):
        h = 1e-5 / dt * unit
        columns.append(
            (step(theta + h, sde.diffusion) - step(theta - h, sde.diffusion)) * dt / 2e-5
        )
    for i, j in zip(*lower, strict=True):
        unit = np.zeros((d, d))
        unit[i, j] = unit[j, i] = 1.0
        columns.append(step(theta, unit) * np.r_[np.zeros(d * p), np.ones(len(lower[0]))])
    return np.array(columns).T
