"""Maximum likelihood over orders and parameters, alternating: fit along an order, search under the fit.

Maximises `log p₀(X_{o_0}) + Σ_i log p(X_{o_{i+1}} | X_{o_i}; θ)`, and what is known of time, over the order o and θ. Where orders are uncertain,
estimates along the best one are biased (a shortest path is shorter than the true one, so H is too small): `mcem` then
averages over orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Indices
from retrace_sde.orders.paths import interleaved, strided
from retrace_sde.progress import steps
from retrace_sde.search.many_orders import objectives
from retrace_sde.search.model import Fit, Round
from retrace_sde.search.protocols import Model
from retrace_sde.search.space import Own, Pair, Space

FIRST_ROUNDS, HARDER_ROUNDS = 4, 3
"""Rounds without random perturbations for orders of single trajectories, then `max_iter` times so many with them."""

ENLARGEMENT = 8
"""Factor by which the number of trajectories grows when an order fails verification and the data are not in memory."""

MIN_INTERLEAVED, MAX_INTERLEAVED = 6, 100
"""Slices for which the search is repeated from interleaved orders."""

RIVAL_STARTS, RIVAL_NATS, MIN_TRAJECTORIES_FOR_RIVALS = 6, 10.0, 3
"""Orders from which other optima are searched, nats below the best up to which they count (e⁻¹⁰ is nothing), and trajectories needed."""

SEARCHING = "searching for the order"


@dataclass(frozen=True, eq=False)
class Found:
    """The order found with its fit and that of its reverse, the rounds, and whether the search converged."""

    better: Fit
    worse: Fit
    rounds: tuple[Round, ...]
    settled: bool


class Trail(NamedTuple):
    """The first and the last fits of an alternation, its rounds, and whether the search converged."""

    first: Pair
    pair: Pair
    rounds: tuple[Round, ...]
    settled: bool

    @property
    def order(self) -> Indices:
        return self.pair.better.order


def alternate(
    model: Model, space: Space, order: Indices, *, max_iter: int, harder: bool = False
) -> Trail:
    """Search under the fit and fit again until the order no longer changes; `harder`: the first search with random perturbations."""
    first = pair = space.fit(model, order)
    rounds: list[Round] = []
    for k in steps(range(max_iter), SEARCHING):
        rounds.append(pair.better.as_round())
        order, changed = space.improve(model, pair.better, harder=harder and k == 0)
        if changed:
            pair = space.fit(model, order, pair)
        if space.settled(changed):
            return Trail(first, pair, tuple(rounds), True)
    return Trail(first, pair, tuple(rounds), False)


def recover(model: Model, space: Space, rng: np.random.Generator, *, max_iter: int) -> Found:
    """The most likely order found, its reverse (each with its own fit), the rounds, and whether the search converged."""
    if isinstance(space, Own):
        return _recover_own(model, space, rng, max_iter=max_iter)
    return _recover_shared(model, space, rng, max_iter=max_iter)


def _recover_shared(
    model: Model, space: Space, rng: np.random.Generator, *, max_iter: int
) -> Found:
    """From every start on as few trajectories as suffice; then verified on all of them."""
    best, few = _searched(model, space, rng, max_iter=max_iter)
    found = _finished(model, best)
    if few is not None and not model.verified(found.better):
        more = model.some(ENLARGEMENT * few) if model.data.lazy else model
        found = _finished(model, alternate(more, space, best.order, max_iter=max_iter))
    return found


def _searched(
    model: Model, space: Space, rng: np.random.Generator, *, max_iter: int
) -> tuple[Trail, int | None]:
    """The best of all starts, and on how many trajectories of another model it was found; None: on these.

    That model may have as many trajectories (values imputed, gaps assumed equal). Its copy of the data is released before all are read.
    """
    few = model.for_search()
    starts = space.starts(few, rng)
    trails = [_from_start(few, space, start, max_iter) for start in steps(starts, SEARCHING)]
    worth = [few.score(each.pair.better) for each in trails] if len(trails) > 1 else [0.0]
    best = trails[int(np.argmax(worth))]
    best = _across(few, space, best, max_iter)
    return best, None if few is model else few.data.shape[0]


def _across(model: Model, space: Space, found: Trail, max_iter: int) -> Trail:
    """The search once more from the most likely order that the one found may be every second or third slice of."""
    starts = _rearranged(model, space, found.order, interleaved, 1)
    if not starts:
        return found
    trail = _from_start(model, space, starts[0], max_iter)
    return trail if trail.pair.better.objective > found.pair.better.objective else found


def _rearranged(
    model: Model, space: Space, order: Indices, ways: Callable[[Indices], list[Indices]], most: int
) -> list[Indices]:
    """The most likely of the orders made of another, each in its better direction, where a fit takes no longer than a regression."""
    if not model.closed_form or len(order) > MAX_INTERLEAVED or len(order) < MIN_INTERLEAVED:
        return []
    allowed = [each for each in ways(order) if np.isfinite(model.prior_costs(each)).all()]
    values = objectives(model, allowed)
    if values is None:
        values = np.array([space.fit(model, each).better.objective for each in allowed])
    ranked = np.argsort(-values, kind="stable")[:most]
    return [space.fit(model, allowed[k]).better.order for k in ranked]


def rivals(model: Model, space: Space, found: Fit, *, max_iter: int) -> list[Fit]:
    """Other optima than an order and its reverse that are nearly as likely: the search from orders made of it by strides.

    Each has parameters of its own. None where fits have no closed form, the search is then made once; nor of very few trajectories, to
    which parameters fit along any order.
    """
    if model.data.shape[0] < MIN_TRAJECTORIES_FOR_RIVALS:
        return []
    fits: list[Fit] = []
    for start in _rearranged(model, space, found.order, _strides, RIVAL_STARTS):
        fit = alternate(model, space, start, max_iter=max_iter).pair.better
        known = [each.order for each in (found, *fits)]
        seen = any(
            np.array_equal(fit.order, o) or np.array_equal(fit.order[::-1], o) for o in known
        )
        if not seen and fit.objective > found.objective - RIVAL_NATS:
            fits.append(fit)
    return fits


def _strides(order: Indices) -> list[Indices]:
    return [*strided(order), *interleaved(order)]


def _from_start(model: Model, space: Space, start: Indices, max_iter: int) -> Trail:
    """From one start, with equal variances of the steps, and with unequal ones where the data show them.

    Misplaced slices make steps unequal too, and unequal variances would excuse them. So both are tried; the order found with equal
    variances must be better by more than one nat per step, which unequal variances gain by chance.
    """
    equal = alternate(model, space, start, max_iter=max_iter)
    uneven = model.with_unequal_steps(equal.first.better)
    if uneven is None:
        return equal
    unequal = alternate(uneven, space, start, max_iter=max_iter)
    one, two = (model.score(each.pair.better) for each in (equal, unequal))
    if one <= two + len(start) - 1:
        return unequal
    return alternate(uneven, space, equal.order, max_iter=max_iter)


def _finished(model: Model, trail: Trail) -> Found:
    """The last fits along an order and its reverse, on all the data."""
    one = model.fit(trail.order, trail.pair.better, final=True)
    two = model.reversed_fit(one, trail.pair.worse, final=True)
    better, worse = (one, two) if one.objective >= two.objective else (two, one)
    return Found(better, worse, (*trail.rounds, better.as_round()), trail.settled)


def _recover_own(model: Model, space: Own, rng: np.random.Generator, *, max_iter: int) -> Found:
    """From every start; then the reverse, with the same effort: a shorter search alone would make it less likely."""
    best: Trail | None = None
    for start in steps(space.starts(model, rng), SEARCHING):
        first = alternate(model, space, start, max_iter=min(max_iter, FIRST_ROUNDS))
        trail = _harder(model, space, first.order, max_iter)
        trail = trail._replace(rounds=(*first.rounds, *trail.rounds))
        if best is None or trail.pair.better.objective > best.pair.better.objective:
            best = trail
    assert best is not None  # there is always a start
    one, back = best.pair.better, model.data.reversed(best.order)
    if model.one_way(one.order):
        two = model.reversed_fit(one)
    else:
        two = _harder(model, space, model.repaired(back), max_iter).pair.better
    if two.objective > one.objective and not model.one_way(one.order):
        one, two = two, one
    one, two = (model.fit(each.order, each, final=True) for each in (one, two))
    return Found(one, two, (*best.rounds, one.as_round()), best.settled)


def _harder(model: Model, space: Own, order: Indices, max_iter: int) -> Trail:
    return alternate(model, space, order, max_iter=HARDER_ROUNDS * max_iter, harder=True)
