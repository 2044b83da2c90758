"""The jackknife of the mixed model: what leaving out a subject, or a group of subjects, does to its coefficients.

All parameters η = (Θ, Γ, H, Ω), and those of the treatment's model where there is one, solve `Σ_j g_j(η) = 0`, g_j being a
subject's score (by Fisher's identity, the complete data's score averaged over its deviation). One Newton step from η̂ without group g,

    η_(−g) − η̂ ≈ −(B − B_g)⁻¹ g_g,      B = −Σ_j ∂g_j/∂η,

is the leave-one-out estimate up to second order, for the work of one Jacobian; then

    Cov η̂ = (G − 1)/G Σ_g (η_(−g) − η̄)(η_(−g) − η̄)ᵀ.

B is the full information: Θ trades off with Ω and H, for a regressor is the state itself. Inverting the block of Θ alone gave errors
that were too small by a fifth. Where orders are drawn, B is less by what they hide, the variance of the scores over the draws (Louis 1982).
A variance of levels that is estimated as zero is held there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retrace_sde.effects.subject_model import (
    Rows,
    SubjectModel,
    augmented,
    treatment_offsets,
)
from retrace_sde.fit.subjects import SubjectFit
from retrace_sde.io.arrays import Array, Indices

SCORE_STEP = 1e-4
"""Step of the numerical derivatives, in units in which parameters are of size one."""

NEGLIGIBLE_VARIANCE = 1e-4
"""Variance of levels, relative to that of one subject's own estimate of its level, below which it counts as zero."""

MIN_DEVIATION_VARIANCE = 1e-9
"""Least variance of a deviation, in units of its estimate."""

MAX_SOLVED = 50_000
"""Groups times subjects up to which each group's equations are solved; beyond, Newton's first step is as good."""

BROYDEN_STEPS, LONGEST_STEP, STEP_TOLERANCE = 40, 0.3, 1e-6
"""Broyden's steps at most, the longest, and the step at which they end; parameters are of size one."""

MAX_CHANGE = 3.0
"""Change of parameters of size one (2: a variance becomes zero) beyond which the Jacobian without a group is nearly singular, as where a
variance of levels reaches zero without it. That of all is then used: without this, 1 of 60 randomised cohorts had errors ten times too large."""

LARGEST_JACOBIANS = 50_000_000
"""Numbers in the Jacobians of all groups, at most: beyond, so many groups that none has leverage."""


@dataclass(frozen=True, eq=False)
class _Block:
    """One mixed model in units in which its parameters are of size one, and where they begin in η.

    Features and steps are divided by `size`; H = L (I + D/2)² Lᵀ; deviations are E a, a ~ N(0, (I + D'/2)²), E (d s, r).
    """

    size: Array
    theta: Array
    L: Array
    E: Array
    columns: tuple[int, ...]
    begin: int

    @classmethod
    def of(cls, fit: SubjectFit, grams: Array, count: float, begin: int) -> _Block:
        p = fit.coefficients.shape[1]
        size = np.sqrt(grams.sum(axis=0).diagonal() / count)
        size = np.where(size > 0, size, 1.0)
        ratio = size[p:, None] / size[None, :p]
        H = fit.diffusion / np.outer(size[p:], size[p:])
        own = ratio[:, list(fit.columns)].ravel()
        omega = fit.between / np.outer(own, own)
        E = np.zeros((len(omega), 0))
        if len(omega):
            values, vectors = np.linalg.eigh(omega)
            # One subject tells its level up to about the largest H over its mean Σ φ_S².
            told = np.linalg.eigvalsh(H)[-1] * len(grams) / count
            alive = values > NEGLIGIBLE_VARIANCE * told
            E = vectors[:, alive] * np.sqrt(values[alive])
        return cls(
            size, fit.coefficients / ratio, np.linalg.cholesky(H), E, tuple(fit.columns), begin
        )

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Of Θ, D and D'."""
        d, r = len(self.theta), self.E.shape[1]
        return self.theta.size, d * (d + 1) // 2, r * (r + 1) // 2

    @property
    def end(self) -> int:
        return self.begin + sum(self.lengths)

    @property
    def _within(self) -> Array:
        return np.asarray(np.linalg.inv(self.L).T)

    def coefficients(self, eta: Array) -> Array:
        """Θ (…, d, p) in the user's units, of η (…, q)."""
        d, p = self.theta.shape
        change = eta[..., self.begin : self.begin + d * p].reshape(*eta.shape[:-1], d, p)
        return np.asarray((self.theta + change) * (self.size[p:, None] / self.size[None, :p]))

    def scores(self, grams: Array, steps: Array, eta: Array) -> Array:
        """Each subject's score (n, q of this block) at a change η (q,) of the parameters."""
        S, (d, p), n = list(self.columns), self.theta.shape, len(grams)
        a, b, _ = np.cumsum(self.lengths) + self.begin
        G = grams / np.outer(self.size, self.size)
        theta = self.theta + eta[self.begin : a].reshape(d, p)
        half = np.eye(d) + _symmetric(eta[a:b], d) / 2
        H = self.L @ half @ half @ self.L.T
        P, r = np.linalg.inv(H), self.E.shape[1]
        root = np.eye(r) + _symmetric(eta[b : self.end], r) / 2
        variance = root @ root + MIN_DEVIATION_VARIANCE * np.eye(r)
        inverse = np.linalg.inv(variance)
        own = np.einsum("ef,nab->neafb", P, G[:, S][:, :, S]).reshape(n, d * len(S), d * len(S))
        spread = np.linalg.inv(self.E.T @ own @ self.E + inverse)
        left = G[:, S, p:] - G[:, S, :p] @ theta.T
        score = np.einsum("ef,naf->nea", P, left).reshape(n, -1)
        mean = (spread @ (score @ self.E)[:, :, None])[:, :, 0]
        each = np.repeat(theta[None], n, axis=0)
        each[:, :, S] += (mean @ self.E.T).reshape(n, d, len(S))
        by_theta = P @ (G[:, p:, :p] - each @ G[:, :p, :p])
        cross = each @ G[:, :p, p:]
        E = G[:, p:, p:] - cross - cross.transpose(0, 2, 1)
        E = E + each @ G[:, :p, :p] @ each.transpose(0, 2, 1)
        whole = (self.E @ spread @ self.E.T).reshape(n, d, len(S), d, len(S))
        E = E + np.einsum("neafb,nab->nef", whole, G[:, S][:, :, S])
        by_H = self._within.T @ (E - steps[:, None, None] * H) @ self._within
        second = mean[:, :, None] * mean[:, None, :] + spread
        by_omega = second - variance
        parts = [by_theta.reshape(n, -1), _lower(by_H), _lower(by_omega)]
        return np.concatenate(parts, axis=1)


def _symmetric(lower: Array, d: int) -> Array:
    found = np.zeros((d, d))
    found[np.tril_indices(d)] = lower
    return found + np.tril(found, -1).T


def _lower(matrices: Array) -> Array:
    """Lower halves, (n, …), as derivatives by them: an entry off the diagonal stands for two."""
    rows, columns = np.tril_indices(matrices.shape[1])
    return np.asarray(matrices[:, rows, columns] * np.where(rows == columns, 0.5, 1.0))


@dataclass(frozen=True, eq=False)
class Jackknife:
    """Θ and Γ without each of G groups, less the estimate: `changes` (G, d, P)."""

    changes: Array

    @property
    def covariance(self) -> Array:
        """Of vec (Θ, Γ), equations first."""
        G = len(self.changes)
        flat = self.changes.reshape(G, -1)
        flat = flat - flat.mean(axis=0)
        return np.asarray((G - 1) / G * flat.T @ flat)


@dataclass(frozen=True, eq=False)
class _Equations:
    """Scores of G groups at the estimate, `at` (G, q), the information `bread` B, and each group's share of it, `slopes` (G or 1, q, q)."""

    at: Array
    bread: Array
    slopes: Array

    @classmethod
    def of(cls, scores: Callable[[Array, Rows], Array], rows: Rows, codes: Indices) -> _Equations:
        q, G = scores(np.zeros(0), rows).shape[1], int(codes.max()) + 1

        def by_group(each: Array) -> Array:
            found = np.zeros((G, *each.shape[1:]))
            np.add.at(found, codes, each)
            return found

        slopes = np.empty((G, q, q))
        for k in range(q):
            eta = np.zeros(q)
            eta[k] = SCORE_STEP
            slopes[:, :, k] = by_group(scores(-eta, rows) - scores(eta, rows)) / (2 * SCORE_STEP)
        bread = slopes.sum(axis=0)
        if G * q * q > LARGEST_JACOBIANS:
            slopes = np.zeros((1, q, q))
        at = by_group(scores(np.zeros(q), rows))
        if len(rows.grams) > 1:
            drawn = np.stack([scores(np.zeros(q), rows.draw(k)) for k in range(len(rows.grams))])
            drawn = drawn - drawn.mean(axis=0)
            hidden = np.einsum("kni,knj->ij", drawn, drawn) / (len(drawn) - 1)
            unit = 1 / np.sqrt(np.abs(np.diag(bread)))
            least = np.linalg.eigvals((bread - hidden) * np.outer(unit, unit)).real.min()
            # Too few draws can make the difference indefinite; the scores' own spread is then the information.
            bread = bread - hidden if least > 1e-6 else at.T @ at
        return cls(at, bread, slopes)


def jackknife(model: SubjectModel, rows: Rows, groups: Indices | None = None) -> Jackknife:
    """Of a fit to these rows; `groups` (n,) numbers groups of subjects, which are left out together."""
    scores, process = _estimating(model, rows)
    n = len(rows.steps)
    codes = np.arange(n) if groups is None else groups
    found = _Equations.of(scores, rows, codes)
    at, bread, slopes = found.at, found.bread, found.slopes
    G, q = at.shape
    changes = np.asarray(-np.linalg.solve(bread - slopes, at[:, :, None])[:, :, 0], dtype=float)
    far = np.abs(changes).max(axis=1) > MAX_CHANGE
    changes[far] = -np.linalg.solve(bread, at[far].T).T
    if len(rows.grams) == 1 and G * n <= MAX_SOLVED:
        for g in range(G):
            others = rows.some(np.flatnonzero(codes != g))
            starts = [(changes[g], bread - slopes[g]), (np.zeros(q), bread)]
            tried = (_polished(*start, scores, others) for start in starts)
            changes[g] = next((each for each in tried if each is not None), changes[g])
    return Jackknife(process.coefficients(changes) - process.coefficients(np.zeros(q)))


def adjusted_scores(
    model: SubjectModel, rows: Rows, groups: Indices | None, tested: Sequence[int]
) -> Array:
    """Scores (G, d m) of the m columns `tested` of (Θ, Γ) at a model in which these are zero, and all else is estimated.

    What leaving the rest to be estimated takes from them is taken: `g_γ − B_γη B_ηη⁻¹ g_η`.
    """
    scores, process = _estimating(model, rows)
    codes = np.arange(len(rows.steps)) if groups is None else groups
    found = _Equations.of(scores, rows, codes)
    d, P = process.theta.shape
    own = np.array([e * P + column for e in range(d) for column in tested])
    rest = np.setdiff1d(np.arange(found.at.shape[1]), own)
    B = found.bread
    share = np.linalg.solve(B[np.ix_(rest, rest)].T, B[np.ix_(own, rest)].T)
    return np.asarray(found.at[:, own] - found.at[:, rest] @ share)


def _polished(
    first: Array, bread: Array, scores: Callable[[Array, Rows], Array], others: Rows
) -> Array | None:
    """The solution without a group by Broyden's method; None where that does not converge, or goes far."""
    inverse, eta, value = np.linalg.inv(bread), first, scores(first, others).sum(axis=0)
    for _ in range(BROYDEN_STEPS):
        move = inverse @ value
        size = float(np.abs(move).max())
        if size < STEP_TOLERANCE:
            return eta if np.abs(eta).max() <= MAX_CHANGE else None
        move = move / max(size / LONGEST_STEP, 1.0)
        eta, before = eta + move, value
        value = scores(eta, others).sum(axis=0)
        if not np.isfinite(value).all():
            return None
        turned = inverse @ (before - value)
        scale = float(move @ turned)
        if scale == 0:
            return None
        inverse = inverse + np.outer(move - turned, move @ inverse) / scale
    return None


def _estimating(model: SubjectModel, rows: Rows) -> tuple[Callable[[Array, Rows], Array], _Block]:
    """g_j at a change η of all parameters ((0,): none), (n, q), and the block of the process."""
    count = float(rows.steps.sum())
    process = _Block.of(model.whole, model.augmented(rows).mean(axis=0), count, 0)
    p = model.base.coefficients.shape[1]
    d, offsets, columns = len(process.theta), model.offsets, model.base.columns
    if model.treatment is None or offsets is None:

        def alone(eta: Array, rows: Rows) -> Array:
            eta = eta if len(eta) else np.zeros(process.end)
            return process.scores(model.augmented(rows).mean(axis=0), rows.steps, eta)

        return alone, process

    v = treatment_offsets(rows, model.whole.coefficients[:, :p], columns, offsets)
    grams = augmented(rows.policy, v, (0,), 1 + d).mean(axis=0)
    treatment = _Block.of(model.treatment, grams, count, process.end)

    def both(eta: Array, rows: Rows) -> Array:
        eta = eta if len(eta) else np.zeros(treatment.end)
        slope = treatment.coefficients(eta)[:, 1 : 1 + d]
        w = offsets.values(rows, slope)
        v = treatment_offsets(rows, process.coefficients(eta)[:, :p], columns, offsets)
        steps = augmented(rows.grams, w, columns, p).mean(axis=0)
        policy = augmented(rows.policy, v, (0,), 1 + d).mean(axis=0)
        parts = process.scores(steps, rows.steps, eta), treatment.scores(policy, rows.steps, eta)
        return np.concatenate(parts, axis=1)

    return both, process
