"""Monte-Carlo EM: parameters averaged over the posterior of single orders instead of estimated along one best order.

E-step: chains over permutations, whose draws give expected sufficient statistics. M-step: the model's own. Chains
persist from round to round, rounds grow longer, and the answer is the fit to the statistics averaged over the last
half of the rounds (Polyak). The direction is decided by likelihoods marginal over the orders (bridge sampling).

Standard errors include the uncertainty of the orders (Louis 1982). Observed information: that of known orders less the posterior variance of its score,
`I = I_known − Σ_j Var(s_j | data)`. Products of posterior means are taken across two halves of independent chains, so that the
chains' autocorrelation does not bias them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from retrace_sde.fit.regression import StandardErrors
from retrace_sde.fit.scores import errors_of_scores
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.draws import Chains, Draws, Stretch, random_states
from retrace_sde.progress import enough, report
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit, Round
from retrace_sde.search.protocols import Model, Scoring

MONTE_CARLO_TOLERANCE = 0.15
"""Monte-Carlo error at which to stop, in units of the standard errors for known orders: √(1 + 0.15²) is 1 % more than none."""

MIN_EM_ROUNDS, MAX_EM_ROUNDS = 24, 150
"""Rounds before convergence is judged from the last half of them, and after which iteration stops."""

CONVERGED_ROUNDS = 3
"""Successive rounds in which the error must be below the tolerance: a single one may be chance."""

MANY_TRAJECTORIES = 4
"""Times the trajectories that the ratio between the directions rests on from which these bring the parameters near, before all are averaged over.
With fewer than three times as many there is nothing to gain."""

SETTLING = 5
"""Rounds' records that chains of all of these trajectories run before they count: from best orders, under parameters that are right, estimates have
lost their bias (a tenth of A) after 200 records."""

AVERAGING = "averaging over orders"

Progress = Callable[[int, float], None]


def _silent(k: int, gap: float) -> None:
    """Report nothing."""


class Trail(NamedTuple):
    """The rounds of a run: pooled statistics, what the history shows, each chain's parameters, and records."""

    sums: tuple[Any, ...]
    rounds: tuple[Round, ...]
    traces: tuple[Array, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Run:
    """A Monte-Carlo EM: the law, the averaged statistics, the chains, whether it converged, and its rounds."""

    law: Any
    sums: Any
    chains: Chains
    trail: Trail
    gap: float
    converged: bool

    @property
    def rounds(self) -> tuple[Round, ...]:
        """What the history shows."""
        return self.trail.rounds


def run(
    model: Model,
    law: Any,
    chains: Chains,
    *,
    rounds: int = 0,
    least: int = MIN_EM_ROUNDS,
    unit: Array | None = None,
    before: Trail | None = None,
    progress: Progress = _silent,
) -> Run:
    """Rounds until the averaged parameters have converged, `least` of them, or a fixed number of `rounds`; those of a run `before` are gone on from.

    They have converged when the Monte-Carlo error of their average, between the halves of the window and between chains,
    is below `MONTE_CARLO_TOLERANCE` standard errors (`unit`; else those that known orders would leave), `CONVERGED_ROUNDS` times in succession.
    """
    T, effort = model.data.shape[1], model.effort
    trail = before or Trail((), (), (), ())
    seen, history = list(trail.sums), list(trail.rounds)
    traces, weights = list(trail.traces), list(trail.weights)
    gap, good = np.inf, 0
    for k in range(len(seen), rounds or MAX_EM_ROUNDS):
        if k > 1 and enough(AVERAGING):
            break
        # The error falls with the square root of the work, so its square measures progress.
        report(
            AVERAGING,
            k / rounds if rounds else max(k / MAX_EM_ROUNDS, (MONTE_CARLO_TOLERANCE / gap) ** 2),
        )
        draws = model.draw(law, chains, Stretch(effort.records(k), 2 * T, expected=True))
        if k < effort.warm // 2:  # burn-in: the proposals learn, and then stay as they are
            chains.learn(draws)
        parts = model.expect(draws, law)
        seen.append(_mean(parts, np.ones(len(parts))))
        new = model.maximise(seen[-1], law)
        history.append(_round(model, new))
        traces.append(np.stack([_vector(model, model.maximise(each, new)) for each in parts]))
        weights.append(effort.records(k))
        law = model.extrapolate(law, new)
        if not rounds and k + 1 >= least:
            known = unit
            if known is None:
                known = _flat(model.known_order_errors(seen[-1], new))
            gap = monte_carlo_error(np.array(traces), np.array(weights), known)
            good = good + 1 if gap <= MONTE_CARLO_TOLERANCE else 0
            progress(k, gap)
            if good >= CONVERGED_ROUNDS:
                break
    half = len(seen) // 2
    average = _mean(seen[half:], np.array(weights[half:]))
    trail = Trail(tuple(seen), tuple(history), tuple(traces), tuple(weights))
    law, converged = model.maximise(average, law), good >= CONVERGED_ROUNDS
    return Run(law, average, chains, trail, gap, converged)


def _mean(parts: list[Any], weights: Array) -> Any:
    share = weights / weights.sum()
    total = parts[0].scaled(float(share[0]))
    for each, weight in zip(parts[1:], share[1:], strict=True):
        total = total + each.scaled(float(weight))
    return total


def _flat(errors: StandardErrors) -> Array:
    return np.append(errors.drift.ravel(), errors.diffusion.ravel())


def _vector(model: Model, law: Any) -> Array:
    return np.concatenate([each.ravel() for each in model.parameters(law)])


def _round(model: Model, law: Any) -> Round:
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
    model: Model,
    begin: Fit,
    rng: np.random.Generator,
    *,
    searched: Found | None = None,
    progress: Progress = _silent,
) -> Averaged:
    """Monte-Carlo EM from best orders, in the direction favoured by likelihoods marginal over the orders.

    Both directions get the same short run; the bridge between them decides; the more likely one continues. Of many trajectories some are enough for
    this, and to bring the parameters near. Where the reversed drift is not of its class no bridge exists: the fits `searched`, the better and the worse, then decide.
    """
    warm, bridged = model.effort.warm, model.effort.bridged
    law, chains = model.begin(begin), Chains.start(begin.order, rng)
    if model.one_way(begin.order):
        alone = run(model, law, chains, progress=progress)
        return Averaged(alone, None, np.zeros(model.data.shape[0]))
    if searched is not None:
        rival = Chains.start(searched.worse.order, rng)
        two = run(model, model.begin(searched.worse), rival, rounds=warm)
        ratios = searched.better.log_likelihoods - searched.worse.log_likelihoods
        return Averaged(run(model, law, chains, progress=progress), two, ratios)
    few = model if model.data.shape[0] < MANY_TRAJECTORIES * bridged else model.some(bridged)
    one, two, ratios = both_ways(few, law, chains.some(few.data.shape[0]), rounds=warm)
    if ratios.sum() < 0:
        one, two, ratios = two, one, -ratios
    # The rounds so far are the first of the run; the average leaves out the first half of all.
    whole = run(few, one.law, one.chains, before=one.trail, progress=progress)
    if few is not model:
        whole, two = _on_all(model, begin.order, (few, whole, two), rng, progress)
    return Averaged(whole, two, ratios)


def _on_all(
    model: Model,
    orders: Indices,
    found: tuple[Model, Run, Run],
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Run, Run]:
    """Runs on some trajectories gone on from on all of them: parameters are near, so that half as many rounds may do.

    20,000 trajectories (T = 10, d = 3, orders very uncertain) take 25 s; all of them from the beginning, with chains from first guesses, took 78 in 68 rounds.
    """
    (few, near, back), effort, (n, T, _) = found, model.effort, model.data.shape
    unit = _flat(_errors(few, near, rng)) * np.sqrt(few.data.shape[0] / n)
    # Chains hardly leave an order that is wrong from end to end, and a few of them lead the parameters astray for long.
    orders = model.own_orders(near.law).improve(orders, random_states(rng, n), cold=True)[0]
    learned = near.chains
    begin = replace(Chains.start(orders, rng), shares=learned.shares, scales=learned.scales)
    model.draw(near.law, begin, Stretch(SETTLING * effort.first, 2 * T))
    whole = run(model, near.law, begin, least=effort.warm, unit=unit, progress=progress)
    turned = whole.chains.turned(lambda orders: model.repaired(model.data.reversed(orders)))
    return whole, run(model, back.law, turned, rounds=effort.warm // 4)


def _errors(model: Model, found: Run, rng: np.random.Generator) -> StandardErrors:
    """Standard errors at the end of a run, by draws from its chains."""
    keep = model.effort.louis
    draws = model.draw(found.law, found.chains, Stretch(4 * keep, 2 * model.data.shape[1], keep))
    return louis_errors(model, model, found.law, found.sums, draws, rng)[0]


def both_ways(
    model: Model, law: Any, chains: Chains, *, rounds: int, bridges: int = 0
) -> tuple[Run, Run, Array]:
    """Short runs from a law and chains, and from their reverse; each trajectory's log-ratio between them.

    `bridges`: orders per chain that the ratio rests on, where they are not the model's own number.
    """
    one = run(model, law, chains, rounds=rounds)
    two = backwards(model, one, rounds=rounds)
    return one, two, bridge(model, one, two, bridges=bridges)


def backwards(model: Model, one: Run, *, rounds: int) -> Run:
    """A short run from the reverse of another."""
    back = one.chains.turned(lambda orders: model.repaired(model.data.reversed(orders)))
    return run(model, model.mirrored(one.sums, back), back, rounds=rounds)


def bridge(model: Model, one: Run, two: Run, *, bridges: int = 0, opposite: bool = True) -> Array:
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


MAX_LOUIS_PARAMETERS = 500
"""Number of parameters beyond which Louis' information matrix is not computed."""

FLOOR_IN_ERRORS = 3.0
"""Monte-Carlo errors by which the remaining information must exceed zero."""


def louis_errors(
    model: Model,
    few: Model,
    law: Any,
    sums: Any,
    draws: Draws,
    rng: np.random.Generator,
) -> tuple[StandardErrors, str | None]:
    """Standard errors that include the uncertainty of the orders, and a note if they do not.

    `draws` are orders of the trajectories of `few`, a sample of those of `model`.
    """
    scoring = model.scoring(law, sums)
    d = model.data.shape[2]
    if scoring.size > MAX_LOUIS_PARAMETERS:
        return model.known_order_errors(sums, law, shown=True), (
            f"Standard errors assume known orders: with {d} variables the uncertainty of the orders is "
            "not computed."
        )
    covariance, meat, floored = louis_covariance(model, few, law, sums, draws, rng)
    if floored:
        note = (
            "Some combination of parameters is weakly identified when orders are unknown (its information is not "
            "significantly above zero): standard errors there are lower bounds."
        )
        return scoring.errors(covariance), note
    return errors_of_scores(scoring.errors, covariance, meat, model.data), None


def louis_covariance(
    model: Model, few: Model, law: Any, sums: Any, draws: Draws, rng: np.random.Generator
) -> tuple[Array, Array, bool]:
    """The inverse of Louis' information, `Σ_j E[s_j] E[s_j]ᵀ` of all trajectories (or groups), and whether a floor mattered."""
    complete = model.scoring(law, sums).information(rng)
    square, means = _squares(few.scoring(law, sums), draws)
    share = model.data.shape[0] / few.data.shape[0]
    lost = (square - _crossed(*means)) * share
    covariance, floored = floored_inverse(complete - lost, complete, _floor(draws.kept))
    meat = _crossed(*(few.data.by_group(each) for each in means)) * share
    return covariance, meat, floored


def _squares(scoring: Scoring, draws: Draws) -> tuple[Array, list[Array]]:
    """`Σ_j E[s_j s_jᵀ]`, and `E[s_j]` (n, size) of either half of the chains, of which there are an even number."""
    C, m, R, _ = draws.kept.shape
    means, square = [np.zeros((m, scoring.size)) for _ in range(2)], 0.0
    for k, (order, gaps) in enumerate(zip(draws.orders(), draws.crossed(), strict=True)):
        each = scoring.of(order, gaps)
        square = square + each.T @ each / (C * R)
        means[k // R % 2] += 2 * each / (C * R)
    return np.asarray(square), means


def _crossed(one: Array, two: Array) -> Array:
    """`Σ_j E[s_j] E[s_j]ᵀ` across two halves of the chains."""
    product = one.T @ two
    return 0.5 * (product + product.T)


def floored_inverse(information: Array, complete: Array, floor: float) -> tuple[Array, bool]:
    """The inverse, with the share of the complete information at least `floor` in every direction; and whether
    that mattered.

    `I = L V diag(λ) Vᵀ Lᵀ` with `complete = L Lᵀ`: λ are the shares that are left where the orders are not known.
    """
    unit = np.sqrt(np.diag(complete))
    L = np.linalg.cholesky(complete / np.outer(unit, unit))
    half = np.linalg.inv(L) / unit
    shares, V = np.linalg.eigh(half @ information @ half.T)
    root = half.T @ V / np.sqrt(np.maximum(shares, floor))
    return root @ root.T, bool(shares[0] < floor)


def _floor(kept: NDArray[np.int16]) -> float:
    """Shares below this are not significantly above zero.

    The posterior variance of a score from K draws, summed over m trajectories, has a relative error of about
    √(2/(K m)); what is left of the information is one less its share.
    """
    C, m, R, _ = kept.shape
    return min(FLOOR_IN_ERRORS * float(np.sqrt(2 / (C * R * m))), 0.5)
