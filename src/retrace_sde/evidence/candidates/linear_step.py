"""Candidates in closed form: steps that are linear in the past, with memory or random intercepts, or polynomial in the last state.

Memory (second order): the step before matters, too, as it does where a velocity was not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import TIE_NATS, CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.penalty import Block, penalty, step_parameters
from retrace_sde.evidence.candidates.prediction import (
    Prediction,
    StepRows,
    chance_share,
    profile,
    rows,
)
from retrace_sde.evidence.closed_form.checks import Freed, free_nuisances
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.evidence.closed_form.steps import (
    contributions,
    fit_directions,
    most_log_likelihood,
)
from retrace_sde.io.arrays import Array

MAX_VARIABLES = {1: None, 2: 6, 3: 3}
"""Variables up to which products of two, and of three, are regressors."""


@dataclass(frozen=True)
class StepCandidate:
    """A step with `lags` slices in its past, with or without random intercepts, of a degree in the last state."""

    kind: str
    meaning: str
    allows: str
    remedy: str
    lags: int = 1
    intercepts: bool = False
    degree: int = 1

    def form(self, along: CandidatesAlong) -> Form:
        """The closed form with the offset that the searched drift has; offsets are free where the data are deviations.

        Not those of a curved drift, which is given the states themselves and may explain their means.
        """
        means = along.deviations and self.degree == 1
        return Form(self.lags, self.intercepts, along.affine, self.degree, means)

    def applies(self, along: CandidatesAlong) -> bool:
        panels = along.panels
        if panels is None:
            return False
        d, most = panels.x.shape[3], MAX_VARIABLES[self.degree]
        plain = self.degree == 1 and not self.intercepts
        whole = plain or panels.lengths is None
        curved = self.degree == 1 or (along.affine and along.whole_panels is not None)
        few = most is None or d <= most
        return whole and curved and few and self.form(along).fits(*panels.x.shape[1:])

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        panels, form = along.panels, self.form(along)
        assert panels is not None  # it applies
        if self.behind_markov(along, panels, form):
            return _as_candidate(self.kind, panels, Freed(form, None), Role.LISTED)
        return step_fit(self.kind, panels, form)

    def behind_markov(self, along: CandidatesAlong, panels: Panels, form: Form) -> bool:
        """Markov steps explain the panel, and better than these do, whatever nuisances are free: residuals are not checked then.

        Their log-likelihood with free offsets, the penalty without; and free variances, which gain less than they cost in Markov steps
        that pass their checks, may gain twice as much here.
        """
        plain = along.fit(MARKOV) if form.degree == 1 else None
        freed = form._replace(means=True)
        if plain is None or not plain.adequate or not freed.fits(*panels.x.shape[1:]):
            return False
        least = form_penalty(panels, form)
        cost = form_penalty(panels, form._replace(spreads=True)) - least
        gained = cost if plain.form is None else _gained_by_variances(panels, plain.form, cost)
        least -= max(2 * gained - cost, 0.0)
        enough = plain.log_evidence - TIE_NATS + panels.log_volume + least
        if most_log_likelihood(panels, freed) < enough:
            return True
        return max(float(each.total[0]) for each in fit_directions(panels, freed)) < enough

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


class Markov(StepCandidate):
    """Steps that depend on the last state alone; the searched model's own fit where values are missing."""

    def behind_markov(self, along: CandidatesAlong, panels: Panels, form: Form) -> bool:
        return False

    def applies(self, along: CandidatesAlong) -> bool:
        return along.own_kind is CandidateKind.MARKOV or super().applies(along)

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        found = super().fit(along) if super().applies(along) else None
        form = self.form(along)
        if found is not None and found.form != form:
            return found  # with nuisances that the searched model does not have
        if (
            along.own_kind is CandidateKind.MARKOV
        ):  # by its likelihood, without values that were drawn
            own = along.own_fit(markov_penalty(along))
            agree = found is not None and own.ratio * found.ratio > 0
            checks = None if found is None else found.checks
            return replace(own, form=form if agree else None, checks=checks)
        if found is not None and along.own_kind is None and along.sampled:
            ratio = float(along.contributions.sum())  # of all trajectories, whose fit there is
            found = replace(found, ratio=ratio, by_trajectory=lambda: along.contributions)
        return found


def _gained_by_variances(panels: Panels, form: Form, most: float) -> float:
    """Nats that free variances gain, up to so many; these where they cannot be fitted, or are free already."""
    freed = form._replace(spreads=True)
    if form.spreads or not panels.aligned or not freed.fits(*panels.x.shape[1:]):
        return most
    one, two = (
        max(float(each.total[0]) for each in fit_directions(panels, which))
        for which in (form, freed)
    )
    return min(max(two - one, 0.0), most)


def markov_penalty(along: CandidatesAlong, *more: Block) -> float:
    """Of Markov steps of the sample, and of further parameters."""
    d = along.model.data.shape[2]
    return penalty(Block(step_parameters(d, affine=along.affine), along.steps), *more)


def step_fit(kind: str, panels: Panels, form: Form) -> CandidateFit:
    """A form in both directions, as a candidate, with the nuisances free that its residuals, or its evidence, ask for.

    Linear steps that explain the means in the direction that fits worse only are listed, and rule no other model out: random intercepts silenced
    memory in small panels of ten variables. Curved ones do rule others out: of epidemics .10 are called wrongly where they do not.
    """
    freed = free_nuisances(panels, form, form_penalty)
    torn = freed.torn and form.degree == 1
    return _as_candidate(kind, panels, freed, Role.LISTED if torn else Role.VOTE)


def _as_candidate(kind: str, panels: Panels, freed: Freed, role: Role) -> CandidateFit:
    form, checks, less, _ = freed
    one, two = fit_directions(panels, form)
    first, second = float(one.total[0]), float(two.total[0])
    found = first - panels.log_volume, second - panels.log_volume

    def by_trajectory() -> Array:
        shares = contributions(panels, one)[0] - contributions(panels.reverse, two)[0]
        return np.asarray(shares)

    price = form_penalty(panels, form)
    return CandidateFit(
        kind,
        found,
        price,
        first - second,
        by_trajectory,
        role,
        form,
        checks=checks,
        less=less,
        fitted=form,
    )


def form_penalty(panels: Panels, form: Form) -> float:
    """Of the parameters of a closed form; the offsets and the variances of single steps included, where they are free."""
    n, T, d = panels.x.shape[1:]
    S, p = T - form.lags, form.regressors(d)
    blocks = [Block(d * (p + form.affine) + d * (d + 1) / 2, float(panels.live(form.lags).sum()))]
    if form.levels:
        blocks.append(Block(form.lags * d**2 + d * (d + 1) / 2, n))
    if form.means:
        blocks.append(Block(d * (S - 1), n))
    if form.spreads:
        blocks.append(Block(S - 1, n * d))
    return penalty(*blocks)


MARKOV = Markov(
    CandidateKind.MARKOV, "the next value depends on the last one alone", allows="", remedy=""
)


class Memory(StepCandidate):
    """`Δx_i = Θ φ_i + M Δx_{i−1} + ε_i`."""

    def predict(self, steps: StepRows) -> Prediction | None:
        y, z, _ = rows(steps)
        d = y.shape[2]
        value, B, _ = profile(y[:, 1:], np.concatenate([z[:, 1:], y[:, :-1]], axis=2))
        # Momentum persists, `M = e^{−γΔt}`. A step that is taken back is noise, also where more parameters fit it better.
        reverting = bool(np.trace(B[:, -d:]) < 0)
        better = (CandidateKind.NOISE,) if reverting else ()
        return Prediction(value, d * d, chance_share(steps), better)


MEMORY = Memory(
    CandidateKind.MEMORY,
    "memory: the last step matters, too",
    allows="memory",
    remedy="the past matters beyond the present state (momentum, or a variable that was not measured). Add the missing "
    "variable, or read the drift as that of the observed variables",
    lags=2,
)
