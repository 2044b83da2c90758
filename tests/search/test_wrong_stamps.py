"""Time stamps some of which are grossly wrong, in a fit: their law, the orders found, and which ones are said to be wrong."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.process.stamps import (
    Stamps,
    grid_costs,
    matching_cost,
    stamp_cost,
    wrong_probabilities,
)

N, T, DT = 14, 12, 0.1


def turning(seed=1):
    """A process with a direction, (14, 12, 4)."""
    turn = np.kron(np.eye(2), [[0.0, 4.0], [-4.0, 0.0]]) - 0.5 * np.eye(4)
    return rt.LinearSDE(turn, np.eye(4)).simulate(N, T, DT, x0="stationary", random_state=seed)


def taus(model):
    """Kendall's τ with the order 0, 1, …, of each trajectory."""
    orders = np.atleast_2d(model.order_)
    return np.mean([rt.metrics.kendall_tau(np.arange(T), each) for each in orders])


def test_the_best_matching_is_that_of_all_matchings():
    rng = np.random.default_rng(0)
    for _ in range(20):
        given = rng.uniform(-1, 5, 4)
        stamps = Stamps(given, np.full(4, 0.4), 0.0, 0.0, 0.05, 6.0)
        flat = -np.log(0.05 / 6.0)
        right = 0.5 * ((given[:, None] - np.arange(5.0)) / 0.4) ** 2 - np.log(
            0.95 / (0.4 * np.sqrt(2 * np.pi))
        )
        either = np.minimum(right, flat)
        least = min(either[np.arange(4), list(each)].sum() for each in permutations(range(5), 4))
        found = matching_cost(stamps, np.argsort(given), np.arange(5.0))
        assert found == pytest.approx(least)


def test_costs_are_bounded_and_of_a_schedule_exact():
    given, error, grid = np.array([0.1, 2.1, np.nan, 1e6]), np.full(4, 0.2), np.arange(4.0)
    cost = grid_costs(given, error, grid, 0.05, fixed=True)
    stamps = Stamps(given, error, 0.0, 0.0, 0.05, 1e6 - 0.1 + 0.2)
    each = np.array([[stamp_cost(stamps, a, t) for t in grid] for a in (0, 1)])
    np.testing.assert_allclose(cost[:2], each - each.min(axis=1, keepdims=True), atol=1e-9)
    assert not cost[2].any()  # there is no stamp
    assert cost[3].max() < 1e-6  # one that is far from all says nothing
    free = grid_costs(given[:2] + 100.0, error[:2], grid[:2] * 2, 0.05, fixed=False)
    assert np.array_equal(free.argmin(axis=1), [0, 1])  # wherever the grid begins


def test_which_stamps_are_wrong_given_the_times():
    times = np.arange(8.0)
    given = times + 3.0
    given[5] = 4.2
    found = wrong_probabilities(given, np.full(8, 0.1), times, 0.05)
    assert found[5] > 0.99
    assert np.delete(found, 5).max() < 0.01


def test_own_orders_with_errors_of_half_a_gap():
    X, rng = turning(), np.random.default_rng(0)
    stamps = (np.arange(T) + 0.5 * rng.standard_normal((N, T))) * DT
    lost = rng.random((N, T)) < 0.1
    stamps[lost] = rng.uniform(0, T * DT, lost.sum())
    settings = {
        "dt": DT,
        "permutation": "independent",
        "estimator": "mle",
        "subjects": "alike",
        "random_state": 0,
    }
    known = rt.Knowledge(timestamps=stamps, timestamp_error=0.5 * DT)
    before = rt.ReTrace(**settings).fit(X, knowledge=known)
    known = rt.Knowledge(timestamps=stamps, timestamp_error=0.5 * DT, wrong=0.05)
    model = rt.ReTrace(**settings).fit(X, knowledge=known)
    assert taus(model) > max(0.95, taus(before) + 0.05)
    found = model.result_.wrong_stamps
    far = lost & (np.abs(stamps / DT - np.arange(T)) > 3)
    assert (found[far] > 0.5).mean() > 0.8
    assert (found[~lost] > 0.5).mean() < 0.02
    assert "probably wrong, and not used" in model.result_.notes[-1]


def test_a_shared_order_on_a_regular_grid_without_an_error(tmp_path):
    X = turning()
    stamps = np.arange(T) * DT
    stamps[[2, 8]] = stamps[[8, 2]]
    model = rt.ReTrace(dt=DT, random_state=0).fit(
        X, knowledge=rt.Knowledge(timestamps=stamps, wrong=0.05)
    )
    assert np.array_equal(model.order_, np.arange(T))
    assert np.flatnonzero(model.result_.wrong_stamps > 0.5).tolist() == [2, 8]
    path = model.result_.save(tmp_path / "fit.npz")
    assert rt.ReTraceResult.load(path) == model.result_


def test_irregular_exact_times_are_judged_first():
    sde, rng = rt.LinearSDE([[-0.5, 4.0], [-4.0, -0.5]], np.eye(2)), np.random.default_rng(0)
    fine = sde.simulate(N, 60, 0.02, x0="stationary", random_state=3)
    cells = np.sort(np.array([rng.choice(60, T, replace=False) for _ in range(N)]), axis=1)
    X = np.take_along_axis(fine, cells[..., None], axis=1)
    stamps = cells * 0.02
    true = stamps.copy()
    stamps[3, 2], stamps[5, 9] = true[3, 10] + 0.004, true[5, 1] + 0.004
    known = rt.Knowledge(timestamps=stamps, wrong=0.05)
    model = rt.ReTrace(permutation="independent", random_state=0, dt=0.1).fit(X, knowledge=known)
    found = model.result_.wrong_stamps
    assert min(found[3, 2], found[5, 9]) > 0.5
    assert (found > 0.5).sum() <= 4
    assert taus(model) > 0.99
    assert "replaced by the most likely times" in model.result_.notes[-1]


def test_refused_in_words():
    X = turning()
    with pytest.raises(ValueError, match="no timestamps are given"):
        rt.ReTrace().fit(X, knowledge=rt.Knowledge(wrong=0.05))
    with pytest.raises(ValueError, match=r"below 0\.5"):
        rt.ReTrace().fit(X, knowledge=rt.Knowledge(timestamps=np.arange(T), wrong=0.7))


def test_the_command(tmp_path):
    frame = pd.DataFrame(turning().reshape(N * T, 4), columns=list("abcd"))
    frame = frame.assign(who=np.repeat(np.arange(N), T), day=np.tile(np.arange(float(T)), N))
    frame.loc[T + 4, "day"] = 10.6
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "visits.csv", index=False)
    command = f"fit {tmp_path}/visits.csv --subject who --time day --wrong 0.05 --estimator mle --observation-noise none --subjects alike --json --out {tmp_path}/out"
    done = CliRunner().invoke(main, command.split())
    assert done.exit_code == 0, done.output
    assert any("1 of 168 time stamps is probably wrong" in each for each in json.loads(done.stdout)["notes"])  # fmt: skip
    ordered = pd.read_csv(tmp_path / "out" / "ordered.csv")
    suspects = ordered[ordered["time_wrong_probability"] > 0.5]
    assert suspects[["who", "day", "position"]].to_numpy().tolist() == [[1, 10.6, 4]]
    refused = CliRunner().invoke(
        main, f"fit {tmp_path}/visits.csv --subject who --wrong 0.05".split()
    )
    assert refused.exit_code == 2
    assert "--time" in refused.output
