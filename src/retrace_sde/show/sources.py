"""What plots draw of a fit: a `ReTrace`, a `Recovery` or a `ReTraceResult` in the place of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrace_sde.after.residuals import ResidualCheck
from retrace_sde.estimator.conventions import check_is_fitted
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.clock import same_for_all
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel
from retrace_sde.paper.baselines import slice_distances
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace

Plot = TypeVar("Plot", bound=Callable[..., Any])
Drawn = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments of a plot, and the others."""


@dataclass(frozen=True, eq=False)
class Source:
    """A fit: its result, the model where it is at hand, and the panel with its labels where that is."""

    result: ReTraceResult
    fitted: ReTrace | None = None
    given: Panel | None = None

    @classmethod
    def of(cls, found: Any) -> Source | None:
        """Of what a plot was given; None where that is no fit."""
        if isinstance(found, ReTraceResult):
            return cls(found)
        model = getattr(found, "model", found)  # of a Recovery
        if not isinstance(model, ReTrace):
            return None
        check_is_fitted(model, "result_")
        return cls(model.result_, model, getattr(found, "panel", None))

    @property
    def model(self) -> ReTrace:
        """The fitted model; a result alone does not keep what this needs."""
        if self.fitted is None:
            raise ValueError(
                "this plot needs the data: pass the fitted ReTrace or the Recovery, not its result."
            )
        return self.fitted

    @property
    def panel(self) -> Panel:
        """The data as they were given; without a table, as the model keeps them."""
        if self.given is not None:
            return self.given
        places = np.argsort(self.result.order, axis=-1)
        states = self.model.states_
        n = len(states)
        index = np.broadcast_to(places, (n, states.shape[1]))
        values = np.take_along_axis(states, index[:, :, None], axis=1)
        return Panel.from_array(values, names=self.result.names)

    @property
    def order(self) -> Indices:
        """The order of the slices; of orders of single trajectories, the first."""
        return Order.of(self.result.order).of_trajectory(0)

    @property
    def labels(self) -> dict[str, Any]:
        """Names of the slices, where the table has some."""
        slices = None if self.given is None else self.given.slices
        return {} if slices is None else {"labels": [str(each) for each in slices]}

    @property
    def probabilities(self) -> NDArray[Any]:
        """Of positions (T, T); of orders of single trajectories, those of the first."""
        found = self.model.position_probabilities_
        return found if found.ndim == 2 else found[0]

    @property
    def residuals(self) -> ResidualCheck:
        """The residual check, which is not made along orders of single trajectories that are uncertain."""
        found = self.result.residuals
        if found is None or not found.tested:
            raise ValueError("the orders are uncertain, so that there are no residuals to draw.")
        return found

    @property
    def names(self) -> dict[str, Any]:
        """Names of the variables."""
        return {"names": self.result.names}

    @property
    def times(self) -> dict[str, Any]:
        """Times of the positions, where all trajectories have the same."""
        times = self.result.times
        return {"times": times} if same_for_all(times) else {}

    @property
    def drift(self) -> tuple[Array, Array]:
        """A and its standard errors."""
        return self.result.drift, self.result.standard_errors.drift

    @property
    def coefficients(self) -> dict[str, Any]:
        """Names of rows and columns of A, and the number of trajectories behind its errors."""
        columns = self.result.feature_names[: self.result.drift.shape[1]]
        return {"names": self.result.names, "features": columns, "n": self.result.n_groups}

    @property
    def costs(self) -> Array:
        """Distances between slices, each variable in units of its standard deviation."""
        if not self.result.shared_order:
            raise ValueError("each trajectory has its own order: there are no slices to compare.")
        values = np.asarray(self.panel.values, dtype=float)
        spread = np.nanstd(values, axis=(0, 1))
        return slice_distances(np.nan_to_num((values - np.nanmean(values, axis=(0, 1))) / spread))


def takes_fits(read: Callable[[Source], Drawn]) -> Callable[[Plot], Plot]:
    """A plot that takes a fit in the place of its first argument; `read` finds what it draws, options given go before."""

    def wrap(plot: Plot) -> Plot:
        @wraps(plot)
        def drawn(first: Any, *rest: Any, **options: Any) -> Any:
            source = Source.of(first)
            if source is None:
                return plot(first, *rest, **options)
            if rest and isinstance(rest[0], Panel):
                source = replace(source, given=rest[0])
            args, found = read(source)
            return plot(args[0], *rest, *args[1 + len(rest) :], **{**found, **options})

        return drawn  # type: ignore[return-value]

    return wrap


def axes_for(ax: Any | None, title: str, x: str, y: str, **more: Any) -> Any:
    """The axes given, or new ones, with their title and labels."""
    if ax is None:
        # Drawing is the only thing that needs matplotlib's state machine, and it is slow to import.
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1]
    ax.set(title=title, xlabel=x, ylabel=y, **more)
    return ax


def slice_ticks(axis: Any, labels: Sequence[str] | None, order: Indices | None, most: int) -> None:
    """Labels of slices along an axis, in an order; of many, evenly spaced ones."""
    if labels is None:
        return
    shown = [str(labels[k]) for k in (range(len(labels)) if order is None else order)]
    at = range(0, len(shown), -(-len(shown) // most))
    axis.set_ticks(list(at), [shown[k] for k in at])
    if axis.axis_name == "x" and max(map(len, shown)) > 2:
        axis.set_tick_params(rotation=90)
