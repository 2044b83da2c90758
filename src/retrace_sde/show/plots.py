"""Pictures of a result. Every function takes and returns a matplotlib Axes.

In the place of its first arguments each takes a fitted `ReTrace`, a `Recovery` or, where no data are needed, a `ReTraceResult`:
`rt.plots.order_certainty(model)`. Of a `Recovery` the axes have the labels of its slices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.effects.graph import EffectGraph, effect_graph
from retrace_sde.evidence.direction.verdict import DirectionTest
from retrace_sde.evidence.suspects.record import cells
from retrace_sde.fit.intervals import clearest, half_widths
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.metrics import position_calibration
from retrace_sde.panel.blocks import evenly
from retrace_sde.panel.clock import times_of
from retrace_sde.panel.order import Order
from retrace_sde.show.numbers import (
    Edge,
    autocorrelation_band,
    effect_label,
    graph_edges,
    histogram,
    significant_edges,
)
from retrace_sde.show.sources import Drawn, Source, axes_for, slice_ticks, takes_fits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from retrace_sde.panel.panel import Panel
    from retrace_sde.retrace import ReTrace

FORWARD, BACKWARD, NEUTRAL = "#0072B2", "#D55E00", "#666666"
"""Okabe and Ito's colours, distinct with every kind of colour vision."""

MAX_LEGEND = 8
"""Variables up to which a legend names their lines."""


MAX_LABELS = 24
"""Labels of slices along an axis, at most."""


def _drift_matrix(fit: Source) -> Drawn:
    found = fit.result
    columns = fit.coefficients["features"]
    look: dict[str, Any] = {"title": "Drift A", "names": found.names, "features": columns}
    if found.drift.shape == found.diffusion.shape:
        look["shade"] = comparable(found.drift, found.diffusion)
    return (found.drift,), look


def _eigenvalues(fit: Source) -> Drawn:
    found = fit.result.sde.drift  # refused where the drift is not linear
    twin = fit.result.alternative
    return (found,), {"twin": None if twin is None else twin.drift}


def _gaps(fit: Source) -> Drawn:
    found, times = fit.result.gap_intervals, fit.result.times
    low, high = (None, None) if found is None else found.T
    return (np.diff(times if times.ndim == 1 else times[0]),), {"low": low, "high": high}


def _trajectories(fit: Source) -> Drawn:
    values = np.asarray(fit.panel.values)
    wrong = cells(fit.result.suspects, values.shape, fit.result.names)
    look = {"name": fit.result.names[0], "suspects": wrong, **fit.labels}
    return (values, fit.result.order), look


def _heat(ax: Axes, values: Array, colours: str, low: float, high: float, **bar: Any) -> Any:
    """A matrix as colours from `low` to `high`, and their bar, which is returned."""
    image = ax.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    return ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04, **bar)


@takes_fits(lambda fit: ((fit.costs, fit.order), fit.labels))
def cost_matrix(
    costs: Array,
    order: Indices | None = None,
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Cost of slice b (column) right after slice a (row), as stored or along an order.

    Along the right order pairs of low cost are next to the diagonal. Colours are ranks, so that a few
    very distant pairs do not hide the rest.

    Parameters
    ----------
    costs : array (T, T)
        Of b after a, such as `rt.baselines.slice_distances(X)`.
    order : array (T,), optional
        Along which they are drawn.
    labels : sequence of str, optional
        Names of the slices, as stored; they stand along the axis instead of numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> ax = rt.plots.cost_matrix(rt.baselines.slice_distances(Y))
    """
    where = "as stored" if order is None else "in recovered order"
    ax = axes_for(ax, f"Transition costs {where}", "next slice", "slice")
    T = len(costs)
    if order is not None:
        costs = costs[np.ix_(order, order)]
    off = ~np.eye(T, dtype=bool)
    ranks = np.full((T, T), np.nan)
    ranks[off] = np.argsort(np.argsort(costs[off])) / max(T * (T - 1) - 1, 1)
    _heat(ax, ranks, "viridis", 0, 1, ticks=[0, 1]).ax.set_yticklabels(["low", "high"])
    for axis in (ax.xaxis, ax.yaxis):
        slice_ticks(axis, labels, order, MAX_LABELS)
    return ax


@takes_fits(_drift_matrix)
def matrix(
    values: Array,
    *,
    title: str,
    limit: float | None = None,
    shade: Array | None = None,
    names: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A drift or diffusion matrix as a heat map, zero in white, symmetric in ±limit.

    Parameters
    ----------
    values : array (d, p)
        The matrix.
    title : str
        Above it.
    limit : float, optional
        The value of the darkest colours.
    shade : array (d, p), optional
        Colours by another matrix, such as `comparable(A, H)` where variables differ in units; the
        numbers of `values` are then written into the cells.
    names, features : sequence of str, optional
        Label rows and, without `features`, columns.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.matrix(-np.eye(3), title="A", names=list("abc"))
    """
    ax = axes_for(ax, title, "effect of variable", "on variable")
    colours = values if shade is None else shade
    limit = float(np.abs(colours).max()) if limit is None else limit
    _heat(ax, colours, "RdBu", -limit, limit)
    if shade is not None:
        for (i, j), value in np.ndenumerate(values):
            ink = "white" if abs(shade[i, j]) > 0.6 * limit else "black"
            ax.text(j, i, f"{value:.2g}", ha="center", va="center", color=ink)
    if names is not None:
        columns = names if features is None else features
        ax.set_xticks(range(len(columns)), columns, rotation=90)
        ax.set_yticks(range(len(names)), names)
    return ax


def comparable(drift: Array, diffusion: Array) -> Array:
    """`A_ij √(H_jj / H_ii)`: the drift with each variable in units of its noise, so that entries compare.

    Parameters
    ----------
    drift, diffusion : array (d, d)
        A and H.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> rt.plots.comparable(np.ones((2, 2)), np.diag([1.0, 4.0]))
    array([[1. , 2. ],
           [0.5, 1. ]])
    """
    scale = np.sqrt(np.diag(diffusion))
    scaled: Array = drift * scale[None, :] / scale[:, None]
    return scaled


@takes_fits(lambda fit: (fit.drift, {**fit.names, "n": fit.result.n_groups}))
def drift_graph(
    values: Array,
    errors: Array,
    *,
    names: Sequence[str] | None = None,
    most: int = 60,
    n: float = math.inf,
    ax: Axes | None = None,
) -> Axes:
    """Variables on a circle; an arrow from j to i where the 95 % interval of A_ij excludes zero.

    Solid blue is positive, dashed orange negative; width grows with `|estimate|` / standard error. A ring around a variable is
    its effect on itself. Each interval is tested alone: with many variables some exclude zero by chance; `effect_graph` tests
    all at once.

    Parameters
    ----------
    values, errors : array (d, d)
        A and its standard errors.
    names : sequence of str, optional
        Of the variables.
    most : int
        Arrows, at most; the clearest are drawn.
    n : float
        Trajectories behind the errors; left out, many.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.drift_graph(model.drift_, model.standard_errors_.drift, n=20)
    """
    edges = significant_edges(values, errors, n)[:most]
    return _circle(ax, values, edges, _names(names, len(values)), "Effects significant at 5 %")


@takes_fits(lambda fit: ((effect_graph(fit.result),), {}))
def effects(graph: EffectGraph, *, most: int = 60, ax: Axes | None = None) -> Axes:
    """The graph of `rt.effect_graph`: an arrow for each effect that is significant when all are tested at once.

    Drawn as `drift_graph`. Causes that are not variables, such as terms of a polynomial drift, are left out. The reversed twin,
    where there is one, is `graph.twin`, to be drawn beside it.

    Parameters
    ----------
    graph : EffectGraph
        Of `rt.effect_graph`.
    most : int
        Arrows, at most.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.effects(rt.effect_graph(model))
    """
    d = len(graph.names)
    values = graph.values[:, :d]
    edges = [each for each in graph_edges(graph) if each[1] < d][:most]
    title = (
        f"Effects {effect_label(graph)}\n{len(edges)} of {values.size} significant, "
        f"simultaneous {graph.level:.0%} intervals"
    )
    return _circle(ax, values, edges, graph.names, title)


def _circle(
    ax: Axes | None, values: Array, edges: Sequence[Edge], names: Sequence[str], title: str
) -> Axes:
    """Variables on a circle, an arrow from j to i for each edge, its width by its strength; the strongest is the first."""
    ax = axes_for(ax, title, "", "", xlim=(-1.8, 1.8), ylim=(-1.4, 1.4), aspect="equal")
    d = len(values)
    angle = np.pi / 2 - 2 * np.pi * np.arange(d) / d
    at = np.column_stack([np.cos(angle), np.sin(angle)]) * (d > 1)
    for i, j, strength in edges:
        colour, line = (FORWARD, "-") if values[i, j] > 0 else (BACKWARD, "--")
        width = 0.8 + 2.5 * np.sqrt(strength / edges[0][2])
        if i == j:
            ring = {"facecolors": "none", "edgecolors": colour, "linewidths": width}
            ax.scatter(at[i, 0], at[i, 1], s=700, linestyle=line, **ring)
            continue
        style = {"arrowstyle": "-|>", "color": colour, "linestyle": line, "linewidth": width,
                 "shrinkA": 12, "shrinkB": 14, "connectionstyle": "arc3,rad=0.15"}  # fmt: skip
        ax.annotate("", xy=at[i], xytext=at[j], arrowprops=style)
    ax.scatter(at[:, 0], at[:, 1], s=350, color="white", edgecolors="black", zorder=3)
    for name, (x, y) in zip(names, at, strict=True):
        side = "center" if abs(x) < 0.1 else "left" if x > 0 else "right"
        ax.text(1.2 * x, 1.25 * y, name, ha=side, va="center", zorder=4)
    ax.axis("off")
    return ax


@takes_fits(_eigenvalues)
def eigenvalues(drift: Array, *, twin: Array | None = None, ax: Axes | None = None) -> Axes:
    """Eigenvalues of A in the complex plane: on the left decay, on the right growth, off the axis rotation.

    Parameters
    ----------
    drift : array (d, d)
        A.
    twin : array (d, d), optional
        Of the reversed twin.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.eigenvalues(np.array([[-1.0, 2.0], [-2.0, -1.0]]))
    """
    ax = axes_for(ax, "Eigenvalues of A", "real part", "imaginary part")
    own = np.linalg.eigvals(drift)
    ax.axvspan(min(own.real.min(), 0) * 1.2 - 1e-12, 0, color=FORWARD, alpha=0.07)
    ax.axhline(0, color=NEUTRAL, linewidth=0.8)
    ax.axvline(0, color=NEUTRAL, linewidth=0.8)
    ax.plot(own.real, own.imag, "o", color=FORWARD, label="A")
    if twin is not None:
        other = np.linalg.eigvals(twin)
        ax.plot(other.real, other.imag, "s", fillstyle="none", color="black", label="reversed twin")
        ax.legend(frameon=False)
    return ax


@takes_fits(lambda fit: (fit.drift, fit.coefficients))
def parameter_intervals(
    values: Array,
    errors: Array,
    *,
    names: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    most: int = 20,
    n: float = math.inf,
    ax: Axes | None = None,
) -> Axes:
    """The clearest coefficients with their 95 % intervals, the clearest on top.

    Parameters
    ----------
    values, errors : array (d, p)
        Coefficients and their standard errors.
    names, features : sequence of str, optional
        Of rows and columns.
    most : int
        Coefficients, at most.
    n : float
        Trajectories behind the errors; left out, many.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.parameter_intervals(-np.eye(2), np.full((2, 2), 0.1))
    """
    ax = axes_for(ax, "Estimates with 95 % intervals", "estimate", "")
    names = _names(names, len(values))
    features = list(names)[: values.shape[1]] if features is None else features
    i, j = np.array(list(clearest(values, errors, most))).T
    y = np.arange(len(i))[::-1]
    reach = half_widths(errors[i, j], n)
    ax.errorbar(values[i, j], y, xerr=reach, fmt="o", color=FORWARD, ecolor=NEUTRAL)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(y, [f"{features[b]} → {names[a]}" for a, b in zip(i, j, strict=True)])
    return ax


@takes_fits(_gaps)
def gaps(
    values: Array, *, low: Array | None = None, high: Array | None = None, ax: Axes | None = None
) -> Axes:
    """Estimated time from each position to the next, with intervals where given.

    Parameters
    ----------
    values : array (T − 1,)
        `model.gaps_`.
    low, high : array (T − 1,), optional
        Ends of the intervals.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.gaps(np.array([1.0, 2.0, 0.5]))
    """
    ax = axes_for(ax, "Gaps", "position", "gap to the next")
    ax.bar(np.arange(len(values)), values, color=FORWARD, alpha=0.6)
    if low is not None and high is not None:
        ax.vlines(np.arange(len(values)), low, high, color="black")
    return ax


@takes_fits(lambda fit: ((fit.result.direction,), {}))
def direction_evidence(test: DirectionTest, *, ax: Axes | None = None) -> Axes:
    """Each trajectory's log-likelihood, this order minus its reverse: right of zero is evidence for this order.

    Parameters
    ----------
    test : DirectionTest
        `model.direction_`.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.direction_evidence(model.direction_)
    """
    called, colour = ("identified", FORWARD) if test.identified else ("undetermined", NEUTRAL)
    title = f"Direction {called} (z = {test.z:.1f})"
    ax = axes_for(ax, title, "forward − backward, nats per trajectory", "trajectories")
    delta = test.contributions
    ax.hist(delta, bins=histogram(delta)[0].tolist(), color=colour, alpha=0.75)
    ax.axvline(0, color="black", linewidth=1)
    ax.axvline(delta.mean(), color=BACKWARD, linewidth=2, label=f"mean {delta.mean():+.2g}")
    ax.legend(frameon=False)
    return ax


def calibration(true: Indices, probabilities: NDArray[Any], *, ax: Axes | None = None) -> Axes:
    """Share of placements that were right against the probability they were given, with 95 % error bars.

    On the diagonal probabilities are calibrated. Needs the true order.

    Parameters
    ----------
    true : array (T,) or (n, T)
        Orders.
    probabilities : array (…, T, T) or ReTrace
        `model.position_probabilities_`, or the model.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.calibration(np.array([[0, 1]]), np.full((1, 2, 2), 0.5))
    """
    source = Source.of(probabilities)
    probabilities = probabilities if source is None else source.model.position_probabilities_
    labels = "Position probabilities", "probability given", "share that was right"
    ax = axes_for(ax, *labels, xlim=(0, 1), ylim=(0, 1))
    bins = position_calibration(true, probabilities, edges=np.linspace(0.05, 1, 11))
    given, came, count = np.array(bins).T
    error = half_widths(np.sqrt(came * (1 - came) / count))
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, label="calibrated")
    ax.errorbar(given, came, error, fmt="o", color=FORWARD, capsize=3, label="placements")
    ax.legend(frameon=False)
    return ax


@takes_fits(lambda fit: ((fit.probabilities, fit.order), fit.labels))
def position_probabilities(
    probabilities: NDArray[Any],
    order: Indices,
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The position probabilities of each observation of one trajectory (or of a shared order); dark is likely.

    Parameters
    ----------
    probabilities : array (T, T)
        `[a, k]`, that observation a is at position k.
    order : array (T,)
        The order found.
    labels : sequence of str, optional
        Names of the slices, as stored; they stand along the axis instead of numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.position_probabilities(np.eye(3), np.arange(3))
    """
    y = "observation, in the most probable order"
    ax = axes_for(ax, "Position probabilities", "position", y)
    _heat(ax, probabilities[order], "Blues", 0, 1)
    slice_ticks(ax.yaxis, labels, order, MAX_LABELS)
    return ax


@takes_fits(lambda fit: ((fit.probabilities, fit.order), fit.labels))
def order_certainty(
    probabilities: NDArray[Any],
    order: Indices,
    *,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The probability `P[o_k, k]` that each position holds the observation placed there.

    Parameters
    ----------
    probabilities : array (T, T)
        `[a, k]`, that observation a is at position k.
    order : array (T,)
        The order found.
    labels : sequence of str, optional
        Names of the slices, as stored; they stand along the axis instead of numbers.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> ax = rt.plots.order_certainty(np.full((3, 3), 1 / 3), np.arange(3))
    """
    ax = axes_for(ax, "Certainty of the order", "position", "probability", ylim=(0, 1.03))
    own = probabilities[order, np.arange(len(order))]
    ax.vlines(np.arange(len(order)), 0, own, color=NEUTRAL, linewidth=0.8)
    ax.plot(own, "o", markersize=4, color=FORWARD)
    ax.axhline(0.95, color=NEUTRAL, linewidth=0.8, linestyle=":")
    slice_ticks(ax.xaxis, labels, order, MAX_LABELS)
    return ax


@takes_fits(_trajectories)
def trajectories(
    X: Array,
    order: Indices | None = None,
    *,
    variable: int = 0,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    suspects: Mask | None = None,
    most: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """One variable of a few trajectories against slice, as stored or along an order.

    Parameters
    ----------
    X : array (n, T, d)
        Trajectories.
    order : array (T,) or (n, T), optional
        Along which they are drawn.
    variable : int
        Which.
    name : str, optional
        Of the variable.
    labels : sequence of str, optional
        Names of the slices, as stored; they stand along the axis instead of numbers.
    suspects : array (n, T, d) of bool, optional
        Values that are probably wrong: they are circled, and their trajectories drawn whatever `most`.
    most : int
        Trajectories, at most.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> ax = rt.plots.trajectories(Y, variable=1)
    """
    ax = axes_for(ax, "as stored" if order is None else "restored", "slice", name or "value")
    every = np.arange(X.shape[1]) if order is None else np.asarray(order)
    every = np.broadcast_to(every, (len(X), every.shape[-1]))
    wrong = np.zeros(X.shape[:2], dtype=bool) if suspects is None else suspects[:, :, variable]
    for j in _with_suspects(most, wrong):
        line = X[j, every[j], variable]
        ax.plot(line, linewidth=0.7, alpha=0.6)
        _circled(ax, np.arange(float(len(line))), line, wrong[j, every[j]])
    slice_ticks(ax.xaxis, labels, order, MAX_LABELS)
    return ax


@takes_fits(lambda fit: ((fit.model, fit.panel), {}))
def courses(
    model: ReTrace,
    panel: Panel,
    *,
    variable: str | int = 0,
    twin: bool = False,
    unit: str | None = None,
    most: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """One variable of a few trajectories against time, in the order found, named as the panel names it.

    Parameters
    ----------
    model : ReTrace
        Fitted.
    panel : Panel
        What it was fitted to.
    variable : str or int
        Which.
    twin : bool
        In the reverse of the order found.
    unit : str, optional
        Of time, for the axis.
    most : int
        Trajectories, at most.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.courses(model, rt.Panel.from_array(Y), variable=1, unit="days")
    """
    names = [str(name) for name in panel.names]
    k = names.index(variable) if isinstance(variable, str) else variable
    title = f"{names[k]}, {'the reverse' if twin else 'in the order found'}"
    ax = axes_for(ax, title, "time" if unit is None else f"time ({unit})", names[k])
    answer = model.alternative_ if twin else model.result_
    if answer is None:
        raise ValueError("the direction is identified, so there is no twin to draw.")
    times = model.times_ if answer.times is None else answer.times
    wrong = cells(model.result_.suspects, tuple(panel.values.shape), names)[:, :, k]
    for j in _with_suspects(most, wrong):
        order = Order.of(answer.order).of_trajectory(j)
        length = len(order) if panel.lengths is None else panel.lengths[j]
        at = times_of(times, j)
        line = np.asarray(panel.values[j])[order[:length], k]
        ax.plot(at[:length], line, linewidth=0.7, alpha=0.6)
        _circled(ax, at[:length], line, wrong[j, order[:length]])
    return ax


def _with_suspects(most: int, wrong: Mask) -> list[int]:
    """Trajectories to be drawn: some, and those with values that are probably wrong (n, T)."""
    return sorted({*evenly(len(wrong), most).tolist(), *np.flatnonzero(wrong.any(axis=1)).tolist()})


def _circled(ax: Axes, at: Array, line: Array, wrong: Mask) -> None:
    """Circles about the values of a line that are probably wrong."""
    if wrong.any():
        ax.plot(at[wrong], line[wrong], "o", markerfacecolor="none", color=BACKWARD, markersize=8)


@takes_fits(lambda fit: ((fit.model, fit.panel), {}))
def both_ways(
    model: ReTrace, panel: Panel, *, unit: str | None = None, most: int = 4
) -> NDArray[Any]:
    """A few variables, each on its own scale, in the order found; where the direction is open the twin beside it.

    Returns the Axes, (variables, ways).

    Parameters
    ----------
    model : ReTrace
        Fitted.
    panel : Panel
        What it was fitted to.
    unit : str, optional
        Of time, for the axis.
    most : int
        Variables, at most.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> rt.plots.both_ways(model, rt.Panel.from_array(Y)).shape[0]
    2
    """
    import matplotlib.pyplot as plt

    count, ways = min(most, len(panel.names)), 1 if model.alternative_ is None else 2
    size = (5.5 * ways, 2.2 * count + 0.6)
    _, axes = plt.subplots(
        count, ways, figsize=size, squeeze=False, sharey="row", layout="constrained"
    )
    for k, row in enumerate(axes):
        for way, ax in enumerate(row):
            courses(model, panel, variable=k, twin=bool(way), unit=unit, ax=ax)
    found: NDArray[Any] = axes
    return found


@takes_fits(lambda fit: ((fit.residuals,), fit.names))
def residual_quantiles(
    check: ResidualCheck, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Quantiles of the whitened residuals against the Gaussian's, a line for each variable: on the diagonal they are noise.

    Parameters
    ----------
    check : ResidualCheck
        `model.residuals_`.
    names : sequence of str, optional
        Of the variables.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.residual_quantiles(model.residuals_)
    """
    ax = axes_for(ax, "Residuals against a Gaussian", "Gaussian quantile", "residual")
    limit = float(np.abs(check.scores).max(initial=1.0)) * 1.1
    ax.plot([-limit, limit], [-limit, limit], color=NEUTRAL, linewidth=0.8)
    _lines(ax, check.scores, check.quantiles, names, ".-", markersize=3, linewidth=0.8)
    return ax


@takes_fits(lambda fit: ((fit.residuals,), fit.names))
def residual_positions(
    check: ResidualCheck, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Standard deviation of the residuals (lines, 1 under the model) and their mean (dashed, 0) by position.

    Parameters
    ----------
    check : ResidualCheck
        `model.residuals_`.
    names : sequence of str, optional
        Of the variables.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.residual_positions(model.residuals_, names=["heart", "pressure"])
    """
    y = "standard deviation (line), mean (dashed)"
    ax = axes_for(ax, "Residuals by position", "position", y)
    for level in (0, 1):
        ax.axhline(level, color=NEUTRAL, linewidth=0.8)
    positions = np.arange(len(check.spreads))
    colours = _lines(ax, positions, check.spreads, names, ".-", linewidth=1)
    for colour, mean in zip(colours, check.means.T, strict=True):
        ax.plot(mean, "--", linewidth=0.8, color=colour)
    return ax


@takes_fits(lambda fit: ((fit.residuals,), fit.names))
def autocorrelation(
    check: ResidualCheck, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Correlation of residuals 1, 2, … steps apart, a line for each variable; grey: 95 % of what chance gives.

    Parameters
    ----------
    check : ResidualCheck
        `model.residuals_`.
    names : sequence of str, optional
        Of the variables.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.autocorrelation(model.residuals_)
    """
    ax = axes_for(ax, "Autocorrelation of the residuals", "steps apart", "correlation")
    lags, reach = autocorrelation_band(check)
    ax.fill_between(lags, -reach, reach, color=NEUTRAL, alpha=0.2)
    ax.axhline(0, color=NEUTRAL, linewidth=0.8)
    _lines(ax, lags, check.autocorrelations, names, "o-", markersize=4, linewidth=1)
    return ax


@takes_fits(lambda fit: ((fit.residuals, 0), {**fit.times, **fit.names}))
def simulated_fan(
    check: ResidualCheck,
    variable: int,
    *,
    times: Array | None = None,
    name: str | None = None,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Paths simulated from the fit (band from 5 to 95 %, median) beside the observed ones (lines: the same quantiles).

    Parameters
    ----------
    check : ResidualCheck
        `model.residuals_`.
    variable : int
        Which.
    times : array (T,), optional
        Of the positions.
    name, names : str and sequence of str, optional
        Of the variable, or of all of them.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new one if left out.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(20, 8, 0.05, random_state=1)
    >>> model = rt.ReTrace(dt=0.05, random_state=0).fit(Y)
    >>> ax = rt.plots.simulated_fan(model.residuals_, 0, times=model.times_)
    """
    shown = name or _names(names, variable + 1)[variable]
    x = "position" if times is None else "time"
    ax = axes_for(ax, f"{shown}: simulated and observed", x, shown)
    low, middle, high = check.band[:, :, variable]
    at = np.arange(len(low)) if times is None else times
    ax.fill_between(at, low, high, color=FORWARD, alpha=0.2, label="simulated, 5 to 95 %")
    ax.plot(at, middle, color=FORWARD, label="median")
    for k, line in enumerate(check.observed[:, :, variable]):
        ax.plot(at, line, color="black", linestyle="-" if k == 1 else "--", linewidth=1,
                label="observed, same quantiles" if k == 1 else None)  # fmt: skip
    ax.legend(frameon=False)
    return ax


def _names(names: Sequence[str] | None, count: int) -> Sequence[str]:
    return [f"x{k}" for k in range(count)] if names is None else [str(name) for name in names]


def _lines(
    ax: Axes, x: NDArray[Any], y: Array, names: Sequence[str] | None, style: str, **look: Any
) -> list[Any]:
    """A line for each variable (column of y), named in a legend where there are not too many; their colours."""
    count = y.shape[1]
    lines = [
        ax.plot(x, column, style, label=name, **look)[0]
        for column, name in zip(y.T, _names(names, count), strict=False)
    ]
    if 1 < count <= MAX_LEGEND:
        ax.legend(frameon=False)
    return [line.get_color() for line in lines]
