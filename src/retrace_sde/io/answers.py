"""The answer of a fit as JSON, and assigned to the observations and rows of the table that it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.array import as_lazy

MISSING_SHOWN = 8
"""Variables whose missing share a note lists."""


def present(panel: Any) -> NDArray[np.bool_]:
    """Which of the (n, T) observations of a panel exist: not padding, and with a row in its table."""
    n, T = panel.values.shape[:2]
    lengths = np.full(n, T) if panel.lengths is None else panel.lengths
    inside: NDArray[np.bool_] = np.arange(T)[None] < lengths[:, None]
    return inside if panel.rows is None else inside & (panel.rows >= 0)


def table_notes(panel: Any) -> list[str]:
    """What was left out of a table, and how much of it is missing, as sentences."""
    notes = [f"{note[:1].upper()}{note[1:]}." for note in panel.notes]
    if (
        as_lazy(panel.values) is not None
    ):  # where missing values are refused; it is never read whole
        return notes
    inside = present(panel)
    share = np.isnan(np.asarray(panel.values)[inside]).mean(axis=0)
    if share.max() > 0:
        missing = int(np.isnan(np.asarray(panel.values)[inside]).sum())
        worst = [f"{panel.names[k]} {share[k]:.2g}" for k in np.argsort(-share)[:MISSING_SHOWN]]
        notes.append(
            f"Of the observations used, {_how_many(missing, share.mean())} missing (the share of each variable: "
            f"{', '.join(worst)}{', …' * (len(share) > MISSING_SHOWN)}). "
            f"{'It is' if missing == 1 else 'They are'} integrated out of the likelihood, not filled in."
        )
    return notes


def _how_many(missing: int, share: float) -> str:
    """A share where it is one that can be read, a number where it would round to nothing."""
    if share >= 0.005:
        return f"{share:.0%} of the values are"
    return "one value is" if missing == 1 else f"{missing} values (fewer than 1 %) are"


def positions(order: Indices, n: int) -> Indices:
    """The position of each observation, (n, T): the inverse of one order, or of each trajectory's own."""
    inverse = np.argsort(order, axis=-1)
    return np.broadcast_to(inverse, (n, order.shape[-1]))


def times(known: Array, position: Indices) -> Array:
    """The time of each observation from the times along the order, (T,) or (n, T)."""
    return np.take_along_axis(np.broadcast_to(known, position.shape), position, axis=1)


def anchored(grid: Array, panel: Any) -> Array:
    """Times of the observations (n, T) moved so that they pass through those that the table knows.

    Exact ones are met, and the rest lies between and beyond them as on the grid; times with an error only
    set the origin.
    """
    if panel.times is None:
        return grid
    known = np.broadcast_to(panel.times, grid.shape)
    found = grid.copy()
    for row, stamps in zip(found, known, strict=True):
        there = ~np.isnan(stamps)
        if not there.any():
            continue
        if panel.time_error is not None:
            row += (stamps[there] - row[there]).mean()
            continue
        x, first = np.unique(row[there], return_index=True)
        y = stamps[there][first]
        inside = np.interp(row, x, y)
        row[:] = inside + np.minimum(row - x[0], 0.0) + np.maximum(row - x[-1], 0.0)
    return found


def forecast_columns(
    ahead: Any, ids: Sequence[Any], names: Sequence[str], subject: str
) -> dict[str, Any]:
    """A forecast as the columns of a table, one row for each subject, step and variable."""
    n, steps, d = ahead.mean.shape
    when = np.broadcast_to(ahead.times, (n, steps))
    return {
        subject: [who for who in ids for _ in range(steps * d)],
        "step": np.tile(np.repeat(np.arange(1, steps + 1), d), n),
        "time": np.repeat(when.ravel(), d),
        "variable": list(names) * (n * steps),
        "mean": ahead.mean.ravel(),
        "low": ahead.low.ravel(),
        "high": ahead.high.ravel(),
    }


def certainties(probabilities: NDArray[np.float32], position: Indices) -> Array:
    """The posterior probability of each observation's position, (n, T)."""
    P = np.broadcast_to(probabilities, (len(position), *probabilities.shape[-2:]))
    return np.take_along_axis(P, position[:, :, None], axis=2)[:, :, 0].astype(float)


def to_rows(observations: NDArray[Any], panel: Any, count: int, missing: Any) -> NDArray[Any]:
    """What is known of each observation (n, T), as a column of the table the panel came from."""
    inside = present(panel)
    column = np.full(count, missing, dtype=observations.dtype)
    column[panel.rows[inside]] = observations[inside]
    return column


def plain(value: Any, *, digits: int | None = None) -> Any:
    """Arrays, numbers and records of them as JSON knows them, floats to some significant digits; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(each, digits=digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, digits=digits) for each in value]
    if isinstance(value, np.ndarray):
        whole = digits is None and (value.dtype.kind != "f" or bool(np.isfinite(value).all()))
        return value.tolist() if whole else plain(value.tolist(), digits=digits)
    if isinstance(value, np.generic):
        return plain(value.item(), digits=digits)
    if not isinstance(value, float):
        return value
    if not np.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


PARAMETERS = ("drift", "offset", "inputs", "diffusion")
"""What a result, its reversed twin and their standard errors have."""


def _fields(found: Any, *names: str) -> dict[str, Any] | None:
    """Some attributes by name; None of what is not there."""
    return None if found is None else {name: getattr(found, name) for name in names}


def _subjects(found: Any, panel: Any) -> dict[str, Any] | None:
    """How subjects differ, and each one's intercept with its error where it has one."""
    shown = _fields(found, "kind", "verdict", "nats")
    if shown is None:
        return None
    names = _names(panel)

    def by_subject(values: Any) -> dict[str, Any]:
        return dict(zip(names, values, strict=True))

    if found.rates is not None:
        rates, errors = by_subject(found.rates), by_subject(found.rate_errors)
        return {**shown, "rates": rates, "errors": errors, "spread": found.rate_spread}
    if found.intercepts is None:
        return shown
    return {
        **shown,
        "intercepts": by_subject(found.intercepts),
        "errors": by_subject(found.errors),
        **{name: getattr(found, name) for name in ("mean", "slope", "between")},
    }


def parameters(result: Any, panel: Any) -> dict[str, Any]:
    """The result as plain numbers and sentences, the keys of `parameters.json`; units are the data's."""
    order, test = result.order, result.direction
    if result.shared_order and panel.slices:
        order = [panel.slices[k] for k in order]
    twin = result.alternative
    found: dict[str, Any] = {
        "variables": result.names,
        "left_out": [_fields(each, "name", "why", "sentence") for each in result.left_out],
        **{name: getattr(result, name) for name in PARAMETERS},
        "standard_errors": _fields(result.standard_errors, *PARAMETERS, "kind"),
        "subject_effects": _subjects(result.subjects, panel),
        "direction": {
            "identified": bool(test.identified),
            "p_value": test.p_value,
            "p_error": test.p_error,
            "models": [vars(each) for each in test.models],
            "verdict": test.verdict,
            "log_likelihood_ratio": test.log_likelihood_ratio,
            "rests_on": dict(test.rests_on),
            "assumptions": list(test.assumptions),
        },
        "dependence": _fields(
            result.dependence,
            *("kind", "p_value", "correlation_p_value", "common_share", "effective_n", "removed"),
            *("common_covariance", "verdict"),
        ),
        "permutation": "shared" if result.shared_order else "independent",
        "order": order if result.shared_order else None,
        "times": result.times,
        "gap_intervals": result.gap_intervals,
        "gap_clocks": None if result.gap_clocks is None else result.gap_clocks.clocks,
        "residuals": _verdicts(result.residuals, _names(panel)),
        "cycle": bool(result.cycle),
        "dt": result.dt,
        "observation_noise": result.observation_noise,
        "initial": _fields(result.initial, "mean", "covariance"),
        "alternative": None
        if twin is None
        else {
            **{name: getattr(twin, name) for name in (*PARAMETERS, "log_likelihood")},
            "standard_errors": _fields(twin.standard_errors, *PARAMETERS),
        },
        "drift_features": result.feature_names,
        "subjects": result.n_trajectories,
        "groups": None if result.groups is None else result.n_groups,
        "observations": int(present(panel).sum()),
        "log_likelihood": result.log_likelihood,
        "converged": bool(result.converged),
        "can": result.identifiability.can,
        "cannot": result.identifiability.cannot,
        "notes": [*table_notes(panel), *result.notes],
        "settings": {
            key: value
            for key, value in result.settings.items()
            if isinstance(value, (str, int, float, bool, type(None)))
        },
    }
    return {key: plain(value) for key, value in found.items()}


def _names(panel: Any) -> Sequence[str]:
    """What subjects are called; those that are numbered are not written out, there may be millions."""
    ids = panel.ids
    return [str(each) for each in ids] if isinstance(ids, (tuple, list)) else ids


def _verdicts(check: Any, names: Sequence[str]) -> list[dict[str, Any]] | None:
    """The residual checks, one by one; None where they were not run."""
    if check is None or not check.tested:
        return None
    shown = ("aspect", "failed", "cause", "statistic", "p_value")
    return [
        {**{name: getattr(each, name) for name in shown}, "sentence": each.sentence(names)}
        for each in check.verdicts
    ]


def annotate(adata: Any, panel: Any, result: Any) -> Any:
    """A copy of an AnnData whose rows are the panel's: position and time in `obs`, parameters in `uns`."""
    copy = adata.copy()
    position = positions(result.order, len(panel.ids))
    count = copy.n_obs
    copy.obs["retrace_position"] = to_rows(position.astype(float), panel, count, np.nan)
    copy.obs["retrace_time"] = to_rows(times(result.times, position), panel, count, np.nan)
    copy.uns["retrace"] = unstructured(panel, result)
    return copy


def unstructured(panel: Any, result: Any) -> dict[str, Any]:
    """The answer for `uns`: AnnData stores arrays and text, so what is nested travels as JSON."""
    return {
        "drift": result.drift,
        "offset": result.offset,
        "diffusion": result.diffusion,
        "variables": np.array(result.names, dtype=str),
        "direction": result.direction.verdict,
        "parameters": json.dumps(parameters(result, panel), ensure_ascii=False),
    }
