"""Rows and cells along an order that are far from what both of their neighbours expect.

In rounds: the spikes M of all rows, and of each cell given the others of its row, are compared with the tail of the residuals that are no candidates, the false discovery rate among
those called is held at `DISCOVERY_RATE` (Benjamini and Hochberg), what is called becomes missing, and its neighbours are looked at again. A row
whose deviation one variable explains is a wrong cell. What other models of the course explain (`confirmed`) is no suspect.

Limits: a row that differs from what is expected by less than about four standard deviations is not seen; nor are two wrong rows
next to each other that agree.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.confirmed import Place, Unlike, confirm, outlying
from retrace_sde.evidence.suspects.exchanged import Exchange, find_exchanges
from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median
from retrace_sde.evidence.suspects.tail import EXCEEDED, Tail, joint_exponent
from retrace_sde.evidence.suspects.two_sided import Sides, TwoSided, comparable, lengths
from retrace_sde.io.arrays import Array, Indices, Mask

DISCOVERY_RATE, CALL_ROUNDS = 0.01, 8
"""False discovery rate among rows that are called, and rounds. With .02, and `confirmed.CONFIRMED_LEVEL` .01, 7 of 100 volatile clean panels have a false alarm rather than 1;
recall of cells is the same within .002 (seeds 0:100)."""

SEVERAL, LEVEL_WHERE_SEVERAL = 3, 0.1
"""Confirmed rows from which there certainly are wrong ones, and the rate then."""

MAX_RATE = 0.2
"""Rate of false alarms, among all pairs or those of its kind, up to which other models are asked about a pair that looks exchanged."""

PAIR_RATE, PAIR_LEVEL = 0.001, 0.01
"""Rate of false alarms of an exchanged pair, and how likely it is where it is, up to which both rows are wrong. With a bound of 2e-6 on their product alone 42 of 320 clean
panels of 80 to 200 subjects had a false pair (seeds 100:180): only the rate knows how many pairs there are. It is too low by a factor of about six where the process is estimated:
with .005, 6 of 200 noisy panels of 60 to 250 subjects had one, with .001 none; recall of exchanges and wrong slices is the same (seeds 0:40 and 200:240)."""

PAIR_PRODUCT = 1e-9
"""Product of both up to which a less rare pair is wrong too: where 5 % of the rows are spikes (pbcseq) the rate alone says little. Of 300 noisy clean panels of 60 to 250 subjects (seeds 600:700) four have
a false pair with 3e-9, one by the rate alone; the three more have spikes of Student's t with 2 degrees of freedom. Not measured again with 1e-9, which calls fewer."""

SEVERAL_PAIRS, PAIR_LEVEL_OF_SEVERAL = 2, 0.002
"""Certain pairs of a kind from which there are exchanges of that kind, and the bound on the product then, with the rate among that kind. With .002, .920 of the rows of a wrong slice are found in pairs, at a
precision of .971, with .001 .912 at .979, with .01 .927 at .93 (and exchanges at rest at .913); the posterior with the process, the order and the number of exchanges known finds .926 at .98
(seeds 0:150 and 0:500). The posterior of each pair, with the number of certain ones as the prior, is no better: .906 at .981, .913 at .972 with a quarter of the other models' evidence."""

CANDIDATE_SPIKE, CANDIDATE_SHARE = 3.0, 0.35
"""Length from which a spike is a candidate, left out of the tail it is compared with; at most this share of the rows are."""

DOUBTFUL = 0.01
"""P value up to which a row is not called but left out where other rows are compared with their neighbours."""

GROSS, MANY_GROSS = 10.0, 0.01
"""Robust standard deviations from which a cell is far from others, and the share of such cells from which they are set aside."""

CELL_LEVEL = 0.02
"""Level above which what one variable leaves of a deviation is ordinary: the cell, not the row, is wrong."""

FEW_AT_AN_END = 2
"""Wrong rows at the first or the last position that are called even where no other position has as many. With 1, recall of cells × 10 at rest is .910 rather
than .915; false alarms are the same (seeds 0:200 of studies/suspects.py, those of volatility, t3 and missing too)."""

MIN_LENGTHS = 40
"""Residuals from which a tail is fitted."""


class Find(NamedTuple):
    """A row, or one cell of it (`variable`), at a position of a trajectory; `p`: by chance; expected values and sds (d,).

    `partner`: the trajectory and position of the row that it looks exchanged with.
    """

    trajectory: int
    position: int
    variable: int | None
    p: float
    probability: float
    expected: Array
    sd: Array
    partner: tuple[int, int] | None = None


class Judged(NamedTuple):
    """P values (n, T) of all rows, and what they rest on."""

    p: Array
    tail: Tail
    exponent: float


def find_rows(x: Array, times: Array) -> list[Find]:
    """The rows and cells of x (n, T, d), standardised and along an order, that are probably wrong."""
    search = _Search(x, times)
    search.run(DISCOVERY_RATE)
    exchanges, alone = search.exchanges(), search.confirmed()
    if len(exchanges) + len(alone) >= SEVERAL:
        search.run(LEVEL_WHERE_SEVERAL)
        alone = search.confirmed()
    of_pairs = {(each.trajectory, each.position) for each in exchanges}
    alone = [e for e in alone if (e.trajectory, e.position) not in of_pairs]
    return [*search.seen_from_both_sides(alone), *exchanges]


class _Search:
    """Rounds of calls: `kept` is x with what was called missing; `law`, `sides` and `judged` are of the last round."""

    def __init__(self, x: Array, times: Array) -> None:
        self.x, self.times, self.kept = x, times, x.copy()
        self.found = list[Find]()
        self.called = np.zeros(x.shape[:2], dtype=bool)
        self.law: TwoSided | None = None
        self.sides: Sides | None = None
        self.judged: Judged | None = None
        self.ends: Mask | None = None
        self.gross = _gross(x)

    def run(self, level: float) -> None:
        """Call rows until none is left at this false discovery rate."""
        x = self.kept
        for _ in range(CALL_ROUNDS):
            near = x if self.gross is None else np.where(self.gross, np.nan, x)
            if not comparable(near):
                self.judged = None
                return
            self.law = TwoSided.of(near, self.times, many_wrong=self.gross is not None)
            self.sides = sides = self.law.sides(x, self.times, near)
            self.ends = sides.end if self.ends is None else self.ends
            seen = np.asarray(~np.isnan(x).all(axis=2))
            self.judged = judged = judge(sides, seen)
            if judged is None:
                return
            rate = discovery_rates(judged.p, int(seen.sum()))
            new = (rate <= level) & seen & ~self.called
            if not new.any():
                return
            rows = np.argwhere(new)
            variables, both = single_variables(sides, x, rows, judged), sides.expected(rows)
            for (j, k), variable, *here in zip(rows.tolist(), variables, *both, strict=True):
                p, probability = float(judged.p[j, k]), 1 - float(rate[j, k])
                self.found.append(Find(j, k, variable, p, probability, *here))
                x[j, k, slice(None) if variable is None else variable] = np.nan
            self.called |= new

    def confirmed(self) -> list[Find]:
        """What was called and stays far under every other model of the course."""
        if not self.found or self.judged is None:
            return []
        places = [(each.trajectory, each.position, each.variable) for each in self.found]
        sure = confirm(self.x, self._not_doubtful(), places)
        return [each for each, clear in zip(self.found, sure, strict=True) if clear]

    def _not_doubtful(self) -> Array:
        """x without what was called, and without rows that might be wrong."""
        assert self.judged is not None  # rows were judged
        kept = np.where((self.judged.p <= DOUBTFUL)[:, :, None], np.nan, self.kept)
        return kept if self.gross is None else np.where(self.gross, np.nan, kept)

    def seen_from_both_sides(self, finds: list[Find]) -> list[Find]:
        """Those that have neighbours on both sides; of others those at a position with no more of them than there are elsewhere, or far from all other
        trajectories there: else the law is another one at the first or last position."""
        if self.ends is None:  # no rows could be compared
            return []
        ends = [bool(self.ends[e.trajectory, e.position]) for e in finds]
        inner = Counter(e.position for e, end in zip(finds, ends, strict=True) if not end)
        outer = Counter(e.position for e, end in zip(finds, ends, strict=True) if end)
        usual = max([FEW_AT_AN_END, *inner.values()])
        return [
            e
            for e, end in zip(finds, ends, strict=True)
            if not end
            or outer[e.position] <= usual
            or outlying(self.x, self.kept, e.trajectory, e.position, e.variable)
        ]

    def exchanges(self) -> list[Find]:
        """Both rows of pairs that look exchanged, under every other model too; they become missing."""
        if self.judged is None or self.law is None or self.sides is None:
            return []
        p = np.where(self.called, 0.0, self.judged.p)
        every = find_exchanges(self.x, self.times, self.kept, self.law, self.judged.tail, p)
        # pairs that are in doubt do not count in the models that are asked
        self.kept = self._without([(e.one, e.two) for e in every])
        pairs = [e for e in every if min(e.rate, e.rate_of_kind) <= MAX_RATE]
        if pairs:
            pairs = _clear(pairs, Unlike(self.x, self._not_doubtful()))
        self.kept = self._without([(e.one, e.two) for e in pairs])
        found = list[Find]()
        for each in pairs:
            for one, two in ((each.one, each.two), (each.two, each.one)):
                expected, sd = self.sides.expected(np.array([one]))
                p, probability = np.exp(-each.gain), 1 - each.rate
                found.append(Find(*one, None, p, probability, expected[0], sd[0], two))
        return found

    def _without(self, pairs: list[tuple[Place, Place]]) -> Array:
        """x without what was called alone and without these pairs."""
        kept = self.x.copy()
        for e in self.found:
            kept[e.trajectory, e.position, slice(None) if e.variable is None else e.variable] = (
                np.nan
            )
        for one, two in pairs:
            kept[one] = kept[two] = np.nan
        return kept


def _clear(pairs: list[Exchange], unlike: Unlike) -> list[Exchange]:
    """Pairs that are rare by chance and unlikely where they are under every model; where several of a kind are, less rare ones of that kind too."""

    def certain(e: Exchange, ratio: float) -> bool:
        rare = e.rate <= PAIR_RATE or e.rate * ratio <= PAIR_PRODUCT
        return ratio <= PAIR_LEVEL and rare

    def one_of_several(e: Exchange, ratio: float) -> bool:
        return e.rate_of_kind * ratio <= PAIR_LEVEL_OF_SEVERAL

    sure = [unlike(e.one, e.two, partial(certain, e)) for e in pairs]
    several = Counter(e.of_one_trajectory for e, clear in zip(pairs, sure, strict=True) if clear)
    return [
        e
        for e, clear in zip(pairs, sure, strict=True)
        if clear
        or (
            several[e.of_one_trajectory] >= SEVERAL_PAIRS
            and unlike(e.one, e.two, partial(one_of_several, e))
        )
    ]


def _gross(x: Array) -> Mask | None:
    """Cells of x (n, T, d) far from the rest of their trajectory and of their position; None where they are few.

    So many wrong neighbours would hide each other: such cells are judged, but no others are compared with them.
    """
    found = np.ones(x.shape, dtype=bool)
    for axis in (1, 0):
        rest = np.abs(x - np.expand_dims(median(x, axis), axis))
        scale = NORMAL_MAD * np.expand_dims(median(rest, axis), axis)
        found &= rest > GROSS * scale
        if found.mean() < MANY_GROSS:
            return None
    return found


def judge(sides: Sides, seen: Mask) -> Judged | None:
    """P values of all rows; None where there are too few residuals to compare with."""
    d, spikes = sides.before.shape[2], np.where(seen, sides.spikes, -1.0)
    bound = max(CANDIDATE_SPIKE, float(np.quantile(spikes[seen], 1 - CANDIDATE_SHARE)))
    candidates = spikes > bound
    near = candidates.copy()
    near[:, 1:] |= candidates[:, :-1]
    near[:, :-1] |= candidates[:, 1:]
    clean = seen & ~near & ~sides.end
    if clean.sum() < MIN_LENGTHS:
        return None
    both = np.r_[lengths(sides.before[clean]), lengths(sides.after[clean])]
    tail = Tail.of(both, d)
    if tail is None:
        return None
    inner = clean | (candidates & ~sides.end)
    exponent = joint_exponent(
        sides.before[clean], sides.after[clean], spikes[inner], float(np.quantile(both, EXCEEDED))
    )
    power = np.where(sides.end, 1.0, exponent)
    rows = tail.beyond(np.maximum(spikes, 0.0)) ** power
    # one wrong cell moves a row along one direction only: a spike of that size is rarer there than along any
    cell = np.maximum(sides.cell_spikes.max(axis=2), 0.0)
    cells = d * tail.beyond_in(cell, 1) ** power
    p = np.minimum(np.where(spikes > 0, rows, 1.0), np.where(seen, cells, 1.0))
    return Judged(np.minimum(p, 1.0), tail, exponent)


def discovery_rates(p: Array, count: int) -> Array:
    """The estimated share of false discoveries if everything at least as unlikely is called, among `count` rows."""
    order = np.argsort(p, axis=None)
    rates = p.ravel()[order] * count / np.arange(1, p.size + 1)
    found = np.empty(p.size)
    found[order] = np.minimum(np.minimum.accumulate(rates[::-1])[::-1], 1.0)
    return found.reshape(p.shape)


def single_variables(sides: Sides, x: Array, rows: Indices, judged: Judged) -> list[int | None]:
    """Of rows (m, 2), the variable whose error alone explains their deviation; None: it takes more than one."""
    d, at = x.shape[2], (rows[:, 0], rows[:, 1])
    known = ~np.isnan(x[at])
    mean = (sides.before[at] + sides.after[at]) / 2
    along = np.where(known, mean @ sides.directions.T, 0.0)
    best = np.where(known, np.abs(along), -1.0).argmax(axis=1)
    rests = lengths(mean - along[np.arange(len(best)), best, None] * sides.directions[best])
    factor = np.where(sides.end[at], 1.0, np.sqrt(judged.exponent))
    single = known.sum(axis=1) == 1
    if d > 1:
        single |= judged.tail.beyond_in(rests * factor, d - 1) > CELL_LEVEL
    return [v if one else None for v, one in zip(best.tolist(), single.tolist(), strict=True)]
