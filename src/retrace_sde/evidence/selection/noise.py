"""Measured with noise or without: chosen by evidence, along the order found without.

Noise of one observation is in two steps with opposite signs, so that residuals of successive steps are correlated
negatively, down to −½. Only where they are is a state space fitted along the order; where it explains the data better, by
Schwarz' evidence, than any account without noise, order and parameters are sought anew with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from retrace_sde.evidence.selection.hidden_levels import can_have_levels, hidden_levels_along
from retrace_sde.fit.levels import LevelFit
from retrace_sde.fit.statespace.levels import HiddenLevels
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.process.drift import is_linear
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.protocols import Model

DOUBT = -2.0
"""Correlation of successive residuals, in standard errors, from which noise is tried."""

WORK = 3e6
"""n T d³ up to which a state space is fitted for the comparison; of larger panels some trajectories decide."""


Kind = Literal["estimate", "diagonal"]


@dataclass(frozen=True)
class NoiseChoice:
    """Whether the data were measured with noise, and what speaks for it.

    `noise`: None, "estimate" (one share of every variable's scale) or "diagonal" (one number each). `nats`: by how much
    noise is the better account, after Schwarz' price; None: residuals gave no reason to try it.
    """

    noise: Kind | None
    nats: float | None = None

    @property
    def verdict(self) -> str:
        """What was chosen, by how much, and how to choose otherwise."""
        if self.noise is not None and self.nats is not None:
            return f"measurement noise, by {self.nats:.1f} nats after its price; observation_noise=None leaves it out"
        if self.nats is None:
            return "no measurement noise: residuals of successive steps do not call for it"
        return (
            f"no measurement noise: it is worse by {-self.nats:.1f} nats after its price; "
            "observation_noise='estimate' fits it"
        )


def noise_by_evidence(
    model: Model, found: Fit, levels: LevelFit | HiddenLevels | None
) -> NoiseChoice:
    """Noise, or none, along an order found without; with values missing, R = 0 against R > 0."""
    if not isinstance(model, EulerModel | HiddenModel) or not is_linear(model.drift):
        return NoiseChoice(None)
    unequal = isinstance(model, HiddenModel) and not model.regular
    if unequal or isinstance(model, GapModel) or model.timing.gaps_known:
        return NoiseChoice(None)
    n, T, d = model.data.shape
    size = max(int(WORK / (T * d**3)), 2 * d + 20)
    rows = evenly(n, size)
    few: EulerModel | HiddenModel = model.some(size)
    order = found.ordering.take(rows).index
    if isinstance(few, EulerModel) and _lag_one(few, few.fit(order), levels, rows) > DOUBT:
        return NoiseChoice(None)
    without = float(found.log_likelihoods[rows].sum())
    count = float(few.data.lengths.steps.total)
    best = NoiseChoice(None, -np.inf)
    kinds: list[tuple[Kind, int]] = [("estimate", 1)]
    if d > 1:
        kinds.append(("diagonal", d))
    for kind, price in kinds:
        hidden = HiddenModel.of(few, noise=kind)
        fitted = hidden.fit(order, final=True)
        value = fitted.log_likelihood
        if levels is not None and can_have_levels(hidden):  # as the account without noise has
            own = hidden_levels_along(hidden, fitted).log_likelihoods
            value += float((own - hidden.log_joint(order, fitted.law)).sum())
        nats = value - without - 0.5 * price * np.log(count)
        if best.nats is None or nats > best.nats:
            best = NoiseChoice(kind, float(nats))
    return best if best.nats is not None and best.nats > 0 else replace(best, noise=None)


def _lag_one(
    few: EulerModel, fit: Fit, levels: LevelFit | HiddenLevels | None, rows: np.ndarray
) -> float:
    """Correlation of successive whitened residuals, in standard errors; levels, where there are some, taken out."""
    step, data = fit.step, few.data
    x = to_numpy(data.block(slice(None), fit.order)[0])
    A, c = step.coefficients[:, : x.shape[2]], step.coefficients[:, x.shape[2] :]
    push = x[:, :-1] @ A.T + (c.sum(axis=1) if c.size else 0.0)
    if levels is not None:
        push = x[:, :-1] @ levels.drift.T + levels.effects[rows, None]
    e = (np.diff(x, axis=1) - push * few.dt) @ step.whitening.T
    live = data.live(slice(None))
    e = e if live is None else e * live
    products = e[:, 1:] * e[:, :-1]
    spread = float((e**2).sum() / max(data.lengths.steps.total * x.shape[2], 1))
    seen = max(float(data.lengths.steps.steps.total) * x.shape[2], 1.0)
    return float(products.sum() / spread / np.sqrt(seen))
