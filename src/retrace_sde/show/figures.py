"""The numbers behind each figure of the report, ready for JSON, thinned where a panel is large.

Estimates and errors are the result's own. Recomputed are only what a result does not keep: the transition
costs under the fitted parameters and the eigenvalues of A.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrace_sde.effects.graph import (
    MOST_VARIABLES_FOR_DELTA,
    Effect,
    EffectGraph,
    effect_graph,
)
from retrace_sde.evidence.suspects.record import cells
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.intervals import clearest, half_widths
from retrace_sde.io.answers import plain
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.lazy.array import as_lazy
from retrace_sde.metrics import neighbour_share, order_accuracy
from retrace_sde.orders.costs import transition_costs
from retrace_sde.orders.hidden.pair_moments import mean_distances
from retrace_sde.panel.blocks import Data, evenly, to_numpy
from retrace_sde.panel.clock import same_for_all, times_of
from retrace_sde.panel.panel import Panel
from retrace_sde.process.drift import Affine, as_drift
from retrace_sde.result import ReTraceResult, Twin
from retrace_sde.retrace import ReTrace
from retrace_sde.show.numbers import (
    Edge,
    autocorrelation_band,
    effect_label,
    graph_edges,
    histogram,
    significant_edges,
)
from retrace_sde.show.plots import comparable
from retrace_sde.show.sharing import MIN_SUBJECTS_OF_MEAN, summarised

MAX_SLICES, MAX_TRAJECTORIES, MAX_OWN_TRAJECTORIES, MAX_NUMBERS = 100, 30, 12, 40_000
"""Slices, trajectories (fewer where each has its own cost matrix) and numbers per figure, at most."""

MAX_EDGES = 400
"""Edges of a graph, at most."""

MAX_MATRIX_VARIABLES = 150
"""Variables of a matrix or a graph, at most: a heat map of 1000 has a million cells, each with an interval (a page of 150 MB)."""

PAGE_DIGITS = 4
"""Significant digits of the numbers in the page."""


def figures(model: ReTrace, panel: Panel, *, share: bool = False, steps: int = 0) -> dict[str, Any]:
    """Everything that the page draws, by figure, and in `thinned` what was left out, in sentences.

    `share`: no single subject's values; `steps`: observations ahead that are forecast.
    """
    thinned: list[str] = []
    twin = model.alternative_
    units, rows, variables = _selection(model, panel, thinned, share=share)
    kept = _clearest_variables(model, thinned)
    found: dict[str, Any] = {
        "shared": model.result_.shared_order,
        "units": [_unit(model, panel, each) for each in units],
        "paths": _paths(model, panel, units, rows, variables),
        "drift": _drift(model, kept),
        "twin": None if twin is None else _shaded(model, twin, kept),
        "diffusion": _diffusion(model, kept),
        "names": _named(model.result_.names, kept),
        "eigenvalues": _eigenvalues(model.drift_),
        "twin_eigenvalues": None if twin is None else _eigenvalues(twin.drift),
        "direction": _direction(model, panel),
        "gaps": _gaps(model),
        "graphs": _graphs(model, kept),
        "residuals": _residuals(model, variables),
        "forecast": _forecast(model, panel, rows, variables, steps, share=share),
        "thinned": thinned,
    }
    return summarised(found, panel, variables, PAGE_DIGITS) if share else found


def orders_drawn(model: ReTrace, panel: Panel) -> list[dict[str, Any]]:
    """The units of the figures alone: the slices of all trajectories, or the observations of a few, and the orders of each round."""
    units, _, _ = _selection(model, panel, [], share=False)
    return [_unit(model, panel, each) for each in units]


Unit = tuple[int | None, Indices, Indices]
"""A trajectory (None: all, with one order), the positions shown, and the observations there."""


def _selection(
    model: ReTrace, panel: Panel, thinned: list[str], *, share: bool
) -> tuple[list[Unit], Indices, Indices]:
    n, T, d = panel.values.shape
    most = min(T, MAX_SLICES)
    variables = np.arange(min(d, MAX_NUMBERS // (4 * most)))
    fit = MAX_NUMBERS // (most * len(variables))
    if model.result_.shared_order:
        rows = evenly(n, min(max(fit, 4), MAX_TRAJECTORIES))
    else:
        rows = evenly(n, min(max(min(fit, MAX_NUMBERS // most**2), 3), MAX_OWN_TRAJECTORIES))
    rows = rows if share else _with_suspects(rows, model.result_)
    for kept, all_of, what in (
        (len(rows), n, "trajectories"), (most, T, "slices"), (len(variables), d, "variables")
    ):  # fmt: skip
        if kept < all_of and not (share and what == "trajectories"):  # shared are means of all
            thinned.append(f"{kept} of {all_of:,} {what} are drawn, evenly spaced")
    if len(variables) < d:
        thinned[-1] = f"the first {len(variables)} of {d:,} variables are drawn"
    owners: list[int | None] = [None] if model.result_.shared_order else [int(j) for j in rows]
    return [_shown(model, panel, j, most) for j in owners], rows, variables


def _with_suspects(rows: Indices, result: ReTraceResult) -> Indices:
    """As many trajectories, among them some with values that are probably wrong."""
    wanted = [each.trajectory for each in result.suspects if each.trajectory is not None]
    wanted = [j for j in dict.fromkeys(wanted) if j not in rows][: len(rows) // 2]
    kept = rows if not wanted else rows[evenly(len(rows), len(rows) - len(wanted))]
    return np.unique(np.r_[kept, np.array(wanted, dtype=np.intp)])


def _shown(model: ReTrace, panel: Panel, j: int | None, most: int) -> Unit:
    order = model.order_ if j is None else model.order_[j]
    positions = evenly(_length(model, panel, j), most)
    return j, positions, order[positions]


def _length(model: ReTrace, panel: Panel, j: int | None) -> int:
    ragged = j is not None and panel.lengths is not None
    return int(panel.lengths[j]) if ragged else model.order_.shape[-1]  # type: ignore[index]


def _unit(model: ReTrace, panel: Panel, unit: Unit) -> dict[str, Any]:
    """One cost matrix, in stored order, and the orders that the slider walks through."""
    j, positions, recovered = unit
    kept = np.sort(recovered)
    place = {int(each): k for k, each in enumerate(kept)}
    costs, kind = _costs(model, panel, j, kept)
    length = _length(model, panel, j)
    final = (model.order_ if j is None else model.order_[j])[:length]
    steps: list[dict[str, Any]] = [
        {"label": "as stored", "detail": "", "order": list(range(len(kept)))}
    ]
    for k, each in enumerate(model.history_, start=1):
        if not each.order.size:  # Monte-Carlo EM averages over orders and keeps none of its rounds
            continue
        order = (each.order if j is None else each.order[j])[:length]
        alone = len(final) < 2  # one visit has no neighbours to agree on
        agree = 1.0 if alone else neighbour_share(final, order), order_accuracy(final, order)
        detail = f"{agree[0]:.0%} of neighbours and {agree[1]:.0%} of positions as in the result."
        if math.isfinite(each.log_likelihood):
            detail = f"Log-likelihood {each.log_likelihood:,.1f} nats; {detail}"
        steps.append({
            "label": f"round {k}", "detail": detail,
            "order": [place[int(a)] for a in order if int(a) in place],
        })  # fmt: skip
    result = [place[int(each)] for each in recovered]
    if len(steps) > 1 and steps[-1]["order"] == result:
        steps[-1]["label"] = f"{steps[-1]['label']}, the result"
    else:
        steps.append({"label": "the result", "detail": "", "order": result})
    return {
        "trajectory": None if j is None else str(panel.ids[j]),
        "slices": kept.tolist(),
        "labels": _labels(panel, j, kept),
        "positions": positions.tolist(),
        "costs": _numbers(costs),
        "kind": kind,
        "steps": steps,
        "probabilities": _probabilities(model, j, positions, recovered, length),
    }


def _labels(panel: Panel, j: int | None, kept: Indices) -> list[str]:
    """What the stored observations are called: by the table's labels of slices, or by number."""
    if j is None and panel.slices is not None:
        return [str(panel.slices[int(k)]) for k in kept]
    return [f"{'slice' if j is None else 'observation'} {k}" for k in kept]


def _costs(model: ReTrace, panel: Panel, j: int | None, kept: Indices) -> tuple[Array, str]:
    """Transition costs under the fit; distances where values are missing or noisy."""
    values, u = panel.values, panel.covariates
    if u is None:  # given to `fit` beside an array
        u = getattr(getattr(model, "_problem", None), "data", Data(values)).covariates
    x = _some(values, j, kept)
    if model.result_.suspects:  # one wrong value would outweigh a slice
        treated = [each for each in model.result_.suspects if each.missing]
        wrong = cells(treated, tuple(values.shape), model.result_.names)
        x = np.where(_some(wrong, j, kept), np.nan, x)
    drift, theta = as_drift(model.drift), model.drift_
    R = model.result_.observation_noise
    noisy = R is not None and R.any()
    if noisy or not np.isfinite(x).all() or (u is None and panel.covariate_names):
        return mean_distances(x, np.maximum(np.nanstd(x, axis=(0, 1)), 1e-300)), "distance"
    if isinstance(drift, Affine):
        theta = np.column_stack([theta, model.offset_])
    data = Data(x, None if u is None else _some(u, j, kept), model.n_jobs)
    return transition_costs(data, Euler(drift, theta, model.diffusion_, model.result_.dt)), "cost"


def _some(values: Any, j: int | None, kept: Indices) -> Array:
    """Some observations of one trajectory, or slices of all, (trajectories, slices, variables), in numpy."""
    if j is None:
        return Data(values).slices(kept).transpose(1, 0, 2)
    return to_numpy(values[j : j + 1, ...])[:, kept]


def _probabilities(
    model: ReTrace, j: int | None, positions: Indices, recovered: Indices, length: int
) -> list[Any] | None:
    """Rows: observations in recovered order. Columns: positions, pooled where not all are drawn."""
    if not hasattr(model, "posterior_"):
        return None
    P = model.position_probabilities_ if j is None else model.position_probabilities_[j]
    return _numbers(
        np.add.reduceat(P[recovered, :length].astype(float), positions, axis=1), digits=3
    )


def _paths(
    model: ReTrace, panel: Panel, units: list[Unit], rows: Indices, variables: Indices
) -> dict[str, Any]:
    """Values [trajectory][variable][slice kept], in stored order, those that are probably wrong as [variable, slice kept], and times."""
    result, values, suspects = model.result_, [], []
    wrong = cells(result.suspects, tuple(panel.values.shape), result.names)[:, :, variables]
    for k, j in enumerate(rows):
        kept = np.sort(units[0 if units[0][0] is None else k][2])
        values.append(_numbers(to_numpy(panel.values[int(j), ...])[kept][:, variables].T))
        suspects.append(np.argwhere(wrong[int(j), kept].T).tolist())
    times = np.asarray(model.times_, dtype=float)
    return {
        "ids": [str(panel.ids[int(j)]) for j in rows],
        "variables": [model.result_.names[int(i)] for i in variables],
        "values": values,
        "suspects": suspects,
        "times": [_numbers(times_of(times, j or 0)[positions]) for j, positions, _ in units],
    }


def _forecast(
    model: ReTrace, panel: Panel, rows: Indices, variables: Indices, steps: int, *, share: bool
) -> dict[str, Any] | None:
    """Means and limits [trajectory][variable][step] ahead of those drawn, or, shared, their means over all trajectories.

    None without the data of the fit (a saved result has none), for arrays that are never read whole, and where means would
    disclose a subject.
    """
    here = model._memory.model.data.shape[0] > 0 and as_lazy(panel.values) is None
    hidden = share and (not model.result_.shared_order or len(panel.ids) < MIN_SUBJECTS_OF_MEAN)
    if not steps or not here or hidden:
        return None
    with warnings.catch_warnings(
        action="ignore"
    ):  # the page says itself that the direction is open
        ahead = model.forecast(None, steps)
    lines = [
        each[:, :, variables].transpose(0, 2, 1) for each in (ahead.mean, ahead.low, ahead.high)
    ]
    mean, low, high = (each.mean(axis=0)[None] if share else each[rows] for each in lines)
    owners = [0] if model.result_.shared_order else rows
    return {
        "mean": _numbers(mean), "low": _numbers(low), "high": _numbers(high),
        "times": [_numbers(times_of(ahead.times, int(j))) for j in owners], "level": ahead.level,
    }  # fmt: skip


def _clearest_variables(model: ReTrace, thinned: list[str]) -> Indices:
    """Variables of the matrices and graphs: all, or, of many, those of the clearest coefficients."""
    d = len(model.result_.names)
    if d <= MAX_MATRIX_VARIABLES:
        return np.arange(d)
    thinned.append(
        f"matrices and graphs show the {MAX_MATRIX_VARIABLES} of {d:,} variables with the clearest coefficients"
    )
    A, errors = model.drift_, model.standard_errors_.drift
    square = A.shape[0] == A.shape[1]
    chosen: dict[int, None] = {}
    for i, j in clearest(A, errors):
        chosen |= dict.fromkeys((i, j) if square else (i,))
        if len(chosen) >= MAX_MATRIX_VARIABLES:
            break
    return np.sort(np.array(list(chosen)[:MAX_MATRIX_VARIABLES], dtype=np.intp))


def _part(values: Array, kept: Indices) -> Array:
    """Rows of the variables shown, and their columns where columns are variables."""
    square = values.shape[0] == values.shape[1]
    return values[np.ix_(kept, kept)] if square else values[kept]


def _named(names: Sequence[str], kept: Indices) -> list[str]:
    return [names[int(k)] for k in kept]


def _drift(model: ReTrace, kept: Indices) -> dict[str, Any]:
    """Coefficients with 95 % intervals, and the significant ones, the clearest first."""
    values, errors = model.drift_, model.standard_errors_.drift
    edges = significant_edges(values, errors, model.result_.n_groups)
    clear = _clear(edges, kept, square=values.shape[0] == values.shape[1])
    return {
        **_shaded(model, model.result_, kept),
        **_intervals(model, _part(values, kept), _part(errors, kept)),
        **clear,
    }


def _shaded(model: ReTrace, found: ReTraceResult | Twin, kept: Indices) -> dict[str, Any]:
    """Coefficients and what colours compare, free of the variables' units: `A_ij √(H_jj / H_ii)`, or estimate / error."""
    A, errors = found.drift, model.standard_errors_.drift
    shade, unit = A / np.where(errors > 0, errors, np.inf), "estimate / standard error"
    columns = list(model.result_.feature_names[: A.shape[1]])
    if A.shape[0] == A.shape[1]:
        shade, unit = comparable(A, found.diffusion), "in units of each variable's noise"
        columns = _named(columns, kept)
    values, shade = _numbers(_part(A, kept)), _numbers(_part(shade, kept))
    return {"columns": columns, "values": values, "shade": shade, "unit": unit}


def _clear(edges: list[Edge], kept: Indices, *, square: bool) -> dict[str, Any]:
    """Edges as the page draws them, among the variables shown, and how many there are of all."""
    row = {int(k): at for at, k in enumerate(kept)}
    inside = [(row.get(i), row.get(j) if square else j, strength) for i, j, strength in edges]
    found = [each for each in inside if each[0] is not None and each[1] is not None]
    shown = [[i, j, *_numbers([strength], digits=3)] for i, j, strength in found[:MAX_EDGES]]
    return {"clear": shown, "n_clear": len(edges)}


def _graphs(model: ReTrace, kept: Indices) -> list[dict[str, Any]]:
    """The graphs of effects that the page can show, each with its twin's where the direction is undetermined."""
    kinds = [Effect.RATES]
    d = len(model.result_.names)
    if model.drift_.shape == (d, d) and d <= MOST_VARIABLES_FOR_DELTA:
        kinds.append(Effect.OVER_TIME)
        if np.linalg.eigvals(model.drift_).real.max() < 0:
            kinds.append(Effect.FOR_GOOD)
    return [_graph(effect_graph(model, kind=kind), kept) for kind in kinds]


def _graph(graph: EffectGraph, kept: Indices) -> dict[str, Any]:
    square = graph.values.shape[0] == graph.values.shape[1]
    return {
        "label": effect_label(graph), "columns": _named(graph.causes, kept) if square else list(graph.causes),
        **{name: _numbers(_part(getattr(graph, name), kept)) for name in ("values", "low", "high")},
        **_clear(graph_edges(graph), kept, square=square),
        "twin": None if graph.twin is None else _graph(graph.twin, kept),
    }  # fmt: skip


def _residuals(model: ReTrace, variables: Indices) -> dict[str, Any] | None:
    """Quantiles, autocorrelations, spreads and means by position, and simulated beside observed paths."""
    check = model.residuals_
    if not check.tested:
        return None
    steps = evenly(len(check.spreads), MAX_SLICES)
    slices = evenly(check.band.shape[1], MAX_SLICES)
    times = np.asarray(model.times_, dtype=float)
    _, chance = autocorrelation_band(check)
    return {
        "variables": [model.result_.names[int(k)] for k in variables],
        "scores": _numbers(check.scores), "quantiles": _numbers(check.quantiles[:, variables].T),
        "autocorrelations": _numbers(check.autocorrelations[:, variables].T), "chance": _numbers(chance),
        "steps": steps.tolist(), "spreads": _numbers(check.spreads[steps][:, variables].T),
        "means": _numbers(check.means[steps][:, variables].T),
        "times": _numbers(times_of(times, 0)[slices]),
        "band": _numbers(check.band[:, slices][:, :, variables].transpose(2, 0, 1)),
        "observed": _numbers(check.observed[:, slices][:, :, variables].transpose(2, 0, 1)),
    }  # fmt: skip


def _diffusion(model: ReTrace, kept: Indices) -> dict[str, Any]:
    """H with 95 % intervals, coloured by the correlation of the noise."""
    H, errors = (_part(each, kept) for each in (model.diffusion_, model.standard_errors_.diffusion))
    scale = np.sqrt(np.diag(H))
    return {
        "columns": _named(model.result_.names, kept), **_intervals(model, H, errors),
        "shade": _numbers(H / np.outer(scale, scale)), "unit": "correlation of the noise",
    }  # fmt: skip


def _intervals(model: ReTrace, values: Array, errors: Array) -> dict[str, Any]:
    reach = half_widths(errors, model.result_.n_groups)
    ends = {"low": _numbers(values - reach), "high": _numbers(values + reach)}
    return {"values": _numbers(values), **ends}


def _eigenvalues(A: Array) -> list[Any] | None:
    if A.shape[0] != A.shape[1]:
        return None
    found = np.linalg.eigvals(A)
    found = found[np.lexsort((found.imag, -found.real))]
    return _numbers(np.column_stack([found.real, found.imag]))


def _direction(model: ReTrace, panel: Panel) -> dict[str, Any]:
    """A histogram of `Δ_j`, with the names of the trajectories in each bar as far as there is room."""
    delta = np.asarray(model.direction_.contributions, dtype=float)
    rows = np.flatnonzero(np.isfinite(delta))
    delta = delta[rows] if rows.size else np.zeros(1)
    edges, bar = histogram(delta)
    named = [
        [str(panel.ids[int(j)]) for j in rows[np.flatnonzero(bar == k)[:5]]]
        for k in range(len(edges) - 1)
    ]
    return {
        "edges": _numbers(edges, digits=6), "names": named,
        "counts": np.bincount(bar, minlength=len(edges) - 1).tolist(),
        "mean": _numbers(delta.mean()), "identified": model.direction_.identified,
    }  # fmt: skip


def _gaps(model: ReTrace) -> dict[str, Any] | None:
    """Gaps along a shared order, with intervals where estimated; a regular grid has none to show."""
    gaps = np.asarray(model.gaps_, dtype=float)
    if not same_for_all(gaps) or not gaps.size or np.ptp(gaps) <= 1e-9 * np.abs(gaps).max():
        return None
    found = {"values": _numbers(gaps), "times": _numbers(model.times_)}
    intervals = model.result_.gap_intervals
    if intervals is not None:
        found |= {"low": _numbers(intervals[:, 0]), "high": _numbers(intervals[:, 1])}
    return found


def _numbers(values: Any, *, digits: int = PAGE_DIGITS) -> Any:
    """Nested lists of numbers short enough for a page; what is not finite becomes null."""
    return plain(np.asarray(values, dtype=float), digits=digits)
