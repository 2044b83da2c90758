"""New subjects under a fit: the probability of each pair's order against brute force, whole orders, and subjects known in part."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import multivariate_normal

import retrace_sde as rt
from retrace_sde.cli.main import main
from retrace_sde.search.enumerated import exponent_of, tempered

SDE = rt.simulate.random_irreversible_sde(3, random_state=0)
DT = 0.3


@pytest.fixture(scope="module")
def model():
    known = rt.Knowledge(positions=np.tile(np.arange(4), (150, 1)))
    Y = SDE.simulate(150, 4, DT, random_state=1)
    return rt.ReTrace(dt=DT, permutation="independent", subjects="alike", random_state=0).fit(
        Y, knowledge=known
    )


def shuffled(n, T, seed):
    """Trajectories in shuffled order, and the time of each observation."""
    Y = SDE.simulate(n, T, DT, random_state=seed)
    time = np.argsort(np.random.default_rng(seed).random((n, T)), axis=1)
    return np.take_along_axis(Y, time[..., None], axis=1), time


def brute_force(model, x):
    """P(a before b) by Gaussian densities along each order, in the user's units."""
    law, units, T = model._memory.outcome.law, model._memory.units, len(x)
    z = (x - units.centre) / units.scale
    step, total, found = law.step, 0.0, np.zeros((T, T))
    for order in permutations(range(T)):
        along = z[list(order)]
        value = multivariate_normal(law.start.mean, law.start.covariance).logpdf(along[0])
        for now, after in pairwise(along):
            mean = step.predict(now[None, None], None)[0, 0]
            value += multivariate_normal(mean, step.diffusion * DT).logpdf(after)
        place = np.argsort(order)
        found += np.exp(value) * (place[:, None] < place[None])
        total += np.exp(value)
    return found / total + 0.5 * np.eye(T)


def test_precedence_is_the_sum_over_all_orders(model):
    X, _ = shuffled(6, 4, 7)
    P = model.precedence(X)
    for row, x in zip(P, X, strict=True):
        np.testing.assert_allclose(row, brute_force(model, x), atol=1e-9)
    np.testing.assert_allclose(P + P.transpose(0, 2, 1), 1.0)


def test_pairs_of_new_subjects_are_calibrated(model):
    X, time = shuffled(20_000, 3, 8)
    P = model.precedence(X)
    a, b = np.triu_indices(3, 1)
    p, came = P[:, a, b].ravel(), (time[:, a] < time[:, b]).ravel()
    for low in np.arange(0, 1, 0.1):
        some = (low <= p) & (p < low + 0.1)
        assert abs(p[some].mean() - came[some].mean()) < 0.04
    assert ((p > 0.5) == came).mean() > 0.85


def test_shorter_subjects_have_nan_beyond_their_length_and_are_exact_too(model):
    X, _ = shuffled(5, 4, 9)
    rows = [(j, *X[j, k]) for j in range(5) for k in range(2 if j == 2 else 4)]
    frame = pd.DataFrame(rows, columns=["who", "x0", "x1", "x2"])
    P = model.precedence(frame, subject="who")
    assert np.isnan(P[2, 2:]).all()
    assert np.isnan(P[2, :, 2:]).all()
    np.testing.assert_allclose(P[2, :2, :2], brute_force(model, X[2, :2]), atol=1e-9)
    np.testing.assert_allclose(P[4], brute_force(model, X[4]), atol=1e-9)


def test_whole_orders_are_drawn_as_often_as_they_are_likely(model):
    X, _ = shuffled(8, 3, 10)
    drawn, P = model.reorder_samples(X, 1000), model.precedence(X)
    assert drawn.shape == (8, 1000, 3)
    place = np.argsort(drawn, axis=2)
    share = (place[..., :, None] < place[..., None, :]).mean(axis=1) + 0.5 * np.eye(3)
    np.testing.assert_allclose(share, P, atol=0.07)
    best = model.place(X)
    most = [max(map(tuple, each.tolist()), key=list(map(tuple, each.tolist())).count) for each in drawn]  # fmt: skip
    assert sum(tuple(o) == m for o, m in zip(best.tolist(), most, strict=True)) >= 7


def test_missing_values_and_long_subjects_are_placed_too(model):
    X, _ = shuffled(10, 3, 11)
    X[0, 1, 2] = np.nan
    P = model.precedence(X)
    np.testing.assert_allclose(P + P.transpose(0, 2, 1), 1.0)
    long, time = shuffled(10, 8, 12)
    P = model.precedence(long)
    a, b = np.triu_indices(8, 1)
    assert ((P[:, a, b] > 0.5) == (time[:, a] < time[:, b])).mean() > 0.8


def test_an_open_direction_leaves_every_pair_open():
    still = rt.LinearSDE([[-1.0, 2.0], [-2.0, -1.0]], np.eye(2))
    Y = still.simulate(40, 4, 0.1, x0="stationary", random_state=2)
    open_ = rt.ReTrace(dt=0.1, permutation="independent", estimator="mle", subjects="alike", random_state=0).fit(Y)  # fmt: skip
    assert not open_.direction_.identified
    with pytest.warns(rt.ReTraceWarning, match="direction"):
        np.testing.assert_allclose(open_.precedence(Y[:3]), 0.5)
    with pytest.warns(rt.ReTraceWarning, match="backwards"):
        drawn = open_.reorder_samples(Y[:3], 10)
    assert drawn.shape == (3, 10, 4)


def table(n, known):
    X, time = shuffled(n, 3, 13)
    rows = [
        {"who": f"s{j}", "x": X[j, k, 0], "y": X[j, k, 1], "z": X[j, k, 2], "rank": time[j, k] if j < known else None}
        for j in range(n)
        for k in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows), time


FAST = {"dt": DT, "random_state": 0, "observation_noise": None, "subjects": "alike"}


def test_subjects_whose_order_is_known_teach_the_others():
    data, time = table(80, 40)
    found = rt.recover(data, subject="who", order_known="rank", estimator="mle", **FAST)
    assert found.direction == "known"
    assert "rank" not in found.panel.names
    place = found.ordered.sort_index().position.to_numpy().reshape(80, 3)
    assert (place[:40] == time[:40]).all()
    assert (place[40:] == time[40:]).mean() > 0.7
    marked = data.sort_values(["who", "rank"], kind="stable", ignore_index=True)
    marked["dated"] = marked["rank"].notna()
    same = rt.recover(marked.drop(columns="rank"), subject="who", order_known="dated", estimator="mle", **FAST)  # fmt: skip
    np.testing.assert_allclose(same.model.drift_, found.model.drift_, rtol=1e-6)


def test_orders_that_tell_nothing_are_refused():
    data, _ = table(6, 3)
    with pytest.raises(ValueError, match="no subject"):
        rt.recover(data.assign(rank=0), subject="who", order_known="rank", **FAST)
    with pytest.raises(ValueError, match="does not have"):
        rt.recover(data, subject="who", order_known="when", **FAST)
    with pytest.raises(ValueError, match="row 1 holds"):
        rt.recover(data.assign(rank="soon"), subject="who", order_known="rank", **FAST)


def test_place_writes_how_sure_each_position_is(tmp_path):
    data, _ = table(60, 60)
    data.to_csv(tmp_path / "known.csv", index=False)
    new, _ = table(12, 0)
    new.drop(columns="rank").to_csv(tmp_path / "new.csv", index=False)

    def run(*words):
        done = CliRunner().invoke(main, [str(word) for word in words])
        assert done.exit_code == 0, done.output
        return done.output

    run("fit", tmp_path / "known.csv", "--subject", "who", "--order-known", "rank", "--dt", DT,
        "--observation-noise", "none", "--subjects", "alike", "--out", tmp_path / "fit")  # fmt: skip
    words = "--subject", "who", "--fitted", tmp_path / "fit", "--out", tmp_path / "placed.csv"
    said = run("place", tmp_path / "new.csv", *words)
    assert "probability" in said
    placed = pd.read_csv(tmp_path / "placed.csv")
    assert placed.position.dtype.kind == "i"  # as a fit writes it
    assert placed.position_probability.between(0, 1).all()
    assert placed.position_probability.mean() > 0.6


def test_pair_probabilities_are_tempered_by_subjects_of_known_order(tmp_path):
    p = np.array([0.5, 0.2, 0.9, 1.0])
    assert tempered(p, 1.0) is p
    np.testing.assert_allclose(tempered(p, 0.5)[:3], [0.5, 1 / 3, 0.75])
    rng = np.random.default_rng(0)
    truth = rng.uniform(0.05, 0.95, 20_000)
    odds = 2.5 * np.log(truth / (1 - truth))  # said to be surer than it is
    said, came = 1 / (1 + np.exp(-odds)), rng.random(20_000) < truth
    assert abs(exponent_of(np.where(came, said, 1 - said)) - 0.4) < 0.05
    # Gaps that differ make the model too sure.
    sde = rt.LinearSDE([[-1.0, 0.0], [1.0, -0.5]], np.eye(2))
    fine = sde.simulate(160, 40, 0.05, x0=[2.0, 0.0], random_state=1)
    at = np.sort(np.array([rng.choice(40, 4, replace=False) for _ in range(160)]), axis=1)
    Y = np.take_along_axis(fine, at[..., None], axis=1)
    table = pd.DataFrame(Y.reshape(-1, 2), columns=["x", "y"])
    table = table.assign(who=np.repeat(np.arange(160), 4), dated=np.repeat(np.arange(160) < 60, 4).astype(int))  # fmt: skip
    found = rt.recover(table[table.who < 80], subject="who", order_known="dated", estimator="mle", **FAST)  # fmt: skip
    result = found.model.result_
    assert 0.02 < result.pair_exponent < 1.2
    assert any("known order" in note for note in result.notes)
    P = found.model.precedence(Y[80:])
    raw = replace(result, pair_exponent=1.0).model().precedence(Y[80:])
    np.testing.assert_allclose(P, tempered(raw, result.pair_exponent), atol=1e-6)
    loaded = rt.ReTraceResult.load(result.save(tmp_path / "fit.npz"))
    assert loaded.pair_exponent == result.pair_exponent


def test_a_few_subjects_need_not_tell_the_law_that_they_are_placed_by():
    """Starting orders were fitted to them: it was refused that one variable was seen once, and few values ended in a LinAlgError."""
    start = 3 + 0.3 * np.random.default_rng(2).standard_normal((30, 3))
    X = SDE.simulate(30, 8, 0.1, x0=start, random_state=1)
    X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    known = rt.Knowledge(timestamps=0.1 * np.arange(8))
    fit = rt.ReTrace(dt=0.1, common_shocks=False, random_state=0).fit(X[:26], knowledge=known)
    few = X[26:].copy()
    few[:, 1:, 0] = np.nan
    moved = np.random.default_rng(1).permutation(8)
    np.testing.assert_array_equal(moved[fit.place(few[:, moved])], np.arange(8))
