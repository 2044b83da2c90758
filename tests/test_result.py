"""The result prints itself safely and survives saving without pickle."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.exceptions import NotFittedError

import retrace_sde as rt
from retrace_sde.evidence.direction.verdict import (
    Reason,
    doubtful_direction,
    known_direction,
    left_open,
)
from retrace_sde.paper.score_estimators import KernelScore


@pytest.fixture(scope="module", params=[0.1, "stationary"])
def model(request):
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(60, 15, 0.01, x0=request.param, random_state=1)
    panel = rt.Panel.from_array(X, names=["<script>alert(1)</script>", "a_b & c", "z"])
    return rt.ReTrace(dt=0.01, drift="affine").fit(panel)


def test_summary_says_what_was_found(model):
    text = model.summary()
    assert "60 trajectories × 15 slices × 3 variables" in text
    assert model.direction_.verdict in text
    assert str(model.result_) == text
    for sentence in (*model.identifiability_.can, *model.identifiability_.cannot):
        assert sentence in text


def test_html_escapes_names_from_the_data(model):
    page = model.result_._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<table>") == page.count("</table>") == 2


def test_latex_escapes_names_from_the_data(model):
    table = model.result_.to_latex()
    assert r"a\_b \& c" in table
    assert table.startswith(r"\begin{tabular}")


def test_the_listed_intervals_are_students(model):
    A, error = model.drift_, model.standard_errors_.drift
    i, j = np.unravel_index(np.argmax(np.abs(A) / error), A.shape)
    low, high = stats.t.interval(0.95, 59, A[i, j], error[i, j])
    assert f"{A[i, j]:.4g}" in model.summary()
    assert f"[{low:.4g}, {high:.4g}]" in model.summary()


def assert_equal(a, b):
    assert type(a) is type(b)
    for field in dataclasses.fields(a):
        one, other = getattr(a, field.name), getattr(b, field.name)
        assert type(one) is type(other), field.name
        if dataclasses.is_dataclass(one):
            assert_equal(one, other)
        elif field.name in ("history", "findings", "verdicts"):
            for x, y in zip(one, other, strict=True):
                assert_equal(x, y)
        else:
            np.testing.assert_equal(other, one, err_msg=field.name)


def test_load_gives_back_everything_that_was_saved(model, tmp_path):
    path = model.result_.save(tmp_path / "fit")
    assert path.name == "fit.npz"
    assert [each.name for each in tmp_path.iterdir()] == ["fit.npz"]
    assert_equal(model.result_, rt.ReTraceResult.load(path))


@pytest.mark.parametrize(
    "variant",
    [
        lambda test: left_open(test, Reason.CYCLE),
        lambda test: left_open(test, Reason.FOLD),
        known_direction,
        lambda test: doubtful_direction(test, test, shared=False),
    ],
)
def test_the_reason_of_a_direction_survives_saving(model, variant, tmp_path):
    result = dataclasses.replace(model.result_, direction=variant(model.direction_))
    again = rt.ReTraceResult.load(result.save(tmp_path / "fit"))
    assert_equal(result, again)
    assert again.direction.reason is result.direction.reason
    assert again.direction.verdict == result.direction.verdict


SETTINGS = {
    "an array": ({"observation_noise": np.array([0.1, 0.2])}, [0.1, 0.2]),
    "an array with an unknown": ({"observation_noise": np.array([0.1, np.nan])}, [0.1, np.nan]),
    "a matrix": ({"observation_noise": 0.01 * np.eye(2)}, [[0.01, 0.0], [0.0, 0.01]]),
    "a list": ({"observation_noise": [0.1, 0.2]}, [0.1, 0.2]),
    "a tuple": ({"observation_noise": (np.float64(0.1), 0.2)}, [0.1, 0.2]),
    "a scalar of numpy": ({"observation_noise": np.float64(0.1)}, 0.1),
    "an array without axes": ({"observation_noise": np.array(0.1)}, 0.1),
    "a single-precision step": ({"dt": np.float32(0.5)}, 0.5),
    "an integer of numpy": ({"max_iter": np.int64(3)}, 3),
    "a truth value of numpy": ({"verbose": np.bool_(False)}, False),
    "a drift": ({"drift": rt.drift.Polynomial(2)}, str(rt.drift.Polynomial(2))),
    "a score": (
        {"order": rt.paper.ScoreOrder(score=KernelScore())},
        str(rt.paper.ScoreOrder(score=KernelScore())),
    ),
    "a generator": ({"random_state": np.random.default_rng(0)}, None),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_of_every_kind_survive_saving(kind, tmp_path):
    options, expected = SETTINGS[kind]
    X = np.random.default_rng(0).standard_normal((20, 6, 2)).cumsum(axis=1)
    model = rt.ReTrace(**{"dt": 0.1, "n_jobs": 1, **options}).fit(X)
    found = rt.ReTraceResult.load(model.result_.save(tmp_path / "fit")).settings
    assert found.keys() == model.result_.settings.keys()
    assert type(found[next(iter(options))]) is type(expected)
    np.testing.assert_equal(found[next(iter(options))], expected)


def test_a_save_that_fails_leaves_nothing_and_the_old_file_alone(model, tmp_path, monkeypatch):
    path = model.result_.save(tmp_path / "fit")
    before = path.read_bytes()

    def full(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space"):
        model.result_.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["fit.npz"]
    assert path.read_bytes() == before


def test_files_of_another_kind_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"not written by ReTraceResult\.save"):
        rt.ReTraceResult.load(tmp_path / "other.npz")
    np.savez(tmp_path / "pickled.npz", json=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="never read"):
        rt.ReTraceResult.load(tmp_path / "pickled.npz")


def test_the_result_is_frozen(model):
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.result_.dt = 2.0


def test_the_fitted_sde_simulates_from_the_fitted_start(model):
    X = model.result_.sde.simulate(4000, 2, 0.01, random_state=0)
    law = model.result_.initial
    error = np.sqrt(np.diag(law.covariance) / 4000)
    assert np.all(np.abs(X[:, 0].mean(axis=0) - law.mean) < 5 * error)


@pytest.fixture(scope="module")
def recovered():
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    X = sde.simulate(20, 6, dt=0.1, x0=0.1, random_state=1)
    frame = pd.DataFrame(
        {"id": np.repeat(np.arange(20) + 7, 6), "<visit>": np.tile(np.arange(6) * 10, 20), "<x>": X[..., 0].ravel(),
         "y": X[..., 1].ravel()}
    )  # fmt: skip
    return rt.recover(frame, subject="id", slice="<visit>", dt=0.1, random_state=0)


def test_what_is_shown_in_a_session_is_short(recovered):
    model = recovered.model
    for each in (recovered, recovered.panel, model, model.result_, model.direction_, rt.ReTrace()):
        assert len(repr(each)) < 300, each
        assert "\n" not in repr(each)
        assert "array(" not in repr(each)
        text = each._repr_html_()
        assert "<x>" not in text
        assert "<visit>" not in text


def test_what_is_loaded_equals_what_was_saved(recovered, tmp_path):
    result = recovered.model.result_
    again = rt.ReTraceResult.load(result.save(tmp_path / "r"))
    assert again == result
    assert hash(again) == hash(result)
    assert again != dataclasses.replace(result, log_likelihood=result.log_likelihood + 1e-9)
    assert again != dataclasses.replace(result, drift=result.drift * (1 + 1e-15))
    assert again != "a result"


def test_labels_that_are_numbers_stay_numbers(recovered):
    assert recovered.panel.ids[0] == 7
    assert recovered.panel.slices == (0, 10, 20, 30, 40, 50)
    assert recovered.parameters["order"] == [0, 10, 20, 30, 40, 50]
    told = rt.Knowledge(first=0, positions={"50": 5})
    frame = recovered.table
    found = rt.recover(frame, subject="id", slice="<visit>", dt=0.1, knowledge=told, random_state=0)
    assert found.model.result_.direction.known


def test_positions_are_sampled_on_first_use(recovered):
    model = rt.ReTrace(dt=0.1, random_state=0).fit(recovered.panel)
    assert not hasattr(model, "posterior_")
    assert model.position_probabilities_.shape == (6, 6)
    assert 0 <= model.precedence_probability(0, 1) <= 1
    with pytest.raises(NotFittedError):
        _ = rt.ReTrace().position_probabilities_


def test_parameters_are_one_row_each_with_student_intervals(model):
    result = model.result_
    d, n = len(result.names), result.n_trajectories
    table = result.parameters
    assert list(table.columns) == [
        "kind", "variable", "on", "estimate", "std_error", "z", "p_value", "lower", "upper",
    ]  # fmt: skip
    assert dict(table["kind"].value_counts()) == {
        "drift": d * d,
        "offset": d,
        "diffusion": d * (d + 1) // 2,
    }
    drift = table[table["kind"] == "drift"]
    np.testing.assert_array_equal(drift["estimate"].to_numpy().reshape(d, d), result.drift)
    np.testing.assert_array_equal(
        drift["std_error"].to_numpy().reshape(d, d), result.standard_errors.drift
    )
    one = table.loc[f"A[{result.names[1]}, {result.names[0]}]"]
    assert (one["variable"], one["on"]) == result.names[:2]
    assert one["estimate"] == result.drift[1, 0]
    z = one["estimate"] / one["std_error"]
    np.testing.assert_allclose(one["z"], z)
    np.testing.assert_allclose(one["p_value"], 2 * stats.t.sf(abs(z), n - 1))
    reach = stats.t.ppf(0.975, n - 1) * one["std_error"]
    np.testing.assert_allclose([one["lower"], one["upper"]], one["estimate"] + [-reach, reach])
    offset = table.loc[f"c[{result.names[0]}]"]
    assert offset["estimate"] == result.offset[0]
    assert offset["std_error"] == result.standard_errors.offset[0]
    variance = table.loc[f"H[{result.names[0]}, {result.names[0]}]"]
    assert variance["estimate"] == result.diffusion[0, 0]
    assert np.isnan(variance["p_value"])  # zero is no hypothesis of a variance
    assert variance["lower"] < variance["estimate"] < variance["upper"]


def test_confidence_intervals_at_any_level(model):
    result = model.result_
    wide, narrow = result.conf_int(level=0.99), model.conf_int(level=0.5)
    assert list(wide.columns) == ["lower", "upper"]
    assert (wide.index == result.parameters.index).all()
    ratio = stats.t.ppf([0.995, 0.75], result.n_trajectories - 1)
    widths = [(each["upper"] - each["lower"]).to_numpy() for each in (wide, narrow)]
    np.testing.assert_allclose(widths[0] / widths[1], ratio[0] / ratio[1])
    np.testing.assert_array_equal(result.conf_int(), result.parameters[["lower", "upper"]])
    with pytest.raises(ValueError, match="level must be"):
        model.conf_int(level=95)


def test_parameters_of_inputs_noise_and_other_drifts():
    X = np.random.default_rng(0).standard_normal((30, 6, 2)).cumsum(axis=1)
    u = np.random.default_rng(1).standard_normal((30, 6, 1))
    options = {"dt": 0.1, "n_jobs": 1, "random_state": 0, "subjects": "alike"}
    given = rt.ReTrace(**options).fit(X, covariates=u).result_
    found = given.parameters
    assert list(found.index[found["kind"] == "input"]) == ["B[x0, u0]", "B[x1, u0]"]
    np.testing.assert_array_equal(found.loc["B[x1, u0]", "estimate"], given.inputs[1, 0])
    noisy = rt.ReTrace(observation_noise=0.1, **options).fit(X).result_.parameters
    assert list(noisy.index[noisy["kind"] == "noise"]) == ["R[x0, x0]", "R[x1, x1]"]
    assert noisy[noisy["kind"] == "noise"]["std_error"].isna().all()
    curved = rt.ReTrace(drift=rt.drift.Polynomial(2), **options).fit(X).result_.parameters
    assert list(curved.index[:6]) == [
        f"A[x0, {name}]" for name in ("1", "x0", "x1", "x0·x0", "x0·x1", "x1·x1")
    ]
    assert "offset" not in set(curved["kind"])
