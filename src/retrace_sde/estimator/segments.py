"""Segments whose inner order is known, put in order before a fit: what is known then has a time for every slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.estimator.request import Request
from retrace_sde.io.arrays import Mask
from retrace_sde.panel.blocks import to_numpy
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.panel import Panel
from retrace_sde.search.segments import Stitched, stitched

EXCLUDED = ("positions", "blocks", "timestamps", "schedule")
"""Knowledge that segments cannot be combined with."""

FORM = (
    "segments are labels (T,), one for each slice, the slices of a segment as they are stored; or lists of slices, "
    "each in its order"
)


def with_segments(
    knowledge: Knowledge, panel: Panel, request: Request, dt: float
) -> tuple[Knowledge, tuple[str, ...]]:
    """The knowledge with times, where it has segments: their most likely order and gaps; and a note that says so."""
    if knowledge.segments is None:
        return knowledge, ()
    _check_usable(knowledge, panel, request)
    segments = _as_lists(knowledge.segments, panel.values.shape[1])
    before = _precedences(knowledge, segments)
    found = stitched(to_numpy(panel.values), segments, before, dt, request.drift)
    known = replace(knowledge, segments=None, timestamps=found.times)
    return known, (_note(found, segments, panel, dt),)


def _check_usable(knowledge: Knowledge, panel: Panel, request: Request) -> None:
    if not request.shared:
        raise ValueError(
            "segments are of one order shared by all trajectories: permutation='shared'."
        )
    for name in EXCLUDED:
        if getattr(knowledge, name) is not None:
            raise ValueError(
                f"segments and {name} cannot be combined: use first, last or precedences."
            )
    if not request.has_state_space or panel.covariates is not None:
        raise ValueError("segments need a linear or affine drift without covariates.")


def _as_lists(given: Any, T: int) -> list[list[int]]:
    """The slices of each segment, in order."""
    if isinstance(given, (Mapping, str)):
        raise ValueError(f"{FORM}.")
    items = list(given)
    if items and all(isinstance(each, (list, tuple, np.ndarray)) for each in items):
        found = [[int(k) for k in each] for each in items]
    else:
        if len(items) != T:
            raise ValueError(f"{FORM}; there are {T} slices and {len(items)} labels.")
        labels: dict[Any, list[int]] = {}
        for k, label in enumerate(items):
            labels.setdefault(label, []).append(k)
        found = list(labels.values())
    if sorted(k for each in found for k in each) != list(range(T)) or [] in found:
        raise ValueError(f"{FORM}; each of the {T} slices belongs to exactly one segment.")
    if len(found) < 2:
        raise ValueError("there is one segment, whose order is known: give timestamps instead.")
    return found


def _precedences(knowledge: Knowledge, segments: list[list[int]]) -> Mask:
    """Which segment is known to precede which, closed transitively."""
    S = len(segments)
    where = {k: s for s, each in enumerate(segments) for k in each}
    before = np.zeros((S, S), dtype=bool)
    for a, b in knowledge.precedences or ():
        before[where[int(a)], where[int(b)]] |= where[int(a)] != where[int(b)]
    first: Any = knowledge.first
    last: Any = knowledge.last
    if first is not None:
        before[where[int(first)]] |= np.arange(S) != where[int(first)]
    if last is not None:
        before[:, where[int(last)]] |= np.arange(S) != where[int(last)]
    for s in range(S):
        before |= before[:, s : s + 1] & before[s]
    if before.diagonal().any():
        raise ValueError(
            "first, last or precedences contradict the segments: one would precede itself."
        )
    return before


def _note(found: Stitched, segments: list[list[int]], panel: Panel, dt: float) -> str:
    """The order of the segments by their first slices, and the gaps between them."""
    names = range(panel.values.shape[1]) if panel.slices is None else panel.slices
    begin = " → ".join(str(names[segments[s][0]]) for s in found.segments)
    gaps = ", ".join(f"{gap:.3g}" for gap in found.gaps)
    return (
        f"The segments, by their first slices, were put in the order {begin}; the gaps between them are estimated, {gaps}, and used as "
        f"known ones. Within segments slices are {dt:.3g} apart."
    )
