"""Checks of the data that users pass in, once, at the entry: each refusal says what, where, and what to do."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import MAX_MAGNITUDE
from retrace_sde.io.formats import door
from retrace_sde.io.lazy.array import LazyArray, as_lazy
from retrace_sde.panel.blocks import Data, evenly, to_numpy, unmasked
from retrace_sde.panel.groups import group_codes
from retrace_sde.panel.inputs import MissingInputsError, constants_filled
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.survey import glanced, surveyed
from retrace_sde.panel.uninformative import by_least, without_dynamics

MIN_SINGULAR_RATIO = 1e-10
"""Smallest singular value, relative to the largest, of variables that count as independent."""


SORT_VARIABLES = 3
"""Variables by whose least values trajectories are sorted."""

MAX_RANGE_RATIO = 1e100
"""How many times wider one variable's range may be than another's: covariances of coefficients are its square."""

MIN_RANGE_TO_LEVEL = 2e-13
"""Range of a variable, relative to its level, of which a double still holds three digits."""

QUARTILE_SAMPLE = 20_000
"""Observations from which the quartiles of a variable are estimated."""

FIRST_QUARTILE_SAMPLE = 500
"""Observations that mostly suffice to see that the quartiles are far apart."""

MAX_RANGE_TO_QUARTILES = 1e9
"""How many times wider than its middle half a variable's range may be: the squares of the rest would be lost beside it."""


class ReTraceWarning(UserWarning):
    """The data can be used, but something about them cannot be known, or was done that one should know of.

    Examples
    --------
    >>> import warnings, retrace_sde as rt
    >>> warnings.simplefilter("ignore", rt.ReTraceWarning)  # or "error", in a pipeline
    """


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """The package's cautions as sentences, each once; complete at the end."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    texts = [str(each.message) for each in caught if issubclass(each.category, ReTraceWarning)]
    found += dict.fromkeys(texts)


def check_panel(
    X: Any,
    covariates: Any | None = None,
    groups: Any | None = None,
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
        u = _check_inputs(u, panel, (n, T), n_jobs, missing=missing_covariates)
    lengths = _check_lengths(panel, ragged)
    groups = _check_groups(panel, groups)
    view = look and u is None and not ragged

    def examined(values: Any) -> Examined:
        data = Data(values, u, n_jobs, lengths)
        seen = glanced(values, n_jobs) if view else None
        if seen is not None:
            return _check_facts(replace(data, values=seen), panel)
        if data.lazy:
            _check_beside(values, u)
            return _check_facts(surveyed(data, own=ragged), panel)
        return _check_finite(data, panel, "X", missing=missing, refusal=refusal)

    found = examined(values)
    if not idle:
        idlers = without_dynamics(found.data, panel.names, shared=not ragged, by=found.by)
        if len(idlers) == len(panel.names):
            raise ValueError(
                f"no variable has dynamics of its own. {' '.join(each.found for each in idlers)} Name what counts time "
                "as the times (time=), and give at least one variable that changes along it."
            )
        panel = replace(panel, values=values).without(idlers)
        if idlers:  # order and units are those of what is left
            found = examined(panel.values)
    _check_values(found, panel, missing=missing, ragged=ragged)
    return replace(panel, values=found.data.values, covariates=u, lengths=lengths, groups=groups)


def _check_inputs(
    given: Any, panel: Panel, shape: tuple[int, int], n_jobs: int | None, *, missing: bool
) -> Any:
    """Covariates of numbers, one row per observation; those that are constant within every trajectory are filled in."""
    u = _as_array(given, "covariates")
    if getattr(getattr(u, "dtype", None), "kind", "") == "b":  # a treatment that was given or not
        u = np.asarray(u, dtype=np.float64)
    u = _check_kind(u, "covariates")
    if len(u.shape) != 3 or tuple(u.shape[:2]) != shape:
        raise ValueError(
            f"covariates must have shape ({shape[0]}, {shape[1]}, k), one row per observation of X; "
            f"got {tuple(u.shape)}."
        )
    if not isinstance(u, LazyArray) and np.isnan(to_numpy(u)).any():
        u = constants_filled(to_numpy(u))
    _check_finite(Data(u, n_jobs=n_jobs), panel, "covariates", missing=missing)
    return u


class Examined(NamedTuple):
    """Data whose values are finite, trajectories by content (n,) if known, and each variable's least and largest value (d,)."""

    data: Data
    by: Indices | None
    low: Array
    high: Array


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


def _check_values(found: Examined, panel: Panel, *, missing: bool, ragged: bool) -> None:
    """There is something to learn in every variable, trajectory and slice, in numbers that can be computed with."""
    data = replace(found.data, counts=None)
    if missing and not data.viewed:
        _check_seen(to_numpy(data.values), panel, ragged=ragged)
    _check_ranges(data, panel.names, found.low, found.high)
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
    """Some value is NaN; never of lazy arrays, in which missing values are refused."""
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


def _check_groups(panel: Panel, given: Any | None) -> Indices | None:
    """The groups of the panel, or those that are given beside it, as numbers."""
    if panel.groups is not None and given is not None:
        raise ValueError("groups are given twice, by X and by groups=: leave one of them out.")
    given = panel.groups if given is None else given
    return None if given is None else group_codes(given, panel.values.shape[0])


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
    if array_api_compat.is_numpy_array(values) and values.dtype == object:
        try:
            values = np.asarray(values, dtype=float)
        except (TypeError, ValueError):
            raise ValueError(
                f"{name} must hold real numbers; got Python objects that are not numbers."
            ) from None
    dtype = values.dtype if lazy is None else np.dtype(lazy.source.dtype)
    # Of data outside memory numpy's, as array_api_compat has it: numpy below 2 has no isdtype.
    xp: Any = array_api_compat.array_namespace(values if lazy is None else np.empty(0))
    if not xp.isdtype(dtype, ("integral", "real floating")):
        raise ValueError(
            f"{name} must hold real numbers; got dtype {dtype}. Encode categories and dates first."
        )
    if lazy is not None:
        return lazy
    return xp.astype(values, xp.float64) if xp.isdtype(dtype, "integral") else values


VALUES_MISSING = "Drop those trajectories or slices; do not interpolate along an unknown order."
MISSING_OUTSIDE_MEMORY = (
    "Values that are missing are fitted in memory only: pass a part of the trajectories, e.g. X[:5000] read by numpy, or drop "
    "the trajectories that have such values."
)


def _check_finite(
    data: Data, panel: Panel, what: str, *, missing: bool = False, refusal: str | None = None
) -> Examined:
    """The least and the largest value of each variable, in which NaN and infinity would show.

    `missing`: NaN is let in; else `refusal` says what to do about it.
    """

    def extremes(x: Any, u: Any | None) -> tuple[Array, Array, Array]:
        xp = array_api_compat.array_namespace(x)
        lows = xp.min(x, axis=1)
        first = min(SORT_VARIABLES, lows.shape[1])
        every = lows[:, :first], xp.min(lows, axis=0), xp.max(x, axis=(0, 1))
        own, low, high = (to_numpy(each) for each in every)
        return own, low, high

    each, least, largest = zip(*data.map(extremes), strict=True)
    lows, low, high = np.concatenate(each), np.min(least, axis=0), np.max(largest, axis=0)
    if not max(np.abs(low).max(), np.abs(high).max()) < MAX_MAGNITUDE:
        values = to_numpy(data.values)
        bad = np.argwhere(np.isinf(values) if missing else ~np.isfinite(values))
        if len(bad):
            gone = bool(np.isnan(values).any())
            remedy = refusal if refusal is not None and gone else VALUES_MISSING
            found = _not_finite(panel, what, len(bad), tuple(bad[0]), missing=missing)
            raise MissingInputsError(found) if gone and what != "X" else ValueError(f"{found} {remedy}")  # fmt: skip
        seen = ~np.isnan(values)
        each_low = np.where(seen, values, np.inf).min(axis=1)
        lows, low = each_low[:, :SORT_VARIABLES], each_low.min(axis=0)
        high = np.where(seen, values, -np.inf).max(axis=(0, 1))
        if (np.abs(values[seen]) >= MAX_MAGNITUDE).any():
            raise _too_large(what)
    return Examined(data, by_least(lows), low, high)


def _not_finite(
    panel: Panel, what: str, count: int, first: tuple[int, int, int], *, missing: bool = False
) -> str:
    """Values that are not finite: how many, and the first of them."""
    j, t, k = first
    name = (panel.names if what == "X" else panel.covariate_names)[k]
    kind, verb = "infinite" if missing else "missing or infinite", "has" if what == "X" else "have"
    return (
        f"{what} {verb} {count} {kind} value{'s' * (count > 1)}, the first in {panel.trajectory(j)}, "
        f"{panel.observation(j, t)}, variable {name!r}."
    )


def _too_large(what: str) -> ValueError:
    return ValueError(
        f"{what} {'holds' if what == 'X' else 'hold'} numbers above {MAX_MAGNITUDE:g}, too large to square and sum: rescale "
        "the variables."
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


def _check_facts(data: Data, panel: Panel) -> Examined:
    """The same of a panel that is read where it is, from what a survey found."""
    facts = data.values.facts
    if facts.first is not None:
        found = _not_finite(panel, "X", facts.bad, facts.first)
        raise ValueError(f"{found} {MISSING_OUTSIDE_MEMORY}")
    if max(np.abs(facts.low).max(), np.abs(facts.high).max()) >= MAX_MAGNITUDE:
        raise _too_large("X")
    return Examined(data, facts.rows, facts.low, facts.high)


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
    if width[k] < MIN_RANGE_TO_LEVEL * level[k]:
        raise ValueError(
            f"variable {names[k]!r} varies by {width[k]:.1g} about {high[k]:.4g}, within the rounding of floating-point numbers: "
            "subtract its level before it is stored, or drop it."
        )
    if width[least] < 1 / MAX_MAGNITUDE or width[most] / width[least] > MAX_RANGE_RATIO:
        raise ValueError(
            f"variable {names[least]!r} varies by {width[least]:.1g} and {names[most]!r} by {width[most]:.1g}: their "
            "squares cannot be held in one floating-point computation. Rescale them."
        )
    n, T, _ = data.shape
    rows = to_numpy(data.some(min(n, -(-QUARTILE_SAMPLE // T))).values)
    if _half_is_wide(rows.reshape(-1, rows.shape[2]), width / MAX_RANGE_TO_QUARTILES):
        return
    quarter, rest = np.nanquantile(rows, (0.25, 0.75), axis=(0, 1))
    far = np.flatnonzero((rest > quarter) & (width > MAX_RANGE_TO_QUARTILES * (rest - quarter)))
    if len(far):
        k = int(far[0])
        where, value = _farthest(data, k, float(quarter[k]))
        raise ValueError(
            f"variable {names[k]!r} is {value:.3g}{where}, while half of "
            f"its values lie within {rest[k] - quarter[k]:.2g} of each other: beside such a value the others lose their digits. If "
            "it is an error, make it missing (NaN); else take logarithms."
        )


def _half_is_wide(rows: Array, least: Array) -> bool:
    """The quartiles of every variable of rows (m, d), which are complete, surely are farther apart than the least widths (d,): a quarter of the values lies on
    either side of quantiles of some of them."""
    some = np.sort(rows[evenly(len(rows), FIRST_QUARTILE_SAMPLE)], axis=0)
    low, high = some[int(0.35 * (len(some) - 1))], some[int(0.65 * (len(some) - 1))]
    if not (high - low > least).all():  # as where values are missing
        return False
    count = 0.25 * len(rows) + 1
    return bool(((rows <= low).sum(axis=0) > count).all() and ((rows >= high).sum(axis=0) > count).all())  # fmt: skip


def _farthest(data: Data, k: int, centre: float) -> tuple[str, float]:
    """Where the value of a variable is that is farthest from its centre, in words, and the value."""
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
    if len(rows) <= d or not np.ptp(rows, axis=0).all():
        return
    named, share = least_combination(rows, names)
    if share < MIN_SINGULAR_RATIO:
        raise ValueError(
            f"variables {named} are linearly dependent, so their diffusion is singular: drop one of them."
        )


def least_combination(rows: Array, names: tuple[str, ...]) -> tuple[str, float]:
    """The variables, at most six, of the combination that varies least in rows (m, d), and its spread relative to the largest."""
    rows = rows - rows.mean(axis=0)
    _, singular, directions = np.linalg.svd(
        rows / np.linalg.norm(rows, axis=0), full_matrices=False
    )
    loads = np.abs(directions[-1])
    involved = [names[k] for k in np.argsort(-loads) if loads[k] > 0.1 * loads.max()]
    return ", ".join(map(repr, involved[:6])), float(singular[-1] / singular[0])


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
                f"{called[axis](k)} has {counts[k]} observed value{'' if counts[k] == 1 else 's'}; "
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
