"""Metropolis over the orders of one variable measured with error, by the likelihood of the innovations.

With `y = x + ε`, `x' = f(x) + w` the residuals `r = y_b − f(y_a)` of neighbours are correlated (each ε is in two of
them), and a chain of first order misjudges orders as soon as the error rivals the noise. Kalman's innovations
`e_{t+1} = r_{t+1} + c_t e_t` are independent, N(0, S_t), up to the curvature of f over one error: the cost of an
order is `Σ ½ e_t²/S_t`, with c_t and S_t known beforehand. O(T) for each proposal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from retrace_sde.io.arrays import Array, Indices, State
from retrace_sde.orders.search import Steps, exchange, random_unit, reverse


class Innovations(NamedTuple):
    """c_t and S_t of the step from position t to t + 1, (T − 1,)."""

    c: Array
    S: Array


def innovation_gains(T: int, noise: float, error: float) -> Innovations:
    """c_t and S_t of the step from position t to t + 1, for the variances of noise and of error.

    f' is taken as 1: its difference, the drift's slope times Δt, is of no account beside the gain. The first
    state is known by its own observation alone.
    """
    c, S = np.zeros(T - 1), np.empty(T - 1)
    P = error  # variance of the state given the observations so far
    for t in range(T - 1):
        S[t] = P + noise + error
        gain = (P + noise) / S[t]
        P = (1 - gain) * (P + noise)
        if t + 1 < T - 1:
            c[t + 1] = 1 - gain
    return Innovations(c, S)


@njit(cache=True, nogil=True)
def sample_noisy_block(
    steps: Steps,
    innovations: Innovations,
    lengths: Indices,
    orders: Indices,
    states: State,
    burn: int,
    thin: int,
    reach: int,
    kept: Indices,
) -> None:  # pragma: no cover - compiled
    """Advance each trajectory's order in place and keep `kept.shape[1]` of them, `thin` proposals apart.

    States and predictions are of one variable, (n, T). Proposals: reverse a segment, or exchange two
    neighbouring ones, of up to `reach` positions; symmetric.
    """
    for j in range(len(orders)):
        t = lengths[j]
        mine = Steps(steps.target[j], steps.source[j], steps.start[j])
        _sample(
            mine, innovations, orders[j, :t], states[j : j + 1], burn, thin, reach, kept[j, :, :t]
        )


@njit(cache=True, nogil=True)
def _sample(
    steps: Steps,
    innovations: Innovations,
    order: Indices,
    state: State,
    burn: int,
    thin: int,
    reach: int,
    kept: Indices,
) -> None:  # pragma: no cover - compiled
    """Of one trajectory."""
    y, f, start = steps.target, steps.source, steps.start
    c, weight = innovations.c, 0.5 / innovations.S
    T = len(order)
    path = order.copy()
    trial = path.copy()
    e, g = np.zeros(T), np.zeros(T)  # innovations of the path and of the proposal
    for t in range(1, T):
        e[t] = y[path[t]] - f[path[t - 1]] + c[t - 1] * e[t - 1]
    for k in range(burn + len(kept) * thin):
        length = 2 + int(random_unit(state) * (min(reach, T) - 1))
        i = int(random_unit(state) * (T - length + 1))
        if random_unit(state) < 0.5:
            reverse(trial, i, i + length - 1)
        else:
            exchange(trial, i, i + 1 + int(random_unit(state) * (length - 1)), i + length)
        change = start[trial[0]] - start[path[0]]
        last = T
        if i > 0:
            g[i - 1] = e[i - 1]
        for t in range(max(i, 1), T):
            g[t] = y[trial[t]] - f[trial[t - 1]] + c[t - 1] * g[t - 1]
            change += weight[t - 1] * (g[t] * g[t] - e[t] * e[t])
            if t > i + length and abs(g[t] - e[t]) < 1e-9:
                last = t + 1
                break
        if change < 60.0 and (change <= 0.0 or random_unit(state) < np.exp(-change)):
            for t in range(i, i + length):
                path[t] = trial[t]
            for t in range(max(i, 1), last):
                e[t] = g[t]
        else:
            for t in range(i, i + length):
                trial[t] = path[t]
        if k >= burn and (k - burn) % thin == thin - 1:
            kept[(k - burn) // thin] = path
    order[:] = path
