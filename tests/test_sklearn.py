"""As far as three axes go: tags, clones, cross-validation and grid search over trajectories, tables out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context, utils
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score

import retrace_sde as rt
from retrace_sde.recovery import Options

N, T, DT = 30, 6, 0.1


@pytest.fixture(scope="module")
def values():
    sde = rt.simulate.random_irreversible_sde(2, random_state=0)
    return sde.simulate(N, T, DT, x0=0.1, random_state=1)


@pytest.fixture(scope="module")
def panel(values):
    frame = pd.DataFrame({"id": np.repeat(np.arange(N), T), "v": np.tile(np.arange(T), N)})
    frame = frame.assign(x=values[..., 0].ravel(), y=values[..., 1].ravel())
    return rt.Panel.from_frame(frame, subject="id", slice="v", variables=["x", "y"], dt=DT)


def test_tags_say_three_axes_and_missing_values():
    if not hasattr(utils, "get_tags"):
        pytest.skip("scikit-learn has tags of this kind from version 1.6 on")
    tags = utils.get_tags(rt.ReTrace())
    assert tags.input_tags.three_d_array
    assert not tags.input_tags.two_d_array
    assert tags.input_tags.allow_nan
    assert not tags.target_tags.required


def test_cross_validation_splits_trajectories_of_arrays_and_panels_alike(values, panel):
    model = rt.ReTrace(dt=DT, subjects="alike", random_state=0)
    scores = [cross_val_score(model, X, cv=KFold(3)) for X in (values, panel)]
    assert scores[0].shape == (3,)
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
    want = clone(model).fit(values[10:]).score(values[:10])
    np.testing.assert_allclose(scores[0][0], want)


def test_a_grid_search_takes_a_panel(panel):
    search = GridSearchCV(
        rt.ReTrace(subjects="alike", random_state=0), {"drift": ["affine", "linear"]}, cv=2
    ).fit(panel)
    assert search.best_params_["drift"] in ("affine", "linear")
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("chosen", [slice(3, 9), np.arange(N) % 3 == 0, [4, 2], 5, np.array([-1])])
def test_a_part_of_a_panel_is_a_panel(chosen, panel):
    kept = np.atleast_1d(np.arange(N)[chosen])
    part = panel[chosen]
    np.testing.assert_array_equal(part.values, panel.values[kept])
    np.testing.assert_array_equal(part.rows, panel.rows[kept])
    assert part.ids == tuple(kept.tolist())
    assert part.slices == panel.slices
    assert (len(part), part.shape) == (len(kept), (len(kept), T, 2))


def test_own_times_lengths_and_inputs_are_split_with_their_trajectories():
    frame = pd.DataFrame(
        {"id": list("aaabbbbcccc"), "t": [2.0, 0, 1, 3, 2, 1, 0, 0, 1, 2, 3], "u": range(11)}
    )
    frame = frame.assign(x=np.random.default_rng(0).normal(size=11))
    panel = rt.Panel.from_frame(frame, subject="id", time="t", variables="x", covariates="u")
    part = panel[[2, 0]]
    np.testing.assert_array_equal(part.times, panel.times[[2, 0]])
    np.testing.assert_array_equal(part.lengths, [4, 3])
    np.testing.assert_array_equal(part.covariates, panel.covariates[[2, 0]])
    with pytest.raises(TypeError, match="trajectories only"):
        _ = panel[0, 1]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_tables_out_where_asked_for(kind, values, panel):
    pytest.importorskip(kind)
    model = rt.ReTrace(dt=DT, random_state=0).set_output(transform=kind).fit(panel)
    shuffled = values[:, [3, 1, 0, 2, 5, 4]]
    table = model.reorder(shuffled)
    assert type(table).__module__.split(".")[0] == kind
    assert list(table.columns) == ["subject", "position", "x0", "x1"]
    plain = clone(model).set_output(transform="default").fit(panel).reorder(shuffled)
    np.testing.assert_array_equal(np.asarray(table["x1"]), plain[..., 1].ravel())
    assert clone(model)._sklearn_output_config == {"transform": kind}
    with pytest.raises(ValueError, match="transform must be one of"):
        model.set_output(transform="csv")


def test_xarray_in_and_out(values):
    xarray = pytest.importorskip("xarray")
    data = xarray.DataArray(
        values[:, [3, 1, 0, 2, 5, 4]], dims=("mouse", "plate", "gene"),
        coords={"mouse": [f"m{j}" for j in range(N)], "plate": list("DBACFE"), "gene": ["g", "h"]},
    )  # fmt: skip
    panel = rt.Panel.from_xarray(data, subject="mouse", slice="plate", variable="gene", dt=DT)
    model = rt.ReTrace(random_state=0).fit(panel)
    found = panel.to_xarray(model)
    assert "".join(found["slice"].values) == "ABCDEF"
    np.testing.assert_allclose(found["g"].values, values[..., 0])
    np.testing.assert_allclose(found["time"].values, np.arange(T) * DT)
    np.testing.assert_array_equal(found["drift"].values, model.drift_)
    assert found.attrs["direction"] == model.direction_.verdict


def test_transform_restores_the_order(values, panel):
    lost, truth = rt.simulate.shuffle(values, random_state=3)
    model = rt.ReTrace(dt=DT, subjects="alike", random_state=0).fit(lost)
    np.testing.assert_array_equal(model.transform(lost), lost[:, model.order_])
    again = rt.ReTrace(dt=DT, subjects="alike", random_state=0).fit_transform(lost)
    np.testing.assert_array_equal(again, lost[:, model.order_])
    assert list(model.set_output(transform="pandas").transform(lost[:9]).columns[:2]) == ["subject", "position"]  # fmt: skip
    assert sorted(truth) == sorted(model.order_)


METHODS = {
    "forecast": (np.zeros((3, 4, 2)), 1),
    "precedence_probability": (0, 1),
    **dict.fromkeys(("impute", "place", "reorder", "score", "transform"), (np.zeros((3, 4, 2)),)),
    **dict.fromkeys(("precedence", "reorder_samples"), (np.zeros((3, 4, 2)),)),
    **dict.fromkeys(("summary", "conf_int", "sample_orders", "bootstrap_errors"), ()),
}
BEFORE_FIT = {
    "fit",
    "fit_transform",
    "set_output",
    "get_params",
    "set_params",
    *rt.ReTrace().get_params(),
}
OTHERS = {"get_metadata_routing", "set_fit_request"}


@pytest.mark.parametrize(
    "name", sorted({each for each in dir(rt.ReTrace) if each[0] != "_"} - BEFORE_FIT - OTHERS)
)
def test_before_fit_everything_says_so(name):
    with pytest.raises(NotFittedError):
        getattr(rt.ReTrace(), name)(*METHODS.get(name, ()))


def test_options_of_recover_are_typed():
    extra = {"group", "order_known", "bootstrap"}
    assert set(Options.__annotations__) == set(rt.ReTrace().get_params()) | extra


def test_the_package_lists_its_public_names_only():
    assert set(dir(rt)) == {*rt.__all__, "__version__"}


def test_settings_are_shown_and_changed_as_scikit_learn_does():
    model = rt.ReTrace(dt=DT, drift="linear")
    assert repr(model) == "ReTrace(dt=0.1, drift='linear')"
    assert model.set_params(drift="affine").get_params()["drift"] == "affine"
    with pytest.raises(ValueError, match="Invalid parameter 'drif'"):
        model.set_params(drif="affine")


def test_groups_are_routed_where_they_are_asked_for(values):
    groups = np.arange(N) // 3
    with config_context(enable_metadata_routing=True):
        model = rt.ReTrace(dt=DT, random_state=0).set_fit_request(groups=True)
        asked = clone(model).get_metadata_routing().fit.requests
        assert asked["groups"] is True
        scores = cross_val_score(model, values, cv=GroupKFold(2), params={"groups": groups})
    assert np.isfinite(scores).all()
