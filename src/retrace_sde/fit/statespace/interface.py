"""The linear Gaussian state-space model for trajectories in known order: Kalman smoother and EM.

Observation noise and missing values are allowed. `ReTrace` uses the same code where the order is unknown.
"""

from retrace_sde.fit.statespace.em import EMResult, Known, em
from retrace_sde.fit.statespace.model import StateSpace
from retrace_sde.fit.statespace.smoother import Smoothed, kalman

__all__ = ["EMResult", "Known", "Smoothed", "StateSpace", "em", "kalman"]
