"""Subjects that differ: whether they do, and what it changes."""
