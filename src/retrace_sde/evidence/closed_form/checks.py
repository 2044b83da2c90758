"""Residual checks of a step model: what a direction must not rest on.

A model whose residuals still move together, change their spread, or revert as measurement noise makes them, has not explained
the panel; its direction would be that of what it left out. So such a model has no say: first its nuisances are freed
(`free_nuisances`), and if that does not help, another model must explain the panel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import (
    RIDGE,
    StepFit,
    centred_rows,
    fit_directions,
    regressors,
    residuals,
    squared,
)
from retrace_sde.io.arrays import Array

CHECK_LEVEL = 0.02
"""Level of each check. A nuisance freed in vain costs power in few panels of a hundred; one kept in error calls a direction."""

BEYOND_DOUBT_P = 1e-4
"""p-value above which freed variances may be chance: the direction must then be significant with equal ones, too. With free variances
there is no null at rest, and of 32 shifted panels one was called wrongly."""

CORRELATED_Z = 3.0
"""Correlation of successive residuals, in standard errors, beyond which a model has left something out: measurement noise where
it is negative."""


class Checks(NamedTuple):
    """p-values of equal offsets and of equal variances (1 where they are free), and the lag-one correlation as a z."""

    means: float
    spreads: float
    lag_one_z: float

    @property
    def noisy(self) -> bool:
        """Residuals revert, as measurement noise makes them."""
        return self.lag_one_z < -CORRELATED_Z

    @property
    def unexplained(self) -> str | None:
        """What the residuals still show, in words; None: nothing."""
        if self.means < CHECK_LEVEL:
            return "all trajectories move together"
        if self.spreads < CHECK_LEVEL:
            return "the size of the steps changes with time"
        if abs(self.lag_one_z) > CORRELATED_Z:
            return (
                "steps revert, as measurement noise makes them"
                if self.noisy
                else "successive steps are correlated"
            )
        return None

    @property
    def passed(self) -> bool:
        """Nothing is left unexplained."""
        return self.unexplained is None


def checked(panels: Panels, fit: StepFit) -> Checks:
    """The checks of one panel in the direction of a fit."""
    e = residuals(panels, fit)[0]
    live = panels.live(fit.form.lags)
    spread, lag_one = _spreads(e, fit, live), _lag_one(panels, e, fit)
    if fit.form.lags > 1:  # of what is correlated beyond memory only noise has a model
        lag_one = min(lag_one, 0.0)
    if not panels.aligned:
        return Checks(1.0, 1.0, lag_one)
    return Checks(
        1.0 if fit.form.means else _means(panels, fit, live),
        1.0 if fit.form.spreads else spread,
        lag_one,
    )


class Freed(NamedTuple):
    """A form with the nuisances free that its residuals ask for, and their checks.

    `less`: the form before its variances were freed, where that was not beyond doubt.
    """

    form: Form
    checks: Checks
    less: Form | None = None


def free_nuisances(panels: Panels, form: Form, price: Callable[[Panels, Form], float]) -> Freed:
    """The form with as few free nuisances as its residuals allow, in the direction that fits better.

    Offsets come first: what moves all trajectories at once looks like a change of spread. Variances are freed, too, where the
    penalised log-likelihood asks for them (`price`: the penalty): of tied values some slices hold hardly any change.
    """
    size, less = panels.x.shape[1:], None
    found = _better(panels, form)
    for nuisance in ("means", "spreads", "means") if panels.aligned else ():
        freed = form._replace(**{nuisance: True})
        if freed == form or not freed.fits(*size):
            continue
        asked = getattr(found, nuisance) < CHECK_LEVEL
        if not asked and nuisance == "spreads":
            gain = _best(panels, freed) - _best(panels, form)
            asked = gain > price(panels, freed) - price(panels, form)
        if asked:
            if nuisance == "spreads" and found.spreads > BEYOND_DOUBT_P:
                less = form
            form, found = freed, _better(panels, freed)
    return Freed(form, found, less)


def _best(panels: Panels, form: Form) -> float:
    return float(max(each.total[0] for each in fit_directions(panels, form)))


def _better(panels: Panels, form: Form) -> Checks:
    """The checks in the direction that fits better."""
    both = fit_directions(panels, form)
    way = int(both[1].total[0] > both[0].total[0])
    return checked((panels, panels.reverse)[way], both[way])


def _means(panels: Panels, fit: StepFit, live: Array) -> float:
    """Wilks' test of one offset for all steps: against a trend in time, and against any; the smaller p-value."""
    form, x = fit.form, panels.x[0]
    n, S, d = live.shape[0], live.shape[1], x.shape[2]
    root = np.sqrt(live / fit.variances[0])[..., None]
    z = np.concatenate([regressors(x, form), np.diff(x[:, form.lags - 1 :], axis=1)], axis=2) * root

    def log_det(columns: Array) -> tuple[float, int]:
        """Of the residual covariance with functions of time (S, k) among the regressors."""
        more = np.broadcast_to(columns[None], (n, *columns.shape)) * root
        rows = np.concatenate([z[..., :-d], more, z[..., -d:]], axis=2)
        if form.levels:
            # Subjects' weighted means, of rows that carry the roots of the weights.
            w = root / np.sqrt((root**2).sum(axis=1, keepdims=True))
            rows = rows - w * (w * rows).sum(axis=1, keepdims=True)
        rows = rows.reshape(n * S, -1)
        G = rows.T @ rows
        k = len(G) - d
        inner = G[:k, :k] + RIDGE * np.trace(G) / len(G) * np.eye(k)
        H = G[k:, k:] - G[k:, :k] @ np.linalg.solve(inner, G[:k, k:])
        return float(np.linalg.slogdet(H + RIDGE * np.trace(H) * np.eye(d))[1]), k

    t = np.linspace(-1, 1, S)[:, None]
    constant = np.ones((S, 1 if form.affine and not form.levels else 0))
    plain, _ = log_det(constant)
    count = live.sum() - n * form.levels
    found = []
    for columns in (np.concatenate([t, t**2], axis=1), np.eye(S)[:, 1:]):
        tested, k = log_det(np.concatenate([constant, columns], axis=1))
        h = columns.shape[1]
        statistic = (count - k - (d - h + 1) / 2) * (plain - tested)
        found.append(float(stats.chi2.sf(max(statistic, 0.0), d * h)))
    return min(found)


def _spreads(e: Array, fit: StepFit, live: Array) -> float:
    """Equal variances of the steps: against a trend in time, and against any; their kurtosis is estimated."""
    S = e.shape[1]
    q = squared(e[None], fit.H)[0][0]
    mean = q[live > 0].mean()
    count = live.sum(axis=0)
    z = np.sqrt(count) * ((q * live).sum(axis=0) / count - mean) / q[live > 0].std()
    t = np.linspace(-1, 1, S)
    trend = float(2 * stats.norm.sf(abs(z @ t) / np.sqrt(t @ t)))
    return min(trend, float(stats.chi2.sf(z @ z, S - 1)))


def _lag_one(panels: Panels, e: Array, fit: StepFit) -> float:
    """Correlation of successive residuals in standard errors.

    The fit itself makes it negative, by `−Σ z_tᵀ (Σ z zᵀ)⁻¹ z_{t+1}` for each variable: counted where there are many.
    """
    white = np.linalg.solve(np.linalg.cholesky(fit.H[0]), e.reshape(-1, e.shape[2]).T).T
    white = white.reshape(e.shape)
    products = (white[:, 1:] * white[:, :-1]).sum(axis=2)
    z = centred_rows(panels, fit)
    past, next_ = (each.reshape(-1, z.shape[2]) for each in (z[:, :-1], z[:, 1:]))
    flat = z.reshape(-1, z.shape[2])
    inverse = np.linalg.pinv(flat.T @ flat, hermitian=True)
    taken = e.shape[2] * float(np.trace(inverse @ (past.T @ next_)))
    total, S = float(products.sum()) + taken, e.shape[1]
    if fit.form.levels:  # residuals that sum to zero are correlated by −1/(S − 1)
        total += float((white**2).sum()) * (1 - 1 / S) / S
    return total / float(np.sqrt((products**2).sum() + 1e-300))
