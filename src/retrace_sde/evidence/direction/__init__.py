"""The direction of time on the order found: models of a panel run in both directions, and tests between the two."""
