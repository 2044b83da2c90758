"""A shared order that was found on a few trajectories, verified on all."""

import numpy as np
import pytest

import retrace_sde as rt
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
