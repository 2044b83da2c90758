"""ReTrace gives data its time back.

Trajectories whose time order was lost: recover the order, decide the direction of time or say that
the data cannot tell, and estimate the SDE `dX = b(X) dt + G dW` behind them.
"""

from retrace_sde import metrics, progress
from retrace_sde.after.compare import compare_orders
from retrace_sde.data.knowledge import Knowledge
from retrace_sde.data.panel import Panel
from retrace_sde.data.validation import ReTraceWarning
from retrace_sde.effects import treatment
from retrace_sde.effects.graph import effect_graph
from retrace_sde.engine.direction import DirectionTest
from retrace_sde.estimate import subjects
from retrace_sde.estimate.kalman import em as statespace_em
from retrace_sde.estimate.kalman import smoother as statespace
from retrace_sde.estimate.kalman.em import em
from retrace_sde.estimate.kalman.smoother import StateSpace, kalman
from retrace_sde.paper import baselines
from retrace_sde.process import drift, simulate, tumour
from retrace_sde.process.sde import Gaussian, LinearSDE
from retrace_sde.recovery import Recovery, recover
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace
from retrace_sde.show import plots
from retrace_sde.show.report import write_report

__version__ = "0.1.0"

__all__ = [
    "DirectionTest",
    "Gaussian",
    "Knowledge",
    "LinearSDE",
    "Panel",
    "ReTrace",
    "ReTraceResult",
    "ReTraceWarning",
    "Recovery",
    "StateSpace",
    "baselines",
    "compare_orders",
    "drift",
    "effect_graph",
    "em",
    "kalman",
    "metrics",
    "plots",
    "progress",
    "recover",
    "simulate",
    "statespace",
    "statespace_em",
    "subjects",
    "treatment",
    "tumour",
    "write_report",
]
