"""Random intercepts: one for each subject, related to its first state.

    dX = (A x + c_j) dt + G dW,      c_j | x₀ ~ N(μ + Γ x₀, Ω).

One drift for all takes the differences between subjects for persistence: A shrinks towards zero, the more the wider
the levels. The intercepts must be allowed to depend on the first state, since subjects start near their own levels.

With residuals `e_i = Δx_i − (A x_i + μ + Γ x₀) g_i` of Euler's steps over gaps g_i, and τ = Σ g_i, an orthogonal turn of
the steps' `e_i/√g_i` sets apart one of them, `Σ e_i/√τ ~ N(0, H + τ Ω)`, from the others, ~ N(0, H). So the likelihood
is a sum over *strata*, all steps but one (τ = 0) and the one of each total time τ,

    Σ_s −½ n_s log|H + τ_s Ω| − ½ tr (H + τ_s Ω)⁻¹ E_s,

with E_s the residuals' squares, which follow from second moments. In coordinates in which H = I and Ω = diag(w) each
equation has a weighted regression of its own, which gives A, μ and Γ for any (H, Ω); those are found by quasi-Newton steps.

The limit: over a total time that is short beside that of mean reversion, a level and slow mean reversion look alike.
The first states are given: their law (`start_law`) is added by whoever compares likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve_triangular

from retrace_sde.fit.information import lbfgs, lower_half
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import parameters
from retrace_sde.fit.scores import MIN_OTHERS_SHARE
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.clock import Gaps

LEVEL_ALTERNATIONS = 5
"""Closed-form alternations between coefficients and variances, from each start, before quasi-Newton steps."""

COMMON_START_SPREAD = 1e-9
"""Standard deviation of first states, relative to their size, up to which they count as one point."""

INDEPENDENT_SHARE = 1e-6
"""Share of its standard deviation that a first state must keep, given those before it, to have its own slope."""

ZERO_VARIANCE = 1e-4
"""τ Ω, in units of H, below which a variance of random intercepts counts as zero."""

SHORT = 0.5
"""Total time, in those of the slowest mean reversion, below which levels and mean reversion look alike."""

AVOID_BOUNDARY = 1.0
"""Weight of log|Ω|/2 where the likelihood has its maximum at a singular Ω that is not zero, over a short total time (Chung et al. 2015: the mode under a Wishart prior of
d + 2 degrees of freedom). Levels that vary in every variable looked there as if they did in one alone, and A took the place of the
rest: over a total time of .4 (n = 60, T = 20, d = 2, sd 1) in half of the panels, whose errors were half of the true ones."""


@dataclass(frozen=True, eq=False)
class Strata:
    """Second moments (S, p + d, p + d) of regressors ψ√g and residuals, for times τ (S,), the first of them 0.

    `counts` (S,) are how many rows are behind each.
    """

    times: Array
    counts: Array
    grams: Array

    def moved(self, change: Array) -> Strata:
        """The strata of the rows `z @ change`."""
        return Strata(self.times, self.counts, change.T @ self.grams @ change)


@dataclass(frozen=True, eq=False)
class RandomIntercepts:
    """Random intercepts by maximum likelihood along an order, `c_j | x₀ ~ N(mean + slope x₀, between)`.

    `coefficients` (d, p) are (A, c̄, B) of the average subject, `diffusion` H, `between` Ω: what of the intercepts the starts do
    not explain. `n_extra`: parameters that subjects who are alike do not have, Γ and Ω. `log_likelihoods` (n,): of each
    trajectory. `effects` (n, d) are the intercepts c_j expected from all of a subject's steps, `effect_errors` their standard
    errors given the parameters.
    """

    coefficients: Array
    diffusion: Array
    mean: Array
    slope: Array
    between: Array
    n_extra: int
    log_likelihoods: Array
    effects: Array
    effect_errors: Array
    converged: bool

    @property
    def drift(self) -> Array:
        """A (d, d)."""
        return self.coefficients[:, : len(self.diffusion)]

    @property
    def average(self) -> Array:
        """The average intercept c̄ (d,)."""
        return self.coefficients[:, len(self.diffusion)]

    @property
    def log_likelihood(self) -> float:
        return float(self.log_likelihoods.sum())

    @cached_property
    def shift(self) -> Array:
        """A⁻¹, by which `x + A⁻¹ (c_j − c̄)` of all subjects follow one SDE."""
        return np.asarray(np.linalg.pinv(self.drift, rcond=1e-6))

    def apart(self, intercepts: Array) -> Array:
        """What moves subjects with these intercepts to where they are alike, (n, d)."""
        return np.asarray((intercepts - self.average) @ self.shift.T)

    def drawn(self, rng: np.random.Generator) -> Array:
        """Intercepts (n, d) drawn given each subject's steps: residuals from these are as independent as the noise is."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LevelFit(RandomIntercepts):
    """Random intercepts where states are observed; likelihoods are given the first states.

    `B` (d, p) are (A, c̄, Γ) for starts about their centre; Γ has a column for each variable whose first values can be told
    apart in their effect (none with a common start), and `slope` is zero elsewhere. `avoided`: how many times ½ log|Ω| was
    added to keep Ω from being singular.
    """

    B: Array
    rows: LevelRows
    avoided: float = 0.0

    def drawn(self, rng: np.random.Generator) -> Array:
        w, U = eigh(self.between, self.diffusion)
        w = np.maximum(w, 0.0)
        spread = np.sqrt(w / (1 + self.rows.times[:, None] * w))
        noise = spread * rng.standard_normal(self.effects.shape)
        return self.effects + noise @ (self.diffusion @ U).T


def fit_levels(data: Data, order: Indices, dt: float | Array | Gaps) -> LevelFit | None:
    """Levels by maximum likelihood along an order; `dt`: one step, or the gaps (T − 1,) or (n, T − 1).

    None where there are too few subjects, or steps of each, to tell levels at all.
    """
    n, _, d = data.shape
    if n <= 2 * d + 2 or data.lengths.steps.steps.total <= 2 * d:
        return None
    rows = LevelRows.of(data, order, Gaps.of(dt, data.lengths))
    p, count = rows.n_features, float(rows.strata.counts.sum())
    # In units in which regressors are orthogonal and pooled residuals white, scale and rounding do not matter.
    factor = Moments.from_weights(rows.strata.grams.sum(axis=0), count, p).factor / count**0.5
    of_psi, of_e = factor[:p, :p], factor[p:, p:]
    change = np.zeros_like(factor)
    change[:p, :p] = solve_triangular(of_psi, np.eye(p))
    change[p:, p:] = solve_triangular(of_e, np.eye(d))
    strata = rows.strata.moved(change)

    def fitted(avoid: float = 0.0) -> LevelFit:
        point, converged = _maximum(strata, p, avoid)
        B = rows.pooled + of_e.T @ point.coefficients @ change[:p, :p].T
        H, omega = of_e.T @ point.H @ of_e, of_e.T @ point.omega @ of_e
        return replace(rows.judged(B, H, omega, converged=converged), avoided=avoid)

    found = fitted()
    if not _confused(found):
        return found
    return fitted(AVOID_BOUNDARY * n / (n if data.groups is None else data.n_groups))


def _confused(found: LevelFit) -> bool:
    """Ω is singular, yet not zero, and the total time short beside that of mean reversion, with which levels trade off."""
    w = eigh(found.between, found.diffusion, eigvals_only=True)
    time = float(found.rows.times.max())
    alive = w * time > ZERO_VARIANCE
    slowest = -np.linalg.eigvals(found.drift).real.max()
    return bool(alive.any() and not alive.all() and slowest * time < SHORT)


@dataclass(frozen=True, eq=False)
class LevelRows:
    """The rows (ψ √g, e/√g) of a panel's steps along an order, ψ = (x, 1, x₀), and what their strata are.

    `starts` (n, k) are the first states, centred, those columns that can be told apart; `times` (n,) the total
    times; `pooled` (d, p) the coefficients of subjects who are alike, whose residuals e are.
    """

    data: Data
    order: Indices
    gaps: Gaps
    slopes: tuple[int, ...]
    centre: Array
    starts: Array
    times: Array
    pooled: Array

    @classmethod
    def of(cls, data: Data, order: Indices, gaps: Gaps) -> LevelRows:
        n, T, d = data.shape
        first = data.states(order)
        centre = first.mean(axis=0)
        slopes = independent_starts(first, centre)
        times = np.where(data.lengths.steps.mask, gaps.rows(n, T), 0.0).sum(axis=1)
        starts = (first - centre)[:, list(slopes)]
        p = d + 1 + len(slopes)
        alike = partial(_gram_piece, pooled=np.zeros((d, p)))
        gram = data.sum_pieces(alike, order, gaps, starts)
        pooled, _ = parameters(Moments.from_weights(gram, float(data.lengths.steps.total), p))
        return cls(data, order, gaps, slopes, centre, starts, times, pooled)

    @property
    def n_features(self) -> int:
        return self.pooled.shape[1]

    @property
    def roots(self) -> Array:
        """√τ of each subject; one visit has no step, and its row of zeros stays one whatever divides it."""
        return np.sqrt(np.where(self.times > 0, self.times, 1.0))

    @property
    def along(self) -> tuple[Indices, Gaps, Array]:
        """What `rows_of` asks for beside a piece."""
        return self.order, self.gaps, self.starts

    @cached_property
    def strata(self) -> Strata:
        """All rows but one of each subject, and those of each total time."""
        n, pooled = self.data.shape[0], self.pooled

        def of_piece(piece: Data, subjects: Indices, *along: Any) -> tuple[Indices, Array, Array]:
            z, root = rows_of(piece, *along, pooled=pooled)
            return subjects[:, 0], _gram_of(z), (z * root).sum(axis=1)

        subjects = np.arange(n, dtype=np.intp)[:, None]
        parts = list(self.data.map_pieces(of_piece, subjects, *self.along))
        one = np.empty((n, len(parts[0][1])))
        for at, _, part in parts:
            one[at] = part / self.roots[at, None]
        within = np.sum([part[1] for part in parts], axis=0) - one.T @ one
        longest = self.times.max()  # times are alike up to rounding, in whatever unit
        times, which = np.unique((self.times / longest).round(12), return_inverse=True)
        between = [one[which == k].T @ one[which == k] for k in range(len(times))]
        counts = [float(self.data.lengths.steps.total - n), *np.bincount(which).astype(float)]
        return Strata(
            np.append(0.0, times * longest), np.asarray(counts), np.stack([within, *between])
        )

    def judged(self, B: Array, H: Array, omega: Array, *, converged: bool) -> LevelFit:
        """A fit of given parameters: each trajectory's log-likelihood and intercept."""
        n, T, d = self.data.shape
        L = cholesky(H, lower=True)
        pooled, own = self.pooled, B - self.pooled

        def of_piece(piece: Data, *along: Any) -> tuple[Array, Array]:
            z, root = rows_of(piece, *along, pooled=pooled)
            e = z[:, :, -d:] - z[:, :, :-d] @ own.T
            white = solve_triangular(L, e.reshape(-1, d).T, lower=True)
            u = (e * root).sum(axis=1)
            return (white**2).sum(axis=0).reshape(len(e), -1).sum(axis=1), u

        squares, u = self.data.each_piece(of_piece, *self.along)
        u = u / self.roots[:, None]
        w, U = eigh(omega, H)
        v = 1 + self.times[:, None] * np.maximum(w, 0.0)
        turned = u @ U
        m = self.data.observed - 1
        gaps = self.gaps.rows(n, T)
        there = self.data.lengths.steps.mask
        constant = m * (d * np.log(2 * np.pi) / 2 + np.log(np.diag(L)).sum())
        constant = constant + d / 2 * np.where(there, np.log(gaps), 0.0).sum(axis=1)
        rest = squares - (turned**2).sum(axis=1) + (turned**2 / v).sum(axis=1)
        values = -0.5 * (rest + np.log(v).sum(axis=1)) - constant
        # b_j given u_j: in the turned coordinates each has variance w, seen with noise 1/τ.
        back = H @ U
        expected = np.sqrt(self.times)[:, None] * np.maximum(w, 0.0) / v * turned
        effects = B[:, d] + self.starts @ B[:, d + 1 :].T + expected @ back.T
        errors = np.sqrt((np.maximum(w, 0.0) / v) @ (back**2).T)
        omega = (back * np.maximum(w, 0.0)) @ back.T
        slope = np.zeros((d, d))
        slope[:, list(self.slopes)] = B[:, d + 1 :]
        law = B[:, : d + 1], H, B[:, d] - slope @ self.centre, slope, omega
        extra = d * len(self.slopes) + d * (d + 1) // 2
        return LevelFit(*law, extra, values, effects, errors, converged, B, self)


def rows_of(
    piece: Data, order: Indices, gaps: Gaps, starts: Array, *, pooled: Array
) -> tuple[Array, Array]:
    """Rows z (subjects, T − 1, p + d) with the residuals of `pooled`, and √g (subjects, T − 1, 1)."""
    x, live = to_numpy(piece.block(slice(None), order)[0]), piece.live
    root = np.sqrt(np.broadcast_to(gaps.factor, (len(x), x.shape[1] - 1, 1)))
    first = np.broadcast_to(starts[:, None], (*root.shape[:2], starts.shape[1]))
    psi = np.concatenate([x[:, :-1], np.ones_like(root), first], axis=2)
    e = np.diff(x, axis=1) / root - psi @ pooled.T * root
    z = np.concatenate([psi * root, e], axis=2)
    return (z, root) if live is None else (z * live, root * live)


def _gram_piece(piece: Data, *along: Any, pooled: Array) -> Array:
    return _gram_of(rows_of(piece, *along, pooled=pooled)[0])


@dataclass(frozen=True, eq=False)
class Point:
    """Variances H and Ω, the coefficients (d, p) that are best with them, and the log-likelihood there.

    `turn` U has `Uᵀ H U = I` and `Uᵀ Ω U = diag(w)`; `squares` (S, d, d) are the strata's residuals in these coordinates,
    `shares` (S, d) the inverses of their variances, 1/(1 + τ w).
    """

    H: Array
    omega: Array
    coefficients: Array
    value: float
    turn: Array
    shares: Array
    squares: Array


def profile(strata: Strata, p: int, H: Array, omega: Array) -> Point:
    """The best coefficients for given variances: a weighted regression for each turned equation."""
    w, U = eigh(omega, H)
    q = 1 / (1 + strata.times[:, None] * np.maximum(w, 0.0))
    psi, cross = strata.grams[:, :p, :p], strata.grams[:, :p, p:] @ U
    M = np.tensordot(q.T, psi, 1)
    b = np.linalg.solve(M, np.einsum("sk,spk->kp", q, cross)[:, :, None])[:, :, 0]
    bc = b @ cross
    T = U.T @ strata.grams[:, p:, p:] @ U - bc - bc.transpose(0, 2, 1) + b @ psi @ b.T
    log_det = strata.counts @ (np.linalg.slogdet(H)[1] - np.log(q).sum(axis=1))
    value = -0.5 * (log_det + np.einsum("sk,skk->", q, T))
    return Point(H, omega, H @ U @ b, float(value), U, q, T)


def _gradients(strata: Strata, at: Point) -> tuple[Array, Array]:
    """Derivatives by H and by Ω, the coefficients being at their best."""
    by_V = _by_variances(strata, at.shares, at.squares)
    turned = by_V.sum(axis=0), np.einsum("s,skl->kl", strata.times, by_V)
    return at.turn @ turned[0] @ at.turn.T, at.turn @ turned[1] @ at.turn.T


def _by_variances(strata: Strata, q: Array, squares: Array) -> Array:
    """Derivatives (S, d, d) by the variance of each stratum, diag(1/q), from its squared residuals."""
    each = q[:, :, None] * squares * q[:, None, :]
    return 0.5 * (each - (strata.counts[:, None] * q)[:, :, None] * np.eye(q.shape[1]))


def _variances(strata: Strata, at: Point) -> tuple[Array, Array]:
    """H and Ω of the residuals at a point, as if all had the same total time: H and H + τ Ω ⪰ H in closed form."""
    back = np.linalg.inv(at.turn)
    squares = back.T @ at.squares @ back
    n, count = strata.counts[1:].sum(), strata.counts[0]
    time = strata.counts[1:] @ strata.times[1:] / n
    ratio, U = eigh(squares[1:].sum(axis=0) / n, squares[0] / count)
    alike = (count + n * ratio) / (count + n)
    h = np.where(ratio > 1, 1.0, alike)
    v = np.where(ratio > 1, ratio, alike)
    back = np.linalg.inv(U)
    return (back.T * h) @ back, (back.T * ((v - h) / time)) @ back


def _maximum(strata: Strata, p: int, avoid: float = 0.0) -> tuple[Point, bool]:
    """The likeliest H, Ω and coefficients, in coordinates in which H is about 1.

    Alternations from subjects that are alike and from subjects that have nothing in common; then quasi-Newton steps
    in the triangular factors of H and Ω from the better of the two. `avoid`: with so many times ½ log|Ω|, from both and farther inside.
    """
    d = strata.grams.shape[1] - p
    time = float(strata.times.max())
    found = []
    for begin in (1e-6, 1e3):
        point = profile(strata, p, np.eye(d), begin / time * np.eye(d))
        for _ in range(LEVEL_ALTERNATIONS):
            point = profile(strata, p, *_variances(strata, point))
        found.append(point)
    best = max(found, key=lambda each: each.value)
    low = np.tril_indices(d)
    n, N = strata.counts[1:].sum(), strata.counts.sum()
    unit = np.repeat([(n / N) ** 0.5, time**-0.5], len(low[0]))

    def matrices(y: Array) -> tuple[Array, Array]:
        C, K = np.zeros((2, d, d))
        C[low], K[low] = np.split(y * unit, 2)
        return C, K

    def objective(y: Array) -> tuple[float, Array]:
        C, K = matrices(y)
        own = np.diag(K) * time**0.5
        if np.abs(np.diag(C)).min() < 1e-4 or (avoid and np.abs(own).min() < 1e-8):
            return 1e15, np.zeros_like(y)  # a trial step that makes H singular, or Ω
        at = profile(strata, p, C @ C.T, K @ K.T)
        by_H, by_omega = _gradients(strata, at)
        of_K = 2 * by_omega @ K
        value = at.value
        if avoid:
            value += avoid * float(np.log(np.abs(own)).sum())
            of_K = of_K + avoid * np.diag(1 / np.diag(K))
        gradient = np.concatenate([(2 * by_H @ C)[low], of_K[low]])
        return -value, -gradient * unit

    def climbed(begin: Point, inside: float) -> tuple[Point, float, bool]:
        """The maximum near a point, a little inside of Ω ⪰ 0: a variance of zero has no slope in its factor."""
        omega = begin.omega + inside / time * begin.H
        first = np.concatenate([cholesky(each, lower=True)[low] for each in (begin.H, omega)])
        options = {"maxiter": 500, "maxcor": 30, "ftol": 1e-12, "gtol": 1e-4 * n**0.5}
        ended = lbfgs(objective, first / unit, **options)
        C, K = matrices(ended.x)
        return profile(strata, p, C @ C.T, K @ K.T), -float(ended.fun), bool(ended.success)

    if avoid:
        point, _, converged = max((climbed(each, 0.1) for each in found), key=lambda each: each[1])
        return point, converged
    point, _, converged = climbed(best, 1e-3)
    return (point if point.value > best.value else best), converged


def independent_starts(states: Array, centre: Array) -> tuple[int, ...]:
    """The columns of first states about their centre that are not, nearly, combinations of those before them.

    A common start leaves differences that are rounding of its level, and carry no information on levels.
    """
    first = states - centre
    kept: list[int] = []
    for k in range(first.shape[1]):
        column = first[:, k]
        size = float(np.linalg.norm(column))
        if size <= COMMON_START_SPREAD * np.linalg.norm(states[:, k]):
            continue
        if kept:
            basis = np.linalg.qr(first[:, kept])[0]
            column = column - basis @ (basis.T @ column)
        if np.linalg.norm(column) > INDEPENDENT_SHARE * size:
            kept.append(k)
    return tuple(kept)


def _gram_of(z: Array) -> Array:
    flat = z.reshape(-1, z.shape[-1])
    return np.asarray(flat.T @ flat)


# -- errors ----------------------------------------------------------------------------------------------------------


def level_influences(fit: LevelFit) -> tuple[Array, Array]:
    """By how much leaving each subject out moves (A, c̄), (n, d, d + 1), and H, (n, d, d); signs reversed.

    A, Ω and H trade off: a subject that stays away from the others has its own level or drifts back slowly. So
    the bread is the observed information on all of them; scores of coefficients are corrected for their leverages. A
    direction in which Ω is zero is held there.
    """
    rows = fit.rows
    n, _, d = rows.data.shape
    p = rows.n_features
    turned = _Turned.of(fit)
    information, keep = turned.information()
    scores = turned.scores()[:, keep]
    unit = 1 / np.sqrt(np.maximum(np.diag(information), 1e-300))
    values, vectors = np.linalg.eigh(information * np.outer(unit, unit))
    # Flat directions, of intercepts that are hard to distinguish from mean reversion, keep their large errors; rounding must not turn their sign.
    inverse = (vectors / np.maximum(values, 1e-8)) @ vectors.T * np.outer(unit, unit)
    moved = scores @ inverse
    back = np.linalg.inv(turned.turn)
    low = np.tril_indices(d)
    of_H = np.zeros((n, d, d))
    of_H[:, low[0], low[1]] = of_H[:, low[1], low[0]] = moved[:, d * p : d * p + len(low[0])]
    of_H = back.T @ of_H @ back
    of_B = back.T @ moved[:, : d * p].reshape(n, d, p) @ turned.whitening.T
    return of_B[:, :, : d + 1], of_H


@dataclass(frozen=True, eq=False)
class _Turned:
    """A fit in coordinates in which H = I, Ω = diag(w) and the regressors are white: `e U` and `ψ whitening`."""

    fit: LevelFit
    turn: Array
    whitening: Array
    w: Array
    strata: Strata
    own: Array

    @classmethod
    def of(cls, fit: LevelFit) -> _Turned:
        rows = fit.rows
        w, U = eigh(fit.between, fit.diffusion)
        p = rows.n_features
        gram = rows.strata.grams.sum(axis=0)
        factor = Moments.from_weights(gram, 1.0, p).factor
        white = solve_triangular(factor[:p, :p], np.eye(p)) * rows.strata.counts.sum() ** 0.5
        change = np.zeros_like(gram)
        change[:p, :p], change[:p, p:], change[p:, p:] = white, -(fit.B - rows.pooled).T @ U, U
        return cls(fit, U, white, np.maximum(w, 0.0), rows.strata.moved(change), change)

    @property
    def pairs(self) -> tuple[Array, Array]:
        """The lower half of symmetric changes of H, (m, d, d), and which of them Ω can make."""
        d = len(self.w)
        low = np.tril_indices(d)
        E = np.zeros((len(low[0]), d, d))
        E[range(len(E)), low[0], low[1]] = E[range(len(E)), low[1], low[0]] = 1.0
        alive = self.w * self.strata.times.max() > ZERO_VARIANCE
        return E, alive[low[0]] | alive[low[1]]

    def information(self) -> tuple[Array, NDArray[np.bool_]]:
        """Observed information on (b, H, Ω), by strata: `−d²ℓ` of each; and which parameters are free."""
        d = len(self.w)
        p = self.strata.grams.shape[1] - d
        E, free = self.pairs
        m = len(E)
        total = np.zeros((d * p + 2 * m, d * p + 2 * m))
        both = slice(d * p, None)
        for time, count, gram in zip(
            self.strata.times, self.strata.counts, self.strata.grams, strict=True
        ):
            q = 1 / (1 + time * self.w)
            D, T = gram[:p, p:], gram[p:, p:]
            for k in range(d):
                total[k * p : k * p + p, k * p : k * p + p] += q[k] * gram[:p, :p]
            X = q[:, None] * E
            XT = (X @ (q[:, None] * T)).transpose(0, 2, 1).reshape(m, -1)
            bend = X.reshape(m, -1) @ XT.T
            flat = X.reshape(m, -1) @ X.transpose(0, 2, 1).reshape(m, -1).T
            of_V = 0.5 * (bend + bend.T) - 0.5 * count * flat
            # b_k meets V through Σ_l q_k dV_kl q_l D_l.
            cross = np.einsum("akl,l,pl->kpa", X, q, D).reshape(d * p, m)
            parts = np.array([1.0, time])
            total[both, both] += np.kron(np.outer(parts, parts), of_V)
            total[: d * p, both] += np.concatenate([cross, time * cross], axis=1)
        total[d * p + m :, d * p + m :] += self._bend()
        total[both, : d * p] = total[: d * p, both].T
        keep = np.concatenate([np.ones(d * p + m, dtype=bool), free])
        return total[np.ix_(keep, keep)], keep

    def _bend(self) -> Array:
        """What the rank of Ω adds to the information on it.

        Where Ω has nothing in directions l, m, a covariance t with a direction k that has some drags a variance along,
        `Ω_lm = t_l t_m / w_k`, which the likelihood, at its boundary, pays for with S_lm = ∂ℓ/∂Ω_lm ⪯ 0: −2 S_lm/w_k.
        """
        d = len(self.w)
        q = 1 / (1 + self.strata.times[:, None] * self.w)
        by_V = _by_variances(self.strata, q, self.strata.grams[:, -d:, -d:])
        S = np.einsum("s,skl->kl", self.strata.times, by_V)
        alive = self.w * self.strata.times.max() > ZERO_VARIANCE
        low = list(zip(*np.tril_indices(d), strict=True))
        bend = np.zeros((len(low), len(low)))
        if alive.all():
            return self._avoided() if self.fit.avoided else bend
        for a, (i, j) in enumerate(low):
            for b, (g, h) in enumerate(low):
                k, m = (i, j) if alive[i] else (j, i)
                other, o = (g, h) if alive[g] else (h, g)
                if k == other and alive[k] and not alive[m] and not alive[o]:
                    bend[a, b] = -2 * S[m, o] / self.w[k]
        return bend

    def _avoided(self) -> Array:
        """Curvature of the penalty that keeps Ω from being singular, `½ tr Ω⁻¹ dΩ Ω⁻¹ dΩ`."""
        i, j = np.tril_indices(len(self.w))
        return np.diag(self.fit.avoided * np.where(i == j, 0.5, 1.0) / (self.w[i] * self.w[j]))

    def scores(self) -> Array:
        """Each subject's derivatives by (b, lower H, lower Ω), those by b corrected for leverage."""
        rows, d = self.fit.rows, len(self.w)
        n, p = rows.data.shape[0], rows.n_features
        # Σ q_k M_k over all subjects: what a trajectory's own share is measured by.
        q_of = 1 / (1 + self.strata.times[:, None] * self.w)
        whole = np.einsum("sk,spq->kpq", q_of, self.strata.grams[:, :p, :p])
        pooled, turned, w = rows.pooled, self.own, self.w

        def of_piece(piece: Data, times: Array, *along: Any) -> Array:
            z, root = rows_of(piece, *along, pooled=pooled)
            z = z @ turned
            gram = z.transpose(0, 2, 1) @ z
            one = (z * root).sum(axis=1) / np.sqrt(np.where(times > 0, times, 1.0))
            gram = gram - one[:, :, None] * one[:, None, :]
            a, u = one[:, :p], one[:, p:]
            q = 1 / (1 + times * w)
            by_b = gram[:, :p, p:].transpose(0, 2, 1) + (q * u)[:, :, None] * a[:, None, :]
            mine = (
                gram[:, None, :p, :p] + q[:, :, None, None] * (a[:, :, None] * a[:, None])[:, None]
            )
            rest = np.linalg.solve(whole - (1 - MIN_OTHERS_SHARE) * mine, by_b[:, :, :, None])
            by_b = (whole @ rest)[:, :, :, 0]
            steps = (piece.observed - 2)[:, None, None]
            within = gram[:, p:, p:] - steps * np.eye(d)
            between = (q * u)[:, :, None] * (q * u)[:, None, :] - q[:, :, None] * np.eye(d)
            by_H, by_omega = lower_half(within + between) / 2, times * lower_half(between) / 2
            return np.concatenate([by_b.reshape(len(z), -1), by_H, by_omega], axis=1)

        found: Array = rows.data.each_piece(of_piece, rows.times[:, None], *rows.along)
        found[:, d * p :] *= n / (n - 1)
        return found
