"""Untrusted files: what a file claims to hold is checked before anything in it is read."""
