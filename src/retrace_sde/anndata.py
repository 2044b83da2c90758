"""For AnnData, as scanpy's tools do it: the answer is written into the object."""

from __future__ import annotations

from typing import Any

from retrace_sde.io.answers import unstructured
from retrace_sde.io.formats import frame_of_anndata
from retrace_sde.recovery import Recovery, recover


def order(
    adata: Any, *, subject: str, layer: str | None = None, copy: bool = False, **options: Any
) -> Any | None:
    """Put the observations of an AnnData in time order, in place: `obs` and `uns` get the answer (extra `formats`).

    Writes `obs["retrace_position"]` (0 is the
    earliest), `obs["retrace_time"]`, `obs["retrace_position_probability"]`, `obs["retrace_position_reversed"]` where the
    direction is open, and `uns["retrace"]`: drift, offset, diffusion, variables, direction and, as JSON, all parameters.
    Cells of one time point are no trajectory: `subject` must be something that is seen again (a donor, a well, a clone).

    Parameters
    ----------
    adata : AnnData
        One row per observation. Variables are those of X unless `variables` names some.
    subject : str
        Column of `obs` that says whose observation it is.
    layer : str, optional
        Take a layer in place of X.
    copy : bool
        Return a copy that has the answer; else None is returned.
    **options
        `slice`, `time` and `covariates`, columns of `obs`, and the other options of `recover`.

    Examples
    --------
    >>> import anndata, retrace_sde as rt
    >>> table, truth = rt.datasets.lose_time(rt.datasets.load_icu(), time="hour", random_state=0)
    >>> obs = table[["patient", "slice"]].set_index(table.index.astype(str))
    >>> cells = anndata.AnnData(table.drop(columns=["patient", "slice"]).to_numpy(), obs=obs)
    >>> rt.anndata.order(cells, subject="patient", slice="slice", random_state=0, subjects="alike", observation_noise=None)
    >>> "retrace_position" in cells.obs, "retrace" in cells.uns
    (True, True)
    """
    frame = frame_of_anndata(adata, layer=layer)
    options.setdefault("variables", list(adata.var_names))
    found: Recovery = recover(frame.reset_index(drop=True), subject=subject, **options)
    target = adata.copy() if copy else adata
    for name, column in found.columns().items():
        target.obs[f"retrace_{name}"] = column
    target.uns["retrace"] = unstructured(found.panel, found.model.result_)
    return target if copy else None
