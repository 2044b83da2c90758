"""The posterior over orders of noisy or incomplete observations, under fixed parameters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retrace_sde.data.blocks import Array, Order, evenly
from retrace_sde.engine.independent import random_states
from retrace_sde.engine.noisy import NoisyProblem
from retrace_sde.engine.noisy_independent import CHAINS
from retrace_sde.engine.noisy_orders import draw
from retrace_sde.engine.noisy_shared import PairMoments, arrangement
from retrace_sde.engine.posterior import KEPT, OrderPosterior, convergence
from retrace_sde.estimate.kalman.smoother import StateSpace, kalman
from retrace_sde.metrics import kendall_tau

POSTERIOR_SAMPLES = 300

DIAGNOSED = 200
"""Trajectories that the diagnostics look at."""


def posterior_of(
    problem: NoisyProblem,
    model: StateSpace,
    orders: Order,
    states: NDArray[np.uint64],
    *,
    samples: int = POSTERIOR_SAMPLES,
) -> OrderPosterior:
    """The posterior over each trajectory's order under fixed parameters, from chains (C, n, T)."""
    C, n, T = orders.shape
    kept = draw(problem, model, orders, states, burn=20 * T, samples=samples, thin=max(T // 2, 5))
    counts = np.zeros((n, T, T), dtype=np.float32)
    at = np.arange(T)
    for each in kept.transpose(0, 2, 1, 3).reshape(C * samples, n, T):
        counts[np.arange(n)[:, None], each, at] += 1
    thinned = kept[:, :, :: max(1, samples // KEPT)][:, :, :KEPT]
    return OrderPosterior(
        counts / np.float32(C * samples),
        thinned.transpose(1, 0, 2, 3).reshape(n, -1, T),
        *_mixing(problem, model, thinned),
    )


def _mixing(
    problem: NoisyProblem, model: StateSpace, kept: NDArray[np.int16]
) -> tuple[float, float]:
    """R-hat and effective size of the log-likelihood of each draw, and of its τ with the first."""
    C, n, R, _ = kept.shape
    rows = evenly(n, DIAGNOSED)
    few = problem.some(DIAGNOSED)
    first = kept[0, rows, 0].astype(np.intp)
    traces = np.empty((C, R, 2))
    for c in range(C):
        for r in range(R):
            order = kept[c, rows, r].astype(np.intp)
            traces[c, r, 0] = kalman(few.along(order), model).log_likelihood.sum()
            traces[c, r, 1] = kendall_tau(first, order)
    return convergence(traces)


def sample_noisy(
    problem: NoisyProblem,
    model: StateSpace,
    order: Order,
    rng: np.random.Generator,
    *,
    samples: int,
    chains: int = 4,
) -> OrderPosterior:
    """The posterior over orders under fixed parameters, for either kind of permutation."""
    if order.ndim == 2:
        states = random_states(rng, CHAINS * len(order)).reshape(CHAINS, -1)
        begin = np.tile(order, (CHAINS, 1, 1))
        return posterior_of(problem, model, begin, states, samples=samples)
    T = len(order)
    tables = arrangement(PairMoments.of(problem.values), model, problem.prior)
    states = random_states(rng, chains)
    kept = np.stack(
        [
            tables.sample(order, states[c : c + 1], burn=50 * T, samples=samples, thin=T)
            for c in range(chains)
        ]
    )
    counts = np.zeros((T, T), dtype=np.float32)
    for each in kept.reshape(-1, T):
        counts[each, np.arange(T)] += 1
    thinned = kept[:, :: max(1, samples // KEPT)][:, :KEPT]
    costs: Array = np.array([[tables.cost(o.astype(np.intp)) for o in chain] for chain in thinned])
    r_hat, size = convergence(costs[:, :, None])
    probabilities = counts / np.float32(chains * samples)
    return OrderPosterior(probabilities, thinned.reshape(-1, T), r_hat, size)
