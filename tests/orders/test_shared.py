"""A shared order that was found on a few trajectories, verified on all."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.euler import Euler
from retrace_sde.fit.start_law import most_start_log_density, start_log_densities
from retrace_sde.orders.paths import BoundedStarts, PathCosts
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.search.models.euler import CLEAR_NATS, SEARCH_ELEMENTS, EulerModel

DT = 0.05


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


def test_bounds_on_start_costs_lead_to_the_order_that_the_costs_themselves_do() -> None:
    asked: list[int] = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        T = int(rng.integers(9, 25))
        places = np.sort(rng.random(T))
        costs = 200 * (places[:, None] - places) ** 2 + rng.random((T, T))
        start = 30 * rng.random(T)
        least = start - 20 * rng.random(T)

        def some(which, start=start):
            asked.extend(which)
            return start[which]

        begin = rng.permutation(T)
        found = BoundedStarts(costs, least, some).improve(begin)
        known = PathCosts(costs, start)
        assert np.array_equal(found, known.improve(found))  # no move pays
        assert known.cost(found) <= known.cost(begin)
    assert len(asked) < 30 * 17


def test_no_slice_is_likelier_as_the_first_than_its_bound() -> None:
    for seed, (n, d) in enumerate([(30, 3), (12, 10), (60, 50), (200, 1)]):
        rng = np.random.default_rng(seed)
        spreads = rng.uniform(0.01, 3, (8, 1, d))
        states = 5 * rng.standard_normal((8, 1, d)) + spreads * rng.standard_normal((8, n, d))
        step = Euler(Affine(), np.zeros((d, d + 1)), np.eye(d), 0.1)
        exact = start_log_densities(states, step, np.ones(d)).sum(axis=1)
        assert (most_start_log_density(states, step) >= exact).all()
