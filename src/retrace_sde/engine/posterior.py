"""What the posterior over orders gives: where each observation stands, what came before what, and how
much of the uncertainty of A and H is due to the order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from retrace_sde.data.blocks import Array, Data, Order, evenly, to_numpy
from retrace_sde.engine.independent import Law, random_states
from retrace_sde.engine.mcem import Chains, Run, as_moments, draw
from retrace_sde.engine.problem import Problem
from retrace_sde.estimate.moments import moments
from retrace_sde.estimate.regression import StandardErrors, mle, regression_errors
from retrace_sde.metrics import kendall_tau
from retrace_sde.orders.metropolis import (
    SHARES,
    SHARPNESS,
    Proposals,
    Records,
    Schedule,
    length_table,
    sample_path,
)
from retrace_sde.orders.prior import Prior
from retrace_sde.orders.search import padded_costs
from retrace_sde.process.sde import Gaussian

KEPT = 50
"""Orders kept per chain."""

DIAGNOSED = 500
"""Trajectories that the convergence diagnostics look at, evenly spaced."""

LOUIS_PARAMETERS = 500
"""Louis' information is a square matrix in the parameters; beyond this many it is not computed."""


@dataclass(frozen=True, eq=False)
class OrderPosterior:
    """The posterior over orders under the fitted parameters.

    `position_probabilities[…, a, k]` is the probability that observation a stands at position k; `samples`
    holds orders drawn from the posterior, (draws, T) or (n, draws, T). `r_hat` and `effective_size` (of as
    many draws) are the worst of three: the entries of A, those of H, as each drawn order would
    estimate them, and Kendall's τ between draws. Chains that start alike cannot show other modes.
    """

    position_probabilities: NDArray[np.float32]
    samples: NDArray[np.int16]
    r_hat: float
    effective_size: float

    def precedence(self, i: int, j: int) -> float | Array:
        """The probability that observation i came before observation j (one for each trajectory)."""
        T = self.samples.shape[-1]
        for each in (i, j):
            if not 0 <= each < T:
                raise ValueError(f"observations run from 0 to {T - 1}; got {each}.")
        if i == j:
            raise ValueError(f"observation {i} is not before or after itself: give two.")
        place = np.argsort(self.samples, axis=-1)
        before: Array = (place[..., i] < place[..., j]).mean(axis=-1)
        return float(before) if before.ndim == 0 else before

    def expected_order(self) -> Order:
        """The order with the most positions right on average: `max_o Σ_k P[o_k, k]`, an assignment."""
        tables = self.position_probabilities.reshape(-1, *self.position_probabilities.shape[-2:])
        orders = np.empty(tables.shape[:2], dtype=np.intp)
        for row, table in zip(orders, tables, strict=True):
            a, k = linear_sum_assignment(-table.astype(float))
            row[k] = a
        return orders.reshape(self.position_probabilities.shape[:-1])


def order_posterior(
    problem: Problem, law: Law, chains: Chains, *, samples: int
) -> tuple[OrderPosterior, NDArray[np.int16]]:
    """Sample under a fixed law; also the kept orders by chain, (C, n, KEPT, T)."""
    n, T, _ = problem.data.shape
    thin = max(T // 2, 5)
    draws = draw(problem, law, chains, samples, burn=50 * thin, positions=True, keep=KEPT)
    C = len(chains.orders)
    probabilities = draws.positions.astype(np.float32) / np.float32(samples * C)
    _tidy_padding(problem, probabilities, draws.kept)
    r_hat, size = _diagnose(problem, draws.kept)
    merged = draws.kept.transpose(1, 0, 2, 3).reshape(n, C * KEPT, T)
    return OrderPosterior(probabilities, merged, r_hat, size), draws.kept


def _tidy_padding(
    problem: Problem, probabilities: NDArray[np.float32], kept: NDArray[np.int16]
) -> None:
    """Beyond a trajectory's length nothing was sampled: what is not there stays where it is."""
    if problem.data.lengths is None:
        return
    T = problem.data.shape[1]
    outside = np.arange(T)[None] >= problem.data.observed[:, None]
    j, k = np.nonzero(outside)
    probabilities[j, k, k] = 1.0
    kept[:] = np.where(outside[None, :, None, :], np.arange(T, dtype=np.int16), kept)


def _diagnose(problem: Problem, kept: NDArray[np.int16]) -> tuple[float, float]:
    """Split R-hat and effective sample size of what each kept order estimates, the worst of all."""
    C, n, R, _ = kept.shape
    rows = evenly(n, DIAGNOSED)
    data = problem.some(DIAGNOSED).data
    reference = kept[0, rows, 0].astype(np.intp)
    traces = []
    for c in range(C):
        trace = []
        for r in range(R):
            order = kept[c, rows, r].astype(np.intp)
            found = mle(moments(data, order, problem.dt, problem.drift))
            tau = kendall_tau(reference, order)
            trace.append(
                np.concatenate([found.coefficients.ravel(), found.diffusion.ravel(), [tau]])
            )
        traces.append(trace)
    x, p = np.array(traces), found.coefficients.size
    groups = [convergence(x[:, :, at]) for at in (slice(p), slice(p, -1), slice(-1, None))]
    return max(group[0] for group in groups), min(group[1] for group in groups)


def convergence(x: Array) -> tuple[float, float]:
    """Split R-hat and effective size, averaged over the quantities of traces (chains, draws, quantities)."""
    C, R, _ = x.shape
    varying = x.std(axis=(0, 1)) > 1e-12 * (np.abs(x).max(axis=(0, 1)) + 1e-300)
    if not varying.any():
        return 1.0, float(C * R)
    x = x[:, :, varying]
    half = R // 2
    split = np.concatenate([x[:, :half], x[:, half : 2 * half]])
    within = split.var(axis=1, ddof=1).mean(axis=0)
    between = split.mean(axis=1).var(axis=0, ddof=1)
    r_hat = np.sqrt((within * (half - 1) / half + between) / np.maximum(within, 1e-300))
    size = np.sum([_effective_size(chain) for chain in x], axis=0)
    return float(r_hat.mean()), float(size.mean())


def _effective_size(trace: Array) -> Array:
    """Geyer's initial positive sequence, for each column of (draws, quantities)."""
    x = trace - trace.mean(axis=0)
    R = len(x)
    spectrum = np.abs(np.fft.rfft(x, 2 * R, axis=0)) ** 2
    correlation = np.fft.irfft(spectrum, axis=0)[:R]
    correlation = correlation / np.maximum(correlation[0], 1e-300)
    pairs = correlation[1 : R - 1 : 2] + correlation[2:R:2]
    positive = np.cumprod(pairs > 0, axis=0)
    return R / np.maximum(1 + 2 * (pairs * positive).sum(axis=0), 1.0)


def louis_errors(
    problem: Problem, run: Run, few: Problem, kept: NDArray[np.int16]
) -> tuple[StandardErrors, str | None]:
    """Standard errors that include the uncertainty of the orders (Louis 1982), and a note if they do not.

    `kept` are orders drawn for the trajectories of `few`, which speak for all of `problem`.

    Observed information: that of known orders less the posterior variance of its score,
    `I = I_known − Σ_j Var(s_j | data)`. Products of posterior means are taken across two independent chains, so
    that the chains' autocorrelation does not bias them.
    """
    statistics = as_moments(problem, run.statistics)
    known = regression_errors(statistics, run.law.model.diffusion)
    d, p = run.law.model.coefficients.shape
    size = d * p + d * (d + 1) + d
    if size > LOUIS_PARAMETERS:
        return known, (
            f"Standard errors are those of known orders: with {d} variables those of the orders are "
            "not computed."
        )
    information, cross, complete = _informations(problem, run, few.data, kept)
    for candidate in (information, cross):
        errors = _invert(candidate, complete, d, p, problem.dt)
        if errors is not None:
            return errors, None
    return (
        known,
        "Standard errors are those of known orders: the information is not positive definite.",
    )


def _invert(
    information: Array, complete: Array, d: int, p: int, dt: float
) -> StandardErrors | None:
    unit = 1 / np.sqrt(np.diag(complete))
    scaled = information * np.outer(unit, unit)
    if not np.linalg.eigvalsh(scaled)[0] > 1e-6:
        return None
    inverse = np.linalg.inv(scaled) * np.outer(unit, unit) / dt**2
    errors = np.sqrt(np.diag(inverse))
    i, j = np.tril_indices(d)
    diffusion = np.empty((d, d))
    diffusion[i, j] = diffusion[j, i] = errors[d * p : d * p + len(i)]
    equations = np.stack([inverse[k : k + p, k : k + p] for k in range(0, d * p, p)])
    return StandardErrors(errors[: d * p].reshape(d, p), diffusion, covariances=equations)


def _informations(
    problem: Problem, run: Run, data: Data, kept: NDArray[np.int16]
) -> tuple[Array, Array, Array]:
    """Louis' information, the sum of squared scores, and the information if the orders were known.

    Parameters: B = Θ Δt by rows, Q = H Δt, and p₀'s mean and covariance, covariances as lower triangles.
    """
    law = run.law
    d, p = law.model.coefficients.shape
    n = problem.data.shape[0]
    P: Array = np.asarray(np.linalg.inv(law.model.diffusion * problem.dt), dtype=np.float64)
    start = law.start or Gaussian(np.zeros(d), np.eye(d))
    P0: Array = np.asarray(np.linalg.inv(start.covariance), dtype=np.float64)
    m = d * (d + 1) // 2
    complete = np.zeros((d * p + 2 * m + d,) * 2)
    regressors = run.statistics.gram[:p, :p] / problem.dt
    complete[: d * p, : d * p] = np.kron(P, regressors)
    at = slice(d * p, d * p + m)
    complete[at, at] = _covariance_information(P, float((problem.data.observed - 1).sum()))
    at = slice(d * p + m, d * p + m + d)
    complete[at, at] = n * P0
    at = slice(d * p + m + d, None)
    complete[at, at] = _covariance_information(P0, n)

    def scores(block: slice, orders: Order) -> Array:
        x, u = data.block(block, orders)
        x, live = to_numpy(x), data.live(block)
        phi = to_numpy(problem.drift.features(x[:, :-1], None if u is None else u[:, :-1]))
        e = np.diff(x, axis=1) - phi @ law.model.coefficients.T * problem.dt
        if live is not None:
            e, phi = e * live, phi * live
        steps = (data.observed[block] - 1)[:, None, None]
        of_B = P @ (e.transpose(0, 2, 1) @ phi)
        of_Q = 0.5 * (P @ (e.transpose(0, 2, 1) @ e) @ P - steps * P)
        f = (x[:, 0] - start.mean) @ P0
        of_S = 0.5 * (f[:, :, None] * f[:, None, :] - P0)
        return np.concatenate([of_B.reshape(len(x), -1), _half(of_Q), f, _half(of_S)], axis=1)

    def of_block(block: slice) -> tuple[Array, Array]:
        square, means = np.zeros_like(complete), []
        for chain in kept[:2]:
            each = np.stack(
                [scores(block, chain[:, r].astype(np.intp)) for r in range(chain.shape[1])]
            )
            flat = each.reshape(-1, each.shape[2])
            square = square + flat.T @ flat / (2 * len(each))
            means.append(each.mean(axis=0))
        product = means[0].T @ means[1]
        return square, 0.5 * (product + product.T)

    parts = list(data.map_rows(of_block, size=64))
    scale = n / data.shape[0]
    square = np.sum([part[0] for part in parts], axis=0) * scale
    cross = np.sum([part[1] for part in parts], axis=0) * scale
    return complete - square + cross, cross, complete


def _half(S: Array) -> Array:
    """Gradients by the lower triangle of a symmetric matrix: off-diagonal entries count twice."""
    i, j = np.tril_indices(S.shape[-1])
    return S[..., i, j] * np.where(i == j, 1.0, 2.0)


def _covariance_information(P: Array, count: float) -> Array:
    """Expected information of a covariance with inverse P, over its lower triangle."""
    i, j = np.tril_indices(len(P))
    twice = np.where(i == j, 1.0, 2.0)
    G = 0.5 * (P[np.ix_(i, i)] * P[np.ix_(j, j)] + P[np.ix_(i, j)] * P[np.ix_(j, i)])
    return 0.5 * count * G * np.outer(twice, twice)


def shared_posterior(
    costs: Array,
    start: Array,
    order: Order,
    rng: np.random.Generator,
    *,
    samples: int,
    chains: int = 4,
    prior: Prior | None = None,
) -> OrderPosterior:
    """The posterior over one order shared by all trajectories, from the summed transition costs."""
    T = len(costs)
    padded, rules = padded_costs(costs, start), None if prior is None else prior.single()
    states = random_states(rng, chains)
    thin = max(T // 2, 5)
    schedule = Schedule(50 * thin, samples, thin)
    proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
    positions = np.zeros((T, T), np.int32)
    kept = np.zeros((chains, KEPT, T), np.int16)
    for c in range(chains):
        seen = Records.none(T=T)._replace(positions=positions, kept=kept[c])
        state = states[c : c + 1]
        sample_path(padded, rules, order.copy(), state, schedule, proposals, seen)
    cost = start[kept[..., 0]] + costs[kept[..., :-1], kept[..., 1:]].sum(axis=-1)
    r_hat, size = convergence(cost[:, :, None])
    probabilities = positions.astype(np.float32) / np.float32(samples * chains)
    return OrderPosterior(probabilities, kept.reshape(-1, T), r_hat, size)
