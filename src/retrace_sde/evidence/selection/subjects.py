"""One SDE for all subjects, or an intercept or a rate of each one's own: chosen by evidence, along the order found.

Orders are searched as if subjects were alike, which hardly misleads a search, and the direction has candidates with random
intercepts. The parameters and their errors then rest on the better account of subjects. Intercepts pay Akaike's penalty
(`penalty.akaike` says why), unless subjects at rest about levels of their own are likelier than subjects who are alike
(`fit.levels_at_rest`) and the mean over subjects does not move. These two have as many parameters, so that no penalty stands between
them. To ask for 2 nats costs more than it saves (shuffled panels at rest, n = 30, T = 16, d = 3, seeds 100:160): entries of A inside their
95 % intervals with levels of 1 sd .86 rather than .92, with T = 8 .66 rather than .82; of subjects who are alike .93 either way. Where the mean moves,
subjects who are alike look like it too often (31 of 40 panels of Euler paths from 2 ± .3). Where the
closed form of random intercepts, which the direction has fitted already, is clearly worse, they are not fitted again. Rates look like intercepts while subjects are on their way, but have one parameter; with them
the drift stays that of all together, with errors over trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.intercepts import RANDOM_INTERCEPTS
from retrace_sde.evidence.candidates.linear_step import MARKOV
from retrace_sde.evidence.candidates.penalty import Block, akaike, penalty
from retrace_sde.evidence.closed_form.steps import fit_directions
from retrace_sde.evidence.selection.intercepts import (
    INTERCEPT_SAMPLE,
    HiddenAccount,
    ObservedAccount,
    Subjects,
    Tried,
    sampled_order,
)
from retrace_sde.fit.exact import Embedding
from retrace_sde.fit.levels_at_rest import gain_of_levels_at_rest
from retrace_sde.fit.random_intercepts import RandomIntercepts, independent_starts
from retrace_sde.fit.subjects import fit_rates, subject_grams
from retrace_sde.io.arrays import Array
from retrace_sde.process.tails import f_sf
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.protocols import Model

SubjectAccount = ObservedAccount | HiddenAccount

CLEARLY_WORSE_NATS = 2.0
"""Nats by which the closed form of random intercepts must be worse for maximum likelihood not to be tried: on 200 panels of nine
kinds it lay at most .7 nats below."""

ROUNDING_NATS = 1e-6
"""Gains up to here are differences between equal likelihoods."""


@dataclass(frozen=True, eq=False)
class SubjectEffects:
    """How subjects differ, the evidence for it, and each one's intercept or rate.

    `nats`: by how much intercepts or rates (of subjects who are alike: the better of the two) are more likely than subjects who
    are alike, less the penalty of `parameters` more (None: not compared). `at_rest`: nats by which subjects at rest about levels of their own
    are likelier than subjects who are alike, with as many parameters, where these, not `nats`, decided. `asked`: it was chosen by name. With levels,
    `intercepts` (n, d) are each subject's c_j, expected from all of its steps, with standard errors `errors`; the law they
    come from is `c | x₀ ~ N(mean + slope x₀, between)`. `span` is the mean total time of a subject, `reversion` the time of
    the slowest mean reversion (∞: none). With rates, `rates` (n,) are the factors by which subjects' drifts differ from that
    of all, with standard errors `rate_errors` and standard deviation `rate_spread`.
    """

    kind: Subjects
    asked: bool
    nats: float | None = None
    parameters: int = 0
    at_rest: float | None = None
    intercepts: Array | None = None
    errors: Array | None = None
    mean: Array | None = None
    slope: Array | None = None
    between: Array | None = None
    span: float = 0.0
    reversion: float = 0.0
    rates: Array | None = None
    rate_errors: Array | None = None
    rate_spread: float = 0.0

    @property
    def short(self) -> bool:
        """The total time is shorter than that of the slowest mean reversion."""
        return self.kind is Subjects.LEVELS and self.span < self.reversion

    def moved(self, each: Callable[[Array], Array]) -> SubjectEffects:
        """The same with what is each subject's own moved to other places."""
        own = ("intercepts", "errors", "rates", "rate_errors")
        there = {name: getattr(self, name) for name in own}
        moved: dict[str, Any] = {name: each(v) for name, v in there.items() if v is not None}
        return replace(self, **moved)

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        return _SENTENCES[self.kind](self)

    @property
    def by(self) -> str:
        """By how many nats, and whether that was the reason."""
        if self.nats is None:
            return ", as asked" if self.asked else ""
        if self.at_rest is not None:
            return f", about whose levels they are at rest (by {self.at_rest:.1f} nats without a further parameter); subjects='alike' fits one SDE for all"
        plural = "" if self.parameters == 1 else "s"
        price = f"after the penalty of {self.parameters} parameter{plural}"
        if self.asked:
            return f", as asked ({self.nats:+.1f} nats {price})"
        return f", by {self.nats:.1f} nats {price}; subjects='alike' fits one SDE for all"


def _levels_say(found: SubjectEffects) -> str:
    text = f"random intercepts, one for each subject{found.by}"
    if not found.short:
        return text
    slow = "which the estimated drift does not even have"
    if np.isfinite(found.reversion):
        slow = f"which takes {found.reversion:.3g} units of time, longer than the {found.span:.3g} observed"
    return f"{text}. Intervals of the drift are wide: an intercept looks like slow mean reversion, {slow}"


def _rates_say(found: SubjectEffects) -> str:
    return (
        f"random rates, one for each subject, of standard deviation {found.rate_spread:.2g} about 1{found.by}. The drift is "
        "that of all together, and its errors allow for the differences"
    )


def _alike_say(found: SubjectEffects) -> str:
    if found.nats is None or found.asked:
        return "one SDE for all" + (", as asked" if found.asked else "")
    return (
        f"no evidence that subjects differ ({-found.nats:.1f} nats worse after the penalty); subjects='levels' fits random "
        "intercepts"
    )


_SENTENCES = {
    Subjects.ALIKE: _alike_say,
    Subjects.LEVELS: _levels_say,
    Subjects.RATES: _rates_say,
}


class ComparedSubjects(NamedTuple):
    """The order found with its fits under the better account of subjects, and the evidence for it.

    Random intercepts of both directions; with rates the `diffusion` that they leave.
    """

    found: Found
    effects: SubjectEffects | None
    account: SubjectAccount | None = None
    reverse: SubjectAccount | None = None
    diffusion: Array | None = None


def account_kind(model: Model) -> type[SubjectAccount]:
    """How random intercepts are fitted in a model."""
    return HiddenAccount if model.states_hidden else ObservedAccount


def compare_subjects(
    model: Model, found: Found, asked: Subjects, along: CandidatesAlong | None = None
) -> ComparedSubjects:
    """Subjects alike, with intercepts or with rates, along the order found, whose direction is settled; None: no question.

    `along`: the candidates fitted on that order.
    """
    kind = account_kind(model)
    if asked is Subjects.ALIKE:
        return ComparedSubjects(found, SubjectEffects(Subjects.ALIKE, True))
    if not kind.applies(model, asked):
        return ComparedSubjects(found, None)
    if asked is Subjects.RATES and not model.states_hidden:
        effects, H = _rates(model, found.better, asked=True)
        return ComparedSubjects(found, effects, diffusion=H)
    by_name = asked is Subjects.LEVELS
    at_rest = -np.inf if by_name else _at_rest(model, found.better)
    own_levels = at_rest > ROUNDING_NATS
    if not by_name and not own_levels:
        rough = _by_closed_form(along, found)
        if rough is None and kind.sample(model) < model.data.shape[0]:
            rough = kind.on_sample(model, found)
            if rough is None:
                return _without_intercepts(model, found, None)
        if rough is not None and rough.nats <= 0:
            return _without_intercepts(model, found, rough)
    tried = kind.tried(model, found, by_name=by_name)
    if tried is None:
        return ComparedSubjects(found, None)
    if not by_name:
        other = _without_intercepts(model, found, tried)
        assert other.effects is not None
        rates = other.effects.kind is Subjects.RATES and (other.effects.nats or 0.0) > tried.nats
        if rates or (tried.nats <= 0 and not own_levels):
            return other
    (better, account), (worse, reverse) = tried.fits()
    found = replace(found, better=better, worse=worse)
    effects = intercept_effects(
        account.levels, tried.nats, _span(model, better), account.embedding, asked=by_name
    )
    if own_levels and tried.nats <= 0:
        effects = replace(effects, at_rest=at_rest)
    return ComparedSubjects(found, effects, account, reverse)


def _at_rest(model: Model, fit: Fit) -> float:
    """What subjects at rest about levels of their own gain, on average over the order and its reverse; −∞ where it is not asked.

    It is asked of observed states of independent trajectories of one length, along one order with equal gaps.
    """
    data, gaps = model.data, fit.gaps
    n, T, d = data.shape
    plain = data.groups is None and not data.lazy and not data.lengths.ragged
    if model.states_hidden or not plain or not fit.ordering.shared or not gaps.equal:
        return -np.inf
    if n <= 2 * d + 2 or T < 4:
        return -np.inf
    some = data.some(min(n, INTERCEPT_SAMPLE))
    if _mean_moves(some.states(fit.order, -1) - some.states(fit.order)):
        return -np.inf
    both = fit.order, fit.order[::-1]
    return float(np.mean([gain_of_levels_at_rest(some, each, gaps, model.dt) for each in both]))


def _mean_moves(change: Array) -> bool:
    """Whether trajectories' changes (n, d) from one end to the other have a mean that is not zero: Hotelling's test at 1 %."""
    n, d = change.shape
    mean, spread = change.mean(axis=0), np.atleast_2d(np.cov(change.T))
    statistic = n * mean @ np.linalg.lstsq(spread, mean, rcond=None)[0]
    return bool(f_sf(statistic * (n - d) / (d * (n - 1)), d, n - d) <= 0.01)


def _by_closed_form(along: CandidatesAlong | None, found: Found) -> Tried | None:
    """The comparison by closed forms, where these apply to the data and the difference is clear; else None.

    Of as many trajectories as maximum likelihood would be tried on first.
    """
    if along is None or along.whole_panels is None or along.model.prior is not None:
        return None
    one, two = (each.form(along) for each in (RANDOM_INTERCEPTS, MARKOV))
    first, d = along.model.data.states(found.better.order), along.model.data.shape[2]
    panels = None if along.model.data.lazy else along.panels_of(INTERCEPT_SAMPLE)
    enough = panels is not None and one.fits(*panels.x.shape[1:])
    if panels is None or not enough or len(independent_starts(first, first.mean(axis=0))) < d:
        return None
    extra = d * d + d * (d + 1) // 2
    backwards = not np.array_equal(found.better.order, along.both[0].order)
    own = max(float(each.total[0]) for each in fit_directions(panels, one))
    nats = own - float(fit_directions(panels, two)[int(backwards)].total[0]) - akaike(extra)
    return Tried(float(nats), extra, list) if nats < -CLEARLY_WORSE_NATS else None


def _rates(model: Any, found: Fit, *, asked: bool) -> tuple[SubjectEffects, Array]:
    """Each subject's rate beside the drift of all, and the H that rates leave; some subjects tell them of a lazy panel."""
    if model.data.lazy:
        few = model.some(INTERCEPT_SAMPLE)
        effects, H = _rates(few, few.fit(sampled_order(model, few, found)), asked=asked)
        return replace(effects, rates=None, rate_errors=None), H
    grams = subject_grams(model.data, found.order, found.gaps, model.drift)
    count = float(model.data.lengths.steps.total)
    rates = fit_rates(grams, count, found.step.coefficients, found.step.diffusion)
    effects = SubjectEffects(
        Subjects.RATES,
        asked,
        rates.gain - penalty(Block(1, len(rates.rates))),
        1,
        rates=rates.rates,
        rate_errors=rates.errors,
        rate_spread=rates.variance**0.5,
    )
    return effects, rates.diffusion


def _without_intercepts(model: Model, found: Found, tried: Tried | None) -> ComparedSubjects:
    """Rates, where they gain more than their penalty; else alike, with what comes closest to that."""
    if model.states_hidden:
        assert tried is not None
        alike = SubjectEffects(Subjects.ALIKE, False, tried.nats, tried.parameters)
        return ComparedSubjects(found, alike)
    rates, H = _rates(model, found.better, asked=False)
    assert rates.nats is not None
    if rates.nats > 0:
        return ComparedSubjects(found, rates, diffusion=H)
    nats, parameters = rates.nats, 1
    if tried is not None and tried.nats > nats:
        nats, parameters = tried.nats, tried.parameters
    return ComparedSubjects(found, SubjectEffects(Subjects.ALIKE, False, nats, parameters))


def _span(model: Model, fit: Fit) -> float:
    """The mean total time of a subject."""
    n, T, _ = model.data.shape
    live = model.data.lengths.steps.mask
    return float(np.where(live, fit.gaps.rows(n, T), 0.0).sum(axis=1).mean())


def intercept_effects(
    levels: RandomIntercepts, nats: float, span: float, sde: Embedding | None, *, asked: bool
) -> SubjectEffects:
    """Random intercepts as a result shows them; `span`: the mean total time of a subject.

    `sde`: the SDE of which Euler's intercepts s are a way to write `c = push s`; errors are then those of uncorrelated intercepts.
    """
    d = len(levels.diffusion)
    push, A = (np.eye(d), levels.drift) if sde is None else (sde.push, sde.coefficients[:, :d])
    rate = -float(np.linalg.eigvals(A).real.max())
    return SubjectEffects(
        Subjects.LEVELS,
        asked,
        nats,
        levels.n_extra,
        intercepts=levels.effects @ push.T,
        errors=np.sqrt(levels.effect_errors**2 @ push.T**2),
        mean=push @ levels.mean,
        slope=push @ levels.slope,
        between=push @ levels.between @ push.T,
        span=span,
        reversion=1 / rate if rate > 0 else float("inf"),
    )
