"""The mixed model behind effects: subjects' levels given their first states and, where asked for, their treatment.

    Δx = (Θ φ + (Γ w_j + B_j) φ_S) Δt + ε,      ε ~ N(0, H Δt),      vec B_j ~ N(0, Ω).

w_j holds a subject's first state. Without it a random intercept is taken to be independent of where the subject starts, which
is false at rest: the effect of a randomised treatment over 15 visits was then too large by .8 of 1.25 (Wooldridge 2005: the
problem of initial conditions). Intercepts that are free for each subject are no way out: with few visits they bias Θ (Nickell 1981;
−.3 to −.5 of the same effect).

Fixed effects are therefore correlated random effects (Mundlak 1978): w_j also holds the mean of the subject's treatment beyond what
its states explain, `mean(u − β x)`, with β from the model of the treatment

    u_t = α + β x_t + γ v_j + c_j + ν_t,      v_j = the subject's mean residual of x.

The two are fitted in turn, which maximises their joint likelihood: treatment may answer the state (feedback, which biases Mundlak's plain
mean by −.2) and a subject's level may decide its treatment (frailty).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.fit.moments import regression_rows
from retrace_sde.fit.random_intercepts import independent_starts
from retrace_sde.fit.subjects import SubjectFit, fit_subjects, posterior_deviations, subject_grams
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.search.models.euler import EulerModel

MAX_MODEL_ALTERNATIONS, SLOPE_TOLERANCE = 20, 1e-5
"""Alternations between the models of the process and of the treatment, and the change of β, in its own units, at which they stop."""

SAME_MEAN = 1e-9
"""Differences between subjects' mean treatments, in root mean squares of the treatment, that are rounding."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Along K orders: Gram matrices of the steps (K, n, p + d, p + d), first states (K, n, d), and Gram matrices of (1, x, u) over the
    steps (K, n, 1 + d + k, …), u being the k treatments that change within subjects. `history` (K, n, p + k s + d, …) is `grams` with
    the treatments' histories times φ_S between features and steps. `steps` (n,) counts."""

    grams: Array
    starts: Array
    policy: Array
    history: Array
    steps: Array

    @classmethod
    def along(
        cls,
        problem: EulerModel,
        order: Indices,
        treatments: Sequence[int],
        columns: Sequence[int],
    ) -> Rows:
        """Of a problem along one order, (T,) or (n, T)."""
        data, p = problem.data, problem.n_features
        policy = _policy_grams(data, order, list(treatments))
        total = policy[:, 0].sum(axis=0)
        means = total[len(total) - len(treatments) :] / total[0]
        history = _history_grams(problem, order, list(treatments), list(columns), means)
        added = len(treatments) * len(columns)
        kept = np.delete(np.arange(history.shape[1]), np.arange(p, p + added))
        return cls(
            history[:, kept][:, :, kept][None],
            data.states(order)[None],
            policy[None],
            history[None],
            data.lengths.steps.each.astype(float),
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Several orders of the same subjects."""
        grams, starts, policy, history = (
            np.concatenate([getattr(each, name) for each in parts])
            for name in ("grams", "starts", "policy", "history")
        )
        return cls(grams, starts, policy, history, parts[0].steps)

    @property
    def n_treatments(self) -> int:
        """k."""
        return self.policy.shape[2] - 1 - self.starts.shape[2]

    def draw(self, k: int) -> Rows:
        """One of the orders."""
        at = slice(k, k + 1)
        return Rows(self.grams[at], self.starts[at], self.policy[at], self.history[at], self.steps)

    def some(self, rows: Indices) -> Rows:
        """Of some subjects."""
        grams, starts = self.grams[:, rows], self.starts[:, rows]
        return Rows(grams, starts, self.policy[:, rows], self.history[:, rows], self.steps[rows])


def _policy_grams(data: Data, order: Indices, treatments: list[int]) -> Array:
    def of_piece(piece: Data, order: Indices) -> Array:
        states, inputs = piece.block(slice(None), order)
        x = to_numpy(states)[:, :-1]
        parts = [np.ones((*x.shape[:2], 1)), x]
        if treatments and inputs is not None:
            parts.append(to_numpy(inputs)[:, :-1, treatments])
        z = np.concatenate(parts, axis=2)
        live = piece.live
        z = z if live is None else z * to_numpy(live)
        return np.asarray(z.transpose(0, 2, 1) @ z)

    return data.each_piece(of_piece, order)


def _history_grams(
    problem: EulerModel,
    order: Indices,
    treatments: list[int],
    columns: list[int],
    means: Array,
) -> Array:
    """`Σ z zᵀ`, z = (φ √Δt, h φ_S √Δt, Δx/√Δt), with the history `h_t = Σ_{s ≤ t} (u_s − ū) / (t + 1)`, t from 1.

    h predicts a level that decides the treatment: a mean over the visits so far, shrunk as if levels and chance shared its variance.
    """
    gaps = Gaps.of(problem.dt, problem.data.lengths)
    if not treatments or not columns:
        return subject_grams(problem.data, order, gaps, problem.drift)

    def of_piece(piece: Data, order: Indices, gaps: Gaps) -> Array:
        z = to_numpy(regression_rows(piece, order, gaps, problem.drift))
        inputs = piece.block(slice(None), order)[1]
        u = to_numpy(inputs)[:, :-1, treatments]
        visits = np.arange(1, u.shape[1] + 1)[:, None]
        h = np.cumsum(u - means, axis=1) / (visits + 1)
        added = [h * z[:, :, [j]] for j in columns]
        p = problem.n_features
        z = np.concatenate([z[:, :, :p], *added, z[:, :, p:]], axis=2)
        return np.asarray(z.transpose(0, 2, 1) @ z)

    return np.asarray(problem.data.each_piece(of_piece, order, gaps))


@dataclass(frozen=True, eq=False)
class Offsets:
    """How w_j is made of rows: the columns of first states, about `centre` (d,), and treatment means about `means` (1 + d + k,).

    `treated`: the treatments whose mean differs between subjects. Of one that all have at the same visits no level can decide anything.
    """

    columns: tuple[int, ...]
    centre: Array
    means: Array
    treated: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows) -> Offsets:
        starts, policy = rows.starts.mean(axis=0), rows.policy.mean(axis=0)
        total, d = policy.sum(axis=0), starts.shape[1]
        centre, means = starts.mean(axis=0), total[0] / total[0, 0]
        away = policy[:, 0, 1 + d :] / policy[:, 0, :1] - means[1 + d :]
        size = np.sqrt(np.diag(total)[1 + d :] / total[0, 0])
        differ = np.flatnonzero((np.abs(away) > SAME_MEAN * size).any(axis=0))
        return cls(independent_starts(starts, centre), centre, means, tuple(map(int, differ)))

    def first_states(self, starts: Array) -> Array:
        """Of any starting states (…, d)."""
        return (starts - self.centre)[..., list(self.columns)]

    def values(self, rows: Rows, slope: Array | None) -> Array:
        """w (K, n, m) for the slope β (k, d) of treatment on the state; None: first states alone."""
        if slope is None:
            return self.first_states(rows.starts)
        d = rows.starts.shape[2]
        mean = rows.policy[:, :, 0] / rows.policy[:, :, 0, :1] - self.means
        beyond = mean[:, :, 1 + d :] - mean[:, :, 1 : 1 + d] @ slope.T
        parts = [self.first_states(rows.starts), beyond[:, :, list(self.treated)]]
        return np.concatenate(parts, axis=2)


@dataclass(frozen=True, eq=False)
class SubjectModel:
    """The fit of Θ, Γ, H and Ω (`whole`, features φ then w φ_S), that of the treatment, and what w is made of.

    `base` is the same fit in the features φ alone: a subject's deviation is Γ w_j + B_j.
    """

    whole: SubjectFit
    treatment: SubjectFit | None
    offsets: Offsets | None
    base: SubjectFit

    @property
    def slope(self) -> Array | None:
        """β (k, d); None without fixed effects."""
        d = len(self.whole.coefficients)
        if self.treatment is None:
            return None
        return self.treatment.coefficients[:, 1 : 1 + d]

    def shifts(self, w: Array, coefficients: Array | None = None) -> Array:
        """Γ w (…, d, s) of offsets (…, m)."""
        theta = self.whole.coefficients if coefficients is None else coefficients
        d, p = self.base.coefficients.shape
        gamma = theta[:, p:].reshape(d, len(self.base.columns), -1)
        return np.asarray(np.einsum("esm,...m->...es", gamma[:, :, : w.shape[-1]], w))

    def augmented(self, rows: Rows) -> Array:
        """Gram matrices (K, n, …) of the features φ and w φ_S, and of the steps."""
        if self.offsets is None:
            return rows.grams
        w = self.offsets.values(rows, self.slope)
        return augmented(rows.grams, w, self.base.columns, self.base.coefficients.shape[1])

    def posterior(self, rows: Rows, coefficients: Array) -> tuple[Array, Array]:
        """Means (n, d, s) and covariances of the subjects' deviations for one order and other Θ and Γ."""
        fit = replace(self.whole, coefficients=coefficients)
        mean, spread = posterior_deviations(self.augmented(rows)[0], fit)
        if self.offsets is not None:
            mean = mean + self.shifts(self.offsets.values(rows, self.slope)[0], coefficients)
        return mean, spread

    def moved(self, coefficients: Array, rows: Rows) -> SubjectModel:
        """The same with other Θ and Γ, and the deviations that follow."""
        whole = replace(self.whole, coefficients=coefficients)
        if self.base.columns:
            mean, spread = posterior_deviations(self.augmented(rows).mean(axis=0), whole)
            whole = replace(whole, deviations=mean, uncertainty=spread)
        return replace(self, whole=whole, base=_base(whole, self.offsets, self.slope, rows))


def augmented(grams: Array, w: Array, columns: Sequence[int], p: int) -> Array:
    """Gram matrices (…, p + s m + d, …) with features w φ_S between φ and the steps; w (…, m)."""
    S, size, m = list(columns), grams.shape[-1], w.shape[-1]
    change = np.zeros((*w.shape[:-1], size, size + len(S) * m))
    change[..., range(p), range(p)] = 1.0
    change[..., range(p, size), range(p + len(S) * m, size + len(S) * m)] = 1.0
    for k, j in enumerate(S):
        change[..., j, p + k * m : p + (k + 1) * m] = w
    return np.asarray(np.swapaxes(change, -1, -2) @ grams @ change)


def level_residuals(grams: Array, theta: Array, columns: Sequence[int]) -> Array:
    """v (…, s d): each subject's own coefficients of φ_S, free, beyond Θ."""
    S, p = list(columns), theta.shape[1]
    left = grams[..., S, p:] - grams[..., S, :p] @ theta.T
    found = np.linalg.solve(grams[..., S, :][..., S], left)
    return np.asarray(found.reshape(*found.shape[:-2], -1))


def treatment_offsets(rows: Rows, theta: Array, columns: Sequence[int], offsets: Offsets) -> Array:
    """What a subject's level of treatment may go with: its first state and its mean residual, (K, n, m)."""
    v = level_residuals(rows.grams, theta, columns)
    return np.concatenate([offsets.first_states(rows.starts), v], axis=2)


def fit_model(
    rows: Rows,
    n_features: int,
    columns: Sequence[int],
    *,
    fixed: bool = False,
    begin: SubjectModel | None = None,
    alternations: int = MAX_MODEL_ALTERNATIONS,
) -> SubjectModel:
    """Maximum likelihood; with `fixed` effects, of the process and the treatment in turn."""
    count, p, d = float(rows.steps.sum()), n_features, rows.starts.shape[2]
    if not columns:
        alike = fit_subjects(rows.grams.mean(axis=0), count, p, columns=())
        return SubjectModel(alike, None, None, alike)
    offsets = Offsets.of(rows)
    k = rows.n_treatments
    slope = None
    if fixed:
        slope = np.zeros((k, d)) if begin is None or begin.slope is None else begin.slope
    whole = None if begin is None else begin.whole
    treatment = None if begin is None else begin.treatment
    for _ in range(alternations):
        w = offsets.values(rows, slope)
        grams = augmented(rows.grams, w, columns, p).mean(axis=0)
        features = p + len(columns) * w.shape[2]
        if whole is not None and whole.coefficients.shape[1] != features:
            whole = None  # another number of first states tells
        whole = fit_subjects(grams, count, features, columns=columns, begin=whole)
        if slope is None:
            break
        v = treatment_offsets(rows, whole.coefficients[:, :p], columns, offsets)
        policy = augmented(rows.policy, v, (0,), 1 + d).mean(axis=0)
        if treatment is not None and treatment.coefficients.shape[1] != 1 + d + v.shape[2]:
            treatment = None
        treatment = fit_subjects(policy, count, 1 + d + v.shape[2], columns=(0,), begin=treatment)
        before, slope = slope, treatment.coefficients[:, 1 : 1 + d]
        size = np.sqrt(np.diag(policy.sum(axis=0))[1 : 1 + d] / count)
        if np.abs((slope - before) * size).max() < SLOPE_TOLERANCE:
            break
    assert whole is not None
    return SubjectModel(whole, treatment, offsets, _base(whole, offsets, slope, rows))


def with_history(levels: SubjectModel, rows: Rows) -> tuple[SubjectModel, Rows]:
    """Random intercepts with the treatments' histories as features of coefficient zero: the null of the test of confounded levels."""
    (d, p), k = levels.base.coefficients.shape, rows.history.shape[2] - rows.grams.shape[2]
    theta = np.insert(levels.whole.coefficients, [p] * k, np.zeros((d, k)), axis=1)
    whole, longer = replace(levels.whole, coefficients=theta), replace(rows, grams=rows.history)
    return replace(levels, whole=whole, base=_base(whole, levels.offsets, None, longer)), longer


def _base(
    whole: SubjectFit, offsets: Offsets | None, slope: Array | None, rows: Rows
) -> SubjectFit:
    """In the features φ alone."""
    p = rows.grams.shape[2] - rows.starts.shape[2]
    base = replace(whole, coefficients=whole.coefficients[:, :p])
    if offsets is None:
        return base
    model = SubjectModel(whole, None, offsets, base)
    w = offsets.values(rows, slope).mean(axis=0)
    return replace(base, deviations=whole.deviations + model.shifts(w))
