"""A polynomial drift: `x_{t+1} = x_t + c + B φ(x_t) + e_t`, φ the products of up to two, or three, variables.

Saturating growth, epidemics, predators and prey, excitable systems: to linear models their curvature looks like momentum, and the direction
that it favours depends on the stretch of the path that was observed. Deterministic paths reversed are of the same kind; what
reveals the direction is where noise accumulates.

In continuous time, `dx = (c + B φ(x)) dt + H^½ dW`, steps are as the SDE makes them (`closed_form.flow`): no polynomials, and their noise is larger
where the flow expands. Logistic growth has steps whose variances differ by a factor of three, though the noise does not change. A quadratic step needs
free variances, and mostly free offsets, to follow that, and most of the evidence is lost with them.

The quadratic SDE is fitted only where a quadratic step is better than a linear one, and heard only where it passes its checks and is better by `TIE_NATS` than
that step, which may have free variances; otherwise steps are too fine to tell the two apart, and what the step's checks show counts: of 40 panels of
subjects with onsets of their own one more was called wrongly. There are no null panels: the direction is tested by Vuong's statistic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import TIE_NATS, CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.linear_step import MARKOV, StepCandidate, form_penalty
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.checks import CHECK_LEVEL, Checks, checks_of
from retrace_sde.evidence.closed_form.flow import FlowFit, Shared, fit_flow
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import contributions, fit_directions
from retrace_sde.fit.start_law import starts
from retrace_sde.io.arrays import Array
from retrace_sde.process.tails import chi2_sf

QUADRATIC_DRIFT = StepCandidate(
    CandidateKind.QUADRATIC,
    "a step is a quadratic function of the last value",
    allows="a quadratic drift",
    remedy="",
    degree=2,
)

CUBIC_DRIFT = StepCandidate(
    CandidateKind.CUBIC,
    "a step is a cubic function of the last value",
    allows="a cubic drift",
    remedy="",
    degree=3,
)


class MemoryAndQuadratic(StepCandidate):
    """Fitted only where the residuals of the quadratic drift revert, as measurement noise makes them.

    The last two values then say more of the state than the last one does.
    """

    def applies(self, along: CandidatesAlong) -> bool:
        plain = along.fit(QUADRATIC_DRIFT)
        noisy = plain is not None and plain.checks is not None and plain.checks.noisy
        return noisy and super().applies(along)


MEMORY_AND_QUADRATIC = MemoryAndQuadratic(
    CandidateKind.MEMORY_QUADRATIC,
    "memory, or measurement noise, and a step that is a quadratic function of the last value",
    allows="memory and a quadratic drift",
    remedy="",
    lags=2,
    degree=2,
)


MAX_VARIABLES, MAX_NUMBERS = 3, 20_000
"""Variables, and numbers (n T d), up to which it is fitted: more take longer than the other candidates together."""

DEGREE = 2


@dataclass(frozen=True)
class QuadraticSDE:
    """Steps of an SDE with a quadratic drift; shocks of steps or offsets of slices where both directions need them."""

    kind: str = CandidateKind.QUADRATIC_SDE
    meaning: str = "an SDE whose drift is a quadratic function of the state"
    allows: str = "a quadratic SDE"
    remedy: str = ""

    def applies(self, along: CandidatesAlong) -> bool:
        panels, step, plain = along.whole_panels, along.fit(QUADRATIC_DRIFT), along.fit(MARKOV)
        if panels is None or step is None or plain is None or not panels.aligned:
            return False
        small = panels.x.shape[3] <= MAX_VARIABLES and panels.x.size <= MAX_NUMBERS
        return small and along.affine and step.log_evidence > plain.log_evidence

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        panels, step = along.panels, along.fit(QUADRATIC_DRIFT)
        assert panels is not None  # it applies
        assert step is not None
        plain, shocks = (_Both.of(panels, each) for each in (Shared.NOTHING, Shared.SHOCKS))
        p = [_offsets_p(panels, *each) for each in zip(plain.totals, shocks.totals, strict=True)]
        if max(p) < CHECK_LEVEL:
            both = shocks, _Both.of(panels, Shared.PLATES)
            found = max(both, key=lambda each: each.best).as_candidate(self.kind, 1.0)
        else:
            better = int(plain.totals[1] > plain.totals[0])
            found = plain.as_candidate(self.kind, p[better])
            found = replace(found, apart=shocks.as_candidate(self.kind, 1.0))
        heard = found.adequate and found.log_evidence > step.log_evidence + TIE_NATS
        return replace(found, role=Role.VOTE if heard else Role.LISTED)

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


@dataclass(frozen=True, eq=False)
class _Both:
    """The fits of a panel and of its reverse, and each trajectory's log-likelihood in them, start included."""

    panels: Panels
    shared: Shared
    fits: tuple[FlowFit, FlowFit]
    shares: tuple[Array, Array]

    @classmethod
    def of(cls, panels: Panels, shared: Shared) -> _Both:
        ways = panels, panels.reverse
        one, two = (fit_flow(each.x[0], DEGREE, shared) for each in ways)
        shares = [
            fit.log_likelihoods
            + starts(each.first(1), fit.H[None], each.widths(1)).log_densities[0]
            for each, fit in zip(ways, (one, two), strict=True)
        ]
        return cls(panels, shared, (one, two), (shares[0], shares[1]))

    @property
    def totals(self) -> tuple[float, float]:
        return float(self.shares[0].sum()), float(self.shares[1].sum())

    @property
    def best(self) -> float:
        return max(self.totals)

    def as_candidate(self, kind: str, means: float) -> CandidateFit:
        """With the checks in the direction that fits better; `means`: the p-value of equal offsets."""
        panels, (one, two) = self.panels, self.shares
        like = Form(degree=DEGREE, means=self.shared is not Shared.NOTHING)
        volume = panels.log_volume
        found = CandidateFit.of_trajectories(kind, one, two, form_penalty(panels, like))
        totals = self.totals[0] - volume, self.totals[1] - volume
        checks = self._checks(like, means)
        return replace(found, log_likelihoods=totals, checks=checks, fitted=like)

    def _checks(self, like: Form, means: float) -> Checks:
        back = int(self.totals[1] > self.totals[0])
        way = self.panels.reverse if back else self.panels
        closed, straight = (
            fit_directions(self.panels, each)[back] for each in (like, like._replace(degree=1))
        )
        gain = self.shares[back] - contributions(way, straight)[0]
        return checks_of(way, self.fits[back].white, closed, gain, means=means)


def _offsets_p(panels: Panels, plain: float, free: float) -> float:
    """Of one offset for all steps, by the likelihood ratio."""
    T, d = panels.x.shape[2:]
    return float(chi2_sf(max(2 * (free - plain), 0.0), d * (T - 2)))


QUADRATIC_SDE = QuadraticSDE()
