"""Knowledge with stamps some of which may be wrong, as a search can use it.

On a regular grid, or a schedule, each stamp has a bounded cost at every position (`process/stamps`), which the search and the samplers
weigh against the data. Exact stamps at irregular times tell gaps, too: there the wrong ones are found first (`judge`), and replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.orders.prior import given_times
from retrace_sde.panel.blocks import to_numpy, unmasked
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel
from retrace_sde.process.stamps import LEAST_ERROR, wrong_probabilities
from retrace_sde.search.stamps.judge import audit_sequences, sequences_of, time_range

ON_GRID, MOST_OFF_GRID = 0.05, 0.2
"""How near to a grid, in steps, stamps lie on it; and the share of those that do not, beside thrice the wrong ones."""

MOST_EMPTY = 1.1
"""Grid points for each stamp up to which stamps are taken to cover the grid."""

LEAST_STEPS = 30
"""Steps between observations from which a law of steps is fitted."""

MOST_NAMED = 5
"""Wrong stamps that a note names."""


@dataclass(frozen=True, eq=False)
class StampCheck:
    """Stamps (m, T) as they were given, m = 1 of slices, and how often they are wrong; `judged`: by a law of steps, before the fit."""

    given: Array
    error: Array
    wrong: float
    shared: bool
    judged: Array | None = None

    def probabilities(self, order: Indices, times: Array) -> Array:
        """The probability that each stamp is wrong, (T,) or (n, T), given the order found; NaN where there is none."""
        found = self.judged
        if found is None:
            places = np.atleast_2d(Order.of(order).positions)
            along = np.broadcast_to(np.atleast_2d(times), places.shape)
            at = np.take_along_axis(along, places, axis=1)
            parts = zip(self.given, self.error, at, strict=True)
            found = np.array([wrong_probabilities(s, e, t, self.wrong) for s, e, t in parts])
        return found[0] if self.shared else found

    def note(self, probabilities: Array, panel: Panel) -> str:
        """The wrong ones, in a sentence."""
        P = np.atleast_2d(probabilities)
        known = int((~np.isnan(P)).sum())
        suspects = np.argwhere(np.nan_to_num(P) > 0.5)
        suspects = suspects[np.argsort(-P[tuple(suspects.T)], kind="stable")]
        if not len(suspects):
            return f"None of {known} time stamps is probably wrong."
        names = []
        for j, a in suspects[:MOST_NAMED].tolist():
            slices = panel.slices if panel.slices is not None else range(P.shape[1])
            who = f"slice {slices[a]!r}" if self.shared else f"observation {a} of {panel.trajectory(j)}"  # fmt: skip
            names.append(f"{who} ({self.given[j, a]:.4g}; probability {P[j, a]:.2f})")
        more = len(suspects) - len(names)
        others = f" and {more} more" if more > 0 else ""
        used = "and not used: where they stand is estimated" if self.judged is None else "and replaced by the most likely times"  # fmt: skip
        be = "is" if len(suspects) == 1 else "are"
        return f"{len(suspects)} of {known} time stamps {be} probably wrong, {used}: {'; '.join(names)}{others}."


def with_right_stamps(
    knowledge: Knowledge, panel: Panel, dt: float, *, shared: bool
) -> tuple[Knowledge, StampCheck | None]:
    """The knowledge with stamps that a search can use, where some may be wrong, and what judges them afterwards."""
    if knowledge.wrong is None:
        return knowledge, None
    n, T, _ = panel.values.shape
    lengths = Lengths(n, T, panel.lengths)
    given = given_times(knowledge, lengths, shared=shared)
    if knowledge.timestamp_error is not None:
        error = np.broadcast_to(np.asarray(unmasked(knowledge.timestamp_error), dtype=float), given.shape)  # fmt: skip
        return knowledge, StampCheck(given, error, knowledge.wrong, shared)
    if knowledge.schedule is not None or _regular(given, dt, knowledge.wrong):
        step = dt if knowledge.schedule is None else float(np.diff(np.asarray(knowledge.schedule, dtype=float)).min())  # fmt: skip
        error = np.full(given.shape, LEAST_ERROR * step)
        known = replace(knowledge, timestamp_error=LEAST_ERROR * step)
        return known, StampCheck(given, error, knowledge.wrong, shared)
    return _judged(knowledge, given, panel, lengths, shared=shared)


def _regular(given: Array, dt: float, wrong: float) -> bool:
    """Stamps, but for wrong ones, lie on a grid of step dt and cover it."""
    off, cells, count = 0, 0.0, 0
    for each in given:
        s = each[~np.isnan(each)] / dt
        if len(s) < 2:
            continue
        phases = (s[:, None] - s + 0.5) % 1 - 0.5
        off += int((np.abs(phases) > ON_GRID).sum(axis=1).min())
        low, high = time_range(s)
        cells, count = cells + high - low + 1, count + len(s)
    allowed = max(MOST_OFF_GRID, 3 * wrong)
    return count > 0 and off <= allowed * count and cells <= MOST_EMPTY * count + len(given)


def _judged(
    knowledge: Knowledge, given: Array, panel: Panel, lengths: Lengths, *, shared: bool
) -> tuple[Knowledge, StampCheck]:
    """Exact stamps at irregular times, the wrong ones replaced by their most likely times; left out where others are missing."""
    assert knowledge.wrong is not None
    if (~np.isnan(given)).sum() < 3 or int(lengths.steps.total) < LEAST_STEPS:
        raise ValueError(
            f"there are too few observations to find wrong stamps by: at least {LEAST_STEPS} steps between observations are needed. "
            "Leave out wrong=, or give timestamp_error= for times on a regular grid."
        )
    stamps = given[0] if shared else given
    values = np.asarray(to_numpy(panel.values), dtype=float)
    sequences, unit = sequences_of(values, stamps, lengths.each, 0.0)
    # Seeded by its size alone: the same data have the same knowledge, whatever the fit draws.
    rng = np.random.default_rng(given.size)
    found, _ = audit_sequences(sequences, rng, wrong=knowledge.wrong)
    P, times = np.full(given.shape, np.nan), given.copy()
    complete = not np.isnan(given[0] if shared else given[lengths.mask]).any()
    for j, each in enumerate(found):
        t = len(each.stamps)
        P[j, :t] = np.where(np.isnan(each.stamps), np.nan, 1.0 if each.reversed else each.wrong)
        lost = np.nan_to_num(P[j, :t]) > 0.5
        times[j, :t][lost] = each.best[lost] * unit if complete else np.nan
    check = StampCheck(given, np.zeros_like(given), knowledge.wrong, shared, P)
    return replace(knowledge, timestamps=times[0] if shared else times, wrong=None), check
