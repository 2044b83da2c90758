"""`retrace app`: a local page to drop a table on."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from retrace_sde.cli.common import refusing, say
from retrace_sde.io.formats import need


@contextmanager
def _private_page(link: str) -> Iterator[Path]:
    """A file that leads to the link and that only its user can read: a browser's command line is seen by everyone on the machine."""
    with TemporaryDirectory(prefix="retrace-link-") as folder:
        page = Path(folder) / "open.html"
        with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">')
        yield page


@contextmanager
def _ended_by_hangup(server: Any) -> Iterator[None]:
    """A closed terminal ends the server in order, as Ctrl-C does: uvicorn itself heeds SIGINT and SIGTERM only."""
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:  # Windows; nohup
        yield
        return
    heard = []

    def end(number: int, frame: Any) -> None:
        heard.append(number)
        server.should_exit = True

    before = signal.signal(hangup, end)
    try:
        yield
    finally:
        signal.signal(hangup, before)
    if heard:
        sys.exit(128 + hangup)


@click.command("app")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 [default: any free one].")  # fmt: skip
@click.option("--max-upload", type=click.IntRange(min=1), default=300, show_default=True, metavar="MB",
              help="Largest file that may be dropped on the page.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the link, open nothing.")
def app(file: Path | None, port: int, max_upload: int, no_browser: bool) -> None:
    """Open a local page: drop a table, see it put in time order.

    Nothing leaves the machine; the link works on it only, and until the command is stopped with Ctrl-C.
    """
    with refusing():
        uvicorn = need("uvicorn", "app")
        need("starlette", "app")
        if file is not None and not file.exists():
            raise ValueError(f"{file} does not exist.")
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(64)  # who follows the link at once waits, and is not refused
    from retrace_sde.app.server import application

    port, token = listening.getsockname()[1], secrets.token_urlsafe(24)
    served = application(token=token, port=port, max_upload=max_upload << 20, file=file)
    link = f"http://127.0.0.1:{port}/?token={token}"
    say("Open", link)
    say("Stop", "Ctrl-C; uploads and results that were not downloaded are deleted then.")
    config = uvicorn.Config(served, log_level="error", access_log=False, server_header=False, timeout_graceful_shutdown=3)  # fmt: skip
    server = uvicorn.Server(config)
    served.state.site.ending = lambda: server.should_exit
    with (
        listening,
        _private_page(link) as page,
        _ended_by_hangup(server),
        suppress(KeyboardInterrupt),
    ):
        if not no_browser:
            webbrowser.open(page.as_uri())
        server.run(sockets=[listening])
