"""The local page: drop a table, see its time come back."""
