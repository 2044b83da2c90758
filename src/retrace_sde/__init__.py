"""ReTrace gives data its time back.

Trajectories whose time order was lost: recover the order, decide the direction of time or say that
the data cannot tell, and estimate the SDE `dX = b(X) dt + G dW` behind them.
"""

from retrace_sde import (
    baselines,
    drift,
    metrics,
    plots,
    simulate,
    statespace,
    statespace_em,
    subjects,
    treatment,
    tumour,
)
from retrace_sde.direction import DirectionTest
from retrace_sde.knowledge import Knowledge
from retrace_sde.panel import Panel
from retrace_sde.recovery import Recovery, recover
from retrace_sde.report import write_report
from retrace_sde.result import ReTraceResult
from retrace_sde.retrace import ReTrace
from retrace_sde.sde import Gaussian, LinearSDE
from retrace_sde.statespace import StateSpace, kalman
from retrace_sde.statespace_em import em
from retrace_sde.validation import ReTraceWarning

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
    "drift",
    "em",
    "kalman",
    "metrics",
    "plots",
    "recover",
    "simulate",
    "statespace",
    "statespace_em",
    "subjects",
    "treatment",
    "tumour",
    "write_report",
]
