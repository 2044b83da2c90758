"""Forward or backward, or undetermined: the test of the direction of time.

A stationary linear Gaussian SDE run backwards is again one (`A_rev = Σ Aᵀ Σ⁻¹`, same H) and fits the data
equally well, irreversible or not. Direction is known only from a transient (mean or spread still moving),
or from a drift whose reversal leaves its class. So it is tested, and the test may abstain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from retrace_sde.data.blocks import Array


@dataclass(frozen=True, eq=False)
class DirectionTest:
    """Vuong's test of the order found against its reverse, each with its own best parameters.

    Null hypothesis: both directions fit equally well. `log_likelihood_ratio` is `Σ_j Δ_j` in nats, with
    `Δ_j = ℓ_j(this order) − ℓ_j(its reverse)` the joint log-likelihood of trajectory j, start included;
    `z = Σ Δ_j / (√(n + d) sd Δ)`, and the p-value is two-sided from Student's t with n − 1 degrees of freedom.
    Vuong's error √n sd Δ leaves out that p₀ is estimated, which matters when d is not small beside n.
    `known`: the direction follows from what is known of time and was not tested.
    """

    identified: bool
    log_likelihood_ratio: float
    z: float
    p_value: float
    verdict: str
    contributions: Array
    point_start: bool = False
    known: bool = False


def known_direction(test: DirectionTest, reverse_probability: float) -> DirectionTest:
    """The direction that the knowledge of time leaves: nothing to test, though the data may disagree.

    `p_value` becomes the probability that the knowledge alone gives the reverse (0: impossible).
    """
    verdict = "The direction of time is known from the knowledge given; it was not tested."
    if test.p_value < 0.05 and test.log_likelihood_ratio < 0:
        verdict += (
            " The data, taken alone, fit the reverse better "
            f"({_evidence(test.log_likelihood_ratio, test.z, test.p_value)}): check that knowledge."
        )
    return replace(test, identified=True, p_value=reverse_probability, verdict=verdict, known=True)


def cyclic_direction(test: DirectionTest) -> DirectionTest:
    """Of a closed loop: without a first slice there is no evidence of a direction."""
    verdict = (
        "The slices form a closed loop: the order is cyclic, its cut arbitrary, and which way round it runs is "
        "not determined. Both are returned."
    )
    return replace(test, identified=False, p_value=1.0, verdict=verdict)


def doubtful_direction(test: DirectionTest, other: DirectionTest, *, shared: bool) -> DirectionTest:
    """Of steps too unequal for equal gaps, where gaps estimated from the data say the opposite."""
    advice = "Give times if there are any" + (", or use spacing='estimate'" if shared else "")
    verdict = (
        f"The direction of time is not determined: with equal gaps this order fits better "
        f"({_evidence(test.log_likelihood_ratio, test.z, test.p_value)}), but its steps differ too much for equal "
        f"gaps, and with gaps estimated from the data its reverse does "
        f"({_evidence(other.log_likelihood_ratio, other.z, other.p_value)}). {advice}. "
        "Both directions are returned."
    )
    return replace(test, identified=False, p_value=1.0, verdict=verdict)


def folded_direction(test: DirectionTest) -> DirectionTest:
    """Of an order in which one variable may lie folded onto itself: its ends need not be the ends of time."""
    verdict = (
        "The direction of time is not determined: one variable may have folded onto itself, and the ends of a "
        "folded order are not the ends of time. Both directions are returned."
    )
    return replace(test, identified=False, p_value=1.0, verdict=verdict)


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
    if n < 3:
        verdict = (
            f"The direction of time cannot be tested on {n} trajector{'y' if n == 1 else 'ies'}: the law of "
            "the first observation, which carries the evidence, needs at least 3."
        )
        return DirectionTest(False, ratio, float("nan"), 1.0, verdict, delta, point_start)
    error = float(delta.std(ddof=1) * np.sqrt(n + dimension))
    z = ratio / error if error > 0 else float(np.copysign(np.inf, ratio)) if ratio else 0.0
    p = float(2 * stats.t.sf(abs(z), n - 1))
    identified = p < alpha
    if identified:
        verdict = f"The direction of time is identified: {_evidence(ratio, z, p)}."
        if point_start:
            verdict += (
                " One end of the order has (almost) no spread: a common start, itself strong evidence; "
                "its spread is floored, so the ratio is a lower bound."
            )
    else:
        verdict = (
            f"The direction of time is not determined by these data ({_evidence(ratio, z, p)}): the order and "
            "its reverse fit equally well, as they do when the process is stationary. Both are returned."
        )
    return DirectionTest(identified, ratio, z, p, verdict, delta, point_start)


def _evidence(ratio: float, z: float, p: float) -> str:
    shown = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    return f"log-likelihood ratio {ratio:+.1f} nats, z = {z:.1f}, {shown}"
