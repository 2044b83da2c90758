"""Entry point of the command `retrace`: it runs before everything that takes long to import, so that Ctrl-C is answered there too."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

COLLECTED_FROM = 200_000
"""New objects from which Python looks for garbage. Imports make as many, which stay: looked through every 700, its default, they take .15 of 1.45 s of CPU
time of `retrace fit` of a small table."""


def run() -> None:
    """Import the commands, and run one."""
    gc.set_threshold(COLLECTED_FROM)
    for stream in range(3):
        try:
            os.fstat(stream)
        except (
            OSError
        ):  # closed: a file opened next would take its place, and get what is said to it
            os.open(os.devnull, os.O_RDWR)
    before = signal.signal(signal.SIGINT, _stop)
    from retrace_sde.cli.main import main

    signal.signal(signal.SIGINT, before)
    main(prog_name="retrace")


def _stop(number: int, frame: Any) -> None:
    """Nothing has been begun, and an exception could get lost in somebody's import."""
    os.write(2, b"retrace: stopped.\n")
    os._exit(130)
