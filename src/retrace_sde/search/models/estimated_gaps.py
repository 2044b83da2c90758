"""Unknown gaps: the times between neighbouring slices of one shared order, by maximum likelihood.

Given θ each gap has a one-dimensional likelihood with n·d numbers behind it. With Euler's step it is
`−½ (S_ΔΔ/g + g S_bb) − ½ n d log g`, largest at the positive root of `S_bb g² + n d g − S_ΔΔ = 0`, where S_ΔΔ and S_bb are
the squares of increments and of drifts in the metric of H. So a pair's cost with its own best gap is again
one number, and the search over orders stays as it is. Along the order found, θ and the gaps of a linear or affine
drift are fitted together with exact transitions (`fit/irregular_times`); other drifts alternate between the two.

Gaps and drift trade off where the drift is weak: then only the spread of a step tells its length, and unequal
volatility reads as unequal time. Intervals are widened by what mean and spread disagree on (`unequal_steps`). Each direction
has its own gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.intervals import half_widths
from retrace_sde.fit.irregular_times import Spans
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.fit.unequal_steps import gap_clocks
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.deferred import optimize
from retrace_sde.orders.costs import best_gaps, gap_costs
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.clock import Gaps
from retrace_sde.search.model import Fit, Problem
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.exact_gaps import exact_fit, exact_fits, spans

MAX_GAP_ROUNDS, GAP_TOLERANCE = 50, 1e-4
"""Maximum alternations between θ and the gaps, and the relative change of a gap at which they stop."""

GAP_CHECK_SAMPLE = 1_000_000
"""Values (n T d) used to check whether mean and variance of the steps imply the same gaps."""


@dataclass(frozen=True, eq=False)
class GapModel(EulerModel):
    """Euler's steps across gaps that are estimated, those of a pair while searching and of the order at the end."""

    @property
    def gaps_estimated(self) -> bool:
        return True

    def fit(self, order: Indices, start: Fit | None = None, *, final: bool = False) -> Fit:
        """θ and gaps alternately along an order, with Euler's step; at the end with exact transitions, where feasible."""
        found = self._alternated(order)
        return self.finished(found) if final else found

    def reversed_fit(self, found: Fit, start: Fit | None = None, *, final: bool = False) -> Fit:
        """Each direction has its own gaps."""
        return self.fit(self.data.reversed(found.order), start, final=final)

    def estimator(self, found: Fit) -> str:
        """Exact transitions where they were fitted."""
        return "mle" if found.estimate is None else "exact"

    def _crosses(self, found: Fit, name: str) -> bool:
        return self.scheme == "exact" and found.estimate is not None

    def _fitted_across(self, found: Fit) -> Estimate | None:
        """What was fitted together with the gaps."""
        return found.estimate

    def for_search(self) -> Self:
        """All trajectories: gaps are estimated from the variance of single steps."""
        return self

    def _pair_costs(self, found: Fit) -> Array:
        return gap_costs(self.data, found.step)

    def evidence(self, found: Fit) -> float:
        """The gaps account for unequal steps."""
        return 0.0

    def _alternated(self, order: Indices) -> Fit:
        stretch = spans(self, order)
        squares = step_squares(self, order, None)[0]
        gaps = self.dt * stretch.gaps(np.log(np.maximum(squares, 1e-12 * squares.max())))
        found = self.fit_gaps(order, Gaps.of(gaps))
        for _ in range(MAX_GAP_ROUNDS):
            new = self.dt * _constrained_gaps(self, found, stretch)
            moved = np.abs(np.log(new / gaps)).max()
            gaps, found = new, self.fit_gaps(order, Gaps.of(new))
            if moved < GAP_TOLERANCE:
                break
        return found

    def finished(self, found: Fit) -> Fit:
        """Exact transitions where the drift is linear, else Euler's; errors of gaps allow for changes of volatility."""
        exactly = exact_fits(self)
        found = exact_fit(self, found, free=True) if exactly else self._with_errors(found)
        assert found.log_gap_errors is not None  # both kinds of fit have them
        gaps = found.gaps.along(self.data.shape[1])
        seen = gap_clocks(*whitened_steps(self, found, exactly=exactly), gaps)
        errors = np.hypot(found.log_gap_errors, seen.deviation)
        return replace(found, log_gap_errors=errors, clocks=seen)

    def _with_errors(self, found: Fit) -> Fit:
        """The errors of the gaps that Euler's step leaves."""
        n, _, d = self.data.shape
        increments, pushes = step_squares(self, found.order, found.step)
        g = found.gaps.along(len(increments) + 1) / self.dt
        # Information on the logarithms of the gaps and of the scale of H, which trade off.
        S = len(g)
        information = np.zeros((S + 1, S + 1))
        information[range(S), range(S)] = (increments / g + g * pushes) / 2
        information[:S, S] = information[S, :S] = (increments / g - g * pushes) / 2
        information[S, S] = n * d * S / 2
        J = np.zeros((S + 1, S + 1))
        J[:S, :S] = spans(self, found.order).jacobian(g)
        J[S, S] = 1.0
        covariance = J @ np.linalg.pinv(J.T @ information @ J, rcond=1e-10, hermitian=True) @ J.T
        errors = np.sqrt(np.maximum(np.diag(covariance)[:S], 0))
        return replace(found, log_gap_errors=errors)


def gap_intervals(gaps: Gaps, log_errors: Array | None, n: int) -> Array | None:
    """95 % intervals (T − 1, 2) of gaps estimated from n trajectories, symmetric on the logarithmic scale."""
    if log_errors is None:
        return None
    reach = half_widths(log_errors[:, None] * np.array([-1.0, 1.0]), n)
    return gaps.along(len(log_errors) + 1)[:, None] * np.exp(reach)


def step_squares(problem: Problem, order: Indices, step: Euler | None) -> tuple[Array, Array]:
    """S_ΔΔ and S_bb of each step, in the metric of H, time in units of dt (without a step: of the variances)."""
    data, dt = problem.data, problem.dt
    W = np.diag(problem.variances**-0.5) if step is None else step.whitening

    def of_piece(piece: Data, order: Indices) -> Array:
        x, u = piece.block(slice(None), order)
        x, u, live = to_numpy(x), None if u is None else to_numpy(u), piece.live
        moved = np.diff(x, axis=1) @ W.T
        if step is None:
            push = np.zeros_like(moved)
        else:
            phi = to_numpy(step.drift.features(x[:, :-1], None if u is None else u[:, :-1]))
            push = phi @ (W @ step.coefficients * dt).T
        squares = np.stack([moved**2, push**2])
        return (squares if live is None else squares * live).sum(axis=(1, 3))

    both = data.sum_pieces(of_piece, order)
    return both[0], both[1]


def whitened_steps(problem: Problem, found: Fit, *, exactly: bool) -> tuple[Array, Array]:
    """Residuals and drifts per unit of time (n, S, d) in the metric of each step's covariance, of some trajectories."""
    _, T, d = problem.data.shape
    data = problem.data.some(max(GAP_CHECK_SAMPLE // (T * d), 2 * d + 20))
    gaps = found.gaps.along(T)
    x, u = (
        None if each is None else to_numpy(each) for each in data.block(slice(None), found.order)
    )
    assert x is not None  # only covariates may be absent
    step = found.step
    phi = to_numpy(step.drift.features(x[:, :-1], None if u is None else u[:, :-1]))
    push = phi @ step.coefficients.T
    ahead, Q = x[:, :-1] + push * gaps[:, None], step.diffusion[None]
    if exactly:
        A = step.coefficients[:, :d]
        c = step.coefficients[:, d] if step.coefficients.shape[1] > d else np.zeros(d)
        F, S, Q = transitions(np.c_[A, c], step.diffusion, gaps)
        ahead = _each_step(F, x[:, :-1]) + S[:, :, 0]
        push = ahead @ A.T + c
    values, vectors = np.linalg.eigh(Q)
    # The symmetric root keeps each number close to its own variable.
    W = (vectors / np.sqrt(np.maximum(values, 1e-300))[:, None, :]) @ vectors.transpose(0, 2, 1)
    if not exactly:
        W = W / np.sqrt(gaps)[:, None, None]
    return _each_step(W, x[:, 1:] - ahead), _each_step(W, push)


def _each_step(matrices: Array, x: Array) -> Array:
    """A matrix for each of S steps, (S, d, d), times all trajectories' states there, (n, S, d)."""
    return (x.transpose(1, 0, 2) @ matrices.transpose(0, 2, 1)).transpose(1, 0, 2)


def step_numbers(problem: Problem) -> Array:
    """The number of values of each step: n d, less where trajectories have ended."""
    there = problem.data.lengths.steps.mask
    return problem.data.shape[2] * there.sum(axis=0).astype(float)


def _constrained_gaps(problem: Problem, found: Fit, stretch: Spans) -> Array:
    """Each stretch's best gaps with its length kept."""
    increments, pushes = step_squares(problem, found.order, found.step)
    numbers = step_numbers(problem)
    gaps = best_gaps(increments, pushes, numbers)
    for a, b, length in zip(stretch.begin, stretch.end, stretch.length, strict=True):
        gaps[a:b] = _gaps_of_length(increments[a:b], pushes[a:b], numbers[a:b], length)
    return gaps


def _gaps_of_length(D: Array, P: Array, N: Array, length: float) -> Array:
    """The best gaps of one stretch that add up to its length: a multiplier λ adds 2λ = c to S_bb."""

    def gaps(c: float) -> Array:
        # The root of (S_bb + c) g² + n d g − S_ΔΔ = 0; without one (c too negative) the gap has no bound.
        return 2 * D / (N + np.sqrt(np.maximum(N**2 + 4 * (P + c) * D, 0.0)))

    low = -float(np.min(N**2 / np.maximum(4 * D, 1e-300) + P))
    high = float(np.max(D) * len(D) ** 2 / length**2)
    best = low  # even the longest gaps may be too short: they are scaled
    if gaps(low).sum() > length:
        best = optimize.brentq(lambda c: gaps(c).sum() - length, low, high, xtol=1e-300)
    found = gaps(best)
    return found * length / found.sum()
