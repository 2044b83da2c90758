"""`python -m retrace_sde` is the command `retrace`."""

from retrace_sde.cli.entry import run

run()
