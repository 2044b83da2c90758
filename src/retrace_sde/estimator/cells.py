"""Equal cells at the entry: what they are is said, and rows that were carried forward become missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retrace_sde.estimator.request import Request
from retrace_sde.evidence.tied_cells import SPARSE_SHARE, carried_forward, piles, tied
from retrace_sde.io.arrays import Mask
from retrace_sde.io.lazy.array import LazyArray
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.panel.blocks import like, to_numpy
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel

MIN_ROWS_LEFT = 2
"""Rows of a slice that are left at least where rows become missing; of a trajectory, one."""

SUBJECTS_NAMED = 6


def with_cells_checked(panel: Panel, request: Request) -> tuple[Panel, tuple[str, ...]]:
    """The panel without rows carried forward, and a sentence for everything that was found.

    Panels that are not in memory, or too large to be copied, are not checked.
    """
    if isinstance(panel.values, LazyArray | ArrayView) or not request.has_state_space:
        return panel, ()
    x = to_numpy(panel.values)
    lengths = Lengths.of(x, panel.lengths)
    if lengths.ragged:
        x = np.where(lengths.mask[:, :, None], x, np.nan)
    said = [each.sentence(panel.names[each.variable]) for each in piles(x)]
    few = [(k, share) for k, share in tied(x) if share > SPARSE_SHARE]
    if few:
        two = [
            panel.names[k] for k, _ in few if len(np.unique(x[:, :, k][~np.isnan(x[:, :, k])])) == 2
        ]
        said.append(
            _few_values([panel.names[k] for k, _ in few], max(share for _, share in few), two)
        )
    copies = carried_forward(x)
    if copies is None:
        return panel, tuple(said)
    can = request.shared and request.by_likelihood and request.estimator in ("auto", "em")
    left: Mask = ~np.isnan(x).all(axis=2) & ~copies
    can = can and bool(left.sum(axis=0).min() >= MIN_ROWS_LEFT and left.sum(axis=1).min() >= 1)
    said.append(_copied(panel, copies, missing=can))
    if can:
        hole = like(np.where(copies, np.nan, 0.0)[:, :, None], panel.values)
        panel = replace(panel, values=panel.values + hole)
    return panel, tuple(said)


def _few_values(names: list[str], share: float, two: list[str]) -> str:
    """Columns that tie, in words; `two`: those of two values, which may be a treatment."""
    one = len(names) == 1
    inputs = f" If {', '.join(map(repr, two))} was given or done to the subjects, take it as an input (covariates={two})."
    return (
        f"{', '.join(map(repr, names))} {'holds' if one else 'hold'} few distinct values (two cells of different subjects are equal with probability up to "
        f"{share:.2g}): a model of continuous values describes {'it' if one else 'them'} poorly. Sum counts over longer periods or over "
        f"related items, or use the measurements behind the categories, where there are any.{inputs if two else ''}"
    )


def _copied(panel: Panel, copies: Mask, *, missing: bool) -> str:
    """Rows that repeat, in words."""
    who = np.flatnonzero(copies.any(axis=1))
    named = ", ".join(panel.trajectory(int(j)) for j in who[:SUBJECTS_NAMED])
    more = f" and {len(who) - SUBJECTS_NAMED} more" if len(who) > SUBJECTS_NAMED else ""
    done = (
        "They are treated as missing, all of them: which was the measured one is not known."
        if missing
        else "Make them missing (NaN), or leave them out; as they are, the direction is left open."
    )
    return (
        f"{int(copies.sum())} rows of {len(who)} subjects repeat another row of the same subject in every variable ({named}{more}), far more than rounding "
        f"explains: values carried forward? {done}"
    )
