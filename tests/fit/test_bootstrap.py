"""Resampling trajectories against asymptotic errors, and where only resampling is right."""

from __future__ import annotations

import numpy as np

import retrace_sde as rt
from retrace_sde.fit.moments import moments
from retrace_sde.fit.regression import mle
from retrace_sde.fit.scores import bootstrap_errors
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear
from retrace_sde.search.models.euler import EulerModel

DT = 0.05


def test_it_agrees_with_the_asymptotic_errors_where_the_model_holds():
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(400, 20, DT, random_state=1)
    problem = EulerModel(Data(X), DT, Linear())
    order = np.arange(20)
    found = bootstrap_errors(
        problem.data, order, problem.dt, problem.drift, np.random.default_rng(2), replicates=400
    )
    expected = mle(moments(problem.data, order, DT, Linear())).errors
    # A standard deviation over 400 replicates is known to 1/√800 = 3.5 %; four of those, and as much
    # again for the bootstrap's own n = 400.
    np.testing.assert_allclose(found.drift, expected.drift, rtol=0.28)
    np.testing.assert_allclose(found.diffusion, expected.diffusion, rtol=0.28)


def test_it_is_wider_where_trajectories_differ_in_their_noise():
    """Asymptotic errors of H assume one H for all; ten-fold differences between trajectories are noise to them."""
    rng = np.random.default_rng(3)
    scale = rng.choice([0.3, 3.0], size=(200, 1, 1))
    X = np.cumsum(scale * rng.standard_normal((200, 30, 2)), axis=1)
    problem = EulerModel(Data(X), 1.0, Linear())
    order = np.arange(30)
    found = bootstrap_errors(problem.data, order, problem.dt, problem.drift, rng, replicates=100)
    expected = mle(moments(problem.data, order, 1.0, Linear())).errors
    assert np.all(np.diag(found.diffusion) > 2 * np.diag(expected.diffusion))


def test_the_fitted_model_offers_it_and_ordering_of_the_slices_does_not_matter():
    sde = rt.simulate.random_irreversible_sde(3, random_state=4)
    X = sde.simulate(60, 15, DT, random_state=5)
    moved, _ = rt.simulate.shuffle(X, random_state=6)
    one, other = (
        rt.ReTrace(dt=DT, random_state=0, drift="linear").fit(each) for each in (X, moved)
    )
    a, b = one.bootstrap_errors(draws=50), other.bootstrap_errors(draws=50)
    np.testing.assert_allclose(a.drift, b.drift, rtol=1e-6)
    assert a.drift.shape == one.drift_.shape
