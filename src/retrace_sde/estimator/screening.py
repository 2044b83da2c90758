"""The screening before a fit: values that are probably wrong are listed and, where that is asked for, treated as missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from retrace_sde.estimator.entry import Entry
from retrace_sde.estimator.request import Request
from retrace_sde.evidence.suspects.filled import filled
from retrace_sde.evidence.suspects.isolated import find_isolated
from retrace_sde.evidence.suspects.record import Kind, Suspect, cells, factor
from retrace_sde.evidence.suspects.robust import centre_and_scale, robust_order
from retrace_sde.evidence.suspects.rows import Find, find_rows
from retrace_sde.evidence.suspects.whole import Whole, whole_slices, whole_trajectories
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.io.lazy.view import ArrayView
from retrace_sde.panel.blocks import evenly, like, pick, to_numpy
from retrace_sde.panel.canonical import RowPermutation
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.panel import Panel
from retrace_sde.progress import report
from retrace_sde.search.models.euler import SEARCH_ELEMENTS

MIN_SCREENED_TRAJECTORIES, MIN_SCREENED_SLICES, MAX_SCREENED_SLICES = 4, 5, 500
"""Sizes of panels that are screened."""

MAX_MISSING_SHARE = 0.15
"""Share of the values beyond which suspects are listed only: the model, not the data, is then in doubt. Up to it they are drawn given the rest in complete
panels: standard errors are then too small by 8 % at most."""

MIN_VALUES_LEFT = 2
"""Values of each variable that every slice keeps where suspects become missing."""

MAX_TIED_SHARE = 0.5
"""Share of a variable's values that equal another of their subject's beyond which it is a count or rounded: what is expected then has no spread to
be compared with, and it is not screened."""

ROWS_PER_VARIABLE = 12
"""Rows for each variable from which a panel is screened."""

SAMPLED_NUMBERS = 250_000
"""Values of a panel read where it is that are screened, about, in whole trajectories (20 of T = 250, d = 50): .4 s. Three times as many took 1.8 s."""

ORDER_PASSES = 2
"""Times that rows are looked for, at most: many wrong values can hide the order, which is sought again without them."""

SUSPECTS_SAID = 3

UNIT = "(a unit or a decimal point)"


class Screen(NamedTuple):
    """What was found in x (n, T, d): cells that are probably wrong, what to call them, and the order of the slices that it was found along."""

    wrong: Mask
    suspects: list[Suspect]
    order: Indices | None = None

    def among(self, variables: Indices, shape: tuple[int, ...]) -> Screen:
        """The same where only some variables were checked; of a row that is wrong all are."""
        wrong = np.zeros(shape, dtype=bool)
        if len(variables) > 1:
            wrong |= np.asarray(self.wrong.all(axis=2))[:, :, None]
        wrong[:, :, variables] = self.wrong
        return self._replace(wrong=wrong)


def screened(entry: Entry, request: Request) -> tuple[Entry, tuple[Suspect, ...]]:
    """The entry with suspects missing where that is asked for and possible, and the suspects.

    Of few suspects in a complete panel "missing" is one draw given the rest, so that the fit offers what it does for complete data.
    Of panels that are not in memory, or too large to be copied, some trajectories are screened, and suspects among them are listed.
    """
    if request.outliers == "keep" or not _can_screen(entry, request):
        return entry, ()
    report("screening for wrong values")
    x, looked = _looked_at(entry)
    n, T, _ = x.shape
    free = np.flatnonzero(_tied_share(x) <= MAX_TIED_SHARE)
    if not len(free) or n * T < ROWS_PER_VARIABLE * len(free):
        return entry, ()
    names = tuple(entry.panel.names[v] for v in free)
    screen = _screen(x[:, :, free], looked, names, request).among(free, x.shape)
    suspects, panel = screen.suspects, entry.panel
    if looked is not entry:
        said = _of_some(n, len(entry.places.rows), suspects)
        if suspects:
            return replace(entry, cautions=(*entry.cautions, said)), tuple(suspects)
        return replace(entry, notes=(*entry.notes, said)), ()
    if not suspects:
        return entry, ()
    values = _without(x, screen, entry, request) if request.outliers == "auto" else None
    if values is not None:
        panel = replace(panel, values=like(values, panel.values))
        suspects = [replace(each, missing=True) for each in suspects]
    said = _sentence(suspects)
    entry = replace(entry, panel=panel, whole=panel, cautions=(*entry.cautions, said))
    return entry, tuple(suspects)


def _looked_at(entry: Entry) -> tuple[Array, Entry]:
    """Values (n, T, d) that are screened, NaN where there are none, and the entry with the places of those trajectories.

    Of a panel that is read where it is, they are among the trajectories that the search reads.
    """
    values, lengths = entry.panel.values, entry.panel.lengths
    n, T, d = values.shape
    known = Lengths(n, T, lengths)
    if isinstance(values, ArrayView):
        searched = evenly(n, -(-SEARCH_ELEMENTS // d))
        enough = max(SAMPLED_NUMBERS // d, 2 * ROWS_PER_VARIABLE * d) // T
        rows = searched[evenly(len(searched), max(enough, MIN_SCREENED_TRAJECTORIES))]
        values, known = pick(values, rows, 0), known.take(rows)
        entry = replace(entry, places=entry.places.take(rows))
    return np.where(known.mask[:, :, None], to_numpy(values), np.nan), entry


def _without(x: Array, screen: Screen, entry: Entry, request: Request) -> Array | None:
    """x (n, T, d) with suspects drawn given the rest, or missing; None where they have to stay."""
    wrong, order = screen.wrong, screen.order
    seen = ~np.isnan(x)
    share = (wrong & seen).sum() / max(seen.sum(), 1)
    left = seen & ~wrong
    enough = not request.shared or left.any(axis=2).sum(axis=0).min() >= MIN_VALUES_LEFT
    if share > MAX_MISSING_SHARE or not enough:
        return None
    slices = any(each.kind == "slice" for each in screen.suspects)
    regular = entry.timing.known is None
    if order is not None and seen.all() and regular and not slices:
        centre, scale = centre_and_scale(np.where(wrong, np.nan, x))
        drawn = filled((x - centre)[:, order] / scale, wrong[:, order], np.random.default_rng(0))
        if drawn is not None:
            found = x.copy()
            found[:, order] = np.where(wrong[:, order], drawn * scale + centre, x[:, order])
            return found
    can = request.estimator in ("auto", "em", "mcem")
    return np.where(wrong, np.nan, x) if can else None


def _tied_share(x: Array) -> Array:
    """Of every variable (d,), the share of the values that equal another one of their subject's."""
    ordered = np.sort(x.transpose(2, 0, 1), axis=2)
    same = ordered[..., 1:] == ordered[..., :-1]
    tied = same.sum(axis=(1, 2)) + same[..., 0].sum(axis=1) + (same[..., 1:] & ~same[..., :-1]).sum(axis=(1, 2))  # fmt: skip
    return np.asarray(tied / np.maximum((~np.isnan(x)).sum(axis=(0, 1)), 1))


def _can_screen(entry: Entry, request: Request) -> bool:
    """The panel is large enough, and has an order that residuals can be taken along."""
    panel = entry.panel
    n, T, _ = panel.values.shape
    sized = n >= MIN_SCREENED_TRAJECTORIES and MIN_SCREENED_SLICES <= T <= MAX_SCREENED_SLICES
    return sized and panel is entry.whole and request.by_likelihood and request.has_state_space


def _screen(x: Array, entry: Entry, names: Sequence[str], request: Request) -> Screen:
    """What is probably wrong in x (n, T, d), whose variables have these names."""
    wrong = np.zeros(x.shape, dtype=bool)
    placed, panel = entry.places, entry.panel
    if not request.shared:
        found = find_isolated(x)
        for each in found:
            wrong[each.trajectory, each.position, _variables(each)] = True
        return Screen(wrong, list(_rows(x, found, None, placed, panel, names)))
    slices = whole_slices(x)
    for part in slices:
        wrong[:, part.at, part.variable] = True
    left = np.where(wrong, np.nan, x)
    centre, scale = centre_and_scale(left)
    best, times = _order(entry, (left - centre) / scale)
    trajectories = whole_trajectories(left[:, best])
    for part in trajectories:
        wrong[part.at, :, part.variable] = True
    z = np.where(wrong, np.nan, (x - centre) / scale)
    for _ in range(ORDER_PASSES):
        order, along = best, z[:, best]
        finds = find_rows(along, np.broadcast_to(times, x.shape[:2]))
        of_rows = np.zeros_like(wrong)
        for each in finds:
            of_rows[each.trajectory, order[each.position], _variables(each)] = True
        best = _order(entry, np.where(of_rows, np.nan, z))[0] if finds else order
        if np.array_equal(best, order) or np.array_equal(best, order[::-1]):
            break
    wrong |= of_rows
    finds = [
        e._replace(
            position=int(order[e.position]), expected=e.expected * scale + centre, sd=e.sd * scale,
            partner=None if e.partner is None else (e.partner[0], int(order[e.partner[1]])),
        )
        for e in finds
    ]  # fmt: skip
    suspects = [
        *_wholes(slices, placed, panel, names, of_slices=True),
        *_wholes(trajectories, placed, panel, names, of_slices=False),
        *_rows(x, finds, placed.columns, placed, panel, names),
    ]
    return Screen(wrong, suspects, best)


def _order(entry: Entry, z: Array) -> tuple[Indices, Array]:
    """The order that residuals are taken along, and times along it: those known, else a grid along a robust order."""
    known, T = entry.timing.known, z.shape[1]
    order = robust_order(z, entry.prior)
    return order, np.arange(float(T)) if known is None else known.times(T)


def _variables(find: Find) -> slice | int:
    return slice(None) if find.variable is None else find.variable


def _rows(
    x: Array, finds: Sequence[Find], columns: Indices | None, placed: RowPermutation, panel: Panel,
    names: Sequence[str],
) -> Iterator[Suspect]:  # fmt: skip
    """Rows and cells as given, the clearest first."""

    def place(trajectory: int, position: int) -> tuple[int, int]:
        own = placed.columns[trajectory] if columns is None else columns
        return int(placed.rows[trajectory]), int(own[position])

    for find in sorted(finds, key=lambda each: each.p):
        (j, t), v = place(find.trajectory, find.position), find.variable
        where = f"{panel.trajectory(j)}, {panel.observation(j, t)}"
        if v is None:
            two = find.partner
            repair = "" if two is None else _exchanged((j, t), place(*two), panel)
            yield Suspect(
                "row", j, t, None, None, None, None, find.probability, False, repair, where
            )
            continue
        value, expected, sd = (
            float(each)
            for each in (x[find.trajectory, find.position, v], find.expected[v], find.sd[v])
        )
        times = factor(value, expected, sd)
        repair = "" if times is None else f"looks like {times:.2g}× {UNIT}"
        name = names[v]
        yield Suspect(
            "cell", j, t, name, value, expected, sd, find.probability, False, repair, f"{where}, {name}"
        )  # fmt: skip


def _exchanged(one: tuple[int, int], two: tuple[int, int], panel: Panel) -> str:
    """Two rows that fit in each other's place, in words."""
    (j, t), (i, s) = one, two
    if t == s:
        return f"rows of {panel.trajectory(j)} and {panel.trajectory(i)} at {panel.observation(j, t)} look exchanged"
    return f"belongs to {panel.observation(i, s)} rather than {panel.observation(j, t)}"


def _wholes(
    found: Iterable[Whole],
    placed: RowPermutation,
    panel: Panel,
    names: Sequence[str],
    *,
    of_slices: bool,
) -> Iterator[Suspect]:
    """Trajectories and slices in other units, as given."""
    for each in found:
        name, repair = names[each.variable], f"looks like {each.factor:.2g}× {UNIT}"
        at = int((placed.columns if of_slices else placed.rows)[each.at])
        j, t = (None, at) if of_slices else (at, None)
        where = panel.observation(0, at) if of_slices else panel.trajectory(at)
        kind: Kind = "slice" if of_slices else "trajectory"
        yield Suspect(
            kind, j, t, name, None, None, None, each.probability, False, repair, f"{where}, {name}"
        )  # fmt: skip


def _of_some(count: int, n: int, suspects: Sequence[Suspect]) -> str:
    """What was found where only some trajectories were checked, in words."""
    some = "All" if count == n else f"{count} of"
    found = f" {_sentence(suspects)}" if suspects else " Nothing looks wrong."
    return f"{some} {n} trajectories, which are not copied into memory, were screened for wrong values.{found}"


def _sentence(suspects: Sequence[Suspect]) -> str:
    """What was found and done, in words."""
    several = len(suspects) > 1
    first = "; ".join(str(each) for each in suspects[:SUSPECTS_SAID])
    more = f"; and {len(suspects) - SUSPECTS_SAID} more" if len(suspects) > SUSPECTS_SAID else ""
    done = (
        "listed only"
        if not suspects[0].missing
        else "treated as missing (outliers='keep' uses what was given)"
    )
    return (
        f"{len(suspects)} {'entries look' if several else 'entry looks'} wrong and {'are' if several else 'is'} {done}; "
        f"see result_.suspects. {first}{more}."
    )


def without_suspects(panel: Panel, suspects: Iterable[Suspect]) -> Panel:
    """A panel as given, with the suspects that a fit treated as missing made so again."""
    chosen = [each for each in suspects if each.missing]
    if not chosen:
        return panel
    wrong = cells(chosen, tuple(panel.values.shape), panel.names)
    holes = like(np.where(wrong, np.nan, 0.0), panel.values)
    return replace(panel, values=panel.values + holes)
