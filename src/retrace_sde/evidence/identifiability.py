"""What can and what cannot be learned from these data: one sentence each, with its test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import array_api_compat
import numpy as np
from scipy.linalg import cholesky, solve_continuous_lyapunov, solve_triangular

from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.fit.exact import embedding_at
from retrace_sde.fit.moments import CONDITION_LIMIT, Moments
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import deferred
from retrace_sde.panel.blocks import BLOCK_ELEMENTS, Data, like, to_numpy
from retrace_sde.panel.order import Order
from retrace_sde.process.sde import LinearSDE
from retrace_sde.process.tails import chi2_sf, t_sf

sparse_linalg = deferred("scipy.sparse.linalg")

NEGLIGIBLE_P = 1e-12
"""A p-value below it is not computed any further."""

BALANCE_TOLERANCE, BALANCE_PRODUCTS = 1e-6, 5e10
"""Residual of the equations behind the test of detailed balance, the statistic's own error is of the order of its square; and iterations times d³ at which
they end in any case, at fifty or later. The statistic only grows with them, so that a p-value from fewer is too large, never too small: with 1000 variables and hardly
more steps (n = 120, T = 20) they had not converged after several hundred."""

MAX_CONTRASTS, MIN_CONTRASTS, STATIONARITY_NUMBERS, CENTRE_SAMPLE = 500, 100, 2_000_000, 20
"""Trajectories that the test of stationarity uses, evenly spaced, at most and at least where they have so many numbers (n T d):
more only find ever smaller changes. And those from which the centre is estimated."""


MOST_VARIABLES_FOR_ENTROPY = 30
"""Variables up to which the entropy production has an interval: it takes d⁵ products."""


class Topic(StrEnum):
    """The topic of a finding."""

    CYCLE = "cycle"
    STATIONARITY = "stationarity"
    DIRECTION = "direction"
    REVERSIBILITY = "reversibility"
    STABILITY = "stability"
    RANK = "rank"
    FACTOR = "factor"


@dataclass(frozen=True)
class IdentifiabilityFinding:
    """One sentence, its topic, and whether it tells what can be learned or what cannot."""

    topic: Topic
    learned: bool
    sentence: str


@dataclass(frozen=True)
class IdentifiabilityReport:
    """Stationarity, irreversibility and rank, with p-values (nan where a test has no meaning)."""

    stationarity_p_value: float
    entropy_production: float
    detailed_balance_p_value: float
    gram_condition: float
    findings: tuple[IdentifiabilityFinding, ...]
    cycle: bool = False

    @property
    def can(self) -> tuple[str, ...]:
        """What can be learned."""
        return tuple(each.sentence for each in self.findings if each.learned)

    @property
    def cannot(self) -> tuple[str, ...]:
        """What cannot be learned."""
        return tuple(each.sentence for each in self.findings if not each.learned)

    def __str__(self) -> str:
        lines = [f"  + {sentence}" for sentence in self.can]
        lines += [f"  − {sentence}" for sentence in self.cannot]
        return "\n".join(lines)


def identify(
    data: Data,
    order: Indices,
    statistics: Moments,
    direction: DirectionTest,
    sde: LinearSDE | None,
    *,
    step: float | None = None,
    alpha: float = 0.05,
    cycle: bool = False,
) -> IdentifiabilityReport:
    """The report on a recovered order; `sde` is the fitted linear SDE, None for other drifts.

    `step`: its exact transition over that time is what `statistics` were a regression of; None: Euler's.
    """
    p_stationary = stationarity_p_value(data, order)
    p_balance, production = float("nan"), float("nan")
    balance: Iterable[IdentifiabilityFinding] = ()
    if sde is not None and sde.dimension > 1:
        p_balance = detailed_balance_p_value(statistics, as_step(sde, step))
        stable = sde.is_stable
        try:
            production = sde.entropy_production() if stable else production
        except ValueError:  # stable only up to rounding
            stable = False
        known = stable and p_balance < alpha
        interval = entropy_interval(statistics, sde, step) if known else None
        balance = _reversibility(p_balance, production, interval, alpha, stable=stable)
    findings = [
        *(_loop() if cycle else ()),
        *(() if cycle else (_stationarity(p_stationary, alpha, direction),)),
        IdentifiabilityFinding(Topic.DIRECTION, direction.identified, direction.verdict),
        *balance,
        _rank(statistics.condition),
        IdentifiabilityFinding(
            Topic.FACTOR,
            False,
            "Only H = G Gᵀ can be learned, not G itself; the scale of A and H is that of dt, the time between neighbours.",
        ),
    ]
    return IdentifiabilityReport(
        p_stationary, production, p_balance, statistics.condition, tuple(findings), cycle
    )


def _loop() -> Iterator[IdentifiabilityFinding]:
    yield IdentifiabilityFinding(
        Topic.CYCLE, True, "The slices form a closed loop: their cyclic order is recovered."
    )
    yield IdentifiabilityFinding(
        Topic.CYCLE, False, "A closed loop has no first slice: where the order begins is arbitrary."
    )


def _stationarity(p_value: float, alpha: float, direction: DirectionTest) -> IdentifiabilityFinding:
    """Whether the mean or the spread changes; what that says of the direction only where none is identified.

    Of deviations from slice means only the spread can change: the means are one trajectory, whose course may be that of the shocks.
    """
    what = "the mean or the spread"
    if direction.deviations:
        what = "the spread of deviations from the slice means"
    if np.isnan(p_value):
        sentence = "Stationarity cannot be tested with so few trajectories."
    elif p_value < alpha:
        sentence = f"{what.capitalize()} changes along the order ({_p(p_value)}): a transient, which can reveal the direction of time."
    else:
        sentence = f"No significant change of {what} between the first and the last third of the order ({_p(p_value)})"
        sentence += (
            ": the evidence of the direction is in smaller changes, or in knowledge of time."
            if direction.identified
            else f": {'they' if direction.deviations else 'the data'} look stationary, and a linear SDE then fits both directions "
            "equally well."
        )
    if direction.deviations and not direction.identified:
        sentence += f" {MEANS_DO_NOT_COUNT}"
    return IdentifiabilityFinding(Topic.STATIONARITY, p_value < alpha, sentence)


MEANS_DO_NOT_COUNT = (
    "A course of the slice means does not show the direction: they are a single trajectory, and what all trajectories share cannot be "
    "told from common shocks."
)


def _reversibility(
    p_value: float,
    production: float,
    interval: tuple[float, float] | None,
    alpha: float,
    *,
    stable: bool,
) -> Iterator[IdentifiabilityFinding]:
    if p_value < alpha:
        rate = f", plug-in entropy production {production:.3g} nats per unit time" if stable else ""
        if interval is not None:
            rate += f", 95 % interval {interval[0]:.3g} to {interval[1]:.3g}"
        sentence = f"The dynamics are irreversible: detailed balance A H = H Aᵀ is rejected ({_p(p_value)}{rate})."
    else:
        sentence = (
            f"Irreversibility is not established: detailed balance is not rejected ({_p(p_value)})."
        )
    yield IdentifiabilityFinding(Topic.REVERSIBILITY, p_value < alpha, sentence)
    if not stable:
        yield IdentifiabilityFinding(
            Topic.STABILITY,
            False,
            "The fitted drift is unstable, so there is no stationary distribution, current or entropy production.",
        )


def _rank(condition: float) -> IdentifiabilityFinding:
    determined = condition < CONDITION_LIMIT
    sentence = (
        f"The drift is determined: no variable is a linear combination of the others (the Gram matrix of the regressors has "
        f"full rank, scaled condition number {condition:.2g}). By the paper's Theorem 3 the drift is then unique."
        if determined
        else f"Some combinations of drift coefficients are poorly determined: the regressors are nearly collinear (scaled "
        f"condition number {condition:.2g})."
    )
    return IdentifiabilityFinding(Topic.RANK, determined, sentence)


def stationarity_p_value(data: Data, order: Indices) -> float:
    """Test that no variable's mean or variance differs between the first and the last third of the order.

    One contrast per trajectory, variable and moment; trajectories are independent, so each has a
    t-test, and the smallest of the 2d p-values is corrected by Bonferroni. Blind to other changes.
    """
    most = int(
        np.clip(
            STATIONARITY_NUMBERS // (data.shape[1] * data.shape[2]), MIN_CONTRASTS, MAX_CONTRASTS
        )
    )
    if data.lazy and data.shape[0] > most:  # read at once
        order = Order.of(order).take(data.chosen(most)).index
        data = data.some(most)
    rows, (_, T, d) = data.chosen(most), data.shape
    n, observed = len(rows), data.observed[rows]
    if n < 3:
        return float("nan")
    third = max(1, int(observed.min()) // 3)
    ends = Order.of(order, data.lengths).take(rows).ends(third)

    def ends_of(some: slice) -> Any:
        return data.take(rows[some]).block(slice(None), ends.take(some).index)[0]

    centre = np.nanmean(to_numpy(ends_of(slice(0, CENTRE_SAMPLE))), axis=(0, 1))

    def contrasts(some: slice) -> Array:
        x = ends_of(some)
        xp = array_api_compat.array_namespace(x)
        z = x - like(centre, x)
        both = xp.concat([z, z * z], axis=-1)
        late, early = _seen_mean(both[:, third:, :]), _seen_mean(both[:, :third, :])
        return to_numpy(late - early)

    size = max(1, BLOCK_ELEMENTS // (T * d))
    each = np.concatenate([contrasts(slice(k, k + size)) for k in range(0, n, size)])
    counts = (~np.isnan(each)).sum(axis=0)
    if counts.min() < 3:
        return float("nan")
    error = np.nanstd(each, axis=0, ddof=1) / np.sqrt(counts)
    mean = np.nanmean(each, axis=0)
    t = np.divide(np.abs(mean), error, out=np.full(2 * d, np.inf), where=error > 0)
    return float(min(1.0, 2 * d * 2 * t_sf(t, counts - 1).min()))


def _seen_mean(values: Any) -> Any:
    """Mean over time of what was seen (NaN is missing; NaN where nothing was)."""
    xp = array_api_compat.array_namespace(values)
    whole = xp.mean(values, axis=1)
    if not xp.any(xp.isnan(whole)):
        return whole
    seen = ~xp.isnan(values)
    total = xp.sum(xp.where(seen, values, xp.zeros_like(values)), axis=1)
    count = xp.sum(xp.astype(seen, values.dtype), axis=1)
    return xp.where(count > 0, total, xp.full_like(total, xp.nan)) / xp.where(
        count > 0, count, xp.ones_like(count)
    )


def as_step(sde: LinearSDE, dt: float | None) -> LinearSDE:
    """The SDE whose Euler step over dt is the exact one of `sde`; None: as it is.

    It is reversible if and only if `sde` is: `F Q = Q Fᵀ` and `A H = H Aᵀ` are both detailed balance.
    """
    if dt is None:
        return sde
    one = sde.transition(dt)
    A = (one.matrix - np.eye(sde.dimension)) / dt
    return LinearSDE(A, one.covariance / dt, offset=one.shift / dt)


def detailed_balance_p_value(statistics: Moments, sde: LinearSDE) -> float:
    """Wald test of detailed balance, `A H = H Aᵀ`, against irreversible drift.

    In coordinates where H = I the drift à must be symmetric. Its rows are independent with covariance
    `P = (Σ φ φᵀ Δt)⁻¹`; H's own error enters as `à E − E Ãᵀ`, E symmetric with variance 1/N (2/N on
    the diagonal). χ² with d(d − 1)/2 degrees of freedom. The covariance of `à − Ãᵀ` is never formed: it takes an
    antisymmetric X to `X P + P X + à E − E Ãᵀ`, `E = (ÃᵀX + (ÃᵀX)ᵀ) / N`, and is inverted by conjugate gradients, along which the statistic only grows: they end where
    it is negligible.
    """
    d = sde.dimension
    L = cholesky(sde.diffusion, lower=True)
    A = solve_triangular(L, sde.drift @ L, lower=True)
    inverse = solve_triangular(statistics.blocks[0], np.eye(statistics.n_features))
    P = L.T @ (inverse @ inverse.T)[:d, :d] @ L
    # In the eigenbasis of P all but H's own error is diagonal.
    values, vectors = np.linalg.eigh(P)
    A, sums = vectors.T @ A @ vectors, values[:, None] + values

    def covariance(x: Array) -> Array:
        X = x.reshape(d, d)
        E = A.T @ X
        half = A @ ((E + E.T) / statistics.count)
        return np.ravel(X * sums + half - half.T)

    def without_error_of_diffusion(x: Array) -> Array:
        return np.ravel(x.reshape(d, d) / sums)

    gap = np.ravel(A - A.T)
    shape, free = (d * d, d * d), d * (d - 1) / 2
    reached = 0.0

    def look(x: Array) -> None:
        nonlocal reached
        reached = float(gap @ x / 2)
        if chi2_sf(reached, free) < NEGLIGIBLE_P:
            raise StopIteration

    roughly = sparse_linalg.LinearOperator(shape, without_error_of_diffusion)
    with suppress(StopIteration):
        sparse_linalg.cg(
            sparse_linalg.LinearOperator(shape, covariance),
            gap,
            rtol=BALANCE_TOLERANCE,
            maxiter=int(np.clip(BALANCE_PRODUCTS / d**3, 50, 2000)),
            M=roughly,
            callback=look,
        )
    return float(chi2_sf(reached, free))


def entropy_interval(
    statistics: Moments, sde: LinearSDE, dt: float | None = None
) -> tuple[float, float] | None:
    """95 % limits of the entropy production e by the delta method on log e, which keeps them positive; None for many variables.

    Near detailed balance e is quadratic in the drift, and there is only an upper bound (`entropy_bound`).
    """
    found = _entropy_error(statistics, sde, dt)
    if found is None:
        return None
    value, error = found
    reach = 1.96 * error / value
    return float(value * np.exp(-reach)), float(value * np.exp(min(reach, 50.0)))


def entropy_bound(statistics: Moments, sde: LinearSDE) -> float | None:
    """A 95 % upper bound of the entropy production where detailed balance is not rejected; None for many variables.

    √e is a length of what is left of the drift, whose error stays finite at zero: `(√e + 1.645 s / (2 √e))²`, s the error of e. The estimate
    itself is too large there, so that the bound is conservative: it held in 98 to 100 % of 200 panels each (d = 2, 4, 8).
    """
    found = _entropy_error(statistics, sde, None)
    if found is None:
        return None
    value, error = found
    root = np.sqrt(max(value, np.finfo(float).tiny))
    return float((root + 1.645 * error / (2 * root)) ** 2)


def _entropy_error(
    statistics: Moments, sde: LinearSDE, dt: float | None
) -> tuple[float, float] | None:
    """The entropy production and its standard error.

    `Var e = Σ g_ik H_ij P_kl g_jl` with `g = ∂e/∂Θ` and `P = (Σ φ φᵀ Δt)⁻¹`, Θ and H those of the regressed step; the
    error of H, smaller by the number of steps, is left out.
    """
    law = as_step(sde, dt)
    d = sde.dimension
    if d > MOST_VARIABLES_FOR_ENTROPY:
        return None
    inverse = solve_triangular(statistics.blocks[0], np.eye(statistics.n_features))
    P = (inverse @ inverse.T)[:d, :d]
    try:
        value = sde.entropy_production()
        g, of_H = _entropy_gradient(sde)
    except ValueError:  # hardly stable
        return None
    if dt is not None:
        units, still = np.eye(d * d).reshape(-1, d, d), np.zeros((d * d, d, d))
        of_drift, of_diffusion = embedding_at(sde.drift, sde.diffusion, dt).moved(units, still)
        g = np.einsum("kij,ij->k", of_drift, g) + np.einsum("kij,ij->k", of_diffusion, of_H)
        g = g.reshape(d, d)
    return value, float(np.sqrt(np.einsum("ik,ij,kl,jl->", g, law.diffusion, P, g)))


def _entropy_gradient(sde: LinearSDE) -> tuple[Array, Array]:
    """The derivatives of `e = 2 tr(H⁻¹ A Σ Aᵀ) + tr A` with respect to A and to H.

    Σ moves with both: with `Aᵀ Y + Y A = −2 Aᵀ H⁻¹ A`, `2 tr(H⁻¹ A dΣ Aᵀ) = tr Y (dH + dA Σ + Σ dAᵀ)`.
    """
    A, H, S = sde.drift, sde.diffusion, sde.stationary().covariance
    white = np.linalg.solve(H, A)
    Y = solve_continuous_lyapunov(A.T, -2 * A.T @ white)
    of_A = 4 * white @ S + 2 * Y @ S + np.eye(len(A))
    return of_A, Y - 2 * white @ S @ white.T


def _p(value: float) -> str:
    return f"p = {value:.2g}" if value >= 1e-4 else "p < 0.0001"
