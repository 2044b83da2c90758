"""A suspect as users see it: where it is, what is expected there, how likely it is wrong, and a likely repair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from retrace_sde.io.arrays import Mask

Kind = Literal["cell", "row", "trajectory", "slice"]


@dataclass(frozen=True)
class Suspect:
    """A value, a row, a trajectory or a slice that is probably wrong, in the places and units of the data given.

    Attributes
    ----------
    kind : {"cell", "row", "trajectory", "slice"}
        One value, a whole observation, or a variable of a whole trajectory or slice.
    trajectory, slice : int or None
        Which; None: all of them.
    variable : str or None
        Its name; None: all variables of the row.
    value, expected, sd : float or None
        What is given, what both neighbours in time expect, and the standard deviation of that; of cells only.
    probability : float
        That it is wrong: one minus the estimated share of false alarms among those at least as clear.
    missing : bool
        It is treated as missing in this fit.
    repair : str
        What may have happened, in words; empty where nothing is known.
    where : str
        Its place by the labels of the data.
    """

    kind: Kind
    trajectory: int | None
    slice: int | None
    variable: str | None
    value: float | None
    expected: float | None
    sd: float | None
    probability: float
    missing: bool
    repair: str = ""
    where: str = ""

    def __str__(self) -> str:
        seen = ""
        if self.value is not None and self.expected is not None:
            seen = f": {self.value:.4g} where {self.expected:.4g} ± {self.sd:.2g} is expected"
        elif not self.repair:
            seen = f": the {self.kind} does not fit the rest"
        likely = f"; {self.repair}" if self.repair else ""
        return f"{self.where}{seen}{likely}"


def cells(suspects: Iterable[Suspect], shape: tuple[int, ...], names: Sequence[str]) -> Mask:
    """Which values of a panel (n, T, d), as given, whose variables have these names, are suspects."""
    suspects = tuple(suspects)
    if not suspects:
        return np.broadcast_to(
            np.array(False), shape
        )  # no memory for panels that are never read whole
    found = np.zeros(shape, dtype=bool)
    for each in suspects:
        j = slice(None) if each.trajectory is None else each.trajectory
        t = slice(None) if each.slice is None else each.slice
        v = slice(None) if each.variable is None else names.index(each.variable)
        found[j, t, v] = True
    return found


MIN_FACTOR, KNOWN_EXPECTATION = 4.0, 2.0
"""Least factor that is said, and standard deviations from zero from which a ratio to what is expected means something."""


def factor(value: float, expected: float, sd: float) -> float | None:
    """By how many times a value differs from what is expected; None where that says nothing, as where signs differ."""
    if value == 0 or abs(expected) < KNOWN_EXPECTATION * sd:
        return None
    ratio = value / expected
    return ratio if ratio > 0 and abs(np.log(ratio)) >= np.log(MIN_FACTOR) else None
