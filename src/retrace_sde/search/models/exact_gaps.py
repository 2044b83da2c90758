"""A linear SDE along an order whose gaps differ: maximum likelihood with exact transitions (`fit/irregular_times`).

The gaps are known, or free and estimated together with the parameters; either way all trajectories have them in
common. The unit is set by the mean gap, dt, or by times that are known.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.information import jacobian, observed_information
from retrace_sde.fit.irregular_times import (
    Spans,
    StepLikelihood,
    StepMoments,
    maximum,
    step_likelihood,
)
from retrace_sde.fit.regression import Estimate, StandardErrors
from retrace_sde.fit.start_law import start_log_densities
from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.model import Fit, Problem

EXACT_WORK = 2_000_000
"""T (4d + 4)³, the work of an exponential for each gap, up to which a linear drift is fitted with exact
transitions (T = 40 at d = 8); beyond it Euler's step is used."""


def exact_fits(problem: Problem) -> bool:
    """Exact transitions are feasible: the drift is linear, and the exponentials are few and small."""
    _, T, d = problem.data.shape
    return isinstance(problem.drift, (Linear, Affine)) and T * (4 * d + 4) ** 3 <= EXACT_WORK


def spans(problem: Problem, order: Indices) -> Spans:
    """Stretches of known length along an order, in units of dt: all of it, unless two times or more are known."""
    S = order.shape[-1] - 1
    times = problem.timing.stamped(order)
    known = np.flatnonzero(~np.isnan(times))
    lengths = np.diff(times[known]) / problem.dt
    # Equal times, or an order against them (the reverse of what is known), set no unit.
    if len(lengths) == 0 or np.any(lengths <= 0):
        return Spans(np.array([0]), np.array([S]), np.array([float(S)]))
    return Spans(known[:-1], known[1:], lengths)


def exact_fit(problem: Problem, found: Fit, *, free: bool) -> Fit:
    """Maximum likelihood of a linear SDE along the order of a fit, with its gaps free or as they are."""
    if not found.gaps.shared:
        raise ValueError(
            "estimator='exact' needs gaps that all trajectories have in common; with times of each "
            "trajectory's own use estimator='mle'."
        )
    data, dt = problem.data, problem.dt
    gaps = found.gaps.along(data.shape[1])
    affine = isinstance(problem.drift, Affine)
    scale = np.sqrt(problem.variances)
    steps = StepMoments.of(data, found.order, scale, affine=affine)
    stretches = spans(problem, found.order) if free else None
    likelihood = step_likelihood(steps, gaps / dt, stretches, affine=affine)
    d = len(scale)
    theta, H = found.step.coefficients, found.step.diffusion
    A = theta[:, :d] * scale / scale[:, None] * dt
    c = (theta[:, d] + theta[:, :d] @ steps.centre) / scale * dt if affine else np.zeros(d)
    best = maximum(likelihood, np.c_[A, c], H / np.outer(scale, scale) * dt, gaps / dt)
    theta, H, gaps = law = likelihood.split(best)
    coefficients, diffusion = _in_units(theta, H, steps, dt, affine)
    step = Euler(problem.drift, coefficients, diffusion, dt)
    start = start_log_densities(data.states(found.order)[None], step, problem.variances)[0]
    errors, log_errors = _errors(likelihood, best, steps, dt, affine)
    return replace(
        found,
        step=step,
        log_likelihoods=start + _log_likelihoods(problem, found.order, steps, *law),
        gaps=Gaps.of(gaps * dt),
        log_gap_errors=log_errors if free else None,
        estimate=Estimate(coefficients, diffusion, errors, scheme="exact"),
    )


def _in_units(
    theta: Array, H: Array, steps: StepMoments, dt: float, affine: bool
) -> tuple[Array, Array]:
    """Θ and H in the user's units."""
    s, c = steps.scale, theta[:, -1]
    A = theta[:, :-1] / s * s[:, None] / dt
    H = H * np.outer(s, s) / dt
    return (np.c_[A, c * s / dt - A @ steps.centre] if affine else A), H


def _log_likelihoods(
    problem: Problem, order: Indices, steps: StepMoments, theta: Array, H: Array, gaps: Array
) -> Array:
    """`Σ_i log p(x_{i+1} | x_i)` of each trajectory under exact transitions."""
    F, s, Q = transitions(theta, H, gaps)
    roots = [cholesky(q, lower=True) for q in Q]
    constant = sum(np.log(np.diag(root)).sum() for root in roots)
    constant += len(Q) * (np.log(steps.scale).sum() + len(steps.scale) * np.log(2 * np.pi) / 2)

    def of_piece(piece: Data) -> Array:
        y = (to_numpy(piece.block(slice(None), order)[0]) - steps.centre) / steps.scale
        total = np.zeros(len(y))
        for i, root in enumerate(roots):
            residual = y[:, i + 1] - y[:, i] @ F[i].T - s[i, :, 0]
            total += (solve_triangular(root, residual.T, lower=True) ** 2).sum(axis=0)
        return total

    return -0.5 * problem.data.each_piece(of_piece) - constant


def _errors(
    likelihood: StepLikelihood, p: Array, steps: StepMoments, dt: float, affine: bool
) -> tuple[StandardErrors, Array]:
    """Standard errors of Θ and H (delta method) and of the logarithms of the gaps, from the information."""
    reach = 1e-5 * np.maximum(1.0, np.abs(p))
    information = observed_information(lambda q: -likelihood(q)[1], p, reach)
    unit = 1 / np.sqrt(np.maximum(np.diag(information), 1e-12))
    scaled = np.linalg.pinv(information * np.outer(unit, unit), rcond=1e-9, hermitian=True)
    covariance = scaled * np.outer(unit, unit)

    def shown(q: Array) -> Array:
        theta, H = _in_units(*likelihood.split(q)[:2], steps, dt, affine)
        return np.concatenate([theta.ravel(), H.ravel()])

    J = jacobian(shown, p, 1e-6 * np.maximum(1.0, np.abs(p)))
    deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", J, covariance, J), 0.0))
    d = len(steps.scale)
    size = d * (d + affine)
    errors = StandardErrors(deviation[:size].reshape(d, -1), deviation[size:].reshape(d, d))
    gaps = likelihood.split(p)[2]
    if likelihood.spans is None:
        return errors, np.zeros(len(gaps))
    of_u = likelihood.spans.jacobian(gaps)
    at = len(p) - len(gaps)
    spread = of_u @ covariance[at:, at:] @ of_u.T
    return errors, np.sqrt(np.maximum(np.diag(spread), 0.0))
