"""Monte-Carlo EM: parameters averaged over the posterior of single orders instead of estimated along one best order.

E-step: chains over permutations, whose draws give expected sufficient statistics. M-step: the model's own. Chains
persist from round to round, rounds grow longer, and the answer is the fit to the statistics averaged over the last
half of the rounds (Polyak). The direction is decided by likelihoods marginal over the orders (bridge sampling).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.progress import enough, report
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit, Round
from retrace_sde.search.protocols import Averages

MONTE_CARLO_TOLERANCE = 0.15
"""Monte-Carlo error at which to stop, in units of the standard errors for known orders: √(1 + 0.15²) is 1 % more than none."""

MIN_ROUNDS, MAX_ROUNDS = 24, 150
"""Rounds before convergence is judged from the last half of them, and after which iteration stops."""

CONVERGED_ROUNDS = 3
"""Successive rounds in which the error must be below the tolerance: a single one may be chance."""

AVERAGING = "averaging over orders"

Progress = Callable[[int, float], None]


def _silent(k: int, gap: float) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class Run:
    """A Monte-Carlo EM: the law, the averaged statistics, the chains, and whether it converged."""

    law: Any
    sums: Any
    chains: Chains
    rounds: tuple[Round, ...]
    gap: float
    converged: bool


def run(
    model: Averages, law: Any, chains: Chains, *, rounds: int = 0, progress: Progress = _silent
) -> Run:
    """Rounds until the averaged parameters have converged, or a fixed number of `rounds`.

    They have converged when the Monte-Carlo error of their average, between the halves of the window and between chains,
    is below `MONTE_CARLO_TOLERANCE` known-order standard errors, `CONVERGED_ROUNDS` times in succession.
    """
    T, effort = model.data.shape[1], model.effort
    seen: list[Any] = []
    history: list[Round] = []
    traces: list[Array] = []
    weights: list[float] = []
    gap, good = np.inf, 0
    for k in range(rounds or MAX_ROUNDS):
        if k > 1 and enough(AVERAGING):
            break
        # The error falls with the square root of the work, so its square measures progress.
        report(
            AVERAGING,
            k / rounds if rounds else max(k / MAX_ROUNDS, (MONTE_CARLO_TOLERANCE / gap) ** 2),
        )
        draws = model.draw(law, chains, Stretch(effort.records(k), 2 * T))
        if k < effort.warm // 2:  # burn-in: the proposals learn, and then stay as they are
            chains.learn(draws)
        parts = model.expect(draws, law)
        seen.append(_mean(parts, np.ones(len(parts))))
        new = model.maximise(seen[-1], law)
        history.append(_round(model, new))
        traces.append(np.stack([_vector(model, model.maximise(each, new)) for each in parts]))
        weights.append(effort.records(k))
        law = model.extrapolate(law, new)
        if not rounds and k + 1 >= MIN_ROUNDS:
            known = model.known_order_errors(seen[-1], new)
            unit = np.append(known.drift.ravel(), known.diffusion.ravel())
            gap = monte_carlo_error(np.array(traces), np.array(weights), unit)
            good = good + 1 if gap <= MONTE_CARLO_TOLERANCE else 0
            progress(k, gap)
            if good >= CONVERGED_ROUNDS:
                break
    half = len(seen) // 2
    average = _mean(seen[half:], np.array(weights[half:]))
    return Run(
        model.maximise(average, law), average, chains, tuple(history), gap, good >= CONVERGED_ROUNDS
    )


def _mean(parts: list[Any], weights: Array) -> Any:
    share = weights / weights.sum()
    total = parts[0].scaled(float(share[0]))
    for each, weight in zip(parts[1:], share[1:], strict=True):
        total = total + each.scaled(float(weight))
    return total


def _vector(model: Averages, law: Any) -> Array:
    return np.concatenate([each.ravel() for each in model.parameters(law)])


def _round(model: Averages, law: Any) -> Round:
    return Round(np.empty((0, 0), dtype=np.intp), *model.parameters(law), float("nan"))


def monte_carlo_error(traces: Array, weights: Array, unit: Array) -> float:
    """Of the average over the last half of traces (rounds, chains, numbers), in units of each number's own.

    The error of a mean from B batches is `sd / √B`; batches are the halves of the window, which differ while EM still
    drifts, and the chains, which differ where a slow mode outlasts the window. The larger counts, as root mean
    square over the numbers.
    """
    half = len(traces) // 2
    window, w = traces[half:], weights[half:]
    middle = len(window) // 2
    pooled = window.mean(axis=1)
    halves = [
        np.average(pooled[at], axis=0, weights=w[at]) for at in (slice(middle), slice(middle, None))
    ]
    chains = np.average(window, axis=0, weights=w)
    errors = [
        np.sqrt(np.mean(np.var(batches, axis=0, ddof=1) / len(batches) / unit**2))
        for batches in (np.stack(halves), chains)
    ]
    return float(max(errors))


@dataclass(frozen=True, eq=False)
class Averaged:
    """The chosen direction run to convergence, its reverse, and each trajectory's log-ratio between them.

    No reverse where the prior rules it out.
    """

    run: Run
    twin: Run | None
    log_ratios: Array


def average(
    model: Averages,
    begin: Fit,
    rng: np.random.Generator,
    *,
    searched: Found | None = None,
    progress: Progress = _silent,
) -> Averaged:
    """Monte-Carlo EM from best orders, in the direction favoured by likelihoods marginal over the orders.

    Both directions get the same short run; the bridge between them decides; the more likely one continues. Where the reversed drift is
    not of its class no bridge exists: the fits `searched`, the better and the worse, then decide.
    """
    warm = model.effort.warm
    law, chains = model.begin(begin), Chains.start(begin.order, rng)
    if model.one_way(begin.order):
        alone = run(model, law, chains, progress=progress)
        return Averaged(alone, None, np.zeros(model.data.shape[0]))
    if searched is not None:
        rival = Chains.start(searched.worse.order, rng)
        two = run(model, model.begin(searched.worse), rival, rounds=warm)
        ratios = searched.better.log_likelihoods - searched.worse.log_likelihoods
        return Averaged(run(model, law, chains, progress=progress), two, ratios)
    one, two, ratios = both_ways(model, law, chains, rounds=warm)
    if ratios.sum() < 0:
        one, two, ratios = two, one, -ratios
    return Averaged(run(model, one.law, one.chains, progress=progress), two, ratios)


def both_ways(
    model: Averages, law: Any, chains: Chains, *, rounds: int, bridges: int = 0
) -> tuple[Run, Run, Array]:
    """Short runs from a law and chains, and from their reverse; each trajectory's log-ratio between them.

    `bridges`: orders per chain that the ratio rests on, where they are not the model's own number.
    """
    one = run(model, law, chains, rounds=rounds)
    back = one.chains.turned(lambda orders: model.repaired(model.data.reversed(orders)))
    two = run(model, model.mirrored(one.sums, back), back, rounds=rounds)
    return one, two, bridge(model, one, two, bridges=bridges)


def bridge(
    model: Averages, one: Run, two: Run, *, bridges: int = 0, opposite: bool = True
) -> Array:
    """`log p(X_j; one) − log p(X_j; two)`, marginal over the orders, with their prior.

    Reversal is a bijection of orders, so `p(X; two)/p(X; one) = E[p(X_rev o; two)/p(X_o; one)]` over o drawn
    under one, and vice versa; both sides together give Bennett's ratio. Orders that the prior does not allow to be
    reversed are not reversed. `bridges`: orders drawn per chain, where they are not the model's own number. `opposite`: False where
    both laws run the same way, and orders are compared as they are.
    """
    model, effort = model.some(model.effort.bridged), model.effort
    n, T, _ = model.data.shape
    prior = model.prior
    turn = np.ones(n, dtype=bool) if prior is None else prior.symmetric(model.data.observed)
    turn = turn & opposite

    def log_ratio(order: Indices, crossed: Indices | None, here: Any, there: Any) -> Array:
        """Of one draw; `crossed`: the classes of gaps drawn with the order, where gaps are drawn."""
        back, crossed_back = np.where(turn[:, None], model.data.reversed(order), order), None
        if crossed is not None:
            turned = model.data.lengths.steps.reversed(crossed)
            crossed_back = np.where(turn[:, None], turned, crossed)
        known = model.prior_costs(order) - model.prior_costs(back)
        ahead = model.log_joint(order, here, crossed)
        return model.log_joint(back, there, crossed_back) - ahead + known

    def log_ratios(here: Run, there: Run) -> Array:
        chains = here.chains.some(effort.bridged)
        keep = bridges or effort.bridges
        stretch = Stretch(4 * keep, 2 * T, keep)
        draws = model.draw(here.law, chains, stretch)
        each = zip(draws.orders(), draws.crossed(), strict=True)
        return np.array([log_ratio(*drawn, here.law, there.law) for drawn in each])

    return -bennett(log_ratios(one, two), log_ratios(two, one))


def bennett(ahead: Array, back: Array) -> Array:
    """`r = log Z₂/Z₁` (n,) from log-ratios (draws, n): `log p₂ − log p₁` of draws from 1, and the reverse of those from 2.

    `Σ₁ σ(ahead − r) = Σ₂ σ(back + r)` (Bennett 1976), with equally many draws: it has the smallest variance, and
    not the bias of the mean of two one-sided estimates. By bisection: the left side decreases in r, the right one increases.
    """
    low = np.minimum(ahead.min(axis=0), (-back).min(axis=0)) - 50.0
    high = np.maximum(ahead.max(axis=0), (-back).max(axis=0)) + 50.0
    for _ in range(80):
        r = (low + high) / 2
        above = expit(ahead - r).sum(axis=0) > expit(back + r).sum(axis=0)
        low, high = np.where(above, r, low), np.where(above, high, r)
    return (low + high) / 2
