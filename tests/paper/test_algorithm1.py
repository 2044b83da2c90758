"""Algorithm 1 against a literal transcription, and against what is known about its behaviour."""

from __future__ import annotations

import numpy as np
import pytest

import retrace_sde as rt
from retrace_sde.metrics import order_accuracy
from retrace_sde.panel.blocks import Data
from retrace_sde.paper.score import GaussianScore, score_preference
from retrace_sde.process.drift import Linear
from retrace_sde.search.models.euler import EulerModel

DT = 0.01


def literal_algorithm(X, dt, rounds, reading):
    """The paper's listing, line by line; nothing is precomputed. Returns the order after each round."""
    n, T, _ = X.shape
    current = list(range(T))
    orders = []

    def score(t):
        x = X[:, t]
        return -np.linalg.solve(np.cov(x.T), (x - x.mean(axis=0)).T).T

    for _ in range(rounds):
        ordered = X[:, current]
        x, dx = ordered[:, :-1].reshape(n * (T - 1), -1), np.diff(ordered, axis=1)
        dx = dx.reshape(n * (T - 1), -1)
        A = np.linalg.solve(x.T @ x, x.T @ dx).T / dt
        residual = dx - x @ A.T * dt
        H = residual.T @ residual / (len(x) * dt)
        end, converged = T - 1, True
        while end != 0:
            for t in range(end):
                a, b = current[t], current[t + 1]
                increment = (X[:, b] - X[:, a]) / dt
                if reading == "mean":
                    increment = np.broadcast_to(increment.mean(axis=0), increment.shape)
                drift = np.abs(increment)
                error_t = ((drift - score(a) @ H) ** 2).sum()
                error_s = ((drift - score(b) @ H) ** 2).sum()
                if error_t < error_s:
                    current[t], current[t + 1] = b, a
                    converged = False
            end -= 1
        orders.append(list(current))
        if converged:
            break
    return orders


@pytest.mark.parametrize("reading", ["absolute", "mean"])
@pytest.mark.parametrize("setting", ["stable", "growing"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_round_equals_the_literal_listing(setting, reading, seed):
    sde = rt.simulate.random_irreversible_sde(3, setting=setting, random_state=seed)
    X = sde.simulate(25, 9, DT, x0=0.3, random_state=seed + 10)
    X, _ = rt.simulate.shuffle(X, random_state=seed + 20)
    model = rt.ReTrace(
        dt=DT, order=rt.paper.ScoreOrder(drift=reading), max_iter=4, drift="linear"
    ).fit(X)
    # It starts where the slices stand, which their content decides.
    stand = model._memory.places.columns
    literal = literal_algorithm(X[:, stand], DT, 4, reading)
    assert [each.order.tolist() for each in model.history_] == [stand[o].tolist() for o in literal]


@pytest.mark.parametrize("reading", ["absolute", "mean"])
def test_where_the_slices_are_stored_does_not_matter(reading):
    sde = rt.simulate.random_irreversible_sde(3, random_state=3)
    X = sde.simulate(25, 9, DT, x0=0.3, random_state=4)
    moved, back = rt.simulate.shuffle(X, random_state=5)
    one, other = (
        rt.ReTrace(dt=DT, order=rt.paper.ScoreOrder(drift=reading), drift="linear").fit(each)
        for each in (X, moved)
    )
    np.testing.assert_array_equal(np.argsort(back)[other.order_], one.order_)
    assert other.log_likelihood_ == one.log_likelihood_


def test_preferences_equal_the_printed_errors():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 5, 3)) * np.arange(1, 6)[None, :, None]
    H = np.cov(rng.standard_normal((3, 50)))
    score = GaussianScore().fit(Data(X))
    found = score_preference(Data(X), score, H, 0.5)
    g = score(X) @ H
    for t in range(5):
        for s in range(5):
            b = np.abs(X[:, s] - X[:, t]) / 0.5
            expected = ((b - g[:, t]) ** 2).sum() - ((b - g[:, s]) ** 2).sum()
            assert found[t, s] == pytest.approx(expected, abs=1e-6 * np.abs(found).max())


def test_it_sorts_by_growing_spread_and_so_reverses_shrinking_data():
    """Slices whose spread grows come out right; the same slices in reverse come out exactly reversed."""
    rng = np.random.default_rng(1)
    spread = np.linspace(1, 3, 12)[None, :, None]
    walk = np.cumsum(rng.standard_normal((400, 12, 4)) * 0.01, axis=1)
    X = rng.standard_normal((400, 1, 4)) * spread + walk
    given = {"max_iter": 1, "drift": "linear", "random_state": 0}
    growing = rt.ReTrace(order=rt.paper.ScoreOrder(drift="mean"), **given).fit(X)
    np.testing.assert_array_equal(growing.order_, np.arange(12))
    shrinking = rt.ReTrace(order=rt.paper.ScoreOrder(drift="mean"), **given).fit(X[:, ::-1])
    np.testing.assert_array_equal(shrinking.order_, np.arange(12)[::-1])


def test_keep_best_takes_the_most_likely_round_and_keep_last_the_printed_one():
    sde = rt.simulate.random_irreversible_sde(10, setting="growing", random_state=2)
    X, truth = rt.simulate.shuffle(sde.simulate(300, 60, DT, random_state=3), random_state=4)
    best, last = (
        rt.ReTrace(dt=DT, order=rt.paper.ScoreOrder(keep=keep), drift="linear").fit(X)
        for keep in ("best", "last")
    )
    likelihoods = [each.log_likelihood for each in best.history_]
    assert best.log_likelihood_ == max(likelihoods)
    np.testing.assert_array_equal(last.order_, last.history_[-1].order)
    assert max(likelihoods) > likelihoods[-1]
    assert order_accuracy(truth, best.order_) > order_accuracy(truth, last.order_)
    for each in best.history_:
        # Some trajectories tell the variables' variances; they are those of the places that contents decide.
        data = Data(best._memory.places.sorted(X))
        fit = EulerModel(data, DT, Linear()).fit(best._memory.places.sorted_orders(each.order))
        assert each.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-10)


@pytest.mark.parametrize("reading", ["absolute", "mean"])
def test_the_papers_regime_is_reached_in_some_round(reading):
    """A common start and explosive growth: spread grows monotonically, the point slice comes first."""
    sde = rt.simulate.random_irreversible_sde(20, setting="paper", random_state=5)
    X, truth = rt.simulate.shuffle(sde.simulate(300, 100, DT, random_state=6), random_state=7)
    model = rt.ReTrace(
        dt=DT, order=rt.paper.ScoreOrder(drift=reading), max_iter=4, drift="linear"
    ).fit(X)
    reached = [order_accuracy(truth, each.order) for each in model.history_]
    assert max(reached) >= 0.97
    assert truth[0] == model.history_[0].order[0]


@pytest.mark.statistics
def test_the_measured_table_of_the_paper_size():
    """d = 50, n = 2000, T = 250: near perfect on growing spread, then lost; reversed on shrinking."""

    def accuracies(setting, x0):
        sde = rt.simulate.random_irreversible_sde(50, setting=setting, random_state=8)
        X = sde.simulate(2000, 250, DT, x0=x0, random_state=9)
        X, truth = rt.simulate.shuffle(X, random_state=10)
        model = rt.ReTrace(dt=DT, order="score", max_iter=3, drift="linear").fit(X)
        return [order_accuracy(truth, each.order) for each in model.history_]

    growing = accuracies("growing", 0.1)
    assert growing[0] > 0.97
    assert max(growing[1:]) < 0.8
    assert max(accuracies("stable", 1.0)) < 0.05
    assert accuracies("paper", None)[0] > 0.99
