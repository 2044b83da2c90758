"""What is known of time: forms, contradictions in words, and the prior against its definition."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.orders.moves.rules import Rules, dead_end, windows
from retrace_sde.orders.prior import Prior, known_times
from retrace_sde.orders.prior import compiled as prior_of

NAN = float("nan")


def compiled(T=5, n=3, shared=True, lengths=None, **known):
    return prior_of(rt.Knowledge(**known), n, T, shared=shared, lengths=lengths)


def allowed(prior, T):
    """All orders that the prior does not forbid."""
    orders = np.array(list(permutations(range(T))), dtype=np.intp)
    return {tuple(o.tolist()) for o in orders if np.isfinite(prior.cost(o)[0])}


def test_nothing_known_is_no_prior():
    assert compiled() is None
    assert compiled(shared=False) is None


@pytest.mark.parametrize(
    ("known", "rule"),
    [
        ({"positions": {2: 0, 4: 3}}, lambda o: o[0] == 2 and o[3] == 4),
        ({"positions": [-1, 1, -1, -1, 0]}, lambda o: o[1] == 1 and o[0] == 4),
        ({"first": 3}, lambda o: o[0] == 3),
        ({"last": 3, "first": 0}, lambda o: o[0] == 0 and o[-1] == 3),
        ({"precedences": [(1, 2), (2, 4)]}, lambda o: o.index(1) < o.index(2) < o.index(4)),
        (
            {"blocks": [1, 0, 1, NAN, 0]},
            lambda o: max(o.index(1), o.index(4)) < min(o.index(0), o.index(2)),
        ),
        (
            {"timestamps": [3.0, 1.0, 3.0, NAN, 2.0]},
            lambda o: o.index(1) < o.index(4) < min(o.index(0), o.index(2)),
        ),
        (
            {"timestamps": [3.0, 1.0, NAN, NAN, NAN], "first": 4, "precedences": [(2, 1)]},
            lambda o: o[0] == 4 and o.index(2) < o.index(1) < o.index(0),
        ),
    ],
)
def test_hard_knowledge_allows_exactly_the_orders_that_obey_it(known, rule):
    prior = compiled(**known)
    expected = {o for o in permutations(range(5)) if rule(list(o))}
    assert allowed(prior, 5) == expected


def test_independent_knowledge_is_per_trajectory():
    prior = compiled(
        shared=False,
        positions={(0, 1): 2},
        precedences=[(1, 4, 0)],
        first=[-1, -1, 3],
        blocks=np.full((3, 5), NAN),
    )
    orders = np.array(list(permutations(range(5))), dtype=np.intp)
    for j, rule in enumerate(
        [lambda o: o[2] == 1, lambda o: list(o).index(4) < list(o).index(0), lambda o: o[0] == 3]
    ):
        stack = np.tile(np.arange(5), (3, 1))
        for o in orders:
            stack[j] = o
            assert np.isfinite(prior.cost(stack)[j]) == rule(o)


def test_noisy_timestamps_cost_what_a_gaussian_grid_says():
    stamps = np.array([4.1, 0.2, 2.9, 1.1, 1.7]) + 10
    prior = prior_of(
        rt.Knowledge(timestamps=stamps, timestamp_error=0.5), 3, 5, shared=True, dt=1.0
    )
    origin = stamps.mean() - 2
    # Which origin fits best does not depend on the order, so its error adds the same to every order.
    for o in [(1, 3, 4, 2, 0), (0, 1, 2, 3, 4)]:
        o = np.array(o)
        squares = ((stamps[o] - origin - np.arange(5)) ** 2).sum()
        assert prior.cost(o)[0] == pytest.approx(squares / 2 / (0.25 + 0.25 / 5))


def test_origin_of_some_timestamps_has_the_error_of_a_sample_mean():
    """Over random subsets of a grid, the mean's distance from the middle has the variance that is used."""
    rng = np.random.default_rng(0)
    T, m = 12, 5
    far = [rng.choice(T, m, replace=False).mean() - (T - 1) / 2 for _ in range(20_000)]
    assert np.var(far) == pytest.approx((T + 1) * (T - m) / (12 * m), rel=0.04)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"positions": {7: 0}}, "names slice 7; slices run from 0 to 4"),
        ({"positions": {1: 5}}, "names position 5; positions run from 0 to 4"),
        ({"positions": {1: 0, 2: 0}}, r"slices 1 \(positions=\) and 2 \(positions=\) cannot both"),
        ({"positions": {1: 0}, "first": 2}, r"1 \(positions=\) and 2 \(first=\) cannot both"),
        ({"first": 2, "last": 2}, "slice 2 cannot stand at position 4"),
        ({"positions": [0.5, -1, -1, -1, -1]}, "whole numbers"),
        ({"precedences": [(1, 2), (2, 3), (3, 1)]}, "slice 1 before 2 before 3 before 1"),
        ({"precedences": [(2, 2)]}, "slice 2 before 2"),
        ({"precedences": [(1, 2, 3)]}, r"are \(a, b\)"),
        (
            {"precedences": [(0, 1)], "timestamps": [2, 1, 3, 4, 5]},
            "no order satisfies precedences= and timestamps=: slice 0 before 1 before 0",
        ),
        ({"positions": {1: 0}, "precedences": [(3, 1)]}, "no order satisfies"),
        ({"timestamps": [1, 2]}, r"shape \(5,\), one for each slice"),
        ({"timestamps": ["a"] * 5}, "convert dates"),
        ({"timestamps": [1, 2, 3, 4, np.inf]}, "finite"),
        ({"timestamp_error": 1.0}, "no timestamps"),
        ({"timestamps": [1, 2, 3, 4, 5], "timestamp_error": 0}, "must be positive"),
        ({"timestamps": [1, 2, 3, 4, 5], "timestamp_error": [1, 2]}, "one for each timestamp"),
        ({"blocks": list("abcde")}, "number them"),
        ({"first": [1, 2]}, "one slice"),
    ],
)
def test_contradictions_and_misfits_are_told_in_words(known, message):
    with pytest.raises(ValueError, match=message):
        compiled(**known)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"positions": {1: 0}}, r"\{\(trajectory, observation\): position\}"),
        ({"positions": {(3, 1): 0}}, "trajectory 3; trajectories run from 0 to 2"),
        ({"positions": {(1, 3): 0}}, "observation 3 of trajectory 1; observations run from 0 to 2"),
        ({"precedences": [(0, 1)]}, r"are \(trajectory, a, b\)"),
        ({"precedences": [(2, 0, 1), (2, 1, 0)]}, "trajectory 2: no order satisfies precedences=:"),
        ({"first": [0, 1]}, "3 whole numbers"),
        ({"timestamps": [1, 2, 3, 4, 5]}, r"shape \(3, 5\)"),
    ],
)
def test_independent_misfits_name_the_trajectory(known, message):
    with pytest.raises(ValueError, match=message):
        compiled(shared=False, lengths=np.array([5, 3, 5]), **known)


def test_windows_and_precedences_are_feasible_exactly_when_some_order_is():
    """Earliest deadline first against brute force, on random knowledge that is often contradictory."""
    rng = np.random.default_rng(1)
    T, seen = 5, set()
    orders = np.array(list(permutations(range(T))), dtype=np.intp)
    for _ in range(300):
        low = rng.integers(0, T, T)
        high = np.minimum(low + rng.integers(0, T, T), T - 1)
        i = np.arange(T)
        U = np.where((i >= low[:, None]) & (i <= high[:, None]), 0.0, np.inf)
        hidden = rng.permutation(T)
        B = (hidden[:, None] < hidden[None]) & (rng.random((T, T)) < 0.2)
        for k in range(T):
            B |= B[:, [k]] & B[[k], :]
        prior = Prior(U, B)
        possible = [o for o in orders if np.isfinite(prior.cost(o)[0])]
        assert (dead_end(Rules(U, B), T) < 0) == bool(possible)
        seen.add(bool(possible))
        if possible:
            wish = rng.permutation(T)
            mended = prior.repair(wish)
            assert np.isfinite(prior.cost(mended)[0])
            places = np.argsort(possible, axis=1)
            assert np.all(windows(Rules(U, B), T)[:, 0] <= places.min(axis=0))
            kept = possible[rng.integers(len(possible))]
            assert np.array_equal(prior.repair(kept), kept)
    assert seen == {True, False}


def test_known_times_only_where_all_are_known_exact_and_distinct():
    T = 4
    full = [3.0, 1.0, 2.0, 7.0]
    assert known_times(rt.Knowledge(timestamps=full), 2, T, shared=True) == pytest.approx(full)
    for known in (
        {"timestamps": [3.0, NAN, 2.0, 7.0]},
        {"timestamps": [3.0, 3.0, 2.0, 7.0]},
        {"timestamps": full, "timestamp_error": 1.0},
        {},
    ):
        assert known_times(rt.Knowledge(**known), 2, T, shared=True) is None
    ragged = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 4.0, NAN, NAN]])
    found = known_times(
        rt.Knowledge(timestamps=ragged), 2, T, shared=False, lengths=np.array([4, 2])
    )
    assert np.array_equal(np.isnan(found), np.isnan(ragged))
