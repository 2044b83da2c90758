"""Other homes of panels, as tables and back: AnnData, xarray, and arrays of three axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from retrace_sde.io.answers import annotate, present
from retrace_sde.io.deferred import nw, pd

EXTRAS = {"openpyxl": "office", "pyreadstat": "office"}
"""The extra that brings a library, where it is not `formats`."""


def need(module: str, extra: str | None = None) -> Any:
    """An optional library, or a hint how to get it."""
    try:
        return import_module(module)
    except ImportError:
        raise ValueError(
            f"this needs {module}, which is not installed: pip install 'retrace-sde[{extra or EXTRAS.get(module, 'formats')}]'."
        ) from None


def door(data: Any) -> str:
    """Where data of this kind are taken in: said where they are not."""
    if isinstance(data, (str, Path)):
        return "A file is read first, pandas.read_csv(…), or fitted by the command `retrace fit`."
    if hasattr(data, "obs") and hasattr(data, "var_names"):
        return "An AnnData is put in order by retrace_sde.anndata.order(adata, subject=…)."
    if hasattr(data, "dims") and hasattr(data, "coords"):
        return "An xarray object becomes a panel by Panel.from_xarray(data, subject=…, slice=…), for ReTrace().fit(panel)."
    if hasattr(data, "columns"):
        return "A table is put in order by recover(df, subject=…), or becomes a panel by Panel.from_frame(df, subject=…)."
    if hasattr(data, "ids") and hasattr(data, "values"):
        return "A panel is fitted by ReTrace().fit(panel)."
    if isinstance(data, (list, tuple)):
        return (
            "A list of arrays (time, variable) becomes a panel by Panel.from_trajectories(list), for "
            "ReTrace(permutation='independent').fit(panel)."
        )
    return "An array (trajectory, time, variable) is fitted by ReTrace().fit(X), or gets names by Panel.from_array(X)."


def main_array(axes: Mapping[str, int]) -> str | None:
    """Of arrays by their numbers of axes, the one (trajectory, time, variable), or the one of several called `values` or `X`."""
    solid = [name for name, count in axes.items() if count == 3]
    named = [name for name in ("values", "X") if name in solid]
    if len(solid) > 1 and not named:
        raise ValueError(f"several arrays have three axes, {', '.join(solid)}: name one 'values'.")
    return (named or solid or [None])[0]


def frame_of_anndata(
    adata: Any, *, layer: str | None = None, use_rep: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """One row per observation, the columns of `obs`, then one for each variable; and the names of the variables."""
    if use_rep is not None:
        return _with_variables(adata, *_representation(adata, use_rep, layer))
    known = ", ".join(map(repr, adata.layers)) or "none"
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"this AnnData has no layer {layer!r}; its layers: {known}.")
    X = adata.X if layer is None else adata.layers[layer]
    if X is None:
        raise ValueError(f"this AnnData has no X; name one of its layers: {known}.")
    return _with_variables(adata, _dense(X), list(adata.var_names))


def _representation(adata: Any, use_rep: str, layer: str | None) -> tuple[Any, list[str]]:
    """An array of `obsm`, and names for its columns: X_pca has pca1, pca2 and so on."""
    if layer is not None:
        raise ValueError("give layer or use_rep, not both: a representation is no layer.")
    if use_rep not in adata.obsm:
        known = ", ".join(map(repr, adata.obsm)) or "none"
        raise ValueError(f"this AnnData has no {use_rep!r} in obsm; it has: {known}.")
    found = _dense(adata.obsm[use_rep])
    return found, [f"{use_rep.removeprefix('X_')}{k + 1}" for k in range(found.shape[1])]


def _with_variables(adata: Any, values: Any, names: list[str]) -> tuple[pd.DataFrame, list[str]]:
    both = sorted(set(adata.obs.columns) & set(names))
    if both:
        raise ValueError(f"{both[0]!r} is both a column of obs and a variable: rename one of them.")
    table = pd.DataFrame(values, index=adata.obs.index, columns=names)
    return pd.concat([adata.obs, table], axis=1), names


def _dense(X: Any) -> Any:
    """A sparse matrix written out, its indices checked first: out of range they would write anywhere in memory."""
    if not hasattr(X, "toarray"):
        return np.asarray(X)
    if hasattr(X, "check_format"):
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise ValueError(f"the sparse matrix of this AnnData is damaged: {error}.") from None
    return X.toarray()


def anndata_of_panel(panel: Any, result: Any, adata: Any | None = None) -> Any:
    """The panel's AnnData, or a new one with one row per observation, with the answer written in."""
    if adata is not None:
        if panel.rows is None or panel.rows.max() >= adata.n_obs:
            raise ValueError("this panel did not come from that AnnData: their rows do not match.")
        return annotate(adata, panel, result)
    who, where = np.nonzero(present(panel))
    obs = pd.DataFrame({"subject": np.asarray(panel.ids)[who]})
    obs["slice"] = np.asarray(panel.slices)[where] if panel.slices else where.astype(str)
    for k, name in enumerate(panel.covariate_names):
        obs[name] = np.asarray(panel.covariates)[who, where, k]
    obs.index = pd.Index([f"{a}:{b}" for a, b in zip(obs["subject"], obs["slice"], strict=True)])
    X = np.asarray(panel.values)[who, where]
    new = need("anndata").AnnData(X, obs=obs, var=pd.DataFrame(index=list(panel.names)))
    rows = np.full(panel.values.shape[:2], -1, dtype=np.intp)
    rows[who, where] = np.arange(len(who))
    return annotate(new, replace(panel, rows=rows), result)


def frame_of_xarray(data: Any, *, variable: str | None = None) -> pd.DataFrame:
    """A Dataset, one column for each of its variables, or a DataArray with a dimension `variable`."""
    if not hasattr(data, "dims"):
        raise ValueError(f"an xarray Dataset or DataArray is needed; got {type(data).__name__}.")
    if not hasattr(data, "data_vars"):
        if variable is None:
            data = data.to_dataset(name=str(data.name or "value"))
        elif variable in data.dims:
            if variable not in data.coords:
                data = data.assign_coords(
                    {variable: [f"x{k}" for k in range(data.sizes[variable])]}
                )
            data = data.to_dataset(dim=variable)
        else:
            raise ValueError(
                f"this DataArray has no dimension {variable!r}; its dimensions: "
                f"{', '.join(repr(str(name)) for name in data.dims)}."
            )
    frame: pd.DataFrame = data.to_dataframe().reset_index()
    return frame.rename(columns=str)


def xarray_of_panel(panel: Any, result: Any) -> Any:
    """A Dataset (subject, position) of the panel in time order, NaN where a trajectory is shorter, and the SDE."""
    xarray = need("xarray")
    x, own = np.asarray(panel.values, dtype=float), not result.shared_order
    x = np.where(present(panel)[:, :, None], x, np.nan)
    order = result.order if own else np.broadcast_to(result.order, x.shape[:2])
    x = np.take_along_axis(x, order[:, :, None], axis=1)
    names = [str(name) for name in panel.names]
    grid = ("subject", "position") if result.times.ndim == 2 else "position"
    coords: dict[str, Any] = {
        "subject": list(panel.ids), "position": np.arange(x.shape[1]), "time": (grid, result.times), "variable": names,
        "by": [str(name) for name in result.feature_names[: result.drift.shape[1]]],
    }  # fmt: skip
    if panel.slices is not None and not own:
        coords["slice"] = ("position", [panel.slices[k] for k in result.order])
    data: dict[str, Any] = {
        name: (("subject", "position"), x[:, :, k]) for k, name in enumerate(names)
    }
    data["drift"] = (("variable", "by"), result.drift)
    data["diffusion"] = (("variable", "to"), result.diffusion)
    return xarray.Dataset(
        data, coords, attrs={"direction": result.direction.verdict, "dt": result.dt}
    )


def frame_in_order(panel: Any, values: Any, order: Any, backend: Any) -> Any:
    """Values in time order as a table: `subject`, `position` and one column per variable."""
    there = np.take_along_axis(
        present(panel), np.broadcast_to(order, panel.values.shape[:2]), axis=1
    )
    who, where = np.nonzero(there)
    columns = {"subject": np.asarray(panel.ids)[who], "position": where}
    columns |= {str(name): np.asarray(values)[who, where, k] for k, name in enumerate(panel.names)}
    return nw.from_dict(columns, backend=backend).to_native()


def frame_of_array(
    values: Any, *, names: Sequence[str] | None = None, ids: Sequence[str] | None = None
) -> pd.DataFrame:
    """An array (trajectory, time, variable) as rows `subject`, `slice` and one column per variable."""
    n, T, d = values.shape
    names = [f"x{k}" for k in range(d)] if names is None else [str(name) for name in names]
    ids = [str(j) for j in range(n)] if ids is None else [str(each) for each in ids]
    if len(names) != d or len(ids) != n:
        raise ValueError(
            f"{len(names)} names and {len(ids)} ids do not fit an array of {n} trajectories of {d} variables."
        )
    frame = pd.DataFrame(np.asarray(values).reshape(n * T, d), columns=names)
    frame.insert(0, "subject", np.repeat(ids, T))
    frame.insert(1, "slice", np.tile(np.arange(T), n).astype(str))
    return frame
