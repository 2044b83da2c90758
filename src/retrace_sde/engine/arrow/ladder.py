"""A ladder of models on the order found: each run both ways round, compared by evidence, and asked for the direction.

One model alone can be confidently wrong about the direction: a hidden velocity, subjects' levels or unequal gaps look to a
Markov model like a transient. So richer models are fitted along the order found and along its reverse, each with its own
start law. They are compared by Schwarz' evidence in the direction that suits them better; the direction is tested
inside the one preferred, and models within `TIE` nats of it must agree, or it is left open.

Gaps estimated along the order have no vote but a veto, where they explain more than steps of a variance each: one swapped
pair of slices is enough to make them favour the wrong direction, but where they oppose the others equal gaps are not to
be trusted. Heavy tails have no likelihood here: one would compare more than first and second moments, and that comparison
errs on real panels. They count in the simulated test, which resamples residuals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from scipy import stats

from retrace_sde.data.blocks import Array, Mask, evenly, to_numpy
from retrace_sde.engine.arrow.linear import Form, Panels, each_trajectory, unequal, ways
from retrace_sde.engine.arrow.simulated import Simulated, simulated_test
from retrace_sde.engine.direction import (
    FEWEST,
    DirectionTest,
    ModelEvidence,
    Reason,
    Rung,
    direction_test,
)
from retrace_sde.engine.euler import EulerModel
from retrace_sde.engine.gaps import GapModel
from retrace_sde.engine.hidden import HiddenModel
from retrace_sde.engine.model import Fit, Model
from retrace_sde.process.drift import Affine, is_linear

TIE = 3.0
"""Nats within which the evidence leaves a model open."""

SURE, NOTHING = 1e-6, 1.0
"""Below this p-value of Vuong's, and below this ratio in nats, a simulation would change nothing."""

SEEN = 200_000
"""Numbers (n T d) that the ladder looks at: a direction that shows, shows in fewer."""

ROUNDING = 1e-12
"""Variance of a step, in units of the variables' own, below which second moments cannot tell it."""

MISFIT, LAGS = 0.005, 4
"""Level at which residuals say that a model is not the whole story, and how far apart they are compared."""

NOISY, HIDDEN_WORK = -3.0, 3e6
"""Correlation of successive residuals, in standard errors, that suggests noise, and the n T d³ up to which it is fitted."""


class Role(StrEnum):
    """What a model may do: be the one that the direction is tested in, oppose it, or only be looked at."""

    VOTE = "vote"
    VETO = "veto"
    LISTED = "listed"


FORMS = {
    Rung.MARKOV: (1, False),
    Rung.MEMORY: (2, False),
    Rung.LEVELS: (1, True),
    Rung.MEMORY_LEVELS: (2, True),
}


@dataclass(frozen=True, eq=False)
class Account:
    """What a model says: evidence in nats, and each trajectory's `ℓ_j(order) − ℓ_j(reverse)`.

    `form` where the test can be simulated.
    """

    rung: Rung
    log_evidence: float
    contributions: Array
    form: Form | None = None
    role: Role = Role.VOTE

    @property
    def ratio(self) -> float:
        return float(self.contributions.sum())


def judged(
    model: Model, found: Fit, test: DirectionTest, rng: np.random.Generator, *, alpha: float
) -> DirectionTest:
    """The direction of the order found by the models that the data prefer; its ratio is negative where they favour the reverse."""
    if test.reason is not Reason.TESTED or not is_linear(model.drift):
        return test
    listed = accounts(model, found, test)
    if not listed:
        return test
    panels = _panels(model, found)
    voting = [each for each in listed if each.role is Role.VOTE]
    best = max(voting, key=lambda each: each.log_evidence)
    open_ = [each for each in voting if each.log_evidence >= best.log_evidence - TIE]
    tests = {each.rung: _tested(each, panels, rng, test, alpha=alpha) for each in open_}
    heard = [*open_, *(each for each in listed if each.role is Role.VETO)]
    counted = {each.rung for each in heard}
    records = tuple(
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
    plain = _vuong(best, test, alpha=alpha)
    worst = max(tests.values(), key=lambda each: each.p_value)
    agree = len({each.ratio > 0 for each in heard}) == 1
    return replace(
        plain,
        identified=agree and worst.p_value < alpha,
        p_value=worst.p_value if agree else None,
        p_error=worst.p_error if agree else None,
        reason=Reason.TESTED if agree else Reason.MODELS_DISAGREE,
        models=records,
    )


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
    rests on how the trajectories differ and on no model, must be small too.
    """
    p = _vuong(account, test, alpha=alpha).p_value
    assert p is not None  # there are enough trajectories
    clear = p < SURE or abs(account.ratio) < NOTHING
    if clear or panels is None or account.form is None:
        return Simulated(p, 0.0)
    found = simulated_test(panels, account.form, rng, alpha=alpha)
    doubted = p > found.p_value and left_over(panels, account.form) < MISFIT
    return Simulated(p, 0.0) if doubted else found


# -- the models --------------------------------------------------------------------------------------------


def accounts(model: Model, found: Fit, test: DirectionTest) -> list[Account]:
    """Every model that can be fitted to these data, in both directions of the order found."""
    panels = _panels(model, found)
    own = _own_account(model, found, test)
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
        if rung is Rung.MARKOV and own is None and n < model.data.shape[0]:
            said = replace(said, contributions=test.contributions, form=None)
        listed.append(said)
    if own is None and isinstance(model, EulerModel) and panels.lengths is None:
        listed += _unequal_accounts(model, found, panels, affine=affine)
    if own is None and _looks_noisy(panels, Form(affine=affine)):
        listed += _noise_account(model, found, panels)
    return listed


def _few(model: Model, found: Fit) -> tuple[Model, Fit]:
    """As many trajectories as the ladder looks at."""
    n, T, d = model.data.shape
    size = max(SEEN // (T * d), 2 * d + 20)
    if size >= n:
        return model, found
    order = found.order if found.order.ndim == 1 else found.order[evenly(n, size)]
    return model.some(size), replace(found, order=order)


def _panels(model: Model, found: Fit) -> Panels | None:
    """The data along the order in units of their own; None where values are missing or are not all the story."""
    if model.data.covariates is not None or model.gaps is not None or isinstance(model, GapModel):
        return None
    few, fit = _few(model, found)
    x = to_numpy(few.data.block(slice(None), fit.order)[0])
    lengths = few.data.lengths
    inside = np.arange(x.shape[1])[None] < few.data.observed[:, None]
    if len(x) < FEWEST or few.data.observed.min() < 4 or np.isnan(x[inside]).any():
        return None
    x = np.where(inside[:, :, None], x, 0.0)
    scale = x[inside].std(axis=0)
    if not (scale > 0).all() or _unmoved(x, inside, scale):
        return None
    centre = x[inside].mean(axis=0) if isinstance(model.drift, Affine) else 0.0
    return Panels(
        ((x - centre) / scale * inside[:, :, None])[None],
        lengths,
        log_volume=float(inside.sum() * np.log(scale).sum()),
    )


def _unmoved(x: Array, inside: Mask, scale: Array) -> bool:
    """In some direction hardly anything is left to chance: second moments are then lost to rounding."""
    step = (np.diff(x, axis=1) / scale)[inside[:, 1:]]
    past = (x[:, :-1] / scale)[inside[:, 1:]]
    past = np.c_[past, np.ones(len(past))]
    e = step - past @ np.linalg.lstsq(past, step, rcond=None)[0]
    return bool(np.linalg.svd(e, compute_uv=False)[-1] ** 2 < ROUNDING * len(e))


def _account(rung: Rung, panels: Panels, form: Form) -> Account:
    both = ways(panels, form)
    one, two = (each_trajectory(panels, way)[0][0] for way in both)
    evidence = max(float(way.total[0]) for way in both) - panels.price(form) - panels.log_volume
    return Account(rung, evidence, one - two, form)


def _own_account(model: Model, found: Fit, test: DirectionTest) -> Account | None:
    """Of a model that has more than closed forms: noise, missing values, gaps; None for Euler's steps."""
    n, T, d = model.data.shape
    evidence = found.log_likelihood + max(0.0, -test.log_likelihood_ratio) - _markov_price(model)
    if isinstance(model, HiddenModel):
        evidence -= 0.5 * np.log((model.data.observed - 1).sum())
        return Account(Rung.NOISE, evidence, test.contributions)
    if isinstance(model, GapModel):
        evidence -= 0.5 * (T - 2) * np.log(n * d)
        return Account(Rung.GAPS, evidence, test.contributions)
    return None


def _markov_price(model: Model) -> float:
    d, affine = model.data.shape[2], isinstance(model.drift, Affine)
    k = d * (d + affine) + d * (d + 1) / 2
    return float(0.5 * k * np.log((model.data.observed - 1).sum()))


def _unequal_accounts(
    model: EulerModel, found: Fit, panels: Panels, *, affine: bool
) -> list[Account]:
    """Steps of a variance each, and gaps of one shared order where they explain more than that."""
    form = Form(affine=affine)
    apart = unequal(panels, form)
    if apart is None:
        return []
    listed = [replace(_account(Rung.VARIANCES, apart, form), role=Role.LISTED)]
    if found.order.ndim == 2:
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
        Account(Rung.GAPS, float(evidence), one.log_likelihoods - two.log_likelihoods, role=role),
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
    hidden = HiddenModel.of(few.plain(), noise="estimate")
    one = hidden.fit(fit.order, final=True)
    two = hidden.reversed_fit(one, final=True)
    price = _markov_price(few) + 0.5 * np.log(panels.live(1).sum())
    evidence = max(one.log_likelihood, two.log_likelihood) - price
    return [Account(Rung.NOISE, evidence, one.log_likelihoods - two.log_likelihoods)]
