"""The data as the package sees them: values (n, T, d) with their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Panel:
    """n trajectories of T observations of d variables, in an order along T that need not be known.

    `values` (n, T, d); `covariates` (n, T, k) travel with their observation; `ids` name the
    trajectories; `dt` is the time between neighbouring observations, if known.
    """

    values: Any
    names: tuple[str, ...]
    ids: tuple[str, ...]
    covariates: Any | None = None
    covariate_names: tuple[str, ...] = ()
    dt: float | None = None

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
