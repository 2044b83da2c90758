"""What is known of time, as the user says it: positions, precedences, blocks, ends and timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What is known of time. Everything is optional and may be combined.

    With permutation="shared" it speaks of slices, with "independent" of each trajectory's observations.
    Slices and observations are counted as they stand in X, from 0; positions are counted in time, from 0.

    positions : {slice: position}, or an array (T,) with −1 where unknown. Independent: {(trajectory,
        observation): position}, or an array (n, T).
    precedences : [(a, b), …], a came before b. Independent: [(trajectory, a, b), …].
    blocks : labels (T,) or (n, T), numbers that grow in time: all of block 1 before all of block 2; NaN unknown.
    first, last : the slice that came first, last. Independent: one for each trajectory, (n,), −1 unknown;
        {trajectory: observation}; or one number for all.
    timestamps : times (T,) or (n, T), NaN where unknown. Without an error they are exact: they order what
        they cover (equal times leave the order open), and if all are known their gaps are used in the fit.
    timestamp_error : standard deviation of the timestamps, in the units of `dt`: a number, or one for each.
        They are then Gaussian about the regular grid of times, whose origin they determine themselves, or about those
        of the schedule.
    schedule : times (T,) of a protocol, growing, of which it is not known which observation is whose: positions then
        have known, unequal gaps. Independent: trajectories may have missed some of them, which ones is sought too.
    """

    positions: Mapping[Any, Any] | ArrayLike | None = None
    precedences: Sequence[tuple[int, ...]] | None = None
    blocks: ArrayLike | None = None
    first: int | ArrayLike | Mapping[int, int] | None = None
    last: int | ArrayLike | Mapping[int, int] | None = None
    timestamps: ArrayLike | None = None
    timestamp_error: float | ArrayLike | None = None
    schedule: ArrayLike | None = None
