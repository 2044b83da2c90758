"""Which richer model the steps ask for: observation noise, memory, or levels of the subjects' own.

Each is fitted along the order found as a prediction of the next step from the past, so that all compare by likelihood:

    memory   Δx_i = Θ φ_i + M Δx_{i−1} + ε_i
    levels   Δx_i = Θ φ_i + c_j + ε_i,  c_j | x₀ ~ N(μ + Γ x₀, H/λ): given the past, c_j is predicted by the mean residual so far
             with weight w_i = i/(i + λ), which leaves `Δx_i − w_i ΔX̄_{<i}` linear in `φ_i − w_i φ̄_{<i}` and `(1 − w_i)(1, x₀)`
    noise    Y = X + N(0, R), R = ρ diag S: the Kalman filter with Q = S − 2R, S the covariance of the Markov residuals

λ and ρ are taken from a grid. Rough fits, meant to tell the three apart, not to estimate; they see steps from the second on.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from scipy import stats

from retrace_sde.after.steps import Steps, least_squares
from retrace_sde.io.arrays import Array

LAMBDAS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ratios of a step's variance to that of the levels' contribution to it."""

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.48)
"""Shares of a Markov residual's variance that are noise; 2ρ of it is at most all."""

PER_START = 6
"""Subjects for each variable without which Γ is left out: n levels are soon explained by d first states."""

SWEEPS = 4
"""Turns between the filter and the drift that it implies."""


class Cause(StrEnum):
    """What is missing from the model."""

    NOISE = "noise"
    MEMORY = "memory"
    LEVELS = "levels"


def rivals(steps: Steps, level: float) -> tuple[Cause | None, float]:
    """The model that the steps ask for, and the p-value against it; None where no gain is beyond chance.

    Each gain is held against χ² at a third of `level`; of those beyond it the best by BIC is named.
    """
    y, z = steps.response, steps.regressors
    if y is None or z is None or not steps.regular or y.shape[1] < 4:
        return None, 1.0
    n, S, d = y.shape
    base = _regressed(y[:, 1:], z[:, 1:])[0]
    constant = bool(np.ptp(z, axis=(0, 1)).min() <= 1e-12 * np.abs(z).max())
    first = steps.states[:, :1, : d if n >= PER_START * d else 0]
    remembered, M, _ = _regressed(y[:, 1:], np.concatenate([z[:, 1:], y[:, :-1]], 2))
    gains = {
        Cause.MEMORY: (remembered, d * d),
        Cause.LEVELS: (
            _levels(y, z, first, constant=constant),
            1 + d * first.shape[2] + d * (not constant),
        ),
    }
    if steps.linear and _pulled_back(steps.residuals, z):
        gains[Cause.NOISE] = (_noise(steps.states / np.sqrt(steps.dt), affine=constant), 1)
    found: dict[Cause, float] = {}
    chances = {}
    for cause, (value, k) in gains.items():
        # After Bartlett: so much of a gain is what any regressors would bring; Γ rests on n subjects, not on their steps.
        taken = first.shape[2] / n if cause is Cause.LEVELS else (z.shape[2] + d) / (n * (S - 1))
        gain = (value - base) * (1 - taken)
        p = min(1.0, len(gains) * float(stats.chi2.sf(2 * max(gain, 0.0), k)))
        chances[cause] = p
        if p < level:
            found[cause] = gain - k / 2 * np.log(n * (S - 1))
    if not found:
        return None, min(chances.values())
    if Cause.NOISE in found and np.trace(M[:, -d:]) < 0:
        # Momentum carries on, `M = e^{−γΔt}`; a step that is taken back is noise, also where more parameters fit it better.
        found.pop(Cause.MEMORY, None)
    best = max(found, key=lambda cause: found[cause])
    return best, chances[best]


def _pulled_back(e: Array, phi: Array) -> bool:
    """Successive residuals of some variable are negatively correlated, as noise makes them; else the filter is spared.

    So does the fit itself, `E Σ e_i e_{i+1} = −Σ φ_iᵀ (ΦᵀΦ)⁻¹ φ_{i+1}`, which counts where there are many variables.
    """
    products = e[:, 1:] * e[:, :-1]
    past, next_, rows = (each.reshape(-1, phi.shape[2]) for each in (phi[:, :-1], phi[:, 1:], phi))
    taken = float(np.trace(np.linalg.pinv(rows.T @ rows, hermitian=True) @ (past.T @ next_)))
    z = (products.sum(axis=(0, 1)) + taken) / np.sqrt((products**2).sum(axis=(0, 1)))
    return bool(z.min() < stats.norm.ppf(0.02 / e.shape[2]) or z.sum() < -2 * np.sqrt(e.shape[2]))


def _regressed(y: Array, z: Array, variances: Array | None = None) -> tuple[float, Array, Array]:
    """Profile log-likelihood of y = B z + ε (n, S, d), B and the residuals; `variances` (S,) scale those of ε."""
    n, S, d = y.shape
    v = np.ones(S) if variances is None else variances
    root = v[None, :, None] ** -0.5
    rows, out = (z * root).reshape(n * S, -1), (y * root).reshape(n * S, d)
    B = least_squares(rows, out).T
    e = out - rows @ B.T
    log_det = np.linalg.slogdet(e.T @ e / len(e))[1]
    return float(-0.5 * (len(e) * log_det + d * n * np.log(v).sum())), B, y - z @ B.T


def _levels(y: Array, z: Array, first: Array, *, constant: bool) -> float:
    n, S, _ = y.shape
    i = np.arange(1, S)
    so_far = [np.cumsum(each, axis=1)[:, :-1] / i[:, None] for each in (y, z)]
    start = first if constant else np.concatenate([np.ones((n, 1, 1)), first], axis=2)  # μ is in φ
    best = -np.inf
    for ratio in LAMBDAS:
        w = (i / (i + ratio))[None, :, None]
        regressors = np.concatenate([z[:, 1:] - w * so_far[1], (1 - w) * start], axis=2)
        value = _regressed(y[:, 1:] - w * so_far[0], regressors, 1 + 1 / (i + ratio))[0]
        best = max(best, value)
    return best


def _noise(x: Array, *, affine: bool) -> float:
    n, T, d = x.shape
    one = np.ones((n, T - 2, int(affine)))
    _, B, e = _regressed(x[:, 2:], np.concatenate([x[:, 1:-1], one], 2))
    S = e.reshape(-1, d).T @ e.reshape(-1, d) / (e.shape[0] * e.shape[1])
    floor = 0.02 * np.linalg.eigvalsh(S)[0]
    best = -np.inf
    for share in SHARES:
        R = share * np.diag(np.diag(S))
        values, vectors = np.linalg.eigh(S - 2 * R)
        Q = (vectors * np.maximum(values, floor)) @ vectors.T
        best = max(best, _filtered_gain(x, one, (B, Q, R)))
    return best


def _filtered_gain(x: Array, one: Array, start: tuple[Array, Array, Array]) -> float:
    """Profile log-likelihood of the filter's predictions, F and s fitted to its states in turn."""
    (B, Q, R), (n, T, d) = start, x.shape
    for _ in range(SWEEPS):
        F, s = B[:, :d], B[:, d] if B.shape[1] > d else np.zeros(d)
        m, P, states, roots = x[:, 0], R, [], []
        for i in range(1, T - 1):
            ahead, V = m @ F.T + s, F @ P @ F.T + Q
            gain = np.linalg.solve(V + R, V).T
            m, P = ahead + (x[:, i] - ahead) @ gain.T, gain @ R
            P = (P + P.T) / 2
            states.append(m)
            try:
                roots.append(np.linalg.cholesky(F @ P @ F.T + Q + R))
            except np.linalg.LinAlgError:  # a drift astray: too large a share of noise
                return -np.inf
        sizes = np.array([np.exp(2 * np.log(np.diag(each)).mean()) for each in roots])
        known = np.concatenate([np.stack(states, axis=1), one], axis=2)
        _, B, e = _regressed(x[:, 2:], known, sizes / sizes[-1])
    white = np.concatenate([np.linalg.solve(r, e[:, k].T).T for k, r in enumerate(roots)])
    spread = np.linalg.slogdet(white.T @ white / len(white))[1]
    log_dets = sum(np.log(np.diag(each)).sum() for each in roots)
    return float(-0.5 * len(white) * spread - n * log_dets)
