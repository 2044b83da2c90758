"""Step models of panels in time order, fitted to many panels at once:

    x_{t+1} = x_t + c_t + a_j + Θᵀ φ(x_t, x_{t−1}) + √v_t e_t,      e_t ~ N(0, H),      a_j | x₀ ~ N(μ + Γ x₀, Ω),

with regressors φ that are linear or polynomial in the last state, with or without memory (x_{t−1}) and random intercepts a_j.
Two nuisances may be free: the offsets c_t and the variances v_t of the steps, each its own or one for all. They are what the
outside world does to all trajectories alike: shocks, plates, trends, changing volatility. What must stay the same from step to
step is Θ, the dynamics; the direction of time is the one along which one Θ serves all steps.

Such models judge the direction along an order that was found. Orders are never searched with them: richer models excuse wrong
orders. Variables are standardised. A fit is in one direction; the reverse is a panel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.closed_form.panels import Form, Ground, Panels
from retrace_sde.evidence.closed_form.sums import StepSums, changes, regressors
from retrace_sde.fit.start_law import Starts, inverted, most_gaussian_log_density, starts
from retrace_sde.io.arrays import Array, Indices, Mask

RIDGE = 1e-10
"""Added to moments of standardised variables: smaller differences are rounding."""

START_ALTERNATIONS, MAX_ALTERNATIONS, MIN_GAIN_NATS = 3, 12, 5e-2
"""Alternations between Θ and the covariances within and between subjects: from each of two starts; from the better of them, at
most; and the gain in nats below which they end."""

VARIANCE_ROUNDS, MIN_VARIANCE = 5, 1e-8
"""Alternations between Θ and the variances of the steps; and the smallest of these, in units of their geometric mean."""


@dataclass(frozen=True, eq=False)
class Intercepts:
    """The law of random intercepts of B panels: `of_start` (B, 1 + k, d) is their mean given (1, first state), `omega`
    (B, d, d) their covariance; `own` (B, n, d) each subject's mean residual, which has the covariance Ω + H/W."""

    of_start: Array
    omega: Array
    own: Array
    weight: Array

    def taken(self, some: slice) -> Intercepts:
        """Of some of the panels."""
        return Intercepts(*(each[some] for each in vars(self).values()))


@dataclass(frozen=True, eq=False)
class StepFit:
    """A form fitted to B panels in one direction: `total` log-likelihood (B,), start included.

    `theta` (B, p, d) multiplies the regressors; `offsets` (B, S, d); `variances` (B, S) of the steps, with geometric mean 1.
    """

    form: Form
    total: Array
    theta: Array
    offsets: Array
    H: Array
    variances: Array
    start: Starts
    intercepts: Intercepts | None = None

    def taken(self, some: slice) -> StepFit:
        """The fits to some of the panels."""
        law = None if self.intercepts is None else self.intercepts.taken(some)
        start = Starts(*(each[some] for each in vars(self.start).values()))
        names = "total", "theta", "offsets", "H", "variances"
        arrays = {name: getattr(self, name)[some] for name in names}
        return replace(self, start=start, intercepts=law, **arrays)

    @property
    def step(self) -> Array:
        """F (B, lags·d, d), multiplying rows (x_t, x_{t−1}); of the linear part."""
        d = self.H.shape[1]
        one = self.theta[:, :d] + np.eye(d)
        if self.form.lags == 1:
            return one
        return np.concatenate([one, self.theta[:, d : 2 * d]], axis=1)

    @property
    def companion(self) -> Array:
        """The step of the state (x_t, x_{t−1}) of the first panel, as it multiplies columns."""
        lags, d = self.form.lags, self.H.shape[1]
        found = np.zeros((lags * d, lags * d))
        found[:d] = self.step[0].T
        found[d:, : (lags - 1) * d] = np.eye((lags - 1) * d)
        return found

    @property
    def stable(self) -> bool:
        """The first panel's fit has a stationary law."""
        linear = self.form.degree == 1
        return linear and float(np.abs(np.linalg.eigvals(self.companion)).max()) < 1 - 1e-6


def fit_directions(panels: Panels, form: Form) -> tuple[StepFit, StepFit]:
    """The fit to every panel as it stands, and to its reverse; fitted once for each form, and kept with the panels."""
    if form not in panels.fits:
        both, B = _fitted(StepSums.of(panels, form), form), len(panels.x)
        panels.fits[form] = both.taken(slice(None, B)), both.taken(slice(B, None))
    found: tuple[StepFit, StepFit] = panels.fits[form]
    return found


def ratios(panels: Panels, form: Form, grounds: frozenset[Ground]) -> Array:
    """Log-likelihood ratios (B,) of panels against their reverses, by what may count.

    With free offsets only the deviations from the slices' means tell; what the ratio loses by freeing them is the means'.
    """
    apart = form._replace(means=True)
    total = np.zeros(len(panels.x))
    means, spreads = Ground.MEANS in grounds, Ground.SPREADS in grounds
    if means and not form.means:
        total += _ratio(panels, form)
        if not spreads:
            total -= _ratio(panels, apart)
    elif spreads:
        total += _ratio(panels, apart if panels.aligned else form)
    return total


def _ratio(panels: Panels, form: Form) -> Array:
    one, two = fit_directions(panels, form)
    return np.asarray(one.total - two.total)


def _fitted(sums: StepSums, form: Form) -> StepFit:
    """Maximum likelihood of a form, in either direction."""
    regression = _Regression(sums, form, sums.panels.x.shape[3])
    solved = regression.solve(None)
    v, total, before = np.ones(sums.mean.shape[:2]), solved[3], np.array(-np.inf)
    for _ in range(VARIANCE_ROUNDS if form.spreads else 0):
        if not (total > before + MIN_GAIN_NATS).any():
            break
        v = regression.variances(solved)
        solved = regression.solve(1 / v)
        log_volume = 0.5 * solved[1].shape[1] * (sums.count * np.log(v)).sum(axis=1)
        before, total = total, solved[3] - log_volume
    theta, H, offsets, _, intercepts = solved
    noise = H if form.lags == 1 else np.asarray(np.kron(np.eye(2)[None], H))
    start = starts(sums.first, noise, sums.widths, sums.groups)
    return StepFit(
        form, total + start.log_densities.sum(axis=1), theta, offsets, H, v, start, intercepts
    )


def most_log_likelihood(panels: Panels, form: Form) -> float:
    """An upper bound on the log-likelihood of a form, its variances equal, in the better direction: a regression and a determinant for each."""
    sums = StepSums.of(panels, form)
    if sums.groups is None or sums.groups[1].any():
        return np.inf
    steps = _Regression(sums, form, panels.x.shape[3]).most
    return float((steps + most_gaussian_log_density(sums.first)).max())


def residuals(panels: Panels, fit: StepFit) -> Array:
    """Residuals (B, n, S, d) divided by √v, about subjects' own intercepts where there are such; zero where there is no step."""
    e = changes(panels.x, fit.form)
    e -= regressors(panels.x, fit.form) @ fit.theta[:, None]
    e -= fit.offsets[:, None]
    if fit.intercepts is not None:
        e -= fit.intercepts.own[:, :, None]
    if fit.form.spreads:
        e /= np.sqrt(fit.variances)[:, None, :, None]
    if panels.visits.ragged:
        e *= panels.live(fit.form.lags)[None, :, :, None]
    return e


def rows_of(panels: Panels, fit: StepFit, which: tuple[Indices, Indices]) -> tuple[Array, Array]:
    """`residuals` (m, d) and `centred_rows` (m, p) of some steps of the first panel, (trajectories, steps); of linear regressors, without random intercepts."""
    (j, s), x, form = which, panels.x[0], fit.form
    sums, p = StepSums.of(panels, form), fit.theta.shape[1]
    last = x[j, s + form.lags - 1]
    z = last if form.lags == 1 else np.concatenate([last, x[j, s]], axis=1)
    e = x[j, s + form.lags] - last - z @ fit.theta[0] - fit.offsets[0][s]
    if form.means:
        z = z - sums.mean[0, s, :p]
    else:
        total, count = sums.total(None)
        z = z - total[0, :p] / count[0]
    if form.spreads:
        root = np.sqrt(fit.variances[0])[s, None]
        return e / root, z / root
    return e, z


def centred_rows(panels: Panels, fit: StepFit) -> Array:
    """Regressors (n, S, p) of the first panel about what is free, divided by √v."""
    form, sums = fit.form, StepSums.of(panels, fit.form)
    z = regressors(panels.x[0], form)
    p = z.shape[2]
    if form.means:
        z = z - sums.mean[0, :, :p]
    if form.levels:
        z = z - z.mean(axis=1, keepdims=True)
    elif not form.means:
        total, count = sums.total(None)
        z = z - total[0, :p] / count[0]
    if form.spreads:
        z = z / np.sqrt(fit.variances[0])[None, :, None]
    return z * panels.live(form.lags)[..., None] if panels.visits.ragged else z


def contributions(panels: Panels, fit: StepFit) -> Array:
    """Log-likelihoods (B, n) of the trajectories."""
    e, live = residuals(panels, fit), panels.live(fit.form.lags)
    d, S = fit.H.shape[1], e.shape[2]
    squares, log_H = squared(e, fit.H)
    constant = d * np.log(2 * np.pi)
    volume = d * (live @ np.log(fit.variances).T).T
    if fit.intercepts is None:
        steps = squares.sum(axis=2) + live.sum(axis=1) * (log_H[:, None] + constant) + volume
        return fit.start.log_densities - 0.5 * steps
    law = fit.intercepts
    known = _known(panels.first(fit.form.lags))
    W = law.weight[:, None, None]
    outer, log_B = squared(law.own - known @ law.of_start, law.omega + fit.H / W)
    steps = squares.sum(axis=2) + (S - 1) * (log_H[:, None] + constant) + volume
    steps = steps + outer + log_B[:, None] + constant + d * np.log(law.weight)[:, None]
    return fit.start.log_densities - 0.5 * steps


def squared(e: Array, H: Array) -> tuple[Array, Array]:
    """`eᵀ H⁻¹ e` over the last axis of e (B, ..., d), and log|H|."""
    white, log_det = whitened(e, H)
    return np.einsum("b...d,b...d->b...", white, white), log_det


def whitened(e: Array, H: Array) -> tuple[Array, Array]:
    """e (B, ..., d) in units in which H is the identity, and log|H|."""
    lower = np.linalg.cholesky(H)
    white = e.reshape(len(e), -1, e.shape[-1]) @ inverted(lower).transpose(0, 2, 1)
    log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    return white.reshape(e.shape), log_det


Solved = tuple[Array, Array, Array, Array, Intercepts | None]
"""Θ, H, the offsets of the steps, their log-likelihood without log v, and the law of intercepts."""


@dataclass(frozen=True, eq=False)
class _Regression:
    """The regression of a form, from the moments of its steps."""

    sums: StepSums
    form: Form
    d: int

    def solve(self, w: Array | None) -> Solved:
        """With steps weighted by w (2B, S), equally where it is None."""
        if self.form.levels:
            return self._with_intercepts(w)
        sums, d, form = self.sums, self.d, self.form
        G = sums.about_slices(w) if form.means else sums.about_zero(w)
        p = G.shape[1] - d
        xx, xy, yy = G[:, :p, :p], G[:, :p, p:], G[:, p:, p:]
        if form.affine and not form.means:
            total, weight = sums.total(w)
            past, change = total[:, :p, None], total[:, None, p:]
            xx = np.block([[xx, past], [past.transpose(0, 2, 1), weight[:, None, None]]])
            xy = np.concatenate([xy, change], axis=1)
        theta = _solved(_ridged(xx), xy)
        count = sums.count.sum()
        H = _ridged((yy - xy.transpose(0, 2, 1) @ theta) / count)
        log_det: Array = np.linalg.slogdet(H)[1]
        value: Array = -0.5 * count * (log_det + d + d * np.log(2 * np.pi))
        return theta[:, :p], H, self._offsets(theta), value, None

    def _offsets(self, theta: Array) -> Array:
        """Of every slice, (2B, S, d): its mean residual where that is free."""
        mean, d = self.sums.mean, self.d
        p = mean.shape[2] - d
        if self.form.means:
            found: Array = mean[..., p:] - mean[..., :p] @ theta[:, :p]
            return found
        own = theta[:, p:] if theta.shape[1] > p else np.zeros((len(theta), 1, d))
        return np.broadcast_to(own, (*mean.shape[:2], d))

    def variances(self, solved: Solved) -> Array:
        """Each step's own, (2B, S), given a regression: `Σ_j eᵀ H⁻¹ e / (n d)`, relative to their geometric mean."""
        theta, H, offsets, _, intercepts = solved
        sums, d = self.sums, self.d
        if intercepts is None:
            take = np.concatenate([-theta, np.broadcast_to(np.eye(d), H.shape)], axis=1)
            white = take @ inverted(np.linalg.cholesky(H)).transpose(0, 2, 1)
            spread = sums.quadratic(white @ white.transpose(0, 2, 1))
            squares = spread + sums.count * squared(sums.mean @ take - offsets, H)[0]
        else:
            e = sums.residuals(theta, offsets, intercepts.own)
            squares = squared(e, H)[0].sum(axis=1)
        new = squares / (np.maximum(sums.count, 1) * d)
        new = np.maximum(new, MIN_VARIANCE * new.max(axis=1, keepdims=True))
        found: Array = new / np.exp(np.log(new).mean(axis=1, keepdims=True))
        return found

    @property
    def most(self) -> Array:
        """An upper bound on the log-likelihood with steps weighted equally, without alternations: each subject may have an intercept of its own."""
        if not self.form.levels:
            return self.solve(None)[3]
        inner, d = self._within(None)[0], self.d
        p = inner.shape[1] - d
        xy, count = inner[:, :p, p:], self.sums.count.sum()
        theta = _solved(_ridged(inner[:, :p, :p]), xy)
        H = _ridged((inner[:, p:, p:] - xy.transpose(0, 2, 1) @ theta) / count)
        return np.asarray(-0.5 * count * (np.linalg.slogdet(H)[1] + d + d * np.log(2 * np.pi)))

    def _within(self, w: Array | None) -> tuple[Array, Array, Array]:
        """Second moments about subjects' means, these means, and the weights of subjects."""
        sums, means = self.sums, self.form.means
        each = np.ones((len(sums.first), len(sums.count))) if w is None else w
        W = each.sum(axis=1)
        middle = sums.trajectory_means if w is None else sums.of_trajectories(each)
        if means:
            middle = middle - (each[:, None] @ sums.mean) / W[:, None, None]
        outside = W[:, None, None] * (middle.transpose(0, 2, 1) @ middle)
        inner = (sums.about_slices(w) if means else sums.about_zero(w)) - outside
        return inner, middle, W

    def _with_intercepts(self, w: Array | None) -> Solved:
        """Within and between residuals by generalised least squares: H from the one, H/W + Ω from the other."""
        sums, d = self.sums, self.d
        n, S = sums.first.shape[1], len(sums.count)
        inner, middle, W = self._within(w)
        known = _known(sums.first)
        gram = _ridged(known.transpose(0, 2, 1) @ known)
        explained = _solved(gram, known.transpose(0, 2, 1) @ middle)
        rest = middle - known @ explained
        parts = _Between.of(inner, rest.transpose(0, 2, 1) @ rest, n, S, W, d)
        value, theta, H, apart = parts.fitted()
        p = theta.shape[1]
        total = value - 0.5 * n * d * (S * np.log(2 * np.pi) + np.log(W))
        own = middle[..., p:] - middle[..., :p] @ theta
        of_start = explained[..., p:] - explained[..., :p] @ theta
        law = Intercepts(of_start, apart - H / W[:, None, None], own, W)
        return theta, H, self._offsets(theta), total, law


def _known(first: Array) -> Array:
    """(1, first state) of every trajectory."""
    return np.concatenate([np.ones((*first.shape[:2], 1)), first], axis=2)


@dataclass(frozen=True, eq=False)
class _Between:
    """Moments within subjects, and between them after regression on the start; S steps of n subjects.

    `W` (B,) is the total weight of the steps, S where their variances are equal.
    """

    within: tuple[Array, Array, Array]
    between: tuple[Array, Array, Array]
    n: int
    S: int
    W: Array

    @classmethod
    def of(cls, inner: Array, outer: Array, n: int, S: int, W: Array, d: int) -> _Between:
        p = inner.shape[1] - d

        def split(G: Array) -> tuple[Array, Array, Array]:
            return G[:, :p, :p], G[:, :p, p:], G[:, p:, p:]

        return cls(split(inner), split(outer), n, S, W)

    def fitted(self) -> tuple[Array, Array, Array, Array]:
        """The log-likelihood but for constants, Θ, H and H/W + Ω, from the better of two starts.

        Mean reversion as seen within subjects, and over all of them.
        """
        W = self.W[:, None, None]
        pooled = tuple(a + W * b for a, b in zip(self.within[:2], self.between[:2], strict=True))
        begins = [_solved(_ridged(xx), xy) for xx, xy in (self.within[:2], pooled)]
        one, two = (self._alternated(self._at(each), START_ALTERNATIONS) for each in begins)
        better = two.value > one.value
        start = _At(*(_where(better, *each) for each in zip(two, one, strict=True)))
        return self._alternated(start, MAX_ALTERNATIONS).law

    @cached_property
    def _axes(self) -> tuple[Array, Array]:
        """Coordinates M with `Mᵀ (wxx + W bxx) M = 1` and `Mᵀ W bxx M` diagonal, and that diagonal, in [0, 1]."""
        outer = self.W[:, None, None] * self.between[0]
        inverse = inverted(np.linalg.cholesky(_ridged(self.within[0] + outer)))
        share, U = np.linalg.eigh(inverse @ outer @ inverse.transpose(0, 2, 1))
        return inverse.transpose(0, 2, 1) @ U, np.clip(share, 0.0, 1.0)

    def _alternated(self, at: _At, steps: int) -> _At:
        """Θ and the covariances in turn, H/W + Ω with Ω ⪰ 0.

        In the coordinates where H is 1 and the rest diagonal, D, every equation stands alone, `(wxx + bxx/D_i) θ_i = …`; where
        `wxx + W bxx` is 1 and W bxx diagonal, β, all of them are: `1 − β + β/(W D_i)`.
        """
        wxy, bxy = self.within[1], self.between[1]
        back, share = self._axes
        W = self.W[:, None, None]
        before = np.full(len(at.value), -np.inf)
        for _ in range(steps):
            if not (at.value > before + MIN_GAIN_NATS).any():
                break
            before = at.value
            white, D = at.to.transpose(0, 2, 1), at.D[:, None, :]
            right = back.transpose(0, 2, 1) @ (wxy @ white + (bxy @ white) / D)
            left = 1 - share[:, :, None] * (1 - 1 / (W * D))
            at = self._at(back @ (right / np.maximum(left, RIDGE)) @ at.V.transpose(0, 2, 1))
        return at

    def _at(self, theta: Array) -> _At:
        """The covariances within and between that are best with Θ."""
        found = []
        counts = self.n * (self.S - 1), self.n
        for (xx, xy, yy), count in zip((self.within, self.between), counts, strict=True):
            cross = xy.transpose(0, 2, 1) @ theta
            rest = yy - cross - cross.transpose(0, 2, 1) + theta.transpose(0, 2, 1) @ xx @ theta
            found.append(_ridged(rest / count))
        H, between = found
        d = H.shape[1]
        lower = np.linalg.cholesky(H)
        inverse = inverted(lower)
        values, U = np.linalg.eigh(inverse @ between @ inverse.transpose(0, 2, 1))
        D = np.maximum(values, 1 / self.W[:, None])
        log_H = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        inner = self.n * (self.S - 1) * (log_H + d)
        outer = self.n * (log_H + (np.log(D) + values / D).sum(axis=1))
        value = -0.5 * (inner + outer)
        return _At(value, theta, H, lower @ U, U.transpose(0, 2, 1) @ inverse, D)


class _At(NamedTuple):
    """Θ, H, coordinates V with V Vᵀ = H and V⁻¹ (`to`), the variances between subjects in them, D, at least 1/W; and the log-likelihood there."""

    value: Array
    theta: Array
    H: Array
    V: Array
    to: Array
    D: Array

    @property
    def law(self) -> tuple[Array, Array, Array, Array]:
        """The log-likelihood, Θ, H and H/W + Ω."""
        outer = (self.V * self.D[:, None, :]) @ self.V.transpose(0, 2, 1)
        return self.value, self.theta, self.H, outer


def _where(some: Mask, one: Array, two: Array) -> Array:
    """The first array's entries for some of the panels, the second one's for the others."""
    return np.where(some.reshape(-1, *(1,) * (one.ndim - 1)), one, two)


def _solved(A: Array, b: Array) -> Array:
    found: Array = np.linalg.solve(A, b)  # type: ignore[assignment]
    return found


def _ridged(gram: Array) -> Array:
    """Positive definite in spite of rounding."""
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    floor = RIDGE * (diagonal + diagonal.mean(axis=1, keepdims=True)) + 1e-300
    found: Array = gram + floor[:, :, None] * np.eye(gram.shape[1])
    return found
