"""One line from a table to its order, its direction of time and its SDE."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from retrace_sde.audit.hidden import learned_pairs
from retrace_sde.diagnosis import known_times, vague_times
from retrace_sde.evidence.selection.drift import DriftChoice, drift_by_evidence
from retrace_sde.fit.statespace.parameters import Noise
from retrace_sde.io.answers import (
    anchored,
    certainties,
    forecast_columns,
    parameters,
    positions,
    present,
    table_notes,
    times,
    to_rows,
)
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import shown
from retrace_sde.io.deferred import pd
from retrace_sde.io.tables import Names, as_frame
from retrace_sde.metrics import kendall_tau
from retrace_sde.orders.prior import compiled
from retrace_sde.panel.blocks import Data, evenly
from retrace_sde.panel.inputs import MissingInputs
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.labels import (
    by_labels,
    by_marks,
    by_own_segments,
    by_segment_column,
    marks_of,
    with_known_orders,
)
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import PER_VISIT, Panel
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.paper.algorithm1 import ScoreOrder
from retrace_sde.process.drift import Affine, Drift
from retrace_sde.progress import Callback, reporting
from retrace_sde.result import html_row
from retrace_sde.retrace import Evidence, ReTrace
from retrace_sde.search.enumerated import exponent_of
from retrace_sde.search.stamps.judge import typical_gap
from retrace_sde.show.report import FORECAST_STEPS, write_report

MOST_PROBABILITIES = 50_000_000
"""Entries (n T²) up to which position probabilities are computed; beyond, they are left empty."""

PREVIEW_ROWS = 8
"""Rows that a notebook shows of the ordered table."""


SUSPECT_COLUMNS = [
    "row", "subject", "slice", "kind", "variable", "value", "expected", "sd", "probability", "missing", "repair",
]  # fmt: skip
"""Of the table of values that are probably wrong."""


class Options(TypedDict, total=False):
    """What `recover` takes besides columns: the settings of `ReTrace`, and `group`, `order_known`, `bootstrap` and the drift "auto"."""

    dt: float
    permutation: Literal["shared", "independent"]
    order: Literal["likelihood", "score"] | ScoreOrder
    estimator: Literal["auto", "mle", "ols", "exact", "em", "mcem"]
    drift: Literal["auto", "linear", "affine"] | Drift
    observation_noise: Noise | Literal["auto"] | None
    spacing: Literal["regular", "estimate"]
    missing_covariates: MissingInputs
    subjects: Literal["auto", "alike", "levels", "rates"]
    common_shocks: Literal["auto"] | bool
    outliers: Literal["auto", "flag", "keep"]
    evidence: Sequence[Evidence]
    max_iter: int
    alpha: float
    random_state: int | np.random.Generator | None
    n_jobs: int | None
    verbose: bool
    group: str | None
    order_known: str | None
    bootstrap: int | None


@dataclass(frozen=True, eq=False)
class Recovery:
    """What `recover` found: the fitted `model`, the `panel` behind the table, and the table itself.

    Attributes
    ----------
    model : ReTrace
        The fit.
    panel : Panel
        What it was fitted to.
    table : DataFrame
        As given.
    subject : str
        Its column of subjects.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    >>> found = rt.recover(table, subject="patient", slice="slice", dt=4.0, random_state=0, subjects="alike", observation_noise=None)
    >>> list(found.ordered.columns[-4:])
    ['time', 'position_probability', 'position_reversed', 'direction']
    >>> sorted(found.columns())  # the direction of these data is open: positions in both
    ['position', 'position_probability', 'position_reversed', 'time']
    >>> found.report("icu.html").name
    'icu.html'
    >>> "direction" in found.summary().lower()
    True
    """

    model: ReTrace
    panel: Panel
    table: Any
    subject: str

    @cached_property
    def ordered(self) -> Any:
        """The table, same kind of frame, subject by subject in time order, with a few columns more.

        `position` counts from 0, the earliest, `time` is in units of dt, and `position_probability` is the
        posterior probability of that position (where steps are equal and subjects alike the uncertainty of the parameters is
        included, elsewhere it is given the fitted parameters; where the direction of a shared order is open it
        counts for half, so that most are near .5; empty where there are too many to compute). `direction` is "identified", "known" (from what was given) or "open"; where it
        is open, `position_reversed` is the position if time runs the other way; where times may be wrong, `time_wrong_probability` says how
        likely each is. A row without any value has no
        position. Where the table already has such a column the new one is called `retrace_position` and so on.
        """
        frame = as_frame(self.table)
        columns = self.columns()
        key = columns["position"]
        who = pd.factorize(frame[self.subject].to_numpy())[0]
        sequence = np.lexsort((np.nan_to_num(key), np.isnan(key), who))
        for name, values in columns.items():
            whole = name.startswith("position") and name != "position_probability"
            kept = values.astype(np.int64) if whole and not np.isnan(key).any() else values
            new = name if name not in frame.columns else f"retrace_{name}"
            series = nw.new_series(new, kept, backend=frame.implementation)
            if frame.implementation.is_pandas_like():
                native = series.to_native()
                native.index = frame.to_native().index
                series = nw.from_native(native, series_only=True)
            frame = frame.with_columns(series)
        name = "direction" if "direction" not in frame.columns else "retrace_direction"
        frame = frame.with_columns(nw.lit(self.direction).alias(name))
        return frame[sequence.tolist()].to_native()

    @property
    def direction(self) -> Literal["identified", "known", "open"]:
        """The outcome of the direction test in a word."""
        return self.model.result_.direction_found

    def forecast(self, steps: int, *, gaps: Any | None = None, level: float = 0.95) -> Any:
        """The next observations of each subject as a table, same kind of frame: subject, step, time, variable, mean, low, high.

        `time` goes on from the column `time` of `ordered`; intervals hold with probability `level`, and are widened where the fit's past
        predictions were too sure. Where the direction is open a warning says so: this is a forecast from the order shown.

        Parameters
        ----------
        steps : int
            Observations ahead, dt apart, under covariates as they were last.
        gaps : array, optional
            As many times between them, where they are not dt apart.
        level : float
            Probability that the intervals hold.

        Examples
        --------
        >>> import warnings, retrace_sde as rt
        >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
        >>> found = rt.recover(table, subject="patient", slice="slice", dt=4.0, random_state=0, subjects="alike", observation_noise=None)
        >>> with warnings.catch_warnings(action="ignore"):  # the direction is open
        ...     ahead = found.forecast(2)
        >>> list(ahead.columns), len(ahead) == 120 * 2 * 5
        (['patient', 'step', 'time', 'variable', 'mean', 'low', 'high'], True)
        """
        ahead = self.model.forecast(None, steps, gaps=gaps, level=level)
        panel, known = self.panel, self.model.result_.times
        raw = times(known, positions(self.model.order_, len(panel.ids)))
        last = np.where(present(panel), raw, -np.inf).argmax(axis=1)[:, None]
        moved = np.take_along_axis(anchored(raw, panel) - raw, last, axis=1)
        columns = forecast_columns(
            replace(ahead, times=ahead.times + moved), panel.ids, panel.names, self.subject
        )
        return nw.from_dict(columns, backend=as_frame(self.table).implementation).to_native()

    def columns(self) -> dict[str, Array]:
        """Position, time and position probability of each row of the table, NaN for rows without a value.

        Where the direction is open also the position in the reversed order; where times may be wrong (`Knowledge(wrong=…)`), the
        probability that each is.
        """
        result, panel = self.model.result_, self.panel
        n, count = len(panel.ids), len(as_frame(self.table))
        position = positions(result.order, n)
        found: dict[str, NDArray[Any]] = {
            "position": position.astype(float),
            "time": anchored(times(result.times, position), panel),
            "position_probability": np.full(position.shape, np.nan),
        }
        if self._probabilities is not None:
            found["position_probability"] = certainties(self._probabilities, position)
        if result.wrong_stamps is not None:
            found["time_wrong_probability"] = np.broadcast_to(result.wrong_stamps, position.shape)
        if result.alternative is not None:
            found["position_reversed"] = positions(result.alternative.order, n).astype(float)
        return {name: to_rows(each, panel, count, np.nan) for name, each in found.items()}

    @cached_property
    def _probabilities(self) -> NDArray[np.float32] | None:
        n, T, _ = self.panel.values.shape
        if not hasattr(self.model, "posterior_"):
            if (1 if self.model.result_.shared_order else n) * T * T > MOST_PROBABILITIES:
                return None
            self.model.sample_orders()
        return self.model.position_probabilities_

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that was estimated, in the table's units, as plain numbers and sentences."""
        return parameters(self.model.result_, self.panel)

    @property
    def suspects(self) -> pd.DataFrame:
        """Values that are probably wrong, by the table's own labels; empty where there are none.

        `row` counts the table's rows from 1. `expected` is what both neighbours in time expect, `sd` its standard deviation,
        `probability` that the entry is wrong, and `missing` whether the fit treated it as missing.
        """
        panel, rows = self.panel, []
        for each in self.model.result_.suspects:
            j, t = each.trajectory, each.slice
            at = None if j is None or t is None or panel.rows is None else int(panel.rows[j, t])
            label = None if t is None or panel.slices is None else panel.slices[t]
            known = {
                "row": None if at is None or at < 0 else at + 1,
                "subject": None if j is None else panel.ids[j],
                "slice": label,
            }
            rows.append({**known, **{name: getattr(each, name) for name in SUSPECT_COLUMNS[3:]}})
        return pd.DataFrame(rows, columns=SUSPECT_COLUMNS)

    def summary(self) -> str:
        """The result as text."""
        notes = [f"Table: {note}" for note in table_notes(self.panel)]
        return "\n".join([self.model.summary(), *notes])

    def __repr__(self) -> str:
        return f"Recovery({self.panel!r}, direction {self.direction}; print it, or see .ordered, .report(path))"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The result and the first rows of the ordered table; every name is escaped."""
        head = as_frame(self.ordered).head(PREVIEW_ROWS)
        cells = [[_short(cell) for cell in row] for row in head.rows()]
        rows = "".join(html_row(row) for row in cells)
        body = f"<caption>The table in time order, first rows</caption>{html_row(head.columns, 'th')}{rows}"
        return f"{self.model.result_._repr_html_()}<table>{body}</table>"

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        share: bool = False,
        steps: int = FORECAST_STEPS,
    ) -> Path:
        """Write the result as one self-contained HTML page; returns its path.

        Parameters
        ----------
        path : str or Path
            Where to.
        title : str, optional
            Of the page.
        share : bool
            No single subject's values or id.
        steps : int
            Observations ahead that are forecast; 0: none.
        """
        _ = self._probabilities  # sampled first, so that the page says how sure each position is
        return write_report(self.model, self.panel, path, title=title, share=share, steps=steps)


def _short(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def recover(
    df: Any,
    *,
    subject: str,
    slice: str | None = None,
    time: str | None = None,
    time_error: float | None = None,
    time_unit: str | None = None,
    variables: Names = None,
    covariates: Names = None,
    knowledge: Knowledge | None = None,
    progress: Callback | bool | None = None,
    **options: Unpack[Options],
) -> Recovery:
    """Put a table with lost or partial time in order, and fit the SDE behind it.

    Random intercepts of subjects and measurement noise (`observation_noise="auto"` here) are chosen by evidence unless
    `options` say otherwise; the drift is affine, and the summary compares it with others. Parameters are in the table's units.
    Columns that only count (a visit number, an age) are left out and named: they would decide the direction by rounding.
    The model is fitted once; a second, quick fit is made where times are known of some slices only.

    Parameters
    ----------
    df : DataFrame
        One row per observation (pandas, polars, anything narwhals reads); not modified.
    subject : str
        Column that says whose observation it is.
    slice : str, optional
        Column with a label shared by the subjects: one unknown order of the slices for all (`permutation="shared"`). Without
        it each subject's rows have their own ("independent").
    time : str, optional
        Column with the times that are known, empty where they are not.
    time_error : float, optional
        Their standard deviation (None: exact).
    time_unit : str, optional
        Unit of dates (days).
    variables : str or sequence of str, optional
        Numeric columns to analyse; if left out, all that change within subjects and have no other role.
    covariates : str or sequence of str, optional
        Inputs, which travel with their observation.
    knowledge : Knowledge, optional
        With `slice` it names slices by their labels, and what is an array elsewhere is {label: value}; without it `first` and
        `last` may name a column that marks each subject's first or last row. `segments` may name a column with the segment of each slice, or row,
        whose slices are in order as they are stored.
    progress : callable, bool or None
        Called with what is being done; True shows a bar.
    **options
        Of `ReTrace` (`retrace_sde.recovery.Options` lists them); `group="litter"`, a column with the group (litter, centre) of each subject: subjects of one group may be
        alike in any way; `order_known="dated"`, a column that is 1 in all rows of subjects that stand in order, or holds the ranks of
        rows where they are known: the others are ordered by what these teach; and `bootstrap=200`: standard errors by so many bootstrap draws of subjects, or groups.

    Returns
    -------
    Recovery
        With `.ordered`, the table in time order, `.forecast(steps)`, `.model`, `.summary()` and `.report(path)`.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    >>> found = rt.recover(table, subject="patient", slice="slice", dt=4.0, random_state=0, subjects="alike", observation_noise=None)
    >>> labels = [found.panel.slices[k] for k in found.model.order_]
    >>> labels == list(truth)  # the twelve slices stand as they were
    True
    """
    options.setdefault("observation_noise", "auto")
    asked = options.setdefault("permutation", "shared" if slice is not None else "independent")
    _check_asked(asked, slice=slice, time=time, knowledge=knowledge)
    marks, ranks = marks_of(knowledge) if slice is None else [], options.pop("order_known", None)
    if ranks is not None and slice is not None:
        raise ValueError("order_known= gives subjects' own orders: leave slice= out.")
    hidden = [*marks, *([] if ranks is None else [ranks])]
    if knowledge is not None and isinstance(knowledge.segments, str):
        hidden.append(knowledge.segments)
        if slice is not None:
            knowledge = by_segment_column(knowledge, as_frame(df), slice)
    panel = Panel.from_frame(
        _without(df, [name for name in hidden if name not in (subject, time)]),
        subject=subject,
        slice=slice,
        time=time,
        time_error=time_error,
        time_unit=time_unit,
        variables=variables,
        covariates=covariates,
        group=options.pop("group", None),
    )
    if knowledge is not None:
        knowledge = _in_places(knowledge, df, panel, marks)
    if ranks is not None:
        knowledge = with_known_orders(knowledge, ranks, as_frame(df), panel)
    with reporting(progress):
        found = recover_panel(panel, df, subject=subject, knowledge=knowledge, **options)
        if ranks is not None and knowledge is not None:
            _calibrate(found, panel, np.asarray(knowledge.blocks, dtype=float))
        return found


MIN_KNOWN, MAX_KNOWN = 20, 400
"""Subjects of known order from which pair probabilities are calibrated, and how many of them are used."""


def _calibrate(found: Recovery, panel: Panel, ranks: Array) -> None:
    """Temper pair probabilities by those of subjects of known order, each half judged by a fit to the other half."""
    inside = Lengths.of(panel.values, panel.lengths).mask
    ordered = np.sort(np.where(inside, ranks, np.inf), axis=1)
    with np.errstate(invalid="ignore"):
        ties = ((np.diff(ordered, axis=1) == 0) & np.isfinite(ordered[:, 1:])).any(axis=1)
    several = inside.sum(axis=1) > 1
    known = np.flatnonzero(~np.isnan(np.where(inside, ranks, 0)).any(axis=1) & ~ties & several)
    if len(known) < MIN_KNOWN:
        return
    known = known[evenly(len(known), min(len(known), MAX_KNOWN))]
    model, ranks, every = found.model, ranks[known], np.arange(len(known))
    with warnings.catch_warnings(action="ignore"):
        settings = model.get_params(deep=False)
        before = learned_pairs(panel._of(known), ranks, (every[::2], every[1::2]), settings)
    if before is None:
        return
    earlier = ranks[:, :, None] < ranks[:, None, :]
    exponent = exponent_of(before[earlier & ~np.isnan(before)])
    note = (
        f"Log-odds of pairs (`precedence`) are multiplied by {exponent:.2f}, found on {len(known)} subjects of known order, each half of them judged by a fit to "
        "the other: "
        + ("the model is too sure by itself." if exponent < 1 else "the model is not too sure.")
    )
    result = model.result_
    model.result_ = replace(result, pair_exponent=exponent, notes=(*result.notes, note))


def _check_asked(
    asked: str, *, slice: str | None, time: str | None, knowledge: Knowledge | None
) -> None:
    """The options do not contradict each other."""
    if slice is None and asked == "shared":
        raise ValueError(
            "permutation='shared' needs slice=, the column with the label that the subjects share."
        )
    if slice is not None and asked == "independent":
        raise ValueError(
            "slice= means one order for all; for permutation='independent' leave slice= out."
        )
    if knowledge is not None and knowledge.timestamps is not None and time is not None:
        raise ValueError("times are given twice, by time= and by knowledge: leave one of them out.")
    if knowledge is not None and knowledge.wrong is not None and knowledge.timestamps is None and time is None:  # fmt: skip
        raise ValueError("wrong times are expected (--wrong), but no times are given: name their column (--time).")  # fmt: skip


def _in_places(knowledge: Knowledge, df: Any, panel: Panel, marks: list[str]) -> Knowledge:
    """Knowledge that names labels of slices, or marks rows, as the panel's places."""
    if panel.slices is not None:
        known = by_labels(knowledge, panel.slices)
        n, T = len(panel.ids), len(panel.slices)
        # Contradictions are told by the labels, before anything is computed.
        compiled(known, n, T, shared=True, labels=panel.slices)
        return known
    if isinstance(knowledge.segments, str):
        knowledge = by_own_segments(knowledge, as_frame(df), panel)
    return by_marks(knowledge, as_frame(df), panel) if marks else knowledge


def _without(df: Any, names: list[str]) -> Any:
    """The table without columns that are no data: marks."""
    if not names:
        return df
    frame = as_frame(df)
    return frame.drop([name for name in names if name in frame.columns]).to_native()


def recover_panel(
    panel: Panel,
    df: Any,
    *,
    subject: str,
    drift: str | Drift = "auto",
    knowledge: Knowledge | None = None,
    bootstrap: int | None = None,
    **options: Any,
) -> Recovery:
    """The same from a panel and the table that it came from; times of the panel join the knowledge."""
    by_evidence = isinstance(drift, str) and drift == "auto"
    options["drift"] = "affine" if by_evidence else drift
    if len(panel.ids) < 2:
        raise ValueError(
            f"the table has one subject, {panel.ids[0]!r}, but order and direction are estimated from what several have in "
            f"common: is {subject!r} the right column? To fit a single series, pass ReTrace an array."
        )
    if _has_times(panel):
        if knowledge is None or knowledge.wrong is None:
            _check_ties(panel)
        knowledge = replace(
            knowledge or Knowledge(), timestamps=panel.times, timestamp_error=panel.time_error
        )
    vague = vague_times(panel)
    if vague is not None:
        warnings.warn(vague, ReTraceWarning, stacklevel=3)
    if not _has_times(panel) and panel.dt is None and "dt" not in options:
        panel = replace(panel, notes=(*panel.notes, PER_VISIT))
    bare = _fit_without_times(panel, knowledge, options)
    if _has_times(panel) and "dt" not in options and panel.dt is None:
        options["dt"], note = _step(panel, knowledge, options, bare)
        panel = replace(panel, notes=(*panel.notes, note))
    model = ReTrace(**options).fit(panel, knowledge=knowledge)
    panel = replace(panel, notes=(*panel.notes, *_times_used(panel, model, bare)))
    kept = panel.without(model.result_.left_out)
    choice = _drift_choice(model, kept) if by_evidence else None
    model.result_ = replace(model.result_, drift_choice=choice)
    if bootstrap is not None:
        model.bootstrap_errors(draws=bootstrap, adopt=True)
    return Recovery(model, kept, df, subject)


def _drift_choice(model: ReTrace, panel: Panel) -> DriftChoice | None:
    """The comparison of drifts, where data are complete, without noise and without common shocks; None elsewhere."""
    fitted, outcome, _, places, common = model._memory
    if fitted.states_hidden or fitted.gaps_estimated or common is not None:
        return None
    if not isinstance(fitted.drift, Affine) or outcome.estimator == "mcem":
        return None
    raw = places.panel(panel)
    return drift_by_evidence(fitted.plain(), Data(raw.values, counts=raw.lengths), outcome.found)


def _check_ties(panel: Panel) -> None:
    """Where every time is known exactly, no two observations of a subject share one: gaps are what is fitted."""
    if panel.time_error is not None or not _complete(panel):
        return
    stamps = np.atleast_2d(np.asarray(panel.times))
    ordered = np.sort(stamps, axis=1)
    tied = np.diff(ordered, axis=1) == 0
    if not tied.any():
        return
    first = ordered[:, :-1][tied][0]
    if panel.slices is not None:
        names = [panel.slices[k] for k in np.flatnonzero(stamps[0] == first)]
        what = f"slices {shown(names)} have the same time, {first:g}"
    else:
        people = [panel.ids[j] for j in np.flatnonzero(tied.any(axis=1))]
        what = f"subject {shown(people)} has more than one row at the same time (the first at {first:g})"
    raise ValueError(
        f"{what}, so there is no gap between them, and the gaps of the others could not be used: keep one row for each time, "
        "or average them."
    )


def _has_times(panel: Panel) -> bool:
    """The times of some observations are known."""
    return bool(known_times(panel).any())


def _step(
    panel: Panel, knowledge: Knowledge | None, options: dict[str, Any], bare: ReTrace | None
) -> tuple[float, str]:
    """dt from the times that are known, and a note that says so, since dt is the unit of A and H."""
    may_be_wrong = knowledge is not None and knowledge.wrong is not None
    step = _typical_step(panel) if may_be_wrong else step_of_times(panel)
    if step is None:
        few = "too few times are known to estimate the mean time between neighbours"
        return 1.0, f"the step dt is 1: {few}; give dt, --dt"
    if panel.time_error is None and not _complete(panel) and not may_be_wrong:
        order = None if bare is None else _agreeing(bare.order_, np.asarray(panel.times))
        if order is None:
            order = _quick(panel, knowledge, {**options, "dt": step}).order_
        step = _step_along(order, panel) or step
    which = "median" if may_be_wrong else "mean"
    mean = f"{step:.4g}, the {which} time between neighbours, estimated from the known times"
    return step, f"the step dt is {mean}"


MOST_COMPARED = 20_000
"""Observations up to which the slices are also ordered without the known times."""


def _fit_without_times(
    panel: Panel, knowledge: Knowledge | None, options: dict[str, Any]
) -> ReTrace | None:
    """A quick fit without times that are known of some slices only; None where there is nothing to compare.

    It says what the times changed and, where its order agrees with them, gives the mean step. Orders of single subjects are
    never the same with and without times, so it is made for shared orders only.
    """
    exact = panel.time_error is None and _has_times(panel) and _complete(panel)
    n, T, _ = panel.values.shape
    if not _has_times(panel) or exact or panel.slices is None or n * T > MOST_COMPARED:
        return None
    quick = {**options, "observation_noise": None, "subjects": "alike", "spacing": "regular"}
    if "dt" not in options and panel.dt is None:
        quick["dt"] = step_of_times(panel) or 1.0
    rest = replace(knowledge or Knowledge(), timestamps=None, timestamp_error=None, wrong=None)
    with suppress(ValueError):
        return _quick(replace(panel, times=None, time_error=None), rest, quick)
    return None


def _quick(panel: Panel, knowledge: Knowledge | None, options: dict[str, Any]) -> ReTrace:
    """A fit that is looked at for its order only; what there is to be said, the fit that counts will say."""
    estimator = "em" if np.isnan(panel.values).any() else "mle"
    with warnings.catch_warnings(action="ignore"):
        return ReTrace(**{**options, "estimator": estimator}).fit(panel, knowledge=knowledge)


def _times_used(panel: Panel, model: ReTrace, bare: ReTrace | None) -> list[str]:
    """That times known in part were used, and what they changed."""
    known = known_times(panel)
    if not known.any() or (panel.time_error is None and known.all()):
        return []
    what = "observations" if panel.slices is None else "slices"
    said = f"the times of {known.sum()} of {known.size} {what} are used"
    return [said if bare is None else f"{said}; {_beside(model, bare)}"]


def _beside(model: ReTrace, bare: ReTrace) -> str:
    """The shared order found beside that of a fit without times, in words."""
    given = "" if bare.direction_.identified else ", but its direction would be open"
    if np.array_equal(model.order_, bare.order_):
        return f"without them the order would be the same{given}"
    if np.array_equal(model.order_, bare.order_[::-1]):
        return f"without them the order would be reversed{given}"
    moved = int((model.order_ != bare.order_).sum())
    tau = kendall_tau(model.order_, bare.order_)
    return f"without them {moved} of {len(model.order_)} slices would have another position (Kendall's τ {tau:.2g})"


def step_of_times(panel: Panel) -> float | None:
    """The mean time between neighbours, from the times that are known.

    Exact and complete: the span over the number of steps. Else by variance, which needs no order: times on
    a grid of T have `Var = Δt² (T² − 1)/12`, plus that of their error, if those known are like the others. None: too
    few are known.
    """
    stamps = np.atleast_2d(np.asarray(panel.times))
    T = Lengths.of(stamps, panel.lengths).each
    known = ~np.isnan(stamps)
    enough = (known.sum(axis=1) >= 2) & (T >= 2)
    if not enough.any():
        return None
    stamps, T, known = stamps[enough], T[enough], known[enough]
    if panel.time_error is None and _complete(panel):
        return float(_spans(stamps).sum() / (T - 1).sum()) or None
    variance = np.nanvar(stamps, axis=1, ddof=1) - (panel.time_error or 0.0) ** 2
    # With a divisor of m − 1, times drawn from the grid have variance Δt² T (T + 1)/12.
    square = 12 * variance.sum() / (T * (T + 1)).sum()
    return float(np.sqrt(square)) if square > 0 else None


def _typical_step(panel: Panel) -> float | None:
    """The median time between neighbours, which a few wrong times hardly change; None: too few are known."""
    stamps = np.atleast_2d(np.asarray(panel.times, dtype=float))
    gaps = np.concatenate([np.diff(np.sort(each[~np.isnan(each)])) for each in stamps])
    gaps = gaps[gaps > 0]
    return typical_gap(stamps, gaps, panel.time_error or 0.0) if len(gaps) else None


def _spans(values: Array) -> Array:
    """From the least to the largest of each row."""
    return np.asarray(np.nanmax(values, axis=1) - np.nanmin(values, axis=1))


def _complete(panel: Panel) -> bool:
    """Every observation, or slice, has a time."""
    return bool(known_times(panel).all())


def _agreeing(order: Indices, stamps: Array) -> Indices | None:
    """A shared order, or its reverse, in which the known times increase; None where they do in neither."""
    known = stamps[order][~np.isnan(stamps[order])]
    return order if (np.diff(known) >= 0).all() or (np.diff(known) <= 0).all() else None


def _step_along(order: Indices, panel: Panel) -> float | None:
    """The mean step between known times along an order; None where fewer than two of a subject are known."""
    stamps = np.atleast_2d(np.asarray(panel.times))
    place = np.where(np.isnan(stamps), np.nan, positions(order, len(stamps)))
    some = (~np.isnan(stamps)).sum(axis=1) >= 2
    if not some.any():
        return None
    span, steps = (_spans(each[some]).sum() for each in (stamps, place))
    return float(span / steps) if span > 0 and steps > 0 else None
