"""With an offset or without, and what a curved drift would be worth: by Schwarz' evidence, along the order found.

The offset of a table's own units: without one the equilibrium is zero there. A quadratic drift is compared but never taken by
itself: it has no matrix of effects, and must not be read beyond the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrace_sde.data.blocks import Data
from retrace_sde.engine.euler import EulerModel
from retrace_sde.engine.model import Fit
from retrace_sde.process.drift import Affine, Drift, Linear, Polynomial

CURVED = 6
"""Variables up to which a quadratic drift is compared: it has (d + 1)(d + 2)/2 features."""

ROOM = 10
"""Steps for each feature of a quadratic drift, at least."""


@dataclass(frozen=True)
class DriftChoice:
    """Which drift, by how many nats over the other, and by how many a quadratic one is better (None: not compared)."""

    kind: Literal["affine", "linear"]
    nats: float
    quadratic: float | None = None

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        if self.kind == "linear":
            text = (
                f"without offset, by {self.nats:.1f} nats after its price; drift='affine' fits one"
            )
        elif self.nats > 0:
            text = f"with an offset, by {self.nats:.1f} nats after its price; drift='linear' leaves it out"
        else:
            text = (
                f"with an offset: without one it is better by {-self.nats:.1f} nats, but its equilibrium, zero, is far "
                "from the data, or subjects differ; drift='linear' leaves it out"
            )
        if self.quadratic is None:
            return text
        name = "drift=retrace_sde.drift.Polynomial(2)"
        if self.quadratic > 0:
            return f"{text}. A quadratic one is better by {self.quadratic:.1f} nats after its price: {name} fits it"
        return f"{text}. A quadratic one ({name}) is worse by {-self.quadratic:.1f} nats"


def drift_by_evidence(model: EulerModel, raw: Data, found: Fit, *, needed: bool) -> DriftChoice:
    """With an offset or without, of complete data; `raw` in units in which zero is zero, `needed`: the offset is, for other reasons."""
    d = raw.shape[2]
    steps = float((raw.observed - 1).sum())

    def evidence(data: Data, drift: Drift, features: int) -> float:
        each = EulerModel(data, model.dt, drift).fit_gaps(found.order, found.gaps)
        return each.log_likelihood - 0.5 * d * features * float(np.log(steps))

    nats = evidence(raw, Affine(), d + 1) - evidence(raw, Linear(), d)
    features = (d + 1) * (d + 2) // 2
    quadratic = None
    if d <= CURVED and steps > ROOM * features:
        flat = evidence(model.data, Affine(), d + 1)
        quadratic = evidence(model.data, Polynomial(2), features) - flat
    if nats < 0 and not needed:
        return DriftChoice("linear", -nats, quadratic)
    return DriftChoice("affine", nats, quadratic)
