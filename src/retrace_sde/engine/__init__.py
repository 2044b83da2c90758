"""Orders and parameters both unknown: the search, the average over orders, direction and guards."""
