"""What an effect assumes, and what happens to it where that is wrong.

The estimand is a difference of potential outcomes, by the g-formula under the fitted SDE (Robins 1986): each subject starts where it
started, has its own level, and is moved by the drift under T1 and under T0. The confounding of levels is tested (by the treatment so
far as an added variable), a hidden variable's strength is set beside the effect, and subjects that the answer rests on are named by the
jackknife.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.effects.interventions import Given, Interventions
from retrace_sde.effects.jackknife import adjusted_scores
from retrace_sde.effects.subject_model import Offsets, fit_model, with_history
from retrace_sde.io.arrays import Array
from retrace_sde.io.deferred import optimize
from retrace_sde.process.tails import f_sf

CONFOUNDING_LEVEL = 0.05
"""Level of the test of confounded levels."""

RELATIVE_STEP = 1e-4
"""Step of the derivative of an average effect by a coefficient, in its standard errors."""

Question = tuple[Given, Given, int]
"""T0, T1 and the number of steps."""


def estimand(asked: Interventions) -> str:
    """What is estimated, as a sentence."""
    return (
        f"The mean over these {asked.size} subjects of E[x(t)] if given T1 from the first visit on, less E[x(t)] if given T0: the g-formula under the "
        "fitted SDE, each subject from its own first state and at its own level."
    )


def assumptions(asked: Interventions, subjects: Any) -> tuple[str, ...]:
    """What makes it an effect, in plain sentences."""
    confounding = {
        "fixed": "A subject's constant level may affect its treatment; given level and state, nothing unseen that changes over time affects both treatment and later change.",
        "alike": "At every visit, given the state, nothing unseen affects both treatment and later change, not even constant differences between subjects.",
    }.get(
        subjects if isinstance(subjects, str) else "levels",
        "At every visit, given the state, nothing unseen affects both treatment and later change: subjects' levels may differ, but are not correlated with treatment.",
    )
    if asked.arms:
        confounding = "Given the first state, subjects of different arms do not differ in anything unseen that affects later change, as after randomisation."
    return (
        "Consistency: the path of a subject under the treatment it received is the one it would have had if given that treatment.",
        f"No unmeasured confounding: {confounding[0].lower()}{confounding[1:]}",
        "Positivity: both treatments were given at states like these; a treatment that no visit had is refused, states are not checked.",
        "No interference: the treatment of one subject does not affect another.",
        "The model: the drift has the form that was fitted, a treatment holds from a visit to the next and acts through the present state alone, and visits are missing at random.",
    )


@dataclass(frozen=True, eq=False)
class ConfoundingTest:
    """Are subjects' levels correlated with their treatment? A score test of random intercepts (robust, Boos 1992).

    H0: at every visit, given the state, the treatment and what the states so far tell of the level, the treatments so far (their history h_t,
    `subject_model`) do not predict the next step. This holds for any treatment that is decided by chance, by the states, or by earlier
    treatment, and fails where levels decide treatment: history then tells a level. So the test needs no model of the treatment. One by a
    subject's mean treatment does: without memory it rejected 39 of 40 cohorts whose randomised treatment was kept for three steps of Δt = 1
    (here 9 of 200). Of 200 cohorts randomised at every visit 10 are rejected at 5 %, of 100 in which the level decides the treatment 86.
    A delayed effect of treatment counts against H0, too. `random` and `fixed` (d,) are the average effects under the two models.
    """

    statistic: float
    degrees: tuple[int, int]
    p_value: float
    random: Array
    fixed: Array
    used: str

    @property
    def rejected(self) -> bool:
        return self.p_value < CONFOUNDING_LEVEL

    @property
    def verdict(self) -> str:
        both = "; ".join(
            f"{a:+.4g} with random intercepts, {b:+.4g} with fixed effects"
            for a, b in zip(self.random, self.fixed, strict=True)
        )
        p = f"score test, p = {self.p_value:.2g}"
        if not self.rejected:
            return f"No evidence that subjects' levels are correlated with their treatment ({p}): {both}."
        advice = "fixed effects are used" if self.used == "fixed" else "use subjects='fixed'"
        return f"Subjects' levels are correlated with their treatment ({p}): {both}; {advice}."


def confounding_test(asked: Interventions, question: Question) -> ConfoundingTest | None:
    """None with arms, without levels, or where no treatment changes within subjects and differs between them."""
    regime = asked.regimes.get("")
    if regime is None or not regime.fit.columns:
        return None
    rows, p, S = regime.rows, regime.fit.coefficients.shape[1], regime.fit.columns
    if not Offsets.of(rows).treated:
        return None
    used = "levels" if regime.model.treatment is None else "fixed"
    models = {used: regime.model}
    for name in {"levels", "fixed"} - {used}:
        models[name] = fit_model(rows, p, S, fixed=name == "fixed")
    null, longer = with_history(models["levels"], rows)
    scores = adjusted_scores(
        null, longer, regime.problem.data.groups, range(p, p + rows.n_treatments * len(S))
    )
    (G, q), left = scores.shape, len(scores) - null.whole.coefficients.shape[1]
    if q >= left:
        return None
    total = scores.sum(axis=0)
    # Rao's statistic, at most G, with the scores' spread about zero, made F of Hotelling's with that about their mean. Scores at estimated
    # coefficients are too small by their leverages, which sum to the coefficients of an equation.
    rao = float(total @ np.linalg.pinv(scores.T @ scores) @ total)
    scaled = rao * left / (q * max(G - rao, 1e-9))
    means = {name: average(asked.with_model(model), question) for name, model in models.items()}
    p_value = float(f_sf(scaled, q, left))
    return ConfoundingTest(scaled, (q, left), p_value, means["levels"], means["fixed"], used)


def average(asked: Interventions, question: Question, push: Array | None = None) -> Array:
    """The average effect (d,); `push` (d,) is added to all levels under T1."""
    before, after, steps = question
    given = asked.ends(after, steps, push=push).mean(axis=0)
    return np.asarray(given - asked.ends(before, steps).mean(axis=0))


def without_each(asked: Interventions, question: Question) -> dict[str, Array]:
    """The change (G, d) of the average effect when each unit of each arm is left out, to first order."""
    found = {}
    for name, regime in asked.regimes.items():
        theta, changes = regime.model.whole.coefficients, regime.jackknife.changes
        errors = np.sqrt(np.diag(regime.jackknife.covariance)).reshape(theta.shape)
        slopes = np.zeros((*theta.shape, theta.shape[0]))
        for at in np.ndindex(theta.shape):
            step = np.zeros_like(theta)
            step[at] = RELATIVE_STEP * errors[at]
            if step[at] > 0:
                ends = [
                    average(asked.with_regime(name, regime.moved(theta + sign * step)), question)
                    for sign in (1, -1)
                ]
                slopes[at] = (ends[0] - ends[1]) / (2 * step[at])
        found[name] = np.einsum("gep,epd->gd", changes, slopes)
    return found


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """How strong a hidden variable of subjects must be to change the answer, for each variable.

    The hidden variable differs by `imbalance` of its standard deviations between T1 and T0, and one standard deviation
    changes a subject's level by `strength` (d,). `low` and `high` (d,) are the effects corrected for it with either sign. `to_zero`
    and `to_doubt` are the strengths that bring the effect to zero, and its interval to include zero (0: it does already). `spread` is the
    standard deviation of subjects' levels, NaN where they are alike. `reversed` is the effect in the reversed order of time.
    """

    variables: tuple[str, ...]
    effect: Array
    strength: Array
    imbalance: float
    low: Array
    high: Array
    to_zero: Array
    to_doubt: Array
    spread: Array
    reversed: Array | None = None

    def __str__(self) -> str:
        lines = []
        for i, name in enumerate(self.variables):
            if not np.isfinite(self.to_zero[i]):
                lines.append(f"{name!r}: no change of subjects' levels brings the effect to zero.")
                continue
            share = ""
            if self.spread[i] > 0:
                share = f" ({self.to_zero[i] / self.spread[i]:.2g} times the standard deviation of subjects' levels)"
            doubt = "Its interval includes zero already."
            if self.to_doubt[i] > 0:
                doubt = f"{self.to_doubt[i]:.3g} makes the interval include zero."
            lines.append(
                f"{name!r}: a hidden variable that differs by {self.imbalance:g} sd between the treatments brings the effect to zero where one sd of it "
                f"changes a subject's level by {self.to_zero[i]:.3g}{share}. {doubt} Where it changes levels by {self.strength[i]:.3g}, "
                f"the effect lies between {self.low[i]:+.4g} and {self.high[i]:+.4g}."
            )
            if self.reversed is not None:
                lines.append(f"{name!r}: in the reversed order of time, {self.reversed[i]:+.4g}.")
        return "\n".join(lines)


def sensitivity(
    asked: Interventions,
    question: Question,
    half_widths: Array,
    strength: float | None,
    imbalance: float,
) -> Sensitivity:
    """Of the average effect with these half widths of its interval (d,)."""
    ate = average(asked, question)
    d = len(ate)
    regimes = list(asked.regimes.values())
    spread = np.full(d, np.nan)
    if all(each.fit.columns for each in regimes):
        fits, s = [each.fit for each in regimes], len(regimes[0].fit.columns)
        own = np.concatenate([fit.deviations[:, :, 0] for fit in fits])
        doubt = np.concatenate([np.einsum("nkk->nk", fit.uncertainty)[:, ::s] for fit in fits])
        spread = np.sqrt(own.var(axis=0) + doubt.mean(axis=0))
    tips = np.array([
        [_push_to(asked, question, i, left, ate[i]) for left in (0.0, half)]
        for i, half in enumerate(half_widths)
    ])  # fmt: skip
    assumed = spread if strength is None else np.full(d, float(strength))
    assumed = np.where(np.isnan(assumed), np.abs(tips[:, 0]) / 2 / imbalance, assumed)
    moved = np.array([
        [average(asked, question, push=sign * imbalance * assumed[i] * np.eye(d)[i])[i] for sign in (-1, 1)]
        for i in range(d)
    ])  # fmt: skip
    return Sensitivity(
        asked.variables, ate, assumed, imbalance, moved.min(axis=1), moved.max(axis=1),
        np.abs(tips[:, 0]) / imbalance, np.abs(tips[:, 1]) / imbalance, spread,
    )  # fmt: skip


def _push_to(asked: Interventions, question: Question, i: int, left: float, ate: float) -> float:
    """The push on levels of variable i under T1 that leaves an effect of size `left`; 0 where it is no larger already."""
    if abs(ate) <= left:
        return 0.0
    unit = np.eye(len(asked.variables))[i]

    def beyond(push: float) -> float:
        return float(average(asked, question, push=push * unit)[i]) - np.sign(ate) * left

    regime = next(iter(asked.regimes.values()))
    scale = max(float(np.abs(regime.fit.coefficients[i, regime.level])), 1e-3 * abs(ate))
    try:
        return float(optimize.newton(beyond, 0.0, x1=-np.sign(ate) * 1e-2 * scale, maxiter=100))
    except RuntimeError:  # no push does: the effect saturates
        return float("inf")
