"""`rt.recover`: one line from a table to its answer, next to the rows it belongs to."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import retrace_sde as rt
from retrace_sde.io.formats import frame_of_array
from retrace_sde.recovery import step_of_times

DT = 0.05


@pytest.fixture(scope="module")
def shared():
    """A table in random order, and each row's true position."""
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(40, 12, DT, x0=0.1, random_state=1)
    shuffled, truth = rt.simulate.shuffle(X, random_state=2)
    table = frame_of_array(shuffled).sample(frac=1, random_state=3)
    return table, np.argsort(truth)[table["slice"].astype(int)]


@pytest.fixture(scope="module")
def recovered(shared):
    return rt.recover(shared[0], subject="subject", slice="slice", dt=DT)


def test_the_ordered_table_has_every_row_and_column_and_the_truth(shared, recovered):
    table, position = shared
    ordered = recovered.ordered
    added = ["position", "time", "position_probability", "direction"]
    assert list(ordered.columns) == [*table.columns, *added]
    assert (ordered["direction"] == "identified").all()
    np.testing.assert_array_equal(ordered.loc[table.index, "position"], position)
    np.testing.assert_allclose(ordered["time"], ordered["position"] * DT)
    assert ordered["position_probability"].between(0.5, 1).all()
    pd.testing.assert_frame_equal(ordered[table.columns].sort_index(), table.sort_index())
    assert (ordered.groupby("subject", sort=False)["position"].diff().dropna() == 1).all()


@pytest.mark.parametrize("kind", [pl.from_pandas, pa.Table.from_pandas])
def test_the_table_keeps_its_kind(kind, shared, recovered):
    table = kind(shared[0].reset_index(drop=True))
    ordered = rt.recover(table, subject="subject", slice="slice", dt=DT).ordered
    assert type(ordered) is type(table)
    expected = recovered.ordered.reset_index(drop=True)
    plain = ordered.to_pandas()
    pd.testing.assert_frame_equal(plain, expected, check_dtype=False)


def test_it_is_the_fit_of_the_array_in_the_users_units(shared, recovered):
    panel = recovered.panel
    same = rt.ReTrace(dt=DT, drift="affine").fit(panel.values)
    np.testing.assert_array_equal(recovered.model.order_, same.order_)
    for name in ("drift_", "offset_", "diffusion_", "log_likelihood_"):
        np.testing.assert_allclose(
            getattr(recovered.model, name), getattr(same, name), rtol=1e-8, atol=1e-10
        )
    for name in ("drift", "offset", "diffusion"):
        np.testing.assert_allclose(
            getattr(recovered.model.standard_errors_, name),
            getattr(same.standard_errors_, name),
            rtol=1e-8,
        )
    assert np.isclose(recovered.model.score(panel.values), same.score(panel.values))
    np.testing.assert_array_equal(recovered.model.reorder(panel.values), same.reorder(panel.values))


def test_columns_that_exist_already_are_not_overwritten(shared):
    table = shared[0].assign(time="unknown", position=7)
    ordered = rt.recover(table, subject="subject", slice="slice", variables=["x0", "x1"]).ordered
    assert (ordered["time"] == "unknown").all()
    assert (ordered["position"] == 7).all()
    assert {"retrace_time", "retrace_position", "position_probability"} <= set(ordered.columns)


@pytest.mark.usefixtures("brief")
def test_own_orders_of_ragged_subjects_with_empty_rows():
    sde = rt.simulate.random_irreversible_sde(6, random_state=0)
    X = sde.simulate(30, 15, DT, x0=0.1, random_state=1)
    table = frame_of_array(X).drop(columns="slice")
    table["true"] = np.tile(np.arange(15), 30)
    rng = np.random.default_rng(4)
    table = table[(table["true"] < 9) | (rng.random(len(table)) < 0.7)]
    table = table.sample(frac=1, random_state=5, ignore_index=True)
    table.loc[0, [f"x{k}" for k in range(6)]] = np.nan
    found = rt.recover(
        table, subject="subject", variables=[f"x{k}" for k in range(6)], dt=DT, random_state=0,
        estimator="mle",
    )  # fmt: skip
    ordered = found.ordered
    assert len(ordered) == len(table)
    lost = ordered[ordered["position"].isna()]
    assert len(lost) == 1
    assert lost[["time", "position_probability"]].isna().all(axis=None)
    taus = [
        own["true"].corr(own["position"], method="kendall")
        for _, own in ordered.dropna(subset="position").groupby("subject")
    ]
    assert abs(np.mean(taus)) > 0.8
    assert found.parameters["order"] is None
    assert found.parameters["observations"] == len(table) - 1


def test_summary_parameters_html_and_report(recovered, tmp_path):
    assert "direction" in recovered.summary()
    parameters = json.loads(json.dumps(recovered.parameters, allow_nan=False))
    assert parameters["variables"] == ["x0", "x1", "x2"]
    assert set(parameters["direction"]) >= {"identified", "p_value", "verdict"}
    assert set(parameters["standard_errors"]) == {"drift", "offset", "inputs", "diffusion", "kind"}
    assert len(parameters["order"]) == 12
    page = recovered.report(tmp_path / "r.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "<td>0</td>" in recovered._repr_html_()


def test_hostile_names_stay_text():
    table = frame_of_array(np.random.default_rng(0).standard_normal((8, 5, 2)).cumsum(axis=1))
    table = table.rename(columns={"x0": "<script>alert(1)</script>"})
    page = rt.recover(table, subject="subject", slice="slice")._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_shared_order_needs_a_shared_label(shared):
    with pytest.raises(ValueError, match="needs slice="):
        rt.recover(shared[0], subject="subject", permutation="shared")


@pytest.mark.parametrize(("error", "kept"), [(None, 1.0), (None, 0.6), (2.0, 1.0), (2.0, 0.7)])
def test_the_step_is_found_from_times_without_their_order(error, kept):
    """Over 400 subjects the standard error of the step is below 3 %."""
    rng = np.random.default_rng(0)
    n, T, step = 400, 20, 3.0
    times = rng.permuted(np.tile(step * np.arange(T), (n, 1)), axis=1) + rng.normal(0, 50, (n, 1))
    times = times + rng.normal(0, error or 0.0, times.shape)
    times[rng.random(times.shape) > kept] = np.nan
    values = np.zeros((n, T, 1))
    panel = rt.Panel(values, ("x",), tuple(map(str, range(n))), times=times, time_error=error)
    assert np.isclose(step_of_times(panel), step, rtol=0.03)


@pytest.fixture(scope="module")
def timed(shared):
    """The shared table with its true times, in days, of slices three days apart."""
    table, position = shared
    return table.assign(day=3.0 * position + 100)


def fit_times(table, **options):
    return rt.recover(
        table, subject="subject", slice="slice", variables=["x0", "x1", "x2"], time="day", **options
    )


def test_known_times_fix_order_direction_and_unit(timed, recovered):
    found = fit_times(timed)
    np.testing.assert_allclose(found.ordered["time"], found.ordered["day"])
    assert np.isclose(found.model.result_.dt, 3)
    np.testing.assert_array_equal(found.model.order_, recovered.model.order_)
    exact = rt.ReTrace(dt=DT, drift="affine", estimator="exact").fit(recovered.panel.values)
    error = exact.standard_errors_.drift
    assert (np.abs(found.model.drift_ * 3 / DT - exact.drift_) < 0.05 * error).all()
    dates = pd.Timestamp("2021-03-20", tz="Europe/Berlin") + pd.to_timedelta(timed["day"], unit="D")
    same = fit_times(timed.assign(day=dates))
    assert np.isclose(same.model.result_.dt, 3)


def test_times_known_in_part_are_met_and_the_rest_is_placed_between(timed):
    """The four earliest slices alone are dated, which says nothing of the spread of all times."""
    part = timed.assign(day=timed["day"].where(timed["day"] < 112))
    found = fit_times(part)
    ordered = found.ordered
    known = ordered["day"].notna()
    np.testing.assert_allclose(ordered.loc[known, "time"], ordered.loc[known, "day"])
    np.testing.assert_allclose(ordered["time"], timed.loc[ordered.index, "day"])
    assert np.isclose(found.model.result_.dt, 3)


def test_noisy_times_set_unit_and_origin(timed):
    """Twelve times with an error of half a step: the origin is known to 0.5, the step to 10 %."""
    error = np.random.default_rng(0).normal(0, 1.5, 12)[timed["slice"].astype(int)]
    found = fit_times(timed.assign(day=timed["day"] + error), time_error=1.5)
    ordered = found.ordered
    np.testing.assert_allclose(ordered["time"], timed.loc[ordered.index, "day"], atol=5)
    assert np.isclose(found.model.result_.dt, 3, rtol=0.25)


def test_each_subject_may_have_times_of_its_own(timed):
    shift = timed["subject"].astype(int) * 1000.0
    table = timed.assign(day=timed["day"] + shift).drop(columns="slice")
    found = rt.recover(
        table, subject="subject", variables=["x0", "x1", "x2"], time="day", estimator="mle"
    )
    np.testing.assert_allclose(found.ordered["time"], found.ordered["day"])
    assert (found.ordered["position_probability"] == 1).all()


def test_values_that_are_missing_are_not_filled_in(shared):
    table, position = shared
    half = table["subject"].isin(table["subject"].unique()[:20]).to_numpy()
    table, position = table[half], position[half]
    holes = table.copy()
    rng = np.random.default_rng(0)
    names = ["x0", "x1", "x2"]
    holes[names] = holes[names].mask(rng.random((len(holes), 3)) < 0.1)
    found = rt.recover(holes, subject="subject", slice="slice", dt=DT)
    ordered = found.ordered
    pd.testing.assert_frame_equal(ordered[holes.columns].sort_index(), holes.sort_index())
    right = ordered.loc[table.index, "position"].to_numpy()
    assert max((right == position).mean(), (11 - right == position).mean()) > 0.8
    assert found.model.states_.shape == (20, 12, 3)
    assert not np.isnan(found.model.states_).any()


@pytest.mark.parametrize("label", [int, "visit {}".format], ids=["numbers", "text"])
def test_knowledge_speaks_of_slices_by_their_labels(label, shared):
    """Rows stand in random order, so counting slices by first appearance would give another answer."""
    table, position = shared
    table = table.assign(slice=[label(each) for each in table["slice"]])
    true = dict(zip(table["slice"], position.tolist(), strict=True))
    at = {place: name for name, place in true.items()}
    known = [
        rt.Knowledge(last=at[0]),
        rt.Knowledge(first=at[11]),
        rt.Knowledge(precedences=[(at[11], at[0])]),
        rt.Knowledge(positions={at[2]: 9}),
        rt.Knowledge(blocks={at[1]: 2, at[10]: 1}),
        rt.Knowledge(timestamps={at[1]: 2.0, at[10]: 1.0}),
    ]
    for each in known:  # all of them say that time ran the other way
        found = rt.recover(table, subject="subject", slice="slice", dt=DT, knowledge=each)
        place = dict(zip(found.ordered["slice"], found.ordered["position"], strict=True))
        assert place == {name: 11 - i for name, i in true.items()}


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"first": "p"}, "first names slice 'p'; the table has '"),
        ({"positions": [0] * 12}, "label: value"),
        ({"precedences": [(1, 2, 3)]}, "two labels"),
        ({"blocks": {1: "b"}}, "must be numbers"),
        ({"positions": {1: 0, "1": 0}}, "twice"),
    ],
)
def test_labels_that_the_table_does_not_have_are_refused(known, words, shared):
    with pytest.raises(ValueError, match=words):
        rt.recover(shared[0], subject="subject", slice="slice", knowledge=rt.Knowledge(**known))


def test_slices_of_a_shared_order_exclude_orders_of_their_own(shared):
    with pytest.raises(ValueError, match="one order for all"):
        rt.recover(shared[0], subject="subject", slice="slice", permutation="independent")


def stationary(seed, *, n=30, T=12):
    """A table of a process at rest, whose direction nothing tells."""
    sde = rt.LinearSDE([[-1.0, 0.8], [-0.8, -1.0]], np.eye(2))
    rng = np.random.default_rng(seed)
    X = sde.simulate(
        n, T, 0.3, x0=sde.stationary().sample(n, rng), scheme="exact", random_state=rng
    )
    return frame_of_array(rt.simulate.shuffle(X, random_state=seed)[0])


def test_an_open_direction_shows_both_ways_round(tmp_path):
    found = rt.recover(
        stationary(0, n=120), subject="subject", slice="slice", dt=0.3, random_state=0
    )
    assert found.direction == "open"
    ordered, twin = found.ordered, found.model.alternative_
    assert (ordered["direction"] == "open").all()
    assert (ordered["position"] + ordered["position_reversed"] == 11).all()
    assert twin.standard_errors.drift.shape == (2, 2)
    # the twin's errors are near those of a fit along the reversed order, in the table's units
    back = rt.ReTrace(dt=0.3, drift="affine").fit(
        found.panel.values, knowledge=rt.Knowledge(positions=np.argsort(twin.order))
    )
    np.testing.assert_allclose(twin.drift, back.drift_, rtol=1e-6)
    np.testing.assert_allclose(twin.standard_errors.drift, back.standard_errors_.drift, rtol=0.3)
    for text in (found.summary(), found.report(tmp_path / "page.html").read_text()):
        assert "in this order" in text
        assert "in its reverse" in text
    value = twin.drift[0, 1]
    assert f"{value:.4g}" in found.summary()
    assert "in its reverse" in found.model.result_.to_latex()


def test_one_missing_cell_is_not_no_percent():
    table = stationary(1)
    table.loc[3, "x0"] = np.nan
    notes = rt.recover(table, subject="subject", slice="slice", dt=0.3).parameters["notes"]
    assert any("one value is missing" in note for note in notes)
    assert not any("0%" in note for note in notes)


def test_bootstrap_is_one_option_away():
    rng = np.random.default_rng(0)
    x = np.cumsum(1 + 0.3 * rng.standard_normal((20, 6, 2)), axis=1)
    index = [(j, f"v{t}") for j in range(20) for t in range(6)]
    table = pd.DataFrame(index, columns=["id", "visit"]).assign(
        a=x[..., 0].ravel(), b=x[..., 1].ravel()
    )
    seen: list[str] = []
    found = rt.recover(
        table, subject="id", slice="visit", bootstrap=5, observation_noise=None,
        progress=lambda step: seen.append(step.doing),
    )  # fmt: skip
    assert found.model.standard_errors_.kind == "bootstrap"
    assert "bootstrap over trajectories" in found.model.summary()
    assert "resampling subjects" in seen
