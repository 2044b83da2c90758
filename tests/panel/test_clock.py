"""Gaps of each kind against loops over single trajectories, and the times that a clock gives."""

import numpy as np
import pytest

from retrace_sde.panel.blocks import Data
from retrace_sde.panel.clock import UNKNOWN, Clock, Gaps
from retrace_sde.panel.lengths import Lengths

N, T = 4, 5
COUNTS = np.array([5, 1, 3, 4])
GIVEN = {
    "equal": 0.5,
    "shared": np.array([1.0, 2.0, 0.5, 4.0]),
    "own": np.random.default_rng(0).random((N, T - 1)) + 0.1,
}


@pytest.fixture(params=list(GIVEN))
def given(request):
    return GIVEN[request.param]


@pytest.fixture(params=[None, COUNTS], ids=["full", "ragged"])
def lengths(request):
    return Lengths(N, T, request.param)


def rows(given):
    return np.broadcast_to(np.asarray(given), (N, T - 1))


def test_the_kind_follows_from_what_is_given(given, lengths):
    found = Gaps.of(given, lengths)
    assert Gaps.of(found) is found
    assert found.equal == (np.ndim(given) == 0)
    assert found.shared == (np.ndim(given) < 2)


def test_every_shape_says_the_same(given, lengths):
    found = Gaps.of(given, lengths)
    assert np.array_equal(found.rows(N, T), rows(given))
    assert np.array_equal(np.broadcast_to(found.along(T), (N, T - 1)), rows(given))
    steps = np.random.default_rng(1).random((N, T - 1, 2))
    assert np.array_equal(steps * found.factor, steps * rows(given)[:, :, None])
    assert np.allclose(np.diff(np.broadcast_to(found.times(T), (N, T)), axis=1), rows(given))


def test_a_reversal_is_within_each_trajectory_and_undoes_itself(given, lengths):
    found = Gaps.of(given, lengths)
    back = found.reversed().rows(N, T)
    for j in range(N):
        m = T - 1 if np.ndim(given) < 2 else lengths.each[j] - 1
        assert np.array_equal(back[j, :m], rows(given)[j, :m][::-1])
    assert np.array_equal(found.reversed().reversed().rows(N, T), rows(given))


def test_some_trajectories_keep_their_gaps(given, lengths):
    some = np.array([2, 0, 2])
    found = Gaps.of(given, lengths).take(some)
    assert np.array_equal(found.rows(3, T), rows(given)[some])
    assert np.array_equal(
        found.reversed().rows(3, T), Gaps.of(given, lengths).reversed().rows(N, T)[some]
    )


def test_a_pass_over_pieces_hands_on_the_gaps_of_each_piece(given, lengths):
    def of_piece(piece, gaps):
        return gaps.rows(*piece.shape[:2])

    data = Data(np.zeros((N, T, 1)), n_jobs=1, counts=lengths.counts)
    found = data.each_piece(of_piece, Gaps.of(given, lengths), size=3)
    assert np.array_equal(found, rows(given))


def test_known_times_give_gaps_origins_and_the_mean_step():
    times = np.array([[3.0, 1.0, 7.0], [0.5, 2.0, np.nan]])
    clock, dt = Clock.at(times, Lengths(2, 3, np.array([3, 2])))
    assert dt == pytest.approx((2 + 4 + 1.5) / 3)
    assert clock.gaps_known
    assert not clock.gaps(dt).shared
    order = np.array([[1, 0, 2], [0, 1, 2]])
    found = clock.times(order, clock.gaps(dt))
    assert np.allclose(found[0], [1, 3, 7])
    assert np.allclose(found[1, :2], [0.5, 2])
    some = clock.take(np.array([1]))
    assert np.allclose(some.times(order[1:], some.gaps(dt))[0, :2], [0.5, 2])


def test_times_start_where_a_stamp_puts_them():
    stamps = np.array([np.nan, 4.0, np.nan])
    clock = Clock(stamps=stamps)
    order = np.array([2, 0, 1])
    assert np.allclose(clock.times(order, Gaps.of(np.array([1.0, 2.0]))), [1.0, 2.0, 4.0])
    assert np.allclose(clock.times(order, Gaps.of(1.0)), [0.0, 1.0, 2.0])
    assert np.array_equal(clock.stamped(order), [np.nan, np.nan, 4.0], equal_nan=True)


def test_a_schedule_belongs_to_positions_and_to_other_trajectories():
    clock, dt = Clock.by_schedule(np.array([1.0, 2.0, 5.0]))
    assert dt == 2.0
    assert clock.scheduled
    assert not clock.silent
    assert np.array_equal(clock.scheduled_gaps, [1.0, 3.0])
    assert clock.for_others().scheduled
    assert UNKNOWN.silent
    assert UNKNOWN.gaps(0.3).factor == 0.3
