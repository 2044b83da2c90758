"""Steps that differ in size: a variance for each interval, or gaps of a shared order that are estimated.

Estimated gaps may oppose a direction, and have no vote: one swapped pair of slices makes them favour the wrong direction. They
are heard where they explain more than a variance for each step does; where they then oppose the others, equal gaps are not to
be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import MARKOV, closed_form_fit, markov_penalty
from retrace_sde.evidence.candidates.penalty import Block
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.linear import unequal
from retrace_sde.evidence.closed_form.panels import Form
from retrace_sde.panel.clock import Clock
from retrace_sde.search.models.estimated_gaps import GapModel

EQUAL_GAPS_NATS = 100.0
"""Nats by which steps of one variance explain more than a variance for each step: gaps are then not fitted."""

VETO_NATS = 3.0
"""Nats by which gaps must explain more than a variance for each step to oppose a direction."""


@dataclass(frozen=True)
class StepVariances:
    """A variance for each interval, the same in both directions: what gaps must beat to be heard."""

    kind: str = CandidateKind.VARIANCES
    meaning: str = "steps differ in size, the same in both directions"
    allows: str = ""
    remedy: str = ""

    def applies(self, along: CandidatesAlong) -> bool:
        return along.whole_panels is not None

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        assert along.panels is not None  # it applies
        form = Form(affine=along.affine)
        panels = unequal(along.panels, form)
        return None if panels is None else closed_form_fit(self.kind, panels, form, Role.LISTED)

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


@dataclass(frozen=True)
class UnequalGaps:
    """Gaps of a shared order, estimated along it; or those of the searched model."""

    kind: str = CandidateKind.GAPS
    meaning: str = "the time between slices differs, and is estimated"
    allows: str = "unequal gaps"
    remedy: str = ""

    def applies(self, along: CandidatesAlong) -> bool:
        if along.own_kind is CandidateKind.GAPS:
            return True
        apart = along.fit(STEP_VARIANCES)
        if apart is None or not along.both[0].ordering.shared:
            return False
        alike = along.fit(MARKOV)
        return alike is None or apart.log_evidence >= alike.log_evidence - EQUAL_GAPS_NATS

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        few, fit = along.sample
        n, T, d = few.data.shape
        price = markov_penalty(along, Block(T - 2, n * d))
        if along.own_kind is CandidateKind.GAPS:
            return along.own_fit(price)
        free = GapModel(few.data, few.dt, few.drift, timing=Clock(stamps=few.timing.stamps))
        one = free.fit(fit.order, final=True)
        two = free.reversed_fit(one, final=True)
        found = CandidateFit.of_trajectories(
            self.kind, one.log_likelihoods, two.log_likelihoods, price
        )
        apart = along.fit(STEP_VARIANCES)
        heard = apart is not None and found.log_evidence > apart.log_evidence + VETO_NATS
        return replace(found, role=Role.VETO if heard else Role.LISTED)

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


STEP_VARIANCES = StepVariances()
UNEQUAL_GAPS = UnequalGaps()
