"""For AnnData, as scanpy's tools do it: the answer is written into the object."""

from __future__ import annotations

import warnings
from typing import Any

from retrace_sde.io.answers import unstructured
from retrace_sde.io.formats import anndata_of_panel, frame_of_anndata
from retrace_sde.panel.panel import Panel
from retrace_sde.panel.validation import ReTraceWarning
from retrace_sde.recovery import Recovery, recover

__all__ = ["annotate", "order", "panel"]

MANY_GENES = 100
"""Variables from which a representation in few dimensions is advised: A has as many entries as their square."""


def panel(
    adata: Any,
    *,
    subject: str,
    layer: str | None = None,
    use_rep: str | None = None,
    **options: Any,
) -> Panel:
    """A panel from an AnnData (extra `formats`).

    Parameters
    ----------
    adata : AnnData
        One row per observation. Variables are those of X unless `variables` names some.
    subject : str
        Column of `obs` that says whose observation it is.
    layer : str, optional
        Take a layer in place of X.
    use_rep : str, optional
        Take a representation of `obsm`, such as "X_pca"; its variables are pca1, pca2 and so on.
    **options
        `slice`, `time` and `covariates`, columns of `obs`, and the others of `Panel.from_frame`.

    Examples
    --------
    >>> import anndata, retrace_sde as rt
    >>> table = rt.datasets.load_icu()
    >>> obs = table[["patient", "hour"]].set_index(table.index.astype(str))
    >>> cells = anndata.AnnData(table.iloc[:, 2:].to_numpy(), obs=obs)
    >>> rt.anndata.panel(cells, subject="patient", slice="hour").values.shape
    (120, 12, 5)
    """
    frame = _frame(adata, options, layer=layer, use_rep=use_rep)
    return Panel.from_frame(frame, subject=subject, **options)


def _frame(adata: Any, options: dict[str, Any], **where: str | None) -> Any:
    """The table of an AnnData; its variables join the options unless they name some, with a warning where they are many."""
    frame, names = frame_of_anndata(adata, **where)
    if options.get("variables") is None:
        options["variables"] = names
        if len(names) > MANY_GENES:
            warnings.warn(
                f"There are {len(names)} variables, and so {len(names) ** 2:,} effects to estimate: order principal components "
                "instead (scanpy.pp.pca(adata, n_comps=10), then use_rep='X_pca'), or name a few with variables=[…].",
                ReTraceWarning,
                stacklevel=3,
            )
    return frame


def annotate(panel: Panel, model: Any, *, adata: Any | None = None) -> Any:
    """The panel as an AnnData, or a copy of the AnnData it came from, with the answer of a fit (extra `formats`).

    `obs` gets `retrace_position` (0 is the earliest) and `retrace_time`; `uns["retrace"]` the parameters.

    Parameters
    ----------
    panel : Panel
        What the model was fitted to.
    model : ReTrace
        Fitted.
    adata : AnnData, optional
        Where the panel came from.

    Examples
    --------
    >>> import retrace_sde as rt
    >>> Y = rt.simulate.random_irreversible_sde(2, random_state=0).simulate(10, 6, 0.05, random_state=1)
    >>> panel = rt.Panel.from_array(Y, dt=0.05)
    >>> "retrace_position" in rt.anndata.annotate(panel, rt.ReTrace(random_state=0).fit(panel)).obs
    True
    """
    return anndata_of_panel(panel, model.result_, adata)


def order(
    adata: Any,
    *,
    subject: str,
    layer: str | None = None,
    use_rep: str | None = None,
    copy: bool = False,
    **options: Any,
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
    use_rep : str, optional
        Take a representation of `obsm`, such as "X_pca"; its variables are pca1, pca2 and so on.
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
    frame = _frame(adata, options, layer=layer, use_rep=use_rep)
    found: Recovery = recover(frame.reset_index(drop=True), subject=subject, **options)
    target = adata.copy() if copy else adata
    for name, column in found.columns().items():
        target.obs[f"retrace_{name}"] = column
    target.uns["retrace"] = unstructured(found.panel, found.model.result_)
    return target if copy else None
