"""Subjects alike or with levels of their own where states are not all seen as they are, or their gaps differ: along the order found.

As `subjects` does where they are: Akaike's price, one nat for each parameter more. Both accounts are judged by the likelihood of what was
observed, each with its own law of the first states; gaps that were estimated are held.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retrace_sde.evidence.selection.subjects import (
    Compared,
    SubjectEffects,
    Subjects,
    level_effects,
    moments_behind,
)
from retrace_sde.fit.levels import fit_levels
from retrace_sde.fit.moments import Moments
from retrace_sde.fit.regression import Estimate
from retrace_sde.fit.statespace.levels import (
    HiddenLevels,
    fit_hidden_levels,
    hidden_level_errors,
    seen_with_levels,
)
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.order import Order
from retrace_sde.process.drift import has_offset
from retrace_sde.search.alternate import Found
from retrace_sde.search.model import Fit
from retrace_sde.search.models.hidden import HiddenModel

MOST_VARIABLES = 8
"""Variables up to which levels are fitted: the smoother has twice as many states, the information 3.5 d² parameters."""

WORK = 3e7
"""n T (2 d)³ up to which subjects are compared on all trajectories; of larger panels some first decide."""


def can_have_levels(model: HiddenModel) -> bool:
    """Gaps are known or were estimated, there is an intercept to differ in, R is diagonal, and subjects are enough."""
    n, _, d = model.data.shape
    R = model.noise
    full = not isinstance(R, str) and np.ndim(R) == 2 and bool(np.any(R - np.diag(np.diag(R))))
    few = n <= 2 * d + 2 or bool(model.data.lengths.steps.steps.total <= 2 * d)
    drawn = model.gaps_random
    return has_offset(model.drift) and d <= MOST_VARIABLES and not (full or few or drawn)


def compared_hidden(model: HiddenModel, found: Found, asked: Subjects) -> Compared:
    """Subjects alike or with levels along the order found, whose direction is settled; None: no question."""
    if asked is Subjects.ALIKE:
        return Compared(found, SubjectEffects(Subjects.ALIKE, True))
    if not can_have_levels(model):
        return Compared(found, None)
    by_name, (n, T, d) = asked is Subjects.LEVELS, model.data.shape
    size = max(int(WORK / (T * 8 * d**3)), 4 * d + 20)
    if not by_name and size < n:
        few = model.some(size)
        alike = few.fit(_taken(found.better.order, evenly(n, size)), final=True)
        levels, nats = _tried(few, alike, clear=True)
        if nats <= 0:
            return _alike(found, levels, nats)
    levels, nats = _tried(model, found.better, clear=not by_name)
    if nats <= 0 and not by_name:
        return _alike(found, levels, nats)
    reverse, _ = _tried(model, found.worse)
    pair = [
        _levelled_fit(model, *each) for each in ((found.better, levels), (found.worse, reverse))
    ]
    effects = level_effects(levels, nats, _span(model, found.better), asked=by_name)
    return Compared(replace(found, better=pair[0], worse=pair[1]), effects, levels, reverse)


def _alike(found: Found, levels: HiddenLevels, nats: float) -> Compared:
    return Compared(found, SubjectEffects(Subjects.ALIKE, False, nats, levels.n_extra))


def _taken(order: Indices, rows: Indices) -> Indices:
    return Order.of(order).take(rows).index


def _gaps(model: HiddenModel, fit: Fit) -> Array:
    return fit.gaps.along(model.data.shape[1])


def _span(model: HiddenModel, fit: Fit) -> float:
    gaps = np.broadcast_to(_gaps(model, fit), (model.data.shape[0], model.data.shape[1] - 1))
    live = model.data.lengths.steps.mask
    return float(np.where(live, gaps, 0.0).sum(axis=1).mean())


def hidden_levels_along(model: HiddenModel, fit: Fit, needed: float = -np.inf) -> HiddenLevels:
    """Levels by maximum likelihood along the order, and across the gaps, of a fit of subjects who are alike; given up where they will not
    reach the log-likelihood `needed`."""
    timed = HiddenModel.across(model, _gaps(model, fit), noise=model.noise, scheme=model.scheme)
    seen = seen_with_levels(timed._prepared([fit.order]), offset=True)
    step, law = fit.step, fit.law
    start = Parameters(step.coefficients, step.diffusion, law.R, law.initial, scheme=timed.scheme)
    states = fit.states if fit.states is not None else model._states(fit.order, law)[1]
    shown, order = model.smoothed_view(replace(fit, states=states))
    rough = fit_levels(shown.data, order, fit.gaps)
    return fit_hidden_levels(seen, timed._ascent, start, rough, needed)


def _tried(model: HiddenModel, fit: Fit, *, clear: bool = False) -> tuple[HiddenLevels, float]:
    """Levels along the order of a fit, and by how many nats they are better than subjects who are alike; `clear`: no more exactly than the
    choice needs."""
    alike, d = float(model.log_joint(fit.order, fit.law).sum()), model.data.shape[2]
    price = d * d + d * (d + 1) // 2
    levels = hidden_levels_along(model, fit, alike + price if clear else -np.inf)
    return levels, float(levels.log_likelihoods.sum()) - alike - levels.n_extra


def _levelled_fit(model: HiddenModel, fit: Fit, levels: HiddenLevels) -> Fit:
    """A fit with the likelihoods and states of levels; what was noted of subjects who are alike is not of these."""
    gain = levels.log_likelihoods - model.log_joint(fit.order, fit.law)
    return replace(fit, log_likelihoods=fit.log_likelihoods + gain, states=levels.states, notes=())


def hidden_level_estimate(levels: HiddenLevels) -> tuple[Estimate, Moments]:
    """Parameters and errors of levels, and the moments that tests may trust."""
    found = Estimate(levels.coefficients, levels.diffusion, hidden_level_errors(levels))
    return found, moments_behind(found, levels.expected.count)


def levelled_hidden(
    model: HiddenModel, found: Fit, levels: HiddenLevels, rng: np.random.Generator
) -> tuple[HiddenModel, Fit]:
    """Subjects moved to where they are alike, `y + A⁻¹ (c_j − c̄)` with intercepts drawn, and the law they then have."""
    apart = (levels.drawn(rng) - levels.average) @ levels.shift.T
    moved = replace(model, data=replace(model.data, values=model.values + apart[:, None]))
    step = replace(found.step, coefficients=levels.coefficients, diffusion=levels.diffusion)
    states = levels.states + apart[:, None]
    return moved, replace(found, law=levels.alike, step=step, states=states)
