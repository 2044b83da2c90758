"""Thousands of slices: only near pairs are looked at, never all T²."""
