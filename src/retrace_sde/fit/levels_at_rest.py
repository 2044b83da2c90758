"""Subjects that are at rest, each about its own level: random intercepts without a further parameter.

Where a subject fluctuates about its level l_j as the SDE does about its mean, its first state is the level and a draw from the
stationary distribution, `x₀ = l_j + y`, `y ~ N(0, S)`. S follows from the drift and the noise, and the covariance V of first states
from the data. So levels have the covariance V − S, and given the first state

    l_j | x₀ ~ N(K x₀, K S),   K = I − S V⁻¹,   intercepts c_j = −A l_j,   Γ = −A K,   Ω = A K S Aᵀ.

In directions in which S exceeds V there are no levels, so that subjects who are alike and at rest are the special case V = S. A, c and H
are fitted by alternation: K and Ω of the parameters, the regression with these (`profile`), the noise that is expected then.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from retrace_sde.fit.random_intercepts import LevelRows, Point, Strata, profile
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import Gaps

ALTERNATIONS = 8
"""Of K and Ω with the regression. The likeliest point on the way counts; thresholds were measured with this number."""

SLOWEST = 0.999
"""Largest modulus of an eigenvalue of a step that counts as reverting; beyond it S is so large that there are no levels."""


def gain_of_levels_at_rest(data: Data, order: Indices, gaps: Gaps, dt: float) -> float:
    """Nats by which subjects at rest, each about its own level, are likelier along an order than subjects who are alike.

    Given the first states, and with as many parameters. Steps are all of the length dt.
    """
    rows = LevelRows.of(data, order, gaps)
    n, _, d = data.shape
    if len(rows.slopes) < d:
        return -np.inf
    V = rows.starts.T @ rows.starts / (n - 1)
    strata, p = rows.strata, rows.n_features
    # From residuals of the pooled regression back to steps.
    back = np.eye(p + d)
    back[:p, p:] = rows.pooled.T
    strata = strata.moved(back)
    alike = _alike(strata, d)
    psi = strata.grams[0]
    within = np.linalg.solve(psi[:d, :d], psi[:d, p:]).T
    best = -np.inf
    for share in (1.0, 0.5):
        point = alike
        A = share * within + (1 - share) * alike.coefficients[:, :d]
        for _ in range(ALTERNATIONS):
            K, omega = _levels(A, point.H, V, dt)
            point = profile(_about_levels(strata, K), d + 1, _noise(strata, point), omega)
            A = point.coefficients[:, :d]
            best = max(best, point.value)
    return best - alike.value


def _about_levels(strata: Strata, K: Array) -> Strata:
    """The strata of (x − K x₀, 1) and the steps, from those of (x, 1, x₀) and the steps."""
    d = len(K)
    change = np.zeros((3 * d + 1, 2 * d + 1))
    change[: d + 1, : d + 1] = np.eye(d + 1)
    change[d + 1 : 2 * d + 1, :d] = -K.T
    change[2 * d + 1 :, d + 1 :] = np.eye(d)
    return strata.moved(change)


def _alike(strata: Strata, d: int) -> Point:
    """Subjects who are alike, by maximum likelihood."""
    plain = _about_levels(strata, np.zeros((d, d)))
    first = profile(plain, d + 1, np.eye(d), np.zeros((d, d)))
    return profile(plain, d + 1, _noise(plain, first), np.zeros((d, d)))


def _noise(strata: Strata, at: Point) -> Array:
    """H expected given residuals and intercepts at a point: a step of the EM algorithm."""
    q, d = at.shares, len(at.H)
    kept = q[:, :, None] * at.squares * q[:, None, :]
    kept = kept + (strata.counts[:, None] * (1 - q))[:, :, None] * np.eye(d)
    back = at.H @ at.turn
    return back @ kept.sum(axis=0) @ back.T / strata.counts.sum()


def _levels(A: Array, H: Array, V: Array, dt: float) -> tuple[Array, Array]:
    """K and Ω for first states of covariance V."""
    d = len(A)
    rates, modes = np.linalg.eig(np.eye(d) + A * dt)
    rates = rates * np.minimum(1.0, SLOWEST / np.maximum(np.abs(rates), SLOWEST))
    inverse = np.linalg.inv(modes)
    noise = inverse @ (H * dt) @ inverse.conj().T
    S = (modes @ (noise / (1 - np.outer(rates, rates.conj()))) @ modes.conj().T).real
    # In coordinates in which V = I and S is diagonal.
    s, U = eigh(S, V)
    share = np.clip(1 - s, 0.0, 1.0)
    back = V @ U
    K = (back * share) @ U.T
    half = A @ (back * np.sqrt(share * (1 - share)))
    return K, half @ half.T
