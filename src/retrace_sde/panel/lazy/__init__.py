"""Panels that are never read whole: one pass before a fit, and workers that hold their parts."""
