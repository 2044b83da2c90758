"""`audit_hidden`: how much of the order an adversary recovers once times are removed, and which columns give it away."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
import pandas as pd

from retrace_sde.audit.times import Findings
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import date_columns, dates, is_numeric, shown
from retrace_sde.io.tables import Names, as_frame
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.progress import Callback, reporting, steps
from retrace_sde.retrace import ReTrace
from retrace_sde.search.enumerated import drawn_before
from retrace_sde.show.sources import axes_for

SURE_PROBABILITY = 0.9
"""Probability from which a pair counts as sure."""

MIN_KNOWN_SUBJECTS = 5
"""Subjects in each half below which nobody can learn from the others."""

LEARNING: dict[str, Any] = {"permutation": "independent", "subjects": "alike", "outliers": "keep"}
"""Settings of the fit to subjects of known order, which is made twice for each column."""

REVEALING_TAU = 0.9
"""Mean τ of sorting by one column alone from which it is said to give the order away."""


class Recovered(NamedTuple):
    """What an adversary makes of hidden orders: P[m, a, b] that a came before b, and whether he knows the direction."""

    before: Array
    direction: str


@dataclass(frozen=True, eq=False)
class HiddenAudit(Findings):
    """What `audit_hidden` found.

    Attributes
    ----------
    table : DataFrame
        One row for each subject (with `slice=`, for each slice): `observations`; `tau`, the expected Kendall's τ of the order that an
        informed adversary recovers (1: all, 0: nothing); `sure`, the share of its pairs that he is at least 90 % sure of; `sure_right`, how many of these he
        is right about; and `tau_uninformed`, `sure_uninformed`, the same for one who has nothing but this table. Where the direction
        stays open to the latter, his figures are up to that: both directions are the same to him.
    columns : DataFrame
        One row for each column: `tau_without`, the mean τ of the adversary if it were left out too; `lost`, by how much that is
        less; `alone`, the mean τ of sorting rows by this column alone (its sign: growing or falling).
    findings : tuple of str
        The same in sentences.
    direction : {"right", "wrong", "open"}
        What an adversary with nothing but this table says of the direction of time.

    Examples
    --------
    >>> import numpy as np, pandas as pd, retrace_sde as rt
    >>> X = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(12, 6, 0.2, random_state=1)
    >>> table = pd.DataFrame(X.reshape(72, 2), columns=list("ab")).assign(who=np.repeat(np.arange(12), 6), day=np.tile(np.arange(6.0), 12))
    >>> found = rt.audit_hidden(table, subject="who", time="day", random_state=0)
    >>> bool(0 < found.table["tau"].mean() <= 1), sorted(found.columns["column"])
    (True, ['a', 'b'])
    >>> found.summary() == "\\n".join(found.findings)
    True
    >>> found.plot().get_xlabel()
    'expected τ without the column'
    """

    table: pd.DataFrame
    columns: pd.DataFrame
    findings: tuple[str, ...]
    direction: str

    def plot(self, *, ax: Any = None) -> Any:
        """What an adversary recovers without each column, beside what he recovers with all.

        Parameters
        ----------
        ax : Axes, optional
            Where to.
        """
        ax = axes_for(ax, "", "expected τ without the column", "")
        some = self.columns.dropna(subset=["tau_without"])
        ax.barh(some["column"], some["tau_without"], color="0.7")
        whole = self.table[_main(self.table)].mean()
        ax.axvline(whole, color="C3", label="with all columns")
        ax.set_xlim(min(0.0, ax.get_xlim()[0]), 1)
        ax.legend()
        return ax


def audit_hidden(
    df: Any,
    *,
    subject: str,
    time: str,
    slice: str | None = None,
    time_unit: str | None = None,
    variables: Names = None,
    random_state: int | np.random.Generator | None = None,
    progress: Callback | bool | None = None,
) -> HiddenAudit:
    """Ask, before times are removed from a table, how much of the order of its rows could be recovered all the same.

    Two adversaries are played. One has nothing but the table without its times, rows in random order: a fit, as of `recover`. The other also has
    dated records of other subjects of the same process: half of the subjects teach him, the other half are judged, and then the
    halves change places. His expected τ is the mean over his posterior, not of his best guess. Both see numeric columns only, use linear
    SDEs, and know no gaps: another method may recover more. With `slice=`, subjects share one order, and there is the first adversary only.

    Parameters
    ----------
    df : DataFrame
        One row per observation (pandas, polars, anything narwhals reads); not modified.
    subject : str
        Column that says whose observation it is.
    time : str
        Column with the true times, numbers or dates, which are to be removed.
    slice : str, optional
        Column with a label shared by the subjects, which would stay: one order for all.
    time_unit : str, optional
        Unit of dates (days).
    variables : str or sequence of str, optional
        Numeric columns that stay; if left out, all that change within subjects and have no other role.
    random_state : int, Generator or None
        Seeds halves, searches and samplers.
    progress : callable, bool or None
        Called with what is being done; True shows a bar.

    Returns
    -------
    HiddenAudit
        With `.table`, `.columns`, `.findings`, `.summary()` and `.plot()`.

    Examples
    --------
    >>> import numpy as np, pandas as pd, retrace_sde as rt
    >>> X = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(12, 6, 0.2, random_state=1)
    >>> table = pd.DataFrame(X.reshape(72, 2), columns=list("ab")).assign(who=np.repeat(np.arange(12), 6), day=np.tile(np.arange(6.0), 12))
    >>> found = rt.audit_hidden(table, subject="who", time="day", random_state=0)
    >>> print(found.findings[-1])
    The rows of the table stand in time order: shuffle them before it is shared.
    """
    panel = Panel.from_frame(
        df, subject=subject, slice=slice, time=time, time_unit=time_unit, variables=variables
    )
    if panel.times is None or np.isnan(np.asarray(panel.times, dtype=float)).all():
        raise ValueError(f"column {time!r} holds no times: they are what recovered orders are compared with.")  # fmt: skip
    times = np.asarray(panel.times, dtype=float)
    bare = replace(panel, times=None, time_error=None)
    seed = int(np.random.default_rng(random_state).integers(2**31))
    truth = _truth(times, panel)
    # What a fit says of itself is not about the table.
    with reporting(progress), warnings.catch_warnings(action="ignore"):
        uninformed = _uninformed(bare, truth, seed)
        halves = _halves(panel, seed)
        informed = None if halves is None else _informed(bare, times, halves, seed)
        best = uninformed if informed is None else informed
        table = _described(panel, truth, uninformed, informed)
        columns = _columns(bare, times, truth, best, halves, seed)
    columns = _alone(columns, df, subject, time, slice)
    said = [*_findings(table, columns, uninformed), *_of_rows(df, subject, time)]
    return HiddenAudit(table, columns, tuple(said), uninformed.direction)


# -- the adversaries ---------------------------------------------------------------------------------------


def _truth(times: Array, panel: Panel) -> Array:
    """S[m, a, b]: 1 where a came before b, −1 after, NaN where that is not known; m = 1 of a shared order."""
    rows = np.atleast_2d(times)
    if panel.slices is None:
        n, T, _ = panel.values.shape
        rows = np.where(Lengths(n, T, panel.lengths).mask, rows, np.nan)
    signs = np.sign(rows[:, None, :] - rows[:, :, None])
    return np.asarray(np.where(signs == 0, np.nan, signs))


def _uninformed(panel: Panel, truth: Array, seed: int) -> Recovered:
    """What the table alone gives: a fit without times. An open direction is the one that suits the truth."""
    shared = panel.slices is not None
    model = ReTrace(
        permutation="shared" if shared else "independent", outliers="keep", random_state=seed
    )
    model.fit(panel)
    n, T, _ = panel.values.shape
    draws = model.sample_orders(draws=400).samples.astype(np.intp)
    if shared:  # an open direction has half of the draws
        draws = model.posterior_.along(model.order_).astype(np.intp)
        before = drawn_before(draws[None], Lengths(1, T))
    else:
        before = drawn_before(draws, Lengths(n, T, panel.lengths))
    against = np.nansum(truth * (before - 0.5)) < 0
    if model.direction_.identified:
        return Recovered(before, "wrong" if against else "right")
    return Recovered(1 - before if against else before, "open")


def _halves(panel: Panel, seed: int) -> tuple[Indices, Indices] | None:
    """Two random halves of the subjects; None where they are few, or share one order."""
    n = len(panel.ids)
    if panel.slices is not None or n < 2 * MIN_KNOWN_SUBJECTS:
        return None
    every = np.random.default_rng(seed).permutation(n)
    return np.sort(every[: n // 2]), np.sort(every[n // 2 :])


def _informed(
    panel: Panel, times: Array, halves: tuple[Indices, Indices], seed: int
) -> Recovered | None:
    """Either half learns from the other, whose orders are known; None where these are too few to fit."""
    before = learned_pairs(panel, times, halves, {**LEARNING, "random_state": seed})
    return None if before is None else Recovered(before, "right")


def learned_pairs(
    panel: Panel, ranks: Array, halves: tuple[Indices, Indices], settings: dict[str, Any]
) -> Array | None:
    """P[j, a, b] that a came before b, either half judged by a fit to the other, whose ranks are known; None: too few to fit."""
    n, T, _ = panel.values.shape
    before = np.full((n, T, T), np.nan)
    for known, hidden in (halves, halves[::-1]):
        model = ReTrace(**settings)
        try:
            model.fit(panel._of(known), knowledge=Knowledge(blocks=ranks[known]))
            before[hidden] = model.precedence(panel._of(hidden))
        except ValueError:
            return None
    return before


# -- what they recover -------------------------------------------------------------------------------------


def _figures(before: Array, truth: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Expected τ, the share of pairs that are sure, and how many of these are right, over axes of (m, a, b)."""
    # Of subjects without a pair.
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        tau = np.nanmean(truth * (2 * before - 1), axis=axes)
        known = ~np.isnan(truth) & ~np.isnan(before)
        sure = known & (np.maximum(before, 1 - before) >= SURE_PROBABILITY)
        right = sure & ((before > 0.5) == (truth > 0))
        count = sure.sum(axis=axes)
        return tau, count / known.sum(axis=axes), np.where(count, right.sum(axis=axes) / count, np.nan)  # fmt: skip


def _described(
    panel: Panel, truth: Array, uninformed: Recovered, informed: Recovered | None
) -> pd.DataFrame:
    """One row for each subject, or slice."""
    shared = panel.slices is not None
    axes = (0, 2) if shared else (1, 2)
    n, T, _ = panel.values.shape
    whose = {"slice": list(panel.slices or ())} if shared else {"subject": list(panel.ids)}
    table = pd.DataFrame(whose)
    table["observations"] = n if shared else Lengths(n, T, panel.lengths).each
    if informed is not None:
        parts = _figures(informed.before, truth, axes)
        table["tau"], table["sure"], table["sure_right"] = parts
    tau, sure, _ = _figures(uninformed.before, truth, axes)
    table["tau_uninformed"], table["sure_uninformed"] = tau, sure
    return table


def _main(table: pd.DataFrame) -> str:
    """The column with τ of the stronger adversary."""
    return "tau" if "tau" in table else "tau_uninformed"


def _columns(
    panel: Panel,
    times: Array,
    truth: Array,
    best: Recovered,
    halves: tuple[Indices, Indices] | None,
    seed: int,
) -> pd.DataFrame:
    """Each variable left out in turn."""
    whole, found = _mean_tau(best, truth), []
    for k in steps(range(len(panel.names)), "leaving out columns", least=1):
        rest = [j for j in range(len(panel.names)) if j != k]
        tau = 0.0
        if rest:
            values = np.asarray(to_numpy(panel.values), dtype=float)[:, :, rest]
            some = replace(panel, values=values, names=tuple(panel.names[j] for j in rest))
            tau = _tau_of(some, times, truth, halves, seed)
        found.append({"column": panel.names[k], "tau_without": tau, "lost": whole - tau})
    return pd.DataFrame(found).sort_values("lost", ascending=False, ignore_index=True, kind="stable")  # fmt: skip


def _tau_of(
    panel: Panel, times: Array, truth: Array, halves: tuple[Indices, Indices] | None, seed: int
) -> float:
    """Mean expected τ of the stronger adversary; NaN where there is no fit."""
    try:
        found = None if halves is None else _informed(panel, times, halves, seed)
        return _mean_tau(found or _uninformed(panel, truth, seed), truth)
    except ValueError:
        return float("nan")


def _mean_tau(found: Recovered, truth: Array) -> float:
    axes = (0, 1, 2) if len(truth) == 1 else (1, 2)
    return float(np.nanmean(_figures(found.before, truth, axes)[0]))


# -- single columns ----------------------------------------------------------------------------------------


def _alone(columns: pd.DataFrame, df: Any, subject: str, time: str, slice: str | None) -> pd.DataFrame:  # fmt: skip
    """The same with the τ of sorting by each column alone, those that no fit uses included."""
    frame = as_frame(df)
    who, when = frame[subject].to_numpy(), _numbers(frame, time)
    taus = {
        name: _sorted_tau(who, when, values)
        for name in frame.columns if name not in (subject, time, slice)
        if (values := _numbers(frame, name)) is not None and when is not None
    }  # fmt: skip
    columns["alone"] = [taus.get(name, np.nan) for name in columns["column"]]
    known = set(columns["column"])
    others = [{"column": name, "alone": tau} for name, tau in taus.items() if name not in known and np.isfinite(tau)]  # fmt: skip
    return pd.concat([columns, pd.DataFrame(others)], ignore_index=True) if others else columns


def _numbers(frame: nw.DataFrame[Any], name: str) -> Array | None:
    """A column as numbers: dates count in seconds; None for other text."""
    column = frame[name]
    if is_numeric(column):
        return np.asarray(pd.to_numeric(pd.Series(column.to_list()), errors="coerce"), dtype=float)
    if name not in date_columns(frame):
        return None
    try:
        found, _ = dates(pd.Series(column.to_list(), dtype=object), name)
    except ValueError:
        return None
    seconds = found.astype("int64").to_numpy() / 1e9
    return np.where(found.isna(), np.nan, seconds)


def _sorted_tau(who: Any, when: Array, values: Array) -> float:
    """The mean over subjects of Kendall's τ between a column and the times; NaN where it never changes."""
    found = []
    for rows in _by_subject(who):
        signs = _signs(when[rows]) * _signs(values[rows])
        pairs = _signs(when[rows]) ** 2 == 1
        if (~np.isnan(signs) & pairs).any():
            found.append(np.nansum(signs) / (~np.isnan(signs) & pairs).sum())
    changes = [np.nanmin(values[r]) < np.nanmax(values[r]) for r in _by_subject(who) if not np.isnan(values[r]).all()]  # fmt: skip
    return float(np.mean(found)) if found and any(changes) else float("nan")


def _by_subject(who: Any) -> Iterator[Indices]:
    codes = pd.factorize(who)[0]
    order = np.argsort(codes, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _signs(values: Array) -> Array:
    return np.asarray(np.sign(values[None, :] - values[:, None]))


# -- in words ----------------------------------------------------------------------------------------------


def _findings(
    table: pd.DataFrame,
    columns: pd.DataFrame,
    uninformed: Recovered,
) -> Iterator[str]:
    """What was found, the answer first."""
    if "tau" in table:
        yield (
            f"Somebody who has dated records of other subjects recovers an expected Kendall's τ of {table['tau'].mean():.2f} of each subject's "
            f"order (1: all of it, 0: nothing), and is at least 90 % sure of {table['sure'].mean():.0%} of the pairs of rows"
            f"{_right(table)}."
        )
    says = {
        "right": "and the direction of time, which is identified correctly",
        "wrong": "but the direction of time is identified wrongly",
        "open": "up to the direction of time, which stays open",
    }[uninformed.direction]
    tau, sure = table["tau_uninformed"].mean(), table["sure_uninformed"].mean()
    more = ""
    if "tau" in table and uninformed.direction == "right" and tau > table["tau"].mean():
        more = " This is the larger risk: the dated records above are those of half of the subjects only."
    yield f"From this table alone: τ {tau:.2f}, {says}; {sure:.0%} of the pairs are sure.{more}"
    main = _main(table)
    whose = table.columns[0]
    if whose == "subject" and table[main].notna().any():
        worst = table.sort_values(main, ascending=False, kind="stable").head(3)
        named = ", ".join(f"{a!r} ({b:.2f})" for a, b in zip(worst[whose], worst[main], strict=True))  # fmt: skip
        yield f"Most exposed are the subjects {named}; for {(table[main] > 0.8).sum()} of {len(table)} the expected τ is above .8."
    yield from _of_columns(columns, table[main].mean())


def _of_rows(df: Any, subject: str, time: str) -> Iterator[str]:
    """Whether the rows themselves stand in time order."""
    rows = np.arange(len(as_frame(df)), dtype=float)
    frame = as_frame(df)
    when = _numbers(frame, time)
    if when is not None and abs(_sorted_tau(frame[subject].to_numpy(), when, rows)) > REVEALING_TAU:
        yield "The rows of the table stand in time order: shuffle them before it is shared."


def _right(table: pd.DataFrame) -> str:
    weights = table["sure"].to_numpy() * table["observations"].to_numpy()
    right = table["sure_right"].to_numpy()
    some = ~np.isnan(right)
    if not some.any() or not weights[some].sum():
        return ""
    return f" ({np.average(right[some], weights=weights[some]):.0%} of these are right)"


def _of_columns(columns: pd.DataFrame, whole: float) -> Iterator[str]:
    """Which columns give the order away."""
    useful = columns[columns["lost"] > 0.02]
    if len(useful):
        named = "; ".join(f"without {name!r} it is {tau:.2f}" for name, tau in zip(useful["column"].head(4), useful["tau_without"].head(4), strict=True))  # fmt: skip
        yield f"The columns that give most away, by what τ ({whole:.2f}) becomes without each: {named}."
    elif len(columns.dropna(subset=["lost"])) > 1:
        yield "Removing a single column does not help: without any one of them τ falls by at most .02."
    alone = columns[columns["alone"].abs() > REVEALING_TAU]
    if len(alone):
        names = shown(alone["column"].tolist())
        what = f"{names} alone sorts the rows of nearly every subject: remove or coarsen it"
        if len(alone) > 1:
            what = f"Each of these alone sorts the rows of nearly every subject: {names}. Remove or coarsen all of them"
        yield f"{what}."
