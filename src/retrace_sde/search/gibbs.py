"""Draws of orders and parameters together, where the parameters cannot be integrated out: Gibbs sampling.

Each sweep draws, one after the other,

    the states given orders and parameters (where they are hidden: a simulation smoother),
    the parameters given orders and states: normal-inverse-Wishart (`orders.collapsed.marginal`), the noise by its residuals,
    the orders given parameters and what was observed, states summed out (the chains of the model).

One order for all is moreover moved given the states, parameters integrated out: the reverse, which has other parameters, is then a
move like others.
Limits: steps of equal length and one covariance, no common shocks, subjects alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.fit.euler import Euler
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.metrics import kendall_tau
from retrace_sde.orders.collapsed.chains import REPLICAS, draw_orders
from retrace_sde.orders.collapsed.marginal import (
    Conjugate,
    OrderEvidence,
    StartPrior,
    StepPrior,
    default_priors,
    start_posterior,
    step_posterior,
)
from retrace_sde.orders.draws import Chains, Draws, Stretch
from retrace_sde.panel.blocks import evenly, in_order, to_numpy
from retrace_sde.process.sde import Gaussian
from retrace_sde.progress import report
from retrace_sde.search.collapsed import (
    PAIR_ELEMENTS,
    STUCK_NATS,
    OrderDraws,
    along,
    diagnosed_orders,
)
from retrace_sde.search.model import Fit
from retrace_sde.search.posterior import (
    SAMPLING,
    OrderPosterior,
    convergence,
    mixed,
    order_posterior,
    tidy_padding,
)
from retrace_sde.search.protocols import Model

PLUG_IN_STEPS = 5_000
"""Steps of all trajectories beyond which the parameters of single orders count as known: of an order's handful of steps they then tell more
than a hundred times as much as the order does of them."""

OWN_CHAINS, OWN_SWEEPS, OWN_BURN = 4, 50, 10
"""Chains over single orders, sweeps of each that are recorded before convergence is judged, and before any is."""

MAX_OWN_STAGES = 5
"""So many times as many sweeps are recorded where chains have not converged before."""

SWEPT_NUMBERS = 20_000
"""Numbers (n T d) up to which a shared order is drawn with its parameters: a thousand sweeps of as many take some seconds."""

SHARED_BURN, SHARED_SWEEPS = 30, (1, 3, 8)
"""Sweeps of a shared order before any is recorded, and between records, more each time that chains have not converged."""

SHARED_STAGE = 50
"""Records of each chain over a shared order after which it is asked whether there are enough."""

NOISE_OBSERVATIONS, NOISE_SHARE = 1.0, 0.01
"""The prior of a noise variance: so many observations of a variance that is this share of the variable's own."""


class Priors(NamedTuple):
    """Of the step, of the first states, and of the noise: sums of squares (d,) and their degrees of freedom."""

    step: StepPrior
    start: StartPrior
    noise: tuple[Array, Array]

    @classmethod
    def of(cls, model: Model) -> Priors:
        """Weak ones in the units of the data (`default_priors`); values that are missing count as their variable's mean."""
        x = to_numpy(model.data.values).astype(float)
        inside = model.data.lengths.mask
        x[~inside] = np.nan
        means = np.nanmean(x, axis=(0, 1))
        filled = np.where(np.isnan(x), means, x)
        phi = np.asarray(model.drift.features(filled, _covariates(model)))
        step, start = default_priors(filled[inside][None], phi[inside][None])
        variances = np.nanvar(x, axis=(0, 1))
        freedom = np.full(len(means), NOISE_OBSERVATIONS)
        return cls(step, start, (NOISE_OBSERVATIONS * NOISE_SHARE * variances, freedom))


def _covariates(model: Model) -> Any:
    u = model.data.covariates
    return None if u is None else to_numpy(u)


@dataclass(frozen=True, eq=False)
class Gibbs:
    """Sweeps of one chain of a model."""

    model: Model
    priors: Priors
    rng: np.random.Generator

    def redraw(self, orders: Indices, law: Any) -> tuple[Any, float]:
        """Parameters given orders, states drawn on the way; and the log-likelihood under the old law."""
        value, states = self.model.completed(orders, law, self.rng)
        return self._law(orders, states, *self._posteriors(orders, states)), value

    def _posteriors(self, orders: Indices, states: Array) -> tuple[Conjugate, Conjugate]:
        """Of the step and of the first states along orders, states (n, T, d) in time order."""
        model = self.model
        u = _covariates(model)
        u = None if u is None else in_order(u, orders)[:, :-1]
        phi = np.asarray(model.drift.features(states[:, :-1], u))
        live = model.data.lengths.steps.mask
        step = step_posterior(np.diff(states, axis=1)[live], phi[live], self.priors.step)
        return step, start_posterior(states[:, 0], self.priors.start)

    def _law(self, orders: Indices, states: Array, step: Conjugate, start: Conjugate) -> Any:
        """Parameters drawn from their posterior."""
        model, rng, (squares, freedom) = self.model, self.rng, self.priors.noise
        if model.states_hidden:
            residuals = to_numpy(in_order(model.data.values, orders)) - states
            squares = squares + np.nansum(residuals**2, axis=(0, 1))
            freedom = freedom + (~np.isnan(residuals)).sum(axis=(0, 1))
        theta, Q = step.draw(rng)
        mean, spread = start.draw(rng)
        euler = Euler(model.drift, theta / model.dt, Q / model.dt, model.dt)
        return model.law_of(euler, Gaussian(mean[:, 0], spread), (squares, freedom), rng)

    def shared_sweep(self, order: Indices, law: Any) -> tuple[Indices, Any, float]:
        """One sweep over an order of all, its parameters and its states."""
        model, rng = self.model, self.rng
        value, states = model.completed(order, law, rng)
        n, T, d = states.shape
        by_slice = np.empty((T, n, d))
        by_slice[order] = states.transpose(1, 0, 2)
        u = _covariates(model)
        phi = model.drift.features(by_slice, None if u is None else u.transpose(1, 0, 2))
        evidence = OrderEvidence.of(by_slice, np.asarray(phi), self.priors[:2])
        drawn = draw_orders(
            evidence, model.prior, order[None, None], rng, records=1, stretch=1, warm=True
        )
        order = drawn.orders[0, 0]
        states = by_slice[order].transpose(1, 0, 2)
        law = self._law(order, states, *self._posteriors(order, states))
        return model.shared_move(order, law, rng), law, value


def own_posterior(
    model: Model, law: Any, chains: Chains, rng: np.random.Generator, *, samples: int
) -> OrderPosterior:
    """The posterior over each trajectory's order, parameters drawn with it; in all 2 `samples` records, as of two chains.

    With many steps, or where chains over both do not converge, the parameters count as known: `order_posterior` under the law.
    """
    found = drawn_with_parameters(model, law, chains, rng, samples=samples)
    return found or plugged_in(model, law, chains, rng, samples=samples)[0]


def plugged_in(
    model: Model, law: Any, chains: Chains, rng: np.random.Generator, *, samples: int
) -> tuple[OrderPosterior, Draws]:
    """The posterior over each trajectory's order under the law, by 2 `samples` records, and the draws behind it."""
    four = chains.spread(OWN_CHAINS, rng)
    return order_posterior(model, law, four, samples=-(-2 * samples // OWN_CHAINS))


def drawn_with_parameters(
    model: Model, law: Any, chains: Chains, rng: np.random.Generator, *, samples: int
) -> OrderPosterior | None:
    """The same with parameters drawn; None where they count as known, or the chains have not converged."""
    if not model.draws_parameters or model.data.lengths.steps.total > PLUG_IN_STEPS:
        return None
    report(SAMPLING)
    n, T, _ = model.data.shape
    each = max(2 * samples // (OWN_CHAINS * OWN_SWEEPS), 1)
    sampler = Gibbs(model, Priors.of(model), rng)
    four = chains.spread(OWN_CHAINS, rng)
    each_alone = (replace(four, orders=four.orders[c : c + 1], states=four.states[c : c + 1]) for c in range(OWN_CHAINS))  # fmt: skip
    every = [_advanced(sampler, own, law, OWN_BURN) for own in each_alone]
    # At least as many moves for each draw of the parameters as while burning in.
    stretch = Stretch(each, max(4 * T - each * (T // 2), 0), 1, positions=True)
    where = np.zeros((n, T, T))
    kept = np.empty((OWN_CHAINS, n, MAX_OWN_STAGES * OWN_SWEEPS, T), dtype=np.int16)
    traces = np.empty((OWN_CHAINS, MAX_OWN_STAGES * OWN_SWEEPS, 2))
    for seen in range(OWN_SWEEPS, kept.shape[2] + 1, OWN_SWEEPS):
        for c, k in product(range(OWN_CHAINS), range(seen - OWN_SWEEPS, seen)):
            own, now = every[c]
            now, value = sampler.redraw(own.orders[0], now)
            where += model.draw(now, own, stretch).positions
            every[c] = own, now
            kept[c, :, k] = own.orders[0]
            traces[c, k] = value, kendall_tau(kept[0, :, 0].astype(np.intp), own.orders[0])
        diagnosed = convergence(traces[:, :seen])
        if mixed(*diagnosed):
            break
    else:
        return None
    P = (where / (each * seen * OWN_CHAINS)).astype(np.float32)
    kept = kept[:, :, evenly(seen, OWN_SWEEPS)]
    tidy_padding(model, P, kept)
    merged = kept.transpose(1, 0, 2, 3).reshape(n, -1, T)
    return OrderPosterior(P, merged, *diagnosed, over_parameters=True)


def _advanced(sampler: Gibbs, own: Chains, law: Any, sweeps: int) -> tuple[Chains, Any]:
    """A chain over single orders, in place, and its law after some sweeps."""
    T = own.orders.shape[-1]
    for _ in range(sweeps):
        law, _ = sampler.redraw(own.orders[0], law)
        sampler.model.draw(law, own, Stretch(1, 4 * T, 1))
    return own, law


def shared_draws(
    model: Model, found: Fit, rng: np.random.Generator, *, draws: int
) -> OrderDraws | None:
    """Shared orders drawn with their parameters and states; None where these cannot be drawn, or are too many.

    Chains start from the order found, its reverse and random orders, and stop when they know positions as well as so many independent draws.
    """
    (n, T, d), order = model.data.shape, found.order
    pairs = T * T * d * (d + found.step.coefficients.shape[1])
    if not (model.draws_parameters and model.states_hidden) or model.data.lengths.ragged:
        return None
    if T < 3 or n * T * d > SWEPT_NUMBERS or pairs > PAIR_ELEMENTS:
        return None
    report(SAMPLING)
    sampler, records = Gibbs(model, Priors.of(model), rng), max(-(-draws // REPLICAS), 4)
    starts = [order, order[::-1], *(rng.permutation(T) for _ in range(REPLICAS - 2))]
    at = [(model.repaired(np.array(each, dtype=np.intp)), found.law) for each in starts]
    at = [_swept(sampler, each, SHARED_BURN)[0] for each in at]
    for between in SHARED_SWEEPS:
        kept = np.empty((REPLICAS, records, T), dtype=np.intp)
        values = np.empty((REPLICAS, records))
        for k in range(records):
            for c in range(REPLICAS):
                at[c], values[c, k] = _swept(sampler, at[c], between)
                kept[c, k] = at[c][0]
            if (k + 1) % SHARED_STAGE and k + 1 < records:
                continue
            seen = kept[:, : k + 1]
            ahead = along(seen, order)
            diagnosed = diagnosed_orders(ahead, values[:, : k + 1])
            if mixed(*diagnosed) and position_error(ahead) <= np.sqrt(0.25 / draws):
                break
        if mixed(*diagnosed):
            break
        level = values.mean(axis=1)
        for stuck in np.flatnonzero(level < level.max() - STUCK_NATS):
            at[stuck] = at[int(np.argmax(level))]
    back = np.clip((ahead != seen).any(axis=2).mean(), 0.5 / seen[..., 0].size, None)
    odds = np.full(seen[..., 0].size, np.log(1 / back - 1) if back < 1 else -np.inf)
    return OrderDraws(ahead.reshape(-1, T)[:draws], odds[:draws], *diagnosed)


def position_error(orders: Indices) -> float:
    """Of how often each slice stands at each position in orders (chains, records, T): the largest, by the halves of the chains."""
    C, R, T = orders.shape
    halves = orders[:, : R - R % 2].reshape(2 * C, -1, T)
    where = (halves[..., None] == np.arange(T)).mean(axis=1)
    return float(np.sqrt(where.var(axis=0, ddof=1).max() / len(halves)))


def _swept(
    sampler: Gibbs, at: tuple[Indices, Any], sweeps: int
) -> tuple[tuple[Indices, Any], float]:
    """Where a chain over a shared order stands after some sweeps, and the log-likelihood there."""
    value = 0.0
    for _ in range(sweeps):
        order, law, value = sampler.shared_sweep(*at)
        at = order, law
    return at, value
