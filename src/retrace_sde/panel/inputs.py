"""Inputs that are missing here and there: carried on, interpolated, or refused, as the user says by name."""

from __future__ import annotations

from typing import Literal

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.panel.clock import times_of
from retrace_sde.panel.order import Order

MissingInputs = Literal["refuse", "carry", "interpolate"]


class AdvisedError(ValueError):
    """What was found, and what to do about it."""

    advice = ""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.advice}"


class MissingInputsError(AdvisedError):
    """Inputs are missing, and it was not said how to fill them."""

    advice = (
        "Choose missing_covariates='carry' (the last value before holds on) or missing_covariates='interpolate', or leave that "
        "covariate out."
    )


def constants_filled(u: Array) -> Array:
    """Inputs (n, T, k) whose known values are the same throughout every trajectory, filled in where they are missing."""
    gone = np.isnan(u)
    if not gone.any():
        return u
    low = np.where(gone, np.inf, u).min(axis=1)
    high = np.where(gone, -np.inf, u).max(axis=1)
    again = ((~gone).sum(axis=1) > 1).any(axis=0)  # one value in each would say nothing
    constant = np.isfinite(low) & again & (high <= low).all(axis=0)
    return np.where(gone & constant[:, None], low[:, None], u)


def filled_inputs(
    u: Array, how: MissingInputs, order: Indices | None = None, times: Array | None = None
) -> Array:
    """Inputs (n, T, k) with NaN filled in along an order: by the last value before, or on the line between two.

    Before the first known value the first is used, after the last the last. Without an order each trajectory's mean is used
    for what is missing, as a start; an input that a trajectory never has is its mean over all trajectories.
    """
    n, T, k = u.shape
    filled = u.copy()
    overall = np.nanmean(u, axis=(0, 1))
    at = np.arange(T, dtype=float)
    for j in range(n):
        path = np.arange(T) if order is None else Order.of(order).of_trajectory(j)
        clock = at if times is None else np.asarray(times_of(times, j))
        for i in range(k):
            along = u[j, path, i]
            known = np.flatnonzero(~np.isnan(along))
            if len(known) == T:
                continue
            if len(known) == 0:
                filled[j, :, i] = overall[i]
            elif order is None:
                filled[j, np.isnan(u[j, :, i]), i] = along[known].mean()
            elif how == "carry":
                last = np.maximum(np.searchsorted(known, np.arange(T), side="right") - 1, 0)
                filled[j, path, i] = along[known[last]]
            else:
                line = np.interp(np.nan_to_num(clock, nan=at[-1]), clock[known], along[known])
                filled[j, path, i] = np.where(np.isnan(along), line, along)
    return filled
