"""`retrace_sde.anndata.order` writes into the object, as scanpy's tools do."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt

anndata = pytest.importorskip("anndata")


@pytest.fixture(scope="module")
def shuffled():
    sde = rt.simulate.random_irreversible_sde(3, setting="stable", random_state=0)
    X = sde.simulate(40, 8, dt=0.1, x0=0.1, random_state=1)
    lost, truth = rt.simulate.shuffle(X, random_state=2)
    obs = pd.DataFrame(
        {"donor": np.repeat([f"D{j}" for j in range(40)], 8), "plate": np.tile([f"P{k}" for k in range(8)], 40)},
        index=[f"cell{k}" for k in range(320)],
    )  # fmt: skip
    rows = np.random.default_rng(3).permutation(320)
    adata = anndata.AnnData(lost.reshape(-1, 3), obs=obs, var=pd.DataFrame(index=["a", "b", "c"]))
    return adata[rows].copy(), {f"P{k}": place for place, k in enumerate(truth)}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_positions_are_written_next_to_the_cells(shuffled, tmp_path):
    adata, place = shuffled
    before = adata.copy()
    assert rt.anndata.order(adata, subject="donor", slice="plate", dt=0.1, random_state=0) is None
    want = adata.obs["plate"].map(place).to_numpy(dtype=float)
    np.testing.assert_array_equal(adata.obs["retrace_position"], want)
    np.testing.assert_allclose(adata.obs["retrace_time"], want * 0.1)
    assert adata.obs["retrace_position_probability"].between(0, 1).all()
    assert list(adata.uns["retrace"]["variables"]) == ["a", "b", "c"]
    told = json.loads(adata.uns["retrace"]["parameters"])
    assert told["direction"]["verdict"] == adata.uns["retrace"]["direction"]
    np.testing.assert_array_equal(adata.X, before.X)
    adata.write_h5ad(tmp_path / "a.h5ad")
    assert (anndata.read_h5ad(tmp_path / "a.h5ad").obs["retrace_position"] == want).all()


def test_a_copy_leaves_the_object_as_it_was(shuffled):
    adata, _ = shuffled
    before = list(adata.obs.columns)
    found = rt.anndata.order(
        adata, subject="donor", slice="plate", variables=["a", "b"], dt=0.1, copy=True, random_state=0
    )  # fmt: skip
    assert list(adata.obs.columns) == before
    assert list(found.uns["retrace"]["variables"]) == ["a", "b"]


def test_recover_points_to_the_right_door(shuffled):
    with pytest.raises(ValueError, match=r"retrace_sde\.anndata\.order"):
        rt.recover(shuffled[0], subject="donor")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_representation_takes_the_place_of_x(shuffled):
    adata = shuffled[0].copy()
    adata.obsm["X_pca"] = np.asarray(adata.X)[:, :2] * 3
    found = rt.anndata.order(
        adata, subject="donor", slice="plate", use_rep="X_pca", dt=0.1, copy=True, random_state=0
    )
    assert list(found.uns["retrace"]["variables"]) == ["pca1", "pca2"]
    with pytest.raises(ValueError, match=r"no 'X_umap' in obsm; it has: 'X_pca'"):
        rt.anndata.panel(adata, subject="donor", use_rep="X_umap")
    with pytest.raises(ValueError, match="not both"):
        rt.anndata.panel(adata, subject="donor", use_rep="X_pca", layer="counts")


def test_hundreds_of_genes_are_pointed_to_principal_components(shuffled):
    adata, _ = shuffled
    rng = np.random.default_rng(0)
    many = anndata.AnnData(rng.normal(size=(adata.n_obs, 300)), obs=adata.obs.copy())
    with pytest.warns(rt.ReTraceWarning, match=r"300 variables.*use_rep='X_pca'"):
        rt.anndata.panel(many, subject="donor", slice="plate")


def test_a_snapshot_is_recognised(shuffled):
    adata = shuffled[0].copy()
    adata.obs["cell"] = adata.obs_names
    with pytest.raises(ValueError, match="has one observation: a snapshot"):
        rt.anndata.order(adata, subject="cell")
    frame = pd.DataFrame({"cell": list("abcd"), "x": [1.0, 2, 3, 4], "s": [0, 1, 0, 1]})
    with pytest.raises(ValueError, match="seen again"):
        rt.recover(frame, subject="cell", slice="s")
