"""What the order found supports: direction, choice of model, guards, and what the data cannot tell."""
