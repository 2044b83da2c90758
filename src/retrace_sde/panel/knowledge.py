"""What is known of time, as the user says it: positions, precedences, blocks, ends and timestamps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from retrace_sde.panel.blocks import unmasked

NEGLIGIBLE_TIME_ERROR, UNINFORMATIVE_TIME_ERROR = 1e-6, 1e6
"""Errors of times, relative to the least distance between two times and to their span: below the first times are exact,
above the second they say nothing. Squares of errors in between neither vanish nor overflow."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What is known of time. Everything is optional and may be combined.

    With permutation="shared" it is about slices, with "independent" about each trajectory's observations.
    Slices and observations are numbered as in X, from 0; positions are counted in time, from 0. All are hard
    constraints, except timestamps with an error, or of which some are wrong: what is wrong here is wrong in the answer; contradictions are refused.

    Parameters
    ----------
    positions : mapping or array, optional
        {slice: position}, or an array (T,) with −1 where unknown. Independent: {(trajectory,
        observation): position}, or an array (n, T).
    precedences : sequence of tuples, optional
        [(a, b), …], a came before b. Independent: [(trajectory, a, b), …].
    blocks : array, optional
        Labels (T,) or (n, T), numbers that grow in time: all of block 1 before all of block 2; NaN unknown.
    first, last : int, array or mapping, optional
        The slice that came first, last. Independent: one for each trajectory, (n,), −1 unknown;
        {trajectory: observation}; or one number for all.
    timestamps : array, optional
        Times (T,) or (n, T), NaN where unknown. Without an error they are exact: they order what
        they cover (equal times leave the order open), and if all are known their gaps are used in the fit.
    timestamp_error : float or array, optional
        Standard deviation of the timestamps, in the units of `dt`: a number, or one for each.
        They are then Gaussian about the regular grid of times, whose origin they determine themselves, or about those
        of the schedule.
    wrong : float, optional
        Share of the timestamps that are expected to be grossly wrong, e.g. 0.05: each is right within its error with probability
        1 − wrong, or carries no information. The fit then says which ones are wrong (`result_.wrong_stamps`). Without an error, stamps on a regular
        grid have one of 2 % of a step; at irregular times the wrong ones are found first, and replaced by their most likely times.
    schedule : array (T,), optional
        Times of a protocol, growing, of which it is not known which observation is whose: positions then
        have known, unequal gaps. Independent: trajectories may have missed some of them, which ones is sought too.
    aligned : {"start", "end", "neither"}, optional
        At what subjects are aligned, selected or normalised: something at the start (an inclusion), at the end (a death, a
        diagnosis, per cent of the last value), or neither. At the end, means and spreads are no evidence of the direction: such
        data look like ordinary data in reverse.
    increasing, decreasing : str, int or sequence of these, optional
        Variables, by name or number, that grow, or fall, most of the time: enough to settle the direction of growth data, which statistics
        alone often cannot. The order itself is found without it. Data that contradict it are said to, in a warning.
    share : float
        In which share of steps at least, on average.
    segments : array or sequence of sequences, optional
        Stretches of slices of known order, dt apart, whose order among each other and whose gaps are not known (logs of a device that
        was reset): labels (T,), the slices of one label in order as they are stored, or lists of slices. The most likely order of
        the segments is found, and the gaps between them. Independent: labels (n, T), each trajectory's own. Linear and affine
        drifts only; may be combined with `first`, `last` and `precedences`.

    Examples
    --------
    >>> import numpy as np, retrace_sde as rt
    >>> still = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
    >>> X, truth = rt.simulate.shuffle(still.simulate(40, 10, 0.1, x0="stationary", random_state=1), random_state=2)
    >>> rt.ReTrace(dt=0.1, random_state=0).fit(X).direction_.identified  # stationary: undetermined
    False
    >>> early, late = int(truth[1]), int(truth[8])
    >>> model = rt.ReTrace(dt=0.1, random_state=0).fit(X, knowledge=rt.Knowledge(precedences=[(early, late)]))
    >>> rt.metrics.order_accuracy(truth, model.order_)  # one pair known is enough
    1.0
    """

    positions: Mapping[Any, Any] | ArrayLike | None = None
    precedences: Sequence[tuple[int, ...]] | None = None
    blocks: ArrayLike | None = None
    first: int | ArrayLike | Mapping[int, int] | None = None
    last: int | ArrayLike | Mapping[int, int] | None = None
    timestamps: ArrayLike | None = None
    timestamp_error: float | ArrayLike | None = None
    wrong: float | None = None
    schedule: ArrayLike | None = None
    aligned: str | None = None
    increasing: str | int | Sequence[str | int] | None = None
    decreasing: str | int | Sequence[str | int] | None = None
    share: float = 0.8
    segments: Sequence[Any] | ArrayLike | None = None


def with_bounded_errors(knowledge: Knowledge | None) -> Knowledge | None:
    """The same with errors of its timestamps that can be squared; none where they are too small to matter."""
    if knowledge is None or knowledge.timestamps is None or knowledge.timestamp_error is None:
        return knowledge
    error = bounded_time_error(knowledge.timestamps, knowledge.timestamp_error)
    return replace(knowledge, timestamp_error=error)


def bounded_time_error(timestamps: Any, error: Any) -> Any:
    """Errors brought between bounds that the times themselves set; None: exact. What is no error is left to its check."""
    try:
        times = np.asarray(unmasked(timestamps), dtype=float)
        given = np.asarray(unmasked(error), dtype=float)
        known = np.isfinite(times)
        sizes = np.broadcast_to(given, times.shape)[known]
    except (TypeError, ValueError):
        return error
    if not known.any() or not np.all((sizes > 0) & np.isfinite(sizes)):
        return error
    gaps = np.diff(np.unique(times[known]))
    if not len(gaps):
        return error
    least, span = (
        NEGLIGIBLE_TIME_ERROR * float(gaps.min()),
        UNINFORMATIVE_TIME_ERROR * float(gaps.sum()),
    )
    if np.all(sizes <= least):
        return None
    if np.all((sizes >= least) & (sizes <= span)):
        return error
    bounded = np.clip(given, least, span)
    return float(bounded) if bounded.ndim == 0 else bounded
