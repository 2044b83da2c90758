"""A ladder of models on the order found: each run both ways round, compared by evidence, and asked for the direction.

One model alone can be confidently wrong about the direction: a hidden velocity, subjects' levels or unequal gaps look to a
Markov model like a transient. So richer models are fitted along the order found and along its reverse, each with its own
start law. They are compared by Schwarz' evidence in the direction that suits them better; the direction is tested
inside the one preferred, and models within `TIE` nats of it must agree, or it is left open.

A drift that bends decides where it explains more than any linear model does. Where it leaves the direction open, theirs is
believed unless it opposes.

Gaps estimated along the order have no vote but a veto, where they explain more than steps of a variance each: one swapped
pair of slices is enough to make them favour the wrong direction, but where they oppose the others equal gaps are not to
be trusted. Heavy tails have no likelihood here: one would compare more than first and second moments, and that comparison
errs on real panels. They count in the simulated test, which resamples residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from retrace_sde.evidence.direction.independence import Independence, independence
from retrace_sde.evidence.direction.linear import (
    DirectedFit,
    Form,
    Panels,
    Units,
    each_trajectory,
    regressed,
    unequal,
    ways,
)
from retrace_sde.evidence.direction.missing_draws import filled
from retrace_sde.evidence.direction.null_simulation import (
    Simulated,
    World,
    by_lot,
    noisy_world,
    simulated_test,
)
from retrace_sde.evidence.direction.quadratic import bends, courses, curved_price, curved_test
from retrace_sde.evidence.direction.verdict import (
    FEWEST,
    CandidateKind,
    DirectionTest,
    ModelEvidence,
    Reason,
    direction_test,
)
from retrace_sde.fit.start_law import Starts
from retrace_sde.io.arrays import Array
from retrace_sde.panel.blocks import BLOCK_ELEMENTS, evenly, to_numpy
from retrace_sde.process.drift import Affine, is_linear
from retrace_sde.search.model import Fit
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.gaps import GapModel
from retrace_sde.search.models.hidden import HiddenModel
from retrace_sde.search.protocols import Model

TIE = 3.0
"""Nats within which the evidence leaves a model open."""

SURE, NOTHING = 1e-6, 1.0
"""Below this p-value of Vuong's, and below this ratio in nats, a simulation would change nothing."""

CARRIED = 0.3
"""Above this p-value of Vuong's a ratio is carried by a few trajectories, and no simulation makes it evidence."""

SEEN = 200_000
"""Numbers (n T d) that the ladder looks at: a direction that shows, shows in fewer."""

EQUAL = 100.0
"""Nats by which steps of one variance explain more than steps of a variance each: gaps are then not fitted."""

ROUNDING = 1e-12
"""Variance of a step, in units of the variables' own, below which second moments cannot tell it."""

MISFIT, LAGS = 0.005, 4
"""Level at which residuals say that a model is not the whole story, and how far apart they are compared."""

NOISY, HIDDEN_WORK = -3.0, 3e6
"""Correlation of successive residuals, in standard errors, that suggests noise, and the n T d³ up to which it is fitted."""


LOTS = 12
"""Trajectories that can be turned round by lot: of fewer too many of the 2ⁿ ways are nearly the panel itself (with eight, a fifth
of the calls that are right would be lost)."""

CLEAR = 1e-3
"""Vuong's p-value below which linear models are believed though a drift that bends explains more."""


class Role(StrEnum):
    """What a model may do: be the one that the direction is tested in, oppose it, or only be looked at."""

    VOTE = "vote"
    VETO = "veto"
    LISTED = "listed"


FORMS = {
    CandidateKind.MARKOV: (1, False),
    CandidateKind.MEMORY: (2, False),
    CandidateKind.LEVELS: (1, True),
    CandidateKind.MEMORY_LEVELS: (2, True),
}


@dataclass(frozen=True, eq=False)
class Account:
    """What a model says: evidence in nats, and `ratio`, `ℓ(order) − ℓ(reverse)`.

    `apart` gives each trajectory's share of the ratio: a pass over the data, made for the models that are tested in.
    `form` where the test can be simulated; `fits`, both ways round, where worlds behind noise are to be simulated.
    """

    rung: CandidateKind
    log_evidence: float
    ratio: float
    apart: Callable[[], Array]
    form: Form | None = None
    role: Role = Role.VOTE
    fits: tuple[Fit, Fit] | None = None

    @classmethod
    def of(
        cls, rung: CandidateKind, log_evidence: float, contributions: Array, **more: Any
    ) -> Account:
        """From the trajectories' shares."""
        return cls(
            rung, float(log_evidence), float(contributions.sum()), lambda: contributions, **more
        )

    @cached_property
    def contributions(self) -> Array:
        """Each trajectory's `ℓ_j(order) − ℓ_j(reverse)`."""
        return self.apart()


class Judged(NamedTuple):
    """A test of the direction, and whether it calls the reverse of the order that was found."""

    test: DirectionTest
    reverse: bool


def judged(
    model: Model,
    both: tuple[Fit, Fit],
    test: DirectionTest,
    rng: np.random.Generator,
    *,
    alpha: float,
) -> Judged:
    """The direction of the order found, or of its reverse, by the models that the data prefer; `both`: its two fits."""
    if test.reason is not Reason.TESTED or not is_linear(model.drift):
        return Judged(test, False)
    panels = _panels(model, both, rng)
    listed = accounts(model, both, test, panels)
    voting = [each for each in listed if each.role is Role.VOTE]
    if not voting:
        return Judged(test, False)
    best = max(voting, key=lambda each: each.log_evidence)
    open_ = [each for each in voting if each.log_evidence >= best.log_evidence - TIE]
    tests = {each.rung: _tested(each, panels, rng, test, alpha=alpha) for each in open_}
    heard = [*open_, *(each for each in listed if each.role is Role.VETO)]
    worst = max(tests.values(), key=lambda each: each.p_value)
    agree = len({each.ratio > 0 for each in heard}) == 1
    said = replace(
        _vuong(best, test, alpha=alpha),
        # A p-value within its own error of the level decides nothing.
        identified=agree and worst.p_value + worst.p_error < alpha,
        p_value=worst.p_value if agree else None,
        p_error=worst.p_error if agree else None,
        reason=Reason.TESTED if agree else Reason.MODELS_DISAGREE,
        models=_records(listed, tests, {each.rung for each in heard}),
    )
    curve = next((each for each in listed if each.rung is CandidateKind.CURVED), None)
    rivals = [each.log_evidence for each in heard]
    # What bends does so both ways round; noise that is not Gaussian makes the reverse alone look bent.
    worse = -np.inf if curve is None else curve.log_evidence - abs(curve.ratio)
    if panels is not None and curve is not None and worse > max(rivals) + TIE:
        said = _with_curve(said, curve, curved_test(panels, rng, alpha=alpha))
        if said.identified:
            return Judged(said, said.log_likelihood_ratio < 0)
    asked = worst.p_value > SURE or not agree
    if asked and panels is not None and panels.filled is None and best.form is not None:
        said = _with_residuals(said, best, independence(panels, best.form, rng))
        if said.reason is Reason.RESIDUALS:
            return Judged(said, said.models[-1].log_likelihood_ratio < 0)
    return Judged(said, said.identified and said.log_likelihood_ratio < 0)


def _records(
    listed: list[Account], tests: dict[CandidateKind, Simulated], counted: set[CandidateKind]
) -> tuple[ModelEvidence, ...]:
    """What users see of the models, the one with most evidence first."""
    return tuple(
        ModelEvidence(
            each.rung,
            float(each.log_evidence),
            each.ratio,
            tests[each.rung].p_value if each.rung in tests else None,
            tests[each.rung].p_error if each.rung in tests else None,
            each.rung in counted,
        )
        for each in sorted(listed, key=lambda each: -each.log_evidence)
    )


def _with_curve(said: DirectionTest, curve: Account, found: Simulated) -> DirectionTest:
    """A direction by linear models, after a drift that bends and explains more has spoken.

    It decides, or leaves the direction open. Then theirs, of models that are wrong, stands only where it is beyond doubt and
    the bending drift favours it too, or neither.
    """
    decided = found.p_value + found.p_error < said.alpha
    p, error = (found.p_value, found.p_error) if decided else (None, None)
    models = tuple(
        replace(each, p_value=p, p_error=error, counted=True) if each.name is curve.rung else each
        for each in said.models
    )
    if decided:
        test = _vuong(curve, said, alpha=said.alpha)
        return replace(test, identified=True, p_value=p, p_error=error, models=models)
    said = replace(said, models=models)
    if not said.identified:
        return said
    opposed = curve.ratio * np.sign(said.log_likelihood_ratio) < -TIE
    if not opposed and _vuong_p(said) < CLEAR:
        return said
    return replace(
        said,
        identified=False,
        p_value=None,
        p_error=None,
        reason=Reason.MODELS_DISAGREE,
    )


def _vuong_p(test: DirectionTest) -> float:
    """Vuong's p-value of a test, whatever its own is."""
    return replace(test, p_value=None).evidence.p_value


def _with_residuals(said: DirectionTest, best: Account, seen: Independence | None) -> DirectionTest:
    """A direction that moments decide or leave open, with what residuals that are not Gaussian say of it."""
    if seen is None:
        return said
    heard, p = seen.favours, min(seen)
    # There is no likelihood: the sign says which way the residuals are independent.
    ratio = heard * float("inf") if heard else 0.0
    record = ModelEvidence(
        CandidateKind.RESIDUALS, float(best.log_evidence), ratio, p, None, heard != 0
    )
    said = replace(said, models=(*said.models, record))
    if heard == 0 or (said.identified and heard * said.log_likelihood_ratio > 0):
        return said
    if said.identified:
        return replace(
            said, identified=False, p_value=None, p_error=None, reason=Reason.MODELS_DISAGREE
        )
    return replace(said, identified=True, p_value=p, p_error=None, reason=Reason.RESIDUALS)


def _vuong(account: Account, test: DirectionTest, *, alpha: float) -> DirectionTest:
    """Vuong's test inside a model; of all the trajectories where the model is the one that was fitted."""
    if account.contributions is test.contributions:
        return test
    found = account.contributions
    return direction_test(found, np.zeros_like(found), dimension=test.dimension, alpha=alpha)


def _tested(
    account: Account,
    panels: Panels | None,
    rng: np.random.Generator,
    test: DirectionTest,
    *,
    alpha: float,
) -> Simulated:
    """The p-value of one model: by simulation where its closed form allows and Vuong's statistic leaves doubt.

    Simulated worlds are those of the model. Where its residuals say that it is not the whole story Vuong's p-value, which
    rests on how the trajectories differ and on no model, must be small too; and trajectories turned round by lot, where there are
    enough of them, must rarely do as well: nonlinear processes at rest are called by linear models else.
    """
    p = _vuong(account, test, alpha=alpha).p_value
    assert p is not None  # there are enough trajectories
    clear = p < SURE or p > CARRIED or abs(account.ratio) < NOTHING
    if clear or panels is None or account.form is None:
        return Simulated(p, 0.0)
    worlds = None
    if account.fits is not None:
        one, two = account.fits
        worlds = _as_world(one, panels, rng), _as_world(two, panels, rng, backwards=True)
    found = simulated_test(panels, account.form, rng, alpha=alpha, worlds=worlds)
    misfit = worlds is None and left_over(panels, account.form) < MISFIT
    found = Simulated(p, 0.0) if misfit and p > found.p_value else found
    if found.p_value < alpha and panels.x.shape[1] >= LOTS:
        found = max(found, by_lot(panels, account.form, rng, alpha=alpha))
    return found


# -- the models --------------------------------------------------------------------------------------------


def accounts(
    model: Model, both: tuple[Fit, Fit], test: DirectionTest, panels: Panels | None
) -> list[Account]:
    """Every model that can be fitted to these data, in both directions of the order found."""
    own = _own_account(model, both, test)
    if panels is None:
        return [] if own is None else [own]
    n, T, d = panels.x.shape[1:]
    affine = isinstance(model.drift, Affine)
    listed = [] if own is None else [own]
    for rung, (lags, levels) in FORMS.items():
        form = Form(lags, levels, affine)
        if not form.fits(n, T, d) or (levels and panels.lengths is not None):
            continue
        try:
            said = _account(rung, panels, form)
        except np.linalg.LinAlgError:  # a model that these data do not determine has no say
            continue
        if own is not None and rung is own.rung:  # the same, without values that were drawn
            listed[0] = replace(own, form=form if own.ratio * said.ratio > 0 else None)
            continue
        if rung is CandidateKind.MARKOV and own is None and n < model.data.shape[0]:
            said = Account.of(rung, said.log_evidence, test.contributions)
        listed.append(said)
    if own is None and affine and bends(panels):
        with suppress(np.linalg.LinAlgError):
            listed.append(_curved_account(panels))
    if own is None and isinstance(model, EulerModel) and panels.lengths is None:
        alike = max(
            (each.log_evidence for each in listed if each.rung is CandidateKind.MARKOV),
            default=-np.inf,
        )
        listed += _unequal_accounts(model, both[0], panels, alike, affine=affine)
    if (own is None or own.rung is CandidateKind.MARKOV) and _looks_noisy(
        panels, Form(affine=affine)
    ):
        listed += _noise_account(model, both[0], panels)
    return [_with_statistic(each, listed) for each in listed]


def _with_statistic(account: Account, listed: list[Account]) -> Account:
    """A model behind noise with the closed form that comes nearest to it, where they favour the same way."""
    closed = [each for each in listed if each.role is Role.VOTE and each.form is not None]
    if account.fits is None or not closed:
        return account
    nearest = max(closed, key=lambda each: each.log_evidence)
    same = (nearest.ratio > 0) == (account.ratio > 0)
    return replace(account, form=nearest.form if same else None)


def _few(model: Model, found: Fit) -> tuple[Model, Fit]:
    """As many trajectories as the ladder looks at."""
    n, size = model.data.shape[0], _size(model)
    if size >= n:
        return model, found
    order = found.order if found.order.ndim == 1 else found.order[evenly(n, size)]
    return model.some(size), replace(found, order=order)


def _size(model: Model) -> int:
    """How many trajectories that is, at most."""
    _, T, d = model.data.shape
    return int(max(SEEN // (T * d), 2 * d + 20))


def _panels(model: Model, both: tuple[Fit, Fit], rng: np.random.Generator) -> Panels | None:
    """The data along the order in units of their own, missing values drawn; None where they are not all the story."""
    if model.data.covariates is not None or model.gaps is not None or isinstance(model, GapModel):
        return None
    few, fit = _few(model, both[0])
    x = to_numpy(few.data.block(slice(None), fit.order)[0])
    lengths, affine = few.data.lengths, isinstance(model.drift, Affine)
    inside = np.arange(x.shape[1])[None] < few.data.observed[:, None]
    if len(x) < FEWEST or few.data.observed.min() < 4:
        return None
    seen = ~np.isnan(x) & inside[:, :, None]
    holes = not seen[inside].all()
    if holes and (type(model) is not HiddenModel or lengths is not None):
        return None
    if lengths is not None:
        x = np.where(inside[:, :, None], x, 0.0)
    flat = x.reshape(-1, x.shape[2]) if lengths is None else x[inside]
    centre = (np.nanmean if holes else np.mean)(flat, axis=0)
    scale = np.nanstd(flat, axis=0) if holes else _deviation(flat, centre)
    if not (scale > 0).all():
        return None
    centre = centre * affine
    x = x - centre
    x /= scale
    if holes or lengths is not None:
        x = np.where(seen, x, 0.0)
    found = Panels(x[None], lengths, Units(centre, scale))
    if not holes:
        return None if _unmoved(found) else found
    laws = _as_world(both[0], found, rng), _as_world(both[1], found, rng, backwards=True)
    return filled(found, seen, laws, Form(affine=affine), rng)


def _deviation(x: Array, centre: Array) -> Array:
    """Standard deviations of rows (N, d), some at a time: a copy of all would cost more than the sums."""
    size = max(1, BLOCK_ELEMENTS // x.shape[1])
    squares = np.zeros(x.shape[1])
    for begin in range(0, len(x), size):
        z = x[begin : begin + size] - centre
        squares += np.einsum("ij,ij->j", z, z)
    found: Array = np.sqrt(squares / len(x))
    return found


def _unmoved(panels: Panels) -> bool:
    """In some direction hardly anything is left to chance: second moments are then lost to rounding."""
    leaves = regressed(panels, Form()).leaves[0]
    # As a square: what keeps the regression solvable enters it in the second order only.
    H = leaves.T @ panels.moments[0] @ leaves / panels.live(1).sum()
    return bool(np.linalg.eigvalsh(H)[0] < ROUNDING)


def _account(rung: CandidateKind, panels: Panels, form: Form) -> Account:
    one, two = ways(panels, form)
    evidence = max(float(way.total[0]) for way in (one, two))
    evidence -= panels.price(form) + panels.log_volume

    def apart() -> Array:
        return each_trajectory(panels, one)[0][0] - each_trajectory(panels, two)[0][0]

    return Account(rung, evidence, float(one.total[0] - two.total[0]), apart, form)


def _curved_account(panels: Panels) -> Account:
    one, two = (each.log_likelihoods[0] for each in courses(panels))
    best = max(float(one.sum()), float(two.sum()))
    evidence = best - curved_price(panels) - panels.log_volume
    return Account.of(CandidateKind.CURVED, evidence, one - two, role=Role.LISTED)


def _own_account(model: Model, both: tuple[Fit, Fit], test: DirectionTest) -> Account | None:
    """Of a model that has more than closed forms: noise, missing values, gaps; None for Euler's steps."""
    n, T, d = model.data.shape
    if not isinstance(model, HiddenModel | GapModel):
        return None
    few, rows = _few(model, both[0])[0], evenly(n, _size(model))
    evidence = max(float(each.log_likelihoods[rows].sum()) for each in both) - _markov_price(few)
    if type(model) is HiddenModel and not both[0].law.R.any():  # no noise: only values are missing
        return Account.of(CandidateKind.MARKOV, evidence, test.contributions)
    if isinstance(model, HiddenModel):
        evidence -= 0.5 * np.log((few.data.observed - 1).sum())
        return Account.of(CandidateKind.NOISE, evidence, test.contributions, fits=both)
    evidence -= 0.5 * (T - 2) * np.log(len(rows) * d)
    return Account.of(CandidateKind.GAPS, evidence, test.contributions)


def _markov_price(model: Model) -> float:
    d, affine = model.data.shape[2], isinstance(model.drift, Affine)
    k = d * (d + affine) + d * (d + 1) / 2
    return float(0.5 * k * np.log((model.data.observed - 1).sum()))


def _unequal_accounts(
    model: EulerModel, found: Fit, panels: Panels, alike: float, *, affine: bool
) -> list[Account]:
    """Steps of a variance each, and gaps of one shared order where they explain more than that.

    `alike`: the evidence of steps of one variance.
    """
    form = Form(affine=affine)
    apart = unequal(panels, form)
    if apart is None:
        return []
    listed = [replace(_account(CandidateKind.VARIANCES, apart, form), role=Role.LISTED)]
    if found.order.ndim == 2 or listed[0].log_evidence < alike - EQUAL:
        return listed
    few, fit = _few(model, found)
    free = GapModel(few.data, few.dt, few.drift, stamps=model.stamps)
    one = free.fit(fit.order, final=True)
    two = free.reversed_fit(one, final=True)
    n, T, d = few.data.shape
    price = _markov_price(few) + 0.5 * (T - 2) * np.log(n * d)
    evidence = max(one.log_likelihood, two.log_likelihood) - price
    role = Role.VETO if evidence > listed[0].log_evidence + TIE else Role.LISTED
    return [
        *listed,
        Account.of(
            CandidateKind.GAPS, evidence, one.log_likelihoods - two.log_likelihoods, role=role
        ),
    ]


def _white(panels: Panels, form: Form) -> Array:
    """Residuals (n, S, d) of the better way round, with unit covariance."""
    way = max(ways(panels, form), key=lambda each: float(each.total[0]))
    e = each_trajectory(panels, way)[1][0]
    flat = e.reshape(-1, e.shape[2]).T
    return np.asarray(np.linalg.solve(np.linalg.cholesky(way.H[0]), flat).T.reshape(e.shape))


def _correlation(white: Array, lag: int, form: Form) -> float:
    """Of residuals some steps apart, in the standard errors of independent ones."""
    products = float((white[:, lag:] * white[:, :-lag]).sum())
    if form.levels:  # residuals that sum to zero are correlated by −1/(S − 1)
        products += float((white**2).sum()) * (1 - lag / white.shape[1]) / white.shape[1]
    return products / float(np.sqrt(white[:, lag:].size))


def left_over(panels: Panels, form: Form) -> float:
    """The smaller p-value of two questions to the residuals: do they go on, and have they a mean that changes with time?"""
    white = _white(panels, form)
    n, S, d = white.shape
    lags = range(1, min(LAGS, S - 2) + 1)
    goes_on = sum(_correlation(white, lag, form) ** 2 for lag in lags)
    middle = n * float((white.mean(axis=0) ** 2).sum())
    return float(min(stats.chi2.sf(goes_on, len(lags)), stats.chi2.sf(middle, S * d)))


def _looks_noisy(panels: Panels, form: Form) -> bool:
    """Successive residuals are correlated negatively, as measurement noise makes them."""
    n, T, d = panels.x.shape[1:]
    small = panels.lengths is None and n * T * d**3 <= HIDDEN_WORK
    return small and _correlation(_white(panels, form), 1, form) < NOISY


def _noise_account(model: Model, found: Fit, panels: Panels) -> list[Account]:
    few, fit = _few(model, found)
    seen = few if isinstance(few, HiddenModel) else few.plain()
    hidden = HiddenModel.of(seen, noise="estimate")
    one = hidden.fit(fit.order, final=True)
    two = hidden.reversed_fit(one, final=True)
    price = _markov_price(few) + 0.5 * np.log(panels.live(1).sum())
    evidence = max(one.log_likelihood, two.log_likelihood) - price
    ratios = one.log_likelihoods - two.log_likelihoods
    return [Account.of(CandidateKind.NOISE, evidence, ratios, fits=(one, two))]


def _as_world(
    fit: Fit, panels: Panels, rng: np.random.Generator, *, backwards: bool = False
) -> World:
    """A fit behind noise as a world to simulate, in the units of the panel."""
    law, dt, d = fit.law, fit.step.dt, panels.x.shape[3]
    centre, scale = (np.zeros(d), np.ones(d)) if panels.units is None else panels.units
    A = law.theta[:, :d] * dt
    c = law.theta[:, d] * dt if law.theta.shape[1] > d else np.zeros(d)
    theta = np.r_[(A * scale / scale[:, None]).T, ((c + A @ centre) / scale)[None]]
    square = np.outer(scale, scale)
    mean = np.tile((law.initial.mean - centre) / scale, (1, 2, 1))
    start = Starts(
        np.zeros((1, 1)), (law.initial.covariance / square)[None], mean, np.array([[1.0, 0.0]])
    )
    way = DirectedFit(
        Form(), np.zeros(1), theta[None], (law.H * dt / square)[None], start, backwards
    )
    return noisy_world(way, law.R / square, rng)
