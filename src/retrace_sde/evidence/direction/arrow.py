"""The answer on the direction of data that are in order: forwards, backwards or open, how strong, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.direction.verdict import (
    CLOSE,
    DirectionTest,
    Reason,
    assumptions_of,
    p_words,
)
from retrace_sde.process.tails import norm_ppf

MOST_MORE_DATA = 50.0
"""Times as many trajectories up to which more data are proposed: beyond, the two directions are practically alike."""


CLOSED_LOOP = "The direction of time is not determined: the trajectories run through a closed loop, and return to where they started."
"""Of an order that was given: its start is not arbitrary, but the slices that are left and those that are entered are nearly the same, and one drift is a poor
description of one period: the stride of 39 children (gait) was called backwards by 38 nats."""


class Arrow(StrEnum):
    """Which way time runs along an order that was given."""

    FORWARDS = "forwards"
    BACKWARDS = "backwards"
    OPEN = "open"


class EntropyProduction(NamedTuple):
    """Of the fitted linear process at rest, in nats per unit of time, with 95 % limits (None where there are none).

    `p_value`: of detailed balance, under which it is zero. Where that is not rejected, `low` is 0 and `high` a one-sided bound.
    """

    rate: float
    low: float | None
    high: float | None
    p_value: float

    def __str__(self) -> str:
        if self.low == 0:
            most = (
                ""
                if self.high is None
                else f", and at most {self.high:.2g} nats per unit of time (95 % bound)"
            )
            return f"not significantly above zero (detailed balance: {p_words(self.p_value)}){most}"
        if self.low is None or self.high is None:
            return f"{self.rate:.3g} nats per unit of time"
        return f"{self.rate:.3g} nats per unit of time (95 % interval {self.low:.3g} to {self.high:.3g})"


class Blocks(NamedTuple):
    """How one long series was split: number of blocks, their length, and observations left out between two of them."""

    number: int
    length: int
    apart: int

    def __str__(self) -> str:
        return f"{self.number} blocks of {self.length} observations, {self.apart} apart"


@dataclass(frozen=True, eq=False, repr=False)
class ArrowTest(DirectionTest):
    """The test of the order that was given against its reverse.

    All that `DirectionTest` has, with ratios of the order as it was given: positive where it fits better than its reverse.

    Attributes
    ----------
    direction : Arrow
        "forwards", "backwards" or "open".
    reversibility_p : float or None
        p-value of "every trajectory is as likely as its reverse", by random time reversal, without any model; None where there are too few
        trajectories. Data may be irreversible although their direction is open: a linear process that rotates does so in reverse, too.
    entropy_production : EntropyProduction or None
        Of the fitted linear process, where that has a stationary law and two variables or more.
    blocks : Blocks or None
        How one long series was split.
    sorted_by : str or None
        A variable that changes in the same direction in every step of every trajectory: the order may be sorted by it.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    >>> found = rt.arrow_of_time(sde.simulate(40, 12, 0.05, random_state=1), dt=0.05)
    >>> found.direction, found.turned().direction
    (<Arrow.FORWARDS: 'forwards'>, <Arrow.BACKWARDS: 'backwards'>)
    """

    direction: Arrow = Arrow.OPEN
    reversibility_p: float | None = None
    entropy_production: EntropyProduction | None = None
    blocks: Blocks | None = None
    sorted_by: str | None = None

    def __repr__(self) -> str:
        p = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        return f"ArrowTest({self.direction}{p}: {self.verdict})"

    def turned(self) -> ArrowTest:
        """The same test of the data reversed."""
        back = {Arrow.FORWARDS: Arrow.BACKWARDS, Arrow.BACKWARDS: Arrow.FORWARDS}
        found = super().turned()
        assert isinstance(found, ArrowTest)
        return replace(found, direction=back.get(self.direction, Arrow.OPEN))

    @property
    def verdict(self) -> str:
        """The answer and its reason in words."""
        if self.direction is Arrow.OPEN:
            said = CLOSED_LOOP if self.reason is Reason.CYCLE else self.sentence
            return said + self._asymmetry + (CLOSE if self.close else "")
        backwards = self.direction is Arrow.BACKWARDS
        answer = "Time runs backwards" if backwards else "Time runs forwards, in the order given"
        if self.reason is Reason.RESIDUALS:
            these = ("the reverse of the order given", "that order itself") if backwards else ("it", "its reverse")  # fmt: skip
            return (
                f"{answer}: noise that is not Gaussian shows it. Residuals are independent of the past in {these[0]}, and not in "
                f"{these[1]} ({p_words(self.p_value)})."
            )
        better = (
            "the reverse of the order given explains the data better"
            if backwards
            else "it explains the data better than its reverse"
        )
        return f"{answer}: {better} ({self.evidence}){self._model}." + (CLOSE if self.close else "")

    @property
    def _model(self) -> str:
        best = self.preferred
        return "" if best is None else f"; model: {best.name} ({best.meaning})"

    @property
    def _asymmetry(self) -> str:
        """That data are irreversible although their direction is open."""
        p = self.reversibility_p
        if p is None or p >= self.alpha:
            return ""
        return (
            f" The data do differ from their time reverse ({p_words(p)}, each trajectory randomly reversed), but processes of the "
            "same kind run either way."
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the direction to be right, one plain sentence each; empty where none is identified."""
        if not self.identified:
            return ()
        # What a direction rests on is said of the order that was called.
        called = super().turned() if self.direction is Arrow.BACKWARDS else self
        found = tuple(assumptions_of(called))
        more = []
        if self.sorted_by is not None:
            more.append(
                f"Rows were not sorted by {self.sorted_by!r}, which changes in the same direction in every step of every trajectory: of "
                "data sorted by their own values (bins of pseudotime) the direction is that of the sorting."
            )
        if self.blocks is not None:
            more.append(
                f"The series is stationary, and {self.blocks}, are independent of one another."
            )
        return (*found, *more)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would help where the direction is open, one plain sentence each."""
        return tuple(self._advice()) if self.direction is Arrow.OPEN else ()

    def _advice(self) -> Iterator[str]:
        if self.reason is Reason.TOO_FEW:
            yield (
                "Give more trajectories, or a longer series."
                if self.blocks is None
                else "Give a longer series, of at least "
                f"{8 * (self.blocks.length + self.blocks.apart)} observations."
            )
        elif self.undecided:
            wanted = float(-norm_ppf(self.alpha / 2))
            more = (wanted / max(abs(self.z), 1e-3)) ** 2
            if 1 < more < MOST_MORE_DATA:
                n = int(np.ceil(more * self._independent))
                yield f"About {n} trajectories like these would decide, if the ratio grows as it did so far."
        elif self.reason is Reason.TESTED:
            yield (
                "More data of this kind will not help. A transient would: trajectories that start from one state, or after a "
                "disturbance; so would a variable that only grows, or one whose noise is not Gaussian."
            )
        elif self.reason is Reason.UNEXPLAINED:
            yield "Add variables that may be missing, or leave out those that something outside moves."
        elif self.reason is Reason.MODELS_DISAGREE:
            yield "Longer trajectories, or more of them, let the data choose between these models."
        elif self.reason is Reason.EQUAL_CELLS:
            yield "Leave out values that were carried forward or cut off, or give them as missing."

    @property
    def answer(self) -> dict[str, object]:
        """The answer as plain numbers and sentences."""
        rate = self.entropy_production
        best = self.preferred
        return {
            "direction": str(self.direction),
            "p_value": self.p_value,
            "p_source": None if self.p_source is None else str(self.p_source),
            "log_likelihood_ratio": self.log_likelihood_ratio,
            "model": None if best is None else best.name,
            "rests_on": dict(self.rests_on),
            "reversibility_p_value": self.reversibility_p,
            "entropy_production": None if rate is None else rate._asdict(),
            "blocks": None if self.blocks is None else self.blocks._asdict(),
            "verdict": self.verdict,
            "assumptions": list(self.assumptions),
            "advice": list(self.advice),
        }
