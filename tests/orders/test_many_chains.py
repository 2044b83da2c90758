"""All chains at once against all orders one by one, and against the compiled sampler."""

from itertools import pairwise, permutations

import array_api_strict
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retrace_sde.fit.euler import Euler
from retrace_sde.fit.moments import Frequencies, statistics
from retrace_sde.orders import own
from retrace_sde.orders.array_chains import ManyChains, Streams, padded_pairs
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.orders.moves.metropolis import Schedule
from retrace_sde.orders.moves.moves import random_unit
from retrace_sde.orders.moves.proposals import SHARES, SHARPNESS, Proposals, length_table
from retrace_sde.orders.own import EulerLaw, OwnOrders
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.process.sde import Gaussian

LENGTHS = np.array([5, 4, 1])
T, COPIES, RECORDS = 5, 3000, 12


def some_costs():
    rng = np.random.default_rng(0)
    target = rng.normal(size=(3, T, 2))
    return target, target + 0.3 * rng.normal(size=target.shape), rng.normal(size=(3, T))


def chains(xp, copies):
    """Many independent chains of three trajectories, and what they saw."""
    lengths = xp.asarray(np.repeat(LENGTHS, copies))
    pairs = padded_pairs(*(xp.asarray(np.repeat(a, copies, axis=0)) for a in some_costs()), lengths)
    states = np.random.default_rng(1).integers(0, 2**64, size=3 * copies, dtype=np.uint64)
    orders = xp.asarray(np.tile(np.arange(T), (1, 3 * copies, 1)))
    many = ManyChains(pairs, lengths, orders, states, SHARPNESS)
    proposals = Proposals(length_table(T - 1), SHARES.astype(np.int64), SHARPNESS)
    chance = np.random.default_rng(2)
    return many, many.run(Schedule(300, RECORDS, 5), proposals, chance, keep=4)


def enumerated(costs, t):
    """Probabilities of pairs, first, last and positions over all orders of t observations."""
    pairs, where, ends, total = np.zeros((T, T)), np.zeros((T, T)), np.zeros((2, T)), 0.0
    for order in permutations(range(t)):
        cost = costs[T, order[0]] + sum(costs[a, b] for a, b in pairwise(order))
        weight = np.exp(-cost)
        total += weight
        pairs[list(order[:-1]), list(order[1:])] += weight
        where[list(order), range(t)] += weight
        ends[0, order[0]] += weight
        ends[1, order[-1]] += weight
    return pairs / total, ends[0] / total, ends[1] / total, where / total


def test_what_the_chains_see_is_what_all_orders_say():
    many, seen = chains(np, COPIES)
    costs = np.asarray(many.pairs).reshape(3, COPIES, T + 1, T + 1)[:, 0]
    for j, t in enumerate(LENGTHS):
        every = (seen.pairs, seen.first, seen.last, seen.positions)
        for found, truth in zip(every, enumerated(costs[j], t), strict=True):
            mine = found.reshape(3, COPIES, *found.shape[1:])[j] / RECORDS
            # Chains are independent given the moves; a chain's own mean has at most the variance of one draw.
            error = np.sqrt(0.25 / COPIES)
            inside = mine.mean(axis=0)[..., :t]
            assert_allclose(inside[:t] if inside.ndim == 2 else inside, truth[:t, :t] if truth.ndim == 2 else truth[:t], atol=4.5 * error)  # fmt: skip
    assert_allclose(many.cost, many.cost_of(many.path), atol=1e-12)


def test_padding_stays_where_it_is_and_orders_are_permutations():
    many, seen = chains(np, 50)
    for orders in (many.orders, *seen.kept):
        assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(T), (150, 1)))
        outside = np.arange(T)[None] >= np.repeat(LENGTHS, 50)[:, None]
        assert_array_equal(orders[outside], np.nonzero(outside)[1])
    assert len(seen.kept) == 4
    assert seen.tally[:, 0].sum() == 150 * (300 + 5 * RECORDS)


def test_the_same_chains_whatever_the_array_library():
    one, two = chains(np, 20), chains(array_api_strict, 20)
    assert_array_equal(one[0].orders, np.asarray(two[0].orders))
    assert_array_equal(one[1].pairs, np.asarray(two[1].pairs))
    assert_array_equal(one[1].tally, two[1].tally)


def test_the_streams_are_those_of_the_compiled_sampler():
    states = np.random.default_rng(3).integers(0, 2**64, size=4, dtype=np.uint64)
    streams = Streams(states, np.zeros(1))
    found = np.concatenate([streams.units(3), streams.units(2)])
    mine = states.copy()
    expected = [[random_unit(mine[j : j + 1]) for _ in range(5)] for j in range(4)]
    assert_array_equal(found, np.array(expected).T)
    assert_array_equal(streams.states(), mine)


def test_draws_of_either_sampler_have_the_same_statistics(monkeypatch):
    monkeypatch.setattr(own, "MANY_CHAINS", 1)
    rng = np.random.default_rng(4)
    n, T = 400, 6
    x = np.cumsum(rng.normal(size=(n, T, 2)), axis=1)
    law = EulerLaw(Euler(Affine(), np.array([[-0.5, 0.2, 0.1], [0.0, -0.4, 0.0]]), np.eye(2), 0.5), Gaussian(np.zeros(2), np.eye(2)))  # fmt: skip
    lengths = rng.integers(3, T + 1, size=n)

    def counted(values):
        data = Data(values, counts=lengths)
        chains = Chains.start(np.tile(np.arange(T), (n, 1)), np.random.default_rng(5))

        def count(x, u, frequencies):
            return statistics(x, u, frequencies, 0.5, Affine())

        draws = OwnOrders(data, law).draw(chains, Stretch(60, 200, 5, positions=True), count)
        assert draws.positions.sum() == 2 * 60 * lengths.sum()
        return [each.gram / n for each in draws.counted], draws

    (one, other), draws = counted(x)
    (two, again), many = counted(array_api_strict.asarray(x))
    noise = np.abs(one - other).max() + np.abs(two - again).max()
    assert_allclose((two + again) / 2, (one + other) / 2, atol=3 * noise)
    assert many.kept.shape == draws.kept.shape


def test_few_chains_are_left_to_the_compiled_sampler(monkeypatch):
    """Wherever the values are, and however they are cut: the same draws to the last digit."""
    x = np.cumsum(np.random.default_rng(7).normal(size=(30, 6, 2)), axis=1)
    law = EulerLaw(
        Euler(Affine(), np.zeros((2, 3)), np.eye(2), 0.5), Gaussian(np.zeros(2), np.eye(2))
    )
    found = []
    for values, pairs in ((x, own.PAIRS), (array_api_strict.asarray(x), own.PAIRS), (x, 1)):
        monkeypatch.setattr(own, "PAIRS", pairs)
        chains = Chains.start(np.tile(np.arange(6), (30, 1)), np.random.default_rng(8))
        OwnOrders(Data(values), law).draw(chains, Stretch(10, 20))
        found.append(chains.orders)
    assert_array_equal(found[1], found[0])
    assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("weights", [0.0, 1.0])
def test_statistics_are_the_same_on_any_array_library(weights):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 4, 2))
    shares = Frequencies(weights * rng.random((3, 4, 4)), rng.random((3, 4)), rng.random((3, 4)))
    one = statistics(x, None, shares, 0.3, Affine())
    strict = Frequencies(*(array_api_strict.asarray(each) for each in shares))
    two = statistics(array_api_strict.asarray(x), None, strict, 0.3, Affine())
    for name in one.__dataclass_fields__:
        assert_allclose(getattr(two, name), getattr(one, name), rtol=1e-12, atol=1e-12)
