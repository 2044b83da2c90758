"""Which stamps are wrong, and what they should be: a law of steps and the true times, in turn.

The law (`law`) is fitted robustly to the stamps as given, most of which are right; under it the true times of each sequence are
sampled (`sampler`); stamps that are probably wrong are left out of the next fit. A sequence is one subject's observations, or
the slices that all subjects share. What single wrong stamps explain badly is tried as one event: stamps that run backwards, a
block shifted by a constant.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from retrace_sde.fit.start_law import shrunk_start
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.orders.draws import random_states
from retrace_sde.process.sde import Gaussian
from retrace_sde.process.stamps import LEAST_ERROR, Stamps
from retrace_sde.progress import steps
from retrace_sde.search.stamps.law import StepLaw, fit_steps, gap_levels, pairs_in_order
from retrace_sde.search.stamps.sampler import (
    Costs,
    Records,
    best_block,
    path_cost,
    sample_grid,
    sample_times,
)

DRAWS_A_ROUND = (60, 60, 300)
"""Draws kept of each sequence in each round; the last are those that count."""

THIN, BURN = 3, 120
"""Sweeps between draws, and before them."""

BANDWIDTH, BROAD_SHARE = 0.15, 0.15
"""Of the law of gaps: kernels of the logarithm of a gap, and the share of a wide one, so that no gap is impossible."""

SIMULATED_SEQUENCES = 200
"""Sequences that are simulated of regular and of random times, to be compared with the stamps."""

NOISY_STAMP_GAPS = 0.2
"""Errors of stamps, in gaps, from which a regular grid tells more than they do."""

EVENT_ODDS = 100.0
"""Odds against one event in a sequence: all stamps run backwards, or a block is shifted."""

FEW_SEQUENCES = 5
"""Below so many the others do not tell how one runs: neither whether it is reversed nor the spacing of a grid."""

SHIFT_ERROR = 0.4
"""Error of a shift that is tried, in gaps."""

LEAST_BLOCK = 3
"""Stamps that a common shift must explain, to be called one event."""

LONGEST_SEARCHED = 40
"""Observations up to which all blocks of neighbouring rows are tried: some 10⁵ blocks and shifts, half a second."""


@dataclass(eq=False)
class Sequence:
    """Stamps (T,) in median gaps, of observations or slices, and what was found: all (T,), times in median gaps.

    `values` (n, T, d). Where what slices share is removed, the slices' times part at `edges` (P − 1,), and values (n, T P, d) are those of each
    observation at each slice.
    """

    values: Array
    stamps: Array
    error: Array
    edges: Array = field(default_factory=lambda: np.zeros(0))
    wrong: Array = field(default_factory=lambda: np.zeros(0))
    draws: Array = field(default_factory=lambda: np.zeros((0, 0)))
    best: Array = field(default_factory=lambda: np.zeros(0))
    cost: float = np.inf
    reversed: bool = False
    shift: float = 0.0
    shifted: Mask = field(default_factory=lambda: np.zeros(0, dtype=bool))

    @property
    def expected(self) -> Array:
        """The posterior median of each time."""
        return np.asarray(np.median(self.draws, axis=0))

    def at(self, times: Array) -> Array:
        """Values (n, T, d), were these the times."""
        P = len(self.edges) + 1
        return self.values[:, np.arange(len(times)) * P + np.searchsorted(self.edges, times)]

    def in_unit(self, unit: float) -> Sequence:
        """The same with times in another unit."""
        stamps, error, shift = self.stamps / unit, self.error / unit, self.shift / unit
        draws, best = self.draws / unit, self.best / unit
        return replace(self, stamps=stamps, error=error, shift=shift, draws=draws, best=best)

    def interval(self, level: float) -> tuple[Array, Array]:
        """Posterior intervals of each time."""
        low, high = np.quantile(self.draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high


@dataclass(frozen=True, eq=False)
class Judge:
    """What times are judged by: the law of steps, of first observations, of gaps; and how often stamps are wrong."""

    law: StepLaw
    start: Gaussian
    levels: Array
    gap_costs: Array
    wrong: float
    regular: bool
    alone: bool

    def costs(self, sequence: Sequence) -> Costs:
        """Those of one sequence; on a regular grid, of steps across one gap."""
        x, law, edges = sequence.values, self.law, sequence.edges
        start = np.ascontiguousarray(-self.start.log_density(x).sum(axis=0))
        none = np.zeros((0, 0, 0))
        if self.regular:
            table = law.table(x, np.ones(1))
            return Costs(table, start, 0.0, 1.0, edges, none, none, np.zeros(1), law.tails)
        scale = float(np.log(self.levels[0])), 1 / float(np.log(self.levels[1] / self.levels[0]))
        if len(edges):
            here, ahead, logs = law.whitened(x[0], self.levels)
            logs = logs + self.gap_costs
            return Costs(none, start, *scale, edges, here, ahead, logs, law.tails)
        table = law.table(x, self.levels) + self.gap_costs[:, None, None]
        return Costs(table, start, *scale, edges, none, none, self.gap_costs, law.tails)

    def sampled(
        self, sequence: Sequence, draws: int, rng: np.random.Generator, *, events: bool
    ) -> Sequence:
        """A sequence with draws of its times; `events`: with stamps explained together where that is more likely."""
        sampling = _Sampling(self, self.costs(sequence), draws, rng)
        none = np.zeros(len(sequence.stamps), dtype=bool)
        plain = replace(sequence, reversed=False, shift=0.0, shifted=none)
        found = sampling.sampled(plain, sequence.stamps)
        if not events:
            return found
        return sampling.or_shifted(found if self.alone else sampling.or_reversed(found))


def audit_sequences(
    sequences: list[Sequence], rng: np.random.Generator, *, wrong: float
) -> tuple[list[Sequence], StepLaw]:
    """The same with posteriors of their times, and the law that they were judged by."""
    times, kept = _as_given(sequences)
    law, regular, unit = None, on_a_grid(sequences, wrong=wrong), 1.0
    for k, draws in enumerate(DRAWS_A_ROUND):
        law = fitted_law(sequences, times, kept, robust=k == 0)
        laws = law, _start(sequences, times, kept), *_gap_law(sequences, times, kept)
        judge = Judge(*laws, wrong, regular, alone=len(sequences) < FEW_SEQUENCES)
        last, found = k == len(DRAWS_A_ROUND) - 1, []
        for each in steps(
            sequences, f"judging stamps, round {k + 1} of {len(DRAWS_A_ROUND)}", least=20
        ):
            found.append(judge.sampled(each, draws, rng, events=k > 0))
        sequences = found
        if regular and not last:
            factor = regridded(sequences)
            sequences, unit = [each.in_unit(factor) for each in sequences], unit * factor
        times = [each.expected for each in sequences]
        if last:
            break
        # Time that was sampled is no measurement: it is left out, but for stamps shifted by a constant, or reversed.
        kept = [each.wrong < 0.5 for each in sequences]
        given = _as_given(sequences)
        if 2 * np.concatenate(kept).sum() < np.concatenate(given[1]).sum():
            times, kept = given  # most stamps are right: it is the law that is wrong
    assert law is not None
    return [each.in_unit(1 / unit) for each in sequences], law


def _as_given(sequences: list[Sequence]) -> tuple[list[Array], list[Mask]]:
    """All stamps, and which observations have one."""
    times = [each.stamps for each in sequences]
    return times, [~np.isnan(each) for each in times]


def fitted_law(
    sequences: list[Sequence], times: list[Array], kept: list[Mask], *, robust: bool
) -> StepLaw:
    """The law of steps between neighbours in time."""
    before, after, gaps = [], [], []
    for each, t, use in zip(sequences, times, kept, strict=True):
        _, a, b, g = pairs_in_order(t[None], use[None])
        x = each.at(t)
        before.append(x[:, a].reshape(-1, x.shape[2]))
        after.append(x[:, b].reshape(-1, x.shape[2]))
        gaps.append(np.tile(g, len(x)))
    return fit_steps(*(np.concatenate(x) for x in (before, after, gaps)), robust=robust)


def _start(sequences: list[Sequence], times: list[Array], kept: list[Mask]) -> Gaussian:
    """The law of first observations, drawn towards that of all, which stands in where there are few."""
    every = np.concatenate([each.at(t)[:, use].reshape(-1, each.values.shape[2]) for each, t, use in zip(sequences, times, kept, strict=True)])  # fmt: skip
    first = np.concatenate([
        each.at(t)[:, np.flatnonzero(use)[np.argmin(t[use])]]
        for each, t, use in zip(sequences, times, kept, strict=True) if use.any()
    ])  # fmt: skip
    return shrunk_start(first, every)


def _gap_law(
    sequences: list[Sequence], times: list[Array], kept: list[Mask]
) -> tuple[Array, Array]:
    """Gaps at which costs are tabulated, and −log density of each."""
    parts = [np.diff(np.sort(t[use])) for t, use in zip(times, kept, strict=True)]
    gaps = np.maximum(np.concatenate(parts), 0.02)
    spans = [2 * np.ptp(t[use]) for t, use in zip(times, kept, strict=True) if use.sum() > 1]
    levels = gap_levels(np.array([*gaps, *spans]))
    some = np.log(gaps if len(gaps) <= 2000 else np.quantile(gaps, np.linspace(0, 1, 2000)))
    x = np.log(levels)
    near = np.exp(-0.5 * ((x[:, None] - some) / BANDWIDTH) ** 2).mean(axis=1) / BANDWIDTH
    wide = np.exp(-0.5 * ((x - np.median(some)) / 1.5) ** 2) / 1.5
    density = ((1 - BROAD_SHARE) * near + BROAD_SHARE * wide) / np.sqrt(2 * np.pi) / levels
    return levels, -np.log(density)


def on_a_grid(sequences: list[Sequence], *, wrong: float) -> bool:
    """Observations were made at regular times, of which the stamps tell with errors; then their number is knowledge, too.

    Sorted stamps lie about a line, as closely as those of simulated regular times, and not as those of random ones. Where stamps are
    as good as exact nothing is gained.
    """
    if any(len(each.stamps) < 4 or np.isnan(each.stamps).any() for each in sequences):
        return False
    error = float(np.median(np.concatenate([each.error for each in sequences])))
    if error < NOISY_STAMP_GAPS:
        return False
    T = int(np.median([len(each.stamps) for each in sequences]))
    rng = np.random.default_rng(0)
    regular = np.tile(np.arange(float(T)), (SIMULATED_SEQUENCES, 1))
    random = np.sort(rng.uniform(-0.5, T - 0.5, regular.shape), axis=1)
    spreads = []
    for times in (regular, random):
        noisy = times + error * rng.normal(size=times.shape)
        lost = rng.random(times.shape) < wrong
        simulated = np.where(lost, rng.uniform(-0.5, T - 0.5, times.shape), noisy)
        spreads.append(np.log(np.median([_about_a_line(each) for each in simulated])))
    here = np.log(np.median([_about_a_line(each.stamps) for each in sequences]))
    return bool(here < np.mean(spreads))


def _about_a_line(stamps: Array) -> float:
    """The spread of sorted stamps about a line of slope 1, robustly."""
    rest = np.sort(stamps) - np.arange(len(stamps))
    return 1.4826 * float(np.median(np.abs(rest - np.median(rest)))) + 1e-9


def regridded(sequences: list[Sequence]) -> float:
    """The spacing of a regular grid, in the present unit: the slope of stamps that are right by their positions."""
    above, below = 0.0, 0.0
    for each in sequences:
        right = each.wrong < 0.5
        if right.sum() < 3 or each.reversed:
            continue
        k, s = (
            each.draws[:, right].mean(axis=0),
            each.stamps[right] + each.shift * each.shifted[right],
        )
        k = k - k.mean()
        above, below = above + float(k @ s), below + float(k @ k)
    return above / below if below > 0 and above > 0 else 1.0


def time_range(stamps: Array) -> tuple[float, float]:
    """Where true times lie: from the first to the last stamp, without some that lie far from most."""
    known = np.sort(stamps[~np.isnan(stamps)])
    while len(known) > 3:
        gaps = np.diff(known)
        k = int(np.argmax(gaps)) + 1
        main = known[:k] if 2 * k > len(known) else known[k:]
        if len(main) == len(known) or gaps[k - 1] <= 2 * np.ptp(main) + 5:
            break
        known = main
    return float(known[0]), float(known[-1])


@dataclass(frozen=True, eq=False)
class _Sampling:
    """So many draws of the times of one sequence, under a judge and the costs of its steps."""

    judge: Judge
    costs: Costs
    draws: int
    rng: np.random.Generator

    def sampled(self, sequence: Sequence, stamps: Array) -> Sequence:
        """Draws of times with stamps as they would be without an event."""
        judge, rng, T, known = self.judge, self.rng, len(stamps), ~np.isnan(stamps)
        if known.sum() < 2:
            flat = np.tile(np.where(known, stamps, 0.0), (self.draws, 1))
            wrong = np.where(known, judge.wrong, np.nan)
            return replace(sequence, wrong=wrong, draws=flat, best=flat[0], cost=0.0)
        low, high = time_range(stamps)
        reach = 3 * float(sequence.error.max()) + 1.0
        low, high = low - reach, high + reach
        width = max(float(np.ptp(stamps[known])), high - low)
        error = sequence.error
        if judge.regular and judge.alone:  # whose spacing is known from it alone: least at its ends
            error = error * np.sqrt(1 + 4 / T)
        given = Stamps(stamps, error, low, high, judge.wrong, width)
        seen = Records(np.zeros(T), np.empty((self.draws, T)), np.empty(self.draws))
        entropy = 0.0
        if judge.regular:
            order, origin = np.argsort(stamps), float(np.median(np.sort(stamps) - np.arange(T)))
            sample_grid(self.costs, given, order, origin, BURN, THIN, random_states(rng, 1), seen)
        else:
            begin = np.where(known, stamps, rng.uniform(low, high, T))
            begin = np.where((begin < low) | (begin > high), rng.uniform(low, high, T), begin)
            sample_times(self.costs, given, begin, BURN, THIN, random_states(rng, 1), seen)
            # Free energy, with the entropy of independent times: of two explanations, exact stamps are not the better for being exact.
            spread = np.maximum(seen.times.std(axis=0), 0.5 * sequence.error)
            entropy = float(np.log(spread).sum())
        share = np.where(known, seen.wrong / len(seen.times), np.nan)
        best, cost = seen.times[int(seen.costs.argmin())], float(seen.costs.mean()) - entropy
        return replace(sequence, wrong=share, draws=seen.times, best=best, cost=cost)

    def or_reversed(self, found: Sequence) -> Sequence:
        """The same, or with all stamps mirrored, where that is more likely by more than its odds."""
        known = int((~np.isnan(found.stamps)).sum())
        if known < LEAST_BLOCK:
            return found
        low, high = time_range(found.stamps)
        mirrored = low + high - found.stamps
        as_given, back = (np.argsort(each)[:known] for each in (found.stamps, mirrored))
        if path_cost(self.costs, back, mirrored) > path_cost(self.costs, as_given, found.stamps):
            return found
        other = self.sampled(replace(found, reversed=True), mirrored)
        return other if other.cost + np.log(EVENT_ODDS) < found.cost else found

    def or_shifted(self, found: Sequence) -> Sequence:
        """The same, or with stamps that are off by the same explained by one shift."""
        suspect = np.flatnonzero(found.wrong > 0.5)
        if found.reversed or len(suspect) < LEAST_BLOCK:
            return found
        known = int((~np.isnan(found.stamps)).sum())
        # Of an event, of the two ends of a block, and of the choice of a shift.
        reach = 2 * np.nanmax(found.stamps) - 2 * np.nanmin(found.stamps)
        price = np.log(EVENT_ODDS) + 2 * np.log(known) + np.log(reach + 1)
        best, least = found, found.cost
        for members, shift in (*_alike(found, suspect), *self._block(found)):
            stamps = found.stamps.copy()
            stamps[members] += shift
            shifted = np.isin(np.arange(len(stamps)), members)
            loose = np.where(shifted, np.hypot(found.error, SHIFT_ERROR), found.error)
            other = self.sampled(replace(found, shift=shift, shifted=shifted, error=loose), stamps)
            moved = float(np.median((other.expected - found.stamps)[members]))
            other = replace(other, shift=moved, error=found.error)
            odds = np.exp(min(found.cost - other.cost - price, 50.0))
            if other.cost + price < least:
                least = other.cost + price
                best = replace(other, wrong=np.where(shifted, odds / (1 + odds), other.wrong))
        return best

    def _block(self, found: Sequence) -> list[tuple[Indices, float]]:
        """Neighbouring rows of the table, which a reset of the clock would have stamped alike, and their shift."""
        stamps = found.stamps
        if len(stamps) > LONGEST_SEARCHED or np.isnan(stamps).any():
            return []
        low, high = time_range(stamps)
        given = Stamps(stamps, found.error, low - 1, high + 1, self.judge.wrong, high - low)
        reach = np.ptp(stamps)
        shifts = np.arange(-np.floor(reach), reach + 0.5, 0.5)
        i, j, shift, _ = best_block(self.costs, given, LEAST_BLOCK, shifts[np.abs(shifts) >= 2])
        return [(np.arange(i, j), shift)] if j > i else []


def _alike(found: Sequence, suspect: Indices) -> list[tuple[Indices, float]]:
    """Stamps that were found to be wrong by much the same, and by how much."""
    moved, gap = found.expected - found.stamps, 1.5 + 2 * found.error
    near = np.abs(moved[suspect][:, None] - moved[suspect]) <= gap[suspect]
    members = suspect[near[near.sum(axis=1).argmax()]]
    if len(members) < LEAST_BLOCK:
        return []
    return [(members, float(np.median(moved[members])))]


def standardised(values: Array) -> Array:
    """Variables with mean 0 and standard deviation 1, holes filled by their subject's median, or that of all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns that a subject has no value of
        own = np.nanmedian(values, axis=1, keepdims=True)
    own = np.where(np.isnan(own), np.nanmedian(values, axis=(0, 1)), own)
    centre, scale = np.nanmean(values, axis=(0, 1)), np.nanstd(values, axis=(0, 1))
    return np.asarray(
        (np.where(np.isnan(values), own, values) - centre) / np.where(scale > 0, scale, 1)
    )


def typical_gap(rows: Array, gaps: Array, error: float) -> float:
    """The median gap; where errors blur it, the median slope of sorted stamps, which wrong ones hardly change."""
    if error < NOISY_STAMP_GAPS * np.median(gaps):
        return float(np.median(gaps))
    slopes = []
    for each in rows:
        known = np.sort(each[~np.isnan(each)])
        half = len(known) // 2
        if half:
            slopes.append(np.median((known[-half:] - known[:half]) / (len(known) - half)))
    return float(np.median(slopes))


def sequences_of(
    values: Array, stamps: Array, lengths: Indices, error: Array | float
) -> tuple[list[Sequence], float]:
    """Sequences of a panel, values (n, T, d), stamps (T,) shared or (n, T), and the median gap, which is their unit."""
    shared = stamps.ndim == 1
    rows = stamps[None] if shared else stamps
    gaps = np.concatenate([np.diff(np.sort(each[~np.isnan(each)])) for each in rows])
    gaps = gaps[gaps > 0]
    if not len(gaps):
        raise ValueError(
            "the times are all the same, or known of single rows only: nothing can be judged."
        )
    unit = typical_gap(rows, gaps, float(np.median(error)))
    sizes = np.maximum(np.broadcast_to(error, rows.shape) / unit, LEAST_ERROR)
    y = standardised(values)
    if shared:
        return [Sequence(y, stamps / unit, sizes[0])], unit
    found = [
        Sequence(y[j : j + 1, :t], rows[j, :t] / unit, np.ascontiguousarray(sizes[j, :t]))
        for j, t in enumerate(lengths.tolist())
    ]
    return found, unit
