"""For AnnData, as scanpy's tools do it: the answer is written into the object."""

from __future__ import annotations

from typing import Any

from retrace_sde.data.answers import unstructured
from retrace_sde.data.formats import frame_of_anndata
from retrace_sde.recovery import Recovery, recover


def order(
    adata: Any, *, subject: str, layer: str | None = None, copy: bool = False, **options: Any
) -> Any | None:
    """Put the observations of an AnnData in time order, in place: `obs` and `uns` get the answer.

    `subject`, `slice`, `time` and `covariates` name columns of `obs`; variables are those of X (or of a `layer`) unless
    `variables` names some; the other options are those of `recover`. Writes `obs["retrace_position"]` (0 is the
    earliest), `obs["retrace_time"]`, `obs["retrace_position_probability"]`, `obs["retrace_position_reversed"]` where the
    direction is open, and `uns["retrace"]`: drift, offset, diffusion, variables, direction and, as JSON, all parameters.

    Returns None, or with `copy=True` a copy of `adata` that has the answer.
    """
    frame = frame_of_anndata(adata, layer=layer)
    options.setdefault("variables", list(adata.var_names))
    found: Recovery = recover(frame.reset_index(drop=True), subject=subject, **options)
    target = adata.copy() if copy else adata
    for name, column in found.columns().items():
        target.obs[f"retrace_{name}"] = column
    target.uns["retrace"] = unstructured(found.panel, found.model.result_)
    return target if copy else None
