"""Rows that were exchanged: two rows of one position, or of one trajectory, each of which belongs in the other's place.

With forward residuals `f_k = x_k − E[x_k | x_{k−1}]` and costs `ρ(f) = ½ (ν + d) log(1 + |f|²/(ν c))`, the fitted t law, two rows gain
`g = Σ ρ − Σ ρ'` over the steps next to them where they change places. Neither row has to stand out alone: with the process known more
exchanges are found so than rows stand out (docs/wrong.md).

No row costs more than a spike does, a row of its own kind (`_most`): else one spike and any row that fits there would be a pair.

Exchanging two rows is an involution, so in a clean panel `P(g > t) = E[e^g; g < −t]`: the pairs that lose by an exchange tell how many would gain t
by chance, `V(t) = Σ e^g 1{g < −t}`. Pairs are called as long as V is no more than `RATE` of their number.

Limits: rows with missing values are not compared; exchanges of rows that are alike cannot be seen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median
from retrace_sde.evidence.suspects.tail import Tail
from retrace_sde.evidence.suspects.two_sided import TwoSided, lengths
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly

RATE = 0.02
"""False discovery rate among pairs, before other models are asked (`confirmed`): .02 and .05 find the same within .01 (20 tuning panels); .05 called a pair in a clean panel of the tests."""

CANDIDATE_P, MAX_CANDIDATES = 0.2, 300
"""P value, by what both neighbours expect, up to which a row is tried in every other place, and how many rows are, the clearest first.

With .05 .81 of the rows of wrong slices are found, with .2 .84 (20 tuning panels)."""

SPIKES = 0.005
"""Share of rows that may be far from both neighbours and yet be right, or wrong in another way."""

ORDINARY = 0.001
"""Probability by chance of each residual where rows are exchanged back, at least."""

MIN_GAIN, ROUNDS, SAMPLED_PAIRS, MIN_SAMPLED_ROWS, CHUNK = 3.0, 8, 200_000, 50, 100
"""Least gain that is ever looked at, in nats; rounds; pairs that tell gains by chance, and rows of them at least; rows that are tried at a time."""

Place = tuple[int, int]


class Exchange(NamedTuple):
    """Two rows (trajectory, position), the nats gained where they change places, and the share of false alarms among those at least as clear."""

    one: Place
    two: Place
    gain: float
    rate: float


def find_exchanges(
    x: Array, times: Array, kept: Array, law: TwoSided, tail: Tail, p: Array
) -> list[Exchange]:
    """Exchanged rows of x (n, T, d) along an order, the clearest first.

    `kept`: x with suspects missing, which tells scales; `p` (n, T): how likely each row is by chance, given its neighbours.
    """
    rows = np.argwhere(p <= CANDIDATE_P)
    rows = rows[np.argsort(p[tuple(rows.T)], kind="stable")[:MAX_CANDIDATES]]
    if not len(rows):
        return []
    places, now = _Places.of(x, times, kept, law, tail), x.copy()
    chance = _Chance.of(places)
    # fewer pairs than rows are called, so that no gain below this one is
    least = chance.bound(RATE * len(rows))
    found, free = list[Exchange](), np.ones(x.shape[:2], dtype=bool)
    for _ in range(ROUNDS):
        new = _disjoint(places.better(rows, free, least))
        for one, two, _, _ in new:
            now[one], now[two] = now[two].copy(), now[one].copy()
            free[one] = free[two] = False
        found += new
        if not new:
            break
        places = _Places.of(now, times, kept, law, tail)
    found.sort(key=lambda each: -each.gain)
    rates = chance.beyond(np.array([e.gain for e in found])) / np.arange(1, len(found) + 1)
    rates = np.minimum.accumulate(rates[::-1])[::-1]
    return [e._replace(rate=float(r)) for e, r in zip(found, rates, strict=True) if r <= RATE]


class _Chance(NamedTuple):
    """V(t) from pairs that lose: losses, ascending, and how many gains beyond each are by chance."""

    losses: Array
    by_chance: Array

    @classmethod
    def of(cls, places: _Places) -> _Chance:
        every = np.argwhere(~np.isnan(places.x).any(axis=2))
        n, T, _ = places.x.shape
        rows = every[evenly(len(every), max(SAMPLED_PAIRS // (n + T), MIN_SAMPLED_ROWS))]
        starts = range(0, len(rows), CHUNK)
        some = np.concatenate([places.gains(rows[k : k + CHUNK])[0].ravel() for k in starts])
        near = places.next_to_each_other()[0].ravel()
        gains = np.r_[some, near]
        # each pair is met from both sides, those next to each other once
        weights = np.r_[np.full(len(some), len(every) / len(rows) / 2), np.ones(len(near))]
        kept = gains < -MIN_GAIN
        order = np.argsort(-gains[kept])
        expected = (weights[kept] * np.exp(gains[kept]))[order]
        return cls(-gains[kept][order], np.r_[np.cumsum(expected[::-1])[::-1], 0.0])

    def beyond(self, gains: Array) -> Array:
        """V at each gain."""
        return np.asarray(self.by_chance[np.searchsorted(self.losses, gains, side="right")])

    def bound(self, count: float) -> float:
        """The gain beyond which no more than so many are by chance."""
        few = np.flatnonzero(self.by_chance <= count)[0]  # the last one is 0
        return MIN_GAIN if few == 0 else max(float(self.losses[few - 1]), MIN_GAIN)


def _disjoint(pairs: list[Exchange]) -> list[Exchange]:
    """The best pairs that do not touch each other's steps."""
    found, touched = list[Exchange](), set[Place]()
    for each in sorted(pairs, key=lambda each: -each.gain):
        if each.one in touched or each.two in touched:
            continue
        touched |= {(j, k + step) for j, k in (each.one, each.two) for step in (-1, 0, 1)}
        found.append(each)
    return found


class _Places(NamedTuple):
    """Whitened residuals (n, T, d) of each row and of the next one, and their scales, by which a change of the row moves them."""

    x: Array
    before: Array
    after: Array
    scale: Array
    scale_after: Array
    W: Array
    FW: Array
    tail: Tail
    most: float

    @classmethod
    def of(cls, x: Array, times: Array, kept: Array, law: TwoSided, tail: Tail) -> _Places:
        W = law.whitening
        f, scale = law.scaled_ahead(x, times, kept)
        # the first rows: as far from their median as a step is from zero
        start = x[:, 0] - median(x[:, 0], 0)
        usual = float(np.nanmedian(lengths(start @ W))) / float(np.median(tail.sorted))
        f[:, 0], scale[:, 0] = start / usual, usual
        before = f @ W
        after, scale_after = np.full_like(before, np.nan), np.ones_like(scale)
        after[:, :-1], scale_after[:, :-1] = before[:, 1:], scale[:, 1:]
        FW = law.ahead.coefficients[:-1] @ W
        return cls(x, before, after, scale, scale_after, W, FW, tail, _most(kept @ W))

    def cost(self, *residuals: Array) -> tuple[Array, Array]:
        """Σ ρ of residuals, and the longest; those that are not known count for nothing."""
        nu, c, d = self.tail.degrees, self.tail.scale, self.tail.d
        squares = [np.nan_to_num((r**2).sum(axis=-1)) for r in residuals]
        rho = [0.5 * (nu + d) * np.log1p(q / (nu * c)) for q in squares]
        return np.add.reduce(rho), np.sqrt(np.maximum.reduce(squares))

    def moved(self, at: tuple[Indices, Indices], change: Array) -> tuple[Array, Array]:
        """The cost where the rows at some places are changed by so much, and the longest residual."""
        before = self.before[at] + change / self.scale[at] @ self.W
        return self.cost(before, self.after[at] - change / self.scale_after[at] @ self.FW)

    def gains(self, rows: Indices) -> tuple[Array, Array, Indices]:
        """Gains (m, n + T) of rows (m, 2) and all rows of their position and of their trajectory, the longest residual then, and those rows.

        Rows next to each other are left out.
        """
        n, T, _ = self.x.shape
        others = np.empty((len(rows), n + T, 2), np.intp)
        others[:, :n, 0], others[:, :n, 1] = np.arange(n), rows[:, 1:]
        others[:, n:, 0], others[:, n:, 1] = rows[:, :1], np.arange(T)
        one, two = (rows[:, :1], rows[:, 1:]), (others[..., 0], others[..., 1])
        change = self.x[two] - self.x[one]
        own = self.cost(self.before, self.after)[0]
        here, far = self.moved(one, change)
        there, far_there = self.moved(two, -change)
        here, there = (
            np.minimum(own[at], self.most) - np.minimum(cost, self.most)
            for at, cost in ((one, here), (two, there))
        )
        gains = here + there
        # in a wrong cell's place any other row is better, but not the row in the other's
        far = np.where((here > 0) & (there > 0), far, np.inf)
        near = (others[..., 0] == one[0]) & (np.abs(others[..., 1] - one[1]) <= 1)
        gains = np.where(near | np.isnan(change).any(axis=-1), np.nan, gains)
        return gains, np.maximum(far, far_there), others

    def next_to_each_other(self) -> tuple[Array, Array]:
        """Gains (n, T − 1) of each row and the next one, which share a step, and the longest residual then."""
        change = np.diff(self.x, axis=1)
        first = self.before[:, :-1] + change / self.scale[:, :-1] @ self.W
        shared = self.after[:, :-1] - change / self.scale_after[:, :-1] @ (self.W + self.FW)
        last = self.after[:, 1:] + change / self.scale_after[:, 1:] @ self.FW
        own = self.cost(self.before[:, :-1], self.before[:, 1:], self.after[:, 1:])[0]
        cost, far = self.cost(first, shared, last)
        gained = np.minimum(own, 2 * self.most) - np.minimum(cost, 2 * self.most)
        return np.where(np.isnan(change).any(axis=2), np.nan, gained), far

    def better(self, rows: Indices, free: Mask, least: float) -> list[Exchange]:
        """Pairs of free rows, one of them among `rows`, that gain that much and are ordinary in each other's place."""
        found = list[Exchange]()
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            gains, far, others = self.gains(some)
            allowed = free[tuple(some.T)][:, None] & free[others[..., 0], others[..., 1]]
            for a, b in self._ordinary(far, allowed & (gains > least)):
                one, two = some[a], others[a, b]
                found.append(Exchange(_place(one), _place(two), float(gains[a, b]), 1.0))
        gains, far = self.next_to_each_other()
        for j, k in self._ordinary(far, free[:, 1:] & free[:, :-1] & (gains > least)):
            found.append(Exchange((j, k), (j, k + 1), float(gains[j, k]), 1.0))
        return found

    def _ordinary(self, far: Array, allowed: Mask) -> list[list[int]]:
        """Where residuals are ordinary, too; the tail is asked only there."""
        places = np.argwhere(allowed)
        ordinary = self.tail.beyond(far[tuple(places.T)]) > ORDINARY
        return places[ordinary].tolist()  # type: ignore[no-any-return]


def _most(a: Array) -> float:
    """The most that a row can cost: that of a row of its own kind, which does not follow from its neighbours, `log 1/ε + ½ log |Σ| + d/2`.

    Σ is the covariance of rows about their slice's median, of whitened a (n, T, d): a spike may be anywhere where rows are.
    """
    rest = (a - median(a, 0))[~np.isnan(a).any(axis=2)]
    spread = NORMAL_MAD * median(np.abs(rest), 0)
    bulk = rest[(np.abs(rest) <= 3 * spread).all(axis=1)]
    d = a.shape[2]
    volume = np.linalg.slogdet(np.cov(bulk.T).reshape(d, d))[1]
    return float(np.log(1 / SPIKES) + volume / 2 + d / 2)


def _place(row: Indices) -> Place:
    return int(row[0]), int(row[1])
