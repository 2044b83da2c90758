"""Fits of torch's tensors are those of the same values in numpy: of every kind of model, where torch is installed."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt

pytestmark = pytest.mark.filterwarnings("ignore:The chains over orders mix slowly")

N, T, D, DT = 30, 10, 3, 0.05

KINDS = {
    "shared": {},
    "noise": {"observation_noise": "estimate"},
    "levels": {"subjects": "levels"},
    "polynomial": {"drift": rt.drift.Polynomial(2)},
    "own": {"permutation": "independent"},
    "averaged": {"permutation": "independent", "estimator": "mcem"},
}


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def panel(*, own, missing, plates):
    """A transient whose direction shows, shuffled."""
    rng = np.random.default_rng(0)
    sde = rt.simulate.random_irreversible_sde(D, setting="stable", random_state=0)
    X = sde.simulate(N, T, DT, x0=2 + 0.3 * rng.standard_normal((N, D)), random_state=1)
    X, _ = rt.simulate.shuffle(X, permutation="independent" if own else "shared", random_state=2)
    X = X + plates * rng.standard_normal((1, T, D))
    return np.where(rng.random(X.shape) < missing, np.nan, X)


def fits(torch, X, covariates=None, **settings):
    """Of numpy's values and of torch's."""
    model = rt.ReTrace(dt=DT, random_state=0, **settings)
    there = None if covariates is None else torch.as_tensor(covariates)
    one = model.fit(X, covariates=covariates)
    return one, rt.ReTrace(**model.get_params()).fit(torch.as_tensor(X), covariates=there)


def assert_same(one, two):
    np.testing.assert_array_equal(one.order_, two.order_)
    np.testing.assert_allclose(one.drift_, two.drift_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(one.diffusion_, two.diffusion_, rtol=1e-8, atol=1e-8)
    assert one.direction_.identified == two.direction_.identified


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_a_fit_of_tensors_is_that_of_arrays(kind, missing, torch):
    settings = KINDS[kind]
    if missing and kind == "polynomial":
        pytest.skip("polynomial drifts need complete values")
    X = panel(own="permutation" in settings, missing=missing, plates=0.0)
    assert_same(*fits(torch, X, **settings))


def test_deviations_from_slices_means_are_those_of_arrays(torch):
    one, two = fits(torch, panel(own=False, missing=0.0, plates=0.5))
    assert one.result_.dependence.kind == two.result_.dependence.kind != "none"
    assert_same(one, two)


def test_inputs_may_be_tensors(torch):
    inputs = (np.random.default_rng(3).random((N, T, 1)) < 0.5).astype(float)
    assert_same(*fits(torch, panel(own=False, missing=0.0, plates=0.0), inputs))
