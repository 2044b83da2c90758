"""Orders of both kinds against loops over single trajectories of a small ragged panel."""

from itertools import permutations

import numpy as np
import pytest

from retrace_sde.io.arrays import ordered
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.lengths import Lengths
from retrace_sde.panel.order import Order

COUNTS = np.array([5, 1, 3, 4])
N, T = 4, 5


def own_index(counts, seed=0):
    """A random order of each trajectory, padding in place."""
    rng = np.random.default_rng(seed)
    index = np.tile(np.arange(T), (N, 1))
    for j, m in enumerate(counts):
        index[j, :m] = rng.permutation(m)
    return index


def make(kind):
    if kind == "shared":
        return Order.of(np.random.default_rng(1).permutation(T))
    counts = np.full(N, T) if kind == "own" else COUNTS
    return Order.of(own_index(counts), Lengths(N, T, None if kind == "own" else counts))


def along(order, values):
    """Values (n, T, …) in an order."""
    return ordered(values, order.index)


def every(order, n):
    """A row for each of n trajectories."""
    return np.array([order.of_trajectory(j) for j in range(n)])


@pytest.fixture(params=["shared", "own", "ragged"])
def order(request):
    return make(request.param)


@pytest.fixture
def values():
    return np.random.default_rng(2).random((N, T, 2))


def test_the_kind_follows_from_the_array():
    assert Order.of(np.arange(4)).shared
    found = Order.of(np.zeros((2, 3), dtype=np.intp))
    assert not found.shared
    assert Order.of(found) is found
    assert found.size == 3


def test_application_takes_each_trajectory_along_its_own(order, values):
    found = along(order, values)
    for j in range(N):
        assert np.array_equal(found[j], values[j, order.of_trajectory(j)])
    data = Data(values)
    assert np.array_equal(data.block(slice(None), order.index)[0], found)
    assert np.array_equal(data.block(slice(1, 3), order.index)[0], found[1:3])
    assert np.array_equal(data.states(order.index), found[:, 0])


def test_the_reverse_undoes_itself_and_runs_the_data_backwards(order, values):
    back = order.reversed()
    assert type(back) is type(order)
    assert np.array_equal(back.reversed().index, order.index)
    counts = np.full(N, T) if order.shared else order.lengths.each
    there, here = along(order, values), along(back, values)
    for j, m in enumerate(counts):
        assert np.array_equal(here[j, :m], there[j, :m][::-1])
        assert np.array_equal(here[j, m:], there[j, m:])
    data = Data(values, counts=None if order.shared else order.lengths.counts)
    assert np.array_equal(data.reversed(order.index), back.index)


def test_positions_are_the_inverse(order, values):
    back = Order.of(order.positions)
    assert np.array_equal(along(back, along(order, values)), values)


def test_some_trajectories_keep_their_orders(order, values):
    rows = np.array([2, 0, 2])
    some = order.take(rows)
    assert some.shared == order.shared
    assert np.array_equal(along(some, values[rows]), along(order, values)[rows])
    assert np.array_equal(every(some.reversed(), 3), every(order.reversed(), N)[rows])


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_ends_are_the_first_and_the_last(kind, values):
    order = make(kind)
    found = along(order.ends(2), values)
    whole = along(order, values)
    assert np.array_equal(found, np.concatenate([whole[:, :2], whole[:, -2:]], axis=1))


def test_ends_of_ragged_trajectories_are_their_own(values):
    order = make("ragged")
    found, whole = along(order.ends(1), values), along(order, values)
    for j, m in enumerate(COUNTS):
        assert np.array_equal(found[j], whole[j, [0, m - 1]])


def test_every_order_of_a_short_trajectory_is_turned_into_another():
    lengths = Lengths(1, 4, np.array([3]))
    every = [np.array([*each, 3]) for each in permutations(range(3))]
    turned = {tuple(Order.of(each[None], lengths).reversed().index[0].tolist()) for each in every}
    assert turned == {tuple(each.tolist()) for each in every}
