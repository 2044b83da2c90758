"""`python -m retrace_sde` is the command `retrace`."""

from retrace_sde.cli.main import main

main(prog_name="retrace")
