"""EM with extrapolation, and quasi-Newton steps at its end: the one search for the maximum of the likelihood.

EM is slow where the noise is far below or above the step's own spread, so its steps are extrapolated (Anderson); a step that would
lower the likelihood is replaced by the plain one, which cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from retrace_sde.fit.statespace.ascent.coordinates import Ascent
from retrace_sde.fit.statespace.ascent.quasi_newton import Climb, finish
from retrace_sde.fit.statespace.em_steps import Expected
from retrace_sde.fit.statespace.parameters import Parameters
from retrace_sde.io.arrays import Array

Expectation = Callable[[Parameters], Expected]
"""The E-step at given parameters."""

STEPS_REMEMBERED = 10
"""Steps that the extrapolation looks back on."""

HEAP_ELEMENTS = (1 << 22) - (1 << 12)
"""Numbers of an array that is asked for and let go before a climb. The C library of most systems gives arrays of some MB back to the
system each time, and to get them again takes longer than to fill them, until once a larger one was let go."""

LAST_PROMISE = 0.1
"""Share of the tolerance: a step of scoring that promises a smaller rise is the last."""


def climb(
    expected_at: Expectation,
    ascent: Ascent,
    start: Parameters,
    max_iter: int,
    tolerance: float,
) -> Climb:
    """EM with Anderson's extrapolation: of the last steps the combination whose EM step is smallest.

    "Small" is measured in the metric of the complete data's information. Every accepted step raises the
    likelihood; where the extrapolated one does not, the plain EM step is taken and the memory cleared.
    """
    np.empty(HEAP_ELEMENTS)
    now, expected = start, expected_at(start)
    trace, evaluations = [expected.likelihood], 1
    x = ascent.pack(now)
    memory: list[tuple[Array, Array]] = []
    step, left = _ahead(ascent, expected, now, x)
    while len(trace) <= max_iter:
        weight = ascent.weights(now, expected)
        plain = ahead = x + step
        if memory:
            moves, changes = (np.array(rows) for rows in zip(*memory, strict=True))
            gamma = np.linalg.lstsq((changes * weight).T, step * weight, rcond=1e-10)[0]
            ahead = plain - gamma @ (moves + changes)
        for trial in _trials(ascent, expected, now, ahead, plain):
            better = _attempt(expected_at, ascent, trial, now, trace[-1])
            evaluations += 1
            if better is not None:
                break
            memory.clear()
        if better is None:  # not even the plain step rises: what is left is rounding
            return Climb(now, expected, trace, True, evaluations)
        now, expected = better
        trace.append(expected.likelihood)
        new_step, left = _ahead(ascent, expected, now, trial)
        top = left < LAST_PROMISE * tolerance
        if top or (len(trace) > 3 and trace[-1] - trace[-4] < tolerance):
            return Climb(now, expected, trace, True, evaluations, top)
        memory = [*memory[1 - STEPS_REMEMBERED :], (trial - x, new_step - step)]
        x, step = trial, new_step
    return Climb(now, expected, trace, False, evaluations)


def _trials(
    ascent: Ascent, expected: Expected, now: Parameters, ahead: Array, plain: Array
) -> Iterator[Array]:
    """The extrapolated step, the plain one, and EM's, which cannot lower the likelihood: each if those before it did."""
    yield ahead
    if ahead is not plain:
        yield plain
    if ascent.scores:
        yield ascent.pack(ascent.maximise(expected, now))


def _ahead(ascent: Ascent, expected: Expected, now: Parameters, x: Array) -> tuple[Array, float]:
    """The next step, and the rise that it promises; that of EM where there is no other."""
    try:
        target, gain = ascent.advance(expected, now)
    except np.linalg.LinAlgError:
        if not ascent.scores:
            raise
        target, gain = ascent.maximise(expected, now), np.inf
    return ascent.pack(target) - x, gain


def finished(expected_at: Expectation, ascent: Ascent, found: Climb) -> Climb:
    """A climb with quasi-Newton steps at its end, unless it saw the top."""
    if found.top:
        return found
    end = finish(expected_at, ascent, found.parameters, found.expected)
    passes = found.evaluations + end.evaluations
    return replace(end, trace=[*found.trace, *end.trace], evaluations=passes)


def _attempt(
    expected_at: Expectation,
    ascent: Ascent,
    trial: Array,
    like: Parameters,
    least: float,
) -> tuple[Parameters, Expected] | None:
    """Parameters and E-step at a trial point, or None where the likelihood is lower there or not defined."""
    with np.errstate(all="ignore"):
        try:
            found = ascent.unpack(trial, like)
            expected = expected_at(found)
        except np.linalg.LinAlgError:
            return None
    return (found, expected) if expected.likelihood >= least else None
