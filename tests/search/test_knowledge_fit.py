"""What a fit makes of knowledge: never violated, better than the timestamps alone, and the direction it settles."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.special import logsumexp

import retrace_sde as rt
from retrace_sde.orders.draws import Chains, Stretch
from retrace_sde.orders.prior import Prior, compiled
from retrace_sde.panel.blocks import Data
from retrace_sde.process.drift import Linear
from retrace_sde.search.mcem import Run, bridge
from retrace_sde.search.models.euler import EulerModel
from retrace_sde.search.posterior import order_posterior

DT = 0.05


def stationary(d, T, n, permutation, seed):
    """A stationary panel, whose direction the data cannot tell, and the order that restores it."""
    sde = rt.simulate.random_irreversible_sde(d, random_state=seed)
    X = sde.simulate(n, T, DT, x0="stationary", random_state=seed + 50)
    return rt.simulate.shuffle(X, permutation=permutation, random_state=seed)


def noisy_stamps(truth, slots, seed):
    place = np.argsort(truth, axis=-1)
    return (place + slots * np.random.default_rng(seed).standard_normal(place.shape)) * DT


@pytest.mark.parametrize("slots", [pytest.param(1.0, marks=pytest.mark.statistics), 3.0])
@pytest.mark.parametrize("seeds", [2, pytest.param(4, marks=pytest.mark.statistics)])
def test_a_shared_order_is_better_than_sorting_by_noisy_timestamps(slots, seeds):
    gains = []
    for seed in range(seeds):
        X, truth = stationary(2, 30, 5, "shared", seed)
        stamps = noisy_stamps(truth, slots, seed)
        known = rt.Knowledge(timestamps=stamps, timestamp_error=slots * DT)
        model = rt.ReTrace(dt=DT, n_jobs=1, drift="linear").fit(X, knowledge=known)
        assert model.direction_.known
        tau = rt.metrics.kendall_tau(truth, model.order_)
        gains.append(tau - rt.metrics.kendall_tau(truth, np.argsort(stamps)))
    # Measured over five seeds: .997 against .955 (one slot) and .823 (three slots).
    assert np.mean(gains) > (0.02 if slots == 1 else 0.1)
    assert min(gains) > 0


@pytest.mark.parametrize(("slots", "margin"), [(1.0, 0.03), (3.0, 0.12)])
def test_independent_orders_are_better_than_sorting_by_noisy_timestamps(slots, margin):
    """Two hundred orders of 15: the standard error of the mean gain is below .01."""
    X, truth = stationary(5, 15, 200, "independent", 3)
    stamps = noisy_stamps(truth, slots, 3)
    stamps[np.random.default_rng(0).random(stamps.shape) < 0.1] = np.nan
    known = rt.Knowledge(timestamps=stamps, timestamp_error=slots * DT)
    model = rt.ReTrace(
        dt=DT, permutation="independent", estimator="mle", n_jobs=1, random_state=0, drift="linear"
    ).fit(X, knowledge=known)
    sorting = rt.metrics.kendall_tau(truth, np.argsort(np.nan_to_num(stamps, nan=7 * DT), axis=1))
    assert rt.metrics.kendall_tau(truth, model.order_) > sorting + margin
    assert model.direction_.identified


def random_knowledge(truth, rng, *, shared):
    """True statements about each order: a position, two precedences, the end, and rough blocks."""
    orders = np.atleast_2d(truth)
    T = orders.shape[1]
    positions, pairs = {}, []
    for j, order in enumerate(orders):
        k = int(rng.integers(T))
        positions[int(order[k]) if shared else (j, int(order[k]))] = k
        for _ in range(2):
            a, b = np.sort(rng.choice(T, 2, replace=False))
            pair = (int(order[a]), int(order[b]))
            pairs.append(pair if shared else (j, *pair))
    blocks = np.argsort(orders, axis=1) // 6
    last = orders[:, -1]
    return rt.Knowledge(
        positions=positions,
        precedences=pairs,
        blocks=blocks[0] if shared else blocks,
        last=int(last[0]) if shared else last,
    )


@pytest.mark.filterwarnings("ignore:The order may be folded")
@pytest.mark.parametrize("permutation", ["shared", "independent"])
def test_hard_knowledge_is_never_violated(permutation):
    """On data that say little (d = 1, steps longer than the memory), so that the search would rather break it."""
    rng = np.random.default_rng(5)
    T, n = 14, 30
    X = np.random.default_rng(6).standard_normal((n, T, 1))
    truth = np.array([rng.permutation(T) for _ in range(1 if permutation == "shared" else n)])
    truth = truth[0] if permutation == "shared" else truth
    known = random_knowledge(truth, rng, shared=permutation == "shared")
    prior = compiled(known, n, T, shared=permutation == "shared")
    estimator = "auto" if permutation == "shared" else "mle"
    model = rt.ReTrace(
        permutation=permutation, drift="affine", estimator=estimator, n_jobs=1, random_state=0
    ).fit(X, knowledge=known)
    assert np.isfinite(prior.cost(model.order_)).all()
    drawn = model.sample_orders(draws=50).samples
    each = drawn if permutation == "shared" else drawn.transpose(1, 0, 2)
    for orders in each:
        assert np.isfinite(prior.cost(orders.astype(np.intp))).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_slice_fixes_a_direction_that_the_data_cannot_tell(seed):
    X, truth = stationary(3, 20, 30, "shared", seed)
    without = rt.ReTrace(dt=DT, n_jobs=1, drift="linear").fit(X)
    assert not without.direction_.identified
    model = rt.ReTrace(dt=DT, n_jobs=1, drift="linear").fit(
        X, knowledge=rt.Knowledge(first=int(truth[0]))
    )
    assert model.direction_.identified
    assert model.direction_.known
    assert model.direction_.p_value is None
    assert "known from the knowledge" in model.direction_.verdict
    assert model.alternative_ is None
    np.testing.assert_array_equal(model.order_, truth)


def test_knowledge_of_a_few_trajectories_is_no_direction_of_its_own():
    """Ten of two hundred: their orders obey, and the direction is tested on all as before."""
    X, truth = stationary(5, 8, 200, "independent", 2)
    first = np.where(np.arange(200) < 10, truth[:, 0], -1)
    model = rt.ReTrace(
        dt=DT, permutation="independent", estimator="mle", n_jobs=1, random_state=0, drift="linear"
    ).fit(X, knowledge=rt.Knowledge(first=first))
    np.testing.assert_array_equal(model.order_[:10, 0], truth[:10, 0])
    assert not model.direction_.known


def test_with_all_times_known_the_fit_is_regression_with_the_true_gaps():
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 3, 12))
    X = np.cumsum(rng.standard_normal((40, 12, 2)), axis=1)
    moved = rng.permutation(12)
    model = rt.ReTrace(estimator="mle", drift="affine", n_jobs=1).fit(
        X[:, moved], knowledge=rt.Knowledge(timestamps=times[moved])
    )
    np.testing.assert_array_equal(model.order_, np.argsort(moved))
    np.testing.assert_allclose(model.times_, times)
    g = np.sqrt(np.diff(times))[None, :, None]
    phi = np.concatenate([X[:, :-1], np.ones((40, 11, 1))], axis=2) * g
    theta = np.linalg.lstsq(phi.reshape(-1, 3), (np.diff(X, axis=1) / g).reshape(-1, 2), rcond=None)
    np.testing.assert_allclose(model.drift_, theta[0][:2].T, atol=1e-8)
    np.testing.assert_allclose(model.offset_, theta[0][2], atol=1e-8)
    assert model.direction_.known


def test_each_trajectorys_own_times_are_used():
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, 8, 60)
    times = [np.sort(rng.uniform(0, 4, t)) for t in lengths]
    A, h = -0.8, 0.25
    paths, shuffled_times, shuffled_paths = [], [], []
    for t in times:
        x = [rng.standard_normal()]
        for g in np.diff(t):
            x.append(x[-1] * (1 + A * g) + np.sqrt(h * g) * rng.standard_normal())
        paths.append(np.array(x)[:, None])
        moved = rng.permutation(len(t))
        shuffled_times.append(t[moved])
        shuffled_paths.append(paths[-1][moved])
    stamps = np.full((60, lengths.max()), np.nan)
    for row, t in zip(stamps, shuffled_times, strict=True):
        row[: len(t)] = t
    options = {"permutation": "independent", "n_jobs": 1, "drift": "linear", "estimator": "mle"}
    model = rt.ReTrace(**options).fit(
        rt.Panel.from_trajectories(shuffled_paths), knowledge=rt.Knowledge(timestamps=stamps)
    )
    rows = [
        (x[:-1, 0] * np.sqrt(np.diff(t)), np.diff(x[:, 0]) / np.sqrt(np.diff(t)))
        for x, t in zip(paths, times, strict=True)
    ]
    phi, y = (np.concatenate(each) for each in zip(*rows, strict=True))
    slope = phi @ y / (phi @ phi)
    assert model.drift_[0, 0] == pytest.approx(slope)
    assert model.diffusion_[0, 0] == pytest.approx(np.mean((y - slope * phi) ** 2))
    assert model.times_.shape == stamps.shape


def test_score_and_other_objects_are_refused():
    X = np.random.default_rng(0).standard_normal((10, 5, 1)).cumsum(axis=1)
    with pytest.raises(ValueError, match="order='likelihood'"):
        rt.ReTrace(order="score", drift="linear").fit(X, knowledge=rt.Knowledge(first=0))
    with pytest.raises(ValueError, match=r"retrace_sde\.Knowledge"):
        rt.ReTrace().fit(X, knowledge={"first": 0})


# Against enumeration


def every_order(T):
    return np.array(list(permutations(range(T))), dtype=np.intp)


def joint(problem, law):
    """log p(X_j along o) − prior cost, for all orders o: (n, T!)."""
    n, T, _ = problem.data.shape
    each = [
        problem.log_joint(np.tile(o, (n, 1)), law) - problem.prior_costs(np.tile(o, (n, 1)))
        for o in every_order(T)
    ]
    return np.stack(each, axis=1)


def half_known(n, T, seed):
    """A third of the trajectories with a first observation, a third with soft costs, a third with nothing."""
    rng = np.random.default_rng(seed)
    unary = np.zeros((n, T, T))
    for j in range(n):
        if j % 3 == 0:
            unary[j, 1, 1:] = unary[j, np.arange(T) != 1, 0] = np.inf
        elif j % 3 == 1:
            unary[j] = rng.gamma(1.0, 1.0, (T, T))
    return Prior(unary, None)


def known_problem():
    X, truth = stationary(2, 5, 24, "independent", 4)
    problem = EulerModel(Data(X, n_jobs=1), DT, Linear(), half_known(24, 5, 0))
    return problem, truth


def test_position_probabilities_under_knowledge_match_enumeration():
    problem, truth = known_problem()
    law = problem.law(problem.fit(truth))
    p = joint(problem, law)
    p = np.exp(p - logsumexp(p, axis=1, keepdims=True))
    exact = np.zeros((24, 5, 5))
    for weight, order in zip(p.T, every_order(5), strict=True):
        exact[:, order, np.arange(5)] += weight[:, None]
    chains = Chains.start(problem.repaired(truth), np.random.default_rng(0))
    found = order_posterior(problem, law, chains, samples=4000)[0].position_probabilities
    # 8000 correlated records of each of 600 probabilities.
    assert np.abs(found - exact).max() < 0.06
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.01


def test_the_bridge_under_knowledge_is_the_ratio_of_marginal_likelihoods():
    problem, truth = known_problem()
    back = truth[:, ::-1].copy()
    laws = [problem.law(problem.fit(each)) for each in (truth, back)]
    exact = logsumexp(joint(problem, laws[0]), axis=1) - logsumexp(joint(problem, laws[1]), axis=1)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(6):
        runs = []
        for law, order in zip(laws, (truth, back), strict=True):
            chains = Chains.start(problem.repaired(order), rng)
            problem.draw(law, chains, Stretch(1, 2000))
            runs.append(Run(law, None, chains, (), 0.0, True))
        found.append(bridge(problem, *runs))
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - exact) < 7 * error + 0.05)
    assert np.abs(exact).max() > 0.1


def test_times_of_a_panel_are_known():
    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 9, 8))
    X = np.cumsum(rng.standard_normal((20, 8, 2)), axis=1)
    moved = rng.permutation(8)
    panel = rt.Panel(X[:, moved], ("a", "b"), tuple(map(str, range(20))), times=times[moved])
    model = rt.ReTrace(estimator="mle", n_jobs=1, drift="linear").fit(panel)
    other = rt.ReTrace(estimator="mle", n_jobs=1, drift="linear").fit(
        X[:, moved], knowledge=rt.Knowledge(timestamps=times[moved])
    )
    np.testing.assert_allclose(model.times_, times)
    np.testing.assert_array_equal(model.drift_, other.drift_)
    assert model.result_.dt == pytest.approx(np.diff(times).mean())
