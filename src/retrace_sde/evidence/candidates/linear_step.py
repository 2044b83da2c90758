"""Candidates in closed form: `x_{t+1} = c_j + F₁ x_t + F₂ x_{t−1} + e_t`, of which Markov steps are the simplest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from retrace_sde.evidence.candidates.along import CandidatesAlong
from retrace_sde.evidence.candidates.candidate import CandidateFit, CandidateKind, Role
from retrace_sde.evidence.candidates.penalty import Block, penalty, step_parameters
from retrace_sde.evidence.candidates.prediction import Prediction, StepRows
from retrace_sde.evidence.closed_form.linear import DirectedFit, each_trajectory, fit_directions
from retrace_sde.evidence.closed_form.panels import Form, Panels
from retrace_sde.io.arrays import Array

MISFIT_LAGS = 4
"""Lags at which residuals are tested for correlation."""


@dataclass(frozen=True)
class LinearStep:
    """A linear step with `lags` slices in its past, with or without random intercepts."""

    kind: str
    meaning: str
    allows: str
    remedy: str
    lags: int = 1
    intercepts: bool = False

    def form(self, along: CandidatesAlong) -> Form:
        """The closed form with the offset that the searched drift has."""
        return Form(self.lags, self.intercepts, along.affine)

    def applies(self, along: CandidatesAlong) -> bool:
        panels = along.panels
        if panels is None:
            return False
        whole = not self.intercepts or panels.lengths is None
        return whole and self.form(along).fits(*panels.x.shape[1:])

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        assert along.panels is not None  # it applies
        return closed_form_fit(self.kind, along.panels, self.form(along))

    def predict(self, steps: StepRows) -> Prediction | None:
        return None


class Markov(LinearStep):
    """Steps that depend on the last state alone; the searched model's own fit where values are missing."""

    def applies(self, along: CandidatesAlong) -> bool:
        return along.own_kind is CandidateKind.MARKOV or super().applies(along)

    def fit(self, along: CandidatesAlong) -> CandidateFit | None:
        found = super().fit(along) if super().applies(along) else None
        if (
            along.own_kind is CandidateKind.MARKOV
        ):  # by its likelihood, without values that were drawn
            own = along.own_fit(markov_penalty(along))
            agree = found is not None and own.ratio * found.ratio > 0
            return replace(own, form=self.form(along) if agree else None)
        if found is not None and along.own_kind is None and along.sampled:
            ratio = float(along.contributions.sum())  # of all trajectories, whose fit there is
            found = replace(
                found, ratio=ratio, by_trajectory=lambda: along.contributions, form=None
            )
        return found


def markov_penalty(along: CandidatesAlong, *more: Block) -> float:
    """Of Markov steps of the sample, and of further parameters."""
    d = along.model.data.shape[2]
    return penalty(Block(step_parameters(d, affine=along.affine), along.steps), *more)


def closed_form_fit(
    kind: str, panels: Panels, form: Form, role: Role = Role.VOTE
) -> CandidateFit | None:
    """A closed form in both directions, as a candidate."""
    one, two = fit_directions(panels, form)
    first, second = float(one.total[0]), float(two.total[0])
    found = first - panels.log_volume, second - panels.log_volume

    def by_trajectory() -> Array:
        return each_trajectory(panels, one)[0][0] - each_trajectory(panels, two)[0][0]

    return CandidateFit(
        kind, found, form_penalty(panels, form), first - second, by_trajectory, role, form
    )


def form_penalty(panels: Panels, form: Form) -> float:
    """Of the parameters of a closed form; the variances of single steps included, where they differ."""
    n, T, d = panels.x.shape[1:]
    k = step_parameters(d, lags=form.lags, affine=form.affine)
    blocks = [Block(k, float(panels.live(form.lags).sum()))]
    if form.levels:
        blocks.append(Block(form.lags * d**2 + d * (d + 1) / 2, n))
    if panels.spread is not None:
        blocks.append(Block(T - 2, n * d))
    return penalty(*blocks)


# -- residuals ---------------------------------------------------------------------------------------------


def misfit_p_value(panels: Panels, form: Form) -> float:
    """The smaller p-value of two tests of the residuals: of autocorrelation, and of a mean that changes with time."""
    white = _white(panels, form)
    n, S, d = white.shape
    lags = range(1, min(MISFIT_LAGS, S - 2) + 1)
    correlated = sum(_correlation(white, lag, form) ** 2 for lag in lags)
    moving = n * float((white.mean(axis=0) ** 2).sum())
    return float(min(stats.chi2.sf(correlated, len(lags)), stats.chi2.sf(moving, S * d)))


def lag_one_z(panels: Panels, form: Form) -> float:
    """Correlation of successive residuals, in standard errors: negative where there is measurement noise."""
    return _correlation(_white(panels, form), 1, form)


def _white(panels: Panels, form: Form) -> Array:
    """Residuals (n, S, d) of the better direction, with unit covariance."""
    better: DirectedFit = max(fit_directions(panels, form), key=lambda each: float(each.total[0]))
    e = each_trajectory(panels, better)[1][0]
    flat = e.reshape(-1, e.shape[2]).T
    return np.asarray(np.linalg.solve(np.linalg.cholesky(better.H[0]), flat).T.reshape(e.shape))


def _correlation(white: Array, lag: int, form: Form) -> float:
    """Of residuals some steps apart, in the standard errors of independent ones."""
    products = float((white[:, lag:] * white[:, :-lag]).sum())
    if form.levels:  # residuals that sum to zero are correlated by −1/(S − 1)
        products += float((white**2).sum()) * (1 - lag / white.shape[1]) / white.shape[1]
    return products / float(np.sqrt(white[:, lag:].size))


MARKOV = Markov(
    CandidateKind.MARKOV, "the next value depends on the last one alone", allows="", remedy=""
)
