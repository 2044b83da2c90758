"""Answers that rest on one trajectory say so."""

import numpy as np

import retrace_sde as rt
from retrace_sde.evidence.direction.verdict import direction_test
from retrace_sde.evidence.influence import (
    _insertions,
    _reversals,
    direction_rests_on,
    order_rests_on,
)
from retrace_sde.fit.euler import Euler
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine


def test_the_direction_rests_on_a_trajectory_that_holds_most_of_the_evidence():
    even = direction_test(np.r_[np.full(10, 5.0), 6.0], np.zeros(11), dimension=2)
    assert even.identified
    assert not direction_rests_on(even, None)
    one = np.r_[np.full(10, 0.6) + 0.1 * np.arange(10) / 9, 12.0]
    test = direction_test(one, np.zeros(11), dimension=2)
    held = [(10, float(one[:10].sum()))]
    assert direction_rests_on(rt_identified(test), None) == held
    groups = np.r_[np.zeros(5, int), np.full(5, 1), 2]
    assert [g for g, _ in direction_rests_on(rt_identified(test), groups)] == [2]


def rt_identified(test):
    from dataclasses import replace

    return replace(test, identified=True, p_error=0.001)


def test_without_one_is_vuongs_statistic_of_the_others():
    from retrace_sde.evidence.influence import _vuong_without

    sums = np.random.default_rng(0).normal(1, 1, 9)
    for g, p in enumerate(_vuong_without(sums, 3)):
        rest = np.delete(sums, g)
        assert np.isclose(p, direction_test(rest, np.zeros(8), dimension=3).p_value)


def test_the_order_rests_on_a_trajectory_whose_cost_alone_keeps_two_slices_in_place():
    rng = np.random.default_rng(1)
    x = np.cumsum(rng.normal(1, 0.05, (12, 8, 1)), axis=1)
    x[:, 4], x[:, 5] = (
        x[:, 5].copy(),
        x[:, 4].copy(),
    )  # all but one say that these are in the wrong order
    x[3] = 40 * np.arange(8.0)[:, None]
    data = Data(x)
    step = Euler(Affine(), np.array([[0.0, 1.0]]), np.eye(1), 1.0)
    found = order_rests_on(data, step, np.arange(8), None)
    assert found[0] == (3, (4, 5))
    costs = np.array(
        [step_sum(x[j], [0, 1, 2, 3, 5, 4, 6, 7]) - step_sum(x[j], range(8)) for j in range(12)]
    )
    assert costs.sum() > 0 > np.delete(costs, 3).sum()


def step_sum(x, order):
    """An oracle: `½ Σ (x_{k+1} − x_k − 1)²` along an order."""
    return 0.5 * ((np.diff(x[list(order), 0]) - 1) ** 2).sum()


def test_a_fit_keeps_what_it_rests_on(tmp_path):
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    result = (
        rt.ReTrace(dt=0.05, random_state=0).fit(sde.simulate(12, 8, 0.05, random_state=1)).result_
    )
    assert rt.ReTraceResult.load(result.save(tmp_path / "r.npz")).influence == result.influence
    for each in result.influence:
        assert str(each) in result.summary()


def test_moves_cost_what_the_orders_they_lead_to_do():
    n, T = 3, 7
    P = np.random.default_rng(0).random((n, T, T))

    def along(order):
        return P[:, order[:-1], order[1:]].sum(axis=1)

    every = list(range(T))
    for moves, carried_out in ((_reversals, _reversed), (_insertions, _inserted)):
        seen = 0
        for costs, *spans in moves(P):
            for cost, *span in zip(costs.T, *spans, strict=True):
                orders = carried_out(every, span)
                assert any(np.allclose(cost, along(each) - along(every)) for each in orders)
                seen += 1
        assert seen == (T - 1) * (T - 2) // (2 if moves is _reversals else 1)


def _reversed(order, span):
    a, b = span
    return [[*order[:a], *order[a : b + 1][::-1], *order[b + 1 :]]]


def _inserted(order, span):
    """The first of a stretch to its end, or the last to its beginning."""
    a, b = span
    part = order[a : b + 1]
    ways = [*part[1:], part[0]], [part[-1], *part[:-1]]
    return [[*order[:a], *way, *order[b + 1 :]] for way in ways]
