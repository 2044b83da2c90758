"""Variables that are known to grow, or to fall, most of the time: a direction that statistics alone often cannot settle.

Which of two directions has a variable growing needs no model: pairs of a trajectory's observations are concordant where the later one is
larger (Kendall). All pairs, not only neighbours: measurement noise reverses single steps. A direction is settled where concordance is
clear of one half, in every variable named, by a t-test over trajectories or groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retrace_sde.io.arrays import Array, Indices
from retrace_sde.io.columns import shown
from retrace_sde.panel.blocks import evenly, to_numpy
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.order import Order
from retrace_sde.panel.panel import Panel
from retrace_sde.process.tails import t_sf
from retrace_sde.search.protocols import Model

LOOKED_AT_TRAJECTORIES = 2000
"""Trajectories that are looked at, evenly spaced."""


class Growth(NamedTuple):
    """Columns that are told to grow (sign 1) or to fall (−1), with their names, and in which share of steps at least."""

    columns: tuple[int, ...]
    signs: tuple[int, ...]
    names: tuple[str, ...]
    share: float

    @classmethod
    def of(cls, knowledge: Knowledge | None, panel: Panel) -> Growth | None:
        """Of what is known, by the numbers or names of a panel's variables; None where nothing is."""
        if knowledge is None or (knowledge.increasing is None and knowledge.decreasing is None):
            return None
        found: dict[int, int] = {}
        for role, sign in (("increasing", 1), ("decreasing", -1)):
            for each in _listed(getattr(knowledge, role)):
                k = _column(each, role, panel)
                if found.setdefault(k, sign) != sign:
                    raise ValueError(
                        f"{panel.names[k]!r} is named as increasing and as decreasing: drop one."
                    )
        names = tuple(panel.names[k] for k in found)
        return cls(tuple(found), tuple(found.values()), names, float(knowledge.share))


def _listed(given: object) -> list[object]:
    if given is None:
        return []
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    return list(given) if several else [given]  # type: ignore[call-overload, no-any-return]


def _column(each: object, role: str, panel: Panel) -> int:
    """The place of a variable among those that are fitted."""
    left_out = {one.name: one.sentence for one in panel.left_out}
    if isinstance(each, int | np.integer) and not isinstance(each, bool):
        dropped = {one.index: one.name for one in panel.left_out}
        every = len(panel.names) + len(dropped)
        if not 0 <= int(each) < every:
            raise ValueError(f"{role} names variable {each}; variables run from 0 to {every - 1}.")
        if int(each) in dropped:
            raise ValueError(f"{role} names a variable that is left out. {left_out[dropped[int(each)]]}")  # fmt: skip
        return int(each) - sum(k < int(each) for k in dropped)
    if str(each) in left_out:
        raise ValueError(f"{role} names a variable that is left out. {left_out[str(each)]}")
    if str(each) not in panel.names:
        raise ValueError(f"{role} names {each!r}; the variables are {shown(list(panel.names))}.")
    return panel.names.index(str(each))


@dataclass(frozen=True)
class GrowthSeen:
    """How variables that are told to grow do so along an order.

    `concordance`: of each, from −1 to 1, as it was told; `steps`: the share of steps; `settled`: 1, the order as it stands; −1, its reverse; 0, neither.
    """

    growth: Growth
    concordance: tuple[float, ...]
    steps: tuple[float, ...]
    settled: int

    @property
    def sentence(self) -> str:
        """What was seen, in the direction that it settles."""
        back = self.settled < 0
        said = [
            f"{name!r} {'grows' if sign > 0 else 'falls'} in {1 - share if back else share:.0%} of steps"
            for name, sign, share in zip(
                self.growth.names, self.growth.signs, self.steps, strict=True
            )
        ]
        return ", ".join(said)

    @property
    def note(self) -> str:
        """That they determine the direction."""
        return f"The variables that are known to grow or fall determine the direction: in it {self.sentence}."

    @property
    def caution(self) -> str:
        """That they do not."""
        wanted = f"at least {self.growth.share:.0%} in one direction are expected"
        return (
            f"The variables that are known to grow or fall do not determine the direction: along the order found {self.sentence} ({wanted}), and "
            "along the reverse in the rest. Check these variables, or leave them out."
        )


def look(model: Model, order: Indices, growth: Growth, *, alpha: float) -> GrowthSeen:
    """How the variables grow along an order."""
    n, T, _ = model.data.shape
    few = model if n <= LOOKED_AT_TRAJECTORIES else model.some(LOOKED_AT_TRAJECTORIES)
    along = order if few is model else Order.of(order).take(evenly(n, LOOKED_AT_TRAJECTORIES)).index
    x = to_numpy(few.data.block(slice(None), along)[0])[..., list(growth.columns)]
    path = getattr(model, "mean_path", None)
    if path is not None:
        x = x + path.means[along][..., list(growth.columns)]
    x = np.where(few.data.lengths.mask[..., None], x, np.nan) * np.array(growth.signs)
    each = np.zeros((len(x), x.shape[2]))
    count = np.zeros_like(each)
    for lag in range(1, T):
        step = x[:, lag:] - x[:, :-lag]
        each += np.nansum(np.sign(step), axis=1)
        count += (~np.isnan(step)).sum(axis=1)
    each = each / np.maximum(count, 1)
    mean = each.mean(axis=0)
    clear = np.abs(mean) >= growth.share - 0.5
    if len(each) >= 3:
        clear &= _p_values(each, few.data.groups) < alpha
    agree = bool((mean > 0).all() or (mean < 0).all())
    settled = int(np.sign(mean[0])) if clear.all() and agree else 0
    steps = np.diff(x, axis=1)
    up = [float((s[~np.isnan(s)] > 0).mean()) for s in np.moveaxis(steps, 2, 0)]
    return GrowthSeen(growth, tuple(map(float, mean)), tuple(up), settled)


def _p_values(each: Array, groups: Indices | None) -> Array:
    """That the mean is zero, by a t-test over trajectories or groups."""
    if groups is not None:
        size = np.bincount(groups)
        each = np.stack([np.bincount(groups, weights=column) / size for column in each.T], axis=1)
    error = each.std(axis=0, ddof=1) / np.sqrt(len(each))
    z = np.abs(each.mean(axis=0)) / np.maximum(error, 1e-12)
    return np.asarray(2 * t_sf(z, max(len(each) - 1, 1)))
