"""EM in the state-space model: the SDE behind noisy, partly missing observations in known time order.

E: the smoother gives the expected Gram matrix of the rows z = (φ √dt, ΔX / √dt) of `moments`. M: the
regression of `regression` on it, closed form in (Θ, H) where `F = 1 + A dt`, `s = c dt`, `Q = H dt`; the exact
discretisation maps the same regression to continuous time at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.exact import embedding_at, exact, moments_of_step
from retrace_sde.fit.information import inverse
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import StandardErrors, Through
from retrace_sde.fit.statespace.ascent.climb import Climb, climb
from retrace_sde.fit.statespace.ascent.scoring import Scoring
from retrace_sde.fit.statespace.em_steps import Expected, expect
from retrace_sde.fit.statespace.errors import Scores
from retrace_sde.fit.statespace.model import is_covariance
from retrace_sde.fit.statespace.observations import Observations, as_observations
from retrace_sde.fit.statespace.parameters import (
    Noise,
    Parameters,
    Setup,
    as_noise,
    first_guess,
    spread,
)
from retrace_sde.fit.statespace.smoother import Smoothed, states
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.panel.blocks import one_blas_thread
from retrace_sde.panel.parameters import checked
from retrace_sde.process.sde import Gaussian, LinearSDE, Scheme

MAX_RANGE = 1e140
"""Largest range of a variable whose squares can be summed; its inverse is the least."""

MAX_COVARIANCES = 1 << 25
"""Numbers of smoothed covariances (256 MiB) beyond which a fit does not keep them."""

__all__ = ["EMResult", "Known", "em"]


@dataclass(frozen=True, eq=False)
class Known:
    """What of the model is known beforehand.

    Parameters
    ----------
    drift, diffusion : array (d, d), optional
        A, H.
    drift_mask : array of bool (d, d), optional
        False where A is 0.
    initial : Gaussian, optional
        p₀.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> X = rt.LinearSDE(-np.eye(2), np.eye(2)).simulate(50, 20, 0.1, random_state=0)
    >>> alone = rt.statespace.Known(drift_mask=np.eye(2, dtype=bool))  # no variable acts on another
    >>> rt.statespace.em(X, 0.1, noise=0.1, known=alone).sde.drift[0, 1]
    np.float64(0.0)
    """

    drift: ArrayLike | None = None
    diffusion: ArrayLike | None = None
    drift_mask: ArrayLike | None = None
    initial: Gaussian | None = None


NOTHING_KNOWN = Known()


@dataclass(frozen=True, eq=False)
class EMResult:
    """The fitted SDE and noise of `rt.statespace.em`.

    Attributes
    ----------
    sde : LinearSDE
        A, c and H, and the start.
    noise : array (d, d)
        R.
    log_likelihood : array
        The trace over the accepted steps; it never falls.
    converged : bool
        The search converged.
    evaluations : int
        Passes of the smoother.
    moments : Moments
        Expected sufficient statistics of the states' steps under the fit.
    parameters : Parameters
        The fit's step in Euler's form, from which another fit can start.
    setup : Setup
        What was asked for.
    scheme : str
        Transitions.
    notes : tuple of str
        Where the fitted transition has no logarithm the SDE is the nearest in likelihood; this says so.
    data : Observations
        The data, by patterns of missing entries.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> fit = rt.statespace.em(rt.LinearSDE(-np.eye(2), np.eye(2)).simulate(50, 20, 0.1, random_state=0), 0.1, noise=0.1)
    >>> fit.sde.drift.shape, fit.standard_errors(random_state=0).drift.shape
    ((2, 2), (2, 2))
    """

    sde: LinearSDE
    noise: Array
    log_likelihood: Array
    converged: bool
    evaluations: int
    moments: Moments
    parameters: Parameters
    data: Observations = field(repr=False)
    setup: Setup = field(repr=False)
    scheme: Scheme = "euler"
    notes: tuple[str, ...] = ()

    @property
    def observations(self) -> Array:
        """The data (n, T, d)."""
        return self.data.values

    @cached_property
    def states(self) -> Smoothed:
        """The states under the fitted transition; without covariances where so many patterns of missing entries would take more than 256 MiB."""
        _, T, d = self.observations.shape
        few = (int(self.data.pattern.max()) + 1) * T * d * d <= MAX_COVARIANCES
        model = self.parameters.steps(self.data.classes.gaps)
        with one_blas_thread():
            return states(self.data, model, times=T if few else 0)

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

    @property
    def _through(self) -> Through | None:
        """How the SDE's parameters move with those of Euler's step; None: they are these."""
        if self.scheme == "euler":
            return None
        theta = np.c_[self.drift, self.offset][:, : self.parameters.theta.shape[1]]
        return embedding_at(theta, self.diffusion, self.setup.dt).moved

    @checked
    def standard_errors(
        self, *, random_state: int | np.random.Generator | None = None
    ) -> StandardErrors:
        """Standard errors that assume that the model holds and count p₀ as known; zero for what is known.

        From scores of trajectories simulated from the fit, so good to a few per cent.

        Parameters
        ----------
        random_state : int, Generator or None
            Seed of the simulation.
        """
        rng = np.random.default_rng(random_state)
        with one_blas_thread():
            scores = Scores(self.setup, self.parameters, np.array([self.setup.dt]))
            covariance = inverse(scores.information(self.data, rng))
            found = scores.errors(covariance, self._through)
        d = len(self.noise)
        if found.drift.shape[1] == d:
            return found
        return replace(found, drift=found.drift[:, :d], offset=found.drift[:, d])


@checked
def em(
    Y: ArrayLike,
    dt: float,
    *,
    noise: Noise = "estimate",
    affine: bool = False,
    scheme: Scheme = "euler",
    known: Known = NOTHING_KNOWN,
    start: EMResult | None = None,
    max_iter: int = 200,
    tolerance: float = 1e-2,
    n_jobs: int | None = None,
) -> EMResult:
    """Maximum likelihood of `dX = (A X + c) dt + G dW`, `Y = X + N(0, R)`, where the order is known.

    Limits: a regular grid; values missing for reasons that do not depend on them; a local maximum; the noise is
    distinguished from H by how increments grow with their length, so T ≥ 3. With scheme="exact", known zeros
    of A or a known H leave no closed form and are refused, unless A is known too.

    Parameters
    ----------
    Y : array (n, T, d)
        In time order, NaN where missing.
    dt : float
        Time between observations.
    noise : "estimate", "diagonal", float or array
        R = σ² I, a diagonal, a known standard deviation, one per variable (d,) where NaN means unknown, or a known R (d, d).
    affine : bool
        With an offset c.
    scheme : {"euler", "exact"}
        Transitions.
    known : Known
        What of A, H and p₀ is not estimated.
    start : EMResult, optional
        An earlier fit of the same kind to data much like these, from which the search goes on.
    max_iter : int
        Steps at most.
    tolerance : float
        The rise of the log-likelihood, in nats over three steps, that ends the search.
    n_jobs : int or None
        Threads (None: all cores) for patterns of missing entries; the result does not depend on it.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE([[-1.0, 0.8], [-0.8, -1.0]], np.eye(2))
    >>> X = sde.simulate(100, 30, 0.1, random_state=0)
    >>> fit = rt.statespace.em(rt.simulate.add_noise(X, 0.3, random_state=1), 0.1)
    >>> float(np.sqrt(fit.noise[0, 0]).round(1)), fit.converged
    (0.3, True)
    """
    values = as_observations(Y)
    if values.shape[1] < 3:
        raise ValueError("em needs at least three observations per trajectory.")
    _check_widths(values)
    d = values.shape[2]
    A, H = _matrix("drift", known.drift, d), _matrix("diffusion", known.diffusion, d)
    known = replace(known, drift=A, diffusion=H)
    R, free, tied = as_noise(noise, d)
    step = _known_step(known, dt, d, affine=affine, scheme=scheme)
    setup = Setup(dt, *step, free, tied, known.initial, spread(values))
    data = Observations.regular(values, dt, n_jobs)
    guess = first_guess(values, setup, R) if start is None else resumed(start.parameters, setup, R)
    with one_blas_thread():
        rise = Scoring.of(setup, data)
        found = climb(lambda trial: expect(data, trial), rise, guess, max_iter, tolerance)
        return _finished(data, setup, found, known, scheme)


def _check_widths(values: Array) -> None:
    """Every variable varies, by amounts whose squares are numbers."""
    seen = ~np.isnan(values)
    low = np.where(seen, values, np.inf).min(axis=(0, 1))
    high = np.where(seen, values, -np.inf).max(axis=(0, 1))
    for k in np.flatnonzero(seen.any(axis=(0, 1))):
        width = high[k] - low[k]
        if not 1 / MAX_RANGE < width < MAX_RANGE:
            why = (
                "is constant"
                if width == 0
                else f"varies by {width:.1g}, too little or too much to be squared"
            )
            raise ValueError(f"variable {k} {why}: drop or rescale it.")


def _known_step(
    known: Known, dt: float, d: int, *, affine: bool, scheme: Scheme
) -> tuple[Mask, Array, Array | None]:
    """Which entries of Θ are free, the values of the others, and H or None, of one step in Euler's form."""
    A, H = (None if each is None else np.asarray(each) for each in (known.drift, known.diffusion))
    mask = np.ones((d, d), bool) if known.drift_mask is None else np.asarray(known.drift_mask, bool)
    if mask.shape != (d, d):
        raise ValueError(f"drift_mask must have shape ({d}, {d}), not {mask.shape}.")
    if scheme == "exact" and A is None and (H is not None or not mask.all()):
        raise ValueError(
            "known zeros of A and a known diffusion are not known entries of e^{A dt} and Q, so scheme='exact' "
            "has no closed form for them: use scheme='euler'."
        )
    theta = np.zeros((d, d))
    if A is not None:
        step = LinearSDE(A, np.eye(d) if H is None else H).transition(dt, scheme=scheme)
        mask, theta = np.zeros((d, d), dtype=bool), (step.matrix - np.eye(d)) / dt
        H = None if H is None else step.covariance / dt
    if affine:
        mask, theta = np.c_[mask, np.ones(d, dtype=bool)], np.c_[theta, np.zeros(d)]
    return mask, theta, H


def _finished(
    data: Observations, setup: Setup, found: Climb, known: Known, scheme: Scheme
) -> EMResult:
    """The result: the SDE of the fitted step, the smoothed states, and notes."""
    parameters = found.parameters
    sde, more = as_sde(parameters, found.expected, setup, scheme)
    if known.drift is not None or known.diffusion is not None:
        A = sde.drift if known.drift is None else np.asarray(known.drift)
        H = sde.diffusion if known.diffusion is None else np.asarray(known.diffusion)
        sde = LinearSDE(A, H, offset=sde.offset, initial=sde.initial)
    return EMResult(
        sde,
        parameters.R,
        np.array(found.trace),
        found.converged,
        found.evaluations,
        found.expected.moments,
        parameters,
        data,
        setup,
        scheme,
        (*climb_notes(found, setup), *more),
    )


NEGLIGIBLE_NOISE = 1e-3
"""A noise's variance, relative to a step's, below which a climb that is flat there may end anywhere."""

HARDLY_NOISY = "The estimated observation noise is negligible: a variance of it is below a thousandth of a step's."


def climb_notes(found: Climb, setup: Setup) -> tuple[str, ...]:
    """That a climb did not converge, and that some noise that was to be estimated is next to none."""
    notes, least = [], NEGLIGIBLE_NOISE * setup.dt * np.diag(found.parameters.H)
    if not found.converged:
        notes.append(f"The likelihood was still rising after {found.evaluations} smoothing passes.")
    if np.any((np.diag(found.parameters.R) < least)[setup.noise_free]):
        notes.append(HARDLY_NOISY)
    return tuple(notes)


def as_sde(
    parameters: Parameters, expected: Expected, setup: Setup, scheme: Scheme
) -> tuple[LinearSDE, tuple[str, ...]]:
    """The SDE whose step was fitted, and notes: read off Euler's form, or by the matrix logarithm."""
    theta, H, notes = parameters.theta, parameters.H, tuple[str, ...]()
    d, p = theta.shape
    if scheme == "exact":
        found = exact(moments_of_step(theta, H, expected.moments), setup.dt, affine=p > d)
        theta, H, notes = found.coefficients, found.diffusion, found.notes
    offset = theta[:, d] if p > d else None
    return LinearSDE(theta[:, :d], H, offset=offset, initial=parameters.initial), notes


def resumed(old: Parameters, setup: Setup, R: Array) -> Parameters:
    """Parameters of an earlier fit with what is known now put in; noise it took to be 0 starts above that."""
    if old.theta.shape != setup.free.shape:
        raise ValueError(
            f"start is a fit with a drift of shape {old.theta.shape}; this one has {setup.free.shape}."
        )
    H, before = (old.H if setup.H is None else setup.H), np.diag(old.R)
    variances = np.where(before > 0, before, 0.01 * setup.dt * np.diag(H))
    R = setup.with_noises(R, setup.noises(variances))
    theta = np.where(setup.free, old.theta, setup.known)
    return replace(old, theta=theta, H=H, R=R, initial=setup.initial or old.initial)


def _matrix(name: str, value: ArrayLike | None, d: int) -> Array | None:
    if value is None:
        return None
    matrix = np.asarray(value, dtype=float)
    if matrix.shape != (d, d) or not np.isfinite(matrix).all():
        raise ValueError(f"{name} must be a finite matrix ({d}, {d}); got shape {matrix.shape}.")
    if name == "diffusion" and not (is_covariance(matrix) and np.linalg.eigvalsh(matrix)[0] > 0):
        raise ValueError("diffusion is H = G Gᵀ: it must be symmetric and positive definite.")
    return matrix
