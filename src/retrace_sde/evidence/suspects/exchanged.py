"""Rows that were exchanged: two rows of one position, or of one trajectory, each of which belongs in the other's place.

With forward residuals `f_k = x_k − E[x_k | x_{k−1}]` and costs `ρ(f) = ½ (ν + d) log(1 + |f|²/(ν c))`, the fitted t law, two rows gain
`g = Σ ρ − Σ ρ'` over the steps next to them where they change places. Neither row has to stand out alone: with the process known more
exchanges are found so than rows stand out (docs/wrong.md).

A row costs no more than a spike does, one that does not follow from its neighbours: `log 1/ε + ½ log |Σ| + d/2`, and the step past it. Else one spike and
any row that fits in its place would be a pair. Pairs are exchanged back in rounds, the clearest first by what they gain without that bound, which tells
partners apart; they are judged with it once all others are back in their places, those that are probably chance left where they were. Two wrong rows next to each other may fit each other, and neither gains by an exchange
of its own: where a trajectory stays costly, two exchanges of its rows are tried at once.

Exchanging two rows is an involution, so in a clean panel `P(g > t) = E[e^g; g < −t]`: the pairs that lose by an exchange tell how many would gain t
by chance, `V(t) = Σ e^g 1{g < −t}`; V over the number of pairs that gain as much is the rate of false alarms among them.

Limits: rows with missing values are not compared; exchanges of rows that are alike cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median, whitening
from retrace_sde.evidence.suspects.tail import Tail
from retrace_sde.evidence.suspects.two_sided import TwoSided, lengths
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.panel.blocks import evenly

MAX_CANDIDATES = 500
"""Rows that are tried in every other place, the clearest first. All rows of a panel of 30 subjects and 16 slices: two rows that are exchanged need not stand
out alone."""

SPIKES = 0.005
"""Share of rows, at least, that may be far from both neighbours and yet be right, or wrong in another way."""

CLEAREST = 0.5
"""Pairs are exchanged back in one round where they gain at least this share of what the best one does: a wrong neighbour hides where a row belongs."""

MIN_GAIN, EXCHANGE_ROUNDS, SAMPLED_PAIRS, MIN_SAMPLED_ROWS = 3.0, 30, 200_000, 50
"""Least gain that is ever looked at, in nats; rounds; pairs that tell gains by chance, and rows of them at least."""

DOUBTFUL_RATE = 0.5
"""Rate of false alarms beyond which a pair is put back before the others are judged: rows exchanged by chance are wrong neighbours (in pbcseq a pair that gains 15 nats gained 6 among 45 such), and
other models that are asked without them find spikes too unlikely (1e-10 rather than 1e-6). Rows at a wrong slice: precision .979 rather than .974 (seeds 200:260), recall .916 rather than .9125 (0:100)."""

TWO_COSTLY_ROWS, TWO_AT_ONCE_NATS, TWO_AT_ONCE_ROWS, TWO_AT_ONCE_TRAJECTORIES = 2, 10.0, 12, 50
"""Rows of a trajectory that cost more than a spike from which two exchanges are tried at once, nats that they must gain beyond what one by one do, and the rows that are tried,
the costliest (1,551 moves), of so many trajectories (1.3 ms each). Of rows at a wrong slice .909 are found rather than .891, at the same precision (seeds 200:260), .9125 rather than .905 (0:100). With 16 rows, or
3 nats, as many. Tried before single pairs are, they take rows that were exchanged between subjects: recall .902 rather than .939."""

NUMBERS_AT_ONCE = 150_000
"""Pairs that are tried at a time, or values of them where some are missing: more leave the processor's cache."""

SAME = 1e-9
"""Nats by which gains of one pair, met from both sides, may differ by rounding."""

Place = tuple[int, int]


class Exchange(NamedTuple):
    """Two rows (trajectory, position), the nats gained where they change places, and the share of false alarms among those at least as clear, and among those of
    the same kind: rows of one trajectory, or of one position."""

    one: Place
    two: Place
    gain: float
    rate: float = 1.0
    rate_of_kind: float = 1.0

    @property
    def of_one_trajectory(self) -> bool:
        return self.one[0] == self.two[0]


def find_exchanges(
    x: Array, times: Array, kept: Array, law: TwoSided, tail: Tail, p: Array
) -> list[Exchange]:
    """Exchanged rows of x (n, T, d) along an order, the clearest first.

    `kept`: x with suspects missing, which tells scales; `p` (n, T): how likely each row is by chance, given its neighbours.
    """
    rows = np.argwhere(~np.isnan(x).any(axis=2))
    rows = rows[np.argsort(p[tuple(rows.T)], kind="stable")[:MAX_CANDIDATES]]
    if not len(rows):
        return []
    search = _Search(x, rows, partial(_Places.of, times=times, kept=kept, law=law, tail=tail))
    search.one_by_one()
    if search.two_at_once():
        search.one_by_one()
    found = search.rated()
    doubtful = [e for e in found if min(e.rate, e.rate_of_kind) > DOUBTFUL_RATE]
    if doubtful:
        search.put_back(doubtful)
        found = search.rated()
    return found


class _Search:
    """Pairs found so far, x with those exchanged back (`now`), its places, and rows that are free; `rows` are tried in every other place."""

    def __init__(self, x: Array, rows: Indices, places_of: Callable[..., _Places]) -> None:
        self.now, self.rows, self.places_of = x.copy(), rows, places_of
        self.places = places_of(x)
        self.found, self.free = list[Exchange](), np.ones(x.shape[:2], dtype=bool)

    def one_by_one(self) -> None:
        """Rounds of pairs, the clearest first."""
        for _ in range(EXCHANGE_ROUNDS):
            new = _disjoint(self.places.better(self.rows, self.free))
            if not new:
                return
            self._exchange(new)
            self.found += new
            self.places = self.places_of(self.now, same=self.places)

    def _exchange(self, pairs: list[Exchange], *, free: bool = False) -> None:
        for one, two, *_ in pairs:
            self.now[one], self.now[two] = self.now[two].copy(), self.now[one].copy()
            self.free[one] = self.free[two] = free

    def two_at_once(self) -> bool:
        """Two pairs of a trajectory, in place of its pairs found one by one, where they gain more; whether they do anywhere."""
        costly = (self.places.own > self.places.spike).sum(axis=1)
        costly[np.isnan(self.now).any(axis=(1, 2))] = 0
        some = np.argsort(-costly, kind="stable")[:TWO_AT_ONCE_TRAJECTORIES]
        some = some[costly[some] >= TWO_COSTLY_ROWS]
        own = [e for e in self.found if e.of_one_trajectory and e.one[0] in some]
        self._exchange(own, free=True)
        before = self.places_of(self.now, same=self.places) if own else self.places
        new = list[Exchange]()
        for j in some.tolist():
            new += before.two_at_once(j, _costliest(before.own[j], self.free[j]), self.places)
        better = {e.one[0] for e in new}
        undone = [e for e in own if e.one[0] in better]
        self._exchange([e for e in own if e not in undone] + new)
        self.found = [e for e in self.found if e not in undone] + new
        if new:
            self.places = self.places_of(self.now, same=self.places)
        return bool(new)

    def put_back(self, pairs: list[Exchange]) -> None:
        """Leave some of the pairs found where they are given."""
        places = {(e.one, e.two) for e in pairs}
        self._exchange(pairs, free=True)
        self.found = [e for e in self.found if (e.one, e.two) not in places]
        self.places = self.places_of(self.now, same=self.places)

    def rated(self) -> list[Exchange]:
        """Pairs, the clearest first, judged where all others are exchanged back, and by the share of spikes that is left."""
        if not self.found:
            return []
        spikes = float((self.places.own > self.places.most).mean())
        places = replace(self.places, most=self.places.most - np.log(max(spikes / SPIKES, 1.0)))
        gains = places.gains_of(self.found)
        found = [e._replace(gain=-float(g)) for e, g in zip(self.found, gains, strict=True)]
        found.sort(key=lambda each: -each.gain)
        return _rated(found, places)


def _costliest(own: Array, free: Mask) -> Indices:
    """Free rows of a trajectory that cost most, or are next to such a one: at an end of the course a wrong row that follows another one costs no more than usual."""
    near = np.fmax(own, np.fmax(np.r_[0.0, own[:-1]], np.r_[own[1:], 0.0]) - SAME)
    rows = np.flatnonzero(free)
    return np.sort(rows[np.argsort(-near[rows], kind="stable")[:TWO_AT_ONCE_ROWS]])


def _rated(found: list[Exchange], places: _Places) -> list[Exchange]:
    """Pairs, the clearest first, with their rates."""
    gains = np.array([e.gain for e in found])
    own = np.array([e.of_one_trajectory for e in found])
    chance = _Chance.of(places)
    by_kind = [chance[kind].beyond(gains) for kind in (False, True)]
    rates = _falling(by_kind[0] + by_kind[1])
    of_kind = np.empty(len(found))
    for kind in (False, True):
        of_kind[own == kind] = _falling(by_kind[kind][own == kind])
    return [
        e._replace(rate=float(r), rate_of_kind=float(k))
        for e, r, k in zip(found, rates, of_kind, strict=True)
    ]


def _falling(by_chance: Array) -> Array:
    """Rates of false alarms among pairs at least as clear, from how many there are by chance beyond each, the clearest first."""
    rates = by_chance / np.arange(1, len(by_chance) + 1)
    return np.asarray(np.minimum.accumulate(rates[::-1])[::-1])


class _Chance(NamedTuple):
    """V(t) from pairs that lose: losses, ascending, and how many gains beyond each are by chance."""

    losses: Array
    by_chance: Array

    @classmethod
    def of(cls, places: _Places) -> tuple[_Chance, _Chance]:
        """Of pairs of one position, and of one trajectory."""
        every = np.argwhere(~np.isnan(places.x).any(axis=2))
        n, T, _ = places.x.shape
        rows = every[evenly(len(every), max(SAMPLED_PAIRS // (n + T), MIN_SAMPLED_ROWS))]
        some = np.concatenate([places.gains(few) for few in places.parts(rows)])
        # each pair is met from both sides, those next to each other once
        weight = len(every) / len(rows) / 2
        near = places.next_to_each_other[0].ravel()
        own = some[:, n:].ravel()
        weights = np.r_[np.full(len(own), weight), np.ones(len(near))]
        return (
            cls._from(some[:, :n].ravel(), np.full(len(some) * n, weight)),
            cls._from(np.r_[own, near], weights),
        )

    @classmethod
    def _from(cls, gains: Array, weights: Array) -> _Chance:
        kept = gains < -MIN_GAIN
        order = np.argsort(-gains[kept])
        expected = (weights[kept] * np.exp(gains[kept]))[order]
        return cls(-gains[kept][order], np.r_[np.cumsum(expected[::-1])[::-1], 0.0])

    def beyond(self, gains: Array) -> Array:
        """V at each gain."""
        return np.asarray(self.by_chance[np.searchsorted(self.losses, gains + SAME, side="right")])


def _disjoint(pairs: list[Exchange]) -> list[Exchange]:
    """The clearest pairs that do not touch each other's steps."""
    found, touched = list[Exchange](), set[Place]()
    for each in sorted(pairs, key=lambda each: -each.gain):
        if found and each.gain < CLEAREST * found[0].gain:
            break
        if each.one in touched or each.two in touched:
            continue
        touched |= {(j, k + step) for j, k in (each.one, each.two) for step in (-1, 0, 1)}
        found.append(each)
    return found


@dataclass(frozen=True, eq=False)
class _Places:
    """Whitened residuals (n, T, d) of each row and of the next one, and their scales, by which a change of the row moves them."""

    x: Array
    before: Array
    after: Array
    scale: Array
    scale_after: Array
    W: Array
    FW: Array
    tail: Tail
    sizes: Array
    spike: float
    most: Array

    @classmethod
    def of(
        cls, x: Array, times: Array, kept: Array, law: TwoSided, tail: Tail, same: _Places | None = None
    ) -> _Places:  # fmt: skip
        """`same`: places of other rows whose scales, which `kept` tells, these have."""
        W = law.whitening
        sizes = law.row_scales(times, kept) if same is None else same.sizes
        spike = _spike(kept @ W) if same is None else same.spike
        f, scale = law.scaled_ahead(x, times, sizes)
        # the first rows: as far from their median as a step is from zero
        start = x[:, 0] - median(x[:, 0], 0)
        usual = float(np.nanmedian(lengths(start @ W))) / float(np.median(tail.sorted))
        f[:, 0], scale[:, 0] = start / usual, usual
        before = f @ W
        after, scale_after = np.full_like(before, np.nan), np.ones_like(scale)
        after[:, :-1], scale_after[:, :-1] = before[:, 1:], scale[:, 1:]
        FW = law.ahead.coefficients[:-1] @ W
        most = np.empty(0)
        found = cls(x, before, after, scale, scale_after, W, FW, tail, sizes, spike, most)
        return replace(found, most=spike + found._bridges())

    def _bridges(self) -> Array:
        """The cost (n, T) of the step past each row, from the one before it to the one after it; the first rows have an ordinary one, the last ones none."""
        M, white, volume = self._bridge
        found = self.cost((self.after + self.before @ M) @ white) + volume
        found[:, 0], found[:, -1] = len(M) / 2, 0.0
        return found

    @cached_property
    def _bridge(self) -> tuple[Array, Array, float]:
        """The step M of whitened rows, a whitening of what is left of two steps, with covariance I + MᵀM, and half the logarithm of its determinant."""
        M = np.asarray(np.linalg.solve(self.W, self.FW), dtype=np.float64)
        C = np.eye(len(M)) + M.T @ M
        return M, whitening(C), float(np.linalg.slogdet(C)[1]) / 2

    def cost(self, *residuals: Array) -> Array:
        """Σ ρ of residuals; those that are not known count for nothing."""
        return self._weight * np.log(self._factors(*residuals))

    def _factors(self, *residuals: Array) -> Array:
        """The product of `1 + |r|²/(ν c)`: of all residuals one logarithm is taken."""
        found: Array = np.ones(1)
        for r in residuals:
            q = np.einsum("...d,...d", r, r)
            found = found * (1 + np.where(np.isnan(q), 0.0, q) * self._per_square)
        return found

    @property
    def _weight(self) -> float:
        """½ (ν + d)."""
        return 0.5 * (self.tail.degrees + self.tail.d)

    @property
    def _per_square(self) -> float:
        """1 / (ν c)."""
        return 1 / (self.tail.degrees * self.tail.scale)

    @cached_property
    def _complete(self) -> bool:
        return not np.isnan(self.x).any()

    @cached_property
    def own(self) -> Array:
        """The cost (n, T) of every row where it is."""
        return self.cost(self.before, self.after)

    def _moved(self, at: tuple[Indices, Indices], change: Array) -> Array:
        """The cost where the rows at some places are changed by so much."""
        before = self.before[at] + change / self.scale[at] @ self.W
        return self.cost(before, self.after[at] - change / self.scale_after[at] @ self.FW)

    @cached_property
    def _sides(self) -> tuple[Array, Array, Array, Array, Array]:
        """From before and from after: whitened rows z and what is expected of them, e (2, n, T, d), so that a row r at a place k costs
        `|z_r − e_k|² / s_k²`; the squares of z and of e, and 1 / (ν c s²) (2, n, T), 0 where nothing follows."""
        z = np.stack([self.x @ self.W, self.x @ self.FW])
        e = np.stack([-self.before * self.scale, self.after * self.scale_after])
        e += z
        known = ~np.isnan(e[..., :1])
        e = np.where(known, e, 0.0)
        scales = np.stack([self.scale[..., 0], self.scale_after[..., 0]])
        zz, ee = (np.einsum("...d,...d", a, a) for a in (z, e))
        return z, e, zz, ee, self._per_square * known[..., 0] / scales**2

    def _exchanged(self, rows: Indices) -> tuple[Array, Array]:
        """Costs (m, n + T) of other rows in the places of rows (m, 2), and of rows in the places of others, as products (`_factors`)."""
        z, e, *tables = self._sides
        into, out = (_products(*both, rows) for both in ((e, z), (z, e)))
        own, found = tuple(rows.T), []
        for k, (zz, ee, per_square) in enumerate(zip(*tables, strict=True)):
            # |z − e|² = z² + e² − 2 z·e
            one, two, every = into[k], out[k], _others(per_square, rows)
            one *= -2
            one += _others(zz, rows)
            one += ee[own][:, None]
            one *= per_square[own][:, None]
            one += 1
            two *= -2
            two += _others(ee, rows)
            two += zz[own][:, None]
            two *= every
            two += 1
            found.append((one, two))
        (here, there), (after, following) = found
        here *= after
        there *= following
        return here, there

    def parts(self, rows: Indices) -> Iterator[Indices]:
        """Some rows at a time."""
        n, T, d = self.x.shape
        size = max(1, NUMBERS_AT_ONCE // ((n + T) * (1 if self._complete else d)))
        return (rows[k : k + size] for k in range(0, len(rows), size))

    def gains(self, rows: Indices) -> Array:
        """Gains (m, n + T) of rows (m, 2) and all rows of their position and of their trajectory; NaN of rows next to each other, or not complete."""
        n, T, _ = self.x.shape
        own, place, weight = tuple(rows.T), np.arange(len(rows)), self._weight
        least = np.minimum(self.own, self.most)
        if self._complete:
            here, there = self._exchanged(rows)
            most = np.exp(self.most / weight)
            np.minimum(here, most[own][:, None], out=here)
            here *= np.minimum(there, _others(most, rows), out=there)
            gains = np.log(here, out=here)
            gains *= -weight
        else:  # the scales of a row's variables differ
            one, two = (rows[:, :1], rows[:, 1:]), self._places_of(rows)
            change = self.x[two] - self.x[one]
            here, there = self._moved(one, change), self._moved(two, -change)
            gains = -np.minimum(here, self.most[one]) - np.minimum(there, self.most[two])
            whole = np.asarray(~np.isnan(self.x).any(axis=2))
            gains[~(whole[one] & whole[two])] = np.nan
        gains += least[own][:, None]
        gains += _others(least, rows)
        for near in (-1, 0, 1):
            k = rows[:, 1] + near
            inside = (k >= 0) & (k < T)
            gains[place[inside], n + k[inside]] = np.nan
        gains[place, rows[:, 0]] = np.nan
        return gains

    def _places_of(self, rows: Indices) -> tuple[Indices, Indices]:
        """The trajectories and positions (m, n + T) of the others of each row."""
        n, T, _ = self.x.shape
        trajectories, positions = np.indices((n, T))
        return _others(trajectories, rows), _others(positions, rows)

    def gains_of(self, pairs: list[Exchange]) -> Array:
        """Of pairs of rows of one position or one trajectory."""
        n, near = len(self.x), self.next_to_each_other[0]
        ones = np.array([e.one for e in pairs])
        found = np.concatenate([self.gains(few) for few in self.parts(ones)])
        return np.array(
            [
                near[j, min(k, m)]
                if j == i and abs(k - m) == 1
                else found[row, i if k == m else n + m]
                for row, ((j, k), (i, m), *_) in enumerate(pairs)
            ]
        )

    def clear(self, rows: Indices, others: Indices) -> Array:
        """Gains (m,) of rows (m, 2) and others where nothing is a spike."""
        one, two = tuple(rows.T), tuple(others.T)
        change = self.x[two] - self.x[one]
        return np.asarray(
            self.own[one] - self._moved(one, change) + self.own[two] - self._moved(two, -change)
        )

    @cached_property
    def next_to_each_other(self) -> tuple[Array, Array]:
        """Gains (n, T − 1) of each row and the next one, which share a step, and those where nothing is a spike."""
        change = np.diff(self.x, axis=1)
        first = self.before[:, :-1] + change / self.scale[:, :-1] @ self.W
        shared = self.after[:, :-1] - change / self.scale_after[:, :-1] @ (self.W + self.FW)
        last = self.after[:, 1:] + change / self.scale_after[:, 1:] @ self.FW
        own = self.cost(self.before[:, :-1], self.before[:, 1:], self.after[:, 1:])
        cost = self.cost(first, shared, last)
        one, two = self.most[:, :-1], self.most[:, 1:]
        alone = np.minimum(one + self.cost(self.after[:, 1:]), two + self.cost(self.before[:, :-1]))
        gained = np.minimum(own, np.minimum(alone, one + two)) - np.minimum(cost, one + two)
        return np.where(np.isnan(change).any(axis=2), np.nan, gained), own - cost

    def two_at_once(self, j: int, rows: Indices, others: _Places) -> list[Exchange]:
        """The two exchanges among some rows of a trajectory without missing values that gain most; none where it costs no more in other places."""
        T = self.x.shape[1]
        moves, orders = _moves(len(rows))
        window = np.unique(np.clip(rows[:, None] + np.arange(-1, 2), 0, T - 1))
        at = np.searchsorted(window, rows)
        every = np.tile(np.arange(len(window)), (len(moves), 1))
        every[:, at] = at[orders]
        costs = self._with_spikes(j, window, every)
        best = int(costs.argmin())
        gained = others._with_spikes(j, window, every[:1])[0] - costs[best]
        if len(moves[best]) < 2 or gained < TWO_AT_ONCE_NATS:
            return []
        return [Exchange((j, int(rows[a])), (j, int(rows[b])), gained) for a, b in moves[best]]

    def _with_spikes(self, j: int, window: Indices, orders: Indices) -> Array:
        """Costs (m,) of rows of a trajectory in other orders (m, w) at places `window` (w,), each a spike where that costs less: a shortest path past
        any of them that is next to none."""
        (z, back), e = self._sides[0][:, j], self._sides[1][0, j]
        s, (M, past, volume) = self.scale[j][:, 0], self._bridge
        z, here = z[window], back[window]
        before = np.zeros(
            len(orders)
        )  # up to the place before the last one, and up to the last one
        last = self.cost((z - e[0]) / s[0])[orders[:, 0]] if window[0] == 0 else before
        shift = e[window] - back[window - 1]
        steps = self._costs_between(here, z, shift, s[window])
        two = (e[window - 1] - back[window - 2]) @ M + shift
        bridges = self._costs_between(here @ M @ past, z @ past, two @ past, s[window]) + volume
        for i, k in enumerate(window[1:].tolist(), 1):
            if window[i - 1] != k - 1:
                before, last = last, last + 0.0
                continue
            now = last + steps[i, orders[:, i - 1], orders[:, i]]
            if k == 1:
                now = np.minimum(now, self.spike + z.shape[1] / 2)
            elif i > 1 and window[i - 2] == k - 2:
                past_it = bridges[i, orders[:, i - 2], orders[:, i]]
                now = np.minimum(now, before + self.spike + past_it)
            before, last = last, now
        return np.minimum(last, before + self.spike) if window[-1] == self.x.shape[1] - 1 else last

    def _costs_between(self, a: Array, b: Array, shifts: Array, scales: Array) -> Array:
        """Costs (w, w, w) of `b_k − a_i − shift` at each place, in units of its scale (w,): [place, i, k]."""
        # |b − a − t|² = |b − a|² + |t|² − 2 b·t + 2 a·t
        aa, bb, tt = (np.einsum("ij,ij->i", each, each) for each in (a, b, shifts))
        squares = (aa[:, None] + bb - 2 * a @ b.T)[None] + tt[:, None, None]
        squares += 2 * (shifts @ a.T)[:, :, None] - 2 * (shifts @ b.T)[:, None]
        squares *= (self._per_square / scales**2)[:, None, None]
        return np.asarray(self._weight * np.log1p(np.maximum(squares, 0.0, out=squares)))

    def better(self, rows: Indices, free: Mask) -> list[Exchange]:
        """Pairs of free rows, one of them among `rows`, that gain enough, by what they gain where nothing is a spike."""
        found, met, n = list[Exchange](), set[tuple[Place, Place]](), len(self.x)
        rows = rows[free[tuple(rows.T)]]
        for some in self.parts(rows):
            gains = self.gains(some)
            a, b = np.nonzero(gains > MIN_GAIN)
            one = some[a]
            of_position, own = np.c_[b, one[:, 1]], np.c_[one[:, 0], b - n]
            two: Indices = np.asarray(np.where((b < n)[:, None], of_position, own))
            allowed = free[tuple(two.T)]
            one, two = one[allowed], two[allowed]
            for here, there, nats in zip(one, two, self.clear(one, two).tolist(), strict=True):
                pair = _place(here), _place(there)
                if (
                    pair[::-1] not in met
                ):  # met from the other side: the clearer row stays the first
                    met.add(pair)
                    found.append(Exchange(*pair, nats))
        gains, clear = self.next_to_each_other
        for j, k in np.argwhere(free[:, 1:] & free[:, :-1] & (gains > MIN_GAIN)).tolist():
            found.append(Exchange((j, k), (j, k + 1), clear[j, k]))
        return found


def _others(values: Any, rows: Indices) -> Any:
    """Values (n, T) of all rows of the position, then of the trajectory, of rows (m, 2): (m, n + T)."""
    return np.concatenate([values.T[rows[:, 1]], values[rows[:, 0]]], axis=1)


@cache
def _moves(count: int) -> tuple[list[tuple[Place, ...]], Indices]:
    """One or two exchanges among so many rows, that of nothing first, and the rows (m, count) after each."""
    pairs = list(combinations(range(count), 2))
    both = (each for each in combinations(pairs, 2) if not {*each[0]} & {*each[1]})
    moves: list[tuple[Place, ...]] = [(), *((each,) for each in pairs), *both]
    orders = np.tile(np.arange(count), (len(moves), 1))
    for order, move in zip(orders, moves, strict=True):
        for a, b in move:
            order[[a, b]] = order[[b, a]]
    return moves, orders


def _products(a: Array, b: Array, rows: Indices) -> Array:
    """Products (2, m, n + T) of a, at rows (m, 2), and b (2, n, T, d) at all rows of their position, then of their trajectory: one product of matrices for
    each position and each trajectory."""
    n, T = b.shape[1:3]
    found = np.empty((2, len(rows), n + T))
    for axis, columns in ((1, slice(None, n)), (0, slice(n, None))):
        order = np.argsort(rows[:, axis], kind="stable")
        along = rows[order]
        mine = a[:, along[:, 0], along[:, 1]]
        products = np.empty((2, len(rows), n if axis else T))
        ends = np.flatnonzero(np.diff(along[:, axis])) + 1
        for begin, end in pairwise([0, *ends.tolist(), len(rows)]):
            at = int(along[begin, axis])
            others = b[:, :, at] if axis else b[:, at]
            np.matmul(mine[:, begin:end], others.swapaxes(1, 2), out=products[:, begin:end])
        found[:, order, columns] = products
    return found


def _spike(a: Array) -> float:
    """The cost of a row of its own kind, which does not follow from its neighbours, `log 1/ε + ½ log |Σ| + d/2`.

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
