"""Whether trajectories move together: tests of independence on whitened residuals along a common order.

With `K_ij = Σ_t e_it · e_jt` two classical statistics are sums over pairs of trajectories:

* Pesaran's (2004) CD is `Σ_{i≠j} K_ij`, the variance of the slice means beyond independence. It finds shocks and offsets that
  move all trajectories the same way, and is blind to those that move half of them up and half of them down.
* The Lagrange multiplier test (Breusch and Pagan 1980) is `Σ_{i≠j} K_ij²` in units of each trajectory's own spread. It finds
  those too, and copies. Its bias in short panels (Pesaran, Ullah and Yamagata 2008) is taken out by randomisation.

CD is referred to its randomisation distribution: an independent trajectory's residuals with all signs changed are as likely
as they were, whatever their serial correlation and their spread. Of few trajectories there are too few sign patterns, of many
the means are Gaussian: there slice means are compared with the spread about them (an F test). LM is referred to panels in which each trajectory is moved in time by a random circular shift, which keeps serial correlation and breaks alignment.
A course that the linear drift does not explain moves all trajectories together too. So residuals are first cleared of what a
quadratic drift and one more step of memory explain in all trajectories alike (`cleared`), and of slices
that are no more than these regressors CD is that of scores for slice effects beside them.
Limits: symmetry of the residuals (CD); even spread along the order (LM): LM alone changes no fit; a common course that is neither
quadratic nor of one step's memory counts as shocks. Of states behind measurement noise less of a course is explained: where the
data prefer noise, shocks count only if trajectories are dependent along a fit with it, too (`estimator/fitting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.process.tails import f_sf

MIN_TESTED_TRAJECTORIES, MIN_TESTED_SLICES = 4, 4
"""Fewer trajectories or slices have no test of independence."""

MIN_SIGNED, MAX_SIGNED = 10, 100
"""Trajectories from which, and up to which, signs are changed at random: fewer have less than 2⁹ patterns."""

MAX_SHIFTED = 20
"""Trajectories used by LM, which is quadratic in their number."""

SIGN_PATTERNS, SHIFTS = 999, 99
"""Randomised panels behind the p-values of CD and LM."""

ROWS_PER_REGRESSOR = 8
"""Steps for each regressor that residuals are cleared by. n = 8, T = 8, d = 3 has 4 for products and memory: shocks of .3
are then found in .28 of 120 panels, by states alone in .88."""

DEPENDENCE_LEVEL = 0.01
"""Level at which trajectories are taken for dependent. What dependence does to estimates grows with `1 + (n − 1) share`, which
is what CD sees: a share that is missed at this level and found at .05 widens standard errors by less than 5 %."""


class Cleared(NamedTuple):
    """Residuals (n, S, d), and each trajectory's scores for slice effects: their sums over trajectories test these.

    `shrunk`: by least squares, the squares of residuals are smaller than those of the noise by this factor.
    """

    residuals: Array
    scores: Array
    shrunk: float = 1.0


class DependenceKind(StrEnum):
    """What the trajectories share."""

    INDEPENDENT = "independent"
    COMMON = "common shocks"
    CORRELATED = "correlated"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, eq=False)
class Dependence:
    """Whether trajectories move together beyond the SDE.

    `p_value` is CD's, `correlation_p_value` LM's (None: not tested, for the reason in `why`). `common_share` is the share
    of the variance of a step that all trajectories share, `effective_n` the number of independent trajectories whose mean would be
    as uncertain. `removed`: slice effects were taken out of the data, and parameters come from deviations from them;
    `common_covariance` (d, d) is then U, the covariance of the common shocks for each unit of time, in the units of `diffusion`.
    `why`: why independence was not tested, why shocks were not removed, or what was allowed for where there are none.
    """

    kind: DependenceKind
    p_value: float | None = None
    correlation_p_value: float | None = None
    common_share: float = 0.0
    effective_n: float = float("nan")
    removed: bool = False
    common_covariance: Array | None = None
    why: str = ""

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if self.kind is DependenceKind.NOT_TESTED:
            return f"Independence of the trajectories cannot be tested: {self.why}."
        p = f"p {p_text(self.p_value)}"
        if self.kind is DependenceKind.INDEPENDENT:
            done = ", but slice effects were removed as asked" if self.removed else ""
            allowed = f", {self.why}" if self.why else ""
            return f"No sign that trajectories share shocks (CD test, {p}){done}{allowed}."
        if self.kind is DependenceKind.CORRELATED:
            return (
                f"Some trajectories move together, others against them (LM test, p {p_text(self.correlation_p_value)}; CD test, {p}): "
                "copies, groups, or shocks of either sign. Standard errors assume independence; give groups if there are any."
            )
        said = (
            f"Trajectories share shocks, or a course that the drift does not explain (CD test, {p}): {self.common_share:.0%} of the variance of a step is common to all, so "
            f"that their mean is as uncertain as that of {self.effective_n:.3g} independent ones."
        )
        if self.removed:
            return f"{said} Order and parameters come from deviations from the slice means, which are free of it."
        return f"{said} {self.why}."


def p_text(value: float | None) -> str:
    """A p-value as a sentence has it."""
    if value is None:
        return "not computed"
    return "< 0.001" if value < 0.001 else f"= {value:.2g}"


def not_tested(why: str) -> Dependence:
    """Independence that cannot be tested, and why."""
    return Dependence(DependenceKind.NOT_TESTED, why=why)


def dependence_of(found: Cleared, n: int, groups: Indices | None = None) -> Dependence:
    """The tests on whitened residuals (m, S, d) of some of n trajectories along one order, NaN where there is none.

    Trajectories of one of the `groups` (m,) may be alike in any way: what is tested are the means of the groups.
    """
    e, scores, shrunk = found
    power = float(np.nanmean(e**2))
    if groups is not None:
        e, scores = _group_means(e, groups), _group_scores(scores, groups)
    m, S, _ = e.shape
    if m < MIN_TESTED_TRAJECTORIES or S < MIN_TESTED_SLICES - 1:
        if m >= MIN_TESTED_TRAJECTORIES:
            return not_tested(f"{S + 1} slices are too few")
        one, more = ("trajectory", "trajectories") if groups is None else ("group", "groups")
        return not_tested(f"1 {one} is too few" if m == 1 else f"{m} {more} are too few")
    share = common_share(e, power)
    p = cd_p_value(scores, shrunk)
    lm = lm_p_value(e)
    kind = DependenceKind.COMMON if p <= DEPENDENCE_LEVEL else DependenceKind.INDEPENDENT
    if kind is DependenceKind.INDEPENDENT:
        share = 0.0
        if lm <= DEPENDENCE_LEVEL:
            kind = DependenceKind.CORRELATED
    return Dependence(kind, p, lm, share, effective_number(n, share))


def cleared(e: Array, x: Array) -> Cleared:
    """Residuals e (n, T − 1, d) cleared of what states x (n, T, d) explain in all trajectories alike.

    By least squares on states, their products and the states before; in short panels, whose shocks so many regressors
    would explain, on states alone, or on nothing but a constant.
    """
    n, S, d = e.shape
    i, j = np.triu_indices(d)
    one = np.ones((n, S, 1))
    if n * S < ROWS_PER_REGRESSOR * (1 + d) or np.isnan(x).any():
        return _beside(one, e)
    x = (x - x.mean(axis=(0, 1))) / np.maximum(x.std(axis=(0, 1)), 1e-300)
    if n * (S - 1) < ROWS_PER_REGRESSOR * (1 + 2 * d + len(i)):
        return _beside(np.concatenate([one, x[:, :-1]], axis=2), e)
    now = x[:, 1:-1]
    z = np.concatenate([one[:, 1:], now, x[:, :-2], now[:, :, i] * now[:, :, j]], axis=2)
    return _beside(z, e[:, 1:])


def _beside(z: Array, e: Array) -> Cleared:
    """Least squares of e (n, S, d) on z (n, S, p), and each trajectory's score for slice effects beside z.

    With D the indicators of slices and `D̃ = D − z (zᵀz)⁻¹ zᵀD`, slice effects explain `|W^½ D̃ᵀe|²`, W the inverse of D̃ᵀD̃. That is a
    sum over trajectories, whose terms are the scores. Means of residuals over slices are not enough: of few slices z takes up
    all that their offsets do, and only the spread within slices tells it from z (T = 8, offsets of 1 sd: order right in .70 of 40 panels, by scores in .97).
    """
    missing = np.isnan(e)
    if not missing.any():
        return _beside_where(z, e, np.ones(e.shape[:2]))
    parts = [_beside_where(z, e[:, :, [k]], ~missing[:, :, k] * 1.0) for k in range(e.shape[2])]
    rest = np.concatenate([each.residuals for each in parts], axis=2)
    scores = np.concatenate([each.scores for each in parts], axis=2)
    shrunk = float(np.mean([each.shrunk for each in parts]))
    rest = np.where(missing, np.nan, rest)
    return Cleared(rest, scores if _few_slices(z) else rest, shrunk)


def _few_slices(z: Array) -> bool:
    """Slices are no more than regressors: then scores tell slice effects from z; else residuals do, whose means over slices show what z leaves.

    Scores also see curvature beyond z: logistic growth of independent trajectories (T = 16, d = 3) was taken for shocks in .56 of 25
    panels by scores, in .10 of 40 by residuals.
    """
    return bool(z.shape[1] <= z.shape[2])


def _beside_where(z: Array, e: Array, there: Array) -> Cleared:
    z, e = z * there[:, :, None], np.where(there[:, :, None] > 0, e, 0.0)
    rows = z.reshape(-1, z.shape[2])
    inverse = np.linalg.pinv(rows.T @ rows, rcond=1e-12, hermitian=True)
    rest = e - z @ (inverse @ (rows.T @ e.reshape(len(rows), -1)))
    if not _few_slices(z):
        return Cleared(rest, rest)
    sums = z.sum(axis=0)
    slope = sums @ inverse
    own = rest - slope @ (z.transpose(0, 2, 1) @ rest)
    values, vectors = np.linalg.eigh(np.diag(there.sum(axis=0)) - slope @ sums.T)
    kept = values > 1e-9 * values[-1]
    root = (vectors * np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)) @ vectors.T
    shrunk = 1 - z.shape[2] / max(float(there.sum()), z.shape[2] + 1.0)
    return Cleared(rest, np.sqrt(len(e)) * root @ own, shrunk)


def effective_number(n: int, share: float) -> float:
    """`1 / ((1 − ρ)/n + ρ)`: independent trajectories whose mean has the variance of n that share ρ of theirs."""
    return 1 / ((1 - share) / n + share)


def _group_means(e: Array, groups: Indices) -> Array:
    """Mean residuals (G, T − 1, d) of groups of trajectories; NaN where none of a group has one."""
    _, index = np.unique(groups, return_inverse=True)
    seen = np.zeros((index.max() + 1, *e.shape[1:]))
    sums = np.zeros_like(seen)
    np.add.at(sums, index, np.nan_to_num(e))
    np.add.at(seen, index, ~np.isnan(e))
    return np.where(seen > 0, sums / np.maximum(seen, 1), np.nan)


def _group_scores(scores: Array, groups: Indices) -> Array:
    """Sums of scores over groups, in units in which sums over groups weigh like those over trajectories."""
    _, index = np.unique(groups, return_inverse=True)
    sums = np.zeros((index.max() + 1, *scores.shape[1:]))
    np.add.at(sums, index, scores)
    return sums * np.sqrt(len(sums) / len(scores))


def common_share(e: Array, power: float | None = None) -> float:
    """ρ from the variance of slice means over n trajectories, or groups, beyond that of n independent ones.

    In units of `power`, the variance of a residual.
    """
    counts = (~np.isnan(e)).sum(axis=0)
    mean = np.nansum(e, axis=0) / np.maximum(counts, 1)
    spread = np.nansum((e - mean) ** 2, axis=0) / np.maximum(counts - 1, 1)
    beyond = float(np.mean((mean**2 - spread / np.maximum(counts, 1))[counts > 1]))
    return float(np.clip(beyond / (np.nanmean(e**2) if power is None else power), 0.0, 1.0))


def cd_p_value(e: Array, shrunk: float = 1.0) -> float:
    """Of Pesaran's CD: by random signs of whole trajectories, or of few or many trajectories by an F test of the slice means.

    Of `shrunk` residuals each trajectory's own squares fall short of what independence gives.
    """
    if not MIN_SIGNED <= len(e) <= MAX_SIGNED:
        return _f_test(e, shrunk)
    flat = np.nan_to_num(e.reshape(len(e), -1))
    K = flat @ flat.T
    beyond = K.sum() - np.trace(K) / shrunk
    np.fill_diagonal(K, 0.0)
    # The same sign patterns for every panel: an answer does not depend on a seed.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(SIGN_PATTERNS, len(e)))
    null = ((signs @ K) * signs).sum(axis=1) / shrunk
    return float((1 + (null >= beyond).sum()) / (SIGN_PATTERNS + 1))


def _f_test(e: Array, shrunk: float) -> float:
    """Slice means of scores against the spread about them; an offset was fitted, so that one of a variable's S directions is empty."""
    seen = ~np.isnan(e)
    counts = seen.sum(axis=0)
    mean = np.nansum(e, axis=0) / np.maximum(counts, 1)
    between = (counts * mean**2).sum()
    within = max(np.nansum(e**2) / shrunk - between, 1e-300)
    slices = (counts > 0).sum()
    one = slices - e.shape[2]
    free = one, np.maximum(counts - 1, 0).sum() * one / slices
    return float(f_sf((between / free[0]) / (within / free[1]), *free))


def lm_p_value(e: Array) -> float:
    """Of the Lagrange multiplier test, by random circular shifts of each trajectory.

    Products of two trajectories depend on the difference of their shifts alone: those of all lags are one Fourier transform.
    """
    e = np.nan_to_num(e[evenly(len(e), min(len(e), MAX_SHIFTED))])
    m, S, _ = e.shape
    e = e / np.sqrt(np.maximum((e**2).sum(axis=(1, 2), keepdims=True), 1e-300))
    shifts = np.random.default_rng(0).integers(0, S, (SHIFTS + 1, m))
    shifts[0] = 0
    wave = np.fft.rfft(e, axis=1).transpose(1, 0, 2)
    products = np.fft.irfft(wave @ wave.conj().transpose(0, 2, 1), S, axis=0)
    one, two = np.indices((m, m))
    squares = np.empty(SHIFTS + 1)
    for k, each in enumerate(shifts):
        K = products[(each[:, None] - each) % S, one, two]
        squares[k] = (K * K).sum()  # the diagonal is the same in all of them
    return float((squares >= squares[0] * (1 - 1e-12)).mean())
