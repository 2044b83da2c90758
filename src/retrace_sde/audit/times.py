"""`audit_times`: for each stamp of a table the probability that it is wrong, and what it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrace_sde.audit.shared import Table
from retrace_sde.evidence.dependence import Dependence, DependenceKind, p_text
from retrace_sde.io.arrays import Array
from retrace_sde.io.columns import TIME_UNITS, dates, is_numeric, shown
from retrace_sde.io.deferred import pd
from retrace_sde.io.tables import Names, as_frame
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.progress import Callback, report, reporting
from retrace_sde.search.stamps.judge import Sequence
from retrace_sde.show.sources import axes_for

LEAST_OBSERVATIONS = 30
"""Steps between observations from which a distribution of steps is fitted."""

TOO_FEW_STAMPS = (
    f"there are too few observations with a time to judge stamps by: at least {LEAST_OBSERVATIONS} steps between observations "
    "are needed."
)


class Findings:
    """What was found, in sentences."""

    findings: tuple[str, ...]

    def summary(self) -> str:
        """The findings as text."""
        return "\n".join(self.findings)

    def __str__(self) -> str:
        return self.summary()


@dataclass(frozen=True, eq=False)
class TimesAudit(Findings):
    """What `audit_times` found.

    Attributes
    ----------
    table : DataFrame
        One row for each stamp: whose it is (`subject`, or `slice` where subjects share times), `row` of the table given (from 0; -1
        for slices), `time` as given, `probability_wrong`, `expected_time`, `low` and `high` (a 95 % interval), and `kind`: "right",
        "wrong", "swapped" (with the stamp named in `partner`), "shifted" (one of a block that is off by the same), "reversed" (all
        stamps of the subject run backwards), "missing" (there is none).
    findings : tuple of str
        The same in sentences.
    unit : float
        The typical gap between stamps.
    dependence : Dependence
        Whether subjects share something at each time, such as plates or common shocks; `removed`: stamps are judged without it.

    Examples
    --------
    >>> import numpy as np, pandas as pd, retrace_sde as rt
    >>> X = rt.simulate.random_irreversible_sde(4, random_state=0).simulate(12, 10, 0.1, random_state=1)
    >>> table = pd.DataFrame(X.reshape(120, 4), columns=list("abcd")).assign(who=np.repeat(np.arange(12), 10), day=np.tile(np.arange(10.0), 12))
    >>> table.loc[23, "day"] = 8.5  # was 3
    >>> found = rt.audit_times(table, subject="who", time="day", random_state=0)
    >>> print(found.summary().splitlines()[0])
    1 of 120 stamps are more likely wrong than right.
    >>> found.plot().get_xlabel()
    'time as given'
    """

    table: pd.DataFrame
    findings: tuple[str, ...]
    unit: float
    dependence: Dependence

    @property
    def suspects(self) -> pd.DataFrame:
        """The stamps that are more likely wrong than right."""
        return self.table[self.table["probability_wrong"] > 0.5]

    def plot(self, *, ax: Any = None) -> Any:
        """Expected times over the times as given; those that are probably wrong stand out.

        Parameters
        ----------
        ax : Axes, optional
            Where to.
        """
        ax = axes_for(ax, "", "time as given", "expected time")
        known = self.table[self.table["kind"] != "missing"]
        right = known["kind"] == "right"
        ax.plot(
            known["time"][right], known["expected_time"][right], ".", color="0.6", label="right"
        )
        for kind, some in known[~right].groupby("kind"):
            ax.plot(some["time"], some["expected_time"], "o", label=str(kind))
        ax.legend()
        return ax


def audit_times(
    df: Any,
    *,
    subject: str,
    time: str,
    slice: str | None = None,
    time_error: float | None = None,
    time_unit: str | None = None,
    variables: Names = None,
    wrong: float = 0.05,
    random_state: int | np.random.Generator | None = None,
    progress: Callback | bool | None = None,
) -> TimesAudit:
    """Find time stamps that are wrong: single ones, swapped pairs, blocks off by a constant, subjects whose stamps run backwards.

    Each stamp is right within its error with probability 1 − `wrong`, or carries no information. A linear SDE is fitted robustly to the stamps
    as given; under it the true times are sampled, and the fit is repeated without the stamps that are probably wrong. Only stamps that
    are off by more than the process moves in between can be found: an error of less than a gap rarely is.

    Subjects are assumed to be independent. Where they have times in common that is tested, and what they share at a time (plates, common shocks) is
    allowed for: rows are then compared with the others of each time, and that these stand for that time is assumed.

    Parameters
    ----------
    df : DataFrame
        One row per observation (pandas, polars, anything narwhals reads); not modified.
    subject : str
        Column that says whose observation it is.
    time : str
        Column with the stamps, numbers or dates; empty where there is none.
    slice : str, optional
        Column with a label shared by the subjects: a stamp is then that of a slice.
    time_error : float, optional
        Standard deviation of stamps that are right (None: exact).
    time_unit : str, optional
        Unit of dates (days).
    variables : str or sequence of str, optional
        Numeric columns to judge by; if left out, all that change within subjects and have no other role.
    wrong : float
        Share of stamps that are expected to be wrong.
    random_state : int, Generator or None
        Seeds the sampler.
    progress : callable, bool or None
        Called with what is being done; True shows a bar.

    Examples
    --------
    >>> import numpy as np, pandas as pd, retrace_sde as rt
    >>> X = rt.simulate.random_irreversible_sde(4, random_state=0).simulate(12, 10, 0.1, random_state=1)
    >>> table = pd.DataFrame(X.reshape(120, 4), columns=list("abcd")).assign(who=np.repeat(np.arange(12), 10), day=np.tile(np.arange(10.0), 12))
    >>> table.loc[23, "day"] = 8.5  # was 3
    >>> found = rt.audit_times(table, subject="who", time="day", random_state=0)
    >>> found.suspects["row"].tolist()
    [23]
    """
    if not 0 < wrong < 0.5:
        raise ValueError(f"wrong must be a share between 0 and 0.5: how many stamps are expected to be wrong; got {wrong!r}.")  # fmt: skip
    panel = Panel.from_frame(
        df, subject=subject, slice=slice, time=time, time_error=time_error, time_unit=time_unit, variables=variables
    )  # fmt: skip
    stamps = np.asarray(panel.times, dtype=float) if panel.times is not None else np.zeros(0)
    lengths = Lengths.of(panel.values, panel.lengths)
    if np.isfinite(stamps).sum() < 3 or int(lengths.steps.total) < LEAST_OBSERVATIONS:
        raise ValueError(TOO_FEW_STAMPS)
    rng = np.random.default_rng(random_state)
    with reporting(progress):
        report("fitting")
        values = np.asarray(panel.values, dtype=float)
        stamped = Table(values, stamps, lengths.each, time_error or 0.0)
        found, unit, dependence = stamped.judged(rng, wrong=wrong)
    rows = [_described(each, unit, panel, j) for j, each in enumerate(found)]
    table = _dated(pd.concat(rows, ignore_index=True), df, time, time_unit)
    dated = pd.api.types.is_datetime64_any_dtype(table["time"])
    counted = f" {time_unit or 'days'}" if dated else ""
    findings = _findings(table, found, panel, unit, counted, dependence)
    return TimesAudit(table, tuple(findings), unit, dependence)


def _described(found: Sequence, unit: float, panel: Panel, j: int) -> pd.DataFrame:
    """One row for each stamp of a sequence."""
    T = len(found.stamps)
    low, high = found.interval(0.95)
    given, expected = found.stamps * unit, found.expected * unit
    wrong = np.ones(T) if found.reversed else found.wrong
    kind = np.where(np.isnan(given), "missing", np.where(wrong > 0.5, "wrong", "right")).astype(
        object
    )
    kind[found.shifted & (wrong > 0.5)] = "shifted"
    partner = np.full(T, -1)
    if found.reversed:
        kind[~np.isnan(given)] = "reversed"
    else:
        partner = _partners(found, kind)
        kind[partner >= 0] = "swapped"
    whose = {"slice": list(panel.slices)} if panel.slices is not None else {"subject": [panel.ids[j]] * T}  # fmt: skip
    row = np.full(T, -1) if panel.slices is not None or panel.rows is None else panel.rows[j, :T]
    beside = np.where(partner >= 0, row[partner] if panel.slices is None else partner, -1)
    columns = {"row": row, "time": given, "probability_wrong": wrong, "expected_time": expected,
               "low": low * unit, "high": high * unit, "kind": kind, "partner": beside}  # fmt: skip
    return pd.DataFrame({**whose, **columns})


def _partners(found: Sequence, kind: Any) -> Any:
    """For each stamp that is wrong the one with which it was swapped: either is expected at the other's stamp; -1: none."""
    partner = np.full(len(kind), -1)
    suspects = np.flatnonzero(kind == "wrong")
    for a in suspects:
        for b in suspects[suspects > a]:
            gap = np.abs([found.expected[a] - found.stamps[b], found.expected[b] - found.stamps[a]])
            if partner[a] < 0 and partner[b] < 0 and np.all(gap <= 1 + 2 * found.error[[a, b]]):
                partner[a], partner[b] = b, a
    return partner


def _findings(
    table: pd.DataFrame,
    found: list[Sequence],
    panel: Panel,
    unit: float,
    counted: str,
    dependence: Dependence,
) -> list[str]:
    """What was found, in sentences, the answer first; `counted`: the unit of differences between dates."""
    when = _way_of_writing(table["time"])
    stamps = int((table["kind"] != "missing").sum())
    wrong = table[table["probability_wrong"] > 0.5]
    whose = "slice" if panel.slices is not None else "subject"
    said = [f"{len(wrong)} of {stamps} stamps are more likely wrong than right."]
    single = wrong[wrong["kind"] == "wrong"]
    for _, each in single.sort_values("probability_wrong", ascending=False).head(5).iterrows():
        about, low, high = (when(each[name], 4) for name in ("expected_time", "low", "high"))
        said.append(
            f"{whose} {each[whose]!r}: {when(each['time'], 6)} should be about {about} ({low} to {high}); "
            f"wrong with probability {each['probability_wrong']:.2f}."
        )
    if len(single) > 5:
        said.append(f"{len(single) - 5} more single stamps are wrong: see the table.")
    swapped = wrong[(wrong["kind"] == "swapped")]
    if len(swapped):
        said.append(f"Pairs of stamps that seem to be swapped: {len(swapped) // 2} ({whose} {shown(swapped[whose].unique().tolist())}).")  # fmt: skip
    for j, each in enumerate(found):
        if each.shifted.any():
            who = "slices" if panel.slices is not None else f"subject {panel.ids[j]!r}"
            said.append(f"{who}: {int(each.shifted.sum())} stamps are off by the same, {-each.shift * unit:+.4g}{counted}, like those of a clock that was reset.")  # fmt: skip
    back = [panel.ids[j] for j, each in enumerate(found) if each.reversed]
    if back:
        said.append(f"The stamps of subject {shown(back)} run backwards.")
    return [*said, _of_dependence(dependence, whose)]


def _of_dependence(found: Dependence, whose: str) -> str:
    """Whether subjects share something at a time, and what stamps are judged by then."""
    if found.kind is DependenceKind.NOT_TESTED:
        return f"{found.verdict} It is assumed."
    if found.kind is DependenceKind.INDEPENDENT:
        return found.verdict
    if found.kind is DependenceKind.CORRELATED:
        said = f"Some subjects move together, others against them (LM test, p {p_text(found.correlation_p_value)})"
        return f"{said}: stamps are judged as if they were independent."
    said = f"Subjects share something at each time: plates, common shocks or a course (CD test, p {p_text(found.p_value)})."
    if not found.removed:
        return f"{said} Stamps are judged as if they were independent, and too many may be called wrong: {found.why}."
    if whose == "slice":
        return f"{said} Slices are judged by deviations from their means, which are free of it."
    return f"{said} Rows are judged by deviations from the mean of each time, which are free of it; that most rows of a time belong there is assumed."


def _way_of_writing(times: pd.Series) -> Callable[[Any, int], str]:
    """How times are written in sentences: as numbers with so many digits, as days, or as days with the clock."""
    if not pd.api.types.is_datetime64_any_dtype(times):
        return lambda time, digits: f"{time:.{digits}g}"
    given = times.dropna()
    form = "%Y-%m-%d" if (given == given.dt.normalize()).all() else "%Y-%m-%d %H:%M"
    return lambda time, digits: f"{time:{form}}"


def _dated(table: pd.DataFrame, df: Any, time: str, unit: str | None) -> pd.DataFrame:
    """Times as dates, where dates were given."""
    column = as_frame(df)[time]
    if is_numeric(column) or "duration" in str(column.dtype).lower():
        return table
    stamps, _ = dates(pd.Series(column.to_list(), dtype=object), time)
    first = stamps.dropna().min()

    def as_date(values: Array) -> Any:
        seconds = np.asarray(values, dtype=float) * TIME_UNITS[unit or "days"]
        return first.tz_localize(None) + pd.to_timedelta(np.round(seconds), unit="s")

    names = ("time", "expected_time", "low", "high")
    return table.assign(**{name: as_date(table[name]) for name in names})
