"""The paper's own algorithm and its options, its scores, and the baselines it compares with."""

from retrace_sde.paper.algorithm1 import ScoreOrder

__all__ = ["ScoreOrder"]
