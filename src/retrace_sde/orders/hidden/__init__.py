"""Orders of observations behind noise: the likelihood of what was seen, states summed out."""
