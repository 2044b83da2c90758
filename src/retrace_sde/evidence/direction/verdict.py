"""Forward or backward, or undetermined: the test of the direction of time.

A stationary linear Gaussian SDE run backwards is again one (`A_rev = Σ Aᵀ Σ⁻¹`, same H) and fits the data
equally well, irreversible or not. The direction shows only in a transient (mean or spread still changing),
or in a drift whose reversal leaves its class. So it is tested, and the test may abstain.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.candidates.registry import candidate
from retrace_sde.evidence.closed_form.panels import Ground
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.process.tails import t_sf

MIN_TRAJECTORIES = 3
"""Trajectories that the test needs: of fewer the law of the first observation cannot be estimated."""

CONTRADICTION_LEVEL = 0.05
"""Level at which data that fit the reverse better are said to contradict what is known."""


class Reason(StrEnum):
    """What decided the direction, or left it open."""

    TESTED = "tested"
    TOO_FEW = "too few"
    KNOWN = "known"
    CYCLE = "cycle"
    FOLD = "fold"
    UNEQUAL_STEPS = "unequal steps"
    EQUAL_CELLS = "equal cells"
    ALIGNMENT = "alignment"
    MODELS_DISAGREE = "models disagree"
    UNEXPLAINED = "unexplained"
    NOT_ALLOWED = "not allowed"
    RESIDUALS = "residuals"
    STOPPED = "stopped"


class Source(StrEnum):
    """Where a p-value comes from."""

    SIMULATION = "simulation"
    REVERSAL = "random time reversal"
    VUONG = "Vuong's statistic"
    RESIDUALS = "independence of residuals"


class Caution(StrEnum):
    """A caution that others act on: they ask for it by name, whatever its words."""

    FOLD = (
        "The order may be folded: with one variable, or several that move along one line, a path that rises and falls folds "
        "onto itself. Slices of the same level are then neighbours whether on the way up or down, and these data cannot tell them "
        "apart. If that is possible here, add a variable or some knowledge of time (the last slice, which half a slice is in, a "
        "few positions)."
    )


INDEPENDENCE_MEANING = (
    "noise that is not Gaussian: residuals are independent of the past in one direction only"
)


def p_words(value: float | None, error: float | None = None) -> str:
    """A p-value in words, with the Monte-Carlo `error` that a simulated one has.

    Where no null panel of N reaches the ratio it is `1 / (N + 1)`, with an error as large as itself: a bound.
    """
    if value is None:
        return "not tested"
    if error and error > 0.9 * value:
        return f"p ≤ {value:.2g}"
    shown = f"p = {value:.2g}" if value >= 1e-4 else "p < 0.0001"
    return f"{shown} ± {error:.1g}" if error else shown


@dataclass(frozen=True)
class Evidence:
    """A log-likelihood ratio in nats, its z and its two-sided p-value."""

    log_likelihood_ratio: float
    z: float
    p_value: float
    p_error: float | None = None
    by_reversal: bool = False

    def __str__(self) -> str:
        way = " by simulation" if self.p_error else f" by {Source.REVERSAL}" * self.by_reversal
        shown = p_words(self.p_value, self.p_error) + way
        return f"log-likelihood ratio {self.log_likelihood_ratio:+.1f} nats, {shown}"


@dataclass(frozen=True)
class ModelEvidence:
    """A candidate model of the panel, fitted along the order found and along its reverse.

    `log_evidence`: penalised log-likelihood (BIC) in nats, in the direction that fits better; `log_likelihood_ratio` of the order
    returned against its reverse; `p_value` with its Monte-Carlo error where the direction was tested in it, None elsewhere.
    `counted`: it is within a few nats of the best, or may oppose a direction; all that count must agree. `free`: what the
    steps of all trajectories share and the model leaves free. `unexplained`: what its residuals still show; it then has no say.
    """

    name: str
    log_evidence: float
    log_likelihood_ratio: float
    p_value: float | None = None
    p_error: float | None = None
    counted: bool = False
    free: tuple[str, ...] = ()
    unexplained: str | None = None

    def said(self, most: float) -> str:
        """The model in a few words, its penalised log-likelihood relative to the `most` that one has."""
        tested = "" if self.p_value is None else f", {p_words(self.p_value)}"
        if not self.rated:
            return f"{self.name} ({self.ratio_said}{tested})"
        return f"{self.name} (evidence {self.log_evidence - most:+,.0f} nats, {self.ratio_said}{tested})"

    @property
    def ratio_said(self) -> str:
        """The ratio in words; tests of independence have none, and only favour a direction."""
        if np.isinf(self.log_likelihood_ratio):
            return "for this order" if self.log_likelihood_ratio > 0 else "for the reverse"
        if not self.rated:
            return "for neither direction"
        return f"ratio {self.log_likelihood_ratio:+.1f}"

    @property
    def p_said(self) -> str:
        """The p-value with its Monte-Carlo error, where the direction was tested in this model."""
        if self.p_value is None:
            return ""
        return p_words(self.p_value, self.p_error).removeprefix("p ").removeprefix("= ")

    @property
    def rated(self) -> bool:
        """It has a likelihood; a test of independence has none."""
        return self.name != CandidateKind.RESIDUALS

    @property
    def meaning(self) -> str:
        """What the model says of the panel, in words."""
        if not self.rated:
            return INDEPENDENCE_MEANING
        found = candidate(self.name)
        return "" if found is None else found.meaning

    @property
    def bar(self) -> float:
        """The ratio as a length between −1 and 1, for drawing: half of it at ten nats."""
        if np.isinf(self.log_likelihood_ratio):
            return float(np.sign(self.log_likelihood_ratio))
        return self.log_likelihood_ratio / (10 + abs(self.log_likelihood_ratio))

    def turned(self) -> ModelEvidence:
        """The same for the reverse of the order."""
        return replace(self, log_likelihood_ratio=-self.log_likelihood_ratio)


@dataclass(frozen=True, eq=False)
class DirectionTest:
    """The test of the order found against its reverse, each with its own best parameters.

    Null hypothesis: both directions fit equally well. The p-value is two-sided, from Student's t with n − 1 degrees of freedom
    where that is clear of the level, else by null simulation (`evidence.closed_form.null_simulation`).
    It never says that time runs *backwards*: the order returned is the more likely of the two, and the question is
    whether the data distinguish it from its reverse. Limits: `docs/direction.md`.

    Attributes
    ----------
    identified : bool
        The direction is determined, by the test or by what is known of time.
    log_likelihood_ratio : float
        `Σ_j Δ_j` in nats, `Δ_j = ℓ_j(this order) − ℓ_j(its reverse)` the joint log-likelihood of trajectory j, start included.
    z : float
        `Σ Δ_j / (√(n + d) sd Δ)` (Vuong's, whose error √n sd Δ leaves out that p₀ is estimated).
    p_value : float or None
        None where something other than the test decided.
    contributions : array (n,)
        The `Δ_j`.
    point_start : bool
        All trajectories start from (nearly) one point, which is evidence by itself.
    reason : Reason
        What decided, or left the direction open.
    opposed : Evidence or None
        Where steps are too unequal for equal gaps, the evidence with gaps estimated from the data.
    shared : bool
        One order holds for all.
    dimension : int
        Variables.
    p_error : float or None
        Monte-Carlo error of the p-value (0: none).
    models : tuple of ModelEvidence
        The candidate models compared on the order found (`evidence.direction.comparison`), the best first; ratio, z and
        `contributions` are those of the first that votes, the p-value the largest of those within a few nats of it.
    alpha : float
        Level of the test.
    n_groups : int or None
        Groups whose contributions are independent; None: those of all trajectories are.
    rests_on : dict
        What the direction rests on, in nats for this order: "means" and "spreads" (the slices' means, and deviations from them,
        follow the dynamics in one direction only; they add up to the ratio), "residuals" (noise that is not Gaussian: −log p,
        which is no likelihood ratio) or "knowledge" (the log-odds of what is known).
    unexplained : str or None
        What the residuals of every model still show, where that left the direction open.
    aligned : str or None
        At what subjects are aligned, as far as that was told: "start", "end" or "neither".
    by_reversal : bool
        The p-value is that of the randomisation test, in which trajectories are time-reversed at random.
    components : int
        Principal components of the variables that the direction was identified by; 0: by all variables.
    deviations : bool
        Common shocks were removed: only deviations from the slice means were tested.
    noise_nats : float or None
        By how much the fit prefers measurement noise, where it compared (`noise_choice`): candidates are compared along another order, and where
        values are missing on values that were drawn.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    >>> test = rt.ReTrace(dt=0.05, random_state=0).fit(sde.simulate(40, 12, 0.05, random_state=1)).direction_
    >>> test.identified, test.log_likelihood_ratio > 0, test.turned().log_likelihood_ratio < 0
    (True, True, True)
    >>> print(test.verdict)  # doctest: +ELLIPSIS
    The direction of time is identified: ...
    """

    identified: bool
    log_likelihood_ratio: float
    z: float
    p_value: float | None
    contributions: Array
    point_start: bool = False
    reason: Reason = Reason.TESTED
    opposed: Evidence | None = None
    shared: bool = True
    dimension: int = 0
    p_error: float | None = None
    models: tuple[ModelEvidence, ...] = ()
    alpha: float = 0.05
    n_groups: int | None = None
    rests_on: Mapping[str, float] = field(default_factory=dict)
    unexplained: str | None = None
    aligned: str | None = None
    by_reversal: bool = False
    components: int = 0
    deviations: bool = False
    noise_nats: float | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the direction to be right, one plain sentence each; empty where none is identified."""
        return tuple(assumptions_of(self)) if self.identified else ()

    @property
    def p_source(self) -> Source | None:
        """Where the p-value comes from (Vuong's statistic is conservative); None where nothing was tested."""
        if self.p_value is None:
            return None
        if self.reason is Reason.RESIDUALS:
            return Source.RESIDUALS
        if self.p_error:
            return Source.SIMULATION
        return Source.REVERSAL if self.by_reversal else Source.VUONG

    @property
    def close(self) -> bool:
        """The p-value is within two of its own Monte-Carlo errors of the level."""
        if self.p_value is None or not self.p_error:
            return False
        return abs(self.p_value - self.alpha) < 2 * self.p_error

    def __repr__(self) -> str:
        p = "" if self.p_value is None else f", p = {self.p_value:.2g}"
        return f"DirectionTest({'identified' if self.identified else 'open'}{p}: {self.verdict})"

    def _repr_html_(self) -> str:
        """The verdict, for notebooks."""
        return f"<p>{html.escape(self.verdict)}</p>"

    def turned(self) -> DirectionTest:
        """The same test with the reverse as the order: ratio, z and contributions change sign."""
        return replace(
            self,
            log_likelihood_ratio=-self.log_likelihood_ratio,
            z=-self.z,
            contributions=-self.contributions,
            models=tuple(each.turned() for each in self.models),
            rests_on={name: -nats for name, nats in self.rests_on.items()},
        )

    @property
    def preferred(self) -> ModelEvidence | None:
        """The model in which the direction was tested; None where it is the only one."""
        return next((each for each in self.models if each.p_value is not None), None)

    @property
    def alike(self) -> bool:
        """The order and its reverse fit equally well, as far as these data show."""
        return (
            abs(self.log_likelihood_ratio) < EQUAL_FIT_NATS or self.evidence.p_value > EQUAL_FIT_P
        )

    @property
    def undecided(self) -> bool:
        """One direction fits better, but not significantly: more data like these could decide."""
        return self.reason is Reason.TESTED and not self.identified and not self.alike

    @property
    def known(self) -> bool:
        """The direction follows from what is known of time and was not tested."""
        return self.reason is Reason.KNOWN

    @property
    def contradicted(self) -> bool:
        """The direction is known, and the data alone fit the reverse better."""
        doubt = self.log_likelihood_ratio < 0 and self.evidence.p_value < CONTRADICTION_LEVEL
        return self.known and doubt

    @property
    def evidence(self) -> Evidence:
        """The result of the test itself, whatever decided the direction."""
        if self.p_value is not None:
            return Evidence(
                self.log_likelihood_ratio, self.z, self.p_value, self.p_error, self.by_reversal
            )
        return Evidence(self.log_likelihood_ratio, self.z, _two_sided(self.z, self._independent))

    @property
    def _independent(self) -> int:
        """How many contributions are independent of one another: of trajectories, or summed within groups."""
        return len(self.contributions) if self.n_groups is None else self.n_groups

    @property
    def verdict(self) -> str:
        """The answer and its reason in words."""
        both = ""
        if not self.identified and self.reason not in (Reason.TOO_FEW, Reason.EQUAL_CELLS):
            both = " Both are returned." if self.reason is Reason.TESTED else BOTH_DIRECTIONS
        return self.sentence + both + (CLOSE if self.close else "")

    @property
    def sentence(self) -> str:
        """The verdict without what is done about it."""
        return _SENTENCES[self.reason](self)


def left_open(test: DirectionTest, reason: Reason) -> DirectionTest:
    """The same test without a direction, for a reason whose sentence is in `_SENTENCES`."""
    return replace(test, identified=False, p_value=None, p_error=None, reason=reason)


def direction_test(
    forward: Array,
    backward: Array,
    *,
    dimension: int,
    alpha: float = 0.05,
    point_start: bool = False,
    groups: Indices | None = None,
) -> DirectionTest:
    """The test from each trajectory's joint log-likelihood in the order found and in its reverse.

    `groups` (n,): numbers of the groups whose trajectories may be alike; the variance is then that of their sums.
    """
    delta = np.asarray(forward, dtype=float) - np.asarray(backward, dtype=float)
    each = delta if groups is None else np.bincount(groups, weights=delta)
    n, ratio = len(each), float(delta.sum())
    n_groups = None if groups is None else n
    if n < MIN_TRAJECTORIES:
        return DirectionTest(
            False,
            ratio,
            float("nan"),
            None,
            delta,
            point_start,
            reason=Reason.TOO_FEW,
            alpha=alpha,
            n_groups=n_groups,
        )
    error = float(each.std(ddof=1) * np.sqrt(n + dimension))
    z = ratio / error if error > 0 else float(np.copysign(np.inf, ratio)) if ratio else 0.0
    p = _two_sided(z, n)
    return DirectionTest(
        p < alpha,
        ratio,
        z,
        p,
        delta,
        point_start,
        dimension=dimension,
        alpha=alpha,
        n_groups=n_groups,
    )


def _two_sided(z: float, n: int) -> float:
    return float(2 * t_sf(abs(z), n - 1))


def known_direction(test: DirectionTest, nats: float = float("inf")) -> DirectionTest:
    """The direction that follows from the knowledge of time: nothing to test, though the data may contradict it.

    `nats`: the log-odds of a typical order against its reverse, by what is known.
    """
    return replace(
        test,
        identified=True,
        p_value=None,
        p_error=None,
        reason=Reason.KNOWN,
        rests_on={"knowledge": nats},
    )


def doubtful_direction(test: DirectionTest, other: DirectionTest, *, shared: bool) -> DirectionTest:
    """Of steps too unequal for equal gaps, where gaps estimated from the data say the opposite."""
    return replace(left_open(test, Reason.UNEQUAL_STEPS), opposed=other.evidence, shared=shared)


BOTH_DIRECTIONS = " Both directions are returned."

CLOSE = " The p-value is within two simulation errors of the level: with another random_state the verdict may differ."

EQUAL_FIT_NATS, EQUAL_FIT_P = 2.0, 0.5
"""Ratio in nats below which, or p-value above which, an order and its reverse are said to fit equally well."""


def _under(test: DirectionTest) -> str:
    """The model in which the direction was tested, and by how much the data prefer it; nothing for Markov steps."""
    first = test.preferred
    plain = next((each for each in test.models if each.name == CandidateKind.MARKOV), None)
    found = None if first is None else candidate(first.name)
    if first is None or plain is None or found is None or not found.allows:
        return ""
    nats = first.log_evidence - plain.log_evidence
    if first.name == CandidateKind.NOISE and test.noise_nats is not None:
        nats = test.noise_nats
    why = f"the data prefer by {nats:,.1f} nats" if nats > 0 else "the residuals ask for"
    return f"With {found.allows} allowed, which {why}, "


def _beside_trend(test: DirectionTest) -> str:
    """Why a direction was taken back: a trend from outside would do as well."""
    beside = any(each.name == CandidateKind.TREND and each.counted for each in test.models)
    if test.identified or not beside:  # deviations do show it
        return ""
    return " A trend from outside would move the slices' means just so: deviations from them must show the direction, too."


def _tested(test: DirectionTest) -> str:
    return _by_test(test) + _beside_trend(test)


def _by_test(test: DirectionTest) -> str:
    under = _under(test)
    the = "the" if under else "The"
    if not test.identified and test.alike:
        still = "deviations from the slice means are" if test.deviations else "the process is"
        return (
            f"{under}{the} direction of time is not determined by these data ({test.evidence}): the order and "
            f"its reverse fit equally well, as they do when {still} stationary."
        )
    if not test.identified:
        side = "this order" if test.log_likelihood_ratio > 0 else "the reverse"
        doubt = "not significantly"
        if test.p_value is not None and test.p_value < test.alpha:
            doubt = f"the p-value is not below {test.alpha:.3g} by more than its simulation error"
        return f"{under}{the} direction of time is not decided: {side} fits better ({test.evidence}), but {doubt}."
    sentence = f"{under}{the} direction of time is identified: {test.evidence}."
    if test.point_start:
        sentence += (
            " All trajectories start from (almost) one point, itself strong evidence. The spread there is bounded from below, so "
            "the ratio is a lower bound."
        )
    return sentence


def _models_disagree(test: DirectionTest) -> str:
    said = [f"{each.name} {each.ratio_said}" for each in test.models if each.counted]
    return (
        "The direction of time is not determined: models that explain these data equally well disagree "
        f"({', '.join(said)})."
    )


def _residuals(test: DirectionTest) -> str:
    return (
        "The direction of time is identified by non-Gaussian noise: residuals are independent of the past in this order, "
        f"and not in its reverse ({p_words(test.p_value)}). Means and variances alone do not decide "
        f"(log-likelihood ratio {test.log_likelihood_ratio:+.1f} nats)."
    )


def _unexplained(test: DirectionTest) -> str:
    seen = "" if test.unexplained is None else f": {test.unexplained}"
    return (
        f"The direction of time is not determined: no model explains these data{seen}. A direction would rest on what is left "
        "unexplained."
    )


def _not_allowed(test: DirectionTest) -> str:
    return "The direction of time is not determined: means and spreads were not to count for it, and nothing else decides."


def assumptions_of(test: DirectionTest) -> Iterator[str]:
    """What a direction rests on that data cannot show, in plain words."""
    if test.known:
        yield "What was given as known of time is right."
        return
    if test.aligned is None:
        yield (
            "Subjects were not selected, aligned or normalised by what comes last: such data look like ordinary data in "
            "reverse."
        )
    elif test.aligned != "end":
        yield f"Subjects are not aligned or selected by what comes last, as was stated (aligned: {test.aligned})."
    who = "Groups of trajectories are" if test.n_groups is not None else "Trajectories are"
    best = test.preferred
    free = () if best is None else best.free
    shared = test.deviations or "offsets" in free
    common = ", given what is common to a slice" if shared else ""
    yield f"{who} independent of one another{common}."
    yield "The dynamics are the same at every step, and steps are equally long or their lengths known."
    if test.rests_on.get(Ground.MEANS, 0.0) > 0 and "offsets" not in free:
        yield "Nothing outside moves the means: they follow the same dynamics as the trajectories do."
    if test.rests_on.get(Ground.SPREADS, 0.0) > 0 and "variances" not in free:
        yield "The size of the noise does not change with time."
    if Ground.RESIDUALS in test.rests_on:
        yield "The noise of a step is independent of the past."
    if test.components:
        yield (
            f"The first {test.components} principal components of the variables hold what shows the direction: there are too many variables "
            "for so few trajectories to ask all of them."
        )


def _too_few(test: DirectionTest) -> str:
    n, one = test._independent, test._independent == 1
    what = (
        f"trajector{'y' if one else 'ies'}" if test.n_groups is None else f"group{'s' * (not one)}"
    )
    return (
        f"The direction of time cannot be tested on {n} {what}: the distribution of "
        f"the first observation, which carries the evidence, needs at least {MIN_TRAJECTORIES}."
    )


def _known(test: DirectionTest) -> str:
    sentence = "The direction of time is known from the knowledge given; it was not tested."
    if test.contradicted:
        sentence += (
            f" The data alone fit the reverse better ({test.evidence}): check that knowledge."
        )
    return sentence


def _cyclic(test: DirectionTest) -> str:
    return (
        "The direction of time is not determined: the slices form a closed loop. The order is cyclic, and where it starts is "
        "arbitrary."
    )


def _folded(test: DirectionTest) -> str:
    return (
        "The direction of time is not determined: the path may be folded onto itself, or turns, and the ends of such "
        "an order need not be the ends of time."
    )


def _equal_cells(test: DirectionTest) -> str:
    return (
        f"The direction of time is left open: most cells are equal, values are carried forward, or cut off at a limit that a changing share of them "
        f"reaches, and that alone can make one direction fit better ({test.evidence})."
    )


def _alignment(test: DirectionTest) -> str:
    return (
        f"The direction of time is not determined: these orders fit better than their reverses ({test.log_likelihood_ratio:+.1f} nats), but other "
        "orders, in which some trajectories are reversed relative to others, fit as well. More variables, more observations of "
        "each trajectory, or the first observation of some of them would tell."
    )


def _unequal_steps(test: DirectionTest) -> str:
    advice = "Give times if there are any" + (", or use spacing='estimate'" if test.shared else "")
    return (
        f"The direction of time is not determined: this order fits better with equal gaps ({test.evidence}), but its "
        f"steps differ too much in size for equal gaps, and with estimated gaps its reverse fits better ({test.opposed}). "
        f"{advice}."
    )


def _stopped(test: DirectionTest) -> str:
    side = "this order" if test.log_likelihood_ratio > 0 else "the reverse"
    return (
        f"The direction of time was not tested: the fit was stopped. So far {side} fits better "
        f"({test.log_likelihood_ratio:+.1f} nats). Fit again to test it."
    )


_SENTENCES: dict[Reason, Callable[[DirectionTest], str]] = {
    Reason.TESTED: _tested,
    Reason.TOO_FEW: _too_few,
    Reason.KNOWN: _known,
    Reason.CYCLE: _cyclic,
    Reason.FOLD: _folded,
    Reason.UNEQUAL_STEPS: _unequal_steps,
    Reason.EQUAL_CELLS: _equal_cells,
    Reason.ALIGNMENT: _alignment,
    Reason.MODELS_DISAGREE: _models_disagree,
    Reason.RESIDUALS: _residuals,
    Reason.UNEXPLAINED: _unexplained,
    Reason.NOT_ALLOWED: _not_allowed,
    Reason.STOPPED: _stopped,
}
