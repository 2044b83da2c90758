"""The linear SDE `dX = (A X + c) dt + G dW`, `H = G Gᵀ`: transition, stationary distribution, current, reversal.

Everything here takes known parameters; nothing is estimated. Formulas carry the paper's letters: A is the
drift matrix, H the (observational) diffusion matrix, Σ the stationary covariance, J the current (Eq. j).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, expm, solve_continuous_lyapunov, solve_triangular

from retrace_sde.io.arrays import Array
from retrace_sde.panel.parameters import checked

Scheme = Literal["euler", "exact"]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian distribution N(mean, covariance), used for the first observation.

    Parameters
    ----------
    mean : array (d,)
        Its mean.
    covariance : array (d, d)
        Its covariance; 0 is a point, which has no density.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> start = rt.Gaussian(np.zeros(2), np.eye(2))
    >>> start.sample(5, np.random.default_rng(0)).shape
    (5, 2)
    >>> start.log_density(np.zeros(2)).round(3)
    np.float64(-1.838)
    >>> start.pooled(rt.Gaussian(np.full(2, 2.0), np.eye(2)), 0.5).mean
    array([1., 1.])
    """

    mean: Array
    covariance: Array

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Independent draws (n, d).

        Parameters
        ----------
        n : int
            How many.
        rng : numpy.random.Generator
            Where randomness comes from.
        """
        root = symmetric_root(self.covariance)
        return self.mean + rng.standard_normal((n, len(self.mean))) @ root

    def log_density(self, x: Array) -> Array:
        """`log N(x; mean, covariance)` along the last axis; the covariance must be positive definite.

        Parameters
        ----------
        x : array (…, d)
            Points.
        """
        return log_gaussian(x - self.mean, self._root)

    @cached_property
    def _root(self) -> Array:
        """The lower Cholesky factor of the covariance."""
        if not is_positive(self.covariance):
            raise ValueError(
                "this Gaussian has no density: its covariance is singular (a point start); give one with "
                "some spread."
            )
        return np.asarray(cholesky(self.covariance, lower=True))

    def pooled(self, other: Gaussian, share: float) -> Gaussian:
        """Mean and covariance of a sample of which `share` has this distribution and the rest the other.

        Parameters
        ----------
        other : Gaussian
            The distribution of the rest.
        share : float
            Between 0 and 1.
        """
        gap = self.mean - other.mean
        spread = share * self.covariance + (1 - share) * other.covariance
        mean = share * self.mean + (1 - share) * other.mean
        return Gaussian(mean, spread + share * (1 - share) * np.outer(gap, gap))


@dataclass(frozen=True, eq=False)
class Transition:
    """`X' | X ~ N(F X + shift, Q)`, the distribution of one step of length dt."""

    matrix: Array
    shift: Array
    covariance: Array


@dataclass(frozen=True, eq=False)
class LinearSDE:
    """`dX = (A X + c) dt + G dW` with drift A (d, d), diffusion `H = G Gᵀ` (d, d) and offset c (d,).

    Parameters
    ----------
    drift : array (d, d)
        A.
    diffusion : array (d, d)
        H, symmetric, positive semidefinite.
    offset : array (d,), optional
        c; zeros if left out.
    initial : Gaussian, optional
        The distribution (or the point) that `simulate` starts from by default.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
    >>> sde.stationary().covariance  # A Σ + Σ Aᵀ + H = 0
    array([[0.5, 0. ],
           [0. , 0.5]])
    >>> sde.reverse().drift  # Σ Aᵀ Σ⁻¹: turns the other way
    array([[-1., -2.],
           [ 2., -1.]])
    >>> sde.is_reversible(), round(sde.entropy_production(), 6)
    (False, 8.0)
    >>> sde.current()
    array([[ 0.,  2.],
           [-2.,  0.]])
    >>> X = sde.simulate(5, 100, 0.1, random_state=0)
    >>> X.shape, sde.log_likelihood(X, 0.1).shape, sde.transition(0.1).matrix.shape
    ((5, 100, 2), (5,), (2, 2))
    """

    drift: Array
    diffusion: Array
    offset: Array
    initial: Gaussian | None

    def __init__(
        self,
        drift: ArrayLike,
        diffusion: ArrayLike,
        *,
        offset: ArrayLike | None = None,
        initial: Gaussian | None = None,
    ) -> None:
        A, H = _numbers("drift", drift, 2), _numbers("diffusion", diffusion, 2)
        c = np.zeros(len(A)) if offset is None else _numbers("offset", offset, 1)
        if A.ndim != 2 or A.shape[0] != A.shape[1] or H.shape != A.shape or c.shape != A.shape[:1]:
            raise ValueError(
                f"drift and diffusion must be square matrices of one size and offset a vector of that size; "
                f"got shapes {A.shape}, {H.shape} and {c.shape}."
            )
        if not np.allclose(H, H.T, atol=1e-8 * np.abs(H).max()) or not is_positive(H):
            raise ValueError(
                "diffusion is H = G Gᵀ: it must be symmetric and positive definite (pass G @ G.T, not G)."
            )
        for name, value in {"drift": A, "diffusion": (H + H.T) / 2, "offset": c}.items():
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "initial", initial)

    @property
    def dimension(self) -> int:
        return len(self.drift)

    @property
    def is_stable(self) -> bool:
        """All eigenvalues of A have negative real part, so that a stationary distribution exists."""
        return bool(np.linalg.eigvals(self.drift).real.max() < 0)

    @checked
    def transition(self, dt: float, *, scheme: Scheme = "exact") -> Transition:
        """One step of length dt. Euler: F = I + A dt, Q = H dt. Exact: F = e^{A dt}, Q by Van Loan.

        Parameters
        ----------
        dt : float
            Length of the step.
        scheme : {"exact", "euler"}
            Which of the two.
        """
        if scheme == "euler":
            F = np.eye(self.dimension) + self.drift * dt
            return Transition(F, self.offset * dt, self.diffusion * dt)
        d = self.dimension
        # The offset rides along as one more, constant, state: e^{[[A, c], [0, 0]] dt}.
        with_offset = np.zeros((d + 1, d + 1))
        with_offset[:d, :d], with_offset[:d, d] = self.drift, self.offset
        step = expm(with_offset * dt)
        return Transition(step[:d, :d], step[:d, d], van_loan(self.drift, self.diffusion, dt)[1])

    def stationary(self) -> Gaussian:
        """The stationary distribution: `A Σ + Σ Aᵀ + H = 0`, mean `−A⁻¹ c`. Exists for a stable drift only."""
        if not self.is_stable:
            raise ValueError(
                "the drift is not stable (an eigenvalue has real part ≥ 0), so there is no stationary distribution."
            )
        # In coordinates where H = I the solution does not depend on the variables' units.
        L = cholesky(self.diffusion, lower=True)
        B = solve_triangular(L, self.drift @ L, lower=True)
        with warnings.catch_warnings(action="error", category=RuntimeWarning):
            try:
                S = L @ solve_continuous_lyapunov(B, -np.eye(self.dimension)) @ L.T
            except RuntimeWarning:  # scipy's, that it solved another equation
                raise ValueError(
                    "the drift is stable only up to rounding, so its stationary distribution cannot be computed."
                ) from None
        mean = np.asarray(-np.linalg.solve(self.drift, self.offset), dtype=np.float64)
        return Gaussian(mean, (S + S.T) / 2)

    def current(self) -> Array:
        """K with `J(x) = K (x − m) p(x)`, the stationary probability current (Eq. j): `K = A + ½ H Σ⁻¹`.

        K = 0 if and only if the process is reversible (detailed balance).
        """
        return self.drift + 0.5 * self.diffusion @ np.linalg.inv(self.stationary().covariance)

    def entropy_production(self) -> float:
        """Rate in nats per unit time, `E[(Kx)ᵀ (H/2)⁻¹ Kx] = 2 tr(H⁻¹ K Σ Kᵀ)`; 0 if reversible.

        It is also the growth rate of the Kullback–Leibler divergence between the path distribution and its reversal.
        """
        K, S = self.current(), self.stationary().covariance
        return float(2 * np.trace(np.linalg.solve(self.diffusion, K @ S @ K.T)))

    @checked
    def is_reversible(self, *, tolerance: float = 1e-8) -> bool:
        """Detailed balance: `A H = H Aᵀ`, up to a relative tolerance. Needs no stationary distribution.

        Parameters
        ----------
        tolerance : float
            Of the difference, relative to the size of `A H`.
        """
        AH = self.drift @ self.diffusion
        return bool(np.abs(AH - AH.T).max() <= tolerance * max(np.abs(AH).max(), 1e-300))

    def reverse(self) -> LinearSDE:
        """The same stationary process run backwards: `A_rev = Σ Aᵀ Σ⁻¹`, same H, same stationary distribution.

        With A unknown the two are equally likely on stationary data, irreversible or not: this twin is why
        a direction of time can be undetermined.
        """
        stationary = self.stationary()
        S = stationary.covariance
        A_rev = np.linalg.solve(S, self.drift @ S).T
        return LinearSDE(A_rev, self.diffusion, offset=-A_rev @ stationary.mean)

    @checked
    def log_likelihood(
        self, X: ArrayLike, dt: float, *, initial: Gaussian | None = None, scheme: Scheme = "exact"
    ) -> Array:
        """`log p₀(x_0) + Σ_i log p(x_{i+1} | x_i)` for each trajectory of X, in time order.

        Parameters
        ----------
        X : array (n, T, d)
            Trajectories in time order, nothing missing.
        dt : float
            Time between observations.
        initial : Gaussian, optional
            p₀; without it (here and in the SDE) the stationary distribution is taken.
        scheme : {"exact", "euler"}
            Transitions: exact, or Euler's.
        """
        values = np.asarray(X, dtype=float)
        first = initial or self.initial or self.stationary()
        step = self.transition(dt, scheme=scheme)
        residual = values[:, 1:] - values[:, :-1] @ step.matrix.T - step.shift
        steps = log_gaussian(residual, cholesky(step.covariance, lower=True)).sum(axis=1)
        return first.log_density(values[:, 0]) + steps

    @checked
    def simulate(
        self,
        n: int,
        T: int,
        dt: float = 1.0,
        *,
        x0: ArrayLike | Gaussian | Literal["stationary"] | None = None,
        scheme: Scheme = "exact",
        random_state: int | np.random.Generator | None = None,
    ) -> Array:
        """n trajectories of T observations, dt apart: an array (n, T, d).

        Parameters
        ----------
        n, T : int
            Trajectories, observations of each.
        dt : float
            Time between observations.
        x0 : array, float, Gaussian, "stationary" or None
            A point (d,), one start per trajectory (n, d), a number s (starts from N(0, s² I)), a `Gaussian`,
            or "stationary". Left out: `initial` if the SDE has one, else the stationary distribution.
        scheme : {"exact", "euler"}
            Exact transitions have no error of the step; Euler's are the paper's.
        random_state : int, Generator or None
            Seed.
        """
        rng = np.random.default_rng(random_state)
        with np.errstate(all="ignore"):
            step = self.transition(dt, scheme=scheme)
            if not np.isfinite(step.matrix).all() or not np.isfinite(step.covariance).all():
                raise ValueError(
                    f"one step of {dt:g} overflows: drift or diffusion is too large for it; use a shorter dt."
                )
            root = cholesky(step.covariance, lower=True)
            X = np.empty((n, T, self.dimension))
            state = self._starts(n, x0, rng)
            for t in range(T):
                X[:, t] = state
                if t + 1 < T:
                    noise = rng.standard_normal((n, self.dimension))
                    state = state @ step.matrix.T + step.shift + noise @ root.T
        if not np.isfinite(X).all():
            t = int(np.argmin(np.isfinite(X).all(axis=(0, 2))))
            raise ValueError(
                f"the process explodes: it overflows after {t} steps. Its drift is unstable; simulate fewer steps."
            )
        return X

    def _starts(self, n: int, x0: object, rng: np.random.Generator) -> Array:
        if x0 is None and self.initial is not None:
            x0 = self.initial
        if x0 is None or (isinstance(x0, str) and x0 == "stationary"):
            x0 = self.stationary()
        if isinstance(x0, Gaussian):
            return x0.sample(n, rng)
        d = self.dimension
        start = np.asarray(x0, dtype=float) if not isinstance(x0, str) else np.empty((0, 0, 0))
        if start.ndim == 0:
            return float(start) * rng.standard_normal((n, d))
        if start.shape in {(d,), (n, d)}:
            return np.broadcast_to(start, (n, d))
        raise ValueError(
            f"x0 must be a number, a point of shape ({d},), an array ({n}, {d}), a Gaussian or 'stationary'; "
            f"got {x0!r:.60}."
        )


def _numbers(name: str, given: ArrayLike, axes: int) -> Array:
    """A copy of a matrix or a vector of finite numbers."""
    try:
        found = np.array(given, dtype=float, ndmin=axes)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be an array of numbers; got {given!r:.60}.") from None
    if found.size == 0 or not np.isfinite(found).all():
        raise ValueError(f"{name} must hold finite numbers; got {given!r:.60}.")
    return found


def van_loan(A: Array, H: Array, dt: float) -> tuple[Array, Array]:
    """`F = e^{A dt}` and `Q = ∫₀^dt e^{As} H e^{Aᵀs} ds` from one exponential of a 2d × 2d matrix.

    It holds e^{A dt} and e^{−A dt}, whose product loses all digits on a stiff step; so the step is
    halved until neither is large, and then doubled: `Q(2h) = F(h) Q(h) F(h)ᵀ + Q(h)`.
    """
    d = len(A)
    halvings = max(0, int(np.ceil(np.log2(max(float(np.linalg.norm(A, 1)) * dt, 1e-300)))))
    blocks = np.zeros((2 * d, 2 * d))
    blocks[:d, :d], blocks[:d, d:], blocks[d:, d:] = -A, H, A.T
    E = expm(blocks * (dt / 2**halvings))
    F = E[d:, d:].T
    Q = F @ E[:d, d:]
    for _ in range(halvings):
        F, Q = F @ F, F @ Q @ F.T + Q
    return F, (Q + Q.T) / 2


def is_positive(S: Array) -> bool:
    """Positive definite, judged in each variable's own unit."""
    scale = np.diag(S)
    if not np.all(scale > 0):
        return False
    return bool(np.linalg.eigvalsh(S / np.sqrt(np.outer(scale, scale)))[0] > 1e-14)


def log_gaussian(residual: Array, lower: Array) -> Array:
    """`log N(residual; 0, L Lᵀ)` along the last axis, L lower triangular."""
    d = lower.shape[0]
    flat = residual.reshape(-1, d)
    white = solve_triangular(lower, flat.T, lower=True)
    squares = np.einsum("ij,ij->j", white, white).reshape(residual.shape[:-1])
    return -0.5 * (squares + d * np.log(2 * np.pi)) - np.log(np.diag(lower)).sum()


def symmetric_root(S: Array) -> Array:
    """Symmetric square roots of positive semi-definite matrices (…, d, d); zeros are allowed: a point."""
    values, vectors = np.linalg.eigh(S)
    roots = np.sqrt(np.maximum(values, 0))[..., None, :]
    return (vectors * roots) @ vectors.swapaxes(-1, -2)


def covariance_root(S: Array) -> Array:
    """G of `S = G Gᵀ`, (…, d, d): the symmetric root of the correlations in the units of S, whose rounding would drown small units beside large ones."""
    size = np.sqrt(np.maximum(np.diagonal(S, axis1=-2, axis2=-1), 0))[..., None]
    unit = np.where(size > 0, size, 1.0)
    return size * symmetric_root(S / (unit * unit.swapaxes(-1, -2)))
