"""Guards: what may take back a direction before it is returned, whatever model and kind of order it came from.

A likelihood ratio can be large for a reason that is not time: slices that close to a loop, one variable folded onto itself, steps
too unequal for equal gaps. A guard looks at the states along the order found, or at the smoothed ones where states are hidden,
and withdraws a direction that rests on such a thing. Guards never call one.

A guard is a function of a `GuardedCase` that returns a `GuardFinding`, or None. To add one: a function, and a line in `GUARDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.evidence.direction.components import judged_variables
from retrace_sde.evidence.direction.verdict import (
    Caution,
    DirectionTest,
    Reason,
    direction_test,
    doubtful_direction,
    known_direction,
    left_open,
)
from retrace_sde.evidence.tied_cells import doubtful_cells
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
from retrace_sde.search.models.estimated_gaps import GapModel
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.protocols import Model


@dataclass(frozen=True, eq=False)
class GuardedCase:
    """What a guard looks at: a model and its fit, the test of its direction as guards before it left that, and the level.

    `view` and `order`: the states as they are, or smoothed where they are hidden, and their order. `cycle`: the order closes to a
    loop. `rng` is for folds of a shared order, of which some are simulated. `order_known`: an order that was given is not folded.
    """

    model: Model
    found: Fit
    test: DirectionTest
    view: Any
    order: Indices
    alpha: float
    cycle: bool
    rng: np.random.Generator | None = None
    order_known: bool = False

    @property
    def called(self) -> bool:
        """A direction was called, by the data."""
        return self.test.identified and not self.test.known

    @property
    def mechanism(self) -> bool:
        """The drift is a stated mechanism: how steps go is not in question.

        Unequal steps come from subjects that differ, too: on growing tumours guards withdrew a direction that was right.
        """
        return not is_linear(self.model.drift)


@dataclass(frozen=True, eq=False)
class GuardFinding:
    """The direction that is left, cautions for the user, and whether the slices form a closed loop or a fold."""

    direction: DirectionTest
    cautions: tuple[str, ...] = ()
    cycle: bool = False
    fold: Fold | None = None


def loops(model: Model, found: Fit) -> bool:
    """The states along the order found close to a loop; not asked where something is known of time."""
    view, order = model.smoothed_view(found)
    return model.prior is None and closes(_with_mean_path(view, view.data), order)


def _with_mean_path(model: Model, data: Data) -> Data:
    """The data as they were: where they are deviations from slices' means, a loop or a fold may be in the means."""
    path = getattr(model, "mean_path", None)
    return data if path is None else replace(data, values=to_numpy(data.values) + path.means)


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
    order_known: bool = False,
) -> GuardFinding:
    """The test of a fit's direction after every guard has looked at it, one after the other; `cycle`: it `loops`."""
    view, order = model.smoothed_view(found)
    test = replace(test, point_start=is_point(view.data.states(order), found.step))
    case = GuardedCase(model, found, test, view, order, alpha, cycle, rng, order_known)
    result = GuardFinding(test)
    for guard in GUARDS:
        finding = guard(case)
        if finding is None:
            continue
        case = replace(case, test=finding.direction)
        result = GuardFinding(
            finding.direction,
            (*result.cautions, *finding.cautions),
            result.cycle or finding.cycle,
            result.fold if finding.fold is None else finding.fold,
        )
    return result


def closed_loop(case: GuardedCase) -> GuardFinding | None:
    """A closed loop has no first slice, and so no direction."""
    return GuardFinding(left_open(case.test, Reason.CYCLE), cycle=True) if case.cycle else None


def folded_path(case: GuardedCase) -> GuardFinding | None:
    """One variable, or several along one line, may lie folded onto itself."""
    if case.cycle or case.mechanism or case.order_known:
        return None
    fold = _folded(case.model, case.found, case.rng)
    if fold is None:
        return None
    cautions = (Caution.FOLD,) if fold.probability else ()  # a turn that shows is not folded
    test = left_open(case.test, Reason.FOLD) if case.called else case.test
    return GuardFinding(test, cautions, fold=fold)


def too_few_to_exclude_a_fold(case: GuardedCase) -> GuardFinding | None:
    """One variable of a few subjects, whose order may be folded without a sign of it."""
    n, _, d = case.model.data.shape
    few = Order.of(case.order).shared and d == 1 and n < MIN_SUBJECTS_TO_EXCLUDE_FOLD
    if not few or not case.called or case.mechanism or case.order_known:
        return None
    return GuardFinding(left_open(case.test, Reason.FOLD), (Caution.FOLD,))


def unequal_gaps(case: GuardedCase) -> GuardFinding | None:
    """Steps too unequal for equal gaps, where gaps estimated from the data favour the other direction."""
    # For a shared order of observed states the candidates have a model with gaps.
    compared = case.view is case.model and Order.of(case.order).shared
    if not case.found.gaps.equal or compared or not case.called or case.mechanism:
        return None
    test = _spacing_checked(case.view, case.order, case.test, alpha=case.alpha)
    return None if test is case.test else GuardFinding(test)


def equal_cells(case: GuardedCase) -> GuardFinding | None:
    """Values carried forward, or a detection limit that a changing share of the values reaches."""
    if not case.called or case.model.data.viewed:
        return None
    data = case.model.data
    x = np.where(data.lengths.mask[:, :, None], to_numpy(data.values), np.nan)
    if case.test.components:  # others were not asked
        x = x[:, :, judged_variables(x)]
    if not doubtful_cells(x, case.order):
        return None
    return GuardFinding(left_open(case.test, Reason.EQUAL_CELLS))


GUARDS: list[Callable[[GuardedCase], GuardFinding | None]] = [
    closed_loop,
    folded_path,
    too_few_to_exclude_a_fold,
    unequal_gaps,
    equal_cells,
]
"""Every guard, in the order in which they look.

A new one is a function above, a line here, and in `direction/verdict` a `Reason` with its sentence in `_SENTENCES`; it returns `left_open(case.test, …)`. What it warns of is
a plain string in `GuardFinding.cautions`, a `Caution` only where other code asks for it by name.
"""


def _folded(model: Model, found: Fit, rng: np.random.Generator | None) -> Fold | None:
    """One variable, or several that move along one line, may lie folded; by observed values.

    Not by smoothed ones: a fit takes jumps between the way up and the way down for noise.
    """
    n, T, d = model.data.shape
    if T <= 3:
        return None
    if not found.ordering.shared:
        return may_fold_each(model.data) if d == 1 else None
    x = None if rng is None else on_line(_with_mean_path(model, model.data), found.order)
    if rng is None or x is None:
        return None
    if d > 1:
        # Differences between subjects beside the line tell slices of one level apart: a turn must show, or steps alternate.
        jumps = lasting(x)[0] < FOLD_CORRELATION_Z
        return may_fold(x, rng, unequal=False) if jumps else turned(x)
    seen, order = model.smoothed_view(found, raw=True)
    steps = step_costs(seen.data, order, seen.fit(order).step)
    unequal = dispersion(steps, float(n)) is not None
    return may_fold(x, rng, unequal=unequal)


KNOWN_SHARE = 0.2
"""Share of trajectories of known direction that settles the one of all: time runs the same way in every trajectory, and the parameters,
which are fitted to all of them, follow those that are known."""


def from_knowledge(
    model: Model, order: Indices, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The test, or, where what is known (nearly) rules out the reverse of enough orders, that instead of it."""
    if model.prior is None:
        return test
    back = model.prior_costs(model.data.reversed(order))
    odds = np.minimum(back - model.prior_costs(order), 700.0)
    reverse = np.where(np.isfinite(back), 1 / (1 + np.exp(odds)), 0.0)
    ruled_out = reverse < alpha
    if ruled_out.mean() < KNOWN_SHARE:
        return test
    return known_direction(test, float(np.median(odds[ruled_out])))


FOLD_CORRELATION_Z = -5.0
"""Correlation of successive residuals, in standard errors, below which several variables along one line may be folded."""

MIN_SUBJECTS_TO_EXCLUDE_FOLD = 8
"""Subjects of one variable that can exclude a fold: of twelve panels of six (theophylline, which rises and falls) three passed
for a steady course, and their direction was called."""

GAPS_SAMPLE = 200_000
"""Numbers (n T d) on which a direction is checked against unequal gaps."""

VARIANCE_ROUNDS = 15
"""Alternations between θ and the variances of single steps."""


def _spacing_checked(
    model: EulerModel, order: Indices, test: DirectionTest, *, alpha: float
) -> DirectionTest:
    """The direction found with equal gaps, or doubt: a model with equal gaps can be confidently wrong.

    Withdrawn only where steps differ in variance, and gaps estimated from the data favour the other direction: for independent
    orders gaps by position, common to all, and a variance for each step.
    """
    n, T, d = model.data.shape
    size, along = max(GAPS_SAMPLE // (T * d), 2 * d + 20), Order.of(order)
    shared = along.shared
    few = model.some(size)
    equal = few.fit(along.take(evenly(n, size)).index)
    if shared:
        steps = step_costs(few.data, equal.order, equal.step)
        if dispersion(steps, float(few.data.shape[0] * d)) is None:
            return test
    for one, two in _fits_with_gaps(few, equal, shared=shared):
        other = direction_test(one, two, dimension=d, alpha=alpha, groups=few.data.groups)
        if other.log_likelihood_ratio < 0:
            return doubtful_direction(test, other, shared=shared)
    return test


def _fits_with_gaps(model: EulerModel, equal: Fit, *, shared: bool) -> list[tuple[Array, Array]]:
    """Log-likelihoods forwards and backwards with gaps of their own, and with variances of their own."""
    free = GapModel(model.data, model.dt, model.drift, timing=Clock(stamps=model.timing.stamps))
    both = equal.order, model.data.reversed(equal.order)
    fits = [free.fit(order) for order in both]
    # Unless they gain more than the penalty of T − 1 gaps, equal gaps are the better model.
    T = model.data.shape[1]
    price = penalty(Block(T - 1, model.data.lengths.steps.total))
    found = []
    if fits[0].log_likelihood - equal.log_likelihood > price:
        if shared:
            # smoothed states may have too little noise for exact gaps: those of Euler's steps are then kept
            with suppress(np.linalg.LinAlgError):
                fits = [free.finished(each) for each in fits]
        found.append((fits[0].log_likelihoods, fits[1].log_likelihoods))
    if not shared:
        one, two = (_unequal_log_likelihoods(model, order) for order in both)
        if one is not None and two is not None:
            found.append((one, two))
    return found


def _unequal_log_likelihoods(model: EulerModel, orders: Indices) -> Array | None:
    """Joint log-likelihoods (n,) of independent orders whose steps have variances of their own; None if alike.

    θ, the spread (α, β) of the variances and each step's own, `(β + s)/(d/2 + α)`, in turn; the variances enter
    the fit as gaps, and are integrated out of the likelihood (see `unequal_steps`).
    """
    data = model.data
    d = data.shape[2]
    live = data.lengths.steps.mask
    found, total = model.fit(orders), None
    for _ in range(VARIANCE_ROUNDS):
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
