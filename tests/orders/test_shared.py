"""Start costs that are only bounded lead to the same orders as start costs that are known."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.start_law import start_bounds, start_log_densities
from retrace_sde.orders.shared import PathCosts, RoughStart
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import CLEAR_NATS, JUDGED_ENDS, SEARCH_ELEMENTS, EulerModel

T, DT = 4 * JUDGED_ENDS + 5, 0.05


def model(seed, *, n=20, d=2):
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, random_state=seed)
    return EulerModel(Data(X), DT, Affine())


@pytest.mark.parametrize("seed", range(4))
def test_no_slice_is_a_better_start_than_its_bound(seed):
    problem = model(seed)
    found = problem.fit(np.arange(T))
    states = problem.data.slices(np.arange(T))
    densities = start_log_densities(states, found.step, problem.variances).sum(axis=1)
    assert (densities < start_bounds(states)).all()
    common = np.repeat(states[:, :1], states.shape[1], axis=1)  # no spread at all
    assert np.isfinite(start_bounds(common)).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("turned", [0, T // 2])
def test_orders_are_those_of_known_start_costs(seed, turned):
    problem = model(seed)
    order = np.roll(np.arange(T), turned)  # turned by half, the first slice lies in the middle
    found = problem.fit(order)
    rough = problem.shared_orders(found)
    assert isinstance(rough, RoughStart)
    whole = PathCosts(rough.costs, rough.every(), None)
    assert np.array_equal(rough.improve(order), whole.improve(order))
    assert rough.cost(order) == whole.cost(order)


def test_a_start_that_was_not_judged_is_judged_before_it_is_believed():
    C = np.abs(np.subtract.outer(np.arange(8.0), np.arange(8.0)))
    known = np.arange(8) < 2
    rough = RoughStart(C, np.where(known, 0.0, -50.0), known, lambda: np.zeros(8))
    assert np.array_equal(rough.improve(np.arange(8)), np.arange(8))


@pytest.mark.parametrize("seed", range(3))
def test_few_trajectories_verify_an_order_where_all_would(seed):
    n, T, d = 2 * SEARCH_ELEMENTS // 10 + 100, 12, 10
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    problem = EulerModel(Data(sde.simulate(n, T, DT, random_state=seed)), DT, Affine())
    few, order = problem.for_search(), np.arange(T)
    assert few.data.shape[0] < n
    found = problem.fit(order)
    assert few._stands(found, sure=CLEAR_NATS)
    assert problem._stands(found)
    for i in (0, 4, T - 2):  # two neighbours exchanged
        wrong = order.copy()
        wrong[[i, i + 1]] = wrong[[i + 1, i]]
        found = problem.fit(wrong)
        assert not few._stands(found, sure=CLEAR_NATS)
        assert not problem.verified(found)
