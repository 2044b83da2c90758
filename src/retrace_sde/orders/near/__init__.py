"""Thousands of slices: only near pairs are considered, never all T²."""
