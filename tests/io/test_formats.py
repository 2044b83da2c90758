"""AnnData, xarray, aeon and files: the same numbers arrive, and answers go back to the right rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.io.files import read_table
from retrace_sde.io.formats import frame_of_array
from retrace_sde.io.writing import write_table

anndata = pytest.importorskip("anndata")
xarray = pytest.importorskip("xarray")

DT = 0.05


@pytest.fixture(scope="module")
def shuffled():
    sde = rt.simulate.random_irreversible_sde(3, random_state=0)
    X = sde.simulate(40, 12, DT, x0=0.1, random_state=1)
    return rt.simulate.shuffle(X, random_state=2)


@pytest.fixture(scope="module")
def adata(shuffled):
    """Observations in random order, as they lie in a file."""
    table = frame_of_array(shuffled[0], names=["RB1", "LCK", "JUN"])
    table = table.sample(frac=1, random_state=3)
    obs = table[["subject", "slice"]].set_index(table.index.map(lambda k: f"cell{k}"))
    obs.columns = ["donor", "plate"]
    values = table[["RB1", "LCK", "JUN"]].to_numpy()
    return anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=["RB1", "LCK", "JUN"]))


def by_label(panel, names="xyz"):
    """Values in the order of the labels, however the table was sorted."""
    who = np.argsort([int(name) for name in panel.ids])
    when = np.argsort([int(name) for name in panel.slices])
    return panel.values[who][:, when]


def test_anndata_there_and_back(shuffled, adata):
    X, truth = shuffled
    panel = rt.anndata.panel(adata, subject="donor", slice="plate")
    np.testing.assert_array_equal(by_label(panel), X)
    assert panel.names == ("RB1", "LCK", "JUN")
    model = rt.ReTrace(dt=DT, drift="affine").fit(panel)
    annotated = rt.anndata.annotate(panel, model, adata=adata)
    assert "retrace_time" not in adata.obs
    position = np.argsort(truth)[adata.obs["plate"].astype(int)]
    np.testing.assert_array_equal(annotated.obs["retrace_position"], position)
    np.testing.assert_allclose(annotated.obs["retrace_time"], position * DT)
    np.testing.assert_array_equal(annotated.uns["retrace"]["drift"], model.drift_)
    told = json.loads(annotated.uns["retrace"]["parameters"])
    assert told["direction"]["identified"] is True
    new = rt.anndata.annotate(panel, model)
    assert new.shape == adata.shape
    first = new.obs["retrace_position"] == 0
    assert (new.obs["slice"][first] == str(truth[0])).all()


@pytest.mark.filterwarnings("ignore")  # of the writers, on versions of their formats
def test_anndata_survives_its_file_and_its_store(adata, shuffled, tmp_path):
    panel = rt.anndata.panel(adata, subject="donor", slice="plate")
    model = rt.ReTrace(dt=DT).fit(panel)
    rt.anndata.annotate(panel, model, adata=adata).write_h5ad(tmp_path / "x.h5ad")
    again = anndata.read_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(again.uns["retrace"]["diffusion"], model.diffusion_)
    adata.write_zarr(tmp_path / "x.zarr")
    for name in ("x.h5ad", "x.zarr"):
        table = read_table(tmp_path / name)
        assert {"obs_name", "donor", "plate"} <= set(table.columns)
        found = rt.Panel.from_frame(
            table, subject="donor", slice="plate", variables=["RB1", "LCK", "JUN"]
        )
        np.testing.assert_array_equal(by_label(found), shuffled[0])


def test_anndata_layers_and_clashes(adata):
    other = adata.copy()
    other.layers["log"] = np.asarray(adata.X) * 2
    panel = rt.anndata.panel(other, subject="donor", slice="plate", layer="log")
    plain = rt.anndata.panel(adata, subject="donor", slice="plate")
    np.testing.assert_array_equal(panel.values, 2 * plain.values)
    with pytest.raises(ValueError, match="no layer 'raw'; its layers: 'log'"):
        rt.anndata.panel(other, subject="donor", layer="raw")
    other.obs["RB1"] = 0
    with pytest.raises(ValueError, match="'RB1' is both"):
        rt.anndata.panel(other, subject="donor")


@pytest.mark.filterwarnings("ignore")  # of the writer, on text in zarr
def test_xarray_datasets_and_arrays(shuffled, tmp_path):
    X = shuffled[0]
    array = xarray.DataArray(
        X,
        dims=["person", "visit", "gene"],
        coords={"gene": ["a", "b", "c"], "visit": [f"{t}" for t in range(X.shape[1])]},
    )
    panel = rt.Panel.from_xarray(array, subject="person", slice="visit", variable="gene")
    np.testing.assert_array_equal(by_label(panel), X)
    assert panel.names == ("a", "b", "c")
    bare = xarray.DataArray(X, dims=["person", "visit", "gene"])
    panel = rt.Panel.from_xarray(bare, subject="person", slice="visit", variable="gene")
    assert panel.names == ("x0", "x1", "x2")
    dataset = array.to_dataset(dim="gene").assign_coords(age=("person", np.arange(40.0)))
    panel = rt.Panel.from_xarray(dataset, subject="person", slice="visit")
    np.testing.assert_array_equal(by_label(panel), X)
    dataset.to_zarr(tmp_path / "x.zarr")
    found = rt.Panel.from_frame(
        read_table(tmp_path / "x.zarr"), subject="person", slice="visit", variables=["a", "b", "c"]
    )
    np.testing.assert_array_equal(by_label(found), X)
    with pytest.raises(ValueError, match="no dimension 'genes'; its dimensions: 'person'"):
        rt.Panel.from_xarray(array, subject="person", variable="genes")


def test_aeon_has_its_channels_before_time(shuffled):
    X = shuffled[0]
    panel = rt.Panel.from_aeon(X.transpose(0, 2, 1), names=["a", "b", "c"])
    np.testing.assert_array_equal(panel.values, X)
    ragged = rt.Panel.from_aeon([X[0].T, X[1, :5].T])
    assert ragged.lengths.tolist() == [12, 5]
    np.testing.assert_array_equal(ragged.values[1, :5], X[1, :5])
    with pytest.raises(ValueError, match="case, channel, time"):
        rt.Panel.from_aeon(X[0])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".npz"])
def test_tables_survive_their_files(suffix, tmp_path):
    table = pd.DataFrame(
        {"who": ["007", "007", "ä,b"], "a": [0.1 + 0.2, 1e-300, np.nan], "n": [1, 2, 3]}
    )
    path = tmp_path / f"t{suffix}"
    if suffix == ".tsv":
        table.to_csv(path, sep="\t", index=False)
    else:
        write_table(table, path)
    again = read_table(path, text=["who"])
    assert list(again.columns) == ["who", "a", "n"]
    assert list(again["who"]) == list(table["who"])
    np.testing.assert_array_equal(again["a"], table["a"])
    assert again["n"].dtype.kind == "i"


def test_an_array_in_a_file_brings_its_names(tmp_path):
    X = np.random.default_rng(0).standard_normal((4, 5, 2))
    np.savez(tmp_path / "x.npz", X=X, names=["a", "b"], ids=["p", "q", "r", "s"])
    table = read_table(tmp_path / "x.npz")
    panel = rt.Panel.from_frame(table, subject="subject", slice="slice")
    np.testing.assert_array_equal(panel.values, X)
    assert panel.ids == ("p", "q", "r", "s")
    assert panel.names == ("a", "b")


def test_a_missing_library_is_named_with_the_cure(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "anndata", None)
    monkeypatch.setattr("retrace_sde.io.untrusted.trial.forkable", lambda: True)
    (tmp_path / "x.h5ad").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"pip install 'retrace-sde\[formats\]'"):
        read_table(tmp_path / "x.h5ad")


ARRAY = np.zeros((4, 5, 2))


@pytest.mark.parametrize(
    ("data", "way"),
    [
        (pd.DataFrame({"a": [1.0]}), "recover"),
        ([ARRAY[0], ARRAY[1, :3]], "from_trajectories"),
        ("visits.csv", "retrace fit"),
        (Path("visits.csv"), "retrace fit"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_fit_points_to_the_right_door(data, way):
    with pytest.raises(ValueError, match=way):
        rt.ReTrace().fit(data)


@pytest.mark.parametrize(
    ("data", "way"),
    [
        (ARRAY, "fit"),
        ([ARRAY[0], ARRAY[1, :3]], "from_trajectories"),
        ("visits.csv", "retrace fit"),
        (rt.Panel.from_array(ARRAY), "panel"),
        (xarray.DataArray(ARRAY), "from_xarray"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_recover_points_to_the_right_door(data, way):
    with pytest.raises(ValueError, match=way):
        rt.recover(data, subject="id")
