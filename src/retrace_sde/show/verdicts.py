"""The answers in plain sentences, the most important first: what a reader takes home from a fit.

Nothing is estimated here. Each sentence is read off the result: its posterior over orders, its test of the
direction, its identifiability report, its notes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrace_sde.after.residuals import NOT_LOOKED
from retrace_sde.evidence.direction.verdict import Caution, Reason
from retrace_sde.evidence.identifiability import Finding, Topic
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.retrace import ReTrace

SURE, LIKELY = 0.95, 0.5
"""Probability of its position from which an observation counts as placed, and as more likely there than not."""


LISTED = 30
"""Slices named in the sentence that gives the order."""

Standing = Literal["good", "mixed", "open"]


@dataclass(frozen=True)
class Verdict:
    """One question, its answer in a few words, how far it can be trusted, and the reasons."""

    question: str
    answer: str
    standing: Standing
    sentences: tuple[str, ...]


def verdicts(model: ReTrace, panel: Panel) -> tuple[Verdict, ...]:
    """Order, direction, identifiability and what to do next."""
    return (
        _order(model, panel),
        _direction(model),
        _identifiability(model),
        _next_steps(model, panel),
    )


def placement(model: ReTrace, *, lengths: Indices | None = None) -> Array | None:
    """The probability of each recovered position, `P[o_k, k]` for all k (and trajectories) in one row.

    None without a posterior: `sample_orders()` or `estimator="mcem"` give one.
    """
    if not hasattr(model, "posterior_"):
        return None
    P, order = model.position_probabilities_, model.order_
    own: Array = np.take_along_axis(P, order[..., None, :], axis=-2)[..., 0, :].astype(float)
    if lengths is not None and not model.result_.shared_order:
        own = own[Lengths.of(own, lengths).mask]
    return own.ravel()


def _order(model: ReTrace, panel: Panel) -> Verdict:
    question = "Which order?"
    standing: Standing
    shared = model.result_.shared_order
    what = "a time slice" if shared else "an observation"
    rounds = f"{model.n_iter_} round{'' if model.n_iter_ == 1 else 's'}"
    settled = f"The search was still changing after {rounds}: raise max_iter."
    if model.result_.stopped:
        settled = f"The search was stopped on request, after {rounds}."
    elif model.converged_:
        settled = f"The search settled after {rounds}, at a log-likelihood of {_reached(model):,.1f} nats."
    listed = _listed(model, panel)
    own = placement(model, lengths=panel.lengths)
    if own is None:
        answer = "The most likely order was found" if model.converged_ else "The order is unsettled"
        unsure = "How sure each position is has not been sampled: sample_orders() would tell."
        standing = "mixed" if model.converged_ else "open"
        return Verdict(question, answer, standing, (*listed, settled, unsure))
    mean, placed, doubtful = own.mean(), (own >= SURE).sum(), (own < LIKELY).sum()
    if mean >= 0.99:
        answer, standing = "The order is certain", "good"
    elif mean >= 0.8:
        answer, standing = "Most of the order is certain", "good"
    elif mean >= 0.5:
        answer, standing = "The order is right in its broad course", "mixed"
    else:
        answer, standing = "The exact order cannot be known", "open"
    certain = (
        f"On average {what} stands where it is placed with probability {mean:.3g}; "
        f"{placed} of {own.size} are placed with probability {SURE:g} or more"
        + (f", {doubtful} are more likely elsewhere than at their place." if doubtful else ".")
    )
    given = "These probabilities are those under the fitted parameters."
    if not model.direction_.identified:
        given += (
            " They say nothing about the direction, which is a question of its own."
            if model.result_.settings["estimator"] != "mcem"
            else " The direction is open: either way round counts for half."
        )
    if model.direction_.reason is Reason.FOLD:
        answer, standing = "The order may be folded", "open"
        given += " They do not see a fold, which is part of what was fitted."
    if model.result_.cycle:
        answer, standing = "A closed loop: the order is cyclic", "mixed"
        given += " Where the loop is cut is arbitrary."
    return Verdict(question, answer, standing, (*listed, certain, settled, given))


def _reached(model: ReTrace) -> float:
    """The log-likelihood at which the search ended, as the slider over its rounds shows it; levels may raise it afterwards."""
    last = model.history_[-1].log_likelihood if model.history_ else math.nan
    return last if math.isfinite(last) else model.log_likelihood_


def _listed(model: ReTrace, panel: Panel) -> tuple[str, ...]:
    """The order itself, where its slices have names: all of them, or both ends."""
    if not model.result_.shared_order or panel.slices is None:
        return ()
    labels = [str(panel.slices[int(k)]) for k in model.order_]
    if len(labels) > LISTED:
        labels = [*labels[: LISTED // 2], "…", *labels[-LISTED // 2 :]]
    return (f"The order is {' → '.join(labels)}.",)


def _direction(model: ReTrace) -> Verdict:
    test, question = model.direction_, "Which way does time run?"
    if test.known:
        return Verdict(question, "As the knowledge given says", "good", (test.verdict,))
    why = (each.sentence for each in model.identifiability_.findings if _explains(model, each))
    if test.identified:
        return Verdict(question, "In the order shown", "good", (test.verdict, *why))
    both = ("The reversed order, with its own drift, is shown beside the one returned.",)
    shown = both if model.alternative_ is not None else ()
    answer = "It is not decided" if test.undecided else "It cannot be known from these data"
    if test.reason is Reason.STOPPED:
        answer = "It was not tested to the end"
    return Verdict(question, answer, "open", (test.verdict, *why, *shown))


def _explains(model: ReTrace, finding: Finding) -> bool:
    """A transient explains a direction that was found, stationary data one that was not."""
    test, untested = model.direction_, np.isnan(model.identifiability_.stationarity_p_value)
    about = finding.topic is Topic.STATIONARITY and not test.known and not untested
    return about and finding.learned == test.identified


def _identifiability(model: ReTrace) -> Verdict:
    rest = [
        each
        for each in model.identifiability_.findings
        if each.topic is not Topic.DIRECTION and not _explains(model, each)
    ]
    can = tuple(f"Yes: {each.sentence}" for each in rest if each.learned)
    cannot = tuple(f"No: {each.sentence}" for each in rest if not each.learned)
    # That only G Gᵀ can be learned holds for every data set.
    complete = all(each.learned or each.topic is Topic.FACTOR for each in rest)
    open_ = not model.direction_.identified
    standing: Standing = "good" if complete and not open_ else "mixed"
    answer = "The parameters" if complete else "Some of the parameters"
    answer += ", for either direction of time" if open_ else ""
    return Verdict("What else can these data tell?", answer, standing, (*can, *cannot))


def _remedies(model: ReTrace, panel: Panel) -> list[str]:
    """What the residuals ask for; they stand in the way also where they could not be looked at."""
    check = model.residuals_
    if not check.looked:
        return [NOT_LOOKED]
    return [each.sentence([str(name) for name in panel.ids]) for each in check.failed]


def _next_steps(model: ReTrace, panel: Panel) -> Verdict:
    result, steps = model.result_, []
    if result.stopped:
        steps.append("Fit again and let it finish: this fit was stopped.")
    elif not model.converged_:
        steps.append("Raise max_iter: the alternation stopped before it settled.")
    if model.result_.cycle and not model.direction_.identified:
        steps.append(
            "To settle which way round the loop runs, find one fact about time: of two neighbours, which came first. "
            "Until then report both directions."
        )
    elif not model.direction_.identified and not result.stopped:
        steps.append(
            "To settle the direction, find one fact about time (one pair of observations whose order is known, "
            "or which one came first), or data from a transient: soon after a start or a change. "
            "Until then report both directions."
        )
    own = placement(model, lengths=panel.lengths)
    if own is None:
        steps.append("Call sample_orders() before the report to see how sure each position is.")
    elif own.mean() < 0.8 and result.settings["estimator"] == "mcem":
        steps.append(
            "Use the parameters, which average over the orders, and the position probabilities; do not "
            "build on a single order. Any known times, or more variables, would sharpen it."
        )
    elif own.mean() < 0.8:
        steps.append(
            "Do not build on a single order: use the position probabilities, and add any known times."
        )
    if result.n_trajectories < 20:
        steps.append(
            f"{result.n_trajectories} trajectories are few: the tests above are weak, and the intervals, "
            "whose errors assume many, may be too short."
        )
    if len(result.names) == 1 and Caution.FOLD not in result.notes:
        steps.append(
            "One variable that rises and falls can fold onto itself: check the restored picture, and add "
            "a variable or a known time if it looks folded."
        )
    steps += _remedies(model, panel)
    question = "What to do next?"
    notes = tuple(f"Note: {note.rstrip('.')}." for note in (*result.notes, *panel.notes))
    if steps:
        return Verdict(question, "Look at these first", "mixed", (*steps, *notes))
    nothing = "Nothing in these results stands in the way of using them."
    return Verdict(question, "Use the restored order and the parameters", "good", (nothing, *notes))
