"""What users bring: panels, tables, files, and what they know of time."""
