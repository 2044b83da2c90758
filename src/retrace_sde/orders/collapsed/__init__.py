"""Parameters integrated out: the evidence of a shared order in closed form, and draws of orders by it."""
