"""Pictures of a result. Every function takes and returns a matplotlib Axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrace_sde.blocks import Array, Order
from retrace_sde.direction import DirectionTest
from retrace_sde.metrics import position_calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORWARD, BACKWARD, NEUTRAL = "#0072B2", "#D55E00", "#666666"
"""Okabe and Ito's colours, told apart with every kind of colour vision."""


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    # Drawing is the only thing that needs matplotlib's state machine, and it is slow to import.
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def cost_matrix(costs: Array, order: Order | None = None, *, ax: Axes | None = None) -> Axes:
    """Cost of slice b (column) right after slice a (row), as stored or along an order.

    Along the right order the cheap pairs lie next to the diagonal. Colours are ranks, so that a few
    very far pairs do not hide the rest.
    """
    ax = _axes(ax)
    T = len(costs)
    if order is not None:
        costs = costs[np.ix_(order, order)]
    off = ~np.eye(T, dtype=bool)
    ranks = np.full((T, T), np.nan)
    ranks[off] = np.argsort(np.argsort(costs[off])) / max(T * (T - 1) - 1, 1)
    image = ax.imshow(ranks, cmap="viridis", interpolation="nearest", vmin=0, vmax=1)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04, ticks=[0, 1])
    bar.ax.set_yticklabels(["cheap", "dear"])
    where = "as stored" if order is None else "in recovered order"
    ax.set(title=f"Transition costs {where}", xlabel="next slice", ylabel="slice")
    return ax


def matrix(
    values: Array, *, title: str, limit: float | None = None, ax: Axes | None = None
) -> Axes:
    """A drift or diffusion matrix as a heat map, zero in white, symmetric in ±limit."""
    ax = _axes(ax)
    limit = float(np.abs(values).max()) if limit is None else limit
    image = ax.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04)
    ax.set(title=title, xlabel="effect of variable", ylabel="on variable")
    return ax


def direction_evidence(test: DirectionTest, *, ax: Axes | None = None) -> Axes:
    """Each trajectory's log-likelihood, this order minus its reverse: right of zero speaks for this order."""
    ax = _axes(ax)
    delta = test.contributions
    bins = min(40, max(5, len(delta) // 4))
    ax.hist(delta, bins=bins, color=FORWARD if test.identified else NEUTRAL, alpha=0.75)
    ax.axvline(0, color="black", linewidth=1)
    ax.axvline(delta.mean(), color=BACKWARD, linewidth=2, label=f"mean {delta.mean():+.2g}")
    called = "identified" if test.identified else "undetermined"
    ax.set(
        title=f"Direction {called} (z = {test.z:.1f})",
        xlabel="forward − backward, nats per trajectory",
        ylabel="trajectories",
    )
    ax.legend(frameon=False)
    return ax


def calibration(true: Order, probabilities: NDArray[Any], *, ax: Axes | None = None) -> Axes:
    """How often placements came true against the probability they were given, with 95 % error bars."""
    ax = _axes(ax)
    given, came, count = np.array(
        position_calibration(true, probabilities, edges=np.linspace(0.05, 1, 11))
    ).T
    error = 1.96 * np.sqrt(came * (1 - came) / count)
    ax.plot([0, 1], [0, 1], color=NEUTRAL, linewidth=1, label="calibrated")
    ax.errorbar(given, came, error, fmt="o", color=FORWARD, capsize=3, label="placements")
    ax.set(
        title="Position probabilities",
        xlabel="probability given",
        ylabel="share that was right",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    ax.legend(frameon=False)
    return ax


def position_probabilities(
    probabilities: NDArray[Any], order: Order, *, ax: Axes | None = None
) -> Axes:
    """Where each observation of one trajectory (or of a shared order) may stand; dark is likely."""
    ax = _axes(ax)
    image = ax.imshow(probabilities[order], cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, fraction=0.046, pad=0.04)
    ax.set(
        title="Position probabilities",
        xlabel="position",
        ylabel="observation, in the most probable order",
    )
    return ax


def trajectories(
    X: Array,
    order: Order | None = None,
    *,
    variable: int = 0,
    most: int = 30,
    ax: Axes | None = None,
) -> Axes:
    """One variable of a few trajectories against slice, as stored or along an order."""
    ax = _axes(ax)
    rows = np.linspace(0, len(X) - 1, min(most, len(X))).astype(int)
    lines = X[rows, :, variable]
    ax.plot(lines.T if order is None else lines[:, order].T, linewidth=0.7, alpha=0.6)
    ax.set(title="as stored" if order is None else "restored", xlabel="slice", ylabel="value")
    return ax
