"""Data at the entry looked over: equal cells, rows carried forward, values that are probably wrong."""
