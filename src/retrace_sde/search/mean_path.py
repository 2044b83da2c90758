"""What trajectories share at each slice: the mean path, and the deviations from it.

Steps `x_{i,t+1} = c + F x_it + u_t + e_it` with `u_t ~ N(0, U Δt)` common to all n trajectories, and offsets of whole slices
(plates, batches), touch every trajectory alike. An orthogonal rotation over trajectories (its first row is 1/√n) splits the
panel exactly into n − 1 independent trajectories `d' = F d + e`, which know F and H but neither c nor u, and the mean path

    m_{t+1} = c + F m_t + ε_t,     ε_t ~ N(0, V Δt),  V = H/n + U,

to which offsets of single slices only add noise. Deviations from the slice means have the sums of squares of those n − 1, whatever
the order; times `√(n/(n − 1))` each has the law of one trajectory, so that everything that is fitted to trajectories can be
fitted to them. c and V come from the mean path, which is one trajectory however many there are: its T − 1 steps
estimate V, shrunk towards a multiple of H. For the order the mean path counts like one more trajectory, as a random walk with a
trend: such a walk costs the same in either direction, of which one trajectory says little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from scipy.linalg import cholesky, solve_triangular

from retrace_sde.fit.statespace.transitions import transitions
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import in_order, like, to_numpy
from retrace_sde.process.sde import Scheme


class PathSteps(NamedTuple):
    """F, what an offset of 1 in each variable adds, and Q of individual noise, (T − 1, d, d) or (1, d, d) where all are equal."""

    matrix: Array
    offset: Array
    covariance: Array

    @classmethod
    def of(cls, A: Array, H: Array, gaps: Array, scheme: Scheme) -> PathSteps:
        """The steps of an SDE across gaps."""
        if scheme == "euler":
            one, g = np.eye(len(A)), gaps[:, None, None]
            return cls(one + A * g, one * g, H * g)
        kinds, index = np.unique(gaps, return_inverse=True)
        F, added, Q = transitions(np.c_[A, np.eye(len(A))], H, kinds)
        return cls(F[index], added[index], Q[index])


@dataclass(frozen=True, eq=False)
class PathFit:
    """The mean path along an order: its offset c, and `ratio`, the covariance of its steps in units of Q/n (so that I is none in common).

    `error`: the covariance of c for known F.
    """

    offset: Array
    ratio: Array
    error: Array
    log_likelihood: float

    def common(self, H: Array, n: int) -> Array:
        """U, the covariance of the common shocks for each unit of time."""
        L = cholesky(H, lower=True)
        return L @ (self.ratio - np.eye(len(H))) @ L.T / n


@dataclass(frozen=True, eq=False)
class MeanPath:
    """Slice means (T, d) of n trajectories, and of their inputs, (T, k) or None; `offset`: the drift has one.

    `common`: U Δt where it is known, from other trajectories; orders are then judged by it, without a trend.
    """

    means: Array
    n: int
    offset: bool = True
    inputs: Array | None = None
    common: Array | None = None

    def along(
        self,
        order: Indices,
        steps: PathSteps,
        B: Array | None = None,
        *,
        ratio: Array | None = None,
        final: bool = False,
    ) -> PathFit:
        """c and V along an order under the F and H of the deviations; `final`: without shrinkage, which serves the order only.

        `ratio`: V in units of Q/n, where it is known.
        """
        m, (S, d) = self.means[order], (len(order) - 1, self.means.shape[1])
        r = m[1:] - np.einsum("tij,tj->ti", np.broadcast_to(steps.matrix, (S, d, d)), m[:-1])
        Gamma = np.broadcast_to(steps.offset, (S, d, d))
        if B is not None and self.inputs is not None:
            r = r - np.einsum("tij,tj->ti", Gamma, self.inputs[order[:-1]] @ B.T)
        lower = cholesky(steps.covariance[0] / self.n, lower=True)
        roots = np.broadcast_to(np.linalg.cholesky(steps.covariance / self.n), (S, d, d))
        c, bread, free = np.zeros(d), np.zeros((d, d)), S
        if self.offset:
            bread = np.linalg.inv(Gamma.sum(axis=0))
            c = bread @ r.sum(axis=0)
            r, free = r - Gamma @ c, S - 1
        z = np.linalg.solve(roots, r[:, :, None])[:, :, 0]
        if ratio is None:
            ratio = _ratio(z, free, 0 if final else d + 1)
        total = np.linalg.slogdet(2 * np.pi * roots @ ratio @ roots.transpose(0, 2, 1))[1].sum()
        value = -0.5 * float(total + (z * np.linalg.solve(ratio, z.T).T).sum())
        V = lower @ ratio @ lower.T
        return PathFit(c, ratio, bread @ (S * V) @ bread.T, value)

    def along_time(self, order: Indices) -> MeanPath:
        """The same with slices in the order of time."""
        inputs = None if self.inputs is None else self.inputs[order]
        return replace(self, means=self.means[order], inputs=inputs)

    def costs(self, order: Indices, Q: Array) -> Array:
        """Costs (T, T) of one slice's mean after another's, under the fit along an order; constants left out.

        `½ (m_b − m_a − c)ᵀ V⁻¹ (m_b − m_a − c)`: without F, so that an order and its reverse cost the same.
        """
        source, target = self.vectors(order, Q)
        squares = (source**2).sum(axis=1)[:, None] + (target**2).sum(axis=1) - 2 * source @ target.T
        return 0.5 * np.asarray(np.maximum(squares, 0.0))

    def vectors(self, order: Indices, Q: Array) -> tuple[Array, Array]:
        """`m + c` and m (T, d) in coordinates in which the steps of the mean path are white; Q is that of deviations."""
        trend, ratio = np.zeros(len(Q)), self._known_ratio(Q)
        if ratio is None:
            fitted = self._trend(order, Q)
            trend, ratio = fitted.offset, fitted.ratio
        lower = cholesky(Q / self.n, lower=True) @ cholesky(ratio, lower=True)
        here = self.means - self.means.mean(axis=0)
        both = solve_triangular(lower, np.concatenate([here + trend, here]).T, lower=True).T
        return both[: len(here)], both[len(here) :]

    def log_likelihood(self, order: Indices, Q: Array) -> float:
        """Of the mean path along an order given its first slice: a random walk with a trend, fitted to it."""
        return self._trend(order, Q).log_likelihood

    def _trend(self, order: Indices, Q: Array) -> PathFit:
        one, known = np.eye(len(Q))[None], self._known_ratio(Q)
        path = replace(self, offset=known is None)
        return path.along(order, PathSteps(one, one, Q[None]), ratio=known)

    def _known_ratio(self, Q: Array) -> Array | None:
        """`I + n Q⁻¹ U Δt` in coordinates in which Q = I."""
        if self.common is None:
            return None
        root = solve_triangular(cholesky(Q, lower=True), np.eye(len(Q)), lower=True)
        return np.eye(len(Q)) + self.n * root @ self.common @ root.T


def _ratio(z: Array, free: int, weight: float) -> Array:
    """The covariance of z (S, d), `weight` times a multiple of I counted as observations; no direction has less than I."""
    d = z.shape[1]
    total = z.T @ z
    level = max(float(np.trace(total)) / (d * max(free, 1)), 1.0)
    mixed = (total + weight * level * np.eye(d)) / (max(free, 1) + weight)
    values, vectors = np.linalg.eigh(mixed)
    return (vectors * np.maximum(values, 1.0)) @ vectors.T


def slice_effects(values: Any) -> Array:
    """m_t (T, d): means over trajectories; where values are missing, of the additive fit `x_it ≈ a_i + m_t` to those observed.

    Without the trajectories' own `a_i` a slice would differ by which of them are missing there.
    """
    values = in_order(values, None)
    xp = array_api_compat.array_namespace(values)
    plain = to_numpy(xp.mean(values, axis=0))
    if not np.isnan(plain).any():
        return plain
    x = to_numpy(values)
    return np.stack([_two_way(x[:, :, k]) for k in range(x.shape[2])], axis=1)


def _two_way(x: Array) -> Array:
    """Slice effects (T,) of x (n, T), NaN where missing, at the level of its mean; the normal equations, trajectories eliminated."""
    x = x[~np.isnan(x).all(axis=1)]
    seen = (~np.isnan(x)).astype(float)
    level = np.nanmean(x)
    own = np.nanmean(x, axis=1, keepdims=True)
    rest = np.where(seen > 0, x - own, 0.0).sum(axis=0)
    normal = np.diag(seen.sum(axis=0)) - seen.T @ (seen / seen.sum(axis=1, keepdims=True))
    found: Array = np.linalg.lstsq(normal, rest, rcond=1e-10)[0]
    weights = seen.sum(axis=0)
    return found - (weights @ found) / weights.sum() + level


def without_slice_effects(values: Any) -> Any:
    """Deviations from the slice effects, `√(n/(n − 1)) (x_it − m_t)`; of one trajectory nothing is left."""
    values = in_order(values, None)
    n = values.shape[0]
    return (values - like(slice_effects(values), values)) * (n / max(n - 1, 1)) ** 0.5
