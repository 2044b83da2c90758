"""Kalman filter and smoother for many trajectories that share one model, with missing entries.

    X_{i+1} = F X_i + s + N(0, Q),     Y_i = X_i + N(0, R),     X_0 ~ N(m₀, P₀).

Trajectories are grouped by their pattern of missing entries. Each pattern has one Riccati recursion
(`statespace_riccati`); where few trajectories share one and R is diagonal, the compiled smoother takes each
by itself (`statespace_alone`), and what that would lose to rounding goes through the recursion after all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.fit.statespace.model import (
    StateSpace,
    as_observations,
    check_model,
    group,
    parts,
    portions,
)
from retrace_sde.fit.statespace.per_trajectory import alone
from retrace_sde.fit.statespace.riccati import riccati, smooth
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.parameters import checked

__all__ = ["Smoothed", "StateSpace", "kalman"]


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
    n, T, d = values.shape
    check_model(model, d)
    pattern, stacks = group(values)
    P = int(pattern.max()) + 1 if covariances else 0
    means, likelihood = np.empty((n, T, d)), np.empty(n)
    within, lags = np.empty((P, T, d, d)), np.empty((P, T - 1, d, d))
    for stack in (some for whole in stacks for some in portions(whole, T * d * d)):
        rows = alone(stack, model, full=True, n_jobs=n_jobs)
        if rows is not None:
            means[stack.rows.ravel()] = rows.means
            likelihood[stack.rows.ravel()] = rows.likelihood
            if covariances:
                first = slice(None, None, stack.rows.shape[1])
                V, C = rows.covariances[first], rows.crosses[first, 1:]
                within[stack.patterns] = V
                lags[stack.patterns] = (
                    model.transition.matrix @ V[:, :-1] - model.transition.covariance @ C
                )
            continue
        gains = riccati(stack.seen, model)
        if covariances:
            within[stack.patterns] = gains.covariance.transpose(1, 0, 2, 3)
            lags[stack.patterns] = gains.lag.transpose(1, 0, 2, 3)
        for part in parts(stack):
            found = smooth(part, gains, model)
            means[part.rows] = found.means.transpose(1, 2, 0, 3)
            likelihood[part.rows] = found.log_likelihood
    return Smoothed(likelihood, means, within, lags, pattern)
