"""Thousands of slices: near pairs only, against the search that sees all pairs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.euler import Euler
from retrace_sde.orders import paths
from retrace_sde.orders.costs import as_matrix, near_costs, transition_costs
from retrace_sde.orders.near.neighbours import (
    MAX_DENSE_SLICES,
    along_band,
    mutual,
    nearby,
    nearest,
    short_path,
)
from retrace_sde.orders.near.search import Near, NearPath, improve, path_cost
from retrace_sde.orders.paths import PathCosts
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear


def every_pair(costs, start):
    """All pairs, as lists."""
    T = len(costs)
    lists = np.argsort(costs + np.diag(np.full(T, np.inf)), axis=1)[:, :-1].astype(np.int32)
    nothing = np.empty((T, 0))
    return Near(lists, np.take_along_axis(costs, lists, axis=1), start, nothing, nothing)


def random_costs(T, seed):
    """Costs that are not symmetric, and start costs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((T, 3))
    costs = ((x[:, None] - x[None] + 0.2) ** 2).sum(axis=2)
    return costs, rng.random(T)


def test_the_cost_of_a_path_is_that_of_all_pairs():
    costs, start = random_costs(30, 0)
    order = np.random.default_rng(1).permutation(30)
    assert path_cost(every_pair(costs, start), order) == pytest.approx(
        paths.path_cost(costs, start, order)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_search_ends_where_no_reversal_or_short_move_helps(seed):
    """With every pair a neighbour, all moves of the plain search are among those tried."""
    costs, start = random_costs(40, seed)
    order = np.random.default_rng(seed).permutation(40)
    found = improve(every_pair(costs, start), order)
    assert sorted(found) == list(range(40))
    now = paths.path_cost(costs, start, found)
    assert now < paths.path_cost(costs, start, order)
    for i in range(40):
        for j in range(i + 1, 40):
            turned = np.r_[found[:i], found[i : j + 1][::-1], found[j + 1 :]]
            assert paths.path_cost(costs, start, turned) > now - 1e-6
    for i in range(40):
        for length in (1, 2, 3):
            segment, rest = found[i : i + length], np.delete(found, np.s_[i : i + length])
            for k in range(len(rest) + 1):
                for piece in (segment, segment[::-1]):
                    moved = np.r_[rest[:k], piece, rest[k:]]
                    assert paths.path_cost(costs, start, moved) > now - 1e-6


@pytest.mark.parametrize("seeds", [2, pytest.param(4, marks=pytest.mark.statistics)])
def test_paths_through_near_pairs_are_as_short_as_through_all(seeds):
    """Points of a plane have no true order: the hardest case for lists of neighbours."""
    ratios = []
    for seed in range(seeds):
        x = np.random.default_rng(seed).random((300, 2))
        squares = ((x[:, None] - x[None]) ** 2).sum(axis=2)
        found = short_path(x)
        dense = paths.shortest_path(squares)
        nothing = np.zeros(300)
        assert sorted(found) == list(range(300))
        ratios.append(
            paths.path_cost(squares, nothing, found) / paths.path_cost(squares, nothing, dense)
        )
    assert np.mean(ratios) < 1.1


def test_neighbours_are_those_of_all_distances():
    x = np.random.default_rng(0).standard_normal((200, 5))
    lists, squares = nearest(x)
    D = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    np.fill_diagonal(D, np.inf)
    np.testing.assert_array_equal(lists, np.argsort(D, axis=1)[:, : lists.shape[1]])
    np.testing.assert_allclose(squares, np.sort(D, axis=1)[:, : lists.shape[1]])


def test_neighbours_survive_the_sketch():
    """A walk in 2000 dimensions, seen through 64 numbers: those before and after are found."""
    x = np.random.default_rng(1).standard_normal((300, 2000)).cumsum(axis=0)
    lists, _ = nearest(x)
    for a in range(300):
        assert {b for b in (a - 1, a + 1) if 0 <= b < 300} <= set(lists[a].tolist())


def test_mutual_lists_know_each_other():
    lists = mutual(np.array([[1], [2], [0], [0]], dtype=np.int32))
    for a in range(4):
        for b in lists[a][lists[a] >= 0]:
            assert a in lists[b]


def test_parts_far_apart_are_joined():
    """Two walks so far apart that no slice of one is among the nearest of the other."""
    rng = np.random.default_rng(2)
    walk = np.r_[rng.standard_normal((150, 30)), 1e4 + rng.standard_normal((150, 30))]
    walk = np.r_[walk[:150].cumsum(axis=0), walk[150:].cumsum(axis=0)]
    shuffled = rng.permutation(300)
    found = short_path(walk[shuffled])
    part = shuffled[found] >= 150
    assert np.abs(np.diff(part.astype(int))).sum() == 1


@pytest.fixture(scope="module")
def panel():
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(20, 60, 0.02, random_state=1)
    return X, Euler(Linear(), sde.drift, sde.diffusion, 0.02)


def test_costs_of_near_slices_are_those_of_all(panel):
    X, step = panel
    W = step.whitening.T
    target, source = (
        np.transpose(z @ W, (1, 0, 2)).reshape(60, -1) for z in (X, step.predict(X, None))
    )
    order = np.random.default_rng(3).permutation(60)
    near = nearby(source, target, np.zeros(60), order)
    costs = transition_costs(Data(X), step)
    for a in range(60):
        there = near.lists[a] >= 0
        np.testing.assert_allclose(near.costs[a, there], costs[a, near.lists[a, there]])
    assert all(b in near.lists[a] for a, b in pairwise(order))


def test_a_band_along_an_order_is_judged_as_its_matrix(panel):
    X, step = panel
    rng = np.random.default_rng(4)
    order = np.arange(60)
    order[20:23] = order[[22, 20, 21]]
    start = np.full(60, np.inf)
    start[:3] = rng.random(3)
    costs = near_costs(Data(X), order, step, 2)
    band, dense = NearPath(along_band(costs, start)), PathCosts(as_matrix(costs), start)
    every = np.arange(60)
    assert band.cost(every) == pytest.approx(dense.cost(every))
    assert not np.array_equal(band.improve(every), every)
    assert dense.cost(band.improve(every)) == pytest.approx(dense.cost(dense.improve(every)))


@pytest.mark.parametrize("drift", ["affine", "linear"])
def test_many_slices_are_put_in_order(drift):
    sde = rt.simulate.random_irreversible_sde(4, random_state=5)
    X = sde.simulate(25, MAX_DENSE_SLICES + 150, 0.01, random_state=6)
    shuffled, truth = rt.simulate.shuffle(X, random_state=7)
    model = rt.ReTrace(dt=0.01, drift=drift).fit(shuffled)
    assert max(np.mean(model.order_ == truth), np.mean(model.order_[::-1] == truth)) == 1.0
