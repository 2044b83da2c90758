"""Two orders side by side: differences found by brute force, weighed by the fits themselves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.after.compare import _blocks

DT = 0.1


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    sde = rt.simulate.random_irreversible_sde(3, setting="stable", random_state=rng)
    X = sde.simulate(40, 12, DT, x0=0.1, random_state=rng)
    return rt.ReTrace(dt=DT, n_jobs=1).fit(X)


def test_blocks_are_the_shortest_stretches_with_the_same_slices():
    rng = np.random.default_rng(1)
    for _ in range(200):
        a, b = rng.permutation(7), rng.permutation(7)
        cuts = [k for k in range(8) if set(a[:k]) == set(b[:k])]
        expected = [(s, e - 1) for s, e in pairwise(cuts) if e - s > 1]
        assert _blocks(a, b) == expected


def test_each_difference_is_weighed_by_itself(fitted):
    order = fitted.order_
    other = order.copy()
    other[[2, 3]] = other[[3, 2]]
    other[[8, 9, 10]] = other[[10, 8, 9]]
    found = rt.compare_orders(fitted, other)
    assert [(each.first, each.last) for each in found.differences] == [(2, 3), (8, 10)]
    model, places = fitted._memory.model, fitted._memory.places
    here = model.fit(places.sorted_orders(order)).objective
    for each in found.differences:
        trial = order.copy()
        trial[each.first : each.last + 1] = other[each.first : each.last + 1]
        assert each.nats == pytest.approx(model.fit(places.sorted_orders(trial)).objective - here)
        assert each.nats < 0  # the order found is the best
        assert each.in_b == tuple(other[each.first : each.last + 1])
    assert found.nats == pytest.approx(model.fit(places.sorted_orders(other)).objective - here)
    assert "the data prefer a" in str(found)


def test_the_reverse_is_turned_round_and_weighed(fitted):
    found = rt.compare_orders(fitted, fitted.order_[::-1], model=fitted)
    assert found.turned
    assert not found.differences
    assert found.kendall_tau == -1
    back = rt.compare_orders(fitted.order_[::-1], fitted.order_, model=fitted)
    assert found.nats == pytest.approx(-back.nats)
    assert found.nats < -20  # the direction's ratio of this panel, in the model that was searched
    same = rt.compare_orders(fitted.order_, fitted)
    assert not same.turned
    assert same.nats == 0
    assert "nothing differs" in str(same)


def test_own_orders_are_weighed_trajectory_by_trajectory():
    rng = np.random.default_rng(2)
    sde = rt.simulate.random_irreversible_sde(4, setting="stable", random_state=rng)
    X = sde.simulate(20, 8, DT, x0=0.1, random_state=rng)
    options = {"permutation": "independent", "estimator": "mle", "random_state": 0}
    model = rt.ReTrace(dt=DT, n_jobs=1, **options).fit(X)
    other = model.order_.copy()
    other[3] = other[3][::-1]
    found = rt.compare_orders(model, other)
    assert found.each.shape == (20,)
    assert found.nats == pytest.approx(found.each.sum())
    assert found.each.argmin() == 3


@pytest.mark.parametrize(
    ("order", "words"),
    [(np.arange(5), "shape"), (np.zeros(12, int), "permutation"), (np.linspace(0, 1, 12), "whole")],
)
def test_what_is_no_order_is_refused(fitted, order, words):
    with pytest.raises(ValueError, match=words):
        rt.compare_orders(fitted, order)


def test_somebody_must_judge():
    with pytest.raises(ValueError, match="fitted ReTrace"):
        rt.compare_orders(np.arange(3), np.arange(3))
