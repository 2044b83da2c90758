"""The data as the package sees them: values (n, T, d) with their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Panel:
    """n trajectories of T observations of d variables, in an order along T that need not be known.

    `values` (n, T, d); `covariates` (n, T, k) travel with their observation; `ids` name the
    trajectories; `dt` is the time between neighbouring observations, if known. Trajectories of different
    length are padded to T, and `lengths` (n,) says how many observations each has.
    """

    values: Any
    names: tuple[str, ...]
    ids: tuple[str, ...]
    covariates: Any | None = None
    covariate_names: tuple[str, ...] = ()
    dt: float | None = None
    lengths: NDArray[np.intp] | None = None

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[ArrayLike],
        *,
        names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from arrays (T_j, d) of different length T_j, for independent orders."""
        arrays = [np.asarray(each) for each in trajectories]
        if not arrays or any(each.ndim != 2 for each in arrays):
            raise ValueError("trajectories must be a list of arrays (time, variable).")
        widths = sorted({each.shape[1] for each in arrays})
        if len(widths) > 1:
            raise ValueError(
                f"all trajectories must have the same variables; got {widths} of them."
            )
        lengths = np.array([len(each) for each in arrays], dtype=np.intp)
        if lengths.min() < 1:
            raise ValueError(f"trajectory {int(lengths.argmin())} has no observations: drop it.")
        values = np.empty((len(arrays), lengths.max(), widths[0]))
        for row, each in zip(values, arrays, strict=True):
            # Padded with its own last state, a trajectory keeps its range and its level.
            row[: len(each)], row[len(each) :] = each, each[-1]
        panel = cls.from_array(values, names=names, ids=ids, dt=dt)
        return replace(panel, lengths=lengths)

    @classmethod
    def from_array(
        cls,
        values: Any,
        *,
        names: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        covariates: Any | None = None,
        covariate_names: Sequence[str] | None = None,
        dt: float | None = None,
    ) -> Panel:
        """A panel from an array (trajectory, time, variable); names and ids are numbered if left out.

        The array is neither copied nor checked here: `fit` does that.
        """
        if not hasattr(values, "shape"):
            values = np.asarray(values)
        n, d = (values.shape[0], values.shape[-1]) if len(values.shape) == 3 else (0, 0)
        k = 0 if covariates is None else covariates.shape[-1]
        return cls(
            values,
            tuple(names) if names is not None else tuple(f"x{i}" for i in range(d)),
            tuple(ids) if ids is not None else tuple(str(j) for j in range(n)),
            covariates,
            tuple(covariate_names)
            if covariate_names is not None
            else tuple(f"u{i}" for i in range(k)),
            dt,
        )
