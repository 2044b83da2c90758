"""Kalman filter and smoother for many trajectories that share one model, with missing entries and steps of several classes.

    X_{i+1} = F_k X_i + S_k v_i + N(0, Q_k),     Y_i = X_i + N(0, R),     X_0 ~ N(m₀, P₀).

Trajectories are grouped by their pattern of missing entries and gaps. Each pattern has one Riccati recursion (`riccati`); where
few trajectories share one and R is diagonal, the compiled smoother takes each by itself (`per_trajectory`), and what that would
lose to rounding goes through the recursion after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.statespace.model import StateSpace, StepModel, check_model
from retrace_sde.fit.statespace.observations import Observations, Stack, as_observations
from retrace_sde.fit.statespace.per_trajectory import per_trajectory
from retrace_sde.fit.statespace.riccati import forwards, noise_grams, riccati, smooth, squared_noise
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.parameters import checked

__all__ = ["Smoothed", "StateSpace", "kalman"]

MAX_CELLS = 64
"""Entries that a trajectory may lack for them to be drawn by themselves: 2 to 6 times quicker than the smoother up to 41 (50 × 8 × 4 to
200 × 20 × 5), 1.6 times at 79 (30 × 40 × 5)."""

SIZES = 4
"""Sizes by which trajectories are grouped where their missing entries are drawn."""

GROUPED_FROM = 30_000
"""Numbers n m³ of n trajectories that lack m entries at most from which they are: with 6,000 to 22,000 groups take 1.4 times as long as none, with 43,000 .7 times."""

CELL_ELEMENTS = 300_000
"""Numbers n (T d)² up to which sums over steps come from the missing entries by themselves, for which nothing is compiled."""


@dataclass(frozen=True, eq=False)
class Smoothed:
    """What the data tell about the states.

    Attributes
    ----------
    log_likelihood : array (n,)
        Of each trajectory.
    means : array (n, T, d)
        E[X_i | Y].
    covariances : array (P, T, d, d)
        Cov(X_i | Y), shared by all trajectories with the same missing entries.
    lag_covariances : array (P, T − 1, d, d)
        Cov(X_{i+1}, X_i | Y).
    pattern : array (n,)
        Which of the P is a trajectory's.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE(-np.eye(2), np.eye(2))
    >>> model = rt.statespace.StateSpace(sde.transition(0.1), 0.01 * np.eye(2), sde.stationary())
    >>> smooth = rt.statespace.kalman(sde.simulate(3, 20, 0.1, random_state=0), model)
    >>> smooth.log_likelihood.shape, smooth.covariances.shape, smooth.lag_covariances.shape, smooth.pattern
    ((3,), (1, 20, 2, 2), (1, 19, 2, 2), array([0, 0, 0]))
    """

    log_likelihood: Array
    means: Array
    covariances: Array
    lag_covariances: Array
    pattern: Indices


@checked
def kalman(
    Y: ArrayLike, model: StateSpace, *, covariances: bool = True, n_jobs: int | None = None
) -> Smoothed:
    """Log-likelihood, smoothed means and covariances of Y (n, T, d) in time order.

    A regular grid is assumed. The covariances of P patterns of missing entries are P T d² numbers, twice.

    Parameters
    ----------
    Y : array (n, T, d)
        Observations, NaN where missing; trajectories that are shorter end in rows of NaN.
    model : StateSpace
        Transition, noise and start.
    covariances : bool
        False: both arrays of covariances are of 0 patterns.
    n_jobs : int or None
        Threads (None: all cores); the result does not depend on it.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> sde = rt.LinearSDE([[-1.0, 0.5], [0.0, -1.0]], np.eye(2))
    >>> X = sde.simulate(20, 30, 0.1, random_state=0)
    >>> Y = rt.simulate.add_noise(X, 0.3, random_state=1)
    >>> smooth = rt.statespace.kalman(Y, rt.statespace.StateSpace(sde.transition(0.1), 0.09 * np.eye(2), sde.stationary()))
    >>> bool(np.abs(smooth.means - X).mean() < 0.8 * np.abs(Y - X).mean())
    True
    """
    values = as_observations(Y)
    check_model(model, values.shape[2])
    seen = Observations.regular(values, 1.0, n_jobs)
    return states(seen, model.steps, times=values.shape[1] if covariances else 0)


def states(seen: Observations, model: StepModel, *, times: int = 0) -> Smoothed:
    """Log-likelihoods and smoothed means; covariances, by pattern, of the first so many times."""
    n, T, d = seen.values.shape
    few = _drawn_cells(seen, model, None) if times <= 1 else None
    if few is not None and n * (T * d) ** 2 * times <= CELL_ELEMENTS:
        none = np.empty((n * times, 0, d, d))
        V = _cell_covariances(few)[:, 0, :, 0][:, None] if times else none
        return Smoothed(few.likelihood, few.states, V, none, np.arange(n))
    P = int(seen.pattern.max()) + 1 if times else 0
    means, likelihood = np.empty((n, T, d)), np.empty(n)
    within, lags = np.empty((P, times, d, d)), np.empty((P, max(times - 1, 0), d, d))
    stacks = seen.apart if model.diagonal else seen.stacks
    for stack in (some for whole in stacks for some in whole.portions(T * d * d)):
        rows = per_trajectory(stack, model, times=T, n_jobs=seen.n_jobs)
        if rows is not None:
            means[stack.rows.ravel()] = rows.found.means
            likelihood[stack.rows.ravel()] = rows.found.likelihood
            if times:
                first = slice(None, None, stack.rows.shape[1])
                V, C = rows.found.covariances[first, :times], rows.found.crosses[first, 1:times]
                classes = stack.classes.T[:, : times - 1]
                within[stack.patterns] = V
                lags[stack.patterns] = (
                    model.matrix[classes] @ V[:, :-1] - model.covariance[classes] @ C
                )
            continue
        gains = riccati(stack.seen, stack.classes, model)
        if times:
            within[stack.patterns] = gains.covariance[:times].transpose(1, 0, 2, 3)
            lags[stack.patterns] = gains.lag[: times - 1].transpose(1, 0, 2, 3)
        for part in stack.parts():
            found = smooth(part, gains, model)
            means[part.rows] = found.means.transpose(1, 2, 0, 3)
            likelihood[part.rows] = found.log_likelihood
    return Smoothed(likelihood, means, within, lags, seen.pattern)


def drawn_states(
    seen: Observations, model: StepModel, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Log-likelihoods (n,), and states (n, T, d) drawn given what was observed.

    A simulation smoother (Durbin and Koopman 2002): of a simulated panel with the same values missing, what the smoother leaves is drawn
    as what it leaves of this one, `x = x̂(y) + x⁺ − x̂(y⁺)`. Entries seen without noise are themselves: then only the few that are
    missing are drawn (`_drawn_cells`).
    """
    few = _drawn_cells(seen, model, rng)
    if few is not None:
        return few.likelihood, few.states
    y, index = seen.values, np.broadcast_to(seen.classes.index, (len(seen.values), seen.values.shape[1] - 1))  # fmt: skip
    n, T, d = y.shape
    roots = np.linalg.cholesky(model.covariance)
    v = seen.inputs
    if v is None:
        v = np.ones((n, T, model.inputs.shape[2]))
    x = np.empty((n, T, d))
    x[:, 0] = model.initial.mean
    x[:, 0] += rng.standard_normal((n, d)) @ np.linalg.cholesky(model.initial.covariance).T
    for t in range(T - 1):
        k, noise = index[:, t], rng.standard_normal((n, d))
        x[:, t + 1] = np.einsum("nij,nj->ni", model.matrix[k], x[:, t])
        x[:, t + 1] += np.einsum("nij,nj->ni", model.inputs[k], v[:, t])
        x[:, t + 1] += np.einsum("nij,nj->ni", roots[k], noise)
    values, vectors = np.linalg.eigh(model.noise)
    spread = vectors * np.sqrt(np.maximum(values, 0.0))
    simulated = x + rng.standard_normal((n, T, d)) @ spread.T
    both = Observations(
        np.concatenate([y, np.where(np.isnan(y), np.nan, simulated)]),
        seen.classes.repeated(2),
        None if seen.inputs is None else np.concatenate([seen.inputs, seen.inputs]),
        seen.n_jobs,
    )
    found = states(both, model)
    drawn = found.means[:n] + x - found.means[n:]
    exact = (np.diag(model.noise) == 0) & ~np.isnan(y)
    return found.log_likelihood[:n], np.where(exact, y, drawn)


class _Cells(NamedTuple):
    """Log-likelihoods (n,), completed states (n, T, d), and of each trajectory's missing entries, of m at most, which they are (n, m) of
    T d, which of these m it lacks, and the inverse (n, m, m) of the Cholesky factor of their precision. `held`: variables that do not
    move, of which the first state is the only entry."""

    likelihood: Array
    states: Array
    cells: Indices
    used: Mask
    root: Array
    held: Mask


def _drawn_cells(
    seen: Observations, model: StepModel, rng: np.random.Generator | None
) -> _Cells | None:
    """The same without noise, along gaps common to all; None where there is noise, or a trajectory lacks many entries.

    All states of a trajectory have the block tridiagonal precision Λ, and those missing (m) given the rest Λ_mm; the density of what
    was seen is that of all states over that of those drawn. Without `rng` missing entries have their means. Variables that are
    never seen and do not move (random intercepts) are one entry each.
    """
    y, missing = seen.values, np.isnan(seen.values)
    n, T, d = y.shape
    held: Mask = ~np.asarray(model.covariance.any(axis=(0, 2)))
    cell, some_held = missing, bool(held.any())
    if some_held:
        cell = missing.copy()
        cell[:, 1:, held] = False
        moves = (model.matrix != np.eye(d))[:, held].any() or model.inputs[:, held].any()
        if moves or not missing[:, :, held].all():
            return None
    m = int(cell.sum(axis=(1, 2)).max())
    if some_held == model.regular or len(seen.classes.index) > 1 or m > MAX_CELLS:
        return None
    if np.any(model.noise[:, ~held]):
        return None
    k, still = seen.classes.index[0], np.diag(held.astype(float))
    precisions = np.linalg.inv(model.covariance + still)
    log_dets = np.linalg.slogdet(precisions)[1]
    precisions[:, held] = 0.0
    F, Q = model.matrix[k], precisions[k]
    shift = np.broadcast_to(model.inputs[k].sum(axis=2), (n, T - 1, d))
    if seen.inputs is not None:
        shift = _each_step(seen.inputs[:, :-1], model.inputs[k].swapaxes(1, 2))
    start, P = model.initial.mean, np.asarray(np.linalg.inv(model.initial.covariance), dtype=float)

    def residuals(x: Array) -> tuple[Array, Array]:
        return x[:, 0] - start, x[:, 1:] - _each_step(x[:, :-1], F.swapaxes(1, 2)) - shift

    x = np.ascontiguousarray(np.where(missing, 0.0, y))  # filled in place
    first, steps = residuals(x)
    pull = np.zeros((n, T, d))
    pull[:, 0] -= first @ P
    weighted = _each_step(steps, Q)
    pull[:, 1:] -= weighted
    pull[:, :-1] += _each_step(weighted, F)
    # each trajectory's missing entries first; those beyond a trajectory's own are independent and of no use
    cells = np.argsort(~cell.reshape(n, -1), axis=1, kind="stable")[:, :m]
    used = np.take_along_axis(cell.reshape(n, -1), cells, axis=1)
    every = _precision(F, Q, P).reshape(T, d, T, d)
    if some_held:
        pull[:, 0, held] = pull[:, :, held].sum(axis=1)
        every[0, held] = every[:, held].sum(axis=0)
        every[:, :, 0, held] = every[:, :, :, held].sum(axis=2)
    towards = np.take_along_axis(pull.reshape(n, -1), cells, axis=1) * used
    noise = np.zeros((n, m)) if rng is None else rng.standard_normal((n, m)) * used
    root, log_det = _roots(every.reshape(T * d, T * d), cells, used)
    drawn = ((root @ towards[..., None])[..., 0] + noise)[:, None] @ root
    at = np.nonzero(used)
    x.reshape(n, -1)[at[0], cells[at]] = drawn[:, 0][at]
    if some_held:
        x[:, 1:, held] = x[:, :1, held]

    first, steps = residuals(x)
    value = -(first @ P * first).sum(axis=1) - (_each_step(steps, Q) * steps).sum(axis=(1, 2))
    value += np.linalg.slogdet(P)[1] + log_dets[k].sum() + (noise**2).sum(axis=1)
    value -= log_det + (~missing).sum(axis=(1, 2)) * np.log(2 * np.pi)
    return _Cells(value / 2, x, cells, used, root, held)


def _each_step(x: Array, matrices: Array) -> Array:
    """Rows x (n, t, d) times the matrix (t, d, e) of their step, by products of whole matrices."""
    return np.asarray((x.swapaxes(0, 1) @ matrices).swapaxes(0, 1))


def _roots(precision: Array, cells: Indices, used: Mask) -> tuple[Array, Array]:
    """The inverses (n, m, m) of the Cholesky factors of the precisions of each trajectory's missing entries, 0 beyond its own, and log-determinants (n,).

    Trajectories that lack few entries are not computed with those that lack many: work grows with the cube.
    """
    n, m = cells.shape
    root, log_det, counts = np.zeros((n, m, m)), np.zeros(n), used.sum(axis=1)
    for rows in np.array_split(
        np.argsort(counts, kind="stable"), SIZES if n * m**3 > GROUPED_FROM else 1
    ):
        c = int(counts[rows].max(initial=0))
        own, within = cells[rows, :c], used[rows, :c]
        inner = precision[own[:, :, None], own[:, None, :]]
        L = np.linalg.cholesky(np.where(within[:, :, None] & within[:, None, :], inner, np.eye(c)))
        root[rows, :c, :c] = np.linalg.inv(L)
        log_det[rows] = 2 * np.log(L.diagonal(axis1=1, axis2=2)).sum(axis=1)
    return root, log_det


def _cell_covariances(found: _Cells) -> Array:
    """Of all states of each trajectory, (n, T, d, T, d)."""
    (n, T, d), cells, held = found.states.shape, found.cells, found.held
    covariances, flat = np.zeros((n, T, d, T, d)), cells[:, :, None] * (T * d) + cells[:, None]
    own = found.root.transpose(0, 2, 1) @ found.root
    own *= found.used[:, :, None] & found.used[:, None]
    np.put_along_axis(covariances.reshape(n, -1), flat.reshape(n, -1), own.reshape(n, -1), axis=1)
    covariances[:, 1:, held] = covariances[:, :1, held]
    covariances[:, :, :, 1:, held] = covariances[:, :, :, :1, held]
    return covariances


def _precision(F: Array, Q: Array, P: Array) -> Array:
    """Of the states of a trajectory (T d, T d), from steps F (T − 1, d, d) and the precisions Q of their noises and P of the start."""
    T, d = len(F) + 1, len(P)
    found = np.zeros((T, d, T, d))
    found[0, :, 0] = P
    pulled, t = Q @ F, np.arange(T - 1)
    found[t + 1, :, t + 1] += Q
    found[t, :, t] += F.swapaxes(1, 2) @ pulled
    found[t + 1, :, t] -= pulled
    found[t, :, t + 1] -= pulled.swapaxes(1, 2)
    return found.reshape(T * d, T * d)


@dataclass(frozen=True, eq=False)
class Filtered:
    """What was known of each state from what had been observed by then: means (n, T, d), covariances (n, T, d, d).

    `innovations` (n, T, d) are whitened, NaN where nothing was observed.
    """

    means: Array
    covariances: Array
    innovations: Array


def filtered(seen: Observations, model: StepModel) -> Filtered:
    """The Kalman filter; trajectories that share missing entries and gaps share covariances."""
    n, T, d = seen.values.shape
    means, covariances, innovations = (np.empty((n, T, *shape)) for shape in ((d,), (d, d), (d,)))
    for stack in (some for whole in seen.stacks for some in whole.portions(T * d * d)):
        gains = riccati(stack.seen, stack.classes, model)
        covariances[stack.rows] = gains.filtered.transpose(1, 0, 2, 3)[:, None]
        for part in stack.parts():
            m, v = forwards(part, gains, model)
            white = np.linalg.solve(gains.lower, v.swapaxes(-1, -2))
            means[part.rows] = m.transpose(1, 2, 0, 3)
            innovations[part.rows] = white.transpose(1, 3, 0, 2)
    innovations[np.isnan(seen.values)] = np.nan
    return Filtered(means, covariances, innovations)


@dataclass(frozen=True, eq=False)
class StepSums:
    """What the smoother found for the trajectories of a stack, reduced to sums: those of each one, (m, …), or in total.

    Log-likelihood; Gram matrices (…, K, q, q) of (x, v, η) by class of steps; expected squared noise (…, d); and the means (m, d)
    and the summed covariance (d, d) of the first states of trajectories of which something was seen.
    """

    stack: Stack
    likelihood: Array | float
    grams: Array
    squares: Array
    firsts: Array
    first_covariance: Array

    def summed(self) -> StepSums:
        """In total, as the Gram matrices are."""
        likelihood = float(np.sum(self.likelihood))
        return replace(self, likelihood=likelihood, squares=self.squares.sum(axis=0))


class CellSums(NamedTuple):
    """In total: log-likelihood, Gram matrices (K, q, q) of (x, v, η) and numbers of steps by class (K,), and the means (m, d) and the
    summed covariance (d, d) of the first states of trajectories of which something was seen."""

    likelihood: float
    grams: Array
    counts: Array
    firsts: Array
    first_covariance: Array


def cell_sums(seen: Observations, model: StepModel) -> CellSums | None:
    """A pass over all trajectories of a small panel without noise; None elsewhere, or where a trajectory lacks many entries.

    Some products of all trajectories at once, for which nothing is compiled.
    """
    n, T, d = seen.values.shape
    found = _drawn_cells(seen, model, None) if n * (T * d) ** 2 <= CELL_ELEMENTS else None
    if found is None:
        return None
    x, K, covariances, at = found.states, len(model.matrix), _cell_covariances(found), np.arange(T)
    V, lag = covariances[:, at, :, at], covariances[:, at[1:], :, at[:-1]]  # (T, n, d, d)
    some: Mask = np.asarray((~np.isnan(seen.values)).any(axis=2))
    after_it: Mask = np.logical_or.accumulate(some[:, ::-1], axis=1)[:, ::-1]
    live = after_it[:, 1:].astype(float)

    k, v = seen.classes.index[0], seen.inputs
    if v is None:
        v = np.ones((n, T, model.inputs.shape[2]))
    phi = np.concatenate([x, v], axis=2)[:, :-1]
    F = np.concatenate([model.matrix, model.inputs], axis=2)[k]
    z = np.concatenate([phi, x[:, 1:] - _each_step(phi, F.swapaxes(1, 2))], axis=2)
    before, after, across = (
        (live.T[:, None] @ C.reshape(T - 1, n, d * d)).reshape(T - 1, d, d)
        for C in (V[:-1], V[1:], lag)
    )
    pairs = np.block([[before, across.swapaxes(1, 2)], [across, after]])
    noise = np.concatenate([-F[:, :, :d], np.broadcast_to(np.eye(d), (T - 1, d, d))], axis=2)
    lift = np.zeros((T - 1, z.shape[2], 2 * d))
    lift[:, :d, :d], lift[:, -d:] = np.eye(d), noise
    z = z.swapaxes(0, 1)
    each = (z * live.T[..., None]).swapaxes(1, 2) @ z + lift @ pairs @ lift.swapaxes(1, 2)
    grams, counts, there = np.zeros((K, *each.shape[1:])), np.zeros(K), some.any(axis=1)
    np.add.at(grams, k, each)
    np.add.at(counts, k, live.sum(axis=0))
    total = float(found.likelihood.sum())
    return CellSums(total, grams, counts, x[there, 0], V[0, there].sum(axis=0))


def step_sums(
    stack: Stack, model: StepModel, *, total: bool, n_jobs: int | None = None
) -> Iterator[StepSums]:
    """A pass of the smoother over a stack, in portions."""
    (T, _, k, d), K = stack.values.shape, len(model.matrix)
    each = 8 * d * d * K if total else T * d * max(d, k)
    for portion in stack.portions(each):
        some = portion.seen.any(axis=(0, 2))
        rows = per_trajectory(portion, model, total=total, n_jobs=n_jobs)
        if rows is not None:
            own, some, counts = rows.found, np.repeat(some, k), step_counts(portion, K)
            counts = k * counts.sum(axis=0) if total else np.repeat(counts, k, axis=0)
            grams = rows.grams(counts, model)
            first = own.means[some, 0], own.covariances[some, 0].sum(axis=0)
            found = StepSums(portion, own.likelihood, grams, own.noise, *first)
            yield found.summed() if total else found
            continue
        for smaller in portion.portions(T * d * d):
            some = smaller.seen.any(axis=(0, 2))
            gains = riccati(smaller.seen, smaller.classes, model)
            for part in smaller.parts():
                means = smooth(part, gains, model)
                grams = noise_grams(part, gains, means, model, total=total)
                squares = squared_noise(part, gains, means).reshape(-1, d)
                spread = part.rows.shape[1] * gains.covariance[0, some].sum(axis=0)
                first = means.means[0, some].reshape(-1, d), spread
                found = StepSums(part, means.log_likelihood.ravel(), grams, squares, *first)
                yield found.summed() if total else found


def step_counts(stack: Stack, K: int) -> Array:
    """How many steps of each class lead to an observation yet to come, (G, K)."""
    share = stack.steps * (stack.classes == np.arange(K)[:, None, None])
    return share.sum(axis=1).T
