"""The direction by the candidate models: each fitted in both directions, compared by BIC, and tested in the preferred one.

One model alone can be confidently wrong about the direction: a hidden velocity, random intercepts, unequal gaps, an outside
trend or changing volatility look to a Markov model like a transient. So all candidates (`candidates.registry`) are fitted along
the order found and along its reverse, each with its own start law and with the nuisances free that its residuals ask for
(`closed_form.checks`). Those whose residuals show nothing more are compared by penalised log-likelihood in the direction that
suits them better, unless a model whose residuals do show more fits better still: then both leave something out. The direction is
tested in the simplest of those within `TIE_NATS` of the best; the others among them must not oppose, nor Markov steps that are preferred though they fail. Otherwise it is left open.

Three further rules, each with its reason. Memory and random intercepts can imitate an outside trend, and where such a trend
explains the panel as well (`candidates.trend`) any model can: then the direction must show in the deviations from slices' means. One
that may veto (estimated gaps) can only oppose. And a panel that does not differ from its time reverse at all
(`closed_form.reversibility`) has no direction, whatever a model says of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import (
    TIE_NATS,
    CandidateFit,
    CandidateKind,
    Role,
)
from retrace_sde.evidence.candidates.registry import CANDIDATES
from retrace_sde.evidence.closed_form.null_simulation import SimulatedP, simulated_test
from retrace_sde.evidence.closed_form.panels import Form, Ground, Panels
from retrace_sde.evidence.closed_form.reversibility import bounded, reversibility_p
from retrace_sde.evidence.closed_form.steps import contributions, fit_directions, ratios
from retrace_sde.evidence.direction.independence import Independence, independence
from retrace_sde.evidence.direction.verdict import (
    DirectionTest,
    ModelEvidence,
    Reason,
    direction_test,
)
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.process.drift import is_linear

MIN_NATS = TIE_NATS
"""Ratio in nats below which no p-value makes it evidence: as for models, less is a tie. One real panel had −.2 nats with p = .01. Of 300 transients (d = 4, n = 8, T = 20) 2 were called
wrongly at 2 nats, by ratios of 2.8 and 3.0, none at 3; rightly .61 and .60."""

TREND_TIE_NATS = 4.0
"""Nats within which an outside trend is as good as the best candidate. Of 170 trends and of as many transients (d = 4, n = 30, T = 20) are called, wrongly
and rightly: .02 and .91 (true order). By Markov steps alone (200): .05 and .93 at 3 nats, .02 and .91 at 4, .01 and .88 at 5."""

STEPS_BESIDE_TREND = 10
"""Steps for each coefficient of a variable below which a trend from outside is never ruled out: dynamics are then so uncertain that the evidence of either is chance.
Of 80 trends (n = 8, T = 8, d = 6: 8 steps) 3 were called wrongly, 1 now; of 40 transients of that size 9 were called, 3 now; n = 5, T = 10, d = 4 (9 steps), from a small spread: 38 of
40, as before."""

FEW_TRAJECTORIES_P = 0.3
"""Vuong's p-value above which a ratio is no evidence where no null at rest is simulated: steps are curved, or variances free. There a fit is not the
process: panels from either direction's polynomial have ratios of 25 to 390 nats where growth, predators and double wells have up to 52 (43 fits), and
nearly any ratio rejects the direction that loses, and the other as well. Without it one more of 15 panels was called wrongly where volatility rises, where
noise calms down, of asynchronous growth, of copies, and of double wells; where a null at rest is simulated it changed none of 30 rows."""

MOVE_TOGETHER, STAGES_APART, STAY_AHEAD = 0.9, 0.25, 0.5
"""Subjects are at different stages where at least this share of them moves one way, first values deviate by this share of the mean way,
and first and last values are correlated this much. Growth from a common start: .98 or more, .05 or less, any."""

CLEAR_P = 1e-6
"""p-value below which residuals that are not Gaussian are not asked: they would change nothing."""


class DirectionCall(NamedTuple):
    """A test of the direction, and whether it calls the reverse of the order that was found."""

    test: DirectionTest
    reverse: bool


class Tested(NamedTuple):
    """A candidate's ratio, by what may count, its p-value, and each trajectory's share of the ratio."""

    ratio: float
    p: SimulatedP
    shares: Array

    def opposes(self, ratio: float) -> bool:
        """It points the other way, by more than nothing."""
        return bool(self.ratio * np.sign(ratio) <= -MIN_NATS)


def compare_directions(
    along: CandidatesAlong,
    test: DirectionTest,
    rng: np.random.Generator,
    *,
    alpha: float,
    grounds: frozenset[Ground] = frozenset(Ground),
) -> DirectionCall:
    """The direction of the order found, or of its reverse, by the candidates that the data prefer.

    `test`: Vuong's, of the searched model. `grounds`: what may count.
    """
    if test.reason is not Reason.TESTED or not is_linear(along.model.drift):
        return DirectionCall(test, False)
    if (
        Ground.SPREADS not in grounds
    ):  # the means are one path, which has hardly a direction of its own
        grounds = grounds & {Ground.RESIDUALS}
    panels = along.panels
    listed = along.every(CANDIDATES)
    voting = [each for each in listed if each.role is Role.VOTE]
    if not voting:
        return DirectionCall(restricted(test, grounds), False)
    failed = [each for each in voting if not each.adequate]
    heard = [each for each in voting if each.adequate and not any(map(each.surpassed_by, failed))]
    if not heard:
        return DirectionCall(_none_heard(test, listed, failed, panels), False)
    most = max(each.log_evidence for each in heard)
    tied = [each for each in heard if each.log_evidence >= most - TIE_NATS]
    best, *others = tied  # of equally good models the simplest comes first in the list
    others += [each for each in failed if _preferred_markov(each, best)]
    decided = _tested(best, panels, rng, alpha=alpha, grounds=grounds)
    vetoes = [each for each in listed if each.role is Role.VETO]
    equals = (_ratio(each, panels, grounds) for each in others)
    vetoed = (_ratio(each, panels, frozenset(Ground)) for each in vetoes)
    against = [
        *(each for each in equals if each.p.p_value < alpha),
        *(each for each in vetoed if each.p.p_value <= FEW_TRAJECTORIES_P),
    ]
    p, trends = decided.p, []
    if p.p_value < alpha:
        trends = _trends(listed, -np.inf if _few(panels) else most - TREND_TIE_NATS)
        for beside in _doubts(best, panels, rng, alpha=alpha, grounds=grounds, trend=bool(trends)):
            against.append(beside)
            p = max(p, beside.p)
    agree = not any(each.opposes(decided.ratio) for each in against)
    said = replace(
        _vuong(decided, test, panels),
        # A p-value within its own error of the level decides nothing.
        identified=agree and p.p_value + p.p_error < alpha and abs(decided.ratio) >= MIN_NATS,
        p_value=p.p_value if agree else None,
        p_error=p.p_error if agree else None,
        by_reversal=p.by_reversal,
        reason=Reason.TESTED if agree else Reason.MODELS_DISAGREE,
        models=_records(
            listed, {best.kind: decided}, {each.kind for each in (best, *others, *vetoes, *trends)}
        ),
        rests_on=_rests_on(best, panels, grounds),
    )
    if Ground.SPREADS not in grounds:
        said = replace(said, p_value=None, p_error=None, reason=Reason.NOT_ALLOWED, rests_on={})
    if Ground.RESIDUALS in grounds and panels is not None and panels.filled is None:
        # Noise that is not Gaussian makes the reverse look curved: residuals are those of linear steps.
        straight = [each for each in heard if each.form is not None and each.form.degree == 1]
        if straight and (p.p_value > CLEAR_P or not agree):
            form = max(straight, key=lambda each: each.log_evidence).form
            assert form is not None
            said = _with_residuals(said, best, independence(panels, form, rng))
    if said.reason is Reason.RESIDUALS:
        return DirectionCall(said, said.models[-1].log_likelihood_ratio < 0)
    return DirectionCall(said, said.identified and said.log_likelihood_ratio < 0)


def _preferred_markov(failed: CandidateFit, best: CandidateFit) -> bool:
    """Markov steps that fail their checks, and that the data prefer all the same: what they lack is less than what the richer model costs, so they may oppose it.

    Random intercepts over a short time correlate successive steps a little, which memory imitates: of 60 such panels (Δt = .02) 3 were called wrongly by 5 to 8 nats of memory against
    15 to 23 of Markov steps, none now.
    """
    return (
        failed.kind == CandidateKind.MARKOV and failed.log_evidence > best.log_evidence + TIE_NATS
    )


def _none_heard(
    test: DirectionTest,
    listed: list[CandidateFit],
    failed: list[CandidateFit],
    panels: Panels | None,
) -> DirectionTest:
    """Open, with what the residuals of the best model still show."""
    best = max(failed, key=lambda each: each.log_evidence)
    why = None if best.checks is None else best.checks.unexplained
    if why is not None and _at_stages(best, panels):
        why += ", and subjects seem to be at different stages of one course"
    return _unexplained(test, _records(listed, {}, set()), why)


def _doubts(
    best: CandidateFit,
    panels: Panels | None,
    rng: np.random.Generator,
    *,
    alpha: float,
    grounds: frozenset[Ground],
    trend: bool,
) -> Iterator[Tested]:
    """Tests that must be significant, too: with equal variances, where these are in doubt, and of deviations alone beside a `trend`."""
    if best.less is not None:
        plainer = replace(best, form=best.less, less=None)
        yield _tested(plainer, panels, rng, alpha=alpha, grounds=grounds)
    if trend and Ground.MEANS in grounds:
        yield _tested(best, panels, rng, alpha=alpha, grounds=grounds - {Ground.MEANS})


def _trends(listed: list[CandidateFit], floor: float) -> list[CandidateFit]:
    """Trends from outside whose evidence is not below so much."""
    return [each for each in listed if each.role is Role.MEANS and each.log_evidence >= floor]


def _few(panels: Panels | None) -> bool:
    """There are too few steps for the dynamics to tell a relaxation from a trend."""
    if panels is None or not panels.aligned:
        return False
    return float(panels.live(1).sum()) < STEPS_BESIDE_TREND * (panels.x.shape[3] + 1)


def _at_stages(best: CandidateFit, panels: Panels | None) -> bool:
    """Subjects seem to follow one curved course from places of their own.

    In some variable they all move one way, their first values differ by a part of that way that counts, and those ahead stay ahead.
    """
    if panels is None or not panels.aligned or panels.lengths is not None:
        return False
    if best.form is None or best.form.degree == 1:
        return False
    first, last = panels.x[0, :, 0], panels.x[0, :, -1]
    moved = last - first
    way = moved.mean(axis=0)
    together = (np.sign(moved) == np.sign(way)).mean(axis=0) >= MOVE_TOGETHER
    apart = first.std(axis=0) >= STAGES_APART * np.abs(way)
    kept = ((first - first.mean(axis=0)) * (last - last.mean(axis=0))).mean(axis=0)
    ahead = kept >= STAY_AHEAD * first.std(axis=0) * last.std(axis=0)
    return bool((together & apart & ahead).any())


def restricted(test: DirectionTest, grounds: frozenset[Ground]) -> DirectionTest:
    """Vuong's test, where no candidate applies: means and spreads are not told apart there, and both must be allowed."""
    if test.known or {Ground.MEANS, Ground.SPREADS} <= grounds:
        return test
    return replace(test, identified=False, p_value=None, reason=Reason.NOT_ALLOWED)


def _tested(
    found: CandidateFit,
    panels: Panels | None,
    rng: np.random.Generator,
    *,
    alpha: float,
    grounds: frozenset[Ground],
) -> Tested:
    """The test in one candidate: by simulation where there is a closed form, else by Vuong's statistic."""
    rough = _ratio(found, panels, grounds)
    if panels is not None and found.form is None and found.fitted is not None:
        means = found.fitted.means or Ground.MEANS not in grounds
        reversible = SimulatedP(reversibility_p(panels, rng, means=means), 0.0, by_reversal=True)
        return rough._replace(p=max(rough.p, reversible))
    if panels is None or found.form is None:
        return rough
    left_open = rough._replace(p=SimulatedP(max(rough.p.p_value, alpha), 0.0))
    if abs(rough.ratio) < MIN_NATS:
        return left_open
    form = tested_form(found.form, panels)
    if not _rests(panels, form) and rough.p.p_value > FEW_TRAJECTORIES_P:
        return left_open
    means = form.means or Ground.MEANS not in grounds
    reversible = SimulatedP(reversibility_p(panels, rng, means=means), 0.0, by_reversal=True)
    if reversible.p_value > alpha:
        return rough._replace(p=reversible)
    simulators = None if found.simulators is None else found.simulators(panels, rng)
    p = simulated_test(
        panels,
        form,
        rng,
        alpha=alpha,
        simulators=simulators,
        grounds=grounds,
    )
    return rough._replace(p=max(p, reversible))


def _rests(panels: Panels, form: Form) -> bool:
    """There is a null at rest to simulate."""
    return not form.spreads and any(each.stable for each in fit_directions(panels, form))


def _ratio(found: CandidateFit, panels: Panels | None, grounds: frozenset[Ground]) -> Tested:
    """A candidate's ratio with Vuong's p-value."""
    if found.apart is not None and Ground.MEANS not in grounds:
        found = found.apart
    if panels is None or found.form is None:
        # Where means and spreads are not told apart both must be allowed; beside free offsets spreads alone count.
        free = found.fitted is not None and found.fitted.means
        counts = Ground.SPREADS in grounds and (free or Ground.MEANS in grounds)
        groups, d = None, 0
        if panels is not None and found.fitted is not None:
            groups, d = panels.groups, panels.x.shape[3]
        shares = found.contributions
        p = _vuong_p(_even_shares(found), groups, d) if counts else 1.0
        return Tested(found.ratio, SimulatedP(p, 0.0), shares)
    form = tested_form(found.form, panels)
    plain = form == found.fitted and {Ground.MEANS, Ground.SPREADS} <= grounds
    ratio = found.ratio if plain else float(ratios(panels, form, grounds)[0])
    shares = found.contributions if plain else _shares(panels, form)
    p = _vuong_p(shares, panels.groups, panels.x.shape[3])
    return Tested(ratio, SimulatedP(p, 0.0), shares)


def _even_shares(found: CandidateFit) -> Array:
    """Each trajectory's share of the ratio; of a quadratic SDE, which has no null panels, bounded so that no trajectory dominates.

    One of 30 that grows late may have half of the nats, which Vuong's statistic counts as spread. Where bounded shares favour the other direction, none favours any.
    """
    shares = found.contributions
    if found.fitted is None or found.form is not None:
        return shares
    even = bounded(shares[:, None])[:, 0]
    return even if even.sum() * found.ratio > 0 else np.zeros_like(even)


def tested_form(form: Form, panels: Panels) -> Form:
    """The form in which a direction is tested: with memory or random intercepts, by deviations from slices' means."""
    rich = form.lags > 1 or form.levels
    freed = form._replace(means=True)
    return freed if rich and panels.aligned and freed.fits(*panels.x.shape[1:]) else form


def _shares(panels: Panels, form: Form) -> Array:
    one, two = fit_directions(panels, form)
    return np.asarray(contributions(panels, one)[0] - contributions(panels.reverse, two)[0])


def _vuong_p(shares: Array, groups: Indices | None, dimension: int) -> float:
    found = direction_test(shares, np.zeros_like(shares), dimension=dimension, groups=groups)
    return 1.0 if found.p_value is None else found.p_value


def _vuong(found: Tested, test: DirectionTest, panels: Panels | None) -> DirectionTest:
    """The test with a candidate's ratio and contributions."""
    if found.shares is test.contributions:
        return test
    groups = None if panels is None else panels.groups
    zeros = np.zeros_like(found.shares)
    said = direction_test(
        found.shares, zeros, dimension=test.dimension, alpha=test.alpha, groups=groups
    )
    return replace(said, log_likelihood_ratio=found.ratio)


def _rests_on(
    best: CandidateFit, panels: Panels | None, grounds: frozenset[Ground]
) -> dict[str, float]:
    """Nats of the ratio that come from the slices' means, and from the deviations from them."""
    if panels is None or best.form is None:
        return {}
    form = tested_form(best.form, panels)
    counted = (each for each in (Ground.MEANS, Ground.SPREADS) if each in grounds)
    return {str(each): float(ratios(panels, form, frozenset({each}))[0]) for each in counted}


def _records(
    listed: list[CandidateFit], tests: dict[str, Tested], counted: set[str]
) -> tuple[ModelEvidence, ...]:
    """What users see of the candidates, the one with the highest penalised log-likelihood first."""
    found = []
    for each in sorted(listed, key=lambda each: -each.log_evidence):
        p = tests[each.kind].p if each.kind in tests else None
        found.append(
            ModelEvidence(
                each.kind,
                float(each.log_evidence),
                tests[each.kind].ratio if each.kind in tests else each.ratio,
                None if p is None else p.p_value,
                None if p is None else p.p_error,
                each.kind in counted,
                () if each.fitted is None else each.fitted.free,
                None if each.checks is None else each.checks.unexplained,
            )
        )
    return tuple(found)


def _unexplained(
    test: DirectionTest, models: tuple[ModelEvidence, ...], why: str | None
) -> DirectionTest:
    return replace(
        test,
        identified=False,
        p_value=None,
        p_error=None,
        reason=Reason.UNEXPLAINED,
        models=models,
        unexplained=why,
    )


def _with_residuals(
    said: DirectionTest, best: CandidateFit, seen: Independence | None
) -> DirectionTest:
    """A direction that moments decide or leave open, with what residuals that are not Gaussian say of it."""
    if seen is None:
        return said
    heard, p = seen.favours, min(seen)
    # There is no likelihood: the sign says in which direction the residuals are independent.
    ratio = heard * float("inf") if heard else 0.0
    record = ModelEvidence(
        CandidateKind.RESIDUALS, float(best.log_evidence), ratio, p, None, heard != 0
    )
    said = replace(said, models=(*said.models, record))
    if heard == 0 or (said.identified and heard * said.log_likelihood_ratio > 0):
        return said
    if said.identified:
        return replace(
            said, identified=False, p_value=None, p_error=None, reason=Reason.MODELS_DISAGREE
        )
    rests_on = {str(Ground.RESIDUALS): float(-np.log(p)) * heard}
    return replace(
        said, identified=True, p_value=p, p_error=None, reason=Reason.RESIDUALS, rests_on=rests_on
    )
