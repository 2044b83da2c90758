"""Gaps of a shared order that are estimated, where steps differ in size.

Estimated gaps may oppose a direction, and have no vote: one swapped pair of slices makes them favour the wrong direction. They
are heard where they explain more than Markov steps with a variance for each step do; where they then oppose the others, equal
gaps are not to be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import MARKOV, markov_penalty
from retrace_sde.evidence.candidates.penalty import Block
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.panel.clock import Clock
from retrace_sde.search.models.estimated_gaps import GapModel


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
        if along.whole_panels is None or not along.both[0].ordering.shared:
            return False
        steps = along.fit(MARKOV)
        return steps is not None and steps.form is not None and steps.form.spreads

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
        apart = along.fit(MARKOV)
        heard = apart is not None and found.log_evidence > apart.log_evidence
        return replace(found, role=Role.VETO if heard else Role.LISTED)

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


UNEQUAL_GAPS = UnequalGaps()
