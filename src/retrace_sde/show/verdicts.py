"""The answers to the reader's questions in plain sentences, the most important first.

Nothing is estimated here. Each sentence is made from the result: its posterior over orders, its test of the
direction, its identifiability report, its notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from retrace_sde.after.residuals import NOT_TESTED
from retrace_sde.evidence.direction.verdict import Caution, Reason
from retrace_sde.evidence.identifiability import IdentifiabilityFinding, Topic
from retrace_sde.fit.intervals import clearest, critical
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import PER_VISIT, Panel
from retrace_sde.retrace import ReTrace
from retrace_sde.show.wording import worded

Standing = Literal["good", "mixed", "open"]

PLACED_PROBABILITY, DOUBTFUL_PROBABILITY = 0.95, 0.5
"""Probability of its position from which an observation counts as placed, and below which it is more likely elsewhere."""

CERTAIN_ORDER, MOSTLY_CERTAIN_ORDER, BROAD_ORDER = 0.99, 0.8, 0.5
"""Mean probability of the positions from which the order is called certain, mostly certain, and right in its broad course."""

CERTAINTIES: dict[float, tuple[str, Standing]] = {
    CERTAIN_ORDER: ("The order is certain", "good"),
    MOSTLY_CERTAIN_ORDER: ("Most of the order is certain", "good"),
    BROAD_ORDER: ("The order is right in its broad course", "mixed"),
    0.0: ("The exact order cannot be known", "open"),
}
"""What is said of the order from each mean probability on."""

MAX_SLICES_NAMED = 30
"""Slices named in the sentence that gives the order."""

MAX_INPUT_EFFECTS = 6
"""Effects of inputs that are shown."""

INPUTS_ASSUME = (
    "Of a treatment, these are effects only if nothing unmeasured acts on both treatment and change; TreatmentEffect (retrace effect) "
    "compares treatments and checks what that assumes."
)
"""Said of inputs' coefficients: what would make them effects."""

FEW_TRAJECTORIES = 20
"""Trajectories below which tests are weak, and errors that assume many are too small."""


@dataclass(frozen=True)
class Answer:
    """One question, its answer in a few words, how far it can be trusted, and the reasons."""

    question: str
    answer: str
    standing: Standing
    sentences: tuple[str, ...]


def verdicts(model: ReTrace, panel: Panel) -> tuple[Answer, ...]:
    """What inputs do, where there are some; order, direction, identifiability and what to do next; in the words of the interface."""
    found = (
        *_inputs(model, panel),
        _order(model, panel),
        _direction(model),
        _identifiability(model),
        _next_steps(model, panel),
    )
    return tuple(replace(each, sentences=tuple(map(worded, each.sentences))) for each in found)


def placement(model: ReTrace, *, lengths: Indices | None = None) -> Array | None:
    """The probability of each recovered position, `P[o_k, k]` for all k (and trajectories) in one row.

    Of a shared order whose direction is open, that of the position or of its mirror image: which of them is a question of its own.
    None without a posterior: `sample_orders()` or `estimator="mcem"` give one.
    """
    if not hasattr(model, "posterior_"):
        return None
    P, order = model.position_probabilities_, model.order_
    own: Array = np.take_along_axis(P, order[..., None, :], axis=-2)[..., 0, :].astype(float)
    if model.result_.shared_order and not model.direction_.identified:
        T = len(order)
        mirrored = P[order, T - 1 - np.arange(T)] * (2 * np.arange(T) != T - 1)
        own = np.minimum(own + mirrored, 1.0)
    if lengths is not None and not model.result_.shared_order:
        own = own[Lengths.of(own, lengths).mask]
    return own.ravel()


def _inputs(model: ReTrace, panel: Panel) -> Iterator[Answer]:
    """The coefficients of the inputs, those with the largest |z|; of both directions where it is open."""
    result = model.result_
    if result.inputs is None or not result.inputs.size:
        return
    d, (causes, ways) = result.drift.shape[1], result._effects
    values, errors = (each[:, d:] for each in ways[0])
    reach = critical(result.n_groups) * errors
    unit = "visit" if PER_VISIT in panel.notes else "unit of time"
    lines = []
    for i, j in clearest(values, errors, MAX_INPUT_EFFECTS):
        line = f"{causes[d + j]} changes the rate of {result.names[i]} by {values[i, j]:+.3g} per {unit}"
        line += f" (95 % interval {values[i, j] - reach[i, j]:+.3g} to {values[i, j] + reach[i, j]:+.3g})"
        if len(ways) > 1:
            line += f"; in the reversed order by {ways[1][0][i, d + j]:+.3g}"
        lines.append(f"{line}.")
    significant = np.array([_significant(*way, result.n_groups)[:, d:].any(axis=0) for way in ways])
    always = significant.all(axis=0)
    some = always if always.any() else significant.any(axis=0)
    names = ", ".join(causes[d + j] for j in np.flatnonzero(some))
    answer = f"{names}: significant at 5 %" if names else "No effect is significant at 5 %"
    standing: Standing = "good" if names else "mixed"
    if not model.direction_.identified:
        which = "in one" if names and not always.any() else "for either"
        answer, standing = f"{answer}, {which} direction of time", "open"
    question = f"What does {', '.join(causes[d:])} do?"
    yield Answer(question, answer, standing, (*lines, INPUTS_ASSUME))


def _significant(values: Array, errors: Array, n_groups: int) -> Mask:
    """Which coefficients have a 95 % interval without zero."""
    return np.asarray(np.abs(values) > critical(n_groups) * errors)


def _order(model: ReTrace, panel: Panel) -> Answer:
    question = "Which order?"
    standing: Standing
    what = "a time slice" if model.result_.shared_order else "an observation"
    converged = _convergence(model)
    listed = _listed(model, panel)
    own = placement(model, lengths=panel.lengths)
    if own is None:
        unsure = "The probability of each position has not been sampled: call sample_orders()."
        answer, standing = "The search for the order did not converge", "open"
        if model.converged_:
            answer, standing = "The most likely order was found", "mixed"
        return Answer(question, answer, standing, (*listed, converged, unsure))
    mean = own.mean()
    placed, doubtful = (own >= PLACED_PROBABILITY).sum(), (own < DOUBTFUL_PROBABILITY).sum()
    answer, standing = next(words for least, words in CERTAINTIES.items() if mean >= least)
    certain = (
        f"On average {what} is at its position with probability {mean:.3g}; "
        f"{placed} of {own.size} have probability {PLACED_PROBABILITY:g} or more"
        + (f", {doubtful} are more likely at another position." if doubtful else ".")
    )
    drawn = model.posterior_.over_parameters
    given = (
        "These probabilities include the uncertainty of the parameters."
        if drawn
        else "These probabilities take the fitted parameters as known."
    )
    if not model.direction_.identified:
        given += (
            " The direction is undetermined: they are of a position or of its mirror image."
            if model.result_.shared_order
            else " The direction is undetermined: they count both directions."
        )
    if model.direction_.reason is Reason.FOLD:
        answer, standing = "The order may be folded", "open"
        given += (
            " They do not account for a fold, since the parameters were fitted to the folded order."
        )
    if model.result_.cycle:
        answer, standing = "A closed loop: the order is cyclic", "mixed"
        given += " Where the loop is cut is arbitrary."
    return Answer(question, answer, standing, (*listed, certain, converged, given))


def _convergence(model: ReTrace) -> str:
    """Whether the search converged, and at which log-likelihood: the one that the slider over its rounds shows."""
    rounds = f"{model.n_iter_} round{'' if model.n_iter_ == 1 else 's'}"
    if model.result_.stopped:
        return f"The search was stopped on request, after {rounds}."
    if not model.converged_:
        return f"The search had not converged after {rounds}: raise max_iter."
    last = model.history_[-1].log_likelihood if model.history_ else math.nan
    reached = last if math.isfinite(last) else model.log_likelihood_
    return f"The search converged after {rounds}, at a log-likelihood of {reached:,.1f} nats."


def _listed(model: ReTrace, panel: Panel) -> tuple[str, ...]:
    """The order itself, where its slices have names: all of them, or the first and the last."""
    if not model.result_.shared_order or panel.slices is None:
        return ()
    labels = [str(panel.slices[int(k)]) for k in model.order_]
    if len(labels) > MAX_SLICES_NAMED:
        labels = [*labels[: MAX_SLICES_NAMED // 2], "…", *labels[-MAX_SLICES_NAMED // 2 :]]
    return (f"The order is {' → '.join(labels)}.",)


def _direction(model: ReTrace) -> Answer:
    test, question = model.direction_, "Which way does time run?"
    if test.known:
        return Answer(question, "As the knowledge given says", "good", (test.verdict,))
    why = (each.sentence for each in model.identifiability_.findings if _explains(model, each))
    if test.identified:
        rests = ("This rests on assumptions that data cannot show:", *test.assumptions)
        return Answer(question, "In the order shown", "good", (test.verdict, *why, *rests))
    both = ("The reversed order, with its own drift, is shown beside the one that was found.",)
    shown = both if model.alternative_ is not None else ()
    answer = "It is not decided" if test.undecided else "It cannot be known from these data"
    if test.reason is Reason.STOPPED:
        answer = "It was not tested to the end"
    return Answer(question, answer, "open", (test.verdict, *why, *shown))


def _explains(model: ReTrace, finding: IdentifiabilityFinding) -> bool:
    """A transient explains a direction that was found, stationary data one that was not."""
    test, untested = model.direction_, np.isnan(model.identifiability_.stationarity_p_value)
    about = finding.topic is Topic.STATIONARITY and not test.known and not untested
    return about and finding.learned == test.identified


def _identifiability(model: ReTrace) -> Answer:
    rest = [
        each
        for each in model.identifiability_.findings
        if each.topic is not Topic.DIRECTION and not _explains(model, each)
    ]
    found = model.result_.dependence
    shared = () if found is None else (found.verdict,)
    can = tuple(f"Yes: {each.sentence}" for each in rest if each.learned)
    cannot = tuple(f"No: {each.sentence}" for each in rest if not each.learned)
    # That only G Gᵀ can be learned holds for every data set.
    complete = all(each.learned or each.topic is Topic.FACTOR for each in rest)
    open_ = not model.direction_.identified
    standing: Standing = "good" if complete and not open_ else "mixed"
    answer = "The parameters" if complete else "Some of the parameters"
    answer += ", for either direction of time" if open_ else ""
    return Answer("What else can these data tell?", answer, standing, (*can, *cannot, *shared))


def _steps(model: ReTrace, panel: Panel) -> Iterator[str]:
    """What to look at or to do, from the fit and from its residual checks."""
    result, identified, check = model.result_, model.direction_.identified, model.residuals_
    if result.stopped:
        yield "Fit again and let it finish: this fit was stopped."
    elif not model.converged_:
        yield "Raise max_iter: the search stopped before it converged."
    if result.cycle and not identified:
        yield (
            "To determine the direction around the loop, find one fact about time: of two neighbours, which came first. "
            "Until then report both directions."
        )
    elif not identified and not result.stopped:
        transient = "data from a transient: soon after a start or a change"
        if model.direction_.deviations:
            transient = "trajectories that start far apart: their common course cannot be told from common shocks"
        yield (
            "To determine the direction, find one fact about time (one pair of observations whose order is known, "
            f"or which one came first), or {transient}. Until then report both directions."
        )
    own = placement(model, lengths=panel.lengths)
    if own is None:
        yield "Call sample_orders() before the report to see the probability of each position."
    elif own.mean() < MOSTLY_CERTAIN_ORDER and result.settings["estimator"] == "mcem":
        yield (
            "Do not rely on a single order: use the parameters, which average over orders, and the position probabilities. "
            "Known times, or more variables, would make the order more certain."
        )
    elif own.mean() < MOSTLY_CERTAIN_ORDER:
        yield "Do not rely on a single order: use the position probabilities, and add any known times."
    if result.n_groups < FEW_TRAJECTORIES:
        yield (
            f"Get more trajectories if you can: with {result.size} the tests above have little power, and the intervals, "
            "whose errors assume many, may be too narrow."
        )
    if len(result.names) == 1 and Caution.FOLD not in result.notes:
        yield (
            "Check the picture of the restored order: one variable that rises and falls can be folded onto itself. If it looks "
            "folded, add a variable or a known time."
        )
    if not check.tested:
        yield NOT_TESTED
    else:
        yield from (each.sentence([str(name) for name in panel.ids]) for each in check.failed)


def _next_steps(model: ReTrace, panel: Panel) -> Answer:
    question, steps = "What to do next?", tuple(_steps(model, panel))
    notes = (*model.result_.notes, *panel.notes)
    noted = tuple(f"Note: {note.rstrip('.')}." for note in notes)
    if steps:
        return Answer(question, "Look at these first", "mixed", (*steps, *noted))
    nothing = "No check found a reason not to use these results."
    return Answer(question, "Use the restored order and the parameters", "good", (nothing, *noted))
