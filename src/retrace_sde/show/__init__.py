"""To look at: plots, verdicts, the report, the demo."""
