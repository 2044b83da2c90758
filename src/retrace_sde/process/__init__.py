"""What may have made the data: linear SDEs, drifts, simulations, tumours."""
