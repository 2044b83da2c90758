"""Columns that only count are recognised, whatever order their rows are in; what grows, falls or jumps is not."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.diagnosis import diagnose
from retrace_sde.panel.blocks import Data
from retrace_sde.panel.uninformative import Why, _diffuse, _why, rounding, without_dynamics
from retrace_sde.panel.validation import check_panel

n, T = 30, 15
STEPS = np.arange(T)


def clocks(rng):
    """Columns (n, T) that count time, or nothing."""
    age = rng.uniform(20, 70, (n, 1))
    return {
        "visit": (np.tile(STEPS + 1.0, (n, 1)), Why.CLOCK),
        "age in years": (np.floor(age + STEPS), Why.CLOCK),
        "age, two visits a year": (np.floor(age + STEPS / 2), Why.CLOCK),
        "age, exact": (age + STEPS / 7, Why.CLOCK),
        "date": (np.floor(3000 * rng.random((n, 1))) + 30 * STEPS, Why.CLOCK),
        "unequal schedule": (age + np.cumsum(rng.choice([1, 2, 6], T)), Why.CLOCK),
        "days left": (100.0 - STEPS + np.zeros((n, 1)), Why.CLOCK),
        "read with errors": (age + STEPS + 0.02 * rng.standard_normal((n, T)), Why.LOOSE_CLOCK),
        "dose so far": (rng.integers(1, 4, (n, 1)) * 10.0 * STEPS, Why.TOTAL),
        "dose": (np.tile(rng.integers(1, 4, (n, 1)) * 1.0, (1, T)), Why.STILL),
    }


def variables(rng):
    """Columns that have dynamics, or noise: growth of all kinds, scores, counts."""
    u = STEPS / (T - 1)
    walk = np.cumsum(rng.standard_normal((n, T)), axis=1) / np.sqrt(T)
    size = np.exp(0.15 * rng.standard_normal((n, 1)))
    found = {
        "score": np.clip(np.round(5 + 2 * walk), 0, 10),
        "stage": np.minimum(3, np.cumsum(rng.random((n, T)) < 3 / T, axis=1)) * 1.0,
        "switch": (u > rng.random((n, 1))) * 1.0,
        "events": np.cumsum(rng.poisson(0.8, (n, T)), axis=1) * 1.0,
        "whole numbers": np.round(50 + 30 * u * size + 0.5 * rng.standard_normal((n, T))),
    }
    for noise in (0.1, 0.01, 0.003):
        found[f"trend and diffusion {noise}"] = u + noise * walk
        found[f"decay {noise}"] = size * np.exp(-3 * u) + noise * walk
        found[f"growth {noise}"] = size / (1 + np.exp(4 - 8 * u)) + noise * walk
    return found


def shuffled(column, rng, *, shared):
    return column[:, rng.permutation(T)] if shared else rng.permuted(column, axis=1)


def left_out(column, rng, *, shared):
    X = np.stack([shuffled(column, rng, shared=shared), rng.standard_normal((n, T))], axis=2)
    return without_dynamics(Data(X), ("column", "noise"), shared=shared)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", clocks(np.random.default_rng(0)))
def test_what_only_counts_is_recognised(name, shared):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        column, why = clocks(rng)[name]
        found = left_out(column, rng, shared=shared)
        assert [(each.name, each.why) for each in found] == [("column", why)]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", variables(np.random.default_rng(0)))
def test_what_moves_by_itself_is_kept(name, shared):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        assert left_out(variables(rng)[name], rng, shared=shared) == ()


def test_a_counter_may_skip_and_subjects_may_differ_in_length():
    rng = np.random.default_rng(0)
    values = np.full((n, T, 2), np.nan)
    lengths = rng.integers(5, T + 1, n)
    for row, size in zip(values, lengths, strict=True):
        row[:size, 0] = rng.permutation(np.cumsum(rng.choice([1, 1, 1, 1, 2], size)))
        row[:size, 1] = rng.standard_normal(size)
    padded = np.where(np.isnan(values), 0.0, values)
    found = without_dynamics(Data(padded, counts=lengths), ("visit", "x"), shared=False)
    assert [(each.name, each.why) for each in found] == [("visit", Why.CLOCK)]


def test_values_may_be_missing():
    rng = np.random.default_rng(0)
    age = np.floor(rng.uniform(20, 70, (n, 1)) + STEPS / 2)
    X = np.stack([age, rng.standard_normal((n, T))], axis=2)
    X[rng.random(X.shape) < 0.2] = np.nan
    assert [each.name for each in without_dynamics(Data(X), ("age", "x"), shared=True)] == ["age"]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([1.0, 5.0], 1.0),
        ([100.0, 300.0], 100.0),
        ([0.1, 2.25], 0.01),
        ([np.pi, 1.0], 0.0),
        ([3.1e-10, -7.7e-11], 0.0),
        ([0.1 + 0.2 - 0.3, 0.2], 0.1),
    ],
)
def test_the_unit_of_rounding(values, unit):
    assert rounding(np.array([*values, np.nan])) == pytest.approx(unit)


def test_near_copies_are_named_and_a_growing_process_is_not_one():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, T, 2))
    sizes = {
        "pounds": np.round(2.2 * x[:, :, 0], 2),
        "total": np.round(x[:, :, 0] + x[:, :, 1], 3),
        "almost": x[:, :, 0] + 1e-6 * rng.standard_normal((n, T)),
    }
    for name, column in sizes.items():
        X = np.concatenate([x, column[:, :, None]], axis=2)
        (found,) = without_dynamics(Data(X), ("a", "b", name), shared=True)
        assert (found.name, found.why) == (name, Why.COPY)
        assert "'a'" in found.sentence
    sde = rt.simulate.random_irreversible_sde(20, setting="paper", random_state=1)
    X = sde.simulate(40, 200, 0.01, x0=np.tile(rng.standard_normal(20), (40, 1)), random_state=1)
    assert np.abs(X).max() > 1000
    assert without_dynamics(Data(X), tuple(map(str, range(20))), shared=True) == ()


def transient(rng):
    sde = rt.LinearSDE([[-1.0, 0.5], [-0.3, -1.2]], 0.2 * np.eye(2))
    return sde.simulate(n, T, 0.2, x0=2 + 0.3 * rng.standard_normal((n, 2)), random_state=rng)


@pytest.mark.filterwarnings("ignore:.*never changes within a subject")
@pytest.mark.parametrize("permutation", ["shared", "independent"])
def test_a_fit_with_a_clock_is_the_fit_without_it(permutation):
    rng = np.random.default_rng(3)
    age, dose = clocks(rng)["age, two visits a year"][0], clocks(rng)["dose"][0]
    X = np.concatenate([transient(rng), age[:, :, None], dose[:, :, None]], axis=2)
    X, _ = rt.simulate.shuffle(X, permutation=permutation, random_state=3)
    options = {"dt": 0.2, "drift": "affine", "permutation": permutation, "random_state": 0}
    if permutation == "independent":
        options["estimator"] = "mle"
    with pytest.warns(rt.ReTraceWarning, match=r"variable 2\) looks like a clock.*times \(time=\)"):
        whole = rt.ReTrace(**options).fit(X)
    part = rt.ReTrace(**options).fit(X[:, :, :2])
    np.testing.assert_array_equal(whole.order_, part.order_)
    np.testing.assert_allclose(whole.drift_, part.drift_)
    assert whole.direction_.p_value == part.direction_.p_value
    assert whole.result_.names == ("x0", "x1")
    assert [(each.index, each.why) for each in whole.result_.left_out] == [
        (2, Why.CLOCK),
        (3, Why.STILL),
    ]
    assert whole.n_features_in_ == 4
    assert whole.reorder(X).shape == X.shape
    assert whole.score(X) == pytest.approx(part.score(X[:, :, :2]))
    assert "left out: x2 (clock), x3 (constant in time)" in whole.summary()


@pytest.mark.filterwarnings("ignore:.*looks like a clock")
def test_noise_given_for_every_variable_is_taken_for_those_that_stay(tmp_path):
    rng = np.random.default_rng(4)
    X = np.concatenate([transient(rng)[:, :, :1], np.tile(STEPS[:, None], (n, 1, 1))], axis=2)
    X = np.concatenate([X, transient(rng)[:, :, :1]], axis=2)
    model = rt.ReTrace(dt=0.2, drift="affine", observation_noise=[0.1, 9.0, 0.2]).fit(X)
    np.testing.assert_allclose(np.sqrt(np.diag(model.observation_noise_)), [0.1, 0.2])
    again = type(model.result_).load(model.result_.save(tmp_path / "result"))
    assert again.left_out == model.result_.left_out


def test_nothing_but_clocks_is_refused_by_name():
    rng = np.random.default_rng(5)
    X = np.stack([clocks(rng)[name][0] for name in ("visit", "age in years")], axis=2)
    with pytest.raises(ValueError, match=r"no variable has dynamics.*'x0'.*'x1'.*times \(time=\)"):
        rt.ReTrace(drift="affine").fit(X[:, rng.permutation(T)])


def table(rng):
    X, age = transient(rng), clocks(rng)["age, two visits a year"][0]
    who, when = np.divmod(np.arange(n * T), T)
    plates = rng.permutation(T)[when]
    columns = {"id": who, "plate": [f"p{k:02d}" for k in plates]}
    columns |= {"u": X[who, when, 0], "v": X[who, when, 1], "age": age[who, when]}
    return pd.DataFrame(columns).sample(frac=1, random_state=0)


def test_a_table_is_answered_without_its_clock(tmp_path):
    frame = table(np.random.default_rng(6))
    with pytest.warns(rt.ReTraceWarning, match="'age' looks like a clock"):
        found = rt.recover(frame, subject="id", slice="plate")
    assert found.parameters["variables"] == ["u", "v"]
    assert found.parameters["left_out"][0]["name"] == "age"
    assert "'age' looks like a clock" in found.summary()
    assert "age" in found.ordered
    assert "looks like a clock" in found.report(tmp_path / "page.html").read_text()


def test_a_diagnosis_names_the_clock():
    panel = rt.Panel.from_frame(table(np.random.default_rng(7)), subject="id", slice="plate")
    found = diagnose(panel)
    assert found.variables == ("u", "v")
    assert any("'age' looks like a clock" in each.sentence for each in found.findings)


def test_degenerate_columns_bring_no_warning_of_numpy_or_scipy():
    rng = np.random.default_rng(8)
    x = transient(rng)
    columns = {
        "rounded": np.round(x[:, :, 0]),
        "two levels": (x[:, :, 0] > 1) * 1.0,
        "near copy": np.round(x[:, :, 0], 2),
        "sum": np.round(x.sum(axis=2), 3),
        "visit": clocks(rng)["visit"][0],
    }
    for column in columns.values():
        X = np.concatenate([x, column[:, :, None]], axis=2)[:, rng.permutation(T)]
        for noise in (None, "estimate"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", rt.ReTraceWarning)
                model = rt.ReTrace(dt=0.2, drift="affine", observation_noise=noise).fit(X)
            assert np.isfinite(model.drift_).all()


def test_coarse_rounding_is_told():
    rng = np.random.default_rng(9)
    x = transient(rng)
    X = np.stack([x[:, :, 0], np.round(x[:, :, 1])], axis=2)
    notes = rt.ReTrace(dt=0.2, drift="affine").fit(X[:, rng.permutation(T)]).result_.notes
    assert any("'x1' is rounded to 1" in note for note in notes)
    assert not any("'x0'" in note for note in notes)


@pytest.mark.parametrize("shared", [True, False])
def test_where_rows_are_stored_does_not_decide_what_is_left_out(shared):
    """One of 1000 subjects has another course in the second column: whether it is among those looked at decided."""
    rng = np.random.default_rng(3)
    n, T = 1000, 8
    X = rng.standard_normal((n, T, 2)).cumsum(axis=1)
    X[:, :, 1] = np.arange(T) + 100.0 * rng.integers(0, 9, (n, 1))
    X[0, :, 1] += rng.standard_normal(T)
    told = set()
    for seed in range(6):
        there = np.random.default_rng(seed)
        Y = X[there.permutation(n)][:, there.permutation(T)]
        panel = check_panel(Y, idle=False, ragged=not shared)
        told.add(tuple(each.index for each in panel.left_out))
    assert len(told) == 1


def test_the_quick_look_passes_nothing_that_is_left_out():
    """Of columns that only count and of those that move by themselves it clears some of the latter, and none of the former."""
    rng, cleared = np.random.default_rng(5), 0
    counting = [column for column, _ in clocks(rng).values()]
    for column in [*counting, *variables(rng).values()]:
        quick = bool(_diffuse(column[:24, :, None])[0])
        cleared += quick
        assert not quick or _why(column[:24], shared=True) is None
    assert cleared >= 2
