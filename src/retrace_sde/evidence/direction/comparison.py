"""The direction by the candidate models: each fitted in both directions, compared by BIC, and tested in the preferred one.

One model alone can be confidently wrong about the direction: a hidden velocity, random intercepts or unequal gaps look to a
Markov model like a transient. So all candidates (`candidates.registry`) are fitted along the order found and along its reverse,
each with its own start law, and compared by penalised log-likelihood in the direction that suits them better. The direction is
tested in the preferred one; candidates within `TIE_NATS` of it must agree, or the direction is left open.

A candidate that may overrule (the quadratic drift) decides where it explains more than every voter. Where it leaves the
direction open, theirs is kept unless it opposes. One that may veto (estimated gaps) can only oppose. Heavy tails have no
likelihood here: one would compare more than first and second moments, and that comparison errs on real panels. They count in
the simulated test, which resamples residuals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import misfit_p_value
from retrace_sde.evidence.candidates.registry import CANDIDATES
from retrace_sde.evidence.closed_form.null_simulation import (
    SimulatedP,
    random_reversal_test,
    simulated_test,
)
from retrace_sde.evidence.closed_form.panels import Panels
from retrace_sde.evidence.direction.independence import Independence, independence
from retrace_sde.evidence.direction.verdict import (
    DirectionTest,
    ModelEvidence,
    Reason,
    direction_test,
)
from retrace_sde.process.drift import is_linear

TIE_NATS = 3.0
"""Nats of penalised log-likelihood within which candidates are considered equally good."""

SKIP_SIMULATION_P, SKIP_SIMULATION_NATS = 1e-6, 1.0
"""Below this p-value of Vuong's, and below this ratio in nats, a simulation would change nothing."""

FEW_TRAJECTORIES_P = 0.3
"""Above this p-value of Vuong's a ratio comes from a few trajectories, and no simulation makes it evidence."""

MISFIT_LEVEL = 0.005
"""Level at which residuals reject a candidate; Vuong's p-value must then be small, too."""

MIN_SUBJECTS_FOR_REVERSAL = 12
"""Trajectories that the randomisation test needs: of fewer, too many of the 2ⁿ reversals are nearly the panel itself (with eight,
a fifth of the right calls would be lost)."""

CLEAR_P = 1e-3
"""Vuong's p-value below which linear candidates are believed though one that overrules explains more."""


class DirectionCall(NamedTuple):
    """A test of the direction, and whether it calls the reverse of the order that was found."""

    test: DirectionTest
    reverse: bool


def compare_directions(
    along: CandidatesAlong, test: DirectionTest, rng: np.random.Generator, *, alpha: float
) -> DirectionCall:
    """The direction of the order found, or of its reverse, by the candidates that the data prefer.

    `test`: Vuong's, of the searched model.
    """
    if test.reason is not Reason.TESTED or not is_linear(along.model.drift):
        return DirectionCall(test, False)
    panels = along.panels
    listed = along.every(CANDIDATES)
    voting = [each for each in listed if each.role is Role.VOTE]
    if not voting:
        return DirectionCall(test, False)
    best = max(voting, key=lambda each: each.log_evidence)
    tied = [each for each in voting if each.log_evidence >= best.log_evidence - TIE_NATS]
    tests = {each.kind: _tested(each, panels, rng, test, alpha=alpha) for each in tied}
    heard = [*tied, *(each for each in listed if each.role is Role.VETO)]
    worst = max(tests.values(), key=lambda each: each.p_value)
    agree = len({each.ratio > 0 for each in heard}) == 1
    said = replace(
        _vuong(best, test, alpha=alpha),
        # A p-value within its own error of the level decides nothing.
        identified=agree and worst.p_value + worst.p_error < alpha,
        p_value=worst.p_value if agree else None,
        p_error=worst.p_error if agree else None,
        reason=Reason.TESTED if agree else Reason.MODELS_DISAGREE,
        models=_records(listed, tests, {each.kind for each in heard}),
    )
    most = max(each.log_evidence for each in heard)
    for each in listed:
        # What is curved is so in both directions; noise that is not Gaussian makes the reverse alone look curved.
        worse = each.log_evidence - abs(each.ratio)
        if each.role is Role.OVERRULE and each.test is not None and worse > most + TIE_NATS:
            said = _overruled(said, each, each.test(rng, alpha))
            if said.identified:
                return DirectionCall(said, said.log_likelihood_ratio < 0)
    asked = worst.p_value > SKIP_SIMULATION_P or not agree
    if asked and panels is not None and panels.filled is None and best.form is not None:
        said = _with_residuals(said, best, independence(panels, best.form, rng))
        if said.reason is Reason.RESIDUALS:
            return DirectionCall(said, said.models[-1].log_likelihood_ratio < 0)
    return DirectionCall(said, said.identified and said.log_likelihood_ratio < 0)


def _records(
    listed: list[CandidateFit], tests: dict[str, SimulatedP], counted: set[str]
) -> tuple[ModelEvidence, ...]:
    """What users see of the candidates, the one with the highest penalised log-likelihood first."""
    return tuple(
        ModelEvidence(
            each.kind,
            float(each.log_evidence),
            each.ratio,
            tests[each.kind].p_value if each.kind in tests else None,
            tests[each.kind].p_error if each.kind in tests else None,
            each.kind in counted,
        )
        for each in sorted(listed, key=lambda each: -each.log_evidence)
    )


def _overruled(said: DirectionTest, better: CandidateFit, found: SimulatedP) -> DirectionTest:
    """The voters' direction, after a candidate that explains more than all of them was tested.

    It decides, or leaves the direction open. Then theirs, of models that are wrong, stands only where it is beyond doubt and the
    better one does not oppose it.
    """
    decided = found.p_value + found.p_error < said.alpha
    p, error = (found.p_value, found.p_error) if decided else (None, None)
    models = tuple(
        replace(each, p_value=p, p_error=error, counted=True) if each.name == better.kind else each
        for each in said.models
    )
    if decided:
        test = _vuong(better, said, alpha=said.alpha)
        return replace(test, identified=True, p_value=p, p_error=error, models=models)
    said = replace(said, models=models)
    if not said.identified:
        return said
    opposed = better.ratio * np.sign(said.log_likelihood_ratio) < -TIE_NATS
    if not opposed and _vuong_p(said) < CLEAR_P:
        return said
    return _disagreeing(said)


def _disagreeing(said: DirectionTest) -> DirectionTest:
    return replace(
        said, identified=False, p_value=None, p_error=None, reason=Reason.MODELS_DISAGREE
    )


def _vuong_p(test: DirectionTest) -> float:
    """Vuong's p-value of a test, whatever its own is."""
    return replace(test, p_value=None).evidence.p_value


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
        return _disagreeing(said)
    return replace(said, identified=True, p_value=p, p_error=None, reason=Reason.RESIDUALS)


def _vuong(found: CandidateFit, test: DirectionTest, *, alpha: float) -> DirectionTest:
    """Vuong's test in a candidate; of all the trajectories where it is the searched model."""
    if found.contributions is test.contributions:
        return test
    shares = found.contributions
    return direction_test(shares, np.zeros_like(shares), dimension=test.dimension, alpha=alpha)


def _tested(
    found: CandidateFit,
    panels: Panels | None,
    rng: np.random.Generator,
    test: DirectionTest,
    *,
    alpha: float,
) -> SimulatedP:
    """The p-value in one candidate: by simulation where there is a closed form and Vuong's statistic leaves doubt.

    Null panels are simulated from the candidate. Where its residuals reject it, Vuong's p-value, which rests on how trajectories
    differ and on no model, must be small, too. And the randomisation test, where there are enough trajectories, must be
    significant: linear models call nonlinear stationary processes else.
    """
    p = _vuong(found, test, alpha=alpha).p_value
    assert p is not None  # there are enough trajectories
    clear = p < SKIP_SIMULATION_P or p > FEW_TRAJECTORIES_P
    if clear or abs(found.ratio) < SKIP_SIMULATION_NATS or panels is None or found.form is None:
        return SimulatedP(p, 0.0)
    simulators = None if found.simulators is None else found.simulators(panels, rng)
    simulated = simulated_test(panels, found.form, rng, alpha=alpha, simulators=simulators)
    misfit = simulators is None and misfit_p_value(panels, found.form) < MISFIT_LEVEL
    simulated = SimulatedP(p, 0.0) if misfit and p > simulated.p_value else simulated
    if simulated.p_value < alpha and panels.x.shape[1] >= MIN_SUBJECTS_FOR_REVERSAL:
        simulated = max(simulated, random_reversal_test(panels, found.form, rng, alpha=alpha))
    return simulated
