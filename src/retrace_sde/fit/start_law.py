"""The law of the first observation, p₀: a free Gaussian, without which there is no direction of time.

The forward and the backward fit condition on different first slices; leaving p₀ out compares
likelihoods of different data and is confidently wrong.

A free covariance needs n ≫ d. It is shrunk, `(1 − ρ) S + ρ m P`, towards a multiple of H or of the variables'
own variances, and (ρ, P) are those under which the trajectories best predict one another (leave-one-out). A fixed
rule will not do: a little shrinkage towards the wrong shape outweighs the evidence on the direction. By the same
prediction, where the direction is judged, two Gaussians may stand for one (`starts`): groups that start apart, as two
arms of a trial do, would hide a direction behind a start law far too wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array, Mask
from retrace_sde.process.sde import Gaussian

START_FLOOR = 1e-2
"""Variance, in units of H Δt, added to every slice's spread: a common start has none of its own."""

COVARIANCE_ACCURACY = 1e-12
"""Relative accuracy of a covariance matrix, below which its eigenvalues mean nothing."""

SHRINKAGES = (0.0, 0.01, 0.1, 0.4, 1.0)
"""The values of ρ that are tried."""

TRIANGULAR_FROM = 24
"""Number of variables from which LAPACK's triangular inverse is used."""

GIVE_UP_NATS = 50.0
"""Nats below the best for the same target at which larger shrinkages are skipped."""

STATE_ELEMENTS = 1 << 16
"""Elements of slices, or of their covariances, that are processed at once."""

CACHED_ELEMENTS = 1 << 17
"""Elements of slices, or of their covariances, times shrinkages, up to which these are tried at once: small arrays cost calls, large ones cache."""

SMALLEST_GROUP = 4
"""Trajectories of a group that starts apart: fewer are outliers."""

GROUP_SEPARATION = 0.75
"""Share of the variance along a slice's longest axis that two groups must explain to be tried."""

GROUPS_EVIDENCE = 3.0
"""Nats by which two groups must predict better than one: who is in which was read off all trajectories."""


@dataclass(frozen=True, eq=False)
class Starts:
    """For each of k slices the law that predicts best: its leave-one-out densities (k, n) and what it is.

    A Gaussian, or two of them with a common `covariance` (k, d, d): `means` (k, 2, d) and `shares` (k, 2) of the
    trajectories, (1, 0) where one Gaussian predicts better.
    """

    log_densities: Array
    covariance: Array
    means: Array
    shares: Array

    @property
    def moments(self) -> tuple[Array, Array]:
        """The mean (d,) and the covariance (d, d) of the first of the k slices, groups together."""
        mean = self.shares[0] @ self.means[0]
        apart = self.means[0] - mean
        return mean, self.covariance[0] + (apart.T * self.shares[0]) @ apart

    def draw(self, size: int, n: int, rng: np.random.Generator) -> Array:
        """First states (size, n, d) of new panels, from the law of the first of the k slices."""
        second = rng.random((size, n)) < self.shares[0, 1]
        root = np.linalg.cholesky(self.covariance[0])
        noise = rng.standard_normal((size, n, len(root))) @ root.T
        return self.means[0][second.astype(np.intp)] + noise


def starts(
    states: Array, noise: Array, variances: Array, groups: tuple[Mask, Mask] | None = None
) -> Starts:
    """The law of k slices (k, n, d), by what predicts left-out trajectories best: one Gaussian, or two of separate groups.

    `noise` is a step's covariance, `variances` are the variables', of all slices or (k, ...) of each. `groups`: `second_group` of them, where it is known.
    """
    one = _shrink(states, noise, variances)
    if states.shape[1] < 2 * SMALLEST_GROUP:
        return one
    far, apart = second_group(states, variances) if groups is None else groups
    if not apart.any():
        return one
    noise, variances = (
        np.broadcast_to(a, (len(states), *a.shape[-k:]))[apart]
        for a, k in ((noise, 2), (variances, 1))
    )
    two = _shrink(states[apart], noise, variances, far[apart])
    wins = apart.copy()
    wins[apart] = (
        two.log_densities.sum(axis=1) > one.log_densities[apart].sum(axis=1) + GROUPS_EVIDENCE
    )
    for a, b in zip(vars(one).values(), vars(two).values(), strict=True):
        a[wins] = b[wins[apart]]
    return one


def second_group(states: Array, variances: Array) -> tuple[Mask, Mask]:
    """Who stands apart (k, n): two means along the longest axis of a slice, in units of the variables.

    And whether there is a gap (k,): the two explain far more of the axis than the 2/π they explain of a Gaussian.
    """
    z = (states - states.mean(axis=1, keepdims=True)) / np.sqrt(variances)[..., None, :]
    axis = np.linalg.eigh(z.transpose(0, 2, 1) @ z)[1][:, :, -1:]
    along = (z @ axis)[:, :, 0]
    cut = np.zeros((len(along), 1))
    for _ in range(10):
        far = along > cut
        high = (along * far).sum(axis=1) / np.maximum(far.sum(axis=1), 1)
        low = (along * ~far).sum(axis=1) / np.maximum((~far).sum(axis=1), 1)
        cut = ((high + low) / 2)[:, None]
    shares = far.mean(axis=1)
    between = shares * (1 - shares) * (high - low) ** 2
    return far, between > GROUP_SEPARATION * (along**2).mean(axis=1)


def _shrink(states: Array, noise: Array, variances: Array, far: Mask | None = None) -> Starts:
    """Try every target and every ρ, and keep for each slice what predicts left-out trajectories best.

    `far` (k, n): who belongs to the second group. Each trajectory is judged by its own group's Gaussian alone, times the
    group's share, which the density of the mixture exceeds: groups are seen where they stand apart.
    """
    k, n, _ = states.shape
    member = np.ones((k, n, 1)) if far is None else np.stack([~far, far], axis=2).astype(float)
    sizes = member.sum(axis=1)
    means = (member.transpose(0, 2, 1) @ states) / np.maximum(sizes, 1)[:, :, None]
    z = states - member @ means
    m = (member @ sizes[:, :, None])[:, :, 0]
    few = np.zeros(k, dtype=bool) if far is None else sizes.min(axis=1) < SMALLEST_GROUP
    m = np.maximum(m, 2)
    best, covariance = _left_out(z, m, noise, np.asarray(variances))
    best = best + np.log((m - 1) / (n - 1))
    best[few] = -np.inf
    if far is None:
        means, sizes = np.repeat(means, 2, axis=1), np.tile([float(n), 0.0], (k, 1))
    return Starts(best, covariance, means, sizes / n)


def _left_out(z: Array, m: Array, noise: Array, variances: Array) -> tuple[Array, Array]:
    """Leave-one-out densities (k, n) of deviations z (k, n, d) from groups' means, and the best shrunk covariance.

    `m` (k, n) are the sizes of the groups. Noise is (d, d), or (k, d, d) of each slice, and so are the variables' variances (d,): the
    targets, each scaled by `tr P⁻¹ S / d`.
    """
    k, n, d = z.shape
    size = max(1, STATE_ELEMENTS // (d * max(n, d)))
    if k > size:
        parts = []
        for i in (slice(i, i + size) for i in range(0, k, size)):
            own = noise if noise.ndim == 2 else noise[i]
            parts.append(_left_out(z[i], m[i], own, variances if variances.ndim == 1 else variances[i]))  # fmt: skip
        best, covariance = (np.concatenate(each) for each in zip(*parts, strict=True))
        return best, covariance
    S = z.transpose(0, 2, 1) @ z / n
    # Grown data have a spread of 10⁷ in one direction, beside which others are lost to rounding.
    lost = COVARIANCE_ACCURACY * np.diagonal(S, axis1=1, axis2=2)[:, :, None] * np.eye(d)
    least = START_FLOOR * noise + lost
    # Without shrinkage targets are alike; and covariances are singular, but for the floor, with n ≤ d.
    tried = [] if n <= d else [(0, 0.0)]
    tried += [(target, rho) for target in range(2) for rho in SHRINKAGES[1:]]
    if d < TRIANGULAR_FROM:
        of_noise = (np.linalg.inv(noise) * S).sum(axis=(1, 2))
    else:
        lower = np.broadcast_to(np.linalg.cholesky(noise), S.shape)
        of_noise = _lengths(lower[:, None], z).sum(axis=(1, 2)) / n
    of_variances = (np.diagonal(S, axis1=1, axis2=2) / variances).sum(axis=1)
    scaled = [
        (of_noise / d)[:, None, None] * noise,
        (of_variances / d)[:, None, None] * (variances[..., None] * np.eye(d)),
    ]
    best, covariance = np.full((k, n), -np.inf), np.zeros((k, d, d))
    worth, own = np.full(k, -np.inf), np.full((len(scaled), k), -np.inf)
    at_once = len(tried) if len(tried) * k * d * max(n, d) <= CACHED_ELEMENTS else 1
    while tried:
        some, tried = tried[:at_once], tried[at_once:]
        rest = np.stack([each * scaled[target] + least for target, each in some], axis=1)
        rho = np.array([each for _, each in some])
        density, total = _densities(z, m, S, rest, rho)
        first = total.argmax(axis=1)
        wins = np.flatnonzero(total.max(axis=1) > worth)
        which = first[wins]
        worth[wins], best[wins] = total[wins, which], density[wins, which]
        covariance[wins] = (1 - rho[which])[:, None, None] * S[wins] + rest[wins, which]
        if tried:
            target, now = some[0][0], total[:, 0]
            own[target] = np.maximum(own[target], now)
            if (now < own[target] - GIVE_UP_NATS).all():  # more of it predicts still worse
                tried = [each for each in tried if each[0] != target]
    return best - d * np.log(2 * np.pi) / 2, covariance


def _densities(z: Array, m: Array, S: Array, rest: Array, rho: Array) -> tuple[Array, Array]:
    """Leave-one-out densities (k, r, n) but for a constant, of covariances `(1 − ρ) S + rest` with r values of ρ, and their sums.

    Leaving trajectory j out of mean and covariance is a rank-one change of M: M − c z zᵀ.
    """
    n = z.shape[1]
    m, share = m[:, None], (1 - rho)[:, None]
    c = share * m / ((m - 1) * (n - 1))
    lower = np.linalg.cholesky(share[..., None] * n / (n - 1) * S[:, None] + rest)
    q = _lengths(lower, z)
    left = 1 - c * q
    possible = left.min(axis=2) > 1e-9  # not so where n ≤ d and nothing is shrunk
    left = np.where(possible[..., None], left, 1.0)
    log_det = 2 * np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1)[..., None]
    found = -0.5 * ((m / (m - 1)) ** 2 * q / left + log_det + np.log(left))
    return found, np.where(possible, found.sum(axis=2), -np.inf)


def inverted(lower: NDArray[np.floating[Any]]) -> Array:
    """The inverses of lower triangular matrices (..., d, d): large ones by LAPACK's own routine, a sixth of the work."""
    d = lower.shape[-1]
    if d < TRIANGULAR_FROM:
        return np.asarray(np.linalg.inv(lower))
    (invert,) = get_lapack_funcs(("trtri",), (lower,))
    found = np.stack([invert(each, lower=1)[0] for each in lower.reshape(-1, d, d)])
    return found.reshape(lower.shape)


def _lengths(lower: Array, z: Array) -> Array:
    """`‖L⁻¹ z‖²` of rows z (k, n, d), for lower triangular L (k, r, d, d)."""
    k, r, d, _ = lower.shape
    if d < TRIANGULAR_FROM:
        white = z[:, None] @ inverted(lower).swapaxes(-1, -2)
        return np.asarray(np.einsum("krni,krni->krn", white, white))
    (solve,) = get_blas_funcs(("trsm",), (lower, z))
    found = np.empty((k, r, z.shape[1]))
    for i, j in np.ndindex(k, r):
        white = solve(1.0, lower[i, j].T, z[i].T, trans_a=1)  # transposed: as Fortran stores them
        np.einsum("in,in->n", white, white, out=found[i, j])
    return found


def start_log_densities(states: Array, model: Euler, variances: Array) -> Array:
    """`log p₀` of each trajectory at each of k slices: states (k, n, d) to densities (k, n).

    Each trajectory is judged by the Gaussian fitted to the *others*. Judged by a fit to itself a small
    panel would find any slice a perfect start: with n ≤ d all its points lie at one Mahalanobis distance.
    A common start would have infinite density; `START_FLOOR` bounds it. `variances` (d,) are the
    variables' over the whole panel.
    """
    return judged_starts(states, model, variances)[0]


def most_start_log_density(states: Array, model: Euler) -> Array:
    """Upper bounds (k,) on the sums over trajectories of `start_log_densities` of k slices (k, n, d), by a determinant each.

    A Gaussian of covariance M judges a slice of covariance S by `−n/2 (log |M| + tr M⁻¹S)` at most, up to a nat by which leaving single ones out may
    gain, and that is largest at M = S; no M is smaller than `START_FLOOR` of a step's.
    """
    _, n, d = states.shape
    z = states - states.mean(axis=1, keepdims=True)
    S = z.transpose(0, 2, 1) @ z / n
    floor = START_FLOOR * model.diffusion * model.dt
    spread = np.linalg.slogdet(S)[1] + d
    smallest = np.linalg.slogdet(floor)[1]
    found: Array = 1 - 0.5 * n * (np.fmax(spread, smallest) + d * np.log(2 * np.pi))
    return found


def most_gaussian_log_density(states: Array) -> Array:
    """The same of any one Gaussian, whatever the step: ∞ where there are no more trajectories than variables."""
    _, n, d = states.shape
    z = states - states.mean(axis=1, keepdims=True)
    sign, log_det = np.linalg.slogdet(z.transpose(0, 2, 1) @ z / n)
    log_det = np.where((sign > 0) & (n > d), log_det, -np.inf)
    return np.asarray(1 - 0.5 * n * (log_det + d + d * np.log(2 * np.pi)))


def first_log_densities(states: Array, noise: Array, variances: Array) -> Array:
    """The same (k, n) of k slices, each under a step of its own with the covariance `noise` (k, d, d)."""
    return _shrink(states, noise, variances).log_densities


def start_law(states: Array, model: Euler, variances: Array) -> Gaussian:
    """p₀ fitted to the first states (n, d), for simulating from the fit and for held-out data."""
    return judged_starts(states[None], model, variances)[1][0]


def judged_starts(
    states: Array, model: Euler, variances: Array
) -> tuple[Array, tuple[Gaussian, ...]]:
    """`start_log_densities` and `start_law` of k slices (k, n, d)."""
    if states.shape[1] < 2:
        law = START_FLOOR * model.diffusion * model.dt
        return np.zeros(states.shape[:2]), tuple(Gaussian(x.mean(axis=0), law) for x in states)
    found = _shrink(states, model.diffusion * model.dt, variances)
    means = states.mean(axis=1)
    laws = (Gaussian(m, S) for m, S in zip(means, found.covariance, strict=True))
    return found.log_densities, tuple(laws)


def shrunk_start(firsts: Array, every: Array) -> Gaussian:
    """The law of first observations (n, d), drawn towards that of all (N, d), which stands in where they are few; NaN where missing."""
    firsts, every = (x[~np.isnan(x).any(axis=1)] for x in (firsts, every))
    d = every.shape[1]
    share = len(firsts) / (len(firsts) + 2.0 * d + 4.0)
    whole = np.cov(every.T).reshape(d, d) + 1e-9 * np.eye(d)
    mean = share * firsts.mean(axis=0) + (1 - share) * every.mean(axis=0)
    off = firsts - mean
    return Gaussian(mean, share * off.T @ off / max(len(firsts), 1) + (1 - share) * whole)


def is_point(states: Array, model: Euler) -> bool:
    """The states (n, d) have less spread than the floor: one state, common to all trajectories."""
    z = (states - states.mean(axis=0)) @ model.whitening.T
    return len(states) > 1 and bool((z**2).mean() < START_FLOOR)
