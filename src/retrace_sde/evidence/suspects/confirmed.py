"""Suspects that stay far from what is expected under every other model of the course, not only under the linear step.

A row is predicted from up to two neighbours on either side (its own and other suspects left out) by regressions that hold for other laws too:

* linear in four neighbours: memory, a hidden velocity, smooth courses;
* quadratic in the nearest two: curved drifts, growth, rates that differ between subjects;
* linear in the nearest two, at its own position alone: a law that changes along the course, where there are enough trajectories.

The length of what is left, over that of a prediction at such neighbours (leverage) and over the usual one of the trajectory and of the position
where those are larger, is compared with a t tail fitted to all other rows. A suspect is confirmed where it is beyond `CONFIRMED_LEVEL` in all of them.

Limits: a course that none of the regressions follows (a spike of the process itself, shorter than a step) is still taken for an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from retrace_sde.evidence.suspects.robust import NORMAL_MAD, median, whitening
from retrace_sde.evidence.suspects.tail import Tail
from retrace_sde.evidence.suspects.two_sided import lengths
from retrace_sde.io.arrays import Array, Indices, Mask
from retrace_sde.process.tails import t_sf

Place = tuple[int, int]

CONFIRMED_LEVEL = 0.003
"""Probability by chance, under each model, up to which a suspect is confirmed."""

ROWS_PER_FEATURE, MIN_ROWS = 4, 12
"""Rows for each feature from which a regression is compared with, and rows at least."""

MAX_LINEAR, MAX_QUADRATIC = 400, 60
"""Features beyond which a regression is left out."""

MARGINAL_LEVEL = 1e-4
"""Probability by chance, among all rows of its position, up to which the first or the last row is confirmed."""

USUAL_ROWS = 0.9
"""Share of the rows, those with the smallest residuals, that the covariance of residuals is taken from."""


def confirm(x: Array, kept: Array, places: list[tuple[int, int, int | None]]) -> list[bool]:
    """Of suspects (trajectory, position, variable or None) of x (n, T, d) along an order, which are far from what every model expects.

    `kept`: x with suspects, and rows that might be, missing.
    """
    models = _Models(_interpolated(kept), kept)
    suspects, levels = _asked_of(x, places)
    usual = models.usual(suspects, levels)
    return [
        not clear and _all_below(models.p_values(*each), level)
        for each, level, clear in zip(suspects, levels, usual, strict=True)
    ]


def _asked_of(
    x: Array, places: list[tuple[int, int, int | None]]
) -> tuple[list[_Suspect], list[float]]:
    """Suspects with the values of their rows, and the level of each."""
    suspects, levels = list[_Suspect](), list[float]()
    seen = ~np.isnan(x)
    every = (*range(x.shape[2]),)
    for j, k, v in places:
        known = every if seen[j, k].all() else (*np.flatnonzero(seen[j, k]).tolist(),)
        suspects.append(_Suspect(x[j, k], j, k, known, v))
        # the cell was chosen among those of its row
        levels.append(CONFIRMED_LEVEL if v is None else CONFIRMED_LEVEL / len(known))
    return suspects, levels


class _Suspect(NamedTuple):
    """Values (d,) at a position of a trajectory, which of them are known, and the one that is thought to be wrong, or None: all of them."""

    row: Array
    trajectory: int
    position: int
    variables: tuple[int, ...]
    cell: int | None = None


def _all_below(p_values: Iterator[float], level: float) -> bool:
    """There are some, and none is above the level; the first one that is ends it."""
    count = 0
    for p in p_values:
        if p > level:
            return False
        count += 1
    return count > 0


class Unlike:
    """Whether rows (trajectory, position) that look exchanged are unlikely where they are, relative to each other's place, under every model.

    With p values p₁, p₂ where they are and q₁, q₂ in the other's place: `p₁ p₂ / (q₁ q₂)`.
    """

    def __init__(self, x: Array, kept: Array) -> None:
        self.x, self.models = x, _Models(_interpolated(kept), kept)

    def __call__(self, one: Place, two: Place, unlikely: Callable[[float], bool]) -> bool:
        """The first model whose ratio is not `unlikely` ends it: a ratio is rarely small by chance, and others need not be fitted."""
        every = (*range(self.x.shape[2]),)
        where = (self.models.p_values(self.x[row], *place, every) for place, row in product((one, two), (one, two)))  # fmt: skip
        asked = False
        for p1, q1, q2, p2 in zip(*where, strict=True):
            asked = True
            if not (q1 * q2 > 0 and unlikely(p1 * p2 / (q1 * q2))):
                return False
        return asked


def outlying(x: Array, kept: Array, j: int, k: int, v: int | None) -> bool:
    """A row, or a cell, is far from those of all other trajectories at its position, by median and MAD.

    The first and the last row have neighbours on one side only: a steep start, or an end, of one trajectory's own is no error as long as others
    are where it is.
    """
    others = np.delete(kept[:, k], j, axis=0)
    centre = median(others, 0)
    scale = NORMAL_MAD * median(np.abs(others - centre), 0)
    z = np.abs(x[j, k] - centre) / np.where(scale > 0, scale, np.nan)
    z = z if v is None else z[[v]]
    count = int((~np.isnan(z)).sum())
    if not count:
        return False
    # few others tell the scale: Student's t rather than a normal law
    degrees = max(int((~np.isnan(others).any(axis=1)).sum()) - 1, 1)
    return bool(2 * count * t_sf(float(np.nanmax(z)), degrees) <= MARGINAL_LEVEL)


def _interpolated(x: Array) -> Array:
    """x with missing values interpolated along each trajectory; where there are none, the medians of the position."""
    seen = ~np.isnan(x)
    if seen.all():
        return x
    T = x.shape[1]
    at = np.broadcast_to(np.arange(T)[:, None], x.shape)
    low = np.maximum.accumulate(np.where(seen, at, -1), axis=1)
    high = np.minimum.accumulate(np.where(seen, at, T)[:, ::-1], axis=1)[:, ::-1]
    low, high = np.where(low < 0, high, low), np.where(high >= T, low, high)
    one, two = (np.take_along_axis(x, np.clip(k, 0, T - 1), axis=1) for k in (low, high))
    found = (two - one) / np.maximum(high - low, 1) * (at - low) + one
    found = np.where(seen, x, found)
    return np.where(np.isnan(found), np.nan_to_num(median(x, 0))[None], found)


class _Models:
    """The regressions that predict rows of x (n, T, d), each fitted once."""

    def __init__(self, x: Array, kept: Array) -> None:
        self.x, self.kept = x, kept
        self.judges: dict[tuple[int, ...], _Judge] = {}

    def p_values(
        self, row: Array, j: int, k: int, variables: tuple[int, ...], cell: int | None = None
    ) -> Iterator[float]:
        """How likely some variables of a row (d,) of trajectory j at position k, or a cell given the others, are by chance, under each model that there are
        enough rows for."""
        for offsets, positions, power in self._asked(k):
            yield self._judge(offsets, positions, power).p_value(row, j, k, variables, cell)

    def usual(self, suspects: list[_Suspect], levels: list[float]) -> list[bool]:
        """Which suspects are so near to what the first model expects that more than the level of all other rows are as far: the rest need not be asked
        one by one. In a panel that steps of one kind do not describe (50 variables at rest) those are all of 1400."""
        together: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for i, each in enumerate(suspects):
            neighbours = (*_offsets(each.position, self.x.shape[1], 4),)
            together.setdefault((neighbours, each.variables), []).append(i)
        found = [False] * len(suspects)
        for (_, variables), some in together.items():
            model = next(self._asked(suspects[some[0]].position), None)
            if model is not None:
                judge = self._judge(*model)
                bounded = judge.ordinary([suspects[i] for i in some], [levels[i] for i in some], variables)  # fmt: skip
                for i, clear in zip(some, bounded, strict=True):
                    found[i] = clear
        return found

    def _asked(self, k: int) -> Iterator[tuple[list[int], Indices, int]]:
        """The models that there are enough rows for to judge rows at position k: neighbours, positions at which they are fitted, and power."""
        n, T, d = self.x.shape
        four, two, every = _offsets(k, T, 4), _offsets(k, T, 2), np.arange(T)
        p = 2 * d
        for offsets, power, most in ((four, 1, MAX_LINEAR), (two, 2, MAX_QUADRATIC)):
            positions = every[(every + min(offsets) >= 0) & (every + max(offsets) < T)]
            count = len(offsets) * d if power == 1 else p * (p + 3) // 2
            if n * len(positions) >= ROWS_PER_FEATURE * count and count <= most:
                yield offsets, positions, power
        if n >= max(ROWS_PER_FEATURE * (p + 1), MIN_ROWS):
            yield two, np.array([k]), 1

    def _judge(self, offsets: list[int], positions: Indices, power: int) -> _Judge:
        key = (power, int(positions[0]), len(positions), *offsets)
        if key not in self.judges:
            near = np.concatenate([self.x[:, positions + o] for o in offsets], axis=2)
            if power == 2:
                a, b = np.triu_indices(near.shape[2])
                near = np.concatenate([near, near[..., a] * near[..., b]], axis=2)
            features = np.concatenate([near, np.ones((*near.shape[:2], 1))], axis=2)
            self.judges[key] = _Judge.of(features, positions, self.kept[:, positions])
        return self.judges[key]


def _offsets(k: int, T: int, count: int) -> list[int]:
    """The nearest positions to k, from it; as many on either side as there are."""
    before, after = min(count // 2, k), min(count // 2, T - 1 - k)
    before, after = min(count - after, k), min(count - before, T - 1 - k)
    return [*range(-before, 0), *range(1, after + 1)]


class _White(NamedTuple):
    """Residuals (n, m, d) of some variables that are `seen` (n, m), whitened by W."""

    seen: Mask
    W: Array
    residuals: Array

    @classmethod
    def of(cls, residuals: Array) -> _White | None:
        """None: too few."""
        seen: Mask = np.asarray(~np.isnan(residuals).any(axis=2))
        if seen.sum() < MIN_ROWS:
            return None
        W = _whitening(residuals[seen])
        return cls(seen, W, np.nan_to_num(residuals) @ W)


class _Lengths:
    """Lengths (n, m) of whitened residuals, their median, and the tail of their law.

    Of one variable alone: what is left of it given the others, along the direction in which an error of it moves a whitened residual.
    """

    def __init__(self, white: _White, W: Array, tail: Tail, sizes: Array) -> None:
        self.W, self.tail = W, tail
        self.sizes = np.where(white.seen, sizes, np.nan)
        self.usual = float(np.median(sizes[white.seen]))
        self.medians: dict[tuple[int, int], float] = {}

    @classmethod
    def of(cls, white: _White | None, variable: int | None) -> _Lengths | None:
        """None: too few, or without a spread."""
        if white is None:
            return None
        W, sizes = white.W, white.residuals
        if variable is not None:
            way = (W[variable] / lengths(W[variable]))[:, None]
            W, sizes = W @ way, sizes @ way
        sizes = lengths(sizes)
        tail = Tail.of(sizes[white.seen], W.shape[1])
        return None if tail is None else cls(white, W, tail, sizes)

    def relative(self, axis: int, at: int) -> float:
        """The median length of a trajectory (axis 0), or of a position, over that of all."""
        if (axis, at) not in self.medians:
            found = median(self.sizes[at] if axis == 0 else self.sizes[:, at])
            self.medians[axis, at] = float(np.nan_to_num(found / self.usual, nan=1.0))
        return self.medians[axis, at]


class _Judge:
    """A regression on features (n, m, p), fitted to rows that are not suspects: residuals (n, m, d) over the spread of a prediction there."""

    def __init__(
        self, features: Array, positions: Indices, B: Array, G: Array, residuals: Array
    ) -> None:
        self.features, self.positions, self.B, self.G = features, positions, B, G
        self.residuals = residuals
        self.lengths: dict[tuple[tuple[int, ...], int | None], _Lengths | None] = {}
        self.white: dict[tuple[int, ...], _White | None] = {}

    @classmethod
    def of(cls, features: Array, positions: Indices, y: Array) -> _Judge:
        seen: Mask = np.asarray(~np.isnan(y).any(axis=2))
        F = features[seen]
        G: Array = np.asarray(np.linalg.pinv(F.T @ F, hermitian=True), dtype=np.float64)
        B = G @ (F.T @ y[seen])
        leverage = (F @ G * F).sum(axis=1)
        found = np.full(y.shape, np.nan)
        found[seen] = (y[seen] - F @ B) / np.sqrt(np.maximum(1 - leverage, 0.05))[:, None]
        return cls(features, positions, B, G, found)

    def p_value(
        self, row: Array, j: int, k: int, variables: tuple[int, ...], cell: int | None
    ) -> float:
        """How likely what is left of some variables of a row (d,) of trajectory j at position k, or of one cell given the others, is by chance."""
        chosen, key = list(variables), (variables, cell)
        if key not in self.lengths:
            one = None if cell is None else variables.index(cell)
            self.lengths[key] = _Lengths.of(self._whitened(variables), one)
        law, at = self.lengths[key], int(np.searchsorted(self.positions, k))
        if law is None:
            return 1.0
        features = self.features[j, at]
        rest = (row - features @ self.B) / np.sqrt(1 + features @ self.G @ features)
        usual = max(law.relative(0, j), law.relative(1, at), 1.0)
        length = lengths(rest[chosen] @ law.W) / usual
        return float(law.tail.beyond(np.asarray(length)))

    def _whitened(self, variables: tuple[int, ...]) -> _White | None:
        """The residuals of some variables."""
        if variables not in self.white:
            self.white[variables] = _White.of(self.residuals[..., list(variables)])
        return self.white[variables]

    def ordinary(
        self, suspects: list[_Suspect], levels: list[float], variables: tuple[int, ...]
    ) -> list[bool]:
        """Of suspects of which the same variables are known, those that are no farther than more than the level of other rows, so that their p value is larger."""
        white = self._whitened(variables)
        if white is None:
            return [False] * len(suspects)
        j, k = (np.array([each[at] for each in suspects]) for at in (1, 2))
        features = self.features[j, np.searchsorted(self.positions, k)]
        rest = np.stack([each.row for each in suspects]) - features @ self.B
        rest /= np.sqrt(1 + np.einsum("ij,ij->i", features @ self.G, features))[:, None]
        mine, others = rest[:, list(variables)] @ white.W, white.residuals[white.seen]
        found = np.zeros(len(suspects), dtype=bool)
        for cell in dict.fromkeys(each.cell for each in suspects):
            of_cell = np.array([each.cell == cell for each in suspects])
            level = next(a for a, each in zip(levels, suspects, strict=True) if each.cell == cell)
            if cell is None:
                sizes, own = lengths(others), lengths(mine[of_cell])
            else:
                way = white.W[variables.index(cell)]
                sizes, own = (np.abs(each @ (way / lengths(way))) for each in (others, mine[of_cell]))  # fmt: skip
            beyond = int(level * len(sizes)) + 1
            if beyond <= len(sizes):
                found[of_cell] = own <= np.partition(sizes, -beyond)[-beyond]
        return [bool(each) for each in found]


def _whitening(residuals: Array) -> Array:
    """W for the bulk of residuals (N, d)."""
    scale = np.maximum(median(np.abs(residuals), 0), 1e-12)
    size = lengths(residuals / scale)
    bulk = residuals[size <= np.quantile(size, USUAL_ROWS)] / scale
    d = residuals.shape[1]
    S = np.cov(bulk.T).reshape(d, d) + 1e-9 * np.eye(d)
    return np.asarray(whitening(S) / scale[:, None])
