"""The paper's own algorithm, its scores, and the baselines it compares with."""
