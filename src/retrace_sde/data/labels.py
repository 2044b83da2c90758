"""Knowledge in a table's language: slices are named by their labels, not counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retrace_sde.data.columns import shown
from retrace_sde.data.knowledge import Knowledge


def by_labels(knowledge: Knowledge, slices: Sequence[str]) -> Knowledge:
    """The same knowledge with each slice's label replaced by its place in the panel.

    Where an array has one value per slice a table gives {label: value}: its slices have no order to count in.
    """
    place = {label: k for k, label in enumerate(slices)}

    def index(label: Any, name: str) -> int:
        if isinstance(label, (Mapping, list, set, np.ndarray)):
            raise ValueError(f"{name} of a shared order is one label of the slice column.")
        if str(label) in place:
            return place[str(label)]
        same = [k for text, k in place.items() if _number(text) == _number(label)]
        if len(same) == 1:  # 1 and 1.0: the column's type need not be the one that was written
            return same[0]
        raise ValueError(f"{name} names slice {label!r}; the table has {shown(list(slices))}.")

    def mapped(values: Any, name: str) -> dict[int, Any]:
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{name} of a table's slices must be {{label: value}}: rows have no order to count slices in."
            )
        found: dict[int, Any] = {}
        for label, value in values.items():
            k = index(label, name)
            if k in found:
                raise ValueError(f"{name} names slice {slices[k]!r} twice.")
            found[k] = value
        return found

    def spread(values: Any, name: str) -> Any:
        full = np.full(len(slices), np.nan)
        for k, value in mapped(values, name).items():
            try:
                full[k] = np.nan if value is None else float(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name} must be numbers; got {value!r} for slice {slices[k]!r}."
                ) from None
        return full

    changed: dict[str, Any] = {}
    if knowledge.positions is not None:
        changed["positions"] = mapped(knowledge.positions, "positions")
    for name in ("first", "last"):
        if getattr(knowledge, name) is not None:
            changed[name] = index(getattr(knowledge, name), name)
    if knowledge.precedences is not None:
        changed["precedences"] = [_pair(each, index) for each in knowledge.precedences]
    for name in ("blocks", "timestamps"):
        if getattr(knowledge, name) is not None:
            changed[name] = spread(getattr(knowledge, name), name)
    if np.ndim(knowledge.timestamp_error) or isinstance(knowledge.timestamp_error, Mapping):  # type: ignore[arg-type]
        changed["timestamp_error"] = spread(knowledge.timestamp_error, "timestamp_error")
    return replace(knowledge, **changed)


def _pair(pair: Any, index: Any) -> tuple[int, int]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"precedences of a table's slices are (a, b), two labels; got {pair!r}.")
    return index(pair[0], "precedences"), index(pair[1], "precedences")


def _number(label: Any) -> float:
    """NaN, which equals nothing, for text."""
    try:
        return float(label)
    except (TypeError, ValueError):
        return float("nan")
