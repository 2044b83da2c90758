"""Linear models of panels in time order, in closed form, for many panels at once:

    x_{t+1} = c_j + F₁ x_t + F₂ x_{t−1} + e_t,      e_t ~ N(0, v_t H),      c_j | x₀ ~ N(μ + Γ x₀, Ω),

with or without memory (F₂, and a start law of the first two slices), with or without random intercepts (Ω, Γ), and with steps
of one variance or of one each (v_t, a property of the interval and so the same in both directions).
A stationary member of such a family is, time-reversed, a member of it again: only a transient reveals its direction.
They judge the direction along an order that was found. Orders are never searched with them: richer models excuse wrong orders.

A step's row is (x_t, Δ_1, …, Δ_L, 1) with L lags, Δ_L the response. Both directions need one matrix of second moments of such
rows, since a reversed row is linear in the row. `Σ z zᵀ` of z = (x_t, Δ_t, 1) and `Σ Δ_t Δ_{t+1}ᵀ` give that matrix to every
model: with memory, since `x_t = x_{t+1} − Δ_t`, and within subjects, whose means are subtracted. Variables are standardised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.closed_form.panels import Form, Panels, step_rows
from retrace_sde.fit.start_law import Starts, inverted, starts
from retrace_sde.fit.unequal_steps import dispersion
from retrace_sde.io.arrays import Array

RIDGE = 1e-10
"""Added to moments of standardised variables: smaller differences are rounding."""

START_ALTERNATIONS, MAX_ALTERNATIONS, MIN_GAIN_NATS = 3, 12, 5e-2
"""Alternations between F and the covariances within and between subjects: from each of two starts; from the better of them, at
most; and the gain in nats below which they end."""

MAX_VARIANCE_ROUNDS, VARIANCE_TOLERANCE, MIN_STEPS_FOR_VARIANCES = 6, 1e-3, 4
"""Alternations between a fit and the variances of its steps, at most; the relative change at which they end; and the steps
needed to test whether variances differ."""

NO_START = Starts(np.zeros((1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.zeros((1, 2)))
"""Placeholder until the start law is fitted."""


@dataclass(frozen=True, eq=False)
class DirectedFit:
    """A form fitted to B panels in one direction: `total` log-likelihood (B,), start included.

    `step` (B, lags·d, d), F, multiplies rows (x_{t−1}, x_{t−2}); `c` (B, d); `H` (B, d, d). `theta` is the same regression on the
    coordinates of a row; `backwards`: the panels are time-reversed. With random intercepts: `of_start` (B, 1 + lags·d, d)
    is their mean given (1, first state), `omega` (B, d, d) their covariance.
    """

    form: Form
    total: Array
    theta: Array
    H: Array
    start: Starts
    backwards: bool = False
    of_start: Array | None = None
    omega: Array | None = None

    @property
    def step(self) -> Array:
        d = self.H.shape[1]
        blocks = [self.theta[:, k * d : (k + 1) * d] for k in range(self.form.lags)]
        one = blocks[-1] + np.eye(d)
        return one if len(blocks) == 1 else np.concatenate([one, blocks[0] - blocks[1]], axis=1)

    @property
    def leaves(self) -> Array:
        """The matrix (B, p, d) that takes a row of the panel as it stands to the residual of its step."""
        d, a = self.H.shape[1], self.form.lags * self.H.shape[1]
        eye = np.broadcast_to(np.eye(d), self.H.shape)
        found = np.concatenate([-self.theta[:, :a], eye, -self.theta[:, a:]], axis=1)
        return _turn(self.form, d) @ found if self.backwards else found

    @property
    def c(self) -> Array:
        d = self.H.shape[1]
        if self.of_start is not None:
            return self.of_start[:, 0]
        return self.theta[:, -1] if self.form.affine else np.zeros((len(self.H), d))


def fit_directions(panels: Panels, form: Form) -> tuple[DirectedFit, DirectedFit]:
    """The fit to every panel as it stands, and to its reverse; fitted once for each form, and kept with the panels."""
    if form not in panels.fits:
        panels.fits[form] = _fit_directions(panels, form)
    found: tuple[DirectedFit, DirectedFit] = panels.fits[form]
    return found


def _fit_directions(panels: Panels, form: Form) -> tuple[DirectedFit, DirectedFit]:
    live = panels.live(form.lags)
    d, lags = panels.x.shape[3], form.lags
    width = panels.variances
    if lags == 2:
        squares = np.diagonal(panels.moments, axis1=1, axis2=2)[:, d : 2 * d]
        moved = squares / panels.live(1).sum()
        width = np.concatenate([width, moved], axis=1)
    found: list[DirectedFit] = []
    turn, gram, middle = _turn(form, d), None, None
    for backwards, first in enumerate(panels.ends(lags)):
        w = panels.weights(lags, backwards=bool(backwards))
        if gram is None or middle is None or (panels.spread is not None and lags > 1):
            weighted = panels.spread is not None
            gram, middle = _weighted(panels, form, w) if weighted else _second_moments(panels, form)
        G = turn.T @ gram @ turn if backwards else gram
        if form.levels:
            way = _with_intercepts(form, G, middle @ turn if backwards else middle, first, w)
        else:
            way = _regressed(form, G, float(live.sum()), d)
        start = starts(first, _blocks(way.H, lags), width)
        total = way.total + start.log_densities.sum(axis=1)
        total = total + 0.5 * d * (live @ np.log(w)).sum()
        found.append(replace(way, total=total, start=start, backwards=bool(backwards)))
    return found[0], found[1]


def _second_moments(panels: Panels, form: Form) -> tuple[Array, Array]:
    """`Σ z zᵀ` of rows, and the subjects' means, which are subtracted where there are random intercepts."""
    x, lags = panels.x, form.lags
    T, d = x.shape[2:]
    gram = panels.moments
    if lags == 2:
        first, last = _edges(panels)
        before = gram - last.transpose(0, 2, 1) @ last  # steps that another follows
        after = gram - first.transpose(0, 2, 1) @ first  # steps that follow another
        now, new, old = slice(0, d), slice(d, 2 * d), np.r_[0 : 2 * d, 3 * d]
        gram = np.zeros((len(x), 3 * d + 1, 3 * d + 1))
        gram[:, old[:, None], old] = before
        across = np.concatenate(
            [after[:, now, new] - panels.successive, panels.successive, after[:, new, new], after[:, -1:, new]], axis=1
        )  # fmt: skip
        gram[:, :, 2 * d : 3 * d] = across
        gram[:, 2 * d : 3 * d] = across.transpose(0, 2, 1)
    if not form.levels:
        return (gram if form.affine else gram[:, :-1, :-1]), x[:, :, 0]
    S = T - lags
    parts = [x[:, :, :S].mean(axis=2), *((x[:, :, S + k] - x[:, :, k]) / S for k in range(lags))]
    middle = np.concatenate(parts, axis=2)
    return gram[:, :-1, :-1] - S * (middle.transpose(0, 2, 1) @ middle), middle


def _edges(panels: Panels) -> tuple[Array, Array]:
    """Rows (x, Δ, 1) of every trajectory's first step, and of its last, (B, n, 2d + 1)."""
    x, n = panels.x, panels.x.shape[1]
    last = panels.visits.each
    found = []
    for at in (np.zeros(n, dtype=np.intp), last - 2):
        one, two = x[:, np.arange(n), at], x[:, np.arange(n), at + 1]
        found.append(np.concatenate([one, two - one, np.ones((len(x), n, 1))], axis=2))
    return found[0], found[1]


def _weighted(panels: Panels, form: Form, w: Array) -> tuple[Array, Array]:
    """The same with weights of the steps: `Σ w z zᵀ`, and the subjects' weighted means."""
    rows, _ = step_rows(panels, form)
    B, n, S, p = rows.shape
    middle = np.einsum("bnsp,s->bnp", rows, w / w.sum()) if form.levels else rows[:, :, 0]
    inner = rows - middle[:, :, None] if form.levels else rows
    inner = (inner * np.sqrt(w)[:, None]).reshape(B, n * S, p)
    return inner.transpose(0, 2, 1) @ inner, middle


def each_trajectory(panels: Panels, way: DirectedFit) -> tuple[Array, Array]:
    """Log-likelihoods (B, n) of the trajectories in one direction, and residuals (B, n, S, d).

    Residuals are about each subject's own intercept where there are such, and divided by √v; positions count from the panel's
    start in either direction.
    """
    e, middle, live = _residuals(panels, way)
    d, lags = way.H.shape[1], way.form.lags
    w = panels.weights(lags, backwards=way.backwards)
    W, S = w.sum(), len(w)
    constant = d * np.log(2 * np.pi)
    steps = np.broadcast_to(-d * (live @ np.log(w)), way.start.log_densities.shape)
    if middle is None or way.of_start is None or way.omega is None:
        squares, log_det = _squares(e, way.H)
        steps = steps + squares.sum(axis=2) + live.sum(axis=1) * (log_det[:, None] + constant)
        return way.start.log_densities - 0.5 * steps, e
    first = panels.ends(lags)[int(way.backwards)]
    known = np.concatenate([np.ones((*first.shape[:2], 1)), first], axis=2)
    u = middle - known @ way.of_start
    inner, log_H = _squares(e, way.H)
    outer, log_B = _squares(u, way.omega + way.H / W)
    steps = steps + inner.sum(axis=2) + (S - 1) * (log_H[:, None] + constant)
    steps += outer + log_B[:, None] + constant + d * np.log(W)
    return way.start.log_densities - 0.5 * steps, e


def _residuals(panels: Panels, way: DirectedFit) -> tuple[Array, Array | None, Array]:
    """Residuals (B, n, S, d) divided by √v, about the intercepts; their means (B, n, d) by subject; and which steps exist."""
    rows, live = step_rows(panels, way.form)
    w = panels.weights(way.form.lags, backwards=way.backwards)
    e = rows @ way.leaves[:, None]
    middle = None
    if way.omega is not None:
        middle = np.einsum("bnsd,s->bnd", e, w / w.sum())
        e -= middle[:, :, None]
    if panels.spread is not None:
        e *= np.sqrt(w)[:, None]
    return e, middle, live


def _squares_by_position(panels: Panels, way: DirectedFit) -> Array:
    """`Σ_j eᵀ H⁻¹ e` of a panel's steps by position, (S,), in units of their variances v."""
    lags, d = way.form.lags, way.H.shape[1]
    total = np.zeros(panels.x.shape[2] - lags)
    if way.omega is not None or lags > 1 or panels.lengths is not None:
        for some in panels.parts(lags):
            total += _squares(_residuals(some, way)[0], way.H)[0][0].sum(axis=0)
        return total
    # Of single steps in one product, without rows: z = (x, x' − x, 1) leaves x (l₀ − l₁) + x' l₁ + l₂.
    leaves = way.leaves[0] @ inverted(np.linalg.cholesky(way.H))[0].T
    both = np.concatenate([leaves[:d] - leaves[d : 2 * d], leaves[d : 2 * d]], axis=1)
    for some in panels.parts(lags):
        y = some.x[0] @ both
        e = y[:, :-1, :d] + y[:, 1:, d:]
        if way.form.affine:
            e += leaves[2 * d]
        total += np.einsum("nsd,nsd->s", e, e)
    return total * panels.weights(lags, backwards=way.backwards)


def regressors(panels: Panels, way: DirectedFit) -> Array:
    """The regressors of the residuals of `each_trajectory`, (B, n, S, lags·d), about subjects' means where intercepts differ."""
    rows, _ = step_rows(panels, way.form)
    d, lags = way.H.shape[1], way.form.lags
    rows = rows @ _turn(way.form, d) if way.backwards else rows
    past: Array = rows[..., : lags * d]
    if way.form.levels:
        w = panels.weights(lags, backwards=way.backwards)
        past = past - np.einsum("bnsp,s->bnp", past, w / w.sum())[:, :, None]
    return past


def unequal(panels: Panels, form: Form) -> Panels | None:
    """The panel with a variance for each step, estimated from both directions together; None where they do not differ."""
    n, T, d = panels.x.shape[1:]
    if panels.lengths is not None or T < MIN_STEPS_FOR_VARIANCES + 2:
        return None
    v = np.ones(T - 1)
    for _ in range(MAX_VARIANCE_ROUNDS):
        halves, seen = np.zeros(T - 1), np.zeros(T - 1)
        for way in fit_directions(panels, form):
            squares = _squares_by_position(panels, way)
            w = panels.weights(form.lags, backwards=way.backwards)
            at = slice(0, T - form.lags) if way.backwards else slice(form.lags - 1, None)
            halves[at] += 0.5 * squares / w
            seen[at] += 1
        halves = halves / seen
        found = dispersion(halves, float(n * d))
        if found is None:
            return None
        new = (found.beta + halves) / (n * d / 2 + found.alpha)
        new *= np.mean(1 / new)
        moved, v = float(np.abs(np.log(new / v)).max()), new
        panels = replace(panels, spread=v)
        if moved < VARIANCE_TOLERANCE:
            break
    return panels


def _turn(form: Form, d: int) -> Array:
    """The matrix that takes a row (x, Δ_1, …, Δ_L, 1) to that of the reversed step: (x + Σ Δ, −Δ_L, …, −Δ_1, 1)."""
    L, eye = form.lags, np.eye(d)
    p = (L + 1) * d + (form.affine and not form.levels)
    turn = np.zeros((p, p))
    turn[(L + 1) * d :, (L + 1) * d :] = 1.0
    turn[:d, :d] = eye
    for k in range(1, L + 1):
        turn[k * d : (k + 1) * d, :d] = eye
        back = L + 1 - k
        turn[k * d : (k + 1) * d, back * d : (back + 1) * d] = -eye
    return turn


def _split(rows: Array, form: Form, d: int) -> tuple[Array, Array]:
    """The regressors of rows, and the response."""
    a, b = form.lags * d, (form.lags + 1) * d
    return np.concatenate([rows[..., :a], rows[..., b:]], axis=-1), rows[..., a:b]


def _parts(gram: Array, form: Form, d: int) -> tuple[Array, Array, Array]:
    """Second moments of regressors, of regressors with the response, and of the response."""
    rows = _split(gram, form, d)
    xx, xy = _split(rows[0].transpose(0, 2, 1), form, d)
    return xx, xy, _split(rows[1].transpose(0, 2, 1), form, d)[1]


def regressed(panels: Panels, form: Form) -> DirectedFit:
    """The fit to every panel as it stands, of a form without random intercepts, before it has a start law."""
    gram, count = _second_moments(panels, form)[0], float(panels.live(form.lags).sum())
    return _regressed(form, gram, count, panels.x.shape[3])


def _regressed(form: Form, gram: Array, count: float, d: int) -> DirectedFit:
    xx, xy, yy = _parts(gram, form, d)
    theta = _solved(_ridged(xx), xy)
    H = _ridged((yy - xy.transpose(0, 2, 1) @ theta) / count)
    log_det = np.linalg.slogdet(H)[1]
    total = -0.5 * count * (log_det + d + d * np.log(2 * np.pi))
    return DirectedFit(form, total, theta, H, NO_START)


def _blocks(H: Array, lags: int) -> Array:
    """H for each of the slices of a start."""
    return H if lags == 1 else np.asarray(np.kron(np.eye(lags)[None], H))


def _ridged(gram: Array) -> Array:
    """Positive definite in spite of rounding."""
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    floor = RIDGE * (diagonal + diagonal.mean(axis=1, keepdims=True)) + 1e-300
    return gram + floor[:, :, None] * np.eye(gram.shape[1])


def _solved(A: Array, b: Array) -> Array:
    found: Array = np.linalg.solve(A, b)  # type: ignore[assignment]
    return found


def _squares(e: Array, H: Array) -> tuple[Array, Array]:
    """`eᵀ H⁻¹ e` over the last axis of e (B, ..., d), and log|H|."""
    lower = np.linalg.cholesky(H)
    white = e.reshape(len(e), -1, e.shape[-1]) @ inverted(lower).transpose(0, 2, 1)
    log_det = 2 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    return np.einsum("bid,bid->bi", white, white).reshape(e.shape[:-1]), log_det


# -- random intercepts --------------------------------------------------------------------------------------


class _Between(NamedTuple):
    """Moments within subjects, and between them after regression on the start; S steps of n subjects.

    `W` is the total weight of the steps, S where their variances are equal.
    """

    within: tuple[Array, Array, Array]
    between: tuple[Array, Array, Array]
    n: int
    S: int
    W: float
    axes: tuple[Array, Array]


def _axes(within: Array, between: Array, W: float) -> tuple[Array, Array]:
    """Coordinates M with `Mᵀ (wxx + W bxx) M = 1` and `Mᵀ W bxx M` diagonal, and that diagonal, in [0, 1]."""
    inverse = inverted(np.linalg.cholesky(_ridged(within + W * between)))
    share, U = np.linalg.eigh(W * inverse @ between @ inverse.transpose(0, 2, 1))
    return inverse.transpose(0, 2, 1) @ U, np.clip(share, 0.0, 1.0)


def _with_intercepts(form: Form, gram: Array, middle: Array, first: Array, w: Array) -> DirectedFit:
    """Within and between residuals by generalised least squares: H from the one, H/W + Ω from the other."""
    S, W = len(w), float(w.sum())
    B, n, d = *first.shape[:2], first.shape[2] // form.lags
    known = np.concatenate([np.ones((B, n, 1)), first], axis=2)
    own = _ridged(known.transpose(0, 2, 1) @ known)
    explained = _solved(own, known.transpose(0, 2, 1) @ middle)
    rest = middle - known @ explained
    outer = rest.transpose(0, 2, 1) @ rest
    within, between = _parts(gram, form, d), _parts(outer, form, d)
    parts = _Between(within, between, n, S, W, _axes(within[0], between[0], W))
    # Two starts: mean reversion as seen within subjects, and over all of them.
    begins = [
        _solved(_ridged(xx), xy)
        for xx, xy in (
            parts.within[:2],
            tuple(a + W * b for a, b in zip(parts.within[:2], parts.between[:2], strict=True)),
        )
    ]
    tried = [_alternated(parts, theta, START_ALTERNATIONS) for theta in begins]
    better = (tried[1][0] > tried[0][0])[:, None, None]
    value, theta, H, apart = _alternated(
        parts, np.where(better, tried[1][1], tried[0][1]), MAX_ALTERNATIONS
    )
    x, y = _split(explained, form, d)
    total = value - 0.5 * n * d * (S * np.log(2 * np.pi) + np.log(W))
    return DirectedFit(form, total, theta, H, NO_START, of_start=y - x @ theta, omega=apart - H / W)


def _alternated(parts: _Between, theta: Array, steps: int) -> tuple[Array, Array, Array, Array]:
    """The log-likelihood but for constants, θ, H and the covariance between subjects, H/W + Ω with Ω ⪰ 0.

    In the coordinates where H is 1 and the rest diagonal, D, every equation stands alone, `(wxx + bxx/D_i) θ_i = …`; where
    `wxx + W bxx` is 1 and W bxx diagonal, β, all of them are: `1 − β + β/(W D_i)`.
    """
    (_, wxy, _), (_, bxy, _) = parts.within, parts.between
    back, share = parts.axes
    before = np.full(len(theta), -np.inf)
    value, H, V, D = _log_likelihood(parts, theta)
    for _ in range(steps):
        if not (value > before + MIN_GAIN_NATS).any():
            break
        before = value
        white = np.linalg.inv(V).transpose(0, 2, 1)
        right = back.transpose(0, 2, 1) @ (wxy @ white + (bxy @ white) / D[:, None, :])
        left = 1 - share[:, :, None] * (1 - 1 / (parts.W * D[:, None, :]))
        theta = back @ (right / np.maximum(left, RIDGE)) @ V.transpose(0, 2, 1)
        value, H, V, D = _log_likelihood(parts, theta)
    return value, theta, H, (V * D[:, None, :]) @ V.transpose(0, 2, 1)


def _log_likelihood(parts: _Between, theta: Array) -> tuple[Array, Array, Array, Array]:
    """The log-likelihood but for constants at θ, H, coordinates V with V Vᵀ = H, and the variances between in them."""
    H, V, values, D = _covariances(parts, theta)
    d = H.shape[1]
    log_H = np.linalg.slogdet(H)[1]
    inner = parts.n * (parts.S - 1) * (log_H + d)
    outer = parts.n * (log_H + (np.log(D) + values / D).sum(axis=1))
    return -0.5 * (inner + outer), H, V, D


def _covariances(parts: _Between, theta: Array) -> tuple[Array, Array, Array, Array]:
    """H, coordinates V with V Vᵀ = H, and the variances between in them: as they are, and at least 1/W."""
    found = []
    counts = parts.n * (parts.S - 1), parts.n
    for (xx, xy, yy), count in zip((parts.within, parts.between), counts, strict=True):
        cross = xy.transpose(0, 2, 1) @ theta
        rest = yy - cross - cross.transpose(0, 2, 1) + theta.transpose(0, 2, 1) @ xx @ theta
        found.append(_ridged(rest / count))
    H, between = found
    lower = np.linalg.cholesky(H)
    inverse = inverted(lower)
    values, U = np.linalg.eigh(inverse @ between @ inverse.transpose(0, 2, 1))
    return H, lower @ U, values, np.maximum(values, 1 / parts.W)
