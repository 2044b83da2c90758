"""What rests on one trajectory, or group, by the labels of the data."""

from __future__ import annotations

import numpy as np

from retrace_sde.estimator.entry import Entry
from retrace_sde.estimator.fitting import PanelFit
from retrace_sde.evidence.influence import RestsOn, direction_rests_on, order_rests_on
from retrace_sde.io.arrays import Indices

MAX_MEMBERS_NAMED = 3
"""Trajectories of a group that are named."""


def influence(entry: Entry, fitted: PanelFit) -> tuple[RestsOn, ...]:
    """What changes without one trajectory or group; empty where nothing does, or where it is not tested."""
    model, outcome, test = fitted.model, fitted.outcome, fitted.outcome.direction
    n, groups = model.data.shape[0], model.data.groups
    numbers = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    found = []
    if len(test.contributions) == n:
        total = float(test.contributions.sum())
        for g, left in direction_rests_on(test, groups):
            who, places = _named(entry, np.flatnonzero(numbers == g))
            said = f"The direction rests on {who}: without it the evidence is {left:+.1f} instead of {total:+.1f} nats."
            found.append(RestsOn("direction", places, said))
    plain = model.closed_form and not model.data.lazy and model.prior is None
    if plain and outcome.found.ordering.shared and outcome.found.gaps.equal and not outcome.cycle:
        order = outcome.found.order
        for g, (first, last) in order_rests_on(model.data, outcome.found.step, order, groups):
            who, places = _named(entry, np.flatnonzero(numbers == g))
            a, b = (
                entry.panel.observation(0, int(entry.places.columns[order[k]]))
                for k in (first, last)
            )
            change = (
                f"{a} and {b} would change places"
                if last == first + 1
                else f"{a} to {b} would be ordered otherwise"
            )
            said = f"The order rests on {who}: without it {change}."
            found.append(RestsOn("order", places, said))
    return tuple(found)


def _named(entry: Entry, members: Indices) -> tuple[str, tuple[int, ...]]:
    """Trajectories in words, and where they were given."""
    places = tuple(sorted(int(entry.places.rows[j]) for j in members))
    names = [entry.panel.trajectory(j) for j in places]
    if len(names) == 1:
        return names[0], places
    more = f" and {len(names) - MAX_MEMBERS_NAMED} more" if len(names) > MAX_MEMBERS_NAMED else ""
    return f"the group of {', '.join(names[:MAX_MEMBERS_NAMED])}{more}", places
