"""Time stamps that may be wrong: a law of steps, the true times under it, and which stamps are wrong."""
