"""A benchmark of lost time: panels whose order is hidden, and how well a method finds it.

Simulated mechanisms, shocks that trajectories share, trends from outside, wrong cells, and real panels. A method is a function
`order(X)` of an array (trajectory, slice, variable) that returns an `Answer`, or an order alone; `retrace benchmark` runs it.
"""

from retrace_sde.lost_time.methods import Answer

__all__ = ["Answer"]
