"""The direction of time on the order found: models of a panel run both ways round, and tests between the two."""
