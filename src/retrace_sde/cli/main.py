"""The command `retrace`. Exit codes: 0 done; 2 the command or the data cannot be used; 1 a bug."""

from __future__ import annotations

from importlib import import_module

import click

from retrace_sde import __version__
from retrace_sde.cli.common import OneLine

COMMANDS = {
    "app": "Open a local page: drop a table, see it put in time order.",
    "arrow": "Say which way time runs in FILE, whose rows are in order.",
    "audit": "Find wrong time stamps in FILE, or what it gives away without them (--hidden).",
    "benchmark": "Compare methods on panels whose order is hidden.",
    "demo": "Shuffle built-in data, recover their order, and compare with the truth.",
    "diagnose": "Say what can be learned from FILE, before any fit.",
    "effect": "Estimate what treatment does to the subjects of FILE.",
    "fit": "Recover the order of FILE's rows, its direction, and its SDE.",
    "forecast": "Forecast the next observations of FILE's subjects, with intervals.",
    "place": "Put new subjects in order by a saved fit.",
    "reproduce": "Run the paper's experiments, beside stronger methods.",
    "simulate": "Simulate subjects from a random SDE and shuffle their time order.",
    "warmup": "Compile what fits use, once, so that later calls start at once.",
}
"""Each command, in the file of this room that has its name, and what it does in a line."""

SHARED_FILES = {"place": "forecast"}
"""Commands that stand in another's file: both use a saved fit."""


class Commands(OneLine):
    """Commands that are imported when they are asked for, so that `--help` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One of them, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"retrace_sde.cli.{SHARED_FILES.get(cmd_name, cmd_name)}")
        found: click.Command = getattr(module, cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What each does, without importing it."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="retrace")
def main() -> None:
    """Recover the time order, the direction of time and the SDE of shuffled data."""
