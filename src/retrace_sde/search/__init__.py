"""Orders and parameters both unknown: the models, the search, and the average over orders."""
