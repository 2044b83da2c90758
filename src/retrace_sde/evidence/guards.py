"""What looks at every result before it is believed, whatever model and whatever space it came from.

A likelihood ratio can be large for a reason that is not time: slices that close to a loop, one variable folded onto
itself, steps too unequal for equal gaps. Guards look at the states along the order found, or at the smoothed ones
where states are hidden, and take back a direction that rests on such a thing. They never give one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.evidence.direction.verdict import (
    Caution,
    DirectionTest,
    cyclic_direction,
    direction_test,
    doubtful_direction,
    folded_direction,
    known_direction,
)
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.start_law import is_point, start_log_densities
from retrace_sde.fit.unequal_steps import dispersion
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.costs import step_costs
from retrace_sde.orders.folds import Fold, lasting, may_fold, may_fold_each, on_line, turned
from retrace_sde.orders.loops import closes, cyclic_order
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.clock import Clock, Gaps
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import is_linear
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel
from retrace_sde.search.protocols import Model


@dataclass(frozen=True, eq=False)
class Guarded:
    """The direction that may be believed, cautions for the user, and whether the slices form a closed loop or a fold."""

    direction: DirectionTest
    cautions: tuple[str, ...] = ()
    cycle: bool = False
    fold: Fold | None = None


def loops(model: Model, found: Fit) -> bool:
    """The states along the order found close to a loop; not asked where something is known of time."""
    view, order = model.smoothed_view(found)
    return model.prior is None and closes(view.data, order)


def cut(model: Model, found: Found) -> Found:
    """Of a shared order that closes to a loop the shortest closed tour near it, cut at its longest step, and fitted."""
    tour = cyclic_order(model.distances(), found.better.order)
    one = model.fit(tour, found.better, final=True)
    two = model.reversed_fit(one, found.worse, final=True)
    better, worse = (one, two) if one.objective >= two.objective else (two, one)
    return replace(found, better=better, worse=worse)


def guarded(
    model: Model,
    found: Fit,
    test: DirectionTest,
    *,
    alpha: float,
    cycle: bool,
    rng: np.random.Generator | None = None,
) -> Guarded:
    """The test of a fit's direction against its reverse, after every guard has looked at it; `cycle`: it `loops`.

    `rng` is for folds of a shared order, of which some are simulated.
    """
    view, order = model.smoothed_view(found)
    test = replace(test, point_start=is_point(view.data.states(order), found.step))
    if cycle:
        return Guarded(cyclic_direction(test), cycle=True)
    if not is_linear(model.drift):
        # A stated mechanism stands for how steps go. Unequal ones come from subjects that differ, too: on
        # growing tumours the check doubted a direction that was right.
        return Guarded(test)
    fold = _folded(model, found, rng)
    if fold is not None:
        settled = test.known or not test.identified
        cautions = (Caution.FOLD,) if fold.probability else ()  # a turn that shows is not folded
        return Guarded(test if settled else folded_direction(test), cautions, fold=fold)
    n, _, d = model.data.shape
    if Order.of(order).shared and d == 1 and n < UNFOLDED and test.identified and not test.known:
        return Guarded(folded_direction(test), (Caution.FOLD,))
    # the ladder has a model with gaps for a shared order
    laddered = view is model and Order.of(order).shared
    if found.gaps.equal and not laddered:
        test = _spacing_checked(view, order, test, alpha=alpha)
    return Guarded(test)


def _folded(model: Model, found: Fit, rng: np.random.Generator | None) -> Fold | None:
    """One variable, or several that move along one line, may lie folded, by values as they were observed.

    Not by smoothed ones: what jumps between the way up and the way down is what a fit takes for noise.
    """
    n, T, d = model.data.shape
    if T <= 3:
        return None
    if not found.ordering.shared:
        return may_fold_each(model.data) if d == 1 else None
    x = None if rng is None else on_line(model.data, found.order)
    if rng is None or x is None:
        return None
    if d > 1:
        # What subjects differ by beside the line tells slices of one level apart: a turn must show, or steps jump to and fro.
        jumps = lasting(x)[0] < JUMPS
        return may_fold(x, rng, unequal=False) if jumps else turned(x)
    seen, order = model.smoothed_view(found, raw=True)
    steps = step_costs(seen.data, order, seen.fit(order).step)
    unequal = dispersion(steps, float(n)) is not None
    return may_fold(x, rng, unequal=unequal)


def from_knowledge(
    model: Model, order: Indices, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The test, or, where what is known (nearly) rules out the reverse of most orders, that instead of it."""
    if model.prior is None:
        return test
    back = model.prior_costs(model.data.reversed(order))
    odds = np.minimum(back - model.prior_costs(order), 700.0)
    reverse = np.where(np.isfinite(back), 1 / (1 + np.exp(odds)), 0.0)
    middle = float(np.median(reverse))
    return known_direction(test) if middle < alpha else test


JUMPS = -5.0
"""Correlation of successive residuals, in standard errors, below which several variables along one line may be folded."""

UNFOLDED = 8
"""Subjects of one variable that can exclude a fold: of twelve panels of six (theophylline, which rises and falls) three passed
for a steady course, and their direction was called."""

CHECKED = 200_000
"""Numbers (n T d) on which the check of a direction against unequal gaps is run."""

UNEQUAL_ROUNDS = 15
"""Alternations between θ and the variances of single steps."""


def _spacing_checked(
    model: EulerModel, order: Indices, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The direction found with equal gaps, or doubt: equal gaps that are not can be confidently wrong.

    Only where the steps are of unequal variance, and gaps estimated from the data favour the other
    direction: for independent orders gaps by position, common to all, and steps with variances of their own.
    """
    if not test.identified or test.known:
        return test
    n, T, d = model.data.shape
    size, along = max(CHECKED // (T * d), 2 * d + 20), Order.of(order)
    shared = along.shared
    few = model.some(size)
    equal = few.fit(along.take(evenly(n, size)).index)
    if shared:
        steps = step_costs(few.data, equal.order, equal.step)
        if dispersion(steps, float(few.data.shape[0] * d)) is None:
            return test
    for one, two in _unequal_accounts(few, equal, shared=shared):
        other = direction_test(one, two, dimension=d, alpha=alpha)
        if other.log_likelihood_ratio < 0:
            return doubtful_direction(test, other, shared=shared)
    return test


def _unequal_accounts(model: EulerModel, equal: Fit, *, shared: bool) -> list[tuple[Array, Array]]:
    """Log-likelihoods forwards and backwards with gaps of their own, and with variances of their own."""
    free = GapModel(model.data, model.dt, model.drift, timing=Clock(stamps=model.timing.stamps))
    both = equal.order, model.data.reversed(equal.order)
    fits = [free.fit(order) for order in both]
    # Schwarz' price of T − 1 gaps: unless the data pay it, equal gaps are the better account.
    T = model.data.shape[1]
    price = 0.5 * (T - 1) * np.log(float(model.data.lengths.steps.total))
    accounts = []
    if fits[0].log_likelihood - equal.log_likelihood > price:
        if shared:
            # smoothed states may leave too little to chance for exact gaps: those of Euler's steps then stand
            with suppress(np.linalg.LinAlgError):
                fits = [free.finished(each) for each in fits]
        accounts.append((fits[0].log_likelihoods, fits[1].log_likelihoods))
    if not shared:
        one, two = (_unequal_log_likelihoods(model, order) for order in both)
        if one is not None and two is not None:
            accounts.append((one, two))
    return accounts


def _unequal_log_likelihoods(model: EulerModel, orders: Indices) -> Array | None:
    """Joint log-likelihoods (n,) of independent orders whose steps have variances of their own; None if alike.

    θ, the spread (α, β) of the variances and each step's own, `(β + s)/(d/2 + α)`, in turn; the variances enter
    the fit as gaps, and are integrated out of the likelihood (see `unequal_steps`).
    """
    data = model.data
    d = data.shape[2]
    live = data.lengths.steps.mask
    found, total = model.fit(orders), None
    for _ in range(UNEQUAL_ROUNDS):
        W = found.step.whitening

        def of_piece(piece: Data, orders: Indices, W: Array = W, step: Euler = found.step) -> Array:
            x, u = piece.block(slice(None), orders)
            x = to_numpy(x)
            ahead = step.predict(x[:, :-1], None if u is None else to_numpy(u)[:, :-1])
            return 0.5 * (((x[:, 1:] - to_numpy(ahead)) @ W.T) ** 2).sum(axis=2)

        halves = data.each_piece(of_piece, orders)
        unequal = dispersion(halves[live], float(d))
        if unequal is None:
            return None
        first = data.states(orders)[None]
        start = start_log_densities(first, found.step, model.variances)[0]
        steps = np.where(live, unequal.log_densities(halves) + np.log(np.diag(W)).sum(), 0.0)
        total = start + steps.sum(axis=1)
        gaps = np.where(live, unequal.beta + halves, 0.0)
        gaps = np.where(live, gaps * live.sum() / gaps.sum(), 1.0) * model.dt
        found = model.fit_gaps(orders, Gaps.of(gaps, data.lengths))
    return total
