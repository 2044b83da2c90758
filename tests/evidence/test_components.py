"""Directions of as many variables as trajectories: components, piles, and what may count."""

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.evidence.candidates.candidate import CandidateFit
from retrace_sde.evidence.closed_form.panels import Ground
from retrace_sde.evidence.direction.comparison import _ratio
from retrace_sde.evidence.direction.components import (
    COMPONENTS,
    judged_variables,
    principal_axes,
)
from retrace_sde.process.simulate import random_irreversible_sde


def spreading(seed, *, d=40, n=30, T=10, noise=1.0, levels=1.0):
    """Many noisy variables of subjects that start near one another and spread to the stationary law."""
    rng = np.random.default_rng(900_000 + seed)
    sde = random_irreversible_sde(d, random_state=seed)
    law = sde.stationary()
    unit = np.sqrt(np.diag(law.covariance))
    x0 = rt.Gaussian(law.mean + 1.5 * unit * rng.choice([-1.0, 1.0], d), 0.1 * law.covariance)
    X = sde.simulate(n, T, 0.3, x0=x0, scheme="exact", random_state=rng)
    subjects = levels * rng.standard_normal((n, 1, d))
    return X + unit * (subjects + noise * rng.standard_normal((n, T, d)))


def test_components_are_those_of_largest_variance():
    x = np.random.default_rng(0).standard_normal((9, 5, 12)) * np.linspace(1, 3, 12)
    rows = x.reshape(-1, 12)
    found = np.cov((rows @ principal_axes(x)).T)
    largest = np.linalg.eigvalsh(np.corrcoef(rows.T))[::-1][:COMPONENTS]
    assert np.allclose(found, np.diag(largest) * len(rows) / (len(rows) - 1))


def test_variables_with_a_pile_are_not_asked():
    x = np.random.default_rng(0).standard_normal((20, 8, 10))
    assert judged_variables(x).tolist() == list(range(10))
    x[:, :, 3] = np.maximum(x[:, :, 3], 0.0)
    assert judged_variables(x).tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert judged_variables(np.maximum(x, 0.0)).tolist() == list(range(10))


def test_a_model_that_cannot_tell_means_from_spreads_needs_both():
    shares = np.random.default_rng(0).normal(3.0, 1.0, 40)
    found = CandidateFit.of_trajectories("any", shares, np.zeros(40), 0.0)
    assert _ratio(found, None, frozenset(Ground)).p.p_value < 1e-6
    for ground in (Ground.MEANS, Ground.SPREADS):
        assert _ratio(found, None, frozenset(Ground) - {ground}).p.p_value == 1.0


@pytest.mark.parametrize("reverse", [False, True])
def test_noisy_variables_that_spread_are_called_by_components(reverse):
    X = spreading(CALLED)
    X = X[:, ::-1] if reverse else X
    shuffled, truth = rt.simulate.shuffle(X, random_state=0)
    model = rt.ReTrace(dt=0.3, random_state=0).fit(shuffled)
    test, tau = model.direction_, rt.metrics.kendall_tau(truth, model.order_)
    assert test.identified
    assert test.components == COMPONENTS
    assert (tau < 0) == reverse
    assert any("principal components" in each for each in test.assumptions)


@pytest.mark.filterwarnings("ignore:The chains over orders mix slowly")  # not what is asked here
def test_values_normalised_within_slices_are_fitted():
    """All subjects of a slice hold the same values, so that deviations from its means are linearly dependent."""
    X = spreading(0, d=12, n=12)
    values = np.sort(X, axis=2).mean(axis=0)
    ranked = np.take_along_axis(values[None], X.argsort(axis=2).argsort(axis=2), axis=2)
    model = rt.ReTrace(dt=0.3, random_state=0).fit(ranked)
    assert np.isfinite(model.drift_).all()


CALLED = 2
"""A panel whose direction all variables together leave open."""
