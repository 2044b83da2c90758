"""At the door: what users may pass, data in places of their own, and results read back."""
