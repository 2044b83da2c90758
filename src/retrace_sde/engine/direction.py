"""Forward or backward, or undetermined: the test of the direction of time.

A stationary linear Gaussian SDE run backwards is again one (`A_rev = Σ Aᵀ Σ⁻¹`, same H) and fits the data
equally well, irreversible or not. Direction is known only from a transient (mean or spread still moving),
or from a drift whose reversal leaves its class. So it is tested, and the test may abstain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy import stats

from retrace_sde.data.blocks import Array

FEWEST = 3
"""Trajectories that the test needs: fewer have no law of the first observation."""

DISAGREES = 0.05
"""Level at which data that fit the reverse better are said to speak against what is known."""


class Reason(StrEnum):
    """What settled the direction, or left it open."""

    TESTED = "tested"
    TOO_FEW = "too few"
    KNOWN = "known"
    CYCLE = "cycle"
    FOLD = "fold"
    UNEQUAL_STEPS = "unequal steps"


class Caution(StrEnum):
    """A caution that others act on: they ask for it by name, whatever its words."""

    FOLD = (
        "With one variable a path that rises and falls folds onto itself: slices of the same level are "
        "neighbours whether on the way up or down, and no order of these data can tell. If it may be so, add a "
        "variable or some knowledge of time (the last slice, which half a slice is in, a few positions)."
    )


@dataclass(frozen=True)
class Evidence:
    """A log-likelihood ratio in nats, its z and its two-sided p-value."""

    log_likelihood_ratio: float
    z: float
    p_value: float

    def __str__(self) -> str:
        shown = f"p = {self.p_value:.2g}" if self.p_value >= 1e-4 else "p < 0.0001"
        return (
            f"log-likelihood ratio {self.log_likelihood_ratio:+.1f} nats, z = {self.z:.1f}, {shown}"
        )


@dataclass(frozen=True, eq=False)
class DirectionTest:
    """Vuong's test of the order found against its reverse, each with its own best parameters.

    Null hypothesis: both directions fit equally well. `log_likelihood_ratio` is `Σ_j Δ_j` in nats, with
    `Δ_j = ℓ_j(this order) − ℓ_j(its reverse)` the joint log-likelihood of trajectory j, start included;
    `z = Σ Δ_j / (√(n + d) sd Δ)`, and the p-value is two-sided from Student's t with n − 1 degrees of freedom.
    Vuong's error √n sd Δ leaves out that p₀ is estimated, which matters when d is not small beside n.

    `reason` says what settled the answer, or left it open; where that is not the test, `p_value` is what
    then stands in its place. `opposed` (steps too unequal for equal gaps) is the evidence with gaps estimated
    from the data, and `shared` whether one order holds for all.
    """

    identified: bool
    log_likelihood_ratio: float
    z: float
    p_value: float
    contributions: Array
    point_start: bool = False
    reason: Reason = Reason.TESTED
    opposed: Evidence | None = None
    shared: bool = True

    @property
    def known(self) -> bool:
        """The direction follows from what is known of time and was not tested."""
        return self.reason is Reason.KNOWN

    @property
    def evidence(self) -> Evidence:
        """What the test itself says, whatever settled the direction."""
        p = _two_sided(self.z, len(self.contributions))
        return Evidence(self.log_likelihood_ratio, self.z, p)

    @property
    def verdict(self) -> str:
        """The answer and its reason in words."""
        return _SENTENCES[self.reason](self)


def direction_test(
    forward: Array,
    backward: Array,
    *,
    dimension: int,
    alpha: float = 0.05,
    point_start: bool = False,
) -> DirectionTest:
    """The test from each trajectory's joint log-likelihood in the order found and in its reverse."""
    delta = np.asarray(forward, dtype=float) - np.asarray(backward, dtype=float)
    n, ratio = len(delta), float(delta.sum())
    if n < FEWEST:
        return DirectionTest(
            False, ratio, float("nan"), 1.0, delta, point_start, reason=Reason.TOO_FEW
        )
    error = float(delta.std(ddof=1) * np.sqrt(n + dimension))
    z = ratio / error if error > 0 else float(np.copysign(np.inf, ratio)) if ratio else 0.0
    p = _two_sided(z, n)
    return DirectionTest(p < alpha, ratio, z, p, delta, point_start)


def _two_sided(z: float, n: int) -> float:
    return float(2 * stats.t.sf(abs(z), n - 1))


def known_direction(test: DirectionTest, reverse_probability: float) -> DirectionTest:
    """The direction that the knowledge of time leaves: nothing to test, though the data may disagree.

    `p_value` becomes the probability that the knowledge alone gives the reverse (0: impossible).
    """
    return replace(test, identified=True, p_value=reverse_probability, reason=Reason.KNOWN)


def cyclic_direction(test: DirectionTest) -> DirectionTest:
    """Of a closed loop: without a first slice there is no evidence of a direction."""
    return _open(test, Reason.CYCLE)


def folded_direction(test: DirectionTest) -> DirectionTest:
    """Of an order in which one variable may lie folded onto itself: its ends need not be the ends of time."""
    return _open(test, Reason.FOLD)


def doubtful_direction(test: DirectionTest, other: DirectionTest, *, shared: bool) -> DirectionTest:
    """Of steps too unequal for equal gaps, where gaps estimated from the data say the opposite."""
    doubt = _open(test, Reason.UNEQUAL_STEPS)
    return replace(doubt, opposed=other.evidence, shared=shared)


def _open(test: DirectionTest, reason: Reason) -> DirectionTest:
    return replace(test, identified=False, p_value=1.0, reason=reason)


def _tested(test: DirectionTest) -> str:
    if not test.identified:
        return (
            f"The direction of time is not determined by these data ({test.evidence}): the order and "
            "its reverse fit equally well, as they do when the process is stationary. Both are returned."
        )
    sentence = f"The direction of time is identified: {test.evidence}."
    if test.point_start:
        sentence += (
            " One end of the order has (almost) no spread: a common start, itself strong evidence; "
            "its spread is floored, so the ratio is a lower bound."
        )
    return sentence


def _too_few(test: DirectionTest) -> str:
    n = len(test.contributions)
    return (
        f"The direction of time cannot be tested on {n} trajector{'y' if n == 1 else 'ies'}: the law of "
        f"the first observation, which carries the evidence, needs at least {FEWEST}."
    )


def _known(test: DirectionTest) -> str:
    sentence = "The direction of time is known from the knowledge given; it was not tested."
    if test.evidence.p_value < DISAGREES and test.log_likelihood_ratio < 0:
        sentence += f" The data, taken alone, fit the reverse better ({test.evidence}): check that knowledge."
    return sentence


def _cyclic(test: DirectionTest) -> str:
    return (
        "The slices form a closed loop: the order is cyclic, its cut arbitrary, and which way round it runs is "
        "not determined. Both are returned."
    )


def _folded(test: DirectionTest) -> str:
    return (
        "The direction of time is not determined: one variable may have folded onto itself, and the ends of a "
        "folded order are not the ends of time. Both directions are returned."
    )


def _unequal_steps(test: DirectionTest) -> str:
    advice = "Give times if there are any" + (", or use spacing='estimate'" if test.shared else "")
    return (
        f"The direction of time is not determined: with equal gaps this order fits better "
        f"({test.evidence}), but its steps differ too much for equal "
        f"gaps, and with gaps estimated from the data its reverse does "
        f"({test.opposed}). {advice}. "
        "Both directions are returned."
    )


_SENTENCES: dict[Reason, Callable[[DirectionTest], str]] = {
    Reason.TESTED: _tested,
    Reason.TOO_FEW: _too_few,
    Reason.KNOWN: _known,
    Reason.CYCLE: _cyclic,
    Reason.FOLD: _folded,
    Reason.UNEQUAL_STEPS: _unequal_steps,
}
