"""What trajectories share at each time (plates, batches, common shocks): tested, and taken out of what stamps are judged by.

The test is that of a fit (`evidence/dependence`), on steps between rows whose stamps are probably right. Where slices have stamps, a slice's effect
goes wherever the slice goes: deviations from the slice means are judged. Where rows have stamps, a row that was stamped wrongly has the effect of its
true time: its deviation depends on the time that it is given, `x_a − m(t)` with m of the shared time nearest to t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from retrace_sde.estimator.common import tied_within_slices
from retrace_sde.evidence.dependence import (
    MIN_TESTED_SLICES,
    Dependence,
    DependenceKind,
    cleared,
    dependence_of,
    not_tested,
)
from retrace_sde.io.arrays import Array, Indices
from retrace_sde.search.mean_path import slice_effects, without_slice_effects
from retrace_sde.search.stamps.judge import (
    NOISY_STAMP_GAPS,
    Sequence,
    audit_sequences,
    sequences_of,
    standardised,
)
from retrace_sde.search.stamps.law import StepLaw

SHARED_BY = 0.5
"""Share of the subjects from which a time counts as one that they share."""

OWN_TIMES = (
    f"the subjects have fewer than {MIN_TESTED_SLICES} times in common that are known exactly"
)
TIED = "some combination of the variables is the same in all rows of a time, so that nothing is left without what they share"


class Judged(NamedTuple):
    """What was found of each subject, or of the slices, the typical gap, and what is shared."""

    found: list[Sequence]
    unit: float
    dependence: Dependence


@dataclass(frozen=True, eq=False)
class Table:
    """Values (n, T, d), NaN where missing; stamps (n, T) of rows or (T,) of slices; lengths (n,); and the stamps' error."""

    values: Array
    stamps: Array
    lengths: Indices
    error: float

    def sequences(self) -> tuple[list[Sequence], float]:
        """What is judged as if subjects were independent, and its unit."""
        return sequences_of(self.values, self.stamps, self.lengths, self.error)

    def judged(self, rng: np.random.Generator, *, wrong: float) -> Judged:
        """The stamps judged; without what subjects share, where they share something."""
        sequences, unit = self.sequences()
        alone, law = audit_sequences(sequences, rng, wrong=wrong)
        dependence, found = self.tested(alone, law), alone
        if dependence.kind is DependenceKind.COMMON:
            apart, why = self.apart(alone)
            dependence = replace(dependence, removed=not why, why=why)
            if apart:
                found, _ = audit_sequences(apart, rng, wrong=wrong)
        return Judged(found, unit, dependence)

    def tested(self, found: list[Sequence], law: StepLaw) -> Dependence:
        """Whether subjects share something, by the steps between stamps that are probably right."""
        n = len(self.values)
        if self.stamps.ndim == 1:
            (whole,) = found
            order = np.argsort(whole.expected)
            x, times = whole.values[:, order], whole.expected[order]
        else:
            times = shared_times(found)
            if len(times) < MIN_TESTED_SLICES:
                return not_tested(OWN_TIMES)
            x = aligned(found, [each.values[0] for each in found], times)
        F, s, roots, _ = law.steps(np.maximum(np.diff(times), 0.1))
        ahead = np.einsum("tij,ntj->nti", F, x[:, :-1]) + s
        residuals = np.einsum("tij,ntj->nti", roots, x[:, 1:] - ahead)
        return dependence_of(cleared(residuals, standardised(x)), n)

    def apart(self, found: list[Sequence]) -> tuple[list[Sequence], str]:
        """What is judged as deviations from what subjects share; or why there are none."""
        n, T, d = self.values.shape
        if self.stamps.ndim == 1:
            if tied_within_slices(self.values):
                return [], TIED
            return replace(self, values=without_slice_effects(self.values)).sequences()[0], ""
        times = shared_times(found)
        x = aligned(found, list(self.values), times)
        if tied_within_slices(x):
            return [], TIED
        effects, factor = slice_effects(x), np.sqrt(n / (n - 1))
        edges = (times[1:] + times[:-1]) / 2
        stamps = np.full((n, T), np.nan)
        for j, each in enumerate(found):
            stamps[j, : len(each.stamps)] = each.stamps
        here = effects[np.searchsorted(edges, stamps)]
        deviations = factor * (self.values - here)
        scale = np.nanstd(deviations, axis=(0, 1))
        scale = np.where(scale > 0, scale, 1.0)
        # A value that is missing is the subject's median deviation, whichever its time.
        moved = factor * (here[:, :, None] - effects) / scale
        moved[np.isnan(self.values)[:, :, None].repeat(len(times), axis=2)] = 0.0
        plain, _ = replace(self, values=deviations / scale).sequences()
        parts = [
            (each.values[0][:, None] + moved[j, : len(each.stamps)]).reshape(1, -1, d)
            for j, each in enumerate(plain)
        ]
        return [replace(a, values=x, edges=edges) for a, x in zip(plain, parts, strict=True)], ""


def shared_times(found: list[Sequence]) -> Array:
    """Stamps (P,) that at least half of the subjects have; none where stamps are too rough for equal ones to be the same time."""
    if np.median(np.concatenate([each.error for each in found])) >= NOISY_STAMP_GAPS:
        return np.zeros(0)
    every = np.concatenate([each.stamps[~np.isnan(each.stamps)] for each in found])
    times, counts = np.unique(every, return_counts=True)
    return times[counts >= SHARED_BY * len(found)]


def aligned(found: list[Sequence], values: list[Array], times: Array) -> Array:
    """Each subject's values (T, d) at shared times, (n, P, d), of rows whose stamps are probably right; NaN where there is none."""
    x = np.full((len(found), len(times), values[0].shape[1]), np.nan)
    for j, (each, own) in enumerate(zip(found, values, strict=True)):
        for a in np.flatnonzero(~each.reversed & (each.wrong < 0.5)):
            x[j, times == each.stamps[a]] = own[a]
    return x
