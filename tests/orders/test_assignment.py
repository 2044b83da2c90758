"""Orders under noise: the process against the Kalman filter, search and samplers against all permutations."""

from itertools import permutations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.fit.statespace.smoother import StateSpace, kalman
from retrace_sde.orders.hidden import assignment
from retrace_sde.orders.hidden.assignment import Arrangement
from retrace_sde.orders.hidden.gaussian import Chain, process
from retrace_sde.orders.hidden.pair_moments import (
    PairMoments,
    arrangement,
    clearest,
    seen_distances,
)
from retrace_sde.orders.hidden.single import descend, pulls, sample
from retrace_sde.orders.moves.rules import Rules, order_cost
from retrace_sde.process.sde import Gaussian

T, D, DT = 6, 2, 0.05
EVERY = np.array(list(permutations(range(T))), dtype=np.intp)
NUMBER = {tuple(order): k for k, order in enumerate(EVERY.tolist())}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    sde = rt.simulate.random_irreversible_sde(D, random_state=rng)
    step = sde.transition(DT, scheme="euler")
    R = np.array([[0.05, 0.01], [0.01, 0.02]])
    return StateSpace(
        step, R, Gaussian(np.array([0.3, -0.2]), np.array([[0.1, 0.02], [0.02, 0.2]]))
    )


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(2).standard_normal((5, T, D)) * 0.4


@pytest.mark.parametrize("scale", [1.0, 1e-6, 0.0])
def test_process_agrees_with_the_filter(values, model, scale):
    law = StateSpace(model.transition, model.noise * scale, model.initial)
    expected = kalman(values, law).log_likelihood
    np.testing.assert_allclose(
        process(Chain.regular(law, T)).log_density(values), expected, rtol=1e-9
    )


@pytest.mark.parametrize("seed", range(6))
def test_small_searches_find_what_the_compiled_one_does(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    sde = rt.simulate.random_irreversible_sde(3, random_state=rng)
    X = sde.simulate(8, 7 + seed, DT, random_state=rng)
    law = StateSpace(sde.transition(DT), 0.05 * np.eye(3), sde.stationary())
    found = []
    for small in (0, 20):
        monkeypatch.setattr(assignment, "SMALL", small)
        tables, state = arrangement(PairMoments.of(X), law, None), np.array([seed], dtype=np.uint64)
        order = np.random.default_rng(seed).permutation(X.shape[1])
        found.append((tables.improve(order, state, kicks=4), int(state[0])))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_cost_is_the_likelihood_of_every_order(values, model):
    tables = arrangement(PairMoments.of(values), model, None)
    costs = np.array([tables.cost(order) for order in EVERY])
    likelihoods = np.array(
        [kalman(values[:, order], model).log_likelihood.sum() for order in EVERY]
    )
    assert np.ptp(costs + likelihoods) < 1e-9


def test_a_walk_adds_the_costs_of_its_steps(values, model):
    plain, rng = arrangement(PairMoments.of(values), model, None), np.random.default_rng(4)
    target = rng.standard_normal((T, 3))
    source = target + rng.standard_normal(3)
    tables = plain.with_walk(source, target)
    added = np.array([tables.cost(order) - plain.cost(order) for order in EVERY])
    steps = target[EVERY[:, 1:]] - source[EVERY[:, :-1]]
    assert np.ptp(added - 0.5 * (steps**2).sum(axis=(1, 2))) < 1e-9


def test_search_finds_the_best_of_all_orders(values, model):
    tables = arrangement(PairMoments.of(values), model, None)
    best = min(tables.cost(order) for order in EVERY)
    state = np.array([3], dtype=np.uint64)
    for start in EVERY[::97]:
        found = tables.improve(start, state, kicks=20)
        assert tables.cost(found) == pytest.approx(best, abs=1e-9)


def test_search_obeys_what_is_known(values, model):
    forbidden, before = np.zeros((2, T, T), dtype=bool)
    forbidden[2, :3] = True  # slice 2 comes late
    before[0, 5] = before[4, 5] = True
    rules = Rules(np.where(forbidden, np.inf, 0.0), before)
    free = arrangement(PairMoments.of(values), model, None)
    tables = Arrangement(free.precision, free.moments, free.unary, rules)

    def allowed(order):
        place = np.argsort(order)
        return place[2] >= 3 and place[0] < place[5] and place[4] < place[5]

    possible = [order for order in EVERY if allowed(order)]
    best = min(free.cost(order) for order in possible)
    found = tables.improve(possible[0], np.array([3], dtype=np.uint64), kicks=60)
    assert allowed(found)
    assert free.cost(found) == pytest.approx(best, abs=1e-9)


def distance_from(kept, weights):
    """Total variation distance of drawn orders from their law, in units of what independent draws leave."""
    counts = np.bincount([NUMBER[tuple(order)] for order in kept.tolist()], minlength=len(EVERY))
    shares = counts / len(kept)
    independent = 0.5 * np.sqrt(2 / np.pi * weights * (1 - weights) / len(kept)).sum()
    return 0.5 * np.abs(shares - weights).sum() / independent


def as_weights(log):
    weights = np.exp(log - log.max())
    return weights / weights.sum()


def test_shared_orders_are_drawn_from_their_posterior(values, model):
    tables = arrangement(PairMoments.of(values), model, None)
    weights = as_weights(-np.array([tables.cost(order) for order in EVERY]))
    state = np.array([5], dtype=np.uint64)
    kept = tables.sample(EVERY[0], state, burn=500, samples=20_000, thin=60)
    # neighbouring draws are alike, so the distance exceeds that of independent ones; not by half
    assert distance_from(kept, weights) < 1.5


@pytest.mark.parametrize("case", ["complete", "missing", "known"])
def test_single_orders_are_drawn_from_their_posterior(values, model, case):
    y, seen, rules = values[0], np.ones((T, D), dtype=bool), None
    start = EVERY[0].copy()
    if case == "missing":
        seen[0, 0] = seen[3] = False
    if case == "known":
        U = np.abs(np.random.default_rng(0).standard_normal((T, T)))
        U[1, 2] = np.inf
        B = np.zeros((T, T), dtype=bool)
        B[0, 4] = B[2, 4] = True
        rules = Rules(U, B)
    observed = np.where(seen, y, np.nan)
    log = np.array([kalman(observed[order][None], model).log_likelihood[0] for order in EVERY])
    if case == "known":
        place = np.argsort(EVERY, axis=1)
        allowed = (place[:, 0] < place[:, 4]) & (place[:, 2] < place[:, 4])
        log = np.where(allowed, log - U[EVERY, np.arange(T)].sum(axis=1), -np.inf)
        start = EVERY[int(np.argmax(log))].copy()
    kept = np.zeros((15_000, T), dtype=np.int16)
    state = np.array([3], dtype=np.uint64)
    filled = np.where(seen, y, 0.0)
    sample(process(Chain.regular(model, T)), filled, seen, rules, start, state, 1000, 60, kept)
    assert distance_from(kept, as_weights(log)) < 1.5


@pytest.mark.parametrize("known", [False, True])
def test_single_search_reports_its_cost_and_finds_the_best(values, model, known):
    rules, law = None, process(Chain.regular(model, T))
    if known:
        rules = Rules(
            np.abs(np.random.default_rng(0).standard_normal((T, T))),
            np.zeros((T, T), dtype=bool),
        )
        rules.before[0, 4] = True
    place = np.argsort(EVERY, axis=1)
    possible = EVERY[place[:, 0] < place[:, 4]] if known else EVERY
    reached = 0
    for trajectory in values:
        y = np.ascontiguousarray(trajectory)
        w = np.empty((T, D))
        costs = [
            pulls(law.precision, law.shift, y, order, w) + order_cost(rules, order)
            for order in possible
        ]
        reports = []
        for start in (np.argmax(costs), 0, len(possible) // 2):  # the worst of all, and two others
            found = possible[int(start)].copy()
            reports.append(descend(law, y, rules, found))
            number = int(np.flatnonzero((possible == found).all(axis=1))[0])
            assert reports[-1] == pytest.approx(costs[number])
        reached += min(reports) < min(costs) + 1e-9
    assert reached >= 4  # a local search may miss one of five


def test_pairs_seen_together_stand_for_all(model):
    """With entries missing at random, distances between slices keep their mean, and neighbours their rank."""
    rng = np.random.default_rng(3)
    n = 4000
    walk = np.cumsum(rng.standard_normal((n, T, D)) * 0.1, axis=1) + 5.0
    gone = walk.copy()
    gone[rng.random(walk.shape) < 0.2] = np.nan
    scale = np.ones(D)
    full, part = (seen_distances(each, scale) for each in (walk, gone))
    # a squared step has relative error √(2/d): averaged over 0.64 n trajectories or n
    tolerance = 5 * np.sqrt(2 / (0.64 * n))
    off = ~np.eye(T, dtype=bool)
    np.testing.assert_allclose(part[off], full[off], rtol=tolerance)
    # the moments know the same distances, variable by variable
    for each, known in ((walk, full), (gone, part)):
        S = np.einsum("abxx->ab", PairMoments.of(each).squares) / n
        own = np.diag(S)
        np.testing.assert_allclose((own[:, None] + own - S - S.T)[off], known[off], rtol=tolerance)


def test_clearest_directions_are_a_model_of_themselves(values, model):
    """All directions kept, the search problem is the same; the costs differ by a constant."""
    directions, turned = clearest(model, D)
    tables = arrangement(PairMoments.of(values), model, None)
    other = arrangement(PairMoments.of(values).seen_by(directions), turned, None)
    gaps = [tables.cost(order) - other.cost(order) for order in EVERY[::31]]
    assert np.ptp(gaps) < 1e-8
