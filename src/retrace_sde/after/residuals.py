"""Tests of the residuals: seven questions, each with an answer and what to do about it.

Under the model the whitened residuals are independent standard Gaussians. The questions: does one depend on the last
(`explain` says which candidate model explains it), does their spread change along the order or with the state, are their
tails heavy, are some trajectories outliers, do all trajectories move together at some position, and do paths simulated from the
fit look like those observed. A question counts as failed where the deviation is significant at `RESIDUAL_LEVEL` *and* large enough to
matter. What is decided is in the fields; sentences are made from them.

Limits: where each trajectory has its own, uncertain order, residuals along one best order say little, and are not tested.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from retrace_sde.after.steps import RESIDUAL_SAMPLE, Steps, steps_of, tested_rows
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.evidence.candidates.prediction import least_squares, markov_prediction
from retrace_sde.evidence.candidates.registry import CANDIDATES, candidate
from retrace_sde.fit.euler import euler_paths
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly, in_order, to_numpy
from retrace_sde.process.tails import (
    chi2_sf,
    f_sf,
    kurtosis_test,
    norm_cdf,
    norm_ppf,
    norm_sf,
    t_ppf,
    t_sf,
)
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

RESIDUAL_LEVEL = 0.005
"""Significance level of each of the seven tests: on data of the model itself one of them fails in less than 4 % of panels."""

MIN_RESIDUAL_CORRELATION, MIN_KURTOSIS, MIN_SPREAD_RATIO, MIN_EXPLAINED_SHARE, MIN_COVERAGE_ERROR = (
    0.05, 0.5, 1.3, 0.02, 0.04
)  # fmt: skip
"""Deviations that matter: a correlation of successive residuals, excess kurtosis, the ratio of the largest to the smallest
spread, a share of variance explained, and the difference of the share of values inside the simulated band from .9."""

MIN_SUBJECTS_FOR_OUTLIERS = 8
"""Trajectories without which none is called an outlier."""

MAD_EFFICIENCY, MAX_STUDENT_FREEDOM = 0.37, 15
"""Efficiency of the median absolute deviation as an estimate of spread. And the most degrees of freedom of Student's distribution beyond
which a trajectory is an outlier: with the Gaussian's limits, noise with three degrees of freedom gave a quarter of panels one."""

MAX_EXPLAINED = 300
"""Variables up to which candidate models predict steps, in nine regressions on up to 2 d of them: with more, the sign of the correlation of
successive residuals decides, and the clearest correlation is that of so many of them. At d = 1000 the regressions took minutes."""

MAX_LAG = 8
"""Steps apart up to which residuals are correlated."""

MAX_NAMED = 5
"""Trajectories or positions that a sentence names."""


class Aspect(StrEnum):
    """What is tested."""

    DEPENDENCE = "dependence"
    SPREAD = "spread"
    STATE = "state"
    TAILS = "tails"
    SUBJECTS = "subjects"
    TOGETHER = "together"
    PATHS = "paths"


@dataclass(frozen=True)
class AspectVerdict:
    """One question's answer: failed or not, statistic and p-value, the candidate model that explains it (dependence), and where.

    `statistic` is the correlation of residuals `lag` steps apart that is furthest from chance, the ratio of spreads, a share of
    variance (state, together), excess kurtosis, the number of outlying trajectories, or the share of values inside the simulated 90 % band.
    """

    aspect: Aspect
    failed: bool
    statistic: float
    p_value: float
    cause: str | None = None
    where: tuple[int, ...] = ()
    lag: int = 0

    def sentence(self, names: Sequence[str] | None = None) -> str:
        """The answer and, where the test failed, what to do; `names` of the trajectories, where they have some."""
        return (_FAILED if self.failed else _PASSED)[self.aspect](self, names)


@dataclass(frozen=True, eq=False)
class ResidualCheck:
    """The answers, and what figures of them need.

    `autocorrelations` (lags, d) by variable, `spreads` and `means` (T − 1, d) by position, `quantiles` (k, d) of the
    residuals at the Gaussian's own `scores` (k,); `band` (3, T, d) the 5, 50 and 95 % points of simulated paths and
    `observed` (3, T, d) those of the data, in the units of the fit. All empty where nothing was tested.
    """

    verdicts: tuple[AspectVerdict, ...]
    trajectories: int
    autocorrelations: Array = field(default_factory=lambda: np.empty((0, 0)))
    spreads: Array = field(default_factory=lambda: np.empty((0, 0)))
    means: Array = field(default_factory=lambda: np.empty((0, 0)))
    scores: Array = field(default_factory=lambda: np.empty(0))
    quantiles: Array = field(default_factory=lambda: np.empty((0, 0)))
    band: Array = field(default_factory=lambda: np.empty((3, 0, 0)))
    observed: Array = field(default_factory=lambda: np.empty((3, 0, 0)))

    def restored(self, units: Callable[[Array], Array]) -> ResidualCheck:
        """The same with paths in the table's units."""
        if not self.tested:
            return self
        return replace(self, band=units(self.band), observed=units(self.observed))

    def moved(self, rows: Indices) -> ResidualCheck:
        """The same with trajectory j called rows[j]."""
        verdicts = (
            replace(each, where=tuple(int(rows[j]) for j in each.where))
            if each.aspect is Aspect.SUBJECTS
            else each
            for each in self.verdicts
        )
        return replace(self, verdicts=tuple(verdicts))

    @property
    def tested(self) -> bool:
        """The residuals were tested."""
        return bool(self.verdicts)

    @property
    def failed(self) -> tuple[AspectVerdict, ...]:
        """The tests that failed: outliers first, then what is missing from the model, then what that looks like."""
        rank = list(_FAILED)
        found = [each for each in self.verdicts if each.failed]
        return tuple(sorted(found, key=lambda each: rank.index(each.aspect)))

    def of(self, aspect: Aspect) -> AspectVerdict:
        """The answer to one question."""
        return next(each for each in self.verdicts if each.aspect is aspect)

    def __str__(self) -> str:
        if not self.tested:
            return NOT_TESTED
        return "\n".join(each.sentence() for each in self.failed) or ALL_PASSED


ALL_PASSED = (
    "The residuals look like the noise that the model assumes: no dependence, even spread, no heavy tails, "
    "no outlying trajectory, and simulated paths like those observed."
)
NOT_TESTED = "The residuals were not tested: the orders are uncertain, and residuals along one best order say little."


def check_residuals(steps: Steps, simulated: Array, *, shared: bool) -> ResidualCheck:
    """All tests of the steps of a fit and of paths (n, T, d) simulated from it; `shared`: positions are common."""
    outlying = _outlying(steps)
    rest = steps.without(outlying) if outlying.any() else steps
    e = rest.residuals
    band = _quantiles(simulated, (0.05, 0.5, 0.95))
    found = [
        _dependence(rest),
        _spread(e, shared=shared),
        _state(rest),
        _tails(e),
        _subjects(steps, outlying),
        _together(e, shared=shared),
        _paths(steps.states, band, len(simulated)),
    ]
    scores = norm_ppf((np.arange(99) + 0.5) / 99)
    return ResidualCheck(
        tuple(found),
        len(steps.states),
        _autocorrelations(e),
        np.sqrt(np.nanmean(e**2, axis=0)),
        np.nanmean(e, axis=0),
        scores,
        _quantiles(e.reshape(-1, e.shape[2]), norm_cdf(scores)),
        band,
        _quantiles(steps.states, (0.05, 0.5, 0.95)),
    )


def _quantiles(x: Array, at: Any) -> Array:
    """Along the first axis; numpy's for missing values goes column by column, and slowly."""
    return (np.nanquantile if np.isnan(x).any() else np.quantile)(x, at, axis=0)


def untested(n: int) -> ResidualCheck:
    """Nothing was tested."""
    return ResidualCheck((), n)


def _autocorrelations(e: Array, lags: int = MAX_LAG) -> Array:
    """Correlations (lags, d) of residuals 1, 2, … steps apart."""
    most = min(lags, e.shape[1] - 2)
    power = np.nanmean(e**2, axis=(0, 1))
    found = [np.nanmean(e[:, k:] * e[:, :-k], axis=(0, 1)) / power for k in range(1, most + 1)]
    return np.reshape(found, (most, e.shape[2]))  # three slices have no lags


def _clearest_correlation(e: Array) -> tuple[float, int]:
    """The most significant correlation of a residual with one some steps earlier, and how many steps."""
    e = e[:, :, evenly(e.shape[2], MAX_EXPLAINED)]
    e = e / np.sqrt(np.nanmean(e**2, axis=(0, 1)))
    there, e = ~np.isnan(e), np.nan_to_num(e)
    whole, found = bool(there.all()), []
    for k in range(1, min(MAX_LAG, e.shape[1] - 2) + 1):
        together = _lagged(e, k)
        count = float(there[:, k:, 0].sum())
        pairs = np.full(together.shape, count) if whole else _lagged(there.astype(float), k)
        r = together / np.maximum(pairs, 1)
        at = np.unravel_index(np.argmax(np.abs(r) * np.sqrt(pairs)), r.shape)
        found.append((float(np.abs(r[at]) * np.sqrt(pairs[at])), float(r[at]), k))
    _, correlation, lag = max(found)
    return correlation, lag


def _lagged(e: Array, lag: int) -> Array:
    """Products (d, d) of residuals with those some steps earlier, summed."""
    return np.tensordot(e[:, lag:], e[:, :-lag], axes=((0, 1), (0, 1)))


def _dependence(steps: Steps) -> AspectVerdict:
    e = steps.residuals
    if e.shape[1] < 4:
        return AspectVerdict(Aspect.DEPENDENCE, False, 0.0, 1.0)
    clearest, lag = _clearest_correlation(e)
    many = e.shape[2] > MAX_EXPLAINED
    cause, p = (None, 1.0) if many else explain(steps, RESIDUAL_LEVEL)
    if many or steps.response is None or not steps.regular:
        # With hidden states, across gaps, or of very many variables, candidates do not predict steps: the sign of the correlation decides.
        correlation = float(_autocorrelations(e, 1).mean())
        together = np.nansum(e[:, 1:] * e[:, :-1], axis=(1, 2))
        z = together.sum() / np.sqrt((together**2).sum())
        p = float(2 * norm_sf(abs(z)))
        matters = p < RESIDUAL_LEVEL and abs(correlation) > MIN_RESIDUAL_CORRELATION
        cause = CandidateKind.NOISE if correlation < 0 else CandidateKind.MEMORY
        cause = cause if matters else None
        clearest, lag = (correlation, 1) if matters else (clearest, lag)
    return AspectVerdict(Aspect.DEPENDENCE, cause is not None, clearest, p, cause, lag=lag)


def _sizes(e: Array) -> Array:
    """(|e|²/d)^{1/3} of each step, nearly Gaussian (Wilson and Hilferty), (n, T − 1)."""
    counts = (~np.isnan(e)).sum(axis=2)
    squares = np.nansum(e**2, axis=2) / np.maximum(counts, 1)
    return np.where(counts > 0, np.cbrt(squares), np.nan)


def _spread(e: Array, *, shared: bool) -> AspectVerdict:
    """Analysis of variance of the sizes by position, trajectories' own sizes taken out."""
    w = _sizes(e)
    n, S = w.shape
    if not shared or S < 3 or n < 3:
        return AspectVerdict(Aspect.SPREAD, False, 1.0, 1.0)
    w = w - np.nanmean(w, axis=1, keepdims=True)
    counts = (~np.isnan(w)).sum(axis=0)
    at = np.nanmean(w, axis=0)
    between = float((counts * at**2).sum()) / (S - 1)
    within = float(np.nansum((w - at) ** 2)) / max(counts.sum() - n - S + 1, 1)
    p = float(f_sf(between / within, S - 1, max(counts.sum() - n - S + 1, 1)))
    spreads = np.sqrt(np.nanmean(e**2, axis=(0, 2)))
    ratio = float(spreads.max() / spreads.min())
    failed = p < RESIDUAL_LEVEL and ratio > MIN_SPREAD_RATIO
    loud = _largest(spreads, MIN_SPREAD_RATIO * np.median(spreads)) if failed else ()
    return AspectVerdict(Aspect.SPREAD, failed, ratio, p, where=loud)


def _largest(sizes: Array, least: float) -> tuple[int, ...]:
    """The positions of the largest sizes, those above `least`."""
    return tuple(sorted(int(i) for i in np.argsort(-sizes)[:MAX_NAMED] if sizes[i] > least))


def _state(steps: Steps) -> AspectVerdict:
    """Regression of the sizes on the states they start from, both about their trajectory's mean."""
    w, x = _sizes(steps.residuals), steps.states[:, :-1]
    there = ~np.isnan(w) & ~np.isnan(x).any(axis=2)
    x = x - np.nanmean(np.where(there[:, :, None], x, np.nan), axis=1, keepdims=True)
    y = (w - np.nanmean(np.where(there, w, np.nan), axis=1, keepdims=True))[there]
    x, d = x[there], x.shape[2]
    free = len(y) - there.any(axis=1).sum() - d
    if free < 5 * d:
        return AspectVerdict(Aspect.STATE, False, 0.0, 1.0)
    rest = y - x @ least_squares(x, y[:, None])[:, 0]
    share = float(1 - (rest @ rest) / (y @ y))
    p = float(f_sf(share / d / ((1 - share) / free), d, free))
    return AspectVerdict(Aspect.STATE, p < RESIDUAL_LEVEL and share > MIN_EXPLAINED_SHARE, share, p)


def _tails(e: Array) -> AspectVerdict:
    """Anscombe and Glynn's test of kurtosis, each position and variable in units of its own spread."""
    scaled = e / np.sqrt(np.nanmean(e**2, axis=0))
    z = scaled[~np.isnan(scaled)]
    if len(z) < 100:
        return AspectVerdict(Aspect.TAILS, False, 0.0, 1.0)
    # Dividing by a spread of n numbers shortens the tails by 6/n, to first order.
    kurtosis, p = kurtosis_test(z)
    return AspectVerdict(Aspect.TAILS, p < RESIDUAL_LEVEL and kurtosis > MIN_KURTOSIS, kurtosis, p)


def _outlying(steps: Steps) -> Mask:
    """Trajectories whose mean state, mean residual, size of residuals or level is far from the others', in robust units."""
    e, x = steps.residuals, steps.states
    n = len(e)
    if n < MIN_SUBJECTS_FOR_OUTLIERS:
        return np.zeros(n, dtype=bool)
    counts = np.maximum((~np.isnan(e[:, :, 0])).sum(axis=1), 1)
    mean, size = np.nanmean(e, axis=1) * np.sqrt(counts)[:, None], np.nanmean(_sizes(e), axis=1)
    own = np.empty((n, 0)) if steps.levels is None else steps.levels
    features = np.column_stack([np.nanmean(x, axis=1), mean, size, own])
    middle = np.nanmedian(features, axis=0)
    scale = np.nanmedian(np.abs(features - middle), axis=0) / norm_ppf(0.75)
    z = np.abs(features - middle) / np.maximum(scale, 1e-12 * np.abs(middle) + 1e-300)
    limit = -t_ppf(
        RESIDUAL_LEVEL / (2 * n * features.shape[1]),
        min(MAD_EFFICIENCY * (n - 1), MAX_STUDENT_FREEDOM, _freedom(e)),
    )
    return np.asarray((z > limit).any(axis=1) & ((z > limit).any(axis=1).mean() < 0.2))


def _freedom(e: Array) -> float:
    """Degrees of freedom of Student's distribution with the kurtosis 6/(ν − 4) of residuals in units of their own trajectory's spread.

    So scaled, one loud trajectory leaves no trace, and noise with jumps does.
    """
    scaled = e / np.sqrt(np.nanmean(e**2, axis=(1, 2), keepdims=True))
    there = ~np.isnan(scaled)
    counts = there.sum(axis=(1, 2))
    # A Gaussian's m numbers in units of their own spread have a fourth moment of 3 m/(m + 2).
    excess = float(np.nansum((scaled * scaled) ** 2) / (3 * counts**2 / (counts + 2)).sum() - 1) * 3
    return 4 + 6 / max(excess, 1e-3)


def _subjects(steps: Steps, outlying: Mask) -> AspectVerdict:
    rows = tuple(int(j) for j in steps.rows[outlying])
    return AspectVerdict(
        Aspect.SUBJECTS, bool(rows), float(len(rows)), RESIDUAL_LEVEL if rows else 1.0, where=rows
    )


def _together(e: Array, *, shared: bool) -> AspectVerdict:
    """Means of the residuals by position: under the model those of n independent trajectories."""
    counts = (~np.isnan(e)).sum(axis=0)
    S, d = counts.shape
    if not shared or S < 3 or counts.min() < 3:
        return AspectVerdict(Aspect.TOGETHER, False, 0.0, 1.0)
    at = np.nanmean(e, axis=0)
    total = float((counts * at**2).sum())
    p = float(chi2_sf(total, S * d))
    share = max(0.0, (total - S * d) / float(counts.sum()))
    failed = p < RESIDUAL_LEVEL and share > MIN_EXPLAINED_SHARE
    sizes = (counts * at**2).sum(axis=1)
    far = _largest(sizes, 2 * d + np.median(sizes)) if failed else ()
    return AspectVerdict(Aspect.TOGETHER, failed, share, p, where=far)


def _paths(observed: Array, band: Array, m: int) -> AspectVerdict:
    """Share of observed values, after the first, inside the band that holds 90 % of those of m simulated paths."""
    low, _, high = band
    there = ~np.isnan(observed[:, 1:])
    inside = np.where(there, (observed >= low)[:, 1:] & (observed <= high)[:, 1:], np.nan)
    some = there.any(axis=(1, 2))  # one with a single observation says nothing
    if not some.any():
        return AspectVerdict(Aspect.PATHS, False, 0.9, 1.0)
    each = np.nanmean(inside[some], axis=(1, 2))
    n = len(each)
    share = float(each.mean()) * (m + 1) / (m - 1)  # m paths leave so much of a band to chance
    if n < MIN_SUBJECTS_FOR_OUTLIERS:
        return AspectVerdict(Aspect.PATHS, False, share, 1.0)
    error = max(float(each.std(ddof=1)) / np.sqrt(n), 1e-3)
    p = float(2 * t_sf(abs(share - 0.9) / error, n - 1))
    return AspectVerdict(
        Aspect.PATHS, p < RESIDUAL_LEVEL and abs(share - 0.9) > MIN_COVERAGE_ERROR, share, p
    )


def _listed(where: Sequence[int], names: Sequence[str] | None) -> str:
    shown = [str(k) if names is None else str(names[k]) for k in where[:MAX_NAMED]]
    return ", ".join(shown) + (" …" if len(where) > MAX_NAMED else "")


def _clearest(verdict: AspectVerdict) -> str:
    plural = "" if verdict.lag == 1 else "s"
    return (
        f" (the clearest correlation is {verdict.statistic:+.2f}, {verdict.lag} step{plural} apart)"
    )


def _dependent(verdict: AspectVerdict) -> str:
    apart = "of successive steps" if verdict.lag == 1 else f"{verdict.lag} steps apart"
    found = None if verdict.cause is None else candidate(verdict.cause)
    why = "" if found is None else f": {found.remedy}"
    return f"Residuals {apart} are correlated {verdict.statistic:+.2f}{why}."


def _standing_out(verdict: AspectVerdict, names: Sequence[str] | None) -> str:
    one = len(verdict.where) == 1
    return (
        f"Trajector{'y' if one else 'ies'} {_listed(verdict.where, names)} {'is an outlier' if one else 'are outliers'} in level or in "
        f"size of steps. Check {'it' if one else 'them'}, and fit without {'it' if one else 'them'} to see what changes."
    )


def _most_after(verdict: AspectVerdict) -> str:
    return f", most after position {_listed(verdict.where, None)}" if verdict.where else ""


Sentence = Callable[[AspectVerdict, Sequence[str] | None], str]

_FAILED: dict[Aspect, Sentence] = {
    Aspect.SUBJECTS: _standing_out,
    Aspect.DEPENDENCE: lambda v, _: _dependent(v),
    Aspect.TAILS: lambda v, _: (
        f"The residuals have heavy tails (excess kurtosis {v.statistic:.2g}): jumps or outliers. The order is "
        "robust to them, intervals are not: use bootstrap_errors()."
    ),
    Aspect.SPREAD: lambda v, _: (
        f"The spread of the steps changes along the order by a factor of {v.statistic:.2g}{_most_after(v)}: unequal gaps "
        "or changing volatility. Give the times if there are any, or try spacing='estimate'."
    ),
    Aspect.STATE: lambda v, _: (
        f"The spread of a step depends on the state it starts from ({v.statistic:.0%} of its variance): noise that "
        "grows with the level. Try logarithms of positive variables."
    ),
    Aspect.TOGETHER: lambda v, _: (
        f"All trajectories move together beyond the drift ({v.statistic:.0%} of the residuals' variance{_most_after(v)}): a "
        "common shock, input or trend. Give it as a covariate, or use a richer drift."
    ),
    Aspect.PATHS: lambda v, _: (
        f"Simulated paths are too {'narrow' if v.statistic < 0.9 else 'wide'}: {v.statistic:.0%} of the observed values lie inside "
        "their 90 % band. The fit does not describe the whole course: do not forecast far with it."
    ),
}

_PASSED: dict[Aspect, Sentence] = {
    Aspect.SUBJECTS: lambda v, _: "No trajectory is an outlier.",
    Aspect.DEPENDENCE: lambda v, _: (
        f"Residuals do not depend on earlier ones{_clearest(v) if v.lag else ''}."
    ),
    Aspect.TAILS: lambda v, _: (
        f"The tails are those of a Gaussian (excess kurtosis {v.statistic:.2g})."
    ),
    Aspect.SPREAD: lambda v, _: "The spread of the steps is even along the order.",
    Aspect.STATE: lambda v, _: "The spread of a step does not depend on the state.",
    Aspect.TOGETHER: lambda v, _: "Trajectories move independently of each other.",
    Aspect.PATHS: lambda v, _: (
        f"Simulated paths look like the observed ones ({v.statistic:.0%} inside their 90 % band)."
    ),
}


MIN_PREDICTED_STEPS = 4
"""Steps of a trajectory without which candidates are not compared."""


def explain(steps: Steps, level: float) -> tuple[str | None, float]:
    """The kind of the candidate that the steps ask for, and its p-value; None where no gain is significant at `level`."""
    y = steps.response
    if y is None or not steps.regular or y.shape[1] < MIN_PREDICTED_STEPS:
        return None, 1.0
    n, S, _ = y.shape
    base = markov_prediction(steps)
    predictions = {
        each.kind: found for each in CANDIDATES if (found := each.predict(steps)) is not None
    }
    evidence: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for kind, found in predictions.items():
        gain = (found.log_likelihood - base) * (1 - found.chance)
        p = float(chi2_sf(2 * max(gain, 0.0), found.parameters))
        p_values[kind] = min(1.0, len(predictions) * p)
        if p_values[kind] < level:
            evidence[kind] = gain - penalty(Block(found.parameters, n * (S - 1)))
    for kind in list(evidence):
        if any(other in evidence for other in predictions[kind].yields_to):
            del evidence[kind]
    if not evidence:
        return None, min(p_values.values(), default=1.0)
    best = max(evidence, key=lambda kind: evidence[kind])
    return best, p_values[best]


def residual_check(
    model: Model, found: Fit, rng: np.random.Generator, levels: Array | None = None
) -> ResidualCheck:
    """The residuals of a fit, and paths simulated from it beside those observed; `levels` (n, d): random intercepts removed."""
    steps = steps_of(model, found, levels)
    # Of variables that no trajectory has at some position.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return check_residuals(
            steps, simulated_paths(model, found, steps, rng), shared=found.ordering.shared
        )


def tested_part(model: Model, found: Fit) -> tuple[Model, Fit, Indices]:
    """The part of a fit to observed states that the residual tests use, and its trajectories: a copy, which can be tested later."""
    rows = tested_rows(model.data.shape)
    along = found.ordering.take(rows).index
    few = replace(found, order=along, gaps=found.gaps.take(rows), reverse=None)
    return model.some(len(rows)), few, rows


BAND_PATHS = 400
"""Simulated paths behind a band; fewer for large panels."""


def simulated_paths(model: Model, found: Fit, steps: Steps, rng: np.random.Generator) -> Array:
    """Some paths (m, T, d) from the fit, m a multiple of the trajectories used; observation noise included."""
    times = min(-(-BAND_PATHS // len(steps.rows)), max(1, 4 * RESIDUAL_SAMPLE // steps.states.size))
    rows = np.tile(steps.rows, times)
    _, T, d = model.data.shape
    order = found.ordering.take(rows).index
    u = model.data.covariates
    u = None if u is None else to_numpy(in_order(to_numpy(u)[rows], order))
    hidden = model.states_hidden
    states = found.states if hidden and found.states is not None else None
    x = np.tile(steps.states[:, 0], (times, 1)) if states is None else states[rows, 0]
    gaps = found.gaps.take(rows).rows(len(rows), T)
    paths = np.concatenate([x[:, None], euler_paths(found.step, x, u, gaps, rng)], axis=1)
    if hidden:
        lower = np.linalg.cholesky(
            found.law.R + 1e-12 * np.trace(found.law.R) * np.eye(d) + 1e-300 * np.eye(d)
        )
        paths = paths + rng.standard_normal(paths.shape) @ lower.T
    return paths
