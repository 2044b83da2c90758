"""The state-space model: noise and missing values, an order known."""
