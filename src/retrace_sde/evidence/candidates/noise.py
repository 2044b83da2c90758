"""Measurement noise: `Y = X + N(0, R)`, a state-space model.

The noise of one observation is in two steps with opposite signs: residuals of successive steps are correlated negatively, down
to −½. Only where they are is a state-space model fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong, simulators
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind
from retrace_sde.evidence.candidates.intercepts import (
    MEMORY_AND_INTERCEPTS,
    RANDOM_INTERCEPTS,
)
from retrace_sde.evidence.candidates.linear_step import (
    MARKOV,
    MEMORY,
    StepCandidate,
    markov_penalty,
)
from retrace_sde.evidence.candidates.penalty import Block
from retrace_sde.evidence.candidates.prediction import (
    Prediction,
    StepRows,
    chance_share,
    profile,
    rows,
)
from retrace_sde.io.arrays import Array
from retrace_sde.process.tails import norm_ppf

MAX_STATE_SPACE_WORK = 3e6
"""n T d³ up to which a state-space model is fitted for a comparison."""

NOISE_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.48)
"""Shares of a Markov residual's variance that are noise, that are tried; twice the share is at most all of it."""

FILTER_SWEEPS = 4
"""Alternations between the filter and the drift that it implies."""

CLOSED_FORMS: tuple[StepCandidate, ...] = (MARKOV, MEMORY, RANDOM_INTERCEPTS, MEMORY_AND_INTERCEPTS)
"""Whose ratio may stand for that of a noisy model in simulations."""


@dataclass(frozen=True)
class MeasurementNoise:
    """Observations with error of one variance in units of the variables' scale."""

    kind: str = CandidateKind.NOISE
    meaning: str = "values are measured with error"
    allows: str = "measurement noise"
    remedy: str = "measurement noise. Try observation_noise='estimate'"

    def applies(self, along: CandidatesAlong) -> bool:
        if along.own_kind not in (None, CandidateKind.MARKOV):
            return along.own_kind is CandidateKind.NOISE
        panels = along.panels
        if panels is None or panels.lengths is not None:
            return False
        n, T, d = panels.x.shape[1:]
        small = n * T * d**3 <= MAX_STATE_SPACE_WORK
        steps = along.fit(MARKOV)
        return small and steps is not None and steps.checks is not None and steps.checks.noisy

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        price = markov_penalty(along, Block(1, along.steps))
        if along.own_kind is CandidateKind.NOISE:
            both = along.both
            found = along.own_fit(price)
        else:
            both = along.state_space("estimate")[1], along.state_space_reverse("estimate")
            forwards, backwards = (each.log_likelihoods for each in both)
            found = CandidateFit.of_trajectories(self.kind, forwards, backwards, price)
        # The statistic of the simulated test: the nearest closed form's, where it favours the same direction.
        closed = [each for each in along.every(CLOSED_FORMS) if each.form is not None]
        nearest = max(closed, key=lambda each: each.log_evidence, default=None)
        agree = nearest is not None and (nearest.ratio > 0) == (found.ratio > 0)
        form = nearest.form if nearest is not None and agree else None
        return replace(
            found, form=form, simulators=lambda panels, rng: simulators(both, panels, rng)
        )

    def predict(self, steps: StepRows) -> Prediction | None:
        """The Kalman filter with R = ρ diag S and Q = S − 2R, S the covariance of the Markov residuals, ρ from a grid."""
        _, z, constant = rows(steps)
        if not steps.linear or not _reverting(steps.residuals, z):
            return None
        value = _filtered(steps.states / np.sqrt(steps.dt), affine=constant)
        return Prediction(value, 1, chance_share(steps))


def _reverting(e: Array, phi: Array) -> bool:
    """Successive residuals of some variable are negatively correlated, as noise makes them; else the filter is not run.

    So does the fit itself, `E Σ e_i e_{i+1} = −Σ φ_iᵀ (ΦᵀΦ)⁻¹ φ_{i+1}`, which counts where there are many variables.
    """
    products = e[:, 1:] * e[:, :-1]
    past, next_, every = (each.reshape(-1, phi.shape[2]) for each in (phi[:, :-1], phi[:, 1:], phi))
    taken = float(np.trace(np.linalg.pinv(every.T @ every, hermitian=True) @ (past.T @ next_)))
    z = (products.sum(axis=(0, 1)) + taken) / np.sqrt((products**2).sum(axis=(0, 1)))
    return bool(z.min() < norm_ppf(0.02 / e.shape[2]) or z.sum() < -2 * np.sqrt(e.shape[2]))


def _filtered(x: Array, *, affine: bool) -> float:
    n, T, d = x.shape
    one = np.ones((n, T - 2, int(affine)))
    _, B, e = profile(x[:, 2:], np.concatenate([x[:, 1:-1], one], 2))
    S = e.reshape(-1, d).T @ e.reshape(-1, d) / (e.shape[0] * e.shape[1])
    floor = 0.02 * np.linalg.eigvalsh(S)[0]
    best = -np.inf
    for share in NOISE_SHARES:
        R = share * np.diag(np.diag(S))
        values, vectors = np.linalg.eigh(S - 2 * R)
        Q = (vectors * np.maximum(values, floor)) @ vectors.T
        best = max(best, _filter_likelihood(x, one, (B, Q, R)))
    return best


def _filter_likelihood(x: Array, one: Array, start: tuple[Array, Array, Array]) -> float:
    """Profile log-likelihood of the filter's predictions, F and s fitted to its states in turn."""
    (B, Q, R), (n, T, d) = start, x.shape
    for _ in range(FILTER_SWEEPS):
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
            except np.linalg.LinAlgError:  # a drift that diverges: too large a share of noise
                return -np.inf
        sizes = np.array([np.exp(2 * np.log(np.diag(each)).mean()) for each in roots])
        known = np.concatenate([np.stack(states, axis=1), one], axis=2)
        _, B, e = profile(x[:, 2:], known, sizes / sizes[-1])
    white = np.concatenate([np.linalg.solve(r, e[:, k].T).T for k, r in enumerate(roots)])
    spread = np.linalg.slogdet(white.T @ white / len(white))[1]
    log_dets = sum(np.log(np.diag(each)).sum() for each in roots)
    return float(-0.5 * len(white) * spread - n * log_dets)


MEASUREMENT_NOISE = MeasurementNoise()
