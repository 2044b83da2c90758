"""Evidence for the offset of an affine drift, and for a quadratic drift: by BIC, along the order found.

The offset is that of a table's own units: without one the equilibrium is zero there. The affine drift is kept whatever the
evidence: an offset that is not needed costs little, one that is missing makes drift and direction wrong, and a quadratic drift
has no matrix of effects and must not be extrapolated. The verdict says what each would gain, and how to have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Drift, Linear, Polynomial
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel

MAX_QUADRATIC_VARIABLES = 6
"""Variables up to which a quadratic drift is compared: it has (d + 1)(d + 2)/2 features."""

STEPS_PER_FEATURE = 10
"""Steps for each feature of a quadratic drift, at least."""


@dataclass(frozen=True)
class DriftChoice:
    """An affine drift: by how many nats it is better than one without offset, and a quadratic one than it (None: not compared)."""

    nats: float
    quadratic: float | None = None

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        text = f"affine, by {self.nats:.1f} nats after the penalty of its offset"
        if self.nats <= 0:
            text = (
                f"affine, though its offset gains less than its penalty (by {-self.nats:.1f} nats)"
            )
        text += "; drift='linear' leaves it out"
        if self.quadratic is None:
            return text
        name = "drift=retrace_sde.drift.Polynomial(2)"
        if self.quadratic > 0:
            return f"{text}. A quadratic one is better by {self.quadratic:.1f} nats after its penalty: {name} fits it"
        return f"{text}. A quadratic one ({name}) is worse by {-self.quadratic:.1f} nats"


def drift_by_evidence(model: EulerModel, raw: Data, found: Fit) -> DriftChoice:
    """Of complete data along the order of a fit; `raw`: the data in units in which zero is zero."""
    d = raw.shape[2]
    steps = float(raw.lengths.steps.total)

    def evidence(data: Data, drift: Drift, features: int) -> float:
        each = EulerModel(data, model.dt, drift).fit_gaps(found.order, found.gaps)
        return each.log_likelihood - penalty(Block(d * features, steps))

    nats = evidence(raw, Affine(), d + 1) - evidence(raw, Linear(), d)
    features = (d + 1) * (d + 2) // 2
    quadratic = None
    if d <= MAX_QUADRATIC_VARIABLES and steps > STEPS_PER_FEATURE * features:
        flat = evidence(model.data, Affine(), d + 1)
        quadratic = evidence(model.data, Polynomial(2), features) - flat
    return DriftChoice(nats, quadratic)
