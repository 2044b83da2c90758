"""Every check of what a model is asked to do, once, before it sees data; and of the data it is asked to see."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.evidence.selection.intercepts import ObservedAccount, Subjects
from retrace_sde.evidence.selection.subjects import account_kind
from retrace_sde.fit.statespace.parameters import as_noise
from retrace_sde.io.arrays import Array
from retrace_sde.orders.prior import Prior, compiled
from retrace_sde.panel.blocks import Data, to_numpy
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import check
from retrace_sde.panel.schedule import check_schedule
from retrace_sde.panel.uninformative import LeftOut
from retrace_sde.panel.validation import ReTraceWarning, least_combination
from retrace_sde.paper.algorithm1 import as_score, as_score_order
from retrace_sde.paper.score import GaussianScore
from retrace_sde.process.drift import (
    Affine,
    Drift,
    Driven,
    Independent,
    Linear,
    TumourGrowth,
    as_drift,
    driven,
    has_offset,
    has_state_space,
    independent_features,
)
from retrace_sde.process.sde import is_positive
from retrace_sde.search.plan import given_noise_covariance, nonlinear
from retrace_sde.search.protocols import Model

MAX_MEAN_IN_DEVIATIONS = 2.0
"""|mean| / standard deviation beyond which a drift without offset is warned of: about a level m a slope through zero is
shrunk by 1 / (1 + m²/s²), here fivefold."""

TRAJECTORIES_SAMPLED = 200
"""Trajectories that show where the data lie."""

MIN_NOISE_SHARE = 1e-22
"""Share of a variable's variance in a step's noise below which it is rounding, which leaves some 1e-30."""

MIN_DIFFUSION_RATIO = 1e-6
"""Smallest singular value of standardised variables, relative to the largest, whose square exceeds rounding."""

MAX_NEGATIVE_SHARE = 0.05
"""How far below zero, relative to the largest, measurement error may put a volume."""


def check_lazy(panel: Panel, given: Mapping[str, Any], knowledge: Knowledge | None) -> None:
    """What is asked of a panel that is stored outside memory can be had by passes over it."""
    if not Data(panel.values).lazy:
        return
    noise, own = given["observation_noise"], given["permutation"] == "independent"
    asked = {
        "observation_noise": noise is not None and not is_auto(noise),
        "estimator='em'": given["estimator"] == "em",
        "order='score'": given["order"] != "likelihood",
        "spacing='estimate'": given["spacing"] == "estimate",
        "common_shocks=True": given["common_shocks"] is True,
        "wrong timestamps": knowledge is not None and knowledge.wrong is not None,
        "a schedule": knowledge is not None and knowledge.schedule is not None,
        "knowledge of single trajectories": own and knowledge is not None,
        f"drift={given['drift']!r}": isinstance(as_drift(given["drift"]), TumourGrowth),
    }
    found = next((name for name, is_asked in asked.items() if is_asked), None)
    if found is not None:
        raise ValueError(
            f"{found} needs the trajectories in memory, and X is stored outside it: pass a part of them, e.g. X[:5000] read "
            "by numpy; a few thousand trajectories suffice."
        )


def check_settings(given: Mapping[str, Any]) -> None:
    """The parameters of `ReTrace`, each by itself and together."""
    check("ReTrace", given)
    how, drift = as_score_order(given["order"]), as_drift(given["drift"])
    noise, estimator, subjects = (
        given[name] for name in ("observation_noise", "estimator", "subjects")
    )
    noisy = noise is not None and not is_auto(noise)
    by_score, gaussian = (
        how is not None,
        how is None or isinstance(as_score(how.score), GaussianScore),
    )
    shared, curved = given["permutation"] == "shared", not has_state_space(driven(drift))
    by_subject = subjects in (Subjects.LEVELS, Subjects.RATES)
    refused = {
        "the score of order=ScoreOrder(…) must be 'gaussian' with observation_noise: only S − R corrects for it.":
            noisy and not gaussian,
        f"estimator={estimator!r} needs a linear or affine drift; use estimator='mle'.":
            curved and estimator in ("exact", "em"),
        nonlinear("observation_noise", drift): curved and noisy,
        "order='score' is the paper's algorithm for one shared permutation; use order='likelihood' with "
        "permutation='independent'.": by_score and not shared,
        "spacing='estimate' needs order='likelihood'.": by_score and given["spacing"] == "estimate",
        "common_shocks=True needs slices that all trajectories share: with permutation='independent' they cannot be aligned. Use "
        "permutation='shared', or common_shocks='auto'.": given["common_shocks"] is True and not shared,
        "common_shocks=True needs order='likelihood' and a linear or affine drift; common_shocks='auto' says whether there are any.":
            given["common_shocks"] is True and (by_score or curved),
        f"subjects={subjects!r} is fitted along the best order of each subject, which estimator='mcem' averages over: use "
        "estimator='auto', or subjects='alike'.": by_subject and estimator == "mcem",
        "estimator='mcem' averages over independent orders; with permutation='shared' use estimator='mle' and sample_orders().":
            shared and estimator == "mcem",
    }  # fmt: skip
    _refuse(refused)


def _refuse(reasons: Mapping[str, bool]) -> None:
    """Raise the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(reason)


def is_auto(noise: Any) -> bool:
    """The data are to say whether there is observation noise."""
    return isinstance(noise, str) and noise == "auto"


def check_levels(subjects: str, model: Model) -> None:
    """Levels by name are fitted where they can be, and refused elsewhere; "auto" then takes subjects as alike."""
    if subjects == Subjects.RATES and model.states_hidden:
        raise ValueError(
            "subjects='rates' cannot yet be combined with observation noise, missing values, a schedule, or unknown gaps of "
            "own orders: leave those out, or use subjects='alike'."
        )
    if subjects != Subjects.LEVELS:
        return
    (n, _, d), hidden, noise = model.data.shape, model.states_hidden, given_noise_covariance(model)
    linked = noise is not None and bool(noise[~np.eye(len(noise), dtype=bool)].any())
    most, behind = (
        account_kind(model).max_variables,
        " behind noise, missing values or a schedule",
    )
    enough = n > 2 * d + 2 and model.data.lengths.steps.steps.total > 2 * d
    _refuse({
        "subjects='levels' gives each subject an intercept of its own: use drift='affine', and covariates only behind "
        "noise, missing values or a schedule.":
            not isinstance(model.drift, Affine) and not (hidden and has_offset(model.drift)),
        "subjects='levels' needs gaps that are known or shared, since steps of unknown length and a level look alike in "
        "one subject: give times or a schedule, use spacing='regular', or subjects='alike'.": model.gaps_random,
        "subjects='levels' needs noise of one variable to be independent of that of others: give observation_noise as "
        "one standard deviation for each, or use subjects='alike'.": linked,
        f"subjects='levels'{behind * (most < ObservedAccount.max_variables)} is for up to {most} variables; got {d}: choose some of "
        "them.": d > most,
        f"subjects='levels' needs more than {2 * d + 2} subjects for {d} variables, and three observations of each or more; "
        f"there are {n} subjects.": not enough,
    })  # fmt: skip


def check_knowledge(knowledge: object, order: object) -> None:
    """What is known of time is a `Knowledge`, and the search can use it."""
    if knowledge is None:
        return
    if not isinstance(knowledge, Knowledge):
        kind = type(knowledge).__name__
        raise ValueError(f"knowledge must be a retrace_sde.Knowledge(…); got {kind}.")
    settings = {name: getattr(knowledge, name) for name in ("aligned", "share", "wrong")}
    check("Knowledge", settings)
    if knowledge.wrong is not None and knowledge.timestamps is None:
        raise ValueError("wrong= is the share of timestamps that are wrong, but no timestamps are given.")  # fmt: skip
    if order != "likelihood":
        raise ValueError(
            "order='score' sorts slices by the paper's comparison, which cannot use knowledge of time; use "
            "order='likelihood'."
        )


def consistent_prior(
    knowledge: Knowledge, panel: Panel, *, shared: bool, dt: float
) -> Prior | None:
    """The prior over orders, of knowledge that fits the data and does not contradict itself, in the numbers that the user gave."""
    if knowledge.schedule is not None:
        check_schedule(knowledge.schedule, panel, shared=shared)
    n, T, _ = panel.values.shape
    return compiled(knowledge, n, T, shared=shared, dt=dt, lengths=panel.lengths)


def check_noise(noise: Any, d: int) -> None:
    """Observation noise in one of its forms, for d variables."""
    if noise is None:
        return
    try:
        as_noise(noise, d)
    except (TypeError, ValueError, OverflowError) as error:
        why = str(error).rstrip(".")
        raise ValueError(f"observation_noise cannot be used: {why}.") from None


def noise_of_kept(noise: Any, left_out: Collection[LeftOut]) -> Any:
    """Observation noise that was given for all variables, for those that were not left out."""
    if not left_out or isinstance(noise, str) or np.ndim(noise) == 0:
        return noise
    given, dropped = np.asarray(noise), [each.index for each in left_out]
    if min(given.shape) <= max(dropped):
        return noise  # of another size, as its check will say
    return reduce(lambda kept, axis: np.delete(kept, dropped, axis), range(given.ndim), given)


def with_times(X: Any, knowledge: Any) -> Any:
    """What is known of time, joined by the times that a panel brings, where the knowledge has none."""
    if not isinstance(X, Panel) or X.times is None or np.isnan(X.times).all():
        return knowledge
    if knowledge is None:
        knowledge = Knowledge()
    if not isinstance(knowledge, Knowledge) or knowledge.timestamps is not None:
        return knowledge
    return replace(knowledge, timestamps=X.times, timestamp_error=X.time_error)


def check_gaps(gaps: Any | None, steps: int, dt: float) -> Array:
    """Times (steps,) between what is forecast: dt, or positive numbers given."""
    if gaps is None:
        return np.full(steps, dt)
    found = np.asarray(gaps, dtype=float)
    if found.shape != (steps,) or not np.all((found > 0) & np.isfinite(found)):
        raise ValueError(
            f"gaps must be {steps} positive numbers, the time to each observation from the one before; got {gaps!r}."
        )
    return found


def check_enough(panel: Panel, n_features: int) -> None:
    """There are more transitions than regressors and variables, so that H can be positive definite."""
    n, T, d = panel.values.shape
    steps = Lengths(n, T, panel.lengths).steps.total
    needed = n_features + d
    if steps < needed:
        raise ValueError(
            f"X has {steps} transitions ({n} trajectories of up to {T - 1} steps), but {d} variables with "
            f"{n_features} drift features need at least {needed}: add trajectories or drop variables."
        )


def check_centred(panel: Panel, drift: Drift) -> None:
    """Warn where `A x` without an offset is asked of data far from zero, where it cannot mean revert to their level."""
    if not isinstance(drift, Linear):
        return
    far = _distances_from_zero(panel)
    k = int(far.argmax())
    if far[k] > MAX_MEAN_IN_DEVIATIONS:
        warnings.warn(
            f"drift='linear' has its equilibrium at zero, but the mean of {panel.names[k]!r} is {far[k]:.1f} standard "
            "deviations away: its drift, and the direction of time, can be confidently wrong; use drift='affine'.",
            ReTraceWarning,
            stacklevel=5,
        )


def _distances_from_zero(panel: Panel) -> Array:
    """|mean| / standard deviation of each variable, (d,), over the observations of some trajectories."""
    some = Data(panel.values, counts=panel.lengths).some(TRAJECTORIES_SAMPLED)
    inside = some.lengths.mask
    x = to_numpy(some.values)[inside]
    spread = np.nanstd(x, axis=0)
    return np.asarray(np.abs(np.nanmean(x, axis=0)) / np.maximum(spread, 1e-300), dtype=np.float64)


def check_volumes(panel: Panel, drift: Drift) -> Panel:
    """Under `TumourGrowth`, a few values ≤ 0 are measurement error and count as its floor; more are refused."""
    if not isinstance(drift, TumourGrowth) or panel.values.shape[2] != 1:
        return panel
    values = to_numpy(panel.values)[:, :, 0]
    n, T = values.shape
    seen = Lengths(n, T, panel.lengths).mask
    low = (values <= 0) & seen
    if not low.any():
        return panel
    j, t = (int(each) for each in np.unravel_index(np.where(seen, values, 1).argmin(), (n, T)))
    found = (
        f"{low.sum()} of {seen.sum()} values of {panel.names[0]!r} are zero or negative "
        f"(the least, {values[j, t]:.4g}, in subject {panel.ids[j]!r}, row {t})"
    )
    if low.sum() > seen.sum() / 2 or values[j, t] < -MAX_NEGATIVE_SHARE * values[seen].max():
        raise ValueError(
            f"{found}, but the tumour drift is for volumes: give the volumes themselves, neither centred nor "
            f"in logarithms (those too small to measure as {drift.floor:g} cm³), or choose another drift."
        )
    warnings.warn(
        f"{found}; the tumour drift is for volumes, so they are taken as its floor, {drift.floor:g} cm³.",
        ReTraceWarning,
        stacklevel=4,
    )
    xp = array_api_compat.array_namespace(panel.values)
    floor = xp.full_like(panel.values, drift.floor)
    return replace(panel, values=xp.where(panel.values <= 0, floor, panel.values))


def check_diffusion(panel: Panel, spread: Array, variances: Array) -> None:
    """What a step leaves to chance, H Δt, is more than rounding beside the variables' own variances."""
    share = np.diag(spread) / np.maximum(variances, 1e-300)
    if not np.isfinite(spread).all() or share.min() < MIN_NOISE_SHARE:
        raise ValueError(no_diffusion(panel, int(np.argmin(np.nan_to_num(share)))))
    if not is_positive(spread):
        raise ValueError(no_diffusion(panel))


@contextmanager
def in_words(panel: Panel) -> Iterator[None]:
    """What numpy and scipy say of data without noise, in a sentence of ours; other sentences pass."""
    try:
        yield
    except ValueError as error:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = "" if at is None else str(at.tb_frame.f_globals.get("__name__", ""))
        broke_down = isinstance(error, np.linalg.LinAlgError)  # whoever raised it
        if not broke_down and not where.startswith(("numpy", "scipy")):
            raise
        raise ValueError(no_diffusion(panel)) from None


def no_diffusion(panel: Panel, k: int | None = None) -> str:
    """Why there is no H: variable k moves without noise, or (None) some are combinations of others up to rounding, or too few values are observed."""
    x = to_numpy(panel.values)[Data(panel.values, counts=panel.lengths).lengths.mask]
    missing = np.isnan(x)
    if k is not None:
        few = f" Or too few values are observed ({missing.mean():.0%} are missing): then give more trajectories, or what is known of their order."
        return (
            f"variable {panel.names[k]!r} has no measurable noise: it follows from the state before it up to rounding, so "
            "there is no diffusion to estimate, nor a direction of time that noise would show. Drop it, or give the data "
            f"as they were measured.{few if missing.any() else ''}"
        )
    named, share = least_combination(x[~missing.any(axis=1)], panel.names)
    if len(panel.names) > 1 and share < MIN_DIFFUSION_RATIO:
        return (
            f"variables {named} are linearly dependent but for {share:.0e} of their spread, so their diffusion is singular: "
            "drop one of them."
        )
    if missing.any():
        return (
            f"the likelihood has no maximum: with {missing.mean():.0%} of the values missing, a combination of variables ({named}) follows from the state "
            "before it up to rounding along the order found. Give more trajectories, or what is known of their order; or drop variables of "
            "which few values are observed."
        )
    return (
        f"what happens next follows from the state up to rounding ({named}): nothing is left to "
        "chance, so there is no diffusion to estimate. Drop such variables, or give the data as they were measured."
    )


def check_inputs(panel: Panel, drift: Driven) -> None:
    """No input is a combination of the others and of the offset: its effect could not be distinguished from theirs."""
    u = to_numpy(panel.covariates).reshape(-1, len(panel.covariate_names))
    u = u[np.isfinite(u).all(axis=1)]
    scale = np.maximum(np.abs(u).max(axis=0), 1e-300)
    v = np.c_[np.ones(len(u)), u / scale] if drift.offset else u / scale
    kept: list[int] = []
    for k in range(v.shape[1]):
        if np.linalg.matrix_rank(v[:, [*kept, k]], tol=1e-9 * np.sqrt(len(v))) == len(kept):
            name = panel.covariate_names[k - drift.offset]
            raise ValueError(
                f"the effect of input {name!r} is not identified: it is constant, or a combination of other inputs. "
                "Leave it out."
            )
        kept.append(k)


def check_features(panel: Panel, drift: Drift) -> tuple[Drift, list[str]]:
    """The drift without features that are combinations of others in these data, and a note for each."""
    if isinstance(drift, Linear | Affine):  # dependent variables are refused above
        return drift, []
    if isinstance(drift, Driven):
        check_inputs(panel, drift)
        return drift, []

    def gram(x: Any, u: Any | None) -> Array:
        phi = to_numpy(drift.features(x, u))
        if not np.isfinite(phi).all():
            raise ValueError(f"features of {drift} are not finite for some of the states of X.")
        rows = phi.reshape(-1, phi.shape[-1])
        return rows.T @ rows

    found = independent_features(
        drift, reduce(np.add, Data(panel.values, panel.covariates).map(gram))
    )
    if not isinstance(found, Independent):
        return drift, []
    names = drift.feature_names(panel.names, panel.covariate_names)
    return found, [
        f"The effect of {name} is not identified: in these data it is {what}."
        for name, what in found.absorbed(names).items()
    ]
