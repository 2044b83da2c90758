"""Every check of what users pass in, once, at the entry, in plain language: what, where, what to do."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.formats import door
from retrace_sde.io.lazy.array import LazyArray, as_lazy
from retrace_sde.panel.blocks import Data, to_numpy, unmasked
from retrace_sde.panel.lazy.survey import glanced, surveyed
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.uninformative import by_least, without_dynamics

DEPENDENT = 1e-10
"""Smallest singular value, relative to the largest, of variables that count as independent."""


TOLD = 3
"""Variables whose least values tell trajectories apart."""

LARGEST = 1e140
"""Largest value whose squares can still be summed; its inverse is the least range whose square is not zero."""

APART = 1e100
"""How many times wider one variable's range may be than another's: covariances of coefficients are its square."""

DIGITS = 2e-13
"""Range of a variable, relative to its level, of which a double still holds three digits."""

MIDDLE, GLANCED = 20_000, 1000
"""Observations that tell where the middle half of a variable's values lies, and those that tell it roughly."""

SOON = 1e-3
"""Share of the width that is allowed up to which a rough look is enough."""

ALONE = 1e9
"""How many times wider than its middle half a variable's range may be: the squares of the rest would be lost beside it."""


class ReTraceWarning(UserWarning):
    """The data can be used, but something about them cannot be known, or was done that one should know of.

    Examples
    --------
    >>> import warnings, retrace_sde as rt
    >>> warnings.simplefilter("ignore", rt.ReTraceWarning)  # or "error", in a pipeline
    """


def check_panel(
    X: Any,
    covariates: Any | None = None,
    *,
    n_jobs: int | None = None,
    ragged: bool = False,
    missing: bool = False,
    missing_covariates: bool = False,
    idle: bool = True,
    refusal: str | None = None,
    look: bool = False,
) -> Panel:
    """A `Panel` that the engine can work on, from an array (n, T, d) or a Panel. X is never modified.

    `ragged`: trajectories may differ in length, and slices need not differ (each has its own order).
    `missing`: values may be missing (NaN); `missing_covariates`: covariates may. `idle`: variables without dynamics of their
    own may stay; else they are left out, and the panel says which. `refusal`: why values may not be missing, and
    what to do, where there is more to say than to drop them. `look`: a large array may stay where it is, as `InMemoryView`.
    """
    panel = (
        X if isinstance(X, Panel) else Panel.from_array(_as_array(X, "X"), covariates=covariates)
    )
    values = _check_kind(panel.values, "X")
    n, T, _ = _checked_shape(values)
    _check_names(panel)
    u = panel.covariates
    if u is not None:
        u = _check_kind(_as_array(u, "covariates"), "covariates")
        if len(u.shape) != 3 or tuple(u.shape[:2]) != (n, T):
            raise ValueError(
                f"covariates must have shape ({n}, {T}, k), one row per observation of X; "
                f"got {tuple(u.shape)}."
            )
        _check_inputs(Data(u, n_jobs=n_jobs), panel, missing=missing_covariates)
    lengths = _check_lengths(panel, ragged)

    def looked(values: Any) -> tuple[Data, Indices | None, Array, Array]:
        data = Data(values, u, n_jobs, lengths)
        seen = glanced(values, n_jobs) if look and u is None and not ragged else None
        if seen is not None:
            facts = seen.facts
            return replace(data, values=seen), facts.rows, facts.low, facts.high
        if not data.lazy:
            lows, low, high = _check_finite(data, panel, "X", missing=missing, refusal=refusal)
            return data, by_least(lows), low, high
        _check_beside(values, u)
        data = surveyed(data, own=ragged)
        return data, data.values.facts.rows, *_check_facts(data, panel)

    data, by, low, high = looked(values)
    if not idle:
        idlers = without_dynamics(data, panel.names, shared=not ragged, by=by)
        if len(idlers) == len(panel.names):
            raise ValueError(
                f"no variable has dynamics of its own. {' '.join(each.found for each in idlers)} Name what counts time "
                "with --time (in Python time=), and give at least one variable that changes along it."
            )
        panel = replace(panel, values=values).without(idlers)
        if idlers:  # places and units are those of what is left
            data, by, low, high = looked(panel.values)
    values = data.values
    _check_values(replace(data, counts=None), panel, low, high, missing=missing, ragged=ragged)
    if n == 1:
        _warn_single()
    return replace(panel, values=values, covariates=u, lengths=lengths)


def _checked_shape(values: Any) -> tuple[int, int, int]:
    """Trajectories, time slices and variables, enough of each."""
    if len(values.shape) != 3:
        hint = "one trajectory is X[None]; " if len(values.shape) == 2 else ""
        raise ValueError(
            f"X must have three axes (trajectory, time, variable); got shape {tuple(values.shape)}. "
            f"Reshape it first ({hint}one variable is X[..., None])."
        )
    n, T, d = values.shape
    if n < 1 or d < 1 or T < 3:
        raise ValueError(
            f"X has {n} trajectories, {T} time slices and {d} variables; at least 1, 3 and 1 are needed: "
            "two slices have only two orders, and no path between them to judge."
        )
    return n, T, d


def _warn_single() -> None:
    warnings.warn(
        "X holds one trajectory: the law of the first observation cannot be learned from it, so the "
        "direction of time cannot be tested, and the order rests on distances between single states.",
        ReTraceWarning,
        stacklevel=4,
    )


def _check_values(
    data: Data, panel: Panel, low: Array, high: Array, *, missing: bool, ragged: bool
) -> None:
    """There is something to learn in every variable, trajectory and slice, in numbers that can be computed with."""
    if missing and not data.viewed:
        _check_seen(to_numpy(data.values), panel, ragged=ragged)
    _check_ranges(data, panel.names, low, high)
    _check_variables(data, panel.names)
    if not ragged:
        _check_slices(data, panel)


def _check_names(panel: Panel) -> None:
    """As many names as there are things to name."""
    n, _, d = panel.values.shape
    u = panel.covariates
    k = u.shape[-1] if u is not None and np.ndim(u) == 3 else len(panel.covariate_names)
    for what, names, count, of in (
        ("names", panel.names, d, "variable"),
        ("ids", panel.ids, n, "trajectory"),
        ("covariate_names", panel.covariate_names, k, "covariate"),
    ):
        if len(names) != count:
            raise ValueError(f"{what} must be {count}, one for each {of}; got {len(names)}.")
    if len(set(panel.names)) < d:
        again = Counter(panel.names).most_common(1)[0][0]
        raise ValueError(f"two variables are named {again!r}: rename one.")


def has_missing(data: Data) -> bool:
    """Some value is NaN; none of data that are looked at where they are, of which that is not let in."""
    if data.viewed:
        return False

    def any_missing(x: Any, u: Any | None) -> bool:
        xp = array_api_compat.array_namespace(x)
        return bool(xp.any(xp.isnan(x)))

    return any(data.map(any_missing))


def _check_lengths(panel: Panel, ragged: bool) -> Indices | None:
    if panel.lengths is None:
        return None
    n, T, _ = panel.values.shape
    lengths = np.asarray(panel.lengths, dtype=np.intp)
    if lengths.shape != (n,) or lengths.min() < 1 or lengths.max() > T:
        raise ValueError(
            f"lengths must hold one number from 1 to {T} for each of the {n} trajectories."
        )
    if np.all(lengths == T):
        return None
    if not ragged:
        raise ValueError(
            "trajectories of different length have no slices in common: use permutation='independent'."
        )
    return lengths


def _as_array(X: Any, name: str) -> Any:
    X = unmasked(X)
    lazy = as_lazy(X)
    if lazy is not None or array_api_compat.is_array_api_obj(X):
        return X if lazy is None else lazy
    if isinstance(X, (str, Path)) or hasattr(X, "columns") or hasattr(X, "var_names"):
        raise ValueError(
            f"{name} must be an array (trajectory, time, variable); got {type(X).__name__}. {door(X)}"
        )
    try:
        return np.asarray(X)
    except ValueError:
        raise ValueError(
            f"{name} is not a rectangular array (trajectory, time, variable). {door(X)}"
        ) from None


def _check_kind(values: Any, name: str) -> Any:
    """Real numbers, integers turned to float64; float32 stays (sums are taken in float64 anyway)."""
    values = unmasked(values)
    lazy = as_lazy(values)
    if lazy is not None:
        if np.dtype(lazy.source.dtype).kind not in "iuf":
            raise ValueError(
                f"{name} must hold real numbers; got dtype {lazy.source.dtype}. Encode categories and dates first."
            )
        return lazy
    xp = array_api_compat.array_namespace(values)
    if array_api_compat.is_numpy_array(values) and values.dtype == object:
        values = _numbers(values, name)
    if xp.isdtype(values.dtype, "integral"):
        return xp.astype(values, xp.float64)
    if not xp.isdtype(values.dtype, "real floating"):
        raise ValueError(
            f"{name} must hold real numbers; got dtype {values.dtype}. Encode categories and dates first."
        )
    return values


def _numbers(values: Any, name: str) -> Array:
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must hold real numbers; got Python objects that are not numbers."
        ) from None


def _check_inputs(data: Data, panel: Panel, *, missing: bool) -> None:
    """Inputs are finite, or missing here and there where the user has said what then stands for them."""
    try:
        _check_finite(data, panel, "covariates", missing=missing)
    except ValueError as error:
        if not missing and np.isnan(to_numpy(data.values)).any():
            j, t, k = np.argwhere(np.isnan(to_numpy(data.values)))[0]
            raise ValueError(
                f"covariates are missing, the first in {panel.trajectory(j)}, {panel.observation(j, t)}, "
                f"{panel.covariate_names[k]!r}: choose "
                "missing_covariates='carry' (the last value before holds on) or 'interpolate', or leave that covariate out."
            ) from None
        raise error


def _check_finite(
    data: Data,
    panel: Panel,
    what: str,
    *,
    missing: bool = False,
    refusal: str | None = None,
) -> tuple[Array, Array, Array]:
    """The least and the largest value of each variable; NaN and infinity would show in them.

    Before them the least values of each trajectory, of a few variables: they tell trajectories apart.
    """

    def extremes(x: Any, u: Any | None) -> tuple[Array, Array, Array]:
        xp = array_api_compat.array_namespace(x)
        lows = xp.min(x, axis=1)
        told = min(TOLD, lows.shape[1])
        every = lows[:, :told], xp.min(lows, axis=0), xp.max(x, axis=(0, 1))
        own, low, high = (to_numpy(each) for each in every)
        return own, low, high

    each, least, largest = zip(*data.map(extremes), strict=True)
    lows, low, high = np.concatenate(each), np.min(least, axis=0), np.max(largest, axis=0)
    if max(np.abs(low).max(), np.abs(high).max()) < LARGEST:
        return lows, low, high
    values = to_numpy(data.values)
    bad = np.argwhere(np.isinf(values) if missing else ~np.isfinite(values))
    if missing and len(bad) == 0 and not (np.abs(values) >= LARGEST).any():
        seen = ~np.isnan(values)
        lows = np.where(seen, values, np.inf).min(axis=1)
        high = np.where(seen, values, -np.inf).max(axis=(0, 1))
        return lows[:, :TOLD], lows.min(axis=0), high
    if len(bad) == 0:
        raise ValueError(
            f"{what} holds numbers above {LARGEST:g}, too large to square and sum; rescale its variables."
        )
    j, t, k = bad[0]
    names = panel.names if what == "X" else panel.covariate_names
    remedy = "Drop those trajectories or slices; do not interpolate along an unknown order."
    if refusal is not None and np.isnan(values).any():
        remedy = refusal
    raise ValueError(
        f"{what} has {len(bad)} {'infinite' if missing else 'missing or infinite'} values, the first in "
        f"{panel.trajectory(j)}, {panel.observation(j, t)}, variable {names[k]!r}. {remedy}"
    )


def _check_beside(values: Any, u: Any) -> None:
    """Inputs of a lazy panel can be cut where its chunks are: in memory, or stored in the same way."""
    if isinstance(u, np.ndarray) or u is None:
        return
    dask = [
        isinstance(each, LazyArray) and array_api_compat.is_dask_array(each.source)
        for each in (values, u)
    ]
    if not isinstance(u, LazyArray) or dask[0] != dask[1]:
        raise ValueError(
            "covariates of an X that is stored outside memory must be a numpy array, or stored as X is: both dask arrays, or "
            "both zarr arrays or memory maps."
        )


def _check_facts(data: Data, panel: Panel) -> tuple[Array, Array]:
    """The least and the largest value of each variable of a lazy panel, all of whose values are finite."""
    facts = data.values.facts
    if facts.first is not None:
        j, t, k = facts.first
        raise ValueError(
            f"X has {facts.bad} missing or infinite values, the first in {panel.trajectory(j)}, {panel.observation(j, t)}, "
            f"variable {panel.names[k]!r}. Values that are missing are fitted in memory only: pass a part of the trajectories, "
            "e.g. X[:5000] read by numpy, or drop the trajectories that have such values."
        )
    low, high = facts.low, facts.high
    if max(np.abs(low).max(), np.abs(high).max()) >= LARGEST:
        raise ValueError(
            f"X holds numbers above {LARGEST:g}, too large to square and sum; rescale its variables."
        )
    return low, high


def _check_ranges(data: Data, names: tuple[str, ...], low: Array, high: Array) -> None:
    """Every variable varies, by amounts that doubles can hold beside its level, its other values and other variables."""
    level, width = np.maximum(np.abs(low), np.abs(high)), high - low
    constant = [names[k] for k in np.flatnonzero(width == 0)]
    if constant:
        one = len(constant) == 1
        raise ValueError(
            f"variable{'' if one else 's'} {', '.join(map(repr, constant))} "
            + ("is constant, so it has" if one else "are constant, so they have")
            + f" no dynamics: drop {'it' if one else 'them'}."
        )
    k, least, most = int((width / level).argmin()), int(width.argmin()), int(width.argmax())
    if width[k] < DIGITS * level[k]:
        raise ValueError(
            f"variable {names[k]!r} varies by {width[k]:.1g} about {high[k]:.4g}, in digits that are rounding: subtract "
            "its level where it was measured, or drop it."
        )
    if width[least] < 1 / LARGEST or width[most] / width[least] > APART:
        raise ValueError(
            f"variable {names[least]!r} varies by {width[least]:.1g} and {names[most]!r} by {width[most]:.1g}: squares of "
            "such numbers are beyond what a computer holds; rescale them."
        )
    quarter, rest = _middle(data, GLANCED)
    if (width < SOON * ALONE * (rest - quarter)).all():  # many more would not say otherwise
        return
    quarter, rest = _middle(data, MIDDLE)
    far = np.flatnonzero((rest > quarter) & (width > ALONE * (rest - quarter)))
    if len(far):
        k = int(far[0])
        where, value = _farthest(data, k, float(quarter[k]))
        raise ValueError(
            f"variable {names[k]!r} is {value:.3g}{where}, while half of "
            f"its values lie within {rest[k] - quarter[k]:.2g} of each other: beside such a value the others are lost. If it "
            "is an error, make it missing (NaN); else take logarithms."
        )


def _middle(data: Data, observations: int) -> tuple[Array, Array]:
    """The quartiles of each variable, by some of its values."""
    n, T, _ = data.shape
    rows = to_numpy(data.some(min(n, -(-observations // T))).values)
    quarter, rest = np.nanquantile(rows, (0.25, 0.75), axis=(0, 1))
    return quarter, rest


def _farthest(data: Data, k: int, centre: float) -> tuple[str, float]:
    """Where the value of a variable stands that is farthest from its centre, in words, and what it is."""
    if data.lazy:
        ends = data.values.facts.low[k], data.values.facts.high[k]
        return "", float(max(ends, key=lambda each: abs(each - centre)))
    values = to_numpy(data.values)[:, :, k]
    j, t = np.unravel_index(np.nanargmax(np.abs(values - centre)), values.shape)
    return f" in trajectory {j}, observation {t}", float(values[j, t])


def _check_variables(data: Data, names: tuple[str, ...]) -> None:
    """No variable is a linear combination of others (H would be singular)."""
    n, T, d = data.shape
    few = min(n, -(-(1000 + 20 * d) // T))
    rows = to_numpy(data.some(few).values).reshape(-1, d)
    rows = rows[~np.isnan(rows).any(axis=1)]
    if len(rows) <= d:
        return
    rows = rows - rows.mean(axis=0)
    sizes = np.linalg.norm(rows, axis=0)
    if len(rows) <= d or not np.all(sizes > 0):
        return
    _, singular, directions = np.linalg.svd(rows / sizes, full_matrices=False)
    if singular[-1] < DEPENDENT * singular[0]:
        loadings = np.abs(directions[-1])
        involved = [names[k] for k in np.argsort(-loadings) if loadings[k] > 0.1 * loadings.max()]
        raise ValueError(
            f"variables {', '.join(map(repr, involved[:6]))} are linearly dependent, so their diffusion is "
            "singular: drop one of them."
        )


def _check_seen(values: Array, panel: Panel, *, ragged: bool) -> None:
    """Every variable, trajectory and (shared) slice has values that say something about it."""
    seen = ~np.isnan(values)
    if seen.all():
        return
    called = (
        panel.trajectory,
        lambda t: panel.observation(0, t),
        lambda k: f"variable {panel.names[k]!r}",
    )
    for axis, least in ((0, 1), (1, 2), (2, 2)):
        if axis == 1 and ragged:
            continue
        counts = seen.sum(axis=tuple(k for k in range(3) if k != axis))
        if counts.min() < least:
            k = int(counts.argmin())
            raise ValueError(
                f"{called[axis](k)} has {counts[k]} value{'' if counts[k] == 1 else 's'} that are not missing; "
                f"at least {least} {'is' if least == 1 else 'are'} needed: drop it."
            )


def _check_slices(data: Data, panel: Panel) -> None:
    """No two slices are identical: nothing could tell which came first."""
    first = to_numpy(data.take(np.zeros(1, dtype=np.intp)).values[0, :, :])
    _, group, counts = np.unique(first, axis=0, return_inverse=True, return_counts=True)
    for label in np.flatnonzero(counts > 1):
        members = np.flatnonzero(np.ravel(group) == label)
        whole = data.slices(members).reshape(len(members), -1)
        distinct, inverse = np.unique(whole, axis=0, return_inverse=True)
        if len(distinct) < len(members):
            same = members[np.ravel(inverse) == np.bincount(np.ravel(inverse)).argmax()]
            named = [str(t) if panel.slices is None else repr(panel.slices[t]) for t in same[:6]]
            raise ValueError(
                f"slices {', '.join(named)} are identical in every trajectory, so nothing can "
                "order them: keep one of them."
            )
