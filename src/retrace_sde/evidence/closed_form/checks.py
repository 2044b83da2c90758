"""Residual checks of a step model: what a direction must not rest on.

A model whose residuals still move together, change their spread, or revert as measurement noise makes them, has not explained
the panel; its direction would be that of what it left out. So such a model has no say: first its nuisances are freed
(`free_nuisances`), and if that does not help, another model must explain the panel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import (
    RIDGE,
    StepFit,
    centred_rows,
    contributions,
    fit_directions,
    residuals,
    whitened,
)
from retrace_sde.evidence.closed_form.sums import StepSums
from retrace_sde.io.arrays import Array
from retrace_sde.process.tails import chi2_sf, norm_sf, t_sf

CHECK_LEVEL = 0.02
"""Level of each check. A nuisance freed in vain costs power in few panels of a hundred; one kept in error calls a direction."""

BEYOND_DOUBT_P = 1e-4
"""p-value above which freed variances may be chance: the direction must then be significant with equal ones, too. With free variances
there is no null at rest, and of 32 shifted panels one was called wrongly."""

POLYNOMIAL_FACTOR = 20.0
"""By which the p-value of equal offsets is multiplied in the better direction of a polynomial drift, so that it counts at .001, if the other one explains
the means worse still. A cubic only approximates a coarse step; with free offsets, which the reverse needs far more (p < 1e-90), most of the evidence was lost.
FitzHugh–Nagumo is called in .98 of 80 panels, .90 without the factor; subjects with onsets of their own wrongly in the same 2 of 60. In both directions
alike, the factor let the wrong one of an epidemic pass."""

CORRELATED_Z, CURVED_CORRELATED_Z = 3.0, 2.33
"""Correlation of successive residuals, in standard errors, beyond which a model has left something out: measurement noise where
it is negative; the second of polynomial drifts, the quantile of `CHECK_LEVEL`. With 3 for these, too, subjects with onsets of their own were called wrongly in 7 of 150
panels, 3 now, by polynomials whose z was 2.2 to 3. With 2.33 for linear steps, too, no onset more was left open, but 888 patients of intensive care were, whose z of 2.6 is worth 3
nats (z² / 2) of a ratio of 337: with so many, a correlation of .02 is significant."""


MIN_SHARE_WHEN_CURVED = 0.5
"""Share of a ratio by linear memory that must remain once each variable may have a cubic in its own step: no model with memory has a cubic
drift, so that what fails it leaves the direction open. One coordinate of the Lorenz system (12 panels): at most .4, mostly negative;
888 patients of intensive care, whose curvature is significant because they are many: .8."""


CURVATURE_LEVEL = 0.05
"""Level of Vuong's test, over trajectories, of what a polynomial drift gains. Where the size of the noise depends on the state, products of
large values fit single outliers of a few trajectories, by up to 60 nats: GARCH was called in 6 of 880 panels, all of them by polynomial
drifts whose gain had |z| ≤ 2.1; of logistic and Hénon maps z ≥ 86."""


class Checks(NamedTuple):
    """p-values of equal offsets and of equal variances (1 where they are free), the lag-one correlation as a z, the share of the
    ratio that is left once steps may be curved, the p-value of what curved steps gain (0 where they are linear), and the bound of z."""

    means: float
    spreads: float
    lag_one_z: float
    share_when_curved: float = 1.0
    curvature: float = 0.0
    correlated_z: float = CORRELATED_Z

    @property
    def noisy(self) -> bool:
        """Residuals revert, as measurement noise makes them."""
        return self.lag_one_z < -self.correlated_z

    @property
    def unexplained(self) -> str | None:
        """What the residuals still show, in words; None: nothing."""
        if self.means < CHECK_LEVEL:
            return "all trajectories move together"
        if self.spreads < CHECK_LEVEL:
            return "the size of the steps changes with time"
        if abs(self.lag_one_z) > self.correlated_z:
            return (
                "steps revert, as measurement noise makes them"
                if self.noisy
                else "successive steps are correlated"
            )
        if self.share_when_curved < MIN_SHARE_WHEN_CURVED:
            return "steps are curved functions of the past"
        if self.curvature > CURVATURE_LEVEL:
            return "steps are curved in a few trajectories only"
        return None

    @property
    def passed(self) -> bool:
        """Nothing is left unexplained."""
        return self.unexplained is None


def checked(panels: Panels, fit: StepFit) -> Checks:
    """The checks of one panel in the direction of a fit."""
    e = residuals(panels, fit)
    white = whitened(e, fit.H)[0][0]
    lag_one = _lag_one(panels, white, fit)
    if fit.form.lags > 1:  # of what is correlated beyond memory only noise has a model
        lag_one = min(lag_one, 0.0)
    bound = CURVED_CORRELATED_Z if fit.form.degree > 1 else CORRELATED_Z
    if not panels.aligned:
        return Checks(1.0, 1.0, lag_one, correlated_z=bound)
    return Checks(
        1.0 if fit.form.means else _means(panels, fit),
        1.0 if fit.form.spreads else _spreads(white, panels.live(fit.form.lags)),
        lag_one,
        correlated_z=bound,
    )


def checks_of(panels: Panels, white: Array, like: StepFit, gain: Array, *, means: float) -> Checks:
    """The checks of whitened residuals (n, S, d) of another step model than the closed forms, in its direction.

    `like`: the closed form with the same regressors; `gain`: what each trajectory gains over linear steps; `means`: the p-value of equal offsets.
    """
    spreads = _spreads(white, panels.live(1)) if panels.aligned else 1.0
    return Checks(
        means,
        spreads,
        _lag_one(panels, white, like),
        curvature=_gain_p(panels, gain),
        correlated_z=CURVED_CORRELATED_Z,
    )


class Freed(NamedTuple):
    """A form with the nuisances free that its residuals ask for, and their checks (None: not made).

    `less`: the form before its variances were freed, where that was not beyond doubt. `torn`: the direction that fits better does not
    explain the means, the other one does.
    """

    form: Form
    checks: Checks | None
    less: Form | None = None
    torn: bool = False


def free_nuisances(panels: Panels, form: Form, price: Callable[[Panels, Form], float]) -> Freed:
    """The form with as few free nuisances as its residuals allow, in the direction that fits better.

    Offsets come first: what moves all trajectories at once looks like a change of spread. They are freed where neither direction does
    without them: one that explains the means must not lose to its reverse because that is excused. They are taken back where free
    variances do instead. Variances are freed, too, where the penalised log-likelihood asks for them (`price`: the penalty): of tied
    values some slices hold hardly any change.
    """
    size, less, bound = panels.x.shape[1:], None, form.means
    found = _better(panels, form)
    for nuisance in ("means", "spreads", "means") if panels.aligned else ():
        freed = form._replace(**{nuisance: True})
        if freed == form or not freed.fits(*size):
            continue
        asked = getattr(found, nuisance) < CHECK_LEVEL
        if nuisance == "means":
            asked = asked and _needs_offsets(panels, form)
        elif not asked:
            gain = _best(panels, freed) - _best(panels, form)
            asked = gain > price(panels, freed) - price(panels, form)
        if asked:
            if nuisance == "spreads" and found.spreads > BEYOND_DOUBT_P:
                less = form
            form, found = freed, _better(panels, freed)
    plainer = form._replace(means=bound)
    if plainer != form and form.spreads and not _needs_offsets(panels, plainer):
        form, found = plainer, _better(panels, plainer)
    torn = found.means < CHECK_LEVEL and not _needs_offsets(panels, form)
    return Freed(form, _with_curvature(panels, form, found), less, torn)


def _needs_offsets(panels: Panels, form: Form) -> bool:
    """In both directions trajectories move together."""
    return all(p < CHECK_LEVEL for p in _offsets(panels, form))


def _offsets(panels: Panels, form: Form) -> tuple[float, float]:
    """p-values of equal offsets, in the direction that fits better and in the other."""
    better, worse = (_means(*each) for each in _sides(panels, form))
    if form.degree > 1 and better > worse:
        better = min(1.0, POLYNOMIAL_FACTOR * better)
    return better, worse


def _best(panels: Panels, form: Form) -> float:
    return float(max(each.total[0] for each in fit_directions(panels, form)))


def _better(panels: Panels, form: Form) -> Checks:
    """The checks in the direction that fits better, but for those of curved steps."""
    found = checked(*_sides(panels, form)[0])
    if form.degree == 1 or form.means or not panels.aligned:
        return found
    return found._replace(means=_offsets(panels, form)[0])


def _sides(panels: Panels, form: Form) -> list[tuple[Panels, StepFit]]:
    """Both directions with their fits, the better one first."""
    fits = fit_directions(panels, form)
    return sorted(zip((panels, panels.reverse), fits, strict=True), key=_total)[::-1]


def _with_curvature(panels: Panels, form: Form, found: Checks) -> Checks:
    """The checks with those of curved steps, where the others are passed."""
    if not found.passed or form.lags == form.degree == 1:
        return found
    better, worse = _sides(panels, form)
    if form.degree > 1:
        straight = fit_directions(better[0], form._replace(degree=1))[0]
        return found._replace(curvature=_curvature(*better, straight))
    ratio = _total(better) - _total(worse)
    turned = _gain_when_curved(*better) - _gain_when_curved(*worse)
    return found._replace(share_when_curved=1 + turned / ratio if ratio > 0 else 1.0)


def _total(side: tuple[Panels, StepFit]) -> float:
    return float(side[1].total[0])


def _means(panels: Panels, fit: StepFit) -> float:
    """Wilks' test of one offset for all steps, against a trend in time and against any: one p-value of both (Bonferroni)."""
    form, sums = fit.form, StepSums.of(panels, fit.form)
    n, S, d = panels.x.shape[1], len(sums.count), panels.x.shape[3]
    weights = 1 / fit.variances[0]
    w, mean = weights * sums.count, sums.mean[0]
    within = sums.about_slices(np.tile(weights, (2, 1)) if form.spreads else None)[0]
    if form.levels:  # the subjects' weighted means are free: what they take of the deviations
        tiled = np.tile(weights, (2, 1))
        middle = (sums.of_trajectories(tiled) if form.spreads else sums.trajectory_means)[0]
        middle = middle - middle.mean(axis=0)
        within = within - weights.sum() * middle.T @ middle
    # A constant, or the subjects' means, and an offset of each further step: deviations from the slices' means are left.
    bound = 0 if form.affine or form.levels else 1
    rows = mean if bound else mean - w @ mean / w.sum()
    plain, free = (_log_det(within + (w[:k, None] * rows[:k]).T @ rows[:k], d) for k in (S, bound))
    constants = n if form.levels else 1 - bound
    left = float(sums.count.sum()) - (mean.shape[1] - d) - constants - (S - 1)
    trend = _trend(fit, within, w, rows, n, left)
    found = []
    for gain, h in ((trend, 2), (plain - free, S - 1)):
        statistic = (left - (d - h + 1) / 2) * gain
        found.append(float(chi2_sf(max(statistic, 0.0), d * h)))
    return _either(*found)


def _trend(fit: StepFit, within: Array, w: Array, rows: Array, n: int, left: float) -> float:
    """`log |E + H| / |E|` of a linear and a quadratic trend of the steps' offsets, dynamics and covariance being those of deviations.

    Deviations are independent of the means' path, but dynamics estimated from past values are biased, and of many variables what they
    leave of the path looks like a trend: in .25 to .9 of panels at rest with 50 variables (n = 30, T = 8 to 30, level .05; .05 to .2 without the bias).
    """
    d, form = fit.H.shape[1], fit.form
    k, S = len(within) - d, len(w)
    gram = _positive(within[:k, :k])
    F: Array = np.asarray(np.linalg.solve(gram, within[:k, k:]))
    E = _positive(within[k:, k:] - within[k:, :k] @ F)
    if fit.stable:  # others are estimated from values that outweigh their noise
        F -= _bias(F, gram, E / left, n, S, levels=form.levels)
    t = np.linspace(-1, 1, S)[:, None]
    constant = np.ones((S, int(form.affine or form.levels)))
    columns = np.concatenate([constant, t, t**2], axis=1)
    weighted = w[:, None] * columns
    inverse = np.linalg.inv(weighted.T @ columns)[-2:]
    path = inverse @ weighted.T @ rows
    slopes, past = path[:, k:] - path[:, :k] @ F, path[:, :k]
    spread = inverse[:, -2:] + past @ np.linalg.solve(gram, past.T)
    H = slopes.T @ np.linalg.solve(spread, slopes)
    return float(np.linalg.slogdet(E + H)[1] - np.linalg.slogdet(E)[1])


def _bias(F: Array, gram: Array, noise: Array, n: int, S: int, *, levels: bool) -> Array:
    """Of a regression (k, d) on past values in n trajectories of S steps, to the first order (after Nicholls and Pope 1988),

        −G⁻¹ Σ_l (1 − l/S) [C^{2l−1} + (tr C^l + n) C^{l−1}] Σ,

    G the regressors' second moments, C the step of the state as it multiplies columns, Σ the noise; n only where subjects have means of their own.
    """
    k, d = F.shape
    C = np.eye(k, k=-d)
    C[:d] = F.T
    C[:d, :d] += np.eye(d)
    total, power = np.zeros((k, k)), np.eye(k)
    for lag in range(1, S):
        after = power @ C
        total += (1 - lag / S) * (power @ after + (np.trace(after) + n * levels) * power)
        power = after
    return np.asarray(-np.linalg.solve(gram, total[:, :d] @ noise), dtype=np.float64)


def _log_det(G: Array, d: int) -> float:
    """Of the residual covariance of the last d variables, regressed on the others, by their second moments."""
    k = len(G) - d
    inner = G[:k, :k] + RIDGE * np.trace(G) / len(G) * np.eye(k)
    H = G[k:, k:] - G[k:, :k] @ np.linalg.solve(inner, G[:k, k:])
    return float(np.linalg.slogdet(H + RIDGE * np.trace(H) * np.eye(d))[1])


def _spreads(white: Array, live: Array) -> float:
    """Equal variances of the steps, against a trend in time and against any; their kurtosis is estimated."""
    S = white.shape[1]
    q = np.einsum("nsd,nsd->ns", white, white)
    mean = q[live > 0].mean()
    count = live.sum(axis=0)
    z = np.sqrt(count) * ((q * live).sum(axis=0) / count - mean) / q[live > 0].std()
    t = np.linspace(-1, 1, S)
    trend = float(2 * norm_sf(abs(z @ t) / np.sqrt(t @ t)))
    return _either(trend, float(chi2_sf(z @ z, S - 1)))


def _either(one: float, two: float) -> float:
    """One p-value of two tests of the same hypothesis (Bonferroni): with the smaller of both, every check had twice its level."""
    return min(1.0, 2 * min(one, two))


def _lag_one(panels: Panels, white: Array, fit: StepFit) -> float:
    """Correlation of successive standardised residuals (n, S, d) in standard errors: what cannot be the fit's own doing.

    The fit makes their sum negative. By `−Σ z_tᵀ (Σ z zᵀ)⁻¹ z_{t+1}` for each variable, if regressors were fixed; but these are past values, and where
    trajectories forget their start within the panel nothing is left of it. So the sum's expectation is between the two, and what lies between is zero.
    With the former always, z was 2.4 ± .9 for 50 variables (4 panels, n = 120, T = 250), beyond what rules a model out.
    """
    products = np.einsum("nsd,nsd->ns", white[:, 1:], white[:, :-1])
    gram, lagged = _regressor_moments(panels, fit)
    inverse = np.linalg.pinv(gram, hermitian=True)
    taken = white.shape[2] * float(np.trace(inverse @ lagged))
    total, S = float(products.sum()), white.shape[1]
    if fit.form.levels:  # residuals that sum to zero are correlated by −1/(S − 1)
        total += float((white**2).sum()) * (1 - 1 / S) / S
    low, high = sorted((total, total + taken))
    return float(np.clip(0.0, low, high)) / float(np.sqrt((products**2).sum() + 1e-300))


def _regressor_moments(panels: Panels, fit: StepFit) -> tuple[Array, Array]:
    """`Σ z_t z_tᵀ` and `Σ z_t z_{t+1}ᵀ` of the regressors about what is free: of Markov steps from the moments of their rows."""
    form, d = fit.form, panels.x.shape[3]
    plain = form.lags == form.degree == 1 and not form.levels and not form.spreads
    if not plain or panels.visits.ragged:
        z = centred_rows(panels, fit)
        gram = np.tensordot(z, z, ([0, 1], [0, 1]))
        return gram, np.tensordot(z[:, :-1], z[:, 1:], ([0, 1], [0, 1]))
    sums = StepSums.of(panels, form)
    if form.means:
        G, centre = sums.about_slices(None)[0], sums.mean[0, -1]
    else:
        total, count = (each[0] for each in sums.total(None))
        shift = np.r_[total[:d] / count, np.zeros(d)]
        G = sums.about_zero(None)[0] - np.outer(shift, total) - np.outer(total, shift)
        G += count * np.outer(shift, shift)
        centre = shift
    last = panels.x[0, :, -2] - centre[:d]
    after = panels.x[0, :, -1] - centre[:d] - centre[d:]
    return G[:d, :d], G[:d, :d] + G[:d, d:] - last.T @ after


def _curvature(panels: Panels, curved: StepFit, straight: StepFit) -> float:
    """Vuong's p-value of what a curved drift gains over a linear one."""
    return _gain_p(panels, contributions(panels, curved)[0] - contributions(panels, straight)[0])


def _gain_p(panels: Panels, gain: Array) -> float:
    """Vuong's p-value of what each trajectory gains, by trajectories or groups of them."""
    each = gain if panels.groups is None else np.bincount(panels.groups, weights=gain)
    error = float(each.std(ddof=1)) * np.sqrt(len(each)) if len(each) > 1 else 0.0
    if error == 0:
        return 0.0
    return float(2 * t_sf(abs(float(each.sum())) / error, len(each) - 1))


def _gain_when_curved(panels: Panels, fit: StepFit) -> float:
    """Nats gained by the square and the cube of each variable in its own step: regressions on what linear steps leave of both."""
    e, z, live = residuals(panels, fit)[0], centred_rows(panels, fit), panels.live(fit.form.lags)
    n, S, d = e.shape
    root = np.sqrt(fit.variances[0])[:, None]  # rows come divided by it
    x, live = z[..., :d] * root, live[..., None]
    squares = x * x
    both = []
    for each in (squares, squares * x):
        each -= (each * live).sum(axis=(0, 1)) / live.sum()
        each *= live
        if fit.form.levels:
            each -= each.mean(axis=1, keepdims=True)
        each /= root
        both.append(each.reshape(n * S, d))
    z, y = z.reshape(n * S, -1), e.reshape(n * S, d)
    gram = _positive(z.T @ z)
    crossed = [z.T @ each for each in both]
    solved = [np.linalg.solve(gram, each) for each in crossed]
    # Of every variable: second moments (d, 2, 2) of its square and cube about linear steps, and with its residual.
    G = np.empty((d, 2, 2))
    for i in range(2):
        for k in range(2):
            G[:, i, k] = _columns(both[i], both[k]) - _columns(crossed[i], solved[k])
    of_residuals = z.T @ y
    b = np.stack(
        [
            _columns(each, y) - _columns(s, of_residuals)
            for each, s in zip(both, solved, strict=True)
        ],
        axis=1,
    )
    explained = (b * np.linalg.solve(_positive(G), b[..., None])[..., 0]).sum(axis=1)
    share = np.clip(explained / np.maximum(_columns(y, y), np.finfo(float).tiny), 0, 1 - RIDGE)
    return -0.5 * float(live.sum()) * float(np.log1p(-share).sum())


def _columns(a: Array, b: Array) -> Array:
    """Products of columns with one another, (d,)."""
    return np.einsum("nd,nd->d", a, b)


def _positive(gram: Array) -> Array:
    """Positive definite in spite of rounding."""
    size = np.trace(gram, axis1=-2, axis2=-1)[..., None, None]
    return np.asarray(gram + (RIDGE * size + np.finfo(float).tiny) * np.eye(gram.shape[-1]))
