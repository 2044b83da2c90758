"""EM in the state-space model: the SDE behind noisy, partly missing observations in known time order.

E: the smoother gives the expected Gram matrix of the rows z = (φ √dt, ΔX / √dt) of `moments`. M: the
regression of `estimation` on it, closed form in (Θ, H) where `F = 1 + A dt`, `s = c dt`, `Q = H dt`; the exact
discretisation maps the same regression to continuous time at the end. EM is slow where the noise is far
below or above the step's own spread, so its steps are extrapolated (Anderson); a step that would lower the likelihood
is replaced by the plain one, which cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.data.blocks import one_blas_thread
from retrace_sde.estimate.exact import exact
from retrace_sde.estimate.kalman.errors import drawn_errors, simulated_errors
from retrace_sde.estimate.kalman.model import Stack, as_observations, group, is_covariance
from retrace_sde.estimate.kalman.smoother import Smoothed, kalman
from retrace_sde.estimate.kalman.steps import (
    NOISE_FLOOR,
    Expected,
    Noise,
    Parameters,
    Problem,
    as_noise,
    expect,
    first_guess,
    information_weights,
    maximise,
    pack,
    spread,
    unpack,
)
from retrace_sde.estimate.moments import Moments
from retrace_sde.estimate.regression import StandardErrors
from retrace_sde.process.sde import Array, Gaussian, LinearSDE, Scheme

MEMORY = 10
"""Steps that the extrapolation looks back on."""

LARGEST = 1 << 25
"""Numbers of smoothed covariances (256 MiB) beyond which a fit does not keep them."""


@dataclass(frozen=True, eq=False)
class EMResult:
    """The fitted SDE and noise. `log_likelihood` is the trace over the accepted steps; it never falls.

    `states` and trace belong to the fitted transition (F, s, Q), `states` without covariances where so many
    patterns of missing entries would take more than 256 MiB; where it has no logarithm the SDE is the nearest
    in likelihood, and `notes` say so. `errors` assume that the model holds and count p₀ as known;
    None where they were not asked for. `evaluations` counts passes of the smoother. `moments` are the expected
    sufficient statistics of the states' steps under the fit, `parameters` its step in Euler's form, from
    which another fit can start.
    """

    sde: LinearSDE
    noise: Array
    errors: StandardErrors | None
    log_likelihood: Array
    states: Smoothed
    converged: bool
    evaluations: int
    moments: Moments
    parameters: Parameters
    notes: tuple[str, ...] = field(default=())

    @property
    def drift(self) -> Array:
        return self.sde.drift

    @property
    def offset(self) -> Array:
        return self.sde.offset

    @property
    def diffusion(self) -> Array:
        return self.sde.diffusion

    @property
    def initial(self) -> Gaussian:
        """The fitted law of X_0."""
        return self.sde.initial or Gaussian(np.zeros(len(self.noise)), np.zeros_like(self.noise))


def em(
    Y: ArrayLike,
    dt: float,
    *,
    noise: Noise = "estimate",
    affine: bool = False,
    scheme: Scheme = "euler",
    drift: ArrayLike | None = None,
    diffusion: ArrayLike | None = None,
    drift_mask: ArrayLike | None = None,
    initial: Gaussian | None = None,
    max_iter: int = 200,
    tolerance: float = 1e-2,
    standard_errors: bool = True,
    start: EMResult | None = None,
    n_jobs: int | None = None,
) -> EMResult:
    """Maximum likelihood of `dX = (A X + c) dt + G dW`, `Y = X + N(0, R)`, from Y (n, T, d), NaN where missing.

    noise: "estimate" (R = σ² I), "diagonal", a known standard deviation, one per variable (d,) where NaN
    means unknown, or a known R (d, d). drift, diffusion, initial: known A, H, p₀. drift_mask (d, d): False where
    A is known to be 0. tolerance: the rise of the log-likelihood, in nats over three steps, that ends the search.
    start: an earlier fit of the same kind to data much like these, from which the search goes on.
    n_jobs: threads (None: all cores) for patterns of missing entries; the result does not depend on it.
    Limits: a regular grid; values missing for reasons that do not depend on them; a local maximum; the noise is
    told from H by how increments grow with their length, so T ≥ 3. With scheme="exact", known zeros
    of A or a known H leave no closed form and are refused, unless A is known too.
    """
    values = as_observations(Y)
    if not (np.isfinite(dt) and dt > 0):
        raise ValueError(f"dt must be a positive number, not {dt}.")
    if values.shape[1] < 3:
        raise ValueError("em needs at least three observations per trajectory.")
    if scheme not in ("euler", "exact"):
        raise ValueError(f"scheme must be 'euler' or 'exact', not {scheme!r}.")
    if not (max_iter >= 1 and tolerance >= 0):
        raise ValueError("max_iter must be at least 1 and tolerance not negative.")
    d = values.shape[2]
    A, H = _matrix("drift", drift, d), _matrix("diffusion", diffusion, d)
    mask = np.ones((d, d), dtype=bool) if drift_mask is None else np.asarray(drift_mask, dtype=bool)
    if mask.shape != (d, d):
        raise ValueError(f"drift_mask must have shape ({d}, {d}), not {mask.shape}.")
    if scheme == "exact" and A is None and (H is not None or not mask.all()):
        raise ValueError(
            "known zeros of A and a known diffusion are not known entries of e^{A dt} and Q, so scheme='exact' "
            "has no closed form for them: use scheme='euler'."
        )
    if A is not None:
        step = LinearSDE(A, np.eye(d) if H is None else H).transition(dt, scheme=scheme)
        mask = np.zeros((d, d), dtype=bool)
        H_step = None if H is None else step.covariance / dt
        A_step = (step.matrix - np.eye(d)) / dt
    else:
        A_step, H_step = np.zeros((d, d)), H
    if affine:
        mask, A_step = np.c_[mask, np.ones(d, dtype=bool)], np.c_[A_step, np.zeros(d)]
    R, noise_free, tied = as_noise(noise, d)
    problem = Problem(dt, mask, A_step, H_step, noise_free, tied, initial, spread(values), n_jobs)
    pattern, stacks = group(values)
    guess = first_guess(values, problem, R) if start is None else _resume(start, problem, R)
    with one_blas_thread():
        found, expected, trace, converged, evaluations = climb(
            stacks, problem, guess, max_iter, tolerance
        )

    notes = []
    if not converged:
        notes.append(f"The likelihood was still rising after {evaluations} smoothing passes.")
    if np.any((np.diag(found.R) <= 1.01 * NOISE_FLOOR * dt * np.diag(found.H))[noise_free]):
        notes.append("The data show no observation noise: its variance is at the floor.")
    theta, H_found = found.theta, found.H
    N, p = expected.count, theta.shape[1]
    moments = expected.moments
    if scheme == "exact":
        root = moments.blocks[0]
        corner = np.linalg.cholesky(found.H).T * np.sqrt(N)
        factor = np.block([[root, root @ theta.T], [np.zeros((d, p)), corner]])
        estimate = exact(Moments(factor, N, p), dt, affine=affine)
        theta, H_found = estimate.coefficients, estimate.diffusion
        notes += estimate.notes
    A_found = theta[:, :d] if A is None else A
    sde = LinearSDE(
        A_found,
        H_found if H is None else H,
        offset=theta[:, d] if affine else None,
        initial=found.initial,
    )
    wanted = standard_errors and (mask.any() or problem.H is None)
    few = (int(pattern.max()) + 1) * values[0].size * d <= LARGEST
    with one_blas_thread():
        errors = simulated_errors(stacks, problem, found, sde, scheme) if wanted else None
        states = kalman(values, found.model(dt), covariances=few, n_jobs=n_jobs)
    return EMResult(
        sde,
        found.R,
        errors,
        np.array(trace),
        states,
        converged,
        evaluations,
        moments,
        found,
        tuple(notes),
    )


def errors_over_draws(
    draws: list[list[Array]],
    dt: float,
    fit: EMResult,
    *,
    noise: Noise,
    scheme: Scheme = "euler",
    n_jobs: int | None = None,
) -> StandardErrors | None:
    """Standard errors of a fit averaged over orders: `draws[c][r]` (n, T, d) in the r-th orders of chain c."""
    theta, d = fit.parameters.theta, draws[0][0].shape[2]
    _, noise_free, tied = as_noise(noise, d)
    free, unit = np.ones(theta.shape, dtype=bool), spread(draws[0][0])
    problem = Problem(dt, free, np.zeros_like(theta), None, noise_free, tied, None, unit, n_jobs)
    stacks = [[group(values)[1] for values in chain] for chain in draws[:2]]
    with one_blas_thread():
        return drawn_errors(stacks, problem, fit.parameters, fit.sde, scheme)


def _resume(start: EMResult, problem: Problem, R: Array) -> Parameters:
    """Parameters of an earlier fit with what is known now put in; noise it took to be 0 starts above that."""
    old, dt, unknown = start.parameters, problem.dt, problem.noise_free
    if old.theta.shape != problem.free.shape:
        raise ValueError(
            f"start is a fit with a drift of shape {old.theta.shape}; this one has {problem.free.shape}."
        )
    H, R = (old.H if problem.H is None else problem.H), R.copy()
    before = np.diag(old.R)
    variances = np.where(before > 0, before, 0.01 * dt * np.diag(H))[unknown]
    R[unknown, unknown] = variances.mean() if problem.noise_tied else variances
    theta = np.where(problem.free, old.theta, problem.known)
    return Parameters(theta, H, R, problem.initial or old.initial)


def _matrix(name: str, value: ArrayLike | None, d: int) -> Array | None:
    if value is None:
        return None
    matrix = np.asarray(value, dtype=float)
    if matrix.shape != (d, d) or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be a finite matrix ({d}, {d}); got shape {matrix.shape}.")
    if name == "diffusion" and not (is_covariance(matrix) and np.linalg.eigvalsh(matrix)[0] > 0):
        raise ValueError("diffusion is H = G Gᵀ: it must be symmetric and positive definite.")
    return matrix


def climb(
    stacks: list[Stack], problem: Problem, start: Parameters, max_iter: int, tolerance: float
) -> tuple[Parameters, Expected, list[float], bool, int]:
    """EM with Anderson's extrapolation: of the last steps the combination whose EM step is smallest.

    Returns the parameters, the E-step there, the log-likelihoods, whether they had stopped rising, and
    the number of E-steps. "Small" is measured in the metric of the complete data's information. Every accepted step raises the
    likelihood; where the extrapolated one does not, the plain EM step is taken and the memory cleared.
    """
    now, expected = start, expect(stacks, problem, start)
    trace, evaluations = [expected.likelihood], 1
    x = pack(now, problem)
    memory: list[tuple[Array, Array]] = []
    step = pack(maximise(problem, expected, now), problem) - x
    while len(trace) <= max_iter:
        weight = information_weights(now, expected, problem)
        trial = x + step
        if memory:
            moves, changes = (np.array(rows) for rows in zip(*memory, strict=True))
            gamma = np.linalg.lstsq((changes * weight).T, step * weight, rcond=1e-10)[0]
            trial = trial - gamma @ (moves + changes)
        better = _attempt(stacks, problem, trial, now, trace[-1])
        evaluations += 1
        if better is None and memory:
            memory.clear()
            trial = x + step
            better = _attempt(stacks, problem, trial, now, trace[-1])
            evaluations += 1
        if better is None:  # not even the plain step rises: what is left is rounding
            return now, expected, trace, True, evaluations
        now, expected = better
        trace.append(expected.likelihood)
        if len(trace) > 3 and trace[-1] - trace[-4] < tolerance:
            return now, expected, trace, True, evaluations
        new_step = pack(maximise(problem, expected, now), problem) - trial
        memory = [*memory[1 - MEMORY :], (trial - x, new_step - step)]
        x, step = trial, new_step
    return now, expected, trace, False, evaluations


def _attempt(
    stacks: list[Stack], problem: Problem, trial: Array, like: Parameters, least: float
) -> tuple[Parameters, Expected] | None:
    """Parameters and E-step at a trial point, or None where the likelihood is lower there or not defined."""
    with np.errstate(all="ignore"):
        try:
            found = unpack(trial, like, problem)
            expected = expect(stacks, problem, found)
        except np.linalg.LinAlgError:
            return None
    return (found, expected) if expected.likelihood >= least else None
