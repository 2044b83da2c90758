"""Values that are probably wrong: cells, rows, trajectories and slices beyond what the process explains."""
