"""Positivity: which treatments were given, and whether a comparison stays among them.

A treatment that no visit had is a matter of the model, not of the data: two drugs that were never given together may help each other
or harm. So each amount must lie in the range that was given, the same set of treatments must have been given together (an amount of zero
is none), and with that set the amounts must lie in the ranges seen with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrace_sde.io.arrays import Array, Mask
from retrace_sde.panel.inputs import AdvisedError

MIN_SUBJECTS_TREATED = 5
"""Subjects with a treatment below which a comparison rests on few of them, and is said to."""

MOST_SUGGESTED = 4
"""Treatments that were given and are proposed instead."""

SLACK = 1e-6
"""Of a range, by which an amount may lie outside it."""


class OutsideSupportError(AdvisedError):
    """The comparison asks for a treatment that no visit had.

    Parameters
    ----------
    finding : str
        What was asked for, and what was given instead.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> issubclass(rt.treatment.OutsideSupportError, ValueError)
    True
    """

    advice = "Name them with T0= and T1=, or extrapolate by the model alone with outside_support='allow'."


@dataclass(frozen=True)
class TreatmentSet:
    """Treatments that were given together: which (k,), in how many visits of how many subjects, and their ranges (k,)."""

    on: tuple[bool, ...]
    visits: int
    subjects: int
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Support:
    """All sets of treatments that were given together, the most frequent first."""

    names: tuple[str, ...]
    sets: tuple[TreatmentSet, ...]

    @classmethod
    def of(cls, u: Array, inside: Mask, names: tuple[str, ...]) -> Support:
        """From covariates (n, T, k), where visits took place (n, T)."""
        known = inside & ~np.isnan(u).any(axis=2)
        who, rows = np.nonzero(known)[0], u[known]
        on, which = np.unique(rows != 0, axis=0, return_inverse=True)
        which = which.reshape(-1)
        found = []
        for k, each in enumerate(on):
            some = rows[which == k]
            found.append(
                TreatmentSet(
                    tuple(map(bool, each)),
                    len(some),
                    len(np.unique(who[which == k])),
                    tuple(some.min(axis=0).tolist()),
                    tuple(some.max(axis=0).tolist()),
                )
            )
        return cls(names, tuple(sorted(found, key=lambda each: -each.visits)))

    def check(self, value: Array) -> None:
        """Raise `OutsideSupportError` where a treatment (…, k) was never given."""
        for row in np.unique(value.reshape(-1, value.shape[-1]), axis=0):
            found = self._missing(row)
            if found is not None:
                raise OutsideSupportError(
                    f"this treatment is outside what was given: {found}. Compare treatments that were given: {self.suggested()}."
                )

    def _missing(self, row: Array) -> str | None:
        """What was never given, in words; None where all was."""
        low, high = (
            np.array([getattr(each, end) for each in self.sets]) for end in ("low", "high")
        )
        least, most = low.min(axis=0), high.max(axis=0)
        slack = SLACK * (most - least)
        for name, asked, lo, hi, s in zip(self.names, row, least, most, slack, strict=True):
            if not lo - s <= asked <= hi + s:
                return f"{name} = {asked:g} was never given, {name} was {_range(lo, hi)}"
        on = tuple(map(bool, row != 0))
        match = next((each for each in self.sets if each.on == on), None)
        if match is None:
            together = [name for name, there in zip(self.names, on, strict=True) if there]
            without = [name for name, there in zip(self.names, on, strict=True) if not there]
            if len(together) > 1:
                tail = f" without {' and '.join(without)}" if without else ""
                return f"{' and '.join(together)} were never given together{tail}"
            if together:
                return f"{together[0]} was never given without {' or '.join(without)}"
            return f"no visit was without {' or '.join(without)}"
        for name, asked, lo, hi, s in zip(
            self.names, row, match.low, match.high, slack, strict=True
        ):
            if not lo - s <= asked <= hi + s:
                others = self._named(match, but=name)
                where = f" with {others}" if others else " alone" if len(self.names) > 1 else ""
                return (
                    f"{name} = {asked:g} was never given{where}, {name} was then {_range(lo, hi)}"
                )
        return None

    def thin(self, value: Array) -> str | None:
        """A caution where a treatment was given to few subjects."""
        for row in np.unique(value.reshape(-1, value.shape[-1]), axis=0):
            on = tuple(map(bool, row != 0))
            for each in self.sets:
                if each.on == on and each.subjects < MIN_SUBJECTS_TREATED:
                    count = f"{each.subjects} subject{'s' if each.subjects > 1 else ''}"
                    return f"{self._named(each)} was given to {count} only."
        return None

    def suggested(self) -> str:
        """The treatments that were given most, in words."""
        first = self.sets[:MOST_SUGGESTED]
        more = len(self.sets) - len(first)
        listed = "; ".join(f"{self._named(each)} ({each.visits} visits)" for each in first)
        return f"{listed}{f'; and {more} other sets' if more else ''}"

    def _named(self, given: TreatmentSet, but: str | None = None) -> str:
        parts = [
            f"{name} = {_range(lo, hi)}"
            for name, on, lo, hi in zip(self.names, given.on, given.low, given.high, strict=True)
            if on and name != but
        ]
        alone = len(parts) == 1 and len(self.names) > 1 and but is None
        if alone:
            return f"{parts[0]} alone"
        return " with ".join(parts) if parts or but is not None else "none"


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
