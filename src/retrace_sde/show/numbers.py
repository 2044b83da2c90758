"""The numbers behind each figure, computed once: drawn by matplotlib (`plots`) and by the page (`figures`, `templates/report.js`)."""

from __future__ import annotations

import numpy as np

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.effects.graph import Effect, EffectGraph
from retrace_sde.fit.intervals import clearest, clearness, critical
from retrace_sde.io.arrays import Array, Indices, Mask

Edge = tuple[int, int, float]
"""An effect of variable j on variable i: (i, j, |estimate| / standard error)."""

MAX_BARS = 40
"""Bars of a histogram, at most."""


def significant_edges(values: Array, errors: Array, n: float) -> list[Edge]:
    """The coefficients whose own 95 % interval excludes zero, the clearest first; n trajectories are behind the errors."""
    return _edges(values, errors, clearness(values, errors) > critical(n))


def graph_edges(graph: EffectGraph) -> list[Edge]:
    """The effects that are significant when all are tested at once, the clearest first."""
    return _edges(graph.values, graph.errors, graph.told)


def _edges(values: Array, errors: Array, significant: Mask) -> list[Edge]:
    strength = clearness(values, errors)
    return [(i, j, float(strength[i, j])) for i, j in clearest(values, errors) if significant[i, j]]


def effect_label(graph: EffectGraph) -> str:
    """What kind of effects a graph has, with the formula."""
    return {
        Effect.RATES: "on rates of change, A",
        Effect.OVER_TIME: f"after a time of {graph.span:.4g}, exp(A Δ)",
        Effect.FOR_GOOD: "lasting, on the equilibrium, −A⁻¹",
    }[graph.kind]


def histogram(values: Array) -> tuple[Array, Indices]:
    """Edges of the bars of a histogram, and the bar of each value. Zero is an edge: a bar is on one side of it."""
    width = np.ptp(values) / min(MAX_BARS, max(5, len(values) // 4)) or 1.0
    edges = width * np.arange(np.floor(values.min() / width), np.floor(values.max() / width) + 2)
    bar = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return edges, bar


def autocorrelation_band(check: ResidualCheck) -> tuple[Indices, Array]:
    """The lags of the residuals' autocorrelations, and how large they are by chance in 95 %."""
    lags = 1 + np.arange(len(check.autocorrelations))
    count = np.maximum(check.trajectories * (len(check.spreads) - lags), 1)
    return lags, critical() / np.sqrt(count)
