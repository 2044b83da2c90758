"""Steps of an SDE with a polynomial drift and noise of constant size, as the SDE makes them:

    x_{t+1} = flow(x_t) + c_t + e_t,      e_t ~ N(0, P(x_t)),      P = ∫₀¹ Φ(1, s) H Φ(1, s)ᵀ ds,

flow: the solution of `z' = f(z)` after one step, Φ its derivative by earlier states (local linearisation; Ozaki 1992). The reverse of
such a flow is the flow of −f, a polynomial drift, too. A step that is a polynomial itself (`steps`) has a reverse that is none: the
direction whose map is nearer to a polynomial is favoured whatever the noise says, and where steps are coarse their variances seem to change with time.

What trajectories share is a shock of each step, c_t, or an offset of each slice (plates), b_t: `x_t − b_t` then follows the flow. To linear steps
the two are the same; a curved drift sees an offset in its slope.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations_with_replacement

import numpy as np

from retrace_sde.io.arrays import Array

HALVES = 2
"""Steps of the fourth-order Runge–Kutta scheme within one step of the panel: Simpson's rule needs the state halfway."""

MAX_STATE = 8.0
"""Standard deviations beyond which no state is followed: a drift that is tried may diverge."""

MAX_ROUNDS, MIN_GAIN_NATS, MAX_DAMPING = 40, 2e-2, 1e6
"""Rounds of the Levenberg–Marquardt scheme, the gain below which they end, and the damping beyond which no better parameters are looked for."""

SPREAD_ROUNDS = 4
"""Rounds of H given the residuals, in each of those."""

OFFSET_PRECISION = 1e-4
"""Of a normal prior of the slices' offsets, in standard units: an offset of all slices is none."""


class Shared(StrEnum):
    """What trajectories share beyond the drift."""

    NOTHING = "nothing"
    SHOCKS = "shocks"
    PLATES = "plates"


@dataclass(frozen=True, eq=False)
class Drift:
    """Monomials of up to so many of d variables, with coefficients (p, d)."""

    monomials: tuple[tuple[int, ...], ...]
    theta: Array

    @classmethod
    def none(cls, d: int, degree: int) -> Drift:
        powers = range(degree + 1)
        found = tuple(each for k in powers for each in combinations_with_replacement(range(d), k))
        return cls(found, np.zeros((len(found), d)))

    def features(self, z: Array) -> Array:
        """φ (…, p) of states (…, d)."""
        return np.stack([np.prod(z[..., list(each)], axis=-1) for each in self.monomials], axis=-1)

    def slopes(self, z: Array) -> Array:
        """∂f/∂z (…, d, d)."""
        found = np.zeros((*z.shape[:-1], len(self.monomials), z.shape[-1]))
        for k, each in enumerate(self.monomials):
            for j in set(each):
                rest = list(each)
                rest.remove(j)
                found[..., k, j] = each.count(j) * np.prod(z[..., rest], axis=-1)
        return np.asarray(self.theta.T @ found)

    def __call__(self, z: Array) -> Array:
        return self.features(z) @ self.theta


@dataclass(frozen=True, eq=False)
class Flow:
    """States (…, d) after a step and halfway, and Φ (…, d, d) from the start, and from halfway, to its end."""

    end: Array
    half: Array
    whole: Array
    late: Array

    @classmethod
    def of(cls, drift: Drift, x: Array) -> Flow:
        """By the Runge–Kutta scheme, its derivatives with it."""
        d, h = x.shape[-1], 1 / HALVES
        z, J = x, np.broadcast_to(np.eye(d), (*x.shape, d))
        passed = []
        for _ in range(HALVES):
            moves, turns = [drift(z)], [drift.slopes(z) @ J]
            for share in (h / 2, h / 2, h):
                at = _held(z + share * moves[-1])
                turns.append(drift.slopes(at) @ (J + share * turns[-1]))
                moves.append(drift(at))
            z = _held(z + h / 6 * (moves[0] + 2 * moves[1] + 2 * moves[2] + moves[3]))
            J = J + h / 6 * (turns[0] + 2 * turns[1] + 2 * turns[2] + turns[3])
            passed.append((z, J))
        (half, first), (end, whole) = passed
        return cls(end, half, whole, whole @ np.linalg.inv(first))

    def noise(self, H: Array) -> Array:
        """P (…, d, d), by Simpson's rule."""
        found = sum(w * each @ H @ _turned(each) for w, each in ((1, self.whole), (4, self.late)))
        return np.asarray((found + H) / 6)

    def sensitivities(self, drift: Drift, x: Array) -> Array:
        """∂end/∂θ (…, d, p d), by Simpson's rule."""
        one = np.broadcast_to(np.eye(x.shape[-1]), self.whole.shape)
        parts = ((1, self.whole, x), (4, self.late, self.half), (1, one, self.end))
        found = sum(
            w * J[..., :, None, :] * drift.features(z)[..., None, :, None] for w, J, z in parts
        )
        return np.asarray(found).reshape(*self.whole.shape[:-1], -1) / 6


@dataclass(frozen=True, eq=False)
class FlowFit:
    """A polynomial SDE fitted to a panel in one direction: each trajectory's log-likelihood given its first state, and whitened residuals (n, S, d)."""

    drift: Drift
    H: Array
    log_likelihoods: Array
    white: Array
    offsets: Array
    value: float


def fit_flow(x: Array, degree: int, shared: Shared) -> FlowFit:
    """Maximum likelihood by the Levenberg–Marquardt scheme, from a regression of the steps."""
    T, d = x.shape[1:]
    drift, H = _regression(x, degree, free=shared is not Shared.NOTHING)
    best = _evaluated(x, drift, H, np.zeros((T, d)), shared)
    damping, step = 1e-3, None
    for _ in range(MAX_ROUNDS):
        if step is None:
            normal, slope = _equations(x, best, shared)
        step = np.linalg.solve(normal + damping * np.diag(np.diagonal(normal) + 1e-12), slope)
        size = drift.theta.size
        theta = best.drift.theta + step[:size].reshape(drift.theta.shape)
        moved = best.offsets + (step[size:].reshape(T, d) if len(step) > size else 0.0)
        tried = _evaluated(x, replace(drift, theta=theta), best.H, moved, shared)
        if tried.value > best.value:
            gain, best, step = tried.value - best.value, tried, None
            damping = max(damping / 10, 1e-9)
            if gain < MIN_GAIN_NATS:
                break
        else:
            damping *= 10
            if damping > MAX_DAMPING:
                break
    return best


def _regression(x: Array, degree: int, *, free: bool) -> tuple[Drift, Array]:
    """Where the scheme starts: the change of a step on the features of its first state."""
    n, T, d = x.shape
    drift = Drift.none(d, degree)
    phi, change = drift.features(x[:, :-1]), np.diff(x, axis=1)
    rows, values = (phi - phi.mean(axis=0), change - change.mean(axis=0)) if free else (phi, change)
    theta = np.linalg.lstsq(rows.reshape(-1, phi.shape[2]), values.reshape(-1, d), rcond=None)[0]
    e = values - rows @ theta
    if free:
        theta[0] += (change - phi @ theta).mean(axis=(0, 1))
    return replace(drift, theta=theta), np.tensordot(e, e, ([0, 1], [0, 1])) / (n * (T - 1))


def _evaluated(x: Array, drift: Drift, H: Array, offsets: Array, shared: Shared) -> FlowFit:
    """The log-likelihood with the best H; `offsets` (T, d) of the slices."""
    n, T, d = x.shape
    y = x - offsets
    flow = Flow.of(drift, y[:, :-1])
    e = y[:, 1:] - flow.end
    if shared is Shared.SHOCKS:
        e = e - e.mean(axis=0)
    for _ in range(SPREAD_ROUNDS):
        white = _whitened(e, flow.noise(H))[0]
        root = np.linalg.cholesky(H)
        H = root @ np.tensordot(white, white, ([0, 1], [0, 1])) @ root.T / (n * (T - 1))
        H = H + 1e-10 * np.trace(H) / d * np.eye(d)
    white, log_det = _whitened(e, flow.noise(H))
    each = -0.5 * ((white**2).sum(axis=2) + log_det + d * np.log(2 * np.pi)).sum(axis=1)
    value = float(each.sum()) - 0.5 * OFFSET_PRECISION * float((offsets**2).sum())
    return FlowFit(drift, H, each, white, offsets, value)


def _equations(x: Array, fit: FlowFit, shared: Shared) -> tuple[Array, Array]:
    """Normal equations of θ, and of the slices' offsets where there are such, about a fit."""
    (n, T, d), size = x.shape, fit.drift.theta.size
    y = x - fit.offsets
    flow = Flow.of(fit.drift, y[:, :-1])
    root = np.linalg.inv(np.linalg.cholesky(flow.noise(fit.H)))
    of_theta = root @ flow.sensitivities(fit.drift, y[:, :-1])
    if shared is Shared.SHOCKS:
        of_theta = of_theta - of_theta.mean(axis=0)
    count = size + T * d * (shared is Shared.PLATES)
    normal, slope = np.zeros((count, count)), np.zeros(count)
    back = root @ flow.whole
    for t in range(T - 1):
        rows, some = of_theta[:, t], np.arange(size)
        if shared is Shared.PLATES:
            rows = np.concatenate([rows, -back[:, t], root[:, t]], axis=2)
            some = np.concatenate([some, size + t * d + np.arange(2 * d)])
        rows = rows.reshape(n * d, -1)
        normal[np.ix_(some, some)] += rows.T @ rows
        slope[some] += rows.T @ fit.white[:, t].reshape(-1)
    if shared is Shared.PLATES:
        normal[np.arange(size, count), np.arange(size, count)] += OFFSET_PRECISION
        slope[size:] -= OFFSET_PRECISION * fit.offsets.ravel()
    return normal, slope


def _whitened(e: Array, P: Array) -> tuple[Array, Array]:
    """Residuals (n, S, d) in units of their covariances, and the logs of the determinants of these."""
    lower = np.linalg.cholesky(P)
    white: Array = np.linalg.solve(lower, e[..., None])[..., 0]  # type: ignore[assignment]
    return white, 2 * np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1)


def _held(z: Array) -> Array:
    return np.asarray(np.clip(z, -MAX_STATE, MAX_STATE))


def _turned(J: Array) -> Array:
    return J.swapaxes(-1, -2)
