"""What can be learned from a panel, before any fit: in sentences, with what to do next.

Nothing here needs the order. Whether there is one to be found: neighbours on a shortest path are closer than
they would be if each subject's observations were exchangeable. Whether the direction can be told: slices whose
means or spreads differ, tested within subjects, so that dependence in time does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np

from retrace_sde.evidence.dependence import DependenceKind, cleared, dependence_of
from retrace_sde.evidence.suspects.shifted import find_shifted
from retrace_sde.io.answers import present
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import shown
from retrace_sde.io.deferred import deferred, stats
from retrace_sde.orders.hidden.pair_moments import seen_distances
from retrace_sde.orders.loops import closes
from retrace_sde.orders.paths import shortest_path
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.uninformative import by_least, rounding, without_dynamics
from retrace_sde.process.tails import t_sf
from retrace_sde.search.mean_path import slice_effects
from retrace_sde.search.posterior import ranks

distance = deferred("scipy.spatial.distance")

MOST_SUBJECTS_TESTED, MOST_SLICES_TESTED = 200, 60
"""Subjects and slices that the permutation tests use, at most."""

SHARED_PERMUTATIONS, OWN_PERMUTATIONS = 49, 19
"""Permutations behind the tests of a shared order and of own orders: the least p-values are 0.02 and 0.05."""

SLICES_COMPARED = 12
"""Slices whose means and spreads are compared pairwise, at most."""

MANY_MISSING, FEW_VALUES, MAX_SKEWNESS = 0.5, 5, 2.0
"""A caution is given above this share missing, up to so many distinct values, and above this skewness."""

VAGUE_TIMES = 0.5
"""Standard error of the times, as a share of their span, from which a caution is given."""

TEST_LEVEL = 0.05
"""Significance level of the tests."""


MARKS = {"good": "+", "caution": "!", "stop": "×"}


@dataclass(frozen=True)
class Finding:
    """One sentence about the data, whether it is good news, and what to do about it."""

    topic: str
    kind: Literal["good", "caution", "stop"]
    sentence: str
    advice: str = ""


ONE_SUBJECT = Finding(
    "subjects", "stop", "There is one subject; order and direction are estimated from what several have in common.",
    "Is this the right column?",
)  # fmt: skip
ONE_VARIABLE = Finding(
    "order", "caution", "There is one variable: a course that rises and falls folds onto itself, and states on the way up and "
    "on the way down look the same.", "Add a variable, or anything known about time (time=).",
)  # fmt: skip
CYCLE = Finding(
    "order", "caution", "The path of the slices closes on itself: this looks like a cycle, whose first slice is arbitrary and whose "
    "direction its shape does not show.", "If you know which slice comes first, and which next, say so (Knowledge(first=…, precedences=…)).",
)  # fmt: skip
"""What may be found of any data."""


@dataclass(frozen=True)
class Diagnosis:
    """Sizes, and what was found, in the order in which it matters."""

    subjects: int
    observations: int
    slices: int | None
    observations_per_subject: tuple[int, float, int]
    variables: tuple[str, ...]
    missing_share: tuple[float, ...]
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Nothing was found that a fit would refuse."""
        return all(finding.kind != "stop" for finding in self.findings)

    def __str__(self) -> str:
        size = f"{self.subjects} subjects, {self.observations} observations"
        found = (
            f"{MARKS[e.kind]} {e.topic}: {e.sentence} {e.advice}".rstrip() for e in self.findings
        )
        return "\n".join([f"{size}, variables {', '.join(self.variables)}.", *found])

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "usable": self.usable}


def diagnose(data: Any, *, random_state: int = 0, **columns: Any) -> Diagnosis:
    """Say what can be learned from data before any fit, and what to do next; `retrace diagnose` prints the same.

    Nothing here needs the order. A test at 5 % of whether there is one to be found, and of whether slices differ in mean or
    spread; a direction that is called likely here may still be left open by the fit.

    Parameters
    ----------
    data : DataFrame, Panel or array (n, T, d)
        A table has one row per observation (pandas, polars, anything narwhals reads).
    random_state : int
        Seeds the shuffles of the test.
    **columns
        Of a table, what its columns are: `subject`, `slice`, `time`, `variables`, `covariates`, as in `recover`.

    Returns
    -------
    Diagnosis
        `.findings`, each with its `sentence` and `advice`; `.usable`, whether a fit would accept the data.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    >>> found = rt.diagnose(table, subject="patient", slice="slice")
    >>> found.usable, found.subjects, found.slices
    (True, 120, 12)
    """
    panel = _panel(data, columns)
    rng = np.random.default_rng(random_state)
    panel, left = _idle(panel)
    values = np.where(present(panel)[:, :, None], np.asarray(panel.values, dtype=float), np.nan)
    counts = present(panel).sum(axis=1)
    known = ~np.isnan(values)
    total = int(present(panel).sum())
    findings = [*_missing(panel, known, total), *_times(panel), *left, *_variables(panel, values)]
    if len(panel.ids) < 2:
        findings.append(ONE_SUBJECT)
    if not any(finding.kind == "stop" for finding in findings):
        z = values / np.nanstd(values, axis=(0, 1))
        findings += _identical(panel, values)
        findings += _shifted(panel, values)
        if not _all_times_known(panel):
            order = list((_own_orders if panel.slices is None else _shared_order)(z, rng))
            findings += order if CYCLE in order else [*order, _direction(panel, z)]
        if panel.slices is not None:
            findings.append(_independence(z))
        findings.append(Finding("the fit", "good", _use(panel, known)))
    return Diagnosis(
        len(panel.ids),
        total,
        None if panel.slices is None else len(panel.slices),
        (int(counts.min()), float(np.median(counts)), int(counts.max())),
        panel.names,
        tuple(1 - known[:, :, k].sum() / total for k in range(len(panel.names))),
        tuple(findings),
    )


def _panel(data: Any, columns: dict[str, Any]) -> Panel:
    """The data as a panel; the columns' roles belong to a table only."""
    if not isinstance(data, Panel) and not hasattr(data, "columns"):
        data = Panel.from_array(data)
    if not isinstance(data, Panel):
        return Panel.from_frame(data, **columns)
    if columns:
        raise ValueError(f"{', '.join(columns)}= name columns of a table; got an array or a Panel.")
    return data


def _idle(panel: Panel) -> tuple[Panel, list[Finding]]:
    """The panel as a fit will see it, without variables that have no dynamics of their own, and what these are."""
    data = Data(np.asarray(panel.values, dtype=float), counts=panel.lengths)
    lows = np.where(np.isnan(data.values), np.inf, data.values).min(axis=1)
    idle = without_dynamics(data, panel.names, shared=panel.slices is not None, by=by_least(lows))
    if len(idle) == len(panel.names):
        return panel, [Finding("variables", "stop", each.found) for each in idle]
    return panel.without(idle), [Finding("variables", "caution", each.sentence) for each in idle]


def _use(panel: Panel, known: Any) -> str:
    """How a fit will use the table."""
    shared, told = panel.slices is not None, known_times(panel)
    if _all_times_known(panel):
        times = "the times give the order, and gaps as long as they are"
    elif told.any() and panel.time_error is not None:
        times = "times with an error make some orders likelier; equal gaps are assumed"
    elif told.any():
        times = "known times fix the order of what they cover; equal gaps are assumed unless spacing='estimate'"
    else:
        times = "equal gaps are assumed unless spacing='estimate' or a schedule is given"
    parts = [
        "one order for all subjects" if shared else "an order of its own for each subject",
        times,
    ]
    if panel.covariates is not None:
        parts.append(f"{shown(panel.covariate_names)} as inputs, dX = (A X + B u + c) dt + G dW")
    gone = present(panel)[:, :, None] & ~known
    if gone.any():
        parts.append("missing values are integrated out, not imputed")
    parts.append("measurement noise and random intercepts of subjects where the data prefer them")
    return f"A fit will use {len(panel.names)} variables: {'; '.join(parts)}."


def _missing(panel: Panel, known: Any, total: int) -> Iterator[Finding]:
    share = 1 - known.sum(axis=(0, 1)) / total
    if share.max() > 0:
        some = [k for k in np.argsort(-share) if share[k] > 0][:6]
        worst = ", ".join(f"{panel.names[k]} {_percent(share[k])}" for k in some)
        text, advice = f"Some values are missing: {worst}.", "They are kept as missing, not imputed"
        if share.max() > MANY_MISSING:
            more = f"{advice}; leave out a variable that is mostly missing."
            yield Finding("missing values", "caution", text, more)
        else:
            yield Finding("missing values", "good", text, f"{advice}.")
    for note in panel.notes:
        yield Finding("table", "good", f"{note[:1].upper()}{note[1:]}.")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "less than 1%"


def known_times(panel: Panel) -> Any:
    """Which observations, or slices, have a known time."""
    if panel.times is None:
        return np.zeros(1, dtype=bool)
    inside = present(panel) if panel.slices is None else np.ones(len(panel.slices), dtype=bool)
    return ~np.isnan(panel.times[inside])


def _all_times_known(panel: Panel) -> bool:
    return panel.time_error is None and bool(known_times(panel).all())


def _times(panel: Panel) -> Iterator[Finding]:
    if panel.times is None:
        return
    known = known_times(panel)
    what = "observations" if panel.slices is None else "slices"
    text = f"The time is known of {known.sum()} of {known.size} {what}"
    vague = vague_times(panel)
    if vague is not None:
        yield Finding("time", "caution", vague)
    elif panel.time_error is not None:
        yield Finding("time", "good", f"{text}, with a standard error of {panel.time_error:g}.")
    elif known.all():
        advice = "Order and direction are given; the fit estimates the SDE."
        yield Finding("time", "good", f"{text}.", advice)
    elif known.any():
        advice = "They fix the order of those; the rest is recovered."
        yield Finding("time", "good", f"{text}.", advice)
    else:
        yield Finding("time", "caution", f"{text}.")


def with_values(panel: Panel, most: int) -> list[str]:
    """The variables of a panel in which at most so many values occur."""
    found = []
    for k, name in enumerate(panel.names):
        column = to_numpy(panel.values[:, :, k])
        if len(np.unique(column[~np.isnan(column)])) <= most:
            found.append(name)
    return found


def vague_times(panel: Panel) -> str | None:
    """A caution of times whose error is as long as what they span; None where they say something."""
    if panel.times is None or panel.time_error is None or not known_times(panel).any():
        return None
    span = float(np.nanmax(panel.times) - np.nanmin(panel.times))
    if panel.time_error < VAGUE_TIMES * span:
        return None
    return (
        f"The times span {span:.3g} and have a standard error of {panel.time_error:.3g}: they carry almost no information about the order. Is the "
        "error in the unit of the times?"
    )


def _variables(panel: Panel, values: Array) -> Iterator[Finding]:
    few, skewed = with_values(panel, FEW_VALUES), []
    for k, name in enumerate(panel.names):
        column = values[:, :, k]
        column = column[~np.isnan(column)]
        if name not in few and column.min() > 0 and stats.skew(column) > MAX_SKEWNESS:
            skewed.append(name)
    if few:
        switched = with_values(panel, 2)
        text = f"At most {FEW_VALUES} values occur in {shown(few)}: a diffusion describes them only roughly, and their effects may be spurious."
        advice = "Leave them out, or take them as covariates."
        if switched and len(switched) < len(panel.names):
            advice = f"Take what was given or done to the subjects as an input (covariates={switched}), or leave it out."
        yield Finding("variables", "caution", text, advice)
    if skewed:
        text = f"Positive with a long upper tail: {shown(skewed)}."
        advice = "Their logarithms are likely to follow the model better."
        yield Finding("variables", "caution", text, advice)
    rows = values.reshape(-1, len(panel.names))
    rows = rows[~np.isnan(rows).any(axis=1)]
    if 1 < len(panel.names) < len(rows):
        z = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-300)
        _, singular, directions = np.linalg.svd(z, full_matrices=False)
        if singular[-1] < 1e-6 * singular[0]:
            names = [panel.names[k] for k in np.flatnonzero(np.abs(directions[-1]) > 0.1)]
            text = f"{shown(names)} are linearly dependent."
            yield Finding("variables", "stop", text, "Drop one of them.")


def _identical(panel: Panel, values: Array) -> Iterator[Finding]:
    """Observations of one subject that nothing can tell apart, where rounding alone would not make as many.

    Two neighbouring values are equal by rounding about as often as its unit is long beside the gaps of the sorted values.
    """
    again = {}
    for name, each in zip(panel.ids, values, strict=True):
        rows = each[~np.isnan(each).all(axis=1)]
        # What is missing in both is the same in both; NaN would equal nothing.
        again[name] = len(rows) - len(np.unique(np.where(np.isnan(rows), np.inf, rows), axis=0))
    pairs = sum(again.values())
    expected = float(np.prod([_by_rounding(values[:, :, k]) for k in range(values.shape[2])]))
    if pairs > 3 * expected * present(panel).sum():
        people = shown([name for name, count in again.items() if count])
        yield Finding(
            "duplicates", "caution",
            f"Observations that equal another of the same subject in every variable: {pairs} (subject {people}).",
            "Their order among each other is arbitrary: check that they are not the same record twice.",
        )  # fmt: skip


def _shifted(panel: Panel, values: Array) -> Iterator[Finding]:
    """Columns that are shifted by one row for some subjects."""
    n, T, _ = values.shape
    rows = np.broadcast_to(np.arange(T), (n, T)) if panel.rows is None else panel.rows
    sequence = np.argsort(np.where(rows < 0, np.iinfo(np.intp).max, rows), axis=1, kind="stable")
    found = find_shifted(values, sequence, slices=panel.slices is not None)
    for v, by in dict.fromkeys((each.variable, each.by) for each in found):
        who = [panel.ids[e.trajectory] for e in found if (e.variable, e.by) == (v, by)]
        one = len(who) == 1
        yield Finding(
            "shifted column", "caution",
            f"The column {panel.names[v]!r} looks shifted {'down' if by < 0 else 'up'} by one row in subject{'' if one else 's'} {shown(who)}: "
            f"its values fit the row {'above' if by < 0 else 'below'}.",
            "Look for a cell that was inserted or deleted there, and move the column back.",
        )  # fmt: skip


def _by_rounding(column: Array) -> float:
    """The share of a subject's neighbouring values that rounding makes equal, at most one."""
    unit = rounding(column)
    gaps = np.diff(np.sort(column, axis=1), axis=1)
    gaps = gaps[~np.isnan(gaps)]
    return (
        min(1.0, unit / gaps.mean()) if unit and len(gaps) and gaps.mean() > 0 else float(unit > 0)
    )


def _distances(z: Array) -> Array:
    return seen_distances(z, np.ones(z.shape[2]))


def _closeness(D: Array) -> tuple[float, Indices]:
    """Squared steps of a short path, relative to those between any two."""
    path = shortest_path(D)
    steps = D[path[:-1], path[1:]].mean()
    return float(steps / (D.sum() / (len(D) * (len(D) - 1)))), path


def _tested(ratio: float, nulls: list[float]) -> tuple[bool, str]:
    """Whether neighbours are closer than in permuted data, at the level of the tests, and the p-value."""
    least = 1 / (1 + len(nulls))
    p = (1 + sum(null <= ratio for null in nulls)) / (1 + len(nulls))
    return p <= TEST_LEVEL, f"p {'≤' if p <= least else '='} {p:.2g}"


def _shared_order(z: Array, rng: np.random.Generator) -> Iterator[Finding]:
    """Whether there is an order, and whether it closes on itself."""
    n, T, d = z.shape
    z = z[evenly(n, MOST_SUBJECTS_TESTED)][:, rng.permutation(T)[:MOST_SLICES_TESTED]]
    ratio, path = _closeness(_distances(z))
    nulls = [
        _closeness(_distances(rng.permuted(z, axis=1) if d == 1 else _shuffled(z, rng)))[0]
        for _ in range(SHARED_PERMUTATIONS)
    ]
    found, p = _tested(ratio, nulls)
    closer = (
        f"neighbouring slices are {1 / ratio:.1f} times closer than two slices at random; without an order "
        f"they would be {1 / np.mean(nulls):.1f} times closer ({p})"
    )
    if found:
        yield Finding("order", "good", f"The slices have an order to be found: {closer}.")
        known = ~np.isnan(z)
        means = np.where(known, z, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        if closes(Data(np.where(known, z, means)), path):
            yield CYCLE
    else:
        yield Finding(
            "order", "caution", f"The slices show no order: {closer}.", "More subjects or variables help; so does anything known "
            "about time (time=), or observation_noise='estimate'.",
        )  # fmt: skip
    if d == 1:
        yield ONE_VARIABLE


def _shuffled(z: Array, rng: np.random.Generator) -> Array:
    """Every subject's observations in an order of its own."""
    moved = rng.permuted(np.tile(np.arange(z.shape[1]), (len(z), 1)), axis=1)
    return np.take_along_axis(z, moved[:, :, None], axis=1)


def _own_orders(z: Array, rng: np.random.Generator) -> Iterator[Finding]:
    n, _, d = z.shape
    if d == 1:
        yield ONE_VARIABLE
        return
    groups = [each[~np.isnan(each).any(axis=1)] for each in z[evenly(n, MOST_SUBJECTS_TESTED)]]
    groups = [
        each[rng.permutation(len(each))[:MOST_SLICES_TESTED]] for each in groups if len(each) >= 4
    ]
    if len(groups) < 2:
        text = "Too few subjects have 4 complete observations to tell whether there is an order."
        yield Finding("order", "caution", text)
        return
    centred = [each - each.mean(axis=0) for each in groups]
    pool, cuts = np.concatenate(centred), np.cumsum([len(each) for each in centred])[:-1]
    whiten = np.linalg.pinv(np.linalg.cholesky(np.cov(pool.T) + 1e-12 * np.eye(d)))

    def closeness(parts: list[Array]) -> float:
        white = [part @ whiten.T for part in parts]
        return float(
            np.mean([_closeness(distance.cdist(each, each, "sqeuclidean"))[0] for each in white])
        )

    ratio = closeness(centred)
    nulls = [closeness(np.split(rng.permutation(pool), cuts)) for _ in range(OWN_PERMUTATIONS)]
    found, p = _tested(ratio, nulls)
    text = (
        f"a subject's neighbours are {1 / ratio:.1f} times closer than two of its observations at random, "
        f"against {1 / np.mean(nulls):.1f} without an order ({p})"
    )
    if found:
        few = f"With {d} variables single positions stay uncertain; the SDE can still be estimated."
        yield Finding(
            "order", "good", f"There are orders to be found: {text}.", few if d <= 3 else ""
        )
    else:
        advice = "More variables help, and so does anything known about time (time=)."
        text = f"The subjects' observations show no order: {text}."
        yield Finding("order", "caution", text, advice)


def _direction(panel: Panel, z: Array) -> Finding:
    n = len(z)
    if n < 3:
        return Finding(
            "direction", "caution", f"With {n} subject{'s' * (n != 1)} the direction of time cannot be tested; at least 3 are "
            "needed.", "The order is then found up to reversal.",
        )  # fmt: skip
    if panel.slices is None:
        return Finding(
            "direction", "caution", "Whether the direction of time is identified shows only in the fit: each subject's order is "
            "unknown, so nothing can be compared across subjects yet.",
        )  # fmt: skip
    p_mean, p_spread = _changes(z)
    least = min(p_mean, p_spread)
    if least < TEST_LEVEL / 2:
        what = "means" if p_mean <= p_spread else "spreads"
        return Finding(
            "direction", "good", f"The slices differ in their {what} (p {_p(least)}): a transient, which is what can reveal the "
            "direction of time.",
        )  # fmt: skip
    return Finding(
        "direction", "caution", f"The slices differ neither in mean nor in spread (p {_p(p_mean)} and {_p(p_spread)}): the data "
        "look stationary, and a linear SDE then fits both directions equally well.",
        "Expect the direction to be left open, unless you know the first slice.",
    )  # fmt: skip


def _independence(z: Array) -> Finding:
    """Whether subjects share shocks, along a short path through the deviations from the slice means, which shocks do not move.

    Dependence shows along any order; how much of a step is common is known only once the order is.
    """
    z = z[evenly(len(z), MOST_SUBJECTS_TESTED)]
    n, T, d = z.shape
    x = z[:, shortest_path(_distances(z - slice_effects(z)))]
    before = np.concatenate([x[:, :-1], np.ones((n, T - 1, 1))], axis=2).reshape(-1, d + 1)
    step = np.diff(x, axis=1).reshape(-1, d)
    there = ~np.isnan(before).any(axis=1) & ~np.isnan(step).any(axis=1)
    if there.sum() < 5 * (d + 1):
        return Finding("independence", "caution", "Too few complete steps to test whether subjects share shocks.")  # fmt: skip
    e = step[there] - before[there] @ np.linalg.lstsq(before[there], step[there], rcond=None)[0]
    residuals = np.full(step.shape, np.nan)
    residuals[there] = np.linalg.solve(np.linalg.cholesky(np.atleast_2d(np.cov(e.T))), e.T).T
    found = dependence_of(cleared(residuals.reshape(n, T - 1, d), x), n)
    if found.kind is DependenceKind.COMMON:
        return Finding("independence", "caution", "Subjects move together: they share shocks, plates or batches (CD test, p "
                       f"{_p(found.p_value or 0.0)}).", "A fit tests it again, and takes order and parameters from deviations from the slice "
                       "means (common_shocks='auto'); a change of these means then does not show the direction.")  # fmt: skip
    kind: Literal["good", "caution"] = (
        "good" if found.kind is DependenceKind.INDEPENDENT else "caution"
    )
    return Finding("independence", kind, found.verdict)


def _changes(z: Array) -> tuple[float, float]:
    """Least p-values, by Bonferroni, of paired t-tests and of Pitman and Morgan's test on ranks."""
    T, d = z.shape[1:]
    least, tests = [1.0, 1.0], 0
    for a, b in combinations(evenly(T, SLICES_COMPARED), 2):
        x, y = z[:, a], z[:, b]
        known = ~np.isnan(x) & ~np.isnan(y)
        m = known.sum(axis=0)
        enough = m >= 5
        x, y, known, m = x[:, enough], y[:, enough], known[:, enough], m[enough]
        x, y = (np.where(known, each, 0.0) for each in (x, y))
        shift = x.sum(axis=0) / m - y.sum(axis=0) / m
        # Equal variances of x and y: their sum and their difference are uncorrelated.
        u, v = (np.where(known, each - each.sum(axis=0) / m, np.nan) for each in (x + y, x - y))
        error = np.sqrt(np.nansum(v**2, axis=0) / (m - 1) / m)
        for k, t in enumerate((shift / np.maximum(error, 1e-300), _rank_t(u, v, m))):
            least[k] = min([least[k], *(2 * t_sf(np.abs(t), m - 1 - k))])
        tests += d
    return min(1.0, least[0] * tests), min(1.0, least[1] * tests)


def _rank_t(u: Array, v: Array, m: Indices) -> Array:
    """Spearman's correlation, column by column, as a t statistic with m − 2 degrees of freedom."""
    a, b = (_known_ranks(each) - (m + 1) / 2 for each in (u, v))
    square = np.nansum(a**2, axis=0) * np.nansum(b**2, axis=0)
    r = np.nansum(a * b, axis=0) / np.sqrt(np.maximum(square, 1e-300))
    return r * np.sqrt((m - 2) / np.maximum(1 - r**2, 1e-12))


def _known_ranks(x: Array) -> Array:
    """Ranks within each column; NaN for NaN."""
    found = np.where(np.isnan(x), np.nan, 0.0)
    for k, column in enumerate(x.T):
        found[:, k] += ranks(column)
    return found


def _p(value: float) -> str:
    return f"= {value:.2g}" if value >= 1e-4 else "< 0.0001"
