"""Segments whose inner order is known, put in order before a fit: what is known then has a time for every slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.estimator.request import Request
from retrace_sde.io.arrays import Mask
from retrace_sde.panel.blocks import to_numpy, unmasked
from retrace_sde.panel.knowledge import Knowledge
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.search.segments import Stitched, stitched, stitched_each

EXCLUDED = ("positions", "blocks", "timestamps", "schedule")
"""Knowledge that segments cannot be combined with."""

FORM = (
    "segments are labels (T,), one for each slice, the slices of a segment as they are stored; or lists of slices, "
    "each in its order"
)
OWN_FORM = "segments of own orders are labels (n, T), one for each observation, those of a segment in order as they are stored"


def with_segments(
    knowledge: Knowledge, panel: Panel, request: Request, dt: float
) -> tuple[Knowledge, tuple[str, ...]]:
    """The knowledge with times, where it has segments: their most likely order and gaps; and a note that says so."""
    if knowledge.segments is None:
        return knowledge, ()
    _check_usable(knowledge, panel, request)
    if not request.shared:
        return _own(knowledge, panel, request, dt)
    segments = _as_lists(knowledge.segments, panel.values.shape[1])
    before = _precedences(knowledge, segments)
    found = stitched(to_numpy(panel.values), segments, before, dt, request.drift)
    known = replace(knowledge, segments=None, timestamps=found.times)
    return known, (_note(found, segments, panel, dt),)


def _check_usable(knowledge: Knowledge, panel: Panel, request: Request) -> None:
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
        found = _by_label(items)
    if sorted(k for each in found for k in each) != list(range(T)) or [] in found:
        raise ValueError(f"{FORM}; each of the {T} slices belongs to exactly one segment.")
    if len(found) < 2:
        raise ValueError("there is one segment, whose order is known: give timestamps instead.")
    return found


def _own(
    knowledge: Knowledge, panel: Panel, request: Request, dt: float
) -> tuple[Knowledge, tuple[str, ...]]:
    """Each trajectory's own segments in order, with times."""
    n, T, _ = panel.values.shape
    lengths = Lengths(n, T, panel.lengths).each
    try:
        labels = np.asarray(unmasked(knowledge.segments))
    except ValueError:  # rows of different length
        labels = np.zeros(0)
    if labels.shape != (n, T):
        raise ValueError(f"{OWN_FORM}; there are {n} trajectories of up to {T} observations.")
    segments = [_by_label(row[:t].tolist()) for row, t in zip(labels, lengths.tolist(), strict=True)]  # fmt: skip
    before = [_precedences(_of_one(knowledge, j), each) for j, each in enumerate(segments)]
    values = np.asarray(to_numpy(panel.values), dtype=float)
    found = stitched_each(values, segments, before, dt, request.drift)
    times = np.full((n, T), np.nan)
    for j, each in enumerate(found):
        times[j, : lengths[j]] = each.times
    count = sum(map(len, segments))
    note = (
        f"The {count} segments of {n} trajectories were put in order, each trajectory's own; the gaps between them are estimated, from "
        f"{min(each.gaps.min(initial=np.inf) for each in found):.3g} to {max(each.gaps.max(initial=0) for each in found):.3g}, and used as known ones. "
        f"Within segments observations are {dt:.3g} apart."
    )
    ends: dict[str, Any] = {"first": None, "last": None, "precedences": None}  # which times imply
    return replace(knowledge, segments=None, timestamps=times, **ends), (note,)


def _by_label(items: list[Any]) -> list[list[int]]:
    """The places of each label, in the order in which they are stored."""
    found: dict[Any, list[int]] = {}
    for k, label in enumerate(items):
        if label is None or label != label:
            raise ValueError(f"{OWN_FORM}; one of them is missing.")
        found.setdefault(label, []).append(k)
    return list(found.values())


def _of_one(knowledge: Knowledge, j: int) -> Knowledge:
    """What is known of the ends and pairs of one trajectory with an order of its own."""

    def end(given: Any) -> int | None:
        if given is None or isinstance(given, Mapping):
            return None if given is None else given.get(j)
        value = int(given) if np.ndim(given) == 0 else int(np.asarray(given)[j])
        return None if value < 0 else value

    pairs = [(a, b) for k, a, b in knowledge.precedences or () if k == j]  # type: ignore[misc]
    return Knowledge(first=end(knowledge.first), last=end(knowledge.last), precedences=pairs)


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
