"""ReTrace gives data its time back.

Trajectories whose time order was lost: recover the order, decide the direction of time or say that
the data cannot tell, and estimate the SDE `dX = b(X) dt + G dW` behind them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# What the names are, for readers and type checkers; they are imported when first used.
if TYPE_CHECKING:
    from retrace_sde import anndata, datasets, metrics, paper, progress
    from retrace_sde.after.compare import compare_orders
    from retrace_sde.arrow import arrow_of_time
    from retrace_sde.audit.hidden import HiddenAudit, audit_hidden
    from retrace_sde.audit.times import TimesAudit, audit_times
    from retrace_sde.diagnosis import diagnose
    from retrace_sde.effects import treatment
    from retrace_sde.effects.graph import effect_graph
    from retrace_sde.effects.treatment import TreatmentEffect
    from retrace_sde.evidence.direction.verdict import DirectionTest
    from retrace_sde.fit import subjects
    from retrace_sde.fit.statespace import interface as statespace
    from retrace_sde.io.files import read_table
    from retrace_sde.panel.knowledge import Knowledge
    from retrace_sde.panel.panel import Panel
    from retrace_sde.panel.validation import ReTraceWarning
    from retrace_sde.paper import baselines
    from retrace_sde.process import drift, simulate, tumour
    from retrace_sde.process.sde import Gaussian, LinearSDE
    from retrace_sde.recovery import Recovery, recover
    from retrace_sde.result import ReTraceResult
    from retrace_sde.retrace import ReTrace
    from retrace_sde.show import plots
    from retrace_sde.show.report import write_report

__version__ = "0.3.0"

__all__ = [
    "DirectionTest",
    "Gaussian",
    "HiddenAudit",
    "Knowledge",
    "LinearSDE",
    "Panel",
    "ReTrace",
    "ReTraceResult",
    "ReTraceWarning",
    "Recovery",
    "TimesAudit",
    "TreatmentEffect",
    "anndata",
    "arrow_of_time",
    "audit_hidden",
    "audit_times",
    "baselines",
    "compare_orders",
    "datasets",
    "diagnose",
    "drift",
    "effect_graph",
    "metrics",
    "paper",
    "plots",
    "progress",
    "read_table",
    "recover",
    "simulate",
    "statespace",
    "subjects",
    "treatment",
    "tumour",
    "write_report",
]

_MODULES = {
    "anndata": "anndata",
    "baselines": "paper.baselines",
    "datasets": "datasets",
    "drift": "process.drift",
    "metrics": "metrics",
    "paper": "paper",
    "plots": "show.plots",
    "progress": "progress",
    "simulate": "process.simulate",
    "statespace": "fit.statespace.interface",
    "subjects": "fit.subjects",
    "treatment": "effects.treatment",
    "tumour": "process.tumour",
}
"""Modules that are known under a name of their own."""

_HOMES = {
    "DirectionTest": "evidence.direction.verdict",
    "Gaussian": "process.sde",
    "HiddenAudit": "audit.hidden",
    "Knowledge": "panel.knowledge",
    "LinearSDE": "process.sde",
    "Panel": "panel.panel",
    "ReTrace": "retrace",
    "ReTraceResult": "result",
    "ReTraceWarning": "panel.validation",
    "Recovery": "recovery",
    "TimesAudit": "audit.times",
    "TreatmentEffect": "effects.treatment",
    "arrow_of_time": "arrow",
    "audit_hidden": "audit.hidden",
    "audit_times": "audit.times",
    "compare_orders": "after.compare",
    "diagnose": "diagnosis",
    "effect_graph": "effects.graph",
    "read_table": "io.files",
    "recover": "recovery",
    "write_report": "show.report",
}
"""The module in which each other name lives."""


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for (PEP 562): most programs use few of them."""
    if name in _MODULES:
        found = import_module(f"{__name__}.{_MODULES[name]}")
    elif name in _HOMES:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
