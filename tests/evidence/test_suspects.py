"""Values that are probably wrong: found, named, treated as missing, and none where data are clean."""

import json

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.evidence.suspects import confirmed
from retrace_sde.evidence.suspects.filled import filled
from retrace_sde.evidence.suspects.isolated import find_isolated
from retrace_sde.evidence.suspects.robust import (
    centre_and_scale,
    median,
    median_distances,
    quantile,
    robust_order,
    trimmed_regression,
)
from retrace_sde.evidence.suspects.rows import _Search, find_rows
from retrace_sde.evidence.suspects.tail import Tail
from retrace_sde.evidence.suspects.whole import whole_slices, whole_trajectories


def panel(seed: int = 0, n: int = 30, T: int = 12):
    sde = rt.simulate.random_irreversible_sde(3, random_state=seed)
    start = 2 + 0.3 * np.random.default_rng(seed).standard_normal((n, 3))
    return sde.simulate(n, T, 0.1, x0=start, random_state=seed)


def soiled(seed: int = 0):
    """Two lost decimal points and an exchange of two rows, and where they are."""
    X = panel(seed)
    X[4, 5, 1] = 30 * 2.5
    X[17, 2, 0] = -30 * 2.5
    X[[8, 9], 7] = X[[9, 8], 7] + np.array([[6.0], [-6.0]])
    return X, {(4, 5), (17, 2), (8, 7), (9, 7)}


def found_in(X):
    centre, scale = centre_and_scale(X)
    z = (X - centre) / scale
    order = robust_order(z)
    times = np.broadcast_to(np.arange(float(X.shape[1])), X.shape[:2])
    return {
        (e.trajectory, int(order[e.position]), e.variable) for e in find_rows(z[:, order], times)
    }


def test_wrong_rows_and_cells_are_found_whatever_their_order_and_units():
    X, wrong = soiled()
    found = found_in(X)
    assert {each[:2] for each in found} == wrong
    assert {(4, 5, 1), (17, 2, 0)} <= found
    rng = np.random.default_rng(1)
    rows, slices = rng.permutation(len(X)), rng.permutation(X.shape[1])
    moved = found_in(X[rows][:, slices] * np.array([1e-3, 7.0, 1e4]) + np.array([0.0, 3.0, -2.0]))
    assert {(int(rows[j]), int(slices[k])) for j, k, _ in moved} == wrong


def test_nothing_is_found_in_clean_panels_nor_in_heavy_tails():
    assert not found_in(panel(3))
    rng = np.random.default_rng(4)
    walk = np.cumsum(rng.standard_t(3, (30, 16, 3)), axis=1)
    assert len(found_in(walk)) <= 1
    assert not find_isolated(panel(5))


def test_variables_that_are_nearly_combinations_of_others_are_judged_by_what_is_left_of_them():
    """Medians of correlated variables, taken one by one, err by more than combinations of them vary: wrong cells were hidden, and clean rows were candidates."""
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((12, 12)) * np.logspace(-2, 0, 12)[:, None]
    X = np.cumsum(rng.standard_normal((20, 60, 12)) @ mixed, axis=1)
    search = _Search(X, np.broadcast_to(np.arange(60.0), X.shape[:2]))
    search.run(0.01)
    assert search.sides is not None
    assert not search.found
    assert search.sides.before[:, 1:].reshape(-1, 12).var(axis=0).max() < 1.2
    X[7, 30, 4] += 0.3 * X[..., 4].std() / np.sqrt(60)
    assert found_in(X) == {(7, 30, 4)}


def test_curved_courses_own_rates_and_velocities_that_are_not_seen_are_no_errors():
    rng = np.random.default_rng(5)
    rate = np.exp(0.4 * rng.standard_normal((30, 1)))
    x = np.exp(np.log(0.1) + 0.3 * rng.standard_normal((30, 2)))
    v = rng.standard_normal((30, 2))
    y, growth, smooth = np.zeros((30, 2)), [], []
    for _ in range(16):
        growth.append(x)
        smooth.append(y)
        x = x + 0.4 * rate * x * (1 - x) + 0.02 * x * rng.standard_normal(x.shape)
        v = 0.95 * v - 0.1 * y + 0.05 * rng.standard_normal(v.shape)
        y = y + 0.3 * v
    assert not found_in(np.stack(growth, axis=1))
    assert not found_in(np.stack(smooth, axis=1))


def test_few_wrong_values_are_drawn_given_the_rest():
    """Means and covariance of the draws against conditioning in the joint law of a trajectory."""
    A, T = np.array([[0.8, 0.1], [-0.2, 0.7]]), 6
    L = np.linalg.cholesky(np.array([[0.5, 0.2], [0.2, 0.4]]))
    rng = np.random.default_rng(0)
    x = np.zeros((400, T, 2))
    x[:, 0] = 1.5 * rng.standard_normal((400, 2))
    for k in range(1, T):
        x[:, k] = x[:, k - 1] @ A.T + rng.standard_normal((400, 2)) @ L.T
    wrong = np.zeros(x.shape, dtype=bool)
    wrong[0, 2, 0] = wrong[0, 3] = True
    draws = np.stack([filled(x, wrong, np.random.default_rng(k))[0][wrong[0]] for k in range(120)])
    covariance = np.cov(x.reshape(400, -1).T)
    u = wrong[0].ravel()
    gain = covariance[np.ix_(u, ~u)] @ np.linalg.inv(covariance[np.ix_(~u, ~u)])
    mean = x.reshape(400, -1).mean(axis=0)
    expected = mean[u] + gain @ (x[0].ravel() - mean)[~u]
    spread = covariance[np.ix_(u, u)] - gain @ covariance[np.ix_(~u, u)]
    assert np.allclose(draws.mean(axis=0), expected, atol=0.2)
    assert np.allclose(np.cov(draws.T), spread, atol=0.15)
    assert np.array_equal(filled(x, wrong, rng)[~wrong], x[~wrong])


def test_without_suspects_the_answer_is_that_of_keep():
    X = panel(3)
    auto, kept = (
        rt.ReTrace(dt=0.1, random_state=0, outliers=how).fit(X).result_ for how in ("auto", "keep")
    )
    assert not auto.suspects
    assert np.array_equal(auto.drift, kept.drift)
    assert np.array_equal(auto.standard_errors.diffusion, kept.standard_errors.diffusion)
    assert auto.direction.p_value == kept.direction.p_value


def test_suspects_do_not_take_away_what_a_complete_panel_offers():
    X, wrong = soiled()
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        model = rt.ReTrace(dt=0.1, random_state=0).fit(X)
    assert {(e.trajectory, e.slice) for e in model.result_.suspects} == wrong
    assert model.result_.drift_choice is not None or model.result_.subjects is not None
    assert model.result_.observation_noise is None
    assert model.forecast(X, 2).mean.shape == (30, 2, 3)


def test_counts_among_the_variables_do_not_hide_a_wrong_cell():
    X = panel()
    X[4, 5, 1] = 75.0
    counts = np.random.default_rng(0).poisson(1.0, X.shape[:2])[..., None]
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        result = rt.ReTrace(dt=0.1, random_state=0).fit(np.concatenate([counts, X], axis=2)).result_
    assert [(e.trajectory, e.slice, e.variable) for e in result.suspects] == [(4, 5, "x2")]


def test_a_tail_needs_lengths_that_are_not_zero_up_to_rounding():
    """Of a sparse 0/1 table most residuals are: the median of their lengths was 1e-32, no number of degrees had a likelihood, and the fit ended in an error."""
    assert Tail.of(np.r_[np.full(12, 2.3e-32), np.linspace(0.5, 1.7, 6)], 2) is None
    assert Tail.of(np.r_[np.full(12, 1e-7), np.linspace(0.5, 1.7, 6)], 2) is not None
    lengths = np.linspace(0.5, 1.7, 60)
    tail = Tail.of(lengths, 2)
    assert tail is not None
    assert 0 < tail.beyond(np.array([3.0]))[0] < 0.05


def test_a_tail_is_fitted_where_a_third_of_the_lengths_are_far_away():
    """The chance of their third quartile is zero up to rounding with many degrees of freedom, which ended a fit in an error."""
    tail = Tail.of(np.r_[np.linspace(1, 1.1, 60), 1e5 * np.linspace(1, 2, 40)], 3)
    assert tail is not None
    assert tail.degrees < 30


def test_the_order_survives_wrong_values():
    X, _ = soiled()
    shuffled = np.random.default_rng(2).permutation(X.shape[1])
    along = shuffled[robust_order(X[:, shuffled])].tolist()
    assert along in (list(range(12)), list(range(12))[::-1])


def test_trajectories_and_slices_in_other_units_are_found():
    X = panel() + 5
    X[3] *= 100
    assert {(e.at, e.variable) for e in whole_trajectories(X)} == {(3, 0), (3, 1), (3, 2)}
    X = panel() + 5
    X[:, 4, 1] *= 1000
    assert [(e.at, e.variable) for e in whole_slices(X)] == [(4, 1)]
    assert not whole_trajectories(panel() + 5)
    assert not whole_slices(panel() + 5)


def test_other_units_are_seen_in_a_variable_that_many_trajectories_have_near_zero():
    rng = np.random.default_rng(5)
    decaying = 2 * np.exp(-0.4 * np.arange(16.0)) + np.cumsum(
        0.2 * rng.standard_normal((30, 16)), axis=1
    )
    X = np.stack([decaying, decaying + 4], axis=2)
    assert not whole_trajectories(X)
    X[:3] *= 100
    found = {(e.at, e.variable) for e in whole_trajectories(X)}
    assert found == {(j, v) for j in range(3) for v in range(2)}


def test_own_orders_an_observation_far_from_all_others_is_found():
    X = panel()
    X[4, 5, 1] = 75.0
    assert [(e.trajectory, e.position, e.variable) for e in find_isolated(X)] == [(4, 5, 1)]


def test_suspects_are_missing_flagged_or_kept(tmp_path):
    X, wrong = soiled()
    known = rt.Knowledge(first=0)  # the direction, which takes most of a fit, is no question here
    with pytest.warns(rt.ReTraceWarning, match="treated as missing"):
        model = rt.ReTrace(dt=0.1, random_state=0, outliers="auto").fit(X, knowledge=known)
    result = model.result_
    assert {(e.trajectory, e.slice) for e in result.suspects} == wrong
    assert all(e.missing for e in result.suspects)
    assert model.order_.tolist() == list(range(12))
    assert np.array_equal(model.transform(X), X[:, model.order_])
    assert rt.ReTraceResult.load(result.save(tmp_path / "r.npz")) == result
    with pytest.warns(rt.ReTraceWarning, match="listed only"):
        flagged = (
            rt.ReTrace(dt=0.1, random_state=0, outliers="flag").fit(X, knowledge=known).result_
        )
    kept = rt.ReTrace(dt=0.1, random_state=0, outliers="keep").fit(X, knowledge=known).result_
    assert not kept.suspects
    assert {(e.trajectory, e.slice) for e in flagged.suspects} == wrong
    assert np.array_equal(flagged.drift, kept.drift)


def test_a_table_names_suspects_by_its_own_labels(tmp_path):
    from click.testing import CliRunner

    from retrace_sde.cli.main import main

    X = panel()
    X[4, 5, 1] = 75.0
    n, T, _ = X.shape
    rows = [
        {"who": f"S{j}", "visit": f"V{k}", "a": X[j, k, 0], "b": X[j, k, 1], "c": X[j, k, 2]}
        for j in range(n)
        for k in range(T)
    ]
    file = tmp_path / "t.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    out = tmp_path / "out"
    asked = [
        "fit",
        str(file),
        "--subject",
        "who",
        "--slice",
        "visit",
        "--out",
        str(out),
        "--json",
        "--outliers",
        "auto",
    ]
    ran = CliRunner().invoke(main, asked)
    assert ran.exit_code == 0, ran.output
    found = pd.read_csv(out / "suspects.csv").iloc[0]
    assert (found["subject"], found["slice"], found["variable"]) == ("S4", "V5", "b")
    assert found["row"] == 4 * T + 5 + 1
    assert found["value"] == 75.0
    assert found["missing"]
    assert any("suspects.csv" in name for name in json.loads(ran.stdout)["files"])


def test_a_trajectory_that_is_wrong_throughout_has_the_moments_of_the_others():
    """Nothing of it is given: over many draws means and covariances of all its values are those of the right ones."""
    rng = np.random.default_rng(3)
    x = np.cumsum(rng.standard_normal((12, 6, 2)), axis=1) + np.linspace(0, 5, 6)[:, None]
    right, wrong = x[1:].reshape(11, -1), np.zeros(x.shape, dtype=bool)
    x[0] *= 100
    wrong[0] = True
    draws = np.stack([filled(x, wrong, np.random.default_rng(k))[0].ravel() for k in range(4000)])
    S = np.cov(right.T, ddof=0)
    scale = np.sqrt(np.diag(S))
    np.testing.assert_allclose(draws.mean(axis=0), right.mean(axis=0), atol=4 * scale.max() / 63)
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(scale, scale), S / np.outer(scale, scale), atol=0.12)  # fmt: skip
    np.testing.assert_array_equal(filled(x, wrong, rng)[1:], x[1:])


def test_medians_and_quantiles_leave_out_what_is_missing():
    """Against numpy, of arrays with and without missing values, and of rows of which nothing is known."""
    rng = np.random.default_rng(0)
    for shape in ((7, 6, 3), (8, 5, 2)):
        x = rng.standard_normal(shape)
        holes = x.copy()
        holes[0, 0], holes[3, 2:4, 1], holes[5, ::2, 0] = np.nan, np.nan, np.nan
        for axis in (0, 1, (0, 1), None):
            np.testing.assert_array_equal(median(x, axis), np.median(x, axis))
            np.testing.assert_array_equal(median(holes, axis), np.nanmedian(holes, axis))
        at = np.quantile(x, 0.4, axis=1, method="lower")
        np.testing.assert_array_equal(quantile(x, 0.4), at)
        np.testing.assert_array_equal(
            quantile(holes, 0.4), np.nanquantile(holes, 0.4, axis=1, method="lower")
        )
    holes[2] = np.nan
    assert np.isnan(median(holes, 1)[2]).all()
    assert np.isnan(quantile(holes, 0.4)[2]).all()


def test_distances_between_slices_are_medians_over_trajectories():
    rng = np.random.default_rng(1)
    z = rng.standard_normal((9, 20, 3))
    holes = z.copy()
    holes[0, 3, :2], holes[4, 5:7, 0] = np.nan, np.nan
    for x in (z, holes):
        squares = np.nanmean((x[:, :, None] - x[:, None]) ** 2, axis=3)
        np.testing.assert_allclose(median_distances(x), np.nanmedian(squares, axis=0), atol=1e-12)


def test_the_trimmed_regression_is_least_squares_of_the_rows_that_it_keeps():
    """Against lstsq without the rows that were put far away, which none of the ordinary ones is trimmed beside but for the share kept."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1500, 3))
    F = np.array([[0.9, 0.2, 0.0], [-0.1, 0.8, 0.1], [0.0, 0.0, 1.0]])
    y = x @ F.T + [0.1, 0.0, -0.2] + 0.1 * rng.standard_normal(x.shape)
    y[:60] += 50
    B, S = trimmed_regression(y, x)
    X = np.c_[x, np.ones(len(x))][60:]
    least = np.linalg.lstsq(X, y[60:], rcond=None)[0]
    np.testing.assert_allclose(B, least, atol=2e-3)
    np.testing.assert_allclose(S, np.cov((y[60:] - X @ least).T), atol=1e-3)


def test_rows_that_have_nothing_to_be_compared_with_are_not_suspects():
    """No row is complete, or none has a complete one two rows before it or earlier: regressions of no rows had covariances that are not numbers."""
    z = panel(0, n=20, T=8)
    none, last = z.copy(), z.copy()
    none[:, np.arange(8), np.arange(8) % 3] = np.nan
    last[:, :7, 0] = np.nan
    times = np.broadcast_to(np.arange(8.0), z.shape[:2])
    assert find_rows(none, times) == find_rows(last, times) == []


@pytest.mark.parametrize("seed", [0, 3])
def test_suspects_that_are_dropped_together_would_be_dropped_one_by_one(monkeypatch, seed):
    X = panel(seed, n=40, T=20)
    for size, j in enumerate(range(0, 40, 3)):
        X[j, 5 + size % 10, 2 * (size % 2)] += 0.5 * size
    centre, scale = centre_and_scale(X)
    z = (X - centre) / scale
    places = [(j, k, v) for j in range(0, 40, 3) for k in range(20) for v in (None, 0, 2)]
    kept = z.copy()
    kept[::3, ::7] = np.nan
    for size, j in enumerate(range(0, 40, 3)):
        kept[j, 5 + size % 10] = np.nan
    quick = confirmed.confirm(z, kept, places)
    usual = confirmed._Models.usual

    def none(models, suspects, levels):
        assert any(usual(models, suspects, levels))
        return [False] * len(suspects)

    monkeypatch.setattr(confirmed._Models, "usual", none)
    assert quick == confirmed.confirm(z, kept, places)
    assert any(quick)
    assert not all(quick)
