"""The arrow of time of data that are in order: which way does time run, and can these data tell?"""

from __future__ import annotations

import re
import warnings
from dataclasses import fields, replace
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from retrace_sde.estimator.checks import in_words
from retrace_sde.estimator.entry import Entry, entered
from retrace_sde.estimator.fitting import PanelFit, fit_entry
from retrace_sde.estimator.in_order import InOrder, in_order, split
from retrace_sde.estimator.request import Request
from retrace_sde.evidence.candidates.candidate import CandidateKind
from retrace_sde.evidence.closed_form.reversibility import MIN_GROUPS, irreversibility_p
from retrace_sde.evidence.direction.arrow import Arrow, ArrowTest, Blocks, EntropyProduction
from retrace_sde.evidence.direction.verdict import (
    MIN_TRAJECTORIES,
    DirectionTest,
    Reason,
    direction_test,
)
from retrace_sde.evidence.identifiability import (
    detailed_balance_p_value,
    entropy_bound,
    entropy_interval,
)
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.formats import door
from retrace_sde.io.tables import Names, as_frame, padded
from retrace_sde.panel.blocks import one_blas_thread, to_numpy, unmasked
from retrace_sde.panel.clock import Clock
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.parameters import checked
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.process.drift import parted
from retrace_sde.process.sde import LinearSDE
from retrace_sde.retrace import ReTrace

PSEUDOTIME = re.compile(
    r"pseudo[\W_]*time|(^|[\W_])dpt($|[\W_])|latent[\W_]*time|slingshot|palantir|monocle",
    re.IGNORECASE,
)
"""Names of columns that are computed from the values themselves."""

MIN_SORTED_STEPS = 4
"""Steps of every trajectory in which a variable must change in the same direction for the order to look sorted by it."""


class Trajectories(NamedTuple):
    """Trajectories as they were given: values (n, T, d), names, times (n, T) or None, lengths and groups."""

    values: Array
    names: tuple[str, ...]
    times: Array | None = None
    lengths: Indices | None = None
    groups: Any = None


@checked
def arrow_of_time(
    X: Any,
    *,
    subject: str | None = None,
    time: str | None = None,
    variables: Names = None,
    dt: float = 1.0,
    times: Any | None = None,
    groups: Any | None = None,
    aligned: str | None = None,
    alpha: float = 0.05,
    random_state: int | np.random.Generator | None = 0,
) -> ArrowTest:
    """Which way time runs along data that are in order: forwards, backwards, or open.

    The same tests as those of an order that `ReTrace` found: several models are fitted to the data and to their reverse, compared, and the
    direction is called only where those that explain the data agree and simulation excludes chance.
    Most stationary data have no direction that shows; the answer is then "open", and `advice` says what would help.

    Parameters
    ----------
    X : DataFrame, Panel, array (n, T, d), or one long series (T, d) or (T,)
        In time order, or with times. NaN where values are missing. One long series is split into blocks that lie apart, ten correlation times long.
    subject : str, optional
        Column of a table that says whose row it is; without it the table is one series.
    time : str, optional
        Column with the times; without it rows stand in time order. Times may be irregular, and each subject's own. A pseudotime is refused: it is computed
        from the values, so that its direction is that of whoever chose the root.
    variables : str or sequence of str, optional
        Columns to analyse; if left out, all numeric ones that vary and have no other role.
    dt : float
        Time between neighbouring observations, where no times are given.
    times : array (T,) or (n, T), optional
        Times of an array's observations.
    groups : sequence (n,) or str, optional
        Labels of groups of trajectories that may be alike in any way; of a table, the column that holds them.
    aligned : {"start", "end", "neither"}, optional
        At what subjects are aligned, selected or normalised; see `Knowledge`.
    alpha : float
        Level of the test.
    random_state : int, Generator or None
        Seeds the simulations.

    Returns
    -------
    ArrowTest
        A `DirectionTest` with `.direction` ("forwards", "backwards" or "open"), `.p_value`, `.verdict`, `.preferred` (the model it rests on),
        `.reversibility_p`, `.entropy_production`, `.assumptions` and `.advice`.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> rng = np.random.default_rng(0)
    >>> x = np.zeros((40, 30))
    >>> for t in range(29):  # relaxation from one state
    ...     x[:, t + 1] = 3 + 0.8 * (x[:, t] - 3) + 0.3 * rng.standard_normal(40)
    >>> print(rt.arrow_of_time(x[:, :, None]).direction)
    forwards
    >>> print(rt.arrow_of_time(x[:, ::-1, None]).direction)
    backwards

    One long stationary series of a linear process looks the same in reverse:

    >>> y = np.zeros(1500)
    >>> for t in range(1499):
    ...     y[t + 1] = 0.7 * y[t] + rng.standard_normal()
    >>> found = rt.arrow_of_time(y)
    >>> print(found.direction, found.blocks.number > 20)
    open True
    """
    given = _given(X, subject, time, variables, times, groups)
    given, blocks = _in_blocks(given)
    if len(given.values) < MIN_TRAJECTORIES:
        return _too_few(len(given.values), blocks, alpha)
    order = in_order(given.values, given.times, given.lengths, dt)
    panel = _panel(order, given.names)
    parameters = ReTrace(
        dt=order.dt,
        permutation="shared" if order.aligned else "independent",
        subjects="alike",
        alpha=alpha,
    ).get_params(deep=False)
    rng = np.random.default_rng(random_state)
    # Cautions are of a search for an order.
    with one_blas_thread(), warnings.catch_warnings(action="ignore", category=ReTraceWarning):
        request = Request.of(parameters)
        known = None if aligned is None else Knowledge(aligned=aligned)
        entry = entered(panel, None, known, given.groups, request)
        with in_words(entry.panel):
            fitted = fit_entry(_timed(entry, order), _with_order(request, entry, panel), rng)
    return _answer(entry, fitted, order, blocks, rng)


# -- what was given ----------------------------------------------------------------------------------------


def _given(
    X: Any, subject: str | None, time: str | None, variables: Names, times: Any, groups: Any
) -> Trajectories:
    """Trajectories from a table, a panel or an array."""
    if hasattr(X, "obs") and hasattr(X, "var_names"):
        raise ValueError(
            "an AnnData holds cells, and an order of cells by their own values (pseudotime) has the direction that its root was given: nothing "
            "in it can be tested. With cells or samples collected at known times, pass a table with one row for each subject and time."
        )
    if isinstance(X, Panel):
        _only_tables(subject, time, variables)
        return _of_panel(X, groups, times)
    if hasattr(X, "columns") or hasattr(X, "__dataframe__"):
        return _of_table(X, subject, time, variables, times, groups)
    _only_tables(subject, time, variables)
    return _of_array(X, times, groups)


def _only_tables(subject: str | None, time: str | None, variables: Names) -> None:
    if subject is not None or time is not None or variables is not None:
        raise ValueError("subject=, time= and variables= name columns of a table; for an array give times=.")  # fmt: skip


def _of_table(
    df: Any, subject: str | None, time: str | None, variables: Names, times: Any, groups: Any
) -> Trajectories:
    if times is not None:
        raise ValueError("times= is for arrays; of a table name the column: time='…'.")
    if groups is not None and not isinstance(groups, str):
        raise ValueError("groups of a table is the name of the column that holds them.")
    if time is not None and PSEUDOTIME.search(time):
        raise ValueError(
            f"{time!r} looks like a pseudotime, which is computed from the values themselves: rows sorted by it run from the root "
            "to the tips because somebody chose that root, and no test of the values can say more. Give the times of collection. If this "
            "column holds measured times, rename it."
        )
    if subject is None:
        frame = as_frame(df)
        subject = "series" if "series" not in frame.columns else "retrace_series"
        df = frame.with_columns(nw.lit(1).alias(subject)).to_native()
    panel = Panel.from_frame(df, subject=subject, time=time, variables=variables, group=groups)
    return _of_panel(panel, None, None)


def _of_panel(panel: Panel, groups: Any, times: Any) -> Trajectories:
    values = np.asarray(to_numpy(panel.values), dtype=float)
    n, T, _ = values.shape
    stamps = panel.times if times is None else times
    inside = Lengths(n, T, panel.lengths).mask
    if stamps is not None:
        stamps = np.broadcast_to(np.asarray(stamps, dtype=float), (n, T))
        _check_times(stamps, inside, panel)
    return Trajectories(values, panel.names, stamps, panel.lengths, panel.groups if groups is None else groups)  # fmt: skip


def _check_times(stamps: Array, inside: Mask, panel: Panel) -> None:
    """Every observation has a time, and no two of a trajectory the same."""
    missing = int(np.isnan(stamps[inside]).sum())
    if missing:
        raise ValueError(
            f"{missing} of {inside.sum()} times are missing: leave those rows out, or recover their order first (retrace fit)."
        )
    ordered = np.sort(np.where(inside, stamps, np.nan), axis=1)
    tied = np.flatnonzero((np.diff(ordered, axis=1) == 0).any(axis=1))
    if len(tied):
        raise ValueError(
            f"{panel.trajectory(int(tied[0]))} has two observations at the same time: keep one row for each time, or average them."
        )


def _of_array(X: Any, times: Any, groups: Any) -> Trajectories:
    try:
        values = np.asarray(unmasked(X), dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"X must hold numbers. {door(X)}") from None
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim == 2:
        if values.shape[0] <= values.shape[1]:
            raise ValueError(
                f"X of two axes is one long series (time, variable), but {values.shape} has more variables than times: pass trajectories of one "
                "variable as X[:, :, None], or a series as X.T."
            )
        values = values[None]
    if values.ndim != 3:
        raise ValueError(f"X must be (trajectory, time, variable), or one series (time, variable); got shape {values.shape}.")  # fmt: skip
    return _of_panel(Panel.from_array(values), groups, times)


# -- as it is tested ---------------------------------------------------------------------------------------


def _in_blocks(given: Trajectories) -> tuple[Trajectories, Blocks | None]:
    """A few long trajectories split into blocks; others as they are."""
    n = len(given.values)
    if n >= MIN_GROUPS or given.groups is not None or (given.lengths is not None and n > 1):
        return given, None
    values, times = given.values, given.times
    if times is not None:
        order = np.argsort(times, axis=1, kind="stable")
        times = np.take_along_axis(times, order, axis=1)
        values = np.take_along_axis(values, order[..., None], axis=1)
    values, times, length, apart = split(values, times)
    blocks = Blocks(len(values), length, apart)
    if len(values) < MIN_GROUPS:
        return (given, blocks) if n < MIN_TRAJECTORIES else (given, None)
    return given._replace(values=values, times=times, lengths=None), blocks


def _panel(order: InOrder, names: tuple[str, ...]) -> Panel:
    """The panel that is fitted: padding holds any number, as elsewhere."""
    found = Panel.from_array(padded(order.values, order.lengths), names=names, dt=order.dt)
    return replace(found, lengths=order.lengths)


def _timed(entry: Entry, order: InOrder) -> Entry:
    """The entry with known gaps, where they are not all dt: in known order, and so not by observation but by position."""
    if order.gaps.equal:
        return entry
    times = order.gaps.take(entry.places.rows).times(order.values.shape[1])
    lengths = Lengths.of(entry.panel.values, entry.panel.lengths)
    return replace(entry, timing=Clock.at(times, lengths)[0])


def _with_order(request: Request, entry: Entry, panel: Panel) -> Request:
    n, T, _ = panel.values.shape
    every = np.arange(T, dtype=np.intp)
    given = every if request.shared else np.tile(every, (n, 1))
    return replace(request, known_order=entry.places.sorted_orders(given))


# -- the answer --------------------------------------------------------------------------------------------


def _answer(
    entry: Entry, fitted: PanelFit, order: InOrder, blocks: Blocks | None, rng: np.random.Generator
) -> ArrowTest:
    outcome, places = fitted.shown, entry.places
    test = outcome.direction
    first = places.given_orders(outcome.found.order)
    backwards = int(np.ravel(first)[0]) != 0
    test = test.turned() if backwards else test
    dropped = {each.index for each in entry.panel.left_out}
    kept = [k for k in range(order.values.shape[2]) if k not in dropped]
    x = order.values[:, :, kept]
    there: Mask = np.asarray(~np.isnan(x).any(axis=2))
    groups = None if entry.panel.groups is None else np.asarray(entry.panel.groups)[np.argsort(places.rows)]  # fmt: skip
    p = irreversibility_p(x, there, rng, groups=groups) if there.sum(axis=1).min() > 1 else None
    if not order.gaps.equal and test.identified and p is not None and p > test.alpha:
        # With unequal gaps no null is simulated: data that do not differ from their reverse have no direction.
        test = replace(test, identified=False, p_value=p, p_error=None)
    direction = Arrow.OPEN
    if test.identified:
        # Residuals have no ratio; without candidates the fit does not reverse an order whose ratio is negative.
        by_residuals = test.reason is Reason.RESIDUALS
        against = backwards if by_residuals else test.log_likelihood_ratio < 0
        direction = Arrow.BACKWARDS if against else Arrow.FORWARDS
    return _arrow(
        test,
        direction=direction,
        reversibility_p=p,
        entropy_production=_entropy_production(fitted, test),
        blocks=blocks,
        sorted_by=_sorted_by(x, entry.panel.names),
    )


def _entropy_production(fitted: PanelFit, test: DirectionTest) -> EntropyProduction | None:
    """Of the linear process at rest, where the data do not ask for another model."""
    best = test.preferred
    if best is not None and best.name != CandidateKind.MARKOV:
        return None
    outcome = fitted.outcome
    A, c, _ = parted(outcome.estimate.coefficients, fitted.model.drift)
    sde = LinearSDE(A, outcome.estimate.diffusion, offset=c)
    if sde.dimension < 2 or not sde.is_stable:
        return None
    try:
        rate = sde.entropy_production()
    except ValueError:  # stable only up to rounding
        return None
    p = detailed_balance_p_value(outcome.statistics, sde)
    if p >= test.alpha:
        return EntropyProduction(rate, 0.0, entropy_bound(outcome.statistics, sde), p)
    low, high = entropy_interval(outcome.statistics, sde) or (None, None)
    return EntropyProduction(rate, low, high, p)


def _sorted_by(x: Array, names: tuple[str, ...]) -> str | None:
    """A variable that grows, or falls, in every step of every trajectory."""
    steps = np.diff(x, axis=1)
    seen = ~np.isnan(steps)
    if seen.sum(axis=1).min() < MIN_SORTED_STEPS:
        return None
    for k, name in enumerate(names):
        signs = np.sign(steps[..., k][seen[..., k]])
        if (signs > 0).all() or (signs < 0).all():
            return name
    return None


def _too_few(n: int, blocks: Blocks | None, alpha: float) -> ArrowTest:
    """Of one or two trajectories that are too short to be split."""
    plain = direction_test(np.zeros(n), np.zeros(n), dimension=1, alpha=alpha)
    assert plain.reason is Reason.TOO_FEW
    return _arrow(plain, blocks=blocks)


def _arrow(test: DirectionTest, **more: Any) -> ArrowTest:
    """The test of a direction, with what is said of data in order besides."""
    return ArrowTest(**{each.name: getattr(test, each.name) for each in fields(test)}, **more)
