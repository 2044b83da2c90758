"""Orders of as many variables as trajectories: their evidence, and the moves that climb it."""

from itertools import permutations

import numpy as np
import pytest
from scipy.stats import multivariate_t

import retrace_sde as rt
from retrace_sde.orders.collapsed.marginal import OrderEvidence, default_priors
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Affine
from retrace_sde.process.simulate import random_irreversible_sde
from retrace_sde.search.many_variables import MIN_VARIABLES, climbed, moved, outnumbered
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.models.hidden import HiddenModel


def judge(x, weight=1.0):
    """The evidence of orders of x (n, T, d), and the states and features behind it."""
    states = x.transpose(1, 0, 2)
    features = np.concatenate([states, np.ones((*states.shape[:2], 1))], axis=2)
    priors = default_priors(states, features, weight)
    return OrderEvidence.of(states, features, priors), priors, features


def measured(seed, *, d=40, n=24, T=10, noise=1.0, levels=1.0):
    """A transient of many variables that are measured with noise, of subjects at levels of their own."""
    rng = np.random.default_rng(50_000 + seed)
    sde = random_irreversible_sde(d, random_state=seed)
    law = sde.stationary()
    unit = np.sqrt(np.diag(law.covariance))
    start = rt.Gaussian(law.mean + 1.5 * unit * rng.choice([-1, 1], d), law.covariance)
    X = sde.simulate(n, T, 0.3, x0=start, scheme="exact", random_state=rng)
    X = X + levels * unit * rng.standard_normal((n, 1, d))
    return X + noise * unit * rng.standard_normal(X.shape)


def test_priors_of_different_weight_are_compared_by_the_density_of_the_data():
    """Of one variable the steps are a multivariate t, whatever the weight (Gelman et al., chapter 14)."""
    x = np.random.default_rng(0).standard_normal((6, 4, 1)).cumsum(axis=1)
    steps, phi = np.diff(x[:, :, 0], axis=1).ravel(), None
    values, densities = [], []
    for weight in (1.0, 30.0):
        found, (prior, _), features = judge(x, weight)
        phi = features[:-1].transpose(1, 0, 2).reshape(-1, 2)
        spread = np.eye(len(phi)) + phi @ np.linalg.inv(prior.precision) @ phi.T
        shape = prior.scale[0, 0] / prior.freedom * spread
        densities.append(multivariate_t.logpdf(steps, shape=shape, df=prior.freedom))
        values.append(float(found(np.arange(4))))
    assert values[1] - values[0] == pytest.approx(densities[1] - densities[0], rel=1e-9)


def test_moves_reverse_every_stretch_and_put_every_slice_everywhere():
    order = np.array([3, 0, 4, 1, 2])
    near = {tuple(each) for each in moved(order).tolist()}
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in near)
    assert tuple(order) not in near
    for i in range(5):
        for j in range(i + 2, 6):
            assert (*order[:i], *order[i:j][::-1], *order[j:]) in near
        rest = [each for each in order if each != order[i]]
        for k in range(5):
            assert (*rest[:k], order[i], *rest[k:]) in near | {tuple(order)}


def test_the_climb_ends_at_the_best_of_all_orders():
    x = measured(1, d=8, n=8, T=6, noise=0.3)
    found = judge(x, 10.0)[0]
    every = np.array(list(permutations(range(6))), dtype=np.intp)
    best = every[found(every).argmax()]
    starts = np.random.default_rng(0).permuted(np.tile(np.arange(6), (4, 1)), axis=1)
    ends = [climbed(found, start) for start in starts]
    assert all(found(end) >= found(start) for start, end in zip(starts, ends, strict=True))
    assert any(np.array_equal(end, best) for end in ends)


@pytest.mark.parametrize("seed", [4])
def test_noise_of_many_variables_does_not_misplace_a_slice(seed):
    """The most likely order of this panel has two slices exchanged."""
    X, truth = rt.simulate.shuffle(measured(seed), random_state=seed)
    model = rt.ReTrace(dt=0.3, subjects="alike", random_state=seed).fit(X)
    assert abs(rt.metrics.kendall_tau(truth, model.order_)) == pytest.approx(1.0)


def test_only_observed_states_of_many_variables_are_judged_so():
    rng = np.random.default_rng(0)

    def plain(n, d):
        return EulerModel(Data(rng.standard_normal((n, 6, d)), n_jobs=1), 1.0, Affine())

    assert outnumbered(plain(12, 12))
    assert outnumbered(plain(12, 20))
    assert not outnumbered(plain(13, 12))
    assert not outnumbered(plain(3, MIN_VARIABLES - 1))
    assert not outnumbered(HiddenModel.of(plain(12, 12), noise=0.1))
