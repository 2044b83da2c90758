"""Many orders judged at once have the log-likelihoods of their own fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.orders.prior import compiled
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine, Linear
from retrace_sde.search.many_orders import objectives
from retrace_sde.search.models.euler import EulerModel


def model(n: int, T: int, d: int, drift=None) -> EulerModel:
    sde = rt.simulate.random_irreversible_sde(d, random_state=0)
    return EulerModel(Data(sde.simulate(n, T, 0.1, random_state=1)), 0.1, drift or Affine())


def better(fits: EulerModel, order) -> float:
    one = fits.fit(order)
    return max(one.objective, fits.reversed_fit(one).objective)


@pytest.mark.parametrize("size", [(30, 9, 3), (4, 12, 6), (200, 40, 8)])
@pytest.mark.parametrize("drift", [Affine(), Linear()])
def test_they_are_those_of_single_fits(size, drift) -> None:
    fits, rng = model(*size, drift), np.random.default_rng(0)
    orders = [rng.permutation(size[1]) for _ in range(6)]
    found = objectives(fits, orders)
    np.testing.assert_allclose(found, [better(fits, each) for each in orders], rtol=1e-10)


def test_what_is_known_of_time_counts() -> None:
    fits = model(20, 8, 2)
    known = rt.Knowledge(precedences=[(0, 7)])
    fits = replace(fits, prior=compiled(known, 20, 8, shared=True))
    orders = [np.arange(8), np.arange(8)[::-1].copy()]
    found = objectives(fits, orders)
    np.testing.assert_allclose(found, [better(fits, each) for each in orders], rtol=1e-10)


def test_variables_lost_to_rounding_are_left_to_single_fits() -> None:
    fits = model(20, 8, 2)
    x = fits.data.values
    x[:, :, 1] = x[:, :, 0] * (1 + 1e-13)
    assert objectives(fits, [np.arange(8)]) is None
