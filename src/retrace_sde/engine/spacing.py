"""Unknown gaps: the times between neighbouring slices of one shared order, by maximum likelihood.

Given θ each gap has a one-dimensional likelihood with n·d numbers behind it. With Euler's step it is
`−½ (S_ΔΔ/g + g S_bb) − ½ n d log g`, largest at the positive root of `S_bb g² + n d g − S_ΔΔ = 0`, where S_ΔΔ and S_bb are
the squares of increments and of drifts in the metric of H. So a pair's cost with its own best gap is again
one number, and the search over orders stays as it is. Along the order found, θ and the gaps of a linear or affine
drift are fitted together with exact transitions (`irregular`); other drifts alternate between the two.

The unit is set by the mean gap, dt, or by times that are known. Gaps and drift trade off where the drift is weak:
then only the spread of a step tells its length. Each direction has its own gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from retrace_sde.data.blocks import Array, Order, evenly, to_numpy
from retrace_sde.engine.direction import DirectionTest, direction_test, doubtful_direction
from retrace_sde.engine.problem import Directed, Problem, Round
from retrace_sde.estimate.euler import Model
from retrace_sde.estimate.irregular import Irregular, Likelihood, Spans, StepMoments, transitions
from retrace_sde.estimate.regression import Estimate, StandardErrors
from retrace_sde.estimate.start import start_log_densities
from retrace_sde.estimate.unequal_steps import dispersion
from retrace_sde.orders.costs import best_gaps, distances, gap_costs, near_costs
from retrace_sde.orders.paths import guided_paths, improve, shortest_path
from retrace_sde.process.drift import Affine, Linear

EXACT_WORK = 2_000_000
"""T (4d + 4)³, the work of an exponential for each gap, up to which a linear drift is fitted with exact
transitions (T = 40 at d = 8); beyond, Euler's step has to do."""

UNEQUAL_ROUNDS = 15
"""Alternations between θ and the variances of single steps."""

CHECKED = 200_000
"""Numbers (n T d) on which the check of a direction against unequal gaps is run."""

ROUNDS, TOLERANCE = 50, 1e-4
"""Alternations between θ and the gaps at most, and the relative change of a gap at which they stop."""


@dataclass(frozen=True, eq=False)
class Spaced:
    """An order's fit with its own gaps, and the standard errors of their logarithms.

    `estimate`: θ of the exact transitions with errors that include the gaps'; None for Euler's step.
    """

    directed: Directed
    gaps: Array
    log_errors: Array
    estimate: Estimate | None = None


def gap_intervals(gaps: Array | None, log_errors: Array | None) -> Array | None:
    """95 % intervals (T − 1, 2) of estimated gaps, symmetric on the logarithmic scale."""
    if gaps is None or log_errors is None:
        return None
    return gaps[:, None] * np.exp(1.96 * log_errors[:, None] * np.array([-1.0, 1.0]))


def recover_spacing(problem: Problem, *, max_iter: int) -> tuple[Spaced, Spaced, list[Round], bool]:
    """The order found with its gaps, its reverse with its own, the rounds, and whether the order settled."""
    n, _, d = problem.data.shape
    near = distances(problem.data)
    if problem.prior is None:
        starts = [shortest_path(near)]
    else:
        starts = guided_paths(near, n * d, problem.prior)
    runs = [_alternate(problem, start, max_iter) for start in starts]
    best, rounds, settled = max(runs, key=lambda run: run[0].objective)
    better, worse = both_spacings(problem, best.order)
    return better, worse, [*rounds, better.directed.as_round()], settled


def _alternate(problem: Problem, order: Order, max_iter: int) -> tuple[Directed, list[Round], bool]:
    """Fit with gaps in the better direction, search with each pair's own best gap, until the order stands."""
    rounds: list[Round] = []
    every, last = np.arange(len(order)), order[:0]
    for k in range(max_iter + 1):
        both = [_euler(problem, each) for each in (order, problem.data.reversed(order))]
        current = max(both, key=lambda each: each.objective)
        if np.array_equal(current.order, last):
            return current, rounds, True
        if k == max_iter:
            break
        rounds.append(current.as_round())
        start = -start_log_densities(
            problem.data.slices(every), current.model, problem.variances
        ).sum(axis=1)
        last = current.order
        order = improve(gap_costs(problem.data, current.model), start, last, problem.prior)
    return current, rounds, False


def both_spacings(problem: Problem, order: Order) -> tuple[Spaced, Spaced]:
    """The fit with gaps along an order and along its reverse, the more likely first."""
    one, two = (
        fit_spacing(problem, _euler(problem, each))
        for each in (order, problem.data.reversed(order))
    )
    return (one, two) if one.directed.objective >= two.directed.objective else (two, one)


def spacing_checked(
    problem: Problem, order: Order, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The direction found with equal gaps, or doubt: equal gaps that are not can be confidently wrong.

    Only where the steps are of unequal variance, and gaps estimated from the data favour the other
    direction: for independent orders gaps by position, common to all, and steps with variances of their own.
    """
    if not test.identified or test.known:
        return test
    n, T, d = problem.data.shape
    size = max(CHECKED // (T * d), 2 * d + 20)
    few = problem.some(size)
    if order.ndim == 1:
        steps = np.diagonal(near_costs(few.data, order, few.fit(order).model, 1), 1)
        if dispersion(steps, float(few.data.shape[0] * d)) is None:
            return test
    else:
        order = order[evenly(n, size)]
    both = order, few.data.reversed(order)
    fits = [_euler(few, each) for each in both]
    # Schwarz' price of T − 1 gaps: unless the data pay it, equal gaps are the better account.
    price = 0.5 * (T - 1) * np.log(float((few.data.observed - 1).sum()))
    worth_it = fits[0].log_likelihood - few.fit(order).log_likelihood > price
    pairs: list[list[Array | None]] = []
    if worth_it and order.ndim == 1:
        pairs = [[fit_spacing(few, each).directed.log_likelihoods for each in fits]]
    elif worth_it:
        pairs = [[each.log_likelihoods for each in fits]]
    if order.ndim == 2:
        pairs.append([_unequal_log_likelihoods(few, each) for each in both])
    for one, two in pairs:
        if one is not None and two is not None:
            other = direction_test(one, two, dimension=d, alpha=alpha)
            if other.log_likelihood_ratio < 0:
                return doubtful_direction(test, other, shared=order.ndim == 1)
    return test


def _unequal_log_likelihoods(problem: Problem, orders: Order) -> Array | None:
    """Joint log-likelihoods (n,) of independent orders whose steps have variances of their own; None if alike.

    θ, the spread (α, β) of the variances and each step's own, `(β + s)/(d/2 + α)`, in turn; the variances enter
    the fit as gaps, and are integrated out of the likelihood (see `dispersion`).
    """
    data = problem.data
    _, T, d = data.shape
    live = np.arange(1, T)[None] < data.observed[:, None]
    found, total = problem.fit(orders), None
    for _ in range(UNEQUAL_ROUNDS):
        W = found.model.whitening

        def of_block(rows: slice, W: Array = W, model: Model = found.model) -> Array:
            x, u = data.block(rows, orders)
            x = to_numpy(x)
            ahead = model.predict(x[:, :-1], None if u is None else to_numpy(u)[:, :-1])
            return 0.5 * (((x[:, 1:] - to_numpy(ahead)) @ W.T) ** 2).sum(axis=2)

        halves = np.concatenate(list(data.map_rows(of_block)))
        unequal = dispersion(halves[live], float(d))
        if unequal is None:
            return None
        first = data.states(orders)[None]
        start = start_log_densities(first, found.model, problem.variances)[0]
        steps = np.where(live, unequal.log_densities(halves) + np.log(np.diag(W)).sum(), 0.0)
        total = start + steps.sum(axis=1)
        gaps = np.where(live, unequal.beta + halves, 0.0)
        gaps = np.where(live, gaps * live.sum() / gaps.sum(), 1.0) * problem.dt
        found = problem.fit(orders, gaps)
    return total


def exact_fits(problem: Problem) -> bool:
    """Exact transitions can be had: the drift is linear, and the exponentials are few and small."""
    _, T, d = problem.data.shape
    return isinstance(problem.drift, (Linear, Affine)) and T * (4 * d + 4) ** 3 <= EXACT_WORK


def spans(problem: Problem, order: Order) -> Spans:
    """Stretches of known length along an order, in units of dt: all of it, unless two times or more are known."""
    S = order.shape[-1] - 1
    times = np.full(S + 1, np.nan)
    if order.ndim == 1 and problem.stamps is not None:
        times = problem.stamps[order]
    known = np.flatnonzero(~np.isnan(times))
    lengths = np.diff(times[known]) / problem.dt
    # Equal times, or an order against them (the reverse of what is known), set no unit.
    if len(lengths) == 0 or np.any(lengths <= 0):
        return Spans(np.array([0]), np.array([S]), np.array([float(S)]))
    return Spans(known[:-1], known[1:], lengths)


def _euler(problem: Problem, order: Order) -> Directed:
    """θ and gaps in turn along an order, with Euler's step."""
    stretch = spans(problem, order)
    squares = _step_squares(problem, order, None)[0]
    gaps = problem.dt * stretch.gaps(np.log(np.maximum(squares, 1e-12 * squares.max())))
    found = problem.fit(order, gaps)
    for _ in range(ROUNDS):
        new = problem.dt * _constrained_gaps(problem, found, stretch)
        moved = np.abs(np.log(new / gaps)).max()
        gaps, found = new, problem.fit(order, new)
        if moved < TOLERANCE:
            break
    return found


def _step_squares(problem: Problem, order: Order, model: Model | None) -> tuple[Array, Array]:
    """S_ΔΔ and S_bb of each step, in the metric of H, time in units of dt (without a model: of the variances)."""
    data, dt = problem.data, problem.dt
    W = np.diag(problem.variances**-0.5) if model is None else model.whitening

    def of_block(rows: slice) -> Array:
        x, u = data.block(rows, order)
        x, u, live = to_numpy(x), None if u is None else to_numpy(u), data.live(rows)
        step = np.diff(x, axis=1) @ W.T
        if model is None:
            push = np.zeros_like(step)
        else:
            phi = to_numpy(model.drift.features(x[:, :-1], None if u is None else u[:, :-1]))
            push = phi @ (W @ model.coefficients * dt).T
        squares = np.stack([step**2, push**2])
        return (squares if live is None else squares * live).sum(axis=(1, 3))

    both = np.sum(list(data.map_rows(of_block)), axis=0)
    return both[0], both[1]


def step_numbers(problem: Problem) -> Array:
    """How many numbers are behind each step: n d, less where trajectories have ended."""
    _, T, d = problem.data.shape
    there = problem.data.observed[:, None] > np.arange(1, T)[None]
    return d * there.sum(axis=0).astype(float)


def _constrained_gaps(problem: Problem, found: Directed, stretch: Spans) -> Array:
    """Each stretch's best gaps with its length kept: a multiplier λ adds 2λ to S_bb, found by bisection."""
    increments, pushes = _step_squares(problem, found.order, found.model)
    numbers = step_numbers(problem)
    gaps = best_gaps(increments, pushes, numbers)
    for a, b, length in zip(stretch.begin, stretch.end, stretch.length, strict=True):
        D, P, N = increments[a:b], pushes[a:b], numbers[a:b]

        def total(c: float, D: Array = D, P: Array = P, N: Array = N) -> Array:
            # The root of (S_bb + c) g² + n d g − S_ΔΔ = 0; without one (c too negative) the gap has no bound.
            return 2 * D / (N + np.sqrt(np.maximum(N**2 + 4 * (P + c) * D, 0.0)))

        low = -float(np.min(N**2 / np.maximum(4 * D, 1e-300) + P))
        high = float(np.max(D) * len(D) ** 2 / length**2)
        if total(low).sum() <= length:  # even the longest gaps are too short: scale them
            gaps[a:b] = total(low) * length / total(low).sum()
            continue
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle).sum() > length else (low, middle)
        gaps[a:b] = total(high) * length / total(high).sum()
    return gaps


def fit_spacing(problem: Problem, found: Directed) -> Spaced:
    """θ and gaps along an order, from Euler's: exact transitions where the drift is linear."""
    d = problem.data.shape[2]
    if exact_fits(problem):
        return exact_spacing(problem, found, found.gaps, free=True)
    increments, pushes = _step_squares(problem, found.order, found.model)
    gaps = np.full(len(increments), problem.dt) if found.gaps is None else found.gaps
    g = gaps / problem.dt
    # Information on the logarithms of the gaps and of the scale of H, which trade off.
    S = len(g)
    information = np.zeros((S + 1, S + 1))
    information[range(S), range(S)] = (increments / g + g * pushes) / 2
    information[:S, S] = information[S, :S] = (increments / g - g * pushes) / 2
    information[S, S] = problem.data.shape[0] * d * S / 2
    J = np.zeros((S + 1, S + 1))
    J[:S, :S] = spans(problem, found.order).jacobian(g)
    J[S, S] = 1.0
    covariance = J @ np.linalg.pinv(J.T @ information @ J, rcond=1e-10, hermitian=True) @ J.T
    return Spaced(found, gaps, np.sqrt(np.maximum(np.diag(covariance)[:S], 0)))


def exact_spacing(problem: Problem, found: Directed, gaps: Array | None, *, free: bool) -> Spaced:
    """Maximum likelihood of a linear SDE along an order, with its gaps free or as given."""
    if gaps is None or gaps.ndim == 2:
        raise ValueError(
            "estimator='exact' needs gaps that all trajectories have in common; with times of each "
            "trajectory's own use 'mle'."
        )
    data, dt = problem.data, problem.dt
    affine = isinstance(problem.drift, Affine)
    scale = np.sqrt(problem.variances)
    steps = StepMoments.of(data, found.order, scale, affine=affine)
    likelihood = Likelihood(steps, affine, spans(problem, found.order), None if free else gaps / dt)
    d = len(scale)
    theta, H = found.model.coefficients, found.model.diffusion
    A = theta[:, :d] * scale / scale[:, None] * dt
    c = (theta[:, d] + theta[:, :d] @ steps.centre) / scale * dt if affine else np.zeros(d)
    best = likelihood.maximise(A, c, H / np.outer(scale, scale) * dt, gaps / dt)
    coefficients, diffusion = _in_units(best.A, best.c, best.lower, steps, dt, affine)
    model = Model(problem.drift, coefficients, diffusion, dt)
    start = start_log_densities(data.states(found.order)[None], model, problem.variances)[0]
    directed = replace(
        found,
        model=model,
        log_likelihoods=start + _log_likelihoods(problem, found.order, steps, best),
        gaps=best.gaps * dt,
    )
    errors, log_errors = _errors(likelihood, best, steps, dt, affine)
    return Spaced(directed, best.gaps * dt, log_errors, Estimate(coefficients, diffusion, errors))


def _in_units(
    A: Array, c: Array, lower: Array, steps: StepMoments, dt: float, affine: bool
) -> tuple[Array, Array]:
    """Θ and H in the user's units."""
    s = steps.scale
    A = A / s * s[:, None] / dt
    H = (lower @ lower.T) * np.outer(s, s) / dt
    return (np.c_[A, c * s / dt - A @ steps.centre] if affine else A), H


def _log_likelihoods(problem: Problem, order: Order, steps: StepMoments, best: Irregular) -> Array:
    """`Σ_i log p(x_{i+1} | x_i)` of each trajectory under exact transitions."""
    F, s, Q = transitions(best.A, best.c, best.lower @ best.lower.T, best.gaps)
    roots = [cholesky(q, lower=True) for q in Q]
    constant = sum(np.log(np.diag(root)).sum() for root in roots)
    constant += len(Q) * (np.log(steps.scale).sum() + len(steps.scale) * np.log(2 * np.pi) / 2)

    def of_block(rows: slice) -> Array:
        y = (to_numpy(problem.data.block(rows, order)[0]) - steps.centre) / steps.scale
        total = np.zeros(len(y))
        for i, root in enumerate(roots):
            residual = y[:, i + 1] - y[:, i] @ F[i].T - s[i]
            total += (solve_triangular(root, residual.T, lower=True) ** 2).sum(axis=0)
        return total

    return -0.5 * np.concatenate(list(problem.data.map_rows(of_block))) - constant


def _errors(
    likelihood: Likelihood, best: Irregular, steps: StepMoments, dt: float, affine: bool
) -> tuple[StandardErrors, Array]:
    """Standard errors of Θ and H (delta method) and of the logarithms of the gaps, from the information."""
    p = best.parameters
    information = likelihood.information(p)
    unit = 1 / np.sqrt(np.maximum(np.diag(information), 1e-12))
    scaled = np.linalg.pinv(information * np.outer(unit, unit), rcond=1e-9, hermitian=True)
    covariance = scaled * np.outer(unit, unit)

    def shown(q: Array) -> Array:
        A, c, C, _ = likelihood.split(q)
        theta, H = _in_units(A, c, C, steps, dt, affine)
        return np.concatenate([theta.ravel(), H.ravel()])

    J = np.zeros((len(shown(p)), len(p)))
    for k in range(len(p)):
        e = np.zeros_like(p)
        e[k] = 1e-6 * max(1.0, abs(p[k]))
        J[:, k] = (shown(p + e) - shown(p - e)) / (2 * e[k])
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", J, covariance, J), 0.0))
    d = len(steps.scale)
    size = d * (d + affine)
    errors = StandardErrors(deviation[:size].reshape(d, -1), deviation[size:].reshape(d, d))
    if likelihood.fixed is not None:
        return errors, np.zeros(len(best.gaps))
    of_u = likelihood.spans.jacobian(best.gaps)
    at = len(p) - len(best.gaps)
    spread = of_u @ covariance[at:, at:] @ of_u.T
    return errors, np.sqrt(np.maximum(np.diag(spread), 0.0))
