"""Scores of single trajectories in the state-space model whose steps differ, and the information in them.

By the chain rule from the smoother's derivatives by F, S and Q of each gap; the derivatives of these by (A, B), H and the
gaps themselves are central differences of the exact transitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.statespace.errors import FEWEST, SCORES
from retrace_sde.fit.statespace.irregular.em import BLOCK, Law, Seen
from retrace_sde.fit.statespace.irregular.kernels import fill_scores
from retrace_sde.fit.statespace.irregular.transitions import transitions
from retrace_sde.fit.statespace.steps import Setup
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.sde import symmetric_root


@dataclass(frozen=True, eq=False)
class TimedScores:
    """Derivatives of each trajectory's log-likelihood by (A, B), the lower half of H, free variances of R, and the
    logarithms of free gaps. p₀ counts as known.
    """

    setup: Setup
    law: Law
    gaps: Array
    spans: Spans | None = None

    @property
    def size(self) -> int:
        """How many parameters there are."""
        free = self.setup.noise_free
        noises = int(free.any()) if self.setup.noise_tied else int(free.sum())
        return self._inner + noises

    @property
    def _inner(self) -> int:
        d, p = self.setup.free.shape
        return d * p + d * (d + 1) // 2 + (0 if self.spans is None else len(self.gaps))

    @cached_property
    def _derivatives(self) -> tuple[Array, Array]:
        """Of (F, S), (K, s, d, p), and of Q, (K, s, d, d), by each parameter but the noise."""
        (d, p), theta, H, K = self.setup.free.shape, self.law.theta, self.law.H, len(self.gaps)
        of_F, of_Q = np.zeros((K, self._inner, d, p)), np.zeros((K, self._inner, d, d))
        euler = self.law.euler

        def between(
            high: tuple[Array, Array, Array], low: tuple[Array, Array, Array], k: int
        ) -> None:
            (F, S, Q), (f, s, q) = (transitions(*each, euler=euler) for each in (high, low))
            of_F[:, k] = np.concatenate([F - f, S - s], axis=2)
            of_Q[:, k] = Q - q

        k = 0
        for unit in np.eye(d * p).reshape(-1, d, p):
            h = 1e-5 / self.gaps.max()
            between((theta + h * unit, H, self.gaps), (theta - h * unit, H, self.gaps), k)
            of_F[:, k] /= 2 * h
            of_Q[:, k] /= 2 * h
            k += 1
        for i, j in zip(*np.tril_indices(d), strict=True):
            unit = np.zeros((d, d))
            unit[i, j] = unit[j, i] = 1.0
            of_Q[:, k] = transitions(
                theta, unit, self.gaps, euler=euler
            ).covariance  # Q is linear in H
            k += 1
        if self.spans is not None:
            h = 1e-5
            high, low = (transitions(theta, H, self.gaps * np.exp(s * h)) for s in (1, -1))
            for g in range(K):
                of_F[g, k + g, :, :d] = (high.matrix - low.matrix)[g] / (2 * h)
                of_F[g, k + g, :, d:] = (high.inputs - low.inputs)[g] / (2 * h)
                of_Q[g, k + g] = (high.covariance - low.covariance)[g] / (2 * h)
        return of_F, of_Q

    def of(self, seen: Seen) -> Array:
        """The scores of trajectories along their times, (n, size)."""
        n, _, d = seen.values.shape
        table, (of_F, of_Q) = self.law.table(seen.clock), self._derivatives
        scores, squares = np.zeros((n, self._inner)), np.zeros((n, d))

        def of_block(rows: slice) -> None:
            fill_scores(table, seen.rows(rows), of_F, of_Q, scores[rows], squares[rows])

        for _ in seen.blocks().map_rows(of_block, size=BLOCK):
            pass
        unknown = self.setup.noise_free
        if not unknown.any():
            return scores
        variances, counts = np.diag(self.law.R)[unknown], seen.seen.sum(axis=1)[:, unknown]
        of_R = 0.5 * (squares[:, unknown] / variances - counts) / variances
        if self.setup.noise_tied:
            of_R = of_R.sum(axis=1, keepdims=True)
        return np.concatenate([scores, of_R], axis=1)

    def information(self, seen: Seen, rng: np.random.Generator) -> Array:
        """`Σ_j E[score scoreᵀ]`, by simulating trajectories with the same gaps, inputs and missing entries."""
        n = len(seen.values)
        total = max(SCORES * self.size, FEWEST)
        rows = np.resize(np.arange(n) if n <= total else evenly(n, total), max(total, n))
        score = self.of(self._simulated(seen, rows, rng))
        # the inverse of a mean over so many draws is too large by this factor, on average
        found: Array = score.T @ score * n / len(rows) / (1 - (self.size + 1) / len(rows))
        return found

    def observed(self, seen: Seen) -> Array:
        """The observed information: central differences of the total score."""
        x, rows = self._vector(), []
        for j, h in enumerate(1e-4 * np.maximum(1.0, np.abs(x))):
            e = np.zeros_like(x)
            e[j] = h
            high, low = (self._at(x + s * e).of(seen).sum(axis=0) for s in (1, -1))
            rows.append((low - high) / (2 * h))
        J = np.array(rows)
        return (J + J.T) / 2

    def _vector(self) -> Array:
        d = len(self.law.H)
        parts = [self.law.theta.ravel(), self.law.H[np.tril_indices(d)]]
        if self.spans is not None:
            parts.append(np.log(self.gaps))
        variances = np.diag(self.law.R)[self.setup.noise_free]
        return np.concatenate([*parts, variances[:1] if self.setup.noise_tied else variances])

    def _at(self, x: Array) -> TimedScores:
        """The same at other parameters."""
        (d, p), law = self.setup.free.shape, self.law
        H, R, lower = np.zeros((d, d)), law.R.copy(), np.tril_indices(d)
        H[lower] = x[d * p : d * p + len(lower[0])]
        H = H + np.tril(H, -1).T
        R[self.setup.noise_free, self.setup.noise_free] = x[self._inner :]
        gaps = self.gaps
        if self.spans is not None:
            gaps = np.exp(x[self._inner - len(self.gaps) : self._inner])
        new = replace(law, theta=x[: d * p].reshape(d, p), H=H, R=R)
        new = new if law.gaps is None else replace(new, gaps=gaps)
        return replace(self, law=new, gaps=gaps)

    def _simulated(self, seen: Seen, rows: Indices, rng: np.random.Generator) -> Seen:
        """New trajectories that stand for those of `rows`."""
        clock = seen.clock.some(rows)
        drawn = replace(seen, clock=clock, seen=seen.seen[rows], inputs=seen.inputs[rows])
        F, S, Q = self.law.steps(clock)
        roots = np.linalg.cholesky(Q)
        m, T, d = len(rows), *seen.values.shape[1:]
        index = np.broadcast_to(clock.index, (m, T - 1))
        y = rng.standard_normal((m, T, d)) @ symmetric_root(self.law.R)
        x = self.law.initial.sample(m, rng)
        for t in range(T):
            y[:, t] += x
            if t + 1 < T:
                k = index[:, t]
                x = np.einsum("nij,nj->ni", F[k], x)
                x += np.einsum("nij,nj->ni", S[k], drawn.inputs[:, t])
                x += np.einsum("nij,nj->ni", roots[k], rng.standard_normal((m, d)))
        return replace(drawn, values=np.where(drawn.seen, y, 0.0))

    def covariance(self, information: Array) -> Array:
        """The inverse; gaps that sum to known lengths have as many directions less."""
        J = np.eye(self.size)
        if self.spans is not None:
            at = slice(self._inner - len(self.gaps), self._inner)
            J[at, at] = self.spans.jacobian(self.gaps / self.setup.dt)
        inside = J.T @ information @ J
        unit = 1 / np.sqrt(np.maximum(np.diag(inside), 1e-300))
        scaled = inside * np.outer(unit, unit)
        found: Array = (
            J @ (np.linalg.pinv(scaled, rcond=1e-9, hermitian=True) * np.outer(unit, unit)) @ J.T
        )
        return found

    def errors(self, covariance: Array) -> StandardErrors:
        """Standard errors of (A, B) and H from the covariance of the parameters."""
        d, p = self.setup.free.shape
        deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        H = np.zeros((d, d))
        i, j = np.tril_indices(d)
        H[i, j] = H[j, i] = deviations[d * p : d * p + len(i)]
        equations = np.stack([covariance[k : k + p, k : k + p] for k in range(0, d * p, p)])
        return StandardErrors(deviations[: d * p].reshape(d, p), H, covariances=equations)

    def log_gap_errors(self, covariance: Array) -> Array:
        """Standard errors of the logarithms of free gaps."""
        at = slice(self._inner - len(self.gaps), self._inner)
        return np.sqrt(np.maximum(np.diag(covariance)[at], 0.0))
