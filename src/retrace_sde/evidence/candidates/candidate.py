"""What a candidate model is: a name, when it applies, its fit in both directions, and how well it predicts steps.

To add one, write a class like those beside this file and put an instance into `registry.CANDIDATES`; `curved` is a good one to
copy. The direction then compares its fit with those of the others, and the explanation of residuals asks how much better it
predicts the next step. The choice of parameters (`evidence/selection`) knows noise, random intercepts and rates by name, and
averages over uncertain orders compare no candidates: a new one is not heard there.

Candidates are fitted along the order that the search found with its own model: one that would imply another order can be ranked too
low. The reverse is a panel of its own, whose position 0 is its first slice. Panels are in standard units (subtract
`Panels.log_volume` from a log-likelihood), and closed forms need four visits of each trajectory or more. `Panels.x` is
(panels, n, T, d), here of one panel; first states are judged alike in every candidate, by `starts(panels.first(1), H, panels.widths(1))`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.checks import Checks
from retrace_sde.evidence.closed_form.null_simulation import NullSimulator
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.io.arrays import Array

if TYPE_CHECKING:
    from retrace_sde.evidence.candidates.along import CandidatesAlong


TIE_NATS = 3.0
"""Nats of penalised log-likelihood within which candidates are considered equally good."""


class CandidateKind(StrEnum):
    """The models of a panel along the order found, by the names that users read."""

    MARKOV = "Markov"
    MEMORY = "memory"
    INTERCEPTS = "random intercepts"
    MEMORY_INTERCEPTS = "memory and random intercepts"
    QUADRATIC = "quadratic drift"
    CUBIC = "cubic drift"
    MEMORY_QUADRATIC = "memory and quadratic drift"
    QUADRATIC_SDE = "quadratic SDE"
    NOISE = "measurement noise"
    TREND = "outside trend"
    GAPS = "unequal gaps"
    RESIDUALS = "non-Gaussian residuals"


class Role(StrEnum):
    """What a candidate may do where the direction is judged."""

    VOTE = "vote"
    """The direction may be tested in it; candidates within a few nats of the best must agree."""

    VETO = "veto"
    """It may only oppose a direction."""

    MEANS = "means"
    """Where it is as good as the best, the slices' means say nothing of the direction."""

    LISTED = "listed"
    """It is shown, and has no say."""


@dataclass(frozen=True, eq=False)
class CandidateFit:
    """A candidate fitted along the order and along its reverse.

    `log_likelihoods`: of the order as it stands and of its reverse, start law included, in the data's own units. `penalty`:
    `penalty.penalty` of its parameters. `ratio`: `ℓ(order) − ℓ(reverse)`; `by_trajectory` gives each trajectory's share of it: a
    pass over the data, made only for candidates that are tested. `form`: the closed form whose ratio is the statistic of the
    simulated test (None: Vuong's test alone). `simulators`: null panels of the order and of its reverse, where they are not
    those of `form`. `checks`: of its residuals; a candidate that fails them has no say (None: not checked).
    `less`: the form with equal variances, where it is not beyond doubt that they differ. `fitted`: the form that `ratio` is of, or that it is like. `apart`:
    the same candidate with offsets free, where it has no closed form.
    """

    kind: str
    log_likelihoods: tuple[float, float]
    penalty: float
    ratio: float
    by_trajectory: Callable[[], Array]
    role: Role = Role.VOTE
    form: Form | None = None
    simulators: (
        Callable[[Panels, np.random.Generator], tuple[NullSimulator, NullSimulator]] | None
    ) = None
    checks: Checks | None = None
    less: Form | None = None
    fitted: Form | None = None
    apart: CandidateFit | None = None

    @classmethod
    def of_trajectories(
        cls, kind: str, forwards: Array, backwards: Array, penalty: float, role: Role = Role.VOTE
    ) -> CandidateFit:
        """From each trajectory's log-likelihood in both directions."""
        shares = forwards - backwards
        totals = float(forwards.sum()), float(backwards.sum())
        return cls(kind, totals, penalty, float(shares.sum()), lambda: shares, role)

    @property
    def log_evidence(self) -> float:
        """Penalised log-likelihood (BIC) in the direction that fits better."""
        return max(self.log_likelihoods) - self.penalty

    @property
    def adequate(self) -> bool:
        """Nothing that its residuals show speaks against it."""
        return self.checks is None or self.checks.passed

    def surpassed_by(self, other: CandidateFit) -> bool:
        """The data prefer another one clearly, and not for having fewer parameters only.

        The Markov model is a special case of the others: where it fails and they do not, they have what it lacks. One whose residuals are
        not checked has to show that by its evidence: measurement noise of hardly any size passed for Markov steps that had failed.
        """
        if other.kind == CandidateKind.MARKOV:
            return self.checks is None and other.log_evidence > self.log_evidence
        fits_better = max(other.log_likelihoods) > max(self.log_likelihoods)
        return fits_better and other.log_evidence > self.log_evidence + TIE_NATS

    @property
    def forward_evidence(self) -> float:
        """Penalised log-likelihood (BIC) of the order as it stands."""
        return self.log_likelihoods[0] - self.penalty

    @cached_property
    def contributions(self) -> Array:
        """Each trajectory's `ℓ_j(order) − ℓ_j(reverse)`."""
        return self.by_trajectory()


class Candidate(Protocol):
    """A model that panels are compared by; `registry.CANDIDATES` lists those there are."""

    @property
    def kind(self) -> str:
        """Its name, as users read it: any unique string, a `CandidateKind` where other code asks for it."""
        ...

    @property
    def meaning(self) -> str:
        """What it says of the panel, in one clause."""
        ...

    @property
    def allows(self) -> str:
        """What it allows beyond Markov steps, as in "With … allowed"; empty where nothing is to be said."""
        ...

    @property
    def remedy(self) -> str:
        """What correlated residuals that it explains come from, and what to do about them."""
        ...

    def applies(self, along: CandidatesAlong) -> bool:
        """It can be fitted to these data."""
        ...

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        """Its fits along an order and along its reverse; None where the data do not determine it."""
        ...

    def predict(self, steps: StepRows) -> Prediction | None:
        """How well it predicts the next step from the past; None where that is no question."""
        ...
