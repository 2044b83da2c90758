"""Measurement noise or none: chosen by BIC, along the order found without noise.

Noise makes residuals of successive steps correlated negatively, down to −½. Only where they are is a state-space model fitted
along the order; those that the direction has fitted already are read from `CandidatesAlong`. Where it explains the data better
than every account without noise, order and parameters are searched again with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.noise import MAX_STATE_SPACE_WORK
from retrace_sde.evidence.candidates.penalty import Block, penalty
from retrace_sde.evidence.selection.intercepts import HiddenAccount, Subjects, hidden_levels_along
from retrace_sde.fit.random_intercepts import RandomIntercepts
from retrace_sde.io.arrays import Indices
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.process.drift import is_linear
from retrace_sde.search.model import Fit

MAX_LAG_ONE_Z = -2.0
"""Correlation of successive residuals, in standard errors, from which noise is tried: a fit with noise that is not there costs
time, one without noise that is there biases the drift, so that it is tried sooner than the direction does (−3). Of 21 panels with
noise and a correlation between −3 and −2 (15 or 40 trajectories, d = 2) BIC chose noise in 17, of 38 without noise in none."""

Kind = Literal["estimate", "diagonal"]


@dataclass(frozen=True)
class NoiseChoice:
    """Whether the data were measured with noise, and the evidence.

    `noise`: None, "estimate" (one share of every variable's scale) or "diagonal" (one variance each). `nats`: by how much
    noise is the better model, after its penalty (BIC); None: residuals gave no reason to try it.
    """

    noise: Kind | None
    nats: float | None = None

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        if self.noise is not None and self.nats is not None:
            return f"measurement noise, by {self.nats:.1f} nats after its penalty; observation_noise=None leaves it out"
        if self.nats is None:
            return (
                "no measurement noise: residuals of successive steps are not negatively correlated"
            )
        return (
            f"no measurement noise: it is worse by {-self.nats:.1f} nats after its penalty; "
            "observation_noise='estimate' fits it"
        )


def noise_by_evidence(
    along: CandidatesAlong, found: Fit, levels: RandomIntercepts | None
) -> NoiseChoice:
    """Noise, or none, along an order found without it; with values missing, R = 0 against R > 0.

    `along`: the candidates fitted on that order, or on its reverse. `levels`: random intercepts, where the fit has them.
    """
    model = along.model
    if not is_linear(model.drift) or not model.steps_equal or model.timing.gaps_known:
        return NoiseChoice(None)
    n, T, d = model.data.shape
    size = max(int(MAX_STATE_SPACE_WORK / (T * d**3)), 2 * d + 20)
    rows = evenly(n, size)
    few: Any = model.some(size)
    order = found.ordering.take(rows).index
    if not model.states_hidden and _lag_one_z(few, few.fit(order), levels, rows) > MAX_LAG_ONE_Z:
        return NoiseChoice(None)
    without = float(found.log_likelihoods[rows].sum())
    count = float(few.data.lengths.steps.total)
    kinds: dict[Kind, int] = {"estimate": 1, "diagonal": d} if d > 1 else {"estimate": 1}
    gains: dict[Kind, float] = {}
    for kind, parameters in kinds.items():
        hidden, fitted = along.state_space(kind, size, found.order)
        value = fitted.log_likelihood
        if levels is not None and HiddenAccount.applies(hidden, Subjects.LEVELS):
            # as the fit without noise has
            own = hidden_levels_along(hidden, fitted).log_likelihoods
            value += float((own - hidden.log_joint(order, fitted.law)).sum())
        gains[kind] = float(value - without - penalty(Block(parameters, count)))
    best = max(gains, key=lambda kind: gains[kind])
    return NoiseChoice(best if gains[best] > 0 else None, gains[best])


def _lag_one_z(few: Any, fit: Fit, levels: RandomIntercepts | None, rows: Indices) -> float:
    """Correlation of successive whitened residuals, in standard errors; about random intercepts, where there are some."""
    step, data = fit.step, few.data
    x = to_numpy(data.block(slice(None), fit.order)[0])
    A, c = step.coefficients[:, : x.shape[2]], step.coefficients[:, x.shape[2] :]
    push = x[:, :-1] @ A.T + (c.sum(axis=1) if c.size else 0.0)
    if levels is not None:
        push = x[:, :-1] @ levels.drift.T + levels.effects[rows, None]
    e = (np.diff(x, axis=1) - push * few.dt) @ step.whitening.T
    live = data.live
    e = e if live is None else e * live
    products = e[:, 1:] * e[:, :-1]
    spread = float((e**2).sum() / max(data.lengths.steps.total * x.shape[2], 1))
    seen = max(float(data.lengths.steps.steps.total) * x.shape[2], 1.0)
    return float(products.sum() / spread / np.sqrt(seen))
